//! A queue for each busy guest (VMDq): K. K. Ram, *Efficient Virtualization of Network Interfaces*, chapter 3; the same is
//! called VMQ by Windows (NDIS) and NetQueue by ESX.
//!
//! | module | holds |
//! |---|---|
//! | [`policy`] | which guests get a queue: samples of load in, assignments out |
//! | here | the operations on queues, under their names |
//! | [`table`] | address → queue, and how much came: memory shared with the XDP program |
//! | [`steering`] | what the engines and the main thread share: the table, who sends, handing over in order |
//! | [`manager`] | puts the others together, four times a second while there is traffic |
//!
//! | here | the paper, table 3.1 | NDIS | NetQueue |
//! |---|---|---|---|
//! | [`Vmq::avail_queues`] | `vmq_avail_queues` | `NumQueues` of the capabilities | get queue count |
//! | [`Vmq::alloc_queue`] | `vmq_alloc_queue` | `OID_RECEIVE_FILTER_ALLOCATE_QUEUE` | allocate queue |
//! | [`Vmq::free_queue`] | `vmq_free_queue` | `OID_RECEIVE_FILTER_FREE_QUEUE` | free queue |
//! | [`Vmq::get_size`] | `vmq_get_size` | | |
//! | [`Vmq::set_size`] | `vmq_set_size` | | |
//! | [`Vmq::add_mac`], [`Vmq::set_macs`] | `vmq_set_mac` | `OID_RECEIVE_FILTER_SET_FILTER` | apply filter |
//! | [`Vmq::enable_queue`] | `vmq_enable_queue` | `OID_RECEIVE_FILTER_QUEUE_ALLOCATION_COMPLETE` | |
//! | [`Vmq::disable_queue`] | `vmq_disable_queue` | `OID_RECEIVE_FILTER_CLEAR_FILTER` | remove filter |
//!
//! A ring's size is chosen when its socket is bound, and the sandbox comes after that: `set_size` bounds how much of its rings a queue
//! uses, up to all. What the paper's `vmq_alloc_skb`, `vmq_free_skb` and `vmq_netif_rx` do with buffers, the rings themselves do.

pub mod manager;
pub mod policy;
pub mod steering;
pub mod table;

use lasthop_uplink_ipc::VlanMac;

/// What the device does for the queues. An address is one in a VLAN: the same in another is another guest's.
pub trait Filter {
    /// Frames for the address go to this queue from now on; false if the device cannot.
    fn steer(&mut self, station: VlanMac, queue: u16) -> bool;
    /// Frames for the address go to the default queue again.
    fn unsteer(&mut self, station: VlanMac, queue: u16);
    /// Frames that a queue can keep.
    fn size(&self, queue: u16) -> u32;
    /// It keeps so many from now on; false if the device cannot.
    fn resize(&mut self, queue: u16, frames: u32) -> bool;
    /// Most frames that it could keep.
    fn most(&self, queue: u16) -> u32;
}

/// Why an operation was not carried out: it came out of turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmqError {
    /// No such queue, or not allocated; the default queue never is.
    #[error("the queue is not allocated")]
    NotAllocated,
    /// Set the address first.
    #[error("the queue has no address")]
    NoAddress,
    /// Disable it first.
    #[error("the queue is enabled")]
    Enabled,
    /// No guest has this address as its own, or another queue has it.
    #[error("the address cannot have a queue")]
    Address,
    /// The device has no room for another filter.
    #[error("the device cannot steer to it")]
    Device,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Allocated(Vec<VlanMac>),
    Enabled(Vec<VlanMac>),
}

impl State {
    fn stations(&self) -> &[VlanMac] {
        match self {
            Self::Free => &[],
            Self::Allocated(stations) | Self::Enabled(stations) => stations,
        }
    }
}

/// The queues of a device. Queue 0 is the default queue, which is never allocated: whoever has no queue shares it.
#[derive(Debug)]
pub struct Vmq<F> {
    filter: F,
    queues: Vec<State>,
}

impl<F: Filter> Vmq<F> {
    /// `queues`: how many, the default queue among them.
    pub fn new(filter: F, queues: u16) -> Self {
        Self { filter, queues: vec![State::Free; queues.into()] }
    }

    /// The device.
    pub fn filter(&self) -> &F {
        &self.filter
    }

    /// The device, to be told of addresses.
    pub fn filter_mut(&mut self) -> &mut F {
        &mut self.filter
    }

    /// How many queues can be allocated.
    pub fn avail_queues(&self) -> usize {
        self.queues.iter().skip(1).filter(|q| **q == State::Free).count()
    }

