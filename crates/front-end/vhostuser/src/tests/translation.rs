//! Guests whose own IOMMU translates addresses: what is asked, what is believed, and what happens when it is taken back.

use super::*;
use crate::ProtocolFeatures;
use crate::message::{BACKEND_IOTLB_MSG, Header, IotlbMessage, iotlb};
use lasthop_virtqueue::{BURST, Chains};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zerocopy::FromBytes;

/// I/O address of the ring's first page; the guest's memory lies there page for page.
pub(super) const IOVA: u64 = 0xffff_0000;

/// A session that translates, and the front-end's end of the socket for what it asks.
pub(super) fn translating() -> (Rig, OwnedFd) {
    let mut rig = Rig::new();
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rig.drive(|front, ram| {
        front.set_owner().unwrap();
        front.set_protocol_features(ProtocolFeatures::OFFERED).unwrap();
        front.set_backend_requests(theirs.as_fd()).unwrap();
        front.set_features(Features::VERSION_1 | Features::ACCESS_PLATFORM | Features::PROTOCOL_FEATURES).unwrap();
        front.set_mem_table(&[(region(), ram.as_fd())]).unwrap();
    });
    (rig, ours)
}

/// The same with ring 1 described and kicked, which nobody has translated.
pub(super) fn with_ring() -> (Rig, OwnedFd) {
    let (mut rig, ours) = translating();
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| {
        front.set_size(1, 256).unwrap();
        front.set_addr(1, IOVA, IOVA + 0x1000, IOVA + 0x2000).unwrap();
        front.set_kick(1, Some(kick.as_fd())).unwrap();
        front.enable(1, true).unwrap();
    });
    (rig, ours)
}

pub(super) fn update(page: u64, permissions: u8) -> IotlbMessage {
    let (iova, user_addr) = (IOVA + page * 4096, USER + page * 4096);
    IotlbMessage { iova, size: 4096, user_addr, permissions, kind: iotlb::UPDATE, ..Default::default() }
}

pub(super) fn invalidate(iova: u64, size: u64) -> IotlbMessage {
    IotlbMessage { iova, size, kind: iotlb::INVALIDATE, ..Default::default() }
}

/// What is asked, as I/O pages behind IOVA and permissions.
pub(super) fn asked(socket: &OwnedFd) -> Vec<(u64, u8)> {
    let mut all = Vec::new();
    let mut bytes = [0; 44];
    while let Ok((44, _)) = recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        let (header, body) = bytes.split_at(12);
        let header = Header::read_from_bytes(header).unwrap();
        let body = IotlbMessage::read_from_bytes(body).unwrap();
        assert_eq!((header.request, header.size, body.kind, body.size), (BACKEND_IOTLB_MSG, 32, iotlb::MISS, 4096));
        assert_eq!(header.flags, flag::VERSION | flag::NEED_REPLY);
        all.push((body.iova.wrapping_sub(IOVA) / 4096, body.permissions));
    }
    all
}

pub(super) fn answer(socket: &OwnedFd, result: u64) {
    let header = Header { request: BACKEND_IOTLB_MSG, flags: flag::VERSION | flag::REPLY, size: 8 };
    send(socket, &[header.as_bytes(), result.as_bytes()].concat(), SendFlags::empty()).unwrap();
}

impl Rig {
    pub(super) fn tell(&mut self, messages: &[IotlbMessage]) {
        self.drive(|front, _| messages.iter().for_each(|message| front.iotlb(*message).unwrap()));
    }

    /// The guest shows a chain of one buffer, in ring 1 at the offsets of [`PARTS`].
    pub(super) fn show(&self, index: u16, addr: u64, len: u32, flags: u16) {
        let memory = self.session.memory().translated_by(None);
        let ring = memory.slice(GUEST, 0x3000).unwrap();
        ring.store_u64(16 * usize::from(index), addr);
        ring.store_u64(16 * usize::from(index) + 8, u64::from(len) | u64::from(flags) << 32);
        ring.store_u16(0x1004 + 2 * usize::from(index), index);
        ring.store_u16(0x1002, index + 1);
    }

