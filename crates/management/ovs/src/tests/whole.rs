//! Packets that come whole, one by one.

use super::*;

/// What brings a packet of this port to `lasthop-ovs`.
pub(super) fn fetch(port: u16) -> Vec<Action> {
    vec![Action::Edit(Edit::PushVlan { tpid: 0x88a8, tci: port + 1 }), Action::Output(PACKETS)]
}

#[test]
fn what_cannot_be_one_flow_is_done_here_packet_by_packet() {
    let mut site = Site::new();
    // To the first port, then to Open vSwitch with some data, then back to where it came from.
    site.put_flow(1, 0, |to| {
        to.number(1, 2);
        to.nest(2, |to| {
            to.number(1, PID);
            to.attribute(2, b"cookie");
        });
        to.number(1, 1);
    });
    let frame = udp(600);
    // No flow brings such packets here: a guest that floods them has 32 on their way at most, and others' first packets are not behind all of its.
    for _ in 0..2 {
        site.miss(VM1, &frame);
        assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    }
    site.datapath.frame(&tagged(1, &frame));
    site.collect();
    assert_eq!(site.frames, [tagged(2, &frame), tagged(1, &frame)]);
    let upcall = site.upcalls.remove(0);
    assert_eq!(only(&upcall).payload[0], packet_command::ACTION);
    let found = table::<{ packet::COUNT }>(body(&only(&upcall))).unwrap();
    assert_eq!(found[usize::from(packet::USERDATA)], Some(&b"cookie"[..]));
    assert_eq!(site.statistics(1, 0, &[]), (1, 600), "it is counted where it is done");
}
