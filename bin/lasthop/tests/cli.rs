//! The commands against a control process (in a thread) whose supervisor and switch are not real.

#[path = "../../lasthop-control/tests/fake/mod.rs"]
mod fake;

use fake::{Fake, frame};
use lasthop_control::Descriptors;
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
        let control = std::thread::spawn(|| lasthop_control::run(Descriptors { supervisor, api }).unwrap());
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
        let fake = self.fake();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
        command.args(line.split_whitespace()).arg("--run-dir").arg(fake.dir.path());
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
    assert_eq!(list["ports"][1]["from_guest"]["drops"][0]["reason"], "policy");
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
    assert!(w.ok("stats --verbose").contains("policy: A flow said to drop the packet."));
    let stats = w.json("stats");
    assert_eq!((&stats["sum"]["dropped"], &stats["switch"]["ports"]), (&4.into(), &2.into()));
    assert_eq!(stats["sum"]["drops"]["policy"], 4);
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
    assert!(w.error("trace --in-port vm1 --frame 00ff", 1).contains("an Ethernet frame has 14 to"));
}

#[test]
fn loads_shows_and_clears_access_lists() {
    let mut w = World::new(&["vm1", "vm2"]);
    assert!(w.ok("acl show").starts_with("no access lists"));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good =
        file("good", "# who may\ndeny udp to any port 9 # discard\npermit to-guest arp\ndefault to-guest deny\n");
    assert_eq!(w.ok(&format!("acl load {good}")), "general access lists: 1 rules from guests, 1 rules to guests\n");
    let set = file("set", "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0200\n");
    let said = w.ok(&format!("acl load {set} --port vm1 --direction to-guest"));
    assert!(said.contains("access lists of vm1: no list from guests, 1 rules to guests"), "{said}");
    assert!(said.contains("1 filters also name flags"), "{said}");
    w.fake().packet(&frame(1, 2), 1);
    w.fake().serve_until(|f| f.flows.len() == 1);
    assert_eq!(
        w.ok("acl show --packets"),
        "LIST       DIRECTION   RULE  PACKETS  TEXT\n\
         (general)  from-guest     1        3  deny udp to any port 9\n\
         (general)  from-guest     -        0  default permit\n\
         (general)  to-guest       1        0  permit arp\n\
         (general)  to-guest       -        0  default deny\n\
         vm1        to-guest       1        0  deny udp from 10.0.0.0/8 to 0.0.0.0/0 port 53\n\
         vm1        to-guest       -        0  default permit\n"
    );
    let shown = w.json("acl show --port vm1");
    let numbers: Vec<_> = shown["rules"].as_array().unwrap().iter().map(|r| (&r["port"], &r["number"])).collect();
    assert_eq!(
        format!("{numbers:?}"),
        "[(Null, Number(1)), (Null, Number(0)), (String(\"vm1\"), Number(1)), (String(\"vm1\"), Number(0))]"
    );
    let macs = "--eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02 --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --dport 9";
    let text = w.ok(&format!("trace --in-port vm1 {macs}"));
    assert!(
        text.contains("general access list, from-guest at vm1: rule 1 decides: deny udp to any port 9\n"),
        "{text}"
    );
    assert!(text.ends_with("result  dropped\n"), "{text}");
    // A set longer than one call, from standard input's stand-in; and what is wrong with files.
    let long = "@1.2.3.4/32\t4.3.2.1/32\t0 : 65535\t80 : 80\t0x06/0xff\n".repeat(5000);
    let long = file("long", &long);
    assert!(w.ok(&format!("acl load {long} --action permit")).contains("5000 rules from guests, no list to guests"));
    let bad = file("bad", "permit any\npermit tcp to 10.0.0.0/40\n");
    let error = w.error(&format!("acl load {bad}"), 1);
    assert!(error.contains("/bad: line 2, column 15: \"10.0.0.0/40\": expected a prefix length"), "{error}");
    assert!(error.contains("; nothing was changed"), "{error}");
    std::fs::write(&bad, b"permit any\n\xff\xfe").unwrap();
    assert!(w.error(&format!("acl load {bad}"), 1).contains("line 2: not UTF-8 text; is this a file of rules?"));
    assert!(w.error("acl load /nonexistent/rules", 1).contains("/nonexistent/rules: No such file"));
    assert!(w.error(&format!("acl load {good} --port vm9"), 1).contains("no port named \"vm9\""));
    assert!(
        w.error(&format!("acl load {good} --direction from-guest"), 1)
            .contains("line 3, column 8: this line is for to-guest")
    );
    assert!(w.error("acl load x --direction up", 2).contains("from-guest, to-guest"));
    assert_eq!(w.ok("acl clear"), "general access lists: cleared\n");
    assert_eq!(w.ok("acl clear --port vm1 --direction to-guest"), "access lists of vm1: cleared to-guest\n");
    assert!(w.ok("acl show").starts_with("no access lists"));
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
    let mixed =
        "trace --in-port a --eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02 --ip-src 1.2.3.4 --ip-dst ::1";
    assert!(without_instance(mixed, 1).contains("different IP versions"));
}

#[test]
fn writes_manual_pages() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    assert!(command.arg("man").arg(dir.path()).status().unwrap().success());
    assert!(dir.path().join("lasthop-port-add.1").exists());
}
