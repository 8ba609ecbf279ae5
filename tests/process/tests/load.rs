//! The load generator against a real switch: every pattern, split and packed, content checked, nothing lost at a rate
//! that any machine manages.

use lasthop_loadgen::frame::Vary;
use lasthop_loadgen::{self as load, Check, Grants, Notify, Pattern, Policy, Report, Session, Settings, Socket};
use lasthop_sys::{CpuList, bind_current_thread};
use lasthop_tests_process::{Guest, Lasthop, Options, Port, scratch};
use lasthop_text::MacAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ports to which lasthop connects, and sockets of the generator for them.
fn ports(count: usize, dir: &std::path::Path) -> (Vec<Port>, Vec<Socket>) {
    let ports: Vec<Port> = (0..count).map(|i| Port::connect(&format!("p{i}"), dir)).collect();
    let sockets = ports.iter().map(|p| Socket { path: p.socket.clone(), listen: true }).collect();
    (ports, sockets)
}

/// Modest: sleeping guests, ordinary memory, 2000 packets a second in all, and after a pause, when much is overdue, no more
/// on their way than a receiver has buffers for.
fn modest(sockets: Vec<Socket>, pattern: Pattern) -> Settings {
    Settings {
        rate: Some(2000.0),
        window: Some(16),
        check: Check::Content,
        latency: true,
        notify: Notify::Sleep,
        ring_size: 256,
        huge: Some(false),
        warmup: Duration::from_millis(100),
        length: Duration::from_millis(300),
        ..Settings::new(sockets, pattern)
    }
}

fn expect_whole(what: &str, report: &Report) {
    let wrong = report.lost + report.reordered + report.doubled + report.damaged + report.stray;
    assert_eq!(wrong, 0, "{what}: {report:?}");
    assert!(report.received > 0 && report.latency.is_some(), "{what}: {report:?}");
}

#[test]
fn every_pattern_arrives_whole() {
    for packed in [false, true] {
        let dir = scratch();
        let (ports, sockets) = ports(4, dir.path());
        let setup = Settings { packed, sizes: "64,1514".parse().unwrap(), ..modest(sockets, Pattern::BothWays) };
        let listening = load::listen(&setup).unwrap();
        let lasthop = Lasthop::start(&ports);
        let mut session = Session::connect(&setup, &listening, &|| Ok(())).unwrap();
        let patterns = [
            Pattern::OneWay,
            Pattern::BothWays,
            Pattern::Incast,
            Pattern::AllToAll,
            Pattern::Broadcast,
            Pattern::Echo,
            Pattern::PingPong,
        ];
        for pattern in patterns {
            let one = pattern == Pattern::PingPong;
            let (rate, window) = if one { (None, None) } else { (setup.rate, setup.window) };
            let sizes = "64,300,1514".parse().unwrap();
            let act = Settings { pattern, rate, window, sizes, flows: 50, ..setup.clone() };
            let report = session.play(&act, &mut ()).unwrap();
            expect_whole(&format!("{pattern:?}, packed: {packed}"), &report);
            assert!(report.sleeps > 0, "guests that sleep do sleep");
        }
        drop(session);
        lasthop.check_sums();
        assert!(lasthop.stop());
    }
}

/// Each of many guests has one packet on its way. One core has all threads of the switch, and each packet woke one of them: none sent often enough for a
/// helper to wait for its next packet, and no cycle was left for the helper that would have spared them that. Other programs may take the core from the
/// helper now and then.
#[test]
fn guests_that_send_a_packet_at_a_time_need_not_kick_for_each_however_many_they_are() {
    let allowed = CpuList::allowed().unwrap();
    let (first, last) = (allowed.iter().next().unwrap(), allowed.iter().last().unwrap());
    let dir = scratch();
    let (ports, sockets) = ports(16, dir.path());
    let settings = Settings {
        ring_size: 256,
        huge: Some(false),
        warmup: Duration::from_millis(200),
        length: Duration::from_millis(300),
        ..Settings::new(sockets, Pattern::PingPong)
    };
    let listening = load::listen(&settings).unwrap();
    let lasthop = Lasthop::start_with(&ports, &["--cpus", &last.to_string()]);
    bind_current_thread(first).unwrap();
    let mut session = Session::connect(&settings, &listening, &|| Ok(())).unwrap();
    let few = |_| {
        let report = session.play(&settings, &mut ()).unwrap();
        println!("{} kicks for {} packets", report.kicks, 2 * report.received);
        report.kicks < report.received
    };
    assert!((0..12).any(few));
    drop(session);
    lasthop.check_sums();
}

