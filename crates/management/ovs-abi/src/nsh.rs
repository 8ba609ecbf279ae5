//! The network service header (RFC 8300), as a key tells of it, as actions have it, and as packets carry it.
//!
//! A key and a set have it as `struct ovs_nsh_key_base` and behind that `struct ovs_nsh_key_md1`: flags, hops left, type of metadata, next
//! protocol, path and index, and the context of metadata of type 1. What metadata of other types says no key tells.

use crate::Refused;
use crate::netlink::{Writer, attributes};

/// EtherType of packets that begin with such a header.
pub const ETHER_TYPE: u16 = 0x894f;
/// What a key tells of it, and the bits of that which matter or change.
pub type Nsh = [u8; BASE_LEN + CONTEXT_LEN];
/// Next protocol: an Ethernet frame.
pub const NEXT_ETHERNET: u8 = 3;

const BASE: u16 = 1;
const MD1: u16 = 2;
const MD2: u16 = 3;
const BASE_LEN: usize = 8;
const CONTEXT_LEN: usize = 16;
/// Where a [`Nsh`] has the type of metadata.
const TYPE: usize = 2;
/// Bits of the header's first 16: the version, the flags that are told, and where the hops left begin.
const VERSION: u16 = 0xc000;
const FLAGS: u16 = 0x3000;
const FLAGS_SHIFT: u32 = 12;
const TTL_SHIFT: u32 = 6;
const SIX_BITS: u16 = 0x3f;
/// Most bytes of metadata of type 2: the header has at most as many words as six bits count.
const LONGEST_METADATA: usize = SIX_BITS as usize * 4 - BASE_LEN;

/// EtherTypes and the next protocols that stand for them (RFC 8300, section 2.2; MPLS as Linux has it).
const PROTOCOLS: [(u8, u16); 5] = [(1, 0x0800), (2, 0x86dd), (NEXT_ETHERNET, 0x6558), (4, ETHER_TYPE), (5, 0x8847)];

/// The next protocol that says this EtherType.
pub fn next_protocol(ether_type: u16) -> Option<u8> {
    PROTOCOLS.iter().find(|(_, of)| *of == ether_type).map(|(number, _)| *number)
}

/// The EtherType that a next protocol says; of [`NEXT_ETHERNET`] it is 0x6558.
pub fn ether_type(next_protocol: u8) -> Option<u16> {
    PROTOCOLS.iter().find(|(number, _)| *number == next_protocol).map(|(_, of)| *of)
}

/// The length of the header that a packet of so many bytes begins with, of which these are the first. `None`: it has another version, a length that its type
/// of metadata does not have, or is longer than the packet.
fn header_len(start: &[u8], packet_len: usize) -> Option<usize> {
    let first = u16::from_be_bytes(*start.first_chunk()?);
    let len = usize::from(first & SIX_BITS) * 4;
    let fits = BASE_LEN <= len && len <= packet_len && first & VERSION == 0;
    (fits && (start.get(TYPE)? != &1 || len == BASE_LEN + CONTEXT_LEN)).then_some(len)
}

/// The header that a packet begins with, and what is behind it. `None`: there is none in order.
pub fn split(packet: &[u8]) -> Option<(&[u8], &[u8])> {
    packet.split_at_checked(header_len(packet, packet.len())?)
}

/// What a key tells of the header that a packet of so many bytes begins with, of which these are the first, at least 24 if it has as many; zeros if there is
/// none in order.
pub fn of_packet(header: &[u8], packet_len: usize) -> Nsh {
    let mut told = Nsh::default();
    if header_len(header, packet_len).is_none() {
        return told;
    }
    let first = header.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let flags_and_ttl = [((first & FLAGS) >> FLAGS_SHIFT) as u8, (first >> TTL_SHIFT & SIX_BITS) as u8];
    // Of types of metadata but 1 the context is told as zeros.
    let len = if header.get(TYPE) == Some(&1) { BASE_LEN + CONTEXT_LEN } else { BASE_LEN };
    told.iter_mut().zip(header.iter().take(len)).for_each(|(to, from)| *to = *from);
    if let Some(first) = told.first_chunk_mut() {
        *first = flags_and_ttl;
    }
    told
}

