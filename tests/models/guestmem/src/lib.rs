//! Stands in for `lasthop-guestmem` below the rings: the same calls, over atomics that loom watches.
//!
//! Every access has the order that the real one has: what is volatile or a bulk copy there is relaxed here, so loom may
//! show a reader anything that a weakly ordered processor might. Memory is in cells. One of 8 bytes stands for a word that
//! both sides read and write whole (descriptors); all else is in cells of 2 bytes, so nothing is ordered by lying together.
//! A part of an 8-byte cell is written by an addition, which sees the newest value as the only writer of the word does.
//!
//! [`weaken`] takes one kind of order away, so that a test can show that its model would see the loss.

use loom::sync::atomic::AtomicU64;
use std::cell::Cell as Setting;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Plain, Ordering};

pub mod translations;

use translations::Translations;

/// An order that a model does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weak {
    /// Acquire loads are relaxed, and fences of acquire order are none.
    Acquire,
    /// Release stores are relaxed, and fences of release order are none.
    Release,
    /// Fences of sequentially consistent order are none.
    Fence,
}

thread_local! {
    // loom runs all threads of a model on one.
    static WEAK: Setting<Option<Weak>> = const { Setting::new(None) };
}

/// From now on the calling thread's models do without this.
pub fn weaken(weak: Option<Weak>) {
    WEAK.set(weak);
}

fn unless(weak: Weak, order: Ordering) -> Ordering {
    if WEAK.get() == Some(weak) { Ordering::Relaxed } else { order }
}

/// As `std::sync::atomic::fence`.
pub fn fence(order: Ordering) {
    let weak = match order {
        Ordering::SeqCst => Weak::Fence,
        Ordering::Acquire => Weak::Acquire,
        _ => Weak::Release,
    };
    if unless(weak, order) != Ordering::Relaxed {
        loom::sync::atomic::fence(order);
    }
}

/// An address that is not in the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {addr:#x} are not in the model's memory")]
pub struct AccessError {
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Never: nothing is translated here.
    pub asked: Option<bool>,
}

/// Not used by models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Address in the front-end.
    pub user_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Where in the file.
    pub mmap_offset: u64,
}

/// Memory from address 0 on.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// So many bytes are in cells of 8.
    joined: usize,
    cells: Vec<Cell>,
    table: Option<Arc<Translations>>,
}

#[derive(Debug)]
struct Cell {
    watched: AtomicU64,
    /// The value written last, whoever may have seen it.
    newest: Plain,
}

impl GuestMemory {
    /// Zeros: `joined` bytes in cells of 8, then `apart` in cells of 2.
    pub fn new(joined: usize, apart: usize) -> Self {
        let cell = |_| Cell { watched: AtomicU64::new(0), newest: Plain::new(0) };
        Self { joined, cells: (0..joined / 8 + apart / 2).map(cell).collect(), table: None }
    }

    /// None.
    pub fn empty() -> Self {
        Self::default()
    }

    /// For tests that are compiled with the source and never run here.
    pub fn anonymous(bytes: u64) -> Result<Self, AccessError> {
        Ok(Self::new(bytes as usize, 0))
    }

    /// Models make their memory with [`GuestMemory::new`].
    pub fn with_region(&self, _: RegionSpec, _: impl AsFd) -> Result<Self, AccessError> {
        Err(AccessError { addr: 0, len: 0, asked: None })
    }

    fn bytes(&self) -> usize {
        self.joined + 2 * (self.cells.len() - self.joined / 8)
    }

    /// No address is translated here, whether there is a table or not: models read its entry by themselves.
    pub fn is_translated(&self) -> bool {
        false
    }

    /// With a table.
    pub fn translated_by(self, table: Option<Arc<Translations>>) -> Self {
        Self { table, ..self }
    }

    /// The table, if there is one.
    pub fn table(&self) -> Option<Arc<Translations>> {
        self.table.clone()
    }

    /// The models move no guest to another host.
    pub fn is_logged(&self) -> bool {
        false
    }

