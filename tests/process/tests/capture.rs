//! Mirrors to a file, and `lasthop capture`: packets in, packets in the file.

use lasthop_frame::{VnetHdr, testutil::Frame};
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, binary, mac, numbered, scratch, wait_for};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionOption, InterfaceTsResolution};
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Site {
    lasthop: Lasthop,
    a: Guest,
    b: Guest,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let dir = scratch();
        let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
        let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), options);
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

/// A packet of pcapng: its port, which way it went, what is said of it, its bytes and how long it was.
#[derive(Debug, PartialEq)]
struct Written {
    port: String,
    to_guest: bool,
    comment: Option<String>,
    data: Vec<u8>,
    len: u32,
}

/// Packets of pcapng, and of each port: how many came, were lost and were wanted.
fn pcapng(bytes: &[u8]) -> (Vec<Written>, Vec<[u64; 3]>) {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let (mut names, mut packets, mut statistics) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        let (block, _) = block.unwrap();
        match block {
            Block::InterfaceDescription(of) => {
                assert_eq!(of.ts_resolution(), InterfaceTsResolution::NANO);
                let name = |option: &InterfaceDescriptionOption<'_>| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                };
                names.push(of.options.iter().find_map(name).unwrap());
            }
            Block::EnhancedPacket(of) => {
                let (mut flags, mut comment) = (0, None);
                for option in &of.options {
                    match option {
                        EnhancedPacketOption::Flags(set) => flags = *set,
                        EnhancedPacketOption::Common(CommonOption::Comment(text)) => comment = Some(text.to_string()),
                        other => panic!("{other:?}"),
                    }
                }
                assert!([1, 2].contains(&flags));
                let (port, to_guest) = (names[of.interface_id as usize].clone(), flags == 2);
                let age = std::time::UNIX_EPOCH.elapsed().unwrap() - of.timestamp;
                assert!(age.as_secs() < 600, "{age:?}");
                packets.push(Written { port, to_guest, comment, data: of.data.to_vec(), len: of.original_len });
            }
            Block::InterfaceStatistics(of) => {
                let number = |wanted: fn(&InterfaceStatisticsOption<'_>) -> Option<u64>| {
                    of.options.iter().find_map(wanted).unwrap()
                };
                statistics.push([
                    number(|o| if let InterfaceStatisticsOption::IsbIfRecv(n) = o { Some(*n) } else { None }),
                    number(|o| if let InterfaceStatisticsOption::IsbIfDrop(n) = o { Some(*n) } else { None }),
                    number(|o| if let InterfaceStatisticsOption::IsbFilterAccept(n) = o { Some(*n) } else { None }),
                ]);
            }
            _ => {}
        }
    }
    (packets, statistics)
}

/// A capture that runs, and the directory of its pipe.
struct Capture {
    child: Child,
    temporary: tempfile::TempDir,
}

impl Capture {
    fn start(site: &Site, words: &[&str]) -> Self {
        let temporary = scratch();
        let mut command = Command::new(binary("lasthop"));
        command.arg("capture").args(words).arg("--run-dir").arg(site.lasthop.run_dir()).env("TMPDIR", temporary.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, temporary }
    }

    /// Until packets are captured to that file.
    fn wait_for_file(&self, path: &str) {
        wait_for("the file's header", PATIENCE, || std::fs::metadata(path).is_ok_and(|file| file.len() > 28));
    }

