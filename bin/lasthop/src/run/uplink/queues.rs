//! Which ports have queues of their own at an uplink, as its process is told.

use super::Uplink;
use lasthop_uplink_ipc::{QueueOwner, SupervisorToUplink};

impl Uplink {
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
