//! Asking a running instance.

use futures_util::{Stream, StreamExt};
use lasthop_api::{ApiError, READ_SOCKET_NAME, SOCKET_NAME};
use lasthop_sys::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;
use zlink::tokio::unix::{Connection, connect};

/// How long an answer may take; control gives up after less.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is asked again when the connection breaks off, as long as that.
const AGAIN: Duration = Duration::from_millis(10);

/// What is wrong; what to do.
#[derive(Debug)]
pub struct CliError {
    text: String,
    /// Exit status: 1, what was asked for could not be done; 2, the command line makes no sense, whatever is running; 3, of `lasthop upgrade`: not before
    /// lasthop is started anew.
    pub status: u8,
    /// The lasthop that runs is of a version that does not know this, or says other messages than the programs that are to take over.
    pub other_version: bool,
    /// The connection broke off: it is not known whether it was done.
    pub broke_off: bool,
}

impl CliError {
    /// It could not be done.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: 1, other_version: false, broke_off: false }
    }

    /// The lasthop that runs is of another version.
    fn other_version(text: String) -> Self {
        Self { other_version: true, ..Self::new(text) }
    }

    /// The same, with this exit status.
    pub fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// The command line makes no sense.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { status: 2, ..Self::new(text) }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A connection to a running instance.
#[derive(Debug)]
pub struct Instance {
    runtime: Runtime,
    connection: Connection,
    run_dir: PathBuf,
}

impl Instance {
    /// To the instance whose run directory this is.
    pub fn connect(run_dir: &Path) -> Result<Self, CliError> {
        let socket = run_dir.join(SOCKET_NAME);
        let dir = run_dir.display().to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| CliError::new(format!("cannot start: {e}")))?;
        let connection = runtime.block_on(async {
            match connect(&socket).await {
                // Whoever may not use that one may be of the group that may read.
                Err(zlink::Error::Io(e)) if e.kind() == io::ErrorKind::PermissionDenied => {
                    connect(run_dir.join(READ_SOCKET_NAME)).await.map_err(|_| zlink::Error::Io(e))
                }
                connected => connected,
            }
        });
        let connection = connection.map_err(|e| {
            CliError::new(match &e {
                zlink::Error::Io(e) => match e.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                        if let Some(pid) = running(run_dir) {
                            return CliError::new(format!(
                                "lasthop (pid {pid}) runs with {dir}, but its socket {} is gone; lasthop makes it anew: try again in a \
                                 second, and if that does not help, see its log for what is in the way",
                                socket.display()
                            ));
                        }
                        let default = if dir == "/run/lasthop" { String::new() } else { format!(" --run-dir {dir}") };
                        format!(
                            "no lasthop is running at {dir}; start one with `lasthop run{default}`, \
                             or name another's directory with --run-dir"
                        )
                    }
                    io::ErrorKind::PermissionDenied => {
                        format!("may not use {}; run this as root, or to look only, as a member of the group of `lasthop run --read-group`", socket.display())
                    }
                    _ => format!("{}: {e}; is it the API socket of a running lasthop?", socket.display()),
                },
                e => format!("{}: {e}", socket.display()),
            })
        })?;
        Ok(Self { runtime, connection, run_dir: run_dir.to_owned() })
    }

    /// Calls a method.
    pub fn ask<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Connection) -> zlink::Result<Result<T, ApiError>>,
    ) -> Result<T, CliError> {
        self.ask_within(PATIENCE, call)
    }

    /// Calls a method whose answer is of no use any more after so long.
    pub fn ask_within<T>(
        &mut self,
        patience: Duration,
        call: impl AsyncFnOnce(&mut Connection) -> zlink::Result<Result<T, ApiError>>,
    ) -> Result<T, CliError> {
        let Self { runtime, connection, run_dir } = self;
        let run_dir = run_dir.display();
        match runtime.block_on(async { tokio::time::timeout(patience, call(connection)).await }) {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(e @ ApiError::OtherMessages { .. }))) => Err(CliError::other_version(e.to_string())),
            Ok(Ok(Err(e))) => Err(CliError::new(e.to_string())),
            Ok(Err(zlink::Error::VarlinkService(e))) => Err(CliError::other_version(format!(
                "the lasthop running at {run_dir} does not know this request ({e}); use the command of its version"
            ))),
            // Answers have lost and gained parts between versions.
            Ok(Err(zlink::Error::Json(e))) => Err(CliError::other_version(format!(
                "the lasthop running at {run_dir} answers as one of another version does ({e}); use the command of its version, or start it again \
                 with the programs of this one"
            ))),
            Ok(Err(e)) => {
                let text = format!("the lasthop running at {run_dir} broke off ({e}); try again in a second");
                Err(CliError { broke_off: true, ..CliError::new(text) })
            }
            Err(_) => Err(CliError::new(format!(
                "the lasthop running at {run_dir} does not answer; look at the log of `lasthop run`"
            ))),
        }
    }

    /// Calls a method by which processes take the place of others, control among them: again, with the same mark, when the connection breaks off.
    pub fn ask_until_answered<T>(
        &mut self,
        call: impl AsyncFn(&mut Connection, &str) -> zlink::Result<Result<T, ApiError>>,
    ) -> Result<T, CliError> {
        let (attempt, until) = (attempt(), Instant::now() + PATIENCE);
        loop {
            match self.ask(async |c| call(c, &attempt).await) {
                Err(e) if e.broke_off && Instant::now() < until => {
                    std::thread::sleep(AGAIN);
                    *self = Self::connect(&self.run_dir)?;
                }
                answer => return answer,
            }
        }
    }
}

/// A mark of something that may have to be asked for again: different each time.
fn attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{now}", std::process::id())
}

/// The process that has locked the run directory, if there is one and we may look.
pub fn running(run_dir: &Path) -> Option<String> {
    let mut lock = File::open(run_dir.join("lock")).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockShared).is_err().then_some(())?;
    let mut pid = String::new();
    lock.read_to_string(&mut pid).ok()?;
    Some(pid.trim().to_owned())
}

/// Waits until `next`, or for a signal that is to end this command: whether one came.
pub fn signalled_before(signals: &SignalFd, next: Instant) -> Result<bool, CliError> {
    let left = next.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(60), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(signals.read().is_some()),
        Err(e) => Err(CliError::new(format!("signals: {e}"))),
    }
}

/// All pages of a list.
pub async fn collect<P, T>(
    pages: zlink::Result<impl Stream<Item = zlink::Result<Result<P, ApiError>>>>,
    items: impl Fn(P) -> Vec<T>,
) -> zlink::Result<Result<Vec<T>, ApiError>> {
    let mut pages = Box::pin(pages?);
    let mut all = Vec::new();
    while let Some(page) = pages.next().await {
        match page? {
            Ok(page) => all.extend(items(page)),
            Err(e) => return Ok(Err(e)),
        }
    }
    Ok(Ok(all))
}
