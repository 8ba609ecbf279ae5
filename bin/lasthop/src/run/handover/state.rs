//! What there is to know of a supervisor, and a supervisor made of that.

use super::super::args::RunArgs;
use super::super::boost::Boost;
use super::super::cgroup_accounting::{CgroupAccounting, CgroupState};
use super::super::child::ChildState;
use super::super::closing;
use super::super::devices::{self, DeviceState};
use super::super::engines::{Engines, EnginesOfRun, allowed_cpus};
use super::super::host_facts::Missing;
use super::super::max_cpu::CpuBounds;
use super::super::near::FollowedState;
use super::super::open_vswitch::{OpenVswitch, OpenVswitchState};
use super::super::port::{Port, PortState};
use super::super::port_threads::PortThreads;
use super::super::replaced::{Replacements, ReplacementsState};
use super::super::segments::{Segments, SegmentsState};
use super::super::served::{Served, ServedState};
use super::super::sessions::SessionsState;
use super::super::setup::{Setup, Unsaved};
use super::super::store::Store;
use super::super::supervisor::{Outliving, Supervisor, port_token};
use super::super::uplink::{Uplink, UplinkState};
use super::super::wires::OfDevice;
use super::{Fd, Giver, Moment, Taker, VERSION, own_arguments};
use lasthop_hostview::{Handed, HandedProgram, HostMonitor};
use lasthop_ipc::RateLimit;
use lasthop_log::levels;
use lasthop_policy::{Mirror, PortSettings};
use lasthop_uplink_ipc::VlanMac;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Why nothing else is executed while a thread closes something: not of which port, as that may be gone.
const STILL_CLOSED: &str = "what a connection or a process has left is still being closed (if it lasts, a front-end has sent files of a FUSE mount, or sockets \
                            that linger: end whoever serves them; or no thread can be started, by pids.max, that would close it)";

/// All of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// What the programs say to each other.
    messages: String,
    /// All descriptors.
    pub(super) descriptors: Vec<i32>,
    /// The file of the program before, and what it was started with.
    pub(super) program: Fd,
    pub(super) arguments: Vec<OsString>,
    /// Since when nobody has listened.
    pub(super) since: Moment,
    /// Who asked: the mark of the attempt, and control's number of it.
    pub(super) asked: Option<(String, u64)>,
    switch: ChildState,
    control: ChildState,
    sessions: SessionsState,
    ports: Vec<PortState>,
    uplinks: Vec<UplinkState>,
    devices: Vec<DeviceState>,
    next_id: u32,
    uplink_program: Result<PathBuf, String>,
    replaced: ReplacementsState,
    taps: BTreeMap<String, String>,
    segments: Option<SegmentsState>,
    /// Interfaces in other namespaces, of which nothing is heard here.
    #[serde(default)]
    away: BTreeSet<String>,
    /// What the switch has been told, by priorities.
    #[serde(default)]
    weights: BTreeMap<u32, u32>,
    settings: BTreeMap<String, PortSettings>,
    /// What guests are held to for bounds of processor time: the switch has been told.
    #[serde(default)]
    cpu_bounds: CpuBounds,
    /// Addresses behind ports that have queues of their own.
    #[serde(default)]
    stations: BTreeMap<u32, Vec<VlanMac>>,
    limited: BTreeMap<String, [Option<RateLimit>; 2]>,
    mirrors: Vec<Mirror>,
    lists: String,
    known_files: KnownFiles,
    served: Vec<ServedState>,
    ovs: Option<OpenVswitchState>,
    journal: Fd,
    #[serde(default)]
    dma: Option<Fd>,
    view: Fd,
    monitor: Option<MonitorState>,
    missing: Missing,
    boost: Option<[Fd; 2]>,
    port_threads: PortThreads,
    /// Processor time of ports' threads: of those that have ended, and of all as far as it was seen.
    #[serde(default)]
    port_times: BTreeMap<u32, [u64; 2]>,
    control_level: Option<String>,
    level: String,
    cgroup_accounting: Option<CgroupState>,
    /// Where VMs are.
    #[serde(default)]
    followed: FollowedState,
    /// None from a program that had no `lasthop engine`.
    #[serde(default)]
    engines: Option<EnginesOfRun>,
    locks: [Fd; 2],
}

/// What the state directory's files were when they were last read or written.
pub type KnownFiles = ([Option<u64>; 2], BTreeMap<String, PortSettings>);

/// The program that knows what VMs and cores do.
#[derive(Debug, Serialize, Deserialize)]
struct MonitorState {
    descriptors: [Fd; 4],
    ports: Vec<(u32, u32)>,
    slots: Vec<(u32, u32)>,
    last: u32,
}

