//! vhost-net and netback: threads that move packets between their guests and the host's bridge.

use crate::setup::Carrier;
use crate::world::{Packet, RING, Work, World};

/// Packets that the host keeps for a guest; more are dropped, the newest first.
const QUEUE: usize = 1000;
/// Bytes for one guest and one direction before the others have their turn (VHOST_NET_WEIGHT).
const WEIGHT: u32 = 0x80000;

pub(crate) struct Service {
    task: usize,
    guests: Vec<usize>,
    /// Guest and direction whose turn it is.
    turn: usize,
    moved: u32,
}

impl Service {
    pub fn new(task: usize, guests: Vec<usize>) -> Self {
        Self { task, guests, turn: 0, moved: 0 }
    }
}

impl World {
    pub(crate) fn wake_service(&mut self, n: usize) {
        let task = self.services[n % self.services.len()].task;
        if self.tasks[task].state == crate::sched::State::Sleeping {
            self.debt_ns += self.setup.costs.signal;
            self.wake(task);
        }
    }

    /// What a service thread does next.
    pub(crate) fn service_next(&mut self, s: usize, core: usize) -> Option<(f64, Work)> {
        let turns = self.services[s].guests.len() * 2;
        for _ in 0..=turns {
            let service = &mut self.services[s];
            let n = service.guests[service.turn / 2];
            let guest = &mut self.guests[n];
            let step = if service.moved >= WEIGHT {
                None
            } else if service.turn.is_multiple_of(2) {
                let room = guest.to_guest.len() < RING;
                if room { guest.queue.pop_front().map(Work::Give) } else { None }
            } else {
                guest.from_guest.pop_front().map(Work::Fetch)
            };
            if let Some(work @ (Work::Give(packet) | Work::Fetch(packet))) = step {
                service.moved += packet.bytes;
                return Some((self.service_ns(&packet, core), work));
            }
            service.moved = 0;
            service.turn = (service.turn + 1) % turns;
        }
        // Everything is empty: kicks are wanted again.
        for &n in &self.services[s].guests {
            self.guests[n].kick_after = 1;
            self.guests[n].unkicked = 0;
        }
        None
    }

    fn service_ns(&self, packet: &Packet, core: usize) -> f64 {
        let costs = &self.setup.costs;
        let page_ns = if self.setup.carrier == Carrier::Netback { costs.grant_page } else { costs.vhost_page };
        costs.service + f64::from(packet.bytes.div_ceil(4096)) * page_ns + self.copy_ns(packet, core)
    }

    /// A packet is in the host.
    pub(crate) fn fetched(&mut self, core: usize, mut packet: Packet) {
        packet.cache = self.setup.host.cache(core);
        self.completed_for(packet.from);
        let to = packet.to;
        if self.guests[to].queue.len() >= QUEUE {
            self.stats.dropped += 1;
            return;
        }
        self.guests[to].queue.push_back(packet);
        self.wake_service(to);
    }

    /// A packet is in its receiver's ring.
    pub(crate) fn given(&mut self, core: usize, mut packet: Packet) {
        packet.cache = self.setup.host.cache(core);
        let guest = &mut self.guests[packet.to];
        guest.to_guest.push_back(packet);
        if !guest.polls {
            self.interrupt(packet.to);
        }
    }
}
