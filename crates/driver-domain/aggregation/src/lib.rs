//! Receive aggregation: the TCP segments, or the UDP datagrams, of a flow that came in one burst become one packet of up to
//! 64 KiB, without a byte being copied: it is the first frame followed by the payloads of the others. The switch hands it over
//! whole, or cuts it for a receiver that cannot take it; then what comes out is what came in.
//!
//! The rules are those of Linux (`tcp_gro_receive`, `udp_gro_receive_segment`, `inet_gro_receive`, `ipv6_gro_receive`): in
//! order, same headers and options, all but the last of one size, PSH and FIN end a packet, CWR begins one; no fragments, no IP
//! options or extension headers, no datagrams without a checksum. Checksums must be right, or known to be open. What does not fit is left alone, and nothing of its connection
//! overtakes it.
//!
//! A pure function of the frames: no I/O, no allocation, at most [`FLOWS`] flows and [`BURST`] frames; nothing is kept from
//! one burst to the next.

mod segment;

use arrayvec::ArrayVec;
use lasthop_frame::{VnetHdr, sum};
use segment::{CWR, Kind, Segment, put16};

pub use segment::SNAPSHOT;

/// Most frames in one burst.
pub const BURST: usize = 64;
/// Most flows that are followed at once; of more, the one that began first is given up.
pub const FLOWS: usize = 8;
/// Longest frame whose checksum is looked at; longer ones are left alone.
const LONGEST: usize = 4096;
/// Longest IP packet, by the width of its length field. In IPv6 it is the payload's; headers are kept out all the same.
const MOST: usize = 65_535;

/// A packet for the switch: a frame as it came, or several made one.
#[derive(Clone, Copy, Debug)]
struct Packet {
    first: u8,
    last: u8,
    frames: u8,
    /// Payload of all of them in bytes, and of the first.
    payload: usize,
    size: u16,
    /// FIN and PSH of the last.
    ending: u8,
}

/// What may still be added to.
#[derive(Clone, Copy, Debug)]
struct Flow {
    packet: u8,
    open: bool,
    /// The first frame's checksum has been found right.
    sound: bool,
    /// The first frame's headers.
    head: Segment,
    /// Identifications stay the same, if that is known yet.
    fixed_id: Option<bool>,
}

/// A frame's place in its packet.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The next one of the packet; itself if there is none.
    next: u8,
    /// The part of the frame that goes into a packet behind the first.
    payload: (u16, u16),
}

/// Frames of a burst on their way to packets.
#[derive(Debug)]
pub struct Merger {
    packets: ArrayVec<Packet, BURST>,
    flows: ArrayVec<Flow, FLOWS>,
    links: ArrayVec<Link, BURST>,
    given_up: usize,
    /// Where a frame is summed.
    room: Box<[u8; LONGEST]>,
}

impl Default for Merger {
    fn default() -> Self {
        let room = Box::new([0; LONGEST]);
        Self { packets: ArrayVec::new(), flows: ArrayVec::new(), links: ArrayVec::new(), given_up: 0, room }
    }
}

