//! A guest with one virtual CPU: its driver, its stack, what it sends, what it computes.

use crate::random::Random;
use crate::setup::{Carrier, Traffic};
use crate::world::{Event, Meaning, Packet, RING, Work, World};
use lasthop_schedule::policy::{Arrivals, ReceiveTimer, TransmitTimer};
use std::collections::VecDeque;

/// Bytes of an acknowledgement, or of one way of a transaction.
const SMALL: u32 = 66;
/// So many packets at most are received before something is sent.
const BUDGET: u32 = 64;

/// A guest, its rings, and what the switch keeps for its port.
pub(crate) struct Guest {
    pub task: usize,
    /// Connections that it sends on.
    pub flows: Vec<usize>,
    next_flow: usize,
    /// What its applications want to send.
    outbox: VecDeque<Packet>,
    received: u32,
    compute_ns: u64,
    /// For what its applications do, whoever carries the packets …
    load: Random,
    /// … and for how long it takes.
    random: Random,
    burst: (usize, u32, u32),

    /// An interrupt waits for it.
    pub interrupted: bool,
    /// … for packets that it has to have copied.
    pub fetch: bool,
    /// Its driver polls, interrupts are off.
    pub polls: bool,
    kick_due: bool,
    /// It is to be brought into the hypervisor.
    pub enter: bool,
    /// It is inside, and switches its own packets.
    switches: bool,
    /// … and copies so many bytes of what waits for it ([`OWN`]).
    copies: Option<u32>,

    /// Ring of packets that it sends.
    pub from_guest: VecDeque<Packet>,
    /// Packets whose buffers it has not got back.
    pub used: usize,
    /// It would send if it got one back.
    stalled: bool,
    /// Ring of packets that it receives.
    pub to_guest: VecDeque<Packet>,
    /// Packets that wait to be copied.
    pub queue: VecDeque<Packet>,
    /// Somebody takes from `from_guest`.
    pub from_locked: bool,
    /// Somebody copies into `to_guest`.
    pub to_locked: bool,
    pub transmit: TransmitTimer,
    pub receive: ReceiveTimer,
    pub arrivals: Arrivals,
    /// Taken since the ring was last empty.
    pub found: usize,
    /// Kick after so many packets; 0: never.
    pub kick_after: u32,
    pub unkicked: u32,
    pub transmit_event: bool,
    pub receive_due_ns: Option<u64>,
    /// The helper that has been asked to copy.
    pub posted: Option<usize>,
    pub rescue: bool,
    /// Helpers that look at its ring.
    pub watchers: Vec<usize>,
}

impl Guest {
    pub fn new(task: usize, load: Random, random: Random) -> Self {
        Self {
            task,
            flows: Vec::new(),
            next_flow: 0,
            outbox: VecDeque::new(),
            received: 0,
            compute_ns: 0,
            load,
            random,
            burst: (0, 0, 0),
            interrupted: false,
            fetch: false,
            polls: false,
            kick_due: false,
            enter: false,
            switches: false,
            copies: None,
            from_guest: VecDeque::new(),
            used: 0,
            stalled: false,
            to_guest: VecDeque::new(),
            queue: VecDeque::new(),
            from_locked: false,
            to_locked: false,
            transmit: TransmitTimer::default(),
            receive: ReceiveTimer::default(),
            arrivals: Arrivals::default(),
            found: 0,
            kick_after: 1,
            unkicked: 0,
            transmit_event: false,
            receive_due_ns: None,
            posted: None,
            rescue: false,
            watchers: Vec::new(),
        }
    }

    pub fn can_copy(&self) -> bool {
        !self.queue.is_empty() && !self.to_locked && self.to_guest.len() < RING
    }

    pub fn can_switch(&self) -> bool {
        !self.from_guest.is_empty() && !self.from_locked
    }
}

