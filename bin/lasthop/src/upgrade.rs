//! `lasthop upgrade`, and `lasthop messages`, by which it learns what other programs say to each other.
//!
//! One kind of process is replaced after the other, each by a request of its own. Control, which answers, is among them, and so the connection is lost in the
//! middle: what was asked is asked once more of the next one, with the same mark, by which the supervisor knows that it is not to be done twice.

use crate::client::CliError;
use crate::table::{Align, Table};
use crate::{SharedArgs, run};
use clap::{Args, ValueEnum};
use lasthop_api::{PortPause, SwitchProxy, Upgraded};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit status: these programs can take the place of those that run only where lasthop is started anew. Any other refusal may pass.
const ONLY_ANEW: u8 = 3;

/// Processes that can be replaced, in the order in which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Processes {
    /// The switch; guests' packets pause for some milliseconds
    Switch,
    /// Session processes of ports that nobody is connected to; of others when their front-ends have gone
    Sessions,
    /// Uplinks' processes; the network is away for some milliseconds
    Uplinks,
    /// Control; first packets of flows wait until it is back
    Control,
    /// `lasthop run` itself, which becomes the new program; nobody notices
    Run,
}

impl Processes {
    fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Sessions => "sessions",
            Self::Uplinks => "uplinks",
            Self::Control => "control",
            Self::Run => "run",
        }
    }
}

/// Arguments of `lasthop upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Where the new programs are, if not in the place of those that run
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Replace these processes only
    #[arg(long, value_name = "PROCESSES", value_delimiter = ',')]
    only: Vec<Processes>,
    /// Replace those whose program has not changed, too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

/// Has new programs take the place of those that run.
pub fn upgrade(args: &UpgradeArgs) -> Result<String, CliError> {
    let (programs, messages) = match &args.programs {
        None => (None, run::MESSAGES.to_owned()),
        Some(dir) => {
            let shown = dir.display();
            let dir = dir.canonicalize().map_err(|e| CliError::new(format!("{shown}: {e}; name a directory")))?;
            let Some(text) = dir.to_str() else {
                return Err(CliError::usage(format!("{shown}: the path is not UTF-8; choose another")));
            };
            (Some(text.to_owned()), messages_of(&dir.join("lasthop"))?)
        }
    };
    let mut done = Upgraded::default();
    for processes in Processes::value_variants() {
        if !args.only.is_empty() && !args.only.contains(processes) {
            continue;
        }
        match ask(args, *processes, programs.as_deref(), &messages) {
            Ok(Upgraded { processes, kept, ports }) => {
                done.processes.extend(processes);
                done.kept.extend(kept);
                done.ports.extend(ports);
            }
            Err(e) if done.processes.is_empty() => return Err(e),
            Err(e) => {
                // What has been done is said as well.
                let before: Vec<_> = done.processes.iter().map(|process| process.process.as_str()).collect();
                let text = format!("{e}; replaced before: {}", before.join(", "));
                return Err(CliError::new(text).with_status(e.status));
            }
        }
    }
    args.shared.show(&done, shown)
}

/// Asks for one kind of process, and again of the next control when the one that was asked has gone.
fn ask(args: &UpgradeArgs, processes: Processes, programs: Option<&str>, messages: &str) -> Result<Upgraded, CliError> {
    let name = processes.name();
    let upgrade =
        async |c: &mut _, attempt: &str| SwitchProxy::upgrade(c, programs, messages, name, args.all, attempt).await;
    args.shared.instance()?.ask_until_answered(upgrade).map_err(|e| {
        let never = e.other_version || e.to_string().contains(run::OTHER_MESSAGES);
        if never { e.with_status(ONLY_ANEW) } else { e }
    })
}

/// What the programs that this one belongs to say to each other.
fn messages_of(program: &Path) -> Result<String, CliError> {
    let shown = program.display();
    let asked = Command::new(program).arg("messages").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let asked = asked.map_err(|e| CliError::new(format!("{shown}: {e}; it belongs to the new programs")))?;
    let text = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() || text.is_empty() {
        let wrong =
            format!("{shown} is of a version that cannot take over from another; restart lasthop to take it into use");
        return Err(CliError::new(wrong).with_status(ONLY_ANEW));
    }
    Ok(text)
}

/// For how long ports' packets did not move; nothing if they had no rings.
pub fn pauses(ports: &[PortPause]) -> String {
    let ms = |us: u64| format!("{:.3}", us as f64 / 1000.0);
    let Some(longest) = ports.iter().filter_map(|port| port.pause_us).max() else { return String::new() };
    let mut table = Table::new(&[("PORT", Align::Left), ("PAUSE MS", Align::Right)]);
    ports.iter().for_each(|port| table.row(vec![port.port.clone(), port.pause_us.map_or("-".into(), ms)]));
    format!("{}longest pause: {} ms\n", table.render(), ms(longest))
}

fn shown(done: &Upgraded) -> String {
    let ms = |us: u64| format!("{:.3}", us as f64 / 1000.0);
    let mut text = String::new();
    if done.processes.is_empty() {
        text += "nothing was replaced: every process that can be replaced runs the program that is there; --all replaces them all the same\n";
    } else {
        let mut table = Table::new(&[("PROCESS", Align::Left), ("PID", Align::Right), ("TOOK MS", Align::Right)]);
        done.processes.iter().for_each(|p| table.row(vec![p.process.clone(), p.pid.to_string(), ms(p.took_us)]));
        text += &table.render();
    }
    text += &pauses(&done.ports);
    for kept in &done.kept {
        text += &format!("{} goes on with the program before: {}\n", kept.process, kept.why);
    }
    text
}
