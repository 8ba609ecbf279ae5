//! The thread that talks: to the supervisor, to the ports' session processes, to control. Packets are the workers' business; only those
//! that waited for control are sent on from here.

use crate::arguments::Arguments;
use crate::control::Control;
use crate::ports::{PortEntry, outlast_bursts};
use crate::unsent::{ToSupervisor, Unsent};
use lasthop_connection::{Connection, End, Rings};
use lasthop_flow::{Action, InsertError};
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, Order, Orders, PATIENCE_MS};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_guestmem::{GuestMemory, MemoryLimits, PinnedSlice, RegionSpec};
use lasthop_ipc::{
    ChannelError, DatapathRequest, FromControl, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor, ToControl,
    UpcallPacket,
};
use lasthop_schedule::{Settings, Workers};
use lasthop_sys::{Beat, Epoll, Foreign, Trigger, Watches, prepare_to_drop_aside};
use lasthop_types::{DropReason, Level, PortId, PortTotals};
use lasthop_virtqueue::{JOURNAL_BYTES, Journal, Patience};
use rustix::net::{Shutdown, shutdown};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// How long a packet waits for control before it is dropped.
const MISS_PATIENCE_MS: u64 = 1000;
/// How often waiting packets are looked at.
const UPCALL_CHECK: Duration = Duration::from_millis(250);
/// Messages taken from control at a time: then the misses there are meanwhile have their turn.
const CONTROL_BURST: usize = 64;
/// Deliveries that control may have a packet take beside one to each port.
const SPARE: usize = 64;
/// And actions for each of them all.
const FOR_EACH: usize = 16;
/// Decisions of control that may wait to be carried out, of all ports: a port whose packets wait has 64 at most, two for each. With more,
/// and for as long, control is not listened to.
const MAX_ORDERS: usize = 4096;
/// Parts of answers that control is sent at a time: then everybody else has his turn.
const ANSWERS_BURST: usize = 4;

/// Address space for guest memory, in bytes: half of what a process has on x86-64 (2^47) and a quarter of what it has on
/// aarch64. All ports together, each with its share and with two tables of regions while one replaces the other, fit.
const ADDRESS_SPACE: u64 = 1 << 46;

const SUPERVISOR: u64 = 0;
const CONTROL: u64 = 1;
const NEWS: u64 = 2;
const FIRST_PORT: u64 = 1 << 32;

/// The switch but for its workers.
pub struct Server {
    datapath: Arc<Datapath>,
    workers: Workers,
    forwarder: Forwarder,
    epoll: Epoll,
    supervisor: ToSupervisor,
    /// What the supervisor has to be told and there was no room for.
    unsent: Unsent,
    control: Option<Control>,
    /// There is something to tell it, or it may have room for what there was no room for.
    to_tell: bool,
    /// The socket to the next one, which begins when all is done that the last one has decided.
    next_control: Option<OwnedFd>,
    /// What control has decided and is still to be done.
    orders: Orders,
    /// A message of control's that waits until all of them are carried out.
    deferred: Option<FromControl>,
    ports: BTreeMap<PortId, PortEntry>,
    /// What ports counted that were removed: from guests, to guests.
    removed: (PortTotals, PortTotals),
    /// Port whose waiting packets control is told of next, so that all get their turn.
    next_to_report: PortId,
    /// Memory that outlives this process, with a record for each ring.
    journal: Option<Arc<GuestMemory>>,
    /// Most memory that one front-end may have mapped, in bytes.
    max_guest_memory: u64,
    /// Packets may wait for control.
    upcalls_wait: bool,
    /// Ports whose queues may have places again: looked at once all of a round is done.
    to_look: BTreeSet<PortId>,
    stop: bool,
}

