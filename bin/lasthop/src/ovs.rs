//! `lasthop ovs`: programs of Open vSwitch's that are to take lasthop for the kernel's datapath.

mod units;

use crate::client::{CliError, Instance};
use lasthop_api::SwitchProxy;
use lasthop_management_ipc::{OVS_HELLO, OVS_HELLO_VERSION};
use lasthop_sys::send_with_fds;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
    socketpair,
};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The library that has a program's netlink sockets lead to lasthop.
const LIBRARY: &str = "liblasthop_ovs.so";
/// Where packages put it.
const LIBRARY_DIR: &str = "/usr/lib/lasthop";
/// Names the socket to that library.
const VARIABLE: &str = "LASTHOP_OVS_SOCKET";
/// Bytes behind a hello, and of the answer: a number and what proves it.
const NUMBER: usize = 12;
/// How long the answer to a hello may take.
const PATIENCE: Duration = Duration::from_secs(2);
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
    if let Err(e) = reach(&socket) {
        return CliError::new(unreachable(&run_dir, &socket, e));
    }
    let library = match library() {
        Ok(library) => library,
        Err(e) => return e,
    };
    if let Err(why) = check_versions(&run_dir, &socket, &library) {
        return CliError::new(why);
    }
    let Some((program, arguments)) = command.split_first() else {
        return CliError::new("no program is named");
    };
    let error = become_program(program, arguments, &library, &socket);
    CliError::new(format!("{program}: {error}; is it installed, and in PATH?"))
}

/// Connects once: a file that nobody listens at any more would have the program wait for ever.
fn reach(socket: &Path) -> Result<(), Errno> {
    let address = SocketAddrUnix::new(socket)?;
    let fd =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match connect(&fd, &address) {
        // Somebody listens, and has much to do.
        Err(Errno::AGAIN) => Ok(()),
        connected => connected,
    }
}

/// The library, this command and the running lasthop are of versions that speak with each other. A program with another library would find no datapath, and say that the
/// kernel's module is not loaded.
fn check_versions(run_dir: &Path, socket: &Path, library: &Path) -> Result<(), String> {
    let hello = format!("{OVS_HELLO}{OVS_HELLO_VERSION}");
    let (shown, dir) = (library.display(), run_dir.display());
    let file = std::fs::read(library).map_err(|e| format!("{shown}: {e}"))?;
    if !file.windows(hello.len()).any(|bytes| bytes == hello.as_bytes()) {
        return Err(format!("{shown} is of another version than this lasthop; install both from one package or build"));
    }
    match greet(socket, &hello) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "the lasthop that runs at {dir} is of another version than {shown}, and refuses it; start that lasthop again with the programs of this version"
        )),
        // It has much to do, or is just being started: whoever waits for it is let in.
        Err(_) => Ok(()),
    }
}

/// Says hello as the library does. False: that is refused.
fn greet(socket: &Path, hello: &str) -> Result<bool, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(socket)?)?;
    let (second, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let said = [hello.as_bytes(), &[0; NUMBER]].concat();
    send_with_fds(&fd, &said, &[theirs.as_fd()], SendFlags::NOSIGNAL)?;
    drop(theirs);
    sockopt::set_socket_timeout(&second, Timeout::Recv, Some(PATIENCE))?;
    match recv(&second, &mut [0; NUMBER][..], RecvFlags::empty()) {
        Ok((NUMBER, _)) => Ok(true),
        Ok(_) | Err(Errno::CONNRESET) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Why the socket cannot be connected to, and what to do.
fn unreachable(run_dir: &Path, socket: &Path, e: Errno) -> String {
    let (shown, dir) = (socket.display(), run_dir.display());
    if matches!(e, Errno::ACCESS | Errno::PERM) {
        return format!("may not use {shown}; run this as root, or as the user that runs lasthop");
    }
    let missing = matches!(e, Errno::NOENT | Errno::NOTDIR);
    let how = if missing { format!("there is no {shown}") } else { format!("nobody listens at {shown} ({e})") };
    // Nobody answers: its own word is that no lasthop is running there.
    let decides = Instance::connect(run_dir).and_then(|mut instance| instance.ask(async |c| c.stats().await));
    let start = "start it with `lasthop run --control ovs`";
    match decides.map(|stats| stats.open_vswitch.is_some()) {
        Ok(true) => format!(
            "{how}, though lasthop runs with --control ovs at {dir}; it makes the socket anew: try again in a second, and if that does not help, see its \
             log for what is in the way"
        ),
        Ok(false) => format!("{how}: lasthop runs at {dir}, but without --control ovs; end it, and {start}"),
        Err(_) => format!("{how}, and no lasthop answers at {dir}; {start}, or say where it runs with --run-dir"),
    }
}

/// What is wrong with the socket of a running lasthop's, as far as anybody may see.
pub fn socket_fault(run_dir: &Path) -> Option<String> {
    let socket = run_dir.join(SOCKET_NAME);
    let shown = socket.display();
    match std::fs::symlink_metadata(&socket) {
        Ok(file) if !file.file_type().is_socket() => Some(format!("{shown} is no socket")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Some(format!("there is no {shown}")),
        Ok(_) if reach(&socket) == Err(Errno::CONNREFUSED) => Some(format!("nobody listens at {shown}")),
        _ => None,
    }
}

fn become_program(program: &str, arguments: &[String], library: &Path, socket: &Path) -> io::Error {
    let before = std::env::var("LD_PRELOAD").ok().filter(|before| !before.is_empty());
    let libraries = std::iter::once(library.display().to_string()).chain(before).collect::<Vec<_>>().join(":");
    Command::new(program).args(arguments).env("LD_PRELOAD", libraries).env(VARIABLE, socket).exec()
}
