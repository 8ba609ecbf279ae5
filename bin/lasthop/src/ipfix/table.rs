//! Flows that are known, what has been told of each, and when it is to be told more.

use super::key::Key;
use lasthop_api::Flow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

/// Why a record was written (flowEndReason, element 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No packet came for the idle time.
    Idle = 1,
    /// The flow goes on, and the active time is over.
    Active = 2,
    /// Its connection has ended.
    End = 3,
    /// It was withdrawn for another reason, or nothing is exported any more.
    Forced = 4,
    /// The switch had no room for it, or is another one: its last packets are not known.
    Lost = 5,
}

/// Milliseconds after which control withdraws a flow that nobody uses.
const AGEING_MS: u64 = 300_000;

/// When records are written, in ms, and how many flows are followed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub active_ms: u64,
    pub idle_ms: u64,
    pub flows: usize,
    /// One flow of so many is exported.
    pub sample: u64,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub packets: u64,
    pub octets: u64,
    /// Milliseconds since 1970.
    pub start_ms: u64,
    pub end_ms: u64,
    pub reason: Reason,
}

/// What could not be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Flows of which nothing was told, or not their last packets.
    pub flows: u64,
    /// Of these, as far as they are known.
    pub packets: u64,
    pub octets: u64,
}

impl Missed {
    pub fn add(&mut self, flows: u64, packets: u64, octets: u64) {
        self.flows += flows;
        self.packets += packets;
        self.octets += octets;
    }
}

#[derive(Debug)]
struct Known {
    key: Key,
    /// As last heard.
    packets: u64,
    octets: u64,
    /// As last told.
    told: (u64, u64),
    /// Between which times, in ms since 1970, the packets came that have not been told.
    start_ms: u64,
    end_ms: u64,
    /// The last look in which it was.
    seen: u64,
    /// It had carried less than before.
    shrunk: bool,
}

/// Flows by what they look at.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    flows: HashMap<u128, Known>,
    hashers: [RandomState; 2],
    /// The look that is under way, and the last one that came to its end: one that broke off is as if it had not been.
    look: u64,
    complete: u64,
    /// When the look before began, in ms since 1970.
    before_ms: u64,
    now_ms: u64,
    /// What flows have carried that were there before us is not told.
    first: bool,
    pub missed: Missed,
}

impl Known {
    /// What has not been told yet, if there is something.
    fn record(&mut self, reason: Reason) -> Option<Record> {
        let (packets, octets) = (self.packets - self.told.0, self.octets.saturating_sub(self.told.1));
        self.told = (self.packets, self.octets);
        let start_ms = self.start_ms.min(self.end_ms);
        let record = Record { key: self.key.clone(), packets, octets, start_ms, end_ms: self.end_ms, reason };
        (packets > 0).then_some(record)
    }
}

