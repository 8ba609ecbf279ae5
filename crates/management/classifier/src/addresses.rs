//! Addresses of both IP versions, as ranges in order: whether one is among them, in time that goes with the logarithm of their number.

use lasthop_frame::ethertype::IPV6;
use std::net::IpAddr;

/// First and last address of a range, both included; those of IPv4 in the last 32 bits.
type Span = (u128, u128);

/// Addresses that a pattern asks for together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    v4: Box<[Span]>,
    v6: Box<[Span]>,
}

impl Addresses {
    /// All addresses that begin as one of these do, in so many bits. They may overlap.
    pub fn of(prefixes: impl IntoIterator<Item = (IpAddr, u32)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (address, len) in prefixes {
            let (spans, bits, width) = match address {
                IpAddr::V4(a) => (&mut v4, u128::from(a.to_bits()), 32),
                IpAddr::V6(a) => (&mut v6, a.to_bits(), 128),
            };
            let rest = u128::MAX >> (128 - width) & u128::MAX.checked_shr(128 - width + len).unwrap_or(0);
            spans.push((bits & !rest, bits | rest));
        }
        Self { v4: joined(v4), v6: joined(v6) }
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Addresses that are in one of the two and not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        Self { v4: differing(&self.v4, &other.v4), v6: differing(&self.v6, &other.v6) }
    }

    /// Of the IP version of frames with this EtherType; ARP's are IPv4's.
    fn spans(&self, eth_type: u16) -> &[Span] {
        if eth_type == IPV6 { &self.v6 } else { &self.v4 }
    }

    /// The first range that does not end before this address.
    fn reaches(&self, eth_type: u16, address: u128) -> Option<Span> {
        let spans = self.spans(eth_type);
        spans.get(spans.partition_point(|(_, last)| *last < address)).copied()
    }

    /// Some address of a range is among them.
    pub fn touches(&self, eth_type: u16, (first, last): (u128, u128)) -> bool {
        self.reaches(eth_type, first).is_some_and(|(low, _)| low <= last)
    }

    /// Every address of a range is.
    pub fn covers(&self, eth_type: u16, (first, last): (u128, u128)) -> bool {
        self.reaches(eth_type, first).is_some_and(|(low, high)| low <= first && last <= high)
    }
}

/// The addresses that agree with one in the first bits of a mask, as far as its ones go without a gap.
pub fn span(eth_type: u16, address: u128, mask: u128) -> (u128, u128) {
    let ones = if eth_type == IPV6 { u128::MAX } else { u128::from(u32::MAX) };
    let len = (mask | !ones).leading_ones();
    let rest = u128::MAX.checked_shr(len).unwrap_or(0) & ones;
    (address & ones & !rest, address & ones | rest)
}

/// In order, and those that overlap or touch as one.
fn joined(mut spans: Vec<Span>) -> Box<[Span]> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (first, last) in spans {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => joined.push((first, last)),
        }
    }
    joined.into()
}

/// What only one of the two has: between two neighbouring ends of ranges an address is in neither, in one, or in both.
fn differing(a: &[Span], b: &[Span]) -> Box<[Span]> {
    let within = |spans: &[Span], at: u128| {
        spans.get(spans.partition_point(|(_, last)| *last < at)).is_some_and(|(first, _)| *first <= at)
    };
    let ends = a.iter().chain(b).flat_map(|(first, last)| [Some(*first), last.checked_add(1)]);
    let mut starts: Vec<u128> = ends.flatten().collect();
    starts.sort_unstable();
    starts.dedup();
    let lasts = starts.iter().skip(1).map(|next| next - 1).chain([u128::MAX]);
    let spans = starts.iter().copied().zip(lasts).filter(|(first, _)| within(a, *first) != within(b, *first));
    joined(spans.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::ethertype::IPV4;
    use proptest::prelude::*;

    /// Short addresses, so that ranges meet: the whole of one byte.
    fn prefixes() -> impl Strategy<Value = Vec<(u8, u32)>> {
        prop::collection::vec((any::<u8>(), 24u32..=32), 0..8)
    }

    fn set(prefixes: &[(u8, u32)]) -> Addresses {
        Addresses::of(prefixes.iter().map(|(byte, len)| (IpAddr::from([10, 0, 0, *byte]), *len)))
    }

    /// By definition: some prefix agrees in its first bits.
    fn has(prefixes: &[(u8, u32)], address: u8) -> bool {
        prefixes.iter().any(|(byte, len)| u32::from(byte ^ address) >> (32 - len) == 0)
    }

    fn at(byte: u8) -> u128 {
        0x0a00_0000 | u128::from(byte)
    }

    proptest! {
        #[test]
        fn ranges_are_what_their_prefixes_are(a in prefixes(), b in prefixes(), from in any::<u8>(), to in any::<u8>()) {
            let (sets, differ) = (set(&a), set(&a).difference(&set(&b)));
            for byte in 0..=255u8 {
                prop_assert_eq!(sets.touches(IPV4, (at(byte), at(byte))), has(&a, byte));
                prop_assert_eq!(sets.covers(IPV4, (at(byte), at(byte))), has(&a, byte));
                prop_assert_eq!(differ.touches(IPV4, (at(byte), at(byte))), has(&a, byte) != has(&b, byte));
                prop_assert!(!sets.touches(IPV6, (at(byte), at(byte))), "the other version's");
            }
            let (low, high) = (from.min(to), from.max(to));
            prop_assert_eq!(sets.touches(IPV4, (at(low), at(high))), (low..=high).any(|byte| has(&a, byte)));
            prop_assert_eq!(sets.covers(IPV4, (at(low), at(high))), (low..=high).all(|byte| has(&a, byte)));
        }
    }

    #[test]
    fn the_longest_and_the_shortest_prefixes() {
        let all = Addresses::of([(IpAddr::from([10, 0, 0, 0]), 0), ("fd00::1".parse().unwrap(), 0)]);
        assert!(all.covers(IPV4, (0, u128::from(u32::MAX))) && all.covers(IPV6, (0, u128::MAX)));
        assert!(all.difference(&all).is_empty() && !all.difference(&Addresses::default()).is_empty());
        let one = Addresses::of([("fd00::1".parse().unwrap(), 128)]);
        let fd00_1 = 0xfd00 << 112 | 1;
        assert!(one.covers(IPV6, (fd00_1, fd00_1)) && !one.touches(IPV6, (fd00_1 + 1, u128::MAX)));
        assert_eq!(span(IPV4, 0x0a01_0203, u128::MAX << 8), (0x0a01_0200, 0x0a01_02ff));
        assert_eq!(span(IPV4, 0x0a01_0203, 0), (0, u128::from(u32::MAX)));
        assert_eq!(span(IPV6, fd00_1, u128::MAX), (fd00_1, fd00_1));
    }
}
