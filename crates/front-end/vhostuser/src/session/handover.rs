//! The port goes over to another switch, and its front-end notices nothing: what it has said is said once more, from here.
//!
//! In steps, so that all ports take each of them together: a packet of a port that has gone over would find no receiver at a port that has not.
//!
//! | step | the switch so far | the other switch |
//! |---|---|---|
//! | [`Session::prepare`] | goes on | has the guest's memory and what it is notified by; no ring |
//! | [`Session::hold`] | rings that packets come from stop: packets wait in them | – |
//! | [`Session::cross`] | rings that packets go to stop | they start where they stopped |
//! | [`Session::go_on`] | – | rings that packets come from start where they stopped |
//! | [`Session::leave`] | lets go of the port | is the port's switch |
//!
//! Until the last of them [`Session::stay`] undoes what has been done. Meanwhile nothing is to be heard of the front-end, nor of its IOMMU: it would be
//! answered by a switch that has only half of the port.

use super::commands::{copy, words};
use super::*;
use lasthop_connection::MAX_TABLE;
use lasthop_guestmem::MapError;
use rustix::io::Errno;
use std::time::Duration;

/// What is under way.
#[derive(Debug)]
pub(super) struct Handover<S> {
    /// The switch that the port goes to; once the port has crossed, the one that it comes from.
    other: S,
    crossed: bool,
    /// Rings that run, as the switch so far has said before anything stopped.
    runs: Vec<usize>,
    /// Rings that have stopped for this, those that packets come from first.
    held: Vec<usize>,
    /// When the first of them stopped.
    since: Option<Instant>,
}

/// Why a port does not go over.
#[derive(Debug, thiserror::Error)]
pub enum Unprepared {
    /// It cannot at the moment: one line.
    #[error("{0}")]
    NotNow(String),
    /// No switch takes its front-end as it is, whose doing that is: its connection is to be ended so.
    #[error("{0}")]
    Never(SessionError),
}

impl<S: Switch> Session<S> {
    /// Tells another switch all but where rings stand. After an error nothing has changed.
    pub fn prepare(&mut self, next: S) -> Result<(), Unprepared> {
        if self.unkept {
            let why = "there was no descriptor left to keep a copy of what its front-end has sent";
            return Err(Unprepared::NotNow(why.into()));
        }
        let before = std::mem::replace(&mut self.switch, next);
        let told = self.tell_all();
        let other = std::mem::replace(&mut self.switch, before);
        told.map_err(unprepared)?;
        // What can be asked before anything stops is asked here.
        let runs = self.running().map_err(|fault| match fault {
            // The switch so far has ended the connection, as it does where a descriptor does not close: no reason to keep the others.
            Fault::Lost => Unprepared::Never(SessionError::SwitchGone),
            fault => Unprepared::NotNow(describe(&fault)),
        })?;
        self.handover = Some(Handover { other, crossed: false, runs, held: Vec::new(), since: None });
        Ok(())
    }

    fn running(&mut self) -> Result<Vec<usize>, Fault> {
        let mut runs = Vec::new();
        for i in 0..self.rings.len() {
            if self.is_running(i)? {
                runs.push(i);
            }
        }
        Ok(runs)
    }

    /// Between [`Session::prepare`] and the end of it.
    pub fn is_going_over(&self) -> bool {
        self.handover.is_some()
    }

    /// Rings that packets come from stop. After an error [`Session::stay`] is called for.
    pub fn hold(&mut self) -> Result<(), String> {
        let Some(handover) = &mut self.handover else { return Ok(()) };
        handover.since = Some(Instant::now());
        self.let_go_of(1)
    }

    /// Rings that packets go to go over.
    pub fn cross(&mut self) -> Result<(), String> {
        if self.handover.is_none() {
            return Ok(());
        }
        self.let_go_of(0)?;
        self.swap();
        self.resume(0)
    }

    /// Rings that packets come from go on at the other switch: for how long none of the port's packets moved, if any would have.
    pub fn go_on(&mut self) -> Result<Option<Duration>, String> {
        self.resume(1)?;
        let pause = |handover: &Handover<S>| handover.since.filter(|_| !handover.held.is_empty());
        Ok(self.handover.as_ref().and_then(pause).map(|since| since.elapsed()))
    }

    /// The switch before lets go of the port.
    pub fn leave(&mut self) -> Result<(), SessionError> {
        let Some(Handover { mut other, .. }) = self.handover.take() else { return Ok(()) };
        // The supervisor goes by its own word, not by this one.
        let why = "the port has gone over to another switch".to_owned();
        let _ = other.ask(Ask::End { why, closed: true, of_memory: false }, Vec::new());
        if self.iotlb.is_some() {
            // Both have the table, and the one that let go has noted that nobody is at work on these rings.
            self.ask(Ask::Revoked, None).map_err(|_| SessionError::SwitchGone)?;
        }
        Ok(())
    }

