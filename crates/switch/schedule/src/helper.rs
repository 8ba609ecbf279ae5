//! Helpers: a thread for each core that works on cycles nobody else wants (PhD §4.3.4, figure 4.5).
//!
//! A helper is in the idle class (SCHED_IDLE): the kernel takes the core from it at any instruction, as soon as anybody
//! else can run there. What it was about is finished on borrowed time: a thread that needs a ring of a helper that makes
//! no progress has the helper put into the normal class ([`Helpers::boost`]) until the ring is free.

use crate::boosted::Boosted;
use crate::mailbox::Mailbox;
use crate::owned_ring::OwnedRing;
use crate::policy::{Arrivals, BackOff, Core, Hysteresis, Turn, Turns, Vm, choose_core};
use crate::silence::Silent;
use crate::workers::Settings;
use lasthop_forward::{CACHE_ENTRIES, Datapath, Forwarder, Port};
use lasthop_lock::{Lock, WaitNotice};
use lasthop_sys::hostview::{HostView, VmState};
use lasthop_sys::{Beat, Epoll, bind_current_thread, current_thread, set_idle};
use lasthop_types::{Level, POLLED_NOWHERE, PortId, fall_to, polled_by};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A round that takes longer has been interrupted, or has moved packets.
const ROUND_NS: u64 = 5_000;
/// A helper that owns rings and shows no sign of life for so long has lost its core. More than the largest burst takes.
const LOST_NS: u64 = 1_000_000;
/// An offer that nobody has taken for so long: that core has other things to do.
pub(crate) const OFFER_NS: u64 = 200_000;
/// How long a ring just offered is left for the helper to take: its core may be the one that its port's thread is on. And for how much longer for each
/// letter that the helper has not read: rather more than a thread takes that wakes up for a packet and offers its ring, as others of that core are
/// about to. Without, some wake up again before all have gone to sleep, and the helper never gets to run.
const GIVE_WAY_NS: u64 = 50_000;
const EACH_NS: u64 = 20_000;
/// How often a ring that a helper owns is looked after: the longest that packets lie if its core is taken away.
pub(crate) const GUARD_NS: u64 = 1_000_000;
/// How often a helper sees to it that it is in the idle class.
const HUMBLE_NS: u64 = 10_000_000;
/// What [`Helper::beat_ns`] says when nothing is to be expected of it.
const ASLEEP: u64 = u64::MAX;

/// All helpers of a switch, and behind them those that poll. Shared by everybody.
#[derive(Debug)]
pub(crate) struct Helpers {
    pub(crate) all: Vec<Helper>,
    pub(crate) datapath: Arc<Datapath>,
    pub(crate) settings: Settings,
    /// How long they look for more before they sleep.
    pub(crate) hysteresis: Hysteresis,
    pub(crate) silent: Lock<Silent>,
    /// What all ports' threads have found, together.
    arrivals: Lock<Arrivals>,
}

#[derive(Debug)]
pub(crate) struct Helper {
    cpu: usize,
    /// It owns its core, and its rings for good.
    polls: bool,
    pub(crate) mailbox: Mailbox<Letter>,
    /// When it last polled its rings. Relaxed: a time, compared with limits that are longer than any store takes to be seen.
    beat_ns: AtomicU64,
    thread: OnceLock<i32>,
    boosted: Boosted,
    back_off: Lock<BackOff>,
}

#[derive(Debug)]
pub(crate) enum Letter {
    Offer(Arc<OwnedRing>, Option<Arrivals>),
    /// An interrupt of this port's guest is held back: it is due once the helper gets to run. One that polls looks when it is.
    InterruptDue(Arc<Port>),
    #[cfg(test)]
    Stop,
}

impl Helpers {
    pub(crate) fn new(datapath: Arc<Datapath>, settings: Settings) -> io::Result<Self> {
        let (base_ns, limit_ns) = settings.told.hysteresis_us;
        let hysteresis = Hysteresis { base_ns: u64::from(base_ns) * 1000, limit_ns: u64::from(limit_ns) * 1000 };
        let helpers = settings.told.helpers.iter().filter(|_| settings.prompter.is_some());
        let cpus = helpers.map(|cpu| (*cpu, false)).chain(settings.told.poll.iter().map(|cpu| (*cpu, true)));
        let helper = |(cpu, polls)| {
            let (mailbox, beat_ns, thread) = (Mailbox::new()?, AtomicU64::new(ASLEEP), OnceLock::new());
            Ok(Helper { cpu, polls, mailbox, beat_ns, thread, boosted: Boosted::default(), back_off: Lock::default() })
        };
        let all = cpus.map(helper).collect::<io::Result<_>>()?;
        Ok(Self { all, datapath, settings, hysteresis, silent: Lock::default(), arrivals: Lock::default() })
    }

