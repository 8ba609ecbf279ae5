//! Packets of a burst by destination, and which of them are dealt with.

use arrayvec::ArrayVec;
use lasthop_types::PortId;

/// Deliveries collected before they are made.
const MAX_DELIVERIES: usize = 512;
/// Destinations among them.
const MAX_GROUPS: usize = 64;
/// Receivers that packets of one burst may wait for.
const MAX_HELD: usize = 8;
const NONE: u16 = u16::MAX;

/// What is to be delivered where, each destination's in the order it came.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    groups: ArrayVec<Group, MAX_GROUPS>,
    nodes: ArrayVec<Node, MAX_DELIVERIES>,
    /// Receivers for which packets of this burst wait: those that follow must not overtake them.
    held: ArrayVec<(PortId, u16), MAX_HELD>,
    /// Where the last delivery that may wait goes.
    last: Option<usize>,
    /// Bit per packet of the burst: delivered or dropped.
    pub(crate) dealt: u64,
}

/// One receiver's ring and the packets for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) port: PortId,
    /// Index of the vring.
    pub(crate) queue: u16,
    first: u16,
    last: u16,
    len: u16,
}

/// A packet on its way to one receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// Its place in the burst.
    pub(crate) packet: u16,
    /// It has no other destination, so it may wait for this one.
    pub(crate) may_wait: bool,
    next: u16,
}

impl Plan {
    /// Forgets the last burst. `dealt` is what was dealt with of this one before.
    pub(crate) fn begin(&mut self, dealt: u64) {
        self.clear();
        self.held.clear();
        self.dealt = dealt;
    }

    /// Notes that packet `i` is delivered or dropped.
    #[inline]
    pub(crate) fn set_dealt(&mut self, i: usize) {
        self.dealt |= 1 << (i & 63);
    }

    /// Whether packet `i` is.
    #[inline]
    pub(crate) fn is_dealt(&self, i: usize) -> bool {
        self.dealt & 1 << (i & 63) != 0
    }

    /// A packet before has to wait for this receiver.
    #[inline]
    pub(crate) fn is_held(&self, port: PortId, queue: u16) -> bool {
        self.held.contains(&(port, queue))
    }

    /// Has this burst's packets wait for a receiver; false if packets wait for too many already.
    pub(crate) fn hold(&mut self, port: PortId, queue: u16) -> bool {
        self.held.try_push((port, queue)).is_ok()
    }

    /// Adds a delivery. False when there is no room: make those that are there, then add it again.
    #[inline]
    pub(crate) fn add(&mut self, packet: usize, may_wait: bool, port: PortId, queue: u16) -> bool {
        let node = self.nodes.len() as u16;
        if self.nodes.is_full() {
            return false;
        }
        let known = self.groups.iter().rposition(|g| g.port == port && g.queue == queue);
        self.last = if may_wait { Some(known.unwrap_or(self.groups.len())) } else { None };
        if let Some(group) = known.and_then(|n| self.groups.get_mut(n)) {
            if let Some(last) = self.nodes.get_mut(usize::from(group.last)) {
                last.next = node;
            }
            group.last = node;
            group.len += 1;
        } else if self.groups.try_push(Group { port, queue, first: node, last: node, len: 1 }).is_err() {
            return false;
        }
        self.nodes.push(Node { packet: packet as u16, may_wait, next: NONE });
        true
    }

    /// The packet at hand goes nowhere, or somewhere new: it is not to be repeated.
    #[inline]
    pub(crate) fn no_repeat(&mut self) {
        self.last = None;
    }

    /// Adds a delivery to where the last one went that may wait. False if there is none, or it is held, or no room.
    #[inline]
    pub(crate) fn repeat(&mut self, packet: usize) -> bool {
        let node = self.nodes.len() as u16;
        let Some(group) = self.last.and_then(|n| self.groups.get_mut(n)) else { return false };
        let Some(last) = self.nodes.get_mut(usize::from(group.last)) else { return false };
        last.next = node;
        if self.nodes.try_push(Node { packet: packet as u16, may_wait: true, next: NONE }).is_err() {
            if let Some(last) = self.nodes.get_mut(usize::from(group.last)) {
                last.next = NONE;
            }
            return false;
        }
        group.last = node;
        group.len += 1;
        true
    }

    /// The `n`th receiver.
    #[inline]
    pub(crate) fn group(&self, n: usize) -> Option<Group> {
        self.groups.get(n).copied()
    }

    /// Packets for a receiver.
    #[inline]
    pub(crate) fn len(&self, group: &Group) -> usize {
        usize::from(group.len)
    }

    /// The first packet for a receiver.
    #[inline]
    pub(crate) fn first(&self, group: &Group) -> Option<Node> {
        self.nodes.get(usize::from(group.first)).copied()
    }

    /// The packet after this one for the same receiver.
    #[inline]
    pub(crate) fn after(&self, node: &Node) -> Option<Node> {
        self.nodes.get(usize::from(node.next)).copied()
    }

    /// All deliveries have been made.
    pub(crate) fn clear(&mut self) {
        self.last = None;
        self.groups.clear();
        self.nodes.clear();
    }
}
