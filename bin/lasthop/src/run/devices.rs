//! Devices of `--device`: each is a switch of its own, as a card would be one, with a `lasthop run` of its own that starts its data plane
//! (`lasthop-device`), its control and its ports' session processes. To this supervisor it is one process, started again when it ends, and one more
//! for the cable between the two.
//!
//! Why so, and what it costs: `docs/decisions/device.md`.

use super::RunError::{self, Failed, Usage};
use super::args::{DeviceArg, PortArg, RunArgs, WIRE};
use super::backoff::Backoff;
use super::cable::{Cable, CableState, FAR_PORT};
use super::engines::allowed_cpus;
use super::handover::{self, Fd, Giver, Moment, Taker};
use super::probing::token;
use super::setup::{check_cpus, find_program};
use super::supervisor::Supervisor;
use lasthop_log::{DEVICE_VARIABLE, FORMAT_VARIABLE, Format};
use lasthop_management_ipc::PortConfig;
use lasthop_sys::{CpuList, Epoll, PidFd, Process, Trigger, die_with_parent, outlive_terminal};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// Names of the sockets of a cable's ports, in the run directory of its device: of the host's, and of the device's own.
pub const HOST_SOCKET: &str = "cable.sock";
pub const FAR_SOCKET: &str = "host.sock";
/// Run directories of devices are below that of their lasthop, in here.
pub const DEVICES_DIR: &str = "devices";
/// Tokens of epoll from here on: what a device prints, its end, and its cable's; as many for each.
pub const TOKENS: u64 = 1 << 16;
const TOKENS_EACH: u64 = 3;
/// How long one may take to end after it was asked: more than it gives its own children.
const ENDING_LIMIT: Duration = Duration::from_secs(3);
/// Starts that may fail before `ready`.
const START_ATTEMPTS: u32 = 5;

/// One device.
#[derive(Debug)]
pub struct Device {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Another one at each start that is a first one.
    first_start: Option<u32>,
    running: Option<Running>,
    start_at: Instant,
    backoff: Backoff,
    failed_starts: u32,
    /// What joins its ports to those of the host, if they are joined.
    cable: Option<Cable>,
    /// CPUs on which it was told to poll.
    engines: CpuList,
    /// The interface of this host that is its wire, if it has one.
    wire: Option<String>,
}

#[derive(Debug)]
struct Running {
    process: Process,
    pidfd: PidFd,
    stdout: File,
    ready: bool,
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeviceState {
    name: String,
    /// None from a program that did not number first starts.
    #[serde(default)]
    first_start: Option<u32>,
    running: Option<(u32, [Fd; 2], bool)>,
    start_at: Moment,
    backoff: Backoff,
    failed_starts: u32,
    cable: Option<CableState>,
}

/// The devices that the command line asks for, with their ports.
/// `cpus`: those that all threads of lasthop have, if they are bounded.
pub fn wanted(args: &RunArgs, cpus: Option<&CpuList>) -> Result<Vec<Device>, RunError> {
    let mut devices: Vec<Device> = Vec::new();
    for arg in &args.devices {
        if devices.iter().any(|other| other.name == arg.name) {
            return Err(Usage(format!(
                "--device {}: there is one of that name already; choose another name",
                arg.name
            )));
        }
        devices.push(Device::new(arg, args, cpus)?);
    }
    for port in &args.ports {
        let Some((name, argument)) = &port.of_device else { continue };
        let Some(device) = devices.iter_mut().find(|device| device.name == *name) else {
            let port = &port.name;
            return Err(Usage(format!(
                "--port {port}: there is no device {name}; write `--device {name}` too, or leave out device="
            )));
        };
        if device.cable.is_some() && port.name == FAR_PORT {
            return Err(Usage(format!(
                "--port {FAR_PORT}: that is device {name}'s end of its cable; choose another name, or write --device {name},cable=off"
            )));
        }
        if device.wire.is_some() && port.name == WIRE {
            return Err(Usage(format!("--port {WIRE}: that is device {name}'s wire; choose another name")));
        }
        device.arguments.extend(["--port".into(), argument.into()]);
    }
    forget_others(&args.run_dir.join(DEVICES_DIR), &devices);
    Ok(devices)
}

/// CPUs that devices were given to poll on.
pub fn engines(devices: &[Device]) -> CpuList {
    devices.iter().flat_map(|device| device.engines.iter()).collect()
}

/// Refuses to poll on a CPU that a device was given for itself.
pub fn check_engines(devices: &[Device], poll: &CpuList) -> Result<(), String> {
    for Device { name, engines, .. } in devices {
        if let Some(cpu) = poll.iter().find(|cpu| engines.contains(*cpu)) {
            return Err(format!("CPU {cpu} is an engine of device {name} (--device {name},engines=); choose another"));
        }
    }
    Ok(())
}

/// Devices of an earlier run are not listed as if they were away.
fn forget_others(dir: &Path, devices: &[Device]) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !devices.iter().any(|device| *device.name == *entry.file_name()) {
            let _ = std::fs::remove_file(entry.path().join("lock"));
        }
    }
}

