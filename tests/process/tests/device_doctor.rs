//! What `lasthop doctor` of the host finds of its devices.

use lasthop_tests_process::{Lasthop, PATIENCE, Port, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Kinds of what is found of devices.
fn found(lasthop: &Lasthop) -> Vec<String> {
    let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let kinds = report["findings"].as_array().into_iter().flatten().filter_map(|finding| finding["kind"].as_str());
    kinds.filter(|kind| kind.starts_with("device-")).map(str::to_owned).collect()
}

#[test]
fn a_device_that_is_stopped_is_found() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("h", dir.path())], &["--device", "nic0"]);
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
    let run = proc::children(lasthop.pid()).into_iter().find(|(_, name)| name == "lasthop").expect("the device's").0;
    proc::signal(run, Signal::STOP);
    let found_now = found(&lasthop);
    proc::signal(run, Signal::CONT);
    assert_eq!(found_now, ["device-away"]);
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
}
