//! The local API `org.lasthop.Switch`, spoken in Varlink over `RUN_DIR/api.sock`: what control serves and the
//! command line asks for. Other programs may use it too; the interface text is in `lasthop-control`'s folder.
//!
//! Field names are stable: `lasthop … --json` prints these types as they are. New fields may be added.

mod acl;
mod client;
mod connections;
mod cpu_bound;
mod device;
mod ended;
mod engine;
mod frame;
mod log;
mod mac;
mod mirror;
mod near;
mod open_vswitch;
mod set;
mod trace;
mod translation;
mod types;
mod upgrade;
mod uplink;

pub use acl::*;
pub use client::SwitchProxy;
pub use connections::*;
pub use cpu_bound::CpuBound;
pub use device::{Bus, BusBytes, BusModel, DeviceBus, DeviceDma, DeviceTable, DeviceWalk};
pub use ended::EndedFlows;
pub use engine::{Engine, EngineList};
pub use frame::parse_frame;
pub use log::{LogLevel, LogLevelList};
pub use mac::{Group, GroupPage, Mac, MacFlushed, MacPage, Member};
pub use mirror::{Mirror, MirrorList};
pub use near::Place;
pub use open_vswitch::{LostOf, OpenVswitch, RatesOf, named};
pub use set::{AddressSet, SetChanged, SetPage};
pub use trace::{TraceOutput, TraceReport};
pub use translation::Translation;
pub use types::*;
pub use upgrade::{KeptProcess, NewProcess, PortPause, Upgraded};
pub use uplink::*;

/// Name of the interface.
pub const INTERFACE: &str = "org.lasthop.Switch";

/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "api.sock";

/// Name of the one beside it for those who may only read, if there is one.
pub const READ_SOCKET_NAME: &str = "read.sock";
