//! Threads of the switch that have been stopped and hold what somebody waits for: helpers, in the idle class, are put into the
//! normal class, and threads of ports out of the control group of their VM, which the switch, having no right at all, may not
//! do itself. The former it puts back; the latter we do, when nobody waits any more.

use super::cgroup_accounting::CgroupAccounting;
use super::handover::{Fd, Giver, Taker};
use super::port_threads::{PortThreads, Thread};
use super::supervisor::Supervisor;
use lasthop_sys::{current_thread, set_idle};
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Where the switch asks; outlives it.
#[derive(Debug)]
pub struct Boost {
    asked: OwnedFd,
    ask: OwnedFd,
}

impl Boost {
    /// `PERM` if this process may not do it either: it needs CAP_SYS_NICE, or RLIMIT_NICE of 20.
    pub fn new() -> Result<Self, Errno> {
        // Tried on a thread of its own, which ends however it stands.
        let may = std::thread::spawn(|| {
            let this = current_thread();
            set_idle(this, true).and_then(|()| set_idle(this, false))
        });
        may.join().unwrap_or(Err(Errno::PERM))?;
        let (asked, ask) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { asked, ask })
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> [Fd; 2] {
        [giver.fd(&self.asked), giver.fd(&self.ask)]
    }

    /// Goes on with it.
    pub fn resumed([asked, ask]: [Fd; 2], taker: &Taker) -> Result<Self, String> {
        Ok(Self { asked: taker.fd(asked)?, ask: taker.fd(ask)? })
    }

    /// The switch's end.
    pub fn ask(&self) -> BorrowedFd<'_> {
        self.ask.as_fd()
    }

    /// Does what the switch with this process number has asked for. Threads of others are left alone. `cgroup_accounting`: of ports'
    /// threads, if any work on accounts of VMs.
    pub fn serve(
        &self,
        switch: u32,
        mut cgroup_accounting: Option<&mut CgroupAccounting>,
        threads: &PortThreads,
        now: Instant,
    ) {
        let mut numbers = [[0u8; 4]; 64];
        // A pipe keeps what was written together together, and 256 bytes are whole numbers.
        let Ok(len) = read(&self.asked, numbers.as_flattened_mut()) else { return };
        for number in numbers.iter().take(len / 4).map(|bytes| i32::from_ne_bytes(*bytes)) {
            // Less than 0: nobody waits any more.
            let thread = Thread { process: switch, number: number.saturating_abs() };
            if let (Some(cgroup_accounting), Some(port)) = (&mut cgroup_accounting, threads.port(thread.number)) {
                if number > 0 {
                    cgroup_accounting.lift(port, thread, now)
                } else {
                    cgroup_accounting.over(port, thread)
                }
            } else if number > 0 && thread.proc().exists() {
                // It may have ended meanwhile.
                let _ = set_idle(number, false);
            }
        }
    }
}

impl Supervisor {
    pub(super) fn serve_boost(&mut self) {
        if let (Some(boost), Some(switch)) = (&self.boost, self.switch.pid()) {
            boost.serve(switch, self.cgroup_accounting.as_mut(), &self.port_threads, Instant::now());
        }
    }
}

impl AsFd for Boost {
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
    fn is_idle(thread: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(41 - 3) == Some("5")
    }

    #[test]
    fn threads_of_the_switch_leave_the_idle_class_when_they_are_asked_for() {
        let Ok(boost) = Boost::new() else {
            println!("this process may not take threads out of the idle class: not tested");
            return;
        };
        let prompter = Prompter::new(boost.ask().try_clone_to_owned().unwrap());
        let (tell, told) = channel();
        // Two threads that play the switch's helpers.
        let (ends, threads): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (tell, (end, ended)) = (tell.clone(), channel::<()>());
                let thread = std::thread::spawn(move || {
                    tell.send(current_thread()).unwrap();
                    let _ = ended.recv();
                });
                (end, thread)
            })
            .unzip();
        let [asked_for, other] = [told.recv().unwrap(), told.recv().unwrap()];
        for thread in [asked_for, other] {
            set_idle(thread, true).unwrap();
        }
        // They are none of this process's.
        prompter.ask(asked_for);
        let nobody = PortThreads::default();
        boost.serve(1, None, &nobody, Instant::now());
        assert!(is_idle(asked_for));
        // Whatever else is asked for: who is gone, and who is not the switch's.
        prompter.ask(i32::MAX);
        prompter.ask(1);
        prompter.ask(asked_for);
        prompter.ask(-other);
        boost.serve(std::process::id(), None, &nobody, Instant::now());
        assert!(!is_idle(asked_for) && is_idle(other));
        drop(ends);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
