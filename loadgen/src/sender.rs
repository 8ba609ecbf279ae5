//! Which packet a port sends next, and when.

use super::frame::Template;
use super::pace::Pacer;
use super::{FlowOrder, Pattern, Settings};

/// A sender that waits this long for its window to move gives what is on its way up for lost.
const STALL_NS: u64 = 100_000_000;

/// The packets of one port.
#[derive(Debug)]
pub struct Sender {
    targets: Vec<Target>,
    /// The last of them is an attacker.
    lured: bool,
    /// Whose turn it is, and which length's.
    turn: usize,
    size: usize,
    flow: u32,
    flows: u32,
    order: FlowOrder,
    random: u64,
    /// At a fixed rate.
    pub pacer: Option<Pacer>,
    /// Packets still to be sent.
    pub left: u64,
    /// Packets on their way at most.
    pub window: Option<Flight>,
}

#[derive(Debug)]
struct Target {
    templates: Vec<Template>,
    /// By flow.
    sequences: Vec<u32>,
}

/// What is on its way.
#[derive(Clone, Debug)]
pub struct Flight {
    most: u64,
    /// Receivers of each packet.
    copies: u64,
    expected: u64,
    /// Deliveries when they last changed, and when that was.
    last: (u64, u64),
}

/// A packet to be sent: its head, and what its tail follows from.
pub struct Packet<'a> {
    /// Virtio-net header, headers, probe.
    pub head: &'a [u8],
    /// Bytes behind it.
    pub tail: usize,
    /// Its flow.
    pub flow: u32,
    /// Its number.
    pub sequence: u32,
    /// It is for an attacker, and not expected anywhere.
    pub lured: bool,
}

impl Sender {
    /// Of port `port`; nothing if the pattern has nothing for it to send.
    pub fn new(settings: &Settings, port: u16) -> Option<Self> {
        let mut targets = settings.pattern.targets(port, settings.sockets.len() as u16);
        let lure = settings.lure(port).filter(|_| !targets.is_empty());
        targets.extend(lure.map(Some));
        let (sizes, flows) = (settings.sizes_of(port), settings.flows_of(port));
        let target = |to: &Option<u16>| Target {
            templates: sizes.cycle.iter().map(|len| Template::new(port, *to, *len, sizes.gso, settings.vary)).collect(),
            sequences: vec![0; flows as usize],
        };
        let window = settings.window_of(port);
        let copies = if targets == [None] { settings.sockets.len() as u64 - 1 } else { 1 };
        let most = if settings.pattern == Pattern::PingPong { Some(1) } else { window.map(u64::from) };
        (!targets.is_empty()).then(|| Self {
            targets: targets.iter().map(target).collect(),
            lured: lure.is_some(),
            turn: 0,
            size: 0,
            flow: 0,
            flows,
            order: settings.flow_order,
            random: 0x9e37_79b9_7f4a_7c15 ^ (u64::from(port) << 32),
            pacer: None,
            left: u64::MAX,
            window: most.map(|most| Flight { most: most * copies, copies, expected: 0, last: (0, 0) }),
        })
    }

    /// The flow of the next packet; asking again gives the same until it was sent.
    #[inline]
    pub fn flow(&self) -> u32 {
        self.flow
    }

    /// How many packets it sends for each that counts.
    pub fn share(&self) -> f64 {
        if self.lured { 2.0 } else { 1.0 }
    }

    /// The next packet, with this time in it.
    #[inline]
    pub fn next(&mut self, stamp: u64) -> Packet<'_> {
        let flow = self.flow;
        if self.flows > 1 {
            self.flow = match self.order {
                FlowOrder::Round if flow + 1 == self.flows => 0,
                FlowOrder::Round => flow + 1,
                FlowOrder::Random => {
                    // xorshift64*, and the high half scaled.
                    self.random ^= self.random >> 12;
                    self.random ^= self.random << 25;
                    self.random ^= self.random >> 27;
                    let high = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
                    ((high * u64::from(self.flows)) >> 32) as u32
                }
            };
        }
        let (turn, size) = (self.turn, self.size);
        self.turn = if turn + 1 < self.targets.len() { turn + 1 } else { 0 };
        let target = &mut self.targets[turn];
        if self.turn == 0 {
            self.size = if size + 1 < target.templates.len() { size + 1 } else { 0 };
        }
        let sequence = target.sequences[flow as usize];
        target.sequences[flow as usize] = sequence.wrapping_add(1);
        let template = &mut target.templates[size];
        let tail = template.tail_len();
        let lured = self.lured && self.turn == 0;
        Packet { head: template.stamp(flow, sequence, stamp), tail, flow, sequence, lured }
    }
}

