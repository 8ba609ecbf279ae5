//! The session processes: one for each port, uplinks' included, which speaks vhost-user with that port's front-end. It is started
//! with the port, stays while front-ends come and go, and is started again when it ends.

mod handed;
mod renewed;

use super::child::{Child, Ended};
use super::closing::Closing;
use super::supervisor::Supervisor;
pub use handed::SessionsState;
use lasthop_ipc::Channel;
use lasthop_session_ipc::{Bounds, LONGEST_MESSAGE, SessionToSupervisor, Step, SupervisorToSession};
use lasthop_sys::{Aside, Epoll, prepare_to_drop_aside};
use lasthop_types::PortId;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Channels to session processes: this plus the port's number; and their ends.
const CHANNELS: u64 = 6 << 32;
const PIDS: u64 = 7 << 32;
/// Tokens of session processes begin here.
pub const TOKENS: u64 = CHANNELS;
/// For a session process that hangs the next front-end's greeting waits, and a move to another host: it is looked at so much more seldom than the switch
/// is. Not while the guest has an IOMMU of its own: then the process is asked for each page, and all traffic of the port waits for it.
const SELDOM: u32 = 4;

/// The session process of one port.
#[derive(Debug)]
struct Session {
    name: String,
    child: Child<SupervisorToSession, SessionToSupervisor>,
    /// Ours of the switch's end of the channel that the connection has, so that the switch's is never the last one.
    copy: Option<OwnedFd>,
    /// The same of the channel to a switch that the port goes over to.
    next: Option<OwnedFd>,
    /// Where the VM behind the connection is in the host view.
    vm: Option<u32>,
    /// Where copies are let go of: what lies in them unread is closed with them.
    aside: Arc<Aside>,
    /// Another program is to take its place once no front-end is connected.
    outlived: bool,
    /// The program of the present process, until the other has come up: if that does not, this one goes on.
    before: Option<OwnedFd>,
}

/// All of them, by their ports' numbers.
#[derive(Debug)]
pub struct Sessions {
    program: PathBuf,
    watchdog: Option<Duration>,
    all: BTreeMap<u32, Session>,
    /// Ports whose front-ends may have more, or less, than without settings.
    bounds: BTreeMap<u32, Bounds>,
    /// Front-ends wait, for another switch takes over.
    waits: bool,
}

impl Sessions {
    /// None yet.
    pub fn new(program: PathBuf, watchdog: Option<Duration>) -> Self {
        if let Err(e) = prepare_to_drop_aside() {
            warn!(
                "no thread can be started ({e}), and what front-ends leave behind is closed only if one can be had just then"
            );
        }
        Self { program, watchdog, all: BTreeMap::new(), bounds: BTreeMap::new(), waits: false }
    }

    /// There is this port: its process is started in the next step.
    pub fn add(&mut self, port: PortId, name: &str) {
        let id = u64::from(port.0);
        let (program, watchdog) = (self.program.clone(), self.limit(false));
        let child = Child::new(&process(name), program, arguments(name), CHANNELS + id, PIDS + id);
        let child = child.with_watchdog(watchdog, Duration::ZERO).with_messages_of(LONGEST_MESSAGE);
        let (name, aside) = (name.to_owned(), Aside::new(name));
        let (copy, next, vm, outlived, before) = Default::default();
        self.all.insert(port.0, Session { name, child, copy, next, vm, aside, outlived, before });
    }

    /// Within which it is to be found out that a session process hangs, if that is to be found out.
    fn limit(&self, translates: bool) -> Option<Duration> {
        self.watchdog.map(|limit| if translates { limit } else { limit * SELDOM })
    }

    /// The port has another name: so has its next process. This one, which only its threads' names tell, goes on.
    pub fn rename(&mut self, port: PortId, name: &str) {
        if let Some(session) = self.all.get_mut(&port.0) {
            name.clone_into(&mut session.name);
            session.child.rename(&process(name));
            session.child.set_arguments(arguments(name));
        }
    }

    /// What the port's front-end may have, now and in connections to come.
    pub fn set_bounds(&mut self, port: PortId, bounds: Bounds) {
        if self.bounds.insert(port.0, bounds).unwrap_or_default() != bounds
            && let Some(session) = self.all.get_mut(&port.0)
        {
            session.child.send(SupervisorToSession::Bounds(bounds), None);
        }
    }

