//! Packets in, states out.

mod figures;
mod keep;
mod limits;
mod nat;
mod tcp;
mod threads;

use crate::testutil::{Ends, Seg, seg, view};
use crate::*;
use lasthop_frame::FlowKey;

/// A tracker, an action and a clock.
pub(crate) struct Net {
    pub tracker: Tracker,
    pub action: Action,
    pub now_ms: u64,
}

pub(crate) const COMMIT: Commit = Commit { force: false, mark: (0, 0), label: (0, 0), policy: 0, owner: 0 };

impl Net {
    pub fn new() -> Self {
        Self::with(Config { capacity: 1000, ..Config::default() })
    }

    pub fn with(config: Config) -> Self {
        let tracker = Tracker::new(config).expect("there is room");
        Self { tracker, action: Action { commit: Some(COMMIT), ..Action::default() }, now_ms: 1_000_000 }
    }

    pub fn verdict(&self, frame: &[u8]) -> Verdict {
        let mut key = FlowKey::default();
        let view = view(frame, &mut key);
        self.tracker.process(&view, &self.action, self.now_ms)
    }

    /// The state in letters: New, Established, Related, reply (<), Invalid; translated: s, d.
    pub fn send(&self, frame: &[u8]) -> String {
        let state = self.verdict(frame).state;
        assert!(state.has(CtState::TRACKED));
        let letters = [
            (CtState::NEW, 'N'),
            (CtState::ESTABLISHED, 'E'),
            (CtState::RELATED, 'R'),
            (CtState::INVALID, 'I'),
            (CtState::REPLY, '<'),
            (CtState::SRC_NAT, 's'),
            (CtState::DST_NAT, 'd'),
        ];
        letters.iter().filter(|(bit, _)| state.has(*bit)).map(|(_, letter)| letter).collect()
    }

    pub fn tcp(&self, ends: Ends, seg: &Seg) -> String {
        self.send(&ends.tcp(seg))
    }

    /// A handshake, from sequence numbers 100 and 500.
    pub fn handshake(&self, ends: Ends) {
        assert_eq!(self.tcp(ends, &seg("S", 100, 0, 0)), "N");
        assert_eq!(self.tcp(ends.back(), &seg("SA", 500, 101, 0)), "E<");
        assert_eq!(self.tcp(ends, &seg("A", 101, 501, 0)), "E");
    }

    pub fn all(&self) -> Vec<Connection> {
        let (mut all, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            cursor = self.tracker.dump(from, 100, self.now_ms, |connection| all.push(connection));
        }
        assert_eq!(
            all.iter().map(|c| c.original).collect::<std::collections::HashSet<_>>().len(),
            all.len(),
            "each is seen once"
        );
        all
    }

    /// The only connection.
    pub fn only(&self) -> Connection {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    pub fn pass(&mut self, seconds: u64) {
        self.now_ms += seconds * 1000;
    }

    pub fn expire(&self) {
        while self.tracker.expire(self.now_ms, 1000) {}
    }
}

#[test]
fn without_commit_nothing_is_remembered() {
    let mut net = Net::new();
    net.action.commit = None;
    for _ in 0..2 {
        assert_eq!(net.send(&Ends::v4(1, 2).udp(10)), "N");
    }
    assert_eq!(net.send(&Ends::v4(2, 1).back().udp(10)), "N");
    assert_eq!(net.tracker.totals().connections, 0);
    assert!(net.all().is_empty());
}

#[test]
fn a_datagram_is_new_until_it_is_answered() {
    for ends in [Ends::v4(1000, 53), Ends::v6(1000, 53)] {
        let net = Net::new();
        assert_eq!(net.send(&ends.udp(10)), "N");
        assert_eq!(net.send(&ends.udp(10)), "N");
        assert_eq!(net.send(&ends.back().udp(10)), "E<");
        assert_eq!(net.send(&ends.udp(10)), "E");
        let only = net.only();
        assert!(only.replied && only.original.ports() == [1000, 53] && only.reply.ports() == [53, 1000]);
        assert_eq!((only.original.src(), only.reply.src()), (ends.address(1), ends.address(2)));
    }
}

#[test]
fn zones_do_not_know_each_other() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.send(&ends.udp(10));
    assert_eq!(net.send(&ends.back().udp(10)), "E<");
    net.action.zone = 7;
    assert_eq!(net.send(&ends.back().udp(10)), "N");
    assert_eq!(net.tracker.zone(7), ZoneStats { connections: 1, limit: 0 });
    assert_eq!(
        net.tracker.flush(Cursor::default(), 5000, &Filter { zone: Some(7), ..Filter::default() }, net.now_ms),
        None
    );
    assert_eq!(net.tracker.zone(7).connections, 0);
    assert_eq!(net.only().original.zone(), 0);
    assert!(net.tracker.remove(&net.only().reply, net.now_ms));
    assert_eq!(net.tracker.totals().connections, 0);
}

