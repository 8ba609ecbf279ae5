//! Messages of netlink(7), and their attributes.
#![allow(missing_docs)] // Fields whose names say all.

/// `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// An attribute's length and kind.
const ATTRIBUTE: usize = 4;
/// What an attribute's kind says besides: that it is made of others, or that it is in network byte order.
const KIND: u16 = 0x3fff;

/// A request that is being written.
#[derive(Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// One of this type, with these flags.
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(bytes)
    }

    /// Bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// An attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.add(kind, value);
        self
    }

    /// Adds an attribute.
    pub fn add(&mut self, kind: u16, value: &[u8]) {
        let at = self.begin(kind);
        self.0.extend(value);
        self.end(at);
    }

    /// Adds an attribute that is made of others.
    pub fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        let at = self.begin(kind);
        inner(self);
        self.end(at);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        at
    }

    fn end(&mut self, at: usize) {
        // The few attributes there are do not come near the limit.
        let len = u16::try_from(self.0.len() - at).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// All of it, with this number.
    pub fn finish(mut self, number: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&number.to_ne_bytes());
        self.0
    }
}

/// A message that has come: its type, its number, and what follows its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard<'a> {
    pub kind: u16,
    pub number: u32,
    pub body: &'a [u8],
}

/// The messages of a datagram, up to the first that cannot be one.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Heard<'_>> {
    std::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        let (kind, number) = (half(bytes, 4)?, word(bytes, 8)?);
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Heard { kind, number, body })
    })
}

/// The attributes in these bytes, up to the first that cannot be one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(half(bytes, 0)?), half(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & KIND, value))
    })
}

/// The value of the first attribute of this kind.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Numbers in the host's byte order.
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Of 32 bits.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Of 64 bits.
pub fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
