//! What tables of MAC addresses are sorted by.

use lasthop_text::MacAddr;

/// A VLAN and an address in it, as one number: to compare two is one instruction, where bytes take a call. Each first packet does that
/// a hundred times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VlanMac(u64);

impl VlanMac {
    pub fn new(vlan: u16, mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self(u64::from(vlan) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    pub fn vlan(self) -> u16 {
        (self.0 >> 48) as u16
    }

    pub fn mac(self) -> MacAddr {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        MacAddr(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_as_what_it_is_made_of() {
        let macs = [[0; 6], [0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0], [2, 0, 0, 0, 0, 9], [0xff; 6]].map(MacAddr);
        let pairs: Vec<_> = [0, 1, 4094].into_iter().flat_map(|vlan| macs.map(|mac| (vlan, mac))).collect();
        let keys: Vec<_> = pairs.iter().map(|(vlan, mac)| VlanMac::new(*vlan, *mac)).collect();
        assert!(pairs.is_sorted() && keys.is_sorted());
        let back: Vec<_> = keys.iter().map(|key| (key.vlan(), key.mac())).collect();
        assert_eq!(back, pairs);
    }
}
