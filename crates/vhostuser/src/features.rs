//! Feature bits by name: virtio's (Virtual I/O Device 1.3, §5.1.3 and §6) and vhost-user's own.

// Those never offered have their names for messages only; the specifications say what they are.
#![allow(missing_docs)]

bitflags::bitflags! {
    /// Virtio feature bits that the switch offers to every front-end, whoever else is connected.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// The guest may leave checksums of what it sends to us.
        const CSUM = 1 << 0;
        /// The guest takes packets whose checksum is not complete.
        const GUEST_CSUM = 1 << 1;
        /// The device tells its greatest MTU.
        const MTU = 1 << 3;
        /// The guest takes TCP over IPv4 packets longer than its MTU.
        const GUEST_TSO4 = 1 << 7;
        /// The same over IPv6.
        const GUEST_TSO6 = 1 << 8;
        /// The guest takes such packets with ECN's CWR set.
        const GUEST_ECN = 1 << 9;
        /// The guest takes UDP datagrams to be fragmented.
        const GUEST_UFO = 1 << 10;
        /// The guest may send TCP over IPv4 packets longer than the MTU.
        const HOST_TSO4 = 1 << 11;
        /// The same over IPv6.
        const HOST_TSO6 = 1 << 12;
        /// It may send them with ECN's CWR set.
        const HOST_ECN = 1 << 13;
        /// The guest may send UDP datagrams to be fragmented.
        const HOST_UFO = 1 << 14;
        /// A packet to the guest may spread over several buffers.
        const MRG_RXBUF = 1 << 15;
        /// The configuration space tells whether the link is up.
        const STATUS = 1 << 16;
        /// The guest announces itself after migration; without it the front-end asks us to (SEND_RARP).
        const GUEST_ANNOUNCE = 1 << 21;
        /// More than one queue pair.
        const MQ = 1 << 22;
        /// Legacy: no assumption on how a frame is cut into descriptors.
        const ANY_LAYOUT = 1 << 27;
        /// Descriptor tables outside of the ring.
        const RING_INDIRECT_DESC = 1 << 28;
        /// Notifications suppressed by index.
        const RING_EVENT_IDX = 1 << 29;
        /// vhost-user: there are protocol features. Rings begin disabled.
        const PROTOCOL_FEATURES = 1 << 30;
        /// Not a legacy device.
        const VERSION_1 = 1 << 32;
        /// Packed rings.
        const RING_PACKED = 1 << 34;
        /// Buffers are used in the order in which they were made available.
        const IN_ORDER = 1 << 35;
        /// The guest takes UDP over IPv4 packets to be segmented.
        const GUEST_USO4 = 1 << 54;
        /// The same over IPv6.
        const GUEST_USO6 = 1 << 55;
        /// The guest may send UDP packets to be segmented.
        const HOST_USO = 1 << 56;
    }

    /// Others a network device can have, and LOG_ALL, which vhost borrows from the reserved ones. Why they are not offered:
    /// CTRL_VQ and what needs it, because QEMU and DPDK's virtio-user add and serve the control queue themselves and other
    /// front-ends would hand it to us; what the configuration space tells, because that is the front-end's (so STATUS is
    /// offered as no more than the bit); LOG_ALL before there is a dirty log; RING_RESET before per-ring reset is defined
    /// for vhost-user back-ends; NOTIFY_ON_EMPTY and GSO, which only legacy drivers know.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct NotOffered: u64 {
        const CTRL_GUEST_OFFLOADS = 1 << 2;
        const MAC = 1 << 5;
        const GSO = 1 << 6;
        const CTRL_VQ = 1 << 17;
        const CTRL_RX = 1 << 18;
        const CTRL_VLAN = 1 << 19;
        const CTRL_RX_EXTRA = 1 << 20;
        const CTRL_MAC_ADDR = 1 << 23;
        const NOTIFY_ON_EMPTY = 1 << 24;
        const LOG_ALL = 1 << 26;
        const ACCESS_PLATFORM = 1 << 33;
        const ORDER_PLATFORM = 1 << 36;
        const SR_IOV = 1 << 37;
        const NOTIFICATION_DATA = 1 << 38;
        const NOTIF_CONFIG_DATA = 1 << 39;
        const RING_RESET = 1 << 40;
        const HASH_REPORT = 1 << 57;
        const GUEST_HDRLEN = 1 << 59;
        const RSS = 1 << 60;
        const RSC_EXT = 1 << 61;
        const STANDBY = 1 << 62;
        const SPEED_DUPLEX = 1 << 63;
    }

    /// vhost-user protocol feature bits that the switch offers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ProtocolFeatures: u64 {
        /// More than one queue pair; GET_QUEUE_NUM.
        const MQ = 1 << 0;
        /// SEND_RARP.
        const RARP = 1 << 2;
        /// Any message can ask to be acknowledged.
        const REPLY_ACK = 1 << 3;
        /// NET_SET_MTU.
        const NET_MTU = 1 << 4;
        /// GET_INFLIGHT_FD and SET_INFLIGHT_FD.
        const INFLIGHT_SHMFD = 1 << 12;
        /// RESET_DEVICE.
        const RESET_DEVICE = 1 << 13;
        /// GET_MAX_MEM_SLOTS, ADD_MEM_REG and REM_MEM_REG.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// GET_STATUS and SET_STATUS.
        const STATUS = 1 << 16;
    }

    /// Others. Not BACKEND_REQ: there is nothing to request.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct ProtocolNotOffered: u64 {
        const LOG_SHMFD = 1 << 1;
        const BACKEND_REQ = 1 << 5;
        const CROSS_ENDIAN = 1 << 6;
        const CRYPTO_SESSION = 1 << 7;
        const PAGEFAULT = 1 << 8;
        const CONFIG = 1 << 9;
        const BACKEND_SEND_FD = 1 << 10;
        const HOST_NOTIFIER = 1 << 11;
        const INBAND_NOTIFICATIONS = 1 << 14;
        const XEN_MMAP = 1 << 17;
        const SHARED_OBJECT = 1 << 18;
        const DEVICE_STATE = 1 << 19;
        const GET_VRING_BASE_INFLIGHT = 1 << 20;
        const GPA_ADDRESSES = 1 << 21;
        const SHMEM = 1 << 22;
    }
}

