//! Orders that the kernel refuses, because they do not suit the packets that they are for (`__ovs_nla_copy_actions`, `validate_set`).

use super::*;

const IPV4: u16 = 7;
const IPV6: u16 = 8;
const TCP: u16 = 9;
const UDP: u16 = 10;
const MPLS: u16 = 21;

fn set(kind: u16, len: usize) -> impl Fn(&mut Writer) {
    // A new value of ones, no bit of which changes what says which packets these are.
    move |to: &mut Writer| to.nest(11, |to| to.attribute(kind, &[vec![1; len], vec![0; len]].concat()))
}

#[test]
fn what_does_not_suit_the_packets_is_refused() {
    let mut site = Site::new();
    for (kind, len) in [(IPV6, 40), (TCP, 4), (MPLS, 4)] {
        let order = set(kind, len);
        assert_eq!(site.put_flow(1, 0, &order), Refused::INVALID.0, "{kind} of a flow of UDP");
        assert_eq!(site.put_flow(1, 0, |to| to.nest(20, &order)), Refused::INVALID.0, "{kind} in a list");
        let execute = |to: &mut Writer| {
            to.attribute(packet::PACKET, &udp(100));
            to.nest(packet::KEY, |to| to.number(3, 1));
            to.nest(packet::ACTIONS, &order);
        };
        let answers = site.ask(family::PACKET.id, packet_command::EXECUTE, flag::ACK, execute);
        assert_eq!(error_of(&answers), Refused::INVALID.0, "{kind} of a packet of UDP");
    }
    let proto = |to: &mut Writer| {
        to.nest(11, |to| to.attribute(IPV4, &[[0; 12], [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0]].concat()))
    };
    assert_eq!(site.put_flow(1, 0, proto), Refused::INVALID.0, "the protocol");
    assert_eq!(site.put_flow(1, 0, |to| to.number(13, 13)), Refused::INVALID.0, "a cut of the Ethernet header");

    let suits = |to: &mut Writer| {
        to.number(13, 14);
        set(IPV4, 12)(to);
        set(UDP, 4)(to);
        // What is behind a label is not known here.
        to.attribute(9, &[0, 0, 0x11, 0x40, 0x88, 0x47, 0, 0]);
        set(MPLS, 4)(to);
    };
    assert_eq!(site.put_flow(1, 0, suits), 0);
    let change = |to: &mut Writer| {
        to.attribute(flow::UFID, &ufid(1, 0));
        to.nest(flow::ACTIONS, set(TCP, 4));
    };
    assert_eq!(error_of(&site.ask(family::FLOW.id, command::SET, flag::ACK, change)), Refused::INVALID.0);
}
