//! Ring memory written by hand: what no driver would do.

use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::{DriverRing, NetDriver, RingLayout};

/// Writes guest memory.
pub fn poke(memory: &GuestMemory, addr: u64, bytes: &[u8]) {
    let to = memory.slice(addr, bytes.len()).expect("the test's own address is in memory");
    to.write(0, bytes);
}

/// Reads guest memory.
pub fn peek(memory: &GuestMemory, addr: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    memory.slice(addr, len).expect("the test's own address is in memory").read(0, &mut out);
    out
}

/// A descriptor's 16 bytes. `x` is split's next, packed's buffer id.
pub fn descriptor(packed: bool, addr: u64, len: u32, flags: u16, x: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let (low, high) = if packed { (x, flags) } else { (flags, x) };
    bytes[12..14].copy_from_slice(&low.to_le_bytes());
    bytes[14..].copy_from_slice(&high.to_le_bytes());
    bytes
}

/// One ring of a driver that has not used it yet.
pub struct RawRing<'n> {
    /// The memory.
    pub memory: &'n GuestMemory,
    /// Where the ring lies.
    pub layout: RingLayout,
    /// Memory for buffers: the ring's own buffers.
    pub buffers: u64,
}

impl<'n> RawRing<'n> {
    /// Ring `index` of the driver, emptied: buffers it had been given are forgotten.
    pub fn new(net: &'n mut NetDriver, index: usize) -> Self {
        let (memory, layout) = (net.memory().clone(), net.queues()[index].layout);
        net.queues_mut()[index].ring = DriverRing::new(layout, memory).expect("the ring was valid before");
        let buffers = net.queues()[index].buffer(0);
        Self { memory: net.memory(), layout, buffers }
    }

    /// Writes descriptor `i`. A packed one is available, in the first lap, as soon as it is written: write heads last.
    pub fn desc(&self, i: u16, addr: u64, len: u32, flags: u16, x: u16) {
        let flags = if self.layout.packed { flags | 1 << 7 } else { flags };
        self.set(self.layout.desc + 16 * u64::from(i), addr, len, flags, x);
    }

    /// Writes a descriptor anywhere.
    pub fn set(&self, at: u64, addr: u64, len: u32, flags: u16, x: u16) {
        poke(self.memory, at, &descriptor(self.layout.packed, addr, len, flags, x));
    }

    /// Makes split heads available; packed descriptors are already.
    pub fn heads(&self, heads: &[u16]) {
        if self.layout.packed {
            return;
        }
        for (i, head) in heads.iter().enumerate() {
            poke(self.memory, self.layout.driver + 4 + 2 * i as u64, &head.to_le_bytes());
        }
        self.avail_index(heads.len() as u16);
    }

    /// Writes split's available index.
    pub fn avail_index(&self, index: u16) {
        poke(self.memory, self.layout.driver + 2, &index.to_le_bytes());
    }
}
