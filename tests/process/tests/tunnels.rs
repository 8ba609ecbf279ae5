//! Two hosts, each with lasthop and the distribution's `ovs-vswitchd`, and tunnels between them over the hosts' stacks: Geneve and VXLAN, IPv4 and
//! IPv6, networks apart, keys that flows set, TCP in whole packets, deaths. Packets in, packets out.

use lasthop_tests_process::{PATIENCE, Station, hosts, proc, spawn, wait_for};
use std::process::Stdio;
use std::time::Instant;

#[test]
fn geneve_joins_two_hosts() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5 options:csum=true");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5 options:csum=true");
    a.reaches(&b);
    let flows = a.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x5,src=192.0.2.2,dst=192.0.2.1"), "{flows}");
    assert!(flows.contains("set(tunnel(tun_id=0x5,dst=192.0.2.2"), "{flows}");

    // Another network of the same other end is another one.
    b.vsctl("set interface t options:key=6");
    wait_for("the other network", PATIENCE, || !a.ping(&b, ""));
    a.vsctl("set interface t options:key=6");
    a.reaches(&b);
}

#[test]
fn vxlan_joins_two_hosts_over_ipv6() {
    let [a, b] = hosts();
    a.tunnel("vxlan", "options:remote_ip=2001:db8::2 options:key=77");
    b.tunnel("vxlan", "options:remote_ip=2001:db8::1 options:key=77");
    a.reaches(&b);
    assert!(!a.netns.output("ip link show vxlan_sys_4789").status.success(), "the kernel has no such interface");
    let flows = b.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x4d,ipv6_src=2001:db8::1,ipv6_dst=2001:db8::2"), "{flows}");
}

#[test]
fn gre_joins_two_hosts() {
    let [a, b] = hosts();
    a.tunnel("gre", "options:remote_ip=192.0.2.2 options:key=5 options:csum=true");
    b.tunnel("gre", "options:remote_ip=192.0.2.1 options:key=5 options:csum=true");
    a.reaches(&b);
    let flows = a.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x5,src=192.0.2.2,dst=192.0.2.1"), "{flows}");
    assert!(flows.contains("set(tunnel(tun_id=0x5,dst=192.0.2.2"), "{flows}");
    // Key and checksum are there, and right: a host of this kind drops what has a wrong one.
    let cable = Station::on(&b.netns, "cable");
    assert!(a.ping(&b, ""));
    let outer =
        cable.recv("GRE", |frame| frame[12..14] == [8, 0] && frame[23] == 47 && frame[30..34] == [192, 0, 2, 2]);
    let gre = &outer[34..];
    assert_eq!((&gre[..4], &gre[8..12]), (&[0xa0, 0, 0x65, 0x58][..], &[0, 0, 0, 5][..]));
    assert_eq!(ones_complement(gre), 0xffff, "{gre:x?}");

    // Without a key it is another network, and so it is with another key.
    b.vsctl("remove interface t options key");
    wait_for("no network", PATIENCE, || !a.ping(&b, ""));
    a.vsctl("remove interface t options key");
    a.reaches(&b);
    b.vsctl("set interface t options:key=6");
    wait_for("the other network", PATIENCE, || !a.ping(&b, ""));
    a.vsctl("set interface t options:key=6");
    a.reaches(&b);
}

#[test]
fn gre_joins_two_hosts_over_ipv6() {
    let [a, b] = hosts();
    a.tunnel("ip6gre", "options:remote_ip=2001:db8::2 options:key=77");
    b.tunnel("ip6gre", "options:remote_ip=2001:db8::1 options:key=77");
    a.reaches(&b);
    let flows = b.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("tunnel(tun_id=0x4d,ipv6_src=2001:db8::1,ipv6_dst=2001:db8::2"), "{flows}");
    for part in ["lasthop-uplink", "lasthop-ovs"] {
        a.lasthop.kill(part);
        // What is on its way while a process starts may be lost.
        wait_for("many pings, none lost", PATIENCE, || a.many(&b).contains(" 0% packet loss"));
    }
}

/// The sum of all 16-bit words (RFC 1071).
fn ones_complement(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    (1..=2).fold(sum, |sum, _| (sum >> 16) + (sum & 0xffff)) as u16
}

