//! Just enough of QEMU's machine protocol: one command at a time, events skipped.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// One conversation with a QEMU.
pub struct Qmp(BufReader<UnixStream>);

impl Qmp {
    /// Connects and leaves the negotiation mode.
    pub fn connect(socket: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(|e| e.to_string())?;
        let mut qmp = Self(BufReader::new(stream));
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs one command and returns what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.0.get_mut(), "{line}").map_err(|e| e.to_string())?;
        loop {
            let mut message = self.message()?;
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = message.get("error") {
                return Err(format!("{command}: {}", error["desc"].as_str().unwrap_or("refused")));
            }
        }
    }

    fn message(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(|e| e.to_string())?;
        serde_json::from_str(&line).map_err(|e| format!("QMP said {line:?}: {e}"))
    }
}
