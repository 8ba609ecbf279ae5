//! One vhost-user port as the supervisor sees it: a listening socket, or attempts to connect to one.
//!
//! A port has at most one live connection, the one handed to the switch. Nothing here waits: events change the state,
//! and [`Port::step`] does what is due.

mod handed;

use super::backoff::Backoff;
use super::closing::Closing;
use super::handover;
use super::owner::{self, FileOwner, Ids};
use super::presence::Presence;
use super::setup::There;
use super::socket::{self, Access, Listener};
use super::store::SavedPort;
pub use handed::PortState;
use lasthop_log::LineLimit;
use lasthop_management_ipc::PortConfig;
use lasthop_policy::Batch;
use lasthop_sys::{Aside, Epoll, Trigger};
use lasthop_text::counted;
use lasthop_types::PortId;
use rustix::net::{Shutdown, shutdown};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// First wait between two attempts to connect, and the longest.
const CONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// A connection that lasted this long was a good one: the next loss is answered at once again. A peer that accepts and
/// closes in a circle stays below it and meets the back-off.
const GOOD_CONNECTION: Duration = Duration::from_millis(100);
/// How long a second front-end may wait for the switch to notice that the first is gone.
const HAND_OVER: Duration = Duration::from_millis(500);
/// Wait between two attempts to bind a remembered port whose path is not usable now.
const BIND_WAIT: Duration = Duration::from_secs(1);
/// Rest when the process is out of descriptors.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// Rest when connections of this port do not close: another one might not either.
const STUCK_WAIT: Duration = Duration::from_secs(1);
/// Longest text of what is wrong, in characters.
const LONGEST_FAULT: usize = 400;
/// Connections taken from one listener at a time, so that one storm does not starve the rest.
const ACCEPT_BURST: usize = 16;

/// What [`Port::step`] and the event functions may use.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Where listeners are watched.
    pub epoll: &'a Epoll,
    /// Where their files are.
    pub presence: &'a Presence,
    /// The current time.
    pub now: Instant,
    /// Whether there is a switch to hand connections to.
    pub switch_up: bool,
}

/// A port.
#[derive(Debug)]
pub struct Port {
    /// As children know it.
    pub config: PortConfig,
    /// How its packets are gathered, if it was added so and no setting says otherwise.
    pub tx_batch: Option<Batch>,
    /// Who may use it.
    owner: Option<FileOwner>,
    /// The same in numbers, once they have been looked up.
    ids: Option<Ids>,
    /// Who was refused last, until the supervisor has taken note.
    refused: Option<Refused>,
    /// Whether it is remembered in the state directory.
    pub saved: bool,
    /// Whether the command line names it: then it stays for as long as this run.
    pub given: bool,
    /// The connection that the switch has.
    live: Option<Live>,
    /// Where connections are let go of: what front-ends have sent and nobody has read is closed with them.
    aside: Arc<Aside>,
    end: End,
    /// What was last written to the log as being wrong, to say it once.
    complaint: Option<String>,
    /// What control was last told to be wrong.
    told: Option<String>,
    log: LineLimit,
}

/// Who was refused, in words.
#[derive(Debug)]
pub enum Refused {
    /// Somebody who does not own the port, and why.
    Peer(String),
    /// A second front-end.
    Second(String),
}

/// A connection that the switch has.
#[derive(Debug)]
struct Live {
    since: Instant,
    /// Ours, to end it whatever becomes of the switch, and so that the switch's is never the last one. None if there was no
    /// descriptor left for it.
    copy: Option<OwnedFd>,
}

#[derive(Debug)]
enum End {
    Listen {
        listener: Option<Listener>,
        /// When to bind (there is no listener) or to accept again (there is).
        again_at: Option<Instant>,
        /// Accepted and not handed over yet, with the time to refuse it.
        waiting: Option<(OwnedFd, Instant)>,
    },
    Connect {
        again_at: Instant,
        backoff: Backoff,
    },
}

impl Port {
    /// A port that is not open yet. What is gathered for it, settings say too.
    pub fn new(id: PortId, port: SavedPort, saved: bool, now: Instant) -> Self {
        let SavedPort { name, path, client, tx_batch, owner } = port;
        let shown = owner.as_ref().map(ToString::to_string);
        let config = PortConfig { id, name, path, client, tx_batch: (0, 0), rx_batch: (0, 0), owner: shown };
        let end = if config.client {
            End::Connect { again_at: now, backoff: Backoff::new(CONNECT_WAIT.0, CONNECT_WAIT.1) }
        } else {
            End::Listen { listener: None, again_at: Some(now), waiting: None }
        };
        let (log, aside) = (LineLimit::new(now), Aside::new(&config.name));
        Self {
            config,
            tx_batch,
            owner,
            ids: None,
            refused: None,
            saved,
            given: false,
            live: None,
            aside,
            end,
            complaint: None,
            told: None,
            log,
        }
    }

