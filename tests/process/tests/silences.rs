//! Guests that are set up wrongly: the first place that one looks at says what is wrong, and what to do.

use lasthop_sys::EventFd;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, connect, mac, numbered, scratch, wait_for};
use lasthop_vhostuser::{Features, ProtocolFeatures};
use lasthop_virtqueue::driver::NetDriver;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

fn note(lasthop: &Lasthop, port: &str) -> String {
    lasthop.port(port)["note"].as_str().unwrap_or_default().to_owned()
}

/// A front-end that maps its memory privately hands over a file that nobody ever writes to. Here it is another file at once.
#[test]
fn memory_that_only_the_guest_sees() {
    for packed in [false, true] {
        let dir = scratch();
        let ports = ["private", "shared"].map(|name| Port::listen(name, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let mut shared = Guest::connect(&ports[1].socket, mac(2), Options::net(|n| n.packed = packed));

        let options = Options::net(|n| n.packed = packed);
        let mut net = NetDriver::new(options.net).expect("guest memory");
        let mut front = connect(&ports[0].socket);
        let features = Features::from_bits_retain(options.net.features()) | Features::PROTOCOL_FEATURES;
        front.set_owner().expect("an answer");
        front.set_protocol_features(ProtocolFeatures::empty()).expect("an answer");
        front.set_features(features).expect("an answer");
        let (region, _) = net.region();
        let other = memfd_create("private", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&other, region.size).expect("a longer file");
        front.set_mem_table(&[(region, other.as_fd())]).expect("an answer");
        for (ring, queue) in (0..).zip(net.queues()) {
            front.set_size(ring, queue.layout.size.into()).expect("an answer");
            front.set_base(ring, queue.ring.base()).expect("an answer");
            let [desc, driver, device] =
                [queue.layout.desc, queue.layout.driver, queue.layout.device].map(|a| net.user_addr(a));
            front.set_addr(ring, desc, driver, device).expect("an answer");
            front.set_call(ring, Some(queue.call.as_fd())).expect("an answer");
            front.set_kick(ring, Some(queue.kick.as_fd())).expect("an answer");
            front.enable(ring, true).expect("an answer");
        }
        lasthop.wait_for_state("private", "up");
        let kicks = || lasthop.port("private")["from_guest"]["notifications"].as_u64().expect("a number");
        let mut sent = 0;
        wait_for("three kicks to be seen", PATIENCE, || {
            sent += 1;
            let frame = numbered(mac(1), mac(2), sent, 60);
            net.send(0, &[0; 12], &frame).expect("the rules").expect("room");
            net.flush(0);
            net.queues()[1].kick.signal();
            kicks() >= 3
        });
        wait_for("a note", PATIENCE, || note(&lasthop, "private").contains("its memory is not shared with lasthop"));
        let text = note(&lasthop, "private");
        assert!(text.contains("share=on") && text.contains("zeros") && text.contains("attach private"), "{text}");
        assert!(lasthop.command(&["port", "list"]).contains(&format!("private: {text}\n")));
        wait_for("a line in the log", PATIENCE, || lasthop.log().contains("port private: its memory is not shared"));
        // Who shares and is silent is not accused, nor who shares and sends.
        assert_eq!(note(&lasthop, "shared"), "");
        shared.send(&numbered(mac(2), mac(1), 1, 60));
        wait_for("the frame to be taken", PATIENCE, || lasthop.port("shared")["from_guest"]["packets"] == 1);
        assert_eq!(note(&lasthop, "shared"), "");
        drop(front);
        wait_for("the note to go with the guest", PATIENCE, || note(&lasthop, "private").is_empty());
    }
}

/// The front-end hands over nothing: its memory has no descriptor.
#[test]
fn memory_that_is_not_handed_over() {
    let dir = scratch();
    let ports = ["booting", "started"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let [mut booting, mut started] = [0, 1].map(|n: usize| connect(&ports[n].socket));
    let kick = EventFd::new().expect("an eventfd");
    for front in [&mut booting, &mut started] {
        front.set_owner().expect("an answer");
        front.set_protocol_features(ProtocolFeatures::empty()).expect("an answer");
    }
    started.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES).expect("an answer");
    for ring in 0..2 {
        started.set_size(ring, 256).expect("an answer");
        started.set_base(ring, 0).expect("an answer");
        started.set_kick(ring, Some(kick.as_fd())).expect("an answer");
        started.enable(ring, true).expect("an answer");
    }
    wait_for("a note", PATIENCE, || !note(&lasthop, "started").is_empty() && !note(&lasthop, "booting").is_empty());
    let text = note(&lasthop, "started");
    assert!(
        text.contains("not shared") && text.contains("handed over no memory") && text.contains("share=on"),
        "{text}"
    );
    assert!(note(&lasthop, "booting").contains("driver has not started"), "{}", note(&lasthop, "booting"));
    wait_for("a line in the log", PATIENCE, || lasthop.log().contains("port started: its memory is not shared"));
    assert!(!lasthop.log().contains("port booting: its"), "{}", lasthop.log());
}

/// A log on a disk that is full is no reason to stop.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let dir = scratch();
    let port = Port::listen("a", dir.path());
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let lasthop = Lasthop::start_logging(None, std::slice::from_ref(&port), &[], Some(full.into()));
    let before = lasthop.pids();
    // Each comes and goes with lines for the log, of the switch and of the supervisor.
    let end = Instant::now() + Duration::from_secs(60);
    for _ in 0..3 {
        let guest = Guest::connect(&port.socket, mac(1), Options::default());
        lasthop.wait_for_state("a", "up");
        drop(guest);
        lasthop.wait_for_state("a", "waiting");
        assert!(Instant::now() < end, "too slow");
    }
    assert_eq!(lasthop.pids(), before, "a process was replaced");
}
