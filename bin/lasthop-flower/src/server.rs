//! The event loop.

use crate::between::{self, Broken};
use lasthop_ipc::{Channel, ChannelError, FromControl};
use lasthop_management_ipc::{OffloadFigures, OffloadToSupervisor, SupervisorToOffload};
use lasthop_offload::{Beside, Device, Figures, Flower, Lost, Why};
use lasthop_relay::Relay;
use lasthop_sys::{Beat, Epoll, Trigger};
use lasthop_tc::{Netlink, Policy};
use lasthop_types::PortId;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const SUPERVISOR: u64 = 0;
const SWITCH: u64 = 1;
const CONTROL: u64 = 2;

/// How often figures are told at most.
const FIGURES: Duration = Duration::from_millis(500);

/// The channel to the supervisor.
pub type Supervisor = Channel<OffloadToSupervisor, SupervisorToOffload>;

/// The process.
pub struct Server {
    epoll: Epoll,
    beside: Beside<Flower>,
    relay: Option<Relay>,
    /// Of the next join, the first end.
    given: Option<OwnedFd>,
    /// Which join that is, or was.
    join: u64,
    told: Figures,
    /// When that was looked at.
    told_at: Instant,
}

impl Server {
    /// One between nobody.
    pub fn new(netlink: Netlink, policy: Policy) -> Result<Self, Box<dyn Error>> {
        let (epoll, beside) = (Epoll::new()?, Beside::new(Flower::new(netlink, policy))?);
        let (told, told_at) = (Figures::default(), Instant::now());
        Ok(Self { epoll, beside, relay: None, given: None, join: 0, told, told_at })
    }

    /// Serves until the supervisor says that it is enough, or is gone. Whatever the end, no rule is left.
    pub fn serve(mut self, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        self.epoll.add(&*supervisor, SUPERVISOR, Trigger::Level)?;
        let served = self.serve_all(supervisor);
        self.beside.forget()?;
        served
    }

    fn serve_all(&mut self, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        let (beat, mut ready) = (Beat::new(), Vec::new());
        loop {
            let rests = self.turn(supervisor)?;
            let wait = if rests { self.tell_figures(supervisor)? } else { Some(Duration::ZERO) };
            beat.sleep();
            self.epoll.wait(&mut ready, wait)?;
            beat.work();
            for token in &ready {
                match *token {
                    SUPERVISOR if !self.hear_supervisor(supervisor)? => return Ok(()),
                    SUPERVISOR => {}
                    end => {
                        let woken = self.relay.as_mut().map(|relay| match end {
                            SWITCH => relay.switch_woken(),
                            _ => relay.control_woken(),
                        });
                        self.judge(woken.unwrap_or(Ok(())).map_err(Broken::End), supervisor)?;
                    }
                }
            }
        }
    }

    /// Passes on what there is; whether that is all.
    fn turn(&mut self, supervisor: &mut Supervisor) -> Result<bool, Box<dyn Error>> {
        let Some(relay) = &mut self.relay else { return Ok(true) };
        let turn = between::turn(relay, &mut self.beside);
        let rests = *turn.as_ref().unwrap_or(&true);
        self.judge(turn.map(drop), supervisor)?;
        Ok(rests)
    }

    /// One end is of no more use, and so is the other: before either's process hears of it no rule is left.
    fn judge(&mut self, result: Result<(), Broken>, supervisor: &mut Supervisor) -> Result<(), Box<dyn Error>> {
        match result {
            Ok(()) => Ok(()),
            Err(Broken::Table(lost)) => Err(lost.into()),
            Err(Broken::End(error)) => {
                let why = (!matches!(error, ChannelError::Closed)).then(|| error.to_string());
                self.part()?;
                supervisor.send(&OffloadToSupervisor::Apart { number: self.join, why }, None)?;
                Ok(())
            }
        }
    }

    fn part(&mut self) -> Result<(), Lost> {
        self.beside.forget()?;
        if let Some(relay) = self.relay.take() {
            let _ = self.epoll.delete(&relay.switch);
            let _ = self.epoll.delete(&relay.control);
        }
        Ok(())
    }

    /// False: it is gone, or asks for the end.
    fn hear_supervisor(&mut self, supervisor: &mut Supervisor) -> Result<bool, Box<dyn Error>> {
        loop {
            let (message, fd) = match supervisor.recv() {
                Ok(received) => received,
                Err(ChannelError::WouldBlock) => return Ok(true),
                Err(ChannelError::Closed) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            match message {
                SupervisorToOffload::Begin => supervisor.send(&OffloadToSupervisor::Ready, None)?,
                SupervisorToOffload::Port { port, device, limited, number } => {
                    self.set_port(port, device.map(|index| Device { index, limited }))?;
                    supervisor.send(&OffloadToSupervisor::Done(number), None)?;
                }
                SupervisorToOffload::Join { number } => match (self.given.take(), fd) {
                    (Some(switch), Some(control)) => {
                        self.join = number;
                        let joined = self.join(switch, control);
                        self.judge(joined, supervisor)?;
                    }
                    (None, fd) => self.given = fd,
                    (Some(_), None) => {}
                },
                SupervisorToOffload::Shutdown => return Ok(false),
            }
        }
    }

    fn set_port(&mut self, port: PortId, device: Option<Device>) -> Result<(), Lost> {
        let before = self.beside.table().devices.get(&port).copied();
        if before == device {
            return Ok(());
        }
        let why = device.filter(|device| device.limited).map(|_| Why::Rate);
        self.beside.withdraw(port, why)?;
        self.beside.table().devices.remove(&port);
        if let Some(device) = device {
            self.beside.table().add(port, device)?;
            // What was put before may be put now.
            if !device.limited
                && let Some(relay) = &mut self.relay
            {
                self.beside.forget()?;
                // All flows are judged anew, as more of them may be elsewhere now.
                relay.say(FromControl::ClearFlows);
            }
        }
        Ok(())
    }

    fn join(&mut self, switch: OwnedFd, control: OwnedFd) -> Result<(), Broken> {
        self.part()?;
        let relay = between::join(switch, control)?;
        let watch =
            |end: &dyn AsFd, token| self.epoll.add(end.as_fd(), token, Trigger::Level).map_err(ChannelError::from);
        watch(&relay.switch, SWITCH)?;
        watch(&relay.control, CONTROL)?;
        self.relay = Some(relay);
        Ok(())
    }

    /// Tells what is to be shown, if that has changed and was not told just now; how long until it is to be.
    fn tell_figures(&mut self, supervisor: &mut Supervisor) -> Result<Option<Duration>, Box<dyn Error>> {
        let since = self.told_at.elapsed();
        if since < FIGURES {
            return Ok(Some(FIGURES.saturating_sub(since)));
        }
        // This looks at all flows.
        self.told_at = Instant::now();
        let figures = self.beside.figures();
        if figures == self.told {
            return Ok(None);
        }
        let Figures { flows, in_hardware, packets, bytes, stayed } = figures.clone();
        let told = OffloadToSupervisor::Figures(OffloadFigures { flows, in_hardware, packets, bytes, stayed });
        match supervisor.send(&told, None) {
            Ok(()) => self.told = figures,
            Err(ChannelError::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Some(FIGURES))
    }
}
