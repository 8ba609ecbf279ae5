//! The learning switch against a switch that only does what it is told, and against the definition of learning: for
//! tests here and elsewhere (feature `testutil`). Panics when they disagree: never for real input.

use crate::acl::{Book, Direction, List, Prefix};
use crate::guard::pretends;
use crate::{Change, Effects, FlowUse, Learning, Limits, Mirrored, Mirrors, PortLists, PortSettings, Resume, Uplinks};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use std::collections::{BTreeMap, BTreeSet};

mod carried;
mod sets;

use carried::{carried_out, hides, names, tags};

/// An address, 52:54:00:00:00:n.
pub fn mac(n: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, n])
}

/// An IPv4 packet from `port`.
pub fn key(port: u32, src: MacAddr, dst: MacAddr) -> FlowKey {
    FlowKey { in_port: port, eth_src: src.0, eth_dst: dst.0, eth_type: 0x0800, ..FlowKey::default() }
}

/// The same in a VLAN.
pub fn tagged(mut key: FlowKey, vid: u16) -> FlowKey {
    (key.vlan_tci, key.vlan_tpid) = (FlowKey::VLAN_PRESENT | vid, 0x8100);
    key
}

/// A switch with a flow table, its ports, and the policy that fills it.
pub(crate) struct Bench {
    pub(crate) policy: Learning,
    pub(crate) limits: Limits,
    pub(crate) now_ms: u64,
    pub(crate) next_id: u64,
    pub(crate) up: BTreeMap<PortId, bool>,
    /// Ports that have gone down since the switch was attached.
    pub(crate) went_down: BTreeSet<PortId>,
    pub(crate) lists: BTreeMap<PortId, PortLists>,
    /// Sets of addresses, and no lists.
    pub(crate) sets: Book,
    pub(crate) uplinks: Uplinks,
    pub(crate) settings: BTreeMap<PortId, PortSettings>,
    /// Ports that are mirrored, where to, and what of them.
    pub(crate) mirrors: Vec<MirrorSpec>,
    /// One of how many packets they copy.
    pub(crate) sample: u32,
    /// Masked key and mask → flow, last use.
    pub(crate) table: Vec<(FlowSpec, u64)>,
    /// Most changes of flows that followed from one event or slice since this was last set to 0.
    pub(crate) most_changes: usize,
    /// So many parts follow at once of what is put right part by part; `None`: all.
    pub(crate) parts: Option<usize>,
    /// Packets that each flow is said to have carried.
    pub(crate) hits: u64,
}

impl Bench {
    pub(crate) fn new(limits: Limits, ports: u32) -> Self {
        let mut bench = Self {
            policy: Learning::new(limits.clone()),
            limits,
            now_ms: 1_000_000,
            next_id: 0,
            up: BTreeMap::new(),
            went_down: BTreeSet::new(),
            lists: BTreeMap::new(),
            sets: Book::default(),
            uplinks: Uplinks::new(),
            settings: BTreeMap::new(),
            mirrors: Vec::new(),
            sample: 1,
            table: Vec::new(),
            most_changes: 0,
            parts: None,
            hits: 0,
        };
        for port in 1..=ports {
            bench.port(port, true);
        }
        bench
    }

    /// The switch does as it is told, and everything is put right that is to follow, or some parts of it.
    pub(crate) fn apply(&mut self, out: Effects) -> Vec<Resume> {
        let resumes = self.carry_out(out);
        let mut parts = 0;
        while self.policy.put_right_ms().is_some() && self.parts.is_none_or(|most| parts < most) {
            parts += 1;
            let mut out = Effects::default();
            self.policy.put_right(self.now_ms, &mut out);
            assert!(self.carry_out(out).is_empty(), "no answer without a miss");
        }
        resumes
    }

    /// The switch does as it is told.
    pub(crate) fn carry_out(&mut self, out: Effects) -> Vec<Resume> {
        self.most_changes = self.most_changes.max(out.changes.len());
        for change in out.changes {
            match change {
                Change::Put(spec) => {
                    assert_eq!(spec.key, spec.key.masked(&spec.mask), "key not masked");
                    match self.table.iter_mut().find(|(f, _)| f.key == spec.key && f.mask == spec.mask) {
                        Some((f, _)) => *f = spec,
                        None => self.table.push((spec, self.now_ms)),
                    }
                }
                Change::Clear => self.table.clear(),
                Change::Del(key, mask) => self.table.retain(|(f, _)| f.key != key || f.mask != mask),
            }
        }
        out.resumes
    }

