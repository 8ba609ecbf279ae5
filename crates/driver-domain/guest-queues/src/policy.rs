//! Which guests get a queue: plain code over samples of load. Queue 0, the default queue, is everybody's and not dealt in.
//!
//! A queue that is free goes to the busiest guest without one. When none is free, a guest that is twice as busy as the least
//! busy guest for a while takes its place. A guest that has gone quiet gives its queue back. What makes a guest busy is much
//! more than what makes it quiet, and a newcomer has to be much busier than the one that has the queue: equals do not take turns.

use lasthop_text::MacAddr;
use std::collections::BTreeMap;
use std::time::Duration;

/// From so many packets a second on a guest may have a queue of its own.
const BUSY: u64 = 100;
/// Below so many it is quiet …
const QUIET: u64 = 10;
/// … and after so many samples in a row it gives its queue back.
const QUIET_SAMPLES: u8 = 8;
/// How many times busier than the guest of a queue another must be to take it …
const FACTOR: u64 = 2;
/// … and for how many samples in a row.
const PRESSING_SAMPLES: u8 = 4;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The queue's guest shares the default queue again.
    Free(u16),
    /// The queue, which is free, is this guest's.
    Give(u16, MacAddr),
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Packets a second; what is older counts less.
    rate: u64,
    quiet: u8,
}

/// Who has which queue, and how busy everybody is.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Of queue 1, queue 2 and so on.
    guests: Vec<Option<MacAddr>>,
    loads: BTreeMap<MacAddr, Load>,
    /// For how many samples somebody without a queue has been much busier than one with a queue.
    pressing: u8,
}

impl Policy {
    /// For a device with so many queues, the default queue among them.
    pub fn new(queues: u16) -> Self {
        let guests = vec![None; usize::from(queues.saturating_sub(1))];
        Self { guests, loads: BTreeMap::new(), pressing: 0 }
    }

    /// The guest whose frames come by the queue.
    pub fn guest_of(&self, queue: u16) -> Option<MacAddr> {
        self.guests.get(usize::from(queue).checked_sub(1)?).copied().flatten()
    }

    /// The guest's queue.
    pub fn queue_of(&self, guest: MacAddr) -> u16 {
        let at = self.guests.iter().position(|slot| *slot == Some(guest));
        at.map_or(0, |at| at as u16 + 1)
    }

    /// Packets a second of late.
    pub fn rate(&self, guest: MacAddr) -> u64 {
        self.loads.get(&guest).map_or(0, |load| load.rate)
    }

    /// Whether this guest could be forgotten without a loss.
    pub fn is_dispensable(&self, guest: MacAddr) -> bool {
        self.rate(guest) < BUSY && self.queue_of(guest) == 0
    }

    /// Nothing is going on: no guest has a queue, and none is busy.
    pub fn is_at_rest(&self) -> bool {
        self.guests.iter().all(Option::is_none) && self.loads.values().all(|load| load.rate == 0)
    }

