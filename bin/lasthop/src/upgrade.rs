//! `lasthop upgrade`, and `lasthop messages`, by which it learns what other programs say to each other.

use crate::client::CliError;
use crate::table::{Align, Table};
use crate::{SharedArgs, run};
use clap::Args;
use lasthop_api::{SwitchProxy, Upgraded};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Arguments of `lasthop upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// Where the new programs are, if not in the place of those that run
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    shared: SharedArgs,
}

/// Has the new switch take over.
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
    let mut instance = args.shared.instance()?;
    let done = instance.ask(async |c| c.upgrade(programs.as_deref(), &messages).await)?;
    args.shared.show(&done, shown)
}

/// What the programs that this one belongs to say to each other.
fn messages_of(program: &Path) -> Result<String, CliError> {
    let shown = program.display();
    let asked = Command::new(program).arg("messages").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let asked = asked.map_err(|e| CliError::new(format!("{shown}: {e}; it belongs to the new programs")))?;
    let text = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() || text.is_empty() {
        return Err(CliError::new(format!(
            "{shown} is of a version that cannot take over from another; restart lasthop to take it into use"
        )));
    }
    Ok(text)
}

fn shown(done: &Upgraded) -> String {
    let mut text =
        format!("the new switch (pid {}) has taken over; no front-end had to connect again\n", done.switch_pid);
    let longest = done.ports.iter().filter_map(|port| port.pause_us).max();
    let Some(longest) = longest else { return text };
    let ms = |us: u64| format!("{:.3}", us as f64 / 1000.0);
    let mut table = Table::new(&[("PORT", Align::Left), ("PAUSE MS", Align::Right)]);
    done.ports.iter().for_each(|port| table.row(vec![port.port.clone(), port.pause_us.map_or("-".into(), ms)]));
    text += &table.render();
    text + &format!("longest pause: {} ms\n", ms(longest))
}
