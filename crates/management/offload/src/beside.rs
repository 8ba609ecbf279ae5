//! A table beside a data plane. What control and the data plane say to each other passes by here, in its order: flows that control puts are given to the table
//! too; before the data plane hears that a flow goes, the table has let go of it; and what the table has carried is added to what the data plane says it has.
#![allow(missing_docs)] // Fields whose names say all.

use crate::{Carried, Lost, Table, Why};
use lasthop_flow::{Action, FlowSpec, Position};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo, ToControl};
use lasthop_types::{PortId, PortTotals};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Flows that wait to be given to the table; more stay in the data plane.
const WAITING: usize = 8192;
/// Looks at all flows that are under way at a time: control makes few.
const WALKS: usize = 32;
/// The first place of the list of flows.
const FIRST: Position = (0, 0, 0);

type Name = (FlowKey, FlowMask);

/// Packets and bytes.
type Sum = [u64; 2];

fn add(to: &mut Sum, more: Sum) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to = to.wrapping_add(more));
}

/// A flow that the table has.
#[derive(Debug)]
struct Held {
    /// Its packets come from there, and go there.
    from: PortId,
    to: Vec<PortId>,
    carried: Carried,
    /// When it was put, and when the data plane last said that it has it, by a count of such events.
    put: u64,
    seen: u64,
}

/// What is to be shown of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Flows that the table has, and those of them that a card carries out.
    pub flows: u64,
    pub in_hardware: u64,
    /// What has passed the data plane by since this process began.
    pub packets: u64,
    pub bytes: u64,
    /// Flows that were put and stayed in the data plane, by [`Why::number`].
    pub stayed: Vec<u64>,
}

/// The table, and what is known of it.
#[derive(Debug)]
pub struct Beside<T> {
    table: T,
    held: HashMap<Name, Held>,
    waiting: HashMap<Name, FlowSpec>,
    order: VecDeque<Name>,
    /// What flows had carried whose end the data plane will tell of.
    ended: HashMap<Name, Carried>,
    events: u64,
    /// Looks at all flows: by the question's number, when it began; and where it goes on, if it does.
    asked: HashMap<u64, u64>,
    walks: VecDeque<(Position, u64)>,
    /// From each port, and to it.
    ports: BTreeMap<PortId, [Sum; 2]>,
    /// The same of ports that are gone.
    gone: [Sum; 2],
    all: Sum,
    stayed: [u64; Why::ALL.len()],
}

impl<T: Table> Beside<T> {
    /// One that has no flows: the table is emptied.
    pub fn new(mut table: T) -> Result<Self, Lost> {
        table.clear()?;
        Ok(Self {
            table,
            held: HashMap::new(),
            waiting: HashMap::new(),
            order: VecDeque::new(),
            ended: HashMap::new(),
            events: 0,
            asked: HashMap::new(),
            walks: VecDeque::new(),
            ports: BTreeMap::new(),
            gone: Default::default(),
            all: Sum::default(),
            stayed: Default::default(),
        })
    }

    /// The table, to be told of its surroundings. Flows that are not to be there any more are withdrawn first.
    pub fn table(&mut self) -> &mut T {
        &mut self.table
    }

    /// What is to be shown of it, as last looked at.
    pub fn figures(&self) -> Figures {
        let in_hardware = self.held.values().filter(|held| held.carried.in_hardware).count() as u64;
        let [packets, bytes] = self.all;
        Figures { flows: self.held.len() as u64, in_hardware, packets, bytes, stayed: self.stayed.to_vec() }
    }

    /// Either of the two is another one now, or the same anew: nothing is known of flows.
    pub fn forget(&mut self) -> Result<(), Lost> {
        self.ended.clear();
        self.asked.clear();
        self.walks.clear();
        self.clear()
    }

