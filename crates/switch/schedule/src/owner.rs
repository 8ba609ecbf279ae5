//! Who owns a ring: its port's thread, or a helper. The protocol between the two, apart from what a ring is, so that a model
//! can run it in every order (`tests/models`).
//!
//! The port's thread *offers* a ring, a helper *claims* it, asks the guest not to kick, and *gives it back* with kicks on
//! when it has waited in vain. While a ring is on offer or away its port's thread looks after it at times, and takes it from a
//! helper that has lost its core. What must hold: whoever sleeps until the guest kicks is kicked; a helper that has let go
//! never again asks the guest not to kick; and a helper does not own a ring that nobody looks after.
//!
//! All of it is one word, so that each step is one step. In it a ring leaves [`OWN_THREAD`] only by its port's thread. So when
//! that thread has asked for kicks and still finds its name there, it may sleep until the next one.
//!
//! ```text
//!          offer                claim
//! OWN ───────────────▶ OFFERED ───────────▶ helper n ◀──┐ there was more, and the port's
//!  ▲ ▲ ◀─────────────── withdraw             │ │        │ thread has not noticed yet
//!  │ └─────────────────────── take_away ─────┘ └──▶ BACK ──┐
//!  └────────────────────────────────────── reclaim ────────┘      any ── release ──▶ NOBODY
//! ```

use crate::sync::{AtomicUsize, Ordering};

/// Known to a port's thread and to the helpers. Changes are AcqRel and looks Acquire: who finds itself the owner sees what the one before had
/// done with the ring. A change that fails (Relaxed) is followed by nothing that depends on what it saw. What guests are asked is ordered
/// by the queue's lock.
#[derive(Debug)]
pub(crate) struct Owner {
    /// One of the constants below, or a helper's number plus one.
    owner: AtomicUsize,
    /// Plus one: the helper that has not read yet what it was told of it.
    told: AtomicUsize,
}

const OWN_THREAD: usize = 0;
const NOBODY: usize = usize::MAX;
/// A helper has given it back, and its port's thread, which looks after it at times, has not noticed yet.
const BACK: usize = usize::MAX - 1;
/// Some helper has been told of it and may take it.
const OFFERED: usize = usize::MAX - 2;

impl Default for Owner {
    /// The port's thread.
    fn default() -> Self {
        Self { owner: AtomicUsize::new(OWN_THREAD), told: AtomicUsize::new(0) }
    }
}

impl Owner {
    /// The helper that owns it, if one does.
    pub(crate) fn helper(&self) -> Option<usize> {
        match self.owner.load(Ordering::Acquire) {
            OWN_THREAD | NOBODY | BACK | OFFERED => None,
            n => Some(n - 1),
        }
    }

    /// Its port's thread takes notice of a ring that was given back; the helper that owns it, if one does.
    pub(crate) fn reclaim(&self) -> Option<usize> {
        let _ = self.change(BACK, OWN_THREAD);
        self.helper()
    }

    /// Its port's thread has it, and nobody can take it from there without being offered it.
    pub(crate) fn is_own(&self) -> bool {
        self.owner.load(Ordering::Acquire) == OWN_THREAD
    }

    /// Its port's thread says that helper `n` is told of it; true if it has to be, for the last time is over. From now on, and
    /// while one owns it, its port's thread looks after it at times.
    pub(crate) fn offer(&self, n: usize) -> bool {
        self.change(OWN_THREAD, OFFERED) && self.told.swap(n + 1, Ordering::AcqRel) != n + 1
    }

    /// It is on offer.
    pub(crate) fn is_offered(&self) -> bool {
        self.owner.load(Ordering::Acquire) == OFFERED
    }

    /// Takes the offer back; false if it has been taken up.
    pub(crate) fn withdraw(&self) -> bool {
        self.change(OFFERED, OWN_THREAD)
    }

    /// Helper `n`, which has been told of it, takes it, if it is still on offer. Then `disable` asks the guest not to kick, if
    /// what it is given says so with the queue locked: the port's thread may have the ring back by then, and wait for a kick.
    pub(crate) fn claim(&self, n: usize, disable: impl FnOnce(&dyn Fn() -> bool)) -> bool {
        let _ = self.told.compare_exchange(n + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        let taken = self.change(OFFERED, n + 1);
        if taken {
            disable(&|| self.helper() == Some(n));
        }
        taken
    }

    /// Helper `n` gives it back, and `rearm` asks the guest to kick. If there are packets by then and what `rearm` is given says
    /// so with the queue locked, the helper keeps it, and `rearm` asks the guest not to kick: true. What `rearm` is given
    /// says no when the port's thread has noticed that it has the ring, and may sleep until it is kicked.
    pub(crate) fn give_back_or_keep(&self, n: usize, rearm: impl FnOnce(&dyn Fn() -> bool) -> bool) -> bool {
        self.change(n + 1, BACK) && rearm(&|| self.change(BACK, n + 1))
    }

    /// The port's thread takes it from helper `n`, unless that has given it back, which comes to the same.
    pub(crate) fn take_away(&self, n: usize) {
        let _ = self.change(n + 1, OWN_THREAD) || self.change(BACK, OWN_THREAD);
    }

    /// Nobody is to look after it any more.
    pub(crate) fn release(&self) {
        self.owner.swap(NOBODY, Ordering::AcqRel);
    }

    fn change(&self, from: usize, to: usize) -> bool {
        self.owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
