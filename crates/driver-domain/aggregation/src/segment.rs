//! The headers of one TCP segment or UDP datagram, and what makes two of them neighbours.

use lasthop_frame::sum;

/// Bytes of a frame in which all its headers are: Ethernet with two tags, IPv6, and the longest TCP header, and some to spare.
pub const SNAPSHOT: usize = 128;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
pub(super) const CWR: u8 = 0x80;

/// What a frame is to receive aggregation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Neither TCP nor UDP.
    Other,
    /// One of both, but no more is known of it.
    Odd,
    /// One without anything unusual around it.
    Segment(Segment),
}

/// The headers of a TCP segment, or of a UDP datagram, which has neither flags nor a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) ipv6: bool,
    pub(super) udp: bool,
    pub(super) l3: u16,
    pub(super) l4: u16,
    pub(super) hdr_len: u16,
    /// Bytes of payload.
    pub(super) payload: u16,
    pub(super) flags: u8,
    sequence: u32,
    checksum: u16,
    id: u16,
    dont_fragment: bool,
    /// The headers; 0 where neighbours may differ and behind them.
    same: [u8; SNAPSHOT],
    addresses: u32,
}

/// Parses what is behind the IP header: from the snapshot, the frame's length, where both headers begin, and where the IP
/// packet ends.
type Layer4 = fn(&[u8], usize, (usize, usize), usize) -> Option<Segment>;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Does nothing behind the end.
pub(super) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(to) = bytes.get_mut(at..at + 2) {
        to.copy_from_slice(&value.to_be_bytes());
    }
}

impl Segment {
    /// Looks at a frame of `len` bytes that begins with `snapshot`.
    pub(super) fn parse(snapshot: &[u8], len: usize) -> Kind {
        let mut l3 = 12;
        let mut kind = be16(snapshot, l3);
        for _ in 0..2 {
            if let Some(0x8100 | 0x88a8) = kind {
                l3 += 4;
                kind = be16(snapshot, l3);
            }
        }
        l3 += 2;
        let ip = snapshot.get(l3..).unwrap_or_default();
        let (ipv6, protocol) = match kind {
            Some(0x0800) => (false, ip.get(9)),
            Some(0x86dd) => (true, ip.get(6)),
            _ => return Kind::Other,
        };
        let udp = match protocol {
            Some(6) => false,
            Some(17) => true,
            // Behind extension headers there may be anything.
            Some(0 | 43 | 44 | 51 | 60 | 135) if ipv6 => return Kind::Odd,
            _ => return Kind::Other,
        };
        let layer4 = if udp { Self::udp } else { Self::tcp };
        let parsed = if ipv6 { Self::ipv6(snapshot, len, l3, layer4) } else { Self::ipv4(snapshot, len, l3, layer4) };
        parsed.map_or(Kind::Odd, Kind::Segment)
    }

    fn ipv4(snapshot: &[u8], len: usize, l3: usize, layer4: Layer4) -> Option<Self> {
        let ip: &[u8; 20] = snapshot.get(l3..)?.first_chunk()?;
        let (total, id, fragment) = (be16(ip, 2)?, be16(ip, 4)?, be16(ip, 6)?);
        // No options; no fragment and no reserved bit; a right checksum.
        if ip[0] != 0x45 || fragment & 0xbfff != 0 || sum::fold(sum::sum(ip)) != 0xffff {
            return None;
        }
        let mut segment = layer4(snapshot, len, (l3, l3 + 20), l3 + usize::from(total))?;
        (segment.id, segment.dont_fragment) = (id, fragment & 0x4000 != 0);
        segment.addresses = sum::sum(&ip[12..]);
        for at in [2, 4, 10] {
            put16(&mut segment.same, l3 + at, 0);
        }
        Some(segment)
    }

    fn ipv6(snapshot: &[u8], len: usize, l3: usize, layer4: Layer4) -> Option<Self> {
        let ip: &[u8; 40] = snapshot.get(l3..)?.first_chunk()?;
        if ip[0] >> 4 != 6 {
            return None;
        }
        let mut segment = layer4(snapshot, len, (l3, l3 + 40), l3 + 40 + usize::from(be16(ip, 4)?))?;
        (segment.ipv6, segment.addresses) = (true, sum::sum(&ip[8..]));
        put16(&mut segment.same, l3 + 4, 0);
        Some(segment)
    }

    /// `end` is where the IP packet ends; padding may follow.
    fn tcp(snapshot: &[u8], len: usize, (l3, l4): (usize, usize), end: usize) -> Option<Self> {
        let tcp: &[u8; 20] = snapshot.get(l4..)?.first_chunk()?;
        let hdr_len = l4 + usize::from(tcp[12] >> 4) * 4;
        if hdr_len < l4 + 20 || end > len {
            return None;
        }
        let mut segment = Self::bare(snapshot, (l3, l4), hdr_len, end)?;
        let same = &mut segment.same;
        same.get_mut(l4 + 4..l4 + 8)?.fill(0);
        *same.get_mut(l4 + 13)? &= !(FIN | PSH | CWR);
        put16(same, l4 + 16, 0);
        let [s0, s1, s2, s3] = [tcp[4], tcp[5], tcp[6], tcp[7]];
        (segment.flags, segment.sequence) = (tcp[13], u32::from_be_bytes([s0, s1, s2, s3]));
        segment.checksum = be16(tcp, 16)?;
        Some(segment)
    }

