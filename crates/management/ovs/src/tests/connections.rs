//! Connection tracking: packets that come here, whole or by their headers, move connections on; the switch's flows carry what is between.

use super::whole::fetch;
use super::*;
use lasthop_conntrack::testutil::{Ends, seg};
use lasthop_conntrack::{Commit, Config, Refusal, Tracker, Tuple};
use lasthop_frame::{Header, Offload, Part, Set};
use lasthop_ovs_abi::conntrack;
use lasthop_ovs_abi::timeouts::{self, Timeouts};

pub(super) const UNTRACKED: u32 = 0;
const NEW: u32 = 0x21;
const REPLY: u32 = 0x2a;
const ESTABLISHED: u32 = 0x22;

fn ct(fill: impl FnOnce(&mut Writer)) -> impl FnOnce(&mut Writer) {
    move |to| {
        to.nest(12, |to| {
            to.attribute(2, &5u16.to_ne_bytes());
            fill(to);
        });
    }
}

pub(super) fn commit_to(port: u32, nat: Option<[u8; 4]>) -> impl FnOnce(&mut Writer) {
    move |to| {
        ct(|to| {
            to.attribute(1, &[]);
            if let Some(address) = nat {
                to.nest(6, |to| {
                    to.attribute(1, &[]);
                    to.attribute(3, &address);
                });
            }
        })(to);
        to.number(1, port);
    }
}

impl Site {
    /// A flow for IPv4 packets of a port in this state.
    pub(super) fn put_state(&mut self, in_port: u32, recirculation: u32, state: u32, acts: impl FnOnce(&mut Writer)) {
        let mut id = ufid(in_port, recirculation);
        id[2] = state as u8;
        let answers = self.ask(family::FLOW.id, command::NEW, flag::ACK | flag::CREATE, |to| {
            to.attribute(flow::UFID, &id);
            to.nest(flow::KEY, |to| {
                to.number(20, recirculation);
                to.number(3, in_port);
                to.number(22, state);
                to.attribute(4, &[0; 12]);
                to.attribute(6, &[8, 0]);
            });
            to.nest(flow::MASK, |to| {
                to.number(20, u32::MAX);
                to.number(3, u32::MAX);
                to.number(22, 0x3f);
                to.attribute(6, &[0xff; 2]);
            });
            to.nest(flow::ACTIONS, acts);
        });
        assert_eq!(error_of(&answers), 0);
    }

    /// Only the first side may open connections.
    pub(super) fn firewall(&mut self, nat: Option<[u8; 4]>) {
        let again = |to: &mut Writer| {
            ct(|to| {
                if nat.is_some() {
                    to.nest(6, |_| {})
                }
            })(to);
            to.number(7, 1);
        };
        for port in [1, 2] {
            self.put_state(port, 0, UNTRACKED, again);
        }
        self.put_state(1, 1, NEW, commit_to(2, nat));
        self.put_state(2, 1, NEW, |_| {});
        self.put_state(1, 1, ESTABLISHED, output(2));
        self.put_state(2, 1, REPLY, output(1));
    }

    /// The switch has no flow for it: what it goes on as, from where it waits or when it has come whole. Flows that went before are told next.
    pub(super) fn goes_on(&mut self, port: u32, frame: &[u8]) -> Vec<Vec<u8>> {
        self.told();
        self.miss(PortId(port), frame);
        let Some(FromControl::Resume { actions, .. }) = self.to_switch.pop() else { panic!("it waits for ever") };
        if actions == fetch(port as u16) {
            assert_eq!(self.told(), []);
            self.datapath.frame(&tagged(port as u16, frame));
            self.collect();
            return std::mem::take(&mut self.frames);
        }
        let mut header = Header::default();
        header.restart(frame.len()).copy_from_slice(frame);
        let mut sent = Vec::new();
        for action in actions {
            match action {
                Action::Edit(edit) => edit.apply(&mut header, &mut Offload::default(), 0).expect("it can be done"),
                Action::Output(PortId(to)) => sent.push(tagged(to as u16, header.bytes())),
                other => panic!("{other:?}"),
            }
        }
        sent
    }

