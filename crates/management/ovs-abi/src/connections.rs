//! What a flow asks of connection tracking (`enum ovs_ct_attr`, `enum ovs_nat_attr`), and the key's fields of it.

use crate::netlink::{Writer, table, u32_of};
use crate::{Key, Refused, timeouts};

const STATE: u16 = 22;
const ZONE: u16 = 23;
const MARK: u16 = 24;
const LABELS: u16 = 25;
const TUPLE_IPV4: u16 = 26;
const TUPLE_IPV6: u16 = 27;
/// Bits of a state that Open vSwitch knows (`OVS_CS_F_…`).
const STATES: u32 = 0xff;

/// Which end of a connection gets another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// How addresses are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// What a new connection gets; `None`: nothing, only those that have a translation have it.
    pub side: Option<Side>,
    /// First and last address, IPv4 in the last four bytes; `None`: as it is.
    pub addresses: Option<[[u8; 16]; 2]>,
    /// First and last port; `None`: as it is where that is free.
    pub ports: Option<[u16; 2]>,
    /// A client always gets the same address.
    pub persistent: bool,
    /// The port is chosen anew even where the old one would do.
    pub random: bool,
}

/// Action `ct`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ct {
    /// The connection is to be remembered.
    pub commit: bool,
    /// And one that began in the other direction is forgotten.
    pub force: bool,
    /// Where it is looked up.
    pub zone: u16,
    /// New bits of the mark, and which.
    pub mark: (u32, u32),
    /// New bits of the label, and which.
    pub label: (u128, u128),
    /// The time-out policy of a connection that begins.
    pub timeout: Option<[u8; timeouts::NAME]>,
    /// Addresses are translated.
    pub nat: Option<Translation>,
}

fn halves<const N: usize>(value: &[u8]) -> Result<([u8; N], [u8; N]), Refused> {
    let (new, mask) = value.split_at_checked(N).ok_or(Refused::RANGE)?;
    let of = |half: &[u8]| <[u8; N]>::try_from(half).map_err(|_| Refused::RANGE);
    Ok((of(new)?, of(mask)?))
}

impl Ct {
    /// Reads one. Helpers are refused.
    pub(crate) fn read(value: &[u8]) -> Result<Self, Refused> {
        let [_, commit, zone, mark, labels, helper, nat, force, events, timeout] = table::<10>(value)?;
        if helper.is_some() {
            return Err(Refused::INVALID);
        }
        // Nobody is told of events, whichever are asked for.
        events.map(u32_of).transpose()?;
        let zone = zone.map(u16_of).transpose()?.unwrap_or(0);
        let mark = mark.map(halves::<4>).transpose()?.unwrap_or_default();
        let label = labels.map(halves::<16>).transpose()?.unwrap_or_default();
        let new = Self {
            commit: commit.is_some() || force.is_some(),
            force: force.is_some(),
            zone,
            timeout: timeout.map(timeouts::name_of).transpose()?,
            mark: (u32::from_ne_bytes(mark.0), u32::from_ne_bytes(mark.1)),
            label: (u128::from_ne_bytes(label.0), u128::from_ne_bytes(label.1)),
            nat: nat.map(translation).transpose()?,
        };
        let sets = new.mark.1 != 0 || new.label.1 != 0;
        if sets && !new.commit { Err(Refused::INVALID) } else { Ok(new) }
    }
}

fn u16_of(value: &[u8]) -> Result<u16, Refused> {
    value.try_into().map(u16::from_ne_bytes).map_err(|_| Refused::RANGE)
}

fn address(value: &[u8]) -> Result<[u8; 16], Refused> {
    match *value {
        [a, b, c, d] => Ok([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]),
        _ => value.try_into().map_err(|_| Refused::RANGE),
    }
}

