//! The thread that talks: to the supervisor, to the port's front-end, to the switch.

use crate::arguments::Arguments;
use crate::switch::Remote;
use lasthop_connection::Ask;
use lasthop_ipc::{Channel, ChannelError};
use lasthop_log::{Level, Log};
use lasthop_session_ipc::{Bounds, LONGEST_LINE, SessionToSupervisor, Step, SupervisorToSession};
use lasthop_sys::{Aside, Beat, Epoll, Foreign, Trigger};
use lasthop_vhostuser::{GRANTS, MAX_RING, Session, SessionError, Switch, Unprepared};
use std::error::Error;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When nothing has been said for so long, what it took to hear and do it is given back.
const TIDY: Duration = Duration::from_secs(1);
/// When a thread that closes what front-ends sent is tried again, where none could be had: their memory goes with that.
const CLOSE_AGAIN: Duration = Duration::from_millis(500);

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
    /// Name of the port.
    port: String,
    log: Log,
    epoll: Epoll,
    supervisor: Channel<SessionToSupervisor, SupervisorToSession>,
    beat: Rc<Beat>,
    /// Where what front-ends sent is let go of.
    aside: Arc<Aside>,
    /// The channel to the switch for the connection that comes next.
    next: Option<OwnedFd>,
    session: Option<Session<Remote>>,
    /// How many ranges of I/O addresses are remembered.
    bounds: Bounds,
    /// Whether the supervisor was told that addresses are translated.
    translates: bool,
}

impl Server {
    /// Nobody is connected yet.
    pub fn new(Arguments { supervisor, port }: Arguments, log: Log) -> Result<Self, Box<dyn Error>> {
        let epoll = Epoll::new()?;
        epoll.add(&supervisor, SUPERVISOR, Trigger::Level)?;
        let (beat, aside) = (Rc::new(Beat::new()), Aside::new(&port));
        Ok(Self {
            port,
            log,
            epoll,
            supervisor,
            beat,
            aside,
            next: None,
            session: None,
            bounds: Bounds::default(),
            translates: false,
        })
    }

    /// Serves until the supervisor is gone.
    pub fn serve(mut self) -> Result<(), Box<dyn Error>> {
        self.supervisor.send(&SessionToSupervisor::Ready, None)?;
        let (mut ready, mut tidy) = (Vec::new(), false);
        loop {
            let deadline = self.heard().and_then(|session| session.deadline());
            let wait = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let wait = wait.into_iter().chain((!tidy).then_some(TIDY));
            let wait = wait.chain(self.aside.try_again().then_some(CLOSE_AGAIN)).min();
            self.beat.sleep();
            self.epoll.wait(&mut ready, wait)?;
            self.beat.work();
            if ready.is_empty() && !tidy && wait == Some(TIDY) {
                lasthop_sys::sandbox::give_back_memory();
            }
            tidy = ready.is_empty() && (tidy || wait == Some(TIDY));
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
            if let Some(error) = self.heard().and_then(|session| session.expire(Instant::now()).err()) {
                self.end(&error);
            }
        }
    }

