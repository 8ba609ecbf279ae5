//! Memory that outlives this process: the page that it counts in, which the supervisor reads when it has ended, and notes for the
//! process after it.

use super::messages::BATCH;
use lasthop_uplink_ipc::{COUNTERS_NAME, COUNTERS_PAGE, COUNTERS_ROW};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page here.
const PAGE: usize = 4096;
const _: () = assert!(COUNTERS_PAGE == PAGE && MESSAGES + BATCH * size_of::<libc::mmsghdr>() <= PAGE);

/// A mapping of one page of a file. The file is that long: whoever has made it does not make it shorter, unless he wants to end
/// by it.
#[derive(Debug)]
struct Page(NonNull<u8>);

// SAFETY: a mapping of our own, accessed by atomic operations only, but for the messages of notes, which need `&mut`.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(memfd: impl AsFd, number: u16) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let at = u64::from(number) * PAGE as u64;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, memfd, at) }?;
        Ok(Self(NonNull::new(base.cast()).ok_or(Errno::NOMEM)?))
    }

    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let fits = offset.is_multiple_of(8) && offset < PAGE;
        // SAFETY: a multiple of 8 below the length of the mapping, which is a multiple of 8 and lives as long as `self`.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(offset).cast()) })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody after.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// The page that this process counts in.
#[derive(Debug)]
pub struct CounterPage(Page);

impl CounterPage {
    /// Maps it.
    pub fn map(memfd: impl AsFd) -> Result<Self, Errno> {
        Page::map(memfd, 0).map(Self)
    }

    /// Names a row; longer names are cut, and rows that do not exist are left out.
    pub fn name(&self, row: usize, name: &str) {
        let mut bytes = [0; COUNTERS_NAME];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        for (i, word) in bytes.as_chunks().0.iter().enumerate() {
            if let Some(at) = self.0.word(row * COUNTERS_ROW + i * 8) {
                at.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    /// Adds to a row's number.
    pub fn add(&self, row: usize, more: u64) {
        if let Some(number) = self.0.word(row * COUNTERS_ROW + COUNTERS_NAME) {
            // Little-endian where the supervisor reads it, which is this machine: every one that lasthop runs on is.
            number.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// A row's number.
    pub fn get(&self, row: usize) -> u64 {
        self.0.word(row * COUNTERS_ROW + COUNTERS_NAME).map_or(0, |number| number.load(Ordering::Relaxed))
    }
}

/// Bytes of the notes of a pair.
pub const NOTES: usize = PAGE;
/// Where in them the message headers are; words come before.
const MESSAGES: usize = 64;

/// What one queue pair notes down for the process after this one: a few words, and the headers of the messages that the kernel
/// is carrying, in which it says how far it has come. The switch does not have this memory: there are addresses in it.
#[derive(Debug)]
pub struct Notes(Page);

impl Notes {
    /// Those of this pair. Nobody else may write them: the process that did has ended.
    pub fn map(memfd: impl AsFd, pair: u16) -> Result<Self, Errno> {
        Page::map(memfd, pair).map(Self)
    }

    /// A word.
    pub fn get(&self, word: usize) -> u64 {
        self.0.word(word * 8).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Notes a word, after everything that was noted or written before.
    pub fn set(&self, word: usize, value: u64) {
        if let Some(word) = self.0.word(word * 8).filter(|_| word * 8 < MESSAGES) {
            word.store(value, Ordering::Release);
        }
    }

    /// Bytes of each message that the kernel has carried in the call that the last process was in: up to the first that it
    /// has not.
    pub fn carried(&self) -> impl Iterator<Item = usize> {
        const SIZE: usize = size_of::<libc::mmsghdr>();
        // The number is 32 bits wide and the first half of its word, on machines that are little-endian.
        let len = |n| self.0.word(MESSAGES + n * SIZE + offset_of!(libc::mmsghdr, msg_len));
        let lens = (0..BATCH).map(move |n| len(n).map_or(0, |w| w.load(Ordering::Acquire) as u32 as usize));
        lens.take_while(|len| *len > 0)
    }

    /// Room for [`BATCH`] message headers, aligned for them.
    pub(super) fn messages(&mut self) -> *mut libc::mmsghdr {
        self.0.0.as_ptr().wrapping_add(MESSAGES).cast()
    }
}
