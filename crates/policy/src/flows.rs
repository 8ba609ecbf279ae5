//! The flows we asked for, indexed by what may make them wrong, so that a change touches only the flows it concerns.

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{DropReason, MacAddr, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// Default limit of flows whose packets come from one port.
pub const FLOWS_PER_PORT_MAX: usize = 4096;
/// Default limit of all flows.
pub const FLOWS_MAX: usize = 65_536;

/// Bits of a TCI that are the VLAN id: 0 both for no tag and for a priority tag, so presence need not be looked at.
pub(crate) const VID: u16 = 0x0fff;

/// An ordinary flow: what its masked key says. The order of the fields is the order of the index: all flows from a
/// port, of those all in a VLAN, of those all from a source, are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub port: PortId,
    pub vlan: u16,
    pub src: MacAddr,
    pub dst: MacAddr,
}

/// A flow that only drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    GroupSource(PortId),
    ZeroSource(PortId),
    LinkLocal,
}

impl Refusal {
    /// Drops, under the reason's own name.
    pub(crate) fn actions(self) -> Vec<Action> {
        vec![Action::Drop(match self {
            Self::GroupSource(_) | Self::ZeroSource(_) => DropReason::BadSource,
            Self::LinkLocal => DropReason::LinkLocal,
        })]
    }
}

/// Either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    Pair(Pair),
    Refusal(Refusal),
}

const ONES: [u8; 6] = [0xff; 6];
const GROUP_BIT: [u8; 6] = [1, 0, 0, 0, 0, 0];
const LINK_LOCAL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
const LINK_LOCAL_MASK: [u8; 6] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xf0];
const NONE: FlowKey = FlowKey {
    in_port: 0,
    recirculation: 0,
    eth_dst: [0; 6],
    eth_src: [0; 6],
    eth_type: 0,
    vlan_tci: 0,
    vlan_tpid: 0,
    inner_vlan_tpid: 0,
    inner_vlan_tci: 0,
    anomalies: 0,
    ip_src: [0; 16],
    ip_dst: [0; 16],
    ip_proto: 0,
    ip_tos: 0,
    ip_ttl: 0,
    ip_frag: 0,
    l4_src: 0,
    l4_dst: 0,
    tcp_flags: 0,
    reserved: 0,
    ipv6_label: 0,
    arp_sha: [0; 6],
    arp_tha: [0; 6],
    ct_zone: 0,
    ct_state: 0,
    nd_target: [0; 16],
    ct_mark: 0,
    tunnel_flags: 0,
    tunnel_tos: 0,
    tunnel_ttl: 0,
    tunnel_id: 0,
    tunnel_src: [0; 16],
    tunnel_dst: [0; 16],
};
const PAIR_MASK: FlowMask =
    FlowMask(FlowKey { in_port: u32::MAX, eth_dst: ONES, eth_src: ONES, vlan_tci: VID, ..NONE });
const GROUP_SOURCE_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, eth_src: GROUP_BIT, ..NONE });
const ZERO_SOURCE_MASK: FlowMask = FlowMask(FlowKey { in_port: u32::MAX, eth_src: ONES, ..NONE });
const LINK_LOCAL_DST_MASK: FlowMask = FlowMask(FlowKey { eth_dst: LINK_LOCAL_MASK, ..NONE });

impl Shape {
    pub fn key_mask(self) -> (FlowKey, FlowMask) {
        match self {
            Self::Pair(p) => {
                (FlowKey { in_port: p.port.0, eth_dst: p.dst.0, eth_src: p.src.0, vlan_tci: p.vlan, ..NONE }, PAIR_MASK)
            }
            Self::Refusal(Refusal::GroupSource(port)) => {
                (FlowKey { in_port: port.0, eth_src: GROUP_BIT, ..NONE }, GROUP_SOURCE_MASK)
            }
            Self::Refusal(Refusal::ZeroSource(port)) => (FlowKey { in_port: port.0, ..NONE }, ZERO_SOURCE_MASK),
            Self::Refusal(Refusal::LinkLocal) => (FlowKey { eth_dst: LINK_LOCAL, ..NONE }, LINK_LOCAL_DST_MASK),
        }
    }

    /// What kind of flow of ours this is; `None` for one that this policy never makes.
    pub fn of(spec: &FlowSpec) -> Option<Self> {
        let k = &spec.key;
        let shape = match spec.mask {
            PAIR_MASK => Self::Pair(Pair { port: k.port(), vlan: k.vlan_tci, src: k.src(), dst: k.dst() }),
            GROUP_SOURCE_MASK => Self::Refusal(Refusal::GroupSource(k.port())),
            ZERO_SOURCE_MASK => Self::Refusal(Refusal::ZeroSource(k.port())),
            LINK_LOCAL_DST_MASK => Self::Refusal(Refusal::LinkLocal),
            _ => return None,
        };
        let ordinary = match shape {
            Self::Pair(p) => p.src.is_unicast_source() && !p.dst.is_link_local(),
            Self::Refusal(_) => true,
        };
        (ordinary && shape.key_mask().0 == spec.key).then_some(shape)
    }
}

