//! The page in which a process of an uplink counts. It is the supervisor's, which reads it when the process has ended, however it
//! has ended: so nothing that was counted is forgotten.
//!
//! Rows of 64 bytes: a name, filled up with zeros, and a number, little-endian. The first five are what was carried, each row
//! behind them counts packets that were dropped for the reason it is named after.

use crate::{UplinkCounters, UplinkDrops};

/// Bytes of the page.
pub const COUNTERS_PAGE: usize = 4096;
/// Bytes of a row.
pub const COUNTERS_ROW: usize = 64;
/// Bytes of a row's name.
pub const COUNTERS_NAME: usize = 56;
/// Rows of what was carried: packets and bytes to the network, packets and bytes from it, frames that became part of others.
pub const CARRIED_ROWS: usize = 5;

impl UplinkCounters {
    /// Takes what the page says. Whoever wrote it is not believed: a row without a proper name is left out.
    pub fn read_page(&mut self, page: &[u8]) {
        let rows = page.as_chunks::<COUNTERS_ROW>().0.iter().filter_map(|row| {
            let (name, number) = row.split_first_chunk::<COUNTERS_NAME>()?;
            Some((name, u64::from_le_bytes(number.try_into().ok()?)))
        });
        let mut rows = rows.take(COUNTERS_PAGE / COUNTERS_ROW);
        let mut next = || rows.next().map_or(0, |(_, number)| number);
        (self.to_network_packets, self.to_network_bytes) = (next(), next());
        (self.from_network_packets, self.from_network_bytes, self.merged) = (next(), next(), next());
        self.drops = rows
            .filter_map(|(name, packets)| {
                let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
                let name = name.get(..len).filter(|n| !n.is_empty() && n.iter().all(u8::is_ascii_graphic))?;
                let reason = String::from_utf8_lossy(name).into_owned();
                (packets > 0).then_some(UplinkDrops { reason, packets })
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_was_carried_and_what_was_dropped() {
        let mut page = vec![0; COUNTERS_PAGE];
        let mut row = |n: usize, name: &[u8], number: u64| {
            page[n * COUNTERS_ROW..][..name.len()].copy_from_slice(name);
            page[n * COUNTERS_ROW + COUNTERS_NAME..][..8].copy_from_slice(&number.to_le_bytes());
        };
        (0..5).for_each(|n| row(n, b"carried", n as u64 + 1));
        row(5, b"stale", 5);
        row(6, b"none_of_these", 0);
        row(7, b"", 6);
        row(8, b"a line\n", 7);
        row(63, &[b'x'; COUNTERS_NAME], u64::MAX);
        let mut counters = UplinkCounters::default();
        counters.read_page(&page);
        assert_eq!((counters.to_network_packets, counters.to_network_bytes), (1, 2));
        assert_eq!((counters.from_network_packets, counters.from_network_bytes, counters.merged), (3, 4, 5));
        let drops: Vec<_> = counters.drops.iter().map(|d| (d.reason.as_str(), d.packets)).collect();
        assert_eq!(drops, [("stale", 5), (&"x".repeat(56), u64::MAX)]);
        // What somebody has cut off is nothing.
        counters.read_page(&page[..100]);
        assert_eq!(counters, UplinkCounters { to_network_packets: 1, ..UplinkCounters::default() });
        counters.read_page(&[]);
        assert_eq!(counters, UplinkCounters::default());
    }
}
