//! The learning switch.

use crate::flows::{FlowIndex, Installed, Pair, Refusal, Shape, VID, Verdict};
use crate::mactable::{AGEING_MS, Learned, MacTable, MacView};
use crate::{FLOWS_MAX, FLOWS_PER_PORT_MAX};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{MacAddr, PortId};
use std::collections::BTreeMap;

/// A flow that is missed again this soon after it was sent is not sent once more: it is on its way. In ms.
const RESEND_MS: u64 = 50;

/// How much may be remembered.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Addresses, all ports together.
    pub macs: usize,
    /// Addresses per port; a port's share `macs / ports` when that is less.
    pub macs_per_port: usize,
    /// Flows, all ports together.
    pub flows: usize,
    /// Flows whose packets come from one port.
    pub flows_per_port: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { macs: 65_536, macs_per_port: 4096, flows: FLOWS_MAX, flows_per_port: FLOWS_PER_PORT_MAX }
    }
}

/// What to do with a waiting packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The number under which the miss came.
    pub id: u64,
    /// Empty drops.
    pub actions: Vec<Action>,
}

/// A change of the switch's flow table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Install or replace.
    Put(FlowSpec),
    /// Remove the flow with exactly this key and mask.
    Del(FlowKey, FlowMask),
}

/// What must be sent to the switch. Send `changes` first, in order, then `resumes`: what a packet has taught must be known
/// before the packet is delivered, or the answer to it goes the old way. (The switch sends packets that wait for a flow on
/// their way before it installs the flow, so none is overtaken.)
#[derive(Debug, Default)]
pub struct Effects {
    /// Answers to misses, in the order the misses came.
    pub resumes: Vec<Resume>,
    /// Flow changes, in the order they must take effect.
    pub changes: Vec<Change>,
}

impl Effects {
    /// Nothing to send.
    pub fn is_empty(&self) -> bool {
        self.resumes.is_empty() && self.changes.is_empty()
    }
}

/// A flow of the switch and when it was last used, from its statistics.
#[derive(Clone, Debug)]
pub struct FlowUse {
    /// The flow.
    pub spec: FlowSpec,
    /// Milliseconds since a packet last met it.
    pub idle_ms: u64,
}

/// A port as policy sees it, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortView {
    /// Addresses learned there.
    pub macs: usize,
    /// Flows whose packets come from there.
    pub flows: usize,
    /// Packets whose source was not learned because the port or the table was full.
    pub over_limit: u64,
    /// Packets whose source is held at another port because it moved too often.
    pub moves_refused: u64,
    /// Addresses that moved to this port from another.
    pub moves: u64,
}

#[derive(Debug, Default)]
struct Port {
    up: bool,
    over_limit: u64,
    moves_refused: u64,
    moves: u64,
}

/// The learning switch. One thread; time never goes back.
#[derive(Debug)]
pub struct Learning {
    limits: Limits,
    ports: BTreeMap<PortId, Port>,
    pub(crate) macs: MacTable,
    flows: FlowIndex,
    epoch: u64,
    asked: u64,
}

impl Default for Learning {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Learning {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        let macs = MacTable::new(limits.macs, limits.macs_per_port);
        Self { limits, ports: BTreeMap::new(), macs, flows: FlowIndex::default(), epoch: 1, asked: 0 }
    }

    /// The switch was (re)connected: nothing is known of its flows until [`Learning::reconcile`], and its ports are
    /// down until said otherwise. What was learned is kept.
    pub fn attached(&mut self) {
        self.flows.clear();
        for port in self.ports.values_mut() {
            port.up = false;
        }
    }

    /// A port exists and is or is not carrying packets.
    pub fn port(&mut self, id: PortId, up: bool, now_ms: u64, out: &mut Effects) {
        self.macs.add_port(id);
        let port = self.ports.entry(id).or_default();
        if std::mem::replace(&mut port.up, up) != up {
            self.refresh_floods(now_ms, out);
        }
    }

    /// A port was removed.
    pub fn port_gone(&mut self, id: PortId, now_ms: u64, out: &mut Effects) {
        let Some(port) = self.ports.remove(&id) else { return };
        for pair in self.flows.of_port(id) {
            self.del_pair(&pair, out);
        }
        for refusal in [Refusal::GroupSource(id), Refusal::ZeroSource(id)] {
            self.del_refusal(refusal, out);
        }
        for (vlan, mac) in self.macs.remove_port(id) {
            self.refresh_destination(vlan, mac, now_ms, out);
        }
        if port.up {
            self.refresh_floods(now_ms, out);
        }
    }

    /// Whether the port was announced.
    pub fn has_port(&self, id: PortId) -> bool {
        self.ports.contains_key(&id)
    }

