//! Guests without machines: front-ends of our own that play the virtio driver against real lasthop processes, well
//! behaved or hostile. Tests read as packets in, packets out.
//!
//! | module | holds |
//! |---|---|
//! | `guest` | a guest: memory, rings, a vhost-user connection; frames in and out |
//! | `pair` | a lasthop with two guests |
//! | `patience` | a limit of time that does not run while its thread has no processor |
//! | `plug` | one that plugs itself in again |
//! | `host` | a host with lasthop and Open vSwitch, and two with a cable between them |
//! | `fuse` | a file system whose files do not close |
//! | `frames` | numbered frames whose whole content can be checked |
//! | `exchange` | two guests that exchange frames while something is done to lasthop |
//! | `scrape` | `lasthop metrics`, and a Prometheus that asks it |
//! | `release` | newly built programs, and `lasthop run` that becomes one |
//! | `raw` | descriptors written by hand |
//! | `rivals` | two guests that have more for a third than that takes |
//! | `bystanders` | two guests that exchange numbered frames and lose none |
//! | `station` | raw frames on an interface outside |
//! | `terminal` | a program on a pseudo-terminal |
//! | `turned` | a test in the place of an uplink's process |
//! | `copy` | a copy of this host's files, in which packages are installed and services run; the packages |
//! | `arena` | a running lasthop with an attacker's port, and what must hold after every attack |
//!
//! Helpers panic when something is not as it must be: they are for tests only.

mod arena;
mod bystanders;
mod copy;
mod exchange;
mod frames;
mod fuse;
mod guest;
mod host;
mod pair;
mod patience;
mod plug;
pub mod raw;
mod release;
mod rivals;
mod scrape;
mod station;
mod terminal;
mod turned;

pub use arena::{Arena, Attack};
pub use bystanders::Bystanders;
pub use copy::{HostCopy, Inhabited, package};
pub use exchange::under_load;
pub use frames::{mac, number_of, numbered};
pub use fuse::DeadMount;
pub use guest::{Guest, Options, accept, connect};
pub use host::{Host, hosts};
pub use lasthop_harness::{Lasthop, Netns, Port, binary, proc, scratch, spawn, vswitch, wait_for};
pub use pair::Pair;
pub use patience::Patience;
pub use plug::Plug;
pub use release::{becomes, children, release, script, stays, upgrade_run};
pub use rivals::{Rivals, is_fair};
pub use scrape::{Exporter, Prometheus};
pub use station::Station;
pub use terminal::Terminal;
pub use turned::{Turned, TurnedUplink};

use std::time::Duration;

/// How long anything that must happen may take on a slow, busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
