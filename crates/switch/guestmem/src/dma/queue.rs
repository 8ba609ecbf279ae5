//! A thread's work queue: a ring of descriptors, and a completion record for each.
//!
//! Places are numbered on and on; number `n` lies in slot `n % PLACES`. A slot has a word beside what the layout says, with the number of its
//! place and how far its copy is:
//!
//! | state | the source | the destination | becomes |
//! |---|---|---|---|
//! | asked for | nobody reads it | nobody writes to it | fetched, by the engine; begun, by whoever makes the copy instead |
//! | fetched | the engine reads it, into memory of its own | nobody writes to it | begun, by the engine; left, by the queue's thread, which takes it back |
//! | begun | – | whoever began it writes to it | over; taken |
//! | left | the engine may still read it | the queue's thread alone writes to it | taken, by the engine, when it has read all |
//! | over, taken | – | – | that of the slot's next copy |
//!
//! Each of these steps is one exchange of the word, so a copy has one maker. While the engine reads the source, whose owner can make that last, the copy can be
//! had back, and nothing is lost. The thread whose queue it is writes a slot anew only when all of its batch, which is a round at most, is settled: it has the completion
//! record of each, the last word that is written of a copy.
//!
//! All is read and written as atomic words, so that a thread that lets memory go may look at any queue at any time. What it sees of a slot counts
//! if the slot's word is the same before and after.

use super::completion::Completion;
use super::layout::{Descriptor, NONE, SUCCESS};
pub(super) use super::sync::PLACES;
use super::sync::{AtomicBool, AtomicU64, GIVES_WAY, Ordering, SPINS, fence, give_way, sleep, spin_loop};
use super::{Tally, Waited, run};
use arrayvec::ArrayVec;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;
use zerocopy::transmute;

/// How many copies of a queue the engine has in view, as a group of hardware engines would: the shortest is next.
pub(super) const IN_VIEW: usize = 8;

/// Made by somebody else than the engine.
const TAKEN: u64 = 0;
const ASKED: u64 = 1;
const FETCHED: u64 = 2;
const BEGUN: u64 = 3;
const LEFT: u64 = 4;
const OVER: u64 = 5;

const fn word(number: u64, state: u64) -> u64 {
    number << 3 | state
}

#[derive(Debug, Default)]
struct Slot {
    descriptor: [AtomicU64; 8],
    word: AtomicU64,
}

/// One thread's.
#[derive(Debug)]
pub(super) struct Queue {
    slots: [Slot; PLACES as usize],
    completions: [Completion; PLACES as usize],
    /// The first of the batch that is not settled, and the next to be asked for: its thread's.
    first: AtomicU64,
    next: AtomicU64,
    /// The first that may still be asked for: the engine's.
    engine: AtomicU64,
    /// The most that a copy of the batch has overtaken.
    overtaken: AtomicU64,
    /// One of the batch was given up while the engine was at it: the batch stays, as the engine may go on with it at any time.
    stays: AtomicBool,
    /// Its thread sleeps until all is over.
    waits: AtomicBool,
    /// Its thread, while it has one.
    thread: Mutex<Option<Thread>>,
}

/// A copy that the engine was given and has not completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It never writes to the destination: whoever has this makes it.
    NotBegun(Descriptor),
    /// It may go on with it at any time.
    Begun(Descriptor),
}