impl Device {
    fn new(arg: &DeviceArg, args: &RunArgs, cpus: Option<&CpuList>) -> Result<Self, RunError> {
        let (_, program) = handover::state::own_program().map_err(Failed)?;
        let below = |dir: &Path| dir.join(DEVICES_DIR).join(&arg.name).into_os_string();
        // A card does not know what VMs do, and reads no file of ours.
        let mut arguments: Vec<OsString> = vec!["run".into(), "--no-bpf".into()];
        let flags = [(arg.walk, "--device-walk"), (args.no_uplink_probe, "--no-uplink-probe")];
        arguments.extend(flags.into_iter().filter(|(is_said, _)| *is_said).map(|(_, flag)| flag.into()));
        let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
        if arg.dma {
            add("--device-dma", arg.dma_threshold.to_string().into());
        }
        if let Some(bus) = arg.bus {
            add("--device-bus", bus.to_string().into());
        }
        add("--run-dir", below(&args.run_dir));
        add("--state-dir", below(&args.state_dir));
        add("--device-rules", arg.rules.to_string().into());
        add("--watchdog", args.watchdog.to_string().into());
        if let Some((_, argument)) = &arg.wire {
            add("--uplink", argument.into());
            add("--uplink-limit-ms", args.uplink_limit_ms.to_string().into());
        }
        add("--connections", args.connections.to_string().into());
        for (option, value) in args.for_device(arg.engines.is_some()) {
            add(option, value.into());
        }
        if let Some(engines) = &arg.engines {
            // Said once and by its name, not by each start of a device.
            let allowed = allowed_cpus().map_err(Failed)?;
            check_cpus(&format!("--device {},engines=", arg.name), &engines.to_string(), cpus.unwrap_or(&allowed))?;
            add("--poll", engines.to_string().into());
        }
        if let Some(cpus) = &args.cpus {
            add("--cpus", cpus.into());
        }
        args.read_group.iter().for_each(|group| add("--read-group", group.into()));
        if let Some(libexec) = &args.libexec {
            add("--libexec", libexec.into());
        }
        let cable = cable_sockets(arg, args).map(|sockets| -> Result<Cable, RunError> {
            let dir = args.run_dir.join(DEVICES_DIR).join(&arg.name);
            DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(|e| {
                Failed(format!("{}: cannot make the directory: {e}; choose another with --run-dir", dir.display()))
            })?;
            let mut far = OsString::from(format!("{FAR_PORT}="));
            far.push(&sockets[1]);
            far.push(format!(",owner={}", ourselves()));
            arguments.extend(["--port".into(), far]);
            Ok(Cable::new(&arg.name, find_program("lasthop-cable", args.libexec.as_deref())?, sockets, cpus.cloned()))
        });
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let (name, start_at, cable) = (arg.name.clone(), Instant::now(), cable.transpose()?);
        let engines = arg.engines.clone().unwrap_or_default();
        let wire = arg.wire.as_ref().map(|(uplink, _)| uplink.device.clone());
        let (first_start, running, failed_starts) = (None, None, 0);
        Ok(Self {
            name,
            program,
            arguments,
            first_start,
            running,
            start_at,
            backoff,
            failed_starts,
            cable,
            engines,
            wire,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface of this host that it has for itself.
    pub fn wire(&self) -> Option<&str> {
        self.wire.as_deref()
    }

    /// Whether its ports can be used, or could be before it was last started again.
    fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready)
    }

    /// `again`: it was ready before. What it can do without, for a while, it is to wait for.
    fn start(&mut self, epoll: &Epoll, token: u64, again: bool) -> io::Result<()> {
        self.first_start = self.first_start.filter(|_| again);
        let first = *self.first_start.get_or_insert_with(any_number);
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(["--device-start", &first.to_string()])
            .args(again.then_some("--device-again"))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // A service manager waits for us, not for it.
        for of_service in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(of_service);
        }
        command.env(FORMAT_VARIABLE, Format::current().name()).env(DEVICE_VARIABLE, &self.name);
        command.stderr(Stdio::inherit());
        die_with_parent(&mut command);
        outlive_terminal(&mut command);
        let mut process = command.spawn()?;
        let watched = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|stdout| {
            fcntl_setfl(&stdout, fcntl_getfl(&stdout)? | OFlags::NONBLOCK)?;
            let pidfd = PidFd::of(&process)?;
            epoll.add(&stdout, token, Trigger::Level)?;
            epoll.add(&pidfd, token + 1, Trigger::Level)?;
            Ok((Process::of(&process)?, pidfd, File::from(OwnedFd::from(stdout))))
        });
        match watched {
            Ok((process, pidfd, stdout)) => {
                info!("device {} started (pid {})", self.name, process.id());
                self.running = Some(Running { process, pidfd, stdout, ready: false });
                Ok(())
            }
            Err(e) => {
                let _ = process.kill().and_then(|()| process.wait());
                Err(e)
            }
        }
    }

    fn hand_over(&self, giver: &mut Giver) -> DeviceState {
        let running = self.running.as_ref();
        DeviceState {
            name: self.name.clone(),
            first_start: self.first_start,
            running: running.map(|r| (r.process.id(), [giver.fd(&r.pidfd), giver.fd(&r.stdout)], r.ready)),
            start_at: giver.moment(self.start_at),
            backoff: self.backoff.clone(),
            failed_starts: self.failed_starts,
            cable: self.cable.as_ref().map(|cable| cable.hand_over(giver)),
        }
    }

    fn resume(&mut self, state: DeviceState, epoll: &Epoll, token: u64, taker: &Taker) -> Result<(), String> {
        (self.start_at, self.backoff) = (taker.at(state.start_at), state.backoff);
        (self.first_start, self.failed_starts) = (state.first_start, state.failed_starts);
        if let (Some(cable), Some(state)) = (&mut self.cable, state.cable) {
            cable.resume(state, epoll, token + 2, taker);
        }
        let Some((pid, [pidfd, stdout], ready)) = state.running else { return Ok(()) };
        let (pidfd, stdout) = (PidFd::kept(taker.fd(pidfd)?), File::from(taker.fd(stdout)?));
        let watched =
            epoll.add(&stdout, token, Trigger::Level).and_then(|()| epoll.add(&pidfd, token + 1, Trigger::Level));
        let process = watched.and_then(|()| Process::kept(pid)).map_err(|e| format!("device {}: {e}", self.name))?;
        self.running = Some(Running { process, pidfd, stdout, ready });
        Ok(())
    }

    /// What it has printed: `ready`, once.
    fn hear(&mut self, epoll: &Epoll) -> bool {
        let Some(running) = &mut self.running else { return false };
        let mut line = [0; 64];
        match running.stdout.read(&mut line) {
            Ok(n) if line.get(..n).is_some_and(|line| line.starts_with(b"ready")) => {
                (running.ready, self.failed_starts) = (true, 0);
                self.backoff.reset();
                true
            }
            Ok(1..) => false,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
            // It will not print any more.
            Ok(0) | Err(_) => epoll.delete(&running.stdout).is_err(),
        }
    }

    /// How it ended, if it has.
    fn reap(&mut self, epoll: &Epoll, now: Instant) -> Option<String> {
        let how = self.running.as_mut()?.process.how_it_ended()?;
        let running = self.running.take()?;
        let _ = epoll.delete(&running.stdout);
        let _ = epoll.delete(&running.pidfd);
        self.failed_starts += u32::from(!running.ready);
        self.start_at = now + self.backoff.wait();
        Some(format!("device {} (pid {}) ended: {how}", self.name, running.process.id()))
    }

    /// Asks it to end. Nothing goes over its cable any more.
    fn end(&mut self) {
        self.cable = None;
        let pid = self.running.as_ref().and_then(|running| Pid::from_raw(running.process.id() as i32));
        // It has not been waited for, so the number is its own.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}

/// What nobody has had before, but by a rare chance.
fn any_number() -> u32 {
    let [a, b, c, d, ..] = token();
    u32::from_ne_bytes([a, b, c, d])
}

impl Drop for Device {
    /// None is left behind: it was asked to end, and is made to. Its processes end with it.
    fn drop(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|_| !handover::is_under_way()) {
            if !running.pidfd.has_ended_within(ENDING_LIMIT) {
                let _ = running.pidfd.kill();
                running.pidfd.has_ended_within(ENDING_LIMIT);
            }
            let _ = running.process.try_wait();
        }
    }
}

