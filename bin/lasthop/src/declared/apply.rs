//! `lasthop apply FILE`.

use super::Declared;
use super::plan::{Change, Plan, Step, There};
use crate::SharedArgs;
use crate::acl::tell_text;
use crate::client::{CliError, Instance, collect};
use crate::list::all_ports;
use crate::set::{change, destroy, sets};
use lasthop_api::{Field, SwitchProxy};
use lasthop_policy::MIN_RATE;
use lasthop_policy::acl::Scope;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// The file, in TOML
    file: PathBuf,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove ports, uplinks, mirrors, access lists and sets of addresses that the file does not name; without, they are left alone and named
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

/// `lasthop apply --json`
#[derive(Debug, Serialize)]
struct Applied {
    /// Nothing was changed; this is what would be.
    dry_run: bool,
    /// One line each.
    changes: Vec<String>,
    /// What is there and not in the file.
    left_alone: Vec<String>,
    /// What is to be known of what was made.
    notes: Vec<String>,
}

pub fn apply(args: &ApplyArgs) -> Result<String, CliError> {
    let declared = Declared::read(&args.file).map_err(CliError::new)?;
    let (mut instance, mut notes) = (args.shared.instance()?, Vec::new());
    let mut there = There {
        ports: all_ports(&mut instance)?,
        uplinks: instance.ask(async |c| c.uplink_list().await)?.uplinks,
        mirrors: instance.ask(async |c| c.mirror_list().await)?.mirrors,
        sets: sets(&mut instance, None)?,
        engines: instance.ask(async |c| c.engine_list().await)?,
        rules: instance.ask(async |c| collect(c.acl_show(&[], false).await, |page| page.rules).await)?,
        open_vswitch: instance.ask(async |c| c.stats().await)?.open_vswitch,
    };
    // Devices come from the command line, and their cables with them.
    let named = declared.names();
    there.ports.retain(|port| named.contains(&*port.name) || !crate::device::is_cable(port, &args.shared.run_dir));
    let failed = |e: String| CliError::new(format!("{}: {e}; nothing was changed", args.file.display()));
    there.check(&declared).map_err(failed)?;
    let plan = Plan::new(&declared, &there.without_ovs(), args.prune);
    plan.check().map_err(failed)?;
    if !args.dry_run {
        for (done, change) in plan.changes.iter().enumerate() {
            let made = carry_out(&mut instance, &change.step).map_err(|e| {
                let so_far = lasthop_text::counted(done as u64, "change");
                let again = put_back(&mut instance, &plan.changes[..done]);
                CliError::new(format!(
                    "{}: {}: {e}; {so_far} before it made, the rest not{again}; mend it and apply the file again",
                    args.file.display(),
                    change.told
                ))
            })?;
            notes.extend(made);
        }
    }
    let changes = plan.changes.into_iter().map(|change| change.told).collect();
    let applied = Applied { dry_run: args.dry_run, changes, left_alone: plan.left, notes };
    args.shared.show(&applied, told)
}

fn told(applied: &Applied) -> String {
    let mut text: String = applied.changes.iter().map(|line| format!("{line}\n")).collect();
    if !applied.left_alone.is_empty() {
        let left = applied.left_alone.join(", ");
        text += &format!("left alone, as the file does not name it (--prune removes it): {left}\n");
    }
    text.extend(applied.notes.iter().map(|note| format!("{note}\n")));
    text += match (applied.changes.len(), applied.dry_run) {
        (0, _) => "nothing to change\n",
        (_, true) => "nothing was changed (--dry-run)\n",
        (_, false) => "done\n",
    };
    text
}

