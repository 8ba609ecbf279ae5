//! Packets: those that the switch misses a flow for, of which the first bytes come here; those that come whole, behind a tag that says
//! where from; and those that Open vSwitch sends.

use crate::ports::{TPID, tag_of};
use crate::requests::DP_IFINDEX;
use crate::unified::Way;
use crate::walk::front::ETHERNET;
use crate::walk::{Effect, Met, Rest, Tracking, Walk};
use crate::{Datapath, Out, tunnels};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Depth, Edit, FlowKey, FlowMask, SNAPSHOT_LEN, extract};
use lasthop_ipc::{FromControl, UpcallPacket};
use lasthop_ovs_abi::netlink::{LONGEST, Writer, table};
use lasthop_ovs_abi::{
    Act, Key, Refused, Suits, family, family::datapath::UPCALL_PER_CPU, family::packet, family::packet_command,
};
use lasthop_tunnel::{Message, Tunnel, number_of};

/// Where the tag lies, and its length.
const TAG: std::ops::Range<usize> = 12..16;

/// An upcall in the making.
pub(crate) struct Upcall<'a> {
    pub command: u8,
    pub pid: u32,
    pub key: Key,
    pub start: &'a [u8],
    pub rest: Rest,
    pub userdata: Option<Vec<u8>>,
    pub acts: Option<Vec<u8>>,
    pub egress: Option<Box<Tunnel>>,
}

impl Datapath {
    /// A packet waits in the switch for what is to become of it.
    pub(crate) fn missed(&mut self, upcall: &UpcallPacket) {
        let from = upcall.key.port();
        if Some(from) == self.packet_port() {
            // What the host's own stack sends there.
            return self.tell_switch(FromControl::Resume { id: upcall.id, actions: Vec::new() });
        }
        let Some(no) = self.vport_of(from) else {
            // No bridge has this port: all that it sends is dropped.
            let key = FlowKey { in_port: from.0, ..FlowKey::default() };
            let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
            return self.tell_switch(FromControl::PutFlow(FlowSpec { key, mask, actions: Vec::new(), epoch: 0 }));
        };
        let number = (upcall.key.vlan_tpid == lasthop_tunnel::TPID).then(|| number_of(upcall.key.vlan_tci));
        let tunnel = match (self.tunnels.get(no), number) {
            (None, _) => None,
            (Some(_), Some(number)) if let Some(tunnel) = self.tunnels.meaning(no, number) => Some(tunnel),
            (Some(_), number) => return self.unnumbered(upcall, no, number),
        };
        let metadata = tunnel.map_or_else(|| metadata(no), |tunnel| tunnels::metadata(no, tunnel));
        let vports = &self.vports;
        let port_of = |no| vports.get(&no)?.port;
        let frame = (&upcall.header[..], upcall.frame_len as usize);
        let tracker = self.connections.tracker.as_ref();
        let tracking =
            Tracking { tracker, fragments: None, policies: &self.policies, now_ms: self.now_ms, only_looks: true };
        let mut walk = Walk::new((&self.table, tracking), port_of, &mut self.random, metadata, frame);
        (walk.tunnels, walk.meters, walk.shaping) = (Some(&self.tunnels), Some(&self.meters), Some(&self.shaping));
        walk.first_sampler = self.registry.next_sampler();
        if tunnel.is_some() {
            walk.take_number_out();
        }
        walk.look_up();
        let (mask, is_simple, moves) = (walk.mask(), walk.is_simple, walk.moves);
        if is_simple && !moves && !walk.awaits_number {
            crate::conntrack::carried(tracker, &walk.kept, self.now_ms);
        }
        let needs_flow = walk.needs_flow();
        let comes_whole = walk.missed || walk.comes_whole || walk.awaits_number || !is_simple || moves && needs_flow;
        let is_all = walk.actions.is_empty() && walk.exits.is_empty() && walk.effects.len() == 1 && !moves;
        let missed_all = walk.missed && is_all;
        let (actions, met, tuples, exits, samplers) = (walk.actions, walk.met, walk.tuples, walk.exits, walk.samplers);
        let in_vain = if missed_all { self.in_vain(no) } else { None };
        // As the kernel's, whose `lost` counts it; here it is a drop of its port's, too.
        if let Some(reason) = in_vain {
            self.misses += 1;
            self.lost(no);
            self.count(&met);
            return self.tell_switch(FromControl::Resume { id: upcall.id, actions: vec![Action::Drop(reason)] });
        }
        if comes_whole {
            // Open vSwitch is to see all of it, a tunnel's uplink is to be told where it goes, or the switch cannot do what is to be done. No flow brings such packets
            // here, so each waits in one of its port's places: no port has more of them on their way than that, and others' are not behind them.
            return self.tell_switch(FromControl::Resume { id: upcall.id, actions: self.fetch(no) });
        }
        if moves {
            let actions = self.move_on(upcall, metadata, tunnel.is_some()).unwrap_or_else(|| self.fetch(no));
            return self.tell_switch(FromControl::Resume { id: upcall.id, actions });
        }
        let flows = met.iter().map(|met| met.flow).collect();
        self.install(upcall, mask, Way { actions, flows, tuples, exits, samplers }, &met);
    }