    /// Allocates this queue if it is free.
    pub fn alloc_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        match self.queues.get_mut(usize::from(queue)).filter(|_| queue > 0) {
            Some(state) if *state == State::Free => *state = State::Allocated(Vec::new()),
            _ => return Err(VmqError::NotAllocated),
        }
        Ok(())
    }

    /// Gives a queue back that is not enabled. It has its full size again.
    pub fn free_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        self.allocated(queue)?;
        self.filter.resize(queue, self.filter.most(queue));
        self.put(queue, State::Free);
        Ok(())
    }

    /// Frames that the queue can keep.
    pub fn get_size(&self, queue: u16) -> u32 {
        self.filter.size(queue)
    }

    /// The queue keeps so many frames from now on, 1 to as many as its rings have room for. It may be enabled: what it has beyond that is
    /// dropped, the oldest first.
    pub fn set_size(&mut self, queue: u16, frames: u32) -> Result<(), VmqError> {
        match self.queues.get(usize::from(queue)) {
            None | Some(State::Free) => Err(VmqError::NotAllocated),
            Some(_) if self.filter.resize(queue, frames) => Ok(()),
            Some(_) => Err(VmqError::Device),
        }
    }

    /// Associates the queue with an address of its guest, beside those it has.
    pub fn add_mac(&mut self, queue: u16, station: VlanMac) -> Result<(), VmqError> {
        let mut stations = self.allocated(queue)?.to_vec();
        self.check_free(station)?;
        stations.push(station);
        self.put(queue, State::Allocated(stations));
        Ok(())
    }

    /// The queue's addresses are these from now on, as far as they can be; it may be enabled, and need not have any.
    pub fn set_macs(&mut self, queue: u16, wanted: &[VlanMac]) -> Result<(), VmqError> {
        let state = self.queues.get(usize::from(queue)).cloned().unwrap_or_default();
        let enabled = match &state {
            State::Free => return Err(VmqError::NotAllocated),
            State::Allocated(_) => false,
            State::Enabled(_) => true,
        };
        let (mut stations, gone): (Vec<_>, Vec<_>) =
            state.stations().iter().copied().partition(|station| wanted.contains(station));
        if enabled {
            gone.into_iter().for_each(|station| self.filter.unsteer(station, queue));
        }
        for station in wanted.iter().copied() {
            let is_new = !stations.contains(&station) && self.check_free(station).is_ok();
            if is_new && (!enabled || self.filter.steer(station, queue)) {
                stations.push(station);
            }
        }
        self.put(queue, if enabled { State::Enabled(stations) } else { State::Allocated(stations) });
        Ok(())
    }

    /// From now on frames for the queue's addresses go to it. With several, for those that the device can steer.
    pub fn enable_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        let mut stations = self.allocated(queue)?.to_vec();
        if stations.is_empty() {
            return Err(VmqError::NoAddress);
        }
        stations.retain(|station| self.filter.steer(*station, queue));
        if stations.is_empty() {
            return Err(VmqError::Device);
        }
        self.put(queue, State::Enabled(stations));
        Ok(())
    }

    /// From now on they go to the default queue. The addresses stay.
    pub fn disable_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        let Some(State::Enabled(stations)) = self.queues.get(usize::from(queue)).cloned() else {
            return Err(VmqError::NotAllocated);
        };
        stations.iter().for_each(|station| self.filter.unsteer(*station, queue));
        self.put(queue, State::Allocated(stations));
        Ok(())
    }

    /// The addresses whose frames come to the queue.
    pub fn stations_of(&self, queue: u16) -> &[VlanMac] {
        match self.queues.get(usize::from(queue)) {
            Some(State::Enabled(stations)) => stations,
            _ => &[],
        }
    }

    /// Whether frames come to the queue.
    pub fn is_enabled(&self, queue: u16) -> bool {
        matches!(self.queues.get(usize::from(queue)), Some(State::Enabled(_)))
    }

    fn check_free(&self, (vlan, mac): VlanMac) -> Result<(), VmqError> {
        let is_taken = |q: &State| q.stations().contains(&(vlan, mac));
        let is_free = mac.is_unicast_source() && !self.queues.iter().any(is_taken);
        if is_free { Ok(()) } else { Err(VmqError::Address) }
    }

    fn allocated(&self, queue: u16) -> Result<&[VlanMac], VmqError> {
        match self.queues.get(usize::from(queue)) {
            Some(State::Allocated(stations)) => Ok(stations),
            Some(State::Enabled(_)) => Err(VmqError::Enabled),
            _ => Err(VmqError::NotAllocated),
        }
    }

    fn put(&mut self, queue: u16, state: State) {
        if let Some(slot) = self.queues.get_mut(usize::from(queue)) {
            *slot = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_text::MacAddr;
    use std::collections::BTreeMap;

    #[derive(Debug, Default)]
    struct Nic {
        filters: BTreeMap<VlanMac, u16>,
        sizes: BTreeMap<u16, u32>,
    }

    impl Filter for Nic {
        fn steer(&mut self, station: VlanMac, queue: u16) -> bool {
            self.filters.len() < 2 && self.filters.insert(station, queue).is_none()
        }
        fn unsteer(&mut self, station: VlanMac, queue: u16) {
            assert_eq!(self.filters.remove(&station), Some(queue));
        }
        fn size(&self, queue: u16) -> u32 {
            self.sizes.get(&queue).copied().unwrap_or(256)
        }
        fn resize(&mut self, queue: u16, frames: u32) -> bool {
            let fits = (1..=256).contains(&frames);
            fits.then(|| self.sizes.insert(queue, frames));
            fits
        }
        fn most(&self, _: u16) -> u32 {
            256
        }
    }

    #[test]
    fn a_queue_s_life() {
        let (a, b, c) = ((0, MacAddr([2; 6])), (7, MacAddr([2; 6])), (0, MacAddr([6; 6])));
        let mut vmq = Vmq::new(Nic::default(), 4);
        assert_eq!((vmq.avail_queues(), vmq.get_size(1)), (3, 256));
        // The default queue is never allocated, nor is one that is not there.
        assert_eq!(vmq.alloc_queue(0), Err(VmqError::NotAllocated));
        assert_eq!(vmq.alloc_queue(4), Err(VmqError::NotAllocated));
        assert_eq!(vmq.add_mac(1, a), Err(VmqError::NotAllocated));
        assert_eq!(vmq.alloc_queue(1), Ok(()));
        assert_eq!(vmq.alloc_queue(1), Err(VmqError::NotAllocated));
        assert_eq!(vmq.enable_queue(1), Err(VmqError::NoAddress));
        assert_eq!(vmq.add_mac(1, (0, MacAddr::BROADCAST)), Err(VmqError::Address));
        assert_eq!(vmq.add_mac(1, a), Ok(()));
        assert!(vmq.stations_of(1).is_empty());
        assert_eq!(vmq.enable_queue(1), Ok(()));
        assert_eq!((vmq.stations_of(1), vmq.avail_queues()), (&[a][..], 2));
        assert_eq!((vmq.free_queue(1), vmq.add_mac(1, b)), (Err(VmqError::Enabled), Err(VmqError::Enabled)));
        // Never two queues for one address.
        assert_eq!((vmq.alloc_queue(2), vmq.add_mac(2, a)), (Ok(()), Err(VmqError::Address)));
        assert_eq!((vmq.add_mac(2, b), vmq.enable_queue(2)), (Ok(()), Ok(())));
        assert_eq!((vmq.alloc_queue(3), vmq.add_mac(3, c)), (Ok(()), Ok(())));
        assert_eq!(vmq.enable_queue(3), Err(VmqError::Device));
        assert_eq!((vmq.disable_queue(1), vmq.free_queue(1)), (Ok(()), Ok(())));
        assert_eq!(vmq.filter().filters, BTreeMap::from([(b, 2)]));
        assert_eq!((vmq.stations_of(1), vmq.avail_queues()), (&[][..], 1));
    }

    #[test]
    fn a_queue_has_a_size_as_long_as_it_is_somebody_s() {
        let mut vmq = Vmq::new(Nic::default(), 2);
        assert_eq!(vmq.set_size(1, 64), Err(VmqError::NotAllocated));
        assert_eq!((vmq.alloc_queue(1), vmq.set_size(1, 64), vmq.get_size(1)), (Ok(()), Ok(()), 64));
        assert_eq!([0, 257].map(|frames| vmq.set_size(1, frames)), [Err(VmqError::Device); 2]);
        assert_eq!((vmq.add_mac(1, (0, MacAddr([2; 6]))), vmq.enable_queue(1)), (Ok(()), Ok(())));
        assert_eq!((vmq.set_size(1, 200), vmq.get_size(1)), (Ok(()), 200));
        assert_eq!((vmq.disable_queue(1), vmq.free_queue(1), vmq.get_size(1)), (Ok(()), Ok(()), 256));
        assert_eq!(vmq.set_size(0, 64), Err(VmqError::NotAllocated), "the default queue is everybody's");
    }

    #[test]
    fn a_guest_may_have_several_addresses() {
        let [a, b, c] = [2, 4, 6].map(|n| (0, MacAddr([n; 6])));
        let mut vmq = Vmq::new(Nic::default(), 3);
        assert_eq!(vmq.set_macs(1, &[a]), Err(VmqError::NotAllocated));
        assert_eq!((vmq.alloc_queue(1), vmq.set_macs(1, &[a]), vmq.enable_queue(1)), (Ok(()), Ok(()), Ok(())));
        // Another one is steered at once, and one that is gone no more.
        assert_eq!((vmq.set_macs(1, &[a, b]), vmq.stations_of(1)), (Ok(()), &[a, b][..]));
        assert_eq!((vmq.set_macs(1, &[b]), vmq.stations_of(1)), (Ok(()), &[b][..]));
        assert_eq!(vmq.filter().filters, BTreeMap::from([(b, 1)]));
        // What another queue has is left out, and what the device has no room for.
        assert_eq!((vmq.alloc_queue(2), vmq.set_macs(2, &[b, a]), vmq.enable_queue(2)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((vmq.set_macs(2, &[b, a, c]), vmq.stations_of(2)), (Ok(()), &[a][..]));
        // Without an address it stays its own.
        assert_eq!((vmq.set_macs(1, &[]), vmq.stations_of(1)), (Ok(()), &[][..]));
        assert_eq!((vmq.set_macs(2, &[a, c]), vmq.avail_queues()), (Ok(()), 0));
        assert_eq!(vmq.filter().filters, BTreeMap::from([(a, 2), (c, 2)]));
    }
}
