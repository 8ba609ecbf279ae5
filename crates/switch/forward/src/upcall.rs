//! Packets that wait for control (docs/architecture.md, "Upcalls"): bounded, and each port only fills its own places.

use crate::cursor::Cursor;
use crate::packet::Packet;
use lasthop_flow::Flow;
use lasthop_frame::{Depth, FlowKey, FlowMask, Header, VnetHdr};
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_lock::Lock;
use lasthop_types::MAX_FRAME_LEN;
use std::collections::VecDeque;
use std::sync::OnceLock;

/// Packets of one port that may wait for control at a time. A port that has used them up is not read from until an
/// answer comes: its guest's ring is the queue, and nobody else's first packet waits behind it.
pub const UPCALL_SLOTS: usize = 32;

/// How long no memory is asked for after there was none.
const RETRY_MS: u64 = 10;

/// Bytes one waiting packet may need, header included.
const SLOT_BYTES: usize = (MAX_FRAME_LEN + VnetHdr::LEN).next_multiple_of(4096);

/// A waiting packet, or a copy of one that goes on, as control is told of it.
#[derive(Clone, Debug)]
pub struct Upcall {
    /// Names it within its port, if it waits.
    pub id: u32,
    /// It is a copy, and this is what the flow says of it.
    pub copy: Option<u32>,
    /// Its full key.
    pub key: FlowKey,
    /// Its header snapshot.
    pub header: Header,
    /// Bytes in the whole frame.
    pub frame_len: usize,
}

/// Why a packet cannot wait for control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Others of its port wait in all places. The port counts as stalled.
    Taken,
    /// There is no memory. Nobody's answer would change that, so it is not to be waited for; later there may be some.
    NoMemory,
}

/// A port's waiting packets. Locked briefly, after the lock of the queue that the packet came from.
#[derive(Debug, Default)]
pub struct Upcalls {
    /// Mapped at the first miss, touched as far as packets reach: a port that never misses costs nothing.
    memory: OnceLock<GuestMemory>,
    slots: Lock<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Made when first needed, then used again and again.
    all: Vec<Slot>,
    /// Not yet told to control, oldest first.
    unreported: VecDeque<usize>,
    /// The same of copies; their places are used again and again, too.
    copies: VecDeque<Upcall>,
    sequence: u32,
    /// Some queue of the port was left unread because all places were taken.
    stalled: bool,
    /// There was no memory: when it is asked for again.
    retry_ms: u64,
}

#[derive(Debug)]
struct Slot {
    packet: Box<Packet>,
    id: u32,
    since_ms: u64,
    use_: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Control decides.
    Waiting,
    /// Control has decided; the packet is on its way.
    Leaving,
}

/// Where a packet that leaves has been waiting.
#[derive(Debug)]
pub(crate) struct Left {
    slot: usize,
    pub(crate) since_ms: u64,
}

