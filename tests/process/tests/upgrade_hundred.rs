//! A hundred upgrades of the switch, one after the other, of 64 ports: of two that exchange frames none is lost and none comes twice, and nobody's connection ends.

use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, mac, proc, release, scratch, under_load, wait_for,
};
use serde_json::Value;

const PORTS: u8 = 64;
const TIMES: usize = 100;

/// Another switch takes over; each port's pause in microseconds.
fn pauses(lasthop: &Lasthop, programs: &str) -> Vec<u64> {
    let before = lasthop.switch();
    let out = lasthop.try_command(&["upgrade", "--only", "switch", "--all", "--json", "--programs", programs]);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), lasthop.log());
    wait_for("the switch before to be gone", PATIENCE, || !proc::alive(before));
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let ports = said["ports"].as_array().unwrap();
    assert_eq!(ports.len(), usize::from(PORTS), "{said}");
    ports.iter().map(|port| port["pause_us"].as_u64().unwrap()).collect()
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn a_hundred_upgrades_of_64_ports_lose_nothing() {
    let dir = scratch();
    let programs = release(dir.path(), "new").display().to_string();
    let ports: Vec<_> = (0..PORTS).map(|n| Port::listen(&format!("p{n}"), dir.path())).collect();
    let lasthop = Lasthop::start(&ports);
    let options = Options::net(|n| (n.size, n.event_idx) = (256, true));
    let mut guests: Vec<_> = ports.iter().zip(1..).map(|(p, n)| Guest::connect(&p.socket, mac(n), options)).collect();
    ports.iter().for_each(|port| lasthop.wait_for_state(&port.name, "up"));
    let [a, b, others @ ..] = guests.as_mut_slice() else { panic!("two ports") };
    a.greet(b, 0);
    let mut all = Vec::new();
    under_load(a, b, |flows| {
        for _ in 0..TIMES {
            all.extend(pauses(&lasthop, &programs));
            flows();
        }
    });
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)] as f64 / 1000.0;
    eprintln!(
        "{TIMES} upgrades of {PORTS} ports: median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
        at(50),
        at(99),
        at(100)
    );
    a.drain();
    b.drain();
    // Those that were silent are where they were.
    others.iter_mut().for_each(|other| {
        other.drain();
        other.greet(a, 1 << 24);
    });
    assert!(guests.iter().all(|guest| !guest.is_disconnected()), "a connection ended");
    let stats = lasthop.json(&["stats"]);
    assert!(stats["switch"]["replaced"].as_array().unwrap().iter().all(|process| process["times"] == 0), "{stats}");
    lasthop.check_sums();
}
