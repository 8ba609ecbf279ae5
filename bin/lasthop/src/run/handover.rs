//! `lasthop run` becomes another program while its children run: execve(2) keeps the process, so its children stay its children and die with it, and every descriptor
//! that is told to stay open. What else there is to know is written to sealed memory, whose descriptor the new program is told by an option that nobody types.
//!
//! ```text
//!  the program before                       the new program
//!  ------------------                       ---------------
//!  waits until nothing is half done
//!  runs the new one, which reads the state ──► understands it, or says why not
//!  writes the state once more
//!  execve ──────────────────────────────────► takes duplicates of all descriptors
//!                                             is the supervisor, closes the first ones and answers;
//!  is the supervisor again ◄───────────────── or executes the one before, with the state as it was
//! ```
//!
//! Nothing is sent, and nothing is read, while the state is on its way: what children have said meanwhile waits in their channels, connections wait in the listening
//! sockets, signals are blocked and stay pending, and the data plane knows nothing of all this.
//!
//! The form of the state is JSON: a program that reads it passes over what it does not know, and what it misses has a default if it came later. [`VERSION`] changes when
//! that is not enough.

mod program;
pub(super) mod state;
mod steps;

pub use state::State;
pub(super) use steps::TakeOver;
pub use steps::take_over;

use lasthop_sys::{duplicate, sealed_with};
use program::Program;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the state's form.
pub const VERSION: u32 = 1;
/// The options by which a program is told of the state, and why it is executed again.
const TAKE_OVER: &str = "--take-over=";
const REFUSED: &str = "--take-over-refused=";
/// The same to have it looked at only: it is the standard input.
pub const CHECK: &str = "--take-over-check";

/// While set, what is dropped is somebody else's still: children live on, and sockets keep their files.
static TAKING_OVER: AtomicBool = AtomicBool::new(false);

/// Whether what is dropped may not be ended, because the program before may yet go on with it.
pub fn is_under_way() -> bool {
    TAKING_OVER.load(Ordering::Relaxed)
}

/// Says whether a take-over is under way.
pub fn set_under_way(is: bool) {
    TAKING_OVER.store(is, Ordering::Relaxed);
}

/// A time that means the same to both programs: nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment(i64);

/// A descriptor's number, which is the same in both programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fd(i32);

/// Turns times into those of the other program and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    now: Instant,
    ns: i64,
}

impl Clock {
    /// Now.
    pub fn new() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        Self { now: Instant::now(), ns: time.tv_sec * 1_000_000_000 + time.tv_nsec }
    }

    fn moment(&self, at: Instant) -> Moment {
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let (later, earlier) = (at.saturating_duration_since(self.now), self.now.saturating_duration_since(at));
        Moment(self.ns.saturating_add(ns(later)).saturating_sub(ns(earlier)))
    }

    /// The time of the other program as ours.
    pub fn at(&self, Moment(ns): Moment) -> Instant {
        let apart = Duration::from_nanos(ns.abs_diff(self.ns));
        let at = if ns < self.ns { self.now.checked_sub(apart) } else { self.now.checked_add(apart) };
        at.unwrap_or(self.now)
    }
}

/// Collects what is handed over.
#[derive(Debug)]
pub struct Giver {
    clock: Clock,
    descriptors: Vec<i32>,
}

impl Giver {
    fn new() -> Self {
        Self { clock: Clock::new(), descriptors: Vec::new() }
    }

    /// A descriptor that stays open.
    pub fn fd(&mut self, fd: impl AsFd) -> Fd {
        let number = fd.as_fd().as_raw_fd();
        self.descriptors.push(number);
        Fd(number)
    }

    /// A time.
    pub fn moment(&self, at: Instant) -> Moment {
        self.clock.moment(at)
    }
}

/// Takes what was handed over. The first descriptors stay open, so that another program can take them, too.
#[derive(Debug)]
pub struct Taker {
    clock: Clock,
}

impl Taker {
    /// Of a state that was just read.
    pub fn new() -> Self {
        Self { clock: Clock::new() }
    }

    /// A duplicate of a descriptor.
    pub fn fd(&self, Fd(number): Fd) -> Result<OwnedFd, String> {
        duplicate(number).map_err(|e| format!("descriptor {number} of the program before: {e}"))
    }

    /// A time.
    pub fn at(&self, moment: Moment) -> Instant {
        self.clock.at(moment)
    }
}

/// All that it takes to become another program.
#[derive(Debug)]
pub struct Successor {
    program: Arc<Program>,
    arguments: Vec<OsString>,
    state: OwnedFd,
    descriptors: Vec<i32>,
}

impl Successor {
    fn new(program: Arc<Program>, mut state: State) -> Result<Self, String> {
        // A script is opened by its interpreter, after all else has been closed.
        state.descriptors.push(program.as_fd().as_raw_fd());
        let (arguments, descriptors) = (state.arguments.clone(), state.descriptors.clone());
        Ok(Self { program, arguments, state: state.to_memory()?, descriptors })
    }

    /// Executes it. Comes back only if that cannot be: then all is as it was, and the error says why.
    pub fn execute(&self) -> String {
        keep_open(&self.descriptors, true);
        let failed = execute(&self.program.place(), self.arguments.clone(), self.state.as_fd(), None);
        keep_open(&self.descriptors, false);
        format!("{}: {failed}", self.program.path().display())
    }
}

/// What has to be understood of a state that cannot be.
#[derive(Debug, Deserialize)]
struct WayBack {
    program: Fd,
    arguments: Vec<OsString>,
    descriptors: Vec<i32>,
}

