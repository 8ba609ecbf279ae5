//! Established flows in the kernel (`lasthop run --hw-offload`): lasthop runs in a Debian VM, whose kernel has the classifier flower. Two network namespaces there
//! have an end of a veth pair each, as VMs have functions of a card; the other ends are the representors.

use lasthop_harness::{Vm, VmConfig, binary, wait_for};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(90);
const PROGRAMS: [&str; 6] =
    ["lasthop", "lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-uplink", "lasthop-flower"];
const MODULES: &str = "tun veth sch_ingress cls_flower act_mirred act_vlan";

/// A VM that is a host: two "VMs", a and b, whose representors are rep1 and rep2.
struct Host(Vm);

impl Host {
    /// With these modules of the kernel loaded.
    fn boot(modules: &str) -> Self {
        let tools = ["/usr/sbin/tc", "/usr/sbin/ip"].map(PathBuf::from);
        let programs = PROGRAMS.map(binary).into_iter().chain(tools);
        let vm = Vm::boot(VmConfig::new("host", []).memory_mib(1024).programs(programs));
        vm.run(&format!("for m in {modules}; do insmod /modules/$m.ko || exit 1; done; mkdir -p /var/run /run"));
        Self(vm)
    }

    fn with_guests(self) -> Self {
        for (n, name) in [(1, "a"), (2, "b")] {
            self.0.run(&format!(
                "/bin/ip netns add {name} && /bin/ip link add rep{n} type veth peer name vf{n} netns {name} address 02:00:00:00:00:0{n} && \
                 /bin/ip -n {name} addr add 10.0.0.{n}/24 dev vf{n} && /bin/ip -n {name} link set vf{n} up && /bin/ip link set rep{n} up"
            ));
        }
        self
    }

    /// Starts lasthop with these words, and waits until it is ready.
    fn lasthop(&self, words: &str) {
        self.plain_lasthop(&format!("--tc-policy skip_hw --hw-offload {words}"));
    }

    fn plain_lasthop(&self, words: &str) {
        self.0.run("rm -f /tmp/out");
        self.0.background(&format!("lasthop run --no-bpf {words} >/tmp/out 2>>/tmp/log"));
        wait_for("lasthop to be ready", PATIENCE, || self.0.output("grep ready /tmp/out", 10).code == 0);
    }

    fn json(&self, command: &str) -> Value {
        let text = self.0.run(&format!("lasthop {command} --json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command}: {e}: {text}"))
    }

    /// Rules of flows from a representor.
    fn rules(&self, n: u8) -> usize {
        let shown = self.0.run(&format!("/bin/tc filter show dev rep{n} ingress"));
        shown.lines().filter(|line| line.contains(" handle ") && !line.contains("pref 19711 ")).count()
    }

    /// Whether what a representor receives goes to a TAP device of lasthop's.
    fn joined(&self, n: u8) -> bool {
        self.0.run(&format!("/bin/tc filter show dev rep{n} ingress")).contains("pref 19711 ")
    }

    /// Whether the host itself hears by rep1 what a sends.
    fn receives(&self) -> bool {
        self.0.run("/bin/ip addr add 10.0.0.101/24 dev rep1");
        let heard = self.0.output("/bin/ip netns exec a ping -q -c 3 -i 0.2 -W 2 10.0.0.101", 60).code == 0;
        self.0.run("/bin/ip addr del 10.0.0.101/24 dev rep1");
        heard
    }

    /// Ends all at once, as the kernel does where memory is short.
    fn kill_all(&self) {
        self.0.run(
            "kill -9 $(pidof lasthop-flower lasthop lasthop-switch lasthop-control lasthop-session lasthop-uplink)",
        );
        wait_for("all to be gone", PATIENCE, || self.0.output("pidof lasthop lasthop-uplink", 10).code != 0);
    }

