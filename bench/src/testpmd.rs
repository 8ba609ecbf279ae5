//! DPDK's testpmd at its prompt: the guests of the loop, and the peer that does nothing but copy.

use crate::stop::{Outcome, failed, until};
use lasthop_tests_vm::{scratch, spawn};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

const PROMPT: &str = "testpmd> ";

/// How long a command may take; the first prompt waits for whoever connects to the ports.
const LIMIT: Duration = Duration::from_secs(30);

/// A running testpmd with one forwarding thread. Dropping it ends it.
pub struct Testpmd {
    child: Child,
    stdin: ChildStdin,
    output: Receiver<Vec<u8>>,
    unread: String,
    _dir: tempfile::TempDir,
}

impl Testpmd {
    /// Commands run on CPU `main`, packets on CPU `forward`; `mib` of huge pages; one port for each device.
    pub fn start(main: usize, forward: usize, mib: u32, devices: &[String], options: &[&str]) -> Outcome<Self> {
        let dir = scratch();
        // Unbuffered, so that what follows a prompt belongs to the next command.
        let mut child = spawn::spawn("KILL", "stdbuf", |c| {
            c.args(["-o0", "dpdk-testpmd", "--lcores", &format!("0@{main},1@{forward}"), "--no-pci", "--in-memory"]);
            c.args(["--single-file-segments", "--no-telemetry", "-m", &mib.to_string(), "--file-prefix"]);
            c.arg(dir.path().file_name().unwrap_or_default());
            for device in devices {
                c.args(["--vdev", device]);
            }
            c.args(["--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024", "--burst=64"]).args(options);
            // EAL makes a directory for its run-time files; this way it goes with ours.
            c.env("RUNTIME_DIRECTORY", dir.path());
            c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        });
        let stdin = child.stdin.take().expect("stdin is piped");
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(n @ 1..) = stdout.read(&mut buf) {
                if sender.send(buf[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut testpmd = Self { child, stdin, output, unread: String::new(), _dir: dir };
        testpmd.prompt("testpmd's first prompt")?;
        Ok(testpmd)
    }

    /// Types a command and returns what it printed.
    pub fn say(&mut self, command: &str) -> Outcome<String> {
        writeln!(self.stdin, "{command}").map_err(|e| failed(format!("testpmd takes no commands: {e}")))?;
        self.prompt(command)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn prompt(&mut self, what: &str) -> Outcome<String> {
        let (unread, output) = (&mut self.unread, &self.output);
        let said = until(what, LIMIT, || {
            loop {
                if let Some(at) = unread.find(PROMPT) {
                    let said = unread[..at].to_owned();
                    unread.drain(..at + PROMPT.len());
                    return Ok(Some(said));
                }
                match output.try_recv() {
                    Ok(more) => unread.push_str(&String::from_utf8_lossy(&more)),
                    Err(TryRecvError::Empty) => return Ok(None),
                    Err(TryRecvError::Disconnected) => return Err(failed("testpmd ended")),
                }
            }
        });
        said.map_err(|e| match e {
            crate::stop::Failure::Failed(why) => failed(format!("{why}; testpmd said last: {}", tail(&self.unread))),
            stopped => stopped,
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last three lines, on one.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

/// The number after the first `label`.
pub fn number_after(text: &str, label: &str) -> Option<f64> {
    let rest = text.split_once(label)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_labels() {
        let text = "RX-packets: 1024  RX-bytes:  77\n CPU cycles/packet=63.52 (total cycles=1.\n";
        assert_eq!(number_after(text, "RX-packets:"), Some(1024.0));
        assert_eq!(number_after(text, "RX-bytes:"), Some(77.0));
        assert_eq!(number_after(text, "cycles/packet="), Some(63.52));
        assert_eq!(number_after(text, "(total cycles="), Some(1.0));
        assert_eq!(number_after(text, "TX-packets:"), None);
        assert_eq!(number_after("RX-packets: none", "RX-packets:"), None);
    }

    #[test]
    fn the_last_words_fit_on_a_line() {
        assert_eq!(tail("a\n\n b\nc\n d \n"), "b / c / d");
        assert_eq!(tail(""), "");
    }
}
