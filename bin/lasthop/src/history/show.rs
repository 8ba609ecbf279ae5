//! What the file says, by periods of some minutes each.

use super::FILE;
use super::file::{Fault, History, Minute, Place, Row};
use crate::client::CliError;
use crate::table::{Align, Table};
use crate::top::short;
use clap::Args;
use humantime::{format_rfc3339_seconds, parse_duration};
use lasthop_text::counted;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Rows of a table, if nobody says how long a period is to be.
const ROWS: u64 = 48;

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The port; without one, a line for each port
    port: Option<String>,
    /// How far back, such as 2h, 30m or 1day
    #[arg(long, value_name = "TIME", default_value = "1day", value_parser = parse_duration)]
    since: Duration,
    /// Minutes of a line [default: so many that there are 48 lines at most]
    #[arg(long, value_name = "MINUTES", value_parser = crate::size::whole::<u64>(1..=1440))]
    step: Option<u64>,
    /// The file
    #[arg(long, value_name = "FILE", default_value = FILE)]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One direction.
#[derive(Debug, Default, Serialize)]
struct Carried {
    packets: u64,
    bytes: u64,
}

/// What a port did in some minutes.
#[derive(Debug, Default, Serialize)]
struct Period {
    /// When it began, as of RFC 3339, in UTC.
    time: String,
    /// How long it is: the minutes of it that are recorded.
    seconds: u64,
    /// How often lasthop was asked, and answered; how often the port was there, and was up.
    asked: u64,
    answered: u64,
    looks: u64,
    up: u64,
    from_guest: Carried,
    to_guest: Carried,
    dropped: u64,
    /// Why most packets of the minute in which most were dropped were.
    reason: Option<String>,
    peak_bits_per_second: u64,
    cpu_ms: u64,
    #[serde(skip)]
    most_dropped: u64,
}

#[derive(Debug, Serialize)]
struct PortHistory {
    name: String,
    periods: Vec<Period>,
}

#[derive(Debug, Serialize)]
struct Shown {
    from: String,
    to: String,
    step_minutes: u64,
    /// Minutes of this time of which something is recorded, and those that are damaged.
    recorded: u64,
    damaged: u64,
    /// Most ports at a time for which the file had no room.
    left_out: u32,
    ports: Vec<PortHistory>,
}

fn time(minute: u64) -> String {
    format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(minute * 60)).to_string()
}

impl Period {
    fn add(&mut self, row: &Row, minute: &Minute) {
        self.seconds += 60;
        self.asked += u64::from(row.asked);
        self.answered += u64::from(row.answered);
        self.looks += u64::from(minute.looks);
        self.up += u64::from(minute.up);
        self.from_guest.packets += minute.from.0;
        self.from_guest.bytes += minute.from.1;
        self.to_guest.packets += minute.to.0;
        self.to_guest.bytes += minute.to.1;
        self.dropped += minute.dropped;
        if minute.dropped > self.most_dropped {
            (self.most_dropped, self.reason) = (minute.dropped, Some(minute.reason.clone()));
        }
        self.peak_bits_per_second = self.peak_bits_per_second.max(minute.peak_bits);
        self.cpu_ms += u64::from(minute.cpu_ms);
    }

    /// Whether it was up, in a word.
    fn state(&self) -> String {
        match (self.answered, self.looks, self.up) {
            (0, ..) => "no answer".into(),
            (_, 0, _) => "no port".into(),
            (_, _, 0) => "down".into(),
            (_, looks, up) if up >= looks => "up".into(),
            (_, looks, up) => format!("up {} %", 100 * up / looks),
        }
    }

    fn rate(&self, of: u64) -> String {
        if self.seconds == 0 { "-".into() } else { short(of as f64 / self.seconds as f64) }
    }

    /// Without its beginning.
    fn cells(&self) -> Vec<String> {
        vec![
            self.state(),
            self.rate(self.from_guest.packets),
            self.rate(8 * self.from_guest.bytes),
            self.rate(self.to_guest.packets),
            self.rate(8 * self.to_guest.bytes),
            short(self.peak_bits_per_second as f64),
            self.dropped.to_string(),
            self.reason.clone().unwrap_or_default(),
        ]
    }
}