impl Server {
    /// Starts the workers. `lacks`: steps of the sandbox.
    pub fn new(given: Arguments, told: SwitchSettings, lacks: Vec<String>, watches: Watches) -> Result<Self, Failure> {
        let Arguments { supervisor, journal, view, prompter, .. } = given;
        let (pace, overtaken) = told.patience_ms;
        let patience = Patience { pace: pace.into(), overtaken: overtaken.into(), ..PATIENCE_MS };
        let datapath = Arc::new(Datapath::new(told.max_flows, patience)?);
        let warn = |line| datapath.say(PortId(0), Level::Warn, line);
        lacks.iter().for_each(|step| warn(format!("sandbox: going on without {step}")));
        let view = view.transpose().unwrap_or_else(|error| {
            warn(format!("not known what cores and VMs do: {error}"));
            None
        });
        prepare_to_drop_aside()?;
        let epoll = Epoll::new()?;
        epoll.add(&supervisor, SUPERVISOR, Trigger::Level)?;
        epoll.add(datapath.news(), NEWS, Trigger::Level)?;
        Ok(Self {
            journal: journal.map(map_journal).transpose()?,
            max_guest_memory: told.max_guest_memory,
            workers: Workers::start(&datapath, Settings { told, view, prompter, watches })?,
            forwarder: Forwarder::new(datapath.clone(), CACHE_ENTRIES),
            epoll,
            supervisor,
            unsent: Unsent::default(),
            control: None,
            to_tell: false,
            next_control: None,
            orders: Orders::default(),
            deferred: None,
            ports: BTreeMap::new(),
            removed: Default::default(),
            next_to_report: PortId(0),
            upcalls_wait: false,
            to_look: BTreeSet::new(),
            stop: false,
            datapath,
        })
    }

    /// Serves until told to stop or until the supervisor is gone.
    pub fn serve(mut self) -> Result<(), Failure> {
        self.supervisor.send(&SwitchToSupervisor::Ready, None)?;
        let mut ready = Vec::with_capacity(64);
        let beat = Beat::new();
        while !self.stop {
            let timeout = self.timeout();
            beat.sleep();
            self.epoll.wait(&mut ready, timeout)?;
            for token in &ready {
                beat.work();
                match *token {
                    SUPERVISOR => self.hear_supervisor()?,
                    CONTROL => self.woken_by_control(),
                    NEWS => self.hear_news(),
                    token => self.hear_port(PortId(token as u32)),
                }
            }
            beat.work();
            self.hear_control();
            self.carry_out();
            self.talk();
            self.expire();
            self.report_to_supervisor();
        }
        Ok(())
    }

    fn timeout(&mut self) -> Option<Duration> {
        let done = self.control.as_mut().map(Control::settle).transpose();
        let at_rest = done.unwrap_or_else(|error| {
            self.control_failed(&error);
            None
        });
        if !self.orders.is_empty() || at_rest == Some(false) {
            return Some(if at_rest == Some(false) { Duration::ZERO } else { self.orders.pause() });
        }
        let now = Instant::now();
        let deadlines = self.ports.values().filter_map(|port| port.connection.as_ref()?.deadline());
        let port = deadlines.min().map(|d| d.saturating_duration_since(now));
        let upcalls = self.upcalls_wait.then_some(UPCALL_CHECK);
        port.into_iter().chain(upcalls).min()
    }

    /// Ends the wait of session processes for their answers, and of packets that control does not answer.
    fn expire(&mut self) {
        let now = Instant::now();
        let waiting: Vec<_> =
            self.ports.values().filter(|entry| entry.is_due(now)).map(|entry| entry.port.id).collect();
        waiting.into_iter().for_each(|id| self.hear_port(id));
        if self.upcalls_wait {
            let before = self.datapath.now_ms().saturating_sub(MISS_PATIENCE_MS);
            for entry in self.ports.values() {
                if self.forwarder.expire(&entry.port, before) > 0 {
                    // Alive or not, control does not answer: until it does, no queue waits for it.
                    self.datapath.set_control_answers(false);
                    self.workers.look(entry.port.id);
                }
            }
            self.upcalls_wait = self.ports.values().any(|p| !p.port.upcalls.is_empty());
        }
    }

