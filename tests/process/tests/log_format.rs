//! The log for programs: `lasthop run --log-format json` and `journald`.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, scratch, wait_for};
use serde_json::Value;

/// Every line of every process is an object, with a port's name where it is about one.
#[test]
fn the_log_is_read_by_programs() {
    let dir = scratch();
    let port = Port::listen("vm1", dir.path());
    let lasthop = Lasthop::start_with(&[port], &["--log-format", "json", "--no-bpf"]);
    let guest = Guest::connect(&dir.path().join("vm1.sock"), mac(1), Options::default());
    lasthop.wait_for_state("vm1", "up");
    drop(guest);
    let objects = || -> Vec<Value> {
        // The last line may not be whole yet.
        let text = lasthop.log();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole).to_owned();
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    };
    let of = |program: &str| objects().iter().any(|line| line["program"] == program && line["level"] == "info");
    let ended = |line: &Value| line["message"].as_str().unwrap_or_default().starts_with("port vm1: connection ended");
    wait_for("the lines", PATIENCE, || objects().iter().any(ended) && of("lasthop") && of("lasthop-control"));
    assert!(objects().iter().all(|line| line["time"].is_string() && line["pid"].is_u64()));
}

/// The lines of a device, and of its cable, too.
#[test]
fn lines_of_devices_are_read_by_programs() {
    let lasthop = Lasthop::start_with(&[], &["--log-format", "json", "--no-bpf", "--device", "nic0"]);
    let objects = || -> Vec<Value> {
        let text = lasthop.log();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole).to_owned();
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    };
    let has = |field: &str, value: &str, and: &str| {
        let is = |line: &Value| line[field] == value && line["message"].as_str().unwrap_or_default().contains(and);
        objects().iter().any(is)
    };
    wait_for("the cable's line", PATIENCE, || has("program", "lasthop-cable", "is plugged in"));
    assert!(has("device", "nic0", "the switch is connected"));
}

#[test]
fn journald_gets_priorities() {
    let lasthop = Lasthop::start_with(&[], &["--log-format", "journald", "--no-bpf"]);
    lasthop.kill("lasthop-control");
    let begins =
        |with: &str, text: &str| lasthop.log().lines().any(|line| line.starts_with(with) && line.contains(text));
    wait_for("a warning", PATIENCE, || begins("<4>", "lasthop-control (pid"));
    wait_for("what control says", PATIENCE, || begins("<6>", "the switch is connected"));
}

fn levels(lasthop: &Lasthop) -> [String; 2] {
    let list = lasthop.json(&["log"]);
    ["run", "control"].map(|process| {
        let level = list["levels"].as_array().unwrap().iter().find(|one| one["process"] == process).unwrap();
        level["level"].as_str().unwrap().to_owned()
    })
}

/// Which lines there are changes while it runs, and a control that comes goes on so.
#[test]
fn a_level_changes_without_a_restart() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("vm1", dir.path())], &["--no-bpf"]);
    let says = |text: &str| lasthop.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!(levels(&lasthop), ["info", "info"]);
    let visit = || {
        drop(Guest::connect(&dir.path().join("vm1.sock"), mac(1), Options::default()));
        lasthop.wait_for_state("vm1", "waiting");
    };
    visit();
    let (debug, info) = ("DEBUG port vm1: ", "INFO port vm1: front-end connected");
    wait_for("the supervisor's line", PATIENCE, || says(info) == 1);
    assert_eq!(says(debug), 0);
    lasthop.command(&["log", "level", "control=debug", "run=warn"]);
    assert_eq!(levels(&lasthop), ["warn", "debug"]);
    visit();
    wait_for("what control says besides", PATIENCE, || says(debug) > 0);
    lasthop.kill("lasthop-control");
    wait_for("another control", PATIENCE, || says("WARN lasthop-control (pid") > 0);
    // Nobody has asked it for its level yet.
    wait_for("its answers", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
    let before = says(debug);
    visit();
    wait_for("what the other says besides", PATIENCE, || says(debug) > before);
    assert_eq!(levels(&lasthop), ["warn", "debug"]);
    // The line of the change itself is behind all that the supervisor did not write.
    lasthop.command(&["log", "level", "default"]);
    assert_eq!(levels(&lasthop), ["info", "info"]);
    wait_for("the change", PATIENCE, || says("log level: default instead of warn") == 1);
    assert_eq!(says(info), 1, "it was not written at warn");
    for (words, why) in
        [("loud", "\"loud\" is no level; there are error, warn"), ("switch=debug", "there are run and control")]
    {
        let out = lasthop.try_command(&["log", "level", words]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains(why), "{said}");
    }
}
