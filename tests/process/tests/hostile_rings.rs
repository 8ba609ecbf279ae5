//! A guest's rings against the running switch: what the ring tests show of the code, here of the process, with
//! bystanders and all.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_guestmem::GuestMemory;
use lasthop_tests_process::raw::{RawRing, descriptor, peek, poke};
use lasthop_tests_process::{Arena, Guest, Options, PATIENCE, mac, numbered, wait_for};
use lasthop_text::MacAddr;
use lasthop_vhostuser::Features;
use lasthop_virtqueue::driver::NetDriver;
use lasthop_virtqueue::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIZE: u16 = 16;
/// Nowhere in guest memory.
const OUTSIDE: u64 = 0xdead_0000_0000;
const RX: usize = 0;
const TX: usize = 1;

fn options(packed: bool) -> Options {
    Options::net(|n| (n.size, n.packed, n.indirect) = (SIZE, packed, true))
}

/// A way to break ring `queue`, and what the switch must say of it.
struct Case {
    what: &'static str,
    /// None: either layout.
    packed: Option<bool>,
    queue: usize,
    write: fn(&RawRing),
    reason: &'static str,
}

/// G5, G6, G7, G14: rings that must be stopped.
const CASES: &[Case] = &[
    Case {
        what: "G5 address and length wrap",
        packed: None,
        queue: TX,
        write: |r| {
            r.desc(0, u64::MAX - 100, 1000, 0, 0);
            r.heads(&[0]);
        },
        reason: "1000 bytes at guest address 0xffffffffffffff9b",
    },
    Case {
        what: "G5 buffer outside of memory",
        packed: None,
        queue: TX,
        write: |r| {
            r.desc(0, OUTSIDE, 100, 0, 0);
            r.heads(&[0]);
        },
        reason: "100 bytes at guest address 0xdead00000000",
    },
    Case {
        what: "G5 buffer crosses the region's end",
        packed: None,
        queue: TX,
        write: |r| {
            let end = r.memory.regions().next().map_or(0, |s| s.guest_addr + s.size);
            r.desc(0, end - 50, 100, 0, 0);
            r.heads(&[0]);
        },
        reason: "50 bytes at guest address",
    },
    Case {
        what: "G5 bad address of an empty buffer",
        packed: None,
        queue: TX,
        write: |r| {
            r.desc(1, OUTSIDE, 0, 0, 0);
            r.desc(0, r.buffers, 100, DESC_NEXT, 1);
            r.heads(&[0]);
        },
        reason: "0 bytes at guest address 0xdead00000000",
    },
    Case {
        what: "G5 receive buffer outside of memory",
        packed: None,
        queue: RX,
        write: |r| {
            r.desc(0, OUTSIDE, 2048, DESC_WRITE, 0);
            r.heads(&[0]);
        },
        reason: "2048 bytes at guest address 0xdead00000000",
    },
    Case {
        what: "G6 chain to itself",
        packed: Some(false),
        queue: TX,
        write: |r| {
            r.desc(0, r.buffers, 10, DESC_NEXT, 0);
            r.heads(&[0]);
        },
        reason: "longer than its table",
    },
    Case {
        what: "G6 next beyond the table",
        packed: Some(false),
        queue: TX,
        write: |r| {
            r.desc(0, r.buffers, 10, DESC_NEXT, SIZE);
            r.heads(&[0]);
        },
        reason: "descriptor 16 is beyond the table's 16 entries",
    },
    Case {
        what: "G6 head beyond the table",
        packed: Some(false),
        queue: TX,
        write: |r| r.heads(&[0x7fff]),
        reason: "descriptor 32767 is beyond",
    },
    Case {
        what: "G6 nested indirect",
        packed: None,
        queue: TX,
        write: |r| {
            r.set(r.buffers, r.buffers, 16, DESC_INDIRECT, 0);
            r.desc(0, r.buffers, 16, DESC_INDIRECT, 0);
            r.heads(&[0]);
        },
        reason: "malformed indirect descriptor (table of 16 bytes)",
    },
    Case {
        what: "G6 indirect table of odd length",
        packed: None,
        queue: TX,
        write: |r| {
            r.desc(0, r.buffers, 17, DESC_INDIRECT, 0);
            r.heads(&[0]);
        },
        reason: "malformed indirect descriptor (table of 17 bytes)",
    },
    Case {
        what: "G6 indirect table outside of memory",
        packed: None,
        queue: TX,
        write: |r| {
            r.desc(0, OUTSIDE, 32, DESC_INDIRECT, 0);
            r.heads(&[0]);
        },
        reason: "32 bytes at guest address 0xdead00000000",
    },
    Case {
        what: "G6 indirect table across the region's end",
        packed: None,
        queue: TX,
        write: |r| {
            let end = r.memory.regions().next().map_or(0, |s| s.guest_addr + s.size);
            r.desc(0, end - 16, 32, DESC_INDIRECT, 0);
            r.heads(&[0]);
        },
        reason: "32 bytes at guest address",
    },
    Case {
        what: "G7 available index jumps",
        packed: Some(false),
        queue: TX,
        write: |r| r.avail_index(SIZE + 1),
        reason: "available index 17 is more than 16 ahead of 0",
    },
    Case {
        what: "G7 available index of the receive ring jumps",
        packed: Some(false),
        queue: RX,
        write: |r| r.avail_index(0x8000),
        reason: "available index 32768 is more than 16 ahead of 0",
    },
    Case {
        what: "G14 chain round the ring for ever",
        packed: Some(true),
        queue: TX,
        write: |r| (0..SIZE).rev().for_each(|i| r.desc(i, r.buffers, 10, DESC_NEXT, i)),
        reason: "longer than its table",
    },
];

