//! Frames between two ends and views of them, for tests here and in other crates. Panics on nonsense: never for real input.

use crate::View;
use lasthop_frame::testutil::Frame;
use lasthop_frame::{Depth, FlowKey, SNAPSHOT_LEN, extract, sum};

/// Two ends of a connection, and which of them sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// IPv6.
    pub v6: bool,
    /// Source and destination: 10.0.0.x, fd00::x, 02:00:00:00:00:x.
    pub hosts: [u8; 2],
    /// Source and destination ports.
    pub ports: [u16; 2],
}

/// A segment's fields, beside its ports.
#[derive(Clone, Debug, Default)]
pub struct Seg {
    /// Letters: S, A, F, R, P, U.
    pub flags: &'static str,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window; 0: 1000.
    pub win: u16,
    /// Options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// Bytes of payload.
    pub len: usize,
}

/// A segment without options.
pub fn seg(flags: &'static str, seq: u32, ack: u32, len: usize) -> Seg {
    Seg { flags, seq, ack, len, ..Seg::default() }
}

/// Bits of flags in letters.
pub fn bits(flags: &str) -> u8 {
    let bit = |letter| match letter {
        'F' => 1,
        'S' => 2,
        'R' => 4,
        'P' => 8,
        'A' => 16,
        'U' => 32,
        other => panic!("no flag {other}"),
    };
    flags.chars().map(bit).sum()
}

impl Ends {
    /// From host 1 to host 2, IPv4.
    pub fn v4(src_port: u16, dst_port: u16) -> Self {
        Self { v6: false, hosts: [1, 2], ports: [src_port, dst_port] }
    }

    /// From host 1 to host 2, IPv6.
    pub fn v6(src_port: u16, dst_port: u16) -> Self {
        Self { v6: true, ..Self::v4(src_port, dst_port) }
    }

    /// The other way.
    #[must_use]
    pub fn back(self) -> Self {
        let ([a, b], [c, d]) = (self.hosts, self.ports);
        Self { hosts: [b, a], ports: [d, c], ..self }
    }

    /// Address of a host, as a key has it.
    pub fn address(self, host: u8) -> [u8; 16] {
        if self.v6 { v6(host) } else { [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, host] }
    }

    /// An IP packet without its transport header.
    pub fn ip(self, proto: u8) -> Frame {
        let [src, dst] = self.hosts;
        let frame = Frame::new(src, dst);
        let frame = if self.v6 { frame.ipv6(v6(src), v6(dst)) } else { frame.ipv4([10, 0, 0, src], [10, 0, 0, dst]) };
        frame.protocol(proto)
    }

    /// TCP.
    pub fn tcp(self, seg: &Seg) -> Vec<u8> {
        let [src, dst] = self.ports.map(u16::to_be_bytes);
        let win = if seg.win == 0 { 1000 } else { seg.win };
        let offset = ((20 + seg.options.len()) / 4) as u8;
        let mut bytes = [src, dst].concat();
        bytes.extend(seg.seq.to_be_bytes());
        bytes.extend(seg.ack.to_be_bytes());
        bytes.extend([offset << 4, bits(seg.flags)]);
        bytes.extend(win.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&seg.options);
        bytes.resize(bytes.len() + seg.len, 0x55);
        self.checked(6, bytes, 16)
    }

    /// UDP with so many bytes.
    pub fn udp(self, len: usize) -> Vec<u8> {
        let mut bytes = [self.ports[0], self.ports[1], 8 + len as u16, 0].map(u16::to_be_bytes).concat();
        bytes.resize(8 + len, 0xaa);
        self.checked(17, bytes, 6)
    }

    /// ICMP or ICMPv6 of this type and code, with what follows its checksum.
    pub fn icmp(self, kind: u8, code: u8, content: &[u8]) -> Vec<u8> {
        let bytes = [&[kind, code, 0, 0], content].concat();
        self.checked(if self.v6 { 58 } else { 1 }, bytes, 2)
    }

    /// Echo: a request (type 8 or 128) or, `back`, its answer.
    pub fn echo(self, is_answer: bool, id: u16) -> Vec<u8> {
        let kind = if self.v6 { 128 + u8::from(is_answer) } else { 8 * u8::from(!is_answer) };
        self.icmp(kind, 0, &[&id.to_be_bytes()[..], &[0, 1], &[7; 24]].concat())
    }

    /// An ICMP error (port unreachable) about a frame.
    pub fn error(self, about: &[u8]) -> Vec<u8> {
        let (kind, code) = if self.v6 { (1, 4) } else { (3, 3) };
        let about = about.get(14..).unwrap_or_default();
        self.icmp(kind, code, &[&[0; 4], about.get(..68).unwrap_or(about)].concat())
    }

    fn checked(self, proto: u8, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
        let [src, dst] = self.hosts;
        let pseudo = match proto {
            1 => 0,
            _ if self.v6 => sum::pseudo_v6(v6(src), v6(dst), proto, bytes.len() as u32),
            _ => sum::pseudo_v4([10, 0, 0, src], [10, 0, 0, dst], proto, bytes.len() as u16),
        };
        let checksum = sum::finish(pseudo + sum::sum(&bytes));
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        self.ip(proto).payload(bytes).build()
    }
}

fn v6(host: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

/// The view of a frame without VLAN tags, as the packet path would make it; `key` is where its key is put.
pub fn view<'f>(frame: &'f [u8], key: &'f mut FlowKey) -> View<'f> {
    let snapshot = frame.get(..SNAPSHOT_LEN).unwrap_or(frame);
    *key = FlowKey::default();
    extract(key, snapshot, frame.len(), Depth::L4);
    let word = |at: usize| frame.get(at..at + 2).map_or(0, |b| usize::from(b[0]) << 8 | usize::from(b[1]));
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let (mut at, end, mut fragment) = (14, frame.len(), 0);
    let end = match key.eth_type {
        0x0800 => {
            (at, fragment) = (14 + usize::from(byte(14) & 15) * 4, word(18) as u32);
            end.min(14 + word(16))
        }
        0x86dd => {
            (at, fragment) = extensions(frame);
            end.min(54 + word(18))
        }
        _ => end,
    };
    let transport = snapshot.get(at..end.min(snapshot.len())).unwrap_or_default();
    let fragment = if key.ip_frag == 0 { 0 } else { fragment };
    View { key, transport, len: end.saturating_sub(at), fragment, was: None }
}

/// Where IPv6's extension headers end, and the identification of a fragment.
fn extensions(frame: &[u8]) -> (usize, u32) {
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let (mut at, mut next, mut fragment) = (54, byte(20), 0);
    while matches!(next, 0 | 43 | 44 | 51 | 60) && at + 8 <= frame.len() {
        let len = match next {
            44 => 8,
            51 => (usize::from(byte(at + 1)) + 2) * 4,
            _ => (usize::from(byte(at + 1)) + 1) * 8,
        };
        if next == 44 {
            fragment = u32::from_be_bytes([byte(at + 4), byte(at + 5), byte(at + 6), byte(at + 7)]);
        }
        next = byte(at);
        at += len;
        if fragment != 0 && (byte(at - 6) != 0 || byte(at - 5) & 0xf8 != 0) {
            break;
        }
    }
    (at, fragment)
}
