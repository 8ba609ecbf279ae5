//! Any process may be killed under load, and nothing but its own work stops.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Arena, Guest, Lasthop, Options, PATIENCE, Plug, Port, mac, number_of, numbered, proc, scratch, wait_for,
};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn control_killed_known_flows_lose_nothing() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("control killed");
    for _ in 0..5 {
        arena.bystanders.still_exchange();
        arena.lasthop.kill("lasthop-control");
        arena.bystanders.still_exchange();
    }
    // It knows what it knew, and learns what is new.
    wait_for("control to know the bystanders", PATIENCE, || {
        let out = arena.lasthop.try_command(&["mac", "list", "--json"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        [0xa, 0xb].iter().all(|m| text.contains(&mac(*m).to_string()))
    });
    arena.end(&attack, &[]);
}

/// Who is the last to let go of a mount namespace waits for all CPUs, on a busy host for seconds. So the supervisor keeps each
/// child's open, and lets go of it after the child has ended: that end, and its successor, come at once.
#[test]
fn no_process_is_the_last_in_its_mount_namespace() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path())]);
    let supervisor = lasthop.pid();
    let kept = || -> Vec<PathBuf> {
        let all = std::fs::read_dir(format!("/proc/{supervisor}/fd")).expect("it runs").flatten();
        let links = all.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let mut kept: Vec<_> = links.filter(|link| link.to_string_lossy().starts_with("mnt:")).collect();
        kept.sort();
        kept
    };
    let of_children = || -> Vec<PathBuf> {
        let children = [lasthop.switch(), lasthop.control(), lasthop.child("lasthop-session")];
        let of = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        children.iter().filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
    };
    assert_eq!(of_children().len(), 3, "each has its own");
    wait_for("the supervisor to have all", PATIENCE, || kept() == of_children());
    lasthop.kill("lasthop-switch");
    lasthop.kill("lasthop-control");
    // Numbers are used again, so that they are others says nothing.
    wait_for("those of the dead to be gone", PATIENCE, || kept() == of_children());
}

/// While control is stopped (not even dead), what is known goes on, and what is new waits and then arrives or is counted.
#[test]
fn control_hung_known_flows_go_on() {
    let mut arena = Arena::new(false);
    let control = arena.lasthop.control();
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    proc::signal(control, Signal::STOP);
    for _ in 0..3 {
        arena.bystanders.still_exchange();
    }
    guest.send(&numbered(mac(0x55), mac(0x44), 1, 60));
    proc::signal(control, Signal::CONT);
    arena.bystanders.still_exchange();
    arena.works(&mut guest);
}

#[test]
fn front_end_gone_a_hundred_times_leaks_nothing() {
    for client in [false, true] {
        let mut arena = Arena::new(client);
        let attack = arena.begin("front-end killed");
        let flows = || arena.lasthop.json(&["flow", "list"])["flows"].as_array().unwrap().len();
        let before = flows();
        let mut number = 0;
        for round in 0..100 {
            let options = Options::net(|n| (n.packed, n.size) = (round % 2 == 0, 64));
            let mut guest = arena.guest(options);
            // Gone in the middle of traffic, both ways.
            for _ in 0..8 {
                number += 1;
                guest.try_send(VnetHdr::default(), &numbered(mac(0x66), mac(0x77), number, 500));
                arena.witness.try_send(VnetHdr::default(), &numbered(mac(0x77), mac(0x66), number, 500));
            }
            if round % 10 == 0 {
                arena.witness.drain();
                // On a slow machine the frames of ten rounds may come now, more than it has buffers.
                guest.drain();
                arena.works(&mut guest);
            }
            drop(guest);
            while arena.witness.try_recv().is_some() {}
        }
        arena.witness.drain();
        arena.end(&attack, &[]);
        let flows = arena.lasthop.json(&["flow", "list"])["flows"].as_array().unwrap().len();
        assert!(flows <= before + 2, "{before} flows have become {flows}");
    }
}

/// kill -9 of the switch, several times, with frames flowing one after another: none arrives twice or changed, no more
/// are lost than were on their way, and those sent afterwards arrive.
fn switch_killed(client: bool, options: Options, bases: Option<[u32; 2]>) {
    const KILLS: u32 = 4;
    /// Sent, taken by the switch, received: what may be on its way when it dies.
    const IN_FLIGHT: usize = 64 + 64 + 256;
    let dir = scratch();
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), client, 1, options);
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), client, 2, options);
    let lasthop = Lasthop::start(&[port_a, port_b]);
    let (mut a, mut b) = (a(), b());
    (a.bases, b.bases) = (bases, bases);
    a.guest.greet(&mut b.guest, 0);
    let (mut next, mut got) = (1u32, BTreeSet::new());
    let mut receive = |b: &mut Plug, limit: Duration| {
        while let Some((_, frame)) = b.guest.recv_within(limit) {
            if let Some(number) = number_of(&frame).filter(|n| *n > 0) {
                assert!(got.insert(number), "frame {number} arrived twice");
            }
        }
        got.len()
    };
    let mut lost_before = 0;
    for kill in 0..KILLS {
        let switch = lasthop.switch();
        let until = next + 3000 + 177 * kill;
        let mut killed = None;
        while next < until {
            if next + 1500 >= until && killed.is_none() {
                proc::signal(switch, Signal::KILL);
                killed = Some(Instant::now());
            }
            a.mend();
            b.mend();
            for _ in 0..16 {
                let len = 60 + (next as usize * 71) % 1400;
                if a.guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), next, len)) {
                    next += 1;
                } else {
                    std::thread::sleep(Duration::from_micros(100));
                    break;
                }
            }
            receive(&mut b, Duration::ZERO);
        }
        // Everything comes to rest; then nothing more may be missing than was on its way.
        let mut arrived = 0;
        wait_for("the rest to arrive", PATIENCE, || {
            a.mend();
            b.mend();
            let now = receive(&mut b, Duration::from_millis(100));
            let all_given_back = a.guest.net.unsent(0).is_ok_and(|n| n == 0);
            let rest = all_given_back && now == arrived;
            arrived = now;
            rest
        });
        let lost = (next - 1) as usize - arrived;
        assert!(lost - lost_before <= IN_FLIGHT, "{} of {next} lost by kill {kill}", lost - lost_before);
        lost_before = lost;
        a.guest.greet(&mut b.guest, 0);
    }
    assert!(a.reconnected >= KILLS && b.reconnected >= KILLS);
}

