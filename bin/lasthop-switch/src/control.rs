//! The rings to control: what control is told, in which order, and what waits for room in them.
//!
//! Nothing that waits here grows with what guests do. Of a port control is told how it is when there is room, however often
//! it changed meanwhile; a question is answered part by part, each made when there is room for it; packets that wait for control
//! wait with their ports.

use crate::ports::{PortEntry, outlast_bursts};
use lasthop_flow::{Flow, Lookup};
use lasthop_forward::Datapath;
use lasthop_frame::{Depth, FlowKey};
use lasthop_ipc::{ChannelError, DatapathReply, DatapathRequest, FlowInfo, SwitchEnd, ToControl};
use lasthop_types::{PortId, PortTotals};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Flows looked at for one message: it stays below the channel's limit, and the lock of the flow table is held for
/// microseconds.
const FLOWS_PER_MESSAGE: usize = 64;
/// Questions that may wait. Control asks less than half as many at a time; those of a control that asks more are not answered.
const MAX_QUESTIONS: usize = 256;

/// What control has not been told of a port yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It came, or changed.
    Changed,
    /// It was removed.
    Gone,
    /// It was removed, and there is one with its number again.
    Anew,
}

/// A question, and how far the answer to it is.
#[derive(Debug)]
struct Question {
    request: u64,
    question: DatapathRequest,
    /// Of [`DatapathRequest::Ports`]: the last port that was told.
    told: Option<PortId>,
    /// And that this was the last there is.
    all_told: bool,
}

/// Our end of the rings.
#[derive(Debug)]
pub struct Control {
    /// What it says, and how it is woken.
    pub rings: SwitchEnd,
    /// A message there was no room for.
    unsent: Option<ToControl>,
    /// Control knows all ports there were when it came.
    greeted: bool,
    news: BTreeMap<PortId, News>,
    questions: VecDeque<Question>,
    /// Flows that are gone, of which it is told what they have carried.
    pub ended: Vec<Arc<Flow>>,
    /// That is said once.
    asked_too_much: bool,
    /// A line for the log.
    pub complaint: Option<String>,
}

impl Control {
    /// Takes the socket. All of `ports` are news to whoever is at the other end.
    pub fn new(socket: OwnedFd, ports: impl Iterator<Item = PortId>) -> Result<Self, ChannelError> {
        let news = ports.map(|id| (id, News::Changed)).collect();
        Ok(Self {
            rings: SwitchEnd::new(socket)?,
            unsent: None,
            greeted: false,
            news,
            questions: VecDeque::new(),
            ended: Vec::new(),
            asked_too_much: false,
            complaint: None,
        })
    }

    /// The port came or changed: control is told when there is room, once.
    pub fn port_changed(&mut self, id: PortId) {
        let news = self.news.entry(id).or_insert(News::Changed);
        if *news == News::Gone {
            *news = News::Anew;
        }
    }

    /// The port was removed.
    pub fn port_gone(&mut self, id: PortId) {
        self.news.insert(id, News::Gone);
    }

    /// Control has asked something: it is answered when there is room.
    pub fn asked(&mut self, request: u64, question: DatapathRequest) {
        if self.questions.len() >= MAX_QUESTIONS {
            if !std::mem::replace(&mut self.asked_too_much, true) {
                let what = format!("control asks more than {MAX_QUESTIONS} questions at a time; some are not answered");
                self.complaint = Some(what);
            }
            return;
        }
        self.questions.push_back(Question { request, question, told: None, all_told: false });
    }

    /// Sends, or keeps the message until there is room: then it has to be false before the next one. An error means that
    /// control is gone.
    pub fn send(&mut self, message: ToControl) -> Result<(), ChannelError> {
        debug_assert!(self.unsent.is_none());
        self.unsent = Some(message);
        self.flush()
    }

    /// Something waits for room: nothing else can be sent.
    pub fn is_full(&self) -> bool {
        self.unsent.is_some()
    }

    /// Something is to be told as soon as there is room.
    pub fn is_backlogged(&self) -> bool {
        self.is_full() || !self.news.is_empty() || !self.questions.is_empty() || !self.ended.is_empty() || !self.greeted
    }

    fn flush(&mut self) -> Result<(), ChannelError> {
        let Some(message) = &self.unsent else { return Ok(()) };
        match self.rings.send(message) {
            Err(ChannelError::WouldBlock) => return Ok(()),
            Err(error @ ChannelError::TooLong) => {
                self.complaint = Some(format!("message to control not sent: {error}"));
            }
            result => result?,
        }
        self.unsent = None;
        Ok(())
    }

