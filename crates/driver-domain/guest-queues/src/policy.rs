//! Which guests get a queue: plain code over samples of load. Queue 0, the default queue, is everybody's and not dealt in.
//!
//! A queue that is free goes to the busiest guest without one. When none is free, a guest that is twice as busy as the least
//! busy guest for a while takes its place. A guest that has gone quiet gives its queue back. What makes a guest busy is much
//! more than what makes it quiet, and a newcomer has to be much busier than the one that has the queue: equals do not take turns.
//!
//! A port that somebody has pinned to the device ([`Policy::pin`]) has a queue whatever the load; only what is left is dealt out.

use lasthop_uplink_ipc::VlanMac;
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

/// Whose a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The guest with this address, as long as it is busy.
    Busy(VlanMac),
    /// The port with this number, because somebody says so.
    Pinned(u32),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The queue's guest shares the default queue again.
    Free(u16),
    /// The queue, which is free, is this owner's.
    Give(u16, Owner),
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
    owners: Vec<Option<Owner>>,
    /// Ports that are to have one.
    pinned: Vec<u32>,
    loads: BTreeMap<VlanMac, Load>,
    /// For how many samples somebody without a queue has been much busier than one with a queue.
    pressing: u8,
}

impl Policy {
    /// For a device with so many queues, the default queue among them.
    pub fn new(queues: u16) -> Self {
        let owners = vec![None; usize::from(queues.saturating_sub(1))];
        Self { owners, pinned: Vec::new(), loads: BTreeMap::new(), pressing: 0 }
    }

    /// Whose the queue is.
    pub fn owner_of(&self, queue: u16) -> Option<Owner> {
        self.owners.get(usize::from(queue).checked_sub(1)?).copied().flatten()
    }

    fn queue(&self, owner: Owner) -> Option<u16> {
        let at = self.owners.iter().position(|slot| *slot == Some(owner))?;
        Some(at as u16 + 1)
    }

    /// The queue that a guest has because it is busy, or the default queue.
    pub fn queue_of(&self, guest: VlanMac) -> u16 {
        self.queue(Owner::Busy(guest)).unwrap_or(0)
    }

    /// Packets a second of late.
    pub fn rate(&self, guest: VlanMac) -> u64 {
        self.loads.get(&guest).map_or(0, |load| load.rate)
    }

    /// Whether this guest could be forgotten without a loss.
    pub fn is_dispensable(&self, guest: VlanMac) -> bool {
        self.rate(guest) < BUSY && self.queue_of(guest) == 0
    }

    /// Nothing is going on: no guest has a queue that it may lose, none is to get one, and none is busy.
    pub fn is_at_rest(&self) -> bool {
        let is_busy = |owner: &Option<Owner>| matches!(owner, Some(Owner::Busy(_)));
        let waits = self.waiting_ports().count() > 0 && self.owners.iter().any(Option::is_none);
        !waits && !self.owners.iter().any(is_busy) && self.loads.values().all(|load| load.rate == 0)
    }

    /// These ports are to have a queue from now on, and no others but for their load. Those first that were first.
    pub fn pin(&mut self, ports: &[u32]) -> Vec<Change> {
        self.pinned = ports.to_vec();
        self.settle_pinned()
    }

    fn waiting_ports(&self) -> impl Iterator<Item = u32> {
        self.pinned.iter().copied().filter(|port| self.queue(Owner::Pinned(*port)).is_none())
    }

    /// Ports that wait for a queue get what is free; who is pinned no more gives its queue back; and if that is not enough, those guests
    /// that are least busy do. What is freed is given away the next time.
    fn settle_pinned(&mut self) -> Vec<Change> {
        let waiting: Vec<u32> = self.waiting_ports().collect();
        let mut waiting = waiting.into_iter();
        let (mut changes, mut freed) = (Vec::new(), 0);
        for (queue, slot) in (1..).zip(&mut self.owners) {
            match *slot {
                None => {
                    if let Some(port) = waiting.next() {
                        *slot = Some(Owner::Pinned(port));
                        changes.push(Change::Give(queue, Owner::Pinned(port)));
                    }
                }
                Some(Owner::Pinned(port)) if !self.pinned.contains(&port) => {
                    (*slot, freed) = (None, freed + 1);
                    changes.push(Change::Free(queue));
                }
                Some(_) => {}
            }
        }
        let mut busy: Vec<(u64, usize)> = Vec::new();
        for (i, slot) in self.owners.iter().enumerate() {
            if let Some(Owner::Busy(guest)) = slot {
                busy.push((self.rate(*guest), i));
            }
        }
        busy.sort_unstable();
        for (_, i) in busy.into_iter().take(waiting.count().saturating_sub(freed)) {
            if let Some(slot) = self.owners.get_mut(i) {
                *slot = None;
                changes.push(Change::Free(i as u16 + 1));
            }
        }
        changes
    }

