//! What an uplink's processes hold, and may do, looked at from outside: each driver's, and that of a spare.

use lasthop_tests_process::{Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, proc, scratch, wait_for};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A file, whatever its name.
type Inode = u64;

/// One line of /proc/PID/maps.
struct Mapping {
    shared: bool,
    executable: bool,
    writable: bool,
    inode: Inode,
    name: String,
}

fn mappings(pid: u32) -> Vec<Mapping> {
    let maps = read_to_string(format!("/proc/{pid}/maps")).expect("the process runs, and root may look");
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let rights = fields.nth(1)?.to_owned();
        let inode = fields.nth(2)?.parse().ok()?;
        let has = |right| rights.contains(right);
        let name = fields.collect::<Vec<_>>().join(" ");
        Some(Mapping { shared: has('s'), executable: has('x'), writable: has('w'), inode, name })
    };
    maps.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// Open files: what each is called, and which it is.
fn descriptors(pid: u32) -> Vec<(String, Inode)> {
    let all = read_dir(format!("/proc/{pid}/fd")).expect("the process runs").flatten().map(|d| d.path());
    let what = |path: PathBuf| {
        let name = read_link(&path).expect("a link").display().to_string();
        let inode = path.metadata().map_or(0, |m| m.ino());
        (name, inode)
    };
    all.map(what).collect()
}

/// What the sandbox leaves to any of the processes: no root, no privileges, no calls beyond the list, no core dumps, so much memory.
fn is_bound(pid: u32) {
    for thread in read_dir(format!("/proc/{pid}/task")).expect("the process runs").flatten() {
        // One that closes what somebody sent may have ended meanwhile.
        let Ok(status) = read_to_string(thread.path().join("status")) else { continue };
        let holds = ["Seccomp", "Seccomp_filters", "NoNewPrivs", "CapEff", "CapBnd"].map(|name| field(&status, name));
        assert_eq!(holds, ["2", "2", "1", "0000000000000000", "0000000000000000"], "{pid}: {thread:?}");
        assert!(!field(&status, "Uid").split_whitespace().any(|id| id == "0"), "{pid}: {thread:?}");
    }
    assert_eq!(
        read_dir(format!("/proc/{pid}/root/")).expect("root may look").count(),
        0,
        "{pid}: its root is not empty"
    );
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the process runs");
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(limit("Max core file size"), ["0", "0"], "{pid}");
    for bytes in limit("Max data size") {
        assert!((1 << 30..=8 << 30).contains(&bytes.parse().unwrap_or(u64::MAX)), "{pid}: {bytes} bytes of memory");
    }
    // Where nobody may have more than he was started with, all that he may.
    let files = limit("Max open files");
    assert!(files.len() == 2 && files[0] == files[1], "{pid}: {files:?} descriptors");
}

fn status(pid: u32, name: &str) -> String {
    let status = read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    field(&status, name).to_owned()
}

/// Of /proc/PID/status.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

