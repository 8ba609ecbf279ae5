//! Open vSwitch's rules by connections: who may open one, what follows it, addresses that change on the way, and the table asked for and emptied.

use super::*;
use lasthop_conntrack::testutil::{Ends, seg};

/// As Neutron's: one side opens connections, the other answers, errors about them come through, and nothing else.
pub(super) const FIREWALL: [&str; 7] = [
    "table=0,priority=9,arp,actions=NORMAL",
    "table=0,priority=8,ip,actions=ct(table=1,zone=7)",
    "table=1,priority=9,ct_state=+trk+est-new,ip,actions=resubmit(,2)",
    "table=1,priority=9,ct_state=+trk+rel,ip,actions=resubmit(,2)",
    "table=1,priority=8,ct_state=+trk+new,in_port=1,ip,actions=ct(commit,zone=7,exec(set_field:0x5->ct_mark)),output:2",
    "table=2,priority=8,in_port=1,actions=output:2",
    "table=2,priority=8,in_port=2,actions=output:1",
];

pub(super) fn rules(site: &Site, rules: &[&str]) {
    site.ofctl(&["del-flows"]);
    rules.iter().for_each(|rule| drop(site.ofctl(&["add-flow", rule])));
}

/// Opens a TCP connection.
pub(super) fn established(site: &mut Site, ends: Ends) {
    let [a, b] = &mut site.guests;
    pass(a, b, &ends.tcp(&seg("S", 100, 0, 0)));
    pass(b, a, &ends.back().tcp(&seg("SA", 300, 101, 0)));
    pass(a, b, &ends.tcp(&seg("A", 101, 301, 0)));
}

/// A frame of the second guest's does not arrive: what is sent behind it does.
pub(super) fn nothing_passes(site: &mut Site, frame: &[u8]) {
    let [a, b] = &mut site.guests;
    b.send(frame);
    let last = numbered(mac(2), MacAddr::BROADCAST, 77, 60);
    wait_for("what is behind", PATIENCE, || {
        b.send(&[&last[..12], &[8, 6], &last[14..]].concat());
        let came: Vec<_> = a.recv_within(Duration::from_millis(200)).into_iter().map(|(_, frame)| frame).collect();
        assert!(came.iter().all(|came| came != frame), "{frame:?}");
        !came.is_empty()
    });
    a.drain();
}

#[test]
fn what_open_vswitch_finds_it_can_do_with_connections() {
    let site = Site::new();
    let features = site.appctl(&["dpif/show-dp-features", "br0"]);
    for feature in
        ["ct_state", "ct_zone", "ct_mark", "ct_label", "ct_state_nat", "ct_orig_tuple", "ct_orig_tuple_for_ipv6"]
    {
        let line = features.lines().find(|line| line.to_lowercase().replace(' ', "_").starts_with(feature));
        assert!(line.is_some_and(|line| line.ends_with("Yes")), "{feature}: {features}");
    }
}

/// The switch's flows of a connection go when it ends, before Open vSwitch has looked at what they have carried.
#[test]
fn each_packet_of_short_connections_is_counted() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let (mut packets, mut bytes) = (0, 0);
    let mut sends = |site: &mut Site, from: usize, frame: Vec<u8>| {
        (packets, bytes) = (packets + 1, bytes + frame.len() as u64);
        let [a, b] = &mut site.guests;
        if from == 0 { pass(a, b, &frame) } else { pass(b, a, &frame) }
    };
    for port in 0..30 {
        let ends = Ends::v4(1000 + port, 80);
        sends(&mut site, 0, ends.tcp(&seg("S", 100, 0, 0)));
        sends(&mut site, 1, ends.back().tcp(&seg("SA", 300, 101, 0)));
        sends(&mut site, 0, ends.tcp(&seg("A", 101, 301, 0)));
        for n in 0..5 {
            sends(&mut site, 0, ends.tcp(&seg("PA", 101 + 100 * n, 301 + 100 * n, 100)));
            sends(&mut site, 1, ends.back().tcp(&seg("PA", 301 + 100 * n, 201 + 100 * n, 100)));
        }
        sends(&mut site, 0, ends.tcp(&seg("FA", 601, 801, 0)));
        sends(&mut site, 1, ends.back().tcp(&seg("FA", 801, 602, 0)));
        sends(&mut site, 0, ends.tcp(&seg("A", 602, 802, 0)));
    }
    let counted = || {
        let told = site.ofctl(&["dump-flows", "table=0,ip"]);
        ["n_packets=", "n_bytes="].map(|name| {
            let digits = told.split(name).nth(1).and_then(|rest| rest.split(',').next()).expect("a rule");
            digits.parse::<u64>().expect("a number")
        })
    };
    wait_for("counters", PATIENCE, || counted()[0] >= packets);
    assert_eq!(counted(), [packets, bytes]);
}

