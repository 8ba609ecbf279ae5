use super::*;
use proptest::prelude::*;

/// Two regions side by side for the guest and not for us, and a third elsewhere; the log is as long as they need or shorter.
const REGIONS: [(u64, u64); 3] = [(0x4000_0000, 0x8000), (0x4000_8000, 0x5000), (0x1000, 0x3000)];

fn region(guest_addr: u64, size: u64) -> RegionSpec {
    RegionSpec { guest_addr, size, user_addr: 0x1_0000_0000_0000 + guest_addr, mmap_offset: 0 }
}

fn file(size: u64) -> std::os::fd::OwnedFd {
    let fd = rustix::fs::memfd_create("dirty-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

/// Memory with a log of so many bytes that begins at an offset in its file, and the log as the front-end sees it.
fn logged(size: u64, offset: u64) -> (Arc<GuestMemory>, GuestMemory) {
    let memory = REGIONS
        .iter()
        .fold(GuestMemory::empty(), |memory, (at, size)| memory.with_region(region(*at, *size), file(*size)).unwrap());
    let (place, fd) = (RegionSpec { mmap_offset: offset, ..region(0, size) }, file(offset + size));
    let memory = memory.with_log(Some((place, &fd))).unwrap();
    (Arc::new(memory), GuestMemory::empty().with_region(place, fd).unwrap())
}

fn set_pages(log: &GuestMemory) -> Vec<u64> {
    let slice = log.slice(0, log.total_bytes() as usize).unwrap();
    let bytes = (0..slice.len()).map(|at| (at, slice.read_array::<1>(at).unwrap()[0]));
    bytes
        .flat_map(|(at, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * at as u64 + bit))
        .collect()
}

proptest! {
    /// Against the definition in the specification, a byte at a time; whatever the order, and however many words lie between.
    #[test]
    fn the_bits_are_those_of_the_pages(
        writes in proptest::collection::vec((0..3usize, 0u64..0x8000, 0usize..0x9000), 0..30),
        offset in prop_oneof![Just(0u64), Just(4096), Just(8 * 77)],
    ) {
        let (memory, log) = logged(0x8_1000, offset);
        let mut expected = std::collections::BTreeSet::new();
        for (n, at, len) in writes {
            let (first, size) = REGIONS[n];
            let at = first + at % size;
            let slice = memory.piece(at, usize::MAX).unwrap();
            memory.log_written(&[slice], len);
            expected.extend((at..at + len.min(slice.len()) as u64).map(|byte| byte >> 12));
        }
        prop_assert_eq!(set_pages(&log), expected.into_iter().collect::<Vec<_>>());
    }

    /// Of a buffer of many pieces, wherever each lies, those that were written to, as far as they were.
    #[test]
    fn the_bits_are_those_of_the_pieces(
        pieces in proptest::collection::vec((0..3usize, 0u64..0x8000, 0usize..0x3000), 0..30),
        len in 0usize..0x2_0000,
    ) {
        let (memory, log) = logged(0x8_1000, 0);
        let mut left = len;
        let (mut slices, mut expected) = (Vec::new(), std::collections::BTreeSet::new());
        for (n, at, len) in pieces {
            let (first, size) = REGIONS[n];
            let at = first + at % size;
            let slice = memory.piece(at, len).unwrap();
            expected.extend((at..at + slice.len().min(left) as u64).map(|byte| byte >> 12));
            left = left.saturating_sub(slice.len());
            slices.push(slice);
        }
        memory.log_written(&slices, len);
        prop_assert_eq!(set_pages(&log), expected.into_iter().collect::<Vec<_>>());
    }
}

/// The front-end cuts the log's file: whoever writes to it, or to what it is about, finds that out, as with memory that goes away.
#[test]
fn a_log_whose_file_is_cut_is_noticed() {
    crate::install_fault_handler();
    let memory = GuestMemory::empty().with_region(region(0, 0x1000), file(0x1000)).unwrap();
    let log = file(0x1000);
    let memory = memory.with_log(Some((region(0, 0x1000), &log))).unwrap();
    let whole = memory.slice(0, 0x1000).unwrap();
    memory.log_written(&[whole], 0x1000);
    assert!(!memory.faulted());
    rustix::fs::ftruncate(&log, 0).unwrap();
    memory.log_written(&[whole], 0x1000);
    assert!(memory.faulted() && memory.translated_by(None).faulted());
    assert!(
        !memory.with_log(None::<(RegionSpec, std::os::fd::OwnedFd)>).unwrap().faulted(),
        "the guest's own is there"
    );
}

/// A piece of no bytes lies in a page that nothing was written to.
#[test]
fn nothing_is_said_of_a_piece_without_bytes() {
    let (memory, log) = logged(0x8_1000, 0);
    let pieces = [memory.piece(REGIONS[0].0 + 0x2001, 0).unwrap(), memory.piece(REGIONS[2].0, 8).unwrap()];
    memory.log_written(&pieces, 9);
    assert_eq!(set_pages(&log), [REGIONS[2].0 >> 12]);
}

/// What a front-end's log has no room for is left out, and nothing behind it is touched.
#[test]
fn a_log_that_is_too_short_ends_where_it_ends() {
    let (memory, log) = logged(8, 0);
    for (at, size) in REGIONS {
        memory.log_written(&[memory.slice(at, size as usize).unwrap()], usize::MAX);
    }
    assert_eq!(set_pages(&log), [1, 2, 3]);
}

#[test]
fn a_log_follows_the_memory_until_it_is_taken_away() {
    let (memory, log) = logged(0x8_1000, 0);
    let more = memory.with_region(region(0x8000_0000, 4096), file(4096)).unwrap();
    assert!(more.log.is_some() && more.cleared().log.is_some());
    let without = more.without_region(0x1000, 0x1_0000_0000_1000, 0x3000).unwrap();
    let without = Arc::new(without);
    without.log_written(&[memory.slice(0x1000, 1).unwrap()], 1);
    without.log_written(&[GuestSlice::EMPTY], 1);
    assert_eq!(set_pages(&log), [] as [u64; 0], "no region of this memory");
    assert!(without.with_log(None::<(_, std::os::fd::OwnedFd)>).unwrap().log.is_none());
}

/// It is refused like memory that is no file of memory's or too short.
#[test]
fn a_log_is_mapped_like_memory() {
    let (memory, _log) = logged(4096, 0);
    let refused = |spec, fd| memory.with_log(Some((spec, fd))).unwrap_err();
    assert!(matches!(refused(region(0, 8192), file(4096)), MapError::FileTooShort { needed: 8192, length: 4096, .. }));
    assert!(matches!(refused(region(0, MAX_LOG + 8), file(4096)), MapError::TooLarge { limit: MAX_LOG, .. }));
    assert!(matches!(refused(region(0, 4096), rustix::pipe::pipe().unwrap().0), MapError::Kind(0)));
    assert_eq!(memory.mapped().regions(), 3, "it does not count as memory");
}

/// A bit that is taken while others are set is taken once: nothing gets lost, and nothing comes back.
#[test]
fn bits_are_set_while_the_front_end_takes_them() {
    let (memory, log) = logged(0x8_1000, 0);
    let word = log.slice(0, 8).unwrap().at::<u64>(0).unwrap() as usize;
    const ROUNDS: u64 = 100_000;
    let set = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let slice = memory.slice(0x1000, 8).unwrap();
            for n in 1..=ROUNDS {
                slice.store_u64(0, n);
                memory.log_written(&[slice], 8);
            }
            set.store(ROUNDS, Ordering::Release);
        });
        let slice = memory.slice(0x1000, 8).unwrap();
        let (mut copy, mut over) = (0, false);
        while !over {
            over = set.load(Ordering::Acquire) == ROUNDS;
            // SAFETY: a word of the log, aligned and mapped.
            if unsafe { AtomicU64::from_ptr(word as *mut u64) }.swap(0, Ordering::SeqCst) & 2 != 0 {
                copy = slice.load_u64(0);
            }
        }
        assert_eq!(copy, ROUNDS, "the last write came without its bit");
    });
}

/// What it takes to log one packet of 60 bytes, written to a buffer of 2048 pieces of a byte, with as many regions as there may be.
#[test]
fn pieces_that_nothing_was_written_to_are_not_looked_up() {
    let mut memory = GuestMemory::empty();
    for n in 0..509 {
        memory = memory.with_region(region(n << 16, 0x1000), file(0x1000)).unwrap();
    }
    let memory = memory.with_log(Some((region(0, 0x1000), file(0x1000)))).unwrap();
    let pieces: Vec<_> = (0..2048).map(|n| memory.slice((508 << 16) + n % 0x1000, 1).unwrap()).collect();
    let time = |pieces: &[GuestSlice<'_>]| {
        let began = std::time::Instant::now();
        (0..100).for_each(|_| memory.log_written(pieces, 60));
        began.elapsed() / 100
    };
    let (few, many) = (time(&pieces[..60]), time(&pieces));
    eprintln!("60 pieces {few:?}, 2048 pieces {many:?}");
    assert!(many < few * 3, "{few:?} for what was written, {many:?} with what was not");
}