    pub(super) fn connections(&mut self) -> Vec<String> {
        let mut to = Writer::new();
        to.begin(conntrack::GET, 1 | flag::DUMP, SEQUENCE, PID);
        conntrack::Meant::default().write(&mut to);
        to.end();
        self.datapath.request(PID, to.into_bytes());
        self.settle();
        let mut all = Vec::new();
        while let Some(part) = self.datapath.more(PID) {
            all.extend(messages(&part).filter(|m| m.kind == 0x100).map(|m| format!("{:?}", m.payload)));
        }
        all
    }

    /// A request about a time-out policy.
    pub(super) fn ask_timeouts(&mut self, kind: u16, name: &[u8; 32], policy: &Timeouts) -> Vec<Vec<u8>> {
        let mut to = Writer::new();
        to.begin(kind, 1 | flag::ACK, SEQUENCE, PID);
        policy.write(name, &mut to);
        to.end();
        self.datapath.request(PID, to.into_bytes());
        self.settle();
        std::mem::take(&mut self.answers)
    }

    fn flush(&mut self) -> i32 {
        let mut to = Writer::new();
        to.begin(conntrack::DELETE, 1 | flag::ACK, SEQUENCE, PID);
        conntrack::Meant::default().write(&mut to);
        to.end();
        self.datapath.request(PID, to.into_bytes());
        self.settle();
        error_of(&std::mem::take(&mut self.answers))
    }
}

#[test]
fn a_connections_packets_go_by_one_flow_between_its_beginning_and_its_end() {
    let mut site = Site::new();
    site.firewall(None);
    let ends = Ends::v4(1000, 80);
    let back = ends.back();
    site.told();
    site.miss(VM2, &back.tcp(&seg("S", 7, 0, 0)));
    let denied = site.told_flow();
    assert_eq!(denied.actions, [], "nobody may open from there");
    let (syn, answer) = (ends.tcp(&seg("S", 100, 0, 0)), back.tcp(&seg("SA", 300, 101, 0)));
    site.miss(VM1, &syn);
    let gone = FromControl::DelFlow { key: denied.key, mask: denied.mask, tell: true };
    let goes_on = FromControl::Resume { id: 5, actions: vec![Action::Output(VM2)] };
    assert_eq!(site.told(), [gone, goes_on], "the flow might hide answers");
    assert_eq!(site.goes_on(2, &answer), [tagged(1, &answer)]);
    let ack = ends.tcp(&seg("A", 101, 301, 0));
    assert_eq!(site.goes_on(1, &ack), [tagged(2, &ack)]);
    assert_eq!(site.connections().len(), 1);

    site.miss(VM1, &ends.tcp(&seg("PA", 101, 301, 100)));
    let forth = site.told_flow();
    assert_eq!(forth.actions, [Action::Output(VM2)]);
    let mask = forth.mask.0;
    assert_eq!((mask.ip_src, mask.l4_src, mask.l4_dst, mask.tcp_flags), ([0xff; 16], 0xffff, 0xffff, 7));
    assert_eq!((forth.key.tcp_flags, forth.key.ct_state, mask.ct_state), (0, 0, 0));
    site.miss(VM2, &back.tcp(&seg("A", 301, 201, 100)));
    assert_eq!(site.told_flow().actions, [Action::Output(VM1)]);

    // Its end comes here, and takes both flows with it.
    let fin = ends.tcp(&seg("FA", 201, 401, 0));
    assert_eq!(site.goes_on(1, &fin), [tagged(2, &fin)]);
    assert!(matches!(site.told()[..], [FromControl::DelFlow { .. }, FromControl::DelFlow { .. }]));
}

