//! The back-end side of one connection.

use crate::features::{Features, ProtocolFeatures};
use crate::form::Form;
use crate::inflight::{self, Inflight};
use crate::iotlb::{GRANTS, Iotlb, READ, WRITE};
use crate::message::{LogDesc, Request, SingleRegion, SyntaxError, VRING_LOG, VringAddr, flag};
use crate::outcome::{Refusal, SessionError};
use crate::regions::Regions;
use crate::ring::{Ring, RingState, packed_base};
use crate::switch::Switch;
use crate::transport::{Message, Transport};
use lasthop_connection::{Answer, Ask, RingAsk};
use lasthop_guestmem::translations::PAGE;
use lasthop_guestmem::{MAX_REGIONS, RegionSpec};
use lasthop_sys::Foreign;
use lasthop_text::MacAddr;
use lasthop_virtqueue::QueueSetup;
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use translation::Requests;
use zerocopy::IntoBytes;

mod commands;
mod handover;
pub use handover::Unprepared;
mod log;
mod translation;
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
    /// The switch is gone, or has ended the connection.
    #[error("the switch has ended the connection")]
    Lost,
}

/// What a request is answered with: bytes and perhaps a descriptor; or nothing, or success if the front-end asked.
type Reply = Option<(Vec<u8>, Option<OwnedFd>)>;

fn number(value: u64) -> Reply {
    Some((value.to_ne_bytes().into(), None))
}

/// Most entries of a ring (virtio 1.2, §2.7 and §2.8).
pub const MAX_RING: u16 = 32_768;

/// One connection of a front-end to a port. Owned by one thread. What only the switch can do, memory and rings, it has the switch
/// do: a front-end hears that something is done after the switch has done it. Dropping it ends the front-end's connection.
#[derive(Debug)]
pub struct Session<S> {
    transport: Transport,
    switch: S,
    rings: Vec<Ring>,
    features: Features,
    protocol_features: ProtocolFeatures,
    regions: Regions,
    /// Their files, to tell another switch of them.
    files: Vec<(RegionSpec, Foreign)>,
    /// Something that the front-end sent could not be kept, for want of descriptors.
    unkept: bool,
    /// NET_SET_MTU.
    mtu: Option<u16>,
    /// While the port goes over to another switch.
    handover: Option<handover::Handover<S>>,
    /// Regions that ADD_MEM_REG named again, and how often.
    repeated: Vec<(RegionSpec, u32)>,
    inflight: Option<Inflight>,
    /// Where the front-end is asked for translations (SET_BACKEND_REQ_FD).
    requests: Option<Requests>,
    /// While addresses are I/O addresses.
    iotlb: Option<Iotlb>,
    /// How many ranges it remembers.
    grants: usize,
    /// Most entries of a ring that is set up from now on.
    max_ring: u16,
    /// Descriptors that are no longer used and still watched, if any have come or gone.
    retired: Option<Vec<Foreign>>,
    /// Pages that the front-end has told of since the switch was last woken for them, and when it is at the latest.
    unwoken: (u8, Option<Instant>),
    log: Option<log::Log>,
    /// The switch logs.
    logs: bool,
    status: u8,
    refused: u32,
    changed: bool,
}

impl<S: Switch> Session<S> {
    /// Takes a connected socket, and the switch as this connection sees it. A port has `rings` rings, two per pair, all stopped: even
    /// ones carry packets to the guest, odd ones from it; their number says how many pairs the front-end may use.
    /// What comes over the socket is closed where the socket is.
    pub fn new(socket: impl Into<Foreign>, switch: S, rings: usize, now: Instant) -> Self {
        Self {
            transport: Transport::new(socket.into(), now),
            switch,
            rings: (0..rings).map(|_| Ring::default()).collect(),
            features: Features::empty(),
            protocol_features: ProtocolFeatures::empty(),
            regions: Regions::default(),
            files: Vec::new(),
            unkept: false,
            mtu: None,
            handover: None,
            repeated: Vec::new(),
            inflight: None,
            requests: None,
            iotlb: None,
            grants: GRANTS,
            max_ring: MAX_RING,
            retired: None,
            unwoken: (0, None),
            log: None,
            logs: false,
            status: 0,
            refused: 0,
            changed: false,
        }
    }

