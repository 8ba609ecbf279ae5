//! What ports are told to do, with Linux at both ends: VLANs, addresses that a guest may use, isolation, rates.

use lasthop_harness::{Lasthop, Netns, Nic, Pending, Port, Vm, VmConfig, checks, scratch, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

/// Whether it answers: three attempts at least.
fn answers(vm: &Vm, address: &str) -> bool {
    all_answer(&[(vm, address)])
}

/// Whether each of them gets an answer from that address, each to three attempts at least. They ask at once.
fn all_answer(asked: &[(&Vm, &str)]) -> bool {
    who_answer(asked).into_iter().all(|answers| answers)
}

/// Whether none does. What nobody answers is waited for once.
fn none_answers(asked: &[(&Vm, &str)]) -> bool {
    who_answer(asked).into_iter().all(|answers| !answers)
}

fn who_answer(asked: &[(&Vm, &str)]) -> Vec<bool> {
    let ask = |(vm, address): &(&Vm, &str)| {
        let six = if address.contains(':') { "-6" } else { "-4" };
        vm.spawn(&format!("ping {six} -c 3 -i 0.2 -w 3 -q {address}"))
    };
    let pings: Vec<_> = asked.iter().map(ask).collect();
    let answered = |ping: Pending| ping.output(Duration::from_secs(65)).stdout.contains(" 0% packet loss");
    pings.into_iter().map(answered).collect()
}

/// Gives it, instead of its address, one in each of the VLANs 10 and 20.
fn in_two_vlans(vm: &Vm, host: u8) {
    vm.run(&format!(
        "set -e; for m in llc stp garp mrp 8021q; do insmod /modules/$m.ko 2>/dev/null || true; done; \
         ip addr flush dev eth0; vconfig add eth0 10; vconfig add eth0 20; \
         ip addr add 10.9.0.{host}/24 dev eth0.10; ip addr add 10.9.2.{host}/24 dev eth0.20; \
         ip link set eth0.10 up; ip link set eth0.20 up"
    ));
}

/// Two tenants on access ports, a guest that is in both VLANs by a trunk, and one that is beyond an uplink with tags.
#[test]
fn tenants_on_vlans() {
    let dir = scratch();
    let netns = Netns::new();
    netns.ip("link add u0 type veth peer name s0");
    netns.ip("link set s0 up");
    let ports = ["a", "c", "trunk", "far"].map(|name| Port::listen(name, dir.path()));
    let outside = Lasthop::start_in(Some(&netns), &ports[3..], &["--uplink", "net=s0,af_packet"]);
    let lasthop = Lasthop::start_in(Some(&netns), &ports[..3], &["--uplink", "net=u0,af_packet"]);
    for words in [["a", "--vlan", "10"], ["c", "--vlan", "20"], ["trunk", "--trunk", "10,20"]] {
        lasthop.command(&[&["port", "set"], &words[..]].concat());
    }
    let [a, c, trunk, far] =
        Vm::boot_all([("a", 1), ("c", 2), ("trunk", 3), ("far", 4)].map(|(name, n)| config(name, dir.path(), n)));
    [&lasthop, &outside].into_iter().for_each(|lasthop| lasthop.wait_for_state("net", "up"));
    for vm in [&a, &c] {
        vm.run(&format!("ip addr add 10.9.2.{}/24 dev eth0", vm.config.nics[0].ip4().octets()[3]));
    }
    in_two_vlans(&trunk, 3);
    in_two_vlans(&far, 4);
    assert!(all_answer(&[(&a, "10.9.0.3"), (&a, "10.9.0.4")]), "a to VLAN 10");
    assert!(all_answer(&[(&c, "10.9.2.3"), (&c, "10.9.2.4")]), "c to VLAN 20");
    assert!(all_answer(&[(&trunk, "10.9.0.4"), (&trunk, "10.9.2.4")]), "from trunk to trunk");
    let others = [(&a, "10.9.2.3"), (&a, "10.9.2.4"), (&a, "10.9.2.2"), (&c, "10.9.2.1")];
    assert!(none_answers(&others), "a is not in VLAN 20, and a and c are two tenants");
    // Large packets go through tags that come and go: their offloads move with their headers.
    [&a, &trunk, &far].into_iter().for_each(Vm::serve);
    for (vm, to) in [(&a, &trunk), (&a, &far), (&trunk, &a), (&trunk, &far)] {
        let host = to.config.nics[0].ip4().octets()[3];
        vm.run(&format!("lasthop-guest tcp-check 10.9.0.{host}:7000 65536 4001"));
        vm.run(&format!("lasthop-guest udp-check 10.9.0.{host}:7000 9000 4001"));
    }
    // One moves to the other's VLAN while it lives.
    lasthop.command(&["port", "set", "a", "--vlan", "20"]);
    assert!(answers(&a, "10.9.2.2") && answers(&a, "10.9.2.4"), "they are one tenant now");
    assert!(!answers(&a, "10.9.0.3"), "and not the other any more");
    lasthop.check_sums();
}

/// A guest that may use two addresses uses them, and no others; one that asks for an address may.
#[test]
fn a_guest_that_spoofs() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b"].map(|name| Port::listen(name, dir.path())));
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    let [nic, other] = [&a, &b].map(|vm| &vm.config.nics[0]);
    let addresses = format!("{},{}", nic.ip4(), nic.ip6());
    lasthop.command(&["port", "set", "a", "--mac", &nic.mac(), "--addr", &addresses, "--no-dhcp-server", "--no-ra"]);
    let spoofed = || {
        let port = lasthop.port("a");
        let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == "spoofed").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    };
    checks::ping(&a, &b);
    assert!(answers(&a, &other.ip6()), "IPv6 of its own, and what it takes to find the other");
    // An address of its own making: neither its ARP nor what it sends arrives.
    a.run("ip addr flush dev eth0; ip addr add 10.9.0.77/24 dev eth0");
    let before = spoofed();
    b.run("ip neigh flush dev eth0 || true");
    let neither = none_answers(&[(&a, &other.ip4().to_string()), (&b, "10.9.0.77")]);
    assert!(neither, "it reaches nobody, and answers nobody who asks for that address");
    assert!(spoofed() > before, "counted by name");
    // A station of its own making.
    a.run(&format!("ip link set eth0 down; ip link set eth0 address 52:54:00:99:99:99; ip link set eth0 up; ip addr flush dev eth0; ip addr add {}/24 dev eth0", nic.ip4()));
    assert!(!answers(&a, &other.ip4().to_string()));
    let macs = lasthop.command(&["mac", "list"]);
    assert!(!macs.contains("52:54:00:99:99:99"), "what may not enter teaches nothing\n{macs}");
    let trace = lasthop.command(&[
        "trace",
        "--in-port",
        "a",
        "--eth-src",
        "52:54:00:99:99:99",
        "--eth-dst",
        &other.mac(),
        "--ip-src",
        "10.9.0.1",
        "--ip-dst",
        "10.9.0.2",
    ]);
    assert!(trace.contains("settings of a: its source is none of the port's Ethernet addresses (mac)"), "{trace}");
    // Without an address it may ask for one: the other hears it.
    a.run(&format!(
        "ip link set eth0 down; ip link set eth0 address {}; ip link set eth0 up; ip addr flush dev eth0",
        nic.mac()
    ));
    let before = lasthop.port("b")["to_guest"]["packets"].as_u64().unwrap_or(0);
    a.output("udhcpc -i eth0 -n -q -t 3 -T 1", 20);
    wait_for("what it asked to arrive", Duration::from_secs(10), || {
        lasthop.port("b")["to_guest"]["packets"].as_u64().unwrap_or(0) >= before + 3
    });
    // As it was.
    a.run(&format!("ip addr add {}/24 dev eth0", nic.ip4()));
    wait_for("the two to talk again", Duration::from_secs(30), || answers(&a, &other.ip4().to_string()));
    lasthop.check_sums();
}