/// They would be two flows for each connection, each of them to be told and taken back.
#[test]
fn what_opens_a_connection_goes_on_from_where_it_waits() {
    let mut site = Site::new();
    site.firewall(None);
    let ends = Ends::v4(1000, 53);
    site.told();
    site.miss(VM1, &ends.udp(20));
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: vec![Action::Output(VM2)] }]);
    assert_eq!(site.connections().len(), 1);
    let carried: Vec<_> = site.datapath.table.after(0).map(|(_, flow)| flow.carried).collect();
    let counted: Vec<_> = carried.iter().map(|of| (of.packets, of.bytes)).collect();
    let once = (1, ends.udp(20).len() as u64);
    assert_eq!(counted, [once, (0, 0), once, (0, 0), (0, 0), (0, 0)], "it is counted where it is done");
    // What is behind the flow that opens it is not known: nothing happens before the packet comes whole.
    let mut site = Site::new();
    site.put_state(1, 0, UNTRACKED, |to| {
        ct(|to| to.attribute(1, &[]))(to);
        to.number(7, 9);
    });
    site.told();
    site.miss(VM1, &ends.udp(20));
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    assert_eq!(site.connections().len(), 0);
    site.datapath.frame(&tagged(1, &ends.udp(20)));
    site.collect();
    assert_eq!((site.upcalls.len(), site.connections().len()), (1, 1));
}

/// A new address is one that a look has not chosen, and an echo's and a fragment's connections are not told by ports.
#[test]
fn what_a_look_does_not_foresee_comes_whole() {
    let ends = Ends::v4(1000, 53);
    let mut fragment = ends.udp(20);
    fragment[20] = 0x20;
    let echo = [&udp(60)[..23], &[1], &udp(60)[24..]].concat();
    for (nat, frame) in [(Some([192, 168, 0, 9]), ends.udp(20)), (None, fragment), (None, echo)] {
        let mut site = Site::new();
        site.firewall(nat);
        site.told();
        site.miss(VM1, &frame);
        assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
        assert_eq!(site.connections().len(), 0);
    }
}

#[test]
fn a_flush_takes_the_flows_with_it() {
    let mut site = Site::new();
    site.firewall(None);
    let ends = Ends::v4(1000, 53);
    let (asks, answers) = (ends.udp(20), ends.back().udp(20));
    assert_eq!(site.goes_on(1, &asks), [tagged(2, &asks)]);
    // One that nobody has answered is carried, too.
    site.miss(VM1, &asks);
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    assert_eq!(site.goes_on(2, &answers), [tagged(1, &answers)]);
    assert!(matches!(site.told()[..], [FromControl::DelFlow { .. }]), "it is answered now");
    site.miss(VM1, &asks);
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    assert_eq!(site.connections().len(), 1);
    assert_eq!(site.flush(), 0);
    let told = site.told();
    assert!(told.iter().any(|told| matches!(told, FromControl::DelFlow { .. })), "{told:?}");
    assert_eq!(site.connections(), [] as [String; 0]);
    site.miss(VM2, &answers);
    assert_eq!(site.told_flow().actions, [], "what nobody asked for");
}

