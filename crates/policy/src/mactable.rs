//! Where stations live: (VLAN, address) → port, with ageing, limits and flap damping.

use lasthop_types::{MacAddr, PortId};
use std::collections::BTreeMap;

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
    /// The port or the table is full: not learned.
    OverLimit,
}

#[derive(Debug)]
pub(crate) struct MacTable {
    entries: BTreeMap<(u16, MacAddr), Entry>,
    /// Number of entries of every known port.
    counts: BTreeMap<PortId, usize>,
    total: usize,
    per_port: usize,
}

impl MacTable {
    pub fn new(total: usize, per_port: usize) -> Self {
        Self { entries: BTreeMap::new(), counts: BTreeMap::new(), total, per_port }
    }

    pub fn add_port(&mut self, port: PortId) {
        self.counts.entry(port).or_insert(0);
    }

    /// Forgets a port and its addresses, which are returned.
    pub fn remove_port(&mut self, port: PortId) -> Vec<(u16, MacAddr)> {
        self.counts.remove(&port);
        let gone: Vec<_> = self.entries.iter().filter(|(_, e)| e.port == port).map(|(k, _)| *k).collect();
        for k in &gone {
            self.entries.remove(k);
        }
        gone
    }

    pub fn get(&self, vlan: u16, mac: MacAddr) -> Option<&Entry> {
        self.entries.get(&(vlan, mac))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn count(&self, port: PortId) -> usize {
        self.counts.get(&port).copied().unwrap_or(0)
    }

    /// Addresses one port may hold, now that there are as many ports as there are.
    pub fn port_limit(&self) -> usize {
        self.per_port.min(self.total / self.counts.len().max(1)).max(1)
    }

    fn has_room(&self, port: PortId) -> bool {
        self.counts.get(&port).is_some_and(|n| *n < self.port_limit())
    }

    fn change_count(&mut self, port: PortId, by: isize) {
        if let Some(n) = self.counts.get_mut(&port) {
            *n = n.saturating_add_signed(by);
        }
    }

    /// What [`MacTable::learn`] would answer, without changing anything.
    pub fn would_learn(&self, vlan: u16, mac: MacAddr, port: PortId, now_ms: u64) -> Learned {
        let Some(e) = self.entries.get(&(vlan, mac)) else {
            let room = self.has_room(port) && self.entries.len() < self.total;
            return if room { Learned::New } else { Learned::OverLimit };
        };
        if e.port == port {
            return Learned::Known;
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
            Learned::OverLimit => {}
            Learned::New => {
                let e = Entry { port, seen_ms: now_ms, held_until_ms: 0, window_ms: 0, moves: 0, home: port };
                self.entries.insert((vlan, mac), e);
                self.change_count(port, 1);
            }
            Learned::Known | Learned::Held | Learned::Moved { .. } => {
                let Some(e) = self.entries.get_mut(&(vlan, mac)) else { return learned };
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
                    self.change_count(from, -1);
                    self.change_count(to, 1);
                }
            }
        }
        learned
    }

    /// Traffic of the station was noticed at `seen_ms` without a miss. Ignored for any other port.
    pub fn refresh(&mut self, vlan: u16, mac: MacAddr, port: PortId, seen_ms: u64) {
        if let Some(e) = self.entries.get_mut(&(vlan, mac))
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
        match self.entries.get_mut(&(vlan, mac)) {
            None => {
                self.learn(vlan, mac, port, seen_ms);
                None
            }
            Some(e) if e.port == port || e.seen_ms >= seen_ms => {
                self.refresh(vlan, mac, port, seen_ms);
                None
            }
            Some(e) => {
                let from = e.port;
                (e.port, e.seen_ms) = (port, seen_ms);
                self.change_count(from, -1);
                self.change_count(port, 1);
                Some(from)
            }
        }
    }

    /// Forgets what has not been seen for [`AGEING_MS`]; returns what lived where.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(u16, MacAddr, PortId)> {
        let old = |e: &Entry| now_ms.saturating_sub(e.seen_ms) >= AGEING_MS;
        let gone: Vec<_> =
            self.entries.iter().filter(|(_, e)| old(e)).map(|((vlan, mac), e)| (*vlan, *mac, e.port)).collect();
        for (vlan, mac, port) in &gone {
            self.entries.remove(&(*vlan, *mac));
            self.change_count(*port, -1);
        }
        gone
    }

    pub fn iter(&self, now_ms: u64) -> impl Iterator<Item = MacView> + '_ {
        self.entries.iter().map(move |((vlan, mac), e)| MacView {
            mac: *mac,
            vlan: *vlan,
            port: e.port,
            age_ms: now_ms.saturating_sub(e.seen_ms),
            held: now_ms < e.held_until_ms,
        })
    }
}
