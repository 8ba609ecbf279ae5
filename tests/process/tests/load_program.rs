//! `lasthop-loadgen` as people run it, against a real lasthop: what it prints, what it exits with, and that every way of
//! playing guests that the other tests leave out comes to a whole result.

use lasthop_sys::CpuList;
use lasthop_tests_process::{Lasthop, Port, binary, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A sender waits for what is on its way, so that any machine keeps up.
const MODEST: [&str; 10] =
    ["--window", "16", "--notify", "sleep", "--ring", "256", "--huge", "no", "--check", "content"];

/// A lasthop that listens on so many sockets, and their names for the generator.
fn lasthop(ports: usize, dir: &Path) -> (Lasthop, Vec<String>) {
    let ports: Vec<Port> = (0..ports).map(|i| Port::listen(&format!("p{i}"), dir)).collect();
    let sockets = ports.iter().map(|p| format!("{},client", p.socket.display())).collect();
    (Lasthop::start(&ports), sockets)
}

fn start(sockets: &[String], arguments: &[&[&str]]) -> Child {
    let mut command = Command::new(binary("lasthop-loadgen"));
    command.args(sockets).args(arguments.concat()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn text(out: &Output) -> String {
    format!("{}\n{}{}", out.status, String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Its JSON document, in which the sums are right.
fn document(out: &Output) -> Value {
    let json: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(out)));
    let of = |name: &str| json[name].as_f64().unwrap_or_else(|| panic!("no {name}: {json}"));
    assert!(of("received") > 0.0, "{json}");
    assert!((of("received") / of("seconds") / 1e6 / of("mpps") - 1.0).abs() < 1e-9, "{json}");
    json
}

/// Runs it to the end: with `--strict`, nothing may be wrong.
fn play(sockets: &[String], arguments: &[&[&str]]) -> Value {
    let out = start(sockets, &[arguments, &[&["--json", "--strict"]]].concat()).wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let json = document(&out);
    for wrong in ["lost", "reordered", "doubled", "damaged", "stray"] {
        assert_eq!(json[wrong], 0, "{json}");
    }
    json
}

/// Bytes of a received frame, on average.
fn frame_len(json: &Value) -> f64 {
    json["gbit_per_second"].as_f64().unwrap() * 1e3 / 8.0 / json["mpps"].as_f64().unwrap()
}

#[test]
fn json_parses_and_adds_up() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(2, dir.path());
    let json = play(&sockets, &[&MODEST, &["--packets", "300", "--size", "200", "--latency", "--warmup", "0"]]);
    assert_eq!((&json["sent"], &json["received"]), (&600.into(), &600.into()), "two senders: {json}");
    assert!((frame_len(&json) - 200.0).abs() < 1e-6, "{json}");
    let times = ["min", "p50", "p99", "p999", "max"].map(|name| json["latency"][name].as_f64().unwrap());
    assert!(times[0] > 0.0 && times.is_sorted(), "{json}");
    assert_eq!(json["latency"]["packets"], 600);
    assert!(json["switch_ns_per_packet"].is_null() && json["switch_cpu_percent"].is_null(), "nobody asked: {json}");
}

#[test]
fn text_says_the_same() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(2, dir.path());
    let arguments: [&[&str]; 2] = [&MODEST, &["--packets", "100", "--warmup", "0"]];
    let out = start(&sockets, &arguments).wait_with_output().unwrap();
    let said = text(&out);
    assert!(out.status.success() && said.contains(": 200 frames in "), "{said}");
    assert!(said.contains("0 lost, 0 reordered, 0 doubled, 0 damaged, 0 stray"), "{said}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let dir = scratch();
    let socket = |name: &str| format!("{},client", dir.path().join(name).display());
    let sockets = [socket("a"), socket("b")];
    let refused = |arguments: &[&str], why: &str| {
        let out = start(&sockets, &[arguments]).wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {}", text(&out));
        assert!(String::from_utf8_lossy(&out.stderr).contains(why), "{arguments:?}: {}", text(&out));
        assert!(out.stdout.is_empty(), "{arguments:?}: {}", text(&out));
    };
    refused(&["--pattern", "ping-pong", "--rate", "5"], "ping-pong has its own pace");
    refused(&["--size", "63"], "64 to");
    refused(&["--guest", "2:size=64"], "ports are numbered from 0 to 1");
    refused(&["--guest", "0:speed=1"], "size=, rate=");
    refused(&["--tame"], "--turn");
    refused(&["--pid", "4194304"], "there is no process 4194304");
    refused(&["--patience", "0.1"], &dir.path().join("a").display().to_string());
}

#[test]
fn a_signal_stops_it() {
    let dir = scratch();
    let (lasthop, sockets) = lasthop(2, dir.path());
    let generator = start(&sockets, &[&MODEST, &["--seconds", "60"]]);
    lasthop.wait_for_state("p1", "up");
    proc::signal(generator.id(), Signal::INT);
    let out = generator.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out));
    assert!(out.stdout.is_empty() && text(&out).contains("stopped"), "{}", text(&out));
}

