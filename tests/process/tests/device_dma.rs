//! `--device NAME,dma=on`: a DMA engine copies between VMs, and what they see is what they would see without.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_harness::DmaEngine;
use lasthop_sys::CpuList;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, mac, number_of, numbered, proc, scratch, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest frame that is sent here, and how many bytes of a frame the device writes itself where flows look at the link layer.
const LONGEST: usize = 65_000;
const HEAD: u64 = 16;
/// Bytes of a command to the engine, and of its completion record.
const COMMAND: u64 = 64 + 32;

struct Site {
    lasthop: Lasthop,
    dir: tempfile::TempDir,
}

impl Site {
    /// Four ports of a device.
    fn new(device: &str) -> Self {
        Self::with(device, &[])
    }

    fn with(device: &str, more: &[&str]) -> Self {
        let dir = scratch();
        let mut arguments: Vec<String> = more.iter().map(ToString::to_string).collect();
        arguments.extend(["--device".to_owned(), format!("{device},cable=off")]);
        for name in ["a", "b", "c", "d"] {
            let path = dir.path().join(name);
            arguments.extend(["--port".into(), format!("{name}={},device=nic0", path.display())]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self { lasthop: Lasthop::start_with(&[], &arguments), dir }
    }

    fn guest(&self, name: &str, number: u8) -> Guest {
        Guest::connect(&self.dir.path().join(name), mac(number), long(Options::default()))
    }

    fn two(&self) -> (Guest, Guest) {
        let (mut a, mut b) = (self.guest("a", 1), self.guest("b", 2));
        a.greet_when_back(&mut b, 1);
        (a, b)
    }

    fn stats(&self) -> Value {
        self.lasthop.json(&["device", "stats", "nic0"])
    }

    /// What the engine has counted.
    fn dma(&self, what: &str) -> u64 {
        let stats = self.stats();
        stats["table"]["dma"][what].as_u64().unwrap_or_else(|| panic!("no number {what}: {stats}"))
    }

    /// A command to the device's own lasthop.
    fn ask_device(&self, words: &[&str]) -> Output {
        let run_dir = self.lasthop.run_dir().join("devices/nic0");
        let mut command = Command::new(lasthop_tests_process::binary("lasthop"));
        command.args(words).arg("--run-dir").arg::<&Path>(&run_dir).output().expect("lasthop starts")
    }

    fn device(&self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.ask_device(words).stdout).into_owned()
    }

    fn port(&self, name: &str) -> Value {
        let all: Value = serde_json::from_str(&self.device(&["port", "list", "--json"])).unwrap_or_default();
        let ports = all["ports"].as_array().cloned().unwrap_or_default();
        ports.into_iter().find(|port| port["name"] == name).unwrap_or_default()
    }

    fn process(&self) -> u32 {
        let all = proc::tree(self.lasthop.pid());
        all.into_iter().find(|pid| proc::name(*pid) == "lasthop-device").expect("the device runs")
    }
}

/// With buffers to send long frames from.
fn long(mut options: Options) -> Options {
    (options.net.tx_buffer, options.net.size) = (70_000, 256);
    options
}

/// Sends and receives as much as goes at the moment; how many came. Numbers follow each other.
fn pump(from: &mut Guest, to: &mut Guest, next: &mut u32, got: &mut u32, len: impl Fn(u32) -> usize) {
    while *next - *got < 6 && from.try_send(VnetHdr::default(), &numbered(from.mac, to.mac, *next, len(*next))) {
        *next += 1;
    }
    while let Some((_, frame)) = to.try_recv() {
        // What goes to a station whose port has broken is flooded.
        let Some(number) = number_of(&frame).filter(|_| frame.starts_with(&to.mac.0)) else { continue };
        assert_eq!((number, frame.len()), (*got, len(number)), "in the order in which they were sent");
        *got += 1;
    }
}

/// Frames of all lengths, so that short copies overtake long ones. Each buffer is overwritten as soon as it is given back.
fn all_lengths(packed: bool) {
    let site = Site::new(if packed { "nic0,dma=on,walk=on" } else { "nic0,dma=on" });
    let options = long(Options::net(|net| net.packed = packed));
    let mut a = Guest::connect(&site.dir.path().join("a"), mac(1), options);
    let mut b = Guest::connect(&site.dir.path().join("b"), mac(2), options);
    a.greet_when_back(&mut b, 1);
    a.all_taken();
    b.drain();
    let lens = [60, LONGEST, 150, 1500, 9000, 300, 40_000];
    let (memory, mut free) = (a.net.memory().clone(), (0..8u32).collect::<Vec<_>>());
    let (mut next, mut got, end) = (10, 10, Instant::now() + PATIENCE);
    while got < 2000 {
        assert!(Instant::now() < end, "{got} of {next} came: {}", site.stats());
        let queue = &mut a.net.queues_mut()[1];
        while next - got < 8 && !free.is_empty() {
            let frame = numbered(mac(1), mac(2), next, lens[next as usize % lens.len()]);
            let (token, whole) = (free.pop().expect("one is left"), [&[0; VnetHdr::LEN][..], &frame].concat());
            memory.slice(queue.buffer(token), whole.len()).expect("a buffer").write(0, &whole);
            queue.ring.add(&[(queue.buffer(token), whole.len() as u32)], &[], token).expect("there is room");
            next += 1;
        }
        queue.publish();
        while let Some((token, _)) = queue.ring.poll_used().expect("the switch keeps to the rules") {
            memory.slice(queue.buffer(token), 70_000).expect("a buffer").write(0, &[0xee; 70_000]);
            free.push(token);
        }
        while let Some((_, frame)) = b.try_recv() {
            assert_eq!(
                number_of(&frame),
                Some(got),
                "each as it was sent, and in that order: {} {}",
                site.port("a"),
                site.port("b")
            );
            got += 1;
        }
    }
    assert!(site.dma("copies") > 2000 && site.dma("overtaken") > 0, "{}", site.stats());
    let zero = ["errors", "taken_back", "lost"].map(|what| site.dma(what));
    assert_eq!((zero, &site.stats()["table"]["dma"]["state"]), ([0; 3], &"runs".into()));
    assert!(site.lasthop.command(&["device", "stats", "nic0"]).contains("DMA engine (software): "));
    assert!(site.lasthop.stop(), "all processes end");
}

#[test]
fn packets_of_all_lengths_come_whole_and_in_order() {
    all_lengths(false);
}

/// And beside a walk, which is a thread of the same process.
#[test]
fn and_so_they_do_on_packed_rings() {
    all_lengths(true);
}

/// What the engine has moved is what the account says that it would have, and each command crosses the bus.
#[test]
fn what_it_moves_is_what_the_account_says() {
    const PACKETS: u64 = 200;
    let site = Site::new("nic0,dma=software,dma-threshold=128");
    let (mut a, mut b) = site.two();
    let mut each = |len: usize| {
        let counted = |site: &Site| {
            let stats = site.stats();
            let of = |at: &str| stats.pointer(at).and_then(Value::as_u64).unwrap_or_else(|| panic!("{at}: {stats}"));
            ["/table/dma/copies", "/table/dma/bytes", "/table/bus/dma_bytes", "/table/bus/bus_bytes/dma"].map(of)
        };
        a.send(&numbered(mac(1), mac(2), 99, len));
        b.expect_number(99);
        a.all_taken();
        let before = counted(&site);
        for n in 100..100 + PACKETS as u32 {
            a.send(&numbered(mac(1), mac(2), n, len));
            b.expect_number(n);
        }
        a.all_taken();
        let after = counted(&site);
        std::array::from_fn::<u64, 4, _>(|n| after[n] - before[n])
    };
    let moved = PACKETS * (1500 - HEAD);
    assert_eq!(each(1500), [PACKETS, moved, moved, PACKETS * COMMAND]);
    assert_eq!(each(HEAD as usize + 128), [0, 0, PACKETS * 128, 0], "up to the threshold they are the processor's");
    assert_eq!(each(HEAD as usize + 129)[..2], [PACKETS, PACKETS * 129]);
    let [copies, bytes, account, bus] = each(LONGEST);
    assert_eq!((copies, bus), (PACKETS * 32, PACKETS * 32 * COMMAND), "one for each buffer of 2048 bytes");
    assert_eq!((bytes, account), (PACKETS * (LONGEST as u64 - HEAD), PACKETS * (LONGEST as u64 - HEAD)));
}

/// A checksum that the receiver wants complete is made while the bytes are copied, which an engine cannot.
#[test]
fn what_is_to_be_summed_is_the_processors() {
    let site = Site::new("nic0,dma=on");
    let mut a = Guest::connect(&site.dir.path().join("a"), mac(1), long(Options::offloading()));
    let mut b = site.guest("b", 2);
    a.greet_when_back(&mut b, 1);
    let before = (site.dma("copies"), site.dma("summed"));
    let frame = Frame::between(mac(1), mac(2)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1000, 80);
    let frame = frame.payload(vec![7; 1000]).partial_checksum();
    let asks = VnetHdr { flags: VnetHdr::F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHdr::default() };
    a.send_as(asks, &frame.build());
    let (vnet, came) = b.recv("it", |_, frame| frame.len() > 1000);
    assert_eq!((vnet.flags, came.len()), (0, frame.build().len()));
    assert_eq!((site.dma("copies"), site.dma("summed")), (before.0, before.1 + 1));
}

/// Each process of the data plane counts for itself: what another one does that takes over is no news of the engine before, least of all when it fails.
#[test]
fn a_take_over_that_fails_leaves_the_counts_of_the_engine_that_goes_on() {
    let site = Site::with("nic0,dma=on", &["--watchdog", "off"]);
    let (mut a, mut b) = site.two();
    let mut some = |first: u32| {
        for n in first..first + 50 {
            a.send(&numbered(mac(1), mac(2), n, 1500));
            b.expect_number(n);
        }
        a.all_taken();
    };
    some(100);
    let (before, process) = (site.dma("copies"), site.process());
    assert!(before >= 50, "{}", site.stats());
    let poll = CpuList::allowed().unwrap().iter().next().unwrap().to_string();
    let sessions: Vec<u32> =
        proc::tree(site.lasthop.pid()).into_iter().filter(|pid| proc::name(*pid) == "lasthop-session").collect();
    sessions.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    let out = site.ask_device(&["engine", "add", "poll", &poll]);
    sessions.iter().for_each(|pid| proc::signal(*pid, Signal::CONT));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("did not go over within"), "{said}");
    assert_eq!(site.dma("copies"), before, "{}", site.stats());
    some(200);
    assert_eq!((site.dma("copies"), site.process()), (before + 50, process));
    // One that succeeds begins anew.
    let out = site.ask_device(&["engine", "add", "poll", &poll]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    wait_for("the device before to be gone", PATIENCE, || !proc::alive(process));
    let after = site.dma("copies");
    assert!(after < before, "{}", site.stats());
    some(300);
    assert_eq!(site.dma("copies"), after + 50);
}

/// Without the option there is no engine.
#[test]
fn without_it_there_is_none() {
    let site = Site::new("nic0,dma=off");
    let (mut a, mut b) = site.two();
    a.send(&numbered(mac(1), mac(2), 7, 1500));
    b.expect_number(7);
    assert!(site.stats()["table"]["dma"].is_null());
    let run = Command::new(lasthop_tests_process::binary("lasthop"))
        .args(["run", "--device", "nic0,dma=/dev/dsa/wq0.7"])
        .output()
        .expect("lasthop starts");
    let says = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && says.contains("dma=/dev/dsa/wq0.7: it cannot be opened"), "{says}");
}

