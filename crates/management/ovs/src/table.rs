//! The flows that Open vSwitch has installed, as it has: a hash table for each mask, by the words of a key that the mask has bits of.

use lasthop_ovs_abi::netlink::Writer;
use lasthop_ovs_abi::{Act, Key, Refused, Suits, family::flow};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use zerocopy::transmute;

/// Most flows: what Open vSwitch limits itself to (`other_config:flow-limit`).
pub(crate) const MAX_FLOWS: usize = 200_000;
/// Most masks. Each costs a lookup for a packet that the switch does not know.
const MAX_MASKS: usize = 4096;
/// Most bytes of a flow's attributes.
pub(crate) const MAX_ATTRIBUTES: usize = 16 * 1024;

/// A key in words, and how many they are.
const WORDS: usize = size_of::<Key>() / size_of::<u32>();
type Words = [u32; WORDS];

/// Names a flow. Never used twice, and counts up.
pub(crate) type FlowId = u64;

/// What a flow has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub packets: u64,
    pub bytes: u64,
    /// On the clock of [`Datapath`](crate::Datapath); 0: never.
    pub used_ms: u64,
    pub tcp_flags: u8,
}

/// A flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub key: Key,
    pub mask: Key,
    pub acts: Rc<[Act]>,
    /// The attributes as Open vSwitch has sent them, to be told it again.
    pub key_bytes: Vec<u8>,
    pub mask_bytes: Option<Vec<u8>>,
    pub act_bytes: Vec<u8>,
    pub ufid: Option<[u8; 16]>,
    pub carried: Carried,
    /// Numbers of the switch's flows that it is part of.
    pub unified: BTreeSet<u64>,
}

impl Flow {
    /// Reads one from a message's attributes.
    pub fn read(key: &[u8], mask: Option<&[u8]>, acts: &[u8], ufid: Option<[u8; 16]>) -> Result<Self, Refused> {
        let (key_bytes, mask_bytes, act_bytes) = (key.to_vec(), mask.map(Vec::from), acts.to_vec());
        if key.len() + mask.map_or(0, <[u8]>::len) + acts.len() > MAX_ATTRIBUTES {
            return Err(Refused::INVALID);
        }
        let (key, mask) = Key::read(key, mask)?;
        let (carried, unified) = (Carried::default(), BTreeSet::new());
        let mut flow = Self { key, mask, acts: Rc::new([]), key_bytes, mask_bytes, act_bytes, ufid, carried, unified };
        flow.acts = Act::read_for(acts, flow.suits())?.into();
        Ok(flow)
    }

    /// What its actions have to suit.
    pub fn suits(&self) -> Suits {
        Suits { eth_type: self.key.packet.eth_type, ip_proto: self.key.packet.ip_proto }
    }

    /// Its attributes. `omit`: those that are left out, where it has an identifier.
    pub fn write(&self, omit: u32, to: &mut Writer) {
        let omit = if let Some(ufid) = &self.ufid {
            to.attribute(flow::UFID, ufid);
            omit
        } else {
            0
        };
        if omit & flow::OMIT_KEY == 0 {
            to.nest(flow::KEY, |to| to.raw(&self.key_bytes));
        }
        if let Some(mask) = self.mask_bytes.as_ref().filter(|_| omit & flow::OMIT_MASK == 0) {
            to.nest(flow::MASK, |to| to.raw(mask));
        }
        let Carried { packets, bytes, used_ms, tcp_flags } = self.carried;
        if used_ms != 0 {
            to.attribute(flow::USED, &used_ms.to_ne_bytes());
        }
        if packets != 0 {
            to.attribute(flow::STATS, &[packets.to_ne_bytes(), bytes.to_ne_bytes()].concat());
        }
        if tcp_flags != 0 {
            to.attribute(flow::TCP_FLAGS, &[tcp_flags]);
        }
        if omit & flow::OMIT_ACTIONS == 0 {
            to.nest(flow::ACTIONS, |to| to.raw(&self.act_bytes));
        }
    }
}

/// Flows of one mask. Most masks have bits of a few words, and a packet is hashed for each of them: all of its key would be ten times as much.
#[derive(Debug)]
struct Masked {
    mask: Key,
    /// Where the mask has words that are not 0, and what they are.
    words: Vec<(usize, u32)>,
    /// By these words of their keys.
    flows: HashMap<Box<[u32]>, FlowId>,
}

impl Masked {
    fn new(mask: Key) -> Self {
        let all: Words = transmute!(mask);
        let words = all.into_iter().enumerate().filter(|(_, word)| *word != 0).collect();
        Self { mask, words, flows: HashMap::new() }
    }

    /// What of a key the flows are found by, in a place for it.
    fn of<'a>(&self, key: &Words, place: &'a mut Words) -> &'a [u32] {
        let words = self.words.iter().map(|(at, mask)| key.get(*at).copied().unwrap_or(0) & mask);
        place.iter_mut().zip(words).for_each(|(place, word)| *place = word);
        place.get(..self.words.len()).unwrap_or_default()
    }

    fn get(&self, key: &Words, place: &mut Words) -> Option<FlowId> {
        self.flows.get(self.of(key, place)).copied()
    }
}

/// All flows.
#[derive(Debug, Default)]
pub(crate) struct Table {
    flows: BTreeMap<FlowId, Flow>,
    masks: Vec<Masked>,
    by_ufid: HashMap<[u8; 16], FlowId>,
    last: FlowId,
}

