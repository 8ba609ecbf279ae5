//! What is written is read back by a reader of its own, which knows only what linux/pkt_cls.h says, and is held against the frame's fields.

use super::*;
use crate::message::{HEADER, attribute, attributes, messages};
use proptest::prelude::*;

/// A frame's fields as the kernel's dissector would have them.
#[derive(Clone, Debug)]
struct Frame {
    eth_dst: [u8; 6],
    eth_src: [u8; 6],
    tag: Option<(u16, u16, u8)>,
    ethertype: u16,
    ip_src: [u8; 16],
    ip_dst: [u8; 16],
    proto: u8,
    tos: u8,
    ttl: u8,
    fragment: bool,
    ports: [u16; 2],
    flags: u16,
}

/// Whether the options of a rule, as the kernel gets them, match.
fn kernel_matches(place: Place, options: &[u8], frame: &Frame) -> bool {
    let get = |kind| attribute(options, kind);
    let field = |kind: u16, mask: u16, value: &[u8]| match (get(kind), get(mask)) {
        (Some(wanted), Some(mask)) => {
            assert_eq!((wanted.len(), mask.len()), (value.len(), value.len()));
            wanted.iter().zip(mask).zip(value).all(|((wanted, mask), value)| wanted & mask == value & mask)
        }
        (None, None) => true,
        (Some(wanted), None) => wanted == value,
        (None, Some(_)) => panic!("a mask without a value"),
    };
    let outer = frame.tag.map_or(frame.ethertype, |(tpid, ..)| tpid);
    let same = |kind, value: &[u8]| get(kind).is_none_or(|wanted| wanted == value);
    let tagged = frame.tag.is_none_or(|(_, id, priority)| {
        same(23, &id.to_ne_bytes()) && same(24, &[priority]) && same(25, &frame.ethertype.to_be_bytes())
    });
    let vlan_wanted = get(23).is_some() || get(25).is_some();
    let (v4, v6) = (frame.ethertype == 0x0800, frame.ethertype == 0x86dd);
    let addresses = (!v4 || field(10, 11, &frame.ip_src[12..]) && field(12, 13, &frame.ip_dst[12..]))
        && (!v6 || field(14, 15, &frame.ip_src) && field(16, 17, &frame.ip_dst))
        && (v4 || get(10).is_none() && get(12).is_none())
        && (v6 || get(14).is_none() && get(16).is_none());
    let kinds: [[u16; 2]; 2] = match frame.proto {
        6 => [[18, 35], [19, 36]],
        17 => [[20, 37], [21, 38]],
        132 => [[41, 39], [42, 40]],
        _ => [[0, 0]; 2],
    };
    let asks_for_ports = [18, 19, 20, 21, 41, 42].into_iter().any(|kind| get(kind).is_some());
    let ports = !asks_for_ports
        || kinds.iter().zip(frame.ports).all(|([kind, mask], port)| field(*kind, *mask, &port.to_be_bytes()))
            && kinds.iter().flatten().any(|kind| get(*kind).is_some());
    place.protocol == outer
        && same(8, &outer.to_be_bytes())
        && (tagged && frame.tag.is_some() == vlan_wanted)
        && field(4, 5, &frame.eth_dst)
        && field(6, 7, &frame.eth_src)
        && addresses
        && same(9, &[frame.proto])
        && field(73, 74, &[frame.tos])
        && field(75, 76, &[frame.ttl])
        && field(47, 48, &u32::from(frame.fragment).to_be_bytes())
        && ports
        && field(71, 72, &frame.flags.to_be_bytes())
}

fn rule_matches(matches: &Match, frame: &Frame) -> bool {
    fn bits<const N: usize>([value, mask]: [[u8; N]; 2], field: [u8; N]) -> bool {
        (0..N).all(|i| value[i] & mask[i] == field[i] & mask[i])
    }
    let half = |[value, mask]: [u16; 2], field: u16| value & mask == field & mask;
    let byte = |[value, mask]: [u8; 2], field: u8| value & mask == field & mask;
    let tag = match (matches.tag, frame.tag) {
        (None, None) => true,
        (Some(tag), Some((tpid, id, priority))) => {
            (tag.tpid, tag.id) == (tpid, id) && tag.priority.is_none_or(|wanted| wanted == priority)
        }
        _ => false,
    };
    tag && matches.ethertype == frame.ethertype
        && bits(matches.eth_dst, frame.eth_dst)
        && bits(matches.eth_src, frame.eth_src)
        && bits(matches.ip_src, frame.ip_src)
        && bits(matches.ip_dst, frame.ip_dst)
        && matches.ip_proto.is_none_or(|proto| proto == frame.proto)
        && byte(matches.ip_tos, frame.tos)
        && byte(matches.ip_ttl, frame.ttl)
        && !(matches.whole && frame.fragment)
        && half(matches.l4_src, frame.ports[0])
        && half(matches.l4_dst, frame.ports[1])
        && half(matches.tcp_flags, frame.flags)
}

/// Few values, so that some are met.
fn small<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::array::uniform::<_, N>(prop_oneof![4 => Just(0u8), 1 => 0..3u8])
}

fn v4(bytes: [u8; 16], is_v4: bool) -> [u8; 16] {
    if is_v4 { std::array::from_fn(|i| if i < 12 { 0 } else { bytes[i] }) } else { bytes }
}

