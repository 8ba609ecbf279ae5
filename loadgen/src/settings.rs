//! What the generator is to play.

use super::attack::{self, Attack};
use super::frame::{self, Vary};
use super::grants::{Grants, Policy};
use super::guest::Guest;
use super::port::{Buffers, PAGE};
use super::{Outcome, Socket, failed};
use lasthop_vhostuser::Features;
use std::str::FromStr;
use std::time::Duration;

/// What the number of a port and that of the station behind the switch that it talks to differ in.
pub(super) const BEHIND: u16 = 1 << 14;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Port 0 to port 1, 2 to 3, and so on
    OneWay,
    /// Port 0 to port 1 and back, 2 to 3 and back, and so on: different packets each way
    BothWays,
    /// All others to port 0
    Incast,
    /// Every port to every other
    AllToAll,
    /// Port 0 to everybody, by broadcast
    Broadcast,
    /// Port 0 to port 1, which sends each packet back; the time there and back is measured
    Echo,
    /// As echo, one packet at a time
    PingPong,
    /// Every port to a station behind the switch that sends each packet back, its MAC addresses swapped; the time there and
    /// back is measured
    Reflect,
    /// A fixed number of packets goes from port 0 to port 1, which hands each to port 0 to be sent again; and the other
    /// way round. Nothing is made or dropped meanwhile, so the slower of guests and switch sets the pace
    Loop,
}

impl Pattern {
    /// Packets go round and are not made.
    pub fn circulates(self) -> bool {
        self == Self::Loop
    }

    /// Packets come back to who sent them.
    pub fn returns(self) -> bool {
        self.echoes() || self == Self::Reflect
    }

    /// Ports send packets of others back.
    pub fn echoes(self) -> bool {
        matches!(self, Self::Echo | Self::PingPong)
    }

    /// Who sends and who receives are two ports.
    pub fn pairs_up(self) -> bool {
        !matches!(self, Self::Incast | Self::AllToAll | Self::Broadcast | Self::Reflect)
    }

    /// To whom a port of `ports` sends packets of its own; nobody stands for everybody.
    pub fn targets(self, port: u16, ports: u16) -> Vec<Option<u16>> {
        match self {
            Self::OneWay | Self::Echo | Self::PingPong if port.is_multiple_of(2) => vec![Some(port + 1)],
            Self::BothWays | Self::Loop => vec![Some(port ^ 1)],
            Self::Incast if port != 0 => vec![Some(0)],
            // Each begins with its neighbour, or all would begin with the same.
            Self::AllToAll => (1..ports).map(|d| Some((port + d) % ports)).collect(),
            Self::Broadcast if port == 0 => vec![None],
            Self::Reflect => vec![Some(port ^ BEHIND)],
            _ => vec![],
        }
    }
}

/// How much of a received frame is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Check {
    /// Frames are counted
    Count,
    /// Sequence numbers are checked: order, doubles
    #[default]
    Order,
    /// Every byte too; senders fill each frame anew
    Content,
}

/// In which order flows get their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FlowOrder {
    /// By chance, each as likely as the other
    #[default]
    Random,
    /// One after the other
    Round,
}

/// What a guest with nothing to do does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Notify {
    /// It looks again, without interrupts
    #[default]
    Poll,
    /// It sleeps until the switch interrupts it or the next packet is due
    Sleep,
}

/// Lengths of frames, in turn; without checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// As given.
    pub name: String,
    /// Lengths in the order in which they come.
    pub cycle: Vec<usize>,
    /// GSO packets.
    pub gso: bool,
}

impl FromStr for Sizes {
    type Err = String;

    /// `imix`, `gso`, or lengths in bytes with commas between.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_owned();
        match text {
            // 7 : 4 : 1, mixed evenly.
            "imix" => {
                let (s, m, l) = (64, 594, 1514);
                return Ok(Self { name, cycle: vec![s, m, s, s, m, s, l, s, m, s, s, m], gso: false });
            }
            "gso" => return Ok(Self { name, cycle: vec![frame::GSO_FRAME], gso: true }),
            _ => {}
        }
        let cycle: Result<Vec<usize>, _> = text.split(',').map(|w| w.trim().parse::<usize>()).collect();
        let cycle = cycle.map_err(|_| format!("not a list of lengths, nor imix or gso: {text:?}"))?;
        match cycle.iter().find(|len| !(frame::SHORTEST..=frame::LONGEST).contains(len)) {
            Some(len) => Err(format!("{len}: a frame has {} to {} bytes", frame::SHORTEST, frame::LONGEST)),
            None => Ok(Self { name, cycle, gso: false }),
        }
    }
}

