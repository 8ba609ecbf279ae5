//! What the fuzz targets in `fuzz/` do with an input. Here and not there, so that their seeds and every input that once
//! found a fault are replayed by `cargo test` without a nightly toolchain (`tests/replay.rs`).
//!
//! A target reads its input front to back as a small program ([`Input`]); where the input ends, everything is 0. Each has
//! an oracle: a slow reference, a model or a law. It panics when the oracle disagrees: never for real input.

mod acl;
mod connections;
mod control_rings;
mod device_ring;
mod driver_ring;
mod flow_table;
mod frame_key;
mod frames;
mod gro;
mod input;
mod learning;
mod messages;
mod moved;
mod netlink;
mod offload;
mod rings;
mod session;
mod translations;
mod tunnel;
mod walk;

pub use input::Input;

/// A target: its name and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: &[Target] = &[
    ("frame_key", frame_key::run),
    ("offload", offload::run),
    ("session", session::run),
    ("split_device", device_ring::split),
    ("packed_device", device_ring::packed),
    ("driver", driver_ring::run),
    ("messages", messages::run),
    ("control_rings", control_rings::run),
    ("flow_table", flow_table::run),
    ("learning", learning::run),
    ("walk", walk::run),
    ("acl", acl::run),
    ("gro", gro::run),
    ("connections", connections::run),
    ("tunnel", tunnel::run),
    ("netlink", netlink::run),
    ("translations", translations::run),
    ("moved", moved::run),
];

/// Runs the target of this name.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(n, _)| *n == name).expect("a target of this name");
    target(input);
}
