//! Guests that do their worst to those who send to them (docs/hostile.md, S1, S2, S4): time is handed in, so what it costs
//! the others is exact.

use super::*;
use crate::Coalesce;
use lasthop_virtqueue::{BURST, Queue};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Bursts in a millisecond: what a thread does that looks again every 250 µs.
const BURSTS_A_MS: u64 = 4;

/// A sender's ring is kept full: of every `period` frames one is for port 2, which takes all that comes, and the others are
/// for ports 3 and up, which together show `buffers(ms)` new buffers in a millisecond. Returns the frames that port 2 got.
fn willing_frames(period: usize, others: u32, milliseconds: u64, buffers: impl Fn(u64) -> usize) -> usize {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { size: 256, ..NetConfig::default() }, 0);
    let mut willing = Guest::new(&datapath, 2, NetConfig { size: 256, ..NetConfig::default() }, 0);
    // So small that every buffer is shown as soon as it is free.
    let small = NetConfig { size: 4, ..NetConfig::default() };
    let mut unwilling: Vec<_> = (0..others).map(|n| Guest::new(&datapath, 3 + n, small, 0)).collect();
    (2..3 + others as u8).for_each(|port| drop(datapath.flows().insert(to_station(port), 0).unwrap()));
    let frames: Vec<_> = (2..3 + others as u8).map(|port| Frame::new(1, port).payload([7; 46]).build()).collect();
    let (mut sent, mut got, mut turn) = (0usize, 0, 0);
    for burst in 0..milliseconds * BURSTS_A_MS {
        let now_ms = burst / BURSTS_A_MS;
        if burst % BURSTS_A_MS == 0 {
            for _ in 0..buffers(now_ms) {
                let guest = &mut unwilling[turn % others as usize];
                turn += 1;
                let _ = guest.driver.recv(0, &mut Vec::new()).unwrap();
            }
        }
        loop {
            let to = if sent % period == 0 { 0 } else { 1 + sent % others as usize };
            if a.driver.send(0, &VnetHdr::default().to_bytes(), &frames[to]).unwrap().is_err() {
                break;
            }
            sent += 1;
        }
        a.driver.flush(0);
        forwarder.carry(&a.port, 1, now_ms * MS);
        let mut frame = Vec::new();
        while willing.driver.recv(0, &mut frame).unwrap().is_some() {
            got += 1;
            frame.clear();
        }
    }
    got
}

#[test]
fn a_trickling_receiver_does_not_slow_what_its_sender_has_for_others() {
    const MS: u64 = 1000;
    let everything = |period: usize| MS as usize * BURSTS_A_MS as usize * BURST / period;
    let check = |what: &str, period: usize, others: u32, buffers: &dyn Fn(u64) -> usize| {
        let (got, all) = (willing_frames(period, others, MS, buffers), everything(period));
        assert!(got * 100 >= all * 95, "{what}: {got} of {all} frames for others");
    };
    check("one buffer a millisecond, every other frame", 2, 1, &|_| 1);
    check("one buffer a millisecond, a ring full of frames for it", 64, 1, &|_| 1);
    check("no buffer ever", 2, 1, &|_| 0);
    check("faster than any patience with one packet", 2, 1, &|_| 10);
    check("eight of them, one a millisecond", 2, 8, &|_| 1);
    check("one a millisecond, and now and then very many", 2, 1, &|ms| if ms % 100 == 0 { 4 } else { 1 });
}

/// A sender's ring is kept full: of every `period` times `run` frames the first `run` are for port 3, which takes `a_ms` in a
/// millisecond and has a ring of 64, and the others are for port 2, which takes all. Returns the frames that port 2 got.
fn frames_beside_a_pace(period: usize, run: usize, a_ms: usize, milliseconds: u64) -> usize {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig { size: 256, ..NetConfig::default() }, 0);
    let mut willing = Guest::new(&datapath, 2, NetConfig { size: 256, ..NetConfig::default() }, 0);
    let mut paced = Guest::new(&datapath, 3, NetConfig { size: 64, ..NetConfig::default() }, 0);
    (2..4u8).for_each(|port| drop(datapath.flows().insert(to_station(port), 0).unwrap()));
    let frames = [2, 3].map(|port| Frame::new(1, port).payload([7; 46]).build());
    let (mut sent, mut got, mut owed) = (0usize, 0, 0);
    for burst in 0..milliseconds * BURSTS_A_MS {
        owed += a_ms;
        while owed >= BURSTS_A_MS as usize {
            owed -= BURSTS_A_MS as usize;
            let _ = paced.driver.recv(0, &mut Vec::new()).unwrap();
        }
        let frame = |sent: usize| &frames[usize::from((sent / run).is_multiple_of(period))];
        while a.driver.send(0, &VnetHdr::default().to_bytes(), frame(sent)).unwrap().is_ok() {
            sent += 1;
        }
        a.driver.flush(0);
        forwarder.carry(&a.port, 1, (burst / BURSTS_A_MS) * MS);
        let mut frame = Vec::new();
        while willing.driver.recv(0, &mut frame).unwrap().is_some() {
            got += 1;
            frame.clear();
        }
    }
    got
}

