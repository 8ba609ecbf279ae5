//! The frames of the load generator: their form, what in them changes from one to the next, and what is checked.
//!
//! Behind ordinary Ethernet, IPv4 and UDP (TCP for packets that want segmentation) headers lies a probe:
//!
//! | offset in the probe | bytes | holds |
//! |---:|---:|---|
//! | 0 | 2 | a mark that tells our frames from others |
//! | 2 | 2 | number of the port that sent it first; the top bit says that it is on its way back |
//! | 4 | 4 | flow |
//! | 8 | 4 | sequence number within the flow |
//! | 12 | 8 | when it was sent, or was meant to be: CLOCK_MONOTONIC, nanoseconds |
//! | 20 | 2 | a check of port, flow, number and the frame's length |
//!
//! After it come words that follow from port, flow and sequence number, so that any changed byte is found.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_text::MacAddr;

/// Bytes of the virtio-net header before each frame (virtio 1.2 §5.1.6).
pub const VNET: usize = VnetHdr::LEN;
/// Shortest frame: all headers and the probe, as it happens the shortest that Ethernet knows with a VLAN tag.
pub const SHORTEST: usize = 64;
/// Longest frame: the longest IPv4 packet in Ethernet.
pub const LONGEST: usize = 65_549;
/// Payload bytes of each segment that a GSO packet is to be cut into.
pub const GSO_SIZE: u16 = 1448;
/// A GSO frame: 45 full segments and the headers.
pub const GSO_FRAME: usize = 45 * GSO_SIZE as usize + TCP_HEADERS;
/// Most flows of one port.
pub const MAX_FLOWS: u32 = 1 << 20;

/// Bytes of a probe.
pub(super) const PROBE: usize = 22;
const UDP_HEADERS: usize = 14 + 20 + 8;
const TCP_HEADERS: usize = 14 + 20 + 20;
/// Flows from this one on are those of which each packet is the first.
pub(super) const FIRSTS: u32 = MAX_FLOWS / 2;
const MARK: u16 = 0x4c48;
const BACK: u16 = 1 << 15;
/// Flow bits that go into the source port; the others go into the source address.
const PORT_BITS: u32 = 10;
const FIRST_PORT: u16 = 1024;

const IP_CHECKSUM: usize = 24;
const IP_PROTOCOL: usize = 23;
const SRC_LOW: usize = 28;
const SRC_PORT: usize = 34;
const TCP_CHECKSUM: usize = 50;

/// What tells flows apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Vary {
    /// Source IP address and source port
    #[default]
    Tuple,
    /// Source MAC address too: a learning switch has to learn each
    Mac,
}

/// Address of port `port`.
pub fn mac(port: u16) -> MacAddr {
    let [hi, lo] = port.to_be_bytes();
    MacAddr([2, 0x4c, hi, lo, 0, 0])
}

/// IPv4 address of port `port`'s first flow.
pub fn ip(port: u16) -> [u8; 4] {
    let port = port.wrapping_add(1);
    [10, (port % 250) as u8, 0, 0]
}

/// Everything of a frame that stays the same from one to the next, with what is needed to change the rest.
#[derive(Clone, Debug)]
pub struct Template {
    /// Virtio-net header, headers, probe.
    head: [u8; VNET + TCP_HEADERS + PROBE],
    /// Bytes of `head` that count.
    head_len: usize,
    /// Bytes of the frame.
    pub len: usize,
    /// Sums of what the checksums cover, without the changing half of the source address.
    ip_sum: u32,
    tcp_sum: Option<u32>,
    vary: Vary,
    probe: usize,
    source: u16,
}

/// What changes from frame to frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Port that sent it first.
    pub source: u16,
    /// It is on its way back.
    pub back: bool,
    /// Its flow.
    pub flow: u32,
    /// Its number within the flow.
    pub sequence: u32,
    /// When it was sent or meant to be, in nanoseconds.
    pub stamp: u64,
}