/// Isolated guests reach the network and not each other.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn isolated_guests() {
    let netns = Netns::new();
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    // On a device it is the device's own: what is beyond the cable is no uplink to it.
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &[]);
    lasthop.command(&["uplink", "add", "net", "lh0", "--driver", "tap"]);
    netns.ip("link set lh0 up");
    netns.ip("addr add 10.9.0.100/24 dev lh0");
    for port in ["a", "b"] {
        lasthop.command(&["port", "set", port, "--isolated"]);
    }
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    let other = b.config.nics[0].ip4().to_string();
    assert!(answers(&a, "10.9.0.100") && answers(&b, "10.9.0.100"), "the network");
    assert!(!answers(&a, &other), "each other");
    lasthop.command(&["port", "set", "b", "--isolated", "off"]);
    assert!(!answers(&a, &other), "one of the two is enough");
    lasthop.command(&["port", "set", "a", "--isolated", "off"]);
    wait_for("the two to talk", Duration::from_secs(30), || answers(&a, &other));
}

/// Bits a second that arrive there while iperf3 sends to it, as its receiver counts them, in millions.
fn measured(from: &Vm, to: &Vm, options: &str) -> f64 {
    measure(from, to, options)()
}

/// The same, begun: the answer is waited for by whoever asks.
fn measure<'a>(from: &'a Vm, to: &Vm, options: &'a str) -> impl FnOnce() -> f64 + 'a {
    // A port of its own for each sender.
    let server = 5201 + u32::from(from.config.nics[0].ip4().octets()[3]);
    to.background(&format!("iperf3 -s -1 -p {server}"));
    let address = to.config.nics[0].ip4();
    let client = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do iperf3 -c {address} -p {server} -t 6 -O 1 -f k {options} && break; sleep 0.3; done"
    );
    let pending = from.spawn(&client);
    move || {
        let out = pending.success(Duration::from_secs(90));
        let line = out.lines().rfind(|line| line.contains("receiver")).unwrap_or_else(|| panic!("{out}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.starts_with("Kbits/sec")).unwrap_or_else(|| panic!("{line}"));
        let rate = words[at - 1].parse::<f64>().unwrap_or_else(|e| panic!("{line}: {e}")) / 1000.0;
        println!("{} {options}: {rate} Mb/s", from.config.name);
        rate
    }
}

/// TCP and short UDP datagrams at the rate that a port may send, and may get; the rate is of whole frames.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn limited_guests() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b", "c"].map(|name| Port::listen(name, dir.path())));
    let [a, b, c] = Vm::boot_all([("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| config(name, dir.path(), n)));
    checks::ping(&a, &b);
    let near = |rate: f64, wanted: f64| (wanted * 0.95..=wanted * 1.05).contains(&rate);
    // Of a TCP segment of 1448 bytes 66 are headers; larger ones have less.
    for setting in ["--rate-from", "--rate-to"] {
        let (port, other) = if setting == "--rate-from" { ("a", "b") } else { ("b", "a") };
        lasthop.command(&["port", "set", port, setting, "20M"]);
        lasthop.command(&["port", "set", other, "--rate-from", "none", "--rate-to", "none"]);
        let rate = measured(&a, &b, "");
        assert!(near(rate, 19.8), "TCP, {setting}: {rate} Mb/s");
        lasthop.command(&["port", "set", port, setting, "2M"]);
        // 22 bytes in frames of 64: a third of what is limited.
        let rate = measured(&a, &b, "-u -b 20M -l 22");
        assert!(near(rate * 64.0 / 22.0, 2.0), "UDP, {setting}: {rate} Mb/s");
        lasthop.command(&["port", "set", port, setting, "none"]);
    }
    // What a port may get is for all senders together.
    lasthop.command(&["port", "set", "b", "--rate-to", "20M"]);
    let both = [measure(&a, &b, ""), measure(&c, &b, "")];
    let sent = |port: &str| lasthop.port(port)["from_guest"]["bytes"].as_u64().unwrap_or(0);
    let before = ["a", "c"].map(sent);
    wait_for("both to send", Duration::from_secs(30), || {
        ["a", "c"].iter().zip(before).all(|(port, before)| sent(port) > before + 400_000)
    });
    let got = || (lasthop.port("b")["to_guest"]["bytes"].as_u64().unwrap_or(0), Instant::now());
    let (bytes, start) = got();
    std::thread::sleep(Duration::from_secs(3));
    let (more, end) = got();
    let sum = (more - bytes) as f64 * 8e-6 / (end - start).as_secs_f64();
    println!("both: {sum} Mb/s");
    assert!(near(sum, 20.0), "two senders: {sum} Mb/s");
    for answer in both {
        answer();
    }
    lasthop.command(&["port", "set", "b", "--rate-to", "none"]);
    let rate = measured(&a, &b, "");
    assert!(rate > 25.0, "without a limit {rate} Mb/s");
    lasthop.check_sums();
}

/// An address beyond an uplink.
const BEYOND: &str = "10.9.0.100";

/// Two stations beyond an uplink, each of which counts what it gets.
const STATIONS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];

/// Machines a and b flood what takes less from both together.
struct Flooded {
    machines: Vec<Vm>,
    lasthop: Lasthop,
    netns: Netns,
    // Gone after the sockets in it.
    _dir: tempfile::TempDir,
}

impl Flooded {
    /// The network behind an uplink, each machine a station of it.
    fn uplink() -> Self {
        Self::uplink_of(&["a", "b"])
    }

    /// The same with other machines beside them, which have an address beyond it to ask.
    fn uplink_of(names: &[&str]) -> Self {
        let netns = Netns::new();
        netns.ip("link add v0 type veth peer name v1");
        for (name, station) in ["a", "b"].iter().zip(STATIONS) {
            netns.ip(&format!("link add link v1 name end-{name} address {station} type macvlan mode private"));
        }
        ["v0", "v1", "end-a", "end-b"].iter().for_each(|name| netns.ip(&format!("link set {name} up")));
        netns.ip(&format!("addr add {BEYOND}/24 dev v1"));
        let site = Self::of(netns, names);
        site.lasthop.command(&["uplink", "add", "net", "v0", "--driver", "af_packet"]);
        site.lasthop.command(&["port", "set", "net", "--rate-to", "20M", "--static-mac", &STATIONS.join(",")]);
        site.lasthop.wait_for_state("net", "up");
        site.flood(STATIONS);
        site
    }

    /// A third machine, which takes 60 Mbit/s: whoever is to get a 31st of it waits 0.3 s for each burst of 64. At 20 it would be longer than senders are patient (1 s).
    fn guest() -> Self {
        let site = Self::of(Netns::new(), &["a", "b", "c"]);
        checks::ping(&site.machines[0], &site.machines[2]);
        site.lasthop.command(&["port", "set", "c", "--rate-to", "60M"]);
        let mac = site.machines[2].config.nics[0].mac();
        site.flood([&mac, &mac]);
        site
    }

    fn of(netns: Netns, names: &[&str]) -> Self {
        let dir = scratch();
        let ports: Vec<_> = names.iter().map(|name| Port::listen(name, dir.path())).collect();
        // Who is dropped (`rate`) sends what was for later at once, and has nothing then: machines without KVM do not come after.
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--congestion", "1000"]);
        let configs = names.iter().zip(1..).map(|(name, n)| config(name, dir.path(), n));
        let launched: Vec<_> = configs.map(Vm::launch).collect();
        Self { machines: launched.into_iter().map(Vm::ready).collect(), lasthop, netns, _dir: dir }
    }

    fn flood(&self, to: [&str; 2]) {
        for (vm, station) in self.machines.iter().zip(to) {
            // One socket has about 90 frames in the ring, and none for a moment each time: four keep it full.
            (0..4).for_each(|_| {
                vm.background(&format!("lasthop-guest raw-send eth0 {station} 88b5 1000000000 1400 1400 0"));
            });
        }
    }

    /// What each station has got, in bytes.
    fn came(&self) -> [u64; 2] {
        ["end-a", "end-b"].map(|name| {
            let count = self.netns.shell(&format!("cat /sys/class/net/{name}/statistics/rx_bytes"));
            count.trim().parse().expect("a number of bytes")
        })
    }

    /// What went on of each machine's, in bytes of its frames, which are all as long.
    fn went(&self) -> [u64; 2] {
        ["a", "b"].map(|name| {
            let from = &self.lasthop.port(name)["from_guest"];
            let drops = from["drops"].as_array().into_iter().flatten();
            let dropped: u64 = drops.map(|drop| drop["packets"].as_u64().expect("a number")).sum();
            1400 * (from["packets"].as_u64().expect("a number") - dropped)
        })
    }

    fn set(&self, setting: &str, values: [&str; 2]) {
        for (port, value) in ["a", "b"].iter().zip(values) {
            self.lasthop.command(&["port", "set", port, setting, value]);
        }
    }
}

/// The part of so many bytes that come which is of the first, after 1 MB that nobody looks at.
fn share(came: impl Fn() -> [u64; 2], bytes: u64) -> f64 {
    let rises = |bytes: u64| {
        let (before, sum) = (came(), |of: [u64; 2]| of.iter().sum::<u64>());
        wait_for("it to be taken", Duration::from_secs(60), || sum(came()) >= sum(before) + bytes);
        let now = came();
        [0, 1].map(|n| (now[n] - before[n]) as f64)
    };
    rises(1_000_000);
    let [a, b] = rises(bytes);
    a / (a + b)
}

/// What each setting is to come to: setting, values of a and b, part of a. With what they flood there are two ports below the upper one, and each has a 31st.
const PARTS: [(&str, [&str; 2], f64); 5] = [
    ("--weight", ["100", "100"], 0.5),
    ("--weight", ["300", "100"], 0.75),
    ("--weight", ["100", "300"], 0.25),
    ("--priority", ["1", "0"], 30.0 / 31.0),
    ("--priority", ["0", "1"], 1.0 / 31.0),
];

/// As those parts say, whatever was set before.
fn is_shared(site: &Flooded, came: impl Fn() -> [u64; 2]) {
    for (setting, values, part) in PARTS {
        site.set("--weight", ["100"; 2]);
        site.set("--priority", ["0"; 2]);
        site.set(setting, values);
        // Whoever is below gets its part in pieces, some seconds apart.
        let share = share(&came, if setting == "--priority" { 40_000_000 } else { 10_000_000 });
        println!("{setting} {values:?}: {share:.3} for a");
        assert!((share - part).abs() < 0.07, "{setting} {values:?}: {share:.3} for a, not {part}");
        let [got, due] = [share, part].map(|part: f64| part.min(1.0 - part));
        assert!(
            (due / 2.0..due * 2.0).contains(&got),
            "{setting} {values:?}: who is to get less is not forgotten: {got:.3}, not {due}"
        );
    }
    site.lasthop.check_sums();
}

/// Two machines flood an uplink that is to send 20 Mbit/s, each a station beyond it. One of them gets 14 at least and half of what is left, whichever it
/// is, and without a minimum both get as much.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_machine_gets_its_minimum_of_an_uplink() {
    let site = Flooded::uplink();
    for (minimums, fair) in [(["none", "none"], 0.5), (["14M", "none"], 0.85), (["none", "14M"], 0.15)] {
        // What one had before goes first: both together are more than there is.
        site.set("--min-rate", ["none"; 2]);
        site.set("--min-rate", minimums);
        let share = share(|| site.came(), 10_000_000);
        println!("{minimums:?}: {share:.3} for a");
        assert!((share - fair).abs() < 0.07, "{minimums:?}: {share:.3} for a, not {fair}");
    }
    site.lasthop.check_sums();
}

/// The same uplink by weight and by priority: by what comes out beyond it.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn machines_share_an_uplink_by_weight_and_priority() {
    let site = Flooded::uplink();
    is_shared(&site, || site.came());
}

