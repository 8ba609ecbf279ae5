//! What happens when the file under a mapping is truncated: reading past its new end raises SIGBUS.
//!
//! The handler puts zero pages there and marks the mapping; whoever was copying goes on with zeros and finds the mark
//! afterwards. (The thesis's memory sharing does the same with a revoked page: PhD §3.4.3.)
//!
//! **Which pages.** From the one that was touched to the mapping's end: most often the file ends before it. With huge pages only the
//! one that was touched, for there the reason may be that none was left. The mapping has one page more of its file than
//! it needs, which nobody touches and the handler leaves alone ([`crate::region`]): so even where all others are replaced
//! the file stays, until the region is unmapped by whoever has the time. Freeing many gigabytes takes seconds, and whoever
//! faulted may hold a ring's lock. The zero pages are shared ones: private ones count as data of
//! this process (RLIMIT_DATA), and a front-end's sparse file would use up the limit for everybody.
//!
//! **Which mapping.** The handler looks the address up in a table of all mappings, while other threads map and unmap. To
//! replace the wrong pages would put zeros over somebody else's memory, so the words of a slot must belong together.
//! Each slot has a sequence number, odd while a thread changes it. The handler takes a slot only if the number was even
//! and the same before and after it read them. It never waits for one that changes, and need not: whoever faulted
//! holds its mapping (an `Arc` of the region), so the slot wanted stands still for as long as the handler runs; and a slot
//! that does hold the address is the right one, because a slot is claimed after its mapping is made and released before it
//! is unmapped, so no two stable slots ever overlap.
//!
//! **How many.** The table grows by chunks that are never freed: no port's regions can use up the places of others' (a
//! port is limited by [`crate::MemoryLimits`]).

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

/// Mappings in one chunk of the table: 40 KiB.
const CHUNK: usize = 1024;
const SMALL_PAGE: usize = 4096;

#[derive(Debug)]
pub(crate) struct GuardedMapping {
    /// Odd while `start` and `len` change; moves on with each change.
    sequence: AtomicU32,
    /// 0: free.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of a page of its file.
    page: AtomicUsize,
    pub(crate) faulted: AtomicBool,
}

/// A mapping, as the table has it: `[start, start + len)`, of a file with pages of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) page: usize,
}

impl Mapping {
    /// Where the zero pages go when `addr` in it has faulted, and how many bytes of them.
    fn zeros(self, addr: usize) -> (usize, usize) {
        let within = addr.wrapping_sub(self.start);
        let from = within - within % self.page.max(SMALL_PAGE);
        let rest = self.len - from;
        (self.start + from, if self.page > SMALL_PAGE { rest.min(self.page) } else { rest })
    }
}

impl GuardedMapping {
    const fn free() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            faulted: AtomicBool::new(false),
        }
    }

    /// Becomes this mapping's if it is free.
    fn claim(&self, mapping: Mapping) -> bool {
        // Acquire: what is read of `start` next is as new as the number. If the number is still the same at the exchange,
        // then so is `start`; and of two threads that find the slot free, one makes the number odd.
        let before = self.sequence.load(Ordering::Acquire);
        let free = before.is_multiple_of(2) && self.start.load(Ordering::Relaxed) == 0;
        let claim =
            || self.sequence.compare_exchange(before, before.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed);
        let claimed = free && claim().is_ok();
        if claimed {
            self.change(before, mapping);
        }
        claimed
    }

    fn clear(&self) {
        // Relaxed: the slot is this thread's, nobody else writes to it, and `change` fences before the words.
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        self.change(before, Mapping { start: 0, len: 0, page: 0 });
    }

    /// Writes all words; the sequence number is `before + 1`, and only this thread writes to the slot.
    fn change(&self, before: u32, mapping: Mapping) {
        // Whoever reads one of the new words (and then fences, see `read`) reads an odd number, or a later one.
        fence(Ordering::Release);
        // Relaxed, the four of them: the fence above and the last store below keep them between the two numbers.
        self.faulted.store(false, Ordering::Relaxed);
        self.start.store(mapping.start, Ordering::Relaxed);
        self.len.store(mapping.len, Ordering::Relaxed);
        self.page.store(mapping.page, Ordering::Relaxed);
        // Release: who reads this number reads these words.
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
    }

    /// The mapping, if the words belong together. In a signal handler too: it neither waits nor writes.
    fn read(&self) -> Option<Mapping> {
        // Acquire: the words are as new as the number. The fence below: the number read again is as new as the words.
        let before = self.sequence.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        #[cfg(test)]
        tests::between_the_words();
        let len = self.len.load(Ordering::Relaxed);
        let page = self.page.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.sequence.load(Ordering::Relaxed) == before;
        (before.is_multiple_of(2) && same && start != 0).then_some(Mapping { start, len, page })
    }
}

