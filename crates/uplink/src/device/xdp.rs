//! AF_XDP: a NIC's queue, its UMEM in the memory that is shared with the switch. What is received lies in a slot of ours and is
//! copied once, by the switch, to the guest; what is to be sent is handed over where the switch has written it.
//!
//! The interface is taken from the host: what it receives does not reach the host's stack. Frames fit one buffer, so there are
//! no packets beyond the MTU: the switch cuts them and completes their checksums in its one copy.

use super::{Device, DeviceError, Got, Kept, OpenError, SHORTEST, Sent, Wanted, about, denied};
use crate::counters::{Counters, Reason};
use crate::gro::{BURST, Merger, SNAPSHOT};
use crate::ledger::{Holder, Ledger};
use crate::memory::MemoryConfig;
use crate::pair::{Packet, Pair, Run, VNET};
use crate::room::{Interface, XdpProgram, Xsk};
use arrayvec::ArrayVec;
use lasthop_frame::{VnetHdr, sum};
use lasthop_guestmem::GuestSlice;
use lasthop_ipc::UplinkDriver;
use lasthop_vhostuser::Features;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a slot, which is a chunk of the UMEM. The kernel leaves its first 256 free: there virtio's header goes.
const CHUNK: u32 = 4096;
/// Longest frame that fits a buffer of 2 KiB with virtio's header, without the Ethernet header and two tags.
const MAX_MTU: u32 = 2048 - VNET as u32 - 22;
/// How long another process's socket may be in the way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the kernel is asked to go on sending before others get their turn.
const PUSHES: usize = 8;

/// A queue of an interface.
#[derive(Debug)]
pub struct Xdp {
    program: Arc<XdpProgram>,
    index: i32,
    queue: u32,
    socket: Option<Xsk>,
    /// The socket is a dead process's, and not taken over yet.
    kept: bool,
    ledger: Option<Arc<Ledger>>,
    /// Where the UMEM begins in the shared memory.
    umem: usize,
    /// Makes packets of the frames of a burst, unless that is switched off.
    merger: Option<Merger>,
    burst: ArrayVec<Frame, BURST>,
}

/// A received frame: where it lies in the shared memory, and in which slot, and where in that.
#[derive(Clone, Copy, Debug)]
struct Frame {
    at: Run,
    slot: u32,
    in_slot: usize,
}

impl Xdp {
    pub(super) fn open(wanted: &Wanted, kept: Option<Kept>) -> Result<Device, OpenError> {
        let name = &wanted.device;
        let failed = |e: Errno| OpenError(denied(name, e));
        let index = Interface::named(name).and_then(|i| i.index()).map_err(failed)?;
        let mut about = about(wanted, UplinkDriver::AfXdp, "", false)?;
        if about.mtu > MAX_MTU {
            let mtu = about.mtu;
            return Err(OpenError(format!(
                "{name} has an MTU of {mtu}; af_xdp takes up to {MAX_MTU}: set it lower, or use af_packet"
            )));
        }
        let (program, sockets, kept) = match kept {
            Some(kept) => {
                let (program, sockets, memory) = handed_down(kept, &mut about.mode).map_err(failed)?;
                (program, sockets.into_iter().map(Some).collect::<Vec<_>>(), Some(memory))
            }
            None => {
                let program = patiently(|| XdpProgram::attach(index, wanted.queues.into())).map_err(failed)?;
                about.mode = if program.native { "native" } else { "generic" }.into();
                (program, (0..wanted.queues).map(|_| None).collect(), None)
            }
        };
        let program = Arc::new(program);
        let queue = |(queue, socket): (u32, Option<Xsk>)| {
            let (program, kept) = (program.clone(), socket.is_some());
            let (merger, burst) = (wanted.gro.then(Merger::default), ArrayVec::new());
            super::Queue::Xdp(Box::new(Self {
                program,
                index,
                queue,
                socket,
                kept,
                ledger: None,
                umem: 0,
                merger,
                burst,
            }))
        };
        let queues = (0..).zip(sockets).map(queue).collect();
        let pairs = wanted.queues;
        let memory = MemoryConfig { pairs, ring: 512, buffer: 2048, slot: CHUNK, slots: 1536, ledger: true };
        let mut features = Features::CSUM;
        features.set(Features::HOST_TSO4 | Features::HOST_TSO6 | Features::HOST_ECN, wanted.gro);
        Ok(Device { queues, about, features, memory, kept })
    }