    /// A packet with this key waits under `id` for an answer.
    pub fn miss(&mut self, id: u64, key: &FlowKey, now_ms: u64, out: &mut Effects) {
        if let Some(refusal) = refusal(key) {
            out.resumes.push(Resume { id, actions: refusal.actions() });
            if self.has_port(key.port()) {
                self.put_refusal(refusal, now_ms, out);
            }
            return;
        }
        let pair = pair(key);
        if !self.has_port(pair.port) {
            // Not announced (yet): serve the packet, remember nothing of it.
            let actions = self.actions(self.verdict(&pair), pair.port);
            out.resumes.push(Resume { id, actions });
            return;
        }
        let learned = self.learn(&pair, now_ms, out);
        let verdict = self.verdict(&pair);
        out.resumes.push(Resume { id, actions: self.actions(verdict, pair.port) });
        if let Some(flow) = self.flows.get(&pair)
            && flow.unlearned != learned
            && now_ms.saturating_sub(flow.put_ms) < RESEND_MS
        {
            self.flows.used(&pair, now_ms);
            return;
        }
        self.make_room(&pair, out);
        self.put_pair(pair, verdict, !learned, now_ms, now_ms, out);
    }

    /// Learns the source; true when it lives where the packet came from.
    fn learn(&mut self, pair: &Pair, now_ms: u64, out: &mut Effects) -> bool {
        let learned = self.macs.learn(pair.vlan, pair.src, pair.port, now_ms);
        let Some(port) = self.ports.get_mut(&pair.port) else { return false };
        match learned {
            Learned::Known => true,
            Learned::New => {
                self.refresh_destination(pair.vlan, pair.src, now_ms, out);
                true
            }
            Learned::Moved { from, to } => {
                if to == pair.port {
                    port.moves += 1;
                } else {
                    port.moves_refused += 1;
                }
                self.forget_source(pair.vlan, pair.src, from, out);
                self.refresh_destination(pair.vlan, pair.src, now_ms, out);
                to == pair.port
            }
            Learned::Held => {
                port.moves_refused += 1;
                false
            }
            Learned::OverLimit => {
                port.over_limit += 1;
                false
            }
        }
    }