    /// Starts their threads, each bound to its core.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let start = |(n, helper): (usize, &Helper)| {
            let epoll = Epoll::new()?;
            helper.mailbox.register(&epoll, 0)?;
            let forwarder = Forwarder::new(self.datapath.clone(), CACHE_ENTRIES);
            let (helpers, claimed, held, turns) = (self.clone(), Vec::new(), Vec::new(), Turns::default());
            let mut thread = Thread { n, helpers, forwarder, epoll, claimed, held, turns, found_ns: 0, awake_ns: 0 };
            let name = format!("{}-{}", if helper.polls { "poll" } else { "helper" }, helper.cpu);
            std::thread::Builder::new().name(name).spawn(move || thread.serve()).map(drop)
        };
        self.all.iter().enumerate().try_for_each(start)
    }

    /// A port's thread has found so many packets in a ring with these `arrivals`. Those by which a helper is to have the ring, if more are expected
    /// soon: the ring's own, or, for a helper's part, those of all rings that ports' threads look after. Many rings with few packets each keep a core
    /// as busy as one with many, and busier, for each packet wakes a thread; and so few come because it is busy.
    pub(crate) fn expects_more(&self, arrivals: Arrivals, packets: usize, now_ns: u64) -> Option<Arrivals> {
        // Whoever finds another thread at it goes by its own: a thread may be stopped at any moment.
        let all = self.arrivals.try_lock().filter(|_| packets > 0).map(|mut all| {
            all.found(packets, now_ns);
            all.part_of(self.idling().count())
        });
        [Some(arrivals), all].into_iter().flatten().find(|found| found.expects_more(&self.hysteresis))
    }

    /// How long a ring that is on offer to helper `n` is left for it to take.
    pub(crate) fn way_ns(&self, n: usize) -> u64 {
        let before = self.all.get(n).map_or(0, |helper| helper.mailbox.waiting() as u64);
        (GIVE_WAY_NS + before * EACH_NS).min(GUARD_NS)
    }

    /// The helper that is to be offered a ring with this hash, whose packets last went to `receiver`; `None` if no core is
    /// idle, as far as is known.
    pub(crate) fn choose(&self, hash: u64, receiver: Option<&Port>, now_ns: u64) -> Option<usize> {
        let cache = match receiver.map(|port| vm_of(self.settings.view, port)) {
            Some(Vm::Running(core)) => self.settings.view.and_then(|view| Some(view.place(core)?.llc as u16)),
            _ => None,
        };
        let us = std::process::id();
        choose_core(self.idling().map(|helper| self.core(helper, us, now_ns)), cache, hash)
    }

    /// Those that do not poll.
    fn idling(&self) -> impl Iterator<Item = &Helper> + Clone {
        self.all.iter().filter(|helper| !helper.polls)
    }

    fn core(&self, helper: &Helper, us: u32, now_ns: u64) -> Core {
        let backs_off = helper.back_off.lock().holds(now_ns);
        let Some(view) = self.settings.view.as_ref() else { return Core { backs_off, ..Core::default() } };
        // A thread of ours is about to sleep or is a helper itself, unless it polls.
        let polled = |core| self.all.iter().any(|other| other.polls && other.cpu == core);
        let free = |core| view.core(core).map(|c| c.idle || c.idle_class_only || c.tgid == us && !polled(core));
        let place = view.place(helper.cpu).unwrap_or_default();
        let sibling =
            |core: &usize| *core != helper.cpu && view.place(*core).is_some_and(|p| p.physical == place.physical);
        let sibling_busy = (0..view.cores()).filter(sibling).any(|core| free(core) == Some(false));
        Core { idle: free(helper.cpu), sibling_busy, cache: place.llc as u16, backs_off }
    }

    /// The helper on this core.
    pub(crate) fn on(&self, core: usize) -> Option<usize> {
        self.idling().position(|helper| helper.cpu == core)
    }

    /// Has a ring polled by a core that does nothing else: by the one that its port is set to, or that it falls to by its number if that one is not
    /// there, or could not be bound to its core. `None` if its port's thread is to look after it: none polls, or the port is set so.
    pub(crate) fn place(&self, owned: &Arc<OwnedRing>) -> Option<usize> {
        let cpu = owned.port.poll_cpu.load(Ordering::Relaxed);
        let can = |helper: &Helper| helper.polls && cpu != POLLED_NOWHERE && !helper.back_off.lock().holds(0);
        let can = self.all.iter().enumerate().filter(|(_, helper)| can(helper));
        let set = can.clone().find(|(_, helper)| helper.cpu == usize::from(cpu));
        let falls = || can.clone().nth(fall_to(polled_by(owned.port.id, owned.queue), can.clone().count()));
        set.or_else(falls).map(|(n, _)| n).inspect(|n| self.offer(*n, owned, Some(Arrivals::default())))
    }

    /// Tells helper `n` of a ring that it may claim and poll while it has packets; without `arrivals` only to empty it once.
    pub(crate) fn offer(&self, n: usize, owned: &Arc<OwnedRing>, arrivals: Option<Arrivals>) {
        if let Some(helper) = self.all.get(n).filter(|_| owned.owner.offer(n)) {
            helper.mailbox.send(Letter::Offer(owned.clone(), arrivals));
        }
    }

    /// Asks helper `n` to send this port's deferred interrupt. It runs only when its core is free, that is, once the guest has blocked; or it polls,
    /// and looks at the clock and the guest.
    pub(crate) fn interrupt_when_due(&self, n: usize, port: &Arc<Port>) {
        self.all.get(n).into_iter().for_each(|helper| helper.mailbox.send(Letter::InterruptDue(port.clone())));
    }

    /// Whether helper `n`, which owns a ring, does not get to look after it.
    pub(crate) fn is_lost(&self, n: usize, now_ns: u64) -> bool {
        let Some(helper) = self.all.get(n) else { return true };
        // ASLEEP is in the future.
        !helper.polls && now_ns.saturating_sub(helper.beat_ns.load(Ordering::Relaxed)) > LOST_NS
    }

    /// Helper `n`'s core, which a ring was offered at `since_ns`, has other things to do: it is not asked for a while.
    pub(crate) fn avoid(&self, n: usize, since_ns: u64, now_ns: u64) {
        self.all.get(n).into_iter().for_each(|helper| helper.back_off.lock().taken_away(since_ns, now_ns));
    }

    /// Somebody waits for a lock: helpers that may hold it and do not get to run are put into the normal class, until
    /// they have polled their rings once. A port's thread that is known to hold it is taken out of its VM's control group, and put back when the
    /// wait is over.
    pub(crate) fn boost(&self, notice: WaitNotice) {
        // Without there are no helpers, and a core that polls is never lost.
        let Some(prompter) = &self.settings.prompter else { return };
        match notice {
            WaitNotice::HolderUnknown => {}
            WaitNotice::HolderStopped(thread) => prompter.ask(thread),
            WaitNotice::Over(thread) => prompter.ask(-thread),
        }
        let now_ns = self.datapath.now_ns();
        for (_, helper) in self.all.iter().enumerate().filter(|(n, _)| self.is_lost(*n, now_ns)) {
            if let Some(thread) = helper.thread.get().filter(|_| helper.boosted.ask()) {
                prompter.ask(*thread);
            }
        }
    }
}

