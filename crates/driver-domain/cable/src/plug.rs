//! One end's connection: what a front-end says from SET_OWNER to the last SET_VRING_ENABLE.

use crate::memory::SharedMemory;
use crate::way::End;
use lasthop_sys::EventFd;
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures};
use std::os::fd::AsFd;

/// All that lets a packet go through as the near switch has it: whole, with its checksum still to be made.
const FEATURES: Features = Features::VERSION_1
    .union(Features::PROTOCOL_FEATURES)
    .union(Features::RING_EVENT_IDX)
    .union(Features::MRG_RXBUF)
    .union(Features::CSUM)
    .union(Features::GUEST_CSUM)
    .union(Features::GUEST_TSO4)
    .union(Features::GUEST_TSO6)
    .union(Features::GUEST_ECN)
    .union(Features::GUEST_UFO)
    .union(Features::GUEST_USO4)
    .union(Features::GUEST_USO6)
    .union(Features::HOST_TSO4)
    .union(Features::HOST_TSO6)
    .union(Features::HOST_ECN)
    .union(Features::HOST_UFO)
    .union(Features::HOST_USO);

/// Why an end is not connected.
#[derive(Debug, thiserror::Error)]
pub enum PlugError {
    /// The conversation failed.
    #[error(transparent)]
    Frontend(#[from] FrontendError),
    /// It does not offer what packets need to go through as they are.
    #[error("it does not offer {0}")]
    Missing(String),
}

/// Brings a port up, whose switch fills `rings[0]` and reads `rings[1]`. `broken` is signalled when the switch finds one of them broken.
pub fn plug_in(
    front: &mut Frontend,
    memory: &SharedMemory,
    rings: [&End; 2],
    broken: &EventFd,
) -> Result<(), PlugError> {
    front.set_owner()?;
    let missing = FEATURES - front.features()?;
    if !missing.is_empty() {
        return Err(PlugError::Missing(Features::describe(missing.bits())));
    }
    let protocol = front.protocol_features()? & ProtocolFeatures::REPLY_ACK;
    front.set_protocol_features(protocol)?;
    front.set_features(FEATURES)?;
    front.set_mem_table(&[memory.region()])?;
    for (number, end) in (0..).zip(rings) {
        let layout = &end.layout;
        front.set_size(number, layout.size.into())?;
        front.set_base(number, end.ring.base())?;
        let [desc, driver, device] = [layout.desc, layout.driver, layout.device].map(SharedMemory::user_addr);
        front.set_addr(number, desc, driver, device)?;
        front.set_err(number, Some(broken.as_fd()))?;
        front.set_call(number, Some(end.call.as_fd()))?;
        front.set_kick(number, Some(end.kick.as_fd()))?;
    }
    for number in 0..2 {
        front.enable(number, true)?;
    }
    Ok(())
}
