//! Why a packet was not delivered: every one that is not falls under exactly one of these (design rule 6).

use serde::{Deserialize, Serialize};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Reason under which an undelivered packet is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)* }

        /// All reasons, in the order of their numbers.
        pub const DROP_REASONS: &[DropReason] = &[$(DropReason::$variant,)*];

        impl DropReason {
            /// How many reasons there are.
            pub const COUNT: usize = DROP_REASONS.len();
            /// The name and the sentence of each.
            pub const WORDS: &[[&str; 2]] = &[$([$name, concat!($($doc),+).trim_ascii()],)*];
        }
    };
}

drop_reasons! {
    /// The chain was too short to hold a virtio-net header and an Ethernet header.
    TooShort = "too_short",
    /// The frame was longer than 64 KiB plus its link-layer headers.
    TooLong = "too_long",
    /// The virtio-net header asked for a checksum or segmentation that does not fit the frame.
    BadOffload = "bad_offload",
    /// The sender's descriptor chain was malformed: it went back to the sender unread.
    BadChain = "bad_chain",
    /// The source address was a group address or zero.
    BadSource = "bad_source",
    /// The destination is link-local (802.1D reserved) and is never forwarded.
    LinkLocal = "link_local",
    /// A flow without actions dropped the packet: with `--control ovs` a rule did, which `ovs-appctl ofproto/trace` shows; else control did not say why.
    Policy = "policy",
    /// The only destination was the port the packet came from.
    Hairpin = "hairpin",
    /// The destination port was removed meanwhile.
    NoPort = "no_port",
    /// The destination's front-end was not connected or its driver not ready, its interface was not up, or its port is told `link=down`.
    PortDown = "port_down",
    /// The receiver had made no buffers available.
    NoBuffers = "no_buffers",
    /// The receiver's buffers were too small for the frame.
    BufferTooSmall = "buffer_too_small",
    /// The frame was longer than the receiver's MTU and could not be segmented.
    OverMtu = "over_mtu",
    /// The receiver's ring or memory was found broken during the delivery.
    ReceiverBroken = "receiver_broken",
    /// The packet missed the flow table, or a copy of its header was for control, while too many of its port already waited for control.
    MissQueueFull = "miss_queue_full",
    /// Control did not answer the miss in time.
    MissTimeout = "miss_timeout",
    /// The flow has an action that this switch does not know, or that cannot be carried out on the packet.
    BadAction = "bad_action",
    /// The switch had been killed in the middle of the burst: the packet is not sent twice.
    Recovered = "recovered",
    /// A rule of an access list denied the packet, or the list's default did; `lasthop stats` says which.
    Acl = "acl",
    /// The packet's VLAN is not carried by the port it came from, or by any that it would have gone to.
    Vlan = "vlan",
    /// There was nowhere to send the packet: no other port is up, or none wants that multicast.
    NoOtherPort = "no_other_port",
    /// The packet came from one uplink and had only other uplinks to go to.
    BetweenUplinks = "between_uplinks",
    /// The packet pretended to come from an address, or to be a server, that its port's settings do not allow; `lasthop trace` says which.
    Spoofed = "spoofed",
    /// One of the two ports is isolated: it talks to uplinks only.
    Isolated = "isolated",
    /// The receiver's port has got all that its settings let it get; `lasthop port list` shows them.
    Rate = "rate",
    /// The packet was to be flooded, and its port has flooded all that its settings let it; `lasthop port list` shows them.
    Storm = "storm",
    /// The packet's TTL or hop limit was to be decremented, and would have come to 0.
    TtlExpired = "ttl_expired",
    /// A mirror's copy for this port, which was down, had no buffers for it or could not take it; the packet itself went its way.
    MirrorCopy = "mirror_copy",
    /// The port is a mirror's destination: what it sends goes nowhere, and it gets nothing but copies.
    MirrorPort = "mirror_port",
    /// The packet belonged to no connection and could not open one, and a stateful access list judged it; `lasthop trace` says why.
    CtInvalid = "ct_invalid",
    /// The packet would have opened a connection, and there are as many as its port or the switch may have; see `lasthop conntrack stats`.
    CtLimit = "ct_limit",
    /// The flow's meter has let through all that it may.
    Meter = "meter",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_numbers_are_dense() {
        let mut names: Vec<_> = DROP_REASONS.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::COUNT);
        for (i, r) in DROP_REASONS.iter().enumerate() {
            assert_eq!(*r as usize, i);
            assert!(r.explain().ends_with('.'), "{:?}", r.explain());
        }
    }
}
