//! The event loop of `lasthop run`.

use super::boost::Boost;
use super::cgroup_accounting::CgroupAccounting;
use super::child::{Child, Ended};
use super::devices::{self, Device};
use super::dma;
use super::engines::EnginesOfRun;
use super::handover::{Successor, TakeOver};
use super::host_facts::Missing;
use super::links::Links;
use super::max_cpu::CpuBounds;
use super::near::Followed;
use super::offload::Offload;
use super::open_vswitch::{self, OpenVswitch};
use super::port::Port;
use super::port_threads::PortThreads;
use super::presence::Presence;
use super::probing;
use super::renewal::Renewal;
use super::replaced::Replacements;
use super::segments::Segments;
use super::served::{Served, Serves};
use super::service::Heart;
use super::sessions::{self, Sessions};
use super::setup::{Setup, Unsaved};
use super::store::Store;
use super::switch_log::SwitchLog;
use super::upgrade::{Asked, Upgrade};
use super::uplink::{Switch, Uplink};
use super::weights::Unkept;
use super::wires::OfDevice;
use super::{RunError, RunError::Failed};
use lasthop_hostview::HostMonitor;
use lasthop_ipc::{RateLimit, SupervisorToSwitch, SwitchSettings, SwitchToSupervisor};
use lasthop_management_ipc::{ControlToSupervisor, DeviceState, SupervisorToControl};
use lasthop_policy::{Batch, Mirror, PortSettings};
use lasthop_sys::{Epoll, SignalFd, Trigger, Watched};
use lasthop_types::PortId;
use lasthop_uplink_ipc::VlanMac;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Size of the memory that outlives each switch, in bytes.
const JOURNAL_LEN: u64 = 1 << 20;
/// Control may be busy with one thing for so long: to read lists of 65 536 rules took 0.2 s here, all else a few milliseconds.
const CONTROL_ROUND: Duration = Duration::from_secs(4);
/// How often a child may end before it is ready, at the start, until we give up.
const START_ATTEMPTS: u32 = 5;
/// How long children may take to end after they were asked.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

const SIGNALS: u64 = 0;
pub(super) const SWITCH_CHANNEL: u64 = 1;
pub(super) const SWITCH_PID: u64 = 2;
const CONTROL_CHANNEL: u64 = 3;
const CONTROL_PID: u64 = 4;
const BOOST: u64 = 5;
const LINKS: u64 = 6;
const PRESENCE: u64 = 7;
/// The other switch, while one takes over from another.
pub(super) const NEXT_CHANNEL: u64 = 8;
pub(super) const NEXT_PID: u64 = 9;
/// The end of the program that looks whether it could take over.
pub(super) const TAKE_OVER: u64 = 10;
/// The process that gives flows to the kernel or a card.
pub(super) const OFFLOAD_CHANNEL: u64 = 11;
pub(super) const OFFLOAD_PID: u64 = 12;
/// Listeners: this plus the port's number. Uplinks' are above.
pub(super) const LISTENER: u64 = 1 << 32;
const LISTENERS_END: u64 = 2 << 32;

