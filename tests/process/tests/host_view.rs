//! Does the switch know what the VM behind a port does? This program is the VM here, with all its threads; so there is one
//! test only.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, scratch, wait_for};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What `port list` says of the only port's VM, and on which core.
fn vm(lasthop: &Lasthop) -> (Option<String>, Option<u64>) {
    let list = lasthop.json(&["port", "list"]);
    let port = &list["ports"][0];
    (port["vm"].as_str().map(String::from), port["vm_cpu"].as_u64())
}

fn doing(lasthop: &Lasthop, what: Option<&str>) {
    wait_for(&format!("the VM to be {what:?}"), PATIENCE, || vm(lasthop).0.as_deref() == what);
}

#[test]
fn what_the_vm_does_is_known_while_it_is_there() {
    let dir = scratch();
    let ports = [Port::listen("p1", dir.path())];
    let lasthop = Lasthop::start(&ports);
    if lasthop.log().contains("not known which VMs run") {
        return eprintln!("skipped: {}", lasthop.log());
    }
    assert_eq!(vm(&lasthop), (None, None), "nobody is there");
    for round in 0..2 {
        let guest = Guest::connect(&ports[0].socket, mac(1), Options::default());
        // Its only thread with anything to do waits for an answer.
        doing(&lasthop, Some("blocked"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            doing(&lasthop, Some("running"));
            let (state, cpu) = vm(&lasthop);
            assert_eq!(state.as_deref(), Some("running"), "it does not pause");
            let cores = std::thread::available_parallelism().unwrap().get() as u64;
            assert!(cpu.is_some_and(|cpu| cpu < cores.max(64)), "{cpu:?}");
            stop.store(true, Relaxed);
        });
        doing(&lasthop, Some("blocked"));
        assert!(lasthop.command(&["stats"]).contains("VMs: 0 running, 1 blocked, 0 not known"));
        if round == 0 {
            // The next switch is told anew.
            lasthop.kill("lasthop-switch");
        }
        drop(guest);
        doing(&lasthop, None);
    }
    drop(lasthop);

    let lasthop = Lasthop::start_with(&ports, &["--no-bpf"]);
    let _guest = Guest::connect(&ports[0].socket, mac(1), Options::default());
    wait_for("the guest to be there", PATIENCE, || {
        lasthop.command(&["stats"]).contains("VMs: 0 running, 0 blocked, 1 not known")
    });
    assert!(!lasthop.log().contains("WARN"), "{}", lasthop.log());
}
