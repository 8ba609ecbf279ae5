//! The declarative file: a running lasthop becomes what it says (`lasthop apply`), and one begins with it (`lasthop run --config`).

use lasthop_tests_process::{Guest, Lasthop, Options, Port, mac, number_of, numbered, scratch};
use lasthop_text::MacAddr;
use std::path::Path;

fn file(dir: &Path, text: &str) -> String {
    let path = dir.join("lasthop.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn port(dir: &Path, name: &str, more: &str) -> String {
    format!("[port.{name}]\nsocket = \"{}/{name}.sock\"\n{more}\n", dir.display())
}

/// What `apply` says, line by line.
fn apply(lasthop: &Lasthop, arguments: &[&str]) -> Vec<String> {
    let text = lasthop.command(&[&["apply"], arguments].concat());
    text.lines().map(str::to_owned).collect()
}

fn connect(lasthop: &Lasthop, dir: &Path, names: &[&str]) -> Vec<Guest> {
    let guest = |(n, name): (usize, &&str)| {
        Guest::connect(&dir.join(format!("{name}.sock")), mac(n as u8 + 1), Options::default())
    };
    let guests = names.iter().enumerate().map(guest).collect();
    names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    guests
}

/// The number of a numbered frame, with a tag or without.
fn number(frame: &[u8]) -> Option<u32> {
    if frame.get(12..14)? != [0x81, 0] {
        return number_of(frame);
    }
    number_of(&[&frame[..12], &frame[16..]].concat())
}

/// Which of the guests hear a broadcast of the first: all of it is delivered before the frame goes back.
fn hear(guests: &mut [Guest], number: u32) -> Vec<bool> {
    let frame = numbered(guests[0].mac, MacAddr::BROADCAST, number, 60);
    guests[0].send(&frame);
    guests[0].all_taken();
    // The first packet of a flow waits for control: the frame that everybody hears is behind it.
    let last = guests.len() - 1;
    guests[last].recv("the broadcast", |_, f| self::number(f) == Some(number));
    guests[1..].iter_mut().map(|guest| guest.drain().iter().any(|f| self::number(f) == Some(number))).collect()
}

#[test]
fn a_running_lasthop_becomes_what_the_file_says_and_then_nothing_changes() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("other", dir.path())]);
    let text =
        [port(dir.path(), "a", "vlan = 10"), port(dir.path(), "b", "vlan = 20"), port(dir.path(), "c", "")].concat();
    let path = file(dir.path(), &format!("{text}[guests]\nrules = \"deny from-guest udp to any port 53\"\n"));

    let before = lasthop.json(&["port", "list"]);
    let dry = apply(&lasthop, &[&path, "--dry-run"]);
    assert_eq!(dry.len(), 6, "{dry:?}");
    assert_eq!(
        before["ports"].as_array().map(Vec::len),
        lasthop.json(&["port", "list"])["ports"].as_array().map(Vec::len)
    );

    let made = apply(&lasthop, &[&path]);
    assert_eq!(made[..4], dry[..4]);
    assert_eq!(made[4..], ["left alone, as the file does not name it (--prune removes it): port other", "done"]);
    assert_eq!(apply(&lasthop, &[&path]).last().map(String::as_str), Some("nothing to change"));

    // The third guest, which nobody has told anything, hears all VLANs; the second does not hear the first's.
    let mut guests = connect(&lasthop, dir.path(), &["a", "b", "c"]);
    assert!(!hear(&mut guests, 1)[0], "another VLAN's frame");
    let switch = lasthop.switch();

    // The same VLAN: changed under a connection that goes on.
    let path = file(dir.path(), &text.replace("vlan = 20", "vlan = 10"));
    let changed = apply(&lasthop, &[&path, "--prune"]);
    assert_eq!(changed, ["- port other", "~ port b: vlan 20 -> 10", "- access lists of guests", "done"]);
    let frame = numbered(guests[0].mac, MacAddr::BROADCAST, 2, 60);
    guests[0].send(&frame);
    guests[1].recv("a frame of its VLAN", |_, f| number(f) == Some(2));
    assert_eq!(lasthop.switch(), switch);
    assert!(lasthop.json(&["acl", "show"])["rules"].as_array().unwrap().is_empty());
    let names: Vec<_> =
        lasthop.json(&["port", "list"])["ports"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn sets_of_addresses_are_what_the_file_says() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    let text = |addr: &str| format!("[set.web]\naddr = [{addr}]\n[guests]\nrules = \"deny from-guest ip from @web\"\n");
    let path = file(dir.path(), &text("\"10.0.0.1\", \"fd00::/64\""));
    let made = ["+ set web: 2 joined, 0 left", "~ access lists of guests: 1 rule", "done"];
    assert_eq!(apply(&lasthop, &[&path]), made);
    assert_eq!(lasthop.command(&["set", "list", "web"]), "10.0.0.1\nfd00::/64\n");
    assert_eq!(apply(&lasthop, &[&path]), ["nothing to change"]);
    file(dir.path(), &text("\"10.0.0.2\", \"fd00::/64\""));
    assert_eq!(apply(&lasthop, &[&path]), ["~ set web: 1 joined, 1 left", "done"]);
    assert_eq!(lasthop.command(&["set", "list", "web"]), "10.0.0.2\nfd00::/64\n");
    file(dir.path(), "[guests]\nrules = \"deny from-guest arp\"\n");
    let left = apply(&lasthop, &[&path]);
    assert!(left.iter().any(|line| line.ends_with("set web")), "{left:?}");
    assert_eq!(apply(&lasthop, &[&path, "--prune"]), ["- set web", "done"]);
    file(dir.path(), "[set.web]\naddr = [\"10.0.0.1/33\"]\n");
    assert!(!lasthop.try_command(&["apply", &path]).status.success());
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_says_where_it_is() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    let path = file(dir.path(), &[port(dir.path(), "a", ""), port(dir.path(), "b", "vlan = 5000")].concat());
    let output = lasthop.try_command(&["apply", &path]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("[port.b] vlan=5000"), "{error}");
    assert!(lasthop.json(&["port", "list"])["ports"].as_array().unwrap().is_empty());
}

