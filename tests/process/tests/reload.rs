//! SIGHUP: what is remembered is read again, and nobody ends.

use lasthop_tests_process::{Bystanders, Lasthop, PATIENCE, Port, mac, proc, scratch, wait_for};
use rustix::process::Signal;

/// The files are changed by hand, and the switch follows, while two guests go on.
#[test]
fn what_is_remembered_is_read_again() {
    let dir = scratch();
    let given = ["c", "d"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&given);
    let socket = |name: &str| dir.path().join(format!("{name}.sock")).display().to_string();
    for name in ["old", "kept"] {
        lasthop.command(&["port", "add", name, &socket(name)]);
    }
    let rules = dir.path().join("rules");
    std::fs::write(&rules, "deny icmp\n").expect("a file");
    lasthop.command(&["acl", "load", &rules.display().to_string()]);
    let bystanders = Bystanders::start(&given[0].socket, &given[1].socket, [mac(0xc), mac(0xd)]);
    let lasting = |lasthop: &Lasthop| [lasthop.pid(), lasthop.switch(), lasthop.child("lasthop-control")];
    let (at_first, processes) = (lasting(&lasthop), lasthop.pids().len());
    let kept = lasthop.port("kept")["id"].clone();

    let (ports_file, rules_file) = (lasthop.state_file("ports.json"), lasthop.state_file("acl.rules"));
    let change = |file: &std::path::Path, from: &str, to: &str| {
        let text = std::fs::read_to_string(file).expect("it is there");
        assert!(text.contains(from), "{text}");
        std::fs::write(file, text.replace(from, to)).expect("it is ours");
    };
    let reloads = || lasthop.log().matches("SIGHUP: ").count();
    let reload = || {
        let before = reloads();
        proc::signal(lasthop.pid(), Signal::HUP);
        wait_for("a line in the log", PATIENCE, || reloads() > before);
    };
    reload();
    assert!(lasthop.log().contains("0 ports added, 0 removed, the same access lists"), "{}", lasthop.log());
    change(&ports_file, "old", "new");
    change(&rules_file, "deny icmp", "deny udp to any port 53");
    reload();
    assert!(lasthop.log().contains("1 port added, 1 removed, other access lists"), "{}", lasthop.log());
    wait_for("the new rules", PATIENCE, || lasthop.command(&["acl", "show"]).contains("deny udp to any port 53"));
    let ports = lasthop.command(&["port", "list"]);
    assert!(ports.contains("\nnew ") && !ports.contains("\nold "), "{ports}");
    assert_eq!(lasthop.port("kept")["id"], kept, "one that is as it was goes on");
    assert!(std::path::Path::new(&socket("new")).exists() && !std::path::Path::new(&socket("old")).exists());

    // One port's session process goes with it, another comes.
    wait_for("the old port's process to end", PATIENCE, || lasthop.pids().len() == processes);
    let pids = lasthop.pids();
    // Uplinks are not followed: what becomes of each is said.
    change(
        &ports_file,
        "\"uplinks\": []",
        "\"uplinks\": [{\"name\": \"net\", \"device\": \"nosuch0\", \"queues\": 1}]",
    );
    reload();
    let said = "SIGHUP: uplink net is new in ports.json, and comes with the next start";
    wait_for("the line of it", PATIENCE, || lasthop.log().contains(said));
    assert!(!lasthop.command(&["uplink", "list"]).contains("net "), "and it waits for that");

    // What cannot be understood changes nothing, and is left as it is.
    change(&ports_file, "\"version\": 1", "\"version\": 7");
    reload();
    assert!(lasthop.log().contains("SIGHUP: nothing was reloaded: "), "{}", lasthop.log());
    assert_eq!(lasthop.command(&["port", "list"]).lines().count(), ports.lines().count());

    // The others do not end either: a terminal that is gone tells all of them.
    pids.iter().for_each(|pid| proc::signal(*pid, Signal::HUP));
    wait_for("the line of it", PATIENCE, || reloads() >= 5);
    assert_eq!(lasthop.pids(), pids);
    assert_eq!(lasting(&lasthop), at_first);
    bystanders.still_exchange();
}
