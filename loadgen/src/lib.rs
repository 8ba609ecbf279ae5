//! The load generator: any number of guests over any vhost-user back-end, played by threads of this process on the
//! driver side of our own rings. It sends, receives, checks, and reports what it saw.
//!
//! | module | holds |
//! |---|---|
//! | `settings` | what to play |
//! | `frame` | the frames and what is checked in them |
//! | `pace`, `order` | fixed rates; sequence numbers |
//! | `port` | memory, rings, the vhost-user connection |
//! | `worker` | the loop of one thread: all its ports in turn |
//! | `sender` | which packet comes next, and when |
//! | `guest` | ports with a load of their own, and what came out of each port |
//! | `grants` | guests that grant their pages one by one |
//! | `first` | packets that are the first of their flows |
//! | `attack` | guests that do their worst beside the others |
//! | `report` | what came out, as text and JSON |

pub mod attack;
mod first;
pub mod frame;
pub mod grants;
pub mod guest;
pub mod order;
pub mod pace;
pub mod port;
pub mod report;
pub mod sender;
pub mod settings;
mod worker;

pub use attack::Attack;
pub use grants::{Grants, Policy};
pub use guest::Guest;
pub use lasthop_harness::stop::{Failure, Outcome, failed};
pub use port::Socket;
pub use report::Report;
pub use settings::{Check, FlowOrder, Notify, Pattern, Settings, Sizes};

use attack::Attackers;
use port::{Listener, Memory, Wanted};
use report::Window;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Worker, WorkerReport};

/// After so long in which nothing has come, what is missing is lost: a busy machine may keep a switch from its CPU for long.
const LATE: Duration = Duration::from_millis(500);

/// What the threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    /// Receive only.
    Rest,
    /// Every port tells everybody its address, once.
    Announce,
    /// Take what is to be played next.
    Prepare,
    /// Traffic that does not count.
    Warm,
    /// Counters begin at 0; as `Rest` else.
    Reset,
    /// Traffic that is measured.
    Measure,
    /// Traffic goes on, but the time is over.
    After,
    /// Nothing more is sent; what is on its way still comes.
    Drain,
    /// Say what was found.
    Tell,
    /// Return.
    End,
}

impl Phase {
    /// In the order of their numbers.
    const ALL: [Self; 10] = [
        Self::Rest,
        Self::Announce,
        Self::Prepare,
        Self::Warm,
        Self::Reset,
        Self::Measure,
        Self::After,
        Self::Drain,
        Self::Tell,
        Self::End,
    ];

    fn sends(self) -> bool {
        matches!(self, Self::Warm | Self::Measure | Self::After)
    }
}

/// What the threads share. Packets touch only `delivered`, and that only where a window asks for it.
#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    /// Threads that have seen the phase.
    seen: AtomicUsize,
    /// Frames received so far, for whoever waits for them to stop.
    received: Vec<Line>,
    /// By port: frames of its own that others have received.
    delivered: Vec<Line>,
    /// What is to be played.
    act: Mutex<Arc<Settings>>,
    /// What each thread counted while it was measured.
    windows: Mutex<Vec<Window>>,
    /// What each thread found.
    reports: Mutex<Vec<WorkerReport>>,
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Shared {
    fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire)) % Phase::ALL.len()]
    }
}

/// Told when the measurement begins and ends, on the thread that called [`run`].
pub trait Observer {
    /// Traffic flows, counting begins.
    fn begin(&mut self) -> Outcome<()>;
    /// So many packets were received meanwhile; traffic still flows.
    fn end(&mut self, packets: f64) -> Outcome<()>;
}

