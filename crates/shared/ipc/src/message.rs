//! The bytes of messages between switch and control. Those that there is one of for each new flow are plain words; what is rare is as
//! `postcard` has it.

use crate::datapath::{FromControl, ToControl, UpcallPacket};
use crate::ring::Place;
use crate::rings::{DOWNWARD, Decode, Encode, UPWARD};
use lasthop_flow::FlowSpec;
use lasthop_frame::{FlowKey, FlowMask};
use zerocopy::{FromBytes, IntoBytes};

/// Kinds: anything that is as `postcard` has it, and the others.
pub(crate) const OTHER: u16 = 0;
pub(crate) const UPCALL: u16 = 1;
pub(crate) const PUT_FLOW: u16 = 2;
pub(crate) const DEL_FLOW: u16 = 3;
pub(crate) const RESUME: u16 = 4;

/// Begins a message of this kind, with keys of so many words, about this number.
pub(crate) fn begin(bytes: &mut Vec<u8>, kind: u16, words: usize, number: u64) {
    bytes.extend([kind.to_ne_bytes(), (words as u16).to_ne_bytes(), [0; 2], [0; 2]].as_flattened());
    bytes.extend(number.to_ne_bytes());
}

/// Words of a key behind which all are zero.
pub(crate) fn words_of(key: &FlowKey) -> usize {
    key.words().iter().rposition(|word| *word != 0).map_or(0, |last| last + 1)
}

/// So many words of a key.
pub(crate) fn put_key(bytes: &mut Vec<u8>, key: &FlowKey, words: usize) {
    bytes.extend(key.as_bytes().iter().take(words * 8));
}

/// Takes them off again.
pub(crate) fn take_key(bytes: &mut &[u8], words: u16) -> Option<FlowKey> {
    let mut key = FlowKey::default();
    key.as_mut_bytes().get_mut(..usize::from(words) * 8)?.copy_from_slice(bytes.split_off(..usize::from(words) * 8)?);
    Some(key)
}

/// Takes a number off.
pub(crate) fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    T::read_from_bytes(bytes.split_off(..size_of::<T>())?).ok()
}

impl Encode for ToControl {
    const RING: Place = UPWARD;

    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), postcard::Error> {
        let Self::Upcall(UpcallPacket { id, key, header, frame_len }) = self else {
            begin(bytes, OTHER, 0, 0);
            *bytes = postcard::to_extend(self, std::mem::take(bytes))?;
            return Ok(());
        };
        let words = words_of(key);
        begin(bytes, UPCALL, words, *id);
        put_key(bytes, key, words);
        bytes.extend(u64::from(*frame_len).to_ne_bytes());
        bytes.extend(header);
        Ok(())
    }

    fn is_upcall(&self) -> bool {
        matches!(self, Self::Upcall(_))
    }
}

impl Decode for FromControl {
    const RING: Place = DOWNWARD;

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [kind, words, _, _] = take::<[u16; 4]>(&mut bytes)?;
        let number = take::<u64>(&mut bytes)?;
        Some(match kind {
            PUT_FLOW => Self::PutFlow(FlowSpec {
                epoch: number,
                mask: FlowMask(take_key(&mut bytes, words)?),
                key: take_key(&mut bytes, words)?,
                actions: postcard::from_bytes(bytes).ok()?,
            }),
            DEL_FLOW => {
                Self::DelFlow { mask: FlowMask(take_key(&mut bytes, words)?), key: take_key(&mut bytes, words)? }
            }
            RESUME => Self::Resume { id: number, actions: postcard::from_bytes(bytes).ok()? },
            OTHER => postcard::from_bytes(bytes).ok()?,
            _ => return None,
        })
    }
}
