//! Connections, kept here and not in the switch, which holds the flows that follow from them (docs/decisions/connections.md).
//!
//! A connection is looked up when one of its packets comes to control, and moved on once everything else lets the packet pass. It lives as long as its flows
//! are used, which the switch tells when it is asked; and when it ends its flows go.

use super::deciding::Decided;
use super::mirrors::prepend;
use super::nat::edited;
use super::shares::Shares;
use super::stale::SLICE_MS;
use super::tracking::{
    CARRIED, EDGES, Kind, Known, NOWHERE, Probe, RST, Track, label, number, pair, ports, tuple, turned,
};
use super::{Effects, Learning};
use crate::flows::{Cause, Installed, TUPLE_MASK, has};
use lasthop_conntrack as ct;
use lasthop_conntrack::Headers;
use lasthop_conntrack::{
    Action as Ask, Commit, Config, CtState, Cursor, ProtoState, Refusal, TcpState, Tracker, Tuple,
};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::proto::TCP;
use lasthop_frame::{FlowKey, ethertype};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;

/// Connections that a table has room for if nobody says otherwise.
pub const CONNECTIONS: usize = 262_144;
/// What may be said.
pub const CONNECTIONS_RANGE: RangeInclusive<usize> = 4096..=1_048_576;
/// What part of the room a port's connections may take, and those of an uplink, behind which a network is, if nobody says otherwise.
const PORT_PART: usize = 4;
const UPLINK_PART: usize = 2;

/// Places of the table that are looked at in a slice, where connections are ended by what they are.
const PLACES: u32 = 2048;
/// Looks of the table's wheel in a slice, of about 300 ns each where connections end.
const WHEEL: usize = 1024;

/// Ends the connections of a port that was removed.
#[derive(Debug)]
struct Sweep {
    at: Cursor,
    port: PortId,
    /// The number is free again when it is over.
    owner: Option<u16>,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections {
    pub tracker: Tracker,
    /// Goes up when other lists hold: the mark of a connection says which it was judged by.
    lists: u32,
    pub(super) last: u64,
    /// How many were opened from one address to another.
    opened: HashMap<Tuple, u32>,
    /// Ethernet addresses of those who opened connections by which their IP addresses are translated, by the connection's number.
    homes: HashMap<u64, MacAddr>,
    pub(super) shares: Shares,
    /// A number for each port, by which the tracker counts.
    owners: BTreeMap<PortId, u16>,
    free: Vec<u16>,
    /// The last number that was given for the first time.
    numbered: u16,
    sweeps: VecDeque<Sweep>,
    /// More have to be taken out whose time is over.
    behind: bool,
    next_ms: u64,
}

impl Connections {
    /// None if there is no memory for so many.
    pub fn new(capacity: usize) -> Option<Self> {
        let (mut opened, mut homes) = (HashMap::new(), HashMap::new());
        // Room for twice as many as there can be: a map that grows moves all that it has in one go, most of a second for millions.
        // Until it is used it is addresses alone.
        opened.try_reserve(capacity.checked_mul(2)?).ok()?;
        homes.try_reserve(2 * capacity).ok()?;
        let config = Config { capacity, icmp_ids: false, ..Config::default() };
        Some(Self {
            tracker: Tracker::new(config)?,
            lists: 1,
            last: 0,
            opened,
            homes,
            shares: Shares::default(),
            owners: BTreeMap::new(),
            free: Vec::new(),
            numbered: 0,
            sweeps: VecDeque::new(),
            behind: false,
            next_ms: 0,
        })
    }

    /// When the next slice of work is due.
    pub fn due_ms(&self) -> Option<u64> {
        (self.behind || !self.sweeps.is_empty()).then_some(self.next_ms)
    }

    /// Other lists hold.
    pub fn lists_changed(&mut self) {
        self.lists = self.lists.wrapping_add(1);
    }

