//! A network interface as one of a switch's ports.

use lasthop_harness::Netns;

/// How one end of a pair of interfaces is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// AF_XDP. No packet longer than a frame crosses the pair, and checksums are finished, as on a wire.
    Xdp,
    /// The same, lasthop's own receive aggregation off.
    XdpNoGro,
    /// A packet socket. Packets of up to 64 KiB cross the pair.
    Packet,
    /// A TAP device on a bridge with the pair's end. Packets of up to 64 KiB cross it.
    Tap,
}

impl Device {
    /// What lasthop is told.
    pub fn uplink(self) -> &'static str {
        match self {
            Self::Xdp => "up=net0,af_xdp",
            Self::XdpNoGro => "up=net0,af_xdp,gro=off",
            Self::Packet => "up=net0,af_packet",
            Self::Tap => "up=lh0,tap",
        }
    }
}

/// A network interface that is to be one of the switch's ports.
#[derive(Clone, Copy, Debug)]
pub struct Uplink<'a> {
    /// Where it is, and the switch too.
    pub netns: &'a Netns,
    /// Which, and how it is to be used.
    pub device: Device,
}
