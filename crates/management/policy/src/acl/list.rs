//! What a list of rules says of a frame, by the [classifier](lasthop_classifier).

use super::basics::is_basic;
use super::nat::Translation;
use super::parse::Rules;
use super::rule::{Action, Direction, Mac, Place, Prefix, Rule};
use super::sets::Sets;
use lasthop_classifier::pattern::{first_bits, mac_bits};
use lasthop_classifier::{Addresses, Classifier, Found, Pattern, Proto, Seen};
use lasthop_frame::{FlowKey, FlowMask};
use std::collections::BTreeMap;
use std::sync::Arc;

const ANOMALIES: u16 = FlowKey::MALFORMED_L3 | FlowKey::MALFORMED_L4 | FlowKey::DEEP_VLAN | FlowKey::DEEP_EXTENSIONS;

/// What a list says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This rule, counted from 0, matched first.
    Rule(usize, Action),
    /// None did.
    Default(Action),
    /// Headers are malformed, so that rules which look at them cannot be trusted: dropped.
    Malformed,
    /// The list is stateful, and the packet is one of a connection that was answered: it passes.
    Connection,
    /// The list is stateful, and the packet is of no connection and cannot open one: dropped.
    Invalid,
    /// The list is stateful, no rule matched, and a guest needs such packets to find its neighbours or an address: it passes.
    Basic,
}

impl Decision {
    /// The frame may pass.
    pub fn permits(self) -> bool {
        match self {
            Self::Rule(_, action) | Self::Default(action) => action == Action::Permit,
            Self::Connection | Self::Basic => true,
            Self::Malformed | Self::Invalid => false,
        }
    }
}

/// What a packet is to connections, as far as a list asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It would open one, or is none that has connections.
    #[default]
    New,
    /// It is one of a connection that was answered, or an error about one.
    Established,
    /// It is of none, and cannot open one.
    Invalid,
}

/// Rules of one direction, ready to decide by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    rules: Vec<Rule>,
    classifier: Classifier,
    /// Of the rules that do not ask for a connection, and which these are; none if no rule does.
    fresh: Option<(Classifier, Vec<usize>)>,
    default: Action,
    stateful: bool,
    nat: Vec<Translation>,
    translated: Classifier,
    /// Those that rules name: as source, as destination.
    sets: BTreeMap<String, [bool; 2]>,
}

impl List {
    /// From rules, and the sets that they name. One that is not there has no addresses.
    pub(super) fn new(rules: Rules, sets: &Sets) -> Self {
        let pattern = |rule: &Rule| pattern(rule, sets);
        let Rules { rules, default, stateful, nat } = rules;
        let fresh = rules.iter().any(|rule| rule.established).then(|| {
            let others = || rules.iter().enumerate().filter(|(_, rule)| !rule.established);
            (others().map(|(_, rule)| pattern(rule)).collect(), others().map(|(n, _)| n).collect())
        });
        let translated = nat.iter().map(|translation| pattern(&translation.rule)).collect();
        let mut named = BTreeMap::<String, [bool; 2]>::new();
        for rule in &rules {
            for (side, place) in [&rule.src, &rule.dst].into_iter().enumerate() {
                if let Some(set) = place.as_ref().and_then(Place::set) {
                    named.entry(set.to_owned()).or_default()[side] = true;
                }
            }
        }
        let classifier = rules.iter().map(pattern).collect();
        Self { classifier, fresh, default, stateful, nat, translated, sets: named, rules }
    }

    /// The same rules with these sets.
    pub(super) fn with(&self, sets: &Sets) -> Self {
        let (rules, nat) = (self.rules.clone(), self.nat.clone());
        Self::new(Rules { rules, default: self.default, stateful: self.stateful, nat }, sets)
    }

