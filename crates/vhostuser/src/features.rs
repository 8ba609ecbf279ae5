//! Feature bits by name: virtio's (Virtual I/O Device 1.3, §5.1.3 and §6) and vhost-user's own.

// The specifications say what they are. Those never offered have their names for messages only.
#![allow(missing_docs)]

bitflags::bitflags! {
    /// Virtio feature bits that the switch offers to every front-end, whoever else is connected. CSUM and HOST_*: what the
    /// guest may leave to us of what it sends. GUEST_*: what it takes undone from us; but GUEST_ANNOUNCE: it announces itself
    /// after migration, and without it the front-end asks us to (SEND_RARP). PROTOCOL_FEATURES is vhost-user's: there are
    /// some, and rings begin disabled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        const CSUM = 1 << 0;
        const GUEST_CSUM = 1 << 1;
        const MTU = 1 << 3;
        const GUEST_TSO4 = 1 << 7;
        const GUEST_TSO6 = 1 << 8;
        const GUEST_ECN = 1 << 9;
        const GUEST_UFO = 1 << 10;
        const HOST_TSO4 = 1 << 11;
        const HOST_TSO6 = 1 << 12;
        const HOST_ECN = 1 << 13;
        const HOST_UFO = 1 << 14;
        const MRG_RXBUF = 1 << 15;
        const STATUS = 1 << 16;
        const GUEST_ANNOUNCE = 1 << 21;
        const MQ = 1 << 22;
        const ANY_LAYOUT = 1 << 27;
        const RING_INDIRECT_DESC = 1 << 28;
        const RING_EVENT_IDX = 1 << 29;
        const PROTOCOL_FEATURES = 1 << 30;
        const VERSION_1 = 1 << 32;
        const RING_PACKED = 1 << 34;
        const IN_ORDER = 1 << 35;
        const GUEST_USO4 = 1 << 54;
        const GUEST_USO6 = 1 << 55;
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
        const MQ = 1 << 0;
        const RARP = 1 << 2;
        const REPLY_ACK = 1 << 3;
        const NET_MTU = 1 << 4;
        const INFLIGHT_SHMFD = 1 << 12;
        const RESET_DEVICE = 1 << 13;
        const CONFIGURE_MEM_SLOTS = 1 << 15;
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
