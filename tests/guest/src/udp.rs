//! UDP with content checks: one datagram at a time, there and back. A datagram that does not come back fails the check:
//! one in flight at a time leaves no excuse for a loss. Except where its fragments are more than a driver without indirect
//! descriptors has receive buffers for (13 of them): then it takes a driver that comes back within the switch's patience, and an
//! emulated one on a busy host may not. Such a datagram is sent again, a few times in all.

use crate::Outcome;
use crate::content::{bytes, hash, sizes};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Bytes before the content: its seed and its hash.
const HEAD: usize = 16;
/// A datagram up to this fits the smallest ring that a driver makes.
const FITS: usize = 16_384;
/// So many larger ones may be lost in all.
const LOST: usize = 3;

/// Returns every datagram whose hash is right, content reversed; drops the others.
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
    let mut lost = 0;
    let mut before = Vec::new();
    for &len in &all {
        let datagram = datagram(len);
        while let Err(why) = exchange(&socket, to, &datagram, &before) {
            lost += 1;
            if len <= FITS || lost > LOST || why.kind() != ErrorKind::WouldBlock {
                return Err(format!("{len} bytes: {why} ({lost} lost)"));
            }
        }
        before = datagram;
    }
    Ok(format!("ok {} sizes, {lost} sent again", all.len()))
}

/// `len` bytes with their seed and hash, if there is room for these.
fn datagram(len: usize) -> Vec<u8> {
    let seed = len as u64 ^ 0xda7a;
    let mut datagram = bytes(seed, len);
    if len >= HEAD {
        let check = hash(&datagram[HEAD..]);
        datagram[..8].copy_from_slice(&seed.to_be_bytes());
        datagram[8..HEAD].copy_from_slice(&check.to_be_bytes());
    }
    datagram
}

/// `datagram` there and back. `before` may come once more: its answer may have been late. `WouldBlock` if nothing comes.
fn exchange(socket: &UdpSocket, to: SocketAddr, datagram: &[u8], before: &[u8]) -> std::io::Result<()> {
    let mut buf = vec![0; 65_536];
    socket.send_to(datagram, to)?;
    loop {
        let n = socket.recv(&mut buf)?;
        if n >= HEAD {
            buf[HEAD..n].reverse();
        }
        if buf[..n] == *datagram {
            return Ok(());
        }
        if buf[..n] != *before || before.is_empty() {
            return Err(std::io::Error::other(format!("damaged, {n} bytes came back")));
        }
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
