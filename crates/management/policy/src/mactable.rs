//! Where stations live: (VLAN, address) → port, with ageing, limits and flap damping.

use crate::vlan_mac::VlanMac;
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// An address that has not been seen as a source for this long is forgotten (IEEE 802.1Q's default), in ms.
pub const AGEING_MS: u64 = 300_000;
/// Moves between ports allowed within [`MOVE_WINDOW_MS`]. A migrating VM needs one or two.
pub const MAX_MOVES: u32 = 4;
/// See [`MAX_MOVES`], in ms.
pub const MOVE_WINDOW_MS: u64 = 10_000;
/// How long an address that moved too often is held where it was before, in ms.
pub const HOLD_MS: u64 = 30_000;

/// A learned address, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacView {
    /// The address.
    pub mac: MacAddr,
    /// VLAN id; 0 without a tag.
    pub vlan: u16,
    /// Where it lives.
    pub port: PortId,
    /// Milliseconds since it was last seen as a source.
    pub age_ms: u64,
    /// It moved too often and is held at this port for now.
    pub held: bool,
    /// Somebody says that it lives there: it neither ages nor moves.
    pub is_static: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub port: PortId,
    pub seen_ms: u64,
    held_until_ms: u64,
    window_ms: u64,
    moves: u32,
    /// Where it lived when the window began.
    home: PortId,
    /// It neither ages nor moves, and counts for no port's limit.
    pub is_static: bool,
}

impl Entry {
    fn new(port: PortId, seen_ms: u64, is_static: bool) -> Self {
        Self { port, seen_ms, held_until_ms: 0, window_ms: 0, moves: 0, home: port, is_static }
    }
}

/// What came of seeing a source address on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It lives there already.
    Known,
    /// It is new.
    New,
    /// It lived at `from` and now at `to`; `to` is not the port of this packet when a flapping address went home.
    Moved { from: PortId, to: PortId },
    /// It is held elsewhere: not learned here.
    Held,
    /// It is static elsewhere: not learned here.
    Static(PortId),
    /// The port or the table is full: not learned.
    OverLimit,
}

/// What ports of one kind share: guests, or uplinks.
#[derive(Debug)]
struct Pool {
    /// Addresses that they may hold together.
    total: usize,
    /// And each of them.
    per_port: usize,
    /// Number of entries of every known port.
    counts: BTreeMap<PortId, usize>,
    held: usize,
}

impl Pool {
    fn new((total, per_port): (usize, usize)) -> Self {
        Self { total, per_port, counts: BTreeMap::new(), held: 0 }
    }

    /// Addresses one port may hold, now that there are as many ports as there are.
    fn port_limit(&self) -> usize {
        self.per_port.min(self.total / self.counts.len().max(1)).max(1)
    }

    fn has_room(&self, port: PortId) -> bool {
        self.counts.get(&port).is_some_and(|n| *n < self.port_limit()) && self.held < self.total
    }

    /// Ports that hold more than they may, since there are more of them.
    fn beyond(&self) -> impl Iterator<Item = PortId> + '_ {
        let limit = self.port_limit();
        self.counts.iter().filter(move |(_, n)| **n > limit).map(|(port, _)| *port)
    }

    fn add(&mut self, port: PortId) {
        if let Some(n) = self.counts.get_mut(&port) {
            *n += 1;
            self.held += 1;
        }
    }

    fn take(&mut self, port: PortId) {
        if let Some(n) = self.counts.get_mut(&port).filter(|n| **n > 0) {
            *n -= 1;
            self.held -= 1;
        }
    }
}

/// How far a round through the table is that forgets what is old ([`MacTable::age`]).
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The last one that was looked at.
    at: Option<VlanMac>,
    /// All were.
    is_through: bool,
    /// Ports that hold more than they may: when their addresses were seen, as far as these were looked at.
    beyond: BTreeMap<PortId, Vec<(u64, VlanMac)>>,
    /// What is to go of these, unless it is seen until then.
    chosen: Vec<(u64, VlanMac)>,
    forgot: bool,
}