    /// Chains that can be taken, and whether one waits; they are put back.
    pub(super) fn chains(&self) -> Result<(usize, bool), QueueError> {
        let mut guard = self.queues[1].lock();
        let started = guard.started().expect("a started ring");
        let (memory, mut chains) = (started.memory.clone(), Chains::default());
        started.ring.pop(&memory, &mut chains, BURST)?;
        started.ring.unpop(&chains.list);
        Ok((chains.list.len(), chains.asked))
    }
}

#[test]
fn a_ring_starts_when_its_pages_are_known() {
    let (mut rig, socket) = with_ring();
    assert_eq!(asked(&socket), [(0, 3), (1, 3), (2, 3)]);
    assert_eq!(rig.state(1), RingState::Waiting);
    rig.tell(&[update(0, 3), update(1, 3)]);
    assert_eq!((rig.state(1), asked(&socket)), (RingState::Waiting, vec![]));
    rig.tell(&[update(2, 3)]);
    assert_eq!(rig.state(1), RingState::Running);
    assert!(rig.queues[1].is_ready());
}

#[test]
fn a_buffer_waits_for_its_page_and_those_behind_are_asked_for_too() {
    let (mut rig, socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    asked(&socket);
    for n in 0..3 {
        rig.show(n, IOVA + 0x5000 + u64::from(n) * 0x2000, 100, 0);
    }
    assert_eq!(rig.chains(), Ok((0, true)));
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [(5, 1), (7, 1), (9, 1)], "to be read, in their order");
    rig.tell(&[update(7, 1)]);
    assert_eq!(rig.chains(), Ok((0, true)), "none overtakes another");
    rig.tell(&[update(5, 1)]);
    assert_eq!(rig.chains(), Ok((2, true)));
    rig.tell(&[update(9, 1)]);
    assert_eq!(rig.chains(), Ok((3, false)));
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [], "what was asked once is not asked again");
}

/// Pages told one by one would each have the switch look at all that waits. What is the last of all that is asked for is not waited for,
/// and a front-end that answers some and never the others holds nothing up.
#[test]
fn the_switch_is_woken_for_several_pages_together_and_soon() {
    let (mut rig, socket) = with_ring();
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| front.set_kick(1, Some(kick.as_fd())).unwrap());
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    let woken = || {
        let mut count = [0; 8];
        rustix::io::read(&kick, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    for n in 0..12 {
        rig.show(n, IOVA + 0x5000 + u64::from(n) * 0x1000, 100, 0);
    }
    assert_eq!(rig.chains(), Ok((0, true)));
    rig.session.misses().unwrap();
    asked(&socket);
    woken();
    let before = Instant::now();
    rig.tell(&[update(5, 1)]);
    assert_eq!(woken(), 0, "others are to come");
    let due = rig.session.deadline().expect("a time by which it is woken");
    assert!(due <= Instant::now() + Duration::from_millis(1), "{:?}", due - before);
    rig.session.expire(due).unwrap();
    assert_eq!((woken(), rig.session.deadline()), (1, None), "they have not come");
    rig.tell(&[6, 7, 8, 9, 10, 11, 12].map(|page| update(page, 1)));
    assert_eq!(woken(), 0);
    rig.tell(&[update(13, 1)]);
    assert_eq!(woken(), 1, "eight");
    rig.tell(&[14, 15].map(|page| update(page, 1)));
    assert_eq!(woken(), 0);
    rig.tell(&[update(16, 1)]);
    assert_eq!((woken(), rig.session.deadline()), (1, None), "that was the last");
    assert_eq!(rig.chains(), Ok((12, false)));
}

/// Linux fills the rings when the interface comes up, long after they have started.
#[test]
fn buffers_that_a_running_ring_is_filled_with_are_asked_for_before_any_packet_comes() {
    let (mut rig, socket) = translating();
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| {
        front.set_size(0, 256).unwrap();
        front.set_addr(0, IOVA, IOVA + 0x1000, IOVA + 0x2000).unwrap();
        front.set_kick(0, Some(kick.as_fd())).unwrap();
        front.enable(0, true).unwrap();
    });
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    assert_eq!((rig.state(0), asked(&socket).len()), (RingState::Running, 3));
    assert_eq!(rig.session.fills().map(|(ring, _)| ring).collect::<Vec<_>>(), [0]);
    (0..40).for_each(|n| rig.show(n, IOVA + 0x5000 + u64::from(n) * 0x1000, 100, 2));
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [], "nobody has looked");
    rig.session.filled(0).unwrap();
    rig.session.misses().unwrap();
    let pages = |from: u64, to: u64| (from..to).map(|page| (page, 2)).collect::<Vec<_>>();
    // The rings' pages have no answers yet: so many are asked for at a time.
    assert_eq!(asked(&socket), pages(5, 5 + 16 - 3));
}

