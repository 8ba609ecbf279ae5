//! What `lasthop run` needs before it can start: directories, locks, programs and sensible arguments.

use super::args::{PortArg, RunArgs, check_uplink};
use super::devices::{self, Device};
use super::engines::{EnginesOfRun, allowed_cpus};
use super::given::{Given, does_not_hold};
use super::open_vswitch::{self, Decides, OpenVswitch, Told};
use super::owner::FileOwner;
use super::served::{Served, Serves};
use super::settings_text::changed;
use super::socket::{self, Access, Listener};
use super::store::{Saved, SavedPort, SavedUplink, Store};
use super::wires::{self, OfDevice};
use super::{RunError, RunError::Failed, RunError::Usage};
use lasthop_api::{Bus, READ_SOCKET_NAME, SOCKET_NAME};
use lasthop_ipc::{MAX_MESSAGE, SwitchSettings};
use lasthop_management_ipc::Settings;
use lasthop_policy::Batch;
use lasthop_policy::{Mirror, PortSettings};
use lasthop_sys::{CpuList, Epoll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::info;

/// Where packages put programs that people do not type.
const LIBEXEC: &str = "/usr/libexec/lasthop";

/// How long another lasthop that is ending is waited for: more than it gives its children; and how often we look.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// Everything found, checked and locked.
#[derive(Debug)]
pub struct Setup {
    /// Which CPUs do ports' work.
    pub engines: EnginesOfRun,
    /// How packets are moved.
    pub for_switch: SwitchSettings,
    /// How packets of a port that has no setting of its own are gathered.
    pub tx_batch: Batch,
    /// And to them.
    pub rx_batch: Batch,
    /// Whether ports' threads go into their VMs' control groups.
    pub vm_cgroup: bool,
    /// Whether to watch cores and VMs.
    pub bpf: bool,
    /// Where the kernel says which CPUs are near to which.
    pub system: PathBuf,
    /// Name and program of the data plane.
    pub switch: (&'static str, PathBuf),
    /// Devices to start.
    pub devices: Vec<Device>,
    /// What this is as one, if it is one.
    pub of_device: Option<OfDevice>,
    /// Program that gives flows to the kernel or a card, where it locks out another, and whom it gives them to, if it is to.
    pub offload: Option<super::offload::OffloadProgram>,
    /// Program of the control plane.
    pub control: PathBuf,
    /// Places of the data plane's table, if it is a device's, and whether that walks the table of all flows.
    pub rules: Option<(usize, bool)>,
    /// If it is one that has a DMA engine: copies of up to so many bytes are not for that.
    pub dma: Option<usize>,
    /// If it is one for which a bus is named.
    pub bus: Option<Bus>,
    /// How many connections it has room for.
    pub connections: usize,
    /// Program of ports' sessions.
    pub session: PathBuf,
    /// What Open vSwitch needs, where it decides.
    pub ovs: Option<OpenVswitch>,
    /// Program of uplinks, or why there is none.
    pub uplink: Result<PathBuf, String>,
    /// How long an uplink may take to answer.
    pub uplink_limit: Duration,
    /// Within which it is found out that the switch or control hangs, if it is to be.
    pub watchdog: Option<Duration>,
    /// Whether uplinks of the command line that cannot be used are waited for, as remembered ones are.
    pub patient: bool,
    /// Whether to look for uplinks on one segment.
    pub uplink_probe: bool,
    /// Sockets whose clients the process that decides serves: of the local API, the same for those who may only read, if there are any, and Open
    /// vSwitch's where that decides.
    pub served: Vec<Served>,
    /// Where ports are remembered.
    pub store: Store,
    /// Ports of the command line, paths made absolute.
    pub ports: Vec<SavedPort>,
    /// Ports remembered, without those named on the command line as well.
    pub saved: Vec<SavedPort>,
    /// Uplinks of the command line, and whether each is remembered too.
    pub uplinks: Vec<(SavedUplink, bool)>,
    /// Uplinks remembered, without those named on the command line as well.
    pub saved_uplinks: Vec<SavedUplink>,
    /// TAP devices that earlier runs have made, and their addresses.
    pub taps: BTreeMap<String, String>,
    /// What ports are told to do, by name.
    pub settings: BTreeMap<String, PortSettings>,
    /// Mirrors that are remembered.
    pub mirrors: Vec<Mirror>,
    /// Names of remembered ports that the command line names too; they stay remembered.
    pub also_saved: HashSet<String>,
    /// Text of the access lists; empty if there are none.
    pub lists: Vec<u8>,
    /// What is to be remembered otherwise, once nothing can be refused any more.
    pub unsaved: Unsaved,
    /// Held as long as we run.
    pub locks: [File; 2],
}

/// What the file of `--config`, or the command line, has made other than it is remembered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unsaved {
    /// Mirrors.
    pub mirrors: bool,
    /// Access lists.
    pub lists: bool,
    /// Engines.
    pub engines: bool,
    /// Of a device what is on its command line: when it is started again, what that was told since wins.
    pub device: bool,
}

impl Unsaved {
    /// Which are other ones than are remembered.
    fn others(mirrors: bool, lists: bool, engines: bool) -> Self {
        Self { mirrors, lists, engines, device: false }
    }
}

impl Setup {
    /// Checks everything, in the order in which a user would mend it.
    pub fn new(args: &RunArgs) -> Result<Self, RunError> {
        check_kernel()?;
        let allowed = allowed_cpus().map_err(Failed)?;
        let given = Given::new(args)?;
        let engines = given.engines(args, &allowed)?;
        let (ports, mut devices) = (absolute(&given.ports)?, given.devices());
        let is_ovs = args.control == Decides::Ovs;
        let Programs { switch, session, control, uplink } = Programs::found(args, !devices.is_empty())?;
        let until = Instant::now() + LOCK_PATIENCE;
        let run_lock = lock(&args.run_dir, "lock", "--run-dir", 0o755, until)?;
        let state_lock = lock(&args.state_dir, "state.lock", "--state-dir", 0o755, until)?;
        check_apart(&args.run_dir, &args.state_dir)?;
        let devices_wanted = devices::wanted(args, engines.0.cpus.as_ref())?;
        let (store, mut remembered) = Store::loaded(&args.state_dir).map_err(Failed)?;
        let other_mirrors = given.mirrors(&mut remembered)?;
        let recalled = given.recalled(&remembered, &mut devices);
        given.overrule(&mut remembered, &ports, &devices);
        let Saved { ports: saved, uplinks: saved_uplinks, taps, settings, mirrors, .. } = remembered;
        let (lists, other_lists) = given.lists(&store)?;
        let (engines, other_engines) = EnginesOfRun::found(args, engines, &store, &devices_wanted, &allowed)?;
        let (also_saved, saved) = reconcile(&ports, saved).map_err(Failed)?;
        let (uplinks, saved_uplinks) = reconcile_uplinks(&ports, &saved, &devices, saved_uplinks)?;
        wires::check(args, devices.iter().chain(&saved_uplinks))?;
        let run_dir = std::path::absolute(&args.run_dir).unwrap_or_else(|_| args.run_dir.clone());
        let (api, read_api) = api_sockets(args, &run_dir)?;
        let settings = with_given(settings, &given.settings(), recalled.as_ref());
        let told = Told { lists: &lists, mirrors: &mirrors, settings: &settings, ports: &ports };
        let mut ovs = OpenVswitch::wanted(is_ovs, &run_dir, &told, devices.iter().chain(&saved_uplinks))?;
        Ok(Self {
            served: in_order(api, read_api, ovs.as_mut()),
            ovs,
            for_switch: args.for_switch(&engines.now, &allowed),
            tx_batch: args.scheduling.tx_batch,
            rx_batch: args.scheduling.rx_batch,
            engines,
            vm_cgroup: args.vm_cgroup,
            bpf: !args.no_bpf,
            system: args.system(),
            switch,
            devices: devices_wanted,
            of_device: OfDevice::new(args),
            rules: args.device_rules.map(|rules| (rules, args.device_walk)),
            dma: args.device_dma,
            bus: args.device_bus,
            offload: super::offload::OffloadProgram::wanted(args)?,
            control,
            connections: args.connections,
            session,
            uplink,
            uplink_limit: Duration::from_millis(args.uplink_limit_ms),
            watchdog: args.watchdog.0,
            patient: args.device_again,
            uplink_probe: !args.no_uplink_probe,
            store,
            ports,
            saved,
            uplinks,
            saved_uplinks,
            taps,
            settings,
            mirrors,
            also_saved,
            lists,
            unsaved: Unsaved {
                device: args.device_rules.is_some(),
                ..Unsaved::others(other_mirrors, other_lists, other_engines)
            },
            locks: [run_lock, state_lock],
        })
    }
}

/// Where the programs are that it starts.
struct Programs {
    switch: (&'static str, PathBuf),
    session: PathBuf,
    control: PathBuf,
    /// Or why it is not there, where nothing needs it yet.
    uplink: Result<PathBuf, String>,
}

impl Programs {
    fn found(args: &RunArgs, has_uplinks: bool) -> Result<Self, RunError> {
        let find = |name| find_program(name, args.libexec.as_deref());
        let is_ovs = args.control == Decides::Ovs;
        let switch = (args.data_plane(), find(args.data_plane())?);
        let (session, control) = (find("lasthop-session")?, find(open_vswitch::program(is_ovs))?);
        let uplink = find("lasthop-uplink").map_err(|e| e.to_string());
        match uplink {
            Err(why) if has_uplinks || is_ovs => Err(Failed(why)),
            uplink => Ok(Self { switch, session, control, uplink }),
        }
    }
}

/// In the order of what `open_vswitch::control` names.
fn in_order(api: Bound, readers: Option<Bound>, ovs: Option<&mut OpenVswitch>) -> Vec<Served> {
    let api = std::iter::once(Served::new(api, Serves::Owners));
    let readers = readers.map(|socket| Served::new(socket, Serves::Readers));
    api.chain(readers).chain(ovs.and_then(|ovs| ovs.socket.take())).collect()
}

type Bound = (ApiSocket, Listener);

/// That of the local API, and the same for those who may only read, if there are any.
fn api_sockets(args: &RunArgs, run_dir: &Path) -> Result<(Bound, Option<Bound>), RunError> {
    let group = args.read_group.as_deref().map(read_group).transpose()?;
    let api = listen(run_dir, SOCKET_NAME, None)?;
    let readers = group.map(|group| listen(run_dir, READ_SOCKET_NAME, Some(group))).transpose()?;
    Ok((api, readers))
}

fn listen(run_dir: &Path, name: &str, group: Option<(String, u32)>) -> Result<Bound, RunError> {
    let socket = ApiSocket { path: run_dir.join(name), group, datagrams: false };
    wait_for_the_one_before(&socket.path);
    let listener = socket.bind().map_err(Failed)?;
    Ok((socket, listener))
}

/// Of one that was killed the process that decides ends a moment later, and its sockets with it. Nobody else is to listen there: the lock is ours.
fn wait_for_the_one_before(socket: &Path) {
    let until = Instant::now() + LOCK_PATIENCE;
    while Instant::now() < until && super::socket::connect(socket).is_ok() {
        std::thread::sleep(LOCK_LOOK);
    }
}

/// What the command line tells ports is added to what is remembered, and wins; but for ports that were `recalled`, of which all is remembered, where this is a device
/// that is started again.
fn with_given(
    mut settings: BTreeMap<String, PortSettings>,
    given: &[(String, Settings)],
    recalled: Option<&BTreeSet<String>>,
) -> BTreeMap<String, PortSettings> {
    for (name, told) in given.iter().filter(|(name, _)| !recalled.is_some_and(|names| names.contains(name))) {
        // It was checked on its own: what it does not agree with is replaced.
        let both = changed(settings.get(name), told).or_else(|_| changed(None, told)).unwrap_or_default();
        if recalled.is_some()
            && let Some(before) = settings.get(name).filter(|before| **before != both)
        {
            does_not_hold(&format!("port {name}"), &before.to_string(), &both.to_string());
        }
        if both.is_default() {
            settings.remove(name);
        } else {
            settings.insert(name.clone(), both);
        }
    }
    settings
}

/// One is emptied at a reboot, the other is what is left then. Both exist.
fn check_apart(run_dir: &Path, state_dir: &Path) -> Result<(), RunError> {
    let same =
        std::fs::canonicalize(run_dir).ok().zip(std::fs::canonicalize(state_dir).ok()).is_some_and(|(a, b)| a == b);
    if same {
        let shown = run_dir.display();
        return Err(Usage(format!(
            "--run-dir and --state-dir are both {shown}; choose two: what is in the first may go at a reboot, what is in the \
             second must stay"
        )));
    }
    Ok(())
}

/// The group whose members may look: its name, or number, and its number.
fn read_group(group: &str) -> Result<(String, u32), RunError> {
    let number = socket::group(group).or_else(|| group.parse().ok());
    let unknown = || {
        Usage(format!(
            "--read-group {group}: this host knows no group {group:?} (`getent group {group}`); make it (`groupadd --system {group}`), \
             or name one of those that `getent group` lists"
        ))
    };
    Ok((group.to_owned(), number.ok_or_else(unknown)?))
}

/// Where a socket is whose clients control serves, and the group that may use it if not ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApiSocket {
    /// In the run directory.
    pub path: PathBuf,
    /// Its name and number.
    pub group: Option<(String, u32)>,
    /// It keeps the borders of what is sent: Open vSwitch's.
    pub datagrams: bool,
}

impl ApiSocket {
    /// Makes it, and its directory if that has gone.
    pub fn bind(&self) -> Result<Listener, String> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let made = DirBuilder::new().recursive(true).mode(0o755).create(dir);
        made.map_err(|e| format!("{}: cannot make the directory: {e}", dir.display()))?;
        let bind = if self.datagrams {
            Listener::bind_for_datagrams(&self.path)
        } else {
            Listener::bind(&self.path, Access::Ours)
        };
        let listener = bind?;
        if let Some((name, number)) = &self.group {
            let shared = listener.share_with(*number);
            shared.map_err(|e| {
                let path = self.path.display();
                format!("--read-group {name}: {path}: {e}; run as root or as a member of it")
            })?;
        }
        Ok(listener)
    }
}

