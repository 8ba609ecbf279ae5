//! The split ring, device side (virtio 1.2 §2.7).
//!
//! What is ordered by what, on a processor that reorders (the driver does the same the other way round):
//!
//! * The driver writes descriptors and available entries, then its index with release order; we read the index with acquire
//!   order (`refresh`), then those. All of them were written before the index that we saw, so plain words do.
//! * We write buffers and used entries, then our index with release order (`publish`). Release also keeps our *reads* of the
//!   driver's buffers before it: the driver may write anew to a buffer as soon as it sees it used.
//! * A side that wants to sleep writes a wish to be woken and then looks for work once more; a side that has work shows it and then looks
//!   for the wish (§2.7.10.1, §2.7.13.4.1). Each writes one word and reads the other's. Acquire and release allow a processor to
//!   read before its own write is seen by others: both could miss, and the ring would stand still. A sequentially consistent
//!   fence between the write and the read on both sides forbids that: one of the two reads comes second in the order of
//!   fences and sees the other's write. So there is one in `publish` and one in `enable_kicks`, and nowhere else: `pop`
//!   promises nobody anything.
//! * A word that only advises (do not kick, do not interrupt) is ordered by nothing: it may be seen late at any time.

use crate::chain::{ChainBuilder, Descriptor};
use crate::journal::OpenBurst;
use crate::position::need_event;
use crate::setup::{QueueSetup, feature, part};
use crate::{Chain, Chains, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, QueueError};
use lasthop_guestmem::{Descriptors, Entries, GuestMemory, PinnedSlice, Window, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Used ring flag: do not kick me (§2.7.10).
const USED_NO_NOTIFY: u16 = 1;
/// Available ring flag: do not interrupt me (§2.7.7).
const AVAIL_NO_INTERRUPT: u16 = 1;

#[derive(Debug)]
pub(crate) struct SplitRing {
    pub(crate) desc: PinnedSlice<16>,
    avail: PinnedSlice,
    pub(crate) used: PinnedSlice<4>,
    pub(crate) size: u16,
    /// `size - 1`, in a word of its own: read together with an index just written, it would wait for that.
    mask: usize,
    /// Next entry of the available ring to take.
    pub(crate) next_avail: u16,
    /// The driver's index when it was last read.
    seen_avail: u16,
    /// Next entry of the used ring to fill; what the driver sees is `published`.
    pub(crate) next_used: u16,
    pub(crate) published: u16,
    /// Where the last buffer of one piece lay, or near it.
    near: u64,
    event_idx: bool,
    in_order: bool,
    indirect: bool,
}

/// Takes chains of one buffer that lies in one region, up to the first that is something else: nearly all chains of most drivers.
/// Each descriptor is read once, and what is not taken is read anew and walked, so only one reading ever counts. Takes for granted that
/// `most` chains wait in the ring. A function of its own, so that all it works with stays in registers.
#[inline(never)]
fn singles<'m, const DEVICE_WRITES: bool>(
    chains: &mut Chains<'m>,
    window: &mut Window<'m>,
    avail: Entries<'_, u16>,
    desc: Descriptors<'_>,
    next: u16,
    most: usize,
) -> usize {
    let (mut here, wanted) = (*window, if DEVICE_WRITES { DESC_WRITE } else { 0 });
    let taken = avail.fill(&mut chains.list, usize::from(next), most, |head| {
        let Descriptor { addr, len, flags, .. } = Descriptor::split(desc.load(usize::from(head))?);
        let is_single = flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == wanted;
        if is_single { here.find::<DEVICE_WRITES>(addr, len, head).map(Chain) } else { None }
    });
    *window = here;
    taken
}