/// However quick a receiver is: quick enough to be waited for is no reason to wait for it all the time.
#[test]
fn no_receiver_sets_the_pace_of_what_its_sender_has_for_others() {
    const MS: usize = 1000;
    let mut slowed = Vec::new();
    let shares = [(2, 1), (4, 1), (16, 1), (4, 50)];
    for ((period, run), a_ms) in shares.into_iter().flat_map(|s| [1, 2, 4, 8, 16, 32, 64].map(|a_ms| (s, a_ms))) {
        let got = frames_beside_a_pace(period, run, a_ms, MS as u64);
        let all = MS * BURSTS_A_MS as usize * BURST * (period - 1) / period;
        if got * 100 < all * 95 {
            slowed.push(format!("{run} of {} for a receiver that takes {a_ms} a ms: {got} of {all}", run * period));
        }
    }
    assert!(slowed.is_empty(), "{slowed:#?}");
}

/// What comes behind a packet that waits is looked at when it comes, not when that one is gone.
#[test]
fn what_comes_behind_a_packet_that_waits_is_looked_at() {
    for packed in [false, true] {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { packed, ..NetConfig::default() }, 0);
        let _b = Guest::new(&datapath, 2, NetConfig { size: 4, packed, ..NetConfig::default() }, 0);
        let mut c = Guest::new(&datapath, 3, NetConfig { packed, ..NetConfig::default() }, 0);
        (2..4u8).for_each(|port| drop(datapath.flows().insert(to_station(port), 0).unwrap()));
        for n in 0..10u8 {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 46]).build());
            let outcome = forwarder.carry(&a.port, 1, u64::from(n));
            assert_eq!(outcome.short_of_buffers, n >= 4);
            a.send(VnetHdr::default(), &Frame::new(1, 3).payload([n; 46]).build());
            forwarder.carry(&a.port, 1, u64::from(n));
            assert_eq!(c.received().len(), 1, "packed {packed}, {n}");
        }
    }
}

/// A receiver has buffers for a part of each millisecond and none for the rest, as its ring is emptied at one and the same phase of it. A
/// clock of milliseconds does not see pauses between two of its ticks.
#[test]
fn no_pauses_in_step_with_a_clock_set_the_pace_for_others() {
    const STEPS: u64 = 20;
    const MILLISECONDS: u64 = 100;
    let mut slowed = Vec::new();
    for (phase, buffers) in (0..10).flat_map(|phase| [64, 128, 192].map(|buffers| (2 * phase, buffers))) {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { size: 256, ..NetConfig::default() }, 0);
        let mut willing = Guest::new(&datapath, 2, NetConfig { size: 256, ..NetConfig::default() }, 0);
        let mut paced = Guest::new(&datapath, 3, NetConfig { size: 256, ..NetConfig::default() }, 0);
        (2..4u8).for_each(|port| drop(datapath.flows().insert(to_station(port), 0).unwrap()));
        let frames = [2, 3].map(|port| Frame::new(1, port).payload([7; 46]).build());
        let (mut sent, mut got, mut frame) = (0usize, 0, Vec::new());
        for step in 0..STEPS * MILLISECONDS {
            if step % STEPS == phase {
                (0..buffers).for_each(|_| assert!(paced.driver.recv(0, &mut Vec::new()).is_ok()));
            }
            while a.driver.send(0, &VnetHdr::default().to_bytes(), &frames[sent % 2]).unwrap().is_ok() {
                sent += 1;
            }
            a.driver.flush(0);
            forwarder.carry(&a.port, 1, step * MS / STEPS);
            while willing.driver.recv(0, &mut frame).unwrap().is_some() {
                got += 1;
                frame.clear();
            }
        }
        let all = (STEPS * MILLISECONDS) as usize * BURST / 2;
        // One part in 40 of its time, a window, and what a burst waits for at the beginning.
        if got * 100 < all * 93 {
            slowed.push(format!("{buffers} at {phase} of {STEPS}: {got} of {all}"));
        }
    }
    assert!(slowed.is_empty(), "{slowed:#?}");
}

