//! A copy of this host's files, or of a small Debian's: what is installed in it, and started, goes with the test.

use crate::{PATIENCE, binary, proc, scratch, spawn, wait_for};
use lasthop_harness::root;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// What packages and services look for, where the test's own environment is not theirs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a service manager may take to start all that it starts, on a slow, busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// This host's files, with what is changed in them kept elsewhere. Each command sees them in a mount namespace of its own.
#[derive(Debug)]
pub struct HostCopy {
    /// What is copied.
    of: PathBuf,
    /// A tmpfs, for what is changed may not lie in what is copied.
    dir: tempfile::TempDir,
}

impl HostCopy {
    /// One in which nothing is changed yet. Needs root.
    #[expect(clippy::new_without_default, reason = "it mounts")]
    pub fn new() -> Self {
        Self::of("/".into())
    }

    /// One of the small Debian 12 that `scripts/setup long` makes, which has systemd and little else. Needs root.
    pub fn debian() -> Self {
        let made = root().join("target/tools/debian");
        assert!(
            made.join("complete").exists(),
            "no Debian in {}: run `scripts/setup long` as root first",
            made.display()
        );
        Self::of(made.join("root").canonicalize().unwrap())
    }

    fn of(of: PathBuf) -> Self {
        let copy = Self { of, dir: scratch() };
        for folder in ["space", "root"] {
            std::fs::create_dir(copy.dir.path().join(folder)).unwrap();
        }
        let space = copy.dir.path().join("space");
        assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&space).status().unwrap().success());
        for folder in ["upper", "work", "told"] {
            std::fs::create_dir(space.join(folder)).unwrap();
        }
        copy
    }

    /// Where a file lies that is written for the copy before a command sees it.
    pub fn upper(&self, file: &str) -> PathBuf {
        self.dir.path().join("space/upper").join(file)
    }

    /// What the copy has in `/mnt`: a socket of the files below an overlay is not one of the overlay's.
    pub fn told(&self, file: &str) -> PathBuf {
        self.dir.path().join("space/told").join(file)
    }

    /// The command that puts its files where they are seen.
    fn overlay(&self) -> String {
        let (of, dir) = (self.of.display(), self.dir.path().display());
        format!(
            "mount -t overlay overlay -o lowerdir={of},upperdir={dir}/space/upper,workdir={dir}/space/work {dir}/root"
        )
    }

    /// The commands that mount it, with this as its `/sys`.
    fn mounts(&self, sys: &str) -> String {
        let (overlay, dir) = (self.overlay(), self.dir.path().display());
        format!(
            "{overlay} && mount --rbind /dev {dir}/root/dev && mount -t proc proc {dir}/root/proc && mount -t tmpfs tmpfs {dir}/root/run && \
             mount {sys} {dir}/root/sys && mount --bind {dir}/space/told {dir}/root/mnt && cd {dir}/root"
        )
    }

    /// A command in the copy.
    pub fn command(&self, script: &str) -> Command {
        let enter = format!("{} && exec chroot . /bin/sh -ec \"$0\"", self.mounts("--rbind /sys"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", &enter, script]);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    /// What the command prints; panics unless it exits with 0.
    pub fn run(&self, script: &str) -> String {
        said(self.command(script), script)
    }

    /// Has somebody live in it: processes that stay, on a network of their own.
    pub fn inhabit(&self) -> Inhabited<'_> {
        self.inhabit_by("exec chroot .")
    }

    /// The same for those who make containers: it has no files but its own, also for a process that goes back to the root of its mount namespace.
    pub fn inhabit_for_containers(&self) -> Inhabited<'_> {
        self.inhabit_by("pivot_root . . && umount -l . && exec")
    }

    fn inhabit_by(&self, go: &str) -> Inhabited<'_> {
        let first = "echo ready; while :; do sleep 3600; done";
        // A /sys of its own has no security file system: a package's profiles for AppArmor would be loaded for the whole host.
        let enter = format!("{} && {go} /bin/sh -c \"$0\"", self.mounts("-t sysfs sysfs"));
        let mut holder = spawn::spawn("KILL", "unshare", |c| {
            c.args([
                "--mount",
                "--net",
                "--uts",
                "--ipc",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                &enter,
                first,
            ]);
            c.env_clear().env("PATH", PATH).stdin(Stdio::null()).stdout(Stdio::piped());
        });
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the copy's first process has not started");
        let pid = proc::children(holder.id())[0].0;
        let inhabited = Inhabited { _copy: PhantomData, holder, pid, group: None };
        inhabited.run("ip link set lo up; printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d");
        inhabited
    }

    /// Boots it: systemd is the first process of a container, on a network of its own, and starts what is enabled. The kernel is this host's.
    pub fn boot(&self) -> Inhabited<'_> {
        let (overlay, dir) = (self.overlay(), self.dir.path().display());
        let group = format!("lasthop-{}", dir.to_string().replace(['/', '.'], "-"));
        // Of control groups it has what a host has where systemd is the first process: the hierarchy of version 2 and no other.
        let enter = format!(
            "{overlay}; mount -t cgroup2 cgroup2 /sys/fs/cgroup; mkdir /sys/fs/cgroup/{group}; echo $$ >/sys/fs/cgroup/{group}/cgroup.procs; \
             SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec systemd-nspawn --quiet --boot --directory={dir}/root --machine={group} \
             --register=no --keep-unit --private-network --console=pipe --bind={dir}/space/told:/mnt \
             --capability=all '--system-call-filter=bpf perf_event_open landlock_create_ruleset landlock_add_rule landlock_restrict_self'"
        );
        let console = std::fs::File::create(self.dir.path().join("space/console")).unwrap();
        let holder = spawn::spawn("KILL", "unshare", |c| {
            // Numbers of its own above the container's, too: with the first of them everything ends, which systemd-nspawn's own end does not see to.
            c.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", &enter]);
            c.env_clear().env("PATH", PATH);
            c.stdin(Stdio::null()).stdout(console.try_clone().unwrap()).stderr(console);
        });
        let mut booted = Inhabited { _copy: PhantomData, holder, pid: 0, group: Some(group) };
        let said = || std::fs::read_to_string(self.dir.path().join("space/console")).unwrap_or_default();
        wait_for("the first process of the container", BOOT_LIMIT, || {
            assert!(booted.holder.try_wait().unwrap().is_none(), "systemd-nspawn has ended: {}", said());
            let first =
                proc::tree(booted.holder.id()).into_iter().find(|pid| proc::name(*pid) == "systemd" && is_first(*pid));
            booted.pid = first.unwrap_or_default();
            first.is_some()
        });
        let state = || {
            String::from_utf8_lossy(&booted.command("systemctl is-system-running").output().unwrap().stdout)
                .into_owned()
        };
        wait_for("all services to be started", BOOT_LIMIT, || ["running\n", "degraded\n"].contains(&state().as_str()));
        booted
    }

    /// Files that the copy has and the host has not, or has otherwise, but for dpkg's own notes and logs.
    pub fn changed(&self) -> BTreeSet<PathBuf> {
        fn walk(folder: &Path, top: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.symlink_metadata().unwrap().is_dir() {
                    walk(&path, top, found);
                } else {
                    found.insert(path.strip_prefix(top).unwrap().to_owned());
                }
            }
        }
        let (mut found, upper) = (BTreeSet::new(), self.dir.path().join("space/upper"));
        walk(&upper, &upper, &mut found);
        let own = ["var/lib/dpkg/", "var/log/", "var/cache/", "etc/group", "etc/gshadow", "etc/.pwd.lock"];
        found.retain(|path| !own.iter().any(|own| path.to_str().unwrap().starts_with(own)));
        found
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path().join("space")).status();
    }
}

