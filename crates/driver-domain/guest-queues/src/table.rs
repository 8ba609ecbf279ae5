//! VLAN and destination address → queue, and how many frames came for them: a hash table in memory that the XDP program looks up
//! for each frame, and this process fills. No system call is needed for either, so the sandbox stays as it is.
//!
//! Buckets of [`WAYS`] entries; an address may lie in its own bucket only. Hashes are multiplied by a random number, so that
//! nobody can choose addresses that crowd somebody else's bucket.

use lasthop_uplink_ipc::VlanMac;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Bits of a bucket's number.
pub const BUCKET_BITS: u8 = 8;
/// Entries of a bucket.
pub const WAYS: usize = 4;
/// Words of an entry: key, queue, packets, and one to fill a power of two.
pub const ENTRY_WORDS: usize = 4;
/// Where in an entry the queue is, in bytes.
pub const QUEUE_AT: i16 = 8;
/// Where in an entry the count of its packets is, in bytes.
pub const PACKETS_AT: i16 = 16;
/// Bytes of an entry and of a bucket.
pub const ENTRY_BYTES: i32 = 8 * ENTRY_WORDS as i32;
/// By how many bits a bucket's number is shifted to be its place in bytes.
pub const BUCKET_SHIFT: u8 = (WAYS * ENTRY_WORDS * 8).trailing_zeros() as u8;
/// Bytes of the table.
pub const BYTES: usize = (1 << BUCKET_BITS) * WAYS * ENTRY_WORDS * 8;
/// By how many bits a tag's VLAN is shifted in a key: it is behind the address.
pub const VLAN_SHIFT: u8 = 48;
/// The bits of a tag that are its VLAN (IEEE 802.1Q, 9.6), of a half word as the program loads it.
pub const VID: u16 = u16::from_be(0x0fff);
/// A bit of the tag that is no part of its VLAN is set in every key instead, so that none is 0.
pub const VALID: u64 = (u16::from_be(0x8000) as u64) << VLAN_SHIFT;

/// The address as the program loads it: four bytes and two, each in the host's order, and so the VLAN of the tag. VLAN 0: without a
/// tag, or with one that has a priority alone.
pub fn key((vlan, mac): VlanMac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    let vid = u64::from(vlan.to_be() & VID) << VLAN_SHIFT;
    u64::from(u32::from_ne_bytes([a, b, c, d])) | u64::from(u16::from_ne_bytes([e, f])) << 32 | vid | VALID
}

/// First word of the address's bucket.
fn bucket(seed: u64, station: VlanMac) -> usize {
    (key(station).wrapping_mul(seed) >> (64 - BUCKET_BITS)) as usize * WAYS * ENTRY_WORDS
}

/// An entry's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(usize);

impl Entry {
    /// Its first word's number in the table.
    #[cfg(test)]
    pub fn word(self) -> usize {
        self.0
    }
}

/// The entries an address may lie in.
pub fn places(seed: u64, station: VlanMac) -> [Entry; WAYS] {
    let first = bucket(seed, station);
    std::array::from_fn(|i| Entry(first + i * ENTRY_WORDS))
}

/// The table's memory, to be changed by one thread.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a [AtomicU64]);

impl Table<'_> {
    fn word(&self, entry: Entry, bytes: i16) -> Option<&AtomicU64> {
        self.0.get(entry.0 + bytes as usize / 8)
    }

    /// The entry is the address's, on the default queue.
    pub fn insert(&self, entry: Entry, station: VlanMac) {
        self.remove(entry);
        for bytes in [QUEUE_AT, PACKETS_AT] {
            if let Some(word) = self.word(entry, bytes) {
                word.store(0, Relaxed);
            }
        }
        if let Some(word) = self.word(entry, 0) {
            word.store(key(station), Release);
        }
    }

    /// The entry is nobody's.
    pub fn remove(&self, entry: Entry) {
        if let Some(word) = self.word(entry, 0) {
            word.store(0, Release);
        }
    }

    /// Frames for the entry's address go to this queue.
    pub fn steer(&self, entry: Entry, queue: u16) {
        if let Some(word) = self.word(entry, QUEUE_AT) {
            word.store(queue.into(), Release);
        }
    }

    /// Frames that came for the entry's address, whether or not there was room for them.
    pub fn packets(&self, entry: Entry) -> u64 {
        self.word(entry, PACKETS_AT).map_or(0, |word| word.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_text::MacAddr;
    use std::collections::BTreeSet;

    #[test]
    fn an_address_has_another_key_in_each_vlan() {
        let mac = MacAddr([0xff, 0xfe, 3, 4, 0xfd, 0xfc]);
        let keys: BTreeSet<_> = (0..4096).map(|vlan| key((vlan, mac))).collect();
        assert_eq!(keys.len(), 4096);
        // What the program loads of a frame with a tag: its priority is none of the key's.
        let loaded = u64::from(u16::from_ne_bytes([0xba, 0xbc]) & VID) << VLAN_SHIFT;
        assert_eq!(loaded | VALID | key((0, mac)), key((0x0abc, mac)));
    }

    #[test]
    fn addresses_spread_over_the_buckets() {
        let seed = 0x9e37_79b9_7f4a_7c15;
        let mut filled = [0u32; 1 << BUCKET_BITS];
        for n in 0..256u16 {
            let [a, b] = n.to_be_bytes();
            filled[bucket(seed, (n % 2, MacAddr([0x52, 0x54, 0, 0x12, a, b]))) / (WAYS * ENTRY_WORDS)] += 1;
        }
        assert!(filled.iter().all(|n| *n <= WAYS as u32), "{filled:?}");
        let last = places(seed, (4095, MacAddr([0xff; 6])))[WAYS - 1];
        assert!(last.0 + ENTRY_WORDS <= BYTES / 8);
    }
}
