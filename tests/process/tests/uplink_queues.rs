//! Queues for guests (VMDq) of AF_XDP uplinks: who gets one, what it protects from, who does not get one. The wire is a veth
//! pair with several queues in a network namespace, a lasthop at each end.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;

/// Two ends of a wire with so many queues, guests a, b and c on the left and one outside.
struct Wire {
    left: Lasthop,
    right: Lasthop,
    guests: Vec<Guest>,
    outside: Guest,
    number: u32,
    _dir: tempfile::TempDir,
    _netns: Netns,
}

impl Wire {
    fn new(queues: u16, arguments: &[&str]) -> Self {
        let netns = Netns::new();
        let several = format!("numtxqueues {queues} numrxqueues {queues}");
        netns.ip(&format!("link add v0 {several} type veth peer name v1 {several}"));
        netns.ip("link set v1 up");
        let dir = scratch();
        let [near, far] = [&["a", "b", "c"][..], &["outside"]];
        let start = |names: &[&str], end: &str, arguments: &[&str]| {
            let ports: Vec<Port> = names.iter().map(|name| Port::listen(name, dir.path())).collect();
            let uplink = format!("net={end},af_xdp,queues={queues}");
            let lasthop = Lasthop::start_in(Some(&netns), &ports, &[&["--uplink", &uplink], arguments].concat());
            lasthop.wait_for_state("net", "up");
            lasthop
        };
        let (left, right) = (start(near, "v0", arguments), start(far, "v1", &[]));
        let guest = |name: &str, mac| Guest::connect(&dir.path().join(format!("{name}.sock")), mac, Options::default());
        let mut outside = guest("outside", mac(0xee));
        let mut guests: Vec<Guest> = near.iter().zip(1..).map(|(name, n)| guest(name, mac(n))).collect();
        for (number, guest) in (1..).zip(&mut guests) {
            outside.greet(guest, number);
        }
        Self { left, right, guests, outside, number: 10, _dir: dir, _netns: netns }
    }

    fn uplink(of: &Lasthop) -> Value {
        of.json(&["uplink", "list"])["uplinks"][0].clone()
    }

    /// The queues of the left end, the default queue first.
    fn queues(&self) -> Vec<Value> {
        Self::uplink(&self.left)["guest_queues"].as_array().cloned().unwrap_or_default()
    }

    fn queue_of(&self, guest: MacAddr) -> Option<usize> {
        self.queues().iter().position(|q| q["mac"] == guest.to_string().as_str())
    }

    /// Frames that have left the right end.
    fn sent(&self) -> u64 {
        Self::uplink(&self.right)["to_network"]["packets"].as_u64().unwrap_or(0)
    }

    /// From outside: a few frames to each of these guests, which must all arrive, whole and in order.
    fn exchange(&mut self, guests: &[usize]) {
        for &g in guests {
            let first = self.number;
            self.number += 24;
            let to = self.guests[g].mac;
            for number in first..self.number {
                self.outside.send(&numbered(self.outside.mac, to, number, 60 + number as usize % 1400));
            }
            for expected in first..self.number {
                let (_, frame) =
                    self.guests[g].recv("a numbered frame", |_, f| number_of(f).is_some() && f[..6] == to.0);
                assert_eq!(number_of(&frame), Some(expected), "guest {to}: out of order, lost or doubled");
            }
        }
    }

    /// Keeps these guests busy until the condition holds.
    fn busy_until(&mut self, what: &str, guests: &[usize], condition: impl Fn(&Self) -> bool) {
        wait_for(what, PATIENCE, || {
            (0..8).for_each(|_| self.exchange(guests));
            condition(self)
        });
    }
}

fn packets(queue: &Value) -> u64 {
    queue["packets"].as_u64().expect("a number")
}

#[test]
fn busy_guests_have_queues_of_their_own() {
    let mut wire = Wire::new(3, &[]);
    let all = wire.queues();
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|q| q["mac"].is_null()), "{all:?}");
    let [a, b] = [mac(1), mac(2)];
    wire.busy_until("both to have a queue", &[0, 1], |w| w.queue_of(a).is_some() && w.queue_of(b).is_some());
    let [qa, qb] = [a, b].map(|guest| wire.queue_of(guest).expect("it has one"));
    assert!(qa != 0 && qb != 0 && qa != qb, "{qa} {qb}");
    let text = wire.left.command(&["uplink", "list"]);
    assert!(text.contains("net: queue 0 (shared)") && text.contains(&format!("net: queue {qa} (of {a})")), "{text}");
    // What is for them comes through their queues, and the rest through the default queue.
    let before: Vec<u64> = wire.queues().iter().map(packets).collect();
    (0..10).for_each(|_| wire.exchange(&[0, 1, 0]));
    wire.exchange(&[2]);
    let after: Vec<u64> = wire.queues().iter().map(packets).collect();
    let grown: Vec<u64> = before.iter().zip(&after).map(|(b, a)| a - b).collect();
    assert_eq!((grown[qa], grown[qb], grown[0]), (480, 240, 24), "{grown:?}");
    assert_eq!(Wire::uplink(&wire.left)["drops"], Value::Array(Vec::new()));
    // Both ways: what goes out takes any queue.
    for guest in &mut wire.guests {
        guest.greet(&mut wire.outside, 5);
    }
    // When nothing comes any more they are given back.
    wait_for("the queues to be free", PATIENCE, || wire.queues().iter().all(|q| q["mac"].is_null()));
    wire.exchange(&[0, 1, 2]);
}

