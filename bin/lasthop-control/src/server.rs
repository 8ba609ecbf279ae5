//! The local API: Varlink on the listening socket that the supervisor made, for as many clients as
//! [`MAX_CONNECTIONS`], each in a task of its own so that one that does not read its replies stops nobody else.
// The interface says so.
#![allow(clippy::too_many_arguments)]

use crate::core::{
    Answer, Asker, Call, EngineCall, Kept, Load, MacCall, Meant, MirrorCall, SetCall, Upgrade, UplinkCall, WalkCall,
    busy, not_confirmed, not_known, supervisor_silent, switch_away, switch_silent,
};
use crate::lines::Lines;
pub(crate) use clients::Clients;
use clients::{Client, LongList, LongListPermit};
use futures_util::Stream;
use lasthop_api::{
    AclChanged, AclPage, AclRule, AclText, AddressSet, ApiError, Batching, BusBytes, BusModel, Caches, Carried,
    Connection, ConnectionPage, ConntrackFlushed, ConntrackStats, CpuBound, CpuTimes, Denied, DeviceBus, DeviceDma,
    DeviceTable, DeviceWalk, Direction, Drops, EndedFlows, Engine, EngineList, Field, Flow, FlowPage, Group, GroupPage,
    GuestQueue, Host, KeptProcess, LeftOut, LogLevel, LogLevelList, LostOf, Mac, MacFlushed, MacPage, Member, Mirror,
    MirrorList, NewProcess, NotTaken, Offload, OpenVswitch, Place, Port, PortAdopted, PortChanged, PortConnections,
    PortPage, PortPause, Queue, RatesOf, RefusedMac, Replaced, SetChanged, SetPage, Station, Stayed, SwitchStats,
    Totals, TraceOutput, TraceReport, Translation, Upgraded, Uplink, UplinkList, parse_frame,
};
use lasthop_management_ipc::{EngineChange, EngineKind, MirrorConfig, Settings, UplinkConfig};
use lasthop_policy::STATIC_MAC;
use lasthop_policy::acl::MAX_TEXT;
use lasthop_sys::Aside;
use pages::pages;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use wire::Bounded;
use zlink::{ReadyListener, Reply, Server};

mod clients;
mod wire;

/// Clients at a time of each socket. Another one takes the place of one that is idle.
const MAX_CONNECTIONS: usize = 64;
/// Calls on their way to the core; clients wait beyond.
pub(crate) const MAX_WAITING_CALLS: usize = 32;
/// Longest call in bytes: a traced frame of 64 KiB in hexadecimal and room to spare.
const MAX_CALL: usize = 256 * 1024;
/// How long the switch and the supervisor may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether clients may be let in again.
const STUCK_WAIT: Duration = Duration::from_millis(250);
/// How long a client may leave a reply unread before its connection is closed: what it has asked for is kept until then.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take for a long list, in all: one that reads a little now and then would have room for such a list for good.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// How long a long list may take to be made: flows by the hundred thousand may have to be judged by as many rules.
const LIST_PATIENCE: Duration = Duration::from_secs(300);
/// Another switch has taken over by then, or everything is as before: the supervisor gives it up before.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(14);
/// Long lists, of flows, addresses or rules, that clients are reading at a time: each may be of a hundred megabytes.
pub(crate) const MAX_LONG_LISTS: usize = 4;
/// Objects in one reply of a list. Replies are kept short because the thread that answers misses writes them.
const PORTS_PER_PAGE: usize = 8;
const FLOWS_PER_PAGE: usize = 32;
const MACS_PER_PAGE: usize = 128;
const GROUPS_PER_PAGE: usize = 32;
const CONNECTIONS_PER_PAGE: usize = 32;
const RULES_PER_PAGE: usize = 128;
/// The same of sets, of which each has up to 128 addresses.
const SETS_PER_PAGE: usize = 4;

/// Starts to let clients in, until that is aborted; inside the event loop only. With `read_only` they may change nothing.
pub(crate) fn start(
    listener: OwnedFd,
    calls: mpsc::Sender<Call>,
    clients: Clients,
    read_only: bool,
) -> io::Result<AbortHandle> {
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    Ok(tokio::task::spawn_local(accept(listener, calls, clients, read_only)).abort_handle())
}

