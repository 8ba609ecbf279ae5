//! Whether the files of the sockets that others connect to are still where they were made. One that somebody has removed, or moved
//! away with its directory, is made anew; where that is not possible, the port says so, and it is tried again.
//!
//! The kernel reports it (inotify(7)): a look every now and then would wake an idle host. What it does not report, a directory
//! further up that is moved or hidden by a mount, is found when somebody asks for the ports.

use super::setup::ApiSocket;
use super::socket::Listener;
use super::supervisor::Supervisor;
use lasthop_management_ipc::SupervisorToControl;
use lasthop_sys::{Epoll, Trigger};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The owner of a socket's file may change its mode as often as he likes, and each time is reported: so often it is looked at most.
const REST: Duration = Duration::from_millis(100);
/// Wait between two attempts to make a socket of the API anew.
const API_WAIT: Duration = Duration::from_secs(1);

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
    fn is_due(&mut self, epoll: &Epoll, now: Instant) -> bool {
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

/// A socket of the API, whose clients control serves.
#[derive(Debug)]
pub struct Served {
    socket: ApiSocket,
    listener: Listener,
    read_only: bool,
    /// Its file is gone: when to make another.
    again_at: Option<Instant>,
    complaint: Option<String>,
}

impl Served {
    /// One that has just been made.
    pub fn new((socket, listener): (ApiSocket, Listener), read_only: bool) -> Self {
        Self { socket, listener, read_only, again_at: None, complaint: None }
    }

    /// Has the kernel report what becomes of it.
    pub fn watched_by(&self, presence: &Presence) {
        presence.watch(&self.listener);
    }

    /// Makes another in its place, if that is due: its end for control.
    fn step(&mut self, presence: &Presence, now: Instant) -> Option<OwnedFd> {
        self.again_at.take_if(|at| *at <= now)?;
        let path = self.socket.path.display();
        let made = self.socket.bind().and_then(|made| {
            let copy = made.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
            Ok((made, copy))
        });
        match made {
            Ok((made, copy)) => {
                info!("API: {path} is there again");
                presence.watch(&made);
                (self.listener, self.complaint) = (made, None);
                Some(copy)
            }
            Err(e) => {
                let complaint = format!("API: no command reaches lasthop: {e}; trying again");
                if self.complaint.as_ref() != Some(&complaint) {
                    warn!("{complaint}");
                    self.complaint = Some(complaint);
                }
                self.again_at = Some(now + API_WAIT);
                None
            }
        }
    }

    /// When [`Served::step`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.again_at
    }
}

impl AsFd for Served {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Supervisor {
    /// Looks whether sockets are where they were, if there is a reason to, and makes those of the API anew that are not; ports make their own.
    pub(super) fn step_presence(&mut self, now: Instant) {
        if self.presence.is_due(&self.epoll, now) {
            for served in &mut self.served {
                if served.again_at.is_none() && !served.listener.is_in_place() {
                    warn!("API: {} was removed or replaced; making it anew", served.socket.path.display());
                    served.again_at = Some(now);
                }
            }
            self.ports.values_mut().for_each(|port| port.look_for_socket(now));
        }
        for served in &mut self.served {
            if let Some(copy) = served.step(&self.presence, now) {
                let read_only = served.read_only;
                self.control.send(SupervisorToControl::ApiSocket { read_only }, Some(copy));
            }
        }
    }

    /// All of it at once: what is wrong is told before somebody is shown the ports.
    pub(super) fn look_after_sockets(&mut self, now: Instant) {
        self.step_presence(now);
        self.step_ports(now);
        self.tell_faults();
    }

    /// Tells control what keeps front-ends from ports, as far as that has changed.
    pub(super) fn tell_faults(&mut self) {
        for port in self.ports.values_mut() {
            if let Some(fault) = port.fault_news() {
                self.control.send(SupervisorToControl::PortFault { port: port.config.id, fault }, None);
            }
        }
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
