//! `lasthop acl load`, `acl show`, `acl clear`.

use crate::SharedArgs;
use crate::client::{CliError, collect};
use crate::table::{Align, Table};
use clap::ValueEnum;
use lasthop_api::{AclChanged, AclRule, SwitchProxy};
use lasthop_policy::acl::MAX_TEXT;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Text told in one call.
const PART: usize = 48 * 1024;

#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// File of rules, or - for standard input
    file: PathBuf,
    #[command(flatten)]
    which: Which,
    /// What the file is; auto looks at its first line
    #[arg(long, value_enum, default_value = "auto")]
    format: Format,
    /// What the filters of a ClassBench set do, which do not say it themselves
    #[arg(long, value_enum, default_value = "deny")]
    action: Action,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, clap::Args)]
pub struct ClearArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Only the lists that hold for this port; may be given several times
    #[arg(long = "port", value_name = "NAME")]
    ports: Vec<String>,
    /// Also show the packets of those flows in the switch that each rule decided
    #[arg(long)]
    packets: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// A port's own lists, which replace the general ones there; may be given several times [default: the general lists]
    #[arg(long = "port", value_name = "NAME")]
    ports: Vec<String>,
    /// Only the list of this direction; the other stays as it is [default: both]
    #[arg(long, value_enum)]
    direction: Option<Direction>,
}

impl Which {
    fn ports(&self) -> Vec<&str> {
        self.ports.iter().map(String::as_str).collect()
    }

    fn direction(&self) -> Option<&'static str> {
        self.direction.map(|d| match d {
            Direction::FromGuest => "from-guest",
            Direction::ToGuest => "to-guest",
        })
    }

    fn shown(&self) -> String {
        if self.ports.is_empty() {
            "general access lists".into()
        } else {
            format!("access lists of {}", self.ports.join(", "))
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Direction {
    FromGuest,
    ToGuest,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Auto,
    Lasthop,
    Classbench,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    Permit,
    Deny,
}

/// `lasthop acl show --json`
#[derive(Debug, Serialize)]
struct Rules {
    rules: Vec<AclRule>,
}

pub fn load(args: &LoadArgs) -> Result<String, CliError> {
    let text = read(&args.file)?;
    let format = match args.format {
        Format::Auto => "auto",
        Format::Lasthop => "lasthop",
        Format::Classbench => "classbench",
    };
    let action = match args.action {
        Action::Permit => "permit",
        Action::Deny => "deny",
    };
    let mut instance = args.shared.instance()?;
    for part in parts(&text) {
        instance.ask(async |c| c.acl_text(part).await)?;
    }
    let (ports, direction) = (args.which.ports(), args.which.direction());
    let changed = instance.ask(async |c| c.acl_load(format, action, &ports, direction).await);
    // Which of several files in a script was it?
    let name = if is_stdin(&args.file) { "standard input".into() } else { args.file.display().to_string() };
    let changed = changed.map_err(|e| CliError::new(format!("{name}: {e}")))?;
    args.shared.show(&changed, |c| loaded(c, &args.which.shown()))
}

fn loaded(changed: &AclChanged, which: &str) -> String {
    let count = |rules: Option<u64>| rules.map_or_else(|| "no list".into(), |n| format!("{n} rules"));
    let mut text =
        format!("{which}: {} from guests, {} to guests\n", count(changed.from_guest), count(changed.to_guest));
    if changed.left_out > 0 {
        text += &format!("{} filters left out: ports with a protocol that has none never match\n", changed.left_out);
    }
    if changed.flags_ignored > 0 {
        text += &format!("{} filters also name flags, which are not looked at\n", changed.flags_ignored);
    }
    text
}

pub fn clear(args: &ClearArgs) -> Result<String, CliError> {
    let (ports, direction) = (args.which.ports(), args.which.direction());
    let changed = args.shared.instance()?.ask(async |c| c.acl_clear(&ports, direction).await)?;
    args.shared.show(&changed, |_| match direction {
        Some(direction) => format!("{}: cleared {direction}\n", args.which.shown()),
        None => format!("{}: cleared\n", args.which.shown()),
    })
}

pub fn show(args: &ShowArgs) -> Result<String, CliError> {
    let ports: Vec<_> = args.ports.iter().map(String::as_str).collect();
    let mut instance = args.shared.instance()?;
    let rules = instance.ask(async |c| collect(c.acl_show(&ports, args.packets).await, |page| page.rules).await)?;
    args.shared.show(&Rules { rules }, |r| render(&r.rules, args.packets))
}

fn render(rules: &[AclRule], packets: bool) -> String {
    if rules.is_empty() {
        return "no access lists: every packet passes; load one with `lasthop acl load FILE`\n".into();
    }
    let mut columns = vec![("LIST", Align::Left), ("DIRECTION", Align::Left), ("RULE", Align::Right)];
    columns.extend(packets.then_some(("PACKETS", Align::Right)));
    columns.push(("TEXT", Align::Left));
    let mut table = Table::new(&columns);
    for rule in rules {
        let list = rule.port.clone().unwrap_or_else(|| "(general)".into());
        let number = if rule.number == 0 { "-".into() } else { rule.number.to_string() };
        let mut row = vec![list, rule.direction.clone(), number];
        row.extend(packets.then(|| rule.packets.unwrap_or(0).to_string()));
        row.push(rule.text.clone());
        table.row(row);
    }
    table.render()
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// The whole file, which must be text and not too long.
fn read(file: &Path) -> Result<String, CliError> {
    let shown = if is_stdin(file) { "standard input".into() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let limit = MAX_TEXT as u64 + 1;
    let read = if is_stdin(file) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|e| CliError::new(format!("{shown}: {e}; name a file of rules, or - for standard input")))?;
    if bytes.len() > MAX_TEXT {
        let most = MAX_TEXT >> 20;
        return Err(CliError::new(format!("{shown}: longer than {most} MiB; use fewer rules, or wider ones")));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let line = e.as_bytes().iter().take(good).filter(|b| **b == b'\n').count() + 1;
        CliError::new(format!("{shown}: line {line}: not UTF-8 text; is this a file of rules?"))
    })
}

/// Cuts a text between characters.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.floor_char_boundary(PART));
        parts.push(part);
        rest = behind;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_text() {
        for text in [String::new(), "x".repeat(PART), "ü".repeat(PART), format!("x{}", "€".repeat(PART))] {
            let parts = parts(&text);
            assert!(parts.iter().all(|p| !p.is_empty() && p.len() <= PART));
            assert_eq!(parts.concat(), text);
        }
    }

    #[test]
    fn lists_as_a_table() {
        let rule = |port: Option<&str>, number, text: &str| AclRule {
            port: port.map(Into::into),
            direction: "to-guest".into(),
            number,
            text: text.into(),
            packets: Some(7),
        };
        let rules = [rule(None, 1, "deny icmp"), rule(Some("vm1"), 0, "default permit")];
        assert_eq!(
            render(&rules, true),
            "LIST       DIRECTION  RULE  PACKETS  TEXT\n\
             (general)  to-guest      1        7  deny icmp\n\
             vm1        to-guest      -        7  default permit\n"
        );
        assert!(render(&[], false).starts_with("no access lists"));
    }
}
