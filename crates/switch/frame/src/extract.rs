//! Snapshot → flow key.
//!
//! What each field holds in which odd case is said at [`FlowKey`]; the tests say it a second time.

use crate::key::{Depth, FlowKey};
use crate::proto::{ICMP, ICMPV6, SCTP, TCP, UDP};
use crate::{be16, ethertype};

/// Where the headers of an IP packet lie, in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Network header.
    pub l3: usize,
    /// First byte behind the network header and its extensions. Equal to `l3` when there is no valid IP header.
    pub l4: usize,
    /// End of the IP packet; padding lies behind it.
    pub end: usize,
    /// End of IPv6's unfragmentable part (RFC 8200 §4.5); `l4` for IPv4.
    pub fragmentable: usize,
    /// The Next Header field that names what follows at `fragmentable`; IPv6 only.
    pub next_header: usize,
    /// There is an IPv6 routing header with segments left: the checksum's destination address is not the header's.
    pub routing: bool,
    /// There is an IPv6 fragment header.
    pub fragment_header: bool,
}

/// Sets every field of `key` up to `depth` except `in_port`, `recirculation`, tunnel and connection tracking, which are
/// the caller's; fields beyond `depth` are left as they are.
///
/// `frame` is the snapshot: the frame's first bytes, as many as there are up to [`SNAPSHOT_LEN`](crate::SNAPSHOT_LEN).
/// `frame_len` is the length of the whole frame in bytes. Never fails: what is wrong with a frame is part of its key.
///
/// Tiers, with the instructions that a frame takes:
///
/// 1. [`Depth::L2`] reads 14 bytes of an untagged frame, and is inlined into the caller's burst loop: about 25.
/// 2. [`deeper`]: untagged TCP, UDP or ARP without anything out of the ordinary, by whole words. About 75.
/// 3. [`any`]: the same behind VLAN tags, about 130; everything else, one header after the other, field by field, from 150 on.
#[inline]
pub fn extract(key: &mut FlowKey, frame: &[u8], frame_len: usize, depth: Depth) {
    let frame = frame.get(..frame_len).unwrap_or(frame);
    if depth == Depth::L2 {
        link_layer(key, frame);
    } else {
        deeper(key, frame, frame_len, depth);
    }
}

/// [`extract`] beyond the link layer.
#[inline]
fn deeper(key: &mut FlowKey, frame: &[u8], frame_len: usize, depth: Depth) {
    // The least that any simple frame has: 14 bytes of Ethernet and 28 of IPv4 with UDP, or of ARP.
    let done = frame.first_chunk::<42>().is_some_and(|h| {
        store_link_layer(key, h);
        simple(key, frame, frame_len, 14, depth)
    });
    if !done {
        any(key, frame, frame_len, depth);
    }
}

#[inline(never)]
fn any(key: &mut FlowKey, frame: &[u8], frame_len: usize, depth: Depth) {
    let l3 = link_layer(key, frame);
    if l3 == 14 || !simple(key, frame, frame_len, l3, depth) {
        network_layer(key, frame, frame_len, l3, depth);
    }
}

/// As [`network_layer`] for what most packets are; `l3` is where the network header is. False, and nothing is filled in, if it is not that.
///
/// Fields are put together in registers and stored as whole words: the hash reads them right afterwards and would have
/// to wait for smaller stores.
#[inline(always)]
fn simple(key: &mut FlowKey, frame: &[u8], frame_len: usize, l3: usize, depth: Depth) -> bool {
    let packet = frame.get(l3..).unwrap_or_default();
    let fits = |len: usize| l3 + len <= frame_len;
    match key.eth_type {
        ethertype::IPV4 => simple_ipv4(key, packet, fits, depth),
        ethertype::IPV6 => simple_ipv6(key, packet, fits, depth),
        ethertype::ARP => simple_arp(key, packet, depth),
        _ => false,
    }
}

