//! The line that says why a command ends: `lasthop: what is wrong; what to do`, on standard error. Where that is journald's, it stands among errors there.

use rustix::fs::fstat;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes it.
pub fn complain(what: impl Display) {
    let mut stderr = io::stderr();
    let file = fstat(&stderr).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino)).unwrap_or_default();
    let journal = std::env::var_os("JOURNAL_STREAM").is_some_and(|journal| journal == OsStr::new(&file))
        || asks_for_journald(std::env::args_os());
    let priority = if journal { "<3>" } else { "" };
    let _ = writeln!(stderr, "{priority}lasthop: {what}");
}

/// Whether this command line, which may make no sense, has `--log-format journald`.
fn asks_for_journald(words: impl Iterator<Item = impl AsRef<OsStr>>) -> bool {
    let mut before = false;
    for word in words {
        let word = word.as_ref();
        if word == "--log-format=journald" || (before && word == "journald") {
            return true;
        }
        before = word == "--log-format";
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journald_is_asked_for_by_a_command_line_that_makes_no_sense() {
        let asks = |line: &str| asks_for_journald(line.split_whitespace());
        assert!(
            asks("lasthop run --log-format journald --sokcet x") && asks("lasthop run --sokcet --log-format=journald")
        );
        assert!(!asks("lasthop run --log-format text") && !asks("lasthop port add journald x --log-format"));
    }
}
