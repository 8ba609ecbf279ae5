//! Addresses as people write them (feature `text`): the switch reads none.

use super::MacAddr;
use std::fmt;
use std::str::FromStr;

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
