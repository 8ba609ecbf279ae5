//! A device with a small table of rules.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// A device's table of rules is a cache of the flows that control has. What came of the packets that met no rule there, since control started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct DeviceTable {
    /// Places of the table.
    pub rules: u64,
    /// Packets that were judged, and a flow made for them.
    pub judged: u64,
    /// Packets that were answered by a flow that control has, which was put into the table once more.
    pub recached: u64,
    /// Packets that were answered by a flow that control has, and had sent less than 50 ms before.
    pub under_way: u64,
    /// What would have crossed the bus between a card and its host.
    pub bus: DeviceBus,
    /// Where it walks the larger table before it asks control: what that came to, since the two were last connected.
    pub walk: Option<DeviceWalk>,
    /// Where it has a DMA engine: what that has copied, since the device's process began.
    pub dma: Option<DeviceDma>,
}

/// The DMA engine of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct DeviceDma {
    /// What it is: `software`, a thread.
    pub engine: String,
    /// `runs`, or `hangs`: it is given nothing any more, and the processor copies.
    pub state: String,
    /// Copies of up to so many bytes are the processor's.
    pub threshold: u64,
    /// Copies that it has completed.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that it has completed in part only; the processor has copied the rest.
    pub errors: u64,
    /// The most copies that were asked for before a copy and completed after it.
    pub overtaken: u64,
    /// Copies that found its ring full, and the processor has made.
    pub full: u64,
    /// Copies that had to be summed as well, and the processor has made.
    pub summed: u64,
    /// Copies that were taken back when it hung, and the processor has made.
    pub taken_back: u64,
    /// Copies that it hung in: their ports broke.
    pub lost: u64,
}

/// Walks of the table of all flows, in the host's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct DeviceWalk {
    /// Flows in it.
    pub flows: u64,
    /// How often a flow was left out, as it has more actions than there is room for.
    pub left_out: u64,
    /// Packets that met no rule of the small table.
    pub walks: u64,
    /// Those of them whose flow was found: control has not heard of them.
    pub hits: u64,
    /// Rules that were put into the small table for them.
    pub installed: u64,
    /// Nanoseconds of all walks.
    pub ns: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// What a device would have moved if it were a card, as of the last list of ports: counted where `docs/device.md` says so, and computed from
/// counts elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct DeviceBus {
    /// Bytes that would have crossed the bus, by what they are.
    pub bus_bytes: BusBytes,
    /// Bytes between VMs, and of packets that waited for control, which the host's DMA engine would have moved within its memory.
    pub dma_bytes: u64,
    /// Bytes of the same packets across the bus if the card switched whole frames: each twice.
    pub whole_frame_bytes: u64,
}

/// Bytes across the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct BusBytes {
    /// Descriptors of both sides' rings, and their entries that make them available and used.
    pub descriptors: u64,
    /// Headers read to decide, and those written where packets go.
    pub headers: u64,
    /// Rules put into the table and taken out.
    pub rules: u64,
    /// What was read of the larger table in walks.
    pub walks: u64,
    /// Headers of packets for which there was no rule, to control, and its answers.
    pub punts: u64,
    /// What else the device and control say to each other: how ports are, what rules have carried.
    pub talk: u64,
    /// Commands to the DMA engine, and its completion records.
    pub dma: u64,
    /// Doorbells and interrupts.
    pub signals: u64,
    /// Packets between VMs and the device's own uplinks.
    pub wire: u64,
}

impl BusBytes {
    /// Of all kinds.
    pub fn sum(&self) -> u64 {
        let Self { descriptors, headers, rules, walks, punts, talk, dma, signals, wire } = *self;
        [descriptors, headers, rules, walks, punts, talk, dma, signals, wire].into_iter().fold(0, u64::saturating_add)
    }
}
