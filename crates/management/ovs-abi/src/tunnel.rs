//! The key of a tunnel (`enum ovs_tunnel_key_attr`): what is known of a packet that came through one, or is to go through one.

use crate::Refused;
use crate::netlink::{Writer, attributes, table};
use lasthop_tunnel::Tunnel;

const ID: u16 = 0;
const IPV4_SRC: u16 = 1;
const IPV4_DST: u16 = 2;
const TOS: u16 = 3;
const TTL: u16 = 4;
const DONT_FRAGMENT: u16 = 5;
const CHECKSUM: u16 = 6;
const OAM: u16 = 7;
const GENEVE_OPTIONS: u16 = 8;
const TP_SRC: u16 = 9;
const TP_DST: u16 = 10;
const IPV6_SRC: u16 = 12;
const IPV6_DST: u16 = 13;
const PAD: u16 = 14;
/// An IPv4 address's place, and what is in front of it.
const IPV4_AT: usize = 12;
const MAPPED: [u8; IPV4_AT] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn array<const N: usize>(value: &[u8]) -> Result<[u8; N], Refused> {
    value.try_into().map_err(|_| Refused::RANGE)
}

/// An IPv4 address; one that is not there is all zero. A mask has no bits in front of it to tell the families apart by: the other end's
/// address does that.
fn ipv4(value: &[u8], is_mask: bool) -> Result<[u8; 16], Refused> {
    let [a, b, c, d] = array(value)?;
    let mut address = [0; 16];
    address[IPV4_AT..].copy_from_slice(&[a, b, c, d]);
    if !is_mask && [a, b, c, d] != [0; 4] {
        address[..IPV4_AT].copy_from_slice(&MAPPED);
    }
    Ok(address)
}

/// Reads a mask of a packet's.
pub(crate) fn read_mask(list: &[u8]) -> Result<Tunnel, Refused> {
    read(list, true).map(of_packet)
}

/// A packet that has come is from the other end, and one that goes is for it: what an action sets has the addresses the other way round.
fn of_packet(tunnel: Tunnel) -> Tunnel {
    Tunnel { local: tunnel.remote, remote: tunnel.local, ..tunnel }
}

fn read(list: &[u8], is_mask: bool) -> Result<Tunnel, Refused> {
    let mut tunnel = Tunnel::default();
    for attribute in attributes(list) {
        let (kind, value) = attribute?;
        match kind {
            ID => {
                tunnel.id = array(value)?;
                tunnel.flags |= Tunnel::KEY;
            }
            IPV4_SRC => tunnel.local = ipv4(value, is_mask)?,
            IPV4_DST => tunnel.remote = ipv4(value, is_mask)?,
            IPV6_SRC => tunnel.local = array(value)?,
            IPV6_DST => tunnel.remote = array(value)?,
            TOS => [tunnel.tos] = array(value)?,
            TTL => [tunnel.ttl] = array(value)?,
            DONT_FRAGMENT => tunnel.flags |= Tunnel::DONT_FRAGMENT,
            CHECKSUM => tunnel.flags |= Tunnel::CHECKSUM,
            OAM => tunnel.flags |= Tunnel::OAM,
            GENEVE_OPTIONS => {
                if !value.len().is_multiple_of(4) || !tunnel.set_options(value) {
                    return Err(Refused::INVALID);
                }
                // Where options matter, so does how many there are.
                tunnel.options_len = if is_mask { 0xff } else { value.len() as u8 };
            }
            TP_DST if !is_mask => tunnel.port = array(value)?,
            // The source port is a hash and means nothing, and the port here is the device's.
            TP_SRC | TP_DST | PAD => {}
            // Extensions of VXLAN, ERSPAN: Open vSwitch does without.
            _ => return Err(Refused::INVALID),
        }
    }
    if is_mask {
        // Whether an outer packet may be fragmented, or has a checksum or a key, is not told of one that has come.
        tunnel.flags &= Tunnel::OAM;
    }
    Ok(tunnel)
}

/// As a packet's metadata: the port there is a packet's source, so it is not looked at.
pub(crate) fn read_key(list: &[u8]) -> Result<Tunnel, Refused> {
    let tunnel = of_packet(read_set(list)?);
    Ok(Tunnel { port: [0; 2], flags: tunnel.flags & Tunnel::OAM, ..tunnel })
}

/// Reads what an action sets. It needs another end.
pub(crate) fn read_set(list: &[u8]) -> Result<Tunnel, Refused> {
    let tunnel = read(list, false)?;
    if tunnel.is_none() { Err(Refused::INVALID) } else { Ok(tunnel) }
}

/// Writes one that a packet leaves with: this end is its source.
pub fn write_egress(tunnel: &Tunnel, to: &mut Writer) {
    write(&of_packet(*tunnel), to);
}