    /// The packet, and all that look like it, go this way from now on.
    fn install(&mut self, upcall: &UpcallPacket, mask: FlowMask, way: Way, met: &[Met]) {
        for Met { flow, tcp_flags, .. } in met {
            if let Some(flow) = self.table.get_mut(*flow) {
                flow.carried.tcp_flags |= tcp_flags;
            }
        }
        if self.registry.is_full() {
            if !std::mem::replace(&mut self.was_full, true) {
                tracing::warn!(
                    "Open vSwitch's flows have become more in the switch than it holds here; of a port with many, those that have been idle for longest go"
                );
            }
            for id in self.registry.idlest(upcall.key.in_port) {
                self.take_back(id);
            }
        }
        let actions = way.actions.clone();
        match self.registry.put(&upcall.key, mask, way, &mut self.table, self.now_ms) {
            // Packets that wait for just this flow go on with it, and count there.
            Some(flow) => self.tell_switch(FromControl::PutFlow(flow)),
            None => {
                self.count(met);
                self.tell_switch(FromControl::Resume { id: upcall.id, actions });
            }
        }
    }

    /// A packet that waits in the switch moves its connection on. What becomes of it there; `None`: that is not what was foreseen, and it has to come whole, as one that is
    /// sent again.
    fn move_on(&mut self, upcall: &UpcallPacket, metadata: Key, is_numbered: bool) -> Option<Vec<Action>> {
        let vports = &self.vports;
        let port_of = |no| vports.get(&no)?.port;
        let (tracker, policies) = (self.connections.tracker.as_ref(), &self.policies);
        let tracking = Tracking { tracker, fragments: None, policies, now_ms: self.now_ms, only_looks: false };
        let frame = (&upcall.header[..], upcall.frame_len as usize);
        let mut walk = Walk::new((&self.table, tracking), port_of, &mut self.random, metadata, frame);
        (walk.tunnels, walk.meters, walk.shaping) = (Some(&self.tunnels), Some(&self.meters), Some(&self.shaping));
        if is_numbered {
            walk.take_number_out();
        }
        walk.spares_meters = true;
        walk.look_up();
        let is_foreseen = walk.is_simple && !walk.missed && !walk.awaits_number && !walk.needs_flow();
        let (actions, met, changed) = (walk.actions, walk.met, walk.changed);
        self.connections_changed(changed);
        if !is_foreseen {
            return None;
        }
        self.count(&met);
        Some(actions)
    }

    /// A packet has met these flows here.
    fn count(&mut self, met: &[Met]) {
        for Met { flow, bytes, tcp_flags } in met {
            self.hits += 1;
            if let Some(flow) = self.table.get_mut(*flow) {
                let carried = &mut flow.carried;
                carried.packets += 1;
                carried.bytes += bytes;
                (carried.used_ms, carried.tcp_flags) = (self.now_ms, carried.tcp_flags | tcp_flags);
            }
        }
    }

    /// A packet of a tunnel's uplink with a number that means nothing here; with 0 it is something that the uplink says.
    fn unnumbered(&mut self, upcall: &UpcallPacket, no: u32, number: Option<u16>) {
        let actions = if number == Some(0) { self.fetch(no) } else { Vec::new() };
        self.tell_switch(FromControl::Resume { id: upcall.id, actions });
        if let Some(number) = number.filter(|number| *number != 0) {
            self.send_by(no, &Message::Unknown(number).write());
        }
    }

    /// What brings a packet of this port here.
    fn fetch(&self, no: u32) -> Vec<Action> {
        let Some(port) = self.packet_port() else { return Vec::new() };
        vec![Action::Edit(Edit::PushVlan { tpid: TPID, tci: tag_of(no) }), Action::Output(port)]
    }

