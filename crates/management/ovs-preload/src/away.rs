//! While lasthop is away: who needs it waits.

use libc::{c_int, c_long};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Whoever finds lasthop gone looks again after so many nanoseconds.
const PAUSE_NS: c_long = 100_000_000;
/// For how long lasthop may be gone, in milliseconds, before whoever needs it is told so. Ended and started again it is gone for seconds. Beyond this nobody
/// may come any more, and the program is to be one that can be asked and ended.
const PATIENCE_MS: u64 = 600_000;
/// How long the answer to a hello may take, in seconds: then it is said anew.
const ANSWER_S: libc::time_t = 10;

/// Since when lasthop is gone, in milliseconds of the monotonic clock; 0: it was there when it was needed last.
static AWAY_SINCE: AtomicU64 = AtomicU64::new(0);
/// Not 0: a signal has come while lasthop was away, which may be to end this process: nobody waits until lasthop is there again.
static SIGNALLED: AtomicU32 = AtomicU32::new(0);
/// Not 0: this process was connected once. One that finds no lasthop at its start is told so.
static HAS_COME: AtomicU32 = AtomicU32::new(0);

/// Milliseconds of the monotonic clock; at least 1.
fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is a live local.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// Whether the hello on a connection is answered, by an answer or its end. A `lasthop run` whose `lasthop-ovs` hangs, or is not there, lets programs connect all the same.
/// A signal ends the wait, whatever its handler says of system calls.
pub(crate) fn is_answered(fd: c_int) -> bool {
    let mut of = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let within = libc::timespec { tv_sec: ANSWER_S, tv_nsec: 0 };
    loop {
        // SAFETY: one entry and a time, both live locals; no mask of signals.
        let ready = unsafe { libc::syscall(libc::SYS_ppoll, &raw mut of, 1usize, &raw const within, 0usize, 0usize) };
        if ready >= 0 {
            return ready > 0;
        }
        // One that has just been started is not being ended for its lasthop's sake.
        if HAS_COME.load(Relaxed) != 0 {
            SIGNALLED.store(1, Relaxed);
            return false;
        }
    }
}

/// Tries until something is there, with a pause after each time that it is not; `None` once lasthop has been gone for too long.
pub(crate) fn wait_until<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(done) = attempt() {
            AWAY_SINCE.store(0, Relaxed);
            SIGNALLED.store(0, Relaxed);
            HAS_COME.store(1, Relaxed);
            return Some(done);
        }
        if HAS_COME.load(Relaxed) == 0 {
            return None;
        }
        let now = now_ms();
        let since = match AWAY_SINCE.compare_exchange(0, now, Relaxed, Relaxed) {
            Ok(_) => now,
            Err(before) => before,
        };
        let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
        // SAFETY: the time is a live local; nothing is written.
        if unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, 0usize) } < 0 {
            SIGNALLED.store(1, Relaxed);
        }
        if SIGNALLED.load(Relaxed) != 0 || now.saturating_sub(since) >= PATIENCE_MS {
            return None;
        }
    }
}
