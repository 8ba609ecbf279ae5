//! The table: connections by both of their tuples, put in and taken out.

use crate::buckets::Buckets;
use crate::entry::{Birth, DST_NAT, Entry, Found, SRC_NAT, STATE, is_over};
use crate::fragment::Fragments;
use crate::nat::{Nat, TRIES, translated};
use crate::refusal::{Counts, Refusal};
use crate::shard::Shard;
use crate::state::is_expendable;
use crate::tcp::TcpRules;
use crate::timeouts::{Class, Quota, Timeouts};
use crate::tuple::{Factors, Tuple};
use lasthop_lock::Lock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed, fence};
use zerocopy::FromZeros;

/// What a tracker is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most connections at a time, up to 2^24. Memory is taken as they come: 192 bytes for each; and 16 bytes for each that there may be, by and by.
    pub capacity: usize,
    /// How strict TCP is checked.
    pub tcp: TcpRules,
    /// Echoes with different identifiers are different connections. Without it they count as one, so that a flow key, which has no identifier, names it.
    pub icmp_ids: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { capacity: 1 << 18, tcp: TcpRules::default(), icmp_ids: true }
    }
}

/// Connections since the beginning, and now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// There are.
    pub connections: usize,
    /// There may be.
    pub capacity: usize,
    /// Were committed.
    pub created: u64,
    /// Ended because their time was over.
    pub expired: u64,
    /// Ended to make room for others.
    pub evicted: u64,
}

/// All connections of a switch.
#[derive(Debug)]
pub struct Tracker {
    pub(crate) secrets: Factors,
    pub(crate) buckets: Buckets,
    pub(crate) entries: Box<[Entry]>,
    pub(crate) shards: Box<[Lock<Shard>]>,
    places: u32,
    pub(crate) fragments: Fragments,
    pub(crate) timeouts: Timeouts,
    pub(crate) zones: Quota,
    pub(crate) owners: Quota,
    pub(crate) refusals: Counts,
    pub(crate) config: Config,
    live: AtomicUsize,
    created: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    hand: AtomicU32,
    ended: Lock<Vec<Ended>>,
}

/// A connection that has ended, for whatever reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The tuple of its first packet.
    pub original: Tuple,
    /// The tuple of its answers.
    pub reply: Tuple,
    /// Its label.
    pub label: u128,
}

/// Shards of a large table: threads that put in or take out at the same time seldom meet.
const SHARDS: usize = 64;
/// What a new connection does of the wheel's work.
const SHARE: usize = 4;
/// How many others are looked at when one is to make room.
const LOOKS: u32 = 16;
/// One part in so many of a table an owner gets even of a full one, at the cost of those with more than twice as many.
const OWED: usize = 64;
const ORIGINAL: usize = 0;
const REPLY: usize = 1;

impl Tracker {
    /// An empty one; `None` if there is no address space for so many connections.
    pub fn new(config: Config) -> Option<Self> {
        let capacity = config.capacity.clamp(1, 1 << 24);
        let shards = (capacity / 1024).clamp(1, SHARDS).next_power_of_two();
        // More than its share by six times what chance makes it differ, or more: the table is full before a shard is.
        let places = capacity.div_ceil(shards) + capacity / shards / 8 + 64;
        let shard = |n: usize| {
            let shard = Lock::default();
            *shard.lock() = Shard::new((n * places) as u32, places as u32);
            shard
        };
        Some(Self {
            secrets: Factors::default(),
            buckets: Buckets::new(2 * shards * places + 2)?,
            entries: <[Entry]>::new_box_zeroed_with_elems(shards * places).ok()?,
            shards: (0..shards).map(shard).collect(),
            places: places as u32,
            fragments: Fragments::default(),
            timeouts: Timeouts::default(),
            zones: Quota::new(Refusal::ZoneLimit),
            owners: Quota::new(Refusal::OwnerLimit),
            refusals: Counts::default(),
            config: Config { capacity, ..config },
            live: AtomicUsize::new(0),
            created: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            hand: AtomicU32::new(0),
            ended: Lock::default(),
        })
    }