impl Upcalls {
    fn place(&self, slot: usize) -> Option<GuestSlice<'_>> {
        self.memory.get()?.slice((slot * SLOT_BYTES) as u64, SLOT_BYTES).ok()
    }

    /// Sees to it that there is memory, if there can be. All of the host's, or of its address space, may be in use at the moment: a
    /// failure is remembered for a moment only, so that a port's packets do not each ask in vain.
    fn map(&self, retry_ms: &mut u64, now_ms: u64) {
        if self.memory.get().is_none() && now_ms >= *retry_ms {
            match GuestMemory::anonymous((UPCALL_SLOTS * SLOT_BYTES) as u64) {
                Ok(memory) => drop(self.memory.set(memory)),
                Err(_) => *retry_ms = now_ms + RETRY_MS,
            }
        }
    }

    /// Copies a packet to a free place.
    pub(crate) fn enqueue(&self, packet: &Packet, pieces: &[GuestSlice<'_>], now_ms: u64) -> Result<(), NoPlace> {
        let mut slots = self.slots.lock();
        let free = slots.all.iter().position(|s| s.use_ == Use::Free);
        let slot = free.unwrap_or(slots.all.len());
        if slot >= UPCALL_SLOTS {
            slots.stalled = true;
            return Err(NoPlace::Taken);
        }
        self.map(&mut slots.retry_ms, now_ms);
        let place = self.place(slot).ok_or(NoPlace::NoMemory)?;
        let id = slots.sequence;
        slots.sequence = id.wrapping_add(1);
        if free.is_none() {
            slots.all.push(Slot { packet: Box::default(), id, since_ms: now_ms, use_: Use::Free });
        }
        let s = slots.all.get_mut(slot).ok_or(NoPlace::Taken)?;
        s.packet.as_mut().clone_from(packet);
        s.packet.payload_at = packet.header().len();
        (s.id, s.since_ms, s.use_) = (id, now_ms, Use::Waiting);
        slots.unreported.push_back(slot);
        // The header as it was classified, and the payload behind it: summed, for such a copy is made at once where an engine makes the others.
        let mut to = Cursor::new(std::slice::from_ref(&place));
        to.write(packet.header());
        to.copy_from_with_sum(&mut packet.payload(pieces, packet.header().len()), packet.payload_len());
        Ok(())
    }

    /// The oldest packet control has not been told of, now told; or, if all that wait are, the oldest copy.
    pub fn report(&self) -> Option<Upcall> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.unreported.pop_front() else { return slots.copies.pop_front() };
        let slot = slots.all.get(slot)?;
        Some(slot.packet.told(slot.id, None))
    }

    /// Copies a packet's header for control. False if too many copies wait.
    pub(crate) fn copy(&self, packet: &Packet, pieces: &[GuestSlice<'_>], user: u32) -> bool {
        let mut slots = self.slots.lock();
        let has_place = slots.copies.len() < UPCALL_SLOTS;
        if has_place {
            let mut packet = packet.clone();
            packet.extract_to(pieces, Depth::Full);
            slots.copies.push_back(packet.told(0, Some(user)));
        }
        has_place
    }

    /// Every waiting packet is to be reported again: a new control has come.
    pub fn report_again(&self) {
        let mut slots = self.slots.lock();
        let waiting = slots.all.iter().enumerate().filter(|(_, s)| s.use_ == Use::Waiting);
        let mut order: Vec<_> = waiting.map(|(i, s)| (s.since_ms, s.id, i)).collect();
        order.sort_unstable();
        slots.unreported = order.into_iter().map(|(_, _, slot)| slot).collect();
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.slots.lock().all.iter().filter(|s| s.use_ != Use::Free).count()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the packet out for delivery; its place stays taken until [`Upcalls::free`].
    pub(crate) fn take(&self, id: u32, packet: &mut Packet) -> Option<Left> {
        let mut slots = self.slots.lock();
        let at = slots.all.iter().position(|s| s.use_ == Use::Waiting && s.id == id)?;
        slots.unreported.retain(|slot| *slot != at);
        let slot = slots.all.get_mut(at)?;
        slot.use_ = Use::Leaving;
        packet.clone_from(&slot.packet);
        Some(Left { slot: at, since_ms: slot.since_ms })
    }

    /// The bytes of a packet that leaves, as it was when it came here.
    pub(crate) fn bytes(&self, left: &Left, packet: &Packet) -> Option<GuestSlice<'_>> {
        Some(self.place(left.slot)?.part(0, packet.payload_at + packet.payload_len()))
    }

    /// Frees the place of a packet that has left; true if a queue of the port was stalled for want of places.
    pub(crate) fn free(&self, left: &Left) -> bool {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.all.get_mut(left.slot) {
            slot.use_ = Use::Free;
        }
        std::mem::take(&mut slots.stalled)
    }

    /// The packet that has waited longest of those this flow is for, and its bytes.
    pub(crate) fn oldest_for(&self, key: &FlowKey, mask: &FlowMask) -> Option<(u32, usize)> {
        let slots = self.slots.lock();
        let for_it = slots.all.iter().filter(|s| s.use_ == Use::Waiting && s.packet.key.is_of(key, mask));
        for_it.min_by_key(|s| (s.since_ms, s.id)).map(|s| (s.id, s.packet.sent_len))
    }

    /// Whether packets are still here that this flow is for: they missed it while it came, and others must not overtake them. If so the
    /// port counts as stalled.
    pub(crate) fn go_before(&self, flow: &Flow) -> bool {
        let mut slots = self.slots.lock();
        let mut here = slots.all.iter().filter(|s| s.use_ != Use::Free);
        let before = here.any(|s| s.packet.key.is_of(&flow.key, &flow.mask));
        slots.stalled |= before;
        before
    }

    /// Some packet that has waited since before `ms`.
    pub(crate) fn older_than(&self, ms: u64) -> Option<u32> {
        self.slots.lock().all.iter().find(|s| s.use_ == Use::Waiting && s.since_ms < ms).map(|s| s.id)
    }
}
