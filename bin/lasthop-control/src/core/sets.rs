//! Sets of addresses: kept with the access lists that name them, and in force once they are kept.

use super::lists::{Change, Kept};
use super::{Answer, Core, Unconfirmed, give, refuse};
use crate::lines::Lines;
use lasthop_api::{AddressSet, ApiError, SetChanged};
use lasthop_policy::acl::{AddressSet as Members, Addresses, Book, Prefix, check_set_name, read_member};
use lasthop_policy::{Effects, SetRound};
use lasthop_types::PortId;
use std::sync::Arc;

/// Addresses in one entry of a list of sets.
const IN_ENTRY: usize = 128;

/// What is wanted of sets.
#[derive(Debug)]
pub(crate) enum SetCall {
    /// Addresses join a set and leave it; without any, an empty one is made.
    Change { name: String, add: Vec<String>, del: Vec<String>, kept: Kept, answer: Answer<SetChanged> },
    /// It goes.
    Del { name: String, kept: Kept, answer: Answer<SetChanged> },
    /// All, or the one with this name.
    List { name: Option<String>, answer: Answer<Lines<AddressSet>> },
}

/// Flows that are looked at at a time when a set has changed: below a millisecond.
const FLOWS_AT_ONCE: usize = 4096;

/// A set that changes as soon as it is kept, or has: then flows are removed that it concerns.
#[derive(Debug)]
pub(super) struct SetChange {
    round: SetRound,
    changed: SetChanged,
    addresses: Addresses,
    answer: Answer<SetChanged>,
}

impl SetChange {
    pub(super) fn refuse(self, error: ApiError) {
        refuse(self.answer, error);
    }
}

fn refused(message: String) -> ApiError {
    ApiError::BadRules { message: format!("{message}; nothing was changed") }
}

fn read(addresses: &[String]) -> Result<Vec<Prefix>, ApiError> {
    addresses.iter().map(|text| read_member(text).map_err(refused)).collect()
}

/// A set in parts, at least one, the first of which says who uses it. Where the next part begins the last one has said, so each is found at once.
fn entries(name: String, set: Arc<Members>, users: Vec<String>) -> impl Iterator<Item = AddressSet> {
    let (mut users, mut last) = (Some(users), None);
    std::iter::from_fn(move || {
        let part: Vec<Prefix> = set.members_after(last.as_ref()).take(IN_ENTRY).copied().collect();
        let used_by = users.take();
        if part.is_empty() && used_by.is_none() {
            return None;
        }
        last = part.last().copied().or(last);
        let addresses = part.iter().map(ToString::to_string).collect();
        Some(AddressSet { name: name.clone(), addresses, used_by: used_by.unwrap_or_default() })
    })
}

impl Core {
    pub(super) fn set_call(&mut self, call: SetCall) {
        match call {
            SetCall::List { name, answer } => match name {
                Some(name) if self.book.set(&name).is_none() => {
                    refuse(answer, ApiError::BadRules { message: self.no_set(&name) });
                }
                name => give(answer, self.set_list(name.as_deref())),
            },
            SetCall::Change { name, add, del, kept, answer } => match self.changed_set(&name, &add, &del) {
                Ok((book, ..)) if self.is_idle_with(&book) => {
                    let addresses = book.set(&name).map_or(0, |set| set.members().len()) as u64;
                    give(answer, SetChanged { name, addresses, ..SetChanged::default() });
                }
                Ok((book, changed, addresses)) => {
                    let round = SetRound::default();
                    self.keep(book, Change::Set(SetChange { round, changed, addresses, answer }), kept);
                }
                Err(e) => refuse(answer, e),
            },
            SetCall::Del { name, kept, answer } => {
                let mut book = self.book.clone();
                if let Err(message) = book.remove_set(&name) {
                    return refuse(answer, refused(message));
                }
                let removed = self.book.set(&name).map_or(0, |set| set.members().len()) as u64;
                let changed = SetChanged { name, made: true, removed, ..SetChanged::default() };
                let (round, addresses) = (SetRound::default(), Addresses::default());
                self.keep(book, Change::Set(SetChange { round, changed, addresses, answer }), kept);
            }
        }
    }