/// TCP or UDP over IPv4: without options, no fragment, with a transport header that is all there. `fits` says whether the frame has so many
/// bytes for the packet.
#[inline(always)]
fn simple_ipv4(key: &mut FlowKey, packet: &[u8], fits: impl Fn(usize) -> bool, depth: Depth) -> bool {
    let Some(h) = packet.first_chunk::<28>() else { return false };
    // Version to fragment offset; TTL to source; destination and ports.
    let (start, middle, end) = (le64(h, 0), le64(h, 8), le64(h, 16));
    // Version 4, five words of header; neither "more fragments" nor an offset.
    if start & u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]) != 0x45 {
        return false;
    }
    let total_len = usize::from(((start >> 16) as u16).swap_bytes());
    let protocol = h[9];
    if !fits(total_len) {
        return false;
    }
    let Some(flags) = simple_transport(packet, protocol, 20, total_len) else { return false };
    let first = u64::from(protocol) | start & 0xff00 | (middle & 0xff) << 16;
    store_fields(key, [0, middle & !LOW, 0, end << 32, first | ports(end >> 32), flags], [0; 2], depth);
    true
}

/// The same over IPv6, without extension headers.
#[inline(always)]
fn simple_ipv6(key: &mut FlowKey, packet: &[u8], fits: impl Fn(usize) -> bool, depth: Depth) -> bool {
    let Some(h) = packet.first_chunk::<48>() else { return false };
    // Version to hop limit.
    let start = le64(h, 0);
    let class_and_label = (start as u32).swap_bytes();
    let end = 40 + usize::from(((start >> 32) as u16).swap_bytes());
    let protocol = h[6];
    if class_and_label >> 28 != 6 || !fits(end) {
        return false;
    }
    let Some(flags) = simple_transport(packet, protocol, 40, end) else { return false };
    let first = u64::from(protocol) | u64::from(class_and_label >> 20 & 0xff) << 8 | (start >> 56) << 16;
    let last = flags | u64::from(class_and_label & 0xf_ffff) << 32;
    let fields = [le64(h, 8), le64(h, 16), le64(h, 24), le64(h, 32), first | ports(le64(h, 40)), last];
    store_fields(key, fields, [0; 2], depth);
    true
}

const ARP_LEN: usize = 28;

/// ARP and RARP for IPv4 over Ethernet (RFC 826, RFC 903); others leave the fields as they are.
#[inline(always)]
fn simple_arp(key: &mut FlowKey, packet: &[u8], depth: Depth) -> bool {
    let Some(h) = packet.first_chunk::<ARP_LEN>() else { return false };
    // Types and lengths; the operation is behind them.
    let start = le64(h, 0);
    if start << 16 != u64::from_le_bytes([0, 0, 0, 1, 8, 0, 6, 4]) {
        return false;
    }
    let operation = ((start >> 48) as u16).swap_bytes();
    let operation = if operation < 256 { u64::from(operation) } else { 0 };
    let hardware = |at: usize| le64(h, at) & 0xffff_ffff_ffff;
    // Each protocol address ends ten bytes behind the beginning of its hardware address.
    let address = |at: usize| le64(h, at + 2) & !LOW;
    store_fields(key, [0, address(8), 0, address(18), operation, 0], [hardware(8), hardware(18)], depth);
    true
}

/// TCP's flags, or 0 for UDP, if the packet, which ends at `end`, and the snapshot have all of the header at `at`. Of eight bytes the
/// caller has seen that they are there.
#[inline(always)]
fn simple_transport(packet: &[u8], protocol: u8, at: usize, end: usize) -> Option<u64> {
    if protocol == UDP {
        return (end >= at + 8).then_some(0);
    }
    if protocol != TCP || packet.len() < at + 20 {
        return None;
    }
    let offset_and_flags = be16(packet, at + 12);
    let header_len = usize::from(offset_and_flags >> 12) * 4;
    (header_len >= 20 && at + header_len <= end).then_some(u64::from(offset_and_flags & 0xfff))
}

/// Stores a key's words between [`Depth::L2`] and [`Depth::L4`], and at [`Depth::Full`] both hardware addresses.
#[inline(always)]
fn store_fields(key: &mut FlowKey, fields: [u64; 6], [sender, target]: [u64; 2], depth: Depth) {
    let words = key.words_mut();
    [words[4], words[5], words[6], words[7], words[8], words[9]] = fields;
    if depth == Depth::Full {
        words[10] = sender | target << 48;
        // The upper half is connection tracking's.
        words[11] = words[11] & !LOW | target >> 16;
        (words[12], words[13]) = (0, 0);
    }
}