impl Template {
    /// Frames of `len` bytes from port `source` to `to` (nobody for everybody); of GSO type TCPv4 if `gso`.
    pub fn new(source: u16, to: Option<u16>, len: usize, gso: bool, vary: Vary) -> Self {
        let (from, dst) = (mac(source), to.map_or(MacAddr([0xff; 6]), mac));
        let dst_ip = to.map_or([10, 255, 255, 255], ip);
        let base = Frame::between(from, dst).ipv4(ip(source), dst_ip);
        let headers = if gso { TCP_HEADERS } else { UDP_HEADERS };
        let payload = vec![0; len - headers];
        let frame =
            if gso { base.tcp(FIRST_PORT, 9).payload(payload) } else { base.udp(FIRST_PORT, 9).payload(payload) };
        let frame = frame.build();
        let (ip_sum, mut tcp_sum) = (sum(&frame[14..34]) - word(&frame, IP_CHECKSUM) - word(&frame, SRC_LOW), None);
        let mut header = VnetHdr::default();
        if gso {
            // §5.1.6.2: the field holds the sum of the pseudo header.
            tcp_sum = Some(sum(&frame[26..34]) - word(&frame, SRC_LOW) + 6 + (len - 34) as u32);
            header.flags = VnetHdr::F_NEEDS_CSUM;
            header.gso_type = VnetHdr::GSO_TCPV4;
            header.hdr_len = TCP_HEADERS as u16;
            header.gso_size = GSO_SIZE;
            (header.csum_start, header.csum_offset) = (34, 16);
        }
        let mut head = [0; VNET + TCP_HEADERS + PROBE];
        head[..VNET].copy_from_slice(&header.to_bytes());
        let head_len = VNET + headers + PROBE;
        head[VNET..head_len].copy_from_slice(&frame[..headers + PROBE]);
        if !gso {
            // A UDP checksum is optional over IPv4 (RFC 768), and with it the payload would have to be summed.
            head[VNET + 40..VNET + 42].copy_from_slice(&[0; 2]);
        }
        let probe = VNET + headers;
        head[probe..probe + 2].copy_from_slice(&MARK.to_be_bytes());
        head[probe + 2..probe + 4].copy_from_slice(&source.to_be_bytes());
        Self { head, head_len, len, ip_sum, tcp_sum, vary, probe, source }
    }

    /// The head of the frame of this flow, number and time: virtio-net header, headers and probe.
    #[inline]
    pub fn stamp(&mut self, flow: u32, sequence: u32, stamp: u64) -> &[u8] {
        let head = &mut self.head;
        let at = self.probe + 4;
        head[at..at + 4].copy_from_slice(&flow.to_be_bytes());
        head[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        head[at + 8..at + 16].copy_from_slice(&stamp.to_be_bytes());
        let check = seed(self.source, flow, sequence).wrapping_add(self.len as u64).wrapping_mul(MULTIPLIER) >> 48;
        head[at + 16..at + 18].copy_from_slice(&(check as u16).to_be_bytes());
        let low = (flow >> PORT_BITS) as u16;
        let port = FIRST_PORT + (flow & ((1 << PORT_BITS) - 1)) as u16;
        head[VNET + SRC_LOW..VNET + SRC_LOW + 2].copy_from_slice(&low.to_be_bytes());
        head[VNET + SRC_PORT..VNET + SRC_PORT + 2].copy_from_slice(&port.to_be_bytes());
        let check = !fold(self.ip_sum + u32::from(low));
        head[VNET + IP_CHECKSUM..VNET + IP_CHECKSUM + 2].copy_from_slice(&check.to_be_bytes());
        if let Some(tcp) = self.tcp_sum {
            let pseudo = fold(tcp + u32::from(low));
            head[VNET + TCP_CHECKSUM..VNET + TCP_CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        }
        if self.vary == Vary::Mac {
            let [_, a, b, c] = flow.to_be_bytes();
            head[VNET + 9] = a | (0x10 * u8::from(flow != 0));
            head[VNET + 10] = b;
            head[VNET + 11] = c;
        }
        &head[..self.head_len]
    }

    /// Bytes of the frame that come behind the head.
    pub fn tail_len(&self) -> usize {
        self.len + VNET - self.head_len
    }
}

impl Probe {
    /// Of the first bytes of a frame, without the virtio-net header; nothing if it is not ours.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let at = if *frame.get(IP_PROTOCOL)? == 6 { TCP_HEADERS } else { UDP_HEADERS };
        let b: &[u8; PROBE] = frame.get(at..at + PROBE)?.try_into().ok()?;
        let half = |i: usize| u16::from_be_bytes([b[i], b[i + 1]]);
        let whole = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        (half(0) == MARK).then(|| Self {
            source: half(2) & !BACK,
            back: half(2) & BACK != 0,
            flow: whole(4),
            sequence: whole(8),
            stamp: (u64::from(whole(12)) << 32) | u64::from(whole(16)),
        })
    }
}

/// Bytes of a frame that [`Probe::parse`] wants.
pub const PROBED: usize = TCP_HEADERS + PROBE;

/// Sends a frame back: addresses and ports change places, which no checksum minds.
pub fn turn_round(head: &mut [u8]) {
    swap(head, 0, 6, 6);
    swap(head, 26, 30, 4);
    swap(head, 34, 36, 2);
    let at = if head[IP_PROTOCOL] == 6 { TCP_HEADERS } else { UDP_HEADERS };
    head[at + 2] |= (BACK >> 8) as u8;
}

/// The addresses of the link layer change places. Nothing of a frame too short to have both.
pub fn swap_macs(frame: &mut [u8]) {
    if frame.len() >= 12 {
        swap(frame, 0, 6, 6);
    }
}

fn swap(bytes: &mut [u8], a: usize, b: usize, len: usize) {
    let (left, right) = bytes.split_at_mut(b);
    left[a..a + len].swap_with_slice(&mut right[..len]);
}

/// The words that fill the frame of this port, flow and number behind its head.
pub fn fill(source: u16, flow: u32, sequence: u32, tail: &mut [u8]) {
    let mut words = Words::new(source, flow, sequence);
    let mut chunks = tail.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&words.next());
    }
    let rest = chunks.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&words.next()[..len]);
}