impl Supervisor {
    pub(super) fn hand_over_devices(&self, giver: &mut Giver) -> Vec<DeviceState> {
        self.devices.iter().map(|device| device.hand_over(giver)).collect()
    }

    pub(super) fn resume_devices(&mut self, states: Vec<DeviceState>, taker: &Taker) -> Result<(), String> {
        for state in states {
            let tokens = (TOKENS..).step_by(TOKENS_EACH as usize);
            let Some((device, token)) = self.devices.iter_mut().zip(tokens).find(|(d, _)| d.name == state.name) else {
                return Err(format!("device {} is not on the command line", state.name));
            };
            device.resume(state, &self.epoll, token, taker)?;
        }
        Ok(())
    }

    /// Starts those that do not run.
    pub(super) fn start_devices(&mut self, now: Instant) -> Result<(), RunError> {
        for (device, token) in self.devices.iter_mut().zip((TOKENS..).step_by(TOKENS_EACH as usize)) {
            if device.is_ready() {
                device.cable.iter_mut().for_each(|cable| cable.start(&self.epoll, token + 2, now));
            }
            if device.running.is_some() || device.start_at > now {
                continue;
            }
            if let Err(e) = device.start(&self.epoll, token, self.announced) {
                let what = format!("device {}: {}: {e}", device.name, device.program.display());
                if !self.announced {
                    return Err(Failed(what));
                }
                error!("{what}");
                device.start_at = now + Duration::from_secs(1);
            }
        }
        Ok(())
    }

