//! The key of a flow (`enum ovs_key_attr`), and its mask.
//!
//! It is the switch's key with what only Open vSwitch has beside it, so that a packet is compared with Open vSwitch's flows by the fields
//! that the switch found in it. Numbers are in host order, ports are Open vSwitch's.

use crate::Refused;
use crate::netlink::{Writer, attributes, u32_of};
use crate::nsh::{self, Nsh};
use crate::tunnel;
use lasthop_frame::FlowKey;
use lasthop_tunnel::Tunnel;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const ENCAP: u16 = 1;
const PRIORITY: u16 = 2;
const IN_PORT: u16 = 3;
pub(crate) const ETHERNET: u16 = 4;
const VLAN: u16 = 5;
const ETHERTYPE: u16 = 6;
pub(crate) const IPV4: u16 = 7;
pub(crate) const IPV6: u16 = 8;
pub(crate) const TCP: u16 = 9;
pub(crate) const UDP: u16 = 10;
const ICMP: u16 = 11;
const ICMPV6: u16 = 12;
const ARP: u16 = 13;
const ND: u16 = 14;
pub(crate) const SKB_MARK: u16 = 15;
pub(crate) const TUNNEL: u16 = 16;
const SCTP: u16 = 17;
const TCP_FLAGS: u16 = 18;
const DP_HASH: u16 = 19;
const RECIRC_ID: u16 = 20;
pub(crate) const MPLS: u16 = 21;
pub(crate) const NSH: u16 = 28;
pub(crate) const PRIORITY_ATTRIBUTE: u16 = PRIORITY;

const ETH_IPV4: u16 = 0x0800;
const ETH_ARP: u16 = 0x0806;
const ETH_RARP: u16 = 0x8035;
const ETH_IPV6: u16 = 0x86dd;
/// A frame without EtherType; its key has no attribute for one.
const ETH_802_2: u16 = 0x05ff;
/// Labels that are looked at.
pub const MAX_LABELS: usize = 3;
/// In the last label of a packet.
const BOTTOM: u32 = 0x100;

/// The EtherType is one of MPLS's.
pub fn is_mpls(ether_type: u16) -> bool {
    matches!(ether_type, 0x8847 | 0x8848)
}

/// [`FlowKey::ip_frag`] of a fragment other than the first.
pub const LATER_FRAGMENT: u8 = FlowKey::FRAG_ANY | FlowKey::FRAG_LATER;

/// A key, or a mask: the bits that matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Key {
    /// What a packet shows. `in_port` is Open vSwitch's number, `recirculation` the id that an action has given it.
    pub packet: FlowKey,
    /// Hash that an action has computed.
    pub dp_hash: u32,
    /// Priority that an action has set.
    pub priority: u32,
    /// Mark that an action has set.
    pub mark: u32,
    /// The outermost labels of MPLS, as they are sent.
    pub mpls: [u32; MAX_LABELS],
    /// Its network service header.
    pub nsh: Nsh,
    /// Label of its connection.
    pub ct_label: [u8; 16],
    /// Addresses of the connection's first packet, as `packet` has its own.
    pub ct_src: [u8; 16],
    /// And where that went.
    pub ct_dst: [u8; 16],
    /// Its ports.
    pub ct_ports: [u16; 2],
    /// Its protocol; 0: no connection.
    pub ct_proto: u8,
    /// 1: it has no Ethernet header, because an action has taken that off.
    pub bare: u8,
    /// Always zero.
    pub reserved: [u8; 2],
    /// The tunnel that it came through, if any.
    pub tunnel: Tunnel,
}

impl Key {
    /// This key with every bit cleared that `mask` does not have.
    pub fn masked(&self, mask: &Self) -> Self {
        let mut key = *self;
        key.as_mut_bytes().iter_mut().zip(mask.as_bytes()).for_each(|(byte, mask)| *byte &= mask);
        key
    }

