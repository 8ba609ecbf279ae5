//! AF_PACKET: any Ethernet interface, without taking it from the host. Frames are received and sent in batches, straight into
//! and out of the memory shared with the switch: recvmmsg(2) needs no ring in between, so there is no second copy and no block
//! that has to fill or to time out before anybody hears of it, as there would be with TPACKET_V3. Virtio-net headers pass both
//! ways (PACKET_VNET_HDR): what the NIC's driver has aggregated (GRO, LRO) crosses whole, and what the NIC cannot segment or sum
//! the kernel does for it after the switch's copy.

use super::backlog::Backlog;
use super::{
    Device, DeviceError, Got, Kept, OpenError, SHORTEST, Sent, Wanted, about, denied, take_slot, whole_packets,
};
use crate::counters::{Counters, Reason};
use crate::memory::MemoryConfig;
use crate::pair::{Extent, Packet, Pair, VNET};
use crate::room::{BATCH, Interface, Notes, PacketSocket, Place, Received};
use crate::survival::progress::{MESSAGES, Progress, Reading};
use arrayvec::ArrayVec;
use lasthop_frame::VnetHdr;
use lasthop_guestmem::GuestSlice;
use lasthop_uplink_ipc::UplinkDriver;
use rustix::io::Errno;
use rustix::system::uname;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Where in a slot the kernel's header goes and where the frame does. A VLAN tag that the kernel took out goes back in with
/// everything before it moved forward by its 4 bytes.
const HEADER: usize = 4;
const FRAME: usize = HEADER + VNET;
const TAG: usize = 4;

/// A packet socket.
#[derive(Debug)]
pub struct Packets {
    socket: PacketSocket,
    backlog: Backlog,
}

impl Packets {
    pub(super) fn open(wanted: &Wanted, kept: Option<Kept>) -> Result<Device, OpenError> {
        let name = &wanted.device;
        let failed = |e: Errno| OpenError(denied(name, e));
        let index = Interface::named(name).and_then(|i| i.index()).map_err(failed)?;
        // Of several processes in one network namespace each has a number of its own, and of the low 16 bits enough differ.
        let group = (wanted.queues > 1).then_some(std::process::id() as u16);
        let about = about(wanted, UplinkDriver::AfPacket, "mmsg", false)?;
        let sockets = match kept {
            Some(kept) => Ok(kept.descriptors.into_iter().map(PacketSocket::kept).collect()),
            None => (0..wanted.queues).map(|_| PacketSocket::open(index, group)).collect::<Result<Vec<_>, _>>(),
        };
        let sockets = sockets.map_err(failed)?;
        let queues =
            sockets.into_iter().map(|socket| super::Queue::Packets(Self { socket, backlog: Backlog::new() })).collect();
        let uso = knows_uso(&uname().release().to_string_lossy());
        let (features, memory) = (whole_packets(uso), MemoryConfig::whole_packets(wanted.queues));
        Ok(Device { queues, about, features, memory, kept: None, steering: None })
    }

    pub(super) fn is_bound(&self) -> bool {
        self.socket.is_bound()
    }

    /// When to try to send again, if nothing tells.
    pub(super) fn again(&self) -> Option<Duration> {
        self.backlog.again(Instant::now())
    }

    /// Frames that found no room in the socket since this was last asked.
    pub(super) fn overruns(&self) -> u64 {
        self.socket.take_dropped()
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let mut done = 0;
        while let Some(rest) = packets.get(done..).filter(|rest| !rest.is_empty()) {
            if self.backlog.is_to_look() && !self.backlog.may_send(self.socket.waiting(), Instant::now()) {
                return Ok(Sent { done, blocked: true });
            }
            let (at, progress) = (pair.progress.done(), &mut pair.progress);
            let buffers = |n| rest.iter().take(n).map(Packet::buffers).sum();
            let begin = |notes: &Notes, n| Progress::note_sending(notes, at, buffers(n), MESSAGES);
            match pair.arena.send(&self.socket, rest.iter().map(|p| &p.runs[..]), &mut progress.notes, begin) {
                Ok(n) => {
                    let bytes = rest.iter().take(n).map(Packet::frame_len).sum();
                    counters.sent(n as u64, bytes as u64);
                    self.backlog.sent(bytes);
                    progress.sent(buffers(n));
                    done += n;
                    continue;
                }
                Err(e @ (Errno::INTR | Errno::AGAIN)) => {
                    progress.sent(0);
                    if e == Errno::INTR {
                        continue;
                    }
                    self.backlog.is_full(self.socket.waiting(), Instant::now());
                    return Ok(Sent { done, blocked: true });
                }
                Err(Errno::NETDOWN) => counters.dropped(Reason::DeviceDown),
                Err(Errno::NOBUFS | Errno::NOMEM) => counters.dropped(Reason::NoRoom),
                Err(Errno::MSGSIZE) => counters.dropped(Reason::TooLong),
                Err(Errno::INVAL | Errno::FAULT) => counters.dropped(Reason::Refused),
                Err(Errno::NXIO | Errno::NODEV) => return Err(DeviceError::Gone),
                Err(e) => return Err(DeviceError::Io(e)),
            }
            progress.sent(buffers(1));
            done += 1;
        }
        Ok(Sent { done, blocked: false })
    }

