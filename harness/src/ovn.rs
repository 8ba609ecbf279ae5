//! The distribution's OVN: its central part, and hosts in namespaces of their own, each with a lasthop, an Open vSwitch and an
//! `ovn-controller`. Nothing of it touches the machine's own Open vSwitch.

use crate::{Lasthop, Netns, scratch, spawn, vswitch, wait_for};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// How long anything may take on a slow, busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The two databases and what translates one into the other.
pub struct Central {
    northd: Child,
    databases: [Child; 2],
    dir: tempfile::TempDir,
    _netns: Netns,
}

impl Central {
    /// Empty databases.
    pub fn start() -> Self {
        let (dir, netns) = (scratch(), Netns::new());
        let databases = ["nb", "sb"].map(|name| database(&netns, dir.path(), name));
        let northd = vswitch::start_server(&netns, dir.path(), "ovn-northd", |c| {
            c.arg("ovn-northd").arg(format!("--ovnnb-db={}", remote(dir.path(), "nb")));
            c.arg(format!("--ovnsb-db={}", remote(dir.path(), "sb")));
        });
        let central = Self { northd, databases, dir, _netns: netns };
        central.shell("ovn-nbctl --wait=sb init");
        central
    }

    /// Runs a line of the shell, in which `ovn-nbctl`, `ovn-sbctl` and `ovn-trace` find their databases.
    pub fn shell(&self, line: &str) -> String {
        let dir = self.dir.path();
        let databases = format!("OVN_NB_DB={} OVN_SB_DB={}", remote(dir, "nb"), remote(dir, "sb"));
        vswitch::shell(dir, &format!("export {databases}; {line}"))
    }

    /// Changes the logical network, each word list a command of `ovn-nbctl`; returns when all hosts have it.
    pub fn change(&self, commands: &[&str]) {
        self.shell(&format!("ovn-nbctl --timeout=60 {}", commands.join(" -- ")));
        self.sync();
    }

    /// Returns when all hosts have what the databases say.
    pub fn sync(&self) {
        self.shell("ovn-nbctl --wait=hv --timeout=60 sync");
    }
}

impl Drop for Central {
    fn drop(&mut self) {
        spawn::end(&mut self.northd);
        for database in &mut self.databases {
            spawn::end(database);
        }
    }
}

fn remote(dir: &Path, name: &str) -> String {
    format!("unix:{}", dir.join(format!("{name}.sock")).display())
}

fn database(netns: &Netns, dir: &Path, name: &str) -> Child {
    let file = dir.join(format!("{name}.db")).display().to_string();
    vswitch::run(dir, &["ovsdb-tool", "create", &file, &format!("/usr/share/ovn/ovn-{name}.ovsschema")]);
    let child = vswitch::start_server(netns, dir, name, |c| {
        c.args(["ovsdb-server", &file, &format!("--remote=p{}", remote(dir, name))]);
        c.arg(format!("--unixctl={}", dir.join(format!("{name}.ctl")).display()));
    });
    wait_for("a database of OVN", PATIENCE, || dir.join(format!("{name}.sock")).exists());
    child
}

/// A host.
pub struct Host {
    /// Its `ovn-controller`.
    pub controller: Child,
    /// Its `ovs-vswitchd`.
    pub vswitchd: Child,
    database: Child,
    /// Its lasthop.
    pub lasthop: Lasthop,
    /// Its namespace.
    pub netns: Netns,
    dir: tempfile::TempDir,
    name: String,
    sb: String,
}

impl Host {
    /// One without ports, whose tunnels end at 192.0.2.`number`, on an interface `cable` that is there before it is of use.
    pub fn start(central: &Central, name: &str, number: u8) -> Self {
        let (dir, netns) = (scratch(), Netns::new());
        let none: [crate::Port; 0] = [];
        let lasthop = Lasthop::start_in(Some(&netns), &none, &["--control", "ovs", "--no-bpf"]);
        let database = vswitch::database(&netns, dir.path());
        let sb = remote(central.dir.path(), "sb");
        vswitch::shell(
            dir.path(),
            &format!(
                "ovs-vsctl --no-wait set open_vswitch . external_ids:system-id={name} external_ids:hostname={name} \
                 external_ids:ovn-remote={sb} external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.{number}"
            ),
        );
        let vswitchd = vswitch::daemon(&netns, dir.path(), &lasthop);
        let controller = controller(&netns, dir.path());
        let host = Self { controller, vswitchd, database, lasthop, netns, dir, name: name.to_owned(), sb };
        host.shell("ovs-vsctl --timeout=30 --may-exist add-br br-int -- set bridge br-int fail-mode=secure");
        host
    }

