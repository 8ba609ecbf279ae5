//! What `lasthop run` needs before it can start: directories, locks, programs and sensible arguments.

use super::args::{PortArg, RunArgs, check_name, check_uplink};
use super::batch::Batch;
use super::socket::{self, Listener};
use super::store::{Saved, SavedPort, SavedUplink, Store};
use super::{RunError, RunError::Failed, RunError::Usage};
use lasthop_ipc::MAX_MESSAGE;
use lasthop_sys::{CpuList, Epoll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where packages put programs that people do not type.
const LIBEXEC: &str = "/usr/libexec/lasthop";

/// Everything found, checked and locked.
#[derive(Debug)]
pub struct Setup {
    /// CPUs of the switch, if bounded.
    pub cpus: Option<CpuList>,
    /// How packets are moved, in the switch's words.
    pub scheduling: Vec<String>,
    /// How packets of a port that has no setting of its own are gathered.
    pub tx_batch: Batch,
    /// Whether ports' threads go into their VMs' control groups.
    pub vm_cgroup: bool,
    /// Whether to watch cores and VMs.
    pub bpf: bool,
    /// Program of the data plane.
    pub switch: PathBuf,
    /// Program of the control plane.
    pub control: PathBuf,
    /// Program of uplinks, or why there is none.
    pub uplink: Result<PathBuf, String>,
    /// How long an uplink may take to answer.
    pub uplink_limit: Duration,
    /// Whether to look for uplinks on one segment.
    pub uplink_probe: bool,
    /// Socket of the local API.
    pub api: Listener,
    /// Where ports are remembered.
    pub store: Store,
    /// Ports of the command line, paths made absolute.
    pub ports: Vec<SavedPort>,
    /// Ports remembered, without those named on the command line as well.
    pub saved: Vec<SavedPort>,
    /// Uplinks of the command line, and whether each is remembered too.
    pub uplinks: Vec<(SavedUplink, bool)>,
    /// Uplinks remembered, without those named on the command line as well.
    pub saved_uplinks: Vec<SavedUplink>,
    /// Names of remembered ports that the command line names too; they stay remembered.
    pub also_saved: HashSet<String>,
    /// Text of the access lists remembered; empty if there are none.
    pub lists: Vec<u8>,
    /// Held as long as we run.
    pub locks: [File; 2],
}

impl Setup {
    /// Checks everything, in the order in which a user would mend it.
    pub fn new(args: &RunArgs) -> Result<Self, RunError> {
        check_kernel()?;
        let allowed = CpuList::allowed().map_err(|e| Failed(format!("cannot read the CPUs of this process: {e}")))?;
        let cpus = args.cpus.as_deref().map(|text| check_cpus("--cpus", text, &allowed)).transpose()?;
        for (option, list) in [("--helpers", &args.scheduling.helpers), ("--poll", &args.scheduling.poll)] {
            if let Some(list) = list.as_ref().and_then(|cpus| cpus.0.as_ref()) {
                check_cpus(option, &list.to_string(), cpus.as_ref().unwrap_or(&allowed))?;
            }
        }
        let ports = absolute(&args.ports)?;
        let switch = find_program("lasthop-switch", args.libexec.as_deref())?;
        let control = find_program("lasthop-control", args.libexec.as_deref())?;
        let uplink = find_program("lasthop-uplink", args.libexec.as_deref()).map_err(|e| e.to_string());
        if let (Err(e), false) = (&uplink, args.uplinks.is_empty()) {
            return Err(Failed(e.clone()));
        }
        let run_lock = lock(&args.run_dir, "lock", "--run-dir", 0o755)?;
        let state_lock = lock(&args.state_dir, "state.lock", "--state-dir", 0o755)?;
        let store = Store::new(&args.state_dir);
        let Saved { ports: saved, uplinks: saved_uplinks } = store.load().map_err(Failed)?;
        let lists = store.load_lists().map_err(Failed)?;
        let (also_saved, saved) = reconcile(&ports, saved).map_err(Failed)?;
        let (uplinks, saved_uplinks) = reconcile_uplinks(&ports, &saved, &args.uplinks, saved_uplinks)?;
        let run_dir = std::path::absolute(&args.run_dir).unwrap_or_else(|_| args.run_dir.clone());
        let api = Listener::bind(&run_dir.join("api.sock"), false).map_err(Failed)?;
        Ok(Self {
            scheduling: args.scheduling.for_switch(cpus.as_ref().unwrap_or(&allowed)),
            tx_batch: args.scheduling.tx_batch,
            cpus,
            vm_cgroup: args.vm_cgroup,
            bpf: !args.no_bpf,
            switch,
            control,
            uplink,
            uplink_limit: Duration::from_millis(args.uplink_limit_ms),
            uplink_probe: !args.no_uplink_probe,
            api,
            store,
            ports,
            saved,
            uplinks,
            saved_uplinks,
            also_saved,
            lists,
            locks: [run_lock, state_lock],
        })
    }
}

/// Every thread waits by epoll_pwait2(2), whose times are shorter than a millisecond.
fn check_kernel() -> Result<(), RunError> {
    let waited = Epoll::new().and_then(|epoll| epoll.wait(&mut Vec::new(), Some(Duration::ZERO)));
    waited.map_err(|e| match e {
        Errno::NOSYS => Failed("this kernel has no epoll_pwait2; lasthop needs Linux 5.11 or newer".into()),
        e => Failed(format!("cannot wait for events: {e}")),
    })
}

fn check_cpus(option: &str, text: &str, allowed: &CpuList) -> Result<CpuList, RunError> {
    let cpus: CpuList = text.parse().map_err(|e| Usage(format!("{option} {text}: {e}")))?;
    let missing = cpus.without(allowed);
    if missing.is_empty() {
        return Ok(cpus);
    }
    Err(Usage(format!("{option} {text}: CPU {missing} cannot be used here; choose from {allowed}")))
}

fn absolute(ports: &[PortArg]) -> Result<Vec<SavedPort>, RunError> {
    let mut checked: Vec<SavedPort> = Vec::new();
    for port in ports {
        let path = std::path::absolute(&port.path).map_err(|e| Failed(format!("{}: {e}", port.path.display())))?;
        let path = path
            .to_str()
            .ok_or_else(|| Usage(format!("--port {}: the path is not UTF-8; choose one that is", port.name)))?;
        let PortArg { name, client, tx_batch, .. } = port.clone();
        let new = SavedPort { name, path: path.into(), client, tx_batch };
        check_new(checked.iter(), &new).map_err(|e| Usage(format!("--port {}: {e}", new.name)))?;
        checked.push(new);
    }
    Ok(checked)
}

/// Checks that a port may stand beside those there are. The error says what is wrong; what to do.
pub fn check_new<'a>(there: impl Iterator<Item = &'a SavedPort>, new: &SavedPort) -> Result<(), String> {
    check_name(&new.name)?;
    if !Path::new(&new.path).is_absolute() {
        return Err(format!("{:?} is not an absolute path; write it from / on", new.path));
    }
    socket::check_length(Path::new(&new.path))?;
    new.tx_batch.map_or(Ok(()), Batch::check)?;
    // All ports travel to control in one message; 16 bytes are more than the other fields of one take.
    let mut bytes = new.name.len() + new.path.len() + 16;
    for port in there {
        if port.name == new.name {
            return Err(format!("there is a port {} already; choose another name", port.name));
        }
        if port.path == new.path {
            return Err(format!("{} belongs to port {} already; choose another path", port.path, port.name));
        }
        bytes += port.name.len() + port.path.len() + 16;
    }
    if bytes > MAX_MESSAGE - 64 {
        return Err("too many ports: the list of all names and paths is over 64 KiB; use shorter ones".into());
    }
    Ok(())
}

