//! First match, and the bits of the frame that it took to know: the mask of the widest flow that is still right.
//!
//! Before the rule that matches, every rule is shown not to match. Where bits that the mask already has show it, nothing
//! is added; otherwise the cheapest proof is: the beginning of an address or a port up to the first bit that differs,
//! or the protocol. So a thousand rules about other networks cost a flow a few bits of its addresses, and not the five
//! fields that an exact flow would have.
//!
//! The switch tries one mask after the other, so there must be few: prefixes are rounded up to the steps below. Whoever
//! installs flows bounds the number of masks besides (see `flows.rs`).
//!
//! The time it takes is proportional to the rules that are tried. No allocation.

use super::parse::Rules;
use super::rule::{Action, Ether, IPV4, IPV6, Mac, Prefix, Range, Rule, SCTP, TCP, UDP};
use lasthop_frame::{FlowKey, FlowMask};

/// Lengths to which the beginning of an IPv4 address is rounded up.
const IPV4_STEPS: [u32; 4] = [8, 16, 24, 32];
/// The same for IPv6.
const IPV6_STEPS: [u32; 4] = [32, 48, 64, 128];
/// The same for ports.
const PORT_STEPS: [u32; 3] = [6, 10, 16];
/// A bit of a port costs as much as this many of an address: ports differ from flow to flow, networks do not.
const PORT_COST: u32 = 3;

/// All that may be found wrong with a frame's headers.
const ANOMALIES: u16 = FlowKey::MALFORMED_L3 | FlowKey::MALFORMED_L4 | FlowKey::DEEP_VLAN | FlowKey::DEEP_EXTENSIONS;
const VID: u16 = 0x0fff;

/// What a list says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This rule, counted from 0, matched first.
    Rule(usize, Action),
    /// None did.
    Default(Action),
    /// Headers are malformed, so that rules which look at them cannot be trusted: dropped.
    Malformed,
}

impl Decision {
    /// The frame may pass.
    pub fn permits(self) -> bool {
        matches!(self, Self::Rule(_, Action::Permit) | Self::Default(Action::Permit))
    }
}

/// Rules of one direction, ready to judge by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    rules: Vec<Rule>,
    tests: Vec<Test>,
    default: Action,
    /// Some rule looks behind the VLAN tags.
    deep: bool,
    /// Some rule looks at ports or ICMP types.
    transport: bool,
}

impl List {
    /// From rules.
    pub fn new(rules: Rules) -> Self {
        let Rules { rules, default } = rules;
        Self {
            tests: rules.iter().map(Test::new).collect(),
            default,
            deep: rules.iter().any(|r| r.ether != Ether::Any),
            transport: rules.iter().any(Rule::looks_at_transport),
            rules,
        }
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What holds where no rule matches.
    pub fn default(&self) -> Action {
        self.default
    }

    /// What the list says, without asking why.
    pub fn decide(&self, key: &FlowKey) -> Decision {
        // With every bit in it, nothing is ever added.
        self.first_match(key, &mut Seen::all())
    }

    /// The same, and adds to `mask` the bits that it takes to know it: every key that agrees with `key` in the bits of
    /// the mask that is left gets the same decision.
    pub fn judge(&self, key: &FlowKey, mask: &mut FlowMask) -> Decision {
        let mut seen = Seen::of(&mask.0);
        let decision = self.first_match(key, &mut seen);
        seen.add_to(&mut mask.0);
        decision
    }

    fn first_match(&self, key: &FlowKey, seen: &mut Seen) -> Decision {
        if self.deep {
            seen.anomalies = true;
            seen.eth_type = true;
            if key.anomalies & ANOMALIES != 0 {
                return Decision::Malformed;
            }
        }
        seen.later |= self.transport;
        let frame = Frame::new(key);
        for (i, test) in self.tests.iter().enumerate() {
            if frame.meets(test, seen) {
                return Decision::Rule(i, test.action);
            }
        }
        Decision::Default(self.default)
    }
}

/// The IP protocols a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proto {
    Any,
    One(u8),
    /// Those that have ports.
    Ported,
}

/// A rule as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    src: u128,
    src_mask: u128,
    dst: u128,
    dst_mask: u128,
    action: Action,
    proto: Proto,
    ether: Ether,
    vlan: Option<u16>,
    transport: bool,
    macs: bool,
    sport: Box<[Range]>,
    dport: Box<[Range]>,
    src_mac: u64,
    src_mac_mask: u64,
    dst_mac: u64,
    dst_mac_mask: u64,
}

