//! The ports of fragments other than the first: remembered from the first one, for half a minute.

use crate::entry::is_over;
use crate::state::SECOND;
use crate::tuple::{Factors, Tuple};
use lasthop_lock::Lock;

/// Sets of four; a fifth takes the place of the one that is forgotten first.
const SETS: usize = 256;
const WAYS: usize = 4;
const REMEMBERED: u32 = 30 * SECOND;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The tuple without ports.
    of: Tuple,
    id: u32,
    ports: [u16; 2],
    until: u32,
}

/// First fragments, each set behind a lock of its own: fragments are rare.
#[derive(Debug)]
pub(crate) struct Fragments(Box<[Lock<[Known; WAYS]>]>);

impl Default for Fragments {
    fn default() -> Self {
        Self((0..SETS).map(|_| Lock::default()).collect())
    }
}

impl Fragments {
    fn set(&self, of: &Tuple, id: u32, secrets: &Factors) -> &Lock<[Known; WAYS]> {
        let mut with_id = *of;
        with_id.set_ports([id as u16, (id >> 16) as u16]);
        &self.0[(secrets.hash(&with_id) >> 56) as usize % SETS]
    }

    /// A first fragment's ports.
    pub fn remember(&self, tuple: &Tuple, id: u32, now: u32, secrets: &Factors) {
        let (ports, mut of) = (tuple.ports(), *tuple);
        of.set_ports([0, 0]);
        let mut set = self.set(&of, id, secrets).lock();
        let same = |known: &Known| known.of == of && known.id == id;
        let age = |known: &Known| if same(known) { i32::MIN } else { known.until.wrapping_sub(now) as i32 };
        if let Some(oldest) = set.iter_mut().min_by_key(|known| age(known)) {
            *oldest = Known { of, id, ports, until: now.wrapping_add(REMEMBERED) };
        }
    }

    /// The tuple of a later fragment, whose own has no ports.
    pub fn recall(&self, tuple: &Tuple, id: u32, now: u32, secrets: &Factors) -> Option<Tuple> {
        let set = self.set(tuple, id, secrets).lock();
        let known = set.iter().find(|known| known.of == *tuple && known.id == id && !is_over(known.until, now))?;
        let mut whole = *tuple;
        whole.set_ports(known.ports);
        Some(whole)
    }
}
