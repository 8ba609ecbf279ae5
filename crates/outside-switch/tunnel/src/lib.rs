//! What is known of a tunnelled packet beside its frame, and how `lasthop-ovs` and a tunnel's uplink tell each other of it.
//!
//! The switch between them knows nothing of tunnels. A frame on its way between the two has an 802.1ad tag in front, whose priority and
//! VLAN id are a *number*. Each side gives numbers to what it sends, and tells the other what they mean by messages that are frames too,
//! with number 0:
//!
//! ```text
//! byte  0  addresses            as every frame has
//!      12  88 a8 00 00          the tag, number 0
//!      16  88 b5                local experimental EtherType (IEEE Std 802, clause 9.2.4)
//!      18  kind                 1: a packet, 2: known, 3: unknown
//!      20  number, 2 bytes
//!      22  of kinds 1 and 2: a Tunnel, and behind that of kind 1 the packet's frame, which may be empty
//! ```
//!
//! A packet whose metadata has no number yet, or one that the other side has not said to know, goes as a message of kind 1 and is lost no
//! more easily than any packet. With a number other than 0 it says what that number means. The other side answers "known", and from then
//! on the number alone will do; or, when it is asked about a number later, "unknown", because it has been started anew. "Known" says which
//! meaning is: the number may have been given another one while the answer was under way.

#![forbid(unsafe_code)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of a tunnel's options. Geneve knows up to 252; those of OVN are 8.
pub const MAX_OPTIONS: usize = 128;
/// TPID of the tag in front of a frame.
pub const TPID: u16 = 0x88a8;
/// Greatest number: 15 bits of a tag.
pub const MAX_NUMBER: u16 = 0x7fff;
const ETHERTYPE: u16 = 0x88b5;
/// Where the tag lies, and where what is behind it begins.
const TAG_AT: usize = 12;
const BEHIND_TAG: usize = 16;
/// Bytes in front of a message's [`Tunnel`].
const HEADER: usize = 22;

/// What is known of a tunnelled packet beside its frame; or a mask of that. No field has an alignment, so it may lie anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Tunnel {
    /// Number of the virtual network, in network order.
    pub id: [u8; 8],
    /// This end's address, an IPv4 one mapped into IPv6; all zero: whichever the route has.
    pub local: [u8; 16],
    /// The other end's.
    pub remote: [u8; 16],
    /// UDP port of the other end in network order; 0: the device's own. GRE has none.
    pub port: [u8; 2],
    /// Type of service or traffic class of the outer packet.
    pub tos: u8,
    /// Its TTL or hop limit.
    pub ttl: u8,
    /// Bits of [`Tunnel::DONT_FRAGMENT`] and the like.
    pub flags: u8,
    /// Bytes of the options.
    pub options_len: u8,
    /// Always zero.
    pub reserved: [u8; 2],
    /// Options as they are sent, zero behind them.
    pub options: [u8; MAX_OPTIONS],
}

impl Default for Tunnel {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl Tunnel {
    /// The outer packet is not to be fragmented.
    pub const DONT_FRAGMENT: u8 = 1;
    /// The outer packet has a checksum.
    pub const CHECKSUM: u8 = 2;
    /// For the tunnel's endpoint itself (Geneve's O bit).
    pub const OAM: u8 = 4;
    /// The network has a number, be it 0 (GRE's K bit). Said of what goes out only.
    pub const KEY: u8 = 8;

    /// Nothing: no tunnel.
    pub fn new_zeroed() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }

    /// No packet of a tunnel has this.
    pub fn is_none(&self) -> bool {
        self.remote == [0; 16]
    }

    /// The options.
    pub fn options(&self) -> &[u8] {
        self.options.get(..usize::from(self.options_len)).unwrap_or(&self.options)
    }

    /// Takes other options. False, and none are taken, if they are too long.
    pub fn set_options(&mut self, options: &[u8]) -> bool {
        let mut room = [0; MAX_OPTIONS];
        let Some(to) = room.get_mut(..options.len()) else { return false };
        to.copy_from_slice(options);
        (self.options, self.options_len) = (room, options.len() as u8);
        true
    }
}

/// The tag's TCI for a number.
pub fn tci_of(number: u16) -> u16 {
    (number & 0xfff) | (number >> 12 & 7) << 13
}

/// The number that a tag's TCI is, whatever its bit 12.
pub fn number_of(tci: u16) -> u16 {
    tci & 0xfff | tci >> 13 << 12
}

/// The number in front of a frame, if there is one.
pub fn number(frame: &[u8]) -> Option<u16> {
    let &[t0, t1, c0, c1] = frame.get(TAG_AT..)?.first_chunk()?;
    ([t0, t1] == TPID.to_be_bytes()).then(|| number_of(u16::from_be_bytes([c0, c1])))
}