/// Changes the header that a packet begins with: flags, hops, path and index, and the context if it is of type 1. False: there is none in
/// order.
pub fn set(packet: &mut [u8], value: &Nsh, mask: &Nsh) -> bool {
    let Some((header, _)) = split(packet) else { return false };
    let (len, first) = (header.len(), header.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes)));
    let has_context = header.get(TYPE) == Some(&1);
    // Flags and hops as the header has them.
    let spread =
        |[flags, ttl, ..]: &Nsh| u16::from(*flags) << FLAGS_SHIFT & FLAGS | (u16::from(*ttl) & SIX_BITS) << TTL_SHIFT;
    let first = first & !spread(mask) | spread(value) & spread(mask);
    let (Some(header), Some(value), Some(mask)) = (packet.get_mut(..len), value.get(4..), mask.get(4..)) else {
        return false;
    };
    if let Some(place) = header.first_chunk_mut() {
        *place = first.to_be_bytes();
    }
    let words = header.iter_mut().skip(4).zip(value.iter().zip(mask));
    let told = if has_context { 4 + CONTEXT_LEN } else { 4 };
    words.take(told).for_each(|(place, (value, mask))| *place = *place & !mask | value & mask);
    true
}

/// The attribute of a key.
pub(crate) fn write(key: &Nsh, to: &mut Writer) {
    let (base, context) = key.split_at(BASE_LEN);
    to.attribute(BASE, base);
    if key.get(TYPE) == Some(&1) {
        to.attribute(MD1, context);
    }
}

/// The attribute of a key or of a mask.
pub(crate) fn read(list: &[u8], is_mask: bool) -> Result<Nsh, Refused> {
    let [base, context] = parts::<1>(list)?;
    let is_of_type_1 = base.and_then(|[base]| base.get(TYPE)) == Some(&1);
    // A key has the context if and only if there is one; a mask may always name it.
    if !is_mask && (base.is_none() || context.is_some() != is_of_type_1) {
        return Err(Refused::INVALID);
    }
    Ok(joined(base.map(|[b]| b), context.map(|[c]| c)))
}

/// What is to be set, and which bits; not masked: all that can be.
pub(crate) fn read_set(list: &[u8], masked: bool) -> Result<(Nsh, Nsh), Refused> {
    if !masked {
        let [base, context] = parts::<1>(list)?.map(|part| part.map(|[value]| value));
        let all = |part: Option<&[u8]>| part.map(|part| vec![0xff; part.len()]);
        let (base_mask, context_mask) = (all(base), all(context));
        return Ok((joined(base, context), joined(base_mask.as_deref(), context_mask.as_deref())));
    }
    let [base, context] = parts::<2>(list)?;
    let (value, mask) = (|[value, _]: [_; 2]| value, |[_, mask]: [_; 2]| mask);
    Ok((joined(base.map(value), context.map(value)), joined(base.map(mask), context.map(mask))))
}

/// The header that a list says to put in front of a packet; which protocol is next the packet says.
pub(crate) fn read_push(list: &[u8]) -> Result<Vec<u8>, Refused> {
    let (mut base, mut metadata) = (None, None);
    for attribute in attributes(list) {
        let (kind, value) = attribute?;
        match (kind, value.len()) {
            (BASE, BASE_LEN) if base.is_none() => base = Some(value),
            (MD1, CONTEXT_LEN) if metadata.is_none() => metadata = Some((1, value)),
            (MD2, 1..=LONGEST_METADATA) if metadata.is_none() => metadata = Some((2, value)),
            _ => return Err(Refused::INVALID),
        }
    }
    let &[flags, ttl, kind, next, a, b, c, d] = base.ok_or(Refused::INVALID)? else { return Err(Refused::INVALID) };
    // Metadata of type 2 may have no length, that of type 1 has its 16 bytes.
    let metadata = match metadata {
        Some((of, bytes)) if of == kind => bytes,
        None if kind == 2 => &[],
        _ => return Err(Refused::INVALID),
    };
    let words = (BASE_LEN + metadata.len()).div_ceil(4);
    let first = u16::from(flags) << FLAGS_SHIFT & FLAGS | (u16::from(ttl) & SIX_BITS) << TTL_SHIFT | words as u16;
    let mut header = [&first.to_be_bytes()[..], &[kind, next, a, b, c, d], metadata].concat();
    header.resize(words * 4, 0);
    Ok(header)
}

/// The base and the context of a list, each of them `N` times: a value, or a value and its mask.
fn parts<const N: usize>(list: &[u8]) -> Result<[Option<[&[u8]; N]>; 2], Refused> {
    let mut found = [None; 2];
    for attribute in attributes(list) {
        let (kind, value) = attribute?;
        let (place, len) = match kind {
            BASE => (0, BASE_LEN),
            MD1 => (1, CONTEXT_LEN),
            // The kernel has no keys of other metadata, either.
            _ => return Err(Refused::INVALID),
        };
        if value.len() != len * N {
            return Err(Refused::RANGE);
        }
        let mut pieces = value.chunks_exact(len);
        if let Some(place) = found.get_mut(place) {
            *place = Some(std::array::from_fn(|_| pieces.next().unwrap_or_default()));
        }
    }
    Ok(found)
}