/// The supervisor, ready to run.
#[derive(Debug)]
pub struct Supervisor {
    pub(super) epoll: Epoll,
    signals: SignalFd,
    pub(super) switch: Child<SupervisorToSwitch, SwitchToSupervisor>,
    /// Another one that is to take over.
    pub(super) upgrade: Option<Upgrade>,
    /// Other processes that newly installed programs take the place of.
    pub(super) renewal: Option<Renewal>,
    /// The last `lasthop upgrade`.
    pub(super) asked: Option<Asked>,
    /// One that is not used any more, and has not ended yet.
    pub(super) ending: Option<Switch>,
    /// What control has asked for while one takes over.
    pub(super) deferred: Vec<ControlToSupervisor>,
    pub(super) control: Child<SupervisorToControl, ControlToSupervisor>,
    /// Who gives flows to the kernel or a card, if somebody does.
    pub(super) offload: Option<Offload>,
    pub(super) devices: Vec<Device>,
    /// If this is a device of another `lasthop run`.
    pub(super) of_device: Option<OfDevice>,
    pub(super) ports: BTreeMap<u32, Port>,
    pub(super) uplinks: BTreeMap<u32, Uplink>,
    /// Who speaks with the front-ends of both.
    pub(super) sessions: Sessions,
    /// Requests for a list of uplinks, and until when they are to be answered.
    pub(super) uplink_lists: Vec<(u64, Instant)>,
    /// Uplinks that must be ready before we are.
    pub(super) uplinks_needed: BTreeSet<u32>,
    pub(super) uplink_program: Result<PathBuf, String>,
    pub(super) uplink_limit: Duration,
    /// Within which it is found out that the switch or control hangs.
    pub(super) watchdog: Option<Duration>,
    /// Processes that had to be replaced.
    pub(super) replaced: Replacements,
    /// TAP devices that were made here, in this run or an earlier one, and their addresses.
    pub(super) taps: BTreeMap<String, String>,
    /// How interfaces are, unless the kernel does not say.
    pub(super) links: Option<Links>,
    /// What control was last told of them.
    pub(super) told_devices: Vec<DeviceState>,
    /// Which uplinks are on one segment, if that is to be found out.
    pub(super) segments: Option<Segments>,
    pub(super) next_id: u32,
    /// How packets of a port that has no setting of its own are gathered.
    pub(super) tx_batch: Batch,
    pub(super) rx_batch: Batch,
    pub(super) store: Store,
    /// What ports are told to do, by name.
    pub(super) settings: BTreeMap<String, PortSettings>,
    /// Shares of ports by number, as long as some have a priority or a minimum rate.
    pub(super) weights: BTreeMap<u32, u32>,
    pub(super) unkept: Unkept,
    pub(super) cpu_bounds: CpuBounds,
    /// Addresses behind ports that have queues of their own, as control knows them.
    pub(super) stations: BTreeMap<u32, Vec<VlanMac>>,
    /// What Open vSwitch lets come from ports and go there, by name, where that is not what they are told.
    pub(super) limited: BTreeMap<String, [Option<RateLimit>; 2]>,
    /// Mirrors, by name.
    pub(super) mirrors: Vec<Mirror>,
    /// Text of the access lists, as it is kept.
    pub(super) lists: Vec<u8>,
    /// The same as far as control has told us of a change.
    pub(super) new_lists: Vec<u8>,
    /// What is not kept yet of the file of `--config`.
    pub(super) unsaved: Unsaved,
    /// Sockets of the API: that of the owner, and that of those who may look if there are any.
    pub(super) served: Vec<Served>,
    pub(super) presence: Presence,
    /// What Open vSwitch needs, where it decides.
    pub(super) ovs: Option<OpenVswitch>,
    pub(super) journal: OwnedFd,
    /// Where the DMA engine of the data plane in use counts, if that is a device with one: a page of its own for each process, so that the counts are
    /// those of one engine.
    pub(super) dma: Option<OwnedFd>,
    /// How the switch moves packets.
    pub(super) for_switch: SwitchSettings,
    /// Which CPUs do ports' work.
    pub(super) engines: EnginesOfRun,
    /// What cores and VMs do.
    pub(super) monitor: HostMonitor,
    pub(super) missing: Missing,
    /// Where the switch asks for threads to leave the idle class.
    pub(super) boost: Option<Boost>,
    /// Which thread of the switch is which port's.
    pub(super) port_threads: PortThreads,
    /// Where VMs are that those are to be near to.
    pub(super) followed: Followed,
    pub(super) switch_log: SwitchLog,
    /// What control is to write, if it was told.
    pub(super) control_level: Option<String>,
    /// Whose work ports' threads do, if VMs are to pay for it.
    pub(super) cgroup_accounting: Option<CgroupAccounting>,
    /// Whether `ready` was printed.
    pub(super) announced: bool,
    /// The service manager's watchdog, if there is one.
    pub(super) heart: Option<Heart>,
    /// Why it could not be.
    not_ready: Option<String>,
    pub(super) locks: [File; 2],
    /// Another program that this process is to become.
    pub(super) take_over: Option<TakeOver>,
    /// The file of this program, while it may have to be executed again.
    pub(super) own_program: Option<File>,
}

/// What a supervisor is for that has ended its work.
#[derive(Debug)]
pub enum Next {
    /// Nothing more.
    End,
    /// This process becomes another program, which goes on.
    Become(Successor),
}

/// What children have of us for as long as they live.
#[derive(Debug)]
pub(super) struct Outliving {
    pub(super) journal: OwnedFd,
    pub(super) dma: Option<OwnedFd>,
    pub(super) monitor: HostMonitor,
    pub(super) missing: Missing,
    pub(super) boost: Option<Boost>,
}

