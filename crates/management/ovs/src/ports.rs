//! Open vSwitch's ports. Each is a port of the switch of the same name: a VM's, or an interface of the host that the supervisor is asked to
//! open. The port with number 0 is the datapath's own, which has no frames.

use crate::requests::Changes;
use crate::{Datapath, PACKET_PORT};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Edit, FlowKey, FlowMask};
use lasthop_ipc::{FromControl, PortInfo};
use lasthop_ovs_abi::netlink::Writer;
use lasthop_ovs_abi::{Refused, family, family::vport};
use lasthop_types::PortId;

/// The tag that says which port a frame is from or for, between the switch and this process.
pub(crate) const TPID: u16 = 0x88a8;
/// Greatest number of a port: it has to fit into a VLAN id, one more than it.
pub(crate) const MAX_PORT: u32 = 4093;

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vport {
    pub name: String,
    pub kind: u32,
    /// Sockets for its upcalls.
    pub pids: Vec<u32>,
    /// The switch's port.
    pub port: Option<PortId>,
    /// The interface was opened because Open vSwitch wanted it.
    pub opened: bool,
}

/// What a port has counted, as of the switch's last word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    from: (u64, u64, u64),
    to: (u64, u64, u64),
}

impl Totals {
    pub fn of(port: &PortInfo) -> Self {
        let of = |totals: &lasthop_types::PortTotals| {
            (totals.packets, totals.bytes, totals.drops.iter().map(|(_, packets)| packets).sum())
        };
        Self { from: of(&port.from_guest), to: of(&port.to_guest) }
    }

    /// `struct ovs_vport_stats`.
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.from.0, self.to.0, self.from.1, self.to.1, 0, 0, self.from.2, self.to.2];
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }
}

/// The VLAN id that names a port.
pub(crate) fn tag_of(port: u32) -> u16 {
    port.min(MAX_PORT) as u16 + 1
}

impl Datapath {
    pub(crate) fn packet_port(&self) -> Option<PortId> {
        self.configs.get(PACKET_PORT).copied()
    }

    /// The number of the port that is this one of the switch's.
    pub(crate) fn vport_of(&self, port: PortId) -> Option<u32> {
        self.vports.iter().find(|(_, vport)| vport.port == Some(port)).map(|(no, _)| *no)
    }

    /// Finds the switch's ports of Open vSwitch's anew. If anything is otherwise than before, so are the flows.
    pub(crate) fn map_ports(&mut self) {
        let mut changed = false;
        for (no, vport) in &mut self.vports {
            let port = self.configs.get(&vport.name).copied().filter(|_| *no != 0);
            changed |= std::mem::replace(&mut vport.port, port) != port;
        }
        let mut changes = Changes::default();
        if self.forget_shaping() {
            self.meter_classes(&mut changes);
        }
        if changed || changes.all {
            self.begin_anew();
        }
    }

    /// Has the switch forget all flows but those by which frames go out from here.
    pub(crate) fn begin_anew(&mut self) {
        self.registry.clear(&mut self.table);
        self.tell_switch(FromControl::ClearFlows);
        let Some(from) = self.packet_port() else { return };
        let ports: Vec<_> = self.vports.iter().filter_map(|(no, vport)| Some((*no, vport.port?))).collect();
        for (no, port) in ports {
            let in_port = FlowKey { in_port: from.0, vlan_tpid: TPID, ..FlowKey::default() };
            let key = FlowKey { vlan_tci: FlowKey::VLAN_PRESENT | tag_of(no), ..in_port };
            let mask = FlowKey { in_port: u32::MAX, vlan_tpid: u16::MAX, vlan_tci: 0x1fff, ..FlowKey::default() };
            let actions = vec![Action::Edit(Edit::PopVlan), Action::Output(port)];
            self.tell_switch(FromControl::PutFlow(FlowSpec { key, mask: FlowMask(mask), actions, epoch: 0 }));
        }
    }

    /// Names of the ports that Open vSwitch has, without the datapath's own.
    pub fn port_names(&self) -> impl Iterator<Item = &str> {
        self.vports.iter().filter(|(no, _)| **no != 0).map(|(_, port)| port.name.as_str())
    }

    /// Those that are no ports of the switch's: the interface is gone, or there never was one.
    pub fn ports_without(&self) -> impl Iterator<Item = &str> {
        let without = self.vports.iter().filter(|(no, port)| **no != 0 && port.port.is_none());
        without.map(|(_, port)| port.name.as_str())
    }

    /// The number of the port of this name, or with this number.
    pub(crate) fn find_vport(&self, name: Option<&str>, no: Option<u32>) -> Result<u32, Refused> {
        let found = match name {
            Some(name) => self.vports.iter().find(|(_, vport)| vport.name == name).map(|(no, _)| *no),
            None => no.filter(|no| self.vports.contains_key(no)),
        };
        found.ok_or(Refused::NO_DEVICE)
    }

    /// A free number.
    pub(crate) fn new_port_no(&self, wanted: Option<u32>) -> Result<u32, Refused> {
        match wanted {
            Some(no) if no > MAX_PORT => Err(Refused::FULL),
            Some(no) if self.vports.contains_key(&no) => Err(Refused::BUSY),
            Some(no) => Ok(no),
            None => (1..=MAX_PORT).find(|no| !self.vports.contains_key(no)).ok_or(Refused::FULL),
        }
    }

    /// What Open vSwitch is told of a port.
    pub(crate) fn write_vport(&self, no: u32, command: u8, to: &mut Writer) {
        let Some(found) = self.vports.get(&no) else { return };
        let totals = found.port.and_then(|port| self.totals.get(&port)).copied().unwrap_or_default();
        let pids: Vec<u8> = found.pids.iter().flat_map(|pid| pid.to_ne_bytes()).collect();
        to.ovs_header(command, family::VPORT.version, crate::requests::DP_IFINDEX);
        to.number(vport::PORT_NO, no);
        to.number(vport::TYPE, found.kind);
        to.text(vport::NAME, &found.name);
        if let Some(tunnel) = self.tunnels.get(no).filter(|tunnel| tunnel.udp_port != 0) {
            to.nest(vport::OPTIONS, |to| lasthop_ovs_abi::tunnel::write_options(tunnel.udp_port, to));
        }
        to.attribute(vport::STATS, &totals.to_bytes());
        to.attribute(vport::UPCALL_PID, &pids);
    }
}
