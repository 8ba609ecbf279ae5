//! The packages, in a copy of this host's files that goes with the test: installed, the service started by the unit's own line, removed.

use lasthop_tests_process::{binary, scratch};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// This host's files, with what is changed in them kept elsewhere. Each command sees them in a mount namespace of its own.
struct Copy {
    /// A tmpfs, for what is changed may not lie in what is copied.
    dir: tempfile::TempDir,
}

impl Copy {
    fn new() -> Self {
        let copy = Self { dir: scratch() };
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

    /// A command in the copy. What is in `space/told` it has in `/mnt`: a socket of the files below an overlay is not one of the overlay's.
    fn command(&self, script: &str) -> Command {
        let dir = self.dir.path().display();
        let enter = format!(
            "mount -t overlay overlay -o lowerdir=/,upperdir={dir}/space/upper,workdir={dir}/space/work {dir}/root && \
             mount --rbind /dev {dir}/root/dev && mount -t proc proc {dir}/root/proc && mount -t tmpfs tmpfs {dir}/root/run && \
             mount --rbind /sys {dir}/root/sys && mount --bind {dir}/space/told {dir}/root/mnt && exec chroot {dir}/root /bin/sh -ec \"$0\""
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", &enter, script]);
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    fn run(&self, script: &str) -> String {
        let Output { status, stdout, stderr } = self.command(script).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{script}: {said}");
        said
    }

    /// Files that the copy has and the host has not, or has otherwise, but for dpkg's own notes and logs.
    fn changed(&self) -> BTreeSet<PathBuf> {
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

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path().join("space")).status();
    }
}

/// The package of the programs under test, as this chore (`deb` or `rpm`) makes it.
fn package(kind: &str) -> PathBuf {
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

#[test]
#[ignore = "installs a package in a copy of this host: cargo xtask test --long"]
fn what_is_installed_runs_and_a_purge_leaves_nothing() {
    let (copy, package) = (Copy::new(), package("deb"));
    let installed = copy.dir.path().join("space/upper/lasthop.deb");
    std::fs::copy(package, &installed).unwrap();
    copy.run("dpkg --install /lasthop.deb; rm /lasthop.deb");
    let there = copy.changed();
    for file in [
        "usr/bin/lasthop",
        "usr/libexec/lasthop/lasthop-switch",
        "usr/lib/lasthop/liblasthop_ovs.so",
        "usr/lib/systemd/system/lasthop.service",
        "usr/share/man/man1/lasthop-port-set.1",
        "usr/share/bash-completion/completions/lasthop",
        "usr/share/doc/lasthop/libvirt-hook",
        "usr/share/doc/lasthop/proxmox-hook",
        "usr/share/doc/lasthop/prometheus-console.html",
        "usr/lib/systemd/system/lasthop-history.service",
        "etc/apparmor.d/lasthop",
        "etc/lasthop.toml",
    ] {
        assert!(there.contains(Path::new(file)), "{file} is not in {there:?}");
    }
    let said = copy.run(
        "systemd-analyze verify --man=no lasthop.service lasthop-metrics.service lasthop-history.service; getent group lasthop; lasthop --version; \
         bash -c 'source /usr/share/bash-completion/completions/lasthop; complete -p lasthop'; \
         systemctl is-enabled lasthop; systemctl is-enabled lasthop-metrics lasthop-history || true",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("lasthop:x:")), "{said}");
    assert!(
        said.contains("-F _clap_complete_lasthop") && said.contains("\nenabled\n") && said.contains("\ndisabled\n"),
        "{said}"
    );
    assert!(!said.contains("lasthop.service:"), "systemd finds fault with the unit: {said}");
    it_runs(&copy);
    // What an administrator wrote, and what commands have added, goes with a purge alone.
    copy.run("echo '# mine' >> /etc/lasthop.toml; dpkg --remove lasthop; grep mine /etc/lasthop.toml; ls /var/lib/lasthop/ports.json");
    copy.run("dpkg --purge lasthop; ! getent group lasthop");
    let left = copy.changed();
    assert!(left.is_empty(), "a purge leaves {left:?}");
}

/// With Debian's rpm, whose database knows none of the packages that it asks for.
#[test]
#[ignore = "installs a package in a copy of this host: cargo xtask test --long"]
fn an_rpm_is_what_rpm_takes_it_for_and_runs() {
    let (copy, package) = (Copy::new(), package("rpm"));
    std::fs::copy(package, copy.dir.path().join("space/upper/lasthop.rpm")).unwrap();
    let said = copy.run(
        "rpm --checksig --verbose /lasthop.rpm; rpm --query --package --list --verbose /lasthop.rpm; \
         rpm --query --package --requires --configfiles --licensefiles --scripts /lasthop.rpm",
    );
    assert!(said.contains("Payload SHA256 digest: OK") && !said.contains("NOKEY") && !said.contains("BAD"), "{said}");
    for part in [
        "-rwxr-xr-x    1 root     root",
        "/usr/libexec/lasthop/lasthop-switch\n",
        "/usr/share/zsh/site-functions/_lasthop\n",
        "/usr/share/licenses/lasthop/LICENSE\n",
        "/usr/share/doc/lasthop/proxmox-hook\n",
        "/etc/lasthop.toml\n",
        "libc.so.6(GLIBC_2.",
        "postinstall scriptlet (using /bin/sh):\nsystemd-sysusers lasthop.conf",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("apparmor"), "{said}");
    copy.run("rpm --initdb; rpm --install --nodeps /lasthop.rpm; rpm --verify --nodeps lasthop; getent group lasthop");
    it_runs(&copy);
    // What an administrator wrote stays.
    copy.run("echo '# mine' >> /etc/lasthop.toml; rpm --erase lasthop; grep mine /etc/lasthop.toml.rpmsave; rm /etc/lasthop.toml.rpmsave");
    let left: Vec<_> = copy.changed().into_iter().filter(|path| path.starts_with("usr")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Starts the service as its unit does, uses it, and ends it.
const SERVICE: &str = "line=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/lasthop.service); \
                  $line & pid=$!; trap 'kill $pid; wait $pid' EXIT; \
                  while ! lasthop port list >/dev/null 2>&1; do sleep 0.1; done; \
                  lasthop port add vm1 /run/lasthop/vm1.sock; ls -l /run/lasthop/read.sock; \
                  lasthop apply /etc/lasthop.toml; echo done; lasthop port list --json";

/// The unit's own line starts it, tells that it is ready, and a port that is added is remembered.
fn it_runs(copy: &Copy) {
    let notify = UnixDatagram::bind(copy.dir.path().join("space/told/notify")).unwrap();
    notify.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let script = format!("export NOTIFY_SOCKET=/mnt/notify; {SERVICE}");
    let mut child = copy.command(&script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let said: Vec<String> = stdout.lines().map_while(Result::ok).collect();
    let output = child.wait_with_output().unwrap();
    let all = format!("{}\n{}", said.join("\n"), String::from_utf8_lossy(&output.stderr));
    let mut word = [0; 64];
    let len = notify.recv(&mut word).unwrap_or_else(|e| panic!("no word that it is ready: {e}; {all}"));
    assert_eq!(String::from_utf8_lossy(&word[..len]).trim_end(), "READY=1", "{all}");
    assert!(all.contains("port vm1: lasthop listens on /run/lasthop/vm1.sock"), "{all}");
    assert!(all.contains(" root lasthop "), "the group has the socket to look: {all}");
}