    /// What it wrote to standard output and what it said. Nothing is left of it.
    fn end(mut self, site: &Site) -> (Vec<u8>, String) {
        let (mut out, mut said) = (Vec::new(), String::new());
        self.child.stdout.take().into_iter().for_each(|mut stdout| {
            stdout.read_to_end(&mut out).unwrap();
        });
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        let left = site.lasthop.command(&["port", "list"]) + &site.lasthop.command(&["mirror", "list"]);
        assert!(!left.contains("capture-"), "{left}");
        let left: Vec<_> = std::fs::read_dir(self.temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        (out, said)
    }

    fn interrupt(self, site: &Site) -> (Vec<u8>, String) {
        nix_interrupt(self.child.id());
        self.end(site)
    }
}

#[test]
fn capture_says_whose_packet_it_is_which_way_it_went_and_why_it_was_dropped() {
    let mut site = Site::new();
    let path = site.path("c.pcapng");
    // A capture that is there stays, and is the second file.
    std::fs::write(&path, [0x0a, 0x0d, 0x0d, 0x0a, 9]).unwrap();
    site.lasthop.command(&["port", "set", "a", "--mac", &mac(1).to_string()]);
    let capture = Capture::start(&site, &["b,a", "-w", &path]);
    capture.wait_for_file(&path);
    let [there, back] = site.exchange(10, 1400);
    let denied = numbered(mac(3), mac(2), 12, 60);
    site.a.send(&denied);
    site.exchange(20, 60);
    let (_, said) = capture.interrupt(&site);
    assert_eq!(said, "5 packets captured\n");
    let (packets, statistics) = pcapng(&std::fs::read(&path).unwrap());
    let of = |port: &str, data: &[u8]| Written {
        port: port.into(),
        to_guest: false,
        comment: None,
        data: data.to_vec(),
        len: data.len() as u32,
    };
    assert_eq!(packets[..2], [of("a", &there), of("b", &back)], "once, as it was sent");
    // It waited for control's answer, and those behind it did not.
    let refused = packets.iter().find(|packet| packet.data == denied).unwrap();
    assert_eq!((&refused.port[..], refused.to_guest), ("a", false));
    let why = refused.comment.as_deref().unwrap();
    assert!(why.starts_with("dropped (spoofed): The packet pretended to come from an address"), "{why}");
    assert_eq!(statistics, [[2, 0, 2], [3, 0, 3]]);
    assert_eq!(std::fs::read(format!("{path}.1")).unwrap(), [0x0a, 0x0d, 0x0d, 0x0a, 9]);
    // tcpdump reads it, too.
    let output = Command::new("tcpdump").args(["-n", "-e", "-r", &path]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().filter(|line| !line.starts_with('\t')).count(), 5, "{text}");
    site.lasthop.check_sums();
}

#[test]
fn capture_to_standard_output_begins_at_once_and_ends_when_nobody_reads_or_enough_is_there() {
    let mut site = Site::new();
    // What one port's guest gets.
    let mut capture = Capture::start(&site, &["b", "--direction", "to-guest", "-s", "100"]);
    let mut begin = [0; 28];
    capture.child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    let sent: Vec<_> = (0..10).map(|n| site.exchange(10 + 2 * n, 1400)[0].clone()).collect();
    let (out, said) = capture.interrupt(&site);
    assert_eq!(said, "10 packets captured\n");
    let (packets, _) = pcapng(&[&begin[..], &out].concat());
    let got: Vec<_> =
        packets.iter().map(|packet| (&packet.port[..], packet.to_guest, &packet.data[..], packet.len)).collect();
    let wanted: Vec<_> = sent.iter().map(|frame| ("b", true, &frame[..100], 1400)).collect();
    assert_eq!(got, wanted);
    // So many, and no more, of those that the filter wants.
    let mut capture = Capture::start(&site, &["any", "ether", "src", &mac(2).to_string(), "-c", "3"]);
    capture.child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    let sent: Vec<_> = (0..5).map(|n| site.exchange(100 + 2 * n, 60)[1].clone()).collect();
    let (out, said) = capture.end(&site);
    assert!(said.starts_with("3 packets captured, 3 not wanted by the filter"), "{said}");
    let (packets, statistics) = pcapng(&[&begin[..], &out].concat());
    let got: Vec<_> = packets.into_iter().map(|packet| packet.data).collect();
    assert_eq!((got, statistics.len()), (sent[..3].to_vec(), 2));
    // Whoever reads it has had enough.
    let mut capture = Capture::start(&site, &["a"]);
    capture.child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    drop(capture.child.stdout.take());
    site.exchange(200, 60);
    capture.end(&site);
    site.lasthop.check_sums();
}

/// What a command has said and whether it ended well.
fn ended(mut child: Child) -> (bool, String) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().success(), said)
}

fn left(lasthop: &Lasthop) -> String {
    let all = lasthop.command(&["port", "list"]) + &lasthop.command(&["mirror", "list"]);
    all.lines().filter(|line| line.contains("capture-")).map(|line| format!("{line}\n")).collect()
}

fn pipes(dir: &Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("capture-"))).collect()
}

