//! A receiver that is slower than its senders, a guest or a network, is theirs by their weights.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, Rivals, becomes, is_fair, mac, number_of, numbered, release,
    scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::time::{Duration, Instant};

/// Packets wait for seconds: so no sender loses what it has in its ring, however slow the machine makes a receiver.
const WAIT: [&str; 2] = ["--congestion", "1000"];
/// With ports `a`, `b` and `sink`, and so many frames in a sender's ring.
fn with_rings(netns: Option<&Netns>, size: u16, arguments: &[&str]) -> Rivals {
    let dir = scratch();
    let ports = ["a", "b", "sink"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(netns, &ports, arguments);
    let options = Options::net(|n| n.size = size);
    let senders = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), options));
    Rivals::new(lasthop, senders, dir)
}

fn rivals(netns: Option<&Netns>, arguments: &[&str]) -> Rivals {
    with_rings(netns, 1024, &[&WAIT, arguments].concat())
}

fn check(rivals: &mut Rivals, sink: &mut Guest, most: usize, pause: Duration) {
    for (weights, lens) in [([300, 100], [1000, 1000]), ([100, 100], [1400, 700]), ([100, 400], [1000, 1000])] {
        for (port, weight) in ["a", "b"].into_iter().zip(weights) {
            rivals.lasthop.command(&["port", "set", port, "--weight", &weight.to_string()]);
        }
        let fair = f64::from(weights[0]) / f64::from(weights[0] + weights[1]);
        rivals.share(sink, most, pause, lens, fair, &format!("weights {weights:?}"));
    }
}

/// Packets for a port that were dropped as `rate`.
fn dropped_as_rate(lasthop: &Lasthop, port: &str) -> u64 {
    let port = lasthop.port(port);
    let drops = port["to_guest"]["drops"].as_array().expect("a list of drops");
    drops.iter().find(|d| d["reason"] == "rate").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
}

/// The floor of who is to get little is looked at, too.
#[test]
fn who_starves_has_no_fair_share() {
    for (part, due, fair) in [
        (15.0 / 16.0, 15.0 / 16.0, true),
        (1.0, 15.0 / 16.0, false),
        (0.99, 15.0 / 16.0, false),
        (0.01, 1.0 / 16.0, false),
        (0.12, 1.0 / 16.0, false),
        (0.29, 0.25, true),
        (0.31, 0.25, false),
    ] {
        assert_eq!(is_fair(part, due), fair, "{part} of {due}");
    }
}

/// A guest with a small ring.
#[test]
fn senders_of_a_slow_guest_get_shares_by_their_weights() {
    [&["--helpers", "none"][..], &[]].into_iter().for_each(a_slow_guest_is_shared);
}

fn a_slow_guest_is_shared(arguments: &[&str]) {
    let mut rivals = rivals(None, arguments);
    let socket = rivals.dir.path().join("sink.sock");
    let mut sink = Guest::connect(&socket, mac(3), Options::net(|n| n.size = 64));
    let [a, b] = &mut rivals.senders;
    a.greet(&mut sink, 1);
    b.greet(&mut sink, 2);
    check(&mut rivals, &mut sink, 1_000_000, Duration::from_millis(1));
    rivals.lasthop.check_sums();
}

/// What priorities come to, the next program of `lasthop run` knows, and says so again when something else is set.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_priority_holds_under_another_program() {
    let mut rivals = rivals(None, &["--helpers", "none"]);
    let socket = rivals.dir.path().join("sink.sock");
    let mut sink = Guest::connect(&socket, mac(3), Options::net(|n| n.size = 64));
    let [a, b] = &mut rivals.senders;
    a.greet(&mut sink, 1);
    b.greet(&mut sink, 2);
    let set = |rivals: &Rivals, port: &str, option: &str, value: &str| {
        rivals.lasthop.command(&["port", "set", port, option, value]);
    };
    set(&rivals, "a", "--priority", "2");
    set(&rivals, "b", "--priority", "1");
    let share = |rivals: &mut Rivals, sink: &mut Guest, fair: f64, why: &str| {
        rivals.share(sink, 500_000, Duration::from_millis(1), [1000, 1000], fair, why);
    };
    becomes(&rivals.lasthop, &release(rivals.dir.path(), "one"));
    set(&rivals, "a", "--rate-from", "100G");
    // 15 times what the two below have together, one of which sends nothing.
    share(&mut rivals, &mut sink, 24_000.0 / 25_500.0, "under another program");
    // From here on nobody comes before anybody else, and each has the share that its own weight says. Who was told of a larger one, for there was one below it, is
    // told of that.
    set(&rivals, "a", "--priority", "1");
    becomes(&rivals.lasthop, &release(rivals.dir.path(), "two"));
    set(&rivals, "sink", "--priority", "1");
    set(&rivals, "a", "--weight", "300");
    share(&mut rivals, &mut sink, 0.75, "without others below");
}

