//! `lasthop run` with children that do as they are told here.
//!
//! This program is three in one. As `lasthop-switch` or `lasthop-control` (by the name it is called by, through links
//! in a directory given as `--libexec`) it speaks the real messages and prints what it sees; its output arrives on the
//! standard error of `lasthop run`. Under its own name it is the tests, which wait for those lines.

mod supervisor {
    pub mod hung;
    pub mod remembered;
    pub mod stub;
    pub mod without;
}

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use supervisor::hung::a_control_that_spins_is_replaced;
use supervisor::remembered::{
    a_remembered_port_that_cannot_listen, files_that_are_gone_open_nothing,
    ports_added_are_remembered_and_those_removed_are_not, settings_in_the_file_are_followed,
    words_of_access_lists_name_no_new_port,
};
use supervisor::without::{a_sandbox_that_cannot_be_made_is_explained, without_ebpf_it_says_why_once_and_goes_on};
use tempfile::TempDir;

/// Far above what anything here takes; a test that waits this long has failed.
const LIMIT: Duration = Duration::from_secs(30);

fn main() {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    match called.file_name().and_then(|name| name.to_str()) {
        Some("lasthop-switch") => return supervisor::stub::switch(&called),
        Some("lasthop-control") => return supervisor::stub::control(&called),
        Some("lasthop-session") => return supervisor::stub::session(&called),
        _ => {}
    }
    let tests: [(&str, fn()); 21] = [
        ("starts_its_children_says_ready_and_ends_cleanly", starts_its_children_says_ready_and_ends_cleanly),
        ("a_killed_switch_is_replaced", a_killed_switch_is_replaced),
        ("a_killed_control_is_replaced_and_its_clients_wait", a_killed_control_is_replaced_and_its_clients_wait),
        ("a_control_that_spins_is_replaced", a_control_that_spins_is_replaced),
        ("connecting_ports_connect_again_and_again", connecting_ports_connect_again_and_again),
        ("one_front_end_at_a_time_and_nothing_leaks", one_front_end_at_a_time_and_nothing_leaks),
        ("ports_added_are_remembered_and_those_removed_are_not", ports_added_are_remembered_and_those_removed_are_not),
        ("a_remembered_port_that_cannot_listen_does_not_stop_the_rest", a_remembered_port_that_cannot_listen),
        ("files_that_are_gone_open_nothing", files_that_are_gone_open_nothing),
        ("settings_in_the_file_are_followed", settings_in_the_file_are_followed),
        ("ready_that_cannot_be_written", ready_that_cannot_be_written),
        ("words_of_access_lists_name_no_new_port", words_of_access_lists_name_no_new_port),
        ("wrong_arguments_are_explained", wrong_arguments_are_explained),
        ("what_is_missing_or_taken_is_explained", what_is_missing_or_taken_is_explained),
        ("one_instance_per_directory", one_instance_per_directory),
        ("a_child_that_cannot_start_ends_the_start", a_child_that_cannot_start_ends_the_start),
        ("a_child_that_does_not_end_is_killed", a_child_that_does_not_end_is_killed),
        ("a_killed_supervisor_leaves_nothing_in_the_way", a_killed_supervisor_leaves_nothing_in_the_way),
        ("hundreds_of_ports_reach_the_children", hundreds_of_ports_reach_the_children),
        ("without_ebpf_it_says_why_once_and_goes_on", without_ebpf_it_says_why_once_and_goes_on),
        ("a_sandbox_that_cannot_be_made_is_explained", a_sandbox_that_cannot_be_made_is_explained),
    ];
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    for (name, test) in tests {
        if wanted.as_deref().is_none_or(|w| name.contains(w)) {
            test();
            println!("test {name} ... ok");
        }
    }
}