#[test]
fn a_lasthop_that_begins_with_a_file_has_all_of_it_from_the_first_frame_on() {
    let dir = scratch();
    let rules = "rules = \"default from-guest deny\"";
    let text = [port(dir.path(), "a", rules), port(dir.path(), "b", "vlan = 10"), port(dir.path(), "c", "")].concat();
    let path = file(dir.path(), &text);
    let lasthop = Lasthop::start_with(&[], &["--config", &path]);
    assert_eq!(apply(&lasthop, &[&path]), ["nothing to change"]);
    let mut guests = connect(&lasthop, dir.path(), &["b", "a", "c"]);
    // The second, whose list denies all, teaches nothing and reaches nobody.
    let denied = numbered(guests[1].mac, MacAddr::BROADCAST, 7, 60);
    guests[1].send(&denied);
    lasthop_tests_process::wait_for("its frame to be denied", lasthop_tests_process::PATIENCE, || {
        let drops = lasthop.port("a")["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().any(|d| d["reason"] == "acl" && d["packets"] == 1)
    });
    assert!(hear(&mut guests, 8).len() == 2);
    assert!(guests.iter_mut().all(|guest| guest.drain().iter().all(|f| number(f) != Some(7))));
}

/// A device that was not there yet cost a host the access lists that it had kept.
#[test]
fn a_start_that_fails_keeps_what_is_remembered() {
    let dir = scratch();
    let (run, state) = (dir.path().join("run"), dir.path().join("state"));
    std::fs::create_dir_all(&state).unwrap();
    let kept = [
        (
            "acl.rules",
            "# lasthop access lists, format 2. `lasthop acl load` writes this file.\nlist from-guest permit guests\ndeny udp from any port 67\nend 2\n",
        ),
        ("ports.json", "{\"version\": 1, \"ports\": []}\n"),
    ];
    kept.iter().for_each(|(name, text)| std::fs::write(state.join(name), text).unwrap());
    let text =
        "[guests]\nrules = \"permit ip\"\n[port.c3]\ndevice = \"none-such\"\n[mirror.m]\nfrom = [\"a\"]\nto = \"b\"\n";
    let path = file(dir.path(), text);
    let mut start = std::process::Command::new(lasthop_tests_process::binary("lasthop"));
    start.args(["run", "--config", &path, "--run-dir"]).arg(&run).arg("--state-dir").arg(&state);
    let output = start.output().expect("it ends by itself");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("there is no interface none-such"), "{error}");
    for (name, text) in kept {
        assert_eq!(std::fs::read_to_string(state.join(name)).unwrap(), text, "{name}");
    }
}