    /// As above: there is no log.
    pub fn log_written(&self, _slices: &[GuestSlice<'_>], _len: usize) {}

    /// The bytes at an address.
    pub fn slice(&self, addr: u64, len: usize) -> Result<GuestSlice<'_>, AccessError> {
        let fits = addr as usize + len <= self.bytes();
        let slice = GuestSlice { memory: Some(self), at: addr as usize, len };
        fits.then_some(slice).ok_or(AccessError { addr, len: len as u64, asked: None })
    }

    /// As [`GuestMemory::slice`]: there is one region.
    pub fn piece(&self, addr: u64, len: usize) -> Result<GuestSlice<'_>, AccessError> {
        self.slice(addr, len)
    }

    /// As [`GuestMemory::slice`].
    pub fn slice_for(&self, addr: u64, len: usize, _: bool) -> Result<GuestSlice<'_>, AccessError> {
        self.slice(addr, len)
    }

    /// As [`GuestMemory::piece`].
    pub fn piece_for(&self, addr: u64, len: usize, _: bool) -> Result<GuestSlice<'_>, AccessError> {
        self.piece(addr, len)
    }

    /// As [`GuestMemory::piece`].
    pub fn near_piece(&self, addr: u64, len: usize) -> Option<GuestSlice<'_>> {
        self.piece(addr, len).ok()
    }

    /// As the real one: there is one region.
    pub fn window(&self, _: u64) -> Window<'_> {
        Window { memory: self }
    }

    /// The cell with this byte, its width in bytes and the byte's place in it.
    fn cell(&self, at: usize) -> (&Cell, usize, usize) {
        if at < self.joined {
            return (&self.cells[at / 8], 8, at % 8);
        }
        let beyond = at - self.joined;
        (&self.cells[self.joined / 8 + beyond / 2], 2, beyond % 2)
    }

    fn load(&self, mut at: usize, out: &mut [u8], order: Ordering) {
        let mut left = out;
        while !left.is_empty() {
            let (cell, width, place) = self.cell(at);
            let here = left.len().min(width - place);
            let bytes = cell.watched.load(order).to_le_bytes();
            let (now, later) = left.split_at_mut(here);
            now.copy_from_slice(&bytes[place..place + here]);
            (left, at) = (later, at + here);
        }
    }

    fn store(&self, mut at: usize, mut bytes: &[u8], order: Ordering) {
        while !bytes.is_empty() {
            let (cell, width, place) = self.cell(at);
            let here = bytes.len().min(width - place);
            let old = cell.newest.load(Ordering::Relaxed);
            let mut new = old.to_le_bytes();
            new[place..place + here].copy_from_slice(&bytes[..here]);
            let new = u64::from_le_bytes(new);
            cell.newest.store(new, Ordering::Relaxed);
            if here == width {
                cell.watched.store(new, order);
            } else {
                cell.watched.fetch_add(new.wrapping_sub(old), order);
            }
            (bytes, at) = (&bytes[here..], at + here);
        }
    }
}

/// A run of bytes.
#[derive(Clone, Copy, Debug)]
pub struct GuestSlice<'m> {
    memory: Option<&'m GuestMemory>,
    at: usize,
    len: usize,
}

macro_rules! words {
    ($word:ty: $load:ident, $store:ident) => {
        /// A relaxed load.
        pub fn $load(&self, offset: usize) -> $word {
            let mut bytes = [0; size_of::<$word>()];
            self.get().load(offset, &mut bytes, Ordering::Relaxed);
            <$word>::from_le_bytes(bytes)
        }

        /// A relaxed store.
        pub fn $store(&self, offset: usize, value: $word) {
            self.get().store(offset, &value.to_le_bytes(), Ordering::Relaxed);
        }
    };
}

