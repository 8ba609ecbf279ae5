//! TCP with content checks. Two kinds of connection, told apart by their first byte: `C`, messages that are checked and
//! come back; `P`, one long stream that is checked on the fly.

use crate::Outcome;
use crate::content::{Content, bytes, hash, sizes};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A peer that is silent this long is gone; longer than any recovery under test.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers both kinds of connection for ever.
pub fn serve(port: u16) -> Outcome {
    let listener = TcpListener::bind(("::", port)).map_err(|e| format!("port {port}: {e}"))?;
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            if let Err(e) = connection(stream) {
                eprintln!("tcp-serve: {e}");
            }
        });
    }
    Ok(String::new())
}

fn connection(mut s: TcpStream) -> Result<(), String> {
    prepare(&s)?;
    let mut kind = [0];
    read(&mut s, &mut kind)?;
    match kind {
        [b'C'] => loop {
            // length, seed → hash, the content reversed
            let mut head = [0; 12];
            match s.read(&mut head[..1]) {
                Ok(0) => return Ok(()),
                Ok(_) => read(&mut s, &mut head[1..])?,
                Err(e) => return Err(e.to_string()),
            }
            let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let mut body = vec![0; len];
            read(&mut s, &mut body)?;
            let mut back = hash(&body).to_be_bytes().to_vec();
            body.reverse();
            back.extend(body);
            write(&mut s, &back)?;
        },
        [b'P'] => {
            let mut seed = [0; 8];
            read(&mut s, &mut seed)?;
            let mut expected = Content::new(u64::from_be_bytes(seed));
            let (mut got, mut want) = (vec![0; 65_536], vec![0; 65_536]);
            let mut total: u64 = 0;
            loop {
                let n = s.read(&mut got).map_err(|e| e.to_string())?;
                if n == 0 {
                    return write(&mut s, format!("ok {total}\n").as_bytes());
                }
                expected.fill(&mut want[..n]);
                if got[..n] != want[..n] {
                    return write(&mut s, format!("damaged after {total}\n").as_bytes());
                }
                total += n as u64;
            }
        }
        other => Err(format!("unknown kind of connection {other:?}")),
    }
}

/// One connection, one message of each size there and back. The message leaves in one write, so it meets the switch as
/// large as the sender's offloads make it.
pub fn check(to: &str, max: usize, stride: usize) -> Outcome {
    let mut s = connect(to)?;
    write(&mut s, b"C")?;
    let all = sizes(1, max, stride);
    for &len in &all {
        let seed = len as u64 ^ 0x5eed;
        let body = bytes(seed, len);
        let mut message = (len as u32).to_be_bytes().to_vec();
        message.extend(seed.to_be_bytes());
        message.extend(&body);
        write(&mut s, &message)?;
        let mut back = vec![0; 8 + len];
        read(&mut s, &mut back).map_err(|e| format!("{len} bytes: {e}"))?;
        let (their_hash, echo) = back.split_at(8);
        if their_hash != hash(&body).to_be_bytes() {
            return Err(format!("{len} bytes: damaged on the way there"));
        }
        if !echo.iter().rev().eq(body.iter()) {
            return Err(format!("{len} bytes: damaged on the way back"));
        }
    }
    Ok(format!("ok {} sizes", all.len()))
}

/// Sends known content for some seconds, then asks the server what it got: `ok BYTES`.
pub fn push(to: &str, seconds: u64) -> Outcome {
    let mut s = connect(to)?;
    let seed: u64 = std::process::id().into();
    write(&mut s, b"P")?;
    write(&mut s, &seed.to_be_bytes())?;
    let mut content = Content::new(seed);
    let mut buf = vec![0; 65_536];
    let (end, mut sent) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end {
        content.fill(&mut buf);
        write(&mut s, &buf)?;
        sent += buf.len() as u64;
    }
    s.shutdown(Shutdown::Write).map_err(|e| e.to_string())?;
    let mut verdict = String::new();
    s.read_to_string(&mut verdict).map_err(|e| format!("no verdict: {e}"))?;
    match verdict.trim() {
        v if v == format!("ok {sent}") => Ok(v.into()),
        v => Err(format!("sent {sent} bytes, the server says {v:?}")),
    }
}

/// Requests of so many bytes, each sent when the answer to the last has come, which is 8 longer, for some seconds: `COUNT in MICROSECONDS us`.
pub fn transactions(to: &str, seconds: u64, bytes: usize) -> Outcome {
    let mut s = connect(to)?;
    write(&mut s, b"C")?;
    let body = vec![b'?'; bytes];
    let request = [&(bytes as u32).to_be_bytes()[..], &[0; 8], &body].concat();
    let expected = [&hash(&body).to_be_bytes()[..], &body].concat();
    let mut answer = vec![0; expected.len()];
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        write(&mut s, &request)?;
        read(&mut s, &mut answer)?;
        if answer != expected {
            return Err(format!("transaction {count}: damaged"));
        }
        count += 1;
    }
    Ok(format!("{count} in {} us", start.elapsed().as_micros()))
}

fn connect(to: &str) -> Result<TcpStream, String> {
    let s = TcpStream::connect(to).map_err(|e| format!("{to}: {e}"))?;
    prepare(&s)?;
    Ok(s)
}

fn prepare(s: &TcpStream) -> Result<(), String> {
    s.set_read_timeout(Some(PATIENCE)).and_then(|()| s.set_write_timeout(Some(PATIENCE))).map_err(|e| e.to_string())?;
    s.set_nodelay(true).map_err(|e| e.to_string())
}

fn read(s: &mut TcpStream, buf: &mut [u8]) -> Result<(), String> {
    s.read_exact(buf).map_err(|e| format!("read: {e}"))
}

fn write(s: &mut TcpStream, buf: &[u8]) -> Result<(), String> {
    s.write_all(buf).map_err(|e| format!("write: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_streams_come_through() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for s in listener.incoming().flatten() {
                std::thread::spawn(move || connection(s));
            }
        });
        assert!(check(&to, 3000, 500).unwrap().starts_with("ok "));
        assert!(push(&to, 0).unwrap().starts_with("ok "));
        assert!(transactions(&to, 0, 1).unwrap().starts_with("0 in "));
        assert!(!transactions(&to, 1, 4096).unwrap().starts_with("0 in "));
    }
}
