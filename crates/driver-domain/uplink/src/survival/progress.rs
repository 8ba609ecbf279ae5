//! What is lost when a process ends in the middle of its work, counted by the next one.
//!
//! A pair notes before each system call what it is about to give to the device or to take from it, and afterwards that it has. The
//! notes, and the rings themselves, outlive it: so the next process finds out which frames the device was given, which it gave away,
//! and which of both never got to the other side. Off by one batch only if the process ends between two neighbouring
//! instructions: one that counts frames and one that notes that they are counted.
//!
//! ```text
//!  ring to the network:    |  done          | until               | used by the switch
//!                   given back or sent   in a system call      never looked at: lost
//!  ring from the network:  | used by the switch   | shown to it    | read
//!                       delivered          never looked at: lost   not yet shown: lost
//! ```

use crate::counters::{Counters, Reason};
use crate::memory::{KeptMemory, MemoryConfig, Places};
use crate::pair::VNET;
use crate::room::{NOTES, Notes};
use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::RingLayout;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Words of the notes.
const SEND: usize = 0;
const RECEIVE: usize = 1;
const OVERRUNS: usize = 2;

/// What a pair is receiving with just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// One call for many messages, whose headers are in the notes.
    Messages,
    /// One read(2) into this slot, whose first byte was made [`UNREAD`] before.
    Slot(u32),
    /// An AF_XDP ring, which the kernel is about to be told has been read up to this entry.
    Ring(u32),
}

/// First byte of a slot that nothing has been read into: no virtio-net header has these flags.
pub const UNREAD: u8 = 0xff;

/// How far one pair is. One thread at a time.
#[derive(Debug)]
pub struct Progress {
    /// Where it is noted.
    pub notes: Notes,
    done: u16,
}

/// A file for the notes of so many pairs.
pub fn create(pairs: u16) -> Result<OwnedFd, Errno> {
    lasthop_sys::memfd("lasthop-notes", u64::from(pairs) * NOTES as u64)
}

impl Progress {
    /// Of a pair whose rings are empty.
    pub fn new(notes: Notes) -> Self {
        let mut progress = Self { notes, done: 0 };
        progress.sent(0);
        progress.counted(0, 0);
        progress
    }

    /// As many buffers of the ring to the network are about to be given to the device. `shown`: the number of the entry up to which
    /// an AF_XDP ring will have been shown to the kernel then.
    pub fn sending(&self, buffers: usize, shown: u32) {
        Self::note_sending(&self.notes, self.done, buffers, shown);
    }

    /// How far it is, for [`Progress::note_sending`].
    pub fn done(&self) -> u16 {
        self.done
    }

    /// As [`Progress::sending`], where the notes alone are at hand.
    pub fn note_sending(notes: &Notes, done: u16, buffers: usize, shown: u32) {
        let until = done.wrapping_add(buffers as u16);
        notes.set(SEND, u64::from(done) | u64::from(until) << 16 | u64::from(shown) << 32);
    }

    /// As many are done with, and counted; no more are being given to the device.
    pub fn sent(&mut self, buffers: usize) {
        self.done = self.done.wrapping_add(buffers as u16);
        self.sending(0, 0);
    }

    /// Frames are about to be taken from the device. All before them are counted; with them the ring would go up to `position`
    /// if they are in it already.
    pub fn reading(&self, counted: u16, position: u16, what: Reading) {
        Self::note_reading(&self.notes, counted, position, what);
    }

    /// As [`Progress::reading`], where the notes alone are at hand.
    pub fn note_reading(notes: &Notes, counted: u16, position: u16, what: Reading) {
        let (kind, value) = match what {
            Reading::Messages => (1, 0),
            Reading::Slot(slot) => (2, slot),
            Reading::Ring(entry) => (3, entry),
        };
        // Slots have less than 2¹⁶ numbers for each of 16 pairs, and of a ring's entries what was read at once is less than that.
        let value = u64::from(value) & ((1 << 30) - 1);
        notes.set(RECEIVE, u64::from(position) | u64::from(counted) << 16 | value << 32 | kind << 62);
    }

    /// The kernel says that so many frames found no room since the device was opened. How many of them nobody has counted yet.
    pub fn overruns(&self, all: u64) -> u64 {
        let counted = self.notes.get(OVERRUNS);
        self.notes.set(OVERRUNS, all);
        all.saturating_sub(counted)
    }

    /// The ring from the network is as new.
    pub fn emptied(&self) {
        self.counted(0, (self.notes.get(RECEIVE) >> 32) as u32);
    }

