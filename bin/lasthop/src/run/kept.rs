//! What outlives this run: access lists, mirrors and engines, written once they hold; and what a new control is told of them.

use super::setup::Unsaved;
use super::supervisor::Supervisor;
use lasthop_management_ipc::{LISTS_PART, SupervisorToControl};
use tracing::warn;

impl Supervisor {
    /// What the file of `--config` says is remembered, and what was overruled is not any more.
    pub(super) fn keep_given(&mut self) -> Result<(), String> {
        let Unsaved { mirrors, lists, engines, device } = std::mem::take(&mut self.unsaved);
        if engines && let Err(why) = self.store.save_engines(&self.engines) {
            if !device {
                return Err(why);
            }
            warn!("{why}; engines of this device may be other ones when it is started again");
        }
        if lists {
            self.store.save_lists(&self.lists)?;
        }
        if mirrors {
            self.save(None, None)?;
        } else if device && let Err(why) = self.save(None, None) {
            // Its VMs would have no network for it.
            warn!("{why}; what ports and the wire of this device are told may not hold when it is started again");
        }
        Ok(())
    }

    pub(super) fn keep_lists(&mut self) -> Result<(), String> {
        let new = std::mem::take(&mut self.new_lists);
        self.store.save_lists(&new)?;
        self.lists = new;
        Ok(())
    }

    /// What a new control judges by. Goes before it gets to know the switch.
    pub(super) fn tell_control_lists(&mut self) {
        self.new_lists.clear();
        if !self.lists.is_empty() {
            for part in self.lists.chunks(LISTS_PART).chain([&[][..]]) {
                self.control.send(SupervisorToControl::Lists(part.to_vec()), None);
            }
        }
    }
}
