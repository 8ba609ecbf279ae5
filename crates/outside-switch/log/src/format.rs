//! How lines of the log are written: for people, for programs, or for journald. All processes of one `lasthop run` write alike: it says so in
//! their environment.
//!
//! Objects are written here, and not by a library, since what reads JSON comes with what writes it, and a process that talks to the network is to
//! have no such parser. journald is told by standard error (sd-daemon(3)), and not by its socket, which confined processes do not reach.

use std::fmt::{self, Write};
use std::sync::OnceLock;
use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Compact, Format as Text, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// The variable of the environment by which `lasthop run` tells its children.
pub const FORMAT_VARIABLE: &str = "LASTHOP_LOG_FORMAT";

/// The variable by which it tells those of a device whose lines they are: the device's name.
pub const DEVICE_VARIABLE: &str = "LASTHOP_LOG_DEVICE";

static CURRENT: OnceLock<Format> = OnceLock::new();

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Time, level, text, fields.
    #[default]
    Text,
    /// A JSON object (RFC 8259) a line.
    Json,
    /// A priority as `<4>`, text, fields: journald has the time.
    Journald,
}

impl Format {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Text, Self::Json, Self::Journald];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Journald => "journald",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// This process's: as it was told first, by [`Format::make_current`] or else by its environment.
    pub fn current() -> Self {
        let told = || std::env::var(FORMAT_VARIABLE).ok().and_then(|name| Self::from_name(&name));
        *CURRENT.get_or_init(|| told().unwrap_or_default())
    }

    /// This process writes so from now on, if it has not written yet.
    pub fn make_current(self) {
        // It is set already: then lines of two formats would not be one log.
        let _ = CURRENT.set(self);
    }

    /// A line that no library has made, with its end: as [`Lines`] writes events.
    pub(crate) fn own_line(self, device: Option<&str>, level: Level, text: &str, fields: &[(&str, &str)]) -> String {
        let (mut line, text) = (String::new(), text.replace('\n', " "));
        let text = text.as_str();
        let of = device.map_or_else(String::new, |device| format!("{device}: "));
        let with: String = fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        // Writing to a String does not fail.
        let _ = match self {
            Self::Text => {
                line.push_str(&of);
                let time = SystemTime.format_time(&mut Writer::new(&mut line));
                time.and_then(|()| writeln!(line, " {:>5} {text}{with}", level.as_str()))
            }
            Self::Journald => writeln!(line, "<{}>{of}{text}{with}", priority(level)),
            Self::Json => object(&mut line, level, |to| {
                device.iter().for_each(|device| to.record("device", Value::Text(device)));
                to.record("message", Value::Text(text));
                fields.iter().for_each(|(name, value)| to.record(name, Value::Text(value)));
            }),
        };
        line
    }
}

/// syslog(3)'s, as journald reads it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes events in this process's format.
#[derive(Debug)]
pub struct Lines {
    format: Format,
    text: Text<Full, SystemTime>,
    bare: Text<Compact, ()>,
    /// The device whose process this is.
    device: Option<String>,
}

impl Lines {
    /// In [`Format::current`].
    pub fn new() -> Self {
        Self::of(Format::current(), std::env::var(DEVICE_VARIABLE).ok())
    }

    fn of(format: Format, device: Option<String>) -> Self {
        let text = Text::default().with_target(false).with_ansi(false);
        let bare = Text::default().compact().without_time().with_level(false).with_target(false).with_ansi(false);
        Self { format, text, bare, device }
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        let of = self.device.as_ref().map_or_else(String::new, |device| format!("{device}: "));
        match self.format {
            Format::Text => {
                to.write_str(&of)?;
                self.text.format_event(context, to, event)
            }
            Format::Journald => {
                let mut line = String::new();
                self.bare.format_event(context, Writer::new(&mut line), event)?;
                // A second line would be one without a priority.
                writeln!(to, "<{}>{of}{}", priority(level), line.trim_end().replace('\n', " "))
            }
            Format::Json => object(&mut to, level, |fields| {
                self.device.iter().for_each(|device| fields.record("device", Value::Text(device)));
                event.record(fields);
            }),
        }
    }
}

