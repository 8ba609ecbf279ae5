//! What tests of an engine that is given up share; each is a program of its own, as the engine never comes back.

use lasthop_guestmem::GuestMemory;
use lasthop_guestmem::dma::{Account, Tally};
use std::sync::atomic::{AtomicU64, Ordering};

/// Lost, taken back, given up.
pub struct Counts([AtomicU64; 3]);
pub static COUNTS: Counts = Counts([const { AtomicU64::new(0) }; 3]);

impl Counts {
    pub fn read(&self) -> [u64; 3] {
        self.0.each_ref().map(|n| n.load(Ordering::Relaxed))
    }
}

impl Account for Counts {
    fn settled(&self, tally: &Tally) {
        self.0[0].fetch_add(tally.lost, Ordering::Relaxed);
        self.0[1].fetch_add(tally.taken_back, Ordering::Relaxed);
    }

    fn given_up(&self) {
        self.0[2].fetch_add(1, Ordering::Relaxed);
    }
}

pub fn bytes(memory: &GuestMemory, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    memory.slice(at, len).unwrap().read(0, &mut out);
    out
}
