//! What ports get where several want more than there is: weights and minimum rates of ports (`lasthop port set --weight`, `--priority`, `--min-rate`), as
//! shares. The switch knows weights alone; what they come to depends on which ports there are. Plain code over what ports are told: `lasthop run` tells
//! the switch what comes of it, commands show it.

use lasthop_api::Port;
use lasthop_policy::{MIN_RATE, PortSettings, RATE_TO, Rate};
use lasthop_types::DEFAULT_WEIGHT;
use serde::Serialize;
use std::collections::BTreeMap;

/// A port, by number, gets so many times what all those below it get together, when all have packets.
const ABOVE: u64 = 15;
/// Least mean of weights that minimum rates are made of: a weight is a whole number, so a share is right within a hundredth of the mean.
const FINE: u64 = 100;

/// A port as it is told.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its number.
    pub port: u32,
    /// It is an uplink: what comes from there goes to no uplink.
    pub uplink: bool,
    /// Nothing if there is none of that name.
    pub settings: Option<&'a PortSettings>,
}

impl Told<'_> {
    /// Bits a second.
    fn least(&self) -> Option<u64> {
        self.settings?.min_rate.as_ref().and_then(Rate::bits)
    }

    fn takes(&self) -> Option<u64> {
        self.settings?.rate_to.as_ref().and_then(Rate::bits)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            port: self.port,
            weight: own_weight(self.settings),
            priority: self.settings.and_then(|set| set.priority).unwrap_or(0),
            least: self.least().unwrap_or(0),
            uplink: self.uplink,
        }
    }
}

/// A port's weight among those of its priority.
pub fn own_weight(settings: Option<&PortSettings>) -> u32 {
    settings.and_then(|set| set.weight).map_or(DEFAULT_WEIGHT, u32::from)
}

/// What makes a port's share.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    port: u32,
    weight: u32,
    priority: u8,
    /// Bits a second.
    least: u64,
    uplink: bool,
}