impl Supervisor {
    /// Opens the ports. Those of the command line must work; a remembered one that does not is tried again later.
    pub fn new(mut setup: Setup) -> Result<Self, RunError> {
        let system = |what: &str, e: rustix::io::Errno| Failed(format!("{what}: {e}"));
        let journal = journal().map_err(|e| system("memfd_create", e))?;
        let dma = setup.dma.map(|_| dma::page()).transpose().map_err(|e| Failed(format!("memfd_create: {e}")))?;
        let mut missing = Missing::default();
        let monitor = missing.monitor(setup.bpf).map_err(|e| system("memfd_create", e))?;
        let boost = missing.boost();
        let [ports, saved_ports] = [&mut setup.ports, &mut setup.saved].map(std::mem::take);
        let (uplinks, saved_uplinks) = (std::mem::take(&mut setup.uplinks), std::mem::take(&mut setup.saved_uplinks));
        let (also_saved, patient) = (std::mem::take(&mut setup.also_saved), setup.patient);
        let mut supervisor = Self::assemble(setup, Outliving { journal, dma, monitor, missing, boost })?;
        for port in ports {
            let saved = also_saved.contains(&port.name);
            let mut port = supervisor.number(port, saved);
            port.given = true;
            let opened = port.open(&supervisor.epoll, &supervisor.presence, token(&port));
            opened.map_err(|e| Failed(format!("port {}: {e}", port.config.name)))?;
            supervisor.insert(port);
        }
        for port in saved_ports {
            let mut port = supervisor.number(port, true);
            if let Err(e) = port.open(&supervisor.epoll, &supervisor.presence, token(&port)) {
                port.bind_later(Instant::now(), e);
            }
            supervisor.insert(port);
        }
        supervisor.make_uplinks(uplinks, saved_uplinks, patient)?;
        supervisor.warn_of_queues();
        Ok(supervisor)
    }

    /// One with neither ports nor uplinks, none of whose children runs.
    pub(super) fn assemble(setup: Setup, outliving: Outliving) -> Result<Self, RunError> {
        raise_descriptor_limit();
        let system = |what: &str, e: rustix::io::Errno| Failed(format!("{what}: {e}"));
        let epoll = Epoll::new().map_err(|e| system("epoll", e))?;
        let signals = SignalFd::new().map_err(|e| system("signalfd", e))?;
        epoll.add(&signals, SIGNALS, Trigger::Level).map_err(|e| system("epoll", e))?;
        let Outliving { journal, dma, monitor, missing, boost } = outliving;
        let arguments = |text: &[&str]| text.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut for_switch = arguments(&["--supervisor-fd", "3", "--journal-fd", "4", "--host-view-fd", "5"]);
        if let Some(boost) = &boost {
            epoll.add(boost, BOOST, Trigger::Level).map_err(|e| system("epoll", e))?;
            for_switch.extend(arguments(&["--boost-fd", "6"]));
        }
        let behind = 6 + usize::from(boost.is_some());
        for_switch.extend(setup.dma.into_iter().flat_map(|threshold| dma::arguments(threshold, behind)));
        let read_api = setup.served.iter().any(|served| served.serves() == Serves::Readers);
        let (control_name, mut for_control) = open_vswitch::control(read_api, setup.ovs.is_some());
        for_control.extend(arguments(&["--connections", &setup.connections.to_string()]));
        for_control.extend(setup.rules.into_iter().flat_map(|(rules, _)| arguments(&["--rules", &rules.to_string()])));
        for_control.extend(setup.bus.into_iter().flat_map(|bus| arguments(&["--bus", &bus.to_string()])));
        let presence = Presence::new(&epoll, PRESENCE);
        let followed = Followed::new(setup.engines.now.near, &setup.system);
        let mut supervisor = Self {
            epoll,
            signals,
            switch: Child::new(setup.switch.0, setup.switch.1, for_switch, SWITCH_CHANNEL, SWITCH_PID)
                .bound_to(setup.engines.now.of_threads())
                .into_data_plane()
                .with_second(setup.rules.and_then(|(_, walks)| walks.then_some("--walk-fd")))
                .with_watchdog(setup.watchdog, Duration::ZERO),
            upgrade: None,
            renewal: None,
            asked: None,
            ending: None,
            deferred: Vec::new(),
            control: Child::new(control_name, setup.control, for_control, CONTROL_CHANNEL, CONTROL_PID)
                .with_watchdog(setup.watchdog, CONTROL_ROUND),
            offload: setup.offload.map(|program| Offload::new(program, setup.watchdog)),
            devices: setup.devices,
            of_device: setup.of_device,
            ports: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            sessions: Sessions::new(setup.session, setup.watchdog),
            uplinks_needed: BTreeSet::new(),
            uplink_lists: Vec::new(),
            uplink_program: setup.uplink,
            uplink_limit: setup.uplink_limit,
            watchdog: setup.watchdog,
            replaced: Replacements::new(),
            taps: setup.taps,
            links: None,
            told_devices: Vec::new(),
            segments: setup.uplink_probe.then(|| Segments::new(probing::token())),
            next_id: 1,
            tx_batch: setup.tx_batch,
            rx_batch: setup.rx_batch,
            store: setup.store,
            settings: setup.settings,
            weights: BTreeMap::new(),
            unkept: Unkept::default(),
            cpu_bounds: CpuBounds::default(),
            stations: BTreeMap::new(),
            limited: BTreeMap::new(),
            mirrors: setup.mirrors,
            lists: setup.lists,
            new_lists: Vec::new(),
            unsaved: setup.unsaved,
            served: setup.served,
            presence,
            ovs: setup.ovs,
            journal,
            dma,
            for_switch: setup.for_switch,
            engines: setup.engines,
            monitor,
            missing,
            boost,
            port_threads: PortThreads::default(),
            followed,
            switch_log: SwitchLog::default(),
            control_level: None,
            cgroup_accounting: setup.vm_cgroup.then(CgroupAccounting::new),
            announced: false,
            heart: Heart::watched(Instant::now()),
            not_ready: None,
            locks: setup.locks,
            take_over: None,
            own_program: None,
        };
        supervisor.served.iter().for_each(|served| served.watched_by(&supervisor.presence));
        supervisor.follow_links(LINKS);
        Ok(supervisor)
    }