    pub(crate) fn port(&mut self, id: u32, up: bool) {
        let mut out = Effects::default();
        self.policy.set_lists(PortId(id), self.lists.get(&PortId(id)).cloned().unwrap_or_default());
        let before = self.up.insert(PortId(id), up);
        match (before, up) {
            (Some(true), false) => drop(self.went_down.insert(PortId(id))),
            (_, true) => drop(self.went_down.remove(&PortId(id))),
            _ => {}
        }
        if before.is_none() {
            self.tell_mirrors(&mut out);
        }
        self.policy.port(PortId(id), up, self.now_ms, &mut out);
        self.apply(out);
    }

    pub(crate) fn port_gone(&mut self, id: u32) {
        let (id, mut out) = (PortId(id), Effects::default());
        self.up.remove(&id);
        self.went_down.remove(&id);
        self.settings.remove(&id);
        self.table.retain(|(f, _)| f.key.port() != id && !names(&f.actions, id));
        self.tell_mirrors(&mut out);
        self.policy.port_gone(id, self.now_ms, &mut out);
        self.apply(out);
    }

    /// These ports are uplinks from now on, and carry these VLANs.
    pub(crate) fn set_uplinks(&mut self, uplinks: Uplinks) {
        self.uplinks = uplinks;
        let mut out = Effects::default();
        self.policy.set_uplinks(&self.uplinks, self.now_ms, &mut out);
        self.apply(out);
    }

    /// A port is told to do something else from now on.
    pub(crate) fn set(&mut self, id: u32, settings: PortSettings) {
        let mut out = Effects::default();
        self.settings.insert(PortId(id), settings.clone());
        self.policy.set_settings(PortId(id), settings, self.now_ms, &mut out);
        self.apply(out);
    }

    /// Other ports are mirrored from now on. A destination is mirrored by nobody.
    pub(crate) fn mirror(&mut self, mut mirrors: Vec<MirrorSpec>) {
        let destinations: Vec<_> = mirrors.iter().map(|(_, to, _)| *to).collect();
        mirrors.iter_mut().for_each(|(from, ..)| from.retain(|port| !destinations.contains(port)));
        self.mirrors = mirrors;
        let mut out = Effects::default();
        self.tell_mirrors(&mut out);
        self.apply(out);
    }

    /// Those whose ports are there.
    fn tell_mirrors(&mut self, out: &mut Effects) {
        let (mut mirrors, there) = (Mirrors::default(), |id: &PortId| self.up.contains_key(id));
        for (from, to, which) in self.mirrors.iter().filter(|(_, to, _)| there(&PortId(*to))) {
            let from: Vec<_> = from.iter().map(|id| PortId(*id)).filter(there).collect();
            mirrors.add(&format!("to-{to}"), &from, PortId(*to), *which, self.sample);
        }
        self.policy.set_mirrors(mirrors, self.now_ms, out);
    }

    /// It gets copies only.
    fn is_destination(&self, id: PortId) -> bool {
        self.up.contains_key(&id) && self.mirrors.iter().any(|(_, to, _)| *to == id.0)
    }

    /// Where copies go of what is sent by (or to) a port's guest.
    fn copies(&self, id: PortId, sent: bool) -> BTreeSet<PortId> {
        let wanted = |which| match sent {
            true => which != Mirrored::ToGuest,
            false => which != Mirrored::FromGuest,
        };
        let of_port = self.mirrors.iter().filter(|(from, _, which)| from.contains(&id.0) && wanted(*which));
        of_port
            .map(|(_, to, _)| PortId(*to))
            .filter(|_| self.up.contains_key(&id))
            .filter(|to| self.up.contains_key(to))
            .collect()
    }

    /// The VLAN that a frame belongs to which comes in there: the definition.
    pub(crate) fn vlan_in(&self, port: PortId, key: &FlowKey) -> Option<u16> {
        let (vid, set) = (key.vlan_tci & 0xfff, self.settings_of(port));
        let list = self.list_of(port, &set);
        let (pvid, plain) = (set.vlan.or(set.native).unwrap_or(0), list.is_none() && set.native.is_none());
        if vid != 0 {
            return (set.vlan.is_none() && list.is_none_or(|list| list.contains(&vid))).then_some(vid);
        }
        (list.is_none_or(|list| list.contains(&pvid)) && (plain || !hides(key))).then_some(pvid)
    }

