//! Samples load, decides, and carries it out: the main thread's part of [VMDq](super).

use super::policy::{Change, Owner, Policy};
use super::steering::{Steerer, Steering};
use super::{Filter, Vmq, VmqError};
use lasthop_sys::EventFd;
use lasthop_uplink_ipc::{QueueOwner, UplinkQueue, VlanMac};
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
    /// Addresses of each port that is pinned to the device.
    pinned: BTreeMap<u32, Vec<VlanMac>>,
    /// Frames that the queues of some of them are to keep; those of others keep what they can.
    sizes: BTreeMap<u32, u32>,
    /// Frames for each address at the last sample.
    before: BTreeMap<VlanMac, u64>,
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
            pinned: BTreeMap::new(),
            sizes: BTreeMap::new(),
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

    /// These ports have a queue of their own from now on, whatever the load, and no others; those first that are first, if there are too
    /// few. Of a port that has said nothing yet no address is known.
    pub fn pin(&mut self, owners: Vec<QueueOwner>, now: Instant) {
        let ports: Vec<u32> = owners.iter().map(|owner| owner.port).collect();
        self.sizes = owners.iter().filter_map(|owner| Some((owner.port, owner.size?))).collect();
        self.pinned = owners.into_iter().map(|owner| (owner.port, owner.stations)).collect();
        let changes = self.policy.pin(&ports);
        self.carry_out_all(changes);
        if !self.policy.is_at_rest() {
            self.silent = 0;
            self.sampled.get_or_insert(now);
        }
    }

    fn is_pinned(pinned: &BTreeMap<u32, Vec<VlanMac>>, station: VlanMac) -> bool {
        pinned.values().any(|stations| stations.contains(&station))
    }

    /// Takes a sample if one is due, and acts on it.
    pub fn step(&mut self, now: Instant) {
        let Some(last) = self.sampled.filter(|last| now >= *last + SAMPLE) else { return };
        self.sampled = Some(now);
        for station in self.vmq.filter().steering().take_seen() {
            let (policy, pinned) = (&self.policy, &self.pinned);
            let dispensable = |old| policy.is_dispensable(old) && !Self::is_pinned(pinned, old);
            self.vmq.filter_mut().learn(station, dispensable);
        }
        let counts: BTreeMap<VlanMac, u64> = self.vmq.filter().counts().collect();
        let since = |(of, count): (&VlanMac, &u64)| (*of, count.saturating_sub(self.before.get(of).map_or(0, |b| *b)));
        let mut arrived: Vec<(VlanMac, u64)> = counts.iter().map(since).collect();
        let any = arrived.iter().any(|(_, packets)| *packets > 0);
        self.before = counts;
        arrived.retain(|(of, _)| !Self::is_pinned(&self.pinned, *of));
        let changes = self.policy.sample(now - last, &arrived);
        self.carry_out_all(changes);
        self.silent = if any || !self.policy.is_at_rest() { 0 } else { self.silent + 1 };
        if self.silent >= REST {
            self.sampled = None;
            self.vmq.filter().steering().rest();
        }
    }

    fn carry_out_all(&mut self, changes: Vec<Change>) {
        for change in changes {
            // The policy asks for nothing that is out of turn; if it did, the guest would stay in the default queue.
            let _ = self.carry_out(change);
        }
        self.keep_pinned();
    }

    fn carry_out(&mut self, change: Change) -> Result<(), VmqError> {
        match change {
            Change::Free(queue) => {
                // One that was pinned may never have been enabled.
                if self.vmq.is_enabled(queue) {
                    self.vmq.disable_queue(queue)?;
                }
                self.vmq.free_queue(queue)
            }
            Change::Give(queue, Owner::Pinned(_)) => self.vmq.alloc_queue(queue),
            Change::Give(queue, Owner::Busy(guest)) => {
                self.vmq.alloc_queue(queue)?;
                self.vmq.add_mac(queue, guest).and_then(|()| self.vmq.enable_queue(queue)).inspect_err(|_| {
                    let _ = self.vmq.free_queue(queue);
                })
            }
        }
    }

    /// The queues of pinned ports have the addresses of their ports, as far as no other queue has them still.
    fn keep_pinned(&mut self) {
        let owners = (1..self.vmq.filter().steering().queues()).map(|queue| (queue, self.policy.owner_of(queue)));
        for (queue, owner) in owners.collect::<Vec<_>>() {
            let Some(Owner::Pinned(port)) = owner else { continue };
            let most = self.vmq.filter().most(queue);
            let size = self.sizes.get(&port).map_or(most, |size| most.min(*size));
            let _ = self.vmq.set_size(queue, size);
            let stations = self.pinned.get(&port).cloned().unwrap_or_default();
            let (policy, pinned) = (&self.policy, &self.pinned);
            let dispensable = |old| policy.queue_of(old) == 0 && !Self::is_pinned(pinned, old);
            stations.iter().for_each(|station| self.vmq.filter_mut().learn(*station, dispensable));
            let _ = self.vmq.set_macs(queue, &stations);
            // Without an address it waits for one.
            if !self.vmq.is_enabled(queue) && !stations.is_empty() {
                let _ = self.vmq.enable_queue(queue);
            }
        }
    }

    /// The port that a queue is kept for.
    fn kept_for(&self, queue: u16) -> Option<u32> {
        match self.policy.owner_of(queue) {
            Some(Owner::Pinned(port)) => Some(port),
            _ => None,
        }
    }

    /// Which port each queue is kept for, the default queue first; 0: for none.
    pub fn kept(&self) -> impl Iterator<Item = u32> {
        (0..self.vmq.filter().steering().queues()).map(|queue| self.kept_for(queue).unwrap_or(0))
    }

    /// As `lasthop uplink list` shows them.
    pub fn queues(&self) -> Vec<UplinkQueue> {
        let steering = self.vmq.filter().steering();
        let queue = |queue| UplinkQueue {
            stations: self.vmq.stations_of(queue).to_vec(),
            pinned: self.kept_for(queue),
            size: self.vmq.get_size(queue),
            packets: steering.lane(queue).map_or(0, |lane| lane.packets.load(Relaxed)),
            dropped: steering.dropped(queue),
            sent: steering.lane(queue).map_or(0, |lane| lane.sent.load(Relaxed)),
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
    use lasthop_text::MacAddr;
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
        fn arrive(&self, station: VlanMac, packets: u64) -> u64 {
            let words = self.table.words();
            let found = table::places(SEED, station)
                .into_iter()
                .map(|p| p.word())
                .find(|at| words[*at].load(SeqCst) == table::key(station));
            found.map_or(0, |at| {
                words[at + table::PACKETS_AT as usize / 8].fetch_add(packets, SeqCst);
                words[at + table::QUEUE_AT as usize / 8].load(SeqCst)
            })
        }

        /// Samples, in each of which so much comes for these addresses.
        fn run(&mut self, samples: usize, load: &[(VlanMac, u64)]) {
            self.steering.received(0, 1);
            self.manager.wake(self.now);
            for _ in 0..samples {
                for (station, packets) in load {
                    self.arrive(*station, *packets);
                }
                self.now += SAMPLE;
                self.manager.step(self.now);
            }
        }

        fn send_from(&mut self, station: VlanMac) {
            self.sources.refresh(&self.steering);
            self.sources.note(station, &self.steering);
        }
    }

    fn mac(n: u16) -> VlanMac {
        let [a, b] = n.to_be_bytes();
        (0, MacAddr([2, 0, 0, 0, a, b]))
    }

    fn owner(port: u32, stations: &[VlanMac]) -> QueueOwner {
        QueueOwner { port, stations: stations.to_vec(), size: None }
    }

    #[test]
    fn one_address_in_two_vlans_is_two_guests() {
        let mut device = Device::new(3);
        let [one, other, untagged] = [10, 20, 0].map(|vlan| (vlan, mac(1).1));
        [one, other].into_iter().for_each(|guest| device.send_from(guest));
        device.run(10, &[(one, 1000), (other, 900), (untagged, 5000)]);
        assert_eq!([one, other, untagged].map(|guest| device.arrive(guest, 0)), [1, 2, 0]);
    }

    #[test]
    fn a_pinned_port_has_its_queue_without_load() {
        let mut device = Device::new(3);
        device.send_from(mac(1));
        device.send_from(mac(2));
        device.run(10, &[(mac(1), 1000), (mac(2), 900)]);
        // Two addresses, one of which has a queue because it is busy; that queue is not freed for the port.
        device.manager.pin(vec![owner(5, &[mac(2), mac(7)])], device.now);
        device.run(3, &[(mac(1), 1000), (mac(2), 900)]);
        let has = |device: &Device| [mac(1), mac(2), mac(7)].map(|guest| device.arrive(guest, 0));
        assert_eq!(has(&device), [1, 2, 2]);
        // Hours without a frame, and one that is far busier.
        device.run(60, &[]);
        device.send_from(mac(3));
        device.run(40, &[(mac(1), 10_000), (mac(3), 9000)]);
        assert_eq!((has(&device), device.arrive(mac(3), 0)), ([1, 2, 2], 0));
        let shown = device.manager.queues();
        assert_eq!((shown[2].pinned, &shown[2].stations[..]), (Some(5), &[mac(2), mac(7)][..]));
        // Its address is another one's now, and then nobody's.
        device.manager.pin(vec![owner(5, &[mac(7)])], device.now);
        assert_eq!(has(&device), [1, 0, 2]);
        device.manager.pin(Vec::new(), device.now);
        device.run(1, &[]);
        assert_eq!(has(&device), [1, 0, 0]);
    }

    #[test]
    fn a_pinned_port_s_queue_keeps_what_it_is_told() {
        let mut device = Device::new(3);
        let sizes = |device: &Device| device.manager.queues().iter().map(|queue| queue.size).collect::<Vec<_>>();
        let pin = |device: &mut Device, size| {
            device.manager.pin(vec![QueueOwner { size, ..owner(5, &[mac(1)]) }], device.now);
        };
        pin(&mut device, Some(16));
        assert_eq!(sizes(&device), [64, 16, 64]);
        assert_eq!(device.steering.lane(1).unwrap().size(), 16);
        // It changes while the guest has it; what is more than the rings have room for is all of that.
        pin(&mut device, Some(1000));
        assert_eq!(sizes(&device), [64; 3]);
        pin(&mut device, Some(32));
        assert_eq!((sizes(&device), device.arrive(mac(1), 0)), (vec![64, 32, 64], 1));
        // Who has the queue next has all of it.
        device.manager.pin(Vec::new(), device.now);
        assert_eq!(sizes(&device), [64; 3]);
        device.steering.lane(2).unwrap().drop_surplus(3);
        assert_eq!(device.manager.queues()[2].dropped, 3);
    }

    /// At rest nothing comes that would have anybody look.
    #[test]
    fn a_port_is_pinned_at_rest_and_may_have_no_address_yet() {
        let mut device = Device::new(2);
        device.manager.pin(vec![owner(5, &[])], device.now);
        assert_eq!(device.manager.queues()[1].pinned, Some(5));
        device.send_from(mac(1));
        device.run(10, &[(mac(1), 1000)]);
        assert_eq!(device.arrive(mac(1), 0), 0, "the queue is another's");
        device.manager.pin(vec![owner(5, &[mac(9)])], device.now);
        assert_eq!(device.arrive(mac(9), 0), 1);
        device.manager.pin(vec![owner(6, &[mac(1)])], device.now);
        assert_eq!(device.arrive(mac(9), 0), 0);
        device.run(2, &[]);
        assert_eq!(device.arrive(mac(1), 0), 1);
    }

    #[test]
    fn a_busy_guest_is_steered_and_a_stranger_is_not() {
        let mut device = Device::new(3);
        device.send_from(mac(1));
        device.run(10, &[(mac(1), 1000), (mac(2), 100_000)]);
        assert_eq!((device.arrive(mac(1), 0), device.arrive(mac(2), 0)), (1, 0));
        assert_eq!(
            device.manager.queues().iter().map(|q| q.stations.first().copied()).collect::<Vec<_>>(),
            [None, Some(mac(1)), None]
        );
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
