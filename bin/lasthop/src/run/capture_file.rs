//! Capture files, which are ports of a device of their own: the driver `file` of `lasthop-uplink`.

use super::store::SavedUplink;

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