    /// What a packet is to the connections, whatever ports it comes from.
    pub fn look(&self, view: &ct::View<'_>, zone: u16, now_ms: u64) -> Track {
        let verdict = self.tracker.peek(view, zone, now_ms);
        if let Some(refusal) = verdict.refused {
            return Track::Invalid(refusal);
        }
        let known = (verdict.label != 0).then(|| Known {
            label: verdict.label,
            original: verdict.original,
            delivered: self.delivered(&verdict, now_ms),
            home: self.homes.get(&number(verdict.label)).copied(),
            error: verdict.rewrite.zip(verdict.rewrite_inner).map(|(outer, inner)| [outer, inner]),
            reply: verdict.state.has(CtState::REPLY),
            outdated: verdict.mark != self.lists,
        });
        match known {
            Some(known) if verdict.state.has(CtState::ESTABLISHED) => Track::Established(known),
            Some(known) if verdict.state.has(CtState::RELATED) => Track::Related(known),
            known => Track::New(known),
        }
    }

    /// The same of packets with this tuple, as far as it says.
    pub fn recall(&self, tuple: &Tuple) -> Track {
        let Some(found) = self.tracker.lives(tuple) else { return Track::New(None) };
        let reply = found.original != *tuple;
        let known = Known {
            label: found.label,
            original: found.original,
            delivered: delivered(&found),
            home: self.homes.get(&number(found.label)).copied(),
            error: None,
            reply,
            outdated: found.mark != self.lists,
        };
        if found.replied { Track::Established(known) } else { Track::New(Some(known)) }
    }

    /// A connection's first packet as it is delivered.
    fn delivered(&self, verdict: &ct::Verdict, now_ms: u64) -> Tuple {
        let nat = CtState::SRC_NAT.0 | CtState::DST_NAT.0;
        let translated = verdict.state.0 & nat != 0;
        let connection = translated.then(|| self.tracker.get(&verdict.original, now_ms)).flatten();
        connection.map_or(verdict.original, |connection| delivered(&connection))
    }

    pub fn end(&self, tuple: &Tuple, now_ms: u64) {
        self.tracker.remove(tuple, now_ms);
    }

    /// One of the two has opened a connection to the other.
    pub fn are_between(&self, pair: &Tuple) -> bool {
        [*pair, turned(pair)].iter().any(|pair| self.opened.contains_key(pair))
    }

    pub(super) fn begun(&mut self, original: &Tuple, reply: &Tuple) {
        between(original, reply).for_each(|pair| *self.opened.entry(pair).or_insert(0) += 1);
    }

    fn over(&mut self, ended: &ct::Ended) {
        self.homes.remove(&number(ended.label));
        self.shares.over(number(ended.label));
        for pair in between(&ended.original, &ended.reply) {
            if let Some(n) = self.opened.get_mut(&pair) {
                *n -= 1;
                if *n == 0 {
                    self.opened.remove(&pair);
                }
            }
        }
    }

    /// The number of a port, and its limit from the first time on.
    pub(super) fn owner(&mut self, port: PortId, limit: u32) -> u16 {
        if let Some(owner) = self.owners.get(&port) {
            return *owner;
        }
        let owner = self.free.pop().unwrap_or_else(|| {
            self.numbered = self.numbered.saturating_add(1);
            self.numbered
        });
        self.tracker.limit_owner(owner, limit);
        self.owners.insert(port, owner);
        owner
    }

    /// How many connections a port has opened.
    pub fn owned(&self, port: PortId) -> u32 {
        self.owners.get(&port).map_or(0, |owner| self.tracker.owned(*owner))
    }

    /// Another limit holds for a port.
    pub fn limit(&mut self, port: PortId, limit: u32) {
        if let Some(owner) = self.owners.get(&port) {
            self.tracker.limit_owner(*owner, limit);
        }
    }

    /// A port was removed: its connections end, part by part.
    pub fn port_gone(&mut self, port: PortId, now_ms: u64) {
        let owner = self.owners.remove(&port);
        self.next_ms = self.next_ms.max(now_ms);
        self.sweeps.push_back(Sweep { at: Cursor::default(), port, owner });
    }

