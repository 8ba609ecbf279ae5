//! What ports are told to do (`lasthop port set`): packets in, packets out, while the switch lives and after parts of it have died.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, connect, mac, number_of, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use lasthop_vhostuser::{Features, ProtocolFeatures};
use std::path::Path;

/// A frame with a tag of this VLAN in front of what it was; 0: as it was.
fn tagged(vlan: u16, frame: &[u8]) -> Vec<u8> {
    let tag = [[0x81, 0x00], vlan.to_be_bytes()].concat();
    [&frame[..12], if vlan == 0 { &[] } else { &tag[..] }, &frame[12..]].concat()
}

/// VLAN and number of a numbered frame.
fn read(frame: &[u8]) -> Option<(u16, u32)> {
    match frame.get(12..16)? {
        [0x81, 0, high, low] => {
            let inner = [&frame[..12], &frame[16..]].concat();
            Some((u16::from_be_bytes([high & 0x0f, *low]), number_of(&inner)?))
        }
        _ => Some((0, number_of(frame)?)),
    }
}

fn drops(lasthop: &Lasthop, port: &str, reason: &str) -> u64 {
    let port = lasthop.port(port);
    let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap())
}

/// Guests, one for each port, and the number of the next frame.
struct Site {
    guests: Vec<Guest>,
    next: u32,
}

impl Site {
    fn connect(lasthop: &Lasthop, dir: &Path, names: &[&str]) -> Self {
        let guest = |(n, name): (usize, &&str)| {
            Guest::connect(&dir.join(format!("{name}.sock")), mac(n as u8 + 1), Options::default())
        };
        let guests = names.iter().enumerate().map(guest).collect();
        names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        Self { guests, next: 0 }
    }

    /// One guest sends a frame to everybody, with this tag; who gets it, with what tag. All whose tag is `None` must have heard a frame
    /// that comes behind it, which `witness` (a guest, and the tag it needs) sends to them.
    fn broadcast(&mut self, from: usize, vlan: u16, expected: &[Option<u16>]) {
        self.next += 1;
        let number = self.next;
        let frame = numbered(self.guests[from].mac, MacAddr::BROADCAST, number, 60);
        self.guests[from].send(&tagged(vlan, &frame));
        for (n, expected) in expected.iter().enumerate() {
            if let Some(vlan) = expected {
                self.guests[n].recv("a frame of its VLAN", |_, f| {
                    let read = read(f).filter(|(_, n)| *n == number);
                    assert!(read.is_none_or(|(tag, _)| tag == *vlan), "guest {n}: {read:?}, not {vlan}");
                    read.is_some()
                });
            }
        }
        // A burst is delivered whole before its frames go back to the sender.
        self.guests[from].all_taken();
        for (n, expected) in expected.iter().enumerate() {
            let got = self.guests[n].drain();
            let again = got.iter().filter_map(|f| read(f)).any(|(_, n)| n == number);
            assert!(!again, "guest {n} heard frame {number} of VLAN {vlan}; expected {expected:?}");
        }
    }
}

/// Ports of two tenants, a trunk with a native VLAN, a port that nobody has told anything, and a port beyond a tagged uplink.
fn tenants(site: &mut Site) {
    let out = None;
    let (a, _b, c, trunk, plain, far) = (0, 1, 2, 3, 4, 5);
    //                           a        b        c        trunk     plain     far
    site.broadcast(a, 0, &[out, Some(0), out, Some(10), Some(10), Some(10)]);
    site.broadcast(c, 0, &[out, out, out, Some(0), Some(20), Some(20)]);
    site.broadcast(trunk, 10, &[Some(0), Some(0), out, out, Some(10), Some(10)]);
    site.broadcast(trunk, 0, &[out, out, Some(0), out, Some(20), Some(20)]);
    site.broadcast(trunk, 30, &[out; 6]);
    site.broadcast(plain, 10, &[Some(0), Some(0), out, Some(10), out, Some(10)]);
    site.broadcast(plain, 0, &[out, out, out, out, out, Some(0)]);
    site.broadcast(far, 20, &[out, out, Some(0), Some(0), Some(20), out]);
    site.broadcast(far, 10, &[Some(0), Some(0), out, Some(10), Some(10), out]);
    // An access port takes no tags, not even its own VLAN's.
    site.broadcast(a, 10, &[out; 6]);
}

