//! `lasthop-bench compare` as people run it, on scenarios that need no peer: what it leaves behind, stopped or not. The figures
//! mean nothing here.

use lasthop_tests_process::{binary, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// For everything that takes its time on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const PAGE: &str = "# Figures\n<!-- lasthop-bench: begin -->\nof the last run\n<!-- lasthop-bench: end -->\n";

/// Compares nobody with lasthop; what it needs for the time being lies in `dir/tmp`.
fn compare(dir: &Path, arguments: &[&str]) -> Child {
    fs::create_dir_all(dir.join("tmp")).unwrap();
    let mut command = Command::new(binary("lasthop-bench"));
    command.args(["compare", "--only", "lasthop", "--rounds", "1"]).args(arguments).env("TMPDIR", dir.join("tmp"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Why `only` is skipped in a scenario, with this search path.
fn skipped(dir: &Path, scenario: &str, only: &str, path: &str) -> String {
    let mut command = Command::new(binary("lasthop-bench"));
    command.args(["compare", "--quick", "--scenario", scenario, "--only", only]).env("PATH", path).env("TMPDIR", dir);
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    stdout.lines().find_map(|l| Some(l.strip_prefix("skipped")?.to_owned())).unwrap_or_else(|| panic!("{}", text(&out)))
}

fn text(out: &Output) -> String {
    format!("{}\n{}{}", out.status, String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Everything below a directory, with its content.
fn files(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path());
    let mut all: Vec<_> = entries
        .flat_map(|p| match p.is_dir() {
            true => files(&p),
            false => vec![(p.display().to_string(), fs::read_to_string(&p).unwrap())],
        })
        .collect();
    all.sort();
    all
}

/// Network namespaces that process `pid` has made.
fn namespaces(pid: u32) -> usize {
    let mark = format!("lasthop-{pid}-");
    let all = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.filter(|e| e.file_name().to_string_lossy().starts_with(&mark)).count()
}

/// Nothing that it started, made or needed for the time being is there any more.
fn assert_gone(dir: &Path, pid: u32, processes: &[u32]) {
    let left: Vec<u32> = processes.iter().copied().filter(|p| proc::alive(*p)).collect();
    assert!(left.is_empty(), "processes {left:?}");
    assert_eq!(namespaces(pid), 0, "network namespaces");
    let left: Vec<_> = fs::read_dir(dir.join("tmp")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_run_that_is_stopped_leaves_nothing_and_what_was_recorded_as_it_was() {
    let dir = scratch();
    let page = dir.path().join("page.md");
    fs::write(&page, PAGE).unwrap();
    fs::create_dir(dir.path().join("page")).unwrap();
    for file in ["compare.json", "outside-packet-64.svg"] {
        fs::write(dir.path().join("page").join(file), "of the last run").unwrap();
    }
    let recorded = || (fs::read_to_string(&page).unwrap(), files(&dir.path().join("page")));
    let before = recorded();
    // First one that ends by itself, then one with namespaces, an uplink and everything, that would go on for long.
    let words = ["--scenario", "setup-flows", "--scenario", "outside-packet-64", "--seconds", "40", "--record"];
    let run = compare(dir.path(), &[&words[..], &[page.to_str().unwrap()]].concat());
    let pid = run.id();
    wait_for("an uplink's process", LONG, || {
        let mut processes = proc::tree(pid).into_iter().flat_map(proc::children);
        namespaces(pid) == 2 && processes.any(|(_, name)| name == "lasthop-uplink")
    });
    // The generator, which never sleeps, plugs its guests in, warms up, and then it is measured.
    let before_it_plays = proc::cpu_ns(pid);
    wait_for("traffic", LONG, || proc::cpu_ns(pid) > before_it_plays + 1_000_000_000);
    let processes = proc::tree(pid);
    proc::signal(pid, Signal::INT);
    let out = run.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out));
    assert!(text(&out).contains("setup-flows: 4000 packets"), "what was measured is shown: {}", text(&out));
    assert!(processes.len() >= 5, "supervisor, switch, control and uplink were there: {processes:?}");
    assert_gone(dir.path(), pid, &processes);
    assert_eq!(recorded(), before);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "no new file beside the page: {names:?}");
}

#[test]
fn a_whole_run_is_recorded() {
    let dir = scratch();
    let page = dir.path().join("page.md");
    fs::write(&page, PAGE).unwrap();
    let words = ["--scenario", "flows-1", "--seconds", "1", "--record", page.to_str().unwrap()];
    let run = compare(dir.path(), &words);
    let pid = run.id();
    let out = run.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    assert_gone(dir.path(), pid, &[]);
    let json: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("page/compare.json")).unwrap()).unwrap();
    let scenario = &json["scenarios"][0];
    assert_eq!((&json["rounds"], &scenario["name"]), (&1.into(), &"flows-1".into()));
    let names: Vec<_> = scenario["figures"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["packets", "bytes", "switch busy", "switch CPU"]);
    let contenders = scenario["contenders"].as_array().unwrap();
    assert_eq!(contenders.len(), 1, "{json}");
    let rounds = contenders[0]["rounds"].as_array().unwrap();
    let figures = |list: &Value| list.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(rounds[0]["figures"].as_array().unwrap().len(), names.len());
    let best = figures(&contenders[0]["best"]);
    assert!(best.len() == names.len() && best.iter().all(|v| *v > 0.0), "{json}");
    // A frame has 64 bytes.
    assert!((best[1] / best[0] / 0.512 - 1.0).abs() < 1e-6, "{json}");
    let svg = fs::read_to_string(dir.path().join("page/flows-1.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("lasthop"), "{svg}");
    let tables = fs::read_to_string(&page).unwrap();
    assert!(tables.contains("### flows-1: ") && tables.contains("| lasthop |"), "{tables}");
    assert!(tables.contains("](page/flows-1.svg)") && !tables.contains("of the last run"), "{tables}");
}

/// Plays scenarios, `only` one contender, once; the best of its figures by the scenarios' names.
fn played(dir: &Path, only: &str, scenarios: &[&str]) -> Vec<(String, Vec<f64>)> {
    let out = dir.join("out");
    let mut command = Command::new(binary("lasthop-bench"));
    command.args(["compare", "--quick", "--only", only, "--out"]).arg(&out).env("TMPDIR", dir);
    let run = command.args(scenarios.iter().flat_map(|s| ["--scenario", s])).stdin(Stdio::null()).output().unwrap();
    assert!(run.status.success(), "{}", text(&run));
    let json: Value = serde_json::from_str(&fs::read_to_string(out.join("compare.json")).unwrap()).unwrap();
    let best = |s: &Value| {
        let contender = &s["contenders"][0];
        assert_eq!((&contender["name"], &contender["missing"]), (&only.into(), &Value::Null), "{s}");
        contender["best"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let all = json["scenarios"].as_array().unwrap();
    all.iter().map(|s| (s["name"].as_str().unwrap().to_owned(), best(s))).collect()
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn lists_connections_and_masks_are_played() {
    let dir = scratch();
    let scenarios = ["acl-971", "stateful-1-flows", "stateful-971", "new-connections-971", "masks-1", "masks-30"];
    let all = played(dir.path(), "lasthop", &scenarios);
    assert_eq!(all.len(), scenarios.len(), "{all:?}");
    // Rates, bytes, processor time; of new connections times of the first packet, too.
    for (name, best) in &all {
        let memory = name.starts_with("new-").then_some(2);
        let there = best.iter().enumerate().all(|(i, v)| *v > 0.0 || Some(i) == memory);
        assert!(there, "{name}: {best:?}");
    }
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn frames_go_round_through_a_bridge_and_a_list_costs_it_something() {
    let dir = scratch();
    let all = played(dir.path(), "bridge-nft", &["acl-1", "acl-971", "stateful-971"]);
    let rate = |name: &str| all.iter().find(|(n, _)| n == name).unwrap().1[0];
    assert!(rate("acl-971") < rate("acl-1") && rate("acl-971") < rate("stateful-971"), "{all:?}");
}

/// Behind rules, too: 692-byte frames, one way; the network outside, and back.
#[test]
fn a_device_and_a_bridge_behind_vhost_ports_take_part_in_the_papers_figures() {
    let dir = scratch();
    for (who, scenarios) in [
        ("lasthop-device", &["snich-650", "snich-rules-650"][..]),
        ("bridge-tap", &["snich-650", "snich-rules-650", "vifs-out-2"]),
    ] {
        let all = played(dir.path(), who, scenarios);
        assert_eq!(all.len(), scenarios.len(), "{all:?}");
        assert!(all.iter().all(|(_, best)| best.iter().all(|v| *v > 0.0)), "{who}: {all:?}");
        let frame = |best: &[f64]| best[1] * 1e3 / best[0] / 8.0;
        assert!((frame(&all[0].1) / 692.0 - 1.0).abs() < 1e-6, "{all:?}");
        let text = fs::read_to_string(dir.path().join("out/papers.md")).unwrap();
        assert!(text.contains("PhD figure 5.3") && text.contains("971 rules against none, packets"), "{text}");
        let drawn = fs::read_to_string(dir.path().join("out/snich-5.3.svg")).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("sNICh above Open vSwitch"), "{drawn}");
    }
}

/// Packets from the network come by queues of the guests' own, and the papers' figures are drawn of them. A round in which they do not is a failed one.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn guests_have_queues_of_their_own_and_their_figures_are_drawn() {
    let dir = scratch();
    let scenarios = ["vmdq-guests-2", "vmdq-size-64"];
    let all = played(dir.path(), "lasthop", &scenarios);
    assert_eq!(all.len(), scenarios.len(), "{all:?}");
    for (name, best) in &all {
        let [packets, _, cost, domain, own] = best[..] else { panic!("{name}: {best:?}") };
        assert!(packets > 0.0 && cost > domain && domain > 0.0 && own >= 90.0, "{name}: {best:?}");
    }
    let text = fs::read_to_string(dir.path().join("out/papers.md")).unwrap();
    assert!(text.contains("MS figure 3.4") && text.contains("MS figure 3.5"), "{text}");
    let drawn = fs::read_to_string(dir.path().join("out/queues-3.5.svg")).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("lasthop"), "{drawn}");
}

/// A promise is kept by lasthop, by classes of `tc` and by a policer of Open vSwitch's, where the uplink is full: that wants processors, and a
/// machine that has none to spare in three rounds shows that packets pass.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_guest_has_its_minimum_of_a_full_uplink_with_all_contenders() {
    let dir = scratch();
    for who in ["lasthop", "ovs-promised", "bridge-tc"] {
        let round = || played(dir.path(), who, &["minimum-frames"])[0].1.clone();
        let full = |figures: &Vec<f64>| figures[3] >= 95.0;
        let mut figures = round();
        for _ in 0..2 {
            figures = if full(&figures) { figures } else { round() };
        }
        let [promised, of_minimum, other, _, cpu] = figures[..] else { panic!("{who}: {figures:?}") };
        assert!([promised, other, cpu].iter().all(|v| *v > 0.0), "{who}: {figures:?}");
        // Of equal parts the promise would be 71 %.
        assert!(!full(&figures) || of_minimum >= 90.0, "{who}: {figures:?}");
    }
}

/// A kernel without classes.
#[test]
fn without_classes_their_contender_is_skipped() {
    let dir = scratch();
    let tc = dir.path().join("tc");
    fs::write(&tc, "#!/bin/sh\necho no htb here >&2; exit 2\n").unwrap();
    fs::set_permissions(&tc, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let why = skipped(dir.path(), "minimum-frames", "bridge-tc", &path);
    assert!(why.contains("sch_htb and cls_u32") && why.contains("no htb here"), "{why}");
}

#[test]
fn a_peer_that_is_not_there_is_named_and_skipped() {
    let dir = scratch();
    let empty = dir.path().display().to_string();
    let why = skipped(dir.path(), "size-64-split", "dpdk-vhost", &empty);
    assert!(why.contains("dpdk-testpmd is not installed; `make setup`"), "{why}");
    let why = skipped(dir.path(), "outside-packet-64", "lasthop", &empty);
    assert!(why.contains("ip is not installed"), "{why}");
    // A machine with everything but TAP devices.
    let broken = dir.path().join("ip");
    fs::write(&broken, "#!/bin/sh\ncase $1 in tuntap) echo no such thing >&2; exit 1;; esac\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/bin/true", dir.path().join("qemu-system-x86_64")).unwrap();
    let path = format!("{empty}:{}", std::env::var("PATH").unwrap());
    let why = skipped(dir.path(), "vms", "linux-bridge", &path);
    assert!(why.contains("a TAP device") && why.contains("no such thing"), "{why}");
}