    /// Some of what can wait.
    fn some(&mut self, now_ms: u64) {
        self.behind = self.tracker.expire(now_ms, WHEEL);
        if let Some(mut sweep) = self.sweeps.pop_front() {
            let is_of = |connection: &ct::Connection| ports(connection.label).contains(&sweep.port.0);
            match self.tracker.flush_if(sweep.at, PLACES, now_ms, is_of) {
                Some(at) => {
                    sweep.at = at;
                    self.sweeps.push_front(sweep);
                }
                None => self.free.extend(sweep.owner),
            }
        }
        self.next_ms = now_ms.saturating_add(SLICE_MS);
    }

    /// Whether packets of a connection may pass without coming here.
    fn may_be_carried(&self, connection: &ct::Connection) -> bool {
        match connection.state {
            ProtoState::Tcp(state) => {
                let open = matches!(state, TcpState::Established | TcpState::FinWait | TcpState::CloseWait);
                connection.replied && open
            }
            ProtoState::Sctp(state) => connection.replied && state == ct::SctpState::Established,
            ProtoState::Stateless => true,
        }
    }
}

/// A connection that is over, or nearly: its flows go.
fn is_closing(state: ProtoState) -> bool {
    matches!(state, ProtoState::Tcp(TcpState::LastAck | TcpState::TimeWait | TcpState::Close))
}

/// A connection's first packet as it is delivered.
pub(super) fn delivered(connection: &ct::Connection) -> Tuple {
    connection.reply.inverse().unwrap_or(connection.original)
}

/// The addresses between which a connection's packets and their answers are sent.
pub(super) fn between(original: &Tuple, reply: &Tuple) -> impl Iterator<Item = Tuple> + use<> {
    let translated = original.inverse().is_some_and(|inverse| inverse != *reply);
    [Some(pair(original)), translated.then(|| pair(reply))].into_iter().flatten()
}

/// The only port that a packet goes to.
fn only_output(actions: &[Action]) -> u32 {
    let mut outputs = actions.iter().filter_map(|action| match action {
        Action::Output(port) => Some(port.0),
        _ => None,
    });
    match (outputs.next(), outputs.next()) {
        (Some(port), None) => port,
        _ => NOWHERE,
    }
}

impl Learning {
    /// A port has other lists: makes the table when the first asks about connections. If there is no memory for it such lists let nothing of IP pass.
    pub(super) fn follow_tracking(&mut self, port: PortId) {
        if self.connections.is_none() && self.tracks(port) {
            self.connections = Connections::new(self.limits.connections);
        }
    }

    /// How many connections there may be.
    pub fn room(&self) -> usize {
        self.limits.connections
    }

    /// Some list asks about connections.
    fn is_asked(&self) -> bool {
        self.lists.keys().any(|port| self.tracks(*port))
    }

    /// Some list asks about connections, and there was no memory for their table. The next such list that is set tries again.
    pub fn lacks_connections(&self) -> bool {
        self.connections.is_none() && self.is_asked()
    }

    /// No list asks any more.
    pub(super) fn drop_tracking(&mut self) {
        if !self.is_asked() {
            self.connections = None;
        }
    }

    /// How many connections a port may open.
    pub(crate) fn connection_limit(&self, port: PortId) -> u32 {
        let own = self.guest_settings(port).and_then(|settings| settings.connections);
        let uplink = self.uplinks.contains_key(&port);
        own.unwrap_or((self.limits.connections / if uplink { UPLINK_PART } else { PORT_PART }) as u32)
    }

