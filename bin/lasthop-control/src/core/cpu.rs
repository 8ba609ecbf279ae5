//! Processor time, and which processes were replaced: asked of the supervisor, which knows, before what goes with it is answered.

use super::{Answer, Asker, Command, Core, MAX_QUESTIONS, Question, busy, give, refuse};
use crate::view;
use lasthop_api::{Port, SwitchStats};
use lasthop_ipc::DatapathRequest;
use lasthop_management_ipc::{ControlToSupervisor, CpuTimes, HostFacts, Replaced};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// What is answered when the processor time is known.
#[derive(Debug)]
pub(super) enum CpuRequest {
    Ports(Answer<Vec<Port>>),
    Stats(Answer<SwitchStats>),
}

impl CpuRequest {
    fn asker(&self) -> Asker {
        match self {
            Self::Ports(answer) => answer.asker,
            Self::Stats(answer) => answer.asker,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Ports(answer) => answer.is_closed(),
            Self::Stats(answer) => answer.is_closed(),
        }
    }
}

impl Core {
    pub(super) fn cpu_request(&mut self, wanted: CpuRequest) {
        self.cpu_requests.retain(|_, request| !request.is_closed());
        let asker = wanted.asker();
        if self.cpu_requests.values().filter(|request| request.asker() == asker).count() >= MAX_QUESTIONS {
            return match wanted {
                CpuRequest::Ports(answer) => refuse(answer, busy()),
                CpuRequest::Stats(answer) => refuse(answer, busy()),
            };
        }
        self.next_number += 1;
        let request = self.next_number;
        self.cpu_requests.insert(request, wanted);
        self.commands.push(Command::Supervisor(ControlToSupervisor::CpuTimes { request }));
    }

    pub(super) fn cpu_reply(
        &mut self,
        request: u64,
        times: CpuTimes,
        (replaced, host): (Vec<Replaced>, HostFacts),
        now_ms: u64,
    ) {
        match self.cpu_requests.remove(&request) {
            Some(CpuRequest::Stats(answer)) => {
                let replaced = replaced.into_iter().map(view::replaced).collect();
                let of_processes = (view::cpu_times(&times), replaced, view::host(host));
                self.stats_asked(of_processes, answer, now_ms);
            }
            Some(CpuRequest::Ports(answer)) => {
                let cpu: BTreeMap<PortId, u64> = times.ports.into_iter().collect();
                if !self.attached {
                    let ports = self.ports(Vec::new(), &cpu, now_ms);
                    give(answer, ports);
                } else if let Some(answer) = self.admit(answer) {
                    self.ask(DatapathRequest::Ports, Question::Ports { ports: Vec::new(), cpu, answer });
                }
            }
            None => {}
        }
    }
}