/// What lies on IPv4, from 192.0.2.2 to 192.0.2.1, as a frame to this address.
fn on_ipv4(protocol: u8, payload: &[u8], to: [u8; 6]) -> Vec<u8> {
    let [l0, l1] = (20 + payload.len() as u16).to_be_bytes();
    let mut ip = [0x45, 0, l0, l1, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1];
    let sum = !ones_complement(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&to[..], &[2, 0, 0, 0, 0, 9, 8, 0], &ip, payload].concat()
}

/// Frames of a peer that is none of ours, bytes as the standard draws them, and what is no such frame.
#[test]
fn gre_takes_what_the_standard_allows_and_drops_the_rest() {
    let [a, b] = hosts();
    a.tunnel("gre", "options:remote_ip=192.0.2.2");
    a.flow("priority=9,in_port=2,actions=output:1");
    let frame = |kind: u8| {
        let addresses = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]].concat();
        [&addresses[..], &[0x88, 0xb6, kind], &[0; 47]].concat()
    };
    let with_sum = |header: &[u8], kind: u8, wrong: u16| {
        let mut bytes = [header, &frame(kind)].concat();
        let sum = !ones_complement(&bytes) ^ wrong;
        bytes[4..6].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    a.netns.ip("link set cable address 02:00:00:00:00:aa");
    let (guest, cable) = (Station::on(&a.guest, "g"), Station::on(&b.netns, "cable"));
    let packets = [
        [&[0, 0, 0x65, 0x58][..], &frame(1)].concat(),
        [&[0x10, 0, 0x65, 0x58, 0, 0, 0, 7][..], &frame(2)].concat(),
        with_sum(&[0x80, 0, 0x65, 0x58, 0, 0, 0, 0], 3, 0),
        // A wrong checksum, another version, routing, an IPv4 packet, another network, half a header, none.
        with_sum(&[0x80, 0, 0x65, 0x58, 0, 0, 0, 0], 11, 0x100),
        [&[0, 1, 0x65, 0x58][..], &frame(12)].concat(),
        [&[0x40, 0, 0x65, 0x58, 0, 0, 0, 0][..], &frame(13)].concat(),
        [&[0, 0, 8, 0][..], &frame(14)].concat(),
        [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 5][..], &frame(15)].concat(),
        [0xb0, 0, 0x65, 0x58, 0, 0].to_vec(),
        Vec::new(),
        [&[0, 0, 0x65, 0x58][..], &frame(4)].concat(),
    ];
    for packet in &packets {
        cable.send(&on_ipv4(47, packet, [2, 0, 0, 0, 0, 0xaa]));
    }
    let next = || guest.recv("a frame out of GRE", |frame| frame[12..14] == [0x88, 0xb6])[14];
    assert_eq!([next(), next(), next(), next()], [1, 2, 3, 4]);
    // What belongs to another network is dropped by Open vSwitch.
    let dropped = || {
        let stats = a.lasthop.json(&["port", "list"]);
        let gre =
            stats["interfaces"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "gre_sys")).cloned();
        let drops = gre.and_then(|gre| gre["drops"].as_array().cloned()).unwrap_or_default();
        drops.iter().find(|drop| drop["reason"] == "refused").and_then(|drop| drop["packets"].as_u64())
    };
    // A datagram with nothing in it is none.
    wait_for("what was dropped to be counted", PATIENCE, || dropped() == Some(5));
}

