//! The learning switch against the definition of learning, with its limits. Input: limits, then one step after another.

use crate::Input;
use lasthop_frame::FlowKey;
use lasthop_policy::PortLists;
use lasthop_policy::acl::{Book, Prefix, Scope, read};
use lasthop_policy::testutil::{Op, compare, key, mac, tagged};
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use std::collections::BTreeMap;

fn address(n: u8) -> MacAddr {
    match n & 15 {
        0 => MacAddr::BROADCAST,
        1 => MacAddr([0; 6]),
        2 => MacAddr([1, 0x80, 0xc2, 0, 0, 3]),
        3 => MacAddr([1, 0, 0x5e, 0, 0, 9]),
        n => mac(n),
    }
}

fn packet(input: &mut Input<'_>) -> FlowKey {
    let (addresses, place) = (input.u8(), input.u8());
    let mut key = key(u32::from(place & 3) + 1, address(addresses), address(addresses >> 4));
    key.ip_src[12..].copy_from_slice(&[10, 0, 0, addresses & 15]);
    key.ip_dst[12..].copy_from_slice(&[10, 0, 0, addresses >> 4]);
    match place >> 2 & 3 {
        3 => key,
        vlan => tagged(key, u16::from(vlan) | u16::from(place >> 5) << 13),
    }
}

/// Files of rules that name sets.
const FILES: [&str; 4] = [
    "default deny\npermit from-guest ip from @a\npermit to-guest ip to @b",
    "deny from-guest ipv4 from @a to @b\ndefault to-guest deny\npermit to-guest ip from 10.0.0.0/29",
    "deny to-guest ip from @b to @a\ndeny to-guest ip from @a",
    "default deny",
];

fn lists(input: &mut Input<'_>) -> BTreeMap<PortId, PortLists> {
    let of = |text: &str| {
        let (mut book, lists) = (Book::default(), read(text, None).expect("a file above"));
        for set in ["a", "b"] {
            book.change_set(set, &[], &[]).expect("there is room");
        }
        book.replace(&Scope::Guests, None, &lists).expect("there are sets");
        book.of_port("p", false)
    };
    let which = input.u8();
    (0..4u8)
        .filter_map(|n| Some((PortId(u32::from(n) + 1), of(FILES.get(usize::from(which >> (2 * n) & 3))?))))
        .collect()
}

fn members(input: &mut Input<'_>) -> Op {
    let set = if input.flag() { "a" } else { "b" };
    let mut some = || {
        let (address, len) = (input.u8(), input.u8());
        Prefix::new([10, 0, 0, address & 15].into(), 28 + len % 5).into_iter().collect()
    };
    Op::Members(set, some(), some())
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let small = input.flag();
    let probes: Vec<_> = (0..6u8).map(|n| packet(&mut Input::new(&[n.wrapping_mul(43), n.wrapping_mul(77)]))).collect();
    let mut steps = 0;
    let ops = std::iter::from_fn(|| {
        steps += 1;
        (!input.is_empty() && steps < 150).then(|| match input.below(40) {
            28 => Op::Load(lists(&mut input)),
            29 => members(&mut input),
            30..=32 => Op::Port(u32::from(input.u8() & 3) + 1, input.flag()),
            33 => Op::PortGone(u32::from(input.u8() & 3) + 1),
            34 => Op::Poll(10_000),
            35 => Op::Poll(u64::from(input.u16())),
            36 => Op::Poll(150_000),
            37 => Op::Evict(input.u8().into()),
            38 => Op::RestartControl,
            39 => Op::RestartSwitch,
            _ => Op::Packet(packet(&mut input)),
        })
    });
    compare(ops, &probes, small);
}
