//! Whether the files of the sockets that others connect to are still where they were made. One that somebody has removed, or moved
//! away with its directory, is made anew; where that is not possible, the port says so, and it is tried again.
//!
//! The kernel reports it (inotify(7)): a look every now and then would wake an idle host. What it does not report, a directory
//! further up that is moved or hidden by a mount, is found when somebody asks for the ports.

use super::socket::Listener;
use lasthop_sys::{Epoll, Trigger};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::warn;

/// The owner of a socket's file may change its mode as often as he likes, and each time is reported: so often it is looked at most.
const REST: Duration = Duration::from_millis(100);

/// The kernel's reports.
#[derive(Debug)]
pub struct Presence {
    reports: Option<OwnedFd>,
    token: u64,
    /// Nothing is looked at before.
    rests_until: Option<Instant>,
    /// Somebody wants to know.
    asked: bool,
}

impl Presence {
    /// `token`: under which `epoll` says that there is a report. Without the kernel's help one that is gone is found when somebody
    /// asks for the ports.
    pub fn new(epoll: &Epoll, token: u64) -> Self {
        let reports =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).and_then(|reports| {
                epoll.add(&reports, token, Trigger::Level)?;
                Ok(reports)
            });
        let reports = reports.map_err(|e| warn!("sockets that are removed are found late: inotify: {e}")).ok();
        Self { reports, token, rests_until: None, asked: false }
    }

    /// Has the kernel report what becomes of this socket's file, and of its directory itself.
    pub fn watch(&self, listener: &Listener) {
        let Some(reports) = &self.reports else { return };
        let of_file = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::DELETE_SELF | inotify::WatchFlags::MOVE_SELF;
        let of_directory =
            inotify::WatchFlags::DELETE_SELF | inotify::WatchFlags::MOVE_SELF | inotify::WatchFlags::ONLYDIR;
        // What cannot be watched is found late.
        let _ = inotify::add_watch(reports, listener.path(), of_file | inotify::WatchFlags::DONT_FOLLOW);
        let _ = inotify::add_watch(reports, listener.path().parent().unwrap_or(Path::new("/")), of_directory);
    }

    /// There is a report: takes what there is, and rests.
    pub fn hear(&mut self, epoll: &Epoll, now: Instant) {
        let Some(reports) = &self.reports else { return };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(reports, &mut room);
        while reader.next().is_ok() {}
        self.asked = true;
        if epoll.delete(reports).is_ok() {
            self.rests_until = Some(now + REST);
        }
    }

    /// Somebody asks for the ports.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether sockets are to be looked at now.
    pub(super) fn is_due(&mut self, epoll: &Epoll, now: Instant) -> bool {
        if self.rests_until.take_if(|until| *until <= now).is_some()
            && let Some(reports) = &self.reports
        {
            let _ = epoll.add(reports, self.token, Trigger::Level);
        }
        std::mem::take(&mut self.asked)
    }

    /// When it is to be listened again.
    pub fn deadline(&self) -> Option<Instant> {
        self.rests_until
    }
}

/// Whether the file that was made is where it was made.
pub fn is_there(path: &Path, file: (u64, u64)) -> Result<bool, Errno> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino) == file),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e),
    }
}
