//! What control knows, and what follows from each thing it hears. No I/O: messages in, messages out.

use cpu::CpuRequest;
use health::Health;
use lasthop_api::{ApiError, Bus, LogLevelList, OpenVswitch};
use lasthop_ipc::{FromControl, PortInfo, PortState, ToControl, UpcallPacket};
use lasthop_management_ipc::{ControlToSupervisor, DeviceState, PortConfig, PortPlace, SupervisorToControl};
use lasthop_policy::acl::Book;
use lasthop_policy::{
    Change, Effects, Headers, LOOK_MANY_MS, LOOK_MS, Learning, Limits, MANY_FLOWS, Resume, Uplinks, Vlans,
};
use lasthop_sys::hostview::HostView;
use lasthop_text::counted;
use lasthop_types::{CacheFigures, PortId, PortTotals};
use listing::Listing;
use lists::Pending;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;

mod answers;
mod bus;
mod calls;
mod connections;
mod counting;
mod cpu;
mod ended;
mod engines;
mod health;
#[cfg(test)]
mod limits_tests;
mod listing;
mod lists;
mod log_level;
mod macs;
mod mirrors;
mod moved;
mod of_device;
mod owners;
mod questions;
mod renaming;
mod sets;
mod settings;
mod spending;
mod statistics;
mod stuck_uplinks;
#[cfg(test)]
mod turns_tests;
mod upgrade;
mod uplinks;

pub(crate) use answers::{busy, not_confirmed, not_known, supervisor_silent, switch_away, switch_silent};
use answers::{give, no_such_port, refuse};
pub(crate) use calls::Call;
use calls::MAX_QUESTIONS;
use connections::Walk;
pub(crate) use connections::{Meant, WalkCall};
use counting::Counting;
use ended::Ended;
pub(crate) use engines::EngineCall;
use engines::EngineLists;
pub(crate) use lists::{Kept, Load};
pub(crate) use macs::MacCall;
use macs::{Flush, Forgotten};
pub(crate) use mirrors::MirrorCall;
use mirrors::Mirroring;
use of_device::OfDevice;
use owners::Owners;
use questions::{FLOWS, Question, Unconfirmed};
pub(crate) use sets::SetCall;
use sets::SetChange;
use settings::PortRequest;
use spending::Spending;
use statistics::StatsWanted;
use stuck_uplinks::StuckUplinks;
pub(crate) use upgrade::Upgrade;
use upgrade::Upgrades;
pub(crate) use uplinks::UplinkCall;
use uplinks::UplinkRequest;

/// With more messages than this waiting to be sent to the switch, no flows are put right that can wait: answers to upcalls would
/// wait behind them.
const CONGESTED: usize = 32;
/// Then they are so often, a part at a time.
const CONGESTED_MS: u64 = 50;

/// Whose client has asked: each socket of the API has room of its own, so that who may only look takes none from who may change things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    Owner,
    Reader,
}

/// Where an answer to a call of the API goes.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    to: oneshot::Sender<Result<T, ApiError>>,
    asker: Asker,
}

impl<T> Answer<T> {
    /// An answer, and where it arrives.
    pub fn new(asker: Asker) -> (Self, oneshot::Receiver<Result<T, ApiError>>) {
        let (to, arrives) = oneshot::channel();
        (Self { to, asker }, arrives)
    }

    /// Nobody waits for it any more.
    fn is_closed(&self) -> bool {
        self.to.is_closed()
    }

    /// Whether it is of this socket's, and waited for.
    fn is_open_for(&self, asker: Asker) -> bool {
        self.asker == asker && !self.is_closed()
    }
}

/// Something to react to; messages of the switch come in batches through [`Core::hear_switch`].
#[derive(Debug)]
pub(crate) enum Event {
    /// There is a new channel to the switch, which will say hello on it.
    SwitchAttached,
    /// The channel to the switch is gone.
    SwitchGone,
    Supervisor(SupervisorToControl),
    Call(Call),
    /// [`Core::deadline_ms`] may have passed.
    Timer,
}

/// Something to send.
#[derive(Debug)]
pub(crate) enum Command {
    Switch(Box<FromControl>),
    Supervisor(ControlToSupervisor),
}

/// A question the switch has been asked, with the parts of the answer that have come.
#[derive(Debug, Default)]
struct Counts {
    misses: u64,
    flows_put: u64,
    flows_deleted: u64,
    malformed: u64,
}