impl Supervisor {
    /// What of it is half done, so that no other program can go on with it.
    pub(super) fn unsettled(&self) -> Option<String> {
        let moves = self.upgrade.is_some() || self.ending.is_some() || self.renewal.is_some();
        if moves || !self.deferred.is_empty() {
            return Some("a process is being replaced".into());
        }
        if !self.announced || !self.uplink_lists.is_empty() || !self.new_lists.is_empty() {
            return Some("a command is being carried out".into());
        }
        let stuck = self.ports.values().find(|port| port.is_stuck());
        let stuck = stuck.map(|port| format!("connections of port {} do not close", port.config.name));
        stuck
            .or_else(|| self.switch.unsettled())
            .or_else(|| self.control.unsettled())
            .or_else(|| self.sessions.unsettled())
            .or_else(|| self.uplinks.values().find_map(Uplink::unsettled))
            .or_else(|| closing::is_anything_left().then(|| STILL_CLOSED.into()))
            .or_else(|| {
                (lasthop_sys::uncollected() > 0).then(|| "the kernel still lets go of a process that has ended".into())
            })
    }

    /// Of one that is settled.
    pub(super) fn hand_over(&mut self) -> Result<State, String> {
        let mut giver = Giver::new();
        let cgroup_accounting = self.cgroup_accounting.as_mut().map(CgroupAccounting::hand_over);
        let program = File::open("/proc/self/exe").map_err(|e| format!("/proc/self/exe: {e}"))?;
        let program_fd = giver.fd(&program);
        let Handed { view, program: monitor } = self.monitor.hand_over(|fd| giver.fd(fd));
        let monitor = monitor.map(|HandedProgram { descriptors, ports, slots, last }| MonitorState {
            descriptors,
            ports,
            slots,
            last,
        });
        let mut state = State {
            version: VERSION,
            messages: super::super::MESSAGES.into(),
            descriptors: Vec::new(),
            program: program_fd,
            arguments: own_arguments(),
            since: giver.moment(Instant::now()),
            asked: self.asked.as_ref().and_then(|asked| asked.open()),
            switch: self.switch.hand_over(&mut giver),
            control: self.control.hand_over(&mut giver),
            sessions: self.sessions.hand_over(&mut giver),
            ports: self.ports.values().map(|port| port.hand_over(&mut giver)).collect(),
            uplinks: self.uplinks.values().map(|uplink| uplink.hand_over(&mut giver)).collect(),
            devices: self.hand_over_devices(&mut giver),
            next_id: self.next_id,
            uplink_program: self.uplink_program.clone(),
            replaced: self.replaced.hand_over(&giver),
            taps: self.taps.clone(),
            segments: self.segments.as_ref().map(|segments| segments.hand_over(&giver)),
            away: self.links.as_ref().map(|links| links.away().clone()).unwrap_or_default(),
            weights: self.weights.clone(),
            settings: self.settings.clone(),
            cpu_bounds: self.cpu_bounds.clone(),
            stations: self.stations.clone(),
            limited: self.limited.clone(),
            mirrors: self.mirrors.clone(),
            lists: String::from_utf8_lossy(&self.lists).into_owned(),
            known_files: self.store.hand_over(),
            served: self.served.iter().map(|served| served.hand_over(&mut giver)).collect(),
            ovs: self.ovs.as_ref().map(|ovs| ovs.hand_over(&mut giver)),
            journal: giver.fd(&self.journal),
            dma: self.dma.as_ref().map(|page| giver.fd(page)),
            view,
            monitor,
            missing: self.missing.clone(),
            boost: self.boost.as_ref().map(|boost| boost.hand_over(&mut giver)),
            port_threads: self.port_threads.clone(),
            port_times: self.port_threads.times(),
            control_level: self.control_level.clone(),
            level: levels::level(),
            cgroup_accounting,
            followed: self.followed.hand_over(),
            engines: Some(self.engines.clone()),
            locks: self.locks.each_ref().map(|lock| giver.fd(lock)),
        };
        state.descriptors = giver.descriptors;
        self.own_program = Some(program);
        Ok(state)
    }

