//! Snapshot → flow key.
//!
//! Three tiers: [`Depth::L2`] reads 14 bytes of an untagged frame and is inlined into the caller's burst loop;
//! [`Depth::L4`] walks IP and reads the transport header; [`Depth::Full`] also stores ARP and neighbour discovery.
//! What each field holds in which odd case is said at [`FlowKey`]; the tests say it a second time.

use crate::be16;
use crate::key::{Depth, FlowKey};

pub(crate) const ETH_IPV4: u16 = 0x0800;
pub(crate) const ETH_ARP: u16 = 0x0806;
pub(crate) const ETH_RARP: u16 = 0x8035;
pub(crate) const ETH_IPV6: u16 = 0x86dd;
const ETH_CTAG: u16 = 0x8100;
const ETH_STAG: u16 = 0x88a8;
/// Smallest EtherType; below it the field is an 802.3 length.
const ETH_MIN: u16 = 0x0600;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

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
    /// There is an IPv6 routing header: the checksum's destination address may not be the header's.
    pub routing: bool,
    /// There is an IPv6 fragment header.
    pub fragment_header: bool,
}

/// Sets every field of `key` up to `depth` except `in_port`, `recirculation`, tunnel and connection tracking, which are
/// the caller's; fields beyond `depth` are left as they are.
///
/// `frame` is the snapshot: the frame's first bytes, as many as there are up to [`SNAPSHOT_LEN`](crate::SNAPSHOT_LEN).
/// `frame_len` is the length of the whole frame in bytes. Never fails: what is wrong with a frame is part of its key.
#[inline]
pub fn extract(key: &mut FlowKey, frame: &[u8], frame_len: usize, depth: Depth) {
    let frame = frame.get(..frame_len).unwrap_or(frame);
    let l3 = link_layer(key, frame);
    if depth > Depth::L2 && (depth > Depth::L4 || !usual_ipv4(key, frame, frame_len, l3)) {
        network_layer(key, frame, frame_len, l3, depth);
    }
}