    fn hear_supervisor(&mut self) -> Result<(), Failure> {
        loop {
            let (message, fd) = match self.supervisor.recv() {
                Ok(received) => received,
                Err(ChannelError::WouldBlock) => return Ok(()),
                Err(ChannelError::Closed) => {
                    self.stop = true;
                    return Ok(());
                }
                Err(error) => return Err(format!("supervisor: {error}").into()),
            };
            match (message, fd) {
                (SupervisorToSwitch::AddPort(id, name), _) => {
                    self.del_port(id);
                    let entry = PortEntry::new(id, name, &self.datapath);
                    if let Some(journal) = &self.journal {
                        keep_journal(&entry, journal);
                    }
                    self.datapath.add_port(entry.port.clone());
                    self.ports.insert(id, entry);
                    self.report(id);
                }
                (SupervisorToSwitch::DelPort(id), _) => self.del_port(id),
                (SupervisorToSwitch::Limits(id, limits), _) => {
                    if let Some(PortEntry { port, .. }) = self.ports.get(&id) {
                        let each = [&port.sends, &port.gets, &port.floods].into_iter().zip(limits.rates);
                        each.for_each(|(limit, to)| limit.set(to.bytes, to.packets, to.burst_ns));
                        port.weight.store(limits.weight, Relaxed);
                        port.poll_cpu.store(limits.poll_cpu, Relaxed);
                        for (batch, (us, packets)) in port.batches.iter().zip(limits.batches) {
                            batch.store(u64::from(us) << 16 | u64::from(packets), Relaxed);
                        }
                        port.kept_for.iter().zip(limits.kept_for).for_each(|(kept, of)| kept.store(of, Relaxed));
                        port.refresh();
                        // What was held may go on.
                        self.workers.look(id);
                    }
                }
                (SupervisorToSwitch::Connection(id, vm), Some(channel)) => self.connect(id, channel, vm),
                (SupervisorToSwitch::ControlChannel, Some(socket)) => self.attach_control(socket),
                (SupervisorToSwitch::Connection(..) | SupervisorToSwitch::ControlChannel, None) => {
                    self.say(Level::Error, "supervisor sent no descriptor with a message that needs one".into());
                }
                // The first message is not heard here.
                (SupervisorToSwitch::Start(..), _) => {}
                (SupervisorToSwitch::Shutdown, _) => self.stop = true,
            }
        }
    }

    fn connect(&mut self, id: PortId, channel: OwnedFd, vm: Option<u32>) {
        let ports = self.ports.len() as u64;
        let bytes = self.max_guest_memory.min(ADDRESS_SPACE / ports.max(1));
        // The supervisor has told of the port before, and has a copy of the channel as well.
        let Some(entry) = self.ports.get_mut(&id) else { return };
        let limits = MemoryLimits { bytes, ..MemoryLimits::default() };
        let rings = Rings::new(entry.port.queues.clone(), entry.aside.clone(), limits, &entry.mapped);
        if entry.aside.is_stuck() || rings.excess().is_some() {
            // Closed here, or each that comes would wait to be closed: the supervisor has a copy, so this is not the end of it.
            let _ = shutdown(&channel, Shutdown::Both);
            drop(channel);
            entry.erred(End::Unclosed.to_string(), End::Unclosed.is_of_memory());
            self.unsent.closed(id, End::Unclosed.to_string());
            return self.report(id);
        }
        let channel = Foreign::new(channel, &entry.aside);
        entry.disconnect(None, &mut self.workers, &self.epoll);
        if let Err(error) = self.epoll.add(&channel, FIRST_PORT | u64::from(id.0), Trigger::Level) {
            let why = format!("connection cannot be watched: {error}");
            entry.warn(why.clone());
            return self.unsent.closed(id, why);
        }
        entry.connection = Some(Connection::new(channel, rings));
        entry.port.set_vm(vm);
        self.report(id);
    }

