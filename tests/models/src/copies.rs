//! A device's DMA engine (`crates/switch/guestmem/src/dma`): each copy that it is asked for is made once, by it or by who takes it back, and is seen by
//! whoever waited for it; and it is woken for work.

use crate::sync::weaken;
use crate::{check, spawn};
use doorbell::Doorbell;
use lasthop_guestmem::Weak;
use layout::{Descriptor, SUCCESS};
use loom::sync::Notify;
use loom::sync::atomic::AtomicUsize;
use queue::{Maker, Queue, Taken};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[path = "../../../crates/switch/guestmem/src/dma/completion.rs"]
mod completion;
#[path = "../../../crates/switch/guestmem/src/dma/doorbell.rs"]
mod doorbell;
#[allow(dead_code)]
#[path = "../../../crates/switch/guestmem/src/dma/layout.rs"]
mod layout;
// Only what a queue alone does.
#[allow(dead_code)]
#[path = "../../../crates/switch/guestmem/src/dma/queue.rs"]
mod queue;

/// In place of the same in `crates/switch/guestmem/src/dma`.
mod sync {
    pub(super) use crate::sync::fence;
    use crate::sync::{both, unless};
    use lasthop_guestmem::Weak;
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::Ordering;
    pub(super) use loom::thread::yield_now as give_way;
    // A timer fires at any moment.
    pub(super) use loom::thread::yield_now as sleep;

    pub(super) const PLACES: u64 = 2;
    pub(super) const SPINS: u32 = 1;
    pub(super) const GIVES_WAY: u32 = 1;

    macro_rules! atomics {
        ($($name:ident: $word:ty,)*) => {$(
            #[derive(Debug, Default)]
            pub(super) struct $name(loom::sync::atomic::$name);

            #[allow(dead_code)]
            impl $name {
                pub(super) fn new(word: $word) -> Self {
                    Self(loom::sync::atomic::$name::new(word))
                }

                pub(super) fn load(&self, order: Ordering) -> $word {
                    self.0.load(unless(Weak::Acquire, order))
                }

                pub(super) fn store(&self, word: $word, order: Ordering) {
                    self.0.store(word, unless(Weak::Release, order));
                }

                pub(super) fn swap(&self, word: $word, order: Ordering) -> $word {
                    self.0.swap(word, both(order))
                }

                pub(super) fn compare_exchange(
                    &self,
                    from: $word,
                    to: $word,
                    order: Ordering,
                    fails: Ordering,
                ) -> Result<$word, $word> {
                    self.0.compare_exchange(from, to, both(order), fails)
                }
            }
        )*};
    }
    atomics!(AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicU64: u64,);

    impl AtomicBool {
        pub(super) fn fetch_or(&self, word: bool, order: Ordering) -> bool {
            self.0.fetch_or(word, both(order))
        }
    }

    impl AtomicU64 {
        pub(super) fn fetch_max(&self, word: u64, order: Ordering) -> u64 {
            self.0.fetch_max(word, both(order))
        }
    }
}

/// In place of the engine's thread and of what it counts.
mod run {
    pub(super) fn note_queues() {}
}

/// Who waits loses patience at any moment.
#[derive(Default)]
struct Waited(());

impl Waited {
    fn is_over(&self, _: Duration) -> bool {
        true
    }

    fn step(&mut self, sleep: impl FnOnce()) {
        sleep();
    }
}

#[derive(Default)]
struct Tally {
    copies: u64,
    bytes: u64,
    errors: u64,
    overtaken: u64,
}

/// Bytes of a copy, and how far its destination lies behind its source.
const BYTES: u64 = 16;
const TO: u64 = 1000;
const COPIES: usize = 2;

/// What is copied, a word for each copy, and how often it was.
#[derive(Debug, Default)]
struct Memory {
    source: [AtomicUsize; COPIES],
    destination: [AtomicUsize; COPIES],
    made: [AtomicUsize; COPIES],
}

impl Memory {
    fn number(&self, of: &Descriptor) -> usize {
        assert_eq!((of.destination, of.size()), (of.source + TO, BYTES as usize), "assertion: a descriptor is whole");
        (of.source / BYTES) as usize
    }

    /// Bulk copies are relaxed.
    fn fetch(&self, of: &Descriptor) -> usize {
        self.source[self.number(of)].load(Relaxed)
    }

    fn write(&self, of: &Descriptor, word: usize) {
        let n = self.number(of);
        self.destination[n].store(word, Relaxed);
        self.made[n].fetch_add(1, Relaxed);
    }
}

/// Which end of the first copy lies in memory that somebody lets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// Where it comes from.
    Source,
    /// Where it goes to.
    Destination,
}

