use super::*;
use lasthop_types::DropReason;
use proptest::prelude::*;

/// As the kernel sees the frame of which this is the key.
fn matches_frame(rule: &Match, key: &FlowKey) -> bool {
    fn bits<const N: usize>([value, mask]: [[u8; N]; 2], field: [u8; N]) -> bool {
        (0..N).all(|i| value[i] & mask[i] == field[i] & mask[i])
    }
    let half = |[value, mask]: [u16; 2], field: u16| value & mask == field & mask;
    let byte = |[value, mask]: [u8; 2], field: u8| value & mask == field & mask;
    let tag = match rule.tag {
        None => key.vlan_tpid == 0,
        Some(tag) => {
            let priority = tag.priority.is_none_or(|wanted| u16::from(wanted) == key.vlan_tci >> 13);
            key.vlan_tpid == tag.tpid && key.vlan_tci & VLAN_ID == tag.id && priority && key.inner_vlan_tpid == 0
        }
    };
    tag && rule.ethertype == key.eth_type
        && bits(rule.eth_dst, key.eth_dst)
        && bits(rule.eth_src, key.eth_src)
        && bits(rule.ip_src, key.ip_src)
        && bits(rule.ip_dst, key.ip_dst)
        && rule.ip_proto.is_none_or(|proto| proto == key.ip_proto)
        && byte(rule.ip_tos, key.ip_tos)
        && byte(rule.ip_ttl, key.ip_ttl)
        && !(rule.whole && key.ip_frag != 0)
        && half(rule.l4_src, key.l4_src)
        && half(rule.l4_dst, key.l4_dst)
        && half(rule.tcp_flags, key.tcp_flags)
}

type Link = (u8, u8, u16, u16, u16, bool);
type Network = (u16, u8, u8);
type Transport = (u8, u8, u16, u16, u16, u8);
type Parts = (Link, Network, Transport);

/// Of few values, so that some are met.
fn parts() -> impl Strategy<Value = Parts> {
    let link = (0..3u8, 0..3u8, prop_oneof![Just(0), Just(CTAG), Just(STAG)], 0..3u16, 0..2u16, any::<bool>());
    let network = (prop_oneof![3 => Just(IPV4), 3 => Just(IPV6), 1 => Just(0x0806), 1 => Just(0x88cc)], 0..3u8, 0..3u8);
    let transport = (prop_oneof![Just(6), Just(17), Just(1), Just(132)], 0..4u8, 0..3u16, 0..3u16, 0..4u16, 0..2u8);
    (link, network, transport)
}

/// The key of a frame that comes by an interface.
fn key(((dst, src, tpid, id, priority, inner), (eth_type, a, b), transport): Parts) -> FlowKey {
    let (proto, frag, from, to, flags, tos) = transport;
    let mut key = FlowKey { in_port: 1, eth_dst: [dst; 6], eth_src: [src; 6], eth_type, ..FlowKey::default() };
    if tpid != 0 {
        (key.vlan_tpid, key.vlan_tci) = (tpid, FlowKey::VLAN_PRESENT | id | priority << 13);
        if inner {
            (key.inner_vlan_tpid, key.inner_vlan_tci) = (CTAG, FlowKey::VLAN_PRESENT | 7);
        }
    }
    if matches!(eth_type, IPV4 | IPV6) {
        let address = |byte: u8| std::array::from_fn(|i| if i < 12 && eth_type == IPV4 { 0 } else { byte });
        (key.ip_src, key.ip_dst, key.ip_proto, key.ip_tos, key.ip_ttl) = (address(a), address(b), proto, tos, 64);
        key.ip_frag = if frag == 0 { FlowKey::FRAG_ANY } else { 0 };
        if proto != 1 {
            (key.l4_src, key.l4_dst) = (from, to);
            key.tcp_flags = if proto == 6 { flags } else { 0 };
        }
    }
    key
}

fn frames() -> impl Strategy<Value = FlowKey> {
    parts().prop_map(key)
}

/// A frame, and another that is like it but for some of what it has.
fn alike() -> impl Strategy<Value = [FlowKey; 2]> {
    (parts(), parts(), any::<[bool; 3]>(), any::<bool>()).prop_map(|(a, b, other, fragment)| {
        let mut mixed =
            (if other[0] { b.0 } else { a.0 }, if other[1] { b.1 } else { a.1 }, if other[2] { b.2 } else { a.2 });
        if fragment {
            mixed.2.1 = 0;
        }
        [key(a), key(mixed)]
    })
}

