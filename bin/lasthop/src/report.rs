//! `lasthop report`: one archive of all that somebody needs who is to find out, elsewhere, what is wrong here.
//!
//! Most of it is what other commands say, each asked by a process of its own: one that fails or takes too long leaves its complaint in its
//! place, and the others are there all the same.

mod mask;

use crate::client::{CliError, Instance};
use crate::device::Found;
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use lasthop_api::{READ_SOCKET_NAME, SOCKET_NAME};
use lasthop_text::counted;
use mask::Mask;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long one command may take. Doctor looks for two seconds; others give up by themselves after fifteen.
const PATIENCE: Duration = Duration::from_secs(30);
/// So much of the log's end is taken, in bytes, and of what one command says.
const LOG_TAIL: u64 = 512 << 10;
const MOST: u64 = 32 << 20;
/// Lines of the log that journald is asked for.
const JOURNAL_LINES: &str = "4000";
/// Folder in the archive.
const FOLDER: &str = "lasthop-report";

/// What lasthop says, by file.
const ASKED: [(&str, &[&str]); 18] = [
    ("doctor.txt", &["doctor"]),
    ("doctor.json", &["doctor", "--json", "--since-start"]),
    ("ports.txt", &["port", "list"]),
    ("ports.json", &["port", "list", "--json"]),
    ("uplinks.json", &["uplink", "list", "--json"]),
    ("stats.txt", &["stats", "--verbose"]),
    ("stats.json", &["stats", "--json"]),
    ("flows.txt", &["flow", "list"]),
    ("flows.json", &["flow", "list", "--json"]),
    ("macs.txt", &["mac", "list"]),
    ("groups.txt", &["mac", "groups"]),
    ("mirrors.txt", &["mirror", "list"]),
    ("acl.txt", &["acl", "show"]),
    ("sets.txt", &["set", "list"]),
    ("conntrack.txt", &["conntrack", "stats"]),
    ("metrics.txt", &["metrics"]),
    ("devices.txt", &["device", "list"]),
    ("log-levels.txt", &["log"]),
];
/// What each device says of itself.
const OF_DEVICE: [(&str, &[&str]); 5] = [
    ("doctor.txt", &["doctor"]),
    ("ports.txt", &["port", "list"]),
    ("stats.txt", &["stats", "--verbose"]),
    ("flows.txt", &["flow", "list"]),
    ("metrics.txt", &["metrics"]),
];
/// What the host says: file, program, arguments.
const HOST: [(&str, &str, &[&str]); 6] = [
    ("host/kernel.txt", "uname", &["-srvmo"]),
    ("host/cpus.txt", "lscpu", &[]),
    ("host/links.txt", "ip", &["-details", "-statistics", "link"]),
    ("host/qemu-x86.txt", "qemu-system-x86_64", &["--version"]),
    ("host/libvirt.txt", "libvirtd", &["--version"]),
    ("host/ovs.txt", "ovs-vswitchd", &["--version"]),
];
const HOST_FILES: [(&str, &str); 4] = [
    ("host/memory.txt", "/proc/meminfo"),
    ("host/load.txt", "/proc/loadavg"),
    ("host/command-line.txt", "/proc/cmdline"),
    ("host/release.txt", "/etc/os-release"),
];

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The archive to write; `-` is standard output [default: lasthop-report-SECONDS.tar.gz in this directory]
    file: Option<PathBuf>,
    /// Leave MAC and IP addresses as they are. Without, each is replaced, by the same word wherever it is found
    #[arg(long)]
    with_addresses: bool,
    /// The file of `lasthop run --config`, which is put in if it can be read [default: /etc/lasthop.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

