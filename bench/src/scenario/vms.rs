//! Linux VMs: what their users would measure.
//!
//! * K. K. Ram, *New Architectures and Mechanisms for the Network Subsystem in Virtualized Servers*, figures 4.9 and 4.10 (one pair, by payload) and
//!   4.17 (the network outside, one VM and two).
//! * A. Menon, A. L. Cox, W. Zwaenepoel, *Optimizing Network Virtualization in Xen*, figures 3 to 5 (what VMs see of their cards, and in place of the
//!   paper's superpages, which are the guest's, the host's pages of 2 MiB) and 7 (cards that can do some and nothing of what VMs leave to them). As
//!   there VMs send from a file (sendfile).

use super::{BRIDGE, Contender, FLOW, OURS, Scenario, scenario};
use crate::guests::outside::{Interface, Place};
use crate::switch::uplink::Device;
use crate::work::Work;

const PEERS: &[Contender] = &[OURS, BRIDGE];
const PACKET: Place = Place::new(Device::Packet);

/// A VM whose card is like this.
const fn card(name: &'static str, title: &'static str, interface: Interface, huge: bool) -> Scenario {
    scenario(name, title, PEERS, Work::Outside(Place { interface, huge, sendfile: true, ..PACKET }))
}

/// A VM with such a card before an interface that is like this, and behind that something like a wire.
const fn nic(name: &'static str, title: &'static str, interface: Interface, device: Device) -> Scenario {
    scenario(name, title, PEERS, Work::Outside(Place { interface, sendfile: true, ..Place::new(device) }))
}

/// Each with VMs of its own.
pub(super) static ALL: [Scenario; 13] = [
    scenario("vms", "two Linux VMs (QEMU), virtio-net with TSO", &[OURS, BRIDGE, FLOW], Work::Vms),
    scenario("vms-payload", "two Linux VMs (QEMU), TCP by payload", &[OURS, BRIDGE, FLOW], Work::Payloads),
    scenario(
        "uplink-xdp",
        "a Linux VM (QEMU) and the network outside, AF_XDP",
        &[OURS, Contender::NoGro, FLOW, BRIDGE],
        Work::Outside(Place::new(Device::Xdp)),
    ),
    scenario(
        "uplink-packet",
        "a Linux VM (QEMU) and the network outside, AF_PACKET",
        &[OURS, Contender::Tap, FLOW, BRIDGE],
        Work::Outside(PACKET),
    ),
    scenario(
        "uplink-two",
        "two Linux VMs (QEMU) and the network outside at once, AF_PACKET",
        &[OURS, BRIDGE],
        Work::Outside(Place { vms: 2, ..PACKET }),
    ),
    card(
        "card-plain",
        "a Linux VM and the network outside, a card that takes finished frames",
        Interface::Plain,
        false,
    ),
    card(
        "card-plain-huge",
        "a Linux VM and the network outside, a card that takes finished frames, memory in 2 MiB pages",
        Interface::Plain,
        true,
    ),
    card(
        "card-checksum",
        "a Linux VM and the network outside, a card with checksums and scatter/gather",
        Interface::Checksum,
        false,
    ),
    card(
        "card-whole-huge",
        "a Linux VM and the network outside, a card with all offloads, memory in 2 MiB pages",
        Interface::Whole,
        true,
    ),
    card("card-whole", "a Linux VM and the network outside, a card with all offloads", Interface::Whole, false),
    // Its frames are finished: what the interface could do to packets makes no difference.
    nic(
        "card-nic-plain",
        "a Linux VM and a wire outside, a card that takes finished frames",
        Interface::Plain,
        Device::PacketInFrames,
    ),
    nic(
        "card-nic-frames",
        "a Linux VM and a wire outside, all offloads, an interface with checksums and scatter/gather only",
        Interface::Whole,
        Device::PacketInFrames,
    ),
    nic(
        "card-nic-finished",
        "a Linux VM and a wire outside, all offloads, an interface without any",
        Interface::Whole,
        Device::PacketFinished,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_send_from_a_file_and_uplinks_do_not() {
        for s in &ALL {
            if let Work::Outside(place) = s.work {
                assert_eq!(place.sendfile, s.group() == "card", "{}", s.name);
            }
        }
    }
}
