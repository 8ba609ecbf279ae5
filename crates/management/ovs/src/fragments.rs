//! Fragments of IP packets: put together before their connection is looked up, and cut again on the way out (RFC 791 §3.2, RFC 8200 §4.5).

use std::collections::BTreeMap;

/// For how long fragments wait for those that are missing (RFC 8200 §4.5).
const PATIENCE_MS: u64 = 60_000;
/// Bytes of one port's fragments that wait at most, and of all ports'.
const MOST_OF_PORT: usize = 512 << 10;
const MOST: usize = 8 << 20;
/// What a packet that waits counts at least, and a fragment on top of its bytes.
const COST: usize = 512;
/// Most fragments of a packet.
const MOST_PARTS: usize = 128;
const MORE: u16 = 0x2000;
const DONT: u16 = 0x4000;
const OFFSET: u16 = 0x1fff;

/// What fragments of a packet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    /// Nobody adds to another port's packets.
    port: u32,
    zone: u16,
    addresses: [[u8; 16]; 2],
    id: u32,
    /// The protocol, of IPv4.
    proto: u8,
}

/// A packet of which some is missing.
#[derive(Debug, Default)]
struct Partial {
    since_ms: u64,
    /// From the frame's first byte to the last before what is cut.
    head: Option<Vec<u8>>,
    /// Where each begins. None overlaps another.
    parts: BTreeMap<usize, Vec<u8>>,
    /// Where the last ends.
    end: Option<usize>,
    longest: usize,
    bytes: usize,
}

/// A fragment.
#[derive(Debug)]
struct Fragment<'a> {
    addresses: [[u8; 16]; 2],
    id: u32,
    proto: u8,
    head: Vec<u8>,
    at: usize,
    is_last: bool,
    data: &'a [u8],
    /// Length of its IP packet.
    len: usize,
}

/// A packet that was put together, and the length of its longest fragment: IP header and all behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub frame: Vec<u8>,
    pub longest: u16,
}

/// Fragments that wait.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    packets: BTreeMap<Name, Partial>,
    bytes: usize,
    /// For fragments of IPv6 that are cut here.
    last_id: u32,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn put16(bytes: &mut [u8], at: usize, value: usize) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&(value as u16).to_be_bytes());
    }
}

/// Where the IP header begins, and whether it is IPv6's.
fn ip_of(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = 12;
    while matches!(be16(frame, at)?, 0x8100 | 0x88a8) {
        at += 4;
    }
    match (be16(frame, at)?, frame.get(at + 2)? >> 4) {
        (0x0800, 4) => Some((at + 2, false)),
        (0x86dd, 6) => Some((at + 2, true)),
        _ => None,
    }
}

fn v4_header(frame: &[u8], ip: usize) -> Option<usize> {
    let len = usize::from(frame.get(ip)? & 15) * 4;
    (len >= 20 && frame.len() >= ip + len).then_some(len)
}

/// The headers of IPv6 that stay in front of a fragment's: where they end, and where what is behind them is named.
fn v6_headers(frame: &[u8], ip: usize) -> Option<(usize, usize)> {
    let (mut at, mut named) = (ip + 40, ip + 6);
    loop {
        let next = *frame.get(named)?;
        let has_routing = next == 60 && frame.get(at) == Some(&43);
        if !(matches!(next, 0 | 43) || has_routing) {
            return (at <= frame.len()).then_some((at, named));
        }
        (named, at) = (at, at + (usize::from(*frame.get(at + 1)?) + 1) * 8);
    }
}

fn sum_header(frame: &mut [u8], ip: usize, len: usize) {
    put16(frame, ip + 10, 0);
    let sum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(frame.get(ip..ip + len).unwrap_or_default()));
    put16(frame, ip + 10, sum.into());
}

impl<'a> Fragment<'a> {
    fn read(frame: &'a [u8]) -> Option<Self> {
        let (ip, v6) = ip_of(frame)?;
        if v6 { Self::v6(frame, ip) } else { Self::v4(frame, ip) }
    }

