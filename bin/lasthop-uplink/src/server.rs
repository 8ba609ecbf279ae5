//! The thread that talks: to the supervisor and, over the sockets that it sends, to the switch. Packets are the engines'
//! business.

use lasthop_guest_queues::manager::Manager;
use lasthop_ipc::{Channel, ChannelError};
use lasthop_sys::{Epoll, EventFd, Trigger};
use lasthop_uplink_core::counters::Counters;
use lasthop_uplink_core::device::{Device, Queue};
use lasthop_uplink_core::engine::{Answer, Engine, Handle, Order};
use lasthop_uplink_core::link;
use lasthop_uplink_core::memory::SharedMemory;
use lasthop_uplink_core::pair::Pair;
use lasthop_uplink_core::survival::announce::Announcer;
use lasthop_uplink_core::survival::probe::{Heard, Prober};
use lasthop_uplink_ipc::{SupervisorToUplink, UplinkCounters, UplinkDevice, UplinkToSupervisor};
use lasthop_vhostuser::{Features, Frontend};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::time::Timespec;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub type Supervisor = Channel<UplinkToSupervisor, SupervisorToUplink>;

const CHANNEL: u64 = 0;
const SWITCH: u64 = 1;
const ANSWERED: u64 = 2;
const BROKEN: u64 = 3;
const PROBED: u64 = 4;
const TRAFFIC: u64 = 5;

/// How long an engine may take to stop: a burst.
const PAUSE_LIMIT: Duration = Duration::from_secs(2);
/// Frames that waited in the device longer than this are not delivered any more.
const STALE_MS: u64 = 1000;
/// How long the switch may take to let go of a connection that it has been given another for.
const LET_GO_LIMIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Everything but the packets.
#[derive(Debug)]
pub struct Server {
    epoll: Epoll,
    /// A device that is in use by the process before this one.
    waiting: Option<Device>,
    memory: Option<SharedMemory>,
    engines: Vec<Handle>,
    answered: EventFd,
    counters: Arc<Counters>,
    /// Queues for guests, where the device has them.
    queues: Option<Manager>,
    /// Whom they are kept for, as the supervisor was told.
    kept: Vec<u32>,
    about: UplinkDevice,
    offloads: Features,
    /// Signalled by the switch when it found a ring broken.
    broken: EventFd,
    front: Option<Frontend>,
    /// Once the switch has let go of the connection there is, nothing but probes is looked for.
    listen: bool,
    prober: Prober,
    heard: Arc<Heard>,
    announcer: Announcer,
    /// The ping that is to be answered, and how many engines have not answered it.
    ping: Option<(u64, usize)>,
}

impl Server {
    /// Nothing is connected yet, and the device is not used before something is.
    pub fn waiting(
        mut device: Device,
        counters: Counters,
        (prober, heard): (Prober, Arc<Heard>),
    ) -> Result<Self, rustix::io::Errno> {
        let (epoll, broken, answered) = (Epoll::new()?, EventFd::new()?, EventFd::new()?);
        epoll.add(&answered, ANSWERED, Trigger::Level)?;
        epoll.add(&broken, BROKEN, Trigger::Level)?;
        let queues = device.steering.take().map(Manager::new);
        if let Some(queues) = &queues {
            epoll.add(queues.traffic(), TRAFFIC, Trigger::Level)?;
        }
        epoll.add(&*heard, PROBED, Trigger::Level)?;
        let (about, offloads) = (device.about.clone(), device.features);
        Ok(Self {
            epoll,
            waiting: Some(device),
            memory: None,
            engines: Vec::new(),
            answered,
            counters: Arc::new(counters),
            queues,
            kept: Vec::new(),
            about,
            offloads,
            broken,
            front: None,
            listen: false,
            prober,
            heard,
            announcer: Announcer::default(),
            ping: None,
        })
    }

    /// Nothing is connected yet, but all is there.
    pub fn carrying(
        mut device: Device,
        counters: Counters,
        probes: (Prober, Arc<Heard>),
        memory: SharedMemory,
        pairs: Vec<Pair>,
    ) -> Result<Self, Box<dyn Error>> {
        let queues = std::mem::take(&mut device.queues);
        let mut server = Self::waiting(device, counters, probes)?;
        server.waiting = None;
        server.carry(memory, pairs, queues)?;
        Ok(server)
    }