/// Three rings full of frames for one guest, which takes 40 a millisecond: the rings are the queue, and nothing is lost. That
/// another sender is the first for a while is no reason to give up on a receiver.
#[test]
fn senders_wait_for_a_receiver_that_takes_what_it_can() {
    let (datapath, mut forwarder) = switch();
    let mut senders = [1, 3, 4].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    let mut receiver = Guest::new(&datapath, 2, NetConfig { size: 64, ..NetConfig::default() }, 0);
    let frame = Frame::new(1, 2).payload([7; 46]).build();
    for id in [1, 3, 4] {
        datapath.flows().insert(flow(id, &[2]), 0).unwrap();
    }
    for now_ms in 0..500 {
        senders.rotate_left(usize::from(now_ms % 20 == 0));
        for sender in &mut senders {
            while sender.driver.send(0, &VnetHdr::default().to_bytes(), &frame).unwrap().is_ok() {}
            sender.driver.flush(0);
            forwarder.carry(&sender.port, 1, now_ms * MS);
        }
        (0..40).for_each(|_| assert!(receiver.driver.recv(0, &mut Vec::new()).unwrap().is_some(), "it is kept busy"));
    }
    assert_eq!(receiver.port.totals().1.dropped(), 0);
}

/// A receiver that stands still for 9 of every 30 ms, and takes all that there is in the others, loses nothing.
#[test]
fn a_receiver_that_keeps_up_may_stand_still_for_a_while() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig { size: 32, ..NetConfig::default() }, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    let (mut sent, mut got) = (0u32, 0);
    for step in 0..2000u64 {
        let now_ms = step / 4;
        for _ in 0..5 {
            let frame = Frame::new(1, 2).payload([(sent % 251) as u8; 46]).build();
            sent += u32::from(a.driver.send(0, &VnetHdr::default().to_bytes(), &frame).unwrap().is_ok());
        }
        a.driver.flush(0);
        forwarder.carry(&a.port, 1, now_ms * MS);
        if now_ms % 30 >= 9 {
            for (_, frame) in b.received() {
                assert_eq!(frame[20], (got % 251) as u8, "frame {got}");
                got += 1;
            }
        }
    }
    assert_eq!(b.port.totals().1.dropped(), 0);
}

/// A packet of `payload` bytes of TCP, to be cut into segments of 1400.
fn large(payload: usize) -> (VnetHdr, Vec<u8>) {
    let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![5; payload]);
    let frame = frame.partial_checksum();
    (frame.vnet(VnetHdr::GSO_TCPV4, 1400), frame.build())
}

fn sequence(frame: &[u8]) -> Option<u32> {
    (frame.get(23) == Some(&6)).then(|| u32::from_be_bytes(frame[38..42].try_into().unwrap()))
}

/// Buffers run out in the middle of a packet that is cut into 43 segments: it waits whole, and then each comes once.
#[test]
fn a_packet_in_segments_comes_once_whatever_buffers_there_are() {
    for (packed, mergeable, room) in (0..16).map(|n| (n & 1 != 0, n & 2 != 0, 4 * (n >> 2) + 8)) {
        let (datapath, mut forwarder) = switch();
        let config = NetConfig { tx_buffer: 70_000, packed, ..NetConfig::default() };
        let mut a = Guest::new(&datapath, 1, config, 0);
        let receiver = NetConfig { size: 64, packed, mergeable, ..NetConfig::default() };
        let mut b = Guest::new(&datapath, 2, receiver, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        for n in 0..64 - room {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([0x80 | n as u8; 46]).build());
        }
        let (header, frame) = large(60_000);
        a.send(header, &frame);
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([9; 46]).build());
        for now_ms in 0..3 {
            forwarder.carry(&a.port, 1, now_ms * MS);
            assert_eq!(b.port.totals().1.segments, 0, "{room} buffers: it waits whole");
        }
        let mut got = b.received();
        assert_eq!(got.len(), 64 - room);
        forwarder.carry(&a.port, 1, 3 * MS);
        got.extend(b.received());
        let sequences: Vec<u32> = got.iter().filter_map(|(_, f)| sequence(f)).collect();
        let first = sequences[0];
        assert!(sequences.iter().map(|s| s.wrapping_sub(first)).eq((0..43).map(|i| i * 1400)), "each once, in order");
        assert_eq!(got.last().unwrap().1[20], 9, "what came behind it is still behind it");
        let to = b.port.totals().1;
        assert_eq!((to.packets, to.segments, to.dropped()), (64 - room as u64 + 2, 43, 0));
    }
}

