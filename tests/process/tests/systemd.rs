//! The package under a real systemd: a small Debian 12 with nothing of ours is booted as a container, whose first process is Debian's systemd, and an
//! administrator's days are gone through there. Guests are played, outside the container, with the memory and sockets of real ones.

use lasthop_harness::root;
use lasthop_tests_process::{HostCopy, Inhabited, Options, PATIENCE, Plug, package, scratch, under_load, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The lines of the first block below a heading of docs/install.md.
fn documented(heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let (_, section) = page.split_once(&format!("\n### {heading}\n")).unwrap();
    let block = section.split("```").nth(1).unwrap();
    block.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The package, which is built once: two tests may run at a time.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| package("deb"))
}

/// What an editor leaves in /etc/lasthop.toml.
const PORTS: &str = "[port.a]\nsocket = \"/run/lasthop/a.sock\"\n\n[port.b]\nsocket = \"/run/lasthop/b.sock\"\n";

/// A host with the package, installed by the page's lines.
fn host(copy: &HostCopy) -> Inhabited<'_> {
    let host = copy.boot();
    prepare(copy, &host);
    install(&host);
    host
}

/// Puts the package where the page has it, and an editor that knows what to write.
fn prepare(copy: &HostCopy, host: &Inhabited<'_>) {
    std::fs::copy(built(), copy.told("lasthop_0.1.0_amd64.deb")).unwrap();
    std::fs::write(copy.told("ports"), PORTS).unwrap();
    host.run(
        "mkdir -p /root/target; ln -s /mnt /root/target/deb; useradd alice; \
         printf '#!/bin/sh\\ncat /mnt/ports >>\"$1\"\\n' >/usr/local/bin/editor; chmod +x /usr/local/bin/editor",
    );
}

/// What the page says, but for what is done where the sources are.
fn install(host: &Inhabited<'_>) {
    for line in documented("As a package").iter().filter(|line| !line.starts_with("cargo ")) {
        host.run(&format!("cd /root; {line}"));
    }
}

/// A property that systemd has for the service.
fn property(host: &Inhabited<'_>, name: &str) -> String {
    host.run(&format!("systemctl show --property={name} --value lasthop")).trim().to_owned()
}

/// How often systemd has started it anew by itself.
fn restarts(host: &Inhabited<'_>) -> u32 {
    property(host, "NRestarts").parse().unwrap()
}

/// Whether journald has a line of this priority and with this text from our processes.
fn is_logged(host: &Inhabited<'_>, priority: &str, text: &str) -> bool {
    let said = host.run("journalctl --unit=lasthop --output=json --no-pager");
    let mut lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.any(|line| {
        let message = line["MESSAGE"].as_str().unwrap_or_default();
        assert!(!message.starts_with('<'), "a priority is taken for text: {line}");
        line["PRIORITY"] == priority && line["_COMM"] != "systemd" && message.contains(text)
    })
}

/// All files but those of processes and devices, logs, and what dpkg, apt and systemd keep for themselves.
fn files(host: &Inhabited<'_>) -> BTreeSet<String> {
    let own = [
        "/var/log",
        "/var/cache",
        "/var/lib/dpkg",
        "/var/lib/apt",
        "/var/lib/systemd",
        "/tmp",
        "/var/tmp",
        "/mnt",
        "/root",
    ];
    let own: Vec<String> = own.iter().map(|path| format!("-path {path}")).collect();
    let said =
        host.run(&format!("find / -xdev \\( {} \\) -prune -o -print; find /run -name '*lasthop*'", own.join(" -o ")));
    said.lines().map(str::to_owned).collect()
}

fn plugs(host: &Inhabited<'_>) -> [Plug; 2] {
    [("a", 1), ("b", 2)].map(|(name, number)| {
        let socket = host.file(&format!("/run/lasthop/{name}.sock"));
        Plug::new(socket, false, number, Options::net(|n| n.size = 256)).1()
    })
}

