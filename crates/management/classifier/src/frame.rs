//! A frame as numbers, whether it meets a pattern, and what shows that it does or does not.

use crate::addresses::{Addresses, span};
use crate::pattern::{Ether, Pattern, Proto, apart, first_bits, in_ranges, interval, mac_bits, within};
use crate::seen::{IPV4_STEPS, IPV6_STEPS, PORT_COST, Seen, VID, port_step, round_up};
use crate::{IPV4, IPV6, SCTP, TCP, UDP};
use lasthop_frame::FlowKey;

/// A frame as numbers.
pub(crate) struct Frame {
    src: u128,
    dst: u128,
    src_mac: u64,
    dst_mac: u64,
    sport: u16,
    dport: u16,
    vlan: u16,
    eth_type: u16,
    proto: u8,
    later: bool,
}

/// In what a frame is not as a pattern asks: yes or no, or the bits in which it differs.
struct Differs {
    ether: bool,
    proto: bool,
    vlan: bool,
    sport: bool,
    dport: bool,
    src: u128,
    dst: u128,
    src_in: bool,
    dst_in: bool,
    src_mac: u64,
    dst_mac: u64,
}

/// What shows that a pattern does not match.
enum Proof {
    Ether,
    Vlan,
    Proto,
    SrcMac(u64),
    DstMac(u64),
    Src(u128),
    Dst(u128),
    Sport(u16),
    Dport(u16),
}

impl Frame {
    pub(crate) fn new(key: &FlowKey) -> Self {
        Self {
            src: u128::from_be_bytes(key.ip_src),
            dst: u128::from_be_bytes(key.ip_dst),
            src_mac: mac_bits(key.eth_src),
            dst_mac: mac_bits(key.eth_dst),
            sport: key.l4_src,
            dport: key.l4_dst,
            vlan: key.vlan_tci & VID,
            eth_type: key.eth_type,
            proto: key.ip_proto,
            later: key.ip_frag & FlowKey::FRAG_LATER != 0,
        }
    }

    fn is_ip(&self) -> bool {
        matches!(self.eth_type, IPV4 | IPV6)
    }

    /// The first bits of an address of this frame's IP version.
    fn address_bits(&self, len: u32) -> u128 {
        if self.eth_type == IPV6 {
            first_bits(round_up(len, &IPV6_STEPS), 128)
        } else {
            first_bits(round_up(len, &IPV4_STEPS), 32)
        }
    }

    /// Beginning of an address up to the first bit set in `difference`, which is not 0.
    fn up_to(&self, difference: u128) -> u128 {
        // ARP's addresses are IPv4's; a difference above 32 bits is between versions, which the EtherType shows first.
        let ahead = if self.eth_type == IPV6 { 0 } else { 96 };
        self.address_bits((difference.leading_zeros() + 1).saturating_sub(ahead))
    }

    /// An address's first bits that show whether all addresses with them are among those or none is; `have` is seen already.
    fn shows(&self, address: u128, have: u128, among: &Addresses) -> u128 {
        let (steps, width) = if self.eth_type == IPV6 { (&IPV6_STEPS, 128) } else { (&IPV4_STEPS, 32) };
        let masks = [have].into_iter().chain(steps.iter().map(|len| have | first_bits(*len, width)));
        let is_shown = |mask: &u128| {
            let span = span(self.eth_type, address, *mask);
            !among.touches(self.eth_type, span) || among.covers(self.eth_type, span)
        };
        // The longest step is one address, which is among them or not.
        masks.into_iter().find(is_shown).unwrap_or(u128::MAX)
    }

    fn is_in(&self, address: u128, among: Option<&Addresses>) -> bool {
        among.is_none_or(|among| among.covers(self.eth_type, span(self.eth_type, address, u128::MAX)))
    }

    /// Whether the frame matches; adds to `seen` what shows it.
    #[inline]
    pub(crate) fn meets(&self, t: &Pattern, seen: &mut Seen) -> bool {
        let src = (self.src ^ t.src) & t.src_mask;
        let dst = (self.dst ^ t.dst) & t.dst_mask;
        if (src & seen.src) | (dst & seen.dst) != 0 {
            return false;
        }
        self.looks_closer(t, seen, src, dst)
    }

    fn looks_closer(&self, t: &Pattern, seen: &mut Seen, src: u128, dst: u128) -> bool {
        let ether = match t.ether {
            Ether::Any => true,
            Ether::Ip => self.is_ip(),
            Ether::Type(wanted) => self.eth_type == wanted,
        };
        let proto = match t.proto {
            Proto::Any => true,
            Proto::One(wanted) => self.proto == wanted,
            Proto::Ported => matches!(self.proto, TCP | UDP | SCTP),
        };
        let vlan = t.vlan.is_none_or(|wanted| self.vlan == wanted);
        let (src_mac, dst_mac) = if t.src_mac_mask | t.dst_mac_mask != 0 {
            ((self.src_mac ^ t.src_mac) & t.src_mac_mask, (self.dst_mac ^ t.dst_mac) & t.dst_mac_mask)
        } else {
            (0, 0)
        };
        let later = self.later && t.transport;
        if later && !t.later_fragments {
            return false;
        }
        let (sport, dport) = (later || in_ranges(self.sport, &t.sport), later || in_ranges(self.dport, &t.dport));
        let (src_in, dst_in) = (self.is_in(self.src, t.src_in.as_deref()), self.is_in(self.dst, t.dst_in.as_deref()));

        let addresses = src | dst == 0 && src_mac | dst_mac == 0 && src_in && dst_in;
        if ether && proto && vlan && sport && dport && addresses {
            self.note_match(t, seen, later);
            return true;
        }
        let shown = !ether && seen.eth_type
            || !proto && seen.proto
            || !vlan && seen.vlan
            || !src_in && t.src_in.as_deref().is_some_and(|set| self.shows(self.src, seen.src, set) == seen.src)
            || !dst_in && t.dst_in.as_deref().is_some_and(|set| self.shows(self.dst, seen.dst, set) == seen.dst)
            || (src_mac & seen.src_mac) | (dst_mac & seen.dst_mac) != 0
            || !dport && apart(&t.dport, interval(self.dport, seen.dport))
            || !sport && apart(&t.sport, interval(self.sport, seen.sport));
        if !shown {
            let differs = Differs {
                ether: !ether,
                proto: !proto,
                vlan: !vlan,
                sport: !sport,
                dport: !dport,
                src,
                dst,
                src_in: !src_in,
                dst_in: !dst_in,
                src_mac,
                dst_mac,
            };
            self.show(t, seen, &differs);
        }
        false
    }