    /// The tags of a frame of this VLAN as it goes out there, outermost first: the definition.
    fn tags_out(&self, port: PortId, vlan: u16, key: &FlowKey) -> Option<Vec<u16>> {
        let set = self.settings_of(port);
        let list = self.list_of(port, &set);
        let (pvid, plain) = (set.vlan.or(set.native).unwrap_or(0), list.is_none() && set.native.is_none());
        let (tags, priority) = (tags(key), key.vlan_tci & 0xe000);
        let inner = tags.get(1..).unwrap_or_default().to_vec();
        let member = list.is_none_or(|list| list.contains(&vlan));
        if !member || vlan == pvid && !plain && hides(key) {
            None
        } else if vlan == 0 || vlan != pvid && key.vlan_tci & 0xfff != 0 {
            Some(tags)
        } else if vlan == pvid {
            Some(inner)
        } else {
            Some([vec![priority | vlan], inner].concat())
        }
    }

    fn settings_of(&self, port: PortId) -> PortSettings {
        let guest = !self.uplinks.contains_key(&port);
        self.settings.get(&port).filter(|_| guest).cloned().unwrap_or_default()
    }

    fn list_of(&self, port: PortId, set: &PortSettings) -> Option<BTreeSet<u16>> {
        let ids = |vlans: &crate::Vlans| (0..4096).filter(|id| vlans.contains(*id)).collect::<BTreeSet<u16>>();
        match (self.uplinks.get(&port), set.vlan, &set.trunk) {
            (Some(vlans), ..) => vlans.as_ref().map(ids),
            (None, Some(vlan), _) => Some([vlan].into()),
            (None, None, None) => set.native.map(|_| (1..4095).collect()),
            (None, None, Some(vlans)) => Some(ids(vlans).into_iter().chain(set.native).collect()),
        }
    }

    /// A frame as lists see it.
    fn inside(&self, key: &FlowKey, vlan: u16) -> FlowKey {
        FlowKey { vlan_tci: key.vlan_tci & !0xfff | vlan, ..*key }
    }

    pub(crate) fn enters(&self, key: &FlowKey) -> bool {
        if self.is_destination(key.port()) {
            return false;
        }
        let Some(vlan) = self.vlan_in(key.port(), key) else { return false };
        let pretends = pretends(&self.settings_of(key.port()), key, &mut FlowMask::default());
        pretends.is_none() && self.permits(key.port(), Direction::FromGuest, &self.inside(key, vlan))
    }

    fn list(&self, port: PortId, direction: Direction) -> Option<&List> {
        // Lists of ports that were never announced hold for nobody.
        self.up.get(&port)?;
        Some(&self.lists.get(&port)?[direction as usize].as_ref()?.1)
    }

    fn permits(&self, port: PortId, direction: Direction, key: &FlowKey) -> bool {
        self.list(port, direction).is_none_or(|list| list.decide(key).permits())
    }

    /// The flows a packet meets.
    pub(crate) fn lookup(&self, key: &FlowKey) -> Vec<&FlowSpec> {
        self.table.iter().map(|(f, _)| f).filter(|f| key.masked(&f.mask) == f.key).collect()
    }

    /// Sends a packet: what happened to it.
    pub(crate) fn packet(&mut self, key: &FlowKey) -> Vec<Action> {
        let now_ms = self.now_ms;
        if let Some((flow, used)) = self.table.iter_mut().find(|(f, _)| key.masked(&f.mask) == f.key) {
            *used = now_ms;
            return flow.actions.clone();
        }
        let mut out = Effects::default();
        self.next_id += 1;
        self.policy.miss(self.next_id, key, now_ms, &mut out);
        let resumes = self.apply(out);
        assert_eq!(resumes.len(), 1, "each miss is answered once");
        assert_eq!(resumes[0].id, self.next_id);
        resumes[0].actions.clone()
    }

    /// Sends a frame from a port: what happened to it, and whether control was asked.
    #[cfg(test)]
    pub(crate) fn frame(&mut self, port: u32, frame: &[u8]) -> (Vec<Action>, bool) {
        use crate::Headers;
        use lasthop_frame::{Depth, SNAPSHOT_LEN, extract};
        let mut key = FlowKey { in_port: port, ..FlowKey::default() };
        let bytes = frame.get(..SNAPSHOT_LEN).unwrap_or(frame);
        extract(&mut key, bytes, frame.len(), Depth::Full);
        let now_ms = self.now_ms;
        if let Some((flow, used)) = self.table.iter_mut().find(|(f, _)| key.masked(&f.mask) == f.key) {
            *used = now_ms;
            return (flow.actions.clone(), false);
        }
        let (mut out, headers) = (Effects::default(), Headers { bytes, frame_len: frame.len() });
        self.next_id += 1;
        self.policy.packet(self.next_id, &key, headers, now_ms, &mut out);
        let resumes = self.apply(out);
        assert_eq!(resumes.len(), 1, "each miss is answered once");
        (resumes[0].actions.clone(), true)
    }

