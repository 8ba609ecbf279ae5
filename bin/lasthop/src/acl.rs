//! `lasthop acl load`, `acl show`, `acl clear`.

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect};
use crate::list::{all_ports, ovs_decides};
use crate::table::{Align, Table};
use clap::ValueEnum;
use lasthop_api::{AclChanged, AclRule, SwitchProxy};
use lasthop_policy::acl::{MAX_TEXT, Scope};
use lasthop_policy::check_name;
use lasthop_text::counted;
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
    /// Load a file without a rule or default, which lets every packet pass and hides the general lists where it is a port's own
    #[arg(long)]
    allow_empty: bool,
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
    #[arg(long = "port", value_name = "NAME", add = crate::completions::ports())]
    ports: Vec<String>,
    /// Also show the packets of those flows in the switch that each rule decided
    #[arg(long)]
    packets: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// A port's own lists, which replace the general ones there; may be given several times
    #[arg(long = "port", value_name = "NAME", add = crate::completions::ports())]
    ports: Vec<String>,
    /// Whose lists: of all guests, of all uplinks, of both, or a port's own, as with --port [default: guests]
    #[arg(long = "for", value_name = "guests|uplinks|all|PORT", conflicts_with = "ports")]
    whom: Option<String>,
    /// Only the list of this direction; the other stays as it is [default: both]
    #[arg(long, value_enum)]
    direction: Option<Direction>,
}

impl Which {
    fn ports(&self) -> Vec<&str> {
        let port = self.whom.as_deref().filter(|_| self.general().is_none());
        self.ports.iter().map(String::as_str).chain(port).collect()
    }

    fn general(&self) -> Option<&str> {
        self.whom.as_deref().filter(|whom| matches!(*whom, "guests" | "uplinks" | "all"))
    }

    /// The port that --for names. A word that is nearly one of the three is not taken for a port's name.
    fn port_of_for(&self) -> Result<Option<&str>, CliError> {
        let Some(whom) = self.whom.as_deref().filter(|_| self.general().is_none()) else { return Ok(None) };
        let meant = match whom.to_ascii_lowercase().as_str() {
            "guest" | "guests" => "--for guests",
            "uplink" | "uplinks" => "--for uplinks",
            "all" | "both" | "any" | "everybody" | "everyone" => "--for all",
            "port" | "ports" => "--port NAME",
            _ => return Ok(Some(whom)),
        };
        Err(CliError::usage(format!(
            "--for {whom}: this is none of guests, uplinks and all; nothing was changed; write {meant}, or --port {whom} for a port of that name"
        )))
    }

    /// Only for names that ports can have.
    fn check_names(&self) -> Result<(), CliError> {
        let named = |option: &str, name: &str| {
            let checked = check_name(name).and_then(|()| match Scope::named(name) {
                Some(_) => Err(format!("no port can have this name; write --for {name} for the lists of {name}")),
                None => Ok(()),
            });
            checked.map_err(|e| CliError::usage(format!("{option} {name:?}: {e}; nothing was changed")))
        };
        self.ports.iter().try_for_each(|name| named("--port", name))?;
        self.port_of_for()?.map_or(Ok(()), |name| named("--for", name))
    }

    fn direction(&self) -> Option<&'static str> {
        self.direction.map(|d| match d {
            Direction::FromGuest => "from-guest",
            Direction::ToGuest => "to-guest",
        })
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
    args.which.check_names()?;
    let mut instance = args.shared.instance()?;
    if let Some(name) = args.which.port_of_for()?
        && !all_ports(&mut instance)?.iter().any(|port| port.name == *name)
    {
        return Err(CliError::new(format!(
            "there is no port {name}; use --port {name} to load a list for a port to come"
        )));
    }
    tell_text(&mut instance, &text)?;
    let (ports, direction) = (args.which.ports(), args.which.direction());
    let (general, empty) = (args.which.general(), Some(args.allow_empty));
    let changed = instance.ask(async |c| c.acl_load(format, action, &ports, direction, general, empty).await);
    // Which of several files in a script was it?
    let name = if is_stdin(&args.file) { "standard input".into() } else { args.file.display().to_string() };
    let changed = changed.map_err(|e| CliError::new(format!("{name}: {e}")))?;
    let open = may_permit_all(&changed) && {
        let rules = instance.ask(async |c| collect(c.acl_show(&ports, false).await, |page| page.rules).await)?;
        rules
            .iter()
            .filter(|rule| changed.applies_to.contains(&rule.applies_to))
            .all(|rule| rule.text.contains("permit"))
    };
    let note = "all rules permit and so does the default: nothing is denied; a line `default to-guest deny` denies what no rule permits\n";
    args.shared.show(&changed, |changed| loaded(changed) + if open { note } else { "" })
}

/// Tells the text that the next `acl_load` of this connection reads.
pub fn tell_text(instance: &mut Instance, text: &str) -> Result<(), CliError> {
    for part in parts(text) {
        instance.ask(async |c| c.acl_text(part).await)?;
    }
    Ok(())
}

/// Whose lists, as in `access lists of guests and uplinks`.
fn whose(changed: &AclChanged) -> String {
    format!("access lists of {}", changed.applies_to.join(" and "))
}