/// Every thread waits by epoll_pwait2(2), whose times are shorter than a millisecond.
fn check_kernel() -> Result<(), RunError> {
    let waited = Epoll::new().and_then(|epoll| epoll.wait(&mut Vec::new(), Some(Duration::ZERO)));
    waited.map_err(|e| match e {
        Errno::NOSYS => Failed("this kernel has no epoll_pwait2; lasthop needs Linux 5.11 or newer".into()),
        e => Failed(format!("cannot wait for events: {e}")),
    })
}

/// A list of CPUs that can be used here.
pub fn check_cpus(option: &str, text: &str, allowed: &CpuList) -> Result<CpuList, RunError> {
    let cpus: CpuList = text.parse().map_err(|e| Usage(format!("{option} {text}: {e}")))?;
    let missing = cpus.without(allowed);
    if missing.is_empty() {
        return Ok(cpus);
    }
    let space = if option.ends_with('=') { "" } else { " " };
    Err(Usage(format!("{option}{space}{text}: CPU {missing} cannot be used here; choose from {allowed}")))
}

fn absolute(ports: &[PortArg]) -> Result<Vec<SavedPort>, RunError> {
    let mut checked: Vec<SavedPort> = Vec::new();
    for port in ports.iter().filter(|port| port.device.is_none()) {
        let path = std::path::absolute(&port.path).map_err(|e| Failed(format!("{}: {e}", port.path.display())))?;
        let path = path
            .to_str()
            .ok_or_else(|| Usage(format!("--port {}: the path is not UTF-8; choose one that is", port.name)))?;
        let PortArg { name, client, owner, .. } = port.clone();
        let new = SavedPort { name, path: path.into(), client, tx_batch: None, owner };
        check_new(checked.iter(), &new).map_err(|e| Usage(format!("--port {}: {e}", new.name)))?;
        checked.push(new);
    }
    Ok(checked)
}

