//! lasthop as a service: what it tells the service manager.

use lasthop_tests_process::{PATIENCE, binary, proc, scratch, spawn, wait_for};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

/// What the service manager allows between two signs.
const LIMIT: Duration = Duration::from_millis(600);

struct Service {
    run: Child,
    told: UnixDatagram,
    dir: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let dir = scratch();
        let told = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        told.set_read_timeout(Some(PATIENCE)).unwrap();
        let run = spawn::spawn("TERM", &binary("lasthop").display().to_string(), |command| {
            command.args(["run", "--no-bpf", "--run-dir"]).arg(dir.path().join("run"));
            command.arg("--state-dir").arg(dir.path().join("state")).stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(File::create(dir.path().join("log")).unwrap());
            command.env("NOTIFY_SOCKET", dir.path().join("notify"));
            command.env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
        });
        Self { run, told, dir }
    }

    fn hears(&self) -> Option<String> {
        let mut word = [0; 256];
        let len = self.told.recv(&mut word).ok()?;
        Some(String::from_utf8_lossy(&word[..len]).trim_end().to_owned())
    }

    fn waits_for(&self, word: &str) {
        while self.hears().unwrap_or_else(|| panic!("no {word}; {}", self.log())) != word {}
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        proc::signal(self.run.id(), Signal::CONT);
        spawn::end(&mut self.run);
    }
}

/// Signs come all the time, before it is ready and after; none comes from a process that hangs, and when it goes on it says for how long it did.
#[test]
fn the_watchdog_hears_of_it_as_long_as_it_goes_on() {
    let service = Service::start();
    service.waits_for("READY=1");
    (0..5).for_each(|_| service.waits_for("WATCHDOG=1"));
    proc::signal(service.run.id(), Signal::STOP);
    // What was sent before it stopped.
    service.told.set_read_timeout(Some(2 * LIMIT)).unwrap();
    let late = (0..3).map_while(|_| service.hears()).count();
    assert!(late < 3, "a process that is stopped gives signs");
    proc::signal(service.run.id(), Signal::CONT);
    service.told.set_read_timeout(Some(PATIENCE)).unwrap();
    service.waits_for("WATCHDOG=1");
    wait_for("a line of it", PATIENCE, || service.log().contains("the service manager ends it after 600 ms"));
}
