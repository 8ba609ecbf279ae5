//! Samples load, decides, and carries it out: the main thread's part of [VMDq](super).

use super::policy::{Change, Policy};
use super::steering::{Steerer, Steering};
use super::{Vmq, VmqError};
use lasthop_sys::EventFd;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::UplinkQueue;
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
            mac: self.vmq.guest_of(queue),
            size: self.vmq.get_size(queue),
            packets: steering.lane(queue).map_or(0, |lane| lane.packets.load(Relaxed)),
            dropped: steering.dropped(queue),
        };
        (0..steering.queues()).map(queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::{Lane, Sources};
    use crate::table;
    use lasthop_sys::bpf::MappedValue;
    use std::sync::atomic::Ordering::SeqCst;

    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A device whose program is played by [`Device::arrive`].
    struct Device {
        table: MappedValue,
        steering: Arc<Steering>,
        manager: Manager,
        sources: Sources,
        now: Instant,
    }

    impl Device {
        fn new(queues: u16) -> Self {
            let memory = lasthop_sys::memfd("table", table::BYTES as u64).unwrap();
            let map = || MappedValue::map(&memory, table::BYTES).unwrap();
            let lane = |_| Lane::new(EventFd::new().unwrap(), || 0, 64);
            let steering =
                Arc::new(Steering::new(map(), SEED, (0..queues).map(lane).collect(), EventFd::new().unwrap()));
            let manager = Manager::new(steering.clone());
            Self { table: map(), steering, manager, sources: Sources::default(), now: Instant::now() }
        }

        /// What the program does with frames for this address; the queue they go to.
        fn arrive(&self, mac: MacAddr, packets: u64) -> u64 {
            let words = self.table.words();
            let found = table::places(SEED, mac)
                .into_iter()
                .map(|p| p.word())
                .find(|at| words[*at].load(SeqCst) == table::key(mac));
            found.map_or(0, |at| {
                words[at + table::PACKETS_AT as usize / 8].fetch_add(packets, SeqCst);
                words[at + table::QUEUE_AT as usize / 8].load(SeqCst)
            })
        }

        /// Samples, in each of which so much comes for these addresses.
        fn run(&mut self, samples: usize, load: &[(MacAddr, u64)]) {
            self.steering.received(0, 1);
            self.manager.wake(self.now);
            for _ in 0..samples {
                for (mac, packets) in load {
                    self.arrive(*mac, *packets);
                }
                self.now += SAMPLE;
                self.manager.step(self.now);
            }
        }

        fn send_from(&mut self, mac: MacAddr) {
            self.sources.refresh(&self.steering);
            self.sources.note(mac, &self.steering);
        }
    }

    fn mac(n: u16) -> MacAddr {
        let [a, b] = n.to_be_bytes();
        MacAddr([2, 0, 0, 0, a, b])
    }

    #[test]
    fn a_busy_guest_is_steered_and_a_stranger_is_not() {
        let mut device = Device::new(3);
        device.send_from(mac(1));
        device.run(10, &[(mac(1), 1000), (mac(2), 100_000)]);
        assert_eq!((device.arrive(mac(1), 0), device.arrive(mac(2), 0)), (1, 0));
        assert_eq!(device.manager.queues().iter().map(|q| q.mac).collect::<Vec<_>>(), [None, Some(mac(1)), None]);
        // Once the switch sends from it, it is a guest.
        device.send_from(mac(2));
        device.run(10, &[(mac(1), 1000), (mac(2), 100_000)]);
        assert_eq!(device.arrive(mac(2), 0), 2);
        // It waits for the default queue before it begins.
        assert!(device.steering.lane(2).unwrap().is_held());
        let ticket = device.steering.ask();
        assert!(!device.steering.is_answered(ticket));
        device.steering.answer(device.steering.asked());
        assert!(device.steering.is_answered(ticket));
    }

    #[test]
    fn when_nothing_comes_any_more_nobody_looks() {
        let mut device = Device::new(2);
        device.send_from(mac(1));
        device.run(10, &[(mac(1), 1000)]);
        assert!(device.manager.deadline().is_some());
        device.run(60, &[]);
        assert_eq!((device.manager.deadline(), device.arrive(mac(1), 0)), (None, 0));
        assert!(!device.manager.traffic().drain());
        device.steering.received(0, 1);
        assert!(device.manager.traffic().drain());
    }

    /// A guest that sends from thousands of addresses takes no queue away, and fills no more than the table.
    #[test]
    fn many_addresses_displace_no_busy_guest() {
        let mut device = Device::new(3);
        device.send_from(mac(1));
        device.send_from(mac(2));
        let load = [(mac(1), 1000), (mac(2), 800)];
        device.run(10, &load);
        for n in 0..40 {
            (1000 + n * 200..1200 + n * 200).for_each(|other| device.send_from(mac(other)));
            device.run(1, &load);
        }
        assert_eq!((device.arrive(mac(1), 0), device.arrive(mac(2), 0)), (1, 2));
        let known = device.manager.vmq.filter().counts().count();
        assert!(known > 500 && known <= table::BYTES / 32, "{known}");
        // An address that was displaced is told of again when the switch sends from it.
        device.send_from(mac(1000));
        device.run(10, &[(mac(1), 0), (mac(2), 0), (mac(1000), 5000)]);
        device.run(40, &[(mac(1000), 5000)]);
        assert_ne!(device.arrive(mac(1000), 0), 0);
    }
}
