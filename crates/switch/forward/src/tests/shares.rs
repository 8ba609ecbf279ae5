//! What several senders get of a receiver that is slower than all of them together.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Senders of a receiver, each with frames of one length and a weight, that always have packets in their rings.
struct Crowd {
    _datapath: Arc<Datapath>,
    forwarder: Forwarder,
    senders: Vec<(Guest, usize)>,
    receiver: Guest,
    now_ns: u64,
}

impl Crowd {
    fn new(config: NetConfig, senders: &[(u32, usize)]) -> Self {
        let (datapath, forwarder) = switch();
        let receiver = Guest::new(&datapath, 100, config, 0);
        let senders = (1u32..).zip(senders).map(|(id, &(weight, len))| {
            let guest = Guest::new(&datapath, id, config, 0);
            guest.port.weight.store(weight, std::sync::atomic::Ordering::Relaxed);
            datapath.flows().insert(flow(id, &[100]), 0).unwrap();
            (guest, len)
        });
        let senders = senders.collect();
        Self { _datapath: datapath, forwarder, senders, receiver, now_ns: SECOND }
    }

    /// The `n`th sender has so many packets more, if there is room for them, and its ring is looked at.
    fn carry(&mut self, n: usize, packets: usize) -> Outcome {
        let (guest, len) = &mut self.senders[n];
        let frame = Frame::new(n as u8 + 1, 100).ether_type(0x88b5).payload(vec![7; *len - 14]).build();
        let sent = |_| guest.driver.send(0, &VnetHdr::default().to_bytes(), &frame).unwrap().is_ok();
        let _ = (0..packets).all(sent);
        guest.driver.flush(0);
        self.now_ns += 1000;
        self.forwarder.carry(&guest.port, 1, self.now_ns)
    }

    /// Takes so many frames off the receiver's ring; the bytes that came from each sender.
    fn receive(&mut self, most: usize, bytes: &mut [usize]) {
        for _ in 0..most {
            let mut frame = Vec::new();
            let Some(_) = self.receiver.driver.recv(0, &mut frame).unwrap() else { break };
            bytes[usize::from(frame[11]) - 1] += frame.len();
        }
    }

    /// The receiver takes `at_once` frames, then each sender is looked at, the first of them `oftener` times as often: so it goes so many times.
    /// Part of all bytes that each got, once the first fifth is over.
    fn shares(&mut self, rounds: usize, at_once: usize, oftener: usize) -> Vec<f64> {
        let mut bytes = vec![0; self.senders.len()];
        for round in 0..rounds {
            if round == rounds / 5 {
                bytes.fill(0);
            }
            for n in 0..self.senders.len() {
                for _ in 0..if n == 0 { oftener } else { 1 } {
                    self.receive(at_once, &mut bytes);
                    self.carry(n, 64);
                    self.now_ns += 20_000;
                }
            }
        }
        let all: usize = bytes.iter().sum();
        bytes.iter().map(|bytes| *bytes as f64 / all as f64).collect()
    }
}

#[test]
fn senders_of_a_slow_receiver_get_shares_by_their_weights() {
    let cases: [&[(u32, usize, f64)]; 5] = [
        &[(100, 200, 0.5), (100, 200, 0.5)],
        &[(100, 200, 0.25), (300, 200, 0.75)],
        &[(100, 200, 0.5), (100, 1500, 0.5)],
        &[(300, 200, 0.75), (100, 1500, 0.25)],
        &[(100, 1500, 0.1), (200, 200, 0.2), (700, 1000, 0.7)],
    ];
    let layouts = layouts().take(2).map(|config| NetConfig { size: 512, ..config });
    for (config, case) in layouts.flat_map(|config| cases.map(|case| (config, case))) {
        for (at_once, oftener) in [(1, 1), (7, 1), (30, 1), (16, 3), (5, 9)] {
            let senders: Vec<_> = case.iter().map(|&(weight, len, _)| (weight, len)).collect();
            let shares = Crowd::new(config, &senders).shares(if at_once < 5 { 8000 } else { 1500 }, at_once, oftener);
            for (share, (.., fair)) in shares.iter().zip(case) {
                let what = format!("{case:?}, {at_once} at once, the first {oftener} times as often: {shares:?}");
                assert!((share / fair - 1.0).abs() < 0.05, "{what}");
            }
        }
    }
}

