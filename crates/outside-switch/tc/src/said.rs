//! What the kernel says of a rule.
#![allow(missing_docs)] // Fields whose names say all.

use crate::message::{attribute, attributes, long, word};
use crate::rule::{FLOWER, Place, TCA_KIND, TCA_OPTIONS, flower};

/// `struct tcmsg`.
const TCMSG: usize = 20;
/// Of an action: its options and its statistics; of these the counters, and packets beyond 32 bits; of its options its times.
const ACT_OPTIONS: u16 = 2;
const ACT_STATS: u16 = 4;
const BASIC: u16 = 1;
const PACKETS: u16 = 8;
const TIMES: u16 = 1;
/// `TCA_CLS_FLAGS_IN_HW`.
const IN_HW: u32 = 4;
/// Milliseconds of a tick of the kernel's clock as programs see it.
const TICK_MS: u64 = 10;

/// What a rule has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Which.
    pub place: Place,
    /// As its first action counts.
    pub packets: u64,
    pub bytes: u64,
    /// Since a packet last met it, or since it was made.
    pub idle_ms: u64,
    /// A card carries it out.
    pub in_hardware: bool,
}

/// What the body of a message of a filter says, if it is one of flower's.
pub(crate) fn read(body: &[u8]) -> Option<Statistics> {
    let (device, handle, info) = (word(body, 4)?, word(body, 8)?, word(body, 16)?);
    let place = Place { device, priority: (info >> 16) as u16, protocol: u16::from_be(info as u16), handle };
    let all = body.get(TCMSG..)?;
    if attribute(all, TCA_KIND)? != FLOWER {
        return None;
    }
    let options = attribute(all, TCA_OPTIONS)?;
    let in_hardware =
        attribute(options, flower::FLAGS).and_then(|flags| word(flags, 0)).is_some_and(|f| f & IN_HW != 0);
    let first =
        attribute(options, flower::ACT).and_then(|acts| attributes(acts).next()).map_or(&[][..], |(_, act)| act);
    let counted = attribute(first, ACT_STATS).unwrap_or_default();
    let basic = attribute(counted, BASIC).unwrap_or_default();
    let more = attribute(counted, PACKETS).and_then(|packets| long(packets, 0));
    let times = attribute(first, ACT_OPTIONS).and_then(|options| attribute(options, TIMES)).unwrap_or_default();
    Some(Statistics {
        place,
        packets: more.or_else(|| word(basic, 8).map(u64::from)).unwrap_or(0),
        bytes: long(basic, 0).unwrap_or(0),
        idle_ms: long(times, 8).unwrap_or(0).saturating_mul(TICK_MS),
        in_hardware,
    })
}
