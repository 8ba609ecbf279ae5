//! Limits of an interface, as Open vSwitch has the kernel set them (`linux/rtnetlink.h`, `linux/pkt_sched.h`, `linux/pkt_cls.h`): policing of what comes from it,
//! and a queueing discipline of classes for what goes to it.

use crate::Refused;
use crate::netlink::{Writer, table, text_of};

/// Type of the message in front of these, which is ours: the name of the interface that they are about.
pub const INTERFACE: u16 = 0x7f10;
/// In answer to that: whatever is behind it is for the kernel (EXDEV).
pub const FOR_THE_KERNEL: Refused = Refused(18);
/// Types of messages about queueing disciplines, classes and filters.
pub const NEW_QDISC: u16 = 36;
#[allow(missing_docs)]
pub const DEL_QDISC: u16 = 37;
#[allow(missing_docs)]
pub const GET_QDISC: u16 = 38;
#[allow(missing_docs)]
pub const NEW_CLASS: u16 = 40;
#[allow(missing_docs)]
pub const DEL_CLASS: u16 = 41;
#[allow(missing_docs)]
pub const GET_CLASS: u16 = 42;
#[allow(missing_docs)]
pub const NEW_FILTER: u16 = 44;
#[allow(missing_docs)]
pub const DEL_FILTER: u16 = 45;
#[allow(missing_docs)]
pub const GET_FILTER: u16 = 46;

/// Above all of them.
pub const LAST: u16 = 47;

/// Parent of the discipline for what goes to the interface.
pub const ROOT: u32 = 0xffff_ffff;
/// Parent of that for what comes from it.
pub const INGRESS: u32 = 0xffff_fff1;
/// Handle of the discipline for what goes there, as Open vSwitch chooses it; classes have a number beside it.
pub const HANDLE: u32 = 0x1_0000;

/// Bytes of `struct tcmsg`.
const HEADER: usize = 20;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const STATS: u16 = 7;
/// Kinds of attributes there may be.
const COUNT: usize = 12;
/// Bytes of `struct tc_htb_opt`.
pub const PARAMETERS: usize = 44;
const CEIL_64: usize = 7;
/// A tick of the kernel's packet schedulers, in nanoseconds: /proc/net/psched says so of every kernel since 2.6.31.
const TICK_NS: u64 = 64;

/// How much may pass a second, and how much at once in nanoseconds' worth. Rates of 0 are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes a second.
    pub bytes: u64,
    /// Packets a second.
    pub packets: u64,
    /// Nanoseconds' worth that may be made up for.
    pub burst_ns: u64,
}

/// A message about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What it is about; for a class of ours [`HANDLE`] and its number.
    pub handle: u32,
    /// What that hangs from.
    pub parent: u32,
    /// Kind of discipline, class or filter; empty if it does not say.
    pub kind: &'a str,
    options: &'a [u8],
}

/// A class of what goes to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// What it hangs from.
    pub parent: u32,
    /// What it is to get in any case, in bytes a second.
    pub least: u64,
    /// Its turn among the classes of an interface: those with 0 come first, and that is what one has which nobody says more of.
    pub priority: u32,
    /// What it may get.
    pub rate: Rate,
    /// As it was told, for whoever asks.
    pub parameters: [u8; PARAMETERS],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_of(value: Option<&[u8]>) -> Option<u64> {
    Some(u64::from_ne_bytes(value?.try_into().ok()?))
}

impl<'a> Request<'a> {
    /// Reads a message's payload.
    pub fn read(payload: &'a [u8]) -> Result<Self, Refused> {
        let (header, list) = payload.split_at_checked(HEADER).ok_or(Refused::INVALID)?;
        let number = |at| u32_at(header, at).ok_or(Refused::INVALID);
        let [_, kind, options] = table::<3>(list)?;
        let kind = kind.map(text_of).transpose()?.unwrap_or_default();
        Ok(Self { handle: number(8)?, parent: number(12)?, kind, options: options.unwrap_or_default() })
    }

