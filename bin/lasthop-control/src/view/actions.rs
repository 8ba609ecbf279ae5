//! Actions in the words of Open vSwitch.

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Edit, Part, Set};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of the longest header with fields to set.
const LONGEST: usize = 40;

/// How a field's value is written.
#[derive(Clone, Copy)]
enum Form {
    Number,
    Hex,
    Mac,
    V4,
    V6,
}

/// A field of a header: its name, its first bit and how many it has, and its form.
type Field = (&'static str, usize, usize, Form);

fn fields(part: Part) -> &'static [Field] {
    use Form::{Hex, Mac, Number, V4, V6};
    match part {
        Part::Ethernet => &[("src", 48, 48, Mac), ("dst", 0, 48, Mac)],
        Part::Vlan => &[("vid", 4, 12, Number), ("pcp", 0, 3, Number), ("cfi", 3, 1, Number)],
        Part::Arp => &[
            ("sip", 112, 32, V4),
            ("tip", 192, 32, V4),
            ("op", 48, 16, Number),
            ("sha", 64, 48, Mac),
            ("tha", 144, 48, Mac),
        ],
        Part::Ipv4 => &[("src", 96, 32, V4), ("dst", 128, 32, V4), ("tos", 8, 8, Hex), ("ttl", 64, 8, Number)],
        Part::Ipv6 => &[
            ("src", 64, 128, V6),
            ("dst", 192, 128, V6),
            ("label", 12, 20, Hex),
            ("tclass", 4, 8, Hex),
            ("hlimit", 56, 8, Number),
        ],
        Part::Ports => &[("src", 0, 16, Number), ("dst", 16, 16, Number)],
        Part::Icmp => &[("type", 0, 8, Number), ("code", 8, 8, Number)],
        Part::Neighbour => &[("target", 64, 128, V6)],
        Part::SourceLink => &[("sll", 16, 48, Mac)],
        Part::TargetLink => &[("tll", 16, 48, Mac)],
    }
}

/// What a header is called; ports are those of the protocol that the flow is for.
fn header(part: Part, flow: &FlowSpec) -> &'static str {
    let protocol = flow.key.ip_proto & flow.mask.0.ip_proto;
    match part {
        Part::Ethernet => "eth",
        Part::Vlan => "vlan",
        Part::Arp => "arp",
        Part::Ipv4 => "ipv4",
        Part::Ipv6 => "ipv6",
        Part::Ports if protocol == 6 => "tcp",
        Part::Ports if protocol == 17 => "udp",
        Part::Ports => "ports",
        Part::Icmp if flow.key.eth_type & flow.mask.0.eth_type == 0x86dd => "icmpv6",
        Part::Icmp => "icmp",
        Part::Neighbour | Part::SourceLink | Part::TargetLink => "nd",
    }
}

fn written(value: u128, form: Form) -> String {
    match form {
        Form::Number => value.to_string(),
        Form::Hex => format!("{value:#x}"),
        Form::Mac => {
            let [.., a, b, c, d, e, f] = value.to_be_bytes();
            MacAddr([a, b, c, d, e, f]).to_string()
        }
        Form::V4 => Ipv4Addr::from_bits(value as u32).to_string(),
        Form::V6 => Ipv6Addr::from_bits(value).to_string(),
    }
}

/// So many bits of a header, from this one on.
fn bits(header: &[u8; LONGEST], first: usize, len: usize) -> u128 {
    (first..first + len).fold(0, |number, bit| number << 1 | u128::from(header[bit / 8] >> (7 - bit % 8) & 1))
}

