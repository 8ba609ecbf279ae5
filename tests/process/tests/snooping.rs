//! Multicasts where they are wanted (`port set --snooping`): IGMP in, packets out.

use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, scratch, wait_for};
use lasthop_text::MacAddr;
use nix::sched::{CloneFlags, setns};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

const GROUP: [u8; 4] = [239, 1, 2, 3];
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];

fn group_mac([_, b, c, d]: [u8; 4]) -> MacAddr {
    MacAddr([1, 0, 0x5e, b & 0x7f, c, d])
}

/// An IPv4 packet with this protocol and payload, whose IP header is right.
fn packet(from: u8, dst: [u8; 4], proto: u8, payload: &[u8]) -> Vec<u8> {
    let len = 20 + payload.len() as u16;
    let mut ip = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 1, proto, 0, 0, 10, 0, 0, from];
    ip.extend(dst);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&group_mac(dst).0[..], &mac(from).0, &[8, 0], &ip, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn igmp(from: u8, kind: u8, group: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
    packet(from, dst, 2, &[&[kind, 0, 0, 0], &group[..]].concat())
}

/// Data with a number for a group.
fn data(from: u8, group: [u8; 4], number: u8) -> Vec<u8> {
    packet(from, group, 17, &[0, 9, 0, 9, 0, 9, 0, 0, number])
}

/// One sends a frame; who of the others gets it.
fn reaches(guests: &mut [Guest], from: usize, frame: &[u8], expected: &[usize]) {
    guests[from].send(frame);
    guests[from].all_taken();
    expected.iter().for_each(|to| guests[*to].expect(frame));
    for (n, guest) in guests.iter_mut().enumerate() {
        assert!(!guest.drain().iter().any(|f| f == frame), "guest {n} got it (again); expected {expected:?}");
    }
}

#[test]
fn a_multicast_goes_where_it_was_joined_and_nowhere_else() {
    let dir = scratch();
    let names = ["a", "b", "c", "r"];
    let ports = names.map(|name| Port::listen(name, dir.path()));
    let mut lasthop = Lasthop::start(&ports);
    let connect = |lasthop: &Lasthop| {
        let mut n = 0;
        let guests = names.map(|name| {
            n += 1;
            Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default())
        });
        names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        guests
    };
    let mut guests = connect(&lasthop);
    assert_eq!(lasthop.command(&["port", "set", "a", "--snooping"]), "port a: snooping=on\n");
    lasthop.command(&["port", "set", "b", "--snooping", "on"]);
    reaches(&mut guests, 2, &data(3, GROUP, 1), &[0, 1, 3]);
    let query = igmp(4, 0x11, [0; 4], ALL_HOSTS);
    reaches(&mut guests, 3, &query, &[0, 1, 2]);
    reaches(&mut guests, 2, &data(3, GROUP, 2), &[3]);
    reaches(&mut guests, 0, &igmp(1, 0x16, GROUP, GROUP), &[2, 3]);
    reaches(&mut guests, 2, &data(3, GROUP, 3), &[0, 3]);
    reaches(&mut guests, 2, &data(3, [239, 9, 9, 9], 4), &[3]);
    reaches(&mut guests, 2, &data(3, [224, 0, 0, 251], 5), &[0, 1, 3]);
    reaches(&mut guests, 1, &igmp(2, 0x16, GROUP, GROUP), &[2, 3]);
    reaches(&mut guests, 2, &data(3, GROUP, 6), &[0, 1, 3]);
    let list = lasthop.command(&["mac", "groups"]);
    let wanted = [("all (routers)", "r ("), ("01:00:5e:01:02:03", "a (")];
    assert!(wanted.iter().all(|(group, port)| list.lines().any(|l| l.contains(group) && l.contains(port))), "{list}");
    let json = lasthop.json(&["mac", "groups"]);
    assert_eq!(json["groups"][1]["members"].as_array().map(Vec::len), Some(2), "{json}");
    let (src, dst) = (mac(3).to_string(), group_mac([239, 9, 9, 9]).to_string());
    let said = lasthop.command(&["trace", "--in-port", "c", "--eth-src", &src, "--eth-dst", &dst]);
    assert!(said.contains("a has snooping=on and has not joined this group"), "{said}");
    // Another control knows nothing: all get everything until a router has asked and they have answered.
    lasthop.kill("lasthop-control");
    reaches(&mut guests, 2, &data(3, [239, 7, 7, 7], 7), &[0, 1, 3]);
    reaches(&mut guests, 3, &query, &[0, 1, 2]);
    reaches(&mut guests, 0, &igmp(1, 0x16, GROUP, GROUP), &[2, 3]);
    reaches(&mut guests, 2, &data(3, GROUP, 8), &[0, 3]);
    // The setting is remembered.
    drop(guests);
    lasthop = lasthop.start_again(None, &ports, &[], || {});
    let mut guests = connect(&lasthop);
    reaches(&mut guests, 3, &query, &[0, 1, 2]);
    reaches(&mut guests, 2, &data(3, GROUP, 9), &[3]);
    for port in ["a", "b"] {
        lasthop.command(&["port", "set", port, "--snooping", "off"]);
    }
    reaches(&mut guests, 2, &data(3, GROUP, 10), &[0, 1, 3]);
    assert!(lasthop.command(&["mac", "groups"]).starts_with("no groups"));
    lasthop.check_sums();
}

