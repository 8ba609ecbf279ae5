//! Another process goes on with what one has noted.

use super::connections::{UNTRACKED, commit_to};
use super::*;
use crate::NotesFrom;
use lasthop_conntrack::testutil::{Ends, seg};
use lasthop_conntrack::{Config, Tracker};
use lasthop_ovs_abi::limit::{self, Limit};
use lasthop_ovs_abi::meter::{self, Band, Meter};
use lasthop_ovs_abi::timeouts::{self, Timeouts};

#[test]
fn another_process_knows_datapath_ports_and_flows() {
    let mut site = Site::new();
    assert_eq!(site.put_flow(1, 0, output(2)), 0);
    assert_eq!(site.put_flow(2, 0, output(1)), 0);
    assert_eq!(site.put_flow(1, 9, output(2)), 0);
    assert_eq!(site.add_port(&"x".repeat(99), vport::NETDEV), Refused::INVALID.0, "what is refused is not noted");
    // A flow that went is not there.
    let id = ufid(1, 9);
    site.ask(family::FLOW.id, command::DEL, flag::ACK, |to| to.attribute(flow::UFID, &id));

    let mut next = Datapath::new();
    assert_eq!(next.restore(&site.notes), (3, 2));
    assert_eq!(next.take(), []);
    assert_eq!(next.notes(), site.datapath.notes());
    let mut third = Datapath::new();
    third.restore(&next.notes());
    assert_eq!(third.notes(), next.notes());

    // It answers a miss by itself, once it is told of the switch's ports.
    site.datapath = next;
    site.datapath.hear_switch(&ToControl::Hello);
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
    site.settle();
    site.told();
    site.miss(VM1, &udp(100));
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    // What no flow knows goes to the client with the number that it had.
    site.datapath.connected(PID);
    site.datapath.frame(&tagged(1, &[&udp(100)[..12], &[8, 6], &[0; 40]].concat()));
    site.collect();
    assert_eq!(site.upcalls.len(), 1);
}

impl Site {
    /// The process dies, and another goes on with what it has noted, beside the same switch.
    pub(super) fn die(&mut self) {
        let mut next = Datapath::new();
        next.set_now(self.datapath.now_ms);
        next.restore(&self.notes);
        self.datapath = next;
        self.notes = self.datapath.notes();
        self.datapath.hear_switch(&ToControl::Hello);
        self.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
        self.datapath.connected(PID);
        self.settle();
    }
}

#[test]
fn another_process_knows_meters_limits_and_policies() {
    let mut site = Site::new();
    let rate = |rate| Meter { kilobits: false, band: Some(Band { rate, burst: 1 }) };
    for (id, packets) in [(5, 10), (6, 20), (7, 30)] {
        site.ask(family::METER.id, meter::command::SET, flag::ECHO, |to| meter::write_set(id, &rate(packets), to));
    }
    site.ask(family::METER.id, meter::command::DEL, flag::ECHO, |to| to.number(meter::ID, 5));
    let limit = |zone, limit| Limit { zone, limit, count: 0 };
    site.limits(limit::command::SET, &[limit(None, 10), limit(Some(3), 7), limit(Some(4), 8)]);
    site.limits(limit::command::DEL, &[limit(Some(4), 0)]);
    let [name, other] = [b"ovs_tp_3_udp4", b"ovs_tp_4_udp4"].map(|name| timeouts::name_of(name).unwrap());
    let policy = Timeouts { family: 2, proto: 17, seconds: vec![(1, 5), (2, 6)] };
    for name in [name, other] {
        assert_eq!(error_of(&site.ask_timeouts(timeouts::NEW, &name, &policy)), 0);
    }
    assert_eq!(error_of(&site.ask_timeouts(timeouts::DELETE, &other, &policy)), 0);
    for _ in 0..2 {
        let before = site.datapath.notes();
        site.told();
        site.die();
        assert_eq!(site.datapath.notes(), before);
        let told = site.told();
        let meters: Vec<_> = told.iter().filter(|message| matches!(message, FromControl::SetMeter { .. })).collect();
        let set = |id, packets| FromControl::SetMeter { id, rates: Some([0, packets, 0]) };
        // Under the numbers that flows in the switch name them by.
        assert_eq!(meters, [&set(1, 20), &set(2, 30)]);
        assert_eq!(site.limits(limit::command::GET, &[]), [limit(None, 10), limit(Some(3), 7)]);
        let told = site.ask_timeouts(timeouts::GET, &name, &Timeouts::default());
        assert_eq!(Timeouts::read(only(&told[0]).payload), Ok(policy.clone()));
        assert_eq!(error_of(&site.ask_timeouts(timeouts::GET, &other, &policy)), Refused::NO_ENTRY.0);
    }
}