/// Writes the archive, and says what it is.
pub fn report(args: &ReportArgs) -> Result<String, CliError> {
    let path = args.file.clone().unwrap_or_else(|| {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        format!("lasthop-report-{seconds}.tar.gz").into()
    });
    let failed = |e: io::Error| {
        CliError::new(format!("{}: {e}; name a file that does not exist yet, in a directory with room", path.display()))
    };
    let to_stdout = path == Path::new("-");
    let file = if to_stdout {
        if io::stdout().is_terminal() {
            return Err(CliError::usage(
                "the archive is no text; send standard output to a file or a program, or name a file",
            ));
        }
        io::stdout().as_fd().try_clone_to_owned().map(File::from)
    } else {
        // For its owner alone, and never in place of something else.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)
    };
    let file = file.map_err(failed)?;
    // Somebody who names a file wants it in there.
    let config = args.config.as_deref().map(|path| (path, File::open(path)));
    if let Some((path, Err(e))) = &config {
        eprintln!("lasthop: {}: {e}; the archive is made without it", path.display());
    }
    let (files, log) = gather(args);
    let count = files.len();
    let written = write(file, files, (!args.with_addresses).then(Mask::default));
    let remove = || if to_stdout { Ok(()) } else { fs::remove_file(&path) };
    let masked = written.inspect_err(|_| drop(remove())).map_err(failed)?;
    let addresses = match masked {
        None => "with addresses".to_owned(),
        Some(n) => format!("{} replaced", counted(n as u64, "address")),
    };
    let said = format!(
        "{}: {}, {addresses}; log: {log}\nnames of ports, paths and what else the log says are in it: look through it before you send it to \
         somebody\n",
        if to_stdout { "standard output".into() } else { path.display().to_string() },
        counted(count as u64, "file"),
    );
    if to_stdout {
        eprint!("{said}");
        return Ok(String::new());
    }
    Ok(said)
}

/// Name and content of each file, and where the log was found.
fn gather(args: &ReportArgs) -> (Vec<(String, Vec<u8>)>, String) {
    let own = std::env::current_exe().unwrap_or_else(|_| "lasthop".into());
    let run_dir = args.run_dir.as_os_str();
    let ask_at = |words: &[&str], dir: &OsStr| say(Command::new(&own).args(words).arg("--run-dir").arg(dir));
    let ask = |words: &[&str]| ask_at(words, run_dir);
    let mut files = vec![("version.txt".to_owned(), say(Command::new(&own).arg("--version")))];
    // Of the file that the package's service writes, whichever instance that looks at.
    files.push(("history.txt".into(), say(Command::new(&own).args(["history", "show"]))));
    files.extend(ASKED.iter().map(|(name, words)| ((*name).to_owned(), ask(words))));
    for port in ports(&ask(&["port", "list", "--json"])) {
        files.push((format!("show/{port}.txt"), ask(&["show", &port])));
    }
    for Found { name, .. } in crate::device::found(&args.run_dir) {
        let dir = crate::device::dir_of(&args.run_dir, &name);
        files.push((format!("devices/{name}/device.json"), ask(&["device", "stats", &name, "--json"])));
        let asked = OF_DEVICE.iter();
        files.extend(asked.map(|(file, words)| (format!("devices/{name}/{file}"), ask_at(words, dir.as_os_str()))));
    }
    files.extend(
        HOST.iter().map(|(name, program, words)| ((*name).to_owned(), say(Command::new(program).args(*words)))),
    );
    files.extend(HOST_FILES.iter().map(|(name, path)| ((*name).to_owned(), read(Path::new(path)))));
    files.push(("config.toml".into(), read(args.config.as_deref().unwrap_or(Path::new("/etc/lasthop.toml")))));
    let pid = supervisor(&args.run_dir);
    let processes = pid.as_deref().map(processes);
    files.push(("processes.txt".into(), processes.unwrap_or_else(|| "no lasthop run was found\n".into()).into_bytes()));
    let (log, from) = log(pid.as_deref(), &args.run_dir);
    files.push(("log.txt".into(), log));
    files.push(("log-from.txt".into(), format!("{from}\n").into_bytes()));
    (files, from)
}

/// Names of the ports in a list, as file names: they have no slash.
fn ports(list: &[u8]) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_slice(list).unwrap_or_default();
    let names = list["ports"].as_array().into_iter().flatten().filter_map(|port| port["name"].as_str());
    names.filter(|name| lasthop_policy::check_name(name).is_ok()).map(str::to_owned).collect()
}

fn read(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    match File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut text)) {
        Ok(_) => text,
        Err(e) => format!("{}: {e}\n", path.display()).into_bytes(),
    }
}