/// A socket of the namespace's that has joined a group.
fn join(netns: &Netns, join: impl FnOnce() -> UdpSocket + Send + 'static) -> UdpSocket {
    let path = format!("/run/netns/{}", netns.name());
    // A namespace is a thread's: one that ends at once leaves the socket where it was made.
    let joined = std::thread::spawn(move || {
        let netns = std::fs::File::open(&path).expect("the namespace exists");
        setns(netns, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
        join()
    });
    joined.join().expect("a socket")
}

/// Linux joins and leaves: a namespace that is a guest by its end of a veth.
#[test]
fn what_linux_says_is_understood() {
    let (dir, netns) = (scratch(), Netns::new());
    netns.ip("link add k0 type veth peer name k1");
    netns.shell("echo 0 >/proc/sys/net/ipv6/conf/k1/disable_ipv6");
    netns.ip("link set k1 up");
    netns.ip("addr add 10.0.0.5/24 dev k1");
    let ports = ["c", "r"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--port", "k=device:k0,driver=af_packet,snooping"]);
    let guest = |name: &str, n| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
    let (mut c, mut r) = (guest("c", 3), guest("r", 4));
    ["c", "r", "k"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    let station = Station::on(&netns, "k1");
    let is_member = |group: MacAddr| {
        let groups = lasthop.json(&["mac", "groups"])["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().any(|g| g["group"] == group.to_string().as_str() && g["members"][0]["port"] == "k")
    };
    let query = igmp(4, 0x11, [0; 4], ALL_HOSTS);
    r.send(&query);
    station.recv("the query", |f| *f == query);
    let v6: Ipv6Addr = "ff05::1:3".parse().unwrap();
    let v6_mac = MacAddr([0x33, 0x33, 0, 1, 0, 3]);
    let mut number = 0;
    let mut send = |c: &mut Guest, wanted: bool| {
        number += 1;
        let frame = data(3, GROUP, number);
        c.send(&frame);
        c.all_taken();
        r.expect(&frame);
        if wanted {
            station.recv("what it has joined", |f| *f == frame);
        }
        assert!(!station.drain().contains(&frame), "{wanted}");
    };
    send(&mut c, false);
    let socket = join(&netns, || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.join_multicast_v4(&GROUP.into(), &Ipv4Addr::new(10, 0, 0, 5)).expect("it joins");
        socket
    });
    wait_for("a report of IGMP", PATIENCE, || is_member(group_mac(GROUP)));
    send(&mut c, true);
    let index: u32 = {
        let shown = netns.shell("ip -o link show k1");
        shown.split(':').next().and_then(|n| n.trim().parse().ok()).expect("its number")
    };
    let socket_v6 = join(&netns, move || {
        let socket = UdpSocket::bind("[::]:0").expect("a socket");
        socket.join_multicast_v6(&v6, index).expect("it joins");
        socket
    });
    wait_for("a report of MLD", PATIENCE, || is_member(v6_mac));
    drop((socket, socket_v6));
    wait_for("both to be left", 2 * PATIENCE, || !is_member(group_mac(GROUP)) && !is_member(v6_mac));
    send(&mut c, false);
    lasthop.check_sums();
}
