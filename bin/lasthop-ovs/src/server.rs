//! The sockets of Open vSwitch's programs, and the device by which packets come whole, around the datapath that they speak of.

use crate::answers::Unread;
use crate::client::{Client, Event, MAX_REQUEST, Socket};
use crate::presence::Presence;
use crate::record::{Of, Record};
use lasthop_control::{
    ConnectionCursor, ConnectionStats, ConnectionView, Decider, LostOf, OpenVswitch, RatesOf, named,
};
use lasthop_ipc::{FromControl, RateLimit, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_ovs_datapath::{Datapath, Figures, NotesFrom, Out, Tracked};
use lasthop_sys::{Aside, Foreign};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketFlags, accept_with};
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::time::{Sleep, sleep};

#[cfg(test)]
mod tests;

/// Most clients: `ovs-vswitchd` has some dozens.
const MAX_CLIENTS: usize = 1024;
/// Most of them that have not said hello: of more the oldest go, so that who only connects keeps nobody out.
const MAX_NEW: usize = 256;
/// Clients let in before it is looked what those before have said.
const ACCEPTED: usize = 16;
/// Longest frame of a TAP device, and the tag in front of it.
const MAX_FRAME: usize = 66 * 1024;
/// How often connections are looked at while there are any.
const TICK: Duration = Duration::from_secs(1);
/// Frames and requests taken before others have their turn.
const BURST: usize = 64;
/// Flows, or places of the table of connections, that are noted anew in a turn: about a millisecond's work.
const PART: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Server {
    datapath: Datapath,
    /// What the next process goes on with, and the first of another `lasthop run`.
    record: Record,
    outline: Record,
    /// By which numbers are proved.
    secret: [u8; 16],
    /// How far all there is has been noted anew.
    anew: Option<NotesFrom>,
    listener: Socket,
    frames: Socket,
    clients: BTreeMap<u32, Client>,
    next_pid: u32,
    /// Clients that have not said hello, the oldest first.
    new: VecDeque<u32>,
    room: Vec<u8>,
    /// Connections' time, and that of clients who are not let in.
    tick: Option<Pin<Box<Sleep>>>,
    /// Closes what comes from clients.
    aside: Arc<Aside>,
    presence: Presence,
    /// Clients have come, gone or been told their numbers since it was looked who is there.
    clients_changed: bool,
    /// That nobody is let in has been said.
    stuck: bool,
    /// What clients have not read.
    unread: Unread,
    /// That somebody was let go for it has been said.
    was_unread: bool,
}

