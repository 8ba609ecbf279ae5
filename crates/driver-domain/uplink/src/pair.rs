//! One queue pair: the ring that the switch fills, the ring that we fill, and their buffers. No system call but the
//! signals; one thread at a time.

use crate::memory::GUEST_BASE;
use crate::room::Arena;
use crate::survival::probe::Sieve;
use crate::survival::progress::Progress;
use arrayvec::ArrayVec;
use lasthop_aggregation::BURST;
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_sys::EventFd;
use lasthop_virtqueue::QueueError;
use lasthop_virtqueue::driver::{DriverError, DriverRing, RingLayout};
use std::sync::Arc;

/// Bytes of the virtio-net header in front of every frame (virtio 1.2 §5.1.6).
pub const VNET: usize = lasthop_frame::VnetHdr::LEN;
/// Most buffers one packet may be spread over: 64 KiB and its headers in 2 KiB buffers, and some to spare.
pub const MAX_PIECES: usize = 40;

/// The switch broke the rules of the ring. Nothing more can be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// Of rings.
    #[error("ring: {0}")]
    Ring(#[from] DriverError),
    /// A packet that is said to be spread over more (or fewer) buffers than came, or more than any packet needs.
    #[error("a packet is said to be in {0} buffers, which cannot be")]
    Buffers(u16),
    /// A packet without a whole header.
    #[error("a packet of {0} bytes has no header")]
    NoHeader(u32),
    /// A ring cannot be made anew.
    #[error("ring: {0}")]
    New(#[from] QueueError),
}

/// A run of bytes of the shared memory: offset and length.
pub type Extent = (usize, usize);

/// A packet from the switch: where its bytes are, the virtio-net header first, and the buffers they are in.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// Its bytes, in order. The first run holds the whole header.
    pub runs: ArrayVec<Extent, MAX_PIECES>,
    tokens: ArrayVec<u32, MAX_PIECES>,
}

impl Packet {
    /// How many buffers it is in.
    pub fn buffers(&self) -> usize {
        self.tokens.len()
    }

    /// Length in bytes without the virtio-net header.
    pub fn frame_len(&self) -> usize {
        self.runs.iter().map(|r| r.1).sum::<usize>().saturating_sub(VNET)
    }
}

/// A queue pair with the memory it lies in.
#[derive(Debug)]
pub struct Pair {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) arena: Arc<Arena>,
    /// What the switch delivers here.
    pub to_network: ToNetwork,
    /// What the device received.
    pub from_network: FromNetwork,
    /// What of that the switch does not get.
    pub sieve: Sieve,
    /// How far it is, for the process after this one.
    pub progress: Progress,
}

impl Pair {
    /// The next packet from the switch goes to `packet`; false if there is none.
    pub fn next(&mut self, packet: &mut Packet) -> Result<bool, PairError> {
        let way = &mut self.to_network;
        packet.runs.clear();
        packet.tokens.clear();
        let Some((token, len)) = way.ring.poll_used()? else { return Ok(false) };
        if (len as usize) < VNET {
            return Err(PairError::NoHeader(len));
        }
        way.push(packet, token, len);
        let buffers = self.memory.slice(way.buffer(token) + 10, 2).map_or(0, |s| s.load_u16(0));
        if buffers == 0 || usize::from(buffers) > MAX_PIECES {
            return Err(PairError::Buffers(buffers));
        }
        for _ in 1..buffers {
            let Some((token, len)) = way.ring.poll_used()? else { return Err(PairError::Buffers(buffers)) };
            way.push(packet, token, len);
        }
        Ok(true)
    }

    /// Takes all buffers and slots that the device does not have: from now on the switch may fill the buffers. Once, before
    /// anything else.
    pub(crate) fn claim(&mut self, held: impl Fn(usize) -> bool) {
        let way = &mut self.to_network;
        for token in 0..u32::from(way.size) {
            if !held((way.buffer(token) - GUEST_BASE) as usize) {
                way.add(token);
            }
        }
        way.publish();
        let way = &mut self.from_network;
        let (first, count) = (u32::from(way.slots.pair) * u32::from(way.slots.count), u32::from(way.slots.count));
        way.spare = (first..first + count).rev().filter(|slot| !held(way.slot(*slot).0)).collect();
    }

    /// The part of the shared memory that frames are in: all buffers, then all slots.
    pub(crate) fn buffers_and_slots(&self) -> Extent {
        let start = (self.to_network.buffers - GUEST_BASE) as usize;
        let (_, end) = self.from_network.own_slots();
        (start, end - start)
    }

    /// From now on the switch gets nothing, and what it has not taken it never will: it must have let go of the rings. How many
    /// packets that were.
    pub fn listen(&mut self) -> Result<u64, PairError> {
        self.from_network.reclaim_all()?;
        let lost = self.from_network.ring.outstanding().into();
        self.from_network.empty(&self.memory)?;
        self.progress.emptied();
        self.sieve.listening = true;
        Ok(lost)
    }

    /// Bytes of the shared memory, to look at; fewer than asked for at its end.
    pub fn bytes(&self, run: Extent) -> GuestSlice<'_> {
        at(&self.memory, run)
    }
}