    fn v4(frame: &'a [u8], ip: usize) -> Option<Self> {
        let header = v4_header(frame, ip)?;
        let (len, flags) = (usize::from(be16(frame, ip + 2)?), be16(frame, ip + 6)?);
        let data = frame.get(ip + header..ip + len)?;
        let address = |at: usize| -> Option<[u8; 16]> {
            let [a, b, c, d] = *frame.get(at..)?.first_chunk()?;
            Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
        };
        let (addresses, id) = ([address(ip + 12)?, address(ip + 16)?], be16(frame, ip + 4)?.into());
        let mut head = frame.get(..ip + header)?.to_vec();
        put16(&mut head, ip + 6, (flags & DONT).into());
        let (at, is_last) = (usize::from(flags & OFFSET) * 8, flags & MORE == 0);
        let proto = *frame.get(ip + 9)?;
        Self { addresses, id, proto, head, at, is_last, data, len }.checked()
    }

    fn v6(frame: &'a [u8], ip: usize) -> Option<Self> {
        let (mut at, mut named) = v6_headers(frame, ip)?;
        // Options for the destination in front of a fragment's header, which no sender should put there.
        while *frame.get(named)? == 60 {
            (named, at) = (at, at + (usize::from(*frame.get(at + 1)?) + 1) * 8);
        }
        if *frame.get(named)? != 44 {
            return None;
        }
        let len = usize::from(be16(frame, ip + 4)?) + 40;
        let (offset, data) = (be16(frame, at + 2)?, frame.get(at + 8..ip + len)?);
        let address = |at: usize| frame.get(at..)?.first_chunk().copied();
        let (addresses, id) = ([address(ip + 8)?, address(ip + 24)?], frame.get(at + 4..)?.first_chunk()?);
        let (id, next) = (u32::from_be_bytes(*id), *frame.get(at)?);
        let mut head = frame.get(..at)?.to_vec();
        *head.get_mut(named)? = next;
        let (at, is_last) = (usize::from(offset & !7), offset & 1 == 0);
        Self { addresses, id, proto: 0, head, at, is_last, data, len }.checked()
    }

    /// All but the last end at a multiple of eight: what is more is cut off.
    fn checked(mut self) -> Option<Self> {
        if !self.is_last {
            self.data = self.data.get(..self.data.len() & !7)?;
        }
        (!self.data.is_empty() && self.at + self.data.len() <= usize::from(u16::MAX)).then_some(self)
    }
}

impl Partial {
    /// False: it contradicts what is there.
    fn add(&mut self, fragment: Fragment<'_>) -> bool {
        let (at, data) = (fragment.at, fragment.data);
        let end = at + data.len();
        if self.parts.get(&at).is_some_and(|there| there == data) {
            return true;
        }
        let before = self.parts.range(..=at).next_back().is_none_or(|(from, there)| from + there.len() <= at);
        let behind = self.parts.range(at..).next().is_none_or(|(from, _)| *from >= end);
        let fits = self.end.is_none_or(|last| end <= last && !fragment.is_last);
        let is_end =
            !fragment.is_last || self.parts.last_key_value().is_none_or(|(from, there)| from + there.len() <= at);
        if !(before && behind && fits && is_end) || self.parts.len() >= MOST_PARTS {
            return false;
        }
        if fragment.is_last {
            self.end = Some(end);
        }
        if at == 0 {
            self.head = Some(fragment.head);
        }
        self.longest = self.longest.max(fragment.len);
        self.bytes += data.len() + COST;
        self.parts.insert(at, data.to_vec());
        true
    }

    fn is_complete(&self) -> bool {
        self.head.is_some() && self.end == Some(self.parts.values().map(Vec::len).sum())
    }

