//! Sequences of packets between two hosts, as a seed has it: mostly what stations do, and some of what they should not.

use lasthop_conntrack::testutil::{Ends, Seg, seg};

/// A packet, or the fragments of one.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Host 1 or host 2.
    pub from: usize,
    pub frames: Vec<Vec<u8>>,
    pub what: String,
}

/// What a sequence is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
    Icmp,
    Fragments,
    Sctp,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Tcp, Self::Udp, Self::Icmp, Self::Fragments, Self::Sctp];
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True in `n` of 100.
    fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The packets of a seed. Ports and identifiers are the seed's own, so that the kernel, which forgets nothing meanwhile, knows nothing of them.
pub fn sequence(kind: Kind, seed: u64) -> Vec<Sent> {
    let mut random = Random(seed.wrapping_mul(5) + kind as u64);
    let v6 = random.percent(30);
    let ports = [1024 + (seed % 60_000) as u16, 1 + (seed / 60_000 % 60_000) as u16 + 7 * kind as u16];
    let ends = Ends { v6, hosts: [1, 2], ports };
    match kind {
        Kind::Tcp => tcp(ends, &mut random),
        Kind::Udp => udp(ends, &mut random),
        Kind::Icmp => icmp(ends, &mut random),
        Kind::Fragments => fragments(ends, &mut random),
        Kind::Sctp => sctp(ends, &mut random),
    }
}

fn from(ends: Ends, host: usize) -> Ends {
    if host == 1 { ends } else { ends.back() }
}

/// A side of a TCP connection.
#[derive(Clone, Copy)]
struct Side {
    next: u32,
    /// What it has heard of the other one.
    heard: u32,
    syn: bool,
}

fn tcp(ends: Ends, random: &mut Random) -> Vec<Sent> {
    let start = |random: &mut Random| Side { next: random.next() as u32, heard: 0, syn: false };
    let mut sides = [start(random), start(random)];
    let (mut out, mut earlier): (Vec<Sent>, Vec<(usize, Seg)>) = (Vec::new(), Vec::new());
    let scaled = random.percent(40);
    // Some connections are met in their middle.
    if random.percent(15) {
        let [a, b] = sides;
        sides = [Side { heard: b.next, syn: true, ..a }, Side { heard: a.next, syn: true, ..b }];
    }
    for _ in 0..3 + random.below(14) {
        let host = 1 + random.below(2) as usize;
        let (host, segment) = match random.below(100) {
            0..12 if !earlier.is_empty() => {
                random.pick(&(0..earlier.len()).collect::<Vec<_>>()).pipe(|n| earlier[n].clone())
            }
            12..24 => (host, odd(&sides[host - 1], random)),
            _ => in_order(&mut sides, host, scaled, random),
        };
        earlier.push((host, segment.clone()));
        let what = format!(
            "{} seq {} ack {} len {} win {} options {:?}",
            segment.flags, segment.seq, segment.ack, segment.len, segment.win, segment.options
        );
        out.push(Sent { from: host, frames: vec![from(ends, host).tcp(&segment)], what });
    }
    out
}

/// What comes next if everybody keeps to the rules.
fn in_order(sides: &mut [Side; 2], host: usize, scaled: bool, random: &mut Random) -> (usize, Seg) {
    // A side that has heard nothing does not speak unless it opens.
    let [a, b] = *sides;
    let host = match (a.syn, b.syn) {
        (false, false) => 1,
        (true, false) if random.percent(90) => 2,
        (false, true) if random.percent(90) => 1,
        (true, true) if a.heard == 0 => 1,
        _ => host,
    };
    let (me, other) = (sides[host - 1], sides[2 - host]);
    let options = if scaled { vec![3, 3, 7, 1] } else { vec![2, 4, 5, 180] };
    let win = 1000 + random.below(20_000) as u16;
    let heard = |other: &Side| if other.syn { other.next } else { 0 };
    let segment = match (me.syn, other.syn) {
        (false, false) => Seg { win, options, ..seg("S", me.next, 0, 0) },
        // Both at once, now and then.
        (false, true) if random.percent(8) => Seg { win, options, ..seg("S", me.next, 0, 0) },
        (false, true) => Seg { win, options, ..seg("SA", me.next, other.next, 0) },
        (true, false) => Seg { win, options, ..seg("S", me.next.wrapping_sub(1), 0, 0) },
        (true, true) => match random.below(20) {
            0 => Seg { win, ..seg("FA", me.next, heard(&other), 0) },
            1 => Seg { win, ..seg("R", me.next, 0, 0) },
            2 => Seg { win, ..seg("RA", me.next, heard(&other), 0) },
            3..8 => Seg { win, ..seg("PA", me.next, heard(&other), 1 + random.below(900) as usize) },
            _ => Seg { win, ..seg("A", me.next, heard(&other), random.pick(&[0, 0, 1, 500])) },
        },
    };
    let me = &mut sides[host - 1];
    if !(me.syn && segment.flags == "S") {
        let one = u32::from(segment.flags.contains(['S', 'F']));
        me.next = me.next.wrapping_add(segment.len as u32 + one);
    }
    me.syn = true;
    me.heard = heard(&other);
    (host, segment)
}

