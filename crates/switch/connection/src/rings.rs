//! A port's rings and its guest's memory, as a session process has them set up.

use crate::messages::{Answer, Ask, MAX_TABLE, Region, RingAsk, spec};
use lasthop_guestmem::translations::Translations;
use lasthop_guestmem::{AccessError, GuestMemory, MapError, Mapped, MemoryLimits};
use lasthop_sys::{Aside, Foreign, PeerEvent};
use lasthop_virtqueue::{Queue, QueueError};
use std::sync::Arc;

/// The smallest MTU of IPv4 (RFC 791).
const MIN_MTU: u16 = 68;
/// Longest line that a session process may have us write, in characters.
const LONGEST_LINE: usize = 600;

/// What the owner of a connection has to act on. `queue` is the index of a vring.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Event {
    /// Watch this descriptor, instead of one given before, for the queue's kicks; without a descriptor the front-end
    /// wants the queue to be polled. Look at the queue once now: a kick may have gone to the process before.
    Kick { queue: usize, fd: Option<PeerEvent> },
    /// The queue stopped: drop its kick descriptor.
    Stopped { queue: usize },
    /// A ring could not be started, or not be kept running over a change of memory.
    Failed { queue: usize, why: String },
    /// Features, memory, or which rings run or are enabled changed: read them from the connection and the queues, and look
    /// at the queues once.
    Changed,
    /// The guest has moved here: send this frame in its name.
    Announce(Vec<u8>),
    /// The front-end told the guest this MTU, in bytes without link-layer headers.
    Mtu(u16),
    /// A request was answered with a failure, or waits for long; the connection goes on. One line for the log.
    Wrong { line: String, of_memory: bool },
}

/// Why a connection ended. The text is the line for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum End {
    /// The session process says so.
    #[error("{why}")]
    Said { why: String, closed: bool, of_memory: bool },
    #[error("the port's session process has ended")]
    ProcessGone,
    #[error("the port's session process does not keep to the rules: {0}")]
    Rules(String),
    #[error(
        "descriptors that this port's front-ends sent do not close (files of a FUSE mount, or sockets that linger: end whoever serves them; or no thread can be started, by pids.max, that would close them)"
    )]
    Unclosed,
}

impl End {
    pub(crate) fn rules(what: impl ToString) -> Self {
        Self::Rules(what.to_string())
    }

    /// The front-end has just hung up, which is no error.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Said { closed: true, .. })
    }

    /// The guest's memory could not be taken.
    pub fn is_of_memory(&self) -> bool {
        matches!(self, Self::Said { of_memory: true, .. })
    }
}

/// One port's rings while a front-end is connected. Owned by one thread; the queues are shared with the workers, and it is the
/// queues' own locks that make starting, stopping and remapping safe under traffic. Dropping it stops all queues, and lets go of
/// the guest's memory and descriptors aside.
#[derive(Debug)]
pub struct Rings {
    queues: Arc<[Arc<Queue>]>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) aside: Arc<Aside>,
    pub(crate) features: (u64, u64),
}

impl Rings {
    /// `queues` are the port's, two per pair, all stopped. `limits`: how much of this process the guest's memory may take up, with
    /// what is left of those before it, which `mapped` counts.
    pub fn new(queues: Arc<[Arc<Queue>]>, aside: Arc<Aside>, limits: MemoryLimits, mapped: &Arc<Mapped>) -> Self {
        Self { queues, memory: Arc::new(GuestMemory::within(limits, mapped)), aside, features: (0, 0) }
    }

    /// Guest memory as it is now.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Bytes and regions that are mapped, if that is more than may be before anything else is mapped: with what was let go of
    /// and is not unmapped yet.
    pub fn excess(&self) -> Option<(u64, usize)> {
        let (limits, mapped) = (self.memory.limits(), self.memory.mapped());
        let (bytes, regions) = (mapped.bytes(), mapped.regions());
        (bytes > limits.bytes || regions > limits.regions).then_some((bytes, regions))
    }

