//! What the switch is asked, and what becomes of its answers.

use super::{Answer, Asker, Command, Core, Counting, Forgotten, give, refuse, switch_away};
use crate::view;
use lasthop_api::{AclChanged, Flow, MacFlushed, MirrorList, Port, PortChanged, SetChanged, TraceReport, UplinkList};
use lasthop_ipc::{DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo};
use lasthop_policy::{Effects, FlowUse, Headers, Reconciled};
use lasthop_text::counted;
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// The flows, from the first on.
pub(super) const FLOWS: DatapathRequest = DatapathRequest::Flows { after: (0, 0, 0) };

#[derive(Debug)]
pub(super) enum Question {
    Statistics {
        asked: u64,
        reconcile: bool,
        flows: Vec<FlowUse>,
    },
    /// Whether uplinks take what is sent to them.
    StuckUplinks {
        ports: Vec<PortInfo>,
    },
    /// What ports have done for which there is a bound.
    Spending {
        ports: Vec<PortInfo>,
    },
    Flows {
        flows: Vec<Flow>,
        answer: Answer<Vec<Flow>>,
    },
    Ports {
        ports: Vec<PortInfo>,
        /// Processor time of their threads.
        cpu: BTreeMap<PortId, u64>,
        answer: Answer<Vec<Port>>,
    },
    Trace {
        answer: Answer<TraceReport>,
        /// The frame's beginning, and its length.
        snapshot: Vec<u8>,
        frame_len: usize,
    },
    Rules(Counting),
    /// Answered when no packet is judged by older lists any more.
    Barrier {
        waiting: Vec<Unconfirmed>,
    },
}

impl Question {
    /// Nobody waits for the answer any more.
    pub(super) fn is_given_up(&self) -> bool {
        match self {
            Self::Statistics { .. } | Self::StuckUplinks { .. } | Self::Spending { .. } | Self::Barrier { .. } => false,
            Self::Flows { .. } | Self::Ports { .. } | Self::Trace { .. } | Self::Rules(_) => {
                ![Asker::Owner, Asker::Reader].iter().any(|asker| self.is_of(*asker))
            }
        }
    }

    /// A client of this socket waits for the answer.
    pub(super) fn is_of(&self, asker: Asker) -> bool {
        match self {
            Self::Statistics { .. } | Self::StuckUplinks { .. } | Self::Spending { .. } | Self::Barrier { .. } => false,
            Self::Flows { answer, .. } => answer.is_open_for(asker),
            Self::Ports { answer, .. } => answer.is_open_for(asker),
            Self::Trace { answer, .. } => answer.is_open_for(asker),
            Self::Rules(counting) => counting.answer.is_open_for(asker),
        }
    }
}

/// A change in force, and who is told so once the switch goes by it.
#[derive(Debug)]
pub(super) enum Unconfirmed {
    Lists(AclChanged, Answer<AclChanged>),
    Set(SetChanged, Answer<SetChanged>),
    Uplinks(UplinkList, Answer<UplinkList>),
    Port(PortChanged, Answer<PortChanged>),
    Mirrors(MirrorList, Answer<MirrorList>),
    Forgotten(Forgotten, Answer<Forgotten>),
    Flushed(MacFlushed, Answer<MacFlushed>),
}

impl Unconfirmed {
    pub(super) fn confirm(self) {
        match self {
            Self::Lists(changed, answer) => give(answer, changed),
            Self::Set(changed, answer) => give(answer, changed),
            Self::Uplinks(list, answer) => give(answer, list),
            Self::Port(changed, answer) => give(answer, changed),
            Self::Mirrors(list, answer) => give(answer, list),
            Self::Forgotten(forgotten, answer) => give(answer, forgotten),
            Self::Flushed(flushed, answer) => give(answer, flushed),
        }
    }
}

impl Core {
    pub(super) fn ask_statistics(&mut self, reconcile: bool) {
        let asked = self.policy.asked();
        self.ask(FLOWS, Question::Statistics { asked, reconcile, flows: Vec::new() });
    }

    pub(super) fn ask(&mut self, question: DatapathRequest, pending: Question) {
        self.next_number += 1;
        let request = self.next_number;
        self.questions.insert(request, pending);
        self.commands.push(Command::Switch(FromControl::Ask { request, question }.into()));
    }

    pub(super) fn drop_questions(&mut self, now_ms: u64) {
        self.stats_without_switch(now_ms);
        self.counting.drain(..).for_each(|counting| refuse(counting.answer, switch_away()));
        for question in std::mem::take(&mut self.questions).into_values() {
            match question {
                Question::Statistics { .. } | Question::StuckUplinks { .. } | Question::Spending { .. } => {}
                Question::Flows { answer, .. } => refuse(answer, switch_away()),
                Question::Ports { answer, .. } => refuse(answer, switch_away()),
                Question::Trace { answer, .. } => refuse(answer, switch_away()),
                Question::Rules(counting) => refuse(counting.answer, switch_away()),
                Question::Barrier { waiting } => self.unconfirmed.extend(waiting),
            }
        }
    }

