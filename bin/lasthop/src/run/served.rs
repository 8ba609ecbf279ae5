//! The sockets whose clients the process that decides serves, of the API and for Open vSwitch: the supervisor makes them and, where a file
//! is gone, makes another.

use super::handover::{Giver, Taker};
use super::presence::Presence;
use super::setup::ApiSocket;
use super::socket::{Listener, ListenerState};
use super::supervisor::Supervisor;
use lasthop_management_ipc::SupervisorToControl;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Wait between two attempts to make a socket anew.
const SOCKET_WAIT: Duration = Duration::from_secs(1);

/// Who the clients of a socket are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Serves {
    /// Of the API.
    Owners,
    /// Of the API, and may change nothing.
    Readers,
    /// Programs of Open vSwitch's.
    OpenVswitch,
}

impl Serves {
    /// Whose socket it is, at the beginning of a line.
    fn whose(self) -> &'static str {
        if self == Self::OpenVswitch { "Open vSwitch" } else { "API" }
    }

    /// What does not come through while it is away.
    fn what(self) -> &'static str {
        if self == Self::OpenVswitch { "program of Open vSwitch's" } else { "command" }
    }

    /// Hands another one, which travels along, to the process that serves it.
    fn message(self) -> SupervisorToControl {
        match self {
            Self::Owners => SupervisorToControl::ApiSocket { read_only: false },
            Self::Readers => SupervisorToControl::ApiSocket { read_only: true },
            Self::OpenVswitch => SupervisorToControl::OvsSocket,
        }
    }
}

/// A socket whose clients control, or what is in its place, serves.
#[derive(Debug)]
pub struct Served {
    socket: ApiSocket,
    listener: Listener,
    serves: Serves,
    /// Its file is gone: when to make another.
    again_at: Option<Instant>,
    complaint: Option<String>,
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServedState {
    socket: ApiSocket,
    listener: ListenerState,
    serves: Serves,
    is_gone: bool,
    complaint: Option<String>,
}

impl Served {
    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> ServedState {
        let Self { socket, listener, serves, again_at, complaint } = self;
        ServedState {
            socket: socket.clone(),
            listener: listener.hand_over(giver),
            serves: *serves,
            is_gone: again_at.is_some(),
            complaint: complaint.clone(),
        }
    }

    /// Goes on with it.
    pub fn resumed(state: ServedState, taker: &Taker) -> Result<Self, String> {
        let ServedState { socket, listener, serves, is_gone, complaint } = state;
        let again_at = is_gone.then(Instant::now);
        Ok(Self { socket, listener: Listener::resumed(listener, taker)?, serves, again_at, complaint })
    }

    /// Who its clients are.
    pub fn serves(&self) -> Serves {
        self.serves
    }

    /// Where its socket is.
    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// One that has just been made.
    pub fn new((socket, listener): (ApiSocket, Listener), serves: Serves) -> Self {
        Self { socket, listener, serves, again_at: None, complaint: None }
    }

    /// Has the kernel report what becomes of it.
    pub fn watched_by(&self, presence: &Presence) {
        presence.watch(&self.listener);
    }

    /// Makes another in its place, if that is due: its end for control.
    fn step(&mut self, presence: &Presence, now: Instant) -> Option<OwnedFd> {
        self.again_at.take_if(|at| *at <= now)?;
        let (path, whose) = (self.socket.path.display(), self.serves.whose());
        let made = self.socket.bind().and_then(|made| {
            let copy = made.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
            Ok((made, copy))
        });
        match made {
            Ok((made, copy)) => {
                info!("{whose}: {path} is there again");
                presence.watch(&made);
                (self.listener, self.complaint) = (made, None);
                Some(copy)
            }
            Err(e) => {
                let complaint = format!("{whose}: no {} reaches lasthop: {e}; trying again", self.serves.what());
                if self.complaint.as_ref() != Some(&complaint) {
                    warn!("{complaint}");
                    self.complaint = Some(complaint);
                }
                self.again_at = Some(now + SOCKET_WAIT);
                None
            }
        }
    }

    /// When [`Served::step`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.again_at
    }
}

impl AsFd for Served {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Supervisor {
    /// Looks whether sockets are where they were, if there is a reason to, and makes those anew that are not; ports make their own.
    pub(super) fn step_presence(&mut self, now: Instant) {
        if self.presence.is_due(&self.epoll, now) {
            for served in &mut self.served {
                if served.again_at.is_none() && !served.listener.is_in_place() {
                    let (path, whose) = (served.socket.path.display(), served.serves.whose());
                    warn!("{whose}: {path} was removed or replaced; making it anew");
                    served.again_at = Some(now);
                }
            }
            self.ports.values_mut().for_each(|port| port.look_for_socket(now));
        }
        for served in &mut self.served {
            if let Some(copy) = served.step(&self.presence, now) {
                self.control.send(served.serves.message(), Some(copy));
            }
        }
    }

    /// All of it at once: what is wrong is told before somebody is shown the ports.
    pub(super) fn look_after_sockets(&mut self, now: Instant) {
        self.step_presence(now);
        self.step_ports(now);
        self.tell_faults();
    }

    /// Tells control what keeps front-ends from ports, as far as that has changed.
    pub(super) fn tell_faults(&mut self) {
        // Most have none: what all have is looked at once, in their order, and not each looked up.
        let mut troubles = self.sessions.troubles().peekable();
        for (id, port) in &mut self.ports {
            while troubles.next_if(|(of, _)| of < id).is_some() {}
            let of_session = troubles.next_if(|(of, _)| of == id).map(|(_, trouble)| trouble);
            let trouble = of_session.or_else(|| self.port_threads.refused(*id));
            if let Some(fault) = port.fault_news(trouble) {
                self.control.send(SupervisorToControl::PortFault { port: port.config.id, fault }, None);
            }
        }
    }
}