/// Takes out of `saved` what the command line names as well. Saying two different things about one port is an error.
fn reconcile(given: &[SavedPort], saved: Vec<SavedPort>) -> Result<(HashSet<String>, Vec<SavedPort>), String> {
    let (twice, once): (Vec<_>, Vec<_>) = saved.into_iter().partition(|port| given.contains(port));
    let mut all = given.to_vec();
    for port in &once {
        check_new(all.iter(), port)
            .map_err(|e| format!("remembered port {}: {e}, or move ports.json of --state-dir away", port.name))?;
        all.push(port.clone());
    }
    Ok((twice.into_iter().map(|port| port.name).collect(), once))
}

/// Most uplinks.
const MAX_UPLINKS: usize = 64;

/// Checks that an uplink may stand beside the ports and uplinks there are. The error says what is wrong; what to do.
pub fn check_new_uplink<'a>(
    mut ports: impl Iterator<Item = &'a SavedPort>,
    uplinks: impl Iterator<Item = &'a SavedUplink>,
    new: &SavedUplink,
) -> Result<(), String> {
    check_uplink(new)?;
    if ports.any(|port| port.name == new.name) {
        return Err(format!("there is a port {} already; choose another name", new.name));
    }
    let mut count = 0;
    for uplink in uplinks {
        if uplink.name == new.name {
            return Err(format!("there is an uplink {} already; choose another name", new.name));
        }
        if uplink.device == new.device {
            return Err(format!("{} is uplink {} already; choose another device", new.device, uplink.name));
        }
        count += 1;
    }
    if count >= MAX_UPLINKS {
        return Err(format!("there are {MAX_UPLINKS} uplinks already; remove one first"));
    }
    Ok(())
}

/// What is remembered has a driver, even if it was chosen.
fn is_same(given: &SavedUplink, saved: &SavedUplink) -> bool {
    let driver = given.driver.as_ref().or(saved.driver.as_ref()).cloned();
    SavedUplink { driver, ..given.clone() } == *saved
}

type Uplinks = (Vec<(SavedUplink, bool)>, Vec<SavedUplink>);

