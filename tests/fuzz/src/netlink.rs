//! What Open vSwitch says: every reader of the netlink codec takes any bytes, says the same of them as a slow reading of the format, and reads what is written of it as the same again.
//!
//! Input: a byte that says which reader, and with bit 7 that the rest is read as pairs of kind and length with bytes behind, which are written as attributes; then bytes.

use crate::Input;
use lasthop_ovs_abi::limit::Limit;
use lasthop_ovs_abi::meter::{self, Meter};
use lasthop_ovs_abi::netlink::{HEADER, Writer, attributes, messages};
use lasthop_ovs_abi::traffic::{self, Rate, Request};
use lasthop_ovs_abi::{Act, Key, Refused, conntrack};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let bytes = if how & 0x80 == 0 { input.rest().to_vec() } else { written(&mut input, 4) };
    split(&bytes);
    match how % 6 {
        0 => datagram(&bytes),
        1 => key(&bytes),
        2 => acts(&bytes),
        3 => meters(&bytes),
        4 => limits(&bytes),
        _ => {
            let _ = conntrack::Meant::read(&bytes);
            traffic(&bytes);
        }
    }
}

/// Attributes as the input says, some of them with attributes in them.
fn written(input: &mut Input<'_>, depth: usize) -> Vec<u8> {
    let mut to = Writer::new();
    for _ in 0..input.u8() % 16 {
        let (kind, len) = (u16::from(input.u8()), usize::from(input.u8()));
        if len >= 0xc0 && depth > 0 {
            let inner = written(input, depth - 1);
            to.nest(kind, |to| to.raw(&inner));
        } else {
            to.attribute(kind, input.bytes(len % 64));
        }
        if input.is_empty() {
            break;
        }
    }
    to.into_bytes()
}

/// Attributes, found by steps of their lengths.
fn split(bytes: &[u8]) {
    let mut at = 0;
    let mut expected = Vec::new();
    while at < bytes.len() {
        let number = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let (len, kind) = (usize::from(number(at).unwrap_or(0)), number(at + 2));
        match kind {
            Some(kind) if len >= 4 && at + len <= bytes.len() => {
                expected.push(Ok((kind & 0x3fff, &bytes[at + 4..at + len])));
                at += len.div_ceil(4) * 4;
            }
            _ => {
                expected.push(Err(Refused::INVALID));
                break;
            }
        }
    }
    assert!(attributes(bytes).eq(expected));
}

fn datagram(bytes: &[u8]) {
    let mut at = 0;
    for message in messages(bytes) {
        let len = u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        assert_eq!(message.whole, &bytes[at..at + len]);
        assert_eq!(message.payload, &bytes[at + HEADER..at + len]);
        at += len.div_ceil(4) * 4;
    }
    // What is left is no message: it is cut short.
    let rest = bytes.get(at..).unwrap_or_default();
    let len = rest.get(..4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]) as usize);
    assert!(rest.len() < HEADER || len < HEADER || len > rest.len());
}

/// A flow's key has no bits that its mask has not; one that is written as a packet's is read as the same fields.
fn key(bytes: &[u8]) {
    let (left, right) = bytes.split_at(bytes.len() / 2);
    let _ = Key::metadata(bytes);
    if let Ok((key, mask)) = Key::read(left, Some(right)) {
        assert_eq!(key.masked(&mask), key);
    }
    let Ok((key, mask)) = Key::read(bytes, None) else { return };
    assert_eq!(key.masked(&mask), key);
    let mut to = Writer::new();
    key.write(&mut to);
    let Ok((again, own)) = Key::read(&to.into_bytes(), None) else { return };
    // A packet's key tells what its protocol has: what it tells is what the flow's had.
    let mut once_more = Writer::new();
    again.write(&mut once_more);
    assert_eq!(Key::read(&once_more.into_bytes(), None), Ok((again, own)));
}

fn acts(bytes: &[u8]) {
    fn count(acts: &[Act]) -> usize {
        let of = |act: &Act| match act {
            Act::Sample(_, acts) | Act::Clone(acts) => count(acts),
            Act::CheckLength(_, longer, other) => count(longer) + count(other),
            _ => 0,
        };
        acts.len() + acts.iter().map(of).sum::<usize>()
    }
    let Ok(acts) = Act::read(bytes) else { return };
    assert!(count(&acts) <= lasthop_ovs_abi::MAX_ACTS);
    assert_eq!(acts.len(), attributes(bytes).count(), "one for each attribute");
    for act in acts {
        let Act::Set(sets) = act else { continue };
        assert!(sets.iter().all(|set| set.value & !set.mask == 0 && set.mask != 0));
    }
}

fn meters(bytes: &[u8]) {
    let (id, meter) = (meter::id_of(bytes), Meter::read(bytes));
    let (Ok(id), Ok(meter)) = (id, meter) else { return };
    assert!(meter.band.is_none_or(|band| band.rate > 0));
    let mut to = Writer::new();
    meter::write_set(id, &meter, &mut to);
    let bytes = to.into_bytes();
    assert_eq!((meter::id_of(&bytes), Meter::read(&bytes)), (Ok(id), Ok(meter)));
}

fn limits(bytes: &[u8]) {
    let Ok(limits) = Limit::read(bytes) else { return };
    assert!(limits.len() <= bytes.len() / 12);
    let mut to = Writer::new();
    Limit::write(&limits, &mut to);
    assert_eq!(Limit::read(&to.into_bytes()), Ok(limits));
}

/// Limits of interfaces: what is written of one is read as the same.
fn traffic(bytes: &[u8]) {
    let _ = traffic::interface(bytes);
    let Ok(request) = Request::read(bytes) else { return };
    let again = |kind: &str, fill: &dyn Fn(&mut Writer)| {
        let mut to = Writer::new();
        traffic::write_request(request.handle, request.parent, kind, fill, &mut to);
        to.into_bytes()
    };
    if let Ok(class) = request.class() {
        let written = again("htb", &|to| traffic::write_parameters(&class, to));
        assert_eq!(Request::read(&written).and_then(|request| request.class()), Ok(class));
    }
    if let Ok(rate) = request.police() {
        let written = again("matchall", &|to| traffic::write_police(&rate, to));
        let read = Request::read(&written).and_then(|request| request.police());
        let what = |rate: Rate| (rate.bytes, rate.packets);
        assert_eq!(read.map(what), Ok(what(rate)));
    }
}