/// A copy in which processes stay from one command to the next. They have network, process numbers and `/run` of their own, and end when this is
/// dropped or the test's process ends, however it does.
#[derive(Debug)]
pub struct Inhabited<'a> {
    _copy: PhantomData<&'a HostCopy>,
    holder: Child,
    /// The first process in it, as this host numbers it.
    pid: u32,
    /// Its control group, where it has one of its own.
    group: Option<String>,
}

impl Inhabited<'_> {
    /// A command in it.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.pid.to_string(),
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--root",
            "--wd",
        ]);
        command.args(["--", "/bin/sh", "-ec", script]);
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    /// What the command prints; panics unless it exits with 0.
    pub fn run(&self, script: &str) -> String {
        said(self.command(script), script)
    }

    /// What the command complains of; panics if it exits with 0.
    pub fn refused(&self, script: &str) -> String {
        let Output { status, stdout, stderr } = self.command(script).output().unwrap();
        assert!(!status.success(), "{script} was done: {}", String::from_utf8_lossy(&stdout));
        String::from_utf8_lossy(&stderr).into_owned()
    }

    /// Starts a service by this line. What it says goes to `/var/log/NAME.said`, and its number to `/run/NAME.number`.
    pub fn start(&self, name: &str, line: &str) {
        self.run(&format!(
            "setsid sh -c 'echo $$ >/run/{name}.number; exec {line}' >>/var/log/{name}.said 2>&1 </dev/null & \
             while [ ! -s /run/{name}.number ]; do sleep 0.02; done"
        ));
    }

    /// Ends the service, and waits until it has ended.
    pub fn end(&self, name: &str) {
        let number = self.run(&format!("cat /run/{name}.number; rm /run/{name}.number"));
        let number = number.trim_end();
        self.run(&format!("kill {number}"));
        wait_for(&format!("{name} to end"), Duration::from_secs(20), || {
            !self.command(&format!("kill -0 {number}")).stderr(Stdio::null()).status().unwrap().success()
        });
    }

    /// Where a file of it lies for this host's processes.
    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Has its service manager end everything, and waits until it has.
    pub fn power_off(mut self) {
        self.run("systemctl poweroff");
        wait_for("the container to end", BOOT_LIMIT, || self.holder.try_wait().unwrap().is_some());
    }

    /// A cable to another one's network, with this name at both ends.
    pub fn cable_to(&self, other: &Self, name: &str) {
        let far = format!("/proc/{}/ns/net", other.pid);
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid.to_string(), "--net", "ip", "link", "add", name, "type", "veth"]);
        command.args(["peer", "name", name, "netns", &far]).stdin(Stdio::null());
        said(command, "a cable");
    }
}