    /// In the time since the last sample so many packets came for each of these guests, which are no pinned ports'; others are gone. A queue
    /// that is freed is given away with the next sample at the earliest, so that what its guest still has in it is out by then.
    pub fn sample(&mut self, elapsed: Duration, arrived: &[(VlanMac, u64)]) -> Vec<Change> {
        self.weigh(elapsed, arrived);
        let mut changes = self.settle_pinned();
        let freed = |change: &Change| if let Change::Free(queue) = change { Some(*queue) } else { None };
        let just_freed: Vec<u16> = changes.iter().filter_map(freed).collect();
        let mut waiting: Vec<(u64, VlanMac)> = self.loads.iter().map(|(guest, load)| (load.rate, *guest)).collect();
        waiting.retain(|(rate, guest)| *rate >= BUSY && self.queue_of(*guest) == 0);
        waiting.sort();

        let mut weakest: Option<(u64, usize)> = None;
        let mut any_free = !just_freed.is_empty();
        for (i, slot) in self.owners.iter_mut().enumerate() {
            let queue = i as u16 + 1;
            let guest = match *slot {
                Some(Owner::Pinned(_)) => continue,
                Some(Owner::Busy(guest)) => guest,
                None => {
                    any_free = true;
                    if !just_freed.contains(&queue)
                        && let Some((_, guest)) = waiting.pop()
                    {
                        *slot = Some(Owner::Busy(guest));
                        changes.push(Change::Give(queue, Owner::Busy(guest)));
                    }
                    continue;
                }
            };
            match self.loads.get(&guest) {
                Some(load) if load.quiet < QUIET_SAMPLES => {
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
                    if let Some(slot) = self.owners.get_mut(i) {
                        *slot = None;
                        changes.push(Change::Free(i as u16 + 1));
                    }
                }
            }
            _ => self.pressing = 0,
        }
        changes
    }

