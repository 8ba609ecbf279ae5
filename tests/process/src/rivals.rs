//! Two guests that have more for a third than that takes.

use crate::{Guest, Lasthop, PATIENCE, Patience, number_of, numbered, proc};
use std::time::Duration;
use tempfile::TempDir;

/// How often a share is measured; the median of these counts. A sender whose thread does not get to run for long loses its share of that time.
const ROUNDS: usize = 5;
/// How many rounds may not count, as a sender had no frames: this program, which is all guests, did not get to run.
const UNCOUNTED: usize = 25;
/// How far the median may be from what is fair, as a part of all.
const TOLERANCE: f64 = 0.05;

/// A sender has the part of all that is due to it, within a twentieth of all; and the smaller part is at least half of what is due, and twice that at most:
/// nobody who is to get little gets nothing.
pub fn is_fair(part: f64, due: f64) -> bool {
    let [small, of_small] = [part, due].map(|part| if due > 0.5 { 1.0 - part } else { part });
    (part - due).abs() <= TOLERANCE && (of_small / 2.0..=of_small * 2.0).contains(&small)
}

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
    /// Both had frames whenever the receiver was looked at.
    had: bool,
    /// Nothing is dropped: a sender that has run out of frames did not get to run.
    patient: bool,
}

impl Rivals {
    /// These guests, at a lasthop that waits for the receiver and drops nothing.
    pub fn new(lasthop: Lasthop, senders: [Guest; 2], dir: TempDir) -> Self {
        Self { lasthop, senders, dir, came: [0; 2], had: true, patient: true }
    }

    /// At a lasthop that waits no longer than it does if nothing is said: what it drops, a sender does not have.
    pub fn impatient(self) -> Self {
        Self { patient: false, ..self }
    }

    /// Whether nothing is dropped.
    pub fn is_patient(&self) -> bool {
        self.patient
    }

    /// Bytes of each that have come.
    pub fn came(&self) -> [usize; 2] {
        self.came
    }

    /// Both have frames of so many bytes in their rings, until `sink` has taken `most` bytes: 16 frames, and a `pause`. How many it has taken.
    pub fn play(&mut self, sink: &mut Guest, most: usize, pause: Duration, lens: [usize; 2]) -> usize {
        let (mut came, patience) = (0, Patience::new(PATIENCE));
        self.had = true;
        let frames = [0, 1].map(|n| numbered(self.senders[n].mac, sink.mac, 10, lens[n]));
        while came < most {
            assert!(!patience.is_over(), "{came} of {most} bytes came; {patience}\n{}", self.look(sink));
            for (sender, frame) in self.senders.iter_mut().zip(&frames) {
                self.had &= came == 0 || sender.unsent() > 0;
                sender.fill(frame);
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

    /// What there is to see where nothing moves.
    fn look(&self, sink: &Guest) -> String {
        let rings: String = self.senders.iter().chain([sink]).map(Guest::rings).collect();
        rings + &proc::threads_say(self.lasthop.switch())
    }

    /// The first sender has this part of all: the median of some rounds, as [`is_fair`] has it.
    pub fn share(&mut self, sink: &mut Guest, most: usize, pause: Duration, lens: [usize; 2], fair: f64, why: &str) {
        let mut shares = Vec::new();
        for round in 1.. {
            self.play(sink, most / 4, pause, lens);
            self.came = [0; 2];
            self.play(sink, most, pause, lens);
            let [a, b] = self.came.map(|bytes| bytes as f64);
            shares.extend((self.had || !self.patient).then_some(a / (a + b)));
            if shares.len() == ROUNDS {
                break;
            }
            assert!(
                round < ROUNDS + UNCOUNTED,
                "{why}: a sender ran out of frames in {UNCOUNTED} rounds: this machine has too much to do"
            );
        }
        shares.sort_unstable_by(f64::total_cmp);
        let median = shares[ROUNDS / 2];
        println!("{why}, bytes {lens:?}: {median:.3} of {shares:.3?}, fair is {fair:.3}");
        assert!(is_fair(median, fair), "{why}, bytes {lens:?}: {median:.3} of {shares:.3?}, not {fair:.3}");
    }
}
