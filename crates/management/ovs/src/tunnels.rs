//! Tunnel ports: what of a packet's outer header its number in front means, both ways (`lasthop_tunnel`). The other side is the port's uplink,
//! which encapsulates.
//!
//! A number is an abbreviation. Where there is none, or the other side does not know it, packets go the long way, whole and with all of
//! their metadata, so no number is ever waited for. A number gets another meaning only once the switch has confirmed that it knows no
//! flow any more that was made for the one before: to what goes out they are given from two halves in turns, with all flows forgotten in
//! between; of what comes in the uplink says so, and it uses a number alone no sooner than it is told that it is known.

use crate::ports::{TPID, tag_of};
use crate::{Datapath, Out};
use lasthop_frame::FlowKey;
use lasthop_ipc::{DatapathRequest, FromControl};
use lasthop_ovs_abi::{Key, Refused, family::vport};
use lasthop_tunnel::{MAX_NUMBER, Message, Tunnel, with_number};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Numbers of either half.
const HALF: u16 = MAX_NUMBER / 2;
/// Most addresses of other ends that are remembered to be of use.
const MAX_PEERS: usize = 4096;

/// What goes out to a tunnel port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this number in front.
    Number(u16),
    /// The long way.
    Unnumbered,
    /// No flow has said where to: it is dropped.
    Nowhere,
}

/// The meaning of a number of what comes in.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    tunnel: Tunnel,
    /// The uplink was told that it is known: there may be flows that were made for it.
    told: bool,
    /// The question that the switch has to answer before it may be told.
    waits: Option<u64>,
}

/// A tunnel port.
#[derive(Debug, Default)]
pub(crate) struct TunnelPort {
    /// Its UDP port.
    pub udp_port: u16,
    inbound: HashMap<u16, Inbound>,
    /// Other ends from which something came that was not dropped.
    peers: HashSet<[u8; 16]>,
    /// Number of what goes out, and whether the uplink knows it.
    outbound: HashMap<Tunnel, (u16, bool)>,
    meanings: HashMap<u16, Tunnel>,
    /// Numbers that were given of this half.
    given: u16,
    second_half: bool,
}

/// All of them, by Open vSwitch's number.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    ports: BTreeMap<u32, TunnelPort>,
    /// The switch has not yet confirmed that it knows no flow with a number of before.
    unsettled: Option<u64>,
    /// A question to the switch that is to be sent with what is sent next.
    asks: Option<u64>,
    /// Numbers of what comes in that wait for the answer to a question.
    waiting: BTreeMap<u64, Vec<(u32, u16)>>,
}

impl Tunnels {
    pub fn add(&mut self, no: u32, udp_port: u16) {
        self.ports.insert(no, TunnelPort { udp_port, ..TunnelPort::default() });
    }

    pub fn remove(&mut self, no: u32) {
        self.ports.remove(&no);
    }

    pub fn clear(&mut self) {
        self.ports.clear();
    }

    pub fn get(&self, no: u32) -> Option<&TunnelPort> {
        self.ports.get(&no)
    }

    /// How a packet leaves by this port; `None` if that is none of a tunnel.
    pub fn exit(&self, no: u32, tunnel: Option<&Tunnel>) -> Option<Exit> {
        let port = self.ports.get(&no)?;
        let Some(tunnel) = tunnel else { return Some(Exit::Nowhere) };
        match port.outbound.get(tunnel) {
            Some((number, true)) => Some(Exit::Number(*number)),
            _ => Some(Exit::Unnumbered),
        }
    }

    fn inbound(&mut self, no: u32, number: u16) -> Option<&mut Inbound> {
        self.ports.get_mut(&no)?.inbound.get_mut(&number)
    }

    /// A number is not to be used before the switch has answered this.
    fn wait(&mut self, no: u32, number: u16, request: u64) {
        if let Some(inbound) = self.inbound(no, number) {
            inbound.waits = Some(request);
            self.waiting.entry(request).or_default().push((no, number));
        }
    }