/// Nobody looks on.
impl Observer for () {
    fn begin(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn end(&mut self, _: f64) -> Outcome<()> {
        Ok(())
    }
}

/// The sockets on which guests listen, if any; to be made before the switch is told to connect. Their files go with this.
pub struct Listening(Vec<Option<Listener>>);

/// Listens where the settings say so.
pub fn listen(settings: &Settings) -> Outcome<Listening> {
    let bind = |s: &Socket| if s.listen { Listener::bind(&s.path).map(Some) } else { Ok(None) };
    settings.sockets.iter().chain(&settings.attackers).map(bind).collect::<Outcome<_>>().map(Listening)
}

/// Plays the guests once. `check` is asked often; its error ends everything.
pub fn run(
    settings: &Settings,
    listening: &Listening,
    check: &dyn Fn() -> Outcome<()>,
    observer: &mut dyn Observer,
) -> Outcome<Report> {
    Session::connect(settings, listening, check)?.play(settings, observer)
}

/// Guests that are plugged in and can be played again and again.
pub struct Session<'a> {
    setup: Arc<Settings>,
    shared: Arc<Shared>,
    check: &'a dyn Fn() -> Outcome<()>,
    threads: Vec<JoinHandle<Outcome<()>>>,
    /// Copies of the connections, to notice that a back-end has gone.
    watched: Vec<std::os::fd::OwnedFd>,
}

