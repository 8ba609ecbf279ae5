//! A client: a connection that a program of Open vSwitch's takes for a netlink socket. Beside it there is a second one, on which it is told
//! when the answers to a datagram lie in the first, because Open vSwitch reads them without waiting (`crates/management/ovs-preload`).
//!
//! Whoever may connect chooses the descriptors that come along: closing one may take for ever, as may asking it anything. All are taken, none but a Unix socket
//! is used, and all are closed aside, as are the connections, in which more may lie unread.

use crate::answers::{Answers, Unread};
use crate::upcalls::Upcalls;
use lasthop_management_ipc::{OVS_HELLO, OVS_HELLO_VERSION};
use lasthop_sys::{Aside, Foreign, receive_with_fds};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, ReturnFlags, SendFlags, send, sockopt};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Longest datagram that a client may send: a packet of 64 KiB and what is to be done with it.
pub(crate) const MAX_REQUEST: usize = 192 * 1024;
/// Most bytes of what a client says first, with the other end of its second connection: the version, behind which stands the number that it had with a
/// `lasthop-ovs` before and what proves that (twelve bytes), or zeros.
const HELLO_ROOM: usize = 32;

/// A socket in the event loop.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<Raw>);

#[derive(Debug)]
struct Raw(Foreign);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Socket {
    /// Takes a descriptor of which it is known what it is, and which does not block from here on.
    pub fn new(fd: Foreign, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // `Raw` owns the descriptor until it is dropped, as in lasthop-control's `link`.
        #[allow(deprecated)]
        Ok(Self(AsyncFd::with_interest(Raw(fd), interest)?))
    }

    /// Does something with it once it may be ready. `None`: it was not.
    pub fn poll<T>(
        &self,
        cx: &mut std::task::Context<'_>,
        mut what: impl FnMut(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Option<Result<T, Errno>> {
        loop {
            let mut guard = match self.0.poll_read_ready(cx) {
                std::task::Poll::Ready(Ok(guard)) => guard,
                std::task::Poll::Ready(Err(_)) => return Some(Err(Errno::IO)),
                std::task::Poll::Pending => return None,
            };
            match what(self.fd()) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                other => return Some(other),
            }
        }
    }

    /// Does something with it once there may be room, until there was enough, as `what` says.
    fn poll_room(&self, cx: &mut std::task::Context<'_>, mut what: impl FnMut(BorrowedFd<'_>) -> bool) {
        while let std::task::Poll::Ready(Ok(mut guard)) = self.0.poll_write_ready(cx) {
            if what(self.fd()) {
                return;
            }
            guard.clear_ready();
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().0.as_fd()
    }

    fn aside(&self) -> &Arc<Aside> {
        self.0.get_ref().0.aside()
    }
}

/// What a client does.
#[derive(Debug)]
pub(crate) enum Event {
    /// It is there, and had this number before, which that proves, or 0; [`Client::welcome`] is due.
    Hello(u32, u64),
    /// A datagram of requests.
    Request(Vec<u8>),
    /// It wants to hear what this group is told, or does not any more.
    Subscribe(u32, bool),
    /// It has read all that was there and wants more.
    More,
    /// It is gone, or talks nonsense.
    Gone,
    /// It says hello as of this version of the library, which is not ours.
    OtherVersion(u32),
}

#[derive(Debug)]
pub(crate) struct Client {
    socket: Socket,
    /// Its second connection, once it has said hello.
    second: Option<Socket>,
    /// The process at the other end; 0 if it is not seen from here, as from another PID namespace.
    pub process: u32,
    /// It waits for the answers to what it has sent.
    pub asks: bool,
    /// What it waits for.
    answers: Answers,
    upcalls: Upcalls,
    /// The socket has no room.
    full: bool,
}

impl Client {
    /// What it sends is closed by `aside`; what it does not read is part of `unread`.
    pub fn new(socket: OwnedFd, aside: &Arc<Aside>, unread: &Unread) -> io::Result<Self> {
        let process = lasthop_sys::peer(&socket).ok().and_then(|peer| peer.pid).unwrap_or_default();
        let socket = Socket::new(Foreign::new(socket, aside), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            socket,
            second: None,
            process,
            asks: false,
            answers: Answers::new(unread),
            upcalls: Upcalls::default(),
            full: false,
        })
    }

