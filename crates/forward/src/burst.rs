//! The spine: one burst from one queue to wherever its packets go.

use crate::datapath::Datapath;
use crate::deliver::{Target, Undelivered};
use crate::miss::Left;
use crate::packet::Packet;
use crate::port::{Port, PortTable, header_len};
use arrayvec::ArrayVec;
use lasthop_flow::{Action, ExactCache, Flow, FlowTable, Lookup};
use lasthop_frame::{Depth, FlowKey};
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_types::{DropReason, PortCounters, PortId};
use lasthop_virtqueue::{Active, BURST, Chains, Queue, QueueError, QueueGuard};
use std::sync::Arc;

/// Entries of each thread's exact-match cache.
const CACHE_ENTRIES: usize = 8192;
/// Deliveries collected before they are made.
const MAX_DELIVERIES: usize = 512;
/// Destinations among them.
const MAX_GROUPS: usize = 64;
const NONE: u16 = u16::MAX;

/// What a burst came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Chains completed.
    pub packets: usize,
    /// The queue was left with packets in it because its port has too many waiting for control. Look again when
    /// [`Forwarder::resume`] says that the port goes on.
    pub stalled: bool,
}

/// What one thread needs to move packets: its flow cache and scratch space. Not shared.
#[derive(Debug)]
pub struct Forwarder {
    datapath: Arc<Datapath>,
    ports: Arc<PortTable>,
    ports_generation: u64,
    cache: ExactCache,
    packets: Box<[Packet]>,
    deliveries: Deliveries,
}

/// What is to become of a packet.
enum Verdict {
    To(PortId),
    Many(Arc<Flow>),
    Drop(DropReason),
    Miss,
}

/// Packets by destination, each destination's in the order they came.
#[derive(Debug, Default)]
struct Deliveries {
    groups: ArrayVec<Group, MAX_GROUPS>,
    nodes: ArrayVec<Node, MAX_DELIVERIES>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    port: PortId,
    /// Hash that chose the queue; all packets of a group go to the same one.
    queue: u16,
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    packet: u16,
    next: u16,
}

impl Deliveries {
    /// False when there is no room: deliver what is there, then add again.
    #[inline]
    fn add(&mut self, packet: u16, port: PortId, queue: u16) -> bool {
        let node = self.nodes.len() as u16;
        if self.nodes.is_full() {
            return false;
        }
        if let Some(group) = self.groups.iter_mut().rev().find(|g| g.port == port && g.queue == queue) {
            if let Some(last) = self.nodes.get_mut(usize::from(group.last)) {
                last.next = node;
            }
            group.last = node;
        } else if self.groups.try_push(Group { port, queue, first: node, last: node }).is_err() {
            return false;
        }
        self.nodes.push(Node { packet, next: NONE });
        true
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.nodes.clear();
    }
}

impl Forwarder {
    /// For one thread.
    pub fn new(datapath: Arc<Datapath>) -> Self {
        Self {
            ports: datapath.ports(),
            ports_generation: datapath.ports_generation(),
            cache: ExactCache::new(CACHE_ENTRIES),
            packets: vec![Packet::default(); BURST].into_boxed_slice(),
            deliveries: Deliveries::default(),
            datapath,
        }
    }

    /// Moves up to [`BURST`] packets that came from `port`'s vring `index`. Returns at once if another thread is on
    /// that queue. `now_ms` is any clock in milliseconds that all threads share.
    pub fn run(&mut self, port: &Port, index: u16, now_ms: u64) -> Outcome {
        self.follow_ports();
        let Some(queue) = port.queues.get(usize::from(index)) else { return Outcome::default() };
        let Some(mut guard) = queue.try_lock() else { return Outcome::default() };
        let Some(active) = guard.active() else { return Outcome::default() };
        let (outcome, call, broken) = self.burst(active, port, queue, now_ms);
        if call {
            guard.call();
        }
        if let Some(error) = broken {
            fail(&self.datapath, port, index, &mut guard, error);
        }
        outcome
    }

    /// Pop, judge and deliver, complete. Returns whether to interrupt the guest, and what broke its ring.
    fn burst(
        &mut self,
        active: &mut Active,
        port: &Port,
        queue: &Queue,
        now_ms: u64,
    ) -> (Outcome, bool, Option<QueueError>) {
        let memory = active.memory.clone();
        let header_len = header_len(active.features);
        let mut chains = Chains::new();
        let mut broken = active.ring.pop(&memory, &mut chains, BURST).err();
        if chains.list.is_empty() {
            return (Outcome::default(), false, broken);
        }
        active.begin(&chains.list);
        let taken = self.judge(port, queue, &chains, header_len, now_ms);
        let (done, rest) = chains.list.split_at(taken.min(chains.list.len()));
        active.ring.unpop(rest);
        for chain in done {
            active.ring.stage_used(chain, 0);
        }
        let call = active.complete();
        if memory.faulted() {
            broken = Some(QueueError::MemoryFault);
        }
        (Outcome { packets: taken, stalled: !rest.is_empty() }, call, broken)
    }

