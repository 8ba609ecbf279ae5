//! The page in which a process of an uplink counts. It is the supervisor's, which reads it when the process has ended, however it
//! has ended: so nothing that was counted is forgotten.
//!
//! Rows of 64 bytes: a name, filled up with zeros, and a number, little-endian. The first five are what was carried, each row
//! behind them counts packets that were dropped for the reason it is named after.

use crate::{OWNED_STATIONS, UplinkCounters, UplinkDrops, UplinkToSupervisor};

/// Bytes of the page.
pub const COUNTERS_PAGE: usize = 4096;
/// Bytes of a row.
pub const COUNTERS_ROW: usize = 64;
/// Bytes of a row's name.
pub const COUNTERS_NAME: usize = 56;
/// Rows of what was carried: packets and bytes to the network, packets and bytes from it, frames that became part of others.
pub const CARRIED_ROWS: usize = 5;

/// Reasons for drops that are told of one uplink: more than there are.
const MAX_REASONS: usize = 24;
/// Queue pairs that are told of one uplink: more than it may have.
const MAX_QUEUES: usize = 16;
/// Characters of a text of an uplink's.
const LONGEST_TEXT: usize = 500;

/// Whether this may be the name of a reason.
fn is_name(name: &[u8]) -> bool {
    (1..=COUNTERS_NAME).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
}

/// A text as it may stand in a log and on a terminal.
fn readable(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl UplinkToSupervisor {
    /// The same, as far as it can be what an uplink says: its process may have been taken over, and what it says goes on to control, in one
    /// message for all uplinks, to the log and to people's terminals.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        match &mut self {
            Self::Ready(device) => device.mode = readable(&device.mode).chars().take(COUNTERS_NAME).collect(),
            Self::Failed(why) => *why = readable(why),
            Self::Pong { counters, .. } => {
                counters.drops.retain(|drops| is_name(drops.reason.as_bytes()));
                counters.drops.truncate(MAX_REASONS);
                counters.queues.truncate(MAX_QUEUES);
                counters.queues.iter_mut().for_each(|queue| queue.stations.truncate(OWNED_STATIONS));
            }
            Self::QueueOwners(ports) => ports.truncate(MAX_QUEUES),
            Self::Keep | Self::Heard { .. } => {}
        }
        self
    }
}

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
                let name = name.get(..len).filter(|name| is_name(name))?;
                let reason = String::from_utf8_lossy(name).into_owned();
                (packets > 0).then_some(UplinkDrops { reason, packets })
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UplinkQueue;
    use lasthop_text::MacAddr;

    #[test]
    fn what_a_taken_over_uplink_says_is_short_and_readable() {
        let drops = |reason: &str| UplinkDrops { reason: reason.into(), packets: 7 };
        let many = (0..1000).map(|n| drops(&format!("reason{n}")));
        let hostile = ["\x1b]0;owned\x07", "two\nlines", "two words", "", &"x".repeat(57)].map(drops);
        let counters = UplinkCounters {
            drops: hostile.into_iter().chain(many).collect(),
            queues: vec![UplinkQueue { stations: vec![(1, MacAddr([2; 6])); 99], ..UplinkQueue::default() }; 1000],
            ..UplinkCounters::default()
        };
        let UplinkToSupervisor::Pong { number: 3, counters } =
            (UplinkToSupervisor::Pong { number: 3, counters }).bounded()
        else {
            panic!("another message");
        };
        assert_eq!((counters.drops.len(), counters.queues.len()), (MAX_REASONS, MAX_QUEUES));
        assert_eq!(counters.queues[0].stations.len(), OWNED_STATIONS);
        assert_eq!(counters.drops[0], drops("reason0"), "what is no name of a reason is left out");
        let failed = UplinkToSupervisor::Failed("no\x1b[2J\n".to_owned() + &"x".repeat(9000)).bounded();
        let UplinkToSupervisor::Failed(why) = failed else { panic!("another message") };
        assert!(why.starts_with("no?[2J?x") && why.len() == LONGEST_TEXT, "{why}");
    }

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