impl Merger {
    /// Forgets everything: a new burst begins.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.flows.clear();
        self.links.clear();
    }

    /// Adds the burst's next frame, of `len` bytes; frames count from 0. `read(frame, buffer)` copies the beginning of a frame
    /// that has been added, this one included, to a buffer and says how many bytes that were. Frames beyond [`BURST`] are not
    /// taken; false then.
    pub fn add(&mut self, len: usize, read: &mut impl FnMut(usize, &mut [u8]) -> usize) -> bool {
        if self.links.is_full() {
            return false;
        }
        let number = self.links.len() as u8;
        let mut snapshot = [0; SNAPSHOT];
        let got = read(number.into(), &mut snapshot).min(SNAPSHOT);
        let kind = Segment::parse(snapshot.get(..got).unwrap_or_default(), len);
        if let Kind::Segment(segment) = &kind {
            self.links.push(Link { next: number, payload: segment.payload_range() });
            if self.join(number, segment, read) {
                return true;
            }
        } else {
            self.links.push(Link { next: number, payload: (0, 0) });
        }
        let (payload, size) = if let Kind::Segment(s) = &kind { (usize::from(s.payload), s.payload) } else { (0, 0) };
        self.packets.push(Packet { first: number, last: number, frames: 1, payload, size, ending: 0 });
        match kind {
            Kind::Other => {}
            Kind::Odd => self.flows.iter_mut().for_each(|f| f.open = false),
            Kind::Segment(head) => self.begin(head),
        }
        true
    }

    /// Adds a segment to what its flow has; false if it must stand alone. Its flow is closed then.
    fn join(&mut self, number: u8, segment: &Segment, read: &mut impl FnMut(usize, &mut [u8]) -> usize) -> bool {
        let Some(flow) = self.flows.iter_mut().find(|f| f.open && f.head.same_connection(segment)) else {
            return false;
        };
        // Until it is known to fit.
        flow.open = false;
        let Some(packet) = self.packets.get_mut(usize::from(flow.packet)) else { return false };
        let Some(fixed_id) = flow.head.fits(segment, packet.payload, usize::from(packet.frames), flow.fixed_id) else {
            return false;
        };
        let payload = packet.payload + usize::from(segment.payload);
        if segment.payload > packet.size || flow.head.ip_header() + payload > MOST {
            return false;
        }
        if !flow.sound && !flow.head.is_sound(packet.first.into(), &mut self.room[..], read) {
            return false;
        }
        flow.sound = true;
        if !segment.is_sound(number.into(), &mut self.room[..], read) {
            return false;
        }
        if let Some(last) = self.links.get_mut(usize::from(packet.last)) {
            last.next = number;
        }
        packet.last = number;
        packet.frames += 1;
        packet.payload = payload;
        packet.ending = segment.ending();
        flow.fixed_id = fixed_id;
        flow.open = segment.payload == packet.size && segment.ending() == 0;
        true
    }

    /// A segment that others may be added to.
    fn begin(&mut self, head: Segment) {
        if !head.may_begin() {
            return;
        }
        let flow = Flow { packet: (self.packets.len() - 1) as u8, open: true, sound: false, head, fixed_id: None };
        // One that is closed can go: nothing is found in it any more.
        let place = self.flows.iter().position(|f| !f.open).or_else(|| {
            self.given_up = (self.given_up + 1) % FLOWS;
            self.flows.is_full().then_some(self.given_up)
        });
        match place.and_then(|at| self.flows.get_mut(at)) {
            Some(old) => *old = flow,
            None => drop(self.flows.try_push(flow)),
        }
    }

    /// How many packets the frames have become.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// The packet's first frame, and how many more are in it.
    pub fn first(&self, packet: usize) -> Option<(usize, usize)> {
        self.packets.get(packet).map(|p| (usize::from(p.first), usize::from(p.frames) - 1))
    }

    /// The frames of a packet behind its first, each with the part of it that is payload: offset and length.
    pub fn rest(&self, packet: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut at = self.packets.get(packet).map_or(u8::MAX, |p| p.first);
        std::iter::from_fn(move || {
            let next = self.links.get(usize::from(at))?.next;
            if next == at {
                return None;
            }
            at = next;
            let (from, len) = self.links.get(usize::from(at))?.payload;
            Some((usize::from(at), from.into(), len.into()))
        })
    }

    /// Of a packet of several frames: makes the first one's headers those of all. `headers` is the beginning of that frame, as
    /// long as it can be up to [`SNAPSHOT`]. Returns the virtio-net header, and how many bytes of the frame come before the
    /// second's payload; `None` if the packet is a single frame, and nothing was changed then.
    pub fn finish(&self, packet: usize, headers: &mut [u8]) -> Option<(VnetHdr, usize)> {
        let packet = self.packets.get(packet).filter(|p| p.frames > 1)?;
        let Kind::Segment(head) = Segment::parse(headers, usize::MAX) else { return None };
        let (l3, l4) = (usize::from(head.l3), usize::from(head.l4));
        let l4_len = usize::from(head.hdr_len) - l4 + packet.payload;
        if head.ipv6 {
            put16(headers, l3 + 4, l4_len as u16);
        } else {
            let ip = headers.get_mut(l3..l4)?;
            put16(ip, 2, (20 + l4_len) as u16);
            put16(ip, 10, 0);
            let sum = sum::sum(ip);
            put16(ip, 10, !sum::fold(sum));
        }
        if head.udp {
            put16(headers, l4 + 4, l4_len as u16);
        } else {
            *headers.get_mut(l4 + 13)? |= packet.ending;
        }
        put16(headers, l4 + usize::from(head.checksum_offset()), sum::fold(head.pseudo(l4_len)));
        let kind = match (head.udp, head.ipv6) {
            (true, _) => VnetHdr::GSO_UDP_L4,
            (false, true) => VnetHdr::GSO_TCPV6,
            (false, false) => VnetHdr::GSO_TCPV4,
        };
        let ecn = if head.flags & CWR != 0 { VnetHdr::GSO_ECN } else { 0 };
        let header = VnetHdr {
            flags: VnetHdr::F_NEEDS_CSUM,
            gso_type: kind | ecn,
            hdr_len: head.hdr_len,
            gso_size: packet.size,
            csum_start: head.l4,
            csum_offset: head.checksum_offset(),
            num_buffers: 0,
        };
        Some((header, usize::from(head.hdr_len) + usize::from(packet.size)))
    }
}

/// Of a frame whose TCP or UDP checksum is open, which holds the sum over the pseudo header alone, as the kernel leaves a packet that it has merged
/// of several: the virtio-net header that says so, for segments of so many bytes of payload if it is TCP and longer. Where datagrams of UDP were
/// merged nobody can tell from one that is as long, which kernels leave open too if it never left the host: it stays one. `snapshot` is its
/// beginning, `len` its length. `None` if it is not open, or no plain TCP or UDP.
pub fn opened(snapshot: &[u8], len: usize, segment: u16) -> Option<VnetHdr> {
    let Kind::Segment(head) = Segment::parse(snapshot, len) else { return None };
    let l4_len = usize::from(head.hdr_len) - usize::from(head.l4) + usize::from(head.payload);
    if !head.is_open(l4_len) {
        return None;
    }
    let is_cut = !head.udp && head.payload > segment;
    let gso_type = match (is_cut, head.ipv6) {
        (false, _) => VnetHdr::GSO_NONE,
        (true, true) => VnetHdr::GSO_TCPV6,
        (true, false) => VnetHdr::GSO_TCPV4,
    };
    let ecn = if is_cut && head.flags & CWR != 0 { VnetHdr::GSO_ECN } else { 0 };
    Some(VnetHdr {
        flags: VnetHdr::F_NEEDS_CSUM,
        gso_type: gso_type | ecn,
        hdr_len: head.hdr_len,
        gso_size: if is_cut { segment } else { 0 },
        csum_start: head.l4,
        csum_offset: head.checksum_offset(),
        num_buffers: 0,
    })
}

#[cfg(test)]
mod tests;
