//! Guests that keep the switch as busy as they can (docs/hostile.md, S5, S7 and S8): two others that talk to each other lose nothing, and
//! everything is counted.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Arena, Options, PATIENCE, mac, numbered, proc, wait_for};
use lasthop_text::MacAddr;
use std::time::{Duration, Instant};

/// S5: rings full of the longest packets, whole and to be cut into the smallest segments, for one that takes no such thing, and
/// for all.
#[test]
fn s5_packets_that_cost_as_much_as_packets_can() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("S5");
    let mut guest = arena.guest(Options::offloading());
    arena.works(&mut guest);
    let before = arena.port()["from_guest"]["packets"].as_u64().expect("a number");
    let frame = |to: MacAddr| Frame::between(mac(0x66), to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2);
    let mut sent = 0;
    for (to, size) in [(mac(0x77), 0), (mac(0x77), 33), (mac(0x77), 1400), (MacAddr::BROADCAST, 33)] {
        let frame = frame(to).payload(vec![7; 65_000]).partial_checksum();
        let header = if size == 0 { frame.vnet(0, 0) } else { frame.vnet(VnetHdr::GSO_TCPV4, size) };
        let frame = frame.build();
        for n in 0..400 {
            guest.send_as(header, &frame);
            sent += 1;
            // So that there are buffers, and every packet is as dear as it can be; bystanders see to theirs.
            while arena.witness.try_recv().is_some() {}
            if to == MacAddr::BROADCAST && n % 2 == 0 {
                // Those that wait in our ring would come to them all at once.
                guest.all_taken();
                arena.bystanders.take_a_turn();
            }
        }
    }
    wait_for("all to be counted", PATIENCE, || {
        while arena.witness.try_recv().is_some() {}
        arena.port()["from_guest"]["packets"].as_u64().expect("a number") >= before + sent
    });
    assert!(arena.port_named("w")["to_guest"]["segments"].as_u64().expect("a number") > 0, "some were cut up");
    drop(guest);
    arena.witness.drain();
    arena.end(&attack, &[]);
    arena.lasthop.check_sums();
}

/// S8: a guest sends broadcasts as fast as it can. Nothing that two others have for each other is lost; what their rings have no
/// room for is.
#[test]
fn s8_a_storm_of_broadcasts() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("S8");
    let mut guest = arena.guest(Options::net(|n| n.size = 256));
    arena.works(&mut guest);
    let before = arena.port()["from_guest"]["packets"].as_u64().expect("a number");
    let start = arena.bystanders.exchanged();
    let storm = numbered(mac(0x66), MacAddr::BROADCAST, 1, 60);
    let mut sent = 0u64;
    wait_for("bystanders to exchange frames in a storm", PATIENCE, || {
        for _ in 0..5000 {
            sent += u64::from(guest.try_send(VnetHdr::default(), &storm));
            while arena.witness.try_recv().is_some() {}
        }
        arena.bystanders.exchanged() > start + 500
    });
    wait_for("all to be counted", PATIENCE, || {
        while arena.witness.try_recv().is_some() {}
        arena.port()["from_guest"]["packets"].as_u64().expect("a number") >= before + sent
    });
    println!("{} frames of bystanders beside {sent} broadcasts", arena.bystanders.exchanged() - start);
    drop(guest);
    arena.witness.drain();
    arena.end(&attack, &[]);
    arena.lasthop.check_sums();
}

/// S7: a guest kicks as fast as it can, for nothing. Its port's thread does not look each time, and its packets come all the same.
#[test]
fn s7_kicks_for_nothing() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("S7");
    let mut guest = arena.guest(Options::net(|n| n.size = 64));
    arena.works(&mut guest);
    let switch = arena.lasthop.switch();
    let used = || Duration::from_nanos(proc::threads_ns(switch, "port-x"));
    let storm = |kicks: u32| (0..kicks).for_each(|_| guest.net.queues()[1].kick.signal());
    // Until it is left alone.
    storm(100_000);
    let (before, start) = (used(), Instant::now());
    while start.elapsed() < Duration::from_millis(200) {
        storm(1000);
    }
    // It looks every 0.8 ms, however much of a processor there is for it.
    let (used, all) = (used() - before, start.elapsed());
    println!("its thread has taken {used:?} of {all:?}");
    assert!(used < all / 10, "its thread has taken {used:?} of {all:?}");
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}