    /// Runs until a signal asks to end, or this process is to become another program; if that cannot be, it is run again. Errors only before `ready` was
    /// printed: afterwards everything is tried again.
    pub fn run(&mut self) -> Result<Next, RunError> {
        let mut ready = Vec::new();
        loop {
            let now = Instant::now();
            self.step_upgrade(now);
            let until = match self.upgrade.as_ref().and_then(|upgrade| upgrade.hurries(now)) {
                Some(until) => Some(until),
                None => {
                    if let Some(successor) = self.step_all_else(now)? {
                        return Ok(Next::Become(successor));
                    }
                    self.deadline()
                }
            };
            self.flush();
            if let Some(why) = self.not_ready.take() {
                return Err(Failed(why));
            }
            self.wait(&mut ready, until)?;
            for token in &ready {
                match *token {
                    SIGNALS => match self.signals.read() {
                        Some(Watched::HangUp) => self.reload(),
                        Some(signal) => {
                            info!("ending ({signal:?})");
                            return self.shut_down().map(|()| Next::End);
                        }
                        None => {}
                    },
                    SWITCH_CHANNEL | NEXT_CHANNEL if self.switch.has_token(*token) => self.hear_switch(),
                    CONTROL_CHANNEL => self.hear_control(),
                    BOOST => self.serve_boost(),
                    LINKS => self.hear_links(),
                    OFFLOAD_CHANNEL | OFFLOAD_PID => self.offload_event(Instant::now())?,
                    PRESENCE => self.presence.hear(&self.epoll, Instant::now()),
                    SWITCH_PID | NEXT_PID if self.switch.has_token(*token) => self.switch_may_have_ended()?,
                    // Looked at in the next round.
                    TAKE_OVER => {}
                    SWITCH_CHANNEL | SWITCH_PID | NEXT_CHANNEL | NEXT_PID => self.other_switch_event(*token),
                    CONTROL_PID => {
                        let now = Instant::now();
                        if let Some(ended) = self.control.reap(&self.epoll, now) {
                            self.control_ended(&ended, now)?;
                        }
                    }
                    session if session >= sessions::TOKENS => self.session_event(session, Instant::now()),
                    device if (devices::TOKENS..LISTENER).contains(&device) => {
                        self.device_event(device, Instant::now())?
                    }
                    uplink if uplink >= LISTENERS_END => self.uplink_event(uplink, Instant::now())?,
                    listener => self.hear_listener(listener),
                }
            }
        }
    }

