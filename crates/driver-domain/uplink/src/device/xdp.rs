//! AF_XDP: a NIC's queue, its UMEM in the memory that is shared with the switch. What is received lies in a slot of ours and is
//! copied once, by the switch, to the guest; what is to be sent is handed over where the switch has written it.
//!
//! The interface is taken from the host: what it receives does not reach the host's stack. Frames fit one buffer, so there are
//! no packets beyond the MTU: the switch cuts them and completes their checksums in its one copy.
//!
//! With several queues the program gives each busy guest a queue pair of its own ([`lasthop_guest_queues`]). With one, the next process
//! takes over the open device ([`crate::survival::ledger`]); with several, whose slots are on their way between pairs, it opens it anew.

mod frames;
mod inbox;
mod program;

use super::{Device, DeviceError, Got, Kept, OpenError, SHORTEST, Sent, Wanted, about, denied};
use crate::counters::{Counters, Reason};
use crate::pair::{Extent, Packet, Pair, VNET};
use crate::room::{Fill, Interface, Plan, Receiver, Sender, dropped, first_socket, shown, take_over};
use crate::survival::ledger::{Holder, Ledger, note};
use crate::survival::progress::Reading;
use arrayvec::ArrayVec;
use frames::{deliver, deliver_merged, drop_surplus, room_of, take_frames};
use inbox::{Home, Inbox, Inboxes};
use lasthop_aggregation::{BURST, Merger, SNAPSHOT};
use lasthop_frame::{VnetHdr, sum};
use lasthop_guest_queues::steering::{Lane, Sources, Steering, station};
use lasthop_guestmem::GuestSlice;
use lasthop_sys::EventFd;
use lasthop_uplink_ipc::UplinkDriver;
use lasthop_vhostuser::Features;
use program::XdpProgram;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Bytes of a slot, which is a chunk of the UMEM. The kernel leaves its first 256 free: there virtio's header goes.
const CHUNK: u32 = 4096;
/// Longest frame that fits a buffer of 2 KiB with virtio's header, without the Ethernet header and two tags.
const MAX_MTU: u32 = 2048 - VNET as u32 - 22;
/// How long another process's socket may be in the way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a queue that was given away waits for the default queue at most.
const HAND_OVER: Duration = Duration::from_millis(20);
/// How often the kernel is asked to go on sending before others get their turn.
const PUSHES: usize = 8;

/// A queue pair: what one queue of the interface sends, and what the sockets of all queues receive for it.
#[derive(Debug)]
pub struct Xdp {
    program: Arc<XdpProgram>,
    index: u32,
    queue: u16,
    pairs: u16,
    /// The socket of a process before this one, until it is taken over.
    kept: Option<FirstSocket>,
    sockets: Option<Sockets>,
    /// Makes packets of the frames of a burst, unless that is switched off.
    merger: Option<Merger>,
    burst: ArrayVec<Frame, BURST>,
}

type FirstSocket = (Sender, Receiver, Fill);

/// A received frame: where it lies in the shared memory, and in which slot, and where in that.
#[derive(Clone, Copy, Debug)]
struct Frame {
    at: Extent,
    slot: u32,
    in_slot: usize,
}

/// Once they are bound.
#[derive(Debug)]
struct Sockets {
    sender: Sender,
    inboxes: Inboxes,
    /// Where the UMEM of this queue begins in the shared memory.
    umem: usize,
    ledger: Option<Arc<Ledger>>,
    steering: Option<Arc<Steering>>,
    sources: Sources,
    /// The default queue: the hand-over that is asked of it, and how many slots have to be back for it. Others: the one that
    /// is waited for, and since when.
    asked: Option<(u64, u64)>,
    waits: Option<(u64, Instant)>,
}

/// The first socket of a queue, on its way from [`Xdp::bind`] to [`Xdp::connect`].
#[derive(Debug)]
pub(super) struct Bound {
    plan: Plan,
    sender: Sender,
    receiver: Receiver,
    home: Arc<Home>,
    ledger: Option<Arc<Ledger>>,
    wake: EventFd,
    /// The program knows it already.
    kept: bool,
}

