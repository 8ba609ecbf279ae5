//! One thread and its ports.

mod lend;
mod send;
mod sleep;
mod turns;

use super::attack::{Attackers, Tally, mood};
use super::first::First;
use super::frame::{self, FIRSTS, PROBED, Probe, Template, VNET};
use super::grants::{Heap, Told};
use super::guest::{Count, Ports, Source};
use super::order::{Order, Seen};
use super::pace::Pacer;
use super::port::{Buffers, Memory, PAGE, Port, Ring, broken};
use super::report::{Findings, Window, histogram};
use super::sender::Sender;
use super::settings::BEHIND;
use super::{Check, Notify, Outcome, Pattern, Phase, Settings, Shared, failed, lock};
use hdrhistogram::Histogram;
use lend::{came_back, lend};
use rustix::time::{ClockId, clock_gettime};
use send::reclaim;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Frames taken or given at a time.
const BURST: usize = 64;

/// What a thread hands back.
#[derive(Debug)]
pub struct WorkerReport {
    pub findings: Findings,
    pub times: Option<Histogram<u64>>,
    /// Of packets that were the first of their flows.
    pub firsts: Option<Histogram<u64>>,
    /// What is known of each port while it was measured.
    pub ports: Ports,
    /// What attackers did meanwhile.
    pub attack: Option<Tally>,
    /// What was granted meanwhile.
    pub told: Told,
}

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Memory for these ports.
pub fn bytes(settings: &Settings, ports: &[u16]) -> u64 {
    let (entries, queues) = (u64::from(settings.ring_size), u64::from(settings.queues));
    let rings = 2 * queues * Ring::bytes(settings);
    let rx = settings.stride(settings.receive_buffer());
    let tx = |port| if settings.pattern.circulates() { rx } else { settings.stride(settings.tx_buffer(port)) };
    let tx: u64 = ports.iter().map(|port| tx(*port)).sum();
    let ports = ports.len() as u64;
    let heap = settings.heap.unwrap_or(0) as u64 * PAGE;
    // Each piece begins on a page.
    ports * (rings + entries * queues * rx + heap) + entries * queues * tx + PAGE * (2 + 4 * ports * queues)
}

/// A port with its buffers.
struct Card {
    port: Port,
    rx: Buffers,
    rx_len: u32,
    tx: Buffers,
    tx_len: u32,
    /// By queue: send buffers that are not with the device.
    spare: Vec<Vec<u32>>,
    /// Send buffers of all queues together.
    buffers: usize,
    /// By queue: receive buffers that could not be granted yet.
    ungranted: Vec<Vec<u32>>,
    /// Where buffers lie from one use to the next, if not always in the same place.
    heap: Option<Heap>,
    sender: Option<Sender>,
    mergeable: bool,
    /// By source port: what was received of it, by flow.
    orders: Vec<Vec<Order>>,
    /// When what is not in use was revoked last.
    drained: u64,
    /// The one of the greedy guests' groups that it belongs to.
    group: Option<usize>,
    /// It kicks whenever it is looked at.
    kicks: bool,
    /// What counts, and how much of it was before the measurement.
    count: Count,
    count_before: Count,
}

pub struct Worker {
    settings: Arc<Settings>,
    queues: u16,
    thread: usize,
    cards: Vec<Card>,
    /// Packets that go round: buffers that no ring has.
    pool: Vec<u32>,
    memory: Memory,
    shared: Arc<Shared>,
    phase: Phase,
    window: Window,
    /// When the measurement began.
    window_start: Window,
    findings: Findings,
    times: Option<Histogram<u64>>,
    /// First packets: when they are due, and their times.
    firsts: Option<First>,
    first_times: Option<Histogram<u64>>,
    attackers: Option<Attackers>,
    /// Theirs when the measurement began, and then what they did in it.
    attack: Tally,
    /// What was granted when the measurement began, and then what was in it.
    told: Told,
    /// By port: what came of it.
    sources: Vec<Source>,
    sources_before: Vec<(u64, u64)>,
    ports: Ports,
    /// Whether senders have to know what of theirs has arrived.
    tells: bool,
    /// Ports of greedy guests in turns, and which are next.
    groups: usize,
    turn: usize,
    /// A greedy guest is looked at for the first time in its turn.
    back: bool,
    senders: Vec<u16>,
    /// When traffic began.
    started: u64,
    /// Frames received, counted or not.
    seen: u64,
    scratch: Vec<u8>,
}