/// The guests' machines connect again, and frames go both ways.
fn traffic_is_back([a, b]: &mut [Plug; 2], number: u32) {
    wait_for("connections to end", PATIENCE, || a.guest.is_disconnected() && b.guest.is_disconnected());
    wait_for("front-ends to be back", PATIENCE, || {
        a.mend();
        b.mend();
        !a.guest.is_disconnected() && !b.guest.is_disconnected()
    });
    a.guest.greet_when_back(&mut b.guest, number);
}

/// The page's lines install it, it does what they say, it is there again after the host was, and a purge leaves nothing.
#[test]
#[ignore = "boots a Debian in a container; rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn what_the_page_says_holds_and_a_purge_leaves_nothing() {
    let copy = HostCopy::debian();
    let host = copy.boot();
    prepare(&copy, &host);
    let before = files(&host);
    install(&host);
    assert_eq!(host.run("systemctl is-active lasthop lasthop-metrics"), "active\nactive\n");
    let [mut a, mut b] = plugs(&host);
    a.guest.greet(&mut b.guest, 1);
    // Who is in the group may look, and no more.
    assert!(host.run("su alice -c 'lasthop port list'").contains("/run/lasthop/a.sock"));
    host.refused("su alice -c 'lasthop port del a'");
    host.refused("su nobody -s /bin/sh -c 'lasthop port list'");
    let asked = "exec 3<>/dev/tcp/127.0.0.1/9477; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
    let metrics = host.run(&format!("bash -c \"{asked}\""));
    assert!(metrics.contains("lasthop_port_up{port=\"a\"} 1"), "{metrics}");
    // The sandbox is whole under systemd, and each line has its priority.
    assert!(is_logged(&host, "6", "port a: front-end connected"));
    assert!(is_logged(&host, "6", "sandbox: ") && !is_logged(&host, "4", "sandbox: going on without"));
    host.run("pkill -KILL lasthop-control");
    wait_for("a warning in the journal", PATIENCE, || is_logged(&host, "4", "lasthop-control (pid"));
    host.run("apparmor_parser --skip-kernel-load --skip-cache /etc/apparmor.d/lasthop");
    // What a command has added, and what the file says, is there again after a boot.
    host.run("lasthop port add c /run/lasthop/c.sock; systemctl enable lasthop-history");
    host.power_off();
    let host = copy.boot();
    assert_eq!(host.run("systemctl is-active lasthop lasthop-metrics lasthop-history"), "active\nactive\nactive\n");
    let list: Value = serde_json::from_str(&host.run("lasthop port list --json")).unwrap();
    let names: Vec<&str> = list["ports"].as_array().unwrap().iter().filter_map(|port| port["name"].as_str()).collect();
    assert_eq!((names, restarts(&host)), (vec!["a", "b", "c"], 0));
    let [mut a, mut b] = plugs(&host);
    a.guest.greet(&mut b.guest, 1);
    host.run("apt-get purge --yes lasthop; ! getent group lasthop; ! pgrep lasthop");
    let after = files(&host);
    let left: Vec<_> = after.difference(&before).collect();
    assert!(left.is_empty(), "a purge leaves {left:?}");
    assert_eq!(host.run("systemctl list-units --all --plain --no-legend 'lasthop*'"), "");
}

/// It comes back from whatever ends it, and connections with it.
#[test]
#[ignore = "boots a Debian in a container; rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn it_comes_back_from_whatever_ends_it() {
    let copy = HostCopy::debian();
    let host = host(&copy);
    let mut plugs = plugs(&host);
    let [a, b] = &mut plugs;
    a.guest.greet(&mut b.guest, 1);
    host.run("systemctl restart lasthop");
    traffic_is_back(&mut plugs, 1000);
    // Killed again and again, as where something is badly wrong for some seconds: it is not given up.
    for round in 1..=8 {
        let pid = property(&host, "MainPID");
        host.run(&format!("kill -KILL {pid}"));
        traffic_is_back(&mut plugs, 1000 + 100 * round);
        assert_eq!(restarts(&host), round);
        assert_ne!(property(&host, "MainPID"), pid);
    }
    // One that hangs is found by the watchdog: here after 2 s instead of 30.
    let drop_in = "/etc/systemd/system/lasthop.service.d";
    host.run(&format!(
        "mkdir {drop_in}; printf '[Service]\\nWatchdogSec=2s\\n' >{drop_in}/quick.conf; systemctl daemon-reload"
    ));
    host.run("systemctl restart lasthop");
    traffic_is_back(&mut plugs, 5000);
    let pid = property(&host, "MainPID");
    host.run(&format!("kill -STOP {pid}"));
    wait_for("systemd to have another", PATIENCE, || !["0", &pid].contains(&property(&host, "MainPID").as_str()));
    traffic_is_back(&mut plugs, 6000);
    let said = host.run("journalctl --unit=lasthop --no-pager");
    assert!(said.contains("Watchdog timeout (limit 2s)"), "{said}");
    // What is stopped stays so, and leaves no socket.
    host.run("systemctl stop lasthop; ! pgrep lasthop-switch; [ -z \"$(find /run/lasthop -type s)\" ]");
    assert_eq!(property(&host, "Result"), "success");
}