    /// There is no such port any more.
    pub fn forget(&mut self, port: PortId) {
        self.bounds.remove(&port.0);
        if let Some(mut session) = self.all.remove(&port.0) {
            session.part();
            session.child.kill();
            // One that is stuck in a close(2) does not end, and dropping it waits for that. Without a thread it is done here.
            let session = Closing::new(session);
            let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(session));
        }
    }

    /// Why the port has no process that a front-end could be handed to, if that is not as it should be.
    pub fn trouble(&self, port: PortId) -> Option<String> {
        self.all.get(&port.0)?.child.trouble()
    }

    /// The same of all that have such trouble, in the order of their ports.
    pub fn troubles(&self) -> impl Iterator<Item = (u32, String)> {
        self.all.iter().filter_map(|(id, session)| Some((*id, session.child.trouble()?)))
    }

    /// Whether a front-end can be handed to this port's process.
    pub fn is_up(&self, port: PortId) -> bool {
        let is_up = |session: &Session| session.child.is_ready() && !session.aside.is_stuck();
        !self.waits && self.all.get(&port.0).is_some_and(is_up)
    }

    /// Hands a front-end's connection to the port's process. What comes back is the switch's end of the channel between the two.
    pub fn connect(&mut self, port: PortId, connection: OwnedFd) -> io::Result<OwnedFd> {
        let session = self.all.get_mut(&port.0).ok_or(io::ErrorKind::NotFound)?;
        let (for_switch, for_session) = Channel::<(), ()>::pair().map_err(io::Error::other)?;
        session.part();
        session.vm = None;
        session.copy = Some(for_switch.try_clone()?);
        if let Some(bounds) = self.bounds.get(&port.0).filter(|bounds| **bounds != Bounds::default()) {
            // The process may be another than the one that was told.
            session.child.send(SupervisorToSession::Bounds(*bounds), None);
        }
        session.child.send(SupervisorToSession::Switch, Some(for_session));
        session.child.send(SupervisorToSession::Connection, Some(connection));
        Ok(for_switch)
    }

    /// Where the VM behind the port's connection is in the host view.
    pub fn set_vm(&mut self, port: PortId, vm: Option<u32>) {
        if let Some(session) = self.all.get_mut(&port.0) {
            session.vm = vm;
        }
    }

    /// Whether front-ends are to wait until another switch has taken over.
    pub fn wait(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Ports with a front-end.
    pub fn connected(&self) -> impl Iterator<Item = u32> {
        self.all.iter().filter(|(_, session)| session.copy.is_some() && session.child.is_ready()).map(|(id, _)| *id)
    }

    /// Has the port's process tell another switch of its connection. What comes back is that switch's end of the channel between the two, and where the
    /// VM is in the host view.
    pub fn prepare(&mut self, port: u32) -> io::Result<(OwnedFd, Option<u32>)> {
        let session = self.all.get_mut(&port).ok_or(io::ErrorKind::NotFound)?;
        let (for_switch, for_session) = Channel::<(), ()>::pair().map_err(io::Error::other)?;
        session.next = Some(for_switch.try_clone()?);
        session.child.send(SupervisorToSession::Move(Step::Prepare), Some(for_session));
        Ok((for_switch, session.vm))
    }

    /// Has the port's process take a further step.
    pub fn take_step(&mut self, port: u32, step: Step) {
        if let Some(session) = self.all.get_mut(&port) {
            session.child.send(SupervisorToSession::Move(step), None);
        }
    }

    /// The port has gone over, or not: the channel to the switch that it does not have is let go of.
    pub fn moved(&mut self, port: u32, gone_over: bool) {
        let Some(session) = self.all.get_mut(&port) else { return };
        if gone_over {
            session.part();
            session.copy = session.next.take();
        } else if let Some(next) = session.next.take() {
            session.let_go(next);
        }
    }

    /// The switch says that the port's connection has ended.
    pub fn connection_closed(&mut self, port: PortId) {
        if let Some(session) = self.all.get_mut(&port.0) {
            session.part();
            session.make_way_if_outlived();
        }
    }

    /// The switch is ending, and every connection with it.
    pub fn switch_gone(&mut self) {
        self.all.values_mut().for_each(Session::part);
    }

    /// When [`Supervisor::step_sessions`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.all.values().filter_map(|session| session.child.deadline()).min()
    }

    /// Numbers of the processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.all.values().filter_map(|session| session.child.pid())
    }

    /// The same, with the numbers of their ports.
    pub fn pids_by_port(&self) -> impl Iterator<Item = (u32, u32)> {
        self.all.iter().filter_map(|(port, session)| Some((*port, session.child.pid()?)))
    }

    /// Sends what waits.
    pub fn flush(&mut self, epoll: &Epoll) {
        self.all.values_mut().for_each(|session| session.child.flush(epoll));
    }

    /// Ends all of them, at once.
    pub fn kill(&mut self) {
        self.all.values().for_each(|session| session.child.kill());
    }
}

