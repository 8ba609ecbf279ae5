//! The thread that talks: to the supervisor, to the port's front-end, to the switch.

use crate::arguments::Arguments;
use crate::switch::Remote;
use lasthop_connection::Ask;
use lasthop_ipc::{Channel, ChannelError};
use lasthop_session_ipc::{SessionToSupervisor, SupervisorToSession};
use lasthop_sys::{Aside, Beat, Epoll, Foreign, Trigger};
use lasthop_vhostuser::{GRANTS, Session, SessionError, Switch};
use std::error::Error;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const SUPERVISOR: u64 = 0;
const FRONT_END: u64 = 1;
const SWITCH: u64 = 2;
/// The switch asks for translations, and the front-end answers.
const MISSES: u64 = 3;
const ANSWERS: u64 = 4;
/// Rings that guests have filled: this plus the ring's number.
const FILLS: u64 = 16;

/// Everything there is in this process.
pub struct Server {
    epoll: Epoll,
    supervisor: Channel<SessionToSupervisor, SupervisorToSession>,
    beat: Rc<Beat>,
    /// Where what front-ends sent is let go of.
    aside: Arc<Aside>,
    /// The channel to the switch for the connection that comes next.
    next: Option<OwnedFd>,
    session: Option<Session<Remote>>,
    /// How many ranges of I/O addresses are remembered.
    grants: usize,
    /// Whether the supervisor was told that addresses are translated.
    translates: bool,
}

impl Server {
    /// Nobody is connected yet.
    pub fn new(Arguments { supervisor, port }: Arguments) -> Result<Self, Box<dyn Error>> {
        let epoll = Epoll::new()?;
        epoll.add(&supervisor, SUPERVISOR, Trigger::Level)?;
        let (beat, aside) = (Rc::new(Beat::new()), Aside::new(&port));
        Ok(Self { epoll, supervisor, beat, aside, next: None, session: None, grants: GRANTS, translates: false })
    }

    /// Serves until the supervisor is gone.
    pub fn serve(mut self) -> Result<(), Box<dyn Error>> {
        self.supervisor.send(&SessionToSupervisor::Ready, None)?;
        let mut ready = Vec::new();
        loop {
            let deadline = self.session.as_ref().and_then(Session::deadline);
            self.beat.sleep();
            self.epoll.wait(&mut ready, deadline.map(|at| at.saturating_duration_since(Instant::now())))?;
            self.beat.work();
            for token in &ready {
                match *token {
                    SUPERVISOR if self.hear_supervisor()? => return Ok(()),
                    FRONT_END => self.hear_front_end(),
                    SWITCH => self.hear_switch(),
                    MISSES => self.translate(Session::misses),
                    ANSWERS => self.translate(Session::answers),
                    token if token >= FILLS => self.translate(|session| session.filled((token - FILLS) as usize)),
                    _ => {}
                }
                self.watch_translation();
            }
            self.tell_whether_it_translates();
            if let Some(error) = self.session.as_mut().and_then(|session| session.expire(Instant::now()).err()) {
                self.end(&error);
            }
        }
    }

    /// True if it is gone.
    fn hear_supervisor(&mut self) -> Result<bool, Box<dyn Error>> {
        loop {
            match self.supervisor.recv() {
                Ok((SupervisorToSession::Switch, channel)) => self.next = channel,
                Ok((SupervisorToSession::Grants(grants), _)) => self.set_grants(grants),
                Ok((SupervisorToSession::Connection, Some(socket))) => self.connect(socket),
                Ok((SupervisorToSession::Connection, None)) => tracing::error!("a connection without its socket"),
                Err(ChannelError::WouldBlock) => return Ok(false),
                Err(ChannelError::Closed) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A front-end has come. The switch has let go of the one before.
    fn connect(&mut self, socket: OwnedFd) {
        self.drop_session();
        let Some(channel) = self.next.take() else { return drop(Foreign::new(socket, &self.aside)) };
        let mut switch = Remote::new(channel, self.beat.clone());
        if self.aside.is_stuck() {
            // Closed here, or each that comes would wait to be closed: the supervisor has a copy, so this is not the end of it.
            drop(socket);
            let why = SessionError::Unclosed.to_string();
            let _ = switch.ask(Ask::End { why, closed: false, of_memory: false }, Vec::new());
            return;
        }
        let rings = 2 * lasthop_types::MAX_QUEUE_PAIRS;
        let mut session = Session::new(Foreign::new(socket, &self.aside), switch, rings, Instant::now());
        session.set_grants(self.grants);
        let watched = self.epoll.add(&session, FRONT_END, Trigger::Level);
        match watched.and_then(|()| self.epoll.add(session.switch(), SWITCH, Trigger::Level)) {
            Ok(()) => self.session = Some(session),
            Err(error) => session.end(&SessionError::Io(error)),
        }
    }

    fn set_grants(&mut self, grants: Option<u32>) {
        self.grants = grants.map_or(GRANTS, |grants| grants as usize);
        if let Some(session) = &mut self.session {
            session.set_grants(self.grants);
        }
    }

    fn hear_front_end(&mut self) {
        if let Some(error) = self.session.as_mut().and_then(|session| session.ready(Instant::now()).err()) {
            self.end(&error);
        }
    }

    fn translate(&mut self, hear: impl FnOnce(&mut Session<Remote>) -> Result<(), SessionError>) {
        if let Some(error) = self.session.as_mut().and_then(|session| hear(session).err()) {
            self.end(&error);
        }
    }

    /// The channels about translations come and go. Those that have gone are open in other processes, and epoll goes by the file.
    fn watch_translation(&mut self) {
        let Some(session) = &mut self.session else { return };
        let Some(retired) = session.take_retired() else { return };
        for fd in &retired {
            let _ = self.epoll.delete(fd);
        }
        let (misses, answers) = session.translation_fds();
        for (fd, token) in [(misses, MISSES), (answers, ANSWERS)] {
            if let Some(fd) = fd {
                // The one that has not changed is there already.
                let _ = self.epoll.add(fd, token, Trigger::Level);
            }
        }
        for (ring, kick) in session.fills().filter(|_| session.translates()) {
            let _ = self.epoll.add(kick, FILLS + ring as u64, Trigger::Edge);
        }
    }

    fn tell_whether_it_translates(&mut self) {
        let now = self.session.as_ref().is_some_and(Session::translates);
        // Where there is no room it is said next time.
        if now != self.translates && self.supervisor.send(&SessionToSupervisor::Translates(now), None).is_ok() {
            self.translates = now;
        }
    }

    fn hear_switch(&mut self) {
        // What was reported may have been the channel of the connection before.
        if self.session.as_mut().is_some_and(Session::is_dismissed) {
            self.drop_session();
        }
    }

    fn end(&mut self, error: &SessionError) {
        if let Some(session) = self.take_session() {
            session.end(error);
        }
    }

    fn drop_session(&mut self) {
        drop(self.take_session());
    }

    fn take_session(&mut self) -> Option<Session<Remote>> {
        let session = self.session.take()?;
        // Others may have copies, and epoll goes by the file.
        let _ = self.epoll.delete(&session);
        let (misses, answers) = session.translation_fds();
        for fd in [misses, answers].into_iter().flatten() {
            let _ = self.epoll.delete(fd);
        }
        for (_, kick) in session.fills() {
            let _ = self.epoll.delete(kick);
        }
        let _ = self.epoll.delete(session.switch());
        Some(session)
    }
}
