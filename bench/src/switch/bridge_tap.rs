//! The kernel's bridge with TAP devices, and between these and guests' rings, in the place that netback has in a driver domain, DPDK's testpmd,
//! which takes packets from a vhost-user port and writes each to a TAP device, and the other way round.
//!
//! ```text
//!  guest ─ vhost-user ─ testpmd ─ t0 ─ br0, nftables ─ t1 ─ testpmd ─ vhost-user ─ guest
//!                                       └─ net0 ═ the world outside
//! ```
//!
//! All of it happens on one CPU, as in a driver domain of one vCPU: testpmd polls, and the kernel does the bridge's work within its calls. A
//! packet is copied by testpmd, into the kernel, out of it, and by testpmd again, in single frames. The two in the middle, and a system call for
//! each, are DPDK's TAP driver's: netback has neither.

use super::dpdk_vhost::ns_per_packet;
use super::tc::Tree;
use super::{Extras, Spent, Switch};
use crate::acl::List;
use lasthop_harness::stop::{Outcome, failed};
use lasthop_harness::testpmd::Testpmd;
use lasthop_harness::{Netns, proc, scratch};
use std::path::Path;
use std::time::Instant;

/// Memory in huge pages it takes, in MiB.
pub const MIB: u32 = 400;
/// Guests that it can have: Debian's DPDK has 32 ports (`RTE_MAX_ETHPORTS`), of which each guest takes two.
pub const MOST: usize = 16;
/// Buffers that a TAP device's ring holds all the time, and as many again on their way.
const BUFFERS: usize = 2048;

/// A running testpmd, and a bridge in a network namespace.
pub struct BridgeTap {
    testpmd: Testpmd,
    /// How often testpmd handles a packet that goes through.
    times: f64,
    begun: Instant,
    before: u64,
    /// Of its own, where there is no world outside.
    _netns: Option<Netns>,
}

impl BridgeTap {
    /// testpmd's commands run on CPU `main`, its packets and the bridge's on CPU `cpu`.
    pub fn start(main: usize, cpu: usize, sockets: &[&Path], extras: Extras<'_>) -> Outcome<Self> {
        let own = extras.uplink.is_none().then(Netns::new);
        let netns = extras.uplink.map(|u| u.netns).or(own.as_ref()).ok_or_else(|| failed("no network namespace"))?;
        netns.ip("link add br0 type bridge mcast_snooping 0");
        netns.ip("link set br0 up");
        if extras.uplink.is_some() {
            netns.ip("link set net0 master br0");
        }
        // Each port and its TAP device are neighbours, between which packets go (testpmd's paired topology).
        let pair = |(i, socket): (usize, &&Path)| {
            [format!("net_vhost{i},iface={},client=1", socket.display()), format!("net_tap{i},iface=t{i}")]
        };
        let devices: Vec<String> = sockets.iter().enumerate().flat_map(pair).collect();
        let buffers = format!("--total-num-mbufs={}", BUFFERS * (sockets.len() + 2));
        let options = ["--burst=64", "--no-flush-rx", &buffers];
        let mut testpmd = Testpmd::start_in(netns, &format!("0@{main},1@{cpu}"), MIB, &devices, &options)?;
        for i in 0..sockets.len() {
            netns.ip(&format!("link set t{i} master br0 up"));
        }
        if let Some(list) = extras.list {
            filter(netns, list)?;
        }
        for bound in extras.police {
            Tree::at_receiver(&format!("t{}", bound.to), *bound).set(netns)?;
        }
        if let Some(promise) = extras.promise {
            Tree::at_uplink("net0", promise).set(netns)?;
        }
        testpmd.say("set fwd io")?;
        testpmd.say("set record-core-cycles on")?;
        testpmd.say("start")?;
        // To a world outside a packet goes out by one TAP device, and comes in by no other.
        let times = if extras.uplink.is_some() { 1.0 } else { 2.0 };
        Ok(Self { testpmd, times, begun: Instant::now(), before: 0, _netns: own })
    }
}

/// Has the bridge of a network namespace judge packets by a list.
pub fn filter(netns: &Netns, list: &List) -> Outcome<()> {
    let text = list.nftables();
    let dir = scratch();
    let file = dir.path().join("list");
    std::fs::write(&file, &text).map_err(failed)?;
    if text.starts_with("table ip ") {
        netns.shell("echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables");
    }
    let out = netns.output(&format!("nft -f {}", file.display()));
    if !out.status.success() {
        return Err(failed(format!("nft: {}", String::from_utf8_lossy(&out.stderr).trim())));
    }
    Ok(())
}

impl Switch for BridgeTap {
    fn begin(&mut self) -> Outcome<()> {
        // A new start sets the cycle counts back; packets wait in rings and TAP devices for a moment.
        self.testpmd.say("stop")?;
        self.testpmd.say("start")?;
        (self.begun, self.before) = (Instant::now(), proc::cpu_ns(self.testpmd.pid()));
        Ok(())
    }

    fn spent(&mut self, packets: f64) -> Outcome<Spent> {
        let cpu_ns = proc::cpu_ns(self.testpmd.pid()).saturating_sub(self.before) as f64;
        let elapsed = self.begun.elapsed().as_nanos() as f64;
        let text = self.testpmd.say("stop")?;
        self.testpmd.say("start")?;
        let ns = ns_per_packet(&text).ok_or_else(|| failed(format!("no cycle counts in {text:?}")))?;
        // Its cycles go on while others have its CPU, whether it is idle or busy then; so the share is what to trust.
        let share = (ns * packets * self.times / elapsed).min(1.0);
        Ok(Spent { cpu_ns, busy_ns: cpu_ns * share, idle_ns: 0.0 })
    }

    fn polls(&self) -> bool {
        true
    }

    fn memory_kib(&self) -> u64 {
        proc::private_kib(self.testpmd.pid())
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.testpmd.pid()]
    }
}
