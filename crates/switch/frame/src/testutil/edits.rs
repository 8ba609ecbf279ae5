//! Edits a second time: slow, on whole frames, with every checksum summed up anew, and written without looking at `edit`. Property tests and a fuzz
//! target hold the two against each other.

use super::reference::reference;
use crate::{Edit, FlowKey, Part, SNAPSHOT_LEN, Set};
use lasthop_types::DropReason;

fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Sum modulo 0xffff of big-endian words.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum::<u64>() % 0xffff
}

/// An IP packet that is in order: where its headers are, and whether its destination is not the last one.
struct Ip {
    l3: usize,
    l4: usize,
    end: usize,
    routed: bool,
}

fn ip(frame: &[u8], key: &FlowKey, l3: usize) -> Ip {
    if key.eth_type == 0x0800 {
        let (header_len, len) = (usize::from(frame[l3] & 15) * 4, usize::from(word(frame, l3 + 2)));
        return Ip { l3, l4: l3 + header_len, end: l3 + len, routed: false };
    }
    let (mut next, mut l4, mut routed) = (frame[l3 + 6], l3 + 40, false);
    let end = l4 + usize::from(word(frame, l3 + 4));
    loop {
        let len = match next {
            0 | 60 => (usize::from(frame[l4 + 1]) + 1) * 8,
            43 => {
                routed |= frame[l4 + 3] != 0;
                (usize::from(frame[l4 + 1]) + 1) * 8
            }
            44 => 8,
            51 => (usize::from(frame[l4 + 1]) + 2) * 4,
            _ => return Ip { l3, l4, end, routed },
        };
        let later = next == 44 && word(frame, l4 + 2) >> 3 != 0;
        next = frame[l4];
        l4 += len;
        if later {
            return Ip { l3, l4, end, routed };
        }
    }
}

/// Where the network header is.
fn link_len(frame: &[u8], key: &FlowKey) -> usize {
    let tags = usize::from(key.vlan_tci != 0) + usize::from(key.inner_vlan_tci != 0);
    let at = 12 + 4 * tags;
    let is_snap = word(frame, at) < 0x600 && key.eth_type >= 0x600;
    at + 2 + if is_snap { 8 } else { 0 }
}

/// Sums of what the checksum at `at` goes over: the frame's own part and the pseudo header, as far as it has addresses in it.
fn sums(frame: &[u8], key: &FlowKey, at: usize) -> (u64, u64) {
    let ip = ip(frame, key, link_len(frame, key));
    let v4 = key.eth_type == 0x0800;
    if at < ip.l4 {
        return (sum_without(&frame[ip.l3..ip.l4], at - ip.l3), 0);
    }
    let addresses = match ip.routed {
        _ if v4 && key.ip_proto == 1 => &[],
        _ if v4 => &frame[ip.l3 + 12..ip.l3 + 20],
        true => &frame[ip.l3 + 8..ip.l3 + 24],
        false => &frame[ip.l3 + 8..ip.l3 + 40],
    };
    (sum_without(&frame[ip.l4..ip.end], at - ip.l4), sum(addresses))
}

/// The sum of all but the field at `at`.
fn sum_without(bytes: &[u8], at: usize) -> u64 {
    let mut bytes = bytes.to_vec();
    bytes[at..at + 2].fill(0);
    sum(&bytes)
}

/// A field that has so much more to make up for than `before`.
fn made_up(field: u16, before: u64, after: u64) -> u16 {
    ((u64::from(field) + before + 2 * 0xffff - after) % 0xffff) as u16
}

