//! What a sender asked for in its virtio-net header, and what is left to do for one receiver.

use crate::extract::{Layout, link_layer, network_layer};
use crate::key::{Depth, FlowKey};
use crate::segment::Segmenter;
use crate::vnet::{VnetHdr, feature};
use crate::{ethertype, proto, put16, sum};
use lasthop_types::DropReason;

/// Most segments one packet may be cut into: 64 KiB at a segment size of 32, below any MSS a TCP uses. Bounds the work
/// that one packet of a hostile guest causes.
pub const MAX_SEGMENTS: usize = 2048;

/// What the sender asked for, checked against the snapshot: positions lie in the snapshot and agree with its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: the frame is to be delivered as it is.
    #[default]
    None,
    /// A checksum to be completed.
    Checksum(CompleteChecksum),
    /// Segmentation (which includes checksums).
    Gso(Gso),
}

/// Kind of segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP segments.
    Tcp,
    /// IP fragments of one UDP datagram (UFO).
    Ufo,
    /// UDP datagrams (USO).
    Uso,
}

/// A packet to be segmented. All offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// How.
    pub kind: GsoKind,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// The sender set [`VnetHdr::GSO_ECN`].
    pub ecn: bool,
    /// Payload bytes in each segment; for UFO the IP payload of each fragment, a multiple of 8.
    pub size: u16,
    /// Real length of all headers, the transport header's included: the sender's own figure is ignored.
    pub hdr_len: u16,
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    pub(crate) fragmentable: u16,
    pub(crate) next_header: u16,
    pub(crate) routing: bool,
    /// End of the IP packet.
    pub(crate) end: u32,
}

/// What a receiver's driver accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Its negotiated virtio features, see [`feature`]. Without GUEST_CSUM the others do not count (virtio 1.2 §5.1.3.1).
    pub features: u64,
    /// Longest network-layer packet in bytes; 0 if unknown.
    pub mtu: u16,
}

impl Receiver {
    /// Whether it has all of these features.
    pub fn takes(&self, features: u64) -> bool {
        self.features & features == features
    }
}

/// How a packet gets to one receiver.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// Unchanged behind this header (`num_buffers` is the caller's to set).
    AsIs {
        /// Header for the receiver.
        vnet: VnetHdr,
    },
    /// Once, with the checksum completed while copying, behind an all-zero header.
    CompleteChecksum(CompleteChecksum),
    /// In pieces.
    Segment(Segmenter),
}

impl Offload {
    /// Checks a request against the frame's first bytes. `snapshot` is what [`extract`](crate::extract()) gets.
    ///
    /// [`DropReason::BadOffload`] if the request contradicts the frame (virtio 1.2 §5.1.6.2): positions outside it or
    /// behind the snapshot, unknown or mismatched segmentation type, segment size 0 or so small that there would be more
    /// than [`MAX_SEGMENTS`], segmentation without checksum, of a fragment or of a malformed packet. Also if the checksum
    /// field would overlap what the flow key is made of: completing it would deliver other headers than were judged.
    ///
    /// Whether the sender has negotiated the feature is for the caller to check.
    #[inline]
    pub fn check(vnet: &VnetHdr, snapshot: &[u8], frame_len: usize) -> Result<Self, DropReason> {
        if vnet.flags & VnetHdr::F_NEEDS_CSUM == 0 {
            return if vnet.gso_type == VnetHdr::GSO_NONE { Ok(Self::None) } else { Err(DropReason::BadOffload) };
        }
        Self::check_headers(vnet, snapshot, frame_len).ok_or(DropReason::BadOffload)
    }

    fn check_headers(vnet: &VnetHdr, snapshot: &[u8], frame_len: usize) -> Option<Self> {
        let snapshot = snapshot.get(..frame_len).unwrap_or(snapshot);
        let start = usize::from(vnet.csum_start);
        let field = start + usize::from(vnet.csum_offset);
        if field + 2 > snapshot.len() {
            return None;
        }
        let mut key = FlowKey::default();
        let l3 = link_layer(&mut key, snapshot);
        let at = network_layer(&mut key, snapshot, frame_len, l3, Depth::L4);
        if key.anomalies & !FlowKey::DEEP_VLAN != 0 || !spares_key(&key, &at, start, field) {
            return None;
        }
        if vnet.gso_type == VnetHdr::GSO_NONE {
            let field = u16::try_from(field).ok()?;
            return Some(Self::Checksum(CompleteChecksum { start: vnet.csum_start, field }));
        }
        Gso::new(vnet, snapshot, &key, &at).map(Self::Gso)
    }

    /// The link layer has become longer by so many bytes: what is asked for moves along with what it is asked for.
    /// It lies behind the link layer, in a [`Header`](crate::Header), so it moves neither below 0 nor out of its numbers.
    pub(crate) fn shift(&mut self, by: isize) {
        let moved = |at: u16| at.wrapping_add_signed(by as i16);
        match self {
            Self::None => {}
            Self::Checksum(job) => (job.start, job.field) = (moved(job.start), moved(job.field)),
            Self::Gso(gso) => {
                (gso.hdr_len, gso.l3, gso.l4) = (moved(gso.hdr_len), moved(gso.l3), moved(gso.l4));
                gso.fragmentable = moved(gso.fragmentable);
                if gso.ipv6 {
                    gso.next_header = moved(gso.next_header);
                }
                gso.end = gso.end.wrapping_add_signed(by as i32);
            }
        }
    }

