//! Queues alone, without a thread.

use super::layout::{BAD_FLAGS, BAD_OPCODE, BAD_SIZE, Descriptor, MOST, SUCCESS};
use super::queue::{IN_VIEW, Maker, PLACES, Queue, Taken};
use super::{Half, Tally};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

/// What is done when the source is read.
impl<F: FnMut(&Descriptor) -> (u8, u32)> Maker for F {
    fn fetch(&mut self, descriptor: &Descriptor) -> (u8, u32) {
        self(descriptor)
    }

    fn write(&mut self, _: &Descriptor, _: u32) {}
}

thread_local! {
    /// What the queue's thread does while the engine is between the two words that say that a copy is over.
    static MEANWHILE: Cell<Option<fn(&Queue)>> = const { Cell::new(None) };
}

pub(super) fn between_the_words(queue: &Queue) {
    if let Some(meanwhile) = MEANWHILE.take() {
        meanwhile(queue);
    }
}

/// The engine is held up between its two words. If the queue's thread knows by then that the copy is over, it fills the whole round anew, this
/// slot included; what the engine still writes must not take that back.
#[test]
fn a_slot_is_written_anew_when_the_engine_has_nothing_more_to_write_there() {
    fn fill(queue: &Queue) {
        assert!(queue.collect(&mut Tally::default()).is_empty());
        queue.forget_last();
        assert!((0..PLACES).all(|_| queue.submit(1000, 2000, 10)));
    }
    let queue = Queue::new();
    assert!(queue.submit(1000, 2000, 10));
    MEANWHILE.set(Some(|queue| {
        if queue.wait(Duration::ZERO) {
            fill(queue);
        }
    }));
    let serve = || queue.serve(|_| 0, &mut |descriptor: &Descriptor| (SUCCESS, descriptor.size));
    assert!(serve() && MEANWHILE.take().is_none(), "there are two words");
    if queue.last().count() == 1 {
        fill(&queue);
    }
    let served = (0..PLACES).filter(|_| serve()).count() as u64;
    assert_eq!((served, queue.wait(Duration::ZERO)), (PLACES, true));
}

/// What the specification says of where what lies.
#[test]
fn a_descriptor_is_laid_out_as_the_hardware_has_it() {
    let descriptor = Descriptor::memmove(0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 0x3132, 0x4142_4344_4546_4740);
    let bytes: [u8; 64] = zerocopy::transmute!(descriptor);
    assert_eq!(bytes[4..8], [0b1100, 0, 0, 3], "flags: a completion record, at the address; operation: memory move");
    assert_eq!(bytes[8..16], 0x4142_4344_4546_4740u64.to_le_bytes());
    assert_eq!(bytes[16..24], 0x1112_1314_1516_1718u64.to_le_bytes());
    assert_eq!(bytes[24..32], 0x2122_2324_2526_2728u64.to_le_bytes());
    assert_eq!(bytes[32..36], [0x32, 0x31, 0, 0]);
    assert!(bytes[..4].iter().chain(&bytes[36..]).all(|byte| *byte == 0));
}