    /// Does what a session process asks, with what came along. Bounded: eight regions at most, or one ring.
    pub fn carry_out(&mut self, ask: Ask, mut fds: Vec<Foreign>, events: &mut Vec<Event>) -> Result<Answer, End> {
        match ask {
            Ask::Table { regions, keep } => {
                if regions.len() > MAX_TABLE || fds.len() != regions.len() {
                    return Err(End::rules("a table of regions without their descriptors"));
                }
                let memory = self.table(&regions, &fds);
                return Ok(self.use_memory(memory, keep, events));
            }
            Ask::Add { region, keep } => {
                let fd = fds.pop().ok_or_else(|| End::rules("a region without its descriptor"))?;
                return Ok(self.use_memory(self.memory.with_region(spec(region), fd), keep, events));
            }
            Ask::Remove { region, keep } => {
                let gone = spec(region);
                let memory = self.memory.without_region(gone.guest_addr, gone.user_addr, gone.size);
                let memory = memory.ok_or_else(|| End::rules("a region is to go that is not there"))?;
                return Ok(self.use_memory(Ok(memory), keep, events));
            }
            // What a ring that runs has been found by stays.
            Ask::Translate if self.queues.iter().any(|q| q.status().started) => return Err(End::rules("a ring runs")),
            Ask::Translate => {
                let table = match (fds.pop().map(PeerEvent::new), fds.pop()) {
                    (Some(Ok(doorbell)), Some(file)) => Some(Translations::map(file, doorbell)),
                    _ => None,
                };
                match table.transpose() {
                    Ok(table) => self.memory = Arc::new(self.memory.translated_by(table.map(Arc::new))),
                    Err(error) => return Ok(Answer::Unmapped(error)),
                }
            }
            // Whoever moves packets of this guest's holds a lock for that long.
            Ask::Revoked => self.queues.iter().for_each(|queue| drop(queue.lock())),
            Ask::Log { place } => {
                let memory = self.memory.with_log(fds.pop().map(|fd| (spec(place), fd)));
                return Ok(self.use_memory(memory, u64::MAX, events));
            }
            Ask::State { features, protocol_features } => {
                self.features = (features, protocol_features);
                events.push(Event::Changed);
            }
            Ask::Announce(frame) => events.push(Event::Announce(frame)),
            Ask::Mtu(mtu) if mtu < MIN_MTU => return Err(End::rules("no MTU is so small")),
            Ask::Mtu(mtu) => events.push(Event::Mtu(mtu)),
            Ask::Refused { line, of_memory } => events.push(Event::Wrong { line: readable(&line), of_memory }),
            Ask::End { why, closed, of_memory } => return Err(End::Said { why: readable(&why), closed, of_memory }),
            Ask::Ring(ring, ask) => return self.about_ring(ring, ask, fds.pop(), events),
        }
        Ok(Answer::Done)
    }

