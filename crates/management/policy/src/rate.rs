//! Rates as people write them: `100M`, `1.5G:256K`, `20kpps:500`.

use std::fmt;
use std::str::FromStr;

/// So many bits or packets a second, and how many bytes or packets may come at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What is counted.
    pub unit: Unit,
    /// A second.
    pub rate: u64,
    /// Bytes or packets; `None`: [`Rate::burst`] chooses.
    pub burst: Option<u64>,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bits of frames, without what a wire adds.
    Bits,
    /// Packets; one of 64 KiB counts once.
    Packets,
}

/// Least that is chosen to come at once: a packet of 64 KiB, and as many packets as a burst has.
const LEAST: (u64, u64) = (65_536, 64);
/// The rest that is made up for, if nothing is said: as much as comes in this part of a second.
const PART: u64 = 10;
/// Least rate in bits a second: one at which the longest frame of a usual network, 1514 bytes, takes a second.
const LEAST_BITS: u64 = 1514 * 8;
/// Greatest rate, in bits or packets a second.
const MOST: u64 = 1_000_000_000_000;

impl Rate {
    pub(crate) const ANY: Self = Self::of_bits(1);

    /// So many bits a second.
    pub const fn of_bits(rate: u64) -> Self {
        Self { unit: Unit::Bits, rate, burst: None }
    }

    /// Bits a second; `None` if packets are counted.
    pub fn bits(&self) -> Option<u64> {
        (self.unit == Unit::Bits).then_some(self.rate)
    }

    /// One of which others are parts, or a part: bits a second and no burst. The error does not speak of what cannot be written here.
    pub(crate) fn of_bits_alone(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Self { unit: Unit::Packets, .. }) => Err(format!("packets say nothing of bits; {BITS_ALONE}")),
            Ok(Self { burst: Some(_), .. }) => Err(format!("a part has no burst; {BITS_ALONE}")),
            Ok(rate) => Ok(rate),
            Err(e) => Err(e.strip_suffix(EXPECTED).map(|what| format!("{what}{BITS_ALONE}")).unwrap_or(e)),
        }
    }

    /// Bytes a second, or packets.
    pub fn per_second(&self) -> u64 {
        match self.unit {
            Unit::Bits => (self.rate / 8).max(1),
            Unit::Packets => self.rate,
        }
    }

    /// Bytes, or packets, that may come at once after a rest: a tenth of a second's, and one large packet at least.
    pub fn burst(&self) -> u64 {
        let least = if self.unit == Unit::Bits { LEAST.0 } else { LEAST.1 };
        self.burst.unwrap_or((self.per_second() / PART).max(least))
    }

    /// The same in nanoseconds at this rate.
    pub fn burst_ns(&self) -> u64 {
        let ns = u128::from(self.burst()) * 1_000_000_000 / u128::from(self.per_second().max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

const EXPECTED: &str = "write bits a second such as 500k, 100M or 1.5G, or packets such as 20kpps, and perhaps ':' and how many bytes (or packets) may come at once, such as 100M:256K";

const BITS_ALONE: &str = "write bits a second alone, such as 500k, 100M or 1.5G";

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no rate; {EXPECTED}");
        let (rate, burst) = text.split_once(':').map_or((text, None), |(rate, burst)| (rate, Some(burst)));
        if ["kbps", "mbps", "gbps"].iter().any(|unit| rate.to_ascii_lowercase().ends_with(unit)) {
            let number = rate.get(..rate.len() - 3).unwrap_or_default();
            return Err(format!(
                "{text:?} is bits a second to some and bytes to others (tc); write {number}bit for bits, and eight times as much for bytes"
            ));
        }
        let (number, unit) = match rate.strip_suffix("pps") {
            Some(number) => (number, Unit::Packets),
            None => (rate.strip_suffix("bps").or(rate.strip_suffix("bit")).unwrap_or(rate), Unit::Bits),
        };
        let rate = quantity(number, 1000).filter(|rate| (1..=MOST).contains(rate)).ok_or_else(wrong)?;
        if unit == Unit::Bits && rate < LEAST_BITS {
            let seconds = LEAST_BITS.div_ceil(rate);
            let digits = number.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
            return Err(format!(
                "{number} is {rate} bits a second, at which one frame of 1514 bytes takes {seconds} s; did you mean {digits}M? The least is 13k"
            ));
        }
        let step = if unit == Unit::Bits { 1024 } else { 1000 };
        let burst = match burst {
            Some(burst) => Some(quantity(burst, step).filter(|burst| (1..=MOST).contains(burst)).ok_or_else(wrong)?),
            None => None,
        };
        Ok(Self { unit, rate, burst })
    }
}

