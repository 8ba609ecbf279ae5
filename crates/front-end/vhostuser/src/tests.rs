//! The session against our own front-end: what is accepted, what is refused, and in which state a ring ends.

use crate::message::{NO_FD, Request, SyntaxError, VringState, flag};
use crate::{Features, Frontend, HALF_MESSAGE, Local, MAX_RING, Refusal, RingState, SILENCE, Session, SessionError};
use lasthop_connection::Event;
use lasthop_guestmem::RegionSpec;
use lasthop_sys::EventFd;
use lasthop_virtqueue::{Queue, QueueError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

mod handover;
mod hostile;
mod log;
mod resting;
mod translation;

/// Guest memory of the tests: 1 MiB, at 0x10_0000 for the guest and at USER for the front-end.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const SIZE: u64 = 0x10_0000;
/// Offsets of the parts of the one ring that most tests use.
const PARTS: (u64, u64, u64) = (0, 0x1000, 0x2000);

fn memfd(size: u64) -> OwnedFd {
    let fd = memfd_create("vhostuser-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

fn region() -> RegionSpec {
    RegionSpec { guest_addr: GUEST, user_addr: USER, size: SIZE, mmap_offset: 0 }
}

/// A session and the front-end at the other end of its socket.
struct Rig {
    front: Frontend,
    session: Session<Local>,
    queues: Arc<[Arc<Queue>]>,
    ram: OwnedFd,
    start: Instant,
    events: Vec<Event>,
}

impl Rig {
    fn new() -> Self {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let queues: Arc<[_]> = (0..32).map(|i| Arc::new(Queue::new(i))).collect();
        let start = Instant::now();
        let session = Session::local(b, queues.clone(), start);
        Self { front: Frontend::over(a), session, queues, ram: memfd(SIZE), start, events: Vec::new() }
    }

    /// With everything negotiated and memory given.
    fn negotiated(features: Features) -> Self {
        let mut rig = Self::new();
        rig.drive(|front, ram| {
            front.set_owner().unwrap();
            assert_eq!(front.features().unwrap(), Features::OFFERED);
            front.set_protocol_features(front.protocol_features().unwrap()).unwrap();
            front.set_features(features).unwrap();
            front.set_mem_table(&[(region(), ram.as_fd())]).unwrap();
        });
        rig
    }

    /// Lets the front-end talk in a thread of its own while the session serves it here.
    fn drive<T: Send>(&mut self, talk: impl FnOnce(&mut Frontend, &OwnedFd) -> T + Send) -> T {
        let Self { front, session, ram, events, start, .. } = self;
        std::thread::scope(|scope| {
            let talk = scope.spawn(|| talk(front, ram));
            loop {
                let over = talk.is_finished();
                let mut fds = [PollFd::new(&*session, PollFlags::IN)];
                let wait = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                if poll(&mut fds, Some(&wait)).unwrap() != 0 {
                    session.serve(*start, events).unwrap();
                } else if over {
                    return talk.join().unwrap();
                }
            }
        })
    }

    /// What the session says to what was sent.
    fn ready(&mut self) -> Result<(), SessionError> {
        self.session.serve(self.start, &mut self.events)
    }

    /// The session's error for one message of any kind.
    fn error(&mut self, request: u32, flags: u32, body: &[u8], fds: usize) -> SessionError {
        let event = EventFd::new().unwrap();
        self.front.send(request, flags, body, &vec![event.as_fd(); fds]).unwrap();
        self.ready().unwrap_err()
    }

    fn refusal(&mut self, request: Request, body: &[u8]) -> Refusal {
        match self.error(request as u32, flag::VERSION, body, 0) {
            SessionError::Refused { request: name, why, .. } if name.starts_with(&request.to_string()) => why,
            other => panic!("{other:?}"),
        }
    }

    fn state(&self, ring: usize) -> RingState {
        self.session.rings().nth(ring).unwrap().state
    }

    fn describe(&mut self, ring: u32) {
        self.drive(move |front, _| {
            front.set_size(ring, 256).unwrap();
            front.set_base(ring, 0).unwrap();
            let (desc, driver, device) = PARTS;
            front.set_addr(ring, USER + desc, USER + driver, USER + device).unwrap();
        });
    }
}

fn state(index: u32, num: u32) -> VringState {
    VringState { index, num }
}

#[test]
fn a_front_end_brings_its_rings_up_and_down() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES | packed);
        rig.describe(1);
        let (kick, call) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        rig.drive(|front, _| {
            assert_eq!(front.queue_pairs().unwrap(), 16);
            if !packed.is_empty() {
                front.set_base(1, 0x8000).unwrap();
            }
            front.set_call(1, Some(call.as_fd())).unwrap();
            front.set_kick(1, Some(kick.as_fd())).unwrap();
        });
        assert_eq!(rig.state(1), RingState::Running);
        assert!(call.drain(), "an interrupt may have been lost before");
        assert!(!rig.queues[1].is_ready(), "rings begin disabled");
        rig.drive(|front, _| front.enable(1, true).unwrap());
        assert!(rig.queues[1].is_ready());
        let fd = rig.events.iter_mut().find_map(|e| match e {
            Event::Kick { queue: 1, fd } => fd.take(),
            _ => None,
        });
        assert!(!kick.drain(), "the look at what it is was none");
        fd.unwrap().signal();
        assert!(kick.drain());
        assert!(matches!(rig.events.last(), Some(Event::Changed)));
        let base = rig.drive(|front, _| front.stop(1).unwrap());
        assert_eq!(base, if packed.is_empty() { 0 } else { 0x8000_8000 });
        assert_eq!(rig.state(1), RingState::Stopped);
        assert!(!rig.queues[1].is_ready());
        assert!(rig.events.iter().any(|e| matches!(e, Event::Stopped { queue: 1 })));
    }
}

