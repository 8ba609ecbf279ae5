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

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_sys::Prompter;
    use std::sync::mpsc::channel;

    /// Of /proc/PID/stat, behind the name: the state is field 3, the policy (sched(7)) field 41.
    fn is_idle(thread: ThreadId) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.number())).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(41 - 3) == Some("5")
    }

    #[test]
    fn threads_of_the_switch_leave_the_idle_class_when_they_are_asked_for() {
        let Ok(hurry) = Hurry::new() else {
            println!("this process may not take threads out of the idle class: not tested");
            return;
        };
        let ask = Prompter::new(hurry.ask().try_clone_to_owned().unwrap());
        let (tell, told) = channel();
        // Two threads that play the switch's helpers.
        let (ends, threads): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (tell, (end, ended)) = (tell.clone(), channel::<()>());
                let thread = std::thread::spawn(move || {
                    tell.send(ThreadId::current()).unwrap();
                    let _ = ended.recv();
                });
                (end, thread)
            })
            .unzip();
        let [asked_for, other] = [told.recv().unwrap(), told.recv().unwrap()];
        for thread in [asked_for, other] {
            thread.set_idle(true).unwrap();
        }
        // They are none of this process's.
        ask.hurry(asked_for);
        hurry.serve(1);
        assert!(is_idle(asked_for));
        // Whatever else is asked for: who is gone, and who is not the switch's.
        ask.hurry(ThreadId::from_raw(i32::MAX));
        ask.hurry(ThreadId::from_raw(1));
        ask.hurry(asked_for);
        hurry.serve(std::process::id());
        assert!(!is_idle(asked_for) && is_idle(other));
        drop(ends);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
