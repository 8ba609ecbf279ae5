//! The spine: one burst from one queue to wherever its packets go.

use crate::current_flow::{CurrentFlow, Decision};
use crate::datapath::Datapath;
use crate::deliver::{FRAME_WORK, WASTED_WORK, WORK};
use crate::packet::Packet;
use crate::plan::{Members, Plan, bit};
use crate::port::{Port, PortTable, header_len};
use crate::upcall::NoPlace;
use lasthop_flow::{ExactCache, Flow, WriterId};
use lasthop_frame::{Depth, Offload, VnetHdr};
use lasthop_types::{DropReason, PortId};
use lasthop_virtqueue::{Ahead, BURST, Chains, PREFETCH, Patience, Queue, QueueError, QueueGuard, Ring, StartedQueue};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Entries of a thread's exact-match cache, if it serves any port that has packets: at first, and when it has
/// [grown](ExactCache::grow_if_crowded). An entry takes 16 bytes.
pub const CACHE_ENTRIES: [usize; 2] = [8 << 10, 64 << 10];
/// The same, if it serves one port. There may be as many of these threads as there are ports.
pub const PORT_CACHE_ENTRIES: [usize; 2] = [1 << 10, 16 << 10];
/// How long packets wait for buffers, in milliseconds. After that those that find no buffer are dropped at once: see
/// [`Shortage`](lasthop_virtqueue::Shortage) for when a receiver is waited for again, [`SenderPatience`](lasthop_virtqueue::SenderPatience) for
/// when a sender waits again, and for one that has nothing for others.
pub const PATIENCE_MS: Patience = Patience { pace: 10, overtaken: 2, remembered: 1000 };
/// While packets wait for a receiver that may get no more for now, and nothing is there for others, how often it is looked whether
/// something has come for others.
const LOOK_NS: u64 = 1_000_000;

/// What a burst came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Chains completed.
    pub packets: usize,
    /// The queue was left with packets in it because its port has too many waiting for control. Look again when
    /// [`Order::result`](crate::Order::result) says that the port goes on.
    pub stalled: bool,
    /// The queue was left with packets in it because a receiver has no buffers. Look again soon.
    pub short_of_buffers: bool,
    /// The queue was not read, because its port has sent all that it may, or was left with packets in it for a receiver that has got all
    /// that it may, and none for others. Look again then.
    pub until_ns: Option<u64>,
    /// The queue was left with packets in it because a burst had done enough for one turn of its locks. Run it again.
    pub more: bool,
    /// What packets with several receivers took, in bytes: the length of each copy, and what a frame costs beside its bytes.
    pub copied: usize,
}

/// What one thread needs to move packets: its flow cache and scratch space. Not shared.
#[derive(Debug)]
pub struct Forwarder {
    pub(crate) datapath: Arc<Datapath>,
    pub(crate) ports: Arc<PortTable>,
    ports_generation: u64,
    pub(crate) cache: ExactCache,
    pub(crate) writer: WriterId,
    pub(crate) packets: Box<[Packet]>,
    pub(crate) plan: Plan,
    /// Packets that come from control may wait for translations.
    pub(crate) parks: bool,
    /// Where the last delivery went.
    pub(crate) receiver: PortId,
    /// Packets have missed: the main thread is to be woken for them once the sender's queue is unlocked.
    pub(crate) missed: Cell<bool>,
    /// What samples are drawn by.
    pub(crate) random: Cell<u64>,
    /// Flows that are gone as control wanted, which is to be told what they have carried.
    pub ended: Vec<Arc<Flow>>,
}

/// The burst at hand: where it comes from.
pub(crate) struct Burst<'a, 'm> {
    pub(crate) port: &'a Port,
    pub(crate) queue: &'a Queue,
    pub(crate) chains: &'a Chains<'m>,
    pub(crate) ahead: Ahead,
    pub(crate) now_ns: u64,
    /// Packets may wait for receivers that run out of buffers, unless those have had none for so long.
    pub(crate) patient: bool,
    pub(crate) pace_ns: u64,
}

/// How far [`Forwarder::classify`] has come.
struct Classified {
    /// Packets that have been classified, from the first on. The others must wait.
    packets: usize,
    end: ClassifyEnd,
    /// As [`Outcome::copied`].
    copied: usize,
}