fn joined(base: Option<&[u8]>, context: Option<&[u8]>) -> Nsh {
    let mut joined = Nsh::default();
    let (to_base, to_context) = joined.split_at_mut(BASE_LEN);
    to_base.iter_mut().zip(base.unwrap_or_default()).for_each(|(to, from)| *to = *from);
    to_context.iter_mut().zip(context.unwrap_or_default()).for_each(|(to, from)| *to = *from);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.into_bytes()
    }

    /// Flag O, 63 hops, type 1, path 0x123456, index 255, as section 2 of RFC 8300 draws it.
    const HEADER: [u8; 24] = [0x2f, 0xc6, 1, 3, 0x12, 0x34, 0x56, 255, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4];
    const TOLD: Nsh = [2, 63, 1, 3, 0x12, 0x34, 0x56, 255, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4];

    #[test]
    fn a_header_is_told_and_made_of_what_is_told() {
        assert_eq!(of_packet(&[&HEADER[..], b"behind"].concat(), 30), TOLD);
        let attribute = list(|to| write(&TOLD, to));
        assert_eq!(read(&attribute, false), Ok(TOLD));
        assert_eq!(read_push(&attribute), Ok(HEADER.to_vec()));
    }

    #[test]
    fn metadata_of_type_2_is_carried_in_words_and_not_told() {
        let push = |metadata: &[u8]| {
            read_push(&list(|to| {
                to.attribute(BASE, &[0, 63, 2, 0, 0, 0, 1, 255]);
                to.attribute(MD2, metadata);
            }))
        };
        let header = push(&[0, 1, 2, 2, 9, 9]).unwrap();
        assert_eq!(header, [0x0f, 0xc4, 2, 0, 0, 0, 1, 255, 0, 1, 2, 2, 9, 9, 0, 0]);
        assert_eq!(of_packet(&header, header.len())[..8], [0, 63, 2, 0, 0, 0, 1, 255]);
        assert_eq!(of_packet(&header, header.len())[8..], [0; 16]);
        assert_eq!(push(&[7; 244]).map(|header| split(&header).unwrap().0.len()), Ok(252));
        // The start of a packet tells as much as all of it, and one that ends too early has none.
        let long = push(&[7; 244]).unwrap();
        assert_eq!(of_packet(&long[..100], 252), of_packet(&long, 300));
        assert_eq!(of_packet(&long, 251), Nsh::default());
        assert_eq!(push(&[7; 245]), Err(Refused::INVALID));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let base = [0, 63, 1, 0, 0, 0, 1, 255];
        let of_type_1_without_context = list(|to| to.attribute(BASE, &base));
        assert_eq!(read(&of_type_1_without_context, false), Err(Refused::INVALID));
        assert_eq!(read_push(&of_type_1_without_context), Err(Refused::INVALID));
        let context_alone = list(|to| to.attribute(MD1, &[0; 16]));
        assert_eq!(read(&context_alone, false), Err(Refused::INVALID));
        assert!(read(&context_alone, true).is_ok());
        assert_eq!(read_push(&context_alone), Err(Refused::INVALID));
        for (kind, len) in [(BASE, 7), (MD1, 15), (MD1, 32)] {
            assert_eq!(read(&list(|to| to.attribute(kind, &vec![0; len])), true), Err(Refused::RANGE));
        }
        assert_eq!(read(&list(|to| to.attribute(MD2, &[0; 8])), true), Err(Refused::INVALID));
        assert!(split(&[0x4f, 0xc6, 1, 3]).is_none() && split(&HEADER[..23]).is_none());
    }

    proptest! {
        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..80), flag: bool) {
            let _ = (read(&bytes, flag), read_set(&bytes, flag), read_push(&bytes));
        }

        /// What is set is told from then on, and nothing else changes.
        #[test]
        fn what_is_set_is_told(start: [u8; 24], rest in prop::collection::vec(any::<u8>(), 0..40), value: Nsh, mask: Nsh) {
            let mut packet = [&start[..], &rest].concat();
            let (before, len) = (of_packet(&packet, packet.len()), split(&packet).map(|(header, _)| header.len()));
            let was = packet.clone();
            prop_assert_eq!(set(&mut packet, &value, &mask), len.is_some());
            let Some(len) = len else {
                prop_assert_eq!(packet, was);
                return Ok(());
            };
            let after = of_packet(&packet, packet.len());
            for (at, bits) in [3u8, 0x3f, 0, 0].into_iter().chain([0xff; 20]).enumerate() {
                let told = if at < 8 || was[2] == 1 { bits & mask[at] } else { 0 };
                prop_assert_eq!(after[at], before[at] & !told | value[at] & told, "byte {}", at);
            }
            prop_assert_eq!(&packet[len..], &was[len..]);
            prop_assert_eq!((packet[1] & 0x3f, packet[2], packet[3]), (was[1] & 0x3f, was[2], was[3]));
        }
    }
}
