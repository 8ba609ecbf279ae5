//! Ports and the front-ends connected to them.

use lasthop_connection::{Connection, End, Event};
use lasthop_forward::{Datapath, Forwarder, Port};
use lasthop_guestmem::Mapped;
use lasthop_ipc::{LastError, PortInfo, QueueInfo};
use lasthop_schedule::Workers;
use lasthop_sys::{Aside, Epoll};
use lasthop_types::{Level, PortId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A port with its connection.
#[derive(Debug)]
pub struct PortEntry {
    /// The data plane's part.
    pub port: Arc<Port>,
    /// The front-end, while one is connected.
    pub connection: Option<Connection>,
    /// Where what front-ends sent is let go of.
    pub aside: Arc<Aside>,
    /// What its front-ends have mapped, or had and is not unmapped yet.
    pub mapped: Arc<Mapped>,
    last_error: Option<LastError>,
    /// By which its lines come into the log.
    datapath: Arc<Datapath>,
}

/// Waits until bursts are over that may still follow flows, or count at ports, that were removed before: they end with their queues' locks. Those that
/// begin later look for what there is with the lock held. A burst has that of the queue from its guest to its end.
pub fn outlast_bursts(ports: &BTreeMap<PortId, PortEntry>) {
    let queues = ports.values().flat_map(|entry| entry.port.queues.iter().skip(1).step_by(2));
    queues.for_each(|queue| drop(queue.lock()));
}

impl PortEntry {
    /// A port nobody is connected to.
    pub fn new(id: PortId, name: String, datapath: &Arc<Datapath>) -> Self {
        let (aside, mapped, datapath) = (Aside::new(&name), Arc::default(), datapath.clone());
        Self { port: Arc::new(Port::new(id, name)), connection: None, aside, mapped, last_error: None, datapath }
    }

    /// The session process asks something. An error ends the connection: call [`PortEntry::disconnect`].
    pub fn ready(&mut self, workers: &mut Workers, forwarder: &mut Forwarder, now_ms: u64) -> Result<bool, End> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let (mut changed, mut events) = (false, Vec::new());
        // One at a time: others have their turn between this port's questions.
        let asked = connection.ready(Instant::now(), &mut events);
        // Before it is answered: a front-end that hears that its rings are enabled has its port up.
        for event in events.drain(..) {
            changed |= self.handle(event, workers, forwarder, now_ms);
        }
        asked?;
        if let Some(connection) = &mut self.connection {
            connection.settle(Instant::now(), &mut events)?;
        }
        for event in events {
            changed |= self.handle(event, workers, forwarder, now_ms);
        }
        Ok(changed)
    }

    fn handle(&mut self, event: Event, workers: &mut Workers, forwarder: &mut Forwarder, now_ms: u64) -> bool {
        let port = &self.port;
        match event {
            Event::Kick { queue, fd } => {
                // The guest's buffers being there is no news to us: we look when we have something for it.
                if queue % 2 == 1
                    && let Err(error) = workers.attach(port, queue as u16, fd)
                {
                    let line = format!("what comes from queue {queue} is not looked for: {error}");
                    self.datapath.say(port.id, Level::Error, line);
                }
                port.refresh();
                return false;
            }
            Event::Stopped { queue } => {
                workers.detach(port.id, queue as u16);
                port.refresh();
            }
            Event::Failed { queue, why } => {
                self.warn(format!("ring not started: {why} queue={queue}"));
                port.refresh();
                self.erred(format!("queue {queue}: {why}"), false);
            }
            Event::Changed => {
                port.refresh();
                workers.look(port.id);
            }
            Event::Announce(frame) => {
                if !forwarder.inject(port, &frame, now_ms) {
                    self.warn("announcement not sent: too many packets wait for control, or it is no frame".into());
                }
                return false;
            }
            Event::Mtu(mtu) => port.set_mtu(mtu),
            Event::Wrong { line, of_memory } => {
                self.warn(line.clone());
                self.erred(line, of_memory);
            }
        }
        true
    }

    /// Whether its session process has waited and is to be looked at.
    pub fn is_due(&self, now: Instant) -> bool {
        self.connection.as_ref().and_then(Connection::deadline).is_some_and(|deadline| deadline <= now)
    }

    /// Ends the connection, if there is one: rings stop, guest memory is unmapped.
    pub fn disconnect(&mut self, reason: Option<&End>, workers: &mut Workers, epoll: &Epoll) -> bool {
        let Some(connection) = self.connection.take() else { return false };
        // It is closed a moment later, and epoll goes by the file.
        let _ = epoll.delete(&connection);
        drop(connection);
        for index in (1..self.port.queues.len()).step_by(2) {
            workers.detach(self.port.id, index as u16);
        }
        self.port.set_mtu(0);
        self.port.refresh();
        // The supervisor is told, and writes to the log, of this as of the connection's beginning.
        if let Some(error) = reason.filter(|end| !end.is_closed()) {
            self.erred(error.to_string(), error.is_of_memory());
        }
        true
    }

    /// What `lasthop port list` is to show as the last error.
    pub fn erred(&mut self, line: String, of_memory: bool) {
        self.last_error = Some(LastError { line, of_memory });
    }

    /// Has a warning about the port written to the log, which its front-end or guest may have caused.
    pub fn warn(&self, line: String) {
        self.datapath.say(self.port.id, Level::Warn, line);
    }

    /// A ring broke under traffic: says so once, for the log and for `lasthop port list`.
    pub fn broke(&mut self, index: u16) {
        let Some(queue) = self.port.queues.get(usize::from(index)) else { return };
        if let Some(error) = queue.status().error {
            self.warn(format!("ring stopped: {error} queue={index}"));
            self.erred(format!("queue {index}: {error}"), false);
        }
        self.port.refresh();
    }

    /// As control is told of it.
    pub fn info(&self) -> PortInfo {
        let port = &self.port;
        let (from_guest, to_guest) = port.totals();
        let statuses: Vec<_> = port.queues.iter().map(|q| (q.index(), q.status())).collect();
        let queues = statuses.iter().filter(|(_, s)| s.size != 0).map(|(index, s)| QueueInfo {
            index: *index,
            size: s.size,
            packed: s.packed,
            enabled: s.started && s.enabled,
            blank: s.blank,
            error: s.error.map(|e| e.to_string()),
        });
        let broken = statuses.iter().find_map(|(i, s)| s.error.map(|e| format!("queue {i}: {e}")));
        let memory = self.connection.as_ref().map(|c| c.memory().clone()).unwrap_or_default();
        let (features, protocol_features) = self.connection.as_ref().map_or((0, 0), Connection::features);
        PortInfo {
            id: port.id,
            name: port.name.clone(),
            connected: self.connection.is_some(),
            up: port.is_up(),
            broken,
            features,
            protocol_features,
            mtu: port.mtu(),
            memory_bytes: memory.total_bytes(),
            memory_regions: memory.regions().count() as u32,
            translation: memory.table().map(|table| table.counts()),
            last_error: self.last_error.clone(),
            queues: queues.collect(),
            from_guest,
            to_guest,
            waiting: port.upcalls.len() as u64,
            vm: port.vm().filter(|_| self.connection.is_some()),
        }
    }
}
