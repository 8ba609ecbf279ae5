//! `lasthop ovs`: programs of Open vSwitch's that are to take lasthop for the kernel's datapath.

mod units;

use crate::client::CliError;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that has a program's netlink sockets lead to lasthop.
const LIBRARY: &str = "liblasthop_ovs.so";
/// Where packages put it.
const LIBRARY_DIR: &str = "/usr/lib/lasthop";
/// Names the socket to that library.
const VARIABLE: &str = "LASTHOP_OVS_SOCKET";
/// Its name in the run directory of a lasthop that was started with `--control ovs`.
const SOCKET_NAME: &str = "ovs.sock";

#[derive(Debug, clap::Subcommand)]
pub enum OvsCommand {
    /// Run a program that takes lasthop for the kernel's datapath: ovs-vswitchd, ovs-dpctl
    #[command(after_help = "Example:\n  lasthop ovs exec -- ovs-vswitchd --pidfile --detach")]
    Exec {
        /// Directory of the running lasthop, which was started with --control ovs
        #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
        run_dir: PathBuf,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Have the host's own service of Open vSwitch run over lasthop: writes a unit for lasthop and a drop-in, starts nothing
    #[command(
        after_help = "Examples:\n  lasthop ovs install\n  lasthop ovs install --run-dir /run/lasthop --root /srv/image"
    )]
    Install(units::InstallArgs),
    /// Take away what `install` wrote
    #[command(after_help = "Example:\n  lasthop ovs uninstall")]
    Uninstall(units::Places),
}

/// Says what was done. Running a program returns only if that could not be.
pub fn run(command: OvsCommand) -> Result<String, CliError> {
    match command {
        OvsCommand::Exec { run_dir, command } => Err(exec(&run_dir, &command)),
        OvsCommand::Install(args) => units::install(&args),
        OvsCommand::Uninstall(places) => units::uninstall(&places),
    }
}

/// The library's file: beside this program, or where packages put it.
fn library() -> Result<PathBuf, CliError> {
    let own = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let mut places = own.into_iter().chain([PathBuf::from(LIBRARY_DIR)]).map(|dir| dir.join(LIBRARY));
    places.find(|file| file.is_file()).ok_or_else(|| {
        CliError::new(format!("{LIBRARY} is neither beside lasthop nor in {LIBRARY_DIR}; install it there"))
    })
}

/// Becomes the program; returns why that could not be.
fn exec(run_dir: &Path, command: &[String]) -> CliError {
    let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_path_buf());
    let socket = run_dir.join(SOCKET_NAME);
    if !socket.exists() {
        let shown = socket.display();
        return CliError::new(format!(
            "there is no {shown}; start lasthop with `lasthop run --control ovs`, or say where it runs with --run-dir"
        ));
    }
    let library = match library() {
        Ok(library) => library,
        Err(e) => return e,
    };
    let Some((program, arguments)) = command.split_first() else {
        return CliError::new("no program is named");
    };
    let error = become_program(program, arguments, &library, &socket);
    CliError::new(format!("{program}: {error}; is it installed, and in PATH?"))
}

fn become_program(program: &str, arguments: &[String], library: &Path, socket: &Path) -> io::Error {
    let before = std::env::var("LD_PRELOAD").ok().filter(|before| !before.is_empty());
    let libraries = std::iter::once(library.display().to_string()).chain(before).collect::<Vec<_>>().join(":");
    Command::new(program).args(arguments).env("LD_PRELOAD", libraries).env(VARIABLE, socket).exec()
}