    /// Does what is due.
    fn step_all_else(&mut self, now: Instant) -> Result<Option<Successor>, RunError> {
        self.step_heart(now);
        self.end_hung_children(now)?;
        self.start_children(now)?;
        self.start_devices(now)?;
        self.step_sessions(now);
        self.look_after_sockets(now);
        self.step_threads(now);
        self.step_switch_log(now);
        self.step_segments(now);
        self.warn_of_minimums();
        self.step_representors();
        self.step_offload(now);
        self.step_uplinks(now);
        self.step_announcements(now);
        self.tell_devices();
        self.answer_uplink_lists(now);
        self.step_renewal(Instant::now());
        Ok(self.step_take_over(Instant::now()))
    }

    pub(super) fn flush(&mut self) {
        self.switch.flush(&self.epoll);
        self.control.flush(&self.epoll);
        self.offload.iter_mut().for_each(|offload| offload.flush(&self.epoll));
        self.sessions.flush(&self.epoll);
    }

    fn wait(&self, ready: &mut Vec<u64>, until: Option<Instant>) -> Result<(), RunError> {
        let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
        self.epoll.wait(ready, timeout).map_err(|e| Failed(format!("epoll: {e}")))
    }

    fn deadline(&self) -> Option<Instant> {
        let up = |port: PortId| self.switch.is_up() && self.sessions.is_up(port);
        let ports = self.ports.values().filter_map(|port| port.deadline(|| up(port.config.id)));
        let uplinks = self.uplinks.values().filter_map(|uplink| uplink.deadline(up(uplink.config.id)));
        let uplinks = uplinks.chain(self.uplink_lists_deadline()).chain(self.threads_deadline());
        let uplinks = uplinks.chain(self.segments.as_ref().and_then(Segments::deadline));
        let uplinks = uplinks.chain(self.sessions.deadline()).chain(self.switch_log.deadline());
        let sockets = self.served.iter().filter_map(Served::deadline).chain(self.presence.deadline());
        let sockets = sockets.chain(self.upgrade.as_ref().map(Upgrade::deadline));
        let sockets = sockets.chain(self.take_over.as_ref().map(TakeOver::deadline));
        let sockets = sockets.chain(self.renewal.as_ref().and_then(Renewal::deadline));
        let sockets = sockets.chain(self.offload.as_ref().and_then(Offload::deadline));
        let sockets = sockets.chain(self.devices_deadline()).chain(self.heart.as_ref().map(Heart::deadline));
        ports.chain(uplinks).chain(sockets).chain(self.switch.deadline()).chain(self.control.deadline()).min()
    }

    fn start_children(&mut self, now: Instant) -> Result<(), RunError> {
        let mut started = false;
        if self.switch.is_due(now) {
            if let Err(e) = self.start_switch() {
                let what = self.cannot_start(self.switch.name(), &e)?;
                self.switch.cannot_start(what, now);
            } else {
                self.tell_switch_all();
                started = true;
            }
        }
        if self.control.is_due(now) {
            let descriptors = std::iter::once(self.monitor.view()).chain(self.served.iter().map(Served::as_fd));
            let descriptors = descriptors.chain(self.ovs.iter().flat_map(OpenVswitch::descriptors));
            let given: std::io::Result<Vec<_>> = descriptors.map(|fd| fd.try_clone_to_owned()).collect();
            if let Err(e) = given.and_then(|given| self.control.start(&self.epoll, given)) {
                let what = self.cannot_start("lasthop-control", &e)?;
                self.control.cannot_start(what, now);
            } else {
                self.tell_log_level(None);
                self.told_devices.clear();
                self.ports.values_mut().for_each(Port::tell_fault_again);
                self.tell_all_settings();
                self.tell_mirrors();
                self.tell_control_ports();
                self.tell_control_lists();
                self.tell_places();
                started = true;
            }
        }
        if started && self.switch.is_up() && self.control.is_up() {
            self.join_children();
        }
        Ok(())
    }

    fn start_switch(&mut self) -> io::Result<()> {
        self.dma = self.another_dma_page()?;
        let given = self.for_new_switch(self.dma.as_ref())?;
        self.switch.start(&self.epoll, given)
    }

    /// Descriptors that a switch is started with, in the order of its arguments; `dma`: where its DMA engine counts.
    pub(super) fn for_new_switch(&self, dma: Option<&OwnedFd>) -> io::Result<Vec<OwnedFd>> {
        let boost = self.boost.as_ref().map(Boost::ask);
        let dma = dma.into_iter().map(AsFd::as_fd);
        let descriptors = [self.journal.as_fd(), self.monitor.view()].into_iter().chain(boost).chain(dma);
        descriptors.map(|fd| fd.try_clone_to_owned()).collect()
    }

