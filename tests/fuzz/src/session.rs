//! A vhost-user session against a front-end that sends anything: messages that make sense, messages that do not, pieces
//! of them, descriptors that belong to them or do not, files that are cut under a mapping. The session and its queues
//! agree, replies answer what was asked, and when the connection ends nothing is left: no descriptor, no mapping, no
//! started queue. Descriptors may block whoever writes to them or reads them. Another port stands by with its rings started, and
//! finds everything of its own as it was after each operation.
//!
//! Input: what is set up before, then one operation after another.

use crate::Input;
use lasthop_connection::Event;
use lasthop_guestmem::GuestMemory;
use lasthop_sys::EventFd;
use lasthop_vhostuser::message::{HEADER_LEN, NO_FD, Request, flag};
use lasthop_vhostuser::{Features, Frontend, Local, ProtocolFeatures, RingState, Session};
use lasthop_virtqueue::{Chains, Queue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;
use rustix::io::{Errno, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const USER: u64 = 0x7f00_0000_0000;
const GUEST: u64 = 0x10_0000;
const SIZE: u64 = 0x1_0000;
const RINGS: u16 = 4;
/// Operations in one input.
const MAX_OPS: usize = 80;

pub(crate) fn run(data: &[u8]) {
    lasthop_guestmem::install_fault_handler();
    // It keeps a descriptor.
    lasthop_sys::prepare_peer_events(lasthop_sys::SIGNALLING_THREADS).expect("AIO");
    let before = descriptors();
    play(&mut Input::new(data));
    // What came from outside is closed aside.
    let end = Instant::now() + std::time::Duration::from_secs(10);
    while descriptors() != before && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(descriptors(), before, "descriptors left behind");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// What a front-end has at hand, and the other ends of its pipe and socket: what is written into them may fill them up. The last two
/// are eventfds that block: one is full, so that a write waits, and one empty, so that a read does.
struct Files([OwnedFd; 6], [OwnedFd; 2], [OwnedFd; 2]);

/// How many a front-end chooses from.
const FILES: usize = 10;

impl Files {
    fn new() -> Self {
        let memfd = || lasthop_sys::memfd("fuzz-session", SIZE).expect("a memfd");
        let (other_end, pipe) = rustix::pipe::pipe().expect("a pipe");
        let (socket, peer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
        let event = EventFd::new().expect("an eventfd").into();
        let null = std::fs::File::open("/dev/null").expect("/dev/null").into();
        let full = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("room for that much");
        let empty = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        Self([memfd(), event, memfd(), pipe, socket, null], [other_end, peer], [full, empty])
    }

    fn get(&self, n: u8) -> BorrowedFd<'_> {
        let Self(files, others, blocking) = self;
        files.iter().chain(others).chain(blocking).nth(usize::from(n) % FILES).expect("ten of them").as_fd()
    }
}

struct Rig {
    front: Frontend,
    session: Session<Local>,
    queues: Arc<[Arc<Queue>]>,
    files: Files,
    now: Instant,
    events: Vec<Event>,
    /// Every set of memory the session ever had.
    memories: Vec<Weak<GuestMemory>>,
    /// Bytes sent.
    sent: usize,
    replies: usize,
    beside: Option<Beside>,
}

/// Another port, whose front-end has set its rings up and says nothing more.
struct Beside {
    rig: Box<Rig>,
    before: String,
}

impl Beside {
    fn new() -> Self {
        let mut rig = Box::new(Rig::new(None));
        prologue(&mut rig, 0x3f).expect("all is as it should be");
        assert!(rig.queues[0].status().started, "it has a ring");
        pwrite(rig.files.get(0), &[0x5a; 64], 0x8000).expect("its memory has room");
        rig.events.clear();
        let before = Self::look(&rig);
        Self { rig, before }
    }

    /// All that one can see of it.
    fn look(rig: &Rig) -> String {
        let memory = rig.session.memory();
        let mut bytes = [0; 64];
        memory.slice(GUEST + 0x8000, 64).expect("it is mapped").read(0, &mut bytes);
        let regions: Vec<_> = memory.regions().collect();
        let queues: Vec<_> = rig.queues.iter().map(|queue| queue.status()).collect();
        let rings: Vec<_> = rig.session.rings().collect();
        format!("{bytes:?} {regions:?} {queues:?} {rings:?} {} {:?}", memory.faulted(), rig.session.deadline())
    }

    /// It is as it was, and nobody has said anything to its front-end.
    fn check(&mut self) {
        assert_eq!(Self::look(&self.rig), self.before, "another port's doing is seen here");
        let replies = self.rig.replies;
        assert!(self.rig.ready().is_ok(), "its connection has ended");
        assert_eq!((self.rig.replies, self.rig.events.len()), (replies, 0), "its front-end hears of another port");
    }
}

fn play(input: &mut Input<'_>) {
    let mut rig = Rig::new(Some(Beside::new()));
    let queues = rig.queues.clone();
    let mut over = prologue(&mut rig, input.u8()).is_err();
    for _ in 0..MAX_OPS {
        if input.is_empty() || over {
            break;
        }
        over = step(&mut rig, input).is_err();
        rig.beside.iter_mut().for_each(Beside::check);
    }
    let memories = rig.end(over);
    for queue in queues.iter() {
        let status = queue.status();
        assert!(!status.started && !status.enabled && !queue.is_ready(), "{status:?} after the end");
    }
    // It is let go of aside, as what came from outside is.
    let mapped = || memories.iter().any(|memory| memory.strong_count() > 0);
    let end = Instant::now() + Duration::from_secs(10);
    while mapped() && Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(!mapped(), "memory still mapped");
}

/// The connection is over.
#[derive(Debug)]
struct Over;

impl Rig {
    fn new(beside: Option<Beside>) -> Self {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair");
        let queues: Arc<[_]> = (0..RINGS).map(|i| Arc::new(Queue::new(i))).collect();
        let now = Instant::now();
        Self {
            front: Frontend::over(a),
            session: Session::local(b, queues.clone(), now),
            queues,
            files: Files::new(),
            now,
            events: Vec::new(),
            memories: Vec::new(),
            sent: 0,
            replies: 0,
            beside,
        }
    }

    /// Sends bytes of a message and lets the session have them.
    fn send(&mut self, bytes: &[u8], fds: &[u8]) -> Result<(), Over> {
        let fds: Vec<_> = fds.iter().map(|n| self.files.get(*n)).collect();
        self.front.send_raw(bytes, &fds).expect("room in the socket");
        self.sent += bytes.len();
        self.ready()
    }

    fn message(&mut self, request: Request, flags: u32, words: &[u64], fds: &[u8]) -> Result<(), Over> {
        self.send(&message(request as u32, flags, &bytes(words)), fds)
    }

    fn ready(&mut self) -> Result<(), Over> {
        let result = self.session.serve(self.now, &mut self.events);
        let memory = Arc::downgrade(self.session.memory());
        if !self.memories.last().is_some_and(|m| m.ptr_eq(&memory)) {
            self.memories.push(memory);
        }
        for (view, queue) in self.session.rings().zip(self.queues.iter()) {
            let status = queue.status();
            assert_eq!(view.state == RingState::Running, status.started, "{view:?} {status:?}");
            assert_eq!(view.enabled, status.enabled);
            assert!(!status.started || self.session.memory().regions().next().is_some());
        }
        let refused = self.events.iter().filter(|e| matches!(e, Event::Wrong { .. })).count();
        assert!(refused <= 32, "{refused} refusals in the log");
        self.replies();
        result.map_err(|_| Over)
    }

    /// Takes the replies: whole ones, each to something that was sent.
    fn replies(&mut self) {
        let mut bytes = [0; 8192];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.front, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) if received.bytes > 0 => received,
                Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET) => return,
                Err(e) => panic!("{e}"),
            };
            let fds: Vec<OwnedFd> = control
                .drain()
                .filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None })
                .flatten()
                .collect();
            let mut rest = &bytes[..received.bytes];
            let mut with_fd = 0;
            while let Some((header, body)) = rest.split_at_checked(HEADER_LEN) {
                let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
                assert_eq!(word(4), flag::VERSION | flag::REPLY);
                with_fd += usize::from(word(0) == Request::GetInflightFd as u32 && word(8) > 8);
                rest = body.get(word(8) as usize..).expect("a whole reply");
                self.replies += 1;
            }
            assert!(rest.is_empty());
            assert!(fds.len() <= with_fd);
            assert!(self.replies * HEADER_LEN <= self.sent, "{} replies to {} bytes", self.replies, self.sent);
        }
    }

    /// Ends the connection: by an error that came before, by time, or because the front-end goes.
    fn end(mut self, over: bool) -> Vec<Weak<GuestMemory>> {
        let late = self.now + Duration::from_secs(60);
        assert_eq!(self.session.deadline().is_some(), self.session.expire(late).is_err());
        drop(self.front);
        if !over {
            while self.session.serve(late, &mut self.events).is_ok() {}
        }
        self.memories
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = [request, flags, body.len() as u32].iter().flat_map(|w| w.to_le_bytes()).collect();
    out.extend_from_slice(body);
    out
}

