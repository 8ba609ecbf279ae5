//! `lasthop report`: what is in the archive, and that no address is.

use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, Port, mac, scratch};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Its files, as tar(1) unpacks them.
fn unpack(archive: &Path, to: &Path) -> BTreeMap<String, String> {
    std::fs::create_dir(to).unwrap();
    let out = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut files = BTreeMap::new();
    let mut folders = vec![to.join("lasthop-report")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(to.join("lasthop-report")).unwrap().display().to_string();
                files.insert(name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
            }
        }
    }
    files
}

#[test]
fn all_is_there_and_no_address() {
    let dir = scratch();
    let ports = ["vm1", "vm2"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut guests = [1, 2].map(|n| Guest::connect(&ports[usize::from(n) - 1].socket, mac(n), Options::default()));
    ["vm1", "vm2"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    let rules = dir.path().join("rules");
    std::fs::write(&rules, "stateful\npermit any from 198.51.100.0/24 to any\npermit any from 2001:db8::7 to any\n")
        .unwrap();
    lasthop.command(&["acl", "load", &rules.display().to_string()]);
    // A datagram from port 40000 to port 80, without data.
    let udp = vec![0x9c, 0x40, 0, 80, 0, 8, 0, 0];
    let ping = |from: u8, to: u8| {
        let frame = Frame::between(mac(from), mac(to)).ipv4([198, 51, 100, from], [198, 51, 100, to]);
        frame.protocol(17).payload(udp.clone()).build()
    };
    guests[0].send(&ping(1, 2));
    guests[1].expect(&ping(1, 2));
    guests[1].send(&ping(2, 1));
    guests[0].expect(&ping(2, 1));
    let [masked, whole] = ["masked.tar.gz", "whole.tar.gz"].map(|name| dir.path().join(name));
    let said = lasthop.command(&["report", &masked.display().to_string(), "--config", "/nonexistent.toml"]);
    assert!(said.contains("/log, at most its last 512 KiB"), "{said}");
    lasthop.command(&["report", &whole.display().to_string(), "--with-addresses"]);

    let addresses = [mac(1).to_string(), mac(2).to_string(), "198.51.100.".to_owned(), "2001:db8".to_owned()];
    let files = unpack(&whole, &dir.path().join("whole"));
    let all = files.values().map(String::as_str).collect::<String>();
    for address in &addresses {
        assert!(all.contains(address.as_str()), "{address}: this test looks for what is nowhere");
    }
    let files = unpack(&masked, &dir.path().join("masked"));
    for (name, text) in &files {
        for address in &addresses {
            assert!(!text.contains(address.as_str()), "{name} has {address}:\n{text}");
        }
    }
    let in_file = |name: &str, text: &str| {
        let file = files.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
        assert!(file.contains(text), "{name}: {file}");
    };
    in_file("version.txt", "lasthop 0.");
    in_file("ports.txt", "vm2");
    in_file("show/vm1.txt", "vm1");
    in_file("flows.txt", "vm2");
    in_file("stats.txt", "flow caches:");
    in_file("acl.txt", "permit ip from ipv4-");
    in_file("doctor.json", "\"findings\"");
    in_file("conntrack.txt", "connections");
    in_file("history.txt", "lasthop history record");
    in_file("log-levels.txt", "control");
    in_file("host/kernel.txt", "Linux");
    in_file("processes.txt", "lasthop-switch");
    in_file("log.txt", "the switch is connected");
    in_file("log-from.txt", "/log");
    in_file("config.toml", "No such file");
    // The same address is the same word in all files.
    let word = files["macs.txt"]
        .split_whitespace()
        .find(|word| word.starts_with("mac-"))
        .expect("an address is learned")
        .to_owned();
    assert!(files["flows.txt"].contains(&word), "{word}: {}", files["flows.txt"]);
    // What is there already is not written over.
    let again = lasthop.try_command(&["report", &masked.display().to_string()]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("File exists"));
}

#[test]
fn without_a_running_lasthop_the_rest_is_there() {
    let dir = scratch();
    let archive = dir.path().join("report.tar.gz");
    let mut command = Command::new(lasthop_tests_process::binary("lasthop"));
    command.args(["report", "-", "--config", "/nonexistent.toml", "--run-dir"]).arg(dir.path());
    let out = command.current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("standard output: "), "{said}");
    assert!(said.contains("/nonexistent.toml: No such file") && said.contains("made without it"), "{said}");
    assert!(!dir.path().join("-").exists());
    std::fs::write(&archive, &out.stdout).unwrap();
    let files = unpack(&archive, &dir.path().join("files"));
    assert!(files["ports.txt"].contains("no lasthop is running"), "{}", files["ports.txt"]);
    assert!(files["host/kernel.txt"].contains("Linux") && files["log-from.txt"].contains("no lasthop runs"));
}