    fn whole(self) -> Option<Whole> {
        let mut frame = self.head?;
        let (ip, v6) = ip_of(&frame)?;
        self.parts.values().for_each(|part| frame.extend(part));
        let len = frame.len() - ip;
        if len > usize::from(u16::MAX) {
            return None;
        }
        if v6 {
            put16(&mut frame, ip + 4, len - 40);
        } else {
            put16(&mut frame, ip + 2, len);
            let header = v4_header(&frame, ip)?;
            sum_header(&mut frame, ip, header);
        }
        Some(Whole { frame, longest: self.longest.try_into().ok()? })
    }
}

impl Fragments {
    /// Takes a fragment that came from this port and is for this zone. The packet, if it was the last that was missing.
    pub fn add(&mut self, (port, zone): (u32, u16), frame: &[u8], now_ms: u64) -> Option<Whole> {
        self.forget(port, now_ms);
        let fragment = Fragment::read(frame)?;
        let name = Name { port, zone, addresses: fragment.addresses, id: fragment.id, proto: fragment.proto };
        let partial =
            self.packets.entry(name).or_insert_with(|| Partial { since_ms: now_ms, bytes: COST, ..Partial::default() });
        let before = if partial.parts.is_empty() { 0 } else { partial.bytes };
        let fits = partial.add(fragment);
        self.bytes += partial.bytes - before;
        if !fits || partial.is_complete() {
            return self.take(&name).filter(|_| fits)?.whole();
        }
        None
    }

    fn take(&mut self, name: &Name) -> Option<Partial> {
        let partial = self.packets.remove(name)?;
        self.bytes -= partial.bytes;
        Some(partial)
    }

    /// What has waited for too long goes, and what is too much of this port's, the oldest first; of all that is there, the port's that has most.
    fn forget(&mut self, port: u32, now_ms: u64) {
        let first = Name { port, zone: 0, addresses: [[0; 16]; 2], id: 0, proto: 0 };
        let last = Name { port, zone: u16::MAX, addresses: [[0xff; 16]; 2], id: u32::MAX, proto: u8::MAX };
        let own = self.packets.range(first..=last);
        let mut own: Vec<_> = own.map(|(name, partial)| (partial.since_ms, *name, partial.bytes)).collect();
        own.sort_unstable();
        let mut bytes: usize = own.iter().map(|(.., bytes)| bytes).sum();
        for (since_ms, name, size) in own {
            if since_ms + PATIENCE_MS > now_ms && bytes <= MOST_OF_PORT {
                break;
            }
            bytes -= size;
            self.take(&name);
        }
        if self.bytes > MOST {
            self.make_room();
        }
    }

    /// Half of what the port has that has most goes.
    #[cold]
    fn make_room(&mut self) {
        let mut ports = BTreeMap::new();
        for (name, partial) in &self.packets {
            *ports.entry(name.port).or_insert(0) += partial.bytes;
        }
        let Some((port, most)) = ports.into_iter().max_by_key(|(_, bytes)| *bytes) else { return };
        let own: Vec<_> = self.packets.keys().filter(|name| name.port == port).copied().collect();
        let enough = self.bytes.saturating_sub(most / 2);
        for name in own {
            if self.bytes <= enough {
                break;
            }
            self.take(&name);
        }
    }

    /// The packet in fragments, none longer than this; as it is if it is not longer itself. None if there would be more of them than a packet is put together of: it has
    /// not come like that.
    pub fn cut(&mut self, frame: Vec<u8>, longest: u16) -> Vec<Vec<u8>> {
        let longest = usize::from(longest);
        let cut = match ip_of(&frame) {
            Some((ip, false)) if usize::from(be16(&frame, ip + 2).unwrap_or(0)) > longest => {
                cut_v4(&frame, ip, longest)
            }
            Some((ip, true)) if usize::from(be16(&frame, ip + 4).unwrap_or(0)) + 40 > longest => {
                self.last_id = self.last_id.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                cut_v6(&frame, ip, longest, self.last_id)
            }
            _ => return vec![frame],
        };
        cut.unwrap_or_default()
    }
}

