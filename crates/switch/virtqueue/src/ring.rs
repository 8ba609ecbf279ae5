//! Either layout behind one set of calls.

use crate::journal::{OpenBurst, Record};
use crate::packed::{PackedRing, behind};
use crate::split::SplitRing;
use crate::{Chain, Chains, QueueError, QueueSetup, feature};
use lasthop_guestmem::GuestMemory;
use std::sync::Arc;

/// How many chains are looked at behind those that were taken, and behind one that waits for a translation, so that theirs are asked for.
const ASK_AHEAD: usize = 32;
/// Most pages of translated addresses that are looked up, and descriptors that are walked, behind the chains that are taken while a ring's lock
/// is held, before another chain is begun: so that what waits for a translation asks for it early.
const MOST_AHEAD: usize = 1024;

/// A started ring, device side. One thread at a time: the queue's lock sees to it. With the memory it lies in, and how much had been asked for
/// of its port when it last asked ahead.
#[derive(Debug)]
pub struct Ring(pub(crate) Layout, pub(crate) Arc<GuestMemory>, u64);

#[derive(Debug)]
pub(crate) enum Layout {
    Split(SplitRing),
    Packed(PackedRing),
}

macro_rules! either {
    ($layout:expr, $ring:ident => $call:expr) => {
        match $layout {
            Layout::Split($ring) => $call,
            Layout::Packed($ring) => $call,
        }
    };
}

impl Ring {
    pub(crate) fn new(
        setup: &QueueSetup,
        memory: &Arc<GuestMemory>,
        record: Option<&mut Record>,
    ) -> Result<Self, QueueError> {
        let layout = if setup.has(feature::PACKED) {
            Layout::Packed(PackedRing::new(setup, memory, record)?)
        } else {
            Layout::Split(SplitRing::new(setup, memory)?)
        };
        Ok(Self(layout, memory.clone(), u64::MAX))
    }

    /// Where the ring stands, as GET_VRING_BASE wants it (vhost-user, "Vring state"): everything before is complete.
    pub fn position(&self) -> u32 {
        either!(&self.0, r => r.position())
    }

    /// Entries: no more chains than these can be available.
    pub(crate) fn size(&self) -> u16 {
        either!(&self.0, r => r.size)
    }

    /// Whether its first descriptor is all zeros, which none is that a driver ever made available.
    pub(crate) fn is_blank(&self) -> bool {
        either!(&self.0, r => r.desc.descriptors().load(0) == Some((0, 0, 0)))
    }

    /// A note on chains just taken, for the journal. None is staged yet.
    #[inline]
    pub(crate) fn open_burst(&self, chains: &[Chain]) -> OpenBurst {
        let slots = match &self.0 {
            Layout::Split(_) => chains.len() as u16,
            Layout::Packed(r) => r.taken() as u16,
        };
        OpenBurst { begin: self.position() as u16, chains: chains.len() as u16, shown: 0, slots }
    }

    /// A note on chains that were put back although some of them have been delivered.
    pub(crate) fn open_ahead(&self, chains: u16) -> OpenBurst {
        OpenBurst { begin: self.position() as u16, chains, shown: 0, slots: 0 }
    }

    /// What is staged and worth noting beside the `noted` chains of a burst: whatever a successor cannot tell from the
    /// ring. A split ring's used index says what was shown.
    #[inline]
    pub(crate) fn staged(&self, noted: u16) -> Option<OpenBurst> {
        let staged = match &self.0 {
            Layout::Split(r) if noted > 0 => r.staged(),
            Layout::Split(_) => None,
            Layout::Packed(r) => r.staged(),
        }?;
        Some(OpenBurst { chains: noted, ..staged })
    }

    /// Where a ring stands behind the chains of a burst that were being shown.
    pub(crate) fn behind(&self, open: &OpenBurst) -> u16 {
        match &self.0 {
            Layout::Split(_) => open.begin.wrapping_add(open.shown),
            Layout::Packed(r) => behind(open, r.size).bits(),
        }
    }

    /// If a predecessor was killed while it showed chains to the driver, and the next chain is one that it had come to:
    /// shows those before, which are staged, and goes on behind them all.
    pub(crate) fn finish_showing(&mut self, open: &OpenBurst) -> bool {
        let half = self.is_half_shown(open);
        if let Layout::Packed(r) = &mut self.0
            && half
        {
            r.publish();
            r.jump(open);
        }
        half
    }

    /// Whether the next chain is the first of those that a predecessor had marked used when it was killed.
    pub(crate) fn is_half_shown(&self, open: &OpenBurst) -> bool {
        matches!(&self.0, Layout::Packed(r) if open.shown > 0 && r.is_tail_of_burst())
    }

