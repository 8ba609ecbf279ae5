//! Translated addresses with Linux at both ends: TCP both ways, and an error about what was sent.

use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::path::Path;
use std::time::Duration;

/// Guest a is 10.9.0.1. Outside it is 10.9.0.50, and its server is at 10.9.0.60 and fd09::60, port 7070.
fn rules(a6: &str) -> String {
    format!(
        "stateful\nsnat from 10.9.0.1 -> 10.9.0.50 port 20000-29999\n\
         dnat tcp to 10.9.0.60 port 7070 -> 10.9.0.1 port 7000\n\
         dnat tcp to fd09::60 port 7070 -> {a6} port 7000\n"
    )
}

/// Guest b hears nobody but 10.9.0.50: a's own address does not come there.
const OF_B: &str = "stateful\ndefault to-guest deny\npermit to-guest tcp from 10.9.0.50 port 20000-29999 to any port 7000\n\
                    permit to-guest udp from 10.9.0.50 port 20000-29999\n";

fn config(name: &str, dir: &Path, number: u8) -> VmConfig {
    VmConfig::new(name, [Nic::vhost_user(&dir.join(format!("{name}.sock")), number)])
}

/// ICMP errors "destination unreachable" that a guest has got.
fn unreachable(vm: &Vm) -> u64 {
    let text = vm.run("grep ^Icmp: /proc/net/snmp");
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let found = names.zip(numbers).find(|(name, _)| *name == "InDestUnreachs");
    found.and_then(|(_, number)| number.parse().ok()).expect("a counter")
}

#[test]
fn tcp_both_ways_under_nat() {
    let dir = scratch();
    let lasthop = Lasthop::start(&["a", "b"].map(|name| Port::listen(name, dir.path())));
    let [a, b] = Vm::boot_all([config("a", dir.path(), 1), config("b", dir.path(), 2)]);
    let [nic_a, nic_b] = [&a, &b].map(|vm| &vm.config.nics[0]);
    for (port, text) in [("a", rules(&nic_a.ip6())), ("b", OF_B.to_owned())] {
        let file = dir.path().join(format!("{port}.rules"));
        std::fs::write(&file, text).expect("a file");
        lasthop.command(&["acl", "load", &file.display().to_string(), "--port", port]);
    }
    // Somebody has to answer for addresses outside: here it is the guest.
    a.run("echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ip addr add 10.9.0.50/24 dev eth0; ip addr add 10.9.0.60/24 dev eth0; ip addr add fd09::60/64 dev eth0");
    [&a, &b].into_iter().for_each(Vm::serve);
    a.run(&format!("lasthop-guest tcp-check {}:7000 65536 4001", nic_b.ip4()));
    a.run(&format!("lasthop-guest udp-check {}:7000 1400 401", nic_b.ip4()));
    b.run("lasthop-guest tcp-check 10.9.0.60:7070 65536 4001");
    b.run("lasthop-guest tcp-check [fd09::60]:7070 65536 4001");
    let list = lasthop.command(&["conntrack", "list", "--proto", "tcp"]);
    let (a4, b4) = (nic_a.ip4(), nic_b.ip4());
    for [asked, answered] in [
        [format!(" src={a4} dst={b4} "), " dport=7000 src=10.9.0.2 dst=10.9.0.50 sport=7000 dport=2".to_owned()],
        [format!(" src={b4} dst=10.9.0.60 "), format!(" dport=7070 src={a4} dst={b4} sport=7000 ")],
        [" dst=fd09::60 ".to_owned(), format!(" dport=7070 src={} ", nic_a.ip6())],
    ] {
        assert!(
            list.lines().any(|line| line.contains(&asked) && line.contains(&answered)),
            "{asked}{answered}: {list}"
        );
    }
    // A port that nobody listens at: Linux finds its own datagram in the error, or it would not count it for the socket.
    let before = unreachable(&a);
    a.background(&format!("timeout 5 lasthop-guest udp-check {b4}:9999 100 4001"));
    wait_for("an ICMP error about the guest's own datagram", Duration::from_secs(20), || unreachable(&a) > before);
    lasthop.check_sums();
}