impl GuestSlice<'_> {
    /// No bytes.
    pub const EMPTY: Self = Self { memory: None, at: 0, len: 0 };

    fn get(&self) -> Self {
        *self
    }

    fn load(&self, offset: usize, out: &mut [u8], order: Ordering) {
        if let (Some(memory), true) = (self.memory, offset + out.len() <= self.len) {
            memory.load(self.at + offset, out, order);
        }
    }

    fn store(&self, offset: usize, bytes: &[u8], order: Ordering) {
        if let (Some(memory), true) = (self.memory, offset + bytes.len() <= self.len) {
            memory.store(self.at + offset, bytes, order);
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it begins at a multiple.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.at.is_multiple_of(align)
    }

    /// A part of it, as far as it goes.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self { memory: self.memory, at: self.at + offset, len: len.min(self.len - offset) }
    }

    /// Relaxed loads.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        let from = self.part(offset, out.len());
        from.load(0, &mut out[..from.len], Ordering::Relaxed);
        from.len
    }

    /// Relaxed loads.
    pub fn read_array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read(offset, &mut bytes) == N).then_some(bytes)
    }

    /// Relaxed stores. Zeros, which a driver writes once to fresh memory, are there already.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let to = self.part(offset, bytes.len());
        if bytes.iter().all(|byte| *byte == 0) {
            return to.len;
        }
        to.store(0, &bytes[..to.len], Ordering::Relaxed);
        to.len
    }

    /// Relaxed stores.
    pub fn write_array<const N: usize>(&self, offset: usize, bytes: &[u8; N]) -> bool {
        let fits = offset + N <= self.len;
        self.store(offset, bytes, Ordering::Relaxed);
        fits
    }

    words!(u16: load_u16, store_u16);
    words!(u64: load_u64, store_u64);

    /// A load of acquire order.
    pub fn load_u16_acquire(&self, offset: usize) -> u16 {
        let mut bytes = [0; 2];
        self.load(offset, &mut bytes, unless(Weak::Acquire, Ordering::Acquire));
        u16::from_le_bytes(bytes)
    }

    /// A store of release order.
    pub fn store_u16_release(&self, offset: usize, value: u16) {
        self.store(offset, &value.to_le_bytes(), unless(Weak::Release, Ordering::Release));
    }

    /// Nothing.
    pub fn prefetch(&self, _to_write: bool) {}
}

/// As the real one, without its haste.
fn fill<T, const N: usize>(
    list: &mut arrayvec::ArrayVec<T, N>,
    most: usize,
    nth: impl FnMut(usize) -> Option<T>,
) -> usize {
    let before = list.len();
    list.extend((0..most.min(N - before)).map_while(nth));
    list.len() - before
}

/// The one region.
#[derive(Clone, Copy, Debug)]
pub struct Window<'m> {
    memory: &'m GuestMemory,
}

impl<'m> Window<'m> {
    /// As the real one.
    pub fn find<const WRITE: bool>(&mut self, addr: u64, len: u32, id: u16) -> Option<Tagged<'m>> {
        let slice = self.memory.slice(addr, len as usize).ok()?;
        Tagged::of(slice, id).filter(|_| len != 0)
    }

    /// The one region's.
    pub fn place(&self) -> u64 {
        0
    }
}

/// A slice or a number, and more numbers.
#[derive(Clone, Copy, Debug)]
pub struct Tagged<'m> {
    what: Result<GuestSlice<'m>, u64>,
    len: u32,
    id: u16,
    form: u16,
}

impl<'m> Tagged<'m> {
    /// A slice.
    pub fn of(slice: GuestSlice<'m>, id: u16) -> Option<Self> {
        Some(Self { what: Ok(slice), len: slice.len as u32, id, form: 0 })
    }

    /// A number.
    pub fn hollow(number: u64, len: u32, id: u16, form: u16) -> Self {
        Self { what: Err(number), len, id, form }
    }

    /// The slice.
    pub fn slice(&self) -> Option<GuestSlice<'m>> {
        self.what.ok()
    }

    /// The number.
    pub fn number(&self) -> Option<u64> {
        self.what.err()
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The holder's number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// More of it.
    pub fn form(&self) -> u16 {
        self.form
    }

    /// Nothing.
    pub fn prefetch(&self, _to_write: bool) {}
}

/// Words of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'m, T> {
    slice: GuestSlice<'m>,
    mask: usize,
    word: std::marker::PhantomData<T>,
}

