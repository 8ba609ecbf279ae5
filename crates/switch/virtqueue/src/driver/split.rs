//! The split ring, driver side (virtio 1.2 §2.7).

use super::{Batch, DriverError, Full, Piece, RingLayout, Slot, Tables, indirect, part, pieces, room, slots, word};
use crate::position::need_event;
use crate::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, QueueError};
use lasthop_guestmem::{GuestMemory, PinnedSlice, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Used ring flag: the device wants no kicks.
const USED_NO_NOTIFY: u16 = 1;
/// Available ring flag: we want no interrupts.
const AVAIL_NO_INTERRUPT: u16 = 1;

#[derive(Debug)]
pub(super) struct SplitDriver {
    desc: PinnedSlice,
    avail: PinnedSlice,
    used: PinnedSlice,
    tables: Option<Tables>,
    size: u16,
    slots: Box<[Slot]>,
    free_head: u16,
    free: u16,
    /// Numbers of the next buffer to add and of the first that the device has not been shown; the low 16 bits are the
    /// ring's indices.
    next_avail: u32,
    published: u32,
    next_used: u16,
    /// The device's index when it was last read.
    seen_used: u16,
    /// IN_ORDER: head of the oldest buffer.
    oldest: u16,
    batch: Option<Batch>,
    event_idx: bool,
    in_order: bool,
}

impl SplitDriver {
    pub(super) fn new(layout: &RingLayout, memory: &Arc<GuestMemory>) -> Result<Self, QueueError> {
        let size = layout.size;
        if !size.is_power_of_two() || size > 32768 {
            return Err(QueueError::Size(size));
        }
        let n = usize::from(size);
        Ok(Self {
            desc: part(memory, layout.desc, 16 * n, 16)?,
            avail: part(memory, layout.driver, 6 + 2 * n, 2)?,
            used: part(memory, layout.device, 6 + 8 * n, 4)?,
            tables: Tables::new(layout, memory)?,
            size,
            slots: slots(size),
            free_head: 0,
            free: size,
            next_avail: 0,
            published: 0,
            next_used: 0,
            seen_used: 0,
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
        (self.published as u16).wrapping_sub(self.next_used)
    }

    pub(super) fn unpublished(&self) -> u16 {
        self.next_avail.wrapping_sub(self.published) as u16
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_used)
    }

    #[inline]
    pub(super) fn add(&mut self, readable: &[Piece], writable: &[Piece], token: u32) -> Result<(), Full> {
        let count = readable.len() + writable.len();
        let table = indirect(&self.tables, count);
        let entries = if table.is_some() { 1 } else { count };
        if entries == 0 || entries > usize::from(self.free) {
            return Err(Full);
        }
        let (head, desc) = (self.free_head, self.desc.get());
        let mut last = head;
        if let Some(table) = table {
            let addr = table.fill(head, readable, writable, false);
            desc.store_u64(usize::from(head) * 16, addr);
            desc.store_u64(usize::from(head) * 16 + 8, word(16 * count as u32, DESC_INDIRECT, 0));
        } else {
            let mut at = head;
            for (i, (piece, write)) in pieces(readable, writable).enumerate() {
                last = at;
                let next = self.slots[usize::from(at)].link;
                let mut flags = if write { DESC_WRITE } else { 0 };
                if i + 1 < count {
                    flags |= DESC_NEXT;
                }
                desc.store_u64(usize::from(at) * 16, piece.0);
                desc.store_u64(usize::from(at) * 16 + 8, word(piece.1, flags, next));
                at = next;
            }
        }
        self.free_head = self.slots[usize::from(last)].link;
        self.free -= entries as u16;
        let slot = &mut self.slots[usize::from(head)];
        let (entries, number) = (entries as u16, self.next_avail);
        *slot = Slot { token, room: room(writable), entries, last, link: slot.link, number };
        let at = usize::from(self.next_avail as u16 & (self.size - 1));
        self.avail.get().store_u16(4 + 2 * at, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.published as u16, self.next_avail as u16);
        if old == new {
            return false;
        }
        self.avail.get().store_u16_release(2, new);
        self.published = self.next_avail;
        // The device writes its wish, then looks for buffers; we do it the other way round (§2.7.10.1).
        fence(Ordering::SeqCst);
        let used = self.used.get();
        if self.event_idx {
            need_event(used.load_u16(4 + 8 * usize::from(self.size)), new, old)
        } else {
            used.load_u16(0) & USED_NO_NOTIFY == 0
        }
    }

    #[inline]
    pub(super) fn poll_used(&mut self) -> Result<Option<(u32, u32)>, DriverError> {
        if self.batch.is_some() {
            return Ok(Some(self.next_of_batch()));
        }
        if self.seen_used == self.next_used {
            let device = self.used.get().load_u16_acquire(2);
            let new = device.wrapping_sub(self.next_used);
            if new == 0 {
                return Ok(None);
            }
            if new > self.outstanding() {
                return Err(DriverError::UsedJump { device, driver: self.next_used });
            }
            self.seen_used = device;
        }
        let at = 4 + 8 * usize::from(self.next_used & (self.size - 1));
        let mut element = [0; 8];
        self.used.get().read(at, &mut element);
        let element = u64::from_le_bytes(element);
        let (id, len) = (element as u32, (element >> 32) as u32);
        let Some(&slot) = self.slots.get(id as usize) else { return Err(DriverError::Id(id)) };
        if slot.entries == 0 || is_after(slot.number, self.published) {
            return Err(DriverError::NotOutstanding(id));
        }
        if len > slot.room {
            return Err(DriverError::Length { written: len, room: slot.room });
        }
        if self.in_order {
            let skipped = slot.number.wrapping_sub(self.slots[usize::from(self.oldest)].number);
            if skipped >= u32::from(self.seen_used.wrapping_sub(self.next_used)) {
                return Err(DriverError::Order(id));
            }
            self.batch = Some(Batch { last: slot.number, len });
            return Ok(Some(self.next_of_batch()));
        }
        self.next_used = self.next_used.wrapping_add(1);
        self.slots[usize::from(slot.last)].link = self.free_head;
        self.slots[id as usize].entries = 0;
        self.free_head = id as u16;
        self.free += slot.entries;
        Ok(Some((slot.token, len)))
    }

    /// Takes the oldest buffer back.
    #[inline]
    fn next_of_batch(&mut self) -> (u32, u32) {
        let slot = std::mem::take(&mut self.slots[usize::from(self.oldest)].entries);
        let oldest = self.slots[usize::from(self.oldest)];
        self.free += slot;
        self.next_used = self.next_used.wrapping_add(1);
        self.oldest = self.slots[usize::from(oldest.last)].link;
        let len = match self.batch {
            Some(batch) if batch.last == oldest.number => {
                self.batch = None;
                batch.len
            }
            _ => oldest.room,
        };
        (oldest.token, len)
    }

    /// Tells the device not to interrupt. With EVENT_IDX the old `used_event` stays behind, which says the same.
    pub(super) fn disable_calls(&mut self) {
        if !self.event_idx {
            self.avail.get().store_u16(0, AVAIL_NO_INTERRUPT);
        }
    }

    /// Tells the device to interrupt for the next buffer; true if one is there already.
    pub(super) fn enable_calls(&mut self) -> bool {
        let avail = self.avail.get();
        if self.event_idx {
            avail.store_u16(4 + 2 * usize::from(self.size), self.next_used);
        } else {
            avail.store_u16(0, 0);
        }
        // The device shows a used entry, then reads our wish; we do it the other way round (§2.7.10.1).
        fence(Ordering::SeqCst);
        self.used.get().load_u16_acquire(2) != self.next_used
    }
}

/// Whether a buffer with this number was added after the first `published` were shown to the device.
#[inline]
pub(super) fn is_after(number: u32, published: u32) -> bool {
    published.wrapping_sub(number).wrapping_sub(1) >= 1 << 31
}