async fn accept(listener: UnixListener, calls: mpsc::Sender<Call>, clients: Clients, read_only: bool) {
    // What clients of this socket have sent, asked for or not, is closed where nobody waits for it, and so are their connections.
    let aside = Aside::new(if read_only { "readers" } else { "clients" });
    let mut stuck = false;
    loop {
        if aside.is_stuck() {
            if !std::mem::replace(&mut stuck, true) {
                tracing::warn!(
                    "API: what a client sent does not close (files of a FUSE mount, sockets that linger, or no thread can be started, by pids.max, that would close it): nobody else is let in until it does"
                );
            }
            tokio::time::sleep(STUCK_WAIT).await;
            continue;
        }
        stuck = false;
        match listener.accept().await {
            Ok((stream, _)) => {
                let client = clients.admit(stream.peer_cred().map_or(u32::MAX, |of| of.uid()), read_only);
                // The last to be closed, or what lies unread in it would be closed here.
                let copy = stream.as_fd().try_clone_to_owned();
                let connection = Bounded { socket: stream, client: client.clone(), aside: aside.clone() };
                let long_lists = clients.long_lists[usize::from(read_only)].clone();
                let api = Api {
                    calls: calls.clone(),
                    text: RefCell::default(),
                    read_only,
                    long_lists,
                    client: client.clone(),
                };
                let server = Server::new(ReadyListener::new(connection), api);
                let (clients, aside) = (clients.clone(), aside.clone());
                tokio::task::spawn_local(async move {
                    tokio::select! {
                        ended = server.run() => {
                            if let Err(e) = ended {
                                tracing::debug!("API client: {e}");
                            }
                        }
                        () = client.sent_away.notified() => {
                            let passed = clients.evictions.borrow_mut().pass(Instant::now());
                            if let Some(left_out) = passed {
                                let before = if left_out == 0 { String::new() } else { format!("; {left_out} before it") };
                                tracing::info!(
                                    "API: a client of user {} that had been idle for longest made room for another{before}",
                                    client.user
                                );
                            }
                        }
                    }
                    clients.forget(&client, read_only);
                    aside.drop_aside(copy);
                });
            }
            Err(e) => {
                // Out of descriptors, most likely: that does not pass by trying again at once.
                tracing::warn!("API: accept: {e}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The methods. Their doc comments go into the interface's description.
#[derive(Debug)]
struct Api {
    calls: mpsc::Sender<Call>,
    /// Rules told on this connection and not loaded yet.
    text: RefCell<String>,
    /// The client may change nothing.
    read_only: bool,
    /// What it takes to get a long list.
    long_lists: Arc<Semaphore>,
    client: Rc<Client>,
}

impl Api {
    /// Asks for a list that may be very long, unless too many clients are reading such ones, and cuts it into pages, as [`pages`] does.
    async fn long_list<T: 'static, L: Into<Lines<T>>, P: 'static>(
        &self,
        call: impl FnOnce(Answer<L>) -> Call,
        more: bool,
        size: usize,
        page: impl Fn(Vec<T>, u64) -> P + 'static,
    ) -> LongList<P> {
        let Ok(permit) = self.long_lists.clone().try_acquire_owned() else {
            return LongList { pages: pages(Err::<L, _>(busy()), more, size, page), _permit: None };
        };
        let list = self.ask_within(LIST_PATIENCE, switch_silent, call).await;
        self.client.list_until.set(Some(tokio::time::Instant::now() + LIST_LIMIT));
        let permit = LongListPermit { client: self.client.clone(), _permit: permit };
        LongList { pages: pages(list, more, size, page), _permit: Some(permit) }
    }

    /// Refuses what changes something.
    fn may_change(&self) -> Result<(), ApiError> {
        let message = "members of the group of `lasthop run --read-group` may look at everything and change nothing; \
                       do this as root";
        if self.read_only { Err(ApiError::ReadOnly { message: message.into() }) } else { Ok(()) }
    }

    async fn ask<T>(&self, call: impl FnOnce(Answer<T>) -> Call) -> Result<T, ApiError> {
        self.ask_within(PATIENCE, switch_silent, call).await
    }

    /// Asks for a change; `see` is the command that shows whether it was made.
    async fn change<T>(&self, see: &str, call: impl FnOnce(Answer<T>) -> Call) -> Result<T, ApiError> {
        self.ask_within(PATIENCE, || not_known(see), call).await
    }

    /// Asks for engines to be otherwise: another switch takes over.
    async fn change_engines(&self, change: EngineChange, attempt: String) -> Result<Upgraded, ApiError> {
        self.may_change()?;
        let late = || not_known("engine list");
        let call = |answer| Call::Engine(EngineCall::Change { change, attempt, answer });
        self.ask_within(UPGRADE_PATIENCE, late, call).await
    }

    /// Asks for a change of access lists, or of the sets that they name.
    async fn change_lists<T>(&self, see: &str, call: impl FnOnce(Kept, Answer<T>) -> Call) -> Result<T, ApiError> {
        let (kept, mut were_kept) = oneshot::channel();
        let late = || if were_kept.try_recv().is_ok() { not_confirmed() } else { not_known(see) };
        self.ask_within(PATIENCE, late, |answer| call(kept, answer)).await
    }

    /// `late` says what it means that there is no answer.
    async fn ask_within<T>(
        &self,
        patience: Duration,
        late: impl FnOnce() -> ApiError,
        call: impl FnOnce(Answer<T>) -> Call,
    ) -> Result<T, ApiError> {
        let asker = if self.read_only { Asker::Reader } else { Asker::Owner };
        let (answer, reply) = Answer::new(asker);
        match tokio::time::timeout(PATIENCE, self.calls.send(call(answer))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(switch_away()),
            Err(_) => return Err(busy()),
        }
        match tokio::time::timeout(patience, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }
}

fn engine_kind(name: &str) -> Result<EngineKind, ApiError> {
    EngineKind::from_name(name).ok_or_else(|| {
        let names = EngineKind::ALL.map(EngineKind::name).join(", ");
        ApiError::EngineRefused { message: format!("there is no kind of engine {name:?}; there are {names}") }
    })
}

fn pairs(settings: Vec<Field>) -> Settings {
    settings.into_iter().map(|Field { name, value }| (name, value)).collect()
}

#[zlink::service(
    interface = "org.lasthop.Switch",
    types = [AclRule, AclPage, AclText, AclChanged, AddressSet, SetPage, SetChanged, CpuTimes, Port, Place, CpuBound, RefusedMac, Queue, Totals, Drops, Flow, Field, Mac, MacFlushed, Group, Member, GroupPage, PortChanged, PortPage, PortPause, NewProcess, KeptProcess, Upgraded, Engine, EngineList, PortAdopted, NotTaken, Station, FlowPage, EndedFlows, MacPage, Connection, Direction, ConnectionPage, ConntrackFlushed, ConntrackStats, PortConnections, SwitchStats, Host, Offload, Stayed, DeviceTable, DeviceWalk, DeviceDma, BusModel, DeviceBus, BusBytes, Caches, Denied, LeftOut, Replaced,
             OpenVswitch, RatesOf, LostOf, TraceOutput, TraceReport, Translation, Batching, Uplink, Carried, GuestQueue, UplinkList, Mirror, MirrorList, LogLevel, LogLevelList],
    vendor = "lasthop",
    product = "lasthop",
    version = env!("CARGO_PKG_VERSION")
)]
impl Api {
    async fn port_add(
        &self,
        name: String,
        path: String,
        client: bool,
        tx_batch: Option<Batching>,
        owner: Option<String>,
        settings: Vec<Field>,
    ) -> Result<PortChanged, ApiError> {
        self.may_change()?;
        let settings = pairs(settings);
        self.change("port list", |answer| Call::PortAdd { name, path, client, tx_batch, owner, settings, answer }).await
    }

    async fn port_set(&self, name: String, settings: Vec<Field>) -> Result<PortChanged, ApiError> {
        self.may_change()?;
        let settings = pairs(settings);
        self.change("port list", |answer| Call::PortSet { name, settings, answer }).await
    }

    async fn port_add_device(
        &self,
        name: String,
        device: String,
        driver: Option<String>,
        queues: u16,
        nice: i32,
        spare: bool,
        settings: Vec<Field>,
    ) -> Result<UplinkList, ApiError> {
        self.may_change()?;
        let (gro, vlans, guest, settings) = (true, None, true, pairs(settings));
        let config = UplinkConfig { name, device, driver, queues, nice, gro, spare, vlans, guest, settings };
        let call = UplinkCall::Add(config);
        self.change("port list", |answer| Call::Uplink { call, answer }).await
    }

    async fn port_adopt(
        &self,
        name: String,
        stations: Vec<Station>,
        connections: Vec<Connection>,
    ) -> Result<PortAdopted, ApiError> {
        self.may_change()?;
        self.change("mac list", |answer| Call::PortAdopt { name, stations, connections, answer }).await
    }

    async fn port_rename(&self, name: String, to: String) -> Result<PortChanged, ApiError> {
        self.may_change()?;
        self.change("port list", |answer| Call::PortRename { name, to, answer }).await
    }

    async fn upgrade(
        &self,
        programs: Option<String>,
        messages: String,
        processes: String,
        all: bool,
        attempt: String,
    ) -> Result<Upgraded, ApiError> {
        self.may_change()?;
        let late = || not_known("stats");
        let wanted = Upgrade { programs, messages, processes, all, attempt };
        self.ask_within(UPGRADE_PATIENCE, late, |answer| Call::Upgrade { wanted, answer }).await
    }

    async fn engine_list(&self) -> Result<EngineList, ApiError> {
        self.ask_within(PATIENCE, supervisor_silent, |answer| Call::Engine(EngineCall::List(answer))).await
    }

    async fn engine_add(&self, kind: String, cpus: String, attempt: String) -> Result<Upgraded, ApiError> {
        self.change_engines(EngineChange::Add(engine_kind(&kind)?, cpus), attempt).await
    }

    async fn engine_del(&self, kind: String, cpus: String, attempt: String) -> Result<Upgraded, ApiError> {
        self.change_engines(EngineChange::Del(engine_kind(&kind)?, cpus), attempt).await
    }

    async fn engine_move(&self, port: String, engine: String, attempt: String) -> Result<Upgraded, ApiError> {
        self.change_engines(EngineChange::Move(port, engine), attempt).await
    }

    async fn engine_near(&self, near: String, attempt: String) -> Result<Upgraded, ApiError> {
        self.change_engines(EngineChange::Near(near), attempt).await
    }

    async fn engine_set(
        &self,
        poll: Option<String>,
        helper: Option<String>,
        ports: Option<String>,
        attempt: String,
    ) -> Result<Upgraded, ApiError> {
        self.change_engines(EngineChange::Set([poll, helper, ports]), attempt).await
    }

    async fn port_del(&self, name: String) -> Result<PortChanged, ApiError> {
        self.may_change()?;
        self.change("port list", |answer| Call::PortDel { name, answer }).await
    }

    #[zlink(more)]
    async fn port_list(&self, more: bool) -> impl Stream<Item = Result<Reply<PortPage>, ApiError>> + Unpin {
        let ports = self.ask(|answer| Call::PortList { answer }).await;
        pages(ports, more, PORTS_PER_PAGE, |ports, total| PortPage { ports, total })
    }

    async fn uplink_add(
        &self,
        name: String,
        device: String,
        driver: Option<String>,
        queues: u16,
        nice: i32,
        gro: bool,
        spare: bool,
        vlans: Option<String>,
    ) -> Result<UplinkList, ApiError> {
        self.may_change()?;
        let call = UplinkCall::Add(UplinkConfig {
            name,
            device,
            driver,
            queues,
            nice,
            gro,
            spare,
            vlans,
            guest: false,
            settings: Vec::new(),
        });
        self.change("uplink list", |answer| Call::Uplink { call, answer }).await
    }

    async fn uplink_set(&self, name: String, vlans: Option<String>) -> Result<UplinkList, ApiError> {
        self.may_change()?;
        self.change("uplink list", |answer| Call::Uplink { call: UplinkCall::Set { name, vlans }, answer }).await
    }

    async fn uplink_del(&self, name: String) -> Result<UplinkList, ApiError> {
        self.may_change()?;
        self.change("uplink list", |answer| Call::Uplink { call: UplinkCall::Del { name }, answer }).await
    }

    async fn uplink_list(&self) -> Result<UplinkList, ApiError> {
        self.ask_within(PATIENCE, supervisor_silent, |answer| Call::Uplink { call: UplinkCall::List, answer }).await
    }

    #[zlink(more)]
    async fn flow_list(&self, more: bool) -> impl Stream<Item = Result<Reply<FlowPage>, ApiError>> + Unpin {
        let page = |flows, total| FlowPage { flows, total };
        self.long_list(|answer| Call::FlowList { answer }, more, FLOWS_PER_PAGE, page).await
    }

    async fn flows_ended(&self, after: Option<u64>) -> Result<EndedFlows, ApiError> {
        self.ask(|answer| Call::FlowsEnded { after, answer }).await
    }

    #[zlink(more)]
    async fn mac_list(&self, more: bool) -> impl Stream<Item = Result<Reply<MacPage>, ApiError>> + Unpin {
        let page = |macs, total| MacPage { macs, total };
        self.long_list(|answer| Call::MacList { answer }, more, MACS_PER_PAGE, page).await
    }

    #[zlink(more)]
    async fn group_list(&self, more: bool) -> impl Stream<Item = Result<Reply<GroupPage>, ApiError>> + Unpin {
        let page = |groups, total| GroupPage { groups, total };
        self.long_list(|answer| Call::Mac(MacCall::Groups { answer }), more, GROUPS_PER_PAGE, page).await
    }

    async fn mac_add(&self, mac: String, port: String, vlan: Option<u16>) -> Result<PortChanged, ApiError> {
        let vlan = vlan.map_or_else(String::new, |vlan| format!("@{vlan}"));
        let settings = vec![Field { name: STATIC_MAC.into(), value: format!("+{mac}{vlan}") }];
        self.port_set(port, settings).await
    }

    async fn mac_del(&self, mac: String, vlan: Option<u16>) -> Result<Mac, ApiError> {
        self.may_change()?;
        let call = |answer| Call::Mac(MacCall::Del { mac, vlan, answer });
        let forgotten = self.change("mac list", call).await?;
        if let Some(entry) = forgotten.told {
            let settings = vec![Field { name: STATIC_MAC.into(), value: format!("-{entry}") }];
            self.port_set(forgotten.mac.port.clone(), settings).await?;
        }
        Ok(forgotten.mac)
    }

    async fn mac_flush(&self, port: Option<String>, vlan: Option<u16>) -> Result<MacFlushed, ApiError> {
        self.may_change()?;
        self.change("mac list", |answer| Call::Mac(MacCall::Flush { port, vlan, answer })).await
    }

    async fn mirror_add(
        &self,
        name: String,
        from: Vec<String>,
        to: String,
        direction: String,
        sample: Option<u32>,
        labelled: Option<bool>,
    ) -> Result<MirrorList, ApiError> {
        self.may_change()?;
        let (sample, labelled) = (sample.unwrap_or(1), labelled.unwrap_or(false));
        let call = MirrorCall::Add(MirrorConfig { name, from, to, direction, sample, labelled });
        self.change("mirror list", |answer| Call::Mirror { call, answer }).await
    }

    async fn mirror_del(&self, name: String) -> Result<MirrorList, ApiError> {
        self.may_change()?;
        self.change("mirror list", |answer| Call::Mirror { call: MirrorCall::Del(name), answer }).await
    }

    async fn mirror_list(&self) -> Result<MirrorList, ApiError> {
        self.ask(|answer| Call::Mirror { call: MirrorCall::List, answer }).await
    }

    #[zlink(more)]
    async fn conntrack_list(
        &self,
        more: bool,
        port: Option<String>,
        vlan: Option<u16>,
        proto: Option<String>,
        addr: Option<String>,
    ) -> impl Stream<Item = Result<Reply<ConnectionPage>, ApiError>> + Unpin {
        let page = |connections, total| ConnectionPage { connections, total };
        let meant = Meant { port, vlan, proto, addr };
        let call = |answer| Call::Connections(WalkCall::List { meant, answer });
        self.long_list(call, more, CONNECTIONS_PER_PAGE, page).await
    }

    async fn conntrack_flush(
        &self,
        port: Option<String>,
        vlan: Option<u16>,
        proto: Option<String>,
        addr: Option<String>,
    ) -> Result<ConntrackFlushed, ApiError> {
        self.may_change()?;
        let meant = Meant { port, vlan, proto, addr };
        self.change("conntrack list", |answer| Call::Connections(WalkCall::Flush { meant, answer })).await
    }

    async fn conntrack_stats(&self) -> Result<ConntrackStats, ApiError> {
        self.ask(|answer| Call::ConnectionStats { answer }).await
    }

    async fn stats(&self) -> Result<SwitchStats, ApiError> {
        self.ask(|answer| Call::Stats { answer }).await
    }

    async fn acl_text(&self, text: String) -> Result<AclText, ApiError> {
        self.may_change()?;
        let mut all = self.text.borrow_mut();
        if all.len() + text.len() > MAX_TEXT {
            all.clear();
            let message = format!("the rules are longer than {} MiB; use fewer, or wider ones", MAX_TEXT >> 20);
            return Err(ApiError::BadRules { message });
        }
        all.push_str(&text);
        Ok(AclText { bytes: all.len() as u64 })
    }

    async fn acl_load(
        &self,
        format: String,
        action: String,
        ports: Vec<String>,
        direction: Option<String>,
        general: Option<String>,
        allow_empty: Option<bool>,
    ) -> Result<AclChanged, ApiError> {
        self.may_change()?;
        let text = self.text.take();
        let allow_empty = allow_empty.unwrap_or(false);
        let load = Load { text, format, action, ports, direction, general, allow_empty };
        self.change_lists("acl show", |kept, answer| Call::AclLoad { load, kept, answer }).await
    }

    async fn acl_clear(
        &self,
        ports: Vec<String>,
        direction: Option<String>,
        general: Option<String>,
    ) -> Result<AclChanged, ApiError> {
        self.may_change()?;
        self.change_lists("acl show", |kept, answer| Call::AclClear { ports, direction, general, kept, answer }).await
    }

    #[zlink(more)]
    async fn acl_show(
        &self,
        more: bool,
        ports: Vec<String>,
        packets: bool,
    ) -> impl Stream<Item = Result<Reply<AclPage>, ApiError>> + Unpin {
        let page = |rules, total| AclPage { rules, total };
        self.long_list(|answer| Call::AclShow { ports, packets, answer }, more, RULES_PER_PAGE, page).await
    }

    async fn set_change(&self, name: String, add: Vec<String>, del: Vec<String>) -> Result<SetChanged, ApiError> {
        self.may_change()?;
        let call = |kept, answer| Call::Set(SetCall::Change { name, add, del, kept, answer });
        self.change_lists("set list", call).await
    }

    async fn set_del(&self, name: String) -> Result<SetChanged, ApiError> {
        self.may_change()?;
        self.change_lists("set list", |kept, answer| Call::Set(SetCall::Del { name, kept, answer })).await
    }

    #[zlink(more)]
    async fn set_list(
        &self,
        more: bool,
        name: Option<String>,
    ) -> impl Stream<Item = Result<Reply<SetPage>, ApiError>> + Unpin {
        let page = |sets, total| SetPage { sets, total };
        self.long_list(|answer| Call::Set(SetCall::List { name, answer }), more, SETS_PER_PAGE, page).await
    }

    async fn log_levels(&self, levels: Vec<LogLevel>) -> Result<LogLevelList, ApiError> {
        if !levels.is_empty() {
            self.may_change()?;
        }
        self.ask_within(PATIENCE, supervisor_silent, |answer| Call::LogLevels { levels, answer }).await
    }

    async fn trace(&self, port: String, frame: String) -> Result<TraceReport, ApiError> {
        let frame = parse_frame(&frame).map_err(|message| ApiError::BadFrame { message })?;
        self.ask(|answer| Call::Trace { port, frame, answer }).await
    }
}

mod pages;
#[cfg(test)]
mod tests;
