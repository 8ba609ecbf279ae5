//! Guests on our own driver side, real rings, and the threads that look after them.

use crate::defaults::told;
use crate::helper::{self, Helpers};
use crate::owned_ring::OwnedRing;
use crate::policy::Arrivals;
use crate::port;
use crate::silence::Silent;
use crate::workers::{Settings, Workers};
use lasthop_flow::{Action, FlowSpec};
use lasthop_forward::{Datapath, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::{FlowKey, FlowMask, VnetHdr};
use lasthop_ipc::SwitchSettings;
use lasthop_sys::hostview::image::HostImage;
use lasthop_sys::hostview::{CorePlace, CoreState, HostView, VmState};
use lasthop_sys::{EventFd, PeerEvent, Prompter};
use lasthop_types::{POLLED_NOWHERE, PortId};
use lasthop_virtqueue::driver::{NetConfig, NetDriver};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

mod held;

impl Helpers {
    fn stop(&self) {
        self.all.iter().for_each(|helper| helper.mailbox.send(helper::Letter::Stop));
    }
}

/// Of a process the threads end with it, wherever they are; here there are others after them. Nobody waits for their ends: a ring stops with its queue's lock held.
impl Drop for Workers {
    fn drop(&mut self) {
        self.helpers.stop();
        // Who leaves its port from now on leaves nothing.
        *self.helpers.silent.lock() = Silent { stopping: true, ..Silent::default() };
        let mailboxes = self.ports.drain().filter_map(|(_, entry)| entry.mailbox);
        mailboxes.for_each(|mailbox| mailbox.send(port::Letter::Stop));
    }
}

/// How long anything that must happen may take on a slow, busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Guest {
    pub(crate) driver: NetDriver,
    pub(crate) port: Arc<Port>,
}

impl Guest {
    fn new(datapath: &Datapath, id: u32) -> Self {
        Self::with(datapath, id, NetConfig { size: 256, pairs: 2, ..NetConfig::default() })
    }

    fn with(datapath: &Datapath, id: u32, config: NetConfig) -> Self {
        let driver = NetDriver::new(config).unwrap();
        let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
        for (queue, of) in port.queues.iter().zip(driver.queues()) {
            let setup = of.layout.setup(0, config.features());
            queue.start(&setup, driver.memory().clone()).unwrap();
            queue.set_enabled(true);
        }
        port.refresh();
        datapath.add_port(port.clone());
        Self { driver, port }
    }

    /// Fills a queue with frames of a thousand bytes.
    fn fill(&mut self, pair: u16) {
        self.fill_with(pair, usize::MAX, 1, 1000);
        self.driver.flush(pair);
    }

    /// Has so many frames ready, of `len` bytes, from address `from`: the switch sees them with the next flush.
    fn fill_with(&mut self, pair: u16, frames: usize, from: u8, len: usize) {
        let (header, frame) = (VnetHdr::default().to_bytes(), Frame::new(from, 2).payload(vec![7; len - 14]).build());
        for _ in 0..frames {
            if self.driver.send(pair, &header, &frame).unwrap().is_err() {
                break;
            }
        }
    }

    pub(crate) fn sent(&self, pair: usize) -> u64 {
        self.port.queues[2 * pair + 1].counters.packets.get()
    }

    fn throw_away_what_came(&mut self) {
        for pair in 0..2 {
            while self.driver.recv(pair, &mut Vec::new()).unwrap().is_some() {}
        }
    }
}

