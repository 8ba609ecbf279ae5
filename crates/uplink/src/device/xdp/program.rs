//! The XDP program that hands an interface's frames to AF_XDP sockets, and its map.
//!
//! ```text
//! return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
//! ```

use lasthop_sys::bpf::assembler::{Assembler, Helper, Reg, Width};
use lasthop_sys::bpf::{BpfMap, BpfProgram, MapKind, ProgramKind};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `rx_queue_index` of `struct xdp_md`.
const RX_QUEUE: i16 = 16;
/// For queues without a socket.
const XDP_PASS: u64 = 2;

fn instructions(sockets: i32) -> Option<Vec<u64>> {
    let mut a = Assembler::default();
    a.load(Width::Word, Reg(2), Reg(1), RX_QUEUE);
    a.map(Reg(1), sockets);
    a.set(Reg(3), XDP_PASS);
    a.call(Helper::RedirectMap);
    a.exit_with_result();
    a.finish()
}

/// An attached program. The interface loses it with this.
#[derive(Debug)]
pub struct XdpProgram {
    sockets: BpfMap,
    _link: OwnedFd,
    /// It runs in the driver, not in the kernel's generic path.
    pub native: bool,
}

impl XdpProgram {
    /// Attaches it to the interface with this number: in its driver if that can, else in the generic path.
    pub fn attach(index: u32, queues: u32) -> Result<Self, Errno> {
        let sockets = BpfMap::new(MapKind::XdpSockets, c"lasthop_xsk", 4, 4, queues)?;
        let instructions = instructions(sockets.as_fd().as_raw_fd()).ok_or(Errno::TOOBIG)?;
        let loaded = BpfProgram::load(ProgramKind::Xdp, c"lasthop_xdp", c"Dual BSD/GPL", &instructions);
        let loaded = loaded.map_err(|e| e.errno)?;
        let (link, native) = match loaded.attach_to_interface(index, true) {
            Ok(link) => (link, true),
            Err(Errno::BUSY) => return Err(Errno::BUSY),
            Err(_) => (loaded.attach_to_interface(index, false)?, false),
        };
        Ok(Self { sockets, _link: link, native })
    }

    /// Any descriptor of it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Frames of this receive queue go to the socket from now on.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.sockets.put(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }
}
