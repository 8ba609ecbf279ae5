//! A VM and the world outside: a veth pair, on one end of it the switch's uplink, on the other a network namespace with
//! TCP servers.
//!
//! ```text
//!  VM ─ vhost-user ─ switch, uplink ─ net0 ═ net1 ─ servers outside
//!   └── QEMU's TAP ─ br0 ─────────────┘
//! ```

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::Ovs;
use crate::switch::uplink::{Device, Uplink};
use crate::switch::{Extras, Switch};
use lasthop_harness::stop::{Outcome, check, failed, pause, until};
use lasthop_harness::{Backend, Netns, Nic, Port, Vm, guest_program, proc, scratch, spawn};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const OUTSIDE: &str = "10.9.0.100";

/// Everything that is plugged together.
pub struct Outside {
    // In this order: who sends ends before what it sends through.
    vm: Option<Vm>,
    servers: Vec<Child>,
    switch: Option<Box<dyn Switch>>,
    site: Netns,
    far: Netns,
    dir: tempfile::TempDir,
}

/// What a stream was like.
struct Stream {
    gbit_per_second: f64,
    /// Processor time for each Gbit of all programs and the kernel, in milliseconds.
    all: f64,
    /// Without the VM's processor and the program at the other end.
    between: f64,
    /// Of the uplink's process, in percent of a CPU.
    uplink: Option<f64>,
}

impl Outside {
    /// Makes the namespaces, starts the switch, boots the VM.
    pub fn start(contender: Contender, cpus: Cpus, device: Device) -> Outcome<Self> {
        let (site, far, dir) = (Netns::new(), Netns::new(), scratch());
        join(&site, &far, matches!(device, Device::Xdp | Device::XdpNoGro));
        site.ip("link set net0 up");
        far.ip("link set net1 up");
        far.ip(&format!("addr add {OUTSIDE}/24 dev net1"));
        let mut here = Self { vm: None, servers: Vec::new(), switch: None, site, far, dir };
        here.serve()?;
        let nic = here.plug(contender, cpus, device)?;
        check()?;
        here.vm = Some(Vm::start("a", [nic]));
        check()?;
        here.ask(&format!("until ping -c 1 -W 1 {OUTSIDE}; do usleep 50000; done"), 20)?;
        Ok(here)
    }

    /// The servers outside.
    fn serve(&mut self) -> Outcome<()> {
        let guest = guest_program().display().to_string();
        for words in [&["iperf3", "-s"][..], &[&guest, "tcp-serve", "7000"]] {
            self.servers.push(spawn::spawn("KILL", "ip", |c| {
                c.args(["netns", "exec", self.far.name()]).args(words);
                c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            }));
        }
        until("the servers outside", Duration::from_secs(10), || {
            let listening = self.far.shell("cat /proc/net/tcp /proc/net/tcp6");
            Ok((listening.contains(":1451 ") && listening.contains(":1B58 ")).then_some(()))
        })
    }

    /// Starts what is between the VM and the pair; the VM's card.
    fn plug(&mut self, contender: Contender, cpus: Cpus, device: Device) -> Outcome<Nic> {
        let port = Port::listen("vm", self.dir.path());
        let extras = Extras {
            large: device == Device::Packet,
            uplink: Some(Uplink { netns: &self.site, device }),
            ..Extras::default()
        };
        match contender {
            Contender::Lasthop | Contender::Tap | Contender::NoGro | Contender::Changed(_) => {
                let change = if let Contender::Changed(change) = contender { Some(change) } else { None };
                let nic = Nic::vhost_user(&port.socket, 1);
                self.switch = Some(Box::new(Ours::start(&[port], &cpus.both(), extras, change)?));
                if device == Device::Tap {
                    self.bridge("lh0");
                }
                Ok(nic)
            }
            Contender::Ovs(rules) => {
                self.switch = Some(Box::new(Ovs::start(cpus.guests, &[cpus.switch], &[&port.socket], rules, extras)?));
                Ok(Nic::vhost_user_server(&port.socket, 1))
            }
            Contender::LinuxBridge => {
                self.site.ip("tuntap add t1 mode tap vnet_hdr");
                self.bridge("t1");
                Ok(Nic::new(Backend::Tap { ifname: "t1".into(), netns: self.site.name().into() }, 1))
            }
            Contender::Driven(_) | Contender::DpdkVhost | Contender::BridgeNft | Contender::BridgeAlone => {
                Err(failed("has no uplinks"))
            }
        }
    }