    /// Where the checksum begins that is to be completed, and where it goes, in bytes from the start of the frame.
    pub(crate) fn checksum(&self) -> Option<(usize, usize)> {
        match self {
            Self::None => None,
            Self::Checksum(job) => Some((job.start.into(), job.field.into())),
            Self::Gso(gso) => Some((gso.l4.into(), usize::from(gso.l4) + gso.csum_offset())),
        }
    }

    /// What to do for this receiver. `snapshot` and `frame_len` are of the packet as it is now, edits and all.
    ///
    /// TCP and UFO segments are made as small as the receiver's MTU asks; a frame that is too long and cannot be cut is
    /// [`DropReason::OverMtu`].
    #[inline]
    pub fn for_receiver(&self, receiver: &Receiver, snapshot: &[u8], frame_len: usize) -> Result<Delivery, DropReason> {
        let mtu = usize::from(receiver.mtu);
        let gso = match self {
            Self::Gso(gso) => gso,
            // 14: the shortest link-layer header, so most frames pass without another look.
            _ if mtu != 0
                && frame_len > mtu + 14
                && frame_len - link_layer(&mut FlowKey::default(), snapshot).min(frame_len) > mtu =>
            {
                return Err(DropReason::OverMtu);
            }
            Self::None => return Ok(Delivery::AsIs { vnet: VnetHdr::default() }),
            Self::Checksum(job) if receiver.takes(feature::GUEST_CSUM) => {
                return Ok(Delivery::AsIs { vnet: needs_csum(job.start, job.field - job.start) });
            }
            Self::Checksum(job) => return Ok(Delivery::CompleteChecksum(*job)),
        };
        let gso = gso.for_mtu(mtu).ok_or(DropReason::OverMtu)?;
        let needed = match (gso.kind, gso.ipv6) {
            (GsoKind::Tcp, false) => feature::GUEST_TSO4,
            (GsoKind::Tcp, true) => feature::GUEST_TSO6,
            (GsoKind::Ufo, _) => feature::GUEST_UFO,
            (GsoKind::Uso, _) => feature::GUEST_USO4 | feature::GUEST_USO6,
        };
        let ecn = if gso.ecn { feature::GUEST_ECN } else { 0 };
        if receiver.takes(feature::GUEST_CSUM | needed | ecn) {
            Ok(Delivery::AsIs { vnet: gso.vnet() })
        } else {
            Segmenter::new(gso, receiver.takes(feature::GUEST_CSUM), snapshot)
                .map(Delivery::Segment)
                .ok_or(DropReason::BadOffload)
        }
    }
}

/// A receiver's header for a frame whose checksum is partial.
pub(crate) fn needs_csum(start: u16, offset: u16) -> VnetHdr {
    VnetHdr { flags: VnetHdr::F_NEEDS_CSUM, csum_start: start, csum_offset: offset, ..VnetHdr::default() }
}

/// Whether a checksum over what begins at `start`, stored at `field`, leaves what the key is made of as it is.
pub(crate) fn spares_key(key: &FlowKey, at: &Layout, start: usize, field: usize) -> bool {
    start >= at.l4 && !overlaps_key(key, field - at.l4)
}

/// Would a checksum stored `field` bytes behind the network header change what the key says?
fn overlaps_key(key: &FlowKey, field: usize) -> bool {
    match key.eth_type {
        ethertype::ARP | ethertype::RARP => return true,
        ethertype::IPV4 | ethertype::IPV6 if key.ip_frag & FlowKey::FRAG_LATER == 0 => {}
        _ => return false,
    }
    let (own, header_len) = match (key.ip_proto, key.eth_type) {
        (proto::TCP, _) => (16, 20),
        (proto::UDP, _) => (6, 8),
        (proto::SCTP, _) => (8, 12),
        (proto::ICMP, ethertype::IPV4) => (2, 8),
        // Neighbour discovery is judged up to its end.
        (proto::ICMPV6, ethertype::IPV6) => (2, usize::MAX),
        _ => return false,
    };
    field != own && field < header_len
}

