//! Actions carried out on packets of a burst, into its plan; on packets that waited for control [`Forwarder::carry_out`] does it, one at a
//! time. What each action comes to says [`Step`].

use crate::burst::{Burst, Forwarder};
use crate::deliver::FRAME_WORK;
use crate::packet::Packet;
use crate::plan::{COPIES, bit};
use crate::port::Port;
use crate::steps::{Step, Steps, is_one_output};
use lasthop_flow::Action;
use lasthop_guestmem::GuestSlice;
use lasthop_types::{DropReason, PortId};
use lasthop_virtqueue::Queue;

impl Forwarder {
    /// Carries all actions of a flow out on a packet. Returns how often it is delivered or dropped, or
    /// what takes as long. Most lists deliver and drop: that is a loop of its own, as floods take it (an edit looked for in
    /// it costs 20 instructions for each output).
    pub(crate) fn act(&mut self, burst: &Burst<'_, '_>, packet: usize, actions: &[Action]) -> usize {
        for (n, action) in actions.iter().enumerate() {
            match Step::of(action, burst.port.id) {
                Step::To(to) => self.output(burst, packet, to, false),
                Step::Drop(reason) => self.drop(burst, packet, reason),
                _ => return self.act_on(burst, packet, actions, Steps { done: n, ends: n, failed: false }),
            }
        }
        self.plan.set_done(packet);
        burst.queue.counters.replicated.add((actions.len() as u64).saturating_sub(1));
        actions.len()
    }

    /// The rest of [`Forwarder::act`] from the first action on that does neither.
    #[inline(never)]
    fn act_on(&mut self, burst: &Burst<'_, '_>, i: usize, actions: &[Action], mut steps: Steps) -> usize {
        let may_wait = is_one_output(actions);
        let (mut planned, mut copies) = (steps.ends > 0, 0);
        while let Some(step) = steps.next(actions, burst.port.id) {
            // All planned copies are of one header: those before it changes are made now.
            if matches!(step, Step::Edit(_) | Step::Part(..)) && std::mem::take(&mut planned) {
                self.deliver(burst);
            }
            let (Some(of), Some(chain)) = (self.packets.get_mut(i), burst.chains.list.get(i)) else { break };
            let done = match step {
                Step::To(to) => {
                    self.output(burst, i, to, may_wait);
                    planned = true;
                    continue;
                }
                Step::Drop(reason) => {
                    self.drop(burst, i, reason);
                    continue;
                }
                Step::Part(to, len) => {
                    let part = of.first(len);
                    let whole = std::mem::replace(of, part);
                    self.output(burst, i, to, false);
                    self.deliver(burst);
                    self.packets.get_mut(i).into_iter().for_each(|of| of.clone_from(&whole));
                    continue;
                }
                // It was copied when it was looked at before, or nobody is there to get a copy.
                Step::Copy(to) if burst.ahead.looked_at & bit(i) != 0 || self.ports.get(to).is_none() => continue,
                Step::Copy(to) => {
                    self.plan_for(burst, i, to, false, COPIES);
                    (planned, copies) = (true, copies + 1);
                    continue;
                }
                Step::Edit(edit) => of.edit(&burst.chains.pieces(chain), edit),
                Step::Aside(action) => self.packets.get(i).map_or(Ok(()), |of| {
                    self.aside(action, &mut steps, burst.port, of, &burst.chains.pieces(chain), burst.now_ns)
                }),
            };
            if let Err(reason) = done {
                steps.fail(reason);
                self.drop(burst, i, reason);
            }
        }
        if !may_wait {
            self.plan.set_done(i);
        }
        burst.queue.counters.replicated.add((steps.ends as u64).saturating_sub(1) + copies as u64);
        // What is no delivery takes as long as a short one does, beside the bytes.
        let (len, delivered) = (self.packets.get(i).map_or(0, |of| of.frame_len), steps.ends + copies);
        delivered + actions.len().saturating_sub(delivered) * FRAME_WORK / (FRAME_WORK + len)
    }

    /// What an action comes to that neither changes the packet nor delivers it; or why it drops it. `pieces` is what the
    /// packet was read from.
    pub(crate) fn aside(
        &self,
        action: &Action,
        steps: &mut Steps,
        port: &Port,
        of: &Packet,
        pieces: &[GuestSlice<'_>],
        now_ns: u64,
    ) -> Result<(), DropReason> {
        match *action {
            Action::LimitFlood if !port.floods.admit(of.frame_len, now_ns) => return Err(DropReason::Storm),
            Action::Meter(id) if self.ports.meters.get(&id).is_some_and(|m| !m.admit(of.frame_len, now_ns)) => {
                return Err(DropReason::Meter);
            }
            Action::ToControl(user) if !port.upcalls.copy(of, pieces, user) => return Err(DropReason::MissQueueFull),
            Action::ToControl(_) => self.missed.set(true),
            Action::Sample(probability, actions) => {
                // Knuth's multiplier (MMIX): the upper half is good, and nobody's secret.
                self.random.set(self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                if probability == 0 || (self.random.get() >> 32) as u32 > probability {
                    steps.done += usize::from(actions);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Plans one delivery; the only one of its packet if it `may_wait`.
    #[inline]
    pub(crate) fn output(&mut self, burst: &Burst<'_, '_>, packet: usize, to: PortId, may_wait: bool) {
        self.plan_for(burst, packet, to, may_wait, 0);
    }

    /// The same. With [`COPIES`] as `copy` (else 0) it is a copy for a mirror, to a port that is there: whatever becomes of that, the packet
    /// is not done by it.
    // What outputs make of it takes what it takes without mirrors.
    #[inline(always)]
    fn plan_for(&mut self, burst: &Burst<'_, '_>, packet: usize, to: PortId, may_wait: bool, copy: u16) {
        self.plan.repeat.destination = None;
        let Some(port) = self.ports.get(to) else { return self.drop(burst, packet, DropReason::NoPort) };
        // Connections between the same MAC addresses share a flow but not a queue, so the next packet has to be asked for anew.
        let multi_queue = port.is_multi_queue();
        let hash = match (self.packets.get_mut(packet), burst.chains.list.get(packet)) {
            (Some(p), Some(chain)) if multi_queue => p.steering_hash(&burst.chains.pieces(chain)),
            _ => 0,
        };
        let queue = port.queue_to_guest(hash, burst.port.id).map_or(0, Queue::index) | copy;
        if may_wait && self.plan.is_waited_for(to, queue) {
            return;
        }
        let only = !multi_queue && copy == 0;
        if !self.plan.add(packet, may_wait, to, queue, only) {
            self.deliver(burst);
            self.plan.add(packet, may_wait, to, queue, only);
        }
    }

    /// Counts a packet as dropped.
    pub(crate) fn drop(&mut self, burst: &Burst<'_, '_>, packet: usize, reason: DropReason) {
        burst.queue.counters.drops.add(reason, 1);
        self.plan.set_done(packet);
    }
}