/// What lists say that are no rules.
fn beside_rules(changed: &AclChanged) -> String {
    let mut said: Vec<_> = changed.stateful.then(|| "stateful".to_owned()).into_iter().collect();
    let lines = [("snat", changed.snat), ("dnat", changed.dnat)];
    said.extend(lines.into_iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{n} {kind}")));
    if said.is_empty() { String::new() } else { format!("; {}", said.join(", ")) }
}

/// Whether there are rules, few enough to look at, that alone could deny anything.
fn may_permit_all(changed: &AclChanged) -> bool {
    let defaults = [&changed.from_guest_default, &changed.to_guest_default];
    let rules = changed.from_guest.unwrap_or(0) + changed.to_guest.unwrap_or(0);
    (1..=4096).contains(&rules)
        && !changed.stateful
        && changed.snat + changed.dnat == 0
        && defaults.iter().all(|default| default.as_deref() != Some("deny"))
}

fn loaded(changed: &AclChanged) -> String {
    let list = |rules: Option<u64>, default: &Option<String>| match (rules, default) {
        (Some(n), Some(default)) => format!("{}, default {default}", counted(n, "rule")),
        _ => "no list".into(),
    };
    let mut text = format!(
        "{}: from guests {}; to guests {}{}\n",
        whose(changed),
        list(changed.from_guest, &changed.from_guest_default),
        list(changed.to_guest, &changed.to_guest_default),
        beside_rules(changed)
    );
    for name in &changed.to_come {
        text += &format!("there is no port {name} yet; its lists are kept and hold when there is one\n");
    }
    if changed.left_out > 0 {
        let filters = counted(changed.left_out, "filter");
        text += &format!("{filters} left out: ports with a protocol that has none never match\n");
    }
    if changed.flags_ignored > 0 {
        let filters = counted(changed.flags_ignored, "filter");
        text += &format!("{filters} with flags, which are not looked at\n");
    }
    text
}

pub fn clear(args: &ClearArgs) -> Result<String, CliError> {
    args.which.port_of_for()?;
    let (ports, direction, general) = (args.which.ports(), args.which.direction(), args.which.general());
    let changed = args.shared.instance()?.ask(async |c| c.acl_clear(&ports, direction, general).await)?;
    args.shared.show(&changed, |c| match (direction, c.removed) {
        (direction, 0) => {
            let direction = direction.map_or(String::new(), |direction| format!(" {direction}"));
            format!(
                "{}: there was no{direction} list, so nothing has changed; `lasthop acl show` shows those there are\n",
                whose(c)
            )
        }
        (Some(direction), _) => format!("{}: cleared {direction}\n", whose(c)),
        (None, _) => format!("{}: cleared\n", whose(c)),
    })
}

pub fn show(args: &ShowArgs) -> Result<String, CliError> {
    let ports: Vec<_> = args.ports.iter().map(String::as_str).collect();
    let mut instance = args.shared.instance()?;
    let rules = instance.ask(async |c| collect(c.acl_show(&ports, args.packets).await, |page| page.rules).await)?;
    let elsewhere = rules.is_empty() && ovs_decides(&mut instance)?;
    args.shared.show(&Rules { rules }, |r| match ports[..] {
        _ if elsewhere => {
            "no access lists: Open vSwitch decides here; `ovs-ofctl dump-flows BRIDGE` shows its rules\n".into()
        }
        [] => render(&r.rules, args.packets),
        _ if r.rules.is_empty() => {
            let names = ports.join(" and ");
            format!(
                "no access list holds for {names}: every packet passes there; load one with `lasthop acl load FILE`\n"
            )
        }
        _ => render(&r.rules, args.packets),
    })
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
        let number = if rule.number == 0 { "-".into() } else { rule.number.to_string() };
        let mut row = vec![rule.applies_to.clone(), rule.direction.clone(), number];
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
    fn what_was_loaded_is_told_even_if_it_is_no_rule() {
        let changed = AclChanged {
            from_guest: Some(0),
            from_guest_default: Some("permit".into()),
            applies_to: vec!["guests".into()],
            ..AclChanged::default()
        };
        let told = |changed: &AclChanged| loaded(changed);
        assert_eq!(told(&changed), "access lists of guests: from guests 0 rules, default permit; to guests no list\n");
        let more = told(&AclChanged { stateful: true, snat: 2, dnat: 1, ..changed });
        assert!(more.ends_with("to guests no list; stateful, 2 snat, 1 dnat\n"), "{more}");
    }

    /// It said that the lists would hold when there is a port of that name, which there never can be.
    #[test]
    fn a_list_for_a_port_that_cannot_come_is_refused() {
        let which =
            |ports: &[&str]| Which { ports: ports.iter().map(|p| (*p).into()).collect(), whom: None, direction: None };
        for word in ["guests", "uplinks", "all"] {
            let error = which(&["vm1", word]).check_names().unwrap_err().to_string();
            assert!(error.contains(&format!("--for {word}")), "{error}");
        }
        assert!(which(&["vm1", "guests1"]).check_names().is_ok());
    }

    #[test]
    fn lists_as_a_table() {
        let rule = |port: Option<&str>, number, text: &str| AclRule {
            port: port.map(Into::into),
            applies_to: port.map_or("guests".into(), |name| format!("port {name}")),
            direction: "to-guest".into(),
            number,
            text: text.into(),
            packets: Some(7),
        };
        let rules = [rule(None, 1, "deny icmp"), rule(Some("vm1"), 0, "default permit")];
        assert_eq!(
            render(&rules, true),
            "LIST      DIRECTION  RULE  PACKETS  TEXT\n\
             guests    to-guest      1        7  deny icmp\n\
             port vm1  to-guest      -        7  default permit\n"
        );
        assert!(render(&[], false).starts_with("no access lists"));
    }
}
