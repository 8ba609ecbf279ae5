//! The commands against a control process (in a thread) whose supervisor and switch are not real.

#[path = "../../lasthop-control/tests/fake/mod.rs"]
mod fake;

mod cli {
    mod lists;
}

use fake::{Fake, frame};
use lasthop_control::Descriptors;
use lasthop_ipc::{PortState, ToControl};
use lasthop_management_ipc::{DeviceState, LinkState, SupervisorToControl};
use lasthop_types::PortId;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::thread::JoinHandle;

/// Ends control when dropped: its supervisor is gone then.
struct World {
    fake: Option<Fake>,
    control: Option<JoinHandle<()>>,
}

impl World {
    fn new(ports: &[&str]) -> Self {
        let (mut fake, supervisor, api) = Fake::new();
        let control = std::thread::spawn(|| {
            let (read_api, host_view, connections, rules, bus) = (None, None, lasthop_policy::CONNECTIONS, None, None);
            lasthop_control::run(Descriptors { supervisor, api, read_api, host_view, connections, rules, bus }).unwrap()
        });
        fake.announce_lists();
        fake.add_ports(ports);
        fake.attach();
        fake.serve_until(|f| f.ready && f.heard == ["ask"]);
        Self { fake: Some(fake), control: Some(control) }
    }

    fn fake(&mut self) -> &mut Fake {
        self.fake.as_mut().unwrap()
    }

