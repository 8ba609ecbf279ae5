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
    /// The first bytes of the frame, read once.
    pub(crate) snapshot: [u8; SNAPSHOT_LEN],
    /// How many of them there are.
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
            snapshot: [0; SNAPSHOT_LEN],
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
    /// Takes the snapshot and judges it: header, offload request, key.
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
        let mut vnet = [0; VnetHdr::LEN];
        let mut cursor = Cursor::new(pieces);
        cursor.read(&mut vnet[..header_len.min(VnetHdr::LEN)]);
        self.snapshot_len = frame_len.min(SNAPSHOT_LEN);
        self.frame_len = frame_len;
        self.header_len = header_len;
        cursor.read(&mut self.snapshot[..self.snapshot_len]);
        self.offload = if vnet[0] | vnet[1] == 0 {
            Offload::default()
        } else {
            Offload::check(&VnetHdr::parse(&vnet), &self.snapshot[..self.snapshot_len], frame_len)?
        };
        self.key.in_port = in_port.0;
        self.classify(depth);
        Ok(())
    }

    /// Fills in the key to `depth`.
    #[inline]
    pub(crate) fn classify(&mut self, depth: Depth) {
        extract(&mut self.key, &self.snapshot[..self.snapshot_len], self.frame_len, depth);
        self.hash = hash_key(&self.key, depth);
    }

    /// Becomes a copy of `other`.
    #[inline]
    pub(crate) fn clone_from_other(&mut self, other: &Self) {
        self.clone_from(other);
    }

    /// The snapshot.
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        &self.snapshot[..self.snapshot_len]
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
