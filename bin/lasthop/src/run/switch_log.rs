//! Lines of the log that the switch has us write. One port's front-end and guest cause no more of them than a few at once and then one a
//! second; the others are counted, and said to have been left out.

use super::cable::FAR_PORT;
use super::port::Port;
use super::supervisor::Supervisor;
use super::uplink::Uplink;
use lasthop_log::LineLimit;
use lasthop_text::counted;
use lasthop_types::{Level, LogLine, PortId};
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::{error, info, warn};

/// How a line begins by which a device says that a port has lost its memory to a copy in which its DMA engine hangs.
const HUNG_COPY: &str = "ring stopped: the DMA engine hangs";

/// What each port may still cause.
#[derive(Debug, Default)]
pub struct SwitchLog(BTreeMap<PortId, LineLimit>);

impl SwitchLog {
    /// Writes the line. `name` is its port's; without one it is about none, or about one that is no more, and nothing is held back.
    pub fn write(&mut self, line: &LogLine, name: Option<&str>, now: Instant) {
        let &LogLine { port, level, ref text, left_out } = line;
        let Some(name) = name else {
            match level {
                Level::Error => error!("{text}"),
                Level::Warn => warn!("{text}"),
                Level::Info => info!("{text}"),
            }
            if left_out > 0 {
                warn!("{} of the switch left out", counted(left_out, "more line"));
            }
            return;
        };
        let limit = self.0.entry(port).or_insert_with(|| LineLimit::new(now));
        if let Some(more) = limit.pass(now) {
            say_left_out(name, more);
            match level {
                Level::Error => error!(port = %name, "{text}"),
                Level::Warn => warn!(port = %name, "{text}"),
                Level::Info => info!(port = %name, "{text}"),
            }
        }
        limit.leave_out(left_out);
    }

    /// When [`SwitchLog::step`] has something to say.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(LineLimit::deadline).min()
    }

    /// Says how many lines of a port were left out, once that may be said. Of ports without a `name` nothing is kept.
    pub fn step<'a>(&mut self, name: impl Fn(PortId) -> Option<&'a str>, now: Instant) {
        self.0.retain(|port, limit| {
            let name = name(*port);
            if let (Some(more), Some(name)) = (limit.overdue(now), name) {
                say_left_out(name, more);
            }
            name.is_some()
        });
    }
}

fn say_left_out(name: &str, lines: u64) {
    if lines > 0 {
        warn!(port = %name, "{} of this port left out", counted(lines, "more line"));
    }
}

impl Supervisor {
    pub(super) fn write_for_switch(&mut self, line: &LogLine, now: Instant) {
        self.switch_log.write(line, name_of(&self.ports, &self.uplinks, line.port), now);
        // Its front-end has to connect anew, which machines do as soon as they are hung up on, and not before. Cables and uplinks find it by themselves.
        if self.of_device.is_some()
            && line.text.starts_with(HUNG_COPY)
            && let Some(port) = self.ports.get(&line.port.0).filter(|port| port.config.name != FAR_PORT)
        {
            port.hang_up();
        }
    }

    pub(super) fn step_switch_log(&mut self, now: Instant) {
        self.switch_log.step(|port| name_of(&self.ports, &self.uplinks, port), now);
    }
}

/// What a port is called, an uplink's too.
fn name_of<'a>(ports: &'a BTreeMap<u32, Port>, uplinks: &'a BTreeMap<u32, Uplink>, id: PortId) -> Option<&'a str> {
    let config = ports.get(&id.0).map(|port| &port.config).or_else(|| Some(&uplinks.get(&id.0)?.config));
    config.map(|config| config.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, Write};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> Result<(), Error> {
            Ok(())
        }
    }

    /// What is written of 1000 lines each of port 1, of port 2 which is removed then, and of no port; a second later; and of port 1 then.
    #[test]
    fn one_port_fills_no_log_and_nothing_is_left_out_silently() {
        let written = Written::default();
        let out = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || out.clone()).with_ansi(false).without_time();
        let (start, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let lines = || {
            let text = String::from_utf8(std::mem::take(&mut *written.0.lock().unwrap())).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let line = |port, left_out| LogLine { port: PortId(port), level: Level::Warn, text: "what".into(), left_out };
        tracing::subscriber::with_default(subscriber.with_target(false).finish(), || {
            let mut log = SwitchLog::default();
            for n in 0..1000 {
                log.write(&line(1, if n == 999 { 2000 } else { 0 }), Some("a"), start);
            }
            let first = lines();
            assert_eq!((first.len() as u32, first[0].trim()), (LineLimit::AT_ONCE, "WARN what port=a"));
            for _ in 0..1000 {
                log.write(&line(2, 0), Some("b"), start);
                log.write(&line(0, 0), None, start);
            }
            assert_eq!(lines().len() as u32, LineLimit::AT_ONCE + 1000);
            log.write(&line(0, 5), None, start);
            assert_eq!(lines()[1].trim(), "WARN 5 more lines of the switch left out");
            let name = |port| (port == PortId(1)).then_some("a");
            log.step(name, start);
            assert_eq!((lines().len(), log.0.len(), log.deadline()), (0, 1, Some(start + Duration::from_secs(1))));
            log.step(name, later);
            let left_out = 1000 - u64::from(LineLimit::AT_ONCE) + 2000;
            let said = lines();
            assert!(
                said.len() == 1 && said[0].contains(&format!("{left_out} more lines of this port left out port=a")),
                "{said:?}"
            );
            assert_eq!(log.deadline(), None);
            log.write(&line(1, 0), Some("a"), later + Duration::from_secs(5));
            assert_eq!(lines().len(), 1);
        });
    }
}