impl Flight {
    /// Packets that may be sent now; `delivered` of this sender's have been received by others.
    #[inline]
    pub fn room(&mut self, delivered: u64, now: u64) -> u64 {
        if self.last.0 != delivered || self.expected == delivered {
            self.last = (delivered, now);
        } else if now.saturating_sub(self.last.1) > STALL_NS {
            // They are lost; late ones only make the window a little wider.
            self.expected = delivered;
            self.last.1 = now;
        }
        let flying = self.expected.saturating_sub(delivered);
        self.most.saturating_sub(flying) / self.copies
    }

    /// One more is on its way.
    #[inline]
    pub fn sent(&mut self) {
        self.expected += self.copies;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Socket;

    fn settings(pattern: Pattern, ports: usize) -> Settings {
        let socket = Socket { path: "/s".into(), listen: true };
        Settings::new(vec![socket; ports], pattern)
    }

    #[test]
    fn targets_take_turns_and_flows_count_for_themselves() {
        let mut s = settings(Pattern::AllToAll, 3);
        (s.flows, s.flow_order) = (2, FlowOrder::Round);
        let mut sender = Sender::new(&s, 0).unwrap();
        let sent: Vec<(u8, u32, u32)> = (0..8)
            .map(|_| {
                let p = sender.next(0);
                (p.head[super::super::frame::VNET + 3], p.flow, p.sequence)
            })
            .collect();
        let expected = [(1, 0, 0), (2, 1, 0), (1, 0, 1), (2, 1, 1), (1, 0, 2), (2, 1, 2), (1, 0, 3), (2, 1, 3)];
        assert_eq!(sent, expected);
        assert!(Sender::new(&settings(Pattern::Incast, 3), 0).is_none());
    }

    #[test]
    fn a_port_has_a_load_of_its_own() {
        let mut s = settings(Pattern::OneWay, 4);
        s.guests = vec!["2:size=100+200,flows=3,window=5".parse().unwrap()];
        let mut own = Sender::new(&s, 2).unwrap();
        let mut len = || {
            let packet = own.next(0);
            packet.head.len() + packet.tail - super::super::frame::VNET
        };
        assert_eq!([len(), len(), len()], [100, 200, 100]);
        let usual = Sender::new(&s, 0).unwrap();
        assert_eq!((own.flows, own.window.as_ref().map(|w| w.most)), (3, Some(5)));
        assert_eq!((usual.flows, usual.window.is_none(), usual.targets[0].templates[0].len), (1, true, 64));
    }

    #[test]
    fn flows_by_chance_are_all_used() {
        let mut s = settings(Pattern::OneWay, 2);
        s.flows = 100;
        let mut sender = Sender::new(&s, 0).unwrap();
        let mut counts = [0; 100];
        (0..10_000).for_each(|_| counts[sender.next(0).flow as usize] += 1);
        assert!(counts.iter().all(|c| (40..250).contains(c)), "{counts:?}");
    }

    #[test]
    fn a_window_opens_with_deliveries_and_after_loss() {
        let mut flight = Flight { most: 4, copies: 2, expected: 0, last: (0, 0) };
        assert_eq!(flight.room(0, 0), 2);
        flight.sent();
        flight.sent();
        assert_eq!(flight.room(0, 1), 0);
        assert_eq!(flight.room(1, 2), 0);
        assert_eq!(flight.room(2, 3), 1);
        assert_eq!(flight.room(2, STALL_NS), 1);
        assert_eq!(flight.room(2, STALL_NS + 4), 2, "the rest is lost");
    }
}