impl<'a> Session<'a> {
    /// Connects all ports, starts the threads, and lets every port say where it is.
    pub fn connect(settings: &Settings, listening: &Listening, check: &'a dyn Fn() -> Outcome<()>) -> Outcome<Self> {
        settings.validate()?;
        let setup = Arc::new(settings.clone());
        let threads = settings.cpus.len().max(1);
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(Phase::Rest as u8),
            seen: AtomicUsize::new(0),
            received: (0..threads).map(|_| Line::default()).collect(),
            delivered: settings.sockets.iter().map(|_| Line::default()).collect(),
            act: Mutex::new(setup.clone()),
            windows: Mutex::default(),
            reports: Mutex::default(),
        });
        let mut workers = Vec::new();
        for thread in 0..threads {
            // Pairs stay together: what one receives the other can send.
            let mine: Vec<u16> =
                (0..settings.sockets.len() as u16).filter(|p| usize::from(*p / 2) % threads == thread).collect();
            if mine.is_empty() {
                continue;
            }
            let mut memory = Memory::new(worker::bytes(settings, &mine), settings.huge)?;
            let mut ports = Vec::new();
            for number in mine {
                let socket = &settings.sockets[usize::from(number)];
                let listener = listening.0.get(usize::from(number)).and_then(Option::as_ref);
                let front = port::connect(socket, listener, settings.patience, check)?;
                ports.push(port::bring_up(front, number, settings, Wanted::of(settings), &mut memory)?);
            }
            let theirs = listening.0.get(settings.sockets.len()..).unwrap_or_default();
            let attackers = if thread == 0 { Attackers::connect(settings, theirs, check)? } else { None };
            workers.push(Worker::new(setup.clone(), thread, ports, memory, shared.clone(), attackers)?);
        }
        let mut session = Self { setup, shared, check, threads: Vec::new(), watched: Vec::new() };
        for (thread, worker) in workers.into_iter().enumerate() {
            session.watched.extend(worker.watched()?);
            let cpu = settings.cpus.get(thread).copied();
            session.threads.push(std::thread::spawn(move || {
                if let Some(cpu) = cpu {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    sched_setaffinity(None, &set).map_err(|e| failed(format!("cannot run on CPU {cpu}: {e}")))?;
                }
                worker.run()
            }));
        }
        // Rings are enabled by a message; a back-end may take a moment.
        session.pause(Duration::from_millis(50))?;
        for _ in 0..3 {
            session.enter(Phase::Announce)?;
            session.pause(Duration::from_millis(60))?;
            session.enter(Phase::Rest)?;
        }
        session.quiet(Duration::from_millis(30), Duration::from_secs(2))?;
        Ok(session)
    }

    /// Plays once. Ports, rings and buffers stay as they were connected, whatever `settings` says of them.
    pub fn play(&mut self, settings: &Settings, observer: &mut dyn Observer) -> Outcome<Report> {
        settings.validate()?;
        let setup = &self.setup;
        let longer = |port| settings.tx_buffer(port) > setup.tx_buffer(port);
        if (0..setup.sockets.len() as u16).any(longer) || (settings.has_gso() && !setup.has_gso()) {
            return Err(failed("frames longer than the ports were made for"));
        }
        let circulates = settings.pattern.circulates();
        if circulates != setup.pattern.circulates() || settings.sockets.len() != setup.sockets.len() {
            return Err(failed("other ports than those that are connected"));
        }
        if (settings.attack, settings.attackers.len()) != (setup.attack, setup.attackers.len()) {
            return Err(failed("other attackers than those that are connected"));
        }
        let act =
            Settings { notify: setup.notify, queues: setup.queues, ring_size: setup.ring_size, ..settings.clone() };
        *lock(&self.shared.act) = Arc::new(act);
        self.shared.delivered.iter().for_each(|l| l.0.store(0, Ordering::Relaxed));
        lock(&self.shared.windows).clear();
        lock(&self.shared.reports).clear();
        self.enter(Phase::Prepare)?;
        if settings.warmup > Duration::ZERO {
            self.enter(Phase::Warm)?;
            self.pause(settings.warmup)?;
            if !circulates {
                self.enter(Phase::Rest)?;
                self.quiet(Duration::from_millis(30), Duration::from_secs(2))?;
            }
        }
        if !circulates {
            self.enter(Phase::Reset)?;
        }
        observer.begin()?;
        let start = Instant::now();
        self.enter(Phase::Measure)?;
        match settings.packets {
            Some(_) => self.quiet(LATE, settings.length)?,
            None => self.pause(settings.length)?,
        }
        self.enter(Phase::After)?;
        let elapsed = start.elapsed();
        let window = lock(&self.shared.windows).iter().fold(Window::default(), |sum, w| sum.with(w));
        observer.end(window.received as f64)?;
        self.enter(Phase::Drain)?;
        self.quiet(LATE, Duration::from_secs(3))?;
        self.enter(Phase::Tell)?;
        let report = Report::new(settings, elapsed, &window, &lock(&self.shared.reports));
        self.enter(Phase::Rest)?;
        Ok(report)
    }

    /// Tells the threads and waits until all have heard.
    fn enter(&mut self, phase: Phase) -> Outcome<()> {
        self.shared.seen.store(0, Ordering::Relaxed);
        self.shared.phase.store(phase as u8, Ordering::Release);
        while self.shared.seen.load(Ordering::Acquire) < self.threads.len() {
            self.look()?;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn pause(&mut self, time: Duration) -> Outcome<()> {
        let end = Instant::now() + time;
        loop {
            self.look()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Waits until nothing has come for `time`, at most `limit`.
    fn quiet(&mut self, time: Duration, limit: Duration) -> Outcome<()> {
        let received = |s: &Shared| s.received.iter().map(|l| l.0.load(Ordering::Relaxed)).sum::<u64>();
        let (end, mut last, mut since) = (Instant::now() + limit, received(&self.shared), Instant::now());
        while since.elapsed() < time && Instant::now() < end {
            self.look()?;
            std::thread::sleep(Duration::from_millis(5));
            let now = received(&self.shared);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Whether everybody is still there.
    fn look(&mut self) -> Outcome<()> {
        (self.check)()?;
        if let Some(at) = self.threads.iter().position(JoinHandle::is_finished) {
            return match self.threads.swap_remove(at).join() {
                Ok(Ok(())) => Err(failed("a thread of the generator ended early: a bug")),
                Ok(Err(e)) => Err(e),
                Err(_) => Err(failed("a thread of the generator panicked")),
            };
        }
        let mut fds: Vec<_> = self.watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
        match fds.iter().position(|f| f.revents().intersects(PollFlags::HUP | PollFlags::ERR)) {
            Some(port) => Err(failed(format!("the switch has closed the connection of port {port}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.shared.phase.store(Phase::End as u8, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What a panicking thread leaves behind is still whole: it is replaced, never changed in place.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #[test]
    fn phases_are_where_their_numbers_say() {
        assert!(super::Phase::ALL.iter().enumerate().all(|(i, p)| *p as usize == i));
        assert_eq!(super::Phase::End as usize, super::Phase::ALL.len() - 1);
    }
}