    /// The port as it is written to disk.
    pub fn to_saved(&self) -> SavedPort {
        let PortConfig { name, path, client, .. } = self.config.clone();
        SavedPort { name, path, client, tx_batch: self.tx_batch, owner: self.owner.clone() }
    }

    /// What another port must differ from.
    pub fn there(&self) -> There<'_> {
        There { name: &self.config.name, path: &self.config.path, owner: self.owner.as_ref() }
    }

    /// Binds the socket of a listening port, reported by `epoll` as `token`. The error says what to do.
    pub fn open(&mut self, epoll: &Epoll, presence: &Presence, token: u64) -> Result<(), String> {
        // Of a connecting port too, so that a name that is not known is said at once.
        self.look_up_owner()?;
        let access = self.ids.map_or(Access::Kvm, Access::Of);
        let End::Listen { listener: listener @ None, again_at, .. } = &mut self.end else { return Ok(()) };
        let bound = Listener::bind(Path::new(&self.config.path), access)?;
        epoll.add(&bound, token, Trigger::Level).map_err(|e| format!("epoll: {e}"))?;
        presence.watch(&bound);
        (*listener, *again_at) = (Some(bound), None);
        Ok(())
    }

    /// Turns the owner's names into numbers: once, as a name service may take its time.
    fn look_up_owner(&mut self) -> Result<(), String> {
        if let (Some(owner), None) = (&self.owner, self.ids) {
            self.ids = Some(owner.ids().map_err(|e| format!("owner {owner}: {e}"))?);
        }
        Ok(())
    }

    /// Whether the process at the other end may use the port. If not, says so, and notes who it was.
    fn admits(&mut self, connection: &OwnedFd, now: Instant) -> bool {
        let Some(ids) = self.ids else { return self.owner.is_none() };
        let Err(who) = ids.check(connection) else { return true };
        if let Some(more) = self.log.pass(now) {
            let owner = self.config.owner.as_deref().unwrap_or_default();
            let reason = format!("{who} was refused: the port belongs to {owner}");
            warn!("port {}: {reason}{}", self.config.name, held_back(more));
            self.refused = Some(Refused::Peer(reason));
        }
        false
    }

    /// Who was refused since the last call, for [`super::supervisor`] to tell control.
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.refused.take()
    }

    /// Takes the connections that wait at the listener: keeps the first if no other is kept, refuses the rest.
    pub fn accept(&mut self, cx: Context<'_>) {
        for _ in 0..ACCEPT_BURST {
            if self.aside.is_stuck() {
                return self.rest(cx, STUCK_WAIT, "connections that ended do not close: front-ends have sent files of a FUSE mount, or sockets that linger (end whoever serves them), or no thread can be started, by pids.max, that would close them".into());
            }
            let End::Listen { listener: Some(listener), .. } = &self.end else { return };
            let connection = match listener.accept() {
                Ok(None) => return,
                Ok(Some(connection)) => connection,
                // Out of descriptors or memory: the connections stay in the queue, so do not look for a while.
                Err(e) => return self.rest(cx, ACCEPT_WAIT, format!("cannot accept: {e}")),
            };
            if !self.admits(&connection, cx.now) {
                refuse(connection, &self.aside);
                continue;
            }
            let End::Listen { waiting, .. } = &mut self.end else { return };
            // One that waits and has hung up meanwhile must not keep out the next: a front-end that comes and goes.
            if waiting.as_ref().is_none_or(|(old, _)| socket::has_hung_up(old)) {
                if let Some((old, _)) = waiting.replace((connection, cx.now + HAND_OVER)) {
                    self.aside.drop_aside(Closing::new(old));
                }
            } else {
                self.refuse_second(connection, cx.now);
            }
        }
    }

    /// Does not look at the listener for a while.
    fn rest(&mut self, cx: Context<'_>, wait: Duration, why: String) {
        let End::Listen { listener: Some(listener), again_at, .. } = &mut self.end else { return };
        let _ = cx.epoll.delete(&*listener);
        *again_at = Some(cx.now + wait);
        self.complain(why);
    }

    /// Lets go of the connection that the switch has, or had: since when.
    fn part(&mut self) -> Option<Instant> {
        self.hang_up();
        let Live { since, copy } = self.live.take()?;
        copy.into_iter().for_each(|copy| self.aside.drop_aside(Closing::new(copy)));
        Some(since)
    }

    /// The switch is ending: its front-end need not wait until that is done, if it ever is.
    pub fn hang_up(&self) {
        if let Some(copy) = self.live.as_ref().and_then(|live| live.copy.as_ref()) {
            let _ = shutdown(copy, Shutdown::Both);
        }
    }

    /// The switch says that the connection has ended.
    pub fn connection_closed(&mut self, now: Instant, reason: &str) {
        let Some(since) = self.part() else { return };
        if let End::Connect { again_at, backoff } = &mut self.end {
            if now.saturating_duration_since(since) >= GOOD_CONNECTION {
                backoff.reset();
            }
            *again_at = now + backoff.wait();
        }
        if let Some(more) = self.log.pass(now) {
            info!("port {}: connection ended: {reason}{}", self.config.name, held_back(more));
        }
    }

    /// The switch has ended, and every connection with it.
    pub fn switch_gone(&mut self, now: Instant) {
        self.part();
        if let End::Connect { again_at, backoff } = &mut self.end {
            backoff.reset();
            *again_at = now + backoff.wait();
        }
    }

    /// Does what is due. A connection returned is for the switch, and counts as live from now on.
    pub fn step(&mut self, cx: Context<'_>, token: u64) -> Option<OwnedFd> {
        let due = |at: Instant| at <= cx.now;
        match &mut self.end {
            End::Listen { listener: None, again_at, .. } => {
                if again_at.is_some_and(due) {
                    match self.open(cx.epoll, cx.presence, token) {
                        Ok(()) => {
                            self.complaint = None;
                            if let Some(more) = self.log.pass(cx.now) {
                                let PortConfig { name, path, .. } = &self.config;
                                info!("port {name}: listening on {path}{}", held_back(more));
                            }
                        }
                        Err(e) => self.bind_later(cx.now, e),
                    }
                }
                None
            }
            End::Listen { listener: Some(listener), again_at, waiting } => {
                if again_at.is_some_and(due) && cx.epoll.add(&*listener, token, Trigger::Level).is_ok() {
                    *again_at = None;
                }
                if !cx.switch_up {
                    return None;
                }
                if self.live.is_some() {
                    if let Some(refused) = waiting.take_if(|(_, refuse_at)| due(*refuse_at)) {
                        self.refuse_second(refused.0, cx.now);
                    }
                    return None;
                }
                let (connection, _) = waiting.take()?;
                Some(self.connected(connection, cx.now))
            }
            End::Connect { again_at, .. } => {
                if !cx.switch_up || self.live.is_some() || !due(*again_at) {
                    return None;
                }
                if self.aside.is_stuck() {
                    *again_at = cx.now + STUCK_WAIT;
                    return None;
                }
                self.connect(cx.now)
            }
        }
    }

    /// Tries to connect, to somebody who may use the port; if that fails, tries again later.
    fn connect(&mut self, now: Instant) -> Option<OwnedFd> {
        let connection = self.look_up_owner().and_then(|()| {
            let connected = socket::connect(Path::new(&self.config.path));
            connected.map_err(|e| format!("cannot connect to {}: {e}; trying again", self.config.path))
        });
        match connection {
            Ok(connection) if self.admits(&connection, now) => return Some(self.connected(connection, now)),
            Ok(refused) => refuse(refused, &self.aside),
            Err(e) => self.complain(e),
        }
        if let End::Connect { again_at, backoff } = &mut self.end {
            *again_at = now + backoff.wait();
        }
        None
    }

    /// Looks whether its socket's file is where it was made; if not, another is made in the next step. A connection stays.
    pub fn look_for_socket(&mut self, now: Instant) {
        if let End::Listen { listener, again_at, .. } = &mut self.end
            && listener.take_if(|listener| !listener.is_in_place()).is_some()
        {
            *again_at = Some(now);
            if let Some(more) = self.log.pass(now) {
                let PortConfig { name, path, .. } = &self.config;
                warn!("port {name}: {path} was removed or replaced; making it anew{}", held_back(more));
            }
        }
    }

    /// What keeps front-ends from it, and what to do. `session`: what is wrong with its session process, which every front-end needs.
    fn fault(&self, session: Option<String>) -> Option<String> {
        let in_trouble = match &self.end {
            End::Listen { listener, again_at, .. } => listener.is_none() || again_at.is_some(),
            End::Connect { .. } => self.live.is_none(),
        };
        let fault = session.or_else(|| self.complaint.clone().filter(|_| in_trouble))?;
        Some(fault.chars().take(LONGEST_FAULT).collect())
    }

    /// The same, if control has not been told so; without one, that there is none any more.
    pub fn fault_news(&mut self, session: Option<String>) -> Option<Option<String>> {
        let fault = self.fault(session);
        (fault != self.told).then(|| {
            self.told.clone_from(&fault);
            fault
        })
    }

    /// There is another control, which has been told nothing.
    pub fn tell_fault_again(&mut self) {
        self.told = None;
    }

    /// When [`Port::step`] next has something to do, if no event comes first.
    pub fn deadline(&self, switch_up: impl FnOnce() -> bool) -> Option<Instant> {
        match &self.end {
            End::Listen { again_at, waiting, .. } => {
                let refuse_at = waiting.as_ref().map(|(_, at)| *at).filter(|_| switch_up());
                again_at.iter().chain(&refuse_at).min().copied()
            }
            End::Connect { again_at, .. } => (self.live.is_none() && switch_up()).then_some(*again_at),
        }
    }

    /// Whether [`Port::step`] may have something to do.
    pub fn is_due(&self, now: Instant) -> bool {
        match &self.end {
            End::Listen { again_at, waiting, .. } => waiting.is_some() || again_at.is_some_and(|at| at <= now),
            End::Connect { again_at, .. } => self.live.is_none() && *again_at <= now,
        }
    }

    /// Says why the port cannot listen, once, and tries again later.
    pub fn bind_later(&mut self, now: Instant, error: String) {
        if let End::Listen { again_at, .. } = &mut self.end {
            *again_at = Some(now + BIND_WAIT);
        }
        self.complain(error);
    }

    fn connected(&mut self, connection: OwnedFd, now: Instant) -> OwnedFd {
        self.live = Some(Live { since: now, copy: connection.try_clone().ok() });
        self.complaint = None;
        if let Some(more) = self.log.pass(now) {
            let how = if self.config.client { "connected" } else { "front-end connected" };
            info!("port {}: {how}{}", self.config.name, held_back(more));
        }
        connection
    }

    fn complain(&mut self, what: String) {
        if self.complaint.as_ref() != Some(&what) {
            warn!("port {}: {what}", self.config.name);
            self.complaint = Some(what);
        }
    }

    fn refuse_second(&mut self, connection: OwnedFd, now: Instant) {
        if let Some(more) = self.log.pass(now) {
            let (name, who) = (&self.config.name, owner::who(&connection));
            warn!("port {name}: a second front-end refused, one is connected already: {who}{}", held_back(more));
            self.refused = Some(Refused::Second(who));
        }
        refuse(connection, &self.aside);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if handover::is_under_way() {
            // The program before may go on with its front-end.
            return;
        }
        self.part();
        if let End::Listen { waiting, .. } = &mut self.end
            && let Some((connection, _)) = waiting.take()
        {
            self.aside.drop_aside(Closing::new(connection));
        }
    }
}