fn run(case: &Case, packed: bool, arena: &mut Arena) {
    let what = format!("{} ({})", case.what, if packed { "packed" } else { "split" });
    let attack = arena.begin(&what);
    let mut net = NetDriver::new(options(packed).net).unwrap();
    (case.write)(&RawRing::new(&mut net, case.queue));
    let mut guest = Guest::attach(arena.connection(), net, mac(0x66), options(packed));
    if case.queue == TX {
        guest.net.queues()[TX].kick.signal();
    } else {
        // Somebody must want to send it something; the port is up a moment after the last message is acknowledged.
        wait_for("the broken ring to be looked at", PATIENCE, || {
            arena.witness.send(&numbered(mac(0x77), MacAddr::BROADCAST, 1, 60));
            arena.port()["state"] == "broken"
        });
    }
    arena.is_broken(case.reason);
    let queue = format!("queue {}", case.queue);
    assert!(arena.port()["error"].as_str().unwrap().contains(&queue), "{what}: {}", arena.port()["error"]);
    assert!(guest.errors[case.queue].drain(), "{what}: its error eventfd was not signalled");
    assert!(!guest.errors[1 - case.queue].drain(), "{what}: the other ring's error eventfd was");
    // The guest resets its device: all is well, without a new connection.
    guest.reset();
    arena.works(&mut guest);
    assert_eq!(arena.port()["state"], "up", "{what}");
    drop(guest);
    arena.end(&attack, &["port=x", &format!("queue={}", case.queue), case.reason]);
}

fn run_all(client: bool, layouts: &[bool]) {
    let mut arena = Arena::new(client);
    for case in CASES {
        for &packed in layouts.iter().filter(|p| case.packed.is_none_or(|only| only == **p)) {
            run(case, packed, &mut arena);
        }
    }
}

#[test]
fn broken_split_rings_stop_and_only_they() {
    run_all(false, &[false]);
}

#[test]
fn broken_packed_rings_stop_and_only_they() {
    run_all(true, &[true]);
}

