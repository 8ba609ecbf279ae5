//! Names of features, by their numbers.

/// virtio 1.2, sections 5.1.3 and 6; 30 is vhost-user's own. Without the prefixes VIRTIO_NET_F_, VIRTIO_F_ and VHOST_USER_F_.
const VIRTIO: [(u32, &str); 40] = [
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (2, "CTRL_GUEST_OFFLOADS"),
    (3, "MTU"),
    (5, "MAC"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (9, "GUEST_ECN"),
    (10, "GUEST_UFO"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (13, "HOST_ECN"),
    (14, "HOST_UFO"),
    (15, "MRG_RXBUF"),
    (16, "STATUS"),
    (17, "CTRL_VQ"),
    (18, "CTRL_RX"),
    (19, "CTRL_VLAN"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (23, "CTRL_MAC_ADDR"),
    (24, "NOTIFY_ON_EMPTY"),
    (26, "LOG_ALL"),
    (27, "ANY_LAYOUT"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (30, "PROTOCOL_FEATURES"),
    (32, "VERSION_1"),
    (33, "ACCESS_PLATFORM"),
    (34, "RING_PACKED"),
    (35, "IN_ORDER"),
    (36, "ORDER_PLATFORM"),
    (38, "NOTIFICATION_DATA"),
    (40, "RING_RESET"),
    (54, "GUEST_USO4"),
    (55, "GUEST_USO6"),
    (56, "HOST_USO"),
    (57, "HASH_REPORT"),
    (59, "GUEST_HDRLEN"),
    (60, "RSS"),
];

/// The vhost-user protocol's, without VHOST_USER_PROTOCOL_F_.
const PROTOCOL: [(u32, &str); 19] = [
    (0, "MQ"),
    (1, "LOG_SHMFD"),
    (2, "RARP"),
    (3, "REPLY_ACK"),
    (4, "NET_MTU"),
    (5, "BACKEND_REQ"),
    (6, "CROSS_ENDIAN"),
    (7, "CRYPTO_SESSION"),
    (8, "PAGEFAULT"),
    (9, "CONFIG"),
    (10, "BACKEND_SEND_FD"),
    (11, "HOST_NOTIFIER"),
    (12, "INFLIGHT_SHMFD"),
    (13, "RESET_DEVICE"),
    (14, "INBAND_NOTIFICATIONS"),
    (15, "CONFIGURE_MEM_SLOTS"),
    (16, "STATUS"),
    (17, "XEN_MMAP"),
    (18, "SHARED_OBJECT"),
];

/// Of negotiated virtio features, written like `0x130000003`.
pub fn virtio(hex: &str) -> Vec<String> {
    names(hex, &VIRTIO)
}

/// Of negotiated protocol features.
pub fn protocol(hex: &str) -> Vec<String> {
    names(hex, &PROTOCOL)
}

/// One that no name is known of is `bit N`.
fn names(hex: &str, known: &[(u32, &str)]) -> Vec<String> {
    let set = u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap_or(0);
    let name =
        |bit: u32| known.iter().find(|(n, _)| *n == bit).map_or_else(|| format!("bit {bit}"), |(_, s)| (*s).into());
    (0..u64::BITS).filter(|bit| set >> bit & 1 == 1).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_names_in_order() {
        assert_eq!(virtio("0x500008001"), ["CSUM", "MRG_RXBUF", "VERSION_1", "RING_PACKED"]);
        assert_eq!(protocol("0x80000009"), ["MQ", "REPLY_ACK", "bit 31"]);
        assert!(virtio("0x0").is_empty() && virtio("").is_empty());
        assert!(VIRTIO.is_sorted() && PROTOCOL.is_sorted());
    }
}
