//! Addresses translated by `snat` and `dnat` of access lists: where they are, what that makes of a packet, and the edits by which the switch does it.
//!
//! A port's lists see what its guest sends and gets. So `snat` is between a sender's list and the rest of the world, and `dnat` between that and a
//! receiver's list; the tracker keeps both for a connection, and answers are translated back by it, whatever lists say by then. An answer to a translated
//! address comes to whatever station the network takes for that address's owner. It goes to who opened the connection ([`Known::home`]).

use super::Learning;
use super::tracking::{Known, Probe, Track, tuple};
use crate::acl::{Direction, List, Target};
use crate::flows::{TUPLE_MASK, add};
use crate::membership::Tag;
use lasthop_classifier::pattern::first_bits;
use lasthop_classifier::{Classifier, Ether, Found, Pattern, Proto, Seen};
use lasthop_conntrack::{Nat, Range, Tuple};
use lasthop_flow::Action;
use lasthop_frame::ethertype::{IPV4, IPV6};
use lasthop_frame::proto::{SCTP, TCP, UDP};
use lasthop_frame::{Edit, FlowKey, FlowMask, Part, Set};
use lasthop_text::MacAddr;
use lasthop_types::{DropReason, PortId};
use std::net::IpAddr;
use std::sync::Arc;

const ALL: u32 = u32::MAX;

/// What becomes of a packet's addresses.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    /// The packet as it is delivered.
    pub delivered: FlowKey,
    /// What makes that of it.
    pub edits: Vec<Action>,
    /// How its connection is translated if it opens one.
    pub nat: Nat,
    /// The translations that say so: number in the list, from 1, and port.
    pub by: Vec<(Direction, PortId, usize)>,
}

impl Passage {
    pub fn unchanged(key: &FlowKey) -> Self {
        Self { delivered: *key, edits: Vec::new(), nat: Nat::None, by: Vec::new() }
    }

    pub fn is_translated(&self) -> bool {
        !self.edits.is_empty() || self.nat != Nat::None
    }
}

/// Where a packet goes, instead of to its destination.
pub(crate) fn home(track: &Track) -> Option<MacAddr> {
    track.known().filter(|known| known.reply && known.delivered.src() != known.original.src())?.home
}

fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn range(target: &Target) -> Range {
    let ports = target.ports.map(|(low, high)| [low, high]);
    Range { addresses: Some(target.addresses.map(bytes)), ports, persistent: true, random: false }
}

/// The key of a packet that has other addresses and ports.
pub(super) fn with(key: &FlowKey, tuple: &Tuple) -> FlowKey {
    let [l4_src, l4_dst] = if has_ports(key) { tuple.ports() } else { [key.l4_src, key.l4_dst] };
    FlowKey { ip_src: tuple.src(), ip_dst: tuple.dst(), l4_src, l4_dst, ..*key }
}

/// There are ports, and they are in this packet.
fn has_ports(key: &FlowKey) -> bool {
    matches!(key.ip_proto, TCP | UDP | SCTP) && key.ip_frag & FlowKey::FRAG_LATER == 0
}

impl Learning {
    /// Whether a packet's destination is an address that sources are translated to. Then it may be an answer, wherever it is sent.
    pub(crate) fn is_outside(&self, key: &FlowKey, mask: &mut FlowMask) -> bool {
        if self.connections.is_none() || self.outside == Classifier::default() {
            return false;
        }
        let mut seen = Seen::of(mask);
        let found = self.outside.first_match(key, &mut seen);
        seen.add_to(mask);
        matches!(found, Found::Pattern(_))
    }

    /// Other lists hold.
    pub(super) fn follow_translations(&mut self) {
        let lists = self.lists.iter().flat_map(|(port, lists)| lists.iter().flatten().map(|(_, list)| (*port, list)));
        let targets: Vec<([IpAddr; 2], PortId)> = lists
            .flat_map(|(port, list)| list.translations().iter().map(move |translation| (port, translation)))
            .filter(|(_, translation)| translation.source)
            .filter_map(|(port, translation)| Some((translation.to?.addresses, port)))
            .collect();
        let classifier = |mut ranges: Vec<[IpAddr; 2]>| {
            ranges.sort();
            ranges.dedup();
            ranges.into_iter().flat_map(prefixes).collect()
        };
        self.shared = classifier(super::shares::shared(&targets));
        self.outside = classifier(targets.into_iter().map(|(addresses, _)| addresses).collect());
    }