    /// Asks the guest to kick when it has more packets; true if it has some already, and then it was not asked.
    pub fn rest(&mut self, port: &Port, index: u16) -> bool {
        self.with_ring(port, index, |ring| {
            let more = ring.enable_kicks()?;
            if more {
                ring.disable_kicks();
            }
            Ok(more)
        })
    }

    /// Asks the guest not to kick: the queue is being looked at.
    pub fn attend(&mut self, port: &Port, index: u16) {
        self.with_ring(port, index, |ring| {
            ring.disable_kicks();
            Ok(false)
        });
    }

    fn with_ring(
        &mut self,
        port: &Port,
        index: u16,
        act: impl FnOnce(&mut lasthop_virtqueue::Ring) -> Result<bool, QueueError>,
    ) -> bool {
        let Some(queue) = port.queues.get(usize::from(index)) else { return false };
        let mut guard = queue.lock();
        let Some(active) = guard.active() else { return false };
        match act(&mut active.ring) {
            Ok(answer) => answer,
            Err(error) => {
                fail(&self.datapath, port, index, &mut guard, error);
                false
            }
        }
    }

    /// Judges and delivers the packets in `chains`; returns how many were dealt with (the rest must wait).
    fn judge(&mut self, port: &Port, queue: &Queue, chains: &Chains<'_>, header_len: usize, now_ms: u64) -> usize {
        let counters = &queue.counters;
        let depth = self.datapath.flows().depth();
        for piece in chains.all_pieces() {
            piece.prefetch();
        }
        let mut run = Run::default();
        let mut taken = chains.list.len();
        let (mut bytes, mut seen) = (0, 0);
        for (i, chain) in chains.list.iter().enumerate() {
            let pieces = chains.pieces(chain);
            let Some(packet) = self.packets.get_mut(i) else { break };
            let read = if chain.bad {
                Err(DropReason::BadChain)
            } else {
                packet.read(pieces, chain.len as usize, header_len, port.id, depth)
            };
            let verdict = match read {
                Err(reason) => Verdict::Drop(reason),
                Ok(()) => run.verdict(self.datapath.flows(), &mut self.cache, packet, depth, now_ms),
            };
            match verdict {
                Verdict::To(to) => self.plan(i, to, port, counters, chains),
                Verdict::Many(flow) => self.plan_all(i, &flow.actions, port, counters, chains),
                Verdict::Drop(reason) => counters.drops.add(reason, 1),
                Verdict::Miss => {
                    packet.classify(Depth::Full);
                    if port.misses.park(packet, pieces, queue.index(), now_ms) {
                        counters.missed.add(1);
                        self.datapath.note_missed();
                    } else if self.datapath.control_answers() {
                        taken = i;
                        break;
                    } else {
                        counters.drops.add(DropReason::MissQueueFull, 1);
                    }
                }
            }
            seen += 1;
            bytes += (chain.len as usize).saturating_sub(header_len) as u64;
        }
        run.end(now_ms);
        counters.packets.add(seen);
        counters.bytes.add(bytes);
        self.flush(chains);
        taken
    }

    /// Notes one delivery.
    #[inline]
    fn plan(&mut self, packet: usize, to: PortId, from: &Port, counters: &PortCounters, chains: &Chains<'_>) {
        if to == from.id {
            counters.drops.add(DropReason::Hairpin, 1);
            return;
        }
        let Some(port) = self.ports.get(to) else {
            counters.drops.add(DropReason::NoPort, 1);
            return;
        };
        let hash = self.packets.get(packet).map_or(0, |p| p.hash);
        let queue = port.queue_to_guest(hash).map_or(0, Queue::index);
        if !self.deliveries.add(packet as u16, to, queue) {
            self.flush(chains);
            self.deliveries.add(packet as u16, to, queue);
        }
    }

    fn plan_all(
        &mut self,
        packet: usize,
        actions: &[Action],
        from: &Port,
        counters: &PortCounters,
        chains: &Chains<'_>,
    ) {
        let mut outputs = 0;
        for action in actions {
            match action {
                Action::Output(to) => {
                    outputs += 1;
                    self.plan(packet, *to, from, counters, chains);
                }
                _ => {
                    outputs += 1;
                    counters.drops.add(DropReason::BadAction, 1);
                }
            }
        }
        match outputs {
            0 => counters.drops.add(DropReason::Policy, 1),
            n => counters.replicated.add(n - 1),
        }
    }

