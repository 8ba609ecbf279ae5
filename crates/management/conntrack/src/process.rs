//! A packet's way through the table.
//!
//! Three tiers:
//!
//! 1. A packet of a connection that is known: hash, one or two lines of the table, three lines of the connection; what it changes is exchanged word by
//!    word. No lock, no allocation.
//! 2. A packet of none, without commit: the same in vain.
//! 3. A commit, an end, a new mark: with the lock of one shard.

use crate::entry::{Birth, DST_NAT, Found, REPLIED, SRC_NAT, STATE};
use crate::nat::Nat;
use crate::packet::{Body, Packet, View};
use crate::refusal::Refusal;
use crate::state::{self, Out};
use crate::tracker::{Tracker, ticks};
use crate::tuple::Tuple;
use lasthop_frame::FlowKey;

/// What a flow's action asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Action {
    /// The zone in which to look.
    pub zone: u16,
    /// The packet's connection is to be remembered.
    pub commit: Option<Commit>,
    /// Its addresses are to be translated.
    pub nat: Nat,
}

/// How a connection is remembered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commit {
    /// One that began in the other direction is forgotten.
    pub force: bool,
    /// Value and mask.
    pub mark: (u32, u32),
    /// Value and mask.
    pub label: (u128, u128),
    /// Timeout policy.
    pub policy: u8,
    /// Whose limit it counts towards: a number that the caller gives each port.
    pub owner: u16,
}

/// State bits with Open vSwitch's numbers (`OVS_CS_F_…`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtState(pub u8);

#[allow(missing_docs)]
impl CtState {
    pub const NEW: Self = Self(0x01);
    pub const ESTABLISHED: Self = Self(0x02);
    pub const RELATED: Self = Self(0x04);
    pub const REPLY: Self = Self(0x08);
    pub const INVALID: Self = Self(0x10);
    pub const TRACKED: Self = Self(0x20);
    pub const SRC_NAT: Self = Self(0x40);
    pub const DST_NAT: Self = Self(0x80);

    pub fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }
}

/// What a packet is to its connection, and what is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// State bits.
    pub state: CtState,
    /// The connection's mark; 0 without one.
    pub mark: u32,
    /// The connection's label; 0 without one.
    pub label: u128,
    /// The tuple of the connection's first packet, before any translation. Of an invalid packet: zeros.
    pub original: Tuple,
    /// The addresses and ports that the packet is to have (ICMP: the identifier).
    pub rewrite: Option<Tuple>,
    /// The addresses and ports that the packet is to have that an ICMP error speaks of.
    pub rewrite_inner: Option<Tuple>,
    /// Why the packet is invalid; or, if it is not, why its connection was not committed: then it must be dropped.
    pub refused: Option<Refusal>,
}

impl Verdict {
    fn of(state: CtState, original: Tuple) -> Self {
        let state = state.with(CtState::TRACKED);
        Self { state, mark: 0, label: 0, original, rewrite: None, rewrite_inner: None, refused: None }
    }

    /// The commit that was asked for failed: Open vSwitch drops such a packet.
    pub fn must_drop(&self) -> bool {
        self.refused.is_some() && !self.state.has(CtState::INVALID)
    }
}

/// How often a packet begins anew when others change its connection under it.
const TRIES: usize = 8;
const REPLY: usize = 1;

impl Tracker {
    /// Looks a packet up, moves its connection on, and commits it where that is asked for.
    pub fn process(&self, view: &View<'_>, action: &Action, now_ms: u64) -> Verdict {
        self.admit(view, action, ticks(now_ms)).unwrap_or_else(|refusal| {
            self.refusals.add(refusal);
            Verdict { refused: Some(refusal), ..Verdict::of(CtState::INVALID, Tuple::default()) }
        })
    }

    /// What a packet is to its connection, as [`Tracker::process`] would say with [`Nat::Existing`] and without a commit. Nothing changes, and nothing is counted.
    pub fn peek(&self, view: &View<'_>, zone: u16, now_ms: u64) -> Verdict {
        self.look(view, zone, ticks(now_ms)).unwrap_or_else(|refusal| Verdict {
            refused: Some(refusal),
            ..Verdict::of(CtState::INVALID, Tuple::default())
        })
    }

    /// Counts a packet that was refused after a look.
    pub fn count(&self, refusal: Refusal) {
        self.refusals.add(refusal);
    }

