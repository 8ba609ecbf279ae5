//! Uplinks: what goes between them, and the VLANs that they carry.

use super::*;

#[test]
fn nothing_goes_from_one_uplink_to_another() {
    let mut b = Bench::new(Limits::default(), 4);
    let (all, known) = (key(1, mac(1), MacAddr::BROADCAST), key(2, mac(2), mac(1)));
    assert_eq!(b.packet(&all), outputs(&[2, 3, 4]));
    assert_eq!(b.packet(&known), outputs(&[1]));
    // Flows that are there are replaced when ports turn out to be uplinks.
    b.set_uplinks([(PortId(1), None), (PortId(2), None)].into());
    assert_eq!(b.packet(&all), outputs(&[3, 4]));
    assert_eq!(b.packet(&known), APART);
    assert_eq!(b.packet(&key(2, mac(2), mac(9))), outputs(&[3, 4]), "unknown");
    // Guests reach both, and are reached.
    assert_eq!(b.packet(&key(3, mac(3), MacAddr::BROADCAST)), outputs(&[1, 2, 4]));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), outputs(&[3]));
    let lines = b.policy.explain(&known, Headers::default(), b.now_ms, |id| format!("p{id}")).lines;
    assert!(lines.iter().any(|l| l.contains("nothing goes from one uplink to another")), "{lines:?}");
    // One of them is taken away and comes back as a guest.
    b.set_uplinks([(PortId(2), None)].into());
    // What was learned at one that is none any more is learned anew.
    b.packet(&key(1, mac(1), mac(3)));
    assert_eq!(b.packet(&known), outputs(&[1]));
}

const DROPPED: [Action; 1] = [Action::Drop(DropReason::Vlan)];
const APART: [Action; 1] = [Action::Drop(DropReason::BetweenUplinks)];

/// Ports 1 and 2 are guests, 3 an uplink with these VLANs.
fn trunk(vlans: &str) -> Bench {
    let mut b = Bench::new(Limits::default(), 3);
    b.set_uplinks([(PortId(3), Some(vlans.parse().unwrap()))].into());
    b
}

#[test]
fn an_uplink_carries_its_vlans_and_no_other() {
    let mut b = trunk("10:20-30");
    for vid in [10, 20, 25, 30] {
        assert_eq!(b.packet(&tagged(key(1, mac(1), MacAddr::BROADCAST), vid)), outputs(&[2, 3]), "{vid}");
        assert_eq!(b.packet(&tagged(key(3, mac(9), mac(1)), vid)), outputs(&[1]), "{vid}");
        assert_eq!(b.packet(&tagged(key(1, mac(1), mac(9)), vid)), outputs(&[3]), "{vid}");
    }
    for vid in [0, 9, 11, 19, 31, 4094] {
        // Broadcasts, multicasts and unknown addresses go to the other guest alone; from outside nothing enters.
        for to in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 0xfb]), mac(9), mac(8)] {
            assert_eq!(b.packet(&tagged(key(1, mac(1), to), vid)), outputs(&[2]), "{vid}");
            assert_eq!(b.packet(&tagged(key(3, mac(9), to), vid)), DROPPED, "{vid}");
        }
        assert_eq!(b.packet(&tagged(key(3, mac(9), mac(1)), vid)), DROPPED, "{vid}");
        assert_eq!(b.home(vid, mac(9)), None, "what is dropped teaches nothing");
    }
    assert_eq!(b.packet(&key(1, mac(1), MacAddr::BROADCAST)), outputs(&[2]), "untagged");
    assert_eq!(b.packet(&key(3, mac(9), MacAddr::BROADCAST)), DROPPED, "untagged");
}

#[test]
fn one_flow_refuses_a_vlan() {
    let mut b = trunk("10");
    for n in 0..50 {
        let key = FlowKey { l4_src: n.into(), ..key(3, mac(n), mac(n / 2)) };
        assert_eq!(b.packet(&tagged(key, 40)), DROPPED);
        assert_eq!(b.packet(&key), DROPPED);
    }
    assert_eq!((b.next_id, b.table.len(), b.policy.mac_count()), (2, 2, 0));
    // One for all ports and protocols where it is carried, too.
    for n in 0..50 {
        let key = FlowKey { l4_src: n, eth_type: 0x800 + n, ..key(3, mac(1), mac(2)) };
        assert_eq!(b.packet(&tagged(key, 10)), outputs(&[1, 2]));
    }
    assert_eq!((b.next_id, b.table.len()), (3, 3));
}

