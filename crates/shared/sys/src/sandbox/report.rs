//! What became of each step into the sandbox, for the log.

use rustix::io::Errno;
use std::fmt;

/// What was done and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The user this process now is.
    pub user: u32,
    /// What holds, each in a few words.
    pub done: Vec<&'static str>,
    /// What was left out, each with its reason.
    pub left_out: Vec<String>,
}

impl Report {
    pub(super) fn note(&mut self, what: &'static str, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.done.push(what),
            Err(e) => self.left_out.push(format!("{what} ({e})")),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, {}", self.user, self.done.join(", "))?;
        if !self.left_out.is_empty() {
            write!(f, "; without {}", self.left_out.join(", "))?;
        }
        Ok(())
    }
}