    /// A packet passes that a list asked about: its connection moves on, or begins. Its number, if the next may pass without coming here.
    pub(super) fn move_on(
        &mut self,
        key: &FlowKey,
        headers: Headers<'_>,
        decided: &Decided,
        now_ms: u64,
        out: &mut Effects,
    ) -> Result<Option<u64>, DropReason> {
        let limit = self.connection_limit(key.port());
        let known = decided.track.known();
        if known.is_none() && self.is_over_share(key, decided) {
            return Err(DropReason::CtLimit);
        }
        let Some(connections) = &mut self.connections else { return Ok(None) };
        if let Track::Displaces(known) = decided.track {
            connections.end(&known.original, now_ms);
        }
        let label = match known {
            Some(known) => known.met_at(only_output(&decided.actions)).label,
            None => {
                connections.last += 1;
                label(connections.last, key.in_port, only_output(&decided.actions))
            }
        };
        if let Some(known) = known.filter(|known| known.label & CARRIED != 0 && key.tcp_flags & RST != 0) {
            connections.tracker.relax(&known.original, 0, now_ms);
        }
        let commit = Commit {
            mark: (connections.lists, u32::MAX),
            label: (label, u128::MAX),
            owner: connections.owner(key.port(), limit),
            ..Commit::default()
        };
        let ask = Ask { zone: decided.vlan, commit: Some(commit), nat: decided.nat };
        let verdict = connections.tracker.process(&headers.view(key), &ask, now_ms);
        let original = verdict.original;
        let again = self.take_ended(now_ms, out).contains(&number(label));
        match verdict.refused {
            None => {}
            Some(Refusal::Full | Refusal::ZoneLimit | Refusal::OwnerLimit | Refusal::NoTranslation) => {
                return Err(DropReason::CtLimit);
            }
            Some(_) => return Err(DropReason::CtInvalid),
        }
        let Some(connections) = &mut self.connections else { return Ok(None) };
        let Some(connection) = connections.tracker.get(&original, now_ms) else { return Ok(None) };
        if known.is_none() || again {
            connections.begun(&original, &connection.reply);
            let delivered = delivered(&connection);
            if delivered.src() != original.src() {
                connections.homes.insert(number(label), MacAddr(key.eth_src));
            }
            self.share_begins(number(label), key.port(), &original, &delivered);
            between(&original, &connection.reply).for_each(|pair| self.unhide(&pair, out));
        }
        self.carry_or_not(&connection, key, number(label), now_ms, out)
    }

    /// Whether there may be a flow of what a packet was of.
    fn carry_or_not(
        &mut self,
        connection: &ct::Connection,
        key: &FlowKey,
        number: u64,
        now_ms: u64,
        out: &mut Effects,
    ) -> Result<Option<u64>, DropReason> {
        if is_closing(connection.state) {
            self.forget_flows(number, now_ms, out);
        }
        let Some(connections) = &self.connections else { return Ok(None) };
        let edge = key.ip_frag != 0 || key.ip_proto == TCP && key.tcp_flags & EDGES != 0;
        if edge || !connections.may_be_carried(connection) {
            return Ok(None);
        }
        connections.tracker.relax(&connection.original, CARRIED, now_ms);
        let at_least_ms = now_ms.saturating_add(self.unseen_for_ms());
        connections.tracker.keep(&connection.original, now_ms, at_least_ms, now_ms);
        Ok(Some(number))
    }

    /// Flows that drop what may be packets of this connection go.
    pub(super) fn unhide(&mut self, pair: &Tuple, out: &mut Effects) {
        for pair in [*pair, turned(pair)] {
            for id in self.flows.hiding(&pair).to_vec() {
                self.del_flow(id, out);
            }
        }
    }

    fn forget_flows(&mut self, number: u64, now_ms: u64, out: &mut Effects) {
        let cause = Cause::Ended(number);
        let owners = self.flows.owners(cause);
        if !owners.is_empty() {
            self.redo(cause, &owners, now_ms, out);
        }
    }

    /// The flows of connections that have ended go; the numbers of these.
    pub(super) fn take_ended(&mut self, now_ms: u64, out: &mut Effects) -> Vec<u64> {
        let Some(connections) = &mut self.connections else { return Vec::new() };
        let ended = connections.tracker.ended();
        ended.iter().for_each(|ended| connections.over(ended));
        let numbers: Vec<_> = ended.iter().map(|ended| number(ended.label)).collect();
        numbers.iter().for_each(|number| self.forget_flows(*number, now_ms, out));
        numbers
    }

