//! `lasthop capture`: a mirror whose copies say what they are, written as pcapng for as long as the command runs.
//!
//! The copies are taken by a process of their own, as for any mirror to a file: a driver domain, which sees no guest's memory. It writes them into
//! a named pipe, which is read here; labels are taken off, the filter is run and files are written in this process alone. So nothing of it is in
//! the switch, and whatever it cannot take in time is lost there and counted.

mod filter;
mod output;
mod pipe;
mod records;
mod watch;

use crate::client::{CliError, Instance};
use crate::list::{all_ports, ovs_decides};
use crate::mirror::{file_driver, file_size};
use clap::Args;
use filter::Filter;
use lasthop_api::{Drops, Port, SwitchProxy};
use lasthop_policy::{Label, MAX_MIRRORED};
use lasthop_sys::SignalFd;
use lasthop_text::counted;
use lasthop_uplink_ipc::UplinkDriver;
use output::{Head, Interface, Output, Packet, Ring, Statistics};
use pipe::Pipe;
use records::Records;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use watch::Watch;

/// How long a look at the pipe may wait.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long the process that takes the copies may take to begin.
const START: Duration = Duration::from_secs(5);
/// How long it is tried to take away the mirror.
const END: Duration = Duration::from_secs(3);
/// What filters begin with (pcap-filter(7)): in the place of a port it is a filter's, and the ports are missing.
const FILTERS: [&str; 26] = [
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "sctp",
    "arp",
    "rarp",
    "ip",
    "ip6",
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "ether",
    "vlan",
    "mpls",
    "not",
    "broadcast",
    "multicast",
    "proto",
    "less",
    "greater",
    "stp",
    "geneve",
];
/// The word for all ports.
const ANY: &str = "any";

#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// The ports whose packets are captured, uplinks too; `any`: all that there are now
    #[arg(value_name = "PORT,...|any", default_value = ANY, add = crate::completions::lists_of_ports(ANY))]
    ports: String,
    /// Which packets, as tcpdump has it (pcap-filter(7)): `tcp port 80`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// The file; `-` is standard output, for `tcpdump -r -` or wireshark
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// End after so many packets
    #[arg(short, long, value_name = "COUNT", value_parser = crate::size::whole::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    /// Bytes of each packet that are kept
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144, value_parser = crate::size::whole::<u32>(14..=262_144))]
    snaplen: u32,
    /// What is captured: what those ports' guests send, as they send it, what is sent to them, as they get it, or both
    #[arg(long, value_name = "from-guest|to-guest|both", default_value = "both", value_parser = ["from-guest", "to-guest", "both"])]
    direction: String,
    /// How long the file may be, such as 100M, before it goes on in FILE.1, FILE.2 and so on, and then in FILE again [default: any length]
    #[arg(short = 'C', long, value_name = "SIZE", value_parser = file_size)]
    max_size: Option<String>,
    /// With --max-size: how many files there are [default: 2]
    #[arg(short = 'W', long, value_name = "N", value_parser = crate::size::whole::<u32>(2..=1000))]
    files: Option<u32>,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

impl CaptureArgs {
    fn to_stdout(&self) -> bool {
        self.write == Path::new("-")
    }

    fn ring(&self) -> Result<Option<Ring>, CliError> {
        if self.to_stdout() {
            return Ok(None);
        }
        let limit = self.max_size.as_deref().and_then(|size| UplinkDriver::file_limit(&file_driver(Some(size))));
        let path =
            std::path::absolute(&self.write).map_err(|e| CliError::new(format!("{}: {e}", self.write.display())))?;
        Ok(Some(Ring { path, limit: limit.unwrap_or(u64::MAX), files: self.files.unwrap_or(2) }))
    }