    /// Has the fewest bits looked at that show that a pattern does not match.
    fn show(&self, t: &Pattern, seen: &mut Seen, differs: &Differs) {
        let &Differs { ether, proto, vlan, sport, dport, src, dst, src_in, dst_in, src_mac, dst_mac } = differs;
        let mut best = (u32::MAX, Proof::Ether);
        let mut offer = |holds: bool, cost: u32, proof: Proof| {
            if holds && cost < best.0 {
                best = (cost, proof);
            }
        };
        // Few values each: what they add to the number of masks and flows is small.
        offer(ether, 0, Proof::Ether);
        offer(vlan, 1, Proof::Vlan);
        offer(proto, 2, Proof::Proto);
        for (difference, have, whose) in
            [(src, seen.src, Proof::Src as fn(u128) -> Proof), (dst, seen.dst, Proof::Dst as fn(u128) -> Proof)]
        {
            if difference != 0 {
                let bits = self.up_to(difference) | have;
                offer(true, 3 + (bits & !have).count_ones(), whose(bits));
            }
        }
        for (differs, address, have, among, whose) in [
            (src_in, self.src, seen.src, &t.src_in, Proof::Src as fn(u128) -> Proof),
            (dst_in, self.dst, seen.dst, &t.dst_in, Proof::Dst as fn(u128) -> Proof),
        ] {
            if differs && let Some(among) = among {
                let bits = self.shows(address, have, among);
                offer(true, 3 + (bits & !have).count_ones(), whose(bits));
            }
        }
        for (difference, have, whose) in [
            (src_mac, seen.src_mac, Proof::SrcMac as fn(u64) -> Proof),
            (dst_mac, seen.dst_mac, Proof::DstMac as fn(u64) -> Proof),
        ] {
            if difference != 0 {
                let bits = mac_up_to(difference) | have;
                offer(true, 3 + (bits & !have).count_ones(), whose(bits));
            }
        }
        for (differs, port, have, ranges, whose) in [
            (dport, self.dport, seen.dport, &t.dport, Proof::Dport as fn(u16) -> Proof),
            (sport, self.sport, seen.sport, &t.sport, Proof::Sport as fn(u16) -> Proof),
        ] {
            if differs {
                let bits = port_step(port, have, |i| apart(ranges, i));
                offer(true, 3 + PORT_COST * (bits & !have).count_ones(), whose(bits));
            }
        }
        match best.1 {
            Proof::Ether => seen.eth_type = true,
            Proof::Vlan => seen.vlan = true,
            Proof::Proto => seen.proto = true,
            Proof::SrcMac(bits) => seen.src_mac = bits,
            Proof::DstMac(bits) => seen.dst_mac = bits,
            Proof::Src(bits) => seen.src = bits,
            Proof::Dst(bits) => seen.dst = bits,
            Proof::Sport(bits) => seen.sport = bits,
            Proof::Dport(bits) => seen.dport = bits,
        }
    }

    /// Everything that the pattern asks for.
    fn note_match(&self, t: &Pattern, seen: &mut Seen, later: bool) {
        seen.eth_type |= t.ether != Ether::Any;
        seen.proto |= t.proto != Proto::Any;
        seen.vlan |= t.vlan.is_some();
        seen.src_mac |= t.src_mac_mask;
        seen.dst_mac |= t.dst_mac_mask;
        for (mask, have) in [(t.src_mask, &mut seen.src), (t.dst_mask, &mut seen.dst)] {
            if mask & !*have != 0 {
                *have |= self.address_bits(mask.count_ones());
            }
        }
        for (address, have, among) in [(self.src, &mut seen.src, &t.src_in), (self.dst, &mut seen.dst, &t.dst_in)] {
            if let Some(among) = among {
                *have = self.shows(address, *have, among);
            }
        }
        if !later {
            for (port, have, ranges) in
                [(self.sport, &mut seen.sport, &t.sport), (self.dport, &mut seen.dport, &t.dport)]
            {
                if !within(ranges, interval(port, *have)) {
                    *have = port_step(port, *have, |i| within(ranges, i));
                }
            }
        }
    }
}

/// Whole bytes of an Ethernet address up to the first bit set in `difference`, which is not 0.
fn mac_up_to(difference: u64) -> u64 {
    let bytes = (difference.leading_zeros() - 16) / 8 + 1;
    first_bits(bytes * 8, 48) as u64
}