    /// Starts the engines.
    fn carry(&mut self, memory: SharedMemory, pairs: Vec<Pair>, queues: Vec<Queue>) -> Result<(), Box<dyn Error>> {
        for (i, (pair, queue)) in pairs.into_iter().zip(queues).enumerate() {
            let (engine, handle) = Engine::new(pair, queue, self.counters.clone(), self.answered.try_clone()?)?;
            std::thread::Builder::new().name(format!("queue-{i}")).spawn(move || engine.run())?;
            self.engines.push(handle);
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// The process before this one has ended: the device is ours.
    fn take_over(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(mut device) = self.waiting.take() else { return Ok(()) };
        device.examine(&self.counters)?;
        let (memory, mut pairs) = SharedMemory::new(device.memory, &self.heard, device.kept.take())?;
        device.bind(&mut pairs, &memory)?;
        self.carry(memory, pairs, device.queues)
    }

    /// Runs until the supervisor asks to end. An error means that this process is of no use any more.
    pub fn serve(mut self, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        self.epoll.add(supervisor.as_fd(), CHANNEL, Trigger::Level)?;
        supervisor.send(&UplinkToSupervisor::Ready(self.about.clone()), None)?;
        let mut ready = Vec::new();
        loop {
            let queues = self.queues.as_ref().and_then(Manager::deadline);
            let deadline = queues.into_iter().chain(self.announcer.deadline()).min();
            self.epoll.wait(&mut ready, deadline.map(|at| at.saturating_duration_since(Instant::now())))?;
            self.announcer.step(Instant::now(), |frame| self.prober.announce(frame, &self.counters));
            if let Some(queues) = &mut self.queues {
                queues.step(Instant::now());
            }
            for token in &ready {
                match *token {
                    CHANNEL if self.obey(supervisor)? => return Ok(()),
                    // It has nothing to say but that it is gone.
                    SWITCH => {
                        self.disconnect(supervisor)?;
                        if self.listen {
                            self.engines.iter().for_each(|engine| engine.order(Order::Listen));
                        }
                    }
                    ANSWERED => self.hear_engines(supervisor)?,
                    TRAFFIC => self.queues.iter_mut().for_each(|queues| queues.wake(Instant::now())),
                    PROBED => {
                        for (token, vlan) in self.heard.take() {
                            // If the supervisor has too much to do, there will be another.
                            let _ = supervisor.send(&UplinkToSupervisor::Heard { token, vlan }, None);
                        }
                    }
                    BROKEN => return Err("the switch finds a ring of this uplink broken".into()),
                    _ => {}
                }
            }
            self.tell_kept(supervisor);
        }
    }

    /// Does what the supervisor asks; true if that is to end.
    fn obey(&mut self, supervisor: &mut Supervisor) -> Result<bool, Box<dyn Error>> {
        loop {
            match supervisor.recv() {
                Ok((SupervisorToUplink::Connection { away_ms }, Some(socket))) => {
                    self.connect(socket, away_ms > STALE_MS, supervisor)?;
                }
                Ok((SupervisorToUplink::Connection { .. }, None)) => tracing::warn!("a connection without a socket"),
                Ok((SupervisorToUplink::Ping(number), _)) => {
                    self.ping = Some((number, self.engines.len()));
                    self.engines.iter().for_each(|engine| engine.order(Order::Ping));
                    // One that waits has nobody to ask.
                    self.hear_engines(supervisor)?;
                }
                Ok((SupervisorToUplink::Probe { instance, token, vlans }, _)) => {
                    self.heard.expect(instance);
                    self.prober.send(&instance, &token, &vlans);
                }
                Ok((SupervisorToUplink::Listen, _)) => self.listen()?,
                Ok((SupervisorToUplink::Announce(macs), _)) => {
                    if !self.listen {
                        self.announcer.add(&macs, Instant::now());
                    }
                }
                Ok((SupervisorToUplink::Owners(owners), _)) => {
                    if let Some(queues) = &mut self.queues {
                        queues.pin(owners, Instant::now());
                    }
                    // It may be another supervisor, that has not heard it.
                    self.kept.clear();
                }
                Ok((SupervisorToUplink::Shutdown { remove }, _)) => {
                    if remove {
                        self.waiting.iter().for_each(Device::end);
                        self.order_all(&Order::End, supervisor)?;
                    }
                    return Ok(true);
                }
                Err(ChannelError::WouldBlock) => return Ok(false),
                Err(ChannelError::Closed) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Says which ports queues are kept for, if it has not been said.
    fn tell_kept(&mut self, supervisor: &mut Supervisor) {
        let Some(queues) = &self.queues else { return };
        if !queues.kept().eq(self.kept.iter().copied()) {
            let kept: Vec<u32> = queues.kept().collect();
            // If the supervisor has too much to do, it is said the next time.
            if supervisor.send(&UplinkToSupervisor::QueueOwners(kept.clone()), None).is_ok() {
                self.kept = kept;
            }
        }
    }

    /// What the engines answer to pings, or that one cannot go on.
    fn hear_engines(&mut self, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        self.answered.drain();
        for engine in &self.engines {
            while let Ok(answer) = engine.answers.try_recv() {
                match answer {
                    Answer::Alive => {
                        if let Some((_, left)) = &mut self.ping {
                            *left = left.saturating_sub(1);
                        }
                    }
                    Answer::Failed(e) => return Err(e.into()),
                    Answer::Paused(_) | Answer::Ended => {}
                }
            }
        }
        if let Some((number, _)) = self.ping.take_if(|(_, left)| *left == 0) {
            let queues = self.queues.as_ref().map(Manager::queues).unwrap_or_default();
            let counters = UplinkCounters { queues, ..self.counters.snapshot() };
            supervisor.send(&UplinkToSupervisor::Pong { number, counters }, None)?;
        }
        Ok(())
    }

    /// Tells every engine the same and waits until each has done it.
    fn order_all(&mut self, order: &Order, supervisor: &mut Supervisor) -> Result<Vec<u32>, Box<dyn Error>> {
        self.engines.iter().for_each(|engine| engine.order(order.clone()));
        let mut bases = Vec::new();
        for engine in &self.engines {
            loop {
                match engine.answers.recv_timeout(PAUSE_LIMIT).map_err(|_| "an engine hangs")? {
                    Answer::Paused(both) => bases.extend(both),
                    Answer::Ended => {}
                    Answer::Alive => {
                        if let Some((_, left)) = &mut self.ping {
                            *left = left.saturating_sub(1);
                        }
                        continue;
                    }
                    Answer::Failed(e) => return Err(e.into()),
                }
                break;
            }
        }
        self.hear_engines(supervisor)?;
        Ok(bases)
    }

    fn disconnect(&mut self, supervisor: &mut Supervisor) -> Result<Vec<u32>, Box<dyn Error>> {
        if let Some(front) = self.front.take() {
            let _ = self.epoll.delete(&front);
        }
        self.order_all(&Order::Pause, supervisor)
    }

    /// Says good-bye to the switch, which lets go of the rings before it hangs up.
    fn listen(&mut self) -> Result<(), Box<dyn Error>> {
        self.take_over()?;
        self.announcer.stop();
        self.listen = true;
        match &self.front {
            // If it has gone already, that is reported too.
            Some(front) => drop(shutdown(front, Shutdown::Write)),
            None => self.engines.iter().for_each(|engine| engine.order(Order::Listen)),
        }
        Ok(())
    }

    /// A connection to a switch that may be a new one. The old one must be let go of first: only one may use the rings.
    /// `stale`: what waits in the device is not to be delivered any more.
    fn connect(&mut self, socket: OwnedFd, stale: bool, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        if let Some(front) = &self.front {
            let mut fds = [PollFd::new(front, PollFlags::IN)];
            if poll(&mut fds, Some(&LET_GO_LIMIT)) == Ok(0) {
                return Err("the switch does not let go of the old connection".into());
            }
        }
        self.take_over()?;
        let bases = self.disconnect(supervisor)?;
        self.listen = false;
        let Some(memory) = &self.memory else { return Err("there is no memory to be shared".into()) };
        match link::connect(socket, memory, &bases, self.offloads, &self.broken) {
            Ok(front) => {
                self.epoll.add(&front, SWITCH, Trigger::Level)?;
                self.front = Some(front);
                self.engines.iter().for_each(|engine| engine.order(Order::Resume { stale }));
            }
            // The supervisor hears from the switch that the connection has ended, and makes another.
            Err(e) => tracing::warn!("{e}"),
        }
        Ok(())
    }
}
