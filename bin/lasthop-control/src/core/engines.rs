//! `lasthop engine`: which CPUs do ports' work. The supervisor has it otherwise, by another switch that takes over; which port falls to which core
//! that polls is known here.

use super::{Answer, Command, Core, MAX_QUESTIONS, busy, give, refuse};
use lasthop_api::{Engine, EngineList, Upgraded};
use lasthop_ipc::PortInfo;
use lasthop_management_ipc::{ControlToSupervisor, EngineChange, EngineInfo, EngineKind};
use lasthop_types::{fall_to, polled_by};
use std::collections::BTreeMap;

/// What is asked for.
#[derive(Debug)]
pub(crate) enum EngineCall {
    List(Answer<EngineList>),
    Change { change: EngineChange, attempt: String, answer: Answer<Upgraded> },
}

/// Those who wait for what the supervisor says of them.
pub(super) type EngineLists = BTreeMap<u64, Answer<EngineList>>;

impl Core {
    pub(super) fn engine_call(&mut self, call: EngineCall) {
        match call {
            EngineCall::Change { change, attempt, answer } => {
                self.ask_to_replace(answer, |request| ControlToSupervisor::EngineChange { request, change, attempt });
            }
            EngineCall::List(answer) => {
                self.engine_lists.retain(|_, answer| !answer.is_closed());
                let asker = answer.asker;
                if self.engine_lists.values().filter(|other| other.asker == asker).count() >= MAX_QUESTIONS {
                    return refuse(answer, busy());
                }
                self.next_number += 1;
                let request = self.next_number;
                self.engine_lists.insert(request, answer);
                self.commands.push(Command::Supervisor(ControlToSupervisor::EngineList { request }));
            }
        }
    }

    /// The supervisor says which there are.
    pub(super) fn engines_are(&mut self, request: u64, engines: &[EngineInfo], set: [String; 3]) {
        let Some(answer) = self.engine_lists.remove(&request) else { return };
        // A thread that has none could not be bound to its core, and gets no ring.
        let polls = engines.iter().filter(|engine| engine.kind == EngineKind::Poll && engine.cpu_ns.is_some());
        let polls = polls.count();
        let mut nth = 0;
        let shown = engines.iter().map(|engine| {
            let is_poll = engine.kind == EngineKind::Poll && engine.cpu_ns.is_some();
            let mut ports: Vec<_> = engine.ports.iter().map(|id| self.name(*id)).collect();
            if is_poll {
                let infos = self.infos.values().filter(|info| falls_to(info, nth, polls));
                ports.extend(infos.map(|info| self.name(info.id)));
                nth += 1;
            }
            Engine { kind: engine.kind.name().into(), cpus: engine.cpus.clone(), cpu_ns: engine.cpu_ns, ports }
        });
        let engines = shown.collect();
        let [poll, helper, ports] = set;
        give(answer, EngineList { engines, poll, helper, ports });
    }
}

/// Whether one of the port's rings from which packets come is polled by the core with this place among so many.
fn falls_to(port: &PortInfo, nth: usize, of: usize) -> bool {
    let rings = port.queues.iter().filter(|queue| queue.enabled && queue.index % 2 == 1);
    rings.into_iter().any(|queue| fall_to(polled_by(port.id, queue.index), of) == nth)
}
