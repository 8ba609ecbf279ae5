//! Machines that are set up wrongly, each in a way that QEMU accepts without a word: the first place that one looks at says
//! what is wrong, and what to do.

use lasthop_harness::{Lasthop, Memory, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::time::{Duration, Instant};

/// Takes the driver from the guest's network card, gives it back, and sets its address again.
const START_ANEW: &str = "address=$(ip -4 -o addr show dev eth0 | awk '{ print $4 }'); cd /sys/bus/virtio/drivers/virtio_net; \
    for card in virtio*; do echo $card >unbind; sleep 1; echo $card >bind; done; \
    ip addr add $address dev eth0; ip link set eth0 up";

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
    // A guest that waits for an answer kicks once. Where this falls together with the kick that QEMU gives when the ring starts, the
    // eventfd tells of one only, and lasthop cannot know; so the driver may start anew, and kick again.
    for _ in 0..4 {
        let look = Instant::now();
        while look.elapsed() < Duration::from_secs(8) && !said("off").contains("memory is not shared") {
            std::thread::sleep(Duration::from_millis(50));
        }
        if said("off").contains("memory is not shared") {
            break;
        }
        vms[0].output(START_ANEW, 30);
        ping(&vms[0]);
    }
    for (name, how) in [("off", "zeros"), ("none", "handed over no memory")] {
        let said = || said(name);
        wait_for(&format!("a note on {name}"), Duration::from_secs(30), || said().contains("memory is not shared"));
        assert!(said().contains(how) && said().contains("share=on"), "{}", said());
        assert!(lasthop.command(&["port", "list"]).contains(&format!("{name}: its memory is not shared")));
        let line = format!("port {name}: its memory is not shared");
        wait_for("a line in the log", Duration::from_secs(30), || lasthop.log().contains(&line));
    }
}
