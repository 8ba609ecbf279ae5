//! The control plane: one thread between the switch, the supervisor and the local API.
//!
//! | file | does |
//! |---|---|
//! | `link` | the channel to the supervisor: batches in, a bounded queue out |
//! | `rings` | the rings to the switch, in the same way |
//! | `core` | what is known and what follows from each message; no I/O |
//! | `view` | what is known, as the API shows it |
//! | `server` | Varlink: connections, limits, methods |
//! | `decider` | what decides in place of the learning switch, in a program that says so |
//! | this file | the loop that ties them together |
//!
//! Nothing polls: without flows or learned addresses there is no timer either, so an idle host sees no wake-up of
//! this process.

mod core;
mod decider;
mod lines;
mod link;
mod program;
mod rings;
mod server;
mod view;

use crate::core::{Command, Core, Event};
pub use decider::Decider;
use decider::Nobody;
use lasthop_api::Bus;
pub use lasthop_api::{LostOf, OpenVswitch, RatesOf, named};
use lasthop_ipc::{ChannelError, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_policy::CONNECTIONS;
pub use lasthop_policy::{ConnectionCursor, ConnectionStats, ConnectionView};
use lasthop_sys::Beat;
use lasthop_sys::hostview::HostView;
use link::{Link, LinkError};
pub use program::run_program;
use rings::SwitchLink;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// What the supervisor hands down.
#[derive(Debug)]
pub struct Descriptors {
    /// Our end of the supervisor's channel.
    pub supervisor: OwnedFd,
    /// The listening Unix socket of the local API.
    pub api: OwnedFd,
    /// Another, whose clients may change nothing.
    pub read_api: Option<OwnedFd>,
    /// What the host's cores and VMs do.
    pub host_view: Option<HostView>,
    /// How many connections there is room for.
    pub connections: usize,
    /// The data plane is a device, whose table has so many places: a cache of the flows.
    pub rules: Option<usize>,
    /// The bus that it would be behind.
    pub bus: Option<Bus>,
}

impl Descriptors {
    /// Takes those that are named on the command line, and gives others to `other`, which says whether it knows them. First thing in
    /// `main`: nothing else is open yet.
    pub fn take(mut args: impl Iterator<Item = String>, mut other: impl FnMut(&str, OwnedFd) -> bool) -> Option<Self> {
        let (mut supervisor, mut api, mut read_api) = (None, None, None);
        let (mut host_view, mut connections, mut rules, mut bus) = (None, CONNECTIONS, None, None);
        while let Some(name) = args.next() {
            if name == "--connections" {
                connections = args.next()?.parse().ok()?;
                continue;
            }
            if name == "--rules" {
                rules = Some(args.next()?.parse().ok()?);
                continue;
            }
            if name == "--bus" {
                bus = Some(args.next()?.parse().ok()?);
                continue;
            }
            let fd = args.next()?.parse().ok().and_then(lasthop_sys::inherited_fd)?;
            match name.as_str() {
                "--pulse-fd" => lasthop_sys::map_pulse(fd).ok()?,
                "--supervisor-fd" => supervisor = Some(fd),
                "--api-fd" => api = Some(fd),
                "--host-view-fd" => {
                    let mapped = HostView::map(fd);
                    host_view = mapped.inspect_err(|e| tracing::warn!("not known what VMs do: {e}")).ok();
                }
                "--read-api-fd" => read_api = Some(fd),
                name => other(name, fd).then_some(())?,
            }
        }
        Some(Self { supervisor: supervisor?, api: api?, read_api, host_view, connections, rules, bus })
    }
}

/// Why control ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No event loop.
    #[error("cannot start the event loop: {0}")]
    Runtime(std::io::Error),
    /// The listening socket is not one.
    #[error("API socket: {0}")]
    Api(std::io::Error),
    /// The supervisor's channel failed.
    #[error("channel to the supervisor: {0}")]
    Supervisor(LinkError),
    /// The switch has written what cannot be. There are new rings only for another control, or another switch.
    #[error("rings to the switch: {0}")]
    Switch(LinkError),
    /// What decides cannot begin.
    #[error("{0}")]
    Decider(std::io::Error),
}

/// Serves until the supervisor says so or is gone.
pub fn run(descriptors: Descriptors) -> Result<(), ControlError> {
    run_with(descriptors, || Ok(None::<Nobody>))
}

/// The same, with something else that decides, if it is given; made inside the event loop.
pub fn run_with<D: Decider>(
    descriptors: Descriptors,
    decider: impl FnOnce() -> std::io::Result<Option<D>>,
) -> Result<(), ControlError> {
    // This thread's, which is the only one that does anything.
    let beat = Arc::new(Beat::new());
    let (rests, works) = (beat.clone(), beat.clone());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().on_thread_park(move || rests.sleep()).on_thread_unpark(move || works.work());
    let runtime = runtime.build().map_err(ControlError::Runtime)?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let decider = decider().map_err(ControlError::Decider)?;
        serve(descriptors, &beat, decider).await
    }))
}

