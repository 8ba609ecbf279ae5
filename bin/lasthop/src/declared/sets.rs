//! Sets of addresses of the declarative file.

use super::Declared;
use super::DeclaredSet;
use super::document::Fields;
use super::plan::{Plan, Step, There};
use lasthop_policy::acl::{Prefix, check_set_name, read_member};
use std::collections::BTreeSet;

/// What a set's table may have.
pub(super) const OF_SETS: &[&str] = &["addr"];

/// One table.
pub(super) fn set(name: String, mut of: Fields) -> Result<DeclaredSet, String> {
    check_set_name(&name).map_err(|e| format!("{}: {e}", of.at()))?;
    let Some(words) = of.words("addr", ",")? else {
        return Err(format!("{}: no addr; write addr = [\"10.0.0.1\", \"fd00::/64\"], or addr = [] for none", of.at()));
    };
    let words = words.split(',').filter(|word| !word.is_empty());
    let members =
        words.map(|word| read_member(word.trim()).map_err(|e| of.wrong("addr", e))).collect::<Result<_, _>>()?;
    Ok(DeclaredSet { name, members })
}

impl<'a> Plan<'a> {
    /// Before lists are loaded, which may name them.
    pub(super) fn change_sets(&mut self, declared: &'a Declared, there: &There) {
        for set in &declared.sets {
            let is = there.sets.iter().find(|is| is.name == set.name);
            // Another version of lasthop may write an address otherwise.
            let members: BTreeSet<Prefix> =
                is.into_iter().flat_map(|is| &is.addresses).filter_map(|text| read_member(text).ok()).collect();
            let add: Vec<String> = set.members.difference(&members).map(ToString::to_string).collect();
            let del: Vec<String> = members.difference(&set.members).map(ToString::to_string).collect();
            if is.is_some() && add.is_empty() && del.is_empty() {
                continue;
            }
            let told = format!(
                "{} set {}: {} joined, {} left",
                if is.is_none() { "+" } else { "~" },
                set.name,
                add.len(),
                del.len()
            );
            self.push(Step::ChangeSet(&set.name, add, del), told);
        }
    }

    /// After lists have gone that may name them.
    pub(super) fn remove_sets(&mut self, declared: &Declared, there: &There, prune: bool) {
        for is in there.sets.iter().filter(|is| !declared.sets.iter().any(|set| set.name == is.name)) {
            if prune {
                self.push(Step::DelSet(is.name.clone()), format!("- set {}", is.name));
            } else {
                self.left.push(format!("set {}", is.name));
            }
        }
    }
}
