//! A device with a small table of rules.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
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
    /// If a bus is named: what this comes to there.
    pub model: Option<BusModel>,
}

/// What the bytes of a device's account come to on a bus, if nothing is gathered; and what those of a card come to that takes whole frames in and
/// gives them out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct BusModel {
    /// Its name, as [`Bus`] has it.
    pub name: String,
    /// What it carries each way, what it puts around bytes included.
    pub bits_per_second: u64,
    /// Bytes to the card, with what the bus puts around them.
    pub to_card_bytes: u64,
    /// Bytes to its host, the same.
    pub to_host_bytes: u64,
    /// For how long the busier way was busy, in nanoseconds.
    pub busy_ns: u64,
    /// The same, with whole frames.
    pub whole_frame_busy_ns: u64,
    /// For how long a packet waits for it, on average, where nothing else does, in nanoseconds.
    pub packet_ns: u64,
    /// The same, with whole frames.
    pub whole_frame_packet_ns: u64,
}

/// A bus between a card and its host: PCI Express of a generation, with so many lanes. Written `pcie3x8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bus {
    generation: u8,
    lanes: u8,
}

impl Bus {
    /// What one lane carries each way, by generation: 2.5 and 5 GT/s with 8 bits in 10, and 8, 16 and 32 GT/s with 128 in 130 (PCI Express Base
    /// Specification 5.0, 4.2).
    const LANE: [u64; 5] = [2_000_000_000, 4_000_000_000, 7_876_923_076, 15_753_846_153, 31_507_692_307];

    /// Most bytes of one of its packets: what hosts usually allow.
    pub const PAYLOAD: u64 = 256;
    /// Most bytes that one packet asks for: what cards are usually allowed.
    pub const MOST_READ: u64 = 512;
    /// Bytes that it puts around each: start and sequence (4), a header with an address of 64 bits (16), a checksum (4).
    pub const OVERHEAD: u64 = 24;
    /// How long who reads waits for a few bytes of the host's memory. An assumption, in the middle of what is measured with cards.
    pub const ROUND_TRIP_NS: u64 = 600;

    /// Bits that it carries each way.
    pub fn bits_per_second(self) -> u64 {
        let lane = Self::LANE.get(usize::from(self.generation).wrapping_sub(1)).copied().unwrap_or_default();
        lane * u64::from(self.lanes)
    }
}

impl FromStr for Bus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.strip_prefix("pcie").and_then(|rest| rest.split_once('x'));
        let bus = numbers.and_then(|(generation, lanes)| {
            Some(Self { generation: generation.parse().ok()?, lanes: lanes.parse().ok()? })
        });
        let known = |bus: &Self| (1..=5).contains(&bus.generation) && matches!(bus.lanes, 1 | 2 | 4 | 8 | 16);
        let bus = bus.filter(|bus| known(bus) && bus.to_string() == text);
        bus.ok_or_else(|| {
            format!("{text}: no such bus; write pcie1 to pcie5, and x1, x2, x4, x8 or x16, as in pcie3x8")
        })
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pcie{}x{}", self.generation, self.lanes)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_is_named_and_has_a_rate() {
        let of = |text: &str| text.parse::<Bus>().map(|bus| (bus.to_string(), bus.bits_per_second() / 1_000_000));
        assert_eq!(of("pcie3x8"), Ok(("pcie3x8".into(), 63_015)));
        assert_eq!(of("pcie1x1"), Ok(("pcie1x1".into(), 2000)));
        assert_eq!(of("pcie5x16"), Ok(("pcie5x16".into(), 504_123)));
        for wrong in
            ["", "pcie", "pcie3", "pcie0x8", "pcie6x8", "pcie3x3", "pcie03x8", "pcie+3x8", "pcix3x8", "pcie3x8 "]
        {
            assert!(of(wrong).unwrap_err().contains("as in pcie3x8"), "{wrong}");
        }
    }
}
