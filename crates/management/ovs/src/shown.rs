//! What people see: who takes upcalls, and connections, which are ended by what they are (`lasthop conntrack`).

use crate::Datapath;
use crate::conntrack::owner;
use lasthop_conntrack::{Connection, Cursor, REFUSALS, Totals};
use lasthop_types::{DropReason, PortId};

/// A connection, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// What the tracker knows of it.
    pub connection: Connection,
    /// The switch's port where its first packet came from, if that is still there.
    pub from: Option<PortId>,
    /// The one where its answers come from, if the switch has a flow for them.
    pub reply: Option<PortId>,
    /// Flows of the switch's that carry it.
    pub flows: usize,
}

/// Figures of all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many there are, may be, and were.
    pub totals: Totals,
    /// Reasons for which packets were of no connection, and how often; only those that occurred.
    pub refused: Vec<(&'static str, u64)>,
    /// Ports that have opened some: how many, and how many they may.
    pub ports: Vec<(PortId, u32, u32)>,
}

impl Datapath {
    /// Open vSwitch has made it, or another process has told of it.
    pub fn is_made(&self) -> bool {
        self.name.is_some()
    }

    /// Upcalls that nobody took, since this process was started.
    pub fn untaken(&self) -> u64 {
        self.lost
    }

    /// The same by the names of ports; only those of which something was lost.
    pub fn untaken_of(&self) -> impl Iterator<Item = (&str, u64)> {
        self.lost_of.iter().filter_map(|(no, lost)| Some((self.vports.get(no)?.name.as_str(), *lost)))
    }

    /// Whole packets that flows or meters dropped here, by the names of ports; only those that have any.
    pub fn dropped_of(&self) -> impl Iterator<Item = (&str, u64)> {
        self.dropped_of.iter().filter_map(|(no, dropped)| Some((self.vports.get(no)?.name.as_str(), *dropped)))
    }

    /// A client has no room for upcalls of this port, and one is lost: packets that meet no flow and would become some are dropped where they wait, until it has.
    pub fn has_no_room(&mut self, pid: u32, port: u32) {
        self.full.insert((pid, port));
        self.lost(port);
    }

    /// A client has room again.
    pub fn has_room(&mut self, pid: u32, port: u32) {
        self.full.remove(&(pid, port));
    }

    /// Clients without room, and for which port.
    pub fn full_clients(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.full.iter().copied()
    }

    /// Why a packet of this port that meets no flow need not be shown to Open vSwitch: nobody would take it.
    pub(crate) fn in_vain(&self, no: u32) -> Option<DropReason> {
        let pid = self.pid_for(no, None);
        if !self.clients.contains_key(&pid) {
            return Some(DropReason::MissTimeout);
        }
        self.full.contains(&(pid, no)).then_some(DropReason::MissQueueFull)
    }

    fn tracked(&self, connection: Connection) -> Tracked {
        let from = self.vports.get(&connection.owner.into()).and_then(|port| port.port);
        let of_reply = self.registry.of_tuples(&[connection.reply]);
        let reply = of_reply.iter().find_map(|id| self.registry.get(*id)).map(|unified| PortId(unified.key.in_port));
        let flows = self.registry.of_tuples(&[connection.original, connection.reply]).len();
        Tracked { connection, from, reply, flows }
    }

    /// Shows `see` the connections in the next `places` places of the table; where to go on, unless these were the last.
    pub fn connections(&self, from: Cursor, places: u32, now_ms: u64, mut see: impl FnMut(Tracked)) -> Option<Cursor> {
        let tracker = self.connections.tracker.as_ref()?;
        tracker.dump(from, places, now_ms, |connection| see(self.tracked(connection)))
    }

    /// Ends those that `is_meant` in the next `places` places: how many, and where to go on. Their flows go.
    pub fn flush_connections(
        &mut self,
        from: Cursor,
        places: u32,
        now_ms: u64,
        mut is_meant: impl FnMut(&Tracked) -> bool,
    ) -> (usize, Option<Cursor>) {
        let Some(tracker) = &self.connections.tracker else { return (0, None) };
        let mut ended = 0;
        let next = tracker.flush_if(from, places, now_ms, |connection| {
            let meant = is_meant(&self.tracked(*connection));
            ended += usize::from(meant);
            meant
        });
        self.connections_changed(Vec::new());
        (ended, next)
    }

    /// Figures; `None` if there is no table.
    pub fn figures(&self) -> Option<Figures> {
        let tracker = self.connections.tracker.as_ref()?;
        let refused =
            REFUSALS.iter().map(|refusal| (refusal.name(), tracker.refused(*refusal))).filter(|(_, n)| *n > 0);
        let owned = self.vports.iter().filter_map(|(no, port)| {
            let limit = self.connections.share(port.opened);
            Some((port.port?, tracker.owned(owner(*no)), limit))
        });
        Some(Figures {
            totals: tracker.totals(),
            refused: refused.collect(),
            ports: owned.filter(|(_, owned, _)| *owned > 0).collect(),
        })
    }
}
