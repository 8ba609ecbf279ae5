//! Buffers of a receiving ring: taken some at a time, handed out frame by frame, the rest given back.

use crate::chain::{MAX_PIECES, MAX_WASTED, PREFETCH};
use crate::{BURST, Chain, Chains, QueueError, Ring};
use arrayvec::ArrayVec;
use lasthop_guestmem::{GuestMemory, GuestSlice};

/// What became of a wish for buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The chains hold the bytes asked for.
    Enough,
    /// The driver has made too few buffers available; nothing was taken.
    NoBuffers,
    /// The next buffer is too small and may not be joined with others; nothing was taken.
    TooSmall,
}

/// Most descriptors that are walked for nothing while a ring's lock is held, however many frames find buffers between them.
const MOST_WASTED: usize = 8 * MAX_WASTED;

/// Chains taken from a ring that packets are written to. [`ReceiveBuffers::give_back`] what is left before the ring's lock is
/// released.
#[derive(Debug, Default)]
pub struct ReceiveBuffers<'m> {
    pub(crate) chains: Chains<'m>,
    /// Chains before this one have been handed out.
    pub(crate) first: usize,
    /// Chains from `first` up to this one hold the frame at hand.
    pub(crate) end: usize,
    /// The memory of those, side by side.
    joined: ArrayVec<GuestSlice<'m>, MAX_PIECES>,
    /// Chains given back because they point the wrong way.
    unfit: usize,
}

impl<'m> ReceiveBuffers<'m> {
    /// None taken yet.
    pub fn new() -> Self {
        Self { chains: Chains::default(), first: 0, end: 0, joined: ArrayVec::new(), unfit: 0 }
    }

