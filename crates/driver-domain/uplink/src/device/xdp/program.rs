//! The XDP program that hands an interface's frames to AF_XDP sockets, and its maps.
//!
//! ```text
//! let pair = queues of the table [VLAN of the tag or 0, destination address], which counts the frame, or 0;
//! return bpf_redirect_map(&sockets, ctx->rx_queue_index * pairs + pair, XDP_PASS);
//! ```
//!
//! The kernel gives a frame only to a socket of the queue it came in on. So every queue of the interface has a socket for
//! every queue pair. With one queue there is nothing to look up.

use lasthop_guest_queues::table::{
    BUCKET_BITS, BUCKET_SHIFT, BYTES, ENTRY_BYTES, PACKETS_AT, QUEUE_AT, VALID, VID, VLAN_SHIFT, WAYS,
};
use lasthop_sys::bpf::assembler::{Assembler, Helper, Reg, Width};
use lasthop_sys::bpf::{BpfMap, BpfProgram, MapKind, MappedValue, ProgramKind};
use rustix::io::Errno;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Members of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;
/// Bytes of a key and a value of the map of sockets.
const KEY: usize = size_of::<u32>();
const SOCKET: usize = size_of::<i32>();
/// For queues without a socket.
const XDP_PASS: u64 = 2;
/// Types of frames whose next two bytes are a tag (IEEE 802.1Q, 9.5), as the program loads them.
const TAGS: [i32; 2] = [u16::from_be(0x8100) as i32, u16::from_be(0x88a8) as i32];

/// Where the program looks addresses up.
#[derive(Debug)]
struct Lookup {
    map: BpfMap,
    seed: u64,
}

fn instructions(sockets: i32, pairs: u16, lookup: Option<&Lookup>) -> Option<Vec<u64>> {
    /// Index of the socket.
    const INDEX: Reg = Reg(2);
    let mut a = Assembler::default();
    match lookup {
        None => a.load(Width::Word, INDEX, Reg(1), RX_QUEUE),
        Some(lookup) => {
            const QUEUE: Reg = Reg(6);
            const KEY: Reg = Reg(7);
            const ENTRY: Reg = Reg(8);
            let (chosen, found) = (a.label(), a.label());
            a.load(Width::Word, QUEUE, Reg(1), RX_QUEUE);
            a.load(Width::Word, Reg(4), Reg(1), DATA);
            a.load(Width::Word, Reg(5), Reg(1), DATA_END);
            a.set(INDEX, 0);
            a.copy(Reg(3), Reg(4));
            a.add_value(Reg(3), 14);
            a.jump_above(Reg(3), Reg(5), chosen);
            a.load(Width::Half, KEY, Reg(4), 4);
            a.shift_left(KEY, 32);
            a.load(Width::Word, Reg(3), Reg(4), 0);
            a.or(KEY, Reg(3));
            key_of_tag(&mut a, KEY);
            a.set(Reg(3), VALID);
            a.or(KEY, Reg(3));
            a.copy(Reg(4), KEY);
            a.set(Reg(3), lookup.seed);
            a.multiply(Reg(4), Reg(3));
            a.shift_right(Reg(4), 64 - BUCKET_BITS);
            a.shift_left(Reg(4), BUCKET_SHIFT);
            a.map_value(ENTRY, lookup.map.as_fd().as_raw_fd(), 0);
            a.add(ENTRY, Reg(4));
            for way in 0..WAYS {
                if way > 0 {
                    a.add_value(ENTRY, ENTRY_BYTES);
                }
                a.load(Width::Double, Reg(3), ENTRY, 0);
                a.jump_same(Reg(3), KEY, found);
            }
            a.jump(chosen);
            a.place(found);
            a.set(Reg(3), 1);
            a.atomic_add(ENTRY, PACKETS_AT, Reg(3));
            a.load(Width::Word, INDEX, ENTRY, QUEUE_AT);
            a.place(chosen);
            a.set(Reg(3), pairs.into());
            a.multiply(QUEUE, Reg(3));
            a.add(INDEX, QUEUE);
        }
    }
    a.map(Reg(1), sockets);
    a.set(Reg(3), XDP_PASS);
    a.call(Helper::RedirectMap);
    a.exit_with_result();
    a.finish()
}

