//! What every thread of the switch does, whoever it is: switching, copying, notifying, handing over. The decisions are
//! the policy's.

use crate::random::hash;
use crate::setup::Carrier;
use crate::world::{Event, Packet, WAITING, Work, World};
use lasthop_schedule::policy::{Core, Interrupt, Kicks, Vm, choose_core};

impl World {
    /// Takes a packet of this guest's ring to find its destination.
    pub(crate) fn take_to_switch(&mut self, n: usize) -> Option<(f64, Work)> {
        let guest = &mut self.guests[n];
        let packet = guest.from_guest.pop_front()?;
        guest.from_locked = true;
        Some((self.setup.costs.switch, Work::Switch(packet)))
    }

    /// Takes a packet that waits for this guest to copy it.
    pub(crate) fn take_to_copy(&mut self, n: usize, core: usize) -> Option<(f64, Work)> {
        let guest = &mut self.guests[n];
        let packet = guest.queue.pop_front()?;
        guest.to_locked = true;
        Some((self.setup.costs.copy + self.copy_ns(&packet, core), Work::Copy(packet)))
    }

    /// A helper has stopped in the middle of something: it was not done.
    pub(crate) fn abandon(&mut self, work: Work) {
        match work {
            Work::Switch(packet) => {
                let guest = &mut self.guests[packet.from];
                guest.from_locked = false;
                guest.from_guest.push_front(packet);
            }
            Work::Copy(packet) => {
                let guest = &mut self.guests[packet.to];
                guest.to_locked = false;
                guest.queue.push_front(packet);
            }
            _ => {}
        }
    }

    pub(crate) fn switched(&mut self, core: usize, packet: Packet) {
        let (from, to) = (packet.from, packet.to);
        self.guests[from].from_locked = false;
        self.guests[from].found += 1;
        self.enqueue_for(to, packet);
        if self.guests[from].from_guest.is_empty() {
            self.emptied(from);
        }
        match (self.setup.carrier, self.tasks[self.cores[core].running.unwrap_or(core)].is_helper()) {
            (Carrier::HyperSwitch, _) => self.tell_of_queue(to),
            (_, true) => self.helper_copies(core, to),
            _ => self.worker_switched(core, to),
        }
    }

    /// Puts a packet into the queue of its receiver; the oldest goes when there are too many.
    pub(crate) fn enqueue_for(&mut self, to: usize, packet: Packet) {
        let queue = &mut self.guests[to].queue;
        queue.push_back(packet);
        if queue.len() > WAITING
            && let Some(oldest) = queue.pop_front()
        {
            self.stats.dropped += 1;
            self.completed_for(oldest.from);
        }
    }

    /// A guest's ring is empty: what it is asked to do next.
    pub(crate) fn emptied(&mut self, n: usize) {
        let now_ns = self.clock.now_ns();
        // In the Hyper-Switch it is the guest that does this, before it blocks.
        let looks = self.setup.carrier == Carrier::Lasthop && self.setup.mechanisms.before_blocking;
        let vm = if looks { self.vm(n) } else { Vm::Unknown };
        let guest = &mut self.guests[n];
        let found = std::mem::take(&mut guest.found);
        if found > 0 {
            guest.arrivals.found(found, now_ns);
        }
        guest.unkicked = 0;
        match guest.transmit.emptied(&self.transmit_batch, found, vm, now_ns) {
            Kicks::Next => guest.kick_after = 1,
            Kicks::Batch { packets, due_ns } => {
                guest.kick_after = u32::from(packets);
                if !std::mem::replace(&mut guest.transmit_event, true) {
                    self.clock.at(due_ns, Event::Transmit(n));
                }
            }
        }
    }

    /// A transmit timer may be over.
    pub(crate) fn transmit_timer(&mut self, n: usize) {
        let now_ns = self.clock.now_ns();
        let guest = &mut self.guests[n];
        guest.transmit_event = false;
        let Some(due_ns) = guest.transmit.due_ns else { return };
        if due_ns > now_ns {
            guest.transmit_event = true;
            return self.clock.at(due_ns, Event::Transmit(n));
        }
        match self.setup.carrier {
            Carrier::HyperSwitch if guest.from_guest.is_empty() => self.emptied(n),
            Carrier::HyperSwitch => {
                guest.enter = true;
                self.prod(n);
            }
            _ => {
                self.workers[n].looks = true;
                self.wake(self.workers[n].task);
            }
        }
    }

