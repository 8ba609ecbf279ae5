use super::*;
use crate::port::Letter;
use crate::tests::{Guest, PATIENCE, ends_after, guests};
use crate::workers::{Settings, Workers};
use lasthop_forward::{Datapath, Port};
use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_sys::{EventFd, PeerEvent, TimerFd, Watches};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

const A: PortId = PortId(1);

/// The kick by which its driver asks for a look at queue 1, when it is to.
fn own_kick(guest: &Guest) -> Option<PeerEvent> {
    let kick = guest.driver.queues()[1].kick.as_fd().try_clone_to_owned().unwrap();
    Some(PeerEvent::new(kick).unwrap())
}

fn numbered(guest: &mut Guest, number: u64) {
    let frame = Frame::new(1, 2).payload([number.to_be_bytes().as_slice(), &[0; 50]].concat()).build();
    guest.driver.send(0, &VnetHdr::default().to_bytes(), &frame).unwrap().unwrap();
}

/// Has the packet been delivered?
fn came(guest: &mut Guest, frame: &mut Vec<u8>) -> bool {
    (0..2).any(|pair| guest.driver.recv(pair, frame).unwrap().is_some())
}

/// As the main thread takes it.
fn news(datapath: &Datapath) -> Option<ThreadNews> {
    let (port, news) = datapath.threads.lock().pop_front()?;
    assert_eq!(port, A);
    Some(news)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn is_silent(workers: &Workers) -> bool {
    workers.helpers.silent.lock().ports.contains_key(&A)
}

/// A packet comes, or a letter, at each moment of the way of a thread to its end.
#[test]
fn threads_that_end_and_begin_lose_no_packet_and_keep_their_order() {
    let (datapath, mut a, mut b) = guests();
    let mut workers = Workers::start(&datapath, ends_after(100)).unwrap();
    workers.attach(&a.port, 1, own_kick(&a)).unwrap();
    let (mut sent, mut arrived, mut threads, mut used_ns) = (0_u64, 0_u64, BTreeMap::new(), 0);
    for round in 0..4000_u64 {
        for _ in 0..=round % 3 {
            numbered(&mut a, sent);
            sent += 1;
        }
        a.driver.flush(0);
        match round % 16 {
            3 => workers.look(A),
            7 => workers.attach(&a.port, 1, own_kick(&a)).unwrap(),
            _ => {}
        }
        let (begun, mut frame) = (Instant::now(), Vec::new());
        while arrived < sent {
            assert!(begun.elapsed() < PATIENCE, "round {round}: {arrived} of {sent}");
            // All of one flow come by one queue, but which is left to chance.
            while came(&mut b, &mut frame) {
                assert_eq!(frame[14..22], arrived.to_be_bytes(), "round {round}");
                frame.clear();
                arrived += 1;
            }
        }
        // A receiver is shown its packets before their sender has them back.
        while a.driver.unsent(0).unwrap() > 0 {
            assert!(begun.elapsed() < PATIENCE, "round {round}");
        }
        if let Some(news) = news(&datapath) {
            assert!(news.used_ns >= used_ns && news.refused.is_none(), "round {round}: {news:?} after {used_ns}");
            used_ns = news.used_ns;
            *threads.entry(news.thread).or_insert(0) += 1;
        }
        // Some more each time, up to what it takes to end and a little beyond.
        let pause = Duration::from_micros(round * 7 % 300);
        while begun.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
    assert!(threads.len() > 50, "{} threads", threads.len());
    assert!(used_ns > threads.len() as u64 * 1000, "{} threads used {used_ns} ns", threads.len());
    assert_eq!(a.sent(0), sent);
}

/// Thousands of ports may be connected.
#[test]
fn a_port_has_no_thread_when_it_has_had_nothing_to_do_for_long() {
    let (datapath, mut a, mut b) = guests();
    let mut workers = Workers::start(&datapath, ends_after(200_000)).unwrap();
    let ends = |workers: &Workers| wait_for("no thread any more", || is_silent(workers));
    let begins = || wait_for("a thread", || news(&datapath).is_some_and(|news| news.thread != 0));
    workers.attach(&a.port, 1, own_kick(&a)).unwrap();
    ends(&workers);
    numbered(&mut a, 0);
    a.driver.flush(0);
    begins();
    wait_for("its packet", || came(&mut b, &mut Vec::new()));
    ends(&workers);
    // A storm of kicks for nothing keeps a thread, of its own: nobody else works for that.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(600) {
        a.driver.queues()[1].kick.signal();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!is_silent(&workers));
    ends(&workers);
    news(&datapath);
    // So does an interrupt that is held back.
    workers.ports[&A].coalescing.timer.set_ns(1);
    begins();
    ends(&workers);
    // One that is to have none ends without it.
    workers.remove(A);
    wait_for("nothing is left of it", || workers.helpers.silent.lock().ports.is_empty());
    // One without a kick is polled, so its thread stays.
    workers.attach(&a.port, 1, None).unwrap();
    begins();
    std::thread::sleep(Duration::from_millis(600));
    assert!(!is_silent(&workers));
}

/// A front-end may say which descriptor it kicks as often as it likes, and each was kept until a thread would read of it.
#[test]
fn a_thread_that_is_not_to_be_had_is_sent_no_end_of_descriptors() {
    let (datapath, mut a, mut b) = guests();
    let mut workers = Workers::start(&datapath, ends_after(100)).unwrap();
    workers.attach(&a.port, 1, own_kick(&a)).unwrap();
    // Nobody starts one.
    let mut server = None;
    wait_for("no thread any more", || {
        server = workers.helpers.silent.lock().ports.remove(&A);
        server.is_some()
    });
    let server = server.expect("it is there");
    // Of this kick alone: other tests have some, too.
    let said = |fd: &std::ffi::OsStr| {
        let said = std::fs::read_to_string(std::path::Path::new("/proc/self/fdinfo").join(fd)).unwrap_or_default();
        said.lines().find(|line| line.starts_with("eventfd-id")).map(str::to_owned)
    };
    let kick = said(std::ffi::OsStr::new(&a.driver.queues()[1].kick.as_fd().as_raw_fd().to_string()));
    assert!(kick.is_some(), "since Linux 5.2");
    let all = || std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let descriptors = || all().filter(|fd| said(&fd.file_name()) == kick).count();
    let before = descriptors();
    for n in 0..5000 {
        workers.attach(&a.port, 1, own_kick(&a)).unwrap();
        workers.look(A);
        if n % 7 == 0 {
            workers.detach(A, 1);
        }
    }
    workers.attach(&a.port, 1, own_kick(&a)).unwrap();
    // What a peer sent is closed aside, by another thread.
    wait_for("all but the last to be closed", || descriptors() <= before + 1);
    assert!(server.mailbox.waiting() <= 2, "{} letters", server.mailbox.waiting());
    // Now there is one, which goes by what was said last.
    workers.helpers.silent.lock().ports.insert(A, server);
    workers.helpers.begin(A);
    wait_for("they are read", || workers.ports[&A].mailbox.as_ref().is_some_and(|mailbox| mailbox.waiting() == 0));
    numbered(&mut a, 0);
    a.driver.flush(0);
    wait_for("its packet", || came(&mut b, &mut Vec::new()));
}

/// Where there is no room to wait for any more, and of one that is looked at at times, threads stay.
#[test]
fn a_thread_stays_where_nobody_can_wait_for_its_port() {
    let (datapath, a, _b) = guests();
    for (idle_us, watched, kicks) in [(0, 0, true), (1000, 10_000, true), (100, 0, false)] {
        let mut workers = Workers::start(&datapath, ends_after(idle_us)).unwrap();
        // There is no room for any more.
        let never = EventFd::new().unwrap();
        (0..watched).for_each(|_| _ = workers.helpers.settings.watches.watch(&never, u64::from(u32::MAX)));
        workers.attach(&a.port, 1, own_kick(&a).filter(|_| kicks)).unwrap();
        wait_for("a thread", || news(&datapath).is_some_and(|news| news.thread != 0));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_silent(&workers), "{idle_us}");
        assert_eq!(news(&datapath), None, "{idle_us}: it is where it was, and put nowhere anew");
    }
}

