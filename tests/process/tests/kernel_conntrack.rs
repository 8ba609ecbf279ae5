//! The tracker against the kernel's (nf_conntrack): the same packets through both, and what each says of every one of them.
//!
//! A network namespace forwards between two veths, and nftables writes what the kernel's tracker says of a packet into its DSCP. Sequences are made from
//! seeds. Where the two differ it is one of the [`EXCEPTIONS`], each with its reason, or the test fails.

mod sequences;

use lasthop_conntrack::testutil::{Ends, seg, view};
use lasthop_conntrack::{Action, Commit, Config, CtState, Refusal, Tracker};
use lasthop_frame::{FlowKey, sum};
use lasthop_tests_process::{Netns, Station};
use sequences::{Kind, Sent, sequence};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a packet is, as DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    New = 1,
    Established = 2,
    Reply = 3,
    Related = 4,
    RelatedReply = 5,
    Invalid = 6,
    Untracked = 7,
}

const CLASSES: [(Class, &str); 7] = [
    (Class::New, "new"),
    (Class::Established, "established ct direction original"),
    (Class::Reply, "established ct direction reply"),
    (Class::Related, "related ct direction original"),
    (Class::RelatedReply, "related ct direction reply"),
    (Class::Invalid, "invalid"),
    (Class::Untracked, "untracked"),
];

/// The kernel's tracker between two stations: host 1 and host 2.
struct Kernel {
    stations: [Station; 2],
    sent: u16,
    _forwards: Netns,
    _hosts: Netns,
}

impl Kernel {
    fn new() -> Self {
        let (forwards, hosts) = (Netns::new(), Netns::new());
        for n in 1..=2 {
            let peer = format!("name h{n} netns {}", hosts.name());
            forwards.ip(&format!(
                "link add f{n} address 02:00:00:00:00:a{n} type veth peer {peer} address 02:00:00:00:00:0{n}"
            ));
            hosts.ip(&format!("link set h{n} up"));
            forwards.shell(&format!(
                "echo 0 >/proc/sys/net/ipv6/conf/f{n}/disable_ipv6; echo 0 >/proc/sys/net/ipv6/conf/f{n}/accept_dad"
            ));
            forwards.ip(&format!("link set f{n} up"));
            for (four, address) in [("-4", format!("10.0.0.{n}")), ("-6", format!("fd00::{n}"))] {
                forwards.ip(&format!("{four} route add {address} dev f{n}"));
                forwards.ip(&format!("{four} neigh add {address} lladdr 02:00:00:00:00:0{n} dev f{n} nud permanent"));
            }
        }
        forwards.shell(
            "cd /proc/sys/net; echo 1 >ipv4/ip_forward; echo 1 >ipv6/conf/all/forwarding; \
             for i in all f1 f2; do echo 0 >ipv4/conf/$i/rp_filter; echo 0 >ipv4/conf/$i/send_redirects; done",
        );
        let rules: String = CLASSES
            .iter()
            .flat_map(|(class, state)| {
                ["ip", "ip6"].map(|ip| format!("add rule inet t f ct state {state} {ip} dscp set {}\n", *class as u8))
            })
            .collect();
        let table = format!(
            "add table inet t\nadd chain inet t f {{ type filter hook forward priority 0; policy accept; }}\n{rules}"
        );
        // It is fed to `nft -f -`; a kernel without connection tracking refuses it.
        forwards.shell(&format!("nft -f - <<'EOF'\n{table}\nEOF"));
        let stations = ["h1", "h2"].map(|name| Station::on(&hosts, name));
        Self { stations, sent: 0, _forwards: forwards, _hosts: hosts }
    }