/// TCP that is merged on its way, as a NIC or the host's stack does it, comes with checksums that are open: it is whole again, and one packet.
#[test]
fn gre_takes_packets_that_were_merged() {
    let [a, b] = hosts();
    a.tunnel("gre", "options:remote_ip=192.0.2.2");
    a.flow("priority=9,in_port=2,actions=output:1");
    a.netns.ip("link set cable address 02:00:00:00:00:aa");
    let (guest, cable) = (Station::on(&a.guest, "g"), Station::on(&b.netns, "cable"));
    let payload: Vec<u8> = (0..5000u32).map(|n| (n * 7) as u8).collect();
    let tcp_len = (20 + payload.len()) as u16;
    let pseudo = [&[10, 8, 0, 9, 10, 8, 0, 1, 0, 6][..], &tcp_len.to_be_bytes()].concat();
    let open = ones_complement(&pseudo).to_be_bytes();
    let tcp = [&[0x10, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0][..], &open, &[0, 0], &payload].concat();
    let mut inner = on_ipv4(6, &tcp, [2, 0, 0, 0, 0, 1]);
    inner[26..34].copy_from_slice(&[10, 8, 0, 9, 10, 8, 0, 1]);
    inner[24..26].fill(0);
    let sum = !ones_complement(&inner[14..34]);
    inner[24..26].copy_from_slice(&sum.to_be_bytes());
    // The outer checksum is one of the packets' that there were.
    let packet = [&[0x80, 0, 0x65, 0x58, 0x12, 0x34, 0, 0][..], &inner].concat();
    for host in [&a, &b] {
        host.netns.ip("link set cable mtu 9000");
    }
    a.netns.ip("link set p mtu 9000");
    a.guest.ip("link set g mtu 9000");
    // The first goes the long way through lasthop-ovs, with its checksum completed; those after it come as a packet for segmentation, whose
    // checksum is the receiver's business.
    cable.send(&on_ipv4(47, &packet, [2, 0, 0, 0, 0, 0xaa]));
    let is_it = |frame: &[u8]| frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6);
    let whole = guest.recv("a packet out of GRE", is_it);
    assert_eq!(whole[54..], payload);
    let l4: Vec<u8> = [&pseudo[..], &whole[34..]].concat();
    assert_eq!(ones_complement(&l4), 0xffff, "its checksum is complete");
    let long_way = || a.lasthop.port("ovs-packets")["to_guest"]["packets"].as_u64();
    wait_for("a packet that takes the short way", PATIENCE, || {
        let before = long_way();
        cable.send(&on_ipv4(47, &packet, [2, 0, 0, 0, 0, 0xaa]));
        let next = guest.recv("a packet out of GRE", is_it);
        assert_eq!((&next[54..], &next[34..50]), (&payload[..], &whole[34..50]));
        long_way() == before && next[50..52] == open
    });
}

#[test]
fn what_is_too_long_for_the_way_is_fragmented_or_dropped() {
    let [a, b] = hosts();
    for host in [&a, &b] {
        host.netns.ip("link set cable mtu 1300");
    }
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:df_default=false");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:df_default=false");
    a.reaches(&b);
    for host in [&a, &b] {
        host.vsctl("set interface t options:df_default=true");
    }
    wait_for("a long packet that does not come", PATIENCE, || !a.ping(&b, "-s 1300"));
    assert!(a.ping(&b, "-s 1000"));
}

/// Each was called an interface that somebody had set down.
#[test]
fn a_way_that_the_host_does_not_have_is_said() {
    let [a, _b] = hosts();
    a.tunnel("geneve", "options:remote_ip=203.0.113.9");
    let no_route = || {
        let interfaces = a.lasthop.json(&["stats"])["interfaces"].clone();
        let drops =
            interfaces.as_array().expect("a list").iter().flat_map(|i| i["drops"].as_array().expect("a list").clone());
        drops.filter(|d| d["reason"] == "no_route").map(|d| d["packets"].as_u64().expect("a number")).sum::<u64>()
    };
    let lost = |what: &str| {
        let before = no_route();
        wait_for(what, PATIENCE, || {
            a.guest.output("ping -n -c 1 -W 1 10.8.0.2");
            no_route() > before
        });
    };
    lost("a packet without a route");
    a.vsctl("set interface t options:remote_ip=192.0.2.2 options:local_ip=198.51.100.7");
    a.appctl(&["revalidator/wait"]);
    lost("a packet from an address that is not this host's");
    let out = a.lasthop.try_command(&["doctor", "--since-start", "--json"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("tunnel-no-route") && said.contains("ip route get REMOTE"), "{said}");
    assert!(!said.contains("interface-down"), "{said}");
}

#[test]
fn flows_choose_network_and_other_end() {
    let [a, b] = hosts();
    for host in [&a, &b] {
        host.tunnel("geneve", "options:key=flow options:remote_ip=flow");
    }
    a.flow("priority=9,in_port=1,actions=set_field:0x123->tun_id,set_field:192.0.2.2->tun_dst,output:2");
    b.flow("priority=9,in_port=1,actions=set_field:0x456->tun_id,set_field:192.0.2.1->tun_dst,output:2");
    a.flow("priority=9,in_port=2,tun_id=0x456,actions=output:1");
    b.flow("priority=9,in_port=2,tun_id=0x123,tun_src=192.0.2.1,actions=output:1");
    b.flow("priority=8,in_port=2,actions=drop");
    a.reaches(&b);
    a.flow("priority=9,in_port=1,actions=set_field:0x124->tun_id,set_field:192.0.2.2->tun_dst,output:2");
    wait_for("the other network", PATIENCE, || !a.ping(&b, ""));
}

#[test]
fn tcp_crosses_in_large_packets() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5");
    a.reaches(&b);
    let before = [a.carried("genev_sys_6081", "to_guest"), b.carried("genev_sys_6081", "from_guest")];
    let mut server = spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", b.guest.name(), "iperf3", "-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
    });
    wait_for("iperf3", PATIENCE, || b.guest.shell("ss -Hltn").contains(":5201"));
    let told = a.guest.shell("iperf3 -c 10.8.0.2 -n 200M");
    eprintln!("{told}");
    let _ = server.wait();
    for (host, (packets, bytes), way) in [(&a, before[0], "to_guest"), (&b, before[1], "from_guest")] {
        let (now_packets, now_bytes) = host.carried("genev_sys_6081", way);
        let (packets, bytes) = (now_packets - packets, now_bytes - bytes);
        assert!(bytes > 200_000_000, "{bytes} bytes");
        let mean = bytes / packets;
        eprintln!("host {}: {mean} bytes a packet", host.number);
        assert!(mean > 4000, "{way}: {packets} packets of {mean} bytes");
    }
}

