//! Ethernet addresses.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

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

/// The text is not an Ethernet address in any of the usual spellings.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address; write six pairs of hexadecimal digits, such as 52:54:00:12:34:56")
    }
}

impl std::error::Error for ParseMacError {}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Six pairs of digits with `:` or `-` between, three groups of four with `.` between, or twelve digits; upper or lower case.
    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let (separator, width) = match s.bytes().find(|b| matches!(b, b':' | b'-' | b'.')) {
            Some(b'.') => ('.', 4),
            Some(b'-') => ('-', 2),
            Some(_) => (':', 2),
            None => (':', 12),
        };
        let (mut value, mut digits) = (0, 0);
        for part in s.split(separator) {
            digits += width;
            if digits > 12 || part.len() != width || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            value = value << (4 * width) | u64::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        let [_, _, address @ ..] = value.to_be_bytes();
        if digits == 12 { Ok(Self(address)) } else { Err(ParseMacError) }
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
    fn text_round_trip() {
        let mac: MacAddr = "52:54:00:0a:0B:ff".parse().unwrap();
        assert_eq!(mac, MacAddr([0x52, 0x54, 0, 0x0a, 0x0b, 0xff]));
        assert_eq!(mac.to_string(), "52:54:00:0a:0b:ff");
        for same in ["52-54-00-0A-0b-FF", "5254.000a.0bff", "5254.000A.0BFF", "5254000a0BfF"] {
            assert_eq!(same.parse::<MacAddr>(), Ok(mac), "{same}");
        }
        for bad in [
            "",
            ":",
            "52:54:00:0a:0b",
            "52:54:00:0a:0b:ff:00",
            "52:54:00:0a:0b:+f",
            "52:54:00-0a-0b-ff",
            "5254.000a",
            "5254.000a.0bff.0000",
            "525.4000a.0bff",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
