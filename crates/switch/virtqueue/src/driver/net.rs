//! A network driver: guest memory of its own in a memfd, queue pairs in it, receive buffers filled; frames in, frames
//! out. What benchmarks and tests build on; an uplink has buffers where its interface wants them, and only the
//! rings in common with this. It knows rings and buffers, not the vhost-user protocol: its user hands the memfd, the
//! layouts and the event descriptors to a front-end.

use super::{DriverError, DriverRing, Full, IndirectTables, Piece, RingLayout};
use arrayvec::ArrayVec;
use lasthop_guestmem::{GuestMemory, GuestSlice, RegionSpec};
use lasthop_sys::EventFd;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of the virtio-net header that every frame begins with (§5.1.6).
pub const VNET_HDR_LEN: usize = 12;
/// Most descriptors for one buffer.
const MAX_PIECES: usize = 64;
/// Where the memory lies for the device, and where we say it lies in our own address space: neither is 0, and they
/// differ, so that a device that mixes them up is found out.
const GUEST_BASE: u64 = 0x1000_0000;
const USER_BASE: u64 = 0x7a00_0000_0000;
const PAGE: u64 = 4096;

/// What a [`NetDriver`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct NetConfig {
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of every ring.
    pub size: u16,
    /// Packed rings.
    pub packed: bool,
    /// VIRTIO_F_RING_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER.
    pub in_order: bool,
    /// VIRTIO_F_RING_INDIRECT_DESC; makes a difference with `pieces` above 1.
    pub indirect: bool,
    /// VIRTIO_NET_F_MRG_RXBUF.
    pub mergeable: bool,
    /// Bytes of a receive buffer, header included; 64 at least.
    pub rx_buffer: u32,
    /// Bytes of a send buffer, header included; 64 at least.
    pub tx_buffer: u32,
    /// Descriptors for each buffer, 1 to 64: one for all, or one for the header and the others for the frame.
    pub pieces: u16,
    /// Buffers are used from both halves of a queue's in turns, as by a guest whose memory is two regions.
    pub alternate: bool,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            pairs: 1,
            size: 256,
            packed: false,
            event_idx: false,
            in_order: false,
            indirect: false,
            mergeable: true,
            rx_buffer: 2048,
            tx_buffer: 2048,
            pieces: 1,
            alternate: false,
        }
    }
}

impl NetConfig {
    /// The virtio feature bits that say so, with VERSION_1 and, for several pairs, MQ.
    pub fn features(&self) -> u64 {
        let bit = |on: bool, n: u32| u64::from(on) << n;
        bit(self.mergeable, 15)
            | bit(self.pairs > 1, 22)
            | bit(self.indirect, 28)
            | bit(self.event_idx, 29)
            | bit(true, 32)
            | bit(self.packed, 34)
            | bit(self.in_order, 35)
    }
}

/// The device broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Of rings.
    #[error(transparent)]
    Ring(#[from] DriverError),
    /// A frame without a whole header.
    #[error("a received buffer holds {0} bytes, less than a header")]
    NoHeader(u32),
    /// A frame said to be spread over more (or fewer) buffers than came.
    #[error("a received frame is said to be in {0} buffers, but they are not there")]
    Buffers(u16),
}

/// One ring, its buffers, its events.
#[derive(Debug)]
pub struct NetQueue {
    /// The ring; tests that play a hostile driver write around it.
    pub ring: DriverRing,
    /// Where it lies.
    pub layout: RingLayout,
    /// We signal it when the device is to look.
    pub kick: EventFd,
    /// The device signals it when we are to look.
    pub call: EventFd,
    /// Address of the first buffer; they follow each other, `buffer_len` bytes apart.
    buffers: u64,
    buffer_len: u32,
    /// Send: buffers not with the device. Receive: buffers of the frame being taken.
    spare: Vec<u32>,
}

impl NetQueue {
    /// Guest address of buffer `token`.
    pub fn buffer(&self, token: u32) -> u64 {
        self.buffers + u64::from(token) * u64::from(self.buffer_len)
    }

    /// Shows the device what was added, and kicks it if it wants that.
    #[inline]
    pub fn publish(&mut self) {
        if self.ring.publish() {
            self.kick.signal();
        }
    }

    fn pieces(&self, token: u32, len: u32, pieces: u16) -> ArrayVec<Piece, MAX_PIECES> {
        let mut list = ArrayVec::new();
        let (mut addr, header) = (self.buffer(token), VNET_HDR_LEN as u32);
        if pieces <= 1 || len <= header {
            list.push((addr, len));
            return list;
        }
        list.push((addr, header));
        addr += u64::from(header);
        let (mut left, mut parts) = (len - header, (u32::from(pieces).min(MAX_PIECES as u32) - 1).min(len - header));
        while parts > 0 {
            let this = left / parts;
            list.push((addr, this));
            addr += u64::from(this);
            left -= this;
            parts -= 1;
        }
        list
    }
}

