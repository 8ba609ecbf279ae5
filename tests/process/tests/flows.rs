//! Flows are set up for everybody, whatever one guest does with its own (docs/hostile.md, S3 and P9).

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, numbered, scratch, wait_for};
use lasthop_text::MacAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Flows that the attacker makes: far more than are put right at once.
const FLOWS: u32 = 20_000;
/// How often its accomplice comes and goes.
const FLAPS: u32 = 30;

fn stat(lasthop: &Lasthop, name: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&lasthop.command(&["stats", "--json"])).expect("JSON");
    stats["switch"][name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

/// One guest owns 20 000 floods, another comes and goes: every time all of them were put anew, before anybody's first packet.
/// Now the switch is told of a change a few times at most, and first packets of others pass all the while.
#[test]
fn a_port_that_flaps_does_not_have_all_floods_put_again() {
    let dir = scratch();
    let ports = ["a", "b", "owner", "flaps"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let guest = |n: usize| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::net(|net| net.size = 256));
    let (mut a, mut b, mut owner) = (guest(0), guest(1), guest(2));
    a.greet(&mut b, 1);
    let unknown = |n: u32| {
        let [_, x, y, z] = n.to_be_bytes();
        MacAddr([2, 0, 9, x, y, z])
    };
    for n in 0..FLOWS {
        let frame = numbered(mac(3), unknown(n), n, 60);
        wait_for("room in the owner's ring", PATIENCE, || owner.try_send(VnetHdr::default(), &frame));
        // They are floods: nobody keeps them.
        while a.try_recv().is_some() || b.try_recv().is_some() {}
    }
    wait_for("the floods' flows", PATIENCE, || stat(&lasthop, "flows") >= u64::from(FLOWS));
    a.drain();
    b.drain();

    let before = stat(&lasthop, "flows_put");
    for n in 0..FLAPS {
        let guest = guest(3);
        lasthop.wait_for_state("flaps", "up");
        // A station that nobody has heard of: a first packet each way.
        let frame = numbered(unknown(1 << 20 | n), mac(2), 100_000 + n, 60);
        a.send(&frame);
        b.expect(&frame);
        let frame = numbered(mac(2), unknown(1 << 20 | n), 200_000 + n, 60);
        b.send(&frame);
        a.expect(&frame);
        drop(guest);
        lasthop.wait_for_state("flaps", "waiting");
    }
    let put = stat(&lasthop, "flows_put") - before;
    // Eight changes count before the port stays in floods; then there are the flows of the stations above.
    assert!(put <= u64::from(9 * FLOWS + 10 * FLAPS), "{put} flows put for {} changes", 2 * FLAPS);
    lasthop.check_sums();
}

/// Packets of a port that was removed are still part of what was carried.
#[test]
fn what_a_removed_port_counted_stays_in_the_sum() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let path = dir.path().join("c.sock");
    lasthop.command(&["port", "add", "c", path.to_str().expect("text")]);
    let mut guests = [&ports[0].socket, &ports[1].socket, &path].map(|socket| {
        let n = socket.to_string_lossy().bytes().rev().nth(5).expect("a letter") - b'a' + 1;
        Guest::connect(socket, mac(n), Options::default())
    });
    let [a, _, c] = &mut guests;
    a.greet(c, 1);
    for n in 0..50 {
        let frame = numbered(mac(1), mac(3), 100 + n, 60);
        a.send(&frame);
        c.expect(&frame);
    }
    lasthop.check_sums();
    lasthop.command(&["port", "del", "c"]);
    lasthop.check_sums();
    let said = lasthop.command(&["stats"]);
    assert!(said.contains("removed ports") && !said.contains("unaccounted"), "{said}");
}

/// A guest floods a port that is removed in the middle, again and again: what was counted there meanwhile is counted once.
#[test]
fn what_a_port_counts_while_it_is_removed_under_load_is_counted_once() {
    let dir = scratch();
    let ports = ["a"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut a = Guest::connect(&ports[0].socket, mac(1), Options::net(|net| net.size = 1024));
    let path = dir.path().join("c.sock");
    let frames = [numbered(mac(1), mac(3), 2, 60), numbered(mac(1), MacAddr([0xff; 6]), 3, 60)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                frames.iter().for_each(|frame| a.fill(frame));
            }
            a.all_taken();
        });
        let _stop = Stop(&stop);
        for round in 0..20 {
            lasthop.command(&["port", "add", "c", path.to_str().expect("text")]);
            let mut c = Guest::connect(&path, mac(3), Options::net(|net| net.size = 1024));
            // It is known where it is, and gets what there is.
            c.send(&numbered(mac(3), mac(1), 1, 60));
            wait_for("packets to come", PATIENCE, || c.try_recv().is_some());
            (0..round * 1024).for_each(|_| drop(c.try_recv()));
            lasthop.command(&["port", "del", "c"]);
        }
    });
    lasthop.check_sums();
    let said = lasthop.command(&["stats"]);
    assert!(said.contains("removed ports") && !said.contains("unaccounted"), "{said}");
}

/// Ends what waits for it, also where a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A member of the group may look; anybody else may not, and nobody of them may change anything.
#[test]
fn members_of_a_group_may_read() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    // Nobody's own group, and some user of it and of another.
    let (group, user) = (65_534, 65_533);
    let dir = scratch();
    let ports = ["a"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--read-group", &group.to_string()]);
    let run_dir = lasthop.run_dir();
    // Others find their way to it.
    for dir in [run_dir.parent().expect("a directory"), &run_dir] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let as_member = |of: u32, words: &[&str]| {
        let mut command = std::process::Command::new(lasthop_tests_process::binary("lasthop"));
        command.args(words).arg("--run-dir").arg(&run_dir).uid(user).gid(of);
        command.output().expect("lasthop runs")
    };
    for words in [&["stats"][..], &["port", "list"], &["flow", "list"], &["mac", "list"]] {
        let out = as_member(group, words);
        assert!(out.status.success(), "{words:?}: {out:?}");
    }
    let out = as_member(group, &["port", "del", "a"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("change nothing; do this as root"), "{said}");
    let out = as_member(user, &["stats"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("--read-group"), "{said}");
}
