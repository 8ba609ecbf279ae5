//! All threads that move packets, and who commands them.

use crate::coalesce::{Coalescing, NOBODY};
use crate::helper::Helpers;
use crate::owned_ring::OwnedRing;
use crate::policy::Hysteresis;
use crate::port::{Letter, PortThread};
use lasthop_forward::{Datapath, Port};
use lasthop_sys::hostview::HostView;
use lasthop_sys::{PeerEvent, Prompter};
use lasthop_types::PortId;
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// How packets are moved. What has a setting can be switched off alone; docs/scheduling.md says what has none.
#[derive(Debug)]
pub struct Settings {
    /// Cores that get a helper; none: no helpers. None of those that poll.
    pub helpers: Vec<usize>,
    /// Cores that do nothing but poll; if there are any they do the work of all ports that are not set to their own threads.
    pub poll: Vec<usize>,
    /// How long helpers look for more before they sleep.
    pub hysteresis: Hysteresis,
    /// What is known of cores and VMs.
    pub view: Option<HostView>,
    /// Who gets helpers out of the idle class when they are in the way; without there are none.
    pub prompter: Option<Prompter>,
    /// Helpers are threads like any others.
    pub not_idle: bool,
    /// Threads of ports may be in the control groups of their VMs.
    pub cgroup_accounting: bool,
    /// Transmit timers are started as figure 4.3 draws it.
    pub drawn_timer: bool,
}

/// The threads. Used by one thread, the one that talks to front-ends.
#[derive(Debug)]
pub struct Workers {
    helpers: Arc<Helpers>,
    threads: Vec<JoinHandle<()>>,
    ports: HashMap<PortId, Entry>,
    started: Vec<(PortId, i32)>,
}

#[derive(Debug)]
struct Entry {
    coalescing: Arc<Coalescing>,
    /// `None` while cores that poll have had all its rings.
    thread: Option<PortThread>,
    rings: Vec<Arc<OwnedRing>>,
}

impl Workers {
    /// Starts helpers, or pollers. All threads inherit the caller's signal mask, and those of ports its CPU affinity.
    pub fn start(datapath: &Arc<Datapath>, settings: Settings) -> io::Result<Self> {
        let helpers = Arc::new(Helpers::new(datapath.clone(), settings)?);
        let threads = helpers.start()?;
        let all = helpers.clone();
        lasthop_lock::on_wait(Box::new(move |notice| all.boost(notice)));
        Ok(Self { helpers, threads, ports: HashMap::new(), started: Vec::new() })
    }

    /// Has a port's vring, from which packets come, looked after. Without a kick descriptor it is polled. One that is looked after
    /// already is handed over. An error: there is no thread for the port, and nobody looks after it.
    pub fn attach(&mut self, port: &Arc<Port>, queue: u16, kick: Option<PeerEvent>) -> io::Result<()> {
        self.detach(port.id, queue);
        let entry = match self.ports.entry(port.id) {
            Occupied(entry) => entry.into_mut(),
            Vacant(place) => {
                let coalescing = Arc::new(Coalescing::new(self.helpers.clone())?);
                port.set_coalescing(coalescing.clone());
                place.insert(Entry { coalescing, thread: None, rings: Vec::new() })
            }
        };
        let owned = Arc::new(OwnedRing::new(port.clone(), queue, kick));
        let poller = self.helpers.place(&owned);
        if poller.is_none() {
            if entry.thread.is_none() {
                let thread = PortThread::start(port, &self.helpers, &entry.coalescing.timer)?;
                self.started.push((port.id, thread.id));
                entry.thread = Some(thread);
            }
            entry.thread.iter().for_each(|thread| thread.mailbox.send(Letter::Attach(owned.clone())));
        }
        // A thread that is there stays, and goes on waiting for the timer.
        let looks = poller.filter(|_| entry.thread.is_none()).unwrap_or(NOBODY);
        entry.coalescing.poller.store(looks, Relaxed);
        // What somebody held back meanwhile, or for whoever looked before, is not left to anybody.
        port.look_after_guest(true);
        entry.rings.push(owned);
        Ok(())
    }

    /// Threads of ports started since the last call.
    pub fn take_started(&mut self) -> Vec<(PortId, i32)> {
        std::mem::take(&mut self.started)
    }

    /// The vring is not to be looked after any more. Its owner releases it soon; the queue's own lock says when a burst is
    /// over.
    pub fn detach(&mut self, port: PortId, queue: u16) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        // Nobody is waked for a ring that packets go to: no thread looks after one.
        let gone = entry.rings.extract_if(.., |owned| owned.queue == queue).inspect(|owned| owned.owner.release());
        gone.flat_map(|_| &entry.thread).for_each(|thread| thread.mailbox.send(Letter::Detach { queue }));
    }

    /// The port is no more.
    pub fn remove(&mut self, port: PortId) {
        let thread = self.ports.remove(&port).and_then(|entry| entry.thread);
        thread.iter().for_each(|thread| thread.mailbox.send(Letter::Stop));
    }

    /// Has the port's queues looked at without a kick: they were enabled, or had stalled and may go on.
    pub fn look(&self, port: PortId) {
        let thread = self.ports.get(&port).and_then(|entry| entry.thread.as_ref());
        thread.iter().for_each(|thread| thread.mailbox.send(Letter::Look));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.helpers.stop();
        for thread in self.ports.drain().filter_map(|(_, entry)| entry.thread) {
            thread.mailbox.send(Letter::Stop);
            self.threads.push(thread.thread);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
