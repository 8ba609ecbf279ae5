//! The image of `packaging/container`, made and run by Debian's podman with the page's own lines, in a copy of this host's files. Two real VMs outside it
//! are plugged into its ports.

use lasthop_harness::{Nic, Vm, VmConfig, checks, root};
use lasthop_tests_process::{HostCopy, Inhabited, PATIENCE, package, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// What the host has in /etc/lasthop.toml.
const FILE: &str = "[port.a]\nsocket = \"/run/lasthop/a.sock\"\n[port.b]\nsocket = \"/run/lasthop/b.sock\"\n\
                    [uplink.net]\ndriver = \"tap\"\ndevice = \"tap0\"\n";

/// The lines of the first block below the page's heading.
fn documented() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let (_, section) = page.split_once("\n### In a container\n").unwrap();
    let block = section.split("```").nth(1).unwrap();
    block.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Control groups as this host has them, in a /sys that has none yet.
const GROUPS: &str = "v1=$(sed -n 's/^[1-9][0-9]*:\\([^:]*\\):.*/\\1/p' /proc/self/cgroup); \
                      if [ -z \"$v1\" ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; exit; fi; mount -t tmpfs tmpfs /sys/fs/cgroup; \
                      for of in $v1; do mkdir /sys/fs/cgroup/${of#name=}; mount -t cgroup -o $of cgroup /sys/fs/cgroup/${of#name=}; done";

/// Podman has room, needs no service manager, and asks for no limits above this host's. The image's base is a Debian, and not fetched; programs are for people
/// here, without what debuggers want.
fn prepare(copy: &HostCopy, host: &Inhabited<'_>) {
    std::fs::write(copy.told("lasthop.toml"), FILE).unwrap();
    let debian = root().join("target/tools/debian/root");
    host.run(GROUPS);
    host.run(&format!(
        "mkdir -p /run/lasthop /var/lib/lasthop /etc/containers; cp /mnt/lasthop.toml /etc/; \
         printf '[storage]\\ndriver = \"vfs\"\\nrunroot = \"/run/containers/storage\"\\ngraphroot = \"/var/lib/containers/storage\"\\n' >/etc/containers/storage.conf; \
         printf '[containers]\\ndefault_ulimits = [\"nproc=%s:%s\"]\\n[engine]\\ncgroup_manager = \"cgroupfs\"\\nevents_logger = \"file\"\\n' \
         $(prlimit --nproc --output=HARD,HARD --noheadings) >/etc/containers/containers.conf; \
         cd {root}; strip target/deb/tree/usr/bin/* target/deb/tree/usr/libexec/lasthop/*; \
         tar -C {debian} -c . | podman import --quiet --change ENV=PATH=/usr/sbin:/usr/bin - localhost/debian12",
        root = root().canonicalize().unwrap().display(),
        debian = debian.display()
    ));
}

/// What podman leaves of control groups, which are this host's: they go when all processes have.
struct Groups;

impl Drop for Groups {
    fn drop(&mut self) {
        let left = "find /sys/fs/cgroup -depth -type d -path '*/libpod_parent*' -exec rmdir {} + 2>/dev/null";
        // A podman of the host's own may be at work in some of them.
        let gone = || Command::new("sh").args(["-c", left]).status().is_ok_and(|status| status.success());
        let _ = (0..50).any(|_| {
            gone() || {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        });
    }
}

#[test]
#[ignore = "makes an image and boots VMs; rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn vms_talk_through_a_switch_in_a_container() {
    package("deb");
    let copy = HostCopy::new();
    let _groups = Groups;
    let host = copy.inhabit_for_containers();
    prepare(&copy, &host);
    let mut said = String::new();
    for line in documented().iter().filter(|line| !line.starts_with("cargo ")) {
        let line = line.replace(
            "podman build ",
            "podman build --layers=false --isolation=chroot --build-arg BASE=localhost/debian12 ",
        );
        said = host.run(&format!("cd {}; {line}", root().canonicalize().unwrap().display()));
    }
    assert!(said.contains("/run/lasthop/a.sock") && said.contains("tap0"), "{said}");
    let log = || host.run("podman logs lasthop 2>&1");
    assert!(log().contains("INFO sandbox: user ") && !log().contains("sandbox: going on without"), "{}", log());
    let vm = |name: &str, number| {
        VmConfig::new(name, [Nic::vhost_user(&host.file(&format!("/run/lasthop/{name}.sock")), number)])
    };
    let [a, b] = Vm::boot_all([vm("a", 1), vm("b", 2)]);
    checks::ping(&a, &b);
    // The container is replaced, and the VMs' machines connect again.
    host.run("podman restart lasthop");
    let list = || host.command("podman exec lasthop lasthop port list --json").output().unwrap().stdout;
    wait_for("the VMs to be back", PATIENCE, || {
        let list: Value = serde_json::from_slice(&list()).unwrap_or_default();
        list["ports"].as_array().is_some_and(|ports| ports.iter().all(|port| port["state"] == "up"))
    });
    checks::ping(&b, &a);
    host.run("podman stop --all");
    assert!(log().contains("INFO ending (Terminate)"), "{}", log());
    host.run("podman rm --all --force");
}

/// Two files say with which capabilities it runs.
#[test]
fn both_ways_to_run_it_give_the_same_capabilities() {
    let read = |file: &str| std::fs::read_to_string(root().join("packaging/container").join(file)).unwrap();
    let (compose, run) = (read("compose.yaml"), read("run"));
    let (_, of_switch) = compose.split_once("cap_add:\n").unwrap();
    let lines = of_switch.lines().map_while(|line| line.trim().strip_prefix("- "));
    let in_compose: BTreeSet<&str> = lines.map(|line| line.split_whitespace().next().unwrap()).collect();
    let (_, list) = run.split_once("--cap-add ").unwrap();
    let in_run: BTreeSet<&str> = list.split_whitespace().next().unwrap().split(',').collect();
    assert_eq!(in_run, in_compose);
}