/// Why no further packet of a burst is classified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClassifyEnd {
    /// All were looked at.
    All,
    /// So much has been done that it is for others to use the locks.
    Enough,
    /// The next one has to wait for control, and there is no place for it.
    Stalled,
}

/// What a burst leaves to be done once its ring has been read.
#[derive(Default)]
struct Carried {
    outcome: Outcome,
    /// The guest is to be interrupted.
    call: bool,
    /// What broke the ring.
    broken: Option<QueueError>,
}

impl Forwarder {
    /// For one thread, with an exact-match cache of so many entries.
    pub fn new(datapath: Arc<Datapath>, [entries, most]: [usize; 2]) -> Self {
        let cache = ExactCache::new(entries, most);
        datapath.add_cache(cache.counters());
        Self {
            cache,
            ports: datapath.ports(),
            ports_generation: datapath.ports_generation(),
            writer: WriterId::default(),
            packets: vec![Packet::default(); BURST].into_boxed_slice(),
            plan: Plan::default(),
            parks: false,
            receiver: PortId(0),
            missed: Cell::new(false),
            random: Cell::new(datapath.now_ns()),
            ended: Vec::new(),
            datapath,
        }
    }

    /// The port that packets last went to.
    pub fn last_receiver(&self) -> Option<&Port> {
        self.ports.get(self.receiver).map(|port| &**port)
    }

    /// Wakes the main thread if there is something for control. To be called with no queue locked: nobody who is woken finds it so.
    #[inline]
    pub(crate) fn tell_missed(&self) {
        if self.missed.take() {
            self.datapath.note_missed();
        }
    }