/// What a new port must differ from: a port that there is.
#[derive(Clone, Copy, Debug)]
pub struct There<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its socket's path.
    pub path: &'a str,
    /// Who may use it, if that is said.
    pub owner: Option<&'a FileOwner>,
}

impl<'a> From<&'a SavedPort> for There<'a> {
    fn from(SavedPort { name, path, owner, .. }: &'a SavedPort) -> Self {
        Self { name, path, owner: owner.as_ref() }
    }
}

/// Checks that a port may stand beside those there are. The error says what is wrong; what to do.
pub fn check_new<'a>(there: impl Iterator<Item = impl Into<There<'a>>>, new: &SavedPort) -> Result<(), String> {
    lasthop_policy::check_name(&new.name)?;
    if !Path::new(&new.path).is_absolute() {
        return Err(format!("{:?} is not an absolute path; write it from / on", new.path));
    }
    socket::check_length(Path::new(&new.path))?;
    new.tx_batch.map_or(Ok(()), Batch::check)?;
    // All ports travel to control in one message; 20 bytes are more than the other fields of one take.
    let bytes_of = |port: There<'_>| {
        port.name.len() + port.path.len() + port.owner.map_or(0, |owner| owner.to_string().len()) + 20
    };
    let mut bytes = bytes_of(new.into());
    for port in there.map(Into::into) {
        if port.name == new.name {
            return Err(format!("there is a port {} already; choose another name", port.name));
        }
        if port.path == new.path {
            return Err(format!("{} belongs to port {} already; choose another path", port.path, port.name));
        }
        bytes += bytes_of(port);
    }
    if bytes > MAX_MESSAGE - 64 {
        return Err("too many ports: the list of all names and paths is over 64 KiB; use shorter ones".into());
    }
    Ok(())
}

