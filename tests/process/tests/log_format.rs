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

#[test]
fn journald_gets_priorities() {
    let lasthop = Lasthop::start_with(&[], &["--log-format", "journald", "--no-bpf"]);
    lasthop.kill("lasthop-control");
    let begins =
        |with: &str, text: &str| lasthop.log().lines().any(|line| line.starts_with(with) && line.contains(text));
    wait_for("a warning", PATIENCE, || begins("<4>", "lasthop-control (pid"));
    wait_for("what control says", PATIENCE, || begins("<6>", "the switch is connected"));
}