    /// It is about what comes from the interface.
    pub fn is_ingress(&self) -> bool {
        self.parent != ROOT && [self.parent, self.handle].iter().any(|end| end >> 16 == INGRESS >> 16)
    }

    /// What a filter that polices everything lets through. Any other is refused.
    pub fn police(&self) -> Result<Rate, Refused> {
        // The list of actions.
        let at = match self.kind {
            "matchall" => 2,
            "basic" => 3,
            _ => return Err(Refused::UNSUPPORTED),
        };
        let options = table::<COUNT>(self.options)?;
        let [_, action] = table::<2>(options.get(at).copied().flatten().ok_or(Refused::INVALID)?)?;
        let [_, kind, options] = table::<3>(action.ok_or(Refused::INVALID)?)?;
        if kind.map(text_of).transpose()? != Some("police") {
            return Err(Refused::UNSUPPORTED);
        }
        let [_, parameters, _, _, _, _, _, _, rate, _, packets, burst] =
            table::<COUNT>(options.ok_or(Refused::INVALID)?)?;
        let parameters = parameters.ok_or(Refused::INVALID)?;
        let (ticks, bytes) = u32_at(parameters, 12).zip(u32_at(parameters, 28)).ok_or(Refused::INVALID)?;
        let bytes = u64_of(rate).unwrap_or(bytes.into());
        let packets = u64_of(packets).unwrap_or(0);
        let ticks = if bytes > 0 { ticks.into() } else { u64_of(burst).unwrap_or(0) };
        Ok(Rate { bytes, packets, burst_ns: ticks.saturating_mul(TICK_NS) })
    }

    /// The class that this makes.
    pub fn class(&self) -> Result<Class, Refused> {
        let found = table::<COUNT>(self.options)?;
        let parameters = found.get(1).copied().flatten().and_then(|value| value.first_chunk().copied());
        let parameters: [u8; PARAMETERS] = parameters.ok_or(Refused::INVALID)?;
        let number = |at| u32_at(&parameters, at).ok_or(Refused::INVALID);
        let (least, most, ticks, priority) = (number(8)?, number(20)?, number(28)?, number(40)?);
        let bytes = u64_of(found.get(CEIL_64).copied().flatten()).unwrap_or(most.into());
        let rate = Rate { bytes, packets: 0, burst_ns: u64::from(ticks) * TICK_NS };
        Ok(Class { parent: self.parent, least: least.into(), priority, rate, parameters })
    }
}

/// The name that an [`INTERFACE`] message's payload is.
pub fn interface(payload: &[u8]) -> Option<&str> {
    text_of(payload).ok().filter(|name| !name.is_empty())
}

/// Writes that message.
pub fn write_interface(name: &str, to: &mut Writer) {
    to.begin(INTERFACE, 0, 0, 0);
    to.raw(name.as_bytes());
    to.raw(&[0]);
    to.pad();
    to.end();
}

fn header(handle: u32, parent: u32, to: &mut Writer) {
    to.raw(&[0; 8]);
    [handle, parent, 0].iter().for_each(|number| to.raw(&number.to_ne_bytes()));
}

/// Writes what is told of the discipline of classes.
pub fn write_discipline(to: &mut Writer) {
    header(HANDLE, ROOT, to);
    to.text(KIND, "htb");
    to.nest(OPTIONS, |_| {});
}

/// Writes what is told of a class: what it is, packets and bytes that have passed, and packets that were dropped.
pub fn write_class(handle: u32, class: &Class, passed: [u64; 2], dropped: u64, to: &mut Writer) {
    let [packets, bytes] = passed;
    header(handle, class.parent, to);
    to.text(KIND, "htb");
    to.nest(OPTIONS, |to| write_parameters(class, to));
    to.nest(STATS, |to| {
        to.attribute(1, &[&bytes.to_ne_bytes()[..], &(packets as u32).to_ne_bytes(), &[0; 4]].concat());
        to.attribute(3, &[0, 0, dropped as u32, 0, 0].map(u32::to_ne_bytes).concat());
    });
}

