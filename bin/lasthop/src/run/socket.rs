//! Unix stream sockets with a name in the file system.

use super::handover::{self, Fd, Giver, Taker};
use super::owner::Ids;
use super::presence::is_there;
use nix::unistd::Group;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect as connect_to, listen,
    socket_with,
};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Longest path of a Unix socket, in bytes: `sun_path` without the closing zero (unix(7)).
pub const MAX_PATH: usize = 107;

/// Who may connect to a socket made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// We, and our group.
    Ours,
    /// We, and the group `kvm` if the host has one: virtual machines usually run with it.
    Kvm,
    /// The owner of a port: a user, and a group if there is one.
    Of(Ids),
}

impl Access {
    /// What the mode of the socket does not have: 0660 is left, or 0600 where there is no group.
    fn umask(self) -> Mode {
        match self {
            Self::Of(Ids { gid: None, .. }) => Mode::from_raw_mode(0o177),
            _ => Mode::from_raw_mode(0o117),
        }
    }
}

/// A listening socket. The file is removed with it, unless somebody has put another in its place.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListenerState {
    fd: Fd,
    path: PathBuf,
    file: (u64, u64),
}

impl Listener {
    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> ListenerState {
        ListenerState { fd: giver.fd(&self.fd), path: self.path.clone(), file: self.file }
    }

    /// Goes on with it.
    pub fn resumed(ListenerState { fd, path, file }: ListenerState, taker: &Taker) -> Result<Self, String> {
        Ok(Self { fd: taker.fd(fd)?, path, file })
    }

    /// Listens on `path` with mode 0660, or 0600 for an owner without a group, non-blocking. A socket there that nobody listens on
    /// any more is replaced; one that somebody does, or any other file, is an error.
    ///
    /// The error is one line: what is wrong with the path; what to do.
    pub fn bind(path: &Path, access: Access) -> Result<Self, String> {
        Self::bind_as(path, access, SocketType::STREAM)
    }

    /// The same for ourselves and our group, whose connections keep datagrams apart.
    pub fn bind_for_datagrams(path: &Path) -> Result<Self, String> {
        Self::bind_as(path, Access::Ours, SocketType::SEQPACKET)
    }

    fn bind_as(path: &Path, access: Access, kind: SocketType) -> Result<Self, String> {
        check_length(path)?;
        make_room(path)?;
        let shown = path.display();
        let failed = |e: Errno| match e {
            Errno::NOENT | Errno::NOTDIR => format!("{shown}: no such directory; create it or choose another path"),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                format!("{shown}: the directory is not writable ({e}); choose another or run as its owner")
            }
            e => format!("{shown}: cannot listen there: {e}; choose another path"),
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let fd = socket(kind).map_err(failed)?;
        // It is the whole process's.
        static UMASK: Mutex<()> = Mutex::new(());
        let _one_at_a_time = UMASK.lock();
        let before = rustix::process::umask(access.umask());
        let bound = bind(&fd, &address);
        rustix::process::umask(before);
        bound.map_err(failed)?;
        let file = own_file(path, access).map_err(|e| match access {
            Access::Of(_) if e == Errno::PERM => {
                let _ = rustix::fs::unlink(path);
                format!("{shown}: may not give the socket to its owner; run lasthop as root, or leave out the owner")
            }
            _ => failed(e),
        })?;
        let listener = Self { fd, path: path.into(), file };
        listen(&listener.fd, 128).map_err(failed)?;
        Ok(listener)
    }

    /// Lets the members of this group use it. The file is found through a descriptor, as above.
    pub fn share_with(&self, group: u32) -> Result<(), Errno> {
        let file = rustix::fs::open(&self.path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if (stat.st_dev, stat.st_ino) != self.file {
            return Err(Errno::EXIST);
        }
        rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)
    }

    /// Where it was made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its file is still there. Where that cannot be told, it is taken to be.
    pub fn is_in_place(&self) -> bool {
        is_there(&self.path, self.file).unwrap_or(true)
    }

