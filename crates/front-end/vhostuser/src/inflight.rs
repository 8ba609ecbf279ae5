//! The inflight region (specification, "Inflight I/O tracking"): where a back-end notes what it has taken and not yet used.
//!
//! Our rings complete in order, and all that is taken before they stop: nothing is ever in flight, and to resume we need
//! nothing from here. We keep the headers true when a ring starts and stops (version, entries, used index and wrap counter,
//! free list), so that another back-end can take over, and read nothing back. The region is the front-end's, who may
//! scribble on it or truncate it; `lasthop-guestmem` bears both.

use crate::message::InflightDesc;
use lasthop_guestmem::{GuestMemory, GuestSlice, MapError, RegionSpec};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Queue regions begin on cache lines.
const ALIGN: usize = 64;
/// Bytes before the entries of a split and of a packed queue region.
const SPLIT_HEADER: usize = 16;
const PACKED_HEADER: usize = 32;
const SPLIT_ENTRY: usize = 16;
const PACKED_ENTRY: usize = 32;
const VERSION: u16 = 1;

/// Why an inflight region cannot be made or used: the messages say it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum InflightError {
    #[error("inflight region for {0} queues")]
    Queues(u16),
    #[error("inflight region for queues of {0} entries")]
    QueueSize(u16),
    #[error("inflight region of {size} bytes at offset {offset} cannot hold {needed} bytes")]
    Area { size: u64, offset: u64, needed: u64 },
    #[error("inflight region: {0}")]
    Map(#[from] MapError),
    #[error("inflight region: {0}")]
    Create(Errno),
}

/// Sizes of a region. Numbers are checked: at most 64 queues of 32768 entries of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    queue_len: usize,
    total: usize,
}

impl Layout {
    fn new(desc: &InflightDesc, rings: usize, packed: bool) -> Result<Self, InflightError> {
        let (queues, size) = (desc.num_queues, desc.queue_size);
        if queues == 0 || usize::from(queues) > rings {
            return Err(InflightError::Queues(queues));
        }
        if size == 0 || size > 32768 {
            return Err(InflightError::QueueSize(size));
        }
        let (header, entry) = if packed { (PACKED_HEADER, PACKED_ENTRY) } else { (SPLIT_HEADER, SPLIT_ENTRY) };
        let queue_len = (header + entry * usize::from(size)).next_multiple_of(ALIGN);
        Ok(Self { queue_len, total: queue_len * usize::from(queues) })
    }
}

/// Makes a zeroed region for GET_INFLIGHT_FD; the front-end sends it back with SET_INFLIGHT_FD, so nothing is kept.
pub(crate) fn create(
    desc: &InflightDesc,
    rings: usize,
    packed: bool,
) -> Result<(InflightDesc, OwnedFd), InflightError> {
    let total = Layout::new(desc, rings, packed)?.total as u64;
    let fd = lasthop_sys::memfd("lasthop-inflight", total).map_err(InflightError::Create)?;
    Ok((InflightDesc { mmap_size: total, mmap_offset: 0, ..*desc }, fd))
}

/// A region in use.
#[derive(Debug)]
pub(crate) struct Inflight {
    memory: GuestMemory,
    layout: Layout,
    queue_size: u16,
    packed: bool,
}

impl Inflight {
    /// Maps what came with SET_INFLIGHT_FD.
    pub(crate) fn adopt(desc: &InflightDesc, fd: impl AsFd, rings: usize, packed: bool) -> Result<Self, InflightError> {
        let layout = Layout::new(desc, rings, packed)?;
        let (size, offset, needed) = (desc.mmap_size, desc.mmap_offset, layout.total as u64);
        if size < needed || offset % 8 != 0 {
            return Err(InflightError::Area { size, offset, needed });
        }
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, size: needed, mmap_offset: offset };
        let memory = GuestMemory::empty().with_region(spec, fd)?;
        Ok(Self { memory, layout, queue_size: desc.queue_size, packed })
    }

    /// Notes where a ring of `size` entries stands. Rings that the region was not made for are left out.
    pub(crate) fn note(&self, queue: usize, size: u16, packed: bool, position: u32) {
        if size > self.queue_size || packed != self.packed {
            return;
        }
        let Some(start) = queue.checked_mul(self.layout.queue_len) else { return };
        let Ok(region) = self.memory.slice(start as u64, self.layout.queue_len) else { return };
        let fresh = region.load_u16(8) != VERSION;
        region.store_u16(10, size);
        if packed {
            note_packed(&region, fresh, size, position);
        } else {
            region.store_u16(14, position as u16);
        }
        region.store_u16_release(8, VERSION);
    }
}

