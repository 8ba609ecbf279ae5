//! An uplink's process that was never ours: it says what it likes to the supervisor and to the switch, dies where it likes, and
//! sends as fast as its ring can. Cases D of the list of hostile inputs, beside those in `hostile_uplink.rs`.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::raw::{RawRing, poke};
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Options, PATIENCE, Port, Turned, TurnedUplink, mac, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures};
use lasthop_virtqueue::driver::NetDriver;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RX: usize = 0;
const TX: usize = 1;

/// lasthop with ports a, b, c and d, bystanders at c and d, and an uplink `net` that the test plays.
struct Site {
    // Gone before what they talk through is.
    bystanders: Bystanders,
    guests: [Guest; 2],
    lasthop: Lasthop,
    turned: Turned,
    switch: u32,
    _dir: tempfile::TempDir,
}

impl Site {
    /// And its uplink's first process, which is ready.
    fn new() -> (Self, TurnedUplink) {
        Self::with("600000", None)
    }

    /// `limit`: milliseconds that it may take to answer. `device`: what its processes leave to each other.
    fn with(limit: &str, device: Option<BorrowedFd<'_>>) -> (Self, TurnedUplink) {
        let (turned, dir) = (Turned::new(env!("CARGO_BIN_EXE_turned-uplink")), scratch());
        let ports = ["a", "b", "c", "d"].map(|name| Port::listen(name, dir.path()));
        let libexec = turned.libexec().display().to_string();
        let lasthop = Lasthop::start_with(&ports, &["--libexec", &libexec, "--uplink-limit-ms", limit]);
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let bystanders = Bystanders::start(&path("c"), &path("d"), [mac(0xc), mac(0xd)]);
        let large = Options::net(|n| n.rx_buffer = 2048);
        let mut guests = [("a", 1), ("b", 2)].map(|(name, n)| Guest::connect(&path(name), mac(n), large));
        let [a, b] = &mut guests;
        a.greet(b, 1);
        let uplink = turned.add(&lasthop, device);
        let switch = lasthop.switch();
        (Self { bystanders, guests, lasthop, turned, switch, _dir: dir }, uplink)
    }

    /// It behaves for once: its rings are up, and frames pass both ways.
    fn plugged_in(&mut self, uplink: &TurnedUplink, options: Options, number: u32) -> Guest {
        let net = NetDriver::new(options.net).expect("memory of its own");
        let mut outside = Guest::attach(uplink.connection(), net, mac(9), options);
        outside.greet_when_back(&mut self.guests[0], number);
        outside
    }

    /// Nobody else has noticed anything.
    fn unharmed(&self) {
        self.bystanders.still_exchange();
        assert_eq!(self.lasthop.switch(), self.switch, "the switch was restarted");
    }

    fn uplink(&self) -> Value {
        self.lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
    }
}

/// D1: the same buffer offered twice. What it says is what it gets: its frame goes out twice, or the second frame for it comes
/// where the first one lies.
#[test]
fn d1_a_buffer_offered_twice_is_its_own_loss() {
    let (mut site, uplink) = Site::new();
    for queue in [TX, RX] {
        let options = Options::net(|n| n.size = 16);
        let mut net = NetDriver::new(options.net).expect("memory of its own");
        let memory = net.memory().clone();
        let ring = RawRing::new(&mut net, queue);
        let buffer = ring.buffers;
        if queue == TX {
            let frame = [&VnetHdr::default().to_bytes()[..], &numbered(mac(9), mac(1), 77, 60)].concat();
            poke(&memory, buffer, &frame);
            ring.desc(0, buffer, frame.len() as u32, 0, 0);
        } else {
            ring.desc(0, buffer, 2048, 2, 0);
        }
        ring.heads(&[0, 0]);
        let outside = Guest::attach(uplink.connection(), net, mac(9), options);
        let counted = |way: &str| site.lasthop.port("net")[way]["packets"].as_u64().unwrap_or(0);
        let [guest, _] = &mut site.guests;
        if queue == TX {
            outside.net.queues()[TX].kick.signal();
            guest.expect_number(77);
            guest.expect_number(77);
        } else {
            let before = counted("to_guest");
            wait_for("two frames in one buffer", PATIENCE, || {
                guest.send(&numbered(mac(1), MacAddr::BROADCAST, 78, 60));
                counted("to_guest") >= before + 2
            });
        }
        site.unharmed();
        assert_eq!(site.lasthop.port("net")["state"], "up", "{}", site.lasthop.port("net"));
        site.guests.iter_mut().for_each(|g| drop(g.drain()));
    }
    let outside = site.plugged_in(&uplink, Options::default(), 1000);
    drop(outside);
    site.lasthop.check_sums();
}

