//! Locks whose holder may have been stopped, nobody knows for how long: in the idle class (SCHED_IDLE), or in the control group
//! of a VM that has used up its processor time.

use crate::sync::{
    AtomicI32, GIVEN, LONG, Mutex, MutexGuard, READER_PREFERENCE, Relaxed, SPINS, back_off, spin_loop, thread_local,
};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};
use std::cell::Cell;
use std::sync::OnceLock;

static ON_WAIT: OnceLock<Box<dyn Fn(WaitNotice) + Send + Sync>> = OnceLock::new();
const NOBODY: i32 = 0;

thread_local! {
    static THREAD: Cell<i32> = Cell::new(NOBODY);
}

/// What a thread that waits for a lock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitNotice {
    /// It waits, or has just waited, and nothing is known of the holder. Said at each look for the lock.
    HolderUnknown,
    /// The lock's holder is this thread ([`identify_thread`]), and seems to have been stopped.
    HolderStopped(i32),
    /// The wait for this thread, of which [`WaitNotice::HolderStopped`] was said, is over.
    Over(i32),
}

/// Has `act` called, by threads that wait for a lock, with what they say of it. Once per process.
pub fn on_wait(act: Box<dyn Fn(WaitNotice) + Send + Sync>) {
    let _ = ON_WAIT.set(act);
}

/// The number above 0 by which the calling thread is known while it holds a [`Lock`]; 0: by none.
pub fn identify_thread(thread: i32) {
    THREAD.with(|own| own.set(thread));
}

/// A mutex. A thread that panicked while it held it leaves nothing behind that others need fear.
#[derive(Debug, Default)]
pub struct Lock<T> {
    /// Orders what is locked. The two words below are hints, so they are always read and written Relaxed: a thread that reads an old one looks once
    /// more, or names a holder that has gone on meanwhile.
    mutex: Mutex<T>,
    /// The thread that had it last.
    holder: AtomicI32,
    /// Attempts for which newcomers yield to a waiter that backed off in vain. Without it a thread that retakes the lock at once would keep it
    /// for good on a shared core. Bounded ([`GIVEN`]): the waiter may be stopped itself.
    wanted: AtomicI32,
}

impl<T> Lock<T> {
    /// Waits for it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.wanted.load(Relaxed) > 0 {
            self.give_way();
        }
        self.take().unwrap_or_else(|| {
            let guard = wait(|| self.holder.load(Relaxed), || self.take(), || self.wanted.store(GIVEN as i32, Relaxed));
            self.wanted.store(0, Relaxed);
            guard
        })
    }

    /// `None` if another thread holds it, or has waited for it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let wanted = self.wanted.load(Relaxed);
        if wanted > 0 {
            // It may undo what another thread stores at this moment: that thread looks once more, or once less.
            self.wanted.store(wanted - 1, Relaxed);
            return None;
        }
        self.take()
    }

    #[inline]
    fn take(&self) -> Option<MutexGuard<'_, T>> {
        let guard = got(self.mutex.try_lock())?;
        self.holder.store(THREAD.with(Cell::get), Relaxed);
        Some(guard)
    }

    /// Yields to a thread that has waited, but not for long to one that has been stopped: a waiter stores `wanted` anew whenever it
    /// has looked in vain.
    #[cold]
    fn give_way(&self) {
        for _ in 0..GIVEN {
            say(WaitNotice::HolderUnknown);
            back_off();
            if self.wanted.load(Relaxed) <= 0 {
                return;
            }
        }
        self.wanted.store(0, Relaxed);
    }
}

/// The same for what is read by many and changed rarely.
#[derive(Debug, Default)]
pub struct SharedLock<T>(RwLock<T>);

impl<T> SharedLock<T> {
    /// Waits while somebody changes it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let attempt = || got(self.0.try_read());
        attempt().unwrap_or_else(|| wait(|| NOBODY, attempt, || ()))
    }

    /// Waits until nobody reads it. New readers do not wait for that, unless it takes a second.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let mut left = READER_PREFERENCE;
        let attempt = || {
            left -= 1;
            got(self.0.try_write()).or_else(|| (left == 0).then(|| self.0.write().unwrap_or_else(|e| e.into_inner())))
        };
        wait(|| NOBODY, attempt, || ())
    }
}

fn got<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn say(notice: WaitNotice) {
    ON_WAIT.get().into_iter().for_each(|act| act(notice));
}

/// Holders are soon done, unless they have been stopped: [`on_wait`] says what to do then. `wish` is called whenever a back-off was in vain.
#[cold]
fn wait<G>(holder: impl Fn() -> i32, mut attempt: impl FnMut() -> Option<G>, wish: impl Fn()) -> G {
    let (mut back_offs, mut stopped) = (0, None);
    loop {
        for _ in 0..SPINS {
            if let Some(guard) = attempt() {
                say(stopped.map_or(WaitNotice::HolderUnknown, WaitNotice::Over));
                return guard;
            }
            spin_loop();
        }
        if back_offs > 0 {
            wish();
        }
        say(WaitNotice::HolderUnknown);
        back_offs += 1;
        if back_offs % LONG == 0 {
            let before = std::mem::replace(&mut stopped, Some(holder()).filter(|thread| *thread != NOBODY));
            if before != stopped {
                say(before.map_or(WaitNotice::HolderUnknown, WaitNotice::Over));
            }
            say(stopped.map_or(WaitNotice::HolderUnknown, WaitNotice::HolderStopped));
        }
        back_off();
    }
}

