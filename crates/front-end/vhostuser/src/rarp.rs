//! What a guest that has moved here is announced by.

use lasthop_text::MacAddr;

/// A broadcast RARP request "who am I" from `mac` (RFC 903), padded to the Ethernet minimum: bridges on the way learn
/// where it is now.
pub(crate) fn rarp(mac: MacAddr) -> [u8; 60] {
    let mut f = [0; 60];
    f[..6].fill(0xff);
    f[6..12].copy_from_slice(&mac.0);
    // EtherType RARP, hardware Ethernet, protocol IPv4, lengths 6 and 4, operation 3 (request reverse).
    f[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    f[22..28].copy_from_slice(&mac.0);
    f[32..38].copy_from_slice(&mac.0);
    f
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::{Depth, FlowKey, extract};

    #[test]
    fn rarp_reads_back() {
        let mac = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
        let mut key = FlowKey::default();
        extract(&mut key, &rarp(mac), 60, Depth::Full);
        assert_eq!(
            (MacAddr(key.eth_src), MacAddr(key.eth_dst), key.eth_type, key.ip_proto),
            (mac, MacAddr::BROADCAST, 0x8035, 3)
        );
        assert_eq!((key.arp_sha, key.arp_tha, key.anomalies), (mac.0, mac.0, 0));
    }
}