/// Stores addresses and EtherType, and zero for the link layer's other fields; returns the EtherType.
#[inline(always)]
fn store_link_layer<const N: usize>(key: &mut FlowKey, frame: &[u8; N]) -> u16 {
    let (first, last) = (le64(frame, 0), le64(frame, 6));
    let eth_type = ((last >> 48) as u16).swap_bytes();
    let words = key.words_mut();
    (words[1], words[2], words[3]) = (first, last >> 16 & LOW | u64::from(eth_type) << 32, 0);
    eth_type
}

/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;

/// The two ports, as they lie in memory in the lower half of `ports`, as the upper half of the key's word.
#[inline(always)]
fn ports(ports: u64) -> u64 {
    u64::from((ports as u32).swap_bytes().rotate_left(16)) << 32
}

/// Eight bytes as they lie in memory; callers have checked that they are there.
#[inline(always)]
fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

// Fields of whole words are put where a little-endian processor looks for them.
const _: () = assert!(cfg!(target_endian = "little"));

/// Fills in the link-layer fields; where the network header starts.
#[inline]
pub(crate) fn link_layer(key: &mut FlowKey, frame: &[u8]) -> usize {
    let eth = frame.first_chunk::<14>();
    let eth_type = store_link_layer(key, eth.unwrap_or(&[0; 14]));
    if eth.is_none() {
        return frame.len();
    }
    if is_tag(eth_type) || eth_type < ethertype::MIN { tags_and_llc(key, frame) } else { 14 }
}

/// Whether this is an Ethernet II frame without VLAN tag: then its first 14 bytes say all that [`extract`] finds out at
/// [`Depth::L2`].
pub fn is_plain_l2(frame: &[u8]) -> bool {
    frame.len() >= 14 && be16(frame, 12) >= ethertype::MIN && !is_tag(be16(frame, 12))
}

pub(crate) fn is_tag(eth_type: u16) -> bool {
    eth_type == ethertype::CTAG || eth_type == ethertype::STAG
}

/// The rest of [`link_layer`] for frames with VLAN tags (IEEE 802.1Q §9) or an 802.3 length (802.2 LLC, SNAP).
#[cold]
fn tags_and_llc(key: &mut FlowKey, frame: &[u8]) -> usize {
    let mut at = 14;
    for inner in [false, true] {
        if !is_tag(key.eth_type) {
            break;
        }
        let Some(&[c0, c1, t0, t1]) = frame.get(at..).and_then(|f| f.first_chunk::<4>()) else { break };
        let tci = u16::from_be_bytes([c0, c1]) | FlowKey::VLAN_PRESENT;
        if inner {
            (key.inner_vlan_tpid, key.inner_vlan_tci) = (key.eth_type, tci);
        } else {
            (key.vlan_tpid, key.vlan_tci) = (key.eth_type, tci);
        }
        key.eth_type = u16::from_be_bytes([t0, t1]);
        at += 4;
    }
    if is_tag(key.eth_type) && key.inner_vlan_tci != 0 {
        key.anomalies = FlowKey::DEEP_VLAN;
    }
    if key.eth_type < ethertype::MIN {
        key.eth_type = ethertype::MIN - 1;
        if let Some(&[0xaa, 0xaa, 3, 0, 0, 0, t0, t1]) = frame.get(at..).and_then(|f| f.first_chunk::<8>()) {
            let snap = u16::from_be_bytes([t0, t1]);
            if snap >= ethertype::MIN {
                key.eth_type = snap;
                at += 8;
            }
        }
    }
    at
}