/// The uplink and its spare of one driver: neither has seen guest memory, nor can come by it.
fn holds_nothing_of_guests(driver: &str, devices: &[&str]) {
    let (netns, dir) = (Netns::new(), scratch());
    if driver != "tap" {
        netns.ip("link add u0 type veth peer name s0");
        netns.ip("link set s0 up");
    }
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--uplink", &format!("net=u0,{driver},spare")]);
    let guests = [("a", 1), ("b", 2)]
        .map(|(name, n)| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default()));
    let uplink = || lasthop.json(&["uplink", "list"])["uplinks"][0].clone();
    wait_for("the uplink and its spare", PATIENCE, || uplink()["state"] == "up" && uplink()["spare"] == "ready");
    let (switch, control) = (lasthop.switch(), lasthop.control());
    let children = proc::children(lasthop.pid());
    // Under `ip netns exec` lasthop is what was started: it has replaced that program.
    let processes: Vec<u32> =
        children.into_iter().filter(|(_, name)| name == "lasthop-uplink").map(|(p, _)| p).collect();
    assert_eq!(processes.len(), 2, "an uplink and its spare");
    assert!(processes.contains(&(uplink()["pid"].as_u64().unwrap_or(0) as u32)));

    // Guests of this test keep their memory in memfds, of which the switch keeps the mapping only.
    let guest_memory: BTreeSet<Inode> =
        mappings(switch).into_iter().filter(|m| m.name.contains("memfd:lasthop-driver")).map(|m| m.inode).collect();
    assert_eq!(guest_memory.len(), 2, "the switch maps both guests");
    // Of an uplink's it has what is shared, and not the notes, in which the uplink's own addresses are.
    assert!(
        mappings(switch).iter().all(|m| !m.name.contains("memfd:lasthop-notes")),
        "the switch maps an uplink's notes"
    );
    for pid in processes.iter().copied().chain([switch, control]) {
        is_bound(pid);
    }
    let slack = |pid| std::fs::read_to_string(format!("/proc/{pid}/timerslack_ns")).expect("the process runs");
    assert_eq!(slack(switch).trim(), "1", "timers of the switch run out when they are to");
    for pid in processes {
        let who = format!("{driver}: {pid}");
        for mapping in mappings(pid) {
            assert!(!guest_memory.contains(&mapping.inode), "{who}: guest memory is mapped: {}", mapping.name);
            assert!(!(mapping.writable && mapping.executable), "{who}: {}", mapping.name);
            let own = [
                "/memfd:lasthop-counters",
                "/memfd:lasthop-notes",
                "/memfd:lasthop-uplink",
                "socket:",
                "anon_inode:bpf",
            ];
            let known = !mapping.shared || own.iter().any(|name| mapping.name.starts_with(name));
            assert!(known, "{who}: shares {} with somebody", mapping.name);
        }
        let own = ["/memfd:lasthop-uplink", "/memfd:lasthop-notes", "anon_inode:", "socket:", "/dev/null", "pipe:"];
        for (name, inode) in descriptors(pid) {
            assert!(!guest_memory.contains(&inode), "{who}: guest memory is open: {name}");
            let log = name.ends_with("/log");
            let known = log || own.iter().chain(devices).any(|own| name.starts_with(own));
            assert!(known, "{who}: holds {name}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(pid, set), "0000000000000000", "{who}: {set}");
        }
        assert_eq!((status(pid, "NoNewPrivs").as_str(), status(pid, "Seccomp").as_str()), ("1", "2"), "{who}");
        // Every thread, or a second one could do what the first may not.
        for thread in read_dir(format!("/proc/{pid}/task")).expect("the process runs").flatten() {
            let thread: u32 = thread.file_name().to_string_lossy().parse().expect("a number");
            let holds = ["Seccomp", "NoNewPrivs", "CapEff"].map(|field| status(thread, field));
            assert_eq!(holds, ["2", "1", "0000000000000000"], "{who}: thread {thread}");
        }
        // A user of its own: the kernel lets it neither signal nor trace the others.
        for ids in ["Uid", "Gid"] {
            let own = status(pid, ids);
            assert!(!own.split_whitespace().any(|id| id == "0"), "{who}: {own}");
            assert!(own != status(switch, ids) && own != status(control, ids), "{who}: {own}");
        }
        for kind in ["net", "ipc", "uts", "mnt"] {
            let namespace = |pid| read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace");
            let all = [pid, lasthop.pid(), switch].map(namespace);
            assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{who}: {kind}");
        }
        // Its root is a directory without a name in which nothing is and nothing can be made: no place for planted links.
        let root = format!("/proc/{pid}/root/");
        assert_eq!(read_dir(&root).expect("root may look").count(), 0, "{who}: its root is not empty");
        let made = rustix::fs::open(format!("{root}planted"), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
        assert_eq!(made.err(), Some(rustix::io::Errno::NOENT), "{who}: something can be made in its root");
        assert_eq!(read_link(format!("/proc/{pid}/cwd")).ok(), read_link(format!("/proc/{pid}/root")).ok(), "{who}");
    }
    drop(guests);
}

#[test]
fn af_packet_holds_nothing_of_guests() {
    holds_nothing_of_guests("af_packet", &[]);
}

#[test]
fn tap_holds_nothing_of_guests() {
    holds_nothing_of_guests("tap", &["/dev/net/tun"]);
}

#[test]
fn af_xdp_holds_nothing_of_guests() {
    holds_nothing_of_guests("af_xdp", &[]);
}
