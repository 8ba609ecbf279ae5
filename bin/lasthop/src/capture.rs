//! `lasthop capture`: a mirror to a capture file, or to whoever reads our standard output, for as long as the command runs.
//!
//! The packets are written by a process of their own, as for any mirror to a file: a driver domain, which sees no guest's memory. Where they
//! go to standard output there is a named pipe in between, which is read here.

use crate::client::{CliError, Instance};
use crate::list::{all_ports, ovs_decides};
use crate::mirror::{file_driver, file_size};
use clap::Args;
use lasthop_api::SwitchProxy;
use lasthop_sys::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long a look at the pipe may wait.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// The ports whose packets are captured; uplinks too
    #[arg(required = true, value_delimiter = ',')]
    ports: Vec<String>,
    /// The file; `-` is standard output, for `tcpdump -r -` or wireshark
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// What is captured: what those ports' guests send, as they send it, what is sent to them, as they get it, or both
    #[arg(long, value_name = "from-guest|to-guest|both", default_value = "both", value_parser = ["from-guest", "to-guest", "both"])]
    direction: String,
    /// How long the file may be before it goes on in FILE.1, and then in FILE again, such as 100M [default: any length]
    #[arg(long, value_name = "SIZE", value_parser = file_size)]
    max_size: Option<String>,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

/// A named pipe, which goes with this.
struct Pipe(PathBuf);

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Until SIGINT, SIGTERM, SIGHUP, or until nobody reads our output any more.
pub fn capture(args: &CaptureArgs) -> Result<String, CliError> {
    let to_stdout = args.write == Path::new("-");
    if to_stdout && args.max_size.is_some() {
        return Err(CliError::usage("--max-size is for a file; name one with -w FILE"));
    }
    if to_stdout && io::stdout().is_terminal() {
        return Err(CliError::usage(
            "standard output is a terminal; name a file with -w FILE, or append `| tcpdump -n -r -` to the command",
        ));
    }
    // Before any thread is started.
    let signals = SignalFd::new().map_err(|e| CliError::new(format!("signals: {e}")))?;
    let mut instance = Instance::connect(&args.run_dir)?;
    check(&mut instance, &args.ports)?;
    let name = format!("capture-{}", std::process::id());
    let (pipe, path) = if to_stdout {
        let pipe = Pipe(std::env::temp_dir().join(format!("lasthop-{name}")));
        let failed = |e: Errno| CliError::new(format!("{}: {e}; is there such a file already?", pipe.0.display()));
        mknodat(rustix::fs::CWD, &pipe.0, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(failed)?;
        // Written to as well, so that the end of a writer, which another may follow, is no end of the file.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = open(&pipe.0, flags, Mode::empty()).map_err(failed)?;
        let path = pipe.0.clone();
        (Some((pipe, fd)), path)
    } else {
        (None, std::path::absolute(&args.write).map_err(|e| CliError::new(format!("{}: {e}", args.write.display())))?)
    };
    let Some(path) = path.to_str() else {
        return Err(CliError::usage(format!("{}: the path is not UTF-8; choose another", path.display())));
    };
    let driver = file_driver(args.max_size.as_deref());
    instance.ask(async |c| c.port_add_device(&name, path, Some(&driver), 1, 0, false, &[]).await)?;
    let from: Vec<_> = args.ports.iter().map(String::as_str).collect();
    let mirrored = instance.ask(async |c| c.mirror_add(&name, &from, &name, &args.direction, None).await);
    let ended = mirrored.and_then(|_| {
        let done = Arc::new(AtomicBool::new(false));
        let reader = pipe.map(|(pipe, fd)| {
            let done = done.clone();
            std::thread::spawn(move || (copy(&fd, &done), pipe).0)
        });
        wait(&signals, || reader.as_ref().is_some_and(std::thread::JoinHandle::is_finished))?;
        instance.ask(async |c| c.mirror_del(&name).await)?;
        let told = counted(&mut instance, &name);
        Ok((done, reader, told))
    });
    // Its process writes what it still has before it ends.
    let gone = instance.ask(async |c| c.port_del(&name).await);
    let (done, reader, told) = ended?;
    done.store(true, Ordering::Relaxed);
    let written = reader.map(|reader| reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked"))));
    let _ = writeln!(io::stderr(), "{told}");
    gone?;
    match written {
        Some(Err(e)) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(String::new()),
    }
}

/// Refuses what cannot be captured, before a file is made. A port that is not there is a slip here, though a mirror could wait for it.
fn check(instance: &mut Instance, from: &[String]) -> Result<(), CliError> {
    if ovs_decides(instance)? {
        return Err(CliError::new(
            "Open vSwitch decides here (`lasthop run --control ovs`), and a capture is a mirror of the learning switch's; have Open vSwitch \
             mirror the port (`ovs-vsctl`), or capture in the VM",
        ));
    }
    if let Some(twice) = from.iter().enumerate().find_map(|(n, port)| from[..n].contains(port).then_some(port)) {
        return Err(CliError::usage(format!("{twice} is named twice; once is enough")));
    }
    let there = all_ports(instance)?;
    match from.iter().find(|port| !there.iter().any(|p| p.name == **port)) {
        Some(missing) => {
            Err(CliError::new(format!("there is no port {missing}; `lasthop port list` shows those there are")))
        }
        None => Ok(()),
    }
}

fn wait(signals: &SignalFd, is_over: impl Fn() -> bool) -> Result<(), CliError> {
    while signals.read().is_none() && !is_over() {
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(CliError::new(format!("signals: {e}"))),
        }
    }
    Ok(())
}

/// From the pipe to standard output, until nobody reads that, or all is copied after `done`.
fn copy(pipe: &OwnedFd, done: &AtomicBool) -> io::Result<()> {
    let (mut bytes, mut stdout) = (vec![0; 1 << 16], io::stdout().lock());
    loop {
        let last = done.load(Ordering::Relaxed);
        match rustix::io::read(pipe, &mut bytes[..]) {
            Ok(n) => stdout.write_all(&bytes[..n])?,
            Err(Errno::AGAIN) if last => return stdout.flush(),
            Err(Errno::AGAIN) => {
                stdout.flush()?;
                let mut fds = [PollFd::new(pipe, PollFlags::IN), PollFd::new(&stdout, PollFlags::empty())];
                poll(&mut fds, Some(&LOOK))?;
                // Whoever has read enough (`| head`) is not found out by writing where no packets come.
                if fds[1].revents().contains(PollFlags::ERR) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// What was captured, and what was lost on the way.
fn counted(instance: &mut Instance, name: &str) -> String {
    let ports = all_ports(instance).unwrap_or_default();
    let Some(port) = ports.into_iter().find(|port| port.name == name) else { return "captured".into() };
    let mut text = format!("{} captured", lasthop_text::counted(port.to_guest.packets, "packet"));
    for drops in &port.to_guest.drops {
        let _ = write!(text, ", {} lost ({})", drops.packets, drops.reason);
    }
    text
}
