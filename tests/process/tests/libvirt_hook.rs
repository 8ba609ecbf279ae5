//! libvirt's hook (`packaging/libvirt/lasthop`), called as libvirtd calls it: `GUEST OPERATION STEP -`, the domain on standard input.

use lasthop_tests_process::{Guest, Lasthop, Options, binary, mac, scratch};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/libvirt/lasthop");

/// A domain as libvirt writes it, with an interface for each socket.
fn domain(sockets: &[(String, &str)], options: &str) -> String {
    let interface = |(path, mode): &(String, &str)| {
        format!(
            "    <interface type='vhostuser'>\n      <mac address='52:54:00:00:00:09'/>\n      \
             <source type='unix' path='{path}' mode='{mode}'/>\n      <model type='virtio'/>\n    </interface>\n"
        )
    };
    let interfaces: String = sockets.iter().map(interface).collect();
    format!(
        "<domain type='qemu' id='1'>\n  <name>vm9</name>\n  <metadata>\n    <lasthop:ports xmlns:lasthop=\"urn:lasthop:ports\">\n      \
         <lasthop:port name=\"web\" options=\"{options}\"/>\n    </lasthop:ports>\n  </metadata>\n  <devices>\n{interfaces}    \
         <interface type='network'><source network='default'/></interface>\n  </devices>\n</domain>\n"
    )
}

fn call(lasthop: &Lasthop, made: &Path, words: [&str; 2], domain: &str) -> Output {
    call_for("vm9", lasthop, made, words, domain)
}

fn call_for(guest: &str, lasthop: &Lasthop, made: &Path, words: [&str; 2], domain: &str) -> Output {
    let mut hook = Command::new(HOOK)
        .args([guest, words[0], words[1], "-"])
        .env("LASTHOP", binary("lasthop"))
        .env("LASTHOP_RUN_DIR", lasthop.run_dir())
        .env("LASTHOP_HOOK_DIR", made)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that does not read it has ended.
    let _ = hook.stdin.take().unwrap().write_all(domain.as_bytes());
    hook.wait_with_output().unwrap()
}

#[test]
fn ports_come_with_the_domain_and_go_with_it() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let path = |name: &str| lasthop.run_dir().join(name).display().to_string();
    lasthop.command(&["port", "add", "old", &path("old.sock")]);
    let elsewhere = dir.path().join("elsewhere.sock").display().to_string();
    let sockets = [
        (path("web.sock"), "client"),
        (path("db.sock"), "server"),
        (path("old.sock"), "client"),
        (elsewhere, "client"),
    ];
    let domain_now = domain(&sockets, "--vlan 10 --mac 52:54:00:00:00:09");
    let names = || -> Vec<String> {
        let ports = lasthop.json(&["port", "list"]);
        ports["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    };
    let ok = |words| {
        let out = call(&lasthop, &made, words, &domain_now);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    ok(["prepare", "begin"]);
    assert_eq!(names(), ["old", "web", "db"]);
    let web = lasthop.port("web");
    assert_eq!((&web["client"], &lasthop.port("db")["client"]), (&false.into(), &true.into()));
    assert!(web["settings"].to_string().contains("\"10\""), "{web}");
    // QEMU connects.
    let guest = Guest::connect(Path::new(&path("web.sock")), mac(9), Options::default());
    lasthop.wait_for_state("web", "up");
    for words in [["start", "begin"], ["started", "begin"], ["stopped", "end"], ["reconnect", "begin"]] {
        ok(words);
    }
    assert_eq!(names(), ["old", "web", "db"], "there is nothing to do at other steps");
    drop(guest);
    // Another port may have the name by then that one had which the hook made.
    lasthop.command(&["port", "rename", "web", "www"]);
    lasthop.command(&["port", "add", "web", &path("other.sock")]);
    ok(["release", "end"]);
    assert_eq!(names(), ["old", "web"], "what was there before stays, and what somebody else made");
    assert_eq!(lasthop.port("web")["path"], path("other.sock"));
    ok(["release", "end"]);
}

#[test]
fn a_domain_whose_port_cannot_be_made_is_not_started() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let socket = |name: &str| (lasthop.run_dir().join(name).display().to_string(), "client");
    for (text, why) in [
        (domain(&[socket("db.sock"), socket("web.sock")], "--vlan 5000"), "port web: "),
        (domain(&[socket("db.sock"), socket("web.sock")], "--vlan 'x"), "No closing quotation"),
        ("<domain>".into(), "no element found"),
    ] {
        let out = call(&lasthop, &made, ["prepare", "begin"], &text);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.starts_with("lasthop: ") && said.contains(why), "{said}");
        assert_eq!(lasthop.json(&["port", "list"])["ports"], serde_json::json!([]), "what was made is taken back");
    }
}

