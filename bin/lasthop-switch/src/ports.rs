//! Ports and the front-ends connected to them.

use lasthop_forward::{Forwarder, Port};
use lasthop_ipc::{PortConfig, PortInfo, PortState, PortVm, QueueInfo};
use lasthop_schedule::{Workers, policy::Batch};
use lasthop_sys::Epoll;
use lasthop_sys::hostview::{HostView, VmState};
use lasthop_vhostuser::{Session, SessionError, SessionEvent};
use std::sync::Arc;
use std::time::Instant;

/// A port with its connection.
#[derive(Debug)]
pub struct PortEntry {
    /// The data plane's part.
    pub port: Arc<Port>,
    /// The front-end, while one is connected.
    pub session: Option<Session>,
    transmit: Batch,
    last_error: Option<String>,
}

impl PortEntry {
    /// A port nobody is connected to.
    pub fn new(config: &PortConfig) -> Self {
        let port = Arc::new(Port::new(config.id, config.name.clone()));
        Self { port, session: None, transmit: Batch::new(config.tx_batch.0, config.tx_batch.1), last_error: None }
    }

    /// The front-end said something. An error ends the connection: call [`PortEntry::disconnect`].
    pub fn ready(
        &mut self,
        workers: &mut Workers,
        forwarder: &mut Forwarder,
        now_ms: u64,
    ) -> Result<bool, SessionError> {
        let Some(session) = &mut self.session else { return Ok(false) };
        let mut events = Vec::new();
        let result = session.ready(Instant::now(), &mut events);
        let handle = |changed, event| self.handle(event, workers, forwarder, now_ms) | changed;
        let changed = events.into_iter().fold(false, handle);
        result.map(|()| changed)
    }

    fn handle(&mut self, event: SessionEvent, workers: &mut Workers, forwarder: &mut Forwarder, now_ms: u64) -> bool {
        let port = &self.port;
        match event {
            SessionEvent::Kick { queue, fd } => {
                // The guest's buffers being there is no news to us: we look when we have something for it.
                if queue % 2 == 1 {
                    workers.attach(port, queue as u16, fd, self.transmit);
                }
                port.refresh();
                return false;
            }
            SessionEvent::Stopped { queue } => {
                workers.detach(port.id, queue as u16);
                port.refresh();
            }
            SessionEvent::Failed { queue, error } => {
                tracing::warn!(port = %port.name, queue, "ring not started: {error}");
                self.last_error = Some(format!("queue {queue}: {error}"));
                port.refresh();
            }
            SessionEvent::Changed => {
                port.refresh();
                workers.look(port.id);
            }
            SessionEvent::Announce { mac } => {
                if !forwarder.inject(port, &lasthop_frame::rarp(mac), now_ms) {
                    tracing::warn!(port = %port.name, %mac, "announcement not sent: too many packets wait for control");
                }
                return false;
            }
            SessionEvent::Mtu(mtu) => port.set_mtu(mtu),
            SessionEvent::Refused(error) => {
                tracing::warn!(port = %port.name, "refused: {error}");
                self.last_error = Some(error.to_string());
            }
        }
        true
    }

    /// Ends the connection, if there is one: rings stop, guest memory is unmapped.
    pub fn disconnect(&mut self, reason: Option<&SessionError>, workers: &mut Workers, epoll: &Epoll) -> bool {
        let Some(session) = self.session.take() else { return false };
        // The supervisor may hold its copy of the socket a moment longer, and epoll goes by the file.
        let _ = epoll.delete(&session);
        drop(session);
        for index in (1..self.port.queues.len()).step_by(2) {
            workers.detach(self.port.id, index as u16);
        }
        self.port.set_mtu(0);
        self.port.refresh();
        match reason {
            Some(SessionError::Closed) => tracing::info!(port = %self.port.name, "front-end disconnected"),
            Some(error) => {
                tracing::warn!(port = %self.port.name, "connection closed: {error}");
                self.last_error = Some(error.to_string());
            }
            None => {}
        }
        true
    }

    /// A ring broke under traffic: says so once, for the log and for `lasthop port list`.
    pub fn broke(&mut self, index: u16) {
        let Some(queue) = self.port.queues.get(usize::from(index)) else { return };
        if let Some(error) = queue.status().error {
            tracing::warn!(port = %self.port.name, queue = index, "ring stopped: {error}");
            self.last_error = Some(format!("queue {index}: {error}"));
        }
        self.port.refresh();
    }

    /// As control is told of it.
    pub fn info(&self, view: Option<&HostView>) -> PortInfo {
        let port = &self.port;
        let (from_guest, to_guest) = port.totals();
        let statuses: Vec<_> = port.queues.iter().map(|q| (q.index(), q.status())).collect();
        let queues = statuses.iter().filter(|(_, s)| s.size != 0).map(|(index, s)| QueueInfo {
            index: *index,
            size: s.size,
            packed: s.packed,
            enabled: s.started && s.enabled,
            error: s.error.map(|e| e.to_string()),
        });
        let broken = statuses.iter().find_map(|(i, s)| s.error.map(|e| format!("queue {i}: {e}")));
        let state = match (&self.session, broken) {
            (None, _) => PortState::Waiting,
            (Some(_), Some(reason)) => PortState::Broken(reason),
            (Some(_), None) if port.is_up() => PortState::Up,
            (Some(_), None) => PortState::Connected,
        };
        let vm = match port.vm().filter(|_| self.session.is_some()).and_then(|vm| view?.vm(vm)) {
            None => PortVm::Unknown,
            Some(VmState::Running { core }) => PortVm::Running { core },
            Some(VmState::Blocked { .. }) => PortVm::Blocked,
        };
        let memory = self.session.as_ref().map(|s| s.memory().clone()).unwrap_or_default();
        PortInfo {
            id: port.id,
            name: port.name.clone(),
            state,
            features: self.session.as_ref().map_or(0, |s| s.features().bits()),
            protocol_features: self.session.as_ref().map_or(0, |s| s.protocol_features().bits()),
            mtu: port.mtu(),
            memory_bytes: memory.total_bytes(),
            memory_regions: memory.regions().count() as u32,
            last_error: self.last_error.clone(),
            queues: queues.collect(),
            from_guest,
            to_guest,
            waiting: port.misses.len() as u64,
            vm,
        }
    }
}