    /// Packets that the rules of flows from a representor have carried, as the kernel counts them.
    fn carried(&self, n: u8) -> u64 {
        let shown = self.0.run(&format!("/bin/tc -s filter show dev rep{n} ingress"));
        let of_flows =
            shown.split("filter protocol").filter(|rule| rule.contains(" handle ") && !rule.contains("pref 19711 "));
        let packets = |rule: &str| {
            let line = rule.lines().find(|line| line.contains("Sent ")).unwrap_or_default();
            line.split_ascii_whitespace().nth(3).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        of_flows.map(packets).sum()
    }

    /// Frames that came to lasthop from the representors.
    fn came(&self) -> u64 {
        let numbers = self.0.run("cat /sys/class/net/lhtc*/statistics/tx_packets");
        numbers.lines().map(|line| line.trim().parse::<u64>().expect("a number")).sum()
    }

    /// Packets that lasthop says have come from a port's guest.
    fn counted(&self, port: &str) -> u64 {
        let ports = self.json("port list");
        let all = ports["ports"].as_array().expect("a list").iter();
        let port = all.clone().find(|p| p["name"] == port).unwrap_or_else(|| panic!("no {port} in {ports}"));
        port["from_guest"]["packets"].as_u64().unwrap_or_else(|| panic!("{port}"))
    }

    /// So many echoes from a to b; whether all came back.
    fn ping(&self, count: u32) -> bool {
        self.0.output(&format!("/bin/ip netns exec a ping -q -c {count} -i 0.05 -W 2 10.0.0.2"), 60).code == 0
    }

    /// Pings until both ways have their rules.
    fn establish(&self) {
        wait_for("flows to be in the kernel", PATIENCE, || self.ping(2) && self.rules(1) > 0 && self.rules(2) > 0);
    }

    fn log(&self) -> String {
        self.0.run("cat /tmp/log")
    }
}

const PORTS: &str = "--port vm1=device:rep1,driver=tc --port vm2=device:rep2,driver=tc";

/// What cannot be is said at the start.
fn without_flower(host: &Host) {
    let out = host.0.output(&format!("lasthop run --no-bpf --hw-offload {PORTS}"), 60);
    assert!(out.code != 0 && out.stderr.contains("this kernel has no classifier \"flower\""), "{out:?}");
    let out = host.0.output(&format!("lasthop run --no-bpf {PORTS}"), 60);
    assert!(out.code != 0 && out.stderr.contains("driver=tc needs"), "{out:?}");
}

/// What is established does not come to lasthop any more, and counts there all the same.
fn is_counted(host: &Host) {
    let (came, counted, carried) = (host.came(), host.counted("vm1"), host.carried(1));
    assert!(host.ping(100));
    let (came, carried) = (host.came() - came, host.carried(1) - carried);
    let counted = host.counted("vm1") - counted;
    eprintln!("100 echoes: {came} frames came to lasthop, rules carried {carried} of vm1's, lasthop counts {counted}");
    assert!(came < 20, "{came} of 200 frames came to lasthop\n{}", host.log());
    assert!(carried >= 95, "{carried}\n{}", host.log());
    // As of the last look.
    assert!(counted >= 90, "{counted}\n{}", host.log());
    let (came, counted) = (host.came(), host.counted("vm1"));
    host.0.run("/bin/ip netns exec b iperf3 -s -1 -D && sleep 1");
    let out = host.0.run("/bin/ip netns exec a iperf3 -c 10.0.0.2 -t 3 -f m | grep receiver");
    let (came, counted) = (host.came() - came, host.counted("vm1") - counted);
    eprintln!("iperf3: {} {came} frames came to lasthop, which counts {counted} from vm1", out.trim());
    assert!(counted > 1000 && came < counted / 10, "{came} of {counted}\n{}", host.log());
}

/// Where one looks first.
fn is_shown(host: &Host) {
    let stats = host.0.run("lasthop stats");
    assert!(
        stats.contains("in the kernel or a card (tc-policy=skip_hw): ") && stats.contains(" of 2 ports"),
        "{stats}"
    );
    assert!(stats.contains("nothing unaccounted") || !stats.contains("unaccounted"), "{stats}");
    let doctor = host.0.output("lasthop doctor", 60).stdout;
    assert!(doctor.starts_with("nothing found"), "{doctor}");
    // What is not replaced is told, and is no fault.
    let upgrade = host.0.output("lasthop upgrade", 60);
    assert!(upgrade.code == 0, "{upgrade:?}");
    let upgrade = host.0.output("lasthop upgrade --all", 90);
    assert!(upgrade.code == 0 && upgrade.stdout.contains("with --hw-offload"), "{upgrade:?}");
    host.establish();
}

/// A list holds when the command returns, whatever was in the kernel, and whoever was just killed.
fn a_list_holds(host: &Host, before: &str) {
    let echoes = "/bin/ip netns exec b awk '/^Icmp: [0-9]/ {print $10}' /proc/net/snmp";
    host.establish();
    let pings = host.0.spawn("/bin/ip netns exec a ping -q -c 300 -i 0.01 -W 1 10.0.0.2");
    let out = host.0.run(&format!(
        "sleep 1; {before}; a=$(cut -d' ' -f1 /proc/uptime); echo deny icmp >/tmp/deny; until lasthop acl load /tmp/deny >/dev/null; do sleep 0.1; done; \
         b=$(cut -d' ' -f1 /proc/uptime); {echoes}; sleep 1; {echoes}; echo $a $b"
    ));
    let _ = pings.output(Duration::from_secs(60));
    let lines: Vec<_> = out.lines().collect();
    eprintln!(
        "{before:?}: the list was loaded between {} s; echoes that came then and a second later: {} {}",
        lines[2], lines[0], lines[1]
    );
    assert_ne!(lines[0], "0", "they are counted");
    assert_eq!(lines[0], lines[1], "echoes passed after the list was in force\n{}", host.log());
    assert!(!host.ping(1), "denied\n{}", host.log());
    host.0.run("lasthop acl clear");
    host.establish();
}

/// A rate is kept by lasthop alone, and so is a share of a CPU.
fn a_rate_brings_flows_back(host: &Host, option: &str, value: &str) {
    host.0.run(&format!("lasthop port set vm1 {option} {value}"));
    assert_eq!([host.rules(1), host.rules(2)], [0, 0], "{}", host.log());
    assert!(host.ping(3));
    assert_eq!([host.rules(1), host.rules(2)], [0, 0], "{}", host.log());
    assert!(host.0.run("lasthop stats").contains("their sender or receiver has a rate"));
    host.0.run(&format!("lasthop port set vm1 {option} none"));
    host.establish();
}

/// An access port's frames get their tag, and lose it, in the kernel.
fn tags(host: &Host) {
    host.0.run("lasthop port set vm1 --vlan 10 && lasthop port set vm2 --trunk 10");
    host.0.run(
        "insmod /modules/llc.ko; insmod /modules/stp.ko; insmod /modules/garp.ko; insmod /modules/mrp.ko; insmod /modules/8021q.ko; \
         /bin/ip -n b link add link vf2 name v10 type vlan id 10 && /bin/ip -n b addr del 10.0.0.2/24 dev vf2 && /bin/ip -n b addr add 10.0.0.2/24 dev v10 && \
         /bin/ip -n b link set v10 up",
    );
    host.establish();
    let shown = host.0.run("/bin/tc filter show dev rep1 ingress; /bin/tc filter show dev rep2 ingress");
    assert!(shown.contains("vlan  push id 10") || shown.contains("vlan push id 10"), "{shown}");
    assert!(shown.contains("vlan  pop") || shown.contains("vlan pop"), "{shown}");
    let came = host.came();
    assert!(host.ping(50));
    let came = host.came() - came;
    assert!(came < 20, "{came} of 100 frames came to lasthop: {shown}");
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn established_flows_pass_lasthop_by_and_are_counted() {
    let host = Host::boot("tun veth").with_guests();
    without_flower(&host);
    host.0.run("for m in sch_ingress cls_flower act_mirred act_vlan; do insmod /modules/$m.ko || exit 1; done");
    host.lasthop(PORTS);
    host.establish();
    is_counted(&host);
    a_list_holds(&host, "true");
    a_list_holds(&host, "kill -9 $(pidof lasthop-flower)");
    a_list_holds(&host, "kill -9 $(pidof lasthop-switch)");
    a_list_holds(&host, "kill -9 $(pidof lasthop-control)");
    a_rate_brings_flows_back(&host, "--rate-from", "100M");
    a_rate_brings_flows_back(&host, "--max-cpu", "50");
    // Before tags: what a guest says without one meanwhile is a finding.
    is_shown(&host);
    tags(&host);
    // A port that goes takes its flows along.
    host.0.run("lasthop port del vm2");
    assert_eq!(host.rules(1), 0, "{}", host.log());
    assert!(!host.ping(1));
    assert_eq!([host.joined(1), host.joined(2)], [true, false], "{}", host.log());
}

/// `lasthop run` that ends in whatever way leaves no rule of a flow.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn no_rule_outlives_lasthop() {
    let host = Host::boot(MODULES).with_guests();
    for signal in ["TERM", "KILL"] {
        host.lasthop(PORTS);
        host.establish();
        host.0.run(&format!("kill -{signal} $(pidof lasthop)"));
        wait_for("lasthop to be gone", PATIENCE, || host.0.output("pidof lasthop lasthop-flower", 10).code != 0);
        assert_eq!([host.rules(1), host.rules(2)], [0, 0], "after SIG{signal}\n{}", host.log());
        // Who is killed leaves what joins interfaces to TAP devices, to the next one.
        assert_eq!([host.joined(1), host.joined(2)], [signal == "KILL"; 2], "after SIG{signal}\n{}", host.log());
        assert_eq!(host.receives(), signal == "TERM", "after SIG{signal}\n{}", host.log());
    }
    // Nor does one that is not to begin.
    for option in ["--hw-offload", ""] {
        let out = host.0.output(&format!("lasthop run --no-bpf {option} {PORTS} >/dev/full"), 60);
        assert!(out.code != 0 && out.stderr.contains("\"ready\" could not be written"), "{out:?}");
        assert_eq!([host.joined(1), host.joined(2)], [false, false], "{option}\n{}", out.stderr);
    }
    // Where all are killed at once, the next one finds them.
    host.lasthop(PORTS);
    host.establish();
    host.kill_all();
    assert!(host.rules(1) > 0);
    host.lasthop(PORTS);
    wait_for("what was left to be gone", PATIENCE, || host.rules(1) == 0);
    host.establish();
    // And one that gives nothing to the kernel, with this driver and with another.
    for ports in [PORTS.to_owned(), PORTS.replace("driver=tc", "driver=af_packet")] {
        host.kill_all();
        assert!(host.rules(1) > 0 && host.rules(2) > 0 && host.joined(1));
        host.plain_lasthop(&ports);
        assert_eq!([host.rules(1), host.rules(2)], [0, 0], "{ports}\n{}", host.log());
        assert_eq!(host.joined(1), ports == PORTS, "{ports}\n{}", host.log());
        assert!(host.ping(3), "{}", host.log());
        host.kill_all();
        host.lasthop(PORTS);
        host.establish();
    }
    host.0.run("kill -TERM $(pidof lasthop)");
    wait_for("lasthop to be gone", PATIENCE, || host.0.output("pidof lasthop lasthop-flower", 10).code != 0);
    assert!(host.receives(), "{}", host.log());
}
