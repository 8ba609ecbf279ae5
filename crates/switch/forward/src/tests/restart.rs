//! A switch that is killed, and the next one on the same rings.

use super::*;
use lasthop_virtqueue::Chains;

/// A switch that is killed at any point leaves its guests' rings as they are; its successor is given the base it was
/// given itself, by a front-end that knows no better.
#[test]
fn a_killed_switch_delivers_nothing_twice_and_its_successor_goes_on() {
    for (packed, laps) in [(false, 1), (true, 1), (true, 20), (true, 37), (false, 37)] {
        let config = NetConfig { packed, size: 16, ..NetConfig::default() };
        let journal = Arc::new(GuestMemory::anonymous(4096).unwrap());
        let (datapath, mut forwarder) = switch();
        let driver = NetDriver::new(config).unwrap();
        let mut a = Guest::connect(&datapath, 1, driver, 0, Some(&journal));
        let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        for n in 0..laps {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 64]).build());
            forwarder.carry(&a.port, 1, 0);
        }
        assert_eq!(b.received().len(), usize::from(laps));
        // Killed between delivery and completion of three frames.
        for n in 0..3 {
            a.send(VnetHdr::default(), &Frame::new(1, 2).payload([100 + n; 64]).build());
        }
        {
            let mut guard = a.port.queues[1].lock();
            let started = guard.started().unwrap();
            let memory = started.memory.clone();
            let mut chains = Chains::default();
            started.ring.pop(&memory, &mut chains, 64).unwrap();
            assert_eq!(chains.list.len(), 3);
            started.note_burst(&chains.list);
        }
        a.send(VnetHdr::default(), &Frame::new(1, 2).payload([200; 64]).build());

        let (datapath, mut forwarder) = switch();
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        let mut a = Guest::connect(&datapath, 1, a.driver, 0, Some(&journal));
        let mut b = Guest::new(&datapath, 2, NetConfig::default(), 0);
        forwarder.carry(&a.port, 1, 0);
        let got: Vec<u8> = b.received().iter().map(|(_, f)| f[f.len() - 1]).collect();
        assert_eq!(got, [200], "packed {packed}, {laps} frames before");
        assert_eq!(drops(&a, DropReason::Recovered), 3);
        assert_eq!(a.driver.unsent(0).unwrap(), 0, "every buffer went back");
    }
}

#[test]
fn frames_reach_a_guest_whose_switch_was_killed_and_a_reset_ring_starts_anew() {
    for packed in [false, true] {
        for before in [0u8, 1, 7, 15, 16, 17, 40] {
            let config = NetConfig { packed, size: 16, ..NetConfig::default() };
            let journal = Arc::new(GuestMemory::anonymous(4096).unwrap());
            let mut driver = NetDriver::new(config).unwrap();
            for round in 0..3 {
                let (datapath, mut forwarder) = switch();
                datapath.flows().insert(flow(1, &[2]), 0).unwrap();
                let mut a = Guest::new(&datapath, 1, NetConfig::default(), 0);
                let mut b = Guest::connect(&datapath, 2, driver, 0, Some(&journal));
                for n in 0..before.max(1) {
                    a.send(VnetHdr::default(), &Frame::new(1, 2).payload([n; 64]).build());
                    forwarder.carry(&a.port, 1, 0);
                    assert_eq!(b.received().len(), 1, "packed {packed}, round {round}, frame {n} of {before}");
                }
                // Twice the switch is killed; then the driver is reloaded.
                driver = if round == 1 { NetDriver::new(config).unwrap() } else { b.driver };
            }
        }
    }
}
