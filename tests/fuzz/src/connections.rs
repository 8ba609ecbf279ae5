//! The connection tracker against a list of connections. Input: limits, then one step after another: packets, time, flushes, other limits, translations.
//!
//! Of UDP and of ICMP's echoes the model says what each packet is. Of TCP, whose states the kernel is compared with (`tests/process`), it says what any
//! connection must keep to: both tuples lead to it and to no other, what was translated is translated back, limits hold, and the books balance.

use crate::Input;
use lasthop_conntrack::testutil::{Ends, seg, view};
use lasthop_conntrack::{
    Action, Commit, Config, Connection, CtState, Cursor, Ended, Filter, Nat, Range, Refusal, Tracker, Tuple, Verdict,
};
use lasthop_frame::FlowKey;

const TICK_MS: u64 = 125;
const SECOND: u64 = 8;
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A connection as the model has it; times in ticks.
#[derive(Clone, Debug)]
struct Known {
    original: Tuple,
    reply: Tuple,
    owner: u16,
    mark: u32,
    label: u128,
    replied: bool,
    assured: bool,
    since: u64,
    deadline: u64,
    /// Its time is over, and there is another one with its tuple.
    gone: bool,
}

impl Known {
    /// The model does not say when its time is over.
    fn is_tcp(&self) -> bool {
        self.original.proto() == TCP
    }
}

struct World {
    tracker: Tracker,
    known: Vec<Known>,
    now_ms: u64,
    capacity: usize,
    zones: [u32; 2],
    owners: [u32; 3],
    ended: u64,
}

/// A packet: where it is from and to, and what it is.
struct Packet {
    ends: Ends,
    frame: Vec<u8>,
    /// An ICMP error about a packet with these ends.
    about: Option<Ends>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Udp,
    Asks,
    Answers,
    Tcp,
    Error,
}

/// Between two of six hosts. What somebody sends to himself is its own answer, in Linux, too: nothing can be said of it.
fn ends(input: &mut Input<'_>) -> Ends {
    let (hosts, ports) = (input.u8(), input.u8());
    let from = hosts % 6;
    let to = (from + 1 + (hosts >> 4) % 5) % 6;
    let ports_of = [1 + u16::from(ports & 3), 1 + u16::from(ports >> 2 & 3)];
    Ends { v6: ports & 0x80 != 0, hosts: [1 + from, 1 + to], ports: ports_of }
}

fn packet(input: &mut Input<'_>) -> Packet {
    let e = ends(input);
    let (what, detail) = (input.below(9), input.u8());
    let packet = |kind, frame| Packet { ends: e, frame, about: None, kind };
    match what {
        0..4 => packet(Kind::Udp, e.udp(usize::from(detail & 7))),
        4 => packet(Kind::Asks, e.echo(false, e.ports[0])),
        5 => packet(Kind::Answers, e.echo(true, e.ports[0])),
        6 => {
            let about = if detail & 1 == 0 { e.back() } else { ends(input) };
            let about = Ends { v6: e.v6, ..about };
            Packet { about: Some(about), ..packet(Kind::Error, e.error(&about.udp(9))) }
        }
        _ => {
            let flags = ["S", "SA", "A", "PA", "FA", "R", "RA", "SF"][usize::from(detail & 7)];
            packet(
                Kind::Tcp,
                e.tcp(&seg(flags, u32::from(detail >> 3 & 3), u32::from(detail >> 5), usize::from(detail >> 7))),
            )
        }
    }
}

fn nat(input: &mut Input<'_>, v6: bool) -> Nat {
    let how = input.u8();
    let address = |n: u8| Ends { v6, ..Ends::v4(0, 0) }.address(n);
    let range = |bits: u8| Range {
        addresses: (bits & 1 != 0).then(|| [address(5), address(5 + (bits >> 1 & 1))]),
        ports: (bits & 4 != 0).then_some([1, 1 + u16::from(bits >> 3 & 3)]),
        persistent: bits & 1 != 0,
        random: bits & 8 != 0,
    };
    match how & 7 {
        0..3 => Nat::None,
        3 | 4 => Nat::Existing,
        5 => Nat::Source(range(how >> 3)),
        6 => Nat::Destination(range(how >> 3)),
        _ => Nat::Both(range(how >> 3), range(how >> 4)),
    }
}

impl World {
    fn ticks(&self) -> u64 {
        self.now_ms / TICK_MS
    }