/// Has ports and uplinks again as they were, that were removed so that others could take their places, which have not.
fn put_back(instance: &mut Instance, done: &[Change<'_>]) -> String {
    let made = |name: &str| {
        done.iter().any(|change| match &change.step {
            Step::AddPort(port) => port.name == name,
            Step::AddUplink(uplink) => uplink.name == name,
            _ => false,
        })
    };
    let mut said = String::new();
    for change in done {
        let (name, step) = match &change.step {
            Step::DelPort(name, Some(port)) => (name, Step::AddPort(port)),
            Step::DelUplink(name, Some(uplink)) => (name, Step::AddUplink(uplink)),
            _ => continue,
        };
        if !made(name) {
            said += &match carry_out(instance, &step) {
                Ok(_) => format!("; {name} is there again as it was"),
                Err(e) => format!("; {name} as it was could not be made again: {e}"),
            };
        }
    }
    said
}

/// What is to be known of what was made, if anything.
fn carry_out(instance: &mut Instance, step: &Step<'_>) -> Result<Option<String>, CliError> {
    if let Step::AddMirror(mirror) = step {
        let from: Vec<_> = mirror.from.iter().map(String::as_str).collect();
        let direction = mirror.direction.to_string();
        let made = instance.ask(async |c| {
            c.mirror_add(&mirror.name, &from, &mirror.to, &direction, Some(mirror.sample), None).await
        })?;
        let note = made.mirrors.into_iter().find_map(|mirror| mirror.note);
        return Ok(note.map(|note| format!("mirror {}: {note}", mirror.name)));
    }
    make(instance, step).map(|()| None)
}

fn make(instance: &mut Instance, step: &Step<'_>) -> Result<(), CliError> {
    match step {
        Step::ChangeSet(name, add, del) => change(instance, name, add, del).map(drop),
        Step::DelSet(name) => destroy(instance, name).map(drop),
        Step::LoadLists(lists) => {
            tell_text(instance, &lists.text)?;
            let (ports, general) = whose(&lists.scope);
            let load = async |c: &mut _| SwitchProxy::acl_load(c, "auto", "deny", &ports, None, general, None).await;
            instance.ask(load).map(drop)
        }
        Step::ClearLists(scope) => {
            let (ports, general) = whose(scope);
            instance.ask(async |c| c.acl_clear(&ports, None, general).await).map(drop)
        }
        Step::AddMirror(_) => Ok(()),
        Step::SetEngines(engines) => {
            let lists = engines.lists();
            let [poll, helper, ports] = lists.each_ref().map(Option::as_deref);
            let set = async |c: &mut _, attempt: &str| SwitchProxy::engine_set(c, poll, helper, ports, attempt).await;
            instance.ask_until_answered(set).map(drop)
        }
        Step::SetNear(near) => {
            let set = async |c: &mut _, attempt: &str| SwitchProxy::engine_near(c, near.name(), attempt).await;
            instance.ask_until_answered(set).map(drop)
        }
        Step::DelMirror(name) => instance.ask(async |c| c.mirror_del(name).await).map(drop),
        Step::DelPort(name, _) => instance.ask(async |c| c.port_del(name).await).map(drop),
        Step::DelUplink(name, _) => instance.ask(async |c| c.uplink_del(name).await).map(drop),
        Step::SetPort(name, settings) => crate::settings::change(instance, name, settings).map(drop),
        Step::SetUplink(uplink) => {
            let vlans = uplink.vlans.as_ref().map(ToString::to_string);
            instance.ask(async |c| c.uplink_set(&uplink.name, vlans.as_deref()).await).map(drop)
        }
        Step::AddUplink(u) => {
            let (driver, vlans) = (u.driver.as_deref(), u.vlans.as_ref().map(ToString::to_string));
            let add = async |c: &mut _| {
                let vlans = vlans.as_deref();
                SwitchProxy::uplink_add(c, &u.name, &u.device, driver, u.queues, u.nice, !u.no_gro, u.spare, vlans)
                    .await
            };
            instance.ask(add).map(drop)
        }
        Step::AddPort(port) => {
            // A minimum rate has a step of its own.
            let given = port.settings.iter().filter(|(name, value)| value != "none" && name != MIN_RATE);
            let settings: Vec<_> =
                given.map(|(name, value)| Field { name: name.clone(), value: value.clone() }).collect();
            if let Some(d) = &port.device {
                let driver = d.driver.as_deref();
                let add = async |c: &mut _| {
                    SwitchProxy::port_add_device(c, &d.name, &d.device, driver, d.queues, d.nice, d.spare, &settings)
                        .await
                };
                return instance.ask(add).map(drop);
            }
            let (path, owner) = (port.path.display().to_string(), port.owner.as_ref().map(ToString::to_string));
            let add = async |c: &mut _| {
                SwitchProxy::port_add(c, &port.name, &path, port.client, None, owner.as_deref(), &settings).await
            };
            instance.ask(add).map(drop)
        }
    }
}

fn whose(scope: &Scope) -> (Vec<&str>, Option<&str>) {
    match scope {
        Scope::Guests => (Vec::new(), Some("guests")),
        Scope::Uplinks => (Vec::new(), Some("uplinks")),
        Scope::Port(name) => (vec![name], None),
    }
}