/// Writes one as a packet's key has it.
pub(crate) fn write(tunnel: &Tunnel, to: &mut Writer) {
    to.attribute(ID, &tunnel.id);
    let addresses = [(&tunnel.remote, IPV4_SRC, IPV6_SRC), (&tunnel.local, IPV4_DST, IPV6_DST)];
    for (address, v4, v6) in addresses {
        match address.strip_prefix(&MAPPED[..]) {
            Some(address) => to.attribute(v4, address),
            None if *address != [0; 16] => to.attribute(v6, address),
            None => {}
        }
    }
    to.attribute(TOS, &[tunnel.tos]);
    to.attribute(TTL, &[tunnel.ttl]);
    if tunnel.flags & Tunnel::OAM != 0 {
        to.attribute(OAM, &[]);
    }
    if tunnel.options_len > 0 {
        to.attribute(GENEVE_OPTIONS, tunnel.options());
    }
}

/// The UDP port of a tunnel's port, from the options that it is made with (`enum ovs_tunnel_attr`).
pub fn port_of(options: &[u8]) -> Result<u16, Refused> {
    let [_, port, extension] = table::<3>(options)?;
    if extension.is_some() {
        return Err(Refused::INVALID);
    }
    let port = port.and_then(|port| port.try_into().ok()).map(u16::from_ne_bytes);
    port.filter(|port| *port != 0).ok_or(Refused::INVALID)
}

/// Those options.
pub fn write_options(port: u16, to: &mut Writer) {
    to.attribute(1, &port.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTION: [u8; 8] = [1, 2, 0x80, 1, 0, 1, 0, 2];

    fn list(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn what_is_set_is_what_open_vswitch_says() {
        let tunnel = read_set(&list(|to| {
            to.attribute(ID, &5u64.to_be_bytes());
            to.attribute(IPV4_DST, &[10, 0, 0, 2]);
            to.attribute(TOS, &[3]);
            to.attribute(TTL, &[64]);
            to.attribute(DONT_FRAGMENT, &[]);
            to.attribute(CHECKSUM, &[]);
            to.attribute(TP_DST, &6081u16.to_be_bytes());
            to.attribute(GENEVE_OPTIONS, &OPTION);
        }))
        .unwrap();
        assert_eq!(tunnel.remote, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!((tunnel.id[7], tunnel.tos, tunnel.ttl, tunnel.local), (5, 3, 64, [0; 16]));
        assert_eq!(tunnel.flags, Tunnel::DONT_FRAGMENT | Tunnel::CHECKSUM | Tunnel::KEY);
        assert_eq!((tunnel.options(), tunnel.port), (&OPTION[..], [0x17, 0xc1]));
    }

    #[test]
    fn a_packet_is_from_the_other_end() {
        let key = list(|to| {
            to.attribute(IPV4_SRC, &[10, 0, 0, 2]);
            to.attribute(IPV4_DST, &[10, 0, 0, 1]);
        });
        let (tunnel, mask) = (read_key(&key).unwrap(), read_mask(&key).unwrap());
        assert_eq!((&tunnel.remote[12..], &tunnel.local[12..]), (&[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
        assert_eq!((&mask.remote[12..], &mask.local[12..]), (&[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
        assert!(list(|to| write(&tunnel, to)).windows(8).any(|bytes| bytes == [8, 0, 1, 0, 10, 0, 0, 2]));
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        assert_eq!(read_set(&list(|to| to.attribute(ID, &[0; 8]))), Err(Refused::INVALID), "no other end");
        for (kind, len) in [(ID, 4), (IPV4_DST, 3), (IPV6_DST, 4), (TOS, 2), (TP_DST, 1)] {
            assert_eq!(read_set(&list(|to| to.attribute(kind, &vec![1; len]))), Err(Refused::RANGE), "{kind}");
        }
        for (kind, len) in [(GENEVE_OPTIONS, 7), (GENEVE_OPTIONS, 132), (11, 4), (15, 4), (16, 0), (99, 0)] {
            assert_eq!(read_set(&list(|to| to.attribute(kind, &vec![1; len]))), Err(Refused::INVALID), "{kind}");
        }
    }

    #[test]
    fn a_mask_of_ipv4_leaves_the_family_alone() {
        let mask = read(&list(|to| to.attribute(IPV4_DST, &[255; 4])), true).unwrap();
        assert_eq!(mask.remote, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(id in any::<[u8; 8]>(), v4 in any::<bool>(), end in 1u8..255, options in 0usize..33) {
            let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, end];
            let remote = if v4 { mapped } else { [end; 16] };
            let mut tunnel = Tunnel { id, remote, local: remote, tos: end, ttl: 9, flags: Tunnel::OAM, ..Tunnel::default() };
            prop_assert!(tunnel.set_options(&vec![end; options * 4]));
            prop_assert_eq!(read_key(&list(|to| write(&tunnel, to))), Ok(tunnel));
        }

        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..300), is_mask in any::<bool>()) {
            let _ = (read(&bytes, is_mask), port_of(&bytes));
        }
    }
}