/// What the view says of the VM at a port.
pub(crate) fn vm_of(view: Option<HostView>, port: &Port) -> Vm {
    match port.vm().and_then(|vm| view?.vm(vm)) {
        None => Vm::Unknown,
        Some(VmState::Running { core }) => Vm::Running(core as usize),
        Some(VmState::Blocked { .. }) => Vm::Blocked,
    }
}

/// The inside of a helper's thread.
struct Thread {
    n: usize,
    helpers: Arc<Helpers>,
    forwarder: Forwarder,
    epoll: Epoll,
    claimed: Vec<Claimed>,
    /// Ports with interrupts that are held back.
    held: Vec<Arc<Port>>,
    turns: Turns,
    /// When any ring last had packets, by [`Thread::awake_ns`].
    found_ns: u64,
    /// A clock that stands still while the core has other things to do.
    awake_ns: u64,
}

/// A ring that this helper owns.
struct Claimed {
    owned: Arc<OwnedRing>,
    arrivals: Arrivals,
    turn: Turn,
    patient: bool,
    /// When it last had packets, or was taken, by [`Thread::awake_ns`].
    found_ns: u64,
}

impl Thread {
    fn serve(&mut self) {
        let helpers = self.helpers.clone();
        let Some(helper) = helpers.all.get(self.n) else { return };
        let thread = current_thread();
        let (bound, idles) = (bind_current_thread(helper.cpu), !helper.polls && !helpers.settings.told.not_idle);
        if let Err(error) = bound.and_then(|()| if idles { set_idle(0, true) } else { Ok(()) }) {
            // One that is not bound, or is in nobody's way only by chance, is worse than none.
            let line = format!("no helper on this core: {error} cpu={}", helper.cpu);
            helpers.datapath.say(PortId(0), Level::Warn, line);
            helper.back_off.lock().for_ever();
            return;
        }
        let _ = helper.thread.set(thread);
        let (mut ready, beat) = (Vec::with_capacity(1), Beat::new());
        let (mut humble_ns, mut before_ns) = (0, 0);
        loop {
            beat.work();
            // From now on it may have locks.
            let now_ns = helpers.datapath.now_ns();
            helper.beat_ns.store(now_ns, Ordering::Relaxed);
            self.awake_ns += now_ns.saturating_sub(before_ns).min(ROUND_NS);
            before_ns = now_ns;
            for letter in helper.mailbox.take() {
                match letter {
                    Letter::Offer(owned, arrivals) => self.claim(owned, arrivals),
                    Letter::InterruptDue(port) => {
                        self.held.retain(|held| !Arc::ptr_eq(held, &port));
                        self.held.push(port);
                    }
                    #[cfg(test)]
                    Letter::Stop => return,
                }
            }
            self.held.retain(|port| port.look_after_guest(!helper.polls));
            // Whoever was asked to boost us may only do so when we need it no longer: it must not stay like that.
            if idles && (now_ns >= humble_ns || helper.boosted.is_asked()) {
                helper.boosted.put_back(|| {
                    let _ = set_idle(0, true);
                });
                humble_ns = now_ns + HUMBLE_NS;
            }
            if self.claimed.is_empty() && self.held.is_empty() {
                helper.beat_ns.store(ASLEEP, Ordering::Relaxed);
                beat.sleep();
                if self.epoll.wait(&mut ready, None).is_err() {
                    return;
                }
                continue;
            }
            self.poll_rings(helper, now_ns);
        }
    }