/// At a boot it waits for the file system that its memory is on, and for an interface for as long as that takes, and for a file to be mended.
#[test]
#[ignore = "boots a Debian in a container; rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn at_a_boot_it_waits_for_what_comes_late() {
    let copy = HostCopy::debian();
    let first = host(&copy);
    // A file system that takes its time: what is mounted there is what was there.
    first.run(
        "systemctl stop lasthop; mkdir /srv/state; echo '/srv/state /var/lib/lasthop none bind,x-systemd.requires=slow.service 0 0' >>/etc/fstab; \
         printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nType=oneshot\\nExecStart=/bin/sleep 2\\n' >/etc/systemd/system/slow.service; \
         systemctl daemon-reload; systemctl start var-lib-lasthop.mount lasthop; lasthop port add c /run/lasthop/c.sock; ls /srv/state/ports.json",
    );
    first.power_off();
    let second = copy.boot();
    assert!(second.run("lasthop port list").contains("/run/lasthop/c.sock"));
    second.run("printf '[uplink.net]\\ndevice = \"eth1\"\\n' >>/etc/lasthop.toml");
    second.power_off();
    let third = copy.boot();
    wait_for("many tries", PATIENCE, || restarts(&third) > 8);
    third.run("ip link add eth1 type veth peer name far; ip link set eth1 up; ip link set far up");
    wait_for("it to be there", PATIENCE, || property(&third, "ActiveState") == "active");
    assert!(third.run("lasthop uplink list").contains("eth1"));
    let [mut a, mut b] = plugs(&third);
    a.guest.greet(&mut b.guest, 1);
    // A file that makes no sense is no other thing: once it is mended, all is well.
    third.run("cp /etc/lasthop.toml /root/; echo 'sokcet = 1' >>/etc/lasthop.toml");
    third.refused("systemctl restart lasthop");
    wait_for("many tries", PATIENCE, || restarts(&third) > 8);
    // It is 0 while a try is under way.
    wait_for("a refusal", PATIENCE, || property(&third, "ExecMainStatus") == "2");
    third.run("cp /root/lasthop.toml /etc/");
    wait_for("it to be there", PATIENCE, || property(&third, "ActiveState") == "active");
    assert!(third.run("lasthop uplink list").contains("eth1"));
    // Nor is a command line.
    third.run(
        "mkdir -p /run/systemd/system/lasthop.service.d; \
         printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/lasthop run --sokcet\\n' >/run/systemd/system/lasthop.service.d/wrong.conf; \
         systemctl daemon-reload",
    );
    third.refused("systemctl restart lasthop");
    wait_for("a line among errors", PATIENCE, || is_logged(&third, "3", "unexpected argument '--sokcet'"));
    assert!(
        is_logged(&third, "3", "there is no sokcet; there are") && is_logged(&third, "3", "there is no interface eth1")
    );
}

