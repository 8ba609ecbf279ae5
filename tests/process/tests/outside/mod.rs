//! The world outside of lasthop: wires in network namespaces, and a guest that answers like a host.

use lasthop_tests_process::{Guest, Netns};
use lasthop_text::MacAddr;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Two ends that uplinks can be put on, and nothing else on it. Jumbo frames fit.
pub struct Wire {
    netns: Netns,
    /// `--uplink` of one end, …
    pub left: String,
    /// … and of the other. Both are named `net`: they are for two lasthops.
    pub right: String,
    bridged: bool,
}

impl Wire {
    /// A veth pair, for AF_PACKET.
    pub fn veth(queues: u16) -> Self {
        let netns = Netns::new();
        netns.ip("link add v0 mtu 9000 type veth peer name v1 mtu 9000");
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let end = |name: &str| format!("net={name},af_packet,queues={queues}");
        Self { netns, left: end("v0"), right: end("v1"), bridged: false }
    }

    /// A veth pair, for AF_XDP: no jumbo frames.
    pub fn xdp() -> Self {
        let netns = Netns::new();
        netns.ip("link add v0 type veth peer name v1");
        netns.ip("link set v0 up");
        netns.ip("link set v1 up");
        let end = |name: &str| format!("net={name},af_xdp");
        Self { netns, left: end("v0"), right: end("v1"), bridged: false }
    }

    /// Two TAP devices that the uplinks make, on a Linux bridge.
    pub fn taps(queues: u16) -> Self {
        let netns = Netns::new();
        netns.ip("link add br0 mtu 9000 type bridge mcast_snooping 0");
        netns.ip("link set br0 up");
        let end = |name: &str| format!("net={name},tap,queues={queues}");
        Self { netns, left: end("t0"), right: end("t1"), bridged: true }
    }

    /// The namespace of both ends.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Joins the ends; once both uplinks are up.
    pub fn join(&self) {
        if self.bridged {
            for tap in ["t0", "t1"] {
                self.netns.ip(&format!("link set {tap} mtu 9000 master br0 up"));
            }
            self.netns.shell(
                "for i in $(seq 100); do [ $(bridge link | grep -c forwarding) = 2 ] && exit; sleep 0.05; done; exit 1",
            );
        }
    }
}

/// A guest that answers ARP, ICMP echo, neighbour solicitation and ICMPv6 echo.
pub struct Host {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Host {
    /// Starts answering for these addresses.
    pub fn start(mut guest: Guest, ip4: [u8; 4], ip6: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_here, ip6) = (stop.clone(), ip6.parse::<Ipv6Addr>().unwrap().octets());
        let thread = std::thread::spawn(move || {
            let mut echoes = 0;
            while !stop_here.load(Ordering::Relaxed) {
                let Some((_, frame)) = guest.recv_within(Duration::from_millis(20)) else { continue };
                if let Some((answer, is_echo)) = answer(&frame, guest.mac, ip4, ip6) {
                    echoes += u32::from(is_echo);
                    guest.send(&answer);
                }
            }
            echoes
        });
        Self { stop, thread }
    }

    /// How many echo requests it has answered.
    pub fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn answer(frame: &[u8], mac: MacAddr, ip4: [u8; 4], ip6: [u8; 16]) -> Option<(Vec<u8>, bool)> {
    let mut out = frame.to_vec();
    out[..6].copy_from_slice(frame.get(6..12)?);
    out[6..12].copy_from_slice(&mac.0);
    match frame.get(12..14)? {
        // ARP request for us.
        [8, 6] if frame.get(20..22)? == [0, 1] && frame.get(38..42)? == ip4 => {
            out[21] = 2;
            let sender = frame.get(22..32)?.to_vec();
            out[22..28].copy_from_slice(&mac.0);
            out[28..32].copy_from_slice(&ip4);
            out[32..42].copy_from_slice(&sender);
            Some((out, false))
        }
        // ICMP echo request.
        [8, 0] if frame.get(30..34)? == ip4 && frame[23] == 1 && *frame.get(34)? == 8 => {
            let (src, dst) = (frame[26..30].to_vec(), frame[30..34].to_vec());
            out[26..30].copy_from_slice(&dst);
            out[30..34].copy_from_slice(&src);
            out[34] = 0;
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            out.truncate(end);
            out[36..38].fill(0);
            let sum = !lasthop_frame::sum::fold(lasthop_frame::sum::sum(&out[34..]));
            out[36..38].copy_from_slice(&sum.to_be_bytes());
            Some((out, true))
        }
        [0x86, 0xdd] if frame.get(20)? == &58 => {
            let is_echo = match frame.get(54)? {
                128 if frame.get(38..54)? == ip6 => {
                    out[54] = 129;
                    true
                }
                // Neighbour solicitation for us: advertise, solicited, with our address.
                135 if frame.get(62..78)? == ip6 => {
                    out.truncate(78);
                    out[54] = 136;
                    out[58..62].copy_from_slice(&[0x60, 0, 0, 0]);
                    out.extend([2, 1]);
                    out.extend(mac.0);
                    out[18..20].copy_from_slice(&32u16.to_be_bytes());
                    false
                }
                _ => return None,
            };
            let src = frame[22..38].to_vec();
            out[38..54].copy_from_slice(&src);
            out[22..38].copy_from_slice(&ip6);
            out[56..58].fill(0);
            let len = out.len() - 54;
            let pseudo = lasthop_frame::sum::pseudo_v6(ip6, src.try_into().unwrap(), 58, len as u32);
            let sum = !lasthop_frame::sum::fold(pseudo + lasthop_frame::sum::sum(&out[54..]));
            out[56..58].copy_from_slice(&sum.to_be_bytes());
            Some((out, is_echo))
        }
        _ => None,
    }
}
