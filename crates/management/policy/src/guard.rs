//! What a port may not pretend to be: somebody else's Ethernet or IP address, a DHCP server, a router.
//!
//! A frame is looked at where it comes in, before access lists. What is asked for is what Open vSwitch's users know as port security
//! (OVN: `port_security`, OpenStack: allowed address pairs):
//!
//! | frame | may be sent |
//! |---|---|
//! | any | from one of `mac` |
//! | ARP | saying of itself one of `mac` and one of `addr`; a probe has no IP address yet, and asks for one of `addr` (RFC 5227 §2.1.1) |
//! | IPv4 | from one of `addr`; from 0.0.0.0 to ask for one (RFC 2131 §4.1) |
//! | IPv6 | from one of `addr`, or the link-local address made of one of `mac` (RFC 4291 appendix A); from none to find out whether an address is free, for routers, and to join groups (RFC 4862 §5.4, RFC 3810 §5.2.13) |
//! | neighbour discovery | saying of itself one of `mac` and one of those IPv6 addresses |
//! | UDP | with `no_dhcp_server`, neither from a DHCP server's port nor to a client's (RFC 2131 §4.1, RFC 8415 §7.2) |
//! | others | always |
//!
//! A frame whose headers are malformed or lie too deep to be read may be anything to its receiver, and is refused.

use crate::PortSettings;
use crate::acl::Prefix;
use lasthop_classifier::pattern::{first_bits, mac_bits};
use lasthop_frame::ethertype::{ARP, IPV4, IPV6};
use lasthop_frame::proto::{ICMPV6, UDP};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use std::fmt;
use std::net::IpAddr;

/// RFC 4861 §4.
const ROUTER_SOLICITATION: u16 = 133;
const ROUTER_ADVERTISEMENT: u16 = 134;
const NEIGHBOUR_SOLICITATION: u16 = 135;
const NEIGHBOUR_ADVERTISEMENT: u16 = 136;
/// RFC 2710 §3, RFC 3810 §5: what a station sends to join and leave groups.
const GROUP_REPORTS: [u16; 3] = [131, 132, 143];
/// Ports of servers and relays, and of clients: RFC 2131 §4.1, RFC 8415 §7.2.
const DHCP: [u16; 2] = [67, 68];
const DHCPV6: [u16; 2] = [547, 546];

const ANOMALIES: u16 = FlowKey::MALFORMED_L3 | FlowKey::MALFORMED_L4 | FlowKey::DEEP_VLAN | FlowKey::DEEP_EXTENSIONS;

/// Lengths to which the beginning of an address is rounded up that shows that it is none of some others: few masks, and one flow for many
/// addresses that somebody tries.
const MAC_STEPS: &[u32] = &[8, 16, 24, 32, 40, 48];
const IPV4_STEPS: &[u32] = &[8, 16, 24, 32];
const IPV6_STEPS: &[u32] = &[16, 32, 48, 64, 96, 128];
/// Of port numbers: those from 1024 on are none of DHCP's by their first bits, and share a flow with 1023 others.
const PORT_STEPS: &[u32] = &[6, 16];

/// What a frame pretends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pretence {
    /// To be another station.
    Mac,
    /// To have another IP address.
    Address,
    /// In ARP or neighbour discovery, to have another Ethernet address.
    ClaimedMac,
    /// There, to have another IP address.
    ClaimedAddress,
    /// To be a DHCP server.
    DhcpServer,
    /// To be a router.
    Router,
    /// Its headers cannot be read.
    Unreadable,
}

impl fmt::Display for Pretence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mac => "its source is none of the port's Ethernet addresses (mac)",
            Self::Address => "its source is none of the port's IP addresses (addr)",
            Self::ClaimedMac => "it claims an Ethernet address that is none of the port's (mac)",
            Self::ClaimedAddress => "it claims an IP address that is none of the port's (addr)",
            Self::DhcpServer => "it comes from a DHCP server, or goes to a DHCP client (no-dhcp-server)",
            Self::Router => "it is a router advertisement (no-ra)",
            Self::Unreadable => "its headers are malformed or too deep to be judged by the port's settings",
        })
    }
}

impl Pretence {
    /// The setting that does not allow it; `None` if the frame cannot be read.
    pub fn setting(self) -> Option<&'static str> {
        match self {
            Self::Mac | Self::ClaimedMac => Some("mac"),
            Self::Address | Self::ClaimedAddress => Some("addr"),
            Self::DhcpServer => Some("no-dhcp-server"),
            Self::Router => Some("no-ra"),
            Self::Unreadable => None,
        }
    }
}

/// What a frame pretends that the port may not, if it does. Adds to `mask` what it took to know.
pub(crate) fn pretends(port: &PortSettings, key: &FlowKey, mask: &mut FlowMask) -> Option<Pretence> {
    Guard { port, key, mask }.check()
}

struct Guard<'a> {
    port: &'a PortSettings,
    key: &'a FlowKey,
    mask: &'a mut FlowMask,
}