    /// True if it is gone.
    fn hear_supervisor(&mut self) -> Result<bool, Box<dyn Error>> {
        loop {
            match self.supervisor.recv() {
                Ok((SupervisorToSession::Switch, channel)) => self.next = channel,
                Ok((SupervisorToSession::Bounds(bounds), _)) => self.set_bounds(bounds),
                Ok((SupervisorToSession::Move(step), channel)) => {
                    let said = match self.go_over(step, channel) {
                        Ok(pause) => SessionToSupervisor::Moved(step, Ok(pause)),
                        Err(Unprepared::NotNow(why)) => SessionToSupervisor::Moved(step, Err(bounded(&why))),
                        Err(Unprepared::Never(error)) => {
                            self.end(&error);
                            SessionToSupervisor::StaysBehind(bounded(&error.to_string()))
                        }
                    };
                    self.supervisor.send(&said, None)?;
                }
                Ok((SupervisorToSession::Connection, Some(socket))) => self.connect(socket),
                Ok((SupervisorToSession::Connection, None)) => {
                    crate::say(&self.log, Level::ERROR, &self.port, "a connection without its socket");
                }
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
        let mut switch = self.remote(channel);
        if self.aside.is_stuck() {
            // Closed here, or each that comes would wait to be closed: the supervisor has a copy, so this is not the end of it.
            drop(socket);
            let why = SessionError::Unclosed.to_string();
            let _ = switch.ask(Ask::End { why, closed: false, of_memory: false }, Vec::new());
            return;
        }
        let rings = 2 * lasthop_types::MAX_QUEUE_PAIRS;
        let mut session = Session::new(Foreign::new(socket, &self.aside), switch, rings, Instant::now());
        bound(&mut session, self.bounds);
        match self.watch(&session) {
            Ok(()) => self.session = Some(session),
            Err(error) => session.end(&SessionError::Io(error)),
        }
    }

    fn remote(&self, channel: OwnedFd) -> Remote {
        Remote::new(channel, self.beat.clone(), self.log.clone(), &self.port)
    }

    fn watch(&self, session: &Session<Remote>) -> rustix::io::Result<()> {
        self.epoll.add(session, FRONT_END, Trigger::Level)?;
        self.epoll.add(session.switch(), SWITCH, Trigger::Level)
    }

    /// A step of the way to another switch, if there is a front-end. After an error the supervisor has everybody stay, or this port alone.
    fn go_over(&mut self, step: Step, channel: Option<OwnedFd>) -> Result<Option<u64>, Unprepared> {
        let Some(session) = &mut self.session else {
            // It has hung up since the supervisor last heard: nobody is at the new switch's channel, which is not to end this for all others.
            return if step == Step::Prepare { Err(Unprepared::Never(SessionError::Closed)) } else { Ok(None) };
        };
        match step {
            Step::Prepare => {
                let no_channel = || Unprepared::NotNow("there was no channel to the new switch".into());
                let next = self.remote(channel.ok_or_else(no_channel)?);
                self.unwatch();
                self.session.as_mut().map_or(Ok(()), |session| session.prepare(next))?;
            }
            Step::Hold => session.hold().map_err(Unprepared::NotNow)?,
            Step::Cross => session.cross().map_err(Unprepared::NotNow)?,
            Step::GoOn => return Ok(session.go_on().map_err(Unprepared::NotNow)?.map(|pause| pause.as_nanos() as u64)),
            Step::Leave | Step::Stay => {
                let done = if step == Step::Leave { session.leave() } else { session.stay() };
                let done = done.and_then(|()| self.watch_again());
                if let Err(error) = done {
                    self.end(&error);
                    return Err(Unprepared::NotNow(error.to_string()));
                }
            }
        }
        Ok(None)
    }

    /// The front-end is heard again.
    fn watch_again(&mut self) -> Result<(), SessionError> {
        let Some(session) = &self.session else { return Ok(()) };
        self.watch(session)?;
        self.watch_translation_of(session);
        Ok(())
    }

    fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.session.iter_mut().for_each(|session| bound(session, bounds));
    }

    /// The session, unless it is on its way to another switch: what had been reported before is heard when it is there.
    fn heard(&mut self) -> Option<&mut Session<Remote>> {
        self.session.as_mut().filter(|session| !session.is_going_over())
    }

    fn hear_front_end(&mut self) {
        if let Some(error) = self.heard().and_then(|session| session.ready(Instant::now()).err()) {
            self.end(&error);
        }
    }

    fn translate(&mut self, hear: impl FnOnce(&mut Session<Remote>) -> Result<(), SessionError>) {
        if let Some(error) = self.heard().and_then(|session| hear(session).err()) {
            self.end(&error);
        }
    }

    /// The channels about translations come and go. Those that have gone are open in other processes, and epoll goes by the file.
    fn watch_translation(&mut self) {
        let Some(session) = self.heard() else { return };
        let Some(retired) = session.take_retired() else { return };
        for fd in &retired {
            let _ = self.epoll.delete(fd);
        }
        if let Some(session) = &self.session {
            self.watch_translation_of(session);
        }
    }

    fn watch_translation_of(&self, session: &Session<Remote>) {
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
        if self.heard().is_some_and(Session::is_dismissed) {
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
        self.unwatch();
        self.session.take()
    }

    /// Nothing is heard of the front-end, nor of the switch, any more.
    fn unwatch(&self) {
        let Some(session) = &self.session else { return };
        // Others may have copies, and epoll goes by the file.
        let _ = self.epoll.delete(session);
        let (misses, answers) = session.translation_fds();
        for fd in [misses, answers].into_iter().flatten() {
            let _ = self.epoll.delete(fd);
        }
        for (_, kick) in session.fills() {
            let _ = self.epoll.delete(kick);
        }
        let _ = self.epoll.delete(session.switch());
    }
}

/// A line that fits into a message.
fn bounded(line: &str) -> String {
    line.chars().take(LONGEST_LINE).collect()
}

fn bound(session: &mut Session<Remote>, bounds: Bounds) {
    session.set_grants(bounds.grants.map_or(GRANTS, |grants| grants as usize));
    session.set_max_ring(bounds.max_ring.unwrap_or(MAX_RING));
}
