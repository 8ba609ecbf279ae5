//! Control's side: flows go in and out, by the numbers that control has for them.

use crate::layout::{
    BUCKETS, ENTRIES, FLOW_ACTIONS, FLOW_KEY, MASKS_USED, MOST_ACTIONS, MOST_MASKS, SEED, VERSION, WORDS, bucket,
    flow_at, mask_at,
};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_sys::SharedWords;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

/// The table, mapped to be written: one process, one thread.
#[derive(Debug)]
pub struct Writer {
    words: SharedWords,
    seed: u64,
    /// Places of the masks that flows have, and how many flows.
    masks: HashMap<FlowMask, (usize, u64)>,
    free_masks: Vec<usize>,
    /// Of each flow in the table: place of its mask, and bucket.
    flows: HashMap<u32, (FlowMask, usize)>,
}

impl Writer {
    /// Makes an empty table of a file of zeros that nobody reads yet. `INVAL` if it has another length.
    pub fn new(fd: impl AsFd) -> Result<Self, Errno> {
        let words = SharedWords::map(fd, WORDS)?;
        let seed = RandomState::new().hash_one(0);
        let writer = Self {
            words,
            seed,
            masks: HashMap::new(),
            free_masks: (0..MOST_MASKS).rev().collect(),
            flows: HashMap::new(),
        };
        writer.store(SEED, seed);
        writer.publish(0, VERSION);
        Ok(writer)
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The flow with this number is so from now on. False: there is no room for its actions, for its mask or for it, and the table has no flow
    /// of that number now.
    pub fn put(&mut self, id: u32, flow: &FlowSpec) -> bool {
        self.remove(id);
        let mut actions = [0; MOST_ACTIONS];
        let (Some(at), Some(len)) = (flow_at(id), encode(&flow.actions, &mut actions)) else { return false };
        let Some(place) = self.place_of(&flow.mask) else { return false };
        let bucket = bucket(self.seed, place, &flow.key);
        self.begin(at);
        let head = self.load(BUCKETS + bucket);
        self.store(at + 1, head);
        self.store(at + 2, 1 | (place as u64) << 8 | (len as u64) << 32);
        self.store(at + 3, flow.epoch);
        self.store_key(at + FLOW_KEY, &flow.key);
        for (n, word) in actions.as_chunks().0.iter().enumerate() {
            self.store(at + FLOW_ACTIONS + n, u64::from_ne_bytes(*word));
        }
        self.end(at);
        // Release: who finds it there finds it written.
        self.publish(BUCKETS + bucket, u64::from(id) + 1);
        self.flows.insert(id, (flow.mask, bucket));
        true
    }

    /// Takes the flow with this number out, if it is there.
    pub fn remove(&mut self, id: u32) {
        let Some((mask, bucket)) = self.flows.remove(&id) else { return };
        let Some(at) = flow_at(id) else { return };
        self.unlink(BUCKETS + bucket, id, self.load(at + 1));
        self.begin(at);
        self.store(at + 2, 0);
        self.end(at);
        if let Some((place, flows)) = self.masks.get_mut(&mask) {
            let place = *place;
            *flows -= 1;
            let left = *flows;
            if left == 0 {
                self.masks.remove(&mask);
                self.free_masks.push(place);
            }
            self.publish(mask_at(place) + 1, left);
        }
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        let all: Vec<u32> = self.flows.keys().copied().collect();
        all.into_iter().for_each(|id| self.remove(id));
    }

    /// Has what points at the flow point behind it.
    fn unlink(&self, head: usize, id: u32, behind: u64) {
        let mut at = head;
        for _ in 0..ENTRIES {
            let next = self.load(at);
            if next == u64::from(id) + 1 {
                return self.publish(at, behind);
            }
            match next.checked_sub(1).and_then(|next| flow_at(u32::try_from(next).ok()?)) {
                Some(flow) => at = flow + 1,
                None => return,
            }
        }
    }

    /// The place of a mask, which has one flow more then.
    fn place_of(&mut self, mask: &FlowMask) -> Option<usize> {
        if let Some((place, flows)) = self.masks.get_mut(mask) {
            *flows += 1;
            let (place, flows) = (*place, *flows);
            self.publish(mask_at(place) + 1, flows);
            return Some(place);
        }
        let place = self.free_masks.pop()?;
        let at = mask_at(place);
        self.begin(at);
        self.store_key(at + 4, &mask.0);
        self.store(at + 1, 1);
        self.end(at);
        let used = self.load(MASKS_USED).max(place as u64 + 1);
        self.publish(MASKS_USED, used);
        self.masks.insert(*mask, (place, 1));
        Some(place)
    }

    /// From here on what has this sequence number may be anything.
    fn begin(&self, at: usize) {
        self.store(at, self.load(at) | 1);
        // Who sees a word that is stored behind this sees the odd number, too.
        fence(Release);
    }

    fn end(&self, at: usize) {
        self.publish(at, (self.load(at) | 1).wrapping_add(1));
    }

    fn store_key(&self, at: usize, key: &FlowKey) {
        key.words().iter().enumerate().for_each(|(n, word)| self.store(at + n, *word));
    }

    fn load(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Relaxed);
        }
    }

    fn publish(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Release);
        }
    }
}

/// The bytes of actions, if there is room for them.
fn encode(actions: &[Action], to: &mut [u8; MOST_ACTIONS]) -> Option<usize> {
    postcard::to_slice(actions, to).ok().map(|bytes| bytes.len())
}
