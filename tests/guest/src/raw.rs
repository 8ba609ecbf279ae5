//! Numbered Ethernet frames over a packet socket: what gets lost, comes twice, overtakes or is damaged is counted.

use crate::Outcome;
use crate::content::bytes;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Destination, source, type, then our number.
const HEAD: usize = 14 + 8;

/// A hexadecimal EtherType such as `88b5`.
pub fn ethertype(word: &str) -> Result<[u8; 2], String> {
    u16::from_str_radix(word, 16).map(u16::to_be_bytes).map_err(|_| format!("{word:?} is not a hexadecimal EtherType"))
}

/// Where frames go and what they call themselves.
pub struct Flood {
    dst: [u8; 6],
    ethertype: [u8; 2],
}

impl Flood {
    /// From a MAC address and an EtherType.
    pub fn parse(dst: &str, kind: &str) -> Result<Self, String> {
        let parts: Vec<u8> = dst.split(':').filter_map(|p| u8::from_str_radix(p, 16).ok()).collect();
        let dst = parts.try_into().map_err(|_| format!("{dst:?} is not a MAC address"))?;
        Ok(Self { dst, ethertype: ethertype(kind)? })
    }

    /// Sends `count` frames, their lengths walking through `sizes` (bytes, with the Ethernet header), `pause_us` apart.
    pub fn send(&self, iface: &str, count: u64, sizes: RangeInclusive<usize>, pause_us: u64) -> Outcome {
        let (socket, src) = open(iface)?;
        let span = sizes.end().saturating_sub(*sizes.start()) + 1;
        let start = Instant::now();
        let mut kept_waiting = 0u64;
        for number in 0..count {
            let len = (sizes.start() + number as usize * 7 % span).max(HEAD);
            let mut frame = Vec::with_capacity(len);
            frame.extend(self.dst);
            frame.extend(src);
            frame.extend(self.ethertype);
            frame.extend(number.to_be_bytes());
            frame.extend(bytes(number, len - HEAD));
            // A full device queue is the card's back-pressure, not a loss: the frame has not left yet.
            while let Err(e) = send(socket.as_raw_fd(), &frame, MsgFlags::empty()) {
                if e != nix::errno::Errno::ENOBUFS {
                    return Err(format!("frame {number} of {len} bytes: {e}"));
                }
                kept_waiting += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            if pause_us > 0 {
                let due = start + Duration::from_micros(pause_us * (number + 1));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        Ok(format!("ok {count} sent, {kept_waiting} waits"))
    }
}

/// Behind the last frame only those come that it has overtaken: so long without one is the end.
const OVERTAKEN: Duration = Duration::from_secs(1);

/// Receives until `count` different frames came, or none came for `idle` seconds, or for one behind the last; and says what was wrong:
/// `received R lost L repeated T reordered O damaged D gap G`. The gap is the longest silence between two frames, in milliseconds.
pub fn receive(iface: &str, kind: [u8; 2], count: u64, idle: u64) -> Outcome {
    let (socket, _) = open(iface)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(1, 0)).map_err(|e| e.to_string())?;
    // Bursts must not be lost here, where nobody counts them.
    setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).map_err(|e| e.to_string())?;
    let mut seen = vec![false; usize::try_from(count).map_err(|e| e.to_string())?];
    let (mut received, mut repeated, mut reordered, mut damaged, mut gap) = (0u64, 0u64, 0u64, 0u64, Duration::ZERO);
    let (mut next, mut last, mut buf) = (0, Instant::now(), vec![0; 65_600]);
    let idle = Duration::from_secs(idle);
    let patience = |next| if next < count { idle } else { idle.min(OVERTAKEN) };
    while received < count && last.elapsed() < patience(next) {
        let Ok(n) = recv(socket.as_raw_fd(), &mut buf, MsgFlags::empty()) else { continue };
        let frame = &buf[..n];
        if n < HEAD || frame[12..14] != kind {
            continue;
        }
        let number = frame[14..HEAD].iter().fold(0u64, |a, b| a << 8 | u64::from(*b));
        match seen.get_mut(number as usize) {
            Some(s) if frame[HEAD..] == bytes(number, n - HEAD)[..] => {
                if *s {
                    repeated += 1;
                    continue;
                }
                *s = true;
                reordered += u64::from(number < next);
                next = next.max(number + 1);
                if received > 0 {
                    gap = gap.max(last.elapsed());
                }
                last = Instant::now();
                received += 1;
            }
            _ => damaged += 1,
        }
    }
    let (lost, gap) = (count - received, gap.as_millis());
    Ok(format!("received {received} lost {lost} repeated {repeated} reordered {reordered} damaged {damaged} gap {gap}"))
}

/// A packet socket bound to the interface, and the interface's address.
fn open(iface: &str) -> Result<(OwnedFd, [u8; 6]), String> {
    let link: LinkAddr = getifaddrs()
        .map_err(|e| e.to_string())?
        .filter(|i| i.interface_name == iface)
        .find_map(|i| i.address.and_then(|a| a.as_link_addr().copied()))
        .ok_or_else(|| format!("no interface {iface}"))?;
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .map_err(|e| format!("packet socket: {e}"))?;
    bind(fd.as_raw_fd(), &link).map_err(|e| format!("{iface}: {e}"))?;
    Ok((fd, link.addr().ok_or_else(|| format!("{iface} has no MAC address"))?))
}
