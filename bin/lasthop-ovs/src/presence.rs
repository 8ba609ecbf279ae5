//! Whether Open vSwitch is there: which processes take the packets that meet no flow.

use lasthop_control::{OpenVswitch, named};
use lasthop_management_ipc::OVS_HELLO_VERSION;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of it, and what of it has been said in the log.
#[derive(Debug)]
pub(crate) struct Presence {
    /// Processes that take packets, or did and are still connected. All that are in other PID namespaces have the number 0.
    processes: BTreeSet<u32>,
    /// Since when nobody takes them.
    away_since_ms: Option<u64>,
    has_come: bool,
    /// That nobody takes them has been said.
    said: bool,
    /// Processes that come from a datapath that is gone.
    left_over: BTreeSet<u32>,
    /// Processes with the library of another version, and when they came last, in milliseconds.
    outdated: BTreeMap<u32, u64>,
}

/// For so long after it came last one with another library is shown; it comes several times a second. In milliseconds.
const SHOWN_MS: u64 = 60_000;
/// So many of them are known at most.
const MAX_OUTDATED: usize = 16;

impl Presence {
    /// Nobody has come yet.
    pub fn new(now_ms: u64) -> Self {
        let (processes, left_over, outdated) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Self { processes, away_since_ms: Some(now_ms), has_come: false, said: true, left_over, outdated }
    }

    /// A process was refused, because its library speaks another version.
    pub fn is_outdated(&mut self, process: u32, version: u32, now_ms: u64) {
        self.outdated.retain(|_, came| now_ms.saturating_sub(*came) < SHOWN_MS);
        if self.outdated.len() >= MAX_OUTDATED && !self.outdated.contains_key(&process) {
            return;
        }
        if self.outdated.insert(process, now_ms).is_none() {
            tracing::warn!(
                "Open vSwitch ({}) has a liblasthop_ovs.so of another version (it says hello {version}, this lasthop {OVS_HELLO_VERSION}), and is \
                 refused: nothing passes; install the library of this lasthop, and restart that process: `systemctl restart openvswitch-switch`, or end it and \
                 start it again by `lasthop ovs exec`",
                named([&process])
            );
        }
    }

    /// A process that was connected to a lasthop-ovs before comes while there is no datapath: that of an earlier `lasthop run` is gone, and the process
    /// is not told so by anything.
    pub fn is_left_over(&mut self, process: u32) {
        if self.left_over.insert(process) {
            tracing::warn!(
                "Open vSwitch ({}) goes on with the datapath of a `lasthop run` before, which is gone: nothing passes; restart it: \
                 `systemctl restart openvswitch-switch`, or end that process and start it again by `lasthop ovs exec`",
                named([&process])
            );
        }
    }

    /// What there is now: processes that packets go to, all that are connected, and whether there is a datapath.
    pub fn update(&mut self, takers: &BTreeSet<u32>, connected: &BTreeSet<u32>, is_made: bool, now_ms: u64) {
        self.left_over.retain(|process| connected.contains(process) && !(is_made && takers.contains(process)));
        let gone: BTreeSet<u32> = self.processes.difference(connected).copied().collect();
        let new: BTreeSet<u32> = takers.difference(&self.processes).copied().collect();
        self.processes.retain(|process| !gone.contains(process));
        let others = named(&self.processes);
        let beside = !self.processes.is_empty();
        self.processes.extend(&new);
        if !new.is_empty() {
            self.has_come = true;
            let new = named(&new);
            tracing::info!("Open vSwitch ({new}) takes packets that meet no flow");
            if beside {
                tracing::warn!(
                    "Open vSwitch ({new}) beside another ({others}): both change one datapath; end one of them"
                );
            }
        }
        if !takers.is_empty() {
            (self.away_since_ms, self.said) = (None, false);
            return;
        }
        self.away_since_ms.get_or_insert(now_ms);
        if gone.is_empty() || std::mem::replace(&mut self.said, true) {
            return;
        }
        if self.processes.is_empty() {
            tracing::warn!(
                "Open vSwitch ({}) is gone: known flows go on, packets that meet none are dropped until it is back",
                named(&gone)
            );
        } else {
            tracing::warn!(
                "Open vSwitch ({}) is gone, and had taken the datapath over from {}, which goes on without it: packets that meet no flow are dropped until that one is \
                 restarted",
                named(&gone),
                named(&self.processes)
            );
        }
    }

