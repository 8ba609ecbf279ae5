//! Rings of translated addresses that rest, or whose pages had to go, when a log begins or memory changes; and kicks.

use super::translation::*;
use super::*;
use crate::message::IotlbMessage;

/// A kick descriptor that the switch refuses, as it is no eventfd, is not written to either: it may be of a file whose server answers when it
/// likes.
#[test]
fn what_is_refused_as_a_kick_is_not_kicked() {
    let (mut rig, _socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    assert_eq!(rig.state(1), RingState::Running);
    let (out, into) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&out, true).unwrap();
    rig.drive(|front, _| front.set_kick(1, Some(into.as_fd())).unwrap_err());
    // The switch waits for a page, and is woken when it is told.
    rig.show(0, IOVA + 0x5000, 100, 0);
    assert_eq!(rig.chains(), Ok((0, true)));
    rig.session.misses().unwrap();
    rig.tell(&[update(5, 1)]);
    let mut bytes = [0; 64];
    let written = rustix::io::read(&out, &mut bytes).unwrap_or(0);
    assert_eq!(written, 0, "bytes were written to what was refused");
}

const TRANSLATING: Features = Features::VERSION_1.union(Features::ACCESS_PLATFORM).union(Features::PROTOCOL_FEATURES);

impl Rig {
    /// Ring 1 runs, and its buffers are in 16 pages whose places in the table are those of its own first page.
    fn crowd_the_set_of_ring_1(&mut self) {
        use lasthop_guestmem::translations::set_of;
        self.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
        let first = IOVA / 4096;
        let others: Vec<_> = (0x20_0000u64..).filter(|page| set_of(*page).0 == set_of(first).0).take(16).collect();
        for (n, page) in others.iter().enumerate() {
            self.tell(&[IotlbMessage { iova: page * 4096, ..update(5, 1) }]);
            self.show(n as u16, page * 4096, 100, 0);
        }
        for _ in 0..64 {
            self.chains().unwrap();
            self.session.misses().unwrap();
        }
        assert_eq!(self.state(1), RingState::Running);
    }

    /// The front-end begins to move the guest: it names a log and has it used.
    fn begin_to_log(&mut self) {
        let log = memfd(4096);
        self.drive(|front, _| {
            front.set_log(4096, 0, log.as_fd()).unwrap();
            front.set_features(TRANSLATING | Features::LOG_ALL).unwrap();
        });
    }
}

/// A guest with lazy invalidation takes its rings back a hundred times a second. A move may begin just then.
#[test]
fn a_ring_that_rests_when_the_log_begins_goes_on() {
    let (mut rig, _socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3), update(5, 1)]);
    rig.show(0, IOVA + 0x5000, 100, 0);
    assert_eq!(rig.chains(), Ok((1, false)));
    rig.tell(&[invalidate(IOVA, 4096)]);
    rig.begin_to_log();
    rig.tell(&[update(0, 3)]);
    assert_eq!(rig.state(1), RingState::Running);
    assert_eq!(rig.chains(), Ok((1, false)));
}

/// The table is a cache: pages of a ring may have had to go there for others, and are known all the same.
#[test]
fn a_ring_whose_pages_had_to_go_in_the_table_goes_over_to_the_log() {
    let (mut rig, _socket) = with_ring();
    rig.crowd_the_set_of_ring_1();
    rig.begin_to_log();
    assert_eq!(rig.state(1), RingState::Running);
}

/// The same when memory comes.
#[test]
fn a_ring_whose_pages_had_to_go_in_the_table_goes_over_to_new_memory() {
    let (mut rig, _socket) = with_ring();
    rig.crowd_the_set_of_ring_1();
    let ram = memfd(0x1000);
    let far = RegionSpec { guest_addr: GUEST + SIZE, user_addr: USER + SIZE, size: 0x1000, mmap_offset: 0 };
    rig.drive(|front, _| front.add_region(far, ram.as_fd()).unwrap());
    assert_eq!(rig.state(1), RingState::Running);
    let failed = rig.events.iter().any(|event| matches!(event, Event::Failed { .. }));
    assert!(!failed, "it would have been started anew, where it began");
}

/// Of a ring whose pages are not remembered, because a guest has more than may be, nothing is known when the log begins: it rests until they
/// are told again.
#[test]
fn a_ring_whose_pages_were_forgotten_rests_when_the_log_begins() {
    let (mut rig, socket) = with_ring();
    rig.session.set_grants(8);
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    rig.tell(&(16..24).map(|page| update(page, 1)).collect::<Vec<_>>());
    rig.show(0, IOVA + 0x5000, 100, 0);
    asked(&socket);
    rig.begin_to_log();
    assert_eq!((rig.state(1), rig.chains()), (RingState::Running, Ok((0, false))), "a dummy is in its place");
    assert_eq!(asked(&socket), [(0, 3), (1, 3), (2, 3)]);
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3), update(5, 1)]);
    assert_eq!((rig.state(1), rig.chains()), (RingState::Running, Ok((1, false))));
    assert!(rig.queues[1].lock().started().unwrap().memory.is_logged());
}

/// A front-end fills the counter of its kick and lets it block: nobody waits for it.
#[test]
fn a_full_kick_that_blocks_is_not_waited_for() {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (mut rig, _socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| front.set_kick(1, Some(kick.as_fd())).unwrap());
    rig.show(0, IOVA + 0x5000, 100, 0);
    assert_eq!(rig.chains(), Ok((0, true)));
    rig.session.misses().unwrap();
    let flags = fcntl_getfl(&kick).unwrap();
    kick.drain();
    rustix::io::write(&kick, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&kick, flags - OFlags::NONBLOCK).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            let _ = rustix::io::read(&kick, &mut [0; 8]);
        });
        rig.tell(&[update(5, 1)]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "the session process waited for {took:?}");
    });
}
