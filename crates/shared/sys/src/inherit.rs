//! Descriptors a parent process left open for us.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Mutex;

static TAKEN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Takes descriptor number `fd`, which the parent left open, and sets close-on-exec. `None` if it is not open, is
/// one of 0 to 2, or was taken before.
pub fn inherited_fd(fd: i32) -> Option<OwnedFd> {
    let mut taken = TAKEN.lock().unwrap_or_else(|e| e.into_inner());
    if fd < 3 || taken.contains(&fd) {
        return None;
    }
    // SAFETY: fcntl on any number is harmless; it fails with EBADF on one that is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    taken.push(fd);
    // SAFETY: the number is open and, as `TAKEN` sees to, has no owner made by this function; callers run it first
    // thing in `main`, before anything else of this process has opened descriptors.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}