impl Sizes {
    /// Frames of one length.
    pub fn of(len: usize) -> Self {
        Self { name: len.to_string(), cycle: vec![len], gso: false }
    }

    /// The longest.
    pub fn longest(&self) -> usize {
        self.cycle.iter().copied().max().unwrap_or(frame::SHORTEST)
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One for each port.
    pub sockets: Vec<Socket>,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// How long frames are.
    pub sizes: Sizes,
    /// Packets a second, all senders together; as many as go without.
    pub rate: Option<f64>,
    /// Packets of one sender on their way at most; for `Loop`: that circulate in each direction.
    pub window: Option<u32>,
    /// Each sender stops after so many, and the measurement ends when nothing comes any more.
    pub packets: Option<u64>,
    /// Flows of each sender to each receiver.
    pub flows: u32,
    /// What tells them apart.
    pub vary: Vary,
    /// Which comes next.
    pub flow_order: FlowOrder,
    /// How much is checked.
    pub check: Check,
    /// Whether times are measured.
    pub latency: bool,
    /// Packed rings.
    pub packed: bool,
    /// Entries of each ring.
    pub ring_size: u16,
    /// Queue pairs of each port.
    pub queues: u16,
    /// Bytes of a receive buffer.
    pub rx_buffer: usize,
    /// Accept IN_ORDER.
    pub in_order: bool,
    /// Poll or sleep.
    pub notify: Notify,
    /// One thread on each; one thread anywhere when empty.
    pub cpus: Vec<usize>,
    /// Huge pages: if there are enough, always, or never.
    pub huge: Option<bool>,
    /// Traffic before the measurement.
    pub warmup: Duration,
    /// Length of the measurement.
    pub length: Duration,
    /// How long to wait for the switch.
    pub patience: Duration,
    /// What attackers do meanwhile.
    pub attack: Option<Attack>,
    /// Their sockets, [`Attack::ports`] of them.
    pub attackers: Vec<Socket>,
    /// Ports with a load of their own.
    pub guests: Vec<Guest>,
    /// Of these the greedy ones have turns of this length, one after the other, between which all others are looked at; they spin away
    /// what they do not use.
    pub turn: Option<Duration>,
    /// Attackers behave well, greedy guests send nothing: what to compare with.
    pub tame: bool,
    /// How long their turns take.
    pub slot: Duration,
    /// Packets a second from port 1 to port 0 beside all else, each from another MAC address: the first of their flows.
    pub firsts: Option<f64>,
    /// Each buffer lies somewhere else whenever it is used, by chance, in so many pages of each port; otherwise buffers stay where they
    /// are, as those of a pool do.
    pub heap: Option<usize>,
    /// Guests are behind IOMMUs of their own, and grant their pages; otherwise all of their memory is shared for good.
    pub grants: Option<Grants>,
}

impl Settings {
    /// Over these sockets, 64-byte frames as fast as they go, one second.
    pub fn new(sockets: Vec<Socket>, pattern: Pattern) -> Self {
        Self {
            sockets,
            pattern,
            sizes: Sizes::of(64),
            rate: None,
            window: None,
            packets: None,
            flows: 1,
            vary: Vary::Tuple,
            flow_order: FlowOrder::Random,
            check: Check::Order,
            latency: false,
            packed: false,
            ring_size: 1024,
            queues: 1,
            rx_buffer: 2048,
            in_order: true,
            notify: Notify::Poll,
            cpus: Vec::new(),
            huge: None,
            warmup: Duration::from_millis(500),
            length: Duration::from_secs(1),
            patience: Duration::from_secs(30),
            attack: None,
            attackers: Vec::new(),
            guests: Vec::new(),
            turn: None,
            tame: false,
            slot: attack::SLOT,
            firsts: None,
            heap: None,
            grants: None,
        }
    }

