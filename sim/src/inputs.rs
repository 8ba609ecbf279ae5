//! What things cost: read from a file in which every figure has its unit and its source.

use serde::Deserialize;
use std::collections::BTreeMap;

/// One figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// In `unit`.
    pub value: f64,
    /// Such as `ns` or `ns/byte`.
    pub unit: String,
    /// Where it is from.
    pub source: String,
}

/// The papers' machine.
pub const PAPER: &str = include_str!("../inputs/paper.json");
/// Today's.
pub const TODAY: &str = include_str!("../inputs/today.json");

macro_rules! costs {
    ($($(#[doc = $doc:literal])+ $name:ident: $unit:literal,)+) => {
        /// Costs. Times are those of one core with its execution units to itself.
        #[derive(Clone, Debug)]
        pub struct Costs {
            $($(#[doc = $doc])+ pub $name: f64,)+
        }

        impl Costs {
            /// From a file's text: an object with every name and no other.
            pub fn parse(text: &str) -> Result<Self, String> {
                let mut table = parse_table(text)?;
                let costs = Self { $($name: take(&mut table, stringify!($name), $unit)?,)+ };
                match table.keys().next() {
                    Some(name) => Err(format!("{name}: there is no such cost")),
                    None => Ok(costs),
                }
            }

            /// Names and what they mean, in the order in which they are explained best.
            pub const MEANING: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+)),)+];
        }
    };
}

costs! {
    /// A guest receives a packet: driver, stack, waking the application.
    guest_receive: "ns",
    /// … for each byte: the application's copy, when the packet lies in a near cache.
    guest_receive_byte: "ns/byte",
    /// A guest sends a packet.
    guest_send: "ns",
    /// … for each byte.
    guest_send_byte: "ns/byte",
    /// A guest's stack makes an acknowledgement, or takes one.
    guest_ack: "ns",
    /// A guest is interrupted: what its own time loses to it.
    guest_interrupt: "ns",
    /// A guest leaves guest mode to kick, and comes back.
    kick: "ns",
    /// A guest that runs is brought into the hypervisor by an interprocessor interrupt (Hyper-Switch only).
    entry: "ns",
    /// A virtual machine exit and entry (KVM only; twice for each interrupt, and added to a kick).
    exit: "ns",
    /// Somebody signals another thread or guest: what it costs the one who signals.
    signal: "ns",
    /// From a signal until a core that was idle does something.
    idle_exit: "ns",
    /// A core changes from one thread to another; for a worker of the switch also what it does before it sleeps and after.
    context_switch: "ns",
    /// A packet is taken from the ring and its flow looked up.
    switch: "ns",
    /// A packet is put into the receiver's ring, its bytes apart.
    copy: "ns",
    /// … for each byte, from a near cache.
    copy_byte: "ns/byte",
    /// As many times as long takes reading bytes that lie in another cache.
    far: "factor",
    /// As many times as long takes everything while the neighbour uses the same execution units.
    shared_unit: "factor",
    /// One empty ring is looked at by somebody who polls.
    poll_ring: "ns",
    /// A thread has a core for itself as long as this when others want it too.
    slice: "ns",
    /// vhost-net or netback passes a packet on, its bytes apart; once on each side.
    service: "ns",
    /// vhost-net, for each page of 4 KiB.
    vhost_page: "ns",
    /// netback, for each page of 4 KiB: granting access to it and taking it back.
    grant_page: "ns",
}

/// All figures of a file by name.
pub fn parse_table(text: &str) -> Result<BTreeMap<String, Input>, String> {
    serde_json::from_str(text).map_err(|e| format!("not a file of costs: {e}"))
}

fn take(table: &mut BTreeMap<String, Input>, name: &str, unit: &str) -> Result<f64, String> {
    let input = table.remove(name).ok_or_else(|| format!("{name} is missing"))?;
    if input.unit != unit {
        return Err(format!("{name} must be given in {unit}, not in {}", input.unit));
    }
    if !input.value.is_finite() || !(0.0..=1e9).contains(&input.value) || (unit == "factor" && input.value < 1.0) {
        return Err(format!("{name} cannot be {}", input.value));
    }
    if input.source.trim().is_empty() {
        return Err(format!("{name} needs a source"));
    }
    Ok(input.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_come_with_it_are_complete() {
        for text in [PAPER, TODAY] {
            Costs::parse(text).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (from, to, says) in [
            ("\"kick\"", "\"kik\"", "kick is missing"),
            ("\"ns/byte\"", "\"ns\"", "must be given in ns/byte"),
            ("{", "[", "not a file of costs"),
        ] {
            let error = Costs::parse(&TODAY.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let mut more = TODAY.trim_end().trim_end_matches('}').to_owned();
        more.push_str(r#", "luck": {"value": 1, "unit": "ns", "source": "none"} }"#);
        assert!(Costs::parse(&more).unwrap_err().contains("luck"));
    }
}
