//! What each request of Open vSwitch's does.

use crate::jobs::{Dump, Job};
use crate::ports::Vport;
use crate::table::{Carried, Flow, FlowId, MAX_ATTRIBUTES};
use crate::takers::pids;
use crate::{Datapath, Out, tunnels};
use lasthop_management_ipc::UplinkConfig;
use lasthop_ovs_abi::family::{self, command, control, datapath, flow, packet_command, vport};
use lasthop_ovs_abi::netlink::{Message, OVS_HEADER, Writer, flag, kind, messages, table, text_of, u32_of};
use lasthop_ovs_abi::{Act, Key, Refused, conntrack, meter, timeouts, traffic};
use std::collections::BTreeSet;

/// The number of the datapath: the kernel's is that of an interface, which this one has none of.
pub(crate) const DP_IFINDEX: i32 = 0x6c68;
/// Longest name of an interface.
const MAX_NAME: usize = 15;

/// What is asked for before a datagram is carried out.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    pub all_flows: bool,
    /// The switch's flows whose counters are wanted.
    pub flows: BTreeSet<u64>,
    /// Those that end with this, which is answered with what they have carried.
    pub ends: BTreeSet<u64>,
    pub ports: bool,
    /// The switch's meters whose counters are wanted.
    pub meters: BTreeSet<u32>,
    pub open: Vec<UplinkConfig>,
    pub close: Vec<String>,
}

/// A message of one of the families.
pub(crate) struct Request<'a> {
    pub command: u8,
    pub attributes: &'a [u8],
    is_dump: bool,
    pub message: Message<'a>,
    pid: u32,
}

impl<'a> Request<'a> {
    pub fn of(message: Message<'a>, pid: u32) -> Option<Self> {
        let (header, attributes) = message.payload.split_at_checked(OVS_HEADER)?;
        let is_dump = message.flags & flag::DUMP == flag::DUMP && header.first() == Some(&command::GET);
        Some(Self { command: *header.first()?, attributes, is_dump, message, pid })
    }

    /// An answer to it.
    pub fn answer(&self, flags: u16, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut to = Writer::new();
        to.begin(self.message.kind, flags, self.message.sequence, self.pid);
        fill(&mut to);
        to.end();
        to.into_bytes()
    }
}

/// What a request changes in the switch.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    unified: BTreeSet<u64>,
    pub all: bool,
    /// It was told already.
    pub told: bool,
    /// Connections of this zone are to end, or of all.
    pub flush: Option<Option<u16>>,
}

pub(crate) type Reply = Result<Vec<Vec<u8>>, Refused>;

/// An attribute.
fn get<'a, const N: usize>(found: &[Option<&'a [u8]>; N], kind: u16) -> Option<&'a [u8]> {
    found.get(usize::from(kind)).copied().flatten()
}

fn ufid(found: &[Option<&[u8]>; flow::COUNT]) -> Result<Option<[u8; 16]>, Refused> {
    get(found, flow::UFID).map(|ufid| ufid.try_into().map_err(|_| Refused::INVALID)).transpose()
}

impl Datapath {
    /// What has to be known or done before this is carried out.
    pub(crate) fn needs(&self, datagram: &[u8]) -> Needs {
        let mut needs = Needs::default();
        for request in messages(datagram).filter_map(|message| Request::of(message, 0)) {
            match request.message.kind {
                id if id == family::FLOW.id && request.command != command::NEW => {
                    let found = table::<{ flow::COUNT }>(request.attributes).ok();
                    let all = request.is_dump
                        || found
                            .is_none_or(|found| get(&found, flow::KEY).is_none() && get(&found, flow::UFID).is_none());
                    needs.all_flows |= all;
                    let ends = request.command == command::DEL
                        || found.is_some_and(|found| get(&found, flow::ACTIONS).is_some());
                    let id = found.and_then(|found| self.find_flow(&found).ok());
                    let unified = id.and_then(|id| self.table.get(id)).into_iter().flat_map(|flow| &flow.unified);
                    if ends { &mut needs.ends } else { &mut needs.flows }.extend(unified);
                }
                id if id == family::VPORT.id => {
                    needs.ports |= request.command == command::GET;
                    needs.all_flows |= matches!(request.command, command::NEW | command::DEL);
                    self.needs_of_port(&request, &mut needs);
                }
                id if id == family::METER.id => {
                    let id = meter::id_of(request.attributes).ok();
                    needs.meters.extend(id.and_then(|id| self.meters.slot(id.into())));
                }
                id if id == family::DATAPATH.id => needs.all_flows |= request.command == command::DEL,
                _ => {}
            }
        }
        self.needs_of_traffic(datagram, &mut needs);
        needs
    }