/// D2: a second thread rewrites addresses in frames that it has handed over. A guest gets a frame only if it is addressed, as
/// delivered, to that guest.
#[test]
fn d2_a_frame_rewritten_meanwhile_is_delivered_as_judged() {
    let (mut site, uplink) = Site::new();
    let options = Options::net(|n| (n.size, n.rx_buffer) = (256, 2048));
    let mut outside = site.plugged_in(&uplink, options, 1000);
    let frames: Vec<Vec<u8>> = (0..64).map(|n| numbered(mac(9), mac(1), n, 200)).collect();
    let (memory, stop) = (outside.net.memory().clone(), AtomicBool::new(false));
    let buffers: Vec<u64> = (0..256).map(|token| outside.net.queues()[TX].buffer(token)).collect();
    let (mut got, mut wrong) = ([0u32; 2], 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0usize;
            while !stop.load(Ordering::Relaxed) {
                // The last byte of the destination, behind the virtio-net header; another one each time round.
                poke(&memory, buffers[i % 256] + 12 + 5, &[1 + (i / 256 % 2) as u8]);
                i = i.wrapping_add(7);
            }
        });
        for _ in 0..200 {
            for frame in &frames {
                outside.try_send(VnetHdr::default(), frame);
            }
            for (n, guest) in site.guests.iter_mut().enumerate() {
                while let Some((_, frame)) = guest.recv_within(Duration::from_millis(1)) {
                    let to = MacAddr(frame[..6].try_into().expect("six bytes"));
                    got[n] += 1;
                    wrong += u32::from(to != guest.mac && !to.is_multicast());
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "of {got:?} frames: delivered by another address than they bear");
    assert!(got[0] > 100 && got[1] > 100, "the rewriting had no effect: {got:?}");
    site.unharmed();
    site.lasthop.check_sums();
}

/// D3: it sends as fast as its ring can, and wakes the switch for each frame.
#[test]
fn d3_a_flood_at_ring_speed_starves_nobody() {
    const FRAMES: u32 = 300_000;
    let (mut site, uplink) = Site::new();
    let mut outside = site.plugged_in(&uplink, Options::net(|n| n.size = 256), 1000);
    let taken = || site.lasthop.port("net")["from_guest"]["packets"].as_u64().unwrap_or(0);
    let before = taken();
    let mut n = 0;
    while n < FRAMES {
        let end = Instant::now() + PATIENCE;
        for _ in 0..FRAMES / 6 {
            // Full most of the time: then there is nothing to do but to try again.
            while !outside.try_send(VnetHdr::default(), &numbered(mac(9), mac(1), n, 60 + (n as usize % 1400))) {
                assert!(Instant::now() < end, "frame {n}: the switch takes no more");
            }
            n += 1;
        }
        site.bystanders.still_exchange();
    }
    wait_for("all of it to be taken", PATIENCE, || taken() >= before + u64::from(FRAMES));
    site.unharmed();
    site.guests.iter_mut().for_each(|g| drop(g.drain()));
    // The guest that it was for took nothing: dropped and counted there.
    let port = site.lasthop.port("a");
    let drops = port["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
    assert!(drops.iter().any(|d| d["reason"] == "no_buffers"), "{port}");
    site.lasthop.check_sums();
}

type Step<'a> = Box<dyn Fn(&mut Frontend) -> Result<(), FrontendError> + 'a>;

/// What an uplink says to the switch when it comes up, message by message.
fn steps(net: &NetDriver) -> Vec<Step<'_>> {
    let features = Features::from_bits_retain(net.config().features()) | Features::PROTOCOL_FEATURES;
    let protocol = ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK;
    let mut all: Vec<Step<'_>> = vec![
        Box::new(|front| front.set_owner()),
        Box::new(|front| front.features().map(drop)),
        Box::new(|front| front.protocol_features().map(drop)),
        Box::new(move |front| front.set_protocol_features(protocol)),
        Box::new(move |front| front.set_features(features)),
        Box::new(|front| front.set_mem_table(&[net.region()])),
    ];
    for (ring, queue) in (0..).zip(net.queues()) {
        let layout = &queue.layout;
        let [desc, driver, device] = [layout.desc, layout.driver, layout.device].map(|a| net.user_addr(a));
        all.push(Box::new(move |front| front.set_size(ring, layout.size.into())));
        all.push(Box::new(move |front| front.set_base(ring, 0)));
        all.push(Box::new(move |front| front.set_addr(ring, desc, driver, device)));
        all.push(Box::new(move |front| front.set_call(ring, Some(queue.call.as_fd()))));
        all.push(Box::new(move |front| front.set_kick(ring, Some(queue.kick.as_fd()))));
        all.push(Box::new(move |front| front.enable(ring, true)));
    }
    all
}