/// A newer package of the same programs, in which this has been changed.
fn newer(copy: &HostCopy, version: &str, change: &str) {
    let dir = scratch();
    let (from, tree) = (built().display(), dir.path().join("tree"));
    let (tree, to) = (tree.display(), copy.told(&format!("lasthop_{version}_amd64.deb")));
    let script = format!(
        "dpkg-deb --raw-extract {from} {tree}; sed -i 's/^Version: .*/Version: {version}/' {tree}/DEBIAN/control; cd {tree}/usr/bin; {change}; \
         dpkg-deb --root-owner-group -Znone --build {tree} {to} >/dev/null",
        to = to.display()
    );
    assert!(Command::new("sh").args(["-ec", &script]).stdin(Stdio::null()).status().unwrap().success());
}

/// Upgrades under load: no front-end connects again, and no frame is lost. Where programs say other things to each other, the service is started anew.
#[test]
#[ignore = "boots a Debian in a container; rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn an_upgrade_of_the_package_ends_no_connection() {
    let copy = HostCopy::debian();
    let host = host(&copy);
    newer(&copy, "0.1.1", "true");
    newer(&copy, "0.1.2", "chmod -x ../libexec/lasthop/lasthop-switch");
    newer(&copy, "0.1.3", "sum=$(./lasthop messages); sed -i s/$sum/0000000000000000/ lasthop");
    let mut plugs = plugs(&host);
    let [a, b] = &mut plugs;
    a.guest.greet(&mut b.guest, 1);
    let pid = property(&host, "MainPID");
    let upgrade =
        |how: &str, version: &str| host.run(&format!("{how} apt-get install --yes /mnt/lasthop_{version}_amd64.deb"));
    under_load(&mut a.guest, &mut b.guest, |flows| {
        let said = upgrade("", "0.1.1");
        assert!(said.contains("longest pause: "), "{said}");
        flows();
    });
    assert!(!a.guest.is_disconnected() && !b.guest.is_disconnected(), "a connection ended");
    let new = host.run("for p in $(pgrep '^lasthop'); do readlink /proc/$p/exe; done | sort | uniq -c");
    assert!(property(&host, "MainPID") == pid && property(&host, "ActiveState") == "active", "{new}");
    assert_eq!(new.matches("(deleted)").count(), 1, "of the programs before, sessions alone are left: {new}");
    // What is refused and may pass ends no connection; and a device that was killed, whose socket is there and its lock free, is passed over.
    host.run("mkdir -p /run/lasthop/devices/gone; touch /run/lasthop/devices/gone/lock");
    drop(UnixListener::bind(host.file("/run/lasthop/devices/gone/api.sock")).unwrap());
    let said = upgrade("", "0.1.2");
    let why = "lasthop goes on with the programs before (/run/lasthop): ";
    assert!(said.matches(why).count() == 1 && said.matches("goes on with the programs before").count() == 1, "{said}");
    assert!(said.contains("lasthop-switch is not there, or may not be run; install it there"), "{said}");
    assert!(!plugs.iter_mut().any(|plug| plug.guest.is_disconnected()), "a connection ended");
    host.run("rm -r /run/lasthop/devices/gone; chmod +x /usr/libexec/lasthop/lasthop-switch; lasthop upgrade");
    assert!(!plugs.iter_mut().any(|plug| plug.guest.is_disconnected()), "a connection ended");
    // It is watched as before.
    host.run(&format!("kill -KILL {pid}"));
    traffic_is_back(&mut plugs, 10_000);
    assert_eq!(restarts(&host), 1);
    // LASTHOP_RESTART=no: an upgrade is for somebody to do, and none that is possible.
    let said = upgrade("LASTHOP_RESTART=no", "0.1.3");
    assert!(!said.contains("lasthop: ") && !plugs[0].guest.is_disconnected(), "{said}");
    host.run("lasthop upgrade || [ $? = 3 ]");
    let refused = host.refused("lasthop upgrade");
    assert!(refused.contains("say other things"), "{refused}");
    let said = host.run("apt-get install --reinstall --yes /mnt/lasthop_0.1.3_amd64.deb");
    assert!(said.contains(refused.trim_end()), "{said}");
    traffic_is_back(&mut plugs, 20_000);
    assert!(property(&host, "ActiveState") == "active" && host.run("lasthop messages").contains("000000"));
}
