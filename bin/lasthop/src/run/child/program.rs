//! The program of a child process: whether another has been installed since, and the way back to the one before.

use super::Child;
use rustix::fs::{Mode, OFlags, fstat, open, stat};
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// So many ends in a row before it was ready are no accident.
const ENDS_AGAIN: u32 = 3;

impl<S: Serialize + 'static, R: DeserializeOwned + 'static> Child<S, R> {
    /// Where to execute its program, and the program's file. It may have changed its place by the time that it is executed: then it is
    /// taken to be another one later on.
    pub(super) fn program_file(&self) -> (PathBuf, Option<OwnedFd>) {
        match &self.held {
            // It has no name any more. The process to be may not be us, so its own descriptors are of no use.
            Some(held) => {
                let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
                (path.into(), held.try_clone().ok())
            }
            None => {
                let file = open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
                (self.path.clone(), file.ok())
            }
        }
    }

    /// Whether it runs another file than the one at its program's place. Not where there is none.
    pub fn is_outdated(&self) -> bool {
        self.runs_another_than(&self.path)
    }

    /// Whether it runs another file than this.
    pub fn runs_another_than(&self, path: &Path) -> bool {
        let program = self.running.as_ref().and_then(|running| running.program.as_ref());
        let Some((program, there)) = program.zip(stat(path).ok()) else { return false };
        fstat(program).is_ok_and(|runs| (runs.st_dev, runs.st_ino) != (there.st_dev, there.st_ino))
    }

    /// From the next start on it is the program at this place. What comes back is the file of the one that runs.
    pub fn set_program(&mut self, path: PathBuf) -> Option<OwnedFd> {
        // What the one before could not do says nothing of this one.
        (self.path, self.held, self.failed_starts) = (path, None, 0);
        self.running.as_ref()?.program.as_ref()?.try_clone().ok()
    }

    /// The program that was to be started next does not do: from the next start on it is this file.
    pub fn go_back_to(&mut self, program: Option<OwnedFd>) {
        self.held = program;
        self.backoff.reset();
        self.start_at = std::time::Instant::now();
        self.failed_starts = 0;
    }

    /// Ends it at once, so that another can take its place. Its end is reported like any other, as planned.
    pub fn make_way(&mut self) {
        if let Some(running) = &mut self.running {
            running.planned = true;
        }
        self.kill();
    }

    /// Why the program could not be started, and what to do.
    pub(super) fn explain(&self, e: &io::Error) -> io::Error {
        let path = self.path.display();
        let scarce = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
        let remedy = match e.kind() {
            io::ErrorKind::NotFound => "install it there again; it is started as soon as it is there",
            io::ErrorKind::PermissionDenied => {
                "make it a file that may be run (`chmod 755`); it is started as soon as it is"
            }
            _ if Errno::from_io_error(e).is_some_and(|e| scarce.contains(&e)) => {
                "see that processes (a unit's TasksMax), memory and descriptors are left; it is tried again every second"
            }
            _ => "install it there again; it is tried again every second",
        };
        io::Error::new(e.kind(), format!("{path}: {e}; {remedy}"))
    }

    /// What is wrong, while it does not come up.
    pub fn trouble(&self) -> Option<String> {
        let ends_again = self.failed_starts >= ENDS_AGAIN && !self.is_ready();
        let (name, why) = (&self.name, &self.failed_as);
        let ends = || {
            format!(
                "cannot start {name}: its program does not become ready, again and again: it {why}; the log says more"
            )
        };
        self.complaint.clone().or_else(|| ends_again.then(ends))
    }

    /// How often in a row it has ended before it was ready.
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts
    }
}