    pub(crate) fn dump(&self) -> Vec<FlowUse> {
        self.table
            .iter()
            .map(|(f, used)| FlowUse { spec: f.clone(), idle_ms: self.now_ms - used, packets: self.hits })
            .collect()
    }

    pub(crate) fn poll(&mut self, elapsed_ms: u64) {
        self.now_ms += elapsed_ms;
        let (asked, mut out) = (self.policy.asked(), Effects::default());
        self.policy.statistics(asked, &self.dump(), self.now_ms, &mut out);
        self.policy.tick(self.now_ms, &mut out);
        self.apply(out);
    }

    /// Control was killed: another process takes over what is in the switch.
    pub(crate) fn restart_control(&mut self) {
        self.policy = Learning::new(self.limits.clone());
        self.set_uplinks(self.uplinks.clone());
        self.settings.clone().into_iter().for_each(|(id, settings)| self.set(id.0, settings));
        self.mirror(self.mirrors.clone());
        self.attach();
    }

    pub(crate) fn restart_switch(&mut self) {
        self.table.clear();
        self.attach();
    }

    pub(crate) fn attach(&mut self) {
        self.policy.attached();
        self.went_down.clear();
        for (id, up) in self.up.clone() {
            self.port(id.0, up);
        }
        let asked = self.policy.asked();
        let dump = self.dump();
        self.policy.reconcile(asked, dump, self.now_ms);
        self.apply(Effects::default());
    }

    pub(crate) fn home(&self, vlan: u16, mac: MacAddr) -> Option<PortId> {
        self.policy.macs(self.now_ms).find(|m| m.mac == mac && m.vlan == vlan).map(|m| m.port)
    }

    /// Where a learning switch with this address table sends a packet, and with what tags: the definition, without any index.
    pub(crate) fn reference(&self, key: &FlowKey) -> BTreeMap<PortId, Vec<u16>> {
        let from = key.port();
        let nowhere = BTreeMap::new;
        if !MacAddr(key.eth_src).is_unicast_source() || MacAddr(key.eth_dst).is_link_local() || !self.enters(key) {
            return nowhere();
        }
        let ruled = |id: &PortId| Direction::ALL.iter().any(|d| self.list(*id, *d).is_some());
        let set = self.settings.values().any(|settings| !settings.is_default())
            || self.up.keys().any(|id| self.is_destination(*id));
        if !self.up.contains_key(&from) && (set || self.up.keys().any(ruled)) {
            return nowhere();
        }
        let Some(vlan) = self.vlan_in(from, key) else { return nowhere() };
        // Which ports flap, and are taken for up, is the policy's to say.
        let flaps = |port: &PortId| self.policy.flooded().any(|id| id == *port);
        let up = |port: &PortId| self.uplinks.contains_key(port) || !self.went_down.contains(port) || flaps(port);
        let outputs: Vec<_> = match self.home(vlan, MacAddr(key.eth_dst)) {
            Some(port) if port == from => return [(from, tags(key))].into(),
            Some(port) if up(&port) => vec![port],
            left => self.up.iter().filter(|(id, up)| **up && **id != from).map(|(id, _)| *id).chain(left).collect(),
        };
        let isolated = |id: &PortId| self.settings_of(*id).isolated;
        let apart = |id: &PortId| match [self.uplinks.contains_key(id), self.uplinks.contains_key(&from)] {
            [true, true] => true,
            [false, false] => isolated(id) || isolated(&from),
            _ => false,
        };
        let permits = |id: &PortId| self.permits(*id, Direction::ToGuest, &self.inside(key, vlan));
        let reached = outputs.into_iter().filter(|id| !apart(id) && permits(id) && !self.is_destination(*id));
        reached.filter_map(|id| Some((id, self.tags_out(id, vlan, key)?))).collect()
    }