    /// The switch so far remains the port's. An error: it is gone, or only the other one knows where the rings stand, and that is gone.
    pub fn stay(&mut self) -> Result<(), SessionError> {
        let gone = |_| SessionError::SwitchGone;
        let Some(crossed) = self.handover.as_ref().map(|handover| handover.crossed) else { return Ok(()) };
        if crossed {
            let held = self.handover.as_ref().map(|handover| handover.held.clone()).unwrap_or_default();
            for i in held {
                self.let_go(i).map_err(gone)?;
            }
            self.swap();
        }
        let held = self.handover.take().map(|handover| handover.held).unwrap_or_default();
        for i in held.into_iter().rev() {
            let kick = self.copy_of_kick(i);
            self.ask(Ask::Ring(i as u16, RingAsk::Kick), kick).map_err(gone)?;
            if self.rings[i].state != RingState::Running {
                self.rings[i].state = RingState::Waiting;
                self.try_start(i).map_err(gone)?;
            }
        }
        self.tell_of_changes()
    }

    /// Rings of this direction stop, all at once: 1, packets come from them, or 0. One that its guest has broken meanwhile stays as it is.
    fn let_go_of(&mut self, direction: usize) -> Result<(), String> {
        let runs = self.handover.iter().flat_map(|handover| &handover.runs);
        let rings: Vec<_> = runs.copied().filter(|i| i % 2 == direction).collect();
        let stop = |i: &usize| Ask::Ring(*i as u16, RingAsk::Stop);
        let (answers, end) = self.ask_together(rings.iter().map(stop).collect());
        for (i, answer) in rings.into_iter().zip(&answers) {
            if self.has_let_go(i, answer)
                && let Some(handover) = &mut self.handover
            {
                handover.held.push(i);
            }
        }
        end.map_err(|fault| describe(&fault))
    }

    /// Asks all of this before it waits for the first answer: this process sleeps, and the switch is waited for, once. See [`Switch::tell`]. The answers there are,
    /// in order, and whether these are all.
    fn ask_together(&mut self, asks: Vec<Ask>) -> (Vec<Answer>, Result<(), Fault>) {
        let asked = asks.len();
        let told = asks.into_iter().map_while(|ask| self.switch.tell(ask, Vec::new()).ok()).count();
        let mut answers = Vec::new();
        // All that was asked is answered first: what is asked next is to have an answer of its own.
        while answers.len() < told {
            match self.switch.answer() {
                Ok(Answer::Ended { stopped }) => {
                    self.note_stopped(&stopped);
                    break;
                }
                Ok(answer) => answers.push(answer),
                Err(_) => break,
            }
        }
        let all = if answers.len() == asked { Ok(()) } else { Err(Fault::Lost) };
        (answers, all)
    }

    /// Stops a ring to start it elsewhere. False if it does not run, or its guest has broken it: such a ring stays as it is.
    fn let_go(&mut self, i: usize) -> Result<bool, Fault> {
        if !self.is_running(i)? {
            return Ok(false);
        }
        let answer = self.ask(Ask::Ring(i as u16, RingAsk::Stop), None)?;
        Ok(self.has_let_go(i, &answer))
    }

    /// That was answered: whether it has stopped.
    fn has_let_go(&mut self, i: usize, answer: &Answer) -> bool {
        let Answer::Position(Some(position)) = *answer else { return false };
        self.note(i, position);
        let ring = &mut self.rings[i];
        (ring.state, ring.setup, ring.resting) = (RingState::Waiting, None, false);
        true
    }

    fn swap(&mut self) {
        if let Some(handover) = &mut self.handover {
            handover.crossed = !handover.crossed;
            std::mem::swap(&mut self.switch, &mut handover.other);
        }
    }

    /// Those of this direction that were let go of start where they stopped, all at once, and the switch looks at them.
    fn resume(&mut self, direction: usize) -> Result<(), String> {
        let held = self.handover.iter().flat_map(|handover| &handover.held);
        let held: Vec<_> = held.copied().filter(|i| i % 2 == direction).collect();
        let (mut starts, mut asks) = (Vec::new(), Vec::new());
        for i in &held {
            match self.setup(*i) {
                Ok(Some(setup)) => {
                    asks.push(self.start_of(*i, setup));
                    starts.push((*i, setup));
                }
                // It waits for its guest's pages, or says what is wrong.
                _ => self.try_start(*i).map_err(|fault| describe(&fault))?,
            }
        }
        if !asks.is_empty() {
            asks.push(self.state());
            let (answers, end) = self.ask_together(asks);
            starts.into_iter().zip(&answers).for_each(|((i, setup), answer)| self.has_started(i, setup, answer));
            end.map_err(|fault| describe(&fault))?;
            self.changed = false;
        }
        if let Some(i) = held.iter().find(|i| self.rings[**i].state == RingState::Failed) {
            return Err(format!("the new switch does not start ring {i}"));
        }
        self.tell_of_changes().map_err(|error| error.to_string())
    }

