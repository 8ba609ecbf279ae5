//! What the API asks for.

use super::connections::WalkCall;
use super::cpu::CpuRequest;
use super::macs::MacCall;
use super::mirrors::MirrorCall;
use super::questions::{FLOWS, Question};
use super::sets::SetCall;
use super::uplinks::UplinkCall;
use super::{
    Answer, Asker, Command, Core, Counting, EngineCall, Kept, Load, PortRequest, Upgrade, busy, give, no_such_port,
    refuse, switch_away,
};
use crate::lines::Lines;
use crate::server::MAX_LONG_LISTS;
use crate::view;
use lasthop_api::{
    AclChanged, AclRule, ApiError, Batching, Connection, ConntrackStats, EndedFlows, Field, Flow, LogLevel,
    LogLevelList, Mac, MirrorList, Port, PortAdopted, PortChanged, Station, SwitchStats, TraceReport, Upgraded,
    UplinkList,
};
use lasthop_frame::{Depth, FlowKey, SNAPSHOT_LEN};
use lasthop_ipc::{DatapathRequest, FlowInfo, PortInfo, PortState};
use lasthop_management_ipc::{ControlToSupervisor, Settings, UplinkConfig};
use lasthop_policy::acl::Scope;
use lasthop_policy::{Headers, OF_SWITCH, OF_SWITCH_WORDS};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// Questions of each socket's clients that wait for the switch or the supervisor; more are refused.
pub(super) const MAX_QUESTIONS: usize = 64;
/// Questions for flows of each socket's clients at a time, as many as a socket lets in: an answer may be long.
const MAX_FLOW_QUESTIONS: usize = MAX_LONG_LISTS;
/// Ports or lists named in one line.
pub(super) const MAX_NAMED: usize = 8;

/// A call of the API.
#[derive(Debug)]
pub(crate) enum Call {
    PortAdd {
        name: String,
        path: String,
        client: bool,
        tx_batch: Option<Batching>,
        owner: Option<String>,
        settings: Settings,
        answer: Answer<PortChanged>,
    },
    PortSet {
        name: String,
        settings: Settings,
        answer: Answer<PortChanged>,
    },
    PortRename {
        name: String,
        to: String,
        answer: Answer<PortChanged>,
    },
    PortDel {
        name: String,
        answer: Answer<PortChanged>,
    },
    Upgrade {
        wanted: Upgrade,
        answer: Answer<Upgraded>,
    },
    Engine(EngineCall),
    PortAdopt {
        name: String,
        stations: Vec<Station>,
        connections: Vec<Connection>,
        answer: Answer<PortAdopted>,
    },
    Uplink {
        call: UplinkCall,
        answer: Answer<UplinkList>,
    },
    Mirror {
        call: MirrorCall,
        answer: Answer<MirrorList>,
    },
    PortList {
        answer: Answer<Vec<Port>>,
    },
    FlowList {
        answer: Answer<Vec<Flow>>,
    },
    FlowsEnded {
        after: Option<u64>,
        answer: Answer<EndedFlows>,
    },
    MacList {
        answer: Answer<Vec<Mac>>,
    },
    LogLevels {
        levels: Vec<LogLevel>,
        answer: Answer<LogLevelList>,
    },
    Stats {
        answer: Answer<SwitchStats>,
    },
    Trace {
        port: String,
        frame: Vec<u8>,
        answer: Answer<TraceReport>,
    },
    Mac(MacCall),
    Connections(WalkCall),
    ConnectionStats {
        answer: Answer<ConntrackStats>,
    },
    AclLoad {
        load: Load,
        kept: Kept,
        answer: Answer<AclChanged>,
    },
    AclClear {
        ports: Vec<String>,
        direction: Option<String>,
        general: Option<String>,
        kept: Kept,
        answer: Answer<AclChanged>,
    },
    Set(SetCall),
    AclShow {
        ports: Vec<String>,
        packets: bool,
        answer: Answer<Lines<AclRule>>,
    },
}