fn frames() -> impl Strategy<Value = Frame> {
    let link =
        (small::<6>(), small::<6>(), proptest::option::of((prop_oneof![Just(0x8100), Just(0x88a8)], 0..3u16, 0..2u8)));
    let network = (any::<bool>(), small::<16>(), small::<16>(), prop_oneof![Just(6), Just(17), Just(132)]);
    let rest = (0..3u8, 0..3u8, any::<bool>(), 0..3u16, 0..3u16, 0..4u16);
    (link, network, rest).prop_map(
        |((eth_dst, eth_src, tag), (is_v4, src, dst, proto), (tos, ttl, fragment, from, to, flags))| Frame {
            eth_dst,
            eth_src,
            tag,
            ethertype: if is_v4 { 0x0800 } else { 0x86dd },
            ip_src: v4(src, is_v4),
            ip_dst: v4(dst, is_v4),
            proto,
            tos,
            ttl,
            fragment,
            ports: [from, to],
            flags: if proto == 6 { flags } else { 0 },
        },
    )
}

/// A rule for some frame, in which few bits matter.
fn matches() -> impl Strategy<Value = Match> {
    let masks = (small::<6>(), small::<6>(), small::<16>(), small::<16>());
    (frames(), masks, any::<[bool; 6]>(), 0..4u16).prop_map(|(frame, (dst, src, ip_src, ip_dst), on, bits)| {
        let is_v4 = frame.ethertype == 0x0800;
        let mask = |on: bool| if on { bits } else { 0 };
        Match {
            ethertype: frame.ethertype,
            tag: frame.tag.map(|(tpid, id, priority)| Tag { tpid, id, priority: on[0].then_some(priority) }),
            eth_dst: [frame.eth_dst, dst],
            eth_src: [frame.eth_src, src],
            ip_src: [frame.ip_src, v4(ip_src, is_v4)],
            ip_dst: [frame.ip_dst, v4(ip_dst, is_v4)],
            ip_proto: (on[1] || on[2]).then_some(frame.proto),
            ip_tos: [frame.tos, mask(on[3]) as u8],
            ip_ttl: [frame.ttl, mask(on[4]) as u8],
            whole: on[5],
            l4_src: [frame.ports[0], mask(on[2])],
            l4_dst: [frame.ports[1], mask(on[1])],
            tcp_flags: [frame.flags, if frame.proto == 6 { mask(on[2]) } else { 0 }],
        }
    })
}

fn written(rule: &Rule, place: Place) -> Vec<u8> {
    let mut request = Request::new(44, 5).raw(&place.tcmsg());
    rule.write(&mut request, Policy::SkipHw);
    request.finish(7)
}

proptest! {
    /// To the kernel a rule says neither more nor less than it is.
    #[test]
    fn the_kernel_gets_what_the_rule_says(matches in matches(), frame in frames(), device in any::<u32>()) {
        let rule = Rule { matches, acts: vec![Act::Redirect(9)] };
        let protocol = rule.protocol();
        let place = Place { device, priority: priority(protocol).unwrap(), protocol, handle: 3 };
        let bytes = written(&rule, place);
        let all: Vec<_> = messages(&bytes).collect();
        prop_assert_eq!(all.len(), 1);
        prop_assert_eq!((all[0].kind, all[0].number, all[0].body.len()), (44, 7, bytes.len() - HEADER));
        let options = attribute(&all[0].body[20..], TCA_OPTIONS).unwrap();
        prop_assert_eq!(kernel_matches(place, options, &frame), rule_matches(&rule.matches, &frame));
        prop_assert_eq!(attribute(options, 22).unwrap(), 1u32.to_ne_bytes());
    }

    /// And no bytes that anybody sends make the reader go astray.
    #[test]
    fn nonsense_is_read_in_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for message in messages(&bytes) {
            let _ = crate::said::read(message.body);
        }
        attributes(&bytes).for_each(drop);
    }
}

/// A rule that the kernel tells of, as Linux 6.1 did (`tc -s filter show`): what it has carried, and where.
#[test]
fn what_a_rule_has_carried_is_read() {
    let place = Place { device: 5, priority: FLOWS, protocol: IPV4, handle: 3 };
    let mut message = Request::new(44, 0).raw(&place.tcmsg()).with(TCA_KIND, FLOWER);
    message.nest(TCA_OPTIONS, |options| {
        options.add(22, &5u32.to_ne_bytes());
        options.nest(3, |acts| {
            for (number, packets) in [(1, 7u32), (2, 99)] {
                acts.nest(number, |act| {
                    act.add(1, b"mirred\0");
                    act.nest(4, |counted| {
                        counted.add(1, &[&1000u64.to_ne_bytes()[..], &packets.to_ne_bytes()[..], &[0; 4]].concat());
                    });
                    act.nest(2, |options| {
                        options.add(1, &[50u64, 3, 0, 40].map(u64::to_ne_bytes).concat());
                    });
                });
            }
        });
    });
    let bytes = message.finish(1);
    let heard = messages(&bytes).next().unwrap();
    let said = crate::said::read(heard.body).unwrap();
    assert_eq!(said, crate::Statistics { place, packets: 7, bytes: 1000, idle_ms: 30, in_hardware: true });
    assert_eq!(crate::said::read(&heard.body[..30]), None);
}

#[test]
fn policies_have_open_vswitch_s_names() {
    for (name, policy) in Policy::ALL {
        assert_eq!((policy.name(), Policy::from_name(name)), (name, Some(policy)));
    }
    assert_eq!(Policy::from_name("skip"), None);
}
