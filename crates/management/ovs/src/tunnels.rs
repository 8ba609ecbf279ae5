//! Tunnel ports: what of a packet's outer header its number in front means, both ways (`lasthop_tunnel`). The other side is the port's uplink,
//! which encapsulates.
//!
//! A number is an abbreviation. Where there is none, or the other side does not know it, packets go the long way, whole and with all of
//! their metadata, so no number is ever waited for. A number gets another meaning only once the switch has confirmed that it knows no
//! flow any more that was made for the one before. To what goes out they are given until there are no more; then the port whose packets have
//! taken most gives the number back that it has had for longest. Of what comes in the uplink says so, and it uses a number alone no sooner than
//! it is told that it is known.

use crate::Datapath;
use crate::unified::Number;
use lasthop_frame::FlowKey;
use lasthop_ipc::{DatapathRequest, FromControl};
use lasthop_ovs_abi::{Key, Refused, family::vport};
use lasthop_tunnel::{MAX_NUMBER, Message, Tunnel, with_number};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

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

/// The number of what goes out.
#[derive(Clone, Copy, Debug)]
struct Outbound {
    number: u16,
    /// The uplink knows it.
    known: bool,
    /// The question that the switch has to answer before it may be used: it has meant something else.
    waits: Option<u64>,
}

/// A tunnel port.
#[derive(Debug, Default)]
pub(crate) struct TunnelPort {
    /// Its UDP port, 0 for GRE.
    pub udp_port: u16,
    inbound: HashMap<u16, Inbound>,
    /// Other ends from which something came that was not dropped.
    peers: HashSet<[u8; 16]>,
    outbound: HashMap<Tunnel, Outbound>,
    meanings: HashMap<u16, Tunnel>,
    /// Which ports' packets took the numbers, the oldest first.
    takers: BTreeMap<u32, VecDeque<u16>>,
    /// So many numbers have been given.
    given: u16,
}

/// All of them, by Open vSwitch's number.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    ports: BTreeMap<u32, TunnelPort>,
    /// The switch has not yet confirmed that it knows no flow of before: numbers may have meant something else to another lasthop-ovs.
    unsettled: Option<u64>,
    /// The port of Open vSwitch's whose packet is on its way.
    pub sender: u32,
    /// A question to the switch that is to be sent with what is sent next.
    asks: Option<u64>,
    /// Numbers that wait for the answer to a question, and whether they are of what goes out.
    waiting: BTreeMap<u64, Vec<(u32, u16, bool)>>,
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
            Some(Outbound { number, known: true, waits: None }) => Some(Exit::Number(*number)),
            _ => Some(Exit::Unnumbered),
        }
    }

    fn waits(&mut self, (no, number, is_out): (u32, u16, bool)) -> Option<&mut Option<u64>> {
        let port = self.ports.get_mut(&no)?;
        if !is_out {
            return Some(&mut port.inbound.get_mut(&number)?.waits);
        }
        Some(&mut port.outbound.get_mut(port.meanings.get(&number)?)?.waits)
    }

    /// A number is not to be used before the switch has answered this.
    fn wait(&mut self, of: (u32, u16, bool), request: u64) {
        if let Some(waits) = self.waits(of) {
            *waits = Some(request);
            self.waiting.entry(request).or_default().push(of);
        }
    }

    /// The meaning of a number that came alone.
    pub fn meaning(&self, no: u32, number: u16) -> Option<Tunnel> {
        let found = self.ports.get(&no)?.inbound.get(&number)?;
        (found.told && found.waits.is_none()).then_some(found.tunnel)
    }
}

impl TunnelPort {
    /// A number for this, 0 if none may be given now; and whether it was another's: whoever has most gives one back if there are no more.
    fn number_for(&mut self, tunnel: &Tunnel, sender: u32, settled: bool) -> (Outbound, bool) {
        if let Some(found) = self.outbound.get(tunnel) {
            return (*found, false);
        }
        if !settled {
            return (Outbound { number: 0, known: false, waits: None }, false);
        }
        let most = |takers: &BTreeMap<u32, VecDeque<u16>>| {
            let most = takers.iter().max_by_key(|(_, numbers)| numbers.len());
            most.map(|(taker, _)| *taker)
        };
        let taken =
            (self.given >= MAX_NUMBER).then(|| self.takers.get_mut(&most(&self.takers)?)?.pop_front()).flatten();
        if let Some(before) = taken.and_then(|number| self.meanings.remove(&number)) {
            self.outbound.remove(&before);
        }
        self.given += u16::from(taken.is_none());
        let outbound = Outbound { number: taken.unwrap_or(self.given), known: false, waits: None };
        self.outbound.insert(*tunnel, outbound);
        self.meanings.insert(outbound.number, *tunnel);
        self.takers.entry(sender).or_default().push_back(outbound.number);
        (outbound, taken.is_some())
    }
}

