//! A part of the places for connections: which are free, and when the others have to be looked at.
//!
//! The wheel has a list for each of 64 seconds. A packet that moves its connection's deadline leaves the wheel alone: when the wheel comes by and finds the
//! deadline further away it files the connection anew, 63 seconds ahead at most. So each connection is looked at once a minute at most beside its end,
//! and one whose time became shorter goes at most a minute late (no lookup finds it any more meanwhile).

use crate::entry::{Entry, is_over};
use crate::state::SECOND;

const SLOTS: u32 = 64;

/// Written with the shard's lock held, as are the links of its entries. Places are numbered from 0 in the shard; links are one more, 0 is none.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Number of the shard's first place among all.
    pub base: u32,
    places: u32,
    /// Places behind this one have never been used: their memory is not there yet.
    fresh: u32,
    /// Places that are free again, the one that has been so for longest first.
    free: [u32; 2],
    wheel: [u32; SLOTS as usize],
    /// The second up to which the wheel has come.
    turned: u32,
    /// Where somebody goes on who looks for one to give up.
    hand: u32,
}

impl Default for Shard {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl Shard {
    pub fn new(base: u32, places: u32) -> Self {
        Self { base, places, fresh: 0, free: [0; 2], wheel: [0; SLOTS as usize], turned: 0, hand: 0 }
    }

    fn entry<'e>(&self, entries: &'e [Entry], link: u32) -> &'e Entry {
        &entries[(self.base + link - 1) as usize]
    }

    /// A free place.
    pub fn take(&mut self, entries: &[Entry]) -> Option<u32> {
        let [first, last] = self.free;
        if self.fresh < self.places && first == 0 {
            self.fresh += 1;
            return Some(self.base + self.fresh - 1);
        }
        if first == 0 {
            return None;
        }
        let next = Entry::link(&self.entry(entries, first).next);
        self.free = if next == 0 { [0; 2] } else { [next, last] };
        Some(self.base + first - 1)
    }

    /// A place is free.
    pub fn give(&mut self, entries: &[Entry], at: u32) {
        let link = at - self.base + 1;
        Entry::set_link(&self.entry(entries, link).next, 0);
        match self.free {
            [0, _] => self.free = [link; 2],
            [first, last] => {
                Entry::set_link(&self.entry(entries, last).next, link);
                self.free = [first, link];
            }
        }
    }

    /// Files what lives here under its deadline.
    pub fn file(&mut self, entries: &[Entry], at: u32, deadline: u32) {
        let ahead = ((deadline / SECOND + 1).wrapping_sub(self.turned) as i32).clamp(1, SLOTS as i32 - 1) as u32;
        let slot = (self.turned.wrapping_add(ahead)) % SLOTS;
        let (link, first) = (at - self.base + 1, self.wheel[slot as usize]);
        let entry = &entries[at as usize];
        Entry::set_link(&entry.next, first);
        Entry::set_link(&entry.prev, 0);
        Entry::set_link(&entry.due, slot);
        if first != 0 {
            Entry::set_link(&self.entry(entries, first).prev, link);
        }
        self.wheel[slot as usize] = link;
    }

    /// Takes it out of the wheel.
    pub fn unfile(&mut self, entries: &[Entry], at: u32) {
        let entry = &entries[at as usize];
        let (next, prev) = (Entry::link(&entry.next), Entry::link(&entry.prev));
        if next != 0 {
            Entry::set_link(&self.entry(entries, next).prev, prev);
        }
        match prev {
            0 => self.wheel[Entry::link(&entry.due) as usize % SLOTS as usize] = next,
            prev => Entry::set_link(&self.entry(entries, prev).next, next),
        }
    }

    /// Turns the wheel towards `now`, in at most `budget` looks and turns, which are taken off it; `end` is called for each connection whose time is over,
    /// and has to free it.
    pub fn turn(&mut self, entries: &[Entry], now: u32, budget: &mut usize, mut end: impl FnMut(&mut Self, u32)) {
        let second = now / SECOND;
        if second.wrapping_sub(self.turned) > SLOTS {
            // Nothing is filed further ahead than the wheel is round.
            self.turned = second - SLOTS;
        }
        while *budget > 0 && self.turned != second {
            *budget -= 1;
            let first = self.wheel[(self.turned.wrapping_add(1) % SLOTS) as usize];
            if first == 0 {
                self.turned = self.turned.wrapping_add(1);
                continue;
            }
            let at = self.base + first - 1;
            match entries[at as usize].deadline().filter(|deadline| !is_over(*deadline, now)) {
                Some(deadline) => {
                    self.unfile(entries, at);
                    self.turned = self.turned.wrapping_add(1);
                    self.file(entries, at, deadline);
                    self.turned = self.turned.wrapping_sub(1);
                }
                None => end(self, at),
            }
        }
    }

    /// A few places from all over, others each time, for somebody who looks for one to give up. What somebody has put in at once lies side by side.
    pub fn next(&mut self, many: u32) -> impl Iterator<Item = u32> + use<> {
        let (base, used, from) = (self.base, self.fresh.max(1), self.hand);
        self.hand = (from + 1) % used;
        let step = (used / many).max(1);
        (0..many.min(used)).map(move |n| base + (from + n * step) % used)
    }
}