fn cut_v4(frame: &[u8], ip: usize, longest: usize) -> Option<Vec<Vec<u8>>> {
    let header = v4_header(frame, ip)?;
    let data = frame.get(ip + header..ip + usize::from(be16(frame, ip + 2)?))?;
    let size = longest.checked_sub(header)? & !7;
    if size == 0 {
        return None;
    }
    if data.len().div_ceil(size) > MOST_PARTS {
        return None;
    }
    let dont = be16(frame, ip + 6)? & DONT;
    let mut fragments = Vec::new();
    for (n, part) in data.chunks(size).enumerate() {
        let mut fragment = [frame.get(..ip + header)?, part].concat();
        if n > 0 {
            leave_options_out(fragment.get_mut(ip + 20..ip + header)?);
        }
        let more = if (n + 1) * size < data.len() { MORE } else { 0 };
        put16(&mut fragment, ip + 2, header + part.len());
        put16(&mut fragment, ip + 6, usize::from(dont | more) | (n * size / 8));
        sum_header(&mut fragment, ip, header);
        fragments.push(fragment);
    }
    Some(fragments)
}

/// Options that are not in every fragment become options that do nothing (RFC 791 §3.1).
fn leave_options_out(options: &mut [u8]) {
    const NOTHING: u8 = 1;
    let mut at = 0;
    while let Some(kind) = options.get(at).copied().filter(|kind| *kind != 0) {
        let len = if kind == NOTHING { 1 } else { options.get(at + 1).map_or(1, |len| usize::from(*len).max(2)) };
        let end = (at + len).min(options.len());
        if kind & 0x80 == 0 {
            options.get_mut(at..end).into_iter().for_each(|option| option.fill(NOTHING));
        }
        at = end;
    }
}