    /// Connections whose time is over, or that are to end: a part of them.
    pub(super) fn connections_some(&mut self, now_ms: u64, out: &mut Effects) {
        if let Some(connections) = self.connections.as_mut().filter(|connections| connections.due_ms().is_some()) {
            connections.some(now_ms);
            self.take_ended(now_ms, out);
        }
    }

    /// Time has passed.
    pub(super) fn age_connections(&mut self, now_ms: u64, out: &mut Effects) {
        if let Some(connections) = &mut self.connections {
            connections.behind = true;
        }
        self.connections_some(now_ms, out);
    }

    /// The switch has told when a flow was last used.
    pub(super) fn keep_connection(&self, flow: &Installed, used_ms: u64, now_ms: u64) {
        if let Some(connections) = self.connections.as_ref().filter(|_| flow.connection != 0) {
            let at_least_ms = now_ms.saturating_add(self.unseen_for_ms());
            connections.tracker.keep(&tuple(&flow.key, flow.vlan), used_ms, at_least_ms, now_ms);
        }
    }

    /// For how long it may not be known that a flow is used: a round of questions, and some.
    fn unseen_for_ms(&self) -> u64 {
        // Their number may grow in between.
        let interval_ms = if self.flow_count() > super::MANY_FLOWS / 2 { super::LOOK_MANY_MS } else { super::LOOK_MS };
        interval_ms * 3 / 2 + 2000
    }

    /// Takes over the connection of a flow that an earlier control left, if the lists in force let it open in either direction.
    pub(super) fn take_over(&mut self, spec: &FlowSpec, now_ms: u64, out: &mut Effects) {
        let (key, to) = (&spec.key, only_output(&spec.actions));
        let goes = spec.actions.iter().any(|action| matches!(action, Action::Output(_)));
        let tracks = self.tracks(key.port()) || to != NOWHERE && self.tracks(PortId(to));
        if !goes || !tracks || !has(&spec.mask, &TUPLE_MASK) || key.anomalies != 0 || key.ip_frag != 0 {
            return;
        }
        let mut mask = spec.mask;
        let Some(vlan) = self.member(key.port()).enters(key, &mut mask).filter(|_| mask == spec.mask) else { return };
        let own = tuple(key, vlan);
        let Some(connections) = &self.connections else { return };
        if !matches!(key.eth_type, ethertype::IPV4 | ethertype::IPV6) {
            return;
        }
        match connections.recall(&own) {
            Track::New(None) => {}
            track => return self.take_over_other_half(track, key, now_ms),
        }
        // An answer to an echo opens nothing, and is one whatever the rules say of it.
        let asks = ct::opens(&own);
        let (there, mac) = edited(&own, &spec.actions);
        let (forth, back) = (first(own, there, key, false, key.in_port), there.inverse().zip(own.inverse()));
        let back = back.filter(|_| to != NOWHERE).map(|(original, delivered)| {
            let known = first(original, delivered, key, true, to);
            Known { home: mac.or(known.home), ..known }
        });
        let (known, from, reply) = match back {
            _ if asks && self.may_have_opened(&forth, key, vlan, to) => (forth, key.in_port, to),
            Some(back) if self.may_have_opened(&back, key, vlan, key.in_port) => (back, to, key.in_port),
            _ => return,
        };
        let original = known.original;
        let limit = self.connection_limit(PortId(from));
        let Some(connections) = &mut self.connections else { return };
        connections.last += 1;
        let commit = Commit {
            mark: (connections.lists, u32::MAX),
            label: (label(connections.last, from, reply) | CARRIED, u128::MAX),
            owner: connections.owner(PortId(from), limit),
            ..Commit::default()
        };
        let nat = ct::Nat::exactly(&original, &known.delivered);
        if connections.tracker.adopt_half(original, known.reply, &nat, &commit, now_ms) == Ok(true) {
            let at_least_ms = now_ms.saturating_add(self.unseen_for_ms());
            let Some(connections) = &mut self.connections else { return };
            connections.tracker.keep(&original, now_ms, at_least_ms, now_ms);
            let reply = known.delivered.inverse().unwrap_or_default();
            connections.begun(&original, &reply);
            if known.delivered.src() != original.src()
                && let Some(home) = known.home
            {
                connections.homes.insert(connections.last, home);
            }
            self.share_begins(number(commit.label.0), PortId(from), &original, &known.delivered);
            between(&original, &reply).for_each(|pair| self.unhide(&pair, out));
        }
        self.take_ended(now_ms, out);
    }