#[cfg(test)]
mod tests {
    use super::WaitNotice::{HolderStopped, Over};
    use super::*;
    use std::sync::Barrier;

    static SAID: Mutex<Vec<WaitNotice>> = Mutex::new(Vec::new());

    fn until_said_twice(what: WaitNotice) {
        while SAID.lock().unwrap().iter().filter(|said| **said == what).count() < 2 {
            std::thread::yield_now();
        }
    }

    fn listen() {
        on_wait(Box::new(|what| SAID.lock().unwrap().push(what)));
    }

    fn until_waited_for() {
        listen();
        let before = SAID.lock().unwrap().len();
        while !SAID.lock().unwrap()[before..].contains(&WaitNotice::HolderUnknown) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_waits_has_the_holder_looked_for() {
        let (lock, shared, together) = (Lock::<u32>::default(), SharedLock::<u32>::default(), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = (lock.lock(), shared.read());
                together.wait();
                // Who changes waits for who reads, and has to have him looked for.
                until_waited_for();
                drop(held.1);
                together.wait();
                until_waited_for();
                drop(held.0);
                let mut changing = shared.write();
                together.wait();
                until_waited_for();
                *changing += 1;
            });
            together.wait();
            assert!(lock.try_lock().is_none());
            assert_eq!(*shared.read(), 0, "readers do not wait for each other");
            *shared.write() += 1;
            together.wait();
            *lock.lock() += 1;
            together.wait();
            assert_eq!(*shared.read(), 2);
        });
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn who_only_tries_is_not_kept_out_by_one_who_was_stopped_while_he_waited() {
        let lock = Lock::<u32>::default();
        lock.wanted.store(GIVEN as i32, Relaxed);
        let refused = (0..100).take_while(|_| lock.try_lock().is_none()).count();
        assert!((1..=GIVEN).contains(&refused), "refused {refused} times");
    }

    #[test]
    fn a_reader_does_not_wait_for_one_who_wants_to_write() {
        let shared = SharedLock::<u32>::default();
        let reading = shared.read();
        std::thread::scope(|scope| {
            let write = scope.spawn(|| *shared.write() += 1);
            until_waited_for();
            assert_eq!(*shared.read(), 0);
            drop(reading);
            write.join().expect("it is written");
        });
        assert_eq!(*shared.read(), 1);
    }

    #[test]
    fn readers_who_are_always_there_do_not_keep_a_writer_out() {
        let (shared, together) = (SharedLock::<bool>::default(), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                // Each takes it anew before it lets go of it.
                scope.spawn(|| {
                    let mut held = shared.read();
                    together.wait();
                    while !*held {
                        match got(shared.0.try_read()) {
                            Some(next) => held = next,
                            None => {
                                drop(held);
                                held = shared.read();
                            }
                        }
                    }
                });
            }
            together.wait();
            *shared.write() = true;
        });
    }

    #[test]
    fn who_keeps_a_lock_for_long_is_named() {
        let (lock, together) = (Lock::<u32>::default(), Barrier::new(2));
        listen();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for name in [3, 0, 4] {
                    identify_thread(name);
                    let held = lock.lock();
                    together.wait();
                    if name == 0 {
                        until_waited_for()
                    } else {
                        // And again: whoever waited for something else of his may have said that he is done.
                        until_said_twice(HolderStopped(name))
                    }
                    drop(held);
                    together.wait();
                }
            });
            for _ in 0..3 {
                together.wait();
                drop(lock.lock());
                together.wait();
            }
        });
        let said = SAID.lock().unwrap();
        let mut named: Vec<WaitNotice> =
            said.iter().copied().filter(|what| *what != WaitNotice::HolderUnknown).collect();
        named.dedup();
        assert_eq!(named, [HolderStopped(3), Over(3), HolderStopped(4), Over(4)]);
    }

    #[test]
    fn who_has_it_all_the_time_lets_others_in() {
        let (lock, together) = (Lock::<bool>::default(), Barrier::new(2));
        listen();
        let mut turns = 0;
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            scope.spawn(|| {
                together.wait();
                *lock.lock() = true;
            });
            together.wait();
            while !*held && turns < 1000 {
                // The other has looked, and is about to back off.
                until_waited_for();
                drop(held);
                held = lock.lock();
                turns += 1;
            }
        });
        assert!(turns < 100, "{turns} turns");
    }

    #[test]
    fn who_has_waited_goes_before_who_tries() {
        let lock = Lock::<u32>::default();
        lock.wanted.store(GIVEN as i32, Relaxed);
        assert!(lock.try_lock().is_none());
        // Nobody is there: he is not waited for for ever.
        drop(lock.lock());
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_panic_leaves_a_lock_to_others() {
        let lock = Lock::<u32>::default();
        std::thread::scope(|scope| {
            let panicked = scope.spawn(|| {
                let _held = lock.lock();
                panic!("on purpose");
            });
            assert!(panicked.join().is_err());
        });
        assert!(lock.try_lock().is_some());
    }
}