    /// The sets that its rules name, and whether they do as source and as destination.
    pub fn sets(&self) -> &BTreeMap<String, [bool; 2]> {
        &self.sets
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// What holds where no rule matches.
    pub fn default(&self) -> Action {
        self.default
    }

    /// Packets of connections pass without asking the rules.
    pub fn is_stateful(&self) -> bool {
        self.stateful
    }

    /// What is translated, in the order in which it is tried.
    pub fn translations(&self) -> &[Translation] {
        &self.nat
    }

    /// The first translation that matches, counted from 0; one to nothing, too. Adds to `mask` what it took to know.
    pub fn translation(&self, key: &FlowKey, mask: &mut FlowMask) -> Option<(usize, &Translation)> {
        if self.nat.is_empty() {
            return None;
        }
        let mut seen = Seen::of(mask);
        let found = self.translated.first_match(key, &mut seen);
        seen.add_to(mask);
        match found {
            Found::Pattern(n) => Some((n, self.nat.get(n)?)),
            Found::Nothing | Found::Malformed => None,
        }
    }

    /// What it says depends on connections.
    pub fn tracks(&self) -> bool {
        self.stateful || self.fresh.is_some()
    }

    /// What the list says of a packet of no connection, without asking why.
    pub fn decide(&self, key: &FlowKey) -> Decision {
        self.rule(key, Standing::New, &mut Seen::all())
    }

    /// The same, and adds to `mask` the bits that it takes to know it: every key that agrees with `key` in the bits of
    /// the mask that is left gets the same decision.
    pub fn first_match(&self, key: &FlowKey, mask: &mut FlowMask) -> Decision {
        let mut seen = Seen::of(mask);
        let decision = self.rule(key, Standing::New, &mut seen);
        seen.add_to(mask);
        decision
    }

    /// What the list says of a packet that passes a port this way, and is this to connections. Adds to `mask` what it took to know, the standing apart.
    pub fn check(&self, key: &FlowKey, standing: Standing, direction: Direction, mask: &mut FlowMask) -> Decision {
        if self.tracks() {
            // It is not known what malformed headers are to a connection.
            (mask.0.eth_type, mask.0.anomalies) = (u16::MAX, mask.0.anomalies | ANOMALIES);
            if key.anomalies & ANOMALIES != 0 {
                return Decision::Malformed;
            }
        }
        match standing {
            Standing::Established if self.stateful => return Decision::Connection,
            Standing::Invalid if self.stateful => return Decision::Invalid,
            _ => {}
        }
        let mut seen = Seen::of(mask);
        let decision = self.rule(key, standing, &mut seen);
        seen.add_to(mask);
        match decision {
            Decision::Default(Action::Deny) if self.stateful && is_basic(key, direction, mask) => Decision::Basic,
            other => other,
        }
    }

    fn rule(&self, key: &FlowKey, standing: Standing, seen: &mut Seen) -> Decision {
        let found = match &self.fresh {
            Some((fresh, numbers)) if standing != Standing::Established => match fresh.first_match(key, seen) {
                Found::Pattern(i) => Found::Pattern(numbers.get(i).copied().unwrap_or_default()),
                other => other,
            },
            _ => self.classifier.first_match(key, seen),
        };
        match found {
            Found::Pattern(i) => Decision::Rule(i, self.rules.get(i).map_or(self.default, |rule| rule.action)),
            Found::Nothing => Decision::Default(self.default),
            Found::Malformed => Decision::Malformed,
        }
    }
}

/// A rule as the classifier wants it.
fn pattern(rule: &Rule, sets: &Sets) -> Pattern {
    let among = |place: &Option<Place>| {
        let name = place.as_ref().and_then(Place::set)?;
        Some(sets.get(name).map_or_else(Arc::<Addresses>::default, |set| set.addresses().clone()))
    };
    let bits = |place: &Option<Place>| place.as_ref().and_then(Place::prefix).map_or((0, 0), bits);
    let ((src, src_mask), (dst, dst_mask)) = (bits(&rule.src), bits(&rule.dst));
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
        src_in: among(&rule.src),
        dst_in: among(&rule.dst),
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
