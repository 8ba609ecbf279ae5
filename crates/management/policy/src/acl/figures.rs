//! How many flows and masks a filter set costs, and what a judgement does. Prints its figures:
//! `cargo test --release -p lasthop-policy figures -- --nocapture`

use super::*;
use crate::acl::tests::frame;
use crate::{Change, Effects, Learning, PortLists};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

/// The same numbers in each run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A filter set in the manner of ClassBench's "acl" seeds: networks of few sites, most sources open, well-known ports.
/// Nothing between hosts of 198.18.0.0/15 (RFC 2544) matches.
fn filter_set(filters: usize) -> String {
    let mut n = Numbers(1);
    let sites: Vec<_> = (0..30).map(|_| (n.next() as u32) & 0x7fff_ffff | 0x0100_0000).collect();
    let mut text = String::new();
    while text.lines().count() < filters {
        let mut prefix = |open: u64| {
            if n.below(100) < open {
                return "0.0.0.0/0".to_owned();
            }
            let site = sites[n.below(30) as usize];
            let len = [16, 21, 23, 24, 27, 30, 32, 32, 32][n.below(9) as usize];
            let addr = (site & 0xffff_0000 | n.next() as u32 & 0xffff) & u32::MAX << (32 - len);
            format!("{}/{len}", Ipv4Addr::from(addr))
        };
        let (src, dst) = (prefix(40), prefix(5));
        if src == dst {
            continue;
        }
        let (proto, ports) = [("0x06/0xff", true), ("0x11/0xff", true), ("0x01/0xff", false), ("0x00/0x00", false)]
            [[0, 0, 0, 0, 0, 0, 1, 1, 2, 3][n.below(10) as usize]];
        let port = match n.below(10) {
            _ if !ports => "0 : 65535".to_owned(),
            0 => "1024 : 65535".to_owned(),
            1 | 2 => "0 : 65535".to_owned(),
            3 => format!("{0} : {1}", 6000 + n.below(50), 6100 + n.below(900)),
            _ => [20, 21, 22, 25, 53, 80, 110, 123, 443, 1521, 1221, 5632][n.below(12) as usize].to_string(),
        };
        let port = if port.contains(':') { port } else { format!("{port} : {port}") };
        text += &format!("@{src}\t{dst}\t0 : 65535\t{port}\t{proto}\t0x0000/0x0000\n");
    }
    text
}

fn lists(filters: usize) -> PortLists {
    let set = read_classbench(&filter_set(filters), Action::Deny).unwrap();
    let rules = Rules { rules: set.rules, default: Action::Permit, stateful: false, nat: Vec::new() };
    [(filters > 0).then(|| (Scope::Guests, Arc::new(List::new(rules, &Default::default())))), None]
}

/// A policy with two guests that know each other, and the flows that it has asked for.
struct Switch {
    policy: Learning,
    flows: HashMap<FlowMask, HashSet<FlowKey>>,
    misses: u64,
}

impl Switch {
    fn new(lists: &PortLists) -> Self {
        let mut switch = Self { policy: Learning::default(), flows: HashMap::new(), misses: 0 };
        let mut out = Effects::default();
        for port in [1, 2].map(PortId) {
            switch.policy.set_lists(port, lists.clone());
            switch.policy.port(port, true, 0, &mut out);
        }
        switch.packet(&back(frame("198.18.0.2", "198.18.0.1", 17, 1, 2)));
        switch.flows.clear();
        switch
    }

    fn packet(&mut self, key: &FlowKey) {
        if self.flows.iter().any(|(mask, flows)| flows.contains(&key.masked(mask))) {
            return;
        }
        let mut out = Effects::default();
        self.misses += 1;
        self.policy.miss(self.misses, key, 0, &mut out);
        for change in out.changes {
            match change {
                Change::Put(spec) => _ = self.flows.entry(spec.mask).or_default().insert(spec.key),
                Change::Del(key, mask) => _ = self.flows.get_mut(&mask).map(|f| f.remove(&key)),
                Change::Clear => self.flows.clear(),
            }
        }
    }

    fn flow_count(&self) -> usize {
        self.flows.values().map(HashSet::len).sum()
    }
}

/// From the second guest to the first.
fn back(key: FlowKey) -> FlowKey {
    FlowKey { in_port: 2, eth_src: key.eth_dst, eth_dst: key.eth_src, ..key }
}

