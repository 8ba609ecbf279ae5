//! A client: a connection that a program of Open vSwitch's takes for a netlink socket. Beside it there is a second one, on which it is told
//! when the answers to a datagram lie in the first, because Open vSwitch reads them without waiting (`crates/management/ovs-preload`).

use lasthop_sys::receive_with_fds;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Longest datagram that a client may send: a packet of 64 KiB and what is to be done with it.
const MAX_REQUEST: usize = 192 * 1024;
/// Most datagrams that wait for room with the client.
pub(crate) const MAX_UPCALLS: usize = 512;
/// What a client says first, with the other end of its second connection; behind it stands the number that it had with a `lasthop-ovs` before, or 0.
const HELLO: &[u8] = b"lasthop-ovs 2";

/// A socket in the event loop.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<Raw>);

#[derive(Debug)]
struct Raw(OwnedFd);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// Takes a descriptor, which does not block from here on.
    pub fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // `Raw` owns the descriptor until it is dropped, as in lasthop-control's `link`.
        #[allow(deprecated)]
        Ok(Self(AsyncFd::with_interest(Raw(fd), interest)?))
    }

    /// Does something with it once it may be ready. `None`: it was not.
    pub fn poll<T>(
        &self,
        cx: &mut std::task::Context<'_>,
        mut what: impl FnMut(&OwnedFd) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        loop {
            let mut guard = match self.0.poll_read_ready(cx) {
                std::task::Poll::Ready(Ok(guard)) => guard,
                std::task::Poll::Ready(Err(_)) => return Some(Err(Errno::IO)),
                std::task::Poll::Pending => return None,
            };
            match what(&self.0.get_ref().0) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                other => return Some(other),
            }
        }
    }

    /// Does something with it once there may be room, until there was enough, as `what` says.
    fn poll_room(&self, cx: &mut std::task::Context<'_>, mut what: impl FnMut(&OwnedFd) -> bool) {
        while let std::task::Poll::Ready(Ok(mut guard)) = self.0.poll_write_ready(cx) {
            if what(&self.0.get_ref().0) {
                return;
            }
            guard.clear_ready();
        }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0.get_ref().0
    }
}

/// What a client does.
#[derive(Debug)]
pub(crate) enum Event {
    /// It is there, and had this number before, or 0; [`Client::welcome`] is due.
    Hello(u32),
    /// A datagram of requests.
    Request(Vec<u8>),
    /// It wants to hear what this group is told, or does not any more.
    Subscribe(u32, bool),
    /// It has read all that was there and wants more.
    More,
    /// It is gone, or talks nonsense.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Client {
    socket: Socket,
    /// Its second connection, once it has said hello.
    second: Option<Socket>,
    /// It waits for the answers to what it has sent.
    pub asks: bool,
    outbox: VecDeque<Vec<u8>>,
    /// The socket has no room.
    full: bool,
}

impl Client {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::new(socket, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { socket, second: None, asks: false, outbox: VecDeque::new(), full: false })
    }

    /// What it does, if anything.
    pub fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Option<Event> {
        if self.second.is_none() {
            let said = self.socket.poll(cx, hello)?.map_err(io::Error::from);
            let take = |(fd, before)| Ok((Socket::new(fd, Interest::READABLE)?, before));
            return Some(match said.and_then(take) {
                Ok((second, before)) => {
                    self.second = Some(second);
                    Event::Hello(before)
                }
                Err(_) => Event::Gone,
            });
        }
        if self.full {
            let (outbox, full) = (&mut self.outbox, &mut self.full);
            self.socket.poll_room(cx, |fd| {
                *full = !send_all(fd, outbox);
                !*full
            });
        }
        if let Some(second) = &self.second
            && let Some(said) = second.poll(cx, |fd| receive(fd, 16))
        {
            return Some(match said.as_deref() {
                Ok([b'm']) => Event::More,
                Ok(&[how @ (b'j' | b'l'), a, b, c, d]) => {
                    Event::Subscribe(u32::from_ne_bytes([a, b, c, d]), how == b'j')
                }
                _ => Event::Gone,
            });
        }
        // One datagram after the other: what waits, waits with the client.
        if self.asks {
            return None;
        }
        let received = self.socket.poll(cx, |fd| receive(fd, MAX_REQUEST))?;
        Some(match received {
            Ok(datagram) if !datagram.is_empty() => {
                self.asks = true;
                Event::Request(datagram)
            }
            _ => Event::Gone,
        })
    }

    /// Tells it its number.
    pub fn welcome(&self, pid: u32) {
        if let Some(second) = &self.second {
            let _ = send(second.fd(), &pid.to_ne_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Sends it a datagram when there is room.
    pub fn queue(&mut self, datagram: Vec<u8>) {
        self.outbox.push_back(datagram);
        if !self.full {
            self.flush();
        }
    }

    /// Datagrams that wait for room.
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// There is no room now.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Sends what there is room for.
    pub fn flush(&mut self) {
        self.full = !send_all(self.socket.fd(), &mut self.outbox);
    }

    /// Tells it that what it waits for is there, all of it or a part.
    pub fn tell(&self, is_all: bool) {
        if let Some(second) = &self.second {
            let _ = send(second.fd(), if is_all { b"." } else { b"+" }, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// Sends what there is room for. False if that is not all.
fn send_all(fd: &OwnedFd, outbox: &mut VecDeque<Vec<u8>>) -> bool {
    while let Some(datagram) = outbox.front() {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match retry_on_intr(|| send(fd, datagram, flags)) {
            Err(Errno::AGAIN) => return false,
            // One that is gone is heard of when it is read from; what is too long for a socket nobody can be sent.
            Ok(_) | Err(_) => drop(outbox.pop_front()),
        }
    }
    true
}

fn receive(fd: &OwnedFd, room: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; room];
    let (len, all) = retry_on_intr(|| recv(fd, bytes.as_mut_slice(), RecvFlags::TRUNC | RecvFlags::DONTWAIT))?;
    if all > room || len == 0 {
        return Err(Errno::CONNRESET);
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// What a client says first: the descriptor that comes along, and the number that it had.
fn hello(fd: &OwnedFd) -> Result<(OwnedFd, u32), Errno> {
    let (mut bytes, mut fds) = ([0; 32], Vec::new());
    let (len, flags) = receive_with_fds(fd, &mut bytes, &mut fds, RecvFlags::DONTWAIT)?;
    let said =
        bytes.get(..len).and_then(|said| said.strip_prefix(HELLO)).filter(|_| !flags.contains(ReturnFlags::TRUNC));
    let before = said.and_then(|number| number.try_into().ok()).map(u32::from_ne_bytes);
    fds.into_iter().next().zip(before).ok_or(Errno::PROTO)
}
