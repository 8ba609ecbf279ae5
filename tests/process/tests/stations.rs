//! Where stations live by somebody's word (`lasthop mac`), and cables that are pulled (`port set --link`): packets in, packets out.

use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, numbered, scratch, wait_for};
use lasthop_text::MacAddr;
use std::path::Path;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn connect(lasthop: &Lasthop, dir: &Path) -> [Guest; 3] {
    let mut n = 0;
    let guests = NAMES.map(|name| {
        n += 1;
        Guest::connect(&dir.join(format!("{name}.sock")), mac(n), Options::default())
    });
    NAMES.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    guests
}

fn drops(lasthop: &Lasthop, port: &str, reason: &str) -> u64 {
    let port = lasthop.port(port);
    let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap())
}

/// The first sends a frame to a station; who gets it.
fn reaches([a, b, c]: &mut [Guest; 3], dst: MacAddr, number: u32, expected: [bool; 2]) {
    let frame = numbered(a.mac, dst, number, 60);
    a.send(&frame);
    a.all_taken();
    for (guest, expected) in [b, c].into_iter().zip(expected) {
        if expected {
            guest.expect(&frame);
        }
        assert!(!guest.drain().contains(&frame), "frame {number} to {dst}: {expected}");
    }
}

fn error(lasthop: &Lasthop, words: &[&str]) -> String {
    let output = lasthop.try_command(words);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_static_address_stays_where_it_is_said_to_be() {
    let dir = scratch();
    let ports = NAMES.map(|name| Port::listen(name, dir.path()));
    let mut lasthop = Lasthop::start(&ports);
    let mut guests = connect(&lasthop, dir.path());
    let (silent, text) = (mac(9), mac(9).to_string());
    reaches(&mut guests, silent, 1, [true, true]);
    assert_eq!(lasthop.command(&["mac", "add", &text, "--port", "b"]), format!("{text}: static at b\n"));
    reaches(&mut guests, silent, 2, [true, false]);
    let list = lasthop.command(&["mac", "list"]);
    assert!(list.lines().any(|line| line.contains(&text) && line.ends_with("static")), "{list}");
    assert!(lasthop.command(&["port", "list"]).contains(&format!("b: static-mac={text}")));
    let (src, trace) = (mac(1).to_string(), ["trace", "--in-port", "a", "--eth-src"]);
    let said = lasthop.command(&[&trace[..], &[&src, "--eth-dst", &text]].concat());
    assert!(said.contains(&format!("destination {text} is static at b")), "{said}");
    // Said elsewhere it is forwarded, and lives where it lived.
    let frame = numbered(silent, guests[0].mac, 3, 60);
    guests[2].send(&frame);
    guests[0].expect(&frame);
    reaches(&mut guests, silent, 4, [true, false]);
    assert_eq!(lasthop.port("c")["moves_refused"], 1);
    // Another control, another switch, another lasthop.
    for name in ["lasthop-control", "lasthop-switch"] {
        lasthop.kill(name);
        if name == "lasthop-switch" {
            drop(guests);
            guests = connect(&lasthop, dir.path());
        }
        reaches(&mut guests, silent, 5, [true, false]);
    }
    drop(guests);
    lasthop = lasthop.start_again(None, &ports, &[], || {});
    let mut guests = connect(&lasthop, dir.path());
    reaches(&mut guests, silent, 6, [true, false]);
    assert!(lasthop.command(&["mac", "flush"]).ends_with(" forgotten\n"));
    reaches(&mut guests, silent, 7, [true, false]);
    let said = lasthop.command(&["mac", "del", &text]);
    assert_eq!(said, format!("{text}: forgotten; it was static at b\n"));
    reaches(&mut guests, silent, 8, [true, true]);
    lasthop.check_sums();
}

#[test]
fn learned_addresses_are_forgotten_one_by_one_by_port_and_by_vlan() {
    let dir = scratch();
    let lasthop = Lasthop::start(&NAMES.map(|name| Port::listen(name, dir.path())));
    let mut guests = connect(&lasthop, dir.path());
    let greet = |[a, b, c]: &mut [Guest; 3], number| {
        b.greet(a, number);
        c.drain();
    };
    greet(&mut guests, 1);
    reaches(&mut guests, mac(2), 2, [true, false]);
    let said = lasthop.command(&["mac", "del", &mac(2).to_string()]);
    assert_eq!(said, format!("{}: forgotten; it was learned at b\n", mac(2)));
    reaches(&mut guests, mac(2), 3, [true, true]);
    for (number, flush) in [["--port", "b"], ["--vlan", "0"]].iter().enumerate() {
        greet(&mut guests, 10 * number as u32 + 10);
        reaches(&mut guests, mac(2), 10 * number as u32 + 11, [true, false]);
        let other = if flush[0] == "--port" { ["--port", "c"] } else { ["--vlan", "7"] };
        assert!(lasthop.command(&[&["mac", "flush"], &other[..]].concat()).starts_with("0 addresses"));
        let said = lasthop.command(&[&["mac", "flush"], &flush[..]].concat());
        assert!(!said.starts_with("0 addresses"), "{said}");
        reaches(&mut guests, mac(2), 10 * number as u32 + 12, [true, true]);
    }
}

#[test]
fn what_a_command_takes_from_others_it_says() {
    let dir = scratch();
    let lasthop = Lasthop::start(&NAMES.map(|name| Port::listen(name, dir.path())));
    let mut guests = connect(&lasthop, dir.path());
    let mut speaks = |number| {
        guests[1].send(&numbered(mac(2), MacAddr::BROADCAST, number, 60));
        wait_for("its address", PATIENCE, || lasthop.port("b")["macs"] == 1);
    };
    speaks(1);
    let text = mac(2).to_string();
    let said = lasthop.command(&["mac", "add", &text, "--port", "c"]);
    assert!(
        said.ends_with("static at c; it was learned at b, and what is sent to it no longer goes there\n"),
        "{said}"
    );
    lasthop.command(&["mac", "del", &text]);
    speaks(2);
    let said = lasthop.command(&["mirror", "add", "m", "--from", "a", "--to", "b"]);
    assert!(said.contains("b gets nothing but copies from now on, and its guest is cut off"), "{said}");
    let rules = dir.path().join("rules").display().to_string();
    for (rule, denies) in [("permit tcp to any port 22\n", false), ("deny tcp\npermit ip\n", true)] {
        std::fs::write(&rules, rule).expect("a file");
        let said = lasthop.command(&["acl", "load", &rules, "--port", "a"]);
        assert_eq!(said.contains("nothing is denied"), !denies, "{said}");
    }
    let said = lasthop.command(&["port", "del", "a"]);
    assert!(
        said.contains("its own access lists stay, and hold for the next port a; `lasthop acl clear --port a`"),
        "{said}"
    );
    assert!(said.contains("mirror m: there is no port a yet"), "{said}");
    let said = lasthop.command(&["port", "del", "c"]);
    assert_eq!(said, "port c: removed\n", "nothing names it");
}

#[test]
fn what_makes_no_sense_of_addresses_is_refused() {
    let dir = scratch();
    let lasthop = Lasthop::start(&NAMES.map(|name| Port::listen(name, dir.path())));
    let text = mac(9).to_string();
    lasthop.command(&["mac", "add", &text, "--port", "a"]);
    lasthop.command(&["mac", "add", &text, "--port", "b", "--vlan", "10"]);
    for (words, wrong) in [
        (&["mac", "add", &text, "--port", "c"][..], format!("{text} is static at a already; `lasthop mac del {text}`")),
        (&["mac", "add", &text, "--port", "c", "--vlan", "10"], format!("{text} is static at b in VLAN 10 already")),
        (&["mac", "add", &text, "--port", "a"], format!("static-mac={text}: it is static at this port already")),
        (&["mac", "add", &text, "--port", "d"], "there is no port d; `lasthop port list`".into()),
        (&["mac", "add", "x", "--port", "a"], "write one such as 52:54:00:12:34:56".into()),
        (&["mac", "add", &text, "--port", "a", "--vlan", "5000"], "write one, 1 to 4094".into()),
        (&["mac", "add", "ff:ff:ff:ff:ff:ff", "--port", "a"], "no station's address".into()),
        (&["mac", "del", &text], format!("{text} is known in VLANs 0, 10; say with --vlan which is meant")),
        (&["mac", "del", "52:54:00:00:00:77"], "is not known; `lasthop mac list`".into()),
        (&["mac", "del", "x"], "write one such as 52:54:00:12:34:56".into()),
        (&["mac", "del", &text, "--vlan", "5000"], "write a VLAN id, 1 to 4094, or 0".into()),
        (&["mac", "flush", "--port", "d"], "there is no port named \"d\"".into()),
        (&["port", "set", "a", "--vlan", "7", "--static-mac", &format!("{text}@8")], "does not carry VLAN 8".into()),
        (&["port", "set", "a", "--link", "on"], "write up or down".into()),
    ] {
        let said = error(&lasthop, words);
        assert!(said.contains(&wrong), "{words:?}: {said}");
    }
    let many: Vec<_> = (0..257).map(|n| format!("52:54:00:00:{:02x}:{:02x}", n >> 8, n & 255)).collect();
    let said = error(&lasthop, &["port", "set", "c", "--static-mac", &many.join(",")]);
    assert!(said.contains("more than 256 static addresses"), "{said}");
    lasthop.command(&["port", "set", "c", "--static-mac", &many[..256].join(",")]);
    assert_eq!(lasthop.command(&["mac", "list"]).lines().count(), 1 + 2 + 256);
    lasthop.command(&["mac", "del", &text, "--vlan", "10"]);
    lasthop.command(&["mac", "del", &text]);
}

/// Uplinks have static addresses, and no other setting.
#[test]
fn an_uplink_has_static_addresses() {
    let (dir, netns) = (scratch(), Netns::new());
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    let ports = NAMES.map(|name| Port::listen(name, dir.path()));
    let uplink = ["--uplink", "net=u0,af_packet"];
    let mut lasthop = Lasthop::start_in(Some(&netns), &ports, &uplink);
    lasthop.wait_for_state("net", "up");
    let text = mac(9).to_string();
    lasthop.command(&["mac", "add", &text, "--port", "net"]);
    let mut guests = connect(&lasthop, dir.path());
    reaches(&mut guests, mac(9), 1, [false, false]);
    let refused = error(&lasthop, &["port", "set", "net", "--link", "down"]);
    assert!(refused.contains("net is an uplink"), "{refused}");
    drop(guests);
    lasthop = lasthop.start_again(Some(&netns), &ports, &uplink, || {});
    let mut guests = connect(&lasthop, dir.path());
    reaches(&mut guests, mac(9), 2, [false, false]);
    lasthop.command(&["mac", "del", &text]);
    reaches(&mut guests, mac(9), 3, [true, true]);
    // In a VLAN that the uplink does not carry nobody would find it.
    lasthop.command(&["uplink", "set", "net", "--vlans", "20"]);
    let refused = error(&lasthop, &["mac", "add", &text, "--port", "net", "--vlan", "10"]);
    assert!(refused.contains("net does not carry VLAN 10; `lasthop uplink set net --vlans 20:10`"), "{refused}");
    let refused = error(&lasthop, &["mac", "add", &text, "--port", "net"]);
    assert!(refused.contains("no frames without a tag"), "{refused}");
    lasthop.command(&["mac", "add", &text, "--port", "net", "--vlan", "20"]);
}

#[test]
fn nothing_passes_where_the_cable_is_pulled() {
    let dir = scratch();
    let ports = NAMES.map(|name| Port::listen(name, dir.path()));
    let mut lasthop = Lasthop::start(&ports);
    let mut guests = connect(&lasthop, dir.path());
    let [a, b, c] = &mut guests;
    b.greet(a, 1);
    c.drain();
    reaches(&mut guests, mac(2), 2, [true, false]);
    // `known`: where the second guest lives. A control that finds no flow from there has forgotten it.
    let pull = |lasthop: &Lasthop, guests: &mut [Guest; 3], number, known: bool| {
        let mut wanted = ["a", "b"].map(|port| drops(lasthop, port, "port_down"));
        reaches(guests, mac(2), number, [false, !known]);
        reaches(guests, MacAddr::BROADCAST, number + 1, [false, true]);
        let [a, b, _] = guests;
        b.send(&numbered(mac(2), mac(1), number + 2, 60));
        b.all_taken();
        assert!(a.drain().is_empty(), "from where the cable is pulled");
        let now = || ["a", "b"].map(|port| drops(lasthop, port, "port_down"));
        (wanted[0], wanted[1]) = (wanted[0] + u64::from(known), wanted[1] + 1);
        wait_for("the drops to be counted", PATIENCE, || now() == wanted);
    };
    assert_eq!(lasthop.command(&["port", "set", "b", "--link", "down"]), "port b: link=down\n");
    pull(&lasthop, &mut guests, 10, true);
    let (src, dst) = (mac(1).to_string(), mac(2).to_string());
    let trace = |lasthop: &Lasthop, port: &str, src: &str, dst: &str| {
        lasthop.command(&["trace", "--in-port", port, "--eth-src", src, "--eth-dst", dst])
    };
    let said = trace(&lasthop, "b", &dst, &src);
    assert!(said.contains("settings of b: link=down: nothing passes there: dropped"), "{said}");
    // Another control knows it from the start, and another lasthop remembers it.
    lasthop.kill("lasthop-control");
    pull(&lasthop, &mut guests, 20, false);
    drop(guests);
    lasthop = lasthop.start_again(None, &ports, &[], || {});
    let mut guests = connect(&lasthop, dir.path());
    let [_, b, _] = &mut guests;
    b.send(&numbered(mac(2), MacAddr::BROADCAST, 30, 60));
    b.all_taken();
    reaches(&mut guests, MacAddr::BROADCAST, 31, [false, true]);
    assert_eq!(lasthop.command(&["port", "set", "b", "--link", "up"]), "port b: told nothing\n");
    let [a, b, _] = &mut guests;
    b.greet(a, 32);
    reaches(&mut guests, mac(2), 33, [true, false]);
    lasthop.check_sums();
}