/// It ends with its lasthop: nothing of it is in the next one, and the command says so.
#[test]
fn a_capture_is_not_remembered_and_ends_with_its_lasthop() {
    let mut site = Site::new();
    let path = site.path("c.pcapng");
    let capture = Capture::start(&site, &["a", "-w", &path]);
    capture.wait_for_file(&path);
    site.exchange(10, 60);
    // Something that is remembered writes the file.
    site.lasthop.command(&["mirror", "add", "m", "--from", "a", "--to", "not.there"]);
    let saved = std::fs::read_to_string(site.lasthop.state_file("ports.json")).unwrap();
    assert!(saved.contains("not.there") && !saved.contains("capture-"), "{saved}");
    // Nor does what is read anew end it.
    lasthop_tests_process::proc::signal(site.lasthop.pid(), rustix::process::Signal::HUP);
    wait_for("SIGHUP to be heard", PATIENCE, || site.lasthop.log().contains("SIGHUP: reloaded"));
    assert!(left(&site.lasthop).contains("both"), "the mirror is still there");
    let Site { mut lasthop, a, b, dir } = site;
    drop((a, b));
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    lasthop = lasthop.start_again(None, &ports, &[], || {});
    assert_eq!(left(&lasthop), "");
    let (well, said) = ended(capture.child);
    assert!(!well && said.contains("2 packets captured") && said.contains("the capture has ended"), "{said}");
    assert_eq!(pcapng(&std::fs::read(&path).unwrap()).0.len(), 2);
    assert_eq!(std::fs::read_dir(capture.temporary.path()).unwrap().count() + pipes(&lasthop.run_dir()).len(), 0);
}

#[test]
fn a_capture_outlives_control() {
    let mut site = Site::new();
    let path = site.path("c.pcapng");
    let capture = Capture::start(&site, &["a", "-w", &path]);
    capture.wait_for_file(&path);
    site.exchange(10, 60);
    site.lasthop.kill("lasthop-control");
    site.exchange(20, 60);
    let (_, said) = capture.interrupt(&site);
    assert_eq!(said, "4 packets captured\n");
}

/// Its mirror and its port go by themselves, and no file takes the packets instead.
#[test]
fn of_a_capture_that_is_killed_no_mirror_is_left() {
    let mut site = Site::new();
    let path = site.path("c.pcapng");
    let mut capture = Capture::start(&site, &["a", "-w", &path]);
    capture.wait_for_file(&path);
    let number = capture.child.id();
    // A process of its own that writes the pipe is replaced; that ends nothing.
    site.lasthop.kill("lasthop-uplink");
    site.lasthop.wait_for_state(&format!("capture-{number}"), "up");
    let refused = error(&site.lasthop, &["port", "rename", &format!("capture-{number}"), "other"]);
    assert!(refused.contains("is that of a `lasthop capture`"), "{refused}");
    capture.child.kill().unwrap();
    capture.child.wait().unwrap();
    site.exchange(10, 60);
    wait_for("the capture's mirror and port to go", PATIENCE, || left(&site.lasthop).is_empty());
    // As whoever clears up does it.
    let dirs = [pipes(capture.temporary.path()), pipes(&site.lasthop.run_dir())].concat();
    for dir in dirs {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700, "{dir:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }
    site.exchange(20, 60);
    let left: Vec<_> = std::fs::read_dir(capture.temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    site.lasthop.check_sums();
}

#[test]
fn a_capture_says_that_a_port_is_gone() {
    let site = Site::new();
    site.lasthop.command(&["port", "add", "c", &site.path("c.sock")]);
    let path = site.path("c.pcapng");
    let mut capture = Capture::start(&site, &["a,c", "-w", &path]);
    capture.wait_for_file(&path);
    site.lasthop.command(&["port", "del", "c"]);
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(capture.child.stderr.as_mut().unwrap()), &mut said)
        .unwrap();
    assert_eq!(said, "port c is gone: nothing more of it is captured\n");
    capture.interrupt(&site);
    // Its own port: the end of it.
    let path = site.path("d.pcapng");
    let capture = Capture::start(&site, &["a", "-w", &path]);
    capture.wait_for_file(&path);
    site.lasthop.command(&["port", "del", &format!("capture-{}", capture.child.id())]);
    let (well, said) = ended(capture.child);
    assert!(!well && said.contains("0 packets captured") && said.contains("the capture has ended"), "{said}");
    assert_eq!(left(&site.lasthop), "");
}

/// What the guests leave to a card is done in the capture: a packet of 60 000 bytes is whole there, with a checksum that is right.
#[test]
fn checksums_that_senders_left_are_filled_in() {
    let mut site = Site::with(Options::offloading());
    let path = site.path("o.pcapng");
    let capture = Capture::start(&site, &["b", "-w", &path]);
    capture.wait_for_file(&path);
    let frame = |v6| {
        let frame = Frame::between(mac(1), mac(2));
        let frame = if v6 { frame.ipv6([1; 16], [2; 16]) } else { frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]) };
        frame.tcp(1000, 2000).tcp_fields(0x18, 5000, &[]).payload(vec![7; 60_000]).partial_checksum()
    };
    for (v6, gso) in [(false, VnetHdr::GSO_TCPV4), (true, VnetHdr::GSO_TCPV6)] {
        site.a.send_as(frame(v6).vnet(gso, 1400), &frame(v6).build());
        site.b.recv("the packet", |header, f| f.len() > 60_000 && header.flags == VnetHdr::F_NEEDS_CSUM);
    }
    capture.interrupt(&site);
    let output = Command::new("tcpdump").args(["-n", "-vv", "-r", &path]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("(correct)").count(), 2, "{text}");
    assert!(!text.contains("incorrect"), "{text}");
}