/// What a command says, on both its outputs, and how it ended if not well.
fn say(command: &mut Command) -> Vec<u8> {
    let program = command.get_program().display().to_string();
    match run(command) {
        Ok(said) => said,
        Err(e) => format!("{program}: {e}\n").into_bytes(),
    }
}

fn run(command: &mut Command) -> io::Result<Vec<u8>> {
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // It holds the ends of the pipe to write to.
    *command = Command::new("");
    let (done, text) = channel();
    thread::spawn(move || {
        let mut said = Vec::new();
        let _ = reader.take(MOST).read_to_end(&mut said);
        let _ = done.send(said);
    });
    let Ok(mut said) = text.recv_timeout(PATIENCE) else {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other(format!("it did not end within {} s", PATIENCE.as_secs())));
    };
    let status = child.wait()?;
    if !status.success() {
        writeln!(said, "({status})")?;
    }
    Ok(said)
}

/// The process that has locked the run directory.
fn supervisor(run_dir: &Path) -> Option<String> {
    if ![SOCKET_NAME, READ_SOCKET_NAME].iter().any(|socket| run_dir.join(socket).exists()) {
        return None;
    }
    let pid = fs::read_to_string(run_dir.join("lock")).ok()?;
    let pid = pid.trim();
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (program.trim() == "lasthop").then(|| pid.to_owned())
}

/// It and its children, as ps(1) shows them.
fn processes(pid: &str) -> String {
    let format = ["-ww", "-o", "pid,ppid,stat,psr,ni,cls,pcpu,rss,nlwp,etime,args"];
    let said = say(Command::new("ps").args(format).args(["--pid", pid, "--ppid", pid]));
    String::from_utf8_lossy(&said).into_owned()
}

/// The end of the log, and where it was found.
fn log(pid: Option<&str>, run_dir: &Path) -> (Vec<u8>, String) {
    let Some(pid) = pid else {
        let answers = Instance::connect(run_dir).is_ok();
        let why = if answers {
            "lasthop runs, and this user may not see its processes: run this as root"
        } else {
            "no lasthop runs"
        };
        return (Vec::new(), format!("not found: {why}"));
    };
    let file = format!("/proc/{pid}/fd/2");
    let leads = fs::read_link(&file).map_or_else(|e| e.to_string(), |to| to.display().to_string());
    match tail(Path::new(&file)) {
        Ok(Some(text)) => return (text, format!("{leads}, at most its last {} KiB", LOG_TAIL >> 10)),
        Ok(None) => {}
        Err(e) => return (Vec::new(), format!("not found: {leads}: {e}")),
    }
    // A unit's standard error is a socket of journald's. Of one that somebody has started by hand it is none, whatever unit that shell is of.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let unit = groups.lines().filter_map(|line| line.rsplit('/').next()).find(|unit| unit.ends_with(".service"));
    if let Some(unit) = unit.filter(|_| leads.starts_with("socket:")) {
        let words = ["--no-pager", "--no-hostname", "-o", "short-iso", "-n", JOURNAL_LINES, "-u", unit];
        return match run(Command::new("journalctl").args(words)) {
            Ok(text) => (text, format!("journald, unit {unit}, at most {JOURNAL_LINES} lines")),
            Err(e) => (Vec::new(), format!("not found: journalctl: {e}")),
        };
    }
    (
        Vec::new(),
        format!("not found: standard error of lasthop run leads to {leads}, which keeps nothing that could be read"),
    )
}

/// The end of a regular file; of anything else nothing.
fn tail(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(meta.len().saturating_sub(LOG_TAIL)))?;
    let mut text = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Writes the archive. With a mask, how many addresses it has replaced.
fn write(file: File, files: Vec<(String, Vec<u8>)>, mut mask: Option<Mask>) -> io::Result<Option<usize>> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, content) in files {
        let content = match &mut mask {
            Some(mask) => mask.apply(&String::from_utf8_lossy(&content)).into_bytes(),
            None => content,
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), content.as_slice())?;
    }
    let file = archive.into_inner()?.finish()?;
    // A pipe has nothing to be written out.
    if file.metadata()?.is_file() {
        file.sync_all()?;
    }
    Ok(mask.map(|mask| mask.count()))
}
