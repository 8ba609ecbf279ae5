//! All threads that move packets, and who commands them.

use crate::coalesce::Coalescing;
use crate::helper::Helpers;
use crate::owned_ring::OwnedRing;
use crate::port::{Letter, PortThread};
use lasthop_forward::{Datapath, Forwarder, PORT_CACHE_ENTRIES, Port};
use lasthop_ipc::SwitchSettings;
use lasthop_sys::hostview::HostView;
use lasthop_sys::{Epoll, PeerEvent, Prompter, Trigger};
use lasthop_types::{Level, PortId};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How packets are moved. What has a setting can be switched off alone; docs/scheduling.md says what has none.
#[derive(Debug)]
pub struct Settings {
    /// What the supervisor says of it.
    pub told: SwitchSettings,
    /// What is known of cores and VMs.
    pub view: Option<HostView>,
    /// Who gets helpers out of the idle class when they are in the way; without there are none.
    pub prompter: Option<Prompter>,
}

/// The threads. Used by one thread, the one that talks to front-ends.
#[derive(Debug)]
pub struct Workers {
    helpers: Arc<Helpers>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) ports: HashMap<PortId, Entry>,
    /// Ports whose threads have begun or ended, until somebody takes them out: the number of the one that there is, or 0, and the nanoseconds of processor
    /// time that those before it have used together.
    pub news: Vec<(PortId, i32, u64)>,
    /// Kicks of ports without a thread, by the port's number, and news of threads. What it reports is for [`Workers::woken`].
    pub kicks: Epoll,
    /// Looks whether such a port has packets.
    forwarder: Forwarder,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// `None`: it sleeps, or cores that poll have its rings.
    pub(crate) thread: Option<PortThread>,
    /// Its number, once it has said so.
    number: i32,
    /// What those before it have used.
    used_ns: u64,
    coalescing: Option<Arc<Coalescing>>,
    rings: Vec<Arc<OwnedRing>>,
    /// Kicks for nothing while it sleeps.
    vain: usize,
}

/// No port has that number.
const NEWS: u64 = u64::MAX;

impl Workers {
    /// Starts helpers, or pollers. All threads inherit the caller's signal mask, and those of ports its CPU affinity.
    pub fn start(datapath: &Arc<Datapath>, settings: Settings) -> io::Result<Self> {
        let helpers = Arc::new(Helpers::new(datapath.clone(), settings)?);
        let (threads, kicks, forwarder) =
            (helpers.start()?, Epoll::new()?, Forwarder::new(datapath.clone(), PORT_CACHE_ENTRIES));
        helpers.news.register(&kicks, NEWS)?;
        let all = helpers.clone();
        lasthop_lock::on_wait(Box::new(move |notice| all.boost(notice)));
        Ok(Self { helpers, threads, ports: HashMap::new(), news: Vec::new(), kicks, forwarder })
    }

    /// Has a port's vring, from which packets come, looked after. Without a kick descriptor it is polled. One that is looked after
    /// already is handed over.
    pub fn attach(&mut self, port: &Arc<Port>, queue: u16, kick: Option<PeerEvent>) {
        self.detach(port.id, queue);
        let owned = Arc::new(OwnedRing::new(port.clone(), queue, kick));
        self.ports.entry(port.id).or_default().rings.push(owned.clone());
        if !self.helpers.place(&owned) {
            self.tell(port.id, Letter::Attach(owned));
        }
    }

