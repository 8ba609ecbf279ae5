//! A receiver that takes nothing: its senders go on with everybody else.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for};
use serde_json::Value;
use std::time::Instant;

/// Frames that each sender has for the dead receiver, and for the living one. If each waited only for as long as packets may
/// that have others behind them, all the time there is would not do.
const FRAMES: u32 = 12_000;
/// Frames on their way to the living one, from one sender: together fewer than it has buffers.
const WINDOW: u32 = 64;

/// With `--congestion off` what a guest has no buffers for is dropped at once: in order, and counted. Without, the same is
/// waited for.
#[test]
fn packets_wait_for_buffers_unless_that_is_off() {
    // 10 ms may be over before this process gets to run; a second is not.
    for patience in ["1000,1", "off"] {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_with(&ports, &["--congestion", patience]);
        let mut a = Guest::connect(&ports[0].socket, mac(1), Options::net(|n| n.size = 256));
        let mut b = Guest::connect(&ports[1].socket, mac(2), Options::net(|n| n.size = 64));
        a.greet(&mut b, 1);
        let no_buffers = || {
            let drops = lasthop.port("b")["to_guest"]["drops"].take();
            let drops = drops.as_array().cloned().unwrap_or_default();
            drops.iter().find(|d| d["reason"] == "no_buffers").map_or(0, |d| d["packets"].as_u64().expect("a number"))
        };
        let frames = 200;
        (0..frames).for_each(|n| assert!(a.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), 10 + n, 60))));
        if patience == "off" {
            wait_for("a's ring to be empty", PATIENCE, || a.net.unsent(0).expect("the rules") == 0);
            let dropped = u32::try_from(no_buffers()).expect("no more than were sent");
            // As many as there were buffers for when they came, and those that were given back meanwhile.
            assert!(dropped >= frames / 2, "{dropped}");
            (0..frames - dropped).for_each(|n| b.expect_number(10 + n));
            a.greet_when_back(&mut b, 1000);
        } else {
            (0..frames).for_each(|n| b.expect_number(10 + n));
            assert_eq!(no_buffers(), 0);
        }
        lasthop.check_sums();
    }
}

/// Three guests send to one that never takes a frame and to one that does, in turns. The living one gets all of them, in order;
/// for the dead one they are counted as dropped for want of buffers, all but those that it had room for.
#[test]
fn a_dead_receiver_slows_nobody() {
    for packed in [false, true] {
        let dir = scratch();
        let ports = ["dead", "alive", "a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let options = Options::net(|n| (n.size, n.packed) = (256, packed));
        let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8), options);
        let [mut dead, mut alive] = [0, 1].map(guest);
        let mut senders = [2, 3, 4].map(guest);
        for (sender, number) in senders.iter_mut().zip(FRAMES..) {
            sender.greet(&mut dead, number);
            sender.greet(&mut alive, number);
        }
        lasthop.check_sums();
        while dead.try_recv().is_some() || alive.try_recv().is_some() {}
        // Delivered, dropped for want of buffers, dropped for any reason.
        let counts = |name: &str| {
            let to_guest = lasthop.port(name)["to_guest"].take();
            let drops = to_guest["drops"].as_array().expect("a list");
            let of = |d: &Value| d["packets"].as_u64().expect("a number");
            let no_buffers = drops.iter().find(|d| d["reason"] == "no_buffers").map_or(0, of);
            [of(&to_guest), no_buffers, drops.iter().map(of).sum()]
        };
        let before = ["dead", "alive"].map(counts);

        let mut sent = [(0, 0); 3];
        let mut expected = [0; 3];
        let end = Instant::now() + PATIENCE;
        while expected != [FRAMES; 3] {
            for ((sender, sent), expected) in senders.iter_mut().zip(&mut sent).zip(expected) {
                let (to_dead, to_alive) = sent;
                while *to_alive < FRAMES.min(expected + WINDOW) {
                    // In turns: whoever has had fewer.
                    let (to, count) =
                        if to_dead <= to_alive { (mac(0), &mut *to_dead) } else { (mac(1), &mut *to_alive) };
                    if !sender.try_send(VnetHdr::default(), &numbered(sender.mac, to, *count, 100)) {
                        break;
                    }
                    *count += 1;
                }
            }
            while let Some((_, frame)) = alive.try_recv() {
                let from = usize::from(frame[11]) - 2;
                assert_eq!(
                    number_of(&frame),
                    Some(expected[from]),
                    "lost or out of order, from {from}, packed: {packed}"
                );
                expected[from] += 1;
            }
            assert!(Instant::now() < end, "{expected:?} of {FRAMES} each; sent {sent:?}; packed: {packed}");
            std::thread::yield_now();
        }

        let all = u64::from(sent.iter().map(|(to_dead, _)| to_dead).sum::<u32>());
        let mut counted = [0; 3];
        wait_for("every frame for the dead one to be counted", PATIENCE, || {
            counted = std::array::from_fn(|n| counts("dead")[n] - before[0][n]);
            counted[0] + counted[1] >= all
        });
        let [delivered, no_buffers, drops] = counted;
        assert!(delivered + no_buffers == all && drops == no_buffers && delivered <= 256, "{counted:?} of {all}");
        // A burst is counted when it has been delivered.
        let living = || -> [u64; 3] { std::array::from_fn(|n| counts("alive")[n] - before[1][n]) };
        wait_for("the living one's to be counted", PATIENCE, || living()[0] >= u64::from(3 * FRAMES));
        assert_eq!(living(), [u64::from(3 * FRAMES), 0, 0]);
        lasthop.check_sums();

        // It comes back to life, and is like any other.
        let mut taken = 0;
        while dead.try_recv().is_some() {
            taken += 1;
        }
        assert_eq!(taken, delivered);
        for (sender, number) in senders.iter_mut().zip(2 * FRAMES..) {
            sender.greet_when_back(&mut dead, number);
        }
    }
}