/// The table in `ring.rs`, line by line.
#[test]
fn ring_states_follow_the_table() {
    use RingState::*;
    #[derive(Clone, Copy, Debug)]
    enum Input {
        NewSize,
        SameSize,
        Kick,
        MemoryMoves,
        MemoryGoes,
        GetBase,
        ResetOwner,
        StatusZero,
    }
    use Input::*;
    let table: [(RingState, [Result<RingState, ()>; 8]); 4] = [
        //        NewSize      SameSize     Kick         MemoryMoves  MemoryGoes   GetBase      ResetOwner   StatusZero
        (
            Stopped,
            [Ok(Stopped), Ok(Stopped), Ok(Running), Ok(Stopped), Ok(Stopped), Ok(Stopped), Ok(Stopped), Ok(Stopped)],
        ),
        (
            Waiting,
            [Ok(Running), Ok(Waiting), Ok(Waiting), Ok(Waiting), Ok(Waiting), Ok(Stopped), Ok(Stopped), Ok(Stopped)],
        ),
        (Running, [Err(()), Ok(Running), Ok(Running), Ok(Running), Ok(Failed), Ok(Stopped), Ok(Stopped), Ok(Stopped)]),
        (Failed, [Ok(Running), Ok(Failed), Ok(Failed), Ok(Failed), Ok(Failed), Ok(Stopped), Ok(Stopped), Ok(Stopped)]),
    ];
    for (from, row) in table {
        let inputs = [NewSize, SameSize, Kick, MemoryMoves, MemoryGoes, GetBase, ResetOwner, StatusZero];
        for (input, expected) in inputs.into_iter().zip(row) {
            let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
            // A ring waits for its size in Waiting; in Failed it has one that is no power of two.
            let size = match from {
                Stopped | Running => 256,
                Waiting => 0,
                Failed => 100,
            };
            let err = EventFd::new().unwrap();
            let (desc, driver, device) = PARTS;
            rig.drive(|front, _| {
                front.set_err(0, Some(err.as_fd())).unwrap();
                front.set_addr(0, USER + desc, USER + driver, USER + device).unwrap();
                if size != 0 {
                    front.set_size(0, size).unwrap();
                }
                if from != Stopped {
                    front.set_kick(0, None).unwrap();
                }
            });
            assert_eq!(rig.state(0), from);
            assert_eq!(err.drain(), from == Failed);
            let result = rig.drive(|front, ram| match input {
                NewSize => front.set_size(0, 128),
                SameSize if size == 0 => front.set_base(0, 0),
                SameSize => front.set_size(0, size),
                Kick => front.set_kick(0, None),
                MemoryMoves => front.set_mem_table(&[(RegionSpec { guest_addr: 0, ..region() }, ram.as_fd())]),
                MemoryGoes => front.set_mem_table(&[(RegionSpec { user_addr: 0, ..region() }, ram.as_fd())]),
                GetBase => front.stop(0).map(|_| ()),
                ResetOwner => front.send(Request::ResetOwner as u32, flag::VERSION, &[], &[]),
                StatusZero => front.set_u64(Request::SetStatus, 0),
            });
            let found = result.map(|()| rig.state(0)).map_err(|_| ());
            assert_eq!(found, expected, "{from:?} and {input:?}");
            let started = rig.queues[0].status().started;
            assert_eq!(started, rig.state(0) == Running, "{from:?} and {input:?}");
            assert_eq!(
                err.drain(),
                matches!((from, input), (Failed, Kick | MemoryMoves) | (Running | Failed, MemoryGoes))
            );
        }
    }
}

