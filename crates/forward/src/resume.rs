//! Packets that do not come from a burst: those that waited for control, and those the switch sends itself.
//!
//! All of this is done by one thread, the one that talks to control. It counts in [`Port::answers`], which nobody else writes, and so it
//! never waits for a burst of the port that a packet came from, nor does that burst wait for it: an answer takes the lock of the
//! queue that the packet goes to, for that one packet, and the leaf lock of the port's misses.

use crate::burst::{Forwarder, fail};
use crate::deliver::{Target, Undelivered};
use crate::miss::MISS_SLOTS;
use crate::packet::Packet;
use crate::port::Port;
use lasthop_flow::{Action, FlowSpec, InsertError};
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_guestmem::{GuestMemory, GuestSlice};
use lasthop_types::{DropReason, PortCounters, PortId};
use lasthop_virtqueue::QueueError;

/// Packets that waited for a flow, on their way as it says.
#[derive(Default)]
struct Resumed {
    /// A queue of the port had stalled.
    goes_on: bool,
    packets: u64,
    bytes: u64,
}

impl Forwarder {
    /// Control's answer to a miss: does `actions` with the waiting packet. True if a queue of the port had stalled and
    /// can be looked at again. Unknown ids are ignored: the packet may have timed out.
    pub fn resume(&mut self, port: &Port, id: u32, actions: &[Action]) -> bool {
        self.resume_with(port, id, |this, packet, piece, counters| {
            let mut outputs = 0;
            for action in actions {
                outputs += 1;
                match action {
                    Action::Output(to) if *to == port.id => counters.drops.add(DropReason::Hairpin, 1),
                    Action::Output(to) => this.deliver_one(*to, packet, piece, counters),
                    Action::Drop(reason) => counters.drops.add(*reason, 1),
                    _ => counters.drops.add(DropReason::BadAction, 1),
                }
            }
            match outputs {
                0 => counters.drops.add(DropReason::Policy, 1),
                n => counters.replicated.add(n - 1),
            }
        })
    }

    /// Installs a flow. Packets of its port that wait for just this are sent on first, so that those which meet the flow
    /// do not overtake them. True if a queue of the port had stalled and can be looked at again.
    pub fn install(&mut self, flow: FlowSpec) -> Result<bool, InsertError> {
        self.follow_ports();
        let of_port = flow.mask.0.in_port == u32::MAX;
        let port = self.ports.get(flow.key.port()).filter(|_| of_port).cloned();
        let (key, mask, actions) = (flow.key.masked(&flow.mask), flow.mask, flow.actions.clone());
        let before = self.resume_all(port.as_deref(), &key, &mask, &actions);
        let now_ms = self.datapath.now_ms();
        let flow = self.datapath.flows().insert(flow, now_ms)?;
        // And those that were on their way to wait meanwhile.
        let after = self.resume_all(port.as_deref(), &key, &mask, &actions);
        let (packets, bytes) = (before.packets + after.packets, before.bytes + after.bytes);
        if packets > 0 {
            flow.stats.add(self.writer, packets, bytes, now_ms);
        }
        Ok(before.goes_on || after.goes_on)
    }

    fn resume_all(&mut self, port: Option<&Port>, key: &FlowKey, mask: &FlowMask, actions: &[Action]) -> Resumed {
        let mut resumed = Resumed::default();
        // No more than there are places: a guest could fill them as fast as we empty them.
        for _ in 0..MISS_SLOTS {
            let Some((port, (id, bytes))) = port.and_then(|p| Some((p, p.misses.oldest_for(key, mask)?))) else {
                break;
            };
            resumed.goes_on |= self.resume(port, id, actions);
            (resumed.packets, resumed.bytes) = (resumed.packets + 1, resumed.bytes + bytes as u64);
        }
        resumed
    }

    /// Drops packets of `port` that have waited since before `before_ms`; how many. If there were any, the port's queues
    /// may have stalled and can be looked at again.
    pub fn expire(&mut self, port: &Port, before_ms: u64) -> usize {
        let mut expired = 0;
        while let Some(id) = port.misses.older_than(before_ms) {
            expired += 1;
            self.resume_with(port, id, |_, _, _, counters| counters.drops.add(DropReason::MissTimeout, 1));
        }
        expired
    }

    fn resume_with(
        &mut self,
        port: &Port,
        id: u32,
        act: impl FnOnce(&mut Self, &mut Packet, &[GuestSlice<'_>], &PortCounters),
    ) -> bool {
        self.follow_ports();
        let mut packet = Packet::default();
        let Some(left) = port.misses.take(id, &mut packet) else { return false };
        if let Some(piece) = port.misses.bytes(&left, &packet) {
            act(self, &mut packet, &[piece], &port.answers);
        }
        port.misses.free(&left)
    }

    fn deliver_one(&mut self, to: PortId, packet: &mut Packet, pieces: &[GuestSlice<'_>], counters: &PortCounters) {
        let Some(port) = self.ports.get(to) else { return counters.drops.add(DropReason::NoPort, 1) };
        let Some(queue) = port.queue_to_guest(packet.steering_hash(pieces)).or(port.queues.first().map(|q| &**q))
        else {
            return;
        };
        let mut guard = queue.lock();
        let Some(active) = guard.active() else { return queue.counters.drops.add(DropReason::PortDown, 1) };
        let memory = active.memory.clone();
        let mut target = Target::new(active, &memory, port.mtu(), &queue.counters, 1);
        let error = match target.deliver(packet, pieces, false) {
            Ok(()) => memory.faulted().then_some(QueueError::MemoryFault),
            Err(Undelivered::NoBuffers) => {
                target.count_drop(DropReason::NoBuffers);
                None
            }
            Err(Undelivered::Drop(reason)) => {
                target.count_drop(reason);
                None
            }
            Err(Undelivered::Broken(error)) => {
                target.count_drop(DropReason::ReceiverBroken);
                Some(error)
            }
        };
        let call = target.publish();
        drop(target);
        if call && port.interrupts_now(queue, 1) {
            guard.call();
        }
        if let Some(error) = error {
            fail(&self.datapath, port, queue.index(), &mut guard, error);
        }
    }

    /// Has the switch itself send a frame (without virtio-net header) as if it came from `port`: it waits for control
    /// like any first packet. False if there is no room for it to wait.
    pub fn inject(&mut self, port: &Port, frame: &[u8], now_ms: u64) -> bool {
        let Ok(memory) = GuestMemory::anonymous(4096) else { return false };
        let Ok(piece) = memory.slice(0, frame.len()) else { return false };
        piece.write(0, frame);
        let mut packet = Packet::default();
        let read = packet.read_frame(&piece, port.id);
        packet.extract(Depth::Full);
        let parked = read.is_ok() && port.misses.park(&packet, &[piece], now_ms).is_ok();
        if parked {
            port.answers.packets.add(1);
            port.answers.bytes.add(frame.len() as u64);
            port.answers.missed.add(1);
            self.datapath.note_missed();
        }
        parked
    }

    /// Full key of a frame as if it came from `port`.
    pub fn key_of(port: PortId, frame: &[u8], frame_len: usize) -> FlowKey {
        let mut key = FlowKey { in_port: port.0, ..FlowKey::default() };
        lasthop_frame::extract(&mut key, frame, frame_len.max(frame.len()), Depth::Full);
        key
    }
}
