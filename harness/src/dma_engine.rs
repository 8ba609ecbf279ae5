//! The thread that is a device's DMA engine, stopped as if it hung.

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// The engine of a `lasthop-device`, which the thread that has taken hold of it may stop. Dropping it lets it go on.
#[derive(Debug)]
pub struct DmaEngine {
    process: u32,
    thread: Pid,
}

impl DmaEngine {
    /// Takes hold of it.
    pub fn seize(process: u32) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
        let is = |path: &Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == "dma");
        let path = tasks.map(|task| task.path()).find(|path| is(path)).expect("there is such a thread");
        let thread = path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, ptrace::Options::empty()).expect("root may");
        Self { process, thread }
    }

    /// Its state, as ps(1) has it in one letter.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/task/{}/stat", self.process, self.thread));
        stat.is_ok_and(|stat| stat.contains(" (dma) S "))
    }

    /// Stops it, wherever it is.
    pub fn stop(&self) {
        ptrace::interrupt(self.thread).expect("it is ours");
        waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    }

    /// Stops it where it writes to a guest's memory: in no system call, with the place that it writes to in a register. Before that, while it reads,
    /// nothing is begun.
    #[cfg(target_arch = "x86_64")]
    pub fn stop_in_a_copy(&self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process)).expect("it runs");
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let guests = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/memfd:"));
        let guests = guests.filter_map(|line| line.split(' ').next()?.split_once('-'));
        let guests: Vec<_> = guests.filter_map(|(from, to)| Some(number(from)?..number(to)?)).collect();
        for tries in 0..5000 {
            self.stop();
            let registers = ptrace::getregs(self.thread).expect("it is stopped");
            // Which register it is depends on the C library: after a while any place is good enough.
            let writes = tries > 1000 || guests.iter().any(|guest| guest.contains(&registers.rdi));
            if registers.orig_rax as i64 == -1 && writes {
                return;
            }
            ptrace::cont(self.thread, None).expect("it is stopped");
            std::thread::sleep(Duration::from_micros(300));
        }
        panic!("the engine never writes");
    }
}

impl Drop for DmaEngine {
    fn drop(&mut self) {
        // It may have ended, and was stopped if not.
        let _ = ptrace::detach(self.thread, None);
    }
}
