//! Packets of which each is the first of its flow, so that the switch has to decide about it: beside other traffic, and timed
//! by themselves.

use super::frame::{FIRSTS, MAX_FLOWS, Template, VNET, Vary};
use super::pace::Pacer;

/// Bytes of a frame.
const LEN: usize = 64;

/// What a port has of them.
#[derive(Debug)]
pub struct First {
    template: Template,
    from: u16,
    /// When the next is due.
    pub pacer: Pacer,
    flow: u32,
}

impl First {
    /// From a port to another.
    pub fn new(from: u16, to: u16) -> Self {
        let template = Template::new(from, Some(to), LEN, false, Vary::Mac);
        Self { template, from, pacer: Pacer::new(0, 0.0), flow: FIRSTS }
    }

    /// The port that sends them.
    pub fn from(&self) -> u16 {
        self.from
    }

    /// The next, virtio-net header first, with this time in it.
    pub fn next(&mut self, stamp: u64) -> [u8; VNET + LEN] {
        let mut bytes = [0; VNET + LEN];
        let head = self.template.stamp(self.flow, 0, stamp);
        bytes[..head.len()].copy_from_slice(head);
        self.flow = if self.flow + 1 < MAX_FLOWS { self.flow + 1 } else { FIRSTS };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Probe;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_comes_from_another_station() {
        let mut first = First::new(1, 0);
        let macs: HashSet<_> = (0..5000)
            .map(|n| {
                let frame = &first.next(n)[VNET..];
                let probe = Probe::parse(frame).unwrap();
                assert!(probe.flow >= FIRSTS && probe.source == 1 && probe.stamp == n);
                frame[6..12].to_vec()
            })
            .collect();
        assert_eq!(macs.len(), 5000);
    }
}
