//! The methods as a client calls them.
// The interface says so.
#![allow(clippy::too_many_arguments)]

use crate::{
    AclChanged, AclPage, AclText, ApiError, Batching, Connection, ConnectionPage, ConntrackFlushed, ConntrackStats,
    EndedFlows, EngineList, Field, FlowPage, GroupPage, LogLevel, LogLevelList, Mac, MacFlushed, MacPage, MirrorList,
    PortAdopted, PortChanged, PortPage, SetChanged, SetPage, Station, SwitchStats, TraceReport, Upgraded, UplinkList,
};
use futures_util::Stream;

/// The interface, implemented by every `zlink` connection. The outer error is the connection's, the inner one the
/// switch's answer. Lists come in pages.
#[zlink::proxy("org.lasthop.Switch")]
pub trait SwitchProxy {
    /// Makes a port; lasthop listens on the vhost-user socket `path`, or connects to it when `client` is true. Without a
    /// `tx_batch` it has that of `lasthop run --tx-batch`; without an `owner`, whoever may open its socket may use it. `settings` are as
    /// for `port_set`.
    async fn port_add(
        &mut self,
        name: &str,
        path: &str,
        client: bool,
        tx_batch: Option<Batching>,
        owner: Option<&str>,
        settings: &[Field],
    ) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// Tells a port to do something else, by names and values as of `lasthop port set`; what is not named stays as it is. Answers when the
    /// switch goes by it.
    async fn port_set(&mut self, name: &str, settings: &[Field]) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// Makes a guest's port of the interface `device` of this host: a container's veth, or a TAP device of the host itself. It is
    /// learned, flooded to, limited and judged like any guest, while an uplink is where the network is; the rest is as of
    /// `uplink_add`. Answers when the interface is open.
    async fn port_add_device(
        &mut self,
        name: &str,
        device: &str,
        driver: Option<&str>,
        queues: u16,
        nice: i32,
        spare: bool,
        settings: &[Field],
    ) -> zlink::Result<Result<UplinkList, ApiError>>;

    /// A guest comes to this port from another lasthop, with addresses and established connections: at most 256 of each in one call.
    async fn port_adopt(
        &mut self,
        name: &str,
        stations: &[Station],
        connections: &[Connection],
    ) -> zlink::Result<Result<PortAdopted, ApiError>>;

    /// Gives a port another name. Its front-end stays connected; settings, access lists, mirrors and static addresses go by the new name.
    async fn port_rename(&mut self, name: &str, to: &str) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// Has newly installed programs take the place of those that run while all goes on: those of this directory, or what is in the place of those that
    /// run. `messages`: what their build says to others (`lasthop messages` of that build prints it). `processes`: `switch`, `sessions`, `uplinks`,
    /// `control` or `run`; with `all`, those whose program is the same file too. Whoever loses the connection, as happens when control is replaced, asks
    /// once more with the same `attempt`, and is told what came of it.
    async fn upgrade(
        &mut self,
        programs: Option<&str>,
        messages: &str,
        processes: &str,
        all: bool,
        attempt: &str,
    ) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// CPUs on which ports' work is done, and who does it there.
    async fn engine_list(&mut self) -> zlink::Result<Result<EngineList, ApiError>>;

    /// Has ports' work done on these CPUs, too, like `2,4-5`. `kind`: `poll`, `helper` or `ports`. Another switch takes over, as of `upgrade`, for which
    /// `attempt` is, too; it is remembered.
    async fn engine_add(&mut self, kind: &str, cpus: &str, attempt: &str) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// Has nothing done by this kind on these CPUs any more. The rest is as of `engine_add`.
    async fn engine_del(&mut self, kind: &str, cpus: &str, attempt: &str) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// Has the port or uplink polled by the engine with this name, like `poll-3`; `ports`: by none, it has a thread of its own; `none`: by any. It is the
    /// port's setting `engine`, too. While no core polls it is only remembered, and `processes` is empty. The rest is as of
    /// `engine_add`.
    async fn engine_move(
        &mut self,
        port: &str,
        engine: &str,
        attempt: &str,
    ) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// Keeps ports' threads so near to their VMs: `off`, `node` or `cache`. Names no process: none is replaced. The rest is as of `engine_add`.
    async fn engine_near(&mut self, near: &str, attempt: &str) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// Has ports' work done on these CPUs and on no others, of each kind that is given; `none` is no CPU, `all` each that there is. Names no process where
    /// that is so already. The rest is as of `engine_add`.
    async fn engine_set(
        &mut self,
        poll: Option<&str>,
        helper: Option<&str>,
        ports: Option<&str>,
        attempt: &str,
    ) -> zlink::Result<Result<Upgraded, ApiError>>;

