//! Whether Open vSwitch is there, where it decides.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// Who takes the packets that meet no flow, where Open vSwitch decides, and how many of them nobody took. What a lasthop of a version before does not tell is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
#[serde(default)]
pub struct OpenVswitch {
    /// Processes that take them, or did and are still connected: ovs-vswitchd. Of several, each changes what the others have made. 0: some in other PID
    /// namespaces, which have no number here.
    pub processes: Vec<u32>,
    /// For how long nobody has, in milliseconds: since the last that did went, or lasthop-ovs was started. None: somebody does.
    pub away_ms: Option<u64>,
    /// One has, since lasthop-ovs was started.
    pub has_come: bool,
    /// Processes that go on with the datapath of a `lasthop run` before this one, which is gone.
    pub left_over: Vec<u32>,
    /// Processes that have a `liblasthop_ovs.so` of another version, which were refused within the last minute.
    pub outdated: Vec<u32>,
    /// Packets that met no flow and that nobody took, since lasthop-ovs was started.
    pub lost: u64,
    /// The same by the ports that they came from; only those of which some were lost. Where several wait for one socket of Open vSwitch's, those of the port with
    /// most are lost first.
    pub lost_of: Vec<LostOf>,
    /// Names of its ports.
    pub ports: Vec<String>,
    /// Those of them that are neither a VM's nor an interface here: no packet passes them.
    pub without: Vec<String>,
    /// Rates that it has set, which go before those of `lasthop port set`.
    pub rates: Vec<RatesOf>,
    /// Packets that rules or meters dropped where they were judged one by one, in lasthop-ovs, by the ports that they came from; fragments apart.
    pub dropped_of: Vec<LostOf>,
}

/// Rates of a port that Open vSwitch has set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct RatesOf {
    /// Name of the port.
    pub port: String,
    /// Of what comes from there (`ingress_policing_rate`), in words; none: it is not limited.
    pub from: Option<String>,
    /// Of what goes there (`max-rate` of a `qos`).
    pub to: Option<String>,
}

/// Packets of a port that nobody took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LostOf {
    /// Name of the port.
    pub port: String,
    /// How many.
    pub packets: u64,
}

/// Processes of Open vSwitch's in words: `pid 7`, or `pids 7, 9`, and those that have no number here.
pub fn named<'a>(pids: impl IntoIterator<Item = &'a u32>) -> String {
    let (unseen, seen): (Vec<u32>, Vec<u32>) = pids.into_iter().partition(|pid| **pid == 0);
    let all: Vec<_> = seen.iter().map(u32::to_string).collect();
    let seen = match &all[..] {
        [] => None,
        [one] => Some(format!("pid {one}")),
        _ => Some(format!("pids {}", all.join(", "))),
    };
    let unseen = (!unseen.is_empty()).then(|| "in another PID namespace".to_owned());
    seen.into_iter().chain(unseen).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn processes_are_named_with_and_without_numbers() {
        assert_eq!(named(&[7]), "pid 7");
        assert_eq!(named(&[7, 9]), "pids 7, 9");
        assert_eq!(named(&[0]), "in another PID namespace");
        assert_eq!(named(&[0, 9]), "pid 9, in another PID namespace");
    }
}