/// Milliseconds of the clock that policy and statistics use, CLOCK_MONOTONIC.
pub fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let millis = i128::from(now.tv_sec) * 1000 + i128::from(now.tv_nsec) / 1_000_000;
    u64::try_from(millis).unwrap_or(0)
}

type SupervisorLink = Link<ControlToSupervisor, SupervisorToControl>;

async fn serve<D: Decider>(given: Descriptors, beat: &Arc<Beat>, mut decider: Option<D>) -> Result<(), ControlError> {
    let mut supervisor = SupervisorLink::new(given.supervisor).map_err(ControlError::Supervisor)?;
    let mut switch: Option<SwitchLink> = None;
    let (calls, mut api) = mpsc::channel(server::MAX_WAITING_CALLS);
    let clients = server::Clients::new(beat.clone());
    let serve = |socket, read_only| server::start(socket, calls.clone(), clients.clone(), read_only);
    let mut readers = given.read_api.map(|socket| serve(socket, true)).transpose().map_err(ControlError::Api)?;
    let mut owners = Some(serve(given.api, false).map_err(ControlError::Api)?);
    let mut core = new_core(given.host_view, (given.connections, given.rules, given.bus), decider.is_some());
    supervisor.queue(ControlToSupervisor::Ready);

    let (mut from_supervisor, mut from_switch) = (Vec::new(), Vec::new());
    let mut turn = Turn::default();
    loop {
        beat.work();
        core.set_unsent(switch.as_ref().map_or(0, SwitchLink::unsent));
        // Whatever else there is to hear, what is due has its turn, a part of it at a time.
        if core.deadline_ms().is_some_and(|at| at <= now_ms()) {
            decider.iter_mut().for_each(|decider| core.walk_others(decider, now_ms()));
            core.handle(Event::Timer, now_ms());
            send(&mut core, decider.as_mut(), &mut supervisor, &mut switch);
            core.set_unsent(switch.as_ref().map_or(0, SwitchLink::unsent));
        }
        let timer = core.deadline_ms().map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        tokio::select! {
            biased;
            // First: where all are asked to end, that the switch has done so is no news.
            result = supervisor.pump(&mut from_supervisor) => {
                for (message, fd) in from_supervisor.drain(..) {
                    match (message, fd) {
                        (SupervisorToControl::Shutdown, _) => return Ok(()),
                        (SupervisorToControl::DatapathChannel, Some(fd)) => {
                            attach(fd, &mut switch, &mut decider, &mut core);
                        }
                        (SupervisorToControl::ApiSocket { read_only }, Some(fd)) => {
                            replace(if read_only { &mut readers } else { &mut owners }, serve(fd, read_only));
                        }
                        (SupervisorToControl::LargerTable { marks }, Some(fd)) => core.larger_table(marks, fd),
                        (SupervisorToControl::DmaCounters, Some(fd)) => core.dma_counters(fd),
                        (SupervisorToControl::OvsSocket, Some(fd)) => listen(&mut decider, fd),
                        (message, _) => hear_supervisor(&mut core, &mut decider, message, now_ms()),
                    }
                }
                match result {
                    Ok(()) => {}
                    Err(LinkError::Closed) => {
                        tracing::info!("the supervisor is gone");
                        return Ok(());
                    }
                    Err(e) => return Err(ControlError::Supervisor(e)),
                }
            }
            result = pump(&mut switch, &mut from_switch), if turn.is_switchs() => {
                turn.heard(from_switch.len());
                hear_switch(&mut core, &mut decider, from_switch.drain(..), now_ms());
                if let Err(e) = result {
                    lost(e, &mut switch, &mut decider, &mut core)?;
                }
            }
            Some(call) = api.recv(), if turn.is_clients() => hear_call(&mut core, &decider, turn.called(call)),
            () = decide(&mut decider) => turn = Turn::default(),
            () = sleep(timer) => {}
            // Who has had no turn for long had nothing to say. It comes second, so that clients' tasks have run and sockets have been looked at.
            () = tokio::task::yield_now(), if !turn.is_switchs() => turn = Turn::default(),
        }
        send(&mut core, decider.as_mut(), &mut supervisor, &mut switch);
    }
}

/// Another socket of the API is served in place of one.
fn replace(serves: &mut Option<AbortHandle>, new: std::io::Result<AbortHandle>) {
    match new {
        Ok(new) => serves.replace(new).iter().for_each(AbortHandle::abort),
        Err(e) => tracing::error!("new API socket: {e}"),
    }
}

/// Programs of what decides in our place connect to another socket.
fn listen<D: Decider>(decider: &mut Option<D>, socket: OwnedFd) {
    if let Some(decider) = decider {
        decider.listen(socket);
    }
}

/// Whose turn it is. The switch comes first, but who floods it with misses is not to keep others waiting: behind so many messages a call of the API is
/// heard, and behind that what decides in our place, before the switch is again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Anybody's; so many messages of the switch have been heard since others had theirs.
    Any(usize),
    /// Not the switch's.
    Others,
    /// Neither the switch's nor the API's.
    Deciders,
}

/// Messages of the switch that are heard before others have their turn: some milliseconds of work where access lists are long.
const HEARD: usize = 64;