    /// Makes the deliveries noted so far: each destination's ring is locked, filled, published and notified once.
    fn flush(&mut self, chains: &Chains<'_>) {
        for group in &self.deliveries.groups {
            let Some(port) = self.ports.get(group.port) else { continue };
            let Some(queue) = port.queues.get(usize::from(group.queue)) else { continue };
            let mut guard = queue.lock();
            let mut nodes = NodeIter { nodes: &self.deliveries.nodes, next: group.first };
            let Some(active) = guard.active() else {
                queue.counters.drops.add(DropReason::PortDown, nodes.count() as u64);
                continue;
            };
            let packets = nodes.by_ref().filter_map(|i| {
                Some((self.packets.get(i)?, chains.list.get(i).map_or(&[][..], |chain| chains.pieces(chain))))
            });
            let (call, error) = fill(active, port.mtu(), &queue.counters, packets);
            if call {
                guard.call();
            }
            if let Some(error) = error {
                queue.counters.drops.add(DropReason::ReceiverBroken, nodes.count() as u64);
                fail(&self.datapath, port, queue.index(), &mut guard, error);
            }
        }
        self.deliveries.clear();
    }

    /// Control's answer to a miss: does `actions` with the waiting packet. True if a queue of the port had stalled and
    /// can be looked at again. Unknown ids are ignored: the packet may have timed out.
    pub fn resume(&mut self, port: &Port, id: u32, actions: &[Action]) -> bool {
        self.resume_with(port, id, |this, packet, piece, counters| {
            let mut outputs = 0;
            for action in actions {
                outputs += 1;
                match action {
                    Action::Output(to) if *to == port.id => counters.drops.add(DropReason::Hairpin, 1),
                    Action::Output(to) => this.deliver_one(*to, packet, piece, counters),
                    _ => counters.drops.add(DropReason::BadAction, 1),
                }
            }
            match outputs {
                0 => counters.drops.add(DropReason::Policy, 1),
                n => counters.replicated.add(n - 1),
            }
        })
    }

    /// Drops packets of `port` that have waited since before `before_ms`. True as for [`Forwarder::resume`].
    pub fn expire(&mut self, port: &Port, before_ms: u64) -> bool {
        let mut goes_on = false;
        while let Some(id) = port.misses.older_than(before_ms) {
            goes_on |= self.resume_with(port, id, |_, _, _, counters| counters.drops.add(DropReason::MissTimeout, 1));
        }
        goes_on
    }

