//! `lasthop mac list`: there may be 131 000 addresses, which take tens of milliseconds to be written out. So it is done some at a time,
//! and misses are answered in between.

use super::{Answer, Core, give};
use crate::view;
use lasthop_api::Mac;
use lasthop_policy::MacView;

/// Addresses written out at a time: below a millisecond.
const ADDRESSES: usize = 2048;

/// Somebody wants them.
#[derive(Debug)]
pub(super) struct Listing {
    /// As they were when he asked.
    macs: std::vec::IntoIter<MacView>,
    written: Vec<Mac>,
    answer: Answer<Vec<Mac>>,
}

impl Core {
    pub(super) fn mac_list(&mut self, answer: Answer<Vec<Mac>>, now_ms: u64) {
        let macs = self.policy.macs(now_ms).collect::<Vec<_>>().into_iter();
        self.listings.push_back(Listing { macs, written: Vec::new(), answer });
        self.list_some();
    }

    /// Writes out some.
    pub(super) fn list_some(&mut self) {
        let Some(mut listing) = self.listings.pop_front() else { return };
        if listing.answer.is_closed() {
            return;
        }
        listing.written.extend(listing.macs.by_ref().take(ADDRESSES).map(|m| view::mac(&m, self.name(m.port))));
        if listing.macs.len() == 0 {
            give(listing.answer, listing.written);
        } else {
            // Those who ask have turns.
            self.listings.push_back(listing);
        }
    }
}