    /// Puts the pair's end on a bridge with a TAP device.
    fn bridge(&self, tap: &str) {
        self.site.ip("link add br0 type bridge mcast_snooping 0");
        self.site.ip("link set br0 up");
        for end in ["net0", tap] {
            self.site.ip(&format!("link set {end} master br0 up"));
        }
    }

    fn vm(&self) -> Outcome<&Vm> {
        self.vm.as_ref().ok_or_else(|| failed("no VM"))
    }

    fn ask(&self, command: &str, seconds: u64) -> Outcome<String> {
        super::vms::ask(self.vm()?, command, seconds)
    }

    /// A stream to the outside and one from there, transactions, and what they cost.
    pub fn traffic(&mut self, seconds: u64) -> Outcome<Vec<Option<f64>>> {
        let sent = self.stream(seconds, "")?;
        let received = self.stream(seconds, "-R")?;
        let text = self.ask(&format!("lasthop-guest tcp-transactions {OUTSIDE}:7000 {seconds}"), seconds + 20)?;
        let rate = super::vms::per_second(&text).ok_or_else(|| failed(format!("no count in {text:?}")))?;
        let uplink = sent.uplink.zip(received.uplink).map(|(a, b)| a.max(b));
        let figures = [sent.gbit_per_second, received.gbit_per_second, rate, sent.between, received.between];
        let rest = [Some(sent.all), Some(received.all), uplink];
        Ok(figures.into_iter().map(Some).chain(rest).collect())
    }

    fn stream(&mut self, seconds: u64, option: &str) -> Outcome<Stream> {
        // What the last one left in queues is gone by then.
        pause(Duration::from_millis(200))?;
        let uplink = self.switch.as_ref().and_then(|s| s.uplink());
        let times = |here: &Self| -> Outcome<[f64; 3]> {
            let ends = processor_ns(here.vm()?.pid()) + here.servers.first().map_or(0, |s| proc::cpu_ns(s.id()));
            Ok([busy_ms(), ends as f64 / 1e6, uplink.map_or(0, proc::cpu_ns) as f64 / 1e6])
        };
        let (before, start) = (times(self)?, Instant::now());
        let text = self.ask(&format!("iperf3 -J -c {OUTSIDE} -t {seconds} {option}"), seconds + 20)?;
        let (after, elapsed) = (times(self)?, start.elapsed().as_secs_f64() * 1e3);
        let [busy, ends, uplink_ms] = [0, 1, 2].map(|i| (after[i] - before[i]).max(0.0));
        let json: Value = serde_json::from_str(&text).map_err(|e| failed(format!("iperf3: {e}: {text:?}")))?;
        let of = |what: &str| {
            let value = json["end"]["sum_received"][what].as_f64().filter(|v| *v > 0.0);
            value.ok_or_else(|| failed(format!("iperf3: {}", json["error"])))
        };
        let gbit = of("bytes")? * 8.0 / 1e9;
        Ok(Stream {
            gbit_per_second: of("bits_per_second")? / 1e9,
            all: busy / gbit,
            between: (busy - ends).max(0.0) / gbit,
            uplink: uplink.map(|_| 100.0 * uplink_ms / elapsed),
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.vm = None;
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Joins two namespaces by a veth pair, `net0` and `net1`, both down. If it is to be like a wire, no packet longer than a frame
/// crosses it, and checksums are finished.
pub fn join(site: &Netns, far: &Netns, like_a_wire: bool) {
    site.ip(&format!("link add net0 type veth peer name net1 netns {}", far.name()));
    if like_a_wire {
        far.shell("ethtool -K net1 tx off tso off gso off gro on");
        site.shell("ethtool -K net0 tso off gro on");
    }
}

/// Processor time of QEMU without its main thread: what the guest itself takes. The main thread serves the devices.
fn processor_ns(qemu: u32) -> u64 {
    proc::cpu_ns(qemu).saturating_sub(proc::thread_ns(qemu, qemu))
}

/// Time that all processors have worked, in milliseconds (proc(5), /proc/stat: user, nice, system, irq, softirq; its ticks
/// are 10 ms).
fn busy_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let columns: Vec<f64> = line.split_ascii_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
    10.0 * [0, 1, 2, 5, 6].iter().filter_map(|i| columns.get(*i)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn processors_have_worked() {
        assert!(super::busy_ms() > 0.0);
    }
}