impl Core {
    pub(super) fn call(&mut self, call: Call, now_ms: u64) {
        let Some(call) = self.leave_to_others(call) else { return };
        match call {
            Call::PortAdd { name, path, client, tx_batch, owner, settings, answer } => {
                let tx_batch = tx_batch.map(|batch| (batch.us, batch.packets));
                self.request((answer, false, None), |request| ControlToSupervisor::PortAdd {
                    request,
                    name,
                    path,
                    client,
                    tx_batch,
                    owner,
                    settings,
                });
            }
            Call::PortSet { name, settings, answer } => {
                self.request((answer, true, None), |request| ControlToSupervisor::PortSet { request, name, settings });
            }
            Call::Upgrade { wanted, answer } => self.upgrade(wanted, answer),
            Call::Engine(call) => self.engine_call(call),
            Call::PortRename { name, to, answer } => self.rename(name, to, answer),
            Call::PortDel { name, answer } => {
                let forgets = Some(self.settings_of(&name));
                self.request((answer, false, forgets), |request| ControlToSupervisor::PortDel { request, name });
            }
            Call::PortAdopt { name, stations, connections, answer } => {
                self.adopt(name, &stations, &connections, answer, now_ms);
            }
            Call::Uplink { call, answer } => self.uplink_request(call, answer),
            Call::Mirror { call, answer } => self.mirror_call(call, answer),
            Call::PortList { answer } => self.cpu_request(CpuRequest::Ports(answer)),
            Call::FlowList { answer } => {
                if let Some(answer) = self.admit_flows(answer) {
                    self.ask(FLOWS, Question::Flows { flows: Vec::new(), answer });
                }
            }
            Call::FlowsEnded { after, answer } => self.tell_ended(after, answer, now_ms),
            Call::LogLevels { levels, answer } => self.log_level(levels, answer),
            Call::MacList { answer } => self.mac_list(answer, now_ms),
            Call::Mac(call) => self.mac_call(call, now_ms),
            Call::Connections(call) => self.walk(call),
            Call::ConnectionStats { answer } => self.tell_conntrack(answer, self.policy.connection_stats()),
            Call::AclLoad { load, kept, answer } => self.acl_load(load, kept, answer),
            Call::AclClear { ports, direction, general, kept, answer } => {
                self.acl_clear(&ports, direction.as_deref(), general.as_deref(), kept, answer);
            }
            Call::Set(call) => self.set_call(call),
            Call::AclShow { ports, packets, answer } => self.acl_show(ports, packets, answer),
            Call::Stats { answer } => self.cpu_request(CpuRequest::Stats(answer)),
            Call::Trace { port, frame, answer } => {
                let Some(id) = self.find(&port) else {
                    return refuse(answer, no_such_port(port));
                };
                let mut key = FlowKey { in_port: id.0, ..FlowKey::default() };
                // As the switch does it: it looks at no more of a frame.
                let snapshot = frame.get(..SNAPSHOT_LEN).unwrap_or(&frame);
                lasthop_frame::extract(&mut key, snapshot, frame.len(), Depth::Full);
                if let Some(answer) = self.admit(answer) {
                    let (snapshot, frame_len) = (snapshot.to_vec(), frame.len());
                    self.ask(DatapathRequest::Lookup(key), Question::Trace { answer, snapshot, frame_len });
                }
            }
        }
    }

    /// Refuses what the learning switch alone does, where something else decides.
    fn leave_to_others(&self, call: Call) -> Option<Call> {
        if !self.only_watches {
            return Some(call);
        }
        // What the switch measures itself holds whoever decides.
        let is_measured = |(name, _): &(String, String)| OF_SWITCH.contains(&name.as_str());
        let error = |what: &str| {
            let message = format!(
                "Open vSwitch decides here (`lasthop run --control ovs`), and {what} would have no effect; tell Open vSwitch \
                 (`ovs-vsctl`, `ovs-ofctl`), or start lasthop without --control"
            );
            ApiError::NotAvailable { message }
        };
        let others_settings =
            || error(&format!("VLANs, port security and other settings of ports than {OF_SWITCH_WORDS}"));
        match call {
            Call::PortDel { name, answer } if self.is_of_others(&name) => {
                let message = format!(
                    "Open vSwitch has {name}, and would go on as if it were there; remove it there: `ovs-vsctl del-port {name}`, the port of a \
                     bridge with its bridge (`ovs-vsctl del-br {name}`), that of tunnels with the last of them"
                );
                refuse(answer, ApiError::NotAvailable { message });
            }
            Call::PortRename { name, answer, .. } if self.others_ports.contains(&name) => {
                let message = format!(
                    "Open vSwitch has opened {name}, and knows it by that name; take it from its bridge first (`ovs-vsctl del-port {name}`), and \
                     add it again under the new one"
                );
                refuse(answer, ApiError::NotAvailable { message });
            }
            Call::Uplink { call: UplinkCall::Add(new), answer } => {
                let UplinkConfig { name, device, guest, .. } = new;
                let kind = if guest { "port" } else { "uplink" };
                let message = format!(
                    "Open vSwitch decides here (`lasthop run --control ovs`), and {kind} {name} would carry nothing: Open vSwitch opens interfaces itself, by their \
                     own names; tell it: `ovs-vsctl add-port BRIDGE {device}`"
                );
                refuse(answer, ApiError::NotAvailable { message });
            }
            Call::PortAdd { settings, answer, .. } | Call::PortSet { settings, answer, .. }
                if !settings.iter().all(is_measured) =>
            {
                refuse(answer, others_settings());
            }
            Call::Uplink { call: UplinkCall::Set { .. }, answer } => refuse(answer, error("VLANs of uplinks")),
            Call::Mac(MacCall::Flush { answer, .. }) => {
                refuse(answer, error("forgetting addresses (there it is `ovs-appctl fdb/flush BRIDGE`)"));
            }
            Call::AclLoad { answer, .. } | Call::AclClear { answer, .. } => refuse(answer, error("access lists")),
            Call::Set(SetCall::Change { answer, .. } | SetCall::Del { answer, .. }) => {
                refuse(answer, error("sets of addresses"));
            }
            Call::PortAdopt { answer, .. } => refuse(answer, error("what a guest brings along")),
            Call::FlowsEnded { answer, .. } => {
                refuse(
                    answer,
                    error(
                        "asking for flows that ended (Open vSwitch exports flows itself: `ovs-vsctl -- set Bridge … ipfix=…`)",
                    ),
                );
            }
            Call::Mirror { call: MirrorCall::Add(_) | MirrorCall::Del(_), answer } => refuse(answer, error("mirrors")),
            call => return Some(call),
        }
        None
    }