impl Xdp {
    pub(super) fn open(wanted: &Wanted, kept: Option<Kept>) -> Result<Device, OpenError> {
        let name = &wanted.device;
        let failed = |e: Errno| OpenError(denied(name, e));
        let index = Interface::named(name).and_then(|i| i.index()).map_err(failed)?.cast_unsigned();
        let mut about = about(wanted, UplinkDriver::AfXdp, "", false)?;
        if about.mtu > MAX_MTU {
            let mtu = about.mtu;
            return Err(OpenError(format!(
                "{name} has an MTU of {mtu}; af_xdp takes up to {MAX_MTU}: set it lower, or use af_packet"
            )));
        }
        let pairs = wanted.queues;
        let (program, mut first) = match kept {
            Some(kept) => {
                let (program, socket) = handed_down(kept, &mut about.mode).map_err(failed)?;
                (program, Some(socket))
            }
            None => {
                let program = patiently(|| XdpProgram::attach(index, pairs)).map_err(failed)?;
                about.mode = if program.native { "native" } else { "generic" }.into();
                (program, None)
            }
        };
        let program = Arc::new(program);
        let queue = |queue| {
            let (program, kept) = (program.clone(), first.take());
            let (merger, burst) = (wanted.gro.then(Merger::default), ArrayVec::new());
            super::Queue::Xdp(Box::new(Self { program, index, queue, pairs, kept, sockets: None, merger, burst }))
        };
        let queues = (0..pairs).map(queue).collect();
        let mut features = Features::CSUM;
        let merged = Features::HOST_TSO4 | Features::HOST_TSO6 | Features::HOST_ECN | Features::HOST_USO;
        features.set(merged, wanted.gro);
        Ok(Device { queues, about, features, memory: inbox::memory(pairs), kept: None, steering: None })
    }

    /// Binds the first socket of its queue to the pair's memory, or takes over one that is bound to it.
    pub(super) fn bind(&mut self, pair: &mut Pair, ledger: Option<&Arc<Ledger>>) -> Result<Bound, Errno> {
        let (umem, kept) = (pair.buffers_and_slots(), self.kept.is_some());
        let plan = inbox::plan(umem, self.index, self.queue, self.pairs);
        let (sender, receiver, fill) = match (self.kept.take(), ledger) {
            (Some(mut socket), Some(ledger)) => {
                claim(&mut socket, pair, ledger, umem.0);
                socket
            }
            _ => patiently(|| plan.bind(&pair.arena))?,
        };
        let (home, ledger) = (Arc::new(Home::new(umem.0, fill)), ledger.cloned());
        Ok(Bound { plan, sender, receiver, home, ledger, wake: pair.to_network.call.try_clone()?, kept })
    }

    /// How far the process before this one has shown the kernel the rings of the socket that is kept.
    pub(super) fn shown(&self) -> Option<(u32, u32)> {
        self.kept.as_ref().map(shown)
    }

    /// Connects all queues of an interface with all pairs. The queues are those that `bound` were made for.
    pub(super) fn connect(
        queues: &mut [&mut Self],
        bound: Vec<Bound>,
        pairs: &mut [Pair],
    ) -> Result<(Option<Arc<Steering>>, String), Errno> {
        let Some(program) = queues.first().map(|q| q.program.clone()) else { return Err(Errno::INVAL) };
        let (zero_copy, kept) = (bound.iter().all(|b| b.sender.zero_copy), bound.iter().any(|b| b.kept));
        // Of each pair the sockets of all queues, in their order.
        let mut inboxes: Vec<Vec<Inbox>> = queues.iter().map(|_| Vec::new()).collect();
        let (mut senders, mut wakes) = (Vec::new(), Vec::new());
        for Bound { plan, sender, receiver, home, ledger, wake, .. } in bound {
            let (queue, mut own) = (plan.queue as usize, Some(receiver));
            for (pair, inboxes) in inboxes.iter_mut().enumerate() {
                let receiver = match own.take_if(|_| pair == queue) {
                    Some(own) => own,
                    None => plan.bind_more(&sender)?,
                };
                inboxes.push(Inbox::new(receiver, home.clone()));
            }
            senders.push((sender, home.umem, ledger));
            wakes.push(wake);
        }
        let steering = match program.table() {
            None => None,
            Some(table) => {
                let (table, seed) = table?;
                let lane = |(inboxes, wake): (&Vec<Inbox>, EventFd)| {
                    let sockets: Vec<_> = inboxes.iter().map(|inbox| inbox.receiver.socket()).collect();
                    let size = inboxes.iter().map(|inbox| inbox.receiver.size()).sum();
                    Lane::new(wake, move || sockets.iter().map(|socket| dropped(socket)).sum(), size)
                };
                let lanes = inboxes.iter().zip(wakes).map(lane).collect();
                Some(Arc::new(Steering::new(table, seed, lanes, EventFd::new()?)))
            }
        };
        for (((own, queue), inboxes), (sender, umem, ledger)) in queues.iter_mut().enumerate().zip(inboxes).zip(senders)
        {
            let mut inboxes = Inboxes::new(inboxes, own)?;
            if let Some(pair) = pairs.get_mut(own) {
                inboxes.start(pair, ledger.as_deref());
            }
            let (steering, sources) = (steering.clone(), Sources::default());
            queue.sockets =
                Some(Sockets { sender, inboxes, umem, ledger, steering, sources, asked: None, waits: None });
        }
        // Only now: a frame finds a slot in whichever queue it comes in on.
        for queue in queues.iter().filter(|_| !kept) {
            for (from, inbox) in (0..).zip(queue.sockets.iter().flat_map(|s| &s.inboxes.all)) {
                program.redirect(from, queue.queue, inbox.receiver.as_fd())?;
            }
        }
        let place = if program.native { "native" } else { "generic" };
        Ok((steering, format!("{place}, {}", if zero_copy { "zero-copy" } else { "copy" })))
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let Some(Sockets { sender, umem, ledger, steering, sources, .. }) = &mut self.sockets else {
            return Err(DeviceError::Gone);
        };
        let ledger = ledger.as_deref();
        if let Some(steering) = steering {
            sources.refresh(steering);
        }
        let (mut done, mut sent, mut bytes) = (0, 0, 0);
        for packet in packets {
            let [(at, len)] = packet.runs[..] else {
                counters.dropped(Reason::TooLong);
                pair.to_network.give_back(packet);
                done += 1;
                continue;
            };
            note(ledger, at, Holder::Send(sender.next()));
            if !sender.send((at + VNET - *umem) as u64, (len - VNET) as u32) {
                note(ledger, at, Holder::Us);
                break;
            }
            if let Some(steering) = steering
                && let Some(bytes) = pair.bytes((at + VNET + 6, 10)).read_array(0)
            {
                sources.note(station(bytes), steering);
            }
            (done, sent, bytes) = (done + 1, sent + 1, bytes + (len - VNET) as u64);
        }
        let buffers = packets.iter().take(done).map(Packet::buffers).sum();
        pair.progress.sending(buffers, sender.next());
        push(sender)?;
        counters.sent(sent, bytes);
        if let Some(lane) = steering.as_ref().and_then(|steering| steering.lane(self.queue)) {
            lane.sent.fetch_add(sent, Relaxed);
        }
        pair.progress.sent(buffers);
        give_back(sender, pair, ledger, *umem);
        Ok(Sent { done, blocked: done < packets.len() })
    }

