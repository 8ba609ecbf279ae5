//! Numbers of clients that upcalls go to, as Open vSwitch names them for the datapath and its ports. Each port may name thousands, connected or not, so which numbers
//! are named is found without a look at all of them.

use crate::Datapath;
use lasthop_ovs_abi::Refused;
use lasthop_ovs_abi::netlink::u32_of;
use std::collections::BTreeMap;

/// Most numbers that an attribute may hold: Open vSwitch names one for each processor, and Linux knows so many.
const MOST: usize = 8192;

/// How often each number is named; none of them 0.
#[derive(Debug, Default)]
pub(crate) struct Takers(BTreeMap<u32, u32>);

impl Takers {
    /// `old` are named no more, and `new` are.
    pub fn replace(&mut self, old: &[u32], new: &[u32]) {
        for number in new.iter().filter(|number| **number != 0) {
            *self.0.entry(*number).or_default() += 1;
        }
        for number in old {
            if let Some(times) = self.0.get_mut(number) {
                *times -= 1;
                if *times == 0 {
                    self.0.remove(number);
                }
            }
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Numbers one behind the other, as an attribute of sockets holds them; one that is no number is none.
pub(crate) fn pids(value: Option<&[u8]>) -> Result<Vec<u32>, Refused> {
    match value {
        Some(value) if value.len() > MOST * size_of::<u32>() => Err(Refused::INVALID),
        value => value.map_or(Ok(Vec::new()), |value| value.chunks(4).map(u32_of).collect()),
    }
}

impl Datapath {
    /// Whether clients that take upcalls may be others than when this was asked last.
    pub fn takers_changed(&mut self) -> bool {
        std::mem::take(&mut self.takers_changed)
    }

    /// Whether upcalls go to a client of this number, connected or not.
    pub fn is_taker(&self, number: u32) -> bool {
        self.takers.0.contains_key(&number)
    }

    /// Numbers that upcalls go to are others now.
    pub(crate) fn replace_takers(&mut self, old: &[u32], new: &[u32]) {
        self.takers.replace(old, new);
        self.takers_changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_named_until_nobody_names_it() {
        let mut takers = Takers::default();
        takers.replace(&[], &[5, 0, 5, 6]);
        takers.replace(&[], &[5]);
        takers.replace(&[5, 0, 5, 6], &[7]);
        assert_eq!(takers.0.keys().copied().collect::<Vec<_>>(), [5, 7]);
        takers.replace(&[5], &[]);
        takers.replace(&[9], &[]);
        assert_eq!(takers.0.keys().copied().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn an_attribute_names_no_more_sockets_than_there_are_processors() {
        let of = |count: usize| pids(Some(&vec![1; 4 * count])).map(|pids| pids.len());
        assert_eq!((of(MOST), of(MOST + 1)), (Ok(MOST), Err(Refused::INVALID)));
    }
}
