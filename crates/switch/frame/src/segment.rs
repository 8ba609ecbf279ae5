//! Cuts a large packet for a receiver that cannot take it whole, header by header, while the caller copies the payload.
//!
//! ```text
//! for i in 0..segmenter.count() {
//!     let segment = segmenter.segment(i, snapshot, &mut buf)?;
//!     let sum = copy(payload[segment.payload]);          // guest to guest, summing
//!     segment.finish(&mut buf, sum);
//!     write(segment.vnet, &buf[..segment.header_len]);
//! }
//! ```
//! UFO differs in one point: the datagram's checksum is in its first fragment, so the caller first sums
//! [`Segmenter::datagram`] and calls [`Segmenter::set_datagram_sum`].

use crate::offload::{Gso, GsoKind, needs_csum};
use crate::vnet::VnetHdr;
use crate::{HEADER_LEN, be16, put16, sum};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Longest header of a segment: that of a packet and an IPv6 fragment header.
pub const SEGMENT_HEADER_LEN: usize = HEADER_LEN + 8;

/// Room for one segment's header, owned by the caller.
pub type HeaderBuf = [u8; SEGMENT_HEADER_LEN];

/// A plan for cutting one packet for one receiver. Nothing in it is allocated.
#[derive(Clone, Debug)]
pub struct Segmenter {
    gso: Gso,
    count: usize,
    /// The receiver completes checksums.
    partial: bool,
    /// Sum over addresses and protocol.
    pseudo: u32,
    /// UFO: sum over the datagram's payload.
    datagram_sum: u32,
    /// Identification of IPv6 fragments.
    ident: u32,
}

/// One segment to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The virtio-net header in front of it (`num_buffers` is the caller's to set).
    pub vnet: VnetHdr,
    /// Bytes of the header buffer that belong to it.
    pub header_len: usize,
    /// Payload that follows the header, as offsets in the original frame.
    pub payload: Range<usize>,
    /// Sum so far and the field's offset in the header.
    pending: Option<(u32, usize)>,
}

impl Segment {
    /// Whether [`Segment::finish`] needs the payload's sum; if not, the header is already complete.
    pub fn needs_sum(&self) -> bool {
        self.pending.is_some()
    }

    /// Stores the checksum in the segment's header. `payload_sum` is the partial sum over [`Segment::payload`].
    pub fn finish(&self, header: &mut [u8], payload_sum: u32) {
        if let Some((sum, field)) = self.pending {
            put16(header, field, sum::finish(sum + u32::from(sum::fold(payload_sum))));
        }
    }

    /// Length of the frame, without the virtio-net header.
    pub fn frame_len(&self) -> usize {
        self.header_len + self.payload.len()
    }
}

impl Segmenter {
    /// `None` if `snapshot` is not the one that `gso` was checked against.
    pub(crate) fn new(mut gso: Gso, partial: bool, snapshot: &[u8]) -> Option<Self> {
        let (l3, l4) = (usize::from(gso.l3), usize::from(gso.l4));
        snapshot.get(..usize::from(gso.hdr_len))?;
        let addresses = if gso.ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let pseudo = if gso.routing {
            // The last hop's address is somewhere in the routing header; the sender has already summed it.
            let total_len = gso.end.saturating_sub(u32::from(gso.l4));
            u32::from(be16(snapshot, l4 + gso.csum_offset())) + u32::from(!sum::fold(total_len))
        } else {
            sum::sum(snapshot.get(addresses)?) + u32::from(gso.protocol())
        };
        if gso.kind == GsoKind::Ufo && gso.ipv6 {
            // So that a fragment's payload length fits its field together with the fragment header.
            let room = 0xffff - 8 - (gso.fragmentable.saturating_sub(gso.l3 + 40));
            gso.size = gso.size.min(room & !7);
        }
        let count = gso.cut_len().div_ceil(usize::from(gso.size)).max(1);
        let ident = if gso.kind == GsoKind::Ufo && gso.ipv6 && count > 1 { fragment_ident() } else { 0 };
        Some(Self { gso, count, partial, pseudo, datagram_sum: 0, ident })
    }

    /// How many segments there are: 1 to [`MAX_SEGMENTS`](crate::MAX_SEGMENTS).
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the frame whose sum must be handed over with [`Segmenter::set_datagram_sum`] before the first segment.
    pub fn datagram(&self) -> Option<Range<usize>> {
        self.is_fragmenting().then(|| usize::from(self.gso.hdr_len)..self.gso.end as usize)
    }

    /// Takes the partial sum over [`Segmenter::datagram`].
    pub fn set_datagram_sum(&mut self, sum: u32) {
        self.datagram_sum = u32::from(sum::fold(sum));
    }

    fn is_fragmenting(&self) -> bool {
        self.gso.kind == GsoKind::Ufo && self.count > 1
    }

    /// Builds the header of segment `i` in `out`. `snapshot` is the one that was checked, as the actions left it.
    /// `None` if there is no such segment or the snapshot is too short.
    pub fn segment(&self, i: usize, snapshot: &[u8], out: &mut HeaderBuf) -> Option<Segment> {
        if i >= self.count {
            return None;
        }
        let (from, headers) = self.gso.cut_from();
        let size = usize::from(self.gso.size);
        let piece = i * size..(i * size + size).min(self.gso.cut_len());
        if self.is_fragmenting() {
            let headers = if i == 0 { headers } else { 0 };
            self.fragment(i, snapshot, out, piece.len(), from + piece.start + headers..from + piece.end)
        } else {
            self.transport(i, snapshot, out, from + piece.start + headers..from + piece.end)
        }
    }

