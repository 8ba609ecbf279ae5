//! What was dropped because a flow says so: by port and rule or reason, with the last such packet that came to control. The
//! counts are the switch's, read with its flows; they stay when a flow goes, and go with the switch.

use super::{DeniedBy, Learning, dropped};
use crate::guard::pretends;
use lasthop_flow::Action;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{DropReason, PortId};
use std::collections::BTreeMap;

/// Rules and reasons that are kept apart for each port; those beyond count together, as their reason alone.
const PER_PORT: usize = 64;

/// Packets of one port, dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// How many.
    pub packets: u64,
    /// When the last one came, in ms of the clock that is handed in.
    pub last_ms: u64,
    /// The last one that came to control. Later ones that met the flow made for it may differ in what the flow does not
    /// look at. `None`: none has come, since a control process before this one made the flow.
    pub packet: Option<FlowKey>,
}

/// Why; the rule if it was one; of [`DropReason::Spoofed`], the setting that does not allow it.
pub type Why = (DropReason, Option<DeniedBy>, Option<&'static str>);

/// By port.
#[derive(Debug, Default)]
pub(super) struct Denials(BTreeMap<PortId, BTreeMap<Why, Denied>>);

impl Denials {
    fn entry(&mut self, port: PortId, why: Why) -> &mut Denied {
        let of_port = self.0.entry(port).or_default();
        let full = of_port.len() >= PER_PORT && !of_port.contains_key(&why);
        let why = if full { (why.0, None, None) } else { why };
        of_port.entry(why).or_insert(Denied { packets: 0, last_ms: 0, packet: None })
    }

    pub fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }

    /// There is another switch: what the one before dropped is in no counter any more.
    pub fn forget_all(&mut self) {
        self.0.clear();
    }
}

impl Learning {
    /// Other lists hold: what those before denied was denied by rules that are none any more. To be followed by [`Learning::clear_flows`].
    pub fn lists_replaced(&mut self) {
        self.denials.0.values_mut().for_each(|of_port| of_port.retain(|(reason, ..), _| *reason != DropReason::Acl));
    }

    /// A packet has come that is dropped. `alone`: no flow is made of it that would count it.
    pub(super) fn saw_denied(
        &mut self,
        key: &FlowKey,
        actions: &[Action],
        (rule, alone): (Option<&DeniedBy>, bool),
        now_ms: u64,
    ) {
        if let Some(reason) = dropped(actions) {
            let setting = self.setting_against(reason, key);
            let denied = self.denials.entry(key.port(), (reason, rule.cloned(), setting));
            (denied.last_ms, denied.packet) = (now_ms, Some(*key));
            denied.packets += u64::from(alone);
        }
    }

    /// The switch has counted so many more packets of a flow that drops them.
    pub(super) fn count_denied(
        &mut self,
        port: PortId,
        (reason, rule): (DropReason, Option<DeniedBy>),
        key: &FlowKey,
        packets: u64,
        used_ms: u64,
    ) {
        if packets > 0 {
            let setting = self.setting_against(reason, key);
            let denied = self.denials.entry(port, (reason, rule, setting));
            denied.packets += packets;
            denied.last_ms = denied.last_ms.max(used_ms);
        }
    }

    /// Which of its port's settings does not allow a packet, or the packets of a flow with this key: a flow's mask has all that it took
    /// to know.
    fn setting_against(&self, reason: DropReason, key: &FlowKey) -> Option<&'static str> {
        let settings = self.guest_settings(key.port()).filter(|_| reason == DropReason::Spoofed)?;
        pretends(settings, key, &mut FlowMask::default())?.setting()
    }

    /// What was dropped, as of the last [`Learning::statistics_end`]; by rules, since the lists there are hold.
    pub fn denied(&self) -> impl Iterator<Item = (PortId, &Why, &Denied)> {
        let of_port = |(port, whys): (&PortId, _)| (*port, whys);
        self.denials.0.iter().map(of_port).flat_map(|(port, whys): (_, &BTreeMap<Why, Denied>)| {
            whys.iter().filter(|(_, denied)| denied.packets > 0).map(move |(why, denied)| (port, why, denied))
        })
    }

    /// Whether the switch has flows that drop packets: then it knows more than was last read.
    pub fn has_drops(&self) -> bool {
        self.flows.drops() > 0
    }
}
