//! Requests of clients, a datagram at a time, one after the other. What has to be known before one is answered is asked first: what flows
//! and ports have counted, interfaces that are to be opened. What the switch is to forget it has forgotten when the answer goes out.

use crate::requests::Needs;
use crate::{Datapath, Out};
use lasthop_conntrack::{Cursor, Filter};
use lasthop_ipc::{DatapathReply, DatapathRequest, FlowInfo, FromControl};
use lasthop_management_ipc::ControlToSupervisor;
use lasthop_ovs_abi::netlink::{Writer, flag};
use lasthop_ovs_abi::{family, family::command};
use std::collections::{BTreeMap, BTreeSet};

/// With more of a flow's parts than this in the switch all flows are asked for.
const MOST_LOOKUPS: usize = 64;
/// So often at most flows of the switch's are taken back for a request: those that packets make meanwhile go with what it changes.
const MOST_ROUNDS: u32 = 4;
/// A dump's datagrams are about so long.
const DUMP_BYTES: usize = 16 * 1024;

/// Bytes of answers to one datagram, beyond which the rest of it is refused: dumps of flows and connections are none of them.
const MOST_ANSWERED: usize = 4 << 20;

/// A dump of flows that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dump {
    pub sequence: u32,
    pub omit: u32,
    /// The last flow that was told.
    pub after: u64,
    /// It is one of connections, from here on, of this zone.
    pub connections: Option<(Cursor, Option<u16>)>,
}

impl Dump {
    /// One of connections.
    pub fn connections(sequence: u32, zone: Option<u16>) -> Self {
        Self { sequence, omit: 0, after: 0, connections: Some((Cursor::default(), zone)) }
    }
}

/// A request to end connections by what they are: the table is gone through some places at a time, and other requests are carried out in between.
#[derive(Debug)]
pub(crate) struct Flush {
    job: Job,
    at: Cursor,
    zone: Option<u16>,
    /// The switch was told something.
    told: bool,
}

/// Places of the table of connections that are looked at in a turn: below a millisecond if all are taken.
const FLUSHED_AT_ONCE: u32 = 1024;

/// A request that is being worked on.
#[derive(Debug)]
pub(crate) struct Job {
    pid: u32,
    /// The datagram, until it is carried out, and how much of it is.
    datagram: Option<Vec<u8>>,
    pub done: usize,
    /// Questions to the switch that are open, and to the supervisor, each with the port that it is about.
    to_switch: BTreeSet<u64>,
    to_supervisor: BTreeMap<u64, String>,
    /// Interfaces that could not be opened.
    pub failed: BTreeSet<String>,
    answers: Vec<Vec<u8>>,
    answer_bytes: usize,
    /// The switch was told something that the answers have to wait for.
    pub told: bool,
    /// Connections of this zone are to end, or of all.
    pub flush: Option<Option<u16>>,
    /// How often flows of the switch's were taken back for it.
    rounds: u32,
}

impl Job {
    fn new(pid: u32, datagram: Vec<u8>) -> Self {
        let (to_switch, to_supervisor) = (BTreeSet::new(), BTreeMap::new());
        let (datagram, failed, answers) = (Some(datagram), BTreeSet::new(), Vec::new());
        let (done, answer_bytes, told, flush, rounds) = (0, 0, false, None, 0);
        Self { pid, datagram, done, to_switch, to_supervisor, failed, answers, answer_bytes, told, flush, rounds }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn answer(&mut self, answer: Vec<u8>) {
        self.answer_bytes += answer.len();
        self.answers.push(answer);
    }

    pub fn has_too_many_answers(&self) -> bool {
        self.answer_bytes > MOST_ANSWERED
    }
}

impl Datapath {
    /// Nobody waits for what this client has asked to be ended any more: what has not been ended stays.
    pub(crate) fn forget_flushes(&mut self, pid: u32) {
        self.flushes.retain(|flush| flush.job.pid != pid);
        self.flushed.retain(|(job, _)| job.pid != pid);
        self.turns.forget(pid);
    }

    /// A client asks for something. It is to ask for nothing else before that is [`Out::Finished`].
    pub fn request(&mut self, pid: u32, datagram: Vec<u8>) {
        self.waiting.push(pid, datagram);
        self.next_job();
    }

