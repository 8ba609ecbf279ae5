//! Visits to receivers' rings, the only way that packets get there: a ring is locked, filled, published and notified once.

use crate::burst::{Burst, Forwarder, fail};
use crate::datapath::Datapath;
use crate::deliver::{Target, Undelivered};
use crate::packet::Packet;
use crate::pass::Passed;
use crate::plan::{COPIES, Destination, Plan};
use crate::port::Port;
use lasthop_frame::Offload;
use lasthop_types::DropReason;
use lasthop_virtqueue::{Queue, QueueGuard};
use std::sync::Arc;

/// What a visit brings to a ring.
pub(crate) struct Load {
    /// Packets that are counted as dropped if the ring is not started.
    pub(crate) packets: u64,
    /// Frames to make ready for: as many as packets, or with those that will be passed on.
    pub(crate) frames: usize,
    /// They are copies for a mirror: why each is dropped that does not get there.
    pub(crate) copy: Option<DropReason>,
}

/// Has `fill` deliver to a ring whose lock is held; it is told what time it is. Then its driver is shown all of it at once, is interrupted, now
/// or when its batch is full, and a ring that broke is stopped. `None` if the ring is not started. How long it took, to when the driver was shown
/// it, counts at the ring.
#[inline]
pub(crate) fn visit<R>(
    datapath: &Datapath,
    port: &Arc<Port>,
    queue: &Queue,
    mut guard: QueueGuard<'_>,
    load: Load,
    fill: impl FnOnce(&mut Target<'_>, u64) -> R,
) -> Option<R> {
    let Some(started) = guard.started() else {
        // While the lock is held: these counters are added to by its holder alone.
        queue.counters.drops.add(load.copy.unwrap_or(DropReason::PortDown), load.packets);
        return None;
    };
    let memory = started.memory.clone();
    let short = load.copy.unwrap_or(DropReason::NoBuffers);
    let mut target = Target::new(started, &memory, port.mtu(), &queue.counters, load.frames, short);
    let begun_ns = datapath.now_ns();
    if port.gets.until(begun_ns).is_some() {
        target.refuse();
    }
    let result = fill(&mut target, begun_ns);
    // What was written of a packet that did not arrive whole was got, too, and its sender may send many like it.
    let got = [target.packets + target.beyond[0], target.bytes + target.beyond[1]];
    port.gets.charge(got[0], got[1], begun_ns);
    let (shown, wrote) = (target.packets as u32, got[0] > 0);
    let (call, broken) = target.finish();
    drop(target);
    if wrote {
        queue.counters.busy_ns.add(datapath.now_ns().saturating_sub(begun_ns));
    }
    if port.interrupts_now(queue, shown.max(u32::from(call)), call) {
        guard.call();
    }
    if let Some(error) = broken {
        fail(datapath, port, queue.index(), &mut guard, error);
    }
    Some(result)
}

impl Forwarder {
    /// Makes the deliveries planned so far, and passes on what [`Repeat`](crate::repeat::Repeat) says; returns how many those were. Each
    /// receiver's ring is visited once.
    pub(crate) fn deliver(&mut self, burst: &Burst<'_, '_>) -> Passed {
        let (mut n, mut passed) = (0, Passed::default());
        self.plan.wasted_work = 0;
        while let Some(destination) = self.plan.destination(n) {
            let passes_on = self.plan.repeat.most > 0 && self.plan.repeat.destination == Some(n);
            n += 1;
            let Some(port) = self.ports.get(destination.port) else { continue };
            let copy = (destination.queue & COPIES != 0).then_some(DropReason::MirrorCopy);
            self.receiver = if copy.is_some() { self.receiver } else { destination.port };
            let Some(queue) = port.queues.get(usize::from(destination.queue & !COPIES)) else { continue };
            let planned = destination.packets.count_ones();
            let frames = if passes_on { burst.chains.list.len() } else { planned as usize };
            let load = Load { packets: planned.into(), frames, copy };
            let (done, plan, packets) = (self.plan.done, &mut self.plan, &*self.packets);
            let filled = visit(&self.datapath, port, queue, queue.lock(), load, |target, _| {
                fill(plan, packets, &destination, target, burst, passes_on)
            });
            match filled {
                Some(these) if passes_on => passed = these,
                Some(_) => {}
                None => self.plan.done |= destination.packets,
            }
            if copy.is_some() {
                self.plan.done = done;
            }
        }
        self.plan.clear();
        passed
    }
}

/// Delivers one receiver's packets in their order, and if it `passes_on` those like the last one behind them.
///
/// Three loops write packets, because each does without something that the next one needs. In packets a second 1 > 2 > 3; instructions are of
/// 64 bytes on split rings, for the writing alone:
///
/// 1. [`Target::pass`], 72, with the reading and comparing in it: straight from the sender's buffer, without a snapshot and without a plan. Takes for granted
///    that both sides have a header of 12 bytes.
/// 2. [`Target::deliver_at_once`], 96: the snapshot, and the payload behind it. Takes for granted a packet that asks for nothing, in one
///    piece, for a buffer of one piece that is at hand.
/// 3. [`Target::deliver`]: one packet in any number of pieces and buffers, with offloads, in segments.
///
/// Each ends in front of the packet that it cannot write, and that one is written by the next: 1 is for packets that nothing is planned for, so
/// what it leaves is classified first.
#[inline]
fn fill(
    plan: &mut Plan,
    packets: &[Packet],
    destination: &Destination,
    target: &mut Target<'_>,
    burst: &Burst<'_, '_>,
    passes_on: bool,
) -> Passed {
    target.begin(burst);
    target.stock();
    let mut waits = plan.is_waited_for(destination.port, destination.queue);
    let mut left = destination.packets;
    while left != 0 {
        if !waits && !target.is_broken() {
            let done = target.deliver_at_once(packets, burst.chains, left);
            plan.done |= done;
            left &= !done;
            if left == 0 {
                break;
            }
        }
        let i = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        // What may wait does not overtake what waits.
        if !(waits && plan.may_wait(i)) {
            waits |= !deliver_or_wait(plan, packets, destination, target, burst, i);
        }
    }
    let mut passed = Passed::default();
    if passes_on && !waits && !target.is_broken() {
        passed = target.pass(burst.chains, &plan.repeat);
        plan.done |= plan.repeat.note(passed);
    }
    plan.wasted_work += target.wasted_work();
    target.end(burst, waits);
    passed
}

/// Delivers packet `i`, or drops it. False if it waits instead, for buffers or for its turn, and with it what is behind it for
/// this receiver.
fn deliver_or_wait(
    plan: &mut Plan,
    packets: &[Packet],
    destination: &Destination,
    target: &mut Target<'_>,
    burst: &Burst<'_, '_>,
    i: usize,
) -> bool {
    let (Some(packet), Some(chain)) = (packets.get(i), burst.chains.list.get(i)) else { return true };
    let (pieces, may_wait) = (&*burst.chains.pieces(chain), plan.may_wait(i) && destination.queue & COPIES == 0);
    let waits_its_turn = |target: &Target<'_>, plan: &mut Plan| {
        let waits = may_wait
            && target.has_done_enough()
            && !target.is_broken()
            && plan.wait_for(destination.port, destination.queue);
        plan.put_off |= waits;
        waits
    };
    if waits_its_turn(target, plan) {
        return false;
    }
    let mut result = target.deliver(packet, pieces, may_wait);
    if let Err(Undelivered::NoBuffers) = result
        && may_wait
    {
        target.is_short = true;
        if waits_its_turn(target, plan) {
            return false;
        }
        // One that may not get more is as quick as it may be: those that have nothing for others wait for it.
        let slow = !target.is_refused() && target.is_slow(burst.now_ns, burst.pace_ns);
        if burst.patient && !slow && plan.wait_for(destination.port, destination.queue) {
            plan.short = true;
            plan.limited |= target.is_refused();
            plan.translated |= target.is_translated_anew();
            return false;
        }
        if let Offload::Gso(_) = packet.offload {
            result = target.deliver(packet, pieces, false);
        }
    }
    target.settle(result);
    plan.set_done(i);
    true
}