/// A third machine asks something of the network that two flood. Its question waits for what is on its way of theirs, and not for all that they have: a burst of
/// 64 frames of each takes 72 ms of what the uplink is to send, and their rings have eight times as much.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_flood_of_an_uplink_delays_another_machines_ping_by_no_more_than_its_share() {
    let site = Flooded::uplink_of(&["a", "b", "c"]);
    let out = site.machines[2].output(&format!("ping -c 100 -i 0.2 -w 60 {BEYOND}"), 70);
    let times = out.stdout.lines().filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_unstable_by(f64::total_cmp);
    println!("{} answers, ms: {times:.1?}", times.len());
    assert!(times.len() >= 98, "{} of 100 answers: {}", times.len(), out.stdout);
    assert!(times[97] < 200.0, "one in fifty took {} ms", times[97]);
    // The flood was one all the while.
    let share = share(|| site.came(), 10_000_000);
    assert!((share - 0.5).abs() < 0.07, "{share:.3} for a");
    site.lasthop.check_sums();
}

/// A machine that is to get no more than 60 Mbit/s, and is sent far more by two others.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn machines_share_a_slow_guest_by_weight_and_priority() {
    let site = Flooded::guest();
    let dropped = || {
        let drops = site.lasthop.port("c")["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().map(|drop| drop["packets"].as_u64().expect("a number")).sum::<u64>()
    };
    // What is dropped there counts as gone: it has to be little, of 7000 packets at least, for that to be what came.
    is_shared(&site, || {
        let dropped = dropped();
        assert!(dropped < 100, "{dropped} were dropped, and whose they are nobody knows");
        site.went()
    });
}