fn rings(packed: bool) -> Options {
    Options::net(|n| (n.packed, n.size, n.event_idx) = (packed, 64, true))
}

#[test]
fn switch_killed_front_ends_come_back_split() {
    switch_killed(false, rings(false), None);
}

#[test]
fn switch_killed_front_ends_come_back_packed() {
    switch_killed(false, rings(true), None);
}

#[test]
fn switch_killed_lasthop_comes_back_split() {
    switch_killed(true, rings(false), None);
}

#[test]
fn switch_killed_lasthop_comes_back_packed() {
    switch_killed(true, rings(true), None);
}

#[test]
fn switch_killed_front_ends_come_back_not_knowing_where_they_were() {
    switch_killed(false, rings(false), Some([0; 2]));
    switch_killed(false, rings(true), Some([0x8000_8000; 2]));
}

/// Sets it when dropped: threads end when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads that send and receive as fast as they can, so that the switch is in the middle of a burst whenever it is
/// killed. No frame arrives twice. (A switch that does not note what it is about to deliver fails this.)
fn switch_killed_in_mid_burst(packed: bool) {
    const KILLS: u32 = 20;
    let options = Options::net(|n| (n.packed, n.size, n.rx_buffer, n.tx_buffer) = (packed, 256, 256, 256));
    let dir = scratch();
    let (port_a, a) = Plug::new(dir.path().join("a.sock"), true, 1, options);
    let (port_b, b) = Plug::new(dir.path().join("b.sock"), true, 2, options);
    let lasthop = Lasthop::start(&[port_a, port_b]);
    let (mut a, mut b) = (a(), b());
    a.guest.greet(&mut b.guest, 0);
    let (stop, received) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut next = 1;
            while !stop.load(Ordering::Relaxed) {
                let sent = (0..64).take_while(|_| {
                    let frame = numbered(mac(1), mac(2), next, 60);
                    let sent = a.guest.net.send(0, &[0; 12], &frame).expect("the switch keeps to the rules").is_ok();
                    next += u32::from(sent);
                    sent
                });
                if sent.count() == 0 {
                    a.mend();
                }
                a.guest.net.flush(0);
            }
            next
        });
        let receiver = scope.spawn(|| {
            let mut got = BTreeSet::new();
            let mut rest = 0;
            while rest < 20 {
                let before = got.len();
                while let Some((_, frame)) = b.guest.recv_within(Duration::from_millis(10)) {
                    if let Some(number) = number_of(&frame).filter(|n| *n > 0) {
                        assert!(got.insert(number), "frame {number} arrived twice");
                    }
                    received.store(got.len() as u32, Ordering::Relaxed);
                }
                b.mend();
                let quiet = stop.load(Ordering::Relaxed) && got.len() == before;
                rest = if quiet { rest + 1 } else { 0 };
            }
        });
        let _stop = Stop(&stop);
        for kill in 0..KILLS {
            let before = received.load(Ordering::Relaxed);
            wait_for("frames to flow again", PATIENCE, || {
                assert!(!receiver.is_finished(), "see above");
                received.load(Ordering::Relaxed) > before + 2000
            });
            // Long enough for the supervisor to restart the next one at once as well.
            std::thread::sleep(Duration::from_micros(200_000 + u64::from(kill) * 97));
            proc::signal(lasthop.switch(), Signal::KILL);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(sender.join().expect("the sender") > 2000 * KILLS);
    });
}

#[test]
fn switch_killed_in_mid_burst_split() {
    switch_killed_in_mid_burst(false);
}

#[test]
fn switch_killed_in_mid_burst_packed() {
    switch_killed_in_mid_burst(true);
}

/// Both of them, at once, and again.
#[test]
fn both_killed() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b"].map(|n| Port::listen(n, dir.path())));
    for round in 0..4 {
        let guest = |name: &str, number| Guest::connect(&dir.path().join(name), mac(number), Options::default());
        guest("a.sock", 1).greet(&mut guest("b.sock", 2), round);
        let children = [lasthop.switch(), lasthop.control(), lasthop.child("lasthop-session")];
        children.iter().for_each(|p| proc::signal(*p, Signal::KILL));
        wait_for("both to be gone", PATIENCE, || children.iter().all(|p| !proc::alive(*p)));
        // Who connects while the supervisor has not yet heard of it is handed to a dead switch, and has to come again.
        wait_for("the next switch", PATIENCE, || {
            let there = proc::children(lasthop.pid());
            there.iter().any(|(pid, name)| name == "lasthop-switch" && !children.contains(pid))
        });
    }
    guest_list_is_served(&lasthop);
}

fn guest_list_is_served(lasthop: &Lasthop) {
    wait_for("control to answer again", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
}

#[test]
fn sigterm_ends_everything() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path())]);
    let socket = dir.path().join("a.sock");
    let guest = Guest::connect(&socket, mac(1), Options::default());
    assert!(lasthop.stop(), "a process had to be killed");
    wait_for("the connection to end", PATIENCE, || guest.is_disconnected());
    assert!(!socket.exists(), "the socket is left behind");
}