fn translation(value: &[u8]) -> Result<Translation, Refused> {
    let [_, src, dst, first, last, low, high, persistent, hash, random] = table::<10>(value)?;
    let side = match (src, dst) {
        (None, None) => None,
        (Some(_), None) => Some(Side::Source),
        (None, Some(_)) => Some(Side::Destination),
        _ => return Err(Refused::INVALID),
    };
    let given = [first, last, low, high, persistent, hash, random];
    if side.is_none() && given.iter().any(Option::is_some) || hash.is_some() && random.is_some() {
        return Err(Refused::INVALID);
    }
    if first.zip(last).is_some_and(|(first, last)| first.len() != last.len()) {
        return Err(Refused::INVALID);
    }
    let (first, last) = (first.map(address).transpose()?, last.map(address).transpose()?);
    let (low, high) = (low.map(u16_of).transpose()?, high.map(u16_of).transpose()?);
    // An end that is not said is the other one.
    let addresses = first.or(last).map(|first| [first, last.unwrap_or(first)]);
    let ports = low.or(high).map(|low| [low, high.unwrap_or(low)]);
    if addresses.is_some_and(|[first, last]| first > last) || ports.is_some_and(|[low, high]| low > high) {
        return Err(Refused::INVALID);
    }
    Ok(Translation { side, addresses, ports, persistent: persistent.is_some(), random: random.is_some() })
}

impl Key {
    /// Reads one of the fields of connections. False if it is none.
    pub(crate) fn connection_field(&mut self, kind: u16, value: &[u8], is_mask: bool) -> Result<bool, Refused> {
        match kind {
            STATE => {
                let state = u32_of(value)?;
                if state & !STATES != 0 && !is_mask {
                    return Err(Refused::INVALID);
                }
                self.packet.ct_state = (state & STATES) as u16;
            }
            ZONE => self.packet.ct_zone = u16_of(value)?,
            MARK => self.packet.ct_mark = u32_of(value)?,
            LABELS => self.ct_label = value.try_into().map_err(|_| Refused::RANGE)?,
            // With the padding of the structure, and without.
            TUPLE_IPV4 if matches!(value.len(), 13 | 16) => {
                let (src, rest) = value.split_at(4);
                let (dst, rest) = rest.split_at(4);
                self.original(address(src)?, address(dst)?, rest);
            }
            TUPLE_IPV6 if matches!(value.len(), 37 | 40) => {
                let (src, rest) = value.split_at(16);
                let (dst, rest) = rest.split_at(16);
                self.original(address(src)?, address(dst)?, rest);
            }
            TUPLE_IPV4 | TUPLE_IPV6 => return Err(Refused::RANGE),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn original(&mut self, src: [u8; 16], dst: [u8; 16], rest: &[u8]) {
        let &[s0, s1, d0, d1, proto, ..] = rest else { return };
        (self.ct_src, self.ct_dst, self.ct_proto) = (src, dst, proto);
        self.ct_ports = [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])];
    }

    /// Writes the fields of connections.
    pub(crate) fn write_connection(&self, to: &mut Writer) {
        let key = &self.packet;
        to.number(STATE, key.ct_state.into());
        to.attribute(ZONE, &key.ct_zone.to_ne_bytes());
        to.number(MARK, key.ct_mark);
        to.attribute(LABELS, &self.ct_label);
        if self.ct_proto == 0 {
            return;
        }
        let [src, dst] = self.ct_ports.map(u16::to_be_bytes);
        let rest = [&src[..], &dst, &[self.ct_proto, 0, 0, 0]].concat();
        if key.eth_type == 0x86dd {
            to.attribute(TUPLE_IPV6, &[&self.ct_src[..], &self.ct_dst, &rest].concat());
        } else {
            let short = |address: &[u8; 16]| [address[12], address[13], address[14], address[15]];
            to.attribute(TUPLE_IPV4, &[&short(&self.ct_src)[..], &short(&self.ct_dst), &rest].concat());
        }
    }

