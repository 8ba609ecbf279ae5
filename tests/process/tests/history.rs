//! `lasthop history`: what ports did, minute by minute, though nobody looked, whatever is killed, and whatever becomes of the file.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, binary, mac, numbered, scratch, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// `lasthop history record`, until it goes out of scope.
struct Recorder {
    child: Child,
    /// What it says before it is ready.
    said: Vec<String>,
    stderr: BufReader<ChildStderr>,
}

impl Recorder {
    fn start(lasthop: &Lasthop, file: &Path) -> Self {
        let mut command = Command::new(binary("lasthop"));
        command.args(["history", "record", "--interval", "1", "--file"]).arg(file);
        let mut child = command.arg("--run-dir").arg(lasthop.run_dir()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut recorder = Self { child, said: Vec::new(), stderr };
        loop {
            let mut line = String::new();
            assert_ne!(recorder.stderr.read_line(&mut line).unwrap(), 0, "{:?}", recorder.said);
            if line.starts_with("ready: ") {
                return recorder;
            }
            recorder.said.push(line);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // As a machine that stops would end it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn show(file: &Path, words: &[&str]) -> std::process::Output {
    Command::new(binary("lasthop")).args(["history", "show", "--file"]).arg(file).args(words).output().unwrap()
}

/// Of a port: what of it is recorded in all.
fn sums(file: &Path, port: &str) -> [u64; 6] {
    let out = show(file, &["--since", "2h", "--step", "1440", "--json"]);
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let ports = shown["ports"].as_array().cloned().unwrap_or_default();
    let of = ports.iter().find(|one| one["name"] == port).map(|one| one["periods"].as_array().cloned().unwrap());
    let sum = |path: &str| of.iter().flatten().filter_map(|period| period.pointer(path)?.as_u64()).sum();
    ["/looks", "/up", "/from_guest/packets", "/from_guest/bytes", "/to_guest/packets", "/dropped"].map(sum)
}

#[test]
fn what_ports_carried_and_dropped_is_there_when_somebody_asks() {
    let dir = scratch();
    let file: PathBuf = dir.path().join("history");
    let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
    let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), Options::default());
    let (mut a, mut b) = (guest("a.sock", 1), guest("b.sock", 2));
    ["a", "b"].into_iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    a.greet(&mut b, 1);
    let recorder = Recorder::start(&lasthop, &file);
    assert!(recorder.said.is_empty(), "{:?}", recorder.said);
    wait_for("a first look", PATIENCE, || sums(&file, "a")[1] > 0);
    let before = lasthop.port("a");
    let pass = |a: &mut Guest, b: &mut Guest, numbers: std::ops::Range<u32>| {
        for n in numbers {
            let frame = numbered(mac(1), mac(2), n, 200);
            a.send(&frame);
            b.expect(&frame);
        }
    };
    pass(&mut a, &mut b, 100..150);
    let counted = |what: &str| {
        let of = |port: &Value| port["from_guest"][what].as_u64().unwrap();
        of(&lasthop.port("a")) - of(&before)
    };
    assert_eq!(counted("packets"), 50);
    let is_recorded = || sums(&file, "a")[2..4] == [counted("packets"), counted("bytes")];
    wait_for("what a has sent", PATIENCE, is_recorded);
    assert_eq!([sums(&file, "b")[4], sums(&file, "a")[5]], [50, 0]);
    // One guest goes, and what is for it is dropped.
    drop(b);
    lasthop.wait_for_state("b", "waiting");
    let looks = sums(&file, "b");
    wait_for("b to be down", PATIENCE, || sums(&file, "b")[0] > looks[0] + 1);
    let [looks, up, ..] = sums(&file, "b");
    assert!(0 < up && up < looks, "{up} of {looks}");
    for n in 0..5 {
        a.send(&numbered(mac(1), mac(2), 200 + n, 200));
    }
    wait_for("drops", PATIENCE, || sums(&file, "b")[5] == 5);
    let text = String::from_utf8(show(&file, &["b", "--since", "2h"]).stdout).unwrap();
    assert!(text.contains("up ") && text.contains("port_down"), "{text}");
    // Whoever recorded is killed, and another goes on in the same file.
    drop(recorder);
    let looks = sums(&file, "a")[0];
    let recorder = Recorder::start(&lasthop, &file);
    wait_for("another look", PATIENCE, || sums(&file, "a")[0] > looks);
    assert_eq!(sums(&file, "a")[2], 55);
    drop(recorder);
    // A file that is no history is put aside.
    std::fs::write(&file, "what is this").unwrap();
    let out = show(&file, &[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("it is too short"), "{said}");
    let recorder = Recorder::start(&lasthop, &file);
    let aside = recorder.said.concat();
    assert!(aside.contains("it is too short; it is ") && aside.contains(".damaged-"), "{aside}");
    wait_for("a new file", PATIENCE, || sums(&file, "a")[0] > 0);
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("history.damaged-")), "{names:?}");
}
