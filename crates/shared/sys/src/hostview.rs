//! Where VMs run and which cores are idle: memory that the supervisor's eBPF program writes at every context switch and we
//! only read, from any thread. What is read together may stem from two moments. Times: CLOCK_MONOTONIC, ns.
//! Lines of eight words: one head, one per core, one per VM slot (`image/layout.rs`).
#![allow(missing_docs)] // Fields are explained above their structure.

#[cfg(any(test, feature = "supervisor"))]
pub mod image;

use crate::SharedWords;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

const MAGIC: u64 = 0x6c68_7669_6577_0001;

/// Process `tgid` (0: idle) runs there since `since_ns`; if `idle_class_only`, by policy SCHED_IDLE: it gives way to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreState {
    pub idle: bool,
    pub idle_class_only: bool,
    pub tgid: u32,
    pub since_ns: u64,
}

/// What a VM's threads do (only vCPUs where KVM tells which they are). `Running` is also one that was preempted and wants
/// to go on; `core` is where a thread of it last began to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmState {
    Running { core: u32 },
    Blocked { since_ns: u64 },
}

/// Cores with the same `llc` share a last-level cache, those with the same `physical` are hardware threads of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorePlace {
    pub llc: u32,
    pub physical: u32,
}

/// The memory, mapped read-only for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct HostView(&'static SharedWords);

impl HostView {
    /// Maps what the supervisor hands over. `INVAL` if it is of another form.
    pub fn map(fd: impl AsFd) -> Result<Self, Errno> {
        let map = |lines| Ok(Self(Box::leak(Box::new(SharedWords::map_to_read(&fd, lines * 8)?))));
        let head: Self = map(1)?;
        let vms = head.word(0, 2) as u32 as usize;
        if head.word(0, 0) == MAGIC { map(1 + head.cores() + vms) } else { Err(Errno::INVAL) }
    }

    fn word(&self, line: usize, word: usize) -> u64 {
        self.0.get(line * 8 + word).map_or(0, |w| w.load(Relaxed))
    }

    /// Number of cores, offline ones included.
    pub fn cores(&self) -> usize {
        self.word(0, 1) as u32 as usize
    }

    /// Whether cores and VMs are known. Places are in any case.
    pub fn is_live(&self) -> bool {
        self.word(0, 3) != 0
    }

    /// `None` if nothing is known of it.
    pub fn core(&self, core: usize) -> Option<CoreState> {
        let line = (core < self.cores()).then(|| 1 + core)?;
        let what = self.word(line, 0);
        let (known, idle, idle_class_only) = (what >> 32 & 1 != 0, what >> 33 & 1 != 0, what >> 34 & 1 != 0);
        let (tgid, since_ns) = (self.word(line, 1) as u32, self.word(line, 2));
        known.then_some(CoreState { idle, idle_class_only, tgid, since_ns })
    }

    /// Where the core lies.
    pub fn place(&self, core: usize) -> Option<CorePlace> {
        let word = (core < self.cores()).then(|| self.word(1 + core, 4))?;
        Some(CorePlace { llc: word as u32, physical: (word >> 32) as u32 })
    }

    /// The VM to which the supervisor gave this slot. `None` if there is no such slot or VMs are not known.
    pub fn vm(&self, slot: u32) -> Option<VmState> {
        let line = 1 + self.cores() + slot as usize;
        let state = match self.word(line, 0) | self.word(line, 3) {
            0 => VmState::Blocked { since_ns: self.word(line, 2) },
            _ => VmState::Running { core: self.word(line, 1) as u32 },
        };
        (self.is_live() && line * 8 < self.0.len()).then_some(state)
    }
}