#[test]
fn a_firewall_by_connections() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let ends = Ends::v4(1000, 80);
    nothing_passes(&mut site, &ends.back().tcp(&seg("S", 7, 0, 0)));
    established(&mut site, ends);
    let [a, b] = &mut site.guests;
    for n in 0..50 {
        pass(a, b, &ends.tcp(&seg("PA", 101 + 100 * n, 301 + 100 * n, 100)));
        pass(b, a, &ends.back().tcp(&seg("PA", 301 + 100 * n, 201 + 100 * n, 100)));
    }
    let udp = Ends::v4(2000, 53);
    pass(a, b, &udp.udp(30));
    pass(b, a, &udp.back().error(&udp.udp(30)));
    let all = site.appctl(&["dpctl/dump-conntrack"]);
    assert!(all.contains("tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1000,dport=80)"), "{all}");
    assert!(all.contains("zone=7") && all.contains("mark=5") && all.contains("state=ESTABLISHED"), "{all}");
    assert_eq!(site.appctl(&["dpctl/dump-conntrack", "zone=8"]), "");
    let flows = site.lasthop.command(&["flow", "list"]);
    assert!(flows.contains("10.0.0.1") && flows.contains("10.0.0.2"), "one flow carries it: {flows}");

    // Flushed while it is in use: what it let through does not pass any more.
    site.appctl(&["dpctl/flush-conntrack", "zone=7"]);
    assert_eq!(site.appctl(&["dpctl/dump-conntrack", "zone=7"]), "");
    nothing_passes(&mut site, &udp.back().udp(30));
    site.lasthop.check_sums();
}

#[test]
fn lasthop_shows_and_ends_the_same_connections() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let figures = site.lasthop.command(&["conntrack", "stats"]);
    assert!(figures.starts_with("0 of 262144 connections; 0 opened"), "{figures}");
    assert!(site.lasthop.command(&["conntrack", "list"]).starts_with("no connections"));
    let (ends, udp) = (Ends::v4(1000, 80), Ends::v4(2000, 53));
    established(&mut site, ends);
    let [a, b] = &mut site.guests;
    pass(a, b, &ends.tcp(&seg("PA", 101, 301, 100)));
    pass(b, a, &ends.back().tcp(&seg("PA", 301, 201, 100)));
    pass(a, b, &udp.udp(30));
    let list = |site: &Site, options: &[&str]| site.lasthop.command(&[&["conntrack", "list"], options].concat());
    let all = list(&site, &[]);
    assert_eq!(all.lines().count(), 2, "{all}");
    let tcp = list(&site, &["--proto", "tcp"]);
    let parts = [
        "tcp      6 43",
        " ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=1000 dport=80 src=10.0.0.2 dst=10.0.0.1 sport=80 dport=1000 [ASSURED] zone=7 \
         from=vm1 to=vm2 flows=2\n",
    ];
    assert!(tcp.starts_with(parts[0]) && tcp.ends_with(parts[1]) && tcp.lines().count() == 1, "{tcp}");
    let unanswered = list(&site, &["--proto", "udp"]);
    assert!(unanswered.contains("[UNREPLIED]") && unanswered.contains("from=vm1 to=- "), "{unanswered}");
    let answered = list(&site, &["--port", "vm2"]);
    assert!(answered.ends_with(parts[1]) && answered.lines().count() == 1, "{answered}");
    assert_eq!(list(&site, &["--addr", "10.0.0.2", "--zone", "7"]).lines().count(), 2);
    assert!(list(&site, &["--zone", "60000"]).starts_with("none of these; 2 connections"));
    let figures = site.lasthop.command(&["conntrack", "stats"]);
    assert!(
        figures.starts_with("2 of 262144 connections; 2 opened") && figures.contains("vm1: 2 of 65536 opened"),
        "{figures}"
    );

    // What is ended has no flow any more.
    assert_eq!(site.lasthop.command(&["conntrack", "flush", "--proto", "tcp"]), "1 connection ended\n");
    assert_eq!(list(&site, &[]).lines().count(), 1);
    assert!(!site.appctl(&["dpctl/dump-conntrack"]).contains("tcp"));
    nothing_passes(&mut site, &ends.back().tcp(&seg("PA", 401, 201, 100)));
    site.lasthop.check_sums();
}

