//! MPLS: what is done to packets that come whole.

use super::*;

#[test]
fn labels_of_mpls_are_pushed_told_apart_and_popped() {
    let mut site = Site::new();
    let label = |number: u32| (number << 12 | 0x140).to_be_bytes();
    site.put_flow(1, 0, |to| {
        to.attribute(9, &[&label(3)[..], &[0x88, 0x47, 0, 0]].concat());
        // Set, in part: the label becomes 5.
        to.nest(11, |to| to.attribute(21, &[label(5), 0xffff_f000u32.to_be_bytes()].concat()));
        output(2)(to);
    });
    site.miss(VM1, &udp(60));
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    site.datapath.frame(&tagged(1, &udp(60)));
    site.collect();
    let sent = site.frames.remove(0);
    let frame = [&sent[..12], &sent[16..]].concat();
    assert_eq!(frame, [&udp(60)[..12], &[0x88, 0x47], &label(5), &udp(60)[14..]].concat());

    let mut put = |number: u32, acts: &dyn Fn(&mut Writer)| {
        let answers = site.ask(family::FLOW.id, command::NEW, flag::ACK | flag::CREATE, |to| {
            to.nest(flow::KEY, |to| {
                to.number(3, 2);
                to.attribute(4, &[0; 12]);
                to.attribute(6, &[0x88, 0x47]);
                to.attribute(21, &label(number));
            });
            to.nest(flow::MASK, |to| {
                to.number(3, u32::MAX);
                to.attribute(6, &[0xff; 2]);
                to.attribute(21, &0xffff_f000u32.to_be_bytes());
            });
            to.nest(flow::ACTIONS, acts);
        });
        assert_eq!(error_of(&answers), 0);
    };
    put(5, &|to| {
        to.attribute(10, &[8, 0]);
        output(1)(to);
    });
    put(6, &|_| {});
    let of = |number: u32| [&udp(60)[..12], &[0x88, 0x47], &label(number), &udp(60)[14..]].concat();
    site.miss(VM2, &of(5));
    let all_come = [FromControl::Resume { id: 5, actions: fetch(2) }];
    assert_eq!(site.told(), all_come, "the switch cannot tell them apart");
    site.datapath.frame(&tagged(2, &of(6)));
    site.datapath.frame(&tagged(2, &of(5)));
    site.collect();
    assert_eq!(site.frames.len(), 1);
    assert_eq!([&site.frames[0][..12], &site.frames[0][16..]].concat(), udp(60));
}