#[test]
fn rings_are_enabled_at_once_without_protocol_features() {
    let mut rig = Rig::new();
    rig.drive(|front, ram| {
        front.set_features(Features::VERSION_1).unwrap();
        front.set_mem_table(&[(region(), ram.as_fd())]).unwrap();
    });
    rig.describe(0);
    rig.drive(|front, _| front.set_kick(0, None).unwrap());
    assert!(rig.queues[0].is_ready());
    assert!(rig.events.iter().any(|e| matches!(e, Event::Kick { queue: 0, fd: None })));
}

#[test]
fn qemu_enables_before_it_negotiates() {
    let mut rig = Rig::new();
    rig.drive(|front, ram| {
        front.enable(1, true).unwrap();
        front.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES).unwrap();
        front.set_mem_table(&[(region(), ram.as_fd())]).unwrap();
    });
    rig.describe(1);
    rig.drive(|front, _| {
        front.set_kick(1, None).unwrap();
        // And repeats the features for the next queue pair while the first already runs.
        front.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES).unwrap();
    });
    assert!(rig.queues[1].is_ready() && !rig.queues[0].is_ready());
    let why = rig.refusal(Request::SetFeatures, &Features::RING_PACKED.bits().to_le_bytes());
    assert!(matches!(why, Refusal::FeaturesWhileRunning(_)));
}

/// A bound holds for rings whose size is set from then on.
#[test]
fn a_ring_longer_than_the_port_s_bound_is_refused() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.describe(0);
    rig.drive(|front, _| front.set_kick(0, None).unwrap());
    rig.session.set_max_ring(128);
    assert_eq!(rig.state(0), RingState::Running, "its 256 entries were there before");
    rig.drive(|front, _| front.set_size(1, 128).unwrap());
    let why = rig.refusal(Request::SetVringNum, state(1, 256).as_bytes());
    assert_eq!(why, Refusal::RingBound { size: 256, most: 128 });
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.session.set_max_ring(MAX_RING);
    rig.drive(|front, _| front.set_size(1, MAX_RING.into()).unwrap());
}

#[test]
fn a_running_ring_cannot_be_changed() {
    for (request, body) in [(Request::SetVringNum, state(0, 128)), (Request::SetVringBase, state(0, 7))] {
        let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
        rig.describe(0);
        rig.drive(|front, _| front.set_kick(0, None).unwrap());
        assert_eq!(rig.refusal(request, body.as_bytes()), Refusal::RingRunning(0));
    }
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.describe(0);
    rig.drive(|front, _| {
        front.set_kick(0, None).unwrap();
        assert!(front.set_addr(0, USER, USER + 0x1000, USER + 0x3000).is_err());
        front.set_addr(0, USER, USER + 0x1000, USER + 0x2000).unwrap();
    });
    assert!(rig.events.iter().any(
        |e| matches!(e, Event::Wrong { line, of_memory: false } if line.starts_with("refused: SET_VRING_ADDR of ring 0: "))
    ));
    assert_eq!(rig.state(0), RingState::Running);
}

#[test]
fn a_ring_that_its_guest_broke_works_again_after_a_reset() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.describe(0);
    rig.drive(|front, _| front.set_kick(0, None).unwrap());
    rig.queues[0].lock().fail(QueueError::ChainTooLong);
    assert_eq!(rig.state(0), RingState::Failed);
    rig.drive(|front, ram| front.set_mem_table(&[(region(), ram.as_fd())]).unwrap());
    assert_eq!(rig.state(0), RingState::Failed, "nothing but the front-end's reset makes it whole");
    rig.drive(|front, _| {
        assert_eq!(front.stop(0).unwrap(), 0);
        front.set_kick(0, None).unwrap();
    });
    assert_eq!(rig.state(0), RingState::Running);
    assert_eq!(rig.session.rings().next().unwrap().error, None);
}