/// G2: chains no longer than the header. Dropped, counted, and the ring goes on.
#[test]
fn g2_chains_too_short_for_a_frame_are_dropped() {
    let mut arena = Arena::new(false);
    for packed in [false, true] {
        let attack = arena.begin("G2");
        let before = arena.drops("x", "from_guest", "too_short");
        let mut net = NetDriver::new(options(packed).net).unwrap();
        let raw = RawRing::new(&mut net, TX);
        // 0 to 12 bytes of header, and up to 13 of a frame.
        let lens = [0, 1, 11, 12, 13, 25];
        for (i, len) in lens.iter().enumerate().rev() {
            raw.desc(i as u16, raw.buffers, *len, 0, i as u16);
        }
        raw.heads(&[0, 1, 2, 3, 4, 5]);
        let mut guest = Guest::attach(arena.connection(), net, mac(0x66), options(packed));
        guest.net.queues()[TX].kick.signal();
        wait_for("the drops to be counted", PATIENCE, || {
            arena.drops("x", "from_guest", "too_short") == before + lens.len() as u64
        });
        assert_eq!(arena.port()["state"], "up");
        guest.reset();
        arena.works(&mut guest);
        drop(guest);
        arena.end(&attack, &[]);
    }
}

/// G3: a header and a tiny packet in one-byte pieces, directly and through a table.
#[test]
fn g3_many_tiny_pieces_are_fine() {
    let mut arena = Arena::new(false);
    for (packed, indirect, pieces) in [(false, false, 60), (false, true, 60), (true, false, 60), (true, true, 60)] {
        let attack = arena.begin("G3");
        let options = Options::net(|n| {
            (n.size, n.packed, n.indirect, n.pieces) = (128, packed, indirect, pieces);
            n.rx_buffer = 300;
        });
        let mut guest = arena.guest(options);
        arena.works(&mut guest);
        for number in 0..50 {
            guest.send(&numbered(mac(0x66), mac(0x77), number, 60));
            arena.witness.expect_number(number);
        }
        drop(guest);
        arena.end(&attack, &[]);
        // And every byte its own descriptor, the header included.
        let mut net = NetDriver::new(Options::net(|n| (n.size, n.packed) = (128, packed)).net).unwrap();
        let raw = RawRing::new(&mut net, TX);
        let frame = numbered(mac(0x66), mac(0x77), 99, 60);
        poke(raw.memory, raw.buffers, &[&[0; 12][..], &frame].concat());
        let last = 12 + frame.len() as u16 - 1;
        for i in (0..=last).rev() {
            raw.desc(
                i,
                raw.buffers + u64::from(i),
                1,
                if i < last { DESC_NEXT } else { 0 },
                if packed { 0 } else { i + 1 },
            );
        }
        raw.heads(&[0]);
        let plain = Options::net(|n| (n.size, n.packed) = (128, packed));
        let guest = Guest::attach(arena.connection(), net, mac(0x66), plain);
        guest.net.queues()[TX].kick.signal();
        arena.witness.expect(&frame);
    }
}

/// G8: a second thread of the guest rewrites addresses in a header that is being read. The receiver gets a frame only
/// if it is the one the frame, as delivered, is addressed to.
#[test]
fn g8_a_header_rewritten_meanwhile_is_delivered_as_judged() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("G8 headers");
    let options = Options::net(|n| (n.size, n.rx_buffer) = (256, 2048));
    let mut guest = arena.guest(options);
    arena.works(&mut guest);
    // A second destination, known at the bystanders' ports: theirs are the only other stations.
    let frames: Vec<Vec<u8>> = (0..256).map(|n| numbered(mac(0x66), mac(0x77), n, 200)).collect();
    let stop = AtomicBool::new(false);
    let memory = guest.net.memory().clone();
    let buffers: Vec<u64> = (0..256).map(|t| guest.net.queues()[TX].buffer(t)).collect();
    let (mut got, mut wrong) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The destination's last byte, behind the virtio-net header: the witness or a station nobody knows... or
            // a bystander, whose frames would reach it.
            let mut i = 0usize;
            while !stop.load(Ordering::Relaxed) {
                let to = if (i / 256).is_multiple_of(2) { 0x77 } else { 0xa };
                poke(&memory, buffers[i % 256] + 12 + 5, &[to]);
                i = i.wrapping_add(7);
            }
        });
        let header = VnetHdr::default();
        for round in 0..200 {
            for frame in &frames[..64] {
                guest.try_send(header, frame);
            }
            while let Some((_, frame)) = arena.witness.recv_within(Duration::from_millis(1)) {
                got += 1;
                wrong += u32::from(frame[..6] != mac(0x77).0 && frame[..6] != MacAddr::BROADCAST.0);
            }
            assert!(round < 199 || got > 0, "nothing arrived");
            // Half of the frames may have gone to one of them.
            arena.bystanders.take_a_turn();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "of {got} frames: delivered by another address than they bear");
    drop(guest);
    arena.end(&attack, &[]);
}

