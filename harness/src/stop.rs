//! Ctrl-C and SIGTERM: a flag that every wait looks at, so that each thing started is ended by its owner's drop.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a measurement has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user asked to stop.
    Stopped,
    /// Anything else, in words.
    Failed(String),
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped by the user"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// What a step of a measurement returns.
pub type Outcome<T> = Result<T, Failure>;

/// A failure in words.
pub fn failed(why: impl Display) -> Failure {
    Failure::Failed(why.to_string())
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT and SIGTERM into the flag; once, before anything is started.
pub fn watch() -> Outcome<()> {
    let stop = || {
        STOP.store(true, Ordering::Relaxed);
        eprintln!("stopping; when VMs are booting, that takes some seconds");
    };
    ctrlc::set_handler(stop).map_err(failed)
}

/// An error once the user asked to stop.
pub fn check() -> Outcome<()> {
    if STOP.load(Ordering::Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
}

/// Sleeps, unless the user asks to stop.
pub fn pause(time: Duration) -> Outcome<()> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Asks `poll` every 20 ms until it has something; fails with `what` after `limit`.
pub fn until<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(failed(format!("waited {} s in vain for {what}", limit.as_secs())));
        }
        pause(Duration::from_millis(20))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_it_found_or_says_what_it_missed() {
        let mut n = 0;
        let found = until("three", Duration::from_secs(60), || {
            n += 1;
            Ok((n == 3).then_some(n))
        });
        assert_eq!(found, Ok(3));
        let missed: Outcome<()> = until("rain", Duration::ZERO, || Ok(None));
        assert_eq!(missed, Err(failed("waited 0 s in vain for rain")));
    }
}
