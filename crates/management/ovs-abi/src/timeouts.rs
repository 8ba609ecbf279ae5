//! Time-out policies of connections (`linux/netfilter/nfnetlink_cttimeout.h`).

use crate::Refused;
use crate::netlink::{Writer, attributes, table, text_of};

/// Type of the message that makes or changes one, and of one that tells of it.
pub const NEW: u16 = 0x800;
/// Of one that asks for one, or for all.
pub const GET: u16 = 0x801;
/// Of one that removes one.
pub const DELETE: u16 = 0x802;
/// Bytes of a name, with the zero at its end.
pub const NAME: usize = 32;

const HEADER: usize = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A policy: the seconds of each state of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Network protocol, as sockets name families.
    pub family: u16,
    /// Transport protocol.
    pub proto: u8,
    /// Numbers of states, as the kernel has them for the protocol, and seconds.
    pub seconds: Vec<(u16, u32)>,
}

/// The name that an attribute holds; the rest is zeros.
pub fn name_of(value: &[u8]) -> Result<[u8; NAME], Refused> {
    let text = text_of(value)?.as_bytes();
    let mut name = [0; NAME];
    let place = name.get_mut(..text.len()).filter(|place| !place.is_empty() && place.len() < NAME);
    place.ok_or(Refused::INVALID)?.copy_from_slice(text);
    Ok(name)
}

/// How many states a protocol has; the first has the number 1.
pub fn states(proto: u8) -> u16 {
    match proto {
        TCP => 11,
        UDP => 2,
        _ => 1,
    }
}

/// The name that a request is about, if it names one.
pub fn named(payload: &[u8]) -> Result<Option<[u8; NAME]>, Refused> {
    let (_, list) = payload.split_at_checked(HEADER).ok_or(Refused::INVALID)?;
    let [_, name] = table::<2>(list)?;
    name.map(name_of).transpose()
}

impl Timeouts {
    /// Reads one that is to be made.
    pub fn read(payload: &[u8]) -> Result<Self, Refused> {
        let (_, list) = payload.split_at_checked(HEADER).ok_or(Refused::INVALID)?;
        let [_, _, family, proto, data] = table::<5>(list)?;
        let family = family.ok_or(Refused::INVALID)?.try_into().map(u16::from_be_bytes).map_err(|_| Refused::RANGE)?;
        let [proto] = proto.ok_or(Refused::INVALID)?.try_into().map_err(|_| Refused::RANGE)?;
        let mut seconds = Vec::new();
        for attribute in attributes(data.ok_or(Refused::INVALID)?) {
            let (state, value) = attribute?;
            let value = value.try_into().map(u32::from_be_bytes).map_err(|_| Refused::RANGE)?;
            if (1..=states(proto)).contains(&state) {
                seconds.push((state, value));
            }
        }
        Ok(Self { family, proto, seconds })
    }

    /// Writes it, behind a message's header.
    pub fn write(&self, name: &[u8; NAME], to: &mut Writer) {
        to.raw(&[0; HEADER]);
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        to.attribute(1, &[name.get(..len).unwrap_or_default(), &[0]].concat());
        to.attribute(2, &self.family.to_be_bytes());
        to.attribute(3, &[self.proto]);
        to.nest(4, |to| self.seconds.iter().for_each(|(state, value)| to.attribute(*state, &value.to_be_bytes())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_that_is_too_long_or_none_is_refused() {
        assert_eq!(name_of(&[b'x'; NAME]), Err(Refused::INVALID));
        assert_eq!(name_of(&[0]), Err(Refused::INVALID));
        assert_eq!(name_of(b"tp\0").map(|name| name[..3].to_vec()), Ok(b"tp\0".to_vec()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(family: u16, name in "[a-z_0-9]{1,31}", udp: bool, a: u32, b: u32) {
            let seconds = if udp { vec![(1, a), (2, b)] } else { vec![(9, a), (11, b)] };
            let timeouts = Timeouts { family, proto: if udp { UDP } else { TCP }, seconds };
            let name = name_of(name.as_bytes()).unwrap();
            let mut to = Writer::new();
            timeouts.write(&name, &mut to);
            let bytes = to.into_bytes();
            prop_assert_eq!(named(&bytes), Ok(Some(name)));
            prop_assert_eq!(Timeouts::read(&bytes), Ok(timeouts));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (named(&bytes), Timeouts::read(&bytes));
        }
    }
}
