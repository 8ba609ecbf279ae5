//! Stands in for the supervisor and the switch of a control process: the other ends of its channels, and a switch
//! with a flow table but no packets of its own. Used by the tests of control and of the command line.

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Depth, FlowKey, extract};
use lasthop_ipc::{
    Channel, ChannelError, DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo, PortState, SwitchEnd,
    ToControl, UpcallPacket, ring_pair,
};
use lasthop_management_ipc::{
    ControlToSupervisor, CpuTimes, DeviceState, EngineInfo, EngineKind, HostFacts, LISTS_PART, LinkState, MirrorConfig,
    NewProcess, NotReplaced, PortConfig, Replaced, SupervisorToControl, Upgraded, UplinkConfig, UplinkInfo,
};
use lasthop_policy::PortSettings;
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId, PortTotals};
use lasthop_uplink_ipc::{UplinkCounters, UplinkDevice, UplinkDriver, VlanMac};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

type Supervisor = Channel<SupervisorToControl, ControlToSupervisor>;

/// Waits for as long as a broken test may take; a working one never waits that long.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Everything around a control process.
pub struct Fake {
    pub dir: tempfile::TempDir,
    pub supervisor: Supervisor,
    pub switch: Option<SwitchEnd>,
    pub ports: BTreeMap<PortId, PortConfig>,
    pub states: BTreeMap<PortId, PortState>,
    pub flows: Vec<(FlowSpec, u64)>,
    /// What control did with waiting packets.
    pub resumed: Vec<(u64, Vec<Action>)>,
    /// Everything the switch heard, in order, by kind.
    pub heard: Vec<&'static str>,
    pub ready: bool,
    /// Which stations are to be announced where.
    pub announced: Vec<(PortId, Vec<VlanMac>)>,
    /// Access lists as control had them kept.
    pub lists: String,
    /// The supervisor cannot keep lists.
    pub disk_full: bool,
    /// Parts of answers about flows that were told.
    pub parts_told: usize,
    /// The switch does not answer barriers.
    pub holds_barriers: bool,
    /// The switch answers nothing.
    pub hangs: bool,
    /// The supervisor does not say whether it has kept lists.
    pub keeps_lists_waiting: bool,
    parts: Vec<u8>,
    next_id: u64,
}

/// What was sent is there to be read. Control may be gone: then that is found out by who listens.
fn flush(switch: &mut SwitchEnd) {
    let _ = switch.flush();
}

impl Fake {
    /// The fake and what control inherits: its end of the supervisor's channel and the listening API socket.
    pub fn new() -> (Self, OwnedFd, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = Supervisor::pair().unwrap();
        let api = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let fake = Self {
            dir,
            supervisor: Channel::new(ours),
            switch: None,
            ports: BTreeMap::new(),
            states: BTreeMap::new(),
            flows: Vec::new(),
            resumed: Vec::new(),
            heard: Vec::new(),
            ready: false,
            announced: Vec::new(),
            lists: String::new(),
            disk_full: false,
            parts_told: 0,
            holds_barriers: false,
            hangs: false,
            keeps_lists_waiting: false,
            parts: Vec::new(),
            next_id: 0,
        };
        (fake, theirs, api.into())
    }

    /// Adds ports that are up, tells control of them.
    pub fn add_ports(&mut self, names: &[&str]) {
        for name in names {
            self.add_port(name, format!("/run/{name}.sock"), false, (125, 64)).unwrap();
        }
        self.announce_ports();
    }

    fn add_port(&mut self, name: &str, path: String, client: bool, tx_batch: (u32, u16)) -> Result<PortConfig, String> {
        if self.ports.values().any(|p| p.name == name) {
            return Err(format!("there is a port named {name:?} already; choose another name"));
        }
        let id = PortId(self.ports.keys().last().map_or(1, |id| id.0 + 1));
        let config = PortConfig { id, name: name.into(), path, client, tx_batch, rx_batch: (125, 64), owner: None };
        self.ports.insert(id, config.clone());
        self.states.insert(id, PortState::Up);
        let info = self.info(id);
        self.tell(&ToControl::Port(info));
        Ok(config)
    }

    pub fn announce_ports(&mut self) {
        let ports = self.ports.values().cloned().collect();
        self.supervisor.send(&SupervisorToControl::Ports(ports), None).unwrap();
    }

