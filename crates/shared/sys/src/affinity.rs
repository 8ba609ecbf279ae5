//! Which CPUs a thread may use (sched_setaffinity(2)), and lists of CPUs as people write them: `0,2-3`.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest CPU number the affinity calls used here can name.
const LAST_CPU: usize = CpuSet::MAX_CPU - 1;

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

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

impl CpuList {
    /// The CPUs the calling thread may use.
    pub fn allowed() -> Result<Self, Errno> {
        let set = sched_getaffinity(None)?;
        Ok(Self((0..=LAST_CPU).filter(|&cpu| set.is_set(cpu)).collect()))
    }

    /// Binds the calling thread, and threads and processes it starts later, to these CPUs. Fails with `INVAL` when none
    /// of them is online or allowed here.
    pub fn bind_current_thread(&self) -> Result<(), Errno> {
        sched_setaffinity(None, &self.set())
    }

    /// As the kernel has it.
    pub(crate) fn set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        for &cpu in self.0.range(..=LAST_CPU) {
            set.set(cpu);
        }
        set
    }

    /// The CPUs in rising order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// Those that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
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
    fn a_thread_stays_on_the_cpus_it_was_bound_to() {
        let allowed = CpuList::allowed().unwrap();
        let one: CpuList = allowed.iter().take(1).collect();
        let bound = std::thread::spawn(move || {
            one.bind_current_thread().unwrap();
            (CpuList::allowed().unwrap(), one)
        });
        let (got, one) = bound.join().unwrap();
        assert_eq!(got, one);
        assert_eq!(CpuList::allowed().unwrap(), allowed, "another thread is not affected");
        assert!(CpuList::default().bind_current_thread().is_err());
        assert_eq!(allowed.without(&one).len(), allowed.len() - 1);
    }

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
