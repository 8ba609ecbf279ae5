//! The learning switch on the bench of `testutil.rs`.

use super::*;
use crate::Headers;
use crate::testutil::{Bench, MirrorSpec, Op, compare, key, mac, tagged};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use proptest::prelude::*;

mod away;
mod connections;
mod groups;
mod macs;
mod mirrors;
mod nat;
mod published;
mod uplinks;

const NOWHERE: [Action; 1] = [Action::Drop(DropReason::NoOtherPort)];

fn outputs(ports: &[u32]) -> Vec<Action> {
    ports.iter().map(|p| Action::Output(PortId(*p))).collect()
}

#[test]
fn floods_then_forwards_then_stops_asking() {
    let mut b = Bench::new(Limits::default(), 3);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]));
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1]));
    // The flood flow was replaced when its destination spoke.
    let asked = b.next_id;
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1]));
    assert_eq!(b.next_id, asked, "known flows do not come to control");
}

#[test]
fn a_port_whose_addresses_are_forgotten_learns_them_anew() {
    let mut b = Bench::new(Limits::default(), 3);
    assert_eq!(b.packet(&key(2, mac(2), mac(1))), outputs(&[1, 3]));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    let mut out = Effects::default();
    b.policy.forget_addresses(PortId(2), b.now_ms, &mut out);
    b.apply(out);
    assert_eq!(b.policy.port_view(PortId(2)).map(|v| v.macs), Some(0));
    // Those of other ports stay.
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    // It is looked for everywhere, and found behind another port at once.
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]));
    assert_eq!(b.packet(&key(3, mac(2), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[3]));
    // The port may learn again.
    assert_eq!(b.packet(&key(2, mac(5), mac(1))), outputs(&[1]));
    assert_eq!(b.policy.port_view(PortId(2)).map(|v| v.macs), Some(1));
}

#[test]
fn broadcast_and_multicast_follow_the_ports() {
    let mut b = Bench::new(Limits::default(), 2);
    let all = key(1, mac(1), MacAddr::BROADCAST);
    assert_eq!(b.packet(&all), outputs(&[2]));
    b.port(3, true);
    let asked = b.next_id;
    assert_eq!(b.packet(&all), outputs(&[2, 3]));
    b.port(2, false);
    assert_eq!(b.packet(&all), outputs(&[3]));
    b.port_gone(3);
    assert_eq!(b.packet(&all), NOWHERE);
    assert_eq!(b.next_id, asked);
    assert_eq!(b.packet(&key(1, mac(1), MacAddr([1, 0, 0x5e, 0, 0, 0xfb]))), NOWHERE);
}

#[test]
fn refuses_with_one_flow_what_no_station_may_send() {
    let mut b = Bench::new(Limits::default(), 2);
    for n in 0..100 {
        assert_eq!(
            b.packet(&key(1, MacAddr([0x01 | (n << 1), 9, n, 3, 1, n]), mac(2))),
            [Action::Drop(DropReason::BadSource)]
        );
    }
    assert_eq!((b.next_id, b.table.len(), b.policy.mac_count()), (1, 1, 0));
    assert_eq!(b.packet(&key(1, MacAddr([0; 6]), mac(2))), [Action::Drop(DropReason::BadSource)]);
    for n in 0..16 {
        assert_eq!(
            b.packet(&key(1, mac(1), MacAddr([0x01, 0x80, 0xc2, 0, 0, n]))),
            [Action::Drop(DropReason::LinkLocal)]
        );
        assert_eq!(
            b.packet(&key(2, mac(2), MacAddr([0x01, 0x80, 0xc2, 0, 0, n]))),
            [Action::Drop(DropReason::LinkLocal)]
        );
    }
    assert_eq!((b.next_id, b.table.len()), (3, 3));
    // The neighbouring block is ordinary multicast.
    assert_eq!(b.packet(&key(1, mac(1), MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]))), outputs(&[2]));
}

#[test]
fn hairpin_goes_back() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), MacAddr::BROADCAST));
    b.packet(&key(1, mac(2), MacAddr::BROADCAST));
    // Sent back where it came from: the switch drops that and counts it as a hairpin.
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[1]));
    assert_eq!(b.packet(&key(2, mac(3), mac(2))), outputs(&[1]));
}