    /// Sends a packet, or all fragments of one, through the kernel: what it says of it. `None`: it was dropped.
    fn class(&mut self, from: usize, frames: &[Vec<u8>]) -> Option<Class> {
        self.sent = self.sent % 65_000 + 1;
        for frame in frames {
            let mut frame = frame.clone();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xa0 + from as u8, 2, 0, 0, 0, 0, from as u8]);
            mark(&mut frame, self.sent);
            self.stations[from - 1].send(&frame);
        }
        let limit = Duration::from_millis(if frames.len() > 1 { 400 } else { 200 });
        let mut class = None;
        for _ in 0..frames.len() {
            let found = loop {
                match self.stations[2 - from].recv_within(limit) {
                    None => break None,
                    Some(frame) if marked(&frame) == Some(self.sent) => break Some(dscp(&frame)),
                    Some(_) => {}
                }
            };
            let found = CLASSES.iter().map(|(class, _)| *class).find(|class| Some(*class as u8) == found);
            assert!(class.is_none() || class == found, "fragments of one packet are one");
            class = found;
            if class.is_none() {
                break;
            }
        }
        class
    }
}

/// Numbers a packet: IPv4's identification, or IPv6's flow label. Fragments have their own already.
fn mark(frame: &mut [u8], number: u16) {
    let [a, b] = number.to_be_bytes();
    if frame[12..14] == [0x86, 0xdd] {
        frame[16..18].copy_from_slice(&[a, b]);
    } else {
        frame[18..20].copy_from_slice(&[a, b]);
        frame[24..26].fill(0);
        let header = 14 + usize::from(frame[14] & 15) * 4;
        let checksum = sum::finish(sum::sum(&frame[14..header])).to_be_bytes();
        frame[24..26].copy_from_slice(&checksum);
    }
}

fn marked(frame: &[u8]) -> Option<u16> {
    let at = match frame.get(12..14)? {
        [0x86, 0xdd] => 16,
        [8, 0] => 18,
        _ => return None,
    };
    Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]))
}

fn dscp(frame: &[u8]) -> u8 {
    if frame[12..14] == [0x86, 0xdd] { (frame[14] & 15) << 2 | frame[15] >> 6 } else { frame[15] >> 2 }
}

/// What our tracker says. All fragments of a packet are one to the kernel, which puts them together first.
fn ours(tracker: &Tracker, frames: &[Vec<u8>]) -> Class {
    let action = Action { commit: Some(Commit::default()), ..Action::default() };
    let class = |frame: &Vec<u8>| {
        let mut key = FlowKey::default();
        let verdict = tracker.process(&view(frame, &mut key), &action, 1_000_000);
        let has = |bits| verdict.state.has(bits);
        match (has(CtState::RELATED), has(CtState::ESTABLISHED), has(CtState::REPLY)) {
            _ if verdict.refused == Some(Refusal::Untracked) => Class::Untracked,
            _ if has(CtState::INVALID) => Class::Invalid,
            (true, _, false) => Class::Related,
            (true, _, true) => Class::RelatedReply,
            (_, true, false) => Class::Established,
            (_, true, true) => Class::Reply,
            _ => Class::New,
        }
    };
    let classes: Vec<_> = frames.iter().map(class).collect();
    assert!(classes.iter().all(|class| *class == classes[0]), "fragments of one packet are one: {classes:?}");
    classes[0]
}

/// Where we differ from Linux.
const EXCEPTIONS: &[Exception] = &[Exception {
    name: "SCTP heartbeats and SHUTDOWN ACK",
    why: "Linux lets HEARTBEAT, its answer and SHUTDOWN ACK pass with any verification tag, and opens connections by each of them: a heartbeat may be the first packet of a \
              path of a peer with several addresses, which we do not know as one association; a SHUTDOWN ACK may be an answer to a peer that has forgotten all (RFC 9260, section \
              8.5.1), which then ends by its time-out. The two go on from there with different tags",
    holds: |sent, _, _| {
        let of_those =
            |chunk: &Sent| ["chunk 4 ", "chunk 5 ", "chunk 8 "].iter().any(|kind| chunk.what.starts_with(kind));
        sent.iter().any(of_those)
    },
    in_1000: 150,
}];

struct Exception {
    name: &'static str,
    why: &'static str,
    /// Of a sequence up to where the two differ, and what they say.
    holds: fn(&[Sent], Option<Class>, Class) -> bool,
    /// Of so many of a thousand sequences of a kind, and one.
    in_1000: u64,
}