impl Drop for Inhabited<'_> {
    fn drop(&mut self) {
        // Its child goes with it, and with that all others.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        wait_for("the copy's first process to end", PATIENCE, || self.pid == 0 || !proc::alive(self.pid));
        if let Some(group) = &self.group {
            let clear = format!(
                "mount -t cgroup2 cgroup2 /sys/fs/cgroup; cd /sys/fs/cgroup; i=0; \
                 until find {group} -depth -type d -exec rmdir {{}} + || [ $i -gt 100 ]; do i=$((i+1)); sleep 0.1; done"
            );
            let _ = Command::new("unshare").args(["--mount", "sh", "-c", &clear]).stderr(Stdio::null()).status();
        }
    }
}

/// Whether it is the first process of its numbers.
fn is_first(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("NSpid:") && line.split_ascii_whitespace().last() == Some("1"))
}

/// What the command prints; panics unless it exits with 0.
fn said(mut command: Command, script: &str) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{script}: {said}");
    said
}

/// The package of the programs under test, as this chore (`deb` or `rpm`) makes it.
pub fn package(kind: &str) -> PathBuf {
    let programs = binary("lasthop").parent().unwrap().to_owned();
    let output = Command::new("cargo")
        .args(["xtask", kind, "--programs"])
        .arg(programs)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().lines().last().unwrap())
}