/// A way that takes less than the guest sends: the sockets' buffers fill up in the middle of packets that are cut. No part of a packet goes
/// twice, and who waits for the way sleeps.
#[test]
fn a_slow_way_gets_every_segment_once() {
    const HEADERS: u64 = 14 + 20 + 20 + 12;
    const OUTER: u64 = 14 + 20 + 8 + 8;
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1");
    a.reaches(&b);
    // All that the socket may hold finds room there: nothing is lost on the way. Each segment is to be counted.
    a.netns.ip("link set cable gso_max_segs 1");
    a.netns.shell("tc qdisc add dev cable root tbf rate 80mbit burst 128k limit 64m");
    // The newest uplink is the tunnel.
    let tunnel = a.lasthop.child("lasthop-uplink");
    let wire = || {
        let of = |what: &str| a.netns.shell(&format!("cat /sys/class/net/cable/statistics/tx_{what}"));
        let [packets, bytes] = ["packets", "bytes"].map(|what| of(what).trim().parse::<u64>().expect("a number"));
        bytes.saturating_sub(packets * (OUTER + HEADERS))
    };
    let given = || {
        let (packets, bytes) = a.carried("genev_sys_6081", "to_guest");
        bytes.saturating_sub(packets * HEADERS)
    };
    let (before, used, start) = ((wire(), given()), proc::cpu_ns(tunnel), Instant::now());
    let mut server = spawn::spawn("TERM", "ip", |c| {
        c.args(["netns", "exec", b.guest.name(), "iperf3", "-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
    });
    wait_for("iperf3", PATIENCE, || b.guest.shell("ss -Hltn").contains(":5201"));
    let told = a.guest.shell("timeout 60 iperf3 -c 10.8.0.2 -C reno -P 8 -t 4 | tail -4");
    eprintln!("{told}");
    spawn::end(&mut server);
    let busy = (proc::cpu_ns(tunnel) - used) as f64 * 1e-9 / start.elapsed().as_secs_f64();
    wait_for("the way to be empty", PATIENCE, || a.netns.shell("tc -s qdisc show dev cable").contains("backlog 0b 0p"));
    let (sent, asked) = (wire() - before.0, given() - before.1);
    eprintln!("{sent} bytes on the way, {asked} were to go; {busy:.2} of a processor");
    assert!(sent.abs_diff(asked) < 100_000, "{sent} bytes of payload on the way, {asked} were to go");
    assert!(busy < 0.5, "the tunnel's process took {busy:.2} of a processor");
}

#[test]
fn deaths_of_the_parts_are_survived() {
    let [a, b] = hosts();
    a.tunnel("geneve", "options:remote_ip=192.0.2.2 options:key=5");
    b.tunnel("geneve", "options:remote_ip=192.0.2.1 options:key=5");
    a.reaches(&b);
    // The newest uplink is the tunnel.
    for part in ["lasthop-uplink", "lasthop-switch"] {
        a.lasthop.kill(part);
        a.reaches(&b);
        b.lasthop.kill(part);
        a.reaches(&b);
    }
}