    /// Handles what the front-end sent, at most 32 messages; call it as long as the socket is readable (watch it
    /// level-triggered). After an error the connection is over: call [`Session::end`].
    pub fn ready(&mut self, now: Instant) -> Result<(), SessionError> {
        for _ in 0..MESSAGES_PER_CALL {
            let Some(message) = self.transport.receive(now)? else { break };
            self.message(message)?;
        }
        Ok(())
    }

    /// The connection is over, for this reason: the switch lets go of it first, then the front-end sees its end.
    pub fn end(mut self, error: &SessionError) {
        let closed = matches!(error, SessionError::Closed);
        // The answer is that it has.
        let of_memory = matches!(error, SessionError::Refused { of_memory: true, .. });
        let _ = self.ask(Ask::End { why: error.to_string(), closed, of_memory }, None);
    }

    /// Whether the switch has said something unasked: that the connection is over, and here its rings have stopped. Drop it then.
    pub fn is_dismissed(&mut self) -> bool {
        match self.switch.hear() {
            Ok(None) => return false,
            Ok(Some(Answer::Ended { stopped })) => self.note_stopped(&stopped),
            // It is gone, or makes no sense.
            Ok(Some(_)) | Err(_) => {}
        }
        true
    }

    /// The switch, to be watched as well.
    pub fn switch(&self) -> &S {
        &self.switch
    }

    fn ask(&mut self, ask: Ask, fds: impl IntoIterator<Item = Foreign>) -> Result<Answer, Fault> {
        match self.switch.ask(ask, fds.into_iter().collect()) {
            Ok(Answer::Ended { stopped }) => {
                self.note_stopped(&stopped);
                Err(Fault::Lost)
            }
            answer => answer.map_err(|_| Fault::Lost),
        }
    }

    /// Asks for what can be refused.
    fn ask_for(&mut self, ask: Ask, fds: impl IntoIterator<Item = Foreign>) -> Result<(), Fault> {
        match self.ask(ask, fds)? {
            Answer::Refused(why) => Err(Refusal::Switch(why).into()),
            Answer::Unmapped(why) => Err(Refusal::Memory(why).into()),
            _ => Ok(()),
        }
    }

    fn note_stopped(&mut self, stopped: &[(u16, u32)]) {
        for (ring, position) in stopped {
            self.note(usize::from(*ring), *position);
        }
    }

    /// Notes where a ring has stopped.
    fn note(&mut self, i: usize, position: u32) {
        let Some(ring) = self.rings.get_mut(i) else { return };
        ring.base = position;
        if let (Some(inflight), Some(setup)) = (&self.inflight, ring.setup) {
            inflight.note(i, setup.size, is_packed(setup.features), position);
        }
    }

    /// When [`Session::expire`] is due, unless the front-end says something before.
    pub fn deadline(&self) -> Option<Instant> {
        self.transport.deadline().into_iter().chain(self.unwoken.1).min()
    }

    /// Does what is due. An error if the front-end has kept us waiting too long: end the session then.
    pub fn expire(&mut self, now: Instant) -> Result<(), SessionError> {
        if self.unwoken.1.is_some_and(|due| now >= due) {
            self.wake().map_err(|_| SessionError::SwitchGone)?;
            self.tell_of_changes()?;
        }
        self.transport.expire(now)
    }