    pub(super) fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        let mut slots = ArrayVec::<u32, BATCH>::new();
        let mut places = ArrayVec::<Place, BATCH>::new();
        let way = &mut pair.from_network;
        way.reclaim()?;
        while !slots.is_full() {
            let Some(slot) = take_slot(way)? else { break };
            let (at, len) = way.slot(slot);
            slots.push(slot);
            places.push(Place { header: at + HEADER, frame: (at + FRAME, len - FRAME) });
        }
        if slots.is_empty() {
            return Ok(Got::Stalled);
        }
        let mut received = ArrayVec::<Received, BATCH>::new();
        let position = pair.from_network.position();
        let begin = |notes: &Notes| Progress::note_reading(notes, position, position, Reading::Messages);
        let notes = &mut pair.progress.notes;
        let result = pair.arena.receive(&self.socket, &places, &mut received, notes, begin);
        let (mut packets, mut bytes) = (0, 0);
        for (i, slot) in slots.iter().enumerate() {
            let Some((offset, len)) = received.get(i).and_then(|r| arrange(pair, *slot, *r, counters)) else {
                pair.from_network.put_back(*slot);
                continue;
            };
            pair.from_network.add(*slot, offset, len);
            packets += 1;
            bytes += (len - VNET) as u64;
        }
        counters.received(packets, bytes);
        pair.progress.counted(position.wrapping_add(packets as u16), 0);
        pair.from_network.publish();
        match result {
            Ok(()) if received.is_full() => Ok(Got::More),
            Ok(()) | Err(Errno::AGAIN) => Ok(Got::All),
            Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(Got::More),
            // Set down, or about to be removed: the same error for both, and only once.
            Err(Errno::NETDOWN) if self.socket.is_bound() => Ok(Got::All),
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => Err(DeviceError::Gone),
            Err(e) => Err(DeviceError::Io(e)),
        }
    }
}

/// Whether a kernel of this release takes UDP segmentation requests in virtio-net headers: since 6.2. One before refuses the
/// packet, and a packet socket can only be asked by sending one. One that was taught it under an older number costs nothing but
/// that the switch cuts.
fn knows_uso(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

/// Makes a packet of what the kernel wrote into a slot: puts the tag back, and nothing else of the frame is touched. Where it
/// begins in the slot, and its length with the header; `None` if it is dropped.
fn arrange(pair: &Pair, slot: u32, received: Received, counters: &Counters) -> Option<Extent> {
    let Received { len, truncated, tag } = received;
    if truncated || len < SHORTEST {
        counters.dropped(if truncated { Reason::TooLong } else { Reason::TooShort });
        return None;
    }
    let bytes = pair.bytes(pair.from_network.slot(slot));
    // The kernel writes 10 bytes of the 12; `num_buffers` is for the other direction.
    bytes.write_array(HEADER + 10, &[0; 2]);
    let run = match tag {
        Some(tag) => {
            put_back_tag(&bytes, tag)?;
            (HEADER - TAG, VNET + TAG + len)
        }
        None => (HEADER, VNET + len),
    };
    // Only now does a probe say on which VLAN it came.
    if pair.sieve.keeps(&bytes.part(run.0 + VNET, run.1 - VNET), counters) { None } else { Some(run) }
}

fn put_back_tag(bytes: &GuestSlice<'_>, (tpid, tci): (u16, u16)) -> Option<()> {
    let mut header = VnetHdr::parse(&bytes.read_array(HEADER)?);
    if header.flags & VnetHdr::F_NEEDS_CSUM != 0 {
        header.csum_start = header.csum_start.checked_add(TAG as u16)?;
    }
    let addresses = bytes.read_array::<12>(FRAME)?;
    bytes.write_array(HEADER - TAG, &header.to_bytes());
    bytes.write_array(FRAME - TAG, &addresses);
    let ([t0, t1], [c0, c1]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    bytes.write_array(FRAME - TAG + 12, &[t0, t1, c0, c1]);
    Some(())
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_guestmem::GuestMemory;

    #[test]
    fn udp_segmentation_is_promised_where_the_kernel_knows_it() {
        for new in ["6.2", "6.2.0", "6.2-rc1", "6.12.57+deb13-amd64", "6.18.5", "7.0.1", "10.0"] {
            assert!(knows_uso(new), "{new}");
        }
        for old in ["6.1.0-18-amd64", "6.1.158", "5.15.0-91-generic", "5.6.3", "4.19.0", "6", "6.", "", "x.y", "-6.2"] {
            assert!(!knows_uso(old), "{old}");
        }
    }

    #[test]
    fn a_tag_goes_back_between_addresses_and_type() {
        let memory = GuestMemory::anonymous(4096).unwrap();
        let bytes = memory.slice(0, 256).unwrap();
        let frame: Vec<u8> = (0..64).collect();
        let header = VnetHdr { flags: VnetHdr::F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHdr::default() };
        bytes.write_array(HEADER, &header.to_bytes());
        bytes.write(FRAME, &frame);
        put_back_tag(&bytes, (0x88a8, 0x2005)).unwrap();
        let moved = VnetHdr::parse(&bytes.read_array(0).unwrap());
        assert_eq!(moved, VnetHdr { csum_start: 38, ..header });
        let mut out = vec![0; 68];
        bytes.read(VNET, &mut out);
        assert_eq!(out, [&frame[..12], &[0x88, 0xa8, 0x20, 0x05], &frame[12..]].concat());
    }
}