const COLUMNS: [(&str, Align); 8] = [
    ("STATE", Align::Left),
    ("FROM/s", Align::Right),
    ("bit/s", Align::Right),
    ("TO/s", Align::Right),
    ("bit/s", Align::Right),
    ("PEAK bit/s", Align::Right),
    ("DROPPED", Align::Right),
    ("MOSTLY", Align::Left),
];

/// All minutes of `minutes`, and how many are damaged.
fn rows(history: &History, minutes: std::ops::RangeInclusive<u64>) -> std::io::Result<(Vec<Row>, u64)> {
    let (mut rows, mut damaged) = (Vec::new(), 0);
    for minute in minutes {
        // It may be written while it is read.
        let read = match history.row(minute)? {
            Ok(row) => Ok(row),
            Err(()) => history.row(minute)?,
        };
        match read {
            Ok(row) => rows.extend(row),
            Err(()) => damaged += 1,
        }
    }
    Ok((rows, damaged))
}

/// What a port did, in periods of so many minutes; of those of which nothing is recorded there is none.
fn periods(rows: &[Row], (n, place): (usize, &Place), step: u64) -> Vec<Period> {
    let mut periods: Vec<(u64, Period)> = Vec::new();
    for row in rows.iter().filter(|row| (place.since..=place.last).contains(&row.minute)) {
        let begin = row.minute - row.minute % step;
        if periods.last().is_none_or(|(last, _)| *last != begin) {
            periods.push((begin, Period { time: time(begin), ..Period::default() }));
        }
        if let (Some((_, period)), Some(minute)) = (periods.last_mut(), row.ports.get(n)) {
            period.add(row, minute);
        }
    }
    periods.into_iter().map(|(_, period)| period).collect()
}

fn look(args: &ShowArgs, history: &History, now: u64) -> Result<Shown, CliError> {
    let failed = |e: std::io::Error| CliError::new(format!("{}: {e}", args.file.display()));
    let back = (args.since.as_secs() / 60).clamp(1, history.shape.minutes.into());
    let from = (now + 1).saturating_sub(back);
    let (rows, damaged) = rows(history, from..=now).map_err(failed)?;
    let (places, _) = history.places().map_err(failed)?;
    // A period for all, where there is a line for each port.
    let step = match (&args.port, args.step) {
        (_, Some(step)) => step,
        (None, None) if !args.json => u64::MAX,
        _ => back.div_ceil(ROWS),
    };
    let mut named: Vec<_> = places.iter().enumerate().filter(|(_, place)| !place.name.is_empty()).collect();
    named.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    if let Some(port) = &args.port {
        named.retain(|(_, place)| place.name == *port);
        if named.is_empty() {
            let known: Vec<_> =
                places.iter().map(|place| place.name.as_str()).filter(|name| !name.is_empty()).collect();
            let known = if known.is_empty() { "of no port".to_owned() } else { format!("of {}", known.join(", ")) };
            return Err(CliError::new(format!(
                "nothing is recorded of {port:?}, but {known}; is `lasthop history record` running?"
            )));
        }
    }
    let ports = named
        .into_iter()
        .map(|(n, place)| PortHistory { name: place.name.clone(), periods: periods(&rows, (n, place), step) });
    Ok(Shown {
        from: time(from),
        to: time(now + 1),
        step_minutes: step.min(back),
        recorded: rows.len() as u64,
        damaged,
        left_out: rows.iter().map(|row| row.left_out).max().unwrap_or(0),
        ports: ports.collect(),
    })
}

impl Shown {
    fn human(&self, of_one: bool) -> String {
        let columns: Vec<_> =
            std::iter::once((if of_one { "TIME (UTC)" } else { "PORT" }, Align::Left)).chain(COLUMNS).collect();
        let mut table = Table::new(&columns);
        for port in &self.ports {
            for period in &port.periods {
                let first = if of_one { period.time.replace('T', " ").replace(":00Z", "") } else { port.name.clone() };
                table.row(std::iter::once(first).chain(period.cells()).collect());
            }
        }
        let (from, to) = (self.from.replace(":00Z", "Z"), self.to.replace(":00Z", "Z"));
        let mut text = table.render();
        text += &format!("{} recorded between {from} and {to}", counted(self.recorded, "minute"));
        if self.damaged > 0 {
            text += &format!(", {} damaged", counted(self.damaged, "minute"));
        }
        if self.left_out > 0 {
            text += &format!("; {} had no room in the file", counted(self.left_out.into(), "port"));
        }
        text + "\n"
    }
}