/// As [`network_layer`] to [`Depth::L4`] for what most packets are: TCP or UDP over IPv4, whole, without options, in
/// order. False, and nothing is filled in, if it is not that.
#[inline(never)]
fn usual_ipv4(key: &mut FlowKey, frame: &[u8], frame_len: usize, l3: usize) -> bool {
    let Some(&h) = frame.get(l3..).and_then(|packet| packet.first_chunk::<28>()) else { return false };
    let total_len = usize::from(be16(&h, 2));
    let fragment = be16(&h, 6) & 0x3fff != 0;
    if key.eth_type != ETH_IPV4 || key.anomalies != 0 || h[0] != 0x45 || fragment || l3 + total_len > frame_len {
        return false;
    }
    let tcp_flags = match h[9] {
        UDP if total_len >= 28 => 0,
        TCP => match frame.get(l3 + 32..l3 + 40) {
            Some(&[offset, flags, ..]) if offset >= 0x50 && total_len >= 20 + usize::from(offset >> 4) * 4 => {
                u16::from_be_bytes([offset & 15, flags])
            }
            _ => return false,
        },
        _ => return false,
    };
    let address = |at: usize| u64::from_ne_bytes([0, 0, 0, 0, h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let [s0, s1] = be16(&h, 20).to_ne_bytes();
    let [d0, d1] = be16(&h, 22).to_ne_bytes();
    let [f0, f1] = tcp_flags.to_ne_bytes();
    // In whole words, as the link layer.
    let words = key.words_mut();
    (words[4], words[5], words[6], words[7]) = (0, address(12), 0, address(16));
    words[8] = u64::from_ne_bytes([h[9], h[1], h[8], 0, s0, s1, d0, d1]);
    words[9] = u64::from_ne_bytes([f0, f1, 0, 0, 0, 0, 0, 0]);
    true
}

/// Fills in the link-layer fields; where the network header starts.
#[inline]
pub(crate) fn link_layer(key: &mut FlowKey, frame: &[u8]) -> usize {
    let eth = frame.first_chunk::<14>();
    let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = eth.unwrap_or(&[0; 14]);
    let [e0, e1] = u16::from_be_bytes([t0, t1]).to_ne_bytes();
    // Addresses, EtherType, and zero for everything else, in whole words: the hash reads them right afterwards and would
    // have to wait for smaller stores.
    let words = key.words_mut();
    words[1] = u64::from_ne_bytes([d0, d1, d2, d3, d4, d5, s0, s1]);
    words[2] = u64::from_ne_bytes([s2, s3, s4, s5, e0, e1, 0, 0]);
    words[3] = 0;
    if eth.is_none() {
        return frame.len();
    }
    if is_tag(key.eth_type) || key.eth_type < ETH_MIN { tags_and_llc(key, frame) } else { 14 }
}

/// Whether this is an Ethernet II frame without VLAN tag: then its first 14 bytes say all that [`extract`] finds out at
/// [`Depth::L2`].
pub fn is_plain_l2(frame: &[u8]) -> bool {
    frame.len() >= 14 && be16(frame, 12) >= ETH_MIN && !is_tag(be16(frame, 12))
}

pub(crate) fn is_tag(eth_type: u16) -> bool {
    eth_type == ETH_CTAG || eth_type == ETH_STAG
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
    if key.eth_type < ETH_MIN {
        key.eth_type = ETH_MIN - 1;
        if let Some(&[0xaa, 0xaa, 3, 0, 0, 0, t0, t1]) = frame.get(at..).and_then(|f| f.first_chunk::<8>()) {
            let snap = u16::from_be_bytes([t0, t1]);
            if snap >= ETH_MIN {
                key.eth_type = snap;
                at += 8;
            }
        }
    }
    at
}

/// Fills in everything behind the link layer, up to `depth`.
pub(crate) fn network_layer(key: &mut FlowKey, frame: &[u8], frame_len: usize, l3: usize, depth: Depth) -> Layout {
    key.words_mut()[Depth::L2.words()..Depth::L4.words()].fill(0);
    if depth == Depth::Full {
        key.arp_sha = [0; 6];
        key.arp_tha = [0; 6];
        key.nd_target = [0; 16];
    }
    let l3_bytes = frame.get(l3..).unwrap_or_default();
    let layout = match key.eth_type {
        ETH_IPV4 => ipv4(key, l3_bytes, frame_len, l3),
        ETH_IPV6 => ipv6(key, frame, frame_len, l3),
        ETH_ARP | ETH_RARP => {
            arp(key, l3_bytes, depth);
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
        key.l4_src = 0;
        key.l4_dst = 0;
        key.tcp_flags = 0;
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
                out.routing |= this == ROUTING;
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

/// ARP and RARP for IPv4 over Ethernet (RFC 826, RFC 903); others leave the fields zero.
fn arp(key: &mut FlowKey, packet: &[u8], depth: Depth) {
    let Some(a) = packet.first_chunk::<28>() else {
        key.anomalies |= FlowKey::MALFORMED_L3;
        return;
    };
    if a[..6] != [0, 1, 8, 0, 6, 4] {
        return;
    }
    key.ip_proto = u8::try_from(be16(a, 6)).unwrap_or(0);
    key.ip_src[12..].copy_from_slice(&a[14..18]);
    key.ip_dst[12..].copy_from_slice(&a[24..28]);
    if depth == Depth::Full {
        key.arp_sha.copy_from_slice(&a[8..14]);
        key.arp_tha.copy_from_slice(&a[18..24]);
    }
}

/// Ports, ICMP type and code, TCP flags, neighbour discovery; or the anomaly that keeps them from being filled in.
fn transport(key: &mut FlowKey, frame: &[u8], at: &Layout, depth: Depth) -> Result<(), u16> {
    let v6 = key.eth_type == ETH_IPV6;
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
            let mut mac = [0; 6];
            mac.copy_from_slice(&header_at(frame, option, 8, at.end)?[2..]);
            *slot = Some(mac);
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
mod tests;
