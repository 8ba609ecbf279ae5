//! A packet as the switch has judged it.

use crate::cursor::Cursor;
use crate::pass::{HEAD_LEN, Head, simple_frame};
use lasthop_flow::hash_key;
use lasthop_frame::{Depth, FlowKey, Offload, SNAPSHOT_LEN, VnetHdr, extract, is_plain_l2};
use lasthop_guestmem::GuestSlice;
use lasthop_types::{DropReason, MAX_FRAME_LEN, PortId};
use lasthop_virtqueue::{Chain, Chains};

/// Shortest frame that is looked at: an Ethernet header.
const MIN_FRAME_LEN: usize = 14;
/// As much of a frame as is read while flows look at its link layer alone, if that has VLAN tags.
const TAGGED_LEN: usize = 64;

/// Private copy of everything that was judged about one packet. Its payload stays where it is, in `pieces` that travel
/// beside it.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Packet {
    /// The first bytes of the frame.
    snapshot: [u8; SNAPSHOT_LEN],
    /// How many bytes of the frame there are.
    pub(crate) snapshot_len: usize,
    /// Bytes in the whole frame.
    pub(crate) frame_len: usize,
    /// Bytes in front of the frame in its pieces: the virtio-net header.
    pub(crate) header_len: usize,
    /// Where it came from.
    pub(crate) port: PortId,
    /// What the sender leaves to be done, checked.
    pub(crate) offload: Offload,
    /// What it is; filled in to the depth asked for.
    pub(crate) key: FlowKey,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            snapshot: [0; SNAPSHOT_LEN],
            snapshot_len: 0,
            frame_len: 0,
            header_len: 0,
            port: PortId(0),
            offload: Offload::default(),
            key: FlowKey::default(),
        }
    }
}

impl Packet {
    /// Takes the snapshot, as long as judging to `depth` needs it, and judges the offload request. `header_len` is at most
    /// [`VnetHdr::LEN`]. Its bytes are all in `chain`.
    #[inline]
    pub(crate) fn read(
        &mut self,
        chains: &Chains<'_>,
        chain: &Chain<'_>,
        header_len: usize,
        port: PortId,
        depth: Depth,
    ) -> Result<(), DropReason> {
        if (header_len, depth) == (VnetHdr::LEN, Depth::L2) && self.read_link(chain, port) {
            return Ok(());
        }
        self.frame_len = (chain.len() as usize).saturating_sub(header_len);
        (self.header_len, self.port, self.offload) = (header_len, port, Offload::None);
        if chain.is_bad() {
            return Err(DropReason::BadChain);
        }
        self.read_all(&chains.pieces(chain))
    }

    /// Takes a snapshot for [`Depth::L2`] of a packet that is a [`simple_frame`]: no more than an Ethernet header, and what makes words
    /// full, if that says it all. False if it is not.
    #[inline]
    pub(crate) fn read_link(&mut self, chain: &Chain<'_>, port: PortId) -> bool {
        let longest = VnetHdr::LEN + MAX_FRAME_LEN;
        let Some((piece, head)) = simple_frame(chain).filter(|(piece, _)| piece.len() <= longest) else { return false };
        let [first, second] = head.map(u64::to_le_bytes);
        if let Some(snapshot) = self.snapshot.first_chunk_mut() {
            *snapshot = first;
        }
        if let Some(snapshot) = self.snapshot.get_mut(8..).and_then(|rest| rest.first_chunk_mut()) {
            *snapshot = second;
        }
        self.snapshot_len = HEAD_LEN;
        (self.frame_len, self.header_len) = (piece.len() - VnetHdr::LEN, VnetHdr::LEN);
        (self.port, self.offload) = (port, Offload::None);
        if !is_plain_l2(self.header()) {
            self.read_on_to(TAGGED_LEN, &[piece]);
        }
        true
    }

    /// As [`Packet::read`] for a whole frame that lies in `piece`, without a virtio-net header.
    pub(crate) fn read_frame(&mut self, piece: &GuestSlice<'_>, port: PortId) -> Result<(), DropReason> {
        (self.frame_len, self.header_len, self.port, self.offload) = (piece.len(), 0, port, Offload::None);
        self.read_all(std::slice::from_ref(piece))
    }

    /// The rest of [`Packet::read`]: as long a snapshot as there may be.
    #[inline]
    fn read_all(&mut self, pieces: &[GuestSlice<'_>]) -> Result<(), DropReason> {
        if self.frame_len < MIN_FRAME_LEN {
            return Err(DropReason::TooShort);
        }
        if self.frame_len > MAX_FRAME_LEN {
            return Err(DropReason::TooLong);
        }
        self.snapshot_len = self.frame_len.min(SNAPSHOT_LEN);
        let snapshot = self.snapshot.get_mut(..self.snapshot_len).unwrap_or(&mut []);
        let mut vnet = [0; VnetHdr::LEN];
        if let ([piece], VnetHdr::LEN) = (pieces, self.header_len) {
            vnet = piece.read_array(0).unwrap_or(vnet);
            piece.read(VnetHdr::LEN, snapshot);
        } else {
            let mut from = Cursor::new(pieces);
            from.read(vnet.get_mut(..self.header_len).unwrap_or(&mut []));
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
        let (from, to) = (self.snapshot_len, self.frame_len.min(len));
        if let Some(rest) = self.snapshot.get_mut(from..to) {
            Cursor::at(pieces, self.header_len + from).read(rest);
            self.snapshot_len = to;
        }
    }

    /// How the frame begins; zeros behind its end.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        let word = |at| {
            self.snapshot.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
        };
        [word(0), word(8)]
    }

    /// Fills in the key to `depth`.
    #[inline]
    pub(crate) fn extract(&mut self, depth: Depth) {
        self.key.in_port = self.port.0;
        let header = self.snapshot.get(..self.snapshot_len).unwrap_or(&[]);
        extract(&mut self.key, header, self.frame_len, depth);
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

    /// The snapshot.
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        self.snapshot.get(..self.snapshot_len).unwrap_or(&[])
    }

    /// Bytes behind the snapshot.
    #[inline]
    pub(crate) fn payload_len(&self) -> usize {
        self.frame_len - self.snapshot_len
    }

    /// Where a byte of the frame (at `offset`, behind the snapshot) lies in its pieces.
    #[inline]
    pub(crate) fn payload<'a, 'm>(&self, pieces: &'a [GuestSlice<'m>], offset: usize) -> Cursor<'a, 'm> {
        Cursor::at(pieces, self.header_len + offset)
    }
}