    fn hear_port(&mut self, id: PortId) {
        let Some(entry) = self.ports.get_mut(&id) else { return };
        match entry.ready(&mut self.workers, &mut self.forwarder, self.datapath.now_ms()) {
            Ok(true) => self.report(id),
            Ok(false) => {}
            Err(error) => self.disconnect(id, &error),
        }
    }

    fn disconnect(&mut self, id: PortId, error: &End) {
        let Some(entry) = self.ports.get_mut(&id) else { return };
        if entry.disconnect(Some(error), &mut self.workers, &self.epoll) {
            self.unsent.closed(id, error.to_string());
            self.report(id);
        }
    }

    fn del_port(&mut self, id: PortId) {
        let Some(mut entry) = self.ports.remove(&id) else { return };
        self.orders.forget(id);
        entry.disconnect(None, &mut self.workers, &self.epoll);
        // Nobody will answer for packets that wait.
        self.forwarder.expire(&entry.port, u64::MAX);
        self.workers.remove(id);
        self.datapath.remove_port(id);
        outlast_bursts(&self.ports);
        entry.port.add_to(&mut self.removed);
        self.unsent.forget(id);
        if let Some(control) = &mut self.control {
            control.port_gone(id);
            self.to_tell = true;
        }
    }

    fn hear_news(&mut self) {
        self.datapath.news().drain();
        for (id, queue) in self.datapath.take_broken() {
            if let Some(entry) = self.ports.get_mut(&id) {
                entry.broke(queue);
                self.report(id);
            }
        }
        if self.datapath.take_missed() {
            (self.upcalls_wait, self.to_tell) = (true, true);
        }
    }

    /// Tells control what it is to know, as long as there is room: how ports are, then of packets that wait, then what it
    /// has asked, a few parts at a time, so that neither a guest's packets nor another's port waits behind long answers.
    fn talk(&mut self) {
        if let Some(control) = &mut self.control {
            control.ended.append(&mut self.forwarder.ended);
            self.to_tell |= !control.ended.is_empty();
        }
        if !std::mem::take(&mut self.to_tell) {
            return;
        }
        let done = self.report_ports_and_upcalls().and_then(|()| {
            for _ in 0..ANSWERS_BURST {
                let Some(control) = &mut self.control else { return Ok(()) };
                if !control.answer(&self.datapath, &self.ports, &self.removed)? {
                    break;
                }
                self.report_ports_and_upcalls()?;
            }
            Ok(())
        });
        if let Some(complaint) = self.control.as_mut().and_then(|control| control.complaint.take()) {
            self.say(Level::Error, complaint);
        }
        if let Err(error) = done {
            return self.control_failed(&error);
        }
        // With room this turn is followed by the next at once.
        self.to_tell = self.control.as_ref().is_some_and(Control::is_backlogged);
    }

    /// Of waiting packets control is told one of each port in turn.
    fn report_ports_and_upcalls(&mut self) -> Result<(), ChannelError> {
        let Some(control) = &mut self.control else { return Ok(()) };
        control.report_ports(&self.ports)?;
        let from = self.next_to_report;
        let mut turn: Vec<_> = self.ports.range(from..).chain(self.ports.range(..from)).collect();
        while !turn.is_empty() {
            let mut left = Vec::new();
            for (id, entry) in turn {
                if control.is_full() {
                    return Ok(());
                }
                let Some(upcall) = entry.port.upcalls.report() else { continue };
                left.push((id, entry));
                let message = ToControl::Upcall(UpcallPacket {
                    id: u64::from(id.0) << 32 | u64::from(upcall.id),
                    copy: upcall.copy,
                    key: upcall.key,
                    header: upcall.header.bytes().to_vec(),
                    frame_len: upcall.frame_len as u32,
                });
                self.next_to_report = PortId(id.0 + 1);
                control.send(message)?;
            }
            turn = left;
        }
        Ok(())
    }

    fn attach_control(&mut self, socket: OwnedFd) {
        self.lose_control();
        self.next_control = Some(socket);
        self.greet_control();
    }