    /// Removes a port and ends its connection.
    async fn port_del(&mut self, name: &str) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// All ports with their counters.
    #[zlink(more)]
    async fn port_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<PortPage, ApiError>>>>;

    /// Makes an uplink: a port that is the interface `device`, used by `driver` (chosen if not given) with so many queue
    /// pairs, at this priority, from -20 to 19 as of nice(1), and with a second process that stands by if `spare` (not
    /// with `af_xdp` and several pairs). `gro` may be false with `af_xdp`: no receive aggregation. `vlans`, like
    /// `untagged:10:20-30`, are the VLANs that it carries, all if not given. Answers when the interface is open.
    async fn uplink_add(
        &mut self,
        name: &str,
        device: &str,
        driver: Option<&str>,
        queues: u16,
        nice: i32,
        gro: bool,
        spare: bool,
        vlans: Option<&str>,
    ) -> zlink::Result<Result<UplinkList, ApiError>>;

    /// Changes the VLANs that an uplink carries, all if not given. Answers when the switch goes by it.
    async fn uplink_set(&mut self, name: &str, vlans: Option<&str>) -> zlink::Result<Result<UplinkList, ApiError>>;

    /// Removes an uplink and its port; an interface that it made goes with it.
    async fn uplink_del(&mut self, name: &str) -> zlink::Result<Result<UplinkList, ApiError>>;

    /// All uplinks with their counters.
    async fn uplink_list(&mut self) -> zlink::Result<Result<UplinkList, ApiError>>;

    /// All flows in the switch.
    #[zlink(more)]
    async fn flow_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<FlowPage, ApiError>>>>;

    /// Flows that have ended since `after`, which is `next` of the answer before; none: from now on. They are kept, a bounded number, as
    /// long as somebody asks every two minutes.
    async fn flows_ended(&mut self, after: Option<u64>) -> zlink::Result<Result<EndedFlows, ApiError>>;

    /// All learned addresses.
    #[zlink(more)]
    async fn mac_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<MacPage, ApiError>>>>;

    /// Has an address live at a port for good: it neither ages nor moves. Without a `vlan` it is in that of frames without a tag there.
    /// Answers when the switch goes by it.
    async fn mac_add(
        &mut self,
        mac: &str,
        port: &str,
        vlan: Option<u16>,
    ) -> zlink::Result<Result<PortChanged, ApiError>>;

    /// Forgets an address, static or not, and tells what it was. A `vlan` of 0 is that of frames without a VLAN; none is needed where the
    /// address is known in one only. Answers when the switch goes by it.
    async fn mac_del(&mut self, mac: &str, vlan: Option<u16>) -> zlink::Result<Result<Mac, ApiError>>;

    /// Forgets addresses that were learned, all of them or those of a port and of a VLAN.
    async fn mac_flush(&mut self, port: Option<&str>, vlan: Option<u16>)
    -> zlink::Result<Result<MacFlushed, ApiError>>;

    /// Who wants which multicasts, as far as some port asks for it (`snooping`).
    #[zlink(more)]
    async fn group_list(&mut self) -> zlink::Result<impl Stream<Item = zlink::Result<Result<GroupPage, ApiError>>>>;

    /// Makes a mirror: the port `to` gets copies of what the ports `from` send (`from-guest`), of what is sent to them (`to-guest`), or
    /// of `both`; of one packet in `sample`, by chance, or of all. They need not exist yet. Answers when the switch goes by it. If
    /// `labelled`, each copy has an 802.1ad tag in front: bits 0 to 8 of its TCI are the port's place in `from`, bit 9 is set if the packet
    /// was for its guest, and the bits above are the number of the drop reason and one, or 0.
    async fn mirror_add(
        &mut self,
        name: &str,
        from: &[&str],
        to: &str,
        direction: &str,
        sample: Option<u32>,
        labelled: Option<bool>,
    ) -> zlink::Result<Result<MirrorList, ApiError>>;