impl Session {
    fn part(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.let_go(copy);
        }
    }

    fn let_go(&self, copy: OwnedFd) {
        let _ = rustix::net::shutdown(&copy, rustix::net::Shutdown::Both);
        self.aside.drop_aside(Closing::new(copy));
    }
}

fn arguments(port: &str) -> Vec<String> {
    ["--supervisor-fd", "3", "--port", port].map(String::from).to_vec()
}

/// What it is called where it is told how often processes were replaced.
pub fn process(port: &str) -> String {
    format!("session {port}")
}

impl Supervisor {
    /// Starts those that are due, ends those that hang, and sends what waits.
    pub(super) fn step_sessions(&mut self, now: Instant) {
        let (mut given_up, seldom) = (Vec::new(), self.sessions.limit(false));
        for (id, session) in &mut self.sessions.all {
            session.fall_back();
            let child = &mut session.child;
            child.check_hang(now);
            if let Some(hung) = child.kill_if_hung(now) {
                warn!("{} hangs: it {}; replacing it", child.name(), hung.how);
            }
            given_up.extend(child.give_up(&self.epoll, now).map(|ended| (*id, ended)));
            if child.is_due(now) {
                // Nobody is connected to the new one.
                seldom.iter().for_each(|limit| child.set_limit(*limit, now));
                if let Err(e) = child.start(&self.epoll, Vec::new()) {
                    child.cannot_start(format!("cannot start {}: {e}", child.name()), now);
                }
            }
            child.flush(&self.epoll);
        }
        given_up.into_iter().for_each(|(id, ended)| self.session_ended(id, &ended, now));
    }

    /// An event of a session process's.
    pub(super) fn session_event(&mut self, token: u64, now: Instant) {
        let id = token as u32;
        let limits = [false, true].map(|translates| self.sessions.limit(translates));
        let Some(Session { child, before, .. }) = self.sessions.all.get_mut(&id) else { return };
        let (mut steps, mut stays) = (Vec::new(), None);
        for message in child.receive(&self.epoll, now) {
            match message {
                SessionToSupervisor::StaysBehind(why) => stays = Some(why),
                SessionToSupervisor::Moved(step, done) => steps.push((step, done)),
                SessionToSupervisor::Ready => {
                    *before = None;
                    child.set_ready();
                }
                SessionToSupervisor::Translates(translates) => {
                    limits[usize::from(translates)].iter().for_each(|limit| child.set_limit(*limit, now));
                }
            }
        }
        let ended = if token >= PIDS { child.reap(&self.epoll, now) } else { None };
        steps.into_iter().for_each(|(step, done)| self.port_moved(id, step, done));
        if let Some(why) = stays {
            self.port_stays_behind(id, &why);
        }
        if let Some(ended) = ended {
            self.session_ended(id, &ended, now);
        }
    }

    /// The switch finds out by itself, and says that the connection has ended.
    fn session_ended(&mut self, id: u32, ended: &Ended, now: Instant) {
        let Some(session) = self.sessions.all.get(&id) else { return };
        if ended.planned {
            info!("{}; its new program takes its place", ended.what);
        } else {
            self.replaced.note(&process(&session.name), &ended.why, now);
            warn!("{}; {}", ended.what, ended.remedy());
        }
        self.port_cannot_move(id);
    }
}
