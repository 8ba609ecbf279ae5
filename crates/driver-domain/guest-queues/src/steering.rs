//! What engines and the main thread share to steer guests to queues.
//!
//! | who | does |
//! |---|---|
//! | the XDP program | looks up the VLAN and the destination address, counts, chooses the queue |
//! | an engine that sends | tells of addresses that the switch sends from: only they can get a queue |
//! | the main thread | samples the counts, decides, writes the table |
//! | an engine that receives | counts; a queue that has just been given away waits for the default queue, so that nothing overtakes |

use super::Filter;
use super::table::{self, Entry, Table};
use lasthop_sys::EventFd;
use lasthop_sys::bpf::MappedValue;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::VlanMac;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

/// Addresses that may wait for the main thread to see them.
const SEEN: usize = 256;

/// Asks the device; from any thread.
struct Dropped(Box<dyn Fn() -> u64 + Send + Sync>);

impl std::fmt::Debug for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dropped")
    }
}

/// A queue pair, as the others know it.
#[derive(Debug)]
pub struct Lane {
    /// Packets from the network.
    pub packets: AtomicU64,
    /// Packets to the network.
    pub sent: AtomicU64,
    /// It has been given away, and has not begun: what came before for its guest may still be in the default queue.
    held: AtomicBool,
    /// Wakes its engine.
    wake: EventFd,
    /// Frames that the kernel had no room for in its rings, so far.
    dropped: Dropped,
    /// Frames that its rings can keep.
    most: u32,
    /// Of those it keeps so many.
    size: AtomicU32,
    /// Frames that were more than that.
    surplus: AtomicU64,
}

impl Lane {
    /// `wake`: wakes its engine. `dropped`: asks the kernel how many frames it had no room for in the lane's rings.
    /// `size`: frames that they can keep.
    pub fn new(wake: EventFd, dropped: impl Fn() -> u64 + Send + Sync + 'static, size: u32) -> Self {
        let dropped = Dropped(Box::new(dropped));
        let (most, size, held) = (size, AtomicU32::new(size), AtomicBool::new(false));
        let [packets, sent, surplus] = [0; 3].map(AtomicU64::new);
        Self { packets, sent, held, wake, dropped, most, size, surplus }
    }

    /// Frames that may wait in it, and as many may be with the switch.
    pub fn size(&self) -> u32 {
        self.size.load(Relaxed)
    }

    /// The same, if that is less than its rings have room for.
    pub fn bound(&self) -> Option<u32> {
        Some(self.size()).filter(|size| *size < self.most)
    }

    /// So many frames were dropped because it keeps no more.
    pub fn drop_surplus(&self, frames: u64) {
        self.surplus.fetch_add(frames, Relaxed);
    }

    /// Whether it is to wait for the default queue before it takes its first frames.
    pub fn is_held(&self) -> bool {
        self.held.load(Acquire)
    }

    /// It may begin.
    pub fn begin(&self) {
        self.held.store(false, Release);
    }
}

/// Shared by all threads of an uplink.
#[derive(Debug)]
pub struct Steering {
    table: MappedValue,
    seed: u64,
    lanes: Vec<Lane>,
    seen: Mutex<Vec<VlanMac>>,
    /// Counts how often addresses were forgotten: engines tell of all of them anew.
    forgotten: AtomicU32,
    /// The main thread looks no more until somebody wakes it.
    at_rest: AtomicBool,
    main: EventFd,
    /// Hand-overs that were asked of the default queue, and those it has answered.
    asked: AtomicU64,
    answered: AtomicU64,
}

impl Steering {
    /// `main` is signalled when there is traffic after a rest.
    pub fn new(table: MappedValue, seed: u64, lanes: Vec<Lane>, main: EventFd) -> Self {
        Self {
            table,
            seed,
            lanes,
            seen: Mutex::default(),
            forgotten: AtomicU32::new(0),
            at_rest: AtomicBool::new(true),
            main,
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Queues, the default queue among them.
    pub fn queues(&self) -> u16 {
        self.lanes.len() as u16
    }

    /// A queue as the others know it.
    pub fn lane(&self, queue: u16) -> Option<&Lane> {
        self.lanes.get(usize::from(queue))
    }

    /// Frames that the kernel had no room for in the queue's rings, and those that were more than the queue keeps.
    pub fn dropped(&self, queue: u16) -> u64 {
        self.lane(queue).map_or(0, |lane| (lane.dropped.0)() + lane.surplus.load(Relaxed))
    }

    /// A queue carried packets from the network.
    pub fn received(&self, queue: u16, packets: u64) {
        if let Some(lane) = self.lane(queue) {
            lane.packets.fetch_add(packets, Relaxed);
        }
        if self.at_rest.load(Relaxed) && self.at_rest.swap(false, AcqRel) {
            self.main.signal();
        }
    }

    /// Signalled when there is traffic after a rest.
    pub fn traffic(&self) -> &EventFd {
        &self.main
    }

    /// The main thread looks no more before it is woken.
    pub fn rest(&self) {
        self.at_rest.store(true, Release);
    }

    /// The addresses that were seen since the last call.
    pub fn take_seen(&self) -> Vec<VlanMac> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An address is no longer in the table.
    pub fn forget(&self) {
        self.forgotten.fetch_add(1, Relaxed);
    }

    /// Asks the default queue to be told when all that is in it now has reached the switch; [`Steering::is_answered`].
    pub fn ask(&self) -> u64 {
        let ticket = self.asked.fetch_add(1, AcqRel) + 1;
        self.lanes.iter().take(1).for_each(|lane| lane.wake.signal());
        ticket
    }

    /// Whether that has been answered.
    pub fn is_answered(&self, ticket: u64) -> bool {
        self.answered.load(Acquire) >= ticket
    }

    /// The last ticket asked for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Acquire)
    }

    /// Everything up to this ticket is done; those who wait are woken.
    pub fn answer(&self, ticket: u64) {
        self.answered.store(ticket, Release);
        self.lanes.iter().filter(|lane| lane.is_held()).for_each(|lane| lane.wake.signal());
    }
}

/// The addresses that an engine has told of, as far as it remembers them.
#[derive(Debug)]
pub struct Sources {
    known: [u64; 64],
    forgotten: u32,
}

impl Default for Sources {
    fn default() -> Self {
        Self { known: [0; 64], forgotten: 0 }
    }
}

impl Sources {
    /// Before a burst.
    pub fn refresh(&mut self, steering: &Steering) {
        let forgotten = steering.forgotten.load(Relaxed);
        if forgotten != self.forgotten {
            *self = Self { forgotten, ..Self::default() };
        }
    }

