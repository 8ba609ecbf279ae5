//! What actions change in a packet's header. The sender's offload request moves with the headers it speaks of.

use crate::extract::{is_tag, link_layer, network_layer};
use crate::header::Header;
use crate::key::{Depth, FlowKey};
use crate::{Offload, be16, ethertype};
use lasthop_types::DropReason;
use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "masked"))]
mod masked;
mod set;

pub use set::{Part, Set};

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
    /// Bits of header fields get other values, and checksums follow.
    Set(Set),
    /// TTL or hop limit of an IP packet is one less. One that would be 0 is [`DropReason::TtlExpired`].
    DecTtl,
}

/// Where a VLAN tag lies: behind the addresses.
const TAG_AT: usize = 12;
const TAG_LEN: usize = 4;

impl Edit {
    /// Changes `header`, which `payload_len` more bytes of the frame follow, and `offload` so that it says the same of it. Where that
    /// cannot be both are as before: [`DropReason::BadAction`] if this is no edit for the frame or there is no room for it.
    pub fn apply(&self, header: &mut Header, offload: &mut Offload, payload_len: usize) -> Result<(), DropReason> {
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
            Self::Set(set) => set.apply(header, offload, payload_len).ok_or(DropReason::BadAction)?,
            Self::DecTtl => Self::Set(dec_ttl(header.bytes(), payload_len)?).apply(header, offload, payload_len)?,
        }
        // What is asked for lies behind the link layer, which alone has changed.
        offload.shift(header.len() as isize - before as isize);
        Ok(())
    }
}

/// What decrements a frame's TTL or hop limit, if it has one.
fn dec_ttl(frame: &[u8], payload_len: usize) -> Result<Set, DropReason> {
    let mut key = FlowKey::default();
    let l3 = link_layer(&mut key, frame);
    let at = network_layer(&mut key, frame, frame.len() + payload_len, l3, Depth::L4);
    let (part, word, shift) = if key.eth_type == ethertype::IPV6 { (Part::Ipv6, 1, 0) } else { (Part::Ipv4, 2, 24) };
    if at.l4 > l3 && key.ip_ttl <= 1 {
        return Err(DropReason::TtlExpired);
    }
    Ok(Set { part, word, value: u32::from(key.ip_ttl.wrapping_sub(1)) << shift, mask: 0xff << shift })
}

#[cfg(test)]
mod tests;
