//! Internal ports: one that is moved to another network namespace stays a port, as containers and Neutron's agents use them.

use super::*;
use lasthop_tests_process::proc;
use std::io::{Read, Write};

pub(super) const FIREWALL: [&str; 5] = [
    "priority=10,arp,actions=NORMAL",
    "priority=10,icmp,actions=NORMAL",
    "priority=100,in_port=11,tcp,ct_state=-trk,actions=ct(commit,zone=1),output:12",
    "priority=100,in_port=12,tcp,ct_state=-trk,actions=ct(table=0,zone=1)",
    "priority=100,in_port=12,tcp,ct_state=+trk,ct_zone=1,actions=output:11",
];

/// Listens, or connects, in a namespace: threads may be in others than their process.
pub(super) fn within<T: Send>(netns: &Netns, what: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(format!("/run/netns/{}", netns.name())).expect("a namespace");
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            what()
        });
        done.join().expect("no panic")
    })
}

#[test]
fn internal_ports_in_other_namespaces_carry_tracked_connections() {
    let site = Site::new();
    let inside = [Netns::new(), Netns::new()];
    for (n, netns) in inside.iter().enumerate() {
        let (name, port) = (format!("in{n}"), 11 + n);
        site.vsctl(&format!("add-port br0 {name} -- set interface {name} type=internal ofport_request={port}"));
        site.netns.ip(&format!("link set {name} netns {}", netns.name()));
        netns.ip(&format!("addr add 10.9.0.{port}/24 dev {name}"));
        netns.ip(&format!("link set {name} up"));
    }
    site.ofctl(&["del-flows"]);
    FIREWALL.iter().for_each(|rule| drop(site.ofctl(&["add-flow", rule])));
    wait_for("a ping", PATIENCE, || inside[0].output("ping -n -c 1 -W 1 10.9.0.12").status.success());
    let listener = within(&inside[1], || std::net::TcpListener::bind("10.9.0.12:80").expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut asked = [0; 5];
        stream.read_exact(&mut asked).expect("a question");
        stream.write_all(&vec![7; 300_000]).expect("an answer");
        asked
    });
    let got = within(&inside[0], || {
        let address = "10.9.0.12:80".parse().expect("an address");
        let mut stream = std::net::TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.write_all(b"hello").expect("a question");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("an answer");
        got
    });
    assert_eq!(server.join().expect("no panic"), *b"hello");
    assert_eq!((got.len(), got.iter().all(|byte| *byte == 7)), (300_000, true));
    let all = site.appctl(&["dpctl/dump-conntrack", "zone=1"]);
    assert!(all.contains("src=10.9.0.11,dst=10.9.0.12"), "{all}");

    // The processes behind them are killed: the next go on with the same devices, wherever those are.
    let uplinks = || {
        let children = proc::children(site.lasthop.pid()).into_iter();
        children.filter(|(_, name)| name == "lasthop-uplink").map(|(pid, _)| pid).collect::<Vec<_>>()
    };
    let before = uplinks();
    before.iter().for_each(|pid| proc::signal(*pid, rustix::process::Signal::KILL));
    wait_for("other processes", PATIENCE, || {
        let now = uplinks();
        now.len() == before.len() && now.iter().all(|pid| !before.contains(pid))
    });
    wait_for("a ping", PATIENCE, || inside[0].output("ping -n -c 1 -W 1 10.9.0.12").status.success());
}
