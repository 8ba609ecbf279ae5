//! The whole walk: three ports with guests on them, frames and chains of every kind, flows that come and go, in the middle of
//! bursts too, upcalls, receivers without buffers, ports that go and come. The counters' law holds after every step; frames that
//! ask for nothing arrive as they were sent, or as actions have edited them, each once, and only where a flow or an answer let them since
//! they were sent; packets that are cut up arrive once, whole or from their beginning on; and in the end every chain is back with its guest, unless the guest broke
//! its own ring.
//!
//! Input: the guests, then one operation after another.

use crate::{Input, frames};
use flows::{comes_as, outputs, spec};
use lasthop_flow::{Action, Flow};
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, Order, PATIENCE_MS, Port};
use lasthop_frame::testutil::Frame;
use lasthop_frame::testutil::edits::agree;
use lasthop_frame::{Depth, FlowKey, SNAPSHOT_LEN, VnetHdr};
use lasthop_types::PortId;
use lasthop_virtqueue::driver::{NetConfig, NetDriver, Piece, RingLayout};
use lasthop_virtqueue::{DESC_INDIRECT, DESC_NEXT};
use middle::Middle;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

mod flows;
mod middle;

const PORTS: usize = 3;
/// The clock of bursts is in nanoseconds.
const MS: u64 = 1_000_000;
/// Entries of every ring.
const SIZE: u16 = 8;
/// Operations in one input.
const MAX_OPS: usize = 120;
/// Bytes of a send buffer: the longest frame, more than it, and a header.
const BUFFER: u32 = 66_560;
/// The feature bits that a guest's driver may have for what it receives: checksums, TSO, ECN, UFO, USO.
const OFFLOADS: [u64; 4] = [0, 1 << 1, 1 << 1 | 1 << 7 | 1 << 8, 1 << 1 | 0xf << 7 | 3 << 54];

/// Where packets that are to be cut up go to: by their source ports they are known.
const CUT_PORT: u16 = 7777;

/// What was sent with the same bytes, asking for nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Plain {
    /// How often.
    sent: u32,
    /// How often it came to each port.
    came: [u32; PORTS],
    /// From which ports.
    from: [bool; PORTS],
    /// In which step first.
    since: usize,
}

struct Guest {
    driver: NetDriver,
    port: Arc<Port>,
    features: u64,
    /// Send buffers not with the device.
    spare: Vec<u32>,
    /// It wrote rubbish into its own ring: nothing is promised to it.
    hostile: bool,
    /// It sent a chain that breaks a ring.
    breaks: bool,
    received: u64,
}

struct World {
    datapath: Arc<Datapath>,
    forwarder: Forwarder,
    guests: Vec<Guest>,
    now_ms: u64,
    plain: HashMap<Vec<u8>, Plain>,
    /// How often frames came to a port that several others than themselves may have become.
    edited: HashMap<(usize, Vec<u8>), u32>,
    middle: Arc<Middle>,
    /// Every flow that there was, and in which step it was found dead.
    flows: Vec<(Arc<Flow>, Option<usize>)>,
    /// What control said of which packets.
    answers: Vec<(FlowKey, Vec<Action>)>,
    step: usize,
    /// Packets sent that are to be cut up.
    cuts: u16,
    /// Which parts of them came where: port, packet, TCP sequence number.
    parts: HashSet<(usize, u16, u32)>,
    /// A ring that packets come from was started anew in the middle: what waited in it may come twice.
    restarted: bool,
    /// Some frame asked for something.
    offloads: bool,
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let datapath = Arc::new(Datapath::new(20, PATIENCE_MS).expect("an eventfd"));
    let forwarder = Forwarder::new(datapath.clone(), CACHE_ENTRIES);
    let guests: Vec<_> = (0..PORTS).map(|n| Guest::new(&datapath, n, input.u8())).collect();
    let middle = Middle { datapath: Arc::downgrade(&datapath), changes: Mutex::default(), put: Mutex::default() };
    let middle = Arc::new(middle);
    guests.iter().for_each(|guest| guest.port.set_coalescing(middle.clone()));
    let mut world = World {
        datapath,
        forwarder,
        guests,
        now_ms: 1000,
        plain: HashMap::new(),
        edited: HashMap::new(),
        middle,
        flows: Vec::new(),
        answers: Vec::new(),
        step: 0,
        cuts: 0,
        parts: HashSet::new(),
        restarted: false,
        offloads: false,
    };
    let setup = input.u8();
    world.datapath.set_control_answers(setup & 1 != 0);
    for from in 0..PORTS as u32 {
        if setup >> (from + 1) & 1 != 0 {
            world.flow(from + 1, 0, setup >> 4);
        }
    }
    for _ in 0..MAX_OPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.look_at_flows();
        world.law();
    }
    world.end();
}

