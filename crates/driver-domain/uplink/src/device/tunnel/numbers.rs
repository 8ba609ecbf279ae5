//! Numbers of what comes in, each for one tunnel's metadata, and how many packets without one may go to `lasthop-ovs`.
//!
//! Anybody who may send to the port can make up metadata. So there is a limit to the packets a second that go the long way for want of a
//! number that is known there, with another one for peers that are known; and a number that is in use is not taken away from it before
//! all others have been looked at.

use lasthop_tunnel::Tunnel;
use std::collections::HashMap;
use std::time::Instant;

/// Most numbers.
const MOST: u16 = 16_384;
/// Packets a second without a number that is known: of peers with one that is, and of all others; and of how many seconds may come at once.
const FROM_PEERS: f64 = 4000.0;
const FROM_STRANGERS: f64 = 500.0;

/// A budget that fills up again.
#[derive(Debug)]
struct Budget {
    rate: f64,
    left: f64,
    at: Instant,
}

impl Budget {
    fn new(rate: f64, now: Instant) -> Self {
        Self { rate, left: rate, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.left = (self.left + now.saturating_duration_since(self.at).as_secs_f64() * self.rate).min(self.rate);
        self.at = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

#[derive(Debug)]
struct Entry {
    tunnel: Tunnel,
    /// Since the hand has passed.
    used: bool,
    /// On the other side.
    known: bool,
}

/// How a packet goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// With this number in front.
    Known(u16),
    /// As a message that says what this number means.
    New(u16),
    /// Not at all: too many of its kind come.
    TooMany,
}

/// All of them. Numbers begin at 1.
#[derive(Debug)]
pub struct Numbers {
    entries: Vec<Entry>,
    by_tunnel: HashMap<Tunnel, u16>,
    /// Addresses of other ends, with how many known numbers each has.
    peers: HashMap<[u8; 16], u32>,
    hand: usize,
    budgets: [Budget; 2],
}

impl Numbers {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        let budgets = [FROM_PEERS, FROM_STRANGERS].map(|rate| Budget::new(rate, now));
        Self { entries: Vec::new(), by_tunnel: HashMap::new(), peers: HashMap::new(), hand: 0, budgets }
    }

    /// Of a packet that comes now.
    pub fn of(&mut self, tunnel: &Tunnel, now: Instant) -> Number {
        let found = self.by_tunnel.get(tunnel).copied();
        if let Some((number, entry)) = found.and_then(|number| Some((number, self.entry(number)?))) {
            entry.used = true;
            if entry.known {
                return Number::Known(number);
            }
        }
        let is_peer = self.peers.contains_key(&tunnel.remote);
        let [peers, strangers] = &mut self.budgets;
        if !(if is_peer { peers } else { strangers }).take(now) {
            return Number::TooMany;
        }
        Number::New(found.unwrap_or_else(|| self.add(*tunnel)))
    }

    fn entry(&mut self, number: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(number).checked_sub(1)?)
    }

    fn add(&mut self, tunnel: Tunnel) -> u16 {
        let entry = Entry { tunnel, used: true, known: false };
        if self.entries.len() < usize::from(MOST) {
            self.entries.push(entry);
            let number = self.entries.len() as u16;
            self.by_tunnel.insert(tunnel, number);
            return number;
        }
        // At the second look at the latest none is in use.
        let at = loop {
            self.hand = (self.hand + 1) % self.entries.len();
            let in_use = self.entries.get_mut(self.hand).is_some_and(|entry| std::mem::take(&mut entry.used));
            if !in_use {
                break self.hand;
            }
        };
        let number = at as u16 + 1;
        self.forget(number);
        if let Some(place) = self.entries.get_mut(at) {
            self.by_tunnel.remove(&place.tunnel);
            *place = entry;
        }
        self.by_tunnel.insert(tunnel, number);
        number
    }

    /// The other side knows that this number means this.
    pub fn known(&mut self, number: u16, meaning: &Tunnel) {
        let is_answer = |entry: &&mut Entry| !entry.known && entry.tunnel == *meaning;
        let Some(entry) = self.entry(number).filter(is_answer) else { return };
        entry.known = true;
        let remote = entry.tunnel.remote;
        *self.peers.entry(remote).or_default() += 1;
    }

    /// The other side does not, or not any more.
    pub fn forget(&mut self, number: u16) {
        let Some(entry) = self.entry(number).filter(|entry| entry.known) else { return };
        entry.known = false;
        let remote = entry.tunnel.remote;
        if let Some(count) = self.peers.get_mut(&remote) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&remote);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tunnel(remote: u8, id: u32) -> Tunnel {
        Tunnel { id: u64::from(id).to_be_bytes(), remote: [remote; 16], ..Tunnel::default() }
    }

    #[test]
    fn a_number_is_used_alone_once_the_other_side_knows_it() {
        let now = Instant::now();
        let mut numbers = Numbers::new(now);
        assert_eq!(numbers.of(&tunnel(1, 5), now), Number::New(1));
        assert_eq!(numbers.of(&tunnel(1, 6), now), Number::New(2));
        numbers.known(1, &tunnel(1, 5));
        assert_eq!(numbers.of(&tunnel(1, 5), now), Number::Known(1));
        assert_eq!(numbers.of(&tunnel(1, 6), now), Number::New(2));
        numbers.forget(1);
        assert_eq!(numbers.of(&tunnel(1, 5), now), Number::New(1));
        numbers.known(0, &tunnel(1, 5));
        numbers.known(99, &tunnel(1, 5));
    }

    /// Strangers' packets take numbers whose meaning nobody has confirmed yet. The answer to what a number meant before says nothing of what
    /// it means now: packets of one network would come with the metadata of another.
    #[test]
    fn an_answer_is_to_one_meaning() {
        let mut now = Instant::now();
        let mut numbers = Numbers::new(now);
        assert_eq!(numbers.of(&tunnel(1, 5), now), Number::New(1));
        let taken_by = (100..).find(|id| {
            now += Duration::from_millis(10);
            numbers.of(&tunnel(9, *id), now) == Number::New(1)
        });
        let other = tunnel(9, taken_by.expect("there are fewer numbers than networks"));
        numbers.known(1, &tunnel(1, 5));
        assert_eq!(numbers.of(&other, now), Number::New(1), "it is still to be told");
        numbers.known(1, &other);
        assert_eq!(numbers.of(&other, now), Number::Known(1));
    }

    #[test]
    fn a_stranger_with_many_networks_keeps_nobody_from_a_number() {
        let mut now = Instant::now();
        let mut numbers = Numbers::new(now);
        assert_eq!(numbers.of(&tunnel(1, 0), now), Number::New(1));
        numbers.known(1, &tunnel(1, 0));
        // Half a minute of a million networks each second: those that go on are few, and none is known on the other side.
        let mut new = 0;
        for second in 0..60 {
            for id in 0..10_000 {
                new += u32::from(matches!(numbers.of(&tunnel(9, second * 1_000_000 + id), now), Number::New(_)));
            }
            assert_eq!(numbers.of(&tunnel(1, 0), now), Number::Known(1), "it is in use");
            assert!(
                matches!(numbers.of(&tunnel(1, second + 1), now), Number::New(_)),
                "a peer has a budget of its own"
            );
            now += Duration::from_secs(1);
        }
        assert!((FROM_STRANGERS as u32..=61 * FROM_STRANGERS as u32).contains(&new), "{new}");
        assert!(numbers.entries.len() <= usize::from(MOST) && numbers.by_tunnel.len() == numbers.entries.len());
        assert_eq!(numbers.peers.len(), 1);
    }
}