/// Weights by number, of ports that have another one than they are told. All ports have to be there.
pub fn weights_of(ports: &[Told<'_>]) -> BTreeMap<u32, u32> {
    let takes = Minimums::of(ports).takes.map(|(takes, _)| takes);
    weights(ports.iter().map(Told::wanted).collect(), takes)
}

/// Weights by which each port has at least [`ABOVE`] times the sum of those with a lower priority, and those of one priority share as their own
/// weights say; and of a network that takes `takes` bits a second each has what it is to get at least. Nothing if weights are as they are set.
fn weights(mut ports: Vec<Wanted>, takes: Option<u64>) -> BTreeMap<u32, u32> {
    let ranked = ranked(&mut ports);
    let Some(takes) = takes.filter(|_| ports.iter().any(|port| port.least > 0)) else { return ranked };
    let own = |port: &Wanted| u128::from(ranked.get(&port.port).copied().unwrap_or(port.weight)).max(1);
    let guests = || ports.iter().filter(|port| !port.uplink);
    let wanted = guests().map(|port| u128::from(port.least)).sum::<u128>();
    // More than there is: all get less by the same part.
    let takes = u128::from(takes).max(wanted);
    let sum = guests().map(own).sum::<u128>().max(1);
    let finer = (u128::from(FINE) * guests().count() as u128).div_ceil(sum);
    // One port may be promised nearly all, and its weight be nearly the sum.
    let coarser = (sum * finer).div_ceil(1 << 31);
    let weight = |port: &Wanted| {
        // What comes from an uplink shares with what guests send to each other: its weight is as fine or as coarse as theirs.
        let part =
            if port.uplink { own(port) * takes } else { u128::from(port.least) * sum + (takes - wanted) * own(port) };
        u32::try_from((part * finer).div_ceil(takes * coarser).max(1)).unwrap_or(u32::MAX)
    };
    ports.iter().map(|port| (port.port, weight(port))).collect()
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
pub struct Minimums {
    /// Of all ports.
    pub wanted: u64,
    /// The least of uplinks' rates, and whose it is.
    pub takes: Option<(u64, String)>,
    /// Uplinks that do not say what they take, or say it in packets.
    pub unsaid: Vec<String>,
}

impl Minimums {
    /// Of these ports, which are all.
    pub fn of(ports: &[Told<'_>]) -> Self {
        let uplinks = || ports.iter().filter(|port| port.uplink);
        let least = ports.iter().filter(|port| !port.uplink).filter_map(Told::least);
        Self {
            wanted: least.fold(0, u64::saturating_add),
            takes: uplinks().filter_map(|uplink| Some((uplink.takes()?, uplink.name.to_owned()))).min(),
            unsaid: uplinks().filter(|uplink| uplink.takes().is_none()).map(|uplink| uplink.name.to_owned()).collect(),
        }
    }

    /// Why ports do not get what they are to get at least, and what to do.
    pub fn unkept(&self) -> Option<String> {
        let wanted = Rate::of_bits(self.wanted);
        match &self.takes {
            _ if self.wanted == 0 => None,
            None if self.unsaid.is_empty() => Some(format!(
                "ports are to get {wanted} at least ({MIN_RATE}), which is of what an uplink takes, and there is no uplink: add one, and say what it takes (`lasthop port set UPLINK \
                 --{RATE_TO} RATE`)"
            )),
            None => Some(format!(
                "ports are to get {wanted} at least ({MIN_RATE}), which is of what an uplink takes, and none says how many bits a second that is: `lasthop port set {} --{RATE_TO} RATE` \
                 does, a little less than its network takes",
                self.unsaid[0]
            )),
            Some((takes, uplink)) if self.wanted > *takes => Some(format!(
                "ports are to get {wanted} at least ({MIN_RATE}), and uplink {uplink} takes {} ({RATE_TO}): lower what ports get (`lasthop port list` shows who has how much), or raise what \
                 {uplink} takes, if its network takes that",
                Rate::of_bits(*takes)
            )),
            Some(_) => None,
        }
    }

    /// They are kept as these were, or better.
    pub fn are_no_worse_than(&self, before: &Self) -> bool {
        let of_more = match (&before.takes, &self.takes) {
            (None, None) => true,
            (Some((before, _)), Some((now, _))) => now >= before,
            // What somebody says for the first time is to be right.
            (None, Some(_)) | (Some(_), None) => false,
        };
        self.wanted <= before.wanted && of_more
    }
}

/// A guest's share, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Its port.
    pub port: String,
    /// The weight by which it shares.
    pub weight: u32,
    /// All guests' weights together.
    pub of: u64,
    /// Its own weight, as it is told. Another one is in force where priorities or minimum rates make it so.
    pub own: u32,
    /// What it gets at least of each uplink that says what it takes, in bits a second.
    pub least: Option<u64>,
}

impl Share {
    /// In a line.
    pub fn told(&self) -> String {
        let least =
            self.least.map_or_else(String::new, |bits| format!(", at least {} of an uplink", Rate::of_bits(bits)));
        format!("weight {} of {} of all guests, where they share{least}", self.weight, self.of)
    }
}

/// Settings of a port as `lasthop port list` has them.
pub fn settings_of(port: &Port) -> PortSettings {
    let pairs = port.settings.iter().map(|field| (field.name.as_str(), field.value.as_str()));
    PortSettings::default().change(pairs).unwrap_or_default()
}

/// Asks something of all ports.
pub fn of_ports<T>(ports: &[Port], ask: impl FnOnce(&[Told<'_>]) -> T) -> T {
    let settings: Vec<_> = ports.iter().map(settings_of).collect();
    let told = ports.iter().zip(&settings).map(|(port, settings)| Told {
        name: &port.name,
        port: port.id,
        uplink: port.uplink,
        settings: Some(settings),
    });
    ask(&told.collect::<Vec<_>>())
}

/// Shares of all guests, by those of the ports that there are.
pub fn shares(ports: &[Port]) -> Vec<Share> {
    of_ports(ports, |told| {
        let (made, takes) = (weights_of(told), Minimums::of(told).takes);
        let weight = |port: &Told<'_>| made.get(&port.port).copied().unwrap_or_else(|| own_weight(port.settings));
        let guests = || told.iter().filter(|port| !port.uplink);
        let of = guests().map(|port| u64::from(weight(port))).sum();
        let share = |port: &Told<'_>| Share {
            port: port.name.to_owned(),
            weight: weight(port),
            of,
            own: own_weight(port.settings),
            least: port.least().filter(|_| takes.is_some()),
        };
        guests().map(share).collect()
    })
}

#[cfg(test)]
mod tests;
