//! Who floods what Open vSwitch and lasthop share keeps nobody else from being served.

use super::away::deciders;
use super::connections::rules;
use super::*;
use lasthop_conntrack::testutil::Ends;
use lasthop_ovs_abi::family::{self, packet, packet_command};
use lasthop_ovs_abi::netlink::Writer;
use lasthop_tests_process::proc;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    socketpair,
};
use rustix::process::Signal;
use std::os::fd::{AsFd, OwnedFd};

/// Sockets as `liblasthop_ovs.so` opens them, as many as may be, of which none is used as that does.
fn flood(path: &std::path::Path, rounds: usize) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new(path).expect("a path");
    let open = |n: usize| {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        connect(&socket, &address).expect("lasthop-ovs listens");
        // Half a hello, one without its other connection, something else; and most say nothing.
        let said: [&[u8]; 3] = [b"lasthop-", b"lasthop-ovs 3\0\0\0\0\0\0\0\0\0\0\0\0", &[0xff; 4000]];
        if let Some(said) = said.get(n % 9) {
            let _ = send(&socket, said, SendFlags::NOSIGNAL);
        }
        socket
    };
    (0..rounds).map(open).collect()
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let mut site = Site::new();
    let (program, run_dir) = (lasthop_harness::binary("lasthop"), site.lasthop.run_dir().to_owned());
    let path = run_dir.join("ovs.sock");
    let [program, run_dir] = [&program, &run_dir].map(|path| path.display().to_string());
    let mut held = Vec::new();
    for round in 0..4u32 {
        held.extend(flood(&path, 500));
        // What is new is decided, programs that were not there before are let in, and ports come and go.
        let new = mac(10 + round as u8);
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &numbered(new, MacAddr::BROADCAST, 100 + round, 60));
        pass_at_last(b, a, &numbered(mac(2), new, 200 + round, 60));
        let show =
            vswitch::run(site.dir.path(), &[&program, "ovs", "exec", "--run-dir", &run_dir, "--", "ovs-dpctl", "show"]);
        assert!(show.contains("vm1"), "{show}");
        site.vsctl("del-port vm2");
        site.vsctl("add-port br0 vm2 -- set interface vm2 ofport_request=2");
    }
    // Of those that have said nothing the oldest were let go.
    let gone =
        held.iter().filter(|socket| recv(socket, &mut [0u8; 8][..], RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n == 0));
    assert!(gone.count() >= 1000);
    assert!(site.vswitchd.try_wait().expect("it is ours").is_none(), "ovs-vswitchd runs");
    site.lasthop.check_sums();
}

/// What one port's packets have taken of a socket of Open vSwitch's nobody else could have: while `ovs-vswitchd` was behind, other ports' first packets were lost.
#[test]
fn a_port_that_floods_takes_no_other_ports_place_before_open_vswitch() {
    let mut site = Site::new();
    // There are as many sockets as processors; with two, the third port is at that of the first.
    let socket = site.dir.path().join("vm3.sock");
    let add = ["port", "add", "vm3", &socket.display().to_string()];
    site.lasthop.command(&add);
    let mut third = Guest::connect(&socket, mac(3), Options::default());
    site.lasthop.wait_for_state("vm3", "up");
    site.vsctl("add-port br0 vm3");
    pass_at_last(&mut third, &mut site.guests[1], &numbered(mac(3), MacAddr::BROADCAST, 1, 60));
    site.guests[1].drain();
    let pid = deciders(&site)["processes"][0].as_u64().expect("a number") as u32;
    proc::signal(pid, Signal::STOP);
    let lost = |site: &Site, port: &str| {
        let of = deciders(site)["lost_of"].as_array().expect("a list").clone();
        of.iter().find(|of| of["port"] == port).map_or(0, |of| of["packets"].as_u64().expect("a number"))
    };
    // Each to another address, so that each is the first of a flow.
    let mut sent = 0u32;
    wait_for("the socket to be full", PATIENCE, || {
        for _ in 0..200 {
            sent += 1;
            site.guests[0].send(&numbered(mac(9), MacAddr([2, 1, 0, 0, (sent >> 8) as u8, sent as u8]), sent, 60));
        }
        lost(&site, "vm1") > 0
    });
    const QUIET: u32 = 0xffff;
    let quiet = numbered(mac(3), MacAddr([2, 9, 9, 9, 9, 9]), QUIET, 60);
    third.send(&quiet);
    site.guests[1].drain();
    proc::signal(pid, Signal::CONT);
    // Nobody has that address: it goes to all, by what Open vSwitch says.
    site.guests[1].recv("the quiet port's packet", |_, frame| number_of(frame) == Some(QUIET));
    assert_eq!((lost(&site, "vm3"), lost(&site, "vm2")), (0, 0));
    let stats = site.lasthop.command(&["stats"]);
    assert!(stats.contains(&format!("of vm1 {}", lost(&site, "vm1"))), "{stats}");
    site.lasthop.check_sums();
}

