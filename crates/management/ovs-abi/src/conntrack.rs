//! The kernel's table of connections as programs ask for it: `nfnetlink`, the subsystem of connection tracking.

use crate::Refused;
use crate::netlink::{Writer, table};

/// Type of the message that asks for connections.
pub const GET: u16 = 0x101;
/// Of one that ends them.
pub const DELETE: u16 = 0x102;
/// Of one that tells of a connection.
const NEW: u16 = 0x100;
/// Bytes of the header behind netlink's.
pub const HEADER: usize = 4;

const V4: u8 = 2;
const V6: u8 = 10;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Addresses, protocol and ports of one direction. Of ICMP the first port is the identifier, the second type and code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// IPv6.
    pub v6: bool,
    /// IPv4 in the last four bytes.
    pub src: [u8; 16],
    /// The same.
    pub dst: [u8; 16],
    /// IP protocol.
    pub proto: u8,
    /// Ports.
    pub ports: [u16; 2],
}

/// A connection, as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its first packet, and the answers.
    pub ends: [End; 2],
    /// Zone.
    pub zone: u16,
    /// Bits of `enum ip_conntrack_status`.
    pub status: u32,
    /// Seconds that are left.
    pub seconds: u32,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// A number of its own.
    pub id: u32,
    /// `enum tcp_conntrack`.
    pub tcp_state: Option<u8>,
}

/// Bits of a status: somebody has answered; it is not given up for others; it is in the table; its source or its destination is translated.
pub mod status {
    #![allow(missing_docs)]
    pub const SEEN_REPLY: u32 = 2;
    pub const ASSURED: u32 = 4;
    pub const CONFIRMED: u32 = 8;
    pub const SRC_NAT: u32 = 0x10 | 0x80;
    pub const DST_NAT: u32 = 0x20 | 0x100;
}

/// Which connections a request means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meant {
    /// Those of this zone.
    pub zone: Option<u16>,
    /// The one with this tuple.
    pub end: Option<End>,
}

fn be16(value: &[u8]) -> Result<u16, Refused> {
    value.try_into().map(u16::from_be_bytes).map_err(|_| Refused::RANGE)
}

impl Meant {
    /// Reads what is behind netlink's header.
    pub fn read(payload: &[u8]) -> Result<Self, Refused> {
        let (header, attributes) = payload.split_at_checked(HEADER).ok_or(Refused::INVALID)?;
        let found = table::<19>(attributes)?;
        let at = |kind: usize| found.get(kind).copied().flatten();
        let v6 = header.first() == Some(&V6);
        let end = at(1).or(at(2)).map(|end| End::read(end, v6)).transpose()?;
        Ok(Self { zone: at(18).map(be16).transpose()?, end })
    }

    /// Writes a request that means these, for [`Meant::read`].
    pub fn write(&self, to: &mut Writer) {
        to.raw(&[self.end.map_or(0, |end| if end.v6 { V6 } else { V4 }), 0, 0, 0]);
        self.zone.iter().for_each(|zone| to.attribute(18, &zone.to_be_bytes()));
        self.end.iter().for_each(|end| to.nest(1, |to| end.write(to)));
    }
}

impl End {
    fn read(value: &[u8], v6: bool) -> Result<Self, Refused> {
        let [_, ip, proto] = table::<3>(value)?;
        let [_, src4, dst4, src6, dst6] = table::<5>(ip.ok_or(Refused::INVALID)?)?;
        let [_, number, src, dst, id4, kind4, code4, id6, kind6, code6] = table::<10>(proto.ok_or(Refused::INVALID)?)?;
        let address = |v4: Option<&[u8]>, six: Option<&[u8]>| match (v6, v4, six) {
            (true, _, Some(bytes)) => bytes.try_into().map_err(|_| Refused::RANGE),
            (false, Some(&[a, b, c, d]), _) => Ok([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]),
            _ => Err(Refused::INVALID),
        };
        let byte = |value: Option<&[u8]>| value.and_then(|v| v.first().copied()).ok_or(Refused::INVALID);
        let port = |value: Option<&[u8]>| value.map_or(Ok(0), be16);
        let proto = byte(number)?;
        let ports = match (proto, v6) {
            (ICMP, false) => [port(id4)?, u16::from_be_bytes([byte(kind4)?, byte(code4)?])],
            (ICMPV6, true) => [port(id6)?, u16::from_be_bytes([byte(kind6)?, byte(code6)?])],
            _ => [port(src)?, port(dst)?],
        };
        Ok(Self { v6, src: address(src4, src6)?, dst: address(dst4, dst6)?, proto, ports })
    }

    fn write(&self, to: &mut Writer) {
        to.nest(1, |to| {
            for (n, address) in (1..).zip([self.src, self.dst]) {
                match address {
                    address if self.v6 => to.attribute(n + 2, &address),
                    [.., a, b, c, d] => to.attribute(n, &[a, b, c, d]),
                }
            }
        });
        to.nest(2, |to| {
            to.attribute(1, &[self.proto]);
            let [src, dst] = self.ports.map(u16::to_be_bytes);
            let first = match (self.proto, self.v6) {
                (ICMP, false) => 4,
                (ICMPV6, true) => 7,
                _ => {
                    to.attribute(2, &src);
                    return to.attribute(3, &dst);
                }
            };
            let [kind, code] = dst;
            to.attribute(first, &src);
            to.attribute(first + 1, &[kind]);
            to.attribute(first + 2, &[code]);
        });
    }
}

impl Entry {
    /// Writes a message of a dump that tells of it.
    pub fn write(&self, sequence: u32, pid: u32, to: &mut Writer) {
        let [original, reply] = &self.ends;
        to.begin(NEW, crate::netlink::flag::MULTI, sequence, pid);
        to.raw(&[if original.v6 { V6 } else { V4 }, 0, 0, 0]);
        to.nest(1, |to| original.write(to));
        to.nest(2, |to| reply.write(to));
        to.attribute(3, &self.status.to_be_bytes());
        if let Some(state) = self.tcp_state {
            to.nest(4, |to| to.nest(1, |to| to.attribute(1, &[state])));
        }
        to.attribute(7, &self.seconds.to_be_bytes());
        to.attribute(8, &self.mark.to_be_bytes());
        to.attribute(12, &self.id.to_be_bytes());
        if self.zone != 0 {
            to.attribute(18, &self.zone.to_be_bytes());
        }
        if self.label != 0 {
            to.attribute(22, &self.label.to_ne_bytes());
        }
        to.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_meant_is_read(zone: Option<u16>, v6: bool, src: [u8; 16], dst: [u8; 16], proto: u8, ports: [u16; 2], has_end: bool) {
            let mut end = End { v6, src, dst, proto, ports };
            if !v6 {
                end.src[..12].fill(0);
                end.dst[..12].fill(0);
            }
            let meant = Meant { zone, end: has_end.then_some(end) };
            let mut to = Writer::new();
            meant.write(&mut to);
            prop_assert_eq!(Meant::read(&to.into_bytes()), Ok(meant));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Meant::read(&bytes);
        }
    }
}
