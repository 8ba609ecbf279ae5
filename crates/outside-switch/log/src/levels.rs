//! Which lines a process writes, changed while it runs.

use crate::{Lines, Log};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_core::{Level, LevelFilter};
use tracing_subscriber::EnvFilter;

/// Libraries that have something to say of every client; only who wants all of it gets that.
const QUIET: &str = "zlink_core=error";

type Reload = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

struct Levels {
    reload: Reload,
    /// As it was told last.
    current: Mutex<String>,
    /// What `RUST_LOG` said at the start, or what holds without it.
    begins_with: String,
}

static LEVELS: OnceLock<Levels> = OnceLock::new();

/// The word that brings back what held at the start.
pub const DEFAULT_LEVEL: &str = "default";

/// Levels by name, the fewest lines first.
pub const LEVEL_NAMES: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The process writes its lines to `log` from now on: as `RUST_LOG` says, or from level `info` on. False where a subscriber was set before, which stays.
pub fn begin(log: &Log) -> bool {
    let from_environment = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| EnvFilter::try_new(text).is_ok());
    let begins_with = from_environment.filter(|text| !text.is_empty()).unwrap_or_else(|| "info".into());
    let lines = log.clone();
    let logs = tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter(&begins_with));
    let logs = logs.event_format(Lines::new()).with_writer(move || lines.clone()).with_filter_reloading();
    let handle = logs.reload_handle();
    let begun = tracing_core::dispatcher::set_global_default(logs.finish().into()).is_ok();
    if begun {
        let reload: Reload = Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
        let _ = LEVELS.set(Levels { reload, current: Mutex::new(begins_with.clone()), begins_with });
    }
    begun
}

/// A level's name alone stands for this program's own lines.
fn filter(text: &str) -> EnvFilter {
    match text.parse::<Level>() {
        Ok(level) if level != Level::TRACE => EnvFilter::new(format!("{text},{QUIET}")),
        _ => EnvFilter::new(text),
    }
}

/// What is written now: a level, or what `RUST_LOG` said.
pub fn level() -> String {
    let current = LEVELS.get().map(|levels| levels.current.lock().unwrap_or_else(PoisonError::into_inner).clone());
    current.unwrap_or_else(|| LevelFilter::current().to_string())
}

/// Lines from this level on are written from now on; [`DEFAULT_LEVEL`]: those that were at the start. What is not a level is refused, and
/// changes nothing.
pub fn set_level(name: &str) -> Result<(), String> {
    let Some(levels) = LEVELS.get() else { return Err("this process has no log".into()) };
    let text = match name {
        DEFAULT_LEVEL => &levels.begins_with[..],
        name if LEVEL_NAMES.contains(&name) => name,
        name => {
            return Err(format!("{name:?} is no level; there are {} and {DEFAULT_LEVEL}", LEVEL_NAMES.join(", ")));
        }
    };
    (levels.reload)(filter(text))?;
    text.clone_into(&mut levels.current.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// The one test that sets the process's subscriber.
    #[test]
    fn lines_come_and_go_with_the_level() {
        let (log, (reader, writer)) = (Log::new(), std::io::pipe().unwrap());
        assert!(begin(&log) && !begin(&log));
        assert_eq!(level(), "info");
        let say = |text: &'static str| {
            tracing::debug!("debug {text}");
            tracing::info!("info {text}");
            tracing::warn!("warn {text}");
        };
        say("0");
        for (n, name) in [("1", "debug"), ("2", "warn"), ("3", DEFAULT_LEVEL)] {
            set_level(name).unwrap();
            say(n);
        }
        assert_eq!(level(), "info");
        assert!(set_level("loud").unwrap_err().contains("error, warn, info, debug, trace and default"));
        say("4");
        log.write_all_to(writer);
        let lines: Vec<_> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        let said: Vec<_> =
            lines.iter().map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect();
        let expected =
            ["info 0", "warn 0", "debug 1", "info 1", "warn 1", "warn 2", "info 3", "warn 3", "info 4", "warn 4"];
        assert_eq!(said, expected);
    }
}