/// A network that takes 100 Mbit/s, behind an uplink. Its socket would take 8 MiB and then nothing for 0.15 s: with that, a sender's ring ran
/// empty each time, and what it did not have was the other's. Without helpers: one that loses its core to the uplink may be away for longer than it is waited for.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn senders_to_a_slow_network_get_shares_by_their_weights() {
    let beyond = Beyond::new();
    beyond.netns.shell("tc qdisc add dev v0 root tbf rate 100mbit burst 10kb limit 4mb");
    let mut rivals = rivals(Some(&beyond.netns), &["--uplink", "net=v0,af_packet,queues=1", "--helpers", "none"]);
    for lasthop in [&beyond.outside, &rivals.lasthop] {
        lasthop.wait_for_state("net", "up");
    }
    let address = MacAddr([2, 0, 0, 0, 0, 9]);
    let mut sink = Guest::connect(&beyond.port.socket, address, Options::net(|n| n.size = 1024));
    for (n, sender) in (1..).zip(&mut rivals.senders) {
        sender.greet_when_back(&mut sink, 100 * n);
    }
    check(&mut rivals, &mut sink, 4_000_000, Duration::from_micros(50));
}

/// A third guest says something to the network that two flood: it waits for what is on its way of theirs, and not for all that they have in their rings, which
/// is 2 MB. What comes meanwhile says how long that is, whatever else runs on the processors.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn what_a_third_guest_sends_to_a_flooded_network_waits_for_its_share_and_no_longer() {
    let beyond = Beyond::new();
    beyond.netns.shell("tc qdisc add dev v0 root tbf rate 100mbit burst 10kb limit 4mb");
    let mut rivals = rivals(Some(&beyond.netns), &["--uplink", "net=v0,af_packet,queues=1", "--helpers", "none"]);
    for lasthop in [&beyond.outside, &rivals.lasthop] {
        lasthop.wait_for_state("net", "up");
    }
    let mut sink = Guest::connect(&beyond.port.socket, MacAddr([2, 0, 0, 0, 0, 9]), Options::net(|n| n.size = 1024));
    let mut asker = Guest::connect(&rivals.dir.path().join("sink.sock"), mac(3), Options::default());
    for (n, sender) in (1..).zip(rivals.senders.iter_mut().chain([&mut asker])) {
        sender.greet_when_back(&mut sink, 100 * n);
    }
    let all = overtaken(&mut rivals.senders, &mut asker, &mut sink);
    println!("bytes that come before what the third sends: {all:?}");
    // Where its thread does not get to run, because others want the processors, it is more: in the middle.
    assert!(all[all.len() / 2] < 1_000_000, "{all:?}");
}