    /// What classes of an interface have counted.
    fn needs_of_traffic(&self, datagram: &[u8], needs: &mut Needs) {
        let mut all = messages(datagram);
        let name = all.next().filter(|first| first.kind == traffic::INTERFACE).map(|first| first.payload);
        let Some(name) = name.and_then(traffic::interface) else { return };
        if all.any(|message| message.kind == traffic::GET_CLASS) {
            needs.meters.extend(self.shaping.meters_of(name).filter_map(|meter| self.meters.slot(meter)));
        }
    }

    fn needs_of_port(&self, request: &Request<'_>, needs: &mut Needs) {
        let Ok(found) = table::<{ vport::COUNT }>(request.attributes) else { return };
        let name = get(&found, vport::NAME).and_then(|name| text_of(name).ok());
        match (request.command, name) {
            (command::NEW, Some(name)) if !self.configs.contains_key(name) && name.len() <= MAX_NAME => {
                let kind = get(&found, vport::TYPE).and_then(|kind| u32_of(kind).ok());
                // What would be refused is not opened first.
                if self.name.is_none() || name.is_empty() {
                    return;
                }
                let name = name.to_owned();
                let (device, driver) = match kind {
                    Some(vport::NETDEV) => (name.clone(), None),
                    // It is made.
                    Some(vport::INTERNAL) => (name.clone(), Some("tap")),
                    kind => {
                        let kind = kind.unwrap_or_default();
                        let port = tunnels::port_of(kind, get(&found, vport::OPTIONS));
                        let (Some(driver), Ok(port)) = (tunnels::driver_of(kind), port) else { return };
                        let device = if port == 0 { driver.to_owned() } else { format!("{driver}:{port}") };
                        (device, Some(driver))
                    }
                };
                needs.open.push(UplinkConfig {
                    device,
                    name,
                    driver: driver.map(str::to_owned),
                    queues: 1,
                    nice: 0,
                    gro: true,
                    spare: false,
                    vlans: None,
                    guest: true,
                    settings: Vec::new(),
                });
            }
            (command::DEL, _) => {
                let no = get(&found, vport::PORT_NO).and_then(|no| u32_of(no).ok());
                let port = self.find_vport(name, no).ok().and_then(|no| self.vports.get(&no));
                needs.close.extend(port.filter(|port| port.opened).map(|port| port.name.clone()));
            }
            _ => {}
        }
    }