impl Table {
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        let (flows, hashers) = (HashMap::new(), [RandomState::new(), RandomState::new()]);
        Self {
            limits,
            flows,
            hashers,
            look: 0,
            complete: 0,
            before_ms: now_ms,
            now_ms,
            first: true,
            missed: Missed::default(),
        }
    }

    /// What stands for the flow: two that look at the same hash alike, and others do not, but for one pair in 2^128.
    fn name(&self, flow: &Flow) -> u128 {
        let named = || flow.fields.iter().map(|field| (&field.name, &field.value)).collect::<Vec<_>>();
        let [low, high] = &self.hashers;
        u128::from(low.hash_one(named())) | (u128::from(high.hash_one(named())) << 64)
    }

    /// Those that are exported; the same as long as this process lives.
    fn is_sampled(&self, name: u128) -> bool {
        (name as u64).is_multiple_of(self.limits.sample)
    }

    /// A look at all flows begins.
    pub fn begin(&mut self, now_ms: u64) {
        self.look = self.complete + 1;
        (self.before_ms, self.now_ms) = (self.now_ms, now_ms);
    }

    /// A flow is in the switch. Its record, if one is due.
    pub fn see(&mut self, flow: &Flow, port: impl Fn(&str) -> u32) -> Option<Record> {
        let name = self.name(flow);
        if !self.is_sampled(name) {
            return None;
        }
        let (packets, octets) = (flow.packets, flow.bytes);
        let (look, now_ms, limits, first) = (self.look, self.now_ms, self.limits, self.first);
        let (before_ms, room) = (self.before_ms, self.flows.len() < limits.flows);
        let known = match self.flows.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            // It is counted when it ends.
            Entry::Vacant(_) if !room => return None,
            Entry::Vacant(place) => {
                let told = if first { (packets, octets) } else { (0, 0) };
                let (key, end_ms) = (Key::of(flow, port), now_ms.saturating_sub(flow.idle_ms));
                let (packets, octets, start_ms, seen, shrunk) = (told.0, told.1, before_ms, look, false);
                place.insert(Known { key, packets, octets, told, start_ms, end_ms, seen, shrunk })
            }
        };
        known.seen = look;
        if packets < known.packets {
            // It ended meanwhile, and there is another: that it did is told in a moment. If not, what it carried last is not known.
            if !std::mem::replace(&mut known.shrunk, true) {
                return None;
            }
            let lost = known.record(Reason::Lost);
            (known.packets, known.octets, known.told, known.shrunk) = (0, 0, (0, 0), false);
            self.missed.flows += 1;
            if lost.is_some() {
                return lost;
            }
        }
        known.shrunk = false;
        if packets > known.packets {
            if known.packets == known.told.0 {
                known.start_ms = before_ms;
            }
            (known.packets, known.octets) = (packets, octets);
            known.end_ms = now_ms.saturating_sub(flow.idle_ms);
        }
        if flow.idle_ms >= limits.idle_ms {
            known.record(Reason::Idle)
        } else if now_ms.saturating_sub(known.start_ms) >= limits.active_ms && known.packets > known.told.0 {
            let record = known.record(Reason::Active);
            known.start_ms = now_ms;
            record
        } else {
            None
        }
    }

    /// A flow has ended. The rest of what it carried, if there is any.
    pub fn ended(&mut self, flow: &Flow, port: impl Fn(&str) -> u32) -> Option<Record> {
        let name = self.name(flow);
        if !self.is_sampled(name) {
            return None;
        }
        let (packets, octets) = (flow.packets, flow.bytes);
        let end_ms = self.now_ms.saturating_sub(flow.idle_ms);
        let mut known = match self.flows.remove(&name) {
            Some(known) => known,
            None if self.flows.len() >= self.limits.flows => {
                self.missed.add(1, packets, octets);
                return None;
            }
            None => {
                let (key, start_ms, told) = (Key::of(flow, port), self.before_ms, (0, 0));
                Known { key, packets, octets, told, start_ms, end_ms, seen: 0, shrunk: false }
            }
        };
        if packets > known.packets {
            if known.packets == known.told.0 {
                known.start_ms = self.before_ms;
            }
            (known.packets, known.octets, known.end_ms) = (packets, octets, end_ms);
        }
        let reason = match known.key.is_of_connection() {
            _ if flow.idle_ms >= AGEING_MS => Reason::Idle,
            true => Reason::End,
            false => Reason::Forced,
        };
        known.record(reason)
    }

    /// All flows have been looked at, and all that ended before: those that are not there were taken by something that nobody told of.
    pub fn end(&mut self) -> Vec<Record> {
        self.first = false;
        let look = self.look;
        self.complete = look;
        // One that was there the last time may have ended since, and that is told next time.
        let gone = self.flows.extract_if(|_, known| known.seen + 1 < look);
        let mut records = Vec::new();
        for (_, mut known) in gone {
            self.missed.flows += 1;
            records.extend(known.record(Reason::Lost));
        }
        records
    }

    /// Nothing is exported any more: what has not been told of all flows.
    pub fn close(&mut self) -> Vec<Record> {
        self.flows.drain().filter_map(|(_, mut known)| known.record(Reason::Forced)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::Field;

    const LIMITS: Limits = Limits { active_ms: 60_000, idle_ms: 15_000, flows: 2, sample: 1 };

    fn flow(port: u16, packets: u64, idle_ms: u64) -> Flow {
        let field = |name: &str, value: String| Field { name: name.into(), value };
        let fields = vec![
            field("in_port", "vm1".into()),
            field("eth_type", "0x0800".into()),
            field("ip_proto", "17".into()),
            field("l4_dst", port.to_string()),
        ];
        Flow { fields, outputs: vec!["vm2".into()], packets, bytes: packets * 100, idle_ms, ..Flow::default() }
    }

    /// A look in which these are, at this second.
    fn look(table: &mut Table, second: u64, flows: &[Flow]) -> Vec<(u64, Reason)> {
        table.begin(second * 1000);
        let mut records: Vec<_> = flows.iter().filter_map(|flow| table.see(flow, |_| 1)).collect();
        records.extend(table.end());
        records.iter().map(|record| (record.packets, record.reason)).collect()
    }

    fn table() -> Table {
        let mut table = Table::new(LIMITS, 0);
        assert!(look(&mut table, 1, &[]).is_empty());
        table
    }

    #[test]
    fn each_packet_is_told_once() {
        let mut table = table();
        assert!(look(&mut table, 5, &[flow(1, 10, 0)]).is_empty());
        assert!(look(&mut table, 55, &[flow(1, 20, 0)]).is_empty());
        assert_eq!(look(&mut table, 61, &[flow(1, 30, 0)]), [(30, Reason::Active)]);
        assert!(look(&mut table, 70, &[flow(1, 31, 0)]).is_empty());
        assert_eq!(look(&mut table, 90, &[flow(1, 31, 15_000)]), [(1, Reason::Idle)]);
        assert!(look(&mut table, 110, &[flow(1, 31, 35_000)]).is_empty(), "there is nothing to tell");
        let record = table.ended(&flow(1, 36, 10), |_| 1).unwrap();
        assert_eq!((record.packets, record.octets, record.reason), (5, 500, Reason::End));
        assert_eq!((record.start_ms, record.end_ms), (90_000, 109_990));
        assert_eq!((table.flows.len(), table.missed), (0, Missed::default()));
    }

    #[test]
    fn a_flow_that_came_and_went_between_two_looks_is_told() {
        let mut table = table();
        let record = table.ended(&flow(1, 1, 0), |_| 1).unwrap();
        assert_eq!((record.packets, record.octets), (1, 100));
        assert_eq!(table.ended(&flow(2, 0, 0), |_| 1), None, "it carried nothing");
        let idle = table.ended(&flow(3, 1, AGEING_MS), |_| 1).unwrap();
        assert_eq!(idle.reason, Reason::Idle);
    }

    #[test]
    fn what_was_carried_before_is_not_told() {
        let mut table = Table::new(LIMITS, 0);
        assert!(look(&mut table, 100, &[flow(1, 1000, 0)]).is_empty());
        assert_eq!(table.ended(&flow(1, 1007, 0), |_| 1).map(|record| record.packets), Some(7));
    }

    #[test]
    fn flows_that_go_without_a_word_are_counted() {
        let mut table = table();
        look(&mut table, 5, &[flow(1, 10, 0)]);
        assert!(look(&mut table, 10, &[]).is_empty(), "that it has ended may be told");
        assert_eq!(look(&mut table, 15, &[]), [(10, Reason::Lost)]);
        assert_eq!((table.flows.len(), table.missed.flows), (0, 1));
        // A look that broke off says nothing of flows that it has not come to.
        look(&mut table, 16, &[flow(2, 1, 0)]);
        table.begin(17_000);
        table.begin(18_000);
        assert!(table.end().is_empty() && table.ended(&flow(2, 1, 0), |_| 1).is_some());
        // Another switch counts anew.
        look(&mut table, 20, &[flow(1, 10, 0)]);
        assert!(look(&mut table, 25, &[flow(1, 3, 0)]).is_empty());
        assert_eq!(look(&mut table, 30, &[flow(1, 4, 0)]), [(10, Reason::Lost)]);
        assert_eq!(table.missed.flows, 2);
        assert!(look(&mut table, 31, &[flow(1, 4, 0)]).is_empty());
        assert_eq!(table.close().iter().map(|record| record.packets).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn no_more_flows_are_followed_than_there_is_room_for() {
        let mut table = table();
        look(&mut table, 5, &[flow(1, 1, 0), flow(2, 1, 0), flow(3, 5, 0)]);
        assert_eq!(table.flows.len(), 2);
        assert_eq!(table.ended(&flow(3, 9, 0), |_| 1), None);
        assert_eq!(table.missed, Missed { flows: 1, packets: 9, octets: 900 });
    }

    #[test]
    fn one_flow_of_so_many_is_told() {
        let limits = Limits { flows: 100_000, sample: 10, ..LIMITS };
        let mut table = Table::new(limits, 0);
        look(&mut table, 1, &[]);
        let flows: Vec<_> = (0..10_000).map(|port| flow(port, 1, 0)).collect();
        look(&mut table, 2, &flows);
        // A thousand, give and take six standard deviations of 30.
        assert!((820..1180).contains(&table.flows.len()), "{}", table.flows.len());
        let told = flows.iter().filter(|flow| table.ended(flow, |_| 1).is_some()).count();
        assert_eq!((table.flows.len(), table.missed), (0, Missed::default()));
        assert!((820..1180).contains(&told), "the same flows when they end");
    }
}