/// Which fields a flow looks at, all bits of each or some.
fn masks() -> impl Strategy<Value = FlowMask> {
    let few = prop_oneof![3 => Just(0u32), 1 => any::<u32>()];
    (any::<u32>(), any::<u32>(), few, prop_oneof![6 => Just(u64::MAX), 1 => any::<u64>()]).prop_map(
        |(some, fewer, few, bits)| {
            let on = |n: u32| (if n < 16 { some & fewer } else { some & few }) >> n & 1 == 1;
            let half = |n: u32| if on(n) { bits as u16 } else { 0 };
            let byte = |n: u32| if on(n) { bits as u8 } else { 0 };
            let six = |n: u32| [byte(n); 6];
            FlowMask(FlowKey {
                in_port: u32::MAX,
                eth_dst: six(0),
                eth_src: six(1),
                eth_type: half(2),
                vlan_tci: half(3),
                vlan_tpid: half(4),
                inner_vlan_tpid: half(5),
                anomalies: half(6),
                ip_src: [byte(7); 16],
                ip_dst: [byte(8); 16],
                ip_proto: byte(9),
                ip_tos: byte(10),
                ip_ttl: byte(11),
                ip_frag: byte(12),
                l4_src: half(13),
                l4_dst: half(14),
                tcp_flags: half(15),
                ipv6_label: half(16).into(),
                arp_sha: six(17),
                nd_target: [byte(18); 16],
                ct_state: half(19),
                ..FlowKey::default()
            })
        },
    )
}

fn flow(key: &FlowKey, mask: FlowMask, actions: &[Action]) -> FlowSpec {
    FlowSpec { key: key.masked(&mask), mask, actions: actions.to_vec(), epoch: 0 }
}

const OUT: Action = Action::Output(PortId(2));

fn of(flow: &FlowSpec) -> Result<Vec<Rule>, Why> {
    rules(flow, |port| if port.0 < 9 { Ok(100 + port.0) } else { Err(Why::Port) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// What a rule takes the flow would have taken, too.
    #[test]
    fn no_rule_takes_more_than_its_flow([of_flow, frame] in alike(), mask in masks()) {
        let flow = flow(&of_flow, mask, &[OUT]);
        for rule in of(&flow).unwrap_or_default() {
            if matches_frame(&rule.matches, &frame) {
                prop_assert!(frame.is_of(&flow.key, &flow.mask), "{:?} of {:?} takes {:?}", rule, flow, frame);
            }
        }
    }

    /// And a learning switch's flows, with and without a VLAN, are taken for all IP packets that have but the tag that they are about.
    #[test]
    fn a_learning_switch_s_flow_is_taken(frame in frames(), tags in any::<bool>()) {
        let mut mask = FlowMask(FlowKey { in_port: u32::MAX, eth_dst: [255; 6], eth_src: [255; 6], vlan_tci: 0x0fff, ..FlowKey::default() });
        if tags {
            (mask.0.vlan_tci, mask.0.vlan_tpid) = (0x1fff, 0xffff);
        }
        let flow = flow(&frame, mask, &[OUT]);
        let plain = frame.vlan_tpid == 0 || frame.inner_vlan_tpid == 0 && frame.vlan_tci & VLAN_ID != 0 && (tags || frame.vlan_tpid == CTAG);
        if plain && matches!(frame.eth_type, IPV4 | IPV6) {
            let taken = of(&flow).unwrap().iter().any(|rule| matches_frame(&rule.matches, &frame));
            prop_assert!(taken, "{:?} is not taken by {:?}", frame, of(&flow));
        }
    }
}

#[test]
fn actions_become_acts_in_their_order() {
    let key = FlowKey { in_port: 1, eth_type: IPV4, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_type: u16::MAX, ..FlowKey::default() });
    let acts = |actions: &[Action]| of(&flow(&key, mask, actions)).map(|rules| rules[0].acts.clone());
    let push = Action::Edit(Edit::PushVlan { tpid: CTAG, tci: 0x600a });
    let pop = Action::Edit(Edit::PopVlan);
    let pushed = Act::PushVlan { tpid: CTAG, id: 10, priority: 3 };
    assert_eq!(acts(&[OUT]), Ok(vec![Act::Redirect(102)]));
    let several = [OUT, push, Action::Output(PortId(3)), pop, Action::Output(PortId(4))];
    let wanted = vec![Act::Mirror(102), pushed, Act::Mirror(103), Act::PopVlan, Act::Redirect(104)];
    assert_eq!(acts(&several), Ok(wanted));
    assert_eq!(acts(&[OUT, pop]), Ok(vec![Act::Redirect(102)]), "what nobody sees is left out");
    for (actions, why) in [
        (&[][..], Why::Refuses),
        (&[Action::Drop(DropReason::Policy)], Why::Refuses),
        (&[Action::LimitFlood, OUT], Why::Action),
        (&[Action::Copy(PortId(3)), OUT], Why::Action),
        (&[Action::Edit(Edit::DecTtl), OUT], Why::Action),
        (&[Action::Output(PortId(9))], Why::Port),
    ] {
        assert_eq!(acts(actions), Err(why), "{actions:?}");
    }
}

/// Of more than 32 actions the kernel carries out the first, and says nothing.
#[test]
fn what_has_more_actions_than_the_kernel_carries_out_stays() {
    let key = FlowKey { in_port: 1, eth_type: IPV4, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, eth_type: u16::MAX, ..FlowKey::default() });
    let outputs = |n| flow(&key, mask, &vec![OUT; n]);
    assert_eq!(crate::flower::capabilities().can(&outputs(16)), Ok(()));
    for n in [17, 33, 40] {
        assert_eq!(crate::flower::capabilities().can(&outputs(n)), Err(Why::Action), "{n}");
    }
}
