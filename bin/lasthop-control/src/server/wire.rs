//! Bytes of a client's connection, in bounded measure.

use super::{Client, MAX_CALL, READ_LIMIT};
use lasthop_sys::{Aside, receive_with_fds};
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::io::Interest;
use tokio::net::{UnixStream, unix};
use zlink::connection::PassedCredentials;
use zlink::connection::socket::{self, ReadResult};

/// A client's connection that ends when a call is longer than [`MAX_CALL`].
#[derive(Debug)]
pub(super) struct Bounded {
    pub socket: UnixStream,
    pub client: Rc<Client>,
    pub aside: Arc<Aside>,
}

#[derive(Debug)]
pub(super) struct BoundedRead {
    socket: unix::OwnedReadHalf,
    /// Bytes read since the last end of a message.
    unfinished: usize,
    client: Rc<Client>,
    /// Where descriptors go that came with a call: no call has any.
    aside: Arc<Aside>,
}

#[derive(Debug)]
pub(super) struct Write {
    socket: unix::OwnedWriteHalf,
    client: Rc<Client>,
}

impl socket::Socket for Bounded {
    type ReadHalf = BoundedRead;
    type WriteHalf = Write;

    fn split(self) -> (BoundedRead, Write) {
        let Self { socket, client, aside } = self;
        let (read, write) = socket.into_split();
        let write = Write { socket: write, client: client.clone() };
        (BoundedRead { socket: read, unfinished: 0, client, aside }, write)
    }
}

impl socket::ReadHalf for BoundedRead {
    async fn read(&mut self, buf: &mut [u8]) -> zlink::Result<ReadResult> {
        loop {
            self.socket.readable().await?;
            self.client.take_turn().await;
            self.client.beat.work();
            let (stream, mut fds): (&UnixStream, _) = (self.socket.as_ref(), Vec::new());
            let received = stream.try_io(Interest::READABLE, || {
                Ok(receive_with_fds(stream, buf, &mut fds, RecvFlags::DONTWAIT).map(|(len, _)| len)?)
            });
            if !fds.is_empty() {
                self.aside.drop_aside(fds);
            }
            match received {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
                Ok(n) => {
                    self.client.last.set(Instant::now());
                    let read = buf.get(..n).unwrap_or(buf);
                    self.unfinished = match read.iter().rposition(|b| *b == 0) {
                        Some(end) => n - end - 1,
                        None => self.unfinished + n,
                    };
                    if self.unfinished > MAX_CALL {
                        return Err(zlink::Error::BufferOverflow);
                    }
                    return Ok(ReadResult::new(n));
                }
            }
        }
    }
}

impl socket::WriteHalf for Write {
    async fn write(
        &mut self,
        mut buf: &[u8],
        _fds: &[impl AsFd],
        _credentials: Option<&PassedCredentials>,
    ) -> zlink::Result<()> {
        while !buf.is_empty() {
            let unread = || io::Error::new(io::ErrorKind::TimedOut, "the client does not read its replies");
            let (now, of_list) = (tokio::time::Instant::now(), self.client.list_until.get());
            if of_list.is_some_and(|until| until <= now) {
                return Err(unread().into());
            }
            let until = of_list.map_or(now + READ_LIMIT, |until| until.min(now + READ_LIMIT));
            tokio::time::timeout_at(until, self.socket.writable()).await.map_err(|_| unread())??;
            // Calls may have come many at a time; each has its answer.
            self.client.take_turn().await;
            self.client.beat.work();
            match self.socket.try_write(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
                Ok(n) => buf = buf.get(n..).unwrap_or_default(),
            }
        }
        Ok(())
    }
}