/// Whoever makes copies, and finds memory that has gone.
struct Copies {
    memory: Arc<Memory>,
    gone: Arc<AtomicUsize>,
    goes: Goes,
    word: usize,
}

impl Copies {
    fn new(memory: &Arc<Memory>, gone: &Arc<AtomicUsize>, goes: Goes) -> Self {
        Self { memory: memory.clone(), gone: gone.clone(), goes, word: 0 }
    }

    fn touches(&self, of: &Descriptor, end: Goes) {
        let is_gone = end == self.goes && self.memory.number(of) == 0 && self.gone.load(Relaxed) != 0;
        assert!(!is_gone, "assertion: memory that has gone is not used");
    }
}

impl Maker for Copies {
    fn fetch(&mut self, of: &Descriptor) -> (u8, u32) {
        self.touches(of, Goes::Source);
        self.word = self.memory.fetch(of);
        (SUCCESS, of.size)
    }

    fn write(&mut self, of: &Descriptor, _: u32) {
        self.touches(of, Goes::Destination);
        self.memory.write(of, self.word);
    }
}

/// Two copies are asked for. The engine makes them, unless whoever has asked loses patience and takes them back, and somebody lets memory of the first
/// go. Each is made once, neither the engine nor whoever lets memory go touches that afterwards, and whoever has waited sees all that is not lost.
pub fn each_copy_is_made_once(goes: Goes, weak: Option<Weak>, preemptions: usize) {
    weaken(weak);
    check(preemptions, move || {
        let (queue, memory, gone) =
            (Arc::new(Queue::new()), Arc::new(Memory::default()), Arc::new(AtomicUsize::new(0)));
        let (serves, mut of_engine) = (queue.clone(), Copies::new(&memory, &gone, goes));
        let engine = spawn(move || {
            for _ in 0..COPIES {
                serves.serve(|_| 0, &mut of_engine);
            }
        });
        for n in 0..COPIES {
            memory.source[n].store(n + 7, Relaxed);
            assert!(queue.submit(n as u64 * BYTES, n as u64 * BYTES + TO, BYTES as usize), "there is room");
        }
        let (looks, mut by_processor) = (queue.clone(), Copies::new(&memory, &gone, goes));
        let from = if goes == Goes::Source { 0 } else { TO };
        let lets_go = spawn(move || {
            if !looks.touches(&(from..from + BYTES), &mut by_processor) {
                by_processor.gone.store(1, Relaxed);
            }
        });
        let mut lost = [false; COPIES];
        if !queue.wait(Duration::ZERO) {
            for taken in queue.take_back() {
                match taken {
                    Taken::NotBegun(of) => memory.write(&of, memory.fetch(&of)),
                    Taken::Begun(of) => lost[memory.number(&of)] = true,
                }
            }
        }
        for n in (0..COPIES).filter(|n| !lost[*n]) {
            assert_eq!(memory.destination[n].load(Relaxed), n + 7, "assertion: what was waited for is there");
        }
        engine.join().expect("it ends");
        lets_go.join().expect("it ends");
        let made = memory.made.each_ref().map(|made| made.load(Relaxed));
        assert_eq!(made, [1; COPIES], "assertion: each is made once");
    });
    weaken(None);
}

/// One thread asks for so many copies, and rings when the engine sleeps, which ends when it has made all. It never sleeps with work left.
pub fn the_engine_is_woken(weak: Option<Weak>, copies: usize, preemptions: usize) {
    weaken(weak);
    check(preemptions, move || {
        let (queue, memory, bell) = (Arc::new(Queue::new()), Arc::new(Memory::default()), Arc::new(Notify::new()));
        let doorbell = Arc::new(Doorbell { sleeps: sync::AtomicBool::new(false) });
        let (serves, rung, at_door) = (queue.clone(), bell.clone(), doorbell.clone());
        let mut of_engine = Copies::new(&memory, &Arc::new(AtomicUsize::new(0)), Goes::Source);
        let engine = spawn(move || {
            let mut made = 0;
            while made < copies {
                if serves.serve(|_| 0, &mut of_engine) {
                    made += 1;
                } else {
                    at_door.sleep_unless(|| serves.has_work(), || rung.wait());
                }
            }
        });
        for n in 0..copies {
            memory.source[n].store(n + 7, Relaxed);
            assert!(queue.submit(n as u64 * BYTES, n as u64 * BYTES + TO, BYTES as usize), "there is room");
            if doorbell.is_to_be_rung() {
                bell.notify();
            }
        }
        engine.join().expect("it ends");
        for n in 0..copies {
            assert_eq!(memory.destination[n].load(Relaxed), n + 7, "assertion: it has copied what was there");
        }
    });
    weaken(None);
}
