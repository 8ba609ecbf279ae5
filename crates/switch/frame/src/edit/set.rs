//! Setting bits of header fields, a word at a time, and what checksums make of it.

use crate::extract::{Layout, link_layer, network_layer};
use crate::header::Header;
use crate::key::{Depth, FlowKey};
use crate::offload::{Offload, spares_key};
use crate::proto::{ICMP, ICMPV6, TCP, UDP};
use crate::{be16, ethertype, put16, sum};
use serde::{Deserialize, Serialize};

/// Four bytes of a header get other values in the bits of a mask, as Linux's `pedit` sets fields: a longer field takes several. Which
/// fields may be set is said at [`Part`].
///
/// Checksums follow by what has changed (RFC 1624), so one that was wrong stays wrong: those of IPv4, TCP, UDP (0, which says that there is
/// none, stays; RFC 768), ICMP and ICMPv6. One that the sender leaves to be completed holds the sum of the pseudo header
/// and follows only that. Other protocols' are left alone, as Open vSwitch does. SCTP's ports are not set: its CRC32c goes over all of the
/// payload, which is read once, when the header has been written.
///
/// Not done are what is not settable, a header that the packet does not have, or not in the snapshot, or not in order (what is behind it
/// in the packet, too), and transport fields of a later fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Set {
    /// Which header.
    pub part: Part,
    /// Which of its words of four bytes.
    pub word: u8,
    /// The new bits, the first byte highest.
    pub value: u32,
    /// Which bits.
    pub mask: u32,
}

/// A header with fields to set. Words are counted from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// Destination and source.
    Ethernet,
    /// The outermost tag's TCI, in the upper half of the word.
    Vlan,
    /// ARP for IPv4 over Ethernet: operation and addresses.
    Arp,
    /// Type of service, TTL, addresses.
    Ipv4,
    /// Traffic class, flow label, hop limit, addresses.
    Ipv6,
    /// Ports of TCP or UDP.
    Ports,
    /// Type and code of ICMP or ICMPv6, and what follows the checksum: 52 bytes, in which an error has what addresses and ports it is about.
    Icmp,
    /// A neighbour solicitation or advertisement: the target.
    Neighbour,
    /// Its option with the source's link-layer address.
    SourceLink,
    /// Its option with the target's link-layer address.
    TargetLink,
}

const ALL: u32 = u32::MAX;

impl Part {
    /// Where it begins in a frame with this key, and which bits of its words may be set; if it is there and in order.
    fn find(self, key: &FlowKey, at: &Layout, frame: &[u8]) -> Option<(usize, &'static [u32])> {
        let ip = |eth_type| key.eth_type == eth_type && at.l4 > at.l3 && key.anomalies == 0;
        let (v4, v6) = (ip(ethertype::IPV4), ip(ethertype::IPV6));
        let transport = (v4 || v6) && key.ip_frag & FlowKey::FRAG_LATER == 0;
        let icmp = transport && key.ip_proto == if v4 { ICMP } else { ICMPV6 };
        let neighbour = icmp && v6 && matches!((key.l4_src, key.l4_dst), (135 | 136, 0));
        let is_ipv4_arp = frame.get(at.l3..).is_some_and(|arp| arp.starts_with(&[0, 1, 8, 0, 6, 4]));
        let arp = key.eth_type == ethertype::ARP && key.anomalies == 0 && is_ipv4_arp;
        Some(match self {
            Self::Ethernet => (0, &[ALL; 3]),
            Self::Vlan if key.vlan_tci != 0 => (14, &[0xffff_0000]),
            Self::Arp if arp => (at.l3, &[0, 0xffff, ALL, ALL, ALL, ALL, ALL]),
            Self::Ipv4 if v4 => (at.l3, &[0xff_0000, 0, 0xff00_0000, ALL, ALL]),
            Self::Ipv6 if v6 => (at.l3, &[0x0fff_ffff, 0xff, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL]),
            Self::Ports if transport && matches!(key.ip_proto, TCP | UDP) => (at.l4, &[ALL]),
            Self::Icmp if icmp => {
                (at.l4, &[0xffff_0000, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL])
            }
            Self::Neighbour if neighbour => (at.l4, &[0, 0, ALL, ALL, ALL, ALL]),
            Self::SourceLink if neighbour => (option(frame, at, 1)?, &[0xffff, ALL]),
            Self::TargetLink if neighbour => (option(frame, at, 2)?, &[0xffff, ALL]),
            _ => return None,
        })
    }