    fn claim(&mut self, owned: Arc<OwnedRing>, arrivals: Option<Arrivals>) {
        let disable =
            |still: &dyn Fn() -> bool| self.forwarder.disable_notifications(&owned.port, owned.queue, false, still);
        if owned.owner.claim(self.n, disable) {
            let (patient, arrivals) = (arrivals.is_some(), arrivals.unwrap_or_default());
            self.claimed.push(Claimed { owned, arrivals, turn: Turn::default(), patient, found_ns: self.awake_ns });
        }
    }

    /// One burst from each ring whose turn it is.
    fn poll_rings(&mut self, helper: &Helper, mut now_ns: u64) {
        let mut i = 0;
        self.turns.begin();
        while let Some(claimed) = self.claimed.get_mut(i) {
            helper.beat_ns.store(now_ns, Ordering::Relaxed);
            if claimed.owned.owner.helper() != Some(self.n) {
                self.claimed.swap_remove(i);
                continue;
            }
            if !self.turns.has_turn(&claimed.turn) {
                claimed.found_ns = self.awake_ns;
                i += 1;
                continue;
            }
            let (arrivals, port) = (&mut claimed.arrivals, Arc::as_ptr(&claimed.owned.port));
            let (outcome, moved) = claimed.owned.carry_burst(&mut self.forwarder, arrivals, &mut now_ns);
            // Those of its port that have packets, too, go by one weight together. Who has moved nothing is charged nothing.
            let shares = |c: &&Claimed| Arc::as_ptr(&c.owned.port) == port && self.turns.is_ahead(&c.turn);
            let rings = moved.map_or(0, |_| self.claimed.iter().filter(shares).count());
            let Some(claimed) = self.claimed.get_mut(i) else { break };
            if let Some(moved) = moved {
                self.turns.took(&mut claimed.turn, moved, rings.max(1));
            }
            // Packets that wait for a receiver's buffers wait for milliseconds at most.
            if outcome.packets > 0 || outcome.short_of_buffers {
                claimed.found_ns = self.awake_ns;
                self.found_ns = self.awake_ns;
            }
            let since = |then_ns| self.awake_ns.saturating_sub(then_ns);
            let patience_ns = self.helpers.hysteresis.patience_ns(&claimed.arrivals, since(self.found_ns));
            let silent = since(claimed.found_ns) > patience_ns || !claimed.patient && outcome.packets == 0;
            let stuck = outcome.stalled || outcome.until_ns.is_some();
            let done = !helper.polls && (silent || stuck);
            if done && !self.give_back(i, stuck) {
                self.claimed.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Gives a ring back to its port's thread; true if the helper keeps it after all, because it has packets again. With packets that wait for
    /// control, or for what a limit allows (`stuck`), it is the port's thread that looks after them, next time it looks whether the helper still
    /// polls the ring.
    fn give_back(&mut self, i: usize, stuck: bool) -> bool {
        let Some(Claimed { owned, found_ns, .. }) = self.claimed.get_mut(i) else { return false };
        let rearm =
            |keep: &dyn Fn() -> bool| !stuck && self.forwarder.rearm_notifications(&owned.port, owned.queue, 0, keep);
        let keeps = owned.owner.give_back_or_keep(self.n, rearm);
        if keeps {
            *found_ns = self.awake_ns;
        }
        keeps
    }
}
