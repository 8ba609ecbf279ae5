//! Packets that do not come from a burst: those that waited for control, and those the switch sends itself.
//!
//! All of this is done by one thread, the one that talks to control. It counts in [`Port::answers`], which nobody else writes, and so it
//! never waits for a burst of the port that a packet came from, nor does that burst wait for it: an answer takes the lock of the
//! queue that the packet goes to, for that one packet, and the leaf lock of the port's upcalls.

use crate::burst::Forwarder;
use crate::deliver::{FRAME_WORK, Undelivered};
use crate::packet::Packet;
use crate::port::Port;
use crate::steps::{Step, Steps, is_one_output};
use crate::upcall::{Left, UPCALL_SLOTS};
use crate::visit::{Load, visit};
use lasthop_flow::{Action, Flow, FlowSpec, InsertError};
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_types::{DropReason, PortCounters, PortId};
use std::sync::Arc;

/// How long a packet waits for its receiver's buffers to be translated, from when it began to wait for control.
const PARKED_MS: u64 = 500;
/// With more packets of its sender's than these waiting it waits half as long for each of them: not long, where there are so many that those of
/// all flows would come to wait in the sender's ring for want of places.
const FEW_PARKED: usize = 4;

/// Something that control has decided, and how far it is carried out. A packet that goes to many, or many that wait for one flow, are
/// more than is done in one go: [`Forwarder::carry_out`] does it step by step.
#[derive(Debug)]
pub struct Order {
    /// Whose packets it is about, if the port is still there.
    port: Option<Arc<Port>>,
    what: What,
    actions: Vec<Action>,
    /// The packet at hand.
    leaving: Option<Leaving>,
    result: Result<bool, InsertError>,
}

#[derive(Debug)]
enum What {
    /// A packet that waits, until it is at hand.
    Packet(u32),
    /// A flow, before it is installed and then once it is; so many of its packets are looked for each time.
    Flow {
        flow: Box<FlowSpec>,
        installed: Option<Arc<Flow>>,
        looks: usize,
        packets: u64,
        bytes: u64,
    },
    /// A flow that is to go.
    Remove(Box<FlowKey>, Box<FlowMask>, bool),
    Nothing,
}

/// A packet on its way.
#[derive(Debug)]
struct Leaving {
    left: Left,
    packet: Box<Packet>,
    steps: Steps,
}

impl Order {
    /// Control's answer to a miss: does `actions` with the waiting packet. Unknown ids are ignored: the packet may have timed out.
    pub fn packet(port: &Arc<Port>, id: u32, actions: Vec<Action>) -> Self {
        Self { port: Some(port.clone()), what: What::Packet(id), actions, leaving: None, result: Ok(false) }
    }

    /// Removes a flow, if it is there; with `tell` it is one of [`Forwarder::ended`] then.
    pub fn removal(key: FlowKey, mask: FlowMask, tell: bool) -> Self {
        let what = What::Remove(key.into(), mask.into(), tell);
        Self { port: None, what, actions: Vec::new(), leaving: None, result: Ok(false) }
    }

    /// It is not carried out any further. A packet that has not been sent anywhere counts as one that nobody answered for.
    pub(crate) fn give_up(&mut self) {
        if let (Some(port), Some(leaving)) = (&self.port, self.leaving.take()) {
            match leaving.steps.ends as u64 {
                0 => port.answers.drops.add(DropReason::MissTimeout, 1),
                n => port.answers.replicated.add(n - 1),
            }
            let stalled = port.upcalls.free(&leaving.left);
            self.result = self.result.map(|goes_on| goes_on | stalled);
        }
    }

    /// The next step sends a packet on, or may.
    pub(crate) fn sends(&self) -> bool {
        match (&self.what, &self.port) {
            (What::Flow { flow, looks: 1.., .. }, Some(port)) => {
                port.upcalls.oldest_for(&flow.key, &flow.mask).is_some()
            }
            (What::Packet(_), Some(_)) => true,
            _ => self.leaving.is_some(),
        }
    }

    /// It is about just this flow.
    pub(crate) fn is_about(&self, key: &FlowKey, mask: &FlowMask) -> bool {
        match &self.what {
            What::Flow { flow, .. } => key.is_of(&flow.key, mask) && flow.mask == *mask,
            What::Remove(k, m, _) => key.is_of(&k.masked(m), mask) && **m == *mask,
            What::Packet(_) | What::Nothing => false,
        }
    }

