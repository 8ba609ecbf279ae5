//! A packet as the switch has judged it.

use crate::cursor::Cursor;
use lasthop_flow::hash_key;
use lasthop_frame::{Depth, FlowKey, Offload, SNAPSHOT_LEN, VnetHdr, extract};
use lasthop_guestmem::GuestSlice;
use lasthop_types::{DropReason, MAX_FRAME_LEN, PortId};

/// Shortest frame that is looked at: an Ethernet header.
const MIN_FRAME_LEN: usize = 14;

/// Private copy of everything that was judged about one packet. Its payload stays where it is, in `pieces` that travel
/// beside it.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// The virtio-net header, then the first bytes of the frame: as they come in, so that one copy reads both.
    head: [u8; VnetHdr::LEN + SNAPSHOT_LEN],
    /// How many bytes of the frame there are.
    pub(crate) snapshot_len: usize,
    /// Bytes in the whole frame.
    pub(crate) frame_len: usize,
    /// Bytes in front of the frame in its pieces: the virtio-net header.
    pub(crate) header_len: usize,
    /// What the sender leaves to be done, checked.
    pub(crate) offload: Offload,
    /// What it is; filled in to the depth asked for.
    pub(crate) key: FlowKey,
    /// Hash of the key at that depth.
    pub(crate) hash: u64,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            head: [0; VnetHdr::LEN + SNAPSHOT_LEN],
            snapshot_len: 0,
            frame_len: 0,
            header_len: 0,
            offload: Offload::default(),
            key: FlowKey::default(),
            hash: 0,
        }
    }
}

impl Packet {
    /// Takes the snapshot and judges it: header, offload request, key (not its hash). `header_len` is at most [`VnetHdr::LEN`].
    #[inline]
    pub(crate) fn read(
        &mut self,
        pieces: &[GuestSlice<'_>],
        chain_len: usize,
        header_len: usize,
        in_port: PortId,
        depth: Depth,
    ) -> Result<(), DropReason> {
        let frame_len = chain_len.saturating_sub(header_len);
        if frame_len < MIN_FRAME_LEN {
            return Err(DropReason::TooShort);
        }
        if frame_len > MAX_FRAME_LEN {
            return Err(DropReason::TooLong);
        }
        self.snapshot_len = frame_len.min(SNAPSHOT_LEN);
        self.frame_len = frame_len;
        self.header_len = header_len;
        let end = VnetHdr::LEN + self.snapshot_len;
        let Some(out) = self.head.get_mut(VnetHdr::LEN.saturating_sub(header_len)..end) else {
            return Err(DropReason::TooLong);
        };
        match pieces {
            // Most often all that is judged lies in the first piece.
            [first, ..] if first.len() >= out.len() => first.read(0, out),
            _ => Cursor::new(pieces).read(out),
        };
        self.offload = match header_len {
            VnetHdr::LEN if self.head[0] | self.head[1] == 0 => Offload::None,
            0 => Offload::None,
            _ => self.requested()?,
        };
        self.key.in_port = in_port.0;
        self.extract(depth);
        Ok(())
    }

    /// What the sender's virtio-net header asks for.
    fn requested(&self) -> Result<Offload, DropReason> {
        let mut vnet = [0; VnetHdr::LEN];
        let given = self.head.get(VnetHdr::LEN - self.header_len..VnetHdr::LEN).unwrap_or(&[]);
        for (to, from) in vnet.iter_mut().zip(given) {
            *to = *from;
        }
        Offload::check(&VnetHdr::parse(&vnet), self.header(), self.frame_len)
    }

    /// Fills in the key to `depth`, and its hash.
    #[inline]
    pub(crate) fn classify(&mut self, depth: Depth) {
        self.extract(depth);
        self.hash = hash_key(&self.key, depth);
    }

    /// Hash that keeps the packets of one connection together and spreads connections, however deep flows look.
    pub(crate) fn steering_hash(&self) -> u64 {
        let mut key = FlowKey { in_port: self.key.in_port, ..FlowKey::default() };
        extract(&mut key, self.header(), self.frame_len, Depth::L4);
        // What changes from packet to packet of a connection says nothing about which connection it is.
        (key.tcp_flags, key.ip_tos, key.ip_ttl, key.anomalies) = (0, 0, 0, 0);
        if key.ip_frag != 0 {
            // Only a first fragment has ports.
            (key.l4_src, key.l4_dst, key.ip_frag) = (0, 0, 0);
        }
        hash_key(&key, Depth::L4)
    }

    #[inline]
    fn extract(&mut self, depth: Depth) {
        let header = self.head.get(VnetHdr::LEN..VnetHdr::LEN + self.snapshot_len).unwrap_or(&[]);
        extract(&mut self.key, header, self.frame_len, depth);
    }

    /// Becomes a copy of `other`.
    #[inline]
    pub(crate) fn clone_from_other(&mut self, other: &Self) {
        self.clone_from(other);
    }

    /// The snapshot.
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        self.head.get(VnetHdr::LEN..VnetHdr::LEN + self.snapshot_len).unwrap_or(&[])
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
