//! A driver domain that nobody here wrote: DPDK's testpmd between a port of lasthop and a network interface.

use lasthop_harness::spawn::spawn;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Netns, Options, Port, Station, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// testpmd that carries every frame from the one to the other, both ways. Dropping it ends it.
struct Testpmd {
    child: Child,
    log: std::path::PathBuf,
}

impl Testpmd {
    /// `socket`: where lasthop listens. `interface`: of the namespace, to be used by DPDK's packet sockets.
    fn start(netns: &Netns, dir: &Path, socket: &Path, interface: &str) -> Self {
        let log = dir.join("testpmd.log");
        let child = spawn("KILL", "ip", |c| {
            let out = std::fs::File::create(&log).expect("a log in the scratch directory");
            c.args(["netns", "exec", netns.name(), "stdbuf", "-o0", "dpdk-testpmd", "--lcores", "0@(0,1),1@(0,1)"]);
            c.args(["--in-memory", "--single-file-segments", "--no-pci", "-m", "128", "--file-prefix"]);
            c.arg(dir.file_name().expect("the directory has a name"));
            c.args(["--vdev", &format!("net_virtio_user0,path={},server=0,queues=1,queue_size=256", socket.display())]);
            c.args(["--vdev", &format!("net_af_packet0,iface={interface}")]);
            c.args(["--", "--nb-cores=1", "--forward-mode=io", "--auto-start", "--total-num-mbufs=4096"]);
            // It ends when its standard input does.
            c.stdin(Stdio::piped()).stdout(out.try_clone().expect("a second handle")).stderr(out);
        });
        Self { child, log }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- testpmd\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Frames of all lengths both ways.
fn frames_cross(guest: &mut Guest, station: &Station, from: u32) {
    // Its receive ring may not have been there for the first ones.
    wait_for("frames to cross", Duration::from_secs(30), || {
        guest.send(&numbered(guest.mac, MacAddr::BROADCAST, from, 60));
        station.drain().iter().any(|f| number_of(f) == Some(from))
    });
    for (n, len) in (from + 1..).zip((60..1514).step_by(97).chain([1513, 1514])) {
        station.send(&numbered(mac(9), guest.mac, n, len));
        guest.expect_number(n);
        guest.send(&numbered(guest.mac, mac(9), n, len));
        station.recv("a guest's frame", |f| number_of(f) == Some(n));
    }
}

#[test]
fn testpmd_is_a_driver_domain() {
    let (netns, dir) = (Netns::new(), scratch());
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    netns.ip("link set u0 up");
    let ports = ["a", "c", "d", "net"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let path = |name: &str| dir.path().join(format!("{name}.sock"));
    let bystanders = Bystanders::start(&path("c"), &path("d"), [mac(0xc), mac(0xd)]);
    let mut guest = Guest::connect(&path("a"), mac(1), Options::default());
    let station = Station::on(&netns, "s0");
    for round in 0..2 {
        let testpmd = Testpmd::start(&netns, dir.path(), &path("net"), "u0");
        wait_for("testpmd to be plugged in", Duration::from_secs(30), || lasthop.port("net")["state"] == "up");
        frames_cross(&mut guest, &station, 1000 * (round + 1));
        // Killed, it takes nobody along, and the next one goes on.
        let found = proc::tree(testpmd.child.id()).into_iter().next_back().expect("itself at least");
        proc::signal(found, Signal::KILL);
        lasthop.wait_for_state("net", "waiting");
        bystanders.still_exchange();
    }
    lasthop.check_sums();
}