    /// Removes a mirror. Answers when nothing is copied by it any more.
    async fn mirror_del(&mut self, name: &str) -> zlink::Result<Result<MirrorList, ApiError>>;

    /// All mirrors.
    async fn mirror_list(&mut self) -> zlink::Result<Result<MirrorList, ApiError>>;

    /// Connections that stateful access lists know: all, or those of a port, a VLAN, a protocol (name or number) and an address.
    #[zlink(more)]
    async fn conntrack_list(
        &mut self,
        port: Option<&str>,
        vlan: Option<u16>,
        proto: Option<&str>,
        addr: Option<&str>,
    ) -> zlink::Result<impl Stream<Item = zlink::Result<Result<ConnectionPage, ApiError>>>>;

    /// Ends connections, those that `conntrack_list` would tell of, and removes their flows.
    async fn conntrack_flush(
        &mut self,
        port: Option<&str>,
        vlan: Option<u16>,
        proto: Option<&str>,
        addr: Option<&str>,
    ) -> zlink::Result<Result<ConntrackFlushed, ApiError>>;

    /// Figures of connections.
    async fn conntrack_stats(&mut self) -> zlink::Result<Result<ConntrackStats, ApiError>>;

    /// Figures of the whole switch.
    async fn stats(&mut self) -> zlink::Result<Result<SwitchStats, ApiError>>;

    /// Adds to the text that the next `acl_load` of this connection reads; how many bytes it has now. A text of any
    /// length comes in parts, none of them longer than 64 KiB.
    async fn acl_text(&mut self, text: &str) -> zlink::Result<Result<AclText, ApiError>>;

    /// Loads access lists from the text told before, in the `format` `lasthop`, `classbench` or `auto`, for the ports
    /// named or, without any, for those that `general` names: `guests`, `uplinks` or `all`; else for those that the text names, or
    /// for guests. A text without a rule or default is refused unless `allow_empty`. `action`, `permit` or `deny`, is that of ClassBench's filters.
    /// Without a `direction`, lists of both are replaced. When it returns, no packet is judged by older lists.
    async fn acl_load(
        &mut self,
        format: &str,
        action: &str,
        ports: &[&str],
        direction: Option<&str>,
        general: Option<&str>,
        allow_empty: Option<bool>,
    ) -> zlink::Result<Result<AclChanged, ApiError>>;

    /// Removes the access lists of these ports or, without any, those of `general`, as for `acl_load`.
    async fn acl_clear(
        &mut self,
        ports: &[&str],
        direction: Option<&str>,
        general: Option<&str>,
    ) -> zlink::Result<Result<AclChanged, ApiError>>;

    /// The access lists: all of them, or those that hold for these ports. With the packets of each rule's flows if
    /// `packets`, which takes longer.
    #[zlink(more)]
    async fn acl_show(
        &mut self,
        ports: &[&str],
        packets: bool,
    ) -> zlink::Result<impl Stream<Item = zlink::Result<Result<AclPage, ApiError>>>>;

    /// Addresses and prefixes join the set `name`, which is made if there is none, and those of `del` leave it; all of it or nothing. Access lists
    /// go by it when it returns.
    async fn set_change(
        &mut self,
        name: &str,
        add: &[&str],
        del: &[&str],
    ) -> zlink::Result<Result<SetChanged, ApiError>>;

    /// Removes a set that no access list names.
    async fn set_del(&mut self, name: &str) -> zlink::Result<Result<SetChanged, ApiError>>;

    /// All sets of addresses, or the one with this name.
    #[zlink(more)]
    async fn set_list(
        &mut self,
        name: Option<&str>,
    ) -> zlink::Result<impl Stream<Item = zlink::Result<Result<SetPage, ApiError>>>>;

    /// Has processes write lines of the log from these levels on, and tells what each writes; without any it only tells.
    async fn log_levels(&mut self, levels: &[LogLevel]) -> zlink::Result<Result<LogLevelList, ApiError>>;

    /// What would happen to `frame` (hexadecimal digits, from the Ethernet header on) if it came from `port`.
    async fn trace(&mut self, port: &str, frame: &str) -> zlink::Result<Result<TraceReport, ApiError>>;
}
