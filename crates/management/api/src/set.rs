//! Sets of addresses that access lists name, as they travel.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A named set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct AddressSet {
    /// Its name; rules ask for it as `from @NAME` or `to @NAME`.
    pub name: String,
    /// Its addresses and prefixes, in order. Of a large set some; the next entry of the same name goes on.
    pub addresses: Vec<String>,
    /// Access lists whose rules name it, such as `port vm1, to-guest`.
    pub used_by: Vec<String>,
}

/// Some of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct SetPage {
    /// These.
    pub sets: Vec<AddressSet>,
    /// How many entries there are in all.
    pub total: u64,
}

/// Answer to `SetChange` and `SetDel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct SetChanged {
    /// Its name.
    pub name: String,
    /// It was made, or it was removed.
    pub made: bool,
    /// Addresses and prefixes that it has now.
    pub addresses: u64,
    /// Those that it has and had not.
    pub added: u64,
    /// Those that it had and has not.
    pub removed: u64,
    /// Flows that were removed, so that their packets are judged anew.
    pub flows: u64,
}
