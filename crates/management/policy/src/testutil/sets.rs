//! Access lists and the sets of addresses that they name, on the bench.

use super::Bench;
use crate::acl::{List, Prefix};
use crate::{Effects, PortLists, SetRound};
use lasthop_types::PortId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Bench {
    /// Other access lists hold from now on.
    pub(crate) fn load(&mut self, lists: BTreeMap<PortId, PortLists>) {
        self.lists = lists;
        self.renew_lists();
        let mut out = Effects::default();
        self.policy.lists_replaced();
        self.policy.clear_flows(&mut out);
        self.apply(out);
    }

    fn renew_lists(&mut self) {
        // A list that ports share stays one.
        let mut renewed: Vec<[Arc<List>; 2]> = Vec::new();
        for (_, list) in self.lists.values_mut().flatten().flatten() {
            let known = renewed.iter().find(|[old, _]| Arc::ptr_eq(old, list)).map(|[_, new]| new.clone());
            let new = known.unwrap_or_else(|| self.sets.renewed(list));
            renewed.push([std::mem::replace(list, new.clone()), new]);
        }
        for id in self.up.keys() {
            self.policy.set_lists(*id, self.lists.get(id).cloned().unwrap_or_default());
        }
    }

    /// These addresses join a set, and those leave it that are in it. Lists go by it from now on. How many flows went.
    pub(crate) fn change_set(&mut self, set: &str, add: &[Prefix], del: &[Prefix]) -> usize {
        let members: BTreeSet<Prefix> = self.sets.set(set).into_iter().flat_map(|set| set.members()).copied().collect();
        let del: Vec<Prefix> = del.iter().filter(|prefix| members.contains(prefix)).copied().collect();
        let changed = self.sets.change_set(set, add, &del).unwrap_or_else(|e| panic!("{e}"));
        self.renew_lists();
        let (mut round, mut more) = (SetRound::default(), true);
        while more {
            let mut out = Effects::default();
            more = self.policy.addresses_changed(set, &changed, &mut round, 7, &mut out);
            self.apply(out);
        }
        round.removed
    }
}