/// Two guests; whatever the first sends goes to the second.
pub(crate) fn guests() -> (Arc<Datapath>, Guest, Guest) {
    let datapath = Arc::new(Datapath::new(100, lasthop_forward::PATIENCE_MS).unwrap());
    let (a, b) = (Guest::new(&datapath, 1), Guest::new(&datapath, 2));
    let key = FlowKey { in_port: 1, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let spec = FlowSpec { key, mask, actions: vec![Action::Output(PortId(2))], epoch: 0 };
    datapath.flows().insert(spec, 0).unwrap();
    (datapath, a, b)
}

/// These cores poll.
fn polls(poll: Vec<usize>) -> Settings {
    Settings { told: SwitchSettings { poll, ..told() }, ..Settings::default() }
}

/// So many cores have helpers.
fn helps(cores: usize, prompts: OwnedFd) -> Settings {
    let told = SwitchSettings { helpers: (0..cores).collect(), ..told() };
    Settings { told, prompter: Some(Prompter::new(prompts)), ..Settings::default() }
}

/// Ports' threads end after so many microseconds without work.
pub(crate) fn ends_after(idle_us: u32) -> Settings {
    Settings { told: SwitchSettings { idle_us, ..told() }, ..Settings::default() }
}

fn kick() -> (EventFd, PeerEvent) {
    let event = EventFd::new().unwrap();
    let peer = PeerEvent::new(event.as_fd().try_clone_to_owned().unwrap()).unwrap();
    (event, peer)
}

/// Large frames from address 1 and small ones from address 3, as the receiver got them.
struct Arrived(Vec<(u8, usize)>);

impl Arrived {
    /// All of them, which had room from the first on.
    fn wait(receiver: &mut Guest, frames: usize) -> Self {
        let (begun, mut all) = (Instant::now(), Vec::new());
        while all.len() < frames {
            assert!(begun.elapsed() < PATIENCE, "{} of {frames}", all.len());
            let mut frame = Vec::new();
            match receiver.driver.recv(0, &mut frame).unwrap() {
                Some(_) => all.push((frame[11], frame.len())),
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        Self(all)
    }

    /// Bytes of the small frames divided by those of large ones, while both were there.
    fn shares(&self) -> f64 {
        let (of, is) =
            (|from: u8| self.0.iter().filter(move |f| f.0 == from), |from: u8| move |f: &(u8, usize)| f.0 == from);
        assert!(of(1).count() > 0 && of(3).count() > 0);
        let begun = [1, 3].map(|from| self.0.iter().position(is(from)).unwrap()).into_iter().max().unwrap();
        let end = [1, 3].map(|from| self.0.iter().rposition(is(from)).unwrap()).into_iter().min().unwrap();
        let sum = |from| self.0[begun..end].iter().filter(|f| f.0 == from).map(|f| f.1).sum::<usize>() as f64;
        sum(3) / sum(1)
    }
}

const LARGE: (usize, usize) = (240, 65_000);
const SMALL: (usize, usize) = (16_000, 900);

fn sender(frames: (usize, usize), pairs: u16) -> NetConfig {
    let size = (frames.0 as u16).next_power_of_two();
    NetConfig { size, pairs, tx_buffer: frames.1 as u32 + 12, rx_buffer: 64, ..NetConfig::default() }
}

/// A receiver with room for all of it, and where those of ports 1 and 3 go.
fn receiver(datapath: &Datapath) -> Guest {
    let receiver = Guest::with(datapath, 2, NetConfig { size: 32_768, tx_buffer: 64, ..NetConfig::default() });
    for in_port in [1, 3] {
        let key = FlowKey { in_port, ..FlowKey::default() };
        let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
        let spec = FlowSpec { key, mask, actions: vec![Action::Output(PortId(2))], epoch: 0 };
        datapath.flows().insert(spec, 0).unwrap();
    }
    receiver
}

/// A core that polls gave each ring a burst: who sent large packets had nearly six times the bytes of these small ones. And a guest with
/// two queues had two shares.
#[test]
fn ports_share_a_polling_core_by_weight_and_bytes() {
    for (large, small, pairs) in [(100, 100, 1), (100, 300, 1), (300, 100, 1), (100, 100, 2)] {
        let datapath = Arc::new(Datapath::new(100, lasthop_forward::PATIENCE_MS).unwrap());
        let mut c = receiver(&datapath);
        let [mut a, mut b] =
            [(1, LARGE, 1), (3, SMALL, pairs)].map(|(id, f, pairs)| Guest::with(&datapath, id, sender(f, pairs)));
        let mut workers = Workers::start(&datapath, polls(vec![0])).unwrap();
        for (guest, weight, frames, pairs) in [(&mut a, large, LARGE, 1), (&mut b, small, SMALL, pairs)] {
            guest.port.weight.store(weight, Relaxed);
            for pair in 0..pairs {
                guest.fill_with(pair, frames.0 / usize::from(pairs), guest.port.id.0 as u8, frames.1);
                workers.attach(&guest.port, 2 * pair + 1, None).unwrap();
            }
        }
        // Whoever is first waits with what it has until the other has something, too.
        let queue = c.port.queues[0].clone();
        let guard = queue.lock();
        a.driver.flush(0);
        (0..pairs).for_each(|pair| b.driver.flush(pair));
        drop(guard);
        let shares = Arrived::wait(&mut c, LARGE.0 + SMALL.0).shares() * f64::from(large) / f64::from(small);
        assert!((0.95..1.05).contains(&shares), "weights {large} and {small}, {pairs} queues: {shares}");
    }
}

/// The same for queues of one guest, which its thread looks after.
#[test]
fn queues_of_a_port_share_its_thread_by_bytes() {
    let datapath = Arc::new(Datapath::new(100, lasthop_forward::PATIENCE_MS).unwrap());
    let mut c = receiver(&datapath);
    let mut a = Guest::with(&datapath, 1, sender((SMALL.0, LARGE.1), 2));
    let mut workers = Workers::start(&datapath, Settings::default()).unwrap();
    a.fill_with(0, LARGE.0, 1, LARGE.1);
    a.fill_with(1, SMALL.0, 3, SMALL.1);
    [1, 3].into_iter().for_each(|queue| workers.attach(&a.port, queue, None).unwrap());
    let queue = c.port.queues[0].clone();
    let guard = queue.lock();
    [0, 1].into_iter().for_each(|pair| a.driver.flush(pair));
    drop(guard);
    let shares = Arrived::wait(&mut c, LARGE.0 + SMALL.0).shares();
    assert!((0.95..1.05).contains(&shares), "{shares}");
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
        workers.attach(&a.port, queue, Some(peer)).unwrap();
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
        let settings = helps(1, writer);
        let helpers = Arc::new(Helpers::new(datapath.clone(), settings).unwrap());
        helpers.start().unwrap();
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
    }
}

/// Helpers on so many cores, whose threads do not run.
fn helpers(cores: usize) -> Helpers {
    let datapath = Arc::new(Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let settings = helps(cores, writer);
    Helpers::new(datapath, settings).unwrap()
}

/// Sixteen rings with a packet each 150 µs: of one ring none is worth waiting for, of all of them on one core each is.
#[test]
fn many_rings_with_few_packets_each_are_worth_a_helper_as_one_with_many() {
    for (cores, rings, wanted) in [(1, 16, true), (1, 1, false), (1, 2, false), (4, 16, true), (64, 16, false)] {
        let helpers = helpers(cores);
        let (mut arrivals, mut last) = (vec![Arrivals::default(); rings], None);
        for n in 0..100 * rings as u64 {
            let (ring, now_ns) = (&mut arrivals[n as usize % rings], n * 150_000 / rings as u64);
            ring.found(1, now_ns);
            // Looking at a ring in vain says nothing.
            helpers.expects_more(*ring, 0, now_ns);
            last = helpers.expects_more(*ring, 1, now_ns);
        }
        assert!(arrivals.iter().all(|ring| !ring.expects_more(&helpers.hysteresis)));
        assert_eq!(last.is_some(), wanted, "{rings} rings, {cores} cores");
    }
}

/// The more rings wait for a helper, the more threads are about to wake up on its core, and the longer each is to keep away from it.
#[test]
fn a_helper_is_given_way_until_all_threads_that_have_offered_it_rings_may_sleep() {
    let helpers = helpers(1);
    let offer = |n: u32| {
        let ring = Arc::new(OwnedRing::new(Arc::new(Port::new(PortId(n), format!("p{n}"))), 1, None));
        helpers.offer(0, &ring, Some(Arrivals::default()));
        helpers.way_ns(0)
    };
    let ways: Vec<u64> = (1..=100).map(offer).collect();
    assert!(ways.is_sorted() && ways[0] < 100_000 && ways[31] > 32 * 15_000, "{ways:?}");
    assert_eq!(ways[99], crate::helper::GUARD_NS, "no packet lies for longer");
}

/// A port is looked after by its own thread beside cores that poll, if it is set so when its rings are; else by one of them.
#[test]
fn a_port_that_is_set_so_has_its_own_thread_beside_cores_that_poll() {
    let (datapath, mut a, mut b) = guests();
    let mut workers = Workers::start(&datapath, polls(vec![0])).unwrap();
    a.port.poll_cpu.store(POLLED_NOWHERE, Relaxed);
    let mut attach = |port: &Arc<Port>| {
        let (event, peer) = kick();
        workers.attach(port, 1, Some(peer)).unwrap();
        (event, workers.ports.values().filter(|entry| entry.mailbox.is_some()).count())
    };
    b.fill(0);
    assert_eq!(attach(&b.port).1, 0, "it is polled");
    a.fill(0);
    let (event, threads) = attach(&a.port);
    assert_eq!(threads, 1);
    let mut sent_all = |a: &mut Guest, event: &EventFd| {
        let (begun, wanted) = (Instant::now(), a.sent(0) + 64);
        a.fill(0);
        event.signal();
        while a.sent(0) < wanted {
            assert!(begun.elapsed() < PATIENCE, "{}", a.sent(0));
            b.throw_away_what_came();
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    sent_all(&mut a, &event);
    // Told otherwise, it is otherwise from the next time on that its ring is looked after.
    a.port.poll_cpu.store(0, Relaxed);
    sent_all(&mut a, &event);
    let (silent, _) = attach(&a.port);
    sent_all(&mut a, &EventFd::new().unwrap());
    drop((event, silent));
}

/// A core that polls is asked for nothing that helpers do, and its sibling is no idle one while it does.
#[test]
fn cores_that_poll_are_no_helpers() {
    let image = HostImage::new(4, 0).unwrap();
    let us = std::process::id();
    for core in 0..4 {
        image.set_place(core, CorePlace { llc: 0, physical: core as u32 / 2 }).unwrap();
        image.set_core(core, CoreState { idle: core != 1, tgid: us, ..CoreState::default() }).unwrap();
    }
    let with = |poll: Vec<usize>| {
        let datapath = Arc::new(Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let (view, prompter) = (Some(HostView::map(&image).unwrap()), Some(Prompter::new(writer)));
        let told = SwitchSettings { helpers: vec![0, 2], poll, ..told() };
        let settings = Settings { told, view, prompter, ..Settings::default() };
        Helpers::new(datapath, settings).unwrap()
    };
    let chosen = |helpers: &Helpers| (0..64u64).map(|n| helpers.choose(n << 58, None, 0)).collect::<BTreeSet<_>>();
    assert_eq!(chosen(&with(vec![])), BTreeSet::from([Some(0), Some(1)]), "a thread of ours is about to sleep");
    let helpers = with(vec![1, 3]);
    assert_eq!(
        chosen(&helpers),
        BTreeSet::from([Some(1)]),
        "not beside the one that polls; the other has nothing to poll"
    );
    assert_eq!([0, 1, 2, 3].map(|core| helpers.on(core)), [Some(0), None, Some(1), None]);
    let idle = CoreState { idle: true, ..CoreState::default() };
    image.set_core(1, idle).unwrap();
    assert_eq!(chosen(&helpers), BTreeSet::from([Some(0), Some(1)]));
    // A stream of which two cores would have enough, and four would not.
    let (mut arrivals, mut enough) = (Arrivals::default(), None);
    for n in 0..100 {
        arrivals.found(1, n * 20_000);
        enough = helpers.expects_more(Arrivals::default(), 1, n * 20_000);
    }
    assert!(enough.is_some() && !arrivals.part_of(4).expects_more(&helpers.hysteresis));
}

/// Eight cores, pairs of siblings, each four with a cache of their own: as a host with two of the papers' modules says of itself. A ring is offered to an idle core
/// at the cache of its receiver, else to any idle one, never beside a sibling that works, and to none where nobody is idle.
#[test]
fn a_helper_is_chosen_by_the_cache_of_the_receiver() {
    let image = HostImage::new(8, 1).unwrap();
    let state = |core: usize, idle: bool| {
        image.set_core(core, CoreState { idle, tgid: 1, ..CoreState::default() }).unwrap();
    };
    for core in 0..8 {
        image.set_place(core, CorePlace { llc: core as u32 / 4, physical: core as u32 / 2 }).unwrap();
        state(core, true);
    }
    image.set_live(true).unwrap();
    let datapath = Arc::new(Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let (view, prompter) = (Some(HostView::map(&image).unwrap()), Some(Prompter::new(writer)));
    let told = SwitchSettings { helpers: (0..8).collect(), ..told() };
    let settings = Settings { told, view, prompter, ..Settings::default() };
    let (helpers, receiver) = (Helpers::new(datapath, settings).unwrap(), Port::new(PortId(2), "b".into()));
    let chosen = |vm: VmState| {
        image.set_vm(0, vm).unwrap();
        (0..64u64).filter_map(|n| helpers.choose(n << 58, Some(&receiver), 0)).collect::<Vec<_>>()
    };
    let set = |of: Vec<usize>| of.into_iter().collect::<BTreeSet<_>>();
    let all = |cores: std::ops::Range<usize>| cores.collect::<BTreeSet<_>>();
    receiver.set_vm(Some(0));
    // Its VM's core works, and what shares execution units with it is left alone.
    state(5, false);
    assert_eq!(set(chosen(VmState::Running { core: 5 })), BTreeSet::from([6, 7]), "at its cache");
    assert_eq!(
        set(chosen(VmState::Blocked { since_ns: 0 })),
        &all(0..4) | &BTreeSet::from([6, 7]),
        "it has no cache now"
    );
    state(7, false);
    assert_eq!(
        set(chosen(VmState::Running { core: 5 })),
        all(0..4),
        "none there is idle beside an idle one: any other"
    );
    state(0, false);
    assert_eq!(set(chosen(VmState::Running { core: 5 })), BTreeSet::from([2, 3]));
    state(2, false);
    assert_eq!(chosen(VmState::Running { core: 5 }), [], "nobody");
    state(6, true);
    state(7, true);
    let of_two = chosen(VmState::Running { core: 5 });
    let first = of_two.iter().filter(|core| **core == 6).count();
    assert_eq!((set(of_two), first), (BTreeSet::from([6, 7]), 32), "rings spread among equals");
}