    /// Tells a new control of the lists that were kept.
    pub fn announce_lists(&mut self) {
        if self.lists.is_empty() {
            return;
        }
        for part in self.lists.as_bytes().chunks(LISTS_PART).chain([&[][..]]) {
            self.supervisor.send(&SupervisorToControl::Lists(part.to_vec()), None).unwrap();
        }
    }

    /// Gives control a new channel to the switch, which says hello on it.
    pub fn attach(&mut self) {
        let (ours, theirs) = ring_pair().unwrap();
        self.switch = Some(SwitchEnd::new(ours).unwrap());
        self.supervisor.send(&SupervisorToControl::DatapathChannel, Some(theirs.as_fd())).unwrap();
        let ports: Vec<_> = self.ports.keys().map(|id| self.info(*id)).collect();
        ports.into_iter().for_each(|port| self.tell(&ToControl::Port(port)));
        self.tell(&ToControl::Hello);
    }

    pub fn info(&self, id: PortId) -> PortInfo {
        let state = &self.states[&id];
        let packets = |packets, drops| PortTotals { packets, bytes: packets * 100, drops, ..PortTotals::default() };
        PortInfo {
            id,
            name: self.ports[&id].name.clone(),
            connected: *state != PortState::Waiting,
            up: *state == PortState::Up,
            broken: None,
            features: 0x1_0000_0000,
            protocol_features: 0,
            mtu: 1500,
            memory_bytes: 1 << 30,
            memory_regions: 1,
            translation: None,
            last_error: None,
            queues: Vec::new(),
            from_guest: packets(10, vec![(DropReason::Acl, 2)]),
            to_guest: packets(8, Vec::new()),
            waiting: 0,
            vm: None,
        }
    }

    pub fn tell(&mut self, message: &ToControl) {
        let Some(switch) = &mut self.switch else { return };
        while let Err(e) = switch.send(message) {
            assert!(matches!(e, ChannelError::WouldBlock), "{e}");
            flush(switch);
            assert!(poll(&mut [PollFd::new(switch, PollFlags::IN)], Some(&PATIENCE)).unwrap() > 0, "not read");
            let _ = switch.woken();
        }
        flush(switch);
    }

    /// A packet arrives at the switch: true when a flow took it, false when it was handed to control.
    pub fn packet(&mut self, frame: &[u8], port: u32) -> bool {
        let key = self.key(frame, port);
        if self.lookup(&key).is_some() {
            return true;
        }
        self.next_id += 1;
        let missed = UpcallPacket {
            id: self.next_id,
            copy: None,
            key,
            header: frame.to_vec(),
            frame_len: u32::try_from(frame.len()).unwrap(),
        };
        self.tell(&ToControl::Upcall(missed));
        false
    }

    fn key(&self, frame: &[u8], port: u32) -> FlowKey {
        let mut key = FlowKey { in_port: port, ..FlowKey::default() };
        extract(&mut key, frame, frame.len(), Depth::Full);
        key
    }

    pub fn lookup(&self, key: &FlowKey) -> Option<&FlowSpec> {
        self.flows.iter().map(|(f, _)| f).find(|f| key.masked(&f.mask) == f.key)
    }

