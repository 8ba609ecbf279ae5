//! Mirrors: what is copied where, and that nothing else changes.

use super::*;
use Mirrored::{Both, FromGuest, ToGuest};

fn to(port: u32) -> Action {
    Action::Output(PortId(port))
}

fn copy(port: u32) -> Action {
    Action::Copy(PortId(port))
}

fn told(text: &str) -> PortSettings {
    text.to_owned().try_into().unwrap()
}

/// Stations 1 to 3 at ports of their number, and nothing yet at 4.
fn bench(mirrors: &[(&[u32], u32, Mirrored)]) -> Bench {
    let mut b = Bench::new(Limits::default(), 4);
    for n in 1..4 {
        b.packet(&key(u32::from(n), mac(n), MacAddr::BROADCAST));
    }
    b.mirror(mirrors.iter().map(|(from, to, which)| (from.to_vec(), *to, *which)).collect());
    b
}

#[test]
fn both_directions_of_a_port() {
    for (which, sends, gets) in [
        (FromGuest, vec![copy(4), to(2)], vec![to(1)]),
        (ToGuest, vec![to(2)], vec![copy(4), to(1)]),
        (Both, vec![copy(4), to(2)], vec![copy(4), to(1)]),
    ] {
        let mut b = bench(&[(&[1], 4, which)]);
        assert_eq!(b.packet(&key(1, mac(1), mac(2))), sends, "{which}");
        assert_eq!(b.packet(&key(2, mac(2), mac(1))), gets, "{which}");
        assert_eq!(b.packet(&key(2, mac(2), mac(3))), [to(3)], "neither is mirrored");
    }
}

/// A packet that two mirrors, or both directions of one, want is there once for each destination.
#[test]
fn each_destination_gets_one_copy() {
    let mut b = bench(&[(&[1, 2], 4, Both), (&[1], 4, FromGuest)]);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), [copy(4), to(2)]);
    assert_eq!(b.packet(&key(3, mac(3), MacAddr::BROADCAST)), [copy(4), to(1), to(2)]);
    let mut b = bench(&[(&[1], 4, FromGuest), (&[1], 3, Both)]);
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), [copy(4), copy(3), to(2)]);
}

/// What a guest sends is copied as it came, what it gets as it gets it.
#[test]
fn copies_have_the_tags_of_their_side() {
    use lasthop_frame::Edit;
    let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 10 });
    for (which, actions) in [(FromGuest, [copy(4), push, to(2)]), (ToGuest, [push, to(2), to(2)])] {
        let mut b = Bench::new(Limits::default(), 4);
        b.set(1, told("vlan=10"));
        b.packet(&key(1, mac(1), MacAddr::BROADCAST));
        b.packet(&tagged(key(2, mac(2), MacAddr::BROADCAST), 10));
        b.mirror(vec![(vec![if which == FromGuest { 1 } else { 2 }], 4, which)]);
        let wanted = if which == FromGuest { actions.to_vec() } else { vec![push, copy(4), to(2)] };
        assert_eq!(b.packet(&key(1, mac(1), mac(2))), wanted);
    }
}

/// A mirror shows what a guest sends even if that goes nowhere.
#[test]
fn what_policy_drops_is_copied_as_well() {
    let drop = |reason| Action::Drop(reason);
    let mut b = bench(&[(&[1], 4, FromGuest)]);
    b.set(1, told("mac=52:54:00:00:00:01"));
    let link_local = MacAddr([1, 0x80, 0xc2, 0, 0, 3]);
    for (packet, reason) in [
        (key(1, mac(9), mac(2)), DropReason::Spoofed),
        (key(1, MacAddr([3; 6]), mac(2)), DropReason::BadSource),
        (key(1, MacAddr([0; 6]), mac(2)), DropReason::BadSource),
        (key(1, mac(1), link_local), DropReason::LinkLocal),
    ] {
        for _ in 0..2 {
            assert_eq!(b.packet(&packet), [copy(4), drop(reason)], "{packet:?}");
        }
        assert_eq!(b.lookup(&packet).len(), 1);
    }
    // It counts as dropped, as without a mirror.
    b.hits = 7;
    b.poll(10_000);
    let denied: Vec<_> = b.policy.denied().map(|(port, why, denied)| (port.0, why.0, denied.packets)).collect();
    assert_eq!(denied, [(1, DropReason::Spoofed, 7)]);
    // The flow of one port that refuses link-local addresses says nothing of others, and goes with the mirror.
    assert_eq!(b.packet(&key(2, mac(2), link_local)), [drop(DropReason::LinkLocal)]);
    assert_eq!(b.lookup(&key(1, mac(1), link_local)).len(), 1);
    b.mirror(vec![]);
    assert_eq!(b.packet(&key(2, mac(2), link_local)), [drop(DropReason::LinkLocal)]);
    assert_eq!(b.packet(&key(1, mac(1), link_local)), [drop(DropReason::LinkLocal)]);
    assert_eq!(b.next_id, b.next_id.min(3 + 4 + 1 + 1), "one flow for all ports again");
}

