//! Named sets of addresses, which rules ask for as `from @NAME` and `to @NAME`. They change without their lists being loaded anew.

use super::rule::Prefix;
use lasthop_classifier::Addresses;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Most sets.
pub const MAX_SETS: usize = 1024;
/// Most addresses and prefixes of all sets together.
pub const MAX_MEMBERS: usize = 65_536;
/// Longest name, in characters.
const MAX_NAME: usize = 63;

/// All sets, by name.
pub(super) type Sets = BTreeMap<String, Arc<AddressSet>>;

/// Addresses and prefixes of either IP version, as they were named; they may overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    members: BTreeSet<Prefix>,
    addresses: Arc<Addresses>,
}

impl FromIterator<Prefix> for AddressSet {
    fn from_iter<T: IntoIterator<Item = Prefix>>(members: T) -> Self {
        let members: BTreeSet<Prefix> = members.into_iter().collect();
        let addresses = Addresses::of(members.iter().map(|p| (p.addr(), u32::from(p.bits())))).into();
        Self { members, addresses }
    }
}

impl AddressSet {
    /// What it consists of, IPv4 first, in order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Prefix> {
        self.members.iter()
    }

    /// Those that follow one; without it all.
    pub fn members_after(&self, last: Option<&Prefix>) -> impl Iterator<Item = &Prefix> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.members.range((from, Bound::Unbounded))
    }

    /// The same as addresses.
    pub fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// With these, and without those. The error says which of those are no members, and what is.
    pub(super) fn changed(&self, name: &str, add: &[Prefix], del: &[Prefix]) -> Result<Self, String> {
        if let Some(missing) = del.iter().find(|p| !self.members.contains(p)) {
            let wider = self.members.iter().find(|p| p.contains(missing));
            return Err(match wider {
                Some(wider) => format!(
                    "{missing} is no member of @{name}, but part of its member {wider}; delete that one, and add the rest of it"
                ),
                None => format!("{missing} is no member of @{name}; `lasthop set list {name}` shows them"),
            });
        }
        let del: BTreeSet<_> = del.iter().collect();
        let stay = self.members.iter().filter(|p| !del.contains(p)).chain(add);
        Ok(stay.copied().collect())
    }
}

/// Checks the name of a set: 1 to 63 characters of `[A-Za-z0-9._-]`. The error says what would be right.
pub fn check_set_name(name: &str) -> Result<(), String> {
    let is_bad = |c: &char| !(c.is_ascii_alphanumeric() || "._-".contains(*c));
    match name.chars().find(is_bad) {
        Some('@') => Err(format!("{name:?}: a set is named without @ here, which stands before it in rules only")),
        Some(bad) => Err(format!("{bad:?} cannot be in a set's name; use letters, digits, '.', '_' and '-'")),
        None if name.is_empty() || name.len() > MAX_NAME => {
            Err(format!("a set's name has 1 to {MAX_NAME} characters, and this has {}", name.len()))
        }
        None => Ok(()),
    }
}

/// Reads an address or a prefix that is to be a member of a set. One with host bits is refused.
pub fn read_member(text: &str) -> Result<Prefix, String> {
    let prefix = super::prefix(text).map_err(|_| {
        format!("{text:?} is none; write an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1, or a prefix such as 10.0.0.0/8")
    })?;
    super::host_bits(text, &prefix).map_or(Ok(prefix), Err)
}
