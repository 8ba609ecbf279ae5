//! `make demo-ovn`: OVN on two hosts over lasthop, with real virtual machines.

use lasthop_tests_vm::{ovn_story::Story, stage};

fn main() {
    let (bits, mean) = Story::tell(true);
    stage::headline("That was OVN over lasthop");
    println!("Two virtual machines on two hosts had {:.2} Gb/s over Geneve, in packets of {mean} bytes.", bits / 1e9);
    println!(
        "QEMU emulates their processors here, and all of it shares this machine. docs/open-vswitch.md says how to set it up yourself."
    );
}
