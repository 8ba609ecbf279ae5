//! A connection in memory: words that any thread reads without a lock, and changes one by one.
//!
//! **Reading.** `life` has a generation, a bit that says whether the connection lives, and its deadline. Who has read what he wants reads `life` once
//! more: if generation and bit are as before, all of it was this connection's. Who puts a new connection in has the shard's lock, and the old one was
//! dead before.
//!
//! **Changing.** Each word is changed by compare-and-exchange against what was read, so a thread that was stopped in between and comes back when the
//! connection is gone finds other words and changes nothing (unless all 64 bits are the same: then what it writes was right for them). The state
//! comes first: of two packets that both change it, one begins anew. What has been sent, acknowledged and allowed only ever grows, so for it any order
//! will do. `LAST` and `LAST_TOO` are hints that shorten time-outs and tell one RST from another: they are stored.

use crate::tcp::{self, Last, Side, Tcp};
use crate::tuple::Tuple;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use zerocopy::{FromZeros, KnownLayout};

/// The state of a connection, as it is kept.
pub(crate) type Words = [u64; 7];

pub(crate) const STATE: usize = 0;
/// Of each direction: what it has sent and acknowledged.
const SENT: [usize; 2] = [1, 3];
/// Of each direction: its largest window, and how far it lets the other side send.
const WINDOW: [usize; 2] = [2, 4];
const LAST: usize = 5;
const LAST_TOO: usize = 6;

/// Bits of the state word, behind the four of the protocol's state.
pub(crate) const REPLIED: u64 = 1 << 4;
/// It is not given up for others.
pub(crate) const ASSURED: u64 = 1 << 5;
pub(crate) const SRC_NAT: u64 = 1 << 6;
pub(crate) const DST_NAT: u64 = 1 << 7;
/// Those that are not TCP's.
pub(crate) const COMMON: u64 = REPLIED | ASSURED | SRC_NAT | DST_NAT;

const LIVES: u64 = 1 << 32;

/// A place for a connection. 192 bytes; all zeros is a free one.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    life: AtomicU64,
    words: [AtomicU64; 7],
    keys: [[AtomicU64; 5]; 2],
    label: [AtomicU64; 2],
    mark: AtomicU32,
    /// Owner, and timeout policy above it.
    belongs: AtomicU32,
    /// Written with the shard's lock held: neighbours in a list, and the second in which the wheel comes by.
    pub next: AtomicU32,
    pub prev: AtomicU32,
    pub due: AtomicU32,
}

/// What a connection was when it was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub at: u32,
    pub dir: usize,
    pub life: u64,
    pub words: Words,
    pub mark: u32,
    pub label: u128,
    pub owner: u16,
    pub policy: u8,
}

/// What a new connection is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub keys: [Tuple; 2],
    pub words: Words,
    pub deadline: u32,
    pub mark: u32,
    pub label: u128,
    pub owner: u16,
    pub policy: u8,
}

/// Whether a moment (in ticks) has come.
#[inline]
pub(crate) fn is_over(deadline: u32, now: u32) -> bool {
    deadline.wrapping_sub(now) as i32 <= 0
}

fn load<const N: usize>(from: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|i| from[i].load(Relaxed))
}

impl Entry {
    /// What is here, if it lives, and is called so in this direction where that is asked.
    #[inline]
    pub fn read(&self, at: u32, dir: usize, key: Option<&Tuple>, now: u32) -> Option<Found> {
        // Acquire: what was written before it was put in is seen.
        let life = self.life.load(Ordering::Acquire);
        let lives = life & LIVES != 0 && !is_over(life as u32, now);
        if !lives || key.is_some_and(|key| load(&self.keys[dir]) != key.0) {
            return None;
        }
        let (words, [low, high]) = (load(&self.words), load(&self.label).map(u128::from));
        let (mark, belongs) = (self.mark.load(Relaxed), self.belongs.load(Relaxed));
        let label = low | high << 64;
        let found = Found { at, dir, life, words, mark, label, owner: belongs as u16, policy: (belongs >> 16) as u8 };
        self.is(life).then_some(found)
    }

    /// The connection that was found is still here; what was read before this was its own.
    #[inline]
    pub fn is(&self, life: u64) -> bool {
        // Pairs with the fence in `put`: if any of what was read is of a later connection, so is this.
        fence(Ordering::Acquire);
        (self.life.load(Relaxed) ^ life) >> 32 == 0
    }

    /// A link of a list; the shard's lock orders it.
    pub fn link(of: &AtomicU32) -> u32 {
        of.load(Relaxed)
    }

    /// Sets a link.
    pub fn set_link(of: &AtomicU32, to: u32) {
        of.store(to, Relaxed);
    }

    /// The tuple of a direction.
    pub fn key(&self, dir: usize) -> Tuple {
        Tuple(load(&self.keys[dir]))
    }

    /// Deadline of what lives here.
    pub fn deadline(&self) -> Option<u32> {
        let life = self.life.load(Relaxed);
        (life & LIVES != 0).then_some(life as u32)
    }

    /// Puts a connection in. With the shard's lock held, where nothing lives.
    pub fn put(&self, birth: &Birth) {
        fence(Ordering::Release);
        let set = |to: &[AtomicU64], from: &[u64]| to.iter().zip(from).for_each(|(to, from)| to.store(*from, Relaxed));
        set(&self.words, &birth.words);
        set(&self.keys[0], &birth.keys[0].0);
        set(&self.keys[1], &birth.keys[1].0);
        set(&self.label, &[birth.label as u64, (birth.label >> 64) as u64]);
        self.mark.store(birth.mark, Relaxed);
        self.belongs.store(u32::from(birth.owner) | u32::from(birth.policy) << 16, Relaxed);
        let generation = (self.life.load(Relaxed) >> 33).wrapping_add(1);
        self.life.store(generation << 33 | LIVES | u64::from(birth.deadline), Ordering::Release);
    }