/// Ends a connection at once, and closes it when that can be done.
fn refuse(connection: OwnedFd, aside: &Aside) {
    let _ = shutdown(&connection, Shutdown::Both);
    aside.drop_aside(Closing::new(connection));
}

fn held_back(lines: u64) -> String {
    if lines == 0 { String::new() } else { format!(" ({} of this port left out)", counted(lines, "more line")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn port(path: &Path, client: bool, now: Instant) -> Port {
        let path = path.to_str().unwrap().to_owned();
        let saved = SavedPort { name: "vm".into(), path, client, tx_batch: None, owner: None };
        Port::new(PortId(1), saved, false, now)
    }

    fn ended(stream: &mut UnixStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0]), Ok(0))
    }

    #[test]
    fn connecting_backs_off_and_a_circle_of_short_connections_does_too() {
        let (dir, epoll, start) = (tempfile::tempdir().unwrap(), Epoll::new().unwrap(), Instant::now());
        let presence = &Presence::new(&epoll, 2);
        let path = dir.path().join("vm.sock");
        let mut port = port(&path, true, start);
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert!(port.step(Context { epoll: &epoll, presence, now, switch_up: true }, 1).is_none());
            let next = port.deadline(|| true).unwrap();
            waits.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(waits, [0, 5, 10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(port.deadline(|| false), None, "without a switch there is nothing to do");

        let _listener = UnixListener::bind(&path).unwrap();
        let connection = port.step(Context { epoll: &epoll, presence, now, switch_up: true }, 1);
        assert!(connection.is_some());
        assert_eq!(port.deadline(|| true), None);
        // It lasted: the loss is answered at once.
        now += Duration::from_secs(5);
        port.connection_closed(now, "test");
        assert_eq!(port.deadline(|| true), Some(now));
        // Short ones are not.
        let mut waits = Vec::new();
        for _ in 0..4 {
            assert!(port.step(Context { epoll: &epoll, presence, now, switch_up: true }, 1).is_some());
            port.connection_closed(now, "test");
            let next = port.deadline(|| true).unwrap();
            waits.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(waits, [5, 10, 20, 40]);
        port.switch_gone(now);
        assert_eq!(port.deadline(|| true), Some(now), "a new switch is connected at once");
    }

    #[test]
    fn a_second_front_end_waits_for_the_first_to_be_gone_and_a_third_is_refused() {
        let (dir, epoll, now) = (tempfile::tempdir().unwrap(), Epoll::new().unwrap(), Instant::now());
        let presence = &Presence::new(&epoll, 2);
        let path = dir.path().join("vm.sock");
        let mut port = port(&path, false, now);
        let cx = Context { epoll: &epoll, presence, now, switch_up: true };
        port.open(&epoll, presence, 1).unwrap();
        let mut front_ends: Vec<_> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
        port.accept(cx);
        assert!(port.step(cx, 1).is_some(), "nobody was there");
        // The two others were refused as the first one was kept; they come again.
        assert!(ended(&mut front_ends[1]) && ended(&mut front_ends[2]));
        let mut second = UnixStream::connect(&path).unwrap();
        let mut third = UnixStream::connect(&path).unwrap();
        port.accept(cx);
        assert!(port.step(cx, 1).is_none());
        assert!(!ended(&mut second));
        assert!(ended(&mut third));
        port.connection_closed(now, "test");
        let handed_over = port.step(cx, 1);
        assert!(handed_over.is_some() && !ended(&mut second));

        let mut fourth = UnixStream::connect(&path).unwrap();
        port.accept(cx);
        let refuse_at = port.deadline(|| true).unwrap();
        assert_eq!(refuse_at, now + HAND_OVER);
        assert!(port.step(Context { now: refuse_at, ..cx }, 1).is_none());
        assert!(ended(&mut fourth), "the second one stayed");
        assert_eq!(port.deadline(|| true), None);
    }

    /// A peer of another user: here the owner is another, and the peer is not root.
    #[test]
    fn who_does_not_own_the_port_is_refused_and_named() {
        if rustix::process::geteuid().is_root() {
            // tests/process has it with users of its own.
            return;
        }
        let (dir, epoll, now) = (tempfile::tempdir().unwrap(), Epoll::new().unwrap(), Instant::now());
        let presence = &Presence::new(&epoll, 2);
        let path = dir.path().join("vm.sock");
        let mut port = port(&path, false, now);
        port.open(&epoll, presence, 1).unwrap();
        port.ids = Some(Ids { uid: rustix::process::geteuid().as_raw() + 1, gid: None });
        let cx = Context { epoll: &epoll, presence, now, switch_up: true };
        let mut front_end = UnixStream::connect(&path).unwrap();
        port.accept(cx);
        assert!(port.step(cx, 1).is_none() && ended(&mut front_end));
        let who = format!("process {} of user ", std::process::id());
        assert!(matches!(port.take_refused(), Some(Refused::Peer(reason)) if reason.starts_with(&who)));
    }

    #[test]
    fn a_front_end_that_comes_while_the_switch_restarts_is_kept() {
        let (dir, epoll, now) = (tempfile::tempdir().unwrap(), Epoll::new().unwrap(), Instant::now());
        let presence = &Presence::new(&epoll, 2);
        let path = dir.path().join("vm.sock");
        let mut port = port(&path, false, now);
        let down = Context { epoll: &epoll, presence, now, switch_up: false };
        port.open(&epoll, presence, 1).unwrap();
        let mut front_end = UnixStream::connect(&path).unwrap();
        port.accept(down);
        let later = now + Duration::from_secs(60);
        assert!(port.step(Context { now: later, ..down }, 1).is_none());
        assert_eq!(port.deadline(|| false), None);
        assert!(port.step(Context { now: later, switch_up: true, ..down }, 1).is_some());
        assert!(!ended(&mut front_end), "there is a copy, should the switch not end");
        port.switch_gone(later);
        assert!(ended(&mut front_end));
    }
}
