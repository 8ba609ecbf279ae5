//! A guest: a network driver and its vhost-user connection.

use crate::{PATIENCE, number_of};
use lasthop_frame::VnetHdr;
use lasthop_sys::EventFd;
use lasthop_text::MacAddr;
use lasthop_vhostuser::message::{HEADER_LEN, Header, IotlbMessage, flag, iotlb};
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures};
use lasthop_virtqueue::driver::{NetConfig, NetDriver, NetQueue, RingLayout};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How a guest is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rings and buffers.
    pub net: NetConfig,
    /// Features beside those that follow from `net`: offloads.
    pub features: Features,
    /// Protocol features it accepts if they are offered.
    pub protocol: ProtocolFeatures,
    /// MTU it announces.
    pub mtu: Option<u16>,
    /// It is behind an IOMMU of its own, whose I/O addresses are its physical ones: see [`Guest::grant`].
    pub iommu: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            net: NetConfig::default(),
            features: Features::empty(),
            protocol: ProtocolFeatures::MQ
                .union(ProtocolFeatures::REPLY_ACK)
                .union(ProtocolFeatures::NET_MTU)
                .union(ProtocolFeatures::RARP)
                .union(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
                .union(ProtocolFeatures::INFLIGHT_SHMFD)
                .union(ProtocolFeatures::RESET_DEVICE)
                .union(ProtocolFeatures::STATUS),
            mtu: None,
            iommu: false,
        }
    }
}

impl Options {
    /// With rings and buffers like this.
    pub fn net(change: impl FnOnce(&mut NetConfig)) -> Self {
        let mut options = Self::default();
        change(&mut options.net);
        options
    }

    /// A guest that sends and takes 64 KiB packets: all offloads that are offered, large buffers to send from.
    pub fn offloading() -> Self {
        let mut options = Self::net(|n| (n.tx_buffer, n.size) = (70_000, 256));
        options.features = Features::CSUM
            .union(Features::GUEST_CSUM)
            .union(Features::HOST_TSO4)
            .union(Features::HOST_TSO6)
            .union(Features::HOST_USO)
            .union(Features::GUEST_TSO4)
            .union(Features::GUEST_TSO6)
            .union(Features::GUEST_USO4)
            .union(Features::GUEST_USO6);
        options
    }
}

