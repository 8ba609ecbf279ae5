//! A port's own thread: it sleeps until the guest kicks, moves what is there, and sleeps again. When nothing has come for a while it ends
//! ([`crate::silence`]). It runs like any other thread, and in the VM's cgroup when it has been put there, so what a guest causes is the guest's (PhD §4.3.1).

use crate::helper::{GUARD_NS, Helpers, OFFER_NS, vm_of};
use crate::mailbox::Mailbox;
use crate::owned_ring::OwnedRing;
use crate::policy::{Arrivals, Batch, Kicks, TransmitTimer, Turn, Turns, Vain, Vm};
use lasthop_forward::{Forwarder, Outcome, Port};
use lasthop_lock::WaitNotice;
use lasthop_sys::{Beat, Epoll, TimerFd, Trigger};
use lasthop_types::Level;
use lasthop_virtqueue::BURST;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often a front-end that asked to be polled is looked at, once nothing was found.
const POLL_NS: u64 = 1_000_000;
/// How often a receiver without buffers is looked at while packets wait for it.
const HOLD_RETRY_NS: u64 = 100_000;
/// How long dear packets, those of which a burst is full before it has as many as it may (`Outcome::more`), keep others of this core
/// waiting: then they have their turn. A thread that woke up meanwhile may have to wait for the kernel's next tick, 4 ms for some,
/// and one that is interrupted by that has a lock more often than not. Often enough for those; seldom enough that what is
/// forfeited of a turn is little beside what was used of it.
const TURN_NS: u64 = 500_000;
/// Rounds with work after which letters and kicks are looked for.
const ROUNDS: u32 = 16;

const LETTERS: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

#[derive(Debug)]
pub(crate) enum Letter {
    /// As what the vring is looked after from now on, if it is.
    Ring(u16, Option<Arc<OwnedRing>>),
    Look,
    Stop,
}

/// What a port's thread has, and leaves to the next one.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: Arc<Port>,
    helpers: Arc<Helpers>,
    /// Kicks, letters and the timer.
    pub(crate) epoll: Epoll,
    pub(crate) mailbox: Arc<Mailbox<Letter>>,
    rings: Vec<Option<PortRing>>,
    turns: Turns,
    vain: Vain,
    /// When others of this core last had their turn.
    yielded_ns: u64,
    /// Processor time of threads that have ended.
    pub(crate) used_ns: u64,
}

/// A ring that the port's thread looks after, or has offered.
#[derive(Debug)]
struct PortRing {
    owned: Arc<OwnedRing>,
    next: Next,
    /// The guest has been asked not to kick.
    kicks_disabled: bool,
    kicked: bool,
    /// Packets since the ring was last empty.
    gathered: usize,
    timer: TransmitTimer,
    arrivals: Arrivals,
    turn: Turn,
    /// The helper it was last offered to, and when, unless for when the guest sleeps.
    offer: Option<(usize, u64)>,
}

/// When a ring is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Now,
    At(u64),
    /// When it is kicked, or somebody says so.
    Woken,
}

/// Whether a ring is on offer, and until when the helper is given way: no thread is to be woken up on its core for each packet meanwhile.
enum Offered {
    Now(u64),
    Before(u64),
    Not,
}

impl Server {
    /// Of a port that has had no thread. `timer`: that of its guest's interrupts.
    pub(crate) fn new(port: &Arc<Port>, helpers: &Arc<Helpers>, timer: &TimerFd) -> io::Result<Self> {
        let (epoll, mailbox) = (Epoll::new()?, Arc::new(Mailbox::new()?));
        mailbox.register(&epoll, LETTERS)?;
        epoll.add(timer, TIMER, Trigger::Edge)?;
        let (rings, turns, vain) = (Vec::new(), Turns::default(), Vain::default());
        let (port, helpers) = (port.clone(), helpers.clone());
        Ok(Self { port, helpers, epoll, mailbox, rings, turns, vain, yielded_ns: 0, used_ns: 0 })
    }

