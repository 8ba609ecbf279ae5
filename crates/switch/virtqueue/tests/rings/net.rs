//! The network driver helper, against a device that echoes what it is sent.

use crate::Reserve as _;
use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::{Full, NetConfig, NetDriver, NetError, VNET_HDR_LEN};
use lasthop_virtqueue::{Chains, Queue, Reserved};
use proptest::prelude::*;
use std::sync::Arc;

/// Device side of all queues.
fn device(driver: &NetDriver) -> Vec<Queue> {
    let queue = |q: &lasthop_virtqueue::driver::NetQueue| {
        let queue = Queue::new(0);
        queue.start(&q.layout.setup(q.ring.base(), driver.config().features()), driver.memory().clone()).unwrap();
        queue.set_enabled(true);
        queue
    };
    driver.queues().iter().map(queue).collect()
}

/// Sends everything found in the odd queue back through the even one; false if there was no room.
fn echo(memory: &Arc<GuestMemory>, queues: &[Queue], mergeable: bool) -> Vec<bool> {
    let mut fitted = Vec::new();
    let (mut from, mut to) = (Box::new(Chains::default()), Box::new(Chains::default()));
    let mut sender = queues[1].lock();
    let mut receiver = queues[0].lock();
    let (sender, receiver) = (&mut sender.started().unwrap().ring, &mut receiver.started().unwrap().ring);
    sender.pop(memory, &mut from, 64).unwrap();
    for chain in &from.list {
        let mut frame = crate::rig::read(&from.pieces(chain));
        let fits = receiver.reserve(memory, &mut to, frame.len(), mergeable).unwrap() == Reserved::Enough;
        fitted.push(fits);
        if fits {
            frame[10..12].copy_from_slice(&(to.list.len() as u16).to_le_bytes());
            let mut at = 0;
            for chain in &to.list {
                let before = at;
                for piece in &*to.pieces(chain) {
                    at += piece.write(0, &frame[at..]);
                }
                receiver.stage_used(chain, (at - before) as u32);
            }
        }
        sender.stage_used(chain, 0);
    }
    receiver.publish();
    sender.publish();
    fitted
}

fn configs() -> impl Strategy<Value = NetConfig> {
    (any::<[bool; 5]>(), 4u16..8, 64u32..2000, 1u16..6).prop_map(
        |([packed, event_idx, in_order, indirect, mergeable], size, rx_buffer, pieces)| NetConfig {
            size: 1 << size,
            packed,
            event_idx,
            in_order,
            indirect,
            mergeable,
            rx_buffer,
            tx_buffer: 4000,
            pieces,
            ..NetConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn frames_come_back_whole(config in configs(), lens in proptest::collection::vec(0usize..3900, 1..100)) {
        let mut driver = NetDriver::new(config).unwrap();
        let queues = device(&driver);
        let memory = driver.memory().clone();
        for (i, &len) in lens.iter().enumerate() {
            let frame: Vec<u8> = (0..len).map(|at| (at * 3 + i) as u8).collect();
            let header = [i as u8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0];
            prop_assert_eq!(driver.send(0, &header, &frame), Ok(Ok(())));
            driver.flush(0);
            let rings = if config.indirect { config.size } else { config.size / config.pieces };
            let room = config.rx_buffer as usize * if config.mergeable { usize::from(rings) } else { 1 };
            let fits = len + VNET_HDR_LEN <= room;
            prop_assert_eq!(echo(&memory, &queues, config.mergeable), [fits]);
            let mut back = Vec::new();
            let got = driver.recv(0, &mut back).unwrap();
            prop_assert_eq!(got.is_some(), fits);
            if let Some(got) = got {
                prop_assert_eq!(got[..10].to_vec(), header[..10].to_vec());
                prop_assert_eq!(back, frame);
            }
            prop_assert_eq!(driver.recv(0, &mut Vec::new()), Ok(None));
        }
        prop_assert_eq!(driver.unsent(0), Ok(0));
    }
}

#[test]
fn a_full_queue_says_so_and_recovers() {
    let mut driver = NetDriver::new(NetConfig { size: 16, ..NetConfig::default() }).unwrap();
    let queues = device(&driver);
    let header = [0; VNET_HDR_LEN];
    for _ in 0..3 {
        for _ in 0..16 {
            assert_eq!(driver.send(0, &header, &[1; 60]), Ok(Ok(())));
        }
        assert_eq!(driver.send(0, &header, &[1; 60]), Ok(Err(Full)));
        assert_eq!(driver.send(0, &header, &[1; 3000]), Ok(Err(Full)));
        driver.flush(0);
        assert_eq!(echo(&driver.memory().clone(), &queues, true), [true; 16]);
        let mut got = 0;
        while driver.recv(0, &mut Vec::new()).unwrap().is_some() {
            got += 1;
        }
        assert_eq!(got, 16);
    }
    assert_eq!(driver.send(1, &header, &[1; 60]), Ok(Err(Full)), "there is no pair 1");
}

#[test]
fn a_device_that_lies_about_buffers_is_found_out() {
    for (count, len, wanted) in [
        (0u16, 100, NetError::Buffers(0)),
        (2, 100, NetError::Buffers(2)),
        (u16::MAX, 100, NetError::Buffers(u16::MAX)),
        (1, 11, NetError::NoHeader(11)),
    ] {
        let mut driver = NetDriver::new(NetConfig::default()).unwrap();
        let queues = device(&driver);
        let memory = driver.memory().clone();
        let mut chains = Box::new(Chains::default());
        let mut guard = queues[0].lock();
        let ring = &mut guard.started().unwrap().ring;
        ring.reserve(&memory, &mut chains, len as usize, true).unwrap();
        chains.pieces(&chains.list[0])[0].write(10, &count.to_le_bytes());
        ring.stage_used(&chains.list[0], len);
        ring.publish();
        assert_eq!(driver.recv(0, &mut Vec::new()), Err(wanted));
    }
}