    /// The meaning of a number that came alone.
    pub fn meaning(&self, no: u32, number: u16) -> Option<Tunnel> {
        let found = self.ports.get(&no)?.inbound.get(&number)?;
        (found.told && found.waits.is_none()).then_some(found.tunnel)
    }
}

impl TunnelPort {
    /// A number for this; 0 if there is none now.
    fn number_for(&mut self, tunnel: &Tunnel, settled: bool) -> (u16, bool) {
        match self.outbound.get(tunnel) {
            Some(found) => *found,
            None if !settled || self.given >= HALF => (0, false),
            None => {
                self.given += 1;
                let number = self.given + if self.second_half { HALF } else { 0 };
                self.outbound.insert(*tunnel, (number, false));
                self.meanings.insert(number, *tunnel);
                (number, false)
            }
        }
    }

    /// All numbers of this half have been given: the other half's turn.
    fn turn(&mut self) {
        (self.outbound, self.meanings, self.given) = Default::default();
        self.second_half = !self.second_half;
    }
}

/// The driver of a kind of port, if that is one of a tunnel.
pub(crate) fn driver_of(kind: u32) -> Option<&'static str> {
    match kind {
        vport::VXLAN => Some("vxlan"),
        vport::GENEVE => Some("geneve"),
        _ => None,
    }
}

/// The UDP port that a tunnel's port is to be made with.
pub(crate) fn port_of(options: Option<&[u8]>) -> Result<u16, Refused> {
    lasthop_ovs_abi::tunnel::port_of(options.ok_or(Refused::INVALID)?)
}

impl Datapath {
    /// The switch is to confirm that it knows no flow any more that it was told of before: it is asked once for all that is to be sent together.
    fn barrier(&mut self) -> u64 {
        let request = self.tunnels.asks.unwrap_or_else(|| self.number());
        self.tunnels.asks = Some(request);
        request
    }

    /// Asks it, behind everything else.
    pub(crate) fn ask_for_tunnels(&mut self) {
        if let Some(request) = self.tunnels.asks.take() {
            self.tell_switch(FromControl::Ask { request, question: DatapathRequest::Barrier });
        }
    }

    /// All flows have been forgotten: no number is given before the switch has confirmed that.
    pub(crate) fn unsettle_tunnels(&mut self) {
        let request = self.barrier();
        self.tunnels.unsettled = Some(request);
        // A switch that is gone does not answer what it was asked.
        let waiting: Vec<_> = std::mem::take(&mut self.tunnels.waiting).into_values().flatten().collect();
        waiting.into_iter().for_each(|(no, number)| self.tunnels.wait(no, number, request));
    }

    /// The switch has answered one of the questions here.
    pub(crate) fn tunnels_settle(&mut self, request: u64) {
        self.tunnels.unsettled.take_if(|waits| *waits == request);
        for (no, number) in self.tunnels.waiting.remove(&request).unwrap_or_default() {
            if let Some(inbound) = self.tunnels.inbound(no, number) {
                inbound.waits.take_if(|waits| *waits == request);
            }
        }
    }

    /// Sends a whole frame through a tunnel port.
    pub(crate) fn send_through(&mut self, no: u32, tunnel: &Tunnel, frame: &[u8]) {
        let settled = self.tunnels.unsettled.is_none();
        let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
        let (number, known) = port.number_for(tunnel, settled);
        let is_used_up = number == 0 && settled;
        let bytes =
            if known { with_number(number, frame) } else { Message::Packet { number, tunnel: *tunnel, frame }.write() };
        self.tell_uplink(no, &bytes);
        if is_used_up {
            if let Some(port) = self.tunnels.ports.get_mut(&no) {
                port.turn();
            }
            self.begin_anew();
            self.unsettle_tunnels();
        }
    }

