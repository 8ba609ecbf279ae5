//! Access lists for measuring: many rules of which none matches the traffic, and not for one reason only.
//!
//! As in ClassBench's filter sets (Taylor and Turner, INFOCOM 2005) a rule has two prefixes, two ranges of ports and a
//! protocol. Half of them fit the traffic but for its destination address, a quarter but for its destination port, and a
//! quarter but for its protocol, so that a cache has to look at all of these.
//!
//! A list says the same to each switch in that one's language: ClassBench's and lasthop's own, OpenFlow, nftables.

use crate::pipelines::Pipeline;
use std::fmt::Write;

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every packet is judged by itself.
    Stateless,
    /// Rules judge what opens a connection; what was answered passes.
    Stateful,
    /// Stateful, and for Open vSwitch in somebody's tables: two guests, whose list and ports have to be passed.
    Tables(Pipeline),
    /// Stateless; the rules are about the very flows that are played, so that these need many masks. Instead of rules,
    /// masks are counted: one, or [`MASKS`].
    Masks,
}

/// Masks of a list that needs many.
pub const MASKS: usize = 30;

/// An access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    kind: Kind,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    src: ([u8; 4], u8),
    dst: ([u8; 4], u8),
    sport: (u16, u16),
    /// First and last, a power of two of them, beginning at a multiple of their number: OpenFlow has masks, not ranges.
    dport: (u16, u16),
    proto: u8,
    permits: bool,
}

/// Every address, and every port.
const ANYWHERE: ([u8; 4], u8) = ([0; 4], 0);
const ANY: (u16, u16) = (0, u16::MAX);
/// The table of Open vSwitch in which a packet that has passed the list is sent on, where the list is in tables of its own.
pub const ONWARDS: &str = "table=2,";

const TCP: u8 = 6;
const UDP: u8 = 17;

impl List {
    /// `count` rules (or masks), always the same.
    pub fn generate(kind: Kind, count: usize) -> Self {
        let rules = if kind == Kind::Masks { masks(count) } else { classes(count) };
        Self { kind, rules }
    }

    /// Whether packets that pass are sent on by the table [`ONWARDS`] of Open vSwitch, and not by the list's own.
    pub fn has_tables(&self) -> bool {
        self.kind != Kind::Stateless
    }

    /// What `lasthop acl load` reads, and the name of its format.
    pub fn lasthop(&self) -> (String, &'static str) {
        if self.kind == Kind::Stateless { (self.classbench(), "classbench") } else { (self.native(), "lasthop") }
    }

    /// As a filter set of ClassBench.
    pub fn classbench(&self) -> String {
        let mut text = String::new();
        for r in &self.rules {
            let prefix = |([a, b, c, d], len): ([u8; 4], u8)| format!("{a}.{b}.{c}.{d}/{len}");
            let (src, dst, (low, high), proto) = (prefix(r.src), prefix(r.dst), r.dport, r.proto);
            let _ = writeln!(text, "@{src}\t{dst}\t0 : 65535\t{low} : {high}\t{proto:#04x}/0xFF\t0x0000/0x0000");
        }
        text
    }

    fn is_stateful(&self) -> bool {
        matches!(self.kind, Kind::Stateful | Kind::Tables(_))
    }

    /// In lasthop's own language.
    fn native(&self) -> String {
        let mut text = String::from(if self.is_stateful() { "stateful\n" } else { "" });
        for r in &self.rules {
            let _ = write!(text, "{} from-guest {}", if r.permits { "permit" } else { "deny" }, protocol(r.proto));
            for (word, ([a, b, c, d], len), (low, high)) in [("from", r.src, r.sport), ("to", r.dst, r.dport)] {
                let _ = match (len, (low, high)) {
                    (0, ANY) => continue,
                    (0, _) => write!(text, " {word} any"),
                    _ => write!(text, " {word} {a}.{b}.{c}.{d}/{len}"),
                };
                if (low, high) != ANY {
                    let _ = write!(text, " port {low}-{high}");
                }
            }
            text += "\n";
        }
        text
    }