    fn lasthop(&mut self, line: &str) -> Output {
        self.with(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Arguments that may be empty or of several lines.
    fn with(&mut self, arguments: &[&str]) -> Output {
        let fake = self.fake();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.args(arguments).arg("--run-dir").arg(fake.dir.path());
        let thread = std::thread::spawn(move || command.output().unwrap());
        while !thread.is_finished() {
            fake.serve_for_a_moment();
        }
        thread.join().unwrap()
    }

    fn ok(&mut self, line: &str) -> String {
        let output = self.lasthop(line);
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&mut self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(&format!("{line} --json"))).unwrap()
    }

    /// The one line that says what is wrong.
    fn error(&mut self, line: &str, status: i32) -> String {
        complaint(&self.lasthop(line), status)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.fake.take());
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

fn complaint(output: &Output, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(output.stdout.is_empty());
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("lasthop: ") && text.contains(';'), "{text}");
    text
}

fn without_instance(line: &str, status: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lasthop")).args(line.split_whitespace()).output().unwrap();
    complaint(&output, status)
}

#[test]
fn ports_come_and_go() {
    let mut w = World::new(&["vm1"]);
    assert_eq!(w.ok("port add vm2 /run/vm2.sock --client"), "port vm2: lasthop connects to /run/vm2.sock\n");
    assert_eq!(w.json("port add vm3 /run/vm3.sock --tx-batch 250,32")["id"], 3);
    assert!(w.error("port add vm4 /run/vm4.sock --tx-batch soon", 2).contains("or off"));
    let list = w.ok("port list");
    let columns: Vec<_> = list.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(columns, ["vm2", "up", "connect", "-", "0", "0", "10", "8", "2", "/run/vm2.sock"]);
    let list = w.json("port list");
    assert_eq!(list["ports"].as_array().unwrap().len(), 3);
    assert_eq!(list["ports"][1]["client"], true);
    assert_eq!(list["ports"][1]["tx_batch"], serde_json::json!({"us": 125, "packets": 64}));
    assert_eq!(list["ports"][2]["tx_batch"], serde_json::json!({"us": 250, "packets": 32}));
    assert_eq!(list["ports"][2]["cpu_ns"], 3_000_000);
    assert_eq!(list["ports"][1]["from_guest"]["drops"][0]["reason"], "acl");
    assert!(w.error("port add vm2 /run/x.sock", 1).contains("already; choose another name"));
    assert_eq!(w.ok("port del vm2"), "port vm2: removed\n");
    assert!(w.error("port del vm2", 1).contains("no port named \"vm2\""));
    // A relative path means the directory of whoever typed it.
    let here = std::env::current_dir().unwrap().join("x.sock");
    assert_eq!(w.json("port add vm4 x.sock")["path"], here.to_str().unwrap());
}

#[test]
fn lists_flows_and_addresses() {
    let mut w = World::new(&["vm1", "vm2", "vm3"]);
    assert!(w.ok("flow list").starts_with("no flows"));
    assert!(w.ok("mac list").starts_with("no addresses"));
    w.fake().packet(&frame(1, 2), 1);
    w.fake().serve_until(|f| f.flows.len() == 1);
    w.fake().packet(&frame(2, 1), 2);
    w.fake().serve_until(|f| f.flows.len() == 2);
    let flows = w.ok("flow list");
    assert!(
        flows.contains("vm2  in_port=vm1 eth_src=52:54:00:00:00:01 eth_dst=52:54:00:00:00:02 vlan=none\n"),
        "{flows}"
    );
    let flow = &w.json("flow list")["flows"][0];
    assert_eq!((&flow["outputs"][0], &flow["packets"]), (&"vm2".into(), &3.into()));
    let macs = w.ok("mac list");
    assert!(macs.contains("52:54:00:00:00:02     -  vm2"), "{macs}");
    assert_eq!(w.json("mac list")["macs"][0]["mac"], "52:54:00:00:00:01");
    // A long list comes in many pages and in order.
    for n in 3..200 {
        w.fake().packet(&frame(n, 1), 3);
        w.fake().serve_until(|f| f.resumed.len() == usize::from(n));
    }
    let macs = w.json("mac list");
    let ports: Vec<_> = macs["macs"].as_array().unwrap().iter().map(|m| m["port"].as_str().unwrap()).collect();
    assert_eq!((ports.len(), ports[1], ports[198]), (199, "vm2", "vm3"));
    assert_eq!(w.json("flow list")["flows"].as_array().unwrap().len(), 199);
}

#[test]
fn counts_and_explains() {
    let mut w = World::new(&["vm1", "vm2"]);
    let text = w.ok("stats");
    assert!(text.contains("sum: 20 in + 0 replicated = 16 out + 4 dropped + 0 waiting\n"), "{text}");
    assert!(w.ok("stats --verbose").contains("acl: A rule of an access list denied"));
    let stats = w.json("stats");
    assert_eq!((&stats["sum"]["dropped"], &stats["switch"]["ports"]), (&4.into(), &2.into()));
    assert_eq!(stats["sum"]["drops"]["acl"], 4);
    let cpu = &stats["switch"]["cpu"];
    assert_eq!((&cpu["ports_ns"], &cpu["other_ns"]), (&3_000_000.into(), &74_000_000.into()));
    assert_eq!(cpu["total_ns"], 109_000_000);
}

#[test]
fn traces_a_packet() {
    let mut w = World::new(&["vm1", "vm2", "vm3"]);
    w.fake().packet(&frame(1, 2), 1);
    w.fake().serve_until(|f| f.flows.len() == 1);
    let macs = "--eth-src 52:54:00:00:00:02 --eth-dst 52:54:00:00:00:01";
    let text = w.ok(&format!("trace --in-port vm2 {macs} --ip-src 10.0.0.2 --ip-dst 10.0.0.1 --proto tcp --dport 22"));
    assert!(text.contains("ip_dst=10.0.0.1 ip_proto=6"), "{text}");
    assert!(text.contains("flow    none"), "{text}");
    assert!(text.contains("52:54:00:00:00:02 is new and would be learned at vm2\n"), "{text}");
    assert!(text.ends_with("result  delivered to vm1, which is up\n"), "{text}");
    let hex: String = frame(1, 2).iter().map(|b| format!("{b:02x}")).collect();
    let report = w.json(&format!("trace --in-port vm1 --frame {hex}"));
    assert_eq!(report["flow"]["outputs"], serde_json::json!(["vm2", "vm3"]));
    assert_eq!(report["outputs"][1]["port"], "vm3");
    assert_eq!(report["reasons"][0], "source 52:54:00:00:00:01 is known to live at vm1");
    let text = w.ok("trace --in-port vm1 --eth-src 01:00:00:00:00:00 --eth-dst 52:54:00:00:00:01");
    assert!(text.contains("group address") && text.ends_with("result  dropped\n"), "{text}");
    assert!(w.error(&format!("trace --in-port vm9 {macs}"), 1).contains("no port named \"vm9\"; `lasthop port list`"));
    assert!(w.error("trace --in-port vm1 --frame 00ff", 2).contains("an Ethernet frame has 14 to"));
}

/// A flood left out an uplink whose cable was pulled, and said nothing of it.
#[test]
fn a_protocol_is_a_word_in_any_case() {
    let mut w = World::new(&["vm1"]);
    let line = |word: &str| format!("trace --in-port vm1 {word} --eth-src 525400000001 --arp-tpa 10.0.0.2");
    assert_eq!(w.ok(&line("ARP")), w.ok(&line("arp")));
}

#[test]
fn a_trace_names_whom_a_flood_does_not_reach() {
    let mut w = World::new(&["vm1", "net", "vm3"]);
    let device = DeviceState {
        port: PortId(2),
        device: "eth1".into(),
        driver: None,
        link: LinkState::NoCarrier,
        last_error: None,
    };
    let fake = w.fake();
    for message in [SupervisorToControl::Uplinks(vec![(PortId(2), None)]), SupervisorToControl::Devices(vec![device])] {
        fake.supervisor.send(&message, None).unwrap();
    }
    for id in [PortId(2), PortId(3)] {
        fake.states.insert(id, PortState::Waiting);
        let info = fake.info(id);
        fake.tell(&ToControl::Port(info));
    }
    while w.json("port list")["ports"][1]["link"] != "no-carrier" {}
    let text = w.ok("trace --in-port vm1 --eth-src 52:54:00:00:00:01 --eth-dst ff:ff:ff:ff:ff:ff");
    let left_out = "left out, because nothing can be sent there now: net (eth1 has no carrier), vm3 (waiting: no front-end \
                    is connected)\n";
    assert!(text.contains(left_out), "{text}");
    assert!(text.ends_with("result  dropped\n"), "{text}");
}

/// They were accepted, and did nothing.
#[test]
fn options_of_a_device_go_with_a_device() {
    let mut w = World::new(&[]);
    for option in ["--queues 4", "--queues 1", "--nice 5", "--nice -5", "--spare", "--driver tap"] {
        let said = w.error(&format!("port add vm3 /run/vm3.sock {option}"), 2);
        let word = option.split(' ').next().unwrap();
        assert!(said.contains(&format!("{word} goes with --device")), "{option}: {said}");
    }
    assert!(w.ok("port list").starts_with("no ports"), "nothing was changed");
    assert!(w.error("port add c1 --device eth7 --queues 4", 1).contains("there is no interface eth7"));
}

/// A forgotten or misspelt word made a socket of that name in the directory at hand. The interface `lo` is everywhere.
#[test]
fn an_interface_is_not_taken_for_a_path() {
    let mut w = World::new(&[]);
    for (path, right) in
        [("lo", "--device lo"), ("dev:v1", "--device v1"), ("device:v1", "--device v1"), ("device=v1", "--device v1")]
    {
        let said = w.error(&format!("port add c2 {path}"), 2);
        assert!(said.contains(right) && said.contains(&format!("./{path}")), "{path}: {said}");
    }
    assert!(w.ok("port list").starts_with("no ports"), "nothing was changed");
    assert!(w.ok("port add c2 ./lo").contains("listens on"));
}

/// What a port is told changes more than what was named: the command says what holds, and what a port's end forgets.
#[test]
fn settings_are_shown_when_they_change() {
    let mut w = World::new(&["vm1", "vm2"]);
    assert_eq!(w.ok("port set vm1 --vlan 10 --isolated"), "port vm1: vlan=10 isolated=on\n");
    assert_eq!(w.ok("port set vm1 --vlan off"), "port vm1: told nothing\n");
    let shown = w.json("port set vm2 --mac 2e6e15247f0b --addr 10.0.0.1");
    let settings =
        serde_json::json!([{"name": "mac", "value": "2e:6e:15:24:7f:0b"}, {"name": "addr", "value": "10.0.0.1"}]);
    assert_eq!(shown["settings"], settings);
    assert!(w.ok("attach vm2 --vmm qemu").contains("mac=2e:6e:15:24:7f:0b\n"), "the port lets no other through");
    let said = "port vm2: removed; what it was told (mac=2e:6e:15:24:7f:0b addr=10.0.0.1) is forgotten\n";
    assert_eq!(w.ok("port del vm2"), said);
    assert_eq!(w.ok("port del vm1"), "port vm1: removed\n");
}

/// The commonest failure of all is a first ARP request that does not arrive.
#[test]
fn stats_name_whom_floods_do_not_reach() {
    let mut w = World::new(&["vm1", "vm2", "vm3"]);
    w.ok("port set vm1 --vlan 10");
    w.ok("port set vm2 --vlan 20");
    w.fake().packet(&frame(1, 9), 1);
    w.fake().serve_until(|f| f.flows.len() == 1);
    let text = w.ok("stats");
    let said = "left out: floods of vm1 in VLAN 10 do not reach vm2: port vm2 does not carry VLAN 10 (vlan=20)\n";
    assert!(text.contains(said), "{text}");
    assert_eq!(w.json("stats")["switch"]["left_out"][0]["reason"], "vlan");
}

#[test]
fn attaches() {
    let mut w = World::new(&["vm1"]);
    let all = w.ok("attach vm1");
    for part in ["# QEMU", "# Cloud Hypervisor", "# libvirt", "path=/run/vm1.sock,reconnect=1"] {
        assert!(all.contains(part), "{all}");
    }
    assert!(w.ok("attach vm1 --vmm qemu --queues 2").contains("queues=2"));
    assert!(w.error("attach vm7", 1).contains("`lasthop port add` makes one"));
}

#[test]
fn says_what_is_wrong_and_what_to_do() {
    let nowhere = "port list --run-dir /nonexistent/lasthop";
    assert!(without_instance(nowhere, 1).contains("start one with `lasthop run --run-dir /nonexistent/lasthop`"));
    assert!(without_instance("port lst", 2).contains("'list'"));
    assert!(without_instance("port list --jsn", 2).contains("--json"));
    assert!(without_instance("port add vm1", 2).contains("<PATH>; see `lasthop port add --help`"));
    assert!(without_instance("trace --in-port vm1", 2).contains("lasthop trace --help"));
    assert!(without_instance("trace --in-port a --eth-src 52 --eth-dst x", 2).contains("not a MAC address; write six"));
    assert!(without_instance("attach vm1 --queues 17", 2).contains("17"));
    for (line, help) in [
        ("attach vm1 --queues x", "lasthop attach --help"),
        ("attach vm1 --memory lots", "such as 512M or 64G"),
        ("run --congestion 2,10", "lasthop run --help"),
        ("port add", "lasthop port add --help"),
        ("run --watchdog -1", "\"-1\" is not a number from 100 to 3600000; write 1000, or off"),
        ("run --uplink-limit-ms -5", "\"-5\" is not a number from 20 to 3600000; write 2000"),
        ("run --uplink-limit-ms abc", "\"abc\" is not a number from 20 to 3600000; write 2000"),
        ("run --uplink-limit-ms 0", "\"0\" is not a number from 20 to 3600000; write 2000"),
        (
            "run --connections -5",
            "\"-5\" is not a number from 4096 to 1048576; choose one of these, or leave it out for 262144",
        ),
        (
            "run --connections 4095",
            "\"4095\" is not a number from 4096 to 1048576; choose one of these, or leave it out for 262144",
        ),
        ("run --max-guest-memory 0", "the least is 1"),
        ("run --max-guest-memory -1", "\"-1\" is not a size"),
        ("acl list", "`lasthop acl show`"),
        ("port show", "`lasthop port list`"),
        ("uplink show", "`lasthop uplink list`"),
        ("flow show", "`lasthop flow list`"),
        ("mac show", "`lasthop mac list`"),
        ("status", "`lasthop port list`"),
        ("list", "`lasthop port list`"),
        ("port set c1 --speed 10", "unexpected argument '--speed' found; see `lasthop port set --help`"),
        ("port set c1 --rate-from -5", "\"-5\" is no rate; write bits a second"),
        ("port set c1 --vlan -5", "\"-5\" is not a VLAN id; write one, 1 to 4094"),
        ("port set c1 --static-mac x", "\"x\" is no static address; write one such as 52:54:00:12:34:56"),
        ("port set c1 --static-mac 52:54:00:00:00:01@5000", "\"5000\" is not a VLAN id"),
        ("mirror add m --from a --to b --direction up", "use from-guest, to-guest or both"),
        ("mirror add m --from a --to b --sample 10", "\"10\": write 1/N, such as 1/100 for one packet of a hundred"),
        ("mirror add m --from a --to b --sample 1/0", "N is 1000000 at most"),
        ("mirror add m --from a --to b --sample 1/1000001", "N is 1000000 at most"),
        ("conntrack list --proto tpc", "\"tpc\" is no protocol; use tcp, udp"),
        ("conntrack list --vlan 70000", "70000 is neither a VLAN id nor a zone; use 1 to 4094, or 0"),
        (
            "conntrack flush --addr 10.0.0.0/8",
            "\"10.0.0.0/8\" is no address; use one such as 10.0.0.1 or fd00::1, not a prefix",
        ),
        ("set add web 10.0.0.1/24", "host bits; write 10.0.0.1 for this address, or 10.0.0.0/24"),
        ("trace --in-port a --eth-src 52:54:00:00:00:01 --vlan 4096", "write 1 to 4094, or 0 for a priority tag"),
        ("trace --port c1", "; see `lasthop trace --help`"),
        ("port list --jsn", "'--json'; see `lasthop port list --help`"),
        ("run --port vm1=/x,vlan", "vlan needs a value; write vlan=ID"),
        ("run --port vm1=/x,trunk", "trunk needs a value; write trunk=LIST"),
        ("run --port vm1=/x,speed=9", "SETTING=VALUE"),
    ] {
        assert!(without_instance(line, 2).contains(help), "{line}: {}", without_instance(line, 2));
    }
    let mixed =
        "trace --in-port a --eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02 --ip-src 1.2.3.4 --ip-dst ::1";
    assert!(without_instance(mixed, 2).contains("--ip-src 1.2.3.4 and --ip-dst ::1 contradict each other"));
}

/// Whatever the text says: a package's scripts start lasthop anew then.
#[test]
fn an_upgrade_that_only_a_new_start_can_do_has_a_status_of_its_own() {
    let mut world = World::new(&["vm1"]);
    let dir = tempfile::tempdir().unwrap();
    for (name, status, says) in [("other", 3, "restart lasthop"), ("bad", 1, "it does not start")] {
        let release = dir.path().join(name);
        std::fs::create_dir(&release).unwrap();
        let program = release.join("lasthop");
        std::fs::write(&program, "#!/bin/sh\necho 0\n").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let text = world.error(&format!("upgrade --only switch --programs {}", release.display()), status);
        assert!(text.contains(says), "{text}");
    }
}

/// 1: what was asked for could not be done. 2: the command line makes no sense, and nobody was asked.
#[test]
fn exit_statuses() {
    let mut w = World::new(&["vm1"]);
    for line in [
        "port add vm1 /run/x.sock",
        "port add c1 --device eth7",
        "port del vm9",
        "uplink add net eth7",
        "acl load /nonexistent/rules",
        "acl show --port vm9",
        "acl clear --port vm9",
        "trace --in-port vm9 --eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02",
        "attach vm9",
        "doctor vm9",
        "engine add poll 3",
        "engine move vm9 none",
        "show vm9",
        "port set vm9 --vlan 10",
        "port set vm1 --addr 10.0.0.1",
    ] {
        w.error(line, 1);
    }
    let frame = "--eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02";
    for line in [
        "port add v/m /run/x.sock",
        "port add all /run/x.sock",
        "engine add core 3",
        "engine del poll x",
        "port set vm1 --engine helper-3",
        "port set vm1 --vlan 5000",
        "port set vm1 --vlan 10 --trunk 20",
        "port set vm1 --mac 52:54:00:00:00:01 --addr 10.0.0.1/24",
        "port add vm4 /run/x.sock --vlan 5000",
        "port add vm4 /run/x.sock --addr 10.0.0.1",
        "port add c1 --device eth7 --rate-to fast",
        "port add c1 --device eth7 --driver dpdk",
        "port add c1 --device eth7 --nice 20",
        "uplink add guests eth7",
        "uplink add net eth7 --driver dpdk",
        "uplink add net eth7 --queues 0",
        "uplink add net eth7 --vlans 10:5000",
        "uplink set net --vlans 20-10",
        "acl show --port",
        "acl clear --for guest",
        "trace --in-port vm1 --frame 00ff",
        &format!("trace --in-port vm1 {frame} tcp --proto udp"),
        &format!("trace --in-port vm1 {frame} tcp"),
        &format!("trace --in-port vm1 {frame} --vlan 5000"),
        "trace --in-port vm1 --eth-src 5254000000 --eth-dst 525400000002",
        "attach vm1 vm1",
        "attach vm1 --memory lots",
        "stats --frob",
        "doctor --for 0",
        "frob",
        "run --port vm1",
        "run --uplink net=eth7,dpdk",
        "run --cpus x",
    ] {
        w.error(line, 2);
    }
    assert!(w.ok("port list").contains("vm1"), "and 0 when it was done");
}

/// What was asked for was not given, so that is an error; a reader that has seen enough is none.
#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for line in ["--help", "port list --help", "--version"] {
        let out = Command::new(env!("CARGO_BIN_EXE_lasthop")).args(line.split(' ')).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line}: {said}");
        assert!(said.starts_with("lasthop: cannot write to standard output: No space left"), "{line}: {said}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = Command::new(env!("CARGO_BIN_EXE_lasthop")).arg("--help").stdout(writer).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}

/// On a terminal as elsewhere, the log has our lines and nobody else's.
#[test]
fn a_terminal_gets_only_our_lines() {
    let run = format!("{} run --cpus 100000", env!("CARGO_BIN_EXE_lasthop"));
    let out = Command::new("script").args(["-qec", &run, "/dev/null"]).output().unwrap();
    let shown = String::from_utf8_lossy(&out.stdout);
    assert!(shown.contains("lasthop: --cpus 100000: "), "{shown}");
    assert_eq!(shown.trim().lines().count(), 1, "{shown}");
}

#[test]
fn writes_manual_pages() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    assert!(command.arg("man").arg(dir.path()).status().unwrap().success());
    assert!(dir.path().join("lasthop-port-add.1").exists());
}