/// A port that has to be made anew was removed before it was found out that it cannot be.
#[test]
fn a_port_that_cannot_be_made_anew_stays() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("b", dir.path())]);
    let path = file(dir.path(), &port(dir.path(), "a", "tx-batch = \"9,9\""));
    apply(&lasthop, &[&path]);
    let mut guests = connect(&lasthop, dir.path(), &["a", "b"]);
    let refused = |words: &[&str]| {
        let out = lasthop.try_command(&[&["apply", &path], words].concat());
        assert!(!out.status.success(), "{words:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    for (text, why) in [
        (port(dir.path(), "a", "owner = \"nobody-of-that-name\""), "no user \"nobody-of-that-name\""),
        ("[port.a]\nsocket = \"/no/such/dir/a.sock\"\n".to_owned(), "there is no directory /no/such/dir"),
    ] {
        file(dir.path(), &text);
        for words in [&["--dry-run"][..], &[]] {
            let error = refused(words);
            assert!(error.contains(why) && error.contains("nothing was changed"), "{error}");
        }
        hear(&mut guests, 1);
    }
    // Only the running one can tell: then it is there again.
    file(dir.path(), "[port.a]\ndevice = \"none-such\"\n");
    let error = refused(&[]);
    assert!(
        error.contains("there is no interface none-such") && error.contains("a is there again as it was"),
        "{error}"
    );
    let shown = lasthop.port("a");
    assert_eq!(
        (shown["path"].as_str(), shown["tx_batch"]["us"].as_u64()),
        (dir.path().join("a.sock").to_str(), Some(9))
    );
    drop(guests);
    let mut guests = connect(&lasthop, dir.path(), &["a", "b"]);
    hear(&mut guests, 2);
}

/// What a command changes until the next start only is said, and so is that a mirror's file is a port here.
#[test]
fn what_the_file_takes_back_at_the_next_start_is_said() {
    let dir = scratch();
    let path = file(dir.path(), &port(dir.path(), "a", "vlan = 10\n"));
    let lasthop = Lasthop::start_with(&[Port::listen("b", dir.path())], &["--config", &path]);
    let said = |words: &[&str]| {
        let out = lasthop.try_command(words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let warned = said(&["port", "set", "a", "--vlan", "20"]);
    let line = format!("lasthop: {path}: says vlan=10 for port a, which holds again from the next start of lasthop on");
    assert!(warned.starts_with(&line), "{warned}");
    assert_eq!(said(&["port", "set", "a", "--vlan", "10"]), "");
    assert_eq!(said(&["port", "set", "b", "--vlan", "20"]), "", "the file does not name it");
    let path = file(dir.path(), "[mirror.log]\nfrom = [\"b\"]\nto = \"/tmp/x.pcap\"\n");
    let out = lasthop.try_command(&["apply", &path]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("[port.log-file] with device = \"/tmp/x.pcap\""), "{said}");
}

#[test]
fn a_mirror_to_nobody_says_so() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path())]);
    let path = file(dir.path(), "[mirror.m]\nfrom = [\"a\"]\nto = \"idz\"\n");
    let said = apply(&lasthop, &[&path]);
    assert!(said.iter().any(|line| line.contains("mirror m: nothing is copied until there is a port idz")), "{said:?}");
}
