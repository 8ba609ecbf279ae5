//! Limits of connections by zone (`enum ovs_ct_limit_attr`).

use crate::Refused;
use crate::netlink::{Writer, table};

const ZONE_LIMIT: u16 = 1;
/// Stands for all zones that have no limit of their own.
const DEFAULT_ZONE: i32 = -1;
/// Bytes of `struct ovs_zone_limit`.
const ENTRY: usize = 12;

/// Commands.
pub mod command {
    /// Set limits.
    pub const SET: u8 = 1;
    /// Zones get the default limit again.
    pub const DEL: u8 = 2;
    /// Tell limits, and how many connections there are.
    pub const GET: u8 = 3;
}

/// A zone's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// `None`: all that have no limit of their own.
    pub zone: Option<u16>,
    /// Most connections; 0: any number.
    pub limit: u32,
    /// How many there are.
    pub count: u32,
}

impl Limit {
    /// Reads those of a request. Zones that cannot be are left out, as by the kernel.
    pub fn read(list: &[u8]) -> Result<Vec<Self>, Refused> {
        let [_, entries] = table::<2>(list)?;
        let (entries, rest) = entries.unwrap_or_default().as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return Err(Refused::INVALID);
        }
        Ok(entries.iter().filter_map(Self::of).collect())
    }

    fn of(entry: &[u8; ENTRY]) -> Option<Self> {
        let [zone, limit, count] = *entry.as_chunks::<4>().0.first_chunk()?;
        let zone = match i32::from_ne_bytes(zone) {
            DEFAULT_ZONE => None,
            zone => Some(u16::try_from(zone).ok()?),
        };
        Some(Self { zone, limit: u32::from_ne_bytes(limit), count: u32::from_ne_bytes(count) })
    }

    /// Writes some, for [`Limit::read`].
    pub fn write(all: &[Self], to: &mut Writer) {
        let entry = |of: &Self| {
            let zone = of.zone.map_or(DEFAULT_ZONE, i32::from);
            [zone.to_ne_bytes(), of.limit.to_ne_bytes(), of.count.to_ne_bytes()].concat()
        };
        to.nest(ZONE_LIMIT, |to| to.raw(&all.iter().flat_map(entry).collect::<Vec<_>>()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zones_that_cannot_be_are_left_out() {
        let entry = |zone: i32| [zone.to_ne_bytes(), [7, 0, 0, 0], [0; 4]].concat();
        let mut to = Writer::new();
        to.nest(ZONE_LIMIT, |to| to.raw(&[-2, 0x1_0000, -1, 5].map(entry).concat()));
        let read = Limit::read(&to.into_bytes()).unwrap();
        let limit = u32::from_ne_bytes([7, 0, 0, 0]);
        assert_eq!(read, [Limit { zone: None, limit, count: 0 }, Limit { zone: Some(5), limit, count: 0 }]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec((any::<Option<u16>>(), any::<u32>(), any::<u32>()), 0..20)) {
            let all: Vec<_> = all.into_iter().map(|(zone, limit, count)| Limit { zone, limit, count }).collect();
            let mut to = Writer::new();
            Limit::write(&all, &mut to);
            prop_assert_eq!(Limit::read(&to.into_bytes()), Ok(all));
        }

        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Limit::read(&bytes);
        }
    }
}
