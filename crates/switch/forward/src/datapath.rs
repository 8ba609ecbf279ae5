//! What all threads of the switch share.

use crate::port::{Port, PortTable};
use crate::rate::Meter;
use lasthop_flow::FlowTable;
use lasthop_lock::Lock;
use lasthop_sys::EventFd;
use lasthop_types::{CacheFigures, Counter, Level, LogLine, PortId, ThreadNews};
use lasthop_virtqueue::Patience;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Numbers of meters are below this: each change copies a table of them.
pub const MAX_METERS: u32 = 4096;

/// Lines for the log about one port that wait to be sent: a front-end that is set up wrong has all it has to say in the log.
const MOST_LINES: usize = 64;

/// Ports, flows, and the way to the thread that talks to control. Shared by `Arc`; every method may be called from any
/// thread.
#[derive(Debug)]
pub struct Datapath {
    ports: Lock<Arc<PortTable>>,
    /// Counts changes of `ports`, so that workers look at an atomic and not at a lock.
    ports_generation: AtomicU64,
    flows: FlowTable,
    /// What each thread's flow cache counts.
    caches: Lock<Vec<Weak<CacheFigures<Counter>>>>,
    /// Signalled when there is something for the main thread: a miss to tell control of, a ring that broke, a line for the log, a thread that has begun or ended.
    news: EventFd,
    missed: AtomicBool,
    broken: Lock<Vec<(PortId, u16)>>,
    /// Lines for the log that wait to be sent, by port.
    lines: Lock<BTreeMap<PortId, VecDeque<LogLine>>>,
    /// News of ports' threads that wait to be sent, one of each port, the oldest first; signal [`Datapath::news`] after a change.
    pub threads: Lock<VecDeque<(PortId, ThreadNews)>>,
    control_answers: AtomicBool,
    pub(crate) patience_ns: Patience,
    started: Instant,
}

impl Datapath {
    /// An empty switch that holds up to `flow_limit` flows. `patience_ms`: [`PATIENCE_MS`](crate::PATIENCE_MS), or others.
    pub fn new(flow_limit: usize, patience_ms: Patience) -> io::Result<Self> {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        Ok(Self {
            ports: Lock::default(),
            ports_generation: AtomicU64::new(0),
            flows: FlowTable::new(flow_limit),
            caches: Lock::default(),
            news: EventFd::new()?,
            missed: AtomicBool::new(false),
            broken: Lock::default(),
            lines: Lock::default(),
            threads: Lock::default(),
            control_answers: AtomicBool::new(false),
            patience_ns: Patience {
                pace: ns(patience_ms.pace),
                overtaken: ns(patience_ms.overtaken),
                remembered: ns(patience_ms.remembered),
            },
            started: Instant::now(),
        })
    }

    /// Milliseconds since the switch started: the clock of flow statistics and of waiting packets.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }

    /// The same clock in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Readable when [`Datapath::take_missed`], [`Datapath::take_broken`] or [`Datapath::take_line`] has something; drain it first.
    pub fn news(&self) -> &EventFd {
        &self.news
    }

    /// The ports as they are now.
    pub fn ports(&self) -> Arc<PortTable> {
        self.ports.lock().clone()
    }

    pub(crate) fn ports_generation(&self) -> u64 {
        // Acquire, as it is counted with Release and the lock held: a thread that sees the new number finds a table as new.
        self.ports_generation.load(Ordering::Acquire)
    }

    /// Adds a port (or replaces the one with its number).
    pub fn add_port(&self, port: Arc<Port>) {
        self.change(|ports| ports.put(port.id, Some(port)));
    }

    /// Removes a port and all flows that name it.
    pub fn remove_port(&self, id: PortId) {
        self.change(|ports| ports.put(id, None));
        self.flows.remove_port(id);
    }

    /// Sets meter `id`, which is below [`MAX_METERS`], or removes it, for all flows that name it and from the next bursts on. `rates`: bytes
    /// and packets a second (0: any number), and in nanoseconds what may be made up for. What it has counted begins anew.
    pub fn set_meter(&self, id: u32, rates: Option<[u64; 3]>) {
        self.change(|ports| match rates.filter(|_| id < MAX_METERS) {
            Some(rates) => drop(ports.meters.insert(id, Meter::new(rates).into())),
            None => drop(ports.meters.remove(&id)),
        });
    }

    /// Packets and bytes that meter `id` has let pass since it was set, and those that it has dropped. Zeros if there is none.
    pub fn meter_counts(&self, id: u32) -> [[u64; 2]; 2] {
        self.ports.lock().meters.get(&id).map(|meter| meter.counts()).unwrap_or_default()
    }

    fn change(&self, change: impl FnOnce(&mut PortTable)) {
        change(Arc::make_mut(&mut *self.ports.lock()));
        self.ports_generation.fetch_add(1, Ordering::Release);
    }

    /// The flow table.
    #[inline]
    pub fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// One more thread has a flow cache, which counts here.
    pub(crate) fn add_cache(&self, counters: &Arc<CacheFigures<Counter>>) {
        let mut caches = self.caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(Arc::downgrade(counters));
    }

    /// What the flow caches of all threads have counted that there are now.
    pub fn caches(&self) -> CacheFigures {
        let mut sum = CacheFigures::default();
        self.caches.lock().iter().filter_map(Weak::upgrade).for_each(|cache| sum.add(&cache));
        sum
    }

    /// Says whether control answers. While it does not, a port whose waiting places are used up drops new flows instead
    /// of waiting, so that its known flows go on.
    pub fn set_control_answers(&self, answers: bool) {
        // Relaxed: a packet more or less that waits or is dropped.
        self.control_answers.store(answers, Ordering::Relaxed);
    }

    pub(crate) fn control_answers(&self) -> bool {
        self.control_answers.load(Ordering::Relaxed)
    }

    pub(crate) fn note_missed(&self) {
        // Release, and Acquire in `take_missed`: the thread that takes the note finds the packet. Swapped by both: of the two sides one sees the other.
        if !self.missed.swap(true, Ordering::AcqRel) {
            self.news.signal();
        }
    }

    /// Whether a packet has missed, or was copied, since the last call.
    pub fn take_missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn note_broken(&self, port: PortId, queue: u16) {
        self.broken.lock().push((port, queue));
        self.news.signal();
    }

    /// Has a line written to the log, about this port or, with 0, about none. Waits for nobody: of lines that there are too many of, some
    /// are left out and counted.
    pub fn say(&self, port: PortId, level: Level, text: String) {
        let mut lines = self.lines.lock();
        let of_port = lines.entry(port).or_default();
        let is_full = of_port.len() >= MOST_LINES;
        if let Some(last) = of_port.back_mut().filter(|_| is_full) {
            last.left_out += 1;
        } else {
            of_port.push_back(LogLine { port, level, text, left_out: 0 });
        }
        self.news.signal();
    }

    /// The next line for the log: of each port in turn, so of one behind `last`, whose line was taken before, if there is any.
    pub fn take_line(&self, last: PortId) -> Option<LogLine> {
        let mut lines = self.lines.lock();
        let next =
            lines.range((Excluded(last), Unbounded)).next().or(lines.first_key_value()).map(|(port, _)| *port)?;
        let of_port = lines.get_mut(&next)?;
        let line = of_port.pop_front();
        if of_port.is_empty() {
            lines.remove(&next);
        }
        line
    }

    /// Rings (port, vring index) that broke since the last call. Their queues say why.
    pub fn take_broken(&self) -> Vec<(PortId, u16)> {
        std::mem::take(&mut *self.broken.lock())
    }
}