#[test]
fn marks_and_labels_are_set_under_their_masks() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.action.commit = Some(Commit { mark: (0xabcd, 0xff), label: (3 << 100, u128::MAX), ..COMMIT });
    let verdict = net.verdict(&ends.udp(10));
    assert_eq!((verdict.mark, verdict.label), (0xcd, 3 << 100));
    net.action.commit = Some(Commit { mark: (0xabcd, 0xff00), label: (1, 1), ..COMMIT });
    let verdict = net.verdict(&ends.back().udp(10));
    assert_eq!((verdict.mark, verdict.label), (0xabcd, 3 << 100 | 1));
    net.action.commit = None;
    let verdict = net.verdict(&ends.udp(10));
    assert_eq!((verdict.mark, verdict.label, verdict.original.ports()), (0xabcd, 3 << 100 | 1, [1, 2]));
    let answer = net.verdict(&ends.back().udp(10));
    assert_eq!((answer.original, answer.mark), (verdict.original, 0xabcd));
}

#[test]
fn force_begins_anew_in_the_other_direction() {
    let mut net = Net::new();
    let ends = Ends::v4(1, 2);
    net.send(&ends.udp(10));
    net.action.commit = Some(Commit { force: true, ..COMMIT });
    assert_eq!(net.send(&ends.udp(10)), "N");
    assert_eq!(net.send(&ends.back().udp(10)), "N");
    assert_eq!(net.only().original.ports(), [2, 1]);
}

#[test]
fn echo_is_a_connection_of_its_identifier() {
    for ends in [Ends::v4(0, 0), Ends::v6(0, 0)] {
        let net = Net::new();
        assert_eq!(net.send(&ends.back().echo(true, 9)), "I");
        assert_eq!(net.send(&ends.echo(false, 9)), "N");
        assert_eq!(net.send(&ends.back().echo(true, 8)), "I");
        assert_eq!(net.send(&ends.back().echo(true, 9)), "E<");
        assert_eq!(net.send(&ends.echo(false, 9)), "E");
        assert_eq!(net.send(&ends.back().echo(false, 9)), "N");
        assert_eq!(net.tracker.refused(Refusal::Unrelated), 2);
    }
}

#[test]
fn errors_belong_to_what_they_are_about() {
    for ends in [Ends::v4(1000, 53), Ends::v6(1000, 53)] {
        let net = Net::new();
        let router = Ends { hosts: [9, 1], ..ends };
        let asked = ends.udp(10);
        assert_eq!(net.send(&router.error(&asked)), "I");
        net.send(&asked);
        assert_eq!(net.send(&router.error(&asked)), "R<");
        assert_eq!(net.send(&ends.back().error(&asked)), "R<");
        assert_eq!(net.send(&Ends { hosts: [9, 2], ..ends }.error(&ends.back().udp(1))), "R");
        // To somebody who did not send it; about another port; cut short.
        assert_eq!(net.send(&Ends { hosts: [9, 3], ..ends }.error(&asked)), "I");
        assert_eq!(net.send(&router.error(&Ends { ports: [1, 2], ..ends }.udp(1))), "I");
        assert_eq!(net.send(&router.error(&asked[..14 + 22])), "I");
        assert!(!net.only().replied, "an error is no answer");
    }
}

#[test]
fn what_is_not_tracked_says_why() {
    let net = Net::new();
    let refused = |frame: &[u8]| net.verdict(frame).refused;
    assert_eq!(refused(&[2; 60]), Some(Refusal::NotIp));
    assert_eq!(refused(&Ends::v6(0, 0).icmp(135, 0, &[0; 20])), Some(Refusal::Untracked));
    assert_eq!(refused(&Ends::v6(0, 0).icmp(200, 0, &[0; 20])), Some(Refusal::IcmpType));
    assert_eq!(refused(&Ends::v4(0, 0).icmp(9, 0, &[0; 20])), Some(Refusal::IcmpType));
    assert_eq!(refused(&Ends::v4(1, 1).tcp(&seg("SF", 1, 1, 0))), Some(Refusal::TcpFlags));
    assert_eq!(refused(&Ends::v4(1, 1).tcp(&seg("R", 1, 1, 0))), Some(Refusal::TcpState));
    assert_eq!(refused(&Ends::v4(1, 1).ip(17).payload([0, 1, 0, 1, 0, 99, 0, 0]).build()), Some(Refusal::Malformed));
    assert_eq!(refused(&Ends::v4(1, 1).ip(47).payload([0; 8]).build()), None);
    assert_eq!(net.tracker.refused(Refusal::IcmpType), 2);
    assert_eq!(REFUSALS.len(), REFUSALS.iter().map(|r| r.name()).collect::<std::collections::BTreeSet<_>>().len());
}

