//! Batches of frames through a packet socket, straight from and to the shared memory (recvmmsg(2), sendmmsg(2)). The message
//! headers lie in a pair's [`Notes`]: if this process ends meanwhile, the next one sees there what the kernel has carried.

use super::{Arena, Notes, last_errno};
use crate::pair::{Extent, MAX_PIECES};
use arrayvec::ArrayVec;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Most frames in one call.
pub const BATCH: usize = 32;
/// Bytes of the header that the kernel puts in front (`struct virtio_net_hdr`, without `num_buffers`).
const KERNEL_HEADER: usize = 10;
/// Room for the one control message we ask for: `struct tpacket_auxdata`.
const CONTROL: usize = 64;

/// Where a frame may go: header and frame need not touch.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Offset of the 10 bytes for the header.
    pub header: usize,
    /// Room for the frame.
    pub frame: Extent,
}

/// What came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the frame.
    pub len: usize,
    /// It was longer than the room.
    pub truncated: bool,
    /// The VLAN tag that the kernel took out of it: TPID and TCI.
    pub tag: Option<(u16, u16)>,
}

impl Arena {
    /// Receives as many frames as are there and have a place; `INTR`, `AGAIN` and so on if there is none. `begin` is called
    /// when the headers say that none has come yet, right before one may.
    pub fn receive(
        &self,
        fd: impl AsFd,
        places: &[Place],
        received: &mut ArrayVec<Received, BATCH>,
        notes: &mut Notes,
        begin: impl FnOnce(&Notes),
    ) -> Result<(), Errno> {
        received.clear();
        let n = places.len().min(BATCH);
        let mut iovecs = ArrayVec::<[libc::iovec; 2], BATCH>::new();
        for place in places.iter().take(n) {
            let header = self.iovec((place.header, KERNEL_HEADER)).ok_or(Errno::FAULT)?;
            iovecs.push([header, self.iovec(place.frame).ok_or(Errno::FAULT)?]);
        }
        let mut control = [const { MaybeUninit::<[u64; CONTROL / 8]>::uninit() }; BATCH];
        let headers = iovecs.iter_mut().zip(&mut control).map(|(iovecs, control)| {
            let mut message = empty();
            message.msg_hdr.msg_iov = iovecs.as_mut_ptr();
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = control.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL as _;
            message
        });
        let messages = write(notes, headers);
        begin(notes);
        // SAFETY: `n` headers have been written there, which nobody else does while `notes` is borrowed; what they point to are live
        // locals of the sizes they say, and the runs lie in the mapping.
        let got = unsafe {
            let fd = fd.as_fd().as_raw_fd();
            libc::recvmmsg(fd, messages, n as libc::c_uint, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
        };
        let got = usize::try_from(got).map_err(|_| last_errno())?.min(n);
        for i in 0..got {
            // SAFETY: one of the headers written above.
            let message = unsafe { messages.add(i).read() };
            received.push(Received {
                len: (message.msg_len as usize).saturating_sub(KERNEL_HEADER),
                truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                tag: tag(&message.msg_hdr),
            });
        }
        Ok(())
    }

    /// Sends packets, each of runs whose first begins with a 12-byte virtio-net header. Returns how many the kernel took;
    /// an error is the first one's. `begin` is called with their number when the headers say that none has been sent yet, right
    /// before one is.
    pub fn send<'p>(
        &self,
        fd: impl AsFd,
        packets: impl Iterator<Item = &'p [Extent]>,
        notes: &mut Notes,
        begin: impl FnOnce(&Notes, usize),
    ) -> Result<usize, Errno> {
        let mut iovecs = ArrayVec::<libc::iovec, { BATCH * (MAX_PIECES + 1) }>::new();
        let mut bounds = ArrayVec::<Extent, BATCH>::new();
        for runs in packets.take(BATCH) {
            let first = iovecs.len();
            let Some(((at, len), rest)) = runs.split_first() else { return Err(Errno::FAULT) };
            // The two bytes of `num_buffers` are between the run's two parts.
            let split = [(*at, KERNEL_HEADER), (at + 12, len.checked_sub(12).ok_or(Errno::FAULT)?)];
            for run in split.iter().chain(rest.iter().take(MAX_PIECES - 1)) {
                iovecs.push(self.iovec(*run).ok_or(Errno::FAULT)?);
            }
            bounds.push((first, iovecs.len() - first));
        }
        let headers = bounds.iter().map(|(first, count)| {
            let mut message = empty();
            message.msg_hdr.msg_iov = iovecs.as_mut_ptr().wrapping_add(*first);
            message.msg_hdr.msg_iovlen = *count as _;
            message
        });
        let messages = write(notes, headers);
        begin(notes, bounds.len());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as in `receive`.
        let sent =
            unsafe { libc::sendmmsg(fd.as_fd().as_raw_fd(), messages, bounds.len() as libc::c_uint, flags as _) };
        usize::try_from(sent).map_err(|_| last_errno())
    }
}

fn empty() -> libc::mmsghdr {
    // SAFETY: all-zero is a valid message header: no name, no bytes.
    unsafe { std::mem::zeroed() }
}

/// Writes headers, [`BATCH`] at most, to the notes, and behind the last an empty one, if there is room. Where they are.
fn write(notes: &mut Notes, headers: impl Iterator<Item = libc::mmsghdr>) -> *mut libc::mmsghdr {
    let messages = notes.messages();
    for (i, message) in headers.chain([empty()]).take(BATCH).enumerate() {
        // SAFETY: there is room for so many, aligned, and nobody else has it while `notes` is borrowed.
        unsafe { messages.add(i).write(message) };
    }
    messages
}

/// The VLAN tag in a message's auxiliary data (packet(7)).
fn tag(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled in the control buffer of this header, which lives, and its length.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message);
        if control.is_null()
            || (*control).cmsg_level != libc::SOL_PACKET
            || (*control).cmsg_type != libc::PACKET_AUXDATA
            || ((*control).cmsg_len as usize) < libc::CMSG_LEN(size_of::<AuxData>() as u32) as usize
        {
            return None;
        }
        let aux = libc::CMSG_DATA(control).cast::<AuxData>().read_unaligned();
        let tpid = if aux.status & TPID_VALID != 0 { aux.vlan_tpid } else { 0x8100 };
        (aux.status & VLAN_VALID != 0).then_some((tpid, aux.vlan_tci))
    }
}

/// `struct tpacket_auxdata` of linux/if_packet.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct AuxData {
    status: u32,
    len: u32,
    snap_len: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// `TP_STATUS_VLAN_VALID` and `TP_STATUS_VLAN_TPID_VALID`.
const VLAN_VALID: u32 = 1 << 4;
const TPID_VALID: u32 = 1 << 6;
