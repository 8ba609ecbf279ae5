//! What becomes of packets, a part in a turn. One list of actions may have thousands of outputs of 64 KiB each: frames are made when they are sent, and what is
//! more than a turn's bytes waits for the next. Until then it is a few hundred bytes for each output, and all share what is behind the header.

use crate::Datapath;
use crate::jobs::Job;
use crate::walk::Effect;
use std::collections::{BTreeSet, VecDeque};

/// Bytes of frames and upcalls that are made in a turn: one to two milliseconds' work.
pub(crate) const TURN: usize = 2 << 20;
/// Of these that many at most are of what has waited: what is new has its part.
const OF_WAITING: usize = TURN / 4 * 3;
/// A request that waits with others has so many bytes before the next has its turn.
const QUANTUM: usize = TURN / 16;
/// What each of them takes beside its bytes.
const EACH: usize = 512;
/// What it takes to find out that there is one, in bytes.
const FOUND: usize = 256;
/// With so many frames and upcalls of requests waiting no further long one is begun: these are four at most.
const MANY: usize = 16_384;
/// With so many what does not fit into the turn of a further request is refused: about 40 MiB of memory.
const MOST: usize = 4 * MANY;
/// Longer datagrams are taken for long requests, as are those of a client whose last one has had more than its part of a turn.
const SHORT: usize = 16 << 10;
/// Short requests go first, but after so many turns in which none was begun a long one does.
const PATIENCE: u32 = 8;

/// A request whose packets are not all sent.
#[derive(Debug)]
struct Sending {
    job: Job,
    effects: VecDeque<Effect>,
}

/// What waits for a turn.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Bytes that may still be made in this turn.
    left: usize,
    /// Of packets that have come whole.
    of_frames: VecDeque<Effect>,
    /// Of the request that is being carried out.
    of_request: VecDeque<Effect>,
    /// Of requests that were set aside.
    sending: VecDeque<Sending>,
    /// How many effects these have together.
    waiting: usize,
    /// Requests whose packets are sent: they go on.
    sent: VecDeque<Job>,
    /// Turns that have passed since a long request was begun.
    passed: u32,
}

/// Requests that are not begun, each a client's datagram.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    short: VecDeque<(u32, Vec<u8>)>,
    long: VecDeque<(u32, Vec<u8>)>,
    /// Clients whose last request was long.
    slow: BTreeSet<u32>,
}

impl Waiting {
    pub fn push(&mut self, pid: u32, datagram: Vec<u8>) {
        let is_long = datagram.len() > SHORT || self.slow.contains(&pid);
        if is_long { &mut self.long } else { &mut self.short }.push_back((pid, datagram));
    }

    /// A client's request has taken so many bytes of a turn.
    fn took(&mut self, pid: u32, bytes: usize) {
        if bytes > QUANTUM {
            self.slow.insert(pid);
        } else {
            self.slow.remove(&pid);
        }
    }

    /// A client is gone.
    pub fn forget(&mut self, pid: u32) {
        [&mut self.short, &mut self.long].into_iter().for_each(|of| of.retain(|(by, _)| *by != pid));
        self.slow.remove(&pid);
    }
}

impl Default for Turns {
    fn default() -> Self {
        let (of_frames, of_request) = (VecDeque::new(), VecDeque::new());
        let (sending, sent) = (VecDeque::new(), VecDeque::new());
        Self { left: TURN, of_frames, of_request, sending, waiting: 0, sent, passed: 0 }
    }
}

impl Turns {
    /// There is something to do in turns to come.
    pub fn is_busy(&self) -> bool {
        !self.of_frames.is_empty() || !self.sending.is_empty() || !self.sent.is_empty()
    }

    /// The request that is being carried out has more to send than fits into this turn.
    pub fn is_behind(&self) -> bool {
        !self.of_request.is_empty()
    }

