//! What control has decided and is still to be carried out: of each port in turn, a step at a time.

use crate::burst::Forwarder;
use crate::deliver::WORK;
use crate::resume::Order;
use lasthop_flow::InsertError;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// So often a port's order finds somebody else on its receiver before that is waited for, whatever there is to do for others.
const REFUSALS: u32 = 16;
/// With more orders than these none waits for its receiver's buffers to be translated: the places are everybody's.
const MOST_PARKED: usize = 64;
/// How long until they are looked at again.
const PAUSE: Duration = Duration::from_millis(1);

/// Orders of all ports; those of one port are carried out in the order in which they came. Used by the thread that talks to control.
/// It holds no more than control has sent of what waits, and the thread that reads from control stops when there are too many.
#[derive(Debug, Default)]
pub struct Orders {
    of: BTreeMap<PortId, OfPort>,
    /// Whose turn is next.
    next: PortId,
    len: usize,
    /// All that is left waits for translations.
    parked: bool,
    /// Somebody waits until all are carried out: none waits for translations.
    pub hurried: bool,
}

/// Orders about one port.
#[derive(Debug, Default)]
struct OfPort {
    orders: VecDeque<Order>,
    /// How often the first one has found somebody else on its receiver.
    refused: u32,
}

impl Orders {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long they can be left alone.
    pub fn pause(&self) -> Duration {
        if self.parked { PAUSE } else { Duration::ZERO }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// One more, about `port`.
    pub fn push(&mut self, port: PortId, order: Order) {
        self.of.entry(port).or_default().orders.push_back(order);
        self.len += 1;
    }

    /// A change of flows. It is made at once, before anything that control says after it, unless packets wait for the flow, which go
    /// first: then there is no older flow that they could have met. Some: it is done.
    pub fn change(
        &mut self,
        forwarder: &mut Forwarder,
        port: PortId,
        key: &FlowKey,
        mask: &FlowMask,
        mut order: Order,
    ) -> Option<Result<bool, InsertError>> {
        let before = self.of.get(&port).is_some_and(|of| of.orders.iter().any(|order| order.is_about(key, mask)));
        while !before && order.result().is_none() && !order.sends() {
            forwarder.carry_out(&mut order, true);
        }
        let result = order.result();
        if result.is_none() {
            self.push(port, order);
        }
        result
    }

    /// The port is gone.
    pub fn forget(&mut self, port: PortId) {
        for mut order in self.of.remove(&port).into_iter().flat_map(|of| of.orders) {
            self.len -= 1;
            order.give_up();
        }
    }

    /// Does as much as a burst does with its locks held, and tells `done` of each order that came to its end: about which port it
    /// was, and its [`Order::result`]. Threads that wait for the locks of receivers, or for this thread, have their turn then. A receiver that
    /// somebody else is on holds up no other port's orders: it is waited for when all wait for such, or when one has been refused
    /// [`REFUSALS`] times, and then the round is over; or when all that are left wait for buffers to be translated.
    pub fn round(&mut self, forwarder: &mut Forwarder, mut done: impl FnMut(PortId, Result<bool, InsertError>)) {
        let (mut work, mut held_up) = (0, 0);
        (self.parked, forwarder.parks) = (false, !self.hurried && self.len <= MOST_PARKED);
        while work < WORK {
            let ports = self.of.len();
            let next = self.of.range(self.next..).next().or(self.of.iter().next()).map(|(port, _)| *port);
            let Some((port, of)) = next.and_then(|port| Some((port, self.of.get_mut(&port)?))) else { return };
            self.next = PortId(port.0.wrapping_add(1));
            if let Some(order) = of.orders.front_mut() {
                let wait = held_up >= ports || of.refused >= REFUSALS;
                let Some(took) = forwarder.carry_out(order, wait) else {
                    self.parked = held_up >= ports;
                    if self.parked {
                        return;
                    }
                    held_up += 1;
                    of.refused = if wait { 0 } else { of.refused + 1 };
                    continue;
                };
                (held_up, of.refused) = (0, 0);
                work += if wait { WORK } else { took };
                let Some(result) = order.result() else { continue };
                of.orders.pop_front();
                self.len -= 1;
                done(port, result);
            }
            if of.orders.is_empty() {
                self.of.remove(&port);
            }
        }
    }
}