/// What nobody should send, or only somebody who lost count.
fn odd(me: &Side, random: &mut Random) -> Seg {
    let off = random.pick(&[
        1u32,
        1000,
        40_000,
        70_000,
        1 << 20,
        1 << 30,
        u32::MAX,
        u32::MAX - 1000,
        u32::MAX - 70_000,
        u32::MAX - (1 << 30),
    ]);
    let (seq, ack) = (
        me.next.wrapping_add(if random.percent(60) { off } else { 0 }),
        me.heard.wrapping_add(if random.percent(40) { off } else { 0 }),
    );
    let flags = random.pick(&["A", "PA", "R", "RA", "FA", "S", "SA", "SF", "", "F", "SR", "FRA", "PAU", "U"]);
    let ack = if flags.contains('A') { ack } else { 0 };
    Seg { win: 1000 + random.below(9000) as u16, ..seg(flags, seq, ack, random.pick(&[0, 0, 1, 700])) }
}

trait Pipe: Sized {
    fn pipe<T>(self, f: impl FnOnce(Self) -> T) -> T {
        f(self)
    }
}

impl Pipe for usize {}

fn udp(ends: Ends, random: &mut Random) -> Vec<Sent> {
    let mut out: Vec<Sent> = Vec::new();
    for _ in 0..2 + random.below(8) {
        let host = 1 + random.below(2) as usize;
        let e = from(ends, host);
        let (frame, what) = match random.below(10) {
            // About a packet that the other one has sent, or has not.
            0..3 => {
                let about = Ends {
                    ports: if random.percent(20) { [e.ports[1], e.ports[0] ^ 0x4000] } else { e.back().ports },
                    ..e.back()
                };
                (e.error(&about.udp(20)), format!("error about {:?}", about.ports))
            }
            // From the middle of the network.
            3 => (Ends { hosts: [9, e.hosts[1]], ..e }.error(&e.back().udp(20)), "error of a router".to_owned()),
            4 => (e.error(&e.udp(20)), "error about its own packet".to_owned()),
            5 => (Ends { ports: [e.ports[0] ^ 0x2000, e.ports[1]], ..e }.udp(8), "from another port".to_owned()),
            _ => (e.udp(random.below(100) as usize), "datagram".to_owned()),
        };
        out.push(Sent { from: host, frames: vec![frame], what });
    }
    out
}

fn icmp(ends: Ends, random: &mut Random) -> Vec<Sent> {
    let mut out = Vec::new();
    for _ in 0..2 + random.below(8) {
        let host = 1 + random.below(2) as usize;
        let e = from(ends, host);
        let id = ends.ports[0] ^ random.pick(&[0, 0, 0, 0x4000]);
        let content = [&id.to_be_bytes()[..], &[0, 1], &[0; 16]].concat();
        let (frame, what) = match random.below(10) {
            0..4 => (e.echo(false, id), format!("echo {id}")),
            4..7 => (e.echo(true, id), format!("answer {id}")),
            7 => (e.error(&e.back().echo(false, id)), format!("error about echo {id}")),
            8 => {
                let kind = if e.v6 {
                    random.pick(&[128, 129, 135, 136, 143, 144, 139, 140, 200])
                } else {
                    random.pick(&[13, 14, 15, 17, 18, 10, 9, 40, 19])
                };
                (e.icmp(kind, 0, &content), format!("type {kind}"))
            }
            _ => {
                let kind = if e.v6 { random.pick(&[1, 2, 3, 4]) } else { random.pick(&[3, 4, 11, 12]) };
                let about = e.back().udp(4);
                (e.icmp(kind, 0, &[&[0; 4], &about[14..]].concat()), format!("type {kind} about a datagram"))
            }
        };
        out.push(Sent { from: host, frames: vec![frame], what });
    }
    out
}

