//! The end of `lasthop run` with uplinks, and its next start: soon, at once, and with the TAP devices as they were.

use lasthop_tests_process::{Lasthop, Netns, PATIENCE, binary, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// `lasthop run` with its directories in `dir`; it may have to wait for another one there.
fn run(netns: &Netns, dir: &Path, uplink: &str) -> Child {
    let mut command = netns.command("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(binary("lasthop"));
    command.arg("run").arg("--run-dir").arg(dir.join("run")).arg("--state-dir").arg(dir.join("state"));
    command.args(["--uplink", uplink]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("ip (iproute2) is installed")
}

fn wait_until_ready(run: &mut Child) {
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it says something");
    assert_eq!(line, "ready\n");
}

/// Asks it to end; how long that took.
fn end(run: &mut Child) -> Duration {
    let began = Instant::now();
    proc::signal(run.id(), Signal::TERM);
    assert!(run.wait().expect("it ends").success());
    began.elapsed()
}

/// Nothing is waited for once the last process has ended. That may be an uplink's or another one, so it is tried several times.
#[test]
fn it_ends_at_once() {
    let (netns, dir) = (Netns::new(), scratch());
    netns.ip("link add v0 type veth peer name v1");
    netns.ip("link set v1 up");
    let ends: Vec<Duration> = (0..8)
        .map(|_| {
            let mut run = run(&netns, dir.path(), "net=v0,af_packet");
            wait_until_ready(&mut run);
            end(&mut run)
        })
        .collect();
    // Some milliseconds, and more where all processors are busy; what this is about took two seconds, for one in two.
    assert!(ends.iter().all(|end| *end < Duration::from_millis(1500)), "{ends:?}");
}

/// A start while another lasthop is ending waits for it and says so.
#[test]
fn the_next_start_waits_for_the_lock() {
    let (netns, dir) = (Netns::new(), scratch());
    let mut first = run(&netns, dir.path(), "host=lh0,driver=tap");
    wait_until_ready(&mut first);
    let mut second = run(&netns, dir.path(), "host=lh0,driver=tap");
    let mut said = String::new();
    let mut log = BufReader::new(second.stderr.take().expect("it is piped"));
    while !said.contains("is in use by another lasthop; waiting") {
        assert_ne!(log.read_line(&mut said).expect("a line"), 0, "{said}");
    }
    end(&mut first);
    wait_until_ready(&mut second);
    end(&mut second);
    let _ = log.read_to_string(&mut said);
}

/// One that does not end is named after a while.
#[test]
fn a_lock_that_is_kept_is_not_waited_for_without_end() {
    let (netns, dir) = (Netns::new(), scratch());
    let mut first = run(&netns, dir.path(), "host=lh0,driver=tap");
    wait_until_ready(&mut first);
    let second = run(&netns, dir.path(), "host=lh1,driver=tap").wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains(&format!("another lasthop (pid {})", first.id())), "{said}");
    assert!(!netns.output("ip link show lh1").status.success());
    end(&mut first);
}

fn uplink(lasthop: &Lasthop) -> Value {
    lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
}

/// What somebody has set on a TAP device that lasthop made survives a restart; the device goes with its uplink.
#[test]
fn a_tap_device_that_was_made_keeps_its_addresses() {
    let netns = Netns::new();
    let address = || netns.shell("ip -o addr show dev lh0").contains("10.5.0.1/24");
    let there = || netns.output("ip link show lh0").status.success();
    let mac = |lasthop: &Lasthop| uplink(lasthop)["mac"].as_str().unwrap_or_default().to_owned();
    let arguments = ["--uplink", "host=lh0,driver=tap"];
    let lasthop = Lasthop::start_in(Some(&netns), &[], &arguments);
    netns.ip("addr add 10.5.0.1/24 dev lh0");
    let before = mac(&lasthop);
    let lasthop = lasthop.start_again(Some(&netns), &[], &arguments, || ());
    assert_eq!((mac(&lasthop), address()), (before.clone(), true));
    assert_eq!(uplink(&lasthop)["created"], true, "it is known to be ours");
    lasthop.wait_for_state("host", "up");
    // Made anew, as after the host was started anew, it has the Ethernet address that others know.
    let lasthop = lasthop.start_again(Some(&netns), &[], &arguments, || netns.ip("link del lh0"));
    assert_eq!((mac(&lasthop), address()), (before.clone(), false));
    lasthop.command(&["uplink", "del", "host"]);
    assert!(!there(), "it goes with its uplink");
    // One of that name that somebody else has made is his.
    let lasthop = lasthop.start_again(Some(&netns), &[], &arguments, || netns.ip("tuntap add lh0 mode tap"));
    assert_eq!(uplink(&lasthop)["created"], false);
    lasthop.command(&["uplink", "del", "host"]);
    wait_for("the uplink to be gone", PATIENCE, || {
        lasthop.json(&["port", "list"])["ports"] == Value::Array(Vec::new())
    });
    assert!(there(), "a device of somebody else's is gone");
}
