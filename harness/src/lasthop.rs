//! `lasthop run` as a test starts it, and the commands that ask it things.

use crate::{Netns, last_lines, on_device, proc, root, scratch, spawn, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long `lasthop run` may take to say `ready`.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// A port as `lasthop run --port` and `lasthop port add` want it.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its vhost-user socket.
    pub socket: PathBuf,
    /// True where lasthop connects and the front-end listens.
    pub client: bool,
}

impl Port {
    /// lasthop listens on `dir/name.sock`.
    pub fn listen(name: &str, dir: &Path) -> Self {
        Self { name: name.into(), socket: dir.join(format!("{name}.sock")), client: false }
    }

    /// lasthop connects to `dir/name.sock`.
    pub fn connect(name: &str, dir: &Path) -> Self {
        Self { client: true, ..Self::listen(name, dir) }
    }

    fn argument(&self) -> String {
        format!("{}={}{}", self.name, self.socket.display(), if self.client { ",client" } else { "" })
    }
}

/// A running lasthop. Dropping it sends SIGTERM and waits.
///
/// Where tests run with their ports on a device ([`on_device`]), "the switch", its control, its supervisor and its run directory are those of
/// the device, and so commands are the device's; but those of uplinks, which are the host's where they were there at the start.
pub struct Lasthop {
    run: Child,
    dir: tempfile::TempDir,
    /// The ports are a device's.
    on_device: bool,
    /// The host has uplinks.
    uplinks: bool,
}

impl Lasthop {
    /// Starts a learning switch over the ports and waits until it is ready.
    pub fn start(ports: &[Port]) -> Self {
        Self::start_with(ports, &[])
    }

    /// The same, with further arguments of `lasthop run`.
    pub fn start_with(ports: &[Port], arguments: &[&str]) -> Self {
        Self::start_in(None, ports, arguments)
    }

    /// The same, in a network namespace.
    pub fn start_in(netns: Option<&Netns>, ports: &[Port], arguments: &[&str]) -> Self {
        Self::start_at(scratch(), netns, ports, arguments, None)
    }

    /// The same, with another log than the file that [`Lasthop::log`] reads.
    pub fn start_logging(netns: Option<&Netns>, ports: &[Port], arguments: &[&str], log: Option<OwnedFd>) -> Self {
        Self::start_at(scratch(), netns, ports, arguments, log)
    }

    /// Ends it and, whatever `between` did, starts another that remembers what this one has.
    pub fn start_again(
        mut self,
        netns: Option<&Netns>,
        ports: &[Port],
        arguments: &[&str],
        between: impl FnOnce(),
    ) -> Self {
        assert!(spawn::end(&mut self.run), "lasthop run did not end\n{}", self.log());
        let dir = std::mem::replace(&mut self.dir, scratch());
        between();
        Self::start_at(dir, netns, ports, arguments, None)
    }

