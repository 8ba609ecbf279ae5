//! What `lasthop doctor` of the host finds of its devices.

use lasthop_tests_process::{Lasthop, PATIENCE, Port, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Kinds of what is found of devices, and the commands that mend it.
fn found(lasthop: &Lasthop) -> Vec<(String, Option<String>)> {
    let out = lasthop.try_command(&["doctor", "--since-start", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let text = |of: &Value| of.as_str().map(str::to_owned);
    let findings = report["findings"].as_array().into_iter().flatten();
    let found = findings.filter_map(|finding| Some((text(&finding["kind"])?, text(&finding["command"]))));
    found.filter(|(kind, _)| kind.starts_with("device-")).collect()
}

#[test]
fn a_device_that_is_stopped_is_found() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("h", dir.path())], &["--device", "nic0"]);
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
    let run = proc::children(lasthop.pid()).into_iter().find(|(_, name)| name == "lasthop").expect("the device's").0;
    proc::signal(run, Signal::STOP);
    let found_now = found(&lasthop);
    // Its control is stopped, too: it does not even say that it does not know.
    let control = proc::children(run).into_iter().find(|(_, name)| name == "lasthop-control").expect("its control").0;
    proc::signal(control, Signal::STOP);
    let began = Instant::now();
    let told = lasthop.command(&["metrics"]);
    let took = began.elapsed();
    proc::signal(control, Signal::CONT);
    proc::signal(run, Signal::CONT);
    assert_eq!(found_now, [("device-away".to_owned(), None)]);
    for line in ["lasthop_up 1.0", "lasthop_device_up{device=\"nic0\"} 0.0", "lasthop_port_state{port=\"h\""] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(took < Duration::from_secs(8), "scrapers wait for ten seconds, this took {took:?}");
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
}

/// Both of its ports are up, and both switches wait for what it never takes.
#[test]
fn a_cable_that_is_stopped_is_found_and_goes_on_by_the_remedy() {
    let dir = scratch();
    let lasthop = Lasthop::start_with(&[Port::listen("h", dir.path())], &["--device", "nic0"]);
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
    let cable = proc::children(lasthop.pid()).into_iter().find(|(_, name)| name == "lasthop-cable").expect("one").0;
    proc::signal(cable, Signal::STOP);
    wait_for("it to be found", PATIENCE, || !found(&lasthop).is_empty());
    let remedy = format!("kill -CONT {cable}");
    assert_eq!(found(&lasthop), [("device-cut-off".to_owned(), Some(remedy.clone()))]);
    assert!(std::process::Command::new("sh").args(["-c", &remedy]).status().unwrap().success());
    wait_for("nothing to be found", PATIENCE, || found(&lasthop).is_empty());
}