impl Guest {
    fn new(datapath: &Datapath, n: usize, bits: u8) -> Self {
        let config = NetConfig {
            size: SIZE,
            packed: bits & 1 != 0,
            event_idx: bits & 2 != 0,
            indirect: bits & 4 != 0,
            pieces: if bits & 4 != 0 { 3 } else { 1 },
            mergeable: bits & 8 != 0,
            rx_buffer: if bits & 16 != 0 { 70_000 } else { 600 },
            tx_buffer: BUFFER,
            ..NetConfig::default()
        };
        let driver = NetDriver::new(config).expect("a driver");
        let features = config.features() | OFFLOADS[usize::from(bits >> 6)];
        let port = Arc::new(Port::new(PortId(n as u32 + 1), format!("p{n}")));
        let guest = Self {
            driver,
            port,
            features,
            spare: (0..SIZE.into()).collect(),
            hostile: false,
            breaks: false,
            received: 0,
        };
        for queue in 0..2 {
            let base = guest.driver.queues()[queue].ring.base();
            // Receive buffers were shown when the driver was made.
            guest.start(queue, if queue == 0 && config.packed { 0x8000 } else { base });
        }
        guest.port.refresh();
        datapath.add_port(guest.port.clone());
        guest
    }

    fn start(&self, queue: usize, base: u32) {
        let layout: RingLayout = self.driver.queues()[queue].layout;
        let setup = layout.setup(base, self.features);
        self.port.queues[queue].start(&setup, self.driver.memory().clone()).expect("a ring that lies in memory");
        self.port.queues[queue].set_enabled(true);
    }

    /// Sends in a chain of any shape; true if it is one that keeps the rules.
    fn send(&mut self, vnet: &VnetHdr, frame: &[u8], input: &mut Input<'_>) -> bool {
        let Some(token) = self.spare.pop() else { return false };
        let (memory, queue) = (self.driver.memory().clone(), &mut self.driver.queues_mut()[1]);
        let at = queue.buffer(token);
        let bytes = [&vnet.to_bytes()[..], frame].concat();
        let len = bytes.len().min(BUFFER as usize);
        memory.slice(at, len).expect("the buffer").write(0, &bytes[..len]);
        let shape = input.u8();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut from = 0;
        for _ in 0..shape & 7 {
            let here = (u32::from(input.u8()) % 40).min(len as u32 - from);
            pieces.push((at + u64::from(from), here));
            from += here;
        }
        pieces.push((at + u64::from(from), len as u32 - from));
        let mut fair = true;
        match shape >> 3 {
            // Written by the device instead of read, in part or whole.
            1 => fair = false,
            2 => fair = false,
            // Out of memory: this breaks the ring.
            3 => {
                pieces.push((u64::from(input.u8()), 1));
                fair = false;
            }
            // Less than was written.
            4 => {
                pieces.truncate(1);
                fair = false;
            }
            // Hundreds of descriptors that hold nothing, and then the frame.
            5 if queue.layout.indirect.is_some() => {
                return self.send_behind_nothing(token, len, input) && len == bytes.len();
            }
            _ => {}
        }
        let split = if shape >> 3 == 1 {
            0
        } else if shape >> 3 == 2 {
            pieces.len() / 2
        } else {
            pieces.len()
        };
        let (readable, writable) = pieces.split_at(split);
        if queue.ring.add(readable, writable, token).is_err() {
            self.spare.push(token);
            return false;
        }
        queue.ring.publish();
        self.breaks |= shape >> 3 == 3;
        fair && len == bytes.len()
    }