    /// As a table of nftables at the bridge's forward hook. What asks for connections is a table of IPv4, to which the kernel
    /// hands bridged packets (`bridge-nf-call-iptables`), as a bridge has no connection tracking in every kernel.
    pub fn nftables(&self) -> String {
        let stateful = self.is_stateful();
        let mut text = format!("table {} bench {{ chain forward {{\n", if stateful { "ip" } else { "bridge" });
        text += "type filter hook forward priority 0; policy accept;\n";
        if stateful {
            text += "ct state established,related accept\nct state invalid drop\n";
        }
        for r in &self.rules {
            let proto = protocol(r.proto);
            for (field, ([a, b, c, d], len)) in [("saddr", r.src), ("daddr", r.dst)] {
                if len > 0 {
                    let _ = write!(text, "ip {field} {a}.{b}.{c}.{d}/{len} ");
                }
            }
            let _ = write!(text, "meta l4proto {proto} ");
            for (field, (low, high)) in [("sport", r.sport), ("dport", r.dport)] {
                if (low, high) != ANY {
                    let _ = write!(text, "{proto} {field} {low}-{high} ");
                }
            }
            text += if r.permits { "accept\n" } else { "drop\n" };
        }
        text + "}\n}\n"
    }

    /// As flows of Open vSwitch, above priority 10. A stateful list tracks what is IP, lets pass what is answered, and commits what
    /// opens a connection and is not dropped.
    pub fn flows(&self) -> String {
        let mut text = String::new();
        let (matches, to) = match self.kind {
            Kind::Stateless => ("", 2),
            Kind::Masks => {
                text += "priority=1,actions=resubmit(,2)\n";
                ("", 2)
            }
            Kind::Stateful => {
                text += "priority=5,ip,actions=ct(table=1)\npriority=1,actions=resubmit(,2)\n\
                         table=1,priority=60001,ct_state=+trk+est,actions=resubmit(,2)\n\
                         table=1,priority=60001,ct_state=+trk+rel,actions=resubmit(,2)\n\
                         table=1,priority=60000,ct_state=+trk+inv,actions=drop\n\
                         table=1,priority=5,ip,ct_state=+trk+new,actions=ct(commit),resubmit(,2)\n";
                ("table=1,ct_state=+trk+new,", 2)
            }
            Kind::Tables(whose) => {
                text += &whose.flows(2);
                whose.list()
            }
        };
        for (i, r) in self.rules.iter().enumerate() {
            let _ = write!(text, "{matches}priority={},{}", 10 + self.rules.len() - i, protocol(r.proto));
            for (field, ([a, b, c, d], len)) in [("nw_src", r.src), ("nw_dst", r.dst)] {
                if len > 0 {
                    let _ = write!(text, ",{field}={a}.{b}.{c}.{d}/{len}");
                }
            }
            for (field, (low, high)) in [("tp_src", r.sport), ("tp_dst", r.dport)] {
                if (low, high) != ANY {
                    let _ = write!(text, ",{field}={low:#x}/{:#x}", !(high - low));
                }
            }
            let _ =
                if r.permits { writeln!(text, ",actions=resubmit(,{to})") } else { writeln!(text, ",actions=drop") };
        }
        text
    }
}

fn protocol(number: u8) -> &'static str {
    if number == TCP { "tcp" } else { "udp" }
}