/// A ring that never has buffers for all of a packet: as many segments as it has, once, and one drop that is counted.
#[test]
fn a_packet_that_no_ring_of_this_size_can_hold_is_dropped_once() {
    for packed in [false, true] {
        let (datapath, mut forwarder) = switch();
        let config = NetConfig { tx_buffer: 70_000, packed, ..NetConfig::default() };
        let mut a = Guest::new(&datapath, 1, config, 0);
        let mut b = Guest::new(&datapath, 2, NetConfig { size: 16, packed, ..NetConfig::default() }, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let mut got = Vec::new();
        for round in 0..5u64 {
            let (header, frame) = large(60_000);
            a.send(header, &frame);
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([9; 46]).build());
            for now_ms in 0..40 {
                forwarder.carry(&a.port, 1, (1000 * round + now_ms) * MS);
                got.extend(b.received());
            }
            let sequences: Vec<u32> = got.iter().filter_map(|(_, f)| sequence(f)).collect();
            let first = sequences[0];
            let expected = (0..sequences.len() as u32).map(|i| i * 1400);
            assert!(sequences.iter().map(|s| s.wrapping_sub(first)).eq(expected), "each once, in order: {sequences:?}");
            assert!((1..=16).contains(&sequences.len()), "{}", sequences.len());
            assert_eq!(got.last().unwrap().1[20], 9, "others get through");
            assert_eq!(a.driver.unsent(0).unwrap(), 0);
            assert_eq!(b.port.totals().1.drops, [(DropReason::NoBuffers, round + 1)]);
            got.clear();
        }
    }
}

/// Does something when a guest is about to be interrupted: in the middle of a burst.
struct InTheMiddle(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for InTheMiddle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InTheMiddle")
    }
}

impl Coalesce for InTheMiddle {
    fn interrupts_now(&self, _: &Arc<Port>, _: &Queue, _: u32, wanted: bool) -> bool {
        if let Some(act) = self.0.lock().unwrap().take() {
            act();
        }
        wanted
    }

    fn look(&self, _: &Port, _: bool) -> bool {
        false
    }
}

/// Flows that look at ports come in the middle of a burst that began when flows looked at the link layer alone: what one of
/// them denies does not pass because the packet before it did.
#[test]
fn a_deeper_flow_in_the_middle_of_a_burst_is_heeded_from_its_first_packet_on() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let mut c = Guest::new(&datapath, 3, NetConfig::default(), 0);
    datapath.flows().insert(to_station(2), 0).unwrap();
    let (deep, done) = (datapath.clone(), Arc::new(Mutex::new(false)));
    let seen = done.clone();
    b.port.set_coalescing(Arc::new(InTheMiddle(Mutex::new(Some(Box::new(move || {
        for (port, actions) in [(80, vec![Action::Output(PortId(3))]), (22, vec![])] {
            let FlowSpec { key, mask, .. } = to_station(3);
            let key = FlowKey { eth_type: 0x800, ip_proto: 17, l4_dst: port, ..key };
            let mask = FlowKey { eth_type: 0xffff, ip_proto: 0xff, l4_dst: 0xffff, ..mask.0 };
            deep.flows().insert(FlowSpec { key, mask: FlowMask(mask), actions, epoch: 0 }, 0).unwrap();
        }
        *seen.lock().unwrap() = true;
    }))))));
    let udp =
        |to: u8, port: u16| Frame::new(1, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, port).payload([3; 60]).build();
    let sent: Vec<(u8, u16)> =
        [vec![(2, 9); 8], vec![(3, 80)], vec![(3, 22); 20], vec![(3, 80); 4], vec![(3, 22); 9]].concat();
    for (to, port) in &sent {
        a.driver.send(0, &VnetHdr::default().to_bytes(), &udp(*to, *port)).unwrap().unwrap();
    }
    a.driver.flush(0);
    assert_eq!(forwarder.carry(&a.port, 1, 0).packets, sent.len());
    assert!(*done.lock().unwrap(), "the flows came while the burst was under way");
    assert_eq!(b.received().len(), 8);
    let ports: Vec<u16> = c.received().iter().map(|(_, f)| u16::from_be_bytes([f[36], f[37]])).collect();
    assert_eq!(ports, [80; 5]);
    assert_eq!(a.port.totals().0.drops, [(DropReason::Policy, 29)]);
}

