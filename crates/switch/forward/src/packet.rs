//! A packet as the switch has classified it.

use crate::cursor::Cursor;
use crate::pass::{HEAD_LEN, Head, simple_frame};
use crate::upcall::Upcall;
use lasthop_flow::hash_key;
use lasthop_frame::{Depth, Edit, FlowKey, Header, Offload, SNAPSHOT_LEN, VnetHdr, extract, is_plain_l2};
use lasthop_guestmem::GuestSlice;
use lasthop_types::{DropReason, MAX_FRAME_LEN, PortId};
use lasthop_virtqueue::{Chain, Chains};

/// Shortest frame that is looked at: an Ethernet header.
const MIN_FRAME_LEN: usize = 14;
/// As much of a frame as is read while flows look at its link layer alone, if that has VLAN tags.
const TAGGED_LEN: usize = 64;

/// Private copy of everything that one packet was classified by, and what actions have made of it. Its payload stays where it is, in
/// `pieces` that travel beside it: the frame is the header and, behind it, the pieces from `payload_at` on. What is delivered is the
/// packet as it is at that moment, so deliveries that are planned are made before it is edited.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Packet {
    /// The first bytes of the frame.
    header: Header,
    /// Where in its pieces the bytes behind the header begin, whatever has become of the header.
    pub(crate) payload_at: usize,
    /// Bytes in the whole frame as it is now.
    pub(crate) frame_len: usize,
    /// The same when it came from its sender: what is counted there.
    pub(crate) sent_len: usize,
    /// Where it came from.
    pub(crate) port: PortId,
    /// What the sender leaves to be done, checked.
    pub(crate) offload: Offload,
    /// What it is; filled in to the depth asked for.
    pub(crate) key: FlowKey,
    /// Where it waits for control: it had been looked at before, and mirrors have got their copies of it.
    pub(crate) mirrored: bool,
}

impl Packet {
    /// Takes the snapshot, as long as classifying to `depth` needs it, and checks the offload request. In front of the frame in `chain` are
    /// `vnet_len` bytes of virtio-net header, at most [`VnetHdr::LEN`]. In packets a second 1 > 2 > 3:
    ///
    /// 1. [`Packet::read_link`]: 16 bytes, two words. For flows of the link layer and frames in one piece that ask for nothing.
    /// 2. [`Packet::read_simple`]: up to 192 bytes, in one copy. For such frames where flows look deeper; a loop of its own takes it
    ///    (`known.rs`), and this function does not.
    /// 3. [`Packet::read_all`]: frames in any number of pieces, with headers of 10 bytes, with offloads.
    ///
    /// No packet is classified by what a way that refuses it has read: the next one reads anew.
    #[inline]
    pub(crate) fn read(
        &mut self,
        chains: &Chains<'_>,
        chain: &Chain<'_>,
        vnet_len: usize,
        port: PortId,
        depth: Depth,
    ) -> Result<(), DropReason> {
        if (vnet_len, depth) == (VnetHdr::LEN, Depth::L2) && self.read_link(chain, port) {
            return Ok(());
        }
        self.note_frame((chain.len() as usize).saturating_sub(vnet_len), port);
        if chain.is_bad() {
            return Err(DropReason::BadChain);
        }
        self.read_all(&chains.pieces(chain), vnet_len)
    }

    /// Takes a snapshot for [`Depth::L2`] of a packet that is a [`simple_frame`]: no more than an Ethernet header, and what makes words
    /// full, if that says it all. False if it is not.
    #[inline]
    pub(crate) fn read_link(&mut self, chain: &Chain<'_>, port: PortId) -> bool {
        let longest = VnetHdr::LEN + MAX_FRAME_LEN;
        let Some((piece, head)) = simple_frame(chain).filter(|(piece, _)| piece.len() <= longest) else { return false };
        self.header.set_words(head);
        self.payload_at = VnetHdr::LEN + HEAD_LEN;
        self.note_frame(piece.len() - VnetHdr::LEN, port);
        if !is_plain_l2(self.header()) {
            self.read_on_to(TAGGED_LEN, &[piece]);
        }
        true
    }