    /// Once it is carried out: whether a queue of its port had stalled and can be looked at again, or why there is no such flow.
    pub fn result(&self) -> Option<Result<bool, InsertError>> {
        let done = self.leaving.is_none() && matches!(self.what, What::Nothing);
        done.then_some(self.result)
    }
}

impl Forwarder {
    /// Installs a flow. Packets of its port that wait for just this are sent on first, so that those which meet the flow
    /// do not overtake them.
    pub fn flow_order(&mut self, mut flow: FlowSpec) -> Order {
        self.follow_ports();
        let of_port = flow.mask.0.in_port == u32::MAX;
        let port = self.ports.get(flow.key.port()).filter(|_| of_port).cloned();
        flow.key = flow.key.masked(&flow.mask);
        let actions = flow.actions.clone();
        let what = What::Flow { flow: flow.into(), installed: None, looks: UPCALL_SLOTS, packets: 0, bytes: 0 };
        Order { port, what, actions, leaving: None, result: Ok(false) }
    }

    /// One step of what control has decided: at most one delivery of one packet. Returns what it took, as a burst's work is
    /// counted. To be called until there is a [`Order::result`]. `None`: somebody else is on the receiver's queue, and it was not to
    /// `wait` for that, or the receiver's buffers are being translated; nothing was done.
    pub fn carry_out(&mut self, order: &mut Order, wait: bool) -> Option<usize> {
        self.follow_ports();
        let Some(port) = order.port.clone() else {
            self.install_now(order);
            return Some(FRAME_WORK);
        };
        if order.leaving.is_none() {
            self.next_packet(order, &port);
        }
        let Some(leaving) = &mut order.leaving else { return Some(FRAME_WORK) };
        let (counters, packet) = (&port.answers, &mut leaving.packet);
        let mut steps = leaving.steps;
        let Some(piece) = port.upcalls.bytes(&leaving.left, packet) else {
            order.give_up();
            return Some(FRAME_WORK);
        };
        let (step, pieces, now_ns) = (steps.next(&order.actions, port.id), &[piece], self.datapath.now_ns());
        let patience_ms = PARKED_MS >> port.upcalls.len().saturating_sub(FEW_PARKED);
        let young = now_ns / 1_000_000 < leaving.left.since_ms + patience_ms;
        let parks = self.parks && young && is_one_output(&order.actions);
        let done = match step {
            Some(Step::Copy(to)) if packet.mirrored || self.ports.get(to).is_none() => Ok(FRAME_WORK),
            Some(Step::Copy(to)) => {
                let work =
                    self.deliver_one(to, packet, pieces, counters, Some(DropReason::MirrorCopy), (wait, false))?;
                counters.replicated.add(1);
                Ok(work)
            }
            Some(Step::To(to)) => Ok(self.deliver_one(to, packet, pieces, counters, None, (wait, parks))?),
            Some(Step::Part(to, len)) => {
                Ok(self.deliver_one(to, &mut packet.first(len), pieces, counters, None, (wait, false))?)
            }
            Some(Step::Edit(edit)) => packet.edit(pieces, edit).map(|()| FRAME_WORK),
            Some(Step::Aside(action)) => {
                self.aside(action, &mut steps, &port, packet, pieces, now_ns).map(|()| FRAME_WORK)
            }
            Some(Step::Drop(reason)) => {
                counters.drops.add(reason, 1);
                Ok(FRAME_WORK)
            }
            None => Ok(FRAME_WORK),
        };
        let work = done.unwrap_or_else(|reason| {
            steps.fail(reason);
            counters.drops.add(reason, 1);
            FRAME_WORK
        });
        leaving.steps = steps;
        if steps.is_over(&order.actions, port.id) {
            counters.replicated.add(steps.ends.saturating_sub(1) as u64);
            if let Ok(goes_on) = &mut order.result {
                *goes_on |= port.upcalls.free(&leaving.left);
            }
            order.leaving = None;
        }
        self.tell_missed();
        Some(work)
    }