#[test]
fn vlans_are_learned_apart_and_priority_tags_are_no_vlan() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), MacAddr::BROADCAST));
    b.packet(&tagged(key(2, mac(1), MacAddr::BROADCAST), 7));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(1)), 7)), outputs(&[2]));
    assert_eq!(b.packet(&tagged(key(3, mac(3), mac(1)), 8)), outputs(&[1, 2]));
    let asked = b.next_id;
    let mut priority = tagged(key(3, mac(3), mac(1)), 0);
    priority.vlan_tci |= 5 << 13;
    assert_eq!(b.packet(&priority), outputs(&[1]));
    assert_eq!(b.next_id, asked, "met the untagged flow");
}

#[test]
fn ageing_counts_from_the_last_packet_even_when_a_flow_carried_it() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(2, mac(2), mac(1)));
    for _ in 0..60 {
        b.poll(10_000);
        b.packet(&key(1, mac(1), mac(2)));
    }
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    assert_eq!(b.home(0, mac(2)), None, "silent for ten minutes");
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2, 3]), "so it is flooded again");
    for _ in 0..31 {
        b.poll(10_000);
    }
    assert!(b.policy.is_idle() && b.table.is_empty());
}

#[test]
fn a_station_that_moves_is_followed_and_its_flows_too() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(9)));
    b.packet(&key(3, mac(3), mac(1)));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
    b.packet(&key(2, mac(1), MacAddr::BROADCAST));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[2]));
    // Speaking at the old port brings it back: the flow there is gone, so the packet comes to control.
    b.packet(&key(1, mac(1), mac(9)));
    assert_eq!(b.packet(&key(3, mac(3), mac(1))), outputs(&[1]));
}

#[test]
fn a_guest_that_fights_for_a_neighbours_address_loses() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(3)));
    for _ in 0..MAX_MOVES {
        b.now_ms += 10;
        b.packet(&key(2, mac(1), MacAddr::BROADCAST));
        b.packet(&key(1, mac(1), mac(3)));
    }
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    let before = b.refused(2);
    assert_eq!(b.packet(&key(2, mac(1), mac(3))), outputs(&[1, 3]), "still forwarded");
    assert_eq!(b.refused(2), before + 1);
    assert_eq!(b.home(0, mac(1)), Some(PortId(1)));
    // And who looks is told which address it is, and where it lives.
    let refused = b.policy.port_view(PortId(2)).and_then(|view| view.refused);
    let seen = refused.map(|of| (of.vlan, of.mac, of.lives_at, of.at_ms));
    assert_eq!(seen, Some((0, mac(1), Some(PortId(1)), b.now_ms)));
    assert_eq!(b.policy.port_view(PortId(1)).and_then(|view| view.refused), None);
    // Long after, it may move again.
    b.poll(HOLD_MS);
    b.packet(&key(2, mac(1), mac(3)));
    assert_eq!(b.home(0, mac(1)), Some(PortId(2)));
}

#[test]
fn a_flood_of_addresses_evicts_nobody_and_is_still_forwarded() {
    let limits = Limits { macs: 64, macs_per_port: 16, flows: 256, flows_per_port: 32, ..Limits::default() };
    let mut b = Bench::new(limits, 3);
    b.packet(&key(2, mac(2), mac(3)));
    b.packet(&key(3, mac(3), mac(2)));
    for n in 0..200u8 {
        let src = MacAddr([2, 0, 0, 0, 7, n]);
        assert_eq!(b.packet(&key(1, src, mac(2))), outputs(&[2]));
        b.limits_hold();
    }
    assert_eq!(b.refused(1), 200 - 16);
    let asked = b.next_id;
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), outputs(&[3]));
    assert_eq!(b.packet(&key(3, mac(3), mac(2))), outputs(&[2]));
    assert_eq!(b.next_id, asked, "the neighbours' flows are untouched");
    // Nor can the flooder take an address that its full port has no room for.
    b.packet(&key(1, mac(2), mac(3)));
    assert_eq!(b.home(0, mac(2)), Some(PortId(2)));
}