fn cut_v6(frame: &[u8], ip: usize, longest: usize, id: u32) -> Option<Vec<Vec<u8>>> {
    let (at, named) = v6_headers(frame, ip)?;
    let data = frame.get(at..ip + 40 + usize::from(be16(frame, ip + 4)?))?;
    let size = longest.checked_sub(at - ip + 8)? & !7;
    if size == 0 {
        return None;
    }
    if data.len().div_ceil(size) > MOST_PARTS {
        return None;
    }
    let mut head = frame.get(..at)?.to_vec();
    let next = std::mem::replace(head.get_mut(named)?, 44);
    let mut fragments = Vec::new();
    for (n, part) in data.chunks(size).enumerate() {
        let more = usize::from((n + 1) * size < data.len());
        let mut own = [next, 0, 0, 0, 0, 0, 0, 0];
        put16(&mut own, 2, (n * size) | more);
        own[4..].copy_from_slice(&id.to_be_bytes());
        let mut fragment = [&head, &own[..], part].concat();
        let len = fragment.len() - ip - 40;
        put16(&mut fragment, ip + 4, len);
        fragments.push(fragment);
    }
    Some(fragments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PORT: (u32, u16) = (1, 0);

    fn packet(v6: bool, tags: usize, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 5]));
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 0, 64]);
            frame.extend([&[0xfd; 15][..], &[1], &[0xfd; 15], &[2]].concat());
            // Options from hop to hop, and UDP behind.
            frame.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        } else {
            frame.extend([8, 0, 0x46, 0, 0, 0, 0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            // A router alert, which is in every fragment.
            frame.extend([0x94, 4, 0, 0]);
        }
        frame.extend(payload);
        let ip = 14 + 4 * tags;
        let len = frame.len() - ip;
        if v6 {
            put16(&mut frame, ip + 4, len - 40);
        } else {
            put16(&mut frame, ip + 2, len);
            sum_header(&mut frame, ip, 24);
        }
        frame
    }

    fn is_sound(fragment: &[u8], longest: usize) -> bool {
        let (ip, v6) = ip_of(fragment).unwrap();
        let summed = v6 || lasthop_frame::sum::finish(lasthop_frame::sum::sum(&fragment[ip..ip + 24])) == 0xffff;
        fragment.len() - ip <= longest && summed
    }

    #[test]
    fn a_fragment_that_overlaps_another_ends_its_packet() {
        let frame = packet(false, 0, &[7; 100]);
        let mut fragments = Fragments::default();
        let cut = fragments.cut(frame, 24 + 40);
        assert_eq!(cut.len(), 3);
        let mut early = cut[1].clone();
        put16(&mut early, 14 + 6, usize::from(MORE) | 4);
        assert_eq!(fragments.add(PORT, &cut[0], 0), None);
        assert_eq!(fragments.add(PORT, &early, 0), None);
        assert_eq!(fragments.add(PORT, &cut[1], 0), None);
        assert_eq!(fragments.add(PORT, &cut[2], 0), None, "the first is gone");
        assert_eq!(fragments.add((2, 0), &cut[0], 0), None, "of another port");
        assert!(fragments.add(PORT, &cut[0], 0).is_some());
    }

    #[test]
    fn what_waits_is_bounded_and_goes_in_time() {
        let mut fragments = Fragments::default();
        let first = fragments.cut(packet(false, 0, &[7; 3000]), 1500).remove(0);
        let mut of = |port: u32, id: u16, now_ms: u64| {
            let mut fragment = first.clone();
            put16(&mut fragment, 14 + 4, id.into());
            assert_eq!(fragments.add((port, 0), &fragment, now_ms), None);
            (fragments.bytes, fragments.packets.len())
        };
        for port in 1..=30 {
            let most = (0..1000).map(|id| of(port, id, 0).0).max().unwrap_or(0);
            assert!(most <= MOST + 4096, "{most}");
        }
        let there = of(31, 1, 1).0;
        assert!((MOST * 3 / 4..MOST + 4096).contains(&there), "{there}");
        for port in 1..=30 {
            of(port, 0, PATIENCE_MS + 1);
        }
        let (bytes, packets) = of(1, 0, PATIENCE_MS + 1);
        assert!(packets == 31 && bytes < 31 * 3000, "{packets} of {bytes} bytes");
    }

    proptest! {
        /// Whatever is cut is put together again, whichever comes first and however often.
        #[test]
        fn what_is_cut_is_put_together(
            v6: bool, tags in 0usize..3, payload in prop::collection::vec(any::<u8>(), 1..4000),
            longest in 80u16..1500, order in any::<u64>(),
        ) {
            let frame = packet(v6, tags, &payload);
            let mut fragments = Fragments::default();
            let mut cut = fragments.cut(frame.clone(), longest);
            prop_assert!(cut.iter().all(|fragment| is_sound(fragment, longest.into())));
            if cut.len() == 1 {
                prop_assert_eq!(&cut[0], &frame);
                return Ok(());
            }
            // Nobody puts more parts together than there may be: what needs more is not sent.
            prop_assert!(cut.len() <= MOST_PARTS);
            prop_assume!(!cut.is_empty());
            cut.sort_by_key(|fragment| fragment.iter().fold(order, |h, b| h.rotate_left(5) ^ u64::from(*b)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (last, rest) = cut.split_last().unwrap();
            for fragment in rest.iter().chain(rest) {
                prop_assert_eq!(fragments.add(PORT, fragment, 5), None);
            }
            let whole = fragments.add(PORT, last, 5).expect("it is complete");
            prop_assert_eq!(whole.frame, frame);
            prop_assert!(whole.longest <= longest);
            prop_assert_eq!((fragments.bytes, fragments.packets.len()), (0, 0));
        }

        #[test]
        fn any_frames_are_taken(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..20), v6: bool, longest: u16) {
            let mut fragments = Fragments::default();
            for frame in frames {
                let mut named = packet(v6, 0, &[]);
                named.truncate(14);
                named.push(if v6 { 0x60 } else { 0x45 });
                named.extend(&frame);
                for frame in [frame, named] {
                    fragments.add(PORT, &frame, 5);
                    fragments.cut(frame, longest);
                }
            }
            prop_assert_eq!(fragments.bytes, fragments.packets.values().map(|partial| partial.bytes).sum::<usize>());
        }
    }
}
