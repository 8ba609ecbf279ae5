//! Bits of a frame that have been looked at, and the steps to which they are rounded up.

use crate::pattern::{Range, first_bits, interval, mac_bits};
use lasthop_frame::{FlowKey, FlowMask};

/// Lengths to which the beginning of an IPv4 address is rounded up.
pub(crate) const IPV4_STEPS: [u32; 4] = [8, 16, 24, 32];
/// The same for IPv6.
pub(crate) const IPV6_STEPS: [u32; 4] = [32, 48, 64, 128];
/// The same for ports.
const PORT_STEPS: [u32; 3] = [6, 10, 16];
/// A bit of a port costs as much as this many of an address: ports differ from flow to flow, networks do not.
pub(crate) const PORT_COST: u32 = 3;

/// All that may be found wrong with a frame's headers.
pub(crate) const ANOMALIES: u16 =
    FlowKey::MALFORMED_L3 | FlowKey::MALFORMED_L4 | FlowKey::DEEP_VLAN | FlowKey::DEEP_EXTENSIONS;
pub(crate) const VID: u16 = 0x0fff;

/// The shortest of the steps whose interval around `port` has the property. The longest is the port itself.
pub(crate) fn port_step(port: u16, mask: u16, holds: impl Fn(Range) -> bool) -> u16 {
    let steps = PORT_STEPS.iter().map(|len| mask | first_bits(*len, 16) as u16);
    steps.into_iter().find(|m| holds(interval(port, *m))).unwrap_or(u16::MAX)
}

/// The first step that is at least `len` long.
pub(crate) fn round_up(len: u32, steps: &[u32]) -> u32 {
    steps.iter().copied().find(|s| *s >= len).unwrap_or(len)
}

/// Bits of a frame that have been looked at.
#[derive(Clone, Debug)]
pub struct Seen {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    pub(crate) src_mac: u64,
    pub(crate) dst_mac: u64,
    /// First bits only, as of the other port.
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    pub(crate) vlan: bool,
    pub(crate) eth_type: bool,
    pub(crate) proto: bool,
    pub(crate) anomalies: bool,
    pub(crate) later: bool,
}

impl Seen {
    /// Every bit: nothing is ever added.
    pub fn all() -> Self {
        Self {
            src: u128::MAX,
            dst: u128::MAX,
            src_mac: u64::MAX,
            dst_mac: u64::MAX,
            sport: u16::MAX,
            dport: u16::MAX,
            vlan: true,
            eth_type: true,
            proto: true,
            anomalies: true,
            later: true,
        }
    }

    /// The bits of a mask, as far as patterns look at them.
    pub fn of(FlowMask(m): &FlowMask) -> Self {
        let first_ones = |m: u16| first_bits(m.leading_ones(), 16) as u16;
        Self {
            src: u128::from_be_bytes(m.ip_src),
            dst: u128::from_be_bytes(m.ip_dst),
            src_mac: mac_bits(m.eth_src),
            dst_mac: mac_bits(m.eth_dst),
            sport: first_ones(m.l4_src),
            dport: first_ones(m.l4_dst),
            vlan: m.vlan_tci & VID == VID,
            eth_type: m.eth_type == u16::MAX,
            proto: m.ip_proto == u8::MAX,
            anomalies: m.anomalies & ANOMALIES == ANOMALIES,
            later: m.ip_frag & FlowKey::FRAG_LATER != 0,
        }
    }

    /// Adds them to a mask.
    pub fn add_to(&self, FlowMask(m): &mut FlowMask) {
        let or = |to: &mut [u8], from: &[u8]| to.iter_mut().zip(from).for_each(|(t, f)| *t |= f);
        or(&mut m.ip_src, &self.src.to_be_bytes());
        or(&mut m.ip_dst, &self.dst.to_be_bytes());
        or(&mut m.eth_src, &self.src_mac.to_be_bytes()[2..]);
        or(&mut m.eth_dst, &self.dst_mac.to_be_bytes()[2..]);
        m.l4_src |= self.sport;
        m.l4_dst |= self.dport;
        let whole = |seen: bool, bits: u16| if seen { bits } else { 0 };
        m.vlan_tci |= whole(self.vlan, VID);
        m.eth_type |= whole(self.eth_type, u16::MAX);
        m.anomalies |= whole(self.anomalies, ANOMALIES);
        m.ip_proto |= if self.proto { u8::MAX } else { 0 };
        m.ip_frag |= if self.later { FlowKey::FRAG_LATER } else { 0 };
    }
}