    pub(super) fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        let queue = self.queue;
        let Some(sockets) = &mut self.sockets else { return Err(DeviceError::Gone) };
        if sockets.sender.is_sending() {
            push(&sockets.sender)?;
        }
        let ledger = sockets.ledger.as_deref();
        give_back(&mut sockets.sender, pair, ledger, sockets.umem);
        pair.from_network.reclaim_all()?;
        let lane = sockets.steering.as_ref().and_then(|steering| steering.lane(queue));
        if let Some(lane) = lane {
            drop_surplus(&mut sockets.inboxes, pair, lane)?;
        }
        sockets.inboxes.fill(pair, ledger);
        let most = room_of(&sockets.inboxes, lane);
        if let Some(steering) = &sockets.steering
            && let Some(got) = hand_over(steering, queue, &sockets.inboxes, &mut sockets.asked, &mut sockets.waits)
        {
            return Ok(got);
        }
        let inboxes = &mut sockets.inboxes;
        self.burst.clear();
        let (taken, stalled) = take_frames(inboxes, &mut self.burst, pair, (most, ledger), counters)?;
        inboxes.taken += taken as u64;
        let (before, read) =
            (pair.from_network.position(), inboxes.all.first().map_or(0, |first| first.receiver.next()));
        let bytes = self.burst.iter().map(|f| f.at.1 as u64).sum();
        let packets = match &mut self.merger {
            Some(merger) if self.burst.len() > 1 => deliver_merged(pair, &self.burst, merger),
            _ => {
                self.burst.iter().for_each(|frame| deliver(pair, frame));
                self.burst.len()
            }
        };
        let after = before.wrapping_add(packets as u16);
        pair.progress.reading(before, after, Reading::Ring(read));
        if taken > 0 {
            inboxes.all.iter().for_each(|inbox| inbox.receiver.taken());
        }
        counters.received(packets as u64, bytes);
        counters.merged((self.burst.len() - packets) as u64);
        pair.progress.counted(after, read);
        pair.from_network.publish();
        if let Some(steering) = &sockets.steering
            && taken > 0
        {
            steering.received(queue, packets as u64);
        }
        Ok(match taken {
            BURST => Got::More,
            _ if stalled || pair.from_network.ring.free() == 0 => Got::Stalled,
            _ => Got::All,
        })
    }

    /// Frames that found no room in the rings, ever. Those of queues that guests have are [shown](lasthop_guest_queues) with the queues.
    pub(super) fn overruns(&self) -> u64 {
        match &self.sockets {
            Some(Sockets { steering: None, inboxes, .. }) => {
                inboxes.all.iter().map(|inbox| dropped(&inbox.receiver.socket())).sum()
            }
            _ => 0,
        }
    }

    /// Frames are with the kernel, or one queue waits for another, and nobody will tell us the end of it.
    pub(super) fn is_busy(&self) -> bool {
        self.sockets.as_ref().is_some_and(|s| s.sender.in_flight > 0 || s.asked.is_some() || s.waits.is_some())
    }

    /// What the next process takes over besides the memory. With several queues nothing.
    pub(super) fn to_keep(&self) -> Vec<BorrowedFd<'_>> {
        match &self.sockets {
            Some(Sockets { sender, ledger: Some(_), .. }) => {
                let [map, link] = self.program.to_keep();
                vec![map, link, sender.as_fd()]
            }
            _ => Vec::new(),
        }
    }

    /// Readable when there is something to receive that [`AsFd`] does not tell of.
    pub(super) fn others(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.as_ref().and_then(|s| s.inboxes.others())
    }
}

