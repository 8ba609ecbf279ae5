//! The table of connections: what it is kept by, and what Open vSwitch's programs ask of it.

use crate::Datapath;
use crate::jobs::Dump;
use crate::requests::{Changes, Reply, Request};
use lasthop_conntrack::{Config, Connection, Cursor, ProtoState, TcpState, Tracker, Tuple};
use lasthop_ipc::{DatapathRequest, FromControl};
use lasthop_ovs_abi::Refused;
use lasthop_ovs_abi::conntrack::{DELETE, End, Entry, GET, Meant, status};
use lasthop_ovs_abi::family;
use lasthop_ovs_abi::limit::{self, Limit};
use lasthop_ovs_abi::netlink::{Message, Writer, flag};
use std::collections::BTreeMap;

/// How often time-outs are looked at.
const TURN_MS: u64 = 1000;
/// How often the switch is asked which flows of connections are in use.
const LOOK_MS: u64 = 10_000;
/// For how long it may not be known that a flow is used: a round of questions, and some.
pub(crate) const UNSEEN_MS: u64 = LOOK_MS * 3 / 2 + 2000;
/// Looks at connections in a turn, of about 100 ns each. Where there is more to do others have their turn, and then it goes on.
const LOOKS: usize = 2000;
/// Places of the table that are told of in a datagram, at about 150 bytes each.
const PLACES: u32 = 128;
/// Limits of zones in a request: an attribute has at most 64 KiB.
const LIMITS: usize = 1024;

/// The table, and when it was last looked at.
#[derive(Debug)]
pub(crate) struct Connections {
    pub tracker: Option<Tracker>,
    turned_ms: u64,
    /// More have to be taken out whose time is over.
    behind: bool,
    looked_ms: u64,
    /// Limits of zones of their own, and that of all others; 0: none.
    limits: BTreeMap<u16, u32>,
    default_limit: u32,
}

impl Default for Connections {
    fn default() -> Self {
        // Tests make thousands of data planes, of few connections each.
        Self::new(if cfg!(test) { 1 << 14 } else { Config::default().capacity })
    }
}

impl Connections {
    /// Room for so many.
    pub fn new(capacity: usize) -> Self {
        let tracker = Tracker::new(Config { capacity, ..Config::default() });
        if tracker.is_none() {
            tracing::error!("no memory for a table of connections: packets that a flow wants tracked are dropped");
        }
        Self { tracker, turned_ms: 0, behind: false, looked_ms: 0, limits: BTreeMap::new(), default_limit: 0 }
    }

    /// Zones keep to their limits. Connections that are there stay.
    fn limit(&self, zones: impl Iterator<Item = u16>) {
        let Some(tracker) = &self.tracker else { return };
        zones.for_each(|zone| tracker.limit_zone(zone, self.limit_of(zone)));
    }

    pub fn is_behind(&self) -> bool {
        self.behind
    }

    fn limit_of(&self, zone: u16) -> u32 {
        self.limits.get(&zone).copied().unwrap_or(self.default_limit)
    }

    /// All limits, as a request that sets them.
    pub fn write_limits(&self, to: &mut Writer) {
        let own = self.limits.iter().map(|(zone, limit)| Limit { zone: Some(*zone), limit: *limit, count: 0 });
        let default = Limit { zone: None, limit: self.default_limit, count: 0 };
        let all: Vec<_> = own.chain(Some(default).filter(|of| of.limit != 0)).collect();
        for some in all.chunks(LIMITS) {
            to.begin(family::CT_LIMIT.id, 0, 0, 0);
            to.ovs_header(limit::command::SET, family::CT_LIMIT.version, 0);
            Limit::write(some, to);
            to.end();
        }
    }

    fn told(&self, zone: u16) -> Limit {
        let count = self.tracker.as_ref().map_or(0, |tracker| tracker.zone(zone).connections);
        Limit { zone: Some(zone), limit: self.limit_of(zone), count }
    }

    /// How many connections a port may open: a quarter of all, one that Open vSwitch had opened half, because behind it are many.
    pub fn share(&self, opened: bool) -> u32 {
        let capacity = self.tracker.as_ref().map_or(0, |tracker| tracker.totals().capacity);
        (capacity / if opened { 2 } else { 4 }) as u32
    }

