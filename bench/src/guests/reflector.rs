//! A world outside that sends everything back: a veth pair, on one end of it the switch's uplink, on the other an XDP
//! program that swaps each frame's MAC addresses.
//!
//! ```text
//!  load generator ─ vhost-user ─ switch, uplink ─ net0 ═ net1 ─ XDP_TX
//! ```

use super::outside::join;
use crate::switch::uplink::Device;
use lasthop_harness::Netns;
use lasthop_harness::stop::Outcome;
use lasthop_harness::xdp::{attach, pass};
use lasthop_sys::bpf::assembler::{Assembler, Reg, Width};
use std::os::fd::OwnedFd;

/// Both namespaces. Dropping it removes them.
pub struct Reflector {
    /// Where the switch is, with `net0`.
    pub site: Netns,
    _far: Netns,
    _attached: Vec<OwnedFd>,
}

impl Reflector {
    /// Makes the pair, of whose end the switch makes that use.
    pub fn new(device: Device) -> Outcome<Self> {
        let (site, far) = (Netns::new(), Netns::new());
        // Like a wire, whatever the switch does with its end.
        join(&site, &far, if device.is_xdp() { device } else { Device::Xdp });
        let mut attached = vec![attach(&far, "net1", reflect)?];
        if !device.is_xdp() {
            // A veth takes what its peer's XDP program sends only while it has one itself.
            attached.push(attach(&site, "net0", pass)?);
        }
        far.ip("link set net1 up");
        site.ip("link set net0 up");
        Ok(Self { site, _far: far, _attached: attached })
    }
}

/// `XDP_TX` with the MAC addresses swapped; `XDP_DROP` of what is for more than one station, and of what is too short.
fn reflect(a: &mut Assembler) {
    const XDP_DROP: u64 = 1;
    const XDP_TX: u64 = 3;
    const FRAME: Reg = Reg(2);
    let drop = a.label();
    // `data` and `data_end` of `struct xdp_md`.
    a.load(Width::Word, FRAME, Reg(1), 0);
    a.load(Width::Word, Reg(3), Reg(1), 4);
    a.copy(Reg(4), FRAME);
    a.add_value(Reg(4), 14);
    a.jump_above(Reg(4), Reg(3), drop);
    // The bit that says so is the lowest of the first byte.
    a.load(Width::Half, Reg(3), FRAME, 0);
    a.shift_left(Reg(3), 63);
    a.jump_ne(Reg(3), 0, drop);
    for destination in [0, 2, 4] {
        let source = destination + 6;
        a.load(Width::Half, Reg(3), FRAME, destination);
        a.load(Width::Half, Reg(4), FRAME, source);
        a.store(Width::Half, FRAME, destination, Reg(4));
        a.store(Width::Half, FRAME, source, Reg(3));
    }
    a.set(Reg(0), XDP_TX);
    a.exit_with_result();
    a.place(drop);
    a.set(Reg(0), XDP_DROP);
    a.exit_with_result();
}
