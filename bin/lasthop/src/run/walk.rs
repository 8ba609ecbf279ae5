//! How the data plane and control are joined: by rings from one to the other; or, where the data plane is a device that walks the larger table
//! (thesis, chapter 7), by rings from the data plane to its walker and from there to control, and the table between these two. In the same way the process
//! that gives flows to the kernel or a card is between the two.

use super::child::Child;
use super::offload::Offload;
use super::supervisor::Supervisor;
use super::upgrade::Upgrade;
use lasthop_ipc::{ChannelError, SupervisorToSwitch, SwitchToSupervisor, ring_pair};
use lasthop_larger_table::{MARKS_BYTES, TABLE_BYTES};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_sys::sealed_memfd;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tracing::error;

impl Supervisor {
    /// Gives the switch and control new rings to each other; they drop those they may still have.
    pub(super) fn join_children(&mut self) {
        let other = self.upgrade.as_mut().and_then(Upgrade::controlled);
        let (switch, dma, made) = other.unwrap_or((&mut self.switch, self.dma.as_ref(), None));
        // Without it, it is done once it is ready.
        if self.offload.as_ref().is_some_and(|offload| !offload.is_ready()) {
            return;
        }
        match join(switch, &mut self.control, dma, self.offload.as_mut(), made) {
            Ok(()) => {}
            Err(e) => {
                // Out of descriptors: start control afresh, which comes here again.
                error!("cannot join the switch and control: {e}; restarting control");
                self.control.kill();
            }
        }
    }
}

/// Gives the data plane and control new rings, `made` before if they were; they drop those they may still have. Where a walker cannot be told, it is left out.
fn join(
    switch: &mut Child<SupervisorToSwitch, SwitchToSupervisor>,
    control: &mut Child<SupervisorToControl, ControlToSupervisor>,
    dma: Option<&OwnedFd>,
    offload: Option<&mut Offload>,
    made: Option<(OwnedFd, OwnedFd)>,
) -> Result<(), ChannelError> {
    let (for_switch, beside_switch) = made.map_or_else(ring_pair, Ok)?;
    let for_control = if switch.has_second() {
        let (beside_control, for_control) = ring_pair()?;
        let ([table, to_read], marks) = (table()?, sealed_memfd("lasthop-marks", MARKS_BYTES)?);
        let copy = marks.try_clone().map_err(of_system)?;
        let given = [beside_switch, beside_control, to_read, copy].map(|fd| (SupervisorToSwitch::ControlChannel, fd));
        if !switch.send_second(given) {
            return Err(ChannelError::Closed);
        }
        control.send(SupervisorToControl::LargerTable { marks: false }, Some(table));
        control.send(SupervisorToControl::LargerTable { marks: true }, Some(marks));
        for_control
    } else if let Some(offload) = offload {
        let (beside_control, for_control) = ring_pair()?;
        offload.join(beside_switch, beside_control)?;
        for_control
    } else {
        beside_switch
    };
    if let Some(page) = dma {
        control.send(SupervisorToControl::DmaCounters, Some(page.try_clone().map_err(of_system)?));
    }
    switch.send(SupervisorToSwitch::ControlChannel, Some(for_switch));
    control.send(SupervisorToControl::DatapathChannel, Some(for_control));
    Ok(())
}

/// Memory for the table, as control writes it and as a device may read it: whoever has the second cannot map it to write.
fn table() -> Result<[OwnedFd; 2], ChannelError> {
    let table = sealed_memfd("lasthop-larger-table", TABLE_BYTES)?;
    let to_read = File::open(format!("/proc/self/fd/{}", table.as_fd().as_raw_fd())).map_err(of_system)?;
    Ok([table, to_read.into()])
}

fn of_system(e: io::Error) -> ChannelError {
    rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO).into()
}