impl Test {
    fn new(rule: &Rule) -> Self {
        let (src, src_mask) = rule.src.as_ref().map_or((0, 0), bits);
        let (dst, dst_mask) = rule.dst.as_ref().map_or((0, 0), bits);
        let mac = |m: &Option<Mac>| m.map_or((0, 0), |m| (mac_bits(m.addr.0), mac_bits(m.mask.0)));
        let ((src_mac, src_mac_mask), (dst_mac, dst_mac_mask)) = (mac(&rule.src_mac), mac(&rule.dst_mac));
        Self {
            src,
            src_mask,
            dst,
            dst_mask,
            action: rule.action,
            proto: match rule.proto {
                Some(p) => Proto::One(p),
                None if rule.looks_at_transport() => Proto::Ported,
                None => Proto::Any,
            },
            ether: rule.ether,
            vlan: rule.vlan,
            transport: rule.looks_at_transport(),
            macs: src_mac_mask | dst_mac_mask != 0,
            sport: rule.sport.clone().into(),
            dport: rule.dport.clone().into(),
            src_mac,
            src_mac_mask,
            dst_mac,
            dst_mac_mask,
        }
    }
}

fn bits(prefix: &Prefix) -> (u128, u128) {
    let len = u32::from(prefix.bits());
    match prefix.addr() {
        std::net::IpAddr::V4(a) => (u128::from(a.to_bits()), first_bits(len, 32)),
        std::net::IpAddr::V6(a) => (a.to_bits(), first_bits(len, 128)),
    }
}

/// The first `len` bits of a number that has `width` (1 to 128).
fn first_bits(len: u32, width: u32) -> u128 {
    let ones = u128::MAX >> (128 - width);
    ones & !ones.checked_shr(len).unwrap_or(0)
}