/// As [`Pair::bytes`].
pub(crate) fn at(memory: &GuestMemory, (offset, len): Extent) -> GuestSlice<'_> {
    memory.slice(GUEST_BASE + offset as u64, len).unwrap_or(GuestSlice::EMPTY)
}

/// The ring that the switch fills.
#[derive(Debug)]
pub struct ToNetwork {
    /// The ring.
    pub ring: DriverRing,
    /// We signal it when we gave buffers back and the switch wants to know.
    kick: EventFd,
    /// The switch signals it when it delivered.
    pub call: EventFd,
    buffers: u64,
    buffer_len: u32,
    size: u16,
}

impl ToNetwork {
    pub(crate) fn new(ring: (DriverRing, EventFd, EventFd), buffers: u64, buffer_len: u32, size: u16) -> Self {
        let (ring, kick, call) = ring;
        Self { ring, kick, call, buffers, buffer_len, size }
    }

    fn buffer(&self, token: u32) -> u64 {
        self.buffers + u64::from(token) * u64::from(self.buffer_len)
    }

    fn push(&self, packet: &mut Packet, token: u32, len: u32) {
        // As many as `MAX_PIECES` at most, which the caller has checked.
        let _ = packet.runs.try_push(((self.buffer(token) - GUEST_BASE) as usize, len as usize));
        let _ = packet.tokens.try_push(token);
    }

    fn add(&mut self, token: u32) {
        // There are as many buffers as entries.
        let _ = self.ring.add(&[], &[(self.buffer(token), self.buffer_len)], token);
    }

    /// The packet's buffers may be filled again. The switch sees them when a quarter of the ring is to be seen, or at
    /// [`ToNetwork::publish`].
    pub fn give_back(&mut self, packet: &Packet) {
        packet.tokens.iter().for_each(|token| self.add(*token));
        if self.ring.unpublished() >= self.size / 4 {
            self.publish();
        }
    }

    /// Signals the switch, whether it has asked for it or not.
    pub fn kick(&self) {
        self.kick.signal();
    }

    /// The same, of the buffer that this offset in the shared memory is in.
    pub(crate) fn give_back_at(&mut self, offset: usize) {
        let at = (GUEST_BASE + offset as u64).checked_sub(self.buffers).map(|at| at / u64::from(self.buffer_len));
        if let Some(token) = at.filter(|token| *token < u64::from(self.size)) {
            self.add(token as u32);
        }
    }

    /// Shows the switch what was given back.
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick.signal();
        }
    }
}

/// Where slots lie. Every pair has its own; a device whose queues share theirs may have any pair carry any of them, so they
/// are numbered through.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Address of the first pair's first.
    pub start: u64,
    /// From a pair's first to the next pair's first.
    pub stride: u64,
    /// Pairs.
    pub pairs: u16,
    /// Of each pair.
    pub count: u16,
    /// Bytes of a slot.
    pub len: u32,
    /// The pair whose own are meant.
    pub pair: u16,
}

impl Slots {
    /// The address of a slot, and its bytes.
    pub(crate) fn place(&self, slot: u32) -> (u64, usize) {
        let (pair, n) = (slot / u32::from(self.count), slot % u32::from(self.count));
        (self.start + u64::from(pair) * self.stride + u64::from(n) * u64::from(self.len), self.len as usize)
    }
}

/// The ring that we fill.
#[derive(Debug)]
pub struct FromNetwork {
    /// The ring.
    pub ring: DriverRing,
    layout: RingLayout,
    kick: EventFd,
    /// The switch signals it when it has taken packets and we asked to be told.
    pub call: EventFd,
    slots: Slots,
    /// Slots that neither the switch nor the device has. The one used last is taken first: it is in the cache.
    spare: Vec<u32>,
    /// By slot: it is in the ring.
    lent: Vec<bool>,
    /// For a slot with the switch: the next of the same packet, or itself.
    next: Vec<u32>,
    reclaim_below: usize,
    /// The switch wants a signal for what was published.
    due: bool,
}

impl FromNetwork {
    pub(crate) fn new((ring, kick, call): (DriverRing, EventFd, EventFd), layout: RingLayout, slots: Slots) -> Self {
        let (count, all) = (u32::from(slots.count), u32::from(slots.pairs) * u32::from(slots.count));
        let (spare, lent) = (Vec::with_capacity(count as usize), vec![false; all as usize]);
        let (next, reclaim_below) = ((0..all).collect(), usize::from(slots.count) / 2);
        Self { ring, layout, kick, call, slots, spare, lent, next, reclaim_below, due: false }
    }

    /// Where this pair's own slots begin and end in the shared memory.
    fn own_slots(&self) -> (usize, usize) {
        let slots = &self.slots;
        let start = (slots.start + u64::from(slots.pair) * slots.stride - GUEST_BASE) as usize;
        (start, start + usize::from(slots.count) * slots.len as usize)
    }

    /// The pair whose own this slot is.
    pub(crate) fn pair_of(&self, slot: u32) -> usize {
        (slot / u32::from(self.slots.count)) as usize
    }

