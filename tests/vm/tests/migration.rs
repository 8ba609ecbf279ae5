//! A VM that moves from one QEMU to another, each at a port of its own, while it talks.

use lasthop_harness::checks::Counted;
use lasthop_harness::{Lasthop, Movable, Nic, Port, Vm, VmConfig, scratch};
use std::time::Duration;

const FRAMES: u64 = 6000;
/// Between two frames.
const PAUSE_US: u64 = 1000;

/// What reaches the moving guest while nobody there reads it lies where the switch has written it: a page that is not in the log is
/// wrong there. The guest dirties memory itself, so that QEMU goes over what is dirty again and again.
const KEEP_DIRTYING: &str = "dd if=/dev/urandom of=/tmp/pages bs=64k count=64 2>/dev/null; \
     while true; do dd if=/tmp/pages of=/tmp/dirty bs=64k conv=notrunc 2>/dev/null; usleep 20000; done";

/// The TCP server's processes, for the guest's shell: its busybox has no pgrep.
const SERVERS: &str = "$(ps | awk '/[t]cp-serve/ {print $1}')";

struct Site {
    _dir: tempfile::TempDir,
    lasthop: Lasthop,
    ports: [Port; 3],
    peer: Vm,
    properties: &'static str,
}

impl Site {
    fn new(properties: &'static str) -> (Self, Vm) {
        let dir = scratch();
        let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let moving = VmConfig::new("moving", [Self::nic(&ports[0], properties)]).movable(Movable::Boots);
        let peer = VmConfig::new("peer", [Nic::vhost_user(&ports[2].socket, 2)]);
        let [moving, peer] = Vm::boot_all([moving, peer]);
        for vm in [&moving, &peer] {
            vm.serve();
        }
        moving.background(KEEP_DIRTYING);
        (Self { _dir: dir, lasthop, ports, peer, properties }, moving)
    }

    fn nic(port: &Port, properties: &str) -> Nic {
        Nic::vhost_user(&port.socket, 1).with(properties)
    }

    /// Moves it to port `to` under a stream each way and numbered frames, and checks all of them.
    fn check_move(&self, moving: Vm, to: usize) -> Vm {
        let from = &self.ports[1 - to].name;
        let waits = VmConfig::new("moved", [Self::nic(&self.ports[to], self.properties)]).movable(Movable::Waits);
        let waits = Vm::launch(waits);
        let (mac, address, peer) =
            (moving.config.nics[0].mac(), moving.config.nics[0].ip4(), self.peer.config.nics[0].ip4());
        moving.run("rm -f /tmp/frames /tmp/push");
        moving.background(&format!("lasthop-guest raw-recv eth0 88b5 {FRAMES} 5 >/tmp/f; mv /tmp/f /tmp/frames"));
        moving.background(&format!("lasthop-guest tcp-push {peer}:7000 6 >/tmp/p 2>&1; mv /tmp/p /tmp/push"));
        moving.run("until [ $(wc -l </proc/net/packet) -gt 1 ]; do usleep 20000; done");
        let frames = self.peer.spawn(&format!("lasthop-guest raw-send eth0 {mac} 88b5 {FRAMES} 64 1514 {PAUSE_US}"));
        let mut pushes = Vec::new();
        moving.run(&format!("kill -STOP {SERVERS}"));
        let (moved, how) = moving.move_to(waits, |_| {
            let push = || self.peer.spawn(&format!("lasthop-guest tcp-push {address}:7000 3"));
            pushes = (0..4).map(|_| push()).collect();
            std::thread::sleep(Duration::from_secs(1));
            let list = self.lasthop.command(&["port", "list"]);
            assert!(list.lines().any(|line| line.starts_with(&format!("{from}: migrating: "))), "{list}");
        });
        let log = self.lasthop.log();
        assert!([": migrating: ", ": moved: "].iter().all(|word| log.contains(&format!("port {from}{word}"))), "{log}");
        moved.run(&format!("kill -CONT {SERVERS}"));
        for push in pushes {
            push.success(Duration::from_secs(60));
        }
        frames.success(Duration::from_secs(60));
        let result = |file: &str| moved.output(&format!("until [ -e {file} ]; do usleep 50000; done; cat {file}"), 60);
        assert!(result("/tmp/push").stdout.starts_with("ok "), "{:?}", result("/tmp/push"));
        let counted = Counted::parse(&result("/tmp/frames"));
        println!("{how:?} {counted:?}");
        assert_eq!((counted.repeated, counted.damaged), (0, 0), "{counted:?}");
        // What came while the guest stood still, and no more: some fit into the ring before and behind.
        assert!(counted.lost <= counted.gap_ms * 1000 / PAUSE_US + 20, "{counted:?}, {how:?}");
        assert!(how.rounds > 2, "{how:?}");
        let port = &self.ports[to].name;
        let macs = self.lasthop.command(&["mac", "list"]);
        assert!(macs.lines().any(|line| line.contains(&mac) && line.contains(&format!(" {port} "))), "{macs}");
        moved
    }
}

#[test]
fn a_vm_moves_while_it_talks() {
    let (site, moving) = Site::new("");
    site.check_move(moving, 1);
}

#[test]
#[ignore = "back and forth, with other rings; `cargo xtask test --long` runs it"]
fn a_vm_moves_back_and_forth() {
    let times = std::env::var("LASTHOP_MOVES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    for properties in ["packed=on", "mrg_rxbuf=off"] {
        let (site, mut moving) = Site::new(properties);
        for n in 0..times {
            moving = site.check_move(moving, (n + 1) % 2);
        }
    }
}