#[derive(Debug)]
pub(crate) struct Core {
    policy: Learning,
    /// What there is to know besides if the data plane is a device.
    device: Option<OfDevice>,
    /// What the host's cores and VMs do.
    host_view: Option<HostView>,
    /// There is a channel to the switch.
    attached: bool,
    /// Which flows the switch has is known.
    reconciled: bool,
    configs: BTreeMap<PortId, PortConfig>,
    /// Who was last refused at a port that belongs to somebody else, since its last connection, and when.
    refused: BTreeMap<PortId, (String, u64)>,
    /// What keeps front-ends from ports.
    faults: BTreeMap<PortId, String>,
    infos: BTreeMap<PortId, PortInfo>,
    questions: BTreeMap<u64, Question>,
    /// Flows whose packets are being counted by rules, those first that have waited for longest.
    counting: VecDeque<Counting>,
    /// Those who are told all addresses.
    listings: VecDeque<Listing>,
    /// Those who have addresses forgotten.
    flushes: VecDeque<Flush>,
    /// Those who are told of connections, or have some ended.
    walks: VecDeque<Walk>,
    /// Sets that have changed, and flows are looked for that this concerns.
    set_changes: VecDeque<SetChange>,
    requests: BTreeMap<u64, PortRequest>,
    uplink_requests: BTreeMap<u64, UplinkRequest>,
    cpu_requests: BTreeMap<u64, CpuRequest>,
    upgrades: Upgrades,
    engine_lists: EngineLists,
    /// Where VMs run, and their ports' threads.
    places: BTreeMap<PortId, PortPlace>,
    /// Ports that are uplinks, and the VLANs that each carries.
    uplinks: Uplinks,
    /// Ports that are interfaces, as they are shown.
    devices: BTreeMap<PortId, DeviceState>,
    stuck_uplinks: StuckUplinks,
    /// Bounds of processor time.
    spending: Spending,
    /// What the supervisor knows of ports that have queues of their own.
    owners: Owners,
    health: Health,
    next_number: u64,
    next_tick_ms: Option<u64>,
    /// When the flows have been looked at, what is old goes.
    ageing_due: bool,
    /// So much waits to be sent to the switch that flows that can wait do.
    congested: bool,
    last_put_right_ms: u64,
    commands: Vec<Command>,
    counts: Counts,
    ended: Ended,
    /// Those who wait for what the supervisor says of the log.
    log_requests: BTreeMap<u64, Answer<LogLevelList>>,
    started_ms: u64,
    /// What ports counted that were removed, as of the last answer about ports.
    removed: (PortTotals, PortTotals),
    /// What flow caches have done, as of then.
    caches: CacheFigures,
    /// Those who want statistics, and what goes with them.
    stats_wanted: StatsWanted,
    /// The access lists in force.
    book: Book,
    /// Parts of the text of access lists that the supervisor is telling us.
    incoming: Vec<u8>,
    /// A change that the supervisor has not kept yet.
    pending: Option<Pending>,
    /// The request by which the supervisor gives a port another name: until it is answered, access lists are not changed.
    renaming: Option<u64>,
    /// Changes in force that the switch has not confirmed and cannot now.
    unconfirmed: Vec<Unconfirmed>,
    mirroring: Mirroring,
    /// It was said that there is no memory for a table of connections.
    lacks_table: bool,
    /// Something else decides: packets and flows are none of ours.
    only_watches: bool,
    /// The ports that it has.
    others_ports: Vec<String>,
    /// How it stands.
    others: Option<OpenVswitch>,
}

impl Core {
    /// It can tell what VMs do.
    pub fn with_view(self, host_view: Option<HostView>) -> Self {
        Self { host_view, ..self }
    }

    /// There is room for so many connections; and in the data plane, if it is a device, for so many rules. It may be behind a bus.
    pub fn with_room(self, connections: usize, rules: Option<usize>, bus: Option<Bus>) -> Self {
        let limits = Limits { connections, data_plane_caches: rules.is_some(), ..Limits::default() };
        Self { policy: Learning::new(limits), device: rules.map(|rules| OfDevice::new(rules, bus)), ..self }
    }

