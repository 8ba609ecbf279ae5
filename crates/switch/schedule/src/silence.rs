//! Ports that are silent have no thread. What a thread leaves when it has had nothing to do for long is kept here, and one thread for all, `waits`, starts the next one when
//! there is something: a kick, a letter, an interrupt that was held back.
//!
//! It waits for the epoll of each port, and for that once ([`lasthop_sys::Watches`]). Who watches a front-end's eventfd, and takes it out again, is its port's thread alone: so nobody else waits, however
//! many wait for that eventfd, and a kick that comes at any moment is in that epoll for whoever looks next. The kernel may say so late, or never (docs/decisions/silent-ports.md), and a thread may not be
//! to be had: so `waits` looks at some of these epolls itself, about four times a second. All threads of ports are started by this one or by the main thread, which are of one class, with the same cores and
//! control group: none has those of a helper, a poller or another port.

use crate::helper::Helpers;
use crate::port::Server;
use lasthop_forward::{Forwarder, PORT_CACHE_ENTRIES};
use lasthop_lock::{Lock, identify_thread};
use lasthop_sys::{Beat, current_thread, thread_time_ns};
use lasthop_types::{Level, PortId, ThreadNews};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

/// How often silent ports are looked at at least, and how many at a time: who is heard of meanwhile waits for as many threads to be started, some milliseconds.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS: usize = 128;
/// Bytes of the stack of a port's thread, which the process' limit of memory counts whole; what is large lies in the heap.
const STACK: usize = 256 << 10;
/// Said once.
const NO_AIO: &str = "silent ports cannot be waited for: their threads stay, or begin late; raise fs.aio-max-nr";

/// What silent ports have. Locked for a look at most, and for system calls that wait for nobody.
#[derive(Debug, Default)]
pub(crate) struct Silent {
    pub(crate) ports: BTreeMap<PortId, Box<Server>>,
    /// The first to be looked at next.
    pub(crate) next: PortId,
    /// All is to end, and nothing is kept any more: set by tests alone, for otherwise the process ends.
    pub(crate) stopping: bool,
}

impl Helpers {
    /// Keeps what a port's thread, this one, leaves, and has the next one started when there is something for it. It is given back where that cannot be waited for.
    pub(crate) fn leave(&self, mut server: Box<Server>) -> Option<Box<Server>> {
        // The time before the lock: a quota of the VM stops a thread where a system call ends. Where it stops this one in those that are made with the lock,
        // who waits for it asks for it to be lifted.
        let (id, used_ns, mut silent) = (server.port.id, server.used_ns + thread_time_ns(), self.silent.lock());
        if silent.stopping || self.settings.watches.watch(&server.epoll, id.0.into()).is_err() {
            return Some(server).filter(|_| !silent.stopping);
        }
        server.used_ns = used_ns;
        // With the lock held: what is told of the next one comes later.
        self.tell(id, 0, used_ns, None);
        silent.ports.insert(id, server)
    }

    /// Of a port's threads the last news wait to be sent; others that wait already go before.
    fn tell(&self, id: PortId, thread: i32, used_ns: u64, refused: Option<String>) {
        let (mut threads, news) = (self.datapath.threads.lock(), ThreadNews { thread, used_ns, refused });
        threads.retain(|(of, _)| *of != id);
        threads.push_back((id, news));
        drop(threads);
        self.datapath.news().signal();
    }

    /// The thread `waits`.
    pub(crate) fn wait(self: &Arc<Self>) {
        // Where no port is silent, it does not matter.
        let (mut said, beat) = (self.settings.told.idle_us == 0, Beat::new());
        while !self.silent.lock().stopping {
            beat.sleep();
            let ready = self.settings.watches.wait(LOOK);
            let ready = ready.unwrap_or_else(|error| {
                std::thread::sleep(LOOK);
                if !std::mem::replace(&mut said, true) {
                    self.datapath.say(PortId(0), Level::Warn, format!("{NO_AIO}: {error}"));
                }
                Vec::new()
            });
            // Up to the first that is refused one: for what that is others are, too. They are late, and have their turn.
            let late = std::iter::once_with(|| self.late()).flatten();
            let ids = ready.into_iter().map(|id| PortId(id as u32)).chain(late);
            ids.inspect(|_| beat.work()).all(|id| self.begin(id));
        }
    }

    /// Of silent ports, some each time, those that have something to do.
    fn late(&self) -> Vec<PortId> {
        let Silent { ports, next, .. } = &mut *self.silent.lock();
        let all = ports.range(*next..).chain(ports.range(..*next)).take(LOOKS);
        let looked = all.inspect(|(id, _)| *next = PortId(id.0.wrapping_add(1)));
        looked.filter(|(_, server)| server.epoll.is_ready()).map(|(id, _)| *id).collect()
    }

    /// Starts a thread for the port, unless it has one. False: there is none to be had.
    pub(crate) fn begin(self: &Arc<Self>, id: PortId) -> bool {
        let Some(server) = self.silent.lock().ports.remove(&id) else { return true };
        // As `top -H` shows it; the kernel cuts it after 15 bytes.
        let thread = Builder::new().name(format!("port-{}", server.port.name)).stack_size(STACK);
        // What a thread that is not started was given is dropped, so it takes this from where it stays.
        let (used_ns, place) = (server.used_ns, Arc::<Lock<_>>::default());
        *place.lock() = Some(server);
        let (helpers, theirs) = (self.clone(), place.clone());
        let Err(error) = thread.spawn(move || helpers.work_for(&theirs)) else { return true };
        // What its guest sends waits in its ring; what it is sent it gets. Others are looked at first.
        let Silent { ports, next, stopping } = &mut *self.silent.lock();
        *next = PortId(id.0.wrapping_add(1));
        self.tell(id, 0, used_ns, Some(error.to_string()));
        ports.extend(place.lock().take().filter(|_| !*stopping).map(|server| (id, server)));
        false
    }

    /// A thread of a port, from its beginning to its end.
    fn work_for(&self, place: &Lock<Option<Box<Server>>>) {
        let Some(mut server) = place.lock().take() else { return };
        identify_thread(if self.settings.told.cgroup_accounting { current_thread() } else { 0 });
        let mut forwarder = Forwarder::new(self.datapath.clone(), PORT_CACHE_ENTRIES);
        self.tell(server.port.id, current_thread(), server.used_ns, None);
        while server.serve(&mut forwarder) {
            let Some(back) = self.leave(server) else { return };
            server = back;
        }
    }
}

#[cfg(test)]
mod tests;