/// The whole table was gone through in one go, and no first packet was answered meanwhile.
#[test]
fn a_flush_of_many_connections_keeps_nobody_waiting() {
    const MANY: u32 = 10_000;
    let mut site = Site::new();
    site.firewall(None);
    let tracker = site.datapath.connections.tracker.as_ref().unwrap();
    for n in 0..MANY {
        let address = |first: u8, n: u32| {
            let [_, b, c, d] = n.to_be_bytes();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, first, b, c, d]
        };
        let tuple = Tuple::new([address(10, n), address(11, n)], [1000, 53], 17, false, 5);
        assert_eq!(tracker.adopt(tuple, &Commit::default(), 0), Ok(true));
    }
    let mut to = Writer::new();
    to.begin(conntrack::DELETE, 1 | flag::ACK, SEQUENCE, PID);
    conntrack::Meant::default().write(&mut to);
    to.end();
    let flush = to.into_bytes();
    // Nobody works for a client that has gone.
    site.datapath.request(PID, flush.clone());
    site.collect();
    assert!(site.datapath.is_busy());
    site.datapath.disconnected(PID);
    assert!(!site.datapath.is_busy());
    site.datapath.connected(PID);
    site.finished = 0;
    site.datapath.request(PID, flush);
    site.collect();
    let left = |site: &Site| site.datapath.connections.tracker.as_ref().map_or(0, |t| t.totals().connections);
    let (mut turns, mut before) = (0, left(&site));
    while site.finished == 0 {
        assert!(site.datapath.is_busy() && site.answers.is_empty(), "in turn {turns}");
        site.miss(VM2, &Ends::v4(2000 + turns, 53).udp(20));
        assert!(!site.told().is_empty(), "a packet is answered in turn {turns}");
        site.datapath.tick();
        site.collect();
        assert!(before - left(&site) <= 2048, "{} at once", before - left(&site));
        (turns, before) = (turns + 1, left(&site));
        assert!(turns < 1000);
    }
    assert!(turns >= (MANY / 2048) as u16 && !site.datapath.is_busy(), "{turns}");
    assert_eq!((error_of(&site.answers), left(&site)), (0, 0));
}

#[test]
fn addresses_are_translated_both_ways() {
    let mut site = Site::new();
    site.firewall(Some([192, 168, 0, 9]));
    let ends = Ends::v4(1000, 53);
    let sent = site.goes_on(1, &ends.udp(20)).remove(0);
    assert_eq!(sent[4..][26..30], [192, 168, 0, 9]);
    let mut answer = ends.back().udp(20);
    answer[30..34].copy_from_slice(&[192, 168, 0, 9]);
    let sum = |frame: &[u8]| lasthop_frame::sum::finish(lasthop_frame::sum::sum(&frame[14..34]));
    answer[24..26].fill(0);
    let header = sum(&answer);
    answer[24..26].copy_from_slice(&header.to_be_bytes());
    answer[40..42].fill(0);
    let came = site.goes_on(2, &answer).remove(0);
    assert_eq!(came[4..][30..34], [10, 0, 0, 1], "{came:?}");
    assert_eq!(sum(&[&came[..12], &came[16..]].concat()), 0xffff);
    site.miss(VM2, &answer);
    let flow = site.told_flow();
    let to = Set { part: Part::Ipv4, word: 4, value: 0x0a00_0001, mask: u32::MAX };
    assert_eq!(flow.actions, [Action::Edit(Edit::Set(to)), Action::Output(VM1)]);
}

#[test]
fn a_zone_that_is_full_takes_no_more() {
    use lasthop_ovs_abi::limit::{self, Limit};
    let mut site = Site::new();
    site.firewall(None);
    let limits = [Limit { zone: Some(5), limit: 1, count: 0 }];
    site.ask(family::CT_LIMIT.id, limit::command::SET, flag::ECHO, |to| Limit::write(&limits, to));
    assert_eq!(site.goes_on(1, &Ends::v4(1000, 53).udp(20)).len(), 1);
    assert_eq!(site.goes_on(1, &Ends::v4(1001, 53).udp(20)).len(), 0, "the second is one too many");
    let told = site.ask(family::CT_LIMIT.id, limit::command::GET, flag::ECHO, |to| Limit::write(&limits, to));
    assert_eq!(Limit::read(body(&only(&told[0]))), Ok(vec![Limit { count: 1, ..limits[0] }]));
    site.ask(family::CT_LIMIT.id, limit::command::DEL, flag::ECHO, |to| Limit::write(&limits, to));
    assert_eq!(site.goes_on(1, &Ends::v4(1001, 53).udp(20)).len(), 1);
}

