//! Two guests that have more for a third than that takes.

use crate::{Guest, Lasthop, PATIENCE, number_of, numbered};
use lasthop_frame::VnetHdr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often it is tried: a sender whose thread does not get to run for long loses its share of that time.
const ROUNDS: usize = 8;

/// Two senders that always have frames for one receiver.
pub struct Rivals {
    /// The lasthop that they are at.
    pub lasthop: Lasthop,
    /// Both.
    pub senders: [Guest; 2],
    /// Where their sockets are.
    pub dir: TempDir,
    /// Bytes of each that have come.
    came: [usize; 2],
}

impl Rivals {
    /// These guests.
    pub fn new(lasthop: Lasthop, senders: [Guest; 2], dir: TempDir) -> Self {
        Self { lasthop, senders, dir, came: [0; 2] }
    }

    /// Bytes of each that have come.
    pub fn came(&self) -> [usize; 2] {
        self.came
    }

    /// Both have frames of so many bytes in their rings, until `sink` has taken `most` bytes: 16 frames, and a `pause`. How many it has taken.
    pub fn play(&mut self, sink: &mut Guest, most: usize, pause: Duration, lens: [usize; 2]) -> usize {
        let (mut came, end) = (0, Instant::now() + PATIENCE);
        let frames = [0, 1].map(|n| numbered(self.senders[n].mac, sink.mac, 10, lens[n]));
        while came < most {
            assert!(Instant::now() < end, "{came} of {most} bytes came");
            for (sender, frame) in self.senders.iter_mut().zip(&frames) {
                while sender.try_send(VnetHdr::default(), frame) {}
            }
            let taken: Vec<_> = std::iter::from_fn(|| sink.try_recv()).take(16).collect();
            for (_, frame) in taken {
                let number = number_of(&frame);
                assert!(number.is_some(), "{} bytes that nobody has sent: {:02x?}", frame.len(), frame.get(..64));
                // A greeting may have been sent more than once.
                if number != Some(10) {
                    continue;
                }
                came += frame.len();
                let from = self.senders.iter().position(|sender| frame[6..12] == sender.mac.0);
                self.came[from.expect("one of them has sent it")] += frame.len();
            }
            std::thread::sleep(pause);
        }
        came
    }

    /// The first sender has this part of all, within a tenth of it.
    pub fn share(&mut self, sink: &mut Guest, most: usize, pause: Duration, lens: [usize; 2], fair: f64, why: &str) {
        let mut shares = Vec::new();
        while shares.last().is_none_or(|share: &f64| (share / fair - 1.0).abs() > 0.1) {
            assert!(shares.len() < ROUNDS, "{why}, bytes {lens:?}: {shares:.3?} of all, not {fair}");
            self.play(sink, most / 4, pause, lens);
            self.came = [0; 2];
            self.play(sink, most, pause, lens);
            let [a, b] = self.came.map(|bytes| bytes as f64);
            shares.push(a / (a + b));
        }
    }
}
