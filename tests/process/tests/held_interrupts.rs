//! Interrupts that are held back while their guest runs (`--rx-batch`), by threads of ports and by cores that poll: the last packet of a burst is told of in time,
//! and whatever happens meanwhile to the port, its ring, or the switch, no interrupt is lost.

use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, connect, mac, number_of, numbered, scratch, wait_for,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// As long as may be.
const LONG: &str = "1000000,32768";

/// Two guests, of which the second runs all the time: the VM of a guest is the process that plays it.
struct Held {
    lasthop: Lasthop,
    a: Guest,
    b: Guest,
    next: u32,
    stop: Arc<AtomicBool>,
    dir: tempfile::TempDir,
}

impl Held {
    /// `None` where it is not known which VMs run.
    fn by(engine: [&str; 2], batch: &str) -> Option<Self> {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_with(&ports, &[&engine[..], &["--rx-batch", batch]].concat());
        let options = Options::net(|net| net.event_idx = true);
        let [mut a, mut b] = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), options));
        a.greet(&mut b, 1);
        let known = !lasthop.port("b")["vm"].is_null();
        let stop = Arc::new(AtomicBool::new(!known));
        let until = stop.clone();
        std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        if !known {
            println!("not known here which VMs run: not tested");
        }
        known.then_some(Self { lasthop, a, b, next: 2, stop, dir })
    }

    /// Both hear each other, and each is known to live where it is.
    fn greet(&mut self) {
        self.next += 1;
        self.a.greet_when_back(&mut self.b, self.next);
        self.next += 1;
    }

    fn called(&self) -> bool {
        self.b.net.queues()[0].call.drain()
    }

    /// Frames until one has been delivered of which the second guest is not told, though it wants to be.
    fn hold(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.called();
            self.b.net.queues_mut()[0].ring.enable_calls();
            let number = self.next;
            self.next += 1;
            self.a.send(&numbered(self.a.mac, self.b.mac, number, 60));
            while self.b.try_recv().is_none_or(|(_, frame)| number_of(&frame) != Some(number)) {
                assert!(Instant::now() < end, "frame {number} does not come");
            }
            // Shown first, told of then.
            self.lasthop.port("b");
            if !self.called() {
                return;
            }
            assert!(Instant::now() < end, "no interrupt is held back");
        }
    }

    fn is_told(&self, what: &str) {
        wait_for(&format!("the guest to be told: {what}"), PATIENCE, || self.called());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

const ENGINES: [[&str; 2]; 2] = [["--helpers", "none"], ["--poll", "0"]];

#[test]
fn a_guest_is_told_of_the_last_packet_when_the_time_is_over() {
    for engine in ENGINES {
        let Some(mut held) = Held::by(engine, LONG) else { return };
        for _ in 0..3 {
            held.hold();
            held.is_told(engine[0]);
        }
        held.lasthop.check_sums();
    }
}

#[test]
fn a_guest_is_told_when_its_ring_stops_or_its_switch_ends() {
    for engine in ENGINES {
        let Some(mut held) = Held::by(engine, LONG) else { return };
        held.hold();
        held.b.front.enable(0, false).expect("it is heard");
        held.is_told("its ring is disabled");
        held.b.front.enable(0, true).expect("it is heard");
        held.hold();
        held.b.front.stop(0).expect("it is heard");
        held.is_told("its ring stops");
        held.b.reset();
        held.greet();
        held.hold();
        held.lasthop.kill("lasthop-switch");
        // Nobody knows whether it was told: it is once more.
        held.called();
        let front = connect(&held.dir.path().join("b.sock"));
        held.b.reattach(front, None).expect("it is heard");
        held.is_told("another switch has its ring");
        let front = connect(&held.dir.path().join("a.sock"));
        held.a.reattach(front, None).expect("it is heard");
        held.greet();
        held.hold();
        held.lasthop.command(&["port", "del", "b"]);
        held.is_told("its port is removed");
        held.lasthop.check_sums();
    }
}

/// The port moves to another engine, which is another switch, and back.
#[test]
fn a_port_that_moves_takes_along_what_its_guest_is_owed() {
    let Some(mut held) = Held::by(["--poll", "0"], LONG) else { return };
    for to in ["ports", "none", "ports"] {
        held.hold();
        held.lasthop.command(&["engine", "move", "b", to]);
        held.is_told(to);
        let frame = numbered(held.a.mac, held.b.mac, held.next, 60);
        held.next += 1;
        held.a.send(&frame);
        held.b.expect(&frame);
    }
    held.hold();
    held.lasthop.command(&["upgrade"]);
    held.is_told("another switch has taken over");
    held.lasthop.check_sums();
}
