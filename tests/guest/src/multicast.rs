//! One datagram to a multicast or broadcast address, with known content.

use crate::Outcome;
use crate::content::bytes;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Waits for a datagram with the expected content; prints who sent it.
pub fn receive(addr: &str, port: u16, len: usize, seconds: u64) -> Outcome {
    let addr: IpAddr = addr.parse().map_err(|_| format!("{addr:?} is not an address"))?;
    let any = if addr.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = UdpSocket::bind((any, port)).map_err(|e| e.to_string())?;
    match addr {
        IpAddr::V4(a) if a.is_multicast() => socket.join_multicast_v4(&a, &Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(a) => socket.join_multicast_v6(&a, 0),
        IpAddr::V4(_) => Ok(()),
    }
    .map_err(|e| format!("joining {addr}: {e}"))?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let (want, mut buf) = (bytes(len as u64, len), vec![0; 65_536]);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).map_err(|e| e.to_string())?;
        if let Ok((n, from)) = socket.recv_from(&mut buf)
            && buf[..n] == want[..]
        {
            return Ok(format!("ok from {}", from.ip()));
        }
    }
    Err(format!("nothing for {addr} in {seconds} s"))
}

/// Sends the datagram `count` times, 100 ms apart. IPv6 group addresses need the number of the interface.
pub fn send(addr: &str, port: u16, len: usize, count: u32, ifindex: u32) -> Outcome {
    let addr: IpAddr = addr.parse().map_err(|_| format!("{addr:?} is not an address"))?;
    let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).map_err(|e| e.to_string())?;
    socket.set_broadcast(addr.is_ipv4()).map_err(|e| e.to_string())?;
    let mut to = SocketAddr::from((addr, port));
    if let SocketAddr::V6(v6) = &mut to {
        v6.set_scope_id(ifindex);
    }
    for _ in 0..count {
        socket.send_to(&bytes(len as u64, len), to).map_err(|e| format!("{to}: {e}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(format!("ok {count} sent"))
}
