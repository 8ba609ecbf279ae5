//! A vring that packets come from, and the thread that looks after it.

use crate::owner::Owner;
use crate::policy::{Arrivals, Moved};
use lasthop_forward::{Forwarder, Outcome, Port};
use lasthop_sys::PeerEvent;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Known to its port's thread and to the helper that owns it or is to own it.
#[derive(Debug)]
pub(crate) struct OwnedRing {
    pub(crate) port: Arc<Port>,
    pub(crate) queue: u16,
    /// Without one the guest is polled.
    pub(crate) kick: Option<PeerEvent>,
    pub(crate) owner: Owner,
}

impl OwnedRing {
    /// Owned by its port's thread.
    pub(crate) fn new(port: Arc<Port>, queue: u16, kick: Option<PeerEvent>) -> Self {
        Self { port, queue, kick, owner: Owner::default() }
    }

    /// Moves a burst; `now_ns` goes on by what it takes. What was moved if anything was, for [`Turns::took`](crate::policy::Turns::took).
    /// Its own thread or its owner.
    #[inline]
    pub(crate) fn carry_burst(
        &self,
        forwarder: &mut Forwarder,
        arrivals: &mut Arrivals,
        now_ns: &mut u64,
    ) -> (Outcome, Option<Moved>) {
        let counters = self.port.queues.get(usize::from(self.queue)).map(|queue| &queue.counters);
        let sent = || counters.map_or(0, |counters| counters.bytes.get());
        let before = sent();
        let outcome = forwarder.carry(&self.port, self.queue, *now_ns);
        let bytes = sent().wrapping_sub(before) + outcome.copied as u64;
        // Packets behind one that waits may be done, and it not be.
        let moved = (outcome.packets > 0 || bytes > 0).then(|| {
            let since = std::mem::replace(now_ns, forwarder.now_ns());
            if outcome.packets > 0 {
                arrivals.found(outcome.packets, *now_ns);
            }
            counters.inspect(|counters| counters.busy_ns.add(now_ns.saturating_sub(since)));
            Moved { packets: outcome.packets, bytes, weight: self.port.weight.load(Relaxed) }
        });
        (outcome, moved)
    }
}