#[test]
fn a_destination_gets_nothing_but_copies_and_teaches_nothing() {
    let mut b = bench(&[]);
    b.packet(&key(4, mac(4), MacAddr::BROADCAST));
    assert_eq!(b.packet(&key(1, mac(1), mac(4))), [to(4)]);
    b.mirror(vec![(vec![1], 4, FromGuest)]);
    assert_eq!(b.home(0, mac(4)), None, "what lived there lives nowhere");
    assert_eq!(b.packet(&key(1, mac(1), mac(4))), [copy(4), to(2), to(3)], "unknown, and not flooded there");
    for dst in [mac(1), mac(4), MacAddr::BROADCAST] {
        assert_eq!(b.packet(&key(4, mac(5), dst)), [Action::Drop(DropReason::MirrorPort)]);
    }
    assert_eq!(b.home(0, mac(5)), None);
    b.mirror(vec![]);
    assert_eq!(b.packet(&key(1, mac(1), MacAddr::BROADCAST)), outputs(&[2, 3, 4]));
    b.packet(&key(4, mac(4), mac(1)));
    assert_eq!(b.packet(&key(1, mac(1), mac(4))), [to(4)]);
}

/// The only other port is a destination.
#[test]
fn nobody_to_flood_to() {
    let mut b = Bench::new(Limits::default(), 2);
    b.mirror(vec![(vec![1], 2, Both)]);
    let all = key(1, mac(1), MacAddr::BROADCAST);
    assert_eq!(b.packet(&all), [copy(2), Action::Drop(DropReason::MirrorPort)]);
    b.mirror(vec![(vec![], 2, Both)]);
    assert_eq!(b.packet(&all), [Action::Drop(DropReason::MirrorPort)]);
}

/// A source or a destination that comes, goes and comes again.
#[test]
fn a_mirror_follows_its_ports() {
    let mut b = bench(&[(&[1, 2], 4, Both)]);
    let packet = key(1, mac(1), mac(2));
    assert_eq!(b.packet(&packet), [copy(4), to(2)]);
    b.port_gone(4);
    assert_eq!(b.packet(&packet), [to(2)]);
    b.port(4, true);
    assert_eq!(b.packet(&packet), [copy(4), to(2)]);
    b.port_gone(1);
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), [copy(4), to(3)]);
    b.port(1, true);
    b.packet(&key(3, mac(3), mac(2)));
    b.restart_control();
    let asked = b.next_id;
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), [copy(4), to(3)]);
    assert_eq!(b.next_id, asked, "another control keeps what is right");
    b.restart_switch();
    assert_eq!(b.packet(&key(2, mac(2), mac(3))), [copy(4), to(3)]);
}

/// A destination that wants one of so many packets has a chance before each copy, and nobody else has; another rate removes flows.
#[test]
fn a_part_is_copied_by_chance() {
    let mut b = bench(&[(&[1], 4, Both)]);
    b.set(1, told("mac=52:54:00:00:00:01"));
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), [copy(4), to(2)]);
    for (sample, chance) in [(2, 0x7fff_ffff), (1000, 4_294_966), (1_000_000, 4_293)] {
        b.sample = sample;
        b.mirror(b.mirrors.clone());
        let drawn = Action::Sample(chance, 1);
        for _ in 0..2 {
            assert_eq!(b.packet(&key(1, mac(1), mac(2))), [drawn, copy(4), to(2)]);
            assert_eq!(b.packet(&key(2, mac(2), mac(1))), [drawn, copy(4), to(1)]);
            assert_eq!(b.packet(&key(2, mac(2), mac(3))), [to(3)], "neither is mirrored");
            let refused = b.packet(&key(1, mac(9), mac(2)));
            assert_eq!(refused, [drawn, copy(4), Action::Drop(DropReason::Spoofed)]);
        }
    }
    // What is dropped counts as dropped, whether it is copied or not.
    b.hits = 7;
    b.poll(10_000);
    let denied: Vec<_> = b.policy.denied().map(|(port, why, denied)| (port.0, why.0, denied.packets)).collect();
    assert_eq!(denied, [(1, DropReason::Spoofed, 7)]);
    let text = b.policy.explain(&key(1, mac(1), mac(2)), Headers::default(), b.now_ms, |id| format!("p{id}")).lines;
    let said = "mirror to-4: a copy of one packet in 1000000 goes to p4, as it came";
    assert!(text.iter().any(|line| line == said), "{text:?}");
    let asked = b.next_id;
    b.restart_control();
    assert_eq!(b.packet(&key(1, mac(1), mac(2))), [Action::Sample(4_293, 1), copy(4), to(2)]);
    assert_eq!(b.next_id, asked, "another control keeps what is right");
}