    /// Sets the answers' tuple and the state anew. With the shard's lock held, before anybody can find it.
    pub fn set_reply(&self, key: &Tuple, state: u64) {
        self.keys[1].iter().zip(key.0).for_each(|(to, word)| to.store(word, Relaxed));
        self.words[STATE].store(state, Relaxed);
    }

    /// Its label. With the shard's lock held.
    pub fn label(&self) -> u128 {
        let [low, high] = load(&self.label).map(u128::from);
        low | high << 64
    }

    /// Whose limit it counts towards. With the shard's lock held.
    pub fn owner(&self) -> u16 {
        self.belongs.load(Relaxed) as u16
    }

    /// Ends what lives here. With the shard's lock held, so once.
    pub fn kill(&self) {
        self.life.fetch_and(!LIVES, Ordering::AcqRel);
    }

    /// Sets mark and label. With the shard's lock held.
    pub fn set_mark(&self, mark: u32, label: u128) {
        self.mark.store(mark, Relaxed);
        self.label[0].store(label as u64, Relaxed);
        self.label[1].store((label >> 64) as u64, Relaxed);
    }

    /// Moves the deadline, unless somebody else just has.
    #[inline]
    pub fn touch(&self, life: u64, deadline: u32) {
        if life as u32 != deadline {
            let new = life >> 32 << 32 | u64::from(deadline);
            let _ = self.life.compare_exchange(life, new, Relaxed, Relaxed);
        }
    }

    /// Changes what was found to `new`; false, and nothing has changed, if the state is another one meanwhile.
    #[inline]
    pub fn update(&self, found: &Found, new: &Words) -> bool {
        let old = &found.words;
        let state = &self.words[STATE];
        if old[STATE] != new[STATE]
            && state.compare_exchange(old[STATE], new[STATE], Ordering::AcqRel, Relaxed).is_err()
        {
            return false;
        }
        for at in [SENT[0], SENT[1], WINDOW[0], WINDOW[1]] {
            if old[at] != new[at] {
                self.merge(at, found.life, old[at], new[at]);
            }
        }
        for at in [LAST, LAST_TOO] {
            if old[at] != new[at] {
                self.words[at].store(new[at], Relaxed);
            }
        }
        true
    }

    /// Brings both halves of a word to at least `new`.
    #[inline]
    fn merge(&self, at: usize, life: u64, mut old: u64, mut new: u64) {
        let word = &self.words[at];
        // Others do the same with packets of the same connection: this ends soon, and what is lost is the last of many.
        for _ in 0..8 {
            match word.compare_exchange(old, new, Ordering::AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) if !self.is(life) || now == new => return,
                Err(now) => (old, new) = (now, if WINDOW.contains(&at) { wider(now, new) } else { later(now, new) }),
            }
        }
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn word([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn later(a: u64, b: u64) -> u64 {
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    word([tcp::furthest(a0, b0), tcp::furthest(a1, b1)])
}

fn wider(a: u64, b: u64) -> u64 {
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    word([a0.max(b0), tcp::furthest(a1, b1)])
}

impl Tcp {
    /// From words.
    #[inline]
    pub(crate) fn unpack(words: &Words) -> Self {
        let state = words[STATE];
        let side = |dir: usize| {
            let ([end, acked], [window, _]) = (halves(words[SENT[dir]]), halves(words[WINDOW[dir]]));
            let [_, limit] = halves(words[WINDOW[1 - dir]]);
            let (flags, scale) = ((state >> (8 + 5 * dir)) as u8 & 31, (state >> (18 + 4 * dir)) as u8 & 15);
            Side { end, limit, window, acked, scale, flags }
        };
        let ([end, ack], too) = (halves(words[LAST]), words[LAST_TOO]);
        let last = Last {
            end,
            ack,
            win: too as u16,
            kind: tcp::KINDS.get((too >> 16) as usize & 7).copied().unwrap_or_default(),
            dir: (too >> 19) as usize & 1,
            repeated: (too >> 20) as u8 & 3,
            flags: (state >> 26) as u8 & 15,
            scale: (state >> 32) as u8 & 15,
        };
        let state = tcp::STATES.get(state as usize & 15).copied().unwrap_or_default();
        Self { state, sides: [side(0), side(1)], last }
    }

    /// To words, without the bits that all protocols share.
    #[inline]
    pub(crate) fn pack(&self) -> Words {
        let Self { state, sides: [a, b], last } = self;
        let flags = u64::from(a.flags) << 8 | u64::from(b.flags) << 13 | u64::from(last.flags) << 26;
        let scales = u64::from(a.scale) << 18 | u64::from(b.scale) << 22 | u64::from(last.scale) << 32;
        let too = (last.kind as u64) << 16 | (last.dir as u64) << 19 | u64::from(last.repeated) << 20;
        [
            *state as u64 | flags | scales,
            word([a.end, a.acked]),
            word([a.window, b.limit]),
            word([b.end, b.acked]),
            word([b.window, a.limit]),
            word([last.end, last.ack]),
            u64::from(last.win) | too,
        ]
    }
}
