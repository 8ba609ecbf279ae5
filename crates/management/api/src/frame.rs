//! A frame written in digits.

use lasthop_text::counted;
use lasthop_types::MAX_FRAME_LEN;

/// Hexadecimal digits to bytes; white space and `:` between them do not matter.
pub fn parse_frame(text: &str) -> Result<Vec<u8>, String> {
    let mut digits = Vec::with_capacity(text.len());
    for c in text.chars().filter(|c| !c.is_ascii_whitespace() && *c != ':') {
        let digit = c.to_digit(16).and_then(|d| u8::try_from(d).ok());
        digits.push(digit.ok_or_else(|| format!("{c:?} is not a hexadecimal digit"))?);
    }
    let (bytes, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        let digits = counted(digits.len() as u64, "hexadecimal digit");
        return Err(format!("the frame has {digits}; two make a byte"));
    }
    match bytes.len() {
        14..=MAX_FRAME_LEN => Ok(bytes.iter().map(|[high, low]| high << 4 | low).collect()),
        n => Err(format!("the frame has {}; an Ethernet frame has 14 to {MAX_FRAME_LEN}", counted(n as u64, "byte"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_hexadecimal() {
        assert_eq!(parse_frame(&"0f".repeat(14)).unwrap(), [0x0f; 14]);
        assert_eq!(parse_frame("ff:ff ffffffff 525400000001\n0800").unwrap().len(), 14);
        for (bad, why) in [("0f", "1 byte;"), ("0f0", "two make a byte"), ("xy", "'x' is not"), ("", "0 bytes")] {
            assert!(parse_frame(bad).unwrap_err().contains(why), "{bad}");
        }
        assert!(parse_frame(&"00".repeat(MAX_FRAME_LEN + 1)).is_err());
    }
}