/// 100 guests, an uplink with 10 000 stations behind it, and one more uplink.
#[test]
fn a_network_behind_an_uplink_takes_no_room_from_guests() {
    let (mut policy, mut out) = (Learning::default(), Effects::default());
    policy.set_uplinks(&[(PortId(200), None), (PortId(201), None)].into(), 0, &mut out);
    for port in (1..=100).chain([200, 201]) {
        policy.port(PortId(port), true, 0, &mut out);
    }
    let station = |port: u32, n: u32| MacAddr([2, port as u8, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    let mut send = |port: u32, src: MacAddr, dst: MacAddr| {
        let mut out = Effects::default();
        policy.miss(1, &key(port, src, dst), 0, &mut out);
        out.resumes.remove(0).actions
    };
    send(1, mac(1), MacAddr::BROADCAST);
    for n in 0..10_000 {
        send(200, station(200, n), mac(1));
    }
    for n in 0..10_000 {
        assert_eq!(send(1, mac(1), station(200, n)), outputs(&[200]), "station {n} is known");
    }
    // A hostile one takes what it can get.
    for n in 0..40_000 {
        send(201, station(201, n), mac(1));
    }
    assert_eq!(send(1, mac(1), station(201, 32_767)), outputs(&[201]));
    assert_eq!(send(1, mac(1), station(201, 32_768)).len(), 101, "flooded");
    // All the same, every guest has its share, and the first network keeps growing.
    send(200, station(200, 10_000), mac(1));
    assert_eq!(send(1, mac(1), station(200, 10_000)), outputs(&[200]));
    for port in 2..=100 {
        for n in 0..655 {
            send(port, station(port, n), mac(1));
        }
    }
    for port in 2..=100 {
        let view = policy.port_view(PortId(port)).unwrap();
        assert_eq!((view.macs, view.mac_limit, view.over_limit), (655, 655, 0), "port {port}");
    }
    assert_eq!(policy.port_view(PortId(201)).unwrap().over_limit, 40_000 - 32_768);
}

#[test]
fn a_port_that_is_added_finds_room_however_the_others_keep_theirs_in_use() {
    let mut b = Bench::new(Limits { macs: 12, macs_per_port: 6, ..Limits::default() }, 2);
    let speak = |b: &mut Bench| {
        for n in 0..6 {
            b.now_ms += 1;
            b.packet(&key(1, mac(0x10 + n), MacAddr::BROADCAST));
            b.packet(&key(2, mac(0x20 + n), MacAddr::BROADCAST));
        }
    };
    speak(&mut b);
    assert_eq!(b.policy.mac_count(), 12);
    b.port(3, true);
    b.packet(&key(3, mac(3), MacAddr::BROADCAST));
    assert_eq!(b.home(0, mac(3)), None, "there is no room yet");
    speak(&mut b);
    b.poll(10_000);
    // Those that have been silent longest had to go; what has gone is flooded.
    for n in 0..6 {
        assert_eq!(b.home(0, mac(0x10 + n)).is_some(), n >= 2, "{n}");
    }
    assert_eq!(b.packet(&key(3, mac(3), mac(0x10))), outputs(&[1, 2]));
    assert_eq!(b.packet(&key(3, mac(3), mac(0x12))), outputs(&[1]));
    assert_eq!(b.home(0, mac(3)), Some(PortId(3)));
    for n in 0..4 {
        b.packet(&key(3, mac(0x30 + n), MacAddr::BROADCAST));
    }
    assert_eq!(b.policy.port_view(PortId(3)).map(|v| (v.macs, v.over_limit)), Some((4, 2)));
    // The others do not get theirs back by speaking.
    speak(&mut b);
    assert_eq!(b.policy.port_view(PortId(1)).map(|v| v.macs), Some(4));
}

#[test]
fn control_comes_back_and_keeps_what_is_right() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(2, mac(2), mac(1)));
    b.packet(&key(1, mac(1), mac(2)));
    b.packet(&key(3, MacAddr([1; 6]), mac(1)));
    // A flow that contradicts: mac(1) lives at 1.
    let wrong = FlowSpec {
        key: key(3, mac(3), mac(1)).masked(&b.table[0].0.mask),
        mask: b.table[0].0.mask,
        actions: outputs(&[2]),
        epoch: 77,
    };
    let alien = FlowSpec { key: FlowKey::default(), mask: FlowMask::default(), actions: outputs(&[2]), epoch: 0 };
    let right: Vec<_> = b.table.iter().map(|(f, _)| f.clone()).collect();
    let now_ms = b.now_ms;
    b.table.push((wrong.clone(), now_ms));
    b.table.push((alien, now_ms));
    b.restart_control();
    assert!(b.policy.epoch() > 77);
    for f in &right {
        assert!(b.table.iter().any(|(g, _)| g == f), "{f:?} was right");
    }
    assert_eq!(b.table.len(), right.len() + 1);
    let (mended, _) = b.table.iter().find(|(f, _)| f.key == wrong.key).unwrap();
    assert_eq!(mended.actions, outputs(&[1]));
    assert_eq!(b.home(0, mac(2)), Some(PortId(2)));
    let asked = b.next_id;
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), outputs(&[2]));
    assert_eq!(b.next_id, asked);
}