impl Server {
    /// Of a listening socket, the other end of the device, and the files of the record and of the outline; with room for so many connections.
    pub fn new(
        listener: OwnedFd,
        frames: OwnedFd,
        [record, outline]: [[OwnedFd; 2]; 2],
        connections: usize,
    ) -> io::Result<Self> {
        let mut datapath = Datapath::new().with_seed(RandomState::new().hash_one(())).with_room(connections);
        let (mut record, all) = Record::open(record, Of::All);
        let (mut outline, outlined) = Record::open(outline, Of::Outline);
        let notes = if all.is_empty() { &outlined } else { &all };
        if !notes.is_empty() {
            datapath.set_now(lasthop_control::now_ms());
            let (ports, flows) = datapath.restore(notes);
            if !datapath.is_made() {
                tracing::warn!(
                    "the record of Open vSwitch's datapath (`ovs.datapath-1` and `-2` in the run directory) cannot be read, or is of a version that knows other things: \
                     there is none; an ovs-vswitchd that runs has to be restarted, by `systemctl restart openvswitch-switch` or `lasthop ovs exec`"
                );
            } else if record.was_lost() {
                tracing::warn!(
                    "going on with {ports} ports of Open vSwitch's, without its flows: there was no record of these (it said so above)"
                );
            } else if all.is_empty() {
                tracing::info!("going on with {ports} ports of Open vSwitch's, as with the `lasthop run` before");
            } else {
                tracing::info!("going on with {ports} ports and {flows} flows of Open vSwitch's");
            }
            record.begin();
            record.part(&datapath.notes(), true);
            outline.begin();
            outline.part(&datapath.outline(), true);
        }
        let random = [(); 2].map(|()| RandomState::new().hash_one(()).to_ne_bytes()).concat();
        let secret = outline.secret(random.try_into().unwrap_or_default());
        let aside = Aside::new("clients");
        let socket = |fd| Socket::new(Foreign::new(fd, &aside), Interest::READABLE);
        Ok(Self {
            datapath,
            listener: socket(listener)?,
            frames: socket(frames)?,
            clients: BTreeMap::new(),
            next_pid: outline.next_pid(),
            new: VecDeque::new(),
            record,
            outline,
            secret,
            anew: None,
            room: vec![0; MAX_FRAME.max(MAX_REQUEST)],
            tick: None,
            stuck: false,
            aside,
            presence: Presence::new(lasthop_control::now_ms()),
            clients_changed: false,
            unread: Unread::default(),
            was_unread: false,
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // There is more to do in turns to come, also when nobody says anything meanwhile.
        let mut did = self.datapath.is_busy() || self.anew.is_some();
        // What is due is done when it is asked what there is to send.
        let is_stuck = self.aside.is_stuck();
        if is_stuck && !std::mem::replace(&mut self.stuck, is_stuck) {
            tracing::warn!(
                "what a client sent does not close (files of a FUSE mount, sockets that linger, or no thread can be started, by pids.max, that would close it): no other program of Open vSwitch's is let in until it does"
            );
        }
        self.stuck = is_stuck;
        if self.datapath.wants_ticks() || is_stuck {
            let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
            if tick.as_mut().poll(cx).is_ready() {
                (self.tick, did) = (None, true);
            }
        }
        for _ in 0..ACCEPTED {
            let accept = |fd: BorrowedFd<'_>| accept_with(fd, SocketFlags::CLOEXEC);
            let Some(accepted) = (!is_stuck).then(|| self.listener.poll(cx, accept)).flatten() else { break };
            did = true;
            match accepted {
                Ok(socket) => self.accept(socket),
                Err(e) => {
                    tracing::warn!("a client of Open vSwitch could not be accepted: {e}");
                    break;
                }
            }
        }
        for _ in 0..BURST {
            if !self.datapath.takes_frames() {
                break;
            }
            let room = &mut self.room;
            let read = |fd: BorrowedFd<'_>| retry_on_intr(|| rustix::io::read(fd, room.as_mut_slice()));
            match self.frames.poll(cx, read) {
                Some(Ok(len)) => self.datapath.frame(self.room.get(..len).unwrap_or_default()),
                // The device is set down: there are none until it is up again.
                Some(Err(_)) | None => break,
            }
            did = true;
        }
        let pids: Vec<u32> = self.clients.keys().copied().collect();
        for pid in pids {
            for _ in 0..BURST {
                let room = &mut self.room;
                let Some(event) = self.clients.get_mut(&pid).and_then(|client| client.poll(cx, room)) else { break };
                did = true;
                self.hear(pid, event);
            }
        }
        self.look_for_room();
        if did { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Clients that had no room for upcalls of a port and have read some since.
    fn look_for_room(&mut self) {
        let full: Vec<(u32, u32)> = self.datapath.full_clients().collect();
        let has_room = |(pid, port): &(u32, u32)| self.clients.get(pid).is_none_or(|client| client.has_room_for(*port));
        full.into_iter().filter(has_room).for_each(|(pid, port)| self.datapath.has_room(pid, port));
    }

    /// Which processes take packets, if that may be otherwise than it was.
    fn look_who_is_there(&mut self, now_ms: u64) {
        if !(self.datapath.takers_changed() | std::mem::take(&mut self.clients_changed)) {
            return;
        }
        let takers = self.clients.iter().filter(|(pid, _)| self.datapath.is_taker(**pid));
        let takers: BTreeSet<u32> = takers.map(|(_, client)| client.process).collect();
        let connected: BTreeSet<u32> = self.clients.values().map(|client| client.process).collect();
        self.presence.update(&takers, &connected, self.datapath.is_made(), now_ms);
    }

    fn accept(&mut self, socket: OwnedFd) {
        if self.new.len() >= MAX_NEW
            && let Some(oldest) = self.new.pop_front()
        {
            self.forget(oldest);
        }
        if self.clients.len() >= MAX_CLIENTS {
            return tracing::warn!("{MAX_CLIENTS} sockets of Open vSwitch are open already; one more is refused");
        }
        match Client::new(socket, &self.aside, &self.unread) {
            Ok(client) => {
                let pid = self.free_number();
                self.outline.set_next_pid(self.next_pid);
                self.clients.insert(pid, client);
                self.new.push_back(pid);
                self.datapath.connected(pid);
            }
            Err(e) => tracing::warn!("a client of Open vSwitch: {e}"),
        }
    }

    /// A number that nobody has, and that nobody who takes packets will want to have again.
    fn free_number(&mut self) -> u32 {
        loop {
            let number = self.next_pid;
            self.next_pid = number.wrapping_add(1).max(1);
            if !self.clients.contains_key(&number) && !self.datapath.is_taker(number) {
                return number;
            }
        }
    }

    /// What whoever was given this number is given with it, by this process or one before.
    fn proof(&self, number: u32) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u32(number);
        hasher.finish()
    }

    fn hear(&mut self, pid: u32, event: Event) {
        match event {
            Event::Hello(before, proof) => self.welcome(pid, before, proof),
            Event::Request(datagram) => self.datapath.request(pid, datagram),
            Event::Subscribe(group, wants) => {
                self.datapath.subscribe(pid, group, wants);
                self.clients.get(&pid).iter().for_each(|client| client.tell(true));
            }
            Event::More => self.answer(pid),
            Event::Gone => self.forget(pid),
            Event::OtherVersion(version) => {
                if let Some(client) = self.clients.get(&pid) {
                    self.presence.is_outdated(client.process, version, lasthop_control::now_ms());
                }
                self.forget(pid);
            }
        }
    }

    fn forget(&mut self, pid: u32) {
        self.new.retain(|new| *new != pid);
        self.clients.remove(&pid);
        self.datapath.disconnected(pid);
        self.clients_changed = true;
    }

    /// Of clients that have left too much unread together, the one with most. Open vSwitch's library connects it anew, and says that something was lost.
    fn let_go_of_who_does_not_read(&mut self) {
        if !self.unread.is_too_much() {
            return;
        }
        let Some((pid, client)) = self.clients.iter().max_by_key(|(_, client)| client.unread()) else { return };
        if !std::mem::replace(&mut self.was_unread, true) {
            let process = named([&client.process]);
            tracing::warn!(
                "a program of Open vSwitch's ({process}) asks without reading the answers: its socket is closed, with {} bytes in it",
                client.unread()
            );
        }
        let pid = *pid;
        self.forget(pid);
    }

    /// A part of all there is to note, if that is being noted anew. Packets and requests have their turn before the next.
    fn note_anew(&mut self) {
        if let Some(from) = self.anew.take().filter(|_| self.record.is_begun()) {
            let (part, next) = self.datapath.notes_from(from, PART);
            self.record.part(&part, next.is_none());
            self.anew = next;
        }
    }

    /// The outline is a small part of all: it is noted anew at once.
    fn outline_if_full(&mut self) {
        if self.outline.is_full() {
            self.outline.begin();
            self.outline.part(&self.datapath.outline(), true);
        }
    }

    fn begin_if_full(&mut self) {
        if self.record.is_full() {
            self.record.begin();
            self.anew = Some(NotesFrom::default());
            self.note_anew();
        }
    }

    /// A client gets its number: the one that it had, if it proves that.
    fn welcome(&mut self, pid: u32, before: u32, proof: u64) {
        let Some(client) = self.clients.remove(&pid) else { return };
        self.new.retain(|new| *new != pid);
        let is_own = before != 0 && proof == self.proof(before);
        let number = if is_own { before } else { pid };
        if number != pid {
            self.datapath.disconnected(pid);
            if self.clients.contains_key(&number) {
                // Another connection has it, which is not gone yet: it is to try again.
                return client.welcome(0, 0);
            }
            self.datapath.connected(number);
        }
        client.welcome(number, self.proof(number));
        // Where there is a datapath it is what the client asks about, whatever it says of itself.
        if before != 0 && !self.datapath.is_made() {
            self.presence.is_left_over(client.process);
        }
        self.clients.insert(number, client);
        self.clients_changed = true;
    }

    /// Puts into a client's socket what it waits for, as far as there is room, and says whether that was all.
    fn answer(&mut self, pid: u32) {
        let Some(client) = self.clients.get_mut(&pid) else { return };
        client.flush();
        while !client.is_full()
            && let Some(part) = self.datapath.more(pid)
        {
            client.queue(part);
        }
        client.tell(!client.is_waiting() && !self.datapath.has_more(pid));
    }

    fn send(&mut self, out: Out, to_switch: &mut Vec<FromControl>, to_supervisor: &mut Vec<ControlToSupervisor>) {
        match out {
            Out::Answer(pid, datagram) => {
                if let Some(client) = self.clients.get_mut(&pid) {
                    client.queue(datagram);
                }
                self.let_go_of_who_does_not_read();
            }
            Out::Finished(pid) => {
                if let Some(client) = self.clients.get_mut(&pid) {
                    client.asks = false;
                }
                self.answer(pid);
            }
            Out::Upcall { pid, port, datagram } => {
                let losers = self.clients.get_mut(&pid).map(|client| client.queue_upcall(port, datagram));
                match losers {
                    Some(losers) => losers.into_iter().for_each(|port| self.datapath.has_no_room(pid, port)),
                    None => self.datapath.lost(port),
                }
            }
            Out::Note(note) => {
                self.record.add(&note);
                self.begin_if_full();
                if Datapath::is_outline(&note) {
                    self.outline.add(&note);
                    self.outline_if_full();
                }
            }
            Out::Switch(message) => to_switch.push(*message),
            Out::Supervisor(message) => to_supervisor.push(message),
            Out::Frame(frame) => {
                match retry_on_intr(|| rustix::io::write(self.frames.fd(), &frame)) {
                    Ok(_) => {}
                    // Set down by somebody, or no memory: the frame is gone, as one is that a network loses.
                    Err(Errno::IO | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.datapath.lost(0),
                    Err(e) => tracing::warn!("a frame could not be sent: {e}"),
                }
            }
        }
    }
}

fn view(Tracked { connection, from, reply, flows }: Tracked) -> ConnectionView {
    ConnectionView { connection, from, reply, flows }
}

impl Decider for Server {
    async fn ready(&mut self) {
        std::future::poll_fn(|cx| {
            // Statistics of what comes now are of now; the time is set by `take` of the last turn, and by what is heard.
            self.poll(cx)
        })
        .await;
    }

    fn switch_is(&mut self, attached: bool) {
        self.datapath.switch_is(attached);
    }

    fn hear_switch(&mut self, message: &ToControl, now_ms: u64) -> bool {
        self.datapath.set_now(now_ms);
        self.datapath.hear_switch(message)
    }

    fn hear_supervisor(&mut self, message: &SupervisorToControl, now_ms: u64) -> bool {
        self.datapath.set_now(now_ms);
        self.datapath.hear_supervisor(message)
    }

    fn listen(&mut self, socket: OwnedFd) {
        match Socket::new(Foreign::new(socket, &self.aside), Interest::READABLE) {
            Ok(listener) => self.listener = listener,
            Err(e) => tracing::error!("new socket of Open vSwitch's programs: {e}"),
        }
    }

    fn standing(&self, now_ms: u64) -> OpenVswitch {
        let of = |(port, packets): (&str, u64)| LostOf { port: port.to_owned(), packets };
        let lost_of = self.datapath.untaken_of().map(of).collect();
        let dropped_of = self.datapath.dropped_of().map(of).collect();
        let [ports, without] = [self.ports(), self.datapath.ports_without().map(str::to_owned).collect()];
        let words = |rate: RateLimit| match rate {
            RateLimit { bytes: 0, packets, .. } => format!("{packets} packets a second"),
            RateLimit { bytes, packets: 0, .. } => format!("{} bits a second", bytes * 8),
            RateLimit { bytes, packets, .. } => format!("{} bits and {packets} packets a second", bytes * 8),
        };
        let rates = self.datapath.rates().map(|(port, rates)| {
            let [from, to] = rates.map(|rate| rate.map(words));
            RatesOf { port: port.to_owned(), from, to }
        });
        let rates = rates.collect();
        OpenVswitch {
            lost_of,
            dropped_of,
            ports,
            without,
            rates,
            ..self.presence.shown(self.datapath.untaken(), now_ms)
        }
    }

    fn ports(&self) -> Vec<String> {
        self.datapath.port_names().map(str::to_owned).collect()
    }

    fn connections(
        &self,
        from: ConnectionCursor,
        places: u32,
        now_ms: u64,
        mut see: impl FnMut(ConnectionView),
    ) -> Option<ConnectionCursor> {
        self.datapath.connections(from, places, now_ms, |tracked| see(view(tracked)))
    }

    fn flush_connections(
        &mut self,
        from: ConnectionCursor,
        places: u32,
        now_ms: u64,
        mut is_meant: impl FnMut(&ConnectionView) -> bool,
    ) -> (usize, Option<ConnectionCursor>) {
        self.datapath.flush_connections(from, places, now_ms, |tracked| is_meant(&view(*tracked)))
    }

    fn connection_stats(&self) -> Option<ConnectionStats> {
        let Figures { totals, refused, ports } = self.datapath.figures()?;
        Some(ConnectionStats { totals, refused, ports, recorded: Some(self.record.is_kept()) })
    }

    fn take(&mut self, now_ms: u64) -> (Vec<FromControl>, Vec<ControlToSupervisor>) {
        self.datapath.set_now(now_ms);
        self.record.set_now(now_ms);
        self.outline.set_now(now_ms);
        self.datapath.tick();
        self.look_who_is_there(now_ms);
        if !self.record.is_kept() {
            // There may be room by now, also if nothing more is to be noted.
            self.begin_if_full();
        }
        if !self.outline.is_kept() {
            self.outline_if_full();
        }
        let (mut to_switch, mut to_supervisor) = (Vec::new(), Vec::new());
        loop {
            let out = self.datapath.take();
            if out.is_empty() {
                self.note_anew();
                return (to_switch, to_supervisor);
            }
            for out in out {
                self.send(out, &mut to_switch, &mut to_supervisor);
            }
        }
    }
}
