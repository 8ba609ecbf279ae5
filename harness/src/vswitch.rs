//! The distribution's Open vSwitch, with everything of its own in one directory.

use crate::{Lasthop, Netns, binary, spawn, wait_for};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// How long its servers may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

const VSWITCHD: &str = "/usr/lib/openvswitch-switch/ovs-vswitchd";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// An empty database and its server.
pub fn database(netns: &Netns, dir: &Path) -> Child {
    let made = Command::new("ovsdb-tool").arg("create").arg(dir.join("conf.db")).arg(SCHEMA).output();
    assert!(made.expect("ovsdb-tool starts").status.success(), "openvswitch-common is installed by scripts/setup");
    let child = serve_database(netns, dir);
    run(dir, &["ovs-vsctl", "--no-wait", "init"]);
    child
}

/// A server of the database that is there.
pub fn serve_database(netns: &Netns, dir: &Path) -> Child {
    for left in ["db.sock", "ovsdb-server.ctl"] {
        let _ = std::fs::remove_file(dir.join(left));
    }
    let remote = format!("--remote=punix:{}", dir.join("db.sock").display());
    let child = start(netns, dir, "ovsdb-server", |c| {
        c.arg("ovsdb-server").arg(dir.join("conf.db")).arg(remote);
    });
    wait_for("the database", PATIENCE, || dir.join("db.sock").exists());
    child
}

/// Starts a server of Open vSwitch's.
fn start(netns: &Netns, dir: &Path, program: &str, build: impl FnOnce(&mut Command)) -> Child {
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    start_server(netns, dir, name, |c| {
        build(c);
        c.arg(format!("--unixctl={}", dir.join(format!("{name}.ctl")).display()));
    })
}

/// Starts a server that finds everything in one directory, and writes its log there.
pub(crate) fn start_server(netns: &Netns, dir: &Path, name: &str, build: impl FnOnce(&mut Command)) -> Child {
    spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", netns.name()]);
        build(c);
        c.env("OVS_RUNDIR", dir).env("OVS_LOGDIR", dir).env("OVS_SYSCONFDIR", dir);
        c.env("OVN_RUNDIR", dir).env("OVN_LOGDIR", dir).env("OVN_SYSCONFDIR", dir);
        c.arg(format!("--log-file={}", dir.join(format!("{name}.log")).display()));
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    })
}

/// `ovs-vswitchd` over this lasthop, as an administrator starts it, in the foreground.
pub fn daemon(netns: &Netns, dir: &Path, lasthop: &Lasthop) -> Child {
    let _ = std::fs::remove_file(dir.join("ovs-vswitchd.ctl"));
    let child = start(netns, dir, VSWITCHD, |c| {
        c.arg(binary("lasthop")).args(["ovs", "exec", "--run-dir"]).arg(lasthop.run_dir()).args(["--", VSWITCHD]);
        c.arg(format!("unix:{}", dir.join("db.sock").display()));
    });
    wait_for("ovs-vswitchd", PATIENCE, || dir.join("ovs-vswitchd.ctl").exists());
    child
}

/// Runs a command of Open vSwitch's to its end.
pub fn run(dir: &Path, words: &[&str]) -> String {
    let out: Output = Command::new(words[0])
        .args(&words[1..])
        .env("OVS_RUNDIR", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", words[0]));
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{words:?}: {text}{errors}");
    text.into_owned()
}

/// Runs a line of the shell, in which Open vSwitch's commands find their server.
pub fn shell(dir: &Path, line: &str) -> String {
    run(dir, &["sh", "-c", line])
}