    /// Goes on with it: what this process is told on the command line, and what it was.
    pub(super) fn resumed(args: &RunArgs, state: State, taker: &Taker) -> Result<Self, String> {
        // Those that were set at the start are in the environment.
        let _ = levels::set_level(&state.level);
        let monitor = state.monitor.map(|MonitorState { descriptors, ports, slots, last }| {
            let [vms, look, on_switch, attached] = descriptors.map(|fd| taker.fd(fd));
            Ok::<_, String>(HandedProgram { descriptors: [vms?, look?, on_switch?, attached?], ports, slots, last })
        });
        let outliving = Outliving {
            journal: taker.fd(state.journal)?,
            dma: state.dma.map(|page| taker.fd(page)).transpose()?,
            monitor: HostMonitor::resumed(Handed { view: taker.fd(state.view)?, program: monitor.transpose()? }),
            missing: state.missing,
            boost: state.boost.map(|boost| Boost::resumed(boost, taker)).transpose()?,
        };
        let [run_lock, state_lock] = state.locks.map(|lock| taker.fd(lock).map(File::from));
        let store = Store::resumed(&args.state_dir, state.known_files);
        let served: Result<Vec<_>, _> = state.served.into_iter().map(|served| Served::resumed(served, taker)).collect();
        let ovs = state.ovs.map(|ovs| OpenVswitch::resumed(ovs, taker)).transpose()?;
        let locks = [run_lock?, state_lock?];
        let mut setup = setup_of(args, store, served?, ovs, (locks, state.engines)).map_err(|e| e.to_string())?;
        (setup.taps, setup.settings, setup.mirrors) = (state.taps, state.settings, state.mirrors);
        (setup.lists, setup.uplink) = (state.lists.into_bytes(), state.uplink_program);
        let mut supervisor = Self::assemble(setup, outliving).map_err(|e| e.to_string())?;
        supervisor.announced = true;
        supervisor.switch.resume(state.switch, &supervisor.epoll, taker)?;
        supervisor.control.resume(state.control, &supervisor.epoll, taker)?;
        supervisor.sessions.resume(state.sessions, &supervisor.epoll, taker)?;
        if let Some(links) = &mut supervisor.links {
            links.resume_away(state.away);
        }
        (supervisor.weights, supervisor.cpu_bounds) = (state.weights, state.cpu_bounds);
        for port in state.ports {
            let at = (&supervisor.epoll, &supervisor.presence, port_token(port.config.id));
            let port = Port::resumed(port, at, taker)?;
            supervisor.ports.insert(port.config.id.0, port);
        }
        for uplink in state.uplinks {
            supervisor.resume_uplink(uplink, taker)?;
        }
        supervisor.resume_devices(state.devices, taker)?;
        supervisor.next_id = state.next_id;
        supervisor.replaced = Replacements::resumed(state.replaced, taker);
        if let (Some(segments), Some(state)) = (&mut supervisor.segments, state.segments) {
            *segments = Segments::resumed(state, taker);
        }
        supervisor.limited = state.limited;
        supervisor.stations = state.stations;
        supervisor.tell_owners();
        supervisor.port_threads = state.port_threads;
        supervisor.port_threads.set_times(state.port_times);
        supervisor.control_level = state.control_level;
        if supervisor.cgroup_accounting.is_some() {
            supervisor.cgroup_accounting = state.cgroup_accounting.map(CgroupAccounting::resumed);
        }
        supervisor.followed.resume(state.followed);
        supervisor.tell_places();
        // What became of sockets' files meanwhile nobody has reported.
        supervisor.presence.ask();
        Ok(supervisor)
    }
}

/// What the command line says; the rest was found, checked and locked by the program before.
fn setup_of(
    args: &RunArgs,
    store: Store,
    served: Vec<Served>,
    ovs: Option<OpenVswitch>,
    (locks, engines): ([File; 2], Option<EnginesOfRun>),
) -> Result<Setup, super::super::RunError> {
    let allowed = allowed_cpus().map_err(super::super::RunError::Failed)?;
    // Some may have been taken away since they were looked at: that is no reason to end.
    let given = Engines::of_command_line(args, &allowed);
    let cpus = given.cpus.clone();
    let engines = engines.unwrap_or_else(|| EnginesOfRun { now: given.clone(), given });
    let switch = args.data_plane();
    Ok(Setup {
        offload: None,
        for_switch: args.for_switch(&engines.now, &allowed),
        tx_batch: args.scheduling.tx_batch,
        rx_batch: args.scheduling.rx_batch,
        vm_cgroup: args.vm_cgroup,
        bpf: !args.no_bpf,
        system: args.system(),
        switch: (switch, PathBuf::new()),
        devices: devices::wanted(args, cpus.as_ref())?,
        of_device: OfDevice::new(args),
        control: PathBuf::new(),
        rules: args.device_rules.map(|rules| (rules, args.device_walk)),
        dma: args.device_dma,
        bus: args.device_bus,
        connections: args.connections,
        session: PathBuf::new(),
        ovs,
        uplink: Err(String::new()),
        uplink_limit: Duration::from_millis(args.uplink_limit_ms),
        watchdog: args.watchdog.0,
        patient: args.device_again,
        uplink_probe: !args.no_uplink_probe,
        served,
        store,
        engines,
        ports: Vec::new(),
        saved: Vec::new(),
        uplinks: Vec::new(),
        saved_uplinks: Vec::new(),
        taps: BTreeMap::new(),
        settings: BTreeMap::new(),
        mirrors: Vec::new(),
        also_saved: HashSet::new(),
        lists: Vec::new(),
        unsaved: Unsaved::default(),
        locks,
    })
}

/// The file of the program that this process runs, and where another of its name would be installed.
pub(in super::super) fn own_program() -> Result<(fs::Metadata, PathBuf), String> {
    let wrong = |e| format!("where this program is: {e}");
    let runs = fs::metadata("/proc/self/exe").map_err(wrong)?;
    let path = fs::read_link("/proc/self/exe").map_err(wrong)?;
    // So the kernel says that the file of this name is another one now.
    let text = path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok((runs, text.unwrap_or(path)))
}