pub fn show(args: &ShowArgs) -> Result<String, CliError> {
    let path = args.file.display();
    let history = History::open(&args.file).map_err(|fault| {
        CliError::new(match fault {
            Fault::Io(e) => format!(
                "{path}: {e}; `lasthop history record` writes it (service lasthop-history), or name another with --file"
            ),
            Fault::Damaged(why) => {
                format!("{path}: {why}; `lasthop history record` puts it aside and begins a new one")
            }
        })
    })?;
    let shown = look(args, &history, super::now_ms() / 60_000)?;
    if args.json {
        let text = serde_json::to_string_pretty(&shown);
        return text.map(|text| text + "\n").map_err(|e| CliError::new(format!("cannot write JSON: {e}")));
    }
    Ok(shown.human(args.port.is_some()))
}

#[cfg(test)]
mod tests {
    use super::super::file::Shape;
    use super::*;

    const SHAPE: Shape = Shape { minutes: 1440, ports: 2 };

    fn args(port: Option<&str>, step: Option<u64>) -> ShowArgs {
        let since = Duration::from_secs(3600);
        ShowArgs { port: port.map(str::to_owned), since, step, file: "history".into(), json: false }
    }

    /// vm1 carries 6000 packets in each of 30 minutes, is down in the last ten, and drops in one.
    fn written(dir: &std::path::Path) -> History {
        let (history, _) = History::open_or_make(&dir.join("history"), SHAPE).unwrap();
        for minute in 1000..1030 {
            let is_up = u16::from(minute < 1020);
            let dropped = if minute == 1005 { 9 } else { 0 };
            let reason = if dropped > 0 { "no_buffers".to_owned() } else { String::new() };
            let vm1 = Minute {
                from: (6000, 600_000),
                dropped,
                reason,
                peak_bits: minute,
                looks: 6,
                up: 6 * is_up,
                ..Minute::default()
            };
            history.write_row(&Row { minute, asked: 6, answered: 6, left_out: 0, ports: vec![vm1] }).unwrap();
        }
        history.write_place(0, &Place { name: "vm1".into(), since: 1000, last: 1029 }).unwrap();
        history.write_place(1, &Place { name: "vm2".into(), since: 1025, last: 1029 }).unwrap();
        history
    }

    #[test]
    fn it_is_seen_when_a_port_was_busy_dropped_and_was_down() {
        let dir = tempfile::tempdir().unwrap();
        let history = written(dir.path());
        let text = look(&args(Some("vm1"), Some(10)), &history, 1029).unwrap().human(true);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["1970-01-01", "16:40", "up", "100", "80.0k", "0", "0", "1009", "9", "no_buffers"]);
        assert_eq!(lines[2][..3], ["1970-01-01", "16:50", "up"]);
        assert_eq!(lines[3][..4], ["1970-01-01", "17:00", "down", "100"]);
        assert_eq!(text.lines().last().unwrap(), "30 minutes recorded between 1970-01-01T16:10Z and 1970-01-01T17:10Z");
        // A line for each port.
        let text = look(&args(None, None), &history, 1029).unwrap().human(false);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["vm1", "up", "66", "%", "100", "80.0k", "0", "0", "1029", "9", "no_buffers"]);
        assert_eq!(lines[2][..4], ["vm2", "no", "port", "0"], "of the minutes since it has its place");
        let json = serde_json::to_value(look(&args(Some("vm1"), Some(1)), &history, 1029).unwrap()).unwrap();
        let minutes = json["ports"][0]["periods"].as_array().unwrap();
        assert_eq!(
            (minutes.len(), &minutes[5]["dropped"], &minutes[5]["reason"]),
            (30, &9.into(), &"no_buffers".into())
        );
        assert!(look(&args(Some("vm3"), None), &history, 1029).unwrap_err().to_string().contains("of vm1, vm2"));
    }
}
