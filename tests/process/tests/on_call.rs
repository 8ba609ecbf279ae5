//! What somebody does to a running lasthop at three in the morning, and what it says to that.

use lasthop_tests_process::{Lasthop, Netns, PATIENCE, binary, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a command says that does not succeed.
fn refused(lasthop: &Lasthop, words: &[&str]) -> String {
    let out = lasthop.try_command(words);
    assert!(!out.status.success(), "{words:?} succeeded");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// What `stats` says of a process: how often it was replaced, and why it was last.
fn replaced(lasthop: &Lasthop, process: &str) -> (u64, String) {
    let stats = lasthop.json(&["stats"]);
    let all = stats["switch"]["replaced"].as_array().expect("a list");
    let of = all.iter().find(|r| r["process"] == process).cloned().unwrap_or(Value::Null);
    (of["times"].as_u64().unwrap_or_default(), of["why"].as_str().unwrap_or_default().to_owned())
}

/// The next command wrote over what somebody had written and nobody had read.
#[test]
fn files_that_were_edited_are_not_overwritten() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    let path = |name: &str| dir.path().join(format!("{name}.sock")).display().to_string();
    let rules = dir.path().join("rules");
    fs::write(&rules, "deny icmp from any to any\n").expect("a file");
    let load = ["acl", "load", rules.to_str().expect("a path")];
    lasthop.command(&["port", "add", "one", &path("one")]);
    lasthop.command(&load);
    let reload = || {
        let lines = || lasthop.log().matches("SIGHUP: ").count();
        let before = lines();
        proc::signal(lasthop.pid(), Signal::HUP);
        wait_for("a line in the log", PATIENCE, || lines() > before);
    };
    let files = ["ports.json", "acl.rules"].map(|name| lasthop.state_file(name));
    let change = |n: usize| match n {
        0 => refused(&lasthop, &["port", "add", "two", &path("two")]),
        _ => refused(&lasthop, &load),
    };
    for (n, file) in files.iter().enumerate() {
        let before = fs::read_to_string(file).expect("it is there");
        // Another rule, or a line more.
        let valid = if n == 0 { format!("{before}\n") } else { before.replace("icmp", "udp") };
        for edited in [valid.clone(), format!("garbage {before}")] {
            fs::write(file, &edited).expect("it is ours");
            let hint = format!("kill -HUP {}", lasthop.pid());
            for reloaded in [false, true] {
                if reloaded && edited.starts_with("garbage") {
                    reload();
                    assert!(lasthop.log().contains("SIGHUP: nothing was reloaded: "));
                }
                let said = change(n);
                let all = [file.to_str().expect("a path"), "somebody has changed this file", &hint, "move it away"];
                assert!(all.iter().all(|part| said.contains(part)), "{said}");
                assert_eq!(fs::read_to_string(file).expect("it is there"), edited);
            }
        }
        // Read, it is in force, and may be written.
        fs::write(file, valid).expect("it is ours");
        reload();
        lasthop.command(if n == 0 { &["port", "del", "one"] } else { &load });
        // Moved away, what is in force is written.
        fs::write(file, "garbage").expect("it is ours");
        fs::rename(file, dir.path().join("kept")).expect("it is there");
        if n == 0 {
            lasthop.command(&["port", "add", "one", &path("one")]);
        } else {
            lasthop.command(&load);
        }
        assert!(file.exists());
    }
    assert!(!lasthop.command(&["port", "list"]).contains("two "), "what was refused was not done");
    let left: Vec<_> = fs::read_dir(files[0].parent().expect("a directory"))
        .expect("it is there")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".new")), "{left:?}");
}