/// The file under a guest's memory is cut while the engine copies from it, or to it: that port breaks, and others go on.
#[test]
fn a_guest_that_cuts_its_memory_under_a_copy_breaks_its_port_alone() {
    for sends in [true, false] {
        let site = Site::new("nic0,dma=on");
        let (mut a, mut b) = site.two();
        let (mut c, mut d) = (site.guest("c", 3), site.guest("d", 4));
        c.greet_when_back(&mut d, 1);
        let process = site.process();
        b.drain();
        let (mut next, mut got) = (10, 10);
        while got < 50 {
            pump(&mut a, &mut b, &mut next, &mut got, |_| LONGEST);
        }
        let frame = numbered(mac(1), mac(2), next, LONGEST);
        while a.net.send(0, &[0; 12], &frame).expect("the switch keeps to the rules").is_ok() {}
        let cut = if sends { &a } else { &b };
        let file = cut.net.region().1.try_clone_to_owned().expect("a descriptor");
        // Its rings lie at the beginning, and stay; nothing else of its memory is touched here afterwards.
        rustix::fs::ftruncate(&file, if sends { 1 << 20 } else { 1 << 18 }).expect("it is ours");
        a.net.queues_mut()[1].publish();
        a.net.queues()[1].kick.signal();
        let broken = if sends { "a" } else { "b" };
        wait_for("its port to break", PATIENCE, || site.port(broken)["state"] == "broken");
        let why = site.port(broken).to_string();
        assert!(why.contains("guest memory disappeared"), "{why}");
        c.greet(&mut d, 2);
        let (mut next, mut got) = (10, 10);
        while got < 200 {
            pump(&mut c, &mut d, &mut next, &mut got, |_| LONGEST);
        }
        assert_eq!((site.process(), site.dma("lost")), (process, 0));
    }
}