/// Rules of which none matches.
fn classes(count: usize) -> Vec<Rule> {
    let mut state = 0x5eed_1a57_4095_u64;
    let mut random = move |below: u32| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32) % below
    };
    let mut rules = Vec::new();
    while rules.len() < count {
        let i = rules.len();
        // Our guests are in 10/8.
        let ours = [10, 0, 0, 0];
        let src_len = [0, 8, 8, 8][random(4) as usize];
        let src = (if src_len == 0 { [0; 4] } else { ours }, src_len);
        let (dst, dport, proto) = match i % 4 {
            0 | 2 => {
                let len = [16, 20, 24, 28, 32][random(5) as usize];
                let address = u32::from_be_bytes([172, 16 + random(16) as u8, random(256) as u8, random(256) as u8]);
                let address = (address & (u32::MAX << (32 - len))).to_be_bytes();
                ((address, len as u8), range(&mut random), if random(3) == 0 { TCP } else { UDP })
            }
            1 => (([10, 0, 0, 0], 8), range(&mut random), UDP),
            _ => (([10, 0, 0, 0], 8), ANY, TCP),
        };
        let rule = Rule { src, dst, sport: ANY, dport, proto, permits: false };
        // The third kind has few forms: let it differ in its source.
        let rule =
            if i % 4 == 3 { Rule { src: ([10, random(256) as u8, random(256) as u8, 0], 24), ..rule } } else { rule };
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}
/// Rules about the flows that are played between ports 0 and 1 (`lasthop_loadgen`: the low half of the source address counts
/// blocks of 1024 source ports from 1024 on), so that they need `count` masks: one, or [`MASKS`].
///
/// Each packet has to be told from the first rule by its protocol, and from the next two by its whole source address. Of many sources, rules then differ from
/// the packets in the destination address only, at the 1st, 2nd, 3rd or 4th byte, or in the destination port only, at one of its first
/// 6, 10 or 16 bits: 20 combinations. The last rules compare one source port in each 64, so that all 16 bits of it count; half of the sources
/// are spared the last of these, and need 10 bits there: another 10 masks.
fn masks(count: usize) -> Vec<Rule> {
    let any = Rule { src: ANYWHERE, dst: ANYWHERE, sport: ANY, dport: ANY, proto: UDP, permits: true };
    let last = Rule { sport: (1984, 1984), ..any };
    let mut rules = vec![Rule { proto: TCP, permits: false, ..any }];
    rules.extend([1, 2].map(|port| Rule { src: ([10, port, 0, 255], 32), ..any }));
    let sources = [1, 2].into_iter().flat_map(|port| (0..64).map(move |k| (port, k)));
    for (port, k) in sources.filter(|_| count > 1) {
        let (other, from) = (3 - port, Rule { src: ([10, port, 0, k], 32), permits: false, ..any });
        let to =
            [None, Some([172, 16, 0, 1]), Some([10, 99, 0, 1]), Some([10, other, 99, 1]), Some([10, other, 0, 99])];
        let dport = [None, Some(0x8009), Some(0x0109), Some(8)];
        let combination = usize::from(k) % 20;
        rules.extend(to[combination % 5].map(|dst| Rule { dst: (dst, 32), ..from }));
        rules.extend(dport[combination / 5].map(|at| Rule { dport: (at, at), ..from }));
        if combination < 10 {
            rules.push(Rule { src: from.src, ..last });
        }
    }
    rules.extend((0..15).map(|block| 1024 + 64 * block).map(|at| Rule { sport: (at, at), ..any }));
    if count == 1 {
        rules.push(last);
    }
    rules
}

