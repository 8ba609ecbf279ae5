//! Looking through the table and clearing it, step by step.

use crate::entry::{ASSURED, Found, REPLIED, STATE};
use crate::state::ProtoState;
use crate::tracker::{Tracker, ticks};
use crate::tuple::Tuple;

/// A connection as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The tuple of its first packet.
    pub original: Tuple,
    /// The tuple of the answers.
    pub reply: Tuple,
    /// State of its protocol.
    pub state: ProtoState,
    /// Somebody has answered.
    pub replied: bool,
    /// It is not given up for others.
    pub assured: bool,
    /// Seconds until its time is over.
    pub seconds_left: u32,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// Whose limit it counts towards.
    pub owner: u16,
    /// Its timeout policy.
    pub policy: u8,
}

/// Where a walk through the table goes on; the default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

/// Which connections are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of this zone.
    pub zone: Option<u16>,
    /// The one of which this is a tuple, in either direction.
    pub tuple: Option<Tuple>,
    /// Those of this owner.
    pub owner: Option<u16>,
}

/// A zone's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneStats {
    /// There are.
    pub connections: u32,
    /// There may be; 0: no limit.
    pub limit: u32,
}

impl Tracker {
    /// Shows `see` every connection in the next `places` places, and says where to go on, unless these were the last. A connection that is there all the
    /// time is seen once.
    pub fn dump(&self, from: Cursor, places: u32, now_ms: u64, mut see: impl FnMut(Connection)) -> Option<Cursor> {
        let now = ticks(now_ms);
        self.walk(from, places, now, |found| see(self.connection(&found, now)))
    }

    /// Ends the connections that `filter` means in the next `places` places; where to go on, as [`Tracker::dump`].
    pub fn flush(&self, from: Cursor, places: u32, filter: &Filter, now_ms: u64) -> Option<Cursor> {
        self.flush_if(from, places, now_ms, |found| {
            filter.zone.is_none_or(|zone| zone == found.original.zone())
                && filter.tuple.is_none_or(|tuple| [found.original, found.reply].contains(&tuple))
                && filter.owner.is_none_or(|owner| owner == found.owner)
        })
    }

    /// The same of those that `is_meant`.
    pub fn flush_if(
        &self,
        from: Cursor,
        places: u32,
        now_ms: u64,
        mut is_meant: impl FnMut(&Connection) -> bool,
    ) -> Option<Cursor> {
        let now = ticks(now_ms);
        self.walk(from, places, now, |found| {
            if is_meant(&self.connection(&found, now)) {
                self.end(found.at, found.life);
            }
        })
    }

    /// Ends the connection of which this is a tuple; false if there is none.
    pub fn remove(&self, tuple: &Tuple, now_ms: u64) -> bool {
        let found = self.find(tuple, self.secrets.hash(tuple), ticks(now_ms));
        found.map(|found| self.end(found.at, found.life)).is_some()
    }

    /// The connection of which this is a tuple.
    pub fn get(&self, tuple: &Tuple, now_ms: u64) -> Option<Connection> {
        let now = ticks(now_ms);
        let found = self.find(tuple, self.secrets.hash(tuple), now)?;
        Some(self.connection(&found, now))
    }

    /// How many connections a zone has and may have.
    pub fn zone(&self, zone: u16) -> ZoneStats {
        ZoneStats { connections: self.zones.used(zone), limit: self.zones.limit(zone) }
    }

    fn walk(&self, Cursor(from): Cursor, places: u32, now: u32, mut see: impl FnMut(Found)) -> Option<Cursor> {
        let end = from.saturating_add(places).min(self.entries.len() as u32);
        for at in from..end {
            if let Some(found) = self.entries[at as usize].read(at, 0, None, now) {
                see(found);
            }
        }
        (end < self.entries.len() as u32).then_some(Cursor(end))
    }

    pub(crate) fn connection(&self, found: &Found, now: u32) -> Connection {
        let entry = &self.entries[found.at as usize];
        let (original, status) = (entry.key(0), found.words[STATE]);
        Connection {
            original,
            reply: entry.key(1),
            state: ProtoState::of(original.proto(), &found.words),
            replied: status & REPLIED != 0,
            assured: status & ASSURED != 0,
            seconds_left: Self::left(found.life as u32, now),
            mark: found.mark,
            label: found.label,
            owner: found.owner,
            policy: found.policy,
        }
    }
}
