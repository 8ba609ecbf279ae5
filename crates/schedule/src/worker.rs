//! Worker threads.

use lasthop_forward::{Datapath, Forwarder, Port};
use lasthop_sys::{Epoll, EventFd, Ready, Trigger};
use lasthop_types::PortId;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a front-end that asked to be polled is looked at, once nothing was found.
const POLL_PERIOD: Duration = Duration::from_millis(1);
/// How often a receiver without buffers is looked at while packets wait for it.
const HOLD_RETRY: Duration = Duration::from_micros(100);
/// Rounds with work after which kicks of sleeping queues are asked for.
const ROUNDS_BETWEEN_KICKS: u32 = 16;
const WAKE: u64 = u64::MAX;

/// How workers behave.
#[derive(Clone, Copy, Debug)]
pub struct WorkersConfig {
    /// Threads.
    pub threads: usize,
    /// How long a worker that ran out of packets looks for more before it sleeps (the hysteresis of PhD §4.3.4).
    pub spin: Duration,
}

/// All worker threads. Used by one thread, the one that talks to front-ends.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    /// Which worker serves which queue.
    served_by: HashMap<(PortId, u16), usize>,
}

#[derive(Debug)]
struct Worker {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

/// What a worker thread shares with the thread that commands it.
#[derive(Debug)]
struct Mailbox {
    commands: Mutex<Vec<Command>>,
    wake: EventFd,
    queues: AtomicUsize,
}

#[derive(Debug)]
enum Command {
    Attach { port: Arc<Port>, queue: u16, kick: Option<EventFd> },
    Detach { port: PortId, queue: u16 },
    Look { port: PortId },
    Stop,
}

impl Workers {
    /// Starts the threads. They inherit the caller's CPU affinity, name and signal mask.
    pub fn start(datapath: &Arc<Datapath>, config: WorkersConfig) -> io::Result<Self> {
        let mut workers = Vec::new();
        for n in 0..config.threads.max(1) {
            let mailbox =
                Arc::new(Mailbox { commands: Mutex::default(), wake: EventFd::new()?, queues: AtomicUsize::new(0) });
            let epoll = Epoll::new()?;
            epoll.add(&mailbox.wake, WAKE, Trigger::Edge)?;
            let mut server = Server {
                forwarder: Forwarder::new(datapath.clone()),
                datapath: datapath.clone(),
                epoll,
                mailbox: mailbox.clone(),
                served: Vec::new(),
                active: Vec::new(),
                spin: config.spin,
            };
            let thread = std::thread::Builder::new().name(format!("worker-{n}")).spawn(move || server.serve())?;
            workers.push(Worker { mailbox, thread: Some(thread) });
        }
        Ok(Self { workers, served_by: HashMap::new() })
    }

    /// Has a worker, the one with the fewest queues, serve a port's vring, from which packets come. Without a kick
    /// descriptor the queue is polled. A queue that is served already is handed over.
    pub fn attach(&mut self, port: &Arc<Port>, queue: u16, kick: Option<EventFd>) {
        self.detach(port.id, queue);
        let least = |(_, w): &(usize, &Worker)| w.mailbox.queues.load(Ordering::Relaxed);
        let Some((n, worker)) = self.workers.iter().enumerate().min_by_key(least) else { return };
        worker.mailbox.queues.fetch_add(1, Ordering::Relaxed);
        worker.mailbox.send(Command::Attach { port: port.clone(), queue, kick });
        self.served_by.insert((port.id, queue), n);
    }

    /// The vring is not to be served any more. The worker lets go of it soon; the queue's own lock says when a burst is
    /// over.
    pub fn detach(&mut self, port: PortId, queue: u16) {
        let Some(n) = self.served_by.remove(&(port, queue)) else { return };
        if let Some(worker) = self.workers.get(n) {
            worker.mailbox.queues.fetch_sub(1, Ordering::Relaxed);
            worker.mailbox.send(Command::Detach { port, queue });
        }
    }

