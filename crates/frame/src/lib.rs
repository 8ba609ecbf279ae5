//! Everything that looks into or edits a frame's headers. Works on private bytes only: no I/O, no guest memory, no `unsafe`.

mod key;

pub use key::{Depth, FlowKey, FlowMask};

/// Bytes of a frame that are copied into private memory, once, before anything looks at them (design rule 1).
/// Whatever is judged lies inside; what lies behind is payload.
pub const SNAPSHOT_LEN: usize = 192;