/// A translation that is asked for once more.
fn translated(commit: bool, nat: Option<(u16, [u8; 4])>, mark: Option<u32>) -> impl FnOnce(&mut Writer) {
    move |to| {
        ct(|to| {
            if commit {
                to.attribute(1, &[]);
            }
            if let Some(mark) = mark {
                to.attribute(3, &[mark.to_ne_bytes(), [0xff; 4]].concat());
            }
            to.nest(6, |to| {
                if let Some((side, address)) = nat {
                    to.attribute(side, &[]);
                    to.attribute(3, &address);
                }
            });
        })(to);
    }
}

const SOURCE: u16 = 1;
const DESTINATION: u16 = 2;

#[test]
fn a_packet_that_was_translated_is_still_of_its_connection() {
    let mut site = Site::new();
    site.put_state(1, 0, UNTRACKED, |to| {
        translated(true, Some((DESTINATION, [10, 0, 0, 9])), None)(to);
        to.number(7, 1);
    });
    // A second translation of what has one already is none, and all else is done.
    site.put_state(1, 1, 0xa1, |to| {
        translated(true, Some((SOURCE, [10, 0, 0, 7])), Some(0xac))(to);
        to.number(7, 2);
    });
    site.put_state(1, 2, 0xa1, output(2));
    let ends = Ends::v4(1000, 53);
    let sent = site.goes_on(1, &ends.udp(20)).remove(0);
    assert_eq!(sent[4..][26..34], [10, 0, 0, 1, 10, 0, 0, 9]);
    assert_eq!(site.connections().len(), 1, "one connection with a mark, not two");
    let told = site.connections().remove(0);
    let mark = format!("{:?}", [0u8, 0, 0, 0xac]);
    assert!(told.contains(mark.trim_matches(['[', ']'])), "{told}");
    // The same of an answer that was translated back.
    site.put_state(2, 0, UNTRACKED, |to| {
        translated(false, None, None)(to);
        to.number(7, 1);
    });
    site.put_state(2, 1, 0xaa, |to| {
        translated(true, None, Some(0xbb))(to);
        to.number(1, 1);
    });
    let mut answer = ends.back().udp(20);
    answer[26..30].copy_from_slice(&[10, 0, 0, 9]);
    answer[24..26].fill(0);
    let sum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(&answer[14..34]));
    answer[24..26].copy_from_slice(&sum.to_be_bytes());
    answer[40..42].fill(0);
    let came = site.goes_on(2, &answer).remove(0);
    assert_eq!(came[4..][26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
    let told = site.connections();
    let mark = format!("{:?}", [0u8, 0, 0, 0xbb]);
    assert!(told.len() == 1 && told[0].contains(mark.trim_matches(['[', ']'])), "{told:?}");
}

#[test]
fn fragments_are_tracked_as_the_packet_that_they_are() {
    let mut site = Site::new();
    site.firewall(None);
    let frame = Ends::v4(1000, 53).udp(3000);
    let cut = crate::fragments::Fragments::default().cut(frame.clone(), 1500);
    assert_eq!(cut.len(), 3);
    assert_eq!(site.goes_on(1, &cut[2]).len(), 0);
    assert_eq!(site.goes_on(1, &cut[0]).len(), 0, "one is missing");
    assert_eq!(site.connections().len(), 0);
    let sent = site.goes_on(1, &cut[1]);
    assert_eq!(site.connections().len(), 1);
    let sent: Vec<_> = sent.iter().map(|frame| [&frame[..12], &frame[16..]].concat()).collect();
    assert_eq!(sent, cut, "they go on as they came");
}

#[test]
fn a_packet_of_fragments_goes_to_open_vswitch_whole_and_comes_back_so() {
    let mut site = Site::new();
    site.put_state(1, 0, UNTRACKED, |to| {
        ct(|_| {})(to);
        to.number(7, 1);
    });
    let frame = Ends::v4(1000, 53).udp(2000);
    let cut = crate::fragments::Fragments::default().cut(frame.clone(), 1500);
    cut.iter().for_each(|fragment| assert_eq!(site.goes_on(1, fragment).len(), 0));
    let upcall = site.upcalls.remove(0);
    let message = only(&upcall);
    let found = table::<{ packet::COUNT }>(body(&message)).unwrap();
    assert_eq!(found[usize::from(packet::PACKET)], Some(&frame[..]));
    let longest = found[usize::from(packet::MRU)].expect("how long its fragments were");
    assert_eq!(longest, 1500u16.to_ne_bytes());
    let key = found[usize::from(packet::KEY)].unwrap().to_vec();
    let longest = longest.to_vec();
    site.ask(family::PACKET.id, packet_command::EXECUTE, flag::ACK, |to| {
        to.attribute(packet::PACKET, &frame);
        to.nest(packet::KEY, |to| to.raw(&key));
        to.nest(packet::ACTIONS, output(2));
        to.attribute(packet::MRU, &longest);
    });
    assert_eq!(site.frames.len(), 2);
}

#[test]
fn later_fragments_of_ipv6_are_told_as_such() {
    let mut site = Site::new();
    let frame = Ends::v6(1000, 53).udp(3000);
    let cut = crate::fragments::Fragments::default().cut(frame, 1500);
    for (fragment, proto) in cut.iter().zip([17, 44, 44]) {
        site.goes_on(1, fragment);
        let upcall = site.upcalls.remove(0);
        let message = only(&upcall);
        let found = table::<{ packet::COUNT }>(body(&message)).unwrap();
        let key = table::<10>(found[usize::from(packet::KEY)].unwrap()).unwrap();
        assert_eq!(key[8].map(|ip| ip[36]), Some(proto));
    }
}

/// UDP that was answered and went on for seconds, which is not given up for others of the same port.
fn last(site: &mut Site, many: std::ops::Range<u16>, hosts: [u8; 2], ports: [u16; 2]) {
    for _ in 0..2 {
        site.datapath.set_now(site.datapath.now_ms + 3000);
        for n in many.clone() {
            let ends = Ends { hosts, ..Ends::v4(n, 53) };
            for (port, frame) in [(0, ends.udp(20)), (1, ends.back().udp(20)), (0, ends.udp(20))] {
                site.frames.clear();
                site.datapath.frame(&tagged(ports[port], &frame));
                site.collect();
                if site.frames.is_empty() {
                    // Who does not hear of it does not answer.
                    break;
                }
            }
        }
    }
}

/// Of a table of 400 a VM's port may open 100, another port 200. When all is taken, who has most makes room for who has few.
#[test]
fn a_port_takes_no_more_than_its_share_of_connections() {
    let mut site = Site::new();
    site.datapath.connections.tracker = Tracker::new(Config { capacity: 400, ..Config::default() });
    let names = ["vm3", "eth1", "vm4", "vm5"];
    let others = names.iter().enumerate().map(|(n, name)| (PortId(n as u32 + 4), *name));
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)].into_iter().chain(others).collect::<Vec<_>>());
    site.datapath.opened.insert("eth1".into());
    for name in names {
        assert_eq!(site.add_port(name, vport::NETDEV), 0);
    }
    site.put_state(1, 0, UNTRACKED, commit_to(2, None));
    for port in [3, 4, 5, 6] {
        site.put_state(port, 0, UNTRACKED, commit_to(1, None));
    }
    let owned = |site: &Site| {
        let tracker = site.datapath.connections.tracker.as_ref().expect("memory");
        [3, 4, 5, 6].map(|owner| tracker.owned(owner))
    };
    last(&mut site, 0..150, [3, 9], [3, 1]);
    assert_eq!(owned(&site), [100, 0, 0, 0]);
    let tracker = site.datapath.connections.tracker.as_ref();
    assert!(tracker.is_some_and(|tracker| tracker.refused(Refusal::OwnerLimit) > 0), "what is beyond that is dropped");
    last(&mut site, 0..250, [4, 9], [4, 1]);
    last(&mut site, 0..150, [5, 9], [5, 1]);
    assert_eq!(owned(&site), [100, 200, 100, 0]);
    last(&mut site, 0..50, [6, 9], [6, 1]);
    let [first, uplink, second, late] = owned(&site);
    assert_eq!((first, uplink + late, second), (100, 200, 100), "at the cost of who has most");
    assert!((1..=400 / 64).contains(&late), "{late}");
}

