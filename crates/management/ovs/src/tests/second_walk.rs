//! What only the walk meets that moves a connection on, and not the look before that.

use super::meters::*;
use super::*;
use lasthop_conntrack::testutil::Ends;

fn marked(site: &mut Site, mark: u32, acts: impl FnOnce(&mut Writer)) {
    let mut id = ufid(1, 1);
    id[3] = 1 + mark as u8;
    let answers = site.ask(family::FLOW.id, command::NEW, flag::ACK | flag::CREATE, |to| {
        to.attribute(flow::UFID, &id);
        to.nest(flow::KEY, |to| {
            to.number(20, 1);
            to.number(3, 1);
            to.number(24, mark);
            to.attribute(4, &[0; 12]);
            to.attribute(6, &[8, 0]);
        });
        to.nest(flow::MASK, |to| {
            to.number(20, u32::MAX);
            to.number(3, u32::MAX);
            to.number(24, u32::MAX);
            to.attribute(6, &[0xff; 2]);
        });
        to.nest(flow::ACTIONS, acts);
    });
    assert_eq!(error_of(&answers), 0);
}

fn commit_mark(to: &mut Writer) {
    to.nest(12, |to| {
        to.attribute(1, &[]);
        to.attribute(2, &5u16.to_ne_bytes());
        to.attribute(3, &[7u32.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
    });
    to.number(7, 1);
}

/// The mark that the second walk sets leads to a meter that the look has not seen: it is metered here, and in the switch once more.
#[test]
fn what_only_the_second_walk_meets_is_metered_once() {
    let mut site = Site::new();
    site.set_meter(7, &packets(10, 1));
    site.put_state(1, 0, connections::UNTRACKED, commit_mark);
    marked(&mut site, 0, output(2));
    marked(&mut site, 7, |to| {
        to.number(19, 7);
        output(2)(to);
    });
    site.told();
    site.miss(VM1, &Ends::v4(1000, 53).udp(20));
    let told = site.told();
    let metered_there = told.iter().any(
        |told| matches!(told, FromControl::Resume { actions, .. } if actions.iter().any(|a| matches!(a, Action::Meter(_)))),
    );
    let [came, _] = site.counted(lasthop_ovs_abi::meter::command::GET, 7);
    let metered_here = came.is_some_and(|[packets, _]| packets > 0);
    assert!(!(metered_here && metered_there), "twice: {told:?}");
}

/// As above, of a sample: what is drawn has a number that is nobody's.
#[test]
fn what_only_the_second_walk_samples_is_told() {
    let mut site = Site::new();
    site.datapath = std::mem::take(&mut site.datapath).with_seed(0x1234_5678_9abc_def1);
    site.put_state(1, 0, connections::UNTRACKED, commit_mark);
    marked(&mut site, 0, output(2));
    marked(&mut site, 7, |to| {
        to.nest(6, |to| {
            to.number(1, u32::MAX);
            to.nest(2, |to| {
                to.nest(2, |to| {
                    to.number(1, PID);
                    to.attribute(2, b"sFlow");
                });
            });
        });
        output(2)(to);
    });
    site.told();
    let frame = Ends::v4(1000, 53).udp(20);
    site.miss(VM1, &frame);
    let told = site.told();
    let drawn = told.iter().find_map(|told| match told {
        FromControl::Resume { actions, .. } => actions.iter().find_map(|action| match action {
            Action::ToControl(number) => Some(*number),
            _ => None,
        }),
        _ => None,
    });
    if told == [FromControl::Resume { id: 5, actions: fetch(1) }] {
        site.datapath.frame(&tagged(1, &frame));
        site.collect();
    } else if let Some(number) = drawn {
        let key = FlowKey { in_port: VM1.0, ..FlowKey::default() };
        let upcall =
            UpcallPacket { id: 1 << 32, copy: Some(number), key, header: frame.clone(), frame_len: frame.len() as u32 };
        site.datapath.hear_switch(&ToControl::Upcall(upcall));
        site.collect();
    }
    assert_eq!(site.upcalls.len(), 1, "Open vSwitch is told of none: {told:?}");
}