    /// Control says this; to be called before the data plane hears it.
    pub fn from_control(&mut self, message: &FromControl) -> Result<(), Lost> {
        match message {
            FromControl::PutFlow(flow) => {
                let name = (flow.key, flow.mask);
                self.remove(&name)?;
                self.wait(name, flow);
            }
            FromControl::DelFlow { key, mask, tell } => {
                let name = (*key, *mask);
                let carried = self.remove(&name)?;
                if let Some(carried) = carried.filter(|carried| *tell && carried.packets > 0) {
                    self.ended.insert(name, carried);
                }
            }
            FromControl::ClearFlows => self.clear()?,
            FromControl::Ask { request, question } => self.is_asked(*request, question)?,
            FromControl::Resume { .. } | FromControl::SetMeter { .. } => {}
        }
        Ok(())
    }

    fn wait(&mut self, name: Name, flow: &FlowSpec) {
        if self.waiting.len() >= WAITING {
            self.stayed[Why::Full.number()] += 1;
            return;
        }
        if self.waiting.insert(name, flow.clone()).is_none() {
            self.order.push_back(name);
        }
    }

    fn is_asked(&mut self, request: u64, question: &DatapathRequest) -> Result<(), Lost> {
        match question {
            DatapathRequest::Flows { after } if *after == FIRST => {
                self.look()?;
                self.asked.insert(request, self.events);
            }
            DatapathRequest::Flows { after } => {
                let at = self.walks.iter().position(|(place, _)| place == after);
                if let Some((_, began)) = at.and_then(|at| self.walks.remove(at)) {
                    self.asked.insert(request, began);
                }
            }
            DatapathRequest::Ports | DatapathRequest::Lookup(_) => self.look()?,
            DatapathRequest::Meter(_) | DatapathRequest::Barrier => {}
        }
        Ok(())
    }

    /// The data plane says this; to be called before control hears it.
    pub fn to_control(&mut self, message: &mut ToControl) -> Result<(), Lost> {
        match message {
            ToControl::Ended(info) => {
                if let Some(carried) = self.ended.remove(&(info.flow.key, info.flow.mask)) {
                    count_in(info, &carried);
                }
            }
            ToControl::PortGone(port) => {
                self.withdraw(*port, None)?;
                let [from, to] = self.ports.remove(port).unwrap_or_default();
                add(&mut self.gone[0], from);
                add(&mut self.gone[1], to);
            }
            ToControl::Reply { request, last, reply } => self.add_to_reply(*request, *last, reply)?,
            ToControl::Hello | ToControl::Upcall(_) | ToControl::Port(_) => {}
        }
        Ok(())
    }

    fn add_to_reply(&mut self, request: u64, last: bool, reply: &mut DatapathReply) -> Result<(), Lost> {
        match reply {
            DatapathReply::Flows { flows, next } => {
                flows.iter_mut().for_each(|info| self.is_there(info));
                if last && let Some(began) = self.asked.remove(&request) {
                    match *next {
                        Some(next) => {
                            self.walks.push_back((next, began));
                            self.walks.drain(..self.walks.len().saturating_sub(WALKS));
                        }
                        None => self.remove_unseen(began)?,
                    }
                }
            }
            DatapathReply::Ports(ports) => ports.iter_mut().for_each(|port| self.count_in_port(port)),
            DatapathReply::Removed { from_guest, to_guest, .. } => {
                count_in_totals(from_guest, self.gone[0]);
                count_in_totals(to_guest, self.gone[1]);
            }
            DatapathReply::Lookup { flow: Some(info), .. } => self.is_there(info),
            DatapathReply::Lookup { flow: None, .. } | DatapathReply::Meter { .. } | DatapathReply::Barrier => {}
        }
        Ok(())
    }

    /// The data plane has this flow.
    fn is_there(&mut self, info: &mut FlowInfo) {
        self.events += 1;
        if let Some(held) = self.held.get_mut(&(info.flow.key, info.flow.mask)) {
            held.seen = self.events;
            count_in(info, &held.carried);
        }
    }

    fn count_in_port(&self, port: &mut PortInfo) {
        let [from, to] = self.ports.get(&port.id).copied().unwrap_or_default();
        count_in_totals(&mut port.from_guest, from);
        count_in_totals(&mut port.to_guest, to);
    }

