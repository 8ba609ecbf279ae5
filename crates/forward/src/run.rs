//! Packets of one flow that follow each other: the flow is looked up, and its statistics are written, once.

use crate::packet::Packet;
use lasthop_flow::{Action, ExactCache, Flow, FlowTable, Lookup, hash_key};
use lasthop_frame::{Depth, FlowKey};
use lasthop_types::{DropReason, PortId};
use std::sync::Arc;

/// What is to become of a packet.
pub(crate) enum Verdict {
    To(PortId),
    Many(Arc<Flow>),
    Drop(DropReason),
    Miss,
}

/// The packets seen since the flow last changed.
#[derive(Default)]
pub(crate) struct Run {
    flow: Option<Arc<Flow>>,
    key: FlowKey,
    hash: u64,
    /// The last packet's key was that of the one before.
    pub(crate) repeats: bool,
    packets: u64,
    bytes: u64,
}

impl Run {
    /// The flow's word on a packet classified to `depth`. A packet judged before is not `counted` again.
    #[inline]
    pub(crate) fn verdict(
        &mut self,
        flows: &FlowTable,
        cache: &mut ExactCache,
        packet: &mut Packet,
        depth: Depth,
        now_ms: u64,
        counted: bool,
    ) -> Verdict {
        if self.flow.is_some() && same(&self.key, &packet.key, depth) {
            packet.hash = self.hash;
            self.repeats = true;
        } else {
            self.repeats = false;
            self.end(now_ms);
            self.key = packet.key;
            packet.hash = hash_key(&packet.key, depth);
            self.hash = packet.hash;
            self.flow = cache.get(&packet.key, depth, packet.hash).cloned();
            if self.flow.is_none() {
                self.flow = look_up(flows, packet, depth);
                if let Some(flow) = &self.flow {
                    cache.put(packet.hash, flow);
                }
            }
        }
        let Some(flow) = &self.flow else { return Verdict::Miss };
        if counted {
            self.packets += 1;
            self.bytes += packet.frame_len as u64;
        }
        match *flow.actions {
            [] => Verdict::Drop(DropReason::Policy),
            [Action::Output(to)] => Verdict::To(to),
            [Action::Drop(reason)] => Verdict::Drop(reason),
            _ => Verdict::Many(flow.clone()),
        }
    }

    /// Writes the statistics.
    #[inline]
    pub(crate) fn end(&mut self, now_ms: u64) {
        if let Some(flow) = self.flow.take()
            && self.packets > 0
        {
            flow.stats.add(self.packets, self.bytes, now_ms);
        }
        (self.packets, self.bytes) = (0, 0);
    }
}

/// Asks the classifier, again if a flow came that looks deeper than the packet was classified to.
fn look_up(flows: &FlowTable, packet: &mut Packet, mut depth: Depth) -> Option<Arc<Flow>> {
    loop {
        match flows.lookup(&packet.key, depth) {
            Lookup::Flow(flow) => return Some(flow),
            Lookup::Miss => return None,
            Lookup::Deeper(deeper) => {
                depth = deeper;
                packet.classify(depth);
            }
        }
    }
}

#[inline]
fn same(a: &FlowKey, b: &FlowKey, depth: Depth) -> bool {
    let (a, b) = (a.words(), b.words());
    // Word by word: for 32 bytes a call to memcmp costs more than the comparison.
    let words = a.iter().zip(b).take(depth.words());
    if depth == Depth::L2 {
        const N: usize = Depth::L2.words();
        let (Some(a), Some(b)) = (a.first_chunk::<N>(), b.first_chunk::<N>()) else { return false };
        return a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0;
    }
    words.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