impl Features {
    /// The answer to GET_FEATURES.
    pub const OFFERED: Self = Self::all();

    /// The bits by name, comma-separated, unnamed ones by number: for error messages.
    pub fn describe(bits: u64) -> String {
        describe::<Self, NotOffered>(bits)
    }
}

impl ProtocolFeatures {
    /// The answer to GET_PROTOCOL_FEATURES.
    pub const OFFERED: Self = Self::all();

    /// As [`Features::describe`].
    pub fn describe(bits: u64) -> String {
        describe::<Self, ProtocolNotOffered>(bits)
    }
}

fn describe<A: bitflags::Flags<Bits = u64>, B: bitflags::Flags<Bits = u64>>(bits: u64) -> String {
    let (offered, others) = (A::from_bits_truncate(bits), B::from_bits_truncate(bits));
    let mut names: Vec<_> = offered.iter_names().map(|(name, _)| name.to_owned()).collect();
    names.extend(others.iter_names().map(|(name, _)| name.to_owned()));
    let unnamed = bits & !offered.bits() & !others.bits();
    names.extend((0..64).filter(|n| unnamed >> n & 1 == 1).map(|n| format!("bit {n}")));
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_the_numbers_of_the_standard() {
        let numbers = |f: Features| f.bits().trailing_zeros();
        assert_eq!(numbers(Features::MRG_RXBUF), 15);
        assert_eq!(numbers(Features::PROTOCOL_FEATURES), 30);
        assert_eq!(numbers(Features::RING_PACKED), 34);
        assert_eq!(numbers(Features::HOST_USO), 56);
        assert_eq!(ProtocolFeatures::STATUS.bits(), 0x1_0000);
    }

    #[test]
    fn errors_name_the_bits() {
        assert_eq!(Features::describe(0), "none");
        assert_eq!(Features::describe(1 | 1 << 34 | 1 << 58), "CSUM, RING_PACKED, bit 58");
        assert_eq!(Features::describe(1 << 4), "bit 4");
        assert_eq!(ProtocolFeatures::describe(1 << 3 | 1 << 63), "REPLY_ACK, bit 63");
    }
}