    fn no_set(&self, name: &str) -> String {
        match check_set_name(name) {
            Err(wrong) => wrong,
            Ok(()) => format!(
                "there is no set {name:?}; `lasthop set list` shows those there are, `lasthop set add {name}` makes one"
            ),
        }
    }

    fn changed_set(
        &self,
        name: &str,
        add: &[String],
        del: &[String],
    ) -> Result<(Book, SetChanged, Addresses), ApiError> {
        let (add, del) = (read(add)?, read(del)?);
        let before = self.book.set(name);
        if before.is_none() && !del.is_empty() {
            return Err(refused(self.no_set(name)));
        }
        let mut book = self.book.clone();
        let addresses = book.change_set(name, &add, &del).map_err(refused)?;
        let count = |book: &Book, other: &Book| {
            let others: Vec<&Prefix> = other.set(name).into_iter().flat_map(|set| set.members()).collect();
            let members = book.set(name).into_iter().flat_map(|set| set.members());
            members.filter(|member| others.binary_search(member).is_err()).count() as u64
        };
        let changed = SetChanged {
            name: name.to_owned(),
            made: before.is_none(),
            addresses: book.set(name).map_or(0, |set| set.members().len()) as u64,
            added: count(&book, &self.book),
            removed: count(&self.book, &book),
            flows: 0,
        };
        Ok((book, changed, addresses))
    }

    fn set_list(&self, only: Option<&str>) -> Lines<AddressSet> {
        let (mut shown, mut total) = (Vec::new(), 0);
        for (name, set) in self.book.shared_sets().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
            let using = self.book.iter().filter(|(.., list)| list.sets().contains_key(name));
            let users: Vec<String> = using.map(|(scope, direction, _)| format!("{scope}, {direction}")).collect();
            total += set.members().len().div_ceil(IN_ENTRY).max(1);
            shown.push((name.to_owned(), set.clone(), users));
        }
        Lines::new(total, shown.into_iter().flat_map(|(name, set, users)| entries(name, set, users)))
    }

    /// The supervisor keeps it, and the book has it: lists go by it.
    pub(super) fn set_kept(&mut self, change: SetChange, now_ms: u64) {
        let SetChange { changed, addresses, .. } = &change;
        let set = &changed.name;
        let users: Vec<PortId> = self.infos.keys().chain(self.configs.keys()).copied().collect();
        let uses = |core: &Self, id: PortId| {
            let is_uplink = core.uplinks.contains_key(&id);
            core.book.of_port(&core.name(id), is_uplink).iter().flatten().any(|(_, list)| list.sets().contains_key(set))
        };
        if !addresses.is_empty() {
            users
                .into_iter()
                .filter(|id| uses(self, *id))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|id| self.set_lists(id));
        }
        tracing::info!("set {set}: {} joined, {} left, {} now", changed.added, changed.removed, changed.addresses);
        self.set_changes.push_back(change);
        self.change_sets(now_ms);
    }

    /// Looks at some more of the flows that a change of a set may concern: one change after the other.
    pub(super) fn change_sets(&mut self, now_ms: u64) {
        let Some(mut change) = self.set_changes.pop_front() else { return };
        if self.attached && self.reconciled {
            let (mut out, SetChange { round, changed, addresses, .. }) = (Effects::default(), &mut change);
            let more = self.policy.addresses_changed(&changed.name, addresses, round, FLOWS_AT_ONCE, &mut out);
            changed.flows = round.removed as u64;
            self.carry_out(out, now_ms);
            if more {
                return self.set_changes.push_front(change);
            }
            self.count_anew();
        }
        // A switch that has just come may have flows that nothing is known of: it forgets all.
        self.when_confirmed(Unconfirmed::Set(change.changed, change.answer), now_ms);
    }
}
