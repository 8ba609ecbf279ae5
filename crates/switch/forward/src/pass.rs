//! The shortest way from ring to ring: for frames that begin like the one before. [`crate::repeat`] says when it is taken.

use lasthop_frame::VnetHdr;
use lasthop_guestmem::GuestSlice;
use lasthop_virtqueue::{Chain, PREFETCH};

/// The first bytes of a frame as two words, the first byte lowest: as much as is read to find out whether a frame is like another.
pub(crate) type Head = [u64; 2];
/// Bytes of them.
pub(crate) const HEAD_LEN: usize = size_of::<Head>();

/// Writes the virtio-net header of a frame that asks for nothing and lies in one buffer, and four bytes behind it, where the frame comes
/// afterwards. Often it is there from the last time, and a line that is not written to stays in the driver's cache.
#[inline(always)]
pub(crate) fn write_vnet(target: &GuestSlice<'_>) {
    // 12 bytes, of which the last but one is 1.
    const NUM_BUFFERS: u32 = 1 << 16;
    if (target.read_words(0), target.read_u32(8)) != (Some([0]), Some(NUM_BUFFERS)) {
        target.write_words::<0>([0, NUM_BUFFERS.into()]);
    }
}

/// Where a packet lies and how its frame begins, if it is what most are: it asks for nothing, has a header of
/// [`VnetHdr::LEN`], is in one piece and not among the shortest. It may be too long.
#[inline(always)]
pub(crate) fn simple_frame<'m>(chain: &Chain<'m>) -> Option<(GuestSlice<'m>, Head)> {
    let piece = chain.single()?;
    let (head, asks) = (piece.read_words(VnetHdr::LEN)?, piece.read_u16(0)?);
    (asks == 0).then_some((piece, head))
}

/// Whether two frames have the same Ethernet header: the in port aside, of untagged ones that is all of a key of
/// [`Depth::L2`](lasthop_frame::Depth::L2).
#[inline(always)]
pub(crate) fn is_like(one: Head, other: Head) -> bool {
    // Of the second word six bytes.
    (one[0] ^ other[0]) | (one[1] ^ other[1]) << 16 == 0
}

/// Packets that [`pass`] has passed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) packets: usize,
    pub(crate) bytes: usize,
}

/// Copies frames out of the chains `from` into those of a receiver, one to one, up to the first that does not begin `like` the
/// others, is longer than `longest` with its virtio-net header, or does not fit; and until `most` bytes have been copied. Returns how
/// many, and the bytes of their frames. Nothing is staged yet.
///
/// Takes for granted that both sides have a header of [`VnetHdr::LEN`]. A function of its own, so that all it works with stays in
/// registers.
#[inline(never)]
pub(crate) fn pass(from: &[Chain<'_>], to: &[Chain<'_>], like: Head, longest: usize, most: usize) -> Passed {
    let mut passed = Passed::default();
    // As long as there are some ahead whose memory can be asked for, and the rest.
    for (chains, targets) in from.windows(1 + PREFETCH).zip(to.windows(1 + PREFETCH)) {
        let ([chain, .., chain_ahead], [target, .., target_ahead]) = (chains, targets) else { break };
        chain_ahead.prefetch(false);
        target_ahead.prefetch(true);
        if passed.bytes >= most || !one(chain, target, like, longest, &mut passed) {
            return passed;
        }
    }
    let rest = |chains| <[Chain<'_>]>::get(chains, passed.packets..).unwrap_or(&[]);
    for (chain, target) in rest(from).iter().zip(rest(to)) {
        if passed.bytes >= most || !one(chain, target, like, longest, &mut passed) {
            return passed;
        }
    }
    passed
}

/// One packet of [`pass`]; false if it is not like the others.
#[inline(always)]
fn one(chain: &Chain<'_>, target: &Chain<'_>, like: Head, longest: usize, passed: &mut Passed) -> bool {
    let (Some((source, head)), Some(target)) = (simple_frame(chain), target.single()) else { return false };
    let len = source.len();
    if !is_like(head, like) || len > longest || len > target.len() {
        return false;
    }
    write_vnet(&target);
    target.write_words::<{ VnetHdr::LEN }>(head);
    source.copy_rest(&target, VnetHdr::LEN + HEAD_LEN);
    passed.packets += 1;
    passed.bytes += len - VnetHdr::LEN;
    true
}
