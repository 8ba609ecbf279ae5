//! Two guests that exchange numbered frames of a known flow while something is done to lasthop: none is lost, none comes twice.

use crate::{Guest, PATIENCE, number_of, numbered, wait_for};
use lasthop_frame::VnetHdr;
use lasthop_text::MacAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Sent and not received: fewer than the receiver has buffers, so none is dropped for want of one.
const WINDOW: u32 = 100;

/// Sends numbered frames to the other, as many as its window lets it, and checks what comes from there: all, once, in order.
fn exchange(guest: &mut Guest, other: MacAddr, [mine, theirs]: [&AtomicU32; 2], stop: &AtomicBool) {
    let (own, mut sent) = (guest.mac, 0);
    // The last thing that each sends is heard by the other: frames behind it are not expected.
    while !stop.load(Ordering::Relaxed) {
        while sent < theirs.load(Ordering::Relaxed) + WINDOW {
            let len = 60 + (sent as usize * 71) % 1400;
            if !guest.try_send(VnetHdr::default(), &numbered(own, other, sent + 1, len)) {
                break;
            }
            sent += 1;
        }
        // Only one with an IOMMU is asked.
        guest.grant(&guest.asked());
        let mut wait = Duration::from_millis(2);
        while let Some((_, frame)) = guest.recv_within(wait) {
            wait = Duration::ZERO;
            let Some(number) = number_of(&frame) else { continue };
            let next = mine.load(Ordering::Relaxed) + 1;
            assert_eq!(number, next, "at {own}: lost, twice or out of order");
            mine.store(next, Ordering::Relaxed);
        }
    }
}

/// Sets it when dropped: threads end when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two guests that know each other exchange frames while `job` is done; what it is given waits until more have come both ways.
pub fn under_load(a: &mut Guest, b: &mut Guest, job: impl FnOnce(&dyn Fn())) {
    let (stop, got) = (AtomicBool::new(false), [AtomicU32::new(0), AtomicU32::new(0)]);
    let macs = [a.mac, b.mac];
    // What an exchange before has left.
    a.drain();
    b.drain();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let one = scope.spawn(|| exchange(a, macs[1], [&got[0], &got[1]], &stop));
        let two = scope.spawn(|| exchange(b, macs[0], [&got[1], &got[0]], &stop));
        let flows = || {
            let before = [0, 1].map(|i| got[i].load(Ordering::Relaxed));
            wait_for("frames to flow", PATIENCE, || {
                assert!(!one.is_finished() && !two.is_finished(), "see above");
                [0, 1].iter().all(|i| got[*i].load(Ordering::Relaxed) > before[*i] + 2 * WINDOW)
            });
        };
        flows();
        job(&flows);
    });
}