/// As it was before there were silent ports; and the log says why.
#[test]
fn without_aio_each_port_keeps_its_thread() {
    let (datapath, mut a, mut b) = guests();
    let settings = Settings { watches: Watches::new(1 << 30), ..ends_after(100) };
    let mut workers = Workers::start(&datapath, settings).unwrap();
    workers.attach(&a.port, 1, own_kick(&a)).unwrap();
    wait_for("a thread", || news(&datapath).is_some_and(|news| news.thread != 0));
    for number in 0..20 {
        std::thread::sleep(Duration::from_millis(1));
        numbered(&mut a, number);
        a.driver.flush(0);
        wait_for("its packet", || came(&mut b, &mut Vec::new()));
        a.driver.unsent(0).unwrap();
        assert!(!is_silent(&workers) && news(&datapath).is_none());
    }
    let mut line = None;
    wait_for("a line", || {
        line = line.take().or_else(|| datapath.take_line(PortId(0)));
        line.is_some()
    });
    assert!(line.is_some_and(|line| line.port == PortId(0) && line.text.contains("fs.aio-max-nr")));
    // Once.
    std::thread::sleep(3 * LOOK);
    assert!(datapath.take_line(PortId(0)).is_none());
}

/// The kernel has a worker say so, behind which others may stand, or does not say so at all; of more than are looked at at a time.
#[test]
fn a_port_of_which_nothing_is_heard_gets_its_thread_all_the_same() {
    let (datapath, _a, _b) = guests();
    let (workers, timer) = (Workers::start(&datapath, Settings::default()).unwrap(), TimerFd::new().unwrap());
    let silent = |id: u32| {
        let port = Arc::new(Port::new(PortId(id), format!("p{id}")));
        let server = Server::new(&port, &workers.helpers, &timer).unwrap();
        let mailbox = server.mailbox.clone();
        // It is not watched.
        workers.helpers.silent.lock().ports.insert(port.id, Box::new(server));
        mailbox
    };
    let mailboxes: Vec<_> = (1..LOOKS as u32 + 50).map(silent).collect();
    for (at, id) in [(mailboxes.len() - 1, LOOKS as u32 + 49), (0, 1), (LOOKS, LOOKS as u32 + 1)] {
        mailboxes[at].send(Letter::Look);
        let mut begun = None;
        wait_for("a thread", || {
            begun = datapath.threads.lock().pop_front().filter(|(_, news)| news.thread != 0);
            begun.is_some()
        });
        assert_eq!(begun.map(|(port, _)| port), Some(PortId(id)));
    }
}