    /// The key of a flow and its mask, from the attributes that Open vSwitch sends. Without a mask every field that a key has matters.
    pub fn read(key: &[u8], mask: Option<&[u8]>) -> Result<(Self, Self), Refused> {
        let (key, tags) = read(key, false)?;
        let mask = match mask {
            Some(mask) => read(mask, true)?.0,
            None => exact(&key, tags),
        };
        Ok((key.masked(&mask), mask))
    }

    /// What the attributes say beside the packet's own fields. Of a packet without an Ethernet header, its EtherType.
    pub fn metadata(attributes: &[u8]) -> Result<Self, Refused> {
        let mut key = Self::default();
        let mut has_header = false;
        for attribute in self::attributes(attributes) {
            let (kind, value) = attribute?;
            if kind == TUNNEL {
                key.tunnel = tunnel::read_key(value)?;
            } else if kind == ETHERTYPE {
                key.packet.eth_type = be16(value)?;
            } else if kind == ETHERNET {
                has_header = true;
            } else if !key.metadata_field(kind, value)? {
                key.connection_field(kind, value, false)?;
            }
        }
        if has_header || key.packet.eth_type == 0 {
            key.packet.eth_type = 0;
        } else {
            key.bare = 1;
        }
        Ok(key)
    }

    /// Notes what labels a packet of MPLS has, from behind its EtherType on.
    pub fn read_labels(&mut self, bytes: &[u8]) {
        self.mpls = [0; MAX_LABELS];
        for (place, label) in self.mpls.iter_mut().zip(bytes.as_chunks().0) {
            *place = u32::from_be_bytes(*label);
            if *place & BOTTOM != 0 {
                break;
            }
        }
    }

    /// True if the attribute is one of those that no packet shows.
    fn metadata_field(&mut self, kind: u16, value: &[u8]) -> Result<bool, Refused> {
        let field = match kind {
            PRIORITY => &mut self.priority,
            IN_PORT => &mut self.packet.in_port,
            SKB_MARK => &mut self.mark,
            DP_HASH => &mut self.dp_hash,
            RECIRC_ID => &mut self.packet.recirculation,
            _ => return Ok(false),
        };
        *field = u32_of(value)?;
        Ok(true)
    }

    /// Writes it as the attributes of a packet that Open vSwitch is sent.
    pub fn write(&self, to: &mut Writer) {
        let key = &self.packet;
        to.number(RECIRC_ID, key.recirculation);
        to.number(DP_HASH, self.dp_hash);
        to.number(PRIORITY, self.priority);
        to.number(IN_PORT, key.in_port);
        to.number(SKB_MARK, self.mark);
        self.write_connection(to);
        if !self.tunnel.is_none() {
            to.nest(TUNNEL, |to| tunnel::write(&self.tunnel, to));
        }
        if self.bare == 0 {
            to.attribute(ETHERNET, &[key.eth_src, key.eth_dst].concat());
        }
        let tags = [(key.vlan_tpid, key.vlan_tci), (key.inner_vlan_tpid, key.inner_vlan_tci)];
        self.write_behind(to, tags.get(..tags.iter().filter(|(_, tci)| *tci != 0).count()).unwrap_or_default());
    }