/// D5: killed after each message that an uplink says when it comes up. The next process finds the port free.
#[test]
fn d5_dies_at_every_step() {
    let net = NetDriver::new(Options::default().net).expect("memory of its own");
    let all = steps(&net);
    let (mut site, mut uplink) = Site::new();
    let held = |site: &Site| [proc::descriptors(site.switch), proc::descriptors(site.lasthop.pid())];
    drop(site.plugged_in(&uplink, Options::default(), 1000));
    let before = held(&site);
    for steps in 0..=all.len() {
        let mut front = uplink.connection();
        for step in &all[..steps] {
            step(&mut front).unwrap_or_else(|e| panic!("step {steps}: {e}"));
        }
        if steps == all.len() {
            site.lasthop.wait_for_state("net", "up");
        }
        uplink.kill();
        drop(front);
        uplink = site.turned.next();
        let why = site.uplink()["last_error"].clone();
        assert!(why.as_str().is_some_and(|w| w.contains("SIGKILL")), "step {steps}: {why}");
        uplink.ready();
    }
    site.unharmed();
    let outside = site.plugged_in(&uplink, Options::default(), 2000);
    assert_eq!(site.uplink()["restarts"].as_u64(), Some(all.len() as u64 + 1));
    drop(outside);
    wait_for("descriptors to be as before", PATIENCE, || {
        held(&site).iter().zip(before).all(|(now, before)| *now <= before)
    });
    site.lasthop.check_sums();
}

/// D5: half a message, and then nothing. The connection ends, says why, and the same process gets another.
#[test]
fn d5_half_a_message() {
    let (mut site, uplink) = Site::new();
    for half in [&[1, 0, 0, 0, 1, 0][..], &[5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 1, 0]] {
        let front = uplink.connection();
        front.send_raw(half, &[]).expect("the switch listens");
        wait_for("the switch to say why", PATIENCE, || {
            let shown = [site.lasthop.port("net")["last_error"].clone(), site.uplink()["last_error"].clone()];
            shown.iter().all(|e| e.as_str().is_some_and(|e| e.contains("half a message")))
        });
        let said = |line: &str| line.contains("half a message") && line.contains("port net:");
        assert!(site.lasthop.log().lines().any(said), "{}", site.lasthop.log());
        drop(front);
        drop(site.plugged_in(&uplink, Options::default(), 3000));
    }
    site.unharmed();
    assert_eq!(site.uplink()["restarts"], 0);
}

/// One that ends before it is ready is started later each time, and the log says when.
#[test]
fn one_that_keeps_dying_is_started_later_and_later() {
    let (mut site, uplink) = Site::new();
    uplink.kill();
    for _ in 0..9 {
        site.turned.next().kill();
    }
    let uplink = site.turned.next();
    uplink.ready();
    drop(site.plugged_in(&uplink, Options::default(), 1000));
    let log = site.lasthop.log();
    let ends: Vec<&str> = log.lines().filter(|l| l.contains("uplink net:") && l.contains("ended:")).collect();
    let waits: Vec<&str> = ends.iter().filter_map(|l| l.split_once("restarting it").map(|(_, wait)| wait)).collect();
    let expected = ["", " in 10 ms", " in 20 ms", " in 40 ms", " in 80 ms", " in 160 ms", " in 320 ms", " in 640 ms"];
    assert_eq!(waits, [&expected[..], &[" in 1000 ms"; 2]].concat(), "{log}");
    site.unharmed();
}

/// It answers, and takes nothing of what is sent to it. As long as its device would take nothing either that is said and no more;
/// when the device is free it is replaced.
#[test]
fn one_that_takes_nothing_is_replaced_unless_its_device_takes_nothing() {
    const LIMIT: Duration = Duration::from_secs(90);
    let (mut device, mut network) = UnixStream::pair().expect("a pair of sockets");
    device.set_nonblocking(true).expect("a socket can be that");
    network.set_nonblocking(true).expect("a socket can be that");
    while device.write(&[0; 4096]).is_ok() {}
    let (mut site, uplink) = Site::with("1000", Some(device.as_fd()));
    let outside = site.plugged_in(&uplink, Options::default(), 1000);
    let flood = |site: &mut Site| {
        for _ in 0..20 {
            site.guests[0].try_send(VnetHdr::default(), &numbered(mac(1), mac(9), 7, 60));
        }
        site.uplink()["last_error"].as_str().unwrap_or_default().to_owned()
    };
    wait_for("it to be said that its device takes nothing", LIMIT, || {
        flood(&mut site).contains("its device takes nothing")
    });
    assert!(proc::alive(uplink.pid) && site.uplink()["restarts"] == 0, "{}", site.uplink());
    while network.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
    wait_for("it to be replaced", LIMIT, || flood(&mut site).contains("its device is free; replacing it"));
    wait_for("it to be dead", PATIENCE, || !proc::alive(uplink.pid));
    drop((uplink, outside));
    let uplink = site.turned.next();
    uplink.ready();
    drop(site.plugged_in(&uplink, Options::default(), 2000));
    site.unharmed();
    site.lasthop.check_sums();
}
