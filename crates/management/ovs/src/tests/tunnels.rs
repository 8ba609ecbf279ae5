//! Tunnel ports: packets and messages of their uplink in; flows, packets and messages out.

use super::*;
use lasthop_tunnel::{Message as Said, Tunnel, tci_of, with_number};

const TUNNEL: PortId = PortId(4);
const NAME: &str = "genev_sys_6081";
/// Open vSwitch's number of it.
pub(super) const NO: u16 = 3;

pub(super) fn site() -> Site {
    let mut site = Site::new();
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT), (TUNNEL, NAME)]);
    let answer = site.ask(family::VPORT.id, command::NEW, flag::ACK, |to| {
        to.text(vport::NAME, NAME);
        to.number(vport::TYPE, vport::GENEVE);
        to.number(vport::UPCALL_PID, PID);
        to.nest(vport::OPTIONS, |to| to.attribute(1, &6081u16.to_ne_bytes()));
    });
    assert_eq!(error_of(&answer), 0);
    site.told();
    site
}

/// From 10.1.0.`end`, in network 5.
fn tunnel(end: u8) -> Tunnel {
    let mapped = |end| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, end];
    let (id, local, remote) = (5u64.to_be_bytes(), mapped(1), mapped(end));
    Tunnel { id, local, remote, ttl: 64, ..Tunnel::default() }
}

impl Site {
    /// The uplink says something.
    fn said(&mut self, message: Said<'_>) {
        self.datapath.frame(&tagged(NO, &message.write()));
        self.collect();
    }

    /// What it was sent.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }
}

/// A frame from here without the tag that names the port.
fn untagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &frame[16..]].concat()
}

/// To 10.1.0.2, network 5.
fn encapsulate(to: &mut Writer) {
    encapsulate_from(&[], to);
    to.number(1, NO.into());
}

/// The outer header alone, from this address if it is one.
pub(super) fn encapsulate_from(local: &[u8], to: &mut Writer) {
    to.nest(3, |to| {
        to.nest(16, |to| {
            to.attribute(0, &5u64.to_be_bytes());
            if !local.is_empty() {
                to.attribute(1, local);
            }
            to.attribute(2, &[10, 1, 0, 2]);
            to.attribute(4, &[64]);
        });
    });
}

#[test]
fn what_goes_out_has_a_number_once_the_uplink_knows_it() {
    let mut site = site();
    assert_eq!(site.put_flow(1, 0, encapsulate), 0);
    let frame = udp(300);
    let goes_the_long_way = |site: &mut Site| {
        site.miss(VM1, &frame);
        let told = site.told();
        assert!(matches!(told[..], [FromControl::Resume { .. }]), "no flow before the number is known: {told:?}");
        site.datapath.frame(&tagged(1, &frame));
        site.collect();
    };
    goes_the_long_way(&mut site);
    let meaning = Tunnel { local: [0; 16], flags: Tunnel::KEY, ..tunnel(2) };
    let message = Said::Packet { number: 1, tunnel: meaning, frame: &frame };
    assert_eq!(site.sent(), [tagged(NO, &message.write())]);

    // The answer to another meaning is none to this.
    site.said(Said::Known { number: 1, tunnel: tunnel(3) });
    goes_the_long_way(&mut site);
    assert_eq!(site.sent(), [tagged(NO, &message.write())]);
    site.said(Said::Known { number: 1, tunnel: meaning });
    site.miss(VM1, &frame);
    let push = Action::Edit(Edit::PushVlan { tpid: 0x88a8, tci: tci_of(1) });
    assert_eq!(site.told_flow().actions, [push, Action::Output(TUNNEL), Action::Edit(Edit::PopVlan)]);

    // The uplink was started anew.
    site.said(Said::Unknown(1));
    let told = Said::Packet { number: 1, tunnel: meaning, frame: &[] };
    assert_eq!(site.sent(), [tagged(NO, &told.write())]);
    goes_the_long_way(&mut site);
    assert_eq!(site.sent(), [tagged(NO, &message.write())]);
}