    /// Takes back all that is in the ring and makes it as new.
    fn empty(&mut self, memory: &Arc<GuestMemory>) -> Result<(), QueueError> {
        self.ring = DriverRing::new(self.layout, memory.clone())?;
        for (slot, (lent, next)) in (0..).zip(self.lent.iter_mut().zip(&mut self.next)) {
            *next = slot;
            if std::mem::take(lent) {
                self.spare.push(slot);
            }
        }
        Ok(())
    }

    /// Takes back what the switch is done with, unless there is plenty.
    pub fn reclaim(&mut self) -> Result<(), PairError> {
        if self.spare.len() < self.reclaim_below {
            self.reclaim_all()?;
        }
        Ok(())
    }

    /// Takes back all that the switch is done with.
    pub fn reclaim_all(&mut self) -> Result<(), PairError> {
        while let Some((slot, _)) = self.ring.poll_used()? {
            self.put_back_all(slot);
        }
        Ok(())
    }

    /// A slot to be filled; `None` when the switch or the device has all of them.
    pub fn take(&mut self) -> Option<u32> {
        if self.ring.free() == 0 { None } else { self.spare.pop() }
    }

    /// A slot for the device to keep, whether or not the ring has room.
    pub(crate) fn take_spare(&mut self) -> Option<u32> {
        self.spare.pop()
    }

    /// The slot that a frame at this offset of the shared memory lies in wholly, and where in it.
    pub(crate) fn slot_of(&self, offset: usize, len: usize) -> Option<(u32, usize)> {
        let slots = &self.slots;
        let at = (offset as u64).checked_sub(slots.start - GUEST_BASE)?;
        let (pair, at) = (at / slots.stride, at % slots.stride);
        let (slot, in_slot) = (at / u64::from(slots.len), (at % u64::from(slots.len)) as usize);
        let fits = slot < u64::from(slots.count) && in_slot + len <= slots.len as usize;
        (fits && pair < u64::from(slots.pairs)).then_some(((pair * u64::from(slots.count) + slot) as u32, in_slot))
    }

    /// The slots of a packet, by its first.
    fn put_back_all(&mut self, mut slot: u32) {
        loop {
            self.set_lent(slot, false);
            self.spare.push(slot);
            let Some(next) = self.next.get_mut(slot as usize) else { return };
            match std::mem::replace(next, slot) {
                last if last == slot => return,
                more => slot = more,
            }
        }
    }

    /// A slot that was not filled.
    pub fn put_back(&mut self, slot: u32) {
        self.spare.push(slot);
    }

    /// Where a slot's bytes begin in the shared memory, and how many there are.
    pub fn slot(&self, slot: u32) -> Extent {
        let (at, len) = self.slots.place(slot);
        ((at - GUEST_BASE) as usize, len)
    }

    /// The ring's position behind all that was added, shown to the switch or not.
    pub(crate) fn position(&self) -> u16 {
        (self.ring.base() as u16).wrapping_add(self.ring.outstanding()).wrapping_add(self.ring.unpublished())
    }

    /// Gives the switch a packet: `len` bytes, header included, from `offset` in the slot on. It sees it at
    /// [`FromNetwork::publish`].
    pub fn add(&mut self, slot: u32, offset: usize, len: usize) {
        let piece = (GUEST_BASE + (self.slot(slot).0 + offset) as u64, len as u32);
        if self.ring.add(&[piece], &[], slot).is_err() {
            self.spare.push(slot);
        } else {
            self.set_lent(slot, true);
        }
    }

    /// The same with a packet in several slots: of each, offset and length. It takes an entry of the ring for each.
    pub fn add_pieces(&mut self, pieces: &[(u32, usize, usize)]) {
        let Some((first, _, _)) = pieces.first() else { return };
        for [(slot, ..), (next, ..)] in pieces.array_windows() {
            if let Some(to) = self.next.get_mut(*slot as usize) {
                *to = *next;
            }
        }
        let place = |(slot, offset, len): &(u32, usize, usize)| {
            (GUEST_BASE + (self.slot(*slot).0 + offset) as u64, *len as u32)
        };
        let places: ArrayVec<_, BURST> = pieces.iter().take(BURST).map(place).collect();
        if places.len() < pieces.len() || self.ring.add(&places, &[], *first).is_err() {
            self.put_back_all(*first);
        } else {
            pieces.iter().for_each(|(slot, ..)| self.set_lent(*slot, true));
        }
    }

    fn set_lent(&mut self, slot: u32, is: bool) {
        if let Some(lent) = self.lent.get_mut(slot as usize) {
            *lent = is;
        }
    }

    /// Signals the switch, whether it has asked for it or not.
    pub fn kick(&self) {
        self.kick.signal();
    }

    /// Shows the switch what was added. If it sleeps it is not woken before [`FromNetwork::kick_if_due`].
    pub fn publish(&mut self) {
        self.due |= self.ring.publish();
    }

    /// Signals the switch if it wants that for what was published since the last time.
    pub fn kick_if_due(&mut self) {
        if std::mem::take(&mut self.due) {
            self.kick.signal();
        }
    }
}
