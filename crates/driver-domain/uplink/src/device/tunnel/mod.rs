//! A tunnel: UDP sockets of the host's stack as the network, or raw ones. Between the switch and this device each frame has a number in front that names
//! its outer header (`lasthop_tunnel`): `lasthop-ovs` says what the numbers of the frames mean that are to be sent, and hears what those
//! of the frames mean that came.
//!
//! Packets of 64 KiB are cut here, each segment gets its own inner and outer headers, and all of them go to the kernel in one call (UDP
//! segmentation offload), or one by one with GRE, which the kernel cannot cut. What comes in a burst and belongs together becomes one packet again (receive aggregation).

mod numbers;

use super::{Device, DeviceError, Got, OpenError, Sent, Wanted, denied, take_slot, whole_packets};
use crate::counters::{Counters, Reason};
use crate::memory::MemoryConfig;
use crate::pair::{Packet, Pair, VNET};
use crate::room::{Datagram, DatagramSocket, Outer, Over, is_ipv4};
use arrayvec::ArrayVec;
use lasthop_aggregation::{BURST, Merger, SNAPSHOT, opened};
use lasthop_frame::{Delivery, HeaderBuf, Offload, Receiver, SEGMENT_HEADER_LEN, SNAPSHOT_LEN, VnetHdr, sum};
use lasthop_text::MacAddr;
use lasthop_tunnel::{Message, Tunnel, tci_of};
use lasthop_tunnel_headers::{self as headers, Kind};
use lasthop_uplink_ipc::{UplinkDevice, UplinkDriver};
use numbers::{Number, Numbers};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Longest datagram, and room for several short ones behind it.
const LONGEST: usize = 65_536;
const ROOM: usize = 4 * LONGEST;
/// Most bytes, and most segments, of one call.
const AT_ONCE: usize = 64_000;
/// What the kernel has merged of several packets of a way may be cut again into this much payload: it fits the shortest MTU of IPv6.
const PAYLOAD: u16 = 1200;
const MOST_SEGMENTS: usize = 64;
/// Bytes of the tag that a number is.
const TAG: usize = 4;
/// Where it lies.
const TAG_AT: usize = 12;

/// Sockets that send: for each family with and without "don't fragment", with and without checksum.
#[derive(Debug)]
struct Senders([DatagramSocket; 4]);

impl Senders {
    fn open(ipv6: bool, over: Over) -> Result<Self, Errno> {
        let open = |dont_fragment, checksum| DatagramSocket::sender(ipv6, over, dont_fragment, checksum);
        Ok(Self([open(false, false)?, open(false, true)?, open(true, false)?, open(true, true)?]))
    }

    fn for_flags(&self, dont_fragment: bool, checksum: bool) -> &DatagramSocket {
        let [plain, summed, whole, whole_summed] = &self.0;
        match (dont_fragment, checksum) {
            (false, false) => plain,
            (false, true) => summed,
            (true, false) => whole,
            (true, true) => whole_summed,
        }
    }
}

/// A family: what comes, and what goes.
#[derive(Debug)]
struct Family {
    ipv6: bool,
    receiver: DatagramSocket,
    senders: Senders,
}

impl Family {
    fn open(ipv6: bool, over: Over) -> Result<Self, Errno> {
        Ok(Self { ipv6, receiver: DatagramSocket::receiver(ipv6, over)?, senders: Senders::open(ipv6, over)? })
    }
}

/// The device's one queue.
#[derive(Debug)]
pub struct Tunnels {
    kind: Kind,
    /// The UDP port here; 0 with GRE.
    port: u16,
    family: Family,
    /// IPv6, over UDP, where the host has it.
    other: Option<Family>,
    /// What numbers of frames that are to be sent mean.
    meanings: HashMap<u16, Tunnel>,
    numbers: Numbers,
    merger: Merger,
    /// Datagrams that came, one behind the other.
    room: Vec<u8>,
    /// A frame that is to be sent, and what becomes of it.
    frame: Vec<u8>,
    segments: Vec<u8>,
    /// What the kernel had no room for.
    rest: Option<Rest>,
}

