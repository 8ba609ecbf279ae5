//! The kernel's classifier flower as a table: at each interface that is a port, rules of the flows that come from there.

use crate::translate::{mask, rules};
use crate::{Capabilities, Carried, Lost, NotPut, Table, Why};
use lasthop_flow::FlowSpec;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_tc::{Failed, Netlink, Place, Policy, Statistics, priority};
use lasthop_types::PortId;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

/// Rules there may be: to read what so many have carried takes the kernel some milliseconds.
const PLACES: usize = 16_384;
/// Actions of a rule there may be. Of more than 32 the kernel silently carries out the first 32 (`TCA_ACT_MAX_PRIO`).
const ACTS: usize = 16;

/// Which interface a port is.
pub type Devices = BTreeMap<PortId, Device>;

/// An interface that is a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// The port has a rate.
    pub limited: bool,
}

type Name = (FlowKey, FlowMask);

/// The table.
#[derive(Debug)]
pub struct Flower {
    netlink: Netlink,
    policy: Policy,
    /// Ports whose flows may be here.
    pub devices: Devices,
    places: HashMap<Name, Vec<Place>>,
    flows: HashMap<Place, Name>,
    handle: u32,
}

impl Flower {
    /// One without ports.
    pub fn new(netlink: Netlink, policy: Policy) -> Self {
        let (devices, places, flows) = (Devices::new(), HashMap::new(), HashMap::new());
        Self { netlink, policy, devices, places, flows, handle: 0 }
    }

    /// A port is this interface from now on: whatever rules of flows there are is of an earlier run.
    pub fn add(&mut self, port: PortId, device: Device) -> Result<(), Lost> {
        clear(&mut self.netlink, device.index)?;
        self.devices.insert(port, device);
        Ok(())
    }

    fn device(&self, port: PortId) -> Result<u32, Why> {
        match self.devices.get(&port) {
            None => Err(Why::Port),
            Some(Device { limited: true, .. }) => Err(Why::Rate),
            Some(device) => Ok(device.index),
        }
    }

    /// A number that no rule has.
    fn handle(&mut self) -> u32 {
        self.handle = self.handle.wrapping_add(1).max(1);
        self.handle
    }
}

fn clear(netlink: &mut Netlink, device: u32) -> Result<(), Lost> {
    netlink.clear_flows(device).map_err(|e| Lost(format!("tc rules of interface {device} cannot be removed: {e}")))
}

fn carried(said: &Statistics) -> Carried {
    let Statistics { packets, bytes, idle_ms, in_hardware, .. } = *said;
    Carried { packets, bytes, idle_ms, in_hardware }
}

/// Of two rules of one flow.
fn both(a: Option<Carried>, b: Carried) -> Carried {
    let Some(a) = a else { return b };
    Carried {
        packets: a.packets.wrapping_add(b.packets),
        bytes: a.bytes.wrapping_add(b.bytes),
        idle_ms: a.idle_ms.min(b.idle_ms),
        in_hardware: a.in_hardware || b.in_hardware,
    }
}

fn cannot_be_removed(place: Place, e: Errno) -> Lost {
    Lost(format!("a tc rule of interface {} cannot be removed: {e}", place.device))
}

/// What flower can express.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        mask: mask(),
        places: PLACES,
        acts: ACTS,
        several_outputs: true,
        vlan_edits: true,
        other_edits: false,
        other_actions: false,
    }
}

impl Table for Flower {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn judge(&self, flow: &FlowSpec) -> Result<(), Why> {
        capabilities().can(flow)?;
        self.device(flow.key.port())?;
        rules(flow, |port| self.device(port)).map(drop)
    }

    fn put(&mut self, flow: &FlowSpec) -> Result<(), NotPut> {
        let device = self.device(flow.key.port())?;
        let rules = rules(flow, |port| self.device(port))?;
        let name = (flow.key, flow.mask);
        let mut places = Vec::new();
        for rule in &rules {
            let protocol = rule.protocol();
            let priority = priority(protocol).ok_or(Why::Match)?;
            let place = Place { device, priority, protocol, handle: self.handle() };
            match self.netlink.put(place, rule, self.policy) {
                Ok(()) => {
                    self.flows.insert(place, name);
                    places.push(place);
                }
                // One that matches the same is there, of another flow, which says the same.
                Err(Failed::Refused(Errno::EXIST)) => {}
                // What it takes of the flow is carried; of the rest the data plane has it.
                Err(Failed::Refused(_)) => break,
                // It may be there, and nobody would ever remove it.
                Err(Failed::Unknown(_)) => {
                    self.netlink.delete(place).map_err(|e| cannot_be_removed(place, e))?;
                    break;
                }
            }
        }
        if places.is_empty() {
            return Err(Why::Declined.into());
        }
        self.places.insert(name, places);
        Ok(())
    }

    fn delete(&mut self, key: &FlowKey, mask: &FlowMask) -> Result<Carried, Lost> {
        let mut sum = None;
        for place in self.places.remove(&(*key, *mask)).unwrap_or_default() {
            self.flows.remove(&place);
            let said = self.netlink.delete(place).map_err(|e| cannot_be_removed(place, e))?;
            sum = said.map(|said| both(sum, carried(&said))).or(sum);
        }
        Ok(sum.unwrap_or_default())
    }

    fn clear(&mut self) -> Result<(), Lost> {
        let devices: Vec<_> = self.devices.values().map(|device| device.index).collect();
        devices.into_iter().try_for_each(|device| clear(&mut self.netlink, device))?;
        self.places.clear();
        self.flows.clear();
        Ok(())
    }

    fn statistics(&mut self, each: &mut dyn FnMut(&FlowKey, &FlowMask, Carried)) -> Result<(), Lost> {
        let mut sums: HashMap<Name, Carried> = HashMap::new();
        let (flows, netlink) = (&self.flows, &mut self.netlink);
        for device in self.devices.values() {
            let looked = netlink.statistics(device.index, |said| {
                if let Some(name) = flows.get(&said.place) {
                    let sum = both(sums.get(name).copied(), carried(&said));
                    sums.insert(*name, sum);
                }
            });
            match looked {
                // An interface that has gone has no rules.
                Ok(()) | Err(Errno::NODEV | Errno::NOENT | Errno::INVAL) => {}
                Err(e) => return Err(Lost(format!("tc rules of interface {} cannot be read: {e}", device.index))),
            }
        }
        sums.iter().for_each(|((key, mask), carried)| each(key, mask, *carried));
        Ok(())
    }
}
