//! DPDK's testpmd at its prompt: guests of tests and of benchmarks, and the peer that does nothing but copy.

use crate::stop::{Failure, Outcome, failed, until};
use crate::{Netns, last_lines, scratch, spawn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

const PROMPT: &str = "testpmd> ";

/// How long a command may take; the first prompt waits for whoever connects to the ports.
const LIMIT: Duration = Duration::from_secs(30);

/// A running testpmd with one forwarding thread. Dropping it ends it.
pub struct Testpmd {
    child: Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
    /// How much of the log has been read.
    read: usize,
    _dir: tempfile::TempDir,
}

impl Testpmd {
    /// `lcores`: DPDK's word on which thread runs on which CPUs, commands on 0 and packets on 1. `mib`: of huge pages. One port
    /// for each of `devices`; `eal` and `options` are further arguments for DPDK and for testpmd.
    pub fn start(lcores: &str, mib: u32, devices: &[String], eal: &[&str], options: &[&str]) -> Outcome<Self> {
        Self::start_preloaded(None, lcores, mib, devices, eal, options)
    }

    /// The same in a network namespace, where its own devices and those of the kernel that it uses are.
    pub fn start_in(netns: &Netns, lcores: &str, mib: u32, devices: &[String], options: &[&str]) -> Outcome<Self> {
        Self::start_anywhere(Some(netns), None, lcores, mib, devices, &[], options)
    }

    /// The same with a shared library loaded before all others.
    pub fn start_preloaded(
        preload: Option<&Path>,
        lcores: &str,
        mib: u32,
        devices: &[String],
        eal: &[&str],
        options: &[&str],
    ) -> Outcome<Self> {
        Self::start_anywhere(None, preload, lcores, mib, devices, eal, options)
    }

    fn start_anywhere(
        netns: Option<&Netns>,
        preload: Option<&Path>,
        lcores: &str,
        mib: u32,
        devices: &[String],
        eal: &[&str],
        options: &[&str],
    ) -> Outcome<Self> {
        let dir = scratch();
        let log = dir.path().join("testpmd.log");
        let out = std::fs::File::create(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        // Unbuffered, so that what follows a prompt belongs to the next command.
        let mut child = spawn::spawn("KILL", if netns.is_some() { "ip" } else { "stdbuf" }, |c| {
            if let Some(netns) = netns {
                c.args(["netns", "exec", netns.name(), "stdbuf"]);
            }
            c.args(["-o0", "dpdk-testpmd", "--lcores", lcores, "--no-pci", "--in-memory", "--single-file-segments"]);
            c.args(["--no-telemetry", "-m", &mib.to_string()]).args(eal).arg("--file-prefix");
            c.arg(dir.path().file_name().unwrap_or_default());
            for device in devices {
                c.args(["--vdev", device]);
            }
            c.args(["--", "-i", "--nb-cores=1", "--txd=1024", "--rxd=1024"]).args(options);
            // EAL makes a directory for its run-time files; this way it goes with ours.
            c.env("RUNTIME_DIRECTORY", dir.path());
            if let Some(library) = preload {
                c.env("LD_PRELOAD", library);
            }
            c.stdin(Stdio::piped()).stdout(out).stderr(err);
        });
        let stdin = child.stdin.take();
        let mut testpmd = Self { child, stdin, log, read: 0, _dir: dir };
        testpmd.prompt("testpmd's first prompt")?;
        Ok(testpmd)
    }

    /// Types a command and returns what it printed.
    pub fn say(&mut self, command: &str) -> Outcome<String> {
        let stdin = self.stdin.as_mut().ok_or_else(|| failed("testpmd has been told to quit"))?;
        writeln!(stdin, "{command}").map_err(|e| failed(format!("testpmd takes no commands: {e}")))?;
        self.prompt(command)
    }

    /// Packets that a port has received so far.
    pub fn received(&mut self, port: usize) -> Outcome<u64> {
        let stats = self.say(&format!("show port stats {port}"))?;
        let received =
            number_after(&stats, "RX-packets:").ok_or_else(|| failed(format!("no RX-packets in {stats:?}")))?;
        Ok(received as u64)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order, so that the files it writes are complete.
    pub fn quit(mut self) -> Outcome<()> {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = writeln!(stdin, "quit");
        }
        let child = &mut self.child;
        until("testpmd's end", LIMIT, || Ok(child.try_wait().ok().flatten().map(drop)))
    }

    /// All that it has printed.
    fn printed(&self) -> Vec<u8> {
        std::fs::read(&self.log).unwrap_or_default()
    }

    /// Waits for the next prompt and returns what came before it.
    fn prompt(&mut self, what: &str) -> Outcome<String> {
        let said = until(what, LIMIT, || {
            let ended = self.child.try_wait().ok().flatten();
            let all = self.printed();
            let new = all.get(self.read..).unwrap_or_default();
            if let Some(at) = new.windows(PROMPT.len()).position(|window| window == PROMPT.as_bytes()) {
                self.read += at + PROMPT.len();
                return Ok(Some(String::from_utf8_lossy(&new[..at]).into_owned()));
            }
            ended.map_or(Ok(None), |status| Err(failed(format!("testpmd ended with {status}"))))
        });
        said.map_err(|e| match e {
            Failure::Failed(why) => {
                failed(format!("{why}; testpmd said last: {}", tail(&String::from_utf8_lossy(&self.printed()))))
            }
            stopped => stopped,
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.printed()).into_owned();
        if std::env::var_os("LASTHOP_TESTPMD_LOG").is_some() {
            eprintln!("{text}");
        } else if std::thread::panicking() {
            eprintln!("--- testpmd\n{}", last_lines(&text, 20));
        }
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
