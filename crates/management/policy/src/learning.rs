//! The learning switch.

use crate::acl::{List, Scope};
use crate::flows::{Cause, FlowIndex, Id, Pair, Refusal, Verdict};
use crate::mactable::{Entry, Learned, MacTable, MacView};
use crate::membership::{Membership, Tag};
use crate::snooping::Groups;
use crate::{PortSettings, Vlans};
use ageing::Ageing;
use connections::Connections;
use denied::Denials;
use lasthop_classifier::Classifier;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use reconcile::Reconcile;
use stale::Stale;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

mod ageing;
mod connections;
mod deciding;
mod denied;
mod groups;
mod installing;
mod macs;
mod messages;
mod mirrors;
mod moved;
mod nat;
mod obstacles;
mod published;
mod recall;
mod reconcile;
mod rules;
mod sets;
mod shares;
mod shown;
mod stale;
mod tracking;

pub use connections::{CONNECTIONS, CONNECTIONS_RANGE};
pub use deciding::DeniedBy;
pub(crate) use deciding::{Decided, Refused, inside};
pub use denied::{Denied, Why};
pub use lasthop_conntrack::Headers;
pub use messages::{Change, Effects, FlowUse, Limits, PortView, RefusedSource, Resume};
pub use mirrors::Mirrors;
pub(crate) use mirrors::{CopyTo, copy, dropped};
pub(crate) use nat::{Passage, home};
pub(crate) use obstacles::Obstacle;
pub use published::Published;
pub use recall::Recalls;
pub use reconcile::Reconciled;
pub use sets::SetRound;
pub use shown::{ConnectionFilter, ConnectionStats, ConnectionView};
#[cfg(test)]
pub(crate) use tracking::tuple;
pub(crate) use tracking::{Kind, Probe, Track};

/// A flow that is missed again this soon after it was sent is not sent once more: it is on its way. In ms.
const RESEND_MS: u64 = 50;
/// A port that goes up and down more often than this within [`FLAP_WINDOW_MS`] is taken for up while it is down, until it has
/// been quiet for that long: what is sent to it then is dropped as `port_down`. Otherwise every flood flow of all ports, and every flow to its stations, would
/// have to be put again each time. A VM's start takes four to six changes.
pub const MAX_FLAPS: u32 = 8;
/// How often whoever feeds it should ask the switch which flows are in use while it has any, in ms: a third of the shortest time-out that matters, of datagrams that nobody has answered. The same
/// when there are more than [`MANY_FLOWS`]: the answer is long then.
pub const LOOK_MS: u64 = 10_000;
/// See [`LOOK_MS`].
pub const LOOK_MANY_MS: u64 = 60_000;
/// See [`LOOK_MS`].
pub const MANY_FLOWS: usize = 8192;
/// See [`MAX_FLAPS`], in ms.
pub const FLAP_WINDOW_MS: u64 = 10_000;

#[derive(Debug, Default)]
struct Port {
    up: bool,
    /// It has been, since it is there.
    was_up: bool,
    /// It has gone down since the switch was attached.
    went_down: bool,
    /// Floods reach it, and what is for stations that live there: it is up, or goes up and down too often to be left out each time.
    floods: bool,
    /// How often it went up or down since this moment.
    flaps: u32,
    flaps_since_ms: u64,
    over_limit: u64,
    moves_refused: u64,
    /// The last source that was refused, by VLAN and address, and when.
    refused: Option<(u16, MacAddr, u64)>,
    moves: u64,
}

impl Port {
    /// A packet's source lives elsewhere and stays there.
    fn refuse(&mut self, pair: &Pair, now_ms: u64) {
        self.moves_refused += 1;
        self.refused = Some((pair.vlan, pair.src, now_ms));
    }
}

/// Lists that a port's frames are judged by, by [`Direction`](crate::acl::Direction), and whose they are: what [`Book::of_port`] says.
///
/// [`Book::of_port`]: crate::acl::Book::of_port
pub type PortLists = [Option<(Scope, Arc<List>)>; 2];

/// Ports that are uplinks, and the VLANs that each carries; `None`: every frame, tagged or not.
pub type Uplinks = BTreeMap<PortId, Option<Vlans>>;