#[test]
fn without_an_outer_header_nothing_goes_into_a_tunnel() {
    let mut site = site();
    assert_eq!(site.put_flow(1, 0, output(NO.into())), 0);
    site.miss(VM1, &udp(300));
    assert_eq!(site.told_flow().actions, []);
}

#[test]
fn what_comes_in_has_its_tunnels_key_and_a_number_means_one_tunnel() {
    let mut site = site();
    let frame = udp(300);
    let message = |end, number| Said::Packet { number, tunnel: tunnel(end), frame: &frame };
    site.said(message(2, 9));
    let upcall = site.upcalls.remove(0);
    let key = table::<{ packet::COUNT }>(body(&only(&upcall))).unwrap()[usize::from(packet::KEY)].unwrap();
    let key = Key::read(key, None).unwrap().0;
    assert_eq!((key.tunnel, key.packet), (tunnel(2), key_of(NO.into(), 0, &frame).packet));
    assert!(site.sent().is_empty(), "nobody wants it: its number is not known");
    site.miss(TUNNEL, &with_number(9, &frame));
    assert_eq!(site.sent(), [tagged(NO, &Said::Unknown(9).write())]);
    site.told();

    assert_eq!(site.put_flow(NO.into(), 0, output(1)), 0);
    site.said(message(2, 9));
    assert_eq!(site.sent(), [tagged(1, &frame), tagged(NO, &Said::Known { number: 9, tunnel: tunnel(2) }.write())]);
    site.miss(TUNNEL, &with_number(9, &frame));
    let flow = site.told_flow();
    assert_eq!(flow.actions, [Action::Edit(Edit::PopVlan), Action::Output(VM1)]);
    assert_eq!((flow.key.vlan_tci, flow.mask.0.vlan_tci), (FlowKey::VLAN_PRESENT | tci_of(9), u16::MAX));

    // The number gets another meaning: no flow of before may know it when that is said to be known.
    site.said(message(3, 9));
    assert_eq!(site.sent(), [tagged(1, &frame)]);
    let told = site.told();
    let [FromControl::DelFlow { key, mask, .. }, FromControl::Ask { request, question: DatapathRequest::Barrier }] =
        told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((key, mask), (flow.key, flow.mask));
    site.said(message(3, 9));
    assert_eq!(site.sent(), [tagged(1, &frame)]);
    let reply = DatapathReply::Barrier;
    site.datapath.hear_switch(&ToControl::Reply { request, last: true, reply });
    site.said(message(3, 9));
    assert_eq!(site.sent(), [tagged(1, &frame), tagged(NO, &Said::Known { number: 9, tunnel: tunnel(3) }.write())]);
}

/// The second guest sends with ever new outer headers: what it has taken it gives back, and no flow of the first one's goes.
#[test]
fn who_has_taken_most_numbers_gives_them_back() {
    let mut site = site();
    assert_eq!(site.put_flow(1, 0, encapsulate), 0);
    let (frame, meaning) = (udp(60), Tunnel { local: [0; 16], flags: Tunnel::KEY, ..tunnel(2) });
    site.datapath.frame(&tagged(1, &frame));
    site.said(Said::Known { number: 1, tunnel: meaning });
    site.miss(VM1, &frame);
    let first = site.told_flow();
    let other = |n: u64| Tunnel { id: (1 << 32 | n).to_be_bytes(), flags: Tunnel::KEY, ..tunnel(2) };
    let send = |site: &mut Site, n: u64| {
        site.datapath.tunnels.sender = 2;
        site.datapath.send_through(NO.into(), &other(n), &frame);
        site.collect();
        match Said::read(&untagged(&site.sent().pop().expect("it goes"))) {
            Some(Said::Packet { number, tunnel, .. }) if tunnel == other(n) => number,
            said => panic!("{said:?}"),
        }
    };
    for n in 2..=u64::from(lasthop_tunnel::MAX_NUMBER) {
        assert_eq!(u64::from(send(&mut site, n)), n);
    }
    // The second guest has a flow, too.
    site.said(Said::Known { number: 2, tunnel: other(2) });
    assert_eq!(
        site.put_flow(2, 0, |to| {
            to.nest(3, |to| {
                to.nest(16, |to| {
                    to.attribute(0, &(1u64 << 32 | 2).to_be_bytes());
                    to.attribute(1, &[10, 1, 0, 1]);
                    to.attribute(2, &[10, 1, 0, 2]);
                    to.attribute(4, &[64]);
                });
            });
            to.number(1, NO.into());
        }),
        0
    );
    site.told();
    site.miss(VM2, &frame);
    let second = site.told_flow();
    assert_eq!(send(&mut site, 1 << 20), 0, "before the switch has forgotten what the number meant it goes without");
    let told = site.told();
    let [FromControl::DelFlow { key, mask, .. }, FromControl::Ask { request, question: DatapathRequest::Barrier }] =
        told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((key, mask), (second.key, second.mask));
    assert_eq!(send(&mut site, 1 << 20), 0);
    let reply = DatapathReply::Barrier;
    site.datapath.hear_switch(&ToControl::Reply { request, last: true, reply });
    assert_eq!(send(&mut site, 1 << 20), 2);
    // Round and round.
    for n in 0..40_000 {
        send(&mut site, 1 << 21 | n);
    }
    let gone = |told: &FromControl| matches!(told, FromControl::DelFlow { .. } | FromControl::ClearFlows);
    assert!(!site.told().iter().any(gone));
    site.miss(VM1, &frame);
    assert_eq!(site.told_flow().actions, first.actions, "its number is its own");
}