    /// Where the transport's checksum is, if it covers this word, itself or in the pseudo header. That has the last destination, which a
    /// routing header holds.
    fn checksum(self, word: u8, key: &FlowKey, at: &Layout) -> Option<usize> {
        let own = match (self, key.ip_proto) {
            (Self::Ethernet | Self::Vlan | Self::Arp, _) | (Self::Ipv4, ICMPV6) => return None,
            (Self::Ipv4, _) if word < 3 => return None,
            (Self::Ipv6, _) if word < 2 || word >= 6 && at.routing => return None,
            (_, TCP) => 16,
            (_, UDP) => 6,
            (Self::Icmp, _) | (_, ICMPV6) => 2,
            _ => return None,
        };
        (key.ip_frag & FlowKey::FRAG_LATER == 0).then_some(at.l4 + own)
    }
}

/// Where the first option of this kind begins in a neighbour discovery message that is in order.
fn option(frame: &[u8], at: &Layout, kind: u8) -> Option<usize> {
    let next = |option: &usize| Some(option + 8 * usize::from(*frame.get(option + 1)?.max(&1)));
    std::iter::successors(Some(at.l4 + 24), next).take_while(|o| *o < at.end).find(|o| frame.get(*o) == Some(&kind))
}

impl Set {
    /// `None`, and nothing is changed, where that cannot be.
    pub(super) fn apply(&self, header: &mut Header, offload: &Offload, payload_len: usize) -> Option<()> {
        let Self { part, word, value, mask } = *self;
        let (mut key, frame) = (FlowKey::default(), header.bytes());
        let l3 = link_layer(&mut key, frame);
        let at = network_layer(&mut key, frame, frame.len() + payload_len, l3, Depth::L4);
        let (begins, settable) = part.find(&key, &at, frame)?;
        let asked = offload.checksum();
        // Tags that have gone may have hidden what is here from the judgement of what was asked for.
        let hidden = asked.is_some_and(|(start, field)| !spares_key(&key, &at, start, field));
        if hidden || mask & !settable.get(usize::from(word))? != 0 {
            return None;
        }
        let place = begins + 4 * usize::from(word);
        let old = *frame.get(place..at.end.min(frame.len()))?.first_chunk()?;
        let new = (u32::from_be_bytes(old) & !mask | value & mask).to_be_bytes();
        let change = sum::sum(&old.map(|byte| !byte)) + sum::sum(&new);

        let frame = header.bytes_mut();
        *frame.get_mut(place..)?.first_chunk_mut()? = new;
        if part == Part::Ipv4 {
            put16(frame, l3 + 10, follow(be16(frame, l3 + 10), change, false));
        }
        let Some(field) = part.checksum(word, &key, &at) else { return Some(()) };
        let (before, udp, pseudo) = (be16(frame, field), key.ip_proto == UDP, part < Part::Ports);
        let partial = asked.is_some_and(|(_, asked)| asked == field);
        if (pseudo || !partial) && (before != 0 || partial || !udp) {
            let after = follow(before, change, partial);
            put16(frame, field, if udp && after == 0 { 0xffff } else { after });
        }
        Some(())
    }
}

/// A checksum behind a `change`: the sum of the new words and of the old ones' complements (RFC 1624 §3). `partial`: it is not inverted yet.
fn follow(field: u16, change: u32, partial: bool) -> u16 {
    let flip = if partial { 0 } else { 0xffff };
    sum::fold(u32::from(field ^ flip) + change) ^ flip
}