fn fragments(ends: Ends, random: &mut Random) -> Vec<Sent> {
    let ends = Ends { v6: false, ..ends };
    let mut out = Vec::new();
    for n in 0..2 + random.below(4) {
        let host = 1 + random.below(2) as usize;
        let whole = from(ends, host).udp(1000 + random.below(400) as usize);
        // The later one begins at a multiple of eight bytes.
        let cut = 8 * (10 + random.below(100) as usize);
        let part = |payload: &[u8], offset: usize, more: bool| {
            let mut frame = whole[..34].to_vec();
            frame[16..18].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            frame[18..20].copy_from_slice(&(n as u16 + 1).to_be_bytes());
            frame[20..22].copy_from_slice(&((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes());
            frame[24..26].fill(0);
            let checksum = lasthop_frame::sum::finish(lasthop_frame::sum::sum(&frame[14..34])).to_be_bytes();
            frame[24..26].copy_from_slice(&checksum);
            [&frame, payload].concat()
        };
        let payload = &whole[34..];
        let frames = vec![part(&payload[..cut], 0, true), part(&payload[cut..], cut, false)];
        out.push(Sent { from: host, frames, what: format!("fragments at {cut}") });
        if random.percent(40) {
            out.push(Sent { from: host, frames: vec![from(ends, host).udp(9)], what: "datagram".to_owned() });
        }
    }
    out
}

fn sctp(ends: Ends, random: &mut Random) -> Vec<Sent> {
    let tags = [random.next() as u32 | 1, random.next() as u32 | 1];
    let (mut out, mut step) = (Vec::new(), 0);
    for _ in 0..3 + random.below(12) {
        let (mut host, mut kind) = match step {
            0 => (1, 1),
            1 => (2, 2),
            2 => (1, 10),
            3 => (2, 11),
            n => match random.below(12) {
                0 if n > 5 => (1, 7),
                1 => (1 + random.below(2) as usize, 6),
                2 => (1 + random.below(2) as usize, 4),
                3 => (1 + random.below(2) as usize, 5),
                4 => (2, 8),
                5 => (1, 14),
                _ => (1 + random.below(2) as usize, random.pick(&[0u8, 3])),
            },
        };
        if random.percent(12) {
            (host, kind) = (1 + random.below(2) as usize, random.pick(&[0u8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14]));
        } else {
            step += 1;
        }
        // The verification tag is the receiver's; an INIT has none.
        let mut tag = if kind == 1 { 0 } else { tags[2 - host] };
        if random.percent(6) {
            tag = tag.wrapping_add(7);
        }
        let mut packet = ends.ports.map(u16::to_be_bytes).concat();
        if host == 2 {
            packet.rotate_left(2);
        }
        packet.extend(tag.to_be_bytes());
        packet.extend([0; 4]);
        let body: Vec<u8> = match kind {
            1 | 2 => [&tags[host - 1].to_be_bytes()[..], &[0, 1, 0, 0, 0, 5, 0, 5, 0, 0, 0, 1]].concat(),
            0 => vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
            3 => vec![0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0],
            4 | 5 => vec![0, 1, 0, 8, 1, 2, 3, 4],
            7 => vec![0, 0, 0, 1],
            10 => vec![1; 8],
            _ => Vec::new(),
        };
        packet.extend([kind, if kind == 0 { 3 } else { 0 }]);
        packet.extend((4 + body.len() as u16).to_be_bytes());
        packet.extend(body);
        let checksum = crc32c(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&checksum);
        let frame = from(ends, host).ip(132).payload(packet).build();
        out.push(Sent { from: host, frames: vec![frame], what: format!("chunk {kind} tag {tag:#x}") });
    }
    out
}

/// RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 })
    };
    !bytes.iter().fold(u32::MAX, step)
}