    /// The data plane has let go of flows for want of room, and control will believe that they are nowhere.
    fn remove_unseen(&mut self, began: u64) -> Result<(), Lost> {
        let unseen = self.held.iter().filter(|(_, held)| held.put < began && held.seen <= began);
        let unseen: Vec<_> = unseen.map(|(name, _)| *name).collect();
        unseen.iter().try_for_each(|name| self.remove(name).map(drop))
    }

    /// Gives the table some of the flows that wait; whether there are more.
    pub fn step(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(name) = self.order.pop_front() else { return false };
            let Some(flow) = self.waiting.remove(&name) else { continue };
            let capable = self.table.capabilities();
            let fits = if self.held.len() < capable.places { capable.can(&flow) } else { Err(Why::Full) };
            match fits.and_then(|()| self.table.put(&flow)) {
                Ok(()) => {
                    self.events += 1;
                    let to = flow.actions.iter().filter_map(|action| match action {
                        Action::Output(port) => Some(*port),
                        _ => None,
                    });
                    let (put, seen) = (self.events, 0);
                    let held = Held { from: flow.key.port(), to: to.collect(), carried: Carried::default(), put, seen };
                    self.held.insert(name, held);
                }
                Err(why) => self.stayed[why.number()] += 1,
            }
        }
        !self.order.is_empty()
    }

    /// No flow from this port or to it is to be in the table, for this reason if it stays in the data plane; those that wait may come there.
    pub fn withdraw(&mut self, port: PortId, why: Option<Why>) -> Result<(), Lost> {
        let of_port = self.held.iter().filter(|(_, held)| held.from == port || held.to.contains(&port));
        let of_port: Vec<_> = of_port.map(|(name, _)| *name).collect();
        if let Some(why) = why {
            self.stayed[why.number()] += of_port.len() as u64;
        }
        of_port.iter().try_for_each(|name| self.remove(name).map(drop))
    }

    /// Takes a flow out of the table, or from among those that wait; what it has carried, if it was there.
    fn remove(&mut self, name: &Name) -> Result<Option<Carried>, Lost> {
        self.waiting.remove(name);
        let Some(mut held) = self.held.remove(name) else { return Ok(None) };
        let carried = self.table.delete(&name.0, &name.1)?;
        // What it says at the end is all, or nothing: then what it last said is.
        let carried = if carried.packets >= held.carried.packets { carried } else { held.carried };
        self.account(&mut held, carried);
        Ok(Some(held.carried))
    }

    fn clear(&mut self) -> Result<(), Lost> {
        self.waiting.clear();
        self.order.clear();
        if !self.held.is_empty() {
            self.look()?;
        }
        // Also where none is known to be there: it is cheap, and nothing may be left.
        self.table.clear()?;
        self.held.clear();
        Ok(())
    }

    /// Has the table say what flows have carried.
    pub fn look(&mut self) -> Result<(), Lost> {
        if self.held.is_empty() {
            return Ok(());
        }
        let mut said = Vec::with_capacity(self.held.len());
        self.table.statistics(&mut |key, mask, carried| said.push(((*key, *mask), carried)))?;
        for (name, carried) in said {
            if let Some(mut held) = self.held.remove(&name) {
                self.account(&mut held, carried);
                self.held.insert(name, held);
            }
        }
        Ok(())
    }

    fn account(&mut self, held: &mut Held, carried: Carried) {
        let more =
            [carried.packets.saturating_sub(held.carried.packets), carried.bytes.saturating_sub(held.carried.bytes)];
        held.carried = carried;
        add(&mut self.all, more);
        add(&mut self.ports.entry(held.from).or_default()[0], more);
        for port in &held.to {
            add(&mut self.ports.entry(*port).or_default()[1], more);
        }
    }
}

fn count_in(info: &mut FlowInfo, carried: &Carried) {
    if carried.packets > 0 {
        info.packets = info.packets.wrapping_add(carried.packets);
        info.bytes = info.bytes.wrapping_add(carried.bytes);
        info.idle_ms = info.idle_ms.min(carried.idle_ms);
    }
}

fn count_in_totals(totals: &mut PortTotals, [packets, bytes]: Sum) {
    totals.packets = totals.packets.wrapping_add(packets);
    totals.bytes = totals.bytes.wrapping_add(bytes);
}

#[cfg(test)]
mod tests;