    /// Virtio features the front-end accepted for its guest; empty before SET_FEATURES.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Protocol features the front-end accepted.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    fn message(&mut self, message: Message) -> Result<(), SessionError> {
        let (header, body, fds) = message;
        let code = header.request;
        let request = Request::from_code(code);
        let ring = request.and_then(|request| request.ring(&body));
        let result = match request {
            Some(request) => self.command(Form { request, body, fds }),
            None => Err(Refusal::Unknown.into()),
        };
        // Before it is answered: a front-end that hears that its rings are enabled has its port up.
        self.tell_of_changes()?;
        // Judged after the command, so that the message that negotiates REPLY_ACK can itself ask for an answer.
        let acks = self.protocol_features.contains(ProtocolFeatures::REPLY_ACK);
        let wants_ack = acks && header.flags & flag::NEED_REPLY != 0;
        match result {
            Ok(Some((body, fd))) => self.transport.reply(code, &body, fd.as_ref().map(AsFd::as_fd)),
            Ok(None) if wants_ack => self.transport.reply(code, 0u64.as_bytes(), None),
            Ok(None) => Ok(()),
            Err(Fault::Form(error)) => Err(error.into()),
            Err(Fault::Lost) => Err(SessionError::SwitchGone),
            Err(Fault::Meaning(why)) => {
                let mut name = request.map_or(format!("request {code}"), |r| r.to_string());
                if let Some(ring) = ring {
                    name += &format!(" of ring {ring}");
                }
                let of_memory = request.is_some_and(Request::is_of_memory);
                let error = SessionError::Refused { request: name, why, of_memory };
                self.refused += 1;
                if !wants_ack
                    || request.is_some_and(|r| ANSWERED.iter().any(|some| some.contains(&r)))
                    || self.refused > MAX_REFUSED
                {
                    return Err(error);
                }
                self.ask(Ask::Refused { line: format!("refused: {error}"), of_memory }, None)
                    .map_err(|_| SessionError::SwitchGone)?;
                self.transport.reply(code, 1u64.as_bytes(), None)
            }
        }
    }

    /// Tells the switch what has changed, if anything has.
    fn tell_of_changes(&mut self) -> Result<(), SessionError> {
        if std::mem::take(&mut self.changed) {
            self.ask(self.state(), None).map_err(|_| SessionError::SwitchGone)?;
        }
        Ok(())
    }

    /// What the switch is told when something has changed.
    fn state(&self) -> Ask {
        let (features, protocol_features) = (self.features.bits(), self.protocol_features.bits());
        Ask::State { features, protocol_features }
    }

    /// A ring's place in `rings`, and the number that belongs to it.
    fn ring(&self, form: &Form) -> Result<(usize, u32), Fault> {
        let (index, number) = form.state()?;
        Ok((self.index(index)?, number))
    }

    /// A ring's place and the kick, call or error descriptor for it.
    fn ring_fd(&self, mut form: Form) -> Result<(usize, Option<Foreign>), Fault> {
        let (index, fd) = form.vring_fd()?;
        Ok((self.index(index)?, fd))
    }

    fn needs(&self, feature: ProtocolFeatures) -> Result<(), Refusal> {
        if self.protocol_features.contains(feature) { Ok(()) } else { Err(Refusal::NotNegotiated(feature.bits())) }
    }

    /// The ring's place in `rings`.
    fn index(&self, index: u32) -> Result<usize, Refusal> {
        let rings = self.rings.len();
        usize::try_from(index).ok().filter(|i| *i < rings).ok_or(Refusal::RingIndex { index, rings })
    }

    /// How many entries rings may have whose size is set from now on.
    pub fn set_max_ring(&mut self, entries: u16) {
        self.max_ring = entries;
    }

    fn packed(&self) -> bool {
        self.features.contains(Features::RING_PACKED)
    }

    /// Started and not broken by its guest since.
    fn is_running(&mut self, i: usize) -> Result<bool, Fault> {
        Ok(self.rings[i].state == RingState::Running
            && matches!(self.ask(Ask::Ring(i as u16, RingAsk::IsStarted), None)?, Answer::Started(true)))
    }

    fn set_features(&mut self, bits: u64) -> Result<(), Fault> {
        let unoffered = bits & !Features::OFFERED.bits();
        if unoffered != 0 {
            return Err(Refusal::Features(unoffered).into());
        }
        // Logging begins and ends while rings run.
        let changed = (self.features.bits() ^ bits) & !Features::LOG_ALL.bits();
        // QEMU repeats the same features for every queue pair while those before already run.
        if changed != 0 {
            for i in 0..self.rings.len() {
                if self.is_running(i)? {
                    return Err(Refusal::FeaturesWhileRunning(changed).into());
                }
            }
        }
        let before = std::mem::replace(&mut self.features, Features::from_bits_truncate(bits));
        let logs = before.contains(Features::LOG_ALL) != self.features.contains(Features::LOG_ALL);
        let logged = if logs { self.log_or_not() } else { Ok(()) };
        let (logs, done) = (logs && logged.is_ok(), logged.and_then(|()| self.translate()));
        if let Err(fault) = done {
            self.features = before;
            if logs {
                self.log_or_not()?;
            }
            return Err(fault);
        }
        if !self.features.contains(Features::PROTOCOL_FEATURES) {
            for i in 0..self.rings.len() {
                self.enable(i, true)?;
            }
        }
        self.changed = true;
        Ok(())
    }

    /// Changes what is known of a ring, unless it runs.
    fn configure(&mut self, i: usize, differs: bool, change: impl FnOnce(&mut Ring)) -> Result<(), Fault> {
        if differs && self.is_running(i)? {
            return Err(Refusal::RingRunning(i as u32).into());
        }
        if differs {
            change(&mut self.rings[i]);
            self.try_start(i)?;
        }
        Ok(())
    }

    fn enable(&mut self, i: usize, enabled: bool) -> Result<(), Fault> {
        if self.rings[i].enabled != enabled {
            self.ask(Ask::Ring(i as u16, RingAsk::Enable(enabled)), None)?;
            self.rings[i].enabled = enabled;
            self.changed = true;
        }
        Ok(())
    }

    /// The rings go over to these regions: the switch maps them, and says which rings could not stay where they were.
    fn set_memory(&mut self, regions: Regions, ask: impl FnOnce(u64) -> Ask, fds: Vec<Foreign>) -> Result<(), Fault> {
        self.check_log(&regions)?;
        let before = std::mem::replace(&mut self.regions, regions);
        let mut keep = 0;
        for (i, ring) in self.rings.iter().enumerate().filter(|(_, ring)| ring.state == RingState::Running) {
            // Otherwise the front-end's addresses now mean other guest addresses, or none.
            let at = |s: &QueueSetup| (s.desc, s.driver, s.device);
            if let (Some(old), Ok(Some(new))) = (ring.setup, self.setup(i)) {
                keep |= u64::from(at(&old) == at(&new)) << i;
            }
        }
        (0..self.rings.len()).filter(|i| keep >> i & 1 == 1).for_each(|i| self.show_ring(i));
        let answer = self.ask(ask(keep), fds)?;
        if let Answer::Unmapped(_) = answer {
            self.regions = before;
        }
        self.gone_over(answer)?;
        self.regions_changed()?;
        (0..self.rings.len()).try_for_each(|i| self.try_start(i))
    }

    /// Memory has changed, or its log: notes which rings have stopped for it.
    fn gone_over(&mut self, answer: Answer) -> Result<(), Fault> {
        let (stopped, failed) = match answer {
            Answer::Memory { stopped, failed } => (stopped, failed),
            Answer::Unmapped(why) => return Err(Refusal::Memory(why).into()),
            _ => return Err(Fault::Lost),
        };
        self.changed = true;
        for (ring, position) in stopped {
            self.note(usize::from(ring), position);
            if let Some(ring) = self.rings.get_mut(usize::from(ring)) {
                (ring.state, ring.setup, ring.resting) = (RingState::Waiting, None, false);
            }
        }
        for ring in failed {
            if let Some(ring) = self.rings.get_mut(usize::from(ring)) {
                (ring.state, ring.setup) = (RingState::Failed, None);
            }
        }
        Ok(())
    }

    /// How to start a ring; `None` while something is missing; or why it cannot be.
    fn setup(&self, i: usize) -> Result<Option<QueueSetup>, Unfit> {
        let ring = &self.rings[i];
        let Some(addr) = ring.addr.filter(|_| ring.size != 0 && !self.regions.is_empty()) else {
            return Ok(None);
        };
        if let Some(iotlb) = &self.iotlb {
            let parts = self.parts(i);
            if !parts.iter().all(|part| iotlb.covers(*part, READ | WRITE)) {
                return Ok(None);
            }
            if let Some(page) = parts.iter().find_map(|part| iotlb.apart(*part)) {
                return Err(Unfit { address: page * PAGE, why: apart(ring.size, page * PAGE) });
            }
        }
        let guest = |user: u64| match self.iotlb {
            Some(_) => Ok(user),
            None => self.regions.user_to_guest(user).ok_or_else(|| Unfit { address: user, why: nowhere(user) }),
        };
        Ok(Some(QueueSetup {
            size: ring.size,
            desc: guest(addr.descriptor)?,
            driver: guest(addr.available)?,
            device: guest(addr.used)?,
            base: if self.packed() { packed_base(ring.base) } else { ring.base },
            features: self.features.bits(),
        }))
    }

    /// Starts a ring that waits (or failed) if now it can be.
    fn try_start(&mut self, i: usize) -> Result<(), Fault> {
        // A ring that its guest broke while it ran stays broken until it is kicked anew or reset.
        if !matches!(self.rings[i].state, RingState::Waiting | RingState::Failed) {
            return Ok(());
        }
        match self.setup(i) {
            Ok(Some(setup)) => {
                let start = self.start_of(i, setup);
                let answer = self.ask(start, None)?;
                self.has_started(i, setup, &answer);
            }
            Ok(None) => {
                self.ask_for_ring(i)?;
                (self.rings[i].state, self.rings[i].setup) = (RingState::Waiting, None);
            }
            Err(unfit) => return self.fail(i, unfit),
        }
        Ok(())
    }

    /// What starts a ring.
    fn start_of(&mut self, i: usize, setup: QueueSetup) -> Ask {
        self.show_ring(i);
        self.rings[i].fills = 0;
        Ask::Ring(i as u16, RingAsk::Start { setup, enabled: self.rings[i].enabled })
    }

    /// That was answered.
    fn has_started(&mut self, i: usize, setup: QueueSetup, answer: &Answer) {
        self.changed = true;
        let runs = matches!(answer, Answer::Done);
        let ring = &mut self.rings[i];
        (ring.state, ring.setup) = if runs { (RingState::Running, Some(setup)) } else { (RingState::Failed, None) };
        if let Some(inflight) = self.inflight.as_ref().filter(|_| runs) {
            inflight.note(i, setup.size, self.packed(), setup.base);
        }
    }

    /// A ring cannot be started, or cannot go on, for what the front-end says of its memory.
    fn fail(&mut self, i: usize, Unfit { address, why }: Unfit) -> Result<(), Fault> {
        self.ask(Ask::Ring(i as u16, RingAsk::Unmapped { address, why }), None)?;
        let ring = &mut self.rings[i];
        (ring.state, ring.setup, ring.resting) = (RingState::Failed, None, false);
        self.changed = true;
        Ok(())
    }

    fn stop(&mut self, i: usize) -> Result<(), Fault> {
        if self.rings[i].state == RingState::Stopped {
            return Ok(());
        }
        if let Answer::Position(Some(position)) = self.ask(Ask::Ring(i as u16, RingAsk::Stop), None)? {
            self.note(i, position);
        }
        let ring = &mut self.rings[i];
        (ring.state, ring.setup, ring.resting) = (RingState::Stopped, None, false);
        self.changed = true;
        Ok(())
    }

    /// Stops and disables all rings. Memory stays: QEMU believes that we still have it.
    fn reset(&mut self) -> Result<(), Fault> {
        for i in 0..self.rings.len() {
            self.stop(i)?;
            self.enable(i, false)?;
        }
        Ok(())
    }
}

