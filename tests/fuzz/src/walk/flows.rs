//! The walk's flows, and what they make of a frame: said once more, in plain bytes.

use super::PORTS;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::testutil::edits::edited;
use lasthop_frame::{Edit, FlowKey, FlowMask, Part, Set};
use lasthop_types::PortId;

/// A flow of a port. `mask`: whether the destination and its port count, which destination, and which actions there are.
pub(super) fn spec(from: u32, mask: u8, to: u8) -> FlowSpec {
    let actions = outputs(to, mask >> 4);
    let key = FlowKey { in_port: from, eth_dst: [2, 0, 0, 0, 0, mask >> 2 & 3], l4_dst: 6, ..FlowKey::default() };
    let mask = FlowMask(FlowKey {
        in_port: u32::MAX,
        eth_dst: [if mask & 1 != 0 { 0xff } else { 0 }; 6],
        l4_dst: if mask & 2 != 0 { 0xffff } else { 0 },
        ..FlowKey::default()
    });
    FlowSpec { key, mask, actions, epoch: 0 }
}

/// Up to three outputs to different ports, one of them perhaps to a port that there is not, or the first of them a mirror's copy; or other
/// actions and outputs around them. `how`: which actions.
pub(super) fn outputs(bits: u8, how: u8) -> Vec<Action> {
    let mut ports: Vec<_> = (0..bits & 3).map(|i| PortId(u32::from(bits >> (2 + 2 * i) & 3) + 1)).collect();
    if let [first, second, third] = ports[..]
        && first == third
    {
        // A mirror's copy, of what waits for its receiver perhaps.
        let copy_or_output = if first.0 & 2 != 0 { Action::Copy(first) } else { Action::Output(first) };
        let before = (first != second).then_some(copy_or_output);
        return before.into_iter().chain(others(first, second, how)).chain([Action::Output(second)]).collect();
    }
    let copied = bits >> 6 == 2;
    ports.sort();
    ports.dedup();
    let mut actions: Vec<_> = ports.into_iter().map(Action::Output).collect();
    // The first gets a copy instead; alone that is a flow that drops.
    if let Some(Action::Output(port)) = actions.first().copied().filter(|_| copied) {
        actions[0] = Action::Copy(port);
    }
    actions
}

/// Actions that are no outputs, or outputs of less, to the port that gets nothing else.
fn others(first: PortId, second: PortId, how: u8) -> Vec<Action> {
    let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 0x0123 });
    let set = |part, word, value, mask| Action::Edit(Edit::Set(Set { part, word, value, mask }));
    let all = u32::MAX;
    let third = (1..=PORTS as u32).rev().map(PortId).find(|port| ![first, second].contains(port)).unwrap_or(first);
    match how & 15 {
        1 => vec![Action::Edit(Edit::DecTtl)],
        2 => vec![set(Part::Ipv4, 3, 0xc0a8_0101, all), set(Part::Ports, 0, 0x0000_1234, 0xffff)],
        3 => vec![set(Part::Ipv4, 4, 0x0a09_0807, 0x00ff_ffff), set(Part::Ipv4, 0, 0x00b8_0000, 0x00fc_0000)],
        4 => {
            vec![set(Part::Ipv6, 2, 0x2001_0db8, all), set(Part::Ipv6, 9, 0x1234_5678, all), Action::Edit(Edit::DecTtl)]
        }
        5 => vec![set(Part::Ethernet, 1, 0x0000_0207, 0xffff), set(Part::Ethernet, 2, 0x0809_0a0b, all)],
        6 => vec![set(Part::Vlan, 0, 0x0abc_0000, 0x0fff_0000)],
        7 => {
            vec![set(Part::Arp, 1, 2, 0xffff), set(Part::Arp, 2, 0x0207_0707, all), set(Part::Arp, 6, 0x0a00_0009, all)]
        }
        8 => vec![set(Part::Neighbour, 3, 0x0102_0304, all), set(Part::SourceLink, 1, 0x0506_0708, all)],
        9 => vec![set(Part::Icmp, 0, 0x0300_0000, 0xffff_0000)],
        10 => vec![set(Part::Ports, 0, 0x1234_5678, all), set(Part::Ipv6, 0, 0x0123_4567, 0x0fff_ffff)],
        11 => vec![Action::Truncated(third, 60), Action::ToControl(5)],
        12 => vec![Action::ToControl(6), Action::Meter(1), Action::LimitFlood],
        13 => vec![Action::Sample(u32::MAX / 2, 2), Action::Truncated(third, 60), Action::ToControl(7)],
        14 => vec![Action::Edit(Edit::PopVlan)],
        15 => vec![push, push],
        _ if first.0 & 1 == 0 => vec![push],
        _ => vec![Action::Edit(Edit::PopVlan)],
    }
}

/// As what a frame comes to a port, if it comes.
pub(super) fn comes_as(sent: &[u8], actions: &[Action], n: usize) -> impl Iterator<Item = Vec<u8>> {
    let to = PortId(n as u32 + 1);
    let mut frame = Some(sent.to_vec());
    actions.iter().filter_map(move |action| {
        let now = frame.as_ref()?;
        match action {
            Action::Output(port) | Action::Copy(port) if *port == to => return Some(now.clone()),
            Action::Truncated(port, len) if *port == to => return Some(now[..now.len().min((*len).into())].to_vec()),
            Action::Edit(edit) => frame = edited(now, edit, None).ok(),
            _ => {}
        }
        None
    })
}