#[test]
fn a_native_vlan_is_what_has_no_tag_and_hides_none() {
    let mut b = trunk("untagged:10");
    let mut priority = tagged(key(3, mac(9), mac(7)), 0);
    priority.vlan_tci |= 5 << 13;
    assert_eq!(b.packet(&key(3, mac(9), mac(7))), outputs(&[1, 2]));
    assert_eq!(b.packet(&priority), outputs(&[1, 2]));
    assert_eq!(b.next_id, 1, "met the untagged flow");
    assert_eq!(b.packet(&tagged(key(3, mac(9), mac(7)), 11)), DROPPED);
    // A tag behind a priority tag, a tag that is cut off, and too many tags are no way into other VLANs, nor out.
    let behind = FlowKey { inner_vlan_tpid: 0x8100, inner_vlan_tci: FlowKey::VLAN_PRESENT | 30, ..priority };
    let cut_off = FlowKey { eth_type: 0x8100, ..key(3, mac(9), mac(7)) };
    let many = FlowKey { eth_type: 0x88a8, anomalies: FlowKey::DEEP_VLAN, inner_vlan_tci: 0x1000, ..priority };
    for hidden in [behind, cut_off, many] {
        assert_eq!(b.packet(&hidden), DROPPED);
        let out = FlowKey { in_port: 1, eth_src: mac(1).0, ..hidden };
        assert_eq!(b.packet(&out), outputs(&[2]));
        assert_eq!(b.packet(&FlowKey { eth_dst: mac(9).0, ..out }), DROPPED, "known there");
    }
    assert_eq!(b.packet(&key(1, mac(1), mac(9))), outputs(&[3]));
    // The outer tag is what counts; a customer's tags behind it are his.
    let customer = tagged(FlowKey { inner_vlan_tci: FlowKey::VLAN_PRESENT | 30, ..key(3, mac(9), mac(7)) }, 10);
    assert_eq!(b.packet(&customer), outputs(&[1, 2]));
}

#[test]
fn an_uplink_that_carries_other_vlans_forgets_those_it_had() {
    let mut b = trunk("10");
    b.packet(&tagged(key(3, mac(9), MacAddr::BROADCAST), 10));
    b.packet(&tagged(key(1, mac(1), MacAddr::BROADCAST), 10));
    assert_eq!(b.packet(&tagged(key(1, mac(1), mac(9)), 10)), outputs(&[3]));
    b.set_uplinks([(PortId(3), Some("20".parse().unwrap()))].into());
    assert_eq!(b.home(10, mac(9)), None);
    assert_eq!(b.home(10, mac(1)), Some(PortId(1)));
    assert_eq!(b.packet(&tagged(key(1, mac(1), mac(9)), 10)), outputs(&[2]));
    assert_eq!(b.packet(&tagged(key(3, mac(9), mac(1)), 10)), DROPPED);
    b.set_uplinks([(PortId(3), None)].into());
    assert_eq!(b.packet(&tagged(key(3, mac(9), mac(1)), 10)), outputs(&[1]));
}

#[test]
fn control_comes_back_and_keeps_flows_of_trunks() {
    let mut b = trunk("untagged:10");
    b.packet(&key(3, mac(9), mac(1)));
    b.packet(&key(1, mac(1), mac(9)));
    b.packet(&tagged(key(3, mac(9), mac(1)), 10));
    b.packet(&tagged(key(3, mac(9), mac(1)), 40));
    b.packet(&tagged(key(1, mac(1), mac(9)), 40));
    let right: Vec<_> = b.table.iter().map(|(f, _)| f.clone()).collect();
    // Made by one that knew of no VLANs.
    let wrong = FlowSpec { actions: outputs(&[1]), ..right[3].clone() };
    b.table[3].0 = wrong;
    b.restart_control();
    let after: Vec<_> = b.table.iter().map(|(f, _)| (f.key, f.mask, f.actions.clone())).collect();
    assert_eq!(after, right.into_iter().map(|f| (f.key, f.mask, f.actions)).collect::<Vec<_>>());
    assert_eq!((b.home(0, mac(9)), b.home(40, mac(9))), (Some(PortId(3)), None));
}

