//! Connections as people see them, and ended by what they are.

use super::tracking::{NOWHERE, ports};
use super::{Effects, Learning};
use lasthop_conntrack::{Connection, Cursor, REFUSALS, Totals, Tuple};
use lasthop_types::PortId;
use std::net::IpAddr;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// What the tracker knows of it; its zone is its VLAN.
    pub connection: Connection,
    /// The port where its first packet came from, if it is one.
    pub from: Option<PortId>,
    /// The port where its answers come from, if that is known.
    pub reply: Option<PortId>,
    /// Flows in the switch that carry it.
    pub flows: usize,
}

/// Which connections are meant: those with everything that is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFilter {
    /// Opened or answered from this port.
    pub port: Option<PortId>,
    /// Of this VLAN.
    pub vlan: Option<u16>,
    /// Of this IP protocol.
    pub proto: Option<u8>,
    /// From or to this address.
    pub addr: Option<IpAddr>,
}

/// Figures of all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// How many there are, may be, and were.
    pub totals: Totals,
    /// Reasons for which packets were of no connection, and how often, since control started; only those that occurred.
    pub refused: Vec<(&'static str, u64)>,
    /// Ports that have opened some: how many, and how many they may.
    pub ports: Vec<(PortId, u32, u32)>,
    /// They outlive the process that tracks them by a record; `None`: nothing of them is recorded.
    pub recorded: Option<bool>,
}

/// An address of a tuple.
pub(crate) fn address(tuple: &Tuple, bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [.., a, b, c, d] if !tuple.is_v6() => IpAddr::from([a, b, c, d]),
        bytes => bytes.into(),
    }
}

impl ConnectionFilter {
    /// Whether it means this one, opened and answered from these ports.
    pub fn means(&self, connection: &Connection, ports: [Option<PortId>; 2]) -> bool {
        let tuple = &connection.original;
        let of_addr = |addr| [tuple.src(), tuple.dst()].iter().any(|bytes| address(tuple, *bytes) == addr);
        self.port.is_none_or(|port| ports.contains(&Some(port)))
            && self.vlan.is_none_or(|vlan| vlan == tuple.zone())
            && self.proto.is_none_or(|proto| proto == tuple.proto())
            && self.addr.is_none_or(of_addr)
    }
}

/// The ports that a label names.
fn ends(label: u128) -> [Option<PortId>; 2] {
    ports(label).map(|port| (port != NOWHERE).then_some(PortId(port)))
}

impl Learning {
    /// Connections that `filter` means in the next `places` places of the table, and where to go on unless these were the last.
    pub fn connections(
        &self,
        from: Cursor,
        places: u32,
        filter: &ConnectionFilter,
        now_ms: u64,
        mut see: impl FnMut(ConnectionView),
    ) -> Option<Cursor> {
        let connections = self.connections.as_ref()?;
        connections.tracker.dump(from, places, now_ms, |connection| {
            let [from, reply] = ends(connection.label);
            if filter.means(&connection, [from, reply]) {
                let flows = self.flows.of_connection(super::tracking::number(connection.label));
                see(ConnectionView { connection, from, reply, flows });
            }
        })
    }

    /// Ends those that `filter` means in the next `places` places: how many, and where to go on unless these were the last.
    pub fn flush_connections(
        &mut self,
        from: Cursor,
        places: u32,
        filter: &ConnectionFilter,
        now_ms: u64,
        out: &mut Effects,
    ) -> (usize, Option<Cursor>) {
        let Some(connections) = &self.connections else { return (0, None) };
        let next = connections
            .tracker
            .flush_if(from, places, now_ms, |connection| filter.means(connection, ends(connection.label)));
        (self.take_ended(now_ms, out).len(), next)
    }

    /// Figures; none while no access list asks about connections.
    pub fn connection_stats(&self) -> Option<ConnectionStats> {
        let connections = self.connections.as_ref()?;
        let tracker = &connections.tracker;
        let refused =
            REFUSALS.iter().map(|refusal| (refusal.name(), tracker.refused(*refusal))).filter(|(_, n)| *n > 0);
        let owned = self.ports.keys().map(|port| (*port, connections.owned(*port), self.connection_limit(*port)));
        Some(ConnectionStats {
            totals: tracker.totals(),
            refused: refused.collect(),
            ports: owned.filter(|(_, owned, _)| *owned > 0).collect(),
            recorded: None,
        })
    }
}