/// Brings things as far as the input asks.
fn prologue(rig: &mut Rig, bits: u8) -> Result<(), Over> {
    use Request as R;
    if bits & 1 != 0 {
        rig.message(R::SetProtocolFeatures, 1, &[ProtocolFeatures::OFFERED.bits()], &[])?;
    }
    if bits & 2 != 0 {
        let packed = if bits & 4 != 0 { Features::RING_PACKED } else { Features::empty() };
        let more = if bits & 8 != 0 { Features::RING_EVENT_IDX } else { Features::empty() };
        let features = Features::VERSION_1 | Features::PROTOCOL_FEATURES | packed | more;
        rig.message(R::SetFeatures, 1, &[features.bits()], &[])?;
    }
    if bits & 16 != 0 {
        rig.message(R::SetMemTable, 1, &[1, GUEST, SIZE, USER, 0], &[0])?;
    }
    if bits & 32 != 0 {
        for ring in 0..2 {
            let at = USER + ring * 0x4000;
            rig.message(R::SetVringNum, 1, &[ring | 64 << 32], &[])?;
            rig.message(R::SetVringAddr, 1, &[ring, at, at + 0x2000, at + 0x1000, 0], &[])?;
            rig.message(R::SetVringCall, 1, &[ring], &[1])?;
            rig.message(R::SetVringKick, 1, &[ring], &[1])?;
            rig.message(R::SetVringEnable, 1, &[ring | 1 << 32], &[])?;
        }
    }
    Ok(())
}