    /// Serves control's messages until `done`. Panics when nothing happens for a long time before that.
    pub fn serve_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let mut fds = vec![PollFd::new(&self.supervisor, PollFlags::IN)];
            if let Some(switch) = &self.switch {
                fds.push(PollFd::new(switch, PollFlags::IN));
            }
            assert!(poll(&mut fds, Some(&PATIENCE)).unwrap() > 0, "control says nothing; heard {:?}", self.heard);
            self.serve_pending();
        }
    }

    /// Serves what control says now or within some milliseconds.
    pub fn serve_for_a_moment(&mut self) {
        let mut fds = vec![PollFd::new(&self.supervisor, PollFlags::IN)];
        if let Some(switch) = &self.switch {
            fds.push(PollFd::new(switch, PollFlags::IN));
        }
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).unwrap();
        self.serve_pending();
    }

    fn serve_pending(&mut self) {
        loop {
            match self.supervisor.recv() {
                Ok((message, _)) => self.supervisor_hears(message),
                Err(ChannelError::WouldBlock) => break,
                Err(e) => panic!("control is gone: {e}"),
            }
        }
        while let Some(switch) = &mut self.switch {
            match switch.recv() {
                Ok(message) => self.switch_hears(message),
                Err(ChannelError::WouldBlock) => {
                    flush(switch);
                    if !switch.rest().unwrap() {
                        continue;
                    }
                    match switch.woken() {
                        Ok(()) => {}
                        Err(ChannelError::WouldBlock) => break,
                        Err(_) => self.switch = None,
                    }
                }
                Err(e) => panic!("control {e}"),
            }
        }
    }

    fn supervisor_hears(&mut self, message: ControlToSupervisor) {
        let (request, result) = match message {
            ControlToSupervisor::Ready => {
                self.ready = true;
                return;
            }
            ControlToSupervisor::KeepLists(_) if self.keeps_lists_waiting => return,
            ControlToSupervisor::PortAdd { request, name, path, client, tx_batch, settings, .. } => {
                let set =
                    settings.iter().find(|(name, _)| name == "tx-batch").and_then(|(_, value)| value.parse().ok());
                let set = set.map(|lasthop_policy::Batch { us, packets }| (us, packets));
                (request, self.add_port(&name, path, client, set.or(tx_batch).unwrap_or((125, 64))))
            }
            ControlToSupervisor::PortDel { request, name } => (request, self.del_port(&name)),
            ControlToSupervisor::PortRename { request, name, to } => (request, self.rename_port(&name, &to)),
            ControlToSupervisor::PortSet { request, name, settings } => (request, self.set_port(&name, &settings)),
            ControlToSupervisor::CpuTimes { request } => {
                let ports = self.ports.keys().map(|id| (*id, u64::from(id.0) * 1_000_000)).collect();
                let times = CpuTimes {
                    ports,
                    helpers_ns: 20_000_000,
                    main_ns: 3_000_000,
                    switch_ns: 100_000_000,
                    control_ns: 4_000_000,
                    uplinks_ns: 0,
                    sessions_ns: 0,
                    supervisor_ns: 5_000_000,
                };
                let last = Some((3000, "ended: signal: 9 (SIGKILL)".into()));
                let replaced = vec![Replaced { process: "switch".into(), times: 2, last }];
                let host =
                    HostFacts { version: "1.2.3".into(), outdated: vec!["switch".into()], ..HostFacts::default() };
                let told = SupervisorToControl::CpuTimes { request, times, replaced, host };
                self.supervisor.send(&told, None).unwrap();
                return;
            }
            ControlToSupervisor::TakesNothing { .. }
            | ControlToSupervisor::Limit { .. }
            | ControlToSupervisor::Done(_)
            | ControlToSupervisor::Owners(_) => return,
            ControlToSupervisor::LogLevel { request, run, control } => {
                let run = run.unwrap_or_else(|| "info".into());
                let told = SupervisorToControl::LogLevel { request: Some(request), run, control };
                self.supervisor.send(&told, None).unwrap();
                return;
            }
            ControlToSupervisor::Announce { uplink, macs } => {
                self.announced.push((uplink, macs));
                return;
            }
            ControlToSupervisor::KeepLists(part) => {
                if part.is_empty() {
                    let text = String::from_utf8(std::mem::take(&mut self.parts)).unwrap();
                    let result = if self.disk_full { Err("disk full; make room".into()) } else { Ok(()) };
                    if result.is_ok() {
                        self.lists = text;
                    }
                    self.supervisor.send(&SupervisorToControl::ListsKept(result), None).unwrap();
                }
                self.parts.extend(part);
                return;
            }
            // The last mirror that was asked for is the only one; one that is called `refused` is.
            ControlToSupervisor::MirrorAdd { request, mirror } => {
                let result = if mirror.name == "refused" { Err("choose another name".into()) } else { Ok(()) };
                self.tell_mirrors(request, vec![mirror], result);
                return;
            }
            ControlToSupervisor::MirrorDel { request, .. } => {
                self.tell_mirrors(request, Vec::new(), Ok(()));
                return;
            }
            // Only a release called `good` takes over, and it has one port; one called `other` says other messages.
            ControlToSupervisor::Upgrade { request, programs, .. } => {
                let process = NewProcess { process: "switch".into(), pid: 77, took: 2_000_001 };
                let kept = vec![("session vm2".into(), "a front-end is connected".into())];
                let pauses = vec![(PortId(1), Some(1_000_001)), (PortId(2), None)];
                let done = Upgraded { processes: vec![process], kept, pauses };
                let directory = programs.as_deref().and_then(|path| path.rsplit('/').next());
                let result = match directory {
                    Some("good") => Ok(done),
                    Some("other") => Err(NotReplaced::OtherMessages("restart lasthop; nothing has changed".into())),
                    _ => Err(NotReplaced::Refused("it does not start; the switch before goes on".into())),
                };
                self.supervisor.send(&SupervisorToControl::UpgradeReply { request, result }, None).unwrap();
                return;
            }
            ControlToSupervisor::EngineChange { request, .. } => {
                let result = Err(NotReplaced::Refused("there is no such CPU; nothing has changed".into()));
                self.supervisor.send(&SupervisorToControl::UpgradeReply { request, result }, None).unwrap();
                return;
            }
            // One core polls.
            ControlToSupervisor::EngineList { request } => {
                let (kind, cpus, cpu_ns) = (EngineKind::Poll, "3".to_owned(), Some(2_000_000));
                let engines = vec![EngineInfo { kind, cpus, nodes: None, cpu_ns, trouble: None }];
                let set = ["3", "all", "all"].map(str::to_owned);
                let near = "node".to_owned();
                let engines = SupervisorToControl::Engines { request, engines, set, near, near_to: 2 };
                self.supervisor.send(&engines, None).unwrap();
                return;
            }
            // Whatever is asked of uplinks: port 2 is one, and no other can be made.
            ControlToSupervisor::UplinkAdd { request, uplink: UplinkConfig { device, .. } } => {
                let result = Err(format!("there is no interface {device}; `ip link` shows those there are"));
                self.supervisor.send(&SupervisorToControl::UplinkReply { request, result }, None).unwrap();
                return;
            }
            ControlToSupervisor::UplinkSet { request, vlans, .. } => {
                let bytes = vlans.map(|list| list.parse::<lasthop_policy::Vlans>().unwrap().as_bytes().to_vec());
                self.supervisor.send(&SupervisorToControl::Uplinks(vec![(PortId(2), bytes)]), None).unwrap();
                let result = Ok(vec![self.uplink()]);
                self.supervisor.send(&SupervisorToControl::UplinkReply { request, result }, None).unwrap();
                return;
            }
            ControlToSupervisor::UplinkList { request } | ControlToSupervisor::UplinkDel { request, .. } => {
                let result = Ok(vec![self.uplink()]);
                self.supervisor.send(&SupervisorToControl::UplinkReply { request, result }, None).unwrap();
                return;
            }
        };
        self.announce_ports();
        self.supervisor.send(&SupervisorToControl::Reply { request, result }, None).unwrap();
    }

    fn tell_mirrors(&mut self, request: u64, mirrors: Vec<MirrorConfig>, result: Result<(), String>) {
        if result.is_ok() {
            self.supervisor.send(&SupervisorToControl::Mirrors(mirrors), None).unwrap();
        }
        self.supervisor.send(&SupervisorToControl::MirrorReply { request, result }, None).unwrap();
    }

    /// The uplink at port 2.
    fn uplink(&self) -> UplinkInfo {
        UplinkInfo {
            name: "vm2".into(),
            device: DeviceState {
                port: PortId(2),
                device: "eth0".into(),
                driver: Some(UplinkDriver::Tap),
                link: LinkState::Up,
                last_error: None,
            },
            guest: false,
            nice: 0,
            no_gro: false,
            running: true,
            probing: false,
            about: Some(UplinkDevice {
                driver: UplinkDriver::Tap,
                mode: "vnet_hdr".into(),
                mac: MacAddr([2, 0, 0, 0, 0, 9]),
                mtu: 1500,
                queues: 1,
                created: true,
                made_now: true,
            }),
            pid: Some(4711),
            restarts: 3,
            spare: None,
            blocked_by: None,
            counters: UplinkCounters { to_network_packets: 5, to_network_bytes: 300, ..UplinkCounters::default() },
        }
    }

    /// As if nothing had been set before.
    fn set_port(&mut self, name: &str, changes: &[(String, String)]) -> Result<PortConfig, String> {
        let changes = changes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let text = PortSettings::default().change(changes)?.to_string();
        let port = self.ports.values().find(|p| p.name == name).cloned().ok_or("there is no such port; add it")?;
        self.supervisor.send(&SupervisorToControl::Settings { port: port.id, text }, None).unwrap();
        Ok(port)
    }

    fn rename_port(&mut self, name: &str, to: &str) -> Result<PortConfig, String> {
        let port = self.ports.values_mut().find(|p| p.name == name).ok_or("there is no such port; add it")?;
        to.clone_into(&mut port.name);
        let port = port.clone();
        let renamed = SupervisorToControl::Renamed { port: port.id, from: name.into(), to: to.into() };
        self.supervisor.send(&renamed, None).unwrap();
        Ok(port)
    }

    fn del_port(&mut self, name: &str) -> Result<PortConfig, String> {
        let id = self.ports.values().find(|p| p.name == name).map(|p| p.id);
        let id = id.ok_or_else(|| format!("there is no port named {name:?}; `lasthop port list` shows them"))?;
        let names = |a: &Action| *a == Action::Output(id) || *a == Action::Copy(id);
        self.flows.retain(|(f, _)| f.key.port() != id && !f.actions.iter().any(names));
        self.tell(&ToControl::PortGone(id));
        Ok(self.ports.remove(&id).unwrap())
    }

    fn switch_hears(&mut self, message: FromControl) {
        let kind = match message {
            FromControl::PutFlow(flow) => {
                let flow = FlowSpec { key: flow.key.masked(&flow.mask), ..flow };
                self.flows.retain(|(f, _)| (f.key, f.mask) != (flow.key, flow.mask));
                self.flows.push((flow, 0));
                "put"
            }
            FromControl::DelFlow { key, mask, .. } => {
                self.flows.retain(|(f, _)| (f.key, f.mask) != (key, mask));
                "del"
            }
            FromControl::ClearFlows => {
                self.flows.clear();
                "clear"
            }
            FromControl::SetMeter { .. } => "meter",
            FromControl::Resume { id, actions } => {
                self.resumed.push((id, actions));
                "resume"
            }
            FromControl::Ask { request, question } => {
                self.answer(request, question);
                "ask"
            }
        };
        self.heard.push(kind);
    }

    fn flow_info(&self, spec: &FlowSpec, idle_ms: u64) -> FlowInfo {
        FlowInfo { flow: spec.clone(), packets: 3, bytes: 300, idle_ms }
    }

    fn answer(&mut self, request: u64, question: DatapathRequest) {
        if self.hangs {
            return;
        }
        let lookup = |fake: &Self, key: FlowKey| DatapathReply::Lookup {
            key,
            flow: fake.lookup(&key).map(|f| Box::new(fake.flow_info(f, 0))),
        };
        let reply = match question {
            DatapathRequest::Flows { after: (from, ..) } => {
                // A hundred places at a time.
                let from = usize::try_from(from).unwrap();
                let flows = self.flows.iter().skip(from).take(100).map(|(f, idle)| self.flow_info(f, *idle)).collect();
                self.parts_told += 1;
                let next = (self.flows.len() > from + 100).then_some((from as u64 + 100, 0, 0));
                DatapathReply::Flows { flows, next }
            }
            DatapathRequest::Ports => DatapathReply::Ports(self.ports.keys().map(|id| self.info(*id)).collect()),
            DatapathRequest::Lookup(key) => lookup(self, key),
            DatapathRequest::Meter(id) => DatapathReply::Meter { id, passed: [0; 2], dropped: [0; 2] },
            DatapathRequest::Barrier if self.holds_barriers => return,
            DatapathRequest::Barrier => DatapathReply::Barrier,
        };
        self.tell(&ToControl::Reply { request, last: true, reply });
    }
}

/// A small IPv4 frame between stations numbered `src` and `dst`.
pub fn frame(src: u8, dst: u8) -> Vec<u8> {
    let mut f = vec![0x52, 0x54, 0, 0, 0, dst, 0x52, 0x54, 0, 0, 0, src, 8, 0];
    f.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
    f.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    f
}