    /// The same of a datagram.
    fn udp(snapshot: &[u8], len: usize, (l3, l4): (usize, usize), end: usize) -> Option<Self> {
        let udp: &[u8; 8] = snapshot.get(l4..)?.first_chunk()?;
        // Between its end and that of the IP packet there may be something (RFC 9868) that would be lost.
        if end > len || l4 + usize::from(be16(udp, 4)?) != end {
            return None;
        }
        let mut segment = Self::bare(snapshot, (l3, l4), l4 + 8, end)?;
        segment.same.get_mut(l4 + 4..l4 + 8)?.fill(0);
        (segment.udp, segment.checksum) = (true, be16(udp, 6)?);
        Some(segment)
    }

    /// What both have: where things are, and the headers as they came.
    fn bare(snapshot: &[u8], (l3, l4): (usize, usize), hdr_len: usize, end: usize) -> Option<Self> {
        let mut same = [0; SNAPSHOT];
        same.get_mut(..hdr_len)?.copy_from_slice(snapshot.get(..hdr_len)?);
        Some(Self {
            ipv6: false,
            udp: false,
            l3: l3 as u16,
            l4: l4 as u16,
            hdr_len: hdr_len as u16,
            payload: u16::try_from(end.checked_sub(hdr_len)?).ok()?,
            flags: 0,
            sequence: 0,
            checksum: 0,
            id: 0,
            dont_fragment: false,
            same,
            addresses: 0,
        })
    }

    /// Where in the frame the payload is, and its length.
    pub(super) fn payload_range(&self) -> (u16, u16) {
        (self.hdr_len, self.payload)
    }

    /// Bytes of the IP packet before the payload.
    pub(super) fn ip_header(&self) -> usize {
        usize::from(self.hdr_len.saturating_sub(self.l3))
    }

    /// FIN and PSH: with these, a packet ends.
    pub(super) fn ending(&self) -> u8 {
        self.flags & (FIN | PSH)
    }

    /// Whether others may follow it in a packet.
    pub(super) fn may_begin(&self) -> bool {
        let plain = self.flags & (FIN | SYN | RST | PSH | ACK | URG) == ACK;
        self.payload > 0 && self.is_summed() && (self.udp || plain)
    }

    /// A datagram may come without a checksum (RFC 768), and what is cut out of a packet has one.
    fn is_summed(&self) -> bool {
        !self.udp || self.checksum != 0
    }

    /// Where in its own header the checksum is.
    pub(super) fn checksum_offset(&self) -> u16 {
        if self.udp { 6 } else { 16 }
    }

    fn part(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.same.get(from..from + len)
    }

    /// Same addresses and ports.
    pub(super) fn same_connection(&self, other: &Self) -> bool {
        let key = |s: &Self| {
            let (l3, l4) = (usize::from(s.l3), usize::from(s.l4));
            let (at, len) = if s.ipv6 { (l3 + 8, 32) } else { (l3 + 12, 8) };
            (at, len, l4)
        };
        let ((a, len, a4), (b, _, b4)) = (key(self), key(other));
        (self.ipv6, self.udp) == (other.ipv6, other.udp)
            && self.part(a, len) == other.part(b, len)
            && self.part(a4, 4) == other.part(b4, 4)
    }

    /// Whether `next` comes right behind this one and `payload` bytes of it and others, `frames` in all. If so: whether
    /// identifications stay the same, if that is known now. `fixed_id`: if it was before.
    pub(super) fn fits(
        &self,
        next: &Self,
        payload: usize,
        frames: usize,
        fixed_id: Option<bool>,
    ) -> Option<Option<bool>> {
        let follows = self.udp || next.sequence == self.sequence.wrapping_add(payload as u32);
        let same = self.hdr_len == next.hdr_len && self.same == next.same;
        if !follows || !same || next.payload == 0 || next.flags & CWR != 0 || !next.is_summed() {
            return None;
        }
        if self.ipv6 {
            return Some(None);
        }
        // One more for each; or, where it has no meaning (RFC 6864 §4.1), always the same.
        let fixed = next.id == self.id;
        let counted = next.id == self.id.wrapping_add(frames as u16);
        match fixed_id {
            None | Some(true) if fixed && self.dont_fragment => Some(Some(true)),
            None | Some(false) if counted => Some(Some(false)),
            _ => None,
        }
    }

    /// Sum over the pseudo header, for so many bytes of TCP or UDP.
    pub(super) fn pseudo(&self, l4_len: usize) -> u32 {
        let protocol = if self.udp { 17 } else { 6 };
        self.addresses + protocol + (l4_len & 0xffff) as u32 + (l4_len >> 16) as u32
    }

    /// The checksum holds the sum over the pseudo header alone.
    pub(super) fn is_open(&self, l4_len: usize) -> bool {
        self.checksum == sum::fold(self.pseudo(l4_len))
    }

    /// Whether the checksum is right. Or open: then the field holds the sum over the pseudo header, as the other end of a veth
    /// pair leaves it. That a wrong one looks like that is as unlikely as that it looks right.
    /// `room` is for a whole frame.
    pub(super) fn is_sound(
        &self,
        frame: usize,
        room: &mut [u8],
        read: &mut impl FnMut(usize, &mut [u8]) -> usize,
    ) -> bool {
        let end = usize::from(self.hdr_len) + usize::from(self.payload);
        let pseudo = self.pseudo(end - usize::from(self.l4));
        if self.is_open(end - usize::from(self.l4)) {
            return true;
        }
        let Some(bytes) = room.get_mut(..end) else { return false };
        if read(frame, bytes) != end {
            return false;
        }
        let l4 = bytes.get(usize::from(self.l4)..).unwrap_or_default();
        sum::fold(pseudo + sum::sum(l4)) == 0xffff
    }
}
