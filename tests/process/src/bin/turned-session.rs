//! Started by lasthop in the place of `lasthop-session`. For the port `a` it gives its channel to the test that listens beside it, and
//! lives for as long as that test wants; for all others it is what it is taken for.

use lasthop_sys::{inherited_fd, send_with_fds};
use rustix::net::SendFlags;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Descriptor number of the channel to the supervisor.
const CHANNEL: i32 = 3;

fn main() {
    let called = std::env::args_os().next().map(PathBuf::from).expect("a name");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.windows(2).any(|two| two == ["--port", "a"]) {
        let failed = Command::new(called.with_file_name("honest-session")).args(arguments).exec();
        panic!("{failed}");
    }
    let channel = inherited_fd(CHANNEL).expect("lasthop starts it with a channel");
    let mut test = UnixStream::connect(called.with_file_name("test.sock")).expect("the test listens");
    send_with_fds(&test, &[0], &[channel.as_fd()], SendFlags::empty()).expect("the test takes it");
    drop(channel);
    let _ = test.read(&mut [0]);
}