    /// All that the front-end has said, as the switch wants to hear it.
    fn tell_all(&mut self) -> Result<(), Fault> {
        let aside = self.transport.aside().clone();
        let again = |fd: &Foreign| copy(fd, &aside).ok_or_else(no_descriptor);
        let files: Vec<_> =
            self.files.iter().map(|(region, fd)| Ok((words(region), again(fd)?))).collect::<Result<_, Fault>>()?;
        let mut files = files.into_iter();
        let (regions, fds): (Vec<_>, Vec<_>) = files.by_ref().take(MAX_TABLE).unzip();
        if !regions.is_empty() {
            self.ask_for(Ask::Table { regions, keep: 0 }, fds)?;
        }
        for (region, fd) in files {
            self.ask_for(Ask::Add { region, keep: 0 }, [fd])?;
        }
        if let Some(iotlb) = &self.iotlb {
            let both = iotlb.descriptors().map_err(|e| Refusal::Switch(e.to_string()))?;
            self.ask_for(Ask::Translate, both.map(|fd| Foreign::new(fd, &aside)))?;
        }
        if let Some((ask, fd)) = self.log_wanted()?.filter(|_| self.logs) {
            self.ask_for(ask, [fd])?;
        }
        if let Some(mtu) = self.mtu {
            self.ask(Ask::Mtu(mtu), None)?;
        }
        for i in 0..self.rings.len() {
            self.tell_of_ring(i, again)?;
        }
        self.ask_for(self.state(), None)
    }

    /// What a ring is notified by, and whether it is enabled.
    fn tell_of_ring(&mut self, i: usize, again: impl Fn(&Foreign) -> Result<Foreign, Fault>) -> Result<(), Fault> {
        let ring = i as u16;
        if let Some(call) = self.rings[i].call.as_ref().map(&again).transpose()? {
            self.ask_for(Ask::Ring(ring, RingAsk::Call), [call])?;
        }
        if let Some(err) = self.rings[i].err.as_ref().map(&again).transpose()? {
            self.ask_for(Ask::Ring(ring, RingAsk::Err), [err])?;
        }
        // The switch does not watch the kicks of a ring that has stopped.
        if self.rings[i].state != RingState::Stopped {
            let kick = self.copy_of_kick(i);
            self.ask_for(Ask::Ring(ring, RingAsk::Kick), kick)?;
        }
        if self.rings[i].enabled {
            self.ask_for(Ask::Ring(ring, RingAsk::Enable(true)), None)?;
        }
        Ok(())
    }

    /// None where the front-end gives none: the ring is looked at by and by.
    fn copy_of_kick(&self, i: usize) -> Option<Foreign> {
        let Ring { kick, wake, .. } = &self.rings[i];
        let fd = kick.as_ref().map(AsFd::as_fd).or(wake.as_ref().map(AsFd::as_fd))?;
        copy(fd, self.transport.aside())
    }
}

fn no_descriptor() -> Fault {
    Refusal::Switch("there is no descriptor left".into()).into()
}

/// A file that was cut, or sealed against what a switch needs, since a switch mapped it: that is its owner's doing, and stays so. Any other want may be the
/// new switch's.
fn unprepared(fault: Fault) -> Unprepared {
    const SEALED: [Errno; 2] = [Errno::PERM, Errno::ACCESS];
    let own = |error: &MapError| match error {
        MapError::FileTooShort { .. } | MapError::Kind(_) => true,
        MapError::Refused { errno, .. } => SEALED.iter().any(|sealed| sealed.raw_os_error() == *errno),
        _ => false,
    };
    match fault {
        Fault::Meaning(Refusal::Memory(error)) if own(&error) => {
            let request = "to go over to another switch".to_owned();
            Unprepared::Never(SessionError::Refused { request, why: Refusal::Memory(error), of_memory: true })
        }
        fault => Unprepared::NotNow(format!("the new switch does not take it: {}", describe(&fault))),
    }
}

fn describe(fault: &Fault) -> String {
    match fault {
        Fault::Lost => "it is gone".into(),
        fault => fault.to_string(),
    }
}
