//! The packed ring, device side (virtio 1.2 §2.8).
//!
//! What is ordered by what, on a processor that reorders; `split.rs` has the reasons:
//!
//! * The flags of a descriptor are its index: written last, with release order, and read first, with acquire order
//!   ([`Descriptors::load`]). Of a chain only the head's flags are: the driver writes those last of all.
//! * Used descriptors but the first are written in any order, then the first with release order (`publish`): a driver goes
//!   through them from the first on, and a driver that has seen the first sees the others.
//! * An event suppression structure is two words, of which the flags say whether the other one counts: written after it with
//!   release order, read before it with acquire order.
//! * Between showing something and reading the other side's wish, and between writing a wish and looking, there is a
//!   sequentially consistent fence.

use crate::chain::{ChainBuilder, Descriptor};
use crate::journal::{OpenBurst, Record};
use crate::position::{AVAIL, Position, USED, need_event};
use crate::setup::{QueueSetup, feature, part};
use crate::{Chain, Chains, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, MAX_CHAINS, QueueError};
use lasthop_guestmem::{Descriptors, GuestMemory, GuestSlice, PinnedSlice, Window, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Event suppression flags (§2.8.10): always, never, at a certain descriptor.
pub(crate) const EVENTS_ENABLE: u16 = 0;
pub(crate) const EVENTS_DISABLE: u16 = 1;
pub(crate) const EVENTS_DESC: u16 = 2;
/// Put where the driver does not look unless the flags are [`EVENTS_DESC`]: the structure is not zero while it has a
/// device.
const MARK: u16 = 0x7fff;

fn is_marked(device_event: &GuestSlice<'_>) -> bool {
    device_event.load_u16(0) | device_event.load_u16(2) != 0
}

/// A used descriptor to be, in one word as it will be written: length (32 bits) and id (16), but in place of the flags how many
/// slots its chain takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged(u64);

impl Staged {
    #[inline(always)]
    fn new(id: u16, slots: u16, len: u32) -> Self {
        Self(u64::from(len) | u64::from(id) << 32 | u64::from(slots) << 48)
    }

    #[inline(always)]
    fn slots(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The second half of the descriptor, with these flags.
    #[inline(always)]
    fn word(self, flags: u16) -> u64 {
        self.0 & 0x0000_ffff_ffff_ffff | u64::from(flags) << 48
    }

    /// What its flags hold beside those of its lap.
    fn written(self) -> u16 {
        if self.0 as u32 > 0 { DESC_WRITE } else { 0 }
    }
}

/// For how many staged chains there is memory from the start, in a ring that has so many: a packet becomes at most 2048 segments, and what
/// goes before it with the same lock held less than half as many. More are staged only where a segment takes several buffers.
const MOST_STAGED: usize = 4096;

#[derive(Debug)]
pub(crate) struct PackedRing {
    pub(crate) desc: PinnedSlice<16>,
    driver_event: PinnedSlice<4>,
    pub(crate) device_event: PinnedSlice<4>,
    pub(crate) size: u16,
    pub(crate) next_avail: Position,
    pub(crate) next_used: Position,
    /// Used descriptors that the driver does not see yet; `next_used` is behind them. They are written when they are
    /// shown, the last one first: a device killed in between leaves a head that is whole and a tail that is used.
    pub(crate) staged: Vec<Staged>,
    /// Chains and slots staged since the last publication.
    pub(crate) staged_chains: u16,
    pub(crate) staged_slots: u16,
    /// Those of them that were written to.
    pub(crate) staged_written: u16,
    /// Where the last buffer of one piece lay, or near it.
    near: u64,
    event_idx: bool,
    in_order: bool,
    indirect: bool,
}

/// As the split ring's function of this name, for descriptors that lie side by side from `next` on, `most` of them before the ring's end.
#[inline(never)]
fn singles<'m, const DEVICE_WRITES: bool>(
    chains: &mut Chains<'m>,
    window: &mut Window<'m>,
    desc: Descriptors<'_>,
    next: Position,
    most: usize,
) -> usize {
    const FLAGS: u16 = AVAIL | USED | DESC_NEXT | DESC_WRITE | DESC_INDIRECT;
    // They are compared where they lie, in the upper half of the last word.
    let wanted = u32::from(next.avail_flags() | if DEVICE_WRITES { DESC_WRITE } else { 0 }) << 16;
    let (first, mut here) = (usize::from(next.index), *window);
    let taken = desc.fill(&mut chains.list, first, most, |n, (addr, len, last)| {
        if last & u32::from(FLAGS) << 16 != wanted {
            return None;
        }
        if DEVICE_WRITES && (first + n) & 3 == 3 {
            // It will be read two lines of descriptors later, then marked used.
            desc.prefetch_for_write(first + n + 9);
        }
        here.find::<DEVICE_WRITES>(addr, len, last as u16).map(Chain)
    });
    *window = here;
    taken
}

impl PackedRing {
    pub(crate) fn new(
        setup: &QueueSetup,
        memory: &Arc<GuestMemory>,
        record: Option<&mut Record>,
    ) -> Result<Self, QueueError> {
        let size = setup.size;
        if size == 0 || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let desc = part(memory, setup.desc, 16 * usize::from(size))?;
        let device_event = part(memory, setup.device, 4)?;
        // Bits 16 to 31 say where the device left off using; all that we take we use, so both are the same place.
        let base = Position::from_bits(setup.base as u16);
        if base.index >= size {
            return Err(QueueError::Base(setup.base));
        }
        let position = record.and_then(|r| recover(&desc.get(), &device_event.get(), size, base, r)).unwrap_or(base);
        Ok(Self {
            desc,
            driver_event: part(memory, setup.driver, 4)?,
            device_event,
            size,
            next_avail: position,
            next_used: position,
            staged: Vec::with_capacity(usize::from(size).clamp(MAX_CHAINS, MOST_STAGED)),
            staged_chains: 0,
            staged_slots: 0,
            staged_written: 0,
            near: 0,
            event_idx: setup.has(feature::EVENT_IDX),
            in_order: setup.has(feature::IN_ORDER),
            indirect: setup.has(feature::INDIRECT),
        })
    }

    pub(crate) fn position(&self) -> u32 {
        let bits = u32::from(self.next_used.bits());
        bits | bits << 16
    }

    #[inline]
    fn is_available(&self) -> bool {
        state(&self.desc.get(), self.next_avail.index) == self.next_avail.avail_flags()
    }

    #[inline]
    pub(crate) fn pop<'m>(
        &mut self,
        memory: &'m GuestMemory,
        chains: &mut Chains<'m>,
        device_writes: bool,
        most: usize,
    ) -> Result<(), QueueError> {
        // Slots of chains taken still look available once the ring has come round, until the driver is shown that they were used. A driver
        // that makes them available before that would have more staged than the ring has places.
        let mut free = u32::from(self.size).saturating_sub(self.taken() + u32::from(self.staged_slots));
        let (mut next, mut left, mut result) = (self.next_avail, most, Ok(()));
        let (desc, mut window) = (self.desc.descriptors(), memory.window(self.near));
        while left > 0 && free > 0 {
            // As in a split ring: chains of one buffer at once, as many as there are in this lap, everything else by the walk.
            let most = left.min(free as usize).min(usize::from(self.size - next.index));
            let taken = if device_writes {
                singles::<true>(chains, &mut window, desc, next, most)
            } else {
                singles::<false>(chains, &mut window, desc, next, most)
            };
            next.advance(taken as u16, self.size);
            (free, left) = (free - taken as u32, left - taken);
            if taken == most {
                continue;
            }
            let Some(head) = desc.load(usize::from(next.index)).map(Descriptor::packed) else { break };
            if head.flags & (AVAIL | USED) != next.avail_flags() || chains.is_full() {
                break;
            }
            match self.take(chains.begin(memory, device_writes), next, free) {
                Ok(slots) => {
                    next.advance(slots, self.size);
                    (free, left) = (free - u32::from(slots), left - 1);
                }
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        self.near = window.place();
        self.next_avail = next;
        result
    }

    /// Slots of chains taken and not yet used.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.next_used.distance(self.next_avail, self.size) as u32
    }

    /// Takes the chain that begins at descriptor `at`; returns how many slots it has.
    #[inline(never)]
    fn take(&self, mut builder: ChainBuilder<'_, '_>, at: Position, most_slots: u32) -> Result<u16, QueueError> {
        let walked = self.walk(&mut builder, at, most_slots);
        builder.end(walked)
    }

    /// Walks the chain that begins at descriptor `at`; returns its id and slots.
    fn walk(
        &self,
        builder: &mut ChainBuilder<'_, '_>,
        mut at: Position,
        most_slots: u32,
    ) -> Result<(u16, u16), QueueError> {
        let ring = self.desc.get();
        let mut slots = 0;
        loop {
            // The head's flags were read with acquire order; the driver writes them last, so the rest of the chain is
            // there. A flag word that changes between the two reads only ever changes what this guest gets.
            let descriptor = Descriptor::packed(Descriptor::words(&ring, u32::from(at.index)));
            slots += 1;
            at.advance(1, self.size);
            if descriptor.flags & DESC_INDIRECT != 0 {
                let (table, entries) = builder.table(&descriptor, self.indirect && slots == 1)?;
                if entries > 1024 {
                    return Err(QueueError::ChainTooLong);
                }
                for index in 0..entries {
                    let mut inner = Descriptor::packed(Descriptor::words(&table, index));
                    if !builder.device_writes {
                        // DPDK's driver marks the header it sends as writable here (22.11). Reading it harms nobody.
                        inner.flags &= !DESC_WRITE;
                    }
                    if inner.flags & DESC_INDIRECT != 0 {
                        return Err(QueueError::Indirect(inner.len));
                    }
                    builder.add(&inner)?;
                }
                return Ok((descriptor.next_or_id, 1));
            }
            builder.add(&descriptor)?;
            if descriptor.flags & DESC_NEXT == 0 {
                // The id is ours to give back, nothing is looked up by it: any value is safe. A driver that checks
                // ids is told by an id of its own.
                return Ok((descriptor.next_or_id, slots));
            }
            if u32::from(slots) >= most_slots || slots >= 1024 {
                return Err(QueueError::ChainTooLong);
            }
        }
    }

    /// Leaves out the next slot.
    pub(crate) fn skip(&mut self) {
        self.next_avail.advance(1, self.size);
    }

    #[inline]
    pub(crate) fn unpop(&mut self, chains: &[Chain]) {
        for chain in chains.iter().rev() {
            self.next_avail.retreat(chain.slots(), self.size);
        }
    }

    /// As [`PackedRing::stage_used`] for chains that were only read. With IN_ORDER one descriptor stands for all (§2.8).
    #[inline]
    pub(crate) fn stage_read(&mut self, chains: &[Chain]) {
        if let ([.., last], true) = (chains, self.in_order) {
            let slots = chains.iter().fold(0u16, |n, c| n.saturating_add(c.slots()));
            self.staged.push(Staged::new(last.id(), slots, 0));
            return self.note_staged(chains.len() as u16, slots, false);
        }
        self.stage_all(chains, std::iter::repeat(0), false);
    }

    #[inline]
    pub(crate) fn stage_used(&mut self, chain: &Chain, len: u32) {
        self.stage_all(std::slice::from_ref(chain), std::iter::once(len), len > 0);
    }

    /// As [`PackedRing::stage_used`] for some chains, all of which were `written` to or none.
    #[inline]
    pub(crate) fn stage_all(&mut self, chains: &[Chain], lens: impl Iterator<Item = u32>, written: bool) {
        let (count, mut slots) = (chains.len() as u16, 0u32);
        self.staged.extend(chains.iter().zip(lens).map(|(chain, len)| {
            slots += u32::from(chain.slots());
            Staged::new(chain.id(), chain.slots(), len)
        }));
        self.note_staged(count, slots.min(u32::from(u16::MAX)) as u16, written);
    }

    #[inline]
    fn note_staged(&mut self, chains: u16, slots: u16, written: bool) {
        self.next_used.advance(slots, self.size);
        self.staged_chains = self.staged_chains.saturating_add(chains);
        self.staged_slots = self.staged_slots.saturating_add(slots);
        self.staged_written = self.staged_written.saturating_add(if written { chains } else { 0 });
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let Some((first, rest)) = self.staged.split_first() else { return false };
        let (desc, size, mut at) = (self.desc.descriptors(), self.size, self.next_used);
        let all = self.staged.len();
        let alike = [0, all].contains(&usize::from(self.staged_written));
        if alike && usize::from(self.staged_slots) == all {
            // All of one slot and with the same flags: those of this lap, then those of the one before, each side by side.
            let (before, here) = rest.split_at(rest.len().saturating_sub(usize::from(at.index)));
            let flags = at.used_flags() | first.written();
            desc.store_seconds(usize::from(at.index) - here.len(), here.iter().map(|staged| staged.word(flags)));
            let flags = Position { wrap: !at.wrap, ..at }.used_flags() | first.written();
            desc.store_seconds(usize::from(size) - before.len(), before.iter().map(|staged| staged.word(flags)));
            at.retreat(rest.len() as u16, size);
        } else {
            for staged in rest.iter().rev() {
                at.retreat(staged.slots(), size);
                desc.store_second(usize::from(at.index), staged.word(at.used_flags() | staged.written()));
            }
        }
        at.retreat(first.slots(), size);
        // Length, id and flags in one store. Release: a driver that sees the flags sees the used descriptors behind it and what was
        // written to buffers, and buffers are not read after it.
        self.desc.store_u64_release(usize::from(at.index) * 16 + 8, first.word(at.used_flags() | first.written()));
        self.staged.clear();
        let slots = std::mem::take(&mut self.staged_slots);
        (self.staged_chains, self.staged_written) = (0, 0);
        // The driver writes its wish, then looks for used descriptors; we do it the other way round (§2.8.10.1).
        fence(Ordering::SeqCst);
        let event = self.driver_event.get();
        // Acquire: the place is read after the flags that say that it counts.
        match event.load_u16_acquire(2) {
            EVENTS_DISABLE => false,
            EVENTS_DESC if self.event_idx => {
                let wanted = Position::from_bits(event.load_u16(0));
                // Unroll to indices on one line, as if the ring had no end (§2.8.10.1).
                let new = self.next_used.index;
                let mut at = wanted.index;
                if wanted.wrap != self.next_used.wrap {
                    at = at.wrapping_sub(self.size);
                }
                need_event(at, new, new.wrapping_sub(slots))
            }
            _ => true,
        }
    }

    /// Used descriptors that the driver does not see yet.
    pub(crate) fn staged(&self) -> Option<OpenBurst> {
        let mut begin = self.next_used;
        begin.retreat(self.staged_slots, self.size);
        let shown = self.staged_chains;
        (shown > 0).then_some(OpenBurst { begin: begin.bits(), chains: 0, shown, slots: self.staged_slots })
    }

    /// A predecessor was killed while it showed the driver a burst that began here: the tail of it is marked used, the
    /// head, which now is complete as well, is not. Goes on behind it.
    pub(crate) fn jump(&mut self, open: &OpenBurst) {
        let behind = behind(open, self.size);
        (self.next_avail, self.next_used) = (behind, behind);
    }

    /// Whether the next descriptor is marked used although the device has not come to it.
    pub(crate) fn is_tail_of_burst(&self) -> bool {
        state(&self.desc.get(), self.next_avail.index) == self.next_avail.used_flags()
    }

    pub(crate) fn disable_kicks(&mut self) {
        self.device_event.get().store_u16(2, EVENTS_DISABLE);
    }

    /// As [`Ring::enable_kicks`](crate::Ring::enable_kicks); what it skips are descriptors, not chains.
    pub(crate) fn enable_kicks(&mut self, skip: u16) -> Result<bool, QueueError> {
        let event = self.device_event.get();
        if self.event_idx {
            let mut wanted = self.next_avail;
            wanted.advance(skip.min(self.size - 1), self.size);
            event.store_u16(0, wanted.bits());
            // Release: a driver that sees that a place counts sees the place.
            event.store_u16_release(2, EVENTS_DESC);
        } else if skip == 0 {
            event.store_u16(0, MARK);
            event.store_u16(2, EVENTS_ENABLE);
        }
        // The driver shows a descriptor, then reads our wish; we do it the other way round (§2.8.10.1).
        fence(Ordering::SeqCst);
        Ok(self.is_available())
    }
}

/// Where the ring really stands, if the front-end gives us the base it gave our predecessor although the ring has moved
/// on since. `None` if that is not so: the driver has reset the ring. Descriptors do not tell (those inside of chains
/// keep the flags of any lap); but a device leaves its mark on its event suppression structure, which only a driver that
/// starts anew sets to zero.
fn recover(
    desc: &GuestSlice<'_>,
    event: &GuestSlice<'_>,
    size: u16,
    base: Position,
    record: &mut Record,
) -> Option<Position> {
    // The ring before may have been of another size.
    record.open = record.open.filter(|open| open.slots <= size && Position::from_bits(open.begin).index < size);
    let position = last_shown(desc, size, record);
    if position == base || position.index >= size || !is_marked(event) {
        return None;
    }
    if record.base != base {
        record.open = Some(dropped_by_front_end(desc, size, base, record.base, position)?);
    }
    Some(position)
}

/// The flags by which a descriptor is available or used. What they speak of is read behind them.
#[inline]
fn state(desc: &GuestSlice<'_>, index: u16) -> u16 {
    desc.load_u16_acquire(usize::from(index) * 16 + 14) & (AVAIL | USED)
}

/// How far a predecessor showed the driver used descriptors: up to the position of its record, or behind the burst that it was
/// showing when it was killed, if the first of that is no longer available as it was. (It is used, and may have been made
/// available again for the next lap.)
fn last_shown(desc: &GuestSlice<'_>, size: u16, record: &Record) -> Position {
    let Some(open) = record.open else { return record.position };
    let begin = Position::from_bits(open.begin);
    if state(desc, begin.index) == begin.avail_flags() { record.position } else { behind(&open, size) }
}

/// The place behind a burst.
pub(crate) fn behind(open: &OpenBurst, size: u16) -> Position {
    let mut behind = Position::from_bits(open.begin);
    behind.advance(open.slots, size);
    behind
}

/// QEMU (7.2) itself drops what a guest sends while it has no back-end. In the last lap before the base that it knows, `known`, it
/// does so there, out of turn, and gives us the `base` behind. Then all from the ring's `position` up to that base are to be completed
/// as one open burst. `None` if that is not what has happened.
fn dropped_by_front_end(
    desc: &GuestSlice<'_>,
    size: u16,
    base: Position,
    known: Position,
    position: Position,
) -> Option<OpenBurst> {
    let slots = position.distance(known, size) + known.distance(base, size);
    if slots > i32::from(size) || state(desc, position.index) == position.used_flags() {
        return None;
    }
    // Nor are more shown in one go than are staged.
    Some(OpenBurst { begin: position.bits(), slots: slots as u16, chains: 0x7fff, shown: MOST_STAGED as u16 })
}
