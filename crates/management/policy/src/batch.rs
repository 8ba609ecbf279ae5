//! For how long, and for how many packets, nobody is woken: a setting of ports, and an option of `lasthop run` for those without.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest time, in microseconds.
const MAX_US: u32 = 1_000_000;
/// Most packets: the largest ring has no more.
const MAX_PACKETS: u16 = 32_768;

/// Whatever comes first. With a 0 nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Microseconds.
    pub us: u32,
    /// Packets.
    pub packets: u16,
}

impl Batch {
    /// Nobody waits.
    const OFF: Self = Self { us: 0, packets: 0 };

    /// Checks what did not come from a command line. The error says what is wrong and what would be right.
    pub fn check(self) -> Result<(), String> {
        if self.us > MAX_US {
            return Err(format!("{} microseconds are too long to wait; use at most {MAX_US}", self.us));
        }
        if self.packets > MAX_PACKETS {
            return Err(format!("{} packets fit no ring; write {MAX_PACKETS} or less", self.packets));
        }
        Ok(())
    }
}

impl FromStr for Batch {
    type Err = String;

    /// `off`, `US` or `US,PACKETS`; where commas mean something else, `US:PACKETS`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::OFF);
        }
        let (us, packets) = text.split_once([',', ':']).unwrap_or((text, "64"));
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(n) if n <= MAX_US => Ok(n),
            _ => Err(format!("{digits:?} is not a number from 0 to {MAX_US}; write 125 or 125,64, or off")),
        };
        let (us, packets) = (number(us)?, number(packets)?);
        let batch = Self { us, packets: u16::try_from(packets).unwrap_or(u16::MAX) };
        batch.check().map(|()| batch)
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.us == 0 || self.packets == 0 {
            return f.write_str("off");
        }
        write!(f, "{},{}", self.us, self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_perhaps_packets() {
        let batch = |us, packets| Ok(Batch { us, packets });
        assert_eq!("off".parse(), batch(0, 0));
        assert_eq!("250".parse(), batch(250, 64));
        assert_eq!("250,32".parse(), batch(250, 32));
        assert_eq!("250:32768".parse(), batch(250, 32_768));
        assert_eq!(Batch { us: 250, packets: 32 }.to_string(), "250,32");
        assert_eq!(Batch { us: 0, packets: 64 }.to_string(), "off");
        for bad in ["", "x", "1,", ",1", "1,2,3", "1:2:3", "-1", "4000000", "on"] {
            assert!(bad.parse::<Batch>().unwrap_err().contains("or off"), "{bad}");
        }
        for bad in ["1,40000", "1:70000"] {
            assert!(bad.parse::<Batch>().unwrap_err().contains("32768"), "{bad}");
        }
        assert!(Batch { us: 1_000_001, packets: 1 }.check().is_err());
    }
}
