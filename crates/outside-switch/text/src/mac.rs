//! Ethernet addresses.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A 48-bit Ethernet address in wire order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Group bit set: multicast or broadcast (IEEE 802.3 §3.2.3).
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// 00:00:00:00:00:00
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }

    /// An address a station may have as its own: neither a group nor zero.
    pub fn is_unicast_source(self) -> bool {
        !self.is_multicast() && !self.is_zero()
    }

    /// 01:80:c2:00:00:00 to :0f, which a bridge must not forward (IEEE 802.1D §7.12.6).
    pub fn is_link_local(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && self.0[5] & 0xf0 == 0
    }
}

impl From<MacAddr> for [u8; 6] {
    fn from(address: MacAddr) -> Self {
        address.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(!MacAddr([0; 6]).is_unicast_source());
        assert!(MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0e]).is_link_local());
        assert!(!MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]).is_link_local());
    }

    #[test]
    fn text() {
        assert_eq!(MacAddr([0x52, 0x54, 0, 0x0a, 0x0b, 0xff]).to_string(), "52:54:00:0a:0b:ff");
    }
}
