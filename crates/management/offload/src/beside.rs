//! A table beside a data plane. What control and the data plane say to each other passes by here, in its order: flows that control puts are given to the table
//! too; before the data plane hears that a flow goes, the table has let go of it; and what the table has carried is added to what the data plane says it has.
#![allow(missing_docs)] // Fields whose names say all.

use crate::{Carried, Lost, NotPut, Table, Why};
use lasthop_flow::{Action, FlowSpec, Position};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo, ToControl};
use lasthop_types::{PortId, PortTotals};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Flows that wait to be given to the table; more stay in the data plane.
const WAITING: usize = 8192;
/// Flows of which it is known what they had carried, and that are not in the table; those beyond count from then on alone.
const PAST: usize = 16_384;
/// How often the table is asked at most for what ports have carried.
const LOOK: Duration = Duration::from_millis(100);
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

/// A flow that is to be given to the table.
#[derive(Debug)]
struct Waits {
    flow: FlowSpec,
    /// As of one that is there.
    put: u64,
    seen: u64,
}

/// What a flow has carried in the table that is not there any more.
#[derive(Debug)]
struct Past {
    carried: Carried,
    put: u64,
    seen: u64,
}

/// How many each sender has. None gets more than are left: one alone half of all, two a third each.
#[derive(Debug, Default)]
struct Shares(HashMap<PortId, usize>);

impl Shares {
    /// Whether this sender may have one more, of so many that are left.
    fn may(&self, port: PortId, left: usize) -> Result<(), Why> {
        if self.0.get(&port).is_none_or(|has| *has < left) && left > 0 { Ok(()) } else { Err(Why::Full) }
    }

    fn take(&mut self, port: PortId) {
        *self.0.entry(port).or_default() += 1;
    }