    pub(crate) fn limits_hold(&self) {
        let mut per_port = BTreeMap::<PortId, usize>::new();
        for m in self.policy.macs(self.now_ms) {
            *per_port.entry(m.port).or_default() += 1;
        }
        for is_uplink in [false, true] {
            let of_kind = |id: &PortId| self.uplinks.contains_key(id) == is_uplink;
            let counts = per_port.iter().filter(|(id, _)| of_kind(id)).map(|(_, n)| *n);
            let (all, most) = counts.fold((0, 0), |(all, most), n| (all + n, most.max(n)));
            let (total, each) = self.mac_limits(is_uplink);
            assert!(all <= total && most <= each, "{per_port:?}, uplinks {:?}", self.uplinks);
        }
        assert!(per_port.keys().all(|p| self.up.contains_key(p)), "address on a port that is gone");
        let refusals =
            |f: &FlowSpec| matches!(*f.actions, [.., Action::Drop(DropReason::BadSource | DropReason::LinkLocal)]);
        let ordinary = |f: &&(FlowSpec, u64)| !refusals(&f.0);
        assert!(self.table.iter().filter(ordinary).count() <= self.limits.flows);
        for port in self.up.keys() {
            let of_port = self.table.iter().filter(ordinary).filter(|(f, _)| f.key.port() == *port).count();
            assert!(of_port <= self.limits.flows_per_port, "{of_port} flows from {port}");
            assert_eq!(self.policy.port_view(*port).unwrap().flows, of_port, "index and switch agree");
            assert_eq!(self.policy.port_view(*port).unwrap().macs, per_port.get(port).copied().unwrap_or(0));
        }
    }

    fn mac_limits(&self, is_uplink: bool) -> (usize, usize) {
        let of = &self.limits;
        if is_uplink { (of.uplink_macs, of.macs_per_uplink) } else { (of.macs, of.macs_per_port) }
    }

    /// After a tick no port holds more than its share, so that each finds room for its own.
    fn shares_hold(&self) {
        for id in self.up.keys() {
            let kind = self.uplinks.contains_key(id);
            let ports = self.up.keys().filter(|other| self.uplinks.contains_key(other) == kind).count();
            let (total, each) = self.mac_limits(kind);
            let share = each.min(total / ports).max(1);
            let view = self.policy.port_view(*id).unwrap();
            assert_eq!(view.mac_limit, share, "port {id}");
            assert!(view.macs <= share, "port {id} holds {} of {share}", view.macs);
        }
    }

    /// Whether this is what becomes of a packet. A port that goes up and down too often may be flooded to while it is down.
    pub(crate) fn agrees(&self, actions: &[Action], key: &FlowKey) {
        let reference = self.reference(key);
        let (mut done, copied) = carried_out(actions, key);
        let reached = done.clone();
        done.retain(|id, _| reference.contains_key(id) || self.up.get(id) != Some(&false));
        assert_eq!(done, reference, "{key:?}: {actions:?}");
        // A copy is of the packet as it came, or as somebody gets it.
        let sent = self.copies(key.port(), true);
        let delivered = |id: &&PortId| **id != key.port();
        for (to, as_it_is) in &copied {
            let of = |id: &PortId| reached[id] == *as_it_is && self.copies(*id, false).contains(to);
            let right =
                if sent.contains(to) { *as_it_is == tags(key) } else { reached.keys().filter(delivered).any(of) };
            assert!(right, "{key:?}: {actions:?}: no copy like that should go to {to}");
        }
        let wanted = reference.keys().filter(delivered).flat_map(|id| self.copies(*id, false)).chain(sent);
        wanted.for_each(|to| assert!(copied.contains_key(&to), "{key:?}: {actions:?}: no copy goes to {to}"));
    }

    pub(crate) fn refused(&self, port: u32) -> u64 {
        self.policy.port_view(PortId(port)).map_or(0, |v| v.over_limit + v.moves_refused)
    }
}

/// Ports that are mirrored, the port that gets copies, and what of them.
pub type MirrorSpec = (Vec<u32>, u32, Mirrored);

