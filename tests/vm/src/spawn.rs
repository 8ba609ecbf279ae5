//! Child processes that end when the test process does, even when it is killed.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Job = (Command, Sender<std::io::Result<Child>>);

/// Starts `program` so that the kernel sends it `signal` (a name such as `KILL`) when this process ends.
///
/// The kernel ties that to the *thread* that forked, and test threads end with their test; so one thread that never ends
/// forks for everybody.
pub fn spawn(signal: &str, program: &str, build: impl FnOnce(&mut Command)) -> Child {
    static FORKER: OnceLock<Sender<Job>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (jobs, work) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in work {
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
    forker.send((command, answer)).expect("the forking thread never ends");
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