    /// Its name, which OVN has for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a line of the shell, in which commands of Open vSwitch's find its servers.
    pub fn shell(&self, line: &str) -> String {
        vswitch::shell(self.dir.path(), line)
    }

    /// Asks `ovs-vswitchd` something.
    pub fn appctl(&self, words: &str) -> String {
        self.shell(&format!("ovs-appctl -t {} {words}", self.dir.path().join("ovs-vswitchd.ctl").display()))
    }

    /// A port of a VM, which is this logical port. Its socket, on which lasthop listens.
    pub fn add_vm(&self, port: &str) -> PathBuf {
        let socket = self.dir.path().join(format!("{port}.sock"));
        self.lasthop.command(&["port", "add", port, &socket.display().to_string()]);
        self.bind(port);
        socket
    }

    /// Takes a VM's port away.
    pub fn remove_vm(&self, port: &str) {
        self.shell(&format!("ovs-vsctl --timeout=30 del-port br-int {port}"));
        self.lasthop.command(&["port", "del", port]);
    }

    /// An interface, or a port of lasthop's, becomes this logical port.
    pub fn bind(&self, port: &str) {
        self.shell(&format!(
            "ovs-vsctl --timeout=30 add-port br-int {port} -- set interface {port} external_ids:iface-id={port}"
        ));
    }

    /// A namespace becomes this logical port, by an internal port that is moved there: `eth0` there, with this Ethernet address.
    pub fn add_namespace(&self, port: &str, mac: &str) -> Netns {
        self.shell(&format!(
            "ovs-vsctl --timeout=30 add-port br-int {port} -- set interface {port} type=internal external_ids:iface-id={port}"
        ));
        let guest = Netns::new();
        self.netns.ip(&format!("link set {port} netns {}", guest.name()));
        guest.ip(&format!("link set {port} name eth0 address {mac} mtu 1442 up"));
        guest
    }

    /// Another `ovs-vswitchd`, after the one before has ended.
    pub fn restart_vswitchd(&mut self) {
        self.vswitchd = vswitch::daemon(&self.netns, self.dir.path(), &self.lasthop);
    }

    /// Another database server, after the one before was killed.
    pub fn restart_database(&mut self) {
        let _ = self.database.kill();
        let _ = self.database.wait();
        self.database = vswitch::serve_database(&self.netns, self.dir.path());
    }

    /// Another `ovn-controller`, after the one before was killed.
    pub fn restart_controller(&mut self) {
        let _ = self.controller.kill();
        let _ = self.controller.wait();
        self.controller = controller(&self.netns, self.dir.path());
    }

    /// What its servers have logged.
    pub fn logs(&self) -> String {
        let of = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        let [switch, controller] =
            ["ovs-vswitchd.log", "ovn-controller.log"].map(|name| crate::last_lines(&of(name), 40));
        let control = self.dir.path().join("ovs-vswitchd.ctl").display().to_string();
        let ask = |what: &str| {
            let told = std::process::Command::new("ovs-appctl").args(["--timeout=5", "-t", &control, what]).output();
            told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default()
        };
        let [flows, connections] = ["dpctl/dump-flows", "dpctl/dump-conntrack"].map(ask);
        let log = self.lasthop.log();
        format!("--- {} ({})\n{switch}\n{controller}\n{log}\n{flows}\n{connections}", self.name, self.sb)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for child in [&mut self.controller, &mut self.vswitchd, &mut self.database] {
            spawn::end(child);
        }
    }
}

fn controller(netns: &Netns, dir: &Path) -> Child {
    vswitch::start_server(netns, dir, "ovn-controller", |c| {
        c.arg("ovn-controller").arg(format!("unix:{}", dir.join("db.sock").display()));
    })
}

/// A cable between two hosts, on which their tunnels go.
pub fn cable(hosts: &[Host; 2]) {
    let [a, b] = hosts;
    a.netns.ip(&format!("link add cable type veth peer name cable netns {}", b.netns.name()));
    for (host, number) in hosts.iter().zip(1..) {
        host.netns.ip("link set cable up");
        host.netns.ip(&format!("addr add 192.0.2.{number}/24 dev cable"));
    }
}
