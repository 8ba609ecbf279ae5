//! Network service headers: what is done to packets that come whole.

use super::*;

/// 63 hops left, metadata of type 1, path 1, this index.
fn header(index: u8, next: u8) -> [u8; 24] {
    let mut header = [0; 24];
    header[..8].copy_from_slice(&[0x0f, 0xc6, 1, next, 0, 0, 1, index]);
    header
}

/// What a key, a mask or a set says of it.
fn told(bytes: [u8; 8], context: [u8; 16]) -> impl Fn(&mut Writer) {
    move |to| {
        to.nest(28, |to| {
            to.attribute(1, &bytes);
            to.attribute(2, &context);
        });
    }
}

#[test]
fn service_headers_are_put_on_told_apart_changed_and_taken_off() {
    let mut site = Site::new();
    site.put_flow(1, 0, |to| {
        to.nest(17, told([0, 63, 1, 3, 0, 0, 1, 255], [0; 16]));
        to.attribute(14, &[0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1]);
        // The index alone.
        to.nest(11, |to| {
            to.nest(28, |to| {
                to.attribute(1, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0xff]);
            });
        });
        output(2)(to);
    });
    site.miss(VM1, &udp(60));
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    site.datapath.frame(&tagged(1, &udp(60)));
    site.collect();
    let sent = site.frames.remove(0);
    let addresses = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2];
    let of = |index| [&addresses[..], &[0x89, 0x4f], &header(index, 3), &udp(60)].concat();
    assert_eq!([&sent[..12], &sent[16..]].concat(), of(9));

    let mut put = |index: u8, acts: &dyn Fn(&mut Writer)| {
        let answers = site.ask(family::FLOW.id, command::NEW, flag::ACK | flag::CREATE, |to| {
            to.nest(flow::KEY, |to| {
                to.number(3, 2);
                to.attribute(4, &[0; 12]);
                to.attribute(6, &[0x89, 0x4f]);
                told([0, 63, 1, 3, 0, 0, 1, index], [0; 16])(to);
            });
            to.nest(flow::MASK, |to| {
                to.number(3, u32::MAX);
                to.attribute(6, &[0xff; 2]);
                told([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], [0; 16])(to);
            });
            to.nest(flow::ACTIONS, acts);
        });
        assert_eq!(error_of(&answers), 0);
    };
    put(9, &|to| {
        to.attribute(15, &[]);
        to.attribute(18, &[]);
        output(1)(to);
    });
    put(8, &|_| {});
    for index in [8, 9] {
        site.miss(VM2, &of(index));
        let all_come = [FromControl::Resume { id: 5, actions: fetch(2) }];
        assert_eq!(site.told(), all_come, "the switch cannot tell them apart");
    }
    site.datapath.frame(&tagged(2, &of(8)));
    // One that ends within its header is dropped, though its index is right.
    site.datapath.frame(&tagged(2, &of(9)[..30]));
    site.datapath.frame(&tagged(2, &of(9)));
    site.collect();
    assert_eq!(site.frames.len(), 1);
    assert_eq!([&site.frames[0][..12], &site.frames[0][16..]].concat(), udp(60));
}