    /// A frame has come whole.
    pub fn frame(&mut self, frame: &[u8]) {
        let [t0, t1] = TPID.to_be_bytes();
        let Some(&[a, b, c, d]) = frame.get(TAG).and_then(|tag| tag.first_chunk()) else { return };
        if [a, b] != [t0, t1] {
            // The host's own stack.
            return;
        }
        let vid = u32::from(u16::from_be_bytes([c, d]) & 0xfff);
        let Some(no) = vid.checked_sub(1).filter(|no| self.vports.contains_key(no)) else { return };
        let frame = [frame.get(..TAG.start), frame.get(TAG.end..)].map(Option::unwrap_or_default).concat();
        if self.tunnels.get(no).is_some() {
            return self.tunnel_frame(no, &frame);
        }
        self.walk(metadata(no), &frame, None, None);
    }

    /// Open vSwitch sends a packet.
    pub(crate) fn execute(&mut self, attributes: &[u8]) -> Result<(), Refused> {
        let found = table::<{ packet::COUNT }>(attributes)?;
        let of = |kind: u16| found.get(usize::from(kind)).copied().flatten().ok_or(Refused::INVALID);
        let frame = of(packet::PACKET)?;
        let metadata = Key::metadata(of(packet::KEY)?)?;
        let bare = [&[0; TAG.start][..], &metadata.packet.eth_type.to_be_bytes(), frame].concat();
        let frame = if metadata.bare == 0 { frame } else { &bare[..] };
        if frame.len() < ETHERNET {
            return Err(Refused::INVALID);
        }
        let mut key = FlowKey::default();
        extract(&mut key, frame.get(..SNAPSHOT_LEN).unwrap_or(frame), frame.len(), Depth::Full);
        let acts = Act::read_for(of(packet::ACTIONS)?, Suits { eth_type: key.eth_type, ip_proto: key.ip_proto })?;
        let longest = found.get(usize::from(packet::MRU)).copied().flatten();
        let longest = longest.map(|longest| longest.try_into().map(u16::from_ne_bytes).map_err(|_| Refused::RANGE));
        self.walk(metadata, frame, Some(&acts), longest.transpose()?);
        if self.turns.gives_up() { self.too_much().map(drop) } else { Ok(()) }
    }

    /// Carries out what is to become of a whole frame: what these actions say, or the flows that it meets. False if it met none at first or
    /// later, or nothing became of it.
    pub(crate) fn walk(&mut self, metadata: Key, frame: &[u8], acts: Option<&[Act]>, longest: Option<u16>) -> bool {
        self.tunnels.sender = metadata.packet.in_port;
        let (start, rest) = frame.split_at(frame.len().min(SNAPSHOT_LEN));
        let vports = &self.vports;
        let port_of = |no| vports.get(&no)?.port;
        let (tracker, fragments) = (self.connections.tracker.as_ref(), Some(&self.fragments));
        let tracking =
            Tracking { tracker, fragments, policies: &self.policies, now_ms: self.now_ms, only_looks: false };
        let whole = (start, frame.len());
        let mut walk = Walk::new((&self.table, tracking), port_of, &mut self.random, metadata, whole);
        (walk.tunnels, walk.meters, walk.shaping) = (Some(&self.tunnels), Some(&self.meters), Some(&self.shaping));
        walk.rest = Rest { bytes: rest.into(), fragments: longest };
        match acts {
            Some(acts) => {
                let _ = walk.run(acts);
            }
            None => walk.look_up(),
        }
        let of_use = !walk.missed && !walk.effects.is_empty();
        let is_dropped = acts.is_none() && !walk.missed && walk.effects.is_empty() && walk.key.packet.ip_frag == 0;
        if is_dropped && self.vports.contains_key(&metadata.packet.in_port) {
            *self.dropped_of.entry(metadata.packet.in_port).or_default() += 1;
        }
        let (effects, met, changed) = (walk.effects, walk.met, walk.changed);
        self.connections_changed(changed);
        self.count(&met);
        self.carry_out_in_turns(effects, acts.is_some());
        of_use
    }

