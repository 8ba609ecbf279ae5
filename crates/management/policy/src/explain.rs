//! What policy would do with a packet, in words (`lasthop trace`).

use crate::Learning;
use crate::acl::{Decision, Direction, List};
use crate::flows::{Pair, Refusal, VID, Verdict};
use crate::learning::refusal;
use crate::mactable::Learned;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;

/// A decision and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reasons, in the order they were found.
    pub lines: Vec<String>,
    /// Where the packet goes; empty, or the port it came from, drops it.
    pub outputs: Vec<PortId>,
    /// It goes to every port that is up, as far as learning is asked.
    pub floods: bool,
}

fn in_vlan(pair: &Pair) -> String {
    if pair.vlan == 0 { String::new() } else { format!(" in VLAN {}", pair.vlan) }
}

/// Why a packet is refused whatever has been learned.
fn refused(refusal: &Refusal, key: &FlowKey) -> String {
    match refusal {
        Refusal::GroupSource(_) => {
            format!("source {} is a group address: dropped, whatever the destination", key.src())
        }
        Refusal::ZeroSource(_) => "source is all zeros: dropped, whatever the destination".to_owned(),
        Refusal::LinkLocal => {
            format!("destination {} is reserved for the link itself (IEEE 802.1D): never forwarded", key.dst())
        }
    }
}

impl Learning {
    /// What a packet with this key would meet if no flow matched it. Changes nothing. `name` gives a port's name.
    pub fn explain(&self, key: &FlowKey, now_ms: u64, name: impl Fn(PortId) -> String) -> Explanation {
        let dropped = |lines| Explanation { lines, outputs: Vec::new(), floods: false };
        if let Some(refusal) = refusal(key) {
            return dropped(vec![refused(&refusal, key)]);
        }
        let pair = Pair::of(key);
        let mut lines = Vec::new();
        if let Some(why) = self.why_not_carried(pair.port, key, &name) {
            return dropped(vec![format!("{why}: dropped")]);
        }
        if let Some((scope, list)) = self.scoped_list(pair.port, Direction::FromGuest) {
            let decision = list.decide(key);
            lines.push(format!("{scope} access list, from-guest at {}: {}", name(pair.port), decided(list, decision)));
            if !decision.permits() {
                return dropped(lines);
            }
        }
        lines.push(self.explain_source(&pair, now_ms, &name));
        let verdict = self.verdict(&pair);
        let mut outputs = self.outputs(verdict, key, &mut FlowMask::default());
        lines.push(self.explain_destination(key, verdict, outputs.len(), &name));
        if verdict != Verdict::Hairpin {
            outputs.retain(|port| {
                let Some((scope, list)) = self.scoped_list(*port, Direction::ToGuest) else { return true };
                let decision = list.decide(key);
                let there = name(*port);
                lines.push(format!("{scope} access list, to-guest at {there}: {}", decided(list, decision)));
                decision.permits()
            });
        }
        Explanation { lines, outputs, floods: verdict == Verdict::Flood }
    }

    /// Whether its source is learned, or would be.
    fn explain_source(&self, pair: &Pair, now_ms: u64, name: impl Fn(PortId) -> String) -> String {
        let (source, here) = (format!("source {}{}", pair.src, in_vlan(pair)), name(pair.port));
        match self.macs.would_learn(pair.vlan, pair.src, pair.port, now_ms) {
            _ if !self.has_port(pair.port) => format!("{source}: port {here} does not exist, nothing is learned"),
            Learned::Known => format!("{source} is known to live at {here}"),
            Learned::New => format!("{source} is new and would be learned at {here}"),
            Learned::Moved { from, to } if to == pair.port => {
                format!("{source} lives at {} and would move to {here}", name(from))
            }
            Learned::Moved { to, .. } => {
                format!("{source} moves too often: it would go back to {} and be held there", name(to))
            }
            Learned::Held => format!("{source} moves too often: it is held at its present port, not learned at {here}"),
            Learned::OverLimit => format!(
                "{source} would not be learned: {here} has {} of {} addresses (a limit per port protects the others)",
                self.macs.count(pair.port),
                self.macs.port_limit(pair.port)
            ),
        }
    }