    /// What becomes of a packet's addresses that may enter and goes to `outputs`. What a port's `dnat` matches goes to that port alone. Adds to `mask` what it
    /// took to know.
    pub(crate) fn passage(
        &self,
        key: &FlowKey,
        vlan: u16,
        track: &Track,
        probe: &Probe<'_>,
        outputs: &mut Vec<(PortId, Tag)>,
        mask: &mut FlowMask,
    ) -> Result<Passage, DropReason> {
        match track {
            Track::None | Track::Invalid(_) => Ok(Passage::unchanged(key)),
            Track::New(Some(known)) | Track::Established(known) | Track::Related(known) => {
                let Some(to) = known.rewrite() else { return Ok(Passage::unchanged(key)) };
                add(mask, &TUPLE_MASK);
                let mut edits = edits(key, &to, home(track)).ok_or(DropReason::CtLimit)?;
                if matches!(track, Track::Related(_)) {
                    edits.extend(about(key, known, probe).ok_or(DropReason::CtInvalid)?);
                }
                Ok(Passage { delivered: with(key, &to), edits, nat: Nat::None, by: Vec::new() })
            }
            Track::New(None) | Track::Taken | Track::Displaces(_) => {
                let passage = self.new_passage(key, vlan, outputs, mask)?;
                // Its answers would be translated as those of the other connection.
                let taken = *track == Track::Taken && passage.is_translated();
                if taken { Err(DropReason::CtInvalid) } else { Ok(passage) }
            }
        }
    }

    /// The same of a packet that opens a connection.
    fn new_passage(
        &self,
        key: &FlowKey,
        vlan: u16,
        outputs: &mut Vec<(PortId, Tag)>,
        mask: &mut FlowMask,
    ) -> Result<Passage, DropReason> {
        let Some(connections) = &self.connections else { return Ok(Passage::unchanged(key)) };
        let own = tuple(key, vlan);
        let plan = |nat: &Nat| connections.tracker.plan(nat, &own).ok_or(DropReason::CtLimit);
        let mut passage = Passage::unchanged(key);
        let find = |port, direction, key: &FlowKey, mask: &mut FlowMask| {
            let (_, list) = self.scoped_list(port, direction)?;
            let (n, translation) = self.ask_translation(list, &super::inside(key, vlan), mask)?;
            Some((translation.to?, (direction, port, n + 1)))
        };
        let source = find(key.port(), Direction::FromGuest, key, mask);
        let source = source.map(|(target, by)| {
            passage.by.push(by);
            range(&target)
        });
        if let Some(range) = source {
            add(mask, &TUPLE_MASK);
            passage.delivered = with(key, &plan(&Nat::Source(range))?);
        }
        // Most ports share a list: it is tried once.
        let mut tried: Vec<&Arc<List>> = Vec::new();
        let at = |(port, _): &(PortId, Tag)| {
            let (_, list) = self.scoped_list(*port, Direction::ToGuest)?;
            if list.translations().is_empty() || tried.iter().any(|other| Arc::ptr_eq(other, list)) {
                return None;
            }
            tried.push(list);
            find(*port, Direction::ToGuest, &passage.delivered, mask)
        };
        let destination = outputs.iter().find_map(at).map(|(target, by)| {
            passage.by.push(by);
            outputs.retain(|(port, _)| *port == by.1);
            range(&target)
        });
        passage.nat = match (source, destination) {
            (None, None) => return Ok(passage),
            (Some(source), None) => Nat::Source(source),
            (None, Some(destination)) => Nat::Destination(destination),
            (Some(source), Some(destination)) => Nat::Both(source, destination),
        };
        add(mask, &TUPLE_MASK);
        let to = plan(&passage.nat)?;
        passage.delivered = with(key, &to);
        passage.edits = edits(key, &to, None).ok_or(DropReason::CtLimit)?;
        Ok(passage)
    }