    /// Binds the socket to the pair's memory, or takes over one that is bound to it. True if the NIC uses that memory itself.
    pub(super) fn bind(&mut self, pair: &mut Pair, ledger: Option<&Arc<Ledger>>) -> Result<bool, Errno> {
        let umem = pair.buffers_and_slots();
        self.umem = umem.0;
        self.ledger = ledger.cloned();
        let ledger = self.ledger.as_deref();
        if let Some(socket) = self.socket.as_mut().filter(|_| self.kept) {
            take_over(socket, pair, ledger, self.umem);
            fill(socket, pair, ledger, self.umem);
            return Ok(socket.zero_copy);
        }
        let mut socket = patiently(|| Xsk::bind(&pair.arena, umem, CHUNK, self.index, self.queue))?;
        fill(&mut socket, pair, ledger, self.umem);
        self.program.redirect(self.queue, socket.as_fd())?;
        let zero_copy = socket.zero_copy;
        self.socket = Some(socket);
        Ok(zero_copy)
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let Some(socket) = &mut self.socket else { return Err(DeviceError::Gone) };
        let (mut done, mut sent, mut bytes) = (0, 0, 0);
        for packet in packets {
            let [(at, len)] = packet.runs[..] else {
                counters.dropped(Reason::TooLong);
                pair.to_network.give_back(packet);
                done += 1;
                continue;
            };
            if let Some(ledger) = &self.ledger {
                ledger.note(at, Holder::Send(socket.next().1));
            }
            if !socket.send((at + VNET - self.umem) as u64, (len - VNET) as u32) {
                if let Some(ledger) = &self.ledger {
                    ledger.note(at, Holder::Us);
                }
                break;
            }
            (done, sent, bytes) = (done + 1, sent + 1, bytes + (len - VNET) as u64);
        }
        counters.sent(sent, bytes);
        push(socket)?;
        give_back(socket, pair, self.ledger.as_deref(), self.umem);
        Ok(Sent { done, blocked: done < packets.len() })
    }

    pub(super) fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        let Some(socket) = &mut self.socket else { return Err(DeviceError::Gone) };
        if socket.is_sending() {
            push(socket)?;
        }
        give_back(socket, pair, self.ledger.as_deref(), self.umem);
        pair.from_network.reclaim_all()?;
        let (room, mut taken) = (usize::from(pair.from_network.ring.free()).min(BURST), 0);
        self.burst.clear();
        while taken < room {
            let Some((at, len)) = socket.received() else { break };
            taken += 1;
            let (offset, len) = (self.umem + at as usize, len as usize);
            let Some((slot, in_slot)) = pair.from_network.slot_of(offset, len).filter(|(_, at)| *at >= VNET) else {
                // The kernel speaks of memory that it was not given: nothing of this is right any more.
                return Err(DeviceError::Io(Errno::FAULT));
            };
            if let Some(ledger) = &self.ledger {
                ledger.note(pair.from_network.slot(slot).0, Holder::Us);
            }
            if len < SHORTEST {
                counters.dropped(Reason::TooShort);
                pair.from_network.put_back(slot);
                continue;
            }
            if pair.sieve.keeps(&pair.bytes((offset, len)), counters) {
                pair.from_network.put_back(slot);
                continue;
            }
            let _ = self.burst.try_push(Frame { at: (offset, len), slot, in_slot });
        }
        socket.taken();
        fill(socket, pair, self.ledger.as_deref(), self.umem);
        let bytes = self.burst.iter().map(|f| f.at.1 as u64).sum();
        let packets = match &mut self.merger {
            Some(merger) if self.burst.len() > 1 => hand_over_merged(pair, &self.burst, merger),
            _ => {
                self.burst.iter().for_each(|frame| hand_over(pair, frame));
                self.burst.len()
            }
        };
        counters.received(packets as u64, bytes);
        counters.merged((self.burst.len() - packets) as u64);
        pair.from_network.publish();
        Ok(match taken {
            BURST => Got::More,
            _ if pair.from_network.ring.free() == 0 => Got::Stalled,
            _ => Got::All,
        })
    }

    /// Frames are with the kernel that nobody will tell us the end of.
    pub(super) fn is_sending(&self) -> bool {
        self.socket.as_ref().is_some_and(|s| s.in_flight > 0)
    }

    /// Its part of what the next process takes over; the first queue has the program too.
    pub(super) fn to_keep(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let program = (self.queue == 0).then(|| self.program.to_keep());
        program.into_iter().flatten().chain(self.socket.as_ref().map(AsFd::as_fd))
    }

    /// Its mode, in full.
    pub(super) fn mode(&self, zero_copy: bool) -> String {
        let place = if self.program.native { "native" } else { "generic" };
        format!("{place}, {}", if zero_copy { "zero-copy" } else { "copy" })
    }
}