    /// Limits a zone's connections; 0 is no limit. Those that are there stay.
    pub fn limit_zone(&self, zone: u16, limit: u32) {
        self.zones.set(zone, limit);
    }

    /// Limits the connections of an owner, which [`crate::Commit::owner`] names; 0 is no limit.
    pub fn limit_owner(&self, owner: u16, limit: u32) {
        self.owners.set(owner, limit);
    }

    /// How many connections an owner has.
    pub fn owned(&self, owner: u16) -> u32 {
        self.owners.used(owner)
    }

    /// Sets a time-out, in seconds, of a policy below [`crate::POLICIES`]; 0 is the default policy. Each packet counts from itself on. `None` if there is no
    /// such policy.
    pub fn set_timeout(&self, policy: usize, class: Class, seconds: u32) -> Option<()> {
        self.timeouts.set(policy, class, seconds)
    }

    /// How often something was refused for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refusals.get(refusal)
    }

    /// What there is and was.
    pub fn totals(&self) -> Totals {
        Totals {
            connections: self.live.load(Relaxed),
            capacity: self.config.capacity,
            created: self.created.load(Relaxed),
            expired: self.expired.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }

    /// Takes connections out whose time is over: at most so many looks, of about 300 ns each where connections end. True if there was more to do. Whoever keeps the table calls
    /// it a few times a second; what new connections do of it themselves is enough only while there are some.
    pub fn expire(&self, now_ms: u64, budget: usize) -> bool {
        let (now, mut left) = (ticks(now_ms), budget);
        for _ in 0..self.shards.len() {
            // Relaxed: anybody may go on anywhere.
            let n = self.hand.load(Relaxed) as usize % self.shards.len();
            self.turn(&mut self.shards[n].lock(), now, &mut left);
            if left == 0 {
                return true;
            }
            self.hand.store(n as u32 + 1, Relaxed);
        }
        false
    }

    /// What the first packet of a new connection would look like after its translation, if nobody else has that. Nothing changes.
    pub fn plan(&self, nat: &Nat, tuple: &Tuple) -> Option<Tuple> {
        translated(nat, tuple, 0, &self.secrets, self.config.icmp_ids)
    }

    /// What the first packet of a new connection would look like after its translation, as far as nobody else has that now; `None`: no address and port is
    /// free. Nothing changes.
    pub fn foresee(&self, nat: &Nat, tuple: &Tuple, now_ms: u64) -> Option<Tuple> {
        let now = ticks(now_ms);
        let tries = (0..TRIES).map_while(|n| translated(nat, tuple, n, &self.secrets, self.config.icmp_ids));
        tries.take_while(|sent| sent.inverse().is_some()).find(|sent| {
            let reply = sent.inverse().unwrap_or_default();
            (reply != *tuple || sent == tuple) && self.find(&reply, self.secrets.hash(&reply), now).is_none()
        })
    }

    fn turn(&self, shard: &mut Shard, now: u32, budget: &mut usize) {
        shard.turn(&self.entries, now, budget, |shard, at| {
            self.expired.fetch_add(1, Relaxed);
            self.bury(shard, at);
        });
    }

    /// The connections that have ended since this was last asked. Whoever keeps the table asks after everything that may end some: the log is
    /// as long as there were connections meanwhile.
    pub fn ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// The connection of a tuple.
    #[inline(always)]
    pub(crate) fn find(&self, tuple: &Tuple, hash: u64, now: u32) -> Option<Found> {
        self.buckets.find(hash, |number| {
            let (at, dir) = place(number);
            self.entries.get(at as usize)?.read(at, dir, Some(tuple), now)
        })
    }

    pub(crate) fn shard(&self, at: u32) -> &Lock<Shard> {
        &self.shards[(at / self.places) as usize]
    }

    /// Ends a connection, if it is the one that was found.
    pub(crate) fn end(&self, at: u32, life: u64) {
        let mut shard = self.shard(at).lock();
        if self.entries[at as usize].is(life) {
            self.bury(&mut shard, at);
        }
    }

    /// Takes a connection out that lives here.
    fn bury(&self, shard: &mut Shard, at: u32) {
        let entry = &self.entries[at as usize];
        for dir in [ORIGINAL, REPLY] {
            self.buckets.remove(self.secrets.hash(&entry.key(dir)), number(at, dir));
        }
        shard.unfile(&self.entries, at);
        self.ended.lock().push(Ended { original: entry.key(ORIGINAL), reply: entry.key(REPLY), label: entry.label() });
        self.release(shard, at);
    }

    /// Frees the place of a connection that nobody finds any more.
    fn release(&self, shard: &mut Shard, at: u32) {
        let entry = &self.entries[at as usize];
        entry.kill();
        self.live.fetch_sub(1, Relaxed);
        self.zones.give(entry.key(ORIGINAL).zone());
        self.owners.give(entry.owner());
        shard.give(&self.entries, at);
    }

    /// Puts a connection in, its answers' tuple as its translation makes it; that is what comes back. `None` if there is one of this tuple already.
    pub(crate) fn insert(&self, mut birth: Birth, hash: u64, nat: &Nat, now: u32) -> Result<Option<Birth>, Refusal> {
        let [original, _] = birth.keys;
        let mut shard = self.shards[(hash >> 32) as usize % self.shards.len()].lock();
        self.turn(&mut shard, now, &mut { SHARE });
        if self.find(&original, hash, now).is_some() {
            return Ok(None);
        }
        self.zones.take(original.zone())?;
        if let Err(refusal) = self.owners.take(birth.owner) {
            self.zones.give(original.zone());
            return Err(refusal);
        }
        let is_full = self.live.fetch_add(1, Relaxed) >= self.config.capacity;
        let room = if is_full { None } else { shard.take(&self.entries) };
        let room = room.or_else(|| self.evict(&mut shard, birth.owner, now).and_then(|()| shard.take(&self.entries)));
        let Some(at) = room else {
            self.live.fetch_sub(1, Relaxed);
            self.zones.give(original.zone());
            self.owners.give(birth.owner);
            return Err(Refusal::Full);
        };
        let published = self.publish(at, &mut birth, hash, nat, now);
        if published.is_err() {
            self.release(&mut shard, at);
            return published.map(|()| None);
        }
        shard.file(&self.entries, at, birth.deadline);
        self.created.fetch_add(1, Relaxed);
        Ok(Some(birth))
    }

    /// Makes room for one more of this owner's in a shard: one gives way that is not assured ([`crate::Connection::assured`]) or that is closing. For an owner that has few it
    /// may else be one of who has most.
    fn evict(&self, shard: &mut Shard, owner: u16, now: u32) -> Option<()> {
        let own = self.owners.used(owner);
        let is_owed = own as usize <= self.config.capacity / OWED;
        let (mut found, mut most) = (None, if is_owed { own.saturating_mul(2) } else { u32::MAX });
        for at in shard.next(LOOKS) {
            let entry = &self.entries[at as usize];
            let live = entry.read(at, ORIGINAL, None, now);
            let expendable = |found: Found| is_expendable(entry.key(ORIGINAL).proto(), &found.words);
            if live.map_or_else(|| entry.deadline().is_some(), expendable) {
                found = Some(at);
                break;
            }
            let owned = live.map_or(0, |live| self.owners.used(live.owner));
            if owned > most {
                (found, most) = (Some(at), owned);
            }
        }
        let found = found?;
        self.evicted.fetch_add(1, Relaxed);
        self.bury(shard, found);
        Some(())
    }

    /// Has a new connection found by both of its tuples, the answers' one first: nobody is to be translated to what may have to be taken back.
    fn publish(&self, at: u32, birth: &mut Birth, hash: u64, nat: &Nat, now: u32) -> Result<(), Refusal> {
        let (entry, [original, _]) = (&self.entries[at as usize], birth.keys);
        entry.put(birth);
        for n in 0..TRIES {
            let sent = translated(nat, &original, n, &self.secrets, self.config.icmp_ids);
            let Some((sent, reply)) = sent.and_then(|sent| Some((sent, sent.inverse()?))) else { break };
            if reply == original && sent != original {
                // Nobody could tell its answers from its own packets.
                continue;
            }
            birth.keys[REPLY] = reply;
            birth.words[STATE] &= !(SRC_NAT | DST_NAT);
            birth.words[STATE] |= match nat {
                _ if sent == original => 0,
                Nat::Source(_) => SRC_NAT,
                Nat::Both(..) => both(&original, &sent),
                _ => DST_NAT,
            };
            entry.set_reply(&reply, birth.words[STATE]);
            let reply_hash = self.secrets.hash(&reply);
            if self.claim(at, REPLY, &reply, reply_hash, now)? {
                if self.claim(at, ORIGINAL, &original, hash, now)? {
                    return Ok(());
                }
                self.buckets.remove(reply_hash, number(at, REPLY));
                return Err(Refusal::Clash);
            }
        }
        Err(if matches!(nat, Nat::Source(_) | Nat::Destination(_) | Nat::Both(..)) {
            Refusal::NoTranslation
        } else {
            Refusal::Clash
        })
    }

    /// Puts a place in the table under a tuple, unless another connection has it.
    fn claim(&self, at: u32, dir: usize, tuple: &Tuple, hash: u64, now: u32) -> Result<bool, Refusal> {
        let is_taken = || {
            self.buckets.find(hash, |number| {
                let (other, dir) = place(number);
                let entry = self.entries.get(other as usize).filter(|_| other != at)?;
                entry.read(other, dir, Some(tuple), now)
            })
        };
        if is_taken().is_some() {
            return Ok(false);
        }
        if !self.buckets.insert(hash, number(at, dir)) {
            return Err(Refusal::Full);
        }
        // Of two that do this at once, one at least finds the other.
        fence(Ordering::SeqCst);
        if is_taken().is_none() {
            return Ok(true);
        }
        self.buckets.remove(hash, number(at, dir));
        Ok(false)
    }

    /// When a connection's time is over that was seen now.
    #[inline]
    pub(crate) fn deadline(&self, policy: u8, classes: [Class; 2], now: u32) -> u32 {
        let [a, b] = classes.map(|class| self.timeouts.get(policy, class));
        // A quarter of what ticks count to, at most: four years. Beyond half of it a deadline would be one that is over.
        let seconds = a.min(b).min(1 << 27);
        now.wrapping_add(seconds * crate::state::SECOND)
    }

    /// Seconds that are left until a deadline.
    pub(crate) fn left(deadline: u32, now: u32) -> u32 {
        if is_over(deadline, now) { 0 } else { deadline.wrapping_sub(now) / crate::state::SECOND }
    }
}

/// Which ends of a connection are translated.
fn both(original: &Tuple, sent: &Tuple) -> u64 {
    let ([s0, d0], [s1, d1]) = (original.ports(), sent.ports());
    let bit = |changed, bit| if changed { bit } else { 0 };
    bit((original.src(), s0) != (sent.src(), s1), SRC_NAT) | bit((original.dst(), d0) != (sent.dst(), d1), DST_NAT)
}

/// Milliseconds to ticks of 125.
#[inline]
pub(crate) fn ticks(ms: u64) -> u32 {
    (ms / 125) as u32
}

/// What stands in a bucket for one direction of a place.
fn number(at: u32, dir: usize) -> u32 {
    2 * at + dir as u32 + 1
}

pub(crate) fn place(number: u32) -> (u32, usize) {
    ((number - 1) / 2, (number as usize - 1) % 2)
}