/// Whoever makes copies, in two halves.
pub(super) trait Maker {
    /// Reads the source into memory of its own: the copy's status, and how many bytes it will have copied.
    fn fetch(&mut self, descriptor: &Descriptor) -> (u8, u32);
    /// Writes these, the last that were fetched, to the destination.
    fn write(&mut self, descriptor: &Descriptor, bytes: u32);
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot::default()),
            completions: std::array::from_fn(|_| Completion::default()),
            // No slot's word is that of one of the first round.
            first: AtomicU64::new(PLACES),
            next: AtomicU64::new(PLACES),
            engine: AtomicU64::new(PLACES),
            overtaken: AtomicU64::new(0),
            stays: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            thread: Mutex::new(None),
        }
    }

    /// One that has no thread, or a new one, for the calling thread.
    pub(super) fn of_this_thread(all: &mut Vec<&'static Self>) -> &'static Self {
        let free = all.iter().copied().find(|queue| queue.take_if_free());
        free.unwrap_or_else(|| {
            let queue: &'static Self = Box::leak(Box::new(Self::new()));
            queue.take_if_free();
            all.push(queue);
            run::note_queues();
            queue
        })
    }

    fn take_if_free(&self) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let free = thread.is_none();
        if free {
            *thread = Some(std::thread::current());
        }
        free
    }

    /// Its thread ends, and all is settled.
    pub(super) fn give_back(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % PLACES) as usize]
    }

    fn completion(&self, number: u64) -> &Completion {
        &self.completions[(number % PLACES) as usize]
    }

    fn descriptor(&self, number: u64) -> Descriptor {
        // Relaxed: the slot's word, read before, has the order.
        transmute!(self.slot(number).descriptor.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The batch's numbers. Its thread's, or as they are just now.
    fn batch(&self) -> Range<u64> {
        let first = self.first.load(Ordering::Acquire);
        first..self.next.load(Ordering::Acquire)
    }

    /// Asks for a copy. Its thread. False: there is no place, or it is too long.
    #[inline]
    pub(super) fn submit(&self, source: u64, destination: u64, len: usize) -> bool {
        let (number, first) = (self.next.load(Ordering::Relaxed), self.first.load(Ordering::Relaxed));
        if number - first >= PLACES || len > super::layout::MOST as usize {
            return false;
        }
        let completion = self.completion(number);
        completion.clear();
        let descriptor = Descriptor::memmove(source, destination, len as u32, std::ptr::from_ref(completion) as u64);
        let words: [u64; 8] = transmute!(descriptor);
        let slot = self.slot(number);
        for (at, word) in slot.descriptor.iter().zip(words) {
            at.store(word, Ordering::Relaxed);
        }
        // Release, both: whoever sees the word or the number sees the descriptor.
        slot.word.store(word(number, ASKED), Ordering::Release);
        self.next.store(number + 1, Ordering::Release);
        // The engine says that it sleeps, and then looks for work; we do it the other way round.
        fence(Ordering::SeqCst);
        true
    }

    /// Whether there is nothing in its batch to be waited for.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.batch().is_empty() || self.stays()
    }

    /// Its batch is settled and stays, as the engine may go on with a copy of it at any time. Nothing is asked for any more.
    #[inline]
    pub(super) fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    fn is_over(&self, number: u64) -> bool {
        self.completion(number).read().0 != NONE
    }

    /// Waits until there is a completion of each. Its thread. False: it took longer than so long.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let (mut batch, mut looks, mut waited) = (self.batch(), 0, Waited::default());
        loop {
            while batch.start < batch.end && self.is_over(batch.start) {
                batch.start += 1;
            }
            if batch.is_empty() {
                return true;
            }
            looks += 1;
            match looks {
                0..SPINS => spin_loop(),
                _ if looks < SPINS + GIVES_WAY => give_way(),
                _ if waited.is_over(limit) => return false,
                _ => waited.step(|| self.sleep(&batch)),
            }
        }
    }

    /// Until the engine has nothing left of this queue, or for a moment.
    fn sleep(&self, batch: &Range<u64>) {
        self.waits.store(true, Ordering::SeqCst);
        if !batch.clone().all(|number| self.is_over(number)) {
            sleep();
        }
        self.waits.store(false, Ordering::Relaxed);
    }

    /// Takes back what the engine has not completed, each once. Its thread, which submits nothing any more.
    pub(super) fn take_back(&self) -> impl Iterator<Item = Taken> + '_ {
        self.batch().filter_map(|number| {
            let descriptor = self.descriptor(number);
            if self.step(number, ASKED, TAKEN) {
                return Some(Taken::NotBegun(descriptor));
            }
            if self.step(number, FETCHED, LEFT) {
                self.stays.store(true, Ordering::Relaxed);
                return Some(Taken::NotBegun(descriptor));
            }
            let begun = !self.is_over(number);
            self.stays.fetch_or(begun, Ordering::Relaxed);
            begun.then_some(Taken::Begun(descriptor))
        })
    }

    /// The copy goes from one state to another. False: it is not in the first of them.
    fn step(&self, number: u64, from: u64, to: u64) -> bool {
        let (from, to) = (word(number, from), word(number, to));
        self.slot(number).word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The completion record is last: by it alone the queue's thread knows that nothing more is written to the slot, which it may write anew.
    fn complete(&self, number: u64, status: u8, bytes: u32, state: u64) {
        self.slot(number).word.store(word(number, state), Ordering::Release);
        #[cfg(test)]
        super::tests::between_the_words(self);
        self.completion(number).write(status, bytes);
    }

    /// Counts what the engine has completed of the batch. Those of which it has not copied all, with how many bytes it has. Its thread.
    pub(super) fn collect(&self, tally: &mut Tally) -> Vec<(Descriptor, usize)> {
        let mut failed = Vec::new();
        for number in self.batch() {
            let (descriptor, (status, bytes)) = (self.descriptor(number), self.completion(number).read());
            if status == NONE || self.slot(number).word.load(Ordering::Acquire) == word(number, TAKEN) {
                continue;
            }
            let bytes = bytes.min(descriptor.size);
            tally.copies += 1;
            tally.bytes += u64::from(bytes);
            if status != SUCCESS || bytes < descriptor.size {
                tally.errors += 1;
                failed.push((descriptor, bytes as usize));
            }
        }
        tally.overtaken = tally.overtaken.max(self.overtaken.swap(0, Ordering::Relaxed));
        failed
    }

    /// Where the batch's bytes went. Its thread.
    pub(super) fn last(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.batch().map(|number| self.descriptor(number)).map(|of| (of.destination, of.size()))
    }

    /// The batch is settled: its places are free.
    #[inline]
    pub(super) fn forget_last(&self) {
        if !self.stays() {
            self.first.store(self.next.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Makes the copies that touch this range and are only asked for; whether somebody is at another that does. Any thread.
    pub(super) fn touches(&self, range: &Range<u64>, maker: &mut impl Maker) -> bool {
        let touches = |at: u64, len: u32| at < range.end && range.start < at.saturating_add(len.into());
        let mut is_at_work = false;
        for number in self.batch() {
            let before = self.slot(number).word.load(Ordering::Acquire);
            let of = self.descriptor(number);
            let (source, destination) = (touches(of.source, of.size), touches(of.destination, of.size));
            // Its descriptor may have been another's only if the number were, too.
            if (source || destination) && before == word(number, ASKED) && self.step(number, ASKED, FETCHED) {
                self.make(number, maker, TAKEN);
                continue;
            }
            let now = self.slot(number).word.load(Ordering::Acquire);
            is_at_work |= (source && (now == word(number, FETCHED) || now == word(number, LEFT)))
                || (destination && (now == word(number, FETCHED) || now == word(number, BEGUN)));
        }
        is_at_work
    }

    /// Makes a copy that the caller has turned to be fetched; in the end it is in `state`. It may be taken back on the way.
    fn make(&self, number: u64, maker: &mut impl Maker, state: u64) {
        let descriptor = self.descriptor(number);
        let (status, bytes) = maker.fetch(&descriptor);
        if self.step(number, FETCHED, BEGUN) {
            maker.write(&descriptor, bytes);
            self.complete(number, status, bytes, state);
        } else {
            self.slot(number).word.store(word(number, TAKEN), Ordering::Release);
        }
    }

    /// There is work for the engine.
    pub(super) fn has_work(&self) -> bool {
        let next = self.next.load(Ordering::Acquire);
        let asked = |number: &u64| self.slot(*number).word.load(Ordering::Acquire) == word(*number, ASKED);
        (self.engine.load(Ordering::Relaxed)..next).any(|number| asked(&number))
    }

    /// Makes a copy: of those in view, in their order and each with how many bytes it is, the one that is `chosen`. False: there is none. The engine.
    pub(super) fn serve(&self, chosen: impl FnOnce(&[u32]) -> usize, maker: &mut impl Maker) -> bool {
        let (next, mut at) = (self.next.load(Ordering::Acquire), self.engine.load(Ordering::Relaxed));
        let is_asked = |number| self.slot(number).word.load(Ordering::Acquire) == word(number, ASKED);
        while at < next && !is_asked(at) {
            at += 1;
        }
        self.engine.store(at, Ordering::Relaxed);
        let view: ArrayVec<u64, IN_VIEW> =
            (at..next).take(IN_VIEW).filter(|number| is_asked(*number)).take(IN_VIEW).collect();
        let sizes: ArrayVec<u32, IN_VIEW> = view.iter().map(|number| self.descriptor(*number).size).collect();
        if view.is_empty() {
            return false;
        }
        let place = chosen(&sizes).min(view.len() - 1);
        let claim = |number: &u64| self.step(*number, ASKED, FETCHED);
        let Some(number) = view.get(place).copied().filter(claim) else { return true };
        self.overtaken.fetch_max(place as u64, Ordering::Relaxed);
        self.make(number, maker, OVER);
        if view.len() == 1 && self.waits.load(Ordering::SeqCst) && !self.has_work() {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            thread.iter().for_each(Thread::unpark);
        }
        true
    }
}