/// Who gives numbers another meaning all the time costs neither a search of all flows for each nor a question to the switch.
#[test]
fn many_numbers_with_another_meaning_cost_one_question() {
    let mut site = site();
    assert_eq!(site.put_flow(NO.into(), 0, output(1)), 0);
    let frame = udp(100);
    let say = |site: &mut Site, network: u32| {
        for number in 1..=1000 {
            let tunnel = Tunnel { id: u64::from(network).to_be_bytes(), tos: number as u8, ..tunnel(2) };
            let message = Said::Packet { number, tunnel, frame: &frame };
            site.datapath.frame(&tagged(NO, &message.write()));
        }
        site.collect();
        site.sent().iter().filter(|sent| Said::read(&untagged(sent)).is_some()).count()
    };
    assert_eq!(say(&mut site, 5), 1000, "all are known");
    for number in [7, 8] {
        site.miss(TUNNEL, &with_number(number, &frame));
        site.told_flow();
    }
    assert_eq!(say(&mut site, 6), 0);
    let told = site.told();
    let gone = told.iter().filter(|told| matches!(told, FromControl::DelFlow { .. })).count();
    assert_eq!((gone, told.len()), (2, 3), "flows of before, and one question: {told:?}");
    let Some(FromControl::Ask { request, question: DatapathRequest::Barrier }) = told.last() else {
        panic!("{told:?}")
    };
    assert_eq!(say(&mut site, 6), 0, "before it is answered");
    let reply = DatapathReply::Barrier;
    site.datapath.hear_switch(&ToControl::Reply { request: *request, last: true, reply });
    assert_eq!(say(&mut site, 6), 1000);
}

/// However many an uplink that was taken over sends: no flow brings them here, each waits in one of its port's places.
#[test]
fn what_an_uplink_says_comes_as_a_miss() {
    let mut site = site();
    let said = Said::Packet { number: 1, tunnel: tunnel(2), frame: &udp(60) }.write();
    for _ in 0..2 {
        site.miss(TUNNEL, &said);
        assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(NO) }]);
    }
}

proptest! {
    /// Whatever a tunnel's uplink sends, the datapath goes on.
    #[test]
    fn any_frame_of_an_uplink_is_borne(bytes in prop::collection::vec(any::<u8>(), 0..400), number in 0u16..3, kind in 0u8..5) {
        let mut site = site();
        let mut frame = vec![0; 12];
        frame.extend([0x88, 0xa8, 0, number as u8, 0x88, 0xb5, kind, 0]);
        frame.extend(&bytes);
        site.datapath.frame(&tagged(NO, &frame));
        site.miss(TUNNEL, &frame);
        site.collect();
    }
}
