//! Packets that meet no flow again and again, though Open vSwitch is told of each. Where flows are lost (another `lasthop run` has none), `ovs-vswitchd` 3.1 believes
//! those to be there that it has installed: it sends each of their packets on, and installs nothing. It looks for them in what it is told of all flows. There such a key is
//! told as a flow that has been idle since the host was started: Open vSwitch deletes it, and installs it anew with the next packet.
//!
//! It knows a flow by a number that it computes of the key's bytes, and does the same with a flow that is told without one.

use crate::requests::DP_IFINDEX;
use lasthop_ovs_abi::family::{self, command, flow};
use lasthop_ovs_abi::netlink::{Writer, flag};
use std::collections::HashMap;

/// Most keys that are watched.
const MOST: usize = 1024;
/// So often, and for so long in milliseconds, a key's packets meet no flow before it is told: longer than Open vSwitch takes to install one.
const TIMES: u32 = 3;
const AWHILE: u64 = 2000;
/// For how long it is not told again, in milliseconds: Open vSwitch looks at its flows each half of a second when it has time.
const AGAIN: u64 = 3000;
/// Keys that have missed less are forgotten so often, in milliseconds, when there is no room.
const FORGET: u64 = 1000;
/// About so many bytes are told at once.
const AT_ONCE: usize = 16 * 1024;

/// A key's packets.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    times: u32,
    first_ms: u64,
    last_ms: u64,
    /// When it was told.
    told_ms: Option<u64>,
}

impl Repeat {
    fn is_due(&self, now_ms: u64) -> bool {
        let is_free = self.told_ms.is_none_or(|told| now_ms >= told + AGAIN);
        self.times >= TIMES && self.last_ms >= self.first_ms + AWHILE && is_free
    }
}

/// By the bytes of their keys, as Open vSwitch is told these.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    keys: HashMap<Vec<u8>, Repeat>,
    forgot_ms: u64,
}

impl Repeats {
    /// A packet has met no flow.
    pub fn missed(&mut self, key: &[u8], now_ms: u64) {
        if let Some(repeat) = self.keys.get_mut(key) {
            (repeat.times, repeat.last_ms) = (repeat.times.saturating_add(1), now_ms);
            return;
        }
        if self.keys.len() >= MOST {
            if now_ms < self.forgot_ms + FORGET {
                return;
            }
            self.forgot_ms = now_ms;
            // Who makes up keys has each of them once.
            self.keys.retain(|_, repeat| repeat.times >= TIMES && now_ms < repeat.last_ms + AGAIN);
        }
        if self.keys.len() < MOST {
            self.keys.insert(key.to_vec(), Repeat { times: 1, first_ms: now_ms, last_ms: now_ms, told_ms: None });
        }
    }

    /// Open vSwitch installs a flow with this key.
    pub fn put(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    /// Tells, at the end of a dump, those that are due.
    pub fn write(&mut self, now_ms: u64, (sequence, pid): (u32, u32), to: &mut Writer) {
        self.keys.retain(|_, repeat| now_ms < repeat.last_ms + 2 * AGAIN);
        let until = to.len() + AT_ONCE;
        for (key, repeat) in self.keys.iter_mut().filter(|(_, repeat)| repeat.is_due(now_ms)) {
            if to.len() >= until {
                return;
            }
            repeat.told_ms = Some(now_ms);
            to.begin(family::FLOW.id, flag::MULTI, sequence, pid);
            to.ovs_header(command::NEW, family::FLOW.version, DP_IFINDEX);
            to.nest(flow::KEY, |to| to.raw(key));
            to.nest(flow::ACTIONS, |_| ());
            to.attribute(flow::STATS, &[0; 16]);
            // 0 says that it was never used: Open vSwitch takes that for new.
            to.attribute(flow::USED, &1u64.to_ne_bytes());
            to.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_ovs_abi::netlink::{OVS_HEADER, messages, table};

    /// The keys that are told.
    fn told(repeats: &mut Repeats, now_ms: u64) -> Vec<Vec<u8>> {
        let mut to = Writer::new();
        repeats.write(now_ms, (7, 9), &mut to);
        let bytes = to.into_bytes();
        let key = |message: lasthop_ovs_abi::netlink::Message<'_>| {
            let found = table::<{ flow::COUNT }>(&message.payload[OVS_HEADER..]).unwrap();
            assert!(found[usize::from(flow::UFID)].is_none() && found[usize::from(flow::ACTIONS)] == Some(&[]));
            found[usize::from(flow::KEY)].unwrap().to_vec()
        };
        messages(&bytes).map(key).collect()
    }

    fn key(n: u32) -> Vec<u8> {
        [8u16.to_ne_bytes(), 3u16.to_ne_bytes()].concat().into_iter().chain(n.to_ne_bytes()).collect()
    }

    #[test]
    fn what_misses_again_and_again_is_told_as_idle() {
        let mut repeats = Repeats::default();
        for at in [0, 1000, AWHILE] {
            assert!(told(&mut repeats, at).is_empty());
            repeats.missed(&key(1), at);
            repeats.missed(&key(2), 0);
        }
        repeats.missed(&key(3), AWHILE);
        assert_eq!(told(&mut repeats, AWHILE), [key(1)]);
        assert!(told(&mut repeats, AWHILE + 1).is_empty(), "once for a while");
        repeats.missed(&key(1), AWHILE + AGAIN);
        assert_eq!(told(&mut repeats, AWHILE + AGAIN), [key(1)]);
        repeats.put(&key(1));
        assert!(told(&mut repeats, AWHILE + 2 * AGAIN).is_empty());
    }

    #[test]
    fn made_up_keys_take_nobodys_place_for_long() {
        let mut repeats = Repeats::default();
        let mut told_at = None;
        for ms in 0..20_000u64 {
            repeats.missed(&key(1000 + ms as u32), ms);
            if ms % 20 == 0 {
                repeats.missed(&key(1), ms);
            }
            if ms % 500 == 0 && told(&mut repeats, ms).contains(&key(1)) {
                told_at = told_at.or(Some(ms));
            }
            assert!(repeats.keys.len() <= MOST);
        }
        assert!(told_at.is_some_and(|ms| ms < 10_000), "{told_at:?}");
    }
}
