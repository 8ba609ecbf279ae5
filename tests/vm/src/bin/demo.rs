//! `make demo`: two real virtual machines talk through lasthop, through a switch that is killed meanwhile, and then through a
//! Linux bridge, to compare.

use lasthop_harness::{Bridge, Lasthop, Nic, Port, Vm, VmConfig, scratch, wait_for};
use lasthop_tests_vm::stage::{FIGURE, PLAIN, command, headline, paint};
use std::time::Duration;

fn main() {
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::connect(n, dir.path()));
    headline("A switch starts");
    let ours = ports.each_ref().map(|p| format!("--port {}={},client", p.name, p.socket.display())).join(" ");
    shell(&format!("lasthop run {ours}"));
    let lasthop = Lasthop::start(&ports);
    println!("ready: four small processes, no configuration, no CPU of its own");

    headline("Two virtual machines are plugged in (QEMU, Debian's kernel)");
    let card = |i: usize| Nic::vhost_user_server(&ports[i].socket, i as u8 + 1);
    let [a, b] = Vm::boot_all([0, 1].map(|i| VmConfig::new(&ports[i].name, [card(i)])));
    let address = b.config.nics[0].ip4();
    println!("both are up; b is {address}");
    print!("{}", in_vm(&a, &format!("ping -c 10 -i 0.1 -q {address}"), 30));
    let through_lasthop = stream(&a, &b);

    headline("kill -9 of the process that maps their memory, while a pings b");
    let ping = a.spawn(&format!("ping -c 30 -i 0.1 -q {address}"));
    let pid = lasthop.switch();
    shell(&format!("kill -9 {pid}"));
    lasthop.kill("lasthop-switch");
    println!("lasthop-switch {pid} is dead, {} has taken the virtual machines over", lasthop.switch());
    let answer = ping.output(Duration::from_secs(60));
    print!("{}", answer.stdout);

    headline("What the switch saw");
    for words in [&["port", "list"][..], &["flow", "list"], &["stats"]] {
        shell(&format!("lasthop {}", words.join(" ")));
        print!("{}", lasthop.command(words));
    }
    drop((a, b));
    assert!(lasthop.stop(), "lasthop ended well");

    headline("The same two virtual machines on a Linux bridge");
    let bridge = Bridge::start(2);
    let [a, b] = Vm::boot_all([VmConfig::new("a", [bridge.nic(1)]), VmConfig::new("b", [bridge.nic(2)])]);
    let through_bridge = stream(&a, &b);

    headline("One TCP stream between them, five seconds");
    let gigabits = |bits: f64| format!("{}{:6.2} Gb/s{}", paint(FIGURE), bits / 1e9, paint(PLAIN));
    println!("lasthop       {}", gigabits(through_lasthop));
    println!("Linux bridge  {}", gigabits(through_bridge));
    println!(
        "Most of that time is QEMU's, which emulates both processors here. docs/performance.md has the switches' own figures."
    );
    println!("\nREADME.md says how to plug in virtual machines of your own.");
}

/// One TCP stream from `a` to `b`, in bits a second.
fn stream(a: &Vm, b: &Vm) -> f64 {
    b.background("iperf3 -s -1");
    // 1451: port 5201. 0A: it listens.
    let listens = "grep -q ':1451 .* 0A ' /proc/net/tcp6 /proc/net/tcp";
    wait_for("iperf3 listens", Duration::from_secs(20), || b.output(listens, 10).code == 0);
    let report = in_vm(a, &format!("iperf3 -c {} -t 5 -J", b.config.nics[0].ip4()), 60);
    let report: serde_json::Value = serde_json::from_str(&report).expect("iperf3 reports in JSON");
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().expect("iperf3 measures");
    println!("{:.2} Gb/s", bits / 1e9);
    bits
}

fn in_vm(vm: &Vm, line: &str, seconds: u64) -> String {
    command(&format!("{}#", vm.config.name), line);
    let output = vm.output(line, seconds);
    assert_eq!(output.code, 0, "the command failed: {output:?}");
    output.stdout
}

fn shell(line: &str) {
    command("$", line);
}