    /// What was taken from the ring, for how much was walked for that, and why no more. Once it is spent no further chain is walked before the
    /// ring's lock is taken anew.
    #[inline]
    pub fn taken(&self) -> &Chains<'m> {
        &self.chains
    }

    /// Looks for no chains in the ring at all. Whether the next one is known to wait for a translation.
    pub fn give_up(&mut self, asked: bool) {
        (self.chains.most, self.chains.asked) = (0, asked);
    }

    /// Hands out chains that hold `need` bytes: several if `join` (VIRTIO_NET_F_MRG_RXBUF), otherwise exactly one.
    /// When more must be taken from the ring, `to_come` is how many frames are still to come. Chains pointing the wrong way
    /// go back to the driver unused.
    #[inline]
    pub fn reserve(
        &mut self,
        ring: &mut Ring,
        memory: &'m GuestMemory,
        need: usize,
        join: bool,
        to_come: usize,
    ) -> Result<Reserved, QueueError> {
        self.first = self.end;
        if let Some(chain) = self.chains.list.get(self.end)
            && chain.len() as usize >= need
            && !chain.is_bad()
        {
            self.end += 1;
            return Ok(self.join());
        }
        self.gather(ring, memory, need, join, to_come)
    }

    /// Whether frames that need so many bytes each can all be handed out, one after the other, before the first is: takes
    /// chains from the ring until there are enough. False if the driver has made too few available. True as well if it never
    /// could make enough available, more are asked for than can be held at once, or one of them is unfit: [`ReceiveBuffers::reserve`] will say.
    #[inline(never)]
    pub fn has(
        &mut self,
        ring: &mut Ring,
        memory: &'m GuestMemory,
        frames: impl Iterator<Item = usize> + Clone,
        join: bool,
    ) -> Result<bool, QueueError> {
        self.first = self.end;
        if frames.size_hint().0 > usize::from(ring.size()) {
            return Ok(true);
        }
        if self.chains.is_full() && self.first > 0 {
            // What was handed out takes up the space.
            self.give_back(ring);
        }
        self.make_room();
        let mut n = self.end;
        for need in frames.clone() {
            let mut bytes = 0;
            while bytes < need {
                if n == self.chains.list.len() {
                    let full = self.chains.is_full();
                    if full || !self.refill(ring, memory, frames.size_hint().0)? {
                        return Ok(full && !self.chains.asked);
                    }
                }
                let Some(chain) = self.chains.list.get(n) else { return Ok(false) };
                n += 1;
                match (chain.is_bad(), bytes) {
                    (true, 0) => continue,
                    (true, _) => return Ok(true),
                    (false, _) => bytes += chain.len() as usize,
                }
                if !join {
                    break;
                }
            }
        }
        Ok(true)
    }

    /// The rest of [`ReceiveBuffers::reserve`]: several chains, or more from the ring.
    fn gather(
        &mut self,
        ring: &mut Ring,
        memory: &'m GuestMemory,
        need: usize,
        join: bool,
        to_come: usize,
    ) -> Result<Reserved, QueueError> {
        let mut bytes = 0usize;
        loop {
            if self.end == self.chains.list.len() {
                if self.chains.is_full() && self.first > 0 {
                    // What was handed out takes up the space: begin anew with what was not.
                    self.end = self.first;
                    self.give_back(ring);
                    bytes = 0;
                }
                if !self.refill(ring, memory, to_come)? {
                    self.end = self.first;
                    let is_all = self.chains.is_full() && !self.chains.asked;
                    return Ok(if is_all { Reserved::TooSmall } else { Reserved::NoBuffers });
                }
            }
            let Some(chain) = self.chains.list.get(self.end) else { return Ok(Reserved::NoBuffers) };
            if chain.is_bad() {
                if self.end != self.first {
                    self.end = self.first;
                    return Ok(Reserved::TooSmall);
                }
                ring.stage_used(chain, 0);
                self.end += 1;
                self.first = self.end;
                // A driver may make them faster than we give them back: no more than a burst of them for each time that its
                // lock is taken, and beyond that one for each frame, which is lost for it.
                self.unfit += 1;
                if self.unfit >= BURST {
                    return Ok(Reserved::TooSmall);
                }
                continue;
            }
            self.end += 1;
            bytes += chain.len() as usize;
            if bytes >= need {
                return Ok(self.join());
            }
            if !join {
                self.end = self.first;
                return Ok(Reserved::TooSmall);
            }
        }
    }

    /// Takes more chains; false if there are none, or no room for them. A copy in each of its two callers: the one that nearly
    /// all frames take is some instructions shorter for it.
    #[inline(always)]
    fn refill(&mut self, ring: &mut Ring, memory: &'m GuestMemory, to_come: usize) -> Result<bool, QueueError> {
        self.make_room();
        let before = self.chains.list.len();
        if self.chains.is_full() {
            return Ok(false);
        }
        let result = ring.pop_writable(memory, &mut self.chains, to_come.max(1));
        if memory.is_translated() {
            ring.ask_ahead(memory, true, &mut self.chains);
        }
        self.chains.list.iter().skip(before).take(PREFETCH).for_each(|chain| chain.prefetch(true));
        // Chains before a broken one are good; if the frame needs more, the ring is asked again and says so again.
        match result {
            Err(error) if self.chains.list.len() == before => Err(error),
            _ => Ok(self.chains.list.len() > before),
        }
    }

    #[inline(always)]
    fn make_room(&mut self) {
        if self.first > 0 && self.unfit == 0 {
            // It was not for nothing that so much was walked.
            self.chains.most = (self.chains.wasted + MAX_WASTED).min(MOST_WASTED);
        }
        if self.first == self.chains.list.len() {
            // All handed out: their memory is written, their places are free.
            self.chains.make_room();
            (self.first, self.end) = (0, 0);
        }
    }

    /// The chains handed out last.
    #[inline]
    pub fn chains(&self) -> &[Chain<'m>] {
        self.chains.list.get(self.first..self.end).unwrap_or(&[])
    }

    /// Puts the memory of the chains at hand side by side. They may be too many pieces.
    #[inline(always)]
    fn join(&mut self) -> Reserved {
        if self.chains.join(self.first..self.end, &mut self.joined) {
            return Reserved::Enough;
        }
        self.end = self.first;
        Reserved::TooSmall
    }

    /// The memory of what [`ReceiveBuffers::reserve`] has handed out last, in order.
    #[inline]
    pub fn pieces(&self) -> &[GuestSlice<'m>] {
        &self.joined
    }

    /// Takes chains for `to_come` frames if none are at hand. What breaks the ring, [`ReceiveBuffers::reserve`] says.
    #[inline]
    pub fn stock(&mut self, ring: &mut Ring, memory: &'m GuestMemory, to_come: usize) {
        if self.at_hand().is_empty() {
            self.first = self.end;
            let _ = self.refill(ring, memory, to_come);
        }
    }

    /// The chains taken already that have not been handed out.
    #[inline]
    pub fn at_hand(&self) -> &[Chain<'m>] {
        self.chains.list.get(self.end..).unwrap_or(&[])
    }

    /// Notes the chains handed out last as used: `len` bytes have been written to them, one after the other.
    #[inline]
    pub fn stage(&self, ring: &mut Ring, len: usize) {
        ring.1.log_written(&self.joined, len);
        let mut left = len as u32;
        for chain in self.chains() {
            match chain.len().min(left) {
                0 => ring.stage_used(chain, 0),
                here => ring.stage_written(std::slice::from_ref(chain), std::iter::once(here)),
            }
            left = left.saturating_sub(chain.len());
        }
    }

    /// Hands out the first `n` of [`ReceiveBuffers::at_hand`], to which so many bytes each have been written, and notes them as used.
    #[inline]
    pub fn use_up(&mut self, ring: &mut Ring, n: usize, lens: impl Iterator<Item = u32> + Clone) {
        let to = self.chains.list.get(self.end..self.end + n).unwrap_or(&[]);
        if ring.1.is_logged() {
            let each = to.iter().zip(lens.clone());
            each.for_each(|(chain, len)| ring.1.log_written(&self.chains.pieces(chain), len as usize));
        }
        ring.stage_written(to, lens);
        self.end += to.len();
        self.first = self.end.saturating_sub(1);
    }

    /// Puts back what was not handed out, or was by a `reserve` that failed.
    pub fn give_back(&mut self, ring: &mut Ring) {
        ring.unpop(self.chains.list.get(self.end..).unwrap_or(&[]));
        self.chains.list.truncate(self.end);
    }
}
