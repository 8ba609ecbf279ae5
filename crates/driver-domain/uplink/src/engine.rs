//! The thread of one queue pair. It carries what is there in bursts and sleeps when nothing is; while it carries, the switch
//! is asked for no interrupts.

use crate::counters::{Counters, Reason};
use crate::device::{DeviceError, Got, Queue};
use crate::pair::{Packet, Pair};
use crate::room::BATCH;
use arrayvec::ArrayVec;
use lasthop_sys::EventFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

/// Most frames that are thrown away at once.
const STALE_MOST: usize = 100_000;

/// Rounds with something to carry after which the switch is told. It would be woken, and take this core if it has no other, for
/// each burst; what it has been shown it sees at once if it is awake.
const ROUNDS: u32 = 4;

/// What an engine is told.
#[derive(Clone, Debug)]
pub enum Order {
    /// The switch is gone: take everything that it has done from the rings, stop, and answer.
    Pause,
    /// There is a switch again.
    Resume {
        /// What waits in the device has done so for too long to be delivered.
        stale: bool,
    },
    /// While paused: receive, for the sake of probes, and throw all of it away.
    Listen,
    /// Answer.
    Ping,
    /// The device is to go with the process, if it is ours. Answer when that is arranged.
    End,
}

/// What it answers.
#[derive(Debug)]
pub enum Answer {
    /// To `Pause`: where the rings stand, as SET_VRING_BASE wants it.
    Paused([u32; 2]),
    /// To `Ping`.
    Alive,
    /// To `End`.
    Ended,
    /// It cannot go on.
    Failed(DeviceError),
}

/// How to reach an engine.
#[derive(Debug)]
pub struct Handle {
    orders: Sender<Order>,
    wake: EventFd,
    /// What it answers.
    pub answers: Receiver<Answer>,
}

impl Handle {
    /// Tells it something.
    pub fn order(&self, order: Order) {
        // One that has ended has said why.
        let _ = self.orders.send(order);
        self.wake.signal();
    }
}

/// The state of the thread.
#[derive(Debug)]
pub struct Engine {
    pair: Pair,
    queue: Queue,
    counters: Arc<Counters>,
    orders: Receiver<Order>,
    answers: Sender<Answer>,
    /// Signalled with every order.
    wake: EventFd,
    /// Signalled with every answer.
    answered: EventFd,
    running: bool,
    /// Packets from the ring; those from `next` to `end` are not sent yet.
    batch: Vec<Packet>,
    next: usize,
    end: usize,
    /// The device takes no more now.
    blocked: bool,
    /// The switch has all slots.
    stalled: bool,
}

impl Engine {
    /// An engine that is not running yet. `answered` is signalled when it answers.
    pub fn new(pair: Pair, queue: Queue, counters: Arc<Counters>, answered: EventFd) -> Result<(Self, Handle), Errno> {
        let wake = EventFd::new()?;
        let (orders, inbox) = std::sync::mpsc::channel();
        let (outbox, answers) = std::sync::mpsc::channel();
        let handle = Handle { orders, wake: wake.try_clone()?, answers };
        let engine = Self {
            pair,
            queue,
            counters,
            orders: inbox,
            answers: outbox,
            wake,
            answered,
            running: false,
            batch: vec![Packet::default(); BATCH],
            next: 0,
            end: 0,
            blocked: false,
            stalled: false,
        };
        Ok((engine, handle))
    }

    /// Carries packets until the other end of the orders is gone.
    pub fn run(mut self) {
        if let Err(e) = self.carry() {
            self.answer(Answer::Failed(e));
        }
    }

    fn answer(&self, answer: Answer) {
        let _ = self.answers.send(answer);
        self.answered.signal();
    }

