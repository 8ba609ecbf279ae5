//! Guests on our own driver side, real rings, and the threads that look after them.

use crate::helper::Helpers;
use crate::owned_ring::OwnedRing;
use crate::policy::{Arrivals, Batch};
use crate::workers::{Settings, Workers};
use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{Datapath, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_sys::{EventFd, PeerEvent, Prompter};
use lasthop_types::PortId;
use lasthop_virtqueue::QueueSetup;
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything that must happen may take on a slow, busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Guest {
    driver: NetDriver,
    port: Arc<Port>,
}

impl Guest {
    fn new(datapath: &Datapath, id: u32) -> Self {
        let config = NetConfig { size: 256, pairs: 2, ..NetConfig::default() };
        let driver = NetDriver::new(config).unwrap();
        let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
        for (queue, of) in port.queues.iter().zip(driver.queues()) {
            let layout = of.layout;
            let setup = QueueSetup {
                size: layout.size,
                desc: layout.desc,
                driver: layout.driver,
                device: layout.device,
                base: 0,
                packed: layout.packed,
                event_idx: layout.event_idx,
                in_order: layout.in_order,
                indirect: layout.indirect.is_some(),
                features: config.features(),
            };
            queue.start(&setup, driver.memory().clone()).unwrap();
            queue.set_enabled(true);
        }
        port.refresh();
        datapath.add_port(port.clone());
        Self { driver, port }
    }

    /// Fills a queue with frames of a thousand bytes.
    fn fill(&mut self, pair: u16) {
        let (header, frame) = (VnetHdr::default().to_bytes(), Frame::new(1, 2).payload(vec![7; 986]).build());
        while self.driver.send(pair, &header, &frame).unwrap().is_ok() {}
        self.driver.flush(pair);
    }

    fn sent(&self, pair: usize) -> u64 {
        self.port.queues[2 * pair + 1].counters.packets.get()
    }

    fn throw_away_what_came(&mut self) {
        for pair in 0..2 {
            while self.driver.recv(pair, &mut Vec::new()).unwrap().is_some() {}
        }
    }
}

/// Two guests; whatever the first sends goes to the second.
fn guests() -> (Arc<Datapath>, Guest, Guest) {
    let datapath = Arc::new(Datapath::new(100, lasthop_forward::PATIENCE_MS).unwrap());
    let (a, b) = (Guest::new(&datapath, 1), Guest::new(&datapath, 2));
    let key = FlowKey { in_port: 1, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let spec = FlowSpec { key, mask, actions: vec![Action::Output(PortId(2))], epoch: 0 };
    datapath.flows().insert(spec, 0).unwrap();
    (datapath, a, b)
}

fn kick() -> (EventFd, PeerEvent) {
    let event = EventFd::new().unwrap();
    let peer = PeerEvent::new(event.as_fd().try_clone_to_owned().unwrap()).unwrap();
    (event, peer)
}

/// The first burst after a wait reaches the limit again: with the same queue in front each time the other got nothing.
#[test]
fn queues_share_the_limit_of_their_port() {
    let (datapath, mut a, mut b) = guests();
    let mut workers = Workers::start(&datapath, Settings::default()).unwrap();
    // 64 frames, a burst, take 3.2 ms.
    a.port.sends.set(20_000_000, 0, 1_000_000);
    let kicks = [1, 3].map(|queue| {
        let (event, peer) = kick();
        workers.attach(&a.port, queue, Some(peer), Batch::default()).unwrap();
        event
    });
    let begun = Instant::now();
    while a.sent(0) + a.sent(1) < 12_000 {
        assert!(begun.elapsed() < PATIENCE, "{} and {}", a.sent(0), a.sent(1));
        for (pair, kick) in kicks.iter().enumerate() {
            a.fill(pair as u16);
            kick.signal();
        }
        b.throw_away_what_came();
        std::thread::sleep(Duration::from_micros(500));
    }
    let sent = [a.sent(0), a.sent(1)];
    assert!(sent.iter().all(|sent| *sent > 3000), "{sent:?}");
}

/// It looked at it without a pause for as long as the limit held.
#[test]
fn a_helper_gives_back_a_ring_that_may_not_go_on() {
    for limits_sender in [true, false] {
        let (datapath, mut a, b) = guests();
        let limit = if limits_sender { &a.port.sends } else { &b.port.gets };
        limit.set(1, 0, 1);
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let mut settings = Settings { helpers: vec![0], prompter: Some(Prompter::new(writer)), ..Settings::default() };
        let helpers = Arc::new(Helpers::new(datapath.clone(), &mut settings).unwrap());
        let threads = helpers.start().unwrap();
        let (_event, peer) = kick();
        let ring = Arc::new(OwnedRing::new(a.port.clone(), 1, Some(peer)));
        a.fill(0);
        helpers.offer(0, &ring, Some(Arrivals::default()));
        // One that looks whether there is more lets go of it for a moment.
        let (begun, mut free) = (Instant::now(), 0);
        while free < 20 {
            assert!(begun.elapsed() < PATIENCE, "sender: {limits_sender}; it has moved {}", a.sent(0));
            let moved_and_free = a.sent(0) > 0 && ring.owner.helper().is_none();
            free = if moved_and_free { free + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(a.sent(0), 64, "what was begun is done, and paid for");
        let held = a.port.totals().0.held;
        assert!(held <= u64::from(limits_sender), "{held}");
        helpers.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