    /// A port may open no more than its share.
    pub fn limit_port(&self, no: u32, opened: bool) {
        if let Some(tracker) = &self.tracker {
            tracker.limit_owner(owner(no), self.share(opened));
        }
    }

    /// Flows of these have been used.
    pub fn keep(&self, tuples: &[Tuple], used_ms: u64, now_ms: u64) {
        if let Some(tracker) = &self.tracker {
            tuples.iter().for_each(|tuple| tracker.keep(tuple, used_ms, now_ms + UNSEEN_MS, now_ms));
        }
    }
}

/// Whose limit the connections of a port count towards.
pub(crate) fn owner(no: u32) -> u16 {
    // Ports have numbers up to `MAX_PORT`.
    no as u16
}

fn end(of: &Tuple) -> End {
    End { v6: of.is_v6(), src: of.src(), dst: of.dst(), proto: of.proto(), ports: of.ports() }
}

fn entry(of: &Connection) -> Entry {
    let [s0, d0] = of.original.ports();
    let sent = of.reply.inverse().unwrap_or(of.original);
    let [s1, d1] = sent.ports();
    let bit = |is: bool, bits: u32| if is { bits } else { 0 };
    let tcp_state = match of.state {
        ProtoState::Tcp(state) => Some(match state {
            TcpState::None => 0,
            TcpState::SynSent => 1,
            TcpState::SynRecv => 2,
            TcpState::Established => 3,
            TcpState::FinWait => 4,
            TcpState::CloseWait => 5,
            TcpState::LastAck => 6,
            TcpState::TimeWait => 7,
            TcpState::Close => 8,
            TcpState::SynSent2 => 9,
        }),
        _ => None,
    };
    Entry {
        ends: [end(&of.original), end(&of.reply)],
        zone: of.original.zone(),
        status: status::CONFIRMED
            | bit(of.replied, status::SEEN_REPLY)
            | bit(of.assured, status::ASSURED)
            | bit((of.original.src(), s0) != (sent.src(), s1), status::SRC_NAT)
            | bit((of.original.dst(), d0) != (sent.dst(), d1), status::DST_NAT),
        seconds: of.seconds_left,
        mark: of.mark,
        label: of.label,
        id: 1,
        tcp_state,
    }
}

impl Datapath {
    /// There is something that [`Datapath::tick`] does.
    pub fn wants_ticks(&self) -> bool {
        self.connections.tracker.as_ref().is_some_and(|tracker| tracker.totals().connections > 0)
    }

    /// Time has passed: connections end whose time is over, or that are to end. Does something once a second, however often it is called; but
    /// a part of what there is to do each time while it [is busy](Datapath::is_busy).
    pub fn tick(&mut self) {
        self.begin_turn();
        self.flush_some();
        if !self.wants_ticks() {
            self.connections.behind = false;
            return;
        }
        if !self.connections.behind && self.now_ms < self.connections.turned_ms + TURN_MS {
            return;
        }
        self.connections.turned_ms = self.now_ms;
        if self.attached && self.registry.tracks() && self.now_ms >= self.connections.looked_ms + LOOK_MS {
            self.connections.looked_ms = self.now_ms;
            self.next_request += 1;
            let (request, question) = (self.next_request, DatapathRequest::Flows { after: (0, 0, 0) });
            self.tell_switch(FromControl::Ask { request, question });
        }
        if let Some(tracker) = &self.connections.tracker {
            self.connections.behind = tracker.expire(self.now_ms, LOOKS);
        }
        self.connections_changed(Vec::new());
    }

    /// Flows of the switch's that went by these go, and those of connections that have ended. True if there were any.
    pub(crate) fn connections_changed(&mut self, mut tuples: Vec<Tuple>) -> bool {
        let ended = self.connections.tracker.iter().flat_map(Tracker::ended);
        tuples.extend(ended.flat_map(|ended| [ended.original, ended.reply]));
        self.note_connections(&tuples);
        let gone = self.registry.of_tuples(&tuples);
        for id in &gone {
            self.take_back(*id);
        }
        !gone.is_empty()
    }

