//! Mirrors (`lasthop mirror`): packets in, packets and copies out, and what they never cost.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Guests at ports with names of one letter, with addresses in their order.
struct Site<const N: usize> {
    lasthop: Lasthop,
    ports: [Port; N],
    guests: [Guest; N],
    _dir: tempfile::TempDir,
}

impl<const N: usize> Site<N> {
    fn new(names: [&str; N], options: Options) -> Self {
        let dir = scratch();
        let ports = names.map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let mut n = 0;
        let guests = ports.each_ref().map(|port| {
            n += 1;
            Guest::connect(&port.socket, mac(n), options)
        });
        names.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        Self { lasthop, ports, guests, _dir: dir }
    }
}

fn drops(lasthop: &Lasthop, port: &str, direction: &str, reason: &str) -> u64 {
    let port = lasthop.port(port);
    let drops = port[direction]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap())
}

/// Numbers of those frames from a station that are there or come in the next moment.
fn from(guest: &mut Guest, station: MacAddr) -> Vec<u32> {
    guest.drain().iter().filter(|f| f[6..12] == station.0).filter_map(|f| number_of(f)).collect()
}

fn large() -> Options {
    Options::net(|net| net.size = 256)
}

#[test]
fn both_directions_and_two_mirrors() {
    let mut site = Site::new(["a", "b", "m", "n"], large());
    let Site { lasthop, guests, .. } = &mut site;
    let [a, b, m, n] = guests;
    a.greet(b, 1);
    let mut number = 10;
    let mut exchange = |a: &mut Guest, b: &mut Guest| {
        number += 10;
        let frames = [numbered(mac(1), mac(2), number, 60), numbered(mac(2), mac(1), number + 1, 1500)];
        a.send(&frames[0]);
        b.expect(&frames[0]);
        b.send(&frames[1]);
        a.expect(&frames[1]);
        frames
    };
    [&mut *m, &mut *n].into_iter().for_each(|guest| drop(guest.drain()));
    for (direction, copied) in [("from-guest", vec![0]), ("to-guest", vec![1]), ("both", vec![0, 1])] {
        let said = lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m", "--direction", direction]);
        assert_eq!(said, "mirror tap: added\n");
        for _ in 0..3 {
            let frames = exchange(a, b);
            copied.iter().for_each(|i| m.expect(&frames[*i]));
        }
        assert!(m.drain().is_empty(), "{direction}: a copy too many");
        assert!(n.drain().is_empty(), "no mirror's destination");
        lasthop.command(&["mirror", "del", "tap"]);
    }
    // Two mirrors; what both ends of one want is copied once.
    lasthop.command(&["mirror", "add", "all", "--from", "a,b", "--to", "m"]);
    lasthop.command(&["mirror", "add", "sent", "--from", "a", "--to", "n", "--direction", "from-guest"]);
    for _ in 0..3 {
        let frames = exchange(a, b);
        frames.iter().for_each(|frame| m.expect(frame));
        n.expect(&frames[0]);
    }
    assert!(m.drain().is_empty() && n.drain().is_empty(), "a copy too many");
    let flows = lasthop.command(&["flow", "list"]);
    assert!(flows.contains("copy(m),copy(n),b") && flows.contains("copy(m),a"), "{flows}");
    let (src, dst) = (mac(1).to_string(), mac(2).to_string());
    let said = lasthop.command(&["trace", "--in-port", "a", "--eth-src", &src, "--eth-dst", &dst]);
    assert!(said.contains("mirror all: a copy goes to m") && said.contains("mirror sent: a copy goes to n"), "{said}");
    let list = lasthop.json(&["mirror", "list"]);
    assert_eq!(list["mirrors"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(list["mirrors"][1]["direction"], "from-guest");
    lasthop.check_sums();
}

/// A destination gets copies and nothing else, and what it sends goes nowhere; a mirror shows what a guest sends in vain, too.
#[test]
fn a_destination_is_no_station() {
    let mut site = Site::new(["a", "b", "m"], large());
    let Site { lasthop, guests, .. } = &mut site;
    let [a, b, m] = guests;
    a.greet(b, 1);
    m.greet(a, 2);
    b.drain();
    m.drain();
    lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m", "--direction", "from-guest"]);
    b.send(&numbered(mac(2), MacAddr::BROADCAST, 3, 60));
    a.expect_number(3);
    b.send(&numbered(mac(2), mac(3), 4, 60));
    b.all_taken();
    assert!(m.drain().is_empty(), "neither a flood nor what is for its station");
    a.drain();
    for n in 0..10 {
        m.send(&numbered(mac(3), if n % 2 == 0 { mac(1) } else { MacAddr::BROADCAST }, 100 + n, 60));
    }
    wait_for("what it sends to be counted", PATIENCE, || drops(lasthop, "m", "from_guest", "mirror_port") == 10);
    assert!(a.drain().is_empty() && b.drain().is_empty());
    let macs = lasthop.command(&["mac", "list"]);
    assert!(!macs.contains(&mac(3).to_string()), "it teaches nothing\n{macs}");
    // Spoofed, from a group, and to the link itself: none of it arrives, all of it is shown.
    lasthop.command(&["port", "set", "a", "--mac", &mac(1).to_string()]);
    let odd = [
        numbered(mac(9), mac(2), 201, 60),
        numbered(MacAddr([3; 6]), mac(2), 202, 60),
        numbered(mac(1), MacAddr([1, 0x80, 0xc2, 0, 0, 2]), 203, 60),
    ];
    for _ in 0..2 {
        for frame in &odd {
            a.send(frame);
            m.expect(frame);
        }
    }
    for reason in ["spoofed", "bad_source", "link_local"] {
        assert_eq!(drops(lasthop, "a", "from_guest", reason), 2, "{reason}");
    }
    assert!(b.drain().is_empty());
    lasthop.command(&["mirror", "del", "tap"]);
    m.greet(a, 5);
    lasthop.check_sums();
}

/// Nobody has to guess why no copies come, or why a guest hears nothing.
#[test]
fn a_destination_is_shown_for_what_it_is() {
    let site = Site::new(["a"], large());
    let path = site._dir.path().join("m.sock");
    site.lasthop.command(&["port", "add", "m", path.to_str().unwrap()]);
    let said = site.lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m"]);
    assert_eq!(said, "mirror tap: added; m waits for its guest, and nothing is copied until that is there\n");
    let down = "tap: nothing is copied while m is not up; `lasthop show m` says why\n";
    let list = site.lasthop.command(&["mirror", "list"]);
    assert!(list.contains(down), "{list}");
    let ports = site.lasthop.command(&["port", "list"]);
    assert!(ports.contains("m: gets copies by mirror tap and nothing else\n"), "{ports}");
    let _m = Guest::connect(&path, mac(3), large());
    site.lasthop.wait_for_state("m", "up");
    let list = site.lasthop.command(&["mirror", "list"]);
    assert!(!list.contains("nothing is copied"), "{list}");
    site.lasthop.command(&["mirror", "del", "tap"]);
    assert!(!site.lasthop.command(&["port", "list"]).contains("gets copies"));
}

/// It is remembered under the names of ports, which may come later, by another control and another lasthop.
#[test]
fn a_mirror_survives() {
    let mut site = Site::new(["a", "b"], large());
    let path = site._dir.path().join("m.sock");
    let add = |lasthop: &Lasthop| drop(lasthop.command(&["port", "add", "m", path.to_str().unwrap()]));
    let said = site.lasthop.command(&["mirror", "add", "tap", "--from", "a,c", "--to", "m"]);
    assert!(said.contains("nothing is copied until there is a port m"), "{said}");
    add(&site.lasthop);
    let list = site.lasthop.command(&["mirror", "list"]);
    assert!(list.contains("there is no port c yet"), "{list}");
    let mut m = Guest::connect(&path, mac(3), large());
    site.lasthop.wait_for_state("m", "up");
    let mut number = 0;
    let mut works = |a: &mut Guest, b: &mut Guest, m: &mut Guest| {
        number += 1;
        a.greet_when_back(b, number);
        number += 1;
        let frame = numbered(mac(1), mac(2), number, 60);
        wait_for("a copy", PATIENCE, || {
            a.send(&frame);
            m.recv_within(Duration::from_millis(50)).is_some_and(|(_, copy)| copy == frame)
        });
        m.drain();
        b.drain();
    };
    let [a, b] = &mut site.guests;
    works(a, b, &mut m);
    let control = site.lasthop.control();
    site.lasthop.kill("lasthop-control");
    wait_for("another control", PATIENCE, || site.lasthop.control() != control);
    works(a, b, &mut m);
    let (lasthop, ports) = (site.lasthop, &site.ports);
    drop((site.guests, m));
    let lasthop = lasthop.start_again(None, ports, &[], || {});
    let [mut a, mut b] =
        [(0, 1), (1, 2)].map(|(port, n): (usize, u8)| Guest::connect(&ports[port].socket, mac(n), large()));
    let mut m = Guest::connect(&path, mac(3), large());
    ["a", "b", "m"].iter().for_each(|port| lasthop.wait_for_state(port, "up"));
    works(&mut a, &mut b, &mut m);
    // Its destination goes and comes again.
    drop(m);
    lasthop.command(&["port", "del", "m"]);
    a.greet(&mut b, 1000);
    add(&lasthop);
    let mut m = Guest::connect(&path, mac(3), large());
    lasthop.wait_for_state("m", "up");
    works(&mut a, &mut b, &mut m);
    lasthop.command(&["mirror", "del", "tap"]);
    assert!(lasthop.command(&["mirror", "list"]).starts_with("no mirrors;"));
    lasthop.check_sums();
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let site = Site::new(["a", "b", "m"], large());
    let lasthop = &site.lasthop;
    lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m"]);
    for (words, wrong) in [
        (&["mirror", "add", "tap", "--from", "b", "--to", "c"][..], "there is a mirror tap already"),
        (&["mirror", "add", "x", "--from", "", "--to", "m"], "name them with --from"),
        (&["mirror", "add", "x", "--from", "b,m", "--to", "m"], "leave it out of --from"),
        (&["mirror", "add", "x", "--from", "m", "--to", "b"], "m is the destination of mirror tap"),
        (&["mirror", "add", "x", "--from", "b", "--to", "a"], "a is mirrored by tap"),
        (&["mirror", "add", "x", "--from", "b,b", "--to", "m"], "b is named twice"),
        (&["mirror", "add", "x/y", "--from", "b", "--to", "m"], "'/' cannot be in a name"),
        (&["mirror", "add", "x", "--from", "b", "--to", "m", "--direction", "in"], "use from-guest, to-guest or both"),
        (&["mirror", "add", "x", "--from", "b", "--to", "m", "--sample", "1/10"], "use --sample 1/1, or name another"),
        (&["mirror", "add", "x", "--from", "b", "--to", "c", "--sample", "10"], "write 1/N, such as 1/100"),
        (&["mirror", "add", "x", "--to", "m"], "--from"),
        (&["mirror", "del", "x"], "there is no mirror x; `lasthop mirror list`"),
    ] {
        let out = lasthop.try_command(words);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(wrong), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(lasthop.json(&["mirror", "list"])["mirrors"].as_array().unwrap().len(), 1, "nothing was changed");
}

/// Of many packets one in ten is copied, and all arrive; the receiver's buffers are few, so that they wait.
#[test]
fn a_mirror_copies_a_part_of_the_packets() {
    const PACKETS: u32 = 2000;
    let mut site = Site::new(["a", "b", "m"], large());
    let Site { lasthop, guests, .. } = &mut site;
    let [a, b, m] = guests;
    a.greet(b, 1);
    m.drain();
    lasthop.command(&["mirror", "add", "some", "--from", "a", "--to", "m", "--sample", "1/10"]);
    assert!(lasthop.command(&["mirror", "list"]).contains("some: one packet of 10 is copied"));
    let mut copied = 0;
    for n in 0..PACKETS {
        let frame = numbered(mac(1), mac(2), n, 60);
        a.send(&frame);
        b.expect(&frame);
        if n % 50 == 0 {
            copied += from(m, mac(1)).len();
        }
    }
    copied += from(m, mac(1)).len();
    // 200 are expected, and 13 is the deviation: with seven of them this fails once in 10^11 runs.
    assert!((106..=294).contains(&copied), "{copied} copies of {PACKETS}");
    let shown = lasthop.command(&["flow", "list"]);
    assert!(shown.contains("sample("), "{shown}");
    assert_eq!(lasthop.json(&["mirror", "list"])["mirrors"][0]["sample"], 10);
}

/// The destination takes nothing: those who have nothing to do with it lose nothing, and neither does the stream that is mirrored.
#[test]
fn a_slow_destination_costs_nobody_anything() {
    let dir = scratch();
    let ports = ["a", "b", "m", "x", "y"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut a = Guest::connect(&ports[0].socket, mac(1), large());
    let mut b = Guest::connect(&ports[1].socket, mac(2), Options::net(|net| net.size = 16));
    let _m = Guest::connect(&ports[2].socket, mac(3), Options::net(|net| net.size = 16));
    ["a", "b", "m"].iter().for_each(|port| lasthop.wait_for_state(port, "up"));
    a.greet(&mut b, 0);
    lasthop.command(&["mirror", "add", "tap", "--from", "a,x", "--to", "m"]);
    // The mirror has changed the flows. Packets that wait for control do not wait for buffers as well: the stream is to find its flow.
    a.greet(&mut b, 0);
    let stream = format!("eth_dst={}", mac(2));
    wait_for("the stream's flow", PATIENCE, || {
        lasthop.command(&["flow", "list"]).lines().any(|flow| flow.contains("in_port=a") && flow.contains(&stream))
    });
    let bystanders = Bystanders::start(&ports[3].socket, &ports[4].socket, [mac(4), mac(5)]);
    bystanders.still_exchange();
    const FRAMES: u32 = 20_000;
    // The receiver's ring is smaller than the sender's: packets wait for it all the time.
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=FRAMES).for_each(|n| a.send(&numbered(mac(1), mac(2), n, 60 + n as usize % 1000))));
        let mut next = 1;
        let end = Instant::now() + 3 * PATIENCE;
        while next <= FRAMES {
            assert!(Instant::now() < end, "frame {next} did not arrive");
            let Some((_, frame)) = b.recv_within(Duration::from_secs(1)) else { continue };
            if frame[6..12] == mac(1).0 {
                assert_eq!(number_of(&frame), Some(next), "lost or out of order");
                next += 1;
            }
        }
    });
    bystanders.still_exchange();
    drop(bystanders);
    let lost = drops(&lasthop, "m", "to_guest", "mirror_copy");
    let got = lasthop.port("m")["to_guest"]["packets"].as_u64().unwrap();
    assert!(lost > u64::from(FRAMES) / 2, "{lost} copies lost, {got} delivered");
    assert!(got + lost >= u64::from(FRAMES), "{got} and {lost}: each frame is copied");
    for port in ["a", "b", "x", "y"] {
        assert_eq!(drops(&lasthop, port, "to_guest", "no_buffers"), 0, "{port}");
    }
    lasthop.check_sums();
}

