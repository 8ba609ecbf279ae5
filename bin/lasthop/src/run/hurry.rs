//! Threads of the switch that are in the idle class and hold what somebody waits for: we put them into the normal class,
//! which the switch, having no right at all, may not do itself. It puts them back.

use lasthop_sys::ThreadId;
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Where the switch asks; outlives it.
#[derive(Debug)]
pub struct Hurry {
    asked: OwnedFd,
    ask: OwnedFd,
}

impl Hurry {
    /// `PERM` if this process may not do it either: it needs CAP_SYS_NICE, or RLIMIT_NICE of 20.
    pub fn new() -> Result<Self, Errno> {
        // Tried on a thread of its own, which ends however it stands.
        let may = std::thread::spawn(|| {
            let this = ThreadId::current();
            this.set_idle(true).and_then(|()| this.set_idle(false))
        });
        may.join().unwrap_or(Err(Errno::PERM))?;
        let (asked, ask) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { asked, ask })
    }

    /// The switch's end.
    pub fn ask(&self) -> BorrowedFd<'_> {
        self.ask.as_fd()
    }

    /// Does what the switch with this process number has asked for. Threads of others are left alone.
    pub fn serve(&self, switch: u32) {
        let mut numbers = [[0u8; 4]; 64];
        // A pipe keeps what was written together together, and 256 bytes are whole numbers.
        let Ok(len) = read(&self.asked, numbers.as_flattened_mut()) else { return };
        for number in numbers.iter().take(len / 4).map(|bytes| i32::from_ne_bytes(*bytes)) {
            if Path::new(&format!("/proc/{switch}/task/{number}")).exists() {
                // It may have ended meanwhile.
                let _ = ThreadId::from_raw(number).set_idle(false);
            }
        }
    }
}

impl AsFd for Hurry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }
}