    /// Sends what is in a buffer in a table of our own, behind up to a thousand empty descriptors; they may be anywhere in memory.
    fn send_behind_nothing(&mut self, token: u32, len: usize, input: &mut Input<'_>) -> bool {
        let (memory, queue) = (self.driver.memory().clone(), &mut self.driver.queues_mut()[1]);
        let packed = queue.layout.packed;
        let (at, empty) = (queue.buffer(token), 4 * u64::from(input.u8()));
        let table = (at + len as u64).next_multiple_of(16);
        let ends = u64::from(BUFFER) - (table - at);
        let empty = empty.min((ends / 16).saturating_sub(1));
        if ends < 16 || queue.ring.add(&[(table, 16 * (empty as u32 + 1))], &[], token).is_err() {
            self.spare.push(token);
            return false;
        }
        queue.ring.publish();
        let flags_at = if packed { 14 } else { 12 };
        let descriptor = |at: u64, addr: u64, len: u32, flags: u16, next: u16| {
            let place = memory.slice(at, 16).expect("the buffer");
            place.write(0, &addr.to_le_bytes());
            place.write(8, &len.to_le_bytes());
            place.write(flags_at, &flags.to_le_bytes());
            place.write(26 - flags_at, &next.to_le_bytes());
        };
        for n in 0..empty {
            descriptor(table + 16 * n, at + n, 0, DESC_NEXT, n as u16 + 1);
        }
        descriptor(table + 16 * empty, at, len as u32, 0, 0);
        // The driver has it as a buffer: it is the table that is meant.
        for n in 0..u64::from(SIZE) {
            let place = memory.slice(queue.layout.desc + 16 * n, 16).expect("the ring");
            if place.load_u64(0) == table {
                let flags = place.load_u16(flags_at) | DESC_INDIRECT;
                place.write(flags_at, &flags.to_le_bytes());
            }
        }
        true
    }

    /// Takes back the send buffers that the device is done with.
    fn collect(&mut self) {
        while !self.hostile {
            match self.driver.queues_mut()[1].ring.poll_used() {
                Ok(Some((token, len))) => {
                    assert_eq!(len, 0, "nothing is written to what is sent");
                    self.spare.push(token);
                }
                Ok(None) => return,
                Err(e) => panic!("the switch broke a ring: {e}"),
            }
        }
    }

    /// The next frame.
    fn receive(&mut self) -> Option<(VnetHdr, Vec<u8>)> {
        let mut frame = Vec::new();
        let header = self.driver.recv(0, &mut frame).expect("the switch keeps the rules")?;
        self.received += 1;
        Some((VnetHdr::parse(&header), frame))
    }
}

impl World {
    fn flow(&mut self, from: u32, mask: u8, to: u8) {
        let flow = self.datapath.flows().insert(spec(from, mask, to), self.now_ms).expect("few masks");
        self.flows.push((flow, None));
    }

    /// What control says of a packet that waits, carried out at once.
    fn answer(&mut self, port: &Arc<Port>, id: u32, actions: &[Action]) {
        let mut order = Order::packet(port, id, actions.to_vec());
        while order.result().is_none() {
            self.forwarder.carry_out(&mut order, true);
        }
    }

    /// Notes which flows are gone, and which came in the middle of a burst.
    fn look_at_flows(&mut self) {
        self.flows.extend(self.middle.put.lock().expect("one thread").drain(..).map(|flow| (flow, None)));
        for (flow, died) in &mut self.flows {
            if flow.is_dead() && died.is_none() {
                *died = Some(self.step);
            }
        }
        self.step += 1;
    }

    fn note_sent(&mut self, n: usize, frame: Vec<u8>) {
        let plain = self.plain.entry(frame).or_insert(Plain { since: self.step, ..Plain::default() });
        plain.sent += 1;
        plain.from[n] = true;
    }

    /// Whether a flow that there has been since the bytes `sent` first were, or an answer, lets them go to a port as `frame`.
    fn may_go(&self, sent: &[u8], plain: &Plain, frame: &[u8], n: usize) -> bool {
        (0..PORTS).filter(|from| plain.from[*from]).any(|from| {
            let header = &sent[..sent.len().min(SNAPSHOT_LEN)];
            let mut key = FlowKey { in_port: from as u32 + 1, ..FlowKey::default() };
            lasthop_frame::extract(&mut key, header, sent.len(), Depth::Full);
            let lived = |died: &Option<usize>| died.is_none_or(|step| step >= plain.since);
            self.flows.iter().any(|(flow, died)| {
                lived(died) && flow.matches(&key) && comes_as(sent, &flow.actions, n).any(|f| agree(&f, frame))
            }) || self
                .answers
                .iter()
                .any(|(upcall, actions)| *upcall == key && comes_as(sent, actions, n).any(|f| agree(&f, frame)))
        })
    }

    /// Eight packets that look alike but for where they go: the first ones to one station, the others to a second, each to
    /// one of two ports.
    fn alike(&mut self, n: usize, input: &mut Input<'_>) {
        let (stations, ports, first) = (input.u8(), input.u8(), input.below(8));
        for i in 0..SIZE {
            let station = if usize::from(i) < first { stations & 3 } else { stations >> 2 & 3 };
            let frame = Frame::new(9, station).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
            let frame = frame.udp(5, 6 + u16::from(ports >> i & 1)).payload([i as u8; 60]).build();
            if self.guests[n].send(&VnetHdr::default(), &frame, &mut Input::new(&[])) {
                self.note_sent(n, frame);
            }
        }
    }

