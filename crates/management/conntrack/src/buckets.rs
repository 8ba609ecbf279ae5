//! Where connections are, by the hashes of their tuples: a table that never moves anything.
//!
//! A tuple has two buckets of sixteen places each, a cache line. It is put in the first unless that is three quarters full, and then in the emptier one.
//! There are at least as many buckets as an eighth of all tuples, so the first is on average half full in a full table, and a lookup reads one line
//! nine times in ten; that both are full does not happen by chance. A lookup looks at 32 places at most.

use std::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};
use zerocopy::{FromZeros, KnownLayout};

const PLACES: usize = 16;
/// From so many on the other bucket is looked at.
const CROWDED: usize = 12;

/// 0 is free. Lower bits: a number, which is not 0. The upper ones are some of the hash, so that most others are told apart here.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
struct Bucket([AtomicU32; PLACES]);

impl Bucket {
    fn taken(&self) -> usize {
        self.0.iter().filter(|place| place.load(Relaxed) != 0).count()
    }

    /// Puts `value` in the place of `before`, if there is one such.
    fn exchange(&self, before: u32, value: u32) -> bool {
        // SeqCst: of two threads that put the same tuple in and then look for it, one at least sees the other's.
        let mut places = self.0.iter().filter(|place| place.load(Relaxed) == before);
        places.any(|place| place.compare_exchange(before, value, Ordering::SeqCst, Relaxed).is_ok())
    }
}

#[derive(Debug)]
pub(crate) struct Buckets {
    buckets: Box<[Bucket]>,
    /// Bits of a place that are its number.
    numbers: u32,
}

impl Buckets {
    /// For so many numbers, 0 among them. Memory is taken when it is used; `None` if there is not even an address space for it.
    pub fn new(numbers: usize) -> Option<Self> {
        let buckets = (numbers / 8).next_power_of_two().max(2);
        let numbers = u32::try_from(numbers.next_power_of_two()).ok()?.checked_sub(1)?;
        Some(Self { buckets: <[Bucket]>::new_box_zeroed_with_elems(buckets).ok()?, numbers })
    }

    #[inline(always)]
    fn first(&self, hash: u64) -> &Bucket {
        &self.buckets[(hash >> (64 - self.buckets.len().ilog2())) as usize & (self.buckets.len() - 1)]
    }

    #[inline(always)]
    fn second(&self, hash: u64) -> &Bucket {
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    #[inline(always)]
    fn tag(&self, hash: u64) -> u32 {
        (hash >> 12) as u32 & !self.numbers
    }

    /// What `wanted` makes of the first number with this hash that it wants.
    #[inline(always)]
    pub fn find<T>(&self, hash: u64, mut wanted: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let tag = self.tag(hash);
        let places = self.first(hash).0.iter().chain(&self.second(hash).0);
        for place in places {
            // Acquire: what the number stands for was written before.
            let value = place.load(Ordering::Acquire);
            let number = value & self.numbers;
            if number != 0 && value ^ number == tag {
                let found = wanted(number);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// False if both buckets are full.
    pub fn insert(&self, hash: u64, number: u32) -> bool {
        let (first, second) = (self.first(hash), self.second(hash));
        let crowd = first.taken();
        let other_first = crowd >= CROWDED && second.taken() < crowd;
        let (one, other) = if other_first { (second, first) } else { (first, second) };
        let value = self.tag(hash) | number;
        one.exchange(0, value) || other.exchange(0, value)
    }

    pub fn remove(&self, hash: u64, number: u32) {
        let value = self.tag(hash) | number;
        let _ = self.first(hash).exchange(value, 0) || self.second(hash).exchange(value, 0);
    }
}
