//! One packet into one ring: reserve, copy, stage. The payload moves once, whatever has to be done to it on the way.

use crate::burst::Burst;
use crate::cursor::Cursor;
use crate::packet::Packet;
use crate::pass::{HEAD_LEN, Passed, pass, write_vnet};
use crate::plan::Members;
use crate::port::{feature, header_len};
use crate::repeat::Repeat;
use lasthop_frame::{
    CompleteChecksum, Delivery, HEADER_LEN, HeaderBuf, Offload, Receiver, SEGMENT_HEADER_LEN, Segmenter, VnetHdr,
};
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_types::{DropReason, MAX_FRAME_LEN, PortCounters};
use lasthop_virtqueue::{BURST, Chain, Chains, PREFETCH, QueueError, ReceiveBuffers, Reserved, StartedQueue, cost};
use std::sync::atomic::Ordering::Relaxed;

/// How much is done in one go, with the locks of a sender's and a receiver's ring held, before others get their turn: in bytes
/// moved, or what takes as long. 64 packets of 4 KiB are less, and so are five of 64 KiB. Some 50 µs.
pub(crate) const WORK: usize = 320 << 10;
/// What a frame costs beside its bytes, where it is not one of many that are alike: a segment, a copy for one of many receivers.
pub(crate) const FRAME_WORK: usize = 512;
/// What each piece of memory costs that a frame is spread over, and each edit of a header.
pub(crate) const PIECE_WORK: usize = 32;

/// What a descriptor costs that holds nothing, or a page that is looked up in vain: it may lie anywhere, and there may be many regions to look it up in.
pub(crate) const WASTED_WORK: usize = 128;

/// How long a receiver whose chains hold nothing is left alone, for each descriptor or page that it took to find that: some 40 times as long.
const AGAIN_NS: u64 = 1_000;
/// Not for so few: the next packet is to find a buffer whose translation has come.
const FEW_WASTED: usize = 64;

/// How long others wait for a sender whose packets wait for buffers, or for its turn. It looks again every 100 µs, or every millisecond where
/// a limit let it have none, but may not get to run.
const WAITS_NS: u64 = 5_000_000;
/// The same if it has more packets, and none that wait: they were dropped, or found buffers. There may be no more of them for this receiver.
const MORE_NS: u64 = 300_000;
/// For how much longer it is owed what others get meanwhile. Its thread may have been stopped, as a helper is by the receiver that it has just
/// woken, and for some ticks of the kernel on a busy core.
const LATE_NS: u64 = 50_000_000;

/// Why a packet did not get there.
#[derive(Debug)]
pub(crate) enum Undelivered {
    /// There are too few buffers for all of it, and nothing of it was delivered: it may wait.
    NoBuffers,
    /// Dropped and to be counted; the ring is fine.
    Drop(DropReason),
    /// The receiver's ring broke.
    Broken(QueueError),
}

impl From<DropReason> for Undelivered {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// A ring that packets are being written into, with its lock held.
pub(crate) struct Target<'a> {
    pub(crate) started: &'a mut StartedQueue,
    pub(crate) memory: &'a GuestMemory,
    buffers: ReceiveBuffers<'a>,
    /// Frames still to come.
    to_come: usize,
    receiver: Receiver,
    /// Frames up to this length are within the receiver's MTU whatever their link layer.
    any_frame: usize,
    header_len: usize,
    join: bool,
    pub(crate) counters: &'a PortCounters,
    /// Delivered so far.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// What else was written, and is no sign that the receiver keeps pace: packets of which some segments arrived, and not all, and their bytes; and by how many
    /// bytes the segments of others are more than their packets, which no rate counts.
    pub(crate) beyond: [u64; 3],
    /// Bytes of frames that [`Target::stage`] has seen.
    staged: usize,
    /// Packets that might have waited have found no buffers.
    pub(crate) is_short: bool,
    /// Others that wait are to have buffers first.
    out_of_turn: bool,
    /// What was done, but for packets that took the shortest way.
    work: usize,
    /// What broke the ring.
    pub(crate) broken: Option<QueueError>,
    /// Why packets find no buffers.
    reason: DropReason,
}