#[test]
fn the_switch_evicts_and_the_index_learns_of_it() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), mac(2)));
    b.table.clear();
    b.poll(1000);
    assert!(!b.policy.has_flows());
    assert_eq!(b.policy.mac_count(), 1, "what was learned stays");
    // A miss of a flow we believe installed installs it again.
    b.packet(&key(1, mac(1), mac(2)));
    b.table.clear();
    b.now_ms += 1000;
    b.packet(&key(1, mac(1), mac(2)));
    assert_eq!(b.table.len(), 1);
}

/// Where the data plane holds a cache, what it does not tell of stays known, and is put again without a judgement.
#[test]
fn what_a_cache_has_lost_is_put_again_and_not_judged() {
    let mut b = Bench::new(Limits { data_plane_caches: true, ..Limits::default() }, 2);
    b.packet(&key(1, mac(1), mac(2)));
    let judged = b.policy.recalls().judged;
    b.table.clear();
    b.poll(1000);
    assert!(b.policy.has_flows(), "an answer without it does not end it");
    b.packet(&key(1, mac(1), mac(2)));
    assert_eq!(b.table.len(), 1);
    let recalls = b.policy.recalls();
    assert_eq!((recalls.judged, recalls.recached), (judged, 1));
    // A station that has moved takes its flow along: what follows is judged.
    b.packet(&key(2, mac(1), mac(2)));
    b.packet(&key(1, mac(1), mac(2)));
    assert!(b.policy.recalls().judged >= judged + 2);
}

#[test]
fn what_was_asked_for_after_the_question_survives_an_old_answer() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&key(1, mac(1), mac(2)));
    let (old, asked) = (b.dump(), b.policy.asked());
    b.packet(&key(2, mac(2), mac(1)));
    let mut out = Effects::default();
    b.policy.statistics(asked, &old, b.now_ms, &mut out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(b.policy.flow_count(), 2);
}

#[test]
fn explains_itself() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    let name = |p: PortId| format!("vm{p}");
    let e = b.policy.explain(&key(2, mac(2), mac(1)), Headers::default(), b.now_ms, name);
    assert_eq!(e.outputs, [PortId(1)]);
    assert_eq!(
        e.lines,
        ["source 52:54:00:00:00:02 is new and would be learned at vm2", "destination 52:54:00:00:00:01 lives at vm1"]
    );
    assert_eq!(b.policy.mac_count(), 1, "asking learns nothing");
    let e = b.policy.explain(&tagged(key(2, mac(2), mac(1)), 5), Headers::default(), b.now_ms, name);
    assert!(e.lines[1].contains("in VLAN 5 is unknown: flooded to the 2 other ports"), "{:?}", e.lines);
    let e = b.policy.explain(&key(2, MacAddr([3; 6]), mac(1)), Headers::default(), b.now_ms, name);
    assert!(e.outputs.is_empty() && e.lines[0].contains("group address"));
}

/// Packets of all ports would wait for control anew.
#[test]
fn what_the_switch_does_by_itself_changes_without_touching_flows() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    let flows = b.dump().len();
    assert!(flows > 0);
    for name in crate::OF_SWITCH {
        let value = match *name {
            "weight" | "priority" | "max-cpu" | "max-cpu-to" => "2",
            "engine" => "poll-3",
            "tx-batch" | "rx-batch" => "off",
            _ => "20M",
        };
        b.set(1, PortSettings::try_from(format!("{name}={value}")).unwrap());
        assert_eq!(b.dump().len(), flows, "{name}");
    }
    b.set(1, PortSettings::try_from("vlan=7".to_owned()).unwrap());
    assert_eq!(b.dump().len(), 0, "others do");
}

/// They delay and drop, and no flow says so.
#[test]
fn explains_rates() {
    let mut b = Bench::new(Limits::default(), 3);
    b.packet(&key(1, mac(1), mac(2)));
    for (port, text) in [(1, "rate-to=20kpps"), (2, "rate-from=100M storm=1M")] {
        b.set(port, PortSettings::try_from(text.to_owned()).unwrap());
    }
    let said = |b: &Bench, to| {
        b.policy.explain(&key(2, mac(2), to), Headers::default(), b.now_ms, |p| format!("vm{p}")).lines.join("; ")
    };
    let known = said(&b, mac(1));
    assert!(known.contains("rate-from=100M of vm2: ") && known.contains("rate-to=20kpps of vm1: "), "{known}");
    assert!(!known.contains("storm"), "{known}");
    assert!(said(&b, mac(9)).contains("storm=1M of vm2: "), "a flood");
}