#[test]
fn ring_addresses_may_come_before_memory_and_kicks_before_both() {
    let mut rig = Rig::new();
    rig.drive(|front, _| {
        front.set_features(Features::VERSION_1).unwrap();
        front.set_kick(3, None).unwrap();
    });
    rig.describe(3);
    assert_eq!(rig.state(3), RingState::Waiting);
    rig.drive(|front, ram| front.set_mem_table(&[(region(), ram.as_fd())]).unwrap());
    assert_eq!(rig.state(3), RingState::Running);
}

#[test]
fn addresses_outside_of_memory_break_the_ring_only() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.drive(|front, _| {
        for (ring, used) in [(0, USER + SIZE), (1, USER + 0x2001), (2, USER + SIZE - 4)] {
            front.set_size(ring, 256).unwrap();
            front.set_addr(ring, USER, USER + 0x1000, used).unwrap();
            front.set_kick(ring, None).unwrap();
        }
    });
    assert!(rig.session.rings().take(3).all(|r| r.state == RingState::Failed && r.error.is_some()));
    let failed = |e: &Event| if let Event::Failed { why, .. } = e { Some(why.clone()) } else { None };
    let errors: Vec<_> = rig.events.iter().filter_map(failed).collect();
    assert_eq!(errors.len(), 3);
    assert!(
        errors[0].starts_with(&format!("ring address {:#x} (of the front-end) is in no memory region", USER + SIZE))
    );
    assert_eq!(errors[1], QueueError::Alignment(GUEST + 0x2001).to_string());
    assert!(errors[2].starts_with("ring memory: "), "{}", errors[2]);
}

#[test]
fn memory_comes_and_goes_by_slots() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    let slot = |i: u64| RegionSpec { guest_addr: i << 32, user_addr: i << 40, size: 4096, mmap_offset: i << 12 };
    rig.drive(move |front, ram| {
        assert_eq!(front.get_u64(Request::GetMaxMemSlots).unwrap(), 509);
        for i in 1..=20 {
            front.add_region(slot(i), ram.as_fd()).unwrap();
        }
        let half = RegionSpec { size: 2048, ..slot(7) };
        assert!(front.add_region(half, ram.as_fd()).is_err(), "overlaps");
        front.remove_region(slot(7)).unwrap();
        assert!(front.remove_region(slot(7)).is_err(), "gone already");
    });
    assert_eq!(rig.session.memory().regions().count(), 20);
    assert_eq!(rig.session.memory().total_bytes(), SIZE + 19 * 4096);
    rig.drive(|front, ram| front.set_mem_table(&[(region(), ram.as_fd())]).unwrap());
    assert_eq!(rig.session.memory().regions().count(), 1);
    let refused: Vec<_> = rig.events.iter().filter(|e| matches!(e, Event::Wrong { .. })).collect();
    assert_eq!(refused.len(), 2);
}

#[test]
fn a_region_added_per_queue_pair_goes_with_the_last() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    let slot = RegionSpec { guest_addr: 1 << 32, user_addr: 1 << 40, size: 4096, mmap_offset: 0 };
    rig.drive(move |front, ram| {
        for _ in 0..3 {
            front.add_region(slot, ram.as_fd()).unwrap();
        }
        front.remove_region(slot).unwrap();
        front.remove_region(slot).unwrap();
    });
    assert_eq!(rig.session.memory().regions().count(), 2);
    rig.drive(move |front, _| {
        front.remove_region(slot).unwrap();
        assert!(front.remove_region(slot).is_err(), "gone already");
    });
    assert_eq!(rig.session.memory().regions().count(), 1);
}

