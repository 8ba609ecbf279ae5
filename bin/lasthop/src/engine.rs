//! `lasthop engine`: which CPUs do ports' work, and who does it there.

use crate::SharedArgs;
use crate::client::CliError;
use crate::run::Near;
use crate::table::{Align, Table};
use crate::upgrade::pauses;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use lasthop_api::{Engine, EngineList, SwitchProxy, Upgraded};
use lasthop_management_ipc::EngineKind;
use lasthop_sys::CpuList;

/// `lasthop engine …`
#[derive(Debug, Subcommand)]
pub enum EngineCommand {
    /// Show all engines: where they are, what they have used, and whose rings they serve
    #[command(after_help = "Example:\n  lasthop engine list --json")]
    List(SharedArgs),
    /// Have ports' work done on these CPUs, too
    ///
    /// `poll`: a thread that does nothing else; such threads have all ports that are not set to `ports`. `helper`: idle cycles of the CPU are used, for ports with
    /// threads of their own. `ports`: ports' own threads may run there. Another switch takes over from the one that runs, as with `lasthop upgrade`: packets pause, about 1 ms with few ports and 12 with 64;
    /// those that wait for control are lost, no others, and counters begin anew. It is remembered.
    #[command(after_help = "Examples:\n  lasthop engine add poll 3\n  lasthop engine add helper 4-7")]
    Add(ChangeArgs),
    /// Have nothing done on these CPUs any more
    ///
    /// Without the last that polls, all ports have threads of their own again. One that a port is set to (`lasthop engine move`) stays until the port
    /// is moved.
    #[command(after_help = "Examples:\n  lasthop engine del poll 3\n  lasthop engine del helper 0-1")]
    Del(ChangeArgs),
    /// Keep ports' threads this near to their VMs
    ///
    /// `node`: on CPUs of the NUMA node where the VM runs; `cache`: on CPUs that share its last-level cache; `off`: anywhere on CPUs of `ports`. They follow a VM that
    /// moves. Nothing pauses. It is remembered.
    #[command(after_help = "Example:\n  lasthop engine near cache")]
    Near {
        /// How near
        #[arg(value_enum)]
        near: Near,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Have a port's rings, or an uplink's, looked after by this engine, and by no other
    ///
    /// `poll-3`: by the core that polls there. `ports`: by a thread of the port's own, and by helpers, although cores poll. The same as `lasthop port set PORT --engine ENGINE`, which sets other things before.
    #[command(
        after_help = "Examples:\n  lasthop engine move vm1 poll-3\n  lasthop engine move vm2 ports\n  lasthop engine move vm1 none"
    )]
    Move {
        /// Name of the port, or of the uplink
        #[arg(add = crate::completions::ports())]
        port: String,
        /// An engine that polls, such as poll-3; ports: a thread of its own; none: any that polls, and a thread of its own if none does
        engine: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
}

#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Which kind
    #[arg(value_parser = kinds())]
    kind: String,
    /// CPUs, like 3 or 2,4-5
    cpus: CpuList,
    #[command(flatten)]
    shared: SharedArgs,
}

/// Shells complete them.
fn kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(EngineKind::ALL.map(EngineKind::name))
}

pub fn engine(command: &EngineCommand) -> Result<String, CliError> {
    match command {
        EngineCommand::List(shared) => {
            let list = shared.instance()?.ask(async |c| c.engine_list().await)?;
            shared.show(&list, table)
        }
        EngineCommand::Add(ChangeArgs { kind, cpus, shared }) => {
            let cpus = cpus.to_string();
            let done =
                shared.instance()?.ask_until_answered(async |c, attempt| c.engine_add(kind, &cpus, attempt).await)?;
            shared.show(&done, said)
        }
        EngineCommand::Del(ChangeArgs { kind, cpus, shared }) => {
            let cpus = cpus.to_string();
            let done =
                shared.instance()?.ask_until_answered(async |c, attempt| c.engine_del(kind, &cpus, attempt).await)?;
            shared.show(&done, said)
        }
        EngineCommand::Near { near, shared } => {
            let near = near.name();
            let mut instance = shared.instance()?;
            let done = instance.ask_until_answered(async |c, attempt| c.engine_near(near, attempt).await)?;
            // It is done, whether anybody says what there is to be near to or not.
            let list = if shared.json { None } else { instance.ask(async |c| c.engine_list().await).ok() };
            shared.show(&done, |_| format!("near {near}\n{}", list.iter().map(why_nowhere).collect::<String>()))
        }
        EngineCommand::Move { port, engine, shared } => {
            let mut instance = shared.instance()?;
            let done = instance.ask_until_answered(async |c, attempt| c.engine_move(port, engine, attempt).await)?;
            if !done.processes.is_empty() || shared.json {
                return shared.show(&done, said);
            }
            // It is done, whether anybody says why nothing has moved or not.
            let poll = instance.ask(async |c| c.engine_list().await).ok().map(|list| list.poll);
            Ok(why_unmoved(port, engine, poll.as_deref()))
        }
    }
}

/// Why nothing has moved, by the CPUs that are to poll.
fn why_unmoved(port: &str, engine: &str, poll: Option<&str>) -> String {
    match poll {
        None => "nothing has moved\n".into(),
        Some("none") => format!(
            "nothing has moved, as no core polls: all ports have threads of their own; that {port} is set to {engine} is remembered for when one does\n"
        ),
        Some(_) => format!("nothing has moved: {port} is set to {engine} already\n"),
    }
}

