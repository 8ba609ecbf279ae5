//! Priorities of ports (`lasthop port set --priority`), as shares: the switch knows weights alone. So what a priority comes to depends on which
//! ports there are, and when that changes the switch is told other weights.

use super::supervisor::Supervisor;
use lasthop_management_ipc::PortConfig;
use lasthop_types::DEFAULT_WEIGHT;
use std::collections::BTreeMap;

/// A port, by number, gets so many times what all those below it get together, when all have packets.
const ABOVE: u64 = 15;

/// A port as it is set.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    port: u32,
    weight: u32,
    priority: u8,
}

/// Weights by which each port has at least [`ABOVE`] times the sum of those with a lower priority, and those of one priority share as their own
/// weights say. Nothing if all have the same priority.
fn weights(mut ports: Vec<Wanted>) -> BTreeMap<u32, u32> {
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

impl Supervisor {
    /// A port's weight among those of its priority.
    pub(super) fn own_weight(&self, name: &str) -> u32 {
        self.settings.get(name).and_then(|set| set.weight).map_or(DEFAULT_WEIGHT, u32::from)
    }

    /// Tells the switch of ports whose shares have changed because others have come or gone, or have other settings.
    pub(super) fn tell_weights(&mut self, configs: &[PortConfig]) {
        let priority = |name: &str| self.settings.get(name).and_then(|set| set.priority).unwrap_or(0);
        let wanted = |config: &PortConfig| {
            let (weight, priority) = (self.own_weight(&config.name), priority(&config.name));
            Wanted { port: config.id.0, weight, priority }
        };
        let new = weights(configs.iter().map(wanted).collect());
        let before = std::mem::replace(&mut self.weights, new);
        for config in configs {
            if before.get(&config.id.0) != self.weights.get(&config.id.0) {
                self.tell_limits(config.id, &config.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ports: &[(u32, u8)]) -> Vec<u32> {
        let wanted = (0..).zip(ports).map(|(port, &(weight, priority))| Wanted { port, weight, priority });
        weights(wanted.collect()).into_values().collect()
    }

    #[test]
    fn each_port_has_fifteen_times_what_is_below_it_and_equals_share_by_weight() {
        assert_eq!(of(&[(100, 0), (100, 1)]), [100, 1500]);
        assert_eq!(of(&[(100, 0), (300, 0), (100, 2), (50, 2)]), [100, 300, 12_000, 6_000]);
        assert_eq!(of(&[(100, 2), (100, 1), (100, 0)]), [24_000, 1500, 100]);
        for ports in [&[][..], &[(7, 0)], &[(100, 1), (300, 1)]] {
            assert_eq!(of(ports), [0; 0], "the weights that they have");
        }
    }

    #[test]
    fn numbers_end_at_a_bound() {
        let mut ports = vec![(1000, 0); 998];
        ports.extend([(1, 1), (1000, 1), (1, 2)]);
        let weights = of(&ports);
        let lower: u64 = weights[..998].iter().map(|n| u64::from(*n)).sum();
        assert!(u64::from(weights[998]) >= 15 * lower);
        assert_eq!(weights[998..], [14_970_000, u32::MAX, u32::MAX], "as far as they go");
    }
}
