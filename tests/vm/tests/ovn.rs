//! OVN on two hosts with real VMs: the story that `make demo-ovn` shows.

use lasthop_harness::on_device;
use lasthop_tests_vm::ovn_story::Story;

#[test]
#[ignore = "takes minutes, and needs OVN (`scripts/setup ovn`); `cargo xtask test --long` runs it"]
fn the_story_of_two_hosts() {
    if on_device::skips("Open vSwitch is in charge of the host's ports alone") {
        return;
    }
    let (bits, mean) = Story::tell(false);
    println!("{:.2} Gb/s in packets of {mean} bytes", bits / 1e9);
}
