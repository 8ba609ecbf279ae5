//! What people write and read: Ethernet addresses, and numbers of things. The switch has six bytes for an address, and no words.

mod counted;
mod mac;

pub use counted::counted;
pub use mac::MacAddr;

/// Reads an Ethernet address: six pairs of digits with `:` or `-` between, three groups of four with `.` between, or twelve digits; upper
/// or lower case. An error says what to write.
pub fn parse_mac(text: &str) -> Result<MacAddr, &'static str> {
    digits(text).ok_or("not a MAC address; write six pairs of hexadecimal digits, such as 52:54:00:12:34:56")
}

fn digits(text: &str) -> Option<MacAddr> {
    let (separator, width) = match text.bytes().find(|b| matches!(b, b':' | b'-' | b'.')) {
        Some(b'.') => ('.', 4),
        Some(b'-') => ('-', 2),
        Some(_) => (':', 2),
        None => (':', 12),
    };
    let (mut value, mut digits) = (0, 0);
    for part in text.split(separator) {
        digits += width;
        if digits > 12 || part.len() != width || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        value = value << (4 * width) | u64::from_str_radix(part, 16).ok()?;
    }
    let [_, _, address @ ..] = value.to_be_bytes();
    (digits == 12).then_some(MacAddr(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_usual_spellings_and_no_others() {
        let mac = MacAddr([0x52, 0x54, 0, 0x0a, 0x0b, 0xff]);
        for same in [
            "52:54:00:0a:0B:ff",
            "52-54-00-0A-0b-FF",
            "5254.000a.0bff",
            "5254.000A.0BFF",
            "5254000a0BfF",
            &mac.to_string(),
        ] {
            assert_eq!(parse_mac(same), Ok(mac), "{same}");
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
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
    }
}