/// Guests behind IOMMUs of their own: what they have to say for a packet is what their way to grant needs, and no byte is wrong.
#[test]
fn guests_that_grant_their_pages_lose_nothing_and_say_what_it_takes() {
    // For each: whether a packet takes messages that grant, and such that revoke.
    let ways = [
        (Policy::All, Some(1114), None, false, false),
        (Policy::Once, Some(1114), None, true, true),
        // All pages are granted after a while, and stay so.
        (Policy::Reuse(4096), None, None, false, false),
        // Nearly every buffer lies in a page for which another has to go, once the table is full.
        (Policy::Reuse(256), Some(10_000), None, true, true),
        (Policy::Reuse(4096), None, Some(Duration::from_millis(1)), true, true),
    ];
    for (n, (policy, heap, drain, grants, revokes)) in ways.into_iter().enumerate() {
        let dir = scratch();
        let (ports, sockets) = ports(2, dir.path());
        let sizes = "64,1514".parse().unwrap();
        let settings = Settings {
            sizes,
            heap,
            packed: n % 2 == 1,
            ring_size: 64,
            notify: Notify::Poll,
            grants: Some(Grants { policy, drain }),
            ..modest(sockets, Pattern::BothWays)
        };
        let listening = load::listen(&settings).unwrap();
        let lasthop = Lasthop::start(&ports);
        let report = load::run(&settings, &listening, &|| Ok(()), &mut ()).unwrap();
        expect_whole(&format!("{policy:?}, {heap:?}"), &report);
        let told = report.grants.expect("they grant");
        let many = |messages: u64| messages * 4 > report.received;
        assert_eq!(
            (many(told.updates), many(told.invalidations)),
            (grants, revokes),
            "{policy:?}, {heap:?}: {report:?}"
        );
        assert!(lasthop.stop());
    }
}

/// The station that sends everything back is a guest of another kind here; where uplinks are measured it is an XDP program.
#[test]
fn what_a_station_behind_the_switch_sends_back_arrives_whole() {
    let dir = scratch();
    let (ports, sockets) = ports(1, dir.path());
    let mirror = Port::listen("mirror", dir.path());
    let settings = Settings { sizes: "64,1514".parse().unwrap(), flows: 5, ..modest(sockets, Pattern::Reflect) };
    let listening = load::listen(&settings).unwrap();
    let _lasthop = Lasthop::start(&[ports[0].clone(), mirror.clone()]);
    let mut station = Guest::connect(&mirror.socket, MacAddr([2, 0, 0, 0, 0, 0x99]), Options::default());
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let Some((_, mut frame)) = station.recv_within(Duration::from_millis(20)) else { continue };
                // Announcements are for everybody, and come back to nobody.
                if frame[0] & 1 == 0 {
                    let (to, from) = frame[..12].split_at_mut(6);
                    to.swap_with_slice(from);
                    station.send(&frame);
                }
            }
        });
        let report = load::run(&settings, &listening, &|| Ok(()), &mut ());
        stop.store(true, Ordering::Relaxed);
        report.unwrap()
    });
    expect_whole("reflected", &report);
}