    /// Tells how ports are, as far as there is room: before packets that came from them, and before all answers.
    pub fn report_ports(&mut self, ports: &BTreeMap<PortId, PortEntry>) -> Result<(), ChannelError> {
        self.flush()?;
        while !self.is_full()
            && let Some((id, news)) = self.news.pop_first()
        {
            if news != News::Changed {
                self.send(ToControl::PortGone(id))?;
            }
            if news == News::Gone {
                continue;
            }
            if self.is_full() {
                self.news.insert(id, News::Changed);
            } else if let Some(entry) = ports.get(&id) {
                self.send(ToControl::Port(entry.info()))?;
            }
        }
        if !self.greeted && !self.is_full() {
            self.greeted = true;
            self.send(ToControl::Hello)?;
        }
        Ok(())
    }

    /// Tells of flows that have ended, and sends one part of an answer, if there is room and somebody asked. False: there was nothing to do.
    /// `removed`: what ports counted that are no more.
    pub fn answer(
        &mut self,
        datapath: &Datapath,
        ports: &BTreeMap<PortId, PortEntry>,
        removed: &(PortTotals, PortTotals),
    ) -> Result<bool, ChannelError> {
        let now_ms = datapath.now_ms();
        while !self.is_full()
            && self.greeted
            && let Some(flow) = self.ended.pop()
        {
            self.send(ToControl::Ended(flow_info(&flow, now_ms).into()))?;
        }
        if self.is_full() || !self.greeted {
            return Ok(false);
        }
        let Some(Question { request, question, told, all_told }) = self.questions.pop_front() else { return Ok(false) };
        let mut last = true;
        let reply = match &question {
            DatapathRequest::Flows { after } => flows(datapath, *after, now_ms),
            DatapathRequest::Ports if all_told => {
                let (from_guest, to_guest) = removed.clone();
                DatapathReply::Removed { from_guest, to_guest, caches: datapath.caches() }
            }
            DatapathRequest::Ports => {
                last = false;
                let mut next = ports.range((told.map_or(Unbounded, Excluded), Unbounded));
                let port = next.next().map(|(_, entry)| entry.info());
                let all_told = next.next().is_none();
                let told = port.as_ref().map(|info| info.id);
                self.questions.push_front(Question { request, question, told, all_told });
                DatapathReply::Ports(port.into_iter().collect())
            }
            DatapathRequest::Lookup(key) => lookup(datapath, key, now_ms),
            DatapathRequest::Meter(id) => {
                let [passed, dropped] = datapath.meter_counts(*id);
                DatapathReply::Meter { id: *id, passed, dropped }
            }
            DatapathRequest::Barrier => {
                outlast_bursts(ports);
                DatapathReply::Barrier
            }
        };
        self.send(ToControl::Reply { request, last, reply })?;
        Ok(true)
    }

    /// Control has what it was sent, all at once. Whether there is nothing to do for it before it wakes us.
    pub fn settle(&mut self) -> Result<bool, ChannelError> {
        self.rings.flush()?;
        Ok((self.is_full() || !self.is_backlogged()) && self.rings.rest()?)
    }
}

fn flows(datapath: &Datapath, after: lasthop_flow::Position, now_ms: u64) -> DatapathReply {
    if after == (0, 0, 0) {
        // Control asks now and then while there is traffic: a good moment to put busy masks first.
        datapath.flows().rank();
    }
    let (flows, next) = datapath.flows().flows_after(after, FLOWS_PER_MESSAGE);
    DatapathReply::Flows { flows: flows.iter().map(|flow| flow_info(flow, now_ms)).collect(), next }
}

fn lookup(datapath: &Datapath, key: &FlowKey, now_ms: u64) -> DatapathReply {
    let flow = match datapath.flows().lookup(key, Depth::Full) {
        Lookup::Flow(flow) => Some(Box::new(flow_info(&flow, now_ms))),
        _ => None,
    };
    DatapathReply::Lookup { key: *key, flow }
}