/// Frames for the willing port in one round of a run, and rounds of each kind.
const WILLING: u32 = 20_000;
const ROUNDS: usize = 3;

/// One guest sends by turns to one that takes all and to one that shows a buffer four times a millisecond (S1). Beside the same rounds with
/// a second guest that takes all, in turns with them, so that both see the same machine.
#[test]
fn a_trickling_receiver_slows_nobody() {
    let dir = scratch();
    let ports = ["a", "willing", "other"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8), Options::net(|n| n.size = 256));
    let [mut a, mut willing, mut other] = [0, 1, 2].map(guest);
    a.greet(&mut willing, 1);
    a.greet(&mut other, 1);
    lasthop.check_sums();
    let drops = || {
        let drops = lasthop.port("willing")["to_guest"]["drops"].take();
        drops.as_array().expect("a list").len()
    };

    let mut seconds = [const { Vec::new() }; 2];
    for round in 0..2 * ROUNDS {
        let trickles = round % 2 == 1;
        let (start, mut turn, mut got, mut taken) = (Instant::now(), 0u32, 0, 0);
        while got < WILLING {
            let frames = [mac(1), mac(2)].map(|to| numbered(a.mac, to, turn, 100));
            for _ in 0..64 {
                // No more on the way to the willing one than it has buffers for.
                let to = if turn % 2 == 0 && turn / 2 < got + 200 { 0 } else { 1 };
                if !a.try_send(VnetHdr::default(), &frames[to]) {
                    break;
                }
                turn += if to == 0 || turn % 2 == 1 { 1 } else { 0 };
            }
            while willing.try_recv().is_some() {
                got += 1;
            }
            let allowed = if trickles { start.elapsed().as_micros() / 250 } else { u128::MAX };
            while taken < allowed && other.try_recv().is_some() {
                taken += 1;
                // The driver would gather some before it shows them.
                other.net.queues_mut()[0].ring.publish();
            }
            assert!(start.elapsed() < PATIENCE, "{got} of {WILLING} frames in {PATIENCE:?}; trickles: {trickles}");
            std::thread::yield_now();
        }
        seconds[usize::from(trickles)].push(start.elapsed().as_secs_f64());
        wait_for("a's ring to be empty", PATIENCE, || a.net.unsent(0).expect("the rules") == 0);
        while other.try_recv().is_some() || willing.try_recv().is_some() {}
    }
    // The fastest of each: other programs only ever make a round slower, and a sender that is throttled is so in all.
    let [whole, trickled] = seconds.map(|s| s.into_iter().fold(f64::INFINITY, f64::min));
    println!(
        "{WILLING} frames to the willing one: {whole:.3} s beside one that takes all, {trickled:.3} s beside a trickle"
    );
    // The exact share is a matter of unit tests, with time handed in; here other programs run too, beside one round and not the
    // next. A sender that waits for the trickle takes a hundred times as long.
    assert!(trickled < 10.0 * whole, "{trickled} s beside a trickle, {whole} s without");
    assert_eq!(drops(), 0, "the willing one had buffers");
    lasthop.check_sums();
}