#[test]
fn explains_which_vlans_an_uplink_carries() {
    let mut b = trunk("untagged:10:20-30");
    let explain = |b: &Bench, key: &FlowKey| b.policy.explain(key, Headers::default(), b.now_ms, |id| format!("p{id}"));
    let e = explain(&b, &tagged(key(3, mac(9), mac(1)), 40));
    assert_eq!(e.lines, ["uplink p3 does not carry VLAN 40 (vlans=untagged:10:20-30): dropped"]);
    assert!(e.outputs.is_empty());
    let e = explain(&b, &tagged(key(1, mac(1), MacAddr::BROADCAST), 40));
    assert_eq!(e.outputs, [PortId(2)]);
    let flooded = "flooded to one other port that is up; uplink p3 does not carry VLAN 40 (vlans=untagged:10:20-30)";
    assert!(e.lines[1].ends_with(flooded), "{:?}", e.lines);
    let cut_off = FlowKey { eth_type: 0x8100, ..key(1, mac(1), mac(9)) };
    b.packet(&key(3, mac(9), mac(1)));
    let e = explain(&b, &cut_off);
    assert!(
        e.outputs.is_empty() && e.lines[1].contains("lives at p3, but uplink p3 does not carry a VLAN tag that is")
    );
    b.port(2, false);
    let e = explain(&b, &tagged(key(1, mac(1), mac(7)), 40));
    assert!(e.outputs.is_empty() && e.lines[1].ends_with(", and no other port is up: dropped"), "{:?}", e.lines);
}

#[test]
fn what_a_flood_leaves_out_between_uplinks_is_said_and_counted() {
    let mut b = Bench::new(Limits::default(), 3);
    b.set_uplinks([(PortId(2), None), (PortId(3), None)].into());
    assert_eq!(b.policy.floods_left_out(), 0);
    let broadcast = key(2, mac(9), MacAddr::BROADCAST);
    assert_eq!(b.packet(&broadcast), outputs(&[1]));
    assert_eq!(b.packet(&key(1, mac(1), MacAddr::BROADCAST)), outputs(&[2, 3]));
    assert_eq!(b.policy.floods_left_out(), 1);
    let e = b.policy.explain(&broadcast, Headers::default(), b.now_ms, |id| format!("p{id}"));
    let said = "flooded to one other port that is up; not to p3: nothing goes from one uplink to another";
    assert!(e.lines[1].ends_with(said), "{:?}", e.lines);
    b.port(3, false);
    assert_eq!(b.policy.floods_left_out(), 0, "nobody would have got it");
}

/// The commonest failure there is: nobody answers a first ARP request, and no counter says why.
#[test]
fn what_a_flood_leaves_out_by_settings_and_lists_is_said() {
    let mut b = Bench::new(Limits::default(), 5);
    let left_out = |b: &Bench| {
        let line = |l: crate::LeftOut| {
            (l.from.0, l.vlan, l.reason.name(), l.to.iter().map(|to| to.0).collect::<Vec<_>>(), l.why)
        };
        b.policy.left_out_of_floods(|id| format!("p{id}")).into_iter().map(line).collect::<Vec<_>>()
    };
    let settings = |text: &str| text.to_owned().try_into().unwrap();
    b.set(1, settings("vlan=10"));
    b.set(2, settings("vlan=20"));
    b.set(3, settings("vlan=10 isolated=on"));
    b.set(4, settings("trunk=10"));
    let deny = crate::acl::read("deny to-guest arp", None).unwrap();
    let mut book = crate::acl::Book::default();
    book.replace(&crate::acl::Scope::Port("p5".into()), None, &deny).unwrap();
    b.load([(PortId(5), book.of_port("p5", false))].into());
    assert_eq!(left_out(&b), [], "nobody has flooded anything");
    let arp = FlowKey { eth_type: 0x0806, ..key(1, mac(1), MacAddr::BROADCAST) };
    b.packet(&arp);
    b.packet(&FlowKey { eth_src: mac(9).0, ..arp });
    let said = [
        (1, 10, "vlan", vec![2], "port p2 does not carry VLAN 10 (vlan=20)".to_owned()),
        (1, 10, "isolated", vec![3], "p3 is isolated: it talks to uplinks only".to_owned()),
        (1, 10, "acl", vec![5], "the to-guest access list of p5 denies it".to_owned()),
    ];
    let mut found = left_out(&b);
    found.sort_by_key(|line| line.3.clone());
    assert_eq!(found, said);
    b.port(2, false);
    assert!(left_out(&b).iter().all(|line| line.2 != "vlan"), "it would not have got it in any case");
}
