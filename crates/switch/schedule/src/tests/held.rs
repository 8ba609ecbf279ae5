//! Interrupts that are held back: by a port's own thread, and by a core that polls. What a VM does is written as the supervisor's program writes it.

use super::*;
use crate::coalesce::Coalescing;
use crate::mailbox::Mailbox;
use crate::port::{Letter, Server};
use lasthop_forward::{Coalesce, Forwarder, PORT_CACHE_ENTRIES};
use lasthop_virtqueue::Queue;

/// Longer than any test: what is due then is never.
const NEVER_US: u64 = 3_600_000_000;
const RUNS: VmState = VmState::Running { core: 1 };
const BLOCKED: VmState = VmState::Blocked { since_ns: 0 };

/// A port's thread, and how it is told.
type Thread = (Arc<Mailbox<Letter>>, std::thread::JoinHandle<()>);

/// The first guest's packets go to the second, whose VM runs.
struct Held {
    a: Guest,
    b: Guest,
    workers: Workers,
    image: HostImage,
    /// Of all eventfds.
    kicks: Vec<EventFd>,
    /// Of so many interrupts the guest has heard.
    told: u64,
}

impl Held {
    /// `by`: who looks after both ports' rings.
    fn by(by: &str, us: u64, packets: u64) -> Self {
        let (datapath, a, _) = guests();
        // As drivers do that are in use.
        let net = NetConfig { size: 256, pairs: 2, event_idx: true, ..NetConfig::default() };
        let (b, image) = (Guest::with(&datapath, 2, net), running());
        let (view, poll) = (Some(HostView::map(&image).unwrap()), if by == "poll" { vec![0] } else { vec![] });
        let workers = Workers::start(&datapath, Settings { view, ..polls(poll) }).unwrap();
        b.port.set_vm(Some(0));
        b.port.batches[1].store(us << 16 | packets, Relaxed);
        let mut held = Self { a, kicks: calls(&b), b, workers, image, told: u64::MAX };
        let (a, b) = (held.a.port.clone(), held.b.port.clone());
        [a, b].iter().for_each(|port| held.attach(port));
        held
    }

    fn attach(&mut self, port: &Arc<Port>) {
        let (event, peer) = kick();
        self.workers.attach(port, 1, Some(peer)).unwrap();
        self.kicks.push(event);
    }

    fn interrupts(&self) -> u64 {
        [0, 2].map(|queue| self.b.port.queues[queue].counters.notifications.get()).iter().sum()
    }

    /// So many packets, one after the other, each delivered to a guest that wants to be told.
    fn packets(&mut self, count: usize) {
        self.packets_to(count, true);
    }

    /// The same; or to a guest that asks for the next interrupt when it has had one.
    fn packets_to(&mut self, count: usize, asks_each_time: bool) {
        for _ in 0..count {
            let before = self.got();
            let is_to_ask = asks_each_time || self.told != self.interrupts();
            self.told = self.interrupts();
            for queue in self.b.driver.queues_mut().iter_mut().filter(|_| is_to_ask) {
                queue.ring.enable_calls();
            }
            self.a.fill_with(0, 1, 1, 100);
            self.a.driver.flush(0);
            self.kicks.iter().for_each(EventFd::signal);
            self.until("it is delivered", |held| held.got() > before);
            // It counts what it has delivered before it decides about the interrupt.
            self.b.port.queues.iter().for_each(|queue| drop(queue.lock()));
            self.b.throw_away_what_came();
        }
    }

    fn got(&self) -> u64 {
        [0, 2].map(|queue| self.b.port.queues[queue].counters.packets.get()).iter().sum()
    }

    fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {} packets, {} interrupts", self.got(), self.interrupts());
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// One interrupt has come, and the next is held back.
    fn holds(&mut self) {
        self.packets(2);
        assert_eq!(self.interrupts(), 1, "it runs, and has just been interrupted");
    }
}

/// What the guest is interrupted by.
fn calls(guest: &Guest) -> Vec<EventFd> {
    let set = |n: usize| {
        let (event, peer) = kick();
        guest.port.queues[n].set_call(Some(peer));
        event
    };
    [0, 2].map(set).into()
}

/// A host with a VM that runs.
fn running() -> HostImage {
    let image = HostImage::new(2, 1).unwrap();
    image.set_live(true).unwrap();
    image.set_vm(0, RUNS).unwrap();
    image
}

#[test]
fn a_running_guest_is_interrupted_for_each_batch_whoever_looks_after_its_port() {
    for by in ["thread", "poll"] {
        let mut held = Held::by(by, NEVER_US, 8);
        held.packets(65);
        assert_eq!(held.interrupts(), 1 + 64 / 8, "{by}: the first, and one for each batch");
        let mut each = Held::by(by, 0, 0);
        each.packets(65);
        assert_eq!(each.interrupts(), 65, "{by}: off");
    }
}

/// What was delivered while an interrupt was held back, and not asked for anew, was not counted: no batch was ever full.
#[test]
fn a_batch_gets_full_though_its_driver_asks_only_when_it_was_interrupted() {
    for by in ["thread", "poll"] {
        let mut held = Held::by(by, NEVER_US, 8);
        held.packets_to(65, false);
        assert_eq!(held.interrupts(), 1 + 64 / 8, "{by}: the first, and one for each batch");
        // One that polls meanwhile, as it has not asked, is owed nothing.
        held.b.driver.queues_mut().iter_mut().for_each(|queue| queue.ring.disable_calls());
        held.told = held.interrupts();
        held.packets_to(65, false);
        assert_eq!(held.interrupts(), held.told, "{by}");
    }
}

