//! How a port takes part in VLANs: the VLAN that a frame belongs to where it comes in, and the tag with which it goes out.

use crate::Vlans;
use crate::flows::VID;
use crate::learning::{CopyTo, copy};
use lasthop_flow::Action;
use lasthop_frame::{Edit, FlowKey, FlowMask, ethertype};
use lasthop_types::PortId;

/// Priority bits of a TCI.
const PCP: u16 = 0xe000;

/// Which VLANs a port is a member of, and what frames without a tag are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// `None`: all VLANs, and VLAN 0, which is no VLAN.
    vlans: Option<Vlans>,
    /// What frames without a tag belong to (IEEE 802.1Q: the port's PVID), and which VLAN goes out without one.
    untagged: u16,
    /// Frames with a tag do not enter.
    access: bool,
}

/// What becomes of a frame's outer tag where it goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tag {
    /// The frame goes out as it came in.
    Kept,
    /// The tag is taken off.
    Popped,
    /// This one is put on, in place of a priority tag if the frame has one.
    Pushed { tci: u16, replaces: bool },
}

impl Membership {
    /// Of all VLANs, and every frame passes as it is: the default.
    pub(crate) const ANY: Self = Self { vlans: None, untagged: 0, access: false };

    /// An uplink that carries these; `untagged` among them is for frames without a tag, which belong to no VLAN.
    pub(crate) fn carrying(vlans: Vlans) -> Self {
        Self { vlans: Some(vlans), untagged: 0, access: false }
    }

    /// Of one VLAN, whose frames have no tag there.
    pub(crate) fn access(vlan: u16) -> Self {
        Self { vlans: Some(Vlans::default().with(Some(vlan))), untagged: vlan, access: true }
    }

    /// Of several (`None`: all), whose frames have a tag there, and of `native`, whose frames have none.
    pub(crate) fn trunk(vlans: Option<Vlans>, native: Option<u16>) -> Self {
        // Frames of no VLAN have no tag to go out with where those without one are of a VLAN.
        let vlans = vlans.or(native.map(|_| Vlans::all())).map(|vlans| vlans.with(native));
        Self { vlans, untagged: native.unwrap_or(0), access: false }
    }

    pub(crate) fn vlans(&self) -> Option<&Vlans> {
        self.vlans.as_ref()
    }

    /// The VLAN that goes out without a tag.
    pub(crate) fn untagged(&self) -> u16 {
        self.untagged
    }

    pub(crate) fn is_member(&self, vlan: u16) -> bool {
        self.vlans.as_ref().is_none_or(|vlans| vlans.contains(vlan))
    }

    /// Whether this port looks at frames more closely than one that takes everything as it is.
    fn looks(&self) -> bool {
        *self != Self::default()
    }

    /// The VLAN that a frame belongs to which comes in here; `None` if it may not. Adds to `mask` what it looked at.
    pub(crate) fn enters(&self, key: &FlowKey, mask: &mut FlowMask) -> Option<u16> {
        let vid = key.vlan_tci & VID;
        if !self.looks() {
            return Some(vid);
        }
        mask.0.vlan_tci |= VID;
        if vid != 0 {
            return (!self.access && self.is_member(vid)).then_some(vid);
        }
        (self.is_member(self.untagged) && !hides_a_tag(key, mask)).then_some(self.untagged)
    }

    /// The tag with which a frame of this VLAN goes out here; `None` if it does not. Adds to `mask`, which has the VLAN id, what it
    /// looked at.
    pub(crate) fn leaves(&self, vlan: u16, key: &FlowKey, mask: &mut FlowMask) -> Option<Tag> {
        if !self.is_member(vlan) {
            return None;
        }
        if vlan == self.untagged {
            if self.looks() && hides_a_tag(key, mask) {
                return None;
            }
            // VLAN 0 is no VLAN: its frames stay as they are, and have a priority tag or none.
            let tagged = vlan != 0 && has_tag(key, mask);
            return Some(if tagged { Tag::Popped } else { Tag::Kept });
        }
        if key.vlan_tci & VID != 0 {
            return Some(Tag::Kept);
        }
        let replaces = has_tag(key, mask);
        let priority = if replaces { mask_priority(key, mask) } else { 0 };
        Some(Tag::Pushed { tci: priority | vlan, replaces })
    }
}

/// A frame without a VLAN must not be one of another VLAN to somebody else: stations (and switches that take a priority tag off) read
/// the tag behind it, and a tag of which only a part is there becomes whole when the frame is padded. The same holds where the outer
/// tag is taken off.
fn hides_a_tag(key: &FlowKey, mask: &mut FlowMask) -> bool {
    mask.0.inner_vlan_tci |= VID;
    mask.0.eth_type = u16::MAX;
    key.inner_vlan_tci & VID != 0 || [ethertype::CTAG, ethertype::STAG].contains(&key.eth_type)
}

fn has_tag(key: &FlowKey, mask: &mut FlowMask) -> bool {
    mask.0.vlan_tci |= FlowKey::VLAN_PRESENT;
    key.vlan_tci & FlowKey::VLAN_PRESENT != 0
}

fn mask_priority(key: &FlowKey, mask: &mut FlowMask) -> u16 {
    mask.0.vlan_tci |= PCP;
    key.vlan_tci & PCP
}