/// A port as on the command line.
fn definition(SavedPort { path, client, tx_batch, owner, .. }: &SavedPort) -> String {
    let client = if *client { ",client" } else { "" };
    let batch = tx_batch.map_or_else(String::new, |batch| format!(",tx-batch={}:{}", batch.us, batch.packets));
    let owner = owner.as_ref().map_or_else(String::new, |owner| format!(",owner={owner}"));
    format!("{path}{client}{batch}{owner}")
}

/// Takes out of `saved` what the command line names as well. Saying two different things about one port is an error.
fn reconcile(given: &[SavedPort], saved: Vec<SavedPort>) -> Result<(HashSet<String>, Vec<SavedPort>), String> {
    let (twice, once): (Vec<_>, Vec<_>) = saved.into_iter().partition(|port| given.contains(port));
    let mut all = given.to_vec();
    for port in &once {
        if let Some(new) = given.iter().find(|new| new.name == port.name) {
            return Err(format!(
                "port {0}: the command line says {1}, and remembered is {2}, as it was made last; say the same, or leave it out and the \
                 remembered one is made, which `lasthop port del {0}` removes",
                port.name,
                definition(new),
                definition(port)
            ));
        }
        check_new(all.iter(), port)
            .map_err(|e| format!("remembered port {}: {e}, or move ports.json of --state-dir away", port.name))?;
        all.push(port.clone());
    }
    Ok((twice.into_iter().map(|port| port.name).collect(), once))
}