/// Fills in everything behind the link layer, up to `depth`.
pub(crate) fn network_layer(key: &mut FlowKey, frame: &[u8], frame_len: usize, l3: usize, depth: Depth) -> Layout {
    store_fields(key, [0; 6], [0; 2], depth);
    let l3_bytes = frame.get(l3..).unwrap_or_default();
    let layout = match key.eth_type {
        ethertype::IPV4 => ipv4(key, l3_bytes, frame_len, l3),
        ethertype::IPV6 => ipv6(key, frame, frame_len, l3),
        ethertype::ARP | ethertype::RARP => {
            if !simple_arp(key, l3_bytes, depth) && l3_bytes.len() < ARP_LEN {
                key.anomalies |= FlowKey::MALFORMED_L3;
            }
            None
        }
        _ => None,
    };
    let Some(layout) = layout else {
        return Layout { l3, l4: l3, end: frame_len, fragmentable: l3, ..Layout::default() };
    };
    if key.anomalies == 0
        && key.ip_frag & FlowKey::FRAG_LATER == 0
        && let Err(anomaly) = transport(key, frame, &layout, depth)
    {
        key.anomalies |= anomaly;
        (key.l4_src, key.l4_dst, key.tcp_flags) = (0, 0, 0);
    }
    layout
}

/// IPv4 (RFC 791 §3.1). `packet` starts at the header and may end early; `None` if it is malformed.
fn ipv4(key: &mut FlowKey, packet: &[u8], frame_len: usize, l3: usize) -> Option<Layout> {
    let header = packet.first_chunk::<20>().filter(|h| h[0] >> 4 == 4);
    let Some(h) = header else {
        key.anomalies |= FlowKey::MALFORMED_L3;
        return None;
    };
    let header_len = usize::from(h[0] & 15) * 4;
    let total_len = usize::from(be16(h, 2));
    if header_len < 20 || header_len > packet.len() || total_len < header_len || l3 + total_len > frame_len {
        key.anomalies |= FlowKey::MALFORMED_L3;
        return None;
    }
    key.ip_src[12..].copy_from_slice(&h[12..16]);
    key.ip_dst[12..].copy_from_slice(&h[16..20]);
    key.ip_proto = h[9];
    key.ip_tos = h[1];
    key.ip_ttl = h[8];
    let fragment = be16(h, 6);
    key.ip_frag = fragment_bits(fragment & 0x1fff != 0, fragment & 0x2000 != 0);
    let l4 = l3 + header_len;
    Some(Layout { l3, l4, end: l3 + total_len, fragmentable: l4, ..Layout::default() })
}

fn fragment_bits(offset: bool, more: bool) -> u8 {
    if offset {
        FlowKey::FRAG_ANY | FlowKey::FRAG_LATER
    } else if more {
        FlowKey::FRAG_ANY
    } else {
        0
    }
}

