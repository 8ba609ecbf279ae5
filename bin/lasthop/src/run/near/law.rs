//! What decides where a VM runs, and on which CPUs its port's thread may: plain code over plain inputs, with the time handed in.

use lasthop_sys::CpuList;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many looks in a row have to say the same before it is believed.
pub(super) const LOOKS: u8 = 3;
/// For so long a thread that found its VM's CPUs busy may run anywhere, at first; twice as long each time, up to [`MOST_LEAVE`].
const LEAVE: Duration = Duration::from_secs(30);
const MOST_LEAVE: Duration = Duration::from_secs(16 * 60);
/// After so many looks without that it is the first time again.
const CALM: u32 = 60;
/// One part in so many of the time has to be waiting for it to count.
const WAITS_PART: u32 = 50;

/// CPUs that share something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    /// The NUMA node that it is, or is in, if it is in one.
    pub node: Option<u32>,
    pub cpus: CpuList,
}

impl Domain {
    /// Whether all of its CPUs are among those of the other one, and not the other way round.
    fn is_finer_than(&self, other: &Self) -> bool {
        self.cpus.len() < other.cpus.len() && self.cpus.without(&other.cpus).is_empty()
    }
}

/// Where a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the domain with this number.
    At(usize),
    /// In several.
    Spread,
}

/// What is known of one VM and its port's thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Law {
    place: Option<Place>,
    /// What the last looks say, if that is something else, and how many of them in a row.
    next: Option<(Place, u8)>,
    /// What the last looks say together, all of which say that it is not where it was, and how many they are.
    away: Option<(Place, u8)>,
    /// In how many looks in a row the thread has had to wait, and in how many it had not.
    waits: u8,
    calm: u32,
    leave: Duration,
    /// Until when it may run anywhere.
    free_until: Option<Instant>,
    /// Whether a quota has stopped the thread when it had to wait, not long ago.
    throttled: bool,
}

impl Law {
    /// One of which is known where its VM was.
    pub fn knowing(place: Place) -> Self {
        Self { place: Some(place), ..Self::default() }
    }

    /// Where the VM is; `None`: not known yet.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Whether its thread may run anywhere for others' sake.
    pub fn is_free(&self) -> bool {
        self.free_until.is_some()
    }

    /// Whether a quota of processor time stops its thread now and then.
    pub fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// The VM has used this much processor time on each CPU since the last look. `domains`: finest first. True if it is somewhere else than it was.
    pub fn looked(&mut self, domains: &[Domain], used: &BTreeMap<usize, u64>) -> bool {
        let all: u64 = used.values().sum();
        if all == 0 {
            return false;
        }
        let within = |domain: &Domain| -> u64 {
            used.iter().filter(|(cpu, _)| domain.cpus.contains(**cpu)).map(|(_, time)| time).sum()
        };
        // To be believed to be there takes three quarters of its time, to be so no more less than a half: in between nothing flaps.
        let most = domains.iter().position(|domain| within(domain).saturating_mul(4) >= all.saturating_mul(3));
        let mut seen = most.map_or(Place::Spread, Place::At);
        let here = self.place.and_then(|place| if let Place::At(at) = place { domains.get(at) } else { None });
        let still_here = here.filter(|here| within(here).saturating_mul(2) >= all);
        let finer = |here| most.and_then(|most| domains.get(most)).is_some_and(|most| most.is_finer_than(here));
        if let Some(place) = self.place
            && still_here.is_some_and(|here| !finer(here))
        {
            seen = place;
        }
        if self.place == Some(seen) {
            (self.next, self.away) = (None, None);
            return false;
        }
        let times = self.next.filter(|(next, _)| *next == seen).map_or(1, |(_, times)| times + 1);
        if times >= LOOKS {
            *self = Self { place: Some(seen), ..Self::default() };
            return true;
        }
        self.next = Some((seen, times));
        if still_here.is_some() {
            self.away = None;
            return false;
        }
        self.went_away(domains, seen, times)
    }

    /// It has been seen somewhere else, though not at the same place in each look: where it was it is no more. True if it is said to be somewhere else now.
    fn went_away(&mut self, domains: &[Domain], seen: Place, times: u8) -> bool {
        let (together, looks) = self.away.map_or((seen, 1), |(before, looks)| (both(domains, before, seen), looks + 1));
        self.away = Some((together, looks));
        // One that may be at a single place is given one look more.
        if looks < LOOKS || (looks == LOOKS && times + 1 == LOOKS) {
            return false;
        }
        if self.place == Some(together) {
            self.away = None;
            return false;
        }
        *self = Self { place: Some(together), next: self.next, ..Self::default() };
        true
    }

    /// Since the last look, `since` ago, the port's thread has run and has waited for a CPU so many nanoseconds. `stopped`: whether a quota has stopped it
    /// meanwhile, which the kernel counts as waiting, too; it is asked if that is of interest.
    pub fn waited(&mut self, [ran, waited]: [u64; 2], since: Duration, now: Instant, stopped: impl FnOnce() -> bool) {
        if let Some(until) = self.free_until {
            if now < until {
                return;
            }
            (self.free_until, self.waits, self.calm) = (None, 0, 0);
            return;
        }
        let long = u64::try_from((since / WAITS_PART).as_nanos()).unwrap_or(u64::MAX);
        if !matches!(self.place, Some(Place::At(_))) || waited <= ran || waited <= long {
            self.waits = 0;
            self.calm = self.calm.saturating_add(1);
            if self.calm >= CALM {
                (self.leave, self.throttled) = (Duration::ZERO, false);
            }
            return;
        }
        if stopped() {
            // Elsewhere it would be, too.
            (self.waits, self.calm, self.throttled) = (0, 0, true);
            return;
        }
        (self.waits, self.calm) = (self.waits + 1, 0);
        if self.waits >= LOOKS {
            self.leave = if self.leave.is_zero() { LEAVE } else { (self.leave * 2).min(MOST_LEAVE) };
            (self.free_until, self.waits) = (Some(now + self.leave), 0);
        }
    }

    /// On which of the CPUs `ports`, which are those of ports' threads, the thread may run: some of them always, and no others.
    pub fn cpus(&self, domains: &[Domain], ports: &CpuList) -> CpuList {
        match self.place {
            Some(Place::At(at)) if !self.is_free() => there(domains, at, ports).unwrap_or_else(|| ports.clone()),
            _ => ports.clone(),
        }
    }
}

/// The finest domain that has both, if there is one.
fn both(domains: &[Domain], one: Place, other: Place) -> Place {
    let has = |place: Place, at: usize, domain: &Domain| match place {
        Place::At(of) => of == at || domains.get(of).is_some_and(|of| of.is_finer_than(domain)),
        Place::Spread => false,
    };
    let mut all = domains.iter().enumerate().filter(|(at, domain)| has(one, *at, domain) && has(other, *at, domain));
    all.next().map_or(Place::Spread, |(at, _)| Place::At(at))
}

/// Those in the domain; if there are none, in the finest one around it.
pub(super) fn there(domains: &[Domain], at: usize, ports: &CpuList) -> Option<CpuList> {
    let here = domains.get(at)?;
    let around = domains.iter().filter(|other| here.is_finer_than(other));
    let of = |domain: &Domain| domain.cpus.iter().filter(|cpu| ports.contains(*cpu)).collect::<CpuList>();
    std::iter::once(here).chain(around).map(of).find(|cpus| !cpus.is_empty())
}

#[cfg(test)]
mod tests;