/// Writes packets of a `set`, in their order, into the buffers `to`, one to one, up to the first that is not what most are: a frame that
/// asks for nothing, no longer than `longest`, from one piece of memory to a buffer that is one and holds it. Returns those written and
/// the bytes of their frames. Nothing is staged yet.
///
/// Takes for granted that the receiver has a header of [`VnetHdr::LEN`]. A function of its own, so that what it works with stays in
/// registers.
#[inline(never)]
fn put_all(packets: &[Packet], from: &[Chain<'_>], to: &[Chain<'_>], set: u64, longest: usize) -> (u64, usize) {
    let (mut left, mut bytes) = (set, 0);
    for (n, target) in to.iter().enumerate() {
        let i = left.trailing_zeros() as usize;
        let (Some(packet), Some(source)) = (packets.get(i), from.get(i)) else { break };
        if let Some(ahead) = to.get(n + PREFETCH) {
            ahead.prefetch(true);
        }
        let (Some(source), Some(target)) = (source.single(), target.single()) else { break };
        let (header, len) = (packet.header(), packet.frame_len);
        // Room for the shortest snapshot, too: so that is not to be looked at again.
        let fits = target.len() >= VnetHdr::LEN + HEAD_LEN && VnetHdr::LEN + len <= target.len() && len <= longest;
        let (Some(payload_len), true) = (len.checked_sub(header.len()), fits && packet.offload == Offload::None) else {
            break;
        };
        // Two writes and not one: gathering both in private memory first would stall on the fresh stores.
        write_vnet(&target);
        if let ([first, second], []) = header.as_chunks() {
            target.write_words::<{ VnetHdr::LEN }>([first, second].map(|word| u64::from_le_bytes(*word)));
        } else {
            target.write(VnetHdr::LEN, header);
        }
        if payload_len > 0 {
            source.part(packet.payload_at, payload_len).copy_to(&target.part(VnetHdr::LEN + header.len(), payload_len));
        }
        bytes += len;
        left &= left.wrapping_sub(1);
    }
    (set & !left, bytes)
}

impl<'a> Target<'a> {
    /// `memory` is the ring's; `to_come` is how many packets are to be delivered, as far as is known, and `reason` why
    /// those that find no buffers are dropped.
    pub(crate) fn new(
        started: &'a mut StartedQueue,
        memory: &'a GuestMemory,
        mtu: u16,
        counters: &'a PortCounters,
        to_come: usize,
        reason: DropReason,
    ) -> Self {
        let features = started.features;
        Self {
            started,
            memory,
            buffers: ReceiveBuffers::new(),
            to_come,
            receiver: Receiver { features, mtu },
            any_frame: if mtu == 0 { usize::MAX } else { usize::from(mtu) + 14 },
            header_len: header_len(features),
            join: features & feature::MRG_RXBUF != 0,
            counters,
            packets: 0,
            bytes: 0,
            beyond: [0; 3],
            staged: 0,
            is_short: false,
            out_of_turn: false,
            work: 0,
            broken: None,
            reason,
        }
    }

    /// The receiver has got all that it may for now: it counts as one without buffers.
    pub(crate) fn refuse(&mut self) {
        self.buffers.give_up(false);
        self.reason = DropReason::Rate;
    }

