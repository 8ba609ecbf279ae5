//! What a packet is to the tracker.

use crate::refusal::Refusal;
use crate::sctp::Chunks;
use crate::tcp::Segment;
use crate::tuple::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP, asks};
use lasthop_frame::{FlowKey, ethertype, read_be16 as be16};

/// A packet as the caller's snapshot has it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its key, extracted to [`lasthop_frame::Depth::L4`].
    pub key: &'a FlowKey,
    /// From the first byte of the transport header on, as far as the snapshot reaches and the packet goes.
    pub transport: &'a [u8],
    /// Bytes of the transport header and what it carries, as the IP header says.
    pub len: usize,
    /// Identification of a fragment; of anything else 0.
    pub fragment: u32,
    /// What the packet was before its addresses were translated, if it has been looked up and is to be once more: its connection is that one's. Of an ICMP error,
    /// what the packet was that it is about.
    pub was: Option<Tuple>,
}

/// What is looked at behind addresses and ports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    Tcp(Segment<'a>),
    Udp,
    Sctp(Chunks<'a>),
    /// ICMP that asks, or that answers.
    Icmp {
        asks: bool,
    },
    Other,
    /// An ICMP error about a packet with this tuple.
    Error(Tuple),
    /// A fragment other than the first: its ports are not known yet.
    Later,
}

/// A packet, ready to be looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub tuple: Tuple,
    pub body: Body<'a>,
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

impl<'a> Packet<'a> {
    #[inline]
    pub fn read(view: &View<'a>, zone: u16, icmp_ids: bool) -> Result<Self, Refusal> {
        let key = view.key;
        if !matches!(key.eth_type, ethertype::IPV4 | ethertype::IPV6) {
            return Err(Refusal::NotIp);
        }
        if key.anomalies != 0 {
            return Err(Refusal::Malformed);
        }
        let mut tuple = Tuple::of(key, zone);
        let bytes = view.transport.get(..view.len).unwrap_or(view.transport);
        let body = match tuple.proto() {
            _ if key.ip_frag & FlowKey::FRAG_LATER != 0 => Body::Later,
            TCP => Body::Tcp(segment(key, bytes, view.len)?),
            // A datagram that ends before its header or behind its packet; a fragment's end is not its packet's.
            UDP => match be16(bytes, 4).map(usize::from) {
                Some(len) if len >= 8 && (len <= view.len || key.ip_frag != 0) => Body::Udp,
                _ => return Err(Refusal::Malformed),
            },
            SCTP => {
                let (tag, chunks) = (be32(bytes, 4), bytes.get(12..));
                Body::Sctp(Chunks { tag: tag.ok_or(Refusal::Malformed)?, bytes: chunks.ok_or(Refusal::Malformed)? })
            }
            ICMP | ICMPV6 if tuple.is_icmp() => icmp(&mut tuple, bytes, icmp_ids)?,
            _ => Body::Other,
        };
        Ok(match (view.was, body) {
            (Some(was), Body::Error(_)) => {
                tuple.set_dst(was.src());
                Self { tuple, body: Body::Error(was) }
            }
            (was, body) => Self { tuple: was.unwrap_or(tuple), body },
        })
    }
}

#[inline]
fn segment<'a>(key: &FlowKey, bytes: &'a [u8], len: usize) -> Result<Segment<'a>, Refusal> {
    let (h, behind) = bytes.split_first_chunk::<20>().ok_or(Refusal::Malformed)?;
    let header_len = usize::from(h[12] >> 4) * 4;
    let options = behind.get(..header_len.saturating_sub(20)).unwrap_or(behind);
    let word = |at| be32(h, at).unwrap_or(0);
    let segment = Segment {
        seq: word(4),
        ack: word(8),
        win: word(12) as u16,
        flags: key.tcp_flags,
        len: len.saturating_sub(header_len) as u32,
        options,
    };
    if segment.is_sane() { Ok(segment) } else { Err(Refusal::TcpFlags) }
}

fn icmp<'a>(tuple: &mut Tuple, bytes: &[u8], ids: bool) -> Result<Body<'a>, Refusal> {
    let (v6, [kind, code]) = (tuple.is_v6(), tuple.ports().map(|number| number as u8));
    let is_error = if v6 { kind < 128 } else { matches!(kind, 3 | 4 | 5 | 11 | 12) };
    if is_error {
        tuple.set_ports([0, 0]);
        let inner = bytes.get(8..).and_then(|inner| embedded(inner, v6, tuple.zone(), ids));
        return inner.map(Body::Error).ok_or(Refusal::Malformed);
    }
    if v6 && matches!(kind, 130..=137 | 143) {
        return Err(Refusal::Untracked);
    }
    let id = be16(bytes, 4).ok_or(Refusal::Malformed)?;
    let id = if ids { id } else { 0 };
    tuple.set_ports([id, u16::from(kind) << 8 | u16::from(code)]);
    if tuple.inverse().is_none() { Err(Refusal::IcmpType) } else { Ok(Body::Icmp { asks: asks(v6, kind) }) }
}

/// The tuple of the packet that an ICMP error is about, which it holds the beginning of. Not of a later fragment.
fn embedded(packet: &[u8], v6: bool, zone: u16, ids: bool) -> Option<Tuple> {
    let (addresses, proto, rest) = if v6 { embedded_v6(packet)? } else { embedded_v4(packet)? };
    let mut ports = match proto {
        TCP | UDP | SCTP | ICMP | ICMPV6 => [be16(rest, 0)?, be16(rest, 2)?],
        _ => [0, 0],
    };
    if proto == if v6 { ICMPV6 } else { ICMP } {
        ports = [if ids { be16(rest, 4)? } else { 0 }, ports[0]];
    }
    Some(Tuple::new(addresses, ports, proto, v6, zone))
}

type Embedded<'a> = ([[u8; 16]; 2], u8, &'a [u8]);

fn embedded_v4(packet: &[u8]) -> Option<Embedded<'_>> {
    let h = packet.first_chunk::<20>()?;
    let rest = packet.get(usize::from(h[0] & 15) * 4..)?;
    let is_first = h[0] >> 4 == 4 && h[0] & 15 >= 5 && be16(h, 6)? & 0x1fff == 0;
    let address = |at: usize| {
        let mut address = [0; 16];
        address[12..].copy_from_slice(&h[at..at + 4]);
        address
    };
    is_first.then(|| ([address(12), address(16)], h[9], rest))
}

fn embedded_v6(packet: &[u8]) -> Option<Embedded<'_>> {
    const FRAGMENT: u8 = 44;
    let (h, mut rest) = packet.split_first_chunk::<40>()?;
    let mut next = h[6];
    // Each takes eight bytes at least, and there are not many.
    while matches!(next, 0 | 43 | 60 | FRAGMENT) {
        let len = if next == FRAGMENT { 8 } else { (usize::from(*rest.get(1)?) + 1) * 8 };
        if next == FRAGMENT && be16(rest, 2)? & 0xfff8 != 0 {
            return None;
        }
        next = *rest.first()?;
        rest = rest.get(len..)?;
    }
    let address = |at| h.get(at..)?.first_chunk().copied();
    (h[0] >> 4 == 6).then_some(([address(8)?, address(24)?], next, rest))
}
