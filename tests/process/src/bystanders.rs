//! Two guests that mind their own business. Whatever others do, none of their frames may be lost, changed or doubled.

use crate::{Guest, Options, PATIENCE, number_of, numbered};
use lasthop_text::MacAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Frames on their way at once: fewer than there are buffers, so that no loss is ever excused.
const WINDOW: u32 = 16;
/// Rest between two windows, so that on a small machine there is room for what is being tested.
const REST: Duration = Duration::from_millis(5);

/// A thread with two guests.
#[derive(Debug)]
pub struct Bystanders {
    stop: Arc<AtomicBool>,
    exchanged: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystanders {
    /// Plugs them in and starts them.
    pub fn start(a: &Path, b: &Path, macs: [MacAddr; 2]) -> Self {
        let options = Options::net(|n| n.size = 256);
        let mut guests = [Guest::connect(a, macs[0], options), Guest::connect(b, macs[1], options)];
        let (stop, exchanged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop_here, count) = (stop.clone(), exchanged.clone());
        let thread = std::thread::spawn(move || {
            // Frames may overtake each other while their flow is being installed: wait until it is. What others flood meanwhile, perhaps from
            // memory that they have taken away, is passed over.
            for _ in 0..5 {
                for (from, to, len) in [(0, 1, 60), (1, 0, 200)] {
                    let (src, dst) = (guests[from].mac, guests[to].mac);
                    guests[from].send(&numbered(src, dst, 0, len));
                    assert_eq!(expect_from(&mut guests[to], src), 0, "bystanders: the first of {src}");
                }
                std::thread::sleep(REST);
            }
            let mut number = 1;
            while !stop_here.load(Ordering::Relaxed) {
                for (from, to) in [(0, 1), (1, 0)] {
                    let (src, dst) = (guests[from].mac, guests[to].mac);
                    for n in number..number + WINDOW {
                        guests[from].send(&numbered(src, dst, n, 60 + (n as usize * 37) % 1440));
                    }
                    for n in number..number + WINDOW {
                        let got = expect_from(&mut guests[to], src);
                        assert_eq!(got, n, "bystanders: frame {n} of {src} is lost or out of order");
                    }
                }
                number += WINDOW;
                count.fetch_add(2 * u64::from(WINDOW), Ordering::Relaxed);
                std::thread::sleep(REST);
            }
        });
        Self { stop, exchanged, thread: Some(thread) }
    }

    /// Frames exchanged so far.
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Waits until they have taken what was in their rings, or most of it: who sends frames to them has no right to fill those.
    pub fn take_a_turn(&self) {
        let before = self.exchanged();
        crate::wait_for("bystanders to take a turn", PATIENCE, || {
            let alive = !self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(alive, "bystanders have lost a frame: see above");
            self.exchanged() != before
        });
    }

    /// Waits until they have exchanged a good many more: what was done to them until now has had its effect.
    pub fn still_exchange(&self) {
        let goal = self.exchanged() + 8 * u64::from(WINDOW);
        crate::wait_for("bystanders to exchange frames", PATIENCE, || {
            let alive = !self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(alive, "bystanders have lost a frame: see above");
            self.exchanged() >= goal
        });
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|e| e.is_ok()), "bystanders have lost a frame: see above");
        }
    }
}

/// The number of the next numbered frame from `src`; floods of others are passed over.
fn expect_from(guest: &mut Guest, src: MacAddr) -> u32 {
    let from = |f: &[u8]| f.get(6..12) == Some(&src.0) && f.get(..6) != Some(&[0xff; 6]);
    let (_, frame) = guest.recv("a bystander's frame", |_, f| from(f) && number_of(f).is_some());
    number_of(&frame).unwrap_or(0)
}
