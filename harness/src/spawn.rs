//! Child processes that end when the test process does, even when it is killed.

use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Job = (Command, Option<CpuSet>, Option<File>, Sender<std::io::Result<Child>>);

/// Starts `program` so that the kernel sends it `signal` (a name such as `KILL`) when this process ends.
///
/// The kernel ties that to the *thread* that forked, and test threads end with their test; so one thread that never ends
/// forks for everybody. The child is bound to the CPUs of the thread that asks for it, and is in its network namespace.
pub fn spawn(signal: &str, program: &str, build: impl FnOnce(&mut Command)) -> Child {
    static FORKER: OnceLock<Sender<Job>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (jobs, work) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, cpus, network, answer) in work {
                // Where that fails, the child has the CPUs of the one before.
                let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
                let _ = network.map(|to| move_into_link_name_space(to.as_fd(), Some(LinkNameSpaceType::Network)));
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--", program]);
    build(&mut command);
    // Of its own group: ctrl-C at the terminal reaches this process alone, which then ends what it started in order.
    command.process_group(0);
    let (answer, child) = channel();
    let network = File::open("/proc/thread-self/ns/net").ok();
    forker.send((command, sched_getaffinity(None).ok(), network, answer)).expect("the forking thread never ends");
    child.recv().expect("the forking thread answers").unwrap_or_else(|e| panic!("cannot start setpriv {program}: {e}"))
}

/// SIGTERM, then up to five seconds to leave, then SIGKILL. True when the first was enough.
pub fn end(child: &mut Child) -> bool {
    crate::proc::signal(child.id(), rustix::process::Signal::TERM);
    for _ in 0..250 {
        if let Ok(Some(_)) = child.try_wait() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Pid;

    #[test]
    fn a_child_stays_on_the_cpus_of_whoever_starts_it() {
        let all = sched_getaffinity(None).unwrap();
        let mut last = CpuSet::new();
        last.set((0..CpuSet::MAX_CPU).rfind(|cpu| all.is_set(*cpu)).unwrap());
        // The one that forks is there by now, on whatever CPUs.
        for wanted in [all, last, all] {
            let child = std::thread::spawn(move || {
                sched_setaffinity(None, &wanted).unwrap();
                spawn("KILL", "sleep", |c| {
                    c.arg("60");
                })
            });
            let mut child = child.join().unwrap();
            let found = sched_getaffinity(Pid::from_raw(child.id() as i32)).unwrap();
            assert!(end(&mut child));
            assert_eq!(found, wanted);
        }
    }
}