/// Labels say whose packet it is, which way it went and why it was dropped, and are off again before the packet goes on.
#[test]
fn labelled_copies_say_what_they_are() {
    use lasthop_frame::Edit;
    let labelled = |to: u32, place, to_guest, dropped| {
        let tci = crate::Label { place, to_guest, dropped }.tci();
        let tag = Edit::PushVlan { tpid: crate::LABEL_TPID, tci };
        vec![Action::Edit(tag), copy(to), Action::Edit(Edit::PopVlan)]
    };
    let mut b = bench(&[]);
    let (mut mirrors, mut out) = (crate::Mirrors::default(), Effects::default());
    let from = [PortId(1), PortId(2)];
    mirrors.add("m", &from, PortId(4), Both, 1);
    b.policy.set_mirrors(mirrors.clone(), b.now_ms, &mut out);
    b.apply(out);
    assert_eq!(b.packet(&key(1, mac(1), mac(3))), [copy(4), to(3)]);
    // Labels alone are a change: flows without them go.
    mirrors.label(PortId(4), [(PortId(1), 7), (PortId(2), 300)]);
    let mut out = Effects::default();
    b.policy.set_mirrors(mirrors, b.now_ms, &mut out);
    b.apply(out);
    b.set(1, told("mac=52:54:00:00:00:01"));
    for (packet, label, rest) in [
        (key(1, mac(1), mac(3)), labelled(4, 7, false, None), to(3)),
        (key(3, mac(3), mac(2)), labelled(4, 300, true, None), to(2)),
        (key(1, mac(1), mac(2)), labelled(4, 7, false, None), to(2)),
        (key(1, mac(9), mac(2)), labelled(4, 7, false, Some(DropReason::Spoofed)), Action::Drop(DropReason::Spoofed)),
        (key(2, mac(2), mac(2)), labelled(4, 300, false, Some(DropReason::Hairpin)), to(2)),
    ] {
        for _ in 0..2 {
            assert_eq!(b.packet(&packet), [label.clone(), vec![rest]].concat(), "{packet:?}");
        }
    }
    let flood = b.packet(&key(3, mac(3), MacAddr::BROADCAST));
    assert_eq!(flood, [labelled(4, 7, true, None), outputs(&[1, 2])].concat(), "once for a destination");
    // What is dropped counts as dropped all the same, and another control keeps such flows.
    b.hits = 7;
    b.poll(10_000);
    let denied: Vec<_> = b.policy.denied().map(|(port, why, denied)| (port.0, why.0, denied.packets)).collect();
    assert_eq!(denied, [(1, DropReason::Spoofed, 7)]);
}

#[test]
fn it_is_explained() {
    let b = bench(&[(&[1, 2], 4, Both), (&[1], 3, FromGuest)]);
    let explain =
        |key: &FlowKey| b.policy.explain(key, Headers::default(), b.now_ms, |id| format!("p{id}")).lines.join("\n");
    let text = explain(&key(1, mac(1), mac(2)));
    for line in [
        "mirror to-4: a copy goes to p4, as it came",
        "mirror to-3: a copy goes to p3",
        "mirror to-4: p4 has a copy already",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = explain(&key(2, mac(2), mac(1)));
    assert!(text.contains("mirror to-4: a copy goes to p4, as it came") && !text.contains("to-3"), "{text}");
    assert!(explain(&key(4, mac(9), mac(1))).contains("p4 is a mirror's destination: what it sends is dropped"));
    let text = explain(&key(1, MacAddr([3; 6]), mac(2)));
    assert!(text.contains("to-4: a copy goes to p4") && text.contains("group address: dropped"), "{text}");
    assert!(explain(&key(1, mac(1), MacAddr::BROADCAST)).contains("not to p4: it is a mirror's destination"), "{text}");
}
