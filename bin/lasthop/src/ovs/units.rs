//! `lasthop ovs install` and `uninstall`: what systemd has to know so that the distribution's own service of Open vSwitch runs over lasthop.
//!
//! Two files: a unit for lasthop, and a drop-in for `ovs-vswitchd.service`. Both begin with a line by which they are known as ours; a file of
//! that name without the line is somebody's own, and stays as it is. Nothing is started or stopped.

use super::{LIBRARY_DIR, SOCKET_NAME, VARIABLE, library};
use crate::client::CliError;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First line of each file that `install` writes.
const OURS: &str = "# Written by `lasthop ovs install`. `lasthop ovs uninstall` takes it away.\n";
/// Lasthop's unit.
const UNIT: &str = "etc/systemd/system/lasthop.service";
/// By which it is started at boot: made by `systemctl enable`.
const WANTED: &str = "etc/systemd/system/multi-user.target.wants/lasthop.service";
/// What is added to Open vSwitch's.
const DROP_IN: &str = "etc/systemd/system/ovs-vswitchd.service.d/lasthop.conf";
/// Where systemd's units of packages are; without Open vSwitch's the drop-in would add to nothing.
const UNIT_DIRS: [&str; 3] = ["usr/lib/systemd/system", "lib/systemd/system", "etc/systemd/system"];
/// What Debian calls the unit that starts ovs-vswitchd.
const OVS_UNIT: &str = "ovs-vswitchd.service";

/// Where things are, for both commands.
#[derive(Debug, clap::Args)]
pub struct Places {
    /// Write below this directory instead of /, as for an image; systemd is not told
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// What the files say.
#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    #[command(flatten)]
    places: Places,
    /// Directory that lasthop is to run in
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
    /// Directory where lasthop is to keep its ports
    #[arg(long, value_name = "DIR", default_value = "/var/lib/lasthop")]
    state_dir: PathBuf,
}

/// Writes the files; says what it did and what is to be done next.
pub fn install(args: &InstallArgs) -> Result<String, CliError> {
    let root = &args.places.root;
    if !UNIT_DIRS.iter().any(|dir| root.join(dir).join(OVS_UNIT).exists()) {
        return Err(CliError::new(format!(
            "there is no {OVS_UNIT} below {}; install openvswitch-switch first, or run ovs-vswitchd by `lasthop ovs exec`",
            root.display()
        )));
    }
    let lasthop =
        std::env::current_exe().map_err(|e| CliError::new(format!("cannot find this program's file: {e}")))?;
    let library = library()?;
    for path in [&args.run_dir, &args.state_dir, &lasthop, &library] {
        check(path)?;
    }
    if args.run_dir == args.state_dir {
        return Err(CliError::usage(format!(
            "--run-dir and --state-dir are both {}; choose two: what is in the first goes at a reboot, what is in the second must stay",
            args.run_dir.display()
        )));
    }
    let mut said = String::new();
    write_ours(root, UNIT, &unit(&lasthop, args), &mut said)?;
    write_ours(root, DROP_IN, &drop_in(&lasthop, &library, args), &mut said)?;
    said += &reload(root);
    said += "next:\n  systemctl enable --now lasthop\n  systemctl restart openvswitch-switch\n";
    if !library.starts_with(LIBRARY_DIR) {
        let _ = writeln!(
            said,
            "note: the files name {} and {}; these must stay there",
            lasthop.display(),
            library.display()
        );
    }
    Ok(said)
}

