//! What is done to a packet's front: labels of MPLS, network service headers, and Ethernet headers that come and go. The switch knows no such thing, so these
//! packets come whole.
//!
//! A packet without an Ethernet header has one of zeros here, and its key says that it is none.

use super::{Rest, Walk};
use lasthop_frame::SNAPSHOT_LEN;
use lasthop_ovs_abi::{Front, is_mpls, nsh};
use lasthop_types::PortId;

/// Bytes of addresses in an Ethernet header, and of all of it.
const ADDRESSES: usize = 12;
pub(crate) const ETHERNET: usize = 14;
const LABEL: usize = 4;
/// Where a network service header says what is behind it.
const NEXT: usize = 3;

/// Where the last EtherType is, behind all VLAN tags.
fn type_at(frame: &[u8]) -> Option<usize> {
    let mut at = ADDRESSES;
    loop {
        match *frame.get(at..at + 2)? {
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            _ => return Some(at),
        }
    }
}

/// Length of the Ethernet header with its VLAN tags.
pub(super) fn in_front_of_ip(frame: &[u8]) -> usize {
    type_at(frame).map_or(ETHERNET, |at| at + 2)
}

/// A packet of this type that has no Ethernet header, as it is had here.
fn without_ethernet(ether_type: u16, parts: &[&[u8]]) -> Vec<u8> {
    [&[0; ADDRESSES][..], &ether_type.to_be_bytes(), &parts.concat()].concat()
}

/// The frame and whether it has no Ethernet header, after the change. `None`: that cannot be done.
pub(crate) fn changed(frame: &[u8], bare: bool, front: &Front) -> Option<(Vec<u8>, bool)> {
    let at = type_at(frame)?;
    let ether_type = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
    let (tags, behind) = (frame.get(..at)?, frame.get(at + 2..)?);
    let labelled = || is_mpls(ether_type) && behind.len() >= LABEL;
    match front {
        Front::PushMpls { label, ether_type } => {
            Some(([tags, &ether_type.to_be_bytes(), &label.to_be_bytes(), behind].concat(), bare))
        }
        Front::PopMpls { ether_type: Front::ETHERNET } => {
            let inner = behind.get(LABEL..).filter(|inner| labelled() && bare && inner.len() >= ETHERNET)?;
            Some((inner.to_vec(), false))
        }
        Front::PopMpls { ether_type } => {
            let inner = behind.get(LABEL..).filter(|_| labelled())?;
            Some(([tags, &ether_type.to_be_bytes(), inner].concat(), bare))
        }
        Front::SetMpls { value, mask } => {
            let label = u32::from_be_bytes(*behind.first_chunk().filter(|_| labelled())?);
            let label = label & !mask | value & mask;
            Some(([frame.get(..at + 2)?, &label.to_be_bytes(), behind.get(LABEL..)?].concat(), bare))
        }
        Front::Wrap { label, ether_type } => {
            // Of one that has no Ethernet header the label is in front of what it has.
            let inner = if bare { behind } else { frame };
            Some((without_ethernet(*ether_type, &[&label.to_be_bytes(), inner]), true))
        }
        Front::PushEthernet(addresses) => {
            bare.then(|| ([&addresses[..], frame.get(ADDRESSES..).unwrap_or_default()].concat(), false))
        }
        Front::PopEthernet => {
            let plain = at == ADDRESSES && !bare;
            plain.then(|| ([&[0; ADDRESSES][..], frame.get(ADDRESSES..).unwrap_or_default()].concat(), true))
        }
        Front::PushNsh(header) => {
            let (next, inner) =
                if bare { (nsh::next_protocol(ether_type)?, behind) } else { (nsh::NEXT_ETHERNET, frame) };
            let (before, after) = (header.get(..NEXT)?, header.get(NEXT + 1..)?);
            Some((without_ethernet(nsh::ETHER_TYPE, &[before, &[next], after, inner]), true))
        }
        Front::PopNsh => {
            let (header, inner) = nsh::split(behind).filter(|_| bare && ether_type == nsh::ETHER_TYPE)?;
            match *header.get(NEXT)? {
                nsh::NEXT_ETHERNET => (inner.len() >= ETHERNET).then(|| (inner.to_vec(), false)),
                next => Some((without_ethernet(nsh::ether_type(next)?, &[inner]), true)),
            }
        }
        Front::SetNsh { value, mask } => {
            let mut new = frame.to_vec();
            let done = ether_type == nsh::ETHER_TYPE && nsh::set(new.get_mut(at + 2..)?, value, mask);
            done.then_some((new, bare))
        }
    }
}

