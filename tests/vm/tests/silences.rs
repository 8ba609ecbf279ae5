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
    vms.iter().for_each(|vm| drop(vm.output("ping -c 2 -W 1 10.9.0.9", 20)));
    for (name, how) in [("off", "zeros"), ("none", "handed over no memory")] {
        let said = || lasthop.port(name)["note"].as_str().unwrap_or_default().to_owned();
        wait_for(&format!("a note on {name}"), Duration::from_secs(30), || said().contains("memory is not shared"));
        assert!(said().contains(how) && said().contains("share=on"), "{}", said());
        assert!(lasthop.command(&["port", "list"]).contains(&format!("{name}: its memory is not shared")));
        let line = format!("port {name}: its memory is not shared");
        wait_for("a line in the log", Duration::from_secs(30), || lasthop.log().contains(&line));
    }
}
