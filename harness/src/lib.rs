//! What tests and benchmarks share: Linux VMs under QEMU, DPDK's programs, networks outside, and `lasthop run` to plug them into.
//!
//! ```no_run
//! use lasthop_harness::{Lasthop, Nic, Port, Vm};
//! let dir = lasthop_harness::scratch();
//! let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
//! let a = Vm::start("a", [Nic::vhost_user(&dir.path().join("a.sock"), 1)]);
//! let b = Vm::start("b", [Nic::vhost_user(&dir.path().join("b.sock"), 2)]);
//! a.run("ping -c 3 10.9.0.2");
//! # drop((lasthop, b));
//! ```
//!
//! `scripts/setup` (or `make setup`) makes the VM image and reserves huge pages; without it every start panics with that
//! advice. Helpers panic on failure, with what the guest or program said: they are for tests and benchmarks only. Everything started
//! here ends with the test process, however that ends.

mod agent;
mod bridge;
pub mod checks;
mod dma_engine;
mod files;
mod lasthop;
mod loopback;
mod netns;
mod nic;
pub mod on_device;
pub mod ovn;
pub mod pcap;
pub mod proc;
mod qmp;
pub mod spawn;
pub mod stop;
pub mod testpmd;
mod vm;
pub mod vswitch;
pub mod xdp;

pub use agent::{Agent, Answer};
pub use bridge::Bridge;
pub use dma_engine::DmaEngine;
pub use lasthop::{Lasthop, Port, binary};
pub use loopback::{Loopback, VirtioUser};
pub use netns::Netns;
pub use nic::{Backend, Nic};
pub use vm::{Memory, Movable, Moved, Output, Pending, Vm, VmConfig};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A fresh directory for sockets and files; gone when dropped. Its path is short enough for socket addresses.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("lasthop-").tempdir().expect("a temporary directory")
}

/// Polls `done` every 20 ms until it answers true; panics with `what` when it has not after `limit`.
pub fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where `scripts/setup` put the VM image: a kernel, `vmlinuz`, and its first files, `initrd`.
pub fn image() -> PathBuf {
    let dir = std::env::var_os("LASTHOP_CACHE").map_or_else(|| root().join("target/vm-image"), PathBuf::from);
    assert!(dir.join("initrd").exists(), "no VM image in {}: run `make setup` (as root) first", dir.display());
    dir
}

/// The program that runs inside VMs, for the other end of a conversation outside of them.
pub fn guest_program() -> PathBuf {
    image().join("build/x86_64-unknown-linux-gnu/release/lasthop-guest")
}

/// The same, if it has been made.
pub fn try_guest_program() -> Option<PathBuf> {
    let dir = std::env::var_os("LASTHOP_CACHE").map_or_else(|| root().join("target/vm-image"), PathBuf::from);
    Some(dir.join("build/x86_64-unknown-linux-gnu/release/lasthop-guest")).filter(|p| p.exists())
}

/// The last `n` lines.
fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}