impl SplitRing {
    pub(crate) fn new(setup: &QueueSetup, memory: &Arc<GuestMemory>) -> Result<Self, QueueError> {
        let size = setup.size;
        if !size.is_power_of_two() || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let n = usize::from(size);
        let (desc, used) = (part(memory, setup.desc, 16 * n)?, part(memory, setup.device, 6 + 8 * n)?);
        // A front-end that lost its device without notice may not know how far it got; the ring does. All that was
        // taken is completed before anything else can happen to it, so the used index is also the next to take.
        let position = used.get().load_u16(2);
        Ok(Self {
            desc,
            avail: part(memory, setup.driver, 6 + 2 * n)?,
            used,
            size,
            mask: n - 1,
            next_avail: position,
            seen_avail: position,
            next_used: position,
            published: position,
            near: 0,
            event_idx: setup.has(feature::EVENT_IDX),
            in_order: setup.has(feature::IN_ORDER),
            indirect: setup.has(feature::INDIRECT),
        })
    }

    pub(crate) fn position(&self) -> u32 {
        u32::from(self.next_used)
    }

    /// How many chains wait, reading the driver's index only if none is known of.
    #[inline]
    fn waiting(&mut self) -> Result<u16, QueueError> {
        let known = self.seen_avail.wrapping_sub(self.next_avail);
        if known != 0 {
            return Ok(known);
        }
        self.refresh()
    }

    #[inline]
    fn refresh(&mut self) -> Result<u16, QueueError> {
        // Acquire: the entries and descriptors behind this index are read after it.
        let driver = self.avail.get().load_u16_acquire(2);
        let waiting = driver.wrapping_sub(self.next_avail);
        if waiting > self.size {
            return Err(QueueError::AvailableJump { driver, device: self.next_avail, size: self.size });
        }
        self.seen_avail = driver;
        Ok(waiting)
    }