#[test]
fn the_last_packet_of_a_burst_is_told_of_when_the_time_is_over() {
    for by in ["thread", "poll"] {
        // A machine that stands still for longer than that says nothing.
        let held_back = (0..20).any(|_| {
            let mut held = Held::by(by, 200_000, 1000);
            held.packets(3);
            let one = held.interrupts() == 1;
            held.until("the time is over", |held| held.interrupts() >= 2);
            one
        });
        assert!(held_back, "{by}: never held back");
    }
}

/// A core that polls sees that by itself. A thread sleeps, and has helpers see it: tests/process.
#[test]
fn a_guest_that_blocks_is_told_at_once_by_a_core_that_polls() {
    let mut held = Held::by("poll", NEVER_US, 1000);
    held.holds();
    held.image.set_vm(0, BLOCKED).unwrap();
    held.until("it is told", |held| held.interrupts() == 2);
    held.packets(1);
    assert_eq!(held.interrupts(), 3, "who sleeps does not wait");
    held.image.set_vm(0, RUNS).unwrap();
    held.packets(3);
    assert_eq!(held.interrupts(), 3);
    held.image.set_vm(0, BLOCKED).unwrap();
    held.until("it is told", |held| held.interrupts() == 4);
}

#[test]
fn a_guest_whose_ring_stops_is_told_before() {
    for by in ["thread", "poll"] {
        let disable: fn(&Queue) = |queue| queue.set_enabled(false);
        let stop: fn(&Queue) = |queue| assert!(queue.stop().is_some());
        for end in [disable, stop] {
            let mut held = Held::by(by, NEVER_US, 1000);
            held.holds();
            end(&held.b.port.queues[0]);
            assert_eq!(held.interrupts(), 2, "{by}");
        }
    }
}

/// A port goes from a core that polls to a thread of its own, with an interrupt that is held back, and with one that is held back later.
#[test]
fn a_port_that_gets_a_thread_of_its_own_loses_no_interrupt() {
    let mut held = Held::by("poll", 1_000_000, 1000);
    held.holds();
    let port = held.b.port.clone();
    port.poll_cpu.store(POLLED_NOWHERE, Relaxed);
    held.attach(&port);
    held.until("the first", |held| held.interrupts() == 2);
    held.packets(1);
    held.until("the second", |held| held.interrupts() == 3);
    let looks = |held: &Held| held.workers.ports[&port.id].coalescing.poller.load(Relaxed);
    assert_eq!(looks(&held), crate::coalesce::NOBODY);
    // And back: who polls it goes on with it, and no thread is started for each.
    port.poll_cpu.store(0, Relaxed);
    held.attach(&port);
    assert_eq!(looks(&held), 0);
    held.packets(1);
    held.until("the third", |held| held.interrupts() == 4);
}

/// It was put off by each full batch of another queue; and, when nobody had looked in time, by each packet of another.
#[test]
fn a_queue_with_a_full_batch_puts_off_no_other() {
    for nobody_has_looked in [false, true] {
        let (b, coalescing, thread, _image) = alone(200_000);
        let _calls = calls(&b);
        let deliver = |queue: usize, packets: u32| {
            let queue = &b.port.queues[queue];
            let guard = queue.lock();
            let now = coalescing.interrupts_now(&b.port, queue, packets, true);
            drop(guard);
            now
        };
        while deliver(0, 1) {}
        if nobody_has_looked {
            coalescing.due_ns.store(1, Relaxed);
        }
        let begun = Instant::now();
        while b.port.queues[0].counters.notifications.get() == 0 {
            assert!(begun.elapsed() < PATIENCE, "it is put off; nobody has looked: {nobody_has_looked}");
            deliver(2, 1);
            assert!(deliver(2, 64), "a batch");
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.0.send(Letter::Stop);
        thread.1.join().unwrap();
    }
}

/// A port with a thread and nobody else, whose VM runs, and whose interrupts are held back for so long.
fn alone(us: u64) -> (Guest, Arc<Coalescing>, Thread, HostImage) {
    let (datapath, _, b) = guests();
    let image = running();
    let settings = Settings { view: Some(HostView::map(&image).unwrap()), ..Settings::default() };
    let helpers = Arc::new(Helpers::new(datapath, settings).unwrap());
    let coalescing = Arc::new(Coalescing::new(helpers.clone()).unwrap());
    b.port.set_coalescing(coalescing.clone());
    b.port.set_vm(Some(0));
    b.port.batches[1].store(us << 16 | 64, Relaxed);
    let mut server = Server::new(&b.port, &helpers, &coalescing.timer).unwrap();
    let (mailbox, datapath) = (server.mailbox.clone(), helpers.datapath.clone());
    let serve = move || _ = server.serve(&mut Forwarder::new(datapath, PORT_CACHE_ENTRIES));
    let thread = (mailbox, std::thread::spawn(serve));
    (b, coalescing, thread, image)
}

/// Who sets the timer, or says that nothing is due, may be stopped before or after, and another may have set it meanwhile.
#[test]
fn a_timer_that_comes_too_early_or_while_somebody_else_looks_loses_no_interrupt() {
    for stopped_in_a_look in [false, true] {
        let (b, coalescing, thread, _image) = alone(100_000);
        let _calls = calls(&b);
        let queue = &b.port.queues[0];
        let deliver = || {
            let _guard = queue.lock();
            coalescing.interrupts_now(&b.port, queue, 1, true)
        };
        let before = queue.counters.notifications.get();
        while deliver() {}
        if stopped_in_a_look {
            coalescing.due_ns.store(u64::MAX, Relaxed);
        }
        coalescing.timer.set_ns(1000);
        let begun = Instant::now();
        while queue.counters.notifications.get() == before {
            assert!(begun.elapsed() < PATIENCE, "nobody looks: stopped in a look {stopped_in_a_look}");
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.0.send(Letter::Stop);
        thread.1.join().unwrap();
    }
}
