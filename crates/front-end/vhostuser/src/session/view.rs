//! What tests look at: the switch has no use for it.

use super::Session;
use crate::local::Local;
use crate::ring::RingState;
use lasthop_virtqueue::QueueError;

/// What the front-end has said about a ring, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingView {
    /// Entries; 0 before SET_VRING_NUM.
    pub size: u16,
    /// SET_VRING_ENABLE.
    pub enabled: bool,
    /// What it is doing.
    pub state: RingState,
    /// Why it failed, if it did.
    pub error: Option<QueueError>,
}

impl<S> Session<S> {
    pub(crate) fn switch_mut(&mut self) -> &mut S {
        &mut self.switch
    }

    /// Device status given by SET_STATUS; 0 from front-ends that do not tell.
    pub fn device_status(&self) -> u8 {
        self.status
    }
}

impl Session<Local> {
    /// The rings, by index.
    pub fn rings(&self) -> impl Iterator<Item = RingView> + '_ {
        self.rings.iter().zip(self.switch.queues().iter()).map(|(ring, queue)| {
            let error = queue.status().error;
            let broke = ring.state == RingState::Running && error.is_some();
            let state = if broke { RingState::Failed } else { ring.state };
            RingView { size: ring.size, enabled: ring.enabled, state, error }
        })
    }
}
