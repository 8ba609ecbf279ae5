//! The session processes, one for each port: killed, stopped, and turned against the switch. Only their own ports notice.

use lasthop_connection::{Answer, Ask, LONGEST, RingAsk};
use lasthop_ipc::{Channel, ChannelError};
use lasthop_session_ipc::{SessionToSupervisor, SupervisorToSession};
use lasthop_sys::receive_with_fds;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, binary, mac, proc, scratch, wait_for,
};
use lasthop_virtqueue::QueueSetup;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Signal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// lasthop with ports a, b, c and d, and bystanders at c and d.
struct Site {
    // Gone before what they talk through is.
    bystanders: Bystanders,
    lasthop: Lasthop,
    switch: u32,
    dir: tempfile::TempDir,
}

impl Site {
    fn new(arguments: &[&str]) -> Self {
        let dir = scratch();
        let ports = ["a", "b", "c", "d"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_with(&ports, arguments);
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let bystanders = Bystanders::start(&path("c"), &path("d"), [mac(0xc), mac(0xd)]);
        let switch = lasthop.switch();
        Self { bystanders, lasthop, switch, dir }
    }

    fn path(&self, port: &str) -> PathBuf {
        self.dir.path().join(format!("{port}.sock"))
    }

    fn guest(&self, port: &str, n: u8) -> Guest {
        Guest::connect(&self.path(port), mac(n), Options::default())
    }

    /// The session process of a port.
    fn session(&self, port: &str) -> Option<u32> {
        let wanted = format!("--port\0{port}\0");
        let is_it =
            |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains(&wanted));
        proc::children(self.lasthop.pid()).into_iter().map(|(pid, _)| pid).filter(|pid| proc::alive(*pid)).find(is_it)
    }

    /// Nobody else has noticed anything.
    fn unharmed(&self) {
        self.bystanders.still_exchange();
        assert_eq!(self.lasthop.switch(), self.switch, "the switch was restarted");
    }

    fn port(&self) -> serde_json::Value {
        let list = self.lasthop.json(&["port", "list"]);
        list["ports"].as_array().and_then(|ports| ports.iter().find(|p| p["name"] == "a")).cloned().unwrap_or_default()
    }

    fn says(&self, what: &str) {
        wait_for(&format!("port list to say {what}"), PATIENCE, || {
            self.port()["last_error"].as_str().is_some_and(|error| error.contains(what))
        });
    }
}

#[test]
fn a_session_process_that_dies_takes_its_own_port_s_connection_along_and_nothing_else() {
    let site = Site::new(&[]);
    let (mut a, mut b) = (site.guest("a", 1), site.guest("b", 2));
    a.greet(&mut b, 1);
    for round in 1..=3 {
        let before = site.session("a").expect("it runs");
        proc::signal(before, Signal::KILL);
        wait_for("the front-end to see the end", PATIENCE, || a.is_disconnected());
        site.bystanders.still_exchange();
        assert!(!b.is_disconnected());
        a = site.guest("a", 1);
        a.greet_when_back(&mut b, 10 * round);
        assert_ne!(site.session("a"), Some(before));
        site.unharmed();
    }
    site.says("session process has ended");
    let stats = site.lasthop.json(&["stats"]).to_string();
    assert!(stats.contains("session a"), "{stats}");
}

/// With two messages for a connection, and no process.
#[test]
fn front_ends_that_come_and_go_start_no_process() {
    let site = Site::new(&[]);
    let mut b = site.guest("b", 2);
    let before = site.session("a").expect("it runs");
    for round in 0..100 {
        let mut a = site.guest("a", 1);
        if round % 20 == 0 {
            a.greet_when_back(&mut b, 10 * (round + 1));
        }
    }
    assert_eq!(site.session("a"), Some(before));
    site.unharmed();
}