    /// The next waiting connection, non-blocking; `Ok(None)` when there is none.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !handover::is_under_way() && is_there(&self.path, self.file) == Ok(true) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Connects to `path` without waiting. A Unix socket connects at once or not at all.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let fd = socket(SocketType::STREAM)?;
    connect_to(&fd, &address)?;
    Ok(fd)
}

/// Whether the other end of a connection is closed.
pub fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Checks that `path` fits in a socket address.
pub fn check_length(path: &Path) -> Result<(), String> {
    match path.as_os_str().len() {
        0..=MAX_PATH => Ok(()),
        n => Err(format!(
            "{}: a socket path has at most {MAX_PATH} bytes, this one {n}; choose a shorter one",
            path.display()
        )),
    }
}

fn socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Removes a socket file that nobody listens on; anything else in the way is an error.
fn make_room(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let Ok(file) = rustix::fs::lstat(path) else { return Ok(()) };
    if FileType::from_raw_mode(file.st_mode) != FileType::Socket {
        return Err(format!("{shown} exists and is not a socket; remove it or choose another path"));
    }
    match connect(path) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(format!("{shown}: cannot remove the old socket: {e}; remove it or choose another path")),
        },
        Err(Errno::ACCESS | Errno::PERM) => {
            Err(format!("{shown} is a socket of another user; remove it or choose another path"))
        }
        _ => Err(format!("{shown} is in use by another process; stop that one or choose another path")),
    }
}

/// Identity of the socket file just made, and its group. Goes through a descriptor: whoever may write the directory
/// could put another file at the path meanwhile, and that one must not change hands.
fn own_file(path: &Path, access: Access) -> Result<(u64, u64), Errno> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::Socket
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    if !ours {
        return Err(Errno::EXIST);
    }
    let give = |user, group| rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH);
    match access {
        Access::Ours => {}
        Access::Kvm => {
            if let Some(group) = kvm_group() {
                // Without the right to, the group stays our own.
                let _ = give(None, Some(Gid::from_raw(group)));
            }
        }
        Access::Of(Ids { uid, gid }) => give(Some(Uid::from_raw(uid)), gid.map(Gid::from_raw))?,
    }
    Ok((stat.st_dev, stat.st_ino))
}

fn kvm_group() -> Option<u32> {
    group("kvm")
}

/// The number of a group that this host knows, from wherever it knows its groups.
pub fn group(name: &str) -> Option<u32> {
    Some(Group::from_name(name).ok()??.gid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_path_is_taken_replaced_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vm.sock");
        let listener = Listener::bind(&path, Access::Kvm).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert!(listener.accept().unwrap().is_none());
        let _client = connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        assert!(Listener::bind(&path, Access::Kvm).unwrap_err().contains("in use"));

        // A killed process leaves its file behind.
        let stale = dir.path().join("stale.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        let listener = Listener::bind(&stale, Access::Ours).unwrap();
        drop(listener);
        assert!(!stale.exists(), "removed with its listener");

        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert!(Listener::bind(&file, Access::Ours).unwrap_err().contains("not a socket"));
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        assert!(Listener::bind(&dir.path().join("link"), Access::Ours).unwrap_err().contains("not a socket"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(
            Listener::bind(&dir.path().join("no/vm.sock"), Access::Ours).unwrap_err().contains("no such directory")
        );
        assert!(Listener::bind(&dir.path().join("x".repeat(107)), Access::Ours).unwrap_err().contains("107 bytes"));
    }

    #[test]
    fn an_owner_has_the_file() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for (gid, mode) in [(None, 0o600), (Some(4321), 0o660)] {
            let path = dir.path().join(format!("{mode}"));
            let _listener = Listener::bind(&path, Access::Of(Ids { uid: 1234, gid })).unwrap();
            let file = std::fs::metadata(&path).unwrap();
            assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (1234, gid.unwrap_or(0), mode));
        }
    }

    #[test]
    fn a_file_put_in_our_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vm.sock");
        let listener = Listener::bind(&path, Access::Ours).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        drop(listener);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "other");
    }
}