/// Datagrams that the kernel is to be given: all but the last have the same length.
#[derive(Clone, Copy, Debug)]
struct Rest {
    tunnel: Tunnel,
    /// Bytes of each.
    len: usize,
    /// Where in what became of the frame those begin that it has not taken.
    at: usize,
    /// With checksum: of the socket that was tried last.
    summed: bool,
}

/// Inner frames that came one after the other with the same outer header: offsets and lengths in the room.
#[derive(Default)]
struct Burst {
    tunnel: Tunnel,
    frames: ArrayVec<(usize, usize), BURST>,
}

impl Tunnels {
    /// Opens the sockets of a device `vxlan:PORT`, `geneve:PORT`, `gre` or `ip6gre`.
    pub(super) fn open(wanted: &Wanted, driver: UplinkDriver) -> Result<Device, OpenError> {
        let (kind, port, family, other) = match driver {
            UplinkDriver::Gre | UplinkDriver::Ip6gre => (Kind::Gre, 0, Self::open_gre(wanted, driver)?, None),
            UplinkDriver::Vxlan => Self::open_udp(wanted, driver, Kind::Vxlan)?,
            _ => Self::open_udp(wanted, driver, Kind::Geneve)?,
        };
        let mode = match (kind, &other) {
            (Kind::Gre, _) => "raw",
            (_, Some(_)) => "udp",
            (_, None) => "udp, without IPv6",
        };
        let about = UplinkDevice {
            driver,
            mode: mode.into(),
            mac: MacAddr([2, 0, 0, 0, 0, 2]),
            mtu: 65_000,
            queues: 1,
            created: false,
            made_now: false,
        };
        let queue = Self {
            kind,
            port,
            family,
            other,
            meanings: HashMap::new(),
            numbers: Numbers::new(Instant::now()),
            merger: Merger::default(),
            room: vec![0; ROOM],
            frame: Vec::with_capacity(LONGEST),
            segments: Vec::with_capacity(2 * LONGEST),
            rest: None,
        };
        let (queues, memory) = (vec![super::Queue::Tunnel(Box::new(queue))], MemoryConfig::whole_packets(1));
        Ok(Device { queues, about, features: whole_packets(true), memory, kept: None, steering: None })
    }

    fn open_gre(wanted: &Wanted, driver: UplinkDriver) -> Result<Family, OpenError> {
        let name = &wanted.device;
        if name != driver.name() {
            return Err(OpenError(format!("{name} is no {0} tunnel; say {0}", driver.name())));
        }
        let ipv6 = driver == UplinkDriver::Ip6gre;
        Family::open(ipv6, Over::Gre).map_err(|e| match e {
            Errno::AFNOSUPPORT => OpenError(format!("{name}: this host has no IPv6; use `type=gre`")),
            e => OpenError(denied(name, e)),
        })
    }

