//! All threads that move packets, and who commands them.

use crate::coalesce::{Coalescing, NOBODY};
use crate::helper::Helpers;
use crate::mailbox::Mailbox;
use crate::owned_ring::OwnedRing;
use crate::port::{Letter, Server};
use lasthop_forward::{Datapath, Port};
use lasthop_ipc::SwitchSettings;
use lasthop_sys::hostview::HostView;
use lasthop_sys::{PeerEvent, Prompter, Watches};
use lasthop_types::PortId;
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;

/// How packets are moved. What has a setting can be switched off alone; docs/scheduling.md says what has none.
#[derive(Debug)]
pub struct Settings {
    /// What the supervisor says of it.
    pub told: SwitchSettings,
    /// What is known of cores and VMs.
    pub view: Option<HostView>,
    /// Who gets helpers out of the idle class when they are in the way; without there are none.
    pub prompter: Option<Prompter>,
    /// By which silent ports are waited for, as many as there is room for.
    pub watches: Watches,
}

/// The threads. Used by one thread, the one that talks to front-ends.
#[derive(Debug)]
pub struct Workers {
    pub(crate) helpers: Arc<Helpers>,
    pub(crate) ports: HashMap<PortId, Entry>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) coalescing: Arc<Coalescing>,
    /// Its thread's, or that of the one to come. `None` while cores that poll have had all its rings from the first.
    pub(crate) mailbox: Option<Arc<Mailbox<Letter>>>,
    /// With the core that polls each, if one does.
    rings: Vec<(Arc<OwnedRing>, Option<usize>)>,
}

impl Workers {
    /// Starts helpers, or pollers. All threads inherit the caller's signal mask, and those of ports its CPU affinity.
    pub fn start(datapath: &Arc<Datapath>, settings: Settings) -> io::Result<Self> {
        let helpers = Arc::new(Helpers::new(datapath.clone(), settings)?);
        helpers.start()?;
        let (waits, all) = (helpers.clone(), helpers.clone());
        Builder::new().name("waits".into()).spawn(move || waits.wait())?;
        lasthop_lock::on_wait(Box::new(move |notice| all.boost(notice)));
        Ok(Self { helpers, ports: HashMap::new() })
    }

    /// Has a port's vring, from which packets come, looked after. Without a kick descriptor it is polled. One that is looked after
    /// already is handed over. An error: there are no descriptors for a thread of the port, and nobody looks after it.
    pub fn attach(&mut self, port: &Arc<Port>, queue: u16, kick: Option<PeerEvent>) -> io::Result<()> {
        self.detach(port.id, queue);
        let entry = match self.ports.entry(port.id) {
            Occupied(entry) => entry.into_mut(),
            Vacant(place) => {
                let coalescing = Arc::new(Coalescing::new(self.helpers.clone())?);
                place.insert(Entry { coalescing, mailbox: None, rings: Vec::new() })
            }
        };
        let owned = Arc::new(OwnedRing::new(port.clone(), queue, kick));
        let poller = self.helpers.place(&owned);
        if poller.is_none() {
            if entry.mailbox.is_none() {
                let server = Server::new(port, &self.helpers, &entry.coalescing.timer)?;
                entry.mailbox = Some(server.mailbox.clone());
                self.helpers.silent.lock().ports.insert(port.id, Box::new(server));
                // Else it is looked at, as one that is late.
                self.helpers.begin(port.id);
            }
            entry.mailbox.iter().for_each(|mailbox| tell(mailbox, queue, Some(owned.clone())));
        }
        entry.rings.push((owned, poller));
        // With a ring of its own its thread looks, which waits for the timer; else any core that polls one.
        let looks = entry.rings.iter().map(|(_, poller)| *poller).min().flatten();
        entry.coalescing.poller.store(looks.unwrap_or(NOBODY), Relaxed);
        // Nothing is held back before it is known who looks.
        port.set_coalescing(entry.coalescing.clone());
        // What somebody held back meanwhile, or for whoever looked before, is not left to anybody.
        port.look_after_guest(true);
        Ok(())
    }

    /// The vring is not to be looked after any more. Its owner releases it soon; the queue's own lock says when a burst is
    /// over.
    pub fn detach(&mut self, port: PortId, queue: u16) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        // Nobody is waked for a ring that packets go to, or that a core polls: no thread looks after one.
        let gone = entry.rings.extract_if(.., |(owned, _)| owned.queue == queue);
        let own = gone.inspect(|(owned, _)| owned.owner.release()).filter(|(_, poller)| poller.is_none());
        own.flat_map(|_| &entry.mailbox).for_each(|mailbox| tell(mailbox, queue, None));
    }

    /// The port is no more.
    pub fn remove(&mut self, port: PortId) {
        let mailbox = self.ports.remove(&port).and_then(|entry| entry.mailbox);
        mailbox.iter().for_each(|mailbox| mailbox.send(Letter::Stop));
    }

    /// Has the port's queues looked at without a kick: they were enabled, or had stalled and may go on. A silent port gets a thread for that.
    pub fn look(&self, port: PortId) {
        let mailbox = self.ports.get(&port).and_then(|entry| entry.mailbox.as_ref());
        mailbox.iter().for_each(|mailbox| mailbox.replace(Letter::Look, |before| matches!(before, Letter::Look)));
    }
}

/// What was said of the vring before, and is not read yet, counts no more: a front-end may say very much, with descriptors, while no thread can be had.
fn tell(mailbox: &Mailbox<Letter>, queue: u16, ring: Option<Arc<OwnedRing>>) {
    mailbox.replace(Letter::Ring(queue, ring), |before| matches!(before, Letter::Ring(of, _) if *of == queue));
}