/// Connects to a listening port, waiting for it if need be. No call on the connection blocks for ever.
pub fn connect(path: &Path) -> Frontend {
    let end = Instant::now() + PATIENCE;
    loop {
        match Frontend::connect(path) {
            Ok(front) => {
                set_socket_timeout(&front, Timeout::Recv, Some(PATIENCE)).expect("a socket has a timeout");
                return front;
            }
            Err(e) => assert!(Instant::now() < end, "{}: {e}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A guest that is plugged in.
#[derive(Debug)]
pub struct Guest {
    /// Its address.
    pub mac: MacAddr,
    /// Its rings and memory.
    pub net: NetDriver,
    /// Its connection.
    pub front: Frontend,
    /// Signalled when a ring breaks, by ring.
    pub errors: Vec<EventFd>,
    options: Options,
    /// Where it is asked for translations.
    requests: Option<OwnedFd>,
    /// Frames taken from the rings and not yet asked for.
    received: VecDeque<(VnetHdr, Vec<u8>)>,
}

impl Guest {
    /// Connects to a listening port and brings the device up.
    pub fn connect(path: &Path, mac: MacAddr, options: Options) -> Self {
        Self::attach(connect(path), NetDriver::new(options.net).expect("guest memory"), mac, options)
    }

    /// Waits for lasthop to connect to us and brings the device up.
    pub fn accept(listener: &UnixListener, mac: MacAddr, options: Options) -> Self {
        let front = accept(listener);
        Self::attach(front, NetDriver::new(options.net).expect("guest memory"), mac, options)
    }

    /// Brings the device up over a connection.
    pub fn attach(front: Frontend, net: NetDriver, mac: MacAddr, options: Options) -> Self {
        let errors = net.queues().iter().map(|_| EventFd::new().expect("an eventfd")).collect();
        let mut guest = Self { mac, net, front, errors, options, requests: None, received: VecDeque::new() };
        guest.bring_up(None).unwrap_or_else(|e| panic!("guest {mac}: {e}"));
        guest
    }

    /// Everything a front-end says from SET_OWNER to the last SET_VRING_ENABLE. The rings go on where they stand, or
    /// where `bases` says.
    fn bring_up(&mut self, bases: Option<&[u32]>) -> Result<(), FrontendError> {
        let Self { net, front, errors, options, requests, .. } = self;
        front.set_owner()?;
        let wanted = Features::from_bits_retain(options.net.features())
            | options.features
            | Features::PROTOCOL_FEATURES
            | if options.mtu.is_some() { Features::MTU } else { Features::empty() }
            | if options.iommu { Features::ACCESS_PLATFORM } else { Features::empty() };
        let offered = front.features()?;
        assert!(offered.contains(wanted), "not offered: {:?}", wanted - offered);
        let asks = if options.iommu { ProtocolFeatures::BACKEND_REQ } else { ProtocolFeatures::empty() };
        let protocol = front.protocol_features()? & (options.protocol | asks);
        front.set_protocol_features(protocol)?;
        if protocol.contains(ProtocolFeatures::MQ) {
            assert!(front.queue_pairs()? >= options.net.pairs.into());
        }
        if options.iommu {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            front.set_backend_requests(theirs.as_fd())?;
            *requests = Some(ours);
        }
        front.set_features(wanted)?;
        if let Some(mtu) = options.mtu {
            front.set_u64(lasthop_vhostuser::Request::NetSetMtu, mtu.into())?;
        }
        let (region, fd) = net.region();
        front.set_mem_table(&[(region, fd)])?;
        for (i, queue) in net.queues().iter().enumerate() {
            let ring = i as u32;
            let layout = &queue.layout;
            front.set_size(ring, layout.size.into())?;
            front.set_base(ring, bases.map_or(queue.ring.base(), |b| b[i]))?;
            let [desc, driver, device] =
                [layout.desc, layout.driver, layout.device].map(|a| if options.iommu { a } else { net.user_addr(a) });
            front.set_addr(ring, desc, driver, device)?;
            front.set_err(ring, Some(errors[i].as_fd()))?;
            front.set_call(ring, Some(queue.call.as_fd()))?;
            front.set_kick(ring, Some(queue.kick.as_fd()))?;
        }
        for ring in 0..net.queues().len() as u32 {
            front.enable(ring, true)?;
        }
        Ok(())
    }

    /// After its connection broke: goes on over another with the rings as they are. `bases`: where it says that they
    /// stand, if not what they really do.
    pub fn reattach(&mut self, front: Frontend, bases: Option<&[u32]>) -> Result<(), FrontendError> {
        self.front = front;
        // Where a packed ring stands is known when all that was used has been taken from it.
        for pair in 0..self.options.net.pairs {
            self.net.unsent(pair).expect("the switch keeps to the rules");
        }
        while let Some(received) = self.take() {
            self.received.push_back(received);
        }
        self.bring_up(bases)?;
        // What was added meanwhile the new switch has not been told of.
        self.net.queues().iter().for_each(|q| q.kick.signal());
        Ok(())
    }

    /// A guest resets its device: all rings stop and start anew, in fresh memory.
    pub fn reset(&mut self) {
        for ring in 0..self.net.queues().len() as u32 {
            self.front.stop(ring).unwrap_or_else(|e| panic!("guest {}: ring {ring}: {e}", self.mac));
        }
        self.net = NetDriver::new(self.options.net).expect("guest memory");
        self.received.clear();
        self.errors.iter().for_each(|e| {
            e.drain();
        });
        self.bring_up(None).unwrap_or_else(|e| panic!("guest {}: {e}", self.mac));
    }

    /// Pages that are asked for, by I/O address, since this was asked before. Each question is answered; the pages are not granted.
    pub fn asked(&self) -> Vec<u64> {
        let Some(requests) = &self.requests else { return Vec::new() };
        let (mut asked, mut bytes) = (Vec::new(), [0; HEADER_LEN + size_of::<IotlbMessage>()]);
        while let Ok((len, _)) = recv(requests, &mut bytes, RecvFlags::DONTWAIT)
            && len == bytes.len()
        {
            let (header, body) = bytes.split_at(HEADER_LEN);
            let message = IotlbMessage::read_from_bytes(body).expect("a whole message");
            asked.push(message.iova);
            let header = Header::read_from_bytes(header).expect("a whole header");
            if header.flags & flag::NEED_REPLY != 0 {
                let header = Header { flags: flag::VERSION | flag::REPLY, size: 8, ..header };
                let answer = [header.as_bytes(), 0u64.as_bytes()].concat();
                send(requests, &answer, SendFlags::empty()).expect("somebody hears the answer");
            }
        }
        asked
    }

    /// Grants these pages, each for reading and writing, as far as they are in its memory.
    pub fn grant(&self, pages: &[u64]) {
        let (region, _) = self.net.region();
        for page in pages.iter().filter(|page| page.wrapping_sub(region.guest_addr) < region.size) {
            self.grant_as(*page, *page);
        }
    }

    /// Grants a page of its memory under this I/O address.
    pub fn grant_as(&self, iova: u64, guest_addr: u64) {
        let (size, user_addr, permissions, kind) = (4096, self.net.user_addr(guest_addr), 3, iotlb::UPDATE);
        let update = IotlbMessage { iova, size, user_addr, permissions, kind, ..Default::default() };
        self.front.iotlb(update).unwrap_or_else(|e| panic!("guest {}: {e}", self.mac));
    }

    /// Takes back what was granted of these bytes.
    pub fn revoke(&self, iova: u64, size: u64) {
        let invalidate = IotlbMessage { iova, size, kind: iotlb::INVALIDATE, ..Default::default() };
        self.front.iotlb(invalidate).unwrap_or_else(|e| panic!("guest {}: {e}", self.mac));
    }

    /// Grants what is asked for until this comes true.
    pub fn grant_until(&mut self, what: &str, mut come: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !come(self) {
            assert!(Instant::now() < end, "guest {}: waited in vain for {what}", self.mac);
            self.grant(&self.asked());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a frame, waiting for room; flushes.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_as(VnetHdr::default(), frame);
    }

    /// Sends a frame with offload requests.
    pub fn send_as(&mut self, header: VnetHdr, frame: &[u8]) {
        assert!(frame.len() + VnetHdr::LEN <= self.options.net.tx_buffer as usize, "longer than a buffer");
        let end = Instant::now() + PATIENCE;
        while !self.try_send(header, frame) {
            assert!(Instant::now() < end, "guest {}: the switch does not give buffers back", self.mac);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends a frame if there is room for it; flushes.
    pub fn try_send(&mut self, header: VnetHdr, frame: &[u8]) -> bool {
        let sent = self.net.send(0, &header.to_bytes(), frame).expect("the switch keeps to the rules").is_ok();
        self.net.flush(0);
        sent
    }

    /// Sends this frame until its ring is full, and not more often than the ring has places: a switch that drops frames as quickly as they are sent
    /// is not to keep its sender from what else there is to do.
    pub fn fill(&mut self, frame: &[u8]) {
        for _ in 0..self.options.net.size {
            if !self.try_send(VnetHdr::default(), frame) {
                return;
            }
        }
    }

    /// What its rings say, a line for each: how far either side has come, and what they ask of each other. For who looks for why nothing moves.
    pub fn rings(&self) -> String {
        let say = |(ring, queue): (usize, &NetQueue)| {
            let RingLayout { size, driver, device, .. } = queue.layout;
            let word = |addr: u64| self.net.memory().slice(addr, 2).map_or(0, |word| word.load_u16(0));
            let name = format!("{} {} {}", self.mac, ["to_guest", "from_guest"][ring % 2], ring / 2);
            if queue.layout.packed {
                let [ours, theirs] = [driver, device].map(|part| [word(part), word(part + 2)]);
                return format!(
                    "{name}: the guest's wish for interrupts {ours:x?}, the switch's for kicks {theirs:x?}\n"
                );
            }
            let flags = [word(driver), word(device)];
            let events = [word(driver + 4 + 2 * u64::from(size)), word(device + 4 + 8 * u64::from(size))];
            let [available, used] = [word(driver + 2), word(device + 2)];
            format!("{name}: available {available}, used {used}, flags {flags:?}, events {events:?}\n")
        };
        self.net.queues().iter().enumerate().map(say).collect()
    }

    /// How many frames the switch has not taken.
    pub fn unsent(&mut self) -> usize {
        self.net.unsent(0).expect("the switch keeps to the rules")
    }

    /// Waits until the switch has taken all that was sent.
    pub fn all_taken(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.unsent() > 0 {
            assert!(Instant::now() < end, "guest {}: frames are not taken", self.mac);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Takes a frame that is there.
    pub fn try_recv(&mut self) -> Option<(VnetHdr, Vec<u8>)> {
        self.received.pop_front().or_else(|| self.take())
    }

    fn take(&mut self) -> Option<(VnetHdr, Vec<u8>)> {
        for pair in 0..self.options.net.pairs {
            let mut frame = Vec::new();
            if let Some(header) = self.net.recv(pair, &mut frame).expect("the switch keeps to the rules") {
                return Some((VnetHdr::parse(&header), frame));
            }
        }
        None
    }

    /// Waits for a frame.
    pub fn recv_within(&mut self, limit: Duration) -> Option<(VnetHdr, Vec<u8>)> {
        let end = Instant::now() + limit;
        loop {
            self.net.queues_mut().iter_mut().step_by(2).for_each(|q| q.ring.disable_calls());
            if let Some(received) = self.try_recv() {
                return Some(received);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let more = self.net.queues_mut().iter_mut().step_by(2).fold(false, |m, q| q.ring.enable_calls() | m);
            if !more {
                self.wait_for_call(left);
            }
        }
    }

    /// Sleeps until a receive queue's call comes.
    fn wait_for_call(&self, limit: Duration) {
        let calls: Vec<_> = self.net.queues().iter().step_by(2).map(|q| &q.call).collect();
        let mut fds: Vec<_> = calls.iter().map(|c| PollFd::new(*c, PollFlags::IN)).collect();
        let timeout = rustix::time::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&timeout));
        calls.iter().for_each(|c| {
            c.drain();
        });
    }

    /// The next frame that `wanted` likes; others are passed over (floods, announcements).
    pub fn recv(&mut self, what: &str, mut wanted: impl FnMut(&VnetHdr, &[u8]) -> bool) -> (VnetHdr, Vec<u8>) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some((header, frame)) = self.recv_within(left) else {
                panic!("guest {}: {what} did not arrive", self.mac)
            };
            if wanted(&header, &frame) {
                return (header, frame);
            }
        }
    }

    /// Waits for exactly this frame.
    pub fn expect(&mut self, frame: &[u8]) {
        self.recv("the frame", |_, f| f == frame);
    }

    /// Waits for numbered frame `number`.
    pub fn expect_number(&mut self, number: u32) {
        self.recv(&format!("frame {number}"), |_, f| number_of(f) == Some(number));
    }

    /// Frames that are there and those that come in the next moment.
    pub fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some((_, frame)) = self.recv_within(Duration::from_millis(100)) {
            all.push(frame);
        }
        all
    }

    /// Sends and receives one numbered frame each way: both ports and both directions work, and the switch knows where
    /// both live.
    pub fn greet(&mut self, other: &mut Guest, number: u32) {
        self.send(&crate::numbered(self.mac, other.mac, number, 60));
        other.expect_number(number);
        other.send(&crate::numbered(other.mac, self.mac, number, 200));
        self.expect_number(number);
    }

    /// As [`Guest::greet`] where the way between both has just been interrupted. What was put into the rings of a process that
    /// is gone is lost, and a port may be said to be up still when it is not: each frame is sent until one arrives.
    pub fn greet_when_back(&mut self, other: &mut Guest, number: u32) {
        self.send_until_received(other, number);
        other.send_until_received(self, number);
    }

    fn send_until_received(&mut self, other: &mut Guest, number: u32) {
        let frame = crate::numbered(self.mac, other.mac, number, 60);
        crate::wait_for(&format!("frame {number} of {} to arrive", self.mac), PATIENCE, || {
            self.send(&frame);
            let end = Instant::now() + Duration::from_millis(20);
            let mut more = || other.recv_within(end.saturating_duration_since(Instant::now()));
            std::iter::from_fn(&mut more).any(|(_, f)| f == frame)
        });
    }

    /// Whether the switch has closed the connection.
    pub fn is_disconnected(&self) -> bool {
        let mut fds = [PollFd::new(&self.front, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
        fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// Waits for lasthop to connect to us.
pub fn accept(listener: &UnixListener) -> Frontend {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let _ = poll(&mut fds, Some(&timeout));
    assert!(!fds[0].revents().is_empty(), "lasthop does not connect");
    let (socket, _) = listener.accept().expect("a connection");
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).expect("a socket has a timeout");
    Frontend::over(socket.into())
}