/// Directories of one instance.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.path("libexec")).unwrap();
        for name in ["lasthop-switch", "lasthop-control", "lasthop-session"] {
            symlink(std::env::current_exe().unwrap(), place.path("libexec").join(name)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn port(&self, name: &str) -> String {
        format!("{name}={}", self.path(&format!("{name}.sock")).display())
    }

    /// Tells the children how to misbehave.
    fn behave(&self, how: &str) {
        std::fs::write(self.path("libexec").join("behaviour"), how).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.arg("run").arg("--run-dir").arg(self.path("run")).arg("--state-dir").arg(self.path("state"));
        command.arg("--libexec").arg(self.path("libexec")).args(arguments);
        command.env("SECRET", "not for children").env("RUST_LOG", "debug").stdin(Stdio::null());
        command
    }

    fn start(&self, arguments: &[&str]) -> Lasthop {
        self.start_command(self.command(arguments))
    }

    fn start_command(&self, mut command: Command) -> Lasthop {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Lasthop { process, lines, seen: Vec::new(), ready: false }
    }

    fn ready(&self, arguments: &[&str]) -> Lasthop {
        let mut lasthop = self.start(arguments);
        lasthop.wait_ready();
        lasthop
    }

    /// Runs until it ends by itself.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let Output { status, stderr, stdout } = self.command(arguments).output().unwrap();
        assert_eq!(stdout, b"");
        (status.code().unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// Must end with `code`; returns the one line about it.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let (status, said) = self.run(arguments);
        assert_eq!(status, code, "{said}");
        let lines: Vec<_> = said.lines().filter(|l| l.starts_with("lasthop: ")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains("; "), "says what to do: {said}");
        lines[0].to_owned()
    }

    /// Asks the control stub for something, as a client of the API would.
    fn ask(&self, request: &str) -> String {
        let mut client = UnixStream::connect(self.path("run/api.sock")).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        writeln!(client, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

/// A running `lasthop run`.
struct Lasthop {
    process: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    /// Whether its one line was read.
    ready: bool,
}

impl Lasthop {
    fn wait_ready(&mut self) {
        let mut line = [0; 6];
        let read = self.process.stdout.as_mut().unwrap().read_exact(&mut line);
        assert!(read.is_ok() && &line == b"ready\n", "{line:?} {:#?}", self.end_of_log());
        self.ready = true;
    }

    /// The next line with all of `words` in it, after the last one waited for.
    fn wait(&mut self, words: &[&str]) -> String {
        let limit = Instant::now() + LIMIT;
        loop {
            let Ok(line) = self.lines.recv_timeout(limit.saturating_duration_since(Instant::now())) else {
                panic!("no line with {words:?}; there was {:#?}", self.seen);
            };
            self.seen.push(line.clone());
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
        }
    }

    /// Waits for a stub's line `switch[PID]: WHAT` and returns PID.
    fn wait_pid(&mut self, program: &str, what: &str) -> Pid {
        let line = self.wait(&[&format!("{program}["), what]);
        let pid = line.split(['[', ']']).nth(1).unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    fn end_of_log(&mut self) -> &[String] {
        self.seen.extend(self.lines.iter());
        &self.seen
    }

    /// SIGTERM; must end with status 0 and no further word on standard output.
    fn end(mut self) -> Vec<String> {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status} {:#?}", self.end_of_log());
        let mut rest = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, if self.ready { "" } else { "ready\n" });
        self.end_of_log().to_vec()
    }
}

impl Drop for Lasthop {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn exists(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn wait_for_end(stream: &mut UnixStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

fn starts_its_children_says_ready_and_ends_cleanly() {
    let place = Place::new();
    let mut lasthop = place.start(&[
        "--port",
        &place.port("a"),
        "--port",
        &place.port("b"),
        "--cpus",
        "0",
        "--hysteresis",
        "7,9",
        "--rx-batch",
        "off",
    ]);
    let switch = lasthop.wait_pid("switch", "arguments");
    let line = lasthop.seen.last().unwrap().clone();
    assert!(
        line.ends_with(
            "arguments --supervisor-fd 3 --journal-fd 4 --host-view-fd 5 --boost-fd 6 --root-fd 7 --rules-fd 8 --pulse-fd 9"
        ),
        "{line}"
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", switch.as_raw_pid())).unwrap();
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    // 0 to 9, and one to list the directory with.
    lasthop.wait(&["switch[", "descriptors [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"]);
    let line = lasthop.wait(&["switch[", "environment"]);
    assert!(line.ends_with("environment [\"LASTHOP_LOG_FORMAT\", \"MALLOC_ARENA_MAX\", \"RUST_LOG\"]"), "{line}");
    let settings = "SwitchSettings { helpers: [0], poll: [], hysteresis_us: (7, 9), not_idle: false, \
                    cgroup_accounting: false, drawn_timer: false, idle_us: 10000000, patience_ms: (10, 2), max_guest_memory: ";
    lasthop.wait(&["switch[", settings]);
    lasthop.wait(&["switch[", "add 1 a"]);
    lasthop.wait(&["switch[", "add 2 b"]);
    lasthop.wait_ready();
    for name in ["a.sock", "b.sock", "run/api.sock"] {
        assert_eq!(std::fs::metadata(place.path(name)).unwrap().mode() & 0o777, 0o660, "{name}");
    }
    assert_eq!(std::fs::metadata(place.path("run")).unwrap().mode() & 0o777, 0o755);
    let control: i32 = place.ask("pid").parse().unwrap();
    assert_eq!(
        place.ask("arguments"),
        "--supervisor-fd 3 --host-view-fd 4 --api-fd 5 --connections 262144 --pulse-fd 6"
    );
    assert_eq!(place.ask("ports"), "1=a 2=b");

    let log = lasthop.end();
    assert!(log.iter().any(|l| l.contains("switch[") && l.contains("shutdown")), "{log:#?}");
    assert!(log.iter().any(|l| l.contains("control[") && l.contains("shutdown")), "{log:#?}");
    assert!(!exists(switch) && !exists(Pid::from_raw(control).unwrap()));
    for name in ["a.sock", "b.sock", "run/api.sock"] {
        assert!(!place.path(name).exists(), "{name}");
    }
}

fn a_killed_switch_is_replaced() {
    let place = Place::new();
    let mut lasthop = place.start(&["--port", &place.port("a")]);
    let first = lasthop.wait_pid("switch", "journal 1");
    lasthop.wait(&["switch[", "add 1 a"]);
    lasthop.wait(&["control[", "heard the switch"]);
    let mut front_end = connect(&place.path("a.sock"));
    lasthop.wait(&["switch[", "connection 1"]);
    let inode = std::fs::metadata(place.path("a.sock")).unwrap().ino();

    for round in 2..6 {
        let before = Pid::from_raw(place.ask("pid").parse().unwrap()).unwrap();
        let switch = if round == 2 { first } else { lasthop.wait_pid("switch", "connection 1") };
        kill_process(switch, Signal::KILL).unwrap();
        wait_for_end(&mut front_end);
        // The socket never went away, so the front-end need not wait for the new switch.
        front_end = connect(&place.path("a.sock"));
        let next = lasthop.wait_pid("switch", &format!("journal {round}"));
        assert_ne!(next, switch);
        lasthop.wait(&["switch[", "add 1 a"]);
        assert_eq!(Pid::from_raw(place.ask("pid").parse().unwrap()).unwrap(), before, "control goes on");
        assert!(!exists(switch), "no zombie");
        if round == 5 {
            lasthop.wait(&["switch[", "connection 1"]);
        }
    }
    assert_eq!(std::fs::metadata(place.path("a.sock")).unwrap().ino(), inode);
    let log = lasthop.end();
    let joined = log.iter().filter(|l| l.contains("heard the switch")).count();
    assert_eq!(joined, 5, "one new channel for each switch: {log:#?}");
    // Not waited for above: its line may come before or after those of the switch that it has started.
    let restarted =
        |l: &&String| ["lasthop-switch (pid", "signal: 9", "restarting"].iter().all(|word| l.contains(word));
    assert_eq!(log.iter().filter(restarted).count(), 4, "{log:#?}");
}

fn a_killed_control_is_replaced_and_its_clients_wait() {
    let place = Place::new();
    let mut lasthop = place.ready(&["--port", &place.port("a")]);
    lasthop.wait(&["control[", "heard the switch"]);
    let mut front_end = connect(&place.path("a.sock"));
    lasthop.wait(&["switch[", "connection 1"]);
    for _ in 0..5 {
        let control = Pid::from_raw(place.ask("pid").parse().unwrap()).unwrap();
        kill_process(control, Signal::KILL).unwrap();
        // Whoever asks now is answered by the next one, not refused. (The dying one may still have taken the call.)
        lasthop.wait(&["lasthop-control (pid", "signal: 9", "restarting"]);
        let next: i32 = place.ask("pid").parse().unwrap();
        assert_ne!(next, control.as_raw_nonzero().get());
        assert_eq!(place.ask("ports"), "1=a");
        lasthop.wait(&["control[", "heard the switch"]);
        assert!(!exists(control), "no zombie");
    }
    front_end.write_all(b"x").unwrap();
    let log = lasthop.end();
    assert_eq!(log.iter().filter(|l| l.contains("]: journal ")).count(), 1, "the switch was left alone");
}

fn connecting_ports_connect_again_and_again() {
    let place = Place::new();
    let port = format!("{},client", place.port("c"));
    let mut lasthop = place.ready(&["--port", &port]);
    lasthop.wait(&["port c: cannot connect", "No such file"]);
    let listener = UnixListener::bind(place.path("c.sock")).unwrap();
    for _ in 0..8 {
        let (front_end, _) = listener.accept().unwrap();
        lasthop.wait(&["switch[", "connection 1"]);
        drop(front_end);
    }
    let (mut front_end, _) = listener.accept().unwrap();
    let switch = lasthop.wait_pid("switch", "connection 1");
    kill_process(switch, Signal::KILL).unwrap();
    wait_for_end(&mut front_end);
    let (_front_end, _) = listener.accept().unwrap();
    assert_ne!(lasthop.wait_pid("switch", "connection 1"), switch);

    // A front-end that restarts: its socket is gone for a while.
    drop(_front_end);
    drop(listener);
    std::fs::remove_file(place.path("c.sock")).unwrap();
    let listener = UnixListener::bind(place.path("c.sock")).unwrap();
    let _front_end = listener.accept().unwrap();
    lasthop.end();
    assert!(place.path("c.sock").exists(), "it is the front-end's");
}

fn one_front_end_at_a_time_and_nothing_leaks() {
    let place = Place::new();
    let mut lasthop = place.ready(&["--port", &place.port("a")]);
    let path = place.path("a.sock");
    let first = connect(&path);
    lasthop.wait(&["switch[", "connection 1"]);
    let mut second = connect(&path);
    wait_for_end(&mut second);
    lasthop.wait(&["port a: a second front-end refused", &format!("process {}", std::process::id())]);
    lasthop.wait(&["control[", &format!("second: process {} of user ", std::process::id())]);
    // The next one comes before the switch can have noticed that the first is gone.
    drop(first);
    let mut last = connect(&path);
    lasthop.wait(&["switch[", "connection 1"]);
    let before = lasthop.descriptors();
    for _ in 0..200 {
        drop(last);
        last = connect(&path);
        lasthop.wait(&["switch[", "connection 1"]);
    }
    drop(last);
    lasthop.wait(&["switch[", "closed 1"]);
    assert_eq!(place.ask("ports"), "1=a");
    // The supervisor lets go of its copy of a connection a moment after it has handed it over.
    let deadline = Instant::now() + Duration::from_secs(10);
    while lasthop.descriptors() > before {
        assert!(Instant::now() < deadline, "{} descriptors instead of {before}", lasthop.descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = lasthop.end();
    assert!(log.iter().all(|l| !l.contains("ERROR")), "{log:#?}");
}

/// What waits for `ready` would wait for ever. Whoever closed the pipe does not wait.
fn ready_that_cannot_be_written() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut process = place.command(&[]).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > limit {
            process.kill().unwrap();
            process.wait().unwrap();
            panic!("it goes on, and never said ready");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("lasthop: \"ready\" could not be written to standard output: No space left"), "{said}");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut process = place.command(&[]).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    let limit = Instant::now() + LIMIT;
    while !place.path("run/api.sock").exists() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(place.ask("ports"), "");
    kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
    assert!(process.wait().unwrap().success());
}

fn wrong_arguments_are_explained() {
    let place = Place::new();
    let a = place.port("a");
    assert!(place.refused(&["--cpus", "1000"], 2).contains("choose from"));
    assert!(place.refused(&["--cpus", "x"], 2).contains("0,2-3"));
    assert!(place.refused(&["--port", &a, "--port", &a], 2).contains("another name"));
    assert!(place.refused(&["--port", &a, "--port", &a.replace("a=", "b=")], 2).contains("port a"));
    let long = format!("b={}", place.path(&"x".repeat(107)).display());
    assert!(place.refused(&["--port", &long], 2).contains("at most 107 bytes"));
    for wrong in [vec!["--port", "a"], vec!["--port", "a=/x,clint"], vec!["--spin-us", "x"], vec!["--prot", "a=/x"]] {
        let (status, said) = place.run(&wrong);
        assert!(status == 2 && said.contains(wrong[0]), "{said}");
    }
    assert!(!place.path("run").exists(), "nothing was touched");
}

fn what_is_missing_or_taken_is_explained() {
    let place = Place::new();
    std::fs::remove_file(place.path("libexec/lasthop-control")).unwrap();
    assert!(place.refused(&[], 1).contains("lasthop-control is not in"));
    let place = Place::new();
    let b = format!("b={}", place.path("none/b.sock").display());
    assert!(place.refused(&["--port", &b], 1).contains("none/b.sock: no such directory; create it"));
    std::fs::write(place.path("a.sock"), "a file").unwrap();
    let a_here = ["--port", &place.port("a")];
    assert!(place.refused(&a_here, 1).contains("a.sock exists and is not a socket"));
    std::fs::remove_file(place.path("a.sock")).unwrap();
    let other = UnixListener::bind(place.path("a.sock")).unwrap();
    assert!(place.refused(&a_here, 1).contains("a.sock is in use by another process"));
    drop(other);
    assert!(place.path("a.sock").exists(), "not ours to remove, until nobody listens");
    place.ready(&a_here).end();

    std::fs::write(place.path("state/ports.json"), "{ broken").unwrap();
    assert!(place.refused(&a_here, 1).contains("state/ports.json"));
    assert_eq!(std::fs::read_to_string(place.path("state/ports.json")).unwrap(), "{ broken");
    assert!(!place.path("a.sock").exists() && !place.path("run/api.sock").exists());

    std::fs::remove_dir_all(place.path("run")).unwrap();
    std::fs::write(place.path("run"), "").unwrap();
    assert!(place.refused(&[], 1).contains("--run-dir"));
}

fn one_instance_per_directory() {
    let place = Place::new();
    let lasthop = place.ready(&[]);
    let refused = place.refused(&[], 1);
    assert!(refused.contains(&format!("(pid {})", lasthop.process.id())), "{refused}");
    assert_eq!(place.ask("ports"), "", "the first one goes on");
    lasthop.end();
    place.ready(&[]).end();
}

fn a_child_that_cannot_start_ends_the_start() {
    let place = Place::new();
    place.behave("switch fails");
    let (status, said) = place.run(&["--port", &place.port("a")]);
    assert_eq!(status, 1, "{said}");
    assert!(said.lines().last().unwrap().starts_with("lasthop: lasthop-switch (pid "), "{said}");
    assert!(said.contains("exit status: 3, for the 5th time"), "{said}");
    assert_eq!(said.matches("failing as told").count(), 5);
    assert!(!place.path("a.sock").exists());

    // Not a program the kernel can run.
    let place = Place::new();
    std::fs::remove_file(place.path("libexec/lasthop-switch")).unwrap();
    std::fs::write(place.path("libexec/lasthop-switch"), "#!/nonexistent/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path("libexec/lasthop-switch"), mode).unwrap();
    assert!(place.refused(&[], 1).contains("cannot start lasthop-switch"));
}

fn a_child_that_does_not_end_is_killed() {
    let place = Place::new();
    place.behave("switch stays");
    let mut lasthop = place.ready(&["--port", &place.port("a")]);
    let switch = lasthop.wait_pid("switch", "arguments");
    let log = lasthop.end();
    assert!(log.iter().any(|l| l.contains("staying as told")), "{log:#?}");
    assert!(!exists(switch));

    // Impatience helps.
    let mut lasthop = place.ready(&[]);
    kill_process(lasthop.pid(), Signal::TERM).unwrap();
    lasthop.wait(&["staying as told"]);
    kill_process(lasthop.pid(), Signal::INT).unwrap();
    assert!(lasthop.process.wait().unwrap().success());
}

fn a_killed_supervisor_leaves_nothing_in_the_way() {
    let place = Place::new();
    let mut lasthop = place.start(&["--port", &place.port("a")]);
    let switch = lasthop.wait_pid("switch", "arguments");
    lasthop.wait(&["control[", "heard the switch"]);
    let control = Pid::from_raw(place.ask("pid").parse().unwrap()).unwrap();
    lasthop.process.kill().unwrap();
    lasthop.process.wait().unwrap();
    // The log ends when the last of them has closed its standard error.
    lasthop.end_of_log();
    // A process that dies closes its descriptors a moment before it is gone.
    let gone = |pid: Pid| {
        let state = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
        state.is_empty() || state.contains("State:\tZ")
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    for pid in [switch, control] {
        while !gone(pid) {
            assert!(Instant::now() < deadline, "{pid:?} outlives the supervisor");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(place.path("a.sock").exists());
    let lasthop = place.ready(&["--port", &place.port("a")]);
    connect(&place.path("a.sock"));
    lasthop.end();
}

fn hundreds_of_ports_reach_the_children() {
    let place = Place::new();
    let ports: Vec<String> = (1..=300).map(|i| place.port(&format!("port-number-{i}"))).collect();
    let arguments: Vec<&str> = ports.iter().flat_map(|port| ["--port", port.as_str()]).collect();
    // The switch reads nothing for a moment, so its channel fills up.
    place.behave("switch is slow");
    let mut lasthop = place.ready(&arguments);
    lasthop.wait(&["switch[", "add 300 port-number-300"]);
    assert_eq!(place.ask("ports").split(' ').count(), 300);
    let log = lasthop.end();
    assert_eq!(log.iter().filter(|l| l.contains("switch[") && l.contains("]: add ")).count(), 300);
}
