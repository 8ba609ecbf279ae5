//! What stateful lists permit where no rule says otherwise, because without it a guest has neither neighbours nor an address. OpenStack's security groups do
//! the same (Neutron's firewall drivers), and none of it has connections that could be tracked.

use super::rule::{ARP, Direction, ICMPV6, IPV4, IPV6, UDP};
use lasthop_frame::{FlowKey, FlowMask};

/// RFC 4861 §4, RFC 2710 §3, RFC 3810 §5: router solicitation, neighbour solicitation and advertisement, reports of groups.
const SENT: [u16; 6] = [133, 135, 136, 131, 132, 143];
/// Router advertisement, neighbour solicitation and advertisement, queries for groups.
const RECEIVED: [u16; 4] = [134, 135, 136, 130];
/// RFC 2131 §4.1, RFC 8415 §7.2: a client's request, source and destination. The answer's are the other way round.
const DHCP: [u16; 2] = [68, 67];
const DHCPV6: [u16; 2] = [546, 547];
/// All of these ports lie below 1024, which six bits show.
const HIGH: u16 = 0xfc00;

/// Whether a packet that passes a guest's port this way is one of these. Adds to `mask` what it took to know.
pub(super) fn is_basic(key: &FlowKey, direction: Direction, mask: &mut FlowMask) -> bool {
    let FlowMask(m) = mask;
    m.eth_type = u16::MAX;
    match key.eth_type {
        ARP => return true,
        IPV4 | IPV6 => m.ip_proto = u8::MAX,
        _ => return false,
    }
    match (key.eth_type, key.ip_proto) {
        (IPV6, ICMPV6) => {
            m.ip_frag |= FlowKey::FRAG_ANY | FlowKey::FRAG_LATER;
            m.l4_src = u16::MAX;
            let kinds = if direction == Direction::FromGuest { &SENT[..] } else { &RECEIVED };
            key.ip_frag == 0 && kinds.contains(&key.l4_src)
        }
        (_, UDP) => {
            m.l4_dst |= HIGH;
            if key.l4_dst & HIGH != 0 {
                return false;
            }
            m.l4_dst = u16::MAX;
            let mut ports = if key.eth_type == IPV4 { DHCP } else { DHCPV6 };
            if direction == Direction::ToGuest {
                ports.reverse();
            }
            if key.l4_dst != ports[1] {
                return false;
            }
            (m.l4_src, m.ip_frag) = (u16::MAX, m.ip_frag | FlowKey::FRAG_ANY | FlowKey::FRAG_LATER);
            key.l4_src == ports[0] && key.ip_frag & FlowKey::FRAG_LATER == 0
        }
        _ => false,
    }
}