/// What the switch's main thread does for it nobody pays for.
#[test]
fn a_guest_that_rings_in_a_loop_is_not_heard_for_long() {
    for kicks in [0, 10_000] {
        let (mut rig, socket) = translating();
        rig.drive(|front, _| {
            front.set_size(0, 256).unwrap();
            front.set_addr(0, IOVA, IOVA + 0x1000, IOVA + 0x2000).unwrap();
            front.set_kick(0, None).unwrap();
            front.enable(0, true).unwrap();
        });
        rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
        assert_eq!((rig.state(0), asked(&socket).len()), (RingState::Running, 3));
        (0..kicks).for_each(|_| rig.session.filled(0).unwrap());
        rig.show(0, IOVA + 0x5000, 100, 2);
        rig.session.filled(0).unwrap();
        rig.session.misses().unwrap();
        assert_eq!(asked(&socket).is_empty(), kicks > 0);
    }
}

#[test]
fn what_is_taken_away_is_not_found_again_not_even_a_ring() {
    for (iova, size) in [(0xfef0_0000, 0xffff_ffff_0110_0000), (0, 0), (IOVA, 0), (IOVA + 0x2fff, 1 << 63)] {
        let (mut rig, socket) = with_ring();
        rig.tell(&[update(0, 3), update(1, 3), update(2, 3), update(5, 1)]);
        asked(&socket);
        rig.show(0, IOVA + 0x5000, 100, 0);
        assert_eq!(rig.chains(), Ok((1, false)), "what was told is found without a question");
        rig.tell(&[invalidate(iova, size)]);
        assert_eq!(rig.chains(), Ok((0, false)), "a dummy, in which nothing is available");
        let gone: Vec<_> = asked(&socket).into_iter().map(|(page, _)| page).collect();
        let ring = if iova > IOVA { vec![2] } else { vec![0, 1, 2] };
        assert_eq!(gone, ring, "{iova:#x} and {size:#x} bytes");
        assert_eq!(rig.state(1), RingState::Running);
        // What the guest has shown meanwhile is there afterwards.
        rig.show(1, IOVA + 0x5000, 100, 0);
        rig.tell(&gone.iter().map(|page| update(*page, 3)).collect::<Vec<_>>());
        assert_eq!(rig.chains(), Ok((0, true)), "the buffer's page is not");
        rig.session.misses().unwrap();
        assert_eq!(asked(&socket), [(5, 1)]);
        rig.tell(&[update(5, 1)]);
        assert_eq!(rig.chains(), Ok((2, false)));
    }
}