    /// Takes up the next packet, or installs the flow, or finds that all is done.
    fn next_packet(&mut self, order: &mut Order, port: &Arc<Port>) {
        let id = match &mut order.what {
            What::Nothing | What::Remove(..) => return,
            What::Packet(id) => {
                let id = *id;
                order.what = What::Nothing;
                id
            }
            What::Flow { flow, looks, packets, bytes, .. } => {
                // No more than there are places: a guest could fill them as fast as we empty them.
                let next = if *looks > 0 { port.upcalls.oldest_for(&flow.key, &flow.mask) } else { None };
                let Some((id, len)) = next else { return self.install_now(order) };
                (*looks, *packets, *bytes) = (*looks - 1, *packets + 1, *bytes + len as u64);
                id
            }
        };
        let mut packet = Box::<Packet>::default();
        order.leaving =
            port.upcalls.take(id, &mut packet).map(|left| Leaving { left, packet, steps: Steps::default() });
    }

    /// The flow comes into force, and then those that were on their way to wait meanwhile are looked for. Or that was done.
    fn install_now(&mut self, order: &mut Order) {
        if let What::Remove(key, mask, tell) = &order.what {
            let gone = self.datapath.flows().remove(key, mask);
            self.ended.extend(gone.filter(|_| *tell));
            order.what = What::Nothing;
        }
        let What::Flow { flow, installed, looks, packets, bytes } = &mut order.what else { return };
        let now_ms = self.datapath.now_ms();
        if let Some(flow) = installed {
            if *packets > 0 {
                flow.stats.add(self.writer, *packets, *bytes, now_ms);
            }
            order.what = What::Nothing;
            return;
        }
        match self.datapath.flows().insert(FlowSpec::clone(flow), now_ms) {
            Ok(flow) => (*installed, *looks) = (Some(flow), UPCALL_SLOTS),
            Err(error) => (order.what, order.result) = (What::Nothing, Err(error)),
        }
    }

    /// Drops packets of `port` that have waited since before `before_ms`; how many. If there were any, the port's queues
    /// may have stalled and can be looked at again.
    pub fn expire(&mut self, port: &Port, before_ms: u64) -> usize {
        let mut expired = 0;
        while let Some(id) = port.upcalls.older_than(before_ms) {
            expired += 1;
            if let Some(left) = port.upcalls.take(id, &mut Packet::default()) {
                port.answers.drops.add(DropReason::MissTimeout, 1);
                port.upcalls.free(&left);
            }
        }
        expired
    }

    /// Returns what it took; `None` if somebody else is on the queue and it is not to `wait`, or if it `parks` while the receiver's buffers are
    /// being translated.
    fn deliver_one(
        &mut self,
        to: PortId,
        packet: &mut Packet,
        pieces: &[GuestSlice<'_>],
        counters: &PortCounters,
        copy: Option<DropReason>,
        (wait, parks): (bool, bool),
    ) -> Option<usize> {
        let Some(port) = self.ports.get(to) else {
            counters.drops.add(DropReason::NoPort, 1);
            return Some(FRAME_WORK);
        };
        let Some(queue) =
            port.queue_to_guest(packet.steering_hash(pieces), packet.port).or(port.queues.first().map(|q| &**q))
        else {
            return Some(FRAME_WORK);
        };
        let guard = if wait { queue.lock() } else { queue.try_lock()? };
        let work = visit(&self.datapath, port, queue, guard, Load { packets: 1, frames: 1, copy }, |target, now_ns| {
            target.skip_if_nothing(now_ns);
            let result = target.deliver(packet, pieces, false);
            target.note_nothing(now_ns);
            if parks && matches!(result, Err(Undelivered::NoBuffers)) && target.is_translated_anew() {
                return None;
            }
            target.settle(result);
            Some(target.work() + FRAME_WORK)
        });
        work.unwrap_or(Some(FRAME_WORK))
    }

    /// Has the switch itself send a frame (without virtio-net header) as if it came from `port`: it waits for control
    /// like any first packet. False if there is no room for it to wait.
    pub fn inject(&mut self, port: &Port, frame: &[u8], now_ms: u64) -> bool {
        let Ok(memory) = GuestMemory::anonymous(4096) else { return false };
        let Ok(piece) = memory.slice(0, frame.len()) else { return false };
        piece.write(0, frame);
        let mut packet = Packet::default();
        let read = packet.read_frame(&piece, port.id);
        packet.extract(Depth::Full);
        let enqueued = read.is_ok() && port.upcalls.enqueue(&packet, &[piece], now_ms).is_ok();
        if enqueued {
            port.answers.packets.add(1);
            port.answers.bytes.add(frame.len() as u64);
            port.answers.missed.add(1);
            self.datapath.note_missed();
        }
        enqueued
    }
}