/// What happens on the bench.
#[derive(Clone, Debug)]
pub enum Op {
    /// A packet with this key arrives.
    Packet(FlowKey),
    /// A port comes up or goes down.
    Port(u32, bool),
    /// A port is removed.
    PortGone(u32),
    /// Access lists are loaded, instead of those there were: by port.
    Load(BTreeMap<PortId, PortLists>),
    /// Addresses join a set that lists may name, and those leave it that are in it.
    Members(&'static str, Vec<Prefix>, Vec<Prefix>),
    /// Other ports are uplinks, or they carry other VLANs.
    Uplinks(Uplinks),
    /// A port is told to do something else.
    Set(u32, PortSettings),
    /// Other ports are mirrored.
    Mirror(Vec<MirrorSpec>),
    /// Time passes (ms), then statistics are read and things age.
    Poll(u64),
    /// The switch loses a flow.
    Evict(usize),
    /// Control is killed and started anew.
    RestartControl,
    /// The switch is killed and started anew.
    RestartSwitch,
}

/// Whatever happens: every packet is treated as a learning switch would, flows that overlap agree, and the limits hold.
/// `probes` are asked for after each step without being sent.
pub fn compare(ops: impl IntoIterator<Item = Op>, probes: &[FlowKey], small: bool) {
    let limits = if small {
        Limits {
            macs: 5,
            macs_per_port: 3,
            uplink_macs: 6,
            macs_per_uplink: 4,
            flows: 20,
            flows_per_port: 8,
            masks: 3,
            at_once: 2,
            connections: 16,
            data_plane_caches: false,
        }
    } else {
        Limits::default()
    };
    let mut b = Bench::new(limits, 4);
    let mut sources = BTreeSet::new();
    for op in ops {
        b.now_ms += 7;
        b.most_changes = 0;
        // What a guest can bring about: never more at once than it takes for one packet, a part of what is stale, and what
        // refuses bad sources for ports one by one.
        let of_guests = matches!(op, Op::Packet(_) | Op::Port(..) | Op::Poll(_));
        let mut ticked = false;
        match op {
            Op::Packet(key) => {
                let known = b.up.contains_key(&key.port());
                let refused = b.refused(key.in_port);
                let vlan = b.vlan_in(key.port(), &key).unwrap_or(key.vlan_tci & 0xfff);
                let home = b.home(vlan, MacAddr(key.eth_src));
                let hit = !b.lookup(&key).is_empty();
                let done = b.packet(&key);
                b.agrees(&done, &key);
                let enters = b.enters(&key);
                if !enters {
                    assert_eq!(b.home(vlan, MacAddr(key.eth_src)), home, "what may not enter teaches nothing");
                }
                if known && enters && MacAddr(key.eth_src).is_unicast_source() && !MacAddr(key.eth_dst).is_link_local()
                {
                    sources.insert((vlan, MacAddr(key.eth_src)));
                    let home = b.home(vlan, MacAddr(key.eth_src));
                    assert!(
                        hit || home == Some(key.port()) || b.refused(key.in_port) == refused + 1,
                        "neither learned nor refused"
                    );
                }
            }
            Op::Port(p, up) => b.port(p, up),
            Op::Load(lists) => b.load(lists),
            Op::Members(set, add, del) => drop(b.change_set(set, &add, &del)),
            Op::Uplinks(uplinks) => b.set_uplinks(uplinks),
            Op::Set(port, settings) => b.set(port, settings),
            Op::Mirror(mirrors) => b.mirror(mirrors),
            Op::PortGone(p) => b.port_gone(p),
            Op::Poll(ms) => {
                b.poll(ms);
                b.shares_hold();
                ticked = true;
            }
            Op::Evict(n) => {
                if !b.table.is_empty() {
                    let n = n % b.table.len();
                    b.table.swap_remove(n);
                }
                b.poll(0);
            }
            Op::RestartControl => b.restart_control(),
            Op::RestartSwitch => b.restart_switch(),
        }
        b.limits_hold();
        let bound = b.limits.at_once + 4 + 2 * b.up.len();
        assert!(!of_guests || b.most_changes <= bound, "{} changes at once", b.most_changes);
        assert!(b.policy.mask_count() <= b.limits.masks + 1, "{} masks", b.policy.mask_count());
        for probe in probes {
            for flow in b.lookup(probe) {
                b.agrees(&flow.actions, probe);
            }
        }
        for (flow, _) in &b.table {
            // A source that lives elsewhere may keep a flow only until the next tick.
            let enters = b.enters(&flow.key);
            if ticked && enters && flow.mask.0.eth_dst == [0xff; 6] && flow.mask.0.in_port != 0 {
                let vlan = b.vlan_in(flow.key.port(), &flow.key).unwrap();
                assert_eq!(b.home(vlan, MacAddr(flow.key.eth_src)), Some(flow.key.port()));
            }
        }
        for m in b.policy.macs(b.now_ms) {
            assert!(sources.contains(&(m.vlan, m.mac)), "learned what was never sent");
        }
    }
}