const SETTINGS: [&[&str]; 4] =
    [&["a", "--vlan", "10"], &["b", "--vlan", "10"], &["c", "--vlan", "20"], &["t", "--trunk", "10", "--native", "20"]];

#[test]
fn vlans_keep_tenants_apart_and_survive_restarts() {
    let dir = scratch();
    let netns = Netns::new();
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    let names = ["a", "b", "c", "t", "p", "far"];
    let ports = names.map(|name| Port::listen(name, dir.path()));
    let outside = Lasthop::start_in(Some(&netns), &ports[5..], &["--uplink", "net=s0,af_packet"]);
    let uplink = ["--uplink", "net=u0,af_packet"];
    let mut lasthop = Lasthop::start_in(Some(&netns), &ports[..5], &uplink);
    let set = |lasthop: &Lasthop| {
        SETTINGS.iter().for_each(|words| drop(lasthop.command(&[&["port", "set"], *words].concat())));
    };
    set(&lasthop);
    let up = |lasthop: &Lasthop| {
        lasthop.wait_for_state("net", "up");
        outside.wait_for_state("net", "up");
        outside.wait_for_state("far", "up");
    };
    let connect = |lasthop: &Lasthop| {
        let mut site = Site::connect(lasthop, dir.path(), &names[..5]);
        site.guests.push(Guest::connect(&dir.path().join("far.sock"), mac(6), Options::default()));
        up(lasthop);
        site
    };
    let mut site = connect(&lasthop);
    tenants(&mut site);
    assert!(drops(&lasthop, "a", "vlan") >= 1);
    let list = lasthop.command(&["port", "list"]);
    assert!(list.contains("t: trunk=10 native=20\n"), "{list}");
    let flows = lasthop.command(&["flow", "list"]);
    assert!(flows.contains("push_vlan(10)") && flows.contains("pop_vlan"), "{flows}");
    // Another control knows it from the start.
    let control = lasthop.control();
    lasthop.kill("lasthop-control");
    wait_for("another control", PATIENCE, || lasthop.control() != control);
    tenants(&mut site);
    // And another lasthop remembers it, of ports of the command line too.
    drop(site);
    lasthop = lasthop.start_again(Some(&netns), &ports[..5], &uplink, || {});
    let mut site = connect(&lasthop);
    tenants(&mut site);
    // A port goes to another tenant while it lives.
    lasthop.command(&["port", "set", "b", "--vlan", "20"]);
    let out = None;
    site.broadcast(0, 0, &[out, out, out, Some(10), Some(10), Some(10)]);
    site.broadcast(2, 0, &[out, Some(0), out, Some(0), Some(20), Some(20)]);
    lasthop.check_sums();
}

#[test]
fn isolated_ports_talk_to_uplinks_only() {
    let dir = scratch();
    let netns = Netns::new();
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    let ports = ["a", "b", "c", "far"].map(|name| Port::listen(name, dir.path()));
    let outside = Lasthop::start_in(Some(&netns), &ports[3..], &["--uplink", "net=s0,af_packet"]);
    let lasthop = Lasthop::start_in(Some(&netns), &ports[..3], &["--uplink", "net=u0,af_packet"]);
    lasthop.command(&["port", "set", "a", "--isolated"]);
    let mut site = Site::connect(&lasthop, dir.path(), &["a", "b", "c"]);
    site.guests.push(Guest::connect(&dir.path().join("far.sock"), mac(4), Options::default()));
    [&lasthop, &outside].into_iter().for_each(|lasthop| lasthop.wait_for_state("net", "up"));
    outside.wait_for_state("far", "up");
    let out = None;
    site.broadcast(0, 0, &[out, out, out, Some(0)]);
    site.broadcast(1, 0, &[out, out, Some(0), Some(0)]);
    site.broadcast(3, 0, &[Some(0), Some(0), Some(0), out]);
    // Known destinations make no difference.
    let known = numbered(mac(1), mac(2), 999, 60);
    site.guests[0].send(&known);
    wait_for("it to be counted", PATIENCE, || drops(&lasthop, "a", "isolated") == 1);
    let said = lasthop.command(&[
        "trace",
        "--in-port",
        "a",
        "--eth-src",
        &mac(1).to_string(),
        "--eth-dst",
        &mac(2).to_string(),
    ]);
    assert!(said.contains("a is isolated: it talks to uplinks only"), "{said}");
    lasthop.command(&["port", "set", "a", "--isolated", "off"]);
    site.broadcast(0, 0, &[out, Some(0), Some(0), Some(0)]);
}

