//! The back-end side of one connection.

use crate::features::{Features, ProtocolFeatures};
use crate::form::Form;
use crate::inflight::{self, Inflight};
use crate::message::{Request, SingleRegion, SyntaxError, VRING_LOG, VringAddr, flag};
use crate::outcome::{Refusal, SessionError, SessionEvent};
use crate::ring::{RingError, RingState, Vring, packed_base};
use crate::transport::{Message, Transport};
use lasthop_guestmem::{AccessError, GuestMemory, MAX_REGIONS, Mapped, MemoryLimits, RegionSpec};
use lasthop_sys::{Foreign, PeerEvent};
use lasthop_types::MacAddr;
use lasthop_virtqueue::{Queue, QueueError, QueueSetup};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

mod commands;
mod patience;
#[cfg(any(test, feature = "frontend"))]
mod view;

#[cfg(any(test, feature = "frontend"))]
pub use view::RingView;

/// Most messages handled in one call of [`Session::ready`], so that one front-end cannot hold up the others'.
const MESSAGES_PER_CALL: usize = 32;
/// Most refused messages in one connection: front-ends give up at the first, so this is somebody filling our log.
const MAX_REFUSED: u32 = 32;
/// The smallest MTU of IPv4 (RFC 791).
const MIN_MTU: u16 = 68;

/// Requests without a body, of those we know.
const BARE: &[Request] = {
    use Request::*;
    &[GetFeatures, SetOwner, ResetOwner, GetProtocolFeatures, GetQueueNum, ResetDevice, GetMaxMemSlots, GetStatus]
};
/// Requests whose reply is not an acknowledgement: a failure cannot be told.
const ANSWERED: [&[Request]; 3] = {
    use Request::*;
    [
        &[GetFeatures, GetVringBase, GetProtocolFeatures, GetQueueNum, GetConfig, CreateCryptoSession],
        &[PostcopyAdvise, GetInflightFd, GetMaxMemSlots, GetStatus, GetSharedObject, SetDeviceStateFd],
        &[CheckDeviceState, GetShmemConfig],
    ]
};

/// What is wrong with a request.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Form(#[from] SyntaxError),
    #[error(transparent)]
    Meaning(#[from] Refusal),
}

/// What a request is answered with: bytes and perhaps a descriptor; or nothing, or success if the front-end asked.
type Answer = Option<(Vec<u8>, Option<OwnedFd>)>;

fn number(value: u64) -> Answer {
    Some((value.to_ne_bytes().into(), None))
}

/// One connection of a front-end to a port. Owned by one thread; the queues are shared with the workers, and it is the
/// queues' own locks that make starting, stopping and remapping safe under traffic. Dropping it stops all queues and lets
/// go of the guest's memory and descriptors.
#[derive(Debug)]
pub struct Session {
    transport: Transport,
    queues: Arc<[Arc<Queue>]>,
    rings: Vec<Vring>,
    features: Features,
    protocol_features: ProtocolFeatures,
    memory: Arc<GuestMemory>,
    /// Regions that ADD_MEM_REG named again, and how often.
    repeated: Vec<(RegionSpec, u32)>,
    inflight: Option<Inflight>,
    status: u8,
    refused: u32,
    changed: bool,
    /// Nothing is read before more of its memory is unmapped.
    wait: Option<patience::Wait>,
}

impl Session {
    /// Takes a connected socket. `queues` are the port's, two per pair, all stopped: even ones carry packets to the
    /// guest, odd ones from it; their number says how many pairs the front-end may use.
    /// What comes over the socket is closed where the socket is.
    pub fn new(socket: impl Into<Foreign>, queues: Arc<[Arc<Queue>]>, now: Instant) -> Self {
        Self {
            transport: Transport::new(socket.into(), now),
            rings: queues.iter().map(|_| Vring::default()).collect(),
            queues,
            features: Features::empty(),
            protocol_features: ProtocolFeatures::empty(),
            memory: Arc::new(GuestMemory::empty()),
            repeated: Vec::new(),
            inflight: None,
            status: 0,
            refused: 0,
            changed: false,
            wait: None,
        }
    }