    /// Carries out the messages of a datagram, from where it was left off, up to one that sends more than fits into this turn.
    pub(crate) fn carry_out_more(&mut self, job: &mut Job, datagram: &[u8]) {
        let (pid, mut changes, mut interface) = (job.pid(), Changes::default(), None);
        let from = std::mem::replace(&mut job.done, datagram.len());
        let (rest, mut end) = (datagram.get(from..).unwrap_or_default(), from);
        for message in messages(rest) {
            end += message.whole.len().next_multiple_of(4);
            if message.kind == traffic::INTERFACE {
                interface = traffic::interface(message.payload);
                continue;
            }
            let request = Request::of(message, pid);
            let is_dump = request.as_ref().is_some_and(|request| request.is_dump)
                || (interface.is_some() || matches!(message.kind, conntrack::GET | timeouts::GET))
                    && message.flags & flag::DUMP == flag::DUMP;
            let reply = match message.kind {
                _ if job.has_too_many_answers() => self.too_much(),
                _ if let Some(name) = interface => self.traffic_request(name, &message, pid, &mut changes),
                kind::CONTROL => find_family(&message, pid),
                conntrack::GET | conntrack::DELETE => {
                    self.conntrack_request(&message, pid, &mut changes).map(|()| Vec::new())
                }
                timeouts::NEW | timeouts::GET | timeouts::DELETE => self.timeout_request(&message, pid),
                _ => request.ok_or(Refused::INVALID).and_then(|request| match request.message.kind {
                    id if id == family::DATAPATH.id => self.datapath_request(&request, &mut changes),
                    id if id == family::VPORT.id => self.vport_request(&request, &job.failed, &mut changes),
                    id if id == family::FLOW.id => self.flow_request(&request, &mut changes),
                    id if id == family::METER.id => self.meter_request(&request, &mut changes),
                    id if id == family::CT_LIMIT.id => self.limit_request(&request),
                    id if id == family::PACKET.id && request.command == packet_command::EXECUTE => {
                        self.execute(request.attributes).map(|()| Vec::new())
                    }
                    _ => Err(Refused::UNSUPPORTED),
                }),
            };
            let refused = reply.as_ref().err().map(|refused| refused.0);
            if refused.is_none() && interface.is_none() {
                self.note(&message);
            }
            reply.unwrap_or_default().into_iter().for_each(|answer| job.answer(answer));
            if refused.is_some() || message.flags & flag::ACK != 0 && !is_dump {
                let mut to = Writer::new();
                to.error(refused.unwrap_or(0), &message, pid);
                job.answer(to.into_bytes());
            }
            if self.turns.is_behind() {
                job.done = end.min(datagram.len());
                break;
            }
        }
        job.flush = changes.flush.or(job.flush);
        job.told |= self.change(changes);
    }

    /// What is asked for is more than is answered or sent at once.
    pub(crate) fn too_much(&mut self) -> Reply {
        if !std::mem::replace(&mut self.was_too_much, true) {
            tracing::warn!(
                "a program of Open vSwitch's asks for more at once than is done (ENOBUFS): what is beyond that is refused"
            );
        }
        Err(Refused::NO_BUFFERS)
    }

    /// Tells the switch. False if there is nothing to tell.
    fn change(&mut self, changes: Changes) -> bool {
        if changes.all {
            self.begin_anew();
            return true;
        }
        let mut changed = changes.told;
        for id in changes.unified {
            changed |= self.take_back(id);
        }
        changed
    }

