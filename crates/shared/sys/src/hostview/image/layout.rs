//! The memory behind a [`HostView`](crate::hostview::HostView), for those who fill it. 64-bit words in the machine's byte order, eight to a
//! line; an eBPF program writes with plain aligned stores, except for `VM_RUNNING`, which cores add to atomically.
//!
//! ```text
//! line 0               head: magic | cores | VM slots | 1 when a program keeps the rest true
//! line 1 + c           core c: WHAT | WHO | since | | place
//! line 1 + cores + s   VM slot s: running | core | since | preempted
//! ```

/// Bytes of a line.
pub const LINE: usize = 64;
/// Head, word 0.
pub const MAGIC: u64 = crate::hostview::MAGIC;
/// Head: number of cores.
pub const HEAD_CORES: usize = 1;
/// Head: number of VM slots.
pub const HEAD_VMS: usize = 2;
/// Head: 1 when a program keeps cores and VMs up to date.
pub const HEAD_LIVE: usize = 3;
/// Core: low half the line of the VM whose thread runs (0: none's), high half `KNOWN`, `IDLE`, `IDLE_CLASS`.
pub const CORE_WHAT: usize = 0;
/// Core: tgid of what runs, 0 when idle.
pub const CORE_WHO: usize = 1;
/// Core: time of the last context switch.
pub const CORE_SINCE: usize = 2;
/// Core: lowest CPU of those that share its last-level cache (low half) and its physical core (high half).
pub const CORE_PLACE: usize = 4;
/// VM: number of cores that run one of its threads: those whose `CORE_WHAT` names its line.
pub const VM_RUNNING: usize = 0;
/// VM: core on which one of its threads last began to run.
pub const VM_CORE: usize = 1;
/// VM: time when one of its threads last left a core.
pub const VM_SINCE: usize = 2;
/// VM: 1 when the last thread to leave a core was preempted: it wants to go on.
pub const VM_PREEMPTED: usize = 3;
/// Bit of `CORE_WHAT`: a context switch was seen.
pub const KNOWN: u64 = 1 << 32;
/// Bit of `CORE_WHAT`: the idle task runs.
pub const IDLE: u64 = 1 << 33;
/// Bit of `CORE_WHAT`: a thread of policy SCHED_IDLE runs.
pub const IDLE_CLASS: u64 = 1 << 34;
