//! What an uplink has carried, and why it has not carried the rest.

use lasthop_ipc::{UplinkCounters, UplinkDrops};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Why a frame was not carried.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[doc = $doc])+ $variant,)* }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

reasons! {
    /// The kernel did not take it: its header asks for what does not fit the frame.
    Refused = "refused",
    /// Longer than the device can send or a buffer can hold.
    TooLong = "too_long",
    /// The device is not up.
    DeviceDown = "device_down",
    /// The kernel had no memory or no room for it.
    NoRoom = "no_room",
    /// It had waited in the device while the switch was away.
    Stale = "stale",
    /// No Ethernet frame.
    TooShort = "too_short",
    /// A probe, of ours or of another lasthop.
    Probe = "probe",
    /// The uplink only listens: another on the same segment carries the frames.
    Blocked = "blocked",
}

/// Counters of one device; any thread adds and reads.
#[derive(Debug, Default)]
pub struct Counters {
    to_network: Way,
    from_network: Way,
    merged: AtomicU64,
    drops: [AtomicU64; NAMES.len()],
}

#[derive(Debug, Default)]
struct Way {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Frames of together so many bytes went out.
    pub fn sent(&self, packets: u64, bytes: u64) {
        self.to_network.packets.fetch_add(packets, Relaxed);
        self.to_network.bytes.fetch_add(bytes, Relaxed);
    }

    /// Frames of together so many bytes came in.
    pub fn received(&self, packets: u64, bytes: u64) {
        self.from_network.packets.fetch_add(packets, Relaxed);
        self.from_network.bytes.fetch_add(bytes, Relaxed);
    }

    /// So many frames became part of others.
    pub fn merged(&self, frames: u64) {
        self.merged.fetch_add(frames, Relaxed);
    }

    /// A frame was not carried.
    pub fn dropped(&self, reason: Reason) {
        if let Some(counter) = self.drops.get(reason as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// As they are now.
    pub fn snapshot(&self) -> UplinkCounters {
        let drops = NAMES.iter().zip(&self.drops).filter_map(|(name, counter)| {
            let packets = counter.load(Relaxed);
            (packets > 0).then(|| UplinkDrops { reason: (*name).into(), packets })
        });
        UplinkCounters {
            to_network_packets: self.to_network.packets.load(Relaxed),
            to_network_bytes: self.to_network.bytes.load(Relaxed),
            from_network_packets: self.from_network.packets.load(Relaxed),
            from_network_bytes: self.from_network.bytes.load(Relaxed),
            merged: self.merged.load(Relaxed),
            drops: drops.collect(),
            queues: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reasons_that_occurred_are_shown() {
        let counters = Counters::default();
        counters.sent(2, 120);
        counters.dropped(Reason::Stale);
        counters.dropped(Reason::Stale);
        let snapshot = counters.snapshot();
        assert_eq!((snapshot.to_network_packets, snapshot.to_network_bytes), (2, 120));
        assert_eq!(snapshot.drops, [UplinkDrops { reason: "stale".into(), packets: 2 }]);
    }
}
