//! Queues of a receiver that are kept for one sender each.

use super::*;
use std::sync::atomic::Ordering::Relaxed;

/// Frames of so many connections from one station to another; each has its number at the end.
fn connections(from: u8, to: u8) -> impl Iterator<Item = Vec<u8>> {
    (0..40).map(move |n| {
        let ip = [from, to].map(|host| [10, 0, 0, host]);
        Frame::new(from, to).ipv4(ip[0], ip[1]).udp(1000 + u16::from(n), 9).payload([from, n]).build()
    })
}

/// Of each queue of the guest: frames from these stations.
fn got(guest: &mut Guest, stations: [u8; 2]) -> Vec<[usize; 2]> {
    let pairs = 0..guest.driver.config().pairs;
    let mut of = |pair| {
        let (mut sums, mut frame) = ([0; 2], Vec::new());
        while guest.driver.recv(pair, &mut frame).unwrap().is_some() {
            let from = stations.iter().position(|station| *station == frame[frame.len() - 2]).unwrap();
            sums[from] += 1;
            frame.clear();
        }
        sums
    };
    pairs.map(&mut of).collect()
}

/// Of each queue: whether frames of either came.
fn any(got: &[[usize; 2]]) -> Vec<[bool; 2]> {
    got.iter().map(|sums| sums.map(|frames| frames > 0)).collect()
}

#[test]
fn a_sender_has_a_queue_for_itself_and_the_others_the_rest() {
    let (datapath, mut forwarder) = switch();
    let mut senders = [1, 2].map(|id| Guest::new(&datapath, id, NetConfig::default(), 0));
    let mut up = Guest::new(&datapath, 3, NetConfig { pairs: 3, ..NetConfig::default() }, 0);
    for from in [1, 2] {
        datapath.flows().insert(flow(from, &[3]), 0).unwrap();
    }
    let mut send = |up: &mut Guest| {
        for (sender, station) in senders.iter_mut().zip([1, 2]) {
            connections(station, 3).for_each(|frame| sender.send(VnetHdr::default(), &frame));
            while forwarder.carry(&sender.port, 1, 0).packets > 0 {}
        }
        got(up, [1, 2])
    };
    // By their connections, over all of them.
    let all = send(&mut up);
    assert_eq!(any(&all), [[true; 2]; 3], "{all:?}");
    let keep = |up: &Guest, port| {
        up.port.kept_for[1].store(port, Relaxed);
        up.port.refresh();
    };
    keep(&up, 2);
    let kept = send(&mut up);
    assert_eq!(any(&kept), [[true, false], [false, true], [true, false]], "{kept:?}");
    assert_eq!(kept[1][1], 40);
    // Whose is not there sends as all do.
    let shared = [[true, true], [false, false], [true, true]];
    up.port.queues[2].set_enabled(false);
    up.port.refresh();
    assert_eq!(any(&send(&mut up)), shared);
    up.port.queues[2].set_enabled(true);
    // It is another port's.
    keep(&up, 9);
    assert_eq!(any(&send(&mut up)), shared);
    keep(&up, 0);
    assert_eq!(send(&mut up), all, "as before");
}

/// What has waited for control goes the same way.
#[test]
fn a_first_packet_goes_by_the_queue_of_its_sender() {
    let (datapath, mut forwarder) = switch();
    let mut sender = Guest::new(&datapath, 1, NetConfig::default(), 0);
    let mut up = Guest::new(&datapath, 3, NetConfig { pairs: 4, ..NetConfig::default() }, 0);
    up.port.kept_for[3].store(1, Relaxed);
    up.port.refresh();
    connections(1, 3).take(8).for_each(|frame| sender.send(VnetHdr::default(), &frame));
    forwarder.carry(&sender.port, 1, 0);
    while let Some(upcall) = sender.port.upcalls.report() {
        forwarder.resume(&sender.port, upcall.id, &[Action::Output(PortId(3))]);
    }
    assert_eq!(got(&mut up, [1, 2]), [[0, 0], [0, 0], [0, 0], [8, 0]]);
}
