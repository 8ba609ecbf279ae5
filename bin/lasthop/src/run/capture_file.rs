//! Capture files, which are ports of a device of their own: the driver `file` of `lasthop-uplink`.

use super::store::SavedUplink;
use lasthop_uplink_ipc::UplinkDriver;

/// Whether it is the named pipe of a `lasthop capture`, which ends with its reader: it is never remembered, nor are mirrors to it.
pub fn is_pipe(spec: &SavedUplink) -> bool {
    spec.driver.as_deref().and_then(UplinkDriver::pipe_owner).is_some()
}

/// Whether it is a capture file, or its named pipe.
pub fn is_file(spec: &SavedUplink) -> bool {
    spec.driver.as_deref().and_then(UplinkDriver::from_name) == Some(UplinkDriver::File)
}

/// Whether it was remembered for a capture by a lasthop before captures had pipes of their own. Its pipe is gone, and whatever is made under
/// that name in a directory of everybody's would get the packets.
pub fn is_left_over(spec: &SavedUplink) -> bool {
    let number = spec.name.strip_prefix("capture-").unwrap_or_default();
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let is_file = spec.driver.as_deref() == Some(UplinkDriver::File.name());
    is_number && is_file && spec.device.ends_with(&format!("/lasthop-{}", spec.name)) || is_pipe(spec)
}

/// Whether it can be one. The error says what is wrong and what would be right.
pub fn check(file: &SavedUplink) -> Result<(), String> {
    let path = &file.device;
    if !path.starts_with('/') || path.ends_with('/') || path.contains(char::is_control) || path.len() > 1024 {
        return Err(format!("{path:?} cannot be a capture file; write a path from / on, of 1024 bytes at most"));
    }
    if file.queues != 1 || file.spare || file.no_gro {
        return Err(format!("{path} is a file: it has one queue, and neither spare nor gro; leave these out"));
    }
    Ok(())
}