/// Why threads are nowhere near, although they are to be, if there is nothing to be near to.
fn why_nowhere(list: &EngineList) -> String {
    let what = match list.near.as_str() {
        "node" => "lasthop sees one NUMA node with CPUs that are online, and no more",
        "cache" => {
            "lasthop sees one NUMA node with CPUs that are online, and no last-level cache that some of its CPUs share and others do not"
        }
        _ => return String::new(),
    };
    if list.near_to > 0 {
        return String::new();
    }
    format!("{what}: there is nothing to be near to, and ports' threads run on any CPU of `ports`\n")
}

/// What came of a change.
fn said(done: &Upgraded) -> String {
    match done.processes.first() {
        None => "nothing to change\n".into(),
        Some(switch) => format!("another switch (pid {}) has taken over\n{}", switch.pid, pauses(&done.ports)),
    }
}

fn table(list: &EngineList) -> String {
    let columns = [("ENGINE", Align::Left), ("CPU", Align::Left), ("TIME S", Align::Right), ("PORTS", Align::Left)];
    let (mut table, mut notes) = (Table::new(&columns), String::new());
    let of = |kind: EngineKind| list.engines.iter().filter(move |engine| engine.kind == kind.name());
    let all_polled = of(EngineKind::Poll).count() > 0 && of(EngineKind::Ports).all(|engine| engine.ports.is_empty());
    for Engine { name, kind, cpus, nodes, cpu_ns, ports, trouble } in &list.engines {
        trouble.iter().for_each(|why| notes += &format!("{name}: {why}\n"));
        let place = nodes.as_ref().map_or_else(|| cpus.clone(), |nodes| format!("{cpus} (node {nodes})"));
        let time = cpu_ns.map_or_else(|| "-".into(), |ns| format!("{:.2}", ns as f64 / 1e9));
        let ports = match ports.as_slice() {
            [] if *kind == EngineKind::Helper.name() && !all_polled => "those that offer it a ring".to_owned(),
            [] => "-".to_owned(),
            ports => ports.join(","),
        };
        table.row(vec![name.clone(), place, time, ports]);
    }
    if all_polled {
        notes += "cores that poll do all the work: no port has a thread of its own, and so helpers have none to help\n";
    }
    if !list.near.is_empty() && list.near != "off" {
        notes += &format!(
            "near {}: {}",
            list.near,
            match why_nowhere(list).as_str() {
                "" => "ports' threads are kept so near to their VMs; `lasthop show PORT` says where they are\n",
                why => why,
            }
        );
    }
    let several = list.engines.iter().any(|engine| engine.nodes.is_some());
    if several && list.near == "off" {
        notes += "threads of ports run where the kernel has them: `lasthop engine near node` keeps them on the nodes of their VMs\n";
    }
    table.render() + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_why_nothing_has_moved() {
        let told = |poll| why_unmoved("vm1", "ports", poll);
        assert!(told(Some("none")).contains("no core polls") && told(Some("none")).contains("remembered"));
        assert!(told(Some("2-3")).contains("vm1 is set to ports already") && !told(Some("2-3")).contains("no core"));
        assert_eq!(told(None), "nothing has moved\n", "nobody knows why");
    }

    #[test]
    fn it_is_told_where_there_is_nothing_to_be_near_to() {
        let list = |near: &str, near_to: u32| EngineList { near: near.into(), near_to, ..EngineList::default() };
        for (near, why) in [("node", "one NUMA node"), ("cache", "no last-level cache")] {
            assert!(why_nowhere(&list(near, 0)).contains(why));
            let text = table(&list(near, 0));
            assert!(text.contains(&format!("near {near}: lasthop sees one")) && text.contains(why), "{text}");
            assert_eq!(why_nowhere(&list(near, 2)), "");
            assert!(table(&list(near, 2)).contains(&format!("near {near}: ports' threads are kept so near")));
        }
        assert_eq!(why_nowhere(&list("off", 0)), "");
        assert!(!table(&list("off", 0)).contains("near"));
    }

    #[test]
    fn an_engine_that_does_nothing_is_named() {
        let engine = |name: &str, cpus: &str, cpu_ns: Option<u64>, ports: &[&str]| Engine {
            name: name.into(),
            kind: name.split('-').next().unwrap().into(),
            cpus: cpus.into(),
            nodes: None,
            cpu_ns,
            ports: ports.iter().map(ToString::to_string).collect(),
            trouble: (name == "poll-4").then(|| "it has no thread".into()),
        };
        let polls = [engine("poll-3", "3", Some(1_500_000_000), &["vm1", "vm2"]), engine("poll-4", "4", None, &[])];
        let engines = polls.clone().into_iter().chain([engine("ports", "0-7", None, &[])]).collect();
        let text = table(&EngineList { engines, ..EngineList::default() });
        assert!(text.contains("poll-3  3      1.50  vm1,vm2"), "{text}");
        assert!(text.contains("poll-4: it has no thread") && !text.contains("ports: it"), "{text}");
        assert!(text.contains("cores that poll do all the work"), "{text}");
        let own = [engine("helper-0", "0", Some(0), &[]), engine("ports", "0", Some(0), &["vm3"])];
        for engines in [own.to_vec(), [polls, own].concat()] {
            let text = table(&EngineList { engines, ..EngineList::default() });
            assert!(text.contains("those that offer it a ring") && !text.contains("all the work"), "{text}");
        }
    }
}
