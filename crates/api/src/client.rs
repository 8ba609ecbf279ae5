//! The methods as a client calls them.

use crate::{ApiError, FlowPage, MacPage, PortChanged, PortPage, SwitchStats, TraceReport};
use futures_util::Stream;

/// The interface, implemented by every `zlink` connection. The outer error is the connection's, the inner one the
/// switch's answer. Lists come in pages.
#[zlink::proxy("org.lasthop.Switch")]
pub trait SwitchProxy {
    /// Makes a port; lasthop listens on the vhost-user socket `path`, or connects to it when `client` is true.
    async fn port_add(&mut self, name: &str, path: &str, client: bool) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// Removes a port and ends its connection.
    async fn port_del(&mut self, name: &str) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// All ports with their counters.
    #[zlink(more)]
    async fn port_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<PortPage, ApiError>>>>;

    /// All flows in the switch.
    #[zlink(more)]
    async fn flow_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<FlowPage, ApiError>>>>;

    /// All learned addresses.
    #[zlink(more)]
    async fn mac_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<MacPage, ApiError>>>>;

    /// Figures of the whole switch.
    async fn stats(&mut self) -> zlink::Result<Result<SwitchStats, ApiError>>;

    /// What would happen to `frame` (hexadecimal digits, from the Ethernet header on) if it came from `port`.
    async fn trace(&mut self, port: &str, frame: &str) -> zlink::Result<Result<TraceReport, ApiError>>;
}