#[test]
fn a_port_made_with_settings_never_goes_without() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("b", dir.path())]);
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut b = Guest::connect(&socket("b"), mac(2), Options::default());
    lasthop.wait_for_state("b", "up");
    for n in 0..20 {
        let path = socket("a").display().to_string();
        lasthop.command(&["port", "add", "a", &path, "--mac", &mac(1).to_string()]);
        let mut a = Guest::connect(&socket("a"), mac(9), Options::default());
        // As early as it can, from an address that is not its own.
        a.send(&numbered(mac(9), MacAddr::BROADCAST, 1000 + n, 60));
        a.all_taken();
        lasthop.wait_for_state("a", "up");
        a.send(&numbered(mac(1), MacAddr::BROADCAST, n + 1, 60));
        let mut heard = Vec::new();
        b.recv("the frame of its own", |_, f| {
            heard.extend(number_of(f));
            number_of(f) == Some(n + 1)
        });
        assert!(heard.iter().all(|n| *n < 1000), "{heard:?}");
        assert_eq!(drops(&lasthop, "a", "spoofed"), 1);
        lasthop.command(&["port", "del", "a"]);
    }
}

/// It owes half a minute of its rate, and the switch has asked it not to kick.
#[test]
fn a_guest_that_is_held_by_its_rate_goes_on_when_that_is_lifted() {
    [&[][..], &["--poll", "0"]].into_iter().for_each(goes_on_when_its_rate_is_lifted);
}

fn goes_on_when_its_rate_is_lifted(arguments: &[&str]) {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&["a", "b"].map(|name| Port::listen(name, dir.path())), arguments);
    let guest = |(name, n)| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::offloading());
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(guest);
    ["a", "b"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    for (n, lifted) in [(1, "none"), (3, "1G")] {
        lasthop.command(&["port", "set", "a", "--rate-from", "13k:1"]);
        a.send(&numbered(a.mac, MacAddr::BROADCAST, n, 60_000));
        b.recv("what is begun", |_, f| number_of(f) == Some(n));
        a.send(&numbered(a.mac, MacAddr::BROADCAST, n + 1, 60));
        wait_for("it to be held", PATIENCE, || {
            let said = " by rate-from: its guest sends more than that\n";
            lasthop.port("a")["from_guest"]["held"].as_u64() >= Some(1)
                && lasthop.command(&["port", "list"]).contains(said)
        });
        lasthop.command(&["port", "set", "a", "--rate-from", lifted]);
        b.recv("the frame that was held", |_, f| number_of(f) == Some(n + 1));
    }
}

#[test]
fn what_is_wrong_with_settings_is_said_and_nothing_changes() {
    let dir = scratch();
    let netns = Netns::new();
    netns.ip("link add u0 type veth peer name s0");
    let lasthop = Lasthop::start_in(Some(&netns), &[Port::listen("a", dir.path())], &["--uplink", "net=u0,af_packet"]);
    lasthop.command(&["port", "set", "a", "--vlan", "10"]);
    for (words, part) in [
        (&["a", "--vlan", "5000"][..], "1 to 4094"),
        (&["a", "--trunk", "20", "--vlan", "10"], "an access port (vlan) or a trunk"),
        (&["a", "--addr", "10.0.0.1"], "say with mac"),
        (&["a", "--mac", "ff:ff:ff:ff:ff:ff"], "no station's address"),
        (&["a", "--isolated=maybe"], "write on or off"),
        (&["nobody", "--vlan", "10"], "there is no port nobody"),
        (&["net", "--vlan", "10"], "net is an uplink"),
        (&["a", "--rate-from", "100"], "did you mean 100M?"),
        (&["a"], "nothing to set"),
    ] {
        let out = lasthop.try_command(&[&["port", "set"], words].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(part), "{words:?}: {said}");
    }
    assert_eq!(lasthop.port("a")["settings"], serde_json::json!([{"name": "vlan", "value": "10"}]));
}

