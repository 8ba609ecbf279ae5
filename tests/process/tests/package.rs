//! The packages, in a copy of this host's files that goes with the test: installed, the service started by the unit's own line, removed.

use lasthop_tests_process::{HostCopy, package};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

#[test]
#[ignore = "installs a package in a copy of this host: cargo xtask test --long"]
fn what_is_installed_runs_and_a_purge_leaves_nothing() {
    let (copy, package) = (HostCopy::new(), package("deb"));
    let installed = copy.upper("lasthop.deb");
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
    // What the hooks would note.
    copy.run("for of in libvirt proxmox; do mkdir /var/lib/lasthop-$of; echo /run/lasthop/vm1.sock >/var/lib/lasthop-$of/vm1; done");
    copy.run("dpkg --purge lasthop; ! getent group lasthop");
    let left = copy.changed();
    assert!(left.is_empty(), "a purge leaves {left:?}");
}

/// With Debian's rpm, whose database knows none of the packages that it asks for.
#[test]
#[ignore = "installs a package in a copy of this host: cargo xtask test --long"]
fn an_rpm_is_what_rpm_takes_it_for_and_runs() {
    let (copy, package) = (HostCopy::new(), package("rpm"));
    std::fs::copy(package, copy.upper("lasthop.rpm")).unwrap();
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
fn it_runs(copy: &HostCopy) {
    let notify = UnixDatagram::bind(copy.told("notify")).unwrap();
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