fn note_packed(region: &GuestSlice<'_>, fresh: bool, size: u16, position: u32) {
    if fresh {
        // The free list starts at entry 0 and runs through all of them.
        for i in 0..size {
            region.store_u16(PACKED_HEADER + PACKED_ENTRY * usize::from(i) + 2, i.wrapping_add(1));
        }
    }
    let (index, wrap) = (position as u16 & 0x7fff, (position >> 15 & 1) as u8);
    region.store_u16(16, index);
    region.store_u16(18, index);
    region.write(20, &[wrap, wrap]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(queues: u16, size: u16) -> InflightDesc {
        InflightDesc { num_queues: queues, queue_size: size, ..InflightDesc::default() }
    }

    #[test]
    fn sizes_follow_the_layout() {
        let layout = |q, s, packed| Layout::new(&desc(q, s), 32, packed);
        assert_eq!(layout(2, 256, false).unwrap().queue_len, 16 + 16 * 256 + 48);
        assert_eq!(layout(2, 256, true).unwrap().total, 2 * (32 + 32 * 256 + 32));
        assert_eq!(layout(0, 256, true), Err(InflightError::Queues(0)));
        assert_eq!(layout(33, 256, true), Err(InflightError::Queues(33)));
        assert_eq!(layout(1, 0, true), Err(InflightError::QueueSize(0)));
        assert_eq!(layout(1, 65535, true), Err(InflightError::QueueSize(65535)));
        assert!(layout(32, 32768, true).is_ok());
    }

    #[test]
    fn headers_are_kept() {
        for packed in [false, true] {
            let (made, fd) = create(&desc(2, 64), 32, packed).unwrap();
            let inflight = Inflight::adopt(&made, &fd, 32, packed).unwrap();
            inflight.note(1, 64, packed, 0x8005_8005);
            inflight.note(2, 64, packed, 1); // beyond the region: nothing happens
            inflight.note(0, 128, packed, 1); // larger than its place: nothing happens
            inflight.note(0, 64, !packed, 1); // the other layout: nothing happens
            let len = inflight.layout.queue_len;
            let mut bytes = vec![0; 2 * len];
            rustix::io::pread(&fd, &mut bytes, 0).unwrap();
            assert!(bytes[..len].iter().all(|b| *b == 0));
            let word = |at: usize| u16::from_le_bytes([bytes[len + at], bytes[len + at + 1]]);
            assert_eq!((word(8), word(10)), (1, 64));
            if packed {
                assert_eq!((word(16), word(18), bytes[len + 20], bytes[len + 21]), (5, 5, 1, 1));
                assert_eq!((word(32 + 2), word(32 + 32 * 62 + 2)), (1, 63));
            } else {
                assert_eq!(word(14), 0x8005);
            }
        }
    }

    #[test]
    fn lying_descriptions_are_refused() {
        let (made, fd) = create(&desc(2, 64), 32, false).unwrap();
        let adopt = |d: InflightDesc| Inflight::adopt(&d, &fd, 32, false).map(|_| ()).unwrap_err();
        assert!(matches!(adopt(InflightDesc { mmap_size: 100, ..made }), InflightError::Area { .. }));
        assert!(matches!(adopt(InflightDesc { mmap_offset: 4, ..made }), InflightError::Area { .. }));
        let far = InflightDesc { mmap_offset: u64::MAX - 7, mmap_size: u64::MAX, ..made };
        assert!(matches!(adopt(far), InflightError::Map(MapError::Wraps(_))));
        let beyond = InflightDesc { mmap_offset: 64, ..made };
        assert!(matches!(adopt(beyond), InflightError::Map(MapError::FileTooShort { .. })));
        assert!(matches!(adopt(InflightDesc { num_queues: 40, ..made }), InflightError::Queues(40)));
    }
}
