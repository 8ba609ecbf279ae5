//! The device's side: a walk.

use crate::layout::{
    BUCKETS, FLOW_ACTIONS, FLOW_KEY, KEY, MASKS_USED, MOST_ACTIONS, MOST_MASKS, SEED, VERSION, WORDS, bucket, flow_at,
    mask_at,
};
use lasthop_flow::FlowSpec;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_sys::SharedWords;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};
use zerocopy::IntoBytes;

/// Flows of one bucket that a walk looks at. There are hardly ever more than a few; what is behind them is not found.
pub const MOST_STEPS: usize = 16;

/// The table, mapped to be read.
#[derive(Debug)]
pub struct Table(SharedWords);

/// What a walk came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The flow that a packet meets, and its number.
    pub flow: Option<(u32, FlowSpec)>,
    /// Bytes that were read.
    pub bytes: u64,
}

impl Table {
    /// Maps it; `INVAL` if the file has another length. Until control has made a table of it, none of another version included, nothing is found there.
    pub fn map(fd: impl AsFd) -> Result<Self, Errno> {
        if rustix::fs::fstat(&fd)?.st_size != (WORDS * 8) as i64 {
            return Err(Errno::INVAL);
        }
        SharedWords::map_to_read(fd, WORDS).map(Self)
    }

    /// Looks for a flow that a packet with this key meets. At most [`MOST_STEPS`] flows for each of the 128 masks are looked at, whatever is written there.
    pub fn walk(&self, key: &FlowKey) -> Found {
        let mut found = Found { flow: None, bytes: 8 };
        if self.acquire(0) != VERSION {
            return found;
        }
        let (seed, used) = (self.word(SEED), self.word(MASKS_USED).min(MOST_MASKS as u64) as usize);
        found.bytes += 16;
        for place in 0..used {
            let at = mask_at(place);
            let sequence = self.acquire(at);
            // No flow has it, or it is being written.
            if sequence % 2 == 1 || self.word(at + 1) == 0 {
                found.bytes += 16;
                continue;
            }
            let mask = FlowMask(self.key(at + 4));
            found.bytes += 16 + 8 * KEY as u64;
            let masked = key.masked(&mask);
            let flow = self.chain(bucket(seed, place, &masked), place, &masked, &mut found.bytes);
            // The mask was this one all the while.
            fence(Acquire);
            if let Some((id, mut flow)) = flow.filter(|_| self.word(at) == sequence) {
                flow.mask = mask;
                found.flow = Some((id, flow));
                return found;
            }
        }
        found
    }

    fn chain(&self, bucket: usize, mask: usize, key: &FlowKey, bytes: &mut u64) -> Option<(u32, FlowSpec)> {
        let mut next = self.word(BUCKETS + bucket);
        *bytes += 8;
        for _ in 0..MOST_STEPS {
            let id = u32::try_from(next.checked_sub(1)?).ok()?;
            let at = flow_at(id)?;
            let sequence = self.acquire(at);
            let (after, what, epoch) = (self.word(at + 1), self.word(at + 2), self.word(at + 3));
            *bytes += 32 + 8 * KEY as u64;
            let is_it = sequence.is_multiple_of(2) && what & 1 == 1 && what >> 8 & 0xff == mask as u64;
            if is_it && self.key(at + FLOW_KEY) == *key {
                let actions: [u64; MOST_ACTIONS / 8] = std::array::from_fn(|n| self.word(at + FLOW_ACTIONS + n));
                *bytes += MOST_ACTIONS as u64;
                fence(Acquire);
                if self.word(at) == sequence {
                    let actions = actions.as_bytes().get(..(what >> 32) as usize)?;
                    let actions = postcard::from_bytes(actions).ok()?;
                    return Some((id, FlowSpec { key: *key, mask: FlowMask::default(), actions, epoch }));
                }
            }
            next = after;
        }
        None
    }

    fn key(&self, at: usize) -> FlowKey {
        let words: [u64; KEY] = std::array::from_fn(|n| self.word(at + n));
        zerocopy::transmute!(words)
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).map_or(0, |word: &AtomicU64| word.load(Relaxed))
    }

    /// A sequence number, before what it is about.
    fn acquire(&self, at: usize) -> u64 {
        self.0.get(at).map_or(1, |word| word.load(Acquire))
    }
}