/// What is counted from outside is of a longer time: it begins before the traffic and ends after it.
#[test]
fn processor_time_of_the_switch_is_what_the_kernel_says() {
    let dir = scratch();
    let (lasthop, sockets) = lasthop(2, dir.path());
    let pid = lasthop.pid().to_string();
    let before = lasthop.cpu_ns();
    let json = play(&sockets, &[&["--window", "64", "--seconds", "1", "--warmup", "0", "--pid", &pid]]);
    let outside = (lasthop.cpu_ns() - before) as f64;
    let of = |name: &str| json[name].as_f64().unwrap();
    let spent = of("switch_cpu_percent") / 100.0 * of("seconds") * 1e9;
    assert!(spent > 0.4 * outside && spent <= outside, "{spent} of {outside}: {json}");
    assert!((of("switch_ns_per_packet") * of("received") / spent - 1.0).abs() < 1e-6, "{json}");
}

#[test]
fn each_pair_has_a_thread_on_a_cpu_of_its_own() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(4, dir.path());
    let cpus: Vec<String> = CpuList::allowed().unwrap().iter().take(2).map(|c| c.to_string()).collect();
    let list = cpus.join(",");
    let generator = start(&sockets, &[&MODEST, &["--cpus", &list, "--seconds", "1", "--json", "--strict"]]);
    let allowed = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        Some(status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
    };
    wait_for("a thread on each CPU", Duration::from_secs(20), || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", generator.id())).into_iter().flatten().flatten();
        let bound: BTreeSet<String> = tasks.filter_map(allowed).collect();
        cpus.iter().all(|cpu| bound.contains(cpu))
    });
    let out = generator.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(document(&out)["lost"], 0);
}

#[test]
fn imix_is_seven_to_four_to_one() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(2, dir.path());
    let json = play(&sockets, &[&MODEST, &["--size", "imix", "--packets", "240", "--warmup", "0"]]);
    assert!((frame_len(&json) - 361.5).abs() < 1e-6, "{json}");
}

/// As fast as they go: a receiver may be too slow then, but nothing else may happen to a packet.
#[test]
fn flat_out_without_a_window() {
    let dir = scratch();
    let (lasthop, sockets) = lasthop(2, dir.path());
    let out = start(&sockets, &[&["--seconds", "0.5", "--warmup", "0.1", "--json"]]).wait_with_output().unwrap();
    assert!(out.status.success(), "without --strict a loss is no failure: {}", text(&out));
    let json = document(&out);
    for wrong in ["reordered", "doubled", "damaged", "stray"] {
        assert_eq!(json[wrong], 0, "{json}");
    }
    lasthop.check_sums();
    let dropped = lasthop.json(&["stats"])["sum"]["dropped"].as_u64().unwrap();
    assert!(
        json["lost"].as_u64().unwrap() <= dropped,
        "all that is lost was dropped by the switch, which says so: {json}"
    );
}

#[test]
fn more_than_ten_thousand_flows_are_all_checked() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(2, dir.path());
    let many = ["--flows", "20000", "--flow-order", "round", "--packets", "40000", "--pattern", "one-way"];
    let json = play(&sockets, &[&["--window", "64", "--warmup", "0", "--seconds", "60"], &many]);
    assert_eq!(json["received"], 40_000);
}