impl Worker {
    pub fn new(
        settings: Arc<Settings>,
        thread: usize,
        ports: Vec<Port>,
        mut memory: Memory,
        shared: Arc<Shared>,
        attackers: Option<Attackers>,
    ) -> Outcome<Self> {
        let (entries, queues) = (u32::from(settings.ring_size), u32::from(settings.queues));
        let rx_len = settings.receive_buffer();
        let circulates = settings.pattern.circulates();
        // Packets that go round use one pool, others have buffers of their own.
        let all = 2 * entries * queues * ports.len() as u32;
        let stride = settings.stride(rx_len);
        let pooled = u64::from(all) * stride;
        let common = if circulates { Some(Buffers::in_line(memory.take(pooled)?, stride)) } else { None };
        let mut pool: Vec<u32> = if circulates { (0..all).rev().collect() } else { Vec::new() };
        let mut cards = Vec::new();
        for port in ports {
            let mut card = Card::new(port, &settings, common.as_ref(), &mut memory)?;
            for queue in 0..card.port.rx.len() {
                for i in 0..entries {
                    let own = queue as u32 * entries + i;
                    card.offer(queue, if circulates { pool.pop().unwrap_or(own) } else { own })?;
                }
                card.port.rx[queue].publish();
            }
            cards.push(card);
        }
        Ok(Self {
            queues: settings.queues,
            settings,
            thread,
            cards,
            pool,
            memory,
            shared,
            phase: Phase::Rest,
            window: Window::default(),
            window_start: Window::default(),
            findings: Findings::default(),
            times: None,
            firsts: None,
            first_times: None,
            attackers,
            attack: Tally::default(),
            told: Told::default(),
            sources: Vec::new(),
            sources_before: Vec::new(),
            ports: Ports::default(),
            tells: false,
            groups: 0,
            turn: 0,
            back: false,
            senders: Vec::new(),
            started: 0,
            seen: 0,
            scratch: Vec::new(),
        })
    }

    /// Copies of the connections.
    pub fn watched(&self) -> Outcome<Vec<OwnedFd>> {
        self.cards.iter().map(|c| c.port.front.as_fd().try_clone_to_owned().map_err(failed)).collect()
    }

