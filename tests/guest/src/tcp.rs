//! TCP with content checks. Kinds of connection, told apart by their first byte: `C`, messages that are checked and
//! come back; `P`, one long stream that is checked on the fly; `T`, requests of one length that come back as they are, for measurements.

use crate::Outcome;
use crate::content::{Content, bytes, hash, sizes};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// A peer that is silent this long is gone; longer than any recovery under test.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers all kinds of connection for ever.
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
        [b'T'] => {
            let mut length = [0; 4];
            read(&mut s, &mut length)?;
            answer(&mut s, &mut vec![0; u32::from_be_bytes(length) as usize])
        }
        other => Err(format!("unknown kind of connection {other:?}")),
    }
}

/// Sends each request back once all of it is there, until there are no more. The server looks at no byte of it: what a transaction takes is the
/// network's time, and not that of a guest's slow processor.
fn answer(s: &mut TcpStream, request: &mut [u8]) -> Result<(), String> {
    loop {
        match s.read(request) {
            Ok(0) => return Ok(()),
            Ok(n) => read(s, &mut request[n..])?,
            Err(e) => return Err(e.to_string()),
        }
        write(s, request)?;
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

/// Sends known content for some seconds, or until there is a file `enough`, then asks the server what it got: `ok BYTES`.
pub fn push(to: &str, seconds: u64, enough: Option<&str>) -> Outcome {
    let mut s = connect(to)?;
    let seed: u64 = std::process::id().into();
    write(&mut s, b"P")?;
    write(&mut s, &seed.to_be_bytes())?;
    let mut content = Content::new(seed);
    let mut buf = vec![0; 65_536];
    let (end, mut sent) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end && !enough.is_some_and(|file| Path::new(file).exists()) {
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

/// Requests of so many bytes, each sent when the answer to the last has come, which is the same bytes, for some seconds: `COUNT in MICROSECONDS us`.
pub fn transactions(to: &str, seconds: u64, bytes: usize) -> Outcome {
    let length = u32::try_from(bytes).ok().filter(|n| *n > 0);
    let length = length.ok_or("a transaction has at least a byte, and less than 4 GiB")?;
    let mut s = connect(to)?;
    write(&mut s, &[&b"T"[..], &length.to_be_bytes()].concat())?;
    let request = vec![b'?'; bytes];
    let mut answer = vec![0; bytes];
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        write(&mut s, &request)?;
        read(&mut s, &mut answer)?;
        if answer != request {
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

    /// The address of a server.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for s in listener.incoming().flatten() {
                std::thread::spawn(move || connection(s));
            }
        });
        to
    }

    #[test]
    fn messages_and_streams_come_through() {
        let to = server();
        assert!(check(&to, 3000, 500).unwrap().starts_with("ok "));
        assert!(push(&to, 0, None).unwrap().starts_with("ok "));
        // Long before its time is over.
        let started = Instant::now();
        assert_eq!(push(&to, 1000, Some("/")).unwrap(), "ok 0");
        assert!(started.elapsed() < PATIENCE);
        assert!(transactions(&to, 0, 1).unwrap().starts_with("0 in "));
        assert!(!transactions(&to, 1, 4096).unwrap().starts_with("0 in "));
    }

    #[test]
    fn a_transaction_is_so_many_bytes_and_the_same_again() {
        let mut s = connect(&server()).unwrap();
        write(&mut s, b"T\0\0\0\x03").unwrap();
        for request in [b"abc", b"def"] {
            write(&mut s, request).unwrap();
            let mut answer = [0; 3];
            read(&mut s, &mut answer).unwrap();
            assert_eq!(answer, *request);
        }
        // Nothing is sent before all of a request is there, and nothing behind the last answer.
        write(&mut s, b"g").unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = s.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }

    #[test]
    fn a_transaction_of_nothing_is_refused() {
        assert!(transactions(&server(), 0, 0).unwrap_err().contains("at least a byte"));
    }
}