/// What `lasthop port set` has to say beside what the port is told now.
fn set(lasthop: &Lasthop, words: &[&str]) -> String {
    let out = lasthop.try_command(&[&["port", "set"], words].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{words:?}: {said}");
    said
}

fn is_said(said: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(said.contains(part), "{part:?}? {said:?}"));
}

/// By the list, for people and programs, and on the port's own screen.
fn is_shown(lasthop: &Lasthop, port: &str, parts: &[&str]) {
    let list = lasthop.command(&["port", "list"]);
    let line = list.lines().find(|line| line.starts_with(&format!("{port}: ")) && line.contains(parts[0]));
    is_said(line.unwrap_or_else(|| panic!("no line: {list}")), parts);
    let notes = lasthop.json(&["port", "list"])["no_effect"].clone();
    let notes = notes.as_array().expect("a list");
    assert!(
        notes
            .iter()
            .any(|note| note["port"] == port && note["what"].as_str().is_some_and(|what| what.contains(parts[0]))),
        "{notes:?}"
    );
    is_said(&lasthop.command(&["show", port]), parts);
}

/// By `lasthop doctor`, whose look takes a second.
fn is_found(lasthop: &Lasthop, port: &str, kind: &str) {
    let out = lasthop.try_command(&["doctor", port, "--for", "1"]);
    is_said(&String::from_utf8_lossy(&out.stdout), &[kind]);
}

fn is_silent(lasthop: &Lasthop) {
    assert_eq!(lasthop.json(&["port", "list"])["no_effect"], serde_json::json!([]));
}

/// Two guests that are connected.
fn pair(arguments: &[&str]) -> (Lasthop, [Guest; 2], tempfile::TempDir) {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, arguments);
    let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default());
    let guests = [guest(0), guest(1)];
    ["a", "b"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    (lasthop, guests, dir)
}

/// A core that polls needs no kicks: who sets how many are gathered hears that, and so does whoever looks. Interrupts it holds back.
#[test]
fn transmit_batching_of_a_port_that_is_polled_is_said_to_do_nothing() {
    let (lasthop, _guests, _dir) = pair(&["--poll", "0"]);
    let unknown = lasthop.port("a")["vm"].is_null();
    if !unknown {
        is_said(&lasthop.command(&["show", "a"]), &["poll-0 polls them, interrupts for 125 us or 64 packets\n"]);
        is_silent(&lasthop);
        assert_eq!(set(&lasthop, &["a", "--rx-batch", "250,32"]), "");
        is_said(&lasthop.command(&["show", "a"]), &["poll-0 polls them, interrupts for 250 us or 32 packets\n"]);
    }
    let transmit = ["tx-batch does nothing now: poll-0 polls its rings", "need not kick"];
    is_said(&set(&lasthop, &["a", "--tx-batch", "250,32"]), &transmit);
    is_shown(&lasthop, "a", &transmit);
    is_found(&lasthop, "a", "(no-effect)");
    assert_eq!(set(&lasthop, &["a", "--isolated"]), "", "what was set before is not said again");
    if unknown {
        println!("not known here which VMs run: not tested any further");
        return;
    }
    // With a thread of its own it has both.
    lasthop.command(&["engine", "move", "a", "ports"]);
    lasthop.wait_for_state("a", "up");
    wait_for("the VM to be seen by the next switch", PATIENCE, || !lasthop.port("a")["vm"].is_null());
    is_silent(&lasthop);
    is_said(
        &lasthop.command(&["show", "a"]),
        &["kicks gathered for 250 us or 32 packets, interrupts for 250 us or 32 packets\n"],
    );
    // And not on the core again, which is what this sets.
    is_said(&set(&lasthop, &["a", "--engine", "none"]), &[transmit[0]]);
    set(&lasthop, &["a", "--rx-batch", "off", "--tx-batch", "none"]);
    is_silent(&lasthop);
}