/// Most memory that lasthop-ovs has had, in KiB.
fn most_memory(site: &Site) -> u64 {
    let pid = site.lasthop.child("lasthop-ovs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A connection as `liblasthop_ovs.so` makes it, and its second one, by which it hears that a request is answered.
fn client(path: &std::path::Path) -> [OwnedFd; 2] {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("lasthop-ovs listens");
    let (second, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let hello = [&b"lasthop-ovs 3"[..], &[0; 12]].concat();
    lasthop_sys::send_with_fds(&socket, &hello, &[theirs.as_fd()], SendFlags::empty()).expect("it is sent");
    let (n, _) = recv(&second, &mut [0u8; 16][..], RecvFlags::empty()).expect("a number");
    assert_eq!(n, 12);
    [socket, second]
}

/// It took as much memory as all of its frames, and nobody else had a turn meanwhile.
#[test]
fn a_packet_with_thousands_of_outputs_takes_little_memory_and_nobodys_turn() {
    const OUTPUTS: usize = 4000;
    const LEN: usize = 60_000;
    let mut site = Site::new();
    let show = site.appctl(&["dpctl/show"]);
    let port = show.lines().find_map(|line| line.trim().strip_prefix("port ")?.strip_suffix(": vm2"));
    let port: u32 = port.and_then(|no| no.parse().ok()).unwrap_or_else(|| panic!("no vm2 in {show}"));
    let mut to = Writer::new();
    to.begin(family::PACKET.id, 1, 1, 0);
    to.ovs_header(packet_command::EXECUTE, family::PACKET.version, 0);
    to.attribute(packet::PACKET, &numbered(mac(7), mac(2), 9, LEN));
    to.nest(packet::KEY, |to| to.number(3, port));
    to.nest(packet::ACTIONS, |to| (0..OUTPUTS).for_each(|_| to.number(1, port)));
    to.end();
    let [socket, second] = client(&site.lasthop.run_dir().join("ovs.sock"));
    // From here on (proc(5): clear_refs).
    std::fs::write(format!("/proc/{}/clear_refs", site.lasthop.child("lasthop-ovs")), "5").expect("root may");
    let before = most_memory(&site);
    let request = to.into_bytes();
    assert_eq!(send(&socket, &request, SendFlags::empty()), Ok(request.len()));
    // Others are decided about meanwhile.
    let [a, b] = &mut site.guests;
    pass_at_last(b, a, &numbered(mac(2), MacAddr::BROADCAST, 1, 60));
    let (n, _) = recv(&second, &mut [0u8; 16][..], RecvFlags::empty()).expect("the answer");
    assert_eq!(n, 1, "all is sent");
    let refused = recv(&socket, &mut [0u8; 64][..], RecvFlags::DONTWAIT);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN), "it was not refused");
    let took = most_memory(&site).saturating_sub(before);
    assert!(took < (OUTPUTS * LEN / 8 / 1024) as u64, "{took} KiB");
    site.lasthop.check_sums();
}

/// As many as a port may open, and some more.
#[test]
#[ignore = "takes long; `cargo xtask test --long` runs it"]
fn a_guest_opens_no_more_connections_than_its_ports_share() {
    let mut site = Site::new();
    // None of them ends meanwhile.
    site.vsctl("-- --id=@m create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:system=@m");
    site.vsctl("add-zone-tp system zone=1 udp_single=3600");
    rules(
        &site,
        &["in_port=1,udp,actions=ct(commit,zone=1),output:2", "in_port=2,udp,actions=ct(commit,zone=1),output:1"],
    );
    let figures = |site: &Site| site.lasthop.command(&["conntrack", "stats"]);
    let is_full = "vm1: 65536 of 65536 opened from there";
    let mut sent = 0u32;
    wait_for("the share to be used up", 20 * PATIENCE, || {
        for _ in 0..2000 {
            let ends = Ends { hosts: [1, 2 + (sent / 60_000) as u8], ..Ends::v4(1 + (sent % 60_000) as u16, 53) };
            site.guests[0].send(&ends.udp(20));
            while site.guests[1].try_recv().is_some() {}
            sent += 1;
        }
        figures(&site).contains(is_full)
    });
    // What is beyond that is refused, and the other guest opens as many as it likes.
    wait_for("one more to be refused", PATIENCE, || {
        site.guests[0].send(&Ends { hosts: [1, 200], ..Ends::v4(1, 53) }.udp(20));
        figures(&site).contains("owner_limit")
    });
    let [a, b] = &mut site.guests;
    a.drain();
    for port in 0..200 {
        pass_at_last(b, a, &Ends { hosts: [2, 1], ..Ends::v4(1000 + port, 54) }.udp(20));
    }
    let told = figures(&site);
    assert!(told.contains(is_full) && told.contains("vm2: 200 of 65536 opened"), "{told}");
}