/// Port 4 floods to 3000 stations that nobody knows; ports 1 to 3 talk to one each.
fn many_floods() -> Bench {
    let mut b = Bench::new(Limits::default(), 5);
    for n in 0..3000u16 {
        let [high, low] = n.to_be_bytes();
        b.packet(&key(4, mac(4), MacAddr([0x52, 0x54, 1, 1, high, low])));
    }
    for port in 1..=3 {
        b.packet(&key(port, mac(port as u8), mac(200)));
    }
    b.most_changes = 0;
    b
}

#[test]
fn a_port_that_goes_down_changes_a_few_flows_at_once_and_all_in_the_end() {
    let mut b = many_floods();
    b.now_ms += 1;
    b.port(5, false);
    assert!(b.most_changes <= b.limits.at_once, "{} changes at once", b.most_changes);
    assert!(b.table.iter().all(|(f, _)| !f.actions.contains(&Action::Output(PortId(5)))));
    // The port that owns them flaps itself.
    b.port(4, false);
    b.port(4, true);
    assert!(b.most_changes <= b.limits.at_once, "{} changes at once", b.most_changes);
}

#[test]
fn the_flows_of_one_port_do_not_keep_those_of_others_waiting() {
    let mut b = many_floods();
    b.now_ms += 1;
    let mut out = Effects::default();
    b.policy.port(PortId(5), false, b.now_ms, &mut out);
    b.carry_out(out);
    let wrong = |b: &Bench, port: u32| {
        let of_port = b.table.iter().filter(|(f, _)| f.key.in_port == port);
        of_port.filter(|(f, _)| f.actions.contains(&Action::Output(PortId(5)))).count()
    };
    assert!(wrong(&b, 4) > 2900, "most of port 4's wait");
    for port in 1..=3 {
        assert_eq!(wrong(&b, port), 0, "port {port}");
    }
    // A packet that misses meanwhile is judged by what is known now, and a stale flow that it finds known is mended.
    let stale = b.table.iter().position(|(f, _)| f.key.in_port == 4 && f.actions.len() == 4).unwrap();
    let missed = b.table.swap_remove(stale).0.key;
    let mut out = Effects::default();
    b.policy.miss(77, &missed, b.now_ms, &mut out);
    assert_eq!(b.carry_out(out)[0].actions, outputs(&[1, 2, 3]));
    assert_eq!(b.lookup(&missed)[0].actions, outputs(&[1, 2, 3]));
    // Slice by slice.
    let mut slices = 0;
    while b.policy.put_right_ms().is_some() {
        let mut out = Effects::default();
        b.policy.put_right(b.now_ms, &mut out);
        b.carry_out(out);
        slices += 1;
    }
    assert_eq!(wrong(&b, 4), 0);
    assert!(slices >= 3000 / b.limits.at_once && b.most_changes <= b.limits.at_once, "{slices} slices");
}

#[test]
fn a_station_that_moves_drops_its_many_flows_little_by_little() {
    let mut b = many_floods();
    // The station of 3000 flows appears elsewhere; so does one that 3000 others send to.
    b.now_ms += 1;
    b.packet(&key(1, mac(4), mac(1)));
    // Two flows of its own, one more that makes room.
    assert!(b.most_changes <= b.limits.at_once + 3, "{} changes at once", b.most_changes);
    assert!(!b.table.iter().any(|(f, _)| f.key.in_port == 4), "in the end all are gone");
    let mut b = Bench::new(Limits { macs: 1, ..Limits::default() }, 3);
    for n in 0..3000u16 {
        let [high, low] = n.to_be_bytes();
        b.packet(&key(1, MacAddr([0x52, 0x54, 1, 1, high, low]), mac(200)));
    }
    (b.most_changes, b.now_ms) = (0, b.now_ms + 1);
    b.packet(&key(2, mac(200), mac(1)));
    assert!(b.most_changes <= b.limits.at_once + 3, "{} changes at once", b.most_changes);
    // None of the sources could be learned: at the next look at the flows all go, little by little too.
    b.most_changes = 0;
    b.poll(10_000);
    assert!(b.most_changes <= b.limits.at_once, "{} changes at once", b.most_changes);
    assert!(b.table.len() < 3);
}

