//! What names one direction of a connection, and its hash.

pub(crate) use lasthop_frame::proto::{ICMP, ICMPV6, SCTP, TCP, UDP};
use lasthop_frame::{FlowKey, ethertype};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Addresses, ports, protocol and zone of the packets of one direction.
///
/// ICMP has no ports. Its messages that have answers, echo above all, carry the identifier in place of the source port, and type (upper byte) and
/// code in place of the destination port, so that request and answer are two directions of one connection.
///
/// Kept as words, in the order that bytes have in memory, to be compared and hashed as such: source, destination, and the rest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tuple(pub(crate) [u64; WORDS]);

pub(crate) const WORDS: usize = 5;
const PROTO: u32 = 32;
const V6: u64 = 1 << 40;
const ZONE: u32 = 48;

impl Tuple {
    /// From its parts. Addresses are as in [`FlowKey`]: IPv4 in the last four bytes.
    pub fn new(addresses: [[u8; 16]; 2], ports: [u16; 2], proto: u8, v6: bool, zone: u16) -> Self {
        let [src, dst] = addresses;
        let mut new = Self([0, 0, 0, 0, u64::from(proto) << PROTO | u64::from(zone) << ZONE]);
        new.0[4] |= if v6 { V6 } else { 0 };
        new.set_src(src);
        new.set_dst(dst);
        new.set_ports(ports);
        new
    }

    /// What a key says. Of ICMP, the identifier is missing.
    #[inline(always)]
    pub(crate) fn of(key: &FlowKey, zone: u16) -> Self {
        let [_, _, _, _, s0, s1, d0, d1, ..] = *key.words();
        let v6 = if key.eth_type == ethertype::IPV6 { V6 } else { 0 };
        let ports = u64::from(key.l4_src) | u64::from(key.l4_dst) << 16;
        Self([s0, s1, d0, d1, ports | u64::from(key.ip_proto) << PROTO | v6 | u64::from(zone) << ZONE])
    }

    /// Source address.
    pub fn src(&self) -> [u8; 16] {
        bytes([self.0[0], self.0[1]])
    }

    /// Destination address.
    pub fn dst(&self) -> [u8; 16] {
        bytes([self.0[2], self.0[3]])
    }

    /// Source and destination port.
    pub fn ports(&self) -> [u16; 2] {
        [self.0[4] as u16, (self.0[4] >> 16) as u16]
    }

    /// IP protocol.
    #[inline]
    pub fn proto(&self) -> u8 {
        (self.0[4] >> PROTO) as u8
    }

    /// The addresses are IPv6's.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.0[4] & V6 != 0
    }

    /// Zone.
    pub fn zone(&self) -> u16 {
        (self.0[4] >> ZONE) as u16
    }

    pub(crate) fn set_src(&mut self, to: [u8; 16]) {
        (self.0[0], self.0[1]) = words(to);
    }

    pub(crate) fn set_dst(&mut self, to: [u8; 16]) {
        (self.0[2], self.0[3]) = words(to);
    }

    pub(crate) fn set_ports(&mut self, [src, dst]: [u16; 2]) {
        self.0[4] = self.0[4] >> 32 << 32 | u64::from(src) | u64::from(dst) << 16;
    }

    /// ICMP of this tuple's family.
    #[inline]
    pub(crate) fn is_icmp(&self) -> bool {
        self.proto() == if self.is_v6() { ICMPV6 } else { ICMP }
    }

    /// What an answer's tuple is. `None` for ICMP messages that have no answer.
    pub fn inverse(&self) -> Option<Self> {
        let [s0, s1, d0, d1, rest] = self.0;
        let [src, dst] = self.ports();
        let mut new = Self([d0, d1, s0, s1, rest]);
        if self.is_icmp() {
            let kind = answer(self.is_v6(), (dst >> 8) as u8)?;
            new.set_ports([src, u16::from(kind) << 8 | dst & 0xff]);
        } else {
            new.set_ports([dst, src]);
        }
        Some(new)
    }
}

/// The type of an ICMP message's answer, or of what it answers: echo, timestamp, information, address mask; node information.
fn answer(v6: bool, kind: u8) -> Option<u8> {
    const PAIRS: [(bool, u8, u8); 6] =
        [(false, 8, 0), (false, 13, 14), (false, 15, 16), (false, 17, 18), (true, 128, 129), (true, 139, 140)];
    PAIRS.iter().find_map(|&(family, asked, answered)| match kind {
        _ if family != v6 => None,
        _ if kind == asked => Some(answered),
        _ if kind == answered => Some(asked),
        _ => None,
    })
}

/// Whether an ICMP message of this type asks for an answer.
pub(crate) fn asks(v6: bool, kind: u8) -> bool {
    if v6 { matches!(kind, 128 | 139) } else { matches!(kind, 8 | 13 | 15 | 17) }
}

fn words(address: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(address);
    (u64::from_ne_bytes((whole as u64).to_le_bytes()), u64::from_ne_bytes(((whole >> 64) as u64).to_le_bytes()))
}

fn bytes(words: [u64; 2]) -> [u8; 16] {
    let [low, high] = words.map(|word| u128::from(u64::from_le_bytes(word.to_ne_bytes())));
    (low | high << 64).to_le_bytes()
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |bytes: [u8; 16]| match bytes {
            [.., a, b, c, d] if !self.is_v6() => std::net::IpAddr::from([a, b, c, d]),
            bytes => bytes.into(),
        };
        let [src, dst] = self.ports();
        let (proto, zone) = (self.proto(), self.zone());
        write!(f, "{}:{src} > {}:{dst} proto {proto} zone {zone}", address(self.src()), address(self.dst()))
    }
}

/// The secrets of a tracker's hash: a sum of words times factors modulo 2^128, of which the upper 64 bits are kept. Any two different tuples have any
/// two values with equal probability (multilinear hashing; docs/decisions/flow-hash.md has the argument and its source).
#[derive(Debug)]
pub(crate) struct Factors([u128; WORDS + 1]);

impl Default for Factors {
    fn default() -> Self {
        // The standard library takes its key from getrandom(2), and SipHash makes as many numbers of it as are asked for.
        let key = RandomState::new();
        let secret = |n: usize| u128::from(key.hash_one(n)) << 64 | u128::from(key.hash_one(n + 100));
        Self(std::array::from_fn(secret))
    }
}

impl Factors {
    #[inline(always)]
    pub(crate) fn hash(&self, tuple: &Tuple) -> u64 {
        let [start, factors @ ..] = &self.0;
        let terms = tuple.0.iter().zip(factors).map(|(word, factor)| factor.wrapping_mul(u128::from(*word)));
        let sum = (terms.fold(*start, u128::wrapping_add) >> 64) as u64;
        // Sums of evenly spaced tuples are evenly spaced; this spaces them anew, and takes no two to one.
        (sum ^ sum >> 32).wrapping_mul(factors[0] as u64 | 1)
    }
}