    fn write_behind(&self, to: &mut Writer, tags: &[(u16, u16)]) {
        if let Some(((tpid, tci), rest)) = tags.split_first() {
            to.attribute(ETHERTYPE, &tpid.to_be_bytes());
            to.attribute(VLAN, &tci.to_be_bytes());
            return to.nest(ENCAP, |to| self.write_behind(to, rest));
        }
        let key = &self.packet;
        if key.eth_type != ETH_802_2 {
            to.attribute(ETHERTYPE, &key.eth_type.to_be_bytes());
        }
        let v4 = |address: &[u8; 16]| [address[12], address[13], address[14], address[15]];
        let fragment = match key.ip_frag {
            0 => 0,
            LATER_FRAGMENT => 2,
            _ => 1,
        };
        match key.eth_type {
            ETH_IPV4 => {
                let tail = [key.ip_proto, key.ip_tos, key.ip_ttl, fragment];
                to.attribute(IPV4, &[v4(&key.ip_src), v4(&key.ip_dst), tail].concat());
            }
            ETH_IPV6 => {
                let tail = [key.ip_proto, key.ip_tos, key.ip_ttl, fragment];
                let label = key.ipv6_label.to_be_bytes();
                to.attribute(IPV6, &[&key.ip_src[..], &key.ip_dst, &label, &tail].concat());
            }
            nsh::ETHER_TYPE => to.nest(NSH, |to| nsh::write(&self.nsh, to)),
            kind if is_mpls(kind) => {
                let last = self.mpls.iter().position(|label| label & BOTTOM != 0).unwrap_or(MAX_LABELS - 1);
                let labels: Vec<u8> = self.mpls.iter().take(last + 1).flat_map(|label| label.to_be_bytes()).collect();
                to.attribute(MPLS, &labels);
            }
            ETH_ARP | ETH_RARP => {
                let (sender, target, operation) = (v4(&key.ip_src), v4(&key.ip_dst), [0, key.ip_proto]);
                let hardware = [&key.arp_sha[..], &key.arp_tha].concat();
                to.attribute(ARP, &[&sender[..], &target, &operation, &hardware, &[0; 2]].concat());
            }
            _ => {}
        }
        if matches!(key.eth_type, ETH_IPV4 | ETH_IPV6) && key.ip_frag & FlowKey::FRAG_LATER == 0 {
            self.write_transport(to);
        }
    }

    fn write_transport(&self, to: &mut Writer) {
        let key = &self.packet;
        let ports = [key.l4_src.to_be_bytes(), key.l4_dst.to_be_bytes()].concat();
        let kind_and_code = [key.l4_src as u8, key.l4_dst as u8];
        match (key.ip_proto, key.eth_type) {
            (6, _) => {
                to.attribute(TCP, &ports);
                to.attribute(TCP_FLAGS, &key.tcp_flags.to_be_bytes());
            }
            (17, _) => to.attribute(UDP, &ports),
            (132, _) => to.attribute(SCTP, &ports),
            (1, ETH_IPV4) => to.attribute(ICMP, &kind_and_code),
            (58, ETH_IPV6) => {
                to.attribute(ICMPV6, &kind_and_code);
                if matches!(key.l4_src, 135 | 136) {
                    to.attribute(ND, &[&key.nd_target[..], &key.arp_sha, &key.arp_tha].concat());
                }
            }
            _ => {}
        }
    }
}

/// The mask of a flow that comes without one.
fn exact(key: &Key, tags: usize) -> Key {
    let mut mask = Key {
        dp_hash: u32::MAX,
        priority: u32::MAX,
        mark: u32::MAX,
        ct_label: [0xff; 16],
        ct_src: [0xff; 16],
        ct_dst: [0xff; 16],
        ct_ports: [u16::MAX; 2],
        ct_proto: 0xff,
        bare: 0xff,
        ..Key::default()
    };
    if is_mpls(key.packet.eth_type) {
        mask.mpls = [u32::MAX; MAX_LABELS];
    }
    if key.packet.eth_type == nsh::ETHER_TYPE {
        mask.nsh.fill(0xff);
    }
    if !key.tunnel.is_none() {
        mask.tunnel.as_mut_bytes().fill(0xff);
    }
    let p = &mut mask.packet;
    (p.in_port, p.recirculation) = (u32::MAX, u32::MAX);
    (p.ct_state, p.ct_zone, p.ct_mark) = (u16::MAX, u16::MAX, u32::MAX);
    (p.eth_dst, p.eth_src, p.eth_type) = ([0xff; 6], [0xff; 6], u16::MAX);
    (p.vlan_tci, p.inner_vlan_tci) = (u16::MAX, u16::MAX);
    (p.vlan_tpid, p.inner_vlan_tpid) = (if tags > 0 { u16::MAX } else { 0 }, if tags > 1 { u16::MAX } else { 0 });
    let is_ip = matches!(key.packet.eth_type, ETH_IPV4 | ETH_IPV6);
    if is_ip || matches!(key.packet.eth_type, ETH_ARP | ETH_RARP) {
        (p.ip_src, p.ip_dst, p.ip_proto) = ([0xff; 16], [0xff; 16], 0xff);
        (p.arp_sha, p.arp_tha) = if is_ip { Default::default() } else { ([0xff; 6], [0xff; 6]) };
    }
    if is_ip {
        (p.ip_tos, p.ip_ttl, p.ip_frag, p.ipv6_label) = (0xff, 0xff, LATER_FRAGMENT, 0xf_ffff);
        (p.l4_src, p.l4_dst, p.tcp_flags) = (u16::MAX, u16::MAX, 0xfff);
        if key.packet.ip_proto == 58 {
            (p.nd_target, p.arp_sha, p.arp_tha) = ([0xff; 16], [0xff; 6], [0xff; 6]);
        }
    }
    mask
}