    /// The switch sends from this address. It waits for nobody: what cannot be told now is told with the next packet.
    pub fn note(&mut self, station: VlanMac, steering: &Steering) {
        let key = table::key(station);
        let mixed = key ^ key >> 24 ^ key >> 48;
        let Some(known) = self.known.get_mut((mixed ^ mixed >> 12) as usize % 64).filter(|known| **known != key) else {
            return;
        };
        let Ok(mut seen) = steering.seen.try_lock() else { return };
        if seen.len() < SEEN {
            seen.push(station);
            *known = key;
        }
    }
}

/// The table's side of the main thread: addresses that can be steered.
#[derive(Debug)]
pub struct Steerer {
    steering: Arc<Steering>,
    entries: BTreeMap<VlanMac, Entry>,
}

impl Steerer {
    /// No address is known yet.
    pub fn new(steering: Arc<Steering>) -> Self {
        Self { steering, entries: BTreeMap::new() }
    }

    /// What is shared.
    pub fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    fn table(&self) -> Table<'_> {
        Table(self.steering.table.words())
    }

    /// An address can be steered from now on. Where there is no room, one that is `dispensable` is forgotten.
    pub fn learn(&mut self, station: VlanMac, dispensable: impl Fn(VlanMac) -> bool) {
        if !station.1.is_unicast_source() || self.entries.contains_key(&station) {
            return;
        }
        let places = table::places(self.steering.seed, station);
        let occupied: Vec<(VlanMac, Entry)> =
            self.entries.iter().map(|(of, e)| (*of, *e)).filter(|(_, e)| places.contains(e)).collect();
        let free = places.into_iter().find(|place| occupied.iter().all(|(_, e)| e != place));
        let place = free.or_else(|| {
            let (old, entry) = occupied.into_iter().find(|(of, _)| dispensable(*of))?;
            self.entries.remove(&old);
            self.steering.forget();
            Some(entry)
        });
        if let Some(place) = place {
            self.table().insert(place, station);
            self.entries.insert(station, place);
        }
    }

    /// All addresses that can be steered, and how many frames came for each since it was learned.
    pub fn counts(&self) -> impl Iterator<Item = (VlanMac, u64)> {
        self.entries.iter().map(|(station, entry)| (*station, self.table().packets(*entry)))
    }
}

impl Filter for Steerer {
    fn steer(&mut self, station: VlanMac, queue: u16) -> bool {
        let (Some(entry), Some(lane)) = (self.entries.get(&station), self.steering.lane(queue)) else { return false };
        lane.held.store(true, Release);
        self.table().steer(*entry, queue);
        true
    }

    fn unsteer(&mut self, station: VlanMac, queue: u16) {
        if let Some(entry) = self.entries.get(&station) {
            self.table().steer(*entry, 0);
        }
        if let Some(lane) = self.steering.lane(queue) {
            lane.begin();
            lane.wake.signal();
        }
    }

    fn size(&self, queue: u16) -> u32 {
        self.steering.lane(queue).map_or(0, Lane::size)
    }

    fn resize(&mut self, queue: u16, frames: u32) -> bool {
        let Some(lane) = self.steering.lane(queue).filter(|lane| (1..=lane.most).contains(&frames)) else {
            return false;
        };
        if lane.size.swap(frames, Relaxed) != frames {
            // It may have more than that, or room again.
            lane.wake.signal();
        }
        true
    }

    fn most(&self, queue: u16) -> u32 {
        self.steering.lane(queue).map_or(0, |lane| lane.most)
    }
}

/// The VLAN and the source address of a frame, of its bytes from the source address on: 10 of them.
pub fn station(bytes: [u8; 10]) -> VlanMac {
    let [a, b, c, d, e, f, kind @ .., high, low] = bytes;
    let tagged = matches!(u16::from_be_bytes(kind), 0x8100 | 0x88a8);
    let vlan = if tagged { u16::from_be_bytes([high, low]) & 0x0fff } else { 0 };
    (vlan, MacAddr([a, b, c, d, e, f]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_s_vlan_is_its_outer_tag_s() {
        let mac = [2, 3, 4, 5, 6, 7];
        let of = |kind: [u8; 2], tag: [u8; 2]| {
            let mut bytes = [0; 10];
            bytes[..6].copy_from_slice(&mac);
            bytes[6..8].copy_from_slice(&kind);
            bytes[8..].copy_from_slice(&tag);
            station(bytes)
        };
        assert_eq!(of([0x81, 0], [0xe1, 0x2c]), (0x12c, MacAddr(mac)));
        assert_eq!(of([0x88, 0xa8], [0x0f, 0xff]), (0xfff, MacAddr(mac)));
        // A priority alone is no VLAN, nor is what another type has there.
        assert_eq!([of([0x81, 0], [0xe0, 0]), of([8, 0], [0x45, 0])], [(0, MacAddr(mac)); 2]);
    }
}