/// A guest that may flood little: its broadcasts are few, its other traffic is not touched.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn storms_are_limited() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b"].map(|name| Port::listen(name, dir.path())));
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    checks::ping(&a, &b);
    lasthop.command(&["port", "set", "a", "--storm", "100pps:20"]);
    a.run("lasthop-guest raw-send eth0 ff:ff:ff:ff:ff:ff 88b5 3000 60 60 100");
    let port = lasthop.port("a");
    let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
    let storm = drops.iter().find(|d| d["reason"] == "storm").map_or(0, |d| d["packets"].as_u64().unwrap_or(0));
    assert!((2000..3000).contains(&storm), "{storm} of 3000 dropped");
    assert!(answers(&a, &b.config.nics[0].ip4().to_string()), "what is not flooded passes");
    let flows = lasthop.command(&["flow", "list"]);
    assert!(flows.contains("limit_flood"), "{flows}");
}

/// A machine whose rings are longer than its port allows has no network, and the port says why; started with shorter ones it has.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_machine_with_longer_rings_than_its_port_allows_has_no_network() {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    lasthop.command(&["port", "set", "b", "--max-ring", "256"]);
    let of_size = |size: u32| {
        let nic = Nic::vhost_user(&ports[1].socket, 2).with(&format!("rx_queue_size={size}"));
        VmConfig::new("b", [nic])
    };
    let [a, long] = Vm::boot_all([config("a", dir.path(), 1), of_size(1024)]);
    let why = || lasthop.port("b")["last_error"].as_str().unwrap_or_default().to_owned();
    wait_for("the port to say why", Duration::from_secs(30), || {
        why().contains("1024 entries") && why().contains("256 (max-ring)")
    });
    assert!(none_answers(&[(&a, "10.9.0.2"), (&long, "10.9.0.1")]), "it has no network");
    drop(long);
    let b = Vm::boot(of_size(256));
    checks::ping(&a, &b);
    lasthop.check_sums();
}

