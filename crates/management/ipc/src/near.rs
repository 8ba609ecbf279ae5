//! Where VMs run, and where the threads of their ports do.

use lasthop_types::PortId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What has become of places since they were last told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceNews {
    /// What was told before is void.
    NoneKnown,
    /// This one is.
    Gone(PortId),
    /// One is so now.
    Is(PortPlace),
}

impl PlaceNews {
    /// By one who knows these.
    pub fn heard_by(self, known: &mut BTreeMap<PortId, PortPlace>) {
        match self {
            Self::NoneKnown => known.clear(),
            Self::Gone(port) => drop(known.remove(&port)),
            Self::Is(place) => drop(known.insert(place.port, place)),
        }
    }
}

/// Where the VM behind a port runs, and on which CPUs the port's own thread may for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPlace {
    /// The port.
    pub port: PortId,
    /// The NUMA node on which it runs, if it is one and known.
    pub node: Option<u32>,
    /// CPUs that share that node, or a cache, with it; empty if it is not known or on several.
    pub vm_cpus: String,
    /// CPUs on which the port's own thread may run; `None` if it has none.
    pub thread_cpus: Option<String>,
    /// How the two are to each other.
    pub state: Nearness,
}

/// How a port's thread is to its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nearness {
    /// It has hardly run so far, or its process is not seen.
    Unknown,
    /// The thread runs where the VM does.
    Near,
    /// The VM runs on several.
    Spread,
    /// Ports' threads have no CPU there.
    NoCpu,
    /// It does, and a quota of processor time stops it there now and then, its VM's or lasthop's own.
    Throttled,
    /// They have, and others keep it busy: the thread had to wait, and may run anywhere for a while.
    Crowded,
    /// The kernel does not let the thread be bound, and why.
    Refused(String),
}

impl Nearness {
    /// As it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Near => "near",
            Self::Spread => "spread",
            Self::NoCpu => "no-cpu",
            Self::Throttled => "near",
            Self::Crowded => "crowded",
            Self::Refused(_) => "refused",
        }
    }
}