#[test]
fn addresses_are_translated_both_ways() {
    let mut site = Site::new();
    rules(
        &site,
        &[
            "table=0,priority=9,arp,actions=NORMAL",
            "table=0,in_port=1,ip,actions=ct(commit,zone=3,nat(src=10.0.0.9)),output:2",
            "table=0,in_port=2,ip,actions=ct(zone=3,nat,table=1)",
            "table=1,in_port=2,ct_state=+est,ip,nw_dst=10.0.0.1,actions=output:1",
        ],
    );
    let [client, seen] = [Ends::v4(1000, 80), Ends { hosts: [9, 2], ..Ends::v4(1000, 80) }];
    let as_seen = |frame: Vec<u8>, from: &[u8]| [&from[..12], &frame[12..]].concat();
    let [a, b] = &mut site.guests;
    for segment in [seg("S", 100, 0, 0), seg("A", 101, 301, 0), seg("PA", 101, 301, 100), seg("PA", 201, 301, 100)] {
        let sent = client.tcp(&segment);
        a.send(&sent);
        b.expect(&as_seen(seen.tcp(&segment), &sent));
        if segment.flags == "A" {
            continue;
        }
        let answer = if segment.flags == "S" { seg("SA", 300, 101, 0) } else { seg("A", 301, 201, 0) };
        let to = client.back().tcp(&answer);
        b.send(&as_seen(seen.back().tcp(&answer), &to));
        a.expect(&to);
    }
    let all = site.appctl(&["dpctl/dump-conntrack"]);
    assert!(all.contains("reply=(src=10.0.0.2,dst=10.0.0.9,sport=80,dport=1000)"), "{all}");
}

#[test]
fn a_thousand_connections_are_known() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let [a, b] = &mut site.guests;
    for port in 0..1000 {
        let ends = Ends::v4(5000 + port, 53);
        pass(a, b, &ends.udp(20));
        pass(b, a, &ends.back().udp(20));
    }
    let all = site.appctl(&["dpctl/dump-conntrack"]);
    assert_eq!(all.lines().count(), 1000, "{all}");
}

/// A frame of IPv4 in fragments of 1480 bytes.
fn fragments(frame: &[u8]) -> Vec<Vec<u8>> {
    let data: Vec<_> = frame[34..].chunks(1480).collect();
    let last = data.len() - 1;
    let of = |(n, part): (usize, &&[u8])| {
        let mut fragment = [&frame[..34], part].concat();
        let more = if n == last { 0 } else { 0x2000 };
        fragment[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        fragment[20..22].copy_from_slice(&(more | (n * 1480 / 8) as u16).to_be_bytes());
        fragment[24..26].fill(0);
        let sum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(&fragment[14..34]));
        fragment[24..26].copy_from_slice(&sum.to_be_bytes());
        fragment
    };
    data.iter().enumerate().map(of).collect()
}

#[test]
fn fragments_pass_when_all_of_their_packet_have_come() {
    let mut site = Site::new();
    rules(&site, &FIREWALL);
    let ends = Ends::v4(1000, 53);
    let question = fragments(&ends.udp(4000));
    assert_eq!(question.len(), 3);
    nothing_passes(&mut site, &fragments(&ends.back().udp(4000))[0]);
    let [a, b] = &mut site.guests;
    // Whichever comes first, and without the last nothing passes.
    [2, 0].into_iter().for_each(|n: usize| a.send(&question[n]));
    a.send(&Ends::v4(2000, 53).udp(10));
    b.expect(&Ends::v4(2000, 53).udp(10));
    a.send(&question[1]);
    question.iter().for_each(|fragment| b.expect(fragment));
    for fragment in fragments(&ends.back().udp(4000)) {
        b.send(&fragment);
    }
    fragments(&ends.back().udp(4000)).iter().for_each(|fragment| a.expect(fragment));
    site.lasthop.check_sums();
}