proptest! {
    /// Any 64 bytes are a descriptor. Only copies of a bounded size that ask for a completion record are carried out.
    #[test]
    fn what_is_no_copy_is_refused_with_its_status(words: [u64; 8], operation in 0u32..6, size in 0..MOST * 2) {
        let mut descriptor: Descriptor = zerocopy::transmute!(words);
        if operation < 5 {
            (descriptor.size, descriptor.flags_and_operation) = (size, operation << 24 | 0b1100);
        }
        let (top, flags) = (descriptor.flags_and_operation >> 24, descriptor.flags_and_operation & 0x00ff_ffff);
        let expected = match (top, flags) {
            (3, 0b1100) if (1..=MOST).contains(&descriptor.size) => Ok(()),
            (3, 0b1100) => Err(BAD_SIZE),
            (3, _) => Err(BAD_FLAGS),
            _ => Err(BAD_OPCODE),
        };
        prop_assert_eq!(descriptor.check(), expected);
    }

    /// In whatever order copies are completed, the batch is over when all are, and not before; each is made once; and how many one has
    /// overtaken is known.
    #[test]
    fn copies_complete_in_any_order_and_are_settled_together(
        batches in proptest::collection::vec((1u64..PLACES + 4, proptest::collection::vec(0usize..IN_VIEW, 140)), 1..6),
    ) {
        let queue = Queue::new();
        for (asked, choices) in batches {
            let asked_for = (0..asked).filter(|n| queue.submit(1000 + n, 2000 + n, 1 + *n as usize)).count() as u64;
            prop_assert_eq!(asked_for, asked.min(PLACES));
            let (mut made, mut most) = (Vec::new(), 0);
            for choice in choices {
                if made.len() as u64 == asked_for {
                    break;
                }
                if made.len() % 16 == 0 {
                    prop_assert!(!queue.wait(Duration::ZERO), "one is left");
                }
                let before = made.len();
                while made.len() == before {
                    queue.serve(|sizes| choice.min(sizes.len() - 1), &mut |descriptor: &Descriptor| {
                        made.push(descriptor.source - 1000);
                        (SUCCESS, descriptor.size)
                    });
                }
                let last = made[made.len() - 1];
                most = most.max((0..last).filter(|n| !made.contains(n)).count() as u64);
            }
            prop_assert!(queue.wait(Duration::ZERO) && !queue.has_work());
            prop_assert_eq!(made.iter().copied().collect::<BTreeSet<_>>(), (0..asked_for).collect::<BTreeSet<_>>());
            let mut tally = Tally::default();
            prop_assert!(queue.collect(&mut tally).is_empty());
            prop_assert_eq!((tally.copies, tally.overtaken, tally.errors), (asked_for, most, 0));
            prop_assert_eq!(queue.last().count() as u64, asked_for);
            queue.forget_last();
            prop_assert!(queue.is_settled());
        }
    }

    /// Each copy is made once: by the engine, by who takes it back, or by who lets its memory go.
    #[test]
    fn what_is_taken_back_is_made_by_nobody_else(
        copies in 1u64..40, served in 0usize..40, gone in 0u64..60, serves_on: bool,
    ) {
        let queue = Queue::new();
        (0..copies).for_each(|n| assert!(queue.submit(10_000 + n * 10, 20_000, 10)));
        let made = std::cell::RefCell::new(Vec::new());
        let make = |descriptor: &Descriptor| made.borrow_mut().push((descriptor.source - 10_000) / 10);
        let mut carry = |descriptor: &Descriptor| { make(descriptor); (SUCCESS, 10) };
        for _ in 0..served {
            queue.serve(|sizes| sizes.len() - 1, &mut carry);
        }
        let range = 10_000 + gone * 10..10_000 + gone * 10 + 25;
        prop_assert!(!queue.touches(&range, &mut carry), "none is under way");
        if serves_on {
            queue.serve(|_| 0, &mut carry);
        }
        for taken in queue.take_back() {
            let Taken::NotBegun(descriptor) = taken else { return Err(TestCaseError::fail("none is under way")) };
            make(&descriptor);
        }
        prop_assert!(!queue.serve(|_| 0, &mut carry), "nothing is left");
        let mut made = made.into_inner();
        made.sort_unstable();
        prop_assert_eq!(made, (0..copies).collect::<Vec<_>>());
    }
}

/// A queue with a copy from 1000 to 2000 that the engine is at, in this half, while `meanwhile` is done by the queue's thread or another one. In the end: how
/// often the engine has written it.
fn while_it_copies(half: Half, meanwhile: impl FnMut(&Queue)) -> (Queue, usize) {
    struct Slow<'a, F>(&'a Queue, Half, F, usize);
    impl<F: FnMut(&Queue)> Maker for Slow<'_, F> {
        fn fetch(&mut self, descriptor: &Descriptor) -> (u8, u32) {
            if self.1 == Half::Fetch {
                (self.2)(self.0);
            }
            (SUCCESS, descriptor.size)
        }

        fn write(&mut self, _: &Descriptor, _: u32) {
            if self.1 == Half::Write {
                (self.2)(self.0);
            }
            self.3 += 1;
        }
    }
    let queue = Queue::new();
    assert!(queue.submit(1000, 2000, 10));
    let mut slow = Slow(&queue, half, meanwhile, 0);
    assert!(queue.serve(|_| 0, &mut slow));
    let written = slow.3;
    (queue, written)
}

fn is_touched(queue: &Queue, from: u64) -> bool {
    queue.touches(&(from..from + 10), &mut |_: &Descriptor| -> (u8, u32) { panic!("nobody else makes it") })
}

/// A copy whose source is being read is had back; the engine, when it has read it, writes to nobody. Until then the source stays mapped.
#[test]
fn a_copy_is_not_begun_while_its_source_is_read() {
    let (queue, written) = while_it_copies(Half::Fetch, |queue| {
        assert!(is_touched(queue, 1000) && is_touched(queue, 2000), "it may be written at any time");
        let taken: Vec<Taken> = queue.take_back().collect();
        assert!(matches!(taken[..], [Taken::NotBegun(of)] if of.destination == 2000), "{taken:?}");
        assert!(queue.take_back().all(|taken| matches!(taken, Taken::Begun(_))), "nobody makes it twice");
        queue.forget_last();
        assert!(is_touched(queue, 1000) && !is_touched(queue, 2000), "it will not be written");
    });
    assert!(written == 0 && !is_touched(&queue, 1000), "the engine has left it");
}

#[test]
fn a_copy_that_is_being_written_is_begun() {
    let (queue, written) = while_it_copies(Half::Write, |queue| {
        assert!(!is_touched(queue, 1000) && is_touched(queue, 2000), "all of it is read");
    });
    assert!(written == 1 && !is_touched(&queue, 2000));
    let (queue, written) = while_it_copies(Half::Write, |queue| {
        assert!(queue.take_back().all(|taken| matches!(taken, Taken::Begun(_))) && queue.take_back().count() == 1);
        queue.forget_last();
        assert!(is_touched(queue, 2000), "it may be written at any time");
    });
    assert!(written == 1 && !is_touched(&queue, 2000));
}
