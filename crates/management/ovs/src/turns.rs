//! What becomes of packets, a part in a turn. One list of actions may have thousands of outputs of 64 KiB each: frames are made when they are sent, and what is
//! more than a turn's bytes waits for the next. Until then it is a few hundred bytes for each output, and all share what is behind the header.

use crate::Datapath;
use crate::jobs::Job;
use crate::walk::Effect;
use std::collections::VecDeque;

/// Bytes of frames and upcalls that are made in a turn: one to two milliseconds' work.
pub(crate) const TURN: usize = 2 << 20;
/// Of these that many at most are of what has waited: what is new has its part.
const OF_WAITING: usize = TURN / 4 * 3;
/// A request that waits with others has so many bytes before the next has its turn.
const QUANTUM: usize = TURN / 16;
/// What each of them takes beside its bytes.
const EACH: usize = 512;
/// With so many requests under way no further one is begun.
const MOST: usize = 64;

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
    /// Requests whose packets are sent: they go on.
    sent: VecDeque<Job>,
}

impl Default for Turns {
    fn default() -> Self {
        let (of_frames, of_request) = (VecDeque::new(), VecDeque::new());
        Self { left: TURN, of_frames, of_request, sending: VecDeque::new(), sent: VecDeque::new() }
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

    /// Whether another request may be begun.
    pub fn has_room(&self) -> bool {
        self.left > 0 && self.sending.len() < MOST
    }

    /// One whose packets are sent.
    pub fn next_sent(&mut self) -> Option<Job> {
        self.sent.pop_front()
    }

    /// A client is gone: what its requests had not sent yet is not sent.
    pub fn forget(&mut self, pid: u32) {
        self.sending.retain(|sending| sending.job.pid() != pid);
        self.sent.retain(|job| job.pid() != pid);
    }
}

impl Datapath {
    /// Whether frames are taken: not while there is more to do of those before.
    pub fn takes_frames(&self) -> bool {
        self.turns.of_frames.is_empty()
    }

    /// This becomes of a packet: of a request's, or of one that has come whole. As much is done as fits into this turn.
    pub(crate) fn carry_out_in_turns(&mut self, effects: Vec<Effect>, is_request: bool) {
        let turns = &mut self.turns;
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
            self.turns.left = self.turns.left.saturating_sub(effect.bytes() + EACH);
            self.carry_out(effect);
        }
    }

    /// The request that was carried out, as far as it was, goes on when its packets are sent. Others have their turn meanwhile.
    pub(crate) fn set_aside(&mut self, job: Job) {
        let effects = std::mem::take(&mut self.turns.of_request);
        self.turns.sending.push_back(Sending { job, effects });
    }

    /// A new turn, with some more of what waits.
    pub(crate) fn begin_turn(&mut self) {
        self.turns.left = TURN;
        let mut frames = std::mem::take(&mut self.turns.of_frames);
        let most = if self.turns.sending.is_empty() { OF_WAITING } else { OF_WAITING / 2 };
        self.carry_out_some(&mut frames, most);
        self.turns.of_frames = frames;
        while self.turns.left > TURN - OF_WAITING
            && let Some(mut sending) = self.turns.sending.pop_front()
        {
            self.carry_out_some(&mut sending.effects, QUANTUM);
            if sending.effects.is_empty() {
                self.turns.sent.push_back(sending.job);
            } else {
                self.turns.sending.push_back(sending);
            }
        }
        self.next_job();
    }
}