#[test]
fn a_connection_has_the_time_that_its_policy_says() {
    let mut site = Site::new();
    let (name, other) = (timeouts::name_of(b"ovs_tp_3_udp4").unwrap(), timeouts::name_of(b"ovs_tp_4_udp4").unwrap());
    let policy = Timeouts { family: 2, proto: 17, seconds: vec![(1, 5), (2, 5)] };
    let none = Timeouts::default();
    assert_eq!(error_of(&site.ask_timeouts(timeouts::NEW, &name, &policy)), 0);
    let told = site.ask_timeouts(timeouts::GET, &name, &none);
    assert_eq!(Timeouts::read(only(&told[0]).payload), Ok(policy.clone()));
    assert_eq!(error_of(&site.ask_timeouts(timeouts::GET, &other, &none)), Refused::NO_ENTRY.0);
    for (in_port, name) in [(1, name), (2, other)] {
        site.put_state(in_port, 0, UNTRACKED, |to| {
            ct(|to| {
                to.attribute(1, &[]);
                to.attribute(9, &name);
            })(to);
            to.number(1, 3 - in_port);
        });
    }
    site.goes_on(1, &Ends::v4(1000, 53).udp(20));
    site.goes_on(2, &Ends::v4(2000, 53).udp(20));
    site.datapath.set_now(1000 + 8000);
    site.datapath.tick();
    site.collect();
    assert_eq!(site.connections().len(), 1, "a policy that there is none of is the default's");
    assert_eq!(error_of(&site.ask_timeouts(timeouts::DELETE, &name, &none)), 0);
    assert_eq!(error_of(&site.ask_timeouts(timeouts::DELETE, &name, &none)), Refused::NO_ENTRY.0);
}

