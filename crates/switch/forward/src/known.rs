//! Packets of flows that this thread knows, classified in a loop of their own.

use crate::burst::{Burst, Forwarder, work_to_cut};
use crate::current_flow::CurrentFlow;
use crate::packet::Packet;
use crate::pass::is_like;
use crate::plan::Plan;
use crate::port::PortTable;
use crate::repeat::Repeat;
use lasthop_flow::hash_key;
use lasthop_frame::{Depth, FlowKey, VnetHdr, extract};
use lasthop_types::PortId;
use lasthop_virtqueue::{Chains, PREFETCH, Queue};

/// How far [`Forwarder::classify_known`] has come.
#[derive(Clone, Copy)]
pub(crate) struct Classified {
    /// The first packet that is not classified.
    pub(crate) next: usize,
    /// That packet has been read, and is not to be read again.
    pub(crate) is_read: bool,
    /// What it takes to deliver those that were classified.
    pub(crate) work: usize,
}

impl Forwarder {
    /// Classifies packets of a burst from the `next` on, up to the first that is not what most are: one of a flow that this thread knows,
    /// which sends to one port and does nothing else, where others go already that are planned, or that has several queues. It ends, too, in front of what
    /// [`Repeat`] takes, if the burst `passes_on`, and when it takes `most` work to deliver those classified.
    ///
    /// Takes for granted that frames lie behind a header of [`VnetHdr::LEN`], and that none of the burst was looked at before. A
    /// function of its own, so that what it works with stays in registers.
    #[inline(never)]
    pub(crate) fn classify_known(
        &mut self,
        current: &CurrentFlow<'_>,
        burst: &Burst<'_, '_>,
        next: usize,
        most: usize,
        passes_on: bool,
    ) -> Classified {
        let mut done = Classified { next, is_read: false, work: 0 };
        let (chains, port, depth) = (burst.chains, burst.port.id, current.depth);
        let Self { cache, packets, plan, ports, .. } = self;
        let Some((before, packets)) = packets.split_at_mut_checked(next) else { return done };
        let (Some(mut flow), Some(before)) = (current.flow(cache), before.last()) else { return done };
        let (mut head, mut comes_again) = (before.head(), true);
        let mut key = FlowKey { in_port: port.0, ..FlowKey::default() };
        for (packet, chain) in packets.iter_mut().zip(chains.list.get(next..).unwrap_or(&[])) {
            chains.prefetch(done.next + PREFETCH, false);
            if done.work >= most
                || !packet.read_simple(chain, port, depth)
                    && packet.read(chains, chain, VnetHdr::LEN, port, depth).is_err()
            {
                break;
            }
            done.is_read = true;
            if depth == Depth::L2 {
                let last = std::mem::replace(&mut head, packet.head());
                let passes_on = passes_on && is_like(last, head) && plan.repeat.destination.is_some();
                if passes_on && Repeat::may_begin(packet, chains, done.next + 1) {
                    break;
                }
            }
            extract(&mut key, packet.header(), packet.frame_len, depth);
            if !(comes_again && flow.depth() <= depth && flow.matches(&key)) {
                let Some(other) = cache.find(&key, depth, hash_key(&key, depth)).and_then(|slot| cache.get(slot))
                else {
                    break;
                };
                // Where the flow changes from packet to packet it is not worth a look whether the last one comes again.
                comes_again = std::ptr::eq(&**flow, &**other);
                flow = other;
            }
            let Some(to) = flow.only_output() else { break };
            if !plan.add_to_known(done.next, to) && !add_to_queue(plan, ports, done.next, packet, chains, to) {
                break;
            }
            current.count(flow, 1, packet.frame_len);
            let work = packet.frame_len + work_to_cut(packet);
            done = Classified { next: done.next + 1, is_read: false, work: done.work + work };
        }
        done
    }
}

/// Adds packet `i` to its queue of a port that has several, if that is one and nothing waits for that queue. A function of its own, so that
/// receivers with one queue do not pay for it.
#[inline(never)]
fn add_to_queue(
    plan: &mut Plan,
    ports: &PortTable,
    i: usize,
    packet: &mut Packet,
    chains: &Chains<'_>,
    to: PortId,
) -> bool {
    let Some(port) = ports.get(to).filter(|port| port.is_multi_queue() && to != packet.port) else { return false };
    let Some(chain) = chains.list.get(i) else { return false };
    let hash = packet.steering_hash(&chains.pieces(chain));
    let Some(queue) = port.queue_to_guest(hash, packet.port).map(Queue::index) else { return false };
    !plan.is_waited_for(to, queue) && plan.add(i, true, to, queue, false)
}