    /// A new control begins with what there is: when what the last one has decided is carried out, some of it in each round.
    fn greet_control(&mut self) {
        let Some(socket) = self.next_control.take_if(|_| self.orders.is_empty() && self.deferred.is_none()) else {
            return;
        };
        if let Err(error) = self.epoll.add(&socket, CONTROL, Trigger::Level) {
            return self.say(Level::Error, format!("control's socket cannot be watched: {error}"));
        }
        match Control::new(socket, self.ports.keys().copied()) {
            Ok(control) => self.control = Some(control),
            Err(error) => return self.control_failed(&error),
        }
        self.datapath.set_control_answers(true);
        for entry in self.ports.values() {
            entry.port.upcalls.report_again();
        }
        self.to_tell = true;
    }

    /// Control is gone: known flows go on, new ones wait for its return as long as there is room.
    fn lose_control(&mut self) {
        if let Some(control) = self.control.take() {
            let _ = self.epoll.delete(&control.rings);
            self.datapath.set_control_answers(false);
            // Nobody else has waited for it. A port that is looked at is silent no more.
            self.ports.values().filter(|p| !p.port.upcalls.is_empty()).for_each(|p| self.workers.look(p.port.id));
        }
    }

    /// It has ended; or it has broken the rules, and then it has to.
    fn control_failed(&mut self, error: &ChannelError) {
        if matches!(error, ChannelError::Nonsense(_)) {
            self.say(Level::Error, format!("control: {error}; it is not listened to any more"));
            self.unsent.control_broke(error.to_string());
        } else {
            self.say(Level::Info, format!("control: {error}"));
        }
        self.lose_control();
    }

    fn woken_by_control(&mut self) {
        self.to_tell = true;
        match self.control.as_mut().map(|control| control.rings.woken()) {
            // The event was of the rings before these.
            None | Some(Ok(_) | Err(ChannelError::WouldBlock)) => {}
            Some(Err(error)) => self.control_failed(&error),
        }
    }

    fn hear_control(&mut self) {
        for _ in 0..CONTROL_BURST {
            let untold = self.control.as_ref().map_or(0, |control| control.ended.len());
            if self.deferred.is_some() || self.orders.len() + untold >= MAX_ORDERS {
                return;
            }
            match self.control.as_mut().map(|control| control.rings.recv()) {
                Some(Ok(message)) => self.obey(message),
                None | Some(Err(ChannelError::WouldBlock)) => return,
                Some(Err(error)) => return self.control_failed(&error),
            }
        }
    }

    fn obey(&mut self, message: FromControl) {
        // What was deferred may be of one that has gone.
        self.datapath.set_control_answers(self.control.is_some());
        match message {
            FromControl::PutFlow(mut spec) => {
                spec.actions = self.bounded(spec.actions);
                let (key, mask) = (spec.key, spec.mask);
                let order = self.forwarder.flow_order(spec);
                self.change(&key, &mask, order);
            }
            FromControl::Resume { id, actions } => {
                let (port, actions) = (PortId((id >> 32) as u32), self.bounded(actions));
                if let Some(entry) = self.ports.get(&port) {
                    self.orders.push(port, Order::packet(&entry.port, id as u32, actions));
                }
            }
            FromControl::DelFlow { key, mask, tell } => self.change(&key, &mask, Order::removal(key, mask, tell)),
            // These are about what was said before, too.
            FromControl::ClearFlows | FromControl::Ask { question: DatapathRequest::Barrier, .. }
                if !self.orders.is_empty() =>
            {
                self.deferred = Some(message);
            }
            FromControl::ClearFlows => drop(self.datapath.flows().remove_if(|_| true)),
            FromControl::SetMeter { id, rates } => self.datapath.set_meter(id, rates),
            FromControl::Ask { request, question } => {
                if let Some(control) = &mut self.control {
                    control.asked(request, question);
                    self.to_tell = true;
                }
            }
        }
    }

