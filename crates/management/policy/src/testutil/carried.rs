//! What actions come to, as the tests' switch carries them out.

use lasthop_flow::Action;
use lasthop_frame::{Edit, FlowKey};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// The tags of a frame, outermost first.
pub(super) fn tags(key: &FlowKey) -> Vec<u16> {
    let without_mark = |tci: u16| tci & !FlowKey::VLAN_PRESENT;
    let both = [key.vlan_tci, key.inner_vlan_tci];
    both.into_iter().filter(|tci| tci & FlowKey::VLAN_PRESENT != 0).map(without_mark).collect()
}

/// Behind its outer tag there is another one, whole or in part.
pub(super) fn hides(key: &FlowKey) -> bool {
    key.inner_vlan_tci & 0xfff != 0 || [0x8100, 0x88a8].contains(&key.eth_type)
}

/// Where a packet goes, where copies go, and with what tags. Whether under one reason or another it is dropped does not count here: a group source that
/// sends to a link-local address meets two flows, each with its own.
pub(super) fn carried_out(actions: &[Action], key: &FlowKey) -> (Tagged, Tagged) {
    let (mut tags, mut sent, mut copied) = (tags(key), Tagged::new(), Tagged::new());
    for action in actions {
        match action {
            Action::Output(to) => assert!(sent.insert(*to, tags.clone()).is_none(), "{to} twice"),
            Action::Copy(to) => assert!(copied.insert(*to, tags.clone()).is_none(), "{to} twice"),
            Action::Edit(Edit::PushVlan { tci, .. }) => tags.insert(0, *tci),
            Action::Edit(Edit::PopVlan) => drop(tags.remove(0)),
            _ => {}
        }
    }
    (sent, copied)
}

/// Ports that get a frame, each with these tags.
pub(super) type Tagged = BTreeMap<PortId, Vec<u16>>;

/// A packet or a copy goes there.
pub(super) fn names(actions: &[Action], id: PortId) -> bool {
    actions.iter().any(|a| matches!(a, Action::Output(to) | Action::Copy(to) if *to == id))
}
