//! The XDP program that hands an interface's frames to AF_XDP sockets, and its map, made with bpf(2). The program is six
//! instructions, so there is no compiler and no loader:
//!
//! ```text
//! return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
//! ```

use super::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// linux/bpf.h
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const PSEUDO_MAP_FD: u8 = 1;
const FN_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
const FLAG_SKB_MODE: u32 = 2;
const FLAG_DRV_MODE: u32 = 4;

/// `struct bpf_insn`: opcode, registers, offset, constant.
fn instruction(op: u8, dst: u8, src: u8, offset: i16, constant: i32) -> [u8; 8] {
    let ([o0, o1], [c0, c1, c2, c3]) = (offset.to_ne_bytes(), constant.to_ne_bytes());
    [op, src << 4 | dst, o0, o1, c0, c1, c2, c3]
}

fn program(map: BorrowedFd<'_>) -> [[u8; 8]; 6] {
    [
        // r2 = *(u32 *)(r1 + 16): rx_queue_index of struct xdp_md
        instruction(0x61, 2, 1, 16, 0),
        // r1 = map, in two halves
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        // r3 = XDP_PASS: for queues without a socket
        instruction(0xb7, 3, 0, 0, XDP_PASS),
        instruction(0x85, 0, 0, 0, FN_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// bpf(2) with attributes that begin with these words; the rest are zero.
fn bpf(command: libc::c_long, words: &[u32]) -> Result<i64, Errno> {
    let mut attributes = [0u64; 16];
    for (i, word) in words.iter().enumerate() {
        let (at, shift) = (i / 2, if i % 2 == 0 { 0 } else { 32 });
        attributes[at] |= u64::from(*word) << shift;
    }
    // SAFETY: the attributes are a live local of the length given; addresses in them are of the callers' live locals.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn descriptor(result: i64) -> OwnedFd {
    // SAFETY: the callers pass what the kernel has just returned as a new descriptor.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

fn address<T: ?Sized>(of: &T) -> [u32; 2] {
    let address = std::ptr::from_ref(of).cast::<u8>() as u64;
    [address as u32, (address >> 32) as u32]
}

/// An attached program. The interface loses it with this.
#[derive(Debug)]
pub struct XdpProgram {
    sockets: OwnedFd,
    link: OwnedFd,
    /// It runs in the driver, not in the kernel's generic path.
    pub native: bool,
}

impl XdpProgram {
    /// Attaches it to the interface with this number: in its driver if that can, else in the generic path.
    pub fn attach(index: i32, queues: u32) -> Result<Self, Errno> {
        let sockets = descriptor(bpf(MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, queues])?);
        let (instructions, license) = (program(sockets.as_fd()), c"Dual BSD/GPL".to_bytes_with_nul());
        let ([i0, i1], [l0, l1]) = (address(&instructions), address(license));
        let loaded = bpf(PROG_LOAD, &[PROG_TYPE_XDP, instructions.len() as u32, i0, i1, l0, l1])?;
        let loaded = descriptor(loaded);
        let attach =
            |flags| bpf(LINK_CREATE, &[loaded.as_raw_fd() as u32, index as u32, ATTACH_XDP, flags]).map(descriptor);
        let (link, native) = match attach(FLAG_DRV_MODE) {
            Ok(link) => (link, true),
            Err(Errno::BUSY) => return Err(Errno::BUSY),
            Err(_) => (attach(FLAG_SKB_MODE)?, false),
        };
        Ok(Self { sockets, link, native })
    }

    /// One that another process has attached.
    pub fn kept(sockets: OwnedFd, link: OwnedFd, native: bool) -> Self {
        Self { sockets, link, native }
    }

    /// All of it, for the next process.
    pub fn to_keep(&self) -> [BorrowedFd<'_>; 2] {
        [self.sockets.as_fd(), self.link.as_fd()]
    }

    /// Any descriptor of it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Frames of this receive queue go to the socket from now on.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let (key, value) = (queue, socket.as_raw_fd());
        let ([k0, k1], [v0, v1]) = (address(&key), address(&value));
        bpf(MAP_UPDATE_ELEM, &[self.sockets.as_raw_fd() as u32, 0, k0, k1, v0, v1]).map(drop)
    }
}
