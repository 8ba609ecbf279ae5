//! Which uplinks are on one network segment, found out by probes, and which of those has to be blocked. No I/O; time is
//! handed in.
//!
//! Each uplink that is up sends a probe every second, with a token of its own that only this process knows to be its: without
//! a tag and, if it has a list of VLANs, on these, [`PROBED_VLANS`] at a time in turns. Who hears another's is on its segment. Of several on one segment the one added first carries the frames and the others
//! stand by: until no probe has crossed for [`MISSES`] rounds, or that one has been away for [`GRACE`]. It has to be up
//! for [`STABLE`] before it takes over again, so that one which keeps dying does not take the network along each time.

use super::handover::{Giver, Moment, Taker};
use lasthop_policy::Vlans;
use lasthop_uplink_ipc::{PROBED_VLANS, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How often probes are sent.
pub const ROUND: Duration = Duration::from_secs(1);
/// So many rounds without a probe that crosses make two segments of one.
const MISSES: usize = 5;
/// Tokens of so many rounds are good.
const GOOD: usize = 3;
/// How long one may be away before another takes its place: longer than it takes to restart it.
const GRACE: Duration = Duration::from_secs(1);
/// How long one whose place was taken must be up to get it back.
const STABLE: Duration = Duration::from_secs(5);

/// An uplink's port number: they count up, so a smaller one was added before.
type Id = u32;

/// All uplinks of this lasthop.
#[derive(Debug)]
pub struct Segments {
    instance: Token,
    members: BTreeMap<Id, Member>,
    /// A probe crossed between two, the smaller number first, and for how many more rounds that counts.
    crossings: BTreeMap<(Id, Id), usize>,
    rounds: usize,
    /// The newest round first.
    tokens: VecDeque<Vec<(Token, Id)>>,
    round_at: Option<Instant>,
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct SegmentsState {
    instance: Token,
    members: Vec<(Id, bool, Moment, bool)>,
    crossings: Vec<(Id, Id, usize)>,
    rounds: usize,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    up: bool,
    since: Instant,
    /// It was away for long: others go first.
    replaced: bool,
}

impl Segments {
    /// None yet. `instance`: what all probes of this lasthop have in common.
    pub fn new(instance: Token) -> Self {
        let (members, crossings, tokens) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { instance, members, crossings, rounds: 0, tokens, round_at: None }
    }

    /// What another program of this process goes on with. Probes on their way are no good any more; those of the next round are.
    pub fn hand_over(&self, giver: &Giver) -> SegmentsState {
        let member = |(id, m): (&Id, &Member)| (*id, m.up, giver.moment(m.since), m.replaced);
        SegmentsState {
            instance: self.instance,
            members: self.members.iter().map(member).collect(),
            crossings: self.crossings.iter().map(|((a, b), left)| (*a, *b, *left)).collect(),
            rounds: self.rounds,
        }
    }

    /// Goes on with it.
    pub fn resumed(SegmentsState { instance, members, crossings, rounds }: SegmentsState, taker: &Taker) -> Self {
        let member = |(id, up, since, replaced)| (id, Member { up, since: taker.at(since), replaced });
        let members = members.into_iter().map(member).collect();
        let crossings = crossings.into_iter().map(|(a, b, left)| ((a, b), left)).collect();
        Self { instance, members, crossings, rounds, tokens: VecDeque::new(), round_at: None }
    }

    /// What all probes have in common.
    pub fn instance(&self) -> Token {
        self.instance
    }

    /// Which uplinks there are, and whether each is up. To be said whenever that may have changed, or [`Segments::deadline`]
    /// has come.
    pub fn set(&mut self, uplinks: impl Iterator<Item = (Id, bool)>, now: Instant) {
        let before = std::mem::take(&mut self.members);
        let mut came = false;
        for (id, up) in uplinks {
            let mut member = before.get(&id).copied().unwrap_or(Member { up: false, since: now, replaced: false });
            if member.up != up {
                came |= up;
                (member.up, member.since) = (up, now);
            }
            let so_long = now.saturating_duration_since(member.since);
            if !up && so_long >= GRACE {
                member.replaced = true;
            } else if up && so_long >= STABLE {
                member.replaced = false;
            }
            self.members.insert(id, member);
        }
        let there = |id: &Id| self.members.contains_key(id);
        self.crossings.retain(|(a, b), _| there(a) && there(b));
        if self.up().count() < 2 {
            self.round_at = None;
        } else if came || self.round_at.is_none() {
            // Who has just come should know at once.
            self.round_at = Some(now);
        }
    }

    fn up(&self) -> impl Iterator<Item = Id> + '_ {
        self.members.iter().filter(|(_, m)| m.up).map(|(id, _)| *id)
    }

    /// If probes are due: who is to send which. Nobody has anything to find out with fewer than two uplinks.
    pub fn probe(&mut self, now: Instant, mut token: impl FnMut() -> Token) -> Vec<(Id, Token)> {
        if self.round_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.round_at = Some(now + ROUND);
        let members = &self.members;
        let is_up = |id: &Id| members.get(id).is_some_and(|m| m.up);
        self.crossings.retain(|(a, b), left| {
            // The probes of one that is away cannot cross.
            let counts = is_up(a) && is_up(b);
            let over = counts && *left == 0;
            *left -= usize::from(counts && !over);
            !over
        });
        self.rounds = self.rounds.wrapping_add(1);
        let probes: Vec<_> = self.up().map(|id| (id, token())).collect();
        self.tokens.push_front(probes.iter().map(|(id, token)| (*token, *id)).collect());
        self.tokens.truncate(GOOD);
        probes
    }

    /// How many rounds there have been.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// A probe with this token came in at `by`. `turns`: in how many rounds its sender sends one that takes this way; 0: in none.
    pub fn heard(&mut self, by: Id, token: &Token, turns: impl Fn(Id) -> usize) {
        let sender = self.tokens.iter().flatten().find(|(t, _)| t == token).map(|(_, id)| *id);
        // Its own may come back from a network that reflects; that says nothing of others.
        if let Some(sender) = sender.filter(|sender| *sender != by)
            && self.members.contains_key(&by)
            && self.members.contains_key(&sender)
        {
            let rounds = MISSES * turns(sender);
            if rounds > 0 {
                let left = self.crossings.entry((by.min(sender), by.max(sender))).or_default();
                *left = rounds.max(*left);
            }
        }
    }

    /// Those to be blocked, and for whose sake. `overlap`: whether two carry a VLAN in common; those that do not are as if on
    /// segments of their own.
    pub fn blocked(&self, overlap: impl Fn(Id, Id) -> bool) -> BTreeMap<Id, Id> {
        let replaced =
            |wanted: bool| self.members.iter().filter(move |(_, m)| m.replaced == wanted && (m.up || !wanted));
        let mut carry: Vec<Id> = Vec::new();
        let mut blocked = BTreeMap::new();
        for (id, _) in replaced(false).chain(replaced(true)) {
            let crosses = |other: &Id| self.crossings.contains_key(&(*id.min(other), *id.max(other)));
            let same = |other: &Id| crosses(other) && overlap(*id, *other);
            match carry.iter().find(|other| same(other)) {
                Some(other) => drop(blocked.insert(*id, *other)),
                None => carry.push(*id),
            }
        }
        blocked
    }

    /// When [`Segments::set`] and [`Segments::probe`] are to be called, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let turns = self.members.values().filter_map(|m| match (m.up, m.replaced) {
            (false, false) => Some(m.since + GRACE),
            (true, true) => Some(m.since + STABLE),
            _ => None,
        });
        turns.chain(self.round_at).min()
    }
}

