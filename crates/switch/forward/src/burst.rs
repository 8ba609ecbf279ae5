//! The spine: one burst from one queue to wherever its packets go.

use crate::actions::{Step, Steps, is_one_output};
use crate::datapath::Datapath;
use crate::deliver::{FRAME_WORK, IDLE_WORK, Target, Undelivered, WORK};
use crate::packet::Packet;
use crate::plan::{Group, Plan, bit};
use crate::port::{Port, PortTable, header_len};
use crate::repeat::{Passed, Repeat};
use crate::run::{Run, Verdict};
use crate::upcall::NoPlace;
use lasthop_flow::{Action, ExactCache, WriterId};
use lasthop_frame::{Depth, Offload, VnetHdr};
use lasthop_types::{DropReason, PortId};
use lasthop_virtqueue::{Ahead, BURST, Chains, PREFETCH, Queue, QueueError, QueueGuard, Ring, StartedQueue};
use std::sync::Arc;

/// Entries of a thread's exact-match cache, if it serves whoever has something.
const CACHE_ENTRIES: usize = 8192;
/// The same, if it serves one port.
const PORT_CACHE_ENTRIES: usize = 1024;
/// In what time a receiver that is short of buffers must take a burst's worth to be waited for, and how long packets wait for it
/// that others have overtaken. After that packets for it that find no buffer are dropped at once: see
/// [`Shortage`](lasthop_virtqueue::Shortage) for when a receiver is waited for again, [`Waiting`](lasthop_virtqueue::Waiting) for
/// when a sender waits again, and for one that has nothing for others.
pub const PATIENCE_MS: [u64; 2] = [10, 2];

/// What a burst came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Chains completed.
    pub packets: usize,
    /// The queue was left with packets in it because its port has too many waiting for control. Look again when
    /// [`Order::result`](crate::Order::result) says that the port goes on.
    pub stalled: bool,
    /// The queue was left with packets in it because a receiver has no buffers. Look again soon.
    pub held: bool,
    /// The queue was left with packets in it because a burst had done enough for one turn of its locks. Run it again.
    pub more: bool,
}

/// What one thread needs to move packets: its flow cache and scratch space. Not shared.
#[derive(Debug)]
pub struct Forwarder {
    pub(crate) datapath: Arc<Datapath>,
    pub(crate) ports: Arc<PortTable>,
    ports_generation: u64,
    cache: ExactCache,
    pub(crate) writer: WriterId,
    packets: Box<[Packet]>,
    plan: Plan,
    /// Where the last delivery went.
    receiver: PortId,
}

/// The burst at hand: where it comes from.
struct Burst<'a, 'm> {
    port: &'a Port,
    queue: &'a Queue,
    chains: &'a Chains<'m>,
    ahead: Ahead,
    now_ns: u64,
    /// Packets may wait for receivers that run out of buffers, unless those have had none for so long.
    patient: bool,
    patience_ns: u64,
}

/// Why a look at the packets of a burst has come to an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// All were looked at.
    All,
    /// So much has been done that it is for others to use the locks.
    Enough,
    /// The next one has to wait for control, and there is no place for it.
    Stalled,
}

impl Forwarder {
    /// For one thread.
    pub fn new(datapath: Arc<Datapath>) -> Self {
        Self::with_cache(datapath, CACHE_ENTRIES)
    }

    /// For a thread of which there may be very many.
    pub fn small(datapath: Arc<Datapath>) -> Self {
        Self::with_cache(datapath, PORT_CACHE_ENTRIES)
    }

    fn with_cache(datapath: Arc<Datapath>, entries: usize) -> Self {
        Self {
            ports: datapath.ports(),
            ports_generation: datapath.ports_generation(),
            cache: ExactCache::new(entries),
            writer: WriterId::default(),
            packets: vec![Packet::default(); BURST].into_boxed_slice(),
            plan: Plan::default(),
            receiver: PortId(0),
            datapath,
        }
    }

    /// The port that packets last went to.
    pub fn last_receiver(&self) -> Option<&Port> {
        self.ports.get(self.receiver).map(|port| &**port)
    }