    fn resume_with(
        &mut self,
        port: &Port,
        id: u32,
        act: impl FnOnce(&mut Self, &Packet, &[GuestSlice<'_>], &PortCounters),
    ) -> bool {
        self.follow_ports();
        let mut packet = Packet::default();
        let Some(left) = port.misses.take(id, &mut packet) else { return false };
        self.leave(port, &left, &packet, act);
        port.misses.free(&left)
    }

    fn leave(
        &mut self,
        port: &Port,
        left: &Left,
        packet: &Packet,
        act: impl FnOnce(&mut Self, &Packet, &[GuestSlice<'_>], &PortCounters),
    ) {
        let Some(queue) = port.queues.get(usize::from(left.queue)) else { return };
        // The counters belong to the holder of the queue's lock.
        let _guard = queue.lock();
        let Some(piece) = port.misses.bytes(left, packet) else { return };
        act(self, packet, &[piece], &queue.counters);
    }

    fn deliver_one(&mut self, to: PortId, packet: &Packet, pieces: &[GuestSlice<'_>], counters: &PortCounters) {
        let Some(port) = self.ports.get(to) else {
            counters.drops.add(DropReason::NoPort, 1);
            return;
        };
        let Some(queue) = port.queue_to_guest(packet.hash).or(port.queues.first().map(|q| &**q)) else { return };
        let mut guard = queue.lock();
        let Some(active) = guard.active() else {
            queue.counters.drops.add(DropReason::PortDown, 1);
            return;
        };
        let (call, error) = fill(active, port.mtu(), &queue.counters, std::iter::once((packet, pieces)));
        if call {
            guard.call();
        }
        if let Some(error) = error {
            fail(&self.datapath, port, queue.index(), &mut guard, error);
        }
    }

    /// Has the switch itself send a frame (without virtio-net header) as if it came from `port`: it waits for control
    /// like any first packet. False if there is no room for it to wait.
    pub fn inject(&mut self, port: &Port, frame: &[u8], now_ms: u64) -> bool {
        let Ok(memory) = GuestMemory::anonymous(4096) else { return false };
        let Ok(piece) = memory.slice(0, frame.len()) else { return false };
        piece.write(0, frame);
        let mut packet = Packet::default();
        let Some(queue) = port.queues.get(1) else { return false };
        let _guard = queue.lock();
        let parked = packet.read(&[piece], frame.len(), 0, port.id, Depth::Full).is_ok()
            && port.misses.park(&packet, &[piece], 1, now_ms);
        if parked {
            queue.counters.packets.add(1);
            queue.counters.bytes.add(frame.len() as u64);
            queue.counters.missed.add(1);
            self.datapath.note_missed();
        }
        parked
    }

    /// Full key of a frame as if it came from `port`.
    pub fn key_of(port: PortId, frame: &[u8], frame_len: usize) -> FlowKey {
        let mut key = FlowKey { in_port: port.0, ..FlowKey::default() };
        lasthop_frame::extract(&mut key, frame, frame_len.max(frame.len()), Depth::Full);
        key
    }

    fn follow_ports(&mut self) {
        let generation = self.datapath.ports_generation();
        if generation != self.ports_generation {
            self.ports = self.datapath.ports();
            self.ports_generation = generation;
        }
    }
}

/// Stops a ring and lets the main thread know.
fn fail(datapath: &Datapath, port: &Port, index: u16, guard: &mut QueueGuard<'_>, error: QueueError) {
    guard.fail(error);
    port.refresh();
    datapath.note_broken(port.id, index);
}

/// Delivers packets to one ring and publishes them at once. Returns whether to interrupt, and the error that broke the
/// ring, at whose packet it stopped (counted).
fn fill<'p, 'm: 'p>(
    active: &mut Active,
    mtu: u16,
    counters: &PortCounters,
    packets: impl Iterator<Item = (&'p Packet, &'p [GuestSlice<'m>])>,
) -> (bool, Option<QueueError>) {
    let memory = active.memory.clone();
    let mut target = Target::new(active, &memory, mtu, counters);
    let mut error = None;
    for (packet, pieces) in packets {
        match target.deliver(packet, pieces) {
            Ok(()) => {}
            Err(Undelivered::Drop(reason)) => target.count_drop(reason),
            Err(Undelivered::Broken(e)) => {
                target.count_drop(DropReason::ReceiverBroken);
                error = Some(e);
                break;
            }
        }
    }
    let call = target.publish();
    if error.is_none() && memory.faulted() {
        error = Some(QueueError::MemoryFault);
    }
    (call, error)
}

struct NodeIter<'a> {
    nodes: &'a [Node],
    next: u16,
}

impl Iterator for NodeIter<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let node = self.nodes.get(usize::from(self.next))?;
        self.next = node.next;
        Some(usize::from(node.packet))
    }
}

/// Packets of one flow that follow each other: the flow is looked up and its statistics are written once.
#[derive(Default)]
struct Run {
    flow: Option<Arc<Flow>>,
    key: FlowKey,
    packets: u64,
    bytes: u64,
}

impl Run {
    #[inline]
    fn verdict(
        &mut self,
        flows: &FlowTable,
        cache: &mut ExactCache,
        packet: &mut Packet,
        depth: Depth,
        now_ms: u64,
    ) -> Verdict {
        if self.flow.is_none() || !same(&self.key, &packet.key, depth) {
            self.end(now_ms);
            self.key = packet.key;
            self.flow = cache.get(&packet.key, depth, packet.hash).cloned();
            if self.flow.is_none() {
                self.flow = look_up(flows, packet, depth);
                if let Some(flow) = &self.flow {
                    cache.put(packet.hash, flow);
                }
            }
        }
        let Some(flow) = &self.flow else { return Verdict::Miss };
        self.packets += 1;
        self.bytes += packet.frame_len as u64;
        match *flow.actions {
            [] => Verdict::Drop(DropReason::Policy),
            [Action::Output(to)] => Verdict::To(to),
            _ => Verdict::Many(flow.clone()),
        }
    }

    #[inline]
    fn end(&mut self, now_ms: u64) {
        if let Some(flow) = self.flow.take() {
            flow.stats.add(self.packets, self.bytes, now_ms);
        }
        (self.packets, self.bytes) = (0, 0);
    }
}

/// Asks the classifier, again if a flow came that looks deeper than the packet was classified to.
fn look_up(flows: &FlowTable, packet: &mut Packet, mut depth: Depth) -> Option<Arc<Flow>> {
    loop {
        match flows.lookup(&packet.key, depth) {
            Lookup::Flow(flow) => return Some(flow),
            Lookup::Miss => return None,
            Lookup::Deeper(deeper) => {
                depth = deeper;
                packet.classify(depth);
            }
        }
    }
}

#[inline]
fn same(a: &FlowKey, b: &FlowKey, depth: Depth) -> bool {
    use zerocopy::IntoBytes;
    let n = depth.len();
    a.as_bytes().get(..n) == b.as_bytes().get(..n)
}