    pub fn new(now_ms: u64) -> Self {
        Self {
            policy: Learning::default(),
            device: None,
            host_view: None,
            attached: false,
            reconciled: false,
            configs: BTreeMap::new(),
            refused: BTreeMap::new(),
            faults: BTreeMap::new(),
            infos: BTreeMap::new(),
            questions: BTreeMap::new(),
            counting: VecDeque::new(),
            listings: VecDeque::new(),
            flushes: VecDeque::new(),
            walks: VecDeque::new(),
            set_changes: VecDeque::new(),
            requests: BTreeMap::new(),
            uplink_requests: BTreeMap::new(),
            cpu_requests: BTreeMap::new(),
            upgrades: Upgrades::new(),
            engine_lists: EngineLists::new(),
            places: BTreeMap::new(),
            uplinks: Uplinks::new(),
            devices: BTreeMap::new(),
            stuck_uplinks: StuckUplinks::default(),
            spending: Spending::default(),
            owners: Owners::new(),
            health: Health::default(),
            next_number: 0,
            next_tick_ms: None,
            ageing_due: false,
            congested: false,
            last_put_right_ms: 0,
            commands: Vec::new(),
            counts: Counts::default(),
            ended: Ended::default(),
            log_requests: BTreeMap::new(),
            started_ms: now_ms,
            removed: Default::default(),
            caches: CacheFigures::default(),
            stats_wanted: StatsWanted::default(),
            book: Book::default(),
            incoming: Vec::new(),
            pending: None,
            renaming: None,
            unconfirmed: Vec::new(),
            mirroring: Mirroring::default(),
            lacks_table: false,
            only_watches: false,
            others_ports: Vec::new(),
            others: None,
        }
    }

    /// Whether something else decides what becomes of packets.
    pub fn leave_deciding(&mut self, to_others: bool) {
        self.only_watches = to_others;
    }

    /// Which ports has what decides instead.
    pub fn others_have(&mut self, ports: Vec<String>) {
        self.others_ports = ports;
    }

    /// How what decides instead stands.
    pub fn others_are(&mut self, standing: OpenVswitch) {
        self.others = Some(standing);
    }

    /// What is to be sent, in order; leaves nothing behind.
    pub fn commands(&mut self) -> Vec<Command> {
        self.say_to_device();
        std::mem::take(&mut self.commands)
    }

    /// When [`Event::Timer`] is due; `None` while nothing can age. 0: there is much to do, a part at a time.
    pub fn deadline_ms(&self) -> Option<u64> {
        let looks = self.device.as_ref().is_some_and(OfDevice::is_looking).into();
        let of_clients = [self.counting.len(), self.listings.len(), self.walks.len(), self.flushes.len(), looks];
        if of_clients.iter().sum::<usize>() + self.set_changes.len() > 0 {
            return Some(0);
        }
        let put_right_ms = self.put_right_ms();
        let looks = self.stuck_uplinks.deadline_ms().into_iter().chain(self.health.deadline_ms());
        let looks = looks.chain(self.spending.deadline_ms());
        self.next_tick_ms.into_iter().chain(looks).chain(put_right_ms).min()
    }

    /// When flows are put right: where many messages wait for the switch, not at once, but now and then all the same. Among what is put
    /// right are flows of an earlier control that the lists in force deny.
    fn put_right_ms(&self) -> Option<u64> {
        let held_back = if self.congested { CONGESTED_MS } else { 0 };
        self.policy.put_right_ms().map(|at| at.max(self.last_put_right_ms.saturating_add(held_back)))
    }

    /// How many messages wait for room in the channel to the switch.
    pub fn set_unsent(&mut self, messages: usize) {
        self.congested = messages > CONGESTED;
    }

    pub fn count_malformed(&mut self, messages: u64) {
        self.counts.malformed += messages;
    }

    /// A batch of the switch's messages. All misses in it are answered before any flow changes (see [`Effects`]).
    pub fn hear_switch(&mut self, messages: impl Iterator<Item = ToControl>, now_ms: u64) {
        let mut out = Effects::default();
        for message in messages {
            self.device.iter_mut().for_each(|device| device.bus.came(&message));
            self.switch_says(message, now_ms, &mut out);
        }
        self.carry_out(out, now_ms);
    }

    pub fn handle(&mut self, event: Event, now_ms: u64) {
        let mut out = Effects::default();
        match event {
            Event::SwitchAttached => {
                self.drop_questions(now_ms);
                (self.attached, self.reconciled) = (true, false);
                self.infos.clear();
                self.health = Health::default();
                self.policy.attached();
                self.begin_larger_table();
            }
            Event::SwitchGone => {
                self.attached = false;
                self.infos.clear();
                self.drop_questions(now_ms);
            }
            Event::Supervisor(message) => self.supervisor_says(message, now_ms, &mut out),
            Event::Call(call) => self.call(call, now_ms),
            Event::Timer => self.tick(now_ms, &mut out),
        }
        self.carry_out(out, now_ms);
    }

