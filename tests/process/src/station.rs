//! A station outside of lasthop: raw frames on an interface of a network namespace, in and out.

use crate::{Netns, PATIENCE};
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket, sockopt,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A packet socket on one interface, which must be up. It sees what the interface receives; a VLAN tag the kernel takes out.
#[derive(Debug)]
pub struct Station(OwnedFd);

impl Station {
    /// On the interface `name` of the namespace.
    pub fn on(netns: &Netns, name: &str) -> Self {
        let (path, name) = (format!("/run/netns/{}", netns.name()), name.to_owned());
        // A namespace is a thread's: one that ends at once leaves the socket where it was made.
        let opened = std::thread::spawn(move || {
            let netns = std::fs::File::open(&path).expect("the namespace exists");
            setns(netns, CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            let link: LinkAddr = getifaddrs()
                .expect("interfaces")
                .filter(|i| i.interface_name == name)
                .find_map(|i| i.address.and_then(|a| a.as_link_addr().copied()))
                .unwrap_or_else(|| panic!("no interface {name}"));
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let fd =
                socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).expect("a packet socket");
            setsockopt(&fd, sockopt::RcvBufForce, &(16 << 20)).expect("root may have a large buffer");
            bind(fd.as_raw_fd(), &link).expect("the interface is there");
            fd
        });
        Self(opened.join().expect("a station"))
    }

    /// Sends a frame.
    pub fn send(&self, frame: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while let Err(e) = send(self.0.as_raw_fd(), frame, MsgFlags::empty()) {
            // The interface's queue is full.
            let full = [nix::errno::Errno::ENOBUFS, nix::errno::Errno::EAGAIN].contains(&e);
            assert!(full && Instant::now() < end, "a station cannot send: {e}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits for a frame.
    pub fn recv_within(&self, limit: Duration) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let end = Instant::now() + limit;
        loop {
            if let Ok(len) = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                frame.truncate(len);
                return Some(frame);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let (tv_sec, tv_nsec) = (left.as_secs() as i64, left.subsec_nanos().into());
            let timeout = rustix::time::Timespec { tv_sec, tv_nsec };
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
        }
    }

    /// The next frame that `wanted` likes; others are passed over.
    pub fn recv(&self, what: &str, mut wanted: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(frame) = self.recv_within(left) else { panic!("a station waited in vain for {what}") };
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// Frames that are there and those that come in the next moment.
    pub fn drain(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.recv_within(Duration::from_millis(150))).collect()
    }
}