    /// Whether lists let a connection open, and translate it, as one of its packets and the flow that carried it show.
    pub(super) fn may_have_opened(&self, known: &Known, key: &FlowKey, vlan: u16, to: u32) -> bool {
        let [sent, delivered] = known.openers(key);
        if !self.lists_let_open(&[sent, delivered], vlan, to) {
            return false;
        }
        let target = |port, direction, key: &FlowKey| {
            let (_, list) = self.scoped_list(PortId(port), direction)?;
            self.ask_translation(list, &super::inside(key, vlan), &mut FlowMask::default())?.1.to
        };
        let fits = |target: Option<Target>, [before, after]: [([u8; 16], u16); 2]| match target {
            None => before == after,
            Some(target) => {
                let range = range(&target);
                let [first, last] = range.addresses.unwrap_or_default();
                (first..=last).contains(&after.0)
                    && range.ports.is_none_or(|[low, high]| !has_ports(&sent) || (low..=high).contains(&after.1))
            }
        };
        let behind_snat = FlowKey { ip_src: delivered.ip_src, l4_src: delivered.l4_src, ..sent };
        fits(
            target(sent.in_port, Direction::FromGuest, &sent),
            [(sent.ip_src, sent.l4_src), (delivered.ip_src, delivered.l4_src)],
        ) && fits(
            target(to, Direction::ToGuest, &behind_snat),
            [(sent.ip_dst, sent.l4_dst), (delivered.ip_dst, delivered.l4_dst)],
        )
    }
}

fn set(part: Part, word: usize, value: u32, mask: u32) -> Action {
    Action::Edit(Edit::Set(Set { part, word: word as u8, value, mask }))
}

/// Those words of `new` that differ from `old`'s, as sets of a part whose word `first` is the first of them.
fn words(part: Part, first: usize, old: &[u8], new: &[u8]) -> impl Iterator<Item = Action> {
    let word = |bytes: &[u8]| bytes.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    let both: Vec<_> = old.chunks_exact(4).map(word).zip(new.chunks_exact(4).map(word)).collect();
    both.into_iter()
        .enumerate()
        .filter(|(_, (old, new))| old != new)
        .map(move |(n, (_, new))| set(part, first + n, new, ALL))
}

/// What gives a packet other addresses and ports, and an Ethernet destination. `None`: no edit does.
fn edits(key: &FlowKey, to: &Tuple, mac: Option<MacAddr>) -> Option<Vec<Action>> {
    let (old, new) = ([key.ip_src, key.ip_dst], [to.src(), to.dst()]);
    let mut edits: Vec<_> = if key.eth_type == IPV6 {
        words(Part::Ipv6, 2, &old.concat(), &new.concat()).collect()
    } else {
        let v4 =
            |addresses: [[u8; 16]; 2]| addresses.map(|address| [address[12], address[13], address[14], address[15]]);
        words(Part::Ipv4, 3, &v4(old).concat(), &v4(new).concat()).collect()
    };
    let [src, dst] = to.ports();
    if has_ports(key) && [src, dst] != [key.l4_src, key.l4_dst] {
        // SCTP's are not set: its checksum goes over all of the packet.
        if key.ip_proto == SCTP {
            return None;
        }
        edits.push(set(Part::Ports, 0, u32::from(src) << 16 | u32::from(dst), ALL));
    }
    if let Some(MacAddr([a, b, c, d, e, f])) = mac.filter(|mac| *mac != MacAddr(key.eth_dst)) {
        edits.push(set(Part::Ethernet, 0, u32::from_be_bytes([a, b, c, d]), ALL));
        edits.push(set(Part::Ethernet, 1, u32::from_be_bytes([e, f, 0, 0]), 0xffff_0000));
    }
    Some(edits)
}