    /// What makes no sense, whatever is running.
    fn check(&self) -> Result<(), CliError> {
        if self.to_stdout() && self.max_size.is_some() {
            return Err(CliError::usage("--max-size is for a file; name one with -w FILE"));
        }
        if self.files.is_some() && self.max_size.is_none() {
            return Err(CliError::usage(
                "-W says how many files of -C SIZE there are; say how long they are with -C SIZE",
            ));
        }
        if self.to_stdout() && io::stdout().is_terminal() {
            return Err(CliError::usage(
                "standard output is a terminal; name a file with -w FILE, or append `| tcpdump -n -r -` to the command",
            ));
        }
        Ok(())
    }
}

/// Until SIGINT, SIGTERM, SIGHUP, until so many packets are captured, or until nobody reads our output any more.
pub fn capture(args: &CaptureArgs) -> Result<String, CliError> {
    args.check()?;
    // Before any thread is started.
    let signals = SignalFd::new().map_err(|e| CliError::new(format!("signals: {e}")))?;
    let mut instance = Instance::connect(&args.run_dir)?;
    let ports = chosen(&mut instance, args)?;
    let text = args.filter.join(" ");
    let filter =
        if text.is_empty() { None } else { Some(Filter::compile(&text).map_err(|e| hint(e, &mut instance, args))?) };
    let ring = args.ring()?;
    if let Some(ring) = &ring {
        Output::check(&ring.path).map_err(|e| CliError::new(e.to_string()))?;
    }
    let name = format!("capture-{}", std::process::id());
    let (pipe, fd) = Pipe::new(&name, &args.run_dir)?;
    let Some(path) = pipe.path.to_str() else {
        return Err(CliError::usage(format!("{}: the path is not UTF-8; name another --run-dir", pipe.path.display())));
    };
    let driver = format!("pipe:{}", rustix::process::geteuid().as_raw());
    instance.ask(async |c| c.port_add_device(&name, path, Some(&driver), 1, 0, false, &[]).await)?;
    let head = Head {
        interfaces: ports.iter().map(interface).collect(),
        snaplen: args.snaplen,
        filter: (!text.is_empty()).then_some(text),
    };
    let ended = run(
        &mut instance,
        (args, &name, &ports),
        &signals,
        |output| Reader::new(fd, output, ports.len(), filter, args),
        head,
        ring,
    );
    // Its process writes what it still has before it ends.
    let removed = remove(&mut instance, args, &name);
    let (started, reader, why) = ended?;
    let finished = reader.finish();
    let meanwhile = all_ports(&mut instance).unwrap_or_default();
    let lost = removed.unwrap_or_else(|e| {
        let _ = writeln!(io::stderr(), "{e}; what was lost is not known, and the mirror ends by itself");
        Vec::new()
    });
    finished.end(args, started, [&ports, &meanwhile], lost)?;
    why.map_or_else(|| Ok(String::new()), |why| Err(CliError::new(why)))
}

/// Since when packets are captured, the reader, and why it ended if that was not asked for.
type Running = (Duration, Worker, Option<String>);

/// Takes away the mirror and its port, unless they have gone by themselves: what the port has lost. Over another connection if ours broke off:
/// control may have been replaced, or all of lasthop.
fn remove(instance: &mut Instance, args: &CaptureArgs, name: &str) -> Result<Vec<Drops>, CliError> {
    let until = Instant::now() + END;
    loop {
        match remove_now(instance, name) {
            Err(e) if until <= Instant::now() => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
            removed => return removed,
        }
        if let Ok(another) = Instance::connect(&args.run_dir) {
            *instance = another;
        }
    }
}

fn remove_now(instance: &mut Instance, name: &str) -> Result<Vec<Drops>, CliError> {
    let mirrors = instance.ask(async |c| c.mirror_list().await)?.mirrors;
    if mirrors.iter().any(|mirror| mirror.name == name) {
        instance.ask(async |c| c.mirror_del(name).await)?;
    }
    let Some(port) = all_ports(instance)?.into_iter().find(|port| port.name == name) else { return Ok(Vec::new()) };
    instance.ask(async |c| c.port_del(name).await)?;
    Ok(port.to_guest.drops)
}