    /// Has the port's queues looked at without a kick: they were enabled, or had stalled and may go on.
    pub fn look(&self, port: PortId) {
        let mut told = vec![false; self.workers.len()];
        for ((_, _), n) in self.served_by.iter().filter(|((p, _), _)| *p == port) {
            if let (Some(worker), Some(told)) = (self.workers.get(*n), told.get_mut(*n))
                && !std::mem::replace(told, true)
            {
                worker.mailbox.send(Command::Look { port });
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Stop);
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Mailbox {
    fn send(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.wake.signal();
    }
}

/// The inside of a worker thread.
struct Server {
    forwarder: Forwarder,
    datapath: Arc<Datapath>,
    epoll: Epoll,
    mailbox: Arc<Mailbox>,
    served: Vec<Option<Served>>,
    /// Indices in `served` of queues that are being polled, their kicks off.
    active: Vec<usize>,
    spin: Duration,
}

struct Served {
    port: Arc<Port>,
    queue: u16,
    kick: Option<EventFd>,
    active: bool,
    /// Its packets wait for a receiver.
    held: bool,
}

impl Server {
    fn serve(&mut self) {
        let mut ready = Vec::with_capacity(64);
        let mut rounds = 0;
        let mut last_work = Instant::now();
        loop {
            if self.round(Instant::now()) > 0 {
                rounds += 1;
                if rounds % ROUNDS_BETWEEN_KICKS == 0 {
                    last_work = Instant::now();
                    if !self.wait(&mut ready, Some(Duration::ZERO)) {
                        return;
                    }
                }
                continue;
            }
            // A round without packets. `last_work` may lag by a few rounds with work, which only shortens the look.
            if rounds > 0 {
                rounds = 0;
                last_work = Instant::now();
            }
            if !self.active.is_empty() && last_work.elapsed() < self.spin {
                std::hint::spin_loop();
                continue;
            }
            self.rest();
            let timeout = self.longest_sleep();
            if !self.wait(&mut ready, timeout) {
                return;
            }
        }
    }

    /// One burst from each active queue; returns how many packets there were.
    fn round(&mut self, mut now: Instant) -> usize {
        let now_ms = self.datapath.ms_at(now);
        let mut packets = 0;
        let mut i = 0;
        while let Some(&n) = self.active.get(i) {
            let Some(Some(served)) = self.served.get_mut(n) else {
                self.active.swap_remove(i);
                continue;
            };
            let outcome = self.forwarder.run(&served.port, served.queue, now_ms);
            if outcome.packets > 0 {
                packets += outcome.packets;
                let since = std::mem::replace(&mut now, Instant::now());
                if let Some(queue) = served.port.queues.get(usize::from(served.queue)) {
                    queue.counters.busy_ns.add((now - since).as_nanos() as u64);
                }
            }
            served.held = outcome.held;
            if outcome.stalled {
                served.active = false;
                self.active.swap_remove(i);
            } else {
                i += 1;
            }
        }
        packets
    }

    /// Asks for kicks on all active queues; those that have nothing meanwhile are left to sleep.
    fn rest(&mut self) {
        let served = &mut self.served;
        let forwarder = &mut self.forwarder;
        self.active.retain(|&n| {
            let Some(Some(s)) = served.get_mut(n) else { return false };
            s.active = s.held || forwarder.rest(&s.port, s.queue);
            s.active
        });
    }

    /// How long to sleep unless somebody kicks; for ever if `None`.
    fn longest_sleep(&self) -> Option<Duration> {
        let served = |n: &usize| self.served.get(*n).and_then(Option::as_ref);
        if self.active.iter().filter_map(served).any(|s| !s.held) {
            return Some(Duration::ZERO);
        }
        if !self.active.is_empty() {
            return Some(HOLD_RETRY);
        }
        self.served.iter().flatten().any(|s| s.kick.is_none()).then_some(POLL_PERIOD)
    }

    /// Waits for kicks and commands; false when told to stop.
    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> bool {
        if self.epoll.wait(ready, timeout).is_err() {
            return false;
        }
        let mut goes_on = true;
        for event in ready.iter() {
            if event.token == WAKE {
                goes_on &= self.obey();
            } else {
                self.activate(event.token as usize, true);
            }
        }
        if timeout == Some(POLL_PERIOD) {
            for n in 0..self.served.len() {
                if matches!(self.served.get(n), Some(Some(s)) if s.kick.is_none()) {
                    self.activate(n, false);
                }
            }
        }
        goes_on
    }

    /// Has the queue looked at from now on; `kicked` says that the guest asked for it.
    fn activate(&mut self, n: usize, kicked: bool) {
        if let Some(Some(served)) = self.served.get_mut(n)
            && !served.active
        {
            served.active = true;
            self.forwarder.attend(&served.port, served.queue, kicked);
            self.active.push(n);
        }
    }

    fn obey(&mut self) -> bool {
        self.mailbox.wake.drain();
        let commands = std::mem::take(&mut *self.mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner));
        for command in commands {
            match command {
                Command::Attach { port, queue, kick } => self.attach(port, queue, kick),
                Command::Detach { port, queue } => {
                    for n in 0..self.served.len() {
                        if matches!(&self.served[n], Some(s) if s.port.id == port && s.queue == queue) {
                            self.let_go(n);
                        }
                    }
                }
                Command::Look { port } => {
                    for n in 0..self.served.len() {
                        if matches!(&self.served[n], Some(s) if s.port.id == port) {
                            self.activate(n, false);
                        }
                    }
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn attach(&mut self, port: Arc<Port>, queue: u16, kick: Option<EventFd>) {
        let n = self.served.iter().position(Option::is_none).unwrap_or(self.served.len());
        if n == self.served.len() {
            self.served.push(None);
        }
        if let Some(kick) = &kick
            && let Err(error) = self.epoll.add(kick, n as u64, Trigger::Edge)
        {
            tracing::warn!(port = %port.name, queue, %error, "kick descriptor cannot be waited for; not served");
            return;
        }
        self.served[n] = Some(Served { port, queue, kick, active: false, held: false });
        // The guest may have made packets available before we could hear its kick.
        self.activate(n, false);
    }

    fn let_go(&mut self, n: usize) {
        self.active.retain(|a| *a != n);
        if let Some(Served { kick: Some(kick), .. }) = self.served[n].take() {
            // Closing our copy is not enough: the front-end keeps one, and epoll goes by the file.
            let _ = self.epoll.delete(&kick);
        }
    }
}