    /// A segment with a transport header of its own.
    fn transport(&self, i: usize, snapshot: &[u8], out: &mut HeaderBuf, payload: Range<usize>) -> Option<Segment> {
        let gso = &self.gso;
        let (header_len, l4) = (usize::from(gso.hdr_len), usize::from(gso.l4));
        let header = out.get_mut(..header_len)?;
        header.copy_from_slice(snapshot.get(..header_len)?);
        let l4_len = header_len - l4 + payload.len();
        self.ip_header(header, l4 + l4_len, |ip| {
            // RFC 6864 §4: the sender counted one packet; each that becomes of it gets the next number.
            put16(ip, 4, be16(ip, 4).wrapping_add(i as u16));
        })?;
        if gso.kind == GsoKind::Tcp {
            let tcp = header.get_mut(l4..)?.first_chunk_mut::<20>()?;
            let [.., s0, s1, s2, s3] = *tcp.first_chunk::<8>()?;
            let sequence = u32::from_be_bytes([s0, s1, s2, s3]).wrapping_add(i as u32 * u32::from(gso.size));
            tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
            const FIN_PSH: u8 = 0x09;
            const CWR: u8 = 0x80;
            if i > 0 {
                tcp[13] &= !CWR;
            }
            if i + 1 < self.count {
                tcp[13] &= !FIN_PSH;
            }
        } else {
            put16(header, l4 + 4, l4_len as u16);
        }
        let field = l4 + gso.csum_offset();
        let pseudo = self.pseudo + l4_len as u32;
        let (vnet, pending) = if self.partial {
            put16(header, field, sum::fold(pseudo));
            (needs_csum(gso.l4, gso.csum_offset() as u16), None)
        } else {
            put16(header, field, 0);
            (VnetHdr::default(), Some((pseudo + sum::sum(header.get(l4..)?), field)))
        };
        Some(Segment { vnet, header_len, payload, pending })
    }

    /// An IP fragment (RFC 791 §3.2, RFC 8200 §4.5) whose part of the datagram has `len` bytes.
    fn fragment(
        &self,
        i: usize,
        snapshot: &[u8],
        out: &mut HeaderBuf,
        len: usize,
        payload: Range<usize>,
    ) -> Option<Segment> {
        let gso = &self.gso;
        let (from, headers) = gso.cut_from();
        let inserted = if gso.ipv6 { 8 } else { 0 };
        let carried = if i == 0 { headers } else { 0 };
        let header_len = from + inserted + carried;
        let header = out.get_mut(..header_len)?;
        header.get_mut(..from)?.copy_from_slice(snapshot.get(..from)?);
        header.get_mut(from + inserted..)?.copy_from_slice(snapshot.get(from..from + carried)?);
        // At most 65 535 in eights, so it fits.
        let offset = (i * usize::from(gso.size)) as u16;
        let more = i + 1 < self.count;
        if gso.ipv6 {
            const FRAGMENT: u8 = 44;
            let next = std::mem::replace(header.get_mut(usize::from(gso.next_header))?, FRAGMENT);
            let [o0, o1] = (offset | u16::from(more)).to_be_bytes();
            let [i0, i1, i2, i3] = self.ident.to_be_bytes();
            header.get_mut(from..from + 8)?.copy_from_slice(&[next, 0, o0, o1, i0, i1, i2, i3]);
        }
        self.ip_header(header, from + inserted + len, |ip| put16(ip, 6, offset >> 3 | u16::from(more) << 13))?;
        if i == 0 {
            let l4_len = gso.end as usize - usize::from(gso.l4);
            let udp = header.get_mut(usize::from(gso.l4) + inserted..)?;
            put16(udp, 4, l4_len as u16);
            put16(udp, 6, 0);
            let total = self.pseudo + l4_len as u32 + sum::sum(udp) + self.datagram_sum;
            put16(udp, 6, sum::finish(total));
        }
        Some(Segment { vnet: VnetHdr::default(), header_len, payload, pending: None })
    }

    /// Sets the IP length of a segment that ends at `end`; for IPv4 also what `edit` says, and the header checksum.
    fn ip_header(&self, header: &mut [u8], end: usize, edit: impl FnOnce(&mut [u8])) -> Option<()> {
        let (l3, l4) = (usize::from(self.gso.l3), usize::from(self.gso.l4));
        let len = end.checked_sub(l3)?;
        if self.gso.ipv6 {
            put16(header, l3 + 4, len.checked_sub(40)? as u16);
        } else {
            let ip = header.get_mut(l3..l4)?;
            put16(ip, 2, len as u16);
            edit(ip);
            put16(ip, 10, 0);
            let sum = sum::sum(ip);
            put16(ip, 10, !sum::fold(sum));
        }
        Some(())
    }
}

/// An identification that cannot be guessed from the one before (RFC 7739 §5.3).
fn fragment_ident() -> u32 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: each number is given once, in whatever order.
    SEED.hash_one(COUNT.fetch_add(1, Relaxed)) as u32
}

#[cfg(test)]
mod tests;