    /// In the time since the last sample so many packets came for each of these guests; others are gone. A queue that is freed
    /// is given away with the next sample at the earliest, so that what its guest still has in it is out by then.
    pub fn sample(&mut self, elapsed: Duration, arrived: &[(MacAddr, u64)]) -> Vec<Change> {
        let micros = elapsed.as_micros().max(1);
        let before = std::mem::take(&mut self.loads);
        for (guest, packets) in arrived {
            let now = u64::try_from(u128::from(*packets) * 1_000_000 / micros).unwrap_or(u64::MAX);
            let old = before.get(guest).copied().unwrap_or_default();
            let rate = old.rate / 2 + now / 2 + (old.rate & now & 1);
            let quiet = if rate < QUIET { old.quiet.saturating_add(1) } else { 0 };
            self.loads.insert(*guest, Load { rate, quiet });
        }
        let mut waiting: Vec<(u64, MacAddr)> = self.loads.iter().map(|(guest, load)| (load.rate, *guest)).collect();
        waiting.retain(|(rate, guest)| *rate >= BUSY && self.queue_of(*guest) == 0);
        waiting.sort();

        let mut changes = Vec::new();
        let mut weakest: Option<(u64, usize)> = None;
        let mut any_free = false;
        for (i, slot) in self.guests.iter_mut().enumerate() {
            let queue = i as u16 + 1;
            let load = slot.and_then(|guest| self.loads.get(&guest));
            match (*slot, load) {
                (None, _) => {
                    any_free = true;
                    if let Some((_, guest)) = waiting.pop() {
                        *slot = Some(guest);
                        changes.push(Change::Give(queue, guest));
                    }
                }
                (Some(_), Some(load)) if load.quiet < QUIET_SAMPLES => {
                    weakest = weakest.into_iter().chain([(load.rate, i)]).min();
                }
                _ => {
                    any_free = true;
                    *slot = None;
                    changes.push(Change::Free(queue));
                }
            }
        }
        let takes = |challenger: u64, holder: u64| challenger > holder.saturating_mul(FACTOR);
        match (waiting.last(), weakest) {
            (Some((challenger, _)), Some((rate, i))) if !any_free && takes(*challenger, rate) => {
                self.pressing += 1;
                if self.pressing >= PRESSING_SAMPLES {
                    self.pressing = 0;
                    if let Some(slot) = self.guests.get_mut(i) {
                        *slot = None;
                        changes.push(Change::Free(i as u16 + 1));
                    }
                }
            }
            _ => self.pressing = 0,
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TICK: Duration = Duration::from_millis(250);

    fn guest(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    /// Packets a second of guests 0, 1, … for so many samples; all that was changed.
    fn run(policy: &mut Policy, rates: &[u64], samples: usize) -> Vec<Change> {
        let arrived: Vec<_> = (0..).map(guest).zip(rates.iter().map(|r| r / 4)).collect();
        (0..samples).flat_map(|_| policy.sample(TICK, &arrived)).collect()
    }

    #[test]
    fn the_busiest_have_the_queues_and_the_rest_share() {
        let mut policy = Policy::new(3);
        assert_eq!(
            run(&mut policy, &[5000, 200, 9000, 40], 20),
            [Change::Give(1, guest(2)), Change::Give(2, guest(0))]
        );
        assert_eq!([0, 1, 2, 3].map(|n| policy.queue_of(guest(n))), [2, 0, 1, 0]);
    }

    #[test]
    fn a_quiet_guest_gives_its_queue_back_and_all_come_to_rest() {
        let mut policy = Policy::new(2);
        run(&mut policy, &[5000, 200], 20);
        assert_eq!(policy.guest_of(1), Some(guest(0)));
        let changes = run(&mut policy, &[0, 200], 40);
        assert_eq!(changes, [Change::Free(1), Change::Give(1, guest(1))]);
        assert_eq!(run(&mut policy, &[0, 0], 40), [Change::Free(1)]);
        assert!(policy.is_at_rest());
    }

    #[test]
    fn a_much_busier_guest_takes_over_and_a_little_busier_one_does_not() {
        let mut policy = Policy::new(2);
        run(&mut policy, &[5000, 0], 10);
        assert_eq!(run(&mut policy, &[5000, 9000], 50), []);
        assert_eq!(run(&mut policy, &[5000, 11_000], 50), [Change::Free(1), Change::Give(1, guest(1))]);
    }

    #[test]
    fn a_guest_that_is_gone_has_no_queue() {
        let mut policy = Policy::new(2);
        run(&mut policy, &[5000], 10);
        assert_eq!(policy.sample(TICK, &[]), [Change::Free(1)]);
    }

    #[test]
    fn one_queue_is_the_default_queue() {
        let mut policy = Policy::new(1);
        assert_eq!(run(&mut policy, &[50_000], 20), []);
    }

    /// Plays the changes on a model that panics on what must not be.
    fn obey(model: &mut [Option<MacAddr>], changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Free(queue) => assert!(model[usize::from(queue) - 1].take().is_some(), "was free: {change:?}"),
                Change::Give(queue, guest) => {
                    assert!(!model.contains(&Some(guest)), "has one: {change:?}");
                    assert_eq!(model[usize::from(queue) - 1].replace(guest), None, "not free: {change:?}");
                }
            }
        }
    }

    proptest! {
        /// Whatever the load does: no guest has two queues, no queue two guests, and the default queue is nobody's.
        #[test]
        fn assignments_are_sound(
            queues in 1..6u16,
            samples in prop::collection::vec(prop::collection::vec(0..20_000u64, 0..9), 1..60),
        ) {
            let mut policy = Policy::new(queues);
            let mut model = vec![None; usize::from(queues) - 1];
            for rates in &samples {
                let arrived: Vec<_> = (0..).map(guest).zip(rates.iter().copied()).collect();
                let changes = policy.sample(TICK, &arrived);
                let touched: BTreeSet<u16> = changes.iter().map(|c| match c { Change::Free(q) | Change::Give(q, _) => *q }).collect();
                prop_assert_eq!(touched.len(), changes.len(), "a queue was freed and given away at once");
                obey(&mut model, &changes);
                let guests: Vec<_> = (1..queues).map(|q| policy.guest_of(q)).collect();
                prop_assert_eq!(&guests, &model);
                prop_assert_eq!(policy.guest_of(0), None);
            }
        }

        /// Under constant load assignments settle, the right guests have the queues, and nothing changes any more.
        #[test]
        fn constant_load_settles(
            queues in 2..6u16,
            before in prop::collection::vec(0..20_000u64, 0..9),
            rates in prop::collection::vec(0..20_000u64, 0..9),
        ) {
            let mut policy = Policy::new(queues);
            run(&mut policy, &before, 20);
            run(&mut policy, &rates, 40 + 6 * rates.len());
            prop_assert_eq!(run(&mut policy, &rates, 200), []);
            let shares = |n: usize| policy.queue_of(guest(n as u8)) == 0;
            let guests: Vec<u64> = (0..rates.len()).filter(|n| !shares(*n)).map(|n| rates[n]).collect();
            for n in (0..rates.len()).filter(|n| shares(*n) && rates[*n] >= BUSY + 8) {
                prop_assert_eq!(guests.len(), usize::from(queues) - 1);
                prop_assert!(guests.iter().all(|o| rates[n] <= FACTOR * o + 8), "{} against {guests:?}", rates[n]);
            }
        }

        /// Load that wavers by a fifth moves no queue back and forth.
        #[test]
        fn wavering_load_does_not_flap(
            queues in 2..6u16,
            rates in prop::collection::vec(1000..20_000u64, 1..9),
            wavering in prop::collection::vec(prop::collection::vec(80..120u64, 9), 400),
        ) {
            let mut policy = Policy::new(queues);
            let mut moves = 0;
            for percent in &wavering {
                let now: Vec<u64> = rates.iter().zip(percent).map(|(r, p)| r * p / 100).collect();
                moves += run(&mut policy, &now, 1).len();
            }
            // Every take-over is by somebody truly busier: there can be no more than it takes to sort them.
            let most = usize::from(queues) - 1 + 2 * rates.len() * rates.len();
            prop_assert!(moves <= most, "{moves} moves");
        }
    }
}