/// Where packets of an ordinary flow go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// To every other port that is up.
    Flood,
    /// To one port.
    To(PortId),
    /// Back, which drops it: the destination lives where the packet comes from.
    Hairpin,
}

#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub verdict: Verdict,
    /// Its source lives elsewhere or nowhere as far as we know.
    pub unlearned: bool,
    pub used_ms: u64,
    /// When we last sent it, and after how many requests for statistics.
    pub put_ms: u64,
    pub put_after: u64,
}

#[derive(Debug, Default)]
pub(crate) struct FlowIndex {
    flows: BTreeMap<Pair, Installed>,
    by_dst: BTreeSet<(u16, MacAddr, Pair)>,
    floods: BTreeSet<Pair>,
    unlearned: BTreeSet<Pair>,
    by_use: BTreeSet<(PortId, u64, Pair)>,
    counts: BTreeMap<PortId, usize>,
    /// When each was last used, and after how many requests for statistics it was sent.
    pub refusals: BTreeMap<Refusal, (u64, u64)>,
}

const LOWEST: MacAddr = MacAddr([0; 6]);
const HIGHEST: MacAddr = MacAddr([0xff; 6]);

impl FlowIndex {
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn count(&self, port: PortId) -> usize {
        self.counts.get(&port).copied().unwrap_or(0)
    }

    pub fn get(&self, pair: &Pair) -> Option<&Installed> {
        self.flows.get(pair)
    }

    /// Inserts or replaces.
    pub fn insert(&mut self, pair: Pair, flow: Installed) {
        self.remove(&pair);
        if flow.verdict == Verdict::Flood {
            self.floods.insert(pair);
        }
        if flow.unlearned {
            self.unlearned.insert(pair);
        }
        self.by_dst.insert((pair.vlan, pair.dst, pair));
        self.by_use.insert((pair.port, flow.used_ms, pair));
        *self.counts.entry(pair.port).or_insert(0) += 1;
        self.flows.insert(pair, flow);
    }

    pub fn remove(&mut self, pair: &Pair) -> Option<Installed> {
        let flow = self.flows.remove(pair)?;
        self.floods.remove(pair);
        self.unlearned.remove(pair);
        self.by_dst.remove(&(pair.vlan, pair.dst, *pair));
        self.by_use.remove(&(pair.port, flow.used_ms, *pair));
        if let Some(n) = self.counts.get_mut(&pair.port) {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&pair.port);
            }
        }
        Some(flow)
    }

    /// The flow was used at `used_ms`.
    pub fn used(&mut self, pair: &Pair, used_ms: u64) {
        if let Some(flow) = self.flows.get_mut(pair)
            && flow.used_ms < used_ms
        {
            self.by_use.remove(&(pair.port, flow.used_ms, *pair));
            flow.used_ms = used_ms;
            self.by_use.insert((pair.port, used_ms, *pair));
        }
    }

    pub fn of_source(&self, port: PortId, vlan: u16, src: MacAddr) -> Vec<Pair> {
        let at = |dst| Pair { port, vlan, src, dst };
        self.flows.range(at(LOWEST)..=at(HIGHEST)).map(|(p, _)| *p).collect()
    }

    pub fn of_port(&self, port: PortId) -> Vec<Pair> {
        let (low, high) = (
            Pair { port, vlan: 0, src: LOWEST, dst: LOWEST },
            Pair { port, vlan: u16::MAX, src: HIGHEST, dst: HIGHEST },
        );
        self.flows.range(low..=high).map(|(p, _)| *p).collect()
    }

    pub fn to_destination(&self, vlan: u16, dst: MacAddr) -> Vec<Pair> {
        let lowest = Pair { port: PortId(0), vlan: 0, src: LOWEST, dst: LOWEST };
        self.by_dst.range((vlan, dst, lowest)..).take_while(|(v, d, _)| (*v, *d) == (vlan, dst)).map(|e| e.2).collect()
    }

    pub fn floods(&self) -> Vec<Pair> {
        self.floods.iter().copied().collect()
    }

    pub fn unlearned(&self) -> Vec<Pair> {
        self.unlearned.iter().copied().collect()
    }

    /// The flow from `port` that has not been used for the longest time.
    pub fn oldest_of(&self, port: PortId) -> Option<Pair> {
        let lowest = Pair { port: PortId(0), vlan: 0, src: LOWEST, dst: LOWEST };
        self.by_use.range((port, 0, lowest)..).next().filter(|e| e.0 == port).map(|e| e.2)
    }

    /// The port with most flows.
    pub fn greediest(&self) -> Option<PortId> {
        self.counts.iter().max_by_key(|(_, n)| **n).map(|(p, _)| *p)
    }

    /// Flows not used since `since_ms`.
    pub fn unused_since(&self, since_ms: u64) -> Vec<Pair> {
        self.flows.iter().filter(|(_, f)| f.used_ms <= since_ms).map(|(p, _)| *p).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Pair, &Installed)> {
        self.flows.iter()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