    /// Takes up to `most` chains that the device is to read. Chains before a broken one are still delivered: they are in `chains` when the
    /// error comes. Two ways, of which the first hands over to the second at each chain that it
    /// cannot take, and goes on behind it:
    ///
    /// 1. `singles`, 30 instructions a chain: chains of one descriptor whose buffers lie in one region each, and 12 more where that is not the
    ///    region of the one before.
    /// 2. `take`: several descriptors, an indirect table, a buffer in several regions, a chain that breaks the rules. Each of its descriptors
    ///    is read anew, once.
    #[inline]
    pub fn pop<'m>(&mut self, memory: &'m GuestMemory, chains: &mut Chains<'m>, most: usize) -> Result<(), QueueError> {
        let result = either!(&mut self.0, r => r.pop(memory, chains, false, most));
        chains.asked = result == Err(QueueError::Asked);
        if chains.asked {
            self.ask_ahead(memory, false, chains);
            return Ok(());
        }
        result
    }

    /// A chain that waits for the translation of an address, which is no error, stays in the ring. Those that come next would wait for theirs
    /// one by one, and packets that do not wait for buffers would find none: all are asked for, as far as [`MOST_AHEAD`] goes for `chains`. Not
    /// again while none is taken and nothing new is asked for: what was asked a moment ago is on its way.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_ahead(&mut self, memory: &GuestMemory, device_writes: bool, chains: &mut Chains<'_>) {
        let asked = || memory.table().map_or(0, |table| table.asked());
        if chains.list.is_empty() && self.2 == asked() {
            return;
        }
        either!(&mut self.0, r => {
            let (next, mut left) = (r.next_avail, ASK_AHEAD);
            while left > 0 && chains.ahead < MOST_AHEAD {
                let mut walked = Chains::default();
                let result = r.pop(memory, &mut walked, device_writes, left);
                chains.ahead += walked.wasted() + walked.pieces.len();
                if result != Err(QueueError::Asked) {
                    break;
                }
                r.skip();
                left -= (walked.list.len() + 1).min(left);
            }
            r.next_avail = next;
        });
        self.2 = asked();
    }

    /// Puts back the last chains taken, given in the order they were taken.
    #[inline]
    pub fn unpop(&mut self, chains: &[Chain]) {
        either!(&mut self.0, r => r.unpop(chains))
    }

    /// Some chains were put back for a while: those that have come behind them are to be seen all the same.
    #[inline]
    pub fn look_again(&mut self) {
        if let Layout::Split(r) = &mut self.0 {
            r.look_again();
        }
    }

    /// Takes up to `most` chains that the device is to write, as [`Ring::pop`].
    #[inline]
    pub(crate) fn pop_writable<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        most: usize,
    ) -> Result<(), QueueError> {
        let result = either!(&mut self.0, r => r.pop(memory, chains, true, most));
        chains.asked = result == Err(QueueError::Asked);
        if chains.asked { Ok(()) } else { result }
    }

    /// Notes that a chain is used and `len` bytes of it were written (0 for one that was read). In the order taken.
    /// The driver sees nothing of it before [`Ring::publish`]. Where there is a log, chains that were written to come by
    /// [`crate::ReceiveBuffers`] alone, which know their memory.
    #[inline]
    pub fn stage_used(&mut self, chain: &Chain, len: u32) {
        debug_assert!(len == 0 || !self.1.is_logged(), "written to, and not in the log");
        either!(&mut self.0, r => r.stage_used(chain, len))
    }

    /// As [`Ring::stage_used`] for some chains, each with what was written to it, which is not nothing.
    #[inline]
    pub(crate) fn stage_written(&mut self, chains: &[Chain], lens: impl Iterator<Item = u32>) {
        match &mut self.0 {
            Layout::Split(r) => r.stage_all(chains, lens),
            Layout::Packed(r) => r.stage_all(chains, lens, true),
        }
    }

    /// As [`Ring::stage_used`] for chains that were only read.
    #[inline]
    pub fn stage_read(&mut self, chains: &[Chain]) {
        either!(&mut self.0, r => r.stage_read(chains))
    }

    /// Shows the driver all that was staged, at once; true if it wants to be interrupted for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        either!(&mut self.0, r => r.publish())
    }

    /// Asks the driver not to kick: we look by ourselves.
    pub fn disable_kicks(&mut self) {
        either!(&mut self.0, r => r.disable_kicks())
    }

    /// Asks the driver to kick for the next chain, or only when `skip` are there before it; without EVENT_IDX a driver
    /// that may skip some does not kick at all. True if one is there already: then there may be no kick for it.
    pub fn enable_kicks(&mut self, skip: u16) -> Result<bool, QueueError> {
        either!(&mut self.0, r => r.enable_kicks(skip))
    }
}

impl Drop for Ring {
    /// Its own parts, where it writes all the time, go into the log once: now.
    fn drop(&mut self) {
        match &self.0 {
            Layout::Split(r) => self.1.log_written(&[r.used.get()], usize::MAX),
            Layout::Packed(r) => self.1.log_written(&[r.desc.get(), r.device_event.get()], usize::MAX),
        }
    }
}
