//! What decides in place of the learning switch. The rest of control, the local API first of all, is the same.

use lasthop_api::OpenVswitch;
use lasthop_ipc::{FromControl, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_policy::{ConnectionCursor, ConnectionStats, ConnectionView};
use std::future::Future;
use std::os::fd::OwnedFd;

/// Decides what becomes of packets. Called by the event loop's thread alone.
pub trait Decider {
    /// Waits until it has heard something from others than the switch and the supervisor, and has dealt with it. Nothing is lost when the
    /// future is dropped.
    fn ready(&mut self) -> impl Future<Output = ()>;
    /// There is a new channel to the switch, which will say hello on it; or none.
    fn switch_is(&mut self, attached: bool);
    /// The switch says something; `now_ms` is CLOCK_MONOTONIC. True if it was an answer to a question of the decider's, which nobody else
    /// is to hear.
    fn hear_switch(&mut self, message: &ToControl, now_ms: u64) -> bool;
    /// The supervisor says something. As [`Decider::hear_switch`].
    fn hear_supervisor(&mut self, message: &SupervisorToControl, now_ms: u64) -> bool;
    /// Its clients come to another socket from here on.
    fn listen(&mut self, socket: OwnedFd);
    /// Names of the ports that it has.
    fn ports(&self) -> Vec<String>;
    /// Shows `see` the connections in the next `places` places of its table, from a cursor on that begins with the default; where to go on, unless these
    /// were the last.
    fn connections(
        &self,
        from: ConnectionCursor,
        places: u32,
        now_ms: u64,
        see: impl FnMut(ConnectionView),
    ) -> Option<ConnectionCursor>;
    /// Ends those that `is_meant` in these places: how many, and where to go on.
    fn flush_connections(
        &mut self,
        from: ConnectionCursor,
        places: u32,
        now_ms: u64,
        is_meant: impl FnMut(&ConnectionView) -> bool,
    ) -> (usize, Option<ConnectionCursor>);
    /// Who takes the packets that meet no flow, and how many nobody took.
    fn standing(&self, now_ms: u64) -> OpenVswitch;
    /// Figures of that table; `None` if there is none.
    fn connection_stats(&self) -> Option<ConnectionStats>;
    /// Sends what it has for others, and gives what is for the switch and the supervisor, in order; leaves nothing behind. Numbers of its
    /// requests are from 2^63 on.
    fn take(&mut self, now_ms: u64) -> (Vec<FromControl>, Vec<ControlToSupervisor>);
}

/// Where the learning switch decides.
#[derive(Debug)]
pub(crate) enum Nobody {}

impl Decider for Nobody {
    async fn ready(&mut self) {
        match *self {}
    }

    fn switch_is(&mut self, _: bool) {
        match *self {}
    }

    fn hear_switch(&mut self, _: &ToControl, _: u64) -> bool {
        match *self {}
    }

    fn hear_supervisor(&mut self, _: &SupervisorToControl, _: u64) -> bool {
        match *self {}
    }

    fn listen(&mut self, _: OwnedFd) {
        match *self {}
    }

    fn ports(&self) -> Vec<String> {
        match *self {}
    }

    fn connections(
        &self,
        _: ConnectionCursor,
        _: u32,
        _: u64,
        _: impl FnMut(ConnectionView),
    ) -> Option<ConnectionCursor> {
        match *self {}
    }

    fn flush_connections(
        &mut self,
        _: ConnectionCursor,
        _: u32,
        _: u64,
        _: impl FnMut(&ConnectionView) -> bool,
    ) -> (usize, Option<ConnectionCursor>) {
        match *self {}
    }

    fn standing(&self, _: u64) -> OpenVswitch {
        match *self {}
    }

    fn connection_stats(&self) -> Option<ConnectionStats> {
        match *self {}
    }

    fn take(&mut self, _: u64) -> (Vec<FromControl>, Vec<ControlToSupervisor>) {
        match *self {}
    }
}
