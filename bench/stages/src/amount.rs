//! How much every stage counts; `cargo xtask counts` divides by it.

/// Bursts of 64 packets.
pub const BURSTS: usize = 4;
/// Packets (or keys, or lookups).
pub const PACKETS: usize = BURSTS * 64;
