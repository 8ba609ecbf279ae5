//! Whatever a front-end sends, in whatever order, cut wherever and with whatever descriptors: no panic, and at the end
//! every descriptor and every mapping is gone (hostile cases F1 to F6 and F9). Alone in its process, because it counts
//! the process's descriptors and mappings.

use lasthop_connection::Event;
use lasthop_sys::EventFd;
use lasthop_vhostuser::message::{NO_FD, Request};
use lasthop_vhostuser::{Features, Frontend, ProtocolFeatures, Session};
use lasthop_virtqueue::Queue;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const USER: u64 = 0x7f00_0000_0000;
const GUEST: u64 = 0x10_0000;
const SIZE: u64 = 0x10_0000;

/// One thing a front-end does.
#[derive(Clone, Debug)]
struct Step {
    request: u32,
    flags: u32,
    body: Vec<u8>,
    /// Which of the descriptors at hand go with it.
    fds: Vec<u8>,
    /// Only so many bytes of the message are sent.
    cut: Option<usize>,
}

/// Words that mean something to somebody.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..40u64,
        1 => Just(256u64),
        1 => Just(NO_FD),
        1 => (0..32u64).prop_map(|i| i | NO_FD),
        1 => (0..32u64, 0..512u64).prop_map(|(i, n)| i | n << 32),
        1 => Just(Features::OFFERED.bits()),
        1 => Just(ProtocolFeatures::OFFERED.bits()),
        2 => (0..SIZE / 4096).prop_map(|p| USER + p * 4096),
        1 => Just(USER),
        1 => Just(GUEST),
        1 => Just(SIZE),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let words = |n| vec(word(), n).prop_map(|w| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
    prop_oneof![
        2 => Just(vec![]),
        6 => words(1..2),
        3 => words(5..6),
        1 => words(0..35),
        1 => vec(any::<u8>(), 0..80),
    ]
}

fn step(request: Request, words: &[u64], fds: &[u8]) -> Step {
    let body = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    Step { request: request as u32, flags: 1, body, fds: fds.to_vec(), cut: None }
}

/// What brings one ring up.
fn prologue() -> Vec<Step> {
    let features = Features::VERSION_1 | Features::PROTOCOL_FEATURES;
    vec![
        step(Request::SetProtocolFeatures, &[ProtocolFeatures::OFFERED.bits()], &[]),
        step(Request::SetFeatures, &[features.bits()], &[]),
        step(Request::SetMemTable, &[1, GUEST, SIZE, USER, 0], &[0]),
        step(Request::SetVringNum, &[256 << 32], &[]),
        step(Request::SetVringAddr, &[0, USER, USER + 0x3000, USER + 0x2000, 0], &[]),
        step(Request::SetVringKick, &[0], &[1]),
    ]
}

/// Messages that have the right form, so that the random ones around them meet some state.
fn sensible() -> impl Strategy<Value = Step> {
    let ring = 0..3u64;
    prop_oneof![
        Just(step(Request::GetFeatures, &[], &[])),
        any::<bool>().prop_map(move |packed| {
            let packed = if packed { Features::RING_PACKED } else { Features::empty() };
            step(Request::SetFeatures, &[(Features::VERSION_1 | Features::PROTOCOL_FEATURES | packed).bits()], &[])
        }),
        Just(step(Request::SetProtocolFeatures, &[ProtocolFeatures::OFFERED.bits()], &[])),
        Just(step(Request::SetMemTable, &[1, GUEST, SIZE, USER, 0], &[0])),
        Just(step(Request::SetMemTable, &[2, GUEST, SIZE, USER, 0, 0, 4096, 0, 0], &[0, 0])),
        (1..4u64).prop_map(move |i| step(Request::AddMemReg, &[0, i << 32, 4096, i << 44, 0], &[0])),
        (1..4u64).prop_map(move |i| step(Request::RemMemReg, &[0, i << 32, 4096, i << 44, 0], &[])),
        ring.clone().prop_map(move |i| step(Request::SetVringNum, &[i | 256 << 32], &[])),
        ring.clone().prop_map(move |i| step(Request::SetVringBase, &[i | 0x8000 << 32], &[])),
        ring.clone()
            .prop_map(move |i| { step(Request::SetVringAddr, &[i, USER, USER + 0x3000, USER + 0x2000, 0], &[]) }),
        ring.clone().prop_map(move |i| step(Request::SetVringKick, &[i], &[1])),
        ring.clone().prop_map(move |i| step(Request::SetVringKick, &[i | NO_FD], &[])),
        ring.clone().prop_map(move |i| step(Request::SetVringCall, &[i], &[1])),
        ring.clone().prop_map(move |i| step(Request::SetVringErr, &[i], &[2])),
        ring.clone().prop_map(move |i| step(Request::SetVringEnable, &[i | 1 << 32], &[])),
        ring.prop_map(move |i| step(Request::GetVringBase, &[i], &[])),
        (1..40u64).prop_map(move |q| step(Request::GetInflightFd, &[0, 0, q | 256 << 16], &[])),
        (0..4u64).prop_map(move |q| step(Request::SetInflightFd, &[SIZE, 0, q | 256 << 16], &[0])),
        Just(step(Request::ResetDevice, &[], &[])),
        Just(step(Request::SetStatus, &[0], &[])),
    ]
}