    fn about_ring(&self, ring: u16, ask: RingAsk, fd: Option<Foreign>, events: &mut Vec<Event>) -> Result<Answer, End> {
        let i = usize::from(ring);
        let queue = self.queues.get(i).ok_or_else(|| End::rules(format!("there is no ring {ring}")))?;
        // Front-ends send eventfds: QEMU, Cloud Hypervisor, crosvm and DPDK have nothing else to send.
        let event = match fd.map(PeerEvent::new).transpose() {
            Ok(event) => event,
            Err(error) => return Ok(Answer::Refused(error.to_string())),
        };
        match ask {
            RingAsk::Start { setup, enabled } => {
                if let Err(error) = queue.start(&setup, self.memory.clone()) {
                    events.push(Event::Failed { queue: i, why: error.to_string() });
                    return Ok(Answer::Refused(error.to_string()));
                }
                queue.set_enabled(enabled);
                // The process before may have died between filling the ring and saying so.
                queue.lock().call();
            }
            RingAsk::Stop => {
                events.push(Event::Stopped { queue: i });
                return Ok(Answer::Position(queue.hand_over()));
            }
            RingAsk::Rest | RingAsk::Move => {
                let is_found = ask == RingAsk::Move;
                let moved = if is_found { queue.set_memory(self.memory.clone()) } else { queue.rest() };
                if let Err(error) = moved {
                    events.push(Event::Failed { queue: i, why: error.to_string() });
                    return Ok(Answer::Refused(error.to_string()));
                }
            }
            RingAsk::Unmapped { address, why } => {
                let asked = self.memory.is_translated().then_some(false);
                queue.lock().fail(QueueError::RingMemory(AccessError { addr: address, len: 1, asked }));
                events.push(Event::Failed { queue: i, why: readable(&why) });
            }
            RingAsk::Enable(enabled) => queue.set_enabled(enabled),
            RingAsk::IsStarted => return Ok(Answer::Started(queue.status().started)),
            RingAsk::Kick => events.push(Event::Kick { queue: i, fd: event }),
            RingAsk::Call => {
                // What was used while there was no call descriptor, or another, must not wait for the next packet.
                if let Some(event) = event.as_ref().filter(|_| queue.status().started) {
                    event.signal();
                }
                queue.set_call(event);
            }
            RingAsk::Err => queue.set_err(event),
        }
        Ok(Answer::Done)
    }

    fn table(&self, regions: &[Region], fds: &[Foreign]) -> Result<GuestMemory, MapError> {
        let mut memory = self.memory.cleared();
        for (region, fd) in regions.iter().zip(fds) {
            // Those before may be the last that have their files.
            memory = memory.with_region(spec(*region), fd).inspect_err(|_| self.aside.unmap_aside(memory))?;
        }
        Ok(memory)
    }

    /// The rings go over to this memory, one that rests when it is moved. What was there before is let go of aside, after the rings have: to unmap what a guest has
    /// filled takes the kernel most of a second for some GiB, if it is the last that has it.
    fn use_memory(&mut self, memory: Result<GuestMemory, MapError>, keep: u64, events: &mut Vec<Event>) -> Answer {
        let memory = match memory {
            Ok(memory) => Arc::new(memory),
            Err(error) => return Answer::Unmapped(error),
        };
        let before = std::mem::replace(&mut self.memory, memory);
        let (mut stopped, mut failed) = (Vec::new(), Vec::new());
        for (i, queue) in self.queues.iter().enumerate().filter(|(_, queue)| queue.status().started) {
            let kept = keep.checked_shr(i as u32).is_some_and(|bits| bits & 1 == 1);
            if !kept {
                stopped.extend(queue.stop().map(|position| (i as u16, position)));
            } else if !queue.status().rests
                && let Err(error) = queue.set_memory(self.memory.clone())
            {
                events.push(Event::Failed { queue: i, why: error.to_string() });
                failed.push(i as u16);
            }
        }
        self.aside.unmap_aside(before);
        Answer::Memory { stopped, failed }
    }

    /// Stops all rings; where each was that was started.
    pub(crate) fn stop(&self) -> Vec<(u16, u32)> {
        let stop = |queue: &Arc<Queue>| {
            let position = queue.stop();
            queue.set_enabled(false);
            queue.set_call(None);
            queue.set_err(None);
            Some((queue.index(), position?))
        };
        self.queues.iter().filter_map(stop).collect()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.stop();
        // To unmap what nobody else has mapped any more means to free it, page by page.
        self.aside.unmap_aside(std::mem::take(&mut self.memory));
    }
}

/// A line of somebody we do not trust, as it may stand in the log and on a terminal.
fn readable(line: &str) -> String {
    line.chars().take(LONGEST_LINE).map(|c| if c.is_control() { '?' } else { c }).collect()
}