/// A device that another process has opened: the program, the sockets and the memory that they use.
fn handed_down(kept: Kept, mode: &mut String) -> Result<(XdpProgram, Vec<Xsk>, OwnedFd), Errno> {
    let mut descriptors = kept.descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(Errno::BADF);
    let (memory, map, link) = (next()?, next()?, next()?);
    let program = XdpProgram::kept(map, link, kept.mode.starts_with("native"));
    let zero_copy = kept.mode.ends_with("zero-copy");
    let sockets = descriptors.map(|socket| Xsk::kept(socket, zero_copy)).collect::<Result<_, _>>()?;
    *mode = kept.mode;
    Ok((program, sockets, memory))
}

/// Goes on where a process has ended: what the kernel has is left to it, all else is free again. Frames that the switch had
/// delivered to that process and it had not sent are lost.
fn take_over(socket: &mut Xsk, pair: &mut Pair, ledger: Option<&Ledger>, umem: usize) {
    let Some(ledger) = ledger else { return };
    let (received, sent) = socket.take_over();
    let (filled, sending) = socket.shown();
    // They wait in the rings, whether or not the process had begun to read them.
    for at in received {
        if let Some((slot, _)) = pair.from_network.slot_of(umem + at as usize, 0) {
            ledger.note(pair.from_network.slot(slot).0, Holder::Fill(filled.wrapping_sub(1)));
        }
    }
    sent.iter().for_each(|at| ledger.note(umem + *at as usize, Holder::Send(sending.wrapping_sub(1))));
    let in_flight = std::cell::Cell::new(0);
    pair.claim(|offset| {
        let held = ledger.is_held(offset, filled, sending);
        match ledger.holder(offset) {
            Holder::Send(_) if held => in_flight.set(in_flight.get() + 1),
            _ if held => {}
            _ => ledger.note(offset, Holder::Us),
        }
        held
    });
    socket.in_flight = in_flight.get();
}

/// Again and again while the device is busy: when a process ends and nobody keeps what it had, the kernel takes its time.
fn patiently<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let until = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            result => return result,
        }
    }
}

/// Has the kernel send what it was given.
fn push(socket: &Xsk) -> Result<(), DeviceError> {
    for _ in 0..PUSHES {
        match socket.flush() {
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) if socket.is_sending() => {}
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR | Errno::NETDOWN) => return Ok(()),
            Err(Errno::NXIO | Errno::NODEV) => return Err(DeviceError::Gone),
            Err(e) => return Err(DeviceError::Io(e)),
        }
    }
    Ok(())
}

/// Buffers that were sent go back to the switch.
fn give_back(socket: &mut Xsk, pair: &mut Pair, ledger: Option<&Ledger>, umem: usize) {
    while let Some(at) = socket.completed() {
        if let Some(ledger) = ledger {
            ledger.note(umem + at as usize, Holder::Us);
        }
        pair.to_network.give_back_at(umem + at as usize);
    }
}

/// Spare slots go to the kernel.
fn fill(socket: &mut Xsk, pair: &mut Pair, ledger: Option<&Ledger>, umem: usize) {
    while let Some(slot) = pair.from_network.take_spare() {
        let at = pair.from_network.slot(slot).0;
        if let Some(ledger) = ledger {
            ledger.note(at, Holder::Fill(socket.next().0));
        }
        if !socket.fill((at - umem) as u64) {
            // What was noted never comes true, and is struck out here or by the next process.
            if let Some(ledger) = ledger {
                ledger.note(at, Holder::Us);
            }
            pair.from_network.put_back(slot);
            break;
        }
    }
    socket.filled();
}

/// Gives the switch a frame as it is.
fn hand_over(pair: &mut Pair, frame: &Frame) {
    let (offset, len) = frame.at;
    let header = open_checksum(&pair.bytes(frame.at));
    pair.bytes((offset - VNET, VNET)).write_array(0, &header.to_bytes());
    pair.from_network.add(frame.slot, frame.in_slot - VNET, VNET + len);
}

