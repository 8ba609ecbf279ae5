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

/// The text is not six two-digit hexadecimal numbers with colons between.
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

    fn from_str(s: &str) -> Result<Self, ParseMacError> {
        let mut out = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut out {
            let part = parts.next().ok_or(ParseMacError)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(out)) }
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
        for bad in ["", "52:54:00:0a:0b", "52:54:00:0a:0b:ff:00", "52:54:00:0a:0b:+f", "5254.000a.0bff"] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
