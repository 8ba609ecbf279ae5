//! A program on a pseudo-terminal, by which a test types and reads.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// The terminal, of 50 lines and 120 columns, and its program.
pub struct Terminal {
    child: Child,
    keys: File,
    seen: Arc<Mutex<String>>,
    /// What is written last is lost where nobody has the terminal open.
    _held: File,
}

impl Terminal {
    /// Starts a program there.
    pub fn start(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = name.to_str().unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = || File::from(open(name, flags, Mode::empty()).unwrap());
        let sized = Command::new("stty").args(["-F", name, "rows", "50", "cols", "120"]).status().unwrap();
        assert!(sized.success());
        let (held, keys) = (terminal(), File::from(master));
        let child = command.stdin(terminal()).stdout(terminal()).stderr(terminal()).spawn().unwrap();
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (keys.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                *to.lock().unwrap() += &String::from_utf8_lossy(&bytes[..n]);
            }
        });
        Self { child, keys, seen, _held: held }
    }

    /// Types.
    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// All that has been written there so far.
    pub fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until the program ends: whether it succeeded.
    pub fn succeeds(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