/// Whoever looks at the port is told why no front-end is served there, and what to do.
#[test]
fn a_port_whose_session_process_cannot_be_started_says_so() {
    let programs = scratch();
    for name in ["lasthop-switch", "lasthop-control", "lasthop-uplink", "lasthop-session"] {
        symlink(binary(name), programs.path().join(name)).unwrap();
    }
    let session = programs.path().join("lasthop-session");
    let site = Site::new(&["--libexec", &programs.path().display().to_string()]);
    let note = || site.port()["note"].as_str().unwrap_or_default().to_owned();
    let finding = || -> serde_json::Value {
        let said = site.lasthop.try_command(&["doctor", "--json", "--for", "1", "a"]).stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        let of_it = said["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "no-session-process");
        of_it.unwrap_or_else(|| panic!("{said}")).clone()
    };
    assert_eq!(note(), "");
    std::fs::remove_file(&session).unwrap();
    proc::signal(site.session("a").expect("it runs"), Signal::KILL);
    wait_for("the note", PATIENCE, || note().starts_with("cannot start session a: "));
    assert!(note().contains(session.to_str().unwrap()) && note().contains("install it there again"), "{}", note());
    let found = finding();
    assert_eq!(found["port"], "a", "{found}");
    assert!(found["remedy"].as_str().unwrap().starts_with("install it there again"), "{found}");
    // One that starts, and ends at once.
    symlink("/bin/false", &session).unwrap();
    wait_for("the other note", PATIENCE, || note().contains("again and again"));
    assert!(finding().to_string().contains("ended: exit status: 1"), "{}", finding());
    std::fs::remove_file(&session).unwrap();
    symlink(binary("lasthop-session"), &session).unwrap();
    wait_for("the process", PATIENCE, || site.session("a").is_some() && note().is_empty());
    // Or the program of another directory.
    std::fs::remove_file(&session).unwrap();
    proc::signal(site.session("a").expect("it runs"), Signal::KILL);
    wait_for("the note once more", PATIENCE, || note().contains("install it there again"));
    let others = scratch();
    for name in ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-uplink", "lasthop-session"] {
        std::fs::copy(binary(name), others.path().join(name)).unwrap();
    }
    site.lasthop.command(&["upgrade", "--only", "sessions", "--programs", others.path().to_str().unwrap()]);
    wait_for("the other program", PATIENCE, || site.session("a").is_some() && note().is_empty());
    site.guest("a", 1).greet_when_back(&mut site.guest("b", 2), 1);
    site.unharmed();
}

/// What packets need is in the switch. The process is replaced, and with it the connection.
#[test]
fn a_session_process_that_hangs_is_replaced() {
    let site = Site::new(&["--watchdog", "100"]);
    let (mut a, mut b) = (site.guest("a", 1), site.guest("b", 2));
    a.greet(&mut b, 1);
    let before = site.session("a").expect("it runs");
    proc::signal(before, Signal::STOP);
    b.greet(&mut a, 5);
    wait_for("it to be replaced", PATIENCE, || site.session("a").is_some_and(|now| now != before));
    let mut a = site.guest("a", 1);
    a.greet_when_back(&mut b, 10);
    site.unharmed();
}

/// Where the guest has an IOMMU the process is asked for each page, so one that hangs is found as soon as a switch would be.
#[test]
fn a_session_process_whose_guest_has_an_iommu_is_replaced_sooner() {
    let site = Site::new(&["--watchdog", "400"]);
    // That without is stopped first.
    let _without = site.guest("a", 1);
    let _with = Guest::connect(&site.path("b"), mac(2), Options { iommu: true, ..Options::default() });
    wait_for("addresses to be translated", PATIENCE, || site.lasthop.port("b")["translation"].is_object());
    for port in ["a", "b"] {
        proc::signal(site.session(port).expect("it runs"), Signal::STOP);
    }
    let hangs = |port: &str| site.lasthop.log().find(&format!("session {port} hangs"));
    wait_for("both to be found", PATIENCE, || hangs("a").is_some() && hangs("b").is_some());
    assert!(hangs("b") < hangs("a"), "{}", site.lasthop.log());
    site.unharmed();
}

/// The test in the place of port a's session process.
struct Turned {
    listener: UnixListener,
    dir: tempfile::TempDir,
}

/// One process of it: its channel to the supervisor, and what keeps it alive.
struct Process {
    supervisor: Channel<SessionToSupervisor, SupervisorToSession>,
    _life: UnixStream,
}

/// A connection: the channel to the switch, and the front-end, which is the test's as well.
struct Link {
    switch: Channel<Ask, Answer>,
    _socket: OwnedFd,
    _front: UnixStream,
}

impl Turned {
    fn new() -> Self {
        let dir = scratch();
        for name in ["lasthop-switch", "lasthop-control", "lasthop-uplink"] {
            symlink(binary(name), dir.path().join(name)).unwrap();
        }
        symlink(binary("lasthop-session"), dir.path().join("honest-session")).unwrap();
        symlink(env!("CARGO_BIN_EXE_turned-session"), dir.path().join("lasthop-session")).unwrap();
        let listener = UnixListener::bind(dir.path().join("test.sock")).unwrap();
        Self { listener, dir }
    }

    /// The process that the supervisor starts next, which says that it is ready.
    fn next(&self) -> Process {
        readable(&self.listener);
        let (life, _) = self.listener.accept().unwrap();
        let mut received = Vec::new();
        receive_with_fds(&life, &mut [0], &mut received, RecvFlags::empty()).unwrap();
        let mut supervisor = Channel::new(received.pop().expect("its channel"));
        supervisor.send(&SessionToSupervisor::Ready, None).unwrap();
        Process { supervisor, _life: life }
    }
}

fn readable(fd: impl AsFd) {
    let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)), Ok(1), "waited in vain");
}

fn next<S: serde::Serialize, R: serde::de::DeserializeOwned>(
    channel: &mut Channel<S, R>,
) -> Result<(R, Option<OwnedFd>), ChannelError> {
    loop {
        match channel.recv() {
            Err(ChannelError::WouldBlock) => readable(&*channel),
            other => return other,
        }
    }
}

