//! A packet's connection.
//!
//! A packet of which the switch shows the beginning is only looked at: it may follow one flow of the switch's if it moves its connection no further, and so may
//! all behind it that look the same. Others move it on: by their header, if a look has foreseen what becomes of them, or else they come whole. So opening and closing,
//! fragments, errors and echoes come here, and what is between not.

use super::Walk;
use crate::fragments::Fragments;
use crate::timeouts::Policies;
use lasthop_conntrack::{
    Action, Commit, Connection, CtState, Headers, Nat, ProtoState, Range, TcpState, Tracker, Tuple, Verdict,
};
use lasthop_frame::{Depth, Edit, FlowKey, Part, Set, ethertype, extract, proto};
use lasthop_ovs_abi::{Ct, Side, Translation};
use lasthop_types::PortId;
use std::cell::RefCell;

/// Flags of TCP that open or end a connection.
const EDGES: u16 = 0x07;
/// Those that say whether a packet may be a connection's first.
const OPENING: u16 = 0x3f;
/// States of packets whose connection has its addresses translated.
const TRANSLATED: u16 = (CtState::SRC_NAT.0 | CtState::DST_NAT.0) as u16;

/// The table of connections, for a packet's way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracking<'a> {
    pub tracker: Option<&'a Tracker>,
    /// Fragments that wait for others.
    pub fragments: Option<&'a RefCell<Fragments>>,
    /// Time-out policies.
    pub policies: &'a Policies,
    pub now_ms: u64,
    /// Nothing is to change.
    pub only_looks: bool,
}

/// What flows of the switch's go by: if it is otherwise, they go.
fn shape(of: &Connection) -> (Tuple, Tuple, bool, bool, u32, u128) {
    (of.original, of.reply, of.replied, may_be_carried(of), of.mark, of.label)
}

/// It is to outlive this process: both sides have spoken, and none of them ends it.
pub(crate) fn is_kept(connection: &Connection) -> bool {
    connection.replied && may_be_carried(connection)
}

fn may_be_carried(connection: &Connection) -> bool {
    match connection.state {
        ProtoState::Tcp(state) => connection.replied && state == TcpState::Established,
        ProtoState::Sctp(_) => false,
        ProtoState::Stateless => true,
    }
}

/// What a look says of a packet that moves its connection on is what it will be: its header tells all, and it is neither given an address nor does it replace
/// a connection.
fn is_foreseen(ct: &Ct, key: &FlowKey, before: Option<&Connection>, verdict: &Verdict) -> bool {
    let is_given_address = before.is_none() && ct.nat.as_ref().is_some_and(|nat| nat.side.is_some());
    let has_plain_header = key.ip_frag == 0 && matches!(key.ip_proto, proto::TCP | proto::UDP);
    has_plain_header && verdict.refused.is_none() && !ct.force && !is_given_address
}

fn nat(of: Option<&Translation>) -> Nat {
    let Some(of) = of else { return Nat::None };
    let range = Range { addresses: of.addresses, ports: of.ports, persistent: of.persistent, random: of.random };
    match of.side {
        None => Nat::Existing,
        Some(Side::Source) => Nat::Source(range),
        Some(Side::Destination) => Nat::Destination(range),
    }
}

fn changed<T>(old: T, (value, mask): (T, T)) -> bool
where
    T: std::ops::BitXor<Output = T> + std::ops::BitAnd<Output = T> + Default + PartialEq,
{
    (old ^ value) & mask != T::default()
}