/// G8: a second thread writes rubbish to the ring itself while the switch works on it.
#[test]
fn g8_a_ring_rewritten_meanwhile_harms_only_itself() {
    let mut arena = Arena::new(false);
    for packed in [false, true] {
        let attack = arena.begin("G8 rings");
        let mut breaks = 0;
        for round in 0..6u64 {
            let net =
                NetDriver::new(Options::net(|n| (n.size, n.packed, n.indirect) = (64, packed, true)).net).unwrap();
            let plain = Options::net(|n| (n.size, n.packed, n.indirect) = (64, packed, true));
            let guest = Guest::attach(arena.connection(), net, mac(0x66), plain);
            let stop = Arc::new(AtomicBool::new(false));
            let (memory, layouts) = (guest.net.memory().clone(), [RX, TX].map(|q| guest.net.queues()[q].layout));
            let buffers = [RX, TX].map(|q| guest.net.queues()[q].buffer(0));
            let kick = guest.net.queues()[TX].kick.as_fd().try_clone_to_owned().unwrap();
            let stop_here = stop.clone();
            let scribbler = std::thread::spawn(move || {
                let mut seed = 0x9e37_79b9_7f4a_7c15 + round;
                while !stop_here.load(Ordering::Relaxed) {
                    let mut random = || {
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        seed
                    };
                    for q in [RX, TX] {
                        scribble(
                            &memory,
                            layouts[q].desc,
                            layouts[q].driver,
                            layouts[q].device,
                            packed,
                            buffers[q],
                            random(),
                        );
                    }
                    let _ = rustix::io::write(&kick, &1u64.to_ne_bytes());
                }
            });
            for i in 0..20 {
                arena.witness.send(&numbered(mac(0x77), MacAddr::BROADCAST, i, 60 + 50 * i as usize));
                std::thread::sleep(Duration::from_millis(3));
            }
            breaks += u32::from(arena.port()["state"] == "broken");
            stop.store(true, Ordering::Relaxed);
            scribbler.join().unwrap();
        }
        assert!(breaks > 0, "the rubbish had no effect");
        while arena.witness.try_recv().is_some() {}
        arena.end(&attack, &["port=x", "ring stopped"]);
    }
}

fn scribble(memory: &GuestMemory, desc: u64, driver: u64, device: u64, packed: bool, buffers: u64, r: u64) {
    let addr = if r.is_multiple_of(64) { r } else { buffers + (r >> 40) % 60_000 };
    let len = (r >> 8) as u32 % 3000;
    let flags = (r >> 32) as u16 & if r.is_multiple_of(16) { 0x8087 } else { 0x8083 };
    poke(memory, desc + 16 * (r >> 16 & 63), &descriptor(packed, addr, len, flags, r as u16 & 63));
    if !packed {
        let used = peek(memory, device + 2, 2);
        let ahead = u16::from_le_bytes([used[0], used[1]]).wrapping_add((r >> 20) as u16 & 63);
        poke(memory, driver + 4 + 2 * (r & 63), &(r as u16 & 63).to_le_bytes());
        poke(memory, driver + 2, &ahead.to_le_bytes());
    }
}

