//! Two guests that exchange numbered frames of a known flow while something is done to lasthop: none is lost, none comes twice.

use crate::{Guest, PATIENCE, number_of, numbered, wait_for};
use lasthop_frame::VnetHdr;
use lasthop_text::MacAddr;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Sent and not received: fewer than the receiver has buffers, so none is dropped for want of one.
const WINDOW: u32 = 100;

/// What has come of the numbered frames from the other guest.
struct Arrivals<'a> {
    own: MacAddr,
    /// The highest number so far.
    highest: &'a AtomicU32,
    /// Lower ones that have not come.
    late: BTreeSet<u32>,
    /// Order is kept by each of a guest's receive rings. A switch that takes over does not know which ring the guest wanted a flow's packets in before it has sent one: with
    /// several pairs of rings a flow may change its ring then.
    ordered: bool,
}

impl Arrivals<'_> {
    fn take(&mut self, number: u32) {
        let (own, next) = (self.own, self.highest.load(Ordering::Relaxed) + 1);
        if number < next {
            assert!(self.late.remove(&number), "{number} came twice at {own}");
            return;
        }
        assert!(number == next || !self.ordered, "{number} came to {own} where {next} was due: lost, or out of order");
        self.late.extend(next..number);
        self.highest.store(number, Ordering::Relaxed);
    }
}

/// Sends numbered frames to the other, as many as its window lets it, and checks what comes from there: all, once, in order.
fn exchange(guest: &mut Guest, other: MacAddr, [mine, theirs]: [&AtomicU32; 2], stop: &AtomicBool) {
    let (own, mut sent) = (guest.mac, 0);
    let mut came = Arrivals { own, highest: mine, late: BTreeSet::new(), ordered: guest.net.queues().len() == 2 };
    // The last thing that each sends is heard by the other: frames behind it are not expected. One that is late comes with those behind it.
    let mut end = None;
    while !stop.load(Ordering::Relaxed) || !came.late.is_empty() {
        if stop.load(Ordering::Relaxed) {
            let left = end.get_or_insert_with(|| Instant::now() + PATIENCE).saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never came to {own}: {:?}", came.late);
        }
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
            number_of(&frame).into_iter().for_each(|number| came.take(number));
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