impl Round {
    /// All that was to go has gone.
    pub fn is_over(&self) -> bool {
        self.is_through && self.chosen.is_empty()
    }

    /// Something has gone.
    pub fn forgot(&self) -> bool {
        self.forgot
    }
}

/// An uplink's addresses are those of a whole network, and there may be as many as it likes: it shares room with uplinks
/// only, so that none of them is at the cost of a guest.
#[derive(Debug)]
pub(crate) struct MacTable {
    entries: BTreeMap<VlanMac, Entry>,
    guests: Pool,
    uplinks: Pool,
}

impl MacTable {
    /// Of guests and of uplinks: how many addresses they may hold together, and each of them.
    pub fn new(guests: (usize, usize), uplinks: (usize, usize)) -> Self {
        Self { entries: BTreeMap::new(), guests: Pool::new(guests), uplinks: Pool::new(uplinks) }
    }

    /// Makes a port known. It stays of one kind until [`MacTable::remove_port`].
    pub fn add_port(&mut self, port: PortId, is_uplink: bool) {
        let pool = if is_uplink { &mut self.uplinks } else { self.pool_mut(port) };
        pool.counts.entry(port).or_insert(0);
    }

    fn pool(&self, port: PortId) -> &Pool {
        if self.uplinks.counts.contains_key(&port) { &self.uplinks } else { &self.guests }
    }

    fn pool_mut(&mut self, port: PortId) -> &mut Pool {
        if self.uplinks.counts.contains_key(&port) { &mut self.uplinks } else { &mut self.guests }
    }

    /// Forgets a port and its addresses, which are returned, but for static ones.
    pub fn remove_port(&mut self, port: PortId) -> Vec<(u16, MacAddr)> {
        let pool = self.pool_mut(port);
        pool.held -= pool.counts.remove(&port).unwrap_or(0);
        let gone: Vec<_> = self.entries.extract_if(.., |_, e| e.port == port && !e.is_static).collect();
        gone.into_iter().map(|(of, _)| (of.vlan(), of.mac())).collect()
    }

    /// The address lives at this port for good, unless it is static elsewhere already. Where it has been learned before.
    pub fn add_static(&mut self, vlan: u16, mac: MacAddr, port: PortId) -> Option<PortId> {
        let before = self.entries.get(&VlanMac::new(vlan, mac)).map(|e| (e.port, e.is_static));
        if before.is_some_and(|(_, is_static)| is_static) {
            return None;
        }
        self.entries.insert(VlanMac::new(vlan, mac), Entry::new(port, 0, true));
        let (from, _) = before?;
        self.pool_mut(from).take(from);
        Some(from)
    }

    /// Forgets an address, static or not; where it lived.
    pub fn forget(&mut self, vlan: u16, mac: MacAddr) -> Option<PortId> {
        let Entry { port, is_static, .. } = self.entries.remove(&VlanMac::new(vlan, mac))?;
        if !is_static {
            self.pool_mut(port).take(port);
        }
        Some(port)
    }

    /// So many addresses that come next, by VLAN and address.
    pub fn behind(&self, after: Option<(u16, MacAddr)>, many: usize) -> Vec<(u16, MacAddr)> {
        let from = after.map_or(Unbounded, |(vlan, mac)| Excluded(VlanMac::new(vlan, mac)));
        self.entries.range((from, Unbounded)).take(many).map(|(s, _)| (s.vlan(), s.mac())).collect()
    }

    /// Static addresses of a port.
    pub fn statics(&self, port: PortId) -> Vec<(u16, MacAddr)> {
        self.entries.iter().filter(|(_, e)| e.is_static && e.port == port).map(|(s, _)| (s.vlan(), s.mac())).collect()
    }

