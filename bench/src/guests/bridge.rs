//! The kernel's bridge behind nftables, and frames that go round through it.
//!
//! With more ports than two each pair of them has frames of its own; with one frame each, its rounds say how long there and back takes.
//!
//! The load generator's guests cannot be plugged into a bridge. In their place the far ends of two veth pairs send every frame back
//! as it comes, its addresses and ports swapped, by an XDP program (`XDP_TX`). Nobody makes or takes frames, so the
//! bridge sets the pace, and all of it happens on the switch's CPU:
//!
//! ```text
//!  q0, XDP_TX ═ p0 ─ br0, nftables ─ p1 ═ q1, XDP_TX
//! ```
//!
//! A guest's rings and the copies into and out of its memory, without which no VM has a packet, are missing: what is measured is
//! the least that a bridge takes.

use crate::acl::List;
use crate::cpus::Cpus;
use crate::distance::Track;
use crate::guests::load::Yields;
use crate::round::Round;
use crate::switch::bridge_tap::filter;
use lasthop_harness::Netns;
use lasthop_harness::stop::{Outcome, failed, pause};
use lasthop_harness::xdp::{attach, pass};
use lasthop_sys::CpuList;
use lasthop_sys::bpf::assembler::{Assembler, Reg, Width};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{File, read_to_string};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Frames that go round between two ports: a veth's queue has 256 places.
const FRAMES: usize = 128;
/// Bytes of a datagram's payload in a frame of 64.
const PAYLOAD: [u8; 22] = [0; 22];
const BITS: f64 = 64.0 * 8.0;
const SETTLE: Duration = Duration::from_millis(300);

/// Both namespaces and what is attached in them. Dropping it ends the traffic.
struct Circle {
    site: Netns,
    far: Netns,
    ports: usize,
    _attached: Vec<OwnedFd>,
}

impl Circle {
    fn new(list: Option<&List>, ports: usize) -> Outcome<Self> {
        let (site, far) = (Netns::new(), Netns::new());
        site.ip("link add br0 type bridge");
        site.ip("link set br0 up");
        let mut attached = Vec::new();
        for i in 0..ports {
            site.ip(&format!("link add p{i} type veth peer name q{i} netns {}", far.name()));
            // Checksums are finished, as an XDP program hands on nothing but bytes.
            far.shell(&format!("ethtool -K q{i} tx off && ip link set q{i} address {}", mac(i)));
            attached.push(attach(&far, &format!("q{i}"), turn_round)?);
            // A veth takes what its peer's XDP program sends only while it has one itself.
            attached.push(attach(&site, &format!("p{i}"), pass)?);
            site.ip(&format!("link set p{i} master br0 up"));
            far.ip(&format!("link set q{i} up"));
            if ports > 2 {
                // A flooded frame would be turned round by every far end, and go on as many.
                site.shell(&format!(
                    "bridge link set dev p{i} learning off flood off mcast_flood off && bridge fdb add {} dev p{i} master static",
                    mac(i)
                ));
            }
        }
        if let Some(list) = list {
            filter(&site, list)?;
        }
        for pair in 0..ports / 2 {
            let ([one, other], near) = (addresses(pair), 2 * pair);
            far.ip(&format!("addr add {one} peer {other} dev q{near}"));
            far.ip(&format!("neigh add {other} lladdr {} dev q{near} nud permanent", mac(near + 1)));
        }
        Ok(Self { site, far, ports, _attached: attached })
    }

    /// Sends the frames that will go round, from the CPU on which they shall do so.
    fn inject(&self, cpu: usize, frames: usize) -> Outcome<()> {
        let place = File::open(format!("/run/netns/{}", self.far.name())).map_err(failed)?;
        let pairs = self.ports / 2;
        let send = move || -> std::io::Result<()> {
            [cpu].into_iter().collect::<CpuList>().bind_current_thread()?;
            move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network))?;
            (0..pairs).try_for_each(|pair| {
                let [one, other] = addresses(pair);
                let socket = UdpSocket::bind((one, 1024))?;
                (0..frames).try_for_each(|_| socket.send_to(&PAYLOAD, (other, 9)).map(drop))
            })
        };
        let sent = std::thread::spawn(send).join();
        sent.map_err(|_| failed("the thread that sends through a bridge panicked"))?.map_err(failed)
    }

    /// Frames that came to the bridge so far.
    fn count(&self) -> Outcome<f64> {
        let text = self.site.shell("cat /sys/class/net/p*/statistics/rx_packets");
        let counts: Option<Vec<u64>> = text.lines().map(|l| l.parse().ok()).collect();
        counts.map(|c| c.iter().sum::<u64>() as f64).ok_or_else(|| failed(format!("no counts of packets: {text:?}")))
    }
}

/// Those between which a pair's frames go; of the first pair those that a list lets pass.
fn addresses(pair: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|n| Ipv4Addr::new(10, 2 * pair as u8 + n, 0, 1))
}