    fn give_back(&mut self, port: PortId) {
        if let Some(has) = self.0.get_mut(&port) {
            *has -= 1;
            if *has == 0 {
                self.0.remove(&port);
            }
        }
    }
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
    held_by: Shares,
    waiting: HashMap<Name, Waits>,
    waiting_of: Shares,
    /// Of those that wait, by when they were put; and of some that do not any more.
    order: VecDeque<(Name, u64)>,
    /// What flows have carried here that the data plane still has, and counts on.
    past: HashMap<Name, Past>,
    /// What flows had carried whose end the data plane will tell of, and when it was told to.
    ended: HashMap<Name, (Carried, u64)>,
    events: u64,
    looked: Option<Instant>,
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
            held_by: Shares::default(),
            waiting: HashMap::new(),
            waiting_of: Shares::default(),
            order: VecDeque::new(),
            past: HashMap::new(),
            ended: HashMap::new(),
            events: 0,
            looked: None,
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
                self.take_back(&name)?;
                self.wait(name, flow);
            }
            FromControl::DelFlow { key, mask, tell } => {
                let name = (*key, *mask);
                let idle_ms = self.take_back(&name)?;
                self.events += 1;
                if let Some(Past { carried, .. }) = self.past.remove(&name)
                    && *tell
                    && self.ended.len() < PAST
                {
                    self.ended.insert(name, (Carried { idle_ms, ..carried }, self.events));
                }
            }
            FromControl::ClearFlows => self.clear()?,
            FromControl::Ask { request, question } => self.is_asked(*request, question)?,
            FromControl::Resume { .. } | FromControl::SetMeter { .. } => {}
        }
        Ok(())
    }

    fn wait(&mut self, name: Name, flow: &FlowSpec) {
        self.events += 1;
        let (sender, put) = (flow.key.port(), self.events);
        let room = || self.waiting_of.may(sender, WAITING.saturating_sub(self.waiting.len()));
        if let Err(why) = self.table.judge(flow).and_then(|()| room()) {
            self.stayed[why.number()] += 1;
            return;
        }
        self.waiting_of.take(sender);
        self.waiting.insert(name, Waits { flow: flow.clone(), put, seen: 0 });
        self.order.push_back((name, put));
        if self.order.len() > 2 * WAITING {
            let waiting = &self.waiting;
            self.order.retain(|(name, put)| waiting.get(name).is_some_and(|waits| waits.put == *put));
        }
    }

    fn stop_waiting(&mut self, name: &Name) -> Option<Waits> {
        let waits = self.waiting.remove(name)?;
        self.waiting_of.give_back(name.0.port());
        Some(waits)
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
            DatapathRequest::Ports | DatapathRequest::Lookup(_) => {
                if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
                    self.look()?;
                }
            }
            DatapathRequest::Meter(_) | DatapathRequest::Barrier => {}
        }
        Ok(())
    }

    /// The data plane says this; to be called before control hears it.
    pub fn to_control(&mut self, message: &mut ToControl) -> Result<(), Lost> {
        match message {
            ToControl::Ended(info) => {
                if let Some((carried, _)) = self.ended.remove(&(info.flow.key, info.flow.mask)) {
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
        let (name, seen) = ((info.flow.key, info.flow.mask), self.events);
        if let Some(past) = self.past.get_mut(&name) {
            past.seen = seen;
            count_in(info, &past.carried);
        }
        if let Some(held) = self.held.get_mut(&name) {
            held.seen = seen;
            count_in(info, &held.carried);
        } else if let Some(waits) = self.waiting.get_mut(&name) {
            waits.seen = seen;
        }
    }

    fn count_in_port(&self, port: &mut PortInfo) {
        let [from, to] = self.ports.get(&port.id).copied().unwrap_or_default();
        count_in_totals(&mut port.from_guest, from);
        count_in_totals(&mut port.to_guest, to);
    }

    /// The data plane has let go of flows for want of room, and control will believe that they are nowhere.
    fn remove_unseen(&mut self, began: u64) -> Result<(), Lost> {
        let is_unseen = |put: u64, seen: u64| put <= began && seen <= began;
        let held = self.held.iter().filter(|(_, held)| is_unseen(held.put, held.seen)).map(|(name, _)| *name);
        let waiting = self.waiting.iter().filter(|(_, waits)| is_unseen(waits.put, waits.seen)).map(|(name, _)| *name);
        let unseen: Vec<_> = held.chain(waiting).collect();
        unseen.iter().try_for_each(|name| self.remove(name).map(drop))?;
        self.past.retain(|_, past| !is_unseen(past.put, past.seen));
        // What was to be told by then has been, or never will be.
        self.ended.retain(|_, (_, told)| *told > began);
        Ok(())
    }

    /// Gives the table some of the flows that wait; whether there are more.
    pub fn step(&mut self, most: usize) -> Result<bool, Lost> {
        let mut given = 0;
        while given < most {
            let Some((name, number)) = self.order.pop_front() else { return Ok(false) };
            if self.waiting.get(&name).is_none_or(|waits| waits.put != number) {
                continue;
            }
            let Some(Waits { flow, put, seen }) = self.stop_waiting(&name) else { continue };
            given += 1;
            let sender = flow.key.port();
            let left = self.table.capabilities().places.saturating_sub(self.held.len());
            match self.held_by.may(sender, left).map_err(NotPut::from).and_then(|()| self.table.put(&flow)) {
                Ok(()) => {
                    let to = flow.actions.iter().filter_map(|action| match action {
                        Action::Output(port) => Some(*port),
                        _ => None,
                    });
                    let held = Held { from: sender, to: to.collect(), carried: Carried::default(), put, seen };
                    self.held.insert(name, held);
                    self.held_by.take(sender);
                }
                Err(NotPut::Stays(why)) => self.stayed[why.number()] += 1,
                Err(NotPut::Lost(lost)) => return Err(lost),
            }
        }
        Ok(!self.order.is_empty())
    }

    /// No flow from this port or to it is to be in the table, for this reason if it stays in the data plane; those that wait may come there.
    pub fn withdraw(&mut self, port: PortId, why: Option<Why>) -> Result<(), Lost> {
        let of_port = self.held.iter().filter(|(_, held)| held.from == port || held.to.contains(&port));
        let of_port: Vec<_> = of_port.map(|(name, _)| *name).collect();
        if let Some(why) = why {
            self.stayed[why.number()] += of_port.len() as u64;
        }
        of_port.iter().try_for_each(|name| self.take_back(name).map(drop))
    }

    /// Takes a flow out of the table that the data plane has still: what it has carried counts on. For how long it has been idle there.
    fn take_back(&mut self, name: &Name) -> Result<u64, Lost> {
        let Some(Held { carried, put, seen, .. }) = self.remove(name)?.filter(|held| held.carried.packets > 0) else {
            return Ok(u64::MAX);
        };
        let idle_ms = carried.idle_ms;
        // From now on the data plane alone knows for how long.
        let mut carried = Carried { idle_ms: u64::MAX, in_hardware: false, ..carried };
        if let Some(past) = self.past.get(name) {
            carried.packets = carried.packets.wrapping_add(past.carried.packets);
            carried.bytes = carried.bytes.wrapping_add(past.carried.bytes);
        } else if self.past.len() >= PAST {
            return Ok(idle_ms);
        }
        self.past.insert(*name, Past { carried, put, seen });
        Ok(idle_ms)
    }

    /// Takes a flow out of the table, or from among those that wait; how it was, if it was there.
    fn remove(&mut self, name: &Name) -> Result<Option<Held>, Lost> {
        self.stop_waiting(name);
        let Some(mut held) = self.held.remove(name) else { return Ok(None) };
        self.held_by.give_back(held.from);
        let carried = self.table.delete(&name.0, &name.1)?;
        // What it says at the end is all, or nothing: then what it last said is.
        let carried = if carried.packets >= held.carried.packets { carried } else { held.carried };
        self.account(&mut held, carried);
        Ok(Some(held))
    }

    fn clear(&mut self) -> Result<(), Lost> {
        self.waiting.clear();
        self.waiting_of = Shares::default();
        self.order.clear();
        self.past.clear();
        if !self.held.is_empty() {
            self.look()?;
        }
        // Also where none is known to be there: it is cheap, and nothing may be left.
        self.table.clear()?;
        self.held.clear();
        self.held_by = Shares::default();
        Ok(())
    }

    /// Has the table say what flows have carried.
    pub fn look(&mut self) -> Result<(), Lost> {
        self.looked = Some(Instant::now());
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
