//! The file of a program that this process is to become. It is opened once: what was looked at is what is executed, whatever has its name by then.
//!
//! It is executed by its descriptor, through `/proc`. `/proc/PID/exe` shows the file's name all the same, and what the process is called the new program
//! puts right.

use super::super::upgrade::{is_ours_alone, new_program};
use rustix::fs::{Mode, OFlags, Stat, fstat, open};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// It.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    file: File,
    /// When it was written to last, and how long it was then.
    written: Written,
}

type Written = (i64, i64, i64);

impl Program {
    /// The one in this directory, or in the place of the one before. Errors say what to do.
    pub(super) fn find(programs: Option<&str>, place: &Path) -> Result<Self, String> {
        let path = new_program("lasthop", programs, place)?;
        let failed = |e: rustix::io::Errno| format!("{}: {e}", path.display());
        let file = File::from(open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?);
        if programs.is_some() {
            // Of the very file, too: another may have got its name since.
            is_ours_alone(&path, &file.metadata().map_err(|e| format!("{}: {e}", path.display()))?)?;
        }
        let written = written(&fstat(&file).map_err(failed)?);
        Ok(Self { path, file, written })
    }

    /// What it is called.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is this file.
    pub(super) fn is(&self, other: &std::fs::Metadata) -> bool {
        self.file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (other.dev(), other.ino()))
    }

    /// Nobody has written to it since it was opened, or the error says so.
    pub(super) fn is_as_it_was(&self) -> Result<(), String> {
        let path = self.path.display();
        let now = fstat(&self.file).map_err(|e| format!("{path}: {e}"))?;
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

fn written(stat: &Stat) -> Written {
    (stat.st_mtime as i64, stat.st_mtime_nsec as i64, stat.st_size)
}