impl Default for Turn {
    fn default() -> Self {
        Self::Any(0)
    }
}

impl Turn {
    fn is_switchs(self) -> bool {
        matches!(self, Self::Any(_))
    }

    fn is_clients(self) -> bool {
        self != Self::Deciders
    }

    fn heard(&mut self, messages: usize) {
        if let Self::Any(heard) = *self {
            let heard = heard + messages;
            *self = if heard < HEARD { Self::Any(heard) } else { Self::Others };
        }
    }

    fn called(&mut self, call: core::Call) -> Event {
        *self = if *self == Self::Others { Self::Deciders } else { *self };
        Event::Call(call)
    }
}

/// The rings to the switch are of no more use. An error: nor are we.
fn lost<D: Decider>(
    e: LinkError,
    switch: &mut Option<SwitchLink>,
    decider: &mut Option<D>,
    core: &mut Core,
) -> Result<(), ControlError> {
    if matches!(e, LinkError::Channel(ChannelError::Nonsense(_))) {
        return Err(ControlError::Switch(e));
    }
    tracing::warn!("rings to the switch: {e}; waiting for new ones");
    *switch = None;
    decider.iter_mut().for_each(|decider| decider.switch_is(false));
    core.handle(Event::SwitchGone, now_ms());
    Ok(())
}

/// There are new rings to the switch.
fn attach<D: Decider>(fd: OwnedFd, switch: &mut Option<SwitchLink>, decider: &mut Option<D>, core: &mut Core) {
    match SwitchLink::new(fd) {
        Ok(link) => {
            *switch = Some(link);
            decider.iter_mut().for_each(|decider| decider.switch_is(true));
            core.handle(Event::SwitchAttached, now_ms());
        }
        Err(e) => tracing::error!("new rings to the switch: {e}"),
    }
}

/// What is no answer to the decider is the core's to hear, too.
fn hear_switch<D: Decider>(
    core: &mut Core,
    decider: &mut Option<D>,
    messages: impl Iterator<Item = ToControl>,
    now: u64,
) {
    let others = |message: &ToControl| !decider.as_mut().is_some_and(|d| d.hear_switch(message, now));
    core.hear_switch(messages.filter(others), now);
}

fn hear_supervisor<D: Decider>(core: &mut Core, decider: &mut Option<D>, message: SupervisorToControl, now: u64) {
    if !decider.as_mut().is_some_and(|d| d.hear_supervisor(&message, now)) {
        core.handle(Event::Supervisor(message), now);
    }
}

/// A call goes by the ports and connections that the decider has now.
fn hear_call<D: Decider>(core: &mut Core, decider: &Option<D>, call: Event) {
    if let Some(decider) = decider {
        core.others_have(decider.ports());
        core.others_are(decider.standing(now_ms()));
    }
    match (call, decider) {
        (Event::Call(core::Call::ConnectionStats { answer }), Some(decider)) => {
            core.tell_conntrack(answer, decider.connection_stats());
        }
        (call, _) => core.handle(call, now_ms()),
    }
}

/// The learning switch's addresses and flows are not looked at where something else decides.
fn new_core(
    view: Option<HostView>,
    (connections, rules, bus): (usize, Option<usize>, Option<Bus>),
    only_watches: bool,
) -> Core {
    let mut core = Core::new(now_ms()).with_view(view).with_room(connections, rules, bus);
    core.leave_deciding(only_watches);
    core
}

/// Sends what follows from what was heard: at once when there is room; what is left goes when `pump` finds room.
fn send<D: Decider>(
    core: &mut Core,
    decider: Option<&mut D>,
    supervisor: &mut SupervisorLink,
    switch: &mut Option<SwitchLink>,
) {
    if let Some(decider) = decider {
        let (to_switch, to_supervisor) = decider.take(now_ms());
        to_supervisor.into_iter().for_each(|message| supervisor.queue(message));
        if let Some(link) = switch {
            to_switch.into_iter().for_each(|message| link.queue(message));
        }
    }
    for command in core.commands() {
        match command {
            Command::Supervisor(message) => supervisor.queue(message),
            Command::Switch(message) => {
                if let Some(link) = switch {
                    link.queue(*message);
                }
            }
        }
    }
    supervisor.flush();
    if let Some(link) = switch {
        link.flush();
    }
    core.count_malformed(supervisor.take_malformed());
}

async fn pump(switch: &mut Option<SwitchLink>, into: &mut Vec<ToControl>) -> Result<(), LinkError> {
    match switch {
        Some(link) => link.pump(into).await,
        None => std::future::pending().await,
    }
}

async fn decide<D: Decider>(decider: &mut Option<D>) {
    match decider {
        Some(decider) => decider.ready().await,
        None => std::future::pending().await,
    }
}

async fn sleep(timer: Option<Duration>) {
    match timer {
        // There is more to do at once, but first it is looked whether somebody has said something.
        Some(Duration::ZERO) => tokio::task::yield_now().await,
        Some(timer) => tokio::time::sleep(timer).await,
        None => std::future::pending().await,
    }
}
