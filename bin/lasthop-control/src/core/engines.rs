//! `lasthop engine`: which CPUs do ports' work. The supervisor has it otherwise, by another switch that takes over; which port falls to which core
//! that polls is known here.

use super::{Answer, Command, Core, MAX_QUESTIONS, busy, give, refuse};
use lasthop_api::{ApiError, Engine, EngineList, Upgraded};
use lasthop_ipc::{PortInfo, QueueInfo};
use lasthop_management_ipc::{ControlToSupervisor, EngineChange, EngineInfo, EngineKind};
use lasthop_policy::{PortEngine, engine_name};
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
                let refused = |message| ApiError::EngineRefused { message };
                let asked = |request| ControlToSupervisor::EngineChange { request, change, attempt };
                self.ask_to_replace(answer, refused, asked);
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
    pub(super) fn engines_are(
        &mut self,
        request: u64,
        engines: &[EngineInfo],
        (set, near, near_to): ([String; 3], String, u32),
    ) {
        let Some(answer) = self.engine_lists.remove(&request) else { return };
        // One that has no thread could not be bound to its core, and gets no ring.
        let polls = engines.iter().filter(|engine| engine.kind == EngineKind::Poll && engine.cpu_ns.is_some());
        let polls: Vec<_> = polls.map(|engine| engine.cpus.parse::<u16>().ok()).collect();
        let shown = engines.iter().map(|engine| {
            let cpu = engine.cpus.parse().ok();
            let nth = polls.iter().position(|other| *other == cpu);
            let serves = |info: &&PortInfo| match engine.kind {
                EngineKind::Poll => nth.is_some_and(|nth| self.falls_to(info, nth, &polls)),
                EngineKind::Ports => self.is_own(info, &polls),
                EngineKind::Helper => false,
            };
            let ports: Vec<_> = self.infos.values().filter(serves).map(|info| self.name(info.id)).collect();
            let kind = engine.kind.name();
            let name = match engine.kind {
                EngineKind::Ports => kind.to_owned(),
                _ => engine_name(kind, &engine.cpus),
            };
            // Where none of them has a thread of its own, or is to have one, nothing is wrong with where such threads run.
            let concerns = engine.kind != EngineKind::Ports || !ports.is_empty();
            let (cpus, nodes) = (engine.cpus.clone(), engine.nodes.clone());
            let trouble = engine.trouble.clone().filter(|_| concerns);
            Engine { name, kind: kind.into(), cpus, nodes, cpu_ns: engine.cpu_ns, ports, trouble }
        });
        let engines = shown.collect();
        let [poll, helper, ports] = set;
        give(answer, EngineList { engines, poll, helper, ports, near, near_to });
    }

    /// Whether the port's own thread looks after its rings, while it is not silent.
    fn is_own(&self, port: &PortInfo, polls: &[Option<u16>]) -> bool {
        let set = self.policy.settings(port.id).and_then(|settings| settings.engine);
        (polls.is_empty() || set == Some(PortEngine::Ports)) && rings(port).next().is_some()
    }

    /// Whether one of the port's rings from which packets come is polled by the core with this place among these CPUs, as the switch goes by it.
    fn falls_to(&self, port: &PortInfo, nth: usize, polls: &[Option<u16>]) -> bool {
        let mut rings = rings(port);
        let set = self.policy.settings(port.id).and_then(|settings| settings.engine);
        if set == Some(PortEngine::Ports) {
            return false;
        }
        let set = set.and_then(PortEngine::polls_on);
        match polls.iter().position(|cpu| cpu.is_some() && *cpu == set) {
            Some(placed) => placed == nth && rings.next().is_some(),
            None => rings.any(|queue| fall_to(polled_by(port.id, queue.index), polls.len()) == nth),
        }
    }
}

/// Those from which packets come.
fn rings(port: &PortInfo) -> impl Iterator<Item = &QueueInfo> {
    port.queues.iter().filter(|queue| queue.enabled && queue.index % 2 == 1)
}