    fn switch_may_have_ended(&mut self) -> Result<(), RunError> {
        let now = Instant::now();
        self.switch.reap(&self.epoll, now).map_or(Ok(()), |ended| self.switch_ended(&ended, now))
    }

    /// What to say of it; before `ready`, it is the end.
    fn cannot_start(&self, name: &str, e: &std::io::Error) -> Result<String, RunError> {
        let what = format!("cannot start {name}: {e}");
        if self.announced { Ok(what) } else { Err(Failed(what)) }
    }

    pub(super) fn restart_or_give_up(&self, ended: &Ended) -> Result<(), RunError> {
        if !self.announced && ended.failed_starts >= START_ATTEMPTS {
            let what = &ended.what;
            return Err(Failed(format!(
                "{what}, for the {START_ATTEMPTS}th time before it was ready; see above for why"
            )));
        }
        warn!("{}; {}", ended.what, ended.remedy());
        Ok(())
    }

    /// The one line scripts wait for.
    pub(super) fn announce(&mut self) {
        let ready = self.switch.is_ready() && self.control.is_ready() && self.uplinks_needed.is_empty();
        if !self.announced && ready && self.devices_are_ready() && self.offload_is_settled() {
            // A start that is refused changes nothing, and from here on none is.
            if let Err(why) = self.keep_given() {
                self.not_ready = Some(why);
                return;
            }
            self.announced = true;
            Self::tell_ready();
            let mut stdout = std::io::stdout().lock();
            // Whoever closed the pipe does not wait for the line, and VMs must not lose their network for it. Whoever could not be
            // told for another reason would wait for ever.
            let written = writeln!(stdout, "ready").and_then(|()| stdout.flush());
            let failed = written.err().filter(|e| e.kind() != io::ErrorKind::BrokenPipe);
            let wrong = "\"ready\" could not be written to standard output";
            self.not_ready = failed.map(|e| format!("{wrong}: {e}; make room there, or send it elsewhere"));
        }
    }

    /// Closes the ports, asks the children to end, and makes them when they do not.
    fn shut_down(&mut self) -> Result<(), RunError> {
        self.end_devices();
        self.end_offload();
        self.ports.clear();
        self.end_uplinks();
        // Control first: that the switch goes is no news to it then.
        self.control.send(SupervisorToControl::Shutdown, None);
        self.control.flush(&self.epoll);
        self.switch.send(SupervisorToSwitch::Shutdown, None);
        let limit = Instant::now() + SHUTDOWN_LIMIT;
        let mut ready = Vec::new();
        loop {
            // All that has ended is collected before anything is waited for: of the last one nothing more would be heard.
            self.ending_uplinks();
            if !self.switch.is_up() && !self.control.is_up() && !self.uplinks.values().any(Uplink::is_up) {
                break;
            }
            self.switch.flush(&self.epoll);
            self.control.flush(&self.epoll);
            let late = Instant::now() >= limit;
            if late || self.signals.read().is_some_and(|signal| signal != Watched::HangUp) {
                if late {
                    warn!("a child did not end within {SHUTDOWN_LIMIT:?}; killing it");
                }
                break;
            }
            let uplinks = self.uplinks.values().filter(|uplink| uplink.is_up());
            let next = uplinks.filter_map(|uplink| uplink.deadline(false)).fold(limit, Instant::min);
            self.wait(&mut ready, Some(next))?;
            // What they still say no longer matters, but a closed channel must not report for ever.
            let now = Instant::now();
            self.switch.receive(&self.epoll, now);
            self.control.receive(&self.epoll, now);
            self.switch.reap(&self.epoll, now);
            self.control.reap(&self.epoll, now);
        }
        // Dropping a child kills it.
        self.sessions.kill();
        self.leave_no_rules();
        Ok(())
    }
}

pub(super) fn token(port: &Port) -> u64 {
    port_token(port.config.id)
}

pub(super) fn port_token(port: PortId) -> u64 {
    LISTENER + u64::from(port.0)
}

/// Memory that every switch of this run is given, and none can make shorter or longer.
fn journal() -> Result<OwnedFd, rustix::io::Errno> {
    let journal = memfd_create("lasthop-journal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&journal, JOURNAL_LEN)?;
    fcntl_add_seals(&journal, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(journal)
}

/// Every port needs descriptors here and many in the switch, and the usual soft limit is 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