/// In how many rounds an uplink that carries these VLANs has sent a probe on each.
pub fn turns(vlans: &Vlans) -> usize {
    ids(vlans).count().div_ceil(PROBED_VLANS)
}

/// On which VLANs it sends one in this round.
pub fn turn(vlans: &Vlans, round: usize) -> Vec<u16> {
    let before = round.checked_rem(turns(vlans)).unwrap_or(0) * PROBED_VLANS;
    ids(vlans).skip(before).take(PROBED_VLANS).collect()
}

fn ids(vlans: &Vlans) -> impl Iterator<Item = u16> {
    (1..4095).filter(|id| vlans.contains(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uplinks 1, 2, … on segments, with a clock.
    struct Bench {
        segments: Segments,
        now: Instant,
        /// Which segment each uplink is on; `None`: away.
        at: BTreeMap<Id, Option<char>>,
        tokens: u8,
    }

    impl Bench {
        fn new(at: &[(Id, char)]) -> Self {
            let at = at.iter().map(|(id, segment)| (*id, Some(*segment))).collect();
            let mut bench = Self { segments: Segments::new([9; 16]), now: Instant::now(), at, tokens: 0 };
            bench.tell();
            bench
        }

        fn tell(&mut self) {
            self.segments.set(self.at.iter().map(|(id, at)| (*id, at.is_some())), self.now);
            let mut n = self.tokens;
            let probes = self.segments.probe(self.now, || {
                n += 1;
                [n; 16]
            });
            self.tokens = n;
            for (from, token) in probes {
                for (by, _) in self.at.iter().filter(|(_, at)| at.is_some() && **at == self.at[&from]) {
                    self.segments.heard(*by, &token, |_| 1);
                }
            }
        }

        fn put(&mut self, id: Id, segment: Option<char>) {
            self.at.insert(id, segment);
            self.tell();
        }

        /// Goes from deadline to deadline.
        fn pass(&mut self, ms: u64) {
            let end = self.now + Duration::from_millis(ms);
            while let Some(at) = self.segments.deadline().filter(|at| *at <= end) {
                assert!(at >= self.now, "a deadline that has passed");
                self.now = at;
                self.tell();
            }
            self.now = end;
            self.tell();
        }

        fn blocked(&self) -> Vec<(Id, Id)> {
            self.segments.blocked(|_, _| true).into_iter().collect()
        }
    }

    #[test]
    fn the_later_one_on_a_segment_is_blocked_at_once() {
        let bench = Bench::new(&[(1, 'a'), (2, 'b'), (5, 'a'), (7, 'b'), (8, 'a')]);
        assert_eq!(bench.blocked(), [(5, 1), (7, 2), (8, 1)]);
        let mut bench = Bench::new(&[(1, 'a')]);
        bench.pass(10_000);
        assert_eq!((bench.blocked(), bench.tokens), (Vec::new(), 0), "one uplink has nothing to ask");
        bench.put(2, Some('a'));
        assert_eq!(bench.blocked(), [(2, 1)]);
    }

    #[test]
    fn those_that_carry_different_vlans_do_not_block_each_other() {
        let bench = Bench::new(&[(1, 'a'), (2, 'a'), (3, 'a'), (4, 'a')]);
        // 1 and 2 have none in common, 3 has one of each, 4 has that of 2.
        let vlans = |id: Id| [&[10][..], &[20], &[10, 20], &[20]][id as usize - 1];
        let overlap = |a: Id, b: Id| vlans(a).iter().any(|vlan| vlans(b).contains(vlan));
        assert_eq!(bench.segments.blocked(overlap), [(3, 1), (4, 2)].into());
    }

    #[test]
    fn segments_that_are_joined_and_parted_again_are_seen() {
        let mut bench = Bench::new(&[(1, 'a'), (2, 'b')]);
        bench.pass(3000);
        assert_eq!(bench.blocked(), []);
        bench.at.insert(2, Some('a'));
        bench.pass(1000);
        assert_eq!(bench.blocked(), [(2, 1)]);
        bench.at.insert(2, Some('b'));
        bench.pass(4500);
        assert_eq!(bench.blocked(), [(2, 1)]);
        bench.pass(2000);
        assert_eq!(bench.blocked(), []);
    }

    #[test]
    fn the_second_takes_over_and_gives_back() {
        let mut bench = Bench::new(&[(1, 'a'), (2, 'a'), (3, 'a')]);
        assert_eq!(bench.blocked(), [(2, 1), (3, 1)]);
        // Restarted quickly: nothing changes.
        bench.put(1, None);
        bench.pass(500);
        assert_eq!(bench.blocked(), [(2, 1), (3, 1)]);
        bench.put(1, Some('a'));
        assert_eq!(bench.blocked(), [(2, 1), (3, 1)]);
        // Gone for long.
        bench.put(1, None);
        bench.pass(1000);
        assert_eq!(bench.blocked(), [(3, 2)]);
        // However long: when it comes back it is known where it was, and it waits.
        bench.pass(60_000);
        bench.put(1, Some('a'));
        assert_eq!(bench.blocked(), [(1, 2), (3, 2)]);
        bench.pass(2000);
        bench.put(1, None);
        bench.pass(2000);
        bench.put(1, Some('a'));
        bench.pass(4900);
        assert_eq!(bench.blocked(), [(1, 2), (3, 2)]);
        bench.pass(100);
        assert_eq!(bench.blocked(), [(2, 1), (3, 1)]);
        // Removed.
        bench.at.remove(&1);
        bench.tell();
        assert_eq!(bench.blocked(), [(3, 2)]);
    }

    #[test]
    fn only_tokens_of_the_last_rounds_count() {
        let mut bench = Bench::new(&[(1, 'a'), (2, 'b')]);
        bench.segments.heard(2, &[77; 16], |_| 1);
        assert_eq!(bench.blocked(), [], "made up");
        bench.segments.heard(1, &[1; 16], |_| 1);
        assert_eq!(bench.blocked(), [], "its own");
        bench.segments.heard(3, &[1; 16], |_| 1);
        assert_eq!(bench.blocked(), [], "no uplink");
        // Uplink 1's first probe, carried over to segment b: in time, and too late.
        bench.pass(2000);
        bench.segments.heard(2, &[1; 16], |_| 1);
        assert_eq!(bench.blocked(), [(2, 1)]);
        bench.pass(7000);
        assert_eq!(bench.blocked(), []);
        bench.segments.heard(2, &[1; 16], |_| 1);
        assert_eq!(bench.blocked(), []);
    }

    #[test]
    fn every_vlan_has_its_turn() {
        for (list, rounds) in [("untagged", 0), ("untagged:7", 1), ("1-32", 1), ("1-33", 2), ("1-4094", 128)] {
            let vlans: Vlans = list.parse().unwrap();
            assert_eq!(turns(&vlans), rounds, "{list}");
            let mut probed: Vec<u16> = (5..5 + rounds).flat_map(|round| turn(&vlans, round)).collect();
            assert!(probed.len() <= rounds * PROBED_VLANS && turn(&vlans, 3).len() <= PROBED_VLANS);
            probed.sort_unstable();
            assert_eq!(probed, ids(&vlans).collect::<Vec<_>>(), "{list}");
        }
    }

    #[test]
    fn a_probe_that_takes_a_way_in_every_third_round_is_waited_for() {
        let mut bench = Bench::new(&[(1, 'a'), (2, 'b')]);
        bench.segments.heard(2, &[1; 16], |_| 0);
        assert_eq!(bench.blocked(), [], "on a VLAN that they do not share");
        bench.segments.heard(2, &[1; 16], |sender| if sender == 1 { 3 } else { 0 });
        bench.pass(15_000);
        assert_eq!(bench.blocked(), [(2, 1)]);
        // One that takes a quicker way does not shorten that.
        let newest = [bench.tokens; 16];
        bench.segments.heard(1, &newest, |_| 3);
        bench.segments.heard(1, &newest, |_| 1);
        bench.pass(15_000);
        assert_eq!(bench.blocked(), [(2, 1)]);
        bench.pass(1000);
        assert_eq!(bench.blocked(), []);
    }
}