    /// A connection that is there, by one of its tuples; and whether that is the answers'.
    fn find(&self, tuple: &Tuple) -> Option<(usize, bool)> {
        let lives = |known: &Known| {
            if known.is_tcp() {
                !known.gone && self.tracker.get(&known.original, self.now_ms).is_some()
            } else {
                known.deadline > self.ticks()
            }
        };
        let found =
            self.known.iter().position(|known| [known.original, known.reply].contains(tuple) && lives(known))?;
        Some((found, self.known[found].original != *tuple))
    }

    fn count(&self, meant: impl Fn(&Known) -> bool) -> u32 {
        self.known.iter().filter(|known| meant(known)).count() as u32
    }

    /// What has ended, taken out of the model.
    fn bury(&mut self) -> Vec<Known> {
        let ended = self.tracker.ended();
        self.ended += ended.len() as u64;
        let take = |Ended { original, reply, label }: Ended| {
            let same = |known: &Known| {
                known.original == original && known.reply == reply && (known.is_tcp() || known.label == label)
            };
            // A RST may give a connection another label and end it. Of two with the same tuple the elder's time is over.
            let found = self.known.iter().enumerate().filter(|(_, known)| same(known));
            let (at, _) = found.min_by_key(|(_, known)| (!known.gone, known.deadline)).expect("what ends was there");
            self.known.swap_remove(at)
        };
        ended.into_iter().map(take).collect()
    }

    fn packet(&mut self, input: &mut Input<'_>) {
        let packet = packet(input);
        let bits = input.u8();
        let zone = u16::from(bits & 1);
        let commit = (bits & 0x0e != 0).then(|| Commit {
            force: bits & 0xf0 == 0xf0,
            mark: (u32::from(input.u8()), 0x0f),
            label: (u128::from(bits) << 64, u128::from(u64::MAX) << 64),
            policy: 0,
            owner: u16::from(bits >> 4) % 3,
        });
        let action = Action { zone, commit, nat: nat(input, packet.ends.v6) };
        let mut key = FlowKey::default();
        let view = view(&packet.frame, &mut key);
        let peeked = self.tracker.peek(&view, zone, self.now_ms);
        let verdict = self.tracker.process(&view, &action, self.now_ms);
        let forces = commit.is_some_and(|commit| commit.force);
        if !forces {
            // A translation that has just been made is not seen before.
            let seen = |verdict: &Verdict| {
                if verdict.state.has(CtState::NEW) { verdict.state.0 & 0x3f } else { verdict.state.0 }
            };
            assert_eq!(seen(&peeked), seen(&verdict), "a look says what comes: {peeked:?} {verdict:?}");
        }
        match packet.kind {
            Kind::Error => self.check_error(&packet, zone, &action, &verdict),
            _ => self.check(&packet, zone, &action, &verdict),
        }
    }

    fn tuple(packet: &Packet, zone: u16) -> Tuple {
        let e = packet.ends;
        let echo = |kind: u16| ([e.ports[0], kind << 8], if e.v6 { 58 } else { 1 });
        let (ports, proto) = match packet.kind {
            Kind::Asks => echo(if e.v6 { 128 } else { 8 }),
            Kind::Answers => echo(if e.v6 { 129 } else { 0 }),
            Kind::Tcp => (e.ports, TCP),
            Kind::Udp | Kind::Error => (e.ports, UDP),
        };
        Tuple::new(e.hosts.map(|host| e.address(host)), ports, proto, e.v6, zone)
    }

    fn check_error(&mut self, packet: &Packet, zone: u16, action: &Action, verdict: &Verdict) {
        let about = packet.about.map(|about| Packet { ends: about, frame: Vec::new(), about: None, kind: Kind::Udp });
        let inner = Self::tuple(&about.expect("an error"), zone).inverse().expect("UDP is answered");
        let found = self.find(&inner).filter(|_| inner.dst() == packet.ends.address(packet.ends.hosts[1]));
        let Some((n, reply)) = found else {
            return assert_eq!(verdict.refused, Some(Refusal::Unrelated));
        };
        let known = &self.known[n];
        assert!(verdict.state.has(CtState::RELATED) && verdict.state.has(CtState::REPLY) == reply, "{verdict:?}");
        assert_eq!((verdict.original, verdict.label), (known.original, known.label));
        let translated = known.original.inverse() != Some(known.reply) && action.nat != Nat::None;
        assert_eq!(verdict.rewrite_inner, translated.then_some(if reply { known.original } else { known.reply }));
        assert!(self.bury().is_empty(), "an error ends nothing");
    }

