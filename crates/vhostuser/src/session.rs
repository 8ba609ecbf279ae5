//! The back-end side of one connection.

use crate::command::Command;
use crate::features::{Features, ProtocolFeatures};
use crate::inflight::{self, Inflight};
use crate::message::{InflightDesc, Request, VRING_LOG, VringState};
use crate::outcome::{Offer, Refusal, RingView, SessionError, SessionEvent};
use crate::ring::{Ring, RingError, RingState, packed_base};
use crate::transport::{Envelope, Transport};
use lasthop_guestmem::{AccessError, GuestMemory, MAX_REGIONS, RegionSpec};
use lasthop_sys::EventFd;
use lasthop_virtqueue::{Queue, QueueError, QueueSetup};
use rustix::fs::{FileType, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Most messages handled in one call of [`Session::ready`], so that one front-end cannot hold up the others'.
const MESSAGES_PER_CALL: usize = 32;
/// Most refused messages in one connection: front-ends give up at the first, so this is somebody filling our log.
const MAX_REFUSED: u32 = 32;
/// The smallest MTU of IPv4 (RFC 791).
const MIN_MTU: u64 = 68;

/// What a request is answered with.
enum Answer {
    /// Nothing, or success if the front-end asked.
    Done,
    U64(u64),
    State(VringState),
    Inflight(InflightDesc, usize, OwnedFd),
}

/// One connection of a front-end to a port. Owned by one thread; the queues are shared with the workers, and it is the
/// queues' own locks that make starting, stopping and remapping safe under traffic. Dropping it stops all queues and lets
/// go of the guest's memory and descriptors.
#[derive(Debug)]
pub struct Session {
    transport: Transport,
    queues: Arc<[Arc<Queue>]>,
    rings: Vec<Ring>,
    offer: Offer,
    features: Features,
    protocol_features: ProtocolFeatures,
    memory: Arc<GuestMemory>,
    /// Regions that ADD_MEM_REG named again, and how often.
    repeated: Vec<(RegionSpec, u32)>,
    inflight: Option<Inflight>,
    backend_channel: Option<OwnedFd>,
    status: u8,
    mtu: u16,
    refused: u32,
    changed: bool,
}

impl Session {
    /// Takes a connected socket. `queues` are the port's, two per pair, all stopped: even ones carry packets to the
    /// guest, odd ones from it; their number says how many pairs the front-end may use.
    pub fn new(socket: OwnedFd, queues: Arc<[Arc<Queue>]>, offer: Offer, now: Instant) -> Self {
        Self {
            transport: Transport::new(socket, now),
            rings: queues.iter().map(|_| Ring::default()).collect(),
            queues,
            offer,
            features: Features::empty(),
            protocol_features: ProtocolFeatures::empty(),
            memory: Arc::new(GuestMemory::empty()),
            repeated: Vec::new(),
            inflight: None,
            backend_channel: None,
            status: 0,
            mtu: 0,
            refused: 0,
            changed: false,
        }
    }

    /// Handles what the front-end sent, at most 32 messages; call it as long as the socket is readable (watch it
    /// level-triggered). After an error the connection is over: drop the session; what `events` holds is still valid.
    pub fn ready(&mut self, now: Instant, events: &mut Vec<SessionEvent>) -> Result<(), SessionError> {
        let result = self.messages(now, events);
        if std::mem::take(&mut self.changed) {
            events.push(SessionEvent::Changed);
        }
        result
    }

    fn messages(&mut self, now: Instant, events: &mut Vec<SessionEvent>) -> Result<(), SessionError> {
        for _ in 0..MESSAGES_PER_CALL {
            let Some(envelope) = self.transport.receive(now)? else { break };
            self.message(envelope, events)?;
        }
        Ok(())
    }

    /// When [`Session::expire`] is due, unless the front-end says something before.
    pub fn deadline(&self) -> Option<Instant> {
        self.transport.deadline()
    }

    /// An error if the front-end has kept us waiting too long: drop the session then.
    pub fn expire(&self, now: Instant) -> Result<(), SessionError> {
        self.transport.expire(now)
    }

    /// Stops all queues and lets go of memory and descriptors, as dropping does.
    pub fn close(&mut self) {
        for i in 0..self.rings.len() {
            self.halt(i);
            self.rings[i] = Ring::default();
            let queue = &self.queues[i];
            queue.set_enabled(false);
            queue.set_call(None);
            queue.set_err(None);
        }
        self.memory = Arc::new(GuestMemory::empty());
        self.inflight = None;
        self.backend_channel = None;
    }

    /// Virtio features the front-end accepted for its guest; empty before SET_FEATURES.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Protocol features the front-end accepted.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    /// Guest memory as it is now.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// MTU given by NET_SET_MTU, in bytes; 0 if none was.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Device status given by SET_STATUS; 0 from front-ends that do not tell.
    pub fn device_status(&self) -> u8 {
        self.status
    }

    /// The rings, by index.
    pub fn rings(&self) -> impl Iterator<Item = RingView> + '_ {
        self.rings.iter().zip(self.queues.iter()).map(|(ring, queue)| {
            let broken = queue.status().error.map(RingError::Queue);
            let running = ring.state == RingState::Running;
            RingView {
                size: ring.size,
                enabled: ring.enabled,
                state: if running && broken.is_some() { RingState::Failed } else { ring.state },
                error: ring.error.or(broken),
            }
        })
    }

    fn message(&mut self, envelope: Envelope, events: &mut Vec<SessionEvent>) -> Result<(), SessionError> {
        let code = envelope.code;
        let request = envelope.command.as_ref().map(|(request, _)| *request);
        let result = match envelope.command {
            Some((_, command)) => self.command(command, events),
            None => Err(Refusal::Unknown),
        };
        // Judged after the command, so that the message that negotiates REPLY_ACK can itself ask for an answer.
        let wants_ack = envelope.need_reply && self.protocol_features.contains(ProtocolFeatures::REPLY_ACK);
        match result {
            Ok(Answer::Done) if wants_ack => self.transport.reply(code, &0u64.to_le_bytes(), None),
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::U64(value)) => self.transport.reply(code, &value.to_le_bytes(), None),
            Ok(Answer::State(state)) => self.transport.reply(code, state.as_bytes(), None),
            Ok(Answer::Inflight(desc, len, fd)) => {
                let mut body = [0; 24];
                body[..size_of::<InflightDesc>()].copy_from_slice(desc.as_bytes());
                self.transport.reply(code, body.get(..len).unwrap_or(&body), Some(fd.as_fd()))
            }
            Err(why) => {
                let error = SessionError::Refused {
                    request: request.map_or(format!("request {code}"), |r| r.to_string()),
                    why,
                };
                self.refused += 1;
                if !wants_ack || request.is_some_and(has_own_reply) || self.refused > MAX_REFUSED {
                    return Err(error);
                }
                events.push(SessionEvent::Refused(error));
                self.transport.reply(code, &1u64.to_le_bytes(), None)
            }
        }
    }

    fn command(&mut self, command: Command, events: &mut Vec<SessionEvent>) -> Result<Answer, Refusal> {
        match command {
            Command::GetFeatures => return Ok(Answer::U64(self.offer.features.bits())),
            Command::SetFeatures(bits) => self.set_features(bits)?,
            // It marks the start of a session; QEMU and virtio-user send it more than once.
            Command::SetOwner => {}
            Command::ResetOwner => self.reset(events),
            Command::SetMemTable(table) => self.set_mem_table(table, events)?,
            Command::SetVringNum(index, size) => self.set_size(index, size, events)?,
            Command::SetVringAddr(addr) => {
                if addr.flags.get() & VRING_LOG != 0 && !self.features.contains(Features::LOG_ALL) {
                    return Err(Refusal::NotOffered);
                }
                let i = self.index(addr.index.get())?;
                self.configure(i, self.rings[i].addr != Some(addr), |ring| ring.addr = Some(addr), events)?;
            }
            Command::SetVringBase(index, base) => {
                let i = self.index(index)?;
                self.configure(i, self.rings[i].base != base, |ring| ring.base = base, events)?;
            }
            Command::GetVringBase(index) => {
                let i = self.index(index)?;
                self.stop(i, events);
                let base = self.rings[i].base;
                return Ok(Answer::State(VringState { index: index.into(), num: base.into() }));
            }
            Command::SetVringKick(index, fd) => {
                let i = self.index(index)?;
                let fd = event_fd(fd)?;
                if !self.is_running(i) {
                    self.rings[i].state = RingState::Waiting;
                }
                events.push(SessionEvent::Kick { queue: i, fd });
                self.try_start(i, events);
                self.changed = true;
            }
            Command::SetVringCall(index, fd) => {
                let i = self.index(index)?;
                let fd = event_fd(fd)?;
                // What was used while there was no call descriptor, or another, must not wait for the next packet.
                if let Some(fd) = fd.as_ref().filter(|_| self.is_running(i)) {
                    fd.signal();
                }
                self.queues[i].set_call(fd);
            }
            Command::SetVringErr(index, fd) => {
                let i = self.index(index)?;
                self.queues[i].set_err(event_fd(fd)?);
            }
            Command::GetProtocolFeatures => {
                self.needs_offered(Features::PROTOCOL_FEATURES)?;
                return Ok(Answer::U64(self.offer.protocol_features.bits()));
            }
            Command::SetProtocolFeatures(bits) => {
                self.needs_offered(Features::PROTOCOL_FEATURES)?;
                let unoffered = bits & !self.offer.protocol_features.bits();
                if unoffered != 0 {
                    return Err(Refusal::ProtocolFeatures(unoffered));
                }
                self.protocol_features = ProtocolFeatures::from_bits_truncate(bits);
                self.changed = true;
            }
            Command::GetQueueNum => {
                // Enough that it was offered: virtio-user asks before it accepts. Pairs, as network front-ends count.
                if !self.offer.protocol_features.contains(ProtocolFeatures::MQ) {
                    return Err(Refusal::NotOffered);
                }
                return Ok(Answer::U64((self.queues.len() / 2) as u64));
            }
            Command::SetVringEnable(index, enabled) => {
                // QEMU enables rings before SET_FEATURES when it reconnects.
                self.needs_offered(Features::PROTOCOL_FEATURES)?;
                let i = self.index(index)?;
                self.enable(i, enabled);
            }
            Command::SendRarp(mac) => {
                self.needs(ProtocolFeatures::RARP)?;
                if !mac.is_unicast_source() {
                    return Err(Refusal::Address(mac));
                }
                events.push(SessionEvent::Announce { mac });
            }
            Command::NetSetMtu(mtu) => {
                self.needs(ProtocolFeatures::NET_MTU)?;
                self.mtu = match u16::try_from(mtu) {
                    Ok(small) if mtu >= MIN_MTU => small,
                    _ => return Err(Refusal::Mtu(mtu)),
                };
                events.push(SessionEvent::Mtu(self.mtu));
            }
            Command::SetBackendReqFd(fd) => {
                self.needs(ProtocolFeatures::BACKEND_REQ)?;
                self.backend_channel = Some(fd);
            }
            Command::GetInflightFd(desc, len) => {
                self.needs(ProtocolFeatures::INFLIGHT_SHMFD)?;
                let (desc, fd) = inflight::create(&desc, self.rings.len(), self.packed())?;
                return Ok(Answer::Inflight(desc, len, fd));
            }
            Command::SetInflightFd(desc, fd) => {
                self.needs(ProtocolFeatures::INFLIGHT_SHMFD)?;
                self.inflight = Some(Inflight::adopt(&desc, fd, self.rings.len(), self.packed())?);
            }
            Command::ResetDevice => {
                self.needs(ProtocolFeatures::RESET_DEVICE)?;
                self.reset(events);
                self.features = Features::empty();
                self.status = 0;
                self.mtu = 0;
            }
            Command::GetMaxMemSlots => {
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                return Ok(Answer::U64(MAX_REGIONS as u64));
            }
            Command::AddMemReg(spec, fd) => {
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                if self.memory.regions().any(|r| r == spec) {
                    // QEMU up to 8.0 adds, and later removes, every region once per queue pair.
                    match self.repeated.iter_mut().find(|(s, _)| *s == spec) {
                        Some((_, times)) => *times = times.saturating_add(1),
                        None => self.repeated.push((spec, 1)),
                    }
                    return Ok(Answer::Done);
                }
                self.set_memory(self.memory.with_region(spec, fd)?, events);
            }
            Command::RemMemReg(spec) => {
                self.needs(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                let RegionSpec { guest_addr, user_addr, size, .. } = spec;
                let same = |s: &RegionSpec| (s.guest_addr, s.user_addr, s.size) == (guest_addr, user_addr, size);
                if let Some(at) = self.repeated.iter().position(|(s, _)| same(s)) {
                    self.repeated[at].1 -= 1;
                    if self.repeated[at].1 == 0 {
                        self.repeated.swap_remove(at);
                    }
                    return Ok(Answer::Done);
                }
                let memory = self.memory.without_region(guest_addr, user_addr, size);
                self.set_memory(memory.ok_or(Refusal::NoRegion { guest_addr, user_addr, size })?, events);
            }
            Command::SetStatus(value) => {
                self.needs(ProtocolFeatures::STATUS)?;
                self.status = u8::try_from(value).map_err(|_| Refusal::Status(value))?;
                if self.status == 0 {
                    // The guest has reset its device. Enabled or not is the front-end's to say again.
                    (0..self.rings.len()).for_each(|i| self.stop(i, events));
                }
                self.changed = true;
            }
            Command::GetStatus => {
                self.needs(ProtocolFeatures::STATUS)?;
                return Ok(Answer::U64(self.status.into()));
            }
            Command::Unsupported => return Err(Refusal::NotOffered),
        }
        Ok(Answer::Done)
    }

    fn needs(&self, feature: ProtocolFeatures) -> Result<(), Refusal> {
        if self.protocol_features.contains(feature) { Ok(()) } else { Err(Refusal::NotNegotiated(feature.bits())) }
    }

    fn needs_offered(&self, feature: Features) -> Result<(), Refusal> {
        if self.offer.features.contains(feature) { Ok(()) } else { Err(Refusal::NotOffered) }
    }

    /// The ring's place in `rings` and `queues`, which have the same length.
    fn index(&self, index: u32) -> Result<usize, Refusal> {
        let rings = self.rings.len();
        usize::try_from(index).ok().filter(|i| *i < rings).ok_or(Refusal::RingIndex { index, rings })
    }

    fn packed(&self) -> bool {
        self.features.contains(Features::RING_PACKED)
    }

    /// Started and not broken by its guest since.
    fn is_running(&self, i: usize) -> bool {
        self.rings[i].state == RingState::Running && self.queues[i].status().started
    }

    fn set_features(&mut self, bits: u64) -> Result<(), Refusal> {
        let unoffered = bits & !self.offer.features.bits();
        if unoffered != 0 {
            return Err(Refusal::Features(unoffered));
        }
        let changed = self.features.bits() ^ bits;
        // QEMU repeats the same features for every queue pair while those before already run.
        if changed != 0 && (0..self.rings.len()).any(|i| self.is_running(i)) {
            return Err(Refusal::FeaturesWhileRunning(changed));
        }
        self.features = Features::from_bits_truncate(bits);
        if !self.features.contains(Features::PROTOCOL_FEATURES) {
            (0..self.rings.len()).for_each(|i| self.enable(i, true));
        }
        self.changed = true;
        Ok(())
    }

    fn set_size(&mut self, index: u32, size: u32, events: &mut Vec<SessionEvent>) -> Result<(), Refusal> {
        let i = self.index(index)?;
        let size = match u16::try_from(size) {
            // Whether it must be a power of two is known when the ring starts.
            Ok(small @ 1..=32768) => small,
            _ => return Err(Refusal::RingSize(size)),
        };
        self.configure(i, self.rings[i].size != size, |ring| ring.size = size, events)
    }

    /// Changes what is known of a ring, unless it runs.
    fn configure(
        &mut self,
        i: usize,
        differs: bool,
        change: impl FnOnce(&mut Ring),
        events: &mut Vec<SessionEvent>,
    ) -> Result<(), Refusal> {
        if differs && self.is_running(i) {
            return Err(Refusal::RingRunning(i as u32));
        }
        if differs {
            change(&mut self.rings[i]);
            self.try_start(i, events);
        }
        Ok(())
    }

    fn enable(&mut self, i: usize, enabled: bool) {
        self.rings[i].enabled = enabled;
        self.queues[i].set_enabled(enabled);
        self.changed = true;
    }

    fn set_mem_table(
        &mut self,
        table: Vec<(RegionSpec, OwnedFd)>,
        events: &mut Vec<SessionEvent>,
    ) -> Result<(), Refusal> {
        let mut memory = GuestMemory::empty();
        for (spec, fd) in table {
            memory = memory.with_region(spec, fd)?;
        }
        self.repeated.clear();
        self.set_memory(memory, events);
        Ok(())
    }

    fn set_memory(&mut self, memory: GuestMemory, events: &mut Vec<SessionEvent>) {
        self.memory = Arc::new(memory);
        self.changed = true;
        for i in 0..self.rings.len() {
            if !self.is_running(i) {
                self.try_start(i, events);
                continue;
            }
            let moved = match self.setup(i) {
                Ok(Some(setup)) => {
                    let at = |s: &QueueSetup| (s.desc, s.driver, s.device);
                    self.rings[i].setup.is_none_or(|old| at(&old) != at(&setup))
                }
                Ok(None) | Err(_) => true,
            };
            if moved {
                // The front-end's addresses now mean other guest addresses, or none.
                self.halt(i);
                self.rings[i].state = RingState::Waiting;
                self.try_start(i, events);
            } else if let Err(e) = self.queues[i].set_memory(self.memory.clone()) {
                self.fail(i, e.into(), events);
            }
        }
    }

    /// How to start a ring; `None` while something is missing.
    fn setup(&self, i: usize) -> Result<Option<QueueSetup>, RingError> {
        let ring = &self.rings[i];
        let Some(addr) = ring.addr.filter(|_| ring.size != 0 && self.memory.regions().next().is_some()) else {
            return Ok(None);
        };
        let guest = |user: u64| self.memory.user_to_guest(user).ok_or(RingError::Unmapped(user));
        let packed = self.packed();
        Ok(Some(QueueSetup {
            size: ring.size,
            desc: guest(addr.descriptor.get())?,
            driver: guest(addr.available.get())?,
            device: guest(addr.used.get())?,
            base: if packed { packed_base(ring.base) } else { ring.base },
            packed,
            event_idx: self.features.contains(Features::RING_EVENT_IDX),
            in_order: self.features.contains(Features::IN_ORDER),
            indirect: self.features.contains(Features::RING_INDIRECT_DESC),
            features: self.features.bits(),
        }))
    }

    /// Starts a ring that waits (or failed) if now it can be.
    fn try_start(&mut self, i: usize, events: &mut Vec<SessionEvent>) {
        // A ring that its guest broke while it ran stays broken until it is kicked anew or reset.
        if !matches!(self.rings[i].state, RingState::Waiting | RingState::Failed) {
            return;
        }
        let setup = match self.setup(i) {
            Ok(Some(setup)) => setup,
            Ok(None) => {
                self.rings[i].state = RingState::Waiting;
                return;
            }
            Err(error) => return self.fail(i, error, events),
        };
        self.changed = true;
        let queue = &self.queues[i];
        if let Err(e) = queue.start(&setup, self.memory.clone()) {
            return self.fail(i, e.into(), events);
        }
        queue.set_enabled(self.rings[i].enabled);
        // The process before may have died between filling the ring and saying so.
        queue.lock().call();
        let ring = &mut self.rings[i];
        (ring.state, ring.setup, ring.error) = (RingState::Running, Some(setup), None);
        if let Some(inflight) = &self.inflight {
            inflight.note(i, setup.size, setup.packed, setup.base);
        }
    }

    /// Breaks a ring: its error descriptor is signalled, the front-end may describe it anew.
    fn fail(&mut self, i: usize, error: RingError, events: &mut Vec<SessionEvent>) {
        // The queue has signalled what it found itself.
        if let RingError::Unmapped(addr) = error {
            self.queues[i].lock().fail(QueueError::RingMemory(AccessError { addr, len: 1 }));
        }
        let ring = &mut self.rings[i];
        (ring.state, ring.setup, ring.error) = (RingState::Failed, None, Some(error));
        self.changed = true;
        events.push(SessionEvent::Failed { queue: i, error });
    }

    /// Stops the queue and remembers where.
    fn halt(&mut self, i: usize) {
        let ring = &mut self.rings[i];
        if let Some(position) = self.queues[i].stop() {
            ring.base = position;
            if let (Some(inflight), Some(setup)) = (&self.inflight, ring.setup) {
                inflight.note(i, setup.size, setup.packed, position);
            }
        }
        (ring.state, ring.setup, ring.error) = (RingState::Stopped, None, None);
    }

    fn stop(&mut self, i: usize, events: &mut Vec<SessionEvent>) {
        if self.rings[i].state != RingState::Stopped {
            events.push(SessionEvent::Stopped { queue: i });
            self.changed = true;
        }
        self.halt(i);
    }

    /// Stops and disables all rings. Memory stays: QEMU believes that we still have it.
    fn reset(&mut self, events: &mut Vec<SessionEvent>) {
        for i in 0..self.rings.len() {
            self.stop(i, events);
            self.enable(i, false);
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

/// Requests whose reply is not an acknowledgement: a failure cannot be told.
fn has_own_reply(request: Request) -> bool {
    use Request as R;
    matches!(
        request,
        R::GetFeatures
            | R::GetVringBase
            | R::GetProtocolFeatures
            | R::GetQueueNum
            | R::GetConfig
            | R::CreateCryptoSession
            | R::PostcopyAdvise
            | R::GetInflightFd
            | R::GetMaxMemSlots
            | R::GetStatus
            | R::GetSharedObject
            | R::SetDeviceStateFd
            | R::CheckDeviceState
            | R::GetShmemConfig
    )
}

/// Takes a kick, call or error descriptor. Reading or writing a file may wait for a disk or for whoever serves a FUSE
/// mount, non-blocking or not, so only what cannot is taken: eventfds (which have no file type), pipes and sockets.
fn event_fd(fd: Option<OwnedFd>) -> Result<Option<EventFd>, Refusal> {
    let Some(fd) = fd else { return Ok(None) };
    let stat = fstat(&fd).map_err(|_| Refusal::Descriptor)?;
    let anonymous = stat.st_mode & 0o170_000 == 0;
    if !anonymous && !matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket) {
        return Err(Refusal::Descriptor);
    }
    EventFd::from_peer(fd).map(Some).map_err(|_| Refusal::Descriptor)
}