/// The learning switch. One thread; time never goes back.
#[derive(Debug)]
pub struct Learning {
    limits: Limits,
    ports: BTreeMap<PortId, Port>,
    lists: BTreeMap<PortId, PortLists>,
    /// Ports to the network, and the VLANs that each carries if not all: nothing goes from one to another.
    uplinks: Uplinks,
    /// Of ports that have some.
    settings: BTreeMap<PortId, PortSettings>,
    /// As they are carried out: without what pulled cables take away.
    mirrors: Mirrors,
    wanted_mirrors: Mirrors,
    /// Some port gets only the multicasts that it wants; and what is known of that.
    snoops: bool,
    groups: Groups,
    /// How ports take part in VLANs that are not in all alike.
    members: BTreeMap<PortId, Membership>,
    pub(crate) macs: MacTable,
    pub(crate) flows: FlowIndex,
    stale: Stale,
    ageing: Ageing,
    /// Flows that an earlier control process left behind, and what came of them.
    reconcile: Option<Reconcile>,
    reconciled: Option<Reconciled>,
    denials: Denials,
    /// There are some as soon as a list asks about connections.
    connections: Option<Connections>,
    /// Destinations that are translated sources of some port.
    outside: Classifier,
    /// Those of several ports.
    shared: Classifier,
    /// Rules of access lists that were tried so far.
    rules_compared: Cell<u64>,
    /// What came of misses, where the data plane holds a cache.
    recalls: Recalls,
    epoch: u64,
    asked: u64,
    /// Answers to questions up to this one tell of flows that have been removed since.
    cleared: u64,
}

impl Default for Learning {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Learning {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        let macs = MacTable::new((limits.macs, limits.macs_per_port), (limits.uplink_macs, limits.macs_per_uplink));
        Self {
            limits,
            ports: BTreeMap::new(),
            lists: BTreeMap::new(),
            uplinks: Uplinks::new(),
            settings: BTreeMap::new(),
            mirrors: Mirrors::default(),
            wanted_mirrors: Mirrors::default(),
            snoops: false,
            groups: Groups::default(),
            members: BTreeMap::new(),
            macs,
            flows: FlowIndex::default(),
            stale: Stale::default(),
            ageing: Ageing::default(),
            reconcile: None,
            reconciled: None,
            denials: Denials::default(),
            connections: None,
            outside: Classifier::default(),
            shared: Classifier::default(),
            rules_compared: Cell::new(0),
            recalls: Recalls::default(),
            epoch: 1,
            asked: 0,
            cleared: 0,
        }
    }

    /// Has all flows removed: they were computed under rules that do not hold any more. What was learned is kept. Packets
    /// meet no flow until they are judged anew.
    pub fn clear_flows(&mut self, out: &mut Effects) {
        self.flows.clear();
        self.stale.clear();
        self.drop_tracking();
        if let Some(connections) = &mut self.connections {
            connections.lists_changed();
        }
        self.epoch += 1;
        self.cleared = self.asked;
        out.changes.push(Change::Clear);
    }

    /// The switch was (re)connected: nothing is known of its flows until [`Learning::reconcile`], and its ports are
    /// down until said otherwise. What was learned is kept.
    pub fn attached(&mut self) {
        self.flows.clear();
        self.stale.clear();
        // Its counters begin anew, or its flows are counted from the beginning once more.
        self.denials.forget_all();
        (self.reconcile, self.reconciled) = (None, None);
        for port in self.ports.values_mut() {
            (port.up, port.went_down, port.floods, port.flaps) = (false, false, false, 0);
        }
    }

    /// A port exists and is or is not carrying packets.
    pub fn port(&mut self, id: PortId, up: bool, now_ms: u64, out: &mut Effects) {
        self.macs.add_port(id, self.uplinks.contains_key(&id));
        let port = self.ports.entry(id).or_default();
        port.was_up |= up;
        if std::mem::replace(&mut port.up, up) == up {
            return;
        }
        port.went_down = !up;
        if now_ms.saturating_sub(port.flaps_since_ms) >= FLAP_WINDOW_MS {
            (port.flaps, port.flaps_since_ms) = (0, now_ms);
        }
        port.flaps = port.flaps.saturating_add(1);
        let floods = up || port.floods && port.flaps > MAX_FLAPS;
        if std::mem::replace(&mut port.floods, floods) != floods {
            self.refresh_floods(now_ms, out);
            self.look_for_stations_of(id, now_ms, out);
        }
    }

    /// A port was removed.
    pub fn port_gone(&mut self, id: PortId, now_ms: u64, out: &mut Effects) {
        self.lists.remove(&id);
        self.set_static_addresses(id, &PortSettings::default(), now_ms, out);
        self.settings.remove(&id);
        let wanted = self.groups.port_gone(id);
        self.follow_snooping();
        self.follow_members(id);
        let Some(port) = self.ports.remove(&id) else { return };
        self.denials.forget(id);
        if let Some(connections) = &mut self.connections {
            connections.port_gone(id, now_ms);
        }
        // The switch has removed its flows.
        self.redo(Cause::Gone, &[id], now_ms, out);
        for refusal in [Refusal::GroupSource(id), Refusal::ZeroSource(id), Refusal::LinkLocal(Some(id))] {
            self.del_refusal(refusal, out);
        }
        self.forget_addresses_of(id, now_ms, out);
        if port.floods {
            self.refresh_floods(now_ms, out);
        }
        self.follow_groups(wanted, now_ms, out);
    }