/// Front-ends come and go while the engine copies from them and to them.
#[test]
fn front_ends_that_go_in_the_middle_of_copies_are_forgotten() {
    let site = Site::new("nic0,dma=on");
    let process = site.process();
    for round in 0..15 {
        let (mut a, mut b) = site.two();
        b.drain();
        let (mut next, mut got) = (10, 10);
        while got < 20 + round {
            pump(&mut a, &mut b, &mut next, &mut got, |_| LONGEST);
        }
        // Some are under way.
        for n in 0..8 {
            a.try_send(VnetHdr::default(), &numbered(mac(1), mac(2), next + n, LONGEST));
        }
        if round % 2 == 0 { drop((a, b)) } else { drop((b, a)) }
    }
    let (mut a, mut b) = site.two();
    a.greet(&mut b, 2);
    assert_eq!((site.process(), site.dma("lost")), (process, 0));
    assert!(site.lasthop.stop(), "all processes end");
}

/// The engine hangs, in the middle of a copy: the port that it copies to breaks, and says so; the others go on, its sender's too, and the processor copies for them.
/// In which state it is stopped is chance; where it was at the end of a copy nobody loses anything, and it is tried again.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_engine_that_hangs_breaks_the_port_that_it_copies_to_and_no_other() {
    for attempt in 0.. {
        assert!(attempt < 12, "it is never stopped in a copy");
        let site = Site::new("nic0,dma=on");
        let (mut a, mut b) = site.two();
        let (mut c, mut d) = (site.guest("c", 3), site.guest("d", 4));
        c.greet_when_back(&mut d, 1);
        b.drain();
        let (process, stop) = (site.process(), AtomicBool::new(false));
        let engine = DmaEngine::seize(process);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (mut next, mut got) = (10, 10);
                // Where its port breaks nothing comes any more.
                while !stop.load(Ordering::Relaxed) {
                    pump(&mut a, &mut b, &mut next, &mut got, |_| LONGEST);
                }
            });
            // This thread is the one that may look at it.
            engine.stop_in_a_copy();
            wait_for("it to be found out", PATIENCE, || site.stats()["table"]["dma"]["state"] == "hangs");
            stop.store(true, Ordering::Relaxed);
        });
        // Those that had nothing in it have lost nothing.
        c.greet(&mut d, 2);
        let (mut next, mut got, copies) = (10, 10, site.dma("copies"));
        while got < 300 {
            pump(&mut c, &mut d, &mut next, &mut got, |_| LONGEST);
        }
        assert_eq!((site.dma("copies"), site.process()), (copies, process), "the processor copies");
        if site.dma("lost") == 0 {
            assert!(["a", "b"].iter().all(|port| site.port(port)["state"] == "up"), "nothing was lost");
            continue;
        }
        // It is hung up on, so that it connects anew, and its port says why.
        wait_for("its port to be free", PATIENCE, || site.port("b")["state"] == "waiting" && b.is_disconnected());
        assert!(
            site.port("b").to_string().contains("the DMA engine hangs in the middle of a copy"),
            "{}",
            site.port("b")
        );
        assert_eq!(site.port("a")["state"], "up");
        a.greet(&mut c, 4);
        assert!(site.lasthop.log().contains("ring stopped: the DMA engine hangs"), "{}", site.lasthop.log());
        assert!(site.device(&["doctor", "--since-start"]).contains("(dma-hangs)"));
        assert!(site.lasthop.command(&["device", "stats", "nic0"]).contains("it hangs: "));
        let found = site.lasthop.try_command(&["doctor", "--since-start"]);
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.contains("(dma-hangs)") && found.contains("the DMA engine of device nic0 hangs"), "{found}");
        // It goes on, with nobody's memory.
        drop(engine);
        drop((a, b));
        let (mut a, mut b) = site.two();
        a.send(&numbered(mac(1), mac(2), 70, LONGEST));
        b.expect_number(70);
        c.greet(&mut d, 3);
        assert_eq!(site.process(), process);
        return;
    }
}

