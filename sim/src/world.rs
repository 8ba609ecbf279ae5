//! The state of a simulated host, and the loop that lets things happen.

use crate::clock::Clock;
use crate::guest::Guest;
use crate::helper::Helper;
use crate::random::Random;
use crate::sched::{Core, Task, TaskKind};
use crate::service::Service;
use crate::setup::{Carrier, Flow, Setup, Traffic};
use crate::stats::Stats;
use crate::worker::Worker;
use lasthop_schedule::policy::{Batch, Hysteresis, TransmitTimer, Vm};
use std::collections::BTreeSet;

/// Packets that a ring has room for.
pub const RING: usize = 256;
/// Packets that may wait for one receiver; the oldest is dropped when there are more.
pub const WAITING: usize = 1024;

/// What a packet is to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Data of this connection.
    Data(usize),
    /// Its acknowledgement, or the answer of a transaction.
    Answer(usize),
    /// Nobody answers.
    Datagram,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Length.
    pub bytes: u32,
    /// What it is for.
    pub meaning: Meaning,
    /// When it was put into the sender's ring.
    pub sent_ns: u64,
    /// In which cache its bytes are.
    pub cache: u16,
}

/// What a thread does on a core, from one decision to the next.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// It gets there: the core wakes up, threads change. `.0` of the time is sleep.
    Arrive(u64),
    /// Pays for signals it has sent.
    Settle,
    /// A guest takes an interrupt.
    Interrupt,
    /// A guest receives.
    Receive(Packet),
    /// A guest sends.
    Send(Packet),
    /// A guest kicks.
    Kick,
    /// A guest is brought into the hypervisor.
    Entry,
    /// A guest computes.
    Compute,
    /// A packet's destination is found.
    Switch(Packet),
    /// A packet is copied to its receiver.
    Copy(Packet),
    /// A thread of the switch finds its receive timer over.
    Timer,
    /// vhost-net or netback takes a packet from its sender.
    Fetch(Packet),
    /// … and gives it to its receiver.
    Give(Packet),
    /// A helper looks for something to do.
    Poll,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The step of a core is over, unless it was cut short (`epoch` is old then).
    Done { core: usize, epoch: u64 },
    /// A guest's transmit timer.
    Transmit(usize),
    /// A guest's receive timer.
    Receive(usize),
    /// Somebody looks whether packets for this guest were left behind.
    Rescue(usize),
    /// A guest's application sends the next packet of its burst.
    Burst(usize),
    /// A guest has something to compute.
    Compute(usize),
    /// The warm-up is over.
    Measure,
}

/// A simulated host.
pub struct World {
    pub(crate) setup: Setup,
    pub(crate) clock: Clock<Event>,
    pub(crate) cores: Vec<Core>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) guests: Vec<Guest>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) services: Vec<Service>,
    pub(crate) helpers: Vec<Helper>,
    pub(crate) flows: Vec<(Flow, u32)>,
    /// Cores on which somebody waits.
    pub(crate) waiting: BTreeSet<usize>,
    /// Cores whose helper polls.
    pub(crate) polling: BTreeSet<usize>,
    /// What the running thread has to pay for signals.
    pub(crate) debt_ns: f64,
    pub(crate) transmit_batch: Batch,
    pub(crate) receive_batch: Batch,
    pub(crate) hysteresis: Hysteresis,
    /// What was measured.
    pub stats: Stats,
}

impl World {
    /// Everybody at rest.
    pub fn new(setup: Setup) -> Self {
        let on = &setup.mechanisms;
        let batch = |on| if on { Batch::default() } else { Batch::new(0, 0) };
        let hysteresis = match (on.hysteresis, on.adaptive) {
            (false, _) => Hysteresis { base_ns: 0, limit_ns: 0 },
            (true, false) => Hysteresis { limit_ns: 0, ..Hysteresis::default() },
            (true, true) => Hysteresis::default(),
        };
        let (transmit_batch, receive_batch) = (batch(on.transmit_batching), batch(on.receive_batching));
        let (flows, seed) = match &setup.traffic {
            Traffic::Streams { flows, .. } | Traffic::Transactions { flows } => (flows.clone(), setup.seed),
            Traffic::Bursts(_) => (Vec::new(), setup.seed),
        };
        let mut world = Self {
            clock: Clock::default(),
            cores: (0..setup.host.cores).map(|_| Core::default()).collect(),
            tasks: Vec::new(),
            guests: Vec::new(),
            workers: Vec::new(),
            services: Vec::new(),
            helpers: (0..setup.host.cores).map(|_| Helper::default()).collect(),
            flows: flows.iter().map(|f| (*f, 0)).collect(),
            waiting: BTreeSet::new(),
            polling: BTreeSet::new(),
            debt_ns: 0.0,
            transmit_batch,
            receive_batch,
            hysteresis,
            stats: Stats::default(),
            setup,
        };
        world.populate(seed);
        world
    }

