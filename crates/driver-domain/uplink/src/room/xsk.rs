//! AF_XDP sockets (Documentation/networking/af_xdp.rst of the kernel): their rings, and a UMEM that is a part of the memory
//! shared with the switch. A queue of an interface has one UMEM and one fill ring, and may have several sockets: one that
//! sends and receives, and others that only receive into the same UMEM.
//!
//! All offsets here are from the start of the UMEM. What the kernel says is checked before it is used.

use super::{Arena, check, last_errno};
use crate::pair::Extent;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of the rings for what is sent.
const SEND: u32 = 1024;

/// A ring that the kernel shares with us: two running numbers and the entries.
#[derive(Debug)]
struct XskRing {
    base: NonNull<u8>,
    len: usize,
    offsets: libc::xdp_ring_offset,
    entries: u32,
    /// Our own number: of the next entry to be written, or to be read.
    next: u32,
}

// SAFETY: a mapping of our own; the running numbers are accessed atomically, entries only by the side that owns them.
unsafe impl Send for XskRing {}

impl XskRing {
    /// `entry`: bytes of one; `at`: which ring of the socket it is.
    fn map(
        socket: &OwnedFd,
        offsets: libc::xdp_ring_offset,
        entries: u32,
        entry: usize,
        at: u64,
    ) -> Result<Self, Errno> {
        let len = offsets.desc as usize + entries as usize * entry;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED | MapFlags::POPULATE, socket, at) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len, offsets, entries, next: 0 })
    }

    fn number(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel says that a 32-bit number is there, inside the mapping that lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    /// Entries that we may write: we produce.
    fn room(&self) -> u32 {
        let consumed = self.number(self.offsets.consumer).load(Ordering::Acquire);
        self.entries.saturating_sub(self.next.wrapping_sub(consumed))
    }

    /// Entries that we may read: the kernel produces.
    fn waiting(&self) -> u32 {
        self.number(self.offsets.producer).load(Ordering::Acquire).wrapping_sub(self.next).min(self.entries)
    }

    /// Writes the next entry; only while there is room.
    fn write<T: Copy>(&mut self, entry: T) {
        let at = self.offsets.desc as usize + (self.next % self.entries) as usize * size_of::<T>();
        // SAFETY: inside the mapping, which has `entries` of them behind `desc`; the kernel does not read it before `produce`.
        unsafe { self.base.as_ptr().add(at).cast::<T>().write_volatile(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Reads the next entry; only while one waits.
    fn read<T: Copy>(&mut self) -> T {
        let at = self.offsets.desc as usize + (self.next % self.entries) as usize * size_of::<T>();
        // SAFETY: as in `write`; the kernel does not write it before `consume`. Any bytes are a `T`: plain numbers.
        let entry = unsafe { self.base.as_ptr().add(at).cast::<T>().read_volatile() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Goes on to write where another process has ended.
    fn resume_writing(&mut self) {
        self.next = self.number(self.offsets.producer).load(Ordering::Acquire);
    }

    /// Goes on to read where another process has ended. These wait, and are still to be read.
    fn resume_reading<T: Copy>(&mut self) -> Vec<T> {
        let next = self.number(self.offsets.consumer).load(Ordering::Acquire);
        self.next = next;
        let waiting = (0..self.waiting()).map(|_| self.read()).collect();
        self.next = next;
        waiting
    }

    fn produce(&self) {
        self.number(self.offsets.producer).store(self.next, Ordering::Release);
    }

    fn consume(&self) {
        self.number(self.offsets.consumer).store(self.next, Ordering::Release);
    }
}

impl Drop for XskRing {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody after.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Sends frames from one queue of an interface. With a [`Receiver`] it is one socket.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
    send: XskRing,
    completion: XskRing,
    /// Sent and not completed.
    pub in_flight: u32,
    /// The NIC reads and writes the UMEM itself.
    pub zero_copy: bool,
}

/// Takes frames that the XDP program gives to this socket.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<OwnedFd>,
    ring: XskRing,
}

/// Chunks that frames of a queue may be received into, whichever socket they are for.
#[derive(Debug)]
pub struct Fill(XskRing);

/// What a queue's first socket is made with.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The part of the arena that the kernel may use, in chunks of `chunk` bytes.
    pub umem: Extent,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// The interface's number.
    pub index: u32,
    /// Its queue.
    pub queue: u32,
    /// Entries of a receiver's ring, a power of two.
    pub receive: u32,
    /// Entries of the fill ring, a power of two.
    pub fill: u32,
}

impl Plan {
    /// Binds the first socket of the queue.
    pub fn bind(&self, arena: &Arena) -> Result<(Sender, Receiver, Fill), Errno> {
        self.bind_as(arena, libc::XDP_ZEROCOPY).or_else(|_| self.bind_as(arena, libc::XDP_COPY))
    }

    fn bind_as(&self, arena: &Arena, mode: u16) -> Result<(Sender, Receiver, Fill), Errno> {
        let socket = socket()?;
        let iovec = arena.iovec(self.umem).ok_or(Errno::FAULT)?;
        // SAFETY: all-zero is valid for this structure.
        let mut register: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        (register.addr, register.len, register.chunk_size) = (iovec.iov_base as u64, self.umem.1 as u64, self.chunk);
        set(&socket, libc::XDP_UMEM_REG, &register)?;
        set(&socket, libc::XDP_UMEM_FILL_RING, &self.fill)?;
        set(&socket, libc::XDP_UMEM_COMPLETION_RING, &SEND)?;
        set(&socket, libc::XDP_TX_RING, &SEND)?;
        set(&socket, libc::XDP_RX_RING, &self.receive)?;
        let all = first_socket(socket, mode == libc::XDP_ZEROCOPY, self.receive, self.fill)?;
        self.address(&all.0.socket, mode, None)?;
        Ok(all)
    }

    /// Binds one more socket to the same queue, whose first one `first` is of. It uses the same UMEM and the same fill ring.
    pub fn bind_more(&self, first: &Sender) -> Result<Receiver, Errno> {
        let socket = socket()?;
        set(&socket, libc::XDP_RX_RING, &self.receive)?;
        let ring = receive_ring(&socket, &offsets(&socket)?, self.receive)?;
        self.address(&socket, libc::XDP_SHARED_UMEM, Some(&first.socket))?;
        Ok(Receiver { socket: Arc::new(socket), ring })
    }

    fn address(&self, socket: &OwnedFd, flags: u16, shared: Option<&OwnedFd>) -> Result<(), Errno> {
        // SAFETY: all-zero is valid for the address.
        let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
        (address.sxdp_family, address.sxdp_flags) = (libc::AF_XDP as u16, flags);
        (address.sxdp_ifindex, address.sxdp_queue_id) = (self.index, self.queue);
        address.sxdp_shared_umem_fd = shared.map_or(0, |s| s.as_raw_fd().cast_unsigned());
        // SAFETY: the address is a live local of the length given.
        check(unsafe {
            let len = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        })
        .map(drop)
    }
}

/// What a queue's first socket consists of; also that of a process that has ended, if nothing of it is used before
/// [`take_over`]. `receive` and `fill` are as in its [`Plan`].
pub fn first_socket(
    socket: OwnedFd,
    zero_copy: bool,
    receive: u32,
    fill: u32,
) -> Result<(Sender, Receiver, Fill), Errno> {
    let offsets = offsets(&socket)?;
    let fill = XskRing::map(&socket, offsets.fr, fill, 8, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    let completion = XskRing::map(&socket, offsets.cr, SEND, 8, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
    let send = XskRing::map(&socket, offsets.tx, SEND, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_TX_RING as u64)?;
    let ring = receive_ring(&socket, &offsets, receive)?;
    let socket = Arc::new(socket);
    let sender = Sender { socket: socket.clone(), send, completion, in_flight: 0, zero_copy };
    Ok((sender, Receiver { socket, ring }, Fill(fill)))
}

/// The process that used this socket has ended: goes on where that one has left the rings. What the kernel has given back
/// and nobody has taken from the rings is still to come: all chunks that were received, all that were sent.
pub fn take_over((sender, receiver, fill): &mut (Sender, Receiver, Fill)) -> (Vec<u64>, Vec<u64>) {
    fill.0.resume_writing();
    sender.send.resume_writing();
    let received = receiver.ring.resume_reading::<libc::xdp_desc>();
    (received.iter().map(|frame| frame.addr).collect(), sender.completion.resume_reading())
}

/// How far the kernel was shown what is to be sent, and what was received: numbers of entries, modulo 2³².
pub fn shown((sender, receiver, _): &(Sender, Receiver, Fill)) -> (u32, u32) {
    let (send, receive) = (&sender.send, &receiver.ring);
    let [sent, taken] = [send.number(send.offsets.producer), receive.number(receive.offsets.consumer)];
    (sent.load(Ordering::Acquire), taken.load(Ordering::Acquire))
}

impl Fill {
    /// The number of the entry that [`Fill::add`] writes next, modulo 2³².
    pub fn next(&self) -> u32 {
        self.0.next
    }

    /// Gives the kernel a chunk to receive into; false if it has as many as it can keep.
    pub fn add(&mut self, chunk: u64) -> bool {
        let fits = self.0.room() > 0;
        if fits {
            self.0.write(chunk);
        }
        fits
    }

    /// Shows the kernel the chunks.
    pub fn publish(&self) {
        self.0.produce();
    }
}

impl Receiver {
    /// Frames that wait.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    /// Frames that it can keep.
    pub fn size(&self) -> u32 {
        self.ring.entries
    }

    /// A frame that was received: offset and length. It is ours from now on.
    pub fn received(&mut self) -> Option<(u64, u32)> {
        let frame = (self.ring.waiting() > 0).then(|| self.ring.read::<libc::xdp_desc>());
        frame.map(|d| (d.addr, d.len))
    }

    /// The number of the entry that [`Receiver::received`] reads next, modulo 2³².
    pub fn next(&self) -> u32 {
        self.ring.next
    }

    /// Tells the kernel that what was received has been taken from the ring.
    pub fn taken(&self) {
        self.ring.consume();
    }

    /// The socket, for [`dropped`].
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.socket.clone()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Frames for this socket that the kernel has dropped because its ring was full.
pub fn dropped(socket: &OwnedFd) -> u64 {
    // SAFETY: all-zero is valid for this structure; the kernel writes at most the length given.
    let (result, statistics) = unsafe {
        let mut statistics: libc::xdp_statistics = std::mem::zeroed();
        let mut len = size_of_val(&statistics) as libc::socklen_t;
        let to = (&raw mut statistics).cast();
        let result = libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, to, &raw mut len);
        (result, statistics)
    };
    if result < 0 { 0 } else { statistics.rx_dropped + statistics.rx_ring_full }
}

impl Sender {
    /// The number of the entry that [`Sender::send`] writes next, modulo 2³².
    pub fn next(&self) -> u32 {
        self.send.next
    }

    /// Gives the kernel a frame to send; false if the ring is full. It keeps it until it is [completed](Self::completed).
    pub fn send(&mut self, offset: u64, len: u32) -> bool {
        let fits = self.send.room() > 0 && self.in_flight < SEND;
        if fits {
            self.send.write(libc::xdp_desc { addr: offset, len, options: 0 });
            self.in_flight += 1;
        }
        fits
    }

    /// Shows the kernel what is to be sent and has it sent. `AGAIN` and `BUSY`: not all of it yet.
    pub fn flush(&self) -> Result<(), Errno> {
        self.send.produce();
        // SAFETY: no bytes and no address.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0)
        };
        if sent < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Whether the kernel has not begun to send all that was given to it.
    pub fn is_sending(&self) -> bool {
        self.send.room() < SEND
    }

    /// A frame that the kernel is done with.
    pub fn completed(&mut self) -> Option<u64> {
        let done = (self.completion.waiting() > 0).then(|| self.completion.read::<u64>())?;
        self.completion.consume();
        self.in_flight = self.in_flight.saturating_sub(1);
        Some(done)
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    // SAFETY: socket(2) takes numbers; a result that is not negative is a descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?) })
}

/// Where in the mapping of each ring what is.
fn offsets(socket: &OwnedFd) -> Result<libc::xdp_mmap_offsets, Errno> {
    // SAFETY: all-zero is valid for this structure; the kernel writes at most the length given.
    unsafe {
        let mut offsets: libc::xdp_mmap_offsets = std::mem::zeroed();
        let mut len = size_of_val(&offsets) as libc::socklen_t;
        let to = (&raw mut offsets).cast();
        check(libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len))?;
        Ok(offsets)
    }
}

fn receive_ring(socket: &OwnedFd, offsets: &libc::xdp_mmap_offsets, entries: u32) -> Result<XskRing, Errno> {
    XskRing::map(socket, offsets.rx, entries, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_RX_RING as u64)
}

fn set<T: Copy>(socket: &OwnedFd, option: libc::c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: the value is live, and its length is given.
    check(unsafe {
        let len = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), len)
    })
    .map(drop)
}