    /// An interface that is a port of who decides instead.
    fn is_of_others(&self, name: &str) -> bool {
        self.only_watches
            && self.others_ports.iter().any(|port| port == name)
            && self.find(name).is_some_and(|id| self.devices.contains_key(&id))
    }

    /// Something else is to decide, and is not there.
    fn is_nobody_there(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.away_ms.is_some())
    }

    /// Those, where something else decides.
    pub(super) fn interfaces_of_others(&self) -> Option<Vec<String>> {
        let names = self.others_ports.iter().filter(|name| self.is_of_others(name));
        self.only_watches.then(|| names.cloned().collect())
    }

    pub(super) fn acl_show(&mut self, ports: Vec<String>, packets: bool, answer: Answer<Lines<AclRule>>) {
        let scopes: Vec<_> = ports.iter().cloned().map(Scope::Port).collect();
        if let Err(e) = self.check_known(&scopes) {
            return refuse(answer, e);
        }
        if !packets {
            let rules = self.acl_rules(&ports, None);
            give(answer, rules);
        } else if let Some(answer) = self.admit_flows(answer) {
            self.ask(FLOWS, Question::Rules(Counting::new(ports, answer)));
        }
    }

    /// As [`Core::admit`], for a question whose answer is all flows.
    pub(super) fn admit_flows<T>(&mut self, answer: Answer<T>) -> Option<Answer<T>> {
        let asker = answer.asker;
        let long = |q: &&Question| matches!(q, Question::Flows { .. } | Question::Rules(_)) && q.is_of(asker);
        let counting = self.counting.iter().filter(|counting| counting.answer.is_open_for(asker));
        if self.questions.values().filter(long).count() + counting.count() >= MAX_FLOW_QUESTIONS {
            refuse(answer, busy());
            return None;
        }
        self.admit(answer)
    }

    /// The answer's way back, unless the question cannot be asked now.
    pub(super) fn admit<T>(&mut self, answer: Answer<T>) -> Option<Answer<T>> {
        if !self.attached {
            refuse(answer, switch_away());
            return None;
        }
        if !self.has_room_for(answer.asker) {
            refuse(answer, busy());
            return None;
        }
        Some(answer)
    }

    /// Whether clients of this socket may ask one question more.
    pub(super) fn has_room_for(&mut self, asker: Asker) -> bool {
        if self.questions.len() >= MAX_QUESTIONS {
            self.questions.retain(|_, q| !q.is_given_up());
        }
        self.questions.values().filter(|q| q.is_of(asker)).count() < MAX_QUESTIONS
    }

    /// Asks the supervisor. What is to be `in_force` is answered when the switch goes by it.
    pub(super) fn request(
        &mut self,
        (answer, in_force, forgets): (Answer<PortChanged>, bool, Option<Vec<Field>>),
        message: impl FnOnce(u64) -> ControlToSupervisor,
    ) {
        if self.requests.len() >= MAX_QUESTIONS {
            self.requests.retain(|_, request| !request.answer.is_closed());
        }
        if self.requests.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        self.requests.insert(self.next_number, PortRequest { answer, in_force, forgets });
        self.commands.push(Command::Supervisor(message(self.next_number)));
    }

    pub(super) fn answer_trace(
        &self,
        answer: Answer<TraceReport>,
        key: &FlowKey,
        headers: Headers<'_>,
        flow: Option<Box<FlowInfo>>,
        now_ms: u64,
    ) {
        let mut explanation = self.policy.explain(key, headers, now_ms, |id| self.name(id));
        if self.only_watches {
            let of = match (&flow, self.is_nobody_there()) {
                (Some(_), _) => "as this flow does",
                (None, true) => "it is not there (`lasthop doctor`): nobody would decide about such a packet",
                (None, false) => "it has not yet: such a packet would wait for it",
            };
            (explanation.lines, explanation.outputs) = (vec![format!("Open vSwitch decides; {of}")], Vec::new());
            explanation.lines.push("`ovs-appctl ofproto/trace` shows which of its rules".into());
        } else if explanation.floods {
            let left_out = self.not_reached(key.port(), &explanation.outputs);
            explanation.lines.extend(left_out);
        }
        let outputs = flow.as_ref().map_or(explanation.outputs, |f| view::outputs(&f.flow.actions));
        let report = TraceReport {
            undecided: self.only_watches && flow.is_none(),
            nobody: self.is_nobody_there() && flow.is_none(),
            key: view::packet(key, |id| self.name(id)),
            flow: flow.map(|f| view::flow(&f, |id| self.name(id))),
            reasons: explanation.lines,
            outputs: outputs
                .iter()
                .map(|id| {
                    view::trace_output(self.name(*id), self.infos.get(id), *id == key.port(), self.devices.get(id))
                })
                .collect(),
        };
        give(answer, report);
    }

    /// Ports that a flood from there leaves out because they carry nothing now, and why, in one line.
    fn not_reached(&self, from: PortId, reached: &[PortId]) -> Option<String> {
        let is_up = |id: &PortId| self.infos.get(id).is_some_and(|info| info.state() == PortState::Up);
        let down = |id: &PortId| !is_up(id) && !reached.contains(id);
        let others = self.configs.keys().filter(|id| **id != from && self.policy.apart(from, **id).is_none());
        let (down, mut said): (Vec<_>, Vec<_>) = (others.filter(|id| down(id)).collect(), Vec::new());
        for id in down.iter().take(MAX_NAMED) {
            let why = view::why_down(self.infos.get(id), self.devices.get(id), self.uplinks.contains_key(id));
            said.push(format!("{} ({why})", self.name(**id)));
        }
        if let Some(more) = down.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            said.push(format!("{} more", more));
        }
        (!said.is_empty()).then(|| format!("left out, because nothing can be sent there now: {}", said.join(", ")))
    }

    pub(super) fn ports(&self, infos: Vec<PortInfo>, cpu: &BTreeMap<PortId, u64>, now_ms: u64) -> Vec<Port> {
        let infos: BTreeMap<_, _> = infos.into_iter().map(|p| (p.id, p)).collect();
        let mut ids: Vec<_> = self.configs.keys().chain(infos.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let port = |id| {
            let view = self.policy.port_view(id);
            let refused = view.as_ref().and_then(|view| view.refused);
            let mut port = view::port(id, self.configs.get(&id), infos.get(&id), view);
            port.refused_mac = refused.map(|of| view::refused_mac(&of, of.lives_at.map(|at| self.name(at)), now_ms));
            let slot = infos.get(&id).and_then(|info| info.vm);
            view::port_vm(&mut port, slot.and_then(|slot| self.host_view?.vm(slot)));
            let health = || infos.get(&id).and_then(|info| self.health.note(info, now_ms));
            let bounds = self.spending.bounds(id);
            let missed = || view::missed_bound(bounds, self.device.is_some());
            port.note = self.faults.get(&id).cloned().or_else(health).or_else(missed);
            [port.cpu_bound, port.copy_bound] = bounds.map(|bound| bound.map(view::cpu_bound));
            port.place = self.places.get(&id).map(view::place);
            port.last_error_age_ms = port.last_error.as_ref().and_then(|_| self.health.erred_ms_ago(id, now_ms));
            if let Some((reason, at)) = self.refused.get(&id) {
                (port.last_error, port.last_error_age_ms) = (Some(reason.clone()), Some(now_ms.saturating_sub(*at)));
            }
            let mut port = view::port_device(port, self.devices.get(&id));
            port.settings = view::settings(self.policy.settings(id));
            Port { uplink: self.uplinks.contains_key(&id), cpu_ns: cpu.get(&id).copied(), ..port }
        };
        ids.into_iter().map(port).collect()
    }
}
