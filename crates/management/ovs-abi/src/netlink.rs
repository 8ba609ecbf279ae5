//! Netlink messages and attributes: numbers in the host's byte order, lengths with headers, everything aligned to four bytes.

use crate::Refused;

/// Bytes of a message's header.
pub const HEADER: usize = 16;
/// Bytes of the generic netlink header and of Open vSwitch's behind it.
pub const OVS_HEADER: usize = 8;
/// Bytes of an attribute's header.
const ATTRIBUTE: usize = 4;
/// The flags "nested" and "network byte order" of an attribute's type.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
/// Most bytes that an attribute can hold.
pub const LONGEST: usize = u16::MAX as usize - ATTRIBUTE;

/// Types of messages that belong to no family.
pub mod kind {
    /// An error, or with number 0 an acknowledgement.
    pub const ERROR: u16 = 2;
    /// The end of a dump.
    pub const DONE: u16 = 3;
    /// Generic netlink's controller.
    pub const CONTROL: u16 = 16;
}

/// Flags of a message.
pub mod flag {
    /// One of several parts.
    pub const MULTI: u16 = 2;
    /// An acknowledgement is wanted.
    pub const ACK: u16 = 4;
    /// What has been done is to be told.
    pub const ECHO: u16 = 8;
    /// All entries are wanted.
    pub const DUMP: u16 = 0x300;
    /// NEW: one that exists is left as it is, and that is an error.
    pub const EXCL: u16 = 0x200;
    /// NEW: one is made if there is none.
    pub const CREATE: u16 = 0x400;
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its family, or one of [`kind`].
    pub kind: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// The sender's number for it, which its answers have.
    pub sequence: u32,
    /// What is behind the header.
    pub payload: &'a [u8],
    /// All of it.
    pub whole: &'a [u8],
}

/// The messages of a datagram. Ends at the first that is cut short, as the kernel does.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(datagram, 0)? as usize;
        let whole = datagram.get(..len).filter(|whole| whole.len() >= HEADER)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags, sequence) = (u16_at(whole, 4)?, u16_at(whole, 6)?, u32_at(whole, 8)?);
        Some(Message { kind, flags, sequence, payload: whole.get(HEADER..)?, whole })
    })
}

/// The attributes of a list, each with its type; [`Refused::INVALID`] behind the last that is in order, if there is more.
pub fn attributes(mut list: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Refused>> {
    std::iter::from_fn(move || {
        if list.is_empty() {
            return None;
        }
        let len = usize::from(u16_at(list, 0).unwrap_or(0));
        let value = list.get(ATTRIBUTE..len);
        let (Some(value), Some(kind)) = (value, u16_at(list, 2)) else {
            list = &[];
            return Some(Err(Refused::INVALID));
        };
        list = list.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok((kind & TYPE_MASK, value)))
    })
}

/// The attributes of a list by type, up to type `N - 1`; of one that comes twice the last. Those that are not known are left out.
pub fn table<const N: usize>(list: &[u8]) -> Result<[Option<&[u8]>; N], Refused> {
    let mut found = [None; N];
    for attribute in attributes(list) {
        let (kind, value) = attribute?;
        if let Some(place) = found.get_mut(usize::from(kind)) {
            *place = Some(value);
        }
    }
    Ok(found)
}

/// The number that an attribute holds.
pub fn u32_of(value: &[u8]) -> Result<u32, Refused> {
    value.try_into().map(u32::from_ne_bytes).map_err(|_| Refused::RANGE)
}

/// The numbers that an attribute holds one behind the other.
pub fn u32s_of(value: &[u8]) -> Vec<u32> {
    value.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect()
}

/// The text that an attribute holds, without the zero at its end.
pub fn text_of(value: &[u8]) -> Result<&str, Refused> {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(text).map_err(|_| Refused::INVALID)
}

