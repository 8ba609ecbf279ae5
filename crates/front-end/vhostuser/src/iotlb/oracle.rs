//! The table as the switch reads it against a plain map of what the front-end has said: for property tests and the fuzz target.

use super::*;
use lasthop_guestmem::translations::Translations;
use lasthop_sys::Foreign;

/// A range and its permissions, as said; from the oldest on.
type Said = Vec<Range>;

fn word_at(page: u64, way: u64) -> usize {
    word(index(page), way)
}

/// Runs a program whose steps `next` says, and panics when the switch finds a byte of the guest's that the front-end has not said, may use
/// one otherwise than it said, or does not find one that is known and was asked for.
pub fn check_translations(steps: usize, mut next: impl FnMut() -> u64) {
    const GUEST_PAGES: u64 = 64;
    let most = 1 + next() as usize % 20;
    let mut iotlb = Iotlb::new(most).expect("a table");
    let [file, doorbell] = iotlb.descriptors().expect("descriptors");
    let table = Translations::map(&file, lasthop_sys::PeerEvent::new(Foreign::from(doorbell)).expect("an eventfd"));
    let physical = GuestMemory::anonymous(GUEST_PAGES * PAGE).expect("memory");
    let memory = physical.translated_by(Some(Arc::new(table.expect("a mapping"))));
    let mut said: Said = Vec::new();
    for _ in 0..steps {
        let (what, word) = (next(), next());
        // Few pages, many of which share a set, and some at the end of what an address can be.
        let first = match word >> 8 & 3 {
            0 => (word & 15) * SETS,
            1 => PAGES - 1 - (word & 15),
            _ => word & 31,
        };
        let last = first.saturating_add(word >> 10 & 7).min(PAGES - 1);
        match what % 8 {
            0..=2 => {
                let (guest, permissions) = (word >> 16 & 31, word >> 24 & 3);
                let range = Range { first, last, guest, user: 0, permissions };
                said.retain(|other| *other == range || other.last < first || other.first > last);
                if !said.contains(&range) {
                    said.push(range);
                }
                iotlb.update(range);
            }
            3 => {
                let (first, last) = Iotlb::pages(
                    first * PAGE,
                    [0, PAGE, 2 * PAGE, 0u64.wrapping_sub(first * PAGE)][word as usize >> 16 & 3],
                );
                iotlb.forget(first, last);
                said.retain(|other| other.last < first || other.first > last);
            }
            4 => {
                let wanted = 1 + (word >> 16) % 3;
                let found = |iotlb: &Iotlb| {
                    let uses = [false, true].map(|to_write| memory.piece_for(first * PAGE, 1, to_write).is_ok());
                    (uses, iotlb.find(first).map_or(0, |(range, _)| range.permissions))
                };
                let (before, known) = found(&iotlb);
                let full = (0..WAYS).all(|way| iotlb.words.load_u64(word_at(first, way)) != 0);
                iotlb.refuse(first, wanted);
                let (after, _) = found(&iotlb);
                // What is granted is not lost by it, unless other pages fill the set.
                assert!(full || before == after, "refused for {wanted}, granted for {known}: {before:?}, {after:?}");
            }
            _ => {}
        }
        assert!(iotlb.ranges.len() <= most && iotlb.ages.len() == iotlb.ranges.len(), "bounded");
        for (page, to_write) in (first..=last).flat_map(|page| [(page, false), (page, true)]) {
            check(&mut iotlb, &memory, &physical, &said, page, to_write);
        }
    }
}

/// What the switch finds of a page, before and after the session process has heard that it asks.
fn check(iotlb: &mut Iotlb, memory: &GuestMemory, physical: &GuestMemory, said: &Said, page: u64, to_write: bool) {
    let wanted = if to_write { WRITE } else { READ };
    let of = said.iter().find(|range| range.first <= page && page <= range.last);
    let may = of.filter(|range| range.permissions & wanted != 0);
    let check = |memory: &GuestMemory| match (memory.piece_for(page * PAGE + 5, 10, to_write), may) {
        (Ok(piece), Some(range)) => {
            let right = physical.slice((range.guest + page - range.first) * PAGE + 5, 10).expect("guest memory");
            // A mark that the switch makes is seen where the guest would look.
            right.write(0, &page.to_le_bytes());
            assert_eq!((piece.read_array::<8>(0), piece.len()), (Some(page.to_le_bytes()), 10));
            true
        }
        (Ok(_), None) => panic!("page {page:#x} was found, to write: {to_write}, and {of:?} was said"),
        (Err(_), _) => false,
    };
    if check(memory) {
        return;
    }
    let questions = iotlb.questions();
    for (page, wanted) in questions {
        if iotlb.show_page(page, wanted) {
            iotlb.answered(page);
        }
    }
    let known = iotlb.covers((page, page), wanted);
    assert!(!known || may.is_some(), "what was taken away, or never said, is known");
    // It may have been refused, or another page of its set have taken its place, but what the session process knows it can give.
    if known {
        iotlb.show_page(page, wanted);
        assert!(check(memory), "page {page:#x} is known, and is not found");
    }
}