/// A sender that has had its turn, and has nothing more, holds nobody up: another one has the receiver for itself, whatever their weights.
#[test]
fn a_sender_that_is_gone_or_has_little_holds_up_nobody() {
    let mut crowd = Crowd::new(NetConfig { size: 512, ..NetConfig::default() }, &[(1, 200), (1000, 200)]);
    let (mut bytes, mut taken) = (vec![0; 2], 0);
    for round in 0..4000 {
        // The second has a frame now and then, and for some time none.
        let some = usize::from(round % 20 == 0 && !(1000..2000).contains(&round));
        crowd.carry(1, some);
        crowd.carry(0, 64);
        crowd.now_ns += 50_000;
        let before = bytes[0];
        crowd.receive(10, &mut bytes);
        taken += usize::from(bytes[0] > before);
    }
    crowd.receive(usize::MAX, &mut bytes);
    assert_eq!(bytes[1], 150 * 200, "all that the second had");
    assert!(taken > 3990, "frames of the first came in {taken} of 4000 rounds");
}

/// What a sender got when nobody else had packets is not held against it when somebody comes.
#[test]
fn what_a_sender_got_alone_is_forgotten() {
    let mut crowd = Crowd::new(NetConfig { size: 512, ..NetConfig::default() }, &[(100, 200), (100, 200)]);
    let mut bytes = vec![0; 2];
    for _ in 0..2000 {
        crowd.receive(10, &mut bytes);
        crowd.carry(0, 64);
    }
    // It has nothing for a moment, and another one begins.
    while crowd.carry(0, 0).packets > 0 {
        crowd.receive(64, &mut bytes);
    }
    crowd.now_ns += 1_000_000;
    let share = crowd.shares(400, 8, 1)[0];
    assert!((share / 0.5 - 1.0).abs() < 0.05, "{share}");
}

/// Segments are got as they are written: those of packets that never arrive whole, for there are more than the receiver's ring has buffers, and the headers of
/// each of a short packet that is cut finely.
#[test]
fn a_sender_whose_packets_are_cut_finely_gets_its_part_and_no_more() {
    for (payload, size, at_once) in [(60_000, 64, 1), (60, 4, 64), (16, 1, 64)] {
        let config = NetConfig { size: 512, tx_buffer: 70_000, ..NetConfig::default() };
        let mut crowd = Crowd::new(config, &[(100, 200), (100, 200)]);
        let cut = Frame::new(1, 100).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(5, 6).payload(vec![7; payload]);
        let cut = cut.partial_checksum();
        let (vnet, cut) = (cut.vnet(VnetHdr::GSO_TCPV4, size), cut.build());
        let mut bytes = vec![0; 2];
        for round in 0..3000 {
            if round == 600 {
                assert!(bytes[0] > 0, "segments arrive");
                bytes.fill(0);
            }
            crowd.receive(16, &mut bytes);
            let sent = |_| crowd.senders[0].0.driver.send(0, &vnet.to_bytes(), &cut).unwrap().is_ok();
            let _ = (0..at_once).all(sent);
            crowd.carry(0, 0);
            crowd.now_ns += 20_000;
            crowd.receive(16, &mut bytes);
            crowd.carry(1, 64);
            crowd.now_ns += 20_000;
        }
        let part = bytes[1] as f64 / bytes.iter().sum::<usize>() as f64;
        assert!((part - 0.5).abs() < 0.05, "{payload} by {size}: {part} for the sender of whole packets: {bytes:?}");
    }
}
