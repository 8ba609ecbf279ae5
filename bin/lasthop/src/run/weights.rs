//! Priorities and minimum rates of ports (`lasthop port set --priority`, `--min-rate`), as shares: the switch knows weights alone. So what they come to
//! depends on which ports there are, and when that changes the switch is told other weights.

use super::supervisor::Supervisor;
use lasthop_management_ipc::PortConfig;
use lasthop_policy::{PortSettings, Rate, Unit};
use lasthop_types::DEFAULT_WEIGHT;
use std::collections::BTreeMap;

/// A port, by number, gets so many times what all those below it get together, when all have packets.
const ABOVE: u64 = 15;
/// Least mean of weights that minimum rates are made of: a weight is a whole number, so a share is right within a hundredth of the mean.
const FINE: u64 = 100;

/// A port as it is set.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    port: u32,
    weight: u32,
    priority: u8,
    /// Bits a second.
    least: u64,
    /// It is an uplink: what comes from there goes to no uplink.
    uplink: bool,
}

/// Weights by which each port has at least [`ABOVE`] times the sum of those with a lower priority, and those of one priority share as their own
/// weights say; and of a network that takes `takes` bits a second each has what it is to get at least. Nothing if weights are as they are set.
fn weights(mut ports: Vec<Wanted>, takes: Option<u64>) -> BTreeMap<u32, u32> {
    let ranked = ranked(&mut ports);
    let Some(takes) = takes.filter(|_| ports.iter().any(|port| port.least > 0)) else { return ranked };
    let own = |port: &Wanted| u64::from(ranked.get(&port.port).copied().unwrap_or(port.weight)).max(1);
    let guests: Vec<_> = ports.iter().filter(|port| !port.uplink).map(|port| (*port, own(port))).collect();
    let wanted = guests.iter().map(|(port, _)| u128::from(port.least)).sum::<u128>();
    // More than there is: all get less by the same part.
    let takes = u128::from(takes).max(wanted);
    let sum = guests.iter().map(|(_, own)| u128::from(*own)).sum::<u128>();
    let finer = (u128::from(FINE) * guests.len() as u128).div_ceil(sum);
    // One port may be promised nearly all, and its weight be nearly the sum.
    let coarser = (sum * finer).div_ceil(1 << 31);
    let share = |(port, own): &(Wanted, u64)| {
        let (least, rest) = (u128::from(port.least) * sum, (takes - wanted) * u128::from(*own));
        let weight = ((least + rest) * finer).div_ceil(takes * coarser).max(1);
        (port.port, u32::try_from(weight).unwrap_or(u32::MAX))
    };
    let mut weights = ranked.clone();
    weights.extend(guests.iter().map(share));
    weights
}

/// The same for priorities alone.
fn ranked(ports: &mut [Wanted]) -> BTreeMap<u32, u32> {
    ports.sort_unstable_by_key(|port| port.priority);
    let (mut weights, mut below) = (BTreeMap::new(), 0);
    for level in ports.chunk_by(|one, other| one.priority == other.priority) {
        if level.len() == ports.len() {
            return weights;
        }
        let least = level.iter().map(|port| u64::from(port.weight)).min().unwrap_or(1).max(1);
        let factor = (ABOVE * below).div_ceil(least).max(1);
        let weight = |port: &Wanted| u32::try_from(u64::from(port.weight) * factor).unwrap_or(u32::MAX);
        weights.extend(level.iter().map(|port| (port.port, weight(port))));
        below += level.iter().map(|port| u64::from(weight(port))).sum::<u64>();
    }
    weights
}

/// What ports are to get at least in all, and which uplink takes least, in bits a second.
#[derive(Debug, Default)]
struct Minimums {
    wanted: u64,
    takes: Option<(u64, String)>,
}

fn bits(rate: Option<Rate>) -> Option<u64> {
    rate.filter(|rate| rate.unit == Unit::Bits).map(|rate| rate.rate)
}

impl Supervisor {
    /// A port's weight among those of its priority.
    pub(super) fn own_weight(&self, name: &str) -> u32 {
        self.settings.get(name).and_then(|set| set.weight).map_or(DEFAULT_WEIGHT, u32::from)
    }

    /// Tells the switch of ports whose shares have changed because others have come or gone, or have other settings.
    pub(super) fn tell_weights(&mut self, configs: &[PortConfig]) {
        let wanted = |config: &PortConfig| {
            let set = self.settings.get(&config.name);
            Wanted {
                port: config.id.0,
                weight: self.own_weight(&config.name),
                priority: set.and_then(|set| set.priority).unwrap_or(0),
                least: bits(set.and_then(|set| set.min_rate)).unwrap_or(0),
                uplink: self.uplink_port(&config.name).is_some(),
            }
        };
        let takes = self.minimums(None).takes.map(|(takes, _)| takes);
        let new = weights(configs.iter().map(wanted).collect(), takes);
        let before = std::mem::replace(&mut self.weights, new);
        for config in configs {
            if before.get(&config.id.0) != self.weights.get(&config.id.0) {
                self.tell_limits(config.id, &config.name);
            }
        }
    }

    /// As settings are, or with other ones of one port.
    fn minimums(&self, with: Option<(&str, &PortSettings)>) -> Minimums {
        let set =
            |name: &str| with.filter(|(of, _)| *of == name).map(|(_, set)| set).or_else(|| self.settings.get(name));
        let mut ports: Vec<_> = self.configs().into_iter().map(|config| config.name).collect();
        if let Some((name, _)) = with.filter(|(name, _)| !ports.iter().any(|port| port == name)) {
            ports.push(name.to_owned());
        }
        let (uplinks, guests): (Vec<_>, Vec<_>) = ports.iter().partition(|name| self.uplink_port(name).is_some());
        let least = guests.iter().filter_map(|name| bits(set(name)?.min_rate));
        let takes = uplinks.iter().filter_map(|name| Some((bits(set(name)?.rate_to)?, (*name).clone())));
        Minimums { wanted: least.sum(), takes: takes.min() }
    }

    /// Refuses settings by which ports are to get more at least than an uplink takes, or which take away from what they were promised.
    pub(super) fn check_minimums(&self, name: &str, settings: &PortSettings) -> Result<(), String> {
        let (before, after) = (self.minimums(None), self.minimums(Some((name, settings))));
        let rate = |bits: u64| Rate { unit: Unit::Bits, rate: bits, burst: None };
        let is_no_worse = after.wanted <= before.wanted
            && match (&before.takes, &after.takes) {
                (None, _) => true,
                (Some((before, _)), Some((after, _))) => after >= before,
                (Some(_), None) => false,
            };
        match after.takes {
            _ if is_no_worse || after.wanted == 0 => Ok(()),
            None => Err(format!(
                "ports are to get {} at least (min-rate), which is of what an uplink takes, and none says what that is: `lasthop port set UPLINK --rate-to RATE` does, a little \
                 less than its network takes",
                rate(after.wanted)
            )),
            Some((takes, uplink)) if after.wanted > takes => Err(format!(
                "ports would be to get {} at least (min-rate) and uplink {uplink} takes {} (rate-to); `lasthop port list` shows who has how much",
                rate(after.wanted),
                rate(takes)
            )),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "weights/tests.rs"]
mod tests;