impl World {
    /// What a guest does next.
    pub(crate) fn guest_next(&mut self, n: usize, core: usize) -> Option<(f64, Work)> {
        if let Some(step) = self.hypervisor_next(n, core) {
            return Some(step);
        }
        let costs = &self.setup.costs;
        let (interrupt_ns, exit_ns) = (costs.guest_interrupt, costs.exit);
        let guest = &mut self.guests[n];
        if std::mem::take(&mut guest.interrupted) {
            guest.polls = true;
            guest.received = 0;
            if std::mem::take(&mut guest.fetch) {
                self.fetch(n);
            }
            // Into the guest, and out and in again when it says that it is done.
            let ns = if self.setup.carrier == Carrier::Vhost { interrupt_ns + 2.0 * exit_ns } else { interrupt_ns };
            return Some((ns, Work::Interrupt));
        }
        if guest.polls && guest.received < BUDGET {
            if let Some(packet) = guest.to_guest.pop_front() {
                guest.received += 1;
                let ns = self.receive_ns(&packet, core) * self.varies(n);
                return Some((ns, Work::Receive(packet)));
            }
            guest.polls = false;
        }
        if let Some(packet) = self.next_packet(n) {
            self.guests[n].received = 0;
            return Some((self.send_ns(&packet) * self.varies(n), Work::Send(packet)));
        }
        let guest = &mut self.guests[n];
        if guest.polls {
            guest.received = 0;
            return self.guest_next(n, core);
        }
        if guest.compute_ns > 0 {
            return Some(((guest.compute_ns as f64).min(self.setup.costs.slice), Work::Compute));
        }
        self.blocks(n);
        let again = self.setup.carrier == Carrier::HyperSwitch;
        if again { self.hypervisor_next(n, core) } else { None }
    }

    /// What is done inside the hypervisor on a guest's time, or on its way there.
    fn hypervisor_next(&mut self, n: usize, core: usize) -> Option<(f64, Work)> {
        let costs = &self.setup.costs;
        let exit_ns = if self.setup.carrier == Carrier::Vhost { costs.exit } else { 0.0 };
        let (entry_ns, kick_ns) = (costs.entry, costs.kick + exit_ns);
        let guest = &mut self.guests[n];
        if std::mem::take(&mut guest.enter) {
            return Some((entry_ns, Work::Entry));
        }
        if let Some(left) = guest.copies {
            if left > 0 && guest.can_copy() {
                guest.copies = Some(left.saturating_sub(guest.queue.front().map_or(0, share)));
                return self.take_to_copy(n, core);
            }
            // The rest is for a helper, or for nobody else.
            if left == 0 && guest.can_copy() && !self.offload(n) {
                self.guests[n].copies = Some(u32::MAX);
                return self.hypervisor_next(n, core);
            }
            let guest = &mut self.guests[n];
            guest.copies = None;
            if !guest.polls && !guest.to_guest.is_empty() {
                guest.interrupted = true;
            }
        }
        let guest = &mut self.guests[n];
        if guest.switches {
            if guest.can_switch() {
                return self.take_to_switch(n);
            }
            guest.switches = false;
        }
        if std::mem::take(&mut guest.kick_due) {
            self.stats.kicks += 1;
            return Some((kick_ns, Work::Kick));
        }
        None
    }

    /// It has crossed into the hypervisor, or out of it.
    pub(crate) fn guest_crossed(&mut self, core: usize, work: Work) {
        let Some(n) = self.guest_on(core) else { return };
        match (work, self.setup.carrier) {
            (Work::Kick, Carrier::HyperSwitch) => self.guests[n].switches = true,
            (Work::Kick, Carrier::Lasthop) => {
                self.debt_ns += self.setup.costs.signal;
                self.wake(self.workers[n].task);
            }
            (Work::Kick, _) => self.wake_service(n),
            (Work::Entry, _) => {
                let guest = &mut self.guests[n];
                guest.switches |= guest.transmit.due_ns.is_none_or(|due| due <= self.clock.now_ns());
                guest.copies = Some(OWN);
            }
            _ => {}
        }
    }

