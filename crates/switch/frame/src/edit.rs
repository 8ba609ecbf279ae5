//! What actions change in a packet's header. The sender's offload request moves with the headers it speaks of.

use crate::extract::is_tag;
use crate::header::Header;
use crate::{Offload, be16};
use lasthop_types::DropReason;
use serde::{Deserialize, Serialize};

/// A change of a packet's header, with Open vSwitch's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Edit {
    /// A VLAN tag becomes the outermost.
    PushVlan {
        /// 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority, drop eligibility and VLAN id as they are sent.
        tci: u16,
    },
    /// The outermost VLAN tag goes. A frame without one stays as it is.
    PopVlan,
}

/// Where a VLAN tag lies: behind the addresses.
const TAG_AT: usize = 12;
const TAG_LEN: usize = 4;

impl Edit {
    /// Changes `header`, and `offload` so that it says the same of it. Where that cannot be both are as before:
    /// [`DropReason::BadAction`] if this is no edit for any frame or there is no room for it.
    pub fn apply(&self, header: &mut Header, offload: &mut Offload) -> Result<(), DropReason> {
        let before = header.len();
        match *self {
            Self::PushVlan { tpid, tci } if is_tag(tpid) => {
                let ([p0, p1], [c0, c1]) = (tpid.to_be_bytes(), tci.to_be_bytes());
                header.insert(TAG_AT, &[p0, p1, c0, c1]).ok_or(DropReason::BadAction)?;
            }
            Self::PushVlan { .. } => return Err(DropReason::BadAction),
            Self::PopVlan => {
                // A tag cut short is none: the flow key does not know it either.
                let is_tagged = header.len() >= TAG_AT + TAG_LEN + 2 && is_tag(be16(header.bytes(), TAG_AT));
                if is_tagged {
                    header.remove(TAG_AT, TAG_LEN).ok_or(DropReason::BadAction)?;
                }
            }
        }
        // What is asked for lies behind the link layer, which alone has changed.
        offload.shift(header.len() as isize - before as isize);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