/// Takes away what [`install`] wrote.
pub fn uninstall(places: &Places) -> Result<String, CliError> {
    let (mut said, mut unit_gone, mut removed) = (String::new(), false, false);
    for file in [DROP_IN, UNIT] {
        let path = places.root.join(file);
        match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let _ = writeln!(said, "{}: not there", path.display());
            }
            Ok(text) if !text.starts_with(OURS) => {
                let _ = writeln!(said, "{}: stays, lasthop did not write it", path.display());
            }
            Ok(_) => {
                std::fs::remove_file(&path).map_err(|e| CliError::new(format!("{}: {e}", path.display())))?;
                let _ = writeln!(said, "{}: removed", path.display());
                (unit_gone, removed) = (unit_gone || file == UNIT, true);
            }
            Err(e) => return Err(CliError::new(format!("{}: {e}", path.display()))),
        }
    }
    // Its directory may hold drop-ins of others, and stays then.
    if let Some(dir) = places.root.join(DROP_IN).parent() {
        let _ = std::fs::remove_dir(dir);
    }
    // As `systemctl disable` would, which fails without the unit. That of another unit stays.
    let wanted = places.root.join(WANTED);
    let is_ours = || std::fs::read_link(&wanted).is_ok_and(|unit| unit == Path::new("/").join(UNIT));
    if unit_gone && is_ours() && std::fs::remove_file(&wanted).is_ok() {
        let _ = writeln!(said, "{}: removed", wanted.display());
    }
    if removed {
        said += &reload(&places.root);
        said += "next:\n  systemctl stop lasthop\n  ip link del BRIDGE    (for each bridge of `ovs-vsctl list-br` whose TAP device is still there: the \
                 kernel's datapath cannot have a port of that name)\n  systemctl restart openvswitch-switch    (over the kernel's datapath again)\n";
    }
    Ok(said)
}

/// A path that a unit file can name as it is.
fn check(path: &Path) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    if path.is_absolute() && path.to_str().is_some_and(|text| text.chars().all(plain)) {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{path:?} cannot stand in a unit file; use an absolute path of letters, digits and / . _ - + @"
    )))
}

fn unit(lasthop: &Path, InstallArgs { run_dir, state_dir, .. }: &InstallArgs) -> String {
    let (lasthop, run_dir, state_dir) = (lasthop.display(), run_dir.display(), state_dir.display());
    format!(
        "[Unit]
Description=lasthop, a switch for virtual machines, under Open vSwitch
After=network-pre.target local-fs.target apparmor.service
RequiresMountsFor={run_dir} {state_dir}
Before=network.target {OVS_UNIT} shutdown.target
DefaultDependencies=no
Conflicts=shutdown.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={lasthop} run --control ovs --run-dir {run_dir} --state-dir {state_dir}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
KillMode=mixed
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"
    )
}

/// `ovs exec` with nothing to do refuses, with its reason, while there is no lasthop: that is what Open vSwitch's log then begins with.
fn drop_in(lasthop: &Path, library: &Path, InstallArgs { run_dir, .. }: &InstallArgs) -> String {
    let (lasthop, library, run_dir) = (lasthop.display(), library.display(), run_dir.display());
    format!(
        "[Unit]
Wants=lasthop.service
After=lasthop.service

[Service]
Environment=LD_PRELOAD={library}
Environment={VARIABLE}={run_dir}/{SOCKET_NAME}
ExecStartPre={lasthop} ovs exec --run-dir {run_dir} -- true
"
    )
}

fn write_ours(root: &Path, file: &str, text: &str, said: &mut String) -> Result<(), CliError> {
    let path = root.join(file);
    let failed = |e: io::Error| CliError::new(format!("{}: {e}", path.display()));
    let new = format!("{OURS}{text}");
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    let done = match before {
        Some(before) if !before.starts_with(OURS) => {
            "is there already and stays; it has to start `lasthop run --control ovs`"
        }
        Some(before) if before == new => "as it was",
        _ => {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(failed)?;
            }
            std::fs::write(&path, new).map_err(failed)?;
            "written"
        }
    };
    let _ = writeln!(said, "{}: {done}", path.display());
    Ok(())
}

/// Has systemd read its units anew, where it runs.
fn reload(root: &Path) -> String {
    if root != Path::new("/") {
        return String::new();
    }
    if !Path::new("/run/systemd/system").is_dir() {
        return "systemd does not run here, so nobody reads these files\n".into();
    }
    match Command::new("systemctl").arg("daemon-reload").status() {
        Ok(status) if status.success() => "systemctl daemon-reload: done\n".into(),
        Ok(status) => format!("systemctl daemon-reload: {status}; run it yourself\n"),
        Err(e) => format!("systemctl: {e}; run `systemctl daemon-reload` yourself\n"),
    }
}