impl Gso {
    fn new(vnet: &VnetHdr, snapshot: &[u8], key: &FlowKey, at: &Layout) -> Option<Self> {
        let ipv6 = key.eth_type == ethertype::IPV6;
        let ecn = vnet.gso_type & VnetHdr::GSO_ECN != 0;
        let (kind, proto, ip) = match vnet.gso_type & !VnetHdr::GSO_ECN {
            VnetHdr::GSO_TCPV4 => (GsoKind::Tcp, proto::TCP, ethertype::IPV4),
            VnetHdr::GSO_TCPV6 => (GsoKind::Tcp, proto::TCP, ethertype::IPV6),
            VnetHdr::GSO_UDP if !ecn => (GsoKind::Ufo, proto::UDP, key.eth_type),
            VnetHdr::GSO_UDP_L4 if !ecn => (GsoKind::Uso, proto::UDP, key.eth_type),
            _ => return None,
        };
        let is_ip = key.eth_type == ethertype::IPV4 || ipv6;
        let whole = key.ip_frag == 0 && !at.fragment_header;
        if !is_ip || key.eth_type != ip || key.ip_proto != proto || !whole {
            return None;
        }
        let (l4_len, csum_offset) = match kind {
            GsoKind::Tcp => (usize::from(snapshot.get(at.l4 + 12)? >> 4) * 4, 16),
            GsoKind::Ufo | GsoKind::Uso => (8, 6),
        };
        let hdr_len = at.l4 + l4_len;
        if usize::from(vnet.csum_start) != at.l4
            || vnet.csum_offset != csum_offset
            || hdr_len > snapshot.len()
            || hdr_len > at.end
        {
            return None;
        }
        let gso = Self {
            kind,
            ipv6,
            ecn,
            size: if kind == GsoKind::Ufo { vnet.gso_size & !7 } else { vnet.gso_size },
            hdr_len: u16::try_from(hdr_len).ok()?,
            l3: u16::try_from(at.l3).ok()?,
            l4: vnet.csum_start,
            fragmentable: u16::try_from(at.fragmentable).ok()?,
            next_header: u16::try_from(at.next_header).ok()?,
            routing: at.routing,
            end: u32::try_from(at.end).ok()?,
        };
        gso.is_bounded().then_some(gso)
    }

    /// First byte that is distributed over the segments, and behind it (UFO) the headers that the first must hold.
    pub(crate) fn cut_from(&self) -> (usize, usize) {
        let from = if self.kind == GsoKind::Ufo { self.fragmentable } else { self.hdr_len };
        (usize::from(from), usize::from(self.hdr_len.saturating_sub(from)))
    }

    /// Bytes to be distributed.
    pub(crate) fn cut_len(&self) -> usize {
        (self.end as usize).saturating_sub(self.cut_from().0)
    }

    fn is_bounded(&self) -> bool {
        self.size != 0
            && usize::from(self.size) >= self.cut_from().1
            && self.cut_len().div_ceil(usize::from(self.size)) <= MAX_SEGMENTS
    }

    /// With segments that a link of this MTU takes; `None` if that cannot be.
    fn for_mtu(&self, mtu: usize) -> Option<Self> {
        let mut gso = *self;
        let (size, ufo) = (usize::from(self.size), self.kind == GsoKind::Ufo);
        let header = self.cut_from().0.checked_sub(usize::from(self.l3))?;
        let inserted = if ufo && self.ipv6 { 8 } else { 0 };
        let longest = if self.cut_len() > size { header + inserted + size } else { header + self.cut_len() };
        if mtu == 0 || longest <= mtu {
            return Some(gso);
        }
        let room = mtu.checked_sub(header + inserted)?;
        let room = match self.kind {
            GsoKind::Tcp => room,
            GsoKind::Ufo => room & !7,
            GsoKind::Uso => return None,
        };
        gso.size = u16::try_from(room.min(size)).ok()?;
        gso.is_bounded().then_some(gso)
    }

    /// Protocol number of the transport header.
    pub(crate) fn protocol(&self) -> u8 {
        if self.kind == GsoKind::Tcp { proto::TCP } else { proto::UDP }
    }

    /// Of the checksum field in the transport header.
    pub(crate) fn csum_offset(&self) -> usize {
        if self.kind == GsoKind::Tcp { 16 } else { 6 }
    }

    fn vnet(&self) -> VnetHdr {
        let gso_type = match (self.kind, self.ipv6) {
            (GsoKind::Tcp, false) => VnetHdr::GSO_TCPV4,
            (GsoKind::Tcp, true) => VnetHdr::GSO_TCPV6,
            (GsoKind::Ufo, _) => VnetHdr::GSO_UDP,
            (GsoKind::Uso, _) => VnetHdr::GSO_UDP_L4,
        };
        VnetHdr {
            gso_type: if self.ecn { gso_type | VnetHdr::GSO_ECN } else { gso_type },
            hdr_len: self.hdr_len,
            gso_size: self.size,
            ..needs_csum(self.l4, self.csum_offset() as u16)
        }
    }
}

/// A checksum to be completed while copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompleteChecksum {
    /// Where summing begins, in bytes from the start of the frame; the sum goes to the frame's end.
    pub start: u16,
    /// Where the sum goes, in bytes from the start of the frame: within the snapshot.
    pub field: u16,
}

impl CompleteChecksum {
    /// Stores the checksum in `header`, the private first bytes of the frame (the snapshot). `rest_sum` is the partial
    /// sum over all bytes behind them, taken as if they began at an even offset ([`sum::sum`]).
    pub fn finish(&self, header: &mut [u8], rest_sum: u32) {
        let summed = header.get(usize::from(self.start)..).unwrap_or_default();
        let total = sum::append(sum::sum(summed), summed.len(), rest_sum);
        put16(header, usize::from(self.field), sum::finish(total));
    }
}

#[cfg(test)]
mod tests;