    /// One has printed something, or has ended.
    pub(super) fn device_event(&mut self, token: u64, now: Instant) -> Result<(), RunError> {
        let Some(at) = token.checked_sub(TOKENS) else { return Ok(()) };
        let Some(device) = usize::try_from(at / TOKENS_EACH).ok().and_then(|n| self.devices.get_mut(n)) else {
            return Ok(());
        };
        if at % TOKENS_EACH == 2 {
            let ended = device.cable.as_mut().and_then(|cable| cable.reap(&self.epoll, now));
            let Some(ended) = ended else { return Ok(()) };
            warn!("{ended}; starting it again");
            self.replaced.note(&format!("cable of device {}", device.name), &ended, now);
            return Ok(());
        }
        if at % TOKENS_EACH == 0 {
            if device.hear(&self.epoll) {
                self.announce();
            }
            return Ok(());
        }
        let Some(ended) = device.reap(&self.epoll, now) else { return Ok(()) };
        if !self.announced && device.failed_starts >= START_ATTEMPTS {
            return Err(Failed(format!(
                "{ended}, for the {START_ATTEMPTS}th time before it was ready; see above for why"
            )));
        }
        warn!("{ended}; starting it again");
        self.replaced.note(&format!("device {}", device.name), &ended, now);
        Ok(())
    }

