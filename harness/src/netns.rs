//! Network namespaces: the outside world.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A network namespace of its own, without IPv6 chatter unless an interface asks for it. Dropping it removes it, and every
/// interface in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// An empty one, its loopback up.
    pub fn new() -> Self {
        let name = format!("lasthop-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        let netns = Self { name };
        netns.ip("link set lo up");
        netns.shell("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
        netns
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` inside; panics unless it exits with 0.
    pub fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name));
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a shell command inside, whatever its exit code.
    pub fn output(&self, command: &str) -> Output {
        self.command("sh").args(["-c", command]).output().expect("ip (iproute2) is installed")
    }

    /// Runs a shell command inside and returns what it prints; panics unless it exits with 0.
    pub fn shell(&self, command: &str) -> String {
        let out = self.output(command);
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{}: {command}: {}\n{stdout}{stderr}", self.name, out.status);
        stdout.into_owned()
    }
}

impl Default for Netns {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(arguments: &str) {
    let out = Command::new("ip").args(arguments.split(' ')).output().expect("ip (iproute2) is installed");
    assert!(out.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&out.stderr));
}
