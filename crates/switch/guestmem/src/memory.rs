//! The set of regions a front-end has handed us.

use crate::charge::Mapped;
use crate::region::{self, MapError, Region, RegionSpec};
use crate::slice::GuestSlice;
use crate::translations::{PAGE, Translations};
use crate::window::Window;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Most regions one front-end may map: QEMU's own limit for memory slots.
pub const MAX_REGIONS: usize = 509;

/// How much of this process a front-end may take up. Address space, mappings and places in the table of mappings are shared
/// by all ports: what one may have is bounded, so that there is always some for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Sum of the regions' sizes, in bytes. What is mapped may be more by three pages of the file for each region. What was
    /// replaced and is not unmapped yet is not in it: [`Mapped`] counts that.
    pub bytes: u64,
    /// Regions, at most [`MAX_REGIONS`].
    pub regions: usize,
}

impl Default for MemoryLimits {
    /// No limit in bytes: for memory of our own.
    fn default() -> Self {
        Self { bytes: u64::MAX, regions: MAX_REGIONS }
    }
}

/// What an address is that leads nowhere, and what to look at first.
const NOWHERE: [[&str; 2]; 2] = [
    ["guest", "in the guest's memory; if its driver is sound, not all of it is shared with lasthop (QEMU: share=on)"],
    ["I/O", "granted by the guest's IOMMU, or not for this use"],
];

/// An address the guest gave does not lie in its memory, or in what it has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {} address {addr:#x} are not {}", NOWHERE[.asked.is_some() as usize][0], NOWHERE[.asked.is_some() as usize][1])]
pub struct AccessError {
    /// Guest physical address, or I/O address.
    pub addr: u64,
    /// Bytes wanted.
    pub len: u64,
    /// Of an I/O address: whether its translation has been asked for, and may come.
    pub asked: Option<bool>,
}

/// An immutable set of mapped regions. A change makes a new set that shares the mappings; share it by `Arc`.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    /// Sorted by guest address, none overlapping.
    regions: Vec<Arc<Region>>,
    /// Where the largest of them lie, side by side: looked up for every buffer.
    pub(crate) places: [Place; NEAR],
    /// Where the others lie, by guest address.
    pub(crate) more: Vec<Place>,
    limits: MemoryLimits,
    mapped: Arc<Mapped>,
    /// Addresses are I/O addresses: the table that translates them, and the same regions by guest physical addresses. There are no places
    /// then, so that nothing is found by an address before it is translated.
    io: Option<Arc<(Arc<Translations>, GuestMemory)>>,
    /// Where is noted what was written, while the guest is being moved to another host.
    pub(crate) log: Option<Arc<GuestMemory>>,
}

/// As many regions as are looked through one by one. Guests have fewer; of a front-end that maps more the largest are the first.
const NEAR: usize = 8;

/// A region's guest address, size and host address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) guest: u64,
    pub(crate) size: u64,
    pub(crate) host: *mut u8,
}