    /// Nothing is left to do for a guest: what its port still has is done before it sleeps (PhD §4.3.5).
    fn blocks(&mut self, n: usize) {
        if !self.setup.mechanisms.before_blocking {
            return;
        }
        let guest = &mut self.guests[n];
        match self.setup.carrier {
            Carrier::HyperSwitch => {
                guest.switches = guest.can_switch();
                guest.copies = guest.can_copy().then_some(u32::MAX);
            }
            Carrier::Lasthop => {
                let withheld = guest.receive_due_ns.is_some() && !guest.to_guest.is_empty();
                if withheld || guest.can_switch() && guest.watchers.is_empty() {
                    self.workers[n].looks |= guest.can_switch();
                    self.workers[n].timer |= withheld;
                    self.wake(self.workers[n].task);
                }
            }
            _ => {}
        }
    }

    fn varies(&mut self, n: usize) -> f64 {
        let between = self.guests[n].random.below(2001) as f64 / 1000.0 - 1.0;
        1.0 + between * self.setup.variation
    }

    fn receive_ns(&self, packet: &Packet, core: usize) -> f64 {
        let costs = &self.setup.costs;
        let distance = self.distance(packet, core);
        match (packet.meaning, &self.setup.traffic) {
            (Meaning::Answer(_), Traffic::Streams { .. }) => costs.guest_ack,
            _ => costs.guest_receive + f64::from(packet.bytes) * costs.guest_receive_byte * distance,
        }
    }

    fn send_ns(&self, packet: &Packet) -> f64 {
        let costs = &self.setup.costs;
        match (packet.meaning, &self.setup.traffic) {
            (Meaning::Answer(_), Traffic::Streams { .. }) => costs.guest_ack,
            _ => costs.guest_send + f64::from(packet.bytes) * costs.guest_send_byte,
        }
    }

    /// The next packet that a guest wants to send and may.
    fn next_packet(&mut self, n: usize) -> Option<Packet> {
        let guest = &mut self.guests[n];
        let wants = !guest.outbox.is_empty() || guest.flows.iter().any(|f| self.flows[*f].1 < self.flows[*f].0.window);
        if guest.used >= RING {
            guest.stalled = wants;
            return None;
        }
        if let Some(packet) = guest.outbox.pop_front() {
            return Some(packet);
        }
        let count = guest.flows.len();
        let bytes = if let Traffic::Streams { bytes, .. } = self.setup.traffic { bytes } else { SMALL };
        let nth = (0..count)
            .map(|i| (guest.next_flow + i) % count)
            .find(|i| self.flows[guest.flows[*i]].1 < self.flows[guest.flows[*i]].0.window)?;
        guest.next_flow = nth + 1;
        let id = guest.flows[nth];
        let (flow, on_the_way) = &mut self.flows[id];
        *on_the_way += 1;
        Some(Packet { from: n, to: flow.to, bytes, meaning: Meaning::Data(id), sent_ns: 0, cache: 0 })
    }

    pub(crate) fn guest_sent(&mut self, core: usize, mut packet: Packet) {
        let n = packet.from;
        packet.sent_ns = self.clock.now_ns();
        packet.cache = self.setup.host.cache(core);
        self.stats.sent += 1;
        let guest = &mut self.guests[n];
        guest.from_guest.push_back(packet);
        guest.used += 1;
        guest.unkicked += 1;
        if guest.unkicked == guest.kick_after {
            guest.kick_due = true;
            guest.kick_after = 0;
        }
        self.show_to_helpers(n);
    }

    pub(crate) fn guest_received(&mut self, packet: Packet) {
        let n = packet.to;
        self.stats.received += 1;
        let answer = |id| Packet { from: n, to: packet.from, bytes: SMALL, meaning: Meaning::Answer(id), ..packet };
        match packet.meaning {
            Meaning::Answer(id) => {
                self.flows[id].1 -= 1;
                self.stats.transactions += 1;
                return;
            }
            Meaning::Data(id) => self.guests[n].outbox.push_back(answer(id)),
            Meaning::Datagram => {}
        }
        self.stats.packets += 1;
        self.stats.bytes += u64::from(packet.bytes);
        self.stats.latency.saturating_record(self.clock.now_ns() - packet.sent_ns);
    }