    /// [`Datapath::now_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.datapath.now_ns()
    }

    /// Moves up to [`BURST`] packets that came from `port`'s vring `index`. Returns at once if another thread is on
    /// that queue. `now_ns` is any clock in nanoseconds that all threads share.
    pub fn carry(&mut self, port: &Port, index: u16, now_ns: u64) -> Outcome {
        let Some(queue) = port.queues.get(usize::from(index)) else { return Outcome::default() };
        let Some(mut guard) = queue.try_lock() else { return Outcome::default() };
        let Some(started) = guard.started() else { return Outcome::default() };
        // With the lock held: whoever removes a port, and then takes the locks of all queues from guests once, knows that nobody counts at it any more.
        self.follow_ports();
        let until_ns = port.sends.until(now_ns);
        if until_ns.is_some() {
            queue.counters.held.add(1);
            return Outcome { until_ns, ..Outcome::default() };
        }
        let carried = self.burst(started, port, queue, now_ns);
        if carried.call {
            guard.call();
        }
        if let Some(error) = carried.broken {
            fail(&self.datapath, port, index, &mut guard, error);
        }
        drop(guard);
        self.cache.grow_if_crowded(now_ns);
        // All of the burst at once, and nobody who is woken by it finds the queue locked.
        self.tell_missed();
        carried.outcome
    }

    /// Pop, classify, deliver, complete.
    fn burst(&mut self, started: &mut StartedQueue, port: &Port, queue: &Queue, now_ns: u64) -> Carried {
        let memory = started.memory.clone();
        let mut chains = Chains::default();
        let mut broken = started.ring.pop(&memory, &mut chains, BURST).err();
        if chains.list.is_empty() {
            // A ring whose memory has gone reads as one that is empty.
            let broken = broken.or_else(|| memory.faulted().then_some(QueueError::MemoryFault));
            let outcome = Outcome { stalled: chains.asked, ..Outcome::default() };
            return Carried { outcome, broken, ..Carried::default() };
        }
        (0..PREFETCH).for_each(|n| chains.prefetch(n, false));
        started.note_burst(&chains.list);
        let ahead = std::mem::take(&mut started.ahead);
        let patience = self.datapath.patience_ns;
        let weight = port.weight.load(Relaxed);
        let patient = started.sender_patience.begin(ahead, now_ns, patience, weight) && patience.pace > 0;
        let burst = Burst { port, queue, chains: &chains, ahead, now_ns, patient, pace_ns: patience.pace };
        let classified = self.classify(&burst, header_len(started.features));
        self.deliver(&burst);
        self.count(&burst);
        started.sender_patience.delivered(self.receiver, now_ns, patience);

        // Some behind those looked at now may have been looked at, and done, before.
        let looked_at = classified.packets.max(BURST - ahead.looked_at.leading_zeros() as usize);
        let taken = (self.plan.done.trailing_ones() as usize).min(looked_at).min(chains.list.len());
        let (done, rest) = chains.list.split_at(taken);
        started.ring.unpop(rest);
        started.ring.stage_read(done);
        let left = looked_at - taken;
        let until_ns = if left > 0 { self.note_waiting(started, &burst, taken, left) } else { None };
        let call = started.complete();
        if memory.faulted() {
            broken = Some(QueueError::MemoryFault);
        }
        let outcome = Outcome {
            packets: taken,
            stalled: classified.end == ClassifyEnd::Stalled || chains.asked && taken == chains.list.len(),
            short_of_buffers: self.plan.short,
            until_ns,
            more: classified.end == ClassifyEnd::Enough || self.plan.put_off || chains.is_spent() && taken > 0,
            copied: classified.copied,
        };
        Carried { outcome, call, broken }
    }

    /// Notes what is known of packets that were put back because the first of them waits: `left` of those looked at, behind the `taken`
    /// that are completed. Returns when to look at them again, if they wait for a limit and nothing behind them is for anybody else.
    fn note_waiting(
        &mut self,
        started: &mut StartedQueue,
        burst: &Burst<'_, '_>,
        taken: usize,
        left: usize,
    ) -> Option<u64> {
        // 1 to 64 packets: BURST is the width of the word.
        let looked_at = u64::MAX >> (BURST - left);
        started.ahead = Ahead { done: self.plan.done >> taken, looked_at };
        // A limit is no bad luck: a sender that has nothing for others waits for it as long as it takes.
        let limited = self.plan.limited && started.ahead.done == 0;
        let waits = if limited { self.waits_until(started, burst, left) } else { None };
        started.ring.look_again();
        started.sender_patience.translated = self.plan.translated;
        let (mut looked_at_before, mut blocked) = (burst.ahead.looked_at, None);
        if let Some((_, is_all)) = waits {
            // Their wait begins anew, and is charged to nobody. With more behind them it is as for a receiver that has no buffers, whose limit ends it.
            (looked_at_before, blocked) = if is_all { (0, None) } else { (looked_at_before, Some(self.receiver)) };
        } else if limited {
            // A sender that has something for others is charged at once for what it is blocked, as nothing goes to itself.
            blocked = Some(burst.port.id);
        } else if self.plan.short && taken + left == burst.chains.list.len() && started.is_window(burst.chains) {
            blocked = Some(self.receiver);
        }
        started.sender_patience.end(taken, looked_at_before, burst.now_ns, blocked);
        waits.map(|(until_ns, _)| until_ns)
    }

    /// When the packets of a ring are to be looked at that wait for a limited receiver, that of the last delivery. The first `left` are for
    /// nobody else; `None` if one behind them is for another. With it whether those are all: a ring may have more than are looked at. They are
    /// read for that alone, and once more when it is their turn.
    #[inline(never)]
    fn waits_until(&mut self, started: &mut StartedQueue, burst: &Burst<'_, '_>, left: usize) -> Option<(u64, bool)> {
        let (memory, mut chains) = (started.memory.clone(), Chains::default());
        // A chain that breaks the ring does so in its turn.
        let _ = started.ring.pop(&memory, &mut chains, lasthop_virtqueue::MAX_CHAINS);
        started.ring.unpop(&chains.list);
        // What is looked up here is known in the packets' turn: it must not let them overtake what waits for control.
        let datapath = self.datapath.clone();
        let mut current = CurrentFlow::new(burst, &datapath, self.writer);
        let (receiver, packet) = (self.ports.get(self.receiver)?, self.packets.first_mut()?);
        let mut is_for_it = |chain| {
            let read = packet.read(&chains, chain, header_len(started.features), burst.port.id, current.depth);
            let decision = read.map(|()| current.decide(&mut self.cache, packet, &chains.pieces(chain), false));
            matches!(decision, Ok(Decision::To { port, .. }) if port == receiver.id)
        };
        let alone = chains.list.iter().skip(left).all(&mut is_for_it);
        let look_ns = burst.now_ns + LOOK_NS;
        let until_ns = receiver.gets.until(burst.now_ns).map_or(look_ns, |until_ns| until_ns.min(look_ns));
        alone.then(|| (until_ns, !chains.is_full()))
    }

    /// Decides about each packet and plans deliveries.
    fn classify(&mut self, burst: &Burst<'_, '_>, header_len: usize) -> Classified {
        let &Burst { port, chains, ahead, .. } = burst;
        let datapath = self.datapath.clone();
        let mut current = CurrentFlow::new(burst, &datapath, self.writer);
        self.plan.start(ahead.done);
        // Loops of their own take frames behind a header of today's length.
        let takes_fast_loops = ahead == Ahead::default() && header_len == VnetHdr::LEN;
        let (mut i, mut is_read, mut passes_on) = (0, false, takes_fast_loops);
        let (mut work, mut copied, mut end) = ((chains.wasted() * WASTED_WORK).min(WORK - 1), 0, ClassifyEnd::All);
        while let (Some(packet), Some(chain)) = (self.packets.get_mut(i), chains.list.get(i)) {
            if work >= WORK {
                end = ClassifyEnd::Enough;
                break;
            }
            if ahead.done & bit(i) != 0 {
                i += 1;
                continue;
            }
            chains.prefetch(i + PREFETCH, false);
            let read = if std::mem::take(&mut is_read) {
                Ok(())
            } else {
                packet.read(chains, chain, header_len, port.id, current.depth)
            };
            let decision = match read {
                Err(reason) => Decision::Drop(reason),
                Ok(()) => current.decide(&mut self.cache, packet, &chains.pieces(chain), ahead.looked_at & bit(i) == 0),
            };
            work += packet.frame_len;
            match decision {
                Decision::To { port, link_layer_only } => {
                    work += work_to_cut(packet);
                    self.output(burst, i, port, true);
                    if passes_on
                        && link_layer_only
                        && let Some(packet) = self.packets.get(i)
                        && self.plan.repeat.begin(packet, chains, i + 1, WORK.saturating_sub(work))
                    {
                        let passed = self.deliver(burst);
                        passes_on = passed.packets > 0;
                        work += passed.bytes + self.plan.wasted_work;
                        let flow = current.flow(&self.cache);
                        flow.inspect(|flow| current.count(flow, passed.packets, passed.bytes));
                        i += passed.packets;
                    } else if takes_fast_loops {
                        let most = WORK.saturating_sub(work);
                        let classified = self.classify_known(&current, burst, i + 1, most, passes_on);
                        work += classified.work;
                        (i, is_read) = (classified.next - 1, classified.is_read);
                    }
                }
                Decision::Many(flow) => {
                    // Each of several copies is one more packet, and may have to be cut up as well.
                    let copy = packet.frame_len + FRAME_WORK * (1 + segments(packet));
                    let copies = self.act(burst, i, &flow.actions) * copy;
                    (work, copied) = (work + copies, copied + copies);
                }
                Decision::Drop(reason) => self.drop(burst, i, reason),
                Decision::Miss if self.enqueue(burst, i) => {}
                Decision::Miss | Decision::Stall => {
                    end = ClassifyEnd::Stalled;
                    break;
                }
            }
            i += 1;
        }
        Classified { packets: i, end, copied }
    }

    /// Has a packet that meets no flow wait for control, if it can. False: the packets behind it wait with it.
    fn enqueue(&mut self, burst: &Burst<'_, '_>, packet: usize) -> bool {
        let i = packet;
        let (Some(packet), Some(chain)) = (self.packets.get_mut(i), burst.chains.list.get(i)) else { return true };
        let pieces = &*burst.chains.pieces(chain);
        packet.extract_to(pieces, Depth::Full);
        packet.mirrored = burst.ahead.looked_at & bit(i) != 0;
        match burst.port.upcalls.enqueue(packet, pieces, burst.now_ns / 1_000_000) {
            Ok(()) => {
                burst.queue.counters.missed.add(1);
                self.missed.set(true);
                self.plan.set_done(i);
            }
            Err(NoPlace::Taken) if self.datapath.control_answers() => return false,
            Err(_) => self.drop(burst, i, DropReason::MissQueueFull),
        }
        true
    }

    /// Counts the packets that were done in this burst and not before.
    fn count(&self, burst: &Burst<'_, '_>) {
        let new = self.plan.done & !burst.ahead.done;
        let (mut bytes, passed) = (self.plan.repeat.bytes, self.plan.repeat.passed);
        let mut headers = passed.count_ones() as usize * (VnetHdr::LEN + crate::pass::HEAD_LEN);
        for i in Members(new & !passed) {
            // All that were looked at have their length noted.
            let lens = self.packets.get(i).map_or([0; 2], |packet| [packet.sent_len, packet.payload_at]);
            (bytes, headers) = (bytes + lens[0] as u64, headers + lens[1]);
        }
        let packets = u64::from(new.count_ones());
        burst.queue.counters.packets.add(packets);
        burst.queue.counters.bytes.add(bytes);
        burst.queue.counters.headers.add(headers as u64);
        // Pieces are those of chains of several: with what is in a chain of its own, an indirect descriptor and its table.
        burst.queue.counters.descriptors.add(packets + burst.chains.pieces.len() as u64);
        burst.port.sends.charge(packets, bytes, burst.now_ns);
    }

    /// Asks the guest to kick when it has more packets; true if it has some already, and then it was not asked. With
    /// `skip`, only when so many have gathered before: a caller that asks for this looks again by itself. If the guest has packets and `keep`,
    /// asked with the queue locked, says no, it stays asked to kick: another thread that looks after the queue may wait for that. Then false.
    pub fn rearm_notifications(&mut self, port: &Port, index: u16, skip: u16, keep: impl FnOnce() -> bool) -> bool {
        self.with_ring(port, index, |ring, _| {
            let more = ring.enable_kicks(skip)? && keep();
            if more && skip == 0 {
                ring.disable_kicks();
            }
            Ok(more)
        })
    }

    /// The guest kicked (or may have): asks it not to kick, now that the queue is being looked at, if `still` says so with the
    /// queue locked.
    pub fn disable_notifications(&mut self, port: &Port, index: u16, kicked: bool, still: impl FnOnce() -> bool) {
        self.with_ring(port, index, |ring, queue| {
            queue.counters.notifications.add(u64::from(kicked));
            if still() {
                ring.disable_kicks();
            }
            Ok(false)
        });
    }

    fn with_ring(
        &mut self,
        port: &Port,
        index: u16,
        act: impl FnOnce(&mut Ring, &Queue) -> Result<bool, QueueError>,
    ) -> bool {
        let Some(queue) = port.queues.get(usize::from(index)) else { return false };
        let mut guard = queue.lock();
        let Some(started) = guard.started() else { return false };
        match act(&mut started.ring, queue) {
            Ok(answer) => answer,
            Err(error) => {
                fail(&self.datapath, port, index, &mut guard, error);
                false
            }
        }
    }

    pub(crate) fn follow_ports(&mut self) {
        let generation = self.datapath.ports_generation();
        if generation != self.ports_generation {
            self.ports = self.datapath.ports();
            self.ports_generation = generation;
        }
    }
}

/// Stops a ring and lets the main thread know.
pub(crate) fn fail(datapath: &Datapath, port: &Port, index: u16, guard: &mut QueueGuard<'_>, error: QueueError) {
    guard.fail(error);
    port.refresh();
    datapath.note_broken(port.id, index);
}

/// What a packet in tiny segments costs beside its bytes, at most: whether its receiver has it cut up is not known yet. Nothing where
/// segments are of ordinary length, so that a receiver that takes such packets whole has as many in a burst.
#[inline]
pub(crate) fn work_to_cut(packet: &Packet) -> usize {
    match packet.offload {
        Offload::Gso(_) => (FRAME_WORK * segments(packet)).saturating_sub(packet.frame_len),
        _ => 0,
    }
}

fn segments(packet: &Packet) -> usize {
    match packet.offload {
        Offload::Gso(gso) => packet.frame_len / usize::from(gso.size.max(1)),
        _ => 0,
    }
}
