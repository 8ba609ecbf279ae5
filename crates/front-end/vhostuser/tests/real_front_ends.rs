//! The session against the two front-ends most people have: DPDK's virtio-user and QEMU. Nothing moves packets here;
//! what counts is that they negotiate, start their rings, and stop them again. A program that is not installed is
//! skipped with a line that says so.

use lasthop_connection::Event;
use lasthop_vhostuser::{Features, Local, ProtocolFeatures, RingState, Session, SessionError};
use lasthop_virtqueue::Queue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A front-end gets this long for each step before the test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A front-end's process, killed if the test ends early.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

/// A program connected to a session of ours.
struct Bench {
    program: Program,
    session: Session<Local>,
    queues: Arc<[Arc<Queue>]>,
    events: Vec<Event>,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Starts the program that `command` makes of the socket's path; `None` if it is not installed.
    fn start(command: impl FnOnce(&str) -> Command) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut command = command(path.to_str().unwrap());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            eprintln!("skipped: {:?} is not installed", command.get_program());
            return None;
        };
        let mut program = Program(child);
        let give_up = Instant::now() + PATIENCE;
        let socket = loop {
            let mut fds = [PollFd::new(&listener, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
            if let Ok((socket, _)) = listener.accept() {
                break socket;
            }
            assert_eq!(program.0.try_wait().unwrap(), None, "{command:?} ended without connecting");
            assert!(Instant::now() < give_up, "{command:?} does not connect");
        };
        let queues: Arc<[_]> = (0..32).map(|i| Arc::new(Queue::new(i))).collect();
        let session = Session::local(std::os::fd::OwnedFd::from(socket), queues.clone(), Instant::now());
        Some(Self { program, session, queues, events: Vec::new(), _dir: dir })
    }

    /// Serves until `done`, or until the connection ends.
    fn until(&mut self, what: &str, done: impl Fn(&Session<Local>) -> bool) -> Result<(), SessionError> {
        let give_up = Instant::now() + PATIENCE;
        while !done(&self.session) {
            let rings: Vec<_> = self.session.rings().filter(|r| r.size != 0).collect();
            assert!(Instant::now() < give_up, "no {what}: {rings:?}, {:?}", self.events);
            let mut fds = [PollFd::new(&self.session, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
            self.session.serve(Instant::now(), &mut self.events)?;
        }
        Ok(())
    }

    fn nothing_was_refused(&self) {
        let bad: Vec<_> =
            self.events.iter().filter(|e| matches!(e, Event::Wrong { .. } | Event::Failed { .. })).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

fn up(session: &Session<Local>, rings: usize) -> bool {
    session.rings().filter(|r| r.state == RingState::Running && r.enabled).count() == rings
}

#[test]
fn virtio_user() {
    for (options, pairs, wanted) in [
        ("", 1, Features::VERSION_1 | Features::RING_INDIRECT_DESC),
        (",packed_vq=1,in_order=1,mrg_rxbuf=0", 1, Features::VERSION_1 | Features::RING_PACKED | Features::IN_ORDER),
        (",queues=4", 4, Features::VERSION_1 | Features::MQ | Features::MRG_RXBUF),
    ] {
        let Some(mut bench) = Bench::start(|path| {
            let mut testpmd = Command::new("dpdk-testpmd");
            testpmd.args(["--lcores", "0@0,1@0", "--no-shconf", "--no-huge", "-m", "256", "--no-pci"]);
            testpmd.arg(format!("--vdev=net_virtio_user0,path={path},queue_size=256{options}"));
            testpmd.args(["--", "-i", "--nb-cores=1", "--total-num-mbufs=8192"]);
            testpmd.args([format!("--rxq={pairs}"), format!("--txq={pairs}")]);
            testpmd
        }) else {
            return;
        };
        // DRIVER_OK comes last.
        bench.until("rings and status", |s| up(s, 2 * pairs) && s.device_status() & 4 != 0).unwrap();
        assert!(bench.session.features().contains(wanted), "{:?}", bench.session.features());
        assert!(bench.session.memory().total_bytes() > 0);
        assert!(bench.queues[..2 * pairs].iter().all(|q| q.is_ready()));
        bench.program.say("quit");
        assert_eq!(bench.until("end", |_| false), Err(SessionError::Closed));
        let stopped = bench.events.iter().filter(|e| matches!(e, Event::Stopped { .. })).count();
        assert_eq!(stopped, 2 * pairs, "it stops its rings before it goes");
        bench.nothing_was_refused();
    }
}

/// The network boot firmware that QEMU gives its cards is the driver here.
#[test]
fn qemu() {
    let Some(mut bench) = Bench::start(|path| {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-M", "q35,accel=tcg,memory-backend=m", "-m", "128", "-display", "none", "-monitor", "stdio"]);
        qemu.args(["-object", "memory-backend-memfd,id=m,size=128M,share=on", "-boot", "n"]);
        qemu.args(["-chardev", &format!("socket,id=c,path={path}"), "-netdev", "vhost-user,id=n,chardev=c,queues=2"]);
        qemu.args(["-device", "virtio-net-pci,netdev=n,vectors=0,mq=on,mac=52:54:00:12:34:56"]);
        qemu
    }) else {
        return;
    };
    bench.until("rings", |s| up(s, 2)).unwrap();
    assert!(bench.session.features().contains(Features::VERSION_1 | Features::PROTOCOL_FEATURES));
    assert_eq!(bench.session.protocol_features(), ProtocolFeatures::OFFERED);
    assert!(bench.session.memory().total_bytes() >= 127 << 20);
    bench.program.say("system_reset");
    bench.until("reset", |s| up(s, 0)).unwrap();
    bench.until("second start", |s| up(s, 2)).unwrap();
    bench.program.say("quit");
    assert_eq!(bench.until("end", |_| false), Err(SessionError::Closed));
    bench.nothing_was_refused();
}