/// G9: a receiver without buffers, flooded. Memory stays flat, nobody spins, everything is counted, and it goes on
/// when there are buffers.
#[test]
fn g9_no_buffers_under_flood() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("G9");
    let mut guest = arena.guest(Options::net(|n| n.size = 16));
    arena.works(&mut guest);
    let (drops, delivered) =
        (arena.drops("x", "to_guest", "no_buffers"), arena.port()["to_guest"]["packets"].as_u64().unwrap());
    const FLOOD: u64 = 5_000;
    for number in 0..FLOOD {
        arena.witness.send(&numbered(mac(0x77), mac(0x66), number as u32, 60));
    }
    let mut counted = (0, 0);
    wait_for("all of the flood to be counted", PATIENCE, || {
        counted.0 = arena.drops("x", "to_guest", "no_buffers") - drops;
        counted.1 = arena.port()["to_guest"]["packets"].as_u64().unwrap() - delivered;
        counted.0 + counted.1 >= FLOOD
    });
    assert!(counted.1 <= 16 && counted.0 >= FLOOD - 16, "{counted:?}");
    // What fitted is there, whole and in order; then it goes on.
    for number in 0..counted.1 {
        guest.expect_number(number as u32);
    }
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}

/// G9 with mergeable buffers: one left where two are needed. The one stays, and serves the next frame that fits.
#[test]
fn g9_one_buffer_where_two_are_needed() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("G9 one of two");
    for packed in [false, true] {
        let options = Options::net(|n| (n.size, n.packed, n.rx_buffer) = (16, packed, 256));
        let mut net = NetDriver::new(options.net).unwrap();
        let raw = RawRing::new(&mut net, RX);
        raw.desc(0, raw.buffers, 256, DESC_WRITE, 0);
        raw.heads(&[0]);
        let guest = Guest::attach(arena.connection(), net, mac(0x66), options);
        let before = arena.drops("x", "to_guest", "no_buffers");
        for number in 0..100 {
            arena.witness.send(&numbered(mac(0x77), MacAddr::BROADCAST, number, 400));
        }
        wait_for("the drops to be counted", PATIENCE, || arena.drops("x", "to_guest", "no_buffers") == before + 100);
        let small = numbered(mac(0x77), MacAddr::BROADCAST, 100, 200);
        arena.witness.send(&small);
        let buffer = guest.net.queues()[RX].buffer(0);
        wait_for("the small frame", PATIENCE, || peek(guest.net.memory(), buffer + 12, small.len()) == small);
    }
    arena.end(&attack, &[]);
}

/// G10: mergeable buffers of no byte or one. Frames for them are dropped and counted.
#[test]
fn g10_mergeable_buffers_of_nothing() {
    let mut arena = Arena::new(false);
    for packed in [false, true] {
        for len in [0, 1] {
            let attack = arena.begin("G10");
            let options = Options::net(|n| (n.size, n.packed) = (512, packed));
            let mut net = NetDriver::new(options.net).unwrap();
            let raw = RawRing::new(&mut net, RX);
            for i in (0..512).rev() {
                raw.desc(i, raw.buffers + u64::from(i), len, DESC_WRITE, i);
            }
            raw.heads(&(0..512).collect::<Vec<_>>());
            let mut guest = Guest::attach(arena.connection(), net, mac(0x66), options);
            let before = arena.drops("x", "to_guest", "buffer_too_small");
            for number in 0..50 {
                arena.witness.send(&numbered(mac(0x77), MacAddr::BROADCAST, number, 600));
            }
            wait_for("the drops to be counted", PATIENCE, || {
                arena.drops("x", "to_guest", "buffer_too_small") == before + 50
            });
            guest.reset();
            arena.works(&mut guest);
            drop(guest);
            arena.end(&attack, &[]);
        }
    }
}