    /// An error that says what does not fit together.
    pub fn validate(&self) -> Outcome<()> {
        let ports = self.sockets.len();
        let fewest = if self.pattern == Pattern::Reflect { 1 } else { 2 };
        let wrong = if !(fewest..=1024).contains(&ports) {
            "two ports at least (one with the pattern `reflect`), and 1024 at most"
        } else if self.pattern.pairs_up() && !ports.is_multiple_of(2) {
            "this pattern wants an even number of ports"
        } else if !self.ring_size.is_power_of_two() || !(8..=32768).contains(&self.ring_size) {
            "a ring has 8 to 32768 entries, a power of two"
        } else if !(1..=128).contains(&self.queues) {
            "1 to 128 queue pairs"
        } else if !(1..=frame::MAX_FLOWS).contains(&self.flows) {
            "1 to 1048576 flows"
        } else if self.rx_buffer < 256 || self.rx_buffer > 1 << 20 {
            "a receive buffer has 256 bytes to 1 MiB"
        } else if self.pattern.circulates() && (self.check != Check::Count || self.rate.is_some() || self.latency) {
            "packets that go round can only be counted: no check, rate or latency"
        } else if self.pattern.circulates() && self.window.is_some_and(|w| w > self.ring_size.into()) {
            "no more packets can go round than a ring has entries"
        } else if self.pattern == Pattern::PingPong && (self.rate.is_some() || self.window.is_some()) {
            "ping-pong has its own pace: no rate or window"
        } else if self.latency && self.check == Check::Count && !self.pattern.returns() {
            "times are in the frames, which must be looked at: no check by count"
        } else if self.rate.is_some_and(|r| !r.is_finite() || r <= 0.0) {
            "a rate above 0"
        } else if self.packets.is_some() && self.pattern.circulates() {
            "packets that go round do not end"
        } else if self.window == Some(0) {
            "a window of one packet at least"
        } else if self.length.is_zero() {
            "some time to measure"
        } else if self.attack.map_or(0, Attack::ports) != self.attackers.len() {
            "two attackers for an attack, and twelve for `all`"
        } else if self.attack.is_some() && (self.pattern != Pattern::BothWays || self.rate.is_none()) {
            "attackers are played beside guests that send both ways at a rate"
        } else if self.attack.is_some() && (self.window.is_some() || self.notify == Notify::Sleep) {
            "beside attackers guests poll, and have no window"
        } else if self.tame && self.attack.is_none() && self.turn.is_none() {
            "only attackers and greedy guests that have turns (--turn) can be tame"
        } else if let Some(why) = self.wrong_guests() {
            return Err(failed(why));
        } else if self.firsts.is_some_and(|r| !r.is_finite() || r <= 0.0 || self.pattern.circulates()) {
            "first packets at a rate above 0, and not where packets go round"
        } else if self.firsts.is_some() && self.flows > frame::FIRSTS {
            "half as many flows at most beside first packets"
        } else if self.grants.is_some() && (self.pattern.circulates() || self.attack.is_some()) {
            "who grants pages makes packets, and has no attackers beside"
        } else if self.grants.is_some() && self.notify == Notify::Sleep {
            "who grants pages polls: the switch's questions are answered between packets"
        } else if self.heap.is_some() && (self.pattern.circulates() || self.attack.is_some()) {
            "buffers have a heap where packets are made, and without attackers"
        } else if let Some(pages) = self.heap.filter(|pages| *pages < self.fewest_pages()) {
            return Err(failed(format!("a heap of {pages} pages: all buffers together take {}", self.fewest_pages())));
        } else if let Some(Grants { policy: Policy::Reuse(pages), .. }) = self.grants.filter(|_| !self.fits_in_table())
        {
            let fewest = 2 * self.fewest_pages();
            return Err(failed(format!("{pages} pages granted at most: {fewest} at least, or no buffer finds room")));
        } else {
            return Ok(());
        };
        Err(failed(wrong))
    }

    /// What of the ports with a load of their own does not fit together.
    fn wrong_guests(&self) -> Option<String> {
        let wrong = if self.turn.is_some() && !self.guests.iter().any(Guest::is_greedy) {
            "turns are for guests without a rate of their own: name one (--guest)"
        } else if self.turn.is_some() && self.notify == Notify::Sleep {
            "guests that have turns poll"
        } else if self.guests.is_empty() {
            return None;
        } else if self.pattern.circulates() || self.pattern == Pattern::PingPong || self.attack.is_some() {
            "ports have loads of their own where packets are made, not with ping-pong, and without attackers"
        } else if self.packets.is_some() {
            "a port with a load of its own does not stop: no number of packets"
        } else if self.has_gso() && self.pattern.echoes() {
            "a packet of 64 KiB does not fit into the one buffer that is sent back"
        } else {
            let twice = |g: &&Guest| self.guests.iter().filter(|o| o.port == g.port).count() > 1;
            let wrong = self.guests.iter().find_map(|g| g.wrong(self.sockets.len()));
            return wrong.or_else(|| Some(format!("--guest {}: named twice", self.guests.iter().find(twice)?.port)));
        };
        Some(wrong.into())
    }

