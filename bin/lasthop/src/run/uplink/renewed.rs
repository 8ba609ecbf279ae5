//! An uplink whose process a newly installed program takes the place of. The new one is started beside the one that carries, and stands by with its device, as a
//! spare does: it is known to start before anything ends. Where nothing can be handed down (AF_XDP with several queues) one ends, and then the other starts.

use super::super::capture_file;
use super::{Driver, Link, Uplink};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// The files of the programs of both processes, to go back to.
#[derive(Debug, Default)]
pub struct Before([Option<OwnedFd>; 2]);

impl Uplink {
    /// Whether a process of it runs another file than the one at its program's place.
    pub fn is_outdated(&self) -> bool {
        self.driver.is_outdated() || self.spare.as_ref().is_some_and(Driver::is_outdated)
    }

    /// It ends with the command that reads what it writes, and another process would have no reader.
    pub fn ends_with_capture(&self) -> bool {
        capture_file::is_pipe(&self.spec)
    }

    /// From the next start on its processes are of this program.
    pub fn set_program(&mut self, path: &Path) -> Before {
        let set = |driver: &mut Driver| driver.child().set_program(path.to_owned());
        let driver = set(&mut self.driver);
        let spare = self.spare.as_mut().or(self.idle.as_mut()).and_then(set);
        Before([driver, spare])
    }

    /// Has a process of the new program stand by, if it can; otherwise false.
    pub fn stand_by_anew(&mut self, now: Instant) -> bool {
        if self.kept.is_none() || self.waits_for_device() {
            return false;
        }
        if self.spare.is_none() {
            self.spare = self.idle.take();
        }
        let Some(spare) = &mut self.spare else { return false };
        self.renewing = true;
        spare.child().make_way();
        self.spare_at = now;
        true
    }

    /// Whether the process that stands by does, and is another one than this.
    pub fn stands_by_anew(&self, before: Option<u32>) -> bool {
        self.spare.as_ref().is_some_and(|spare| spare.is_ready() && spare.pid() != before)
    }

    /// How often in a row a new process of it has ended before it was ready.
    pub fn failed_starts(&self) -> u32 {
        let spare = self.spare.as_ref().map_or(0, Driver::failed_starts);
        spare.max(self.driver.failed_starts())
    }

    /// The number of the process that stands by.
    pub fn spare_pid(&self) -> Option<u32> {
        self.spare.as_ref().and_then(Driver::pid)
    }

    /// The number of the process that carries.
    pub fn driver_pid(&self) -> Option<u32> {
        self.driver.pid()
    }

    /// Has the process that carries make way for the other.
    pub fn make_way(&mut self) {
        self.renewing = false;
        self.driver.child().make_way();
    }

    /// Whether another process than this carries, or would if it may.
    pub fn carries_anew(&self, before: Option<u32>) -> bool {
        let works = matches!(self.link, Link::Joined) || !self.may_join();
        works && self.driver.is_ready() && self.driver.pid() != before
    }

    /// Whether its process is to be joined to the switch, now or soon.
    pub fn wants_connection(&self) -> bool {
        self.driver.is_ready() && self.may_join() && !self.is_leaving()
    }

    /// The new program does not do: its processes are of those from the next start on. `before`: the process that was to be replaced, which goes on if it
    /// still carries. Any other is of the new program, and ends: it may hang.
    pub fn go_back_to(&mut self, Before([driver, spare]): Before, before: Option<u32>) {
        self.renewing = false;
        let spare = spare.or_else(|| driver.as_ref().and_then(|file| file.try_clone().ok()));
        if self.driver.pid() != before {
            self.driver.child().make_way();
        }
        self.driver.child().go_back_to(driver);
        if let Some(other) = self.spare.as_mut().or(self.idle.as_mut()) {
            other.child().make_way();
            other.child().go_back_to(spare);
        }
        self.put_spare_away();
    }

    /// One that was to stand by for the change alone is not started again.
    pub(super) fn put_spare_away(&mut self) {
        if !self.spec.spare && !self.renewing && !self.spare_is_up() {
            self.idle = self.spare.take().or(self.idle.take());
        }
    }
}
