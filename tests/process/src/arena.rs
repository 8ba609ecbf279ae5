//! A running lasthop, an attacker's port, and what must hold after every attack:
//!
//! 1. the data plane's process is the same;
//! 2. descriptors, mappings and memory are back where they were;
//! 3. two bystanders have lost no frame;
//! 4. the log and a counter (or the port's state) say which port, which queue, and why;
//! 5. the attacker's port works again after a reset or a new connection, with nobody's help.

use crate::{Bystanders, Guest, Lasthop, Options, PATIENCE, Port, guest, mac, proc, scratch, wait_for};
use lasthop_vhostuser::Frontend;
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// How much the switch's private memory may differ, in KiB, before it counts as growth: allocators keep some.
const SLACK_KIB: u64 = 2048;

/// Everything an attack needs.
pub struct Arena {
    /// Others, who must not notice anything. First: they stop before the switch does.
    pub bystanders: Bystanders,
    /// A well-behaved guest that the attacker may talk to.
    pub witness: Guest,
    /// The switch.
    pub lasthop: Lasthop,
    dir: tempfile::TempDir,
    /// Where lasthop connects to the attacker.
    listener: Option<UnixListener>,
    greetings: u32,
}

/// What the switch looked like before an attack.
pub struct Attack {
    what: String,
    switch: u32,
    descriptors: usize,
    mappings: usize,
    private_kib: u64,
    log_len: usize,
}

impl Attack {
    /// What it makes the switch remember, within limits, may take so much memory.
    pub fn may_cost_kib(mut self, kib: u64) -> Self {
        self.private_kib += kib;
        self
    }
}

impl Arena {
    /// `client`: lasthop connects to the attacker instead of listening for it.
    pub fn new(client: bool) -> Self {
        Self::with(client, Options::default())
    }

    /// With a witness made like this.
    pub fn with(client: bool, witness: Options) -> Self {
        let dir = scratch();
        let listener = client.then(|| UnixListener::bind(dir.path().join("x.sock")).expect("a socket"));
        let attacker = if client { Port::connect("x", dir.path()) } else { Port::listen("x", dir.path()) };
        let others = ["w", "a", "b"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&[&[attacker][..], &others].concat());
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let witness = Guest::connect(&path("w"), mac(0x77), witness);
        let bystanders = Bystanders::start(&path("a"), &path("b"), [mac(0xa), mac(0xb)]);
        let mut arena = Self { lasthop, witness, bystanders, dir, listener, greetings: 1_000_000 };
        // Everything that is set up once is set up now.
        arena.port_works();
        arena.bystanders.still_exchange();
        arena
    }

    /// A bare connection to the attacker's port.
    pub fn connection(&self) -> Frontend {
        match &self.listener {
            Some(listener) => guest::accept(listener),
            None => guest::connect(&self.path()),
        }
    }

    /// The attacker's socket.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("x.sock")
    }

    /// A guest at the attacker's port.
    pub fn guest(&self, options: Options) -> Guest {
        let net = lasthop_virtqueue::driver::NetDriver::new(options.net).expect("guest memory");
        Guest::attach(self.connection(), net, mac(0x66), options)
    }

    /// The attacker's port as `lasthop port list` shows it.
    pub fn port(&self) -> Value {
        self.port_named("x")
    }

    /// Any port as `lasthop port list` shows it.
    pub fn port_named(&self, name: &str) -> Value {
        let list = self.lasthop.json(&["port", "list"]);
        let ports = list["ports"].as_array().expect("a list of ports");
        ports.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no port {name}")).clone()
    }

    /// Packets counted as dropped for a reason: `direction` is `from_guest` or `to_guest` of a port.
    pub fn drops(&self, port: &str, direction: &str, reason: &str) -> u64 {
        let port = self.port_named(port);
        let drops = port[direction]["drops"].as_array().expect("a list of drops");
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    }

    /// Waits until the attacker's port is broken for this reason.
    pub fn is_broken(&self, reason: &str) {
        let mut port = Value::Null;
        wait_for(&format!("the port to be broken: {reason}"), PATIENCE, || {
            port = self.port();
            port["state"] == "broken" && port["error"].as_str().is_some_and(|e| e.contains(reason))
        });
    }

    /// A new front-end at the attacker's port can talk to the witness.
    pub fn port_works(&mut self) {
        let mut guest = self.guest(Options::default());
        self.works(&mut guest);
    }

    /// This guest can talk to the witness.
    pub fn works(&mut self, guest: &mut Guest) {
        self.greetings += 1;
        guest.greet(&mut self.witness, self.greetings);
    }

    /// Before an attack: notes how things are.
    pub fn begin(&self, what: &str) -> Attack {
        let switch = self.lasthop.switch();
        // The last attacker's connection may only just have been noticed to be gone.
        // Where lasthop connects, it has done so again: that takes a descriptor.
        let free = if self.listener.is_some() { "connected" } else { "waiting" };
        wait_for("the attacker's port to be free", PATIENCE, || {
            let port = self.port();
            port["memory_bytes"] == 0 && port["state"] == free
        });
        Attack {
            what: what.into(),
            switch,
            descriptors: proc::descriptors(switch),
            mappings: mappings(switch),
            private_kib: proc::private_kib(switch),
            log_len: self.lasthop.log().len(),
        }
    }

    /// After an attack, the attacker being gone: everything must be well. `log`: what some line of the log must
    /// contain, all of it.
    pub fn end(&mut self, attack: &Attack, log: &[&str]) {
        let Attack { what, switch, .. } = attack;
        self.bystanders.still_exchange();
        self.port_works();
        assert_eq!(self.lasthop.switch(), *switch, "{what}: the switch died");
        let now = || [proc::descriptors(*switch), mappings(*switch), proc::private_kib(*switch) as usize];
        let limits = [attack.descriptors, attack.mappings, (attack.private_kib + SLACK_KIB) as usize];
        wait_for(
            &format!("{what}: descriptors, mappings, memory to be at most {limits:?}; now {:?}", now()),
            PATIENCE,
            || now().iter().zip(limits).all(|(now, limit)| *now <= limit),
        );
        if !log.is_empty() {
            // The switch names a port in a field, the supervisor, who says how a connection ended, in its sentence.
            let new = || self.lasthop.log().get(attack.log_len..).unwrap_or_default().replace("port x:", "port=x");
            wait_for(&format!("{what}: a line of the log with all of {log:?}; now {}", new()), PATIENCE, || {
                new().lines().any(|line| log.iter().all(|word| line.contains(word)))
            });
        }
    }
}

/// Mappings of memory that others handed to a process: guest memory among it, the allocator's not.
fn mappings(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}