/// Never port 9, which the traffic goes to.
fn range(random: &mut impl FnMut(u32) -> u32) -> (u16, u16) {
    let bits = [0, 0, 0, 2, 4, 8][random(6) as usize];
    let low = ((1024 + random(64_512)) as u16) >> bits << bits;
    (low, low + ((1u32 << bits) - 1) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_matches_the_traffic_and_both_forms_say_the_same() {
        let list = List::generate(Kind::Stateless, 1000);
        assert_eq!(list, List::generate(Kind::Stateless, 1000));
        assert_eq!(list.rules.len(), 1000);
        let inside = |address: [u8; 4], (prefix, len): ([u8; 4], u8)| {
            let mask = if len == 0 { 0 } else { u32::MAX << (32 - len) };
            u32::from_be_bytes(address) & mask == u32::from_be_bytes(prefix) & mask
        };
        for r in &list.rules {
            let hit = inside([10, 2, 0, 0], r.dst) && r.proto == UDP && (r.dport.0..=r.dport.1).contains(&9);
            assert!(!hit, "{r:?}");
            assert_eq!(r.dport.0 & (r.dport.1 - r.dport.0), 0, "no mask for {r:?}");
        }
        assert_eq!(list.classbench().lines().count(), 1000);
        assert_eq!(list.flows().lines().count(), 1000);
        let one = List {
            kind: Kind::Stateless,
            rules: vec![Rule {
                src: ANYWHERE,
                dst: ([172, 16, 0, 0], 12),
                sport: ANY,
                dport: (2048, 2063),
                proto: UDP,
                permits: false,
            }],
        };
        assert_eq!(one.classbench(), "@0.0.0.0/0\t172.16.0.0/12\t0 : 65535\t2048 : 2063\t0x11/0xFF\t0x0000/0x0000\n");
        assert_eq!(one.flows(), "priority=11,udp,nw_dst=172.16.0.0/12,tp_dst=0x800/0xfff0,actions=drop\n");
        let rule = "ip daddr 172.16.0.0/12 meta l4proto udp udp dport 2048-2063 drop\n";
        assert!(one.nftables().starts_with("table bridge ") && one.nftables().contains(rule), "{}", one.nftables());
        let one = List { kind: Kind::Stateful, ..one };
        let lasthop = "stateful\ndeny from-guest udp to 172.16.0.0/12 port 2048-2063\n";
        assert_eq!(one.lasthop(), (lasthop.into(), "lasthop"));
        let rule = "table=1,ct_state=+trk+new,priority=11,udp,nw_dst=172.16.0.0/12,tp_dst=0x800/0xfff0,actions=drop\n";
        assert!(one.flows().ends_with(rule), "{}", one.flows());
        let accept = "ct state established,related accept\n";
        assert!(one.nftables().starts_with("table ip ") && one.nftables().contains(accept), "{}", one.nftables());
    }

    /// All that other tables resubmit to is there, and a list's rules are among them.
    #[test]
    fn tables_of_others_lead_to_where_packets_leave() {
        for whose in [Pipeline::Neutron, Pipeline::Ovn] {
            let list = List::generate(Kind::Tables(whose), 50);
            assert_eq!(list.lasthop(), List::generate(Kind::Stateful, 50).lasthop());
            let flows = list.flows();
            let table =
                |line: &str| line.strip_prefix("table=").map_or("0", |rest| rest.split(',').next().unwrap()).to_owned();
            let tables: std::collections::BTreeSet<_> = flows.lines().map(table).collect();
            let mut led = std::collections::BTreeSet::from(["0".to_owned()]);
            for (before, behind) in [("resubmit(,", ')'), ("ct(table=", ',')] {
                led.extend(flows.split(before).skip(1).map(|rest| rest.split(behind).next().unwrap().to_owned()));
            }
            assert!(led.remove("2"), "packets leave");
            assert_eq!(tables, led, "{whose:?}");
            assert_eq!(
                flows
                    .lines()
                    .filter(|line| line.starts_with(whose.list().0) && line.ends_with(",actions=drop"))
                    .count(),
                50
            );
        }
    }

    #[test]
    fn lists_about_the_flows_themselves_deny_none_of_them() {
        let [one, many] = [1, MASKS].map(|count| List::generate(Kind::Masks, count));
        assert!(one.rules.len() < 20 && one.rules[1..].iter().all(|r| r.permits));
        let denies = many.rules.iter().filter(|r| !r.permits && r.proto == UDP);
        for r in denies.clone() {
            let theirs = [([10, 1, 0, 0], 32), ([10, 2, 0, 0], 32)].contains(&r.dst);
            assert!(!theirs && r.dport != (9, 9) && (r.dst != ANYWHERE || r.dport != ANY), "{r:?}");
        }
        assert!(denies.count() > 100);
        assert!(many.lasthop().0.contains("deny from-guest udp from 10.1.0.7/32 to any port 32777-32777\n"));
        assert!(many.flows().contains(",udp,nw_src=10.2.0.255/32,actions=resubmit(,2)\n"), "{}", many.flows());
    }
}
