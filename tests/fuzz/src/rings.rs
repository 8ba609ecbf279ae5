//! Memory for rings and ways to write to it that a driver or a device that lies might choose.

use crate::Input;
use lasthop_guestmem::{GuestMemory, RegionSpec};
use std::sync::Arc;

/// End of the first region and start of the second: they lie apart in our own address space.
pub(crate) const SEAM: u64 = 0x4000;
/// First address after all memory.
pub(crate) const END: u64 = 0x8000;
/// Rings lie below, buffers and indirect tables from here on.
pub(crate) const BUFFERS: u64 = 0x1000;

thread_local! {
    static MEMORY: Arc<GuestMemory> = {
        let mut memory = GuestMemory::empty();
        for guest_addr in [0, SEAM] {
            let fd = lasthop_sys::memfd("fuzz-ring", SEAM).expect("a memfd");
            let spec = RegionSpec { guest_addr, user_addr: guest_addr, size: SEAM, mmap_offset: 0 };
            memory = memory.with_region(spec, fd).expect("a mapping");
        }
        Arc::new(memory)
    };
}

/// This thread's memory, zeroed.
pub(crate) fn memory() -> Arc<GuestMemory> {
    let memory = MEMORY.with(Arc::clone);
    poke(&memory, 0, &[0; END as usize]);
    memory
}

/// Writes memory, over the seam too.
pub(crate) fn poke(memory: &GuestMemory, addr: u64, bytes: &[u8]) {
    let done = memory.piece(addr, bytes.len()).expect("an address in memory").write(0, bytes);
    if done < bytes.len() {
        poke(memory, addr + done as u64, &bytes[done..]);
    }
}

/// All memory as it is now.
pub(crate) fn peek(memory: &GuestMemory) -> Vec<u8> {
    let mut out = vec![0; END as usize];
    for (region, out) in [0, SEAM].into_iter().zip(out.chunks_mut(SEAM as usize)) {
        memory.slice(region, SEAM as usize).expect("the region").read(0, out);
    }
    out
}

/// Where memory first differs from what it should be, for the message.
pub(crate) fn difference(now: &[u8], expected: &[u8]) -> Option<String> {
    // The common case in one call.
    if now == expected {
        return None;
    }
    let at = now.iter().zip(expected).position(|(a, b)| a != b)?;
    let to = (at + 16).min(now.len());
    Some(format!("at {at:#x}: {:02x?}, not {:02x?}", &now[at..to], &expected[at..to]))
}

/// A descriptor as it lies in memory, either layout (`x` is split's next, packed's id).
pub(crate) fn descriptor(packed: bool, addr: u64, len: u32, flags: u16, x: u16) -> [u8; 16] {
    let (low, high) = if packed { (x, flags) } else { (flags, x) };
    let word = u128::from(addr) | u128::from(len) << 64 | u128::from(low) << 96 | u128::from(high) << 112;
    word.to_le_bytes()
}

/// An address and a length, most often of a buffer that lies in memory.
pub(crate) fn buffer(input: &mut Input<'_>) -> (u64, u32) {
    match input.u8() {
        kind @ 0..=0xbf => {
            // Two bytes for both: a 16-byte grid and short lengths, many of them multiples of 16.
            let (at, len) = (u64::from(input.u8()), u32::from(input.u8()));
            let at = BUFFERS + at * ((END - BUFFERS) / 256) + u64::from(kind & 1);
            (at, if kind & 2 != 0 { len } else { len * 16 })
        }
        0xc0..=0xcf => (SEAM - u64::from(input.u8()), u32::from(input.u8())),
        0xd0..=0xdf => (END - u64::from(input.u8()), u32::from(input.u8())),
        0xe0..=0xe7 => (u64::from(input.u8()) * 16, u32::from(input.u8()) * 16),
        0xe8..=0xef => (u64::MAX - u64::from(input.u8()), u32::from(input.u8())),
        _ => (input.u64(), input.u32()),
    }
}