impl<F: Fn(u32) -> Option<PortId>> Walk<'_, F> {
    /// Looks its connection up. False: the packet goes no further.
    pub(super) fn track(&mut self, ct: &Ct) -> bool {
        let Tracking { tracker: Some(tracker), now_ms, only_looks, .. } = self.tracking else {
            self.is_simple = false;
            return false;
        };
        if !only_looks && self.key.packet.ip_frag != 0 && !self.wait_for_all(ct.zone) {
            return false;
        }
        let bytes = self.header.bytes().to_vec();
        let frame_len = self.len();
        let mut key = FlowKey::default();
        extract(&mut key, &bytes, frame_len, Depth::L4);
        let mut view = Headers { bytes: &bytes, frame_len }.view(&key);
        // One that was translated here is still of the same connection.
        let (state, zone) = (self.key.packet.ct_state, self.key.packet.ct_zone);
        if state & TRANSLATED != 0 && zone == ct.zone {
            view.was = tracker.before_translation(&view, zone, now_ms);
        }
        let is_again = view.was.is_some();
        let own = Tuple::new(
            [key.ip_src, key.ip_dst],
            [key.l4_src, key.l4_dst],
            key.ip_proto,
            key.eth_type == ethertype::IPV6,
            ct.zone,
        );
        let own = view.was.unwrap_or(own);
        let before = tracker.get(&own, now_ms);
        let verdict = if only_looks {
            let verdict = tracker.peek(&view, ct.zone, now_ms);
            if !self.let_follow(ct, &key, &own, before.as_ref(), &verdict) {
                if !is_foreseen(ct, &key, before.as_ref(), &verdict) {
                    (self.is_simple, self.comes_whole) = (false, true);
                    return false;
                }
                self.moves = true;
            }
            verdict
        } else {
            let owner = crate::conntrack::owner(self.key.packet.in_port);
            let policy = self.tracking.policies.number(ct.timeout.as_ref());
            let (force, mark, label) = (ct.force, ct.mark, ct.label);
            let commit = Commit { force, mark, label, policy, owner };
            let commit = ct.commit.then_some(commit);
            let verdict = tracker.process(&view, &Action { zone: ct.zone, commit, nat: nat(ct.nat.as_ref()) }, now_ms);
            let after = tracker.get(&own, now_ms);
            if before.as_ref().map(shape) != after.as_ref().map(shape) {
                self.changed.extend(before.iter().chain(&after).flat_map(|of| [of.original, of.reply]));
            }
            verdict
        };
        self.learn(ct, &verdict);
        if verdict.must_drop() {
            return false;
        }
        let to = verdict.rewrite.filter(|_| ct.nat.is_some() && !is_again);
        to.is_none_or(|to| self.translate(&key, &to, verdict.rewrite_inner.as_ref()))
    }

    /// A fragment waits until the others of its packet have come. True: this was the last, and the packet goes on as what all were before.
    fn wait_for_all(&mut self, zone: u16) -> bool {
        let Tracking { fragments: Some(fragments), now_ms, .. } = self.tracking else { return false };
        let frame = [self.header.bytes(), &self.rest.bytes].concat();
        let whole = fragments.borrow_mut().add((self.key.packet.in_port, zone), &frame, now_ms);
        whole.iter().for_each(|whole| self.replace(&whole.frame, Some(whole.longest)));
        whole.is_some()
    }

    /// Notes what a flow of the switch's has to look at that may do the same with all packets that look like this one. False: none may.
    fn let_follow(&mut self, ct: &Ct, key: &FlowKey, own: &Tuple, of: Option<&Connection>, verdict: &Verdict) -> bool {
        let is_tcp = key.ip_proto == proto::TCP;
        if verdict.refused.is_some()
            || key.ip_frag != 0
            || matches!(key.ip_proto, proto::ICMP | proto::ICMPV6 | proto::SCTP)
        {
            return false;
        }
        let flags = match of {
            Some(of) => {
                let stays = !(changed(of.mark, ct.mark) || changed(of.label, ct.label) || ct.force && of.reply == *own);
                // The first answer is heard of, so that it counts as one.
                let is_heard = of.replied || of.reply != *own;
                if !stays || !is_heard || !may_be_carried(of) || is_tcp && key.tcp_flags & EDGES != 0 {
                    return false;
                }
                self.kept.push(of.original);
                EDGES
            }
            None if ct.commit => return false,
            None => OPENING,
        };
        self.matters(&FlowKey {
            eth_type: u16::MAX,
            ip_src: [0xff; 16],
            ip_dst: [0xff; 16],
            ip_proto: 0xff,
            ip_frag: 0xff,
            l4_src: u16::MAX,
            l4_dst: u16::MAX,
            tcp_flags: if is_tcp { flags } else { 0 },
            ..FlowKey::default()
        });
        self.tuples.push(*own);
        true
    }

    fn learn(&mut self, ct: &Ct, verdict: &Verdict) {
        let of = &verdict.original;
        let packet = &mut self.key.packet;
        (packet.ct_state, packet.ct_zone, packet.ct_mark) = (verdict.state.0.into(), ct.zone, verdict.mark);
        self.key.ct_label = verdict.label.to_ne_bytes();
        (self.key.ct_src, self.key.ct_dst, self.key.ct_proto) = (of.src(), of.dst(), of.proto());
        let [first, second] = of.ports();
        // Of ICMP Open vSwitch has type and code there.
        let is_icmp = matches!(of.proto(), proto::ICMP | proto::ICMPV6);
        self.key.ct_ports = if is_icmp { [second >> 8, second & 0xff] } else { [first, second] };
    }

    fn set(&mut self, part: Part, word: usize, value: u32, mask: u32) -> bool {
        self.edit(Edit::Set(Set { part, word: word as u8, value, mask }))
    }

    /// Gives it other addresses and ports, and those to the packet that an error speaks of.
    fn translate(&mut self, key: &FlowKey, to: &Tuple, inner: Option<&Tuple>) -> bool {
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let (part, first, from) = if to.is_v6() { (Part::Ipv6, 2, 0) } else { (Part::Ipv4, 3, 12) };
        let addresses =
            |pair: [[u8; 16]; 2]| pair.map(|address| address.get(from..).unwrap_or_default().to_vec()).concat();
        let (old, new) = (addresses([key.ip_src, key.ip_dst]), addresses([to.src(), to.dst()]));
        for (n, (old, new)) in old.chunks(4).zip(new.chunks(4)).enumerate() {
            if old != new && !self.set(part, first + n, word(new), u32::MAX) {
                return false;
            }
        }
        let [src, dst] = to.ports();
        let is_icmp = matches!(key.ip_proto, proto::ICMP | proto::ICMPV6);
        if let Some(inner) = inner {
            return !is_icmp || self.translate_inner(inner);
        }
        if is_icmp {
            return self.set(Part::Icmp, 1, u32::from(src) << 16, 0xffff_0000);
        }
        let has_ports = matches!(key.ip_proto, proto::TCP | proto::UDP | proto::SCTP);
        if !has_ports || [src, dst] == [key.l4_src, key.l4_dst] {
            return true;
        }
        self.set(Part::Ports, 0, u32::from(src) << 16 | u32::from(dst), u32::MAX)
    }

    /// The packet that an error speaks of; one with options stays as it is, and the error is dropped.
    fn translate_inner(&mut self, to: &Tuple) -> bool {
        let bytes = self.header.bytes().to_vec();
        let headers = Headers { bytes: &bytes, frame_len: bytes.len() + self.payload_len };
        let mut key = FlowKey::default();
        extract(&mut key, &bytes, headers.frame_len, Depth::L4);
        let old = headers.view(&key).transport.get(8..).unwrap_or_default().to_vec();
        let (from, len) = if to.is_v6() { (8, 40) } else { (12, 20) };
        let plain = if to.is_v6() { old.get(6) == Some(&to.proto()) } else { old.first() == Some(&0x45) };
        if !plain || old.len() < len + 8 {
            return false;
        }
        let mut new = old.clone();
        let short = if to.is_v6() { 0 } else { 12 };
        let addresses = [to.src(), to.dst()].map(|address| address.get(short..).unwrap_or_default().to_vec()).concat();
        let ports = to.ports().map(u16::to_be_bytes).concat();
        let is_icmp = matches!(to.proto(), proto::ICMP | proto::ICMPV6);
        // Of ICMP it is the identifier.
        let (at, ports) = if is_icmp { (len + 4, ports.get(..2).unwrap_or_default()) } else { (len, &ports[..]) };
        let has_ports = is_icmp || matches!(to.proto(), proto::TCP | proto::UDP | proto::SCTP);
        let mut put = |at: usize, field: &[u8]| {
            let place = new.get_mut(at..at + field.len());
            place.into_iter().for_each(|place| place.copy_from_slice(field));
        };
        put(from, &addresses);
        if has_ports {
            put(at, ports);
        }
        if !to.is_v6() {
            put(10, &[0, 0]);
            let sum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(new.get(..20).unwrap_or_default()));
            new.get_mut(10..12).into_iter().for_each(|place| place.copy_from_slice(&sum.to_be_bytes()));
        }
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let both: Vec<_> = old.chunks_exact(4).zip(new.chunks_exact(4)).map(|(a, b)| (word(a), word(b))).collect();
        let changed = both.into_iter().enumerate().filter(|(_, (old, new))| old != new);
        let words: Vec<_> = changed.map(|(n, (_, new))| (n + 2, new)).collect();
        words.into_iter().all(|(word, new)| self.set(Part::Icmp, word, new, u32::MAX))
    }
}