/// Messages in the making: one datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Where the message that is being written begins.
    message: usize,
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a message, for [`Writer::end`] to end.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32, pid: u32) {
        self.message = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend(pid.to_ne_bytes());
    }

    /// The headers of a message of a family of Open vSwitch's.
    pub fn ovs_header(&mut self, command: u8, version: u8, dp_ifindex: i32) {
        self.bytes.extend([command, version, 0, 0]);
        self.bytes.extend(dp_ifindex.to_ne_bytes());
    }

    /// Ends the message: its length is known.
    pub fn end(&mut self) {
        let len = (self.bytes.len() - self.message) as u32;
        if let Some(place) = self.bytes.get_mut(self.message..).and_then(|m| m.first_chunk_mut()) {
            *place = len.to_ne_bytes();
        }
    }

    /// An attribute. One that is longer than attributes can be is cut.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let value = value.get(..LONGEST).unwrap_or(value);
        self.bytes.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An attribute that holds a number.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute that holds text, and a zero behind it.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// An attribute that holds attributes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.bytes.extend([0; ATTRIBUTE]);
        fill(self);
        let len = (self.bytes.len() - at).min(usize::from(u16::MAX)) as u16;
        if let Some(header) = self.bytes.get_mut(at..at + ATTRIBUTE) {
            header[..2].copy_from_slice(&len.to_ne_bytes());
            header[2..].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        }
        // What was written as it came need not end where the next attribute may begin.
        self.pad();
    }

    /// Zeros up to where the next message may begin.
    pub fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Error `number` in answer to this message, 0 to acknowledge it.
    pub fn error(&mut self, number: i32, of: &Message<'_>, pid: u32) {
        self.begin(kind::ERROR, 0, of.sequence, pid);
        self.bytes.extend((-number).to_ne_bytes());
        self.bytes.extend(of.whole.get(..HEADER).unwrap_or_default());
        self.end();
    }

    /// The end of a dump.
    pub fn done(&mut self, sequence: u32, pid: u32) {
        self.begin(kind::DONE, flag::MULTI, sequence, pid);
        self.bytes.extend([0; 4]);
        self.end();
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The datagram.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.begin(30, flag::ECHO, 7, 9);
        writer.ovs_header(1, 2, 3);
        writer.text(1, "br0");
        writer.nest(2, |w| w.number(5, 77));
        writer.end();
        writer.done(7, 9);
        let bytes = writer.into_bytes();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.iter().map(|m| (m.kind, m.sequence)).collect::<Vec<_>>(), [(30, 7), (kind::DONE, 7)]);
        let [_, name, nest] = table::<3>(&all[0].payload[OVS_HEADER..]).unwrap();
        assert_eq!(text_of(name.unwrap()), Ok("br0"));
        let numbers: Vec<_> = attributes(nest.unwrap()).collect();
        assert_eq!(numbers, [Ok((5, &77u32.to_ne_bytes()[..]))]);
    }

    #[test]
    fn what_comes_behind_attributes_of_any_length_is_read() {
        for len in 0..9 {
            let mut writer = Writer::new();
            let odd = vec![7; len];
            writer.nest(1, |to| to.raw(&odd));
            writer.number(2, 9);
            let bytes = writer.into_bytes();
            let all: Vec<_> =
                attributes(&bytes).map(|found| found.map(|(kind, value)| (kind, value.to_vec()))).collect();
            assert_eq!(all, [Ok((1, odd)), Ok((2, 9_u32.to_ne_bytes().to_vec()))], "{len}");
        }
    }

    proptest! {
        /// Whatever comes is read to its end, and nothing beyond it.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for message in messages(&bytes) {
                prop_assert!(message.whole.len() >= HEADER && message.payload.len() + HEADER == message.whole.len());
            }
            let read: usize = attributes(&bytes).map(|a| a.map_or(0, |(_, value)| value.len() + ATTRIBUTE)).sum();
            prop_assert!(read <= bytes.len());
        }

        #[test]
        fn a_list_cut_short_says_so(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..6), cut in 1usize..4) {
            let mut writer = Writer::new();
            values.iter().zip(1..).for_each(|(value, kind)| writer.attribute(kind, value));
            let bytes = writer.into_bytes();
            let read: Vec<_> = attributes(&bytes).map(|a| a.unwrap().1.to_vec()).collect();
            prop_assert_eq!(&read, &values);
            let last = values.last().map_or(0, Vec::len).next_multiple_of(4);
            let short = &bytes[..bytes.len() - last + values.last().map_or(0, Vec::len) - 1];
            prop_assert_eq!(attributes(short).last(), Some(Err(Refused::INVALID)), "{}", cut);
        }
    }
}
