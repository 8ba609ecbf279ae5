//! The vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`): messages, negotiation, ring states.
//!
//! [`Session`] is the back-end side of one connection; [`Frontend`] is the other side, for our own driver domains and for
//! tests. Everything here runs on the control path: one thread per session at a time, nothing here touches a packet. No call
//! waits for a front-end; a session waits for the switch ([`Switch`]), and [`Frontend`] is meant to wait.
//!
//! A message is judged twice: its syntax ([`message`]: version, flags, size, number of descriptors), which depends on no
//! state and whose violation always ends the connection; then its meaning ([`Session`]: order, ring index, values), whose
//! violation is answered with a failure when the front-end asked for an answer (REPLY_ACK) and ends the connection otherwise.

mod features;
mod form;
#[cfg(any(test, feature = "frontend"))]
mod frontend;
mod inflight;
mod iotlb;
#[cfg(any(test, feature = "frontend"))]
mod local;
pub mod message;
mod outcome;
mod rarp;
mod regions;
mod ring;
mod session;
mod switch;
mod transport;

#[cfg(test)]
mod tests;

pub use features::{Features, ProtocolFeatures};
#[cfg(any(test, feature = "frontend"))]
pub use frontend::{Frontend, FrontendError};
pub use inflight::InflightError;
pub use iotlb::GRANTS;
#[cfg(any(test, feature = "frontend"))]
pub use iotlb::check_translations;
#[cfg(any(test, feature = "frontend"))]
pub use local::Local;
pub use message::{Request, SyntaxError};
pub use outcome::{Refusal, SessionError};
pub use ring::RingState;
#[cfg(any(test, feature = "frontend"))]
pub use session::RingView;
pub use session::{MAX_RING, Session, Unprepared};
pub use switch::{Lost, Switch};
pub use transport::{HALF_MESSAGE, SILENCE};
