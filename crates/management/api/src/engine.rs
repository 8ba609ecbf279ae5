//! Engines, as they travel: CPUs on which ports' work is done, and who does it there.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// An engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Engine {
    /// How it is called, as its thread is: `poll-3`, `helper-3`; `ports` for threads of ports.
    pub name: String,
    /// `poll`: a core that does nothing else; `helper`: one whose idle cycles are used; `ports`: where ports' own threads may run.
    pub kind: String,
    /// Its CPU; of `ports`, all of them, as people write lists: none that polls, unless there is no other.
    pub cpus: String,
    /// NUMA nodes of these CPUs, as people write lists; none where the host has one.
    #[serde(default)]
    pub nodes: Option<String>,
    /// Processor time, in nanoseconds, that its threads have used since the switch was started; none until it has had one.
    pub cpu_ns: Option<u64>,
    /// Ports whose rings it serves. Which of them a helper has at the moment is not told.
    pub ports: Vec<String>,
    /// Why it does not do what it is for, or does it badly, if that is so.
    pub trouble: Option<String>,
}

/// Answer to `EngineList`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct EngineList {
    /// Those that poll first, then helpers, then `ports`.
    pub engines: Vec<Engine>,
    /// CPUs that are to poll, as they are set: as people write lists, or `none`.
    pub poll: String,
    /// CPUs that are to have helpers, but for those that poll: a list, `none`, or `all` of `ports`.
    pub helper: String,
    /// CPUs where the switch may run: a list, or `all` that lasthop may use.
    pub ports: String,
    /// How near ports' threads are kept to their VMs: `off`, `node` or `cache`.
    #[serde(default)]
    pub near: String,
    /// Among how many nodes and caches of this host they can be; 0: there is nothing to choose, or it is `off`.
    #[serde(default)]
    pub near_to: u32,
}
