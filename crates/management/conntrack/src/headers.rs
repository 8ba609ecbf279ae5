//! A packet's headers, as they come with a miss: where its transport header lies.

use crate::View;
use lasthop_frame::{FlowKey, ethertype, read_be16};

const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

/// The beginning of a packet, and how long it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    /// Its first bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
    /// Length of the frame in bytes.
    pub frame_len: usize,
}

impl<'a> Headers<'a> {
    fn byte(self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn word(self, at: usize) -> Option<u16> {
        read_be16(self.bytes, at)
    }

    /// The packet as the tracker wants it; `key` is its key. A packet whose headers are not all there has an empty transport header.
    pub fn view(self, key: &'a FlowKey) -> View<'a> {
        let (at, end, fragment) = self.transport(key).unwrap_or_default();
        let len = end.min(self.frame_len).saturating_sub(at);
        let bytes = self.bytes.get(at..).unwrap_or_default();
        let fragment = if key.ip_frag == 0 { 0 } else { fragment };
        View { key, transport: bytes.get(..len).unwrap_or(bytes), len, fragment, was: None }
    }

    /// Where the transport header begins, where the IP packet ends, and the identification of a fragment.
    fn transport(self, key: &FlowKey) -> Option<(usize, usize, u32)> {
        let tags = usize::from(key.vlan_tpid != 0) + usize::from(key.inner_vlan_tpid != 0);
        let mut at = 14 + 4 * tags;
        if self.word(at - 2)? < ethertype::MIN {
            at += 8;
        }
        match key.eth_type {
            ethertype::IPV4 => {
                let header = usize::from(self.byte(at)? & 15) * 4;
                Some((at + header, at + usize::from(self.word(at + 2)?), u32::from(self.word(at + 4)?)))
            }
            ethertype::IPV6 => self.behind_extensions(at),
            _ => None,
        }
    }

    fn behind_extensions(self, ip: usize) -> Option<(usize, usize, u32)> {
        let payload = usize::from(self.word(ip + 4)?);
        // None: a jumbogram (RFC 2675), as long as the frame.
        let end = if payload == 0 { usize::MAX } else { ip + 40 + payload };
        let (mut at, mut next, mut id) = (ip + 40, self.byte(ip + 6)?, 0);
        // Each takes eight bytes at least, and there are not many.
        while matches!(next, 0 | 43 | FRAGMENT | AUTHENTICATION | 60) {
            let words = usize::from(self.byte(at + 1)?);
            let (is_fragment, header) = (next == FRAGMENT, at);
            at += match next {
                FRAGMENT => 8,
                AUTHENTICATION => (words + 2) * 4,
                _ => (words + 1) * 8,
            };
            next = self.byte(header)?;
            if is_fragment {
                id = u32::from(self.word(header + 4)?) << 16 | u32::from(self.word(header + 6)?);
                if self.word(header + 2)? & 0xfff8 != 0 {
                    break;
                }
            }
        }
        Some((at, end, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testutil::{Ends, seg, view};
    use lasthop_frame::{Depth, SNAPSHOT_LEN, extract};

    fn key(frame: &[u8]) -> FlowKey {
        let mut key = FlowKey::default();
        extract(&mut key, frame.get(..SNAPSHOT_LEN).unwrap_or(frame), frame.len(), Depth::Full);
        key
    }

    fn headers(frame: &[u8]) -> Headers<'_> {
        Headers { bytes: frame.get(..SNAPSHOT_LEN).unwrap_or(frame), frame_len: frame.len() }
    }

    #[test]
    fn transport_headers_are_found_behind_tags_and_extensions() {
        for ends in [Ends::v4(1000, 80), Ends::v6(1000, 80)] {
            let mut frame = ends.tcp(&seg("PA", 1, 2, 1000));
            frame.extend([0; 7]);
            for _ in 0..3 {
                let key = key(&frame);
                let found = headers(&frame).view(&key);
                assert_eq!(found.transport.first_chunk(), Some(&1000u16.to_be_bytes()), "{key:?}");
                assert_eq!(found.len, 1020, "padding does not count");
                frame.splice(12..12, [0x81, 0, 0, 5]);
            }
        }
        let payload = [17u8, 0, 1, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
        let frame = Ends::v6(1, 1).ip(60).payload(payload).build();
        let key = key(&frame);
        assert_eq!(key.l4_src, 0x1234);
        assert_eq!(headers(&frame).view(&key).transport, &payload[8..]);
    }

    #[test]
    fn cut_frames_have_no_transport_header() {
        let frame = Ends::v6(1000, 80).udp(100);
        for len in 0..54 {
            let cut = &frame[..len];
            let key = FlowKey { eth_type: 0x86dd, ..FlowKey::default() };
            assert!(headers(cut).view(&key).transport.is_empty(), "{len}");
        }
    }

    #[test]
    fn it_agrees_with_the_views_of_tests() {
        for ends in [Ends::v4(7, 8), Ends::v6(7, 8)] {
            for frame in [ends.udp(3), ends.echo(false, 9), ends.tcp(&seg("S", 1, 0, 0)), ends.error(&ends.udp(2))] {
                let (mut expected, key) = (FlowKey::default(), key(&frame));
                let (a, b) = (view(&frame, &mut expected), headers(&frame).view(&key));
                assert_eq!((a.transport, a.len, a.fragment), (b.transport, b.len, b.fragment));
            }
        }
    }
}