    /// Until there has been nothing to do for long, and all rings are the guest's to kick for: true. False: it is told to stop.
    pub(crate) fn serve(&mut self, forwarder: &mut Forwarder) -> bool {
        let idle_ns = u64::from(self.helpers.settings.told.idle_us) * 1000;
        let idle = Some(Duration::from_nanos(idle_ns)).filter(|idle| !idle.is_zero());
        let mut ready = Vec::with_capacity(64);
        let (mut rounds, mut slept, beat) = (0, true, Beat::new());
        loop {
            beat.work();
            let mut now_ns = forwarder.now_ns();
            if slept {
                self.yielded_ns = now_ns;
            }
            let mut busy = false;
            self.turns.begin();
            // Where one burst reaches a limit that all share, which of them has it is left to chance: to the microsecond.
            let first = (now_ns >> 10) as usize;
            for n in 0..self.rings.len() {
                busy |= self.look_after(forwarder, (first + n) % self.rings.len(), &mut now_ns);
            }
            rounds = (rounds + 1) % ROUNDS;
            if busy && rounds != 0 {
                slept = false;
                continue;
            }
            slept = !busy;
            let sleep = if busy { Some(Duration::ZERO) } else { self.longest_sleep() };
            if !self.wait(&mut ready, sleep.or(idle), &beat) {
                return false;
            }
            // A wait may end early, with nothing.
            let is_over = |began_ns| idle_ns > 0 && forwarder.now_ns().saturating_sub(began_ns) >= idle_ns;
            if sleep.is_none() && ready.is_empty() && is_over(now_ns) {
                return true;
            }
        }
    }

    /// One burst from a ring, if its time and its turn have come. True if there is more.
    fn look_after(&mut self, forwarder: &mut Forwarder, n: usize, now_ns: &mut u64) -> bool {
        let Self { helpers, turns, vain, yielded_ns, .. } = self;
        let Some(Some(ring)) = self.rings.get_mut(n) else { return false };
        if !ring.is_due(*now_ns) {
            return false;
        }
        if ring.leave_to_helper(helpers, *now_ns) {
            ring.next = Next::At(guard_ns(*now_ns));
            return false;
        }
        if !turns.has_turn(&ring.turn) {
            return true;
        }
        let (port, queue) = (&self.port, ring.owned.queue);
        let kicked = std::mem::take(&mut ring.kicked);
        let were_disabled = std::mem::replace(&mut ring.kicks_disabled, true);
        if kicked || !were_disabled {
            forwarder.disable_notifications(port, queue, kicked, || true);
        }
        let (outcome, moved) = ring.owned.carry_burst(forwarder, &mut ring.arrivals, now_ns);
        if let Some(moved) = moved {
            vain.moved(moved.packets);
            turns.took(&mut ring.turn, moved, 1);
        }
        yield_if_due(&outcome, yielded_ns, forwarder, *now_ns);
        ring.gathered += outcome.packets;
        if let Some(next) = ring.waits(&outcome, *now_ns) {
            ring.next = next;
            return false;
        }
        let more = outcome.packets == BURST || outcome.more;
        ring.next = match ring.offer(helpers, forwarder.last_receiver(), outcome.packets, *now_ns) {
            Offered::Now(until_ns) => Next::At(until_ns),
            _ if more => Next::Now,
            Offered::Before(until_ns) => Next::At(until_ns),
            Offered::Not => ring.emptied(helpers, forwarder, *now_ns),
        };
        ring.next == Next::Now
    }

    /// How long to sleep unless somebody kicks; for ever if `None`.
    fn longest_sleep(&self) -> Option<Duration> {
        let times = self.rings.iter().flatten().filter_map(|ring| match ring.next {
            Next::Now => Some(0),
            Next::At(then_ns) => Some(then_ns),
            Next::Woken => None,
        });
        Some(Duration::from_nanos(times.min()?.saturating_sub(self.helpers.datapath.now_ns())))
    }

    /// Waits for kicks and letters; false when told to stop.
    fn wait(&mut self, ready: &mut Vec<u64>, timeout: Option<Duration>, beat: &Beat) -> bool {
        beat.sleep();
        if self.epoll.wait(ready, timeout).is_err() {
            return false;
        }
        beat.work();
        let (mut goes_on, mut kicked) = (true, false);
        for token in ready.iter() {
            match *token {
                LETTERS => goes_on &= self.read_letters(),
                // For what goes on waiting the timer is set again.
                TIMER => drop(self.port.look_after_guest(false)),
                n => {
                    if let Some(Some(ring)) = self.rings.get_mut(n as usize) {
                        ring.next = Next::Now;
                        ring.kicked = true;
                        kicked = true;
                    }
                }
            }
        }
        if kicked && let Some(pause) = self.vain.kicked(self.helpers.datapath.now_ns()) {
            beat.sleep();
            std::thread::sleep(pause);
            beat.work();
        }
        goes_on
    }