    /// The vring is not to be looked after any more. Its owner releases it soon; the queue's own lock says when a burst is
    /// over.
    pub fn detach(&mut self, port: PortId, queue: u16) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        // Nobody is waked for a ring that packets go to: no thread looks after one.
        let Some(at) = entry.rings.iter().position(|owned| owned.queue == queue) else { return };
        let gone = entry.rings.swap_remove(at);
        gone.owner.release();
        // Closing our copy is not enough: the front-end keeps one, and epoll goes by the file.
        gone.kick.iter().for_each(|kick| _ = self.kicks.delete(kick));
        self.tell(port, Letter::Detach { queue });
    }

    /// The port, whose rings are detached, is no more.
    pub fn remove(&mut self, port: PortId) {
        let thread = self.ports.remove(&port).and_then(|entry| entry.thread);
        thread.iter().for_each(|thread| _ = thread.mailbox.send(Letter::Stop));
    }

    /// Has the port's queues looked at without a kick: they were enabled, or had stalled and may go on.
    pub fn look(&mut self, port: PortId) {
        self.tell(port, Letter::Look);
    }

    /// Hears kicks of ports that sleep, and of threads that begin or end.
    pub fn woken(&mut self) {
        let mut ready = Vec::new();
        // What is left is reported again.
        let _ = self.kicks.wait(&mut ready, Some(Duration::ZERO));
        for (port, number, used_ns) in self.helpers.news.take() {
            // One that has ended is found by that it takes no letter.
            if used_ns > 0 {
                self.look(port);
            }
            let Some(entry) = self.ports.get_mut(&port) else { continue };
            entry.used_ns += used_ns;
            if number != 0 && entry.thread.is_some() {
                entry.number = number;
            }
            self.news.push((port, entry.number, entry.used_ns));
            if (number, used_ns) == (0, 0) && entry.thread.is_none() {
                self.wake(port);
            }
        }
        for port in ready.into_iter().filter(|token| *token != NEWS).map(|token| PortId(token as u32)) {
            let Some(entry) = self.ports.get_mut(&port).filter(|entry| entry.thread.is_none()) else { continue };
            entry.vain += 1;
            // Each ring's kick reports once what was there before. A guest that goes on for nothing does so at its own thread's expense.
            if entry.vain > entry.rings.len() || entry.rings.iter().any(|ring| is_filled(&mut self.forwarder, ring)) {
                self.wake(port);
            }
        }
    }

    /// Tells the port's thread. Without one the port sleeps: its rings' kicks are waited for here, and a thread is started if it has packets.
    fn tell(&mut self, port: PortId, letter: Letter) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        if entry.thread.as_ref().is_some_and(|thread| thread.mailbox.send(letter)) {
            return;
        }
        let (mut has_packets, kicks) = (false, &self.kicks);
        (entry.thread, entry.number, entry.vain) = (None, 0, 0);
        for ring in entry.rings.iter().filter(|ring| ring.owner.is_own()) {
            // One that cannot be waited for here is polled, or said to be there by the thread.
            has_packets |= ring.kick.as_ref().is_none_or(|kick| {
                let _ = kicks.delete(kick);
                kicks.add(kick, u64::from(port.0), Trigger::Edge).is_err()
            });
            // Behind that, so that a kick that comes now is heard.
            has_packets |= is_filled(&mut self.forwarder, ring);
        }
        if has_packets {
            self.wake(port);
        }
    }

    /// Starts a thread for the port.
    fn wake(&mut self, id: PortId) {
        let Some(Entry { thread, coalescing, rings, .. }) = self.ports.get_mut(&id) else { return };
        let Some(OwnedRing { port, .. }) = rings.first().map(|ring| &**ring) else { return };
        let own = coalescing.clone().map_or_else(|| Coalescing::new(self.helpers.clone()).map(Arc::new), Ok);
        let started = own.and_then(|own| {
            port.set_coalescing(coalescing.insert(own.clone()).clone());
            PortThread::start(port, &self.helpers, own)
        });
        match started {
            Ok(started) => {
                for ring in rings.iter().filter(|ring| ring.owner.is_own()) {
                    ring.kick.iter().for_each(|kick| _ = self.kicks.delete(kick));
                    started.mailbox.send(Letter::Attach(ring.clone()));
                }
                *thread = Some(started);
            }
            Err(error) => {
                coalescing.iter().for_each(|coalescing| coalescing.rest(port));
                // What there is waits until it has more.
                rings.iter().for_each(|ring| _ = self.forwarder.rearm_notifications(port, ring.queue, 0, || false));
                self.helpers.datapath.say(id, Level::Error, format!("no thread for this port: {error}"));
            }
        }
    }
}

/// Whether there are packets. If not, the guest is asked to kick.
fn is_filled(forwarder: &mut Forwarder, ring: &OwnedRing) -> bool {
    forwarder.rearm_notifications(&ring.port, ring.queue, 0, || true)
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.helpers.stop();
        let threads: Vec<_> = self.ports.drain().filter_map(|(_, entry)| entry.thread).collect();
        threads.iter().for_each(|thread| _ = thread.mailbox.send(Letter::Stop));
        threads.into_iter().for_each(|thread| drop(thread.thread.join()));
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