/// Control's answers go on while a burst of the same sender is under way: its queue's lock is not theirs to wait for.
#[test]
fn an_answer_does_not_wait_for_the_senders_burst() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
    let frame = Frame::new(1, 2).payload([5; 64]).build();
    for _ in 0..3 {
        a.send(VnetHdr::default(), &frame);
    }
    forwarder.carry(&a.port, 1, 0);
    let ids = [(); 3].map(|()| a.port.upcalls.report().unwrap().id);
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let (port, datapath) = (a.port.clone(), datapath.clone());
        let burst = a.port.queues[1].lock();
        scope.spawn(move || {
            let mut main = Forwarder::new(datapath, CACHE_ENTRIES);
            main.resume(&port, ids[0], &[Action::Output(PortId(2)), Action::Output(PortId(2))]);
            main.resume(&port, ids[1], &[]);
            assert_eq!(main.expire(&port, 1), 1);
            assert!(main.inject(&port, &[2; 60], 5));
            tell.send(()).unwrap();
        });
        let answered = told.recv_timeout(Duration::from_secs(20));
        drop(burst);
        answered.expect("answered while somebody had the sender's queue");
    });
    assert_eq!(b.received().len(), 2);
    let (from, to) = (a.port.totals().0, b.port.totals().1);
    assert_eq!(from.drops, [(DropReason::Policy, 1), (DropReason::MissTimeout, 1)]);
    assert_eq!((from.packets, from.missed, from.replicated, to.packets), (4, 4, 1, 2));
    assert_eq!(from.packets + from.replicated, to.packets + from.dropped() + a.port.upcalls.len() as u64);
}

/// A queue's counters are for the holder of its lock, whether it is started or not.
#[test]
fn two_senders_to_a_port_that_is_down_lose_no_count() {
    const EACH: u64 = 30_000;
    let (datapath, _) = switch();
    let down = Guest::new(&datapath, 3, NetConfig::default(), 0);
    down.port.queues[0].stop();
    down.port.refresh();
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for id in [1, 2] {
            datapath.flows().insert(flow(id, &[3]), 0).unwrap();
            let (datapath, start) = (datapath.clone(), &start);
            scope.spawn(move || {
                let mut guest = Guest::new(&datapath, id, NetConfig::default(), 0);
                let (mut forwarder, frame) =
                    (Forwarder::new(datapath, CACHE_ENTRIES), Frame::new(1, 3).payload([1; 64]).build());
                start.wait();
                for _ in 0..EACH {
                    guest.send(VnetHdr::default(), &frame);
                    assert_eq!(forwarder.carry(&guest.port, 1, 0).packets, 1);
                }
            });
        }
    });
    assert_eq!(down.port.totals().1.drops, [(DropReason::PortDown, 2 * EACH)]);
}

/// Set for the process in which [`a_port_that_finds_no_memory_for_its_first_miss_finds_it_later`] really takes place.
const ALONE: &str = "LASTHOP_TEST_WITHOUT_MEMORY";

/// A front-end may use up the switch's address space for a while (docs/hostile.md, F11). A port whose first packet misses
/// then loses that packet, and is like any other afterwards. In a process of its own: the others go on to need memory.
#[test]
fn a_port_that_finds_no_memory_for_its_first_miss_finds_it_later() {
    let name = "tests::hostile::a_port_that_finds_no_memory_for_its_first_miss_finds_it_later";
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().unwrap();
        let child = std::process::Command::new(this).args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let frame = Frame::new(1, 2).payload([5; 64]).build();
    let before = getrlimit(Resource::As);
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    // Enough for what an allocator needs, not for 32 packets.
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + (1 << 20)), ..before }).unwrap();
    a.send(VnetHdr::default(), &frame);
    let full = forwarder.carry(&a.port, 1, 100 * MS);
    setrlimit(Resource::As, before).unwrap();
    assert_eq!(full, Outcome { packets: 1, ..Outcome::default() }, "it does not wait for an answer that nobody owes");
    assert_eq!(drops(&a, DropReason::MissQueueFull), 1);
    a.send(VnetHdr::default(), &frame);
    assert_eq!(forwarder.carry(&a.port, 1, 200 * MS).packets, 1);
    assert_eq!((a.port.upcalls.len(), drops(&a, DropReason::MissQueueFull)), (1, 1));
}
