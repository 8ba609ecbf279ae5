//! Feature bits by name: virtio's (Virtual I/O Device 1.3, §5.1.3 and §6) and vhost-user's own.

// The specifications say what they are.
#![allow(missing_docs)]

bitflags::bitflags! {
    /// Virtio feature bits that the switch offers to every front-end, whoever else is connected. CSUM and HOST_*: what the
    /// guest may leave to us of what it sends. GUEST_*: what it takes undone from us; but GUEST_ANNOUNCE: it announces itself
    /// after migration, and without it the front-end asks us to (SEND_RARP). PROTOCOL_FEATURES is vhost-user's: there are
    /// some, and rings begin disabled. LOG_ALL is vhost's, and no guest's: what is written to its memory is logged.
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
        const LOG_ALL = 1 << 26;
        const ANY_LAYOUT = 1 << 27;
        const RING_INDIRECT_DESC = 1 << 28;
        const RING_EVENT_IDX = 1 << 29;
        const PROTOCOL_FEATURES = 1 << 30;
        const VERSION_1 = 1 << 32;
        const ACCESS_PLATFORM = 1 << 33;
        const RING_PACKED = 1 << 34;
        const IN_ORDER = 1 << 35;
        const GUEST_USO4 = 1 << 54;
        const GUEST_USO6 = 1 << 55;
        const HOST_USO = 1 << 56;
    }

    /// vhost-user protocol feature bits that the switch offers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ProtocolFeatures: u64 {
        const MQ = 1 << 0;
        const LOG_SHMFD = 1 << 1;
        const RARP = 1 << 2;
        const REPLY_ACK = 1 << 3;
        const NET_MTU = 1 << 4;
        const BACKEND_REQ = 1 << 5;
        const INFLIGHT_SHMFD = 1 << 12;
        const RESET_DEVICE = 1 << 13;
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        const STATUS = 1 << 16;
    }
}

/// Names of others a network device can have, each with its number.
/// Why they are not offered: CTRL_VQ and what needs it, because QEMU and DPDK's virtio-user add and serve the control queue
/// themselves and other front-ends would hand it to us; what the configuration space tells, because that is the front-end's (so
/// STATUS is offered as no more than the bit); RING_RESET before per-ring reset is defined
/// for vhost-user back-ends; NOTIFY_ON_EMPTY and GSO, which only legacy drivers know.
const NOT_OFFERED: &[(u32, &str)] = &[
    (2, "CTRL_GUEST_OFFLOADS"),
    (5, "MAC"),
    (6, "GSO"),
    (17, "CTRL_VQ"),
    (18, "CTRL_RX"),
    (19, "CTRL_VLAN"),
    (20, "CTRL_RX_EXTRA"),
    (23, "CTRL_MAC_ADDR"),
    (24, "NOTIFY_ON_EMPTY"),
    (36, "ORDER_PLATFORM"),
    (37, "SR_IOV"),
    (38, "NOTIFICATION_DATA"),
    (39, "NOTIF_CONFIG_DATA"),
    (40, "RING_RESET"),
    (57, "HASH_REPORT"),
    (59, "GUEST_HDRLEN"),
    (60, "RSS"),
    (61, "RSC_EXT"),
    (62, "STANDBY"),
    (63, "SPEED_DUPLEX"),
];

/// Names of other protocol features.
const PROTOCOL_NOT_OFFERED: &[(u32, &str)] = &[
    (6, "CROSS_ENDIAN"),
    (7, "CRYPTO_SESSION"),
    (8, "PAGEFAULT"),
    (9, "CONFIG"),
    (10, "BACKEND_SEND_FD"),
    (11, "HOST_NOTIFIER"),
    (14, "INBAND_NOTIFICATIONS"),
    (17, "XEN_MMAP"),
    (18, "SHARED_OBJECT"),
    (19, "DEVICE_STATE"),
    (20, "GET_VRING_BASE_INFLIGHT"),
    (21, "GPA_ADDRESSES"),
    (22, "SHMEM"),
];

impl Features {
    /// The answer to GET_FEATURES.
    pub const OFFERED: Self = Self::all();

    /// The bits by name, comma-separated, unnamed ones by number: for error messages.
    pub fn describe(bits: u64) -> String {
        describe::<Self>(NOT_OFFERED, bits)
    }
}

impl ProtocolFeatures {
    /// The answer to GET_PROTOCOL_FEATURES.
    pub const OFFERED: Self = Self::all();

    /// As [`Features::describe`].
    pub fn describe(bits: u64) -> String {
        describe::<Self>(PROTOCOL_NOT_OFFERED, bits)
    }
}

fn describe<A: bitflags::Flags<Bits = u64>>(others: &[(u32, &str)], bits: u64) -> String {
    let offered = A::from_bits_truncate(bits);
    let mut names: Vec<_> = offered.iter_names().map(|(name, _)| name.to_owned()).collect();
    for n in (0..64).filter(|n| (bits & !offered.bits()) >> n & 1 == 1) {
        let known = others.iter().find(|(bit, _)| *bit == n);
        names.push(known.map_or(format!("bit {n}"), |(_, name)| (*name).to_owned()));
    }
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
        assert_eq!(Features::describe(1 << 4 | 1 << 17 | 1 << 63), "bit 4, CTRL_VQ, SPEED_DUPLEX");
        assert_eq!(ProtocolFeatures::describe(1 << 5 | 1 << 1 | 1 << 2), "LOG_SHMFD, RARP, BACKEND_REQ");
        assert_eq!(ProtocolFeatures::describe(1 << 3 | 1 << 63), "REPLY_ACK, bit 63");
    }
}
