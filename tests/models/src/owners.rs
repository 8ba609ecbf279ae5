//! A ring that its port's thread offers to a helper, with a guest that kicks only when it is asked to.
//!
//! The ring is the model's own (`rings` has the real one): an index that the guest moves, a wish for kicks, and the queue's lock.

use crate::owner::Owner;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::{check, spawn};
use std::sync::Arc;

const PACKETS: usize = 2;
const HELPER: usize = 0;

#[derive(Default)]
struct Ring {
    owner: Owner,
    /// The guest's index.
    available: AtomicUsize,
    wants_kicks: AtomicBool,
    /// The guest has kicked; whoever finds it so sees what came before.
    kicked: AtomicBool,
    /// Packets taken, under the queue's lock.
    taken: Mutex<usize>,
    letter: AtomicBool,
}

impl Ring {
    /// The guest's driver.
    fn send(&self) {
        for n in 1..=PACKETS {
            self.available.store(n, Ordering::Release);
            loom::sync::atomic::fence(Ordering::SeqCst);
            if self.wants_kicks.load(Ordering::Relaxed) {
                self.kicked.swap(true, Ordering::AcqRel);
            }
        }
    }

    /// Forwarder::disable_notifications.
    fn disable_notifications(&self, still: impl FnOnce() -> bool) {
        let _locked = self.taken.lock().expect("nobody panics with it");
        if still() {
            self.wants_kicks.store(false, Ordering::Relaxed);
        }
    }

    /// OwnedRing::carry_burst: how many packets were taken.
    fn carry_burst(&self) -> usize {
        let Ok(mut taken) = self.taken.try_lock() else { return 0 };
        let available = self.available.load(Ordering::Acquire);
        available - std::mem::replace(&mut *taken, available)
    }

    /// Forwarder::rearm_notifications.
    fn rearm_notifications(&self, keep: impl FnOnce() -> bool) -> bool {
        let taken = self.taken.lock().expect("nobody panics with it");
        self.wants_kicks.store(true, Ordering::Relaxed);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let more = self.available.load(Ordering::Acquire) != *taken && keep();
        if more {
            self.wants_kicks.store(false, Ordering::Relaxed);
        }
        more
    }

    /// A helper's thread (helper.rs, `claim` and `poll_rings`), which loses its core for good after some rounds, wherever it is.
    fn help(&self, rounds: usize) {
        if !self.letter.swap(false, Ordering::AcqRel)
            || !self.owner.claim(HELPER, |still| self.disable_notifications(still))
        {
            return;
        }
        for _ in 0..rounds {
            if self.owner.helper() != Some(HELPER) {
                return;
            }
            if self.carry_burst() == 0 && !self.owner.give_back_or_keep(HELPER, |keep| self.rearm_notifications(keep)) {
                return;
            }
        }
    }
}

/// When a port's thread looks at the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Now,
    /// A timer.
    At,
    Woken,
}

/// A port's thread (port.rs, `look_after`).
struct Port<'r> {
    ring: &'r Ring,
    next: Next,
    offers: usize,
}

impl Port<'_> {
    /// Looks once, if it is time. `lost`: the helper has not been round for long. False if it sleeps until it is kicked.
    fn look(&mut self, lost: bool) -> bool {
        let Self { ring, .. } = *self;
        if ring.kicked.swap(false, Ordering::AcqRel) {
            self.next = Next::Now;
        }
        if self.next == Next::Woken {
            return false;
        }
        if let Some(helper) = ring.owner.reclaim() {
            if !lost {
                self.next = Next::At;
                return true;
            }
            ring.owner.take_away(helper);
        }
        ring.disable_notifications(|| true);
        ring.carry_burst();
        if ring.owner.is_offered() {
            ring.owner.withdraw();
        }
        if self.offers > 0 {
            self.offers -= 1;
            if ring.owner.offer(HELPER) {
                ring.letter.swap(true, Ordering::AcqRel);
            }
            self.next = Next::At;
            return true;
        }
        self.next = match ring.rearm_notifications(|| true) {
            true => Next::Now,
            false if !ring.owner.is_own() => Next::At,
            false => Next::Woken,
        };
        true
    }
}

/// All packets are taken in the end, though the helper may lose its core at any time and nobody looks without a reason: a
/// kick, or a timer. `lost`: the port's thread takes the ring away at once, though the helper is alive.
pub fn no_packet_is_left(lost: bool, rounds: usize, offers: usize, preemptions: usize) {
    check(preemptions, move || {
        let ring = Arc::new(Ring::default());
        let (guest, helping) = (ring.clone(), ring.clone());
        let guest = spawn(move || guest.send());
        let helper = spawn(move || helping.help(rounds));
        let mut port = Port { ring: &ring, next: Next::Now, offers };
        for _ in 0..2 + offers {
            port.look(lost);
        }
        guest.join().expect("it ends");
        helper.join().expect("it ends");
        while port.look(true) {}
        assert_eq!(*ring.taken.lock().expect("nobody panics with it"), PACKETS, "a packet must not be left behind");
    });
}

/// Two helpers that have been told of a ring one after the other, and its port's thread lets go of it: at most one had it at a
/// time, and nobody has it afterwards.
pub fn one_owner_at_a_time() {
    check(3, || {
        let owner = Arc::new(Owner::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let helpers = [0, 1].map(|n| {
            let (owner, inside) = (owner.clone(), inside.clone());
            spawn(move || {
                if owner.claim(n, |_| ()) {
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two must not keep a ring");
                    inside.fetch_sub(1, Ordering::Relaxed);
                    owner.give_back_or_keep(n, |keep| keep());
                }
            })
        });
        owner.offer(0);
        owner.withdraw();
        owner.offer(1);
        owner.release();
        helpers.into_iter().for_each(|helper| helper.join().expect("it ends"));
        assert_eq!(owner.helper(), None, "a ring that was let go of must not be kept");
        assert!(!owner.claim(0, |_| ()), "a ring that was let go of must not be taken up");
    });
}
