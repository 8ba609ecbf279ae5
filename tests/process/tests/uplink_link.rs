//! Interfaces of uplinks whose cable is pulled, that are set down, or that are not there: seen, said, counted, and back when the
//! interface is.

use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, number_of, numbered, proc, scratch,
    wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;

/// lasthop with guests' ports a, b, c and the uplink `net` on v0, whose other end is v1.
struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
    netns: Netns,
}

impl Site {
    fn new(driver: &str) -> Self {
        Self::with(&[&format!("net=v0,{driver}")], &[])
    }

    fn with(uplinks: &[&str], more: &[&str]) -> Self {
        let netns = Netns::new();
        netns.ip("link add v0 type veth peer name v1");
        netns.ip("link set v1 up");
        let dir = scratch();
        let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        let arguments: Vec<&str> = uplinks.iter().flat_map(|u| ["--uplink", *u]).chain(more.iter().copied()).collect();
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &arguments);
        Self { lasthop, dir, netns }
    }

    fn guest(&self, port: &str, mac: MacAddr) -> Guest {
        Guest::connect(&self.dir.path().join(format!("{port}.sock")), mac, Options::default())
    }

    fn uplink(&self) -> Value {
        uplink(&self.lasthop, "net")
    }

    /// Both lists say that the uplink is in this state.
    fn wait_for(&self, state: &str) {
        wait_for(&format!("the uplink to be {state}"), PATIENCE, || {
            self.uplink()["state"] == state && self.lasthop.port("net")["state"] == state
        });
    }

    fn lines(&self, text: &str) -> usize {
        self.lasthop.log().lines().filter(|line| line.contains(text)).count()
    }

    fn port_down(&self) -> u64 {
        let port = self.lasthop.port("net");
        let drops = port["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == "port_down").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    }
}

fn uplink(lasthop: &Lasthop, name: &str) -> Value {
    let list = lasthop.json(&["uplink", "list"]);
    let all = list["uplinks"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|u| u["name"] == name).unwrap_or_else(|| panic!("no uplink {name} in {list}"))
}

/// One frame each way.
fn crosses(guest: &mut Guest, station: &Station, address: MacAddr, number: u32) {
    wait_for("a frame to cross", PATIENCE, || {
        station.send(&numbered(address, guest.mac, number, 60));
        guest.drain().iter().any(|frame| number_of(frame) == Some(number))
    });
    guest.send(&numbered(guest.mac, address, number + 1, 60));
    station.recv("a guest's frame", |frame| number_of(frame) == Some(number + 1));
}

/// What is sent meanwhile is dropped where one looks for it, `trace` says so, and nothing counts as carried.
fn is_cut_off(site: &Site, guest: &mut Guest, address: MacAddr, state: &str, trouble: &str) {
    site.wait_for(state);
    let shown = site.uplink();
    assert!(shown["last_error"].as_str().is_some_and(|e| e.contains(trouble)), "{shown}");
    let port = site.lasthop.port("net");
    assert!(port["last_error"].as_str().is_some_and(|e| e.contains(trouble)), "{port}");
    let table = site.lasthop.command(&["port", "list"]);
    assert!(table.contains(&format!("net: last trouble: v0 {trouble}")), "{table}");
    let (from, to) = (guest.mac.to_string(), address.to_string());
    let trace = site.lasthop.command(&["trace", "--in-port", "a", "--eth-src", &from, "--eth-dst", &to]);
    assert!(trace.contains(&format!("dropped at net, which is {state} (port_down)")), "{trace}");
    let (carried, dropped) = (shown["to_network"]["packets"].clone(), site.port_down());
    for n in 0..10 {
        guest.send(&numbered(guest.mac, address, 500 + n, 60));
    }
    wait_for("what was sent to be counted as dropped", PATIENCE, || site.port_down() == dropped + 10);
    assert_eq!(site.uplink()["to_network"]["packets"], carried, "counted as carried");
    site.lasthop.check_sums();
}

fn pulled_and_set_down(driver: &str) {
    let site = Site::new(driver);
    site.wait_for("up");
    let (mut guest, station, address) = (site.guest("a", mac(1)), Station::on(&site.netns, "v1"), mac(0x91));
    crosses(&mut guest, &station, address, 1);
    // The cable is pulled.
    site.netns.ip("link set v1 down");
    is_cut_off(&site, &mut guest, address, "no-carrier", "has no carrier");
    assert_eq!(site.uplink()["link"], "no-carrier");
    site.netns.ip("link set v1 up");
    site.wait_for("up");
    let station = Station::on(&site.netns, "v1");
    crosses(&mut guest, &station, address, 11);
    // Somebody sets it down. A process that is started meanwhile leaves it so.
    site.netns.ip("link set v0 down");
    is_cut_off(&site, &mut guest, address, "down", "is set down");
    let old = site.uplink()["pid"].as_u64().unwrap_or(0) as u32;
    proc::signal(old, Signal::KILL);
    wait_for("another process", PATIENCE, || {
        let shown = site.uplink();
        shown["restarts"].as_u64() > Some(0) && shown["pid"].as_u64().is_some_and(|pid| pid != u64::from(old))
    });
    is_cut_off(&site, &mut guest, address, "down", "is set down");
    site.netns.ip("link set v0 up");
    site.wait_for("up");
    crosses(&mut guest, &station, address, 21);
    assert_eq!(site.lines("v0 has no carrier"), 1, "said once\n{}", site.lasthop.log());
    assert_eq!(site.lines("v0 is set down"), 1, "said once\n{}", site.lasthop.log());
    assert_eq!(site.lines("v0 is up again"), 2, "said once\n{}", site.lasthop.log());
}

#[test]
fn a_pulled_cable_and_a_device_set_down_are_seen_af_packet() {
    pulled_and_set_down("af_packet");
}

#[test]
fn a_pulled_cable_and_a_device_set_down_are_seen_af_xdp() {
    pulled_and_set_down("af_xdp");
}

/// A TAP device has no cable, but may be set down, and somebody may say that it has no carrier.
#[test]
fn a_tap_device_set_down_is_seen() {
    let site = Site::with(&["net=lh0,driver=tap"], &[]);
    site.wait_for("up");
    site.netns.ip("link set lh0 down");
    site.wait_for("down");
    site.netns.ip("link set lh0 up");
    site.wait_for("up");
    site.netns.ip("link set lh0 carrier off");
    site.wait_for("no-carrier");
    site.netns.ip("link set lh0 carrier on");
    site.wait_for("up");
    let (mut guest, station) = (site.guest("a", mac(1)), Station::on(&site.netns, "lh0"));
    crosses(&mut guest, &station, mac(0x92), 1);
}

/// Another uplink of the segment takes the place of one whose cable is pulled.
#[test]
fn another_uplink_takes_over_when_the_cable_is_pulled() {
    let netns = Netns::new();
    netns.ip("link add br0 type bridge mcast_snooping 0");
    netns.ip("link set br0 up");
    for end in ["u0", "u1", "s0"] {
        netns.ip(&format!("link add {end} type veth peer name {end}x"));
        netns.ip(&format!("link set {end}x master br0 up"));
        netns.ip(&format!("link set {end} up"));
    }
    let dir = scratch();
    let uplinks = ["--uplink", "net=u0,af_packet", "--uplink", "net2=u1,af_packet"];
    let lasthop = Lasthop::start_in(Some(&netns), &[Port::listen("a", dir.path())], &uplinks);
    let state = |name: &str| uplink(&lasthop, name)["state"].clone();
    wait_for("the second to stand by", PATIENCE, || state("net") == "up" && state("net2") == "blocked");
    let mut guest = Guest::connect(&dir.path().join("a.sock"), mac(1), Options::default());
    let station = Station::on(&netns, "s0");
    crosses(&mut guest, &station, mac(0x93), 1);
    netns.ip("link set u0x down");
    wait_for("the second to take over", PATIENCE, || state("net") == "no-carrier" && state("net2") == "up");
    crosses(&mut guest, &station, mac(0x93), 11);
    netns.ip("link set u0x up");
    wait_for("the first to be back", PATIENCE, || state("net") == "up" && state("net2") == "blocked");
    crosses(&mut guest, &station, mac(0x93), 21);
}

/// Whoever has the other end of a veth pair may pull the cable as often as he likes: guests among themselves lose nothing, the
/// log is not filled, and in the end the uplink is what its interface is.
#[test]
fn a_cable_that_is_pulled_all_the_time_costs_nobody_else_anything() {
    const PULLS: usize = 300;
    let site = Site::new("af_packet");
    site.wait_for("up");
    let path = |name: &str| site.dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("b"), &path("c"), [mac(0xb), mac(0xc)]);
    bystanders.still_exchange();
    let began = std::time::Instant::now();
    site.netns.shell(&format!("for i in $(seq {PULLS}); do ip link set v1 down; ip link set v1 up; done"));
    // Four changes a second are followed, half of them down, and the first at once.
    let most = 2 * began.elapsed().as_secs() as usize + 3;
    bystanders.still_exchange();
    let said = site.lines("v0 has no carrier");
    assert!((1..=most.min(PULLS)).contains(&said), "{said} lines for {PULLS} pulls, at most {most}");
    site.wait_for("up");
    let (mut guest, station) = (site.guest("a", mac(1)), Station::on(&site.netns, "v1"));
    crosses(&mut guest, &station, mac(0x94), 1);
    drop(bystanders);
}