#[test]
fn interrupts_that_cannot_be_held_back_are_said_to_come_at_once() {
    let (lasthop, _guests, _dir) = pair(&["--no-bpf"]);
    is_said(&lasthop.command(&["show", "a"]), &["interrupts are not held back: it is not known when its VM runs"]);
    let unknown = ["rx-batch does nothing now: it is not known when its VM runs", "interrupted whenever it wants"];
    is_said(&set(&lasthop, &["a", "--rx-batch", "250,32"]), &unknown);
    is_shown(&lasthop, "a", &unknown);
    is_found(&lasthop, "a", "(no-effect)");
    assert_eq!(set(&lasthop, &["b", "--tx-batch", "250,32"]), "", "that needs to know nothing");
}

/// A share is one of something that several want: with threads of their own ports have no other in common than slow receivers.
#[test]
fn a_share_that_nobody_else_has_a_part_of_is_said_to_count_only_at_slow_receivers() {
    let slow = "its share counts only where a receiver or an uplink takes less than several send";
    for (arguments, why) in [
        (&["--helpers", "none"][..], ": it has a thread of its own"),
        (&[], ", or one helper has several ports' rings"),
    ] {
        let (lasthop, _guests, _dir) = pair(arguments);
        is_said(&set(&lasthop, &["a", "--weight", "300"]), &[slow, why]);
        is_said(&set(&lasthop, &["b", "--priority", "1"]), &[slow, why]);
        is_shown(&lasthop, "a", &[slow, why]);
        let list = lasthop.command(&["port", "list"]);
        assert!(list.contains("b: weight 4500 of 4800 of all guests, where they share\n"), "{list}");
    }
    let (lasthop, _guests, _dir) = pair(&["--poll", "0"]);
    assert_eq!(set(&lasthop, &["a", "--weight", "300"]), "");
    is_silent(&lasthop);
}

/// A port's rings are no longer than it is told: who wants longer ones hears why, and so does whoever looks at the port.
#[test]
fn rings_are_no_longer_than_the_port_is_told() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &[]);
    let sized = |size| Options::net(|n| n.size = size);
    let mut b = Guest::connect(&ports[1].socket, mac(2), sized(512));
    lasthop.wait_for_state("b", "up");
    lasthop.command(&["port", "set", "a", "--max-ring", "256"]);
    // One that is there already keeps longer ones, until it connects again: that is said.
    let locked_out =
        ["rings of 512 entries, more than max-ring=64", "refused when it sets them up again", "no shorter than 256"];
    is_said(&set(&lasthop, &["b", "--max-ring", "64"]), &locked_out);
    is_shown(&lasthop, "b", &locked_out);
    is_found(&lasthop, "b", "(max-ring)");
    is_said(&set(&lasthop, &["b", "--max-ring", "256"]), &["rx_queue_size=256,tx_queue_size=256"]);
    assert_eq!(set(&lasthop, &["b", "--max-ring", "512"]), "");
    set(&lasthop, &["b", "--max-ring", "64"]);
    // The second is there already, and keeps its rings. A front-end that comes with longer ones is refused.
    let wants = |size: u32| {
        let mut front = connect(&ports[0].socket);
        front.set_owner().unwrap();
        let protocol = front.protocol_features().unwrap();
        front.set_protocol_features(protocol & ProtocolFeatures::REPLY_ACK).unwrap();
        front.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES).unwrap();
        front.set_size(0, size).is_ok()
    };
    assert!(!wants(512));
    let error = lasthop.port("a")["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("512 entries") && error.contains("256 (max-ring)"), "{error}");
    let mut a = Guest::connect(&ports[0].socket, mac(1), sized(256));
    a.greet(&mut b, 1);
    assert_eq!(lasthop.port("a")["settings"][0]["name"], "max-ring");
    drop(a);
    // It goes when it is taken back, and not before.
    assert!(!wants(512));
    lasthop.command(&["port", "set", "a", "--max-ring", "none"]);
    let mut a = Guest::connect(&ports[0].socket, mac(1), sized(1024));
    a.greet(&mut b, 2);
    lasthop.check_sums();
}
