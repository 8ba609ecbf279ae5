//! What the host does not give, and what is said then.

use crate::{Place, connect};
use rustix::process::{Signal, geteuid, kill_process};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

pub fn without_ebpf_it_says_why_once_and_goes_on() {
    let place = Place::new();
    let lasthop = place.command(&["--port", &place.port("a")]);
    let run = |wrapper: &[&str], more: &[&str]| {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(lasthop.get_program()).args(lasthop.get_args()).args(more);
        let mut lasthop = place.start_command(command);
        let mut front_end = None;
        lasthop.wait_ready();
        for _ in 0..2 {
            let stream = front_end.insert(connect(&place.path("a.sock")));
            lasthop.wait(&["switch[", "connection 1 vm None"]);
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            lasthop.wait(&["switch[", "closed 1"]);
        }
        let log = lasthop.end();
        let with = |what: &str| log.iter().filter(|line| line.contains(what)).cloned().collect::<Vec<_>>();
        (with("not known which VMs run"), with("sandbox: going on without"))
    };
    assert_eq!(run(&["env"], &["--no-bpf"]).0, [""; 0], "what was asked for is no news");
    if !geteuid().is_root() {
        return println!("the rest skipped: not root");
    }
    let (said, left_out) = run(&["setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin"], &[]);
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("not permitted") && said[0].contains("CAP_BPF"), "{said:?}");
    // Nor may it give the switch namespaces of its own.
    let without = |what: &str| left_out.iter().filter(|line| line.contains(what)).count();
    assert_eq!(without("own network namespace (Operation not permitted"), 1, "{left_out:#?}");
    assert_eq!((without(" namespace ("), without("bounding set")), (4, 0), "{left_out:#?}");
}

/// The directory that is to be the switch's root cannot be made, for something has its name wherever it would be: the next switch starts without, and the
/// log says why.
pub fn a_sandbox_that_cannot_be_made_is_explained() {
    if !geteuid().is_root() {
        return println!("skipped: not root");
    }
    let place = Place::new();
    let mut lasthop = place.start(&["--port", &place.port("a")]);
    let switch = lasthop.wait_pid("switch", "arguments");
    assert!(lasthop.seen.last().unwrap().contains("--root-fd"), "{:?}", lasthop.seen.last());
    lasthop.wait_ready();
    let name = format!("lasthop-empty-{}", lasthop.pid().as_raw_pid());
    let taken = Taken(["/run".into(), std::env::temp_dir(), "/dev/shm".into(), "/".into()].map(|dir| dir.join(&name)));
    // A host without one of these directories has no place there either.
    taken.0.iter().for_each(|path| drop(symlink("/nowhere", path)));
    kill_process(switch, Signal::KILL).unwrap();
    lasthop.wait(&["sandbox: going on without empty root (File exists"]);
    lasthop.wait_pid("switch", "arguments");
    let line = lasthop.seen.last().unwrap();
    assert!(!line.contains("--root-fd") && line.contains("--supervisor-fd"), "{line}");
    lasthop.end();
}

/// Links that go away again.
struct Taken([PathBuf; 4]);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}