    /// What it does, if anything. `room` is of at least [`MAX_REQUEST`] bytes, and is kept by the caller: to clear as much for each
    /// datagram took more time than all else that is done for it.
    pub fn poll(&mut self, cx: &mut std::task::Context<'_>, room: &mut [u8]) -> Option<Event> {
        if self.second.is_none() {
            let aside = self.socket.aside();
            let said = self.socket.poll(cx, |fd| hello(fd, aside))?;
            return Some(match said {
                Ok(Hello::Ours(fd, before, proof)) => match Socket::new(fd, Interest::READABLE) {
                    Ok(second) => {
                        self.second = Some(second);
                        Event::Hello(before, proof)
                    }
                    Err(_) => Event::Gone,
                },
                Ok(Hello::Other(version)) => Event::OtherVersion(version),
                Err(_) => Event::Gone,
            });
        }
        if self.full {
            let Self { answers, upcalls, full, .. } = self;
            self.socket.poll_room(cx, |fd| {
                *full = !send_all(fd, answers, upcalls);
                !*full
            });
        }
        if let Some(second) = &self.second
            && let Some(said) = second.poll(cx, |fd| receive(fd, &mut [0; 16], second.aside()))
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
        let received = self.socket.poll(cx, |fd| receive(fd, room, self.socket.aside()))?;
        Some(match received {
            Ok(datagram) if !datagram.is_empty() => {
                self.asks = true;
                Event::Request(datagram)
            }
            _ => Event::Gone,
        })
    }

