//! `lasthop acl show --packets`: which rules the packets of all flows met. Each flow is judged anew for it, and there may be 200 000,
//! and as many rules. So of the flows that the switch tells of some are judged at a time, and the next are asked for when those have
//! been; misses are answered in between.

use super::{Answer, Core, FLOWS, Question, give};
use crate::lines::Lines;
use lasthop_api::AclRule;
use lasthop_flow::Position;
use lasthop_ipc::{DatapathRequest, FlowInfo};
use lasthop_policy::acl::{Decision, Direction, Scope};
use std::collections::BTreeMap;

/// Rules that are tried at a time, for all who ask: below a millisecond.
const RULES: u64 = 200_000;

/// By whose list, its direction and the rule's number.
pub(super) type PacketsByRule = BTreeMap<(Scope, Direction, u32), u64>;

/// Somebody wants to know.
#[derive(Debug)]
pub(super) struct Counting {
    ports: Vec<String>,
    packets: PacketsByRule,
    /// Flows to be judged, and where those begin that come after them.
    flows: Vec<FlowInfo>,
    next: Option<Position>,
    pub answer: Answer<Lines<AclRule>>,
}

impl Counting {
    pub fn new(ports: Vec<String>, answer: Answer<Lines<AclRule>>) -> Self {
        Self { ports, packets: BTreeMap::new(), flows: Vec::new(), next: None, answer }
    }

    /// The switch has told of some.
    pub fn with(mut self, flows: Vec<FlowInfo>, next: Option<Position>) -> Self {
        (self.flows, self.next) = (flows, next);
        self
    }
}

impl Core {
    /// Judges some flows.
    pub(super) fn count_some(&mut self) {
        let compared = self.policy.rules_compared();
        while self.policy.rules_compared().wrapping_sub(compared) < RULES
            && let Some(mut counting) = self.counting.pop_front()
        {
            if counting.answer.is_closed() {
                continue;
            }
            let Some(flow) = counting.flows.pop() else {
                self.counted(counting);
                // The others have their turn when there is more time.
                return;
            };
            for (scope, direction, decision) in self.policy.decisions(&flow.flow) {
                let number = match decision {
                    Decision::Rule(n, _) => u32::try_from(n + 1).unwrap_or(u32::MAX),
                    Decision::Default(_) => 0,
                    Decision::Malformed | Decision::Connection | Decision::Invalid | Decision::Basic => continue,
                };
                *counting.packets.entry((scope.clone(), direction, number)).or_insert(0) += flow.packets;
            }
            self.counting.push_front(counting);
        }
    }

    /// All have been judged that the switch has told of.
    fn counted(&mut self, counting: Counting) {
        if let Some(after) = counting.next {
            return self.ask(DatapathRequest::Flows { after }, Question::Rules(counting));
        }
        let rules = self.acl_rules(&counting.ports, Some(counting.packets));
        give(counting.answer, rules);
    }

    /// Other lists hold, and the flows are gone: what has been counted was counted by rules that are none any more.
    pub(super) fn count_anew(&mut self) {
        let mut all: Vec<_> = self.counting.drain(..).collect();
        all.extend(self.questions.extract_if(.., |_, q| matches!(q, Question::Rules(_))).filter_map(
            |(_, q)| match q {
                Question::Rules(counting) => Some(counting),
                _ => None,
            },
        ));
        for Counting { ports, answer, .. } in all {
            self.ask(FLOWS, Question::Rules(Counting::new(ports, answer)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Asker, Event, FromControl};
    use super::*;
    use crate::core::{Call, Command};
    use lasthop_flow::FlowSpec;
    use lasthop_frame::{FlowKey, FlowMask};
    use lasthop_ipc::{DatapathReply, ToControl};
    use lasthop_policy::acl::{Book, read};
    use lasthop_types::PortId;

    fn book(rules: u32) -> Book {
        let text: String = (0..rules).map(|n| format!("deny udp from 10.{}.{}.1 to any\n", n >> 8, n & 255)).collect();
        let mut book = Book::default();
        book.replace(&Scope::Guests, None, &read(&text, None).unwrap()).unwrap();
        book
    }

    fn flow(n: u32) -> FlowInfo {
        let key = FlowKey { in_port: 1, l4_src: n as u16, ..FlowKey::default() };
        let flow = FlowSpec {
            key,
            mask: FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }),
            actions: vec![],
            epoch: 0,
        };
        FlowInfo { flow, packets: 1, bytes: 0, idle_ms: 0 }
    }

    fn asked(core: &mut Core) -> Vec<u64> {
        let request = |command| match command {
            Command::Switch(message) => match *message {
                FromControl::Ask { request, question: DatapathRequest::Flows { .. } } => Some(request),
                _ => None,
            },
            _ => None,
        };
        core.commands().into_iter().filter_map(request).collect()
    }

    /// All flows were judged when the last part had come, in one go: whoever may only look could keep everybody's first packets waiting.
    #[test]
    fn a_bounded_number_of_rules_is_tried_at_a_time() {
        let mut core = Core::new(0);
        (core.attached, core.book) = (true, book(20_000));
        core.policy.set_lists(PortId(1), core.book.of_port("vm1", false));
        let (answer, mut answered) = Answer::new(Asker::Owner);
        core.handle(Event::Call(Call::AclShow { ports: Vec::new(), packets: true, answer }), 0);
        let (mut rounds, mut tell) = (0, [Some((1, 0, 0)), None].into_iter());
        while answered.try_recv().map_or(true, |rules| {
            let rules = rules.unwrap();
            assert_eq!(rules.total(), 20_001);
            assert_eq!(rules.last().unwrap().packets, Some(128), "all came to the default");
            false
        }) {
            let compared = core.policy.rules_compared();
            for request in asked(&mut core) {
                let reply = DatapathReply::Flows { flows: (0..64).map(flow).collect(), next: tell.next().unwrap() };
                core.hear_switch([ToControl::Reply { request, last: true, reply }].into_iter(), 0);
            }
            core.handle(Event::Timer, 0);
            let compared = core.policy.rules_compared() - compared;
            assert!(compared < RULES + 20_000, "{compared} at a time");
            rounds += 1;
        }
        assert!(rounds > 10 && core.deadline_ms() != Some(0), "{rounds}");
    }

    #[test]
    fn other_lists_are_counted_anew() {
        let mut core = Core::new(0);
        (core.attached, core.reconciled, core.book) = (true, true, book(5));
        let (answer, mut answered) = Answer::new(Asker::Owner);
        core.handle(Event::Call(Call::AclShow { ports: Vec::new(), packets: true, answer }), 0);
        let old = asked(&mut core)[0];
        core.confirm(0);
        let new = asked(&mut core)[0];
        for request in [old, new] {
            assert!(answered.try_recv().is_err());
            let reply = DatapathReply::Flows { flows: vec![flow(1)], next: None };
            core.hear_switch([ToControl::Reply { request, last: true, reply }].into_iter(), 0);
            (0..3).for_each(|_| core.handle(Event::Timer, 0));
        }
        assert!(answered.try_recv().unwrap().is_ok());
    }
}