/// The first packets to a station that nobody knows yet reach the other guests as well. Those are no answers to anybody.
#[test]
fn what_is_flooded_to_others_lets_nobody_send_more() {
    let dir = scratch();
    let (ports, sockets) = ports(3, dir.path());
    let mirror = Port::listen("mirror", dir.path());
    let settings = Settings { window: Some(1), rate: None, ..modest(sockets, Pattern::Reflect) };
    let listening = load::listen(&settings).unwrap();
    let _lasthop = Lasthop::start(&[ports.as_slice(), std::slice::from_ref(&mirror)].concat());
    let mut station = Guest::connect(&mirror.socket, MacAddr([2, 0, 0, 0, 0, 0x99]), Options::default());
    let stop = AtomicBool::new(false);
    let (report, most) = std::thread::scope(|scope| {
        let most = scope.spawn(|| {
            let (mut held, mut most) = (Vec::<Vec<u8>>::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                if let Some((_, frame)) = station.recv_within(Duration::from_millis(10)) {
                    held.extend((frame[0] & 1 == 0).then_some(frame));
                    continue;
                }
                for mut frame in held.split_off(0) {
                    most = most.max(1 + held.iter().filter(|other| other[..6] == frame[6..12]).count());
                    let (to, from) = frame[..12].split_at_mut(6);
                    to.swap_with_slice(from);
                    station.send(&frame);
                    held.push(frame);
                }
                held.clear();
            }
            most
        });
        let report = load::run(&settings, &listening, &|| Ok(()), &mut ());
        stop.store(true, Ordering::Relaxed);
        (report.unwrap(), most.join().unwrap())
    });
    assert!(report.received > 20, "{report:?}");
    assert_eq!(most, 1, "packets of one guest on their way at the same time");
}

#[test]
fn packets_that_go_round_are_all_there_at_the_end() {
    let dir = scratch();
    let (ports, sockets) = ports(2, dir.path());
    let settings = Settings {
        window: Some(100),
        check: Check::Count,
        rate: None,
        latency: false,
        notify: Notify::Poll,
        ..modest(sockets, Pattern::Loop)
    };
    let listening = load::listen(&settings).unwrap();
    let _lasthop = Lasthop::start(&ports);
    let report = load::run(&settings, &listening, &|| Ok(()), &mut ()).unwrap();
    assert!(report.received > 200, "{report:?}");
    assert_eq!(report.lost, 0, "{report:?}");
}

#[test]
fn large_packets_many_queues_and_sockets_on_which_the_switch_listens() {
    let dir = scratch();
    let ports: Vec<Port> = ["a", "b"].iter().map(|n| Port::listen(n, dir.path())).collect();
    let sockets = ports.iter().map(|p| Socket { path: p.socket.clone(), listen: false }).collect();
    let mut settings = modest(sockets, Pattern::BothWays);
    settings.sizes = "gso".parse().unwrap();
    (settings.queues, settings.flows, settings.rate) = (2, 10, Some(200.0));
    let _lasthop = Lasthop::start(&ports);
    let listening = load::listen(&settings).unwrap();
    let mut session = Session::connect(&settings, &listening, &|| Ok(())).unwrap();
    expect_whole("64 KiB", &session.play(&settings, &mut ()).unwrap());
    settings.sizes = "9000".parse().unwrap();
    expect_whole("9000 B", &session.play(&settings, &mut ()).unwrap());
}

#[test]
fn a_number_of_packets_from_as_many_stations_ends_by_itself() {
    let dir = scratch();
    let (ports, sockets) = ports(2, dir.path());
    let settings = Settings {
        packets: Some(300),
        flows: 300,
        flow_order: load::FlowOrder::Round,
        vary: Vary::Mac,
        rate: None,
        window: Some(16),
        warmup: Duration::ZERO,
        length: Duration::from_secs(20),
        ..modest(sockets, Pattern::OneWay)
    };
    let listening = load::listen(&settings).unwrap();
    let lasthop = Lasthop::start(&ports);
    let report = load::run(&settings, &listening, &|| Ok(()), &mut ()).unwrap();
    expect_whole("stations", &report);
    assert_eq!(report.received, 300);
    let learned = lasthop.json(&["mac", "list"]);
    assert!(learned["macs"].as_array().is_some_and(|m| m.len() >= 300), "{learned}");
}

#[test]
fn a_switch_that_goes_is_noticed() {
    let dir = scratch();
    let (ports, sockets) = ports(2, dir.path());
    let settings = Settings { length: Duration::from_secs(60), ..modest(sockets, Pattern::BothWays) };
    let listening = load::listen(&settings).unwrap();
    let lasthop = Lasthop::start(&ports);
    let mut session = Session::connect(&settings, &listening, &|| Ok(())).unwrap();
    let killer = std::thread::spawn(move || drop(lasthop));
    let failure = session.play(&settings, &mut ()).unwrap_err();
    killer.join().unwrap();
    assert!(format!("{failure:?}").contains("has closed the connection"), "{failure:?}");
}