/// A number with a multiple of 1000 (rates) or 1024 (bytes) behind it.
fn quantity(text: &str, step: u64) -> Option<u64> {
    let (digits, power) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1),
        (at, 'm' | 'M') => (&text[..at], 2),
        (at, 'g' | 'G') => (&text[..at], 3),
        _ => (text, 0),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let unit = step.pow(power);
    let of_part = u64::from(!part.is_empty() && part.len() <= 9);
    let part =
        number(part)?.checked_mul(unit)? / 10u64.pow(u32::try_from(part.len()).ok().filter(|n| *n <= 9)?) * of_part;
    number(whole)?.checked_mul(unit)?.checked_add(part)
}

/// With the greatest multiple that says it exactly.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pps = if self.unit == Unit::Packets { "pps" } else { "" };
        f.write_str(&shown(self.rate, 1000, ["", "k", "M", "G"]))?;
        f.write_str(pps)?;
        match self.burst {
            Some(burst) if self.unit == Unit::Bits => write!(f, ":{}", shown(burst, 1024, ["", "K", "M", "G"])),
            Some(burst) => write!(f, ":{burst}"),
            None => Ok(()),
        }
    }
}

fn shown(mut number: u64, step: u64, names: [&str; 4]) -> String {
    let mut power = 0;
    while power < 3 && number != 0 && number.is_multiple_of(step) {
        (number, power) = (number / step, power + 1);
    }
    format!("{number}{}", names[power])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_people_write() {
        for (text, per_second, burst, shown) in [
            ("100M", 12_500_000, 1_250_000, "100M"),
            ("1.5G", 187_500_000, 18_750_000, "1500M"),
            ("500k", 62_500, 65_536, "500k"),
            ("10Mbit", 1_250_000, 125_000, "10M"),
            ("12112", 1514, 65_536, "12112"),
            ("100M:256K", 12_500_000, 262_144, "100M:256K"),
            ("20kpps", 20_000, 2000, "20kpps"),
            ("100pps:5", 100, 5, "100pps:5"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.per_second(), rate.burst(), &*rate.to_string()), (per_second, burst, shown), "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for bad in
            ["", "0", "M", "-1", "1e6", "fast", "10M:", "10M:0", "pps", "9999G", "1.M", ".5M", "1.1234567890M", "1 M"]
        {
            let said = bad.parse::<Rate>();
            assert!(said.as_ref().is_err_and(|e| e.contains("such as 500k, 100M")), "{bad}: {said:?}");
        }
    }

    #[test]
    fn a_rate_that_may_be_bits_or_bytes_is_refused() {
        for text in ["100mbps", "1Gbps:64K", "500kbps"] {
            let said = text.parse::<Rate>().unwrap_err();
            assert!(said.contains("bytes to others (tc); write") && said.contains("bit for bits"), "{said}");
        }
    }

    /// Somebody who leaves out the unit means megabits, and would wait for minutes for the first answer.
    #[test]
    fn a_rate_at_which_a_frame_takes_more_than_a_second_is_refused() {
        for (text, parts) in [
            ("100", ["100 bits a second", "takes 122 s", "did you mean 100M?"]),
            ("1:64K", ["1 bits a second", "takes 12112 s", "did you mean 1M?"]),
            ("10kbit", ["10000 bits a second", "takes 2 s", "did you mean 10M?"]),
            ("1.5k", ["1500 bits a second", "takes 9 s", "did you mean 1.5M?"]),
        ] {
            let said = text.parse::<Rate>().unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
        }
        assert!("12111".parse::<Rate>().is_err() && "12112".parse::<Rate>().is_ok() && "1pps".parse::<Rate>().is_ok());
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in "[0-9.kKMGps:bit]{0,14}") {
            if let Ok(rate) = text.parse::<Rate>() {
                prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
                prop_assert!(rate.per_second() > 0 && rate.burst_ns() > 0);
            }
        }
    }
}