    /// The number to remember with a request for the switch's flows, made now; see [`Learning::statistics`].
    pub fn asked(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// All the switch's flows as it answered the request numbered `asked`. Refreshes ages, forgets flows that the
    /// switch has evicted, corrects what differs from what was asked for.
    pub fn statistics(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.compare(asked, flows, now_ms, out);
    }

    /// As [`Learning::statistics`], for the first answer after [`Learning::attached`]: learns from the flows that an
    /// earlier control process left behind, keeps those that are right and removes those that are not.
    pub fn reconcile(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        self.epoch = flows.iter().map(|f| f.spec.epoch).fold(self.epoch, u64::max).saturating_add(1);
        for (pair, seen_ms) in flows.iter().filter_map(|f| {
            let Some(Shape::Pair(pair)) = Shape::of(&f.spec) else { return None };
            (!f.spec.actions.is_empty()).then(|| (pair, now_ms.saturating_sub(f.idle_ms)))
        }) {
            let moved = self.macs.adopt(pair.vlan, pair.src, pair.port, seen_ms);
            if let Some(from) = moved {
                self.forget_source(pair.vlan, pair.src, from, out);
            }
        }
        // Flows made since the attachment did not know of what has just been learned.
        for pair in self.flows.iter().map(|(p, _)| *p).collect::<Vec<_>>() {
            self.refresh(&pair, now_ms, out);
        }
        self.compare(asked, flows, now_ms, out);
    }

    fn compare(&mut self, asked: u64, flows: &[FlowUse], now_ms: u64, out: &mut Effects) {
        let mut seen = std::collections::BTreeSet::new();
        for f in flows {
            let Some(shape) = Shape::of(&f.spec) else {
                out.changes.push(Change::Del(f.spec.key, f.spec.mask));
                continue;
            };
            seen.insert(shape);
            let used_ms = now_ms.saturating_sub(f.idle_ms);
            match shape {
                Shape::Pair(pair) => {
                    self.macs.refresh(pair.vlan, pair.src, pair.port, used_ms);
                    self.compare_pair(pair, f, asked, used_ms, now_ms, out);
                }
                Shape::Refusal(r) => {
                    let of_port = match r {
                        Refusal::GroupSource(p) | Refusal::ZeroSource(p) => self.has_port(p),
                        Refusal::LinkLocal => true,
                    };
                    if !of_port {
                        out.changes.push(Change::Del(f.spec.key, f.spec.mask));
                    } else if f.spec.actions == r.actions() {
                        let entry = self.flows.refusals.entry(r).or_insert((used_ms, 0));
                        entry.0 = entry.0.max(used_ms);
                    } else {
                        self.put_refusal(r, used_ms, out);
                    }
                }
            }
        }
        let gone = |put_after: u64, shape: Shape| put_after < asked && !seen.contains(&shape);
        let evicted: Vec<_> =
            self.flows.iter().filter(|(p, f)| gone(f.put_after, Shape::Pair(**p))).map(|(p, _)| *p).collect();
        for pair in evicted {
            self.flows.remove(&pair);
        }
        self.flows.refusals.retain(|r, (_, put_after)| !gone(*put_after, Shape::Refusal(*r)));
    }

    fn compare_pair(&mut self, pair: Pair, f: &FlowUse, asked: u64, used_ms: u64, now_ms: u64, out: &mut Effects) {
        let verdict = self.verdict(&pair);
        match self.flows.get(&pair) {
            Some(flow) => {
                // What we sent after asking is newer than the answer.
                let answer_is_newer = flow.put_after < asked;
                let unlearned = flow.unlearned;
                self.flows.used(&pair, used_ms);
                if answer_is_newer && f.spec.actions != self.actions(verdict, pair.port) {
                    self.put_pair(pair, verdict, unlearned, used_ms, now_ms, out);
                }
            }
            None if self.lives_at(&pair) => {
                self.make_room(&pair, out);
                if f.spec.actions == self.actions(verdict, pair.port) {
                    let flow = Installed { verdict, unlearned: false, used_ms, put_ms: 0, put_after: 0 };
                    self.flows.insert(pair, flow);
                } else {
                    self.put_pair(pair, verdict, false, used_ms, now_ms, out);
                }
            }
            None => out.changes.push(Change::Del(f.spec.key, f.spec.mask)),
        }
    }

    /// Ageing. Call it after each [`Learning::statistics`], or every few seconds, while [`Learning::is_idle`] is
    /// false.
    pub fn tick(&mut self, now_ms: u64, out: &mut Effects) {
        for (vlan, mac, port) in self.macs.expire(now_ms) {
            self.forget_source(vlan, mac, port, out);
            self.refresh_destination(vlan, mac, now_ms, out);
        }
        // Their sources get a new chance to be learned.
        for pair in self.flows.unlearned() {
            self.del_pair(&pair, out);
        }
        if let Some(since_ms) = now_ms.checked_sub(AGEING_MS) {
            for pair in self.flows.unused_since(since_ms) {
                self.del_pair(&pair, out);
            }
            let unused: Vec<_> =
                self.flows.refusals.iter().filter(|(_, (used, _))| *used <= since_ms).map(|(r, _)| *r).collect();
            for refusal in unused {
                self.del_refusal(refusal, out);
            }
        }
    }

    /// Nothing is remembered that could age: no tick is needed.
    pub fn is_idle(&self) -> bool {
        self.macs.len() == 0 && !self.has_flows()
    }

    /// The switch should have flows, as far as we know.
    pub fn has_flows(&self) -> bool {
        self.flows.len() > 0 || !self.flows.refusals.is_empty()
    }

    /// Goes up with every change that makes installed flows stale.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Learned addresses, by VLAN and address.
    pub fn macs(&self, now_ms: u64) -> impl Iterator<Item = MacView> + '_ {
        self.macs.iter(now_ms)
    }

    /// Number of learned addresses.
    pub fn mac_count(&self) -> usize {
        self.macs.len()
    }

    /// Addresses one port may have learned, with as many ports as there are.
    pub fn mac_limit(&self) -> usize {
        self.macs.port_limit()
    }

    /// Number of flows the switch should have.
    pub fn flow_count(&self) -> usize {
        self.flows.len() + self.flows.refusals.len()
    }

    /// Policy's view of a port.
    pub fn port_view(&self, id: PortId) -> Option<PortView> {
        let port = self.ports.get(&id)?;
        Some(PortView {
            macs: self.macs.count(id),
            flows: self.flows.count(id),
            over_limit: port.over_limit,
            moves_refused: port.moves_refused,
            moves: port.moves,
        })
    }

    pub(crate) fn lives_at(&self, pair: &Pair) -> bool {
        self.macs.get(pair.vlan, pair.src).is_some_and(|e| e.port == pair.port)
    }

    pub(crate) fn verdict(&self, pair: &Pair) -> Verdict {
        match self.macs.get(pair.vlan, pair.dst) {
            Some(e) if e.port == pair.port => Verdict::Hairpin,
            Some(e) => Verdict::To(e.port),
            None => Verdict::Flood,
        }
    }

    pub(crate) fn outputs(&self, verdict: Verdict, from: PortId) -> Vec<PortId> {
        match verdict {
            // The switch counts a packet sent back where it came from as a hairpin.
            Verdict::Hairpin => vec![from],
            Verdict::To(port) => vec![port],
            Verdict::Flood => self.ports.iter().filter(|(id, p)| p.up && **id != from).map(|(id, _)| *id).collect(),
        }
    }

