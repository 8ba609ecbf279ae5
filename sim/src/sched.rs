//! The modelled scheduler: a run queue for each core, fair by the time that threads have had, helpers only where nobody
//! else wants the core.

use crate::setup::Carrier;
use crate::stats::Account;
use crate::world::{Event, Work, World};

/// What a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// A guest's only virtual CPU.
    Guest(usize),
    /// A port's thread.
    Worker(usize),
    /// A thread of vhost-net or netback.
    Service(usize),
    /// A core's helper; it has the core's number among threads.
    Helper(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Sleeping,
    Ready,
    Running,
}

/// A thread.
pub(crate) struct Task {
    pub kind: TaskKind,
    pub pinned: Option<usize>,
    /// Where it runs, waits, or ran last.
    pub core: usize,
    pub state: State,
    /// Time it has had, compared with others of its core.
    had_ns: u64,
}

impl Task {
    pub fn new(kind: TaskKind, pinned: Option<usize>, core: usize) -> Self {
        Self { kind, pinned, core, state: State::Sleeping, had_ns: 0 }
    }

    pub fn runs(&self) -> bool {
        self.state == State::Running
    }

    pub fn is_helper(&self) -> bool {
        matches!(self.kind, TaskKind::Helper(_))
    }
}

pub(crate) struct Step {
    pub work: Work,
    start_ns: u64,
}

/// A core and its run queue.
#[derive(Default)]
pub(crate) struct Core {
    pub running: Option<usize>,
    pub ready: Vec<usize>,
    pub helper_ready: bool,
    pub step: Option<Step>,
    epoch: u64,
    slice_end_ns: u64,
    resched: bool,
    last: Option<usize>,
    had_ns: u64,
}

impl World {
    /// Nobody but a helper wants it.
    pub(crate) fn is_idle(&self, core: usize) -> bool {
        let core = &self.cores[core];
        core.ready.is_empty() && core.running.is_none_or(|t| self.tasks[t].is_helper())
    }

    /// … and so it is with the others of its unit.
    pub(crate) fn others_of_unit_idle(&self, core: usize) -> bool {
        self.setup.host.unit(core).all(|other| other == core || self.is_idle(other))
    }

    /// Whether anything runs on a core that shares this one's units, helpers too.
    pub(crate) fn others_of_unit_run(&self, core: usize) -> bool {
        self.setup.host.unit(core).any(|other| other != core && self.cores[other].running.is_some())
    }

    /// Whether somebody does something on a core that shares this one's units; who polls leaves them alone.
    pub(crate) fn sibling_busy(&self, core: usize) -> bool {
        self.setup.host.unit(core).any(|other| {
            other != core && self.cores[other].step.as_ref().is_some_and(|step| !matches!(step.work, Work::Poll))
        })
    }

    /// Makes a sleeping thread ready, and lets it run if it may.
    pub(crate) fn wake(&mut self, task: usize) {
        if self.tasks[task].state != State::Sleeping {
            return;
        }
        self.tasks[task].state = State::Ready;
        if let TaskKind::Helper(core) = self.tasks[task].kind {
            self.cores[core].helper_ready = true;
            if self.cores[core].running.is_none() && self.cores[core].ready.is_empty() {
                self.dispatch(core, true);
            }
            return;
        }
        if matches!(self.tasks[task].kind, TaskKind::Worker(_) | TaskKind::Service(_)) {
            self.stats.thread_wakes += 1;
        }
        let core = self.place(task);
        self.enqueue(task, core);
        match self.cores[core].running {
            None => self.dispatch(core, true),
            Some(other) if self.tasks[other].is_helper() => self.take_away(core),
            Some(other) => {
                let granularity_ns = self.setup.costs.slice as u64 / 3;
                if self.tasks[task].had_ns + granularity_ns < self.tasks[other].had_ns {
                    self.cores[core].resched = true;
                    self.disturb(core);
                }
            }
        }
    }

    fn enqueue(&mut self, task: usize, core: usize) {
        let least = self.cores[core].had_ns.saturating_sub(self.setup.costs.slice as u64 / 2);
        let t = &mut self.tasks[task];
        t.had_ns = if t.core == core { t.had_ns.max(least) } else { self.cores[core].had_ns };
        t.core = core;
        self.cores[core].ready.push(task);
        self.waiting.insert(core);
    }

    /// Where a thread that wakes up goes: where it was, or to an idle core, near ones first.
    fn place(&self, task: usize) -> usize {
        let Task { pinned, core: last, .. } = self.tasks[task];
        if let Some(core) = pinned {
            return core;
        }
        if self.is_idle(last) && self.others_of_unit_idle(last) {
            return last;
        }
        let near = self.setup.host.near(last);
        let all = 0..self.setup.host.cores;
        let whole = |core: &usize| self.is_idle(*core) && self.others_of_unit_idle(*core);
        (near.clone().find(whole))
            .or_else(|| Some(last).filter(|core| self.is_idle(*core)))
            .or_else(|| near.clone().find(|core| self.is_idle(*core)))
            .or_else(|| all.clone().find(|core| self.is_idle(*core)))
            .or_else(|| near.min_by_key(|core| self.cores[*core].ready.len()))
            .unwrap_or(last)
    }