/// Not at all, and not for writing.
#[test]
fn a_page_that_the_guest_has_not_granted_breaks_its_ring_alone() {
    let (mut rig, socket) = with_ring();
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| {
        front.set_size(0, 256).unwrap();
        front.set_addr(0, IOVA + 0x8000, IOVA + 0x9000, IOVA + 0xa000).unwrap();
        front.set_kick(0, Some(kick.as_fd())).unwrap();
        front.enable(0, true).unwrap();
    });
    rig.tell(&[0, 1, 2, 8, 9, 10].map(|page| update(page, 3)));
    (0..asked(&socket).len()).for_each(|_| answer(&socket, 0));
    rig.session.answers().unwrap();
    rig.show(0, IOVA + 0x5000, 100, 0);
    assert_eq!(rig.chains(), Ok((0, true)), "it waits");
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [(5, 1)]);
    answer(&socket, 1);
    rig.session.answers().unwrap();
    let why = rig.chains().unwrap_err();
    let said = "buffer: 1 bytes at I/O address 0xffff5000 are not granted by the guest's IOMMU, or not for this use";
    assert_eq!(why.to_string(), said);
    rig.queues[1].lock().fail(why);
    let started = [0, 1].map(|ring: usize| rig.queues[ring].status().started);
    assert_eq!((started, rig.queues[1].status().error), ([true, false], Some(why)));
    // The other goes on, and what is granted is found.
    rig.tell(&[update(6, 2)]);
    let memory = rig.session.memory().clone();
    assert!(memory.piece_for(IOVA + 0x6000, 1, true).is_ok());
}

/// A page that may be read, and is asked for by somebody who wants to write, stays one that may be read.
#[test]
fn what_is_refused_for_writing_may_be_read() {
    let (mut rig, socket) = translating();
    rig.tell(&[update(5, 1)]);
    let memory = rig.session.memory().clone();
    let found = |to_write| memory.piece_for(IOVA + 0x5000, 100, to_write).map(|piece| piece.len());
    let asked_for = |to_write| found(to_write).map_err(|error| error.asked == Some(true));
    assert_eq!((asked_for(false), asked_for(true)), (Ok(100), Err(true)));
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [(5, 2)]);
    answer(&socket, 1);
    rig.session.answers().unwrap();
    assert_eq!((asked_for(true), asked_for(false)), (Err(false), Ok(100)));
    rig.session.misses().unwrap();
    assert_eq!(asked(&socket), [], "nobody asks again");
    // It is granted after all.
    rig.tell(&[update(5, 3)]);
    assert_eq!((asked_for(true), asked_for(false)), (Ok(100), Ok(100)));
}

