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

/// Sets it when dropped: the thread ends when the test fails, too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
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
            let _stop = Stop(&stop);
            // Two words are read, one after the other: a VM that is being preempted may look blocked for that instant.
            wait_for("the VM to run on a core", PATIENCE, || {
                let (state, cpu) = vm(&lasthop);
                state.as_deref() == Some("running") && cpu.is_some_and(|cpu| cpu < 1024)
            });
        });
        doing(&lasthop, Some("blocked"));
        // We are the VM, and asking takes us some work.
        wait_for("stats to say so", PATIENCE, || {
            lasthop.command(&["stats"]).contains("VMs: 0 running, 1 blocked, 0 not known")
        });
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