/// Sets of one header that follow each other, as one.
fn set(sets: &[Set], flow: &FlowSpec) -> Option<String> {
    let part = sets.first()?.part;
    let (mut values, mut masks) = ([0u8; LONGEST], [0u8; LONGEST]);
    for set in sets {
        let at = 4 * usize::from(set.word);
        for (i, (value, mask)) in set.value.to_be_bytes().into_iter().zip(set.mask.to_be_bytes()).enumerate() {
            *values.get_mut(at + i)? = values[at + i] & !mask | value & mask;
            *masks.get_mut(at + i)? |= mask;
        }
    }
    let shown = fields(part).iter().filter_map(|&(name, first, len, form)| {
        let (value, mask) = (bits(&values, first, len), bits(&masks, first, len));
        let full = u128::MAX >> (128 - len);
        match mask {
            0 => None,
            mask if mask == full => Some(format!("{name}={}", written(value, form))),
            mask => {
                let form_of_mask = if let Form::Number = form { Form::Hex } else { form };
                Some(format!("{name}={}/{}", written(value, form), written(mask, form_of_mask)))
            }
        }
    });
    Some(format!("set({}({}))", header(part, flow), shown.collect::<Vec<_>>().join(",")))
}

/// What a flow does: each action as Open vSwitch writes it, what is set in one header together.
pub(crate) fn actions(flow: &FlowSpec, name: impl Fn(PortId) -> String) -> Vec<String> {
    list(&flow.actions, flow, &name)
}