    /// A flow that an earlier control left is of a connection that is known. If that was taken over from a flow of the other direction, both have had packets.
    fn take_over_other_half(&self, track: Track, key: &FlowKey, now_ms: u64) {
        let (Some(connections), Some(known)) = (&self.connections, track.known()) else { return };
        let [here, _] = known.ports();
        let is_other = known.reply != matches!(track, Track::Established(_));
        if is_other && (here == NOWHERE || self.is_same(key.in_port, here)) {
            connections.tracker.complete(&known.original, now_ms);
            connections.tracker.keep(&known.original, now_ms, now_ms.saturating_add(self.unseen_for_ms()), now_ms);
        }
    }

    /// A packet that a list asked about, or that is denied, does to its connection what follows.
    pub(super) fn follow_connection(
        &mut self,
        key: &FlowKey,
        headers: Headers<'_>,
        decided: &mut Decided,
        now_ms: u64,
        out: &mut Effects,
    ) {
        if self.connections.is_none() {
            return;
        }
        if decided.kind == Kind::Tracked {
            match self.move_on(key, headers, decided, now_ms, out) {
                Ok(number) => {
                    if decided.nat != ct::Nat::None {
                        self.decide_translated(key, headers, decided, now_ms, out);
                    }
                    let goes = decided.actions.iter().any(|action| matches!(action, Action::Output(_)));
                    decided.kind = number.filter(|_| goes).map_or(Kind::Never, Kind::Connection);
                }
                Err(reason) => {
                    // What a mirror is to get of it as it came stays; nobody receives it.
                    decided.actions = vec![Action::Drop(reason)];
                    prepend(&mut decided.actions, self.copies_from(key.port()));
                    self.finish_copies(key.port(), &mut decided.actions);
                    decided.kind = Kind::Never;
                }
            }
        } else if let (Track::Invalid(refusal), Some(connections)) = (decided.track, &self.connections) {
            connections.tracker.count(refusal);
        } else if let Track::New(Some(known)) = decided.track
            && let Some(connections) = self.connections.as_ref().filter(|_| known.outdated && decided.rule.is_some())
        {
            // Rules that hold now would not have let it open.
            connections.end(&known.original, now_ms);
        }
        self.take_ended(now_ms, out);
    }

    /// A translated connection has begun, and it is known what its packets look like: the receiver's list has its last word.
    fn decide_translated(
        &mut self,
        key: &FlowKey,
        headers: Headers<'_>,
        decided: &mut Decided,
        now_ms: u64,
        out: &mut Effects,
    ) {
        let probe = Probe { headers: Some(headers), now_ms, peek: true };
        *decided = self.decide_anew(key, true, &probe);
        if !decided.actions.iter().any(|action| matches!(action, Action::Output(_)))
            && let (Some(connections), Some(known)) = (&self.connections, decided.track.known())
        {
            connections.end(&known.original, now_ms);
            self.take_ended(now_ms, out);
        }
    }

    /// How many connections there are.
    pub fn connection_count(&self) -> usize {
        self.connections.as_ref().map_or(0, |connections| connections.tracker.totals().connections)
    }
}

/// A connection as one of its packets shows it that is this when it is sent and when it is delivered.
fn first(original: Tuple, delivered: Tuple, key: &FlowKey, reply: bool, from: u32) -> Known {
    let home = Some(if reply { MacAddr(key.eth_dst) } else { MacAddr(key.eth_src) });
    Known { label: label(0, from, NOWHERE), original, delivered, home, error: None, reply, outdated: false }
}
