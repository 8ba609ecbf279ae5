//! Bytes and descriptors over Unix sockets (unix(7), SCM_RIGHTS).

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends `bytes`, with at most 32 descriptors, by one sendmsg(2); returns how many bytes went. No signal is raised when
/// the peer is gone.
pub fn send_with_fds(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL))
}

/// Most descriptors in one message (SCM_MAX_FD of the kernel).
const MOST: usize = 253;

/// Receives into `room` by one recvmsg(2); returns how many bytes came and the message's flags. Descriptors that came
/// with them are added to `fds`, close-on-exec. All are taken, for those that we had no room for the kernel would close before
/// the call returns, however long that takes; the flags say `CTRUNC` if this process may have no more.
pub fn receive_with_fds(
    socket: impl AsFd,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> Result<(usize, ReturnFlags), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    Ok((received.bytes, received.flags))
}