    /// A packet that moves connections.
    fn check(&mut self, packet: &Packet, zone: u16, action: &Action, verdict: &Verdict) {
        let (tuple, now) = (Self::tuple(packet, zone), self.ticks());
        let mut found = self.find(&tuple);
        if let Some((n, true)) = found
            && action.commit.is_some_and(|commit| commit.force)
        {
            let forced = self.known[n].clone();
            let ended = self.bury();
            assert!(ended.iter().any(|of| of.original == forced.original), "a forced one ends");
            found = None;
        } else if packet.kind != Kind::Tcp {
            let full = self.known.len() >= self.capacity;
            for known in self.bury() {
                let over = known.is_tcp() || known.deadline <= now;
                assert!(over || full && !known.assured, "nothing ends before its time: {known:?}");
            }
            found = self.find(&tuple);
        }
        if packet.kind == Kind::Tcp {
            return self.follow(&tuple, action, verdict);
        }
        let Some((n, reply)) = found else { return self.check_new(packet, &tuple, action, verdict) };
        let known = &mut self.known[n];
        let expected = match (reply, known.replied) {
            (true, _) => CtState::ESTABLISHED.with(CtState::REPLY),
            (false, true) => CtState::ESTABLISHED,
            (false, false) => CtState::NEW,
        };
        assert_eq!(verdict.state.0 & 0x1f, expected.0, "{known:?}");
        let streams = packet.kind == Kind::Udp && known.replied && now - known.since >= 2 * SECOND;
        known.assured |= streams;
        known.replied |= reply;
        known.deadline = now + SECOND * if streams { 120 } else { 30 };
        if let Some(commit) = action.commit {
            known.mark = known.mark & !commit.mark.1 | commit.mark.0 & commit.mark.1;
            known.label = known.label & !commit.label.1 | commit.label.0 & commit.label.1;
        }
        assert_eq!((verdict.original, verdict.mark, verdict.label), (known.original, known.mark, known.label));
        let translated = known.original.inverse() != Some(known.reply) && action.nat != Nat::None;
        let to = if reply { known.original.inverse() } else { known.reply.inverse() };
        assert_eq!(verdict.rewrite, to.filter(|_| translated));
    }

    /// A packet of none.
    fn check_new(&mut self, packet: &Packet, tuple: &Tuple, action: &Action, verdict: &Verdict) {
        if packet.kind == Kind::Answers {
            return assert_eq!(verdict.refused, Some(Refusal::Unrelated), "nobody has asked");
        }
        assert!(verdict.state.has(CtState::NEW) && !verdict.state.has(CtState::REPLY), "{verdict:?}");
        self.begin(tuple, action, verdict);
    }

    /// A connection has begun, or was refused.
    fn begin(&mut self, tuple: &Tuple, action: &Action, verdict: &Verdict) {
        let Some(commit) = action.commit else {
            assert_eq!((verdict.refused, verdict.rewrite), (None, None), "nothing is remembered without a commit");
            return;
        };
        let (zone, owner, now) = (usize::from(tuple.zone()), usize::from(commit.owner), self.ticks());
        let in_zone = self.count(|known| known.original.zone() == tuple.zone());
        let of_owner = self.count(|known| known.owner == commit.owner);
        match verdict.refused {
            None => {}
            Some(Refusal::ZoneLimit) => return assert!(self.zones[zone] > 0 && in_zone >= self.zones[zone]),
            Some(Refusal::OwnerLimit) => return assert!(self.owners[owner] > 0 && of_owner >= self.owners[owner]),
            Some(Refusal::Full) => return assert!(self.known.len() >= self.capacity, "there is room"),
            Some(Refusal::NoTranslation) => return self.nothing_is_free(tuple, &action.nat),
            Some(Refusal::Clash) => {
                let taken = tuple.inverse().is_some_and(|reply| self.find(&reply).is_some());
                return assert!(taken, "nobody has its answers");
            }
            other => panic!("{other:?}"),
        }
        assert!(self.zones[zone] == 0 || in_zone < self.zones[zone], "a zone's limit holds");
        assert!(self.owners[owner] == 0 || of_owner < self.owners[owner], "an owner's limit holds");
        let sent = verdict.rewrite.unwrap_or(*tuple);
        let reply = sent.inverse().expect("what opens is answered");
        assert!(self.find(&reply).is_none(), "its answers are nobody else's");
        self.in_range(tuple, &sent, &action.nat);
        let (mark, label) = (commit.mark.0 & commit.mark.1, commit.label.0 & commit.label.1);
        assert_eq!((verdict.original, verdict.mark, verdict.label), (*tuple, mark, label));
        let (since, deadline) = (now, now + 30 * SECOND);
        let elder = self.known.iter_mut().filter(|known| known.original == *tuple && known.is_tcp());
        elder.for_each(|known| known.gone = true);
        let (replied, assured) = (false, false);
        self.known.push(Known {
            original: *tuple,
            reply,
            owner: commit.owner,
            mark,
            label,
            replied,
            assured,
            since,
            deadline,
            gone: false,
        });
    }