/// IPv6 and its extension headers (RFC 8200 §4, RFC 4302 §2 for AH). `None` if the fixed header is malformed.
fn ipv6(key: &mut FlowKey, frame: &[u8], frame_len: usize, l3: usize) -> Option<Layout> {
    let header = frame.get(l3..).and_then(|p| p.first_chunk::<40>()).filter(|h| h[0] >> 4 == 6);
    let end = header.map_or(usize::MAX, |h| l3 + 40 + usize::from(be16(h, 4)));
    let Some(h) = header.filter(|_| end <= frame_len) else {
        key.anomalies |= FlowKey::MALFORMED_L3;
        return None;
    };
    key.ip_src.copy_from_slice(&h[8..24]);
    key.ip_dst.copy_from_slice(&h[24..40]);
    key.ip_tos = h[0] << 4 | h[1] >> 4;
    key.ip_ttl = h[7];
    key.ipv6_label = u32::from_be_bytes([0, h[1] & 15, h[2], h[3]]);
    key.ip_proto = h[6];

    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    let fixed = l3 + 40;
    let mut out = Layout { l3, l4: fixed, end, fragmentable: fixed, next_header: l3 + 6, ..Layout::default() };
    // Each header has at least eight bytes and lies in the snapshot: the chain is bounded by the snapshot's length.
    while matches!(key.ip_proto, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
        if out.l4 + 8 > end {
            key.anomalies |= FlowKey::MALFORMED_L4;
            break;
        }
        let Some(&[next, len, o0, o1, ..]) = frame.get(out.l4..).and_then(|f| f.first_chunk::<8>()) else {
            key.anomalies |= FlowKey::DEEP_EXTENSIONS;
            break;
        };
        let len = match key.ip_proto {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        // The fixed part of AH alone has twelve bytes.
        if out.l4 + len > end || key.ip_proto == AUTHENTICATION && len < 12 {
            key.anomalies |= FlowKey::MALFORMED_L4;
            break;
        }
        let this = std::mem::replace(&mut key.ip_proto, next);
        let this_at = out.l4;
        out.l4 += len;
        match this {
            HOP_BY_HOP | ROUTING => {
                out.next_header = this_at;
                out.fragmentable = out.l4;
                // Its Segments Left: with none the header's destination is the last one (RFC 8200 §4.4).
                out.routing |= this == ROUTING && o1 != 0;
            }
            FRAGMENT => {
                out.fragment_header = true;
                key.ip_frag |= fragment_bits(u16::from_be_bytes([o0, o1]) & 0xfff8 != 0, o1 & 1 != 0);
                if key.ip_frag & FlowKey::FRAG_LATER != 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    Some(out)
}

/// Ports, ICMP type and code, TCP flags, neighbour discovery; or the anomaly that keeps them from being filled in.
fn transport(key: &mut FlowKey, frame: &[u8], at: &Layout, depth: Depth) -> Result<(), u16> {
    let v6 = key.eth_type == ethertype::IPV6;
    let need = match (key.ip_proto, v6) {
        (TCP, _) => 20,
        (UDP, _) => 8,
        (SCTP, _) => 12,
        (ICMP, false) => 8,
        (ICMPV6, true) => 4,
        _ => return Ok(()),
    };
    let h = header_at(frame, at.l4, need, at.end)?;
    if key.ip_proto == ICMP || key.ip_proto == ICMPV6 {
        key.l4_src = u16::from(h[0]);
        key.l4_dst = u16::from(h[1]);
        if key.ip_proto == ICMPV6 && matches!(h[0], 135 | 136) && h[1] == 0 {
            return neighbour(key, frame, at, depth);
        }
        return Ok(());
    }
    key.l4_src = be16(h, 0);
    key.l4_dst = be16(h, 2);
    if key.ip_proto == TCP {
        let header_len = usize::from(h[12] >> 4) * 4;
        if header_len < 20 || at.l4 + header_len > at.end {
            return Err(FlowKey::MALFORMED_L4);
        }
        key.tcp_flags = be16(h, 12) & 0xfff;
    }
    Ok(())
}

/// `len` bytes at `at`, if the packet, which ends at `end`, has them and the snapshot too.
#[inline]
fn header_at(frame: &[u8], at: usize, len: usize, end: usize) -> Result<&[u8], u16> {
    if at + len > end {
        return Err(FlowKey::MALFORMED_L4);
    }
    frame.get(at..at + len).ok_or(FlowKey::DEEP_EXTENSIONS)
}

/// Neighbour solicitation or advertisement (RFC 4861 §4.3, §4.4, §4.6.1). Receivers must discard one with an option of
/// length zero (§7.1); what they do with a repeated link-layer address or one that is not Ethernet's differs, so those
/// count as malformed too. Options are walked at [`Depth::L4`] as well, so that a key's anomalies do not depend on depth.
fn neighbour(key: &mut FlowKey, frame: &[u8], at: &Layout, depth: Depth) -> Result<(), u16> {
    let message = header_at(frame, at.l4, 24, at.end)?;
    let mut target = [0; 16];
    target.copy_from_slice(&message[8..24]);
    let mut addresses = [None; 2];
    let mut option = at.l4 + 24;
    while option < at.end {
        let head = header_at(frame, option, 2, at.end)?;
        let (kind, len) = (head[0], usize::from(head[1]) * 8);
        if len == 0 || option + len > at.end {
            return Err(FlowKey::MALFORMED_L4);
        }
        if let 1 | 2 = kind {
            let slot = &mut addresses[usize::from(kind == 2)];
            if len != 8 || slot.is_some() {
                return Err(FlowKey::MALFORMED_L4);
            }
            *slot = header_at(frame, option, 8, at.end)?.last_chunk::<6>().copied();
        }
        option += len;
    }
    if depth == Depth::Full {
        key.nd_target = target;
        key.arp_sha = addresses[0].unwrap_or_default();
        key.arp_tha = addresses[1].unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
