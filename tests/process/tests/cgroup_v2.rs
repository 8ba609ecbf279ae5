//! Work in the VM's account with control groups of version 2, as hosts have them. The mounts are of one thread, and of what it starts.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, numbered, scratch, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = "/sys/fs/cgroup";

/// A group that holds this process, and lasthop, with a threaded one in it for the VM. Gone, it has moved this process back.
struct Groups {
    top: PathBuf,
    before: PathBuf,
}

impl Groups {
    /// This thread sees version 2 alone from now on.
    fn new() -> Self {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("root may");
        let mounts = format!("mount --make-rprivate / && umount -R -l {ROOT} && mount -t cgroup2 cgroup2 {ROOT}");
        assert!(Command::new("sh").args(["-c", &mounts]).status().expect("a shell").success());
        let groups = fs::read_to_string("/proc/self/cgroup").expect("groups of this process");
        let before = groups.lines().find_map(|line| line.strip_prefix("0::/")).expect("version 2 is there");
        let top = Path::new(ROOT).join(format!("lasthop-test-{}", std::process::id()));
        fs::create_dir(&top).expect("a group");
        let groups = Self { top, before: Path::new(ROOT).join(before) };
        move_all_to(&groups.top);
        fs::create_dir(groups.vm()).expect("a group in it");
        fs::write(groups.vm().join("cgroup.type"), "threaded").expect("groups of single threads");
        groups
    }

    fn vm(&self) -> PathBuf {
        self.top.join("vm")
    }

    /// The first thread of this process, of which lasthop believes that it is the VM, is in the VM's group or not.
    fn is_vm(&self, is_vm: bool) {
        let group = if is_vm { self.vm() } else { self.top.clone() };
        fs::write(group.join("cgroup.threads"), std::process::id().to_string()).expect("it is moved");
    }

    /// Threads in the VM's group, this process's not.
    fn threads(&self) -> Vec<u32> {
        let all = fs::read_to_string(self.vm().join("cgroup.threads")).expect("its threads");
        all.lines().filter_map(|line| line.parse().ok()).filter(|thread| *thread != std::process::id()).collect()
    }

    /// Processor time that the kernel has counted to the VM's group, in microseconds.
    fn used_us(&self) -> u64 {
        let all = fs::read_to_string(self.vm().join("cpu.stat")).expect("its figures");
        let used = all.lines().find_map(|line| line.strip_prefix("usage_usec "));
        used.and_then(|used| used.parse().ok()).expect("a number")
    }
}

/// This process, all its threads.
fn move_all_to(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("this process is moved");
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(self.vm());
        let _ = fs::remove_dir(&self.top);
    }
}

fn name_of(lasthop: &Lasthop, thread: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{}/task/{thread}/comm", lasthop.switch()));
    name.unwrap_or_default().trim_end().to_owned()
}

/// What its VM sends is counted to the VM's group, and where lasthop may not put a thread there it says what it takes.
#[test]
fn a_port_s_thread_works_in_the_threaded_group_of_its_vm() {
    let groups = Groups::new();
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--vm-cgroup", "--helpers", "none"]);
    groups.is_vm(true);
    let mut a = Guest::connect(&ports[0].socket, mac(1), Options::default());
    // Its first packet starts the thread. It is to no one who comes later: until control has seen that guest, what it said of
    // packets to that address holds.
    a.send(&numbered(mac(1), mac(9), 0, 60));
    wait_for("the port's thread to be in the VM's group", PATIENCE, || groups.threads().len() == 1);
    assert_eq!(name_of(&lasthop, groups.threads()[0]), "port-a");
    groups.is_vm(false);
    let mut b = Guest::connect(&ports[1].socket, mac(2), Options::default());
    a.greet(&mut b, 1);
    // Nothing else is in the group: what it has used is what the port's thread has.
    let (before, cpu_before) = (groups.used_us(), lasthop.port("a")["cpu_ns"].as_u64().expect("a time"));
    (2..2000).for_each(|n| a.greet(&mut b, n));
    let (used, cpu) = (groups.used_us() - before, lasthop.port("a")["cpu_ns"].as_u64().expect("a time") - cpu_before);
    assert!(used > 0 && (cpu / 2000..cpu / 500).contains(&used), "{used} us of the VM's group, {cpu} ns of its port");
    drop(a);
    wait_for("the thread to be lasthop's again", PATIENCE, || groups.threads().is_empty());

    // A VM that is in no group of single threads, as the one that there is at the root.
    move_all_to(&groups.before);
    let mut a = Guest::connect(&ports[0].socket, mac(1), Options::default());
    a.greet(&mut b, 2999);
    wait_for("it to be said", PATIENCE, || {
        lasthop.log().contains("this takes a threaded control group that holds lasthop")
    });
    a.greet(&mut b, 3000);
    lasthop.check_sums();
}