impl<F: Fn(u32) -> Option<PortId>> Walk<'_, F> {
    /// False: the packet goes no further, because it cannot be done or because it has to come whole first.
    pub(super) fn front(&mut self, front: &Front) -> bool {
        self.is_simple = false;
        if self.tracking.only_looks {
            return false;
        }
        let frame = [self.header.bytes(), &self.rest.bytes].concat();
        let Some((frame, bare)) = changed(&frame, self.key.bare != 0, front) else { return false };
        self.key.bare = bare.into();
        self.replace(&frame, self.rest.fragments);
        true
    }

    /// It is another packet from here on.
    pub(super) fn replace(&mut self, frame: &[u8], fragments: Option<u16>) {
        let (start, rest) = frame.split_at(frame.len().min(SNAPSHOT_LEN));
        let room = self.header.restart(start.len());
        let len = room.len().min(start.len());
        room.copy_from_slice(start.get(..len).unwrap_or_default());
        self.payload_len = rest.len();
        self.rest = Rest { bytes: rest.into(), fragments };
        self.extract();
    }

    /// Labels and network service header, as the key has them.
    pub(super) fn extract_front(&mut self) {
        let bytes = self.header.bytes();
        let behind = type_at(bytes).and_then(|at| bytes.get(at + 2..)).unwrap_or_default();
        if is_mpls(self.key.packet.eth_type) {
            self.key.read_labels(behind);
        } else {
            self.key.mpls = Default::default();
        }
        self.key.nsh = if self.key.packet.eth_type == nsh::ETHER_TYPE {
            nsh::of_packet(behind, behind.len() + self.payload_len)
        } else {
            nsh::Nsh::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is put in front and taken off again leaves the frame as it was; what cannot be done changes nothing.
        #[test]
        fn labels_come_and_go(frame in prop::collection::vec(any::<u8>(), 14..200), label: u32, addresses: [u8; 12]) {
            let at = type_at(&frame);
            let mpls = 0x8847;
            if let Some((pushed, bare)) = changed(&frame, false, &Front::PushMpls { label, ether_type: mpls }) {
                let at = at.unwrap();
                let ether_type = u16::from_be_bytes([frame[at], frame[at + 1]]);
                prop_assert_eq!((pushed.len(), bare), (frame.len() + 4, false));
                if ether_type != Front::ETHERNET {
                    let popped = changed(&pushed, false, &Front::PopMpls { ether_type });
                    prop_assert_eq!(popped, Some((frame.clone(), false)));
                }
            }
            if let Some((wrapped, bare)) = changed(&frame, false, &Front::Wrap { label, ether_type: mpls }) {
                prop_assert!(bare);
                let (sent, bare) = changed(&wrapped, true, &Front::PushEthernet(addresses)).unwrap();
                prop_assert_eq!((&sent[..12], bare), (&addresses[..], false));
                let (came, bare) = changed(&sent, false, &Front::PopEthernet).unwrap();
                prop_assert_eq!((&came, bare), (&wrapped, true));
                let (inner, bare) = changed(&came, true, &Front::PopMpls { ether_type: Front::ETHERNET }).unwrap();
                prop_assert_eq!((inner, bare), (frame, false));
            }
        }

        /// As above, of network service headers, with metadata of type 1 and of type 2.
        #[test]
        fn service_headers_come_and_go(
            frame in prop::collection::vec(any::<u8>(), 14..200),
            metadata in prop::collection::vec(any::<u8>(), 0..60),
            of_type_1: bool,
        ) {
            let words = if of_type_1 { 6 } else { 2 + (metadata.len() / 4) as u8 };
            let mut header = [&[0x0f, 0xc0 | words, 2 - u8::from(of_type_1), 0, 0, 0, 1, 255], &metadata[..]].concat();
            header.resize(usize::from(words) * 4, 7);
            let push = Front::PushNsh(header.clone());
            let (pushed, bare) = changed(&frame, false, &push).unwrap();
            prop_assert_eq!((pushed.len(), bare), (14 + header.len() + frame.len(), true));
            let (again, bare) = changed(&pushed, true, &push).unwrap();
            prop_assert_eq!((again[14 + NEXT], bare), (4, true), "a header in a header");
            prop_assert_eq!(changed(&again, true, &Front::PopNsh), Some((pushed.clone(), true)));
            prop_assert_eq!(changed(&pushed, true, &Front::PopNsh), Some((frame, false)));
            prop_assert_eq!(changed(&pushed, false, &Front::PopNsh), None, "its Ethernet header goes first");
        }

        #[test]
        fn any_frame_is_taken(frame in prop::collection::vec(any::<u8>(), 0..60), bare: bool, ether_type: u16, label: u32) {
            for front in [
                Front::PushMpls { label, ether_type },
                Front::PopMpls { ether_type },
                Front::PopMpls { ether_type: Front::ETHERNET },
                Front::SetMpls { value: label, mask: !label },
                Front::Wrap { label, ether_type },
                Front::PushEthernet([7; 12]),
                Front::PopEthernet,
                Front::PushNsh(label.to_be_bytes().repeat(2)),
                Front::PopNsh,
                Front::SetNsh { value: [7; 24], mask: [9; 24] },
            ] {
                let _ = changed(&frame, bare, &front);
            }
        }
    }
}
