//! `check_pkt_len`: what is done by a packet's length.

use super::*;

/// Packets longer than this do the first, others the second.
fn check(longest: u16, to: &mut Writer, longer: impl FnOnce(&mut Writer), other: impl FnOnce(&mut Writer)) {
    to.nest(21, |to| {
        to.attribute(1, &longest.to_ne_bytes());
        to.nest(2, longer);
        to.nest(3, other);
    });
}

/// `execute_check_pkt_len` of the kernel's does it with a clone, unless it is the last action of its list.
#[test]
fn what_is_done_by_the_length_stays_only_if_nothing_follows() {
    let mut site = Site::new();
    let edited = |to: &mut Writer| {
        to.nest(3, |to| to.attribute(4, &[2, 8, 8, 8, 8, 8, 2, 9, 9, 9, 9, 9]));
        output(2)(to);
    };
    site.set_meter(5, &meters::packets(10, 1));
    let dropped = |to: &mut Writer| to.number(19, 5);
    site.put_flow(1, 0, |to| {
        check(500, to, edited, dropped);
        output(2)(to);
        check(500, to, edited, |_| ());
    });
    let (long, short) = (udp(600), udp(100));
    let mut sent = |frame: &[u8]| {
        site.datapath.frame(&tagged(1, frame));
        site.collect();
        std::mem::take(&mut site.frames)
    };
    let other = [&[2, 9, 9, 9, 9, 9, 2, 8, 8, 8, 8, 8], &long[12..]].concat();
    assert!(sent(&long) == [&other, &long, &other].map(|frame| tagged(2, frame)));
    assert!(
        sent(&short) == [tagged(2, &short)] && sent(&short) == [tagged(2, &short)],
        "a drop ends its own list only"
    );
}

/// The kernel compares with what comes out, fragments again, none of which is longer.
#[test]
fn a_packet_of_fragments_is_as_long_as_its_longest() {
    let mut site = Site::new();
    let again = |to: &mut Writer| {
        to.nest(12, |_| {});
        to.number(7, 1);
    };
    site.put_state(1, 0, 0, again);
    let address = |to: &mut Writer| to.nest(3, |to| to.attribute(4, &[2, 8, 8, 8, 8, 8, 2, 9, 9, 9, 9, 9]));
    let after = |to: &mut Writer| {
        check(1513, to, output(2), address);
        check(1514, to, address, output(2));
    };
    site.put_state(1, 1, 0x21, after);
    let fragments = site.datapath.fragments.get_mut().cut(udp(2042), 1500);
    assert_eq!(fragments.iter().map(Vec::len).collect::<Vec<_>>(), [1514, 562]);
    for fragment in &fragments {
        site.datapath.frame(&tagged(1, fragment));
    }
    site.collect();
    let twice: Vec<_> = fragments.iter().chain(&fragments).map(|fragment| fragment.len() + 4).collect();
    assert_eq!(site.frames.iter().map(Vec::len).collect::<Vec<_>>(), twice);
}
