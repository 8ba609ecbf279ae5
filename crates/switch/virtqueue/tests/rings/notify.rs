//! Kicks and calls: whoever sleeps while there is work has been or will be notified; and whoever does not want to be
//! notified is not (much).

use crate::rig::*;
use lasthop_guestmem::GuestMemory;
use lasthop_sys::{Epoll, EventFd, Trigger};
use lasthop_virtqueue::Chains;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// One side of the ring as a state machine: it works, then asks to be notified, then sleeps if there was nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Working,
    Asking,
    Asleep,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The driver adds so many buffers, unless the ring is full, and kicks if it should.
    Send(u32),
    /// The device goes on from where it is, taking up to so many.
    Device(usize),
    /// The driver's other half goes on: takes what is used.
    Collect,
}

const STEPS: [Step; 5] = [Step::Send(1), Step::Send(3), Step::Device(2), Step::Device(64), Step::Collect];

/// Plays one schedule and says after each step whether somebody sleeps who should not.
fn play(memory: &Arc<GuestMemory>, kind: Kind, warm_up: u32, schedule: &[Step]) {
    let mut rig = Rig::in_memory(kind, memory.clone());
    // Move on in the ring, so that schedules meet its end.
    for token in 0..warm_up {
        rig.driver.add(&[(area(0), 1)], &[], token).unwrap();
        rig.driver.publish();
        rig.device().serve().unwrap();
        rig.driver.poll_used().unwrap().unwrap();
    }
    let (mut device, mut driver) = (Side::Working, Side::Working);
    let (mut waiting, mut used) = (0, 0);
    for step in schedule {
        match *step {
            Step::Send(n) => {
                let before = waiting;
                for token in 0..n {
                    waiting += u32::from(rig.driver.add(&[(area(0), 1)], &[], token).is_ok());
                }
                let kick = rig.driver.publish();
                assert!(!kick || waiting > before, "kicked for nothing");
                if kick && device == Side::Asleep {
                    device = Side::Working;
                }
            }
            Step::Device(most) => match device {
                Side::Working => {
                    let memory = rig.memory.clone();
                    let mut ring = rig.device();
                    ring.ring().disable_kicks();
                    let mut chains = Box::new(Chains::default());
                    ring.ring().pop(&memory, &mut chains, most).unwrap();
                    for chain in &chains.list {
                        ring.ring().stage_used(chain, 0);
                    }
                    let call = ring.ring().publish();
                    let n = chains.list.len() as u32;
                    assert!(!call || n > 0, "interrupted for nothing");
                    if call && driver == Side::Asleep {
                        driver = Side::Working;
                    }
                    waiting -= n;
                    used += n;
                    if n == 0 {
                        device = Side::Asking;
                    }
                }
                Side::Asking => {
                    let more = rig.device().ring().enable_kicks(0).unwrap();
                    assert_eq!(more, waiting > 0);
                    device = if more { Side::Working } else { Side::Asleep };
                }
                Side::Asleep => {}
            },
            Step::Collect => match driver {
                Side::Working => {
                    rig.driver.disable_calls();
                    let mut n = 0;
                    while rig.driver.poll_used().unwrap().is_some() {
                        n += 1;
                    }
                    assert_eq!(n, used);
                    used = 0;
                    driver = if n == 0 { Side::Asking } else { Side::Working };
                }
                Side::Asking => {
                    let more = rig.driver.enable_calls();
                    assert_eq!(more, used > 0);
                    driver = if more { Side::Working } else { Side::Asleep };
                }
                Side::Asleep => {}
            },
        }
        assert!(device != Side::Asleep || waiting == 0, "{kind:?} {warm_up} {schedule:?}: the device sleeps");
        assert!(driver != Side::Asleep || used == 0, "{kind:?} {warm_up} {schedule:?}: the driver sleeps");
    }
}

/// Every order in which the calls of the two sides can follow each other, from every place in a small ring.
#[test]
fn nobody_sleeps_while_there_is_work() {
    const LENGTH: u32 = 6;
    let memory = two_regions();
    for kind in [(false, false, 4), (false, true, 4), (true, false, 4), (true, true, 4), (true, true, 5)] {
        let kind = Kind { packed: kind.0, event_idx: kind.1, size: kind.2, in_order: false, indirect: false };
        let choices = STEPS.len() as u32;
        // Both sides asleep is where the interesting schedules begin.
        let prefix = [Step::Device(2), Step::Device(2), Step::Collect, Step::Collect];
        for number in 0..choices.pow(LENGTH) {
            let mut rest = number;
            let mut schedule = prefix.to_vec();
            for _ in 0..LENGTH {
                schedule.push(STEPS[(rest % choices) as usize]);
                rest /= choices;
            }
            play(&memory, kind, number % (2 * u32::from(kind.size) + 1), &schedule);
        }
    }
}

/// Where 16-bit event indices wrap, the same holds.
#[test]
fn nobody_sleeps_where_indices_wrap() {
    let kind = Kind { size: 4, packed: false, event_idx: true, in_order: false, indirect: false };
    for warm_up in [0x7ffd, 0x7fff, 0xfffd, 0xfffe, 0xffff] {
        let mut schedule = Vec::new();
        for _ in 0..4 {
            schedule.extend([Step::Device(2), Step::Device(64), Step::Device(64), Step::Collect, Step::Collect]);
            schedule.extend([Step::Send(1), Step::Collect, Step::Device(64), Step::Send(3), Step::Collect]);
        }
        play(&two_regions(), kind, warm_up, &schedule);
    }
}