    /// Gives a free core to whoever has had least, to somebody who waits elsewhere, or to its helper.
    fn dispatch(&mut self, core: usize, was_idle: bool) {
        let ready = &self.cores[core].ready;
        let next = (0..ready.len()).min_by_key(|n| (self.tasks[ready[*n]].had_ns, *n)).map(|n| (core, n));
        let Some((from, n)) = next.or_else(|| self.waits_elsewhere(core)) else {
            if self.cores[core].helper_ready {
                self.cores[core].helper_ready = false;
                self.begin_task(core, core, was_idle);
            }
            return;
        };
        let task = self.cores[from].ready.remove(n);
        if self.cores[from].ready.is_empty() {
            self.waiting.remove(&from);
        }
        if from != core {
            self.tasks[task].had_ns = self.cores[core].had_ns;
        }
        self.begin_task(core, task, was_idle);
    }

    fn waits_elsewhere(&self, core: usize) -> Option<(usize, usize)> {
        let movable = |from: &usize| {
            let n = self.cores[*from].ready.iter().position(|t| self.tasks[*t].pinned.is_none())?;
            Some((*from, n))
        };
        let near = self.waiting.range(self.setup.host.near(core)).find_map(movable);
        near.or_else(|| self.waiting.iter().find_map(movable))
    }

    fn begin_task(&mut self, core: usize, task: usize, was_idle: bool) {
        self.tasks[task].state = State::Running;
        self.tasks[task].core = core;
        if self.setup.mechanisms.give_way && !self.tasks[task].is_helper() {
            let helps = |n: &usize| *n != core && self.cores[*n].running.is_some_and(|t| self.tasks[t].is_helper());
            self.setup.host.unit(core).filter(helps).collect::<Vec<_>>().into_iter().for_each(|n| self.send_home(n));
        }
        let now_ns = self.clock.now_ns();
        let costs = &self.setup.costs;
        let (slice_ns, asleep_ns) = (costs.slice as u64, if was_idle { costs.idle_exit as u64 } else { 0 });
        // The papers' helper is the idle loop itself.
        let in_place = self.tasks[task].is_helper() && self.setup.carrier == Carrier::HyperSwitch;
        let change_ns =
            if in_place || self.cores[core].last == Some(task) && !was_idle { 0.0 } else { costs.context_switch };
        let c = &mut self.cores[core];
        c.running = Some(task);
        c.last = Some(task);
        c.resched = false;
        c.slice_end_ns = now_ns + slice_ns;
        self.begin(core, Work::Arrive(asleep_ns), asleep_ns as f64 + change_ns);
    }

    fn begin(&mut self, core: usize, work: Work, ns: f64) {
        let stretch = match work {
            Work::Poll | Work::Arrive(_) => 1.0,
            _ if self.sibling_busy(core) => self.setup.costs.shared_unit,
            _ => 1.0,
        };
        let now_ns = self.clock.now_ns();
        let end_ns = now_ns.saturating_add((ns * stretch).round() as u64);
        let c = &mut self.cores[core];
        c.epoch += 1;
        c.step = Some(Step { work, start_ns: now_ns });
        let epoch = c.epoch;
        // A dedicated core polls without an end.
        if ns.is_finite() {
            self.clock.at(end_ns, Event::Done { core, epoch });
        }
    }

    pub(crate) fn done(&mut self, core: usize, epoch: u64) {
        if self.cores[core].epoch != epoch {
            return;
        }
        if let Some(work) = self.stop_step(core) {
            self.completed(core, work);
            // What it did may have woken somebody who has taken its core.
            if self.cores[core].step.is_none() {
                self.advance(core);
            }
        }
    }

    /// Ends the step of a core, now, and accounts for it.
    fn stop_step(&mut self, core: usize) -> Option<Work> {
        let step = self.cores[core].step.take()?;
        self.cores[core].epoch += 1;
        self.account(core, &step);
        Some(step.work)
    }

