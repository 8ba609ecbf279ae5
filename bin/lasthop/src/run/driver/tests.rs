//! A process that is not itself, and sends along what takes its time to close.

use super::super::closing;
use super::*;
use lasthop_ipc::Channel;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;

/// How long a close(2) of it takes.
const LINGERS: Duration = Duration::from_secs(20);

/// A socket with unsent bytes that nobody will read, and the one who does not.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (peer, _) = listener.accept().expect("it has come");
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGERS)).expect("anybody may");
    socket.set_nonblocking(true).expect("a socket");
    while socket.write(&[7; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false).expect("a socket");
    (socket.into(), peer)
}

/// A driver whose process sends so many parts of its device, the last of which lingers.
fn with_parts(parts: usize, then: impl FnOnce(&mut Driver, &Epoll, &mut std::process::Child)) {
    with_said(&vec![UplinkToSupervisor::Keep; parts], then);
}

/// A driver whose process says this, a file with each, of which the last lingers.
fn with_said(said: &[UplinkToSupervisor], then: impl FnOnce(&mut Driver, &Epoll, &mut std::process::Child)) {
    let epoll = Epoll::new().expect("epoll");
    let (ours, theirs) = Channel::<UplinkToSupervisor, SupervisorToUplink>::pair().expect("sockets");
    let mut process = Command::new("sleep").arg("60").spawn().expect("it starts");
    let mut driver = Driver::new("uplink", "/bin/false".into(), (1, 2), Duration::from_secs(1));
    driver.child.becomes(&process, ours);
    let mut far = Channel::<UplinkToSupervisor, SupervisorToUplink>::new(theirs);
    let (last, peer) = lingering();
    for (n, message) in (1..).zip(said) {
        let file = if n == said.len() { last.as_fd() } else { peer.as_fd() };
        far.send(message, Some(file)).expect("there is room");
    }
    // The supervisor has the only one then.
    drop(last);
    let began = Instant::now();
    then(&mut driver, &epoll, &mut process);
    assert!(began.elapsed() < LINGERS / 2, "it was waited for: {:?}", began.elapsed());
    assert!(closing::is_anything_left(), "it is being closed elsewhere");
    let _ = process.kill().and_then(|()| process.wait());
    // A reset, which nobody lingers for.
    drop((peer, driver));
}

/// One that was taken over gives away two files at once, and the second is behind what ends it.
#[test]
fn what_lies_behind_a_message_that_is_refused_is_closed_aside() {
    with_parts(2, |driver, epoll, _| {
        driver.inherited = true;
        assert!(matches!(driver.hear(epoll, Instant::now()), Some(Heard::Failed(_))));
    });
}

/// It ends before it is ready, and what it has given is wanted no more; or nobody has read it.
#[test]
fn what_is_kept_of_a_process_that_ends_is_closed_aside() {
    for is_heard in [true, false] {
        with_parts(2, |driver, epoll, process| {
            if is_heard {
                assert!(driver.hear(epoll, Instant::now()).is_none());
                assert_eq!(driver.descriptors.all().len(), 2);
            }
            process.kill().expect("it runs");
            while driver.reap(epoll, Instant::now()).is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// One that was taken over gives away a file with each answer.
#[test]
fn a_file_with_what_needs_none_ends_it() {
    let pong = || UplinkToSupervisor::Pong { number: 7, counters: UplinkCounters::default() };
    with_said(&[pong(), pong(), pong()], |driver, epoll, _| {
        assert!(matches!(driver.hear(epoll, Instant::now()), Some(Heard::Failed(_))));
    });
}
