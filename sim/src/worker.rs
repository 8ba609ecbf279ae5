//! A port's thread: takes bursts from its guest, copies a bounded number for each receiver, hands over the rest.

use crate::guest::{OWN, share};
use crate::sched::TaskKind;
use crate::world::{Event, Work, World};
use lasthop_schedule::policy::{Interrupt, Vm};
use std::collections::VecDeque;

/// Packets taken before they are delivered.
const BURST: usize = 64;
/// Bytes of the longest burst of the switch.
const WHOLE: u32 = 320 << 10;

pub(crate) struct Worker {
    pub task: usize,
    /// It looks at its guest's ring though it was not kicked.
    pub looks: bool,
    /// Its guest's receive timer is over.
    pub timer: bool,
    burst: usize,
    delivers: bool,
    /// Receivers of the burst, and how many bytes it copies for each before it asks for help.
    targets: VecDeque<(usize, u32)>,
}

impl Worker {
    pub fn new(task: usize) -> Self {
        Self { task, looks: false, timer: false, burst: 0, delivers: false, targets: VecDeque::new() }
    }
}

impl World {
    /// What a port's thread does next.
    pub(crate) fn worker_next(&mut self, n: usize, core: usize) -> Option<(f64, Work)> {
        if std::mem::take(&mut self.workers[n].timer) {
            return Some((self.setup.costs.copy, Work::Timer));
        }
        loop {
            let worker = &mut self.workers[n];
            if !worker.delivers && worker.burst < BURST && self.guests[n].can_switch() {
                worker.burst += 1;
                worker.looks = false;
                return self.take_to_switch(n);
            }
            worker.burst = 0;
            let Some(&(to, own)) = worker.targets.front() else {
                if std::mem::take(&mut worker.delivers) {
                    continue;
                }
                // A timer or a halt woke it for a ring that somebody else had emptied.
                if std::mem::take(&mut worker.looks) && self.guests[n].from_guest.is_empty() {
                    self.emptied(n);
                }
                return None;
            };
            worker.delivers = true;
            let preemptive = self.setup.mechanisms.preemptive_copy;
            if !preemptive && to != n {
                worker.targets.pop_front();
                self.guests[to].fetch = true;
                self.interrupt(to);
                continue;
            }
            let streams = self.guests[n].arrivals.expects_more(&self.hysteresis);
            let copies = self.guests[to].can_copy();
            if copies && own > 0 {
                let used = self.guests[to].queue.front().map_or(0, share);
                self.workers[n].targets[0].1 = own.saturating_sub(used);
                return self.take_to_copy(to, core);
            }
            // Helpers take the rest, and what is expected to follow.
            if preemptive && (copies || streams) && self.offload(to) {
                self.helper_watches(to, n);
            } else if copies {
                self.workers[n].targets[0].1 = u32::MAX;
                continue;
            }
            self.workers[n].targets.pop_front();
            self.rescue_later(to);
        }
    }

    /// A helper that was asked to copy for `to` looks at the ring of `from` too.
    fn helper_watches(&mut self, to: usize, from: usize) {
        if let Some(core) = self.guests[to].posted
            && !self.helpers[core].watches.contains(&from)
        {
            self.helpers[core].watches.push(from);
            self.guests[from].watchers.push(core);
        }
    }

    /// A packet of its burst waits for `to`.
    pub(crate) fn worker_switched(&mut self, core: usize, to: usize) {
        let Some(TaskKind::Worker(n)) = self.cores[core].running.map(|t| self.tasks[t].kind) else { return };
        let targets = &mut self.workers[n].targets;
        if targets.iter().all(|(other, _)| *other != to) {
            targets.push_back((to, if self.setup.mechanisms.whole_burst { WHOLE } else { OWN }));
        }
    }

    /// Its guest's receive timer is over.
    pub(crate) fn worker_timer(&mut self, core: usize) {
        let Some(TaskKind::Worker(n)) = self.cores[core].running.map(|t| self.tasks[t].kind) else { return };
        let now_ns = self.clock.now_ns();
        let guest = &mut self.guests[n];
        guest.receive_due_ns = None;
        let due = guest.receive.due(&self.receive_batch, Vm::Blocked, now_ns) == Interrupt::Now;
        if due && !guest.polls && !guest.to_guest.is_empty() {
            self.interrupt(n);
        }
    }

    /// If packets still wait for this guest after a while, its own port's thread copies them: whoever was on it may have
    /// lost its core.
    pub(crate) fn rescue_later(&mut self, n: usize) {
        if self.workers.is_empty() || self.guests[n].queue.is_empty() && self.guests[n].posted.is_none() {
            return;
        }
        if !std::mem::replace(&mut self.guests[n].rescue, true) {
            let at_ns = self.clock.now_ns() + lasthop_schedule::policy::Batch::default().period_ns;
            self.clock.at(at_ns, Event::Rescue(n));
        }
    }

    pub(crate) fn rescue(&mut self, n: usize) {
        self.guests[n].rescue = false;
        self.copy_by_own(n);
        self.rescue_later(n);
    }

    /// A guest has learned that packets wait to be copied for it.
    pub(crate) fn fetch(&mut self, n: usize) {
        self.debt_ns += self.setup.costs.signal;
        self.copy_by_own(n);
        self.rescue_later(n);
    }

    /// Has the guest's own port's thread copy what waits for it.
    fn copy_by_own(&mut self, n: usize) {
        if self.guests[n].can_copy() {
            self.workers[n].targets.push_back((n, u32::MAX));
            self.wake(self.workers[n].task);
        }
    }
}
