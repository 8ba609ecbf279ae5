//! A port whose guest plugs itself in again when the connection breaks, as VMMs do.

use crate::{Guest, Options, PATIENCE, Port, accept, connect, mac};
use lasthop_vhostuser::FrontendError;
use rustix::io::Errno;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Instant;

/// A port whose guest plugs itself in again when the connection breaks, as VMMs do.
pub struct Plug {
    path: PathBuf,
    /// Where lasthop connects to us.
    listener: Option<UnixListener>,
    /// The guest.
    pub guest: Guest,
    /// What it says of its rings when it comes back; `None`: where they really stand. QEMU says of a packed ring what
    /// it last heard from a switch that had time to say something.
    pub bases: Option<[u32; 2]>,
    /// How often it came back.
    pub reconnected: u32,
}

impl Plug {
    /// The port, and what plugs the guest in once lasthop runs. `client`: lasthop connects.
    pub fn new(path: PathBuf, client: bool, number: u8, options: Options) -> (Port, impl FnOnce() -> Self) {
        let name = format!("p{number}");
        let listener = client.then(|| UnixListener::bind(&path).unwrap());
        let port = Port { name, socket: path.clone(), client };
        let plug = move || {
            let guest = match &listener {
                Some(listener) => Guest::accept(listener, mac(number), options),
                None => Guest::connect(&path, mac(number), options),
            };
            Self { path, listener, guest, bases: None, reconnected: 0 }
        };
        (port, plug)
    }

    /// If the switch is gone: goes on with the next one, the rings as they are.
    pub fn mend(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.guest.is_disconnected() {
            let front = match &self.listener {
                Some(listener) => accept(listener),
                None => connect(&self.path),
            };
            // The next one may die as well: then this connection is closed too.
            match self.guest.reattach(front, self.bases.as_ref().map(|b| &b[..])) {
                Ok(()) | Err(FrontendError::Closed | FrontendError::Io(Errno::PIPE)) => {}
                Err(e) => panic!("{}: {e}", self.path.display()),
            }
            self.reconnected += 1;
            assert!(Instant::now() < end, "no switch comes back");
        }
    }
}
