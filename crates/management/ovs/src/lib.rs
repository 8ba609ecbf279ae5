//! A datapath as Open vSwitch knows the kernel's, without I/O: messages in, messages out.
//!
//! | file | does |
//! |---|---|
//! | `table` | Open vSwitch's flows, as it has installed them |
//! | `walk` | a packet's way through them |
//! | `unified` | the switch's flows, each made of those that its packets would meet |
//! | `conntrack` | the table of connections, which they go by |
//! | `meters` | limits of rates, which flows name |
//! | `shaping` | limits of interfaces |
//! | `samples` | packets that the switch draws by chance for sFlow and IPFIX |
//! | `fragments` | fragments of packets, put together and cut |
//! | `repeats` | packets that meet no flow again and again |
//! | `takers` | which clients upcalls go to |
//! | `ports` | Open vSwitch's ports, and the switch's behind them |
//! | `timeouts` | time-out policies of connections |
//! | `tunnels` | tunnel ports, and what numbers in front of their frames mean |
//! | `packets` | packets that come here, whole or not, and go from here |
//! | `jobs` | requests, one datagram at a time, with what has to be asked before they are answered |
//! | `turns` | what becomes of packets, a part in a turn |
//! | `requests` | what each request does |
//! | `kept` | connections that another process goes on with |
//! | `leaving` | the switch's flows that are gone, until it has said what they carried |
//! | `shown` | connections as people see them |
//! | `restore` | what another process goes on with |
//!
//! The switch knows nothing of all that: a packet that it misses a flow for is looked up here, and becomes a flow of the switch's that
//! does at once what all of Open vSwitch's would one after the other. docs/decisions/open-vswitch.md says why.

#![forbid(unsafe_code)]

mod conntrack;
mod fragments;
mod jobs;
mod kept;
mod leaving;
mod meters;
mod packets;
mod ports;
mod repeats;
mod requests;
mod restore;
mod samples;
mod shaping;
mod shown;
mod table;
mod takers;
#[cfg(test)]
mod tests;
mod timeouts;
mod tunnels;
mod turns;
mod unified;
mod walk;

use jobs::{Dump, Flush, Job};
use lasthop_ipc::{FromControl, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_ovs_abi::family;
use lasthop_types::PortId;
use leaving::Leaving;
use ports::{Totals, Vport};
pub use restore::NotesFrom;
pub use shown::{Figures, Tracked};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use table::Table;
use tunnels::Tunnels;
use unified::Registry;

/// Name of the switch's port whose frames come here whole, and go out from here.
pub const PACKET_PORT: &str = "ovs-packets";
/// Requests of ours to the switch and the supervisor have numbers from here on; others have asked those below.
pub const FIRST_REQUEST: u64 = 1 << 63;

/// Something to be sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Out {
    /// To a client that waits for it.
    Answer(u32, Vec<u8>),
    /// The client's request is answered.
    Finished(u32),
    /// Of a port, by Open vSwitch's number, to a client that takes it when it does; of what it has no room for something of the port with most is dropped, and
    /// [`Datapath::has_no_room`].
    Upcall {
        /// The client.
        pid: u32,
        /// The port; 0: of none.
        port: u32,
        /// What it is told.
        datagram: Vec<u8>,
    },
    /// To be noted, before what is behind it is sent: [`Datapath::restore`] in another process takes all such notes, one behind the other.
    Note(Vec<u8>),
    /// To the switch.
    Switch(Box<FromControl>),
    /// To the supervisor.
    Supervisor(ControlToSupervisor),
    /// A frame for the port [`PACKET_PORT`].
    Frame(Vec<u8>),
}

/// A client: a socket that Open vSwitch takes for one of the kernel's.
#[derive(Debug, Default)]
struct Client {
    groups: BTreeSet<u32>,
    dump: Option<Dump>,
}

/// The one datapath.
#[derive(Debug, Default)]
pub struct Datapath {
    table: Table,
    tunnels: Tunnels,
    meters: meters::Meters,
    shaping: shaping::Shaping,
    registry: Registry,
    leaving: Leaving,
    connections: conntrack::Connections,
    policies: timeouts::Policies,
    noted: kept::Noted,
    fragments: RefCell<fragments::Fragments>,
    /// Its name, once Open vSwitch has made it.
    name: Option<String>,
    features: u32,
    /// Where upcalls go.
    cpu_pids: Vec<u32>,
    vports: BTreeMap<u32, Vport>,
    /// The switch's ports by name, as the supervisor says, and what they have counted.
    configs: BTreeMap<String, PortId>,
    /// Those that are interfaces of the host's.
    devices: BTreeSet<PortId>,
    /// Interfaces that were opened because Open vSwitch wanted them.
    opened: BTreeSet<String>,
    totals: BTreeMap<PortId, Totals>,
    clients: BTreeMap<u32, Client>,
    /// The switch is there.
    attached: bool,
    hits: u64,
    misses: u64,
    lost: u64,
    /// The same by ports.
    lost_of: BTreeMap<u32, u64>,
    /// Whole packets of ports that flows or meters dropped here, fragments apart: those may wait for others.
    dropped_of: BTreeMap<u32, u64>,
    /// Clients that have no room for upcalls of a port.
    full: BTreeSet<(u32, u32)>,
    repeats: repeats::Repeats,
    /// Numbers that upcalls go to: all of [`Datapath::cpu_pids`], and of ports.
    takers: takers::Takers,
    /// Which clients take upcalls may have changed.
    takers_changed: bool,
    /// That a client asks for too much at once has been said.
    was_too_much: bool,
    /// That the registry was full has been said.
    was_full: bool,
    random: u64,
    waiting: turns::Waiting,
    active: Option<Job>,
    /// Requests that end many connections, and those that have.
    flushes: VecDeque<Flush>,
    flushed: VecDeque<(Job, bool)>,
    turns: turns::Turns,
    next_request: u64,
    now_ms: u64,
    out: Vec<Out>,
}