fn flow_info(flow: &Flow, now_ms: u64) -> FlowInfo {
    FlowInfo {
        flow: flow.spec(),
        packets: flow.stats.packets(),
        bytes: flow.stats.bytes(),
        idle_ms: now_ms.saturating_sub(flow.stats.last_used_ms()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_flow::{Action, FlowSpec};
    use lasthop_frame::FlowMask;
    use lasthop_ipc::{ControlEnd, ring_pair};

    struct Rig {
        control: Control,
        far: ControlEnd,
        datapath: Arc<Datapath>,
        ports: BTreeMap<PortId, PortEntry>,
        removed: (PortTotals, PortTotals),
    }

    impl Rig {
        /// A switch with ports 1 to `ports`, and a control that reads when it is told to.
        fn new(ports: u32) -> Self {
            let (ours, theirs) = ring_pair().unwrap();
            let datapath = Arc::new(Datapath::new(1000, lasthop_forward::PATIENCE_MS).unwrap());
            let entry = |id| {
                let id = PortId(id);
                (id, PortEntry::new(id, format!("p{id}"), &datapath))
            };
            let ports: BTreeMap<_, _> = (1..=ports).map(entry).collect();
            let control = Control::new(ours, ports.keys().copied()).unwrap();
            Self { control, far: ControlEnd::new(theirs).unwrap(), datapath, ports, removed: Default::default() }
        }

        fn talk(&mut self) {
            self.control.report_ports(&self.ports).unwrap();
            while self.control.answer(&self.datapath, &self.ports, &self.removed).unwrap() {}
            self.control.settle().unwrap();
        }

        /// Everything there is to hear, while the switch goes on as there is room.
        fn hear(&mut self) -> Vec<ToControl> {
            let mut heard = Vec::new();
            loop {
                let before = heard.len();
                heard.extend(std::iter::from_fn(|| self.far.recv().ok()));
                self.far.flush().unwrap();
                if heard.len() == before && !self.control.is_backlogged() {
                    return heard;
                }
                self.talk();
            }
        }
    }

    fn ids(heard: &[ToControl]) -> Vec<u32> {
        let id = |m: &ToControl| match m {
            ToControl::Port(info) => Some(info.id.0),
            _ => None,
        };
        heard.iter().filter_map(id).collect()
    }

    #[test]
    fn control_is_greeted_when_it_knows_the_ports_however_many() {
        let mut rig = Rig::new(1000);
        let heard = rig.hear();
        assert_eq!(ids(&heard), (1..=1000).collect::<Vec<_>>());
        assert_eq!(heard.last(), Some(&ToControl::Hello));
    }

    #[test]
    fn a_port_that_changes_all_the_time_is_one_piece_of_news() {
        let mut rig = Rig::new(3);
        rig.hear();
        for _ in 0..100_000 {
            rig.control.port_changed(PortId(2));
            rig.talk();
        }
        assert!(rig.control.news.len() <= 1, "{:?}", rig.control.news);
        rig.control.port_changed(PortId(3));
        rig.control.port_changed(PortId(1));
        rig.control.port_gone(PortId(1));
        rig.control.port_gone(PortId(3));
        rig.control.port_changed(PortId(3));
        rig.ports.remove(&PortId(1));
        assert!(rig.control.news.len() <= 3);
        let heard = rig.hear();
        assert!(heard.len() < 5000, "of 100 000 changes as many as a ring holds: {}", heard.len());
        let last = &heard[heard.len() - 4..];
        assert_eq!(ids(last), [2, 3], "port 1 is gone");
        let gone: Vec<_> = last.iter().map(|m| matches!(m, ToControl::PortGone(_))).collect();
        assert_eq!(gone, [true, false, true, false], "port 3 went and came back");
    }

    #[test]
    fn answers_come_part_by_part_and_no_question_is_kept_beyond_a_limit() {
        let mut rig = Rig::new(5);
        rig.hear();
        for n in 0..300 {
            let spec = FlowSpec {
                key: FlowKey { in_port: n, ..FlowKey::default() },
                mask: FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }),
                actions: vec![Action::Output(PortId(n))],
                epoch: 0,
            };
            rig.datapath.flows().insert(spec, 0).unwrap();
        }
        rig.control.asked(1, DatapathRequest::Ports);
        rig.control.asked(2, DatapathRequest::Barrier);
        let (mut after, mut met, mut parts) = (Some((0, 0, 0)), Vec::new(), 0);
        while let Some(from) = after {
            rig.control.asked(3, DatapathRequest::Flows { after: from });
            for message in rig.hear() {
                let ToControl::Reply { request: 3, last: true, reply: DatapathReply::Flows { flows, next } } = message
                else {
                    continue;
                };
                assert!(flows.len() <= FLOWS_PER_MESSAGE);
                parts += 1;
                met.extend(flows.iter().map(|f| f.flow.key.in_port));
                after = next;
            }
        }
        met.sort_unstable();
        assert_eq!((met, parts), ((0..300).collect(), 5));
        // A control that asks and does not read.
        for n in 0..100_000 {
            rig.control.asked(n, DatapathRequest::Ports);
            rig.talk();
        }
        assert!(rig.control.questions.len() <= MAX_QUESTIONS);
    }

    #[test]
    fn flows_that_have_ended_are_told_before_the_answer_to_who_waits_for_that() {
        let mut rig = Rig::new(1);
        let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
        let flow = |n| {
            let key = FlowKey { in_port: n, ..FlowKey::default() };
            rig.datapath.flows().insert(FlowSpec { key, mask, actions: Vec::new(), epoch: 0 }, 0).unwrap()
        };
        // More than a ring holds, before control is greeted.
        rig.control.ended = (0..20_000).map(flow).collect();
        rig.control.asked(7, DatapathRequest::Barrier);
        let heard = rig.hear();
        let at = |is: fn(&ToControl) -> bool| heard.iter().position(is).unwrap();
        assert!(at(|m| *m == ToControl::Hello) < at(|m| matches!(m, ToControl::Ended(_))));
        assert_eq!(heard.iter().filter(|m| matches!(m, ToControl::Ended(_))).count(), 20_000);
        assert!(matches!(heard.last(), Some(ToControl::Reply { request: 7, reply: DatapathReply::Barrier, .. })));
    }
}
