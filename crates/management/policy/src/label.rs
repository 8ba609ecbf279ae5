//! What a labelled copy says of itself: the port whose packet it is, which way that went, and why it was dropped if it was.
//!
//! It is all in an 802.1ad tag, which the flow puts in front of the copy and takes off behind it: the switch knows nothing of labels. A frame
//! that had such a tag before has two in its copy, and the outer one is the label.

use lasthop_types::{DROP_REASONS, DropReason};

/// TPID of the tag in front of a labelled copy.
pub const LABEL_TPID: u16 = 0x88a8;
/// Bits of the tag that are a place among the mirrored ports, enough for [`MAX_MIRRORED`](crate::MAX_MIRRORED).
const PLACE: u16 = 0x1ff;
/// The packet was for the port's guest.
const TO_GUEST: u16 = 0x200;
/// Above this bit is the reason's number and one, or 0.
const REASON: u32 = 10;

// A reason more than fits here, or ports, would be told as others.
const _: () = assert!(DropReason::COUNT < 1 << (16 - REASON) && crate::MAX_MIRRORED <= PLACE as usize + 1);

/// What the tag in front of a copy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Whose packet it is: the port's place in the mirror's list, from 0.
    pub place: u16,
    /// It was sent to that port's guest, or by it.
    pub to_guest: bool,
    /// Why it went no further, as far as that was known when its flow was made.
    pub dropped: Option<DropReason>,
}

impl Label {
    /// As a tag's TCI.
    pub fn tci(self) -> u16 {
        let reason = self.dropped.map_or(0, |reason| reason as u16 + 1);
        self.place & PLACE | if self.to_guest { TO_GUEST } else { 0 } | reason << REASON
    }

    /// Takes a copy apart: its label, and the bytes of the frame before and behind the tag. `None`: it has no label.
    pub fn split(copy: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (addresses, behind) = copy.split_at_checked(12)?;
        let (tag, rest) = behind.split_first_chunk::<4>()?;
        let [p0, p1, c0, c1] = *tag;
        let (tpid, tci) = (u16::from_be_bytes([p0, p1]), u16::from_be_bytes([c0, c1]));
        let dropped = match tci >> REASON {
            0 => None,
            reason => Some(*DROP_REASONS.get(usize::from(reason) - 1)?),
        };
        let label = Self { place: tci & PLACE, to_guest: tci & TO_GUEST != 0, dropped };
        (tpid == LABEL_TPID).then_some((label, addresses, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_label_is_read_as_it_was_written(
            place in 0..=PLACE,
            to_guest: bool,
            reason in prop::option::of(0..DropReason::COUNT),
            frame in prop::collection::vec(any::<u8>(), 12..99),
        ) {
            let label = Label { place, to_guest, dropped: reason.map(|n| DROP_REASONS[n]) };
            let tag = [LABEL_TPID.to_be_bytes(), label.tci().to_be_bytes()].concat();
            let copy = [&frame[..12], &tag, &frame[12..]].concat();
            prop_assert_eq!(Label::split(&copy), Some((label, &frame[..12], &frame[12..])));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Label::split(&bytes);
        }
    }

    #[test]
    fn what_has_no_tag_of_ours_has_no_label() {
        let tagged = |tpid: [u8; 2], tci: [u8; 2]| [&[1; 12][..], &tpid, &tci, &[8, 0, 1]].concat();
        assert!(Label::split(&tagged([0x88, 0xa8], [0, 1])).is_some());
        assert_eq!(Label::split(&tagged([0x81, 0], [0, 1])), None);
        assert_eq!(Label::split(&tagged([0x88, 0xa8], [0xff, 1])), None, "no reason has that number");
        assert_eq!(Label::split(&[1; 15]), None);
    }
}
