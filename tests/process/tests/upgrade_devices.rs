//! `lasthop upgrade` of a `lasthop run` with a device (`--device`): the device, its walk, and the cable between the two go on. A cable that is not there when
//! the new program looks is started again.

use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, becomes, binary, children, mac, numbered, proc, release,
};
use lasthop_tests_process::{scratch, script, stays, under_load, upgrade_run, wait_for};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

/// Places of the device's small table, and flows, each of another station.
const RULES: u32 = 16;
const FLOWS: u32 = 100;

/// A guest on the host, and two on a device that walks the larger table.
struct Site {
    host: Guest,
    a: Guest,
    b: Guest,
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = scratch();
        let at = |name: &str| dir.path().join(name);
        let [a, b] = ["a", "b"].map(|name| format!("{name}={},device=nic0", at(name).display()));
        let device = format!("nic0,rules={RULES},walk=on");
        let port = Port::listen("h", dir.path());
        let lasthop = Lasthop::start_with(&[port], &["--device", &device, "--port", &a, "--port", &b]);
        let guest = |name: &str, number| Guest::connect(&at(name), mac(number), Options::default());
        let (host, a, b) = (guest("h.sock", 1), guest("a", 2), guest("b", 3));
        let mut site = Self { host, a, b, lasthop, dir };
        site.is_plugged_in(1);
        site.a.greet_when_back(&mut site.b, 1000);
        site
    }

    fn is_plugged_in(&mut self, number: u32) {
        self.host.greet_when_back(&mut self.a, number);
    }

    /// A packet from each of many stations behind `a`: more than the small table has places for.
    fn round(&mut self, number: u32) {
        for n in 0..FLOWS {
            let from = MacAddr([2, 9, 0, 0, 0, n as u8]);
            self.a.send(&numbered(from, mac(3), number + n, 60));
            self.b.expect_number(number + n);
        }
    }

    fn cable(&self) -> Option<u32> {
        children(&self.lasthop).into_iter().find(|(_, name)| name == "lasthop-cable").map(|(pid, _)| pid)
    }

    fn stats(&self) -> Value {
        self.lasthop.json(&["device", "stats", "nic0"])
    }

    fn none_is_disconnected(&self) {
        assert!([&self.host, &self.a, &self.b].iter().all(|guest| !guest.is_disconnected()), "a connection ended");
    }

    /// A program that does this to the cable, whose number is `$cable`, before it goes on as the true one.
    fn meddler(&self, name: &str, what: &str) -> std::path::PathBuf {
        let release = release(self.dir.path(), name);
        let (program, lasthop) = (release.join("lasthop"), binary("lasthop"));
        std::fs::remove_file(&program).unwrap();
        let text = format!(
            "#!/bin/bash\nif [ \"$1\" != messages ]; then case \"$*\" in *--take-over-check*) ;; *)\n\
             for pid in $(</proc/$$/task/$$/children); do [ $(</proc/$pid/comm) = lasthop-cable ] && cable=$pid; done\n\
             {what};; esac; fi\nexec {} \"$@\"\n",
            lasthop.display()
        );
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        release
    }
}

#[test]
fn a_device_its_walk_and_its_cable_go_on() {
    let mut site = Site::new();
    site.round(2000);
    site.round(3000);
    let before = site.stats();
    let releases = ["one", "two"].map(|name| release(site.dir.path(), name));
    let Site { host, a, b, lasthop, .. } = &mut site;
    under_load(host, a, |flows| {
        becomes(lasthop, &releases[0]);
        flows();
    });
    under_load(a, b, |flows| {
        becomes(lasthop, &releases[1]);
        flows();
    });
    site.none_is_disconnected();
    site.round(4000);
    site.round(5000);
    let then = site.stats();
    let number = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("no number: {of}"));
    let found = number(&then["table"]["walk"]["hits"]) - number(&before["table"]["walk"]["hits"]);
    assert!(found >= u64::from(2 * (FLOWS - RULES)), "flows that had left the small table are walked to: {then}");
    assert_eq!(then["misses"], before["misses"], "control has heard of no packet: {then}");
    // What ends now is started again.
    let cable = site.cable();
    site.lasthop.kill("lasthop-cable");
    wait_for("another cable", PATIENCE, || site.cable().is_some_and(|now| Some(now) != cable));
    site.is_plugged_in(6000);
    assert!(site.lasthop.stop(), "all processes end");
}