impl Table {
    /// The flow that a packet with this key meets.
    pub fn lookup(&self, key: &Key) -> Option<FlowId> {
        let (key, mut place): (Words, _) = (transmute!(*key), [0; WORDS]);
        self.masks.iter().find_map(|masked| masked.get(&key, &mut place))
    }

    /// The flow with exactly this key and mask, or this identifier if it is given one.
    pub fn find(&self, key: Option<&(Key, Key)>, ufid: Option<&[u8; 16]>) -> Option<FlowId> {
        if let Some(ufid) = ufid {
            return self.by_ufid.get(ufid).copied();
        }
        let (key, mask) = key?;
        self.masks.iter().find(|masked| masked.mask == *mask)?.get(&transmute!(*key), &mut [0; WORDS])
    }

    pub fn get(&self, id: FlowId) -> Option<&Flow> {
        self.flows.get(&id)
    }

    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(&id)
    }

    /// Flows from behind this one on.
    pub fn after(&self, id: FlowId) -> impl Iterator<Item = (FlowId, &Flow)> {
        self.flows.range(id + 1..).map(|(id, flow)| (*id, flow))
    }

    /// The newest flow that there ever was.
    pub fn last(&self) -> FlowId {
        self.last
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn masks(&self) -> usize {
        self.masks.len()
    }

    /// Installs a flow that none of those there are overlaps.
    pub fn insert(&mut self, flow: Flow) -> Result<FlowId, Refused> {
        let known = self.masks.iter().position(|masked| masked.mask == flow.mask);
        if self.flows.len() >= MAX_FLOWS || known.is_none() && self.masks.len() >= MAX_MASKS {
            return Err(Refused::FULL);
        }
        if self.lookup(&flow.key).is_some() || flow.ufid.is_some_and(|ufid| self.by_ufid.contains_key(&ufid)) {
            return Err(Refused::EXISTS);
        }
        self.last += 1;
        let at = known.unwrap_or(self.masks.len());
        if known.is_none() {
            self.masks.push(Masked::new(flow.mask));
        }
        if let Some(masked) = self.masks.get_mut(at) {
            let words = masked.of(&transmute!(flow.key), &mut [0; WORDS]).into();
            masked.flows.insert(words, self.last);
        }
        if let Some(ufid) = flow.ufid {
            self.by_ufid.insert(ufid, self.last);
        }
        self.flows.insert(self.last, flow);
        Ok(self.last)
    }

    /// Takes one out.
    pub fn remove(&mut self, id: FlowId) -> Option<Flow> {
        let flow = self.flows.remove(&id)?;
        if let Some(at) = self.masks.iter().position(|masked| masked.mask == flow.mask)
            && let Some(masked) = self.masks.get_mut(at)
        {
            let mut place = [0; WORDS];
            let words = masked.of(&transmute!(flow.key), &mut place);
            masked.flows.remove(words);
            if masked.flows.is_empty() {
                self.masks.swap_remove(at);
            }
        }
        if let Some(ufid) = flow.ufid {
            self.by_ufid.remove(&ufid);
        }
        Some(flow)
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        (self.flows, self.masks, self.by_ufid) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A key or mask with these bits in a few of its words, the first and the last among them.
    fn sparse(words: [u32; 4]) -> Key {
        let mut all: Words = [0; WORDS];
        [0, 7, WORDS / 2, WORDS - 1].into_iter().zip(words).for_each(|(at, word)| all[at] = word);
        transmute!(all)
    }

    proptest! {
        /// A packet meets the flow whose key it has in the mask's bits, and no other.
        #[test]
        fn flows_are_found_by_the_bits_of_their_masks(
            flows in prop::collection::vec((any::<[bool; 4]>(), prop::array::uniform4(0u32..2)), 1..12),
            packets in prop::collection::vec(prop::array::uniform4(0u32..2), 1..12),
            gone in 0usize..12,
        ) {
            let (mut table, mut known) = (Table::default(), Vec::new());
            for (mask, key) in flows {
                let mask = sparse(mask.map(|matters| if matters { u32::MAX } else { 0 }));
                let key = sparse(key).masked(&mask);
                let mut flow = Flow::read(&[], None, &[], None).unwrap();
                (flow.key, flow.mask) = (key, mask);
                let overlapped = known.iter().any(|(_, of, mask)| key.masked(mask) == *of);
                match table.insert(flow) {
                    Ok(id) => {
                        prop_assert!(!overlapped);
                        prop_assert_eq!(table.find(Some(&(key, mask)), None), Some(id));
                        known.push((id, key, mask));
                    }
                    Err(error) => prop_assert_eq!((overlapped, error), (true, Refused::EXISTS)),
                }
            }
            if gone < known.len() {
                prop_assert!(table.remove(known.remove(gone).0).is_some());
            }
            for packet in packets.into_iter().map(sparse) {
                let met: Vec<_> = known.iter().filter(|(_, of, mask)| packet.masked(mask) == *of).map(|of| of.0).collect();
                // A flow of few bits that came after others may be met beside one of them.
                let found = table.lookup(&packet);
                prop_assert!(found.map_or(met.is_empty(), |found| met.contains(&found)), "{found:?} of {met:?}");
            }
        }
    }
}
