//! From a frame to its flow.

use lasthop_flow::{Action, FlowSpec, FlowTable, Lookup};
use lasthop_frame::testutil::{Frame, arp};
use lasthop_frame::{Depth, FlowKey, FlowMask, SNAPSHOT_LEN, extract};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use lasthop_virtqueue::BURST;
use std::hint::black_box;

use crate::{BURSTS, Stage};

/// Frames whose keys are taken out: UDP and TCP, IPv4 and IPv6, and ARP, in turns.
pub struct Extraction {
    frames: Vec<Vec<u8>>,
    depth: Depth,
    keys: Vec<FlowKey>,
}

impl Extraction {
    /// To this depth.
    pub fn new(depth: Depth) -> Box<Self> {
        let frame = |i: usize| {
            let n = i as u8;
            let frame = Frame::new(1, n).payload(vec![n; 100]);
            let (v4, v6) = ([10, 0, 0, n], [n; 16]);
            match i % 4 {
                0 => frame.ipv4([10, 0, 0, 1], v4).udp(1000, 53).build(),
                1 => frame.ipv4([10, 0, 0, 1], v4).tcp(1000, 80).build(),
                2 => frame.ipv6([1; 16], v6).tcp(1000, 80).build(),
                _ => arp(1, (MacAddr([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1]), (MacAddr([0; 6]), v4)),
            }
        };
        Box::new(Self { frames: (0..BURST).map(frame).collect(), depth, keys: vec![FlowKey::default(); BURST] })
    }
}

impl Stage for Extraction {
    #[inline]
    fn run(&mut self) {
        for _ in 0..BURSTS {
            for (key, frame) in self.keys.iter_mut().zip(&self.frames) {
                let snapshot = frame.get(..SNAPSHOT_LEN).unwrap_or(frame);
                extract(key, black_box(snapshot), frame.len(), self.depth);
            }
        }
    }

    fn check(self: Box<Self>) {
        for (i, key) in self.keys.iter().enumerate() {
            let deep = self.depth > Depth::L2;
            let port = if deep && i % 4 < 3 { [53, 80, 80][i % 4] } else { 0 };
            assert_eq!((key.eth_type, key.l4_dst), ([0x800, 0x800, 0x86dd, 0x806][i % 4], port), "frame {i}");
        }
    }
}

/// Keys that are looked up in a table, all of them in the mask that is tried last.
pub struct Lookups {
    table: FlowTable,
    keys: Vec<FlowKey>,
    found: usize,
}

impl Lookups {
    /// In a table with this many masks, at most 97: all but the last hold one flow, which is somebody else's.
    pub fn new(masks: usize) -> Box<Self> {
        let table = FlowTable::new(1000);
        let keys: Vec<_> = (0..BURST).map(|n| Self::key(n as u32)).collect();
        let flow = |key, mask| FlowSpec { key, mask, actions: vec![Action::Output(PortId(2))], epoch: 0 };
        for len in 1..masks {
            // Prefixes of different lengths, each long enough to tell the keys apart.
            let mut mask = FlowKey { eth_type: u16::MAX, ..FlowKey::default() };
            mask.ip_dst = (u128::MAX << (97 - len)).to_be_bytes();
            let mask = FlowMask(mask);
            table.insert(flow(Self::key(1000), mask), 0).expect("room");
        }
        let all = FlowMask(FlowKey { ip_proto: u8::MAX, ..FlowKey::default() });
        table.insert(flow(Self::key(0), all), 0).expect("room");
        // Each with a mask of its own.
        assert_eq!(table.flows().len(), masks);
        Box::new(Self { table, keys, found: 0 })
    }

    fn key(n: u32) -> FlowKey {
        let mut key = FlowKey { eth_type: 0x86dd, ip_proto: 17, ..FlowKey::default() };
        key.ip_dst[..4].copy_from_slice(&n.to_be_bytes());
        // So that a key has another hash under each of the prefixes.
        key.ip_dst[4..8].copy_from_slice(&(n << 26 | n).to_be_bytes());
        key
    }
}

impl Stage for Lookups {
    #[inline]
    fn run(&mut self) {
        self.found = 0;
        for _ in 0..BURSTS {
            for key in &self.keys {
                let met = self.table.lookup(black_box(key), Depth::L4);
                self.found += usize::from(matches!(met, Lookup::Flow(_)));
            }
        }
    }

    fn check(self: Box<Self>) {
        assert_eq!(self.found, crate::PACKETS, "lookups that found their flow");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_what_the_frames_are() {
        for depth in [Depth::L2, Depth::L4, Depth::Full] {
            let mut stage = Extraction::new(depth);
            stage.run();
            stage.check();
        }
    }

    #[test]
    fn every_lookup_finds_its_flow_behind_the_other_masks() {
        for masks in [1, 8, 32] {
            let mut stage = Lookups::new(masks);
            stage.run();
            stage.check();
        }
    }
}