/// Whether a whole received frame is as it was sent, in every byte; `to` is the port that was to receive it (the one that
/// sent it first, if it came back), nobody if everybody was.
pub fn is_intact(frame: &[u8], probe: &Probe, to: Option<u16>, vary: Vary) -> bool {
    let gso = frame.get(IP_PROTOCOL) == Some(&6);
    let headers = if gso { TCP_HEADERS } else { UDP_HEADERS };
    if frame.len() < headers + PROBE || probe.flow >= MAX_FLOWS {
        return false;
    }
    let mut expected = Template::new(probe.source, to, frame.len(), gso, vary);
    let mut head = expected.stamp(probe.flow, probe.sequence, probe.stamp)[VNET..].to_vec();
    if probe.back {
        turn_round(&mut head);
    }
    let (got, tail) = frame.split_at(head.len());
    let mut words = Words::new(probe.source, probe.flow, probe.sequence);
    // The sum of a pseudo header may have been completed on the way.
    let same = |range: std::ops::Range<usize>| got[range.clone()] == head[range];
    let header = if gso { same(0..TCP_CHECKSUM) && same(TCP_CHECKSUM + 2..head.len()) } else { got == head };
    header && tail.chunks(8).all(|chunk| chunk == &words.next()[..chunk.len()])
}

/// A sequence of words that begins anywhere and repeats nowhere near.
struct Words(u64);

impl Words {
    fn new(source: u16, flow: u32, sequence: u32) -> Self {
        Self(seed(source, flow, sequence))
    }