/// A file system of 64 KiB in the place of a directory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn at(dir: &Path) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(dir).status();
        assert!(status.expect("mount starts").success());
        Self(dir.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A file that the next start would not understand, and a disk that takes no more, said nothing before that start, or the next command.
#[test]
fn what_the_next_start_or_command_would_fail_of_is_found() {
    let dir = scratch();
    let lasthop = Lasthop::start(&[]);
    let path = |name: &str| dir.path().join(format!("{name}.sock")).display().to_string();
    lasthop.command(&["port", "add", "one", &path("one")]);
    let found = || {
        let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let findings = report["findings"].as_array().expect("a list");
        let texts = |finding: &Value| format!("{} {}", finding["evidence"][0], finding["remedy"]);
        findings.iter().filter(|f| f["kind"] == "state-directory").map(texts).collect::<Vec<_>>()
    };
    assert_eq!(found(), [""; 0]);
    let file = lasthop.state_file("ports.json");
    let before = fs::read_to_string(&file).expect("it is there");
    for (text, said) in [(format!("garbage {before}"), "repair it"), (format!("{before}\n"), "kill -HUP")] {
        fs::write(&file, text).expect("it is ours");
        let found = found();
        assert!(found.len() == 1 && found[0].contains("ports.json: ") && found[0].contains(said), "{found:?}");
    }
    fs::write(&file, before).expect("it is ours");
    assert_eq!(found(), [""; 0]);
    let small = Small::at(file.parent().expect("a directory"));
    let missing = found();
    assert!(missing.len() == 1 && missing[0].contains("ports.json: it is missing"), "{missing:?}");
    let filler = small.0.join("filler");
    assert!(fs::write(&filler, vec![1; 1 << 20]).is_err(), "it has 64 KiB");
    let full = found();
    assert!(full.len() == 2 && full[1].contains("is full") && full[1].contains("make room"), "{full:?}");
    let said = refused(&lasthop, &["port", "add", "two", &path("two")]);
    assert!(said.contains("No space left"), "{said}");
    fs::remove_file(filler).expect("it is there");
    lasthop.command(&["port", "add", "two", &path("two")]);
    assert_eq!(found(), [""; 0]);
}

#[test]
fn the_log_says_whose_lists_changed() {
    let dir = scratch();
    let rules = dir.path().join("rules");
    fs::write(&rules, "deny icmp from any to any\ndeny udp from any to any port 53\n").expect("a file");
    let rules = rules.display().to_string();
    let lasthop = Lasthop::start(&[]);
    lasthop.command(&["acl", "load", &rules]);
    let line = "access lists of guests changed: guests from-guest 2 rules, default permit";
    wait_for("the line", PATIENCE, || lasthop.log().contains(line));
    lasthop.command(&["acl", "load", &rules, "--port", "vm1"]);
    wait_for("the line", PATIENCE, || {
        lasthop.log().contains("access lists of port vm1 changed: port vm1 from-guest 2 rules")
    });
    lasthop.command(&["acl", "clear"]);
    wait_for("the line", PATIENCE, || lasthop.log().contains("access lists of guests changed: none is left"));
    lasthop.kill("lasthop-control");
    let line = "1 access list: port vm1 from-guest 2 rules";
    wait_for("what a later control knows", PATIENCE, || lasthop.log().contains(line));
}

/// An error each second, without a path.
#[test]
fn a_program_that_is_gone_is_named_once() {
    let (libexec, netns) = (scratch(), Netns::new());
    let names = ["lasthop-switch", "lasthop-control", "lasthop-uplink"];
    let path = |name: &str| libexec.path().join(name);
    let install = |name: &str| assert!(fs::copy(binary(name), path(name)).is_ok(), "no copy of {name}");
    names.iter().chain(&["lasthop-session"]).for_each(|name| install(name));
    let arguments = ["--libexec", &libexec.path().display().to_string(), "--uplink", "host=lh0,driver=tap"];
    let lasthop = Lasthop::start_in(Some(&netns), &[], &arguments);
    for name in names {
        fs::remove_file(path(name)).expect("it is there");
        proc::signal(lasthop.child(name), Signal::KILL);
        let gone = format!("cannot start {name}: {}: No such file or directory", path(name).display());
        let line = |lasthop: &Lasthop| lasthop.log().lines().rfind(|l| l.contains(&gone)).map(str::to_owned);
        wait_for("the error", PATIENCE, || line(&lasthop).is_some());
        assert!(line(&lasthop).is_some_and(|line| line.contains("install it there again")), "{}", lasthop.log());
        // The back-off has come to its longest wait: it has been tried several times.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert_eq!(lasthop.log().matches(&gone).count(), 1, "{}", lasthop.log());
        // Another reason is news.
        fs::write(path(name), "").expect("a file");
        let other = format!("cannot start {name}: {}: Permission denied", path(name).display());
        wait_for("the other error", PATIENCE, || lasthop.log().contains(&other));
        install(name);
        lasthop.child(name);
    }
    wait_for("an answer", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
}

#[test]
fn a_group_that_is_not_known_is_named() {
    let dir = scratch();
    let run = |group: &str| {
        let mut command = Command::new(binary("lasthop"));
        command
            .arg("run")
            .arg("--run-dir")
            .arg(dir.path().join("run"))
            .arg("--state-dir")
            .arg(dir.path().join("state"));
        let out = command.args(["--read-group", group]).stdin(Stdio::null()).output().expect("lasthop runs");
        assert_eq!(out.status.code(), Some(2));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let said = run("no-such-group");
    assert!(said.contains("no group \"no-such-group\"") && said.contains("`getent group`"), "{said}");
    assert!(!Path::new("/etc/group").exists() || !said.contains("/etc/group"), "{said}");
}

/// Whatever ends first.
#[test]
fn a_normal_end_warns_of_nothing() {
    for _ in 0..10 {
        let dir = scratch();
        let log = dir.path().join("log");
        let file = fs::File::create(&log).expect("a file");
        let lasthop = Lasthop::start_logging(None, &[], &[], Some(file.into()));
        let before = fs::read_to_string(&log).expect("it is there").lines().count();
        assert!(lasthop.stop());
        let text = fs::read_to_string(&log).expect("it is there");
        let end: Vec<_> = text.lines().skip(before).collect();
        assert!(!end.iter().any(|line| line.contains("WARN") || line.contains("ERROR")), "{end:#?}");
    }
}

/// `stats` had the status of the process, and `uplink list` another number than `stats`.
#[test]
fn why_and_how_often_an_uplink_was_replaced() {
    let netns = Netns::new();
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let lasthop = Lasthop::start_in(Some(&netns), &[], &["--uplink", "net=v0,af_packet"]);
    let restarts = || {
        let list = lasthop.json(&["uplink", "list"]);
        list["uplinks"][0]["restarts"].as_u64().expect("a number")
    };
    for n in 1..=2 {
        lasthop.kill("lasthop-uplink");
        wait_for("the count", PATIENCE, || replaced(&lasthop, "uplink net").0 == n);
        assert_eq!(restarts(), n);
    }
    wait_for("it to run", PATIENCE, || lasthop.json(&["uplink", "list"])["uplinks"][0]["state"] == "up");
    netns.ip("link del v0");
    wait_for("the end of its process", PATIENCE, || replaced(&lasthop, "uplink net").0 == 3);
    let (_, why) = replaced(&lasthop, "uplink net");
    assert!(!why.starts_with("ended: "), "its own words: {why}");
    assert_eq!(restarts(), 3, "though none has been started since: its interface is gone");
}
