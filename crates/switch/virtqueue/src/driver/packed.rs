//! The packed ring, driver side (virtio 1.2 §2.8).

use super::split::is_after;
use super::{Batch, DriverError, Full, Piece, RingLayout, Slot, Tables, indirect, part, pieces, room, slots, word};
use crate::packed::{EVENTS_DESC, EVENTS_DISABLE, EVENTS_ENABLE};
use crate::position::{AVAIL, Position, USED, need_event};
use crate::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, QueueError};
use lasthop_guestmem::{GuestMemory, PinnedSlice, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct PackedDriver {
    desc: PinnedSlice,
    driver_event: PinnedSlice,
    device_event: PinnedSlice,
    tables: Option<Tables>,
    size: u16,
    /// By buffer id.
    slots: Box<[Slot]>,
    free_id: u16,
    /// Ring entries not in use.
    free: u16,
    next_avail: Position,
    next_used: Position,
    /// Numbers of the next buffer to add and of the first that the device has not been shown.
    next_number: u32,
    published: u32,
    used: u32,
    /// First descriptor not yet shown: its flags are written last.
    staged: Option<(u16, u16)>,
    staged_entries: u16,
    /// IN_ORDER: id of the oldest buffer.
    oldest: u16,
    batch: Option<Batch>,
    event_idx: bool,
    in_order: bool,
}

impl PackedDriver {
    pub(super) fn new(layout: &RingLayout, memory: &Arc<GuestMemory>) -> Result<Self, QueueError> {
        let size = layout.size;
        if size == 0 || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let start = Position { index: 0, wrap: true };
        Ok(Self {
            desc: part(memory, layout.desc, 16 * usize::from(size), 16)?,
            driver_event: part(memory, layout.driver, 4, 4)?,
            device_event: part(memory, layout.device, 4, 4)?,
            tables: Tables::new(layout, memory)?,
            size,
            slots: slots(size),
            free_id: 0,
            free: size,
            next_avail: start,
            next_used: start,
            next_number: 0,
            published: 0,
            used: 0,
            staged: None,
            staged_entries: 0,
            oldest: 0,
            batch: None,
            event_idx: layout.event_idx,
            in_order: layout.in_order,
        })
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.published.wrapping_sub(self.used) as u16
    }

    pub(super) fn unpublished(&self) -> u16 {
        self.next_number.wrapping_sub(self.published) as u16
    }

    pub(super) fn base(&self) -> u32 {
        let bits = u32::from(self.next_used.bits());
        bits | bits << 16
    }

    #[inline]
    pub(super) fn add(&mut self, readable: &[Piece], writable: &[Piece], token: u32) -> Result<(), Full> {
        let count = readable.len() + writable.len();
        let table = indirect(&self.tables, count);
        let entries = if table.is_some() { 1 } else { count };
        // A buffer takes one id and at least one entry, so there is an id if there is an entry.
        if entries == 0 || entries > usize::from(self.free) {
            return Err(Full);
        }
        let (id, start, desc) = (self.free_id, self.next_avail, self.desc.get());
        let mut first_flags = start.avail_flags();
        if let Some(table) = table {
            let addr = table.fill(id, readable, writable, true);
            first_flags |= DESC_INDIRECT;
            let at = usize::from(start.index) * 16;
            desc.store_u64(at, addr);
            self.store_first(at, 16 * count as u32, id, first_flags);
            self.next_avail.advance(1, self.size);
        } else {
            for (i, (piece, write)) in pieces(readable, writable).enumerate() {
                let at = usize::from(self.next_avail.index) * 16;
                let mut flags = self.next_avail.avail_flags() | if write { DESC_WRITE } else { 0 };
                if i + 1 < count {
                    flags |= DESC_NEXT;
                }
                desc.store_u64(at, piece.0);
                if i == 0 {
                    first_flags = flags;
                    self.store_first(at, piece.1, id, flags);
                } else {
                    desc.store_u64(at + 8, word(piece.1, id, flags));
                }
                self.next_avail.advance(1, self.size);
            }
        }
        if self.staged.is_none() {
            self.staged = Some((start.index, first_flags));
        }
        let entries = entries as u16;
        self.staged_entries += entries;
        self.free -= entries;
        let slot = &mut self.slots[usize::from(id)];
        *slot = Slot { token, room: room(writable), entries, last: id, link: slot.link, number: self.next_number };
        self.free_id = slot.link;
        self.next_number = self.next_number.wrapping_add(1);
        Ok(())
    }

    /// Writes the second half of a buffer's first descriptor, but its flags only if the device cannot get there yet:
    /// a descriptor before it has not been shown.
    #[inline]
    fn store_first(&self, at: usize, len: u32, id: u16, flags: u16) {
        let desc = self.desc.get();
        if self.staged.is_some() {
            desc.store_u64(at + 8, word(len, id, flags));
        } else {
            desc.write_array(at + 8, &len.to_le_bytes());
            desc.store_u16(at + 12, id);
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let Some((first, flags)) = self.staged.take() else { return false };
        let entries = std::mem::take(&mut self.staged_entries);
        self.desc.get().store_u16_release(usize::from(first) * 16 + 14, flags);
        self.published = self.next_number;
        // The device writes its wish, then looks for buffers; we do it the other way round (§2.8.10.1).
        fence(Ordering::SeqCst);
        let event = self.device_event.get();
        // Acquire: the place is read after the flags that say that it counts.
        match event.load_u16_acquire(2) {
            EVENTS_DISABLE => false,
            EVENTS_DESC if self.event_idx => {
                let wanted = Position::from_bits(event.load_u16(0));
                let new = self.next_avail.index;
                let mut at = wanted.index;
                if wanted.wrap != self.next_avail.wrap {
                    at = at.wrapping_sub(self.size);
                }
                need_event(at, new, new.wrapping_sub(entries))
            }
            _ => true,
        }
    }

    #[inline]
    fn is_used(&self) -> bool {
        let flags = self.desc.get().load_u16_acquire(usize::from(self.next_used.index) * 16 + 14);
        flags & (AVAIL | USED) == self.next_used.used_flags()
    }

    #[inline]
    pub(super) fn poll_used(&mut self) -> Result<Option<(u32, u32)>, DriverError> {
        if self.batch.is_some() {
            return Ok(Some(self.next_of_batch()));
        }
        if self.published == self.used || !self.is_used() {
            return Ok(None);
        }
        let word = self.desc.get().load_u64(usize::from(self.next_used.index) * 16 + 8);
        let (id, flags) = ((word >> 32) as u16, (word >> 48) as u16);
        // §2.8.5: without WRITE the length means nothing.
        let len = if flags & DESC_WRITE != 0 { word as u32 } else { 0 };
        let Some(&slot) = self.slots.get(usize::from(id)) else { return Err(DriverError::Id(id.into())) };
        if slot.entries == 0 || is_after(slot.number, self.published) {
            return Err(DriverError::NotOutstanding(id.into()));
        }
        if len > slot.room {
            return Err(DriverError::Length { written: len, room: slot.room });
        }
        if self.in_order {
            self.batch = Some(Batch { last: slot.number, len });
            return Ok(Some(self.next_of_batch()));
        }
        self.slots[usize::from(id)] = Slot { entries: 0, link: self.free_id, ..slot };
        self.free_id = id;
        self.take(slot.entries);
        Ok(Some((slot.token, len)))
    }

    #[inline]
    fn take(&mut self, entries: u16) {
        self.used = self.used.wrapping_add(1);
        self.free += entries;
        self.next_used.advance(entries, self.size);
    }

    /// Takes the oldest buffer back.
    #[inline]
    fn next_of_batch(&mut self) -> (u32, u32) {
        let oldest = self.slots[usize::from(self.oldest)];
        self.slots[usize::from(self.oldest)].entries = 0;
        self.take(oldest.entries);
        self.oldest = oldest.link;
        let len = match self.batch {
            Some(batch) if batch.last == oldest.number => {
                self.batch = None;
                batch.len
            }
            _ => oldest.room,
        };
        (oldest.token, len)
    }

    pub(super) fn disable_calls(&mut self) {
        self.driver_event.get().store_u16(2, EVENTS_DISABLE);
    }

    /// Tells the device to interrupt for the next buffer; true if one is there already.
    pub(super) fn enable_calls(&mut self) -> bool {
        let event = self.driver_event.get();
        if self.event_idx {
            event.store_u16(0, self.next_used.bits());
            event.store_u16_release(2, EVENTS_DESC);
        } else {
            event.store_u16(2, EVENTS_ENABLE);
        }
        // The device shows a used descriptor, then reads our wish; we do it the other way round (§2.8.10.1).
        fence(Ordering::SeqCst);
        self.batch.is_some() || self.is_used()
    }
}