impl Entries<'_, u16> {
    /// A relaxed load.
    pub fn load(&self, n: usize) -> u16 {
        self.slice.load_u16(2 * (n & self.mask))
    }

    /// As the real one.
    pub fn fill<T, const N: usize>(
        &self,
        list: &mut arrayvec::ArrayVec<T, N>,
        first: usize,
        most: usize,
        mut each: impl FnMut(u16) -> Option<T>,
    ) -> usize {
        let first = first & self.mask;
        fill(list, most.min(self.mask + 1 - first), |n| each(self.load(first + n)))
    }
}

impl Entries<'_, [u32; 2]> {
    /// Two relaxed stores.
    pub fn store(&self, n: usize, first: u32, second: u32) {
        let at = 8 * (n & self.mask);
        self.slice.store(at, &first.to_le_bytes(), Ordering::Relaxed);
        self.slice.store(at + 4, &second.to_le_bytes(), Ordering::Relaxed);
    }

    /// Nothing.
    pub fn prefetch_for_write(&self, _n: usize) {}
}

/// Descriptors of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'m>(GuestSlice<'m>);

impl Descriptors<'_> {
    /// Its last word first, in acquire order.
    pub fn load(&self, n: usize) -> Option<(u64, u32, u32)> {
        let (mut first, mut second, mut last) = ([0; 8], [0; 4], [0; 4]);
        self.0.load(16 * n + 12, &mut last, unless(Weak::Acquire, Ordering::Acquire));
        self.0.load(16 * n, &mut first, Ordering::Relaxed);
        self.0.load(16 * n + 8, &mut second, Ordering::Relaxed);
        Some((u64::from_le_bytes(first), u32::from_le_bytes(second), u32::from_le_bytes(last)))
    }

    /// As the real one.
    pub fn fill<T, const N: usize>(
        &self,
        list: &mut arrayvec::ArrayVec<T, N>,
        first: usize,
        most: usize,
        mut each: impl FnMut(usize, (u64, u32, u32)) -> Option<T>,
    ) -> usize {
        let most = most.min((self.0.len / 16).saturating_sub(first));
        fill(list, most, |n| self.load(first + n).and_then(|words| each(n, words)))
    }

    /// Relaxed stores, the last one first.
    pub fn store_seconds(&self, first: usize, words: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        words.enumerate().rev().for_each(|(n, word)| self.store_second(first + n, word));
    }

    /// A relaxed store.
    pub fn store_second(&self, n: usize, word: u64) {
        self.0.store_u64(16 * n + 8, word);
    }

    /// Nothing.
    pub fn prefetch_for_write(&self, _n: usize) {}
}

/// A slice together with its memory.
#[derive(Debug)]
pub struct PinnedSlice<const ALIGN: usize = 2> {
    memory: Arc<GuestMemory>,
    at: usize,
    len: usize,
}

impl<const ALIGN: usize> PinnedSlice<ALIGN> {
    /// As the real one.
    pub fn new(memory: &Arc<GuestMemory>, addr: u64, len: usize) -> Result<Self, AccessError> {
        let slice = memory.slice(addr, len)?;
        if !slice.is_aligned(ALIGN) {
            return Err(AccessError { addr, len: len as u64, asked: None });
        }
        Ok(Self { at: slice.at, len, memory: memory.clone() })
    }

    /// The slice.
    pub fn get(&self) -> GuestSlice<'_> {
        GuestSlice { memory: Some(&self.memory), at: self.at, len: self.len }
    }

    words!(u16: load_u16, store_u16);
    words!(u64: load_u64, store_u64);

    /// As descriptors.
    pub fn descriptors(&self) -> Descriptors<'_> {
        Descriptors(self.get())
    }

    /// As words of a ring.
    pub fn entries<T>(&self, offset: usize, mask: usize) -> Option<Entries<'_, T>> {
        let slice = self.get().part(offset, (mask + 1) * size_of::<T>());
        Some(Entries { slice, mask, word: std::marker::PhantomData })
    }

    /// A store of release order.
    pub fn store_u64_release(&self, offset: usize, value: u64) {
        self.get().store(offset, &value.to_le_bytes(), unless(Weak::Release, Ordering::Release));
    }
}
