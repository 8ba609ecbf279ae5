//! Which ports have queues of their own at an uplink, as its process is told.

use super::Uplink;
use lasthop_types::MAX_QUEUE_PAIRS;
use lasthop_uplink_ipc::{QueueOwner, SupervisorToUplink};

/// Whom the queues are for, of what an uplink says: none but `owners` has one, and the default queue is nobody's.
fn kept_for(said: &[u32], owners: &[QueueOwner]) -> [u32; MAX_QUEUE_PAIRS] {
    let mut kept_for = [0; MAX_QUEUE_PAIRS];
    for (of, port) in kept_for.iter_mut().zip(said).skip(1) {
        *of = if owners.iter().any(|owner| owner.port == *port) { *port } else { 0 };
    }
    kept_for
}

impl Uplink {
    /// For which port each of its queues is that lead to the network; 0: for all that have none.
    pub fn kept_for(&self) -> [u32; MAX_QUEUE_PAIRS] {
        self.kept_for
    }

    /// Takes what its process says of that; true if it is something else than before.
    pub fn learn_kept(&mut self) -> bool {
        let kept_for = kept_for(self.driver.queue_owners(), &self.owners);
        std::mem::replace(&mut self.kept_for, kept_for) != kept_for
    }

    /// These ports, and no others, have queues of their own there.
    pub fn keep_queues(&mut self, owners: Vec<QueueOwner>) {
        if owners == self.owners {
            return;
        }
        self.owners = owners;
        if self.driver.is_ready() {
            self.driver.send(SupervisorToUplink::Owners(self.owners.clone()), None);
        }
    }

    /// Its process is ready, and knows of none yet.
    pub(super) fn tell_owners(&mut self) {
        if !self.owners.is_empty() {
            self.driver.send(SupervisorToUplink::Owners(self.owners.clone()), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_sends_by_the_queue_that_it_gets_by() {
        let owners = [7, 9].map(|port| QueueOwner { port, ..QueueOwner::default() });
        let kept = |said: &[u32]| kept_for(said, &owners)[..4].to_vec();
        assert_eq!(kept(&[0, 9, 0, 7]), [0, 9, 0, 7]);
        // What it says of itself, of a port that is to have none, of more queues than there are.
        assert_eq!((kept(&[7, 8, 9]), kept(&[0; 99])), (vec![0, 0, 9, 0], vec![0; 4]));
    }
}
