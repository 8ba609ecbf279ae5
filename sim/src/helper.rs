//! A core's helper (PhD fig. 4.5): copies what it was asked to, then looks at rings, then waits a little, then sleeps.

use crate::setup::Carrier;
use crate::world::{Packet, Work, World};
use lasthop_schedule::policy::BackOff;
use std::collections::VecDeque;

/// So many rings a helper looks at, those whose packets it has copied last; the papers' looks at all.
const WATCHED: usize = 32;

#[derive(Default)]
pub(crate) struct Helper {
    /// Guests for which it has been asked to copy.
    pub mailbox: VecDeque<usize>,
    /// Guests whose rings it looks at.
    pub watches: Vec<usize>,
    next: usize,
    pub back_off: BackOff,
    /// Until when it looks.
    until_ns: Option<u64>,
    /// Where it found something last.
    last: Option<usize>,
}

impl World {
    fn watches_everything(&self) -> bool {
        self.setup.carrier == Carrier::HyperSwitch || self.setup.mechanisms.watch_all
    }

    /// Makes a helper look into its mailbox.
    pub(crate) fn rouse(&mut self, core: usize) {
        if self.polling.contains(&core) {
            return self.found_by_polling(core, self.setup.costs.poll_ring);
        }
        if self.tasks[core].state == crate::sched::State::Sleeping {
            self.stats.helper_wakes += 1;
            self.debt_ns += self.setup.costs.signal;
            self.wake(core);
        }
    }

    /// A packet is in this guest's ring: a helper that looks at it finds it.
    pub(crate) fn show_to_helpers(&mut self, n: usize) {
        let cache = self.cache_of(n);
        let near = |core: &&usize| self.setup.host.cache(**core) == cache;
        let found = if self.watches_everything() {
            self.polling.iter().find(near).or(self.polling.first())
        } else {
            self.guests[n].watchers.iter().find(|core| self.polling.contains(core))
        };
        if let Some(&core) = found {
            let rings = self.helpers[core].watches.len() as f64;
            self.found_by_polling(core, self.setup.costs.poll_ring * (rings / 2.0).max(1.0));
        }
    }

    /// What a helper does next.
    pub(crate) fn helper_next(&mut self, core: usize) -> Option<(f64, Work)> {
        self.polling.remove(&core);
        while let Some(&to) = self.helpers[core].mailbox.front() {
            if self.guests[to].can_copy() {
                self.found_something(core, to);
                return self.take_to_copy(to, core);
            }
            // Nothing left, or somebody else is on it.
            self.helpers[core].mailbox.pop_front();
            self.was_told(core, to);
        }
        let helper = &self.helpers[core];
        let count = helper.watches.len();
        let nth = |i: &usize| helper.watches[(helper.next + i) % count];
        if let Some(i) = (0..count).find(|i| self.guests[nth(i)].can_switch()) {
            let from = nth(&i);
            self.helpers[core].next = (self.helpers[core].next + i) % count;
            self.found_something(core, from);
            return self.take_to_switch(from);
        }
        let now_ns = self.clock.now_ns();
        if self.setup.dedicated == Some(core) {
            self.polling.insert(core);
            return Some((f64::INFINITY, Work::Poll));
        }
        let patience_ns = match self.helpers[core].last {
            Some(n) => self.hysteresis.patience_ns(&self.guests[n].arrivals, u64::MAX),
            None => self.hysteresis.base_ns,
        };
        let until_ns = *self.helpers[core].until_ns.get_or_insert(now_ns + patience_ns);
        if now_ns < until_ns {
            self.polling.insert(core);
            return Some(((until_ns - now_ns) as f64, Work::Poll));
        }
        self.forget_work(core);
        None
    }

    /// A helper goes to sleep.
    pub(crate) fn forget_work(&mut self, core: usize) {
        self.helpers[core].until_ns = None;
        self.helpers[core].last = None;
        while let Some(to) = self.helpers[core].mailbox.pop_front() {
            self.was_told(core, to);
        }
        if !self.watches_everything() {
            for n in std::mem::take(&mut self.helpers[core].watches) {
                self.guests[n].watchers.retain(|c| *c != core);
            }
        }
    }

    /// A helper is no longer on what it was asked to copy.
    fn was_told(&mut self, core: usize, to: usize) {
        if self.guests[to].posted == Some(core) {
            self.guests[to].posted = None;
        }
        self.rescue_later(to);
    }

    fn found_something(&mut self, core: usize, n: usize) {
        self.helpers[core].until_ns = None;
        self.helpers[core].last = Some(n);
    }

    /// A helper has switched a packet: it copies it too.
    pub(crate) fn helper_copies(&mut self, core: usize, to: usize) {
        if self.guests[to].posted.is_none() {
            self.guests[to].posted = Some(core);
            self.helpers[core].mailbox.push_back(to);
        }
    }

    /// A helper has copied a packet: it looks at the rings of both ends from now on.
    pub(crate) fn helper_copied(&mut self, core: usize, packet: &Packet) {
        if self.watches_everything() {
            return;
        }
        for n in [packet.from, packet.to] {
            let helper = &mut self.helpers[core];
            if helper.watches.contains(&n) {
                continue;
            }
            if helper.watches.len() == WATCHED {
                let oldest = helper.watches.remove(0);
                self.guests[oldest].watchers.retain(|c| *c != core);
            }
            self.helpers[core].watches.push(n);
            self.guests[n].watchers.push(core);
        }
    }
}