impl Guard<'_> {
    fn check(&mut self) -> Option<Pretence> {
        let PortSettings { macs, addrs, no_dhcp_server, no_ra, .. } = self.port;
        if !macs.is_empty() && !is_one_of(macs, &self.key.eth_src, &mut self.mask.0.eth_src) {
            return Some(Pretence::Mac);
        }
        if macs.is_empty() && addrs.is_empty() && !no_dhcp_server && !no_ra {
            return None;
        }
        self.mask.0.eth_type = u16::MAX;
        self.mask.0.anomalies |= ANOMALIES;
        if self.key.anomalies & FlowKey::DEEP_VLAN != 0 {
            return Some(Pretence::Unreadable);
        }
        let is_checked = matches!(self.key.eth_type, IPV4 | IPV6 | ARP);
        if is_checked && self.key.anomalies & ANOMALIES != 0 {
            return Some(Pretence::Unreadable);
        }
        match self.key.eth_type {
            ARP => self.arp(),
            IPV4 => self.ipv4(),
            IPV6 => self.ipv6(),
            _ => None,
        }
    }

    fn arp(&mut self) -> Option<Pretence> {
        let claims_mac =
            !self.port.macs.is_empty() && !is_one_of(&self.port.macs, &self.key.arp_sha, &mut self.mask.0.arp_sha);
        if claims_mac {
            return Some(Pretence::ClaimedMac);
        }
        let honest =
            self.port.addrs.is_empty() || self.has_source(false) || self.has_no_source() && self.probes_its_own();
        (!honest).then_some(Pretence::ClaimedAddress)
    }

    fn ipv4(&mut self) -> Option<Pretence> {
        if !self.port.addrs.is_empty() && !self.has_source(false) {
            let asks = self.has_no_source() && self.is_udp() && [self.l4_dst(), self.l4_src()] == DHCP;
            return (!asks).then_some(Pretence::Address);
        }
        (self.port.no_dhcp_server && self.serves(DHCP)).then_some(Pretence::DhcpServer)
    }

    fn ipv6(&mut self) -> Option<Pretence> {
        let kind = if self.is_icmpv6() { Some(self.l4_src()) } else { None };
        if self.port.no_ra && kind == Some(ROUTER_ADVERTISEMENT) {
            return Some(Pretence::Router);
        }
        if self.port.no_dhcp_server && self.serves(DHCPV6) {
            return Some(Pretence::DhcpServer);
        }
        let advertises = kind == Some(NEIGHBOUR_ADVERTISEMENT);
        if (advertises || kind == Some(NEIGHBOUR_SOLICITATION)) && self.names_another_mac(advertises) {
            return Some(Pretence::ClaimedMac);
        }
        if advertises && !self.has_target() {
            return Some(Pretence::ClaimedAddress);
        }
        if self.port.addrs.is_empty() || self.has_source(true) {
            return None;
        }
        let may = self.has_no_source()
            && match kind {
                // Whether the address is free that it is going to have.
                Some(NEIGHBOUR_SOLICITATION) => self.has_target(),
                Some(ROUTER_SOLICITATION) => true,
                Some(kind) => GROUP_REPORTS.contains(&kind),
                None => false,
            };
        (!may).then_some(Pretence::Address)
    }

    /// The link-layer address that a neighbour message gives, if it does, is not one of the port's.
    fn names_another_mac(&mut self, target: bool) -> bool {
        if self.port.macs.is_empty() {
            return false;
        }
        let mask = &mut self.mask.0;
        let (said, mask) = match target {
            true => (&self.key.arp_tha, &mut mask.arp_tha),
            false => (&self.key.arp_sha, &mut mask.arp_sha),
        };
        let names = *said != [0; 6] && !is_one_of(&self.port.macs, said, mask);
        if !names && *said == [0; 6] {
            *mask = [0xff; 6];
        }
        names
    }

    fn has_target(&mut self) -> bool {
        let allowed = self.allowed(true);
        self.port.addrs.is_empty() || is_within(&allowed, &self.key.nd_target, true, &mut self.mask.0.nd_target)
    }

    fn has_source(&mut self, v6: bool) -> bool {
        let allowed = self.allowed(v6);
        is_within(&allowed, &self.key.ip_src, v6, &mut self.mask.0.ip_src)
    }

    fn has_no_source(&mut self) -> bool {
        // An address of zeros differs from others in their first bit that is set.
        let zero = [(0, u128::MAX)];
        is_within(&zero, &self.key.ip_src, self.key.eth_type == IPV6, &mut self.mask.0.ip_src)
    }

    /// Addresses that the port may have, with the bits of each that count.
    fn allowed(&self, v6: bool) -> Vec<(u128, u128)> {
        let own = self.port.addrs.iter().filter(|addr| addr.is_v6() == v6).map(bits);
        let link_local = self.port.macs.iter().filter(|_| v6).map(|mac| (link_local(*mac), u128::MAX));
        own.chain(link_local).collect()
    }

    /// The address that an ARP probe asks for is one of the port's.
    fn probes_its_own(&mut self) -> bool {
        let allowed = self.allowed(false);
        is_within(&allowed, &self.key.ip_dst, false, &mut self.mask.0.ip_dst)
    }

    /// It comes from a DHCP server or relay, or goes to a client: many clients look at the destination port alone, so that an answer
    /// may have any source port. A client sends to servers, from its own port.
    fn serves(&mut self, [server, client]: [u16; 2]) -> bool {
        self.is_udp() && (self.is_to_port(client) || self.is_from_port(server))
    }

    fn is_from_port(&mut self, port: u16) -> bool {
        self.mask.0.ip_frag |= FlowKey::FRAG_LATER;
        is_port(port, self.key.l4_src, &mut self.mask.0.l4_src)
    }

    fn is_to_port(&mut self, port: u16) -> bool {
        self.mask.0.ip_frag |= FlowKey::FRAG_LATER;
        is_port(port, self.key.l4_dst, &mut self.mask.0.l4_dst)
    }

    fn is_udp(&mut self) -> bool {
        self.mask.0.ip_proto = u8::MAX;
        self.key.ip_proto == UDP
    }

    fn is_icmpv6(&mut self) -> bool {
        self.mask.0.ip_proto = u8::MAX;
        self.key.ip_proto == ICMPV6
    }

    /// Source port, or ICMP type; 0 of a later fragment, which has none.
    fn l4_src(&mut self) -> u16 {
        (self.mask.0.l4_src, self.mask.0.ip_frag) = (u16::MAX, self.mask.0.ip_frag | FlowKey::FRAG_LATER);
        self.key.l4_src
    }

    fn l4_dst(&mut self) -> u16 {
        (self.mask.0.l4_dst, self.mask.0.ip_frag) = (u16::MAX, self.mask.0.ip_frag | FlowKey::FRAG_LATER);
        self.key.l4_dst
    }
}