/// Places for mappings, and the next such chunk once there is one.
#[derive(Debug)]
struct Chunk {
    slots: [GuardedMapping; CHUNK],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { GuardedMapping::free() }; CHUNK], next: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or a chunk that `grow` made and nobody ever frees. Acquire: it is seen as it was made.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// The next chunk, made now unless somebody else has.
    fn grow(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let made = Box::into_raw(Box::new(Self::new()));
        // Release: the chunk is seen as it was made; Acquire: so is that of another thread, where that was first.
        match self.next.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made just now, and from here on never freed.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: nobody else knows of it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as in `next`; it is not null, or the exchange had succeeded.
                unsafe { &*other }
            }
        }
    }
}

static TABLE: Chunk = Chunk::new();

/// A mapping's place in the table that the handler searches. Free again when dropped: before the mapping goes.
#[derive(Debug)]
pub(crate) struct Slot(&'static GuardedMapping);

impl Slot {
    /// Registers what is mapped; it does not start at 0.
    pub(crate) fn claim(mapping: Mapping) -> Self {
        let mut chunk = &TABLE;
        loop {
            if let Some(slot) = chunk.slots.iter().find(|slot| slot.claim(mapping)) {
                return Self(slot);
            }
            chunk = chunk.grow();
        }
    }

    #[inline]
    pub(crate) fn faulted(&self) -> bool {
        // Acquire, as the handler stores it with Release: who sees the note sees the zeros, too, and not the file.
        self.0.faulted.load(Ordering::Acquire)
    }

    /// To be called once, before the mapping goes.
    pub(crate) fn release(&self) {
        self.0.clear();
    }
}

/// The slot that `addr` lies in, and what it says.
pub(crate) fn find(addr: usize) -> Option<(&'static GuardedMapping, Mapping)> {
    let mut chunk = Some(&TABLE);
    while let Some(here) = chunk {
        for slot in &here.slots {
            if let Some(mapping) = slot.read()
                && addr.wrapping_sub(mapping.start) < mapping.len
            {
                return Some((slot, mapping));
            }
        }
        chunk = here.next();
    }
    None
}

/// Installs the handler, once per process; call before the first region is mapped.
pub fn install_fault_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: sigaction with a zeroed, then filled-in struct; the handler only uses atomics and the mmap and
        // sigaction system calls, which are safe in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; for a SIGBUS of its own it has an address. One
    // that a process sent has a code of 0 or less, and its number and user where the address would be.
    let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    if let Some(addr) = fault
        && let Some((slot, mapping)) = find(addr)
    {
        let (from, len) = mapping.zeros(addr);
        // A host that commits no more memory than it has may have none for a large file's.
        if put_zeros(from, len) || put_zeros(from, len.min(mapping.page)) {
            slot.faulted.store(true, Ordering::Release);
            return;
        }
    }
    // Not ours: the default action, when the instruction is tried again, is to die with a core dump.
    // SAFETY: as in `install_fault_handler`.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Puts zero pages over `[from, from + len)`, which lies in a live mapping of this crate: the head of this file says why it is the
/// one that is being accessed right now, and that whoever accesses it keeps it alive meanwhile.
pub(crate) fn put_zeros(from: usize, len: usize) -> bool {
    // SAFETY: as above; replacing pages there keeps every pointer into them valid.
    let mapped = unsafe {
        libc::mmap(
            from as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// What another thread does between a reader's two looks.
        static MEANWHILE: Cell<Option<fn(&GuardedMapping)>> = const { Cell::new(None) };
    }

    static SLOT: GuardedMapping = GuardedMapping::free();

    pub(super) fn between_the_words() {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile(&SLOT);
        }
    }

    /// A small mapping goes while the handler reads its slot, and a large one elsewhere takes the slot: the handler must
    /// not believe in a large mapping at the small one's place.
    #[test]
    fn start_and_length_belong_together() {
        let small = Mapping { start: 0x10000, len: 0x1000, page: 0x1000 };
        const LARGE: Mapping = Mapping { start: 0x7000_0000, len: 0x4000_0000, page: 0x20_0000 };
        assert!(SLOT.claim(small));
        assert_eq!(SLOT.read(), Some(small));
        MEANWHILE.set(Some(|slot| {
            slot.clear();
            assert!(slot.claim(LARGE));
        }));
        let read = SLOT.read();
        assert!(read.is_none(), "start of one mapping, length of another: {read:x?}");
        assert_eq!(SLOT.read(), Some(LARGE));
        MEANWHILE.set(Some(GuardedMapping::clear));
        assert_eq!(SLOT.read(), None, "released meanwhile");
        assert_eq!(SLOT.read(), None);
    }

    /// Threads claim and release all the time; no reader ever sees two words that do not belong together, and no slot has
    /// two owners.
    #[test]
    fn words_belong_together_under_traffic() {
        const ROUNDS: usize = 20_000;
        static SLOTS: [GuardedMapping; 4] = [const { GuardedMapping::free() }; 4];
        // A mapping's length follows from its start.
        let len_of = |start: usize| start.wrapping_mul(0x9e37_79b9) | 1;
        let mapping = |start| Mapping { start, len: len_of(start), page: len_of(start) ^ 5 };
        let owners: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
        let left = AtomicUsize::new(2);
        std::thread::scope(|threads| {
            for t in 1..=2 {
                let (owners, left) = (&owners, &left);
                threads.spawn(move || {
                    for round in 0..ROUNDS {
                        let start = t << 32 | round << 12 | 0x1000;
                        let Some(i) = SLOTS.iter().position(|slot| slot.claim(mapping(start))) else { continue };
                        assert_eq!(owners[i].swap(start, Ordering::Relaxed), 0, "two owners");
                        owners[i].store(0, Ordering::Relaxed);
                        SLOTS[i].clear();
                    }
                    left.fetch_sub(1, Ordering::Release);
                });
            }
            while left.load(Ordering::Acquire) > 0 {
                for read in SLOTS.iter().filter_map(GuardedMapping::read) {
                    assert_eq!(read, mapping(read.start));
                }
            }
        });
    }

    #[test]
    fn zeros_begin_at_the_page_that_was_touched() {
        let small = Mapping { start: 0x10_1000, len: 0x8000, page: 0x1000 };
        assert_eq!(small.zeros(0x10_3fff), (0x10_3000, 0x6000), "to the end");
        let huge = Mapping { start: 0x20_0000, len: 0x80_0000, page: 0x20_0000 };
        assert_eq!(huge.zeros(0x5f_ffff), (0x40_0000, 0x20_0000), "its page alone");
    }

    #[test]
    fn the_table_grows() {
        let byte = |start| Mapping { start, len: 1, page: SMALL_PAGE };
        let claimed: Vec<Slot> = (0..3 * CHUNK).map(|i| Slot::claim(byte(usize::MAX - i))).collect();
        let last = claimed.last().map(|slot| std::ptr::from_ref(slot.0));
        assert_eq!(find(usize::MAX - (3 * CHUNK - 1)).map(|(slot, ..)| std::ptr::from_ref(slot)), last);
        claimed.iter().for_each(Slot::release);
        assert!(find(usize::MAX - 5).is_none());
    }
}