/// A network driver with its memory. One thread at a time; to use several, take the queues apart with
/// [`NetDriver::queues_mut`].
#[derive(Debug)]
pub struct NetDriver {
    config: NetConfig,
    memfd: OwnedFd,
    region: RegionSpec,
    memory: Arc<GuestMemory>,
    /// As virtio numbers them: receive queue of pair 0, send queue of pair 0, receive queue of pair 1, …
    queues: Vec<NetQueue>,
}

impl NetDriver {
    /// Makes the memory and the rings, and puts all receive buffers into them.
    pub fn new(config: NetConfig) -> io::Result<Self> {
        let size = u64::from(config.size);
        let lens = [config.rx_buffer, config.tx_buffer];
        if config.pairs == 0 || config.size == 0 || lens.iter().any(|&l| l < 64) {
            return Err(io::Error::other("a network driver needs a queue pair, ring entries and buffers of 64 bytes"));
        }
        let ring_bytes = RingLayout::bytes(config.size, config.packed).next_multiple_of(PAGE);
        let entries = if config.indirect { config.pieces.clamp(2, MAX_PIECES as u16) } else { 0 };
        let table_bytes = (size * u64::from(entries) * 16).next_multiple_of(PAGE);
        let queue_bytes = |len: u32| ring_bytes + table_bytes + (size * u64::from(len)).next_multiple_of(PAGE);
        let total = (queue_bytes(lens[0]) + queue_bytes(lens[1])) * u64::from(config.pairs);
        let memfd = lasthop_sys::memfd("lasthop-driver", total)?;
        let region = RegionSpec { guest_addr: GUEST_BASE, user_addr: USER_BASE, size: total, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::empty().with_region(region, &memfd).map_err(io::Error::other)?);
        let half = u32::from(config.size / 2);
        let nth = |n: u32| if config.alternate && n < 2 * half { n / 2 + n % 2 * half } else { n };
        let mut queues = Vec::new();
        let mut at = GUEST_BASE;
        for index in 0..2 * config.pairs {
            let buffer_len = lens[usize::from(index % 2)];
            let mut layout = RingLayout::contiguous(at, config.size, config.packed);
            layout.event_idx = config.event_idx;
            layout.in_order = config.in_order;
            if config.indirect {
                layout.indirect = Some(IndirectTables { addr: at + ring_bytes, entries });
            }
            let ring = DriverRing::new(layout, memory.clone()).map_err(io::Error::other)?;
            queues.push(NetQueue {
                ring,
                layout,
                kick: EventFd::new()?,
                call: EventFd::new()?,
                buffers: at + ring_bytes + table_bytes,
                buffer_len,
                spare: (0..u32::from(config.size)).rev().map(nth).collect(),
            });
            at += queue_bytes(buffer_len);
        }
        for queue in queues.iter_mut().step_by(2) {
            while let Some(token) = queue.spare.pop() {
                let pieces = queue.pieces(token, config.rx_buffer, config.pieces);
                if queue.ring.add(&[], &pieces, token).is_err() {
                    break;
                }
            }
            queue.spare.clear();
            queue.ring.publish();
        }
        Ok(Self { config, memfd, region, memory, queues })
    }