    fn account(&mut self, core: usize, step: &Step) {
        let Some(task) = self.cores[core].running else { return };
        let slept_ns = if let Work::Arrive(ns) = step.work { ns } else { 0 };
        let ns = (self.clock.now_ns() - step.start_ns).saturating_sub(slept_ns);
        self.tasks[task].had_ns += ns;
        let had_ns = self.tasks[task].had_ns;
        if !self.tasks[task].is_helper() {
            self.cores[core].had_ns = self.cores[core].had_ns.max(had_ns);
        }
        let account = match (self.tasks[task].kind, step.work) {
            (TaskKind::Helper(_), Work::Poll) => Account::Polling,
            (TaskKind::Helper(_), _) => Account::Idle,
            (TaskKind::Guest(_), Work::Switch(_) | Work::Copy(_) | Work::Entry | Work::Kick | Work::Settle) => {
                Account::Normal
            }
            (TaskKind::Guest(_), _) => Account::Guest,
            _ => Account::Normal,
        };
        self.stats.time_ns[account as usize] += ns;
    }

    /// Accounts for what is under way.
    pub(crate) fn settle_accounts(&mut self) {
        let now_ns = self.clock.now_ns();
        for core in 0..self.cores.len() {
            if let Some(step) = self.cores[core].step.take() {
                self.account(core, &step);
                let work = if let Work::Arrive(ns) = step.work {
                    Work::Arrive(ns.saturating_sub(now_ns - step.start_ns))
                } else {
                    step.work
                };
                self.cores[core].step = Some(Step { work, start_ns: now_ns });
            }
        }
    }

    /// What the running thread does next; if nothing, who runs next.
    pub(crate) fn advance(&mut self, core: usize) {
        let Some(task) = self.cores[core].running else { return self.dispatch(core, false) };
        let c = &self.cores[core];
        if !c.ready.is_empty() && (c.resched || self.clock.now_ns() >= c.slice_end_ns) {
            self.tasks[task].state = State::Ready;
            self.cores[core].running = None;
            self.enqueue(task, core);
            return self.dispatch(core, false);
        }
        let next = match self.tasks[task].kind {
            TaskKind::Guest(guest) => self.guest_next(guest, core),
            TaskKind::Worker(port) => self.worker_next(port, core),
            TaskKind::Service(n) => self.service_next(n, core),
            TaskKind::Helper(_) => self.helper_next(core),
        };
        let debt_ns = std::mem::take(&mut self.debt_ns);
        match next {
            Some((ns, work)) => self.begin(core, work, ns + debt_ns),
            None if debt_ns > 0.0 => self.begin(core, Work::Settle, debt_ns),
            None => {
                self.tasks[task].state = State::Sleeping;
                self.cores[core].running = None;
                self.dispatch(core, false);
            }
        }
    }

    /// Somebody else wants the core of a helper: it stops in the middle of what it does.
    fn take_away(&mut self, core: usize) {
        self.break_off(core, State::Ready);
        self.cores[core].helper_ready = true;
        self.dispatch(core, false);
    }

    /// Somebody else wants the execution units of a helper: it stops and sleeps.
    fn send_home(&mut self, core: usize) {
        self.break_off(core, State::Sleeping);
        self.forget_work(core);
    }

    fn break_off(&mut self, core: usize, state: State) {
        if let Some(work) = self.stop_step(core) {
            self.abandon(work);
        }
        self.polling.remove(&core);
        self.stats.taken_away += 1;
        let now_ns = self.clock.now_ns();
        self.helpers[core].back_off.taken_away(now_ns, now_ns);
        self.tasks[core].state = state;
        self.cores[core].running = None;
    }

    /// Ends computing, so that what is due is done now.
    pub(crate) fn disturb(&mut self, core: usize) {
        if self.cores[core].step.as_ref().is_some_and(|step| matches!(step.work, Work::Compute)) {
            let start_ns = self.cores[core].step.as_ref().map_or(0, |step| step.start_ns);
            let debt_ns = std::mem::take(&mut self.debt_ns);
            let ns = self.clock.now_ns() - start_ns;
            self.stop_step(core);
            self.computed(core, ns);
            self.advance(core);
            self.debt_ns = debt_ns;
        }
    }

    /// Ends polling; what was found is looked at after `ns`.
    pub(crate) fn found_by_polling(&mut self, core: usize, ns: f64) {
        self.polling.remove(&core);
        if self.stop_step(core).is_some() {
            self.begin(core, Work::Poll, ns);
        }
    }

    fn completed(&mut self, core: usize, work: Work) {
        match work {
            Work::Arrive(_) | Work::Settle => {}
            Work::Interrupt | Work::Kick | Work::Entry => self.guest_crossed(core, work),
            Work::Receive(packet) => self.guest_received(packet),
            Work::Send(packet) => self.guest_sent(core, packet),
            // It is a part of it only: the end was cut into pieces as long as a slice.
            Work::Compute => self.computed(core, self.setup.costs.slice as u64),
            Work::Switch(packet) => self.switched(core, packet),
            Work::Copy(packet) => self.copied(core, packet),
            Work::Timer => self.worker_timer(core),
            Work::Fetch(packet) => self.fetched(core, packet),
            Work::Give(packet) => self.given(core, packet),
            Work::Poll => {}
        }
    }
}
