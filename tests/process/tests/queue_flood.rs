//! What a queue of its own at an uplink is worth to a port that sends: others fill theirs, and it goes on. The wire is a veth pair with
//! several queues in a network namespace: a lasthop at one end, at the other a station that sends back what comes to it.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Lasthop, Netns, Options, PATIENCE, Plug, Station, mac, numbered, proc, scratch, wait_for};
use lasthop_text::MacAddr;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::Signal;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const QUEUES: u16 = 3;
/// Connections that a guest's frames are of: enough for all queues to have some.
const CONNECTIONS: u16 = 64;
/// The station that sends back, and one that takes in all there is.
const ECHO: u8 = 0xee;
const SINK: u8 = 0xdd;

/// Frame `number` of a guest's, of one of its connections; it ends with its number.
fn frame(from: MacAddr, to: u8, number: u32) -> Vec<u8> {
    let (connection, ip) = ((number % u32::from(CONNECTIONS)) as u16, [from.0[5], to].map(|host| [10, 0, 0, host]));
    let mut payload = [0; 32];
    payload[28..].copy_from_slice(&number.to_be_bytes());
    Frame::between(from, mac(to)).ipv4(ip[0], ip[1]).udp(1000 + connection, 9).payload(payload).build()
}

/// Sends back what comes to its address; ends with the value.
#[derive(Debug)]
struct Echo(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Echo {
    fn new(station: Station) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let echo = move || {
            while !ends.load(Relaxed) {
                let Some(mut frame) = station.recv_within(Duration::from_millis(50)) else { continue };
                if frame[..6] == mac(ECHO).0 {
                    let from: [u8; 6] = frame[6..12].try_into().expect("six bytes");
                    frame[..6].copy_from_slice(&from);
                    frame[6..12].copy_from_slice(&mac(ECHO).0);
                    station.send(&frame);
                }
            }
        };
        Self(stop, Some(std::thread::spawn(echo)))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// A guest that talks to the echo.
struct Talker {
    plug: Plug,
    number: u32,
}

impl Talker {
    /// A frame of it there and back, and how long that took; `None`: there was no answer within this time.
    fn ping(&mut self, limit: Duration) -> Option<Duration> {
        self.number += 1;
        let (sent, number, guest) = (Instant::now(), self.number.to_be_bytes(), &mut self.plug.guest);
        guest.send(&frame(guest.mac, ECHO, self.number));
        while let Some((_, frame)) = guest.recv_within(limit.saturating_sub(sent.elapsed())) {
            if frame[6..12] == mac(ECHO).0 && frame[frame.len() - 4..] == number {
                return Some(sent.elapsed());
            }
        }
        None
    }

    /// As often as there are connections, by each of them.
    fn ping_all(&mut self) {
        for _ in 0..CONNECTIONS {
            self.ping(PATIENCE).expect("an answer, whichever connection it is of");
        }
    }
}

/// A guest that talks, and one that floods.
struct Stage {
    lasthop: Lasthop,
    a: Talker,
    b: Plug,
    _echo: Echo,
    _dir: tempfile::TempDir,
    _netns: Netns,
}

impl Stage {
    fn new() -> Self {
        let netns = Netns::new();
        let several = format!("numtxqueues {QUEUES} numrxqueues {QUEUES}");
        netns.ip(&format!("link add v0 {several} type veth peer name v1 {several}"));
        netns.ip("link set v1 up");
        // So what the other guest sends never comes to the station that sends back.
        netns.ip(&format!("link add m1 link v1 address {} type macvlan mode private", mac(ECHO)));
        netns.ip("link set m1 up");
        let dir = scratch();
        let plug = |number| Plug::new(dir.path().join(format!("p{number}.sock")), false, number, Options::default());
        let [(one, a), (two, b)] = [1, 2].map(plug);
        let uplink = format!("net=v0,af_xdp,queues={QUEUES}");
        // A thread of the uplink's that is stopped is not to be its end.
        let arguments = ["--uplink", &uplink, "--uplink-limit-ms", "120000"];
        let lasthop = Lasthop::start_in(Some(&netns), &[one, two], &arguments);
        lasthop.wait_for_state("net", "up");
        let (a, mut b) = (a(), b());
        // What is for the sink goes to the network alone once it has said where it is.
        let sink = Station::on(&netns, "v1");
        sink.send(&numbered(mac(SINK), b.guest.mac, 1, 60));
        b.guest.expect_number(1);
        drop(sink);
        let echo = Echo::new(Station::on(&netns, "m1"));
        let mut stage = Self { lasthop, a: Talker { plug: a, number: 0 }, b, _echo: echo, _dir: dir, _netns: netns };
        stage.a.ping(PATIENCE).expect("an answer");
        stage
    }

    /// The queues of the uplink: whose each is, and packets to the network so far.
    fn queues(&self) -> Vec<(Option<String>, u64)> {
        let net = self.lasthop.json(&["uplink", "list"])["uplinks"][0]["guest_queues"].clone();
        let queue = |of: &Value| (of["port"].as_str().map(Into::into), of["sent"].as_u64().expect("a number"));
        net.as_array().expect("it has several").iter().map(queue).collect()
    }

    /// Waits until a sends by a queue of its own, and says which that is.
    fn wait_for_its_own(&mut self) -> usize {
        let mut own = 0;
        wait_for("a to send by a queue of its own", PATIENCE, || {
            let before = self.queues();
            own = before.iter().position(|(port, _)| port.as_deref() == Some("p1")).unwrap_or(0);
            let all = (0..8).all(|_| self.a.ping(Duration::from_millis(500)).is_some());
            own != 0 && all && self.queues()[own].1 == before[own].1 + 8
        });
        own
    }

    /// A frame of each connection of either leaves: by which queues those of a and those of b do.
    fn spread(&mut self) -> Vec<[u64; 2]> {
        let before = self.queues();
        self.a.ping_all();
        let between = self.queues();
        let guest = &mut self.b.guest;
        (0..CONNECTIONS.into()).for_each(|number| guest.send(&frame(guest.mac, SINK, number)));
        let sum = |queues: &[(Option<String>, u64)]| queues.iter().map(|(_, sent)| sent).sum::<u64>();
        let mut after = Vec::new();
        wait_for("all to be out", PATIENCE, || {
            after = self.queues();
            sum(&after) >= sum(&between) + u64::from(CONNECTIONS)
        });
        let grown = |i: usize| [between[i].1 - before[i].1, after[i].1 - between[i].1];
        (0..before.len()).map(grown).collect()
    }

    /// Whether all of a's frames, and none of b's, go by this queue.
    fn is_apart(&mut self, own: usize) -> bool {
        let spread = self.spread();
        let [a, b] = [0, 1].map(|of| spread.iter().map(|sent| sent[of]).sum::<u64>());
        println!("{spread:?}");
        spread[own] == [a, 0] && a == u64::from(CONNECTIONS) && b == a
    }

    /// Another process of this program has taken the place of the one there is, and all is as it was.
    fn kill(&mut self, program: &str) {
        let old = self.lasthop.child(program);
        proc::signal(old, Signal::KILL);
        let is_new = |(pid, name): &(u32, String)| name == program && *pid != old;
        wait_for(program, PATIENCE, || proc::children(self.lasthop.pid()).iter().any(is_new));
        [&mut self.a.plug, &mut self.b].into_iter().for_each(Plug::mend);
        self.lasthop.wait_for_state("net", "up");
    }
}

/// A thread of the uplink's process, stopped; it goes on with the end of the value.
struct Stopped(Pid);

impl Stopped {
    fn new(process: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
        let of_name =
            |path: &std::path::Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let thread = tasks.map(|task| task.path()).find(|path| of_name(path)).expect("a thread of this name");
        let number = thread.file_name().and_then(|name| name.to_str()?.parse().ok());
        let thread = Pid::from_raw(number.expect("its number"));
        ptrace::seize(thread, ptrace::Options::empty()).expect("root may");
        ptrace::interrupt(thread).expect("it is ours");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
        Self(thread)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

/// Nobody else's frames go by a kept queue, nor its port's by another, whatever process was started anew; and they go on when all others
/// are full and nobody takes anything from them.
#[test]
fn what_others_send_holds_up_nobody_who_has_a_queue_of_its_own() {
    let mut stage = Stage::new();
    let shared = stage.spread();
    assert!(shared.iter().flatten().all(|sent| *sent > 0), "by their connections, over all queues: {shared:?}");
    stage.lasthop.command(&["port", "set", "p1", "--queue-of", "net"]);
    let own = stage.wait_for_its_own();
    assert!(stage.is_apart(own), "queue {own} is a's");

    let uplink = stage.lasthop.child("lasthop-uplink");
    let others = (0..usize::from(QUEUES)).filter(|queue| *queue != own);
    let stopped: Vec<_> = others.map(|queue| Stopped::new(uplink, &format!("queue-{queue}"))).collect();
    let mut number = 0;
    wait_for("the others to be full", PATIENCE, || {
        let guest = &mut stage.b.guest;
        for _ in 0..256 {
            number += 1;
            guest.try_send(VnetHdr::default(), &frame(guest.mac, SINK, number));
        }
        stage.lasthop.port("net")["to_guest"]["drops"].as_array().is_some_and(|drops| !drops.is_empty())
    });
    stage.a.ping_all();
    drop(stopped);
    // Another switch is told, and another process of the uplink says it.
    for program in ["lasthop-switch", "lasthop-uplink"] {
        stage.kill(program);
        let own = stage.wait_for_its_own();
        assert!(stage.is_apart(own), "after the end of {program} queue {own} is a's");
    }
    // Taken back, it sends as all do.
    stage.lasthop.command(&["port", "set", "p1", "--queue-of", "none"]);
    wait_for("all to share again", PATIENCE, || stage.spread().iter().flatten().all(|sent| *sent > 0));
}

/// Sets it when dropped: a thread ends when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// How long a's frames are there and back, perhaps while b sends all it can: half of them so long at most, and 99 of 100 so long. Those that
/// find no room are long in coming.
fn round_trips(stage: &mut Stage, flood: bool) -> [Duration; 2] {
    const LOST: Duration = Duration::from_millis(500);
    const ROUNDS: usize = 3000;
    let (stop, Stage { a, b, .. }) = (AtomicBool::new(!flood), stage);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let flood = scope.spawn(|| {
            let frames: Vec<_> = (0..CONNECTIONS.into()).map(|number| frame(b.guest.mac, SINK, number)).collect();
            let (mut sent, begun) = (0u64, Instant::now());
            for frame in frames.iter().cycle().take_while(|_| !stop.load(Relaxed)) {
                match b.guest.try_send(VnetHdr::default(), frame) {
                    true => sent += 1,
                    false => sleep(Duration::from_micros(50)),
                }
            }
            sent as f64 / begun.elapsed().as_secs_f64()
        });
        let times = (0..ROUNDS).map(|_| a.ping(LOST).unwrap_or(LOST)).collect();
        drop(ends);
        println!("{:.0} frames a second beside them", flood.join().expect("it floods"));
        times
    });
    times.sort_unstable();
    println!("{} found no room", times.iter().filter(|time| **time == LOST).count());
    [times[ROUNDS / 2], times[ROUNDS * 99 / 100]]
}

/// Prints what it is worth: where others share the processors, a thread's wait for one hides it.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn round_trips_beside_a_flood() {
    let mut stage = Stage::new();
    let rounds = (0..5).map(|_| {
        let of = |stage: &mut Stage, queue: &str, flood| {
            stage.lasthop.command(&["port", "set", "p1", "--queue-of", queue]);
            if queue != "none" {
                stage.wait_for_its_own();
            }
            round_trips(stage, flood)
        };
        [of(&mut stage, "none", false), of(&mut stage, "none", true), of(&mut stage, "net", true)]
    });
    let rounds: Vec<_> = rounds.collect();
    for (what, n) in ["alone", "beside a flood", "beside a flood, by a queue of its own"].into_iter().zip(0..) {
        let middle = |of: usize| {
            let mut times: Vec<_> = rounds.iter().map(|round| round[n][of]).collect();
            times.sort_unstable();
            times[times.len() / 2]
        };
        println!("{what}: median {:?}, p99 {:?}", middle(0), middle(1));
    }
    let drops = stage.lasthop.port("net")["to_guest"]["drops"].clone();
    assert!(drops.as_array().is_some_and(|drops| !drops.is_empty()), "the flood was more than the queues of all took");
}