/// Whatever has become of the cable meanwhile, the program goes on.
#[test]
fn a_cable_that_is_not_there_is_started_again() {
    let mut site = Site::new();
    let reaped = "kill -9 $cable; sleep 0.1; while [ -e /proc/$cable ]; do sleep 0.1; done";
    let unknown = "for info in /proc/$$/fdinfo/*; do grep -qs \"^Pid:[[:space:]]*$cable\\$\" $info && eval \"exec ${info##*/}</dev/null\"; done";
    for (number, name, what) in [(1, "killed", "kill -9 $cable"), (2, "reaped", reaped), (3, "unknown", unknown)] {
        let before = site.cable().expect("there is one");
        let new = site.meddler(name, what);
        let Site { a, b, lasthop, .. } = &mut site;
        under_load(a, b, |flows| {
            let out = upgrade_run(lasthop, &new);
            assert!(out.status.success(), "{name}: {}\n{}", String::from_utf8_lossy(&out.stderr), lasthop.log());
            flows();
        });
        wait_for(name, PATIENCE, || site.cable().is_some_and(|cable| (cable == before) == (name == "unknown")));
        site.is_plugged_in(10_000 * number);
    }
    site.none_is_disconnected();
    // It is watched by its new descriptor.
    let before = site.cable();
    site.lasthop.kill("lasthop-cable");
    wait_for("another cable", PATIENCE, || site.cable().is_some_and(|now| Some(now) != before));
    site.is_plugged_in(50_000);
    assert!(site.lasthop.stop(), "all processes end");
}

/// It finds that only when it has taken ports, front-ends and sockets: the program before has all of them still.
#[test]
fn a_new_program_that_cannot_go_on_hangs_up_on_nobody() {
    let mut site = Site::new();
    let check = "case \"$*\" in *--take-over-check*) exit 0;; esac";
    // Without the device that is handed over, and without its ports.
    let without = "n=$#; while [ $n -gt 0 ]; do case \"$1 $2\" in\n\
                   \"--device \"*|\"--port \"*,device=nic0) shift 2; n=$((n-2));;\n\
                   *) set -- \"$@\" \"$1\"; shift; n=$((n-1));; esac; done";
    let body = format!("{check}\n{without}\nexec $LASTHOP \"$@\"");
    let new = script(site.dir.path(), "less", &body);
    let Site { host, a, b, lasthop, .. } = &mut site;
    under_load(host, a, |flows| {
        let said = stays(lasthop, &new);
        assert!(said.contains("device nic0 is not on the command line"), "{said}\n{}", lasthop.log());
        flows();
    });
    under_load(a, b, |flows| {
        stays(lasthop, &new);
        flows();
    });
    site.none_is_disconnected();
    // Its sockets are where they were, and take front-ends.
    let socket = site.dir.path().join("n.sock");
    site.lasthop.command(&["port", "add", "n", socket.to_str().unwrap()]);
    let mut n = Guest::connect(&socket, mac(4), Options::default());
    site.host.greet_when_back(&mut n, 80_000);
    site.is_plugged_in(90_000);
    assert!(site.lasthop.stop(), "all processes end");
}

/// `lasthop upgrade` of the device itself: its next data plane is a device as well, with its walk.
#[test]
fn a_device_is_upgraded_to_a_device() {
    let mut site = Site::new();
    site.round(2000);
    let release = release(site.dir.path(), "one");
    let of_device = || {
        let lock = std::fs::read_to_string(site.lasthop.run_dir().join("devices/nic0/lock")).expect("it runs");
        let all = proc::children(lock.trim().parse().expect("a number"));
        // The kernel keeps 15 characters of a name.
        all.into_iter().filter(|(_, name)| name == "lasthop-device" || name == "lasthop-switch").collect::<Vec<_>>()
    };
    let before = of_device();
    let words = ["upgrade", "--only", "switch", "--all", "--programs", release.to_str().unwrap()];
    let out = site.lasthop.try_command_of(Some("nic0"), &words);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), site.lasthop.log());
    wait_for("the one before to be gone", PATIENCE, || of_device().len() == 1);
    let now = of_device();
    assert!(now[0].1 == "lasthop-device" && now != before, "{before:?}, now {now:?}");
    site.none_is_disconnected();
    site.round(3000);
    site.round(4000);
    let hits = site.stats()["table"]["walk"]["hits"].as_u64();
    assert!(hits >= Some(u64::from(FLOWS - RULES)), "it walks: {}", site.stats());
    assert!(site.lasthop.stop(), "all processes end");
}
