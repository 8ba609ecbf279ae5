//! Multicasts where they are wanted: IGMP, MLD and PIM in, floods out.

use super::*;
use crate::{GROUPS_PER_PORT_MAX, LEFT_MS, MEMBERSHIP_MS, ROUTER_MS};
use std::net::{Ipv4Addr, Ipv6Addr};

const ROUTER: u32 = 4;
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];
const ALL_ROUTERS: [u8; 4] = [224, 0, 0, 2];
const IGMP_V3: [u8; 4] = [224, 0, 0, 22];
const GROUP: [u8; 4] = [239, 1, 2, 3];

fn told(text: &str) -> PortSettings {
    text.to_owned().try_into().unwrap()
}

fn group_mac([_, b, c, d]: [u8; 4]) -> MacAddr {
    MacAddr([1, 0, 0x5e, b & 0x7f, c, d])
}

fn v6_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// An IPv4 packet with the router alert option, of this protocol.
fn v4(port: u32, src: [u8; 4], dst: [u8; 4], proto: u8, payload: &[u8]) -> Vec<u8> {
    let len = (24 + payload.len()) as u16;
    let mut ip = vec![0x46, 0xc0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 1, proto, 0, 0];
    ip.extend(src.into_iter().chain(dst).chain([0x94, 4, 0, 0]));
    [&group_mac(dst).0[..], &mac(port as u8).0, &[8, 0], &ip, payload].concat()
}

fn igmp(port: u32, kind: u8, group: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
    v4(port, [10, 0, 0, port as u8], dst, 2, &[&[kind, 0, 0, 0], &group[..]].concat())
}

/// Records of IGMPv3: kind, how many sources, group.
fn igmp3(port: u32, records: &[(u8, usize, [u8; 4])]) -> Vec<u8> {
    let mut message = vec![0x22, 0, 0, 0, 0, 0, (records.len() >> 8) as u8, records.len() as u8];
    for (kind, sources, group) in records {
        message.extend([*kind, 0, 0, *sources as u8]);
        message.extend(group);
        message.extend([10, 9, 9, 9].repeat(*sources));
    }
    v4(port, [10, 0, 0, port as u8], IGMP_V3, 2, &message)
}

/// An ICMPv6 message behind the router alert option.
fn mld(port: u32, dst: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, (8 + message.len()) as u8, 0, 1];
    ip.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, port as u16).octets());
    ip.extend(dst.octets());
    ip.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    [&v6_mac(dst).0[..], &mac(port as u8).0, &[0x86, 0xdd], &ip, message].concat()
}

fn mld1(port: u32, kind: u8, group: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    mld(port, dst, &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group.octets()].concat())
}

/// Data for a group.
fn data(group: [u8; 4]) -> FlowKey {
    let mut key = key(3, mac(3), group_mac(group));
    key.ip_proto = 17;
    key.ip_dst[12..].copy_from_slice(&group);
    key
}

/// Ports 1 and 2 get what they want; 3 gets everything, as does a router behind 4.
fn bench() -> Bench {
    let mut b = Bench::new(Limits::default(), 4);
    [1, 2].into_iter().for_each(|port| b.set(port, told("snooping=on")));
    b
}

fn query(b: &mut Bench) {
    assert_eq!(b.frame(ROUTER, &igmp(ROUTER, 0x11, [0; 4], ALL_HOSTS)).0, outputs(&[1, 2, 3]), "everybody is asked");
}

#[test]
fn a_group_goes_where_it_was_joined_and_to_routers() {
    let mut b = bench();
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]), "nobody asks who wants what");
    query(&mut b);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[4]), "the flow that flooded has gone");
    assert_eq!(b.frame(1, &igmp(1, 0x16, GROUP, GROUP)).0, outputs(&[3, 4]), "others are not told who reports");
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 4]));
    b.frame(2, &igmp(2, 0x16, GROUP, GROUP));
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]));
    assert_eq!(b.packet(&data([239, 1, 2, 4])), outputs(&[4]), "another group");
    // A query for the group goes to its members.
    assert_eq!(b.frame(ROUTER, &igmp(ROUTER, 0x11, GROUP, GROUP)).0, outputs(&[1, 2, 3]));
    // Who leaves gets it for a moment longer; who reports once more goes on.
    b.frame(1, &igmp(1, 0x17, GROUP, ALL_ROUTERS));
    b.frame(2, &igmp(2, 0x17, GROUP, ALL_ROUTERS));
    b.frame(2, &igmp(2, 0x16, GROUP, GROUP));
    b.poll(LEFT_MS);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[2, 4]));
    assert!(b.table.iter().all(|(flow, _)| flow.key.ip_proto != 2), "what is said comes to control each time");
}

