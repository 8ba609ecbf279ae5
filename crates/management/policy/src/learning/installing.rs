//! What the switch is told to put and to take out, and what is remembered of it.

use super::{Change, Decided, Effects, Learning};
use crate::flows::{Id, Installed, InstalledRefusal, Refusal};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;

impl Learning {
    /// Makes room for another flow: of this port's own, unless the whole table is full.
    pub(super) fn make_room(&mut self, port: PortId, out: &mut Effects) {
        while self.flows.count(port) >= self.limits.flows_per_port.max(1) {
            let Some(oldest) = self.flows.oldest_of(port) else { return };
            self.del_flow(oldest, out);
        }
        while self.flows.len() >= self.limits.flows.max(1) {
            let Some(oldest) = self.flows.greediest().and_then(|p| self.flows.oldest_of(p)) else { return };
            self.del_flow(oldest, out);
        }
    }

    #[expect(clippy::too_many_arguments)]
    pub(super) fn put_flow(
        &mut self,
        key: FlowKey,
        mask: FlowMask,
        decided: Decided,
        unlearned: bool,
        used_ms: u64,
        now_ms: u64,
        out: &mut Effects,
    ) -> Id {
        let Decided { verdict, vlan, actions, rule, kind, home, .. } = decided;
        let (connection, hides) = kind.of_flow();
        self.put(key, mask, actions.clone(), out);
        let (actions, put_after) = (actions.into(), self.asked);
        let put_ms = now_ms;
        let rule = rule.map(Box::new);
        let flow = Installed {
            key,
            mask,
            actions,
            verdict,
            vlan,
            unlearned,
            used_ms,
            put_ms,
            put_after,
            seen: 0,
            counted: 0,
            rule,
            connection,
            hides,
            home,
        };
        self.flows.insert(flow)
    }

    pub(super) fn put_refusal(&mut self, refusal: Refusal, used_ms: u64, out: &mut Effects) {
        let put_after = self.asked;
        self.flows.refusals.insert(refusal, InstalledRefusal { used_ms, put_after, seen: 0 });
        let (key, mask) = refusal.key_mask();
        self.put(key, mask, self.refuse(refusal), out);
    }

    pub(super) fn put(&self, key: FlowKey, mask: FlowMask, actions: Vec<Action>, out: &mut Effects) {
        out.changes.push(Change::Put(FlowSpec { key, mask, actions, epoch: self.epoch }));
    }

    pub(super) fn del_flow(&mut self, id: Id, out: &mut Effects) {
        if let Some(flow) = self.flows.remove(id) {
            out.changes.push(Change::Del(flow.key, flow.mask));
        }
    }

    pub(super) fn del_refusal(&mut self, refusal: Refusal, out: &mut Effects) {
        if self.flows.refusals.remove(&refusal).is_some() {
            let (key, mask) = refusal.key_mask();
            out.changes.push(Change::Del(key, mask));
        }
    }
}