    /// A guest has got a buffer back that it sent.
    pub(crate) fn completed_for(&mut self, n: usize) {
        let guest = &mut self.guests[n];
        guest.used -= 1;
        if guest.stalled && guest.used <= RING / 2 {
            guest.stalled = false;
            self.interrupt(n);
        }
    }

    pub(crate) fn guest_on(&self, core: usize) -> Option<usize> {
        match self.tasks[self.cores[core].running?].kind {
            crate::sched::TaskKind::Guest(n) => Some(n),
            _ => None,
        }
    }

    /// The first burst and the first computing, somewhere in the first silence.
    pub(crate) fn first_burst(&mut self, n: usize) {
        let Traffic::Bursts(bursts) = self.setup.traffic else { return };
        let random = &mut self.guests[n].load;
        let first_ns = random.exponential(bursts.silence_ns) as u64;
        let compute_ns = random.exponential(bursts.compute_ns / bursts.compute.max(1e-9));
        self.clock.at(first_ns, Event::Burst(n));
        if bursts.compute > 0.0 {
            self.clock.at(compute_ns as u64, Event::Compute(n));
        }
    }

    /// An application sends a packet.
    pub(crate) fn burst(&mut self, n: usize) {
        let Traffic::Bursts(bursts) = self.setup.traffic else { return };
        let all = self.guests.len();
        let guest = &mut self.guests[n];
        let random = &mut guest.load;
        if guest.burst.1 == 0 {
            let peer = (n + 1 + random.below(bursts.peers) * 7) % all;
            let bytes = SIZES[random.below(SIZES.len())];
            guest.burst = (peer, random.heavy(bursts.packets).ceil() as u32, bytes);
        }
        let (to, left, bytes) = guest.burst;
        guest.burst.1 = left - 1;
        let next_ns = if left > 1 { random.exponential(bursts.gap_ns) } else { random.heavy(bursts.silence_ns) };
        guest.outbox.push_back(Packet { from: n, to, bytes, meaning: Meaning::Datagram, sent_ns: 0, cache: 0 });
        let now_ns = self.clock.now_ns();
        self.clock.at(now_ns + next_ns as u64, Event::Burst(n));
        self.prod(n);
    }

    /// An application computes.
    pub(crate) fn compute(&mut self, n: usize) {
        let Traffic::Bursts(bursts) = self.setup.traffic else { return };
        let guest = &mut self.guests[n];
        let ns = guest.load.heavy(bursts.compute_ns);
        guest.compute_ns += ns as u64;
        let next_ns = guest.load.exponential(bursts.compute_ns / bursts.compute);
        let now_ns = self.clock.now_ns();
        self.clock.at(now_ns + next_ns as u64, Event::Compute(n));
        self.prod(n);
    }

    pub(crate) fn computed(&mut self, core: usize, ns: u64) {
        if let Some(n) = self.guest_on(core) {
            let left = &mut self.guests[n].compute_ns;
            *left = left.saturating_sub(ns);
        }
    }

    /// A guest has something to do: it wakes up, or stops computing for it.
    pub(crate) fn prod(&mut self, n: usize) {
        let task = self.guests[n].task;
        if self.tasks[task].runs() { self.disturb(self.tasks[task].core) } else { self.wake(task) }
    }
}

/// A guest that is brought into the hypervisor copies so many bytes itself, and so does a worker for each receiver of a
/// burst, before either asks for help (PhD §4.3.4: "a bounded number of packets sufficient to keep it busy"): one
/// packet of 64 KB, or eight small ones.
pub(crate) const OWN: u32 = 64 * 1024;

/// What a packet takes of it.
pub(crate) fn share(packet: &Packet) -> u32 {
    packet.bytes.max(OWN / 8)
}

/// Lengths of packets in bursts: as many are small as are not.
const SIZES: [u32; 6] = [64, 64, 64, 594, 1514, 9014];