fn mac_bits(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn in_ranges(port: u16, ranges: &[Range]) -> bool {
    ranges.is_empty() || ranges.iter().any(|(low, high)| (*low..=*high).contains(&port))
}

/// The ports that agree with `port` in the bits of `mask`, which are its first ones.
fn interval(port: u16, mask: u16) -> Range {
    (port & mask, port | !mask)
}

fn apart(ranges: &[Range], (low, high): Range) -> bool {
    ranges.iter().all(|(l, h)| high < *l || *h < low)
}

fn within(ranges: &[Range], (low, high): Range) -> bool {
    ranges.is_empty() || ranges.iter().any(|(l, h)| *l <= low && high <= *h)
}

/// The shortest of the steps whose interval around `port` has the property. The longest is the port itself.
fn port_step(port: u16, mask: u16, holds: impl Fn(Range) -> bool) -> u16 {
    let steps = PORT_STEPS.iter().map(|len| mask | first_bits(*len, 16) as u16);
    steps.into_iter().find(|m| holds(interval(port, *m))).unwrap_or(u16::MAX)
}

/// The first step that is at least `len` long.
fn round_up(len: u32, steps: &[u32]) -> u32 {
    steps.iter().copied().find(|s| *s >= len).unwrap_or(len)
}

/// Bits of a frame that have been looked at.
#[derive(Clone, Debug)]
struct Seen {
    src: u128,
    dst: u128,
    src_mac: u64,
    dst_mac: u64,
    /// First bits only.
    sport: u16,
    dport: u16,
    vlan: bool,
    eth_type: bool,
    proto: bool,
    anomalies: bool,
    later: bool,
}

impl Seen {
    fn all() -> Self {
        Self {
            src: u128::MAX,
            dst: u128::MAX,
            src_mac: u64::MAX,
            dst_mac: u64::MAX,
            sport: u16::MAX,
            dport: u16::MAX,
            vlan: true,
            eth_type: true,
            proto: true,
            anomalies: true,
            later: true,
        }
    }

    fn of(m: &FlowKey) -> Self {
        let first_ones = |m: u16| first_bits(m.leading_ones(), 16) as u16;
        Self {
            src: u128::from_be_bytes(m.ip_src),
            dst: u128::from_be_bytes(m.ip_dst),
            src_mac: mac_bits(m.eth_src),
            dst_mac: mac_bits(m.eth_dst),
            sport: first_ones(m.l4_src),
            dport: first_ones(m.l4_dst),
            vlan: m.vlan_tci & VID == VID,
            eth_type: m.eth_type == u16::MAX,
            proto: m.ip_proto == u8::MAX,
            anomalies: m.anomalies & ANOMALIES == ANOMALIES,
            later: m.ip_frag & FlowKey::FRAG_LATER != 0,
        }
    }

    fn add_to(&self, m: &mut FlowKey) {
        let or = |to: &mut [u8], from: &[u8]| to.iter_mut().zip(from).for_each(|(t, f)| *t |= f);
        or(&mut m.ip_src, &self.src.to_be_bytes());
        or(&mut m.ip_dst, &self.dst.to_be_bytes());
        or(&mut m.eth_src, &self.src_mac.to_be_bytes()[2..]);
        or(&mut m.eth_dst, &self.dst_mac.to_be_bytes()[2..]);
        m.l4_src |= self.sport;
        m.l4_dst |= self.dport;
        let whole = |seen: bool, bits: u16| if seen { bits } else { 0 };
        m.vlan_tci |= whole(self.vlan, VID);
        m.eth_type |= whole(self.eth_type, u16::MAX);
        m.anomalies |= whole(self.anomalies, ANOMALIES);
        m.ip_proto |= if self.proto { u8::MAX } else { 0 };
        m.ip_frag |= if self.later { FlowKey::FRAG_LATER } else { 0 };
    }
}

/// A frame as numbers.
struct Frame {
    src: u128,
    dst: u128,
    src_mac: u64,
    dst_mac: u64,
    sport: u16,
    dport: u16,
    vlan: u16,
    eth_type: u16,
    proto: u8,
    later: bool,
}

/// In what a frame is not as a rule asks: yes or no, or the bits in which it differs.
struct Differs {
    ether: bool,
    proto: bool,
    vlan: bool,
    sport: bool,
    dport: bool,
    src: u128,
    dst: u128,
    src_mac: u64,
    dst_mac: u64,
}

/// What shows that a rule does not match.
enum Proof {
    Ether,
    Vlan,
    Proto,
    SrcMac(u64),
    DstMac(u64),
    Src(u128),
    Dst(u128),
    Sport(u16),
    Dport(u16),
}

impl Frame {
    fn new(key: &FlowKey) -> Self {
        Self {
            src: u128::from_be_bytes(key.ip_src),
            dst: u128::from_be_bytes(key.ip_dst),
            src_mac: mac_bits(key.eth_src),
            dst_mac: mac_bits(key.eth_dst),
            sport: key.l4_src,
            dport: key.l4_dst,
            vlan: key.vlan_tci & VID,
            eth_type: key.eth_type,
            proto: key.ip_proto,
            later: key.ip_frag & FlowKey::FRAG_LATER != 0,
        }
    }

    fn is_ip(&self) -> bool {
        matches!(self.eth_type, IPV4 | IPV6)
    }

    /// The first bits of an address of this frame's IP version.
    fn address_bits(&self, len: u32) -> u128 {
        if self.eth_type == IPV6 {
            first_bits(round_up(len, &IPV6_STEPS), 128)
        } else {
            first_bits(round_up(len, &IPV4_STEPS), 32)
        }
    }

    /// Beginning of an address up to the first bit set in `difference`, which is not 0.
    fn up_to(&self, difference: u128) -> u128 {
        // ARP's addresses are IPv4's; a difference above 32 bits is between versions, which the EtherType shows first.
        let ahead = if self.eth_type == IPV6 { 0 } else { 96 };
        self.address_bits((difference.leading_zeros() + 1).saturating_sub(ahead))
    }

    /// Whether the frame matches; adds to `seen` what shows it.
    #[inline]
    fn meets(&self, t: &Test, seen: &mut Seen) -> bool {
        let src = (self.src ^ t.src) & t.src_mask;
        let dst = (self.dst ^ t.dst) & t.dst_mask;
        if (src & seen.src) | (dst & seen.dst) != 0 {
            return false;
        }
        self.looks_closer(t, seen, src, dst)
    }

    fn looks_closer(&self, t: &Test, seen: &mut Seen, src: u128, dst: u128) -> bool {
        let ether = match t.ether {
            Ether::Any => true,
            Ether::Ip => self.is_ip(),
            Ether::Type(wanted) => self.eth_type == wanted,
        };
        let proto = match t.proto {
            Proto::Any => true,
            Proto::One(wanted) => self.proto == wanted,
            Proto::Ported => matches!(self.proto, TCP | UDP | SCTP),
        };
        let vlan = t.vlan.is_none_or(|wanted| self.vlan == wanted);
        let (src_mac, dst_mac) = if t.macs {
            ((self.src_mac ^ t.src_mac) & t.src_mac_mask, (self.dst_mac ^ t.dst_mac) & t.dst_mac_mask)
        } else {
            (0, 0)
        };
        // A later fragment has no ports: see the module's documentation.
        let later = self.later && t.transport;
        if later && t.action == Action::Deny {
            return false;
        }
        let (sport, dport) = (later || in_ranges(self.sport, &t.sport), later || in_ranges(self.dport, &t.dport));

        if ether && proto && vlan && sport && dport && src | dst == 0 && src_mac | dst_mac == 0 {
            self.note_match(t, seen, later);
            return true;
        }
        let shown = !ether && seen.eth_type
            || !proto && seen.proto
            || !vlan && seen.vlan
            || (src_mac & seen.src_mac) | (dst_mac & seen.dst_mac) != 0
            || !dport && apart(&t.dport, interval(self.dport, seen.dport))
            || !sport && apart(&t.sport, interval(self.sport, seen.sport));
        if !shown {
            let differs = Differs {
                ether: !ether,
                proto: !proto,
                vlan: !vlan,
                sport: !sport,
                dport: !dport,
                src,
                dst,
                src_mac,
                dst_mac,
            };
            self.show(t, seen, &differs);
        }
        false
    }

    /// Has the fewest bits looked at that show that a rule does not match.
    fn show(&self, t: &Test, seen: &mut Seen, differs: &Differs) {
        let &Differs { ether, proto, vlan, sport, dport, src, dst, src_mac, dst_mac } = differs;
        let mut best = (u32::MAX, Proof::Ether);
        let mut offer = |holds: bool, cost: u32, proof: Proof| {
            if holds && cost < best.0 {
                best = (cost, proof);
            }
        };
        // Few values each: what they add to the number of masks and flows is small.
        offer(ether, 0, Proof::Ether);
        offer(vlan, 1, Proof::Vlan);
        offer(proto, 2, Proof::Proto);
        for (difference, have, whose) in
            [(src, seen.src, Proof::Src as fn(u128) -> Proof), (dst, seen.dst, Proof::Dst as fn(u128) -> Proof)]
        {
            if difference != 0 {
                let bits = self.up_to(difference) | have;
                offer(true, 3 + (bits & !have).count_ones(), whose(bits));
            }
        }
        for (difference, have, whose) in [
            (src_mac, seen.src_mac, Proof::SrcMac as fn(u64) -> Proof),
            (dst_mac, seen.dst_mac, Proof::DstMac as fn(u64) -> Proof),
        ] {
            if difference != 0 {
                let bits = mac_up_to(difference) | have;
                offer(true, 3 + (bits & !have).count_ones(), whose(bits));
            }
        }
        for (differs, port, have, ranges, whose) in [
            (dport, self.dport, seen.dport, &t.dport, Proof::Dport as fn(u16) -> Proof),
            (sport, self.sport, seen.sport, &t.sport, Proof::Sport as fn(u16) -> Proof),
        ] {
            if differs {
                let bits = port_step(port, have, |i| apart(ranges, i));
                offer(true, 3 + PORT_COST * (bits & !have).count_ones(), whose(bits));
            }
        }
        match best.1 {
            Proof::Ether => seen.eth_type = true,
            Proof::Vlan => seen.vlan = true,
            Proof::Proto => seen.proto = true,
            Proof::SrcMac(bits) => seen.src_mac = bits,
            Proof::DstMac(bits) => seen.dst_mac = bits,
            Proof::Src(bits) => seen.src = bits,
            Proof::Dst(bits) => seen.dst = bits,
            Proof::Sport(bits) => seen.sport = bits,
            Proof::Dport(bits) => seen.dport = bits,
        }
    }

    /// Everything that the rule asks for.
    fn note_match(&self, t: &Test, seen: &mut Seen, later: bool) {
        seen.eth_type |= t.ether != Ether::Any;
        seen.proto |= t.proto != Proto::Any;
        seen.vlan |= t.vlan.is_some();
        seen.src_mac |= t.src_mac_mask;
        seen.dst_mac |= t.dst_mac_mask;
        for (mask, have) in [(t.src_mask, &mut seen.src), (t.dst_mask, &mut seen.dst)] {
            if mask & !*have != 0 {
                *have |= self.address_bits(mask.count_ones());
            }
        }
        if !later {
            for (port, have, ranges) in
                [(self.sport, &mut seen.sport, &t.sport), (self.dport, &mut seen.dport, &t.dport)]
            {
                if !within(ranges, interval(port, *have)) {
                    *have = port_step(port, *have, |i| within(ranges, i));
                }
            }
        }
    }
}

/// Whole bytes of an Ethernet address up to the first bit set in `difference`, which is not 0.
fn mac_up_to(difference: u64) -> u64 {
    let bytes = (difference.leading_zeros() - 16) / 8 + 1;
    first_bits(bytes * 8, 48) as u64
}