impl Process {
    /// A front-end comes, and is handed to it.
    fn connect(&mut self, site: &Site) -> Link {
        let front = UnixStream::connect(site.path("a")).unwrap();
        let (first, switch) = next(&mut self.supervisor).unwrap();
        let (second, socket) = next(&mut self.supervisor).unwrap();
        assert_eq!((first, second), (SupervisorToSession::Switch, SupervisorToSession::Connection));
        Link { switch: Channel::within(switch.unwrap(), LONGEST), _socket: socket.unwrap(), _front: front }
    }
}

impl Link {
    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Answer {
        self.switch.send_with(ask, fds).unwrap();
        next(&mut self.switch).unwrap().0
    }

    /// The switch ends the connection.
    fn is_ended(&mut self) {
        while let Ok((answer, _)) = next(&mut self.switch) {
            if matches!(answer, Answer::Ended { .. }) {
                return;
            }
        }
    }
}

/// A session process that was never ours, with everything it could have from its front-end.
#[test]
fn a_turned_session_process_stops_its_own_port_only() {
    let turned = Turned::new();
    let site = Site::new(&["--libexec", &turned.dir.path().display().to_string()]);
    let mut process = turned.next();
    let ram = lasthop_sys::memfd("turned", 1 << 20).unwrap();
    let region = [0, 1 << 20, 0, 0];
    let setup = QueueSetup { size: 256, desc: 0, driver: 0x1000, device: 0x2000, base: 0, features: u64::MAX };
    let table = Ask::Table { regions: vec![region], keep: u64::MAX };

    // It may do with its port what it likes: then the port is what it makes of it.
    let mut link = process.connect(&site);
    assert!(matches!(link.ask(&table, &[ram.as_fd()]), Answer::Memory { .. }));
    for ring in 0..32 {
        // Features that nobody offers, and the layout that goes with them.
        link.ask(&Ask::Ring(ring, RingAsk::Start { setup, enabled: true }), &[]);
        link.ask(&Ask::Ring(ring, RingAsk::Start { setup: QueueSetup { features: 0, ..setup }, enabled: true }), &[]);
        link.ask(&Ask::Ring(ring, RingAsk::Kick), &[]);
    }
    assert!(matches!(link.ask(&Ask::Ring(1, RingAsk::Kick), &[ram.as_fd()]), Answer::Refused(_)));
    // Its rings may break meanwhile, and then that is the last thing that went wrong.
    wait_for("its words to be seen, and harmless", PATIENCE, || {
        link.ask(&Ask::Refused { line: "\x1b[2J\nforged: a line".into(), of_memory: false }, &[]);
        site.port()["last_error"] == "?[2J?forged: a line"
    });
    site.unharmed();
    // The file is cut below its rings.
    rustix::fs::ftruncate(&ram, 0).unwrap();
    link.ask(&Ask::Ring(1, RingAsk::Stop), &[]);
    site.unharmed();
    rustix::fs::ftruncate(&ram, 1 << 20).unwrap();
    drop(link);
    site.says("session process has ended");

    // What it must not do ends its connection, with a reason.
    let many: Vec<_> = (0..9).map(|_| ram.as_fd()).collect();
    let bad: [(&str, Ask, &[BorrowedFd<'_>]); 5] = [
        ("there is no ring 32", Ask::Ring(32, RingAsk::Stop), &[]),
        ("there is no ring 65535", Ask::Ring(u16::MAX, RingAsk::Start { setup, enabled: true }), &[]),
        ("without their descriptors", Ask::Table { regions: vec![region; 9], keep: 0 }, &many),
        ("without its descriptor", Ask::Add { region, keep: 0 }, &[]),
        ("that is not there", Ask::Remove { region, keep: 0 }, &[]),
    ];
    for (why, ask, fds) in bad {
        let mut link = process.connect(&site);
        link.switch.send_with(&ask, fds).unwrap();
        link.is_ended();
        site.says(why);
        site.unharmed();
    }
    let mut link = process.connect(&site);
    rustix::net::send(&link.switch, &[0xff; 40], SendFlags::empty()).unwrap();
    link.is_ended();
    site.says("does not keep to the rules: malformed");

    // It asks and asks, and reads no answer.
    let link = process.connect(&site);
    let asks = lasthop_ipc::Channel::<Ask, Answer>::new;
    let mut switch = asks(link.switch.as_fd().try_clone_to_owned().unwrap());
    loop {
        match switch.send_with(&Ask::Ring(0, RingAsk::IsStarted), &[ram.as_fd()]) {
            Ok(()) => {}
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    site.unharmed();
    drop((link, switch, process));

    // And its successor is ready at once.
    let mut process = turned.next();
    let mut link = process.connect(&site);
    assert!(matches!(link.ask(&table, &[ram.as_fd()]), Answer::Memory { .. }));
    site.unharmed();
}
