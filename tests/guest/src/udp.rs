//! UDP with content checks: one datagram at a time, there and back. A datagram that does not come back fails the check:
//! one in flight at a time leaves no excuse for a loss.

use crate::Outcome;
use crate::content::{bytes, hash, sizes};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Bytes before the content: its seed and its hash.
const HEAD: usize = 16;
/// What a datagram begins with that is answered late; the seconds follow. Shorter than [`HEAD`].
const LATE: &[u8] = b"late";

/// Returns every datagram whose hash is right, content reversed; drops the others. One that asks for it is answered late.
pub fn serve(port: u16) -> Outcome {
    let socket = UdpSocket::bind(("::", port)).map_err(|e| format!("port {port}: {e}"))?;
    serve_on(&socket)
}

fn serve_on(socket: &UdpSocket) -> Outcome {
    let mut buf = vec![0; 65_536];
    loop {
        let (n, from) = socket.recv_from(&mut buf).map_err(|e| e.to_string())?;
        if n >= HEAD && buf[8..HEAD] == hash(&buf[HEAD..n]).to_be_bytes() {
            buf[HEAD..n].reverse();
            let _ = socket.send_to(&buf[..n], from);
        } else if let Some(seconds) = buf[..n].strip_prefix(LATE).and_then(|rest| rest.first_chunk()) {
            let (socket, answer) = (socket.try_clone().map_err(|e| e.to_string())?, buf[..n].to_vec());
            let pause = Duration::from_secs(u64::from(u16::from_be_bytes(*seconds)));
            std::thread::spawn(move || {
                std::thread::sleep(pause);
                socket.send_to(&answer, from)
            });
        } else if n < HEAD {
            let _ = socket.send_to(&buf[..n], from);
        }
    }
}

/// One datagram of each size (the UDP payload, from 1 byte) there and back.
pub fn check(to: &str, max: usize, stride: usize) -> Outcome {
    let to: SocketAddr = to.parse().map_err(|_| format!("{to:?} is not ADDR:PORT"))?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).map_err(|e| e.to_string())?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| e.to_string())?;
    let all = sizes(1, max, stride);
    let mut buf = vec![0; 65_536];
    for &len in &all {
        let seed = len as u64 ^ 0xda7a;
        let mut datagram = bytes(seed, len);
        if len >= HEAD {
            let check = hash(&datagram[HEAD..]);
            datagram[..8].copy_from_slice(&seed.to_be_bytes());
            datagram[8..HEAD].copy_from_slice(&check.to_be_bytes());
        }
        socket.send_to(&datagram, to).map_err(|e| format!("{len} bytes: {e}"))?;
        let n = socket.recv(&mut buf).map_err(|e| format!("{len} bytes: nothing came back: {e}"))?;
        if len >= HEAD && n >= HEAD {
            buf[HEAD..n].reverse();
        }
        if buf[..n] != datagram[..] {
            return Err(format!("{len} bytes: damaged, {n} bytes came back"));
        }
    }
    Ok(format!("ok {} sizes", all.len()))
}

/// Asks the server for an answer `seconds` later, and waits for it for `wait` seconds in all.
pub fn late(to: &str, seconds: u16, wait: u64) -> Outcome {
    let to: SocketAddr = to.parse().map_err(|_| format!("{to:?} is not ADDR:PORT"))?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).map_err(|e| e.to_string())?;
    socket.set_read_timeout(Some(Duration::from_secs(wait))).map_err(|e| e.to_string())?;
    let asked = [LATE, &seconds.to_be_bytes()].concat();
    socket.send_to(&asked, to).map_err(|e| e.to_string())?;
    let mut buf = [0; HEAD];
    match socket.recv(&mut buf) {
        Ok(n) if buf[..n] == asked[..] => Ok("ok, answered".into()),
        Ok(n) => Err(format!("{n} bytes came that nobody asked for")),
        Err(e) => Err(format!("no answer: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap().to_string();
        std::thread::spawn(move || serve_on(&socket));
        assert!(check(&to, 5000, 500).unwrap().starts_with("ok "));
    }
}