    /// [`Target::refuse`] was called.
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.reason == DropReason::Rate
    }

    /// Takes buffers for all frames still to come, as far as there are some: [`Target::deliver_at_once`] and [`Target::pass`] go no
    /// further than those at hand.
    #[inline]
    pub(crate) fn stock(&mut self) {
        self.buffers.stock(&mut self.started.ring, self.memory, self.to_come);
    }

    /// The second way to write packets ([`fill`](crate::visit) has all three). Delivers packets of a set as [`put_all`] does, as far as buffers are at hand. Returns those delivered, as [`Target::deliver`]
    /// would have done it. A function of its own for the sake of the loop in which used entries are written.
    #[inline(never)]
    pub(crate) fn deliver_at_once(&mut self, packets: &[Packet], chains: &Chains<'_>, set: u64) -> u64 {
        let asks_for_nothing = |packet: &Packet| packet.offload == Offload::None;
        if self.header_len != VnetHdr::LEN || !packets.get(set.trailing_zeros() as usize).is_some_and(asks_for_nothing)
        {
            return 0;
        }
        let (done, bytes) = put_all(packets, &chains.list, self.buffers.at_hand(), set, self.any_frame);
        let lens = Members(done).map(|i| packets.get(i).map_or(0, |packet| (VnetHdr::LEN + packet.frame_len) as u32));
        let count = done.count_ones() as usize;
        self.buffers.use_up(&mut self.started.ring, count, lens);
        self.count(count, bytes, count);
        done
    }

    /// The first way to write packets ([`fill`](crate::visit) has all three). Delivers packets of `chains` that are like the one before, as [`pass`] does, as far as buffers are at hand.
    /// Returns how many, and their bytes.
    #[inline(never)]
    pub(crate) fn pass(&mut self, chains: &Chains<'_>, &Repeat { next, like, most, .. }: &Repeat) -> Passed {
        let from = chains.list.get(next..).unwrap_or(&[]);
        if self.header_len != VnetHdr::LEN {
            return Passed::default();
        }
        let longest = self.any_frame.min(MAX_FRAME_LEN) + VnetHdr::LEN;
        let passed = pass(from, self.buffers.at_hand(), like, longest, most);
        self.buffers.use_up(&mut self.started.ring, passed.packets, from.iter().map(Chain::len));
        self.count(passed.packets, passed.bytes, passed.packets);
        passed
    }

    /// The third way to write packets ([`fill`](crate::visit) has all three). Delivers one packet. The driver sees it when the ring is published. One that has to be cut up, and is not to come
    /// `whole` or not at all, comes as far as there are buffers. Nothing comes any more once a packet has broken the ring.
    pub(crate) fn deliver(
        &mut self,
        packet: &Packet,
        pieces: &[GuestSlice<'_>],
        whole: bool,
    ) -> Result<(), Undelivered> {
        if self.is_broken() {
            return Err(DropReason::ReceiverBroken.into());
        }
        if self.is_refused() || self.out_of_turn {
            return Err(Undelivered::NoBuffers);
        }
        let before = self.staged;
        let result = if packet.offload == Offload::None && packet.frame_len <= self.any_frame {
            self.as_is(&VnetHdr::default(), packet, pieces)
        } else {
            self.offloaded(packet, pieces, whole)
        };
        let written = self.staged - before;
        if result.is_ok() {
            self.count(1, packet.frame_len, 0);
            self.beyond[2] += written.saturating_sub(packet.frame_len) as u64;
        } else {
            self.beyond[0] += u64::from(written > 0);
            self.beyond[1] += written as u64;
        }
        result
    }

    /// Counts packets, and descriptors of those that [`Target::stage`] has not seen.
    #[inline]
    fn count(&mut self, packets: usize, bytes: usize, descriptors: usize) {
        self.to_come = self.to_come.saturating_sub(packets);
        self.packets += packets as u64;
        self.bytes += bytes as u64;
        self.counters.descriptors.add(descriptors as u64);
    }

    #[inline(never)]
    fn offloaded(&mut self, packet: &Packet, pieces: &[GuestSlice<'_>], whole: bool) -> Result<(), Undelivered> {
        match packet.offload.for_receiver(&self.receiver, packet.header(), packet.frame_len)? {
            Delivery::AsIs { vnet } => self.as_is(&vnet, packet, pieces),
            Delivery::CompleteChecksum(rest) => self.with_checksum(&rest, packet, pieces),
            Delivery::Segment(segmenter) => self.segments(segmenter, packet, pieces, whole),
        }
    }

    fn as_is(&mut self, vnet: &VnetHdr, packet: &Packet, pieces: &[GuestSlice<'_>]) -> Result<(), Undelivered> {
        self.reserve(packet.frame_len)?;
        let (header, payload_len) = (packet.header(), packet.payload_len());
        let mut to = self.head(vnet);
        to.write(header);
        to.copy_from(&mut packet.payload(pieces, header.len()), payload_len);
        self.stage(packet.frame_len);
        Ok(())
    }

    fn with_checksum(
        &mut self,
        rest: &CompleteChecksum,
        packet: &Packet,
        pieces: &[GuestSlice<'_>],
    ) -> Result<(), Undelivered> {
        self.reserve(packet.frame_len)?;
        let mut header = [0; HEADER_LEN];
        let Some(header) = header.get_mut(..packet.header().len()) else { return Err(DropReason::BadOffload.into()) };
        header.copy_from_slice(packet.header());
        let mut to = Cursor::at(self.buffers.pieces(), self.header_len + header.len());
        let mut from = packet.payload(pieces, header.len());
        let (_, sum) = to.copy_from_with_sum(&mut from, packet.payload_len());
        rest.finish(header, u32::from(sum));
        self.head(&VnetHdr::default()).write(header);
        self.counters.checksums.add(1);
        self.stage(packet.frame_len);
        Ok(())
    }

    /// A packet that may wait for buffers gets those for all its segments or none: one of which some segments had been
    /// delivered could only begin again, and they would come twice. (To go on where it stopped would do too, but its headers
    /// would have been read twice by then, rule 1.) Of one that does not wait (any longer), a receiver that runs out of buffers keeps
    /// the segments it got, as from any congested link, and so one whose ring is smaller than the packet gets anything at all;
    /// the packet counts as dropped, for it did not arrive whole.
    fn segments(
        &mut self,
        mut segmenter: Segmenter,
        packet: &Packet,
        pieces: &[GuestSlice<'_>],
        whole: bool,
    ) -> Result<(), Undelivered> {
        if whole && !self.has_buffers_for(&segmenter, packet)? {
            return Err(Undelivered::NoBuffers);
        }
        if let Some(range) = segmenter.datagram() {
            let sum = packet.payload(pieces, range.start).sum(range.len());
            segmenter.set_datagram_sum(u32::from(sum));
        }
        let mut header: HeaderBuf = [0; SEGMENT_HEADER_LEN];
        for i in 0..segmenter.count() {
            let Some(segment) = segmenter.segment(i, packet.header(), &mut header) else {
                return Err(DropReason::BadOffload.into());
            };
            match self.reserve(segment.frame_len()) {
                // Some are delivered: it must not begin again.
                Err(Undelivered::NoBuffers) if i > 0 || !whole => return Err(DropReason::NoBuffers.into()),
                reserved => reserved?,
            }
            let payload = segment.payload.clone();
            let mut to = Cursor::at(self.buffers.pieces(), self.header_len + segment.header_len);
            let mut from = packet.payload(pieces, payload.start);
            if segment.needs_sum() {
                let (_, sum) = to.copy_from_with_sum(&mut from, payload.len());
                segment.finish(&mut header, u32::from(sum));
            } else {
                to.copy_from(&mut from, payload.len());
            }
            self.head(&segment.vnet).write(header.get(..segment.header_len).unwrap_or(&[]));
            self.counters.segments.add(1);
            self.stage(segment.frame_len());
        }
        Ok(())
    }

    /// Whether buffers for all segments are at hand, as far as can be known.
    fn has_buffers_for(&mut self, segmenter: &Segmenter, packet: &Packet) -> Result<bool, Undelivered> {
        // All are as long as the first, but for the last.
        let last = segmenter.count().saturating_sub(1);
        let mut header: HeaderBuf = [0; SEGMENT_HEADER_LEN];
        let mut len = |i| segmenter.segment(i, packet.header(), &mut header).map(|segment| segment.frame_len());
        let (Some(each), Some(end)) = (len(0), len(last)) else { return Err(DropReason::BadOffload.into()) };
        let lens = (0..=last).map(|i| self.header_len + if i == last { end } else { each });
        self.buffers.has(&mut self.started.ring, self.memory, lens, self.join).map_err(Undelivered::Broken)
    }

    /// Takes buffers for a frame of `frame_len` bytes and its header.
    #[inline]
    fn reserve(&mut self, frame_len: usize) -> Result<(), Undelivered> {
        let need = self.header_len + frame_len;
        let to_come = self.to_come;
        match self.buffers.reserve(&mut self.started.ring, self.memory, need, self.join, to_come) {
            Ok(Reserved::Enough) => Ok(()),
            Ok(Reserved::NoBuffers) => Err(Undelivered::NoBuffers),
            Ok(Reserved::TooSmall) if self.has_done_enough() => Err(Undelivered::NoBuffers),
            Ok(Reserved::TooSmall) => Err(DropReason::BufferTooSmall.into()),
            Err(e) => Err(Undelivered::Broken(e)),
        }
    }

    /// Writes the virtio-net header; the cursor returned is where the frame begins.
    #[inline]
    fn head(&mut self, vnet: &VnetHdr) -> Cursor<'_, 'a> {
        let vnet = VnetHdr { num_buffers: self.buffers.chains().len() as u16, ..*vnet };
        let pieces = self.buffers.pieces();
        self.work += PIECE_WORK * pieces.len();
        let mut to = Cursor::new(pieces);
        to.write(vnet.to_bytes().get(..self.header_len).unwrap_or(&[]));
        to
    }

    /// Notes the chains as used, each with what it holds of a frame of `frame_len` bytes and its header.
    #[inline]
    fn stage(&mut self, frame_len: usize) {
        self.work += frame_len + FRAME_WORK;
        self.staged += frame_len;
        self.counters.descriptors.add(self.buffers.pieces().len() as u64);
        self.buffers.stage(&mut self.started.ring, self.header_len + frame_len);
    }

    /// What was done, but for packets that took the shortest way.
    pub(crate) fn work(&self) -> usize {
        self.work + self.wasted_work()
    }

    /// Enough has been done for now.
    pub(crate) fn has_done_enough(&self) -> bool {
        let walked = self.packets > 0 && (self.work() >= WORK || self.buffers.taken().is_spent());
        walked || self.work >= WORK
    }

    /// What it took to walk descriptors that hold nothing.
    pub(crate) fn wasted_work(&self) -> usize {
        self.buffers.taken().wasted() * WASTED_WORK
    }

    /// Looks for no buffers if a moment ago so much was walked in vain.
    #[inline]
    pub(crate) fn skip_if_nothing(&mut self, now_ns: u64) {
        if let Some(asked) = self.started.shortage.has_nothing(now_ns) {
            self.buffers.give_up(asked);
        }
    }

    /// Notes it if so much was walked in vain.
    #[inline]
    pub(crate) fn note_nothing(&mut self, now_ns: u64) {
        let (taken, none) = (self.buffers.taken(), self.packets == 0);
        let nothing = none && taken.is_spent() || taken.asked && (none || self.buffers.at_hand().is_empty());
        if nothing && taken.wasted() > FEW_WASTED {
            let until_ns = now_ns.saturating_add(taken.wasted() as u64 * AGAIN_NS);
            self.started.shortage.found_nothing(until_ns, taken.asked);
        }
    }

    /// Looks for no buffers if others that wait are to have them first, or as [`Target::skip_if_nothing`].
    #[inline]
    pub(crate) fn begin(&mut self, burst: &Burst<'_, '_>) {
        self.out_of_turn = !self.started.shortage.shares.has_turn(burst.port.id, burst.now_ns);
        if self.out_of_turn {
            self.buffers.give_up(false);
        } else {
            self.skip_if_nothing(burst.now_ns);
        }
    }

    /// Notes what the sender has got while it or others found too few buffers, and as [`Target::note_nothing`]. Its packets may `wait`.
    #[inline]
    pub(crate) fn end(&mut self, burst: &Burst<'_, '_>, waits: bool) {
        self.note_nothing(burst.now_ns);
        if self.is_short || self.started.shortage.shares.are_counted(burst.now_ns) {
            self.note_share(burst, waits && self.is_short);
        }
    }

    #[cold]
    fn note_share(&mut self, burst: &Burst<'_, '_>, waits: bool) {
        let more = self.is_short || burst.chains.list.len() >= BURST || burst.chains.is_full();
        let for_ns = if waits { WAITS_NS } else { MORE_NS * u64::from(more) };
        let (until_ns, weight) = (burst.now_ns.saturating_add(for_ns), burst.port.weight.load(Relaxed));
        // What was written of packets that did not arrive whole took buffers, too, and so did the headers of segments.
        let bytes = self.bytes + self.beyond[1] + self.beyond[2];
        let cost = cost(self.packets + self.beyond[0], bytes, weight);
        let owed_until_ns = until_ns.saturating_add(LATE_NS * u64::from(more));
        self.started.shortage.shares.took(burst.port.id, cost, until_ns, owed_until_ns, burst.now_ns, weight);
    }

    /// The receiver has been found without buffers: whether it takes packets too slowly to be waited for.
    pub(crate) fn is_slow(&mut self, now_ns: u64, pace_ns: u64) -> bool {
        let packets = self.counters.packets.get() + self.packets;
        let bytes = self.counters.bytes.get() + self.bytes;
        // One whose buffers are being translated has some, and whoever translates them is not the guest.
        !self.is_translated_anew() && self.started.shortage.is_slow(now_ns, packets + (bytes >> 10), pace_ns)
    }

    /// Its buffers, or the ring itself, wait for translations.
    pub(crate) fn is_translated_anew(&self) -> bool {
        self.buffers.taken().asked || self.started.rests
    }

    /// Counts what became of a packet that does not wait.
    pub(crate) fn settle(&mut self, result: Result<(), Undelivered>) {
        let reason = match result {
            Ok(()) => return,
            Err(Undelivered::NoBuffers) => self.reason,
            Err(Undelivered::Drop(reason)) => reason,
            Err(Undelivered::Broken(error)) => {
                self.broken = Some(error);
                DropReason::ReceiverBroken
            }
        };
        self.counters.drops.add(reason, 1);
    }

    /// A packet has broken the ring.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Shows the driver all that was delivered; to be called once. Whether it wants an interrupt, and what broke the ring. (Not by value: that
    /// would copy all chains.)
    pub(crate) fn finish(&mut self) -> (bool, Option<QueueError>) {
        #[cfg(feature = "dma")]
        self.await_copies();
        self.counters.packets.add(self.packets);
        self.counters.bytes.add(self.bytes);
        self.buffers.give_back(&mut self.started.ring);
        let call = self.started.complete();
        (call, self.broken.take().or(self.memory.faulted().then_some(QueueError::MemoryFault)))
    }
}