    /// Whether the port was announced.
    pub fn has_port(&self, id: PortId) -> bool {
        self.ports.contains_key(&id)
    }

    /// A packet of which nothing but the key is known waits under `id` for an answer. To lists that ask about connections it is none that they could know.
    pub fn miss(&mut self, id: u64, key: &FlowKey, now_ms: u64, out: &mut Effects) {
        self.packet(id, key, Headers::default(), now_ms, out);
    }

    /// A packet with this key and these headers waits under `id` for an answer.
    pub fn packet(&mut self, id: u64, key: &FlowKey, headers: Headers<'_>, now_ms: u64, out: &mut Effects) {
        if let Some(refusal) = refusal(key) {
            let refusal = self.placed(refusal, key);
            self.count_refused(refusal);
            out.resumes.push(Resume { id, actions: self.refuse(refusal) });
            if self.has_port(key.port()) {
                self.put_refusal(refusal, now_ms, out);
            }
            return;
        }
        let port = key.port();
        if !self.has_port(port) {
            // Not announced (yet): serve the packet, remember nothing of it. Unless there are rules that we might break.
            let free = self.lists.is_empty() && self.settings.is_empty() && self.mirrors.is_empty();
            let actions = if free { self.decide_anew(key, true, &Probe::PEEK).actions } else { Vec::new() };
            out.resumes.push(Resume { id, actions });
            return;
        }
        if self.recall(id, key, now_ms, out) {
            return;
        }
        // What may not even enter teaches nothing.
        let probe = Probe { headers: Some(headers), now_ms, peek: false };
        let vlan = self.may_enter(key, &probe);
        if let Some(vlan) = vlan {
            self.overhear(key, vlan, headers, now_ms, out);
        }
        let learned = vlan.is_none_or(|vlan| self.learn(&Pair::of(key, vlan), now_ms, out));
        let mut decided = self.decide_anew(key, vlan.is_some(), &probe);
        self.follow_connection(key, headers, &mut decided, now_ms, out);
        let Decided { mask, verdict, vlan, actions, rule, kind, track, home, nat } = decided;
        self.saw_denied(key, &actions, (rule.as_ref(), kind == Kind::Never), now_ms);
        out.resumes.push(Resume { id, actions: actions.clone() });
        if kind == Kind::Never {
            return;
        }
        let mask = self.flows.settle(&mask, self.limits.masks);
        let key = key.masked(&mask);
        let known = self.flows.find(&key, &mask);
        if let Some(id) = known
            && let Some(flow) = self.flows.get(id)
            && flow.unlearned != learned
            && *flow.actions == *actions
            && now_ms.saturating_sub(flow.put_ms) < RESEND_MS
        {
            self.flows.used(id, now_ms);
            return;
        }
        if known.is_none() {
            self.make_room(port, out);
        }
        let decided = Decided { mask, verdict, vlan, actions, rule, kind, track, home, nat };
        self.put_flow(key, mask, decided, !learned, now_ms, now_ms, out);
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
                    port.refuse(pair, now_ms);
                }
                self.forget_source(pair.vlan, pair.src, from, now_ms, out);
                self.refresh_destination(pair.vlan, pair.src, now_ms, out);
                to == pair.port
            }
            Learned::Held | Learned::Static(_) => {
                port.refuse(pair, now_ms);
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

    /// Nothing is remembered that could age: no tick is needed.
    pub fn is_idle(&self) -> bool {
        self.macs.learned() == 0 && self.groups.is_empty() && !self.has_flows() && self.connection_count() == 0
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

    /// How many different masks they have, those that refuse what no station may send left out.
    pub fn mask_count(&self) -> usize {
        self.flows.masks()
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
            mac_limit: self.macs.port_limit(id),
            flows: self.flows.count(id),
            over_limit: port.over_limit,
            moves_refused: port.moves_refused,
            refused: port.refused.map(|(vlan, mac, at_ms)| {
                let lives_at = self.macs.get(vlan, mac).map(|entry| entry.port);
                RefusedSource { vlan, mac, lives_at, at_ms }
            }),
            moves: port.moves,
        })
    }

    /// Ports that floods reach.
    pub(crate) fn flooded(&self) -> impl Iterator<Item = PortId> + '_ {
        self.ports.iter().filter(|(_, port)| port.floods).map(|(id, _)| *id)
    }

    pub(crate) fn lives_at(&self, pair: &Pair) -> bool {
        self.macs.get(pair.vlan, pair.src).is_some_and(|e| e.port == pair.port)
    }

    pub(crate) fn verdict(&self, pair: &Pair) -> Verdict {
        match self.macs.get(pair.vlan, pair.dst) {
            Some(e) if e.port == pair.port => Verdict::Hairpin,
            Some(e) if self.has_left(e) => Verdict::Sought(e.port),
            Some(e) => Verdict::To(e.port),
            None => Verdict::Flood,
        }
    }

    /// The station may be elsewhere and not have spoken there yet: its port, which is a guest's, has gone down. A VM that moves is up at its new port before
    /// it says anything. The address is not forgotten: a front-end that connects again takes up where it was. Nor has anybody left whose port is not up
    /// yet because the switch is new: its packets would have to wait for us once more when it is.
    fn has_left(&self, of: &Entry) -> bool {
        let is_down = || self.ports.get(&of.port).is_some_and(|port| port.went_down && !port.floods);
        !of.is_static && !self.uplinks.contains_key(&of.port) && is_down()
    }

    /// Where learning would send it, which belongs to this VLAN, and with what tag. Adds to `mask` what the ports there looked at.
    pub(crate) fn outputs(
        &self,
        verdict: Verdict,
        vlan: u16,
        key: &FlowKey,
        mask: &mut FlowMask,
    ) -> Vec<(PortId, Tag)> {
        let from = key.port();
        let may = |to: &PortId| *to != from && self.apart(from, *to).is_none();
        let floods = verdict.floods();
        let mut leaves = |to: PortId| {
            let wanted = !floods || self.wants(to, vlan, key, mask);
            let tag = self.member(to).leaves(vlan, key, mask)?;
            wanted.then_some((to, tag))
        };
        match verdict {
            // The switch counts a packet sent back where it came from as a hairpin.
            Verdict::Hairpin => vec![(from, Tag::Kept)],
            Verdict::To(port) => Some(port).filter(may).and_then(leaves).into_iter().collect(),
            Verdict::Flood => self.flooded().filter(may).filter_map(&mut leaves).collect(),
            Verdict::Sought(left) => self.flooded().chain([left]).filter(may).filter_map(&mut leaves).collect(),
        }
    }

    /// Removes the flows of a source that left `port`.
    fn forget_source(&mut self, vlan: u16, mac: MacAddr, port: PortId, now_ms: u64, out: &mut Effects) {
        self.redo(Cause::From(vlan, mac), &[port], now_ms, out);
    }

    /// The station behind these flows was learned, moved or was forgotten.
    fn refresh_destination(&mut self, vlan: u16, mac: MacAddr, now_ms: u64, out: &mut Effects) {
        self.redo_all(Cause::To(vlan, mac), now_ms, out);
    }

    /// The set of ports that floods reach changed.
    fn refresh_floods(&mut self, now_ms: u64, out: &mut Effects) {
        self.redo_all(Cause::Floods, now_ms, out);
    }

    /// Replaces the flow if its verdict changed.
    fn refresh(&mut self, id: Id, now_ms: u64, out: &mut Effects) {
        if let Some(flow) = self.flows.get(id)
            && let Some(pair) = flow.pair()
            && flow.verdict != Some(self.verdict(&pair))
        {
            self.decide_again(id, now_ms, out);
        }
    }

    /// Replaces the flow by what is right now, if it is not, or removes it if that takes a closer look at its packets.
    fn decide_again(&mut self, id: Id, now_ms: u64, out: &mut Effects) {
        let Some(flow) = self.flows.get(id) else { return };
        if !self.has_port(flow.port()) {
            return drop(self.flows.remove(id));
        }
        let (key, mask, unlearned, used_ms) = (flow.key, flow.mask, flow.unlearned, flow.used_ms);
        match self.decide_flow(&key, &mask) {
            Some(decided) if decided.verdict == flow.verdict && *decided.actions == *flow.actions => {}
            Some(decided) => {
                self.put_flow(key, mask, decided, unlearned, used_ms, now_ms, out);
            }
            None => self.del_flow(id, out),
        }
    }
}

/// Why a packet with this key is refused whatever has been learned, if it is.
pub(crate) fn refusal(key: &FlowKey) -> Option<Refusal> {
    if MacAddr(key.eth_src).is_multicast() {
        Some(Refusal::GroupSource(key.port()))
    } else if MacAddr(key.eth_src).is_zero() {
        Some(Refusal::ZeroSource(key.port()))
    } else if MacAddr(key.eth_dst).is_link_local() {
        Some(Refusal::LinkLocal(None))
    } else {
        None
    }
}