    pub(crate) fn next_job(&mut self) {
        while self.active.is_none() {
            if let Some(job) = self.turns.next_sent() {
                self.active = Some(job);
                self.go_on();
                continue;
            }
            if let Some((job, told)) = self.flushed.pop_front() {
                self.active = Some(job);
                self.answer_when_told(told);
                continue;
            }
            let Some((pid, datagram)) = self.turns.next_of(&mut self.waiting) else { return };
            let needs = self.needs(&datagram);
            self.active = Some(Job::new(pid, datagram));
            self.gather(needs);
            self.go_on();
        }
    }

    fn gather(&mut self, needs: Needs) {
        if self.attached {
            if needs.all_flows || needs.flows.len() > MOST_LOOKUPS {
                self.ask(DatapathRequest::Flows { after: (0, 0, 0) });
            } else {
                for id in needs.flows {
                    if let Some(unified) = self.registry.get(id) {
                        self.ask(DatapathRequest::Lookup(unified.key));
                    }
                }
            }
            if !needs.ends.is_empty() {
                for id in needs.ends {
                    self.take_back(id);
                }
                // What they have carried is told before this is answered.
                self.ask(DatapathRequest::Barrier);
            }
            needs.meters.into_iter().for_each(|meter| self.ask(DatapathRequest::Meter(meter)));
            if needs.ports {
                self.ask(DatapathRequest::Ports);
            }
        }
        for uplink in needs.open {
            let name = uplink.name.clone();
            self.ask_supervisor(name, |request| ControlToSupervisor::UplinkAdd { request, uplink });
        }
        for name in needs.close {
            self.ask_supervisor(name.clone(), |request| ControlToSupervisor::PortDel { request, name });
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    fn ask(&mut self, question: DatapathRequest) {
        let request = self.number();
        if let Some(job) = &mut self.active {
            job.to_switch.insert(request);
        }
        self.tell_switch(FromControl::Ask { request, question });
    }

    fn ask_supervisor(&mut self, name: String, message: impl FnOnce(u64) -> ControlToSupervisor) {
        let request = self.number();
        if let Some(job) = &mut self.active {
            job.to_supervisor.insert(request, name);
        }
        self.out.push(Out::Supervisor(message(request)));
    }

    /// Carries the request out once all is known, and answers once that has taken effect.
    fn go_on(&mut self) {
        let Some(job) = &mut self.active else { return };
        if !job.to_switch.is_empty() || !job.to_supervisor.is_empty() {
            return;
        }
        if let Some(datagram) = job.datagram.take() {
            job.rounds += 1;
            let may_wait = self.attached && job.rounds < MOST_ROUNDS;
            let rest = datagram.get(job.done..).unwrap_or_default();
            let ends = if may_wait { self.needs(rest).ends } else { BTreeSet::new() };
            let Some(job) = &mut self.active else { return };
            if !ends.is_empty() {
                // A packet has come meanwhile, and made one anew.
                job.datagram = Some(datagram);
                return self.gather(Needs { ends, ..Needs::default() });
            }
            let Some(mut job) = self.active.take() else { return };
            let before = self.left_of_turn();
            self.carry_out_more(&mut job, &datagram);
            self.took(job.pid(), before);
            if job.done < datagram.len() {
                (job.datagram, job.rounds) = (Some(datagram), 0);
            }
            if self.turns.is_behind() {
                return self.set_aside(job);
            }
            return self.is_carried_out(job);
        }
        if let Some(job) = self.active.take() {
            self.is_carried_out(job);
        }
    }

    /// All of a request is carried out, and its packets are sent.
    fn is_carried_out(&mut self, mut job: Job) {
        let told = std::mem::take(&mut job.told);
        if let Some(zone) = job.flush.take() {
            return self.flushes.push_back(Flush { job, at: Cursor::default(), zone, told });
        }
        self.active = Some(job);
        self.answer_when_told(told);
    }

    /// The request is carried out: it is answered, once the switch has done what it was told.
    fn answer_when_told(&mut self, told: bool) {
        if told && self.attached {
            return self.ask(DatapathRequest::Barrier);
        }
        if let Some(job) = self.active.take() {
            self.out.extend(job.answers.into_iter().map(|answer| Out::Answer(job.pid, answer)));
            self.out.push(Out::Finished(job.pid));
        }
    }

    /// Ends some more of the connections that somebody wants ended; who asks for that has turns.
    pub(crate) fn flush_some(&mut self) {
        let Some(mut flush) = self.flushes.pop_front() else { return };
        let filter = Filter { zone: flush.zone, ..Filter::default() };
        let tracker = self.connections.tracker.as_ref();
        let next = tracker.and_then(|tracker| tracker.flush(flush.at, FLUSHED_AT_ONCE, &filter, self.now_ms));
        flush.told |= self.connections_changed(Vec::new());
        match next {
            Some(at) => self.flushes.push_back(Flush { at, ..flush }),
            None => self.flushed.push_back((flush.job, flush.told)),
        }
        self.next_job();
    }

    /// There is more for [`Datapath::tick`] to do at once, a part at a time.
    pub fn is_busy(&self) -> bool {
        self.turns.is_busy() || !self.flushes.is_empty() || self.connections.is_behind()
    }

    /// One of the switch's flows has carried something, or not.
    fn carried(&mut self, flow: &FlowInfo) {
        let tuples = self.registry.share(flow, self.now_ms, &mut self.table);
        self.connections.keep(tuples, self.now_ms.saturating_sub(flow.idle_ms), self.now_ms);
    }

    /// The switch has answered a question.
    pub(crate) fn switch_answers(&mut self, request: u64, last: bool, reply: &DatapathReply) {
        let mut done = last;
        match reply {
            DatapathReply::Flows { flows, next } => {
                for flow in flows {
                    self.carried(flow);
                }
                if let (true, Some(after)) = (last, *next) {
                    done = false;
                    self.tell_switch(FromControl::Ask { request, question: DatapathRequest::Flows { after } });
                }
            }
            DatapathReply::Lookup { flow: Some(flow), .. } => {
                self.carried(flow);
            }
            DatapathReply::Ports(ports) => {
                self.totals.extend(ports.iter().map(|port| (port.id, crate::ports::Totals::of(port))));
            }
            DatapathReply::Meter { id, passed, dropped } => self.meters.counted(*id, [*passed, *dropped], self.now_ms),
            DatapathReply::Barrier => self.tunnels_settle(request),
            DatapathReply::Lookup { .. } | DatapathReply::Removed { .. } => {}
        }
        if let Some(job) = self.active.as_mut().filter(|_| done) {
            job.to_switch.remove(&request);
        }
        self.go_on();
        self.next_job();
    }

    /// The switch is away: what it was asked it does not answer.
    pub(crate) fn give_up_on_switch(&mut self) {
        if let Some(job) = &mut self.active {
            job.to_switch.clear();
        }
        self.go_on();
        self.next_job();
    }

    /// The supervisor has opened or closed an interface, or could not.
    pub(crate) fn supervisor_answers(&mut self, request: u64, error: Option<&String>) {
        let Some(job) = &mut self.active else { return };
        let Some(name) = job.to_supervisor.remove(&request) else { return };
        if let Some(error) = error {
            tracing::warn!("port {name} of Open vSwitch: {error}");
            job.failed.insert(name);
        } else if self.configs.contains_key(&name) {
            self.opened.insert(name);
        } else {
            self.opened.remove(&name);
        }
        self.go_on();
        self.next_job();
    }

    /// Whether a dump of this client's goes on.
    pub fn has_more(&self, pid: u32) -> bool {
        self.clients.get(&pid).is_some_and(|client| client.dump.is_some())
    }

    /// The next datagram of a client's dump.
    pub fn more(&mut self, pid: u32) -> Option<Vec<u8>> {
        let dump = self.clients.get(&pid)?.dump?;
        let mut to = Writer::new();
        if let Some((from, zone)) = dump.connections {
            let next = self.write_connections(from, (dump.sequence, zone), pid, &mut to);
            if next.is_none() {
                to.done(dump.sequence, pid);
            }
            let again = next.map(|next| Dump { connections: Some((next, zone)), ..dump });
            self.clients.get_mut(&pid)?.dump = again;
            return Some(to.into_bytes());
        }
        let dump = self.clients.get_mut(&pid)?.dump.as_mut()?;
        let mut is_over = true;
        for (id, flow) in self.table.after(dump.after) {
            if to.len() >= DUMP_BYTES {
                is_over = false;
                break;
            }
            to.begin(family::FLOW.id, flag::MULTI, dump.sequence, pid);
            to.ovs_header(command::NEW, family::FLOW.version, crate::requests::DP_IFINDEX);
            flow.write(dump.omit, &mut to);
            to.end();
            dump.after = id;
        }
        if is_over {
            // Who wants to have less told is looking after its flows; people want to see those that there are.
            if dump.omit != 0 {
                self.repeats.write(self.now_ms, (dump.sequence, pid), &mut to);
            }
            to.done(dump.sequence, pid);
            self.clients.get_mut(&pid)?.dump = None;
        }
        Some(to.into_bytes())
    }
}