    /// A request of nfnetlink's. The answer to a dump is [`Datapath::more`]'s.
    pub(crate) fn conntrack_request(
        &mut self,
        message: &Message<'_>,
        pid: u32,
        changes: &mut Changes,
    ) -> Result<(), Refused> {
        let meant = Meant::read(message.payload)?;
        let tracker = self.connections.tracker.as_ref().ok_or(Refused::UNSUPPORTED)?;
        match message.kind {
            GET if message.flags & flag::DUMP == flag::DUMP => {
                let dump = Dump::connections(message.sequence, meant.zone);
                self.clients.get_mut(&pid).into_iter().for_each(|client| client.dump = Some(dump));
                Ok(())
            }
            DELETE => {
                let zone = meant.zone.unwrap_or(0);
                let tuple = meant.end.map(|end| Tuple::new([end.src, end.dst], end.ports, end.proto, end.v6, zone));
                match tuple {
                    Some(tuple) if tracker.remove(&tuple, self.now_ms) => {}
                    Some(_) => return Err(Refused::NO_ENTRY),
                    None if tracker.totals().connections == 0 => {}
                    None => changes.flush = Some(meant.zone),
                }
                changes.told |= self.connections_changed(Vec::new());
                Ok(())
            }
            _ => Err(Refused::UNSUPPORTED),
        }
    }

    /// A request about limits of zones.
    pub(crate) fn limit_request(&mut self, request: &Request<'_>) -> Reply {
        let asked = Limit::read(request.attributes)?;
        let connections = &mut self.connections;
        let zones = || asked.iter().filter_map(|limit| limit.zone);
        let all = Limit { zone: None, limit: connections.default_limit, count: 0 };
        match request.command {
            limit::command::SET => {
                let own = asked.iter().filter_map(|limit| Some((limit.zone?, limit.limit)));
                connections.limits.extend(own);
                match asked.iter().rfind(|limit| limit.zone.is_none()) {
                    Some(default) => {
                        connections.default_limit = default.limit;
                        connections.limit(0..=u16::MAX);
                    }
                    None => connections.limit(zones()),
                }
            }
            limit::command::DEL => {
                connections.limits.retain(|zone, _| !zones().any(|other| other == *zone));
                if asked.iter().any(|limit| limit.zone.is_none()) {
                    connections.default_limit = 0;
                    connections.limit(0..=u16::MAX);
                }
                connections.limit(zones());
            }
            limit::command::GET => {
                let told = if asked.is_empty() {
                    [all].into_iter().chain(connections.limits.keys().map(|zone| connections.told(*zone))).collect()
                } else {
                    asked.iter().map(|limit| limit.zone.map_or(all, |zone| connections.told(zone))).collect::<Vec<_>>()
                };
                return Ok(vec![request.answer(0, |to| {
                    to.ovs_header(limit::command::GET, family::CT_LIMIT.version, 0);
                    Limit::write(&told, to);
                })]);
            }
            _ => return Err(Refused::UNSUPPORTED),
        }
        let echo = request.message.flags & flag::ECHO != 0;
        let answer = |to: &mut Writer| to.ovs_header(request.command, family::CT_LIMIT.version, 0);
        Ok(if echo { vec![request.answer(0, answer)] } else { Vec::new() })
    }

    /// The next connections of a dump, and where it goes on.
    pub(crate) fn write_connections(
        &self,
        from: Cursor,
        (sequence, zone): (u32, Option<u16>),
        pid: u32,
        to: &mut Writer,
    ) -> Option<Cursor> {
        let tracker = self.connections.tracker.as_ref()?;
        let mut at = Some(from).filter(|_| tracker.totals().connections > 0);
        // Places that are free take no room.
        while let Some(from) = at.filter(|_| to.len() < 16 * 1024) {
            at = tracker.dump(from, PLACES, self.now_ms, |connection| {
                if zone.is_none_or(|zone| zone == connection.original.zone()) {
                    entry(&connection).write(sequence, pid, to);
                }
            });
        }
        at
    }
}

/// What a walk that only looked has found: these connections' packets pass unseen from here on.
pub(crate) fn carried(tracker: Option<&Tracker>, kept: &[Tuple], now_ms: u64) {
    if let Some(tracker) = tracker {
        for tuple in kept {
            tracker.relax(tuple, 0, now_ms);
            tracker.keep(tuple, now_ms, now_ms + UNSEEN_MS, now_ms);
        }
    }
}