/// The VLAN of a frame with a tag becomes part of the key. The frame begins at register 4 and ends at 5.
fn key_of_tag(a: &mut Assembler, key: Reg) {
    let (tagged, without) = (a.label(), a.label());
    a.load(Width::Half, Reg(3), Reg(4), 12);
    TAGS.iter().for_each(|tag| a.jump_eq(Reg(3), *tag, tagged));
    a.jump(without);
    a.place(tagged);
    a.copy(Reg(3), Reg(4));
    a.add_value(Reg(3), 16);
    a.jump_above(Reg(3), Reg(5), without);
    a.load(Width::Half, Reg(3), Reg(4), 14);
    a.and_value(Reg(3), VID.into());
    a.shift_left(Reg(3), VLAN_SHIFT);
    a.or(key, Reg(3));
    a.place(without);
}

/// An attached program. The interface loses it with this.
#[derive(Debug)]
pub struct XdpProgram {
    sockets: BpfMap,
    pairs: u16,
    lookup: Option<Lookup>,
    link: OwnedFd,
    /// It runs in the driver, not in the kernel's generic path.
    pub native: bool,
}

impl XdpProgram {
    /// Attaches it to the interface with this number: in its driver if that can, else in the generic path. `pairs`: queue
    /// pairs, and queues of the interface that have sockets.
    pub fn attach(index: u32, pairs: u16) -> Result<Self, Errno> {
        let sockets =
            BpfMap::new(MapKind::XdpSockets, c"lasthop_xsk", KEY, SOCKET, u32::from(pairs) * u32::from(pairs))?;
        let lookup = if pairs > 1 {
            let map = BpfMap::new(MapKind::MappedArray, c"lasthop_vmdq", 4, BYTES, 1)?;
            // Odd, so that no bit of an address is lost.
            Some(Lookup { map, seed: RandomState::new().build_hasher().finish() | 1 })
        } else {
            None
        };
        let instructions = instructions(sockets.as_fd().as_raw_fd(), pairs, lookup.as_ref()).ok_or(Errno::TOOBIG)?;
        let loaded = BpfProgram::load(ProgramKind::Xdp, c"lasthop_xdp", c"Dual BSD/GPL", &instructions);
        let loaded = loaded.map_err(|e| e.errno)?;
        let (link, native) = match loaded.attach_to_interface(index, true) {
            Ok(link) => (link, true),
            Err(Errno::BUSY) => return Err(Errno::BUSY),
            Err(_) => (loaded.attach_to_interface(index, false)?, false),
        };
        Ok(Self { sockets, pairs, lookup, link, native })
    }

    /// One for one queue pair, that another process has attached.
    pub fn kept(sockets: OwnedFd, link: OwnedFd, native: bool) -> Self {
        Self { sockets: BpfMap::kept(sockets, KEY, SOCKET), pairs: 1, lookup: None, link, native }
    }

    /// All of it, for the next process, if it is for one queue pair.
    pub fn to_keep(&self) -> [BorrowedFd<'_>; 2] {
        [self.sockets.as_fd(), self.link.as_fd()]
    }

    /// Any descriptor of it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// Frames that come in on this queue of the interface and are for this queue pair go to the socket from now on.
    pub fn redirect(&self, queue: u16, pair: u16, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let key = u32::from(queue) * u32::from(self.pairs) + u32::from(pair);
        self.sockets.put(&key.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }

    /// The table of addresses and the number its hashes are made with; `None` with one queue.
    pub fn table(&self) -> Option<Result<(MappedValue, u64), Errno>> {
        self.lookup.as_ref().map(|lookup| Ok((lookup.map.mapped()?, lookup.seed)))
    }
}