/// A line with an object: when, how bad, who, and what is recorded.
fn object(to: &mut dyn Write, level: Level, record: impl FnOnce(&mut Fields<'_>)) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    write!(to, "{{\"time\":\"{time}\",\"level\":\"{}\",\"program\":", level.as_str().to_ascii_lowercase())?;
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    text(to, &program)?;
    write!(to, ",\"pid\":{}", std::process::id())?;
    let mut fields = Fields { to, failed: Ok(()) };
    record(&mut fields);
    let Fields { to, failed } = fields;
    failed?;
    to.write_str("}\n")
}

enum Value<'a> {
    Text(&'a str),
    Bare(&'a dyn fmt::Display),
}

/// Writes fields of an object behind others.
struct Fields<'a> {
    to: &'a mut dyn Write,
    failed: fmt::Result,
}

impl Fields<'_> {
    fn record(&mut self, name: &str, value: Value<'_>) {
        let mut write = || {
            self.to.write_char(',')?;
            text(self.to, name)?;
            self.to.write_char(':')?;
            match value {
                Value::Text(value) => text(self.to, value),
                Value::Bare(value) => write!(self.to, "{value}"),
            }
        };
        if self.failed.is_ok() {
            self.failed = write();
        }
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record(field.name(), Value::Text(&format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field.name(), Value::Text(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record(field.name(), Value::Bare(&value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record(field.name(), Value::Bare(&value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.record(field.name(), Value::Bare(&value));
    }
}

/// A string in JSON (RFC 8259 section 7).
fn text(to: &mut dyn Write, text: &str) -> fmt::Result {
    to.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(to, "\\{c}")?,
            '\u{0}'..='\u{1f}' => write!(to, "\\u{:04x}", u32::from(c))?,
            c => to.write_char(c)?,
        }
    }
    to.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Log;
    use std::io::{BufRead, BufReader};

    fn lines(format: Format, say: impl Fn()) -> Vec<String> {
        lines_of(None, format, say)
    }

    fn lines_of(device: Option<&str>, format: Format, say: impl Fn()) -> Vec<String> {
        let (log, (reader, writer)) = (Log::new(), std::io::pipe().unwrap());
        let lines = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).event_format(Lines::of(format, device.map(str::to_owned)));
        let subscriber = subscriber.with_writer(move || lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, say);
        log.write_all_to(writer);
        BufReader::new(reader).lines().map(Result::unwrap).collect()
    }

    fn say() {
        tracing::warn!(port = %"vm \"1\"", queue = 3_u64, up = false, "ring\tstopped\n\\ é");
        tracing::info!("ready");
    }

    /// Read by a parser that nobody here wrote.
    #[test]
    fn each_line_is_an_object() {
        let all: Vec<serde_json::Value> =
            lines(Format::Json, say).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["message"], "ring\tstopped\n\\ é");
        assert_eq!((&all[0]["level"], &all[0]["port"]), (&"warn".into(), &"vm \"1\"".into()));
        assert_eq!((&all[0]["queue"], &all[0]["up"], &all[1]["level"]), (&3.into(), &false.into(), &"info".into()));
        assert_eq!(all[0]["pid"], std::process::id());
        assert!(all[0]["time"].as_str().unwrap().ends_with('Z') && all[0]["program"].is_string());
    }

    /// Lines that no library makes are as those that one makes, but for the time.
    #[test]
    fn own_lines_are_as_all_others() {
        for device in [None, Some("nic0")] {
            for format in Format::ALL {
                let by_library = lines_of(device, format, || tracing::warn!(port = %"vm1", "2 \"lines\"")).remove(0);
                let own = format.own_line(device, Level::WARN, "2 \"lines\"", &[("port", "vm1")]);
                let timeless = |line: &str| {
                    let is_time = |word: &str| word.contains('T') && word.contains('Z') && word.contains(':');
                    let words = line.trim_end().split([' ', ',']).map(|word| if is_time(word) { "TIME" } else { word });
                    words.collect::<Vec<_>>().join(" ")
                };
                assert_eq!(timeless(&own), timeless(&by_library), "{format:?}");
                assert!(
                    own.ends_with('\n') && (format == Format::Journald || timeless(&own).contains("TIME")),
                    "{own}"
                );
            }
        }
    }

    #[test]
    fn lines_of_a_device_say_so() {
        let line = |format| lines_of(Some("nic0"), format, || tracing::info!("ready")).remove(0);
        assert!(line(Format::Text).starts_with("nic0: 2"), "{}", line(Format::Text));
        assert_eq!(line(Format::Journald), "<6>nic0: ready");
        let object: serde_json::Value = serde_json::from_str(&line(Format::Json)).unwrap();
        assert_eq!((&object["device"], &object["message"]), (&"nic0".into(), &"ready".into()));
    }

    #[test]
    fn journald_gets_priorities_and_no_time() {
        let lines = lines(Format::Journald, say);
        assert!(lines[0].starts_with("<4>ring\tstopped ") && lines[0].contains("queue=3"), "{lines:?}");
        assert_eq!(lines[1..], ["<6>ready"], "an event is one line");
    }

    #[test]
    fn names() {
        assert!(Format::ALL.iter().all(|format| Format::from_name(format.name()) == Some(*format)));
        assert_eq!(Format::from_name("xml"), None);
    }
}