/// Most uplinks.
const MAX_UPLINKS: usize = 64;

/// Checks that an uplink may stand beside the ports and uplinks there are. The error says what is wrong; what to do.
pub fn check_new_uplink<'a>(
    mut ports: impl Iterator<Item = &'a SavedPort>,
    uplinks: impl Iterator<Item = &'a SavedUplink>,
    new: &SavedUplink,
) -> Result<(), String> {
    check_uplink(new)?;
    if new.device.starts_with('/') && !new.guest {
        return Err(format!(
            "{} is a file, and no network; make a port of it, for mirrors: `lasthop port add NAME --device {} --driver file`",
            new.device, new.device
        ));
    }
    if ports.any(|port| port.name == new.name) {
        return Err(format!("there is a port {} already; choose another name", new.name));
    }
    let mut count = 0;
    for uplink in uplinks {
        if uplink.name == new.name {
            return Err(format!("there is {} {} already; choose another name", a_kind(uplink), new.name));
        }
        if uplink.device == new.device {
            let kind = uplink.kind();
            return Err(format!("{} is {kind} {} already; choose another device", new.device, uplink.name));
        }
        count += 1;
    }
    if count >= MAX_UPLINKS {
        return Err(format!("there are {MAX_UPLINKS} interfaces already, uplinks and guests; remove one first"));
    }
    Ok(())
}

