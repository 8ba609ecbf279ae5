//! The file of a program that this process is to become. It is opened once: what was looked at is what is executed, whatever has its name by then.
//!
//! It is executed by its descriptor, through `/proc`. `/proc/PID/exe` shows the file's name all the same, and what the process is called the new program
//! puts right.

use super::super::upgrade::{is_ours_alone, new_program};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program's file, open.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    file: File,
    /// When it was written to last, and how long it was then.
    written: Written,
}

type Written = (i64, i64, u64);

impl Program {
    /// The one in this directory, or in the place of the one before. Errors say what to do.
    pub(super) fn find(programs: Option<&str>, place: &Path) -> Result<Self, String> {
        let path = new_program("lasthop", programs, place)?;
        let failed = |e: io::Error| format!("{}: {e}", path.display());
        let file = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|e| failed(e.into()))?;
        let file = File::from(file);
        let of = file.metadata().map_err(failed)?;
        if programs.is_some() {
            // Of the very file, too: another may have got its name since.
            is_ours_alone(&path, &of)?;
        }
        let written = written(&of);
        Ok(Self { path, file, written })
    }

    /// What it is called.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is this file.
    pub(super) fn is(&self, other: &Metadata) -> bool {
        self.file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (other.dev(), other.ino()))
    }

    /// Nobody has written to it since it was opened, or the error says so.
    pub(super) fn is_as_it_was(&self) -> Result<(), String> {
        let path = self.path.display();
        let now = self.file.metadata().map_err(|e| format!("{path}: {e}"))?;
        if written(&now) == self.written {
            return Ok(());
        }
        Err(format!(
            "{path} was written to while it was looked at; install it under its name as a new file (`install`, `mv`), and try again"
        ))
    }

    /// Where another process, or this one, executes it, as long as this one has it open.
    pub(super) fn place(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn written(of: &Metadata) -> Written {
    (of.mtime(), of.mtime_nsec(), of.len())
}