/// While the uplink does not run, frames for one guest come until nothing more fits anywhere; then some for another.
#[test]
fn a_flood_for_one_guest_takes_nothing_from_another() {
    let mut wire = Wire::new(3, &["--uplink-limit-ms", "60000"]);
    let [a, b] = [mac(1), mac(2)];
    wire.busy_until("both to have a queue", &[0, 1], |w| w.queue_of(a).is_some() && w.queue_of(b).is_some());
    let qb = wire.queue_of(b).expect("it has one");
    let pid = Wire::uplink(&wire.left)["pid"].as_u64().expect("it runs") as u32;
    proc::signal(pid, Signal::STOP);
    // More than an uplink has slots, all queues together.
    let (start, flood) = (wire.sent(), 3 * 2500);
    let mut number = 1_000_000;
    wait_for("the flood to have gone out", PATIENCE, || {
        for _ in 0..500 {
            number += 1;
            // From many stations, so that it comes in on all queues of the wire.
            wire.outside.send(&numbered(mac(0x80 + number as u8 % 32), a, number, 60));
        }
        wire.sent() >= start + flood
    });
    let mut gone = wire.sent();
    wait_for("nothing to be on its way", PATIENCE, || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        gone == std::mem::replace(&mut gone, wire.sent())
    });
    for few in 0..10 {
        for n in 0..10 {
            wire.outside.send(&numbered(wire.outside.mac, b, 2_000_000 + few * 10 + n, 500));
        }
        wait_for("some more to have gone out", PATIENCE, || wire.sent() >= gone + 10 * u64::from(few + 1));
    }
    proc::signal(pid, Signal::CONT);
    for expected in 2_000_000..2_000_100 {
        let (_, frame) = wire.guests[1].recv("a numbered frame", |_, f| number_of(f).is_some() && f[..6] == b.0);
        assert_eq!(number_of(&frame), Some(expected), "lost to the flood for another");
    }
    let queues = wire.queues();
    assert_eq!(queues[qb]["dropped"], 0, "{queues:?}");
    let lost: u64 = queues.iter().map(|q| q["dropped"].as_u64().expect("a number")).sum();
    assert!(lost > flood / 3, "this was no flood: {queues:?}");
    wire.guests[0].drain();
    wire.exchange(&[0, 1, 2]);
}

#[test]
fn a_queue_moves_to_whoever_is_busy() {
    let mut wire = Wire::new(2, &[]);
    for guest in [0, 1, 0] {
        let owner = wire.guests[guest].mac;
        wire.busy_until("the busy guest to have the queue", &[guest], |w| w.queue_of(owner) == Some(1));
    }
}

#[test]
fn many_queues_carry_as_one_does() {
    let mut wire = Wire::new(8, &[]);
    assert_eq!(wire.queues().len(), 8);
    (0..5).for_each(|_| wire.exchange(&[0, 1, 2]));
    for guest in &mut wire.guests {
        guest.greet(&mut wire.outside, 5);
    }
}

/// With several queues nothing of the device is handed down: each process opens it anew, and deals the queues out anew.
#[test]
fn a_killed_uplink_opens_its_queues_anew() {
    let mut wire = Wire::new(2, &[]);
    for restarts in 1..=3_u32 {
        wire.busy_until("the guest to have the queue", &[0], |w| w.queue_of(mac(1)) == Some(1));
        let old = Wire::uplink(&wire.left)["pid"].as_u64();
        proc::signal(old.expect("it runs") as u32, Signal::KILL);
        wait_for("another process to carry", PATIENCE, || {
            let now = Wire::uplink(&wire.left);
            now["state"] == "up" && now["pid"].as_u64().is_some_and(|pid| Some(pid) != old)
        });
        assert_eq!(Wire::uplink(&wire.left)["restarts"], restarts);
        wire.exchange(&[0, 1, 2]);
        // The new process knows a guest that sends.
        let Wire { guests, outside, .. } = &mut wire;
        guests[0].greet(outside, restarts);
    }
    let add = ["uplink", "add", "more", "v9", "--driver", "af_xdp", "--queues", "2", "--spare"];
    let refused = String::from_utf8_lossy(&wire.left.try_command(&add).stderr).into_owned();
    assert!(refused.contains("leave out spare"), "{refused}");
}

/// Addresses that nobody behind the switch sends from get no queue, whatever is sent to them or pretended outside.
#[test]
fn a_stranger_wins_no_queue() {
    let mut wire = Wire::new(2, &[]);
    let (a, stranger, pretended) = (mac(1), mac(0x77), mac(0x78));
    let mut number = 1_000_000;
    let mut busy_until = |wire: &mut Wire, what: &str, condition: &dyn Fn(&Wire) -> bool| {
        wait_for(what, PATIENCE, || {
            for _ in 0..8 {
                wire.exchange(&[0]);
                for _ in 0..100 {
                    number += 1;
                    wire.outside.send(&numbered(pretended, stranger, number, 60));
                }
                // The switch floods them. All are taken before more come: the rings have room for so many.
                wire.guests.iter_mut().for_each(|guest| guest.expect_number(number));
            }
            condition(wire)
        });
    };
    busy_until(&mut wire, "the guest to have the queue", &|w| w.queue_of(a) == Some(1));
    // It keeps it, and the strangers, although far busier, keep to the default queue.
    let before = packets(&wire.queues()[0]);
    busy_until(&mut wire, "many strangers' frames", &|w| {
        assert_eq!(w.queue_of(a), Some(1));
        packets(&w.queues()[0]) > before + 10_000
    });
}
