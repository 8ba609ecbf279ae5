//! The distribution's `ovs-vswitchd` decides: bridges, OpenFlow rules, whole packets to a controller and from it, the death of ovs-vswitchd. Packets in, packets
//! out.

#[path = "open_vswitch/advice.rs"]
mod advice;
#[path = "open_vswitch/away.rs"]
mod away;
#[path = "open_vswitch/connections.rs"]
mod connections;
#[path = "open_vswitch/deaths.rs"]
mod deaths;
#[path = "open_vswitch/floods.rs"]
mod floods;
#[path = "open_vswitch/internal.rs"]
mod internal;
#[path = "open_vswitch/labels.rs"]
mod labels;
#[path = "open_vswitch/limits.rs"]
mod limits;
#[path = "open_vswitch/meters.rs"]
mod meters;
#[path = "open_vswitch/mirrors.rs"]
mod mirrors;
#[path = "open_vswitch/restarts.rs"]
mod restarts;
#[path = "open_vswitch/samples.rs"]
mod samples;
#[path = "open_vswitch/service_headers.rs"]
mod service_headers;
#[path = "open_vswitch/steady.rs"]
mod steady;
#[path = "open_vswitch/upgrades.rs"]
mod upgrades;

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, number_of, numbered, scratch, spawn, vswitch, wait_for,
};
use lasthop_text::MacAddr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// lasthop with Open vSwitch in charge, and a bridge `br0` with two guests' ports.
struct Site {
    guests: [Guest; 2],
    vswitchd: Child,
    database: Child,
    lasthop: Lasthop,
    netns: Netns,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let (dir, netns) = (scratch(), Netns::new());
        let ports = ["vm1", "vm2"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--control", "ovs", "--no-bpf"]);
        let database = vswitch::database(&netns, dir.path());
        let vswitchd = vswitch::daemon(&netns, dir.path(), &lasthop);
        let guest =
            |name: &str, n| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(n), Options::default());
        let guests = [guest("vm1", 1), guest("vm2", 2)];
        let mut site = Self { guests, vswitchd, database, lasthop, netns, dir };
        ["vm1", "vm2"].into_iter().for_each(|port| site.lasthop.wait_for_state(port, "up"));
        let add = "add-br br0 -- add-port br0 vm1 -- set interface vm1 ofport_request=1 -- add-port br0 vm2 -- set interface vm2 ofport_request=2";
        site.vsctl(add);
        site.wait_for_bridge();
        // Counters begin anew.
        site.ofctl(&["del-flows"]);
        site.ofctl(&["add-flow", "priority=0,actions=NORMAL"]);
        site
    }

    /// The threads that take packets know a new bridge a little later than it is said to be there.
    fn wait_for_bridge(&mut self) {
        let [a, b] = &mut self.guests;
        wait_for("packets", PATIENCE, || {
            a.send(&numbered(mac(1), MacAddr::BROADCAST, 0, 60));
            b.recv_within(Duration::from_millis(500)).is_some()
        });
        b.drain();
    }

    fn vsctl(&self, words: &str) -> String {
        let words: Vec<_> = ["ovs-vsctl", "--timeout=20"].into_iter().chain(words.split(' ')).collect();
        vswitch::run(self.dir.path(), &words)
    }

    /// Asks the bridge something by OpenFlow. Rules that are changed hold when it returns, also for packets whose flows there were before:
    /// Open vSwitch changes these a little later.
    fn ofctl(&self, words: &[&str]) -> String {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        let (first, rest) = words.split_first().expect("a command");
        let told = vswitch::run(self.dir.path(), &[&["ovs-ofctl", first, &bridge], rest].concat());
        if matches!(*first, "add-flow" | "del-flows") {
            self.appctl(&["revalidator/wait"]);
        }
        told
    }

    fn appctl(&self, words: &[&str]) -> String {
        let control = self.dir.path().join("ovs-vswitchd.ctl").display().to_string();
        vswitch::run(self.dir.path(), &[&["ovs-appctl", "-t", &control], words].concat())
    }

    /// Packets that a rule has had, found by a part of it.
    fn packets(&self, rule: &str) -> u64 {
        let rules = self.ofctl(&["dump-flows"]);
        let line = rules.lines().find(|line| line.contains(rule)).unwrap_or_else(|| panic!("no {rule} in {rules}"));
        let number = line.split("n_packets=").nth(1).and_then(|rest| rest.split(',').next());
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no packets in {line}"))
    }

    fn wait_for_packets(&self, rule: &str, packets: u64) {
        wait_for(&format!("{packets} packets of {rule}"), PATIENCE, || self.packets(rule) >= packets);
        assert_eq!(self.packets(rule), packets, "{rule}");
    }

    /// Whatever goes wrong is told by the logs.
    fn logs(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("ovs-vswitchd.log")).unwrap_or_default();
        format!("{}\n{log}", self.lasthop.log())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        spawn::end(&mut self.vswitchd);
        spawn::end(&mut self.database);
    }
}

/// A frame with a tag of this VLAN in front of what it was.
fn in_vlan(vlan: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &vlan.to_be_bytes(), &frame[12..]].concat()
}

