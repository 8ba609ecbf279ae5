//! How long a test waits, apart from what its machine makes it wait.

use crate::proc;
use std::fmt;
use std::time::{Duration, Instant};

/// How many times as long as it is to last it may last.
const MOST: u32 = 10;

/// A limit of time that stands still while the thread that set it wants a processor and has none, up to a bound: what happens only while this
/// thread takes part has not had that time either.
#[derive(Debug)]
pub struct Patience {
    since: Instant,
    limit: Duration,
    waited_ns: u64,
}

impl Patience {
    /// From now on.
    pub fn new(limit: Duration) -> Self {
        Self { since: Instant::now(), limit, waited_ns: proc::waited_ns() }
    }

    /// It has an end.
    pub fn is_over(&self) -> bool {
        let lasted = self.since.elapsed();
        lasted > self.limit && is_over(lasted, self.waited(), self.limit)
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(proc::waited_ns().saturating_sub(self.waited_ns))
    }
}

fn is_over(lasted: Duration, waited: Duration, limit: Duration) -> bool {
    lasted.saturating_sub(waited) > limit || lasted > limit * MOST
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this thread waited for a processor for {:.1?} of {:.1?}", self.waited(), self.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn it_ends_by_the_time_that_its_thread_had_and_after_ten_times_as_long_whatever_that_had() {
        let over =
            |lasted, waited| is_over(Duration::from_secs(lasted), Duration::from_secs(waited), Duration::from_secs(20));
        assert!(!over(20, 0) && over(21, 0));
        assert!(!over(40, 20) && over(42, 20) && !over(200, 190) && over(201, 200));
    }

    /// Another thread on the same processor has it half of the time.
    #[test]
    fn a_thread_that_has_no_processor_waits() {
        let (stop, patience) = (AtomicBool::new(false), Patience::new(Duration::ZERO));
        let all = sched_getaffinity(None).expect("where this thread may run");
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("one processor"));
        sched_setaffinity(None, &one).expect("one that it may run on");
        std::thread::scope(|scope| {
            // Where the first may run the second may.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
            let end = Instant::now() + crate::PATIENCE;
            while patience.waited() < Duration::from_millis(20) && Instant::now() < end {}
            stop.store(true, Ordering::Relaxed);
        });
        assert!(patience.waited() >= Duration::from_millis(20), "{patience}");
    }
}