#[test]
fn what_is_not_said_again_ends() {
    let mut b = bench();
    query(&mut b);
    b.frame(1, &igmp(1, 0x16, GROUP, GROUP));
    b.poll(MEMBERSHIP_MS - ROUTER_MS);
    query(&mut b);
    b.poll(ROUTER_MS - 1);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 4]));
    query(&mut b);
    b.poll(1);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[4]));
    b.poll(ROUTER_MS);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]), "nobody asks any more");
    assert!(b.policy.groups(b.now_ms).is_empty());
}

#[test]
fn igmp_v3_says_more_at_once() {
    let mut b = bench();
    query(&mut b);
    let groups = [1, 2, 3, 4, 5].map(|n| [239, 3, 3, n]);
    let kinds = [(2, 0), (4, 0), (1, 2), (3, 1), (5, 1)];
    let joins: Vec<_> = kinds.iter().zip(groups).map(|((kind, sources), group)| (*kind, *sources, group)).collect();
    b.frame(1, &igmp3(1, &joins));
    for group in groups {
        assert_eq!(b.packet(&data(group)), outputs(&[1, 4]), "{group:?}");
    }
    b.frame(1, &igmp3(1, &[(3, 0, groups[0]), (6, 1, groups[1])]));
    b.poll(LEFT_MS);
    assert_eq!(b.packet(&data(groups[0])), outputs(&[4]));
    assert_eq!(b.packet(&data(groups[1])), outputs(&[1, 4]), "it wants one sender less");
    // More than control is shown of a packet: it gets everything.
    let many: Vec<_> = (0..100).map(|n| (4, 0, [239, 9, 9, n])).collect();
    b.frame(2, &igmp3(2, &many));
    assert_eq!(b.packet(&data([239, 9, 9, 99])), outputs(&[2, 4]));
    assert_eq!(b.packet(&data([239, 7, 7, 7])), outputs(&[2, 4]));
}

#[test]
fn mld_is_another_family() {
    let (group, all) = (Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 0x1003), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let reports = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 16);
    let data = |group| FlowKey { eth_type: 0x86dd, ip_proto: 17, ..key(3, mac(3), v6_mac(group)) };
    let mut b = bench();
    query(&mut b);
    assert_eq!(b.packet(&data(group)), outputs(&[1, 2, 4]), "nobody asks for groups of IPv6");
    assert_eq!(b.frame(ROUTER, &mld1(ROUTER, 130, Ipv6Addr::UNSPECIFIED, all)).0, outputs(&[1, 2, 3]));
    assert_eq!(b.packet(&data(group)), outputs(&[4]));
    b.frame(1, &mld1(1, 131, group, group));
    assert_eq!(b.packet(&data(group)), outputs(&[1, 4]));
    b.frame(1, &mld1(1, 132, group, routers));
    let record = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group.octets()].concat();
    assert_eq!(b.frame(2, &mld(2, reports, &record)).0, outputs(&[3, 4]));
    b.poll(LEFT_MS);
    assert_eq!(b.packet(&data(group)), outputs(&[2, 4]));
    // Neighbours are found whoever has joined what; and other ICMPv6 has flows as before.
    let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 7);
    let mut ask = FlowKey { ip_proto: 58, l4_src: 135, ..data(solicited) };
    assert_eq!(b.packet(&ask), outputs(&[1, 2, 4]));
    ask.l4_src = 136;
    assert_eq!(b.packet(&ask), outputs(&[1, 2, 4]));
}

#[test]
fn everybody_gets_what_is_for_the_link_and_what_is_no_multicast() {
    let mut b = bench();
    query(&mut b);
    for dst in [[224, 0, 0, 251], [224, 0, 0, 18], ALL_HOSTS] {
        assert_eq!(b.packet(&data(dst)), outputs(&[1, 2, 4]), "{dst:?}");
    }
    for dst in [MacAddr::BROADCAST, mac(99), MacAddr([1, 0x0c, 0xcd, 1, 0, 1])] {
        assert_eq!(b.packet(&key(3, mac(3), dst)), outputs(&[1, 2, 4]), "{dst}");
    }
}

#[test]
fn vlans_have_groups_of_their_own() {
    let mut b = bench();
    let tag = |frame: &[u8], vlan: u8| [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat();
    for vlan in [5, 6] {
        b.frame(ROUTER, &tag(&igmp(ROUTER, 0x11, [0; 4], ALL_HOSTS), vlan));
    }
    b.frame(1, &tag(&igmp(1, 0x16, GROUP, GROUP), 5));
    assert_eq!(b.packet(&tagged(data(GROUP), 5)), outputs(&[1, 4]));
    assert_eq!(b.packet(&tagged(data(GROUP), 6)), outputs(&[4]));
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]), "where nobody asks");
}