    pub(super) fn devices_are_ready(&self) -> bool {
        self.devices.iter().all(Device::is_ready)
    }

    /// When one is to be started again.
    pub(super) fn devices_deadline(&self) -> Option<Instant> {
        let devices = self.devices.iter().filter(|device| device.running.is_none()).map(|device| device.start_at);
        let ready = self.devices.iter().filter(|device| device.is_ready());
        devices.chain(ready.filter_map(|device| device.cable.as_ref()?.deadline())).min()
    }

    /// Asks all to end; they are waited for when they are dropped.
    pub(super) fn end_devices(&mut self) {
        self.devices.iter_mut().for_each(Device::end);
    }
}

impl Supervisor {
    /// The port of a cable stays: without it a device is cut off, and nothing would say so.
    pub(super) fn check_no_cable(&self, port: &PortConfig) -> Result<(), String> {
        let PortConfig { name, path, .. } = port;
        let cut_off = format!("`lasthop port set {name} --link down` cuts it off until the link is up again");
        let is_of =
            |device: &&Device| device.cable.as_ref().is_some_and(|cable| cable.host_socket() == Path::new(path));
        if let Some(Device { name: device, .. }) = self.devices.iter().find(is_of) {
            return Err(format!(
                "{name} is the cable of device {device}; to remove the device, start `lasthop run` without --device {device}, or to leave out \
                 the cable, with --device {device},cable=off; {cut_off}"
            ));
        }
        if self.of_device.is_some() && name == FAR_PORT && Path::new(path).ends_with(FAR_SOCKET) {
            return Err(format!(
                "{name} is this device's cable to the host; start the host's `lasthop run` with cable=off behind --device to leave it out; \
                 {cut_off}"
            ));
        }
        Ok(())
    }
}

/// Sockets of the two ports that a device's cable is plugged in to, if it has one: that of the host's, and that of its own.
fn cable_sockets(arg: &DeviceArg, args: &RunArgs) -> Option<[PathBuf; 2]> {
    let dir = args.run_dir.join(DEVICES_DIR).join(&arg.name);
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    arg.cable.then(|| [HOST_SOCKET, FAR_SOCKET].map(|name| dir.join(name)))
}

/// Who alone may plug in to a cable's ports: a cable connects before it gives up its rights. Whoever else could would be the device to the
/// host, and the host to the device.
fn ourselves() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

/// The ports of this lasthop that devices' cables are plugged in to.
pub fn cable_ports(args: &RunArgs) -> impl Iterator<Item = PortArg> {
    args.devices.iter().filter_map(|device| {
        let [path, _] = cable_sockets(device, args)?;
        let name = device.name.clone();
        let owner = ourselves().parse().ok();
        Some(PortArg { name, path, client: false, owner, device: None, settings: Vec::new(), of_device: None })
    })
}

/// Ports of this lasthop itself.
pub fn own_ports(ports: &[PortArg]) -> impl Iterator<Item = &PortArg> {
    ports.iter().filter(|port| port.of_device.is_none())
}