/// All of the device's process is stopped for longer than the engine may take, in the middle of copies: nobody has run, so nobody hangs.
#[test]
fn a_stop_of_the_whole_process_is_no_hang_of_its_engine() {
    let site = Site::new("nic0,dma=on");
    let (mut a, mut b) = site.two();
    b.drain();
    let (process, done) = (site.process(), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
            let send = |signal| rustix::process::kill_process(pid, signal).expect("it is there");
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(150));
                send(rustix::process::Signal::STOP);
                std::thread::sleep(Duration::from_millis(650));
                send(rustix::process::Signal::CONT);
            }
            done.store(true, Ordering::Release);
        });
        let (mut next, mut got) = (10, 10);
        while !done.load(Ordering::Acquire) || got < 300 {
            pump(&mut a, &mut b, &mut next, &mut got, |_| LONGEST);
        }
    });
    assert_eq!(site.stats()["table"]["dma"]["state"], "runs");
    assert_eq!((site.process(), site.dma("lost"), site.dma("taken_back")), (process, 0, 0));
    assert!(["a", "b"].iter().all(|port| site.port(port)["state"] == "up"));
}

/// The engine hangs where it has no copy under way: what it is asked for from then on is taken back, the processor makes it, and nobody loses anything.
#[test]
fn an_engine_that_hangs_in_its_sleep_loses_nothing() {
    let site = Site::new("nic0,dma=on");
    let (mut a, mut b) = site.two();
    let (mut c, mut d) = (site.guest("c", 3), site.guest("d", 4));
    c.greet_when_back(&mut d, 1);
    a.send(&numbered(mac(1), mac(2), 5, LONGEST));
    b.expect_number(5);
    let process = site.process();
    let engine = DmaEngine::seize(process);
    wait_for("the engine to sleep", PATIENCE, || engine.sleeps());
    engine.stop();
    let copies = site.dma("copies");
    for n in 10..20 {
        a.send(&numbered(mac(1), mac(2), n, LONGEST));
        b.expect_number(n);
    }
    c.greet(&mut d, 2);
    assert_eq!(site.stats()["table"]["dma"]["state"], "hangs");
    assert_eq!((site.dma("lost"), site.dma("copies")), (0, copies), "{}", site.stats());
    assert!(site.dma("taken_back") > 0, "{}", site.stats());
    assert!(["a", "b", "c", "d"].iter().all(|port| site.port(port)["state"] == "up"));
    // It goes on, and finds nothing to do.
    drop(engine);
    a.greet(&mut b, 30);
    assert_eq!((site.process(), site.dma("copies")), (process, copies));
    assert!(site.lasthop.stop(), "all processes end");
}

/// Beside a device without an engine, in turns. Where no CPU is idle the engine cannot gain anything.
#[test]
#[ignore = "measures; prints packets a second"]
fn an_engine_beside_the_processor() {
    let sites = ["off", "on"].map(|dma| Site::new(&format!("nic0,dma={dma}")));
    let mut guests = sites.each_ref().map(Site::two);
    let mut next = [10; 2];
    for len in [1500, 9000, LONGEST] {
        let mut best = [0.0f64; 2];
        for _ in 0..5 {
            for (which, (a, b)) in guests.iter_mut().enumerate() {
                let (from, began) = (next[which], Instant::now());
                let mut got = from;
                while got < from + 20_000 {
                    pump(a, b, &mut next[which], &mut got, |_| len);
                }
                best[which] = best[which].max(f64::from(got - from) / began.elapsed().as_secs_f64());
                // What is still on its way.
                while got < next[which] {
                    got += b.try_recv().map_or(0, |_| 1);
                }
            }
        }
        println!("{len} bytes: {:.0} without, {:.0} with, {:.2}", best[0], best[1], best[1] / best[0]);
    }
}