/// A test that cannot be run says so; where the kernel has it, what is missing besides is an error.
fn has_tracking() -> bool {
    let has = std::path::Path::new("/proc/sys/net/netfilter/nf_conntrack_max").exists();
    if !has {
        println!("skipped: this kernel has no connection tracking (CONFIG_NF_CONNTRACK, or its module is not loaded)");
    }
    has
}

/// Runs so many sequences of each kind, from a seed on.
fn compare(seed: u64, sequences: u64) {
    if !has_tracking() {
        return;
    }
    let mut kernel = Kernel::new();
    let mut excused = BTreeMap::<&str, u64>::new();
    let (mut packets, mut classes, mut wrong) = (0u32, BTreeMap::<Class, u32>::new(), Vec::new());
    for kind in Kind::ALL {
        for n in 0..sequences {
            let tracker = Tracker::new(Config { capacity: 1024, ..Config::default() }).expect("there is room");
            let (mut told, packets_of) = (Vec::new(), sequence(kind, seed + n));
            for (at, sent) in packets_of.iter().enumerate() {
                let (there, here) = (kernel.class(sent.from, &sent.frames), ours(&tracker, &sent.frames));
                packets += 1;
                *classes.entry(here).or_default() += 1;
                told.push(format!("{} > {}: kernel {there:?}, ours {here:?}", sent.from, sent.what));
                if there == Some(here) {
                    continue;
                }
                match EXCEPTIONS.iter().find(|exception| (exception.holds)(&packets_of[..=at], there, here)) {
                    Some(exception) => *excused.entry(exception.name).or_default() += 1,
                    None => {
                        wrong.push(format!("{kind:?} {}\n  {}", seed + n, told.join("\n  ")));
                    }
                }
                // From here on the two may know different things.
                break;
            }
        }
    }
    println!("{packets} packets: {classes:?}; {} differences; excused: {excused:?}", wrong.len());
    for exception in EXCEPTIONS {
        println!("{}: {}", exception.name, exception.why);
        let times = excused.get(exception.name).copied().unwrap_or(0);
        assert!(
            times * 1000 <= exception.in_1000 * sequences + 1000,
            "{}: {times} of {sequences} sequences",
            exception.name
        );
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong[..wrong.len().min(8)].join("\n"));
}

#[test]
fn the_kernel_says_the_same_of_some() {
    compare(1, 40);
}

/// Which RSTs are believed that lie in no window: those that answer what was last let pass without being acknowledged.
#[test]
fn the_kernel_believes_the_same_resets() {
    if !has_tracking() {
        return;
    }
    let mut kernel = Kernel::new();
    let (a, b) = (1_000_000u32, 5_000_000u32);
    let far = b + 40_000_000;
    let before: [&[(usize, &'static str, u32)]; 4] = [
        &[(1, "S", a), (2, "S", b)],
        &[(1, "S", a), (2, "S", b), (1, "S", a)],
        &[(1, "S", a), (2, "A", a + 1000)],
        &[(1, "S", a), (2, "SA", b), (1, "S", a + 77), (2, "A", a + 1000)],
    ];
    let (mut port, mut wrong) = (2000, Vec::new());
    for (host, reset) in [(1, "R"), (1, "RA"), (2, "R"), (2, "RA")] {
        for ack in [0, a + 1, b + 1, a + 78, a + 1000] {
            for before in before {
                port += 1;
                let ends = Ends::v4(port, 3);
                let from = |host| if host == 1 { ends } else { ends.back() };
                let tracker = Tracker::new(Config { capacity: 1024, ..Config::default() }).expect("there is room");
                let mut told = Vec::new();
                for (host, flags, seq) in before.iter().chain(&[(host, reset, far), (1, "S", a + 77)]) {
                    let ack = match *flags {
                        "SA" => a + 1,
                        "A" => 7,
                        _ if *flags == reset => ack,
                        _ => 0,
                    };
                    let frames = [from(*host).tcp(&seg(flags, *seq, ack, 0))];
                    told.push((*host, *flags, ack, kernel.class(*host, &frames), ours(&tracker, &frames)));
                }
                if told.iter().any(|(.., there, here)| *there != Some(*here)) {
                    wrong.push(format!("{told:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn the_kernel_says_the_same_of_many() {
    compare(100_000, 4000);
}
