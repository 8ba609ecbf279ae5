//! Clients that come, go, prove their numbers, and do not read.

use super::*;
use lasthop_ovs_abi::family::{self, command, control, datapath};
use lasthop_ovs_abi::netlink::{Writer, kind};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, recv, socket_with, socketpair};
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// As the library says hello.
fn connect(path: &Path, before: (u32, u64)) -> [OwnedFd; 2] {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let (second, theirs) = pair();
    let hello = [&b"lasthop-ovs 3"[..], &before.0.to_ne_bytes(), &before.1.to_ne_bytes()].concat();
    lasthop_sys::send_with_fds(&socket, &hello, &[theirs.as_fd()], SendFlags::empty()).unwrap();
    [socket, second]
}

/// The number that it is given, and what proves it.
async fn welcomed(server: &mut Server, [_, second]: &[OwnedFd; 2]) -> (u32, u64) {
    let mut said = [0; 12];
    for _ in 0..2000 {
        let _ = poll_fn(|cx| Poll::Ready(server.poll(cx))).await;
        server.take(1);
        if let Ok((12, _)) = recv(second, &mut said[..], RecvFlags::DONTWAIT) {
            let word = |at: usize| u32::from_ne_bytes(said[at..at + 4].try_into().unwrap());
            return (word(0), u64::from_ne_bytes(said[4..].try_into().unwrap()));
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("no answer");
}

/// Whoever named a number that was free had it: what was for its owner, who was to come back, went there.
#[test]
fn a_number_is_had_again_by_whom_it_was_given_to() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ovs.sock");
        let files = [(); 4].map(|()| lasthop_sys::memfd("record", 0).unwrap());
        // As one process after the other has it.
        let start = || {
            let _ = std::fs::remove_file(&path);
            let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            rustix::net::listen(&listener, 16).unwrap();
            let [a, b, c, d] = files.each_ref().map(|file| file.try_clone().unwrap());
            let (frames, _) = UnixDatagram::pair().unwrap();
            Server::new(listener, frames.into(), [[a, b], [c, d]], 4096).unwrap()
        };
        let mut server = start();
        let new = connect(&path, (0, 0));
        let own = welcomed(&mut server, &new).await;
        let mut given = vec![own.0];
        drop((server, new));
        let mut server = start();
        let mut held = Vec::new();
        // With no proof, another's, and one that was guessed; a number that will be given comes to nobody before, either.
        for before in [(own.0, 0), (own.0 + 1, own.1), (own.0, own.1 ^ 1), (own.0 + 3, 7)] {
            let socket = connect(&path, before);
            let (number, _) = welcomed(&mut server, &socket).await;
            assert!(number != 0 && !given.contains(&number) && number != before.0, "{number} of {given:?}");
            given.push(number);
            held.push(socket);
        }
        let back = connect(&path, own);
        assert_eq!(welcomed(&mut server, &back).await, own);
        let twice = connect(&path, own);
        assert_eq!(welcomed(&mut server, &twice).await, (0, 0), "it is in use");
        drop(back);
        // Until it is seen that it is not, one is to try again.
        let mut number = (0, 0);
        for _ in 0..100 {
            let socket = connect(&path, own);
            number = welcomed(&mut server, &socket).await;
            held.push(socket);
            if number.0 != 0 {
                break;
            }
        }
        assert_eq!(number, own);
    });
}

/// Whoever is given a number that Open vSwitch names for upcalls would get them.
#[test]
fn a_number_that_takes_packets_is_not_given() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (listener, frames) = UnixDatagram::pair().unwrap();
        let record = [(); 2].map(|()| [(); 2].map(|()| lasthop_sys::memfd("record", 0).unwrap()));
        let mut server = Server::new(listener.into(), frames.into(), record, 4096).unwrap();
        let mut to = Writer::new();
        to.begin(family::DATAPATH.id, 1, 1, 0);
        to.ovs_header(command::NEW, family::DATAPATH.version, 0);
        to.text(datapath::NAME, "ovs-system");
        let named: Vec<u8> = (2..8000u32).flat_map(u32::to_ne_bytes).collect();
        to.attribute(datapath::PER_CPU_PIDS, &named);
        to.end();
        server.datapath.connected(1);
        server.datapath.request(1, to.into_bytes());
        server.take(1);
        assert_eq!([(); 3].map(|()| server.free_number()), [1, 8000, 8001]);
    });
}

/// They were kept until somebody read them: 1.5 GB within seconds.
#[test]
fn who_asks_and_does_not_read_is_let_go() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ovs.sock");
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 16).unwrap();
        let record = [(); 2].map(|()| [(); 2].map(|()| lasthop_sys::memfd("record", 0).unwrap()));
        let (frames, _) = UnixDatagram::pair().unwrap();
        let mut server = Server::new(listener, frames.into(), record, 4096).unwrap();
        let mut to = Writer::new();
        to.begin(kind::CONTROL, 1, 1, 0);
        to.raw(&[control::GET_FAMILY, 2, 0, 0]);
        to.text(control::FAMILY_NAME, "ovs_vport");
        to.end();
        let question = to.into_bytes();
        let questions = question.repeat(MAX_REQUEST / question.len());
        let (hoards, reads) = (connect(&path, (0, 0)), connect(&path, (0, 0)));
        welcomed(&mut server, &hoards).await;
        let number = welcomed(&mut server, &reads).await;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut rounds = 0;
        loop {
            match rustix::net::send(&hoards[0], &questions, flags) {
                Ok(_) => rounds += 1,
                Err(Errno::AGAIN) => {}
                Err(_) => break,
            }
            let _ = poll_fn(|cx| Poll::Ready(server.poll(cx))).await;
            server.take(1);
            assert!(!server.unread.is_too_much() && rounds < 1000, "{rounds}");
            tokio::task::yield_now().await;
        }
        // Whoever reads is answered.
        assert!(rounds > 10 && server.clients.contains_key(&number.0));
        let mut answer = [0; 256];
        for _ in 0..20 {
            rustix::net::send(&reads[0], &question, flags).unwrap();
            let mut turn = 0;
            loop {
                let _ = poll_fn(|cx| Poll::Ready(server.poll(cx))).await;
                server.take(1);
                match recv(&reads[0], &mut answer[..], RecvFlags::DONTWAIT) {
                    Ok((len, _)) => break assert!(len > question.len()),
                    Err(_) => assert!(turn < 1000, "no answer"),
                }
                turn += 1;
                sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

/// Parts were noted only when something else was to do, or connections' time was due.
#[test]
fn noting_anew_goes_on_when_nobody_says_anything() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (listener, frames) = UnixDatagram::pair().unwrap();
        let (listener, frames) = (OwnedFd::from(listener), OwnedFd::from(frames));
        let record = [(); 2].map(|()| [(); 2].map(|()| lasthop_sys::memfd("record", 0).unwrap()));
        // Nothing is to be accepted or read: the pair is silent.
        let mut server = Server::new(listener, frames, record, 4096).unwrap();
        assert!(poll_fn(|cx| Poll::Ready(server.poll(cx))).await.is_pending(), "there is nothing to do");
        server.record.begin();
        server.anew = Some(NotesFrom::default());
        assert!(poll_fn(|cx| Poll::Ready(server.poll(cx))).await.is_ready(), "a part has to be noted");
        server.take(1);
        assert!(server.anew.is_none() && !server.record.is_full(), "that was all");
        assert!(poll_fn(|cx| Poll::Ready(server.poll(cx))).await.is_pending());
    });
}
