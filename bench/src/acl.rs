//! Access lists for measuring: many rules of which none matches the traffic, and not for one reason only.
//!
//! As in ClassBench's filter sets (Taylor and Turner, INFOCOM 2005) a rule has two prefixes, two ranges of ports and a
//! protocol. Half of them fit the traffic but for its destination address, a quarter but for its destination port, and a
//! quarter but for its protocol, so that a cache has to look at all of these.

use std::fmt::Write;

/// An access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    src: ([u8; 4], u8),
    dst: ([u8; 4], u8),
    /// First and last, a power of two of them, beginning at a multiple of their number: OpenFlow has masks, not ranges.
    dport: (u16, u16),
    proto: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl List {
    /// `count` rules, always the same.
    pub fn generate(count: usize) -> Self {
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
                    let address =
                        u32::from_be_bytes([172, 16 + random(16) as u8, random(256) as u8, random(256) as u8]);
                    let address = (address & (u32::MAX << (32 - len))).to_be_bytes();
                    ((address, len as u8), range(&mut random), if random(3) == 0 { TCP } else { UDP })
                }
                1 => (([10, 0, 0, 0], 8), range(&mut random), UDP),
                _ => (([10, 0, 0, 0], 8), (0, u16::MAX), TCP),
            };
            let rule = Rule { src, dst, dport, proto };
            // The third kind has few forms: let it differ in its source.
            let rule = if i % 4 == 3 {
                Rule { src: ([10, random(256) as u8, random(256) as u8, 0], 24), ..rule }
            } else {
                rule
            };
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        Self { rules }
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

    /// As flows of Open vSwitch that drop, above priority 10.
    pub fn flows(&self) -> String {
        let mut text = String::new();
        for (i, r) in self.rules.iter().enumerate() {
            let proto = if r.proto == TCP { "tcp" } else { "udp" };
            let _ = write!(text, "priority={},{proto}", 10 + self.rules.len() - i);
            for (field, ([a, b, c, d], len)) in [("nw_src", r.src), ("nw_dst", r.dst)] {
                if len > 0 {
                    let _ = write!(text, ",{field}={a}.{b}.{c}.{d}/{len}");
                }
            }
            let (low, high) = r.dport;
            if (low, high) != (0, u16::MAX) {
                let _ = write!(text, ",tp_dst={low:#x}/{:#x}", !(high - low));
            }
            text += ",actions=drop\n";
        }
        text
    }
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
        let list = List::generate(1000);
        assert_eq!(list, List::generate(1000));
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
            rules: vec![Rule { src: ([0; 4], 0), dst: ([172, 16, 0, 0], 12), dport: (2048, 2063), proto: UDP }],
        };
        assert_eq!(one.classbench(), "@0.0.0.0/0\t172.16.0.0/12\t0 : 65535\t2048 : 2063\t0x11/0xFF\t0x0000/0x0000\n");
        assert_eq!(one.flows(), "priority=11,udp,nw_dst=172.16.0.0/12,tp_dst=0x800/0xfff0,actions=drop\n");
    }
}