fn wild() -> impl Strategy<Value = Step> {
    let request = prop_oneof![8 => 0..46u32, 1 => any::<u32>()];
    let flags = prop_oneof![8 => Just(9u32), 8 => Just(1u32), 1 => any::<u32>()];
    let fds = prop_oneof![4 => Just(vec![]), 4 => vec(0..4u8, 1), 1 => vec(0..4u8, 0..12)];
    let cut = prop_oneof![9 => Just(None), 1 => (0..40usize).prop_map(Some)];
    (request, flags, body(), fds, cut).prop_map(|(request, flags, body, fds, cut)| Step {
        request,
        flags,
        body,
        fds,
        cut,
    })
}

/// A sensible message with one thing changed.
fn mutated() -> impl Strategy<Value = Step> {
    (sensible(), any::<prop::sample::Index>(), any::<u8>(), 0..5u8).prop_map(|(mut step, at, byte, what)| {
        match what {
            0 if !step.body.is_empty() => {
                let at = at.index(step.body.len());
                step.body[at] = byte;
            }
            1 => step.body.push(byte),
            2 => drop(step.body.pop()),
            3 => step.fds.push(byte % 4),
            _ => drop(step.fds.pop()),
        }
        step
    })
}

fn count(path: &str) -> usize {
    std::fs::read_dir(path).map_or(0, Iterator::count)
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|l| l.contains("memfd:")).count()
}

/// Plays the steps against a fresh session, to the first error; true if a ring ever ran.
fn play(steps: &[Step], at_hand: &[OwnedFd]) -> bool {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let queues: Arc<[_]> = (0..32).map(|i| Arc::new(Queue::new(i))).collect();
    let now = Instant::now();
    let (front, mut session) = (Frontend::over(a), Session::local(b, queues.clone(), now));
    let mut events = Vec::new();
    let mut ran = false;
    for step in steps {
        let mut message: Vec<u8> =
            [step.request, step.flags, step.body.len() as u32].iter().flat_map(|w| w.to_le_bytes()).collect();
        message.extend_from_slice(&step.body);
        message.truncate(step.cut.unwrap_or(message.len()).max(1));
        let fds: Vec<BorrowedFd<'_>> = step.fds.iter().map(|i| at_hand[usize::from(*i)].as_fd()).collect();
        front.send_raw(&message, &fds).unwrap();
        if session.serve(now, &mut events).is_err() {
            return ran;
        }
        for (view, queue) in session.rings().zip(queues.iter()) {
            let running = view.state == lasthop_vhostuser::RingState::Running;
            assert_eq!(running, queue.status().started, "the session and the queue agree");
            ran |= running;
        }
    }
    // Half a message at the end is noticed in time; silence after whole ones is allowed.
    assert_eq!(session.deadline().is_some(), session.expire(now + Duration::from_secs(60)).is_err());
    assert!(events.iter().filter(|e| matches!(e, Event::Wrong { .. })).count() <= 32);
    ran
}

#[test]
fn nothing_a_front_end_sends_leaves_anything_behind() {
    lasthop_guestmem::install_fault_handler();
    // Keeps descriptors of its own.
    lasthop_sys::prepare_peer_events(lasthop_sys::SIGNALLING_THREADS).unwrap();
    let ram = memfd_create("leaks", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&ram, SIZE).unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let event: OwnedFd = EventFd::new().unwrap().into();
    let at_hand = [ram, event, pipe, std::fs::File::open("/dev/null").unwrap().into()];
    let (descriptors, mapped) = (count("/proc/self/fd"), mappings());
    let ran = std::cell::Cell::new(0);
    let rest = vec(prop_oneof![6 => sensible(), 1 => mutated(), 1 => wild()], 1..40);
    let steps = (any::<bool>(), rest).prop_map(|(up, rest)| if up { [prologue(), rest].concat() } else { rest });
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(2000)
    });
    runner
        .run(&steps, |steps| {
            ran.set(ran.get() + usize::from(play(&steps, &at_hand)));
            // What came from outside is let go of by a thread of its own.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let is_clean = || count("/proc/self/fd") == descriptors && mappings() == mapped;
            while !is_clean() && std::time::Instant::now() < end {
                std::thread::yield_now();
            }
            prop_assert_eq!(count("/proc/self/fd"), descriptors);
            prop_assert_eq!(mappings(), mapped);
            Ok(())
        })
        .unwrap();
    assert!(ran.get() >= 100, "only {} sequences brought a ring up", ran.get());
}