/// The address of the far end of port `i`.
fn mac(i: usize) -> String {
    format!("02:4c:00:00:00:{:02x}", i + 1)
}

/// As the figures of a loop, between two ports.
pub fn measure(cpus: Cpus, list: Option<&List>, seconds: u64) -> Outcome<Round> {
    let ([rate, cpu_ns], trips) = circulate(cpus, list, 2, FRAMES, seconds)?;
    Ok(Round::new(speed(rate, cpu_ns), trips))
}

/// As the figures of what `yields`, between pairs of so many ports: as many as go, or one frame of each pair at a time.
pub fn pairs(cpus: Cpus, ports: usize, yields: Yields, seconds: u64) -> Outcome<Round> {
    let one = yields == Yields::Times;
    let ([rate, cpu_ns], trips) = circulate(cpus, None, ports, if one { 1 } else { FRAMES }, seconds)?;
    if !one {
        return Ok(Round::new(speed(rate, cpu_ns), trips));
    }
    // Twice through the bridge each; of single frames nothing is known.
    Ok(Round::new(vec![Some(rate / 2e3), None, None, None, Some(cpu_ns), Some(cpu_ns * rate / 1e7)], trips))
}

fn speed(rate: f64, cpu_ns: f64) -> Vec<Option<f64>> {
    [rate / 1e6, rate * BITS / 1e9, cpu_ns, cpu_ns].map(Some).to_vec()
}

/// Frames a second through the bridge, and nanoseconds of the CPU each.
fn circulate(
    cpus: Cpus,
    list: Option<&List>,
    ports: usize,
    frames: usize,
    seconds: u64,
) -> Outcome<([f64; 2], Vec<f64>)> {
    let circle = Circle::new(list, ports)?;
    circle.inject(cpus.switch, frames)?;
    pause(SETTLE)?;
    let track = Track::new(cpus, false);
    track.begin();
    let (start, before, spent_before) = (Instant::now(), circle.count()?, softirq_ns(cpus.switch)?);
    pause(Duration::from_secs(seconds))?;
    let (elapsed, after, spent_after) = (start.elapsed(), circle.count()?, softirq_ns(cpus.switch)?);
    let trips = track.end();
    let packets = after - before;
    if packets < 1.0 {
        return Err(failed("no packet came round"));
    }
    let cpu_ns = (spent_after - spent_before) / packets;
    let rate = packets / elapsed.as_secs_f64();
    Ok(([rate, cpu_ns], trips))
}

/// What a CPU has spent in soft interrupts so far, in which all of this happens (proc(5), /proc/stat: the seventh column, in
/// hundredths of a second). What other programs take of the CPU is not in it.
fn softirq_ns(cpu: usize) -> Outcome<f64> {
    let text = read_to_string("/proc/stat").map_err(failed)?;
    let name = format!("cpu{cpu}");
    let line = text.lines().find(|l| l.split_ascii_whitespace().next() == Some(&name));
    let ticks = line.and_then(|l| l.split_ascii_whitespace().nth(7)?.parse::<f64>().ok());
    ticks.map(|t| t * 1e7).ok_or_else(|| failed(format!("no soft interrupts of {name} in /proc/stat")))
}

/// `XDP_TX` of UDP over IPv4 with addresses and ports swapped, which no checksum minds; `XDP_DROP` of everything else.
fn turn_round(a: &mut Assembler) {
    const XDP_DROP: u64 = 1;
    const XDP_TX: u64 = 3;
    const FRAME: Reg = Reg(2);
    let drop = a.label();
    // `data` and `data_end` of `struct xdp_md`.
    a.load(Width::Word, FRAME, Reg(1), 0);
    a.load(Width::Word, Reg(3), Reg(1), 4);
    a.copy(Reg(4), FRAME);
    a.add_value(Reg(4), 42);
    a.jump_above(Reg(4), Reg(3), drop);
    // EtherType and IP protocol.
    a.load(Width::Half, Reg(3), FRAME, 12);
    a.jump_ne(Reg(3), i32::from(0x0800_u16.to_be()), drop);
    a.load(Width::Half, Reg(3), FRAME, 22);
    a.shift_right(Reg(3), 8);
    a.jump_ne(Reg(3), 17, drop);
    // Two bytes each: Ethernet addresses, IPv4 addresses, ports.
    for (first, second) in [(0, 6), (2, 8), (4, 10), (26, 30), (28, 32), (34, 36)] {
        a.load(Width::Half, Reg(3), FRAME, first);
        a.load(Width::Half, Reg(4), FRAME, second);
        a.store(Width::Half, FRAME, first, Reg(4));
        a.store(Width::Half, FRAME, second, Reg(3));
    }
    a.set(Reg(0), XDP_TX);
    a.exit_with_result();
    a.place(drop);
    a.set(Reg(0), XDP_DROP);
    a.exit_with_result();
}