    /// Where learning would send it, which is to so many ports.
    fn explain_destination(
        &self,
        key: &FlowKey,
        verdict: Verdict,
        outputs: usize,
        name: impl Fn(PortId) -> String,
    ) -> String {
        let pair = Pair::of(key);
        let destination = format!("destination {}{}", pair.dst, in_vlan(&pair));
        match verdict {
            Verdict::To(port) if self.is_between_uplinks(pair.port, port) => {
                format!("{destination} lives at {}, and nothing goes from one uplink to another: dropped", name(port))
            }
            Verdict::To(port) if outputs == 0 => {
                let why = self.why_not_carried(port, key, &name).unwrap_or_default();
                format!("{destination} lives at {}, but {why}: dropped", name(port))
            }
            Verdict::To(port) => format!("{destination} lives at {}", name(port)),
            Verdict::Hairpin => {
                let here = name(pair.port);
                format!("{destination} lives at {here} itself: dropped, it needs no switch to get there")
            }
            Verdict::Flood => {
                let kind = if pair.dst.is_multicast() { "a group address" } else { "unknown" };
                let left_out = self.flood_leaves_out(key, &name).join(", ");
                let to = match (outputs, left_out.is_empty()) {
                    (0, true) => "no other port is up: dropped".to_owned(),
                    (0, false) => format!("{left_out}, and no other port is up: dropped"),
                    (1, true) => "flooded to the one other port that is up".to_owned(),
                    (1, false) => format!("flooded to one other port that is up; {left_out}"),
                    (n, true) => format!("flooded to the {n} other ports that are up"),
                    (n, false) => format!("flooded to {n} other ports that are up; {left_out}"),
                };
                format!("{destination} is {kind}: {to}")
            }
        }
    }

    /// That a port does not carry the frame's VLAN, if it does not.
    fn why_not_carried(&self, port: PortId, key: &FlowKey, name: impl Fn(PortId) -> String) -> Option<String> {
        let vlans = self.vlans_of(port).filter(|vlans| !vlans.carry(key, &mut FlowMask::default()))?;
        let what = match key.vlan_tci & VID {
            0 if vlans.contains(0) => "a VLAN tag that is cut off or behind a priority tag".to_owned(),
            0 => "untagged frames".to_owned(),
            vlan => format!("VLAN {vlan}"),
        };
        Some(format!("uplink {} does not carry {what} (vlans={vlans})", name(port)))
    }

    /// Which uplinks a flood would have reached if they carried its VLAN, or if it did not come from an uplink itself.
    fn flood_leaves_out(&self, key: &FlowKey, name: impl Fn(PortId) -> String) -> Vec<String> {
        let others = self.flooded().filter(|to| *to != key.port());
        let why = |to| match self.is_between_uplinks(key.port(), to) {
            true => Some(format!("not to {}: nothing goes from one uplink to another", name(to))),
            false => self.why_not_carried(to, key, &name),
        };
        others.filter_map(why).collect()
    }

    /// How many flows are flooded from an uplink, and leave out other uplinks that are up.
    pub fn floods_left_out(&self) -> usize {
        let leaves_out = |from: PortId| self.flooded().any(|to| to != from && self.is_between_uplinks(from, to));
        self.flooded().filter(|from| leaves_out(*from)).map(|from| self.flows.floods_of(from)).sum()
    }
}

/// What decided, in words. Rules are counted from 1, as `lasthop acl show` does.
fn decided(list: &List, decision: Decision) -> String {
    match decision {
        Decision::Rule(n, _) => match list.rules().get(n) {
            Some(rule) => format!("rule {} decides: {rule}", n + 1),
            None => format!("rule {} decides", n + 1),
        },
        Decision::Default(action) => match list.rules().len() {
            0 => format!("it has no rules, its default is {action}"),
            1 => format!("its one rule does not match, its default is {action}"),
            n => format!("none of {n} rules matches, its default is {action}"),
        },
        Decision::Malformed => "the packet's headers are malformed, so it is dropped".to_owned(),
    }
}