    /// As it was made.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// The memory's file, and how it is to be described to the device.
    pub fn region(&self) -> (RegionSpec, BorrowedFd<'_>) {
        (self.region, self.memfd.as_fd())
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The queues as virtio numbers them: even ones receive, odd ones send.
    pub fn queues(&self) -> &[NetQueue] {
        &self.queues
    }

    /// The queues, to do with as one likes.
    pub fn queues_mut(&mut self) -> &mut [NetQueue] {
        &mut self.queues
    }

    /// The address in our own address space, as vhost-user wants it, of a guest address.
    pub fn user_addr(&self, guest_addr: u64) -> u64 {
        guest_addr.wrapping_sub(self.region.guest_addr).wrapping_add(self.region.user_addr)
    }

    /// Puts a header and a frame of `len` bytes, which `write` fills in, into the send queue of `pair`. Nothing is shown
    /// to the device before [`NetDriver::flush`]. Buffers it is done with are taken back first if need be.
    /// [`NetError::Buffers`] never; `Ok(Err(Full))` when all are with the device, or the frame is longer than a buffer.
    #[inline]
    pub fn send_with(
        &mut self,
        pair: u16,
        header: &[u8; VNET_HDR_LEN],
        len: usize,
        write: impl FnOnce(&GuestSlice<'_>),
    ) -> Result<Result<(), Full>, NetError> {
        let Some(queue) = self.queues.get_mut(usize::from(pair) * 2 + 1) else { return Ok(Err(Full)) };
        let total = VNET_HDR_LEN + len;
        if total > queue.buffer_len as usize {
            return Ok(Err(Full));
        }
        if queue.spare.is_empty() || usize::from(queue.ring.free()) < usize::from(self.config.pieces) {
            while let Some((token, _)) = queue.ring.poll_used()? {
                queue.spare.push(token);
            }
        }
        let Some(token) = queue.spare.pop() else { return Ok(Err(Full)) };
        let Ok(buffer) = self.memory.slice(queue.buffer(token), total) else { return Ok(Err(Full)) };
        buffer.write(0, header);
        write(&buffer.part(VNET_HDR_LEN, len));
        let pieces = queue.pieces(token, total as u32, self.config.pieces);
        let added = queue.ring.add(&pieces, &[], token);
        if added.is_err() {
            queue.spare.push(token);
        }
        Ok(added)
    }

    /// As [`NetDriver::send_with`], with the frame at hand.
    pub fn send(&mut self, pair: u16, header: &[u8; VNET_HDR_LEN], frame: &[u8]) -> Result<Result<(), Full>, NetError> {
        self.send_with(pair, header, frame.len(), |to| {
            to.write(0, frame);
        })
    }

    /// Shows the device what was sent since, and kicks it if it wants that.
    #[inline]
    pub fn flush(&mut self, pair: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(pair) * 2 + 1) {
            queue.publish();
        }
    }

    /// Send buffers of `pair` that the device has not given back.
    pub fn unsent(&mut self, pair: u16) -> Result<usize, NetError> {
        let Some(queue) = self.queues.get_mut(usize::from(pair) * 2 + 1) else { return Ok(0) };
        while let Some((token, _)) = queue.ring.poll_used()? {
            queue.spare.push(token);
        }
        Ok(usize::from(self.config.size) - queue.spare.len())
    }

    /// Takes the next frame from the receive queue of `pair`: `read` is given what was written into each of its buffers,
    /// the first beginning with the header. False if there is none. The buffers go back to the device: at once into the
    /// ring, visibly when the ring has no more frames or a quarter of it is to be given back.
    #[inline]
    pub fn recv_with(&mut self, pair: u16, mut read: impl FnMut(GuestSlice<'_>)) -> Result<bool, NetError> {
        let Some(queue) = self.queues.get_mut(usize::from(pair) * 2) else { return Ok(false) };
        let Some((token, len)) = queue.ring.poll_used()? else {
            queue.publish();
            return Ok(false);
        };
        if (len as usize) < VNET_HDR_LEN {
            return Err(NetError::NoHeader(len));
        }
        let slice = |token: u32, len: u32, queue: &NetQueue| self.memory.slice(queue.buffer(token), len as usize);
        queue.spare.push(token);
        let mut count = [0; 2];
        if let Ok(first) = slice(token, len, queue) {
            first.read(10, &mut count);
            read(first);
        }
        let count = if self.config.mergeable { u16::from_le_bytes(count) } else { 1 };
        if count == 0 {
            return Err(NetError::Buffers(count));
        }
        for _ in 1..count {
            let Some((token, len)) = queue.ring.poll_used()? else { return Err(NetError::Buffers(count)) };
            queue.spare.push(token);
            if let Ok(next) = slice(token, len, queue) {
                read(next);
            }
        }
        while let Some(token) = queue.spare.pop() {
            let pieces = queue.pieces(token, self.config.rx_buffer, self.config.pieces);
            // What just came out of the ring fits into it.
            let _ = queue.ring.add(&[], &pieces, token);
        }
        if queue.ring.unpublished() >= self.config.size / 4 {
            queue.publish();
        }
        Ok(true)
    }

    /// As [`NetDriver::recv_with`]: appends the frame to `frame` and returns its header.
    pub fn recv(&mut self, pair: u16, frame: &mut Vec<u8>) -> Result<Option<[u8; VNET_HDR_LEN]>, NetError> {
        let mut header = [0; VNET_HDR_LEN];
        let mut skip = VNET_HDR_LEN;
        let got = self.recv_with(pair, |slice| {
            if skip > 0 {
                slice.read(0, &mut header);
            }
            let at = frame.len();
            frame.resize(at + slice.len() - skip, 0);
            slice.read(skip, &mut frame[at..]);
            skip = 0;
        })?;
        Ok(got.then_some(header))
    }
}