    fn next(&mut self) -> [u8; 8] {
        self.0 = self.0.wrapping_add(0xd1b5_4a32_d192_ed03);
        (self.0 ^ self.0 >> 29).to_le_bytes()
    }
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn seed(source: u16, flow: u32, sequence: u32) -> u64 {
    (((u64::from(flow) << 32) | u64::from(sequence)) ^ (u64::from(source) << 48)).wrapping_mul(MULTIPLIER)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// RFC 1071, not folded.
fn sum(bytes: &[u8]) -> u32 {
    (0..bytes.len()).step_by(2).map(|at| word(bytes, at)).sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(template: &mut Template, source: u16, flow: u32, sequence: u32) -> Vec<u8> {
        let mut bytes = template.stamp(flow, sequence, 77)[VNET..].to_vec();
        let head = bytes.len();
        bytes.resize(template.len, 0);
        fill(source, flow, sequence, &mut bytes[head..]);
        bytes
    }

    #[test]
    fn a_frame_says_who_and_when_and_its_headers_are_right() {
        for (len, gso) in [(64, false), (65, false), (1514, false), (GSO_FRAME, true)] {
            let mut template = Template::new(3, Some(4), len, gso, Vary::Tuple);
            for flow in [0, 1, 1023, 1024, MAX_FLOWS - 1] {
                let bytes = frame(&mut template, 3, flow, 9);
                assert_eq!(bytes.len(), len);
                let expected = Probe { source: 3, back: false, flow, sequence: 9, stamp: 77 };
                let probe = Probe::parse(&bytes).unwrap();
                assert_eq!(probe, expected);
                assert_eq!(fold(sum(&bytes[14..34])), 0xffff, "IPv4 checksum of flow {flow}");
                assert_eq!(word(&bytes, 16) as usize, len - 14, "IPv4 length");
                if gso {
                    let pseudo = sum(&bytes[26..34]) + 6 + (len - 34) as u32;
                    assert_eq!(word(&bytes, TCP_CHECKSUM), u32::from(fold(pseudo)));
                }
                assert!(is_intact(&bytes, &probe, Some(4), Vary::Tuple));
            }
        }
    }

    #[test]
    fn any_flipped_byte_is_found() {
        for (len, gso) in [(64, false), (67, false), (300, false), (1000, true)] {
            let mut template = Template::new(1, None, len, gso, Vary::Mac);
            let bytes = frame(&mut template, 1, 500, 3);
            assert!(is_intact(&bytes, &Probe::parse(&bytes).unwrap(), None, Vary::Mac));
            for at in (0..len).filter(|at| !gso || !(TCP_CHECKSUM..TCP_CHECKSUM + 2).contains(at)) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x40;
                // The time of sending is nobody's but the sender's: nothing says what it should be.
                let headers = if gso { TCP_HEADERS } else { UDP_HEADERS };
                if (headers + 12..headers + 20).contains(&at) {
                    continue;
                }
                let found = Probe::parse(&damaged).is_none_or(|p| !is_intact(&damaged, &p, None, Vary::Mac));
                assert!(found, "byte {at} of {len}");
            }
            assert!(!is_intact(&bytes[..len - 1], &Probe::parse(&bytes).unwrap(), None, Vary::Mac), "too short");
        }
    }

    #[test]
    fn flows_differ_in_what_they_should() {
        let mut heads = std::collections::HashSet::new();
        let mut macs = std::collections::HashSet::new();
        let mut by_tuple = Template::new(0, Some(1), 64, false, Vary::Tuple);
        let mut by_mac = Template::new(0, Some(1), 64, false, Vary::Mac);
        for flow in (0..MAX_FLOWS).step_by(13) {
            let head = by_tuple.stamp(flow, 0, 0);
            assert!(heads.insert((head[VNET + 26..VNET + 30].to_vec(), head[VNET + 34..VNET + 36].to_vec())));
            assert_eq!(head[VNET + 6..VNET + 12], mac(0).0);
            assert!(macs.insert(by_mac.stamp(flow, 0, 0)[VNET + 6..VNET + 12].to_vec()));
        }
    }

    #[test]
    fn what_comes_back_is_addressed_to_the_sender() {
        let mut template = Template::new(0, Some(1), 200, false, Vary::Tuple);
        let mut bytes = frame(&mut template, 0, 5, 6);
        turn_round(&mut bytes);
        assert_eq!(bytes[..6], mac(0).0);
        assert_eq!(bytes[6..12], mac(1).0);
        assert_eq!(fold(sum(&bytes[14..34])), 0xffff);
        let probe = Probe::parse(&bytes).unwrap();
        assert!(probe.back && probe.source == 0);
        assert!(is_intact(&bytes, &probe, Some(1), Vary::Tuple));
    }
}