fn bits(prefix: &Prefix) -> (u128, u128) {
    let len = u32::from(prefix.bits());
    match prefix.addr() {
        IpAddr::V4(a) => (u128::from(a.to_bits()), first_bits(len, 32)),
        IpAddr::V6(a) => (a.to_bits(), first_bits(len, 128)),
    }
}

fn link_local(MacAddr([a, b, c, d, e, f]): MacAddr) -> u128 {
    let [w, x, y, z] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, w, x, y, z).to_bits()
}

/// Whether it is one of the addresses. Adds to `mask` the bits that show it.
fn is_one_of(allowed: &[MacAddr], address: &[u8; 6], mask: &mut [u8; 6]) -> bool {
    let allowed: Vec<_> = allowed.iter().map(|mac| (u128::from(mac_bits(mac.0)), first_bits(48, 48))).collect();
    let (is, bits) = compare(&allowed, u128::from(mac_bits(*address)), (48, MAC_STEPS));
    mask.iter_mut().zip(&bits.to_be_bytes()[10..]).for_each(|(to, bits)| *to |= bits);
    is
}

/// Whether it is within one of the prefixes. Adds to `mask` the bits that show it.
fn is_within(allowed: &[(u128, u128)], address: &[u8; 16], v6: bool, mask: &mut [u8; 16]) -> bool {
    let width = if v6 { (128, IPV6_STEPS) } else { (32, IPV4_STEPS) };
    let (is, bits) = compare(allowed, u128::from_be_bytes(*address), width);
    mask.iter_mut().zip(bits.to_be_bytes()).for_each(|(to, bits)| *to |= bits);
    is
}

/// Whether a port number is this one. Adds to `mask` the bits that show it.
fn is_port(port: u16, number: u16, mask: &mut u16) -> bool {
    let (is, bits) = compare(&[(u128::from(port), first_bits(16, 16))], u128::from(number), (16, PORT_STEPS));
    // No more than 16 bits.
    *mask |= bits as u16;
    is
}

/// Whether a number agrees with one of `allowed` in the bits that count of it, and what shows it: the bits that count of that one; or the
/// beginning that none of them has.
fn compare(allowed: &[(u128, u128)], number: u128, (width, steps): (u32, &[u32])) -> (bool, u128) {
    let whole = first_bits(width, width);
    // The widest, so that it is the same one for a number of which no more is known than it takes.
    let agrees = allowed.iter().filter(|(a, counts)| (number ^ a) & counts & whole == 0);
    if let Some(counts) = agrees.map(|(_, counts)| counts & whole).min_by_key(|counts| counts.count_ones()) {
        return (true, counts);
    }
    let apart = allowed.iter().map(|(a, counts)| {
        let first = ((number ^ a) & counts & whole).leading_zeros() + 1 - (128 - width);
        steps.iter().copied().find(|step| *step >= first).unwrap_or(width)
    });
    (false, first_bits(apart.max().unwrap_or(0), width))
}

#[cfg(test)]
mod tests;
