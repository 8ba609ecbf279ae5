//! The harness itself, on a switch that is known to be right: two VMs on a Linux bridge.

use lasthop_harness::checks::{self, Depth};
use lasthop_harness::{Bridge, Vm, VmConfig, on_device};

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn two_vms_on_a_linux_bridge_pass_every_check() {
    if on_device::skips("it has no lasthop") {
        return;
    }
    let bridge = Bridge::start(2);
    let [a, b] = Vm::boot_all([VmConfig::new("a", [bridge.nic(1)]), VmConfig::new("b", [bridge.nic(2).plain()])]);
    b.serve();
    a.serve();
    checks::all(&a, &b, Depth::Quick);
    checks::group(&a, &[&b], "239.1.2.3");
    checks::group(&b, &[&a], "ff02::4242");
    checks::group(&b, &[&a], "255.255.255.255");
    let counted = checks::numbered(&a, &b, 2000, 200, || ());
    assert_eq!(counted, checks::Counted { received: 2000, gap_ms: counted.gap_ms, ..Default::default() });
}
