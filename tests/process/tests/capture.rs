//! Mirrors to a file, and `lasthop capture`: packets in, packets in the file.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, binary, mac, numbered, scratch, wait_for};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

struct Site {
    lasthop: Lasthop,
    a: Guest,
    b: Guest,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = scratch();
        let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
        let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), Options::default());
        let (mut a, mut b) = (guest("a.sock", 1), guest("b.sock", 2));
        ["a", "b"].into_iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        a.greet(&mut b, 1);
        Self { lasthop, a, b, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A frame to the second guest and one back.
    fn exchange(&mut self, number: u32, len: usize) -> [Vec<u8>; 2] {
        let frames = [numbered(mac(1), mac(2), number, len), numbered(mac(2), mac(1), number + 1, len)];
        self.a.send(&frames[0]);
        self.b.expect(&frames[0]);
        self.b.send(&frames[1]);
        self.a.expect(&frames[1]);
        frames
    }
}

/// Frames of a capture, each with its time in nanoseconds. What is only half there yet is left out.
fn captured(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
    assert!(bytes.is_empty() || word(0) == Some(0xa1b2_3c4d), "no capture with nanoseconds");
    let (mut frames, mut at) = (Vec::new(), 24);
    while let (Some(s), Some(ns), Some(len), Some(all)) = (word(at), word(at + 4), word(at + 8), word(at + 12))
        && let Some(frame) = bytes.get(at + 16..at + 16 + len as usize)
    {
        assert!(ns < 1_000_000_000 && len == all);
        frames.push((u64::from(s) * 1_000_000_000 + u64::from(ns), frame.to_vec()));
        at += 16 + len as usize;
    }
    frames
}

fn file(path: impl AsRef<Path>) -> Vec<Vec<u8>> {
    captured(&std::fs::read(path).unwrap_or_default()).into_iter().map(|(_, frame)| frame).collect()
}

fn wait_for_frames(path: &str, frames: &[Vec<u8>]) {
    wait_for("all frames to be in the file", PATIENCE, || frames.iter().all(|f| file(path).contains(f)));
}