/// Frames that wait for a receiver are copied once however often they are tried.
#[test]
fn a_slow_receiver_doubles_no_copies() {
    let mut site = Site::new(["a", "b", "m"], Options::net(|net| net.size = 32));
    let Site { lasthop, guests, .. } = &mut site;
    let [a, b, m] = guests;
    a.greet(b, 0);
    lasthop.command(&["mirror", "add", "tap", "--from", "a", "--to", "m", "--direction", "from-guest"]);
    m.drain();
    const FRAMES: u32 = 3000;
    let (mut next, mut seen, mut sent) = (1, Vec::new(), 1);
    let end = Instant::now() + 2 * PATIENCE;
    while next <= FRAMES {
        assert!(Instant::now() < end, "frame {next} did not arrive");
        while sent <= FRAMES && a.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), sent, 60)) {
            sent += 1;
        }
        while let Some((_, frame)) = m.try_recv() {
            seen.extend(number_of(&frame).filter(|_| frame[6..12] == mac(1).0));
        }
        // A frame at a time.
        if let Some((_, frame)) = b.try_recv()
            && frame[6..12] == mac(1).0
        {
            assert_eq!(number_of(&frame), Some(next), "lost or out of order");
            next += 1;
        }
    }
    seen.extend(from(m, mac(1)));
    let lost = drops(lasthop, "m", "to_guest", "mirror_copy");
    assert!(seen.is_sorted_by(|a, b| a < b), "copied twice, or out of order");
    assert_eq!(seen.len() as u64 + lost, u64::from(FRAMES), "each frame was copied once");
    lasthop.check_sums();
}

