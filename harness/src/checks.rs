//! What two guests on one switch must be able to do. Each check panics with what went wrong.

use crate::{Output, Pending, Vm};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How many sizes a content check walks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every size to 256 bytes, every 101st to 64 KiB, and the edges around segment sizes: about 950 messages.
    Thorough,
    /// Every size to 256 bytes, every 4001st, and the edges: about 320 messages.
    Quick,
}

impl Depth {
    fn stride(self) -> u32 {
        match self {
            Self::Thorough => 101,
            Self::Quick => 4001,
        }
    }
}

/// 20 echo requests 20 ms apart, none lost: IPv4, with the largest that fits the MTU, and IPv6.
pub fn ping(from: &Vm, to: &Vm) {
    let (nic, mtu) = (&to.config.nics[0], from.config.nics[0].mtu);
    for ping in [
        format!("ping -c 20 -i 0.02 -w 40 -q {}", nic.ip4()),
        format!("ping -c 5 -i 0.02 -w 40 -q -s {} {}", mtu - 28, nic.ip4()),
        format!("ping -6 -c 20 -i 0.02 -w 40 -q {}", nic.ip6()),
    ] {
        let out = from.output(&ping, 50);
        assert!(out.code == 0 && out.stdout.contains(" 0% packet loss"), "{ping}: {out:?}");
    }
}

/// TCP messages from 1 byte to 64 KiB, there and back, compared byte for byte. `to` must [`Vm::serve`].
pub fn tcp(from: &Vm, to: &Vm, depth: Depth) {
    let to = to.config.nics[0].ip4();
    from.run(&format!("lasthop-guest tcp-check {to}:7000 65536 {}", depth.stride()));
}

/// The same over IPv6.
pub fn tcp6(from: &Vm, to: &Vm, depth: Depth) {
    let to = to.config.nics[0].ip6();
    from.run(&format!("lasthop-guest tcp-check [{to}]:7000 65536 {}", depth.stride()));
}

/// UDP datagrams from 1 byte to the largest there is, there and back, compared byte for byte; over IPv4 and IPv6.
pub fn udp(from: &Vm, to: &Vm, depth: Depth) {
    let nic = &to.config.nics[0];
    from.run(&format!("lasthop-guest udp-check {}:7000 65507 {}", nic.ip4(), depth.stride()));
    from.run(&format!("lasthop-guest udp-check [{}]:7000 65487 4001", nic.ip6()));
}

/// Everything above, from both ends.
pub fn all(a: &Vm, b: &Vm, depth: Depth) {
    for (from, to) in [(a, b), (b, a)] {
        ping(from, to);
        tcp(from, to, depth);
        tcp6(from, to, Depth::Quick);
        udp(from, to, depth);
    }
}

/// A datagram to a group or broadcast address, sent by one, reaches all the others.
pub fn group(from: &Vm, others: &[&Vm], address: &str) {
    let port = 7100;
    let receivers: Vec<_> =
        others.iter().map(|vm| vm.spawn(&format!("lasthop-guest group-recv {address} {port} 900 15"))).collect();
    // It is repeated until all have heard it: who is still starting does not hear the first.
    let sender = from.spawn(&format!(
        "echo $$ >/tmp/group-send; exec lasthop-guest group-send {address} {port} 900 150 $(cat /sys/class/net/eth0/ifindex)"
    ));
    for r in receivers {
        let heard = r.success(Duration::from_secs(25));
        assert!(heard.starts_with("ok from"), "{heard}");
    }
    from.run("kill $(cat /tmp/group-send)");
    sender.output(Duration::from_secs(25));
}

/// A TCP stream from a guest that goes on until it is ended, or for 55 seconds.
pub struct Stream<'a> {
    from: &'a Vm,
    enough: String,
    pending: Pending,
}

/// Begins one to an address and port where [`Vm::serve`], or another `lasthop-guest tcp-serve`, compares what comes.
pub fn stream<'a>(from: &'a Vm, to: &str) -> Stream<'a> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let enough = format!("/tmp/enough-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Stream { from, pending: from.spawn(&format!("lasthop-guest tcp-push {to} 55 {enough}")), enough }
}

impl Stream<'_> {
    /// Ends it; panics unless all that was sent has come, unchanged.
    pub fn end(self) {
        self.from.run(&format!("touch {}", self.enough));
        self.pending.success(Duration::from_secs(65));
    }
}

/// What `lasthop-guest raw-recv` counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Different frames.
    pub received: u64,
    /// Frames that never came.
    pub lost: u64,
    /// Frames that came again.
    pub repeated: u64,
    /// Frames that came after a later one.
    pub reordered: u64,
    /// Frames with other content than was sent.
    pub damaged: u64,
    /// The longest silence between two frames, in milliseconds.
    pub gap_ms: u64,
}

impl Counted {
    /// From a receiver that has ended.
    pub fn parse(output: &Output) -> Self {
        let words: Vec<&str> = output.stdout.split_ascii_whitespace().collect();
        let of = |name: &str| {
            let at = words.iter().position(|w| *w == name);
            at.and_then(|i| words.get(i + 1)?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {output:?}"))
        };
        Self {
            received: of("received"),
            lost: of("lost"),
            repeated: of("repeated"),
            reordered: of("reordered"),
            damaged: of("damaged"),
            gap_ms: of("gap"),
        }
    }
}

/// `count` numbered frames of 64 to 1514 bytes from one guest to another, `pause_us` microseconds apart, while
/// `meanwhile` runs; says what arrived. EtherType 88b5 (IEEE 802, for local experiments).
pub fn numbered(from: &Vm, to: &Vm, count: u64, pause_us: u64, meanwhile: impl FnOnce()) -> Counted {
    let receiver = to.spawn(&format!("lasthop-guest raw-recv eth0 88b5 {count} 8"));
    to.run("until [ $(wc -l </proc/net/packet) -gt 1 ]; do usleep 20000; done");
    let mac = to.config.nics[0].mac();
    let sender = from.spawn(&format!("lasthop-guest raw-send eth0 {mac} 88b5 {count} 64 1514 {pause_us}"));
    meanwhile();
    sender.success(Duration::from_secs(65));
    Counted::parse(&receiver.output(Duration::from_secs(65)))
}
