//! For whoever has a data plane carry a connection's packets without asking each time.

use crate::entry::{ASSURED, Birth, REPLIED, STATE, Words};
use crate::list::Connection;
use crate::nat::Nat;
use crate::packet::{Body, Packet, View};
use crate::process::Commit;
use crate::refusal::Refusal;
use crate::state::{ANSWERED, ProtoState, goes_on};
use crate::tcp::Tcp;
use crate::timeouts::Class;
use crate::tracker::{Tracker, ticks};
use crate::tuple::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP, asks};

/// Whether a packet with this tuple may be a connection's first: any but an ICMP message that answers another.
pub fn opens(tuple: &Tuple) -> bool {
    !tuple.is_icmp() || asks(tuple.is_v6(), (tuple.ports()[1] >> 8) as u8)
}

impl Tracker {
    /// Puts in a connection that was established before anybody here knew of it: somebody has answered, and nothing is checked by windows. False
    /// if there is one of this tuple already.
    pub fn adopt(&self, original: Tuple, commit: &Commit, now_ms: u64) -> Result<bool, Refusal> {
        self.adopt_translated(original, &Nat::None, commit, now_ms)
    }

    /// The same of one whose packets are translated; [`Nat::exactly`] says so of what they look like.
    pub fn adopt_translated(&self, original: Tuple, nat: &Nat, commit: &Commit, now_ms: u64) -> Result<bool, Refusal> {
        self.adopt_with(REPLIED | ASSURED, original, nat, commit, now_ms)
    }

    /// The same of one of which packets of one direction have been seen: its answers, if `answered`. TCP and SCTP have been established all the same.
    pub fn adopt_half(
        &self,
        original: Tuple,
        answered: bool,
        nat: &Nat,
        commit: &Commit,
        now_ms: u64,
    ) -> Result<bool, Refusal> {
        let status = match original.proto() {
            TCP | SCTP => REPLIED | ASSURED,
            _ if answered => REPLIED,
            _ => 0,
        };
        self.adopt_with(status, original, nat, commit, now_ms)
    }

    /// Packets of both directions of a connection have been seen that was adopted by half.
    pub fn complete(&self, tuple: &Tuple, now_ms: u64) {
        let Some(found) = self.find(tuple, self.secrets.hash(tuple), ticks(now_ms)) else { return };
        let status = match tuple.proto() {
            TCP | SCTP => return,
            UDP => REPLIED | ASSURED,
            _ => REPLIED,
        };
        let mut words = found.words;
        words[STATE] |= status;
        self.entries[found.at as usize].update(&found, &words);
    }

    fn adopt_with(
        &self,
        status: u64,
        original: Tuple,
        nat: &Nat,
        commit: &Commit,
        now_ms: u64,
    ) -> Result<bool, Refusal> {
        let now = ticks(now_ms);
        // SCTP picks up what it does not know as TCP does; its tags are learned.
        let mut words = match original.proto() {
            TCP => Tcp::adopted().pack(),
            SCTP => crate::state::sctp_established(),
            _ => {
                let mut words = [u64::from(now) << 32, 0, 0, 0, 0, 0, 0];
                words[ANSWERED] = u64::from(now);
                words
            }
        };
        words[STATE] |= status;
        let class = self.own_class(&original, &words);
        let birth = Birth {
            keys: [original; 2],
            words,
            deadline: self.deadline(commit.policy, [class; 2], now),
            mark: commit.mark.0 & commit.mark.1,
            label: commit.label.0 & commit.label.1,
            owner: commit.owner,
            policy: commit.policy,
        };
        Ok(self.insert(birth, self.secrets.hash(&original), nat, now)?.is_some())
    }

