//! A ring in memory of its own, with a device side and a driver side.

use lasthop_guestmem::{GuestMemory, RegionSpec};
use lasthop_virtqueue::driver::{DriverRing, IndirectTables, RingLayout};
use lasthop_virtqueue::{Queue, QueueError, QueueGuard};
use proptest::prelude::*;
use std::sync::Arc;

/// End of the first region and start of the second: some buffers cross it.
pub const SEAM: u64 = 0x10_0000;
/// First address after all memory.
pub const END: u64 = 0x20_0000;
/// Indirect tables.
const TABLES: u64 = 0x8_0000;
/// Bytes that every buffer has for itself.
pub const AREA: u64 = 4096;
/// Buffers there can be.
pub const AREAS: u32 = 64;

/// What varies.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub size: u16,
    pub packed: bool,
    pub event_idx: bool,
    pub in_order: bool,
    pub indirect: bool,
}

/// All kinds, with sizes that wrap often. Packed rings need not be a power of two long.
pub fn kinds() -> impl Strategy<Value = Kind> {
    (any::<[bool; 4]>(), prop_oneof![1u16..=9, Just(16), Just(33), Just(256)]).prop_map(
        |([packed, event_idx, in_order, indirect], size)| Kind {
            size: if packed { size } else { size.next_power_of_two() },
            packed,
            event_idx,
            in_order,
            indirect,
        },
    )
}

/// Every kind of one size.
pub fn every_kind(size: u16) -> impl Iterator<Item = Kind> {
    (0..16u8).map(move |bits| Kind {
        size,
        packed: bits & 1 != 0,
        event_idx: bits & 2 != 0,
        in_order: bits & 4 != 0,
        indirect: bits & 8 != 0,
    })
}

/// Two regions side by side that lie apart in our own address space.
pub fn two_regions() -> Arc<GuestMemory> {
    let mut memory = GuestMemory::empty();
    for guest_addr in [0, SEAM] {
        let fd = lasthop_sys::memfd("ring-test", SEAM).unwrap();
        let spec = RegionSpec { guest_addr, user_addr: guest_addr, size: SEAM, mmap_offset: 0 };
        memory = memory.with_region(spec, fd).unwrap();
    }
    Arc::new(memory)
}

pub struct Rig {
    pub memory: Arc<GuestMemory>,
    pub layout: RingLayout,
    pub driver: DriverRing,
    pub queue: Queue,
}

impl Rig {
    pub fn new(kind: Kind) -> Self {
        Self::in_memory(kind, two_regions())
    }

    pub fn in_memory(kind: Kind, memory: Arc<GuestMemory>) -> Self {
        let mut layout = RingLayout::contiguous(0, kind.size, kind.packed);
        layout.event_idx = kind.event_idx;
        layout.in_order = kind.in_order;
        layout.indirect = kind.indirect.then_some(IndirectTables { addr: TABLES, entries: 8 });
        let driver = DriverRing::new(layout, memory.clone()).unwrap();
        let queue = Queue::new(0);
        queue.start(&layout.setup(driver.base(), 0), memory.clone()).unwrap();
        queue.set_enabled(true);
        Self { memory, layout, driver, queue }
    }

    /// The device side.
    pub fn device(&self) -> Device<'_> {
        Device { guard: self.queue.lock(), memory: &self.memory }
    }

    /// Stops the device side and starts it again where it stood: by the base it gives, as after GET_VRING_BASE, or
    /// by what the driver knows, as after a crash.
    pub fn restart(&self, crashed: bool) {
        let base = self.queue.stop().unwrap();
        let base = if crashed { self.driver.base() } else { base };
        self.queue.start(&self.layout.setup(base, 0), self.memory.clone()).unwrap();
    }
}

/// The device side, locked.
pub struct Device<'r> {
    guard: QueueGuard<'r>,
    pub memory: &'r GuestMemory,
}

impl Device<'_> {
    pub fn ring(&mut self) -> &mut lasthop_virtqueue::Ring {
        &mut self.guard.started().unwrap().ring
    }

    /// Pops, reads and completes what is there: one entry per buffer.
    pub fn serve(&mut self) -> Result<Vec<Vec<u8>>, QueueError> {
        let memory = self.memory;
        let mut chains = Box::new(lasthop_virtqueue::Chains::default());
        let popped = self.ring().pop(memory, &mut chains, 64);
        let mut out = Vec::new();
        for chain in &chains.list {
            out.push(read(&chains.pieces(chain)));
            self.ring().stage_used(chain, 0);
        }
        self.ring().publish();
        popped.map(|()| out)
    }
}

/// The bytes of some pieces.
pub fn read(pieces: &[lasthop_guestmem::GuestSlice<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        let at = out.len();
        out.resize(at + piece.len(), 0);
        piece.read(0, &mut out[at..]);
    }
    out
}

/// Where buffer `token` may have its pieces: some buffers lie across the seam of the two regions.
pub fn area(token: u32) -> u64 {
    SEAM - u64::from(AREAS / 2) * AREA - AREA / 2 + u64::from(token) * AREA
}

/// Reads guest memory, over the seam too.
pub fn peek(memory: &GuestMemory, addr: u64, len: usize) -> Vec<u8> {
    let first = memory.piece(addr, len).unwrap();
    let mut out = read(&[first]);
    if out.len() < len {
        out.extend(peek(memory, addr + out.len() as u64, len - out.len()));
    }
    out
}

/// Writes guest memory, over the seam too.
pub fn poke(memory: &GuestMemory, addr: u64, bytes: &[u8]) {
    let n = memory.piece(addr, bytes.len()).unwrap().write(0, bytes);
    if n < bytes.len() {
        poke(memory, addr + n as u64, &bytes[n..]);
    }
}

/// A descriptor as it lies in memory, either layout (`x` is split's next, packed's id).
pub fn poke_desc(memory: &GuestMemory, packed: bool, at: u64, addr: u64, len: u32, flags: u16, x: u16) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let (low, high) = if packed { (x, flags) } else { (flags, x) };
    bytes[12..14].copy_from_slice(&low.to_le_bytes());
    bytes[14..].copy_from_slice(&high.to_le_bytes());
    poke(memory, at, &bytes);
}
