//! Which lines of the log are written, as it travels.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// What a process writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LogLevel {
    /// `run` (the supervisor, which writes the switch's lines, too) or `control`.
    pub process: String,
    /// From which level on: `error`, `warn`, `info`, `debug` or `trace`; or what `RUST_LOG` said at the start.
    pub level: String,
}

/// Answer to `LogLevels`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct LogLevelList {
    /// Of each process that can be told.
    pub levels: Vec<LogLevel>,
}
