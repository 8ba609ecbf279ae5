//! Numbered frames between two guests, both ways, as fast as a small machine has room for beside what is tested.

use super::{Guest, Lasthop, PATIENCE, VnetHdr, mac, number_of, numbered};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Frames each way, one after the other.
const BURST: u32 = 8;
/// Between those and the next.
const REST: Duration = Duration::from_micros(200);

/// A return that takes longer is worth a line.
const SLOW: Duration = Duration::from_millis(300);

/// What has been sent and what has come, by the near guest and the far one.
#[derive(Default)]
pub struct Load {
    number: u32,
    /// Frames that the guest's ring has taken.
    pub sent: [u64; 2],
    /// Frames that have come. None comes twice.
    pub received: [u64; 2],
    ordered: bool,
    last: [u32; 2],
    /// The numbers of those that have come, and of no others.
    seen: [BTreeSet<u32>; 2],
}

impl Load {
    /// `ordered`: frames come in the order in which they were sent.
    pub fn new(ordered: bool) -> Self {
        Self { ordered, ..Self::default() }
    }

    /// A burst each way, and whatever has come.
    fn turn(&mut self, near: &mut Guest, far: &mut Guest) {
        for _ in 0..BURST {
            self.number += 1;
            let len = 60 + (self.number as usize * 37) % 1400;
            let there = near.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), self.number, len));
            let back = far.try_send(VnetHdr::default(), &numbered(mac(2), mac(1), self.number, len));
            self.sent[0] += u64::from(there);
            self.sent[1] += u64::from(back);
        }
        self.take(near, far);
        std::thread::sleep(REST);
    }

    fn take(&mut self, near: &mut Guest, far: &mut Guest) -> bool {
        let before = self.received;
        for (i, guest) in [near, far].into_iter().enumerate() {
            while let Some((_, frame)) = guest.try_recv() {
                // Others' first frames come too: they go everywhere.
                let Some(number) = number_of(&frame).filter(|_| frame[6..12] == mac(2 - i as u8).0) else { continue };
                let last = self.last[i];
                assert!(!self.ordered || number > last, "frame {number} comes after frame {last}");
                assert!(self.seen[i].insert(number), "frame {number} comes twice");
                self.last[i] = last.max(number);
                self.received[i] += 1;
            }
        }
        self.received != before
    }

    /// So many bursts each way.
    pub fn run(&mut self, near: &mut Guest, far: &mut Guest, bursts: u32) {
        (0..bursts).for_each(|_| self.turn(near, far));
    }

    /// Goes on until frames that are sent from now on have come both ways.
    pub fn until_back(&mut self, near: &mut Guest, far: &mut Guest, lasthop: &Lasthop) {
        let (from, start) = (self.number, Instant::now());
        let end = start + PATIENCE;
        while self.last.iter().any(|last| *last <= from) {
            self.turn(near, far);
            assert!(Instant::now() < end, "the network is not back: {:?} since {from}\n{}", self.last, lasthop.log());
        }
        if start.elapsed() > SLOW {
            let log = lasthop.log();
            let lines: Vec<_> = log.lines().rev().take(12).collect();
            println!(
                "back after {:?} only; the last lines of the log, backwards:\n{}",
                start.elapsed(),
                lines.join("\n")
            );
        }
    }

    /// Waits until no more comes.
    pub fn settle(&mut self, near: &mut Guest, far: &mut Guest) {
        let mut quiet = 0;
        while quiet < 30 {
            quiet = if self.take(near, far) { 0 } else { quiet + 1 };
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
