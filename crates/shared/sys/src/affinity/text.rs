//! Lists of CPUs as people write them: `0,2-3`.

use super::{CpuList, LAST_CPU};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Why a text is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpusError {
    /// Not a number or a range of two numbers.
    #[error("{0:?} is neither a CPU number nor a range; write a list like 0,2-3")]
    NotANumber(String),
    /// The range's end comes before its start.
    #[error("the range {0:?} runs backwards; write the lower CPU first")]
    Backwards(String),
    /// Beyond what the kernel interface can name.
    #[error("CPU {0} is beyond the last possible one, {LAST_CPU}")]
    TooHigh(usize),
}

impl CpuList {
    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// Those that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromStr for CpuList {
    type Err = ParseCpusError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, part)?, number(last, part)?);
            if last < first {
                return Err(ParseCpusError::Backwards(part.into()));
            }
            if last > LAST_CPU {
                return Err(ParseCpusError::TooHigh(last));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

/// Digits only: `usize::from_str` would take a sign.
fn number(digits: &str, part: &str) -> Result<usize, ParseCpusError> {
    let wrong = || ParseCpusError::NotANumber(part.into());
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    digits.parse().map_err(|_| wrong())
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, written) in [("0", "0"), ("0,2-3", "0,2-3"), ("3,2,0", "0,2-3"), ("0-1, 1-2", "0-2"), ("7-7", "7")] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written);
        }
        for bad in ["", ",", "0,", "x", "-1", "+1", "1-", "0-1-2", "99999999999999999999"] {
            assert!(matches!(bad.parse::<CpuList>(), Err(ParseCpusError::NotANumber(_))), "{bad}");
        }
        assert_eq!("3-1".parse::<CpuList>(), Err(ParseCpusError::Backwards("3-1".into())));
        assert_eq!("0-4000000000".parse::<CpuList>(), Err(ParseCpusError::TooHigh(4_000_000_000)));
    }
}