/// How many bytes of two that flood come while what the third has sent is on its way, time after time; the least first.
fn overtaken(senders: &mut [Guest; 2], asker: &mut Guest, sink: &mut Guest) -> Vec<usize> {
    const ASKED: usize = 50;
    let frames = [0, 1].map(|n: usize| numbered(senders[n].mac, sink.mac, 10, 1000));
    let (mut all, mut number, mut asked) = (Vec::new(), 1000, None);
    let end = Instant::now() + 3 * PATIENCE;
    while all.len() < ASKED {
        assert!(Instant::now() < end, "{} of {ASKED} came: {all:?}", all.len());
        for (sender, frame) in senders.iter_mut().zip(&frames) {
            sender.fill(frame);
        }
        let came = asked.get_or_insert_with(|| {
            number += 1;
            asker.send(&numbered(asker.mac, sink.mac, number, 100));
            0
        });
        let mut is_here = false;
        while let Some((_, frame)) = sink.try_recv() {
            is_here |= number_of(&frame) == Some(number);
            *came += if is_here { 0 } else { frame.len() };
        }
        if is_here {
            all.extend(asked.take());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    all.sort_unstable();
    all
}

/// An uplink `net`, and a lasthop beyond it with a port `outside`.
struct Beyond {
    netns: Netns,
    outside: Lasthop,
    port: Port,
    _dir: tempfile::TempDir,
}

impl Beyond {
    fn new() -> Self {
        let netns = Netns::new();
        netns.ip("link add v0 type veth peer name v1");
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let dir = scratch();
        let port = Port::listen("outside", dir.path());
        let arguments = [&WAIT[..], &["--uplink", "net=v1,af_packet"]].concat();
        let outside = Lasthop::start_in(Some(&netns), std::slice::from_ref(&port), &arguments);
        Self { netns, outside, port, _dir: dir }
    }
}

fn refused(lasthop: &Lasthop, port: &str, setting: &str, value: &str) -> String {
    let output = lasthop.try_command(&["port", "set", port, setting, value]);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An uplink that is to send 100 Mbit/s: one guest is to get 70 of them at least, and shares the other 30 with its rival and with `sink`, which sends
/// nothing: so it gets 8 parts of 9. What cannot be kept is refused. With rings as QEMU has them if nothing is said, and as long as most people make
/// them: full ones wait for the uplink.
#[test]
fn a_guest_gets_its_minimum_of_what_an_uplink_takes() {
    for (size, wait) in [(256, &WAIT[..]), (1024, &WAIT), (256, &[])] {
        let beyond = Beyond::new();
        let arguments = ["--uplink", "net=v0,af_packet,queues=1", "--helpers", "none"];
        let mut rivals = with_rings(Some(&beyond.netns), size, &[&arguments, wait].concat());
        if wait.is_empty() {
            rivals = rivals.impatient();
        }
        for lasthop in [&beyond.outside, &rivals.lasthop] {
            lasthop.wait_for_state("net", "up");
        }
        let said = refused(&rivals.lasthop, "a", "--min-rate", "70M");
        assert!(said.contains("`lasthop port set net --rate-to RATE`"), "{said}");
        rivals.lasthop.command(&["port", "set", "net", "--rate-to", "100M"]);
        rivals.lasthop.command(&["port", "set", "a", "--min-rate", "70M"]);
        let said = refused(&rivals.lasthop, "b", "--min-rate", "40M");
        assert!(said.contains("110M at least") && said.contains("net takes 100M"), "{said}");
        for rate in ["60M", "none", "20kpps"] {
            let said = refused(&rivals.lasthop, "net", "--rate-to", rate);
            assert!(said.contains("70M at least"), "{said}");
        }
        let shown = rivals.lasthop.command(&["port", "list"]);
        assert!(
            shown.contains("a: weight 240 of 300 of all guests, where they share, at least 70M of an uplink\n"),
            "{shown}"
        );
        minimums_are_kept(&mut rivals, &beyond, size);
    }
}

fn minimums_are_kept(rivals: &mut Rivals, beyond: &Beyond, size: u16) {
    let mut sink = Guest::connect(&beyond.port.socket, MacAddr([2, 0, 0, 0, 0, 9]), Options::net(|n| n.size = 1024));
    for (n, sender) in (1..).zip(&mut rivals.senders) {
        sender.greet_when_back(&mut sink, 100 * n);
    }
    let all = [
        ("a", "70M", "none", [1000, 1000], 80.0 / 90.0),
        ("b", "70M", "30M", [700, 1400], 0.7),
        ("a", "none", "30M", [1000, 1000], 70.0 / 230.0),
    ];
    for (port, a, b, lens, fair) in all {
        rivals.lasthop.command(&["port", "set", port, "--min-rate", if port == "a" { a } else { b }]);
        let why = format!("{a} and {b} of 100 with rings of {size}");
        rivals.share(&mut sink, 4_000_000, Duration::from_micros(50), lens, fair, &why);
        if rivals.is_patient() {
            assert_eq!(dropped_as_rate(&rivals.lasthop, "net"), 0, "{why}: dropped as `rate`");
        }
    }
}

/// What the command line promises nobody refuses: the log says that it cannot be kept, once, and that it can again.
#[test]
fn promises_of_the_command_line_that_cannot_be_kept_are_said() {
    let (netns, dir) = (Netns::new(), scratch());
    let port = format!("a={},min-rate=70M", dir.path().join("a.sock").display());
    let start = |uplink: &str| Lasthop::start_in(Some(&netns), &[], &["--port", &port, "--uplink", uplink]);
    let says = |lasthop: &Lasthop, what: &str| wait_for(what, PATIENCE, || lasthop.log().contains(what));
    let lasthop = start("net=lh0,tap");
    says(&lasthop, "none says how many bits a second that is: `lasthop port set net --rate-to RATE`");
    let said = refused(&lasthop, "net", "--rate-to", "60M");
    assert!(said.contains("70M at least") && said.contains("net takes 60M"), "said for the first time: {said}");
    lasthop.command(&["port", "set", "net", "--rate-to", "100M"]);
    says(&lasthop, "minimum rates are no more than uplinks take now");
    assert_eq!(lasthop.log().matches("70M at least (min-rate)").count(), 1, "once: {}", lasthop.log());
    drop(lasthop);
    let lasthop = start("net=lh0,tap,rate-to=60M");
    assert_eq!(lasthop.port("net")["settings"][0]["value"], "60M");
    says(&lasthop, "uplink net takes 60M (rate-to)");
    // Less of what is too much is taken.
    lasthop.command(&["port", "set", "net", "--rate-to", "65M"]);
    lasthop.command(&["port", "set", "a", "--min-rate", "65M"]);
    says(&lasthop, "minimum rates are no more than uplinks take now");
}