/// Why a ring cannot be started: an address of its memory, and a line for people.
#[derive(Debug)]
struct Unfit {
    address: u64,
    why: String,
}

fn nowhere(address: u64) -> String {
    format!(
        "ring address {address:#x} (of the front-end) is in no memory region; is all of the guest's memory shared (QEMU: share=on on each memory backend)?"
    )
}

/// The switch reads and writes a part of a ring as one piece, and Linux takes the pages of what an IOMMU maps one by one.
fn apart(size: u16, address: u64) -> String {
    // So many fill a page with the longest part of a ring, its descriptors.
    let remedy = if u64::from(size) * 16 > PAGE {
        "use rings of 256 entries (QEMU: rx_queue_size=256,tx_queue_size=256), or iommu.passthrough=1 in the guest"
    } else {
        "use rings of which each part lies in one page"
    };
    format!(
        "ring spans pages of I/O addresses that do not lie together in the guest's memory ({size} entries, at {address:#x}); {remedy}"
    )
}

fn is_packed(features: u64) -> bool {
    Features::from_bits_truncate(features).contains(Features::RING_PACKED)
}

impl<S> AsFd for Session<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

impl<S> Drop for Session<S> {
    fn drop(&mut self) {
        // It is closed aside, and others may have copies: the front-end is to see the end now.
        let _ = shutdown(&self.transport, Shutdown::Both);
        self.transport.aside().unmap_aside(self.inflight.take());
    }
}