/// The part of a ring that was refused is named as what it is.
#[test]
fn a_ring_in_pages_that_are_not_granted_fails_and_says_which() {
    let (mut rig, socket) = with_ring();
    assert_eq!(asked(&socket), [(0, 3), (1, 3), (2, 3)]);
    rig.tell(&[update(0, 3), update(1, 1)]);
    (0..2).for_each(|_| answer(&socket, 0));
    answer(&socket, 1);
    rig.session.answers().unwrap();
    assert_eq!(rig.state(1), RingState::Failed);
    rig.ready().unwrap();
    let said: Vec<_> = rig
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Failed { queue: 1, why } => Some(why.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(said, ["the guest's IOMMU grants no access to I/O address 0xffff2000, where the ring lies"]);
    let error = rig.queues[1].status().error.unwrap().to_string();
    assert_eq!(
        error,
        "ring memory: 1 bytes at I/O address 0xffff2000 are not granted by the guest's IOMMU, or not for this use"
    );
}

/// Linux takes the pages of a ring one by one where an IOMMU maps it, and the switch has each part in one piece. The message is what a person has.
#[test]
fn a_ring_whose_pages_lie_apart_says_how_long_it_may_be() {
    let (mut rig, socket) = translating();
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| {
        front.set_size(1, 512).unwrap();
        front.set_addr(1, IOVA, IOVA + 0x2000, IOVA + 0x3000).unwrap();
        front.set_kick(1, Some(kick.as_fd())).unwrap();
        front.enable(1, true).unwrap();
    });
    assert_eq!(asked(&socket).len(), 5, "8192, 1030 and 4102 bytes");
    let all = [0, 1, 2, 3, 4].map(|page| update(page, 3));
    let apart = |page: u64, at: u64| IotlbMessage { user_addr: USER + at * 4096, ..update(page, 3) };
    let said = |rig: &mut Rig| {
        rig.ready().unwrap();
        let failed = rig.events.iter().rev().find_map(|event| match event {
            Event::Failed { queue: 1, why } => Some(why.clone()),
            _ => None,
        });
        failed.unwrap_or_default()
    };
    // The second page of its descriptors, then that of what was used, lies elsewhere.
    for (page, at) in [(1, 8), (4, 9)] {
        rig.tell(&all);
        assert_eq!(rig.state(1), RingState::Running, "pages that lie together");
        rig.tell(&[invalidate(IOVA, 5 * 4096)]);
        rig.tell(&all.map(|message| if message == update(page, 3) { apart(page, at) } else { message }));
        let error = said(&mut rig);
        let address = format!("(512 entries, at {:#x})", IOVA + page * 4096);
        assert!(error.contains("do not lie together") && error.contains(&address), "{error}");
        assert!(error.contains("rx_queue_size=256"), "{error}");
        assert_eq!(rig.state(1), RingState::Failed);
        rig.events.clear();
        rig.tell(&[invalidate(IOVA, 5 * 4096)]);
        rig.drive(|front, _| {
            front.stop(1).unwrap();
            front.set_kick(1, Some(kick.as_fd())).unwrap();
        });
    }
    // One that is short enough runs.
    rig.tell(&[0, 1, 2, 3, 4].map(|page| apart(page, 10 - page)));
    rig.drive(|front, _| {
        front.stop(1).unwrap();
        front.set_size(1, 256).unwrap();
        front.set_addr(1, IOVA, IOVA + 0x1000, IOVA + 0x2000).unwrap();
        front.set_kick(1, Some(kick.as_fd())).unwrap();
    });
    assert_eq!(rig.state(1), RingState::Running);
}

/// QEMU repeats the features for each pair of rings, and says LOG_ALL while they run.
#[test]
fn a_front_end_that_answers_no_more_is_heard_when_it_takes_pages_back() {
    let (mut rig, socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3), update(5, 1)]);
    rig.show(0, IOVA + 0x5000, 100, 0);
    drop(socket);
    rig.session.answers().unwrap();
    let features = rig.session.features();
    rig.drive(|front, _| front.set_features(features).unwrap());
    assert_eq!((rig.session.translates(), rig.state(1), rig.chains()), (true, RingState::Running, Ok((1, false))));
    rig.tell(&[invalidate(0, 0)]);
    assert_eq!(rig.chains(), Ok((0, false)), "taken back, and acknowledged");
    assert!(rig.session.memory().piece_for(IOVA + 0x5000, 100, false).is_err());
}

/// The order of the two is nobody's law. What rings run by stays.
#[test]
fn the_socket_for_questions_may_come_after_the_features() {
    let features = Features::VERSION_1 | Features::ACCESS_PLATFORM | Features::PROTOCOL_FEATURES;
    let (_ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut rig = Rig::negotiated(features);
    assert!(!rig.session.translates());
    rig.drive(|front, _| front.set_backend_requests(theirs.as_fd()).unwrap());
    assert!(rig.session.translates() && rig.session.memory().is_translated());
    let mut rig = Rig::negotiated(features);
    rig.describe(1);
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| {
        front.set_kick(1, Some(kick.as_fd())).unwrap();
        front.set_backend_requests(theirs.as_fd()).unwrap();
        front.set_features(features).unwrap();
    });
    assert_eq!((rig.session.translates(), rig.state(1)), (false, RingState::Running));
    rig.drive(|front, _| {
        front.stop(1).unwrap();
        front.set_features(features).unwrap();
    });
    assert!(rig.session.translates() && rig.session.memory().is_translated());
}