    /// All frames that were taken from the device are in the ring up to `position`, and counted. `taken`: the entry up to which an
    /// AF_XDP ring has been read.
    pub fn counted(&self, position: u16, taken: u32) {
        self.reading(position, position, Reading::Ring(taken));
    }
}

/// What became of the frames of a process that has ended, where it had not counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Sent: frames and bytes.
    sent: (u64, u64),
    /// Received: frames and bytes.
    received: (u64, u64),
    lost_to_network: u64,
    lost_from_network: u64,
}

/// Counts what the process before this one had not counted, and what was lost with it. Before anything is done with its memory.
/// `shown`: for each pair how far its AF_XDP rings are, as [`crate::room::shown`] tells; none for other devices.
pub fn examine(
    kept: &KeptMemory,
    config: MemoryConfig,
    shown: &[Option<(u32, u32)>],
    counters: &Counters,
) -> Result<(), Errno> {
    let (region, _) = config.region();
    let memory = GuestMemory::empty().with_region(region, &kept.memory).map_err(|_| Errno::INVAL)?;
    for (pair, shown) in (0..config.pairs).zip(shown) {
        let notes = Notes::map(kept.notes.as_fd(), pair)?;
        let rings = Remains { memory: &memory, places: config.places(pair), notes: &notes };
        let found = rings.found(*shown);
        counters.sent(found.sent.0, found.sent.1);
        counters.received(found.received.0, found.received.1);
        counters.dropped_several(Reason::LostToNetwork, found.lost_to_network);
        counters.dropped_several(Reason::LostFromNetwork, found.lost_from_network);
    }
    Ok(())
}

/// What a pair has left behind. Nothing in it is believed to be right: whoever wrote it may have ended because of an error.
struct Remains<'m> {
    memory: &'m GuestMemory,
    places: Places,
    notes: &'m Notes,
}

impl Remains<'_> {
    fn found(&self, shown: Option<(u32, u32)>) -> Found {
        let mut found = Found::default();
        self.examine_to_network(shown.map(|s| s.0), &mut found);
        self.examine_from_network(shown.map(|s| s.1), &mut found);
        found
    }

    fn u16(&self, addr: u64) -> u16 {
        self.memory.slice(addr, 2).map_or(0, |s| s.load_u16(0))
    }

    fn u64(&self, addr: u64) -> u64 {
        let bytes = self.memory.slice(addr, 8).ok().and_then(|s| s.read_array(0));
        bytes.map_or(0, u64::from_le_bytes)
    }

    fn examine_to_network(&self, shown: Option<u32>, found: &mut Found) {
        let word = self.notes.get(SEND);
        let (done, until, show) = (word as u16, (word >> 16) as u16, (word >> 32) as u32);
        let used = self.u16(self.places.to_network.device + 2);
        let mut frames = self.delivered(done, used);
        // What it was just giving to the device.
        let mut begun = until.wrapping_sub(done);
        let carried = if begun == 0 {
            0
        } else {
            match shown {
                Some(shown) => usize::from(begun) * usize::from(shown == show),
                None if show == MESSAGES => self.notes.carried().count(),
                // One write(2), which nothing interrupts.
                None => 1,
            }
        };
        for _ in 0..carried {
            let Some((buffers, bytes)) = frames.next().filter(|(buffers, _)| *buffers <= begun) else { break };
            begun -= buffers;
            found.sent.0 += 1;
            found.sent.1 += bytes;
        }
        found.lost_to_network += frames.count() as u64;
    }

    /// The frames that the switch has delivered from one position of the ring on to another: how many buffers each takes, and its
    /// length.
    fn delivered(&self, from: u16, to: u16) -> impl Iterator<Item = (u16, u64)> {
        let RingLayout { size, desc, device, .. } = self.places.to_network;
        let mut left = to.wrapping_sub(from);
        if left > size {
            left = 0;
        }
        let mut at = from;
        let mut next = move |left: &mut u16| {
            let entry = self.u64(device + 4 + 8 * u64::from(at % size));
            at = at.wrapping_add(1);
            *left = left.checked_sub(1)?;
            let buffer = self.u64(desc + 16 * (entry % u64::from(size)));
            Some((buffer, entry >> 32))
        };
        std::iter::from_fn(move || {
            let (buffer, mut bytes) = next(&mut left)?;
            let buffers = self.u16(buffer + 10).max(1);
            for _ in 1..buffers {
                bytes += next(&mut left)?.1;
            }
            Some((buffers, bytes.saturating_sub(VNET as u64)))
        })
    }

    fn examine_from_network(&self, taken: Option<u32>, found: &mut Found) {
        let word = self.notes.get(RECEIVE);
        let (position, counted, value) = (word as u16, (word >> 16) as u16, (word >> 32) as u32 & ((1 << 30) - 1));
        let RingLayout { size, device, .. } = self.places.from_network;
        let used = self.u16(device + 2);
        let mut end = position;
        match (word >> 62, taken) {
            (1, _) => {
                for bytes in self.notes.carried() {
                    found.received.0 += 1;
                    found.received.1 += bytes as u64;
                    found.lost_from_network += 1;
                }
            }
            (2, _) => {
                let (at, _) = self.places.slots.place(value);
                let unread = self.memory.slice(at, 1).ok().and_then(|s| s.read_array::<1>(0));
                if unread.is_some_and(|first| first != [UNREAD]) {
                    found.received.0 += 1;
                    found.lost_from_network += 1;
                }
            }
            // What the kernel was not told of is still in its ring, and comes again.
            (3, Some(taken)) if taken & ((1 << 30) - 1) != value => end = counted,
            (3, Some(_)) => {
                let uncounted = position.wrapping_sub(counted).min(size);
                found.received.0 += u64::from(uncounted);
            }
            _ => {}
        }
        let lost = end.wrapping_sub(used);
        found.lost_from_network += if lost > size { 0 } else { u64::from(lost) };
    }
}