    /// Hyper-Switch: a packet waits to be copied to this guest (PhD fig. 4.4).
    fn tell_of_queue(&mut self, to: usize) {
        let (vm, now_ns) = (self.vm(to), self.clock.now_ns());
        match self.guests[to].receive.delivered(&self.receive_batch, 1, vm, now_ns) {
            Interrupt::Now => {
                self.guests[to].receive_due_ns = None;
                self.bring_in(to);
            }
            Interrupt::At(due_ns) if self.guests[to].receive_due_ns.is_none() => {
                self.guests[to].receive_due_ns = Some(due_ns);
                self.clock.at(due_ns, Event::Receive(to));
                self.offload(to);
            }
            _ => {
                self.offload(to);
            }
        }
    }

    /// Hyper-Switch: the guest enters the hypervisor, where it copies what waits for it.
    fn bring_in(&mut self, n: usize) {
        let guest = &mut self.guests[n];
        if std::mem::replace(&mut guest.enter, true) {
            return;
        }
        self.stats.interrupts += 1;
        self.debt_ns += self.setup.costs.signal;
        self.prod(n);
    }

    /// A guest is interrupted.
    pub(crate) fn interrupt(&mut self, n: usize) {
        let guest = &mut self.guests[n];
        if std::mem::replace(&mut guest.interrupted, true) {
            return;
        }
        self.stats.interrupts += 1;
        self.debt_ns += self.setup.costs.signal;
        self.prod(n);
    }

    /// A receive timer may be over.
    pub(crate) fn receive_timer(&mut self, n: usize) {
        let now_ns = self.clock.now_ns();
        if self.guests[n].receive_due_ns != Some(now_ns) {
            return;
        }
        if self.setup.carrier == Carrier::Lasthop {
            self.workers[n].timer = true;
            return self.wake(self.workers[n].task);
        }
        self.guests[n].receive_due_ns = None;
        if self.guests[n].receive.due(&self.receive_batch, Vm::Blocked, now_ns) == Interrupt::Now {
            self.bring_in(n);
        }
    }

    pub(crate) fn copied(&mut self, core: usize, mut packet: Packet) {
        packet.cache = self.setup.host.cache(core);
        let to = packet.to;
        self.guests[to].to_locked = false;
        self.guests[to].to_guest.push_back(packet);
        self.completed_for(packet.from);
        if self.tasks[self.cores[core].running.unwrap_or(core)].is_helper() {
            self.stats.copied_by_helpers += 1;
            self.helper_copied(core, &packet);
        }
        if self.guest_on(core) != Some(to) {
            self.published(to);
        }
    }

    /// Somebody else has put a packet into a guest's ring.
    pub(crate) fn published(&mut self, to: usize) {
        let (vm, now_ns) = (self.vm(to), self.clock.now_ns());
        let guest = &mut self.guests[to];
        let told = guest.polls || guest.interrupted || guest.enter;
        let hyper = self.setup.carrier == Carrier::HyperSwitch;
        if told || hyper && guest.receive_due_ns.is_some() && matches!(vm, Vm::Running(_)) {
            return;
        }
        match guest.receive.delivered(&self.receive_batch, 1, vm, now_ns) {
            Interrupt::Now => {
                guest.receive_due_ns = None;
                self.interrupt(to);
            }
            Interrupt::At(due_ns) if guest.receive_due_ns.is_none() => {
                guest.receive_due_ns = Some(due_ns);
                self.clock.at(due_ns, Event::Receive(to));
            }
            _ => {}
        }
    }

    /// Hands what waits for this guest to an idle core; false if there is none.
    pub(crate) fn offload(&mut self, to: usize) -> bool {
        // A helper that has lost its core does not come back soon.
        if self.guests[to].posted.is_some_and(|core| self.is_idle(core)) {
            return true;
        }
        let Some(core) = self.choose(to) else { return false };
        self.guests[to].posted = Some(core);
        self.helpers[core].mailbox.push_back(to);
        self.rouse(core);
        true
    }

    /// The core that the policy chooses to copy for this guest.
    fn choose(&self, to: usize) -> Option<usize> {
        let on = &self.setup.mechanisms;
        if self.setup.dedicated.is_some() || !on.helpers {
            return self.setup.dedicated;
        }
        let now_ns = self.clock.now_ns();
        let cores = (0..self.cores.len()).map(|n| Core {
            idle: on.vm_state.then(|| self.is_idle(n)),
            sibling_busy: on.cache && on.vm_state && self.others_of_unit_run(n),
            cache: self.setup.host.cache(n),
            backs_off: on.back_off && self.helpers[n].back_off.holds(now_ns),
        });
        let near = (on.cache && on.vm_state).then(|| self.cache_of(to));
        choose_core(cores, near, hash(to as u64))
    }
}
