//! Connection tracking: whole packets move connections on, the switch's flows carry what is between.

use super::*;
use lasthop_conntrack::testutil::{Ends, seg};
use lasthop_frame::{Part, Set};
use lasthop_ovs_abi::conntrack;

const UNTRACKED: u32 = 0;
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

fn commit_to(port: u32, nat: Option<[u8; 4]>) -> impl FnOnce(&mut Writer) {
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
    fn put_state(&mut self, in_port: u32, recirculation: u32, state: u32, acts: impl FnOnce(&mut Writer)) {
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
    fn firewall(&mut self, nat: Option<[u8; 4]>) {
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

    /// The switch has no flow for it, it comes whole and goes on as this.
    fn whole(&mut self, port: u32, frame: &[u8]) -> Vec<Vec<u8>> {
        self.told();
        self.miss(PortId(port), frame);
        let told = self.told();
        assert!(matches!(&told[..], [FromControl::Resume { actions, .. }] if !actions.is_empty()), "{told:?}");
        self.datapath.frame(&tagged(port as u16, frame));
        self.collect();
        std::mem::take(&mut self.frames)
    }

    fn connections(&mut self) -> Vec<String> {
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
    site.told();
    site.datapath.frame(&tagged(1, &syn));
    site.collect();
    assert_eq!(std::mem::take(&mut site.frames), [tagged(2, &syn)]);
    assert_eq!(site.told(), [FromControl::DelFlow { key: denied.key, mask: denied.mask }], "it might hide answers");
    assert_eq!(site.whole(2, &answer), [tagged(1, &answer)]);
    let ack = ends.tcp(&seg("A", 101, 301, 0));
    assert_eq!(site.whole(1, &ack), [tagged(2, &ack)]);
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
    site.miss(VM1, &fin);
    site.told();
    site.datapath.frame(&tagged(1, &fin));
    site.collect();
    assert_eq!(std::mem::take(&mut site.frames), [tagged(2, &fin)]);
    let told = site.told();
    assert_eq!(told.iter().filter(|told| matches!(told, FromControl::DelFlow { .. })).count(), 2, "{told:?}");
}

#[test]
fn a_flush_takes_the_flows_with_it() {
    let mut site = Site::new();
    site.firewall(None);
    let ends = Ends::v4(1000, 53);
    let (asks, answers) = (ends.udp(20), ends.back().udp(20));
    assert_eq!(site.whole(1, &asks), [tagged(2, &asks)]);
    // One that nobody has answered is carried, too.
    site.miss(VM1, &asks);
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    assert_eq!(site.whole(2, &answers), [tagged(1, &answers)]);
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

#[test]
fn addresses_are_translated_both_ways() {
    let mut site = Site::new();
    site.firewall(Some([192, 168, 0, 9]));
    let ends = Ends::v4(1000, 53);
    let sent = site.whole(1, &ends.udp(20)).remove(0);
    assert_eq!(sent[4..][26..30], [192, 168, 0, 9]);
    let mut answer = ends.back().udp(20);
    answer[30..34].copy_from_slice(&[192, 168, 0, 9]);
    let sum = |frame: &[u8]| lasthop_frame::sum::finish(lasthop_frame::sum::sum(&frame[14..34]));
    answer[24..26].fill(0);
    let header = sum(&answer);
    answer[24..26].copy_from_slice(&header.to_be_bytes());
    answer[40..42].fill(0);
    let came = site.whole(2, &answer).remove(0);
    assert_eq!(came[4..][30..34], [10, 0, 0, 1], "{came:?}");
    assert_eq!(sum(&[&came[..12], &came[16..]].concat()), 0xffff);
    site.miss(VM2, &answer);
    let flow = site.told_flow();
    let to = Set { part: Part::Ipv4, word: 4, value: 0x0a00_0001, mask: u32::MAX };
    assert_eq!(flow.actions, [Action::Edit(Edit::Set(to)), Action::Output(VM1)]);
}