    /// What a connection is translated to is what was asked for.
    fn in_range(&self, tuple: &Tuple, sent: &Tuple, nat: &Nat) {
        let check = |range: &Range, before: ([u8; 16], u16), after: ([u8; 16], u16), has_port: bool, source: bool| {
            match range.addresses {
                Some([first, last]) => assert!((first..=last).contains(&after.0)),
                None => assert_eq!(before.0, after.0),
            }
            match range.ports {
                Some([first, last]) if has_port => assert!((first..=last).contains(&after.1)),
                None if has_port && source => {}
                _ => assert_eq!(before.1, after.1),
            }
        };
        let echo = matches!(tuple.proto(), 1 | 58);
        let end = |of: &Tuple| ([of.src(), of.dst()], of.ports());
        let (([s0, d0], [sp0, dp0]), ([s1, d1], [sp1, dp1])) = (end(tuple), end(sent));
        match nat {
            Nat::None | Nat::Existing => assert_eq!(tuple, sent),
            Nat::Source(range) => {
                check(range, (s0, sp0), (s1, sp1), true, true);
                assert_eq!((d0, dp0), (d1, dp1));
            }
            Nat::Destination(range) => {
                check(range, (d0, dp0), (d1, dp1), !echo, false);
                assert_eq!((s0, sp0), (s1, sp1));
            }
            Nat::Both(source, destination) => {
                check(source, (s0, sp0), (s1, sp1), true, true);
                check(destination, (d0, dp0), (d1, dp1), !echo, false);
            }
        }
    }

    /// The one address and the ports that a source may have are all taken.
    fn nothing_is_free(&self, tuple: &Tuple, nat: &Nat) {
        let Nat::Source(Range { addresses, ports: Some([first, last]), .. }) = nat else {
            return assert!(!matches!(nat, Nat::None | Nat::Existing), "nothing was to be translated");
        };
        let addresses = addresses.unwrap_or([tuple.src(); 2]);
        if addresses[0] != addresses[1] {
            return;
        }
        for port in *first..=*last {
            let [_, dst] = tuple.ports();
            let sent = Tuple::new([addresses[0], tuple.dst()], [port, dst], tuple.proto(), tuple.is_v6(), tuple.zone());
            let taken = sent.inverse().is_some_and(|reply| self.find(&reply).is_some());
            assert!(taken, "port {port} is free");
        }
    }

    /// What TCP's connections must keep to whatever their state.
    fn follow(&mut self, tuple: &Tuple, action: &Action, verdict: &Verdict) {
        self.bury();
        let began = self.tracker.totals().created > self.ended + self.known.len() as u64;
        if began || verdict.must_drop() {
            self.begin(tuple, action, verdict);
        } else if !verdict.state.has(CtState::INVALID)
            && let Some(commit) = action.commit
        {
            let known = self.known.iter_mut().find(|known| known.original == verdict.original && !known.gone);
            // A RST that nobody had answered before has ended it.
            let Some(known) = known else { return };
            known.mark = known.mark & !commit.mark.1 | commit.mark.0 & commit.mark.1;
            known.label = known.label & !commit.label.1 | commit.label.0 & commit.label.1;
            assert_eq!((verdict.mark, verdict.label), (known.mark, known.label));
        }
    }