    fn start_at(
        dir: tempfile::TempDir,
        netns: Option<&Netns>,
        ports: &[Port],
        arguments: &[&str],
        log: Option<OwnedFd>,
    ) -> Self {
        let (log_file, dir_path) = (dir.path().join("log"), dir.path().to_owned());
        let mut log = log.map(Stdio::from);
        let program = binary("lasthop").display().to_string();
        let own: Vec<String> = ports.iter().map(Port::argument).collect();
        let on_device = on_device::arguments(&own, arguments);
        let mut run = spawn::spawn("TERM", netns.map_or(program.as_str(), |_| "ip"), |c| {
            if let Some(netns) = netns {
                c.args(["netns", "exec", netns.name(), &program]);
            }
            c.arg("run").arg("--run-dir").arg(dir_path.join("run")).arg("--state-dir").arg(dir_path.join("state"));
            match &on_device {
                Some(all) => c.args(all),
                None => c.args(own.iter().flat_map(|port| ["--port", port])).args(arguments),
            };
            let file = || std::fs::File::create(&log_file).expect("a log in the scratch directory").into();
            c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.take().unwrap_or_else(file));
        });
        let stdout = run.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let lasthop = Self { run, dir, on_device: on_device.is_some(), uplinks: arguments.contains(&"--uplink") };
        match lines.recv_timeout(READY_LIMIT) {
            Ok(line) if line == "ready" => {}
            other => panic!("lasthop run is not ready: {other:?}\n{}", lasthop.log()),
        }
        let is_up = |port: &Value| port["name"] == on_device::NAME && port["state"] == "up";
        if lasthop.on_device {
            wait_for("the device's cable", READY_LIMIT, || lasthop.ports_of(None).iter().any(is_up));
        }
        lasthop
    }

    /// The `--run-dir` of the switch that the ports are at.
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir_of(self.device())
    }

    fn run_dir_of(&self, device: Option<&str>) -> PathBuf {
        let host = self.dir.path().join("run");
        device.map_or_else(|| host.clone(), |name| host.join("devices").join(name))
    }

    /// The device that the ports are on, if they are.
    pub fn device(&self) -> Option<&'static str> {
        self.on_device.then_some(on_device::NAME)
    }

    /// The port by which what comes from this uplink of the host comes in, where the ports are: on a device its end of the cable.
    pub fn port_of_uplink<'a>(&self, uplink: &'a str) -> &'a str {
        if self.on_device { "host" } else { uplink }
    }

    /// Whether the program has such a command.
    pub fn knows(command: &str) -> bool {
        let help = Command::new(binary("lasthop")).args([command, "--help"]).stdin(Stdio::null()).output();
        help.is_ok_and(|out| out.status.success())
    }

    /// The host's supervisor's process.
    pub fn pid(&self) -> u32 {
        self.run.id()
    }

    /// The process of the supervisor of the switch that the ports are at.
    pub fn supervisor(&self) -> u32 {
        if !self.on_device {
            return self.pid();
        }
        let mut found = 0;
        wait_for("the device's lasthop", Duration::from_secs(10), || {
            let lock = std::fs::read_to_string(self.run_dir().join("lock")).unwrap_or_default();
            found = lock.trim().parse().unwrap_or(0);
            proc::alive(found)
        });
        found
    }

    /// The program that is the data plane of the ports.
    pub fn data_plane(&self) -> &'static str {
        if self.on_device { "lasthop-device" } else { "lasthop-switch" }
    }

    /// The process of `lasthop-switch` or `lasthop-control`; waits for one that is being restarted.
    pub fn child(&self, name: &str) -> u32 {
        let name = if name == "lasthop-switch" { self.data_plane() } else { name };
        // The kernel keeps 15 characters of a name.
        let short: String = name.chars().take(15).collect();
        let mut found = 0;
        wait_for(&format!("a process {name}"), Duration::from_secs(10), || {
            let of_host = name == "lasthop-uplink" && self.uplinks;
            let all = proc::tree(if of_host { self.pid() } else { self.supervisor() });
            // Of one that was killed something may be left beside the next: that is the newer one.
            let of = |p: &u32| proc::children(*p).into_iter().filter(|(_, n)| *n == short).map(|(p, _)| p);
            found = all.iter().flat_map(of).filter(|p| proc::alive(*p)).max().unwrap_or(0);
            found != 0
        });
        found
    }

    /// The process of `lasthop-switch`, or of the device in its place.
    pub fn switch(&self) -> u32 {
        self.child("lasthop-switch")
    }

    /// `lasthop-control`'s process.
    pub fn control(&self) -> u32 {
        self.child("lasthop-control")
    }

    /// kill -9 of one of the processes; returns once another has taken its place.
    pub fn kill(&self, name: &str) {
        self.replaced_after(name, Signal::KILL);
    }

    /// Stops one of the processes; returns once lasthop has found out and another has taken its place.
    pub fn hang(&self, name: &str) {
        self.replaced_after(name, Signal::STOP);
    }

    fn replaced_after(&self, name: &str, signal: Signal) {
        let old = self.child(name);
        proc::signal(old, signal);
        wait_for(&format!("a new {name}"), Duration::from_secs(10), || !proc::alive(old) && self.child(name) != old);
    }

    /// All its processes.
    pub fn pids(&self) -> Vec<u32> {
        proc::tree(self.pid())
    }

    /// A file that outlives it.
    pub fn state_file(&self, name: &str) -> PathBuf {
        let host = self.dir.path().join("state");
        self.device().map_or_else(|| host.clone(), |device| host.join("devices").join(device)).join(name)
    }

    /// Processor time of all its processes so far, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        self.pids().into_iter().map(proc::cpu_ns).sum()
    }

    /// Runs `lasthop` with these words against this instance, whatever its exit code.
    pub fn try_command(&self, words: &[&str]) -> Output {
        let of_host = words.first() == Some(&"uplink") && self.uplinks;
        self.try_command_of(self.device().filter(|_| !of_host), words)
    }

    /// The same, against the device of this name, or the host's own.
    pub fn try_command_of(&self, device: Option<&str>, words: &[&str]) -> Output {
        let dir = self.run_dir_of(device);
        Command::new(binary("lasthop")).args(words).arg("--run-dir").arg(dir).output().expect("lasthop starts")
    }

    /// The same; panics unless it exits with 0.
    pub fn command(&self, words: &[&str]) -> String {
        self.said(words, &self.try_command(words))
    }

    fn said(&self, words: &[&str], out: &Output) -> String {
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "lasthop {}: {}\n{stdout}{stderr}\n{}", words.join(" "), out.status, self.log());
        stdout.into_owned()
    }

    /// The same with `--json`, parsed.
    pub fn json(&self, words: &[&str]) -> Value {
        Self::parsed(words, &self.command(&[words, &["--json"]].concat()))
    }

    /// The same, of the device of this name, or of the host.
    pub fn json_of(&self, device: Option<&str>, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        Self::parsed(&words, &self.said(&words, &self.try_command_of(device, &words)))
    }

    fn parsed(words: &[&str], text: &str) -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("lasthop {}: {e} in {text:?}", words.join(" ")))
    }

    /// What `lasthop port list --json` says of one port.
    pub fn port(&self, name: &str) -> Value {
        let mut ports = self.ports_of(self.device());
        if self.on_device && self.uplinks {
            ports.extend(self.ports_of(None));
        }
        let found = ports.iter().find(|port| port["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no port {name} in {ports:?}"))
    }

    fn ports_of(&self, device: Option<&str>) -> Vec<Value> {
        self.json_of(device, &["port", "list"])["ports"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until a port is in this state (`waiting`, `connected`, `up`, …).
    pub fn wait_for_state(&self, port: &str, state: &str) {
        let what = format!("port {port} to be {state}");
        wait_for(&what, Duration::from_secs(10), || self.port(port)["state"] == state);
    }

    /// Every packet taken from a guest is accounted for: delivered, dropped under a reason, or waiting. Call it when
    /// nobody sends; waits a little, because packets that wait for control are counted later.
    pub fn check_sums(&self) {
        self.check_sums_of(None);
        self.device().iter().for_each(|name| self.check_sums_of(Some(name)));
    }

    fn check_sums_of(&self, device: Option<&str>) {
        let mut sum = Value::Null;
        for _ in 0..50 {
            sum = self.json_of(device, &["stats"])["sum"].take();
            let of = |name: &str| sum[name].as_u64().unwrap_or_else(|| panic!("no {name} in {sum}"));
            if of("from_guest") + of("replicated") == of("to_guest") + of("dropped") + of("waiting") {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the counters do not add up: {sum}");
    }

    /// What the processes logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGTERM and waits: true when all processes left by themselves.
    pub fn stop(mut self) -> bool {
        let all = self.pids();
        let in_time = spawn::end(&mut self.run);
        // The kernel ends those that are left when their parent has ended: a moment later.
        let until = Instant::now() + Duration::from_secs(1);
        let gone = || all.iter().all(|p| !proc::alive(*p));
        while !gone() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        in_time && gone()
    }
}

impl Drop for Lasthop {
    fn drop(&mut self) {
        if std::thread::panicking() && proc::alive(self.pid()) {
            let stats = self.try_command(&["stats"]);
            eprintln!("--- lasthop stats\n{}", String::from_utf8_lossy(&stats.stdout));
        }
        spawn::end(&mut self.run);
        if std::thread::panicking() {
            eprintln!("--- lasthop's log\n{}", last_lines(&self.log(), 30));
        }
    }
}

/// One of the binaries under test: from LASTHOP_BIN_DIR, from beside the running program, or the release build.
pub fn binary(name: &str) -> PathBuf {
    let target = || std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.to_owned()));
    let beside = beside.filter(|dir| dir.join("lasthop").exists());
    let dir = std::env::var_os("LASTHOP_BIN_DIR").map(PathBuf::from).or(beside);
    let path = dir.unwrap_or_else(|| target().join("release")).join(name);
    assert!(path.exists(), "no {}: run `cargo build --release --bins` first, or set LASTHOP_BIN_DIR", path.display());
    path
}