#[test]
fn fragments_do_not_outlive_their_datapath() {
    let mut site = Site::new();
    site.firewall(None);
    let cut = crate::fragments::Fragments::default().cut(Ends::v4(1000, 53).udp(2000), 1500);
    assert_eq!(site.goes_on(1, &cut[0]).len(), 0);
    site.ask(family::DATAPATH.id, command::DEL, flag::ACK, |to| to.text(datapath::NAME, "ovs-system"));
    assert_eq!(site.datapath.fragments.take().add((1, 5), &cut[1], 1000), None);
}

/// Open vSwitch does not read a policy that leaves states out: it logged an error, and left policies of its last life as they were.
#[test]
fn policies_are_told_with_the_seconds_of_all_states() {
    let mut site = Site::new();
    let tcp: Vec<_> = (1..).zip([120, 60, 432_000, 120, 60, 30, 120, 10, 120, 300, 300]).collect();
    let said = |mut of: Vec<(u16, u32)>, state: u16, seconds| {
        of[usize::from(state) - 1].1 = seconds;
        of
    };
    for (proto, set, told) in [
        (6, vec![], tcp.clone()),
        (6, vec![(3, 7)], said(tcp.clone(), 3, 7)),
        (6, vec![(9, 7)], said(tcp, 9, 7)),
        (17, vec![(2, 7)], vec![(1, 30), (2, 7)]),
        (1, vec![], vec![(1, 30)]),
    ] {
        let name = timeouts::name_of(b"ovs_tp_0_x4").unwrap();
        let policy = Timeouts { family: 2, proto, seconds: set };
        assert_eq!(error_of(&site.ask_timeouts(timeouts::NEW, &name, &policy)), 0);
        let answer = site.ask_timeouts(timeouts::GET, &name, &Timeouts::default());
        assert_eq!(Timeouts::read(only(&answer[0]).payload), Ok(Timeouts { seconds: told, ..policy }));
    }
}