    fn read_letters(&mut self) -> bool {
        for letter in self.mailbox.take() {
            match letter {
                Letter::Ring(queue, owned) => {
                    for place in self.rings.iter_mut().filter(|r| r.as_ref().is_some_and(|r| r.owned.queue == queue)) {
                        if let Some(kick) = place.take().as_ref().and_then(|ring| ring.owned.kick.as_ref()) {
                            // Closing our copy is not enough: the front-end keeps one, and epoll goes by the file.
                            let _ = self.epoll.delete(kick);
                        }
                    }
                    owned.into_iter().for_each(|owned| self.attach(owned));
                }
                Letter::Look => self.rings.iter_mut().flatten().for_each(|ring| ring.next = Next::Now),
                Letter::Stop => return false,
            }
        }
        true
    }

    fn attach(&mut self, owned: Arc<OwnedRing>) {
        let n = self.rings.iter().position(Option::is_none).unwrap_or(self.rings.len());
        if n == self.rings.len() {
            self.rings.push(None);
        }
        if let Some(kick) = &owned.kick
            && let Err(error) = self.epoll.add(kick, n as u64, Trigger::Edge)
        {
            let what = "kick descriptor cannot be waited for; its packets are not looked for";
            let line = format!("{what}: {error} queue={}", owned.queue);
            return self.helpers.datapath.say(self.port.id, Level::Warn, line);
        }
        // The guest may have made packets available before we could hear its kick.
        self.rings[n] = Some(PortRing {
            owned,
            next: Next::Now,
            kicks_disabled: false,
            kicked: false,
            gathered: 0,
            timer: TransmitTimer::new(self.helpers.settings.told.drawn_timer),
            arrivals: Arrivals::default(),
            turn: Turn::default(),
            offer: None,
        });
    }
}

/// When a ring that a helper has, or may have, is looked after next. At the same time for all rings, so that the helper loses its core once.
fn guard_ns(now_ns: u64) -> u64 {
    (now_ns / GUARD_NS + 1) * GUARD_NS
}

/// Gives others of this core their turn after [`TURN_NS`] of dear packets.
fn yield_if_due(outcome: &Outcome, yielded_ns: &mut u64, forwarder: &Forwarder, now_ns: u64) {
    if outcome.more && now_ns.saturating_sub(*yielded_ns) > TURN_NS {
        std::thread::yield_now();
        *yielded_ns = forwarder.now_ns();
    }
}

impl PortRing {
    /// It is to be looked at now.
    fn is_due(&self, now_ns: u64) -> bool {
        match self.next {
            Next::Now => true,
            Next::At(then_ns) => then_ns <= now_ns,
            Next::Woken => false,
        }
    }

    /// True if a helper owns the ring, which is left to it. It is taken away from a helper that has lost its core.
    fn leave_to_helper(&mut self, helpers: &Helpers, now_ns: u64) -> bool {
        let Some(helper) = self.owned.owner.reclaim() else { return false };
        // By the helper, when it took the ring.
        self.kicks_disabled = true;
        let lost = helpers.is_lost(helper, now_ns);
        if lost {
            self.owned.owner.take_away(helper);
            helpers.avoid(helper, self.offer.map_or(now_ns, |(_, since_ns)| since_ns), now_ns);
            helpers.boost(WaitNotice::HolderUnknown);
        }
        !lost
    }