/// From the mirror's beginning to its end. The reader goes on until all is read.
fn run(
    instance: &mut Instance,
    (args, name, ports): (&CaptureArgs, &str, &[Port]),
    signals: &SignalFd,
    reader: impl FnOnce(Output) -> Reader,
    head: Head,
    ring: Option<Ring>,
) -> Result<Running, CliError> {
    wait_until_up(instance, name)?;
    let from: Vec<_> = head.interfaces.iter().map(|interface| interface.name.clone()).collect();
    let from: Vec<_> = from.iter().map(String::as_str).collect();
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    instance.ask(async |c| c.mirror_add(name, &from, name, &args.direction, None, Some(true)).await)?;
    // Whoever reads it knows by these first bytes that packets are captured from now on.
    let output = Output::new(head, ring).map_err(|e| CliError::new(format!("cannot write: {e}")));
    output.and_then(|output| {
        let worker = Worker::start(reader(output));
        let mut watch = Watch::new(&args.run_dir, name, ports);
        let why = wait(signals, || worker.thread.is_finished(), || watch.look(instance))?;
        Ok((started, worker, why))
    })
}

/// Copies that come before the port is up would be lost.
fn wait_until_up(instance: &mut Instance, name: &str) -> Result<(), CliError> {
    let started = Instant::now();
    loop {
        let port = all_ports(instance)?.into_iter().find(|port| port.name == name);
        match port {
            Some(port) if port.state == "up" => return Ok(()),
            Some(port) if started.elapsed() > START => {
                let why = port.last_error.map_or_else(String::new, |e| format!(" ({e})"));
                return Err(CliError::new(format!(
                    "the process that takes the copies does not begin{why}; look at the log of `lasthop run`"
                )));
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The ports that are meant. Refuses what cannot be captured, before a file is made. A port that is not there is a slip here, though a mirror could
/// wait for it.
fn chosen(instance: &mut Instance, args: &CaptureArgs) -> Result<Vec<Port>, CliError> {
    if ovs_decides(instance)? {
        return Err(CliError::new(
            "Open vSwitch decides here (`lasthop run --control ovs`), and a capture is a mirror of the learning switch's; have Open vSwitch \
             mirror the port (`ovs-vsctl`), or capture in the VM",
        ));
    }
    let there = all_ports(instance)?;
    let find = |name: &str| there.iter().find(|port| port.name == name);
    if args.ports == ANY && find(ANY).is_none() {
        let mirrors = instance.ask(async |c| c.mirror_list().await)?.mirrors;
        let gets_copies = |port: &Port| mirrors.iter().any(|mirror| mirror.to == port.name);
        let is_file = |port: &Port| port.driver.as_deref() == Some(UplinkDriver::File.name());
        let all: Vec<_> = there.into_iter().filter(|port| !gets_copies(port) && !is_file(port)).collect();
        return match all.len() {
            0 => Err(CliError::new("there is no port that could be captured; `lasthop port add` makes one")),
            n if n >= MAX_MIRRORED => {
                Err(CliError::new(format!("{n} ports cannot be captured at once; name some of them")))
            }
            _ => Ok(all),
        };
    }
    let mut ports: Vec<Port> = Vec::new();
    for name in args.ports.split(',') {
        if ports.iter().any(|port| port.name == name) {
            return Err(CliError::usage(format!("{name} is named twice; once is enough")));
        }
        let first = name.split_whitespace().next().unwrap_or_default();
        let missing = || {
            if FILTERS.contains(&first) {
                let filter = [&[args.ports.clone()][..], &args.filter].concat().join(" ");
                return CliError::usage(format!("a filter comes after the ports: lasthop capture any {filter}"));
            }
            CliError::new(format!("there is no port {name}; `lasthop port list` shows those there are"))
        };
        ports.push(find(name).ok_or_else(missing)?.clone());
    }
    Ok(ports)
}

/// A filter that begins with a port's name is a list of ports with a space in it.
fn hint(e: CliError, instance: &mut Instance, args: &CaptureArgs) -> CliError {
    let first = args.filter.first().map(String::as_str).unwrap_or_default();
    let is_port = all_ports(instance).unwrap_or_default().iter().any(|port| port.name == first);
    if is_port { CliError::usage(format!("{e}; {first} is a port: write {},{first}", args.ports)) } else { e }
}

fn interface(port: &Port) -> Interface {
    let about = match (&port.device, port.uplink) {
        (Some(device), true) => format!("uplink of lasthop, {device}"),
        (Some(device), false) => format!("port of lasthop, {device}"),
        (None, true) => "uplink of lasthop".to_owned(),
        (None, false) => "port of lasthop, a guest".to_owned(),
    };
    Interface { name: port.name.clone(), about }
}

/// Until a signal, or `is_over`, or there is a reason to end, which is the answer.
fn wait(
    signals: &SignalFd,
    is_over: impl Fn() -> bool,
    mut reason: impl FnMut() -> Option<String>,
) -> Result<Option<String>, CliError> {
    while signals.read().is_none() && !is_over() {
        if let Some(why) = reason() {
            return Ok(Some(why));
        }
        match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(CliError::new(format!("signals: {e}"))),
        }
    }
    Ok(None)
}

/// Reads the pipe, and writes what is wanted.
struct Reader {
    pipe: OwnedFd,
    records: Records,
    output: Output,
    filter: Option<Filter>,
    snaplen: usize,
    /// Packets that came, and those of them that were wanted, of each port.
    seen: Vec<(u64, u64)>,
    /// How many more are wanted.
    left: u64,
    to_stdout: bool,
}

/// A reader in a thread of its own.
struct Worker {
    done: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(Reader, io::Result<()>)>,
}

impl Worker {
    fn start(mut reader: Reader) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let thread = std::thread::spawn(move || {
            let read = reader.read(&until);
            (reader, read)
        });
        Self { done, thread }
    }

    /// Nothing more is written to the pipe: reads what is in it.
    fn finish(self) -> Finished {
        self.done.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok((reader, read)) => Finished(Some(reader), read),
            Err(_) => Finished(None, Err(io::Error::other("the reader panicked"))),
        }
    }
}

impl Reader {
    fn new(pipe: OwnedFd, output: Output, ports: usize, filter: Option<Filter>, args: &CaptureArgs) -> Self {
        let (seen, records, snaplen) = (vec![(0, 0); ports], Records::default(), args.snaplen as usize);
        let left = args.count.unwrap_or(u64::MAX);
        Self { pipe, records, output, filter, snaplen, seen, left, to_stdout: args.to_stdout() }
    }

    /// Until all is read after `done`, nobody reads what we write, or so many packets were written as are wanted.
    fn read(&mut self, done: &AtomicBool) -> io::Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let last = done.load(Ordering::Relaxed);
            match rustix::io::read(&self.pipe, &mut bytes[..]) {
                Ok(n) => self.take(bytes.get(..n).unwrap_or_default())?,
                Err(Errno::AGAIN) if last => return self.output.flush(),
                Err(Errno::AGAIN) => {
                    self.output.flush()?;
                    self.look()?;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if self.left == 0 {
                return self.output.flush();
            }
        }
    }

    /// Waits for a moment that there is more to read.
    fn look(&self) -> io::Result<()> {
        let stdout = io::stdout();
        let mut fds = vec![PollFd::new(&self.pipe, PollFlags::IN)];
        // Whoever has read enough (`| head`) is not found out by writing where no packets come.
        if self.to_stdout {
            fds.push(PollFd::new(&stdout, PollFlags::empty()));
        }
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        match fds.get(1).is_some_and(|fd| fd.revents().contains(PollFlags::ERR)) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self { records, output, filter, snaplen, seen, left, .. } = self;
        let mut written = Ok(());
        let mut frame = Vec::new();
        let whole = records.push(bytes, |time, copy| {
            // One without a label came before the mirror.
            let Some((label, addresses, rest)) = Label::split(copy) else { return true };
            let Some(seen) = seen.get_mut(usize::from(label.place)) else { return true };
            frame.clear();
            frame.extend_from_slice(addresses);
            frame.extend_from_slice(rest);
            seen.0 += 1;
            if filter.as_ref().is_some_and(|filter| !filter.accepts(&frame)) {
                return true;
            }
            seen.1 += 1;
            *left -= 1;
            written = output.write(&Packet {
                interface: label.place.into(),
                time,
                data: frame.get(..*snaplen).unwrap_or(&frame),
                len: frame.len() as u32,
                to_guest: label.to_guest,
                dropped: label.dropped,
            });
            written.is_ok() && *left > 0
        });
        written?;
        whole.map_err(|_| {
            io::Error::other("what the process that takes the copies writes is no capture; it was ended while it wrote")
        })
    }
}

/// A reader at its end, if it did not panic, and what was wrong.
struct Finished(Option<Reader>, io::Result<()>);

impl Finished {
    /// Writes what is known of each port, and says it.
    fn end(
        self,
        args: &CaptureArgs,
        started: Duration,
        [before, after]: [&[Port]; 2],
        lost: Vec<Drops>,
    ) -> Result<(), CliError> {
        let Self(reader, mut written) = self;
        let total: u64 = lost.iter().map(|drops| drops.packets).sum();
        let mut counts = (0, 0);
        if let Some(mut reader) = reader {
            counts = reader.seen.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            let of_port = |(n, port): (usize, &Port)| {
                let now = after.iter().find(|now| now.id == port.id);
                // Whose copies were lost is not known.
                let lost = if n == 0 { total } else { 0 };
                let shared =
                    (lost > 0 && before.len() > 1).then(|| "what was dropped is of all interfaces together".to_owned());
                let comment: Vec<_> = shared.into_iter().chain(now.and_then(|now| dropped(port, now))).collect();
                let comment = (!comment.is_empty()).then(|| comment.join("; "));
                Statistics { seen: reader.seen.get(n).copied().unwrap_or_default(), lost, comment }
            };
            let statistics = before.iter().enumerate().map(of_port).collect();
            written = written.and_then(|()| reader.output.end(started, statistics));
        }
        let mut text = format!("{} captured", counted(counts.1, "packet"));
        if counts.0 > counts.1 {
            let _ = write!(text, ", {} not wanted by the filter", counts.0 - counts.1);
        }
        for drops in &lost {
            let _ = write!(text, ", {} lost ({})", drops.packets, drops.reason);
        }
        let _ = writeln!(io::stderr(), "{text}");
        match written {
            Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                let file = args.write.display();
                Err(CliError::new(format!(
                    "{file}: {e}; the capture has ended there; make room, limit it with -C SIZE -W N, or name a file elsewhere"
                )))
            }
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(CliError::new(format!("cannot write: {e}"))),
            _ => Ok(()),
        }
    }
}

/// What a port dropped meanwhile, by reason. Not all of that can be in a capture.
fn dropped(before: &Port, after: &Port) -> Option<String> {
    let more = |before: &[Drops], after: &[Drops]| {
        let before: BTreeMap<_, _> = before.iter().map(|drops| (&drops.reason, drops.packets)).collect();
        let more = after
            .iter()
            .map(|drops| (drops, drops.packets - before.get(&drops.reason).copied().unwrap_or(0).min(drops.packets)));
        let more: Vec<_> = more.filter(|(_, n)| *n > 0).map(|(drops, n)| format!("{} {n}", drops.reason)).collect();
        more.join(", ")
    };
    let ways = [("from", &before.from_guest, &after.from_guest), ("to", &before.to_guest, &after.to_guest)];
    let told: Vec<_> = ways
        .into_iter()
        .map(|(way, before, after)| (way, more(&before.drops, &after.drops)))
        .filter(|(_, more)| !more.is_empty())
        .map(|(way, more)| format!("the switch dropped meanwhile {way} the guest: {more}"))
        .collect();
    (!told.is_empty()).then(|| told.join("; "))
}