/// A frame with a number in front.
pub fn with_number(number: u16, frame: &[u8]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(frame.len().min(TAG_AT));
    [addresses, &TPID.to_be_bytes(), &tci_of(number).to_be_bytes(), rest].concat()
}

/// What one side tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet with its metadata, which has this number from now on if that is not 0. Without a frame it says no more than that.
    Packet {
        /// The number.
        number: u16,
        /// What it means.
        tunnel: Tunnel,
        /// The packet.
        frame: &'a [u8],
    },
    /// That this number means this is known.
    Known {
        /// The number.
        number: u16,
        /// Its meaning: if it has another one by now, that is not known.
        tunnel: Tunnel,
    },
    /// What this number means is not known.
    Unknown(u16),
}

impl<'a> Message<'a> {
    /// Reads a frame that has number 0 in front. `None`: it is no message.
    pub fn read(frame: &'a [u8]) -> Option<Self> {
        let (header, rest) = frame.split_first_chunk::<HEADER>()?;
        let [.., e0, e1, kind, _, n0, n1] = *header;
        let number = u16::from_be_bytes([n0, n1]);
        if self::number(header) != Some(0) || [e0, e1] != ETHERTYPE.to_be_bytes() || number > MAX_NUMBER {
            return None;
        }
        match kind {
            1 => {
                let (tunnel, frame) = Tunnel::read_from_prefix(rest).ok()?;
                let is_sound = usize::from(tunnel.options_len) <= MAX_OPTIONS;
                is_sound.then_some(Self::Packet { number, tunnel, frame })
            }
            2 => Some(Self::Known { number, tunnel: Tunnel::read_from_prefix(rest).ok()?.0 }),
            3 => Some(Self::Unknown(number)),
            _ => None,
        }
    }

    /// As a frame.
    pub fn write(&self) -> Vec<u8> {
        let (kind, number) = match self {
            Self::Packet { number, .. } => (1, *number),
            Self::Known { number, .. } => (2, *number),
            Self::Unknown(number) => (3, *number),
        };
        let mut bytes = vec![0; BEHIND_TAG];
        // Locally administered, and no group.
        bytes[0] = 2;
        bytes[6..8].copy_from_slice(&[2, 1]);
        bytes[TAG_AT..TAG_AT + 2].copy_from_slice(&TPID.to_be_bytes());
        bytes.extend(ETHERTYPE.to_be_bytes());
        bytes.extend([kind, 0]);
        bytes.extend(number.to_be_bytes());
        match self {
            Self::Packet { tunnel, frame, .. } => {
                bytes.extend(tunnel.as_bytes());
                bytes.extend(*frame);
            }
            Self::Known { tunnel, .. } => bytes.extend(tunnel.as_bytes()),
            Self::Unknown(_) => {}
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tunnel() -> impl Strategy<Value = Tunnel> {
        let options = prop::collection::vec(any::<u8>(), 0..=MAX_OPTIONS);
        (any::<[u8; 8]>(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 5]>(), options).prop_map(
            |(id, local, remote, [tos, ttl, flags, p0, p1], options)| {
                let mut tunnel = Tunnel { id, local, remote, tos, ttl, flags, port: [p0, p1], ..Tunnel::default() };
                assert!(tunnel.set_options(&options));
                tunnel
            },
        )
    }

    #[test]
    fn options_that_are_too_long_are_not_taken() {
        let mut tunnel = Tunnel::default();
        assert!(tunnel.set_options(&[7; MAX_OPTIONS]) && !tunnel.set_options(&[8; MAX_OPTIONS + 1]));
        assert_eq!(tunnel.options(), [7; MAX_OPTIONS]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in 0..=MAX_NUMBER, tunnel in tunnel(), frame in prop::collection::vec(any::<u8>(), 0..99)) {
            for message in [Message::Packet { number, tunnel, frame: &frame }, Message::Known { number, tunnel }, Message::Unknown(number)] {
                let bytes = message.write();
                prop_assert_eq!(super::number(&bytes), Some(0));
                prop_assert_eq!(Message::read(&bytes), Some(message));
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::read(&bytes);
        }

        #[test]
        fn a_number_is_a_tag_with_bit_12_free(number in 0..=MAX_NUMBER) {
            prop_assert_eq!(number_of(tci_of(number)), number);
            prop_assert_eq!(tci_of(number) & 0x1000, 0);
            prop_assert_eq!(super::number(&with_number(number, &[1; 60])), Some(number));
        }
    }
}
