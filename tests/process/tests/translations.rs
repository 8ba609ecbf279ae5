//! A guest behind an IOMMU of its own, with us in the role of the machine monitor: what is granted reaches it, what is not stays untouched,
//! and a machine monitor that plays false harms its own port alone.

use lasthop_tests_process::{
    Arena, Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Numbers of frames that are the first of their flows.
const FIRST: u32 = 1_000_000;
/// Two invalidations with which Linux takes back everything at once, the second of which ends at 2^64.
const ALL: [(u64, u64); 2] = [(0, 0xfee0_0000), (0xfef0_0000, 0xffff_ffff_0110_0000)];

fn options() -> Options {
    Options { iommu: true, ..Options::default() }
}

/// An arena whose attacker's port has a guest with an IOMMU, and its rings are granted.
fn with_guest() -> (Arena, Guest) {
    let arena = Arena::new(false);
    let mut guest = arena.guest(options());
    guest.grant_until("the rings to start", |_| arena.port()["state"] == "up");
    (arena, guest)
}

fn translation(port: &Value, name: &str) -> u64 {
    port["translation"][name].as_u64().unwrap_or_else(|| panic!("{name}: {port}"))
}

/// The guest sends a frame that reaches the witness, and the other way round.
fn exchange(guest: &mut Guest, witness: &mut Guest, number: u32) {
    guest.send(&numbered(guest.mac, witness.mac, number, 1000));
    let came = |other: &mut Guest| other.try_recv().is_some_and(|(_, frame)| number_of(&frame) == Some(number));
    guest.grant_until("the frame to be taken", |_| came(witness));
    witness.send(&numbered(witness.mac, guest.mac, number, 1400));
    guest.grant_until("the frame to come", came);
}

#[test]
fn floods_find_buffers_that_are_granted_before_the_first_packet_comes() {
    for packed in [false, true] {
        let mut arena = Arena::new(false);
        let mut net = options();
        (net.net.packed, net.net.size) = (packed, 64);
        let mut guest = arena.guest(net);
        guest.grant_until("the rings to start", |_| arena.port()["state"] == "up");
        // Floods wait for nobody's buffers, and come one after the other here, as those of guests do. There are more than the ring has buffers.
        for n in 0..80 {
            guest.grant_until("nothing to be asked for any more", |_| translation(&arena.port(), "unanswered") == 0);
            arena.witness.send(&numbered(arena.witness.mac, MacAddr([0xff; 6]), n, 1000));
            guest.expect_number(n);
        }
        assert_eq!(arena.drops("x", "to_guest", "no_buffers"), 0, "packed {packed}");
        arena.bystanders.still_exchange();
    }
}

/// As Linux with `iommu.strict=0` does: all that is mapped, the rings among it, is gone every few milliseconds. No packet is lost for it.
#[test]
fn everything_taken_back_again_and_again_costs_no_packet() {
    let (mut arena, mut guest) = with_guest();
    exchange(&mut guest, &mut arena.witness, 1);
    let (mut next, mut flushes, mut first) = (100, 0, 0);
    let mut take = |guest: &mut Guest, sent: u32, flushes: u32| {
        guest.grant_until("the frames to come in order", |guest| {
            while let Some((_, frame)) = guest.try_recv() {
                match number_of(&frame).unwrap_or(0) {
                    FIRST.. => first += 1,
                    n @ 100.. => {
                        assert_eq!(n, next, "after {flushes} flushes");
                        next += 1;
                    }
                    _ => {}
                }
            }
            next == sent && first == flushes
        });
    };
    for n in (100..400).step_by(10) {
        ALL.iter().for_each(|(iova, size)| guest.revoke(*iova, *size));
        flushes += 1;
        // The first of a flow comes by control.
        arena.witness.send(&numbered(mac(0x80 + flushes as u8), guest.mac, FIRST + flushes, 900));
        (n..n + 10).for_each(|n| arena.witness.send(&numbered(arena.witness.mac, guest.mac, n, 60 + n as usize)));
        // A machine monitor that is busy: longer than packets wait for a guest's own buffers.
        std::thread::sleep(Duration::from_millis(80));
        take(&mut guest, n + 10, flushes);
    }
    assert_eq!(arena.drops("x", "to_guest", "no_buffers"), 0);
    assert!(translation(&arena.port(), "invalidations") >= 60);
    arena.bystanders.still_exchange();
}

/// More than is remembered: what was not used for longest is forgotten and asked for again, and the user says how much that is.
#[test]
fn as_many_pages_are_remembered_as_the_port_may_have() {
    let mut arena = Arena::new(false);
    let ranges = |arena: &Arena| translation(&arena.port(), "ranges");
    arena.lasthop.command(&["port", "set", "x", "--grants", "1000"]);
    let mut guest = arena.guest(options());
    guest.grant_until("the rings to start", |_| arena.port()["state"] == "up");
    exchange(&mut guest, &mut arena.witness, 1);
    let first = guest.net.region().0.guest_addr;
    // Somewhere else in the guest's I/O addresses, all of one page of its memory.
    for n in 0..100_000 {
        guest.grant_as(0x80_0000_0000 + n * PAGE, first);
    }
    assert_eq!(ranges(&arena), 1000);
    exchange(&mut guest, &mut arena.witness, 2);
    for (setting, most) in [("600", 600), ("none", 8192)] {
        arena.lasthop.command(&["port", "set", "x", "--grants", setting]);
        wait_for("the bound to hold", PATIENCE, || ranges(&arena) <= most);
        (0..10_000).for_each(|n| guest.grant_as(0x90_0000_0000 + n * PAGE, first));
        assert_eq!(ranges(&arena), most, "{setting}");
        exchange(&mut guest, &mut arena.witness, 3 + most as u32);
    }
    let list = arena.lasthop.command(&["port", "set", "x", "--grants", "700"]);
    assert!(list.contains("grants=700"), "{list}");
    arena.bystanders.still_exchange();
}

/// Linux takes the pages of a ring one by one where an IOMMU maps it: those of a part that is longer than a page lie anywhere.
#[test]
fn a_ring_that_is_longer_than_a_page_is_named_with_what_to_do() {
    let arena = Arena::new(false);
    let mut long = options();
    long.net.size = 512;
    let guest = arena.guest(long);
    let rings: Vec<_> = guest.net.queues().iter().map(|queue| queue.layout.desc).collect();
    let elsewhere = guest.net.region().0.guest_addr;
    wait_for("the ring to break", PATIENCE, || {
        for page in guest.asked() {
            // The second page of descriptors.
            let apart = rings.iter().any(|ring| page == ring + PAGE);
            guest.grant_as(page, if apart { elsewhere } else { page });
        }
        arena.port()["state"] == "broken"
    });
    let apart = "ring spans pages of I/O addresses that do not lie together in the guest's memory (512 entries";
    for words in [&["port", "list"][..], &["show", "x"]] {
        let said = arena.lasthop.command(words);
        assert!(said.contains(apart) && said.contains("rx_queue_size=256"), "{said}");
        assert!(!said.contains("share=on"), "its memory is shared: {said}");
    }
    let out = arena.lasthop.try_command(&["doctor", "x", "--since-start", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let broken = findings.iter().find(|finding| finding["kind"] == "broken").unwrap_or_else(|| panic!("{report}"));
    assert!(broken["remedy"].as_str().is_some_and(|remedy| remedy.contains("rx_queue_size=256")), "{broken}");
    arena.bystanders.still_exchange();
}

/// In the middle of bursts, by the thousand. What is granted again afterwards is used.
#[test]
fn a_storm_of_invalidations_harms_nobody_else() {
    let (mut arena, mut guest) = with_guest();
    let switch = arena.lasthop.switch();
    let (mut sent, end) = (0, Instant::now() + Duration::from_secs(2));
    let mut storms = 0;
    while Instant::now() < end {
        for _ in 0..8 {
            sent += u32::from(arena.witness.try_send(
                lasthop_frame::VnetHdr::default(),
                &numbered(arena.witness.mac, guest.mac, 1000 + sent, 800),
            ));
        }
        guest.grant(&guest.asked());
        let (iova, size) = [ALL[0], ALL[1], (guest.net.region().0.guest_addr, 3 * PAGE), (0, 0)][storms % 4];
        guest.revoke(iova, size);
        storms += 1;
        while let Some((_, frame)) = guest.try_recv() {
            // Whole, or it would have no number.
            assert!(number_of(&frame).is_some());
        }
    }
    println!("{storms} invalidations, {sent} frames");
    assert!(storms > 100, "{storms}");
    guest.grant_until("all to come back", |_| {
        let port = arena.port();
        port["state"] == "up" && translation(&port, "unanswered") == 0
    });
    arena.bystanders.still_exchange();
    while guest.try_recv().is_some() {}
    guest.grant_until("the witness to be rid of its frames", |_| arena.witness.net.unsent(0) == Ok(0));
    while guest.try_recv().is_some() {}
    exchange(&mut guest, &mut arena.witness, 7);
    assert_eq!(arena.lasthop.switch(), switch, "the switch died");
}

/// A frame waits in its sender's ring for the receiver's buffers. The sender's guest takes the frame's page back meanwhile, and puts something else there.
#[test]
fn what_lies_in_a_page_after_it_was_taken_back_reaches_nobody() {
    const LATER: u32 = 5000;
    let dir = scratch();
    let ports = ["x", "stopped", "other"].map(|name| Port::listen(name, dir.path()));
    // So long a frame waits for a guest that has no buffers.
    let lasthop = Lasthop::start_with(&ports, &["--congestion", "1000"]);
    let mut guest = Guest::connect(&ports[0].socket, mac(1), options());
    let mut stopped = Guest::connect(&ports[1].socket, mac(2), Options::net(|net| net.size = 16));
    let mut other = Guest::connect(&ports[2].socket, mac(3), Options::default());
    guest.grant_until("the rings to start", |_| lasthop.port("x")["state"] == "up");
    exchange(&mut guest, &mut stopped, 1);
    stopped.greet(&mut other, 2);
    let region = guest.net.region().0;
    let memory = guest.net.memory().clone();
    // Until one does not go: the receiver has no buffer left.
    let mut number = 100;
    let waiting = loop {
        let frame = numbered(guest.mac, stopped.mac, number, 500);
        guest.send(&frame);
        let (begin, mut taken) = (Instant::now(), false);
        while begin.elapsed() < Duration::from_millis(50) && !taken {
            guest.grant(&guest.asked());
            taken = guest.net.unsent(0) == Ok(0);
        }
        if !taken {
            break frame;
        }
        number += 1;
    };
    let mut all = vec![0; region.size as usize];
    memory.slice(region.guest_addr, all.len()).expect("its memory").read(0, &mut all);
    let lies = |at: &usize| all[*at..*at + waiting.len()] == waiting[..];
    let places: Vec<_> = (0..all.len() - waiting.len()).filter(lies).map(|at| region.guest_addr + at as u64).collect();
    assert_eq!(places.len(), 1, "the frame lies once in its guest's memory");
    guest.revoke(places[0] / PAGE * PAGE, 2 * PAGE);
    let later = numbered(guest.mac, stopped.mac, LATER, 500);
    memory.slice(places[0], later.len()).expect("its memory").write(0, &later);
    // The receiver goes on: all that went before comes, and others' frames do.
    let mut came = Vec::new();
    let mut take = |stopped: &mut Guest| {
        came.extend(stopped.drain().iter().filter_map(|frame| number_of(frame)));
        came.clone()
    };
    wait_for("what came before", PATIENCE, || take(&mut stopped).contains(&(number - 1)));
    for n in 0..5 {
        other.send(&numbered(other.mac, stopped.mac, 2000 + n, 500));
        wait_for("frames of others", PATIENCE, || take(&mut stopped).contains(&(2000 + n)));
    }
    assert!(!take(&mut stopped).contains(&LATER), "{:?}", take(&mut stopped));
    assert_eq!(take(&mut stopped).iter().filter(|n| **n == number).count(), 0);
    // Granted again it is what lies there.
    guest.grant_until("the page to be used again", |_| take(&mut stopped).contains(&LATER));
}

/// A machine monitor that grants the rings and answers nothing else. Its sender goes on with others, and so does everybody.
#[test]
fn questions_that_are_never_answered_hold_up_their_own_port_alone() {
    let (mut arena, mut guest) = with_guest();
    exchange(&mut guest, &mut arena.witness, 1);
    let (switch, dir) = (arena.lasthop.switch(), scratch());
    let path = dir.path().join("v.sock");
    arena.lasthop.command(&["port", "add", "v", &path.display().to_string()]);
    ALL.iter().for_each(|(iova, size)| guest.revoke(*iova, *size));
    // The rings alone.
    let ring: Vec<_> =
        guest.net.queues().iter().flat_map(|queue| (0..4).map(|n| queue.layout.desc + n * PAGE)).collect();
    guest.grant(&ring);
    let mut other = Guest::connect(&path, mac(0x55), Options::default());
    other.greet(&mut arena.witness, 1);
    let (mut longest, begin) = (Duration::ZERO, Instant::now());
    let (mut number, mut got) = (100, 0);
    while begin.elapsed() < Duration::from_secs(3) {
        let before = Instant::now();
        // Some for the port that does not answer, then one for the other, which stands behind them.
        for _ in 0..8 {
            arena.witness.send(&numbered(arena.witness.mac, guest.mac, number, 700));
        }
        arena.witness.send(&numbered(arena.witness.mac, other.mac, number, 700));
        other.expect_number(number);
        got += 1;
        longest = longest.max(before.elapsed());
        number += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{got} frames for the other, the longest took {longest:?}");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    assert!(got > 75, "{got} frames in 3 s");
    assert!(arena.drops("x", "to_guest", "no_buffers") > 0);
    let list = arena.lasthop.command(&["port", "list"]);
    assert!(list.contains(" asked for at this moment; `lasthop doctor x` looks whether they are answered"), "{list}");
    arena.bystanders.still_exchange();
    assert_eq!(arena.lasthop.switch(), switch, "the switch died");
}
