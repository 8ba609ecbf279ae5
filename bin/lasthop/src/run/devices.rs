//! Devices of `--device`: each is a switch of its own, as a card would be one, with a `lasthop run` of its own that starts its data plane
//! (`lasthop-device`), its control and its ports' session processes. To this supervisor it is one process, started again when it ends.
//!
//! Why so, and what it costs: `docs/decisions/device.md`.

use super::RunError::{self, Failed, Usage};
use super::args::{DeviceArg, PortArg, RunArgs};
use super::backoff::Backoff;
use super::supervisor::Supervisor;
use lasthop_sys::{Epoll, PidFd, Trigger, die_with_parent, outlive_terminal};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// Run directories of devices are below that of their lasthop, in here.
pub const DEVICES_DIR: &str = "devices";
/// Tokens of epoll from here on: what a device prints, and its end; two for each.
pub const TOKENS: u64 = 1 << 16;
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
    running: Option<Running>,
    start_at: Instant,
    backoff: Backoff,
    failed_starts: u32,
}

#[derive(Debug)]
struct Running {
    process: Child,
    pidfd: PidFd,
    stdout: ChildStdout,
    ready: bool,
}

/// The devices that the command line asks for, with their ports.
pub fn wanted(args: &RunArgs) -> Result<Vec<Device>, RunError> {
    let mut devices: Vec<Device> = Vec::new();
    for arg in &args.devices {
        if devices.iter().any(|other| other.name == arg.name) {
            return Err(Usage(format!(
                "--device {}: there is one of that name already; choose another name",
                arg.name
            )));
        }
        devices.push(Device::new(arg, args)?);
    }
    for port in &args.ports {
        let Some((name, argument)) = &port.of_device else { continue };
        let Some(device) = devices.iter_mut().find(|device| device.name == *name) else {
            let port = &port.name;
            return Err(Usage(format!(
                "--port {port}: there is no device {name}; write `--device {name}` too, or leave out device="
            )));
        };
        device.arguments.extend(["--port".into(), argument.into()]);
    }
    forget_others(&args.run_dir.join(DEVICES_DIR), &devices);
    Ok(devices)
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
    fn new(arg: &DeviceArg, args: &RunArgs) -> Result<Self, RunError> {
        let program = std::env::current_exe().map_err(|e| Failed(format!("where this program is: {e}")))?;
        let below = |dir: &Path| dir.join(DEVICES_DIR).join(&arg.name).into_os_string();
        // A card does not know what VMs do, and reads no file of ours.
        let mut arguments: Vec<OsString> = vec!["run".into(), "--no-bpf".into()];
        let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
        add("--run-dir", below(&args.run_dir));
        add("--state-dir", below(&args.state_dir));
        add("--device-rules", arg.rules.to_string().into());
        add("--watchdog", args.watchdog.to_string().into());
        add("--connections", args.connections.to_string().into());
        if let Some(engines) = &arg.engines {
            add("--poll", engines.to_string().into());
        }
        if let Some(cpus) = &args.cpus {
            add("--cpus", cpus.into());
        }
        if let Some(group) = &args.read_group {
            add("--read-group", group.into());
        }
        if let Some(libexec) = &args.libexec {
            add("--libexec", libexec.into());
        }
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let (name, start_at) = (arg.name.clone(), Instant::now());
        Ok(Self { name, program, arguments, running: None, start_at, backoff, failed_starts: 0 })
    }

    /// Whether its ports can be used, or could be before it was last started again.
    fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready)
    }

    fn start(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        // A service manager waits for us, not for it.
        command.env_remove("NOTIFY_SOCKET").stderr(Stdio::inherit());
        die_with_parent(&mut command);
        outlive_terminal(&mut command);
        let mut process = command.spawn()?;
        let watched = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|stdout| {
            fcntl_setfl(&stdout, fcntl_getfl(&stdout)? | OFlags::NONBLOCK)?;
            let pidfd = PidFd::of(&process)?;
            epoll.add(&stdout, token, Trigger::Level)?;
            epoll.add(&pidfd, token + 1, Trigger::Level)?;
            Ok((stdout, pidfd))
        });
        match watched {
            Ok((stdout, pidfd)) => {
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
        let status = self.running.as_mut()?.process.try_wait().ok()??;
        let running = self.running.take()?;
        let _ = epoll.delete(&running.stdout);
        let _ = epoll.delete(&running.pidfd);
        self.failed_starts += u32::from(!running.ready);
        self.start_at = now + self.backoff.wait();
        Some(format!("device {} (pid {}) ended: {status}", self.name, running.process.id()))
    }

    /// Asks it to end.
    fn end(&self) {
        let pid = self.running.as_ref().and_then(|running| Pid::from_raw(running.process.id() as i32));
        // It has not been waited for, so the number is its own.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}

impl Drop for Device {
    /// None is left behind: it was asked to end, and is made to. Its processes end with it.
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            if !running.pidfd.has_ended_within(ENDING_LIMIT) {
                let _ = running.pidfd.kill();
                running.pidfd.has_ended_within(ENDING_LIMIT);
            }
            let _ = running.process.try_wait();
        }
    }
}

impl Supervisor {
    /// Starts those that do not run.
    pub(super) fn start_devices(&mut self, now: Instant) -> Result<(), RunError> {
        for (device, token) in self.devices.iter_mut().zip((TOKENS..).step_by(2)) {
            if device.running.is_some() || device.start_at > now {
                continue;
            }
            if let Err(e) = device.start(&self.epoll, token) {
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
        let Some(device) = usize::try_from(at / 2).ok().and_then(|n| self.devices.get_mut(n)) else { return Ok(()) };
        if at % 2 == 0 {
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
        self.devices.iter().filter(|device| device.running.is_none()).map(|device| device.start_at).min()
    }

    /// Asks all to end; they are waited for when they are dropped.
    pub(super) fn end_devices(&self) {
        self.devices.iter().for_each(Device::end);
    }
}

/// Ports of this lasthop itself.
pub fn own_ports(ports: &[PortArg]) -> impl Iterator<Item = &PortArg> {
    ports.iter().filter(|port| port.of_device.is_none())
}