    /// [`Datapath::now_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.datapath.now_ns()
    }

    /// Moves up to [`BURST`] packets that came from `port`'s vring `index`. Returns at once if another thread is on
    /// that queue. `now_ns` is any clock in nanoseconds that all threads share.
    pub fn carry(&mut self, port: &Port, index: u16, now_ns: u64) -> Outcome {
        self.follow_ports();
        let Some(queue) = port.queues.get(usize::from(index)) else { return Outcome::default() };
        let Some(mut guard) = queue.try_lock() else { return Outcome::default() };
        let Some(started) = guard.started() else { return Outcome::default() };
        let (outcome, call, broken) = self.burst(started, port, queue, now_ns);
        if call {
            guard.call();
        }
        if let Some(error) = broken {
            fail(&self.datapath, port, index, &mut guard, error);
        }
        outcome
    }

    /// Pop, judge, deliver, complete. Returns whether to interrupt the guest, and what broke its ring.
    fn burst(
        &mut self,
        started: &mut StartedQueue,
        port: &Port,
        queue: &Queue,
        now_ns: u64,
    ) -> (Outcome, bool, Option<QueueError>) {
        let memory = started.memory.clone();
        let mut chains = Chains::new();
        let mut broken = started.ring.pop(&memory, &mut chains, BURST).err();
        if chains.list.is_empty() {
            // A ring whose memory has gone reads as one that is empty.
            let broken = broken.or_else(|| memory.faulted().then_some(QueueError::MemoryFault));
            return (Outcome::default(), false, broken);
        }
        (0..PREFETCH).for_each(|n| chains.prefetch(n, false));
        started.begin(&chains.list);
        let ahead = std::mem::take(&mut started.ahead);
        let patience_ns = self.datapath.patience_ns;
        let patient = started.waiting.begin(ahead, now_ns, patience_ns) && patience_ns[0] > 0;
        let burst = Burst { port, queue, chains: &chains, ahead, now_ns, patient, patience_ns: patience_ns[0] };
        let (looked, end) = self.classify(&burst, header_len(started.features));
        self.deliver(&burst, None);
        self.count(&burst);
        started.waiting.delivered(self.receiver, now_ns, patience_ns);

        // Some behind those looked at now may have been done before.
        let looked_at = looked.max(BURST - ahead.seen.leading_zeros() as usize);
        let taken = (self.plan.done.trailing_ones() as usize).min(looked_at).min(chains.list.len());
        let (done, rest) = chains.list.split_at(taken);
        started.ring.unpop(rest);
        started.ring.stage_read(done);
        if taken < looked_at {
            // 1 to 64 packets: BURST is the width of the word.
            let seen = u64::MAX >> (BURST - (looked_at - taken));
            started.ahead = Ahead { done: self.plan.done >> taken, seen };
            started.ring.look_again();
            let whole = looked_at == chains.list.len() && started.is_window(&chains);
            started.waiting.end(taken, ahead.seen, now_ns, (self.plan.short && whole).then_some(self.receiver));
        }
        let call = started.complete();
        if memory.faulted() {
            broken = Some(QueueError::MemoryFault);
        }
        let outcome = Outcome {
            packets: taken,
            stalled: end == End::Stalled,
            held: self.plan.short,
            more: end == End::Enough || self.plan.put_off || chains.is_spent() && taken > 0,
        };
        (outcome, call, broken)
    }

    /// Decides about each packet and plans deliveries; returns how many were looked at, and why not more (the rest must wait).
    fn classify(&mut self, burst: &Burst<'_, '_>, header_len: usize) -> (usize, End) {
        let &Burst { port, chains, ahead, now_ns, .. } = burst;
        let datapath = self.datapath.clone();
        let mut run = Run::new(datapath.flows(), self.writer, now_ns / 1_000_000);
        self.plan.begin(ahead.done);
        // What repeats the packet before is compared where the frame lies behind a header of today's length.
        let (mut i, mut passes) = (0, ahead == Ahead::default() && header_len == VnetHdr::LEN);
        let (mut work, mut end) = (chains.idle() * IDLE_WORK, End::All);
        while let (Some(packet), Some(chain)) = (self.packets.get_mut(i), chains.list.get(i)) {
            if work >= WORK {
                end = End::Enough;
                break;
            }
            if ahead.done & bit(i) != 0 {
                i += 1;
                continue;
            }
            chains.prefetch(i + PREFETCH, false);
            let read = packet.read(chains, chain, header_len, port.id, run.depth);
            let verdict = match read {
                Err(reason) => Verdict::Drop(reason),
                Ok(()) => run.verdict(&mut self.cache, packet, &chains.pieces(chain)),
            };
            if read.is_ok() && ahead.seen & bit(i) == 0 {
                run.count(1, packet.frame_len);
            }
            work += packet.frame_len;
            match verdict {
                Verdict::To(to, repeats) => {
                    work += work_to_cut(packet);
                    self.output(burst, i, to, true);
                    if passes
                        && repeats
                        && let (Some(group), Some(packet)) = (self.plan.last, self.packets.get(i))
                        && let Some(repeat) = Repeat::of(packet, group, chains, i + 1, WORK.saturating_sub(work))
                    {
                        let passed = self.deliver(burst, Some(repeat));
                        passes = passed.packets > 0;
                        work += passed.bytes + self.plan.idle_work;
                        run.count(passed.packets, passed.bytes);
                        i += passed.packets;
                    }
                }
                Verdict::Many(flow) => {
                    // Each of several copies is one more packet, and may have to be cut up as well.
                    let copy = packet.frame_len + FRAME_WORK * (1 + segments(packet));
                    work += self.act(burst, i, &flow.actions) * copy;
                }
                Verdict::Drop(reason) => self.drop(burst, i, reason),
                Verdict::Miss if self.enqueue(burst, i) => {}
                Verdict::Miss => {
                    end = End::Stalled;
                    break;
                }
            }
            i += 1;
        }
        run.end(&self.cache);
        (i, end)
    }

    /// Has a packet that meets no flow wait for control, if it can. False: the packets behind it wait with it.
    fn enqueue(&mut self, burst: &Burst<'_, '_>, packet: usize) -> bool {
        let i = packet;
        let (Some(packet), Some(chain)) = (self.packets.get_mut(i), burst.chains.list.get(i)) else { return true };
        let pieces = &*burst.chains.pieces(chain);
        packet.extract_to(pieces, Depth::Full);
        match burst.port.upcalls.enqueue(packet, pieces, burst.now_ns / 1_000_000) {
            Ok(()) => {
                burst.queue.counters.missed.add(1);
                self.datapath.note_missed();
                self.plan.set_done(i);
            }
            Err(NoPlace::Taken) if self.datapath.control_answers() => return false,
            Err(_) => self.drop(burst, i, DropReason::MissQueueFull),
        }
        true
    }

    fn drop(&mut self, burst: &Burst<'_, '_>, packet: usize, reason: DropReason) {
        burst.queue.counters.drops.add(reason, 1);
        self.plan.set_done(packet);
    }

    /// Plans one delivery; the only one of its packet if it `may_wait`.
    #[inline]
    fn output(&mut self, burst: &Burst<'_, '_>, packet: usize, to: PortId, may_wait: bool) {
        self.plan.no_repeat();
        let Some(port) = self.ports.get(to) else { return self.drop(burst, packet, DropReason::NoPort) };
        // Connections between the same stations share a flow but not a queue, so the next packet has to be asked for anew.
        let multi_queue = port.is_multi_queue();
        let hash = match (self.packets.get_mut(packet), burst.chains.list.get(packet)) {
            (Some(p), Some(chain)) if multi_queue => p.steering_hash(&burst.chains.pieces(chain)),
            _ => 0,
        };
        let queue = port.queue_to_guest(hash).map_or(0, Queue::index);
        if may_wait && self.plan.is_held(to, queue) {
            return;
        }
        if !self.plan.add(packet, may_wait, to, queue) {
            self.deliver(burst, None);
            self.plan.add(packet, may_wait, to, queue);
        }
        if multi_queue {
            self.plan.no_repeat();
        }
    }

    /// Carries all actions of a flow out on a packet. Returns how often it is delivered or dropped. Most lists deliver and drop: that
    /// is a loop of its own, as floods and mirrors take it (an edit looked for in it costs 20 instructions for each output).
    fn act(&mut self, burst: &Burst<'_, '_>, packet: usize, actions: &[Action]) -> usize {
        for (n, action) in actions.iter().enumerate() {
            match Step::of(action, burst.port.id) {
                Step::To(to) => self.output(burst, packet, to, false),
                Step::Drop(reason) => self.drop(burst, packet, reason),
                Step::Edit(_) => return self.act_with_edits(burst, packet, actions, Steps::behind_outputs(n)),
            }
        }
        self.plan.set_done(packet);
        burst.queue.counters.replicated.add((actions.len() as u64).saturating_sub(1));
        actions.len()
    }

    /// The rest of [`Forwarder::act`] from the first edit on.
    #[inline(never)]
    fn act_with_edits(&mut self, burst: &Burst<'_, '_>, packet: usize, actions: &[Action], mut steps: Steps) -> usize {
        let may_wait = is_one_output(actions);
        let mut planned = steps.ends() > 0;
        while let Some(step) = steps.next(actions, burst.port.id) {
            match step {
                Step::To(to) => {
                    self.output(burst, packet, to, may_wait);
                    planned = true;
                }
                Step::Drop(reason) => self.drop(burst, packet, reason),
                Step::Edit(edit) => {
                    // All planned copies are of one header: those before the edit are made now.
                    if std::mem::take(&mut planned) {
                        self.deliver(burst, None);
                    }
                    if let Some(Err(reason)) = self.packets.get_mut(packet).map(|packet| packet.edit(edit)) {
                        steps.fail();
                        self.drop(burst, packet, reason);
                    }
                }
            }
        }
        if !may_wait {
            self.plan.set_done(packet);
        }
        burst.queue.counters.replicated.add((steps.ends() as u64).saturating_sub(1));
        steps.ends()
    }

    /// Makes the deliveries planned so far, and that of `repeat`, of which it returns how many: each receiver's ring is locked,
    /// filled, published and notified once.
    fn deliver(&mut self, burst: &Burst<'_, '_>, repeat: Option<Repeat>) -> Passed {
        let (mut n, mut passed) = (0, Passed::default());
        self.plan.idle_work = 0;
        while let Some(group) = self.plan.group(n) {
            let repeat = repeat.filter(|repeat| repeat.group == n);
            n += 1;
            let Some(port) = self.ports.get(group.port) else { continue };
            self.receiver = group.port;
            let Some(queue) = port.queues.get(usize::from(group.queue)) else { continue };
            let mut guard = queue.lock();
            let mut packets = group.packets.count_ones();
            let Some(started) = guard.started() else {
                queue.counters.drops.add(DropReason::PortDown, u64::from(packets));
                self.plan.done |= group.packets;
                continue;
            };
            let target = (started, port.mtu(), &**queue);
            let (filled, repeated) = fill(&mut self.plan, &self.packets, &group, target, burst, repeat);
            if repeat.is_some() {
                passed = repeated;
                packets += repeated.packets as u32;
            }
            filled.close(&self.datapath, port, queue, &mut guard, packets);
        }
        self.plan.clear();
        passed
    }

    /// Counts the packets that were done in this burst and not before.
    fn count(&self, burst: &Burst<'_, '_>) {
        let new = self.plan.done & !burst.ahead.done;
        let (mut left, mut bytes) = (new & !self.plan.passed, self.plan.passed_bytes);
        while left != 0 {
            // All that were looked at have their length noted.
            bytes += self.packets.get(left.trailing_zeros() as usize).map_or(0, |packet| packet.sent_len as u64);
            left &= left.wrapping_sub(1);
        }
        burst.queue.counters.packets.add(u64::from(new.count_ones()));
        burst.queue.counters.bytes.add(bytes);
    }

    /// Asks the guest to kick when it has more packets; true if it has some already, and then it was not asked. With
    /// `skip`, only when so many have gathered before: whoever asks for this looks again by itself.
    pub fn rearm_notifications(&mut self, port: &Port, index: u16, skip: u16) -> bool {
        self.rearm_notifications_unless(port, index, skip, || true)
    }

    /// As [`Forwarder::rearm_notifications`], but if the guest has packets and `keep`, asked with the queue locked, says no, it stays asked to
    /// kick: whoever else looks after the queue may wait for that. Then false.
    pub fn rearm_notifications_unless(
        &mut self,
        port: &Port,
        index: u16,
        skip: u16,
        keep: impl FnOnce() -> bool,
    ) -> bool {
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

/// What is left to do for a receiver's ring once packets have been written to it.
pub(crate) struct Filled {
    /// It wants an interrupt.
    pub(crate) call: bool,
    /// What broke it.
    pub(crate) error: Option<QueueError>,
}

impl Filled {
    /// The end of each delivery, of `packets` of them: interrupts the receiver, at once or when its batch is full, and stops a ring
    /// that broke.
    #[inline]
    pub(crate) fn close(
        self,
        datapath: &Datapath,
        port: &Arc<Port>,
        queue: &Queue,
        guard: &mut QueueGuard<'_>,
        packets: u32,
    ) {
        if self.call && port.interrupts_now(queue, packets) {
            guard.call();
        }
        if let Some(error) = self.error {
            fail(datapath, port, queue.index(), guard, error);
        }
    }
}

/// Delivers one receiver's packets, with those of `repeat`, and publishes them at once.
fn fill(
    plan: &mut Plan,
    packets: &[Packet],
    group: &Group,
    (started, mtu, queue): (&mut StartedQueue, u16, &Queue),
    burst: &Burst<'_, '_>,
    repeat: Option<Repeat>,
) -> (Filled, Passed) {
    let memory = started.memory.clone();
    let count = if repeat.is_some() { burst.chains.list.len() } else { group.packets.count_ones() as usize };
    let mut target = Target::new(started, &memory, mtu, &queue.counters, count);
    target.begin(burst.now_ns);
    let mut error = None;
    let mut held = plan.is_held(group.port, group.queue);
    let mut left = group.packets;
    while left != 0 {
        if error.is_none() && !held {
            let done = target.deliver_at_once(packets, burst.chains, left);
            plan.done |= done;
            left &= !done;
            if left == 0 {
                break;
            }
        }
        let i = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        if held && plan.may_wait(i) {
            continue;
        }
        if target.has_done_enough() && plan.may_wait(i) && error.is_none() && plan.hold(group.port, group.queue) {
            (held, plan.put_off) = (true, true);
            continue;
        }
        let (Some(packet), Some(chain)) = (packets.get(i), burst.chains.list.get(i)) else { continue };
        let pieces = &*burst.chains.pieces(chain);
        let mut result = match error {
            None => target.deliver(packet, pieces, plan.may_wait(i)),
            Some(_) => Err(Undelivered::Drop(DropReason::ReceiverBroken)),
        };
        if let Err(Undelivered::NoBuffers) = result
            && plan.may_wait(i)
        {
            if target.has_done_enough() && plan.hold(group.port, group.queue) {
                (held, plan.put_off) = (true, true);
                continue;
            }
            let slow = target.is_slow(burst.now_ns, burst.patience_ns);
            if burst.patient && !slow && plan.hold(group.port, group.queue) {
                (held, plan.short) = (true, true);
                continue;
            }
            if let Offload::Gso(_) = packet.offload {
                result = target.deliver(packet, pieces, false);
            }
        }
        // Those behind one that broke the ring count as dropped for that, which breaks nothing more.
        error = target.settle(result).or(error);
        plan.set_done(i);
    }
    let mut passed = Passed::default();
    if let Some(repeat) = repeat.filter(|_| error.is_none() && !held) {
        passed = target.pass(burst.chains, repeat);
        let set = !(u64::MAX << passed.packets) << repeat.next;
        plan.done |= set;
        plan.passed |= set;
        plan.passed_bytes += passed.bytes as u64;
    }
    plan.idle_work += target.idle_work();
    target.note_nothing(burst.now_ns);
    let call = target.publish();
    if error.is_none() && memory.faulted() {
        error = Some(QueueError::MemoryFault);
    }
    (Filled { call, error }, passed)
}

/// What a packet in tiny segments costs beside its bytes, at most: whether its receiver has it cut up is not known yet. Nothing where
/// segments are as long as usual ones, so that a receiver that takes such packets whole has as many in a burst.
#[inline]
fn work_to_cut(packet: &Packet) -> usize {
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