/// With notifications off, thousands of buffers cause a handful of them.
#[test]
fn whoever_looks_by_himself_is_left_alone() {
    for kind in every_kind(64) {
        let mut rig = Rig::new(kind);
        rig.device().ring().disable_kicks();
        rig.driver.disable_calls();
        let (mut kicks, mut calls) = (0, 0);
        for token in 0..2000 {
            rig.driver.add(&[(area(0), 1)], &[], token).unwrap();
            kicks += u32::from(rig.driver.publish());
            let memory = rig.memory.clone();
            let mut device = rig.device();
            let mut chains = Box::new(Chains::default());
            device.ring().pop(&memory, &mut chains, 64).unwrap();
            device.ring().stage_used(&chains.list[0], 0);
            calls += u32::from(device.ring().publish());
            drop(device);
            rig.driver.poll_used().unwrap().unwrap();
        }
        // The event index's first value is 0, which the very first buffer passes.
        assert!(kicks <= 1 && calls <= 1, "{kind:?}: {kicks} kicks, {calls} calls");
    }
}

/// Two threads, each asleep whenever it has nothing to do: a lost wake-up leaves both asleep. The processor may
/// reorder what the schedules above do not.
#[test]
fn two_threads_never_wait_for_each_other() {
    const MESSAGES: u64 = 20_000;
    for kind in every_kind(8).filter(|k| !k.indirect) {
        let mut rig = Rig::new(kind);
        let (kick, call) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let served = AtomicU64::new(0);
        let Rig { driver, queue, memory, .. } = &mut rig;
        let memory = &*memory;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let epoll = watch(&kick);
                let mut chains = Box::new(Chains::default());
                while served.load(Ordering::Relaxed) < MESSAGES {
                    let mut guard = queue.lock();
                    let ring = &mut guard.started().unwrap().ring;
                    ring.disable_kicks();
                    *chains = Chains::default();
                    ring.pop(memory, &mut chains, 3).unwrap();
                    for chain in &chains.list {
                        ring.stage_used(chain, 0);
                    }
                    if ring.publish() {
                        call.signal();
                    }
                    served.fetch_add(chains.list.len() as u64, Ordering::Relaxed);
                    if chains.list.is_empty() && !ring.enable_kicks(0).unwrap() {
                        wait(&epoll, &kick);
                    }
                }
            });
            let epoll = watch(&call);
            let (mut sent, mut back) = (0, 0);
            while back < MESSAGES {
                while sent < MESSAGES && driver.add(&[(area(0), 1)], &[], sent as u32).is_ok() {
                    sent += 1;
                    if sent % 3 == 0 && driver.publish() {
                        kick.signal();
                    }
                }
                if driver.publish() {
                    kick.signal();
                }
                driver.disable_calls();
                let before = back;
                while let Some((token, _)) = driver.poll_used().unwrap() {
                    assert_eq!(u64::from(token), back);
                    back += 1;
                }
                if back == before && !driver.enable_calls() {
                    wait(&epoll, &call);
                }
            }
        });
    }
}

/// One side publishes while the other asks to be notified, at the same instant as nearly as two threads can: either
/// the first sees the wish or the second sees the work. This is what the fences are for.
#[test]
fn publishing_and_asking_at_once() {
    const ROUNDS: u32 = 30_000;
    for kind in every_kind(4).filter(|k| !k.indirect && !k.in_order) {
        let Rig { mut driver, queue, memory, .. } = Rig::new(kind);
        // Each thread says where it is and waits for the other there; and what the device found out in the last race.
        let (ours, theirs, found) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let meet = |mine: &AtomicU64, other: &AtomicU64, at: u64| {
            mine.store(at, Ordering::Release);
            let mut spins = 0u32;
            while other.load(Ordering::Acquire) < at {
                spins += 1;
                if spins.is_multiple_of(1000) {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = queue.lock();
                let ring = &mut guard.started().unwrap().ring;
                let mut chains = Box::new(Chains::default());
                let mut at = 0;
                for _ in 0..ROUNDS {
                    ring.disable_kicks();
                    meet(&theirs, &ours, at + 1);
                    found.store(ring.enable_kicks(0).unwrap(), Ordering::Relaxed);
                    meet(&theirs, &ours, at + 2);
                    *chains = Chains::default();
                    ring.pop(&memory, &mut chains, 4).unwrap();
                    ring.stage_used(&chains.list[0], 0);
                    meet(&theirs, &ours, at + 3);
                    found.store(ring.publish(), Ordering::Relaxed);
                    meet(&theirs, &ours, at + 4);
                    at += 4;
                }
            });
            let mut at = 0;
            let mut lost = (0, 0);
            for round in 0..ROUNDS {
                driver.disable_calls();
                driver.add(&[(area(0), 1)], &[], round).unwrap();
                meet(&ours, &theirs, at + 1);
                let kicked = driver.publish();
                meet(&ours, &theirs, at + 2);
                lost.0 += u32::from(!kicked && !found.load(Ordering::Relaxed));
                meet(&ours, &theirs, at + 3);
                let more = driver.enable_calls();
                meet(&ours, &theirs, at + 4);
                lost.1 += u32::from(!more && !found.load(Ordering::Relaxed));
                assert_eq!(driver.poll_used(), Ok(Some((round, 0))));
                at += 4;
            }
            assert_eq!(lost, (0, 0), "{kind:?}: kicks and calls that never came");
        });
    }
}

/// Sleeps until the event comes. The limit is for a failing test to end at all.
fn wait(epoll: &Epoll, event: &EventFd) {
    let mut ready = Vec::new();
    epoll.wait(&mut ready, Some(Duration::from_secs(30))).unwrap();
    assert!(!ready.is_empty(), "asleep, and nobody wakes me");
    event.drain();
}

fn watch(event: &EventFd) -> Epoll {
    let epoll = Epoll::new().unwrap();
    epoll.add(event, 0, Trigger::Level).unwrap();
    epoll
}
