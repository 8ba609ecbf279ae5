//! A session whose switch is in the same process: for tests.

use crate::outcome::SessionError;
use crate::session::Session;
use crate::switch::{Lost, Switch};
use lasthop_connection::{Answer, Ask, Event, Rings};
use lasthop_guestmem::{GuestMemory, MemoryLimits};
use lasthop_sys::{Aside, Foreign};
use lasthop_virtqueue::Queue;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The switch's part of a connection, asked without a channel in between.
#[derive(Debug)]
pub struct Local {
    rings: Rings,
    events: Vec<Event>,
    queues: Arc<[Arc<Queue>]>,
    answers: VecDeque<Answer>,
    /// How often it was asked with nothing left to answer: a session process sleeps as often.
    pub(crate) waits: u32,
    /// It ends the connection instead of answering, after so many answers more.
    pub(crate) ends_after: Option<u32>,
    /// [`Ask::Translate`] is refused.
    pub(crate) refuses_translation: bool,
}

impl Local {
    /// A switch with these queues.
    pub(crate) fn new(queues: Arc<[Arc<Queue>]>, aside: &Arc<Aside>) -> Self {
        let rings = Rings::new(queues.clone(), aside.clone(), MemoryLimits::default(), &Arc::default());
        let (events, answers) = Default::default();
        Self { rings, events, queues, answers, waits: 0, ends_after: None, refuses_translation: false }
    }

    pub(crate) fn queues(&self) -> &[Arc<Queue>] {
        &self.queues
    }
}

impl Switch for Local {
    fn tell(&mut self, ask: Ask, fds: Vec<Foreign>) -> Result<(), Lost> {
        self.waits += u32::from(self.answers.is_empty());
        if self.refuses_translation && matches!(ask, Ask::Translate) {
            self.answers.push_back(Answer::Refused("for a test".to_owned()));
            return Ok(());
        }
        let answer = self.rings.carry_out(ask, fds, &mut self.events).map_err(|_| Lost)?;
        // As the switch has a session process wait.
        while matches!(answer, Answer::Memory { .. }) && self.rings.excess().is_some() {
            std::thread::yield_now();
        }
        self.answers.push_back(answer);
        Ok(())
    }

    fn answer(&mut self) -> Result<Answer, Lost> {
        match &mut self.ends_after {
            Some(0) => return self.answers.drain(..).next().map(|_| Answer::Ended { stopped: Vec::new() }).ok_or(Lost),
            Some(left) => *left -= 1,
            None => {}
        }
        self.answers.pop_front().ok_or(Lost)
    }

    fn hear(&mut self) -> Result<Option<Answer>, Lost> {
        Ok(None)
    }
}

impl Session<Local> {
    /// A session over these queues.
    pub fn local(socket: impl Into<Foreign>, queues: Arc<[Arc<Queue>]>, now: Instant) -> Self {
        let socket = socket.into();
        let (rings, switch) = (queues.len(), Local::new(queues, socket.aside()));
        Self::new(socket, switch, rings, now)
    }

    /// [`Session::ready`], and what the switch's part has to act on.
    pub fn serve(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), SessionError> {
        let result = self.ready(now);
        events.append(&mut self.switch_mut().events);
        result
    }

    /// Guest memory as it is now.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        self.switch().rings.memory()
    }
}