/// G12: queues on and off, other features, resets, in a storm, with traffic.
#[test]
fn g12_a_storm_of_resets() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("G12");
    let mut guest = arena.guest(Options::net(|n| n.packed = true));
    for round in 0..150u32 {
        for number in 0..5 {
            guest.try_send(VnetHdr::default(), &numbered(mac(0x66), MacAddr::BROADCAST, number, 100));
            arena.witness.try_send(VnetHdr::default(), &numbered(mac(0x77), mac(0x66), number, 100));
        }
        match round % 5 {
            0 => guest.front.enable(1, false).unwrap(),
            1 => guest.front.enable(0, false).unwrap(),
            2 => (0..2).for_each(|ring| guest.front.enable(ring, true).unwrap()),
            3 => guest.reset(),
            _ => {
                drop(guest);
                let packed = round % 2 == 0;
                guest = arena.guest(Options::net(|n| (n.packed, n.event_idx) = (packed, !packed)));
            }
        }
        while arena.witness.try_recv().is_some() {}
    }
    guest.reset();
    arena.witness.drain();
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}

/// G13: ring size, address or features changed while it runs: refused, and it runs on.
#[test]
fn g13_a_running_ring_cannot_be_changed() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("G13");
    let mut guest = arena.guest(Options::default());
    arena.works(&mut guest);
    for ring in 0..2 {
        guest.front.set_size(ring, 128).unwrap_err();
        guest.front.set_addr(ring, 0x1000, 0x2000, 0x3000).unwrap_err();
        guest.front.set_base(ring, 77).unwrap_err();
        arena.works(&mut guest);
    }
    guest.front.set_features(Features::VERSION_1 | Features::RING_PACKED).unwrap_err();
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &["port=x", "refused", "GET_VRING_BASE"]);
}

/// G1, G4: offload requests that do not fit their frame are dropped and counted; the next frame passes.
#[test]
fn g1_g4_offload_requests_that_lie() {
    let mut arena = Arena::with(false, Options::offloading());
    let attack = arena.begin("G1 G4");
    let mut guest = arena.guest(Options::offloading());
    arena.works(&mut guest);
    let tcp = Frame::between(mac(0x66), mac(0x77)).ipv4([1, 1, 1, 1], [2, 2, 2, 2]).tcp(1, 2).partial_checksum();
    let (small, large) = (tcp.clone().payload(vec![1; 100]), tcp.payload(vec![2; 5000]));
    let good = large.vnet(VnetHdr::GSO_TCPV4, 1000);
    let csum = small.vnet(VnetHdr::GSO_NONE, 0);
    let bad = [
        (VnetHdr { csum_start: 10_000, ..csum }, &small),
        (VnetHdr { csum_start: u16::MAX, csum_offset: u16::MAX, ..csum }, &small),
        (VnetHdr { csum_offset: 10_000, ..csum }, &small),
        (VnetHdr { csum_start: 153, csum_offset: 0, ..csum }, &small),
        (VnetHdr { gso_size: 0, ..good }, &large),
        (VnetHdr { gso_type: 77, ..good }, &large),
        (VnetHdr { gso_type: VnetHdr::GSO_TCPV6, ..good }, &large),
        (VnetHdr { gso_type: VnetHdr::GSO_UDP_L4, ..good }, &large),
    ];
    let before = arena.drops("x", "from_guest", "bad_offload");
    for (header, frame) in &bad {
        guest.send_as(*header, &frame.build());
    }
    // A TCP header that says it is longer than the frame, and one shorter than it can be.
    let short = small.build();
    for offset in [0xf0, 0x00] {
        let mut frame = short.clone();
        frame[46] = offset;
        frame.truncate(60);
        guest.send_as(VnetHdr { gso_size: 10, gso_type: VnetHdr::GSO_TCPV4, ..csum }, &frame);
    }
    wait_for("the drops to be counted", PATIENCE, || {
        arena.drops("x", "from_guest", "bad_offload") == before + bad.len() as u64 + 2
    });
    guest.send_as(good, &large.build());
    arena.witness.expect(&large.build());
    drop(guest);
    arena.end(&attack, &[]);
}
