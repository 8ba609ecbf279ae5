//! Samples load, decides, and carries it out: the main thread's part of [VMDq](super).

use super::policy::{Change, Policy};
use super::steering::{Steerer, Steering};
use super::{Vmq, VmqError};
use lasthop_ipc::UplinkQueue;
use lasthop_sys::EventFd;
use lasthop_types::MacAddr;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often load is sampled while there is any.
const SAMPLE: Duration = Duration::from_millis(250);
/// After so many samples without a frame nobody looks any more.
const REST: u8 = 8;

/// Queues for guests of one device. Of one thread.
#[derive(Debug)]
pub struct Manager {
    vmq: Vmq<Steerer>,
    policy: Policy,
    /// Frames for each address at the last sample.
    before: BTreeMap<MacAddr, u64>,
    sampled: Option<Instant>,
    silent: u8,
}

impl Manager {
    /// Nobody has a queue yet.
    pub fn new(steering: Arc<Steering>) -> Self {
        let queues = steering.queues();
        Self {
            vmq: Vmq::new(Steerer::new(steering), queues),
            policy: Policy::new(queues),
            before: BTreeMap::new(),
            sampled: None,
            silent: 0,
        }
    }

    /// When [`Manager::step`] is to be called; `None`: when the event it was made with is signalled.
    pub fn deadline(&self) -> Option<Instant> {
        self.sampled.map(|at| at + SAMPLE)
    }

    /// Signalled when there is traffic after a rest: then [`Manager::wake`] is to be called.
    pub fn traffic(&self) -> &EventFd {
        self.vmq.filter().steering().traffic()
    }

    /// There is traffic after a rest.
    pub fn wake(&mut self, now: Instant) {
        self.traffic().drain();
        self.silent = 0;
        self.sampled.get_or_insert(now);
    }

    /// Takes a sample if one is due, and acts on it.
    pub fn step(&mut self, now: Instant) {
        let Some(last) = self.sampled.filter(|last| now >= *last + SAMPLE) else { return };
        self.sampled = Some(now);
        for mac in self.vmq.filter().steering().take_seen() {
            let policy = &self.policy;
            self.vmq.filter_mut().learn(mac, |old| policy.is_dispensable(old));
        }
        let counts: BTreeMap<MacAddr, u64> = self.vmq.filter().counts().collect();
        let since =
            |(mac, count): (&MacAddr, &u64)| (*mac, count.saturating_sub(self.before.get(mac).map_or(0, |b| *b)));
        let arrived: Vec<(MacAddr, u64)> = counts.iter().map(since).collect();
        let any = arrived.iter().any(|(_, packets)| *packets > 0);
        self.before = counts;
        for change in self.policy.sample(now - last, &arrived) {
            // The policy asks for nothing that is out of turn; if it did, the guest would stay in the default queue.
            let _ = self.carry_out(change);
        }
        self.silent = if any || !self.policy.is_at_rest() { 0 } else { self.silent + 1 };
        if self.silent >= REST {
            self.sampled = None;
            self.vmq.filter().steering().rest();
        }
    }

    fn carry_out(&mut self, change: Change) -> Result<(), VmqError> {
        match change {
            Change::Free(queue) => {
                self.vmq.disable_queue(queue)?;
                self.vmq.free_queue(queue)
            }
            Change::Give(queue, mac) => {
                self.vmq.alloc_queue(queue)?;
                self.vmq.set_mac(queue, mac).and_then(|()| self.vmq.enable_queue(queue)).inspect_err(|_| {
                    let _ = self.vmq.free_queue(queue);
                })
            }
        }
    }

    /// As `lasthop uplink list` shows them.
    pub fn queues(&self) -> Vec<UplinkQueue> {
        let steering = self.vmq.filter().steering();
        let queue = |queue| UplinkQueue {
            mac: self.vmq.owner(queue),
            size: self.vmq.get_size(queue),
            packets: steering.lane(queue).map_or(0, |lane| lane.packets.load(Relaxed)),
            dropped: steering.dropped(queue),
        };
        (0..steering.queues()).map(queue).collect()
    }
}
