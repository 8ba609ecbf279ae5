//! The walk's flows, and what they make of a frame: said once more, in plain bytes.

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Edit, FlowKey, FlowMask};
use lasthop_types::PortId;

/// A flow of a port. `mask`: whether the destination and its port count, and which destination.
pub(super) fn spec(from: u32, mask: u8, to: u8) -> FlowSpec {
    let key = FlowKey { in_port: from, eth_dst: [2, 0, 0, 0, 0, mask >> 2 & 3], l4_dst: 6, ..FlowKey::default() };
    let mask = FlowMask(FlowKey {
        in_port: u32::MAX,
        eth_dst: [if mask & 1 != 0 { 0xff } else { 0 }; 6],
        l4_dst: if mask & 2 != 0 { 0xffff } else { 0 },
        ..FlowKey::default()
    });
    FlowSpec { key, mask, actions: outputs(to), epoch: 0 }
}

/// Up to three outputs to different ports, one of them perhaps to a port that there is not, or the first of them a mirror's copy; or an
/// edit and outputs around it.
pub(super) fn outputs(bits: u8) -> Vec<Action> {
    let mut ports: Vec<_> = (0..bits & 3).map(|i| PortId(u32::from(bits >> (2 + 2 * i) & 3) + 1)).collect();
    if let [first, second, third] = ports[..]
        && first == third
    {
        let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 0x0123 });
        let edit = if first.0 & 1 == 0 { push } else { Action::Edit(Edit::PopVlan) };
        // A mirror's copy, of what waits for its receiver perhaps.
        let copy_or_output = if first.0 & 2 != 0 { Action::Copy(first) } else { Action::Output(first) };
        let before = (first != second).then_some(copy_or_output);
        return before.into_iter().chain([edit, Action::Output(second)]).collect();
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

/// As what a frame comes to a port.
pub(super) fn comes_as(sent: &[u8], actions: &[Action], n: usize) -> impl Iterator<Item = Vec<u8>> {
    let to = PortId(n as u32 + 1);
    let mut frame = sent.to_vec();
    actions.iter().filter_map(move |action| {
        match action {
            Action::Output(port) | Action::Copy(port) if *port == to => return Some(frame.clone()),
            Action::Edit(Edit::PushVlan { tpid, tci }) => {
                frame.splice(12..12, [tpid.to_be_bytes(), tci.to_be_bytes()].concat());
            }
            Action::Edit(Edit::PopVlan) if frame.len() >= 18 && matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) => {
                frame.drain(12..16);
            }
            _ => {}
        }
        None
    })
}