fn step(rig: &mut Rig, input: &mut Input<'_>) -> Result<(), Over> {
    match input.below(16) {
        0..=8 => {
            let (bytes, fds) = sensible(input);
            rig.send(&bytes, fds)
        }
        9 | 10 => {
            // The same, spoilt in one place, or cut.
            let (mut bytes, fds) = sensible(input);
            let mut fds = fds.to_vec();
            let (what, n) = (input.u8(), input.u8());
            match what % 5 {
                0 => {
                    let at = usize::from(what / 5) % bytes.len();
                    bytes[at] = n;
                }
                1 => bytes.truncate(1 + usize::from(n) % bytes.len()),
                2 => fds.extend((0..n % 12).map(|i| what.wrapping_add(i))),
                3 => drop(fds.pop()),
                _ => fds.iter_mut().for_each(|f| *f = n),
            }
            rig.send(&bytes, &fds)
        }
        11 => {
            let (request, flags) = (u32::from(input.u8() % 48), u32::from(input.u8()));
            let len = usize::from(input.u8());
            let body = input.bytes(len).to_vec();
            let fds: Vec<u8> = (0..input.below(4)).map(|_| input.u8()).collect();
            rig.send(&message(request, flags, &body), &fds)
        }
        12 => {
            let len = 1 + input.below(40);
            let bytes = input.bytes(len);
            if bytes.is_empty() { Ok(()) } else { rig.send(bytes, &[]) }
        }
        13 => {
            // A file is cut or grows again under the mapping.
            let file = if input.flag() { 2 } else { 0 };
            let _ = ftruncate(rig.files.get(file), u64::from(input.u8()) % 17 * 4096);
            Ok(())
        }
        14 => {
            // The guest writes to its memory, wherever its file still has some.
            let at = u64::from(input.u16());
            let len = 1 + input.below(16);
            let _ = pwrite(rig.files.get(0), input.bytes(len), at);
            Ok(())
        }
        _ => {
            // A worker looks at a queue.
            let queue = &rig.queues[input.below(RINGS.into())];
            let mut guard = queue.lock();
            let Some(started) = guard.started() else { return Ok(()) };
            let memory = started.memory.clone();
            let mut chains = Chains::default();
            let mut broken = started.ring.pop(&memory, &mut chains, 8).err();
            for chain in &chains.list {
                for piece in &*chains.pieces(chain) {
                    let mut bytes = [0; 64];
                    piece.read(0, &mut bytes);
                }
                started.ring.stage_used(chain, 0);
            }
            if started.ring.publish() {
                guard.call();
            }
            if memory.faulted() {
                broken = Some(lasthop_virtqueue::QueueError::MemoryFault);
            }
            if let Some(error) = broken {
                guard.fail(error);
            }
            drop(guard);
            rig.ready()
        }
    }
}