#[test]
fn features_that_the_switch_cannot_follow_change_nothing() {
    let (mut rig, _socket) = translating();
    let before = rig.session.features();
    rig.session.switch_mut().refuses_translation = true;
    rig.drive(|front, _| assert!(front.set_features(before - Features::ACCESS_PLATFORM).is_err()));
    assert_eq!((rig.session.features(), rig.session.translates()), (before, true));
    rig.tell(&[update(5, 1)]);
    assert!(
        rig.session.memory().piece_for(IOVA + 0x5000, 100, false).is_ok(),
        "the table is the one that the switch has"
    );
}

#[test]
fn what_no_guest_means_is_refused_and_changes_nothing() {
    let (mut rig, _socket) = translating();
    let good = update(0, 3);
    let bad = [
        IotlbMessage { size: 0, ..good },
        IotlbMessage { size: 1, ..good },
        IotlbMessage { iova: IOVA + 1, ..good },
        IotlbMessage { iova: 1 << 48, ..good },
        IotlbMessage { iova: u64::MAX - 4095, size: 8192, ..good },
        IotlbMessage { user_addr: USER - 4096, ..good },
        IotlbMessage { user_addr: USER + SIZE, ..good },
        IotlbMessage { user_addr: USER + SIZE - 4096, size: 8192, ..good },
        IotlbMessage { user_addr: u64::MAX - 4095, ..good },
        IotlbMessage { user_addr: USER + 8, ..good },
        IotlbMessage { kind: iotlb::MISS, ..good },
        IotlbMessage { kind: 77, ..good },
    ];
    rig.drive(|front, _| {
        for message in bad {
            assert!(front.iotlb(message).is_err(), "{message:?}");
        }
        for kind in [iotlb::BATCH_BEGIN, iotlb::UPDATE, iotlb::BATCH_END] {
            front.iotlb(IotlbMessage { kind, ..good }).unwrap();
        }
    });
    let memory = rig.session.memory().clone();
    assert!(memory.piece(IOVA, 1).is_ok());
    assert!(
        memory.piece(GUEST, 1).is_err_and(|error| error.asked == Some(true)),
        "the guest's addresses mean nothing by themselves"
    );
    assert!(memory.piece(1 << 48, 1).is_err_and(|error| error.asked != Some(true)));
    rig.session.misses().unwrap();
    assert!(memory.piece(GUEST, 1).is_err());
}

#[test]
fn memory_that_goes_takes_its_translations_along() {
    let (mut rig, socket) = with_ring();
    rig.tell(&[update(0, 3), update(1, 3), update(2, 3)]);
    asked(&socket);
    let other = memfd(SIZE);
    rig.drive(|front, _| {
        let moved = RegionSpec { user_addr: USER + (1 << 30), ..region() };
        front.set_mem_table(&[(moved, other.as_fd())]).unwrap();
    });
    assert!(rig.session.memory().piece(IOVA, 1).is_err_and(|error| error.asked == Some(true)));
    assert!(!asked(&socket).is_empty(), "the ring's pages");
}

#[test]
fn without_somebody_to_ask_addresses_are_the_guest_s() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::ACCESS_PLATFORM | Features::PROTOCOL_FEATURES);
    rig.describe(1);
    let kick = EventFd::new().unwrap();
    rig.drive(|front, _| front.set_kick(1, Some(kick.as_fd())).unwrap());
    assert_eq!(rig.state(1), RingState::Running);
    assert!(rig.session.memory().piece(GUEST, 1).is_ok());
}

#[test]
fn an_answer_to_nothing_ends_the_connection() {
    let (mut rig, socket) = translating();
    answer(&socket, 0);
    assert_eq!(rig.session.answers(), Err(SessionError::BackendChannel));
}