/// A machine floods another, and its packets take a quarter of the processor time that they took before it was bounded.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_machine_is_held_to_its_bound_of_processor_time() {
    // There are no helpers: its thread takes all of it.
    is_held_to_a_quarter("a", "--max-cpu", 60, |lasthop| lasthop.port("a")["cpu_ns"].as_u64(), "cpu_bound");
}

/// A machine is flooded, and copies to it take a quarter of what they took before they were bounded.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn copies_to_a_machine_are_held_to_their_bound() {
    is_held_to_a_quarter("b", "--max-cpu-to", 1500, |lasthop| lasthop.port("b")["copied_ns"].as_u64(), "copy_bound");
}

/// Machine `a` floods `b`; what is spent is bounded by that setting of that port, and so shown.
fn is_held_to_a_quarter(port: &str, setting: &str, len: u32, spent_ns: fn(&Lasthop) -> Option<u64>, bound: &str) {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--helpers", "none"]);
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    checks::ping(&a, &b);
    (0..2).for_each(|_| {
        let to = b.config.nics[0].mac();
        a.background(&format!("lasthop-guest raw-send eth0 {to} 88b5 1000000000 {len} {len} 0"));
    });
    // In hundredths of a processor.
    let spent = || {
        let (before, since) = (spent_ns(&lasthop).expect("a time"), Instant::now());
        std::thread::sleep(Duration::from_secs(5));
        (spent_ns(&lasthop).expect("a time") - before) as f64 * 100.0 / since.elapsed().as_nanos() as f64
    };
    let unbounded = spent();
    let most = (unbounded / 4.0).ceil();
    if most > unbounded / 2.0 {
        println!("{unbounded} % is too little to be bounded by whole hundredths: not tested");
        return;
    }
    lasthop.command(&["port", "set", port, setting, &most.to_string()]);
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let now = spent();
        println!("of {unbounded} % to be {most}: {now}, {}", lasthop.port(port)[bound]);
        if (most * 0.75..=most * 1.25).contains(&now) {
            break;
        }
        assert!(Instant::now() < end, "{now} %, not {most}");
    }
    assert!(lasthop.port(port)[bound].is_object() && lasthop.port(port)[bound]["missed_ms"].is_null());
    checks::ping(&a, &b);
    lasthop.check_sums();
}