    /// The ring has been emptied: asks the guest for its next kick, and says when to look again. `Now`: the guest was faster.
    fn emptied(&mut self, helpers: &Helpers, forwarder: &mut Forwarder, now_ns: u64) -> Next {
        let (port, queue) = (&self.owned.port, self.owned.queue);
        let (gathered, vm) = (std::mem::take(&mut self.gathered), vm_of(helpers.settings.view, port));
        let mut batch = Batch::of(&port.batches[0]);
        // No longer than the batch takes to come: not every guest can kick for its last packet.
        if !helpers.settings.told.drawn_timer {
            batch.period_ns = batch.period_ns.min(self.arrivals.gap_ns() * u64::from(batch.packets));
        }
        let kicks = self.timer.emptied(&batch, gathered, vm, now_ns);
        let next = match kicks {
            _ if self.owned.kick.is_none() => Next::At(now_ns + POLL_NS),
            Kicks::Batch { packets, due_ns } => {
                forwarder.rearm_notifications(port, queue, packets.saturating_sub(1), || true);
                // Work before blocking (PhD §4.3.5): nothing waits for the timer once the guest sleeps.
                if let Vm::Running(core) = vm
                    && let Some(helper) = helpers.on(core)
                {
                    helpers.offer(helper, &self.owned, None);
                }
                Next::At(due_ns)
            }
            Kicks::Next if forwarder.rearm_notifications(port, queue, 0, || true) => Next::Now,
            Kicks::Next if self.owned.owner.is_own() => Next::Woken,
            // A helper has claimed it meanwhile, and may have asked the guest not to kick.
            Kicks::Next => Next::At(guard_ns(now_ns)),
        };
        self.kicks_disabled = next == Next::Now;
        next
    }

    /// When the ring is to be looked at, if it was left with packets that cannot go on now.
    fn waits(&self, outcome: &Outcome, now_ns: u64) -> Option<Next> {
        match outcome.until_ns {
            Some(until_ns) => Some(Next::At(until_ns)),
            // Until control has answered, unless a helper takes it meanwhile.
            None if outcome.stalled && !outcome.short_of_buffers && self.owned.owner.is_own() => Some(Next::Woken),
            None if outcome.stalled && !outcome.short_of_buffers => Some(Next::At(guard_ns(now_ns))),
            None if outcome.short_of_buffers && !outcome.more => Some(Next::At(now_ns + HOLD_RETRY_NS)),
            None => None,
        }
    }

    /// Offers the ring to an idle core if more packets are expected soon.
    fn offer(&mut self, helpers: &Helpers, receiver: Option<&Port>, packets: usize, now_ns: u64) -> Offered {
        if self.owned.owner.is_offered() {
            let way_ns = self.offer.map_or(GUARD_NS, |(helper, _)| helpers.way_ns(helper));
            let young = |(_, since_ns)| now_ns.saturating_sub(since_ns) <= OFFER_NS + way_ns;
            if self.offer.is_some_and(young) || !self.owned.owner.withdraw() {
                return Offered::Before(now_ns + way_ns);
            }
            if let Some((helper, since_ns)) = self.offer {
                helpers.avoid(helper, since_ns, now_ns);
            }
        }
        self.offer = None;
        // A ring that has just been found empty is worth nobody's time: its arrivals are those of when it had packets.
        if packets > 0
            && let Some(arrivals) = helpers.expects_more(self.arrivals, packets, now_ns)
        {
            let hash = u64::from(self.owned.port.id.0) << 8 | u64::from(self.owned.queue);
            if let Some(helper) = helpers.choose(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15), receiver, now_ns) {
                helpers.offer(helper, &self.owned, Some(arrivals));
                self.offer = Some((helper, now_ns));
                return Offered::Now(now_ns + helpers.way_ns(helper));
            }
        }
        Offered::Not
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::Settings;
    use lasthop_forward::Datapath;
    use lasthop_sys::{EventFd, PeerEvent};
    use lasthop_types::PortId;

    #[test]
    fn kicks_that_cannot_be_waited_for_fill_no_log() {
        let datapath = Arc::new(Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
        let port = Arc::new(Port::new(PortId(1), "x".into()));
        let helpers = Arc::new(Helpers::new(datapath.clone(), Settings::default()).unwrap());
        let mut server = Server::new(&port, &helpers, &TimerFd::new().unwrap()).unwrap();
        let kick = PeerEvent::new(std::os::fd::OwnedFd::from(EventFd::new().unwrap())).unwrap();
        // Watched already, it cannot be watched again.
        let owned = Arc::new(OwnedRing::new(port, 1, Some(kick)));
        (0..1001).for_each(|_| server.attach(owned.clone()));
        let lines: Vec<_> = std::iter::from_fn(|| datapath.take_line(PortId(0))).collect();
        let left_out: u64 = lines.iter().map(|line| line.left_out).sum();
        assert_eq!((lines.len() as u64 + left_out, lines.len() < 100), (1000, true), "{left_out}");
        assert!(lines.iter().all(|line| line.port == PortId(1) && line.text.ends_with(" queue=1")), "{lines:?}");
        assert_eq!(server.rings.iter().flatten().count(), 1);
    }
}
