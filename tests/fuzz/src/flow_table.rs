//! Flow table and cache against a list of flows. Input: one step after another.

use crate::Input;
use lasthop_flow::testutil::{Step, compare};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;

/// Few values for each field, so that keys meet.
fn key(input: &mut Input<'_>) -> FlowKey {
    let (a, b) = (input.u8(), input.u8());
    FlowKey {
        in_port: u32::from(a & 3),
        eth_dst: [a >> 2 & 3; 6],
        eth_src: [a >> 4 & 1; 6],
        eth_type: u16::from(a >> 5 & 1),
        anomalies: u16::from(a >> 6),
        ip_dst: [b & 1; 16],
        l4_dst: u16::from(b >> 1 & 3),
        arp_sha: [b >> 3 & 1; 6],
        tunnel_id: u64::from(b >> 4 & 1) << 63,
        ..FlowKey::default()
    }
}

/// One of 64 masks: fewer than a table takes.
fn mask(input: &mut Input<'_>) -> FlowMask {
    let n = input.u8();
    let bits = |bit: u8| if n >> bit & 1 != 0 { u64::MAX } else { 0 };
    let deep = n >> 4 & 3;
    FlowMask(FlowKey {
        in_port: bits(0) as u32,
        eth_dst: [bits(1) as u8; 6],
        eth_src: [bits(2) as u8; 6],
        eth_type: bits(3) as u16,
        // A part of a field, too.
        anomalies: if deep == 1 { FlowKey::MALFORMED_L3 } else { 0 },
        l4_dst: if deep == 2 { 2 } else { 0 },
        tunnel_id: if deep == 3 { u64::MAX } else { 0 },
        ..FlowKey::default()
    })
}

fn spec(input: &mut Input<'_>) -> FlowSpec {
    let (key, mask, n) = (key(input), mask(input), input.u8());
    let outputs = (0..n & 3).map(|i| Action::Output(PortId(u32::from(n >> (2 + i) & 3)))).collect();
    FlowSpec { key, mask, actions: outputs, epoch: u64::from(n >> 6) }
}

/// Which parts of a key make no difference to its hash: all of them, or some of eight groups.
fn colliding(input: &mut Input<'_>) -> u64 {
    let groups = input.u8();
    (0..64).filter(|part| groups >> (part / 5 % 8) & 1 != 0).fold(0, |parts, part| parts | 1 << part)
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    compare(std::iter::from_fn(|| {
        (!input.is_empty()).then(|| match input.below(16) {
            0..=5 => Step::Insert(spec(&mut input)),
            6..=7 => Step::Remove(spec(&mut input)),
            8 => Step::RemovePort(u32::from(input.u8() & 3)),
            9 => Step::Rank,
            10 => Step::Collide(colliding(&mut input)),
            _ => Step::Packet(key(&mut input)),
        })
    }));
}
