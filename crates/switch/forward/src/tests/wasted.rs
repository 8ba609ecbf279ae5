//! Descriptors that hold nothing (docs/hostile.md, S9): each is legal, and a chain may have as many of them as its ring has entries.

use super::*;
use lasthop_guestmem::meter;
use lasthop_virtqueue::driver::Piece;
use lasthop_virtqueue::{BURST, DESC_NEXT, DESC_WRITE};

/// Descriptors of a chain.
const LONG: usize = 800;
/// Most addresses looked up in one go for what a guest sends: those of descriptors that hold nothing, a chain too many, and some
/// for each packet.
const MOST_SENT: u64 = 2048 + 4 * BURST as u64;
/// The same for what is delivered to one.
const MOST_RECEIVED: u64 = 8192 + MOST_SENT;

/// A guest sends chains of hundreds of empty descriptors, each with a frame at its end: all arrive, and no turn looks at more
/// than so many.
#[test]
fn empty_descriptors_are_work() {
    for (packed, indirect) in [(false, false), (true, false), (false, true), (true, true)] {
        let (datapath, mut forwarder) = switch();
        let config = NetConfig { size: 32768, rx_buffer: 64, tx_buffer: 128, packed, ..NetConfig::default() };
        let mut a = Guest::new(&datapath, 1, NetConfig { indirect, ..config }, 0);
        let mut b = Guest::new(&datapath, 2, NetConfig { rx_buffer: 128, ..config }, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let packets = 40u8;
        for n in 0..packets {
            let frame = Frame::new(1, 2).payload([n; 46]).build();
            let bytes = [&VnetHdr::default().to_bytes()[..], &frame].concat();
            let (memory, queue) = (a.driver.memory().clone(), &mut a.driver.queues_mut()[1]);
            let at = queue.buffer(n.into());
            memory.slice(at, bytes.len()).unwrap().write(0, &bytes);
            let mut pieces: Vec<Piece> = vec![(at, 0); LONG];
            pieces.push((at, bytes.len() as u32));
            queue.ring.add(&pieces, &[], n.into()).unwrap();
        }
        a.driver.flush(0);
        let (mut done, mut runs) = (0, 0);
        while done < packets.into() {
            let before = meter::looked_up();
            let outcome = forwarder.carry(&a.port, 1, 0);
            let looked_up = meter::looked_up() - before;
            assert!(looked_up <= MOST_SENT, "{looked_up} in one go, packed {packed}");
            done += outcome.packets;
            assert!(outcome.packets > 0 && (outcome.more || done == packets.into()), "it is to be run again");
            runs += 1;
        }
        assert!(runs > 5);
        let got: Vec<u8> = b.received().iter().map(|(_, frame)| frame[20]).collect();
        assert_eq!(got, (0..packets).collect::<Vec<_>>());
        assert!(a.port.queues[1].status().error.is_none());
    }
}

/// A receiver whose buffers are chains of hundreds of descriptors of `len` bytes each, the last of them of `last`.
fn receiver(datapath: &Datapath, flags: u16, len: u32, last: u32) -> Guest {
    let config = NetConfig { size: 32768, rx_buffer: 256, ..NetConfig::default() };
    let b = Guest::new(datapath, 2, config, 0);
    let queue = &b.driver.queues()[0];
    let memory = b.driver.memory();
    for i in 0..u64::from(config.size) {
        // The driver has made all of them available, from the first on: most chains begin in the middle of others.
        let ends = (i as usize % LONG) == LONG - 1;
        let next = if ends { 0 } else { DESC_NEXT };
        let bytes = [
            &(if ends { last } else { len }).to_le_bytes()[..],
            &(flags | next).to_le_bytes(),
            &((i + 1) as u16).to_le_bytes(),
        ];
        memory.slice(queue.layout.desc + 16 * i + 8, 8).unwrap().write(0, &bytes.concat());
    }
    b
}

/// Sends so many frames at once, until all are done; returns how many turns that took.
fn send(datapath: &Datapath, forwarder: &mut Forwarder, to: &[u32], frames: usize) -> usize {
    let mut a = Guest::new(datapath, 1, NetConfig::default(), 0);
    datapath.flows().insert(flow(1, to), 0).unwrap();
    for n in 0..frames {
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n as u8; 46]).build());
    }
    let (mut done, mut runs) = (0, 0);
    while done < frames {
        let before = meter::looked_up();
        let outcome = forwarder.carry(&a.port, 1, 0);
        let looked_up = meter::looked_up() - before;
        assert!(looked_up <= MOST_RECEIVED, "{looked_up} in one go");
        done += outcome.packets;
        runs += 1;
        assert!(outcome.packets > 0 && (outcome.more || done == frames), "{outcome:?}");
    }
    runs
}

#[test]
fn buffers_that_hold_nothing_are_not_looked_for_without_end() {
    let (datapath, mut forwarder) = switch();
    let b = receiver(&datapath, DESC_WRITE, 0, 0);
    let before = meter::looked_up();
    assert_eq!(send(&datapath, &mut forwarder, &[2], BURST), 1);
    assert!(meter::looked_up() - before <= MOST_SENT, "nothing is found, so it is not gone on with");
    // Nor is it looked at with each burst, while others are sent to.
    let before = meter::looked_up();
    (0..10).for_each(|_| assert_eq!(send(&datapath, &mut forwarder, &[2], 1), 1));
    assert!(meter::looked_up() - before < LONG as u64);
    assert_eq!(b.port.totals().1.drops, [(DropReason::BufferTooSmall, BURST as u64 + 10)]);
    assert!(b.port.queues[0].status().error.is_none());
}

#[test]
fn buffers_behind_empty_descriptors_are_found() {
    let (datapath, mut forwarder) = switch();
    let b = receiver(&datapath, DESC_WRITE, 0, 256);
    assert!(send(&datapath, &mut forwarder, &[2], BURST) > 5);
    let to = b.port.totals().1;
    assert_eq!((to.packets, to.dropped()), (BURST as u64, 0), "none is lost");
}

/// A flood's copies do not wait: as many as there are, and the others are counted.
#[test]
fn a_flood_walks_no_further() {
    let (datapath, mut forwarder) = switch();
    let b = receiver(&datapath, DESC_WRITE, 0, 256);
    let _c = Guest::new(&datapath, 3, NetConfig::default(), 0);
    send(&datapath, &mut forwarder, &[2, 3], BURST);
    let to = b.port.totals().1;
    assert_eq!(to.packets + to.dropped(), BURST as u64);
    assert!(to.packets > 0);
}

/// Chains that point the wrong way are walked in vain as well.
#[test]
fn long_chains_that_point_the_wrong_way_are_given_back_some_at_a_time() {
    let (datapath, mut forwarder) = switch();
    let b = receiver(&datapath, 0, 8, 8);
    let before = meter::looked_up();
    send(&datapath, &mut forwarder, &[2], BURST);
    assert!(meter::looked_up() - before <= MOST_SENT);
    assert_eq!(b.port.totals().1.drops, [(DropReason::BufferTooSmall, BURST as u64)]);
}