    /// How busy everybody is now.
    fn weigh(&mut self, elapsed: Duration, arrived: &[(VlanMac, u64)]) {
        let micros = elapsed.as_micros().max(1);
        let before = std::mem::take(&mut self.loads);
        for (guest, packets) in arrived {
            let now = u64::try_from(u128::from(*packets) * 1_000_000 / micros).unwrap_or(u64::MAX);
            let old = before.get(guest).copied().unwrap_or_default();
            let rate = old.rate / 2 + now / 2 + (old.rate & now & 1);
            let quiet = if rate < QUIET { old.quiet.saturating_add(1) } else { 0 };
            self.loads.insert(*guest, Load { rate, quiet });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_text::MacAddr;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TICK: Duration = Duration::from_millis(250);

    /// Two and two have the same address, in different VLANs.
    fn guest(n: u8) -> VlanMac {
        (u16::from(n % 2), MacAddr([2, 0, 0, 0, 0, n / 2]))
    }

    fn give(queue: u16, n: u8) -> Change {
        Change::Give(queue, Owner::Busy(guest(n)))
    }

    /// Packets a second of guests 0, 1, … for so many samples; all that was changed.
    fn run(policy: &mut Policy, rates: &[u64], samples: usize) -> Vec<Change> {
        let arrived: Vec<_> = (0..).map(guest).zip(rates.iter().map(|r| r / 4)).collect();
        (0..samples).flat_map(|_| policy.sample(TICK, &arrived)).collect()
    }

    #[test]
    fn the_busiest_have_the_queues_and_the_rest_share() {
        let mut policy = Policy::new(3);
        assert_eq!(run(&mut policy, &[5000, 200, 9000, 40], 20), [give(1, 2), give(2, 0)]);
        assert_eq!([0, 1, 2, 3].map(|n| policy.queue_of(guest(n))), [2, 0, 1, 0]);
    }

    #[test]
    fn a_quiet_guest_gives_its_queue_back_and_all_come_to_rest() {
        let mut policy = Policy::new(2);
        run(&mut policy, &[5000, 200], 20);
        assert_eq!(policy.owner_of(1), Some(Owner::Busy(guest(0))));
        let changes = run(&mut policy, &[0, 200], 40);
        assert_eq!(changes, [Change::Free(1), give(1, 1)]);
        assert_eq!(run(&mut policy, &[0, 0], 40), [Change::Free(1)]);
        assert!(policy.is_at_rest());
    }

    #[test]
    fn a_much_busier_guest_takes_over_and_a_little_busier_one_does_not() {
        let mut policy = Policy::new(2);
        run(&mut policy, &[5000, 0], 10);
        assert_eq!(run(&mut policy, &[5000, 9000], 50), []);
        assert_eq!(run(&mut policy, &[5000, 11_000], 50), [Change::Free(1), give(1, 1)]);
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

    #[test]
    fn a_pinned_port_has_a_queue_whatever_the_load() {
        let pinned = Owner::Pinned;
        let mut policy = Policy::new(3);
        run(&mut policy, &[5000, 9000], 20);
        assert_eq!([1, 2].map(|queue| policy.owner_of(queue)), [1, 0].map(|n| Some(Owner::Busy(guest(n)))));
        // The least busy guest makes room, and the port gets the queue when what was in it is out.
        assert_eq!(policy.pin(&[7]), [Change::Free(2)]);
        assert_eq!(run(&mut policy, &[5000, 9000], 1), [Change::Give(2, pinned(7))]);
        assert_eq!(run(&mut policy, &[50_000, 9000], 50), [Change::Free(1), give(1, 0)]);
        // It keeps it when nothing comes, and nobody need look any more.
        assert_eq!(run(&mut policy, &[0, 0], 50), [Change::Free(1)]);
        assert!(policy.is_at_rest());
        // Those who are first come first, where there are too few.
        assert_eq!(policy.pin(&[7, 8, 9]), [Change::Give(1, pinned(8))]);
        assert!(policy.is_at_rest());
        assert_eq!(policy.pin(&[9]), [Change::Free(1), Change::Free(2)]);
        assert!(!policy.is_at_rest());
        assert_eq!(run(&mut policy, &[0, 0], 5), [Change::Give(1, pinned(9))]);
    }

    /// Plays the changes on a model that panics on what must not be.
    fn obey(model: &mut [Option<Owner>], changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Free(queue) => assert!(model[usize::from(queue) - 1].take().is_some(), "was free: {change:?}"),
                Change::Give(queue, owner) => {
                    assert!(!model.contains(&Some(owner)), "has one: {change:?}");
                    assert_eq!(model[usize::from(queue) - 1].replace(owner), None, "not free: {change:?}");
                }
            }
        }
    }

    proptest! {
        /// Whatever the load does, and whoever is pinned: no guest has two queues, no queue two guests, the default queue is nobody's, and
        /// who is pinned has a queue soon and keeps it.
        #[test]
        fn assignments_are_sound(
            queues in 1..6u16,
            samples in prop::collection::vec(
                (prop::collection::vec(0..20_000u64, 0..9), prop::option::of(prop::collection::btree_set(0..4u32, 0..4))),
                1..60,
            ),
        ) {
            let mut policy = Policy::new(queues);
            let mut model = vec![None; usize::from(queues) - 1];
            let (mut pinned, mut since) = (Vec::new(), 0);
            for (rates, pins) in &samples {
                if let Some(ports) = pins {
                    (pinned, since) = (ports.iter().copied().collect(), 0);
                    obey(&mut model, &policy.pin(&pinned));
                }
                since += 1;
                let arrived: Vec<_> = (0..).map(guest).zip(rates.iter().copied()).collect();
                let changes = policy.sample(TICK, &arrived);
                let touched: BTreeSet<u16> = changes.iter().map(|c| match c { Change::Free(q) | Change::Give(q, _) => *q }).collect();
                prop_assert_eq!(touched.len(), changes.len(), "a queue was freed and given away at once");
                obey(&mut model, &changes);
                let owners: Vec<_> = (1..queues).map(|q| policy.owner_of(q)).collect();
                prop_assert_eq!(&owners, &model);
                prop_assert_eq!(policy.owner_of(0), None);
                let have = owners.iter().filter(|owner| matches!(owner, Some(Owner::Pinned(_)))).count();
                let most = pinned.len().min(usize::from(queues) - 1);
                prop_assert!(since < 2 || have == most, "{owners:?} for {pinned:?}");
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