#[test]
fn a_ring_of_files_keeps_the_last() {
    let mut site = Site::new();
    let path = site.path("r.pcapng");
    let capture = Capture::start(&site, &["a", "-w", &path, "-C", "64K", "-W", "3"]);
    capture.wait_for_file(&path);
    let sent: Vec<_> = (0..150).flat_map(|n| site.exchange(10 + 2 * n, 1000)).collect();
    let (_, said) = capture.interrupt(&site);
    assert_eq!(said, "300 packets captured\n");
    let mut there: Vec<Vec<u8>> = Vec::new();
    for name in [path.clone(), format!("{path}.1"), format!("{path}.2")] {
        let bytes = std::fs::read(&name).unwrap();
        assert!(bytes.len() <= 64 << 10, "{name}: {}", bytes.len());
        there.extend(pcapng(&bytes).0.into_iter().map(|packet| packet.data));
    }
    assert!(!Path::new(&format!("{path}.3")).exists());
    assert!(sent[sent.len() - 120..].iter().all(|frame| there.contains(frame)), "the last two files that are full");
    assert!(!there.contains(&sent[0]));
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
    // Somebody else has made it, and could read what is written.
    let others = site.path("others");
    std::fs::write(&others, "").unwrap();
    std::os::unix::fs::chown(&others, Some(65_534), None).unwrap();
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
        (&["capture", "a", "-w", &there], "is there, and no capture"),
        (&["capture", "a", "-w", &others], "belongs to user 65534; move it away"),
        (&["capture", "a", "-w", &link], "is a symbolic link; name the file itself"),
        (&["capture", "a", "b", "-w", &none], "b is a port: write a,b"),
        (&["capture", "a", "tcp", "prt", "80", "-w", &none], "syntax error"),
        (&["capture", "a,a", "-w", &none], "a is named twice"),
        (&["capture", "a", "-w", "/nowhere/at/all.pcapng"], "make the directory, or name another"),
        (&["capture", "a", "--max-size", "1M"], "name one with -w FILE"),
        (
            &["capture", "tcp", "port", "80", "-w", &none],
            "a filter comes after the ports: lasthop capture any tcp port 80",
        ),
        (&["capture", "a", "-W", "3", "-w", &none], "-W says how many files of -C SIZE there are"),
        (&["capture", "a", "-w", dir], "is a directory; name a file in it"),
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
    let (small, unmount) = small(&site);
    let path = format!("{small}/a.pcap");
    site.lasthop.command(&["mirror", "add", "log", "--from", "a", "--to", &path]);
    site.lasthop.wait_for_state("log", "up");
    let said = error(&site.lasthop, &["port", "rename", "log", "other"]);
    assert!(said.contains("port log is the file of mirror log"), "{said}");
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

/// A capture's own file: the error names it.
#[test]
fn a_full_disk_ends_a_capture() {
    let mut site = Site::new();
    let (small, unmount) = small(&site);
    let path = format!("{small}/a.pcapng");
    let capture = Capture::start(&site, &["a", "-w", &path]);
    capture.wait_for_file(&path);
    for n in 0..100 {
        site.exchange(10 + 2 * n, 1400);
    }
    let (well, said) = ended(capture.child);
    assert!(!well && said.contains(&format!("{path}: ")) && said.contains("make room"), "{said}");
    assert_eq!(left(&site.lasthop), "");
    drop(unmount);
}

/// A file system of 64 KiB, until that goes out of scope.
fn small(site: &Site) -> (String, Unmount) {
    let small = site.path("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none", &small]).status();
    assert!(mounted.unwrap().success(), "root may mount a tmpfs");
    (small.clone(), Unmount(small))
}

struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
