//! One port of an attacker.

use super::super::frame::{self, VNET};
use super::super::port::{Buffers, Memory, Port, Ring, Wanted, bring_up, broken};
use super::super::{Outcome, Settings, failed};
use lasthop_frame::testutil::Frame;
use lasthop_guestmem::RegionSpec;
use lasthop_text::MacAddr;
use lasthop_vhostuser::{Features, Frontend, ProtocolFeatures};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, ftruncate, memfd_create};
use rustix::io::write;
use rustix::time::Timespec;
use std::os::fd::AsFd;

/// Its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries of each.
    pub entries: u16,
    /// Bytes of a receive buffer.
    pub rx_buffer: usize,
}

impl Shape {
    /// As guests have them.
    pub const USUAL: Self = Self { entries: 1024, rx_buffer: 2048 };
    /// As many buffers as there can be (virtio 1.2 §2.7), each for a small segment.
    pub const LONG: Self = Self { entries: 32768, rx_buffer: 256 };

    /// Memory that one takes, two large frames included.
    pub fn bytes(self, settings: &Settings) -> u64 {
        let rings = 2 * Ring::bytes(&self.settings(settings));
        let buffers = u64::from(self.entries) * (Buffers::stride(self.rx_buffer) + Buffers::stride(SMALL));
        rings + buffers + 2 * (frame::LONGEST as u64 + 4096) + 8 * 4096
    }

    fn settings(self, settings: &Settings) -> Settings {
        Settings { ring_size: self.entries, queues: 1, packed: false, ..settings.clone() }
    }
}

/// Bytes of a small frame, virtio-net header included.
pub const SMALL: usize = VNET + 64;
/// Bytes of a file for the switch to map; nothing is in it.
const SPARSE: u64 = 2 << 40;
const ZEROES: [u8; 2048] = [0; 2048];

/// A port, its buffers, and where they are.
#[derive(Debug)]
pub struct Puppet {
    port: Port,
    shape: Shape,
    rx: Buffers,
    tx: Buffers,
    /// Receive buffers that are not with the switch.
    held: Vec<u32>,
    /// Send entries that are not with the switch.
    spare: Vec<u32>,
    /// Frames that the switch has taken.
    pub sent: u64,
    /// Frames that came.
    pub received: u64,
}

impl Puppet {
    /// Plugs one in. It takes no packet uncut; `large` says whether it sends some.
    pub fn new(
        front: Frontend,
        number: u16,
        settings: &Settings,
        large: bool,
        shape: Shape,
        memory: &mut Memory,
    ) -> Outcome<Self> {
        let plain = Features::VERSION_1 | Features::PROTOCOL_FEATURES;
        let offloads = if large { Features::CSUM | Features::HOST_TSO4 } else { Features::empty() };
        // Without REPLY_ACK: it does not wait for answers.
        let regions = settings.attack == Some(super::Attack::Regions);
        let protocol = if regions { ProtocolFeatures::CONFIGURE_MEM_SLOTS } else { ProtocolFeatures::empty() };
        let wanted = Wanted { needed: plain | offloads, welcome: Features::empty(), protocol };
        let mut port = bring_up(front, number, &shape.settings(settings), wanted, memory)?;
        let entries = u32::from(shape.entries);
        let of = |len: usize| u64::from(entries) * Buffers::stride(len);
        let rx = Buffers::in_line(memory.take(of(shape.rx_buffer))?, Buffers::stride(shape.rx_buffer));
        let tx = Buffers::in_line(memory.take(of(SMALL))?, Buffers::stride(SMALL));
        port.rx.iter_mut().chain(&mut port.tx).for_each(|r| r.ring.disable_calls());
        let (held, spare) = ((0..entries).collect(), (0..entries).collect());
        let mut puppet = Self { port, shape, rx, tx, held, spare, sent: 0, received: 0 };
        puppet.offer(usize::MAX);
        Ok(puppet)
    }

    /// Its address.
    pub fn mac(&self) -> MacAddr {
        frame::mac(self.port.number)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.port.number
    }

    /// Takes back what the switch is done with: send buffers, and received frames, which are not looked at. At most so many
    /// of each.
    pub fn collect(&mut self, most: usize) -> Outcome<()> {
        for _ in 0..most {
            let Some((token, _)) = self.port.rx[0].ring.poll_used().map_err(broken)? else { break };
            self.held.push(token);
            self.received += 1;
        }
        for _ in 0..most {
            let Some((token, _)) = self.port.tx[0].ring.poll_used().map_err(broken)? else { break };
            self.spare.push(token);
            self.sent += 1;
        }
        Ok(())
    }