    /// Sends the uplink of a tunnel port a frame.
    pub(crate) fn tell_uplink(&mut self, no: u32, frame: &[u8]) {
        let Some((addresses, rest)) = frame.split_at_checked(12) else { return };
        let (tpid, tci) = (TPID.to_be_bytes(), tag_of(no).to_be_bytes());
        self.out.push(Out::Frame([addresses, &tpid, &tci, rest].concat()));
    }

    /// A whole frame has come from a tunnel port's uplink: a packet with a number, or something that it says.
    pub(crate) fn tunnel_frame(&mut self, no: u32, frame: &[u8]) {
        match lasthop_tunnel::number(frame) {
            Some(0) => {}
            Some(number) => {
                let Some(tunnel) = self.tunnels.meaning(no, number) else {
                    return self.tell_uplink(no, &Message::Unknown(number).write());
                };
                let inner = [frame.get(..12), frame.get(16..)].map(Option::unwrap_or_default).concat();
                self.walk(metadata(no, tunnel), &inner, None, None);
                return;
            }
            None => return,
        }
        match Message::read(frame) {
            Some(Message::Packet { number, tunnel, frame }) => {
                let of_use = frame.len() >= 14 && self.walk(metadata(no, tunnel), frame, None, None);
                if number != 0 {
                    self.learn(no, number, tunnel, of_use);
                }
            }
            Some(Message::Known { number, tunnel }) => {
                let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
                // The answer may be to what the number meant before.
                if let Some((_, known)) = port.outbound.get_mut(&tunnel).filter(|(now, _)| *now == number) {
                    *known = true;
                }
            }
            Some(Message::Unknown(number)) => {
                let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
                let Some(tunnel) = port.meanings.get(&number).copied() else { return };
                if let Some((_, known)) = port.outbound.get_mut(&tunnel) {
                    *known = false;
                }
                self.tell_uplink(no, &Message::Packet { number, tunnel, frame: &[] }.write());
            }
            None => {}
        }
    }

    /// The uplink says what a number means. It is told that this is known once something of it, or of that other end, was not dropped:
    /// who sends what nobody wants makes no flow in the switch.
    fn learn(&mut self, no: u32, number: u16, tunnel: Tunnel, of_use: bool) {
        let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
        if of_use && port.peers.len() < MAX_PEERS {
            port.peers.insert(tunnel.remote);
        }
        let of_use = of_use || port.peers.contains(&tunnel.remote);
        let before = port.inbound.get(&number).copied();
        let told = match before {
            Some(before) if before.tunnel == tunnel => before.told,
            Some(Inbound { told: true, .. }) => return self.forget_meaning(no, number, tunnel),
            _ => {
                port.inbound.insert(number, Inbound { tunnel, told: false, waits: None });
                false
            }
        };
        let Some(inbound) = port.inbound.get_mut(&number).filter(|inbound| inbound.waits.is_none()) else { return };
        if of_use || told {
            inbound.told = true;
            self.tell_uplink(no, &Message::Known { number, tunnel }.write());
        }
    }

    /// A number is to mean something else: no flow of before may know it.
    fn forget_meaning(&mut self, no: u32, number: u16, tunnel: Tunnel) {
        if let Some(port) = self.vports.get(&no).and_then(|vport| vport.port) {
            for gone in self.registry.remove_numbered(port.0, number, &mut self.table) {
                self.tell_switch(FromControl::DelFlow { key: gone.key, mask: gone.mask });
            }
        }
        let request = self.barrier();
        if let Some(port) = self.tunnels.ports.get_mut(&no) {
            port.inbound.insert(number, Inbound { tunnel, told: false, waits: None });
        }
        self.tunnels.wait(no, number, request);
    }
}

/// What is known of a packet that came through a tunnel, beside itself.
pub(crate) fn metadata(in_port: u32, tunnel: Tunnel) -> Key {
    Key { packet: FlowKey { in_port, ..FlowKey::default() }, tunnel, ..Key::default() }
}