impl Datapath {
    /// One that Open vSwitch has not made yet.
    pub fn new() -> Self {
        Self { random: 0x9e37_79b9_7f4a_7c15, next_request: FIRST_REQUEST, ..Self::default() }
    }

    /// What is drawn by chance follows from this number.
    pub fn with_seed(self, seed: u64) -> Self {
        // Xorshift stays at 0. The numbers of samplers are none of a lasthop-ovs before, of whose flows copies may still come.
        let random = seed | 1;
        Self { random, registry: Registry::numbered_from((random >> 32) as u32), ..self }
    }

    /// There is room for so many connections, and none is known yet.
    pub fn with_room(self, connections: usize) -> Self {
        Self { connections: conntrack::Connections::new(connections), ..self }
    }

    /// What is to be sent, in order; leaves nothing behind.
    pub fn take(&mut self) -> Vec<Out> {
        self.ask_for_tunnels();
        std::mem::take(&mut self.out)
    }

    /// The time of what happens from here on, in milliseconds on the clock that Open vSwitch goes by (CLOCK_MONOTONIC).
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// There is a client, with this number of ours.
    pub fn connected(&mut self, pid: u32) {
        self.clients.insert(pid, Client::default());
    }

    /// It is gone.
    pub fn disconnected(&mut self, pid: u32) {
        self.clients.remove(&pid);
        self.full.retain(|(of, _)| *of != pid);
        self.waiting.forget(pid);
        self.forget_flushes(pid);
    }

    /// It wants to hear what a group is told, or does not any more.
    pub fn subscribe(&mut self, pid: u32, group: u32, wants: bool) {
        let known = family::ALL.iter().any(|family| family.group == Some(group));
        if let Some(client) = self.clients.get_mut(&pid).filter(|_| known) {
            if wants {
                client.groups.insert(group)
            } else {
                client.groups.remove(&group)
            };
        }
    }

    /// A packet of this port's is lost, or of one that is not known (0).
    pub fn lost(&mut self, port: u32) {
        self.lost += 1;
        if port != 0 && self.vports.contains_key(&port) {
            *self.lost_of.entry(port).or_default() += 1;
        }
    }

    /// There is a new channel to the switch, or none.
    pub fn switch_is(&mut self, attached: bool) {
        self.attached = false;
        self.forget_leaving();
        self.registry.clear(&mut self.table);
        if !attached {
            self.give_up_on_switch();
        }
    }

    /// The switch says something. False if that is no answer to a question of ours, and others may want to hear it.
    pub fn hear_switch(&mut self, message: &ToControl) -> bool {
        match message {
            ToControl::Hello => {
                self.give_up_on_switch();
                self.attached = true;
                self.tell_meters();
                self.begin_anew();
                self.unsettle_tunnels();
            }
            ToControl::Upcall(upcall) => match upcall.copy {
                // Nothing waits: the packet has gone on.
                Some(number) => self.sampled(upcall, number),
                None => self.missed(upcall),
            },
            ToControl::Port(port) => drop(self.totals.insert(port.id, Totals::of(port))),
            ToControl::PortGone(port) => drop(self.totals.remove(port)),
            ToControl::Reply { request, last, reply } if *request >= FIRST_REQUEST => {
                self.switch_answers(*request, *last, reply);
                return true;
            }
            ToControl::Reply { .. } => {}
            ToControl::Ended(flow) => {
                self.ended(flow);
                return true;
            }
        }
        false
    }

    /// The supervisor says something. As [`Datapath::hear_switch`].
    pub fn hear_supervisor(&mut self, message: &SupervisorToControl) -> bool {
        match message {
            SupervisorToControl::Ports(ports) => {
                self.configs = ports.iter().map(|port| (port.name.clone(), port.id)).collect();
                self.map_ports();
            }
            SupervisorToControl::Devices(devices) => {
                self.devices = devices.iter().map(|device| device.port).collect();
            }
            SupervisorToControl::UplinkReply { request, result } if *request >= FIRST_REQUEST => {
                self.supervisor_answers(*request, result.as_ref().err());
                return true;
            }
            SupervisorToControl::Reply { request, result } if *request >= FIRST_REQUEST => {
                self.supervisor_answers(*request, result.as_ref().err());
                return true;
            }
            _ => {}
        }
        false
    }

    fn tell_switch(&mut self, message: FromControl) {
        if self.attached {
            self.out.push(Out::Switch(message.into()));
        }
    }
}