/// A mirror comes and goes while packets pass: none is lost or doubled, and each is copied once at most.
#[test]
fn a_mirror_that_comes_and_goes_loses_nothing() {
    let mut site = Site::new(["a", "b", "m"], large());
    let Site { lasthop, guests, .. } = &mut site;
    let [a, b, m] = guests;
    a.greet(b, 0);
    m.drain();
    let (done, arrived, mut copies) = (AtomicBool::new(false), AtomicU32::new(0), BTreeMap::<u32, u32>::new());
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                // Fewer on their way than there are buffers: no loss is excused by a receiver that has had no turn.
                if n >= arrived.load(Ordering::Relaxed) + 128 {
                    std::thread::yield_now();
                    continue;
                }
                n += 1;
                a.send(&numbered(mac(1), mac(2), n, 60));
            }
            n
        });
        let receiver = scope.spawn(|| {
            let mut next = 1;
            loop {
                let Some((_, frame)) = b.recv_within(Duration::from_secs(1)) else {
                    assert!(done.load(Ordering::Relaxed), "frame {next} did not arrive");
                    return next - 1;
                };
                if frame[6..12] == mac(1).0 {
                    assert_eq!(number_of(&frame), Some(next), "lost or out of order");
                    arrived.store(next, Ordering::Relaxed);
                    next += 1;
                }
            }
        });
        let copies = &mut copies;
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                if let Some((_, frame)) = m.recv_within(Duration::from_millis(50))
                    && frame[6..12] == mac(1).0
                {
                    *copies.entry(number_of(&frame).expect("a whole frame")).or_default() += 1;
                }
            }
        });
        for _ in 0..15 {
            lasthop.command(&["mirror", "add", "tap", "--from", "a,b", "--to", "m"]);
            std::thread::sleep(Duration::from_millis(20));
            lasthop.command(&["mirror", "del", "tap"]);
        }
        done.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        assert_eq!(receiver.join().unwrap(), sent, "all that was sent has arrived");
        sent
    });
    let copied = copies.keys().filter(|n| **n > 0).count();
    assert!(copied > 15 && copied < sent as usize, "{copied} of {sent} copied");
    assert!(copies.values().all(|n| *n == 1), "copied twice: {:?}", copies.iter().find(|(_, n)| **n > 1));
    assert_eq!(drops(lasthop, "b", "to_guest", "no_buffers"), 0);
    lasthop.check_sums();
}
