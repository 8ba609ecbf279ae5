//! Ethernet addresses as people write them and as policy tells them apart.

use super::MacAddr;
use std::fmt;
use std::str::FromStr;

impl MacAddr {
    /// 01:80:c2:00:00:00 to :0f, which a bridge must not forward (IEEE 802.1D §7.12.6).
    pub fn is_link_local(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && self.0[5] & 0xf0 == 0
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

    /// Six pairs of digits with `:` or `-` between, or three groups of four with `.` between; upper or lower case.
    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let (separator, width) = match s.bytes().find(|b| matches!(b, b':' | b'-' | b'.')) {
            Some(b'.') => ('.', 4),
            Some(b'-') => ('-', 2),
            _ => (':', 2),
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
    fn text_round_trip() {
        let mac: MacAddr = "52:54:00:0a:0B:ff".parse().unwrap();
        assert_eq!(mac, MacAddr([0x52, 0x54, 0, 0x0a, 0x0b, 0xff]));
        assert_eq!(mac.to_string(), "52:54:00:0a:0b:ff");
        for same in ["52-54-00-0A-0b-FF", "5254.000a.0bff", "5254.000A.0BFF", "52:54:00:0A:0B:FF"] {
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
            "5254000a0bff",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