#[test]
fn rings_in_order_and_not() {
    const IN_ORDER: u64 = 1 << 35;
    let dir = scratch();
    let (lasthop, sockets) = lasthop(2, dir.path());
    for layout in [&[][..], &["--packed"]] {
        for (option, expected) in [(&[][..], IN_ORDER), (&["--no-in-order"], 0)] {
            let arguments = [&MODEST, layout, option, &["--seconds", "1", "--json", "--strict"]];
            let generator = start(&sockets, &arguments);
            lasthop.wait_for_state("p1", "up");
            let features = lasthop.port("p1")["features"].as_str().unwrap().to_owned();
            let features = u64::from_str_radix(features.trim_start_matches("0x"), 16).unwrap();
            let out = generator.wait_with_output().unwrap();
            assert!(out.status.success(), "{layout:?} {option:?}: {}", text(&out));
            assert_eq!(features & IN_ORDER, expected, "{layout:?} {option:?}");
            assert_eq!(document(&out)["lost"], 0);
            lasthop.wait_for_state("p1", "waiting");
        }
    }
}

/// A greedy guest with long frames, one with short ones and a paced one: each has its own lengths, rate and times.
#[test]
fn ports_have_loads_of_their_own() {
    let dir = scratch();
    let (_lasthop, sockets) = lasthop(6, dir.path());
    let common = ["--pattern", "one-way", "--ring", "256", "--huge", "no", "--check", "content", "--turn", "20"];
    let loads =
        ["--guest", "0:size=1514,window=16,flows=5", "--guest", "2:window=16", "--guest", "4:size=100+200,rate=400"];
    let time = ["--warmup", "0.1", "--seconds", "0.5"];
    let of =
        |json: &Value, port: usize, name: &str| json["ports"][port][name].as_u64().unwrap_or_else(|| panic!("{json}"));

    let json = play(&sockets, &[&common, &loads, &time]);
    assert_eq!(json["ports"].as_array().map(Vec::len), Some(6), "{json}");
    for (port, len) in [(0, 1514), (2, 64)] {
        let (sent, delivered) = (of(&json, port, "sent"), of(&json, port, "delivered"));
        assert!(delivered > 400, "as many as go: {json}");
        assert_eq!(
            (of(&json, port, "sent_bytes"), of(&json, port, "delivered_bytes")),
            (sent * len, delivered * len),
            "{json}"
        );
        assert!(json["ports"][port]["backlog_percent"].is_number(), "{json}");
    }
    let paced = of(&json, 4, "sent");
    // 400 a second for half a second, or as long as that took.
    let most = 400.0 * json["seconds"].as_f64().unwrap() + 2.0;
    assert!(paced >= 150 && paced as f64 <= most, "{json}");
    assert!(of(&json, 4, "sent_bytes").abs_diff(paced * 150) <= 50, "one of 100 bytes, one of 200: {json}");
    assert!(json["ports"][4]["backlog_percent"].is_null(), "{json}");
    for port in [0, 2, 4] {
        assert_eq!(of(&json, port, "delivered"), of(&json, port + 1, "received"), "{json}");
        assert_eq!(of(&json, port + 1, "sent"), 0, "{json}");
        let times = ["min", "p50", "p99", "max"].map(|name| json["ports"][port]["latency"][name].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{json}");
        assert!(json["ports"][port + 1]["latency"].is_null(), "{json}");
    }
    let timed: u64 = [0, 2, 4].iter().map(|p| json["ports"][*p]["latency"]["packets"].as_u64().unwrap()).sum();
    assert_eq!(json["latency"]["packets"], timed, "all times are somebody's: {json}");

    let json = play(&sockets, &[&common, &loads, &time, &["--tame"]]);
    assert_eq!((of(&json, 0, "sent"), of(&json, 2, "sent")), (0, 0), "{json}");
    assert!(of(&json, 4, "delivered") >= 150, "{json}");

    let storm = ["--guest", "0:kicks,rate=0", "--guest", "4:rate=400"];
    let json = play(&sockets, &[&common, &storm, &time]);
    assert_eq!(of(&json, 0, "sent"), 0, "{json}");
    assert!(of(&json, 0, "kicks") > 1000 && of(&json, 0, "kicks") > of(&json, 4, "kicks"), "{json}");
    assert!(of(&json, 4, "delivered") >= 150, "{json}");
}