/// Gives the switch the frames of a burst, those of a flow as one packet; how many packets that were.
fn hand_over_merged(pair: &mut Pair, burst: &[Frame], merger: &mut Merger) -> usize {
    merger.clear();
    let mut read = |frame: usize, to: &mut [u8]| burst.get(frame).map_or(0, |f| pair.bytes(f.at).read(0, to));
    for frame in burst {
        merger.add(frame.at.1, &mut read);
    }
    for packet in 0..merger.packets() {
        let Some((first, more)) = merger.first(packet) else { continue };
        let Some(frame) = burst.get(first) else { continue };
        let mut headers = [0; SNAPSHOT];
        let merged = if more == 0 {
            None
        } else {
            let len = pair.bytes(frame.at).read(0, &mut headers);
            headers.get_mut(..len).and_then(|headers| merger.finish(packet, headers))
        };
        let Some((header, len)) = merged else {
            hand_over(pair, frame);
            merger.rest(packet).filter_map(|(number, ..)| burst.get(number)).for_each(|f| hand_over(pair, f));
            continue;
        };
        let hdr_len = usize::from(header.hdr_len);
        pair.bytes(frame.at).write(0, headers.get(..hdr_len).unwrap_or_default());
        pair.bytes((frame.at.0 - VNET, VNET)).write_array(0, &header.to_bytes());
        let mut pieces = ArrayVec::<_, BURST>::new();
        let _ = pieces.try_push((frame.slot, frame.in_slot - VNET, VNET + len));
        for (number, from, len) in merger.rest(packet) {
            if let Some(next) = burst.get(number) {
                let _ = pieces.try_push((next.slot, next.in_slot + from, len));
            }
        }
        pair.from_network.add_pieces(&pieces);
    }
    merger.packets()
}

/// The header for a received frame. A veth's other end leaves checksums open and XDP has no word for that; but then the field
/// holds the sum over the pseudo header, which is easily known. (One in 65 536 finished checksums looks the same; to have it
/// summed once more does no harm.)
fn open_checksum(frame: &GuestSlice<'_>) -> VnetHdr {
    partial(frame).unwrap_or_default()
}

fn partial(frame: &GuestSlice<'_>) -> Option<VnetHdr> {
    let mut bytes = [0; 14 + 40 + 20];
    let len = frame.read(0, &mut bytes);
    let bytes = bytes.get(..len)?;
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let (l4, proto, pseudo) = match word(12)? {
        0x0800 => {
            let (header, total) = (usize::from(bytes.get(14)? & 15) * 4, word(16)?);
            // A fragment's checksum is not its own.
            if word(20)? & 0x3fff != 0 {
                return None;
            }
            let [src, dst] = [bytes.get(26..30)?, bytes.get(30..34)?].map(<[u8; 4]>::try_from);
            let len = total.checked_sub(header as u16)?;
            (14 + header, *bytes.get(23)?, sum::pseudo_v4(src.ok()?, dst.ok()?, *bytes.get(23)?, len))
        }
        0x86dd => {
            let [src, dst] = [bytes.get(22..38)?, bytes.get(38..54)?].map(<[u8; 16]>::try_from);
            (54, *bytes.get(20)?, sum::pseudo_v6(src.ok()?, dst.ok()?, *bytes.get(20)?, word(18)?.into()))
        }
        _ => return None,
    };
    let offset = match proto {
        6 => 16,
        17 => 6,
        _ => return None,
    };
    let open = word(l4 + offset)? == sum::fold(pseudo);
    let (flags, start, offset) = (VnetHdr::F_NEEDS_CSUM, l4 as u16, offset as u16);
    open.then(|| VnetHdr { flags, csum_start: start, csum_offset: offset, ..VnetHdr::default() })
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => self.program.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::testutil::Frame;
    use lasthop_guestmem::GuestMemory;

    fn header_of(frame: &[u8]) -> VnetHdr {
        let memory = GuestMemory::anonymous(4096).unwrap();
        let bytes = memory.slice(0, frame.len()).unwrap();
        bytes.write(0, frame);
        open_checksum(&bytes)
    }

    #[test]
    fn an_open_checksum_is_found_and_a_finished_one_left_alone() {
        let udp = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, 8).payload(vec![5; 99]);
        let tcp = Frame::new(1, 2).ipv6([1; 16], [2; 16]).tcp(7, 8).payload(vec![6; 99]);
        for (frame, start, offset) in [(udp, 34, 6), (tcp, 54, 16)] {
            assert_eq!(header_of(&frame.build()), VnetHdr::default());
            let header = header_of(&frame.partial_checksum().build());
            assert_eq!((header.flags, header.csum_start, header.csum_offset), (VnetHdr::F_NEEDS_CSUM, start, offset));
        }
        assert_eq!(header_of(&[0; 14]), VnetHdr::default());
    }
}
