//! Two Linux VMs that share their memory with the switch as their kernels are told to: all of it for good, or page by page behind an
//! IOMMU of their own.

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::guests::vms::ask;
use crate::switch::dpdk_vhost::DpdkVhost;
use crate::switch::lasthop::Ours;
use crate::switch::{Extras, Spent, Switch};
use lasthop_harness::stop::{Outcome, check, failed};
use lasthop_harness::{Nic, Port, Vm, VmConfig, scratch};
use serde_json::Value;

/// Pings that are counted, and how long one is waited for.
const PINGS: &str = "ping -c 40 -i 0.05 -W 1 -q";

/// What a VM shares, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All memory, for as long as the VM is there: no IOMMU.
    Good,
    /// The same, and the guest copies what it sends and receives through bounce buffers, as a confidential VM has to.
    Bounce,
    /// An IOMMU that maps all memory: the protocol without the protection.
    PassThrough,
    /// A buffer's page until Linux takes back all that has gathered, at most 10 ms later.
    Lazy,
    /// A buffer's page for one use.
    Strict,
}

impl Sharing {
    fn config(self, name: &str, nic: Nic) -> VmConfig {
        let translated = |words| VmConfig::new(name, [nic.clone()]).iommu(words);
        match self {
            Self::Good => VmConfig::new(name, [nic]),
            Self::Bounce => {
                VmConfig::new(name, [nic.with("disable-legacy=on,iommu_platform=on")]).kernel("swiotlb=force")
            }
            Self::PassThrough => translated("iommu.passthrough=1"),
            Self::Lazy => translated("iommu.strict=0"),
            Self::Strict => translated("iommu.strict=1"),
        }
    }

    /// Whether addresses are I/O addresses.
    fn translates(self) -> bool {
        matches!(self, Self::PassThrough | Self::Lazy | Self::Strict)
    }
}

/// What moves packets between the two.
enum Between {
    Ours(Box<Ours>),
    Peer(Box<DpdkVhost>),
}

impl Between {
    fn switch(&mut self) -> &mut dyn Switch {
        match self {
            Self::Ours(ours) => &mut **ours,
            Self::Peer(peer) => &mut **peer,
        }
    }

    /// What front-ends have told of I/O addresses so far, packets from guests, and pages that are known: updates, invalidations, packets,
    /// pages. Unknown of a peer.
    fn told(&self) -> Option<[f64; 4]> {
        let Self::Ours(ours) = self else { return None };
        let list = ours.instance().json(&["port", "list"]);
        let stats = ours.instance().json(&["stats"]);
        let sum = |of: &Value, at: &str| -> f64 {
            of["ports"].as_array().into_iter().flatten().filter_map(|port| port.pointer(at)?.as_f64()).sum()
        };
        let told = ["/translation/updates", "/translation/invalidations", "/translation/entries"];
        let [updates, invalidations, pages] = told.map(|at| sum(&list, at));
        Some([updates, invalidations, sum(&stats, "/from_guest/packets"), pages])
    }
}

/// Boots both, and measures one TCP connection, its cost, and pings. Figures as in [`crate::figure::GRANTED`].
pub fn measure(contender: Contender, cpus: Cpus, sharing: Sharing, seconds: u64) -> Outcome<Vec<Option<f64>>> {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let (mut between, nics) = match contender {
        Contender::Lasthop => {
            let ours = Ours::start(&ports, &cpus.both(), Extras::default(), None)?;
            (Between::Ours(Box::new(ours)), [1, 2].map(|n| Nic::vhost_user(&ports[n - 1].socket, n as u8)))
        }
        Contender::DpdkVhost => {
            let sockets = [&*ports[0].socket, &*ports[1].socket];
            let peer = DpdkVhost::start_for_vms(cpus.guests, cpus.switch, &sockets)?;
            (Between::Peer(Box::new(peer)), [1, 2].map(|n| Nic::vhost_user_server(&ports[n - 1].socket, n as u8)))
        }
        _ => return Err(failed("does not take part")),
    };
    check()?;
    let [a, b] = nics;
    let vms = Vm::boot_all([sharing.config("a", a), sharing.config("b", b)]);
    check()?;
    let address = vms[1].config.nics[0].ip4();
    vms[1].background("iperf3 -s");
    ask(&vms[1], "until netstat -ltn | grep -q :5201; do usleep 50000; done", 10)?;
    let lost = lost_percent(&ask(&vms[0], &format!("{PINGS} {address} || true"), 60)?);
    let before = between.told();
    between.switch().begin()?;
    let text = ask(&vms[0], &format!("iperf3 -J -c {address} -t {seconds}"), seconds + 30)?;
    let Spent { cpu_ns, .. } = between.switch().spent(1.0)?;
    let after = between.told();
    let json: Value = serde_json::from_str(&text).map_err(|e| failed(format!("iperf3: {e}: {text:?}")))?;
    let received = &json["end"]["sum_received"];
    let number = |at: &str| received[at].as_f64().ok_or_else(|| failed(format!("iperf3: {}", json["error"])));
    let (rate, bytes) = (number("bits_per_second")?, number("bytes")?);
    let cost = if bytes > 0.0 { Some(cpu_ns / 1e6 / (bytes * 8.0 / 1e9)) } else { None };
    let per_packet = |i: usize| {
        let (before, after) = (before?, after?);
        let packets = after[2] - before[2];
        (sharing.translates() && packets > 0.0).then(|| (after[i] - before[i]) / packets)
    };
    // A peer polls all the time, whatever comes.
    let cost = cost.filter(|_| matches!(between, Between::Ours(_)));
    // Of mappings that stay: as many as pages were used, in which buffers recur.
    let stays = after.filter(|_| sharing == Sharing::PassThrough);
    let (pages, packets) = (stays.map(|told| told[3]), stays.map(|told| told[2] / 1e3));
    Ok(vec![Some(rate / 1e6), lost, cost, per_packet(0), per_packet(1), pages, packets])
}

/// Of busybox's summary: `40 packets transmitted, 40 packets received, 0% packet loss`.
fn lost_percent(text: &str) -> Option<f64> {
    let (before, _) = text.split_once("% packet loss")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_pings_are_read() {
        let said = |loss: u8| format!("40 packets transmitted, 38 packets received, {loss}% packet loss\n");
        assert_eq!([0, 5, 100].map(|loss| lost_percent(&said(loss))), [Some(0.0), Some(5.0), Some(100.0)]);
        assert_eq!(lost_percent("ping: bad address"), None);
    }
}
