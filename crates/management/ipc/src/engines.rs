//! Engines: CPUs on which ports' work is done, and who does it there.

use serde::{Deserialize, Serialize};

/// Who does ports' work on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineKind {
    /// A thread that does nothing but poll. Where there is one, such threads have all ports that are not set to their own.
    Poll,
    /// A thread that works on cycles which nobody else wants.
    Helper,
    /// Ports' own threads, which may run there.
    Ports,
}

impl EngineKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Helper, Self::Ports];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Helper => "helper",
            Self::Ports => "ports",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What is to become of engines. CPUs are written as people do, like `2,4-5`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineChange {
    /// There are engines of this kind on these CPUs, too.
    Add(EngineKind, String),
    /// There is none of this kind on these CPUs.
    Del(EngineKind, String),
    /// The port or uplink with this name is polled by the engine with that one, like `poll-3`, or has a thread of its own (`ports`); `none`: is polled by any
    /// that does.
    Move(String, String),
    /// Of each kind that is given there are engines on these CPUs, and on no others; `none` for no CPU, `all` for those that there are. In the order of
    /// [`EngineKind::ALL`].
    Set([Option<String>; 3]),
    /// Ports' threads are kept so near to their VMs: `off`, `node` or `cache`.
    Near(String),
}

/// Engines of one kind: one CPU, or for ports' threads all that they may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Which kind.
    pub kind: EngineKind,
    /// Where, as people write it.
    pub cpus: String,
    /// NUMA nodes of these CPUs, as people write lists; `None` where the host has one.
    pub nodes: Option<String>,
    /// Nanoseconds of processor time that its threads have used; `None` if there is no thread.
    pub cpu_ns: Option<u64>,
    /// Why it does not do what it is for, or does it badly, if that is so.
    pub trouble: Option<String>,
}