    pub(crate) fn datapath_request(&mut self, request: &Request<'_>, changes: &mut Changes) -> Reply {
        let found = table::<{ datapath::COUNT }>(request.attributes)?;
        let name = get(&found, datapath::NAME).map(text_of).transpose()?;
        let features = get(&found, datapath::USER_FEATURES).map(u32_of).transpose()?;
        if features.is_some_and(|features| features & !datapath::FEATURES != 0) {
            return Err(Refused::UNSUPPORTED);
        }
        if request.is_dump {
            let there = self.name.is_some().then(|| request.answer(flag::MULTI, |to| self.write_datapath(to)));
            let mut done = Writer::new();
            done.done(request.message.sequence, request.pid);
            return Ok(there.into_iter().chain([done.into_bytes()]).collect());
        }
        let cpu_pids = get(&found, datapath::PER_CPU_PIDS).map(|value| pids(Some(value))).transpose()?;
        if request.command == command::NEW {
            let name = name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME).ok_or(Refused::INVALID)?;
            let pids = pids(get(&found, datapath::UPCALL_PID))?;
            match &self.name {
                Some(there) if there == name => return Err(Refused::EXISTS),
                Some(_) => return Err(Refused::BUSY),
                None => self.name = Some(name.to_owned()),
            }
            self.replace_takers(&[], &pids);
            let (name, kind) = (name.to_owned(), vport::INTERNAL);
            self.vports.insert(0, Vport { name, kind, pids, port: None, opened: false });
        } else if self.name.is_none() || name.is_some_and(|name| self.name.as_deref() != Some(name)) {
            return Err(Refused::NO_DEVICE);
        }
        let answer = match request.command {
            command::NEW | command::SET => {
                self.features = features.unwrap_or(self.features);
                if let Some(pids) = cpu_pids {
                    let before = std::mem::replace(&mut self.cpu_pids, pids);
                    self.takers.replace(&before, &self.cpu_pids);
                }
                self.takers_changed = true;
                request.answer(0, |to| self.write_datapath(to))
            }
            command::GET => request.answer(0, |to| self.write_datapath(to)),
            command::DEL => {
                let answer = request.answer(0, |to| self.write_datapath(to));
                (self.name, self.features, self.cpu_pids) = Default::default();
                self.takers.clear();
                self.takers_changed = true;
                let ports = std::mem::take(&mut self.vports);
                self.table.clear();
                self.lost_of.clear();
                self.dropped_of.clear();
                self.tunnels.clear();
                self.forget_meters();
                self.fragments.take();
                changes.all = true;
                if ports.values().any(|port| port.opened) {
                    tracing::info!(
                        "Open vSwitch has removed its datapath; interfaces that it had opened stay (`lasthop port del`)"
                    );
                }
                answer
            }
            _ => return Err(Refused::UNSUPPORTED),
        };
        let wanted = request.command == command::GET || request.message.flags & flag::ECHO != 0;
        Ok(if wanted { vec![answer] } else { Vec::new() })
    }

    fn write_datapath(&self, to: &mut Writer) {
        to.ovs_header(command::NEW, family::DATAPATH.version, DP_IFINDEX);
        to.text(datapath::NAME, self.name.as_deref().unwrap_or_default());
        let hits = self.hits + self.registry.hits();
        let counts = [hits, self.misses, self.lost, self.table.len() as u64];
        to.attribute(datapath::STATS, &counts.map(u64::to_ne_bytes).concat());
        let masks = [hits, self.table.masks() as u64, self.registry.hits(), 0];
        to.attribute(datapath::MEGAFLOW_STATS, &masks.map(u64::to_ne_bytes).concat());
        to.number(datapath::USER_FEATURES, self.features);
    }

    pub(crate) fn vport_request(
        &mut self,
        request: &Request<'_>,
        failed: &BTreeSet<String>,
        changes: &mut Changes,
    ) -> Reply {
        if self.name.is_none() {
            return Err(Refused::NO_DEVICE);
        }
        if request.is_dump {
            let all = self.vports.keys();
            let mut answers: Vec<_> =
                all.map(|no| request.answer(flag::MULTI, |to| self.write_vport(*no, command::NEW, to))).collect();
            let mut done = Writer::new();
            done.done(request.message.sequence, request.pid);
            answers.push(done.into_bytes());
            return Ok(answers);
        }
        let found = table::<{ vport::COUNT }>(request.attributes)?;
        let name = get(&found, vport::NAME).map(text_of).transpose()?;
        let no = get(&found, vport::PORT_NO).map(u32_of).transpose()?;
        let sockets = get(&found, vport::UPCALL_PID);
        let (no, command) = match request.command {
            command::NEW => {
                let kind = u32_of(get(&found, vport::TYPE).ok_or(Refused::INVALID)?)?;
                let name = name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME).ok_or(Refused::INVALID)?;
                let port_of = |_| tunnels::port_of(kind, get(&found, vport::OPTIONS));
                let tunnel = tunnels::driver_of(kind).map(port_of).transpose()?;
                let no = self.add_vport(name, kind, no, pids(sockets)?, failed)?;
                if let Some(port) = tunnel {
                    self.tunnels.add(no, port);
                }
                (no, command::NEW)
            }
            command::GET => (self.find_vport(name, no)?, command::NEW),
            command::SET => {
                let no = self.find_vport(name, no)?;
                if let (Some(port), Some(sockets)) = (self.vports.get_mut(&no), sockets) {
                    let before = std::mem::replace(&mut port.pids, pids(Some(sockets))?);
                    self.takers.replace(&before, &port.pids);
                    self.takers_changed = true;
                }
                (no, command::NEW)
            }
            command::DEL => match self.find_vport(name, no)? {
                0 => return Err(Refused::INVALID),
                no => (no, command::DEL),
            },
            _ => return Err(Refused::UNSUPPORTED),
        };
        let answer = request.answer(0, |to| self.write_vport(no, command, to));
        if matches!(request.command, command::NEW | command::DEL) {
            self.tell_of_port(no, command, request.pid);
            changes.all = true;
        }
        if request.command == command::DEL {
            let gone = self.vports.remove(&no);
            self.replace_takers(gone.as_ref().map_or(&[], |port| &port.pids), &[]);
            self.lost_of.remove(&no);
            self.dropped_of.remove(&no);
            self.tunnels.remove(no);
        }
        if changes.all {
            self.meter_classes(changes);
        }
        let wanted = request.command == command::GET || request.message.flags & flag::ECHO != 0;
        Ok(if wanted { vec![answer] } else { Vec::new() })
    }

    fn add_vport(
        &mut self,
        name: &str,
        kind: u32,
        no: Option<u32>,
        pids: Vec<u32>,
        failed: &BTreeSet<String>,
    ) -> Result<u32, Refused> {
        let is_made = kind == vport::INTERNAL || tunnels::driver_of(kind).is_some();
        if kind != vport::NETDEV && !is_made {
            return Err(Refused::UNSUPPORTED);
        }
        if self.vports.values().any(|port| port.name == name) {
            return Err(Refused::EXISTS);
        }
        let port = self.configs.get(name).copied().filter(|_| !failed.contains(name) && name != crate::PACKET_PORT);
        let Some(port) = port else { return Err(Refused::NO_DEVICE) };
        let no = self.new_port_no(no)?;
        // One that the supervisor remembers was opened for Open vSwitch, too: nobody else opens interfaces where it decides.
        let opened = self.opened.contains(name) || is_made || self.devices.contains(&port);
        self.replace_takers(&[], &pids);
        self.vports.insert(no, Vport { name: name.to_owned(), kind, pids, port: Some(port), opened });
        self.connections.limit_port(no, opened);
        Ok(no)
    }

    /// Whoever listens hears of a port that came or goes.
    fn tell_of_port(&mut self, no: u32, command: u8, by: u32) {
        let Some(group) = family::VPORT.group else { return };
        let listeners: Vec<_> = self.clients.iter().filter(|(_, client)| client.groups.contains(&group)).collect();
        let mut news = Vec::new();
        for pid in listeners.into_iter().map(|(pid, _)| *pid) {
            let mut to = Writer::new();
            to.begin(family::VPORT.id, 0, 0, by);
            self.write_vport(no, command, &mut to);
            to.end();
            news.push(Out::Upcall { pid, port: 0, datagram: to.into_bytes() });
        }
        self.out.extend(news);
    }

    /// The flow that a request is about.
    fn find_flow(&self, found: &[Option<&[u8]>; flow::COUNT]) -> Result<FlowId, Refused> {
        let ufid = ufid(found)?;
        let key = get(found, flow::KEY).map(|key| Key::read(key, get(found, flow::MASK))).transpose()?;
        if ufid.is_none() && key.is_none() {
            return Err(Refused::INVALID);
        }
        let by_key = |key: &(Key, Key)| match get(found, flow::MASK) {
            Some(_) => self.table.find(Some(key), None),
            // A key alone names the flow that was installed with it.
            None => self.table.lookup(&key.0),
        };
        let id = ufid.and_then(|ufid| self.table.find(None, Some(&ufid)));
        id.or_else(|| key.as_ref().filter(|_| ufid.is_none()).and_then(by_key)).ok_or(Refused::NO_ENTRY)
    }

    pub(crate) fn flow_request(&mut self, request: &Request<'_>, changes: &mut Changes) -> Reply {
        if self.name.is_none() {
            return Err(Refused::NO_DEVICE);
        }
        let found = table::<{ flow::COUNT }>(request.attributes)?;
        let omit = get(&found, flow::UFID_FLAGS).map(u32_of).transpose()?.unwrap_or(0);
        if request.is_dump {
            let dump = Dump { sequence: request.message.sequence, omit, after: 0, connections: None };
            if let Some(client) = self.clients.get_mut(&request.pid) {
                client.dump = Some(dump);
            }
            return Ok(Vec::new());
        }
        let told = |flow: &Flow, command| {
            request.answer(0, |to| {
                to.ovs_header(command, family::FLOW.version, DP_IFINDEX);
                flow.write(omit, to);
            })
        };
        let echo = request.message.flags & flag::ECHO != 0;
        let answer = match request.command {
            command::NEW => {
                let id = self.put_flow(request, &found, changes)?;
                self.table.get(id).filter(|_| echo).map(|flow| told(flow, command::NEW))
            }
            command::SET => {
                let id = self.find_flow(&found)?;
                self.set_flow(id, &found, changes)?;
                self.table.get(id).filter(|_| echo).map(|flow| told(flow, command::NEW))
            }
            command::GET => self.table.get(self.find_flow(&found)?).map(|flow| told(flow, command::NEW)),
            command::DEL if get(&found, flow::KEY).is_none() && get(&found, flow::UFID).is_none() => {
                self.table.clear();
                changes.all = true;
                None
            }
            command::DEL => {
                let id = self.find_flow(&found)?;
                let flow = self.table.remove(id);
                changes.unified.extend(flow.iter().flat_map(|flow| &flow.unified));
                flow.filter(|_| echo).map(|flow| told(&flow, command::DEL))
            }
            _ => return Err(Refused::UNSUPPORTED),
        };
        Ok(answer.into_iter().collect())
    }

    fn put_flow(
        &mut self,
        request: &Request<'_>,
        found: &[Option<&[u8]>; flow::COUNT],
        changes: &mut Changes,
    ) -> Result<FlowId, Refused> {
        let (key, acts) = (get(found, flow::KEY).ok_or(Refused::INVALID)?, get(found, flow::ACTIONS));
        let flow = Flow::read(key, get(found, flow::MASK), acts.ok_or(Refused::INVALID)?, ufid(found)?)?;
        self.repeats.put(key);
        let there = flow.ufid.and_then(|ufid| self.table.find(None, Some(&ufid)));
        let there = there.or_else(|| self.table.find(Some(&(flow.key, flow.mask)), None));
        match there {
            None => self.table.insert(flow),
            Some(_) if request.message.flags & (flag::CREATE | flag::EXCL) != 0 => Err(Refused::EXISTS),
            Some(id) => {
                self.set_flow(id, found, changes)?;
                Ok(id)
            }
        }
    }

    fn set_flow(
        &mut self,
        id: FlowId,
        found: &[Option<&[u8]>; flow::COUNT],
        changes: &mut Changes,
    ) -> Result<(), Refused> {
        let acts = get(found, flow::ACTIONS);
        let Some(flow) = self.table.get_mut(id) else { return Err(Refused::NO_ENTRY) };
        if acts.is_some_and(|acts| acts.len() > MAX_ATTRIBUTES) {
            return Err(Refused::INVALID);
        }
        let new = acts.map(|acts| Act::read_for(acts, flow.suits())).transpose()?;
        if let (Some(new), Some(bytes)) = (new, acts) {
            (flow.acts, flow.act_bytes) = (new.into(), bytes.to_vec());
            changes.unified.extend(&flow.unified);
        }
        if get(found, flow::CLEAR).is_some() {
            flow.carried = Carried::default();
        }
        Ok(())
    }
}