/// Whoever had decided to leave, and had been told to stop meanwhile, was waited for, for ever where no thread could be had for that.
#[test]
fn who_leaves_when_all_ends_leaves_nothing() {
    let (datapath, a, _b) = guests();
    let workers = Workers::start(&datapath, ends_after(100)).unwrap();
    let helpers = workers.helpers.clone();
    let server = || Box::new(Server::new(&a.port, &helpers, &TimerFd::new().unwrap()).unwrap());
    let (before, leaves) = (Arc::strong_count(&helpers), server());
    let (left, mailbox) = (server(), leaves.mailbox.clone());
    let left_mailbox = left.mailbox.clone();
    assert!(helpers.leave(left).is_none());
    drop(workers);
    assert_eq!(Arc::strong_count(&left_mailbox), 1, "what was kept is no more");
    assert!(helpers.leave(leaves).is_none() && helpers.silent.lock().ports.is_empty());
    assert_eq!(Arc::strong_count(&mailbox), 1);
    wait_for("`waits` ends", || Arc::strong_count(&helpers) == before - 2);
}

/// Of ports whose threads come and go none keeps another's news back.
#[test]
fn news_of_threads_are_told_in_turn_and_the_last_of_each_port() {
    let (datapath, _a, _b) = guests();
    let helpers = Helpers::new(datapath.clone(), Settings::default()).unwrap();
    helpers.tell(PortId(7), 70, 0, None);
    for n in 1..100 {
        helpers.tell(PortId(1), n, 0, None);
        helpers.tell(PortId(9), n, 0, None);
    }
    let told: Vec<_> = datapath.threads.lock().iter().map(|(port, news)| (port.0, news.thread)).collect();
    assert_eq!(told, [(7, 70), (1, 99), (9, 99)]);
}

/// From when a guest kicks to when its packet is there: with a thread that sleeps, and with one that is to be started.
#[test]
#[ignore = "a measurement: -- --ignored --nocapture what_the_first"]
fn what_the_first_packet_after_a_silence_costs() {
    for idle_us in [10_000_000, 500] {
        let (datapath, mut a, mut b) = guests();
        let mut workers = Workers::start(&datapath, ends_after(idle_us)).unwrap();
        workers.attach(&a.port, 1, own_kick(&a)).unwrap();
        let (mut took, mut threads) = (Vec::new(), std::collections::BTreeSet::new());
        for number in 0..300 {
            std::thread::sleep(Duration::from_millis(5));
            numbered(&mut a, number);
            let begun = Instant::now();
            a.driver.flush(0);
            while !came(&mut b, &mut Vec::new()) {
                std::thread::yield_now();
            }
            took.push(begun.elapsed());
            a.driver.unsent(0).unwrap();
            threads.extend(news(&datapath).map(|news| news.thread));
        }
        took.sort_unstable();
        println!("{} threads: median {:?}, p90 {:?}", threads.len(), took[150], took[270]);
    }
}