    /// As [`Packet::read`] for packets that are in one piece and ask for nothing, behind a header of [`VnetHdr::LEN`]. False, and
    /// nothing of it counts, if it is not one.
    #[inline(always)]
    pub(crate) fn read_simple(&mut self, chain: &Chain<'_>, port: PortId, depth: Depth) -> bool {
        if depth == Depth::L2 {
            return self.read_link(chain, port);
        }
        let Some(piece) = chain.single().filter(|piece| piece.read_u16(0) == Some(0)) else { return false };
        let frame_len = piece.len().checked_sub(VnetHdr::LEN);
        let Some(frame_len) = frame_len.filter(|len| (MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(len)) else {
            return false;
        };
        self.note_frame(frame_len, port);
        let len = frame_len.min(SNAPSHOT_LEN);
        self.payload_at = VnetHdr::LEN + len;
        piece.read(VnetHdr::LEN, self.header.restart(len));
        true
    }

    /// As [`Packet::read`] for a whole frame that lies in `piece`, without a virtio-net header.
    pub(crate) fn read_frame(&mut self, piece: &GuestSlice<'_>, port: PortId) -> Result<(), DropReason> {
        self.note_frame(piece.len(), port);
        self.read_all(std::slice::from_ref(piece), 0)
    }

    #[inline]
    fn note_frame(&mut self, frame_len: usize, port: PortId) {
        (self.frame_len, self.sent_len, self.port, self.offload) = (frame_len, frame_len, port, Offload::None);
    }

    /// The rest of [`Packet::read`]: as long a snapshot as there may be.
    #[inline(never)]
    fn read_all(&mut self, pieces: &[GuestSlice<'_>], vnet_len: usize) -> Result<(), DropReason> {
        if self.frame_len < MIN_FRAME_LEN {
            return Err(DropReason::TooShort);
        }
        if self.frame_len > MAX_FRAME_LEN {
            return Err(DropReason::TooLong);
        }
        let len = self.frame_len.min(SNAPSHOT_LEN);
        self.payload_at = vnet_len + len;
        let snapshot = self.header.restart(len);
        let mut vnet = [0; VnetHdr::LEN];
        if let ([piece], VnetHdr::LEN) = (pieces, vnet_len) {
            piece.read(0, &mut vnet);
            piece.read(VnetHdr::LEN, snapshot);
        } else {
            let mut from = Cursor::new(pieces);
            from.read(vnet.get_mut(..vnet_len).unwrap_or(&mut []));
            from.read(snapshot);
        }
        if vnet[0] | vnet[1] != 0 {
            self.offload = Offload::check(&VnetHdr::parse(&vnet), self.header(), self.frame_len)?;
        }
        Ok(())
    }

    /// Reads on where [`Packet::read`] has stopped: no byte is read twice.
    pub(crate) fn read_on(&mut self, pieces: &[GuestSlice<'_>]) {
        self.read_on_to(SNAPSHOT_LEN, pieces);
    }

    #[inline(never)]
    fn read_on_to(&mut self, len: usize, pieces: &[GuestSlice<'_>]) {
        let more = self.payload_len().min(len.saturating_sub(self.header.len()));
        let rest = self.header.extend(more);
        if !rest.is_empty() {
            let more = rest.len();
            Cursor::at(pieces, self.payload_at).read(rest);
            self.payload_at += more;
        }
    }

    /// How the frame began when it was read; nothing that means anything behind its end.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        let bytes = self.header.as_read();
        let word = |at| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word));
        [word(0), word(8)]
    }

    /// Changes the packet from now on. Where that cannot be it is to be dropped. `pieces` is what it was read from: edits but those of
    /// tags need all of the header.
    pub(crate) fn edit(&mut self, pieces: &[GuestSlice<'_>], edit: &Edit) -> Result<(), DropReason> {
        if !matches!(edit, Edit::PushVlan { .. } | Edit::PopVlan) {
            self.read_on(pieces);
        }
        let payload_len = self.payload_len();
        edit.apply(&mut self.header, &mut self.offload, payload_len)?;
        self.frame_len = self.header.len() + payload_len;
        if self.frame_len > MAX_FRAME_LEN { Err(DropReason::TooLong) } else { Ok(()) }
    }

    /// What control is told of it.
    pub(crate) fn told(&self, id: u32, copy: Option<u32>) -> Upcall {
        Upcall { id, copy, key: self.key, header: self.header.clone(), frame_len: self.frame_len }
    }

    /// No more than its first `len` bytes; what its sender asked for of all of it falls away.
    pub(crate) fn first(&self, len: u16) -> Self {
        let (mut part, len) = (self.clone(), usize::from(len).max(MIN_FRAME_LEN));
        if len < part.frame_len {
            part.header.truncate(len);
            (part.frame_len, part.offload) = (len, Offload::None);
        }
        part
    }

    /// Fills in the key to `depth`.
    #[inline]
    pub(crate) fn extract(&mut self, depth: Depth) {
        self.key.in_port = self.port.0;
        extract(&mut self.key, self.header.bytes(), self.frame_len, depth);
    }

    /// Fills in the key to `depth`, out of all that may be looked at. `pieces` is what it was read from.
    pub(crate) fn extract_to(&mut self, pieces: &[GuestSlice<'_>], depth: Depth) {
        self.read_on(pieces);
        self.extract(depth);
    }

    /// Hash that keeps the packets of one connection together and spreads connections, however deep flows look. `pieces`
    /// is what it was read from.
    pub(crate) fn steering_hash(&mut self, pieces: &[GuestSlice<'_>]) -> u64 {
        self.read_on(pieces);
        let mut key = FlowKey { in_port: self.port.0, ..FlowKey::default() };
        extract(&mut key, self.header(), self.frame_len, Depth::L4);
        // What changes from packet to packet of a connection says nothing about which connection it is.
        (key.tcp_flags, key.ip_tos, key.ip_ttl, key.anomalies) = (0, 0, 0, 0);
        if key.ip_frag != 0 {
            // Only a first fragment has ports.
            (key.l4_src, key.l4_dst, key.ip_frag) = (0, 0, 0);
        }
        hash_key(&key, Depth::L4)
    }

    /// The first bytes of the frame as it is now.
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        self.header.bytes()
    }

    /// [`Header::as_read`].
    #[inline]
    pub(crate) fn as_read(&self) -> &[u8; SNAPSHOT_LEN] {
        self.header.as_read()
    }

    /// Bytes behind the header.
    #[inline]
    pub(crate) fn payload_len(&self) -> usize {
        self.frame_len - self.header.len()
    }

    /// What lies in its pieces `at` bytes from the beginning of the frame: at the end of the header or behind it, or in front of its
    /// end as far back as nothing was classified by or edited.
    #[inline]
    pub(crate) fn payload<'a, 'm>(&self, pieces: &'a [GuestSlice<'m>], at: usize) -> Cursor<'a, 'm> {
        Cursor::at(pieces, (self.payload_at + at).saturating_sub(self.header.len()))
    }
}
