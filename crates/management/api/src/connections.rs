//! Connections, as they travel.

use crate::Drops;
use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A connection that stateful access lists know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Connection {
    /// Protocol: `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or its number.
    pub proto: String,
    /// Number of the protocol.
    pub proto_number: u8,
    /// State of TCP or SCTP, by Linux's names; null for other protocols, which have none.
    pub state: Option<String>,
    /// VLAN, which is its zone; 0 without one.
    pub vlan: u16,
    /// Name of the port where its first packet came from; `-` if it came with its guest from another lasthop, and that is not known yet.
    pub from: String,
    /// Name of the port where its answers come from; null if that is not known.
    pub to: Option<String>,
    /// Addresses and ports of its first packet's direction.
    pub original: Direction,
    /// Addresses and ports of the answers.
    pub reply: Direction,
    /// Somebody has answered.
    pub replied: bool,
    /// It is not given up for others.
    pub assured: bool,
    /// Seconds until its time is over, unless packets come.
    pub seconds_left: u32,
    /// Flows in the switch that carry it.
    pub flows: u64,
}

/// One direction of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Direction {
    /// Source address.
    pub src: String,
    /// Destination address.
    pub dst: String,
    /// Source port; of ICMP its type; null where there are no ports.
    pub sport: Option<u16>,
    /// Destination port; of ICMP its code.
    pub dport: Option<u16>,
}

/// Some of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct ConnectionPage {
    /// These.
    pub connections: Vec<Connection>,
    /// How many there are in all.
    pub total: u64,
}

/// An address that moves with its guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
#[serde(deny_unknown_fields)]
pub struct Station {
    /// Ethernet address.
    pub mac: String,
    /// VLAN; 0 without one.
    pub vlan: u16,
}

/// What a port did not take of a guest that has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct NotTaken {
    /// Why.
    pub reason: String,
    /// How many.
    pub number: u64,
}

/// Answer to `PortAdopt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct PortAdopted {
    /// Addresses that live here now.
    pub stations: u64,
    /// Connections that were put in.
    pub connections: u64,
    /// Connections that were known.
    pub known: u64,
    /// What was not taken.
    pub not_taken: Vec<NotTaken>,
}

/// Answer to `ConntrackFlush`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct ConntrackFlushed {
    /// Connections that were ended.
    pub connections: u64,
}

/// Figures of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct ConntrackStats {
    /// Some access list asks about connections.
    pub tracking: bool,
    /// Some access list asks about connections, and there is no memory for their table: nothing of IP passes such lists.
    #[serde(default)]
    pub no_memory: bool,
    /// How many there are.
    pub connections: u64,
    /// How many there may be.
    pub capacity: u64,
    /// Opened since control started, or since the first list asked.
    pub created: u64,
    /// Ended because their time was over.
    pub expired: u64,
    /// Ended to make room for others.
    pub evicted: u64,
    /// Packets that were of no connection or could open none, by reason; only reasons that occurred.
    pub refused: Vec<Drops>,
    /// Ports that have opened some.
    pub ports: Vec<PortConnections>,
    /// Where Open vSwitch decides: should the process that tracks them be killed, the next one has them from a record.
    #[serde(default)]
    pub recorded: Option<bool>,
}

/// Connections of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct PortConnections {
    /// Its name.
    pub port: String,
    /// Connections that it has opened.
    pub connections: u64,
    /// How many it may open (`lasthop port set --connections`).
    pub limit: u64,
}
