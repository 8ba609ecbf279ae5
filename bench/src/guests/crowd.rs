//! Programs that spin beside guests and switch, and what they get of the CPUs.

use lasthop_harness::stop::{Outcome, failed};
use lasthop_sys::CpuList;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

/// CPUs that a crowd is on.
pub(super) const CROWDED: f64 = 2.0;

/// Programs that take whatever processor time they are given, one on each of some CPUs.
pub(super) struct Crowd {
    stop: Arc<AtomicBool>,
    members: Vec<(JoinHandle<()>, Arc<AtomicU64>)>,
    began: Instant,
    before: u64,
    /// Of all this process: the crowd, the guests and what looks at both.
    all_before: u64,
}

impl Crowd {
    pub fn new(cpus: &[usize]) -> Outcome<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let members = cpus.iter().map(|&cpu| {
            let (stop, used) = (stop.clone(), Arc::new(AtomicU64::new(0)));
            let counter = used.clone();
            let spin = move || {
                let _ = [cpu].into_iter().collect::<CpuList>().bind_current_thread();
                while !stop.load(Relaxed) {
                    (0..1000).for_each(|_| std::hint::spin_loop());
                    counter.store(clock_ns(ClockId::ThreadCPUTime), Relaxed);
                }
            };
            std::thread::Builder::new().name("crowd".into()).spawn(spin).map(|thread| (thread, used)).map_err(failed)
        });
        let members = members.collect::<Outcome<_>>()?;
        Ok(Self { stop, members, began: Instant::now(), before: 0, all_before: 0 })
    }

    fn used(&self) -> u64 {
        self.members.iter().map(|(_, used)| used.load(Relaxed)).sum()
    }

    pub fn begin(&mut self) {
        (self.began, self.before) = (Instant::now(), self.used());
        self.all_before = clock_ns(ClockId::ProcessCPUTime);
    }

    /// What they got since, as a part of all there was, and what the rest of this process did.
    pub fn parts(&self) -> (f64, f64) {
        let all = self.began.elapsed().as_nanos() as f64 * CROWDED;
        let crowd = self.used() - self.before;
        let rest = (clock_ns(ClockId::ProcessCPUTime) - self.all_before).saturating_sub(crowd);
        (crowd as f64 / all, rest as f64 / all)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for (thread, _) in self.members.drain(..) {
            let _ = thread.join();
        }
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