/// An uplink that is remembered does not end the start when its interface is not there yet: it waits, says so, and is used when
/// the interface is.
#[test]
fn a_remembered_uplink_waits_for_its_interface() {
    let site = Site::with(&[], &[]);
    site.lasthop.command(&["uplink", "add", "net", "v0"]);
    site.wait_for("up");
    let Site { lasthop, netns, dir } = site;
    let ports = [Port::listen("a", dir.path())];
    let lasthop = lasthop.start_again(Some(&netns), &ports, &[], || netns.ip("link del v0"));
    wait_for("the uplink to wait", PATIENCE, || {
        let shown = uplink(&lasthop, "net");
        shown["state"] == "waiting" && shown["last_error"].as_str().is_some_and(|e| e.contains("no interface v0"))
    });
    assert_eq!(lasthop.port("net")["state"], "waiting");
    let shown = uplink(&lasthop, "net");
    assert_eq!((&shown["link"], shown["restarts"].as_u64()), (&"missing".into(), Some(0)), "tried in vain: {shown}");
    assert_eq!(lasthop.log().lines().filter(|line| line.contains("no interface v0")).count(), 1, "{}", lasthop.log());
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    wait_for("the uplink to be up", PATIENCE, || uplink(&lasthop, "net")["state"] == "up");
    let mut guest = Guest::connect(&dir.path().join("a.sock"), mac(1), Options::default());
    crosses(&mut guest, &Station::on(&netns, "v1"), mac(0x95), 1);
}