    /// Does it. How many frames or upcalls it was.
    pub(crate) fn carry_out(&mut self, effect: Effect) -> usize {
        match effect {
            Effect::Output { port, start, rest, longest, tunnel } => {
                let mut frame = [&start[..], &rest.bytes].concat();
                frame.truncate(longest);
                let frames = match rest.fragments {
                    Some(longest) => self.fragments.get_mut().cut(frame, longest),
                    None => vec![frame],
                };
                frames.iter().for_each(|frame| self.output(port, frame, tunnel.as_deref()));
                return frames.len();
            }
            Effect::Miss { key, start, rest } => {
                self.misses += 1;
                let pid = self.pid_for(key.packet.in_port, None);
                let command = packet_command::MISS;
                self.upcall(&Upcall {
                    command,
                    pid,
                    key,
                    start: &start,
                    rest,
                    userdata: None,
                    acts: None,
                    egress: None,
                });
            }
            Effect::Upcall { key, start, rest, pid, userdata, acts_of, egress } => {
                let pid = self.pid_for(key.packet.in_port, Some(pid));
                let acts = acts_of.and_then(|id| self.table.get(id)).map(|flow| flow.act_bytes.clone());
                let command = packet_command::ACTION;
                self.upcall(&Upcall { command, pid, key, start: &start, rest, userdata, acts, egress });
            }
        }
        1
    }

    fn output(&mut self, port: u32, frame: &[u8], tunnel: Option<&Tunnel>) {
        if self.vports.get(&port).is_none_or(|vport| vport.port.is_none()) {
            return;
        }
        if self.tunnels.get(port).is_some() {
            return tunnel.iter().for_each(|tunnel| self.send_through(port, tunnel, frame));
        }
        self.send_by(port, frame);
    }

    /// Sends a frame by this port, whatever it is: behind a tag that says so.
    pub(crate) fn send_by(&mut self, port: u32, frame: &[u8]) {
        let Some((addresses, rest)) = frame.split_at_checked(TAG.start) else { return };
        let (tpid, tci) = (TPID.to_be_bytes(), tag_of(port).to_be_bytes());
        self.out.push(Out::Frame([addresses, &tpid, &tci, rest].concat()));
    }

    /// The socket for an upcall of this port: packets of one port stay in order.
    pub(crate) fn pid_for(&self, no: u32, pid: Option<u32>) -> u32 {
        let of = |pids: &[u32]| pids.get(no as usize % pids.len().max(1)).copied().unwrap_or(0);
        match (self.features & UPCALL_PER_CPU, pid) {
            (0, Some(pid)) => pid,
            (0, None) => self.vports.get(&no).map_or(0, |vport| of(&vport.pids)),
            _ => of(&self.cpu_pids),
        }
    }

    pub(crate) fn upcall(&mut self, upcall: &Upcall<'_>) {
        if !self.clients.contains_key(&upcall.pid) {
            return self.lost(upcall.key.packet.in_port);
        }
        let mut to = Writer::new();
        to.begin(family::PACKET.id, 0, 0, 0);
        to.ovs_header(upcall.command, family::PACKET.version, DP_IFINDEX);
        // One without an Ethernet header has one of zeros here.
        let start = if upcall.key.bare == 0 { Some(upcall.start) } else { upcall.start.get(ETHERNET..) };
        let frame = [start.unwrap_or_default(), &upcall.rest.bytes].concat();
        to.attribute(packet::PACKET, frame.get(..LONGEST).unwrap_or(&frame));
        let mut key = Writer::new();
        upcall.key.write(&mut key);
        let key = key.into_bytes();
        if upcall.command == packet_command::MISS {
            self.repeats.missed(&key, self.now_ms);
        }
        to.nest(packet::KEY, |to| to.raw(&key));
        if let Some(userdata) = &upcall.userdata {
            to.attribute(packet::USERDATA, userdata);
        }
        if let Some(acts) = &upcall.acts {
            to.nest(packet::ACTIONS, |to| to.raw(acts));
        }
        if let Some(tunnel) = &upcall.egress {
            to.nest(packet::EGRESS_TUN_KEY, |to| lasthop_ovs_abi::tunnel::write_egress(tunnel, to));
        }
        if let Some(longest) = upcall.rest.fragments {
            to.attribute(packet::MRU, &longest.to_ne_bytes());
        }
        if frame.len() > LONGEST {
            to.number(packet::LEN, frame.len() as u32);
        }
        to.end();
        let (pid, port) = (upcall.pid, upcall.key.packet.in_port);
        self.out.push(Out::Upcall { pid, port, datagram: to.into_bytes() });
    }
}

fn metadata(in_port: u32) -> Key {
    Key { packet: FlowKey { in_port, ..FlowKey::default() }, ..Key::default() }
}