fn error(lasthop: &Lasthop, words: &[&str]) -> String {
    let output = lasthop.try_command(words);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_mirrored_to_a_file_is_there_in_order_with_its_time() {
    let mut site = Site::new();
    let path = site.path("a.pcap");
    let before = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let said = site.lasthop.command(&["mirror", "add", "log", "--from", "a", "--to", &path]);
    assert_eq!(said, "mirror log: added\n");
    // What comes before the file's port is up is dropped, and counted there.
    site.lasthop.wait_for_state("log", "up");
    let sent: Vec<_> = (0..20).flat_map(|n| site.exchange(10 + 2 * n, 60 + 70 * n as usize)).collect();
    wait_for_frames(&path, &sent);
    assert_eq!(file(&path), sent, "in order, and nothing else");
    let times: Vec<_> = captured(&std::fs::read(&path).unwrap()).into_iter().map(|(time, _)| time).collect();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    assert!(times.is_sorted() && times.iter().all(|time| (before..=now).contains(time)), "{times:?}");
    let list = site.lasthop.command(&["mirror", "list"]);
    assert!(list.contains(&format!("log: 40 packets in {path}\n")), "{list}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Its process dies: what was captured is the older file, and it goes on.
    let writer = site.lasthop.child("lasthop-uplink");
    site.lasthop.kill("lasthop-uplink");
    assert_ne!(writer, site.lasthop.child("lasthop-uplink"));
    site.lasthop.wait_for_state("log", "up");
    assert_eq!(file(format!("{path}.1")), sent);
    let more = site.exchange(100, 60);
    wait_for_frames(&path, &more);
    assert_eq!(site.lasthop.command(&["mirror", "del", "log"]), "mirror log: removed\n");
    let ports = site.lasthop.command(&["port", "list"]);
    assert!(!ports.contains("log"), "the file's port goes with it\n{ports}");
    site.exchange(200, 60);
    assert_eq!(file(&path), more);
    site.lasthop.check_sums();
}

#[test]
fn a_file_that_is_full_goes_on_in_another_and_then_in_the_first() {
    let mut site = Site::new();
    let path = site.path("a.pcap");
    site.lasthop.command(&["mirror", "add", "log", "--from", "a", "--to", &path, "--max-size", "64K"]);
    site.lasthop.wait_for_state("log", "up");
    let (mut number, mut last) = (10, Vec::new());
    let both = |path: &str| [file(path), file(format!("{path}.1"))].concat();
    // 200 frames of 1000 bytes are more than three files.
    for _ in 0..100 {
        number += 2;
        last.extend(site.exchange(number, 1000));
    }
    wait_for("the last frame", PATIENCE, || both(&path).contains(last.last().unwrap()));
    for name in [path.clone(), format!("{path}.1")] {
        let len = std::fs::metadata(&name).unwrap().len();
        assert!((24..=64 << 10).contains(&len), "{name}: {len}");
    }
    let there = both(&path);
    let newest = &last[last.len() - 60..];
    assert!(newest.iter().all(|frame| there.contains(frame)), "at least the last full file is there");
    assert!(!there.contains(&last[0]), "the first have gone");
    // Remembered, and begun anew by another lasthop.
    let Site { mut lasthop, a, b, dir } = site;
    drop((a, b));
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    lasthop = lasthop.start_again(None, &ports, &[], || {});
    lasthop.wait_for_state("log", "up");
    assert!(lasthop.json(&["mirror", "list"])["mirrors"][0]["to"] == "log");
}

#[test]
fn capture_writes_to_a_file_or_to_standard_output_until_it_is_told_to_end() {
    let mut site = Site::new();
    let run_dir = site.lasthop.run_dir();
    let start = |words: &[&str]| {
        let mut command = Command::new(binary("lasthop"));
        command.args(["capture", "a"]).args(words).arg("--run-dir").arg(&run_dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let path = site.path("c.pcap");
    for (words, to_file) in [(&["-w", &path][..], true), (&["--direction", "from-guest"], false)] {
        let mut child = start(words);
        wait_for("the mirror", PATIENCE, || site.lasthop.command(&["mirror", "list"]).contains("capture-"));
        let sent: Vec<_> = (0..10).flat_map(|n| site.exchange(10 + 2 * n, 1400)).collect();
        let wanted: Vec<_> = sent.into_iter().filter(|f| to_file || f[6..12] == mac(1).0).collect();
        nix_interrupt(child.id());
        let (mut out, mut said) = (Vec::new(), String::new());
        child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        assert_eq!(said, format!("{} packets captured\n", wanted.len()));
        let got = if to_file { file(&path) } else { captured(&out).into_iter().map(|(_, f)| f).collect() };
        assert_eq!(got, wanted);
        let left = site.lasthop.command(&["port", "list"]) + &site.lasthop.command(&["mirror", "list"]);
        assert!(!left.contains("capture-"), "{left}");
    }
    // Whoever reads it has had enough.
    let mut child = start(&[]);
    wait_for("the mirror", PATIENCE, || site.lasthop.command(&["mirror", "list"]).contains("capture-"));
    drop(child.stdout.take());
    site.exchange(100, 60);
    assert!(child.wait().unwrap().success());
    assert!(!site.lasthop.command(&["mirror", "list"]).contains("capture-"));
    site.lasthop.check_sums();
}

fn nix_interrupt(pid: u32) {
    lasthop_tests_process::proc::signal(pid, rustix::process::Signal::INT);
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let site = Site::new();
    let there = site.path("there");
    std::fs::write(&there, "something else").unwrap();
    let link = site.path("link");
    std::os::unix::fs::symlink(&there, &link).unwrap();
    let dir = site.dir.path().to_str().unwrap();
    for (to, wrong) in [
        (there.as_str(), "is there, and no capture of lasthop's; move it away, or name another file"),
        (&link, "is a symbolic link; name the file itself"),
        ("/nowhere/at/all.pcap", "make the directory, or name another"),
        (dir, "irectory"),
        ("/dev/null", "is neither a file nor a named pipe"),
    ] {
        let said = error(&site.lasthop, &["mirror", "add", "log", "--from", "a", "--to", to]);
        assert!(said.contains(wrong), "{to}: {said}");
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "something else");
    let (ok, none) = (site.path("ok.pcap"), site.path("none.pcap"));
    for (words, wrong) in [
        (&["mirror", "add", "m", "--from", "a", "--to", &ok, "--max-size", "3"][..], "64K at least"),
        (&["mirror", "add", "m", "--from", "a", "--to", "b", "--max-size", "1M"], "--max-size is for a file"),
        (&["mirror", "add", "a", "--from", "b", "--to", &ok], "there is a port a already"),
        (&["mirror", "add", "m", "--from", "a", "--to", &ok, "--direction", "in"], "use from-guest, to-guest or both"),
        (&["capture", "c", "-w", &none], "there is no port c; `lasthop port list`"),
        (&["capture", "a", "-w", &there], "no capture of lasthop's"),
        (&["capture", "a", "--max-size", "1M"], "name one with -w FILE"),
        (&["uplink", "add", "net", &ok, "--driver", "file"], "is a file, and no network"),
        (&["port", "add", "f", "--device", "x.pcap", "--driver", "file"], "write a path from / on"),
        (&["port", "add", "f", "--device", &ok], "of a capture file say driver file"),
        (&["port", "add", "f", "--device", &ok, "--driver", "file:1"], "there is no driver"),
        (&["port", "add", "f", "--device", &ok, "--driver", "file", "--queues", "2"], "it has one queue"),
    ] {
        let said = error(&site.lasthop, words);
        assert!(said.contains(wrong), "{words:?}: {said}");
    }
    let left = site.lasthop.json(&["port", "list"])["ports"].as_array().map(Vec::len);
    assert_eq!(left, Some(2), "nothing is left behind");
    assert!(!Path::new(&none).exists(), "an empty file, which the next capture would go around");
}

/// The file's disk takes nothing: packets are dropped there and counted, and their receivers do not notice.
#[test]
fn a_full_disk_costs_packets_nothing() {
    let mut site = Site::new();
    let small = site.path("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none", &small]).status();
    assert!(mounted.unwrap().success(), "root may mount a tmpfs");
    let unmount = Unmount(small.clone());
    let path = format!("{small}/a.pcap");
    site.lasthop.command(&["mirror", "add", "log", "--from", "a", "--to", &path]);
    site.lasthop.wait_for_state("log", "up");
    for n in 0..100 {
        site.exchange(10 + 2 * n, 1400);
    }
    let list = || site.lasthop.command(&["mirror", "list"]);
    wait_for("drops for want of room", PATIENCE, || list().contains("dropped there (no_room)"));
    assert!(file(&path).len() > 10, "what was written can be read");
    site.lasthop.command(&["mirror", "del", "log"]);
    site.lasthop.check_sums();
    drop(unmount);
}

struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
