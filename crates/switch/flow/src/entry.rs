//! One installed flow.

use crate::spec::{Action, FlowSpec};
use lasthop_frame::{Depth, FlowKey, FlowMask};
use lasthop_types::PortId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// An installed flow, shared by the table and every worker's cache. Only its statistics and its death ever change.
///
/// A cache hit reads the first 128 bytes for a flow of [`Depth::L2`] that has one output, 64 more for one of [`Depth::L4`]; the
/// statistics, which workers write, have a line of their own.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Flow {
    head: [[u64; HEAD]; 2],
    depth: Depth,
    dead: AtomicBool,
    only_output: Option<PortId>,
    behind: [[u64; BEHIND]; 2],
    /// What to do with a packet that matches; empty drops it. Flows share equal lists that are long.
    pub actions: Arc<[Action]>,
    /// Policy epoch in which it was computed.
    pub epoch: u64,
    /// Masked key.
    pub key: FlowKey,
    /// Bits that matter.
    pub mask: FlowMask,
    /// What it has carried.
    pub stats: FlowStats,
}

/// Words of a key that are compared for flows of [`Depth::L2`], and those that are for others besides.
const HEAD: usize = Depth::L2.words();
const BEHIND: usize = Depth::L4.words() - HEAD;

impl Flow {
    pub(crate) fn new(spec: FlowSpec, actions: Arc<[Action]>, now_ms: u64) -> Self {
        let key = spec.key.masked(&spec.mask);
        let both = [&key, &spec.mask.0];
        Self {
            head: both.map(|k| std::array::from_fn(|i| k.words()[i])),
            depth: spec.mask.depth(),
            dead: AtomicBool::new(false),
            only_output: if let [Action::Output(to)] = *actions { Some(to) } else { None },
            behind: both.map(|k| std::array::from_fn(|i| k.words()[HEAD + i])),
            actions,
            epoch: spec.epoch,
            key,
            mask: spec.mask,
            stats: FlowStats { last_used_ms: AtomicU64::new(now_ms), ..FlowStats::default() },
        }
    }

    /// Whether a packet with this key meets the flow. Reads the key only as deep as [`Flow::depth`].
    #[inline(always)]
    pub fn matches(&self, key: &FlowKey) -> bool {
        let (words, [head, mask]) = (key.words(), &self.head);
        same(words, head, mask) && (self.depth == Depth::L2 || self.matches_behind_head(words))
    }

    #[inline(always)]
    fn matches_behind_head(&self, words: &[u64; Depth::Full.words()]) -> bool {
        let [behind, mask] = &self.behind;
        let (_, rest) = words.split_at(HEAD);
        same(rest, behind, mask) && (self.depth == Depth::L4 || same(words, self.key.words(), self.mask.0.words()))
    }

    /// The port it sends to, if that is all that it does.
    #[inline]
    pub fn only_output(&self) -> Option<PortId> {
        self.only_output
    }

    /// How much of a key its mask looks at.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// It was removed, replaced or evicted and must not be used any more. Packets already on their way with it may
    /// finish: a removal takes effect at the workers' next burst.
    pub fn is_dead(&self) -> bool {
        // Relaxed: nothing is read because of it, and one burst more or less is promised to nobody.
        self.dead.load(Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Relaxed);
    }

    /// As control would install it.
    pub fn spec(&self) -> FlowSpec {
        FlowSpec { key: self.key, mask: self.mask, actions: self.actions.to_vec(), epoch: self.epoch }
    }
}

/// Whether words agree with a masked key. Of a number that the compiler knows and without a branch in between: two words at a time, in
/// vector registers.
#[inline(always)]
fn same<const N: usize>(words: &[u64], key: &[u64; N], mask: &[u64; N]) -> bool {
    let words = words.first_chunk().unwrap_or(&[0; N]);
    (0..N).fold(0, |difference, i| difference | (words[i] ^ key[i]) & mask[i]) == 0
}