/// Executes the program before again, as this one cannot go on from the state. Comes back only if that cannot be.
fn go_back(memory: &OwnedFd, why: &str) -> String {
    let read = bytes_of(memory).and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()));
    let WayBack { program, arguments, descriptors } = match read {
        Ok(way) => way,
        Err(e) => return e,
    };
    keep_open(&descriptors, true);
    let program = format!("/proc/self/fd/{}", program.0);
    execute(Path::new(&program), arguments, memory.as_fd(), Some(why))
}

/// Whether the descriptors stay open when a program is executed. What is not open is no matter here.
fn keep_open(descriptors: &[i32], open: bool) {
    let flags = if open { FdFlags::empty() } else { FdFlags::CLOEXEC };
    for number in descriptors {
        let _ = lasthop_sys::set_descriptor_flags(*number, flags);
    }
}

/// With these arguments, what tells it of the state, and the same environment. Signals that are blocked stay so, which `std::process::Command` would not have.
fn execute(program: &Path, mut arguments: Vec<OsString>, state: BorrowedFd<'_>, refused: Option<&str>) -> String {
    arguments.push(format!("{TAKE_OVER}{}", state.as_raw_fd()).into());
    arguments.extend(refused.map(|why| format!("{REFUSED}{why}").into()));
    let environment = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let strings = |all: Vec<OsString>| -> Result<Vec<CString>, std::ffi::NulError> {
        all.into_iter().map(|text| CString::new(text.as_bytes())).collect()
    };
    let both = strings(arguments).and_then(|arguments| Ok((arguments, strings(environment.collect())?)));
    let (arguments, environment, path) = match (both, CString::new(program.as_os_str().as_bytes())) {
        (Ok((arguments, environment)), Ok(path)) => (arguments, environment, path),
        (Err(e), _) | (_, Err(e)) => return e.to_string(),
    };
    let _ = fcntl_setfd(state, FdFlags::empty());
    let failed = nix::unistd::execve(&path, &arguments, &environment);
    let _ = fcntl_setfd(state, FdFlags::CLOEXEC);
    failed.map_or_else(|e| e.desc().to_owned(), |never| match never {})
}

/// What this process was started with, without what an earlier take-over has added.
fn own_arguments() -> Vec<OsString> {
    without_take_over(std::env::args_os())
}

fn without_take_over(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let ours = |argument: &OsString| {
        let bytes = argument.as_bytes();
        [TAKE_OVER, REFUSED].iter().any(|option| bytes.starts_with(option.as_bytes()))
    };
    all.filter(|argument| !ours(argument)).collect()
}

/// The memory in which the program before has left the state.
fn memory(number: i32) -> Result<OwnedFd, String> {
    duplicate(number).map_err(|e| format!("{TAKE_OVER}{number}: {e}; this option is not for people"))
}

/// All that is in the memory. The place up to which others of this process have read it does not matter.
fn bytes_of(memory: &OwnedFd) -> Result<Vec<u8>, String> {
    let read = rustix::fs::fstat(memory).and_then(|stat| {
        let mut bytes = vec![0; usize::try_from(stat.st_size).unwrap_or_default()];
        let len = rustix::io::pread(memory, &mut bytes[..], 0)?;
        bytes.truncate(len);
        Ok(bytes)
    });
    read.map_err(|e| format!("the state cannot be read: {e}"))
}

/// Whether this program could go on from the state at its standard input.
pub fn check() -> Result<(), String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    State::from_bytes(&bytes).map(drop)
}

impl State {
    fn to_memory(&self) -> Result<OwnedFd, String> {
        let bytes = serde_json::to_vec(self).map_err(|e| format!("the state cannot be written: {e}"))?;
        sealed_with("lasthop-run", &bytes).map_err(|e| format!("memory for the state: {e}"))
    }

    /// Understands it, or says why not.
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
            messages: String,
        }
        let wrong = |e| format!("the state of the program before cannot be understood: {e}");
        let Head { version, messages } = serde_json::from_slice(bytes).map_err(wrong)?;
        if version != VERSION {
            return Err(format!(
                "the program before hands over a state of version {version}, and this one knows version {VERSION}"
            ));
        }
        if messages != super::MESSAGES {
            let ours = super::MESSAGES;
            return Err(format!(
                "the programs that run say other things to each other (messages {messages}, and here {ours})"
            ));
        }
        serde_json::from_slice(bytes).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_same_on_both_sides() {
        let clock = Clock::new();
        for apart in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(7)] {
            let later = clock.now + apart;
            assert_eq!(clock.at(clock.moment(later)), later);
            if let Some(earlier) = clock.now.checked_sub(apart) {
                assert_eq!(clock.at(clock.moment(earlier)), earlier);
            }
        }
        let next = Clock { now: clock.now + Duration::from_secs(3), ns: clock.ns + 3_000_000_000 };
        assert_eq!(next.at(clock.moment(clock.now)), clock.now);
    }

    #[test]
    fn options_of_a_take_over_are_not_handed_on() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = words("lasthop run --port a=/b --take-over=7 --take-over-refused=--why --uplink n=eth0");
        assert_eq!(without_take_over(given.into_iter()), words("lasthop run --port a=/b --uplink n=eth0"));
    }

    #[test]
    fn what_another_version_hands_over_is_refused() {
        let refused = |text: String| State::from_bytes(text.as_bytes()).unwrap_err();
        let of = |version: u32, messages: &str| format!(r#"{{"version":{version},"messages":"{messages}","more":[]}}"#);
        assert!(refused(of(VERSION + 1, super::super::MESSAGES)).contains("of version 2"));
        assert!(refused(of(VERSION, "0")).contains("say other things"));
        assert!(refused(of(VERSION, super::super::MESSAGES)).contains("cannot be understood: missing field"));
        assert!(refused("{".into()).contains("cannot be understood"));
    }
}
