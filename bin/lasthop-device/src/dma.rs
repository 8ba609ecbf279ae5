//! The host's DMA engine, as the device uses it: payloads between VMs are copied by it, and never cross the bus (Ram, PhD thesis, 5.2.3). Here it is a
//! thread. The crate of guest memory has it, for that alone knows how long memory stays mapped ([`lasthop_guestmem::dma`]); here is what it counts.

use lasthop_dma_counters::{Counts, DmaPage};
use lasthop_guestmem::dma::{self, Account, Tally};
// What asks the engine is in the packet path, where this turns it on.
use lasthop_forward as _;
use std::io;
use std::os::fd::OwnedFd;

/// Counts in the page that control reads.
struct Page(DmaPage);

impl Account for Page {
    fn settled(&self, tally: &Tally) {
        let Tally { copies, bytes, errors, overtaken, full, taken_back, lost, summed } = *tally;
        self.0.add(&Counts { copies, bytes, errors, overtaken, full, taken_back, lost, summed });
    }

    fn given_up(&self) {
        self.0.give_up();
    }
}

/// Starts the engine, which makes all copies of more than `threshold` bytes, and counts in this page.
pub fn start(page: OwnedFd, threshold: usize) -> io::Result<()> {
    let page = DmaPage::map(page)?;
    page.begin(threshold as u64);
    // For as long as the process.
    dma::start(threshold, Box::leak(Box::new(Page(page))))
}
