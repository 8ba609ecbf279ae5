//! Whether a capture still has what it captures.

use crate::client::Instance;
use crate::list::all_ports;
use lasthop_api::Port;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often that is looked at, and after how long without an answer all of it is gone.
const WATCH: Duration = Duration::from_secs(1);
const GONE: Duration = Duration::from_secs(10);

/// Looks now and then whether there still is what is captured, and what takes the copies.
pub struct Watch<'a> {
    run_dir: &'a Path,
    name: &'a str,
    /// Those that are still there.
    ports: Vec<&'a Port>,
    /// When lasthop last answered, and was last asked.
    heard: Instant,
    asked: Instant,
}

impl<'a> Watch<'a> {
    /// Of a capture that begins now; `name` is that of its own port.
    pub fn new(run_dir: &'a Path, name: &'a str, ports: &'a [Port]) -> Self {
        let now = Instant::now();
        Self { run_dir, name, ports: ports.iter().collect(), heard: now, asked: now }
    }

    /// Why the capture has ended, if it has.
    pub fn look(&mut self, instance: &mut Instance) -> Option<String> {
        if self.asked.elapsed() < WATCH {
            return None;
        }
        let there = all_ports(instance);
        self.asked = Instant::now();
        let Ok(there) = there else {
            if let Ok(another) = Instance::connect(self.run_dir) {
                *instance = another;
            }
            let gone = self.heard.elapsed() >= GONE;
            return gone.then(|| "lasthop does not answer any more: the capture has ended".to_owned());
        };
        self.heard = self.asked;
        self.ports.retain(|port| {
            let is_there = there.iter().any(|other| other.id == port.id);
            if !is_there {
                let _ = writeln!(io::stderr(), "port {} is gone: nothing more of it is captured", port.name);
            }
            is_there
        });
        let goes_on = there.iter().any(|port| port.name == self.name);
        (!goes_on).then(|| {
            format!("port {} is gone (lasthop was started anew, or the port removed): the capture has ended", self.name)
        })
    }
}
