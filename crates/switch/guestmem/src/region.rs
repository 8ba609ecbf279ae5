//! One mapped region.

#[cfg(any(test, feature = "text"))]
mod text;

use crate::charge::{Charge, Mapped};
use crate::fault;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SMALL_PAGE: u64 = 4096;
/// Bytes that are unmapped at a time. Nobody else in this process maps or unmaps anything meanwhile: 6 GiB that were in use take 200 to
/// 400 ms in one piece, and keep the main thread, and so all ports, waiting for as long; a piece takes 15 ms at most (Linux 6.18).
const PIECE: usize = 64 << 20;

/// Where a region lies: as the front-end says in SET_MEM_TABLE or ADD_MEM_REG (vhost-user, "Memory region description").
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RegionSpec {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Address in the front-end's own address space; ring addresses use these.
    pub user_addr: u64,
    /// Where in the file the region starts.
    pub mmap_offset: u64,
}

/// Why guest memory cannot be mapped. Who tells people has the words for it (`region/text.rs`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum MapError {
    Empty(u64),
    Wraps(u64),
    Overlaps(u64),
    /// More than so many regions.
    TooMany(usize),
    TooLarge {
        wanted: u64,
        limit: u64,
    },
    /// Not memory.
    Kind(u64),
    /// As many mappings as a process may have.
    NoRoom(u64),
    FileTooShort {
        guest_addr: u64,
        needed: u64,
        length: u64,
    },
    Refused {
        guest_addr: u64,
        errno: i32,
    },
}

/// A mapping with its place in the guest. Unmapped when dropped, which frees the file's pages if nobody else has them: that may take
/// seconds.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) spec: RegionSpec,
    /// The region's first byte.
    pub(crate) host: *mut u8,
    pub(crate) base: *mut u8,
    pub(crate) mapped: usize,
    /// Unmapped at a time.
    piece: usize,
    slot: fault::Slot,
    /// Given back after all else, when the mapping is gone.
    _charge: Charge,
}

// SAFETY: the pointers name a mapping that this value owns until it is dropped; all access goes through
// `GuestSlice` and `PinnedSlice`, in ways that any thread may use at any time because the guest does so too.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region of a file, shared, readable and writable. It has passed [`check`].
    ///
    /// Only files whose pages are memory are taken. A page of any other is fetched by its file system when it is first
    /// touched; if that is FUSE, the front-end serves it itself and the thread that copies, which holds ring locks, sleeps
    /// for as long as the front-end likes. That a file can have seals tells them apart, and the question is answered by the
    /// kernel alone (fcntl(2), F_GET_SEALS), whereas even fstat(2) of a FUSE file waits for whoever serves it.
    pub(crate) fn map(spec: RegionSpec, fd: impl AsFd, count: &Arc<Mapped>) -> Result<Self, MapError> {
        let guest_addr = spec.guest_addr;
        let refused = |errno| match errno {
            Errno::NOMEM => MapError::NoRoom(guest_addr),
            errno => MapError::Refused { guest_addr, errno: errno.raw_os_error() },
        };
        rustix::fs::fcntl_get_seals(&fd).map_err(|_| MapError::Kind(guest_addr))?;
        let needed = spec.mmap_offset.checked_add(spec.size).ok_or(MapError::Wraps(guest_addr))?;
        let stat = rustix::fs::fstat(&fd).map_err(refused)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        if needed > length {
            return Err(MapError::FileTooShort { guest_addr, needed, length });
        }
        // The whole file up to the region's end is mapped: an offset need not be a multiple of the page (or huge page)
        // size, and mmap of a hugetlbfs file insists on whole huge pages, which st_blksize tells.
        let page = u64::try_from(stat.st_blksize).unwrap_or(SMALL_PAGE).clamp(SMALL_PAGE, 1 << 30);
        let start = spec.mmap_offset - spec.mmap_offset % page;
        let mapped = (needed - start).checked_next_multiple_of(page).ok_or(MapError::Wraps(guest_addr))?;
        // One page of the file besides, the one before or behind: it keeps the file when all others have been replaced (`fault`).
        // It may lie behind the file's end, except with huge pages: hugetlbfs makes the file as long as what is mapped. There a
        // region that is the whole file has none, and needs none: pages are replaced one by one.
        let before = if start >= page { page } else { 0 };
        let has_next = page == SMALL_PAGE || length >= start.saturating_add(mapped).saturating_add(page);
        let behind = if before == 0 && has_next { page } else { 0 };
        let wraps = |_| MapError::Wraps(guest_addr);
        let spare = usize::try_from(before).map_err(wraps)?;
        let whole = mapped.checked_add(before + behind).ok_or(MapError::Wraps(guest_addr))?;
        let whole = usize::try_from(whole).map_err(wraps)?;
        let mapped = usize::try_from(mapped).map_err(wraps)?;
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                whole,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                start - before,
            )
        }
        .map_err(refused)?;
        let base = base.cast::<u8>();
        let first = base.wrapping_add(spare);
        let page = usize::try_from(page).map_err(wraps)?;
        let slot = fault::Slot::claim(fault::Mapping { start: first as usize, len: mapped, page });
        let host = first.wrapping_add(usize::try_from(spec.mmap_offset - start).unwrap_or(0));
        let _charge = Charge::new(spec.size, count);
        Ok(Self { spec, host, base, mapped: whole, piece: page.max(PIECE), slot, _charge })
    }

    /// Whether the file under the mapping went away.
    pub(crate) fn faulted(&self) -> bool {
        self.slot.faulted()
    }

    pub(crate) fn overlaps(&self, other: &RegionSpec) -> bool {
        let hit = |a: u64, b: u64| a < b + other.size && b < a + self.spec.size;
        hit(self.spec.guest_addr, other.guest_addr) || hit(self.spec.user_addr, other.user_addr)
    }
}

/// That a region is not empty, and that its addresses do not wrap: [`Region::overlaps`] relies on it.
pub(crate) fn check(spec: &RegionSpec) -> Result<(), MapError> {
    if spec.size == 0 {
        return Err(MapError::Empty(spec.guest_addr));
    }
    let wraps = |a: u64| a.checked_add(spec.size).is_none();
    if wraps(spec.guest_addr) || wraps(spec.user_addr) || spec.size > isize::MAX as u64 {
        return Err(MapError::Wraps(spec.guest_addr));
    }
    Ok(())
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(feature = "dma")]
        crate::dma::let_go(self);
        // First: a slot must never name addresses that may be somebody else's by now.
        self.slot.release();
        // From its end, a piece at a time, of whole pages of the file.
        let mut left = self.mapped;
        while left > 0 {
            let from = (left - 1) / self.piece * self.piece;
            // SAFETY: the mapping is ours, and whoever holds a slice of it also holds (or borrows) an Arc of this region.
            let _ = unsafe { munmap(self.base.wrapping_add(from).cast(), left - from) };
            left = from;
        }
    }
}