/// What a frame becomes. `partial` is where the checksum is that its sender leaves to be completed.
pub fn edited(frame: &[u8], edit: &Edit, partial: Option<usize>) -> Result<Vec<u8>, DropReason> {
    if frame.len() < 14 {
        return Err(DropReason::BadAction);
    }
    let key = reference(&frame[..frame.len().min(SNAPSHOT_LEN)], frame.len());
    let set = match edit {
        Edit::PushVlan { tpid: tpid @ (0x8100 | 0x88a8), tci } => {
            return Ok([&frame[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat());
        }
        Edit::PopVlan if key.vlan_tci != 0 => return Ok([&frame[..12], &frame[16..]].concat()),
        Edit::PopVlan => return Ok(frame.to_vec()),
        Edit::DecTtl if !matches!(key.eth_type, 0x0800 | 0x86dd) || key.anomalies & FlowKey::MALFORMED_L3 != 0 => {
            return Err(DropReason::BadAction);
        }
        Edit::DecTtl if key.ip_ttl < 2 => return Err(DropReason::TtlExpired),
        Edit::DecTtl => {
            let ttl = u32::from(key.ip_ttl) - 1;
            let (part, word, shift) = if key.eth_type == 0x0800 { (Part::Ipv4, 2, 24) } else { (Part::Ipv6, 1, 0) };
            Set { part, word, value: ttl << shift, mask: 0xff << shift }
        }
        Edit::Set(set) => *set,
        _ => return Err(DropReason::BadAction),
    };
    changed(frame, &key, &set, partial).ok_or(DropReason::BadAction)
}

/// Where a part begins, and which of its bits can be set.
fn part(frame: &[u8], key: &FlowKey, part: Part) -> Option<(usize, Vec<u8>)> {
    let (l3, ones) = (link_len(frame, key), |n: usize| vec![0xff; n]);
    match part {
        Part::Ethernet => return Some((0, ones(12))),
        Part::Vlan => return (key.vlan_tci != 0).then(|| (14, ones(2))),
        _ if key.anomalies != 0 => return None,
        Part::Arp => {
            let is_usual = key.eth_type == 0x0806 && frame[l3..].starts_with(&[0, 1, 8, 0, 6, 4]);
            return is_usual.then(|| (l3, [vec![0; 6], ones(22)].concat()));
        }
        _ => {}
    }
    if !matches!(key.eth_type, 0x0800 | 0x86dd) {
        return None;
    }
    let (v4, ip) = (key.eth_type == 0x0800, ip(frame, key, l3));
    let whole = key.ip_frag & FlowKey::FRAG_LATER == 0;
    let neighbour = !v4 && key.ip_proto == 58 && (key.l4_src == 135 || key.l4_src == 136) && key.l4_dst == 0;
    let found = match part {
        Part::Ipv4 if v4 => (l3, [&[0, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0][..], &[0xff; 8]].concat()),
        Part::Ipv6 if !v4 => (l3, [&[0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 0xff][..], &[0xff; 32]].concat()),
        Part::Ports if whole && matches!(key.ip_proto, 6 | 17) => (ip.l4, ones(4)),
        Part::Icmp if whole && key.ip_proto == if v4 { 1 } else { 58 } => {
            // In whole words, as far as the packet and the snapshot go.
            let words = (ip.end.min(SNAPSHOT_LEN) - ip.l4) / 4;
            (ip.l4, [vec![0xff, 0xff, 0, 0], ones(4 * (words.min(14) - 1))].concat())
        }
        Part::Neighbour if whole && neighbour => (ip.l4, [vec![0; 8], ones(16)].concat()),
        Part::SourceLink | Part::TargetLink if whole && neighbour => {
            let kind = if part == Part::SourceLink { 1 } else { 2 };
            let mut at = ip.l4 + 24;
            while at < ip.end && frame[at] != kind {
                at += usize::from(frame[at + 1]) * 8;
            }
            return (at < ip.end).then(|| (at, [vec![0; 2], ones(6)].concat()));
        }
        _ => return None,
    };
    Some(found)
}

fn changed(frame: &[u8], key: &FlowKey, set: &Set, partial: Option<usize>) -> Option<Vec<u8>> {
    let (begins, settable) = part(frame, key, set.part)?;
    let mut out = frame.to_vec();
    let mut any = false;
    for (n, (value, mask)) in set.value.to_be_bytes().into_iter().zip(set.mask.to_be_bytes()).enumerate() {
        let at = 4 * usize::from(set.word) + n;
        any |= at < settable.len();
        match settable.get(at) {
            Some(bits) if mask & !bits == 0 => out[begins + at] = out[begins + at] & !mask | value & mask,
            None if mask == 0 => {}
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    for (at, is_udp) in checksums(frame, key) {
        let field = word(frame, at);
        let (before, after) = (sums(frame, key, at), sums(&out, key, at));
        if before == after {
            continue;
        }
        let value = if partial == Some(at) {
            made_up(field, after.1, before.1)
        } else if is_udp && field == 0 {
            0
        } else {
            made_up(field, before.0 + before.1, after.0 + after.1)
        };
        let value = if is_udp && value == 0 && (field != 0 || partial == Some(at)) { 0xffff } else { value };
        out[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
    Some(out)
}

/// Where an IP packet's checksums are, and which is UDP's.
fn checksums(frame: &[u8], key: &FlowKey) -> Vec<(usize, bool)> {
    if !matches!(key.eth_type, 0x0800 | 0x86dd) || key.anomalies != 0 {
        return Vec::new();
    }
    let (v4, ip) = (key.eth_type == 0x0800, ip(frame, key, link_len(frame, key)));
    let own = match key.ip_proto {
        _ if key.ip_frag & FlowKey::FRAG_LATER != 0 => None,
        6 => Some(16),
        17 => Some(6),
        1 if v4 => Some(2),
        58 if !v4 => Some(2),
        _ => None,
    };
    let own = own.map(|own| (ip.l4 + own, key.ip_proto == 17));
    v4.then_some((ip.l3 + 10, false)).into_iter().chain(own).collect()
}

/// Whether two frames are the same but for how the sum 0 is written, which may be either of its two ways, but where UDP has it.
pub fn agree(a: &[u8], b: &[u8]) -> bool {
    let plain = |frame: &[u8]| {
        let mut out = frame.to_vec();
        let key = reference(&frame[..frame.len().min(SNAPSHOT_LEN)], frame.len());
        for (at, _) in checksums(frame, &key).into_iter().filter(|(_, is_udp)| !is_udp) {
            if word(&out, at) == 0xffff {
                out[at..at + 2].fill(0);
            }
        }
        out
    };
    a == b || a.len() == b.len() && plain(a) == plain(b)
}
