//! Builds frames for tests, here and in other crates (feature `testutil`). Panics on nonsense: never for real input.

pub mod edits;
pub mod reference;

use crate::{VnetHdr, sum};

/// Builds one Ethernet frame; see [`Frame::new`].
#[derive(Clone, Debug)]
pub struct Frame {
    eth: Vec<u8>,
    ether_type: Option<u16>,
    ip: Ip,
    ttl: u8,
    tos: u8,
    id: u16,
    fragment: u16,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    transport: Transport,
    payload: Vec<u8>,
    padding: usize,
    partial: bool,
}

#[derive(Clone, Copy, Debug)]
enum Ip {
    None,
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

#[derive(Clone, Debug)]
enum Transport {
    Raw(u8),
    Tcp { ports: [u16; 2], flags: u16, seq: u32, options: Vec<u8> },
    Udp { ports: [u16; 2] },
    Icmp { kind: u8, code: u8 },
}

impl Frame {
    /// A frame from `src` to `dst` (the last byte of a 02:00:00:00:00:xx address) with nothing inside.
    pub fn new(src: u8, dst: u8) -> Self {
        Self::between([2, 0, 0, 0, 0, src], [2, 0, 0, 0, 0, dst])
    }

    /// A frame from `src` to `dst` with nothing inside.
    pub fn between(src: impl Into<[u8; 6]>, dst: impl Into<[u8; 6]>) -> Self {
        Self {
            eth: [dst.into(), src.into()].concat(),
            ether_type: None,
            ip: Ip::None,
            ttl: 64,
            tos: 0,
            id: 0x1234,
            fragment: 0,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            transport: Transport::Raw(253),
            payload: Vec::new(),
            padding: 0,
            partial: false,
        }
    }

    /// Adds an 802.1Q tag behind those already there.
    pub fn vlan(self, tci: u16) -> Self {
        self.tag(0x8100, tci)
    }

    /// Adds a tag with this TPID behind those already there.
    pub fn tag(mut self, tpid: u16, tci: u16) -> Self {
        self.eth.extend(tpid.to_be_bytes());
        self.eth.extend(tci.to_be_bytes());
        self
    }

    /// Sets the EtherType (or 802.3 length); without it the IP version decides, or 0x88b5 (local experiment).
    pub fn ether_type(mut self, ether_type: u16) -> Self {
        self.ether_type = Some(ether_type);
        self
    }

    /// Puts an IPv4 header in, don't-fragment clear.
    pub fn ipv4(mut self, src: [u8; 4], dst: [u8; 4]) -> Self {
        self.ip = Ip::V4(src, dst);
        self
    }

    /// Puts an IPv6 header in.
    pub fn ipv6(mut self, src: [u8; 16], dst: [u8; 16]) -> Self {
        self.ip = Ip::V6(src, dst);
        self
    }

    /// TTL or hop limit; 64 otherwise.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Traffic class.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// IPv4 identification.
    pub fn id(mut self, id: u16) -> Self {
        self.id = id;
        self
    }

    /// IPv4 flags and fragment offset as they stand in the header. For IPv6 add an [`Frame::extension`] 44.
    pub fn fragment(mut self, word: u16) -> Self {
        self.fragment = word;
        self
    }

    /// IPv4 options; a multiple of four bytes.
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        assert_eq!(options.len() % 4, 0);
        self.ip_options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header of this number with `body` behind its Next Header byte (length byte included).
    pub fn extension(mut self, number: u8, body: &[u8]) -> Self {
        self.extensions.push((number, body.to_vec()));
        self
    }

    /// Puts a TCP header (ACK) in.
    pub fn tcp(mut self, src: u16, dst: u16) -> Self {
        self.transport = Transport::Tcp { ports: [src, dst], flags: 0x10, seq: 1000, options: Vec::new() };
        self
    }

    /// TCP flags, sequence number and options (a multiple of four bytes).
    pub fn tcp_fields(mut self, flags: u16, seq: u32, options: &[u8]) -> Self {
        let Transport::Tcp { ports, .. } = self.transport else { panic!("not TCP") };
        self.transport = Transport::Tcp { ports, flags, seq, options: options.to_vec() };
        self
    }

    /// Puts a UDP header in.
    pub fn udp(mut self, src: u16, dst: u16) -> Self {
        self.transport = Transport::Udp { ports: [src, dst] };
        self
    }

    /// Puts an ICMP or ICMPv6 header of four bytes in; the payload is what follows.
    pub fn icmp(mut self, kind: u8, code: u8) -> Self {
        self.transport = Transport::Icmp { kind, code };
        self
    }

    /// No transport header, only this protocol number.
    pub fn protocol(mut self, number: u8) -> Self {
        self.transport = Transport::Raw(number);
        self
    }