    fn open_udp(
        wanted: &Wanted,
        driver: UplinkDriver,
        kind: Kind,
    ) -> Result<(Kind, u16, Family, Option<Family>), OpenError> {
        let name = &wanted.device;
        let number =
            name.split_once(':').filter(|(kind, _)| *kind == driver.name()).and_then(|(_, port)| port.parse().ok());
        let Some(port) = number.filter(|port| *port != 0) else {
            return Err(OpenError(format!("{name} is no {0} tunnel; say {0}:PORT, a UDP port", driver.name())));
        };
        let failed = |e: Errno| match e {
            Errno::ADDRINUSE => OpenError(format!(
                "UDP port {port} is in use; by a tunnel of the kernel's (`ip -d link`, `ss -ulnp`)? Remove that, or choose another port"
            )),
            e => OpenError(format!("{name}: {e}")),
        };
        let ipv4 = Family::open(false, Over::Udp(port)).map_err(failed)?;
        let ipv6 = match Family::open(true, Over::Udp(port)) {
            Ok(family) => Some(family),
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => None,
            Err(e) => return Err(failed(e)),
        };
        Ok((kind, port, ipv4, ipv6))
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let mut done = 0;
        for packet in packets {
            pair.progress.sending(packet.buffers(), 0);
            // Who is blocked is asked to send the same packet again: it is here, and some of it may be on its way.
            let sent = match self.rest.take() {
                Some(rest) => self.transmit(rest),
                None => {
                    let vnet = self.take(pair, packet);
                    self.send_one(pair, &vnet)
                }
            };
            match sent {
                Ok(()) => counters.sent(1, self.frame.len() as u64),
                Err(Errno::AGAIN) => {
                    pair.progress.sent(0);
                    return Ok(Sent { done, blocked: true });
                }
                Err(Errno::MSGSIZE) => counters.dropped(Reason::TooLong),
                Err(Errno::NOBUFS | Errno::NOMEM) => counters.dropped(Reason::NoRoom),
                Err(Errno::NETDOWN) => counters.dropped(Reason::DeviceDown),
                // NETUNREACH is the kernel's word for an address of IPv4 that is not its own, too.
                Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL) => counters.dropped(Reason::NoRoute),
                // A filter of the host's, headers that do not fit: of this packet.
                Err(_) => counters.dropped(Reason::Refused),
            }
            pair.progress.sent(packet.buffers());
            done += 1;
        }
        pair.from_network.publish();
        Ok(Sent { done, blocked: false })
    }

    /// Copies a packet here, once. Its header.
    fn take(&mut self, pair: &Pair, packet: &Packet) -> VnetHdr {
        self.frame.clear();
        for run in &packet.runs {
            let at = self.frame.len();
            self.frame.resize(at + run.1, 0);
            pair.bytes(*run).read(0, self.frame.get_mut(at..).unwrap_or_default());
        }
        let vnet = self.frame.first_chunk().map(VnetHdr::parse).unwrap_or_default();
        self.frame.drain(..VNET.min(self.frame.len()));
        vnet
    }

    fn send_one(&mut self, pair: &mut Pair, vnet: &VnetHdr) -> Result<(), Errno> {
        match lasthop_tunnel::number(&self.frame).ok_or(Errno::INVAL)? {
            0 => self.hear(pair),
            number => {
                let Some(tunnel) = self.meanings.get(&number).copied() else {
                    hand_in(pair, &Message::Unknown(number).write());
                    return Err(Errno::INVAL);
                };
                self.frame.drain(TAG_AT..TAG_AT + TAG);
                let mut vnet = *vnet;
                vnet.csum_start = vnet.csum_start.saturating_sub(TAG as u16);
                self.send_frame(&tunnel, &vnet)
            }
        }
    }

    /// Something that `lasthop-ovs` says.
    fn hear(&mut self, pair: &mut Pair) -> Result<(), Errno> {
        match Message::read(&self.frame).ok_or(Errno::INVAL)? {
            Message::Known { number, tunnel } => self.numbers.known(number, &tunnel),
            Message::Unknown(number) => self.numbers.forget(number),
            Message::Packet { number, tunnel, frame } => {
                let frame = frame.to_vec();
                if number != 0 {
                    self.meanings.insert(number, tunnel);
                    hand_in(pair, &Message::Known { number, tunnel }.write());
                }
                if !frame.is_empty() {
                    self.frame = frame;
                    return self.send_frame(&tunnel, &VnetHdr::default());
                }
            }
        }
        Ok(())
    }

    /// Sends the frame here, or the segments that it is to be cut into.
    fn send_frame(&mut self, tunnel: &Tunnel, vnet: &VnetHdr) -> Result<(), Errno> {
        let snapshot_len = self.frame.len().min(SNAPSHOT_LEN);
        let refused = |_| Errno::INVAL;
        let snapshot = self.frame.get(..snapshot_len).unwrap_or_default();
        let offload = Offload::check(vnet, snapshot, self.frame.len()).map_err(refused)?;
        let delivery = offload.for_receiver(&Receiver::default(), snapshot, self.frame.len()).map_err(refused)?;
        self.segments.clear();
        headers::write(self.kind, tunnel, &mut self.segments);
        let header_len = self.segments.len();
        let mut segment_len = 0;
        match delivery {
            Delivery::AsIs { .. } => self.segments.extend(&self.frame),
            Delivery::CompleteChecksum(job) => {
                let (start, rest) = self.frame.split_at_mut(snapshot_len);
                job.finish(start, sum::sum(rest));
                self.segments.extend(&self.frame);
            }
            Delivery::Segment(segmenter) => {
                let mut header: HeaderBuf = [0; SEGMENT_HEADER_LEN];
                for i in 0..segmenter.count() {
                    let segment = segmenter.segment(i, snapshot, &mut header).ok_or(Errno::INVAL)?;
                    let payload = self.frame.get(segment.payload.clone()).ok_or(Errno::INVAL)?;
                    segment.finish(&mut header, sum::sum(payload));
                    if i > 0 {
                        self.segments.extend_from_within(..header_len);
                    }
                    self.segments.extend(header.get(..segment.header_len).unwrap_or_default());
                    self.segments.extend(payload);
                    if i == 0 {
                        segment_len = self.segments.len();
                    }
                }
            }
        }
        let len = if segment_len == 0 { self.segments.len() } else { segment_len };
        self.segments.chunks_mut(len.max(1)).for_each(|datagram| headers::finish(self.kind, datagram));
        self.transmit(Rest { tunnel: *tunnel, len: len.max(1), at: 0, summed: false })
    }

    /// Gives the kernel these datagrams; keeps those for which it has no room.
    fn transmit(&mut self, mut rest: Rest) -> Result<(), Errno> {
        let done = self.give(&mut rest);
        self.rest = (done == Err(Errno::AGAIN)).then_some(rest);
        done
    }

    fn senders(&self, tunnel: &Tunnel) -> Option<&Senders> {
        let ipv6 = !is_ipv4(&tunnel.remote);
        let family = std::iter::once(&self.family).chain(&self.other).find(|family| family.ipv6 == ipv6);
        family.map(|family| &family.senders)
    }

    fn give(&self, rest: &mut Rest) -> Result<(), Errno> {
        let Rest { tunnel, len, .. } = *rest;
        let senders = self.senders(&tunnel).ok_or(Errno::NETUNREACH)?;
        let has = |flag| tunnel.flags & flag != 0;
        let port = match u16::from_be_bytes(tunnel.port) {
            0 => self.port,
            port => port,
        };
        let outer = Outer { local: tunnel.local, remote: tunnel.remote, port, tos: tunnel.tos, ttl: tunnel.ttl };
        let in_one = (AT_ONCE / len).clamp(1, MOST_SEGMENTS);
        for datagrams in self.segments.get(rest.at..).unwrap_or_default().chunks(len.saturating_mul(in_one)) {
            if datagrams.len() > len && self.kind != Kind::Gre {
                // What the kernel cuts it also sums.
                rest.summed = true;
                let socket = senders.for_flags(has(Tunnel::DONT_FRAGMENT), rest.summed);
                match socket.send(datagrams, &outer, u16::try_from(len).ok()) {
                    // It does not cut what it would have to fragment then, nor for every way.
                    Err(Errno::INVAL | Errno::MSGSIZE | Errno::IO | Errno::OPNOTSUPP) => {}
                    done => {
                        done?;
                        rest.at += datagrams.len();
                        continue;
                    }
                }
            }
            rest.summed = has(Tunnel::CHECKSUM);
            let socket = senders.for_flags(has(Tunnel::DONT_FRAGMENT), rest.summed);
            for datagram in datagrams.chunks(len) {
                socket.send(datagram, &outer, None)?;
                rest.at += datagram.len();
            }
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        pair.from_network.reclaim()?;
        match take_slot(&mut pair.from_network)? {
            Some(slot) => pair.from_network.put_back(slot),
            None => return Ok(Got::Stalled),
        }
        let (mut end, mut got, mut burst) = (0, Got::More, Burst::default());
        'families: for is_other in [false, true] {
            loop {
                let family = if is_other { self.other.as_ref() } else { Some(&self.family) };
                let Some(family) = family else { break };
                let Some(room) = self.room.get_mut(end..end + LONGEST) else { break 'families };
                match family.receiver.receive(room) {
                    Ok(datagram) => {
                        self.open_up(end, &datagram, &mut burst, pair, counters)?;
                        end += datagram.len;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => break 'families,
                    Err(e) => return Err(DeviceError::Io(e)),
                }
            }
            if is_other {
                got = Got::All;
            }
        }
        self.deliver(&mut burst, pair, counters)?;
        pair.from_network.publish();
        Ok(got)
    }

    /// Adds the inner frames of what came to the burst; a burst that is over is delivered.
    fn open_up(
        &mut self,
        at: usize,
        datagram: &Datagram,
        burst: &mut Burst,
        pair: &mut Pair,
        counters: &Counters,
    ) -> Result<(), DeviceError> {
        if datagram.truncated {
            counters.dropped(Reason::TooLong);
            return Ok(());
        }
        let step = datagram.segment.max(1);
        for start in (at + datagram.header_len..at + datagram.len).step_by(step) {
            let end = (start + step).min(at + datagram.len);
            let Datagram { local, remote, tos, ttl, .. } = *datagram;
            let mut tunnel = Tunnel { local, remote, tos, ttl, ..Tunnel::default() };
            let bytes = self.room.get(start..end).unwrap_or_default();
            let inner = headers::read(self.kind, bytes, &mut tunnel);
            // What the kernel has merged has the outer checksum of one of its packets; it has looked at them all.
            let is_sound = |at: &usize| {
                headers::is_sound(self.kind, bytes)
                    || bytes.get(*at..).and_then(|frame| open_of(self.kind, frame)).is_some()
            };
            let Some(inner) = inner.filter(is_sound) else {
                counters.dropped(Reason::Refused);
                continue;
            };
            if burst.frames.is_full() || burst.tunnel != tunnel {
                self.deliver(burst, pair, counters)?;
                burst.tunnel = tunnel;
            }
            // It has just been made empty if it was full.
            let _ = burst.frames.try_push((start + inner, end - start - inner));
        }
        Ok(())
    }

    fn deliver(&mut self, burst: &mut Burst, pair: &mut Pair, counters: &Counters) -> Result<(), DeviceError> {
        let frames = std::mem::take(&mut burst.frames);
        let bytes_of = |room: &[u8], (at, len): (usize, usize)| room.get(at..at + len).unwrap_or_default().to_vec();
        for (n, frame) in frames.iter().enumerate() {
            match self.numbers.of(&burst.tunnel, Instant::now()) {
                Number::Known(number) => {
                    return self.merge(number, frames.get(n..).unwrap_or_default(), pair, counters);
                }
                Number::New(number) => {
                    let mut frame = bytes_of(&self.room, *frame);
                    close(self.kind, &mut frame);
                    let message = Message::Packet { number, tunnel: burst.tunnel, frame: &frame };
                    match hand_in(pair, &message.write()) {
                        true => counters.received(1, frame.len() as u64),
                        false => counters.dropped(Reason::NoRoom),
                    }
                }
                Number::TooMany => counters.dropped(Reason::Overrun),
            }
        }
        Ok(())
    }

    /// Frames of one flow become one packet; each packet gets the number in front.
    fn merge(
        &mut self,
        number: u16,
        frames: &[(usize, usize)],
        pair: &mut Pair,
        counters: &Counters,
    ) -> Result<(), DeviceError> {
        let Self { kind, merger, room, .. } = self;
        let bytes = |frame: usize| frames.get(frame).and_then(|(at, len)| room.get(*at..at + len)).unwrap_or_default();
        let mut read = |frame: usize, to: &mut [u8]| {
            let from = bytes(frame);
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
            len
        };
        merger.clear();
        for (_, len) in frames {
            merger.add(*len, &mut read);
        }
        for packet in 0..merger.packets() {
            let Some((first, more)) = merger.first(packet) else { continue };
            let Some(slot) = take_slot(&mut pair.from_network)? else {
                counters.dropped_several(Reason::NoRoom, 1 + more as u64);
                continue;
            };
            let mut headers = [0; SNAPSHOT];
            let headers_len = read(first, &mut headers);
            let merged = merger.finish(packet, headers.get_mut(..headers_len).unwrap_or_default());
            let alone = || (open_of(*kind, bytes(first)).unwrap_or_default(), bytes(first).len());
            let (mut vnet, first_len) = merged.unwrap_or_else(alone);
            if vnet.flags & VnetHdr::F_NEEDS_CSUM != 0 {
                (vnet.csum_start, vnet.hdr_len) = (vnet.csum_start + TAG as u16, vnet.hdr_len + TAG as u16);
            }
            let to = pair.bytes(pair.from_network.slot(slot));
            let ([t0, t1], [c0, c1]) = (lasthop_tunnel::TPID.to_be_bytes(), tci_of(number).to_be_bytes());
            to.write_array(0, &vnet.to_bytes());
            to.write_array(VNET + TAG_AT, &[t0, t1, c0, c1]);
            let (start, changed) = (bytes(first), headers_len.min(first_len));
            to.write(VNET, start.get(..TAG_AT).unwrap_or_default());
            to.write(VNET + TAG_AT + TAG, headers.get(TAG_AT..changed).unwrap_or_default());
            to.write(VNET + TAG + changed, start.get(changed..first_len).unwrap_or_default());
            let mut len = VNET + TAG + first_len;
            for (frame, from, count) in merger.rest(packet) {
                to.write(len, bytes(frame).get(from..from + count).unwrap_or_default());
                len += count;
            }
            pair.from_network.add(slot, 0, len);
            counters.received(1, (len - VNET - TAG) as u64);
            counters.merged(more as u64);
        }
        Ok(())
    }
}

/// Over GRE, unlike over UDP, packets come as the kernel has merged them (GRO), or as its own tunnel has sent them within this host: with a
/// checksum that is open. What is to be said of such a frame.
fn open_of(kind: Kind, frame: &[u8]) -> Option<VnetHdr> {
    let snapshot = frame.get(..SNAPSHOT.min(frame.len())).unwrap_or_default();
    if kind == Kind::Gre { opened(snapshot, frame.len(), PAYLOAD) } else { None }
}

/// Completes the checksum of such a frame.
fn close(kind: Kind, frame: &mut [u8]) {
    let Some(vnet) = open_of(kind, frame) else { return };
    let (start, at) = (usize::from(vnet.csum_start), usize::from(vnet.csum_start + vnet.csum_offset));
    // What may be behind the IP packet is zero, or else not ours to mend.
    let checksum = sum::finish(sum::sum(frame.get(start..).unwrap_or_default()));
    if let Some(to) = frame.get_mut(at..at + 2) {
        to.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Gives the switch a frame of ours. False if there is no room.
fn hand_in(pair: &mut Pair, frame: &[u8]) -> bool {
    let Ok(Some(slot)) = take_slot(&mut pair.from_network) else { return false };
    let to = pair.bytes(pair.from_network.slot(slot));
    to.write_array(0, &[0; VNET]);
    to.write(VNET, frame);
    pair.from_network.add(slot, 0, VNET + frame.len());
    true
}

impl AsFd for Tunnels {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.family.receiver.as_fd()
    }
}

impl Tunnels {
    /// The other family's socket.
    pub(super) fn others(&self) -> Option<BorrowedFd<'_>> {
        self.other.as_ref().map(|family| family.receiver.as_fd())
    }

    /// Writable when the kernel has room for what it had none for.
    pub(super) fn writable(&self) -> BorrowedFd<'_> {
        let socket = self.rest.as_ref().and_then(|rest| {
            let dont_fragment = rest.tunnel.flags & Tunnel::DONT_FRAGMENT != 0;
            self.senders(&rest.tunnel).map(|senders| senders.for_flags(dont_fragment, rest.summed))
        });
        socket.unwrap_or(&self.family.receiver).as_fd()
    }
}
