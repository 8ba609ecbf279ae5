//! One ring of messages in memory that two processes write: one puts messages in, the other takes them out, and neither trusts the
//! other (docs/control-rings.md, which says it so that either end can be written anew).
//!
//! **Hostile ends.** Of what the other writes each word is read once, by an atomic load, into memory of our own, and looked at there.
//! Where to read and to write is kept in memory of our own as well: what stands in the shared memory is for the other alone.
//!
//! **Order.** A message is written before its place is published (release), and read after that was seen (acquire); it is read before its
//! place is given back, and overwritten after that was seen, in the same way.
//!
//! **Doorbells.** Who is about to sleep writes where it wants to be woken, and then looks once more; who publishes does so, and then
//! looks where the other wants to be woken. Between the two steps stands a sequentially consistent fence on either side, so at least
//! one of the two sees what the other wrote: either it does not go to sleep, or it is woken. Without the fences both loads might be
//! done before both stores. Who publishes rings if the place that the other waits for is among those that it has published just now, so
//! that one sleep costs one doorbell, and a wrong place in the shared memory costs the one who wrote it.

use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

/// Words of 64 bits in a line, which is what places are counted in: a cache line.
pub const LINE: usize = 8;

/// What stands at the head of a ring, in words from there: written by who puts in, and by who takes out, in cache lines (and pairs of
/// them) of their own.
pub(crate) const PUBLISHED: usize = 0;
pub(crate) const ROOM_AT: usize = 1;
pub(crate) const TAKEN: usize = 16;
pub(crate) const WAKE_AT: usize = 17;

/// Words of a ring's head.
pub const HEAD: usize = 32;

/// Where a ring lies in the memory, in words.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its head.
    pub head: usize,
    /// Its lines.
    pub data: usize,
    /// How many: a power of two.
    pub lines: u64,
}

/// The other end has written what cannot be: nothing more is believed of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense(pub &'static str);

impl Place {
    /// Most lines of a message: half of the ring, so that there is room for it once half is free.
    pub fn most(&self) -> u64 {
        self.lines / 2
    }

    /// A word of the ring's head.
    fn head<'m>(&self, memory: &'m [AtomicU64], word: usize) -> &'m AtomicU64 {
        &memory[self.head + word]
    }

    /// A word of the message that begins at a line.
    #[inline]
    fn word<'m>(&self, memory: &'m [AtomicU64], line: u64, word: usize) -> &'m AtomicU64 {
        let at = (line as usize).wrapping_mul(LINE).wrapping_add(word) & (self.lines as usize * LINE - 1);
        &memory[self.data + at]
    }

    /// Says where we want to be woken.
    fn wait_at(&self, memory: &[AtomicU64], word: usize, at: u64) {
        self.head(memory, word).store(at, Relaxed);
        fence(SeqCst);
    }

    /// Says how far we are, which was `before`; whether the other waits for it and is to be woken.
    fn tell(&self, memory: &[AtomicU64], word: usize, before: u64, now: u64, waits: usize) -> bool {
        if before == now {
            return false;
        }
        self.head(memory, word).store(now, Release);
        fence(SeqCst);
        self.head(memory, waits).load(Relaxed).wrapping_sub(before) < now.wrapping_sub(before)
    }
}

/// The end that puts messages in. Places are counted from 0 and never begin anew.
#[derive(Debug)]
pub struct Producer {
    place: Place,
    /// Where the next message goes.
    next: u64,
    /// Where the first one goes that the other has not been told of.
    published: u64,
    /// So far the other has taken messages out, as it said when it was last asked.
    taken: u64,
}

impl Producer {
    /// Of a new ring.
    pub fn new(place: Place) -> Self {
        Self { place, next: 0, published: 0, taken: 0 }
    }

    /// Puts a message in, if the ring does not hold more than `most` lines then. False: there is no room, and the other rings when there is.
    /// It is told of messages by [`Producer::publish`].
    pub fn put(&mut self, memory: &[AtomicU64], message: &[u8], most: u64) -> Result<bool, Nonsense> {
        let lines = message.len().div_ceil(LINE * 8) as u64;
        let fits = |ring: &Self| ring.next - ring.taken + lines <= most;
        if !fits(self) {
            self.look(memory)?;
            if !fits(self) {
                // When half of them are out: not for each.
                self.place.wait_at(memory, ROOM_AT, self.taken + (self.next - self.taken) / 2);
                self.look(memory)?;
            }
            if !fits(self) {
                return Ok(false);
            }
        }
        for (n, bytes) in message.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.place.word(memory, self.next, n).store(u64::from_ne_bytes(word), Relaxed);
        }
        self.next += lines;
        Ok(true)
    }

    fn look(&mut self, memory: &[AtomicU64]) -> Result<(), Nonsense> {
        let taken = self.place.head(memory, TAKEN).load(Acquire);
        if taken.wrapping_sub(self.taken) > self.published - self.taken {
            return Err(Nonsense("has taken messages that there are not"));
        }
        self.taken = taken;
        Ok(())
    }

    /// The other may have all that was put in. True: it sleeps, and is to be woken.
    #[must_use]
    pub fn publish(&mut self, memory: &[AtomicU64]) -> bool {
        let before = std::mem::replace(&mut self.published, self.next);
        self.place.tell(memory, PUBLISHED, before, self.next, WAKE_AT)
    }
}

/// The end that takes messages out.
#[derive(Debug)]
pub struct Consumer {
    place: Place,
    /// Where the next message is.
    next: u64,
    /// So far the other knows that places are free.
    told: u64,
    /// Where there is none yet, as the other said when it was last asked.
    published: u64,
}

impl Consumer {
    /// Of a new ring.
    pub fn new(place: Place) -> Self {
        Self { place, next: 0, told: 0, published: 0 }
    }

    /// Copies the next message out; its length in bytes. `None`: there is none now.
    pub fn take(&mut self, memory: &[AtomicU64], message: &mut Vec<u64>) -> Result<Option<usize>, Nonsense> {
        if self.next == self.published && !self.look(memory)? {
            return Ok(None);
        }
        let first = self.place.word(memory, self.next, 0).load(Relaxed);
        let len = (first >> 32) as usize;
        let lines = len.div_ceil(LINE * 8) as u64;
        if lines == 0 || lines > self.place.most() || lines > self.published - self.next {
            return Err(Nonsense("says that a message is longer than what is there of it"));
        }
        message.clear();
        message.push(first);
        message.extend((1..len.div_ceil(8)).map(|n| self.place.word(memory, self.next, n).load(Relaxed)));
        self.next += lines;
        Ok(Some(len))
    }

    /// Whether there are messages.
    fn look(&mut self, memory: &[AtomicU64]) -> Result<bool, Nonsense> {
        let published = self.place.head(memory, PUBLISHED).load(Acquire);
        if published.wrapping_sub(self.next) > self.place.lines {
            return Err(Nonsense("has published more than a ring holds"));
        }
        self.published = published;
        Ok(published != self.next)
    }

    /// The places of messages that were taken out are free. True: the other waits for room, and is to be woken.
    #[must_use]
    pub fn free(&mut self, memory: &[AtomicU64]) -> bool {
        let before = std::mem::replace(&mut self.told, self.next);
        self.place.tell(memory, TAKEN, before, self.next, ROOM_AT)
    }

    /// From now on the other wakes us when there is a message. False: there is one already.
    pub fn rest(&mut self, memory: &[AtomicU64]) -> Result<bool, Nonsense> {
        self.place.wait_at(memory, WAKE_AT, self.next);
        Ok(self.next == self.published && !self.look(memory)?)
    }
}