/// A message of the right form, so that the others meet some state.
fn sensible(input: &mut Input<'_>) -> (Vec<u8>, &'static [u8]) {
    use Request as R;
    let (kind, n) = (input.u8(), input.u8());
    let ack = if n & 0x80 != 0 { 9 } else { 1 };
    let ring = u64::from(n & 3);
    let page = USER + u64::from(n >> 2 & 15) * 4096;
    let value = u64::from(n >> 2 & 31);
    let ok = |request: R, words: &[u64], fds: &'static [u8]| (message(request as u32, ack, &bytes(words)), fds);
    let base = Features::VERSION_1 | Features::PROTOCOL_FEATURES;
    match kind % 32 {
        0 => ok(R::GetFeatures, &[], &[]),
        1 if value & 1 == 0 => ok(R::SetFeatures, &[base.bits()], &[]),
        1 => ok(R::SetFeatures, &[(base | Features::LOG_ALL).bits()], &[]),
        2 => ok(R::SetFeatures, &[(base | Features::RING_PACKED | Features::RING_EVENT_IDX).bits()], &[]),
        3 => ok(R::SetFeatures, &[(Features::OFFERED & !Features::PROTOCOL_FEATURES).bits()], &[]),
        4 => ok(R::SetProtocolFeatures, &[ProtocolFeatures::OFFERED.bits()], &[]),
        5 => ok(R::SetMemTable, &[1, GUEST, SIZE, USER, 0], &[0]),
        6 => ok(R::SetMemTable, &[2, GUEST, SIZE, USER, 0, GUEST + SIZE, SIZE, USER + SIZE, 0], &[0, 2]),
        7 => ok(R::SetMemTable, &[1, GUEST, value * 4096, USER, SIZE.wrapping_sub(value * 4096)], &[2]),
        8 => ok(R::AddMemReg, &[0, (ring + 1) << 32, SIZE - value * 2048, (ring + 1) << 44, value * 2048], &[2]),
        9 => ok(R::RemMemReg, &[0, (ring + 1) << 32, SIZE - value * 2048, (ring + 1) << 44, value * 2048], &[]),
        10 => ok(R::RemMemReg, &[0, GUEST, SIZE, USER, 0], &[]),
        11 => ok(R::SetVringNum, &[ring | 1 << (32 + value % 17)], &[]),
        12 => ok(R::SetVringNum, &[ring | value << 32], &[]),
        13 => ok(R::SetVringBase, &[ring | value << 32], &[]),
        14 => ok(R::SetVringBase, &[ring | (value | 0x8000) << 32], &[]),
        15 => ok(R::SetVringAddr, &[ring, page, page + 0x2000, page + 0x1000, 0], &[]),
        16 => ok(R::SetVringAddr, &[ring, (ring + 1) << 44, page, (ring + 1) << 44, 0], &[]),
        17 | 18 => ok(R::SetVringKick, &[ring], [&[1], &[9]][usize::from(kind > 127)]),
        19 => ok(R::SetVringKick, &[ring | NO_FD], &[]),
        20 => ok(R::SetVringCall, &[ring], [&[1], &[3], &[8], &[9]][value as usize % 4]),
        21 => ok(R::SetVringErr, &[ring], [&[4], &[5], &[8], &[9]][value as usize % 4]),
        22 | 23 => ok(R::SetVringEnable, &[ring | (value & 1) << 32], &[]),
        24 => ok(R::GetVringBase, &[ring], &[]),
        25 => ok(R::GetInflightFd, &[0, 0, (ring + 1) | ((value * 8) << 16)], &[]),
        26 => ok(R::SetInflightFd, &[SIZE, value * 8, (ring + 1) | (64 << 16)], &[2]),
        27 => ok(R::SetStatus, &[value & 15], &[]),
        28 => ok(R::ResetDevice, &[], &[]),
        29 => ok(R::NetSetMtu, &[value * 60], &[]),
        30 if value & 1 == 0 => ok(R::SetBackendReqFd, &[], &[4]),
        30 => {
            ok(R::IotlbMsg, &[page, 4096 << (value % 5), USER + value * 2048, (value & 3) | (value >> 2 & 7) << 8], &[])
        }
        31 if value & 1 == 0 => ok(R::SetLogBase, &[value * 8, ring * 8], &[2]),
        _ => ok([R::ResetOwner, R::GetQueueNum, R::GetStatus, R::GetMaxMemSlots][ring as usize], &[], &[]),
    }
}
