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
//! | [`Vmq::set_mac`] | `vmq_set_mac` | `OID_RECEIVE_FILTER_SET_FILTER` | apply filter |
//! | [`Vmq::enable_queue`] | `vmq_enable_queue` | `OID_RECEIVE_FILTER_QUEUE_ALLOCATION_COMPLETE` | |
//! | [`Vmq::disable_queue`] | `vmq_disable_queue` | `OID_RECEIVE_FILTER_CLEAR_FILTER` | remove filter |
//!
//! There is no `vmq_set_size`: a ring's size is chosen when its socket is bound, and the sandbox comes after that. What the
//! paper's `vmq_alloc_skb`, `vmq_free_skb` and `vmq_netif_rx` do with buffers, the rings themselves do.

pub mod manager;
pub mod policy;
pub mod steering;
pub mod table;

use lasthop_text::MacAddr;

/// What the device does for the queues.
pub trait Filter {
    /// Frames for the address go to this queue from now on; false if the device cannot.
    fn steer(&mut self, mac: MacAddr, queue: u16) -> bool;
    /// Frames for the address go to the default queue again.
    fn unsteer(&mut self, mac: MacAddr, queue: u16);
    /// Frames that a queue can keep.
    fn size(&self, queue: u16) -> u32;
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Allocated(Option<MacAddr>),
    Enabled(MacAddr),
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
            Some(state) if *state == State::Free => *state = State::Allocated(None),
            _ => return Err(VmqError::NotAllocated),
        }
        Ok(())
    }

    /// Gives a queue back that is not enabled.
    pub fn free_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        self.allocated(queue)?;
        self.put(queue, State::Free);
        Ok(())
    }

    /// Frames that the queue can keep.
    pub fn get_size(&self, queue: u16) -> u32 {
        self.filter.size(queue)
    }

    /// Associates the queue with a guest's address.
    pub fn set_mac(&mut self, queue: u16, mac: MacAddr) -> Result<(), VmqError> {
        self.allocated(queue)?;
        let is_taken = |q: &State| matches!(q, State::Allocated(Some(m)) | State::Enabled(m) if *m == mac);
        if !mac.is_unicast_source() || self.queues.iter().any(is_taken) {
            return Err(VmqError::Address);
        }
        self.put(queue, State::Allocated(Some(mac)));
        Ok(())
    }

    /// From now on frames for the queue's address go to it.
    pub fn enable_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        let mac = self.allocated(queue)?.ok_or(VmqError::NoAddress)?;
        if !self.filter.steer(mac, queue) {
            return Err(VmqError::Device);
        }
        self.put(queue, State::Enabled(mac));
        Ok(())
    }

    /// From now on they go to the default queue. The address stays.
    pub fn disable_queue(&mut self, queue: u16) -> Result<(), VmqError> {
        let Some(State::Enabled(mac)) = self.queues.get(usize::from(queue)).copied() else {
            return Err(VmqError::NotAllocated);
        };
        self.filter.unsteer(mac, queue);
        self.put(queue, State::Allocated(Some(mac)));
        Ok(())
    }

    /// Whose frames come to the queue.
    pub fn guest_of(&self, queue: u16) -> Option<MacAddr> {
        match self.queues.get(usize::from(queue)) {
            Some(State::Enabled(mac)) => Some(*mac),
            _ => None,
        }
    }

    fn allocated(&self, queue: u16) -> Result<Option<MacAddr>, VmqError> {
        match self.queues.get(usize::from(queue)) {
            Some(State::Allocated(mac)) => Ok(*mac),
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
    use std::collections::BTreeMap;

    #[derive(Debug, Default)]
    struct Nic {
        filters: BTreeMap<MacAddr, u16>,
    }

    impl Filter for Nic {
        fn steer(&mut self, mac: MacAddr, queue: u16) -> bool {
            self.filters.len() < 2 && self.filters.insert(mac, queue).is_none()
        }
        fn unsteer(&mut self, mac: MacAddr, queue: u16) {
            assert_eq!(self.filters.remove(&mac), Some(queue));
        }
        fn size(&self, _: u16) -> u32 {
            256
        }
    }

    #[test]
    fn a_queue_s_life() {
        let (a, b) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut vmq = Vmq::new(Nic::default(), 4);
        assert_eq!((vmq.avail_queues(), vmq.get_size(1)), (3, 256));
        // The default queue is never allocated, nor is one that is not there.
        assert_eq!(vmq.alloc_queue(0), Err(VmqError::NotAllocated));
        assert_eq!(vmq.alloc_queue(4), Err(VmqError::NotAllocated));
        assert_eq!(vmq.set_mac(1, a), Err(VmqError::NotAllocated));
        assert_eq!(vmq.alloc_queue(1), Ok(()));
        assert_eq!(vmq.alloc_queue(1), Err(VmqError::NotAllocated));
        assert_eq!(vmq.enable_queue(1), Err(VmqError::NoAddress));
        assert_eq!(vmq.set_mac(1, MacAddr::BROADCAST), Err(VmqError::Address));
        assert_eq!(vmq.set_mac(1, a), Ok(()));
        assert_eq!(vmq.guest_of(1), None);
        assert_eq!(vmq.enable_queue(1), Ok(()));
        assert_eq!((vmq.guest_of(1), vmq.avail_queues()), (Some(a), 2));
        assert_eq!((vmq.free_queue(1), vmq.set_mac(1, b)), (Err(VmqError::Enabled), Err(VmqError::Enabled)));
        // Never two queues for one address.
        assert_eq!((vmq.alloc_queue(2), vmq.set_mac(2, a)), (Ok(()), Err(VmqError::Address)));
        assert_eq!((vmq.set_mac(2, b), vmq.enable_queue(2)), (Ok(()), Ok(())));
        assert_eq!((vmq.alloc_queue(3), vmq.set_mac(3, MacAddr([6; 6]))), (Ok(()), Ok(())));
        assert_eq!(vmq.enable_queue(3), Err(VmqError::Device));
        assert_eq!((vmq.disable_queue(1), vmq.free_queue(1)), (Ok(()), Ok(())));
        assert_eq!(vmq.filter().filters, BTreeMap::from([(b, 2)]));
        assert_eq!((vmq.guest_of(1), vmq.avail_queues()), (None, 1));
    }
}