#[test]
fn a_bad_table_leaves_the_old_one() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.drive(|front, ram| {
        let twice = [(region(), ram.as_fd()), (region(), ram.as_fd())];
        assert!(front.set_mem_table(&twice).is_err());
        assert!(front.set_mem_table(&[(RegionSpec { mmap_offset: 4096, ..region() }, ram.as_fd())]).is_err());
        assert!(front.set_mem_table(&[(RegionSpec { guest_addr: u64::MAX - 1, ..region() }, ram.as_fd())]).is_err());
    });
    assert_eq!(rig.session.memory().regions().collect::<Vec<_>>(), [region()]);
    let overlaps = format!("refused: SET_MEM_TABLE: {}", lasthop_guestmem::MapError::Overlaps(GUEST));
    assert!(rig.events.iter().any(|e| matches!(e, Event::Wrong { line, of_memory: true } if *line == overlaps)));
}

#[test]
fn what_else_a_front_end_says() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    rig.drive(|front, _| {
        front.set_u64(Request::SendRarp, 0x5634_1200_5452).unwrap();
        assert!(front.set_u64(Request::SendRarp, 0xff).is_err(), "a group address");
        front.set_u64(Request::NetSetMtu, 9000).unwrap();
        assert!(front.set_u64(Request::NetSetMtu, 67).is_err());
        assert!(front.set_u64(Request::NetSetMtu, 65536).is_err());
        front.set_u64(Request::SetStatus, 0x0f).unwrap();
        assert!(front.set_u64(Request::SetStatus, 0x100).is_err());
        assert_eq!(front.get_u64(Request::GetStatus).unwrap(), 0x0f);
    });
    assert!(
        rig.events
            .iter()
            .any(|e| matches!(e, Event::Announce(frame) if frame[6..12] == [0x52, 0x54, 0, 0x12, 0x34, 0x56]))
    );
    assert!(rig.events.iter().any(|e| matches!(e, Event::Mtu(9000))));
    assert_eq!(rig.session.device_status(), 0x0f);
    rig.drive(|front, _| front.send(Request::ResetDevice as u32, flag::VERSION, &[], &[]).unwrap());
    assert_eq!(rig.session.device_status(), 0);
    assert_eq!(rig.session.features(), Features::empty());
    assert_eq!(rig.session.memory().regions().count(), 1, "memory stays");
}

#[test]
fn inflight_regions_are_made_and_taken_back() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES | packed);
        rig.describe(1);
        let fd = rig.drive(|front, _| {
            let (desc, fd) = front.inflight(2, 256).unwrap();
            assert_eq!((desc.num_queues, desc.queue_size, desc.mmap_offset), (2, 256, 0));
            front.set_inflight(desc, fd.as_fd()).unwrap();
            assert!(front.set_inflight(crate::message::InflightDesc { num_queues: 33, ..desc }, fd.as_fd()).is_err());
            front.set_kick(1, None).unwrap();
            fd
        });
        let half = rustix::fs::fstat(&fd).unwrap().st_size as usize / 2;
        let mut bytes = vec![0; 2 * half];
        rustix::io::pread(&fd, &mut bytes, 0).unwrap();
        assert_eq!(bytes[half + 8..half + 12], [1, 0, 0, 1], "version 1, 256 entries");
        assert!(bytes[..half].iter().all(|b| *b == 0), "the other ring was not started");
    }
}

#[test]
fn every_cut_of_a_message_is_put_together_again() {
    let body = state(4, 512);
    let mut message = vec![8, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0];
    message.extend_from_slice(body.as_bytes());
    for cut in 0..=message.len() {
        let mut rig = Rig::new();
        rig.front.send_raw(&message[..cut], &[]).unwrap();
        rig.ready().unwrap();
        rig.front.send_raw(&message[cut..], &[]).unwrap();
        rig.ready().unwrap();
        assert_eq!(rig.session.rings().nth(4).unwrap().size, 512, "cut at {cut}");
    }
}

#[test]
fn the_end_of_a_session_stops_everything() {
    let mut rig = Rig::negotiated(Features::VERSION_1);
    rig.describe(0);
    rig.drive(|front, _| front.set_kick(0, None).unwrap());
    let memory = Arc::downgrade(rig.session.memory());
    let Rig { front, mut session, queues, start, mut events, .. } = rig;
    drop(front);
    assert_eq!(session.serve(start, &mut events), Err(SessionError::Closed));
    session.end(&SessionError::Closed);
    assert!(!queues[0].status().started && !queues[0].status().enabled);
    // It is let go of aside.
    while memory.upgrade().is_some() {
        std::thread::yield_now();
    }
}
