//! The lock whose holder may have been stopped, and helpers that are boosted.

use crate::boosted::Boosted;
use crate::lock::{Lock, SharedLock, WaitNotice, identify_thread, on_wait};
use crate::sync::Mutex;
use crate::{check, spawn};
use std::cell::RefCell;
use std::sync::{Arc, Once};

thread_local! {
    /// What was said in this run, by whom: loom runs all threads of a model on one.
    static SAID: RefCell<Vec<(loom::thread::ThreadId, WaitNotice)>> = const { RefCell::new(Vec::new()) };
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        on_wait(Box::new(|wait| SAID.with(|said| said.borrow_mut().push((loom::thread::current().id(), wait)))));
    });
    SAID.with(|said| said.borrow_mut().clear());
}

/// Two threads with numbers take a lock twice each. One at a time has it, none waits for ever, and of a holder that was said to be stopped
/// it is said that the wait is over before the thread that waited goes on: nobody stays lifted.
pub fn who_is_named_is_named_back() {
    check(3, || {
        listen();
        let lock = Arc::new(Lock::<u32>::default());
        let threads = [3, 4].map(|name| {
            let lock = lock.clone();
            spawn(move || {
                identify_thread(name);
                for _ in 0..2 {
                    let mut held = lock.lock();
                    let lifted = SAID.with(|said| {
                        let own = loom::thread::current().id();
                        let said = said.borrow();
                        let last = |name: i32| {
                            let of = [WaitNotice::HolderStopped(name), WaitNotice::Over(name)];
                            said.iter().rev().find(|(by, said)| *by == own && of.contains(said))
                        };
                        [3, 4]
                            .iter()
                            .any(|name| last(*name).is_some_and(|(_, said)| *said == WaitNotice::HolderStopped(*name)))
                    });
                    assert!(!lifted, "a thread that goes on must not leave another lifted");
                    *held += 1;
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(*lock.lock(), 4, "two must not have it at once");
        let known = |said: &WaitNotice| match said {
            WaitNotice::HolderUnknown => true,
            WaitNotice::HolderStopped(name) | WaitNotice::Over(name) => [3, 4].contains(name),
        };
        SAID.with(|said| assert!(said.borrow().iter().all(|(_, said)| known(said))));
    });
}

/// Readers and one that changes: it gets in, alone.
pub fn readers_and_a_writer() {
    check(3, || {
        listen();
        let shared = Arc::new(SharedLock::<(u32, u32)>::default());
        let readers = [(); 2].map(|()| {
            let shared = shared.clone();
            spawn(move || {
                let seen = shared.read();
                assert_eq!(seen.0, seen.1, "a reader must not see half of a change");
            })
        });
        {
            let mut changing = shared.write();
            changing.0 += 1;
            loom::thread::yield_now();
            changing.1 += 1;
        }
        readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
    });
}

/// A helper puts itself back into the idle class, twice, while two others find that they need it. In the end, if it is taken as
/// asked for, it is in the normal class: otherwise nobody would ever ask again, and it might be stopped with a lock.
pub fn who_is_asked_for_is_not_idle() {
    check(3, || {
        let (boosted, idle) = (Arc::new(Boosted::default()), Arc::new(Mutex::new(false)));
        let waiting = [(); 2].map(|()| {
            let (boosted, idle) = (boosted.clone(), idle.clone());
            spawn(move || {
                if boosted.ask() {
                    // What the supervisor does.
                    *idle.lock().expect("nobody panics with it") = false;
                }
            })
        });
        for _ in 0..2 {
            boosted.put_back(|| *idle.lock().expect("nobody panics with it") = true);
        }
        waiting.into_iter().for_each(|thread| thread.join().expect("it ends"));
        let idle = *idle.lock().expect("nobody panics with it");
        assert!(!(boosted.is_asked() && idle), "a helper must not be idle and be taken as asked for");
    });
}