    fn look(&self, view: &View<'_>, zone: u16, now: u32) -> Result<Verdict, Refusal> {
        let action = Action { zone, nat: Nat::Existing, ..Action::default() };
        let mut packet = Packet::read(view, zone, self.config.icmp_ids)?;
        if matches!(packet.body, Body::Later) {
            self.reassemble(&mut packet, view.fragment, now)?;
        }
        if let Body::Error(inner) = packet.body {
            return self.related(&packet.tuple, &inner, &action, now);
        }
        let found = self.find(&packet.tuple, self.secrets.hash(&packet.tuple), now);
        if let Some(found) = found {
            match state::packet(&found.words, &packet.body, found.dir, now, self.config.tcp) {
                Ok(outcome) => return Ok(self.verdict(&found, outcome.words[STATE], &packet.tuple, &action)),
                Err(Out::Invalid(refusal, _)) => return Err(refusal),
                Err(Out::Reopen) => {}
            }
        }
        state::open(&packet.body, now, self.config.tcp)?;
        Ok(Verdict::of(CtState::NEW, packet.tuple))
    }

    #[inline]
    fn admit(&self, view: &View<'_>, action: &Action, now: u32) -> Result<Verdict, Refusal> {
        let mut packet = Packet::read(view, action.zone, self.config.icmp_ids)?;
        if view.key.ip_frag & FlowKey::FRAG_ANY != 0 {
            self.reassemble(&mut packet, view.fragment, now)?;
        }
        if let Body::Error(inner) = packet.body {
            return self.related(&packet.tuple, &inner, action, now);
        }
        let hash = self.secrets.hash(&packet.tuple);
        for _ in 0..TRIES {
            let done = match self.find(&packet.tuple, hash, now) {
                Some(found) if found.dir == REPLY && action.commit.is_some_and(|commit| commit.force) => {
                    self.end(found.at, found.life);
                    None
                }
                Some(found) => self.known(&found, &packet, action, now)?,
                None => self.fresh(&packet, hash, action, now)?,
            };
            if let Some(verdict) = done {
                return Ok(verdict);
            }
        }
        Err(Refusal::Contended)
    }

    #[cold]
    #[inline(never)]
    fn reassemble(&self, packet: &mut Packet<'_>, id: u32, now: u32) -> Result<(), Refusal> {
        if !matches!(packet.body, Body::Later) {
            self.fragments.remember(&packet.tuple, id, now, &self.secrets);
            return Ok(());
        }
        packet.tuple.set_ports([0, 0]);
        packet.tuple = self.fragments.recall(&packet.tuple, id, now, &self.secrets).ok_or(Refusal::Fragment)?;
        Ok(())
    }

    /// A packet of a connection that was found. `None`: it is another one meanwhile.
    #[inline]
    fn known(&self, found: &Found, packet: &Packet<'_>, action: &Action, now: u32) -> Result<Option<Verdict>, Refusal> {
        let entry = &self.entries[found.at as usize];
        let outcome = match state::packet(&found.words, &packet.body, found.dir, now, self.config.tcp) {
            Ok(outcome) => outcome,
            Err(Out::Invalid(refusal, words)) => {
                entry.update(found, &words);
                return Err(refusal);
            }
            Err(Out::Reopen) => {
                self.end(found.at, found.life);
                return Ok(None);
            }
        };
        if !entry.update(found, &outcome.words) {
            return Ok(None);
        }
        if let Some(classes) = outcome.classes {
            entry.touch(found.life, self.deadline(found.policy, classes, now));
        }
        let mut verdict = self.verdict(found, outcome.words[STATE], &packet.tuple, action);
        if let Some(commit) = &action.commit {
            verdict.mark = masked(found.mark, commit.mark);
            verdict.label = masked(found.label, commit.label);
            if (verdict.mark, verdict.label) != (found.mark, found.label) {
                self.set_mark(found, verdict.mark, verdict.label);
            }
        }
        if outcome.ends {
            self.end(found.at, found.life);
        }
        Ok(Some(verdict))
    }

    #[inline]
    fn verdict(&self, found: &Found, status: u64, tuple: &Tuple, action: &Action) -> Verdict {
        let entry = &self.entries[found.at as usize];
        let replied = status & REPLIED != 0;
        let state = match found.dir {
            REPLY => CtState::ESTABLISHED.with(CtState::REPLY),
            _ if replied => CtState::ESTABLISHED,
            _ => CtState::NEW,
        };
        let original = if found.dir == REPLY { entry.key(0) } else { *tuple };
        let mut verdict = Verdict { mark: found.mark, label: found.label, ..Verdict::of(state, original) };
        if status & (SRC_NAT | DST_NAT) != 0 {
            self.translate(found, status, action, &mut verdict);
        }
        verdict
    }