/// A key or mask, and how many VLAN tags it has.
fn read(list: &[u8], is_mask: bool) -> Result<(Key, usize), Refused> {
    let mut key = Key::default();
    let mut tags = 0;
    if is_mask {
        // Whether there is a tag matters always.
        (key.packet.vlan_tci, key.packet.inner_vlan_tci) = (u16::MAX, u16::MAX);
        key.bare = 0xff;
    } else {
        (key.packet.eth_type, key.bare) = (ETH_802_2, 1);
    }
    let mut level = Some(list);
    while let Some(list) = level.take() {
        let (mut ether_type, mut tci, mut seen) = (None, None, 0u64);
        for attribute in attributes(list) {
            let (kind, value) = attribute?;
            if kind >= 64 || seen & 1 << kind != 0 {
                return Err(Refused::INVALID);
            }
            seen |= 1 << kind;
            match kind {
                ENCAP => level = Some(value),
                ETHERTYPE => ether_type = Some(be16(value)?),
                VLAN => tci = Some(be16(value)?),
                TUNNEL if tags == 0 && is_mask => key.tunnel = tunnel::read_mask(value)?,
                TUNNEL if tags == 0 => key.tunnel = tunnel::read_key(value)?,
                MPLS => key.mpls = labels(value)?,
                NSH => key.nsh = nsh::read(value, is_mask)?,
                _ if tags == 0 && key.metadata_field(kind, value)? => {}
                _ if tags == 0 && key.connection_field(kind, value, is_mask)? => {}
                _ => field(&mut key.packet, kind, value, is_mask)?,
            }
        }
        if seen & 1 << ETHERNET != 0 && !is_mask {
            key.bare = 0;
        }
        if level.is_none() {
            // A tag that is not there: Open vSwitch says so with one that is 0.
            if tci.is_some_and(|tci| tci & FlowKey::VLAN_PRESENT != 0 && !is_mask) {
                return Err(Refused::INVALID);
            }
            if let (Some(tci), 0) = (tci, tags) {
                key.packet.vlan_tci = tci;
            }
            key.packet.eth_type = ether_type.unwrap_or(key.packet.eth_type);
            break;
        }
        let (tpid, tci) = (ether_type.ok_or(Refused::INVALID)?, tci.ok_or(Refused::INVALID)?);
        if !is_mask && !matches!(tpid, 0x8100 | 0x88a8) {
            return Err(Refused::INVALID);
        }
        let p = &mut key.packet;
        match tags {
            0 => (p.vlan_tpid, p.vlan_tci) = (tpid, tci),
            1 => (p.inner_vlan_tpid, p.inner_vlan_tci) = (tpid, tci),
            _ => return Err(Refused::INVALID),
        }
        tags += 1;
    }
    Ok((key, tags))
}

