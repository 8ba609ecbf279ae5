//! An AF_XDP socket (Documentation/networking/af_xdp.rst of the kernel): its four rings, and a UMEM that is a part of the memory
//! shared with the switch.
//!
//! All offsets here are from the start of the UMEM. What the kernel says is checked before it is used.

use super::{Arena, check, last_errno};
use crate::pair::Run;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of every ring.
pub const RING: u32 = 1024;

/// A ring that the kernel shares with us: two running numbers and the entries.
#[derive(Debug)]
struct Ring {
    base: NonNull<u8>,
    len: usize,
    offsets: libc::xdp_ring_offset,
    /// Our own number: of the next entry to be written, or to be read.
    next: u32,
}

// SAFETY: a mapping of our own; the running numbers are accessed atomically, entries only by the side that owns them.
unsafe impl Send for Ring {}

impl Ring {
    fn map(socket: &OwnedFd, offsets: libc::xdp_ring_offset, entry: usize, at: u64) -> Result<Self, Errno> {
        let len = offsets.desc as usize + RING as usize * entry;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED | MapFlags::POPULATE, socket, at) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len, offsets, next: 0 })
    }

    fn number(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel says that a 32-bit number is there, inside the mapping that lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    /// Entries that we may write: we produce.
    fn room(&self) -> u32 {
        let consumed = self.number(self.offsets.consumer).load(Ordering::Acquire);
        RING.saturating_sub(self.next.wrapping_sub(consumed))
    }

    /// Entries that we may read: the kernel produces.
    fn waiting(&self) -> u32 {
        self.number(self.offsets.producer).load(Ordering::Acquire).wrapping_sub(self.next).min(RING)
    }

    /// Writes the next entry; only while there is room.
    fn write<T: Copy>(&mut self, entry: T) {
        let at = self.offsets.desc as usize + (self.next % RING) as usize * size_of::<T>();
        // SAFETY: inside the mapping, which has `RING` entries behind `desc`; the kernel does not read it before `produce`.
        unsafe { self.base.as_ptr().add(at).cast::<T>().write_volatile(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Reads the next entry; only while one waits.
    fn read<T: Copy>(&mut self) -> T {
        let at = self.offsets.desc as usize + (self.next % RING) as usize * size_of::<T>();
        // SAFETY: as in `write`; the kernel does not write it before `consume`. Any bytes are a `T`: plain numbers.
        let entry = unsafe { self.base.as_ptr().add(at).cast::<T>().read_volatile() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    fn produce(&self) {
        self.number(self.offsets.producer).store(self.next, Ordering::Release);
    }

    fn consume(&self) {
        self.number(self.offsets.consumer).store(self.next, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody after.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A bound socket.
#[derive(Debug)]
pub struct Xsk {
    socket: OwnedFd,
    fill: Ring,
    completion: Ring,
    receive: Ring,
    send: Ring,
    /// Sent and not completed.
    pub in_flight: u32,
    /// The NIC reads and writes the UMEM itself.
    pub zero_copy: bool,
}

impl Xsk {
    /// Binds a socket to one queue of the interface. `umem`: the part of the arena that the kernel may use, in chunks of
    /// `chunk` bytes.
    pub fn bind(arena: &Arena, umem: Run, chunk: u32, index: i32, queue: u32) -> Result<Self, Errno> {
        Self::bind_as(arena, umem, chunk, index, queue, libc::XDP_ZEROCOPY)
            .or_else(|_| Self::bind_as(arena, umem, chunk, index, queue, libc::XDP_COPY))
    }

    fn bind_as(arena: &Arena, umem: Run, chunk: u32, index: i32, queue: u32, mode: u16) -> Result<Self, Errno> {
        // SAFETY: socket(2) takes numbers; a result that is not negative is a descriptor of ours.
        let socket =
            unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?) };
        let iovec = arena.iovec(umem).ok_or(Errno::FAULT)?;
        // SAFETY: all-zero is valid for this structure.
        let mut register: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        (register.addr, register.len, register.chunk_size) = (iovec.iov_base as u64, umem.1 as u64, chunk);
        set(&socket, libc::XDP_UMEM_REG, &register)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
            set(&socket, ring, &RING)?;
        }
        let (fill, completion, receive, send) = map(&socket)?;
        // SAFETY: all-zero is valid for the address.
        let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
        (address.sxdp_family, address.sxdp_flags) = (libc::AF_XDP as u16, mode);
        (address.sxdp_ifindex, address.sxdp_queue_id) = (index as u32, queue);
        // SAFETY: the address is a live local of the length given.
        check(unsafe {
            let len = size_of_val(&address) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        })?;
        let zero_copy = mode == libc::XDP_ZEROCOPY;
        Ok(Self { socket, fill, completion, receive, send, in_flight: 0, zero_copy })
    }

    /// One that another process has bound. Nothing of it is used before [`Xsk::take_over`].
    pub fn kept(socket: OwnedFd, zero_copy: bool) -> Result<Self, Errno> {
        let (fill, completion, receive, send) = map(&socket)?;
        Ok(Self { socket, fill, completion, receive, send, in_flight: 0, zero_copy })
    }

    /// The process that used it has ended: goes on where that one has left the rings. What the kernel has given back and
    /// nobody has taken from the rings is still to come: all chunks that were received, all that were sent.
    pub fn take_over(&mut self) -> (Vec<u64>, Vec<u64>) {
        for ring in [&mut self.fill, &mut self.send] {
            ring.next = ring.number(ring.offsets.producer).load(Ordering::Acquire);
        }
        for ring in [&mut self.receive, &mut self.completion] {
            ring.next = ring.number(ring.offsets.consumer).load(Ordering::Acquire);
        }
        let (received, completed) = (self.receive.next, self.completion.next);
        let frames = std::iter::from_fn(|| self.received()).map(|(at, _)| at).collect();
        let waiting = self.completion.waiting();
        let sent = (0..waiting).map(|_| self.completion.read::<u64>()).collect();
        (self.receive.next, self.completion.next) = (received, completed);
        (frames, sent)
    }

    /// How many chunks, and how many frames to be sent, the kernel was ever shown, modulo 2³².
    pub fn shown(&self) -> (u32, u32) {
        let shown = |ring: &Ring| ring.number(ring.offsets.producer).load(Ordering::Acquire);
        (shown(&self.fill), shown(&self.send))
    }

    /// The numbers of the entries that [`Xsk::fill`] and [`Xsk::send`] write next.
    pub fn next(&self) -> (u32, u32) {
        (self.fill.next, self.send.next)
    }

    /// Gives the kernel a chunk to receive into; false if it has as many as it can keep.
    pub fn fill(&mut self, chunk: u64) -> bool {
        let fits = self.fill.room() > 0;
        if fits {
            self.fill.write(chunk);
        }
        fits
    }

    /// Shows the kernel the chunks.
    pub fn filled(&self) {
        self.fill.produce();
    }

    /// A frame that was received: offset and length. It is ours from now on.
    pub fn received(&mut self) -> Option<(u64, u32)> {
        let frame = (self.receive.waiting() > 0).then(|| self.receive.read::<libc::xdp_desc>());
        frame.map(|d| (d.addr, d.len))
    }

    /// Tells the kernel that what was received has been taken from the ring.
    pub fn taken(&self) {
        self.receive.consume();
    }

    /// Gives the kernel a frame to send; false if the ring is full. It keeps it until it is [completed](Self::completed).
    pub fn send(&mut self, offset: u64, len: u32) -> bool {
        let fits = self.send.room() > 0 && self.in_flight < RING;
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
        self.send.room() < RING
    }

    /// A frame that the kernel is done with.
    pub fn completed(&mut self) -> Option<u64> {
        let done = (self.completion.waiting() > 0).then(|| self.completion.read::<u64>())?;
        self.completion.consume();
        self.in_flight = self.in_flight.saturating_sub(1);
        Some(done)
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Maps the fill, completion, receive and send rings of a socket that has them.
fn map(socket: &OwnedFd) -> Result<(Ring, Ring, Ring, Ring), Errno> {
    // SAFETY: all-zero is valid for this structure; the kernel writes at most the length given.
    let offsets = unsafe {
        let mut offsets: libc::xdp_mmap_offsets = std::mem::zeroed();
        let mut len = size_of_val(&offsets) as libc::socklen_t;
        let fd = socket.as_raw_fd();
        let to = (&raw mut offsets).cast();
        check(libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len))?;
        offsets
    };
    let descriptor = size_of::<libc::xdp_desc>();
    Ok((
        Ring::map(socket, offsets.fr, 8, libc::XDP_UMEM_PGOFF_FILL_RING)?,
        Ring::map(socket, offsets.cr, 8, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
        Ring::map(socket, offsets.rx, descriptor, libc::XDP_PGOFF_RX_RING as u64)?,
        Ring::map(socket, offsets.tx, descriptor, libc::XDP_PGOFF_TX_RING as u64)?,
    ))
}

fn set<T: Copy>(socket: &OwnedFd, option: libc::c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: the value is live, and its length is given.
    check(unsafe {
        let len = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), len)
    })
    .map(drop)
}