    pub fn run(mut self) -> Outcome<()> {
        if self.settings.notify == Notify::Sleep {
            // A timer that fires 50 µs late would send in clumps.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        }
        loop {
            let phase = self.shared.phase();
            if phase != self.phase {
                if phase == Phase::End {
                    break;
                }
                self.enter(phase)?;
                self.shared.seen.fetch_add(1, Ordering::AcqRel);
            }
            let mut busy = false;
            for i in 0..self.cards.len() {
                if self.cards[i].group.is_none() {
                    busy |= self.serve(i)?;
                }
            }
            busy |= self.take_turn()?;
            if self.settings.grants.is_some() {
                let time = now();
                self.cards.iter_mut().try_for_each(|card| card.tend(time))?;
            }
            if let Some(attackers) = &mut self.attackers {
                attackers.turn(mood(&self.settings, self.phase))?;
            }
            if !busy {
                self.shared.received[self.thread].0.store(self.seen, Ordering::Relaxed);
                match self.settings.notify {
                    // The lines that tell of news are left to the switch for a moment.
                    Notify::Poll => (0..8).for_each(|_| std::hint::spin_loop()),
                    Notify::Sleep => self.sleep()?,
                }
            }
        }
        Ok(())
    }

    fn prepare(&mut self) {
        self.settings = lock(&self.shared.act).clone();
        let settings = &*self.settings;
        let ports = self.shared.delivered.len() as u16;
        self.senders = (0..ports).filter(|p| !settings.pattern.targets(*p, ports).is_empty()).collect();
        self.tells = settings.pattern == Pattern::PingPong || (0..ports).any(|p| settings.window_of(p).is_some());
        for card in &mut self.cards {
            card.sender = Sender::new(settings, card.port.number);
            card.kicks = settings.guest(card.port.number).is_some_and(|g| g.kicks && !settings.tame);
            card.orders.iter_mut().for_each(Vec::clear);
        }
        let timed = |port| settings.latency && settings.guest(port).is_some();
        self.sources = (0..ports).map(|port| Source::new(timed(port))).collect();
        self.times = settings.latency.then(histogram);
        self.first_times = settings.firsts.map(|_| histogram());
        // Addresses used once are not new again.
        self.firsts = settings.firsts.map(|_| self.firsts.take().unwrap_or_else(|| First::new(1, 0)));
        self.group();
        self.reset();
    }

    fn reset(&mut self) {
        (self.window, self.findings) = (Window::default(), Findings::default());
        let by_source = self.sources.iter_mut().filter_map(|s| s.times.as_mut());
        self.times.iter_mut().chain(&mut self.first_times).chain(by_source).for_each(Histogram::reset);
        let rings = self.cards.iter_mut().flat_map(|c| c.port.rx.iter_mut().chain(&mut c.port.tx));
        rings.for_each(|r| r.kicks = 0);
    }

    fn enter(&mut self, phase: Phase) -> Outcome<()> {
        let before = std::mem::replace(&mut self.phase, phase);
        match phase {
            Phase::Announce => {
                (0..self.cards.len()).try_for_each(|i| self.announce(i))?;
                self.attackers.iter_mut().try_for_each(Attackers::announce)?;
            }
            Phase::Prepare => self.prepare(),
            Phase::Reset => self.reset(),
            Phase::Tell => {
                let rings = self.cards.iter().flat_map(|c| c.port.rx.iter().chain(&c.port.tx));
                self.findings.kicks = rings.map(|r| r.kicks).sum();
                let ports = self.tell_ports();
                lock(&self.shared.reports).push(WorkerReport {
                    findings: self.findings,
                    times: self.times.take(),
                    firsts: self.first_times.take(),
                    ports,
                    attack: self.attackers.as_ref().map(|_| self.attack),
                    told: self.told,
                });
            }
            Phase::Warm | Phase::Measure => {
                let start = now();
                self.started = start;
                for card in &mut self.cards {
                    let Some(sender) = &mut card.sender else { continue };
                    let rate = self.settings.rate_of(card.port.number, &self.senders);
                    sender.pacer = rate.map(|r| Pacer::new(start, r * sender.share()));
                    sender.left = self.settings.packets.unwrap_or(u64::MAX);
                }
                if self.settings.pattern.circulates() && before < Phase::Warm {
                    (0..self.cards.len()).try_for_each(|i| self.inject(i))?;
                }
                if let (Some(firsts), Some(rate)) = (&mut self.firsts, self.settings.firsts) {
                    firsts.pacer = Pacer::new(start, rate);
                }
                self.window_start = self.window;
                self.begin_counts();
                self.attack = self.attackers.as_ref().map(Attackers::tally).unwrap_or_default();
                self.told = self.told_so_far();
            }
            Phase::After => {
                lock(&self.shared.windows).push(self.window.since(&self.window_start));
                self.end_counts();
                let tally = self.attackers.as_ref().map(Attackers::tally).unwrap_or_default();
                self.attack = tally.since(self.attack);
                self.told = self.told_so_far().since(&self.told);
                let now = now();
                let pacers = self.cards.iter().filter_map(|c| c.sender.as_ref()?.pacer.as_ref());
                self.findings.unsent += pacers.map(|p| p.overdue(now)).sum::<u64>();
            }
            _ => {}
        }
        Ok(())
    }

    fn told_so_far(&self) -> Told {
        let told = self.cards.iter().filter_map(|c| c.port.grants.as_ref());
        told.fold(Told::default(), |sum, grants| sum.with(&grants.told()))
    }

    /// One frame to everybody, so that who learns has learned where this port is.
    fn announce(&mut self, i: usize) -> Outcome<()> {
        let card = &mut self.cards[i];
        let mut template = Template::new(card.port.number, None, 64, false, self.settings.vary);
        let token = reclaim(card, 0, &mut self.pool, self.settings.pattern.circulates())?;
        let Some(token) = token else { return Ok(()) };
        let head = template.stamp(0, 0, 0);
        let addr = card.tx.at(token);
        // Not a probe: nobody counts it.
        let mut bytes = [0; VNET + 64];
        bytes[..head.len()].copy_from_slice(head);
        bytes[VNET + 42..VNET + 44].fill(0);
        self.memory.slice(addr, bytes.len()).write(0, &bytes);
        let Some(told) = lend(&mut card.port, &card.tx, token, card.tx_len, false)? else { return Ok(()) };
        let ring = &mut card.port.tx[0];
        let _ = ring.ring.add(&[(told, bytes.len() as u32)], &[], token);
        ring.publish();
        Ok(())
    }

    /// Puts the packets in that are to go round.
    fn inject(&mut self, i: usize) -> Outcome<()> {
        let entries = u32::from(self.settings.ring_size);
        for _ in 0..self.settings.window.unwrap_or(entries).min(entries) {
            let card = &mut self.cards[i];
            let Some(token) = reclaim(card, 0, &mut self.pool, true)? else { break };
            let Some(sender) = &mut card.sender else { break };
            let packet = sender.next(0);
            let (addr, len) = (card.tx.at(token), packet.head.len() + packet.tail);
            self.memory.slice(addr, len).write(0, packet.head);
            if card.port.tx[0].ring.add(&[(addr, len as u32)], &[], token).is_err() {
                self.pool.push(token);
                break;
            }
            self.findings.expected += 1;
        }
        self.cards[i].port.tx[0].publish();
        Ok(())
    }

    /// Packets that go round: what port `i` receives is sent by its partner, in the same buffer.
    fn pass_on(&mut self, i: usize) -> Outcome<bool> {
        let going = self.phase.sends();
        let mut count = 0;
        let (left, right) = self.cards.split_at_mut(i & !1 | 1);
        let (even, odd) = (&mut left[i & !1], &mut right[0]);
        let (card, partner) = if i.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        for queue in 0..card.port.rx.len() {
            let (rx, tx) = (&mut card.port.rx[queue], &mut partner.port.tx[queue]);
            while let Some((token, _)) = tx.ring.poll_used().map_err(broken)? {
                self.pool.push(token);
            }
            let mut taken = 0;
            while taken < BURST && (!going || tx.ring.free() > 0) {
                let Some((token, len)) = rx.ring.poll_used().map_err(broken)? else { break };
                taken += 1;
                if !going {
                    // Announcements, and at the end what went round.
                    self.findings.received += u64::from(self.phase == Phase::Drain);
                    self.pool.push(token);
                    continue;
                }
                self.window.received += 1;
                self.window.bytes += u64::from(len) - VNET as u64;
                let addr = card.rx.at(token);
                if !self.settings.sizes.gso {
                    self.memory.slice(addr, VNET).write(0, &[0; VNET]);
                }
                if tx.ring.add(&[(addr, len)], &[], token).is_err() {
                    self.pool.push(token);
                }
            }
            if taken == 0 {
                continue;
            }
            if going {
                tx.publish();
            }
            for _ in 0..taken {
                let Some(token) = self.pool.pop() else { break };
                let _ = rx.ring.add(&[], &[(card.rx.at(token), card.rx_len)], token);
            }
            rx.publish();
            count += taken;
        }
        self.window.sent += if going { count as u64 } else { 0 };
        self.seen += count as u64;
        Ok(count > 0)
    }

    fn receive(&mut self, i: usize) -> Outcome<bool> {
        let mut any = false;
        for queue in 0..self.cards[i].port.rx.len() {
            // By source: frames of this burst, told together.
            let mut run = (0u16, 0u64, 0u64);
            let mut taken = 0;
            let mut arrived = 0;
            while taken < BURST {
                let card = &mut self.cards[i];
                let Some((token, len)) = card.port.rx[queue].ring.poll_used().map_err(broken)? else { break };
                taken += 1;
                if arrived == 0 && (self.times.is_some() || self.settings.packets.is_some() || self.firsts.is_some()) {
                    arrived = now();
                }
                let addr = card.rx.at(token);
                came_back(&mut card.port, &mut card.rx, &mut card.heap, token, card.rx_len, true)?;
                let first = self.memory.slice(addr, len as usize);
                let mut head = [0; VNET + PROBED];
                let got = first.read(0, &mut head);
                let buffers = if card.mergeable { u16::from_le_bytes([head[10], head[11]]) } else { 1 };
                if got < VNET || buffers == 0 {
                    return Err(failed(format!("port {}: a frame without a whole header", card.port.number)));
                }
                let mut bytes = len as usize - VNET;
                let whole = self.settings.check == Check::Content;
                if whole {
                    self.scratch.resize(bytes, 0);
                    first.read(VNET, &mut self.scratch);
                }
                card.offer(queue, token)?;
                for _ in 1..buffers {
                    let Some((token, len)) = card.port.rx[queue].ring.poll_used().map_err(broken)? else {
                        return Err(failed(format!("port {}: a frame lacks a buffer", card.port.number)));
                    };
                    let addr = card.rx.at(token);
                    came_back(&mut card.port, &mut card.rx, &mut card.heap, token, card.rx_len, true)?;
                    if whole {
                        let at = self.scratch.len();
                        self.scratch.resize(at + len as usize, 0);
                        self.memory.slice(addr, len as usize).read(0, &mut self.scratch[at..]);
                    }
                    bytes += len as usize;
                    card.offer(queue, token)?;
                }
                let probe = Probe::parse(&head[VNET..got]);
                let Some(probe) = probe.filter(|p| usize::from(p.source) < self.shared.delivered.len()) else {
                    // Announcements of ours and of the switch's other users.
                    self.findings.stray += u64::from(!is_announcement(&head[VNET..got]));
                    continue;
                };
                if let Some(times) = self.first_times.as_mut().filter(|_| probe.flow >= FIRSTS) {
                    times.saturating_record(arrived.saturating_sub(probe.stamp).max(1));
                    continue;
                }
                // Its station behind the switch is not known yet, so the packet went to everybody: no answer of that station.
                if self.settings.pattern == Pattern::Reflect && probe.source != self.cards[i].port.number {
                    continue;
                }
                if self.settings.pattern.echoes() && !probe.back {
                    self.send_back(i, queue, addr, len, &mut head[VNET..got])?;
                    continue;
                }
                self.window.received += 1;
                self.window.bytes += bytes as u64;
                self.cards[i].count.received += 1;
                if run.0 != probe.source && run.1 > 0 {
                    self.delivered(run);
                    run = (probe.source, 0, 0);
                }
                run = (probe.source, run.1 + 1, run.2 + bytes as u64);
                self.check(i, &probe);
                if let Some(times) = &mut self.times {
                    let time = arrived.saturating_sub(probe.stamp).max(1);
                    times.saturating_record(time);
                    if let Some(own) = self.sources.get_mut(usize::from(probe.source)).and_then(|s| s.times.as_mut()) {
                        own.saturating_record(time);
                    }
                }
            }
            if taken > 0 {
                self.cards[i].port.rx[queue].publish();
                self.seen += taken as u64;
                any = true;
            }
            if run.1 > 0 {
                self.delivered(run);
                self.window.last = arrived.saturating_sub(self.started);
            }
        }
        Ok(any)
    }

    #[inline]
    fn delivered(&mut self, (source, count, bytes): (u16, u64, u64)) {
        if let Some(source) = self.sources.get_mut(usize::from(source)) {
            source.frames += count;
            source.bytes += bytes;
        }
        if self.tells {
            self.shared.delivered[usize::from(source)].0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Judges a received frame; its bytes are in `scratch` if its content is to be checked.
    #[inline]
    fn check(&mut self, i: usize, probe: &Probe) {
        self.findings.received += 1;
        if self.settings.check == Check::Count {
            return;
        }
        let (card, flows) = (&mut self.cards[i], self.settings.flows_of(probe.source));
        let orders = &mut card.orders[usize::from(probe.source)];
        if orders.is_empty() {
            orders.resize(flows as usize, Order::default());
        }
        match orders.get_mut(probe.flow as usize).map(|o| o.see(probe.sequence)) {
            Some(Seen::Next | Seen::Gap(_)) => {}
            Some(Seen::Late) => self.findings.reordered += 1,
            Some(Seen::Again) => self.findings.doubled += 1,
            None => self.findings.damaged += 1,
        }
        if self.settings.check == Check::Content {
            let to = match self.settings.pattern {
                Pattern::Broadcast => None,
                Pattern::Reflect => {
                    frame::swap_macs(&mut self.scratch);
                    Some(card.port.number ^ BEHIND)
                }
                _ if probe.back => Some(card.port.number ^ 1),
                _ => Some(card.port.number),
            };
            if !frame::is_intact(&self.scratch, probe, to, self.settings.vary) {
                self.findings.damaged += 1;
            }
        }
    }
}

/// Frames with an address of ours that are no probes.
fn is_announcement(frame: &[u8]) -> bool {
    frame.get(6..8) == Some(&[2, 0x4c])
}