/// A guest that gets a queue may have frames left in the default queue, which must reach the switch first. So its queue,
/// when it has its first frames, asks the default queue, and that answers when all that was in it is with the switch and
/// the switch has given the slots back. Rather than lose frames, the queue waits no longer when its rings are half full.
/// `None`: frames may be taken.
fn hand_over(
    steering: &Steering,
    queue: u16,
    inboxes: &Inboxes,
    asked: &mut Option<(u64, u64)>,
    waits: &mut Option<(u64, Instant)>,
) -> Option<Got> {
    if queue == 0 {
        if asked.is_none() && !steering.is_answered(steering.asked()) {
            *asked = Some((steering.asked(), inboxes.taken + inboxes.waiting()));
        }
        if let Some((ticket, _)) = asked.take_if(|(_, until)| inboxes.returned >= *until) {
            steering.answer(ticket);
        }
        return None;
    }
    let Some(lane) = steering.lane(queue).filter(|lane| lane.is_held()) else {
        *waits = None;
        return None;
    };
    if inboxes.waiting() == 0 {
        return Some(Got::All);
    }
    let (ticket, since) = *waits.get_or_insert_with(|| (steering.ask(), Instant::now()));
    if !steering.is_answered(ticket) && !inboxes.is_filling(lane.bound()) && since.elapsed() <= HAND_OVER {
        return Some(Got::Stalled);
    }
    lane.begin();
    *waits = None;
    None
}

/// A device that another process has opened: the program and the socket that it uses.
fn handed_down(kept: Kept, mode: &mut String) -> Result<(XdpProgram, FirstSocket), Errno> {
    let mut descriptors = kept.descriptors.into_iter();
    let mut next = || descriptors.next().ok_or(Errno::BADF);
    let (map, link, socket) = (next()?, next()?, next()?);
    let program = XdpProgram::kept(map, link, kept.mode.starts_with("native"));
    let (receive, fill) = inbox::rings(1);
    let socket = first_socket(socket, kept.mode.ends_with("zero-copy"), receive, fill)?;
    *mode = kept.mode;
    Ok((program, socket))
}

/// Goes on where a process has ended: what the kernel has is left to it, all else is free again. Frames that the switch had
/// delivered to that process and it had not sent are lost.
fn claim(socket: &mut FirstSocket, pair: &mut Pair, ledger: &Ledger, umem: usize) {
    let (received, sent) = take_over(socket);
    let (sender, _, fill) = socket;
    // Those before are with the kernel: it was shown them.
    let (filled, sending) = (fill.next(), sender.next());
    // They wait in the rings, whether or not the process had begun to read them.
    for at in received {
        if let Some((slot, _)) = pair.from_network.slot_of(umem.saturating_add(at as usize), 0) {
            ledger.note(pair.from_network.slot(slot).0, Holder::Fill(filled.wrapping_sub(1)));
        }
    }
    for at in sent {
        ledger.note(umem.saturating_add(at as usize), Holder::Send(sending.wrapping_sub(1)));
    }
    let in_flight = Cell::new(0);
    pair.claim(|offset| {
        let held = ledger.is_held(offset, filled, sending);
        match ledger.holder(offset) {
            Holder::Send(_) if held => in_flight.set(in_flight.get() + 1),
            _ if held => {}
            _ => ledger.note(offset, Holder::Us),
        }
        held
    });
    sender.in_flight = in_flight.get();
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
fn push(socket: &Sender) -> Result<(), DeviceError> {
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
fn give_back(socket: &mut Sender, pair: &mut Pair, ledger: Option<&Ledger>, umem: usize) {
    while let Some(at) = socket.completed() {
        note(ledger, umem + at as usize, Holder::Us);
        pair.to_network.give_back_at(umem + at as usize);
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.sockets {
            Some(sockets) => sockets.sender.as_fd(),
            None => self.program.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::frames::open_checksum;
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
