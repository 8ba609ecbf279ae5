//! The command people type: `lasthop run` starts the switch, everything else asks a running one.

mod run;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

#[derive(Parser)]
#[command(name = "lasthop", version, about = "The last-hop switch for virtual machines")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the switch in the foreground until SIGTERM
    Run(RunArgs),
}

/// Arguments of `lasthop run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// CPUs that every thread of the switch is bound to, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Directory of this instance's sockets
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    pub run_dir: PathBuf,
    /// Directory of what must outlive this instance
    #[arg(long, value_name = "DIR", default_value = "/var/lib/lasthop")]
    pub state_dir: PathBuf,
    /// Port to create: lasthop listens on the vhost-user socket PATH, or connects to it with `,client`; repeatable
    #[arg(long = "port", value_name = "NAME=PATH[,client]")]
    pub ports: Vec<PortArg>,
    /// Microseconds a worker looks for more packets before it sleeps
    #[arg(long, value_name = "US", default_value_t = 5)]
    pub spin_us: u32,
}

/// `NAME=PATH[,client]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortArg {
    /// The port's name.
    pub name: String,
    /// Its vhost-user socket.
    pub path: String,
    /// Whether lasthop connects instead of listening.
    pub client: bool,
}

impl FromStr for PortArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, rest) =
            s.split_once('=').ok_or("write NAME=PATH or NAME=PATH,client, such as vm1=/run/lasthop/vm1.sock")?;
        let (path, client) = rest.strip_suffix(",client").map_or((rest, false), |path| (path, true));
        Ok(Self { name: name.into(), path: path.into(), client })
    }
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
    }
}