    #[inline]
    pub(crate) fn pop<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        device_writes: bool,
        most: usize,
    ) -> Result<(), QueueError> {
        let mut left = usize::from(self.waiting()?).min(most);
        let (mut next, mut result) = (self.next_avail, Ok(()));
        // The bounds of the available ring hold for all of it.
        let Some(avail) = self.avail.entries::<u16>(4, self.mask) else { return Ok(()) };
        let (desc, mut window) = (self.desc.descriptors(), memory.window(self.near));
        while left > 0 {
            let most = left.min(self.mask + 1 - (usize::from(next) & self.mask));
            let taken = if device_writes {
                singles::<true>(chains, &mut window, avail, desc, next, most)
            } else {
                singles::<false>(chains, &mut window, avail, desc, next, most)
            };
            next = next.wrapping_add(taken as u16);
            left -= taken;
            if taken == most {
                continue;
            }
            match self.take(memory, chains, device_writes, avail.load(usize::from(next))) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            next = next.wrapping_add(1);
            left -= 1;
        }
        self.near = window.place();
        self.next_avail = next;
        result
    }

    /// Leaves out the next chain.
    pub(crate) fn skip(&mut self) {
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn unpop(&mut self, chains: &[Chain]) {
        self.next_avail = self.next_avail.wrapping_sub(chains.len() as u16);
    }

    /// Reads the driver's index before the next chain is taken, however many are known of.
    pub(crate) fn look_again(&mut self) {
        self.seen_avail = self.next_avail;
    }

    /// As [`SplitRing::stage_used`] for chains that were only read. With IN_ORDER one entry stands for all (§2.7.9).
    #[inline]
    pub(crate) fn stage_read(&mut self, chains: &[Chain]) {
        if let ([.., last], true) = (chains, self.in_order) {
            self.stage_used(last, 0);
            self.next_used = self.next_used.wrapping_add(chains.len() as u16 - 1);
            return;
        }
        self.stage_all(chains, std::iter::repeat(0));
    }

    #[inline]
    pub(crate) fn stage_used(&mut self, chain: &Chain, len: u32) {
        self.stage_all(std::slice::from_ref(chain), std::iter::once(len));
    }

    /// As [`SplitRing::stage_used`] for some chains, each with what was written to it: the ring's bounds are checked once.
    #[inline]
    pub(crate) fn stage_all(&mut self, chains: &[Chain], lens: impl Iterator<Item = u32>) {
        let Some(used) = self.used.entries::<[u32; 2]>(4, self.mask) else { return };
        let mut next = usize::from(self.next_used);
        // Eight to a cache line, which the driver has read since it was last ours: those of the next burst.
        (0..=chains.len() / 8).for_each(|line| used.prefetch_for_write(next + 16 + 8 * line));
        for (chain, len) in chains.iter().zip(lens) {
            used.store(next, u32::from(chain.id()), len);
            next += 1;
        }
        self.next_used = next as u16;
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        // Release: used entries and what was written to buffers are seen before it, and buffers are not read after it.
        self.used.get().store_u16_release(2, new);
        self.published = new;
        // The driver writes its wish, then looks for used entries; we do it the other way round (§2.7.10.1). Not weaker:
        // the index just written must be seen before the wish is read.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let wanted = self.avail.get().load_u16(4 + 2 * usize::from(self.size));
            need_event(wanted, new, old)
        } else {
            self.avail.get().load_u16(0) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// Used entries that the driver does not see yet.
    pub(crate) fn staged(&self) -> Option<OpenBurst> {
        let shown = self.next_used.wrapping_sub(self.published);
        (shown > 0).then_some(OpenBurst { begin: self.published, chains: 0, shown, slots: shown })
    }

    /// Tells the driver not to kick. With EVENT_IDX the old `avail_event` stays behind, which says the same.
    pub(crate) fn disable_kicks(&mut self) {
        if !self.event_idx {
            self.used.get().store_u16(0, USED_NO_NOTIFY);
        }
    }

    /// As [`Ring::enable_kicks`](crate::Ring::enable_kicks).
    pub(crate) fn enable_kicks(&mut self, skip: u16) -> Result<bool, QueueError> {
        if self.event_idx {
            let wanted = self.next_avail.wrapping_add(skip.min(self.size - 1));
            self.used.get().store_u16(4 + 8 * usize::from(self.size), wanted);
        } else if skip == 0 {
            self.used.get().store_u16(0, 0);
        }
        // The driver shows a chain, then reads our wish; we do it the other way round (§2.7.10.1). The wish must be seen
        // before we look: otherwise the driver may find kicks off, and we the ring empty.
        fence(Ordering::SeqCst);
        Ok(self.refresh()? != 0)
    }

    /// Takes the chain that begins at descriptor `head`; false if there is no room for it.
    #[inline(never)]
    fn take<'m>(
        &self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        device_writes: bool,
        head: u16,
    ) -> Result<bool, QueueError> {
        if chains.is_full() {
            return Ok(false);
        }
        let mut builder = chains.begin(memory, device_writes);
        let walked = self.walk(&mut builder, head);
        builder.end(walked).map(|_| true)
    }

    /// Walks the chain that begins at descriptor `head`; returns its id and slots.
    fn walk(&self, builder: &mut ChainBuilder<'_, '_>, head: u16) -> Result<(u16, u16), QueueError> {
        let (mut table, mut entries) = (self.desc.get(), u32::from(self.size));
        let mut index = u32::from(head);
        let mut steps = 0;
        let mut indirect = self.indirect;
        loop {
            if index >= entries {
                return Err(QueueError::DescriptorIndex { index, entries });
            }
            let descriptor = Descriptor::split(Descriptor::words(&table, index));
            if descriptor.flags & DESC_INDIRECT != 0 {
                (table, entries) = builder.table(&descriptor, indirect)?;
                (index, indirect) = (0, false);
                continue;
            }
            builder.add(&descriptor)?;
            if descriptor.flags & DESC_NEXT == 0 {
                return Ok((head, 1));
            }
            steps += 1;
            if steps >= entries || steps >= 1024 {
                return Err(QueueError::ChainTooLong);
            }
            index = u32::from(descriptor.next_or_id);
        }
    }
}
