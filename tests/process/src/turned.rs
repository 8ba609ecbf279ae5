//! A test in the place of an uplink's process: it has the channel to the supervisor and the connections to the switch, and may do
//! with them what it likes. A process of its own (`turned-uplink`) is there to be seen and to be killed.

use crate::{Lasthop, PATIENCE, mac, proc, wait_for};
use lasthop_ipc::{Channel, ChannelError};
use lasthop_sys::receive_with_fds;
use lasthop_uplink_ipc::{SupervisorToUplink, UplinkCounters, UplinkDevice, UplinkDriver, UplinkToSupervisor};
use lasthop_vhostuser::Frontend;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::process::Signal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What the supervisor starts instead of `lasthop-uplink`.
#[derive(Debug)]
pub struct Turned {
    listener: UnixListener,
    dir: tempfile::TempDir,
}

impl Turned {
    /// `program`: `turned-uplink`, as cargo has built it for the test.
    pub fn new(program: &str) -> Self {
        let dir = crate::scratch();
        for name in ["lasthop-switch", "lasthop-control", "lasthop-session"] {
            symlink(crate::binary(name), dir.path().join(name)).expect("a link");
        }
        symlink(program, dir.path().join("lasthop-uplink")).expect("a link");
        let listener = UnixListener::bind(dir.path().join("test.sock")).expect("a socket");
        Self { listener, dir }
    }

    /// For `lasthop run --libexec`.
    pub fn libexec(&self) -> &Path {
        self.dir.path()
    }

    /// Adds the uplink `net` of this lasthop; its first process is ready, and has left `device` to the next one, if any.
    pub fn add(&self, lasthop: &Lasthop, device: Option<BorrowedFd<'_>>) -> TurnedUplink {
        std::thread::scope(|scope| {
            let added = scope.spawn(|| lasthop.command(&["uplink", "add", "net", "lo", "--driver", "af_packet"]));
            let uplink = self.next();
            if let Some(device) = device {
                uplink.say(&UplinkToSupervisor::Keep, Some(device));
            }
            uplink.ready();
            added.join().expect("it is added");
            uplink
        })
    }

    /// The next process that the supervisor starts.
    pub fn next(&self) -> TurnedUplink {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "waited in vain for the uplink to be started");
        let (life, _) = self.listener.accept().expect("it connects");
        let mut received = Vec::new();
        receive_with_fds(&life, &mut [0], &mut received, RecvFlags::empty()).expect("a message");
        let pid = socket_peercred(&life).expect("it has a number").pid.as_raw_nonzero().get() as u32;
        let socket = received.pop().expect("its channel");
        let (send, connections) = channel();
        let theirs = socket.try_clone().expect("a second handle");
        // Ends when the supervisor hangs up.
        std::thread::spawn(move || answer(theirs, &send));
        TurnedUplink { pid, socket, connections, life: Some(life) }
    }
}

/// Answers to questions whether it lives, and passes connections on.
fn answer(socket: OwnedFd, connections: &Sender<OwnedFd>) {
    let watched = socket.try_clone().expect("a second handle");
    let mut channel = Channel::<UplinkToSupervisor, SupervisorToUplink>::new(socket);
    loop {
        match channel.recv() {
            Ok((SupervisorToUplink::Ping(number), _)) => {
                let counters = UplinkCounters::default();
                let _ = channel.send(&UplinkToSupervisor::Pong { number, counters }, None);
            }
            Ok((SupervisorToUplink::Connection { .. }, Some(connection))) => drop(connections.send(connection)),
            Ok((SupervisorToUplink::Shutdown { .. }, _)) => return,
            Ok(_) => {}
            Err(ChannelError::WouldBlock) => {
                let _ = poll(&mut [PollFd::new(&watched, PollFlags::IN)], None);
            }
            Err(_) => return,
        }
    }
}

/// A process of an uplink, played by the test.
#[derive(Debug)]
pub struct TurnedUplink {
    /// Its number.
    pub pid: u32,
    socket: OwnedFd,
    connections: Receiver<OwnedFd>,
    life: Option<UnixStream>,
}

impl TurnedUplink {
    /// It says that its device is open.
    pub fn ready(&self) {
        let device = UplinkDevice {
            driver: UplinkDriver::AfPacket,
            mode: "turned".into(),
            mac: mac(0x99),
            mtu: 1500,
            queues: 1,
            created: false,
            made_now: false,
        };
        self.say(&UplinkToSupervisor::Ready(device), None);
    }

    fn say(&self, message: &UplinkToSupervisor, descriptor: Option<BorrowedFd<'_>>) {
        let socket = self.socket.try_clone().expect("a second handle");
        let mut channel = Channel::<UplinkToSupervisor, SupervisorToUplink>::new(socket);
        channel.send(message, descriptor).expect("the supervisor listens");
    }

    /// Its next connection to the switch.
    pub fn connection(&self) -> Frontend {
        let socket = self.connections.recv_timeout(PATIENCE).expect("the supervisor joins it to the switch");
        set_socket_timeout(socket.as_fd(), Timeout::Recv, Some(PATIENCE)).expect("a socket has a timeout");
        Frontend::over(socket)
    }

    /// SIGKILL. What it had open, the test must let go of.
    pub fn kill(mut self) {
        proc::signal(self.pid, Signal::KILL);
        wait_for("it to be dead", PATIENCE, || !proc::alive(self.pid));
        drop(self.life.take());
    }
}
