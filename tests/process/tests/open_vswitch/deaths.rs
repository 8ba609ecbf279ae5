//! `lasthop-ovs` is killed, or `lasthop-switch`: what it was told holds on, and connections go on, whoever speaks first.

use super::connections::{FIREWALL, established, nothing_passes, rules};
use super::internal::{FIREWALL as WITHIN, within};
use super::*;
use lasthop_conntrack::testutil::{Ends, seg};
use lasthop_tests_process::{connect, proc};
use rustix::process::Signal;
use std::io::{Read, Write};

#[test]
fn meters_limits_policies_and_connections_outlive_lasthop_ovs() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    site.ofctl13(&["add-meter", "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=10"]);
    site.ofctl13(&["add-flow", "priority=20,in_port=1,dl_type=0x88b5,actions=meter:1,output:2"]);
    site.appctl(&["dpctl/ct-set-limits", "default=1000", "zone=7,limit=2"]);
    site.vsctl("-- --id=@m create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:system=@m");
    site.vsctl("add-zone-tp system zone=9 udp_single=77 udp_multiple=78");
    let limits = |site: &Site| site.appctl(&["dpctl/ct-get-limits", "zone=7"]);
    let ends = Ends::v4(1000, 80);
    established(&mut site, ends);
    let dns = Ends::v4(2000, 53);
    let [a, b] = &mut site.guests;
    pass(a, b, &dns.udp(30));
    pass(b, a, &dns.back().udp(30));
    assert_eq!(limits(&site), "default limit=1000\nzone=7,limit=2,count=2\n");

    for round in 0..3u32 {
        let at = 1000 * round;
        // A stream both ways, while it is killed.
        let [a, b] = &mut site.guests;
        for n in 0..40 {
            a.send(&ends.tcp(&seg("PA", 101 + at + n, 301 + at, 1)));
            b.send(&ends.back().tcp(&seg("A", 301 + at, 101 + at + n, 0)));
            if n == 20 {
                site.lasthop.kill("lasthop-ovs");
            }
        }
        // Who was asked speaks first: only because the connection is known may it.
        let [a, b] = &mut site.guests;
        pass_at_last(b, a, &ends.back().tcp(&seg("PA", 301 + at, 601 + at, 100)));
        pass_at_last(a, b, &ends.tcp(&seg("PA", 601 + at, 401 + at, 100)));
        pass_at_last(b, a, &dns.back().udp(40 + round as usize));
        a.drain();
        nothing_passes(&mut site, &Ends::v4(1001, 80).back().tcp(&seg("PA", 7, 7, 100)));
        assert_eq!(limits(&site), "default limit=1000\nzone=7,limit=2,count=2\n");
        let all = site.appctl(&["dpctl/dump-conntrack"]);
        assert!(all.contains("sport=1000,dport=80") && all.contains("mark=5"), "{all}");

        // A meter drops as before: what it has counted begins anew.
        const SENT: u64 = 60;
        let to_meter = |n: u32| {
            let frame = numbered(mac(1), mac(2), n, 300);
            [&frame[..12], &[0x88, 0xb5], &frame[14..]].concat()
        };
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &to_meter(0));
        let [came, dropped] = site.metered();
        (0..SENT).for_each(|n| site.guests[0].send(&to_meter(n as u32)));
        wait_for("all at the meter", PATIENCE, || site.metered()[0] >= came + SENT);
        let dropped = site.metered()[1] - dropped;
        assert!(dropped >= 30, "{dropped} of {SENT}");
    }
    let told = std::fs::read_to_string(site.dir.path().join("ovs-vswitchd.log")).unwrap_or_default();
    assert!(site.vswitchd.try_wait().expect("it is ours").is_none(), "ovs-vswitchd runs: {told}");
    site.lasthop.check_sums();
}

/// The switch's flows come again from `lasthop-ovs`, which has the connections: `ovs-vswitchd` stands still meanwhile.
#[test]
fn connections_stay_when_lasthop_switch_is_killed() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let ends = Ends::v4(1000, 80);
    established(&mut site, ends);
    for round in 0..3u32 {
        let [sent, answered] = [101 + 1000 * round, 301 + 1000 * round];
        let there = ends.tcp(&seg("PA", sent, answered, 100));
        let back = ends.back().tcp(&seg("PA", answered, sent + 100, 100));
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &there);
        pass_at_last(b, a, &back);
        proc::signal(site.vswitchd.id(), Signal::STOP);
        site.lasthop.kill("lasthop-switch");
        for (guest, name) in site.guests.iter_mut().zip(["vm1", "vm2"]) {
            wait_for("the end of the connection", PATIENCE, || guest.is_disconnected());
            let front = connect(&site.dir.path().join(format!("{name}.sock")));
            guest.reattach(front, None).expect("the next switch takes it");
            site.lasthop.wait_for_state(name, "up");
        }
        // Who was asked speaks first: only because the connection is known may it.
        let [a, b] = &mut site.guests;
        pass_at_last(b, a, &back);
        pass_at_last(a, b, &there);
        proc::signal(site.vswitchd.id(), Signal::CONT);
        a.drain();
        nothing_passes(&mut site, &Ends::v4(1001, 80).back().tcp(&seg("PA", 7, 7, 100)));
    }
    let all = site.appctl(&["dpctl/dump-conntrack"]);
    assert_eq!((all.matches("dport=80").count(), all.matches("mark=5").count()), (1, 1), "the same connection: {all}");
}

/// Two hosts' own TCP, of which the one that was asked goes on to speak.
#[test]
fn a_real_connection_goes_on_when_lasthop_ovs_is_killed() {
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
    // Only the first may open a connection, and the second may answer: by what is known of it.
    let strict = [
        "priority=100,in_port=11,tcp,ct_state=-trk,actions=ct(table=0,zone=1)",
        "priority=100,in_port=11,tcp,ct_state=+trk+new,tcp_flags=+syn,actions=ct(commit,zone=1),output:12",
        "priority=100,in_port=11,tcp,ct_state=+trk+est,actions=output:12",
        "priority=100,in_port=12,tcp,ct_state=-trk,actions=ct(table=0,zone=1)",
        "priority=100,in_port=12,tcp,ct_state=+trk+est+rpl,actions=output:11",
    ];
    WITHIN[..2].iter().chain(&strict).for_each(|rule| drop(site.ofctl(&["add-flow", rule])));
    wait_for("a ping", PATIENCE, || inside[0].output("ping -n -c 1 -W 1 10.9.0.12").status.success());
    let listener = within(&inside[1], || std::net::TcpListener::bind("10.9.0.12:80").expect("an address"));
    let mut client = within(&inside[0], || {
        let address = "10.9.0.12:80".parse().expect("an address");
        std::net::TcpStream::connect_timeout(&address, PATIENCE).expect("a connection")
    });
    let (mut server, _) = listener.accept().expect("a client");
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    server.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut room = vec![0; 100_000];
    for round in 0..3 {
        client.write_all(b"hello").expect("a question");
        server.read_exact(&mut room[..5]).expect("it arrives");
        site.lasthop.kill("lasthop-ovs");
        server.write_all(&vec![round; 100_000]).expect("an answer");
        client.read_exact(&mut room).expect("it arrives");
        assert!(room.iter().all(|byte| *byte == round));
    }
    let all = site.appctl(&["dpctl/dump-conntrack", "zone=1"]);
    assert_eq!(all.matches("dport=80").count(), 1, "the same connection: {all}");
    site.lasthop.check_sums();
}