    /// It has been to no connection.
    pub fn clear_connection(&mut self) {
        let packet = lasthop_frame::FlowKey { ct_state: 0, ct_zone: 0, ct_mark: 0, ..self.packet };
        let (dp_hash, priority, mark, tunnel) = (self.dp_hash, self.priority, self.mark, self.tunnel);
        *self = Self { packet, dp_hash, priority, mark, tunnel, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Act;
    use proptest::prelude::*;

    #[test]
    fn what_is_cleared_of_connections_is_all_of_them_and_nothing_else() {
        let mut before = crate::Key { dp_hash: 1, priority: 2, mark: 3, ..crate::Key::default() };
        (before.packet.in_port, before.tunnel.id) = (4, [5; 8]);
        let mut key = crate::Key { ct_label: [6; 16], ct_src: [7; 16], ct_ports: [8, 9], ct_proto: 10, ..before };
        (key.packet.ct_state, key.packet.ct_zone, key.packet.ct_mark) = (11, 12, 13);
        key.clear_connection();
        assert_eq!(key, before);
    }

    fn list(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn an_action_with_all_that_it_can_ask_for() {
        let bytes = list(|to| {
            to.nest(12, |to| {
                to.attribute(1, &[]);
                to.attribute(2, &7u16.to_ne_bytes());
                to.attribute(3, &[5u32.to_ne_bytes(), 15u32.to_ne_bytes()].concat());
                to.attribute(4, &[3u128.to_ne_bytes(), 255u128.to_ne_bytes()].concat());
                to.number(8, 1);
                to.nest(6, |to| {
                    to.attribute(1, &[]);
                    to.attribute(3, &[10, 0, 0, 1]);
                    to.attribute(4, &[10, 0, 0, 9]);
                    to.attribute(5, &1000u16.to_ne_bytes());
                    to.attribute(9, &[]);
                });
            });
        });
        let v4 = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, last];
        let nat = Translation {
            side: Some(Side::Source),
            addresses: Some([v4(1), v4(9)]),
            ports: Some([1000, 1000]),
            persistent: false,
            random: true,
        };
        let timeout = None;
        let ct = Ct { commit: true, force: false, zone: 7, timeout, mark: (5, 15), label: (3, 255), nat: Some(nat) };
        assert_eq!(Act::read(&bytes), Ok(vec![Act::Ct(ct)]));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |fill: fn(&mut Writer)| {
            assert!(Act::read(&list(|to| to.nest(12, fill))).is_err());
        };
        refused(|to| to.text(5, "ftp"));
        refused(|to| to.text(9, "a-name-of-thirty-two-bytes-or-more"));
        refused(|to| to.attribute(3, &[1, 0, 0, 0, 1, 0, 0, 0]));
        refused(|to| to.nest(6, |to| to.attribute(3, &[10, 0, 0, 1])));
        refused(|to| {
            to.nest(6, |to| {
                to.attribute(1, &[]);
                to.attribute(3, &[10, 0, 0, 9]);
                to.attribute(4, &[10, 0, 0, 1]);
            });
        });
    }

    proptest! {
        #[test]
        fn any_action_is_read(value in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Act::read(&list(|to| to.nest(12, |to| to.raw(&value))));
        }

        /// A packet's fields go to Open vSwitch and come back.
        #[test]
        fn what_is_written_is_read(v6: bool, state in 0u16..256, zone: u16, mark: u32, label: u128, proto in 1u8.., ports: [u16; 2], src: [u8; 16], dst: [u8; 16]) {
            let mut key = Key { ct_label: label.to_ne_bytes(), ct_ports: ports, ct_proto: proto, ct_src: src, ct_dst: dst, ..Key::default() };
            let packet = &mut key.packet;
            (packet.ct_state, packet.ct_zone, packet.ct_mark) = (state, zone, mark);
            packet.eth_type = if v6 { 0x86dd } else { 0x800 };
            if !v6 {
                key.ct_src[..12].fill(0);
                key.ct_dst[..12].fill(0);
            }
            let bytes = list(|to| key.write_connection(to));
            let read = Key::metadata(&bytes).unwrap();
            let mut expected = key;
            expected.packet.eth_type = 0;
            prop_assert_eq!(read, expected);
        }
    }
}