    fn carry_out(&mut self, out: Effects, now_ms: u64) {
        if self.attached && !self.only_watches {
            for change in out.changes {
                let message = match change {
                    Change::Put(spec) => {
                        self.counts.flows_put += 1;
                        FromControl::PutFlow(spec)
                    }
                    Change::Clear => FromControl::ClearFlows,
                    Change::Del(key, mask) => {
                        self.counts.flows_deleted += 1;
                        FromControl::DelFlow { key, mask, tell: self.ended.is_asked_for(now_ms) }
                    }
                };
                self.commands.push(Command::Switch(message.into()));
            }
            for r in out.resumes {
                self.commands.push(Command::Switch(FromControl::Resume { id: r.id, actions: r.actions }.into()));
            }
        }
        let interval = if self.policy.flow_count() > MANY_FLOWS { LOOK_MANY_MS } else { LOOK_MS };
        if self.policy.is_idle() {
            self.next_tick_ms = None;
        } else if self.next_tick_ms.is_none() {
            self.next_tick_ms = Some(now_ms.saturating_add(interval));
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Effects) {
        let is_due = self.next_tick_ms.take_if(|at| *at <= now_ms).is_some();
        self.watch_uplinks(is_due, now_ms);
        self.watch_spending(now_ms);
        self.look_at_health(now_ms);
        self.count_some();
        self.list_some();
        if !self.only_watches {
            self.walk_some(now_ms, out);
        }
        self.flush_some(now_ms, out);
        self.change_sets(now_ms);
        self.look_at_marks(is_due, now_ms);
        if self.put_right_ms().is_some_and(|at| at <= now_ms) {
            self.last_put_right_ms = now_ms;
            self.policy.put_right(now_ms, out);
            self.look_whether_reconciled(now_ms);
        }
        if !is_due {
            return;
        }
        self.look_at_owners(now_ms);
        if !self.attached || !self.policy.has_flows() {
            self.policy.tick(now_ms, out);
            return;
        }
        self.ageing_due = true;
        // While flows are compared that an earlier control left behind, nothing is to be said of them.
        if self.reconciled && !self.questions.values().any(|q| matches!(q, Question::Statistics { .. })) {
            self.ask_statistics(false);
        }
    }

    fn switch_says(&mut self, message: ToControl, now_ms: u64, out: &mut Effects) {
        match message {
            ToControl::Hello => {
                tracing::info!("the switch is connected; it has {}", counted(self.infos.len() as u64, "port"));
                if !self.unconfirmed.is_empty() {
                    self.confirm(now_ms);
                }
                if self.only_watches {
                    self.reconciled = true;
                } else {
                    self.ask_statistics(true);
                }
            }
            // No flow of this policy has anything copied.
            ToControl::Upcall(UpcallPacket { copy: Some(_), .. }) => {}
            ToControl::Ended(flow) => self.ended.keep(*flow, now_ms),
            ToControl::Upcall(upcall) => self.upcall(&upcall, now_ms, out),
            ToControl::Port(port) => self.port_is(port, now_ms, out),
            ToControl::PortGone(id) => {
                self.infos.remove(&id);
                self.health.forget(id);
                self.follow_mirrors(now_ms, out);
                self.policy.port_gone(id, now_ms, out);
            }
            ToControl::Reply { request, last, reply } => self.switch_answers(request, last, reply, now_ms, out),
        }
    }

    fn upcall(&mut self, missed: &UpcallPacket, now_ms: u64, out: &mut Effects) {
        self.counts.misses += 1;
        if self.only_watches {
            return;
        }
        // The supervisor says what a port is told before it has the switch make it, by another channel: until then nothing passes.
        if !self.configs.is_empty() && !self.configs.contains_key(&missed.key.port()) {
            return out.resumes.push(Resume { id: missed.id, actions: Vec::new() });
        }
        let headers = Headers { bytes: &missed.header, frame_len: missed.frame_len as usize };
        self.policy.packet(missed.id, &missed.key, headers, now_ms, out);
        self.owner_sends(&missed.key);
    }

    fn port_is(&mut self, mut port: PortInfo, now_ms: u64, out: &mut Effects) {
        self.name_anew(&mut port);
        tracing::debug!("port {}: {:?}", port.name, port.state());
        // Lists first: they go by the port's name.
        let (id, up) = (port.id, port.state() == PortState::Up);
        if self.health.port_is(&port, now_ms) && !self.uplinks.contains_key(&id) {
            tracing::info!("port {}: up", port.name);
        }
        if let Some(line) = self.health.move_news(&port, now_ms) {
            tracing::info!("port {}: {line}", port.name);
        }
        let waited = |before: &PortInfo| before.state() == PortState::Waiting && port.state() != PortState::Waiting;
        if self.infos.get(&id).is_some_and(waited) {
            self.refused.remove(&id);
        }
        self.infos.insert(id, port);
        self.set_lists(id);
        self.follow_mirrors(now_ms, out);
        self.policy.port(id, up, now_ms, out);
    }

    fn supervisor_says(&mut self, message: SupervisorToControl, now_ms: u64, out: &mut Effects) {
        match message {
            SupervisorToControl::Ports(ports) => {
                let new: BTreeMap<_, _> = ports.into_iter().map(|p| (p.id, p)).collect();
                // A port that the switch reported but this list does not have yet is not gone.
                for id in std::mem::take(&mut self.configs).into_keys().filter(|id| !new.contains_key(id)) {
                    self.policy.port_gone(id, now_ms, out);
                    self.spending.set_bounded(id, [false; 2], now_ms);
                }
                self.refused.retain(|id, _| new.contains_key(id));
                self.faults.retain(|id, _| new.contains_key(id));
                self.configs = new;
                self.look_at_owners(now_ms);
                self.follow_mirrors(now_ms, out);
            }
            SupervisorToControl::Reply { request, result } => {
                self.port_reply(request, result, now_ms);
            }
            SupervisorToControl::Settings { port, text } => self.settings_are(port, text, now_ms, out),
            SupervisorToControl::Uplinks(ports) => {
                let vlans = |bytes: Vec<u8>| Vlans::from_bytes(&bytes);
                self.uplinks = ports.into_iter().map(|(id, bytes)| (id, bytes.map(vlans))).collect();
                // The switch may have told of one before the supervisor said what it is.
                let ids: Vec<_> = self.infos.keys().copied().collect();
                ids.into_iter().for_each(|id| self.set_lists(id));
                self.policy.set_uplinks(&self.uplinks, now_ms, out);
                self.follow_mirrors(now_ms, out);
            }
            SupervisorToControl::Devices(devices) => {
                self.devices = devices.into_iter().map(|device| (device.port, device)).collect();
            }
            SupervisorToControl::PeerRefused { port, reason } => drop(self.refused.insert(port, (reason, now_ms))),
            SupervisorToControl::SecondRefused { port, who } => self.health.second_refused(port, who, now_ms),
            SupervisorToControl::PortFault { port, fault: Some(fault) } => drop(self.faults.insert(port, fault)),
            SupervisorToControl::PortFault { port, fault: None } => drop(self.faults.remove(&port)),
            SupervisorToControl::UplinkReply { request, result } => self.uplink_reply(request, result, now_ms),
            SupervisorToControl::CpuTimes { request, times, replaced, host } => {
                self.cpu_reply(request, times, (replaced, host), now_ms);
            }
            SupervisorToControl::CpuBounds(bounds) => self.spending.bounds_are(bounds),
            SupervisorToControl::Places(news) => news.into_iter().for_each(|one| one.heard_by(&mut self.places)),
            SupervisorToControl::LogLevel { request, run, control } => self.log_level_is(request, run, control),
            SupervisorToControl::Mirrors(mirrors) => self.mirrors_are(mirrors, now_ms, out),
            SupervisorToControl::MirrorReply { request, result } => self.mirror_reply(request, result, now_ms),
            SupervisorToControl::UpgradeReply { request, result } => self.upgrade_reply(request, result),
            SupervisorToControl::Engines { request, engines, set, near, near_to } => {
                self.engines_are(request, &engines, (set, near, near_to));
            }
            SupervisorToControl::Renamed { port, from, to } => self.renamed(port, &from, &to),
            SupervisorToControl::Forget(port) => self.policy.forget_addresses(port, now_ms, out),
            SupervisorToControl::Announce(uplink) => self.announce(uplink, now_ms),
            SupervisorToControl::Lists(part) => self.lists_are(&part, now_ms),
            SupervisorToControl::ListsKept(result) => self.lists_kept(result, now_ms),
            // Without a descriptor, or handled by the loop.
            SupervisorToControl::DatapathChannel
            | SupervisorToControl::LargerTable { .. }
            | SupervisorToControl::DmaCounters
            | SupervisorToControl::ApiSocket { .. }
            | SupervisorToControl::OvsSocket
            | SupervisorToControl::Shutdown => self.counts.malformed += 1,
        }
    }
}
