//! What an uplink has carried, and why it has not carried the rest.

pub use crate::room::CounterPage;
use lasthop_uplink_ipc::{CARRIED_ROWS, UplinkCounters, UplinkDrops};

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
    /// The kernel had no room for it any more: it came faster than this process took it.
    Overrun = "overrun",
    /// The switch had delivered it, and the process ended before it could send it.
    LostToNetwork = "lost_to_network",
    /// It was taken from the device, and the process ended before the switch had taken it.
    LostFromNetwork = "lost_from_network",
    /// The host has no route to where a tunnel's packet is for, or not the address that it was to be from.
    NoRoute = "no_route",
}

/// Counters of one device; any thread adds and reads. They lie in a page of the supervisor's, which reads them once more when
/// this process has ended. So frames are counted before they are handed on, where that can be: what is handed on was
/// counted.
#[derive(Debug)]
pub struct Counters(CounterPage);

const CARRIED: [&str; CARRIED_ROWS] =
    ["to_network_packets", "to_network_bytes", "from_network_packets", "from_network_bytes", "merged"];

impl Counters {
    /// In this page.
    pub fn new(page: CounterPage) -> Self {
        for (row, name) in CARRIED.iter().chain(NAMES).enumerate() {
            page.name(row, name);
        }
        Self(page)
    }

    /// Frames of together so many bytes went out.
    pub fn sent(&self, packets: u64, bytes: u64) {
        self.0.add(0, packets);
        self.0.add(1, bytes);
    }

    /// Frames of together so many bytes came in.
    pub fn received(&self, packets: u64, bytes: u64) {
        self.0.add(2, packets);
        self.0.add(3, bytes);
    }

    /// So many frames became part of others.
    pub fn merged(&self, frames: u64) {
        self.0.add(4, frames);
    }

    /// A frame was not carried.
    pub fn dropped(&self, reason: Reason) {
        self.dropped_several(reason, 1);
    }

    /// So many frames were not carried.
    pub fn dropped_several(&self, reason: Reason, frames: u64) {
        self.0.add(CARRIED_ROWS + reason as usize, frames);
    }

    /// As they are now.
    pub fn snapshot(&self) -> UplinkCounters {
        let drops = NAMES.iter().enumerate().filter_map(|(reason, name)| {
            let packets = self.0.get(CARRIED_ROWS + reason);
            (packets > 0).then(|| UplinkDrops { reason: (*name).into(), packets })
        });
        UplinkCounters {
            to_network_packets: self.0.get(0),
            to_network_bytes: self.0.get(1),
            from_network_packets: self.0.get(2),
            from_network_bytes: self.0.get(3),
            merged: self.0.get(4),
            drops: drops.collect(),
            queues: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Counters {
    /// In a page that nobody else has.
    pub(crate) fn alone() -> Self {
        let page = lasthop_sys::memfd("page", lasthop_uplink_ipc::COUNTERS_PAGE as u64).unwrap();
        Self::new(CounterPage::map(std::os::fd::AsFd::as_fd(&page)).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_uplink_ipc::COUNTERS_PAGE;
    use std::os::fd::AsFd;

    #[test]
    fn only_reasons_that_occurred_are_shown() {
        let page = lasthop_sys::memfd("page", COUNTERS_PAGE as u64).unwrap();
        let counters = Counters::new(CounterPage::map(page.as_fd()).unwrap());
        counters.sent(2, 120);
        counters.dropped(Reason::Stale);
        counters.dropped(Reason::Stale);
        let snapshot = counters.snapshot();
        assert_eq!((snapshot.to_network_packets, snapshot.to_network_bytes), (2, 120));
        assert_eq!(snapshot.drops, [UplinkDrops { reason: "stale".into(), packets: 2 }]);
        // And somebody else reads the same.
        let (mut bytes, mut read) = ([0; COUNTERS_PAGE], UplinkCounters::default());
        assert_eq!(rustix::io::pread(&page, &mut bytes, 0), Ok(COUNTERS_PAGE));
        read.read_page(&bytes);
        assert_eq!(read, snapshot);
    }
}