/// Writes the options of a class, for [`Request::class`].
pub fn write_parameters(class: &Class, to: &mut Writer) {
    to.attribute(1, &class.parameters);
    if Some(class.rate.bytes) != u32_at(&class.parameters, 20).map(u64::from) {
        to.attribute(CEIL_64 as u16, &class.rate.bytes.to_ne_bytes());
    }
}

/// Writes a request that makes a class, or with `kind` and no class one about a discipline or filter, for [`Request::read`].
pub fn write_request(handle: u32, parent: u32, kind: &str, options: impl FnOnce(&mut Writer), to: &mut Writer) {
    header(handle, parent, to);
    to.text(KIND, kind);
    to.nest(OPTIONS, options);
}

/// Writes the options of a filter that polices everything, of kind `matchall`.
pub fn write_police(rate: &Rate, to: &mut Writer) {
    to.nest(2, |to| {
        to.nest(1, |to| {
            to.text(1, "police");
            to.nest(2, |to| {
                let ticks = rate.burst_ns / TICK_NS;
                let mut parameters = [0; 56];
                parameters[12..16].copy_from_slice(&(ticks as u32).to_ne_bytes());
                parameters[28..32].copy_from_slice(&(rate.bytes as u32).to_ne_bytes());
                to.attribute(1, &parameters);
                if rate.bytes > u32::MAX.into() {
                    to.attribute(8, &rate.bytes.to_ne_bytes());
                }
                if rate.packets > 0 {
                    to.attribute(10, &rate.packets.to_ne_bytes());
                    to.attribute(11, &ticks.to_ne_bytes());
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payload(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut to = Writer::new();
        fill(&mut to);
        to.into_bytes()
    }

    #[test]
    fn a_class_that_is_told_is_read_as_it_was() {
        let mut parameters = [0; PARAMETERS];
        parameters[8..12].copy_from_slice(&1500u32.to_ne_bytes());
        parameters[20..24].copy_from_slice(&125_000u32.to_ne_bytes());
        parameters[28..32].copy_from_slice(&1000u32.to_ne_bytes());
        parameters[40..44].copy_from_slice(&3u32.to_ne_bytes());
        let bytes = payload(|to| write_request(HANDLE + 1, HANDLE, "htb", |to| to.attribute(1, &parameters), to));
        let class = Request::read(&bytes).unwrap().class().unwrap();
        let rate = Rate { bytes: 125_000, packets: 0, burst_ns: 64_000 };
        assert_eq!(class, Class { parent: HANDLE, least: 1500, priority: 3, rate, parameters });
        let told = payload(|to| write_class(HANDLE + 1, &class, [3, 300], 2, to));
        let read = Request::read(&told).unwrap();
        assert_eq!((read.handle, read.kind, read.class()), (HANDLE + 1, "htb", Ok(class)));
    }

    #[test]
    fn filters_that_do_other_things_are_refused() {
        let of = |kind: &str, fill: &dyn Fn(&mut Writer)| {
            let bytes = payload(|to| write_request(1, INGRESS, kind, fill, to));
            Request::read(&bytes).unwrap().police()
        };
        assert_eq!(of("flower", &|_| {}), Err(Refused::UNSUPPORTED));
        assert_eq!(of("matchall", &|_| {}), Err(Refused::INVALID));
        let mirred = |to: &mut Writer| to.nest(2, |to| to.nest(1, |to| to.text(1, "mirred")));
        assert_eq!(of("matchall", &mirred), Err(Refused::UNSUPPORTED));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes: u32, packets: u32, ticks: u32) {
            let burst_ns = if bytes > 0 || packets > 0 { u64::from(ticks) * TICK_NS } else { 0 };
            let rate = Rate { bytes: bytes.into(), packets: packets.into(), burst_ns };
            let written = payload(|to| write_request(1, INGRESS, "matchall", |to| write_police(&rate, to), to));
            prop_assert_eq!(Request::read(&written).unwrap().police(), Ok(rate));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = Request::read(&bytes) {
                let _ = (request.police(), request.class());
            }
        }
    }
}
