//! What the switch has no use for: control's end of the rings, and how the supervisor makes them.

use crate::datapath::{FromControl, ToControl, UpcallPacket};
use crate::message::{DEL_FLOW, OTHER, PUT_FLOW, RESUME, UPCALL, begin, put_key, take, take_key, words_of};
use crate::ring::Place;
use crate::rings::{DOWNWARD, Decode, Encode, Rings, UPWARD, VERSION, WORDS};
use crate::{Channel, ChannelError};
use lasthop_sys::{sealed_memfd, send_with_fds};
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};

impl Encode for FromControl {
    const RING: Place = DOWNWARD;

    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), postcard::Error> {
        match self {
            // The words of the mask: behind them a key has none that count.
            Self::PutFlow(spec) => {
                let words = words_of(&spec.mask.0).max(words_of(&spec.key));
                begin(bytes, PUT_FLOW, words, spec.epoch);
                put_key(bytes, &spec.mask.0, words);
                put_key(bytes, &spec.key, words);
                *bytes = postcard::to_extend(&spec.actions, std::mem::take(bytes))?;
            }
            Self::DelFlow { key, mask } => {
                let words = words_of(&mask.0).max(words_of(key));
                begin(bytes, DEL_FLOW, words, 0);
                put_key(bytes, &mask.0, words);
                put_key(bytes, key, words);
            }
            Self::Resume { id, actions } => {
                begin(bytes, RESUME, 0, *id);
                *bytes = postcard::to_extend(actions, std::mem::take(bytes))?;
            }
            Self::Ask { .. } | Self::ClearFlows => {
                begin(bytes, OTHER, 0, 0);
                *bytes = postcard::to_extend(self, std::mem::take(bytes))?;
            }
        }
        Ok(())
    }
}

impl Decode for ToControl {
    const RING: Place = UPWARD;

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [kind, words, _, _] = take::<[u16; 4]>(&mut bytes)?;
        let id = take::<u64>(&mut bytes)?;
        match kind {
            UPCALL => {
                let key = take_key(&mut bytes, words)?;
                let frame_len = u32::try_from(take::<u64>(&mut bytes)?).ok()?;
                Some(Self::Upcall(UpcallPacket { id, key, header: bytes.to_vec(), frame_len }))
            }
            OTHER => postcard::from_bytes(bytes).ok(),
            _ => None,
        }
    }
}

/// Two connected ends for switch and control, alike: sockets, close-on-exec and non-blocking, in each of which the memory of the rings
/// lies ready to be received first.
pub fn ring_pair() -> Result<(OwnedFd, OwnedFd), ChannelError> {
    let (a, b) = Channel::<ToControl, FromControl>::pair()?;
    let memory = sealed_memfd("lasthop-rings", WORDS as u64 * 8)?;
    rustix::io::pwrite(&memory, &VERSION.to_ne_bytes(), 0)?;
    for end in [&a, &b] {
        send_with_fds(end, &[0], &[memory.as_fd()], SendFlags::empty())?;
    }
    Ok((a, b))
}

/// Control's end.
pub type ControlEnd = Rings<FromControl, ToControl>;