    /// Addresses that have been learned at a port.
    pub fn learned_at(&self, port: PortId) -> impl Iterator<Item = (u16, MacAddr)> + '_ {
        let learned = self.entries.iter().filter(move |(_, e)| !e.is_static && e.port == port);
        learned.map(|(of, _)| (of.vlan(), of.mac()))
    }

    /// How many have been learned: static ones do not count.
    pub fn learned(&self) -> usize {
        self.guests.held + self.uplinks.held
    }

    pub fn get(&self, vlan: u16, mac: MacAddr) -> Option<&Entry> {
        self.entries.get(&VlanMac::new(vlan, mac))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn count(&self, port: PortId) -> usize {
        self.pool(port).counts.get(&port).copied().unwrap_or(0)
    }

    /// Addresses the port may hold, now that there are as many of its kind as there are.
    pub fn port_limit(&self, port: PortId) -> usize {
        self.pool(port).port_limit()
    }

    fn has_room(&self, port: PortId) -> bool {
        self.pool(port).has_room(port)
    }

    /// What [`MacTable::learn`] would answer, without changing anything.
    pub fn would_learn(&self, vlan: u16, mac: MacAddr, port: PortId, now_ms: u64) -> Learned {
        let Some(e) = self.entries.get(&VlanMac::new(vlan, mac)) else {
            return if self.has_room(port) { Learned::New } else { Learned::OverLimit };
        };
        if e.port == port {
            return Learned::Known;
        }
        if e.is_static {
            return Learned::Static(e.port);
        }
        if now_ms < e.held_until_ms {
            return Learned::Held;
        }
        if !self.has_room(port) {
            return Learned::OverLimit;
        }
        let in_window = now_ms.saturating_sub(e.window_ms) < MOVE_WINDOW_MS;
        if !in_window || e.moves < MAX_MOVES || e.home == port {
            return Learned::Moved { from: e.port, to: port };
        }
        if e.home != e.port && self.has_room(e.home) {
            Learned::Moved { from: e.port, to: e.home }
        } else {
            Learned::Held
        }
    }

    /// `mac` was the source of a packet from `port`.
    pub fn learn(&mut self, vlan: u16, mac: MacAddr, port: PortId, now_ms: u64) -> Learned {
        let learned = self.would_learn(vlan, mac, port, now_ms);
        match learned {
            Learned::OverLimit | Learned::Static(_) => {}
            Learned::New => {
                self.entries.insert(VlanMac::new(vlan, mac), Entry::new(port, now_ms, false));
                self.pool_mut(port).add(port);
            }
            Learned::Known | Learned::Held | Learned::Moved { .. } => {
                let Some(e) = self.entries.get_mut(&VlanMac::new(vlan, mac)) else { return learned };
                if learned == Learned::Known {
                    e.seen_ms = e.seen_ms.max(now_ms);
                    return learned;
                }
                if learned == Learned::Held && now_ms < e.held_until_ms {
                    return learned;
                }
                if e.moves == 0 || now_ms.saturating_sub(e.window_ms) >= MOVE_WINDOW_MS {
                    (e.window_ms, e.moves, e.home) = (now_ms, 0, e.port);
                }
                e.moves += 1;
                if e.moves > MAX_MOVES {
                    e.held_until_ms = now_ms.saturating_add(HOLD_MS);
                    e.moves = 0;
                }
                if let Learned::Moved { from, to } = learned {
                    e.port = to;
                    e.seen_ms = now_ms;
                    self.pool_mut(from).take(from);
                    self.pool_mut(to).add(to);
                }
            }
        }
        learned
    }

    /// Traffic of the station was noticed at `seen_ms` without a miss. Ignored for any other port.
    pub fn refresh(&mut self, vlan: u16, mac: MacAddr, port: PortId, seen_ms: u64) {
        if let Some(e) = self.entries.get_mut(&VlanMac::new(vlan, mac))
            && e.port == port
        {
            e.seen_ms = e.seen_ms.max(seen_ms);
        }
    }

    /// A flow left by an earlier control process says the station was seen at `port`: the latest sighting counts.
    /// Returns the port it moved from, if it moved.
    pub fn adopt(&mut self, vlan: u16, mac: MacAddr, port: PortId, seen_ms: u64) -> Option<PortId> {
        if !self.has_room(port) {
            return None;
        }
        match self.entries.get_mut(&VlanMac::new(vlan, mac)) {
            None => {
                self.learn(vlan, mac, port, seen_ms);
                None
            }
            Some(e) if e.port == port || e.is_static || e.seen_ms >= seen_ms => {
                self.refresh(vlan, mac, port, seen_ms);
                None
            }
            Some(e) => {
                let from = e.port;
                (e.port, e.seen_ms) = (port, seen_ms);
                self.pool_mut(from).take(from);
                self.pool_mut(port).add(port);
                Some(from)
            }
        }
    }

    /// A round through the table that forgets what has not been seen for [`AGEING_MS`], and what a port holds beyond its share since there are more
    /// ports, what it has not seen for longest first: a port that was added must find room, however the others keep theirs in use.
    pub fn begin_round(&self) -> Round {
        let beyond = [&self.guests, &self.uplinks].into_iter().flat_map(Pool::beyond);
        Round { beyond: beyond.map(|port| (port, Vec::new())).collect(), ..Round::default() }
    }

    /// Goes on with a round by so many places of the table. Returns what lived where.
    pub fn age(&mut self, round: &mut Round, places: usize, now_ms: u64) -> Vec<(u16, MacAddr, PortId)> {
        let mut gone = Vec::new();
        if !round.is_through {
            let from = round.at.map_or(Unbounded, Excluded);
            let old = |e: &Entry| !e.is_static && now_ms.saturating_sub(e.seen_ms) >= AGEING_MS;
            let (mut seen, mut last) = (0, None);
            for (station, e) in self.entries.range((from, Unbounded)).take(places) {
                (seen, last) = (seen + 1, Some(*station));
                if old(e) {
                    gone.push((station.vlan(), station.mac(), e.port));
                } else if let Some(ages) = round.beyond.get_mut(&e.port).filter(|_| !e.is_static) {
                    ages.push((e.seen_ms, *station));
                }
            }
            (round.at, round.is_through) = (last, seen < places);
            self.remove(&gone);
            if round.is_through {
                self.choose_beyond(round);
            }
        }
        // What is left of this slice.
        let many = places.saturating_sub(gone.len()).min(round.chosen.len());
        for (seen_ms, station) in round.chosen.split_off(round.chosen.len() - many) {
            let there = self.entries.get(&station).filter(|e| e.seen_ms == seen_ms && !e.is_static);
            let Some(port) = there.map(|e| e.port) else { continue };
            if self.count(port) > self.port_limit(port) {
                let left = (station.vlan(), station.mac(), port);
                self.remove(&[left]);
                gone.push(left);
            }
        }
        round.forgot |= !gone.is_empty();
        gone
    }

    /// The round has seen all addresses of ports that hold too many.
    fn choose_beyond(&self, round: &mut Round) {
        for (port, mut ages) in std::mem::take(&mut round.beyond) {
            let many = self.count(port).saturating_sub(self.port_limit(port)).min(ages.len());
            if many > 0 && many < ages.len() {
                ages.select_nth_unstable(many);
            }
            ages.truncate(many);
            round.chosen.extend(ages);
        }
    }

    fn remove(&mut self, gone: &[(u16, MacAddr, PortId)]) {
        for (vlan, mac, port) in gone {
            self.entries.remove(&VlanMac::new(*vlan, *mac));
            self.pool_mut(*port).take(*port);
        }
    }

    pub fn iter(&self, now_ms: u64) -> impl Iterator<Item = MacView> + '_ {
        self.entries.iter().map(move |(of, e)| MacView {
            mac: of.mac(),
            vlan: of.vlan(),
            port: e.port,
            age_ms: now_ms.saturating_sub(e.seen_ms),
            held: now_ms < e.held_until_ms,
            is_static: e.is_static,
        })
    }
}
