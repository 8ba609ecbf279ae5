//! `make demo`: two real virtual machines talk through lasthop; then what the switch saw.

use lasthop_tests_vm::{Lasthop, Nic, Port, Vm, VmConfig, scratch};
use std::time::Duration;

fn main() {
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let sockets = ports.each_ref().map(|p| format!("{}={}", p.name, p.socket.display()));
    step(&format!("lasthop run --port {} --port {}", sockets[0], sockets[1]));
    let lasthop = Lasthop::start(&ports);
    println!("ready: a switch in a sandbox of its own, no configuration, no core of its own");

    step("two virtual machines (QEMU, Debian's kernel) are plugged into its ports a and b");
    let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
    let [a, b] = Vm::boot_all([vm(0), vm(1)]);
    let address = b.config.nics[0].ip4();
    println!("both are up; b has {address}");

    show(&a, &format!("ping -c 10 -i 0.1 -q {address}"), 30);
    b.background("iperf3 -s -1");
    std::thread::sleep(Duration::from_secs(1));
    show(&a, &format!("iperf3 -c {address} -t 5 | tail -4"), 60);

    for command in [&["port", "list"][..], &["mac", "list"], &["flow", "list"], &["stats"]] {
        step(&format!("lasthop {}", command.join(" ")));
        print!("{}", lasthop.command(command));
    }
    step("that was lasthop; README.md says how to plug in your own virtual machines");
}

fn step(what: &str) {
    println!("\n\x1b[1m=== {what}\x1b[0m");
}

fn show(vm: &Vm, command: &str, seconds: u64) {
    step(&format!("in VM {}: {command}", vm.config.name));
    let output = vm.output(command, seconds);
    print!("{}", output.stdout);
    assert_eq!(output.code, 0, "the command failed");
}