    /// A packet to be cut up, which can be told from all others.
    fn send_uncut(&mut self, n: usize, input: &mut Input<'_>) {
        let (len, size) = (usize::from(input.u16()) % 6000 + 1, 40 + u16::from(input.u8()) * 8);
        let frame = Frame::new(9, input.u8() & 3).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(self.cuts, CUT_PORT);
        let frame = frame.tcp_fields(0x10, 0, &[]).payload(vec![6; len]).partial_checksum();
        let vnet = frame.vnet(VnetHdr::GSO_TCPV4, size);
        if self.guests[n].send(&vnet, &frame.build(), &mut Input::new(&[])) {
            self.cuts += 1;
        }
        self.offloads = true;
    }

    /// Part of a packet that was to be cut up: it has not been here before.
    fn check_part(&mut self, n: usize, frame: &[u8]) {
        let word = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        if word(12) != Some(0x800)
            || frame.get(23) != Some(&6)
            || word(36) != Some(CUT_PORT)
            || frame.get(11) != Some(&9)
        {
            return;
        }
        let (Some(packet), Some(high), Some(low)) = (word(34), word(38), word(40)) else { return };
        if self.restarted || self.guests.iter().any(|g| g.hostile) {
            return;
        }
        let sequence = u32::from(high) << 16 | u32::from(low);
        assert!(self.parts.insert((n, packet, sequence)), "byte {sequence} of packet {packet} came twice to {n}");
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.below(28);
        let n = input.below(PORTS);
        let guest = &mut self.guests[n];
        let port = guest.port.clone();
        match op {
            0..=6 => {
                let (vnet, frame) = frames::frame(input);
                guest.collect();
                let fair = guest.send(&vnet, &frame, input);
                self.offloads |= vnet.flags != 0 || vnet.gso_type != 0 || !fair;
                self.note_sent(n, frame);
            }
            7..=10 => {
                let outcome = self.forwarder.carry(&port, 1, self.now_ms * MS);
                assert!(outcome.packets <= SIZE.into());
            }
            11 | 12 => {
                for _ in 0..1 + input.below(20) {
                    let Some((vnet, frame)) = self.guests[n].receive() else { break };
                    self.check(n, &vnet, &frame);
                }
            }
            13 => {
                let (mask, to) = (input.u8(), input.u8());
                self.flow(n as u32 + 1, mask, to);
            }
            14 => {
                self.datapath.flows().remove_if(|f| f.key.in_port == port.id.0);
            }
            15 | 16 => {
                for _ in 0..1 + input.below(8) {
                    let bits = input.u8();
                    let Some(upcall) = port.upcalls.report() else { break };
                    assert!(upcall.header.len() <= upcall.frame_len);
                    if let Some(user) = upcall.copy {
                        assert!((5..8).contains(&user) && upcall.key.in_port == port.id.0);
                        continue;
                    }
                    let how = input.u8();
                    if how == 0xff {
                        port.upcalls.report_again();
                    } else {
                        let to = outputs(bits, how);
                        self.answers.push((upcall.key, to.clone()));
                        self.answer(&port, upcall.id, &to);
                        self.answer(&port, upcall.id, &to);
                    }
                }
            }
            17 => {
                self.now_ms += u64::from(input.u8());
                self.forwarder.expire(&port, self.now_ms.saturating_sub(100));
            }
            18 => {
                // Stopped and started where it stood, or left stopped, or disabled.
                let (queue, how) = (input.below(2), input.below(4));
                match how {
                    0 => port.queues[queue].set_enabled(false),
                    1 => port.queues[queue].set_enabled(true),
                    _ => {
                        self.restarted |= queue == 1;
                        let stood = port.queues[queue].stop();
                        if let Some(base) = stood {
                            guest.start(queue, base);
                        }
                    }
                }
                port.refresh();
            }
            19 => {
                port.set_mtu(u16::from(input.u8()) * 20);
            }
            20 => {
                if input.flag() {
                    self.datapath.remove_port(port.id);
                } else {
                    self.datapath.add_port(port);
                }
            }
            21 => {
                let (_, frame) = frames::frame(input);
                if frame.len() <= 4096 {
                    self.forwarder.inject(&port, &frame, self.now_ms);
                    self.note_sent(n, frame);
                }
            }
            22 => {
                guest.hostile = true;
                let queue = &guest.driver.queues()[1];
                let at = queue.layout.desc + u64::from(input.u16()) % RingLayout::bytes(SIZE, queue.layout.packed);
                let len = 1 + input.below(16);
                guest.driver.memory().slice(at, len).expect("the ring").write(0, input.bytes(len));
                self.offloads = true;
            }
            23 | 24 => {
                guest.collect();
                self.alike(n, input);
            }
            25 => {
                guest.collect();
                self.send_uncut(n, input);
            }
            26 => {
                let (kind, mask, to) = (input.u8(), input.u8(), input.u8());
                let from = n as u32 + 1;
                let change = if kind & 3 == 0 { Err(from) } else { Ok(spec(from, mask, to)) };
                self.middle.changes.lock().expect("one thread").push_back(change);
            }
            _ => {
                self.datapath.set_meter(1, (n == 1).then_some([0, 100, 0]));
                self.forwarder.disable_notifications(&port, 1, n == 0, || true);
                self.forwarder.rearm_notifications(&port, 1, 0, || true);
            }
        }
    }