#[test]
fn a_port_that_flaps_stays_in_floods_until_it_is_quiet() {
    let mut b = Bench::new(Limits::default(), 3);
    let all = key(1, mac(1), MacAddr::BROADCAST);
    b.packet(&all);
    for _ in 0..MAX_FLAPS / 2 {
        b.port(3, false);
        assert_eq!(b.packet(&all), outputs(&[2]));
        b.port(3, true);
        assert_eq!(b.packet(&all), outputs(&[2, 3]));
    }
    b.most_changes = 0;
    for _ in 0..1000 {
        b.port(3, false);
        b.port(3, true);
    }
    b.port(3, false);
    assert_eq!(b.most_changes, 0, "nobody's flows are touched");
    assert_eq!(b.packet(&all), outputs(&[2, 3]));
    b.poll(FLAP_WINDOW_MS);
    assert_eq!(b.packet(&all), outputs(&[2]));
    b.port(3, true);
    assert_eq!(b.packet(&all), outputs(&[2, 3]));
}

fn address() -> impl Strategy<Value = MacAddr> {
    prop_oneof![
        8 => (1u8..7).prop_map(mac),
        1 => Just(MacAddr::BROADCAST),
        1 => Just(MacAddr([0; 6])),
        1 => Just(MacAddr([1, 0x80, 0xc2, 0, 0, 3])),
    ]
}

fn packet() -> impl Strategy<Value = FlowKey> {
    // Mostly plain; else tags behind the first, or cut off.
    let odd = prop_oneof![6 => Just((0x0800, 0)), 1 => Just((0x0800, 0x1001)), 1 => Just((0x8100, 0))];
    (1u32..5, address(), address(), 0u16..3, odd, any::<u8>()).prop_map(|(port, src, dst, vlan, odd, more)| {
        let (eth_type, inner_vlan_tci) = odd;
        let mut key = FlowKey { eth_type, inner_vlan_tci, ..key(port, src, dst) };
        // An address that settings may allow, or a priority.
        key.ip_src[15] = more & 3;
        let priority = u16::from(more & 4) << 11;
        if vlan == 2 { key } else { tagged(key, vlan | priority) }
    })
}

fn settings() -> impl Strategy<Value = PortSettings> {
    let texts = [
        "vlan=1",
        "vlan=7",
        "trunk=1",
        "trunk=1,7 native=3",
        "native=1",
        "isolated=on",
        "mac=52:54:00:00:00:01,52:54:00:00:00:03",
        "mac=52:54:00:00:00:02 addr=0.0.0.1,0.0.0.2 vlan=1",
        "no-dhcp-server=on",
        "storm=1M vlan=1",
    ];
    let some = prop::sample::select(texts.to_vec()).prop_map(|text| text.to_owned().try_into().unwrap());
    prop_oneof![4 => some, 1 => Just(PortSettings::default())]
}

fn uplinks() -> impl Strategy<Value = Uplinks> {
    let vlans = prop::option::of(prop::sample::select(vec!["untagged", "1", "untagged:1", "7"]));
    let vlans = vlans.prop_map(|text| text.map(|t| t.parse().unwrap()));
    prop::collection::btree_map((1u32..5).prop_map(PortId), vlans, 0..4)
}

fn mirrors() -> impl Strategy<Value = Vec<MirrorSpec>> {
    let which = prop::sample::select(vec![Mirrored::FromGuest, Mirrored::ToGuest, Mirrored::Both]);
    prop::collection::vec((prop::collection::vec(1u32..5, 0..4), 1u32..5, which), 0..3)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => packet().prop_map(Op::Packet),
        3 => (1u32..5, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (1u32..5).prop_map(Op::PortGone),
        2 => prop_oneof![Just(10_000u64), Just(1000), Just(150_000)].prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::Evict),
        1 => uplinks().prop_map(Op::Uplinks),
        1 => mirrors().prop_map(Op::Mirror),
        2 => (1u32..5, settings()).prop_map(|(port, settings)| Op::Set(port, settings)),
        1 => Just(Op::RestartControl),
        1 => Just(Op::RestartSwitch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn flows_say_what_the_definition_says(
        ops in prop::collection::vec(op(), 1..150),
        probes in prop::collection::vec(packet(), 20),
        small in any::<bool>(),
    ) {
        compare(ops, &probes, small);
    }
}