#[test]
fn another_process_knows_connections_that_both_sides_have_spoken_on() {
    for nat in [None, Some([10, 0, 0, 9])] {
        let mut site = Site::new();
        site.firewall(nat);
        let ends = Ends::v4(1000, 80);
        let answers = Ends { hosts: if nat.is_some() { [9, 2] } else { ends.hosts }, ..ends }.back();
        for (port, frame) in [
            (1, ends.tcp(&seg("S", 100, 0, 0))),
            (2, answers.tcp(&seg("SA", 300, 101, 0))),
            (1, ends.tcp(&seg("A", 101, 301, 0))),
        ] {
            assert_eq!(site.goes_on(port, &frame).len(), 1);
        }
        // One that has ended, and one that nobody has answered.
        let (short, alone) = (Ends::v4(1001, 80), Ends::v4(1002, 80));
        let to_short = Ends { hosts: answers.back().hosts, ..short }.back();
        site.goes_on(1, &short.tcp(&seg("S", 100, 0, 0)));
        site.goes_on(2, &to_short.tcp(&seg("SA", 300, 101, 0)));
        site.goes_on(1, &short.tcp(&seg("A", 101, 301, 0)));
        site.goes_on(1, &short.tcp(&seg("FA", 101, 301, 0)));
        let noted = site.notes.len();
        site.goes_on(1, &alone.tcp(&seg("S", 100, 0, 0)));
        assert_eq!(site.notes.len(), noted, "whoever opens many writes nothing");

        for _ in 0..2 {
            site.die();
            assert_eq!(site.connections().len(), 1);
            // Who answers may be the first to say something: it goes by one flow of the switch's, as before.
            site.told();
            site.miss(VM2, &answers.tcp(&seg("PA", 301, 101, 100)));
            assert_eq!(site.told_flow().actions.last(), Some(&Action::Output(VM1)));
            site.miss(VM1, &ends.tcp(&seg("PA", 101, 401, 100)));
            let there = site.told_flow().actions;
            assert_eq!(there.last(), Some(&Action::Output(VM2)));
            assert_eq!(there.len() > 1, nat.is_some(), "{there:?}");
        }
        // It ends, and the next knows that.
        site.goes_on(1, &ends.tcp(&seg("R", 201, 0, 0)));
        site.die();
        assert_eq!(site.connections().len(), 0);
    }
}

#[test]
fn ports_keep_their_shares_of_connections() {
    let mut site = Site::new();
    site.put_state(1, 0, UNTRACKED, commit_to(2, None));
    site.die();
    site.datapath.connections.tracker = Tracker::new(Config { capacity: 400, ..Config::default() });
    let notes = std::mem::take(&mut site.notes);
    site.datapath.name = None;
    site.datapath.vports.clear();
    site.datapath.restore(&notes);
    site.ports(&[]);
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
    (0..150).for_each(|n| site.datapath.frame(&tagged(1, &Ends::v4(n, 53).udp(20))));
    site.collect();
    let tracker = site.datapath.connections.tracker.as_ref().expect("memory");
    assert_eq!(tracker.owned(1), 100);
}

#[test]
fn a_datapath_that_was_removed_is_not_there() {
    let mut site = Site::new();
    site.ask(family::DATAPATH.id, command::DEL, flag::ACK, |to| to.text(datapath::NAME, "ovs-system"));
    let mut next = Datapath::new();
    assert_eq!(next.restore(&site.notes), (0, 0));
    assert_eq!(next.notes(), []);
}

/// All that the next process would note, in whatever order it has become.
fn sorted(notes: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = messages(notes).map(|message| message.whole.to_vec()).collect();
    all.sort();
    all
}