    /// Pages that the buffers of a port take in a heap.
    pub(super) fn fewest_pages(&self) -> usize {
        let pages = |len: usize| len.div_ceil(PAGE as usize);
        let each = pages(self.rx_buffer).max(pages(self.longest() + frame::VNET));
        2 * usize::from(self.ring_size) * usize::from(self.queues) * each
    }

    fn fits_in_table(&self) -> bool {
        !matches!(self.grants, Some(Grants { policy: Policy::Reuse(pages), .. }) if pages < 2 * self.fewest_pages())
    }

    /// Features without which it cannot be played.
    pub(super) fn features_needed(&self) -> Features {
        let when = |on: bool, f: Features| if on { f } else { Features::empty() };
        Features::VERSION_1
            | Features::PROTOCOL_FEATURES
            | when(self.packed, Features::RING_PACKED)
            | when(self.queues > 1, Features::MQ)
            | when(self.grants.is_some(), Features::ACCESS_PLATFORM)
            | when(self.has_gso(), Features::CSUM | Features::HOST_TSO4 | Features::GUEST_CSUM | Features::GUEST_TSO4)
            | when(self.longest() + frame::VNET > self.rx_buffer && !self.circulates(), Features::MRG_RXBUF)
    }

    /// Features taken if they are offered.
    pub(super) fn features_welcome(&self) -> Features {
        let when = |on: bool, f: Features| if on { f } else { Features::empty() };
        Features::MRG_RXBUF
            | when(self.in_order, Features::IN_ORDER)
            | when(self.notify == Notify::Sleep, Features::RING_EVENT_IDX)
    }

    /// The longest frame of any port.
    pub(super) fn longest(&self) -> usize {
        self.all_sizes().map(Sizes::longest).max().unwrap_or(frame::SHORTEST)
    }

    /// Whether any port sends GSO packets.
    pub(super) fn has_gso(&self) -> bool {
        self.all_sizes().any(|s| s.gso)
    }

    fn all_sizes(&self) -> impl Iterator<Item = &Sizes> {
        std::iter::once(&self.sizes).chain(self.guests.iter().filter_map(|g| g.sizes.as_ref()))
    }

    /// What a port does otherwise than the others.
    pub(super) fn guest(&self, port: u16) -> Option<&Guest> {
        self.guests.iter().find(|g| g.port == port)
    }

    /// Packets a second of a port that is one of `senders`; nothing: as many as go.
    pub(super) fn rate_of(&self, port: u16, senders: &[u16]) -> Option<f64> {
        let own = |port: u16| self.guest(port).and_then(|g| g.rate);
        own(port).or_else(|| Some(self.rate? / senders.iter().filter(|p| own(**p).is_none()).count().max(1) as f64))
    }

    /// Packets of a port on their way at most.
    pub(super) fn window_of(&self, port: u16) -> Option<u32> {
        self.guest(port).and_then(|g| g.window).or(self.window)
    }

    /// Flows of a port to each receiver.
    pub(super) fn flows_of(&self, port: u16) -> u32 {
        self.guest(port).and_then(|g| g.flows).unwrap_or(self.flows)
    }

    fn circulates(&self) -> bool {
        self.pattern.circulates()
    }

    /// The attacker's port to which this port sends as many packets as to its own receiver.
    pub(super) fn lure(&self, port: u16) -> Option<u16> {
        let lure = self.attack.filter(|_| port == 0)?.lures()?;
        Some((self.sockets.len() + lure) as u16)
    }

    /// Bytes of a port's send buffer, virtio-net header included.
    pub(super) fn tx_buffer(&self, port: u16) -> usize {
        self.sizes_of(port).longest() + frame::VNET
    }

    /// Lengths of a port's frames.
    pub(super) fn sizes_of(&self, port: u16) -> &Sizes {
        self.guest(port).and_then(|g| g.sizes.as_ref()).unwrap_or(&self.sizes)
    }

    /// Distance of buffers that hold `len` bytes: pages are what is granted, so no buffer lies in more of them than it must.
    pub(super) fn stride(&self, len: usize) -> u64 {
        if self.grants.is_some() { Buffers::slab(len) } else { Buffers::stride(len) }
    }