    /// How much of this process the front-end's memory may take up, and where it is counted: with what is left of those before it. To
    /// be said before it says anything itself.
    pub fn limit_memory(&mut self, limits: MemoryLimits, mapped: &Arc<Mapped>) {
        self.memory = Arc::new(GuestMemory::within(limits, mapped));
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
            if self.must_wait(now, events)? {
                break;
            }
            let Some(message) = self.transport.receive(now)? else { break };
            self.message(message, events)?;
        }
        Ok(())
    }

    /// When [`Session::expire`] is due, unless the front-end says something before.
    pub fn deadline(&self) -> Option<Instant> {
        self.wait.as_ref().map_or_else(|| self.transport.deadline(), |wait| Some(wait.next))
    }

    /// An error if the front-end has kept us waiting too long: drop the session then.
    pub fn expire(&self, now: Instant) -> Result<(), SessionError> {
        // It is us that a front-end waits for then.
        if self.wait.is_some() { Ok(()) } else { self.transport.expire(now) }
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

    fn message(&mut self, message: Message, events: &mut Vec<SessionEvent>) -> Result<(), SessionError> {
        let (header, body, fds) = message;
        let code = header.request;
        let request = Request::from_code(code);
        let result = match request {
            Some(request) => self.command(Form { request, body, fds }, events),
            None => Err(Refusal::Unknown.into()),
        };
        // Judged after the command, so that the message that negotiates REPLY_ACK can itself ask for an answer.
        let acks = self.protocol_features.contains(ProtocolFeatures::REPLY_ACK);
        let wants_ack = acks && header.flags & flag::NEED_REPLY != 0;
        match result {
            Ok(Some((body, fd))) => self.transport.reply(code, &body, fd.as_ref().map(AsFd::as_fd)),
            Ok(None) if wants_ack => self.transport.reply(code, 0u64.as_bytes(), None),
            Ok(None) => Ok(()),
            Err(Fault::Form(error)) => Err(error.into()),
            Err(Fault::Meaning(why)) => {
                let name = request.map_or(format!("request {code}"), |r| r.to_string());
                let error = SessionError::Refused { request: name, why };
                self.refused += 1;
                if !wants_ack
                    || request.is_some_and(|r| ANSWERED.iter().any(|some| some.contains(&r)))
                    || self.refused > MAX_REFUSED
                {
                    return Err(error);
                }
                events.push(SessionEvent::Refused(error));
                self.transport.reply(code, 1u64.as_bytes(), None)
            }
        }
    }

    /// A ring's place in `rings` and `queues`, and the number that belongs to it.
    fn ring(&self, form: &Form) -> Result<(usize, u32), Fault> {
        let (index, number) = form.state()?;
        Ok((self.index(index)?, number))
    }

    /// A ring's place and the kick, call or error descriptor for it.
    fn ring_fd(&self, mut form: Form) -> Result<(usize, Option<PeerEvent>), Fault> {
        let (index, fd) = form.vring_fd()?;
        // Front-ends send eventfds: QEMU, Cloud Hypervisor, crosvm and DPDK have nothing else to send.
        let event = fd.map(PeerEvent::new).transpose().map_err(Refusal::Descriptor)?;
        Ok((self.index(index)?, event))
    }

    fn needs(&self, feature: ProtocolFeatures) -> Result<(), Refusal> {
        if self.protocol_features.contains(feature) { Ok(()) } else { Err(Refusal::NotNegotiated(feature.bits())) }
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
        let unoffered = bits & !Features::OFFERED.bits();
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

    /// Changes what is known of a ring, unless it runs.
    fn configure(
        &mut self,
        i: usize,
        differs: bool,
        change: impl FnOnce(&mut Vring),
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

    /// The rings go over to this memory. What was there before is let go of aside, after the rings have: to unmap what a guest has
    /// filled takes the kernel most of a second for some GiB, if it is the last that has it.
    fn set_memory(&mut self, memory: GuestMemory, events: &mut Vec<SessionEvent>) {
        let before = std::mem::replace(&mut self.memory, Arc::new(memory));
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
        self.transport.aside().unmap_aside(before);
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
            desc: guest(addr.descriptor)?,
            driver: guest(addr.available)?,
            device: guest(addr.used)?,
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
        (ring.state, ring.setup) = (RingState::Running, Some(setup));
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
        (ring.state, ring.setup) = (RingState::Failed, None);
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
        (ring.state, ring.setup) = (RingState::Stopped, None);
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
        for i in 0..self.rings.len() {
            self.halt(i);
            let queue = &self.queues[i];
            queue.set_enabled(false);
            queue.set_call(None);
            queue.set_err(None);
        }
        // It is closed aside, and others may have copies: the front-end is to see the end now.
        let _ = shutdown(&self.transport, Shutdown::Both);
        // To unmap what nobody else has mapped any more means to free it, page by page.
        self.transport.aside().unmap_aside((std::mem::take(&mut self.memory), self.inflight.take()));
    }
}
