//! Who looks after a port's rings: a core that polls, or its own thread.

use super::OR_NONE;
use std::fmt::{self, Display};
use std::str::FromStr;

/// Engines that poll.
const POLL: &str = "poll";
/// Ports' own threads.
const PORTS: &str = "ports";
/// No CPU has a number from here on: the switch is told other things by them.
const NO_CPU: u16 = lasthop_types::POLLED_NOWHERE;

/// In place of the CPU that polls a port's rings: any does.
const POLLED_ANYWHERE: u16 = u16::MAX;

/// The engine that a port is set to. As people write it: `poll-3`, or `ports`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEngine {
    /// The core with this number polls its rings.
    Poll(u16),
    /// It has a thread of its own, which helpers help, although cores poll.
    Ports,
}

/// How an engine of this kind, `poll` or `helper`, on this CPU is called; and its thread, by the switch.
pub fn engine_name(kind: &str, cpu: impl Display) -> String {
    format!("{kind}-{cpu}")
}

impl PortEngine {
    /// The CPU that polls its rings, if it is set to one.
    pub fn polls_on(self) -> Option<u16> {
        match self {
            Self::Poll(cpu) => Some(cpu),
            Self::Ports => None,
        }
    }

    /// As the switch is told.
    pub fn told(set: Option<Self>) -> u16 {
        match set {
            Some(Self::Poll(cpu)) => cpu,
            Some(Self::Ports) => lasthop_types::POLLED_NOWHERE,
            None => POLLED_ANYWHERE,
        }
    }
}

impl Display for PortEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll(cpu) => f.write_str(&engine_name(POLL, cpu)),
            Self::Ports => f.write_str(PORTS),
        }
    }
}

impl FromStr for PortEngine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let polls = |text: &str| text.strip_prefix(POLL)?.strip_prefix('-')?.parse().ok().filter(|cpu| *cpu < NO_CPU);
        match polls(text) {
            Some(cpu) => Ok(Self::Poll(cpu)),
            None if text == PORTS => Ok(Self::Ports),
            None => Err(format!(
                "no port can be set to an engine of that name; write one that polls, such as {} (`lasthop engine list`), {PORTS} for a thread of its own, \
                 {OR_NONE}",
                Self::Poll(3)
            )),
        }
    }
}