/// The actions that send one frame to several ports, to each with its tag, and the copies that mirrors make of it there. First those
/// that get it as it came in.
pub(crate) fn actions<'a>(mut outputs: Vec<(PortId, Tag)>, copies: impl Fn(PortId) -> &'a [CopyTo]) -> Vec<Action> {
    // The order within each kind stays.
    outputs.sort_by_key(|(_, tag)| *tag);
    let (mut actions, mut popped, mut pushed) = (Vec::with_capacity(outputs.len()), false, None);
    for (port, tag) in outputs {
        let pops = matches!(tag, Tag::Popped | Tag::Pushed { replaces: true, .. });
        if pops && !std::mem::replace(&mut popped, true) {
            actions.push(Action::Edit(Edit::PopVlan));
        }
        if let Tag::Pushed { tci, .. } = tag
            && pushed.replace(tci).is_none()
        {
            actions.push(Action::Edit(Edit::PushVlan { tpid: ethertype::CTAG, tci }));
        }
        copies(port).iter().for_each(|(to, _)| copy(&mut actions, *to));
        actions.push(Action::Output(port));
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: u16 = FlowKey::VLAN_PRESENT;

    fn frame(tci: u16) -> FlowKey {
        FlowKey { vlan_tci: tci, eth_type: 0x0800, ..FlowKey::default() }
    }

    fn trunk(list: &str, native: u16) -> Membership {
        Membership::trunk(Some(list.parse().unwrap()), Some(native))
    }

    /// What a frame with this tag is inside, and how it leaves at `to`.
    fn through(from: &Membership, tci: u16, to: &Membership) -> Option<(u16, Option<Tag>)> {
        let mut mask = FlowMask::default();
        let vlan = from.enters(&frame(tci), &mut mask)?;
        Some((vlan, to.leaves(vlan, &frame(tci), &mut mask)))
    }

    #[test]
    fn access_and_trunk_and_native() {
        let (ten, twenty) = (Membership::access(10), Membership::access(20));
        let (all, some) = (Membership::default(), trunk("10:30", 20));
        let push = |tci| Some(Tag::Pushed { tci, replaces: false });
        assert_eq!(through(&ten, 0, &ten), Some((10, Some(Tag::Kept))));
        assert_eq!(through(&ten, 0, &twenty), Some((10, None)));
        assert_eq!(through(&ten, 0, &all), Some((10, push(10))));
        assert_eq!(through(&ten, 0, &some), Some((10, push(10))));
        assert_eq!(through(&ten, PRESENT | 10, &ten), None, "a tag has no business on an access port");
        assert_eq!(through(&all, PRESENT | 10, &ten), Some((10, Some(Tag::Popped))));
        assert_eq!(through(&all, 0, &ten), Some((0, None)), "without a VLAN it is in none");
        assert_eq!(through(&some, 0, &twenty), Some((20, Some(Tag::Kept))), "native");
        assert_eq!(through(&some, PRESENT | 20, &twenty), Some((20, Some(Tag::Popped))));
        assert_eq!(through(&some, PRESENT | 40, &all), None);
        assert_eq!(through(&twenty, 0, &some), Some((20, Some(Tag::Kept))));
        assert_eq!(through(&all, PRESENT | 30, &some), Some((30, Some(Tag::Kept))));
    }

    #[test]
    fn a_priority_tag_becomes_the_vlans_and_keeps_its_priority() {
        let priority = PRESENT | 0xa000;
        let (ten, all) = (Membership::access(10), Membership::default());
        assert_eq!(through(&ten, priority, &all), Some((10, Some(Tag::Pushed { tci: 0xa00a, replaces: true }))));
        assert_eq!(through(&ten, priority, &ten), Some((10, Some(Tag::Popped))));
        assert_eq!(through(&all, priority, &all), Some((0, Some(Tag::Kept))));
    }

    #[test]
    fn a_hidden_tag_is_no_way_into_another_vlan() {
        let (ten, all) = (Membership::access(10), Membership::default());
        for key in [
            FlowKey { inner_vlan_tci: PRESENT | 20, ..frame(PRESENT) },
            FlowKey { eth_type: 0x8100, ..frame(0) },
            FlowKey { eth_type: 0x88a8, ..frame(PRESENT) },
        ] {
            let mut mask = FlowMask::default();
            assert_eq!(ten.enters(&key, &mut mask), None);
            assert_eq!((mask.0.eth_type, mask.0.inner_vlan_tci), (u16::MAX, VID));
            assert_eq!(all.enters(&key, &mut mask), Some(0));
        }
        // Nor where the outer tag is taken off.
        let double = FlowKey { inner_vlan_tci: PRESENT | 20, ..frame(PRESENT | 10) };
        assert_eq!(all.enters(&double, &mut FlowMask::default()), Some(10));
        assert_eq!(ten.leaves(10, &double, &mut FlowMask::default()), None);
    }

    #[test]
    fn each_port_gets_its_own_tag() {
        let (kept, popped) = (Tag::Kept, Tag::Popped);
        let pushed = Tag::Pushed { tci: 7, replaces: false };
        let replaced = Tag::Pushed { tci: 7, replaces: true };
        let to = |n, tag| (PortId(n), tag);
        let (out, pop) = (|n| Action::Output(PortId(n)), Action::Edit(Edit::PopVlan));
        let push = Action::Edit(Edit::PushVlan { tpid: ethertype::CTAG, tci: 7 });
        assert_eq!(actions(vec![to(1, kept), to(2, kept)], |_| &[]), [out(1), out(2)]);
        assert_eq!(actions(vec![to(1, popped), to(2, kept), to(3, popped)], |_| &[]), [out(2), pop, out(1), out(3)]);
        assert_eq!(actions(vec![to(1, pushed), to(2, kept), to(3, pushed)], |_| &[]), [out(2), push, out(1), out(3)]);
        assert_eq!(actions(vec![to(1, replaced), to(2, popped)], |_| &[]), [pop, out(2), push, out(1)]);
        assert_eq!(actions(vec![to(1, replaced), to(2, replaced)], |_| &[]), [pop, push, out(1), out(2)]);
    }
}
