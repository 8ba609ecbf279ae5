//! Where stations live, as it travels.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A learned address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Mac {
    /// The address.
    pub mac: String,
    /// VLAN id; 0 without a tag.
    pub vlan: u16,
    /// Name of the port where it lives.
    pub port: String,
    /// Milliseconds since it was last seen as a source (known to within the ten seconds between two looks).
    pub age_ms: u64,
    /// It moved between ports too often and is held at this one for now.
    pub held: bool,
    /// It is static (`MacAdd`): it neither ages nor moves.
    pub is_static: bool,
}

/// Some of the learned addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct MacPage {
    /// These.
    pub macs: Vec<Mac>,
    /// How many there are in all.
    pub total: u64,
}

/// Answer to `MacFlush`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct MacFlushed {
    /// Addresses that were forgotten.
    pub macs: u64,
}

/// A group of multicasts, or the routers that get all groups of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Group {
    /// VLAN id; 0 without a tag.
    pub vlan: u16,
    /// The group's Ethernet address; none for routers.
    pub group: Option<String>,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Who has joined it, or where the routers are.
    pub members: Vec<Member>,
}

/// A port that a group goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Member {
    /// Its name.
    pub port: String,
    /// For how many milliseconds it stays, unless it is heard of again.
    pub for_ms: u64,
}

/// Some of the groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct GroupPage {
    /// These.
    pub groups: Vec<Group>,
    /// How many there are in all.
    pub total: u64,
}