    fn actions(&self, verdict: Verdict, from: PortId) -> Vec<Action> {
        self.outputs(verdict, from).into_iter().map(Action::Output).collect()
    }

    /// Removes the flows of a source that left `port`.
    fn forget_source(&mut self, vlan: u16, mac: MacAddr, port: PortId, out: &mut Effects) {
        for pair in self.flows.of_source(port, vlan, mac) {
            self.del_pair(&pair, out);
        }
    }

    /// The station behind these flows was learned, moved or was forgotten.
    fn refresh_destination(&mut self, vlan: u16, mac: MacAddr, now_ms: u64, out: &mut Effects) {
        let pairs = self.flows.to_destination(vlan, mac);
        if pairs.is_empty() {
            return;
        }
        self.epoch += 1;
        for pair in pairs {
            self.refresh(&pair, now_ms, out);
        }
    }

    /// The set of ports that are up changed.
    fn refresh_floods(&mut self, now_ms: u64, out: &mut Effects) {
        self.epoch += 1;
        for pair in self.flows.floods() {
            if let Some(flow) = self.flows.get(&pair) {
                let (unlearned, used_ms) = (flow.unlearned, flow.used_ms);
                self.put_pair(pair, Verdict::Flood, unlearned, used_ms, now_ms, out);
            }
        }
    }

    /// Replaces the flow if its verdict changed.
    fn refresh(&mut self, pair: &Pair, now_ms: u64, out: &mut Effects) {
        let verdict = self.verdict(pair);
        if let Some(flow) = self.flows.get(pair)
            && flow.verdict != verdict
        {
            let (unlearned, used_ms) = (flow.unlearned, flow.used_ms);
            self.put_pair(*pair, verdict, unlearned, used_ms, now_ms, out);
        }
    }

    /// Makes room for a flow if it is not there yet: of this port's own flows, unless the whole table is full.
    fn make_room(&mut self, pair: &Pair, out: &mut Effects) {
        if self.flows.get(pair).is_some() {
            return;
        }
        let port = pair.port;
        while self.flows.count(port) >= self.limits.flows_per_port.max(1) {
            let Some(oldest) = self.flows.oldest_of(port) else { return };
            self.del_pair(&oldest, out);
        }
        while self.flows.len() >= self.limits.flows.max(1) {
            let Some(oldest) = self.flows.greediest().and_then(|p| self.flows.oldest_of(p)) else { return };
            self.del_pair(&oldest, out);
        }
    }

    fn put_pair(
        &mut self,
        pair: Pair,
        verdict: Verdict,
        unlearned: bool,
        used_ms: u64,
        now_ms: u64,
        out: &mut Effects,
    ) {
        let flow = Installed { verdict, unlearned, used_ms, put_ms: now_ms, put_after: self.asked };
        self.flows.insert(pair, flow);
        let actions = self.actions(verdict, pair.port);
        self.put(Shape::Pair(pair), actions, out);
    }

    fn put_refusal(&mut self, refusal: Refusal, used_ms: u64, out: &mut Effects) {
        self.flows.refusals.insert(refusal, (used_ms, self.asked));
        self.put(Shape::Refusal(refusal), refusal.actions(), out);
    }

    fn put(&self, shape: Shape, actions: Vec<Action>, out: &mut Effects) {
        let (key, mask) = shape.key_mask();
        out.changes.push(Change::Put(FlowSpec { key, mask, actions, epoch: self.epoch }));
    }

    fn del_pair(&mut self, pair: &Pair, out: &mut Effects) {
        if self.flows.remove(pair).is_some() {
            let (key, mask) = Shape::Pair(*pair).key_mask();
            out.changes.push(Change::Del(key, mask));
        }
    }

    fn del_refusal(&mut self, refusal: Refusal, out: &mut Effects) {
        if self.flows.refusals.remove(&refusal).is_some() {
            let (key, mask) = Shape::Refusal(refusal).key_mask();
            out.changes.push(Change::Del(key, mask));
        }
    }
}

/// Why a packet with this key is refused whatever has been learned, if it is.
pub(crate) fn refusal(key: &FlowKey) -> Option<Refusal> {
    if key.src().is_multicast() {
        Some(Refusal::GroupSource(key.port()))
    } else if key.src().is_zero() {
        Some(Refusal::ZeroSource(key.port()))
    } else if key.dst().is_link_local() {
        Some(Refusal::LinkLocal)
    } else {
        None
    }
}

pub(crate) fn pair(key: &FlowKey) -> Pair {
    Pair { port: key.port(), vlan: key.vlan_tci & VID, src: key.src(), dst: key.dst() }
}