    /// Bytes of a receive buffer: a whole frame, where it is to be sent on as it is.
    pub(super) fn receive_buffer(&self) -> usize {
        if self.circulates() { self.rx_buffer.max(self.longest() + frame::VNET) } else { self.rx_buffer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        let imix: Sizes = "imix".parse().unwrap();
        let count = |len| imix.cycle.iter().filter(|l| **l == len).count();
        assert_eq!([count(64), count(594), count(1514)], [7, 4, 1]);
        assert_eq!("64, 1514".parse::<Sizes>().unwrap().cycle, [64, 1514]);
        assert!("gso".parse::<Sizes>().unwrap().gso);
        for bad in ["", "63", "70000", "big", "64,,64"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn everybody_sends_to_whom_the_pattern_says() {
        assert_eq!(Pattern::OneWay.targets(2, 4), [Some(3)]);
        assert_eq!(Pattern::OneWay.targets(3, 4), []);
        assert_eq!(Pattern::BothWays.targets(3, 4), [Some(2)]);
        assert_eq!(Pattern::Incast.targets(0, 4), []);
        assert_eq!(Pattern::Incast.targets(3, 4), [Some(0)]);
        assert_eq!(Pattern::AllToAll.targets(2, 4), [Some(3), Some(0), Some(1)]);
        assert_eq!(Pattern::Broadcast.targets(0, 4), [None]);
        assert_eq!(Pattern::Broadcast.targets(1, 4), []);
        assert_eq!(Pattern::Reflect.targets(0, 1), [Some(BEHIND)]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let socket = Socket { path: "/s".into(), listen: true };
        let good = Settings::new(vec![socket.clone(); 2], Pattern::Echo);
        assert_eq!(good.validate(), Ok(()));
        let bad = |change: &dyn Fn(&mut Settings)| {
            let mut s = good.clone();
            change(&mut s);
            s.validate().is_err()
        };
        assert!(bad(&|s| s.sockets.truncate(1)));
        assert!(!bad(&|s| (s.pattern, _) = (Pattern::Reflect, s.sockets.truncate(1))));
        assert!(bad(&|s| s.sockets.push(socket.clone())));
        assert!(bad(&|s| s.ring_size = 1000));
        assert!(bad(&|s| s.flows = 0));
        assert!(bad(&|s| s.rate = Some(f64::NAN)));
        assert!(bad(&|s| (s.pattern, s.check) = (Pattern::Loop, Check::Order)));
        assert!(bad(&|s| (s.pattern, s.rate) = (Pattern::PingPong, Some(1.0))));
        let guest = |text: &str| vec![text.parse::<Guest>().unwrap()];
        assert!(!bad(&|s| (s.guests, s.turn) = (guest("1:size=100"), Some(attack::SLOT))));
        assert!(bad(&|s| (s.guests, s.turn) = (guest("1:rate=100"), Some(attack::SLOT))), "nobody is greedy");
        assert!(bad(&|s| s.guests = guest("2:size=100")), "there is no such port");
        assert!(bad(&|s| s.guests = [guest("1:rate=1"), guest("1:rate=2")].concat()));
        assert!(bad(&|s| s.guests = guest("0:rate=-1")));
        assert!(bad(&|s| s.guests = guest("0:size=gso")), "echo cannot send it back");
        assert!(bad(&|s| s.tame = true));
        assert!(bad(&|s| (s.pattern, s.guests) = (Pattern::PingPong, guest("0:size=64"))));
    }

    #[test]
    fn ports_with_a_rate_of_their_own_take_nothing_of_the_others() {
        let socket = Socket { path: "/s".into(), listen: true };
        let mut s = Settings::new(vec![socket; 8], Pattern::OneWay);
        s.guests = vec!["2:rate=5".parse().unwrap(), "4:size=100,flows=7".parse().unwrap()];
        let senders = [0, 2, 4, 6];
        assert_eq!(senders.map(|p| s.rate_of(p, &senders)), [None, Some(5.0), None, None]);
        s.rate = Some(300.0);
        assert_eq!(senders.map(|p| s.rate_of(p, &senders)), [Some(100.0), Some(5.0), Some(100.0), Some(100.0)]);
        assert_eq!((s.flows_of(4), s.flows_of(0), s.longest()), (7, 1, 100));
    }
}