    /// The books balance, and each connection is found by its two tuples.
    fn balance(&mut self) {
        let totals = self.tracker.totals();
        assert_eq!(totals.connections, self.known.len());
        assert_eq!(totals.created, self.ended + self.known.len() as u64);
        assert!(totals.expired + totals.evicted <= self.ended);
        for zone in 0..2u16 {
            assert_eq!(self.tracker.zone(zone).connections, self.count(|known| known.original.zone() == zone));
        }
        for owner in 0..3 {
            assert_eq!(self.tracker.owned(owner), self.count(|known| known.owner == owner));
        }
        let (mut seen, mut at) = (Vec::<Connection>::new(), Some(Cursor::default()));
        while let Some(from) = at {
            at = self.tracker.dump(from, 7, self.now_ms, |connection| seen.push(connection));
        }
        for known in self
            .known
            .iter()
            .filter(|known| known.is_tcp() || known.deadline > self.ticks())
            .filter(|known| !known.gone)
        {
            let same: Vec<_> = seen.iter().filter(|of| of.original == known.original).collect();
            assert!(same.len() <= 1 && (known.is_tcp() || same.len() == 1), "seen once: {known:?}");
            let Some(there) = same.first() else { continue };
            assert_eq!(
                (there.reply, there.mark, there.label, there.owner),
                (known.reply, known.mark, known.label, known.owner)
            );
            if !known.is_tcp() {
                assert_eq!((there.replied, there.assured), (known.replied, known.assured));
                assert_eq!(u64::from(there.seconds_left), (known.deadline - self.ticks()) / SECOND);
            }
            let by_reply = self.tracker.get(&known.reply, self.now_ms).map(|of| of.original);
            assert_eq!(by_reply, Some(known.original), "answers lead to it");
        }
    }

    fn flush(&mut self, input: &mut Input<'_>) {
        let bits = input.u8();
        let filter = Filter {
            zone: (bits & 1 != 0).then_some(u16::from(bits >> 1 & 1)),
            owner: (bits & 4 != 0).then_some(u16::from(bits >> 3) % 3),
            tuple: (bits & 0x80 != 0).then(|| self.known.first().map(|known| known.reply)).flatten(),
        };
        let meant = |known: &Known| {
            filter.zone.is_none_or(|zone| zone == known.original.zone())
                && filter.owner.is_none_or(|owner| owner == known.owner)
                && filter.tuple.is_none_or(|tuple| [known.original, known.reply].contains(&tuple))
        };
        let mut at = Some(Cursor::default());
        while let Some(from) = at {
            at = self.tracker.flush(from, 16, &filter, self.now_ms);
        }
        assert!(self.bury().iter().all(meant), "only what is meant ends");
        let now = self.ticks();
        let left = self.known.iter().filter(|known| meant(known) && !known.is_tcp() && known.deadline > now);
        assert_eq!(left.count(), 0, "all that is meant ends");
    }

    fn expire(&mut self, budget: usize) {
        let more = self.tracker.expire(self.now_ms, budget);
        let now = self.ticks();
        for known in self.bury() {
            assert!(known.is_tcp() || known.deadline <= now, "nothing ends before its time: {known:?}");
        }
        // The wheel is round in a minute.
        let late = |known: &Known| !known.is_tcp() && known.deadline + 64 * SECOND < now;
        assert!(more || !self.known.iter().any(late), "all is looked at");
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let capacity = 1 + input.below(24);
    let config = Config { capacity, ..Config::default() };
    let tracker = Tracker::new(config).expect("there is room");
    let (zones, owners) = ([0; 2], [0; 3]);
    let mut world = World { tracker, known: Vec::new(), now_ms: 1_000_000, capacity, zones, owners, ended: 0 };
    let mut steps = 0;
    while !input.is_empty() && steps < 300 {
        steps += 1;
        match input.below(24) {
            0 => world.now_ms += u64::from(input.u16()),
            1 => world.now_ms += 1000 * u64::from(input.u8()),
            2 => world.flush(&mut input),
            3 => {
                let budget = usize::from(input.u8());
                world.expire(if budget > 200 { 100_000 } else { budget });
            }
            4 => {
                let (which, limit) = (input.u8(), u32::from(input.u8() & 7));
                if which & 1 == 0 {
                    world.zones[usize::from(which >> 1 & 1)] = limit;
                    world.tracker.limit_zone(u16::from(which >> 1 & 1), limit);
                } else {
                    world.owners[usize::from(which >> 1) % 3] = limit;
                    world.tracker.limit_owner(u16::from(which >> 1) % 3, limit);
                }
            }
            _ => world.packet(&mut input),
        }
        world.balance();
    }
}

#[cfg(test)]
mod tests {
    /// Programs that come out the same each time: thousands of sequences, beside those that the fuzzer found.
    #[test]
    fn any_sequence_keeps_the_books() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        for _ in 0..3000 {
            let program: Vec<u8> = (0..400)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 24) as u8
                })
                .collect();
            super::run(&program);
        }
    }
}