/// Instead of an entry's number: headers of messages are in the notes.
pub const MESSAGES: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;
    use crate::pair::Pair;
    use crate::survival::probe::Heard;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    const CONFIG: MemoryConfig =
        MemoryConfig { pairs: 2, ring: 16, buffer: 2048, slot: 4096, slots: 32, ledger: false };

    /// A process with two pairs, of which the second one is looked at, and the switch's side of its rings.
    struct Process {
        memory: SharedMemory,
        pairs: Vec<Pair>,
        delivered: u16,
    }

    impl Process {
        fn new() -> Self {
            let (memory, pairs) = SharedMemory::new(CONFIG, &Arc::new(Heard::new().unwrap()), None).unwrap();
            Self { memory, pairs, delivered: 0 }
        }

        fn pair(&mut self) -> &mut Pair {
            &mut self.pairs[1]
        }

        fn store(&self, addr: u64, value: u16) {
            self.pairs[1].memory.slice(addr, 2).unwrap().store_u16(0, value);
        }

        /// The switch delivers a frame of so many bytes in so many buffers.
        fn deliver(&mut self, bytes: u64, buffers: u16) {
            let places = CONFIG.places(1);
            for n in 0..buffers {
                let at = u64::from(self.delivered % CONFIG.ring);
                // Buffers come back in the order in which they were given.
                let token = at;
                let len = if n == 0 { bytes + VNET as u64 - u64::from(buffers - 1) } else { 1 };
                let entry = self.pairs[1].memory.slice(places.to_network.device + 4 + 8 * at, 8).unwrap();
                entry.write(0, &(token | len << 32).to_le_bytes());
                if n == 0 {
                    self.store(places.buffers + token * 2048 + 10, buffers);
                }
                self.delivered = self.delivered.wrapping_add(1);
            }
            self.store(places.to_network.device + 2, self.delivered);
        }

        /// The switch has taken so many packets.
        fn take(&self, packets: u16) {
            self.store(CONFIG.places(1).from_network.device + 2, packets);
        }

        /// A packet for the switch, which is not shown it yet.
        fn add(&mut self) -> u32 {
            let way = &mut self.pair().from_network;
            let slot = way.take().unwrap();
            way.add(slot, 0, 100);
            slot
        }

        fn found(&self, shown: Option<(u32, u32)>) -> Found {
            let memory = &self.pairs[1].memory;
            Remains { memory, places: CONFIG.places(1), notes: &self.pairs[1].progress.notes }.found(shown)
        }
    }

    #[test]
    fn what_was_delivered_and_not_sent_is_lost() {
        let mut process = Process::new();
        assert_eq!(process.found(None), Found::default());
        // Rings go round, and frames take one buffer or several.
        for round in 0..10 {
            (0..5).for_each(|n| process.deliver(60 + n, 1 + round % 3));
            let Pair { to_network, progress, .. } = process.pair();
            let buffers = usize::from(1 + round % 3) * 5;
            for _ in 0..buffers {
                let (token, _) = to_network.ring.poll_used().unwrap().unwrap();
                to_network.ring.add(&[], &[(to_network_buffer(token), 2048)], token).unwrap();
            }
            to_network.publish();
            progress.sent(buffers);
        }
        assert_eq!(process.found(None), Found::default());
        process.deliver(60, 3);
        process.deliver(70, 1);
        process.deliver(80, 2);
        assert_eq!(process.found(None), Found { lost_to_network: 3, ..Found::default() });
        // In the middle of one write(2) the kernel has the first, which was not counted.
        process.pair().progress.sending(3, 0);
        assert_eq!(process.found(None), Found { sent: (1, 60), lost_to_network: 2, ..Found::default() });
        process.pair().progress.sent(3);
        assert_eq!(process.found(None), Found { lost_to_network: 2, ..Found::default() });
        // Of an AF_XDP ring it has all of a burst or nothing.
        process.pair().progress.sending(3, 77);
        assert_eq!(process.found(Some((76, 0))), Found { lost_to_network: 2, ..Found::default() });
        assert_eq!(process.found(Some((77, 0))), Found { sent: (2, 150), ..Found::default() });
    }

    fn to_network_buffer(token: u32) -> u64 {
        CONFIG.places(1).buffers + u64::from(token) * 2048
    }

    #[test]
    fn what_was_read_and_not_delivered_is_lost() {
        let mut process = Process::new();
        for n in 0..6 {
            process.add();
            process.pair().progress.counted(n + 1, 0);
        }
        // Shown or not: nobody has taken them.
        assert_eq!(process.found(None).lost_from_network, 6);
        process.pair().from_network.publish();
        assert_eq!(process.found(None).lost_from_network, 6);
        process.take(4);
        assert_eq!(process.found(None), Found { lost_from_network: 2, ..Found::default() });
        // In the middle of a read(2), which has or has not brought something.
        let pair = process.pair();
        let slot = pair.from_network.take().unwrap();
        let first = pair.bytes(pair.from_network.slot(slot)).part(0, 1);
        first.write(0, &[UNREAD]);
        pair.progress.reading(6, 6, Reading::Slot(slot));
        assert_eq!(process.found(None), Found { lost_from_network: 2, ..Found::default() });
        let pair = process.pair();
        pair.bytes(pair.from_network.slot(slot)).part(0, 1).write(0, &[0]);
        assert_eq!(process.found(None), Found { received: (1, 0), lost_from_network: 3, ..Found::default() });
        // Of an AF_XDP ring: as long as the kernel is not told that they were read, they come again.
        process.pair().progress.reading(4, 6, Reading::Ring(9));
        assert_eq!(process.found(Some((0, 7))), Found::default());
        assert_eq!(process.found(Some((0, 9))), Found { received: (2, 0), lost_from_network: 2, ..Found::default() });
        process.pair().progress.counted(6, 9);
        assert_eq!(process.found(Some((0, 9))), Found { lost_from_network: 2, ..Found::default() });
    }

    #[test]
    fn the_next_process_counts_it_once_and_begins_anew() {
        let mut process = Process::new();
        process.deliver(60, 1);
        process.add();
        process.pair().progress.counted(1, 0);
        let [memory, notes] = process.memory.to_keep().map(|fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap());
        let (kept, counters) = (KeptMemory { memory, notes }, Counters::alone());
        examine(&kept, CONFIG, &[None, None], &counters).unwrap();
        let drops = |counters: &Counters| -> Vec<_> {
            counters.snapshot().drops.into_iter().map(|d| (d.reason, d.packets)).collect()
        };
        assert_eq!(drops(&counters), [("lost_to_network".into(), 1), ("lost_from_network".into(), 1)]);
        let (next, _pairs) = SharedMemory::new(CONFIG, &Arc::new(Heard::new().unwrap()), Some(kept)).unwrap();
        let [memory, notes] = next.to_keep().map(|fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap());
        let counters = Counters::alone();
        examine(&KeptMemory { memory, notes }, CONFIG, &[None, None], &counters).unwrap();
        assert_eq!(drops(&counters), []);
    }

    #[test]
    fn garbage_is_bounded() {
        let process = Process::new();
        let places = CONFIG.places(1);
        for seed in 0..2000_u64 {
            let word = |n: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(n as u32 * 7) ^ n;
            let notes = &process.pairs[1].progress.notes;
            notes.set(SEND, word(1));
            notes.set(RECEIVE, word(2));
            process.store(places.to_network.device + 2, word(3) as u16);
            process.store(places.from_network.device + 2, word(4) as u16);
            process.store(places.to_network.device + 4 + (word(5) % 64) * 2, word(6) as u16);
            let found = process.found((seed % 2 == 0).then(|| (word(7) as u32, word(8) as u32)));
            assert!(found.lost_to_network <= 16 && found.lost_from_network <= 16 + 32, "{found:?}");
            assert!(found.sent.0 <= 16 && found.received.0 <= 48, "{found:?}");
        }
    }
}