impl Site {
    /// Something that is noted changes.
    fn change(&mut self, what: u8, which: u8) {
        let (id, zone) = (u32::from(which), u16::from(which % 2));
        let limit = Limit { zone: Some(zone), limit: 2, count: 0 };
        match what {
            0 | 1 => drop(self.put_flow(1, 30 + id, output(2))),
            2 => {
                let id = ufid(1, 30 + id);
                self.ask(family::FLOW.id, command::DEL, flag::ACK, |to| to.attribute(flow::UFID, &id));
            }
            3 => drop(self.limits(limit::command::SET, &[limit])),
            4 => drop(self.limits(limit::command::DEL, &[limit])),
            5 => {
                let to = if which.is_multiple_of(2) { meter::command::SET } else { meter::command::DEL };
                let meter = Meter { kilobits: false, band: Some(Band { rate: 9, burst: 1 }) };
                self.ask(family::METER.id, to, flag::ECHO, |to| meter::write_set(1 + id / 2, &meter, to));
            }
            6 => {
                let ends = Ends::v4(1000 + u16::from(which), 80);
                self.goes_on(1, &ends.tcp(&seg("R", 101, 0, 0)));
            }
            _ => {
                let ends = Ends::v4(1000 + u16::from(which), 80);
                self.goes_on(1, &ends.tcp(&seg("S", 100, 0, 0)));
                self.goes_on(2, &ends.back().tcp(&seg("SA", 300, 101, 0)));
                self.goes_on(1, &ends.tcp(&seg("A", 101, 301, 0)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// All there is is noted anew in parts, and things change between them.
    #[test]
    fn parts_with_notes_between_say_all(
        before in prop::collection::vec((0u8..10, 0u8..6), 0..12),
        between in prop::collection::vec((0u8..10, 0u8..6, prop::option::of(1u32..9)), 0..16),
    ) {
        let mut site = Site::new();
        site.datapath.connections.tracker = Tracker::new(Config { capacity: 400, ..Config::default() });
        site.firewall(None);
        before.iter().for_each(|(what, which)| site.change(*what, *which));
        let mut anew = Vec::new();
        let mut next = Some(NotesFrom::default());
        for (what, which, most) in between {
            if let (Some(most), Some(from)) = (most, next) {
                let (part, then) = site.datapath.notes_from(from, most);
                anew.extend(part);
                next = then;
            }
            site.notes.clear();
            site.change(what, which);
            anew.extend(&site.notes);
        }
        while let Some(from) = next {
            let (part, then) = site.datapath.notes_from(from, 100);
            anew.extend(part);
            next = then;
        }
        // What flows have carried is in none of them.
        let [in_parts, whole] = [anew, site.datapath.notes()].map(|notes| {
            let mut other = Datapath::new();
            other.set_now(site.datapath.now_ms);
            other.connections.tracker = Tracker::new(Config { capacity: 400, ..Config::default() });
            other.restore(&notes);
            sorted(&other.notes())
        });
        prop_assert_eq!(in_parts, whole);
    }
}

/// What is done in one go is bounded, however many there are.
#[test]
fn a_part_of_the_notes_says_no_more_than_it_may() {
    let mut site = Site::new();
    (0..100).for_each(|n| assert_eq!(site.put_flow(1, 30 + n, output(2)), 0));
    let (mut flows, mut next) = (Vec::new(), Some(NotesFrom::default()));
    while let Some(from) = next {
        let (part, then) = site.datapath.notes_from(from, 30);
        flows.push(messages(&part).filter(|message| message.kind == family::FLOW.id).count());
        next = then;
    }
    assert_eq!(flows, [30, 30, 30, 10]);
}

proptest! {
    // Each makes five data planes.
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is in the file, restoring ends, and what it has made is noted as it is.
    #[test]
    fn any_notes_are_read(notes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(), value: u8) {
        let mut site = Site::new();
        site.put_flow(1, 0, output(2));
        let mut broken = site.notes.clone();
        let at = at.index(broken.len());
        broken[at] = value;
        for notes in [notes, broken] {
            let mut next = Datapath::new();
            next.restore(&notes);
            let mut third = Datapath::new();
            third.restore(&next.notes());
            prop_assert_eq!(third.notes(), next.notes());
        }
    }
}
