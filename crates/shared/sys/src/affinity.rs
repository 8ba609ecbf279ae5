//! Which CPUs a thread may use (sched_setaffinity(2)).

mod text;

pub use text::ParseCpusError;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// Highest CPU number the affinity calls used here can name.
const LAST_CPU: usize = CpuSet::MAX_CPU - 1;

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
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
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
}