    /// As the API shows it.
    pub fn shown(&self, lost: u64, now_ms: u64) -> OpenVswitch {
        let of_now = self.outdated.iter().filter(|(_, came)| now_ms.saturating_sub(**came) < SHOWN_MS);
        OpenVswitch {
            processes: self.processes.iter().copied().collect(),
            away_ms: self.away_since_ms.map(|since| now_ms.saturating_sub(since)),
            has_come: self.has_come,
            left_over: self.left_over.iter().copied().collect(),
            outdated: of_now.map(|(process, _)| *process).collect(),
            lost,
            ..OpenVswitch::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pids: &[u32]) -> BTreeSet<u32> {
        pids.iter().copied().collect()
    }

    /// Of a container's lasthop the host's Open vSwitch has no number.
    #[test]
    fn one_that_is_not_seen_from_here_is_there() {
        let mut presence = Presence::new(100);
        presence.update(&set(&[0]), &set(&[0]), true, 200);
        let shown = presence.shown(0, 1100);
        assert_eq!((shown.processes, shown.away_ms, shown.has_come), (vec![0], None, true));
        presence.update(&set(&[]), &set(&[]), true, 1200);
        assert_eq!(presence.shown(0, 1300).away_ms, Some(100));
    }

    #[test]
    fn one_comes_goes_and_is_not_alone() {
        let mut presence = Presence::new(100);
        let shown = |presence: &Presence| presence.shown(3, 1100);
        assert_eq!(shown(&presence), OpenVswitch { away_ms: Some(1000), lost: 3, ..OpenVswitch::default() });
        // Somebody who only asks.
        presence.update(&set(&[]), &set(&[5]), true, 200);
        assert_eq!(shown(&presence).away_ms, Some(1000));
        presence.update(&set(&[7]), &set(&[5, 7]), true, 300);
        assert_eq!((shown(&presence).processes, shown(&presence).away_ms), (vec![7], None));
        // Another takes all, and the first is still there.
        presence.update(&set(&[9]), &set(&[7, 9]), true, 400);
        assert_eq!(shown(&presence).processes, [7, 9]);
        presence.update(&set(&[9]), &set(&[9]), true, 500);
        assert_eq!(shown(&presence).processes, [9]);
        // Another takes all and is ended: that the first is connected helps nobody.
        presence.update(&set(&[11]), &set(&[9, 11]), true, 510);
        presence.update(&set(&[]), &set(&[9]), true, 520);
        assert_eq!((shown(&presence).processes, shown(&presence).away_ms), (vec![9], Some(580)));
        presence.update(&set(&[9]), &set(&[9]), true, 530);
        assert_eq!(shown(&presence).away_ms, None, "it was restarted");
        presence.update(&set(&[]), &set(&[5]), true, 600);
        assert_eq!((shown(&presence).away_ms, shown(&presence).has_come), (Some(500), true));
    }

    #[test]
    fn those_with_another_library_are_shown_for_a_while_and_are_not_many() {
        let mut presence = Presence::new(0);
        (0..100).for_each(|n| presence.is_outdated(n, 2, 1000));
        assert_eq!(presence.shown(0, 1000).outdated.len(), MAX_OUTDATED);
        presence.is_outdated(3, 2, 1000 + SHOWN_MS - 1);
        assert_eq!(presence.shown(0, 1000 + SHOWN_MS).outdated, [3]);
        presence.is_outdated(200, 2, 1000 + 2 * SHOWN_MS);
        assert_eq!(presence.shown(0, 1000 + 2 * SHOWN_MS).outdated, [200]);
    }

    #[test]
    fn one_of_an_earlier_datapath_is_told_apart_until_it_is_gone_or_takes_packets() {
        let mut presence = Presence::new(0);
        presence.is_left_over(7);
        presence.update(&set(&[]), &set(&[7]), false, 1);
        assert_eq!(presence.shown(0, 1).left_over, [7]);
        presence.update(&set(&[9]), &set(&[7, 9]), true, 2);
        assert_eq!(presence.shown(0, 2).left_over, [7], "another has made a datapath");
        presence.update(&set(&[9]), &set(&[9]), true, 3);
        assert_eq!(presence.shown(0, 3).left_over, [0; 0]);
        presence.is_left_over(7);
        presence.update(&set(&[7]), &set(&[7]), true, 4);
        assert_eq!(presence.shown(0, 4).left_over, [0; 0], "it has made its own anew");
    }
}
