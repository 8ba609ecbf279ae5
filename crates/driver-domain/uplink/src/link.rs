//! The connection to the switch: what a front-end says from SET_OWNER to the last SET_VRING_ENABLE.

use crate::memory::SharedMemory;
use lasthop_sys::EventFd;
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures};
use std::os::fd::{AsFd, OwnedFd};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The conversation failed.
    #[error("the switch: {0}")]
    Frontend(#[from] FrontendError),
    /// It does not offer what an uplink cannot do without.
    #[error("the switch does not offer {0}")]
    Missing(String),
}

/// Brings the device up over a connection, whose maker has set how long the switch may take to answer. The rings go on where `bases` says; `broken` is signalled when the switch finds one
/// of them broken.
pub fn connect(
    socket: OwnedFd,
    memory: &SharedMemory,
    bases: &[u32],
    offloads: Features,
    broken: &EventFd,
) -> Result<Frontend, LinkError> {
    let mut front = Frontend::over(socket);
    front.set_owner()?;
    let mut wanted = offloads | Features::VERSION_1 | Features::PROTOCOL_FEATURES | Features::RING_EVENT_IDX;
    wanted.set(Features::MQ, memory.rings.len() > 2);
    let missing = wanted - front.features()?;
    if !missing.is_empty() {
        return Err(LinkError::Missing(Features::describe(missing.bits())));
    }
    let protocol = front.protocol_features()? & (ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK);
    front.set_protocol_features(protocol)?;
    front.set_features(wanted)?;
    front.set_mem_table(&[memory.region()])?;
    for (ring, (end, base)) in (0u32..).zip(memory.rings.iter().zip(bases)) {
        let layout = &end.layout;
        front.set_size(ring, layout.size.into())?;
        front.set_base(ring, *base)?;
        let [desc, driver, device] = [layout.desc, layout.driver, layout.device].map(|a| memory.user_addr(a));
        front.set_addr(ring, desc, driver, device)?;
        front.set_err(ring, Some(broken.as_fd()))?;
        front.set_call(ring, Some(end.call.as_fd()))?;
        front.set_kick(ring, Some(end.kick.as_fd()))?;
    }
    for ring in 0..memory.rings.len() as u32 {
        front.enable(ring, true)?;
    }
    Ok(front)
}