    /// What a packet was before a connection of this zone had it translated, if none has it as it is; of an ICMP error, what the packet was that it is about: for
    /// [`View::was`].
    pub fn before_translation(&self, view: &View<'_>, zone: u16, now_ms: u64) -> Option<Tuple> {
        let now = ticks(now_ms);
        let find = |tuple: &Tuple| self.find(tuple, self.secrets.hash(tuple), now);
        let packet = Packet::read(view, zone, self.config.icmp_ids).ok()?;
        if let Body::Error(inner) = packet.body {
            // That one is now as its sender sent it, and was as the receiver saw it.
            let found = find(&inner).filter(|_| inner.inverse().is_some_and(|answer| find(&answer).is_none()))?;
            return self.entries[found.at as usize].key(1 - found.dir).inverse();
        }
        let answer = packet.tuple.inverse().filter(|_| !matches!(packet.body, Body::Later))?;
        let found = find(&answer).filter(|_| find(&packet.tuple).is_none())?;
        Some(self.entries[found.at as usize].key(1 - found.dir))
    }

    /// A connection's packets have passed unseen, or will: it is not checked by sequence numbers any more, and a RST that ends it is believed. Its label
    /// gets these bits.
    pub fn relax(&self, tuple: &Tuple, label: u128, now_ms: u64) {
        let Some(found) = self.find(tuple, self.secrets.hash(tuple), ticks(now_ms)) else { return };
        if found.label & label != label {
            self.set_mark(&found, found.mark, found.label | label);
        }
        if tuple.proto() == TCP {
            let mut tcp = Tcp::unpack(&found.words);
            tcp.relax();
            let mut words = tcp.pack();
            words[STATE] |= found.words[STATE] & crate::entry::COMMON;
            self.entries[found.at as usize].update(&found, &words);
        }
    }

    /// A connection's packets have passed unseen, the last one at `used_ms`. Its time counts from then on; it does not end before `at_least_ms`
    /// where that packet was within its time.
    pub fn keep(&self, tuple: &Tuple, used_ms: u64, at_least_ms: u64, now_ms: u64) {
        let now = ticks(now_ms);
        let Some(found) = self.find(tuple, self.secrets.hash(tuple), now) else { return };
        let entry = &self.entries[found.at as usize];
        let mut words = found.words;
        if tuple.proto() == UDP && goes_on(&words, ticks(used_ms)) {
            words[STATE] |= ASSURED;
            // A packet's change goes before; the next use makes it a stream then.
            entry.update(&found, &words);
        }
        let class = self.own_class(&entry.key(0), &words);
        let due = self.deadline(found.policy, [class; 2], ticks(used_ms));
        if crate::entry::is_over(due, now) {
            return;
        }
        let later = |a: u32, b: u32| if (b.wrapping_sub(a) as i32) > 0 { b } else { a };
        entry.touch(found.life, later(later(due, ticks(at_least_ms)), found.life as u32));
    }

    /// The connection of which this is a tuple, even if its time is over, as long as nobody has taken it out.
    pub fn lives(&self, tuple: &Tuple) -> Option<Connection> {
        // Nobody's time is over a tick before its deadline's own.
        let hash = self.secrets.hash(tuple);
        let at = self.buckets.find(hash, |number| {
            let (at, dir) = crate::tracker::place(number);
            let entry = self.entries.get(at as usize)?;
            let deadline = entry.deadline()?;
            entry.read(at, dir, Some(tuple), deadline.wrapping_sub(1))
        })?;
        Some(self.connection(&at, at.life as u32))
    }

    fn own_class(&self, tuple: &Tuple, words: &Words) -> Class {
        match (ProtoState::of(tuple.proto(), words), tuple.proto()) {
            (ProtoState::Tcp(state), _) => Class::tcp(state),
            (ProtoState::Sctp(state), _) => Class::sctp(state),
            (_, UDP) if words[STATE] & ASSURED != 0 => Class::UdpStream,
            (_, UDP) => Class::Udp,
            (_, ICMP | ICMPV6) => Class::Icmp,
            _ => Class::Generic,
        }
    }
}
