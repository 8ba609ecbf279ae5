//! Each process of a device is killed, or stopped: who has nothing to do with it notices nothing, and its own guests go on, or come back.

use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;

/// With walk and engine, and a table that is too small for what is sent.
const DEVICE: &str = "rules=64,walk=on,dma=on,dma-threshold=0";

/// Devices `nic0` and `nic1` with the ports `a` to `d` each, and a host with `h1` and `h2`.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = scratch();
        let hosts = ["h1", "h2"].map(|name| Port::listen(name, dir.path()));
        let mut arguments = Vec::new();
        for device in ["nic0", "nic1"] {
            arguments.extend(["--device".to_owned(), format!("{device},{DEVICE}")]);
            for name in ["a", "b", "c", "d"] {
                let socket = dir.path().join(format!("{device}.{name}"));
                arguments.extend(["--port".into(), format!("{name}={},device={device}", socket.display())]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self { lasthop: Lasthop::start_with(&hosts, &arguments), dir }
    }

    /// Two guests that lose nothing.
    fn bystanders(&self, sockets: [&str; 2], number: u8) -> Bystanders {
        let [a, b] = sockets.map(|name| self.dir.path().join(name));
        Bystanders::start(&a, &b, [mac(number), mac(number + 1)])
    }

    /// A guest of `nic0`.
    fn guest(&self, name: &str, number: u8) -> Guest {
        let options = Options::net(|net| (net.tx_buffer, net.size) = (70_000, 256));
        Guest::connect(&self.dir.path().join(format!("nic0.{name}")), mac(number), options)
    }

    fn stats(&self) -> Value {
        let out = self.lasthop.try_command(&["device", "stats", "nic0", "--json"]);
        serde_json::from_slice(&out.stdout).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        self.stats()["connected"] == true
    }

    /// The device's `lasthop run`, which has locked its directory.
    fn run(&self) -> Option<u32> {
        let lock = std::fs::read_to_string(self.lasthop.run_dir().join("devices/nic0/lock"));
        lock.ok()?.trim().parse().ok()
    }

    /// One of its processes.
    fn process(&self, name: &str) -> Option<u32> {
        let all = proc::children(self.run()?).into_iter();
        all.filter(|(pid, of)| name.starts_with(of.as_str()) && proc::alive(*pid)).map(|(pid, _)| pid).max()
    }

    /// Sends it this signal, after which another takes its place.
    fn replaced_after(&self, name: &str, signal: Signal) {
        let old = self.process(name).unwrap_or_else(|| panic!("there is a {name}"));
        proc::signal(old, signal);
        wait_for(&format!("another {name}"), PATIENCE, || {
            !proc::alive(old) && self.process(name).is_some_and(|new| new != old)
        });
        wait_for("the device", PATIENCE, || self.is_ready());
    }
}

/// Sends so many of 60 to 60 000 bytes, each from another station, so that most miss the table; all come, in any order.
fn many(from: &mut Guest, to: &mut Guest, next: &mut u32, count: u32) {
    for n in *next..*next + count {
        let station = MacAddr([2, 9, from.mac.0[5], 0, (n >> 8) as u8, n as u8]);
        let frame = lasthop_tests_process::numbered(station, to.mac, n, [60, 1500, 60_000][n as usize % 3]);
        from.send(&frame);
        to.recv("each", |_, frame| number_of(frame) == Some(n));
    }
    *next += count;
}

/// Guests go on while their device has no control, those of the host and of another device as well. What they send to stations that nobody knows waits for the next control.
#[test]
fn a_devices_guests_go_on_without_its_control() {
    let site = Site::new();
    let others = [site.bystanders(["h1.sock", "h2.sock"], 50), site.bystanders(["nic1.a", "nic1.b"], 60)];
    let own = site.bystanders(["nic0.a", "nic0.b"], 70);
    let (mut c, mut d, mut next) = (site.guest("c", 3), site.guest("d", 4), 1000);
    c.greet_when_back(&mut d, 1);
    many(&mut c, &mut d, &mut next, 300);
    let before = site.stats()["table"]["dma"]["copies"].as_u64();
    assert!(before > Some(300), "{}", site.stats());
    let device = site.process("lasthop-device");
    for signal in [Signal::KILL, Signal::STOP, Signal::KILL] {
        site.replaced_after("lasthop-control", signal);
        own.still_exchange();
        others.iter().for_each(Bystanders::still_exchange);
        many(&mut c, &mut d, &mut next, 300);
    }
    let stats = site.stats();
    assert_eq!(stats["table"]["dma"]["state"], "runs");
    assert!(stats["table"]["dma"]["copies"].as_u64() > before.map(|n| n + 900), "the same engine's page: {stats}");
    // The host's own control is not theirs.
    let host = proc::children(site.lasthop.pid()).into_iter().find(|(_, name)| name == "lasthop-control");
    proc::signal(host.expect("it has one").0, Signal::KILL);
    own.still_exchange();
    many(&mut c, &mut d, &mut next, 100);
    assert_eq!(site.process("lasthop-device"), device);
    drop((own, others));
    assert!(site.lasthop.stop(), "all processes end");
}

/// The device's data plane and its supervisor, killed and stopped: its guests connect again, to the same ports with the same settings; nobody else notices.
#[test]
fn a_device_is_replaced_and_nobody_else_notices() {
    let site = Site::new();
    let others = [site.bystanders(["h1.sock", "h2.sock"], 50), site.bystanders(["nic1.a", "nic1.b"], 60)];
    site.lasthop.try_command_of(Some("nic0"), &["port", "set", "c", "--weight", "300"]);
    let mut next = 1000;
    let mut again = |why: &str| {
        wait_for("the device", PATIENCE, || site.is_ready());
        let (mut c, mut d) = (site.guest("c", 3), site.guest("d", 4));
        c.greet_when_back(&mut d, next);
        next += 1;
        many(&mut c, &mut d, &mut next, 200);
        let stats = site.stats();
        assert!(stats["table"]["dma"]["copies"].as_u64() > Some(100), "{why}: its engine copies: {stats}");
        assert!(stats["table"]["walk"]["hits"].is_u64(), "{why}: and it walks: {stats}");
        let shown = site.lasthop.try_command_of(Some("nic0"), &["port", "list"]);
        assert!(String::from_utf8_lossy(&shown.stdout).contains("weight=300"), "{why}: {shown:?}");
        others.iter().for_each(Bystanders::still_exchange);
        (c, d)
    };
    let mut guests = again("at the start");
    for signal in [Signal::KILL, Signal::STOP] {
        site.replaced_after("lasthop-device", signal);
        guests = again("another data plane");
    }
    let run = site.run().expect("it runs");
    let all = proc::tree(run);
    proc::signal(run, Signal::KILL);
    wait_for("its processes to end", PATIENCE, || all.iter().all(|pid| !proc::alive(*pid)));
    drop(guests);
    wait_for("another lasthop run", PATIENCE, || site.run() != Some(run) && site.is_ready());
    drop(again("another supervisor"));
    drop(others);
    assert!(site.lasthop.stop(), "all processes end");
}