    #[cold]
    #[inline(never)]
    fn translate(&self, found: &Found, status: u64, action: &Action, verdict: &mut Verdict) {
        verdict.state = verdict.state.with(translations(status));
        if action.nat != Nat::None {
            // As the other direction's tuple has it, the other way round.
            verdict.rewrite = self.entries[found.at as usize].key(1 - found.dir).inverse();
        }
    }

    pub(crate) fn set_mark(&self, found: &Found, mark: u32, label: u128) {
        let _shard = self.shard(found.at).lock();
        let entry = &self.entries[found.at as usize];
        if entry.is(found.life) {
            entry.set_mark(mark, label);
        }
    }

    /// A packet of no connection. `None`: there is one meanwhile.
    #[inline(never)]
    fn fresh(&self, packet: &Packet<'_>, hash: u64, action: &Action, now: u32) -> Result<Option<Verdict>, Refusal> {
        let opened = state::open(&packet.body, now, self.config.tcp)?;
        let new = Verdict::of(CtState::NEW, packet.tuple);
        let Some(commit) = action.commit.filter(|_| !matches!(packet.body, Body::Later)) else { return Ok(Some(new)) };
        let classes = opened.classes.unwrap_or([crate::timeouts::Class::Generic; 2]);
        let birth = Birth {
            keys: [packet.tuple; 2],
            words: opened.words,
            deadline: self.deadline(commit.policy, classes, now),
            mark: masked(0, commit.mark),
            label: masked(0, commit.label),
            owner: commit.owner,
            policy: commit.policy,
        };
        match self.insert(birth, hash, &action.nat, now) {
            Ok(born) => Ok(born.map(|birth| {
                let nat = translations(birth.words[STATE]);
                let rewrite = if nat == CtState(0) { None } else { birth.keys[1].inverse() };
                Verdict { state: new.state.with(nat), mark: birth.mark, label: birth.label, rewrite, ..new }
            })),
            Err(refusal) => {
                self.refusals.add(refusal);
                Ok(Some(Verdict { refused: Some(refusal), ..new }))
            }
        }
    }

    /// An ICMP error about a packet of a connection: that packet went the other way, translated already.
    #[cold]
    #[inline(never)]
    fn related(&self, outer: &Tuple, inner: &Tuple, action: &Action, now: u32) -> Result<Verdict, Refusal> {
        let tuple = inner.inverse().ok_or(Refusal::Unrelated)?;
        let found = self.find(&tuple, self.secrets.hash(&tuple), now).ok_or(Refusal::Unrelated)?;
        if outer.dst() != tuple.dst() {
            return Err(Refusal::Unrelated);
        }
        let mut verdict = self.verdict(&found, found.words[STATE], &tuple, action);
        let reply = if found.dir == REPLY { CtState::REPLY } else { CtState(0) };
        let nat = CtState(verdict.state.0 & CtState::SRC_NAT.with(CtState::DST_NAT).0);
        verdict.state = CtState::TRACKED.with(CtState::RELATED).with(reply).with(nat);
        if verdict.rewrite.take().is_some() {
            let sent = self.entries[found.at as usize].key(1 - found.dir);
            let mut to = *outer;
            to.set_dst(sent.src());
            if sent.dst() != inner.dst() {
                // Who was spoken to is who answers, whoever noticed.
                to.set_src(sent.dst());
            }
            (verdict.rewrite, verdict.rewrite_inner) = (Some(to), Some(sent));
        }
        Ok(verdict)
    }
}

fn masked<T>(old: T, (value, mask): (T, T)) -> T
where
    T: std::ops::BitAnd<Output = T> + std::ops::BitOr<Output = T> + std::ops::Not<Output = T> + Copy,
{
    old & !mask | value & mask
}

/// Which ends of a connection are translated, by its state word.
fn translations(status: u64) -> CtState {
    let bits = |flag, bits| if status & flag != 0 { bits } else { CtState(0) };
    bits(SRC_NAT, CtState::SRC_NAT).with(bits(DST_NAT, CtState::DST_NAT))
}