    fn populate(&mut self, seed: u64) {
        let Setup { host, ref guests, ref services, carrier, .. } = self.setup;
        // Where the scheduler puts what is not pinned: one core of each unit, in order, then the others (PhD §4.5.2,
        // "Effect of Pinning").
        let units = host.cores / host.per_unit;
        let in_order = |n: usize| (n % units) * host.per_unit + (n / units) % host.per_unit;
        let task = |kind, pinned: Option<usize>, n| Task::new(kind, pinned, pinned.unwrap_or_else(|| in_order(n)));
        let random = |stream| Random::new(seed, stream as u64);
        for core in 0..host.cores {
            self.tasks.push(task(TaskKind::Helper(core), Some(core), 0));
        }
        let watch_all = carrier == Carrier::HyperSwitch || self.setup.mechanisms.watch_all;
        let everywhere = self.setup.dedicated.is_some() || watch_all;
        for (n, pinned) in guests.iter().enumerate() {
            let mut guest = Guest::new(self.tasks.len(), random(2 * n), random(2 * n + 1));
            guest.transmit = TransmitTimer::new(self.setup.mechanisms.drawn_timer);
            guest.flows = (0..self.flows.len()).filter(|f| self.flows[*f].0.from == n).collect();
            self.tasks.push(task(TaskKind::Guest(n), *pinned, n));
            self.guests.push(guest);
            if carrier == Carrier::Lasthop {
                self.workers.push(Worker::new(self.tasks.len()));
                self.tasks.push(task(TaskKind::Worker(n), None, n));
            }
        }
        for (n, pinned) in services.iter().enumerate() {
            let theirs = (n..guests.len()).step_by(services.len()).collect();
            self.services.push(Service::new(self.tasks.len(), theirs));
            self.tasks.push(task(TaskKind::Service(n), *pinned, n));
        }
        if everywhere {
            for helper in &mut self.helpers {
                helper.watches = (0..self.guests.len()).collect();
            }
        }
    }

    /// Lets everything happen that belongs to the warm-up and to what is measured.
    pub fn run(&mut self) {
        let end_ns = self.start();
        while self.step(end_ns) {}
        self.finish();
    }

    /// Wakes everybody who has something to do; returns the end.
    pub(crate) fn start(&mut self) -> u64 {
        self.clock.at(self.setup.warm_up_ns, Event::Measure);
        if let Some(core) = self.setup.dedicated {
            self.wake(core);
        }
        for guest in 0..self.guests.len() {
            match self.setup.traffic {
                Traffic::Bursts(_) => self.first_burst(guest),
                _ if !self.guests[guest].flows.is_empty() => self.wake(self.guests[guest].task),
                _ => {}
            }
        }
        self.setup.warm_up_ns + self.setup.measure_ns
    }

    /// Lets the next thing happen; false at the end.
    pub(crate) fn step(&mut self, end_ns: u64) -> bool {
        let Some(event) = self.clock.next(end_ns) else { return false };
        self.stats.events += 1;
        self.debt_ns = 0.0;
        match event {
            Event::Done { core, epoch } => self.done(core, epoch),
            Event::Transmit(guest) => self.transmit_timer(guest),
            Event::Receive(guest) => self.receive_timer(guest),
            Event::Rescue(guest) => self.rescue(guest),
            Event::Burst(guest) => self.burst(guest),
            Event::Compute(guest) => self.compute(guest),
            Event::Measure => {
                self.settle_accounts();
                self.stats.begin();
            }
        }
        true
    }

    fn finish(&mut self) {
        self.settle_accounts();
    }

    /// Packets that are somewhere between their sender and their receiver.
    pub fn in_flight(&self) -> u64 {
        let rings = self.guests.iter().map(|g| g.from_guest.len() + g.queue.len() + g.to_guest.len()).sum::<usize>();
        let held = self.cores.iter().filter(|core| {
            let work = core.step.as_ref().map(|step| step.work);
            use Work::*;
            matches!(work, Some(Receive(_) | Switch(_) | Copy(_) | Fetch(_) | Give(_)))
        });
        (rings + held.count()) as u64
    }

    /// What the policy is told of a guest.
    pub(crate) fn vm(&self, guest: usize) -> Vm {
        let task = &self.tasks[self.guests[guest].task];
        match self.setup.mechanisms.vm_state {
            false => Vm::Unknown,
            true if task.runs() => Vm::Running(task.core),
            true => Vm::Blocked,
        }
    }

    /// Which cache a guest's core uses, or used last.
    pub(crate) fn cache_of(&self, guest: usize) -> u16 {
        self.setup.host.cache(self.tasks[self.guests[guest].task].core)
    }

    /// What copying a packet costs on this core.
    pub(crate) fn copy_ns(&self, packet: &Packet, core: usize) -> f64 {
        f64::from(packet.bytes) * self.setup.costs.copy_byte * self.distance(packet, core)
    }

    /// As many times as long reading a packet takes on this core.
    pub(crate) fn distance(&self, packet: &Packet, core: usize) -> f64 {
        if packet.cache == self.setup.host.cache(core) { 1.0 } else { self.setup.costs.far }
    }
}