/// Generic netlink's controller says which family has which number.
fn find_family(message: &Message<'_>, pid: u32) -> Reply {
    let (header, attributes) = message.payload.split_at_checked(4).ok_or(Refused::INVALID)?;
    let [_, id, name] = table::<3>(attributes)?;
    if header.first() != Some(&control::GET_FAMILY) {
        return Err(Refused::UNSUPPORTED);
    }
    let id = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
    let name = name.map(text_of).transpose()?;
    let found = family::ALL.iter().find(|family| Some(family.name) == name || Some(family.id) == id);
    let family = found.ok_or(Refused::NO_ENTRY)?;
    let mut to = Writer::new();
    to.begin(kind::CONTROL, 0, message.sequence, pid);
    to.raw(&[control::NEW_FAMILY, 2, 0, 0]);
    to.attribute(control::FAMILY_ID, &family.id.to_ne_bytes());
    to.text(control::FAMILY_NAME, family.name);
    to.number(control::VERSION, family.version.into());
    to.number(control::HEADER_SIZE, 4);
    to.number(control::MAX_ATTRIBUTE, 16);
    if let Some(group) = family.group {
        to.nest(control::GROUPS, |to| {
            to.nest(1, |to| {
                to.text(control::GROUP_NAME, family.name);
                to.number(control::GROUP_ID, group);
            });
        });
    }
    to.end();
    Ok(vec![to.into_bytes()])
}
