//! Session processes whose newly installed program takes the place of the one that runs. A front-end's connection ends with its process, so that of a
//! port that has one goes on until the connection has ended by itself.

use super::{Session, Sessions, process};
use std::os::fd::OwnedFd;
use std::path::Path;
use tracing::warn;

impl Sessions {
    /// Ports to come have processes of this program, and so have those whose process does not run.
    pub fn set_program(&mut self, path: &Path) {
        path.clone_into(&mut self.program);
        for session in self.all.values_mut().filter(|session| !session.child.is_up()) {
            session.child.set_program(path.to_owned());
        }
    }

    /// Where their program is.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The ports whose processes run.
    pub fn running(&self) -> Vec<u32> {
        self.all.iter().filter(|(_, session)| session.child.is_up()).map(|(id, _)| *id).collect()
    }

    /// What the port's process is called, and its number.
    pub fn process(&self, port: u32) -> Option<(String, Option<u32>)> {
        self.all.get(&port).map(|session| (process(&session.name), session.child.pid()))
    }

    /// From its next start on the port's process is of the present program. What comes back is the file of the one that runs, and whether that is another one.
    pub fn renew(&mut self, port: u32) -> Option<(Option<OwnedFd>, bool)> {
        let session = self.all.get_mut(&port)?;
        let before = session.child.set_program(self.program.clone());
        Some((before, session.child.is_outdated()))
    }

    /// Whether there is a connection that would end with the port's process.
    pub fn is_connected(&self, port: u32) -> bool {
        self.all.get(&port).is_some_and(|session| session.copy.is_some())
    }

    /// Has the port's process make way for another.
    pub fn make_way(&mut self, port: u32) {
        if let Some(session) = self.all.get_mut(&port) {
            session.outlived = false;
            session.part();
            session.child.make_way();
        }
    }

    /// The same once its front-end has gone. `before`: the file of the one that runs.
    pub fn make_way_later(&mut self, port: u32, before: Option<OwnedFd>) {
        if let Some(session) = self.all.get_mut(&port) {
            (session.outlived, session.before) = (true, before);
        }
    }

    /// The new program does not do: those that were to make way later stay, and are of the program before when they are started again.
    pub fn stay(&mut self) {
        for session in self.all.values_mut().filter(|session| session.outlived) {
            session.outlived = false;
            session.child.go_back_to(session.before.take());
        }
    }

    /// Whether another process than this serves the port.
    pub fn serves_anew(&self, port: u32, before: Option<u32>) -> bool {
        self.all.get(&port).is_some_and(|session| session.child.is_ready() && session.child.pid() != before)
    }

    /// How often in a row the port's process has ended before it was ready.
    pub fn failed_starts(&self, port: u32) -> u32 {
        self.all.get(&port).map_or(0, |session| session.child.failed_starts())
    }

    /// The new program does not do: the port's process is this one again.
    pub fn go_back_to(&mut self, port: u32, before: Option<OwnedFd>) {
        if let Some(session) = self.all.get_mut(&port) {
            session.child.make_way();
            session.child.go_back_to(before);
        }
    }
}

impl Session {
    /// A process that has made way for a new program which does not come up is followed by one of the program before.
    pub(super) fn fall_back(&mut self) {
        if let Some(why) = self.child.trouble().filter(|_| self.before.is_some()) {
            warn!("{why}; the program before goes on, as its new one does not come up");
            self.outlived = false;
            self.child.go_back_to(self.before.take());
        }
    }

    /// No front-end is connected any more, and a new program waits for that.
    pub(super) fn make_way_if_outlived(&mut self) {
        if std::mem::take(&mut self.outlived) {
            self.child.make_way();
        }
    }
}