    fn carry(&mut self) -> Result<(), DeviceError> {
        let mut rounds = 0;
        loop {
            loop {
                match self.orders.try_recv() {
                    Ok(order) => self.obey(order)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            if self.running {
                let more = self.send()? | self.receive()?;
                rounds += 1;
                if !more || rounds == ROUNDS {
                    rounds = 0;
                    self.pair.from_network.kick_if_due();
                }
                if more || self.prepare_to_sleep() {
                    continue;
                }
            } else if self.pair.sieve.listening && self.receive()? {
                continue;
            }
            self.sleep().map_err(DeviceError::Io)?;
        }
    }

    fn obey(&mut self, order: Order) -> Result<(), DeviceError> {
        match order {
            Order::Pause => {
                // What the switch has delivered still goes out; where the rings stand is known when all is taken.
                while self.running && self.send()? {}
                self.pair.from_network.reclaim_all()?;
                self.running = false;
                self.blocked = false;
                let bases = [self.pair.to_network.ring.base(), self.pair.from_network.ring.base()];
                self.answer(Answer::Paused(bases));
            }
            Order::Listen => {
                let lost = self.pair.listen()?;
                self.counters.dropped_several(Reason::LostFromNetwork, lost);
            }
            Order::Resume { stale } => {
                let listened = std::mem::take(&mut self.pair.sieve.listening);
                // Who listens has left nothing waiting.
                if stale && !listened {
                    self.discard()?;
                }
                (self.running, self.stalled) = (true, false);
                // What was added meanwhile the new switch has not been told of.
                self.pair.to_network.kick();
                self.pair.from_network.kick();
            }
            Order::Ping => {
                self.queue.check()?;
                self.queue.count_overruns(&self.pair.progress, &self.counters);
                self.answer(Answer::Alive);
            }
            Order::End => {
                self.queue.end();
                self.answer(Answer::Ended);
            }
        }
        Ok(())
    }

    /// From the ring to the device; true if there may be more.
    fn send(&mut self) -> Result<bool, DeviceError> {
        if self.next == self.end {
            (self.next, self.end) = (0, 0);
            while let Some(packet) = self.batch.get_mut(self.end) {
                if !self.pair.next(packet)? {
                    break;
                }
                self.end += 1;
            }
        }
        let packets = self.batch.get(self.next..self.end).unwrap_or_default();
        if packets.is_empty() {
            self.pair.to_network.publish();
            return Ok(false);
        }
        let sent = self.queue.send(&mut self.pair, packets, &self.counters)?;
        self.next += sent.done;
        self.blocked = sent.blocked;
        if sent.blocked {
            self.pair.to_network.publish();
        }
        Ok(!sent.blocked)
    }

    /// From the device to the ring; true if there may be more.
    fn receive(&mut self) -> Result<bool, DeviceError> {
        let got = self.queue.receive(&mut self.pair, &self.counters)?;
        self.stalled = got == Got::Stalled;
        Ok(got == Got::More)
    }

    /// Asks to be woken; true if something came meanwhile.
    fn prepare_to_sleep(&mut self) -> bool {
        let mut more = !self.blocked && self.pair.to_network.ring.enable_calls();
        if self.stalled {
            more |= self.pair.from_network.ring.enable_calls();
        }
        more
    }

    /// With poll(2) and not epoll(7), which would have the kernel call it for every frame that comes or goes while we are awake. And
    /// a process that stands by is not to be told of frames at all.
    fn sleep(&mut self) -> Result<(), Errno> {
        let receives = if self.running { !self.stalled } else { self.pair.sieve.listening };
        let calls = [&self.wake, &self.pair.to_network.call, &self.pair.from_network.call];
        let mut fds: ArrayVec<PollFd<'_>, 6> = calls.iter().map(|call| PollFd::new(*call, PollFlags::IN)).collect();
        if receives {
            let sources = std::iter::once(self.queue.as_fd()).chain(self.queue.others());
            fds.extend(sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        if self.running && self.blocked {
            fds.extend(self.queue.writable().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
        }
        let again = self.queue.again().filter(|_| self.running);
        let again = again.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, again.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        for (call, fd) in calls.iter().zip(&fds) {
            if !fd.revents().is_empty() {
                call.drain();
            }
        }
        self.pair.to_network.ring.disable_calls();
        self.pair.from_network.ring.disable_calls();
        Ok(())
    }

    /// Throws away what waited in the device for a switch that was away for long.
    fn discard(&mut self) -> Result<(), DeviceError> {
        let Some(slot) = self.pair.from_network.take() else { return Ok(()) };
        let run = self.pair.from_network.slot(slot);
        for _ in 0..STALE_MOST {
            if self.pair.arena.read(self.queue.as_fd(), run).is_err() {
                break;
            }
            self.counters.dropped(Reason::Stale);
        }
        self.pair.from_network.put_back(slot);
        Ok(())
    }
}
