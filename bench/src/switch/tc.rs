//! Classes of the kernel's traffic control (tc-htb(8)) at an interface, as an administrator has them: one for each sender, who is told by his MAC
//! address, below one for all.

use super::{Bound, Promise};
use lasthop_harness::stop::{Outcome, failed};
use lasthop_harness::{Netns, scratch};
use lasthop_loadgen::frame::mac;

/// Bits a second that a TAP device is taken to carry: more than it does.
const LINE: u64 = 10_000_000_000;
/// What everybody is promised who is promised nothing: classes have a rate.
const NOTHING: u64 = 8_000;
/// Bytes that may go at once to an uplink: some frames.
const BURST: u64 = 1 << 15;
/// Bytes of one turn of each class in what nobody is promised: the same for all.
const TURN: u64 = 1514;
/// Classes 1, 2 and so on are those of senders; these are the one above them and the one of all others.
const WHOLE: &str = "1:fffe";
const OTHERS: &str = "ffff";

/// One sender's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Number of the port that sends.
    pub from: u16,
    /// Bits a second that it gets at least.
    pub rate: u64,
    /// Bits a second that it gets at most.
    pub ceil: u64,
    /// Bytes that may go at once.
    pub burst: u64,
}

/// All classes of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    device: String,
    /// Bits a second of all together.
    whole: u64,
    burst: u64,
    classes: Vec<Class>,
}

impl Tree {
    /// At a receiver's TAP device: its sender has so much and no more, like a policer that lets packets wait. All others have the rest.
    pub fn at_receiver(device: &str, bound: Bound) -> Self {
        let (rate, burst) = (8 * bound.bytes, bound.burst());
        let class = Class { from: bound.from as u16, rate, ceil: rate, burst };
        Self { device: device.into(), whole: LINE, burst: LINE / 8 / 50, classes: vec![class] }
    }

    /// At an uplink: one port has so much at least, and all share what nobody is promised, by turns.
    pub fn at_uplink(device: &str, promise: Promise) -> Self {
        let Promise { port, least, whole } = promise;
        let class = Class { from: port as u16, rate: least, ceil: whole, burst: BURST };
        Self { device: device.into(), whole, burst: BURST, classes: vec![class] }
    }

    /// One that any kernel takes which has what the others want.
    pub fn trial() -> Self {
        Self::at_receiver("lo", Bound { from: 0, to: 1, bytes: 1_000_000 })
    }

    /// What `tc -batch` is told.
    pub fn text(&self) -> String {
        let Self { device, whole, burst, .. } = self;
        let class = |parent: &str, id: &str, rate: u64, ceil: u64, burst: u64| {
            format!(
                "class add dev {device} parent {parent} classid {id} htb rate {rate}bit ceil {ceil}bit burst {burst}b cburst {burst}b \
                 quantum {TURN}\n"
            )
        };
        let mut text = format!("qdisc replace dev {device} root handle 1: htb default {OTHERS}\n");
        text += &class("1:", WHOLE, *whole, *whole, *burst);
        for (c, n) in self.classes.iter().zip(1..) {
            let id = format!("1:{n:x}");
            text += &class(WHOLE, &id, c.rate, c.ceil, c.burst);
            let from = mac(c.from);
            text += &format!(
                "filter add dev {device} parent 1: protocol all prio 1 u32 match ether src {from} flowid {id}\n"
            );
        }
        text + &class(WHOLE, &format!("1:{OTHERS}"), NOTHING, *whole, *burst)
    }

    /// Makes them, in a network namespace.
    pub fn set(&self, netns: &Netns) -> Outcome<()> {
        let dir = scratch();
        let file = dir.path().join("classes");
        std::fs::write(&file, self.text()).map_err(failed)?;
        let out = netns.output(&format!("tc -batch {}", file.display()));
        if !out.status.success() {
            return Err(failed(format!("tc: {}", String::from_utf8_lossy(&out.stderr).trim())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_s_classes_are_one_for_its_sender_and_one_for_all_others() {
        let bound = Bound { from: 2, to: 3, bytes: 30_000_000 };
        let text = Tree::at_receiver("t3", bound).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "qdisc replace dev t3 root handle 1: htb default ffff",
                "class add dev t3 parent 1: classid 1:fffe htb rate 10000000000bit ceil 10000000000bit burst 25000000b cburst 25000000b \
                 quantum 1514",
                "class add dev t3 parent 1:fffe classid 1:1 htb rate 240000000bit ceil 240000000bit burst 600000b cburst 600000b \
                 quantum 1514",
                "filter add dev t3 parent 1: protocol all prio 1 u32 match ether src 02:4c:00:02:00:00 flowid 1:1",
                "class add dev t3 parent 1:fffe classid 1:ffff htb rate 8000bit ceil 10000000000bit burst 25000000b cburst 25000000b \
                 quantum 1514",
            ]
        );
    }

    #[test]
    fn at_an_uplink_one_is_promised_a_part_and_everybody_may_have_the_rest() {
        let text = Tree::at_uplink("net0", Promise { port: 0, least: 140_000_000, whole: 200_000_000 }).text();
        let of = |id: &str| text.lines().find(|l| l.contains(&format!(" classid {id} "))).unwrap();
        assert!(of("1:fffe").contains(" parent 1: ") && of("1:fffe").contains(" rate 200000000bit ceil 200000000bit "));
        assert!(of("1:1").contains(" parent 1:fffe ") && of("1:1").contains(" rate 140000000bit ceil 200000000bit "));
        assert!(of("1:ffff").contains(" parent 1:fffe ") && of("1:ffff").contains(" rate 8000bit ceil 200000000bit "));
        assert!(text.contains(" match ether src 02:4c:00:00:00:00 flowid 1:1\n"), "{text}");
    }
}