    fn check(&mut self, n: usize, vnet: &VnetHdr, frame: &[u8]) {
        let guest = &self.guests[n];
        if vnet.flags & VnetHdr::F_NEEDS_CSUM != 0 || vnet.gso_type != 0 {
            assert!(guest.features & OFFLOADS[1] != 0, "asked to complete what it cannot");
            assert!(self.offloads);
        }
        if !guest.driver.config().mergeable {
            assert_eq!(vnet.num_buffers, 1);
        }
        self.check_part(n, frame);
        if self.offloads {
            return;
        }
        if let Some(plain) = self.plain.get_mut(frame) {
            plain.came[n] += 1;
            let plain = *plain;
            if plain.came[n] <= plain.sent && self.may_go(frame, &plain, frame, n) {
                return;
            }
        }
        // Others may have become this: it comes no more often than all of them were sent.
        let others = self.plain.iter().filter(|(sent, plain)| self.may_go(sent, plain, frame, n));
        let sent: u32 = others.map(|(_, plain)| plain.sent).sum();
        assert!(sent > 0, "nobody let it go to {n}: {frame:x?}");
        let came = self.edited.entry((n, frame.to_vec())).or_insert(0);
        *came += 1;
        assert!(*came <= sent || self.restarted, "{came} of {sent} came to {n}");
    }

    /// `from_guest.packets + replicated = to_guest.packets + drops + waiting`.
    fn law(&self) {
        let (mut sent, mut gone) = (0, 0);
        for guest in &self.guests {
            let (from, to) = guest.port.totals();
            sent += from.packets + from.replicated;
            gone += to.packets + from.dropped() + to.dropped() + guest.port.upcalls.len() as u64;
        }
        assert_eq!(sent, gone, "packets that nobody counted");
    }

    /// Everything is let through that can be: then every guest has its buffers back.
    fn end(mut self) {
        for round in 0..200 {
            self.now_ms += 20;
            let mut idle = true;
            for n in 0..PORTS {
                self.look_at_flows();
                let port = self.guests[n].port.clone();
                port.queues.iter().take(2).for_each(|q| q.set_enabled(true));
                port.refresh();
                while let Some((vnet, frame)) = self.guests[n].receive() {
                    self.check(n, &vnet, &frame);
                    idle = false;
                }
                while let Some(upcall) = port.upcalls.report() {
                    if upcall.copy.is_none() {
                        self.answer(&port, upcall.id, &[]);
                    }
                    idle = false;
                }
                self.forwarder.expire(&port, u64::MAX);
                let outcome = self.forwarder.carry(&port, 1, self.now_ms * MS);
                idle &= outcome.packets == 0 && !outcome.short_of_buffers && !outcome.stalled;
                self.law();
            }
            if idle {
                break;
            }
            assert!(round < 199, "it never comes to rest");
        }
        for guest in &mut self.guests {
            guest.collect();
            let to = guest.port.totals().1;
            assert!(
                guest.hostile || guest.breaks || guest.spare.len() == usize::from(SIZE),
                "chains kept: {:?}",
                guest.spare
            );
            assert!(guest.port.queues[0].status().error.is_none(), "the receiving ring was as it should be");
            assert!(to.segments != 0 || guest.received == to.packets, "{} of {}", guest.received, to.packets);
            assert!(guest.port.upcalls.is_empty());
        }
        self.law();
    }
}