/// Sends a frame until it has arrived: the first may be lost while ovs-vswitchd makes the rules of a bridge that is new.
fn pass_at_last(from: &mut Guest, to: &mut Guest, frame: &[u8]) {
    wait_for("the frame", PATIENCE, || {
        from.send(frame);
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            if to.try_recv().is_some_and(|(_, came)| came == frame) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    });
}

/// Sends a frame, which arrives.
fn pass(from: &mut Guest, to: &mut Guest, frame: &[u8]) {
    from.send(frame);
    to.expect(frame);
}

#[test]
fn a_bridge_with_normal_switches_whole_packets_and_counts_them() {
    let mut site = Site::new();
    let show = site.appctl(&["dpif/show"]);
    for part in ["system@ovs-system", "br0", "vm1 1/", "vm2 2/"] {
        assert!(show.contains(part), "{part}: {show}");
    }
    let [a, b] = &mut site.guests;
    // The first is flooded, the answer goes where that came from; some longer than what the switch shows of a packet.
    pass(a, b, &numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    for (number, len) in (2..40).zip([60, 192, 193, 600, 1514].into_iter().cycle()) {
        pass(b, a, &numbered(mac(2), mac(1), number, len));
        pass(a, b, &numbered(mac(1), mac(2), number + 100, len));
    }
    site.wait_for_packets("NORMAL", 77);
    let flows = site.appctl(&["dpctl/dump-flows"]);
    assert!(flows.contains("eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)"), "{flows}");
    let learned = site.appctl(&["fdb/show", "br0"]);
    assert!(learned.contains("02:00:00:00:00:01") && learned.contains("02:00:00:00:00:02"), "{learned}");
    let ours = site.lasthop.command(&["flow", "list"]);
    assert!(ours.contains("vm1") && ours.contains("vm2"), "{ours}");
    site.lasthop.check_sums();
    let refused = site.lasthop.try_command(&["port", "set", "vm1", "--vlan", "5"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Open vSwitch decides"), "{refused:?}");
}

#[test]
fn openflow_rules_do_what_they_say_and_count() {
    let mut site = Site::new();
    let rules = [
        "priority=9,in_port=1,dl_dst=02:00:00:00:00:99,actions=drop",
        "priority=8,in_port=1,dl_dst=02:00:00:00:00:44,actions=mod_dl_dst:02:00:00:00:00:02,output:2",
        "priority=8,in_port=1,dl_dst=02:00:00:00:00:55,actions=mod_vlan_vid:5,output:2",
        "priority=8,in_port=1,dl_dst=02:00:00:00:00:66,actions=resubmit(,1)",
        "table=1,priority=8,in_port=1,actions=output:2,in_port",
        "priority=8,in_port=2,dl_vlan=7,actions=strip_vlan,output:1",
        "priority=1,in_port=2,actions=output:1",
    ];
    site.ofctl(&["del-flows"]);
    rules.iter().for_each(|rule| drop(site.ofctl(&["add-flow", rule])));
    let [a, b] = &mut site.guests;
    let to = |last| MacAddr([2, 0, 0, 0, 0, last]);
    for number in [1, 2, 3] {
        a.send(&numbered(mac(1), to(0x99), number, 300));
        let frame = numbered(mac(1), to(0x44), number, 300);
        a.send(&frame);
        b.expect(&[&[2, 0, 0, 0, 0, 2], &frame[6..]].concat());
        let frame = numbered(mac(1), to(0x55), number, 300);
        a.send(&frame);
        b.expect(&in_vlan(5, &frame));
        let frame = numbered(mac(1), to(0x66), number, 300);
        a.send(&frame);
        b.expect(&frame);
        a.expect(&frame);
        let frame = numbered(mac(2), mac(1), number, 300);
        b.send(&in_vlan(7, &frame));
        a.expect(&frame);
    }
    for rule in ["dl_dst=02:00:00:00:00:99", "dl_dst=02:00:00:00:00:44", "dl_dst=02:00:00:00:00:55", "dl_vlan=7"] {
        site.wait_for_packets(rule, 3);
    }
    // A rule that goes takes the flows with it: what it let through is dropped from then on.
    site.ofctl(&["del-flows", "in_port=1,dl_dst=02:00:00:00:00:44"]);
    let [a, b] = &mut site.guests;
    wait_for("the rule's end", PATIENCE, || {
        a.send(&numbered(mac(1), to(0x44), 50, 60));
        a.send(&numbered(mac(1), to(0x66), 51, 60));
        b.recv("what is still let through", |_, frame| number_of(frame) == Some(51));
        b.drain().iter().all(|frame| number_of(frame) != Some(50))
    });
}

/// An output of a packet's first bytes concerns no other output, and is the switch's.
#[test]
fn an_output_may_be_cut() {
    let mut site = Site::new();
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,actions=output(port=2,max_len=100),output:2"]);
    let [a, b] = &mut site.guests;
    for (number, len) in (1..21).zip([1514, 60, 101, 100].into_iter().cycle()) {
        let frame = numbered(mac(1), mac(2), number, len);
        a.send(&frame);
        b.expect(&frame[..len.min(100)]);
        b.expect(&frame);
    }
    let ours = site.lasthop.command(&["flow", "list"]);
    assert!(ours.contains("trunc(100),vm2,vm2"), "{ours}");
    site.lasthop.check_sums();
}

#[test]
fn access_ports_keep_vlans_apart() {
    let mut site = Site::new();
    site.vsctl("set port vm1 tag=10 -- set port vm2 trunks=10,20");
    let [a, b] = &mut site.guests;
    let frame = numbered(mac(1), MacAddr::BROADCAST, 1, 500);
    wait_for("the VLAN", PATIENCE, || {
        a.send(&frame);
        b.recv("a broadcast", |_, got| got.ends_with(&frame[12..])).1 == in_vlan(10, &frame)
    });
    let answer = numbered(mac(2), mac(1), 2, 500);
    b.send(&in_vlan(20, &numbered(mac(2), MacAddr::BROADCAST, 3, 60)));
    b.send(&in_vlan(10, &answer));
    a.recv("the answer", |_, got| {
        assert_ne!(number_of(got), Some(3), "of another VLAN");
        *got == answer
    });
}

#[test]
fn whole_packets_go_to_a_controller_and_come_from_it() {
    let mut site = Site::new();
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,actions=controller:65535"]);
    let bridge = format!("unix:{}", site.dir.path().join("br0.mgmt").display());
    let mut monitor = spawn::spawn("TERM", "ovs-ofctl", |c| {
        c.args(["monitor", &bridge, "65534"]).env("OVS_RUNDIR", site.dir.path());
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    });
    let (lines, said) = std::sync::mpsc::channel();
    let streams: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(monitor.stdout.take().expect("a pipe")), Box::new(monitor.stderr.take().expect("a pipe"))];
    for stream in streams {
        let lines = lines.clone();
        std::thread::spawn(move || {
            BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)));
        });
    }
    let frame = numbered(mac(1), mac(2), 1, 1400);
    let mut heard = String::new();
    wait_for("a packet at the controller", PATIENCE, || {
        site.guests[0].send(&frame);
        heard.extend(said.try_iter());
        heard.contains("total_len=1400")
    });
    assert!(heard.contains("in_port=1") && heard.contains("(via action)"), "{heard}");
    spawn::end(&mut monitor);

    let frame = numbered(mac(7), mac(2), 9, 1400);
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    site.ofctl(&["packet-out", &format!("in_port=controller,packet={hex},actions=output:2")]);
    site.guests[1].expect(&frame);
}

