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
    /// In how many looks in a row the thread has had to wait, and in how many it had not.
    waits: u8,
    calm: u32,
    leave: Duration,
    /// Until when it may run anywhere.
    free_until: Option<Instant>,
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
        if let Some(Place::At(now)) = self.place
            && let Some(here) = domains.get(now)
            && within(here).saturating_mul(2) >= all
            && !most.and_then(|most| domains.get(most)).is_some_and(|most| most.is_finer_than(here))
        {
            seen = Place::At(now);
        }
        if self.place == Some(seen) {
            self.next = None;
            return false;
        }
        let times = self.next.filter(|(next, _)| *next == seen).map_or(1, |(_, times)| times + 1);
        if times < LOOKS {
            self.next = Some((seen, times));
            return false;
        }
        *self = Self { place: Some(seen), ..Self::default() };
        true
    }

    /// Since the last look, `since` ago, the port's thread has run and has waited for a CPU so many nanoseconds.
    pub fn waited(&mut self, ran: u64, waited: u64, since: Duration, now: Instant) {
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
                self.leave = Duration::ZERO;
            }
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

/// Those in the domain; if there are none, in the finest one around it.
pub(super) fn there(domains: &[Domain], at: usize, ports: &CpuList) -> Option<CpuList> {
    let here = domains.get(at)?;
    let around = domains.iter().filter(|other| here.is_finer_than(other));
    let of = |domain: &Domain| domain.cpus.iter().filter(|cpu| ports.contains(*cpu)).collect::<CpuList>();
    std::iter::once(here).chain(around).map(of).find(|cpus| !cpus.is_empty())
}

#[cfg(test)]
mod tests;