#[test]
fn fragments_belong_to_the_first() {
    let mut net = Net::new();
    let ends = Ends::v4(1000, 53);
    let part = |id, word, payload: &[u8]| ends.ip(17).id(id).fragment(word).payload(payload).build();
    let first = part(5, 0x2000, &[3, 232, 0, 53, 0, 40, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    let later = part(5, 2, &[1; 24]);
    assert_eq!(net.verdict(&later).refused, Some(Refusal::Fragment));
    assert_eq!(net.send(&first), "N");
    assert_eq!(net.send(&later), "N");
    assert_eq!(net.send(&ends.back().udp(5)), "E<");
    assert_eq!(net.send(&later), "E");
    assert_eq!(net.verdict(&part(6, 2, &[1; 24])).refused, Some(Refusal::Fragment));
    net.pass(40);
    assert_eq!(net.verdict(&later).refused, Some(Refusal::Fragment));
    let v6 = |id: u8, word: u16, rest: &[u8]| {
        let header = [&[0][..], &word.to_be_bytes(), &[0, 0, 0, id]].concat();
        Ends::v6(1, 2).ip(17).extension(44, &header).payload(rest).build()
    };
    assert_eq!(net.send(&v6(4, 1, &[0, 1, 0, 2, 0, 40, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1])), "N");
    assert_eq!(net.send(&v6(4, 16, &[1; 24])), "N");
    assert_eq!(net.verdict(&v6(3, 16, &[1; 24])).refused, Some(Refusal::Fragment));
    assert_eq!(net.send(&Ends::v6(1, 2).back().udp(5)), "E<");
    assert_eq!(net.send(&v6(4, 16, &[1; 24])), "E");
}

#[test]
fn associations_go_from_init_to_shutdown() {
    let net = Net::new();
    let ends = Ends::v4(0, 0);
    let packet = |ends: Ends, tag: u32, kind: u8, content: &[u8]| {
        let chunk = [&[kind, 0], &(4 + content.len() as u16).to_be_bytes()[..], content].concat();
        let ports: [u8; 4] = if ends.hosts[0] == 1 { [0, 9, 0, 8] } else { [0, 8, 0, 9] };
        ends.ip(132).payload([&ports[..], &tag.to_be_bytes(), &[0; 4], &chunk].concat()).build()
    };
    let state = || match net.only().state {
        ProtoState::Sctp(state) => state,
        other => panic!("{other:?}"),
    };
    assert_eq!(net.send(&packet(ends, 0, 0, &[0; 12])), "I", "data out of the blue");
    assert_eq!(net.send(&packet(ends, 0, 1, &[0, 0, 0, 7, 0, 0, 0, 0])), "N");
    assert_eq!(state(), SctpState::CookieWait);
    assert_eq!(net.send(&packet(ends.back(), 7, 2, &[0, 0, 0, 8, 0, 0, 0, 0])), "E<");
    assert_eq!(net.send(&packet(ends, 9, 10, &[1; 4])), "I", "the wrong tag");
    assert_eq!(net.send(&packet(ends, 8, 10, &[1; 4])), "E");
    assert_eq!(net.send(&packet(ends.back(), 7, 11, &[])), "E<");
    assert_eq!(state(), SctpState::Established);
    assert!(net.only().assured);
    assert_eq!(net.send(&packet(ends, 8, 0, &[0; 12])), "E");
    assert_eq!(net.send(&packet(ends.back(), 7, 7, &[0; 4])), "E<");
    assert_eq!(state(), SctpState::ShutdownRecd);
    assert_eq!(net.send(&packet(ends, 8, 8, &[])), "E");
    assert_eq!(net.send(&packet(ends.back(), 7, 14, &[])), "E<");
    assert_eq!(state(), SctpState::Closed);
}

#[test]
fn a_tuple_is_what_it_was_made_of() {
    let [a, b] = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [0xfd; 16]];
    let tuple = Tuple::new([a, b], [80, 0xffff], 6, true, 0x8001);
    assert_eq!((tuple.src(), tuple.dst(), tuple.ports()), (a, b, [80, 0xffff]));
    assert_eq!((tuple.proto(), tuple.is_v6(), tuple.zone()), (6, true, 0x8001));
    assert_eq!(tuple.inverse(), Some(Tuple::new([b, a], [0xffff, 80], 6, true, 0x8001)));
    let ends = Ends::v4(3, 4);
    let mut key = FlowKey::default();
    view(&ends.udp(0), &mut key);
    assert_eq!(Tuple::of(&key, 5), Tuple::new([ends.address(1), ends.address(2)], [3, 4], 17, false, 5));
    assert_eq!(format!("{:?}", Tuple::of(&key, 5)), "10.0.0.1:3 > 10.0.0.2:4 proto 17 zone 5");
}