    /// Gives the switch at most so many receive buffers.
    pub fn offer(&mut self, most: usize) {
        let ring = &mut self.port.rx[0];
        let mut any = false;
        for _ in 0..most {
            let Some(token) = self.held.pop() else { break };
            if ring.ring.add(&[], &[(self.rx.at(token), self.shape.rx_buffer as u32)], token).is_err() {
                self.held.push(token);
                break;
            }
            any = true;
        }
        if any {
            ring.publish();
        }
    }

    /// Send entries that it has.
    pub fn room(&self) -> usize {
        self.spare.len()
    }

    /// Sends at most so many frames; `make` says where the next lies and how long it is with its virtio-net header. It is
    /// handed the address of a small buffer that it may fill.
    pub fn send(&mut self, most: usize, mut make: impl FnMut(u64) -> (u64, usize)) {
        let ring = &mut self.port.tx[0];
        let mut any = false;
        for _ in 0..most {
            let Some(token) = self.spare.pop() else { break };
            let (addr, len) = make(self.tx.at(token));
            if ring.ring.add(&[(addr, len as u32)], &[], token).is_err() {
                self.spare.push(token);
                break;
            }
            any = true;
        }
        if any {
            ring.publish();
        }
    }

    /// One frame to everybody, so that who learns has learned where this port is.
    pub fn announce(&mut self, memory: &Memory) -> Outcome<()> {
        self.collect(usize::MAX)?;
        self.offer(usize::MAX);
        let bytes = small(self.mac(), MacAddr([0xff; 6]));
        self.send(1, |addr| {
            memory.slice(addr, SMALL).write(0, &bytes);
            (addr, SMALL)
        });
        Ok(())
    }

    /// Call descriptors whose counters are full, and which block whoever adds to them; and back.
    pub fn block(&mut self, block: bool) -> Outcome<()> {
        for ring in self.port.rx.iter_mut().chain(&mut self.port.tx) {
            let flags = fcntl_getfl(&ring.call).map_err(failed)?;
            if block {
                // One less than what does not fit any more (eventfd(2)).
                let _ = write(&ring.call, &(u64::MAX - 1).to_ne_bytes());
                // The flag belongs to the description, and so to the switch's descriptor too.
                fcntl_setfl(&ring.call, flags - OFlags::NONBLOCK).map_err(failed)?;
                ring.ring.enable_calls();
            } else {
                fcntl_setfl(&ring.call, flags | OFlags::NONBLOCK).map_err(failed)?;
                ring.ring.disable_calls();
                ring.call.drain();
            }
        }
        Ok(())
    }

    /// Has the switch map a sparse file of 2 TiB, the `n`th, if that can be said without waiting: false if not.
    pub fn add_region(&mut self, n: u64) -> bool {
        let Ok(file) = memfd_create("sparse", MemfdFlags::CLOEXEC) else { return false };
        let at = (n + 1) * SPARSE;
        let region = RegionSpec { guest_addr: at, user_addr: at, size: SPARSE, mmap_offset: 0 };
        ftruncate(&file, SPARSE).is_ok() && self.can_tell() && self.port.front.add_region(region, file.as_fd()).is_ok()
    }

    fn can_tell(&self) -> bool {
        let mut fds = [PollFd::new(&self.port.front, PollFlags::OUT)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        fds[0].revents().contains(PollFlags::OUT)
    }

    /// Disables or enables the receive ring, if that can be said without waiting: false if not. A switch may also have had
    /// enough of this port, and closed its connection.
    pub fn enable(&mut self, enabled: bool) -> bool {
        self.can_tell() && self.port.front.enable(0, enabled).is_ok()
    }
}

/// A small frame, virtio-net header first: IPv4 and UDP, not one of those that are counted.
pub fn small(from: MacAddr, to: MacAddr) -> [u8; SMALL] {
    let frame = Frame::between(from, to).ipv4([10, 99, 0, 1], [10, 99, 0, 2]).udp(9, 9).payload(vec![0; 22]).build();
    let mut bytes = [0; SMALL];
    bytes[VNET..].copy_from_slice(&frame[..SMALL - VNET]);
    bytes
}

/// Puts a 64 KiB TCP packet that is to be cut every `size` bytes of payload into memory; its address and length.
pub fn large(from: u16, to: Option<u16>, size: u16, memory: &mut Memory) -> Outcome<(u64, usize)> {
    let mut template = frame::Template::new(from, to, frame::GSO_FRAME, true, frame::Vary::Tuple);
    let mut head = template.stamp(0, 0, 0).to_vec();
    head[4..6].copy_from_slice(&size.to_le_bytes());
    // Not one of those that are counted: without the mark.
    let mark = head.len() - frame::PROBE;
    head[mark..mark + 2].fill(0);
    let len = VNET + frame::GSO_FRAME;
    let addr = memory.take(len as u64)?;
    let all = memory.slice(addr, len);
    let mut at = all.write(0, &head);
    while at < len {
        at += all.write(at, &ZEROES[..ZEROES.len().min(len - at)]);
    }
    Ok((addr, len))
}
