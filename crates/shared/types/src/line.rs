//! Lines of the log, on their way from a process that writes none itself.

use crate::PortId;
use serde::{Deserialize, Serialize};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Level {
    Error,
    Warn,
    Info,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// What port it is about; 0 if it is about none.
    pub port: PortId,
    /// How much it matters.
    pub level: Level,
    /// What it says.
    pub text: String,
    /// How many lines about that port came behind it and were left out.
    pub left_out: u64,
}