fn labels(value: &[u8]) -> Result<[u32; MAX_LABELS], Refused> {
    let (labels, rest) = value.as_chunks::<4>();
    if labels.is_empty() || labels.len() > MAX_LABELS || !rest.is_empty() {
        return Err(Refused::INVALID);
    }
    let mut read = [0; MAX_LABELS];
    read.iter_mut().zip(labels).for_each(|(place, label)| *place = u32::from_be_bytes(*label));
    Ok(read)
}

fn be16(value: &[u8]) -> Result<u16, Refused> {
    value.try_into().map(u16::from_be_bytes).map_err(|_| Refused::RANGE)
}

/// `N` bytes of an attribute from `at` on; its length has been checked.
fn part<const N: usize>(value: &[u8], at: usize) -> [u8; N] {
    value.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// An IPv4 address, where the key has it.
fn v4(value: &[u8], at: usize) -> [u8; 16] {
    let [a, b, c, d] = part(value, at);
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

fn field(key: &mut FlowKey, kind: u16, value: &[u8], is_mask: bool) -> Result<(), Refused> {
    let len = match kind {
        ETHERNET | IPV4 => 12,
        IPV6 => 40,
        TCP | UDP | SCTP => 4,
        ICMP | ICMPV6 | TCP_FLAGS => 2,
        ARP => 24,
        ND => 28,
        _ => return Err(Refused::INVALID),
    };
    // Structures with padding at their end come with and without it.
    if value.len() != len && !(kind == ARP && value.len() == 22) {
        return Err(Refused::RANGE);
    }
    match kind {
        ETHERNET => (key.eth_src, key.eth_dst) = (part(value, 0), part(value, 6)),
        IPV4 => {
            (key.ip_src, key.ip_dst) = (v4(value, 0), v4(value, 4));
            ip_tail(key, part(value, 8), is_mask)?;
        }
        IPV6 => {
            (key.ip_src, key.ip_dst) = (part(value, 0), part(value, 16));
            key.ipv6_label = u32::from_be_bytes(part(value, 32)) & 0xf_ffff;
            ip_tail(key, part(value, 36), is_mask)?;
        }
        TCP | UDP | SCTP => {
            (key.l4_src, key.l4_dst) = (u16::from_be_bytes(part(value, 0)), u16::from_be_bytes(part(value, 2)));
        }
        TCP_FLAGS => key.tcp_flags = u16::from_be_bytes(part(value, 0)) & 0xfff,
        ICMP | ICMPV6 => {
            let [kind, code] = part(value, 0);
            (key.l4_src, key.l4_dst) = (kind.into(), code.into());
        }
        ARP => {
            (key.ip_src, key.ip_dst) = (v4(value, 0), v4(value, 4));
            let [high, low] = part(value, 8);
            if high != 0 && !is_mask {
                return Err(Refused::INVALID);
            }
            key.ip_proto = low;
            (key.arp_sha, key.arp_tha) = (part(value, 10), part(value, 16));
        }
        _ => {
            key.nd_target = part(value, 0);
            (key.arp_sha, key.arp_tha) = (part(value, 16), part(value, 22));
        }
    }
    Ok(())
}

fn ip_tail(key: &mut FlowKey, [proto, tos, ttl, fragment]: [u8; 4], is_mask: bool) -> Result<(), Refused> {
    (key.ip_proto, key.ip_tos, key.ip_ttl) = (proto, tos, ttl);
    key.ip_frag = match fragment {
        // Which of three it is takes both bits here.
        _ if is_mask => {
            if fragment & 3 == 0 {
                0
            } else {
                LATER_FRAGMENT
            }
        }
        0 => 0,
        1 => FlowKey::FRAG_ANY,
        2 => LATER_FRAGMENT,
        _ => return Err(Refused::INVALID),
    };
    Ok(())
}

#[cfg(test)]
mod tests;