// SAFETY: a number; it is only used while the region it belongs to is held beside it.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl GuestMemory {
    /// No memory at all.
    pub fn empty() -> Self {
        Self::default()
    }

    /// No memory at all, and no more than so much of it in any set that is made from this one; what is mapped is counted there.
    pub fn within(limits: MemoryLimits, mapped: &Arc<Mapped>) -> Self {
        Self { limits, mapped: mapped.clone(), ..Self::default() }
    }

    /// Another set of regions, under the same limits.
    fn of(&self, regions: Vec<Arc<Region>>) -> Self {
        let place = |r: &Arc<Region>| Place { guest: r.spec.guest_addr, size: r.spec.size, host: r.host };
        let mut places: Vec<_> = regions.iter().map(place).collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.size));
        let mut more = places.split_off(NEAR.min(places.len()));
        more.sort_unstable_by_key(|place| place.guest);
        places.sort_unstable_by_key(|place| place.guest);
        // What is left of them is empty: nothing lies there.
        places.resize(NEAR, Place::default());
        let places = places.try_into().unwrap_or_default();
        let (limits, mapped, log) = (self.limits, self.mapped.clone(), self.log.clone());
        Self { places, more, regions, limits, mapped, io: None, log }.translated_by(self.table())
    }

    /// The same regions by guest physical addresses.
    pub(crate) fn physical(&self) -> &Self {
        self.io.as_ref().map_or(self, |io| &io.1)
    }

    /// The same regions; a table translates the addresses by which they are found, or none does.
    pub fn translated_by(&self, table: Option<Arc<Translations>>) -> Self {
        let physical = self.physical().clone();
        let Some(table) = table else { return physical };
        let (places, more) = Default::default();
        Self { places, more, io: Some(Arc::new((table, physical.clone()))), ..physical }
    }

    /// The table that translates addresses, if one does.
    pub fn table(&self) -> Option<Arc<Translations>> {
        self.io.as_ref().map(|io| io.0.clone())
    }

    /// Addresses are I/O addresses.
    #[inline]
    pub fn is_translated(&self) -> bool {
        self.io.is_some()
    }

    /// This set without its regions, under the same limits and with the same log.
    pub fn cleared(&self) -> Self {
        self.of(Vec::new())
    }

    /// Memory of our own, zeros at first: one region of `size` bytes at guest (and user) address 0.
    pub fn anonymous(size: u64) -> Result<Self, MapError> {
        let refused = |errno: rustix::io::Errno| MapError::Refused { guest_addr: 0, errno: errno.raw_os_error() };
        let fd = rustix::fs::memfd_create("lasthop", rustix::fs::MemfdFlags::CLOEXEC).map_err(refused)?;
        rustix::fs::ftruncate(&fd, size).map_err(refused)?;
        Self::empty().with_region(RegionSpec { guest_addr: 0, user_addr: 0, size, mmap_offset: 0 }, fd)
    }

    /// This set and one region more, mapped from `fd`, which may be closed afterwards.
    pub fn with_region(&self, spec: RegionSpec, fd: impl AsFd) -> Result<Self, MapError> {
        let MemoryLimits { bytes, regions } = self.limits;
        if self.regions.len() >= regions {
            return Err(MapError::TooMany(regions));
        }
        let wanted = self.total_bytes().saturating_add(spec.size);
        if wanted > bytes {
            return Err(MapError::TooLarge { wanted, limit: bytes });
        }
        // All that can be wrong is found before anything is mapped: to unmap a file that nobody else has is to free it.
        region::check(&spec)?;
        if self.regions.iter().any(|r| r.overlaps(&spec)) {
            return Err(MapError::Overlaps(spec.guest_addr));
        }
        let region = Region::map(spec, fd, &self.mapped)?;
        let mut regions = self.regions.clone();
        let at = regions.partition_point(|r| r.spec.guest_addr < spec.guest_addr);
        regions.insert(at, Arc::new(region));
        Ok(self.of(regions))
    }

    /// Where what is mapped is counted.
    pub fn mapped(&self) -> &Arc<Mapped> {
        &self.mapped
    }

    /// How much there may be.
    pub fn limits(&self) -> MemoryLimits {
        self.limits
    }

    /// This set without the region that has exactly these addresses and size; `None` if there is none.
    pub fn without_region(&self, guest_addr: u64, user_addr: u64, size: u64) -> Option<Self> {
        let same = |s: &RegionSpec| (s.guest_addr, s.user_addr, s.size) == (guest_addr, user_addr, size);
        let at = self.regions.iter().position(|r| same(&r.spec))?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        Some(self.of(regions))
    }

    /// The regions, by guest address.
    pub fn regions(&self) -> impl Iterator<Item = RegionSpec> + '_ {
        self.regions.iter().map(|r| r.spec)
    }

    /// Sum of the regions' sizes, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.regions.iter().map(|r| r.spec.size).fold(0, u64::saturating_add)
    }

    /// Whether the file under any region, or under the log, was truncated since it was mapped.
    #[inline]
    pub fn faulted(&self) -> bool {
        self.regions.iter().chain(self.log.iter().flat_map(|log| &log.regions)).any(|r| r.faulted())
    }

    /// The region that a buffer at this guest physical address most likely lies in, for a loop over a burst.
    #[inline]
    pub fn window(&self, addr: u64) -> Window<'_> {
        Window::new(self, self.near_place(addr))
    }

    /// Where the region lies that has this address, if it is one of the largest.
    #[inline(always)]
    pub(crate) fn near_place(&self, addr: u64) -> Option<Place> {
        self.places.iter().find(|place| addr.wrapping_sub(place.guest) < place.size).copied()
    }

    /// `len` bytes at an address, in one region or in pages of I/O addresses that lie side by side in this process too. They may be read, and
    /// written `to_write`.
    #[inline]
    pub fn slice_for(&self, addr: u64, len: usize, to_write: bool) -> Result<GuestSlice<'_>, AccessError> {
        let first = self.piece_for(addr, len, to_write)?;
        let mut end = first.len();
        while end < len && self.io.is_some() {
            let next = self.piece_for(addr.wrapping_add(end as u64), len - end, to_write)?;
            if next.as_ptr() != first.as_ptr().wrapping_add(end) {
                break;
            }
            end += next.len();
        }
        // SAFETY: pieces that lie side by side, each mapped for as long as `self` lives.
        let whole = || unsafe { GuestSlice::new(first.as_ptr(), len) };
        (end == len).then(whole).ok_or(AccessError { addr, len: len as u64, asked: None })
    }

    /// [`GuestMemory::slice_for`] of memory that may be written to: for rings.
    #[inline]
    pub fn slice(&self, addr: u64, len: usize) -> Result<GuestSlice<'_>, AccessError> {
        self.slice_for(addr, len, true)
    }

    /// The first part of `len` bytes at `addr`: all of them, unless the region, or the page of a translated address, ends before. A buffer
    /// may cross into the next one, which lies elsewhere: ask again for the rest. `len` 0 must be inside memory too.
    #[inline]
    pub fn piece_for(&self, addr: u64, len: usize, to_write: bool) -> Result<GuestSlice<'_>, AccessError> {
        self.near_piece(addr, len).map_or_else(|| self.piece_of_more(addr, len, to_write), Ok)
    }

    /// [`GuestMemory::piece_for`] of memory that may be read.
    #[inline]
    pub fn piece(&self, addr: u64, len: usize) -> Result<GuestSlice<'_>, AccessError> {
        self.piece_for(addr, len, false)
    }

    /// [`GuestMemory::piece`] for most addresses: those in the largest regions, which are all that an ordinary guest has.
    #[inline]
    pub fn near_piece(&self, addr: u64, len: usize) -> Option<GuestSlice<'_>> {
        #[cfg(feature = "meter")]
        crate::meter::look_up();
        let place = self.near_place(addr)?;
        let offset = addr - place.guest;
        let len = (place.size - offset).min(len as u64) as usize;
        // SAFETY: `offset + len <= size`, all of which is mapped from `host` on for as long as `self` lives.
        Some(unsafe { GuestSlice::new(place.host.wrapping_add(offset as usize), len) })
    }

    #[cold]
    #[inline(never)]
    fn piece_of_more(&self, addr: u64, len: usize, to_write: bool) -> Result<GuestSlice<'_>, AccessError> {
        let refused = AccessError { addr, len: len as u64, asked: None };
        let place = match self.io {
            Some(_) => self.page(addr, to_write)?,
            None => {
                let at = self.more.partition_point(|place| place.guest <= addr);
                at.checked_sub(1).and_then(|at| self.more.get(at)).copied().ok_or(refused)?
            }
        };
        let offset = addr - place.guest;
        let len = place.size.checked_sub(offset).filter(|left| *left > 0).ok_or(refused)?.min(len as u64) as usize;
        // SAFETY: as above.
        Ok(unsafe { GuestSlice::new(place.host.wrapping_add(offset as usize), len) })
    }

    /// Where the page of an I/O address lies. Never asked where addresses are the guest's.
    #[cold]
    #[inline(never)]
    pub(crate) fn page(&self, addr: u64, to_write: bool) -> Result<Place, AccessError> {
        let refused = |asked| AccessError { addr, len: 1, asked };
        let (table, physical) = self.io.as_deref().ok_or(refused(None))?;
        let guest = table.find(addr, to_write).map_err(|asked| refused(Some(asked)))?;
        let page = physical.piece(guest, PAGE as usize)?;
        Ok(Place { guest: addr - addr % PAGE, size: page.len() as u64, host: page.as_ptr() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("guestmem-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn at(guest_addr: u64, size: u64) -> RegionSpec {
        RegionSpec { guest_addr, user_addr: guest_addr + 0x1_0000_0000, size, mmap_offset: 0 }
    }

    #[test]
    fn translation_stops_at_every_edge() {
        let m = GuestMemory::empty().with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        let m = m.with_region(at(0x12000, 0x1000), memfd(0x1000)).unwrap();
        assert!(m.slice(0x10000, 0x2000).is_ok());
        assert!(m.slice(0xffff, 1).is_err());
        assert!(m.slice(0x13000, 0).is_err());
        assert!(m.slice(u64::MAX, 2).is_err());
        assert!(m.slice(0x11fff, 2).is_err(), "crosses into the neighbour");
        assert_eq!(m.piece(0x11fff, 2).unwrap().len(), 1);
    }

    /// A window finds what [`GuestMemory::slice`] does, whichever region it remembers; but nothing where there are no bytes.
    #[test]
    fn a_window_finds_what_a_slice_is_of() {
        let m = GuestMemory::empty().with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        let m = m.with_region(at(0x12000, 0x1000), memfd(0x1000)).unwrap();
        let m = m.with_region(at(0x20000, 0x1000), memfd(0x1000)).unwrap();
        let addresses = [0, 0xffff, 0x10000, 0x11fff, 0x12000, 0x12fff, 0x13000, 0x20000, 0x20fff, u64::MAX];
        for hint in addresses {
            for addr in addresses {
                for len in [0, 1, 2, 0xfff, 0x1000, 0x1001, 0x2000, 0x2001, u32::MAX] {
                    let mut window = m.window(hint);
                    let found = window.find::<false>(addr, len, 7);
                    let slice = m.slice(addr, len as usize).ok().filter(|slice| !slice.is_empty());
                    let bytes = |slice: crate::GuestSlice<'_>| (slice.as_ptr(), slice.len());
                    assert_eq!(
                        found.and_then(|found| found.slice()).map(bytes),
                        slice.map(bytes),
                        "{len} bytes at {addr:#x}, hint {hint:#x}"
                    );
                    assert!(found.is_none_or(|found| (found.len(), found.id(), found.form()) == (len, 7, 0)));
                }
            }
        }
        let hollow = crate::Tagged::hollow(u64::MAX, u32::MAX, u16::MAX, u16::MAX);
        assert!(hollow.slice().is_none(), "a number is never taken for memory");
        assert_eq!(
            (hollow.number(), hollow.len(), hollow.id(), hollow.form()),
            (Some(u64::MAX), u32::MAX, u16::MAX, 0x7fff)
        );
    }

    #[test]
    fn hostile_tables_are_refused() {
        let m = GuestMemory::empty().with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        assert_eq!(m.with_region(at(0x11fff, 1), memfd(0x2000)).unwrap_err(), MapError::Overlaps(0x11fff));
        assert_eq!(m.with_region(at(0, 0), memfd(1)).unwrap_err(), MapError::Empty(0));
        let wraps = RegionSpec { guest_addr: u64::MAX - 1, user_addr: 0, size: 4096, mmap_offset: 0 };
        assert!(matches!(m.with_region(wraps, memfd(4096)), Err(MapError::Wraps(_))));
        let offset = RegionSpec { mmap_offset: u64::MAX - 10, ..at(0x20000, 4096) };
        assert!(matches!(m.with_region(offset, memfd(4096)), Err(MapError::Wraps(_))));
        assert!(matches!(m.with_region(at(0x20000, 8192), memfd(4096)), Err(MapError::FileTooShort { .. })));
    }

    /// The pages of a file on disk, or of anything that a front-end serves itself, would make whoever copies wait for them.
    #[test]
    fn only_files_that_are_memory_are_mapped() {
        let kind = |fd: OwnedFd| GuestMemory::empty().with_region(at(0x20000, 4096), fd).unwrap_err();
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert_eq!(kind(pipe), MapError::Kind(0x20000));
        let on_disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        on_disk.set_len(4096).unwrap();
        assert_eq!(kind(on_disk.into()), MapError::Kind(0x20000));
        assert!(MapError::Kind(0x20000).to_string().contains("memory-backend-memfd"));
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        shm.set_len(4096).unwrap();
        assert!(GuestMemory::empty().with_region(at(0x20000, 4096), shm).is_ok());
    }

    #[test]
    fn a_port_maps_so_much_and_no_more() {
        let m = GuestMemory::within(MemoryLimits { bytes: 0x5000, regions: 3 }, &Arc::default());
        let m = m.with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        let m = m.with_region(at(0x20000, 0x2000), memfd(0x2000)).unwrap();
        let refused = m.with_region(at(0x30000, 0x2000), memfd(0x2000)).unwrap_err();
        assert_eq!(refused, MapError::TooLarge { wanted: 0x6000, limit: 0x5000 });
        let huge = RegionSpec { size: u64::MAX, ..at(0x30000, 0) };
        assert!(matches!(m.with_region(huge, memfd(0)), Err(MapError::TooLarge { wanted: u64::MAX, .. })));
        let m = m.with_region(at(0x30000, 0x1000), memfd(0x1000)).unwrap();
        assert_eq!(m.with_region(at(0x40000, 0), memfd(0)).unwrap_err(), MapError::TooMany(3));
        let m = m.without_region(0x10000, 0x1_0001_0000, 0x2000).unwrap();
        assert!(m.with_region(at(0x10000, 0x2000), memfd(0x2000)).is_ok(), "what went makes room");
        assert!(m.cleared().with_region(at(0, 0x6000), memfd(0x6000)).is_err(), "the limits stay");
        let large = MapError::TooLarge { wanted: 300 << 30, limit: 64 << 30 }.to_string();
        assert!(
            large.contains("300 GiB") && large.contains("64 GiB") && large.contains("--max-guest-memory"),
            "{large}"
        );
    }

    #[test]
    fn what_is_mapped_counts_until_it_is_unmapped() {
        let mapped = Arc::default();
        let none = GuestMemory::within(MemoryLimits::default(), &mapped);
        let count = || (mapped.bytes(), mapped.regions());
        let one = none.with_region(at(0, 0x1001), memfd(0x2000)).unwrap();
        let two = one.with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        assert_eq!(count(), (0x3001, 2), "what two sets share counts once");
        assert!(two.with_region(at(0x20000, 0x2000), memfd(0)).is_err());
        assert_eq!(count(), (0x3001, 2), "what is refused does not count");
        let other = two.cleared().with_region(at(0, 0x3000), memfd(0x3000)).unwrap();
        drop(one);
        assert_eq!(count(), (0x6001, 3));
        drop(two);
        assert_eq!(count(), (0x3000, 1));
        drop(other);
        assert_eq!(count(), (0, 0));
    }

    #[test]
    fn an_offset_need_not_be_page_aligned() {
        let fd = memfd(0x3000);
        let whole = GuestMemory::empty().with_region(at(0, 0x3000), &fd).unwrap();
        let part = RegionSpec { guest_addr: 0, user_addr: 0, size: 0x100, mmap_offset: 0x1010 };
        let part = GuestMemory::empty().with_region(part, &fd).unwrap();
        whole.slice(0x1010, 4).unwrap().write(0, &[1, 2, 3, 4]);
        let mut out = [0; 4];
        part.slice(0, 4).unwrap().read(0, &mut out);
        assert_eq!(out, [1, 2, 3, 4]);
    }

    #[test]
    fn truncation_marks_the_region_and_reads_zero() {
        install_fault_handler_for_test();
        let fd = memfd(0x4000);
        let m = GuestMemory::empty().with_region(at(0, 0x4000), &fd).unwrap();
        m.slice(0x3000, 4).unwrap().write(0, &[9; 4]);
        assert!(!m.faulted());
        ftruncate(&fd, 0).unwrap();
        let mut out = [7; 4];
        m.slice(0x3000, 4).unwrap().read(0, &mut out);
        assert_eq!(out, [0; 4]);
        assert!(m.faulted());
        drop(m);
        let again = GuestMemory::empty().with_region(at(0, 0x1000), memfd(0x1000)).unwrap();
        assert!(!again.faulted());
    }

    /// Whoever touches a page that has gone does not free what is left of the file, gigabytes perhaps, nor is it counted as data.
    #[test]
    fn truncation_leaves_the_rest_of_the_file_alone() {
        const GIB: u64 = 1 << 30;
        install_fault_handler_for_test();
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:lasthop-kept").count();
        let data_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("VmData:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        for offset in [0, 0x1000, 4 * GIB] {
            let fd = memfd_create("lasthop-kept", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, offset + 8 * GIB).unwrap();
            let spec = RegionSpec { mmap_offset: offset, ..at(0, 8 * GIB) };
            let m = GuestMemory::empty().with_region(spec, &fd).unwrap();
            assert_eq!(maps(), 1);
            ftruncate(&fd, offset).unwrap();
            drop(fd);
            let before = data_kib();
            let mut out = [7; 4];
            m.slice(8 * GIB - 0x2000, 4).unwrap().read(0, &mut out);
            m.slice(0x1000, 4).unwrap().read(0, &mut out);
            assert!(m.faulted() && out == [0; 4]);
            assert!(maps() >= 1, "offset {offset:#x}: the file is still there");
            assert!(data_kib() < before + 1024 * 1024, "{} KiB of data, {before} before", data_kib());
            drop(m);
            assert_eq!(maps(), 0);
        }
    }

    fn install_fault_handler_for_test() {
        crate::install_fault_handler();
    }

    #[test]
    fn addresses_are_found_however_many_regions_there_are() {
        let mut m = GuestMemory::empty();
        // Each is followed by a hole; of the same size and of different ones, in an order of their own.
        for n in (0..200u64).map(|n| n * 77 % 200) {
            let size = 0x1000 + n % 7 * 0x1000;
            m = m.with_region(at(n * 0x10000, size), memfd(size)).unwrap();
        }
        for n in 0..200u64 {
            let size = 0x1000 + n % 7 * 0x1000;
            let mark = m.slice(n * 0x10000, 8).unwrap();
            mark.write(0, &n.to_le_bytes());
            assert_eq!(m.piece(n * 0x10000 + size - 4, 8).unwrap().len(), 4);
            assert!(m.piece(n * 0x10000 + size, 1).is_err());
        }
        assert!((0..200u64).all(|n| m.slice(n * 0x10000, 8).unwrap().load_u64(0) == n));
        assert!(m.piece(200 * 0x10000, 1).is_err() && m.piece(u64::MAX, 1).is_err());
    }

    #[test]
    fn regions_go_one_by_one() {
        let m = GuestMemory::empty().with_region(at(0x10000, 0x2000), memfd(0x2000)).unwrap();
        assert!(m.without_region(0x10000, 0, 0x2000).is_none());
        let less = m.without_region(0x10000, 0x1_0001_0000, 0x2000).unwrap();
        assert_eq!((less.regions().count(), m.total_bytes()), (0, 0x2000));
    }
}