/// It would end the floods to others, and nobody would be asked what he wants instead.
#[test]
fn a_guest_that_listens_is_no_router() {
    let mut b = bench();
    b.frame(2, &v4(2, [10, 0, 0, 2], [224, 0, 0, 13], PIM, &[0x20, 0, 0, 0]));
    b.frame(2, &igmp(2, 0x11, [0; 4], ALL_HOSTS));
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]), "nobody else is kept from it");
    query(&mut b);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[4]));
}

/// A fragment of a message says nothing: a whole one that came behind it would not have been heard.
#[test]
fn no_message_follows_the_flow_of_a_fragment() {
    let mut b = bench();
    query(&mut b);
    let whole = FlowKey { ip_proto: 2, ..data(GROUP) };
    let fragment = FlowKey { ip_frag: 1, ..whole };
    for key in [whole, fragment] {
        let mut mask = FlowMask::default();
        b.policy.wants(PortId(1), 0, &key, &mut mask);
        assert_ne!(whole.masked(&mask), fragment.masked(&mask), "{mask:?}");
    }
}

const PIM: u8 = 103;

#[test]
fn who_says_too_much_gets_everything_and_takes_no_room_from_others() {
    let mut b = bench();
    query(&mut b);
    for n in 0..GROUPS_PER_PORT_MAX as u32 + 1 {
        let group = Ipv4Addr::from_bits(0xef02_0000 + n).octets();
        b.frame(1, &igmp(1, 0x16, group, group));
    }
    assert_eq!(b.policy.groups(b.now_ms).iter().filter(|g| g.group.is_some()).count(), GROUPS_PER_PORT_MAX);
    assert_eq!(b.packet(&data([239, 200, 0, 1])), outputs(&[1, 4]));
    b.frame(2, &igmp(2, 0x16, GROUP, GROUP));
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]));
    // Its port goes, and all that was known of it.
    b.port_gone(1);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[2, 4]));
    assert_eq!(b.policy.groups(b.now_ms).iter().filter(|g| g.group.is_some()).count(), 1);
}

#[test]
fn nobody_wants_it_and_nobody_is_asked_any_more() {
    let mut b = bench();
    b.set(3, told("snooping=on"));
    query(&mut b);
    assert_eq!(b.packet(&key(ROUTER, mac(4), group_mac(GROUP))), NOWHERE, "a router's own, that nobody has joined");
    // A switch that asks in the place of a router is none.
    let mut other = bench();
    other.frame(1, &v4(1, [0; 4], ALL_HOSTS, 2, &[0x11, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(other.packet(&data(GROUP)), outputs(&[1, 2, 4]));
    // Without the setting everything is as it was, and has flows as wide as they were.
    [1, 2, 3, ROUTER].into_iter().for_each(|port| b.set(port, told("")));
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2, 4]));
    assert!(b.policy.groups(b.now_ms).is_empty());
    assert!(b.table.iter().all(|(flow, _)| flow.mask.0.ip_proto == 0));
}

/// What is wrong in itself is no message, and what is cut off says no more than is there.
#[test]
fn odd_messages_do_no_harm() {
    let mut b = bench();
    query(&mut b);
    for mut frame in
        [igmp3(1, &[(4, 0, GROUP), (4, 0, GROUP)]), igmp(1, 0x16, GROUP, GROUP), igmp3(1, &[(4, 200, GROUP)])]
    {
        for len in (38..frame.len()).rev() {
            frame.truncate(len);
            b.frame(1, &frame);
        }
    }
    for group in [[10, 0, 0, 1], [0; 4], ALL_HOSTS] {
        b.frame(2, &igmp(2, 0x16, group, IGMP_V3));
    }
    assert!(b.policy.groups(b.now_ms).iter().all(|g| g.group.is_none_or(|g| g == group_mac(GROUP))));
}

#[test]
fn a_router_that_goes_down_and_is_removed_leaves_nobody_without() {
    let mut b = bench();
    query(&mut b);
    assert_eq!(b.packet(&data(GROUP)), outputs(&[4]), "the router alone wants it");
    b.port(ROUTER, false);
    b.packet(&data(GROUP));
    b.port_gone(ROUTER);
    assert!(b.policy.groups(b.now_ms).is_empty());
    assert_eq!(b.packet(&data(GROUP)), outputs(&[1, 2]), "nobody asks any more: all get it");
}