/// What a flow has carried. Any thread may add and read. Nearly always one thread carries all packets of a flow: the first
/// that does has counters of its own and needs no atomic addition; all others share the rest.
///
/// All of it is Relaxed: numbers that nothing else is read by. Of the one thread's counters only that thread writes, so they need no more either.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct FlowStats {
    /// The [`WriterId`] that has the first two counters for itself; 0 while nobody does.
    writer: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    others_packets: AtomicU64,
    others_bytes: AtomicU64,
    last_used_ms: AtomicU64,
}

/// A thread that adds to statistics: unique in the process, one for each thread that carries packets.
#[derive(Clone, Copy, Debug)]
pub struct WriterId(u64);

impl Default for WriterId {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: each number is given once, in whatever order.
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl FlowStats {
    /// Adds what one burst carried; `now_ms` is the clock that [`FlowTable::insert`](crate::FlowTable::insert) gets.
    #[inline]
    pub fn add(&self, writer: WriterId, packets: u64, bytes: u64, now_ms: u64) {
        let own = self.writer.load(Relaxed);
        if own == writer.0 || own == 0 && self.writer.compare_exchange(0, writer.0, Relaxed, Relaxed).is_ok() {
            self.packets.store(self.packets.load(Relaxed).wrapping_add(packets), Relaxed);
            self.bytes.store(self.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        } else {
            self.others_packets.fetch_add(packets, Relaxed);
            self.others_bytes.fetch_add(bytes, Relaxed);
        }
        // Not one atomic step: of two workers either one's time will do.
        if self.last_used_ms() < now_ms {
            self.last_used_ms.store(now_ms, Relaxed);
        }
    }

    /// Carries the statistics of a flow that this one replaces over.
    pub(crate) fn inherit(&self, old: &Self) {
        self.others_packets.fetch_add(old.packets(), Relaxed);
        self.others_bytes.fetch_add(old.bytes(), Relaxed);
        self.last_used_ms.fetch_max(old.last_used_ms(), Relaxed);
    }

    /// Packets so far.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed).wrapping_add(self.others_packets.load(Relaxed))
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed).wrapping_add(self.others_bytes.load(Relaxed))
    }

    /// When a packet last met the flow, or when it was installed.
    pub fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    #[test]
    fn hot_fields_share_lines_and_statistics_do_not() {
        assert_eq!(align_of::<Flow>(), 64);
        // What a hit at the link layer reads, then the halves that one at addresses and ports reads besides.
        assert!(
            [offset_of!(Flow, depth), offset_of!(Flow, dead), offset_of!(Flow, only_output)].iter().all(|at| *at < 80)
        );
        assert_eq!(offset_of!(Flow, behind) + size_of::<[u64; BEHIND]>(), 128);
        assert_eq!(offset_of!(Flow, stats) % 64, 0);
        assert_eq!(size_of::<FlowStats>(), 64);
    }

    #[test]
    fn nothing_is_lost_between_writers() {
        let stats = FlowStats::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let writer = WriterId::default();
                    for now in 0..20_000 {
                        stats.add(writer, 1, 60, now);
                    }
                });
            }
        });
        assert_eq!((stats.packets(), stats.bytes(), stats.last_used_ms()), (60_000, 3_600_000, 19_999));
        let heir = FlowStats::default();
        heir.inherit(&stats);
        heir.add(WriterId::default(), 1, 60, 5);
        assert_eq!((heir.packets(), heir.bytes(), heir.last_used_ms()), (60_001, 3_600_060, 19_999));
    }

    #[test]
    fn every_bit_of_the_mask_counts_and_no_other() {
        use lasthop_frame::FlowMask;
        use zerocopy::{FromBytes, IntoBytes};
        let key = FlowKey::read_from_bytes(&[0x5a; size_of::<FlowKey>()]).unwrap();
        for at in 0..size_of::<FlowKey>() {
            let mut mask = FlowMask::default();
            mask.0.as_mut_bytes()[at] = 0x0f;
            let flow = Flow::new(FlowSpec { key, mask, actions: vec![], epoch: 0 }, Arc::default(), 0);
            for other in 0..size_of::<FlowKey>() {
                for bit in 0..8 {
                    let mut key = key;
                    key.as_mut_bytes()[other] ^= 1 << bit;
                    assert_eq!(flow.matches(&key), other != at || bit >= 4, "byte {other} bit {bit}, mask at {at}");
                }
            }
        }
    }
}