    /// The next request that may be begun.
    pub fn next_of(&mut self, all: &mut Waiting) -> Option<(u32, Vec<u8>)> {
        if self.left == 0 {
            return None;
        }
        let has_room = self.waiting < MANY;
        let is_due = has_room && self.passed >= PATIENCE && !all.long.is_empty();
        let short = if is_due { None } else { all.short.pop_front() };
        short.or_else(|| {
            let long = if has_room { all.long.pop_front() } else { None };
            self.passed = if long.is_some() { 0 } else { self.passed };
            long
        })
    }

    /// The request that is being carried out has more to send than fits into this turn, and there is no room for what has to wait: that is given up.
    pub fn gives_up(&mut self) -> bool {
        let gives_up = self.waiting > MOST && self.is_behind();
        if gives_up {
            self.of_request.clear();
        }
        gives_up
    }

    /// How many frames and upcalls of requests wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// One whose packets are sent.
    pub fn next_sent(&mut self) -> Option<Job> {
        self.sent.pop_front()
    }

    /// A client is gone: what its requests had not sent yet is not sent.
    pub fn forget(&mut self, pid: u32) {
        self.sending.retain(|sending| sending.job.pid() != pid);
        self.waiting = self.sending.iter().map(|sending| sending.effects.len()).sum();
        self.sent.retain(|job| job.pid() != pid);
    }
}

impl Datapath {
    /// Bytes that may still be made in this turn.
    pub(crate) fn left_of_turn(&self) -> usize {
        self.turns.left
    }

    /// Whether frames are taken: not while there is more to do of those before.
    pub fn takes_frames(&self) -> bool {
        self.turns.of_frames.is_empty()
    }

    /// This becomes of a packet: of a request's, or of one that has come whole. As much is done as fits into this turn.
    pub(crate) fn carry_out_in_turns(&mut self, effects: Vec<Effect>, is_request: bool) {
        let turns = &mut self.turns;
        turns.left = turns.left.saturating_sub(effects.len() * FOUND);
        let mut all = std::mem::take(if is_request { &mut turns.of_request } else { &mut turns.of_frames });
        all.extend(effects);
        self.carry_out_some(&mut all, TURN);
        *if is_request { &mut self.turns.of_request } else { &mut self.turns.of_frames } = all;
    }

    fn carry_out_some(&mut self, effects: &mut VecDeque<Effect>, most: usize) {
        let until = self.turns.left.saturating_sub(most);
        while self.turns.left > until
            && let Some(effect) = effects.pop_front()
        {
            let bytes = effect.bytes();
            let made = self.carry_out(effect);
            self.turns.left = self.turns.left.saturating_sub(bytes + made.max(1) * EACH);
        }
    }

    /// Bytes that there were in this turn, and are left: what a client's request has had.
    pub(crate) fn took(&mut self, pid: u32, before: usize) {
        self.waiting.took(pid, before.saturating_sub(self.turns.left));
    }

    /// The request that was carried out, as far as it was, goes on when its packets are sent. Others have their turn meanwhile.
    pub(crate) fn set_aside(&mut self, job: Job) {
        let effects = std::mem::take(&mut self.turns.of_request);
        self.turns.waiting += effects.len();
        self.turns.sending.push_back(Sending { job, effects });
    }

    /// A new turn, with some more of what waits.
    pub(crate) fn begin_turn(&mut self) {
        self.turns.left = TURN;
        self.turns.passed = self.turns.passed.saturating_add(1);
        let mut frames = std::mem::take(&mut self.turns.of_frames);
        let most = if self.turns.sending.is_empty() { OF_WAITING } else { OF_WAITING / 2 };
        self.carry_out_some(&mut frames, most);
        self.turns.of_frames = frames;
        while self.turns.left > TURN - OF_WAITING
            && let Some(mut sending) = self.turns.sending.pop_front()
        {
            let before = sending.effects.len();
            self.carry_out_some(&mut sending.effects, QUANTUM);
            self.turns.waiting -= before - sending.effects.len();
            if sending.effects.is_empty() {
                self.turns.sent.push_back(sending.job);
            } else {
                self.turns.sending.push_back(sending);
            }
        }
        self.next_job();
    }
}