fn a_kind(uplink: &SavedUplink) -> &'static str {
    if uplink.guest { "a port" } else { "an uplink" }
}

/// What an earlier version remembered has a driver, even if it was chosen.
pub fn is_same(given: &SavedUplink, saved: &SavedUplink) -> bool {
    let driver = given.driver.as_ref().or(saved.driver.as_ref()).cloned();
    SavedUplink { driver, ..given.clone() } == *saved
}

type Uplinks = (Vec<(SavedUplink, bool)>, Vec<SavedUplink>);

/// The uplinks of the command line, each with whether it is remembered as well, and those only remembered.
fn reconcile_uplinks(
    ports: &[SavedPort],
    saved_ports: &[SavedPort],
    given: &[SavedUplink],
    saved: Vec<SavedUplink>,
) -> Result<Uplinks, RunError> {
    let (twice, once): (Vec<_>, Vec<_>) =
        saved.into_iter().partition(|saved| given.iter().any(|given| is_same(given, saved)));
    let mut all: Vec<SavedUplink> = Vec::new();
    for uplink in given {
        check_new_uplink(ports.iter().chain(saved_ports), all.iter(), uplink)
            .map_err(|e| Usage(format!("--{} {}: {e}", uplink.kind(), uplink.name)))?;
        all.push(uplink.clone());
    }
    for uplink in &once {
        check_new_uplink(ports.iter().chain(saved_ports), all.iter(), uplink).map_err(|e| {
            let kind = uplink.kind();
            Failed(format!("remembered {kind} {}: {e}, or move ports.json of --state-dir away", uplink.name))
        })?;
        all.push(uplink.clone());
    }
    let given = given.iter().map(|uplink| (uplink.clone(), twice.iter().any(|saved| is_same(uplink, saved))));
    Ok((given.collect(), once))
}

/// Looks beside this program, then in PATH, then where packages put it; or only in `libexec`.
pub fn find_program(name: &str, libexec: Option<&Path>) -> Result<PathBuf, RunError> {
    let own = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = match libexec {
        Some(only) => vec![only.to_path_buf()],
        None => own.into_iter().chain(std::env::split_paths(&path)).chain([PathBuf::from(LIBEXEC)]).collect(),
    };
    let found = directories.iter().map(|dir| dir.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| {
        let place = directories.first().map_or(OsStr::new(LIBEXEC), |dir| dir.as_os_str()).display();
        let elsewhere = if libexec.is_some() { String::new() } else { format!(", in PATH or in {LIBEXEC}") };
        Failed(format!("{name} is not in {place}{elsewhere}; install it beside lasthop"))
    })
}

/// A file that may be run.
pub fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Locks the file, waiting for whoever has it until then; says so, once.
fn wait_for_lock(file: &File, shown: &str, until: Instant) -> bool {
    let mut said = false;
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            return false;
        }
        if !std::mem::replace(&mut said, true) {
            info!("{shown} is in use by another lasthop; waiting up to {LOCK_PATIENCE:?} for it to end");
        }
        std::thread::sleep(LOCK_LOOK);
    }
    true
}

/// Makes the directory if need be and locks it for this process. The lock goes with the process, however it ends: one that is
/// ending is waited for.
fn lock(dir: &Path, name: &str, option: &str, mode: u32, until: Instant) -> Result<File, RunError> {
    let shown = dir.display();
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(|e| {
        Failed(format!("{shown}: cannot make the directory: {e}; choose another with {option} or run as root"))
    })?;
    let path = dir.join(name);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(|e| {
            Failed(format!("{}: {e}; make the directory writable or choose another with {option}", path.display()))
        })?;
    if !wait_for_lock(&file, &shown.to_string(), until) {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        return Err(Failed(format!(
            "another lasthop (pid {}) runs with {option} {shown}; stop it or choose another directory",
            pid.trim()
        )));
    }
    // For the message above only; the lock holds without it.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

#[cfg(test)]
mod tests;
