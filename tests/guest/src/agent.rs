//! Runs the host's commands. One request is a line `ID SECONDS HEX` (the command in hexadecimal, run by `sh -c`, killed
//! after SECONDS); its answer is a line `ID CODE OUT_LEN ERR_LEN` and then that many bytes of stdout and stderr. Many
//! commands may run at once; answers come as they finish.

use crate::Outcome;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// Serves until the line ends.
pub fn serve(device: &str) -> Outcome {
    let open = || OpenOptions::new().read(true).write(true).open(device).map_err(|e| format!("{device}: {e}"));
    let answers = Arc::new(Mutex::new(open()?));
    answer(&answers, b"agent ready\n");
    for line in BufReader::new(open()?).lines() {
        let line = line.map_err(|e| format!("{device}: {e}"))?;
        let Some((id, seconds, command)) = parse(&line) else { continue };
        let answers = Arc::clone(&answers);
        std::thread::spawn(move || {
            let run = Command::new("timeout")
                .args(["-s", "KILL", &seconds.to_string(), "sh", "-c", &command])
                .stdin(Stdio::null())
                .output();
            let (code, out, err) = match run {
                Ok(o) => (o.status.code().unwrap_or(137), o.stdout, o.stderr),
                Err(e) => (127, Vec::new(), e.to_string().into_bytes()),
            };
            let mut frame = format!("{id} {code} {} {}\n", out.len(), err.len()).into_bytes();
            frame.extend(out);
            frame.extend(err);
            answer(&answers, &frame);
        });
    }
    Ok("the host hung up".into())
}

fn answer(line: &Mutex<File>, bytes: &[u8]) {
    // A serial line that fails leaves nobody to tell.
    let _ = line.lock().map(|mut f| f.write_all(bytes));
}

/// `ID SECONDS HEX`; anything else is noise on the line.
fn parse(line: &str) -> Option<(u64, u64, String)> {
    let mut words = line.split_ascii_whitespace();
    let (id, seconds, hex) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?);
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let bytes = digits?.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect();
    Some((id, seconds, String::from_utf8(bytes).ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_request_line() {
        assert_eq!(super::parse("7 20 6c73"), Some((7, 20, "ls".into())));
        for noise in ["", "7", "7 20", "7 20 6z", "x 20 6c73"] {
            assert_eq!(super::parse(noise), None, "{noise}");
        }
    }
}