/// The driver of a kind of port, if that is one of a tunnel.
pub(crate) fn driver_of(kind: u32) -> Option<&'static str> {
    match kind {
        vport::VXLAN => Some("vxlan"),
        vport::GENEVE => Some("geneve"),
        vport::GRE => Some("gre"),
        vport::IP6GRE => Some("ip6gre"),
        _ => None,
    }
}

/// The UDP port that a tunnel's port is to be made with; 0 for one without ports.
pub(crate) fn port_of(kind: u32, options: Option<&[u8]>) -> Result<u16, Refused> {
    match (kind, options) {
        (vport::GRE | vport::IP6GRE, None | Some([])) => Ok(0),
        // Options are of ERSPAN.
        (vport::GRE | vport::IP6GRE, _) | (_, None) => Err(Refused::INVALID),
        (_, Some(options)) => lasthop_ovs_abi::tunnel::port_of(options),
    }
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
        waiting.into_iter().for_each(|of| self.tunnels.wait(of, request));
    }

    /// The switch has answered one of the questions here.
    pub(crate) fn tunnels_settle(&mut self, request: u64) {
        self.tunnels.unsettled.take_if(|waits| *waits == request);
        for of in self.tunnels.waiting.remove(&request).unwrap_or_default() {
            if let Some(waits) = self.tunnels.waits(of) {
                waits.take_if(|waits| *waits == request);
            }
        }
    }

    /// The switch forgets what holds by a number, which is not used before it has confirmed that.
    fn forget_number(&mut self, of: (u32, u16, bool), number: Number) {
        for id in self.registry.of_number(number) {
            self.take_back(id);
        }
        let request = self.barrier();
        self.tunnels.wait(of, request);
    }

    /// Sends a whole frame through a tunnel port.
    pub(crate) fn send_through(&mut self, no: u32, tunnel: &Tunnel, frame: &[u8]) {
        let (sender, settled) = (self.tunnels.sender, self.tunnels.unsettled.is_none());
        let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
        let (Outbound { number, known, waits }, was_anothers) = port.number_for(tunnel, sender, settled);
        if was_anothers {
            self.forget_number((no, number, true), Number::Out(no, number));
        }
        // Without a number as long as it waits.
        let number = if was_anothers || waits.is_some() { 0 } else { number };
        let bytes =
            if known { with_number(number, frame) } else { Message::Packet { number, tunnel: *tunnel, frame }.write() };
        self.send_by(no, &bytes);
    }

    /// A whole frame has come from a tunnel port's uplink: a packet with a number, or something that it says.
    pub(crate) fn tunnel_frame(&mut self, no: u32, frame: &[u8]) {
        match lasthop_tunnel::number(frame) {
            Some(0) => {}
            Some(number) => {
                let Some(tunnel) = self.tunnels.meaning(no, number) else {
                    return self.send_by(no, &Message::Unknown(number).write());
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
                if let Some(outbound) = port.outbound.get_mut(&tunnel).filter(|outbound| outbound.number == number) {
                    outbound.known = true;
                }
            }
            Some(Message::Unknown(number)) => {
                let Some(port) = self.tunnels.ports.get_mut(&no) else { return };
                let Some(tunnel) = port.meanings.get(&number).copied() else { return };
                let Some(outbound) = port.outbound.get_mut(&tunnel) else { return };
                outbound.known = false;
                if outbound.waits.is_none() {
                    self.send_by(no, &Message::Packet { number, tunnel, frame: &[] }.write());
                }
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
            self.send_by(no, &Message::Known { number, tunnel }.write());
        }
    }

    /// A number is to mean something else: no flow of before may know it.
    fn forget_meaning(&mut self, no: u32, number: u16, tunnel: Tunnel) {
        if let Some(port) = self.tunnels.ports.get_mut(&no) {
            port.inbound.insert(number, Inbound { tunnel, told: false, waits: None });
        }
        if let Some(port) = self.vports.get(&no).and_then(|vport| vport.port) {
            self.forget_number((no, number, false), Number::In(port.0, number));
        }
    }
}

/// What is known of a packet that came through a tunnel, beside itself.
pub(crate) fn metadata(in_port: u32, tunnel: Tunnel) -> Key {
    Key { packet: FlowKey { in_port, ..FlowKey::default() }, tunnel, ..Key::default() }
}