fn list(mut actions: &[Action], flow: &FlowSpec, name: &impl Fn(PortId) -> String) -> Vec<String> {
    let mut shown = Vec::new();
    while let [action, rest @ ..] = actions {
        actions = rest;
        let text = match *action {
            Action::Output(port) => name(port),
            Action::Truncated(port, len) => {
                shown.push(format!("trunc({len})"));
                name(port)
            }
            Action::Drop(reason) => format!("drop({})", reason.name()),
            Action::Edit(Edit::PushVlan { tci, .. }) if tci & !0x0fff == 0 => format!("push_vlan({tci})"),
            Action::Edit(Edit::PushVlan { tci, .. }) => format!("push_vlan({},pcp={})", tci & 0x0fff, tci >> 13),
            Action::Edit(Edit::PopVlan) => "pop_vlan".to_owned(),
            Action::Edit(Edit::Set(first)) => {
                let mut sets = vec![first];
                while let [Action::Edit(Edit::Set(next)), rest @ ..] = actions
                    && next.part == first.part
                {
                    sets.push(*next);
                    actions = rest;
                }
                set(&sets, flow).unwrap_or_else(|| "unknown".to_owned())
            }
            Action::Edit(Edit::DecTtl) => "dec_ttl".to_owned(),
            Action::LimitFlood => "limit_flood".to_owned(),
            Action::Copy(port) => format!("copy({})", name(port)),
            Action::Meter(meter) => format!("meter({meter})"),
            Action::Sample(probability, len) => {
                let (drawn, rest) = actions.split_at(usize::from(len).min(actions.len()));
                actions = rest;
                let percent = 100.0 * f64::from(probability) / f64::from(u32::MAX);
                // A mirror's share may be far below what Open vSwitch's notation shows.
                let digits = if percent < 1.0 { 4 } else { 1 };
                format!("sample(sample={percent:.digits$}%,actions({}))", list(drawn, flow, name).join(","))
            }
            Action::ToControl(user) => format!("userspace(userdata({user}))"),
            _ => "unknown".to_owned(),
        };
        shown.push(text);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::{FlowKey, FlowMask};
    use lasthop_types::DropReason;

    fn shown(actions: Vec<Action>) -> Vec<String> {
        let key = FlowKey { eth_type: 0x0800, ip_proto: 17, ..FlowKey::default() };
        let mask = FlowMask(FlowKey { eth_type: 0xffff, ip_proto: 0xff, ..FlowKey::default() });
        super::actions(&FlowSpec { key, mask, actions, epoch: 0 }, |port| format!("vm{port}"))
    }

    /// A whole header's fields and masks, as Open vSwitch sends them.
    fn masked(part: Part, value: &[u8], mask: &[u8]) -> Vec<Action> {
        Set::masked(part, value, mask).map(|set| Action::Edit(Edit::Set(set))).collect()
    }

    #[test]
    fn fields_are_written_as_open_vswitch_writes_them() {
        let mut ip = [0; 20];
        ip[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let mut mask = [0; 20];
        mask[12..16].fill(0xff);
        assert_eq!(shown(masked(Part::Ipv4, &ip, &mask)), ["set(ipv4(src=10.0.0.1))"]);
        mask[16..19].fill(0xff);
        (ip[8], mask[8], ip[1], mask[1]) = (64, 0xff, 0xb8, 0xfc);
        assert_eq!(
            shown(masked(Part::Ipv4, &ip, &mask)),
            ["set(ipv4(src=10.0.0.1,dst=10.0.0.0/255.255.255.0,tos=0xb8/0xfc,ttl=64))"]
        );
    }
    #[test]
    fn each_header_has_its_fields() {
        let counting: Vec<u8> = (0..40).collect();
        let all = |part: Part, len: usize| shown(masked(part, &counting[..len], &[0xff; 40][..len]));
        assert_eq!(all(Part::Ethernet, 12), ["set(eth(src=06:07:08:09:0a:0b,dst=00:01:02:03:04:05))"]);
        assert_eq!(shown(masked(Part::Vlan, &[0xa0, 5], &[0xef, 0xff])), ["set(vlan(vid=5,pcp=5))"]);
        assert_eq!(shown(masked(Part::Vlan, &[0xa0, 5], &[0x60, 0])), ["set(vlan(pcp=1/0x3))"]);
        let arp = [&[0; 6][..], &[0xff; 22]].concat();
        assert_eq!(
            shown(masked(Part::Arp, &counting[..28], &arp)),
            ["set(arp(sip=14.15.16.17,tip=24.25.26.27,op=1543,sha=08:09:0a:0b:0c:0d,tha=12:13:14:15:16:17))"]
        );
        let v6 = [&[0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 0xff][..], &[0xff; 32]].concat();
        assert_eq!(
            shown(masked(Part::Ipv6, &counting, &v6)),
            ["set(ipv6(src=809:a0b:c0d:e0f:1011:1213:1415:1617,dst=1819:1a1b:1c1d:1e1f:2021:2223:2425:2627,\
              label=0x10203,tclass=0x0,hlimit=7))"]
        );
        assert_eq!(all(Part::Ports, 4), ["set(udp(src=1,dst=515))"]);
        assert_eq!(all(Part::Icmp, 2), ["set(icmp(type=0,code=1))"]);
        let target = [&[0; 8][..], &[0xff; 16]].concat();
        let target = masked(Part::Neighbour, &counting[..24], &target);
        assert_eq!(shown(target), ["set(nd(target=809:a0b:c0d:e0f:1011:1213:1415:1617))"]);
        let link = [0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(shown(masked(Part::SourceLink, &counting[..8], &link)), ["set(nd(sll=02:03:04:05:06:07))"]);
        assert_eq!(shown(masked(Part::TargetLink, &counting[..8], &link)), ["set(nd(tll=02:03:04:05:06:07))"]);
    }

    #[test]
    fn actions_come_in_their_order() {
        let to = |port| Action::Output(PortId(port));
        let ports = |value| Action::Edit(Edit::Set(Set { part: Part::Ports, word: 0, value, mask: 0xffff }));
        let actions = vec![
            Action::Meter(3),
            Action::Edit(Edit::DecTtl),
            ports(80),
            Action::Edit(Edit::Set(Set { part: Part::Ethernet, word: 3, value: 0, mask: 0 })),
            Action::Sample(u32::MAX / 2, 2),
            Action::ToControl(7),
            Action::Truncated(PortId(2), 100),
            Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 0xa005 }),
            Action::LimitFlood,
            to(3),
            Action::Edit(Edit::PopVlan),
            Action::Drop(DropReason::Acl),
            Action::Sample(4_293, 1),
            Action::Copy(PortId(3)),
            Action::Sample(u32::MAX, 9),
            to(4),
        ];
        assert_eq!(
            shown(actions),
            [
                "meter(3)",
                "dec_ttl",
                "set(udp(dst=80))",
                "set(eth())",
                "sample(sample=50.0%,actions(userspace(userdata(7)),trunc(100),vm2))",
                "push_vlan(5,pcp=5)",
                "limit_flood",
                "vm3",
                "pop_vlan",
                "drop(acl)",
                "sample(sample=0.0001%,actions(copy(vm3)))",
                "sample(sample=100.0%,actions(vm4))",
            ]
        );
    }
}