    /// What control wants done with a packet, if it is no more than it may take: a delivery to each port and a few besides, with edits and
    /// mirrors' copies. A burst carries out all of a packet's actions with its locks held. Else such packets are dropped.
    fn bounded(&self, actions: Vec<Action>) -> Vec<Action> {
        let delivers = |action: &&Action| matches!(action, Action::Output(_) | Action::Truncated(..));
        let most = self.ports.len() + SPARE;
        let fits = actions.len() <= most * FOR_EACH && actions.iter().filter(delivers).count() <= most;
        if fits { actions } else { vec![Action::Drop(DropReason::BadAction)] }
    }

    fn change(&mut self, key: &FlowKey, mask: &FlowMask, order: Order) {
        let port = key.port();
        if let Some(result) = self.orders.change(&mut self.forwarder, port, key, mask, order) {
            self.carried_out(port, result);
        }
    }

    fn carried_out(&mut self, port: PortId, result: Result<bool, InsertError>) {
        // What waited for a flow that there cannot be has been sent on all the same, so its port may have places again.
        if result != Ok(false) {
            self.to_look.insert(port);
        }
        if let (Err(error), Some(entry)) = (result, self.ports.get_mut(&port)) {
            entry.warn(format!("flow not installed: {error}"));
        }
    }

    /// Does some of what control has decided.
    fn carry_out(&mut self) {
        if !self.orders.is_empty() || self.deferred.is_some() {
            let mut done = Vec::new();
            // What control asks meanwhile, for anybody, is not heard.
            self.orders.hurried = self.deferred.is_some();
            self.orders.round(&mut self.forwarder, |port, result| done.push((port, result)));
            done.into_iter().for_each(|(port, result)| self.carried_out(port, result));
            if self.orders.is_empty()
                && let Some(message) = self.deferred.take()
            {
                self.obey(message);
            }
            self.greet_control();
        }
        std::mem::take(&mut self.to_look).into_iter().for_each(|port| self.workers.look(port));
    }

    /// Control is told how the port is now.
    fn report(&mut self, id: PortId) {
        if let Some(control) = &mut self.control {
            control.port_changed(id);
            self.to_tell = true;
        }
    }

    /// Has a line that is about no port written to the log.
    fn say(&self, level: Level, line: String) {
        self.datapath.say(PortId(0), level, line);
    }

    /// Tells the supervisor what has not been sent yet, as far as there is room.
    fn report_to_supervisor(&mut self) {
        let was_full = self.unsent.is_full();
        if let Err(error) = self.unsent.send(&mut self.supervisor, &self.datapath) {
            crate::last_words(&format!("ERROR supervisor not told: {error}"));
        }
        if self.unsent.is_full() != was_full {
            let trigger = if self.unsent.is_full() { Trigger::ReadWrite } else { Trigger::Level };
            let _ = self.epoll.modify(&self.supervisor, SUPERVISOR, trigger);
        }
    }
}

/// Maps the memory that the supervisor keeps for us.
fn map_journal(fd: OwnedFd) -> Result<Arc<GuestMemory>, Failure> {
    let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size)?;
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, size, mmap_offset: 0 };
    Ok(Arc::new(GuestMemory::empty().with_region(spec, fd).map_err(|error| format!("journal: {error:?}"))?))
}

/// Gives each of the port's queues its record: by port number, which stays the same for as long as the memory does.
/// A port for which there is no room goes without.
fn keep_journal(entry: &PortEntry, journal: &Arc<GuestMemory>) {
    let per_port = (entry.port.queues.len() * JOURNAL_BYTES) as u64;
    for (i, queue) in entry.port.queues.iter().enumerate() {
        let at = u64::from(entry.port.id.0) * per_port + (i * JOURNAL_BYTES) as u64;
        if let Ok(place) = PinnedSlice::new(journal, at, JOURNAL_BYTES) {
            queue.set_journal(Journal::new(place));
        }
    }
}

#[cfg(test)]
mod tests;
