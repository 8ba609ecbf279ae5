//! Mirrors, as they travel.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A mirror: ports whose packets another port gets copies of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// Names of the ports whose packets are copied.
    pub from: Vec<String>,
    /// Name of the port that gets the copies.
    pub to: String,
    /// `from-guest`, `to-guest` or `both`.
    pub direction: String,
    /// One of so many of these packets is copied, by chance; 1: all.
    pub sample: u32,
    /// Each copy has a tag in front that says whose packet it is, as `lasthop capture` wants it.
    #[serde(default)]
    pub labelled: bool,
    /// Ports among these that do not exist (yet).
    pub to_come: Vec<String>,
    /// Why nothing is copied, or not all of it, if so.
    pub note: Option<String>,
}

/// Answer to `MirrorAdd` and `MirrorDel` (that mirror), and to `MirrorList` (all).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct MirrorList {
    /// Mirrors, by name.
    pub mirrors: Vec<Mirror>,
}
