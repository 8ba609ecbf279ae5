//! The payload moves once: what the forwarder moved, counted where guest memory is touched, against what was delivered.

use super::*;
use lasthop_frame::{SEGMENT_HEADER_LEN, SNAPSHOT_LEN};
use lasthop_guestmem::meter;

/// Bytes that the forwarder moves while it carries what `a` has sent.
fn moved(forwarder: &mut Forwarder, a: &Guest) -> u64 {
    let before = meter::moved();
    while forwarder.carry(&a.port, 1, 0).packets > 0 {}
    meter::moved() - before
}

/// Every delivered byte has been moved once; beyond that, only snapshots of headers: one for each packet taken, and for
/// each segment the header made from it. A second move of the payload, whole or in part, exceeds that.
fn check(what: &str, moved: u64, packets: usize, received: &[(VnetHdr, Vec<u8>)], payload: usize) {
    let frames: u64 = received.iter().map(|(_, f)| f.len() as u64).sum();
    let headers =
        (packets * (VnetHdr::LEN + SNAPSHOT_LEN) + received.len() * (VnetHdr::LEN + SEGMENT_HEADER_LEN)) as u64;
    // Headers may be written by other means, payload may not: it is of no fixed length.
    let least = (payload as u64).saturating_sub(headers);
    assert!(moved >= least, "{what}: {moved} bytes moved for {frames} delivered: payload moves where nobody counts");
    assert!(moved <= frames + headers, "{what}: {moved} bytes moved for {frames} delivered, {headers} of headers");
}

#[test]
fn payload_is_copied_once_for_each_delivery() {
    const SIZES: [usize; 5] = [300, 1400, 4000, 20_000, 65_000];
    for config in layouts() {
        for size in SIZES {
            let (datapath, mut forwarder) = switch();
            let mut a = Guest::new(&datapath, 1, config, 0);
            let mut b = Guest::new(&datapath, 2, config, 0);
            datapath.flows().insert(flow(1, &[2]), 0).unwrap();
            let frame = Frame::new(1, 2).ether_type(0x88b5).payload(vec![7; size]).build();
            (0..10).for_each(|_| a.send(VnetHdr::default(), &frame));
            let moved = moved(&mut forwarder, &a);
            let received = b.received();
            assert_eq!(received.len(), 10);
            check(&format!("{size} B, {config:?}"), moved, 10, &received, 10 * size);
        }
    }
}

#[test]
fn small_buffers_that_are_merged_cost_no_second_copy() {
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 1500, size: 64, ..NetConfig::default() };
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut b = Guest::new(&datapath, 2, config, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    a.send(VnetHdr::default(), &Frame::new(1, 2).ether_type(0x88b5).payload(vec![9; 60_000]).build());
    let moved = moved(&mut forwarder, &a);
    let received = b.received();
    assert_eq!(received.len(), 1);
    check("merged", moved, 1, &received, 60_000);
}

#[test]
fn a_flood_copies_once_for_each_receiver() {
    let config = NetConfig { tx_buffer: 9000, rx_buffer: 9000, ..NetConfig::default() };
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, config, 0);
    let mut others: Vec<_> = (2..6).map(|id| Guest::new(&datapath, id, config, 0)).collect();
    datapath.flows().insert(flow(1, &[2, 3, 4, 5]), 0).unwrap();
    (0..20).for_each(|_| a.send(VnetHdr::default(), &Frame::new(1, 255).payload(vec![3; 8000]).build()));
    let moved = moved(&mut forwarder, &a);
    let received: Vec<_> = others.iter_mut().flat_map(Guest::received).collect();
    assert_eq!(received.len(), 80);
    check("flood", moved, 20, &received, 80 * 8000);
}

/// Who is to have the next turn goes by it: the sender's own bytes are a quarter of what is moved.
#[test]
fn an_outcome_has_what_copies_for_several_took() {
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let _others: Vec<_> = (2..6).map(|id| Guest::new(&datapath, id, NetConfig::default(), 0)).collect();
    for (to, most) in [(&[2][..], 0), (&[2, 3, 4, 5], 2 * 10 * 4 * (1000 + 512))] {
        datapath.flows().remove_if(|_| true);
        datapath.flows().insert(flow(1, to), 0).unwrap();
        (0..10).for_each(|_| a.send(VnetHdr::default(), &Frame::new(1, 255).payload(vec![3; 986]).build()));
        let outcome = forwarder.carry(&a.port, 1, 0);
        assert_eq!(outcome.packets, 10);
        let least = if most == 0 { 0 } else { 10 * 4 * 1000 };
        assert!((least..=most).contains(&outcome.copied), "{} to {}", outcome.copied, to.len());
    }
}

#[test]
fn segments_and_sums_are_made_in_the_one_copy() {
    let config = NetConfig { tx_buffer: 70_000, rx_buffer: 2048, ..NetConfig::default() };
    let (datapath, mut forwarder) = switch();
    let mut a = Guest::new(&datapath, 1, config, 0);
    // Takes neither large packets nor incomplete sums.
    let mut b = Guest::new(&datapath, 2, config, 0);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    let whole =
        Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![5; 60_000]).partial_checksum();
    a.send(whole.vnet(VnetHdr::GSO_TCPV4, 1448), &whole.build());
    let segmented = moved(&mut forwarder, &a);
    let received = b.received();
    assert_eq!(received.len(), 60_000usize.div_ceil(1448));
    check("segmented", segmented, 1, &received, 60_000);

    let partial =
        Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(vec![5; 1400]).partial_checksum();
    a.send(partial.vnet(VnetHdr::GSO_NONE, 0), &partial.build());
    let summed = moved(&mut forwarder, &a);
    let received = b.received();
    assert_eq!(received.len(), 1);
    check("summed", summed, 1, &received, 1400);
}