fn host(n: u64) -> String {
    Ipv4Addr::from(0xc612_0000 | (n as u32 & 0x1_ffff)).to_string()
}

#[test]
fn flows_and_masks_of_a_thousand_rules() {
    let lists = lists(1000);
    type Connection = fn(&mut Numbers) -> FlowKey;
    let scenarios: [(&str, Connection); 4] = [
        ("ports of one pair of addresses, UDP", |n| {
            frame("198.18.0.1", "198.18.0.2", 17, 1024 + n.below(60_000) as u16, 1024 + n.below(60_000) as u16)
        }),
        ("clients of one server port, TCP", |n| frame(&host(n.next()), "198.18.0.2", 6, n.next() as u16, 8080)),
        ("any addresses of 198.18.0.0/15, any ports, UDP", |n| {
            frame(&host(n.next()), &host(n.next()), 17, n.next() as u16, n.next() as u16)
        }),
        ("the same, UDP and TCP", |n| {
            let proto = if n.below(2) == 0 { 6 } else { 17 };
            frame(&host(n.next()), &host(n.next()), proto, n.next() as u16, n.next() as u16)
        }),
    ];
    for (name, tuple) in scenarios {
        let (mut n, mut switch) = (Numbers(7), Switch::new(&lists));
        for _ in 0..100_000 {
            switch.packet(&tuple(&mut n));
        }
        let (flows, masks) = (switch.flow_count(), switch.flows.len());
        println!("1000 rules, none matching; 100 000 connections, {name}: {flows} flows, {masks} masks");
        assert!(flows <= 3000 && masks <= 32, "{name}: {flows} flows, {masks} masks");
    }
}

/// Rules that overlap in every field, and traffic close to them.
#[test]
fn traffic_close_to_its_rules() {
    let mut text = String::new();
    for len in [8, 16, 24, 32] {
        for port in [1, 40, 2000, 40_000] {
            let [from, to] = [("198.18.0.9", len), ("198.18.77.0", 40 - len)]
                .map(|(addr, len)| Prefix::new(addr.parse().unwrap(), len).unwrap());
            text += &format!("deny ip from {from} port {port} to {to} port {port}\n");
        }
    }
    let list = List::new(read(&text, None).unwrap().take(Direction::FromGuest).unwrap(), &Default::default());
    let lists = [Some((Scope::Guests, Arc::new(list))), None];
    let (mut n, mut switch) = (Numbers(7), Switch::new(&lists));
    for _ in 0..50_000 {
        let (a, b) = (198 - (n.below(8) == 0) as u32, n.next() as u8);
        let dst = format!("{a}.18.{}.{}", [77, b][n.below(2) as usize], n.below(12));
        let port = |n: &mut Numbers| [1, 40, 41, 2000, 2001, 40_000, 3][n.below(7) as usize];
        let proto = [6, 17, 1, 132, 47][n.below(5) as usize];
        let key = frame(&format!("198.18.0.{}", n.below(12)), &dst, proto, port(&mut n), port(&mut n));
        switch.packet(&if n.below(2) == 0 { key } else { back(key) });
    }
    println!("rules that ask for everything: {} flows, {} masks", switch.flow_count(), switch.policy.mask_count());
    assert!(switch.policy.mask_count() <= crate::MASKS_MAX + 1);
    assert_eq!(switch.policy.flow_count(), switch.flow_count());
}

#[test]
fn what_a_new_flow_costs() {
    for filters in [0, 1, 100, 1000] {
        let lists = lists(filters);
        let mut policy = Learning::default();
        let mut out = Effects::default();
        for port in [1, 2].map(PortId) {
            policy.set_lists(port, lists.clone());
            policy.port(port, true, 0, &mut out);
        }
        let mut n = Numbers(3);
        let keys: Vec<_> =
            (0..2000).map(|_| frame(&host(n.next()), &host(n.next()), 17, n.next() as u16, n.next() as u16)).collect();
        let mut best = u128::MAX;
        for round in 0..5 {
            let start = Instant::now();
            for (i, key) in keys.iter().enumerate() {
                let mut out = Effects::default();
                policy.miss(i as u64, key, round * 1000, &mut out);
                assert_eq!(out.resumes.len(), 1);
            }
            best = best.min(start.elapsed().as_nanos() / keys.len() as u128);
        }
        println!("{filters} rules, none matching: {}.{:03} us for a new flow", best / 1000, best % 1000);
    }
}
