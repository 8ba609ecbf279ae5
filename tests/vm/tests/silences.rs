//! Machines that are set up wrongly, each in a way that QEMU accepts without a word: the first place that one looks at says
//! what is wrong, and what to do.

use lasthop_harness::{Lasthop, Memory, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::time::Duration;

/// vhost-user wants memory that is shared, and QEMU 7.2 starts without.
#[test]
fn memory_that_is_not_shared_is_named() {
    let dir = scratch();
    let ports = ["off", "none"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let machine = |n: usize, memory| {
        let nic = Nic::vhost_user(&ports[n].socket, n as u8 + 1);
        VmConfig { memory, ..VmConfig::new(&ports[n].name, [nic]) }
    };
    let vms = Vm::boot_all([machine(0, Memory::Private), machine(1, Memory::Anonymous)]);
    let ping = |vm: &Vm| drop(vm.output("ping -c 2 -W 1 10.9.0.9", 20));
    vms.iter().for_each(ping);
    let said = |name: &str| lasthop.port(name)["note"].as_str().unwrap_or_default().to_owned();
    // A guest that waits for an answer kicks once. Where this falls together with the kick that QEMU gives when the ring starts, lasthop
    // cannot tell it from a guest that has not set its interface up, and names both.
    for (name, how) in [("off", "zeros"), ("none", "handed over no memory")] {
        let said = || said(name);
        wait_for(&format!("a note on {name}"), Duration::from_secs(30), || said().contains("memory is not shared"));
        assert!(said().contains(how) && said().contains("share=on"), "{}", said());
        let named = |text: &str| {
            text.lines().any(|line| line.contains(&format!("{name}: ")) && line.contains("memory is not shared"))
        };
        assert!(named(&lasthop.command(&["port", "list"])));
        wait_for("a line in the log", Duration::from_secs(30), || named(&lasthop.log()));
    }
}