#[test]
fn the_death_of_ovs_vswitchd_costs_no_known_flow() {
    let mut site = Site::new();
    let [a, b] = &mut site.guests;
    pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    pass_at_last(b, a, &numbered(mac(2), mac(1), 2, 60));
    pass_at_last(a, b, &numbered(mac(1), mac(2), 3, 600));

    // Known flows go on while nobody decides.
    site.vswitchd.kill().expect("it is ours");
    let _ = site.vswitchd.wait();
    let [a, b] = &mut site.guests;
    pass(a, b, &numbered(mac(1), mac(2), 4, 600));
    pass(b, a, &numbered(mac(2), mac(1), 5, 600));
    site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
    site.wait_for_bridge();
}

#[test]
fn the_death_of_lasthop_ovs_is_survived_without_a_restart_of_ovs_vswitchd() {
    let mut site = Site::new();
    let [a, b] = &mut site.guests;
    pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 1, 60));
    pass_at_last(b, a, &numbered(mac(2), mac(1), 2, 60));
    pass_at_last(a, b, &numbered(mac(1), mac(2), 3, 600));
    for round in 0..5u32 {
        site.lasthop.kill("lasthop-ovs");
        // What was known goes on, what is new is decided by the same ovs-vswitchd, and it hears of rules that change.
        let new = mac(10 + round as u8);
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &numbered(mac(1), mac(2), 100 + round, 600));
        pass_at_last(b, a, &numbered(mac(2), mac(1), 200 + round, 600));
        pass_at_last(a, b, &numbered(new, mac(2), 300 + round, 600));
        pass_at_last(b, a, &numbered(mac(2), new, 400 + round, 600));
        site.ofctl(&["add-flow", &format!("priority=9,dl_src={new},actions=drop")]);
        let [a, b] = &mut site.guests;
        a.send(&numbered(new, mac(2), 500 + round, 600));
        pass_at_last(a, b, &numbered(mac(1), mac(2), 600 + round, 600));
    }
    assert!(site.vswitchd.try_wait().expect("it is ours").is_none(), "ovs-vswitchd runs");
    let show = site.appctl(&["dpctl/show"]);
    assert!(show.contains("vm1") && show.contains("vm2"), "{show}");
    // Ports still come and go.
    site.vsctl("del-port vm2");
    site.vsctl("add-port br0 vm2");
    let [a, b] = &mut site.guests;
    pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 7, 60));
    site.lasthop.check_sums();
}
