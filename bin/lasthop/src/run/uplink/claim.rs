//! One lasthop for each interface: two that use the same would each carry every frame, and everybody would get all of them twice.
//!
//! Whoever uses an interface listens on an abstract Unix socket whose name has the interface's number. Such names belong to the network
//! namespace, as interfaces do, whatever directories and mounts two instances have, and they go with the process that holds the socket.
//! Anybody may take such a name, so only the word of a process of root's or our own user counts.

use super::super::handover::{Fd, Giver, Taker};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use std::io;
use std::os::fd::OwnedFd;
use tracing::warn;

/// Others that ask at the same time who uses the interface.
const BACKLOG: i32 = 16;
/// Of those that have asked, so many are let go of at a time.
const AT_ONCE: usize = 64;

/// The loopback device of every network namespace. It carries no Ethernet frames, so nobody uses it.
const LOOPBACK: u32 = 1;

/// An interface that this process uses.
#[derive(Debug)]
pub struct Claim {
    index: u32,
    listener: OwnedFd,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn index_of(device: &str) -> io::Result<u32> {
    Ok(name_to_index(socket()?, device)?)
}

/// The process at the other end, if it is one whose word counts.
fn holder(address: &SocketAddrUnix) -> io::Result<Option<String>> {
    let socket = socket()?;
    connect(&socket, address)?;
    let peer = lasthop_sys::peer(&socket)?;
    let trusted = peer.uid == 0 || peer.uid == geteuid().as_raw();
    let named = || {
        peer.pid.map_or_else(
            || "in another PID namespace: `ss -xlp` on the host shows whose @lasthop-device is".into(),
            |pid| format!("pid {pid}"),
        )
    };
    Ok(trusted.then(named))
}

impl Claim {
    /// Of the interface of this name; `None` if there is none, or it cannot be known whose it is. The error says who uses it.
    pub fn take(device: &str) -> Result<Option<Self>, String> {
        match index_of(device) {
            Ok(LOOPBACK) | Err(_) => Ok(None),
            Ok(index) => Self::of(index, device),
        }
    }

    fn of(index: u32, device: &str) -> Result<Option<Self>, String> {
        match Self::listen(index) {
            Ok(Ok(claim)) => return Ok(Some(claim)),
            Ok(Err(Some(which))) => {
                return Err(format!(
                    "{device} is used by another lasthop ({which}), and every frame would be carried twice; remove it there, or name \
                     another interface"
                ));
            }
            Ok(Err(None)) => warn!("a process of another user has taken the name under which lasthop uses {device}"),
            Err(e) => warn!("whether another lasthop uses {device} cannot be known: {e}"),
        }
        Ok(None)
    }

    /// Or who does.
    fn listen(index: u32) -> io::Result<Result<Self, Option<String>>> {
        let listener = socket()?;
        let address = SocketAddrUnix::new_abstract_name(format!("lasthop-device-{index}").as_bytes())?;
        match bind(&listener, &address).and_then(|()| listen(&listener, BACKLOG)) {
            Ok(()) => Ok(Ok(Self { index, listener })),
            Err(Errno::ADDRINUSE) => Ok(Err(holder(&address)?)),
            Err(e) => Err(e.into()),
        }
    }

    /// This one, if it is still the interface of this name, or another.
    pub fn renew(claim: Option<Self>, device: &str) -> Result<Option<Self>, String> {
        match claim {
            Some(claim) if index_of(device).is_ok_and(|index| index == claim.index) => Ok(Some(claim)),
            _ => Self::take(device),
        }
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> (u32, Fd) {
        (self.index, giver.fd(&self.listener))
    }

    /// Goes on with it.
    pub fn resumed((index, listener): (u32, Fd), taker: &Taker) -> Result<Self, String> {
        Ok(Self { index, listener: taker.fd(listener)? })
    }

    /// Lets go of those that have asked: the kernel keeps them for us until then.
    pub fn answer(&self) {
        for _ in 0..AT_ONCE {
            if accept_with(&self.listener, SocketFlags::CLOEXEC).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No interface has such a number.
    #[test]
    fn an_interface_has_one_user() {
        let index = 1 << 30 | std::process::id();
        let claim = Claim::of(index, "eth7").unwrap().unwrap();
        for _ in 0..2 * BACKLOG {
            let error = Claim::of(index, "eth7").unwrap_err();
            let said = format!("eth7 is used by another lasthop (pid {})", std::process::id());
            assert!(error.starts_with(&said), "{error}");
            claim.answer();
        }
        assert!(Claim::of(index + 1, "eth8").unwrap().is_some(), "another one is free");
        drop(claim);
        assert!(Claim::of(index, "eth7").unwrap().is_some());
        assert!(Claim::take("no-such-device").unwrap().is_none(), "it may come");
        assert!(Claim::take("lo").unwrap().is_none());
    }
}
