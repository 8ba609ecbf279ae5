//! A VM that moves to another lasthop, and what that lasthop is told of it (`lasthop port export`, `port import`).

use lasthop_harness::{Lasthop, Movable, Netns, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// The guest dirties memory, so that QEMU does not stop it before it is told to.
const KEEP_DIRTYING: &str = "dd if=/dev/urandom of=/tmp/pages bs=64k count=64 2>/dev/null; \
     while true; do dd if=/tmp/pages of=/tmp/dirty bs=64k conv=notrunc 2>/dev/null; usleep 20000; done";

/// Each list lets one side open what the other may only answer.
const GROUP: &str = "stateful\ndefault from-guest deny\ndefault to-guest deny\n\
     permit to-guest tcp to any port 9000\npermit from-guest tcp to any port 9001\n";

/// One end of a connection in a guest: what is written to `PORT.say` is said, what is heard goes to `PORT.heard`.
fn talks(vm: &Vm, port: u16, program: &str) {
    vm.run(&format!("mkfifo /tmp/{port}.say; touch /tmp/{port}.heard /tmp/{port}.said"));
    // The other end of the pipe stays open, so that the connection does.
    vm.background(&format!("sleep 100000 >/tmp/{port}.say"));
    vm.background(&format!("{program} </tmp/{port}.say >/tmp/{port}.heard"));
}

/// A TCP connection that `from` opens to `port` of `to`.
fn connect(from: &Vm, to: &Vm, port: u16) {
    talks(to, port, &format!("nc -l -p {port}"));
    to.run(&format!("for i in $(seq 100); do netstat -ltn | grep -q :{port} && exit 0; usleep 50000; done; exit 1"));
    talks(from, port, &format!("nc {} {port}", to.config.nics[0].ip4()));
    say(from, port, 1);
    hears(to, port, from);
    say(to, port, 1);
    hears(from, port, to);
}

/// Says so many KiB that nobody has said before.
fn say(vm: &Vm, port: u16, kib: u32) {
    let now = format!("/tmp/{port}.now");
    vm.run(&format!(
        "dd if=/dev/urandom of={now} bs=1k count={kib} 2>/dev/null; cat {now} >>/tmp/{port}.said; cat {now} >/tmp/{port}.say"
    ));
}

fn size(vm: &Vm, port: u16, what: &str) -> u64 {
    vm.run(&format!("wc -c </tmp/{port}.{what}")).trim().parse().expect("a number")
}

/// All that the other has said has come, and is what was said.
fn hears(vm: &Vm, port: u16, other: &Vm) {
    wait_for("what was said", LIMIT, || size(vm, port, "heard") == size(other, port, "said"));
    let sum = |vm: &Vm, what: &str| vm.run(&format!("sha256sum </tmp/{port}.{what}"));
    assert_eq!(sum(vm, "heard"), sum(other, "said"), "port {port}");
}

/// Packets from a port that were dropped.
fn drops(host: &Lasthop, port: &str) -> u64 {
    let drops = host.port(port)["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().filter_map(|drop| drop["packets"].as_u64()).sum()
}

/// Two hosts with a cable between them. What the guest has opened and what it has been asked goes on at the other host, in the middle of a
/// stream, although each side only says what lists let pass on an established connection; before the other host is told it does not.
#[test]
fn established_connections_go_on_at_another_lasthop() {
    let (dir, netns) = (scratch(), Netns::new());
    netns.ip("link add v0 type veth peer name v1");
    let port = |name: &str| Port::listen(name, dir.path());
    let (here, peers, there) = (port("vm"), port("peer"), port("moved"));
    let start = |ports: &[Port], uplink: &str| Lasthop::start_in(Some(&netns), ports, &["--uplink", uplink]);
    let first = start(&[here.clone(), peers.clone()], "cable=v0,af_packet");
    // A port there has the peer's name, and is another guest's.
    let second = start(std::slice::from_ref(&there), "cable=v1,af_packet");
    second.command(&["port", "add", "peer", &dir.path().join("other.sock").display().to_string()]);
    let moving = VmConfig::new("moving", [Nic::vhost_user(&here.socket, 1)]).movable(Movable::Boots);
    let [moving, peer] = Vm::boot_all([moving, VmConfig::new("peer", [Nic::vhost_user(&peers.socket, 2)])]);
    let group = dir.path().join("group").display().to_string();
    std::fs::write(&group, GROUP).expect("a file");
    first.command(&["acl", "load", &group, "--port", "vm"]);
    second.command(&["acl", "load", &group, "--port", "moved"]);
    first.command(&["port", "set", "vm", "--rate-from", "500M", "--no-dhcp-server"]);
    connect(&peer, &moving, 9000);
    connect(&moving, &peer, 9001);

    moving.background(KEEP_DIRTYING);
    let file = dir.path().join("vm.json").display().to_string();
    std::fs::write(&file, first.command(&["port", "export", "vm"])).expect("a file");
    // The guest goes on saying something on the one connection while it moves; on the other nobody speaks.
    moving.background(
        "until [ -e /tmp/enough ]; do dd if=/dev/urandom of=/tmp/now bs=1k count=4 2>/dev/null; \
         cat /tmp/now >>/tmp/9000.said; cat /tmp/now >/tmp/9000.say; usleep 50000; done; touch /tmp/all-said",
    );
    let waits = Vm::launch(VmConfig::new("moved", [Nic::vhost_user(&there.socket, 1)]).movable(Movable::Waits));
    let (moved, how) = moving.move_to(waits, |_| {
        let before = size(&peer, 9000, "heard");
        wait_for("some of the stream", LIMIT, || size(&peer, 9000, "heard") > before + 20_000);
    });
    println!("{how:?}");
    second.wait_for_state("moved", "up");

    // Nobody has told the other host: what the guest goes on saying is refused, time and again, and so is what it is told.
    let (refused, heard) = (drops(&second, "moved"), size(&peer, 9000, "heard"));
    say(&peer, 9001, 1);
    wait_for("what is refused", LIMIT, || {
        drops(&second, "moved") >= refused + 3 && drops(&second, second.port_of_uplink("cable")) > 0
    });
    assert_eq!((size(&peer, 9000, "heard"), size(&moved, 9001, "heard")), (heard, 1024));

    let said = second.command(&["port", "import", "moved", &file]);
    assert!(said.contains("2 settings changed, 2 access lists loaded, 1 address, 2 connections\n"), "{said}");
    wait_for("the stream to go on", LIMIT, || size(&peer, 9000, "heard") > heard);
    moved.run("touch /tmp/enough; until [ -e /tmp/all-said ]; do usleep 50000; done");
    hears(&peer, 9000, &moved);
    hears(&moved, 9001, &peer);
    say(&peer, 9000, 64);
    hears(&moved, 9000, &peer);
    say(&moved, 9001, 64);
    hears(&peer, 9001, &moved);
    // What is new is judged as before: neither side may open what only the other may.
    let opens = |vm: &Vm, to: &Vm, port: u16| {
        vm.output(&format!("echo | timeout 3 nc -w 2 {} {port}", to.config.nics[0].ip4()), 10).code == 0
    };
    moved.background("nc -l -p 9001");
    peer.background("nc -l -p 9000");
    assert!(!opens(&peer, &moved, 9001) && !opens(&moved, &peer, 9000));
    let told = |host: &Lasthop, name: &str| host.port(name)["settings"].clone();
    assert_eq!(told(&first, "vm"), told(&second, "moved"));
    let macs = second.command(&["mac", "list"]);
    assert!(macs.lines().any(|line| line.contains(" moved ") && line.contains("52:54:00:00:00:01")), "{macs}");
    second.check_sums();
}
