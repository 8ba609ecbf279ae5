//! Giving up rights, once the device is open.

use lasthop_sys::sandbox::{Program, ProgramError};

/// Leaves this process its memory and its device. Call it from the only thread. What could not be done is logged; `again`: a
/// process before this one has said so already.
pub fn confine(device: &str, again: bool) -> Result<(), ProgramError> {
    let report = Program::UPLINK.enter_sandbox()?;
    tracing::debug!("sandbox: {report}");
    for left_out in report.left_out.iter().filter(|_| !again) {
        tracing::warn!(device, "sandbox: going on without {left_out}");
    }
    Ok(())
}