    pub(super) fn switch_answers(
        &mut self,
        request: u64,
        last: bool,
        reply: DatapathReply,
        now_ms: u64,
        out: &mut Effects,
    ) {
        // Answers to questions that were given up are expected.
        let Some(mut question) = self.questions.remove(&request) else { return };
        match (&mut question, reply) {
            (Question::Trace { .. }, DatapathReply::Lookup { key, flow }) => {
                let Question::Trace { answer, snapshot, frame_len } = question else { return };
                let headers = Headers { bytes: &snapshot, frame_len };
                return self.answer_trace(answer, &key, headers, flow, now_ms);
            }
            (Question::Rules(_), DatapathReply::Flows { flows, next }) => {
                let Question::Rules(counting) = question else { return };
                return self.counting.push_back(counting.with(flows, next));
            }
            (question_of_flows, DatapathReply::Flows { flows, next }) => {
                self.some_flows(question_of_flows, flows, now_ms, out);
                if let Some(after) = next
                    && !question.is_given_up()
                {
                    return self.ask(DatapathRequest::Flows { after }, question);
                }
            }
            (
                Question::Ports { ports, .. } | Question::StuckUplinks { ports } | Question::Spending { ports },
                DatapathReply::Ports(mut part),
            ) => {
                part.iter_mut().for_each(|port| self.name_anew(port));
                ports.extend(part);
            }
            (
                Question::Ports { ports, .. } | Question::StuckUplinks { ports } | Question::Spending { ports },
                DatapathReply::Removed { from_guest, to_guest, caches },
            ) => {
                (self.removed, self.caches) = ((from_guest, to_guest), caches);
                self.note_device_ports(ports);
            }
            (Question::Barrier { .. }, DatapathReply::Barrier) => {}
            _ => self.counts.malformed += 1,
        }
        if last {
            self.answered(question, now_ms, out);
        } else {
            self.questions.insert(request, question);
        }
    }

    /// Part of the flows that somebody has asked for.
    pub(super) fn some_flows(&mut self, question: &mut Question, part: Vec<FlowInfo>, now_ms: u64, out: &mut Effects) {
        match question {
            Question::Statistics { asked, reconcile, flows } => {
                let mut uses: Vec<_> = part.into_iter().map(flow_use).collect();
                if *reconcile {
                    flows.append(&mut uses);
                } else {
                    self.policy.statistics_part(*asked, &uses, now_ms, out);
                }
            }
            Question::Flows { flows, .. } => flows.extend(part.iter().map(|f| view::flow(f, |id| self.name(id)))),
            _ => self.counts.malformed += 1,
        }
    }

    /// The whole answer has come.
    pub(super) fn answered(&mut self, question: Question, now_ms: u64, out: &mut Effects) {
        match question {
            Question::Statistics { asked, reconcile: true, flows } => {
                self.policy.reconcile(asked, flows, now_ms);
            }
            Question::Statistics { asked, .. } => {
                self.policy.statistics_end(asked, now_ms, out);
                // Not each time that somebody asks for statistics.
                if std::mem::take(&mut self.ageing_due) {
                    self.policy.tick(now_ms, out);
                }
                self.stats_ready(now_ms);
            }
            Question::StuckUplinks { ports } => {
                self.watched(&ports, now_ms);
                self.check_health(&ports, now_ms);
            }
            Question::Spending { ports } => self.spent(&ports),
            Question::Flows { flows, answer } => give(answer, flows),
            Question::Ports { ports, cpu, answer } => {
                let ports = self.ports(ports, &cpu, now_ms);
                give(answer, ports);
            }
            Question::Barrier { waiting } => waiting.into_iter().for_each(Unconfirmed::confirm),
            // Their answers are of another kind.
            Question::Rules(Counting { answer, .. }) => refuse(answer, switch_away()),
            Question::Trace { answer, .. } => refuse(answer, switch_away()),
        }
    }

    /// The flows that were there have been compared, part by part.
    pub(super) fn look_whether_reconciled(&mut self, now_ms: u64) {
        let Some(Reconciled { flows, corrections }) = self.policy.reconciled() else { return };
        self.reconciled = true;
        tracing::info!(
            "the switch has {}; {} known, {}",
            counted(flows as u64, "flow"),
            counted(self.policy.mac_count() as u64, "address"),
            counted(corrections as u64, "correction")
        );
        self.look_at_owners(now_ms);
    }
}

fn flow_use(flow: FlowInfo) -> FlowUse {
    FlowUse { spec: flow.flow, idle_ms: flow.idle_ms, packets: flow.packets }
}