/// The uplinks of the command line, each with whether it is remembered as well, and those only remembered.
fn reconcile_uplinks(
    ports: &[SavedPort],
    saved_ports: &[SavedPort],
    given: &[SavedUplink],
    saved: Vec<SavedUplink>,
) -> Result<Uplinks, RunError> {
    let (twice, once): (Vec<_>, Vec<_>) =
        saved.into_iter().partition(|saved| given.iter().any(|given| is_same(given, saved)));
    let mut all: Vec<SavedUplink> = Vec::new();
    for uplink in given {
        check_new_uplink(ports.iter().chain(saved_ports), all.iter(), uplink)
            .map_err(|e| Usage(format!("--uplink {}: {e}", uplink.name)))?;
        all.push(uplink.clone());
    }
    for uplink in &once {
        check_new_uplink(ports.iter().chain(saved_ports), all.iter(), uplink).map_err(|e| {
            Failed(format!("remembered uplink {}: {e}, or move ports.json of --state-dir away", uplink.name))
        })?;
        all.push(uplink.clone());
    }
    let given = given.iter().map(|uplink| (uplink.clone(), twice.iter().any(|saved| is_same(uplink, saved))));
    Ok((given.collect(), once))
}

/// Looks beside this program, then in PATH, then where packages put it; or only in `libexec`.
fn find_program(name: &str, libexec: Option<&Path>) -> Result<PathBuf, RunError> {
    let own = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = match libexec {
        Some(only) => vec![only.to_path_buf()],
        None => own.into_iter().chain(std::env::split_paths(&path)).chain([PathBuf::from(LIBEXEC)]).collect(),
    };
    let found = directories.iter().map(|dir| dir.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| {
        let place = directories.first().map_or(OsStr::new(LIBEXEC), |dir| dir.as_os_str()).display();
        let elsewhere = if libexec.is_some() { String::new() } else { format!(", in PATH or in {LIBEXEC}") };
        Failed(format!("{name} is not in {place}{elsewhere}; install it beside lasthop"))
    })
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Makes the directory if need be and locks it for this process. The lock goes with the process, however it ends.
fn lock(dir: &Path, name: &str, option: &str, mode: u32) -> Result<File, RunError> {
    let shown = dir.display();
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(|e| {
        Failed(format!("{shown}: cannot make the directory: {e}; choose another with {option} or run as root"))
    })?;
    let path = dir.join(name);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(|e| {
            Failed(format!("{}: {e}; make the directory writable or choose another with {option}", path.display()))
        })?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        return Err(Failed(format!(
            "another lasthop (pid {}) runs with {option} {shown}; stop it or choose another directory",
            pid.trim()
        )));
    }
    // For the message above only; the lock holds without it.
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, path: &str) -> SavedPort {
        SavedPort { name: name.into(), path: path.into(), client: false, tx_batch: None }
    }

    #[test]
    fn cpus_must_exist_and_be_allowed() {
        let allowed = CpuList::allowed().unwrap();
        assert_eq!(check_cpus("--cpus", &allowed.to_string(), &allowed), Ok(allowed.clone()));
        let Err(Usage(text)) = check_cpus("--cpus", "1000", &allowed) else { panic!("CPU 1000 is not here") };
        assert!(text.contains("1000") && text.contains(&format!("choose from {allowed}")), "{text}");
        assert!(matches!(check_cpus("--cpus", "x", &allowed), Err(Usage(_))));
    }

    #[test]
    fn names_and_paths_are_used_once() {
        let there = [port("a", "/a"), port("b", "/b")];
        assert_eq!(check_new(there.iter(), &port("c", "/c")), Ok(()));
        for (new, word) in [
            (port("a", "/c"), "another name"),
            (port("c", "/b"), "port b"),
            (port("c", "c"), "absolute"),
            (port("c/", "/c"), "cannot be in"),
            (port("c", &format!("/{}", "x".repeat(107))), "107"),
        ] {
            assert!(check_new(there.iter(), &new).unwrap_err().contains(word), "{new:?}");
        }
        let many: Vec<_> = (0..700).map(|i| port(&format!("{i:060}"), &format!("/{i:060}"))).collect();
        let room = (0..many.len()).find(|&n| check_new(many[..n].iter(), &many[n]).is_err()).unwrap();
        assert!((400..600).contains(&room), "{room}");
    }

    #[test]
    fn the_command_line_and_the_remembered_ports_must_agree() {
        let (twice, once) = reconcile(&[port("a", "/a")], vec![port("a", "/a"), port("b", "/b")]).unwrap();
        assert_eq!((twice, once), (HashSet::from(["a".to_owned()]), vec![port("b", "/b")]));
        assert!(reconcile(&[port("a", "/a")], vec![port("a", "/other")]).unwrap_err().contains("ports.json"));
        assert!(reconcile(&[], vec![port("a", "/a"), port("a", "/b")]).is_err());
    }

    #[test]
    fn a_directory_is_locked_once() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755).unwrap();
        let Err(Failed(text)) = lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755) else {
            panic!("locked twice")
        };
        assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
        drop(held);
        assert!(lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755).is_ok());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(lock(&dir.path().join("file/dir"), "lock", "--run-dir", 0o755).is_err());
    }
}
