//! What the API says of access lists.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A rule of an access list, or its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct AclRule {
    /// Name of the port whose own list this is; none in a list of all guests or all uplinks.
    pub port: Option<String>,
    /// Whose list this is: `guests`, `uplinks` or `port NAME`.
    pub applies_to: String,
    /// `from-guest` or `to-guest`.
    pub direction: String,
    /// Place in the list, from 1; 0 for `stateful` and translations, which come first, and for the default, which comes last.
    pub number: u32,
    /// The rule, as it may be written in a file.
    pub text: String,
    /// Packets of those flows in the switch that this rule decided; flows that are gone are not counted, nor is a flow's
    /// first packet. None if it was not asked for.
    pub packets: Option<u64>,
}

/// Some of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct AclPage {
    /// These.
    pub rules: Vec<AclRule>,
    /// How many there are in all, defaults included.
    pub total: u64,
}

/// Answer to `AclText`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct AclText {
    /// Length of the whole text so far.
    pub bytes: u64,
}

/// Answer to `AclLoad` and `AclClear`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct AclChanged {
    /// Rules loaded for what comes from guests; none if there is no such list now.
    pub from_guest: Option<u64>,
    /// Rules loaded for what goes to guests; none if there is no such list now.
    pub to_guest: Option<u64>,
    /// What the list of what comes from guests says where no rule matches: `permit` or `deny`.
    pub from_guest_default: Option<String>,
    /// The same of the list of what goes to guests.
    pub to_guest_default: Option<String>,
    /// One of these lists is stateful.
    pub stateful: bool,
    /// Lines of these lists that translate where packets come from, those that say `none` among them.
    pub snat: u64,
    /// The same of where packets go.
    pub dnat: u64,
    /// Whose lists these are: `guests`, `uplinks`, `port NAME`.
    pub applies_to: Vec<String>,
    /// Lists that were removed.
    pub removed: u64,
    /// Ports among these that do not exist yet. Their lists are kept, and hold when they do.
    pub to_come: Vec<String>,
    /// Filters of a ClassBench set left out because no frame can match them.
    pub left_out: u64,
    /// Filters of a ClassBench set that also name flags, which are not looked at.
    pub flags_ignored: u64,
}