/// What a packet with this tuple becomes by a flow's edits: its tuple and Ethernet destination, if that is changed.
pub(super) fn edited(tuple: &Tuple, actions: &[Action]) -> (Tuple, Option<MacAddr>) {
    let at = if tuple.is_v6() { 0 } else { 12 };
    let (mut addresses, mut ports, mut mac) = ([tuple.src(), tuple.dst()], tuple.ports(), None);
    for action in actions {
        let Action::Edit(Edit::Set(set)) = action else { continue };
        let (word, value) = (usize::from(set.word), set.value.to_be_bytes());
        let n = match set.part {
            Part::Ipv4 => word.wrapping_sub(3),
            _ => word.wrapping_sub(2),
        };
        match set.part {
            Part::Ipv4 | Part::Ipv6 => {
                let each = (16 - at) / 4;
                let place = addresses.get_mut(n / each).and_then(|a| a.get_mut(at + n % each * 4..)?.first_chunk_mut());
                place.into_iter().for_each(|place| *place = value);
            }
            Part::Ports => ports = [(set.value >> 16) as u16, set.value as u16],
            Part::Ethernet => {
                let MacAddr(mac) = mac.get_or_insert(MacAddr([0; 6]));
                mac.iter_mut().skip(4 * word).zip(value).for_each(|(to, byte)| *to = byte);
            }
            _ => {}
        }
    }
    (Tuple::new(addresses, ports, tuple.proto(), tuple.is_v6(), tuple.zone()), mac)
}

/// What gives an ICMP error, whose headers are known, the addresses and ports of the packet that it is about as its sender knows it. `None`: its headers are not all
/// there, or have options.
fn about(key: &FlowKey, known: &Known, probe: &Probe<'_>) -> Option<Vec<Action>> {
    let [_, to] = known.error?;
    let message = probe.headers?.view(key).transport;
    let old = message.get(8..message.len() / 4 * 4)?;
    let mut new = old.to_vec();
    let (l3, v6) = if key.eth_type == IPV6 { (40, true) } else { (20, false) };
    let plain = if v6 { old.get(6) == Some(&to.proto()) } else { old.first() == Some(&0x45) };
    if !plain {
        return None;
    }
    let mut change = 0u32;
    let fields: [&[u8]; 2] = if v6 { [&to.src(), &to.dst()] } else { [&to.src()[12..], &to.dst()[12..]] };
    let from = if v6 { 8 } else { 12 };
    change += put(&mut new, from, fields[0])?;
    change += put(&mut new, from + fields[0].len(), fields[1])?;
    if !v6 {
        follow(&mut new, 10, change);
    }
    if matches!(to.proto(), TCP | UDP | SCTP) {
        let [src, dst] = to.ports().map(u16::to_be_bytes);
        change += put(&mut new, l3, &src)?;
        change += put(&mut new, l3 + 2, &dst)?;
        if to.proto() == UDP && new.get(l3 + 6..l3 + 8).is_some_and(|sum| sum != [0, 0]) {
            follow(&mut new, l3 + 6, change);
        }
    }
    Some(words(Part::Icmp, 2, old, &new).collect())
}

/// Puts a field of an even length there; what that changes in a checksum (RFC 1624).
fn put(bytes: &mut [u8], at: usize, field: &[u8]) -> Option<u32> {
    let place = bytes.get_mut(at..at + field.len())?;
    let halves = |of: &[u8]| of.as_chunks().0.iter().map(|half| u32::from(u16::from_be_bytes(*half))).sum::<u32>();
    place.iter_mut().for_each(|byte| *byte = !*byte);
    let change = halves(field) + halves(place);
    place.copy_from_slice(field);
    Some(change)
}

/// A checksum behind a change.
fn follow(bytes: &mut [u8], at: usize, change: u32) {
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    let mut sum = u32::from(!u16::from_be_bytes([field[0], field[1]])) + change;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    field.copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Patterns of the destinations of a range.
fn prefixes([first, last]: [IpAddr; 2]) -> Vec<Pattern> {
    let (whole, ether) = if first.is_ipv6() { (128, IPV6) } else { (32, IPV4) };
    let (mut at, last) = (u128::from_be_bytes(bytes(first)), u128::from_be_bytes(bytes(last)));
    let mut patterns = Vec::new();
    loop {
        let fits = |bits: &u32| {
            at.trailing_zeros() >= *bits && last - at >= (1u128.checked_shl(*bits).unwrap_or(0)).wrapping_sub(1)
        };
        let bits = (0..=whole).take_while(fits).last().unwrap_or(0);
        patterns.push(Pattern {
            dst: at,
            dst_mask: first_bits(whole - bits, whole),
            ether: Ether::Type(ether),
            proto: Proto::Any,
            later_fragments: true,
            ..Pattern::default()
        });
        match 1u128.checked_shl(bits).and_then(|step| at.checked_add(step)).filter(|next| *next <= last) {
            Some(next) => at = next,
            None => return patterns,
        }
    }
}
