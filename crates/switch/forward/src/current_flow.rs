//! The flow that the packet before met, and where the next one is looked up if it is of another.

use crate::burst::Burst;
use crate::datapath::Datapath;
use crate::packet::Packet;
use crate::steps::Step;
use crate::upcall::Upcalls;
use lasthop_flow::{Action, ExactCache, Flow, FlowTable, Lookup, Slot, WriterId, hash_key};
use lasthop_frame::Depth;
use lasthop_guestmem::GuestSlice;
use lasthop_types::{DropReason, PortId};
use std::sync::Arc;

/// What is to become of a packet.
pub(crate) enum Decision {
    /// It goes to this port. `link_layer_only`: its flow looks at no more, so that packets of the same link layer go there too.
    To {
        port: PortId,
        link_layer_only: bool,
    },
    /// All actions of this flow are carried out on it.
    Many(Arc<Flow>),
    Drop(DropReason),
    Miss,
    /// It stays where it is, because packets that missed its flow a moment ago wait for control.
    Stall,
}

/// The flow of a burst that the last packet met. Packets of one flow often follow each other, so the next packet is compared with that
/// first.
pub(crate) struct CurrentFlow<'a> {
    flows: &'a FlowTable,
    writer: WriterId,
    /// How deep flows look, as far as this burst has noticed: packets are read, compared and repeated by it, so it goes down as
    /// soon as a flow is met that looks deeper. That flow holds for all packets behind.
    pub(crate) depth: Depth,
    now_ms: u64,
    /// Where in the cache the flow is that the last packet met.
    slot: Option<Slot>,
    /// The packets of the port that wait for a control that answers: what comes behind them does not overtake them. Looked at where a
    /// flow is not in the cache yet, as it is not where packets have just missed it.
    upcalls: Option<&'a Upcalls>,
    /// They hold up the last packet.
    stalled: bool,
}

impl<'a> CurrentFlow<'a> {
    pub(crate) fn new(burst: &Burst<'a, '_>, datapath: &'a Datapath, writer: WriterId) -> Self {
        let flows = datapath.flows();
        let upcalls = datapath.control_answers().then_some(&burst.port.upcalls);
        let (depth, now_ms) = (flows.depth(), burst.now_ns / 1_000_000);
        Self { flows, writer, depth, now_ms, slot: None, upcalls, stalled: false }
    }

    /// The flow's word on a packet, which it `counts` unless that was looked at before. `pieces` is what it was read from; `cache` is the
    /// same in all calls.
    pub(crate) fn decide(
        &mut self,
        cache: &mut ExactCache,
        packet: &mut Packet,
        pieces: &[GuestSlice<'_>],
        counts: bool,
    ) -> Decision {
        packet.extract(self.depth);
        // Flows that overlap agree, so the one that the last packet met is as good as any other.
        if !self.flow(cache).is_some_and(|flow| flow.depth() <= self.depth && flow.matches(&packet.key)) {
            self.slot = self.look_up(cache, packet, pieces);
        }
        debug_assert!(self.flow(cache).is_none_or(|flow| flow.depth() <= self.depth), "found by more than is compared");
        let Some(flow) = self.flow(cache) else {
            return if self.stalled { Decision::Stall } else { Decision::Miss };
        };
        if counts {
            self.count(flow, 1, packet.frame_len);
        }
        let link_layer_only = self.depth == Depth::L2;
        let step = match &*flow.actions {
            // Nearly all: found without asking what else there is.
            [Action::Output(to)] if *to != packet.port => return Decision::To { port: *to, link_layer_only },
            [] => Step::Drop(DropReason::Policy),
            [action] => Step::of(action, packet.port),
            _ => return Decision::Many(flow.clone()),
        };
        match step {
            Step::To(port) => Decision::To { port, link_layer_only },
            Step::Drop(reason) => Decision::Drop(reason),
            _ => Decision::Many(flow.clone()),
        }
    }

    /// The flow that the last packet met.
    #[inline]
    pub(crate) fn flow<'c>(&self, cache: &'c ExactCache) -> Option<&'c Arc<Flow>> {
        self.slot.and_then(|slot| cache.get(slot))
    }

    /// Asks the cache, then the wildcard table; again if a flow came that looks deeper than the packet was classified to.
    fn look_up(&mut self, cache: &mut ExactCache, packet: &mut Packet, pieces: &[GuestSlice<'_>]) -> Option<Slot> {
        let mut hash = hash_key(&packet.key, self.depth);
        if let Some(slot) = cache.find(&packet.key, self.depth, hash) {
            return Some(slot);
        }
        loop {
            match self.flows.lookup(&packet.key, self.depth) {
                Lookup::Flow(flow) => {
                    self.stalled = self.upcalls.is_some_and(|upcalls| upcalls.go_before(&flow));
                    return (!self.stalled).then(|| cache.put(hash, flow));
                }
                Lookup::Miss => return None,
                Lookup::Deeper(deeper) => {
                    self.depth = deeper;
                    packet.extract_to(pieces, deeper);
                    hash = hash_key(&packet.key, deeper);
                }
            }
        }
    }

    /// Adds packets to the statistics of a flow.
    #[inline]
    pub(crate) fn count(&self, flow: &Flow, packets: usize, bytes: usize) {
        flow.stats.add(self.writer, packets as u64, bytes as u64, self.now_ms);
    }
}
