//! What a list of rules says of a frame, by the [classifier](lasthop_classifier).

use super::parse::Rules;
use super::rule::{Action, Mac, Prefix, Rule};
use lasthop_classifier::pattern::{first_bits, mac_bits};
use lasthop_classifier::{Classifier, Found, Pattern, Proto, Seen};
use lasthop_frame::{FlowKey, FlowMask};

/// What a list says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This rule, counted from 0, matched first.
    Rule(usize, Action),
    /// None did.
    Default(Action),
    /// Headers are malformed, so that rules which look at them cannot be trusted: dropped.
    Malformed,
}

impl Decision {
    /// The frame may pass.
    pub fn permits(self) -> bool {
        matches!(self, Self::Rule(_, Action::Permit) | Self::Default(Action::Permit))
    }
}

/// Rules of one direction, ready to judge by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    rules: Vec<Rule>,
    classifier: Classifier,
    default: Action,
}

impl List {
    /// From rules.
    pub fn new(rules: Rules) -> Self {
        let Rules { rules, default } = rules;
        Self { classifier: rules.iter().map(pattern).collect(), default, rules }
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What holds where no rule matches.
    pub fn default(&self) -> Action {
        self.default
    }

    /// What the list says, without asking why.
    pub fn decide(&self, key: &FlowKey) -> Decision {
        self.first_match(key, &mut Seen::all())
    }

    /// The same, and adds to `mask` the bits that it takes to know it: every key that agrees with `key` in the bits of
    /// the mask that is left gets the same decision.
    pub fn judge(&self, key: &FlowKey, mask: &mut FlowMask) -> Decision {
        let mut seen = Seen::of(mask);
        let decision = self.first_match(key, &mut seen);
        seen.add_to(mask);
        decision
    }

    fn first_match(&self, key: &FlowKey, seen: &mut Seen) -> Decision {
        match self.classifier.first_match(key, seen) {
            Found::Pattern(i) => Decision::Rule(i, self.rules.get(i).map_or(self.default, |rule| rule.action)),
            Found::Nothing => Decision::Default(self.default),
            Found::Malformed => Decision::Malformed,
        }
    }
}

/// A rule as the classifier wants it.
fn pattern(rule: &Rule) -> Pattern {
    let (src, src_mask) = rule.src.as_ref().map_or((0, 0), bits);
    let (dst, dst_mask) = rule.dst.as_ref().map_or((0, 0), bits);
    let mac = |m: &Option<Mac>| m.map_or((0, 0), |m| (mac_bits(m.addr.0), mac_bits(m.mask.0)));
    let ((src_mac, src_mac_mask), (dst_mac, dst_mac_mask)) = (mac(&rule.src_mac), mac(&rule.dst_mac));
    let proto = match rule.proto {
        Some(p) => Proto::One(p),
        None if rule.looks_at_transport() => Proto::Ported,
        None => Proto::Any,
    };
    Pattern {
        src,
        src_mask,
        dst,
        dst_mask,
        proto,
        ether: rule.ether,
        vlan: rule.vlan,
        transport: rule.looks_at_transport(),
        // See the module's documentation.
        later_fragments: rule.action == Action::Permit,
        sport: rule.sport.clone().into(),
        dport: rule.dport.clone().into(),
        src_mac,
        src_mac_mask,
        dst_mac,
        dst_mac_mask,
    }
}

fn bits(prefix: &Prefix) -> (u128, u128) {
    let len = u32::from(prefix.bits());
    match prefix.addr() {
        std::net::IpAddr::V4(a) => (u128::from(a.to_bits()), first_bits(len, 32)),
        std::net::IpAddr::V6(a) => (a.to_bits(), first_bits(len, 128)),
    }
}
