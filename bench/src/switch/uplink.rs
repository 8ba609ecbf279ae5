//! A network interface as one of a switch's ports.

use lasthop_harness::Netns;

/// What lasthop calls it.
pub const UPLINK: &str = "up";

/// How one end of a pair of interfaces is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// AF_XDP. No packet longer than a frame crosses the pair, and checksums are finished, as on a wire.
    Xdp,
    /// The same, lasthop's own receive aggregation off.
    XdpNoGro,
    /// AF_XDP on a pair with so many queues: one that all share, the others kept for a guest each.
    XdpQueues(u16),
    /// A packet socket. Packets of up to 64 KiB cross the pair.
    Packet,
    /// The same, but the interface has packets cut before it takes them; it takes checksums that are still to be made, and packets in pieces.
    PacketInFrames,
    /// The same, but the interface takes only what is finished and in one piece.
    PacketFinished,
    /// A TAP device on a bridge with the pair's end. Packets of up to 64 KiB cross it.
    Tap,
}

impl Device {
    /// Whether packets of up to 64 KiB are handed to the interface.
    pub fn is_large(self) -> bool {
        matches!(self, Self::Packet | Self::PacketInFrames | Self::PacketFinished)
    }

    /// What `ethtool -K` is told of the interface on the switch's side, if anything.
    pub fn offloads(self) -> &'static str {
        match self {
            Self::Xdp | Self::XdpNoGro | Self::XdpQueues(_) => "tso off gro on",
            Self::PacketInFrames => "tso off",
            Self::PacketFinished => "tx off sg off tso off",
            Self::Packet | Self::Tap => "",
        }
    }

    /// What lasthop is told.
    pub fn uplink(self) -> String {
        let text = match self {
            Self::Xdp => "up=net0,af_xdp",
            Self::XdpNoGro => "up=net0,af_xdp,gro=off",
            Self::XdpQueues(queues) => return format!("{UPLINK}=net0,af_xdp,queues={queues}"),
            Self::Packet | Self::PacketInFrames | Self::PacketFinished => "up=net0,af_packet",
            Self::Tap => "up=lh0,tap",
        };
        text.into()
    }

    /// Queues of either end of the pair.
    pub fn queues(self) -> u16 {
        if let Self::XdpQueues(queues) = self { queues } else { 1 }
    }

    /// Whether the interface is taken by an XDP program of the switch's.
    pub fn is_xdp(self) -> bool {
        matches!(self, Self::Xdp | Self::XdpNoGro | Self::XdpQueues(_))
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
