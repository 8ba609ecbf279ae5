//! The named pipe by which copies come.

use crate::client::CliError;
use rustix::fs::{FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes that wait in the pipe, if the system lets it be so long.
const PIPE: usize = 1 << 20;

/// A named pipe in a directory that nobody else can enter, which goes with this: under its name nobody can put another.
pub struct Pipe {
    pub path: PathBuf,
    _dir: TempDir,
}

/// A directory of our own: where lasthop is sure to find it, or else where users have such things.
fn own_dir(name: &str, run_dir: &Path) -> Result<TempDir, CliError> {
    let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let places = [Some(run_dir), of_user].into_iter().flatten();
    let within = |place: PathBuf| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        tempfile::Builder::new().prefix(&format!("{name}-")).permissions(mode).tempdir_in(place)
    };
    let found = places.map(within).find_map(Result::ok).map_or_else(|| within(std::env::temp_dir()), Ok);
    found
        .map_err(|e| CliError::new(format!("no directory for a named pipe: {e}; set $XDG_RUNTIME_DIR to one of yours")))
}

impl Pipe {
    /// The pipe and our end of it.
    pub fn new(name: &str, run_dir: &Path) -> Result<(Self, OwnedFd), CliError> {
        let dir = own_dir(name, run_dir)?;
        let path = dir.path().join("pipe");
        let failed = |e: Errno| CliError::new(format!("{}: {e}", path.display()));
        mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(failed)?;
        // Written to as well, so that the end of a writer, which another may follow, is no end of the file.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = open(&path, flags, Mode::empty()).map_err(failed)?;
        // A shorter one loses more, and that is counted.
        let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE);
        Ok((Self { path, _dir: dir }, fd))
    }
}