    /// Tells it its number, and what proves that it is its own; 0: it can have none now.
    pub fn welcome(&self, pid: u32, proof: u64) {
        if let Some(second) = &self.second {
            let said = [&pid.to_ne_bytes()[..], &proof.to_ne_bytes()].concat();
            let _ = send(second.fd(), &said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Sends it what it waits for, when there is room.
    pub fn queue(&mut self, datagram: Vec<u8>) {
        self.answers.push(datagram);
        if !self.full {
            self.flush();
        }
    }

    /// Sends it an upcall of a port's when there is room and it is its turn. The ports of those that were dropped for it.
    pub fn queue_upcall(&mut self, port: u32, datagram: Vec<u8>) -> Vec<u32> {
        let losers = self.upcalls.push(port, datagram);
        if !self.full {
            self.flush();
        }
        losers
    }

    /// Whether an upcall of this port's would find room.
    pub fn has_room_for(&self, port: u32) -> bool {
        self.upcalls.has_room_for(port)
    }

    /// How much of memory answers take that it has not read.
    pub fn unread(&self) -> usize {
        self.answers.bytes()
    }

    /// Datagrams wait for room.
    pub fn is_waiting(&self) -> bool {
        !self.answers.is_empty() || !self.upcalls.is_empty()
    }

    /// There is no room now.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Sends what there is room for.
    pub fn flush(&mut self) {
        self.full = !send_all(self.socket.fd(), &mut self.answers, &mut self.upcalls);
    }

    /// Tells it that what it waits for is there, all of it or a part.
    pub fn tell(&self, is_all: bool) {
        if let Some(second) = &self.second {
            let _ = send(second.fd(), if is_all { b"." } else { b"+" }, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// Sends what there is room for. False if that is not all.
fn send_all(fd: BorrowedFd<'_>, answers: &mut Answers, upcalls: &mut Upcalls) -> bool {
    // One that is gone is heard of when it is read from; what is too long for a socket nobody can be sent.
    let send = |datagram: &[u8]| {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        retry_on_intr(|| send(fd, datagram, flags)) != Err(Errno::AGAIN)
    };
    while let Some(datagram) = answers.front() {
        if !send(datagram) {
            return false;
        }
        answers.pop();
    }
    while let Some(datagram) = upcalls.front() {
        if !send(datagram) {
            return false;
        }
        upcalls.pop();
    }
    true
}

/// A datagram that fits into `room`, without descriptors.
fn receive(fd: BorrowedFd<'_>, room: &mut [u8], aside: &Arc<Aside>) -> Result<Vec<u8>, Errno> {
    let mut fds = Vec::new();
    let received = receive_with_fds(fd, room, &mut fds, RecvFlags::DONTWAIT);
    let has_fds = !fds.is_empty();
    if has_fds {
        aside.drop_aside(fds);
    }
    let (len, flags) = received?;
    if has_fds || flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || len == 0 {
        return Err(Errno::CONNRESET);
    }
    room.get(..len).map(<[u8]>::to_vec).ok_or(Errno::CONNRESET)
}

/// What a client says first.
enum Hello {
    /// The descriptor that comes along, which is a Unix socket, the number that it had, and what proves that.
    Ours(Foreign, u32, u64),
    /// It has the library of another version.
    Other(u32),
}

/// The version that a hello is of.
fn version_of(said: &[u8]) -> Option<u32> {
    let digits = said.strip_prefix(OVS_HELLO.as_bytes())?;
    let len = digits.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(digits.get(..len)?).ok()?.parse().ok()
}

fn hello(fd: BorrowedFd<'_>, aside: &Arc<Aside>) -> Result<Hello, Errno> {
    let (mut bytes, mut fds) = ([0; HELLO_ROOM], Vec::new());
    let received = receive_with_fds(fd, &mut bytes, &mut fds, RecvFlags::DONTWAIT);
    let fds: Vec<_> = fds.into_iter().map(|fd| Foreign::new(fd, aside)).collect();
    let (len, flags) = received?;
    let said = bytes.get(..len).unwrap_or_default();
    let ours = format!("{OVS_HELLO}{OVS_HELLO_VERSION}");
    let rest = said.strip_prefix(ours.as_bytes()).filter(|_| !flags.contains(ReturnFlags::TRUNC));
    let Some(said) = rest.and_then(|rest| <&[u8; 12]>::try_from(rest).ok()) else {
        // The number that comes behind it may look like a digit more: it is not ours in any case.
        return version_of(said).map(Hello::Other).ok_or(Errno::PROTO);
    };
    let &[a, b, c, d, ref proof @ ..] = said;
    let (before, proof) = (u32::from_ne_bytes([a, b, c, d]), u64::from_ne_bytes(*proof));
    let Ok([second]) = <[Foreign; 1]>::try_from(fds) else { return Err(Errno::PROTO) };
    match sockopt::socket_domain(&second)? {
        AddressFamily::UNIX => Ok(Hello::Ours(second, before, proof)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::task::Poll;
    use std::time::{Duration, Instant};

    /// For how long closing it takes, unless the other end goes.
    const LINGERS: Duration = Duration::from_secs(20);

    /// Two ends of a connection whose first lingers: what it has sent is not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut end = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (other, _) = listener.accept().expect("a connection");
        end.set_nonblocking(true).expect("a socket");
        while end.write(&[0; 65_536]).is_ok() {}
        sockopt::set_socket_linger(&end, Some(LINGERS)).expect("a socket");
        (end.into(), other)
    }

    fn pair() -> [OwnedFd; 2] {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        [a, b]
    }

    fn say(to: &OwnedFd, what: &[u8], fds: Vec<OwnedFd>) {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        lasthop_sys::send_with_fds(to, what, &borrowed, SendFlags::empty()).expect("it is sent");
    }

    /// What the client does next, and that nothing was waited for.
    async fn next(client: &mut Client) -> Event {
        let (begin, mut room) = (Instant::now(), vec![0; MAX_REQUEST]);
        let event = std::future::poll_fn(|cx| client.poll(cx, &mut room).map_or(Poll::Pending, Poll::Ready)).await;
        assert!(begin.elapsed() < LINGERS / 4, "{event:?} after {:?}", begin.elapsed());
        event
    }

    #[test]
    fn a_hello_of_another_version_is_told_from_nonsense() {
        assert_eq!(version_of(b"lasthop-ovs 2\0\0\0\0"), Some(2));
        assert_eq!(version_of(b"lasthop-ovs 12\0\0\0\0"), Some(12));
        assert_eq!([version_of(b"lasthop-ovs \xff"), version_of(b"lasthop"), version_of(b"")], [None; 3]);
    }

    /// Each way to hand in a descriptor that takes long to close: the event loop, which everybody's packets go through, is not held up.
    #[test]
    fn descriptors_that_do_not_close_hold_up_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("an event loop");
        runtime.block_on(async {
            for way in 0..5 {
                let ([theirs, ours], aside) = (pair(), Aside::new("test"));
                let mut client = Client::new(ours, &aside, &Unread::default()).expect("a client");
                let ((end, other), [second, kept]) = (lingering(), pair());
                let hello = [format!("{OVS_HELLO}{OVS_HELLO_VERSION}").as_bytes(), &[0; 12]].concat();
                match way {
                    // Beside the one that is wanted; in its place; with nonsense.
                    0 => say(&theirs, &hello, vec![second, end]),
                    1 => say(&theirs, &hello, vec![end]),
                    2 => say(&theirs, b"nonsense", vec![end]),
                    // Later, on either connection.
                    _ => {
                        say(&theirs, &hello, vec![second]);
                        assert!(matches!(next(&mut client).await, Event::Hello(0, 0)), "{way}");
                        let fds = vec![end];
                        if way == 3 { say(&theirs, b"request", fds) } else { say(&kept, b"m", fds) }
                    }
                }
                assert!(matches!(next(&mut client).await, Event::Gone), "{way}");
                // One that has not been read when the client goes.
                let (unread, another) = lingering();
                say(&theirs, b"more", vec![unread]);
                let begin = Instant::now();
                drop(client);
                assert!(begin.elapsed() < LINGERS / 4, "{way}");
                drop((other, another));
            }
        });
    }
}