    /// What the innermost header carries.
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Zero bytes behind the IP packet.
    pub fn padding(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// Leaves the sum of the pseudo header in the checksum field, as a sender does that asks for offload.
    pub fn partial_checksum(mut self) -> Self {
        self.partial = true;
        self
    }

    /// The virtio-net header that asks for completion of this frame's checksum and segmentation of `gso_type`.
    /// TCP or UDP only.
    pub fn vnet(&self, gso_type: u8, gso_size: u16) -> VnetHdr {
        let (csum_offset, l4_len) = match &self.transport {
            Transport::Tcp { options, .. } => (16, 20 + options.len()),
            Transport::Udp { .. } => (6, 8),
            _ => panic!("neither TCP nor UDP"),
        };
        let l4 = self.link_len() + self.ip_len();
        VnetHdr {
            flags: VnetHdr::F_NEEDS_CSUM,
            gso_type,
            hdr_len: (l4 + l4_len) as u16,
            gso_size,
            csum_start: l4 as u16,
            csum_offset,
            num_buffers: 0,
        }
    }

    fn link_len(&self) -> usize {
        self.eth.len() + 2
    }

    fn ip_len(&self) -> usize {
        match self.ip {
            Ip::None => 0,
            Ip::V4(..) => 20 + self.ip_options.len(),
            Ip::V6(..) => 40 + self.extensions.iter().map(|(_, body)| body.len() + 1).sum::<usize>(),
        }
    }

    /// The frame.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.eth.clone();
        let ether_type = match self.ip {
            Ip::None => 0x88b5,
            Ip::V4(..) => 0x0800,
            Ip::V6(..) => 0x86dd,
        };
        out.extend(self.ether_type.unwrap_or(ether_type).to_be_bytes());
        let l4 = self.transport_bytes();
        match self.ip {
            Ip::None => {}
            Ip::V4(src, dst) => {
                let at = out.len();
                let header_len = 20 + self.ip_options.len();
                out.extend([0x40 | (header_len / 4) as u8, self.tos]);
                out.extend(u16::try_from(header_len + l4.len()).expect("IPv4 packet too long").to_be_bytes());
                out.extend(self.id.to_be_bytes());
                out.extend(self.fragment.to_be_bytes());
                out.extend([self.ttl, self.number(), 0, 0]);
                out.extend(src);
                out.extend(dst);
                out.extend(&self.ip_options);
                let checksum = !sum::fold(sum::sum(&out[at..]));
                out[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            Ip::V6(src, dst) => {
                let len = u16::try_from(self.ip_len() - 40 + l4.len()).expect("IPv6 packet too long");
                let mut numbers: Vec<u8> = self.extensions.iter().map(|(n, _)| *n).collect();
                numbers.push(self.number());
                out.extend([0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
                out.extend(len.to_be_bytes());
                out.extend([numbers[0], self.ttl]);
                out.extend(src);
                out.extend(dst);
                for ((_, body), next) in self.extensions.iter().zip(&numbers[1..]) {
                    out.push(*next);
                    out.extend(body);
                }
            }
        }
        out.extend(l4);
        out.resize(out.len() + self.padding, 0);
        out
    }

    fn number(&self) -> u8 {
        match (&self.transport, self.ip) {
            (Transport::Raw(n), _) => *n,
            (Transport::Tcp { .. }, _) => 6,
            (Transport::Udp { .. }, _) => 17,
            (Transport::Icmp { .. }, Ip::V6(..)) => 58,
            (Transport::Icmp { .. }, _) => 1,
        }
    }

    fn transport_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let field = match &self.transport {
            Transport::Raw(_) => None,
            Transport::Tcp { ports, flags, seq, options } => {
                ports.iter().for_each(|p| out.extend(p.to_be_bytes()));
                out.extend(seq.to_be_bytes());
                out.extend(77u32.to_be_bytes());
                out.extend((((20 + options.len()) as u16 / 4) << 12 | flags).to_be_bytes());
                out.extend([0xff, 0xff, 0, 0, 0, 0]);
                out.extend(options);
                Some(16)
            }
            Transport::Udp { ports } => {
                ports.iter().for_each(|p| out.extend(p.to_be_bytes()));
                out.extend(u16::try_from(8 + self.payload.len()).expect("UDP datagram too long").to_be_bytes());
                out.extend([0, 0]);
                Some(6)
            }
            Transport::Icmp { kind, code } => {
                out.extend([*kind, *code, 0, 0]);
                Some(2)
            }
        };
        out.extend(&self.payload);
        if let Some(field) = field {
            let pseudo = match self.ip {
                Ip::V4(..) if self.number() == 1 => 0,
                Ip::V4(src, dst) => sum::pseudo_v4(src, dst, self.number(), out.len() as u16),
                Ip::V6(src, dst) => sum::pseudo_v6(src, dst, self.number(), out.len() as u32),
                Ip::None => 0,
            };
            let value = if self.partial { sum::fold(pseudo) } else { sum::finish(pseudo + sum::sum(&out)) };
            out[field..field + 2].copy_from_slice(&value.to_be_bytes());
        }
        out
    }
}

/// An ARP message (operation 1: request, 2: reply) of 42 bytes, broadcast if it is a request.
pub fn arp<Mac: Into<[u8; 6]>>(operation: u16, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Vec<u8> {
    let ends = [sender, target].map(|(mac, ip)| (mac.into(), ip));
    let dst = if operation == 1 { [0xff; 6] } else { ends[1].0 };
    let mut out = Frame::between(ends[0].0, dst).ether_type(0x0806).build();
    out.extend([0, 1, 8, 0, 6, 4]);
    out.extend(operation.to_be_bytes());
    for (mac, ip) in ends {
        out.extend(mac);
        out.extend(ip);
    }
    out
}

/// A neighbour solicitation for `target` with the sender's link-layer address as an option.
pub fn neighbour_solicitation(sender: (impl Into<[u8; 6]>, [u8; 16]), target: [u8; 16]) -> Vec<u8> {
    let mac = sender.0.into();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&target[13..]);
    let dst = [0x33, 0x33, 0xff, target[13], target[14], target[15]];
    let message = [&[0; 4][..], &target, &[1, 1], &mac].concat();
    Frame::between(mac, dst).ipv6(sender.1, group).ttl(255).icmp(135, 0).payload(message).build()
}