/// Of a host that lost its power nobody says that its domains ended, and lasthop keeps ports.
#[test]
fn what_is_left_of_an_end_that_nobody_saw_is_made_anew() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let socket = |name: &str| (lasthop.run_dir().join(name).display().to_string(), "client");
    lasthop.command(&["port", "add", "mine", &socket("mine.sock").0, "--vlan", "7"]);
    for vlan in ["10", "20"] {
        let domain = domain(&[socket("web.sock"), socket("mine.sock")], &format!("--vlan {vlan}"));
        let out = call(&lasthop, &made, ["prepare", "begin"], &domain);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let settings = lasthop.port("web")["settings"].to_string();
        assert!(settings.contains(&format!("\"{vlan}\"")), "{settings}");
    }
    assert!(lasthop.port("mine")["settings"].to_string().contains("\"7\""));
    // A domain that has no such interface any more asks lasthop for nothing, which may be gone, before it ends.
    let without = domain(&[], "");
    assert!(call(&lasthop, &made, ["prepare", "begin"], &without).status.success());
    assert_eq!(lasthop.port("web")["state"], "waiting");
    assert!(call(&lasthop, &made, ["release", "end"], &without).status.success());
    assert!(!lasthop.command(&["port", "list"]).contains("web"));
}

/// Of another domain, which is gone since the host lost its power: its port is made anew for the one that has its socket now, and goes with that one. A port that
/// is in use stays its own domain's.
#[test]
fn a_port_of_a_domain_whose_end_nobody_saw_goes_with_the_next_that_has_it() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let socket = |name: &str| (lasthop.run_dir().join(name).display().to_string(), "client");
    let (web, db) = (|vlan: &str| domain(&[socket("web.sock")], vlan), domain(&[socket("db.sock")], ""));
    let ok = |guest: &str, words, domain: &str| {
        let out = call_for(guest, &lasthop, &made, words, domain);
        assert!(out.status.success(), "{guest}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let names = || lasthop.command(&["port", "list"]);
    ok("a", ["prepare", "begin"], &web("--vlan 10"));
    ok("b", ["prepare", "begin"], &web("--vlan 20"));
    assert!(lasthop.port("web")["settings"].to_string().contains("\"20\""), "as b is told");
    ok("a", ["prepare", "begin"], &db);
    assert!(names().contains("web") && names().contains("db"), "web is b's now: {}", names());
    let guest = Guest::connect(Path::new(&socket("web.sock").0), mac(9), Options::default());
    lasthop.wait_for_state("web", "up");
    ok("c", ["prepare", "begin"], &web("--vlan 30"));
    ok("c", ["release", "end"], &web(""));
    assert!(lasthop.port("web")["settings"].to_string().contains("\"20\""), "in use");
    drop(guest);
    ok("b", ["release", "end"], &web(""));
    assert!(!names().contains("web") && names().contains("db"), "{}", names());
}

#[test]
fn a_port_of_that_name_with_another_socket_keeps_the_domain_from_starting() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let path = |name: &str| lasthop.run_dir().join(name).display().to_string();
    lasthop.command(&["port", "add", "web", &path("mine.sock")]);
    let out = call(&lasthop, &made, ["prepare", "begin"], &domain(&[(path("web.sock"), "client")], ""));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("mine.sock") && said.contains("web.sock"), "{said}");
    assert_eq!(lasthop.port("web")["path"], path("mine.sock"));
}

/// QEMU may not make a socket in lasthop's own folder.
#[test]
fn a_port_that_the_metadata_name_has_its_socket_anywhere() {
    let (lasthop, dir) = (Lasthop::start(&[]), scratch());
    let made = dir.path().join("made");
    let at = |name: &str| (dir.path().join(name).display().to_string(), "server");
    let domain = domain(&[at("web.sock"), at("others.sock")], "--vlan 10");
    assert!(call(&lasthop, &made, ["prepare", "begin"], &domain).status.success());
    let ports = lasthop.json(&["port", "list"])["ports"].take();
    assert_eq!(ports.as_array().map(Vec::len), Some(1), "the other is none of lasthop's: {ports}");
    assert_eq!(
        (&ports[0]["name"], &ports[0]["path"], &ports[0]["client"]),
        (&"web".into(), &at("web.sock").0.into(), &true.into())
    );
    assert!(call(&lasthop, &made, ["release", "end"], &domain).status.success());
    assert_eq!(lasthop.json(&["port", "list"])["ports"], serde_json::json!([]));
}
