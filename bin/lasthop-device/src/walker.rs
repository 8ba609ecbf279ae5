//! The walk of the larger table: "the hardware can access a larger flow table directly in main memory. In many ways this is analogous to how the
//! page table is handled" (Ram, PhD thesis, 7.1).
//!
//! A thread with a [`Station`] between the data plane and control. Of a miss it looks
//! for the flow in control's table; if it is there, the flow is put into the data plane's own table and the packet is answered, and control does not hear of
//! it. So the packet path has nothing for this.
//!
//! *Order.* What control says is passed on in its order, and control takes a flow out of its table before it says that it is to go. So a flow found in a walk is put
//! before the word that it is to go, or not at all.
//!
//! What control writes into the table is checked where it is read ([`Table::walk`]), and by the data plane like all that control says. How much waits here is
//! bounded by [`Relay`].

use lasthop_ipc::{
    Channel, ChannelError, FromControl, SupervisorToSwitch, SwitchToSupervisor, ToControl, UpcallPacket,
};
use lasthop_larger_table::{Found, Marks, Table, Walks};
use lasthop_relay::{Relay, Station};
use lasthop_sys::{Beat, Epoll, Trigger};
use lasthop_types::{Level, LogLine, PortId};
use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Descriptors by which the data plane and control are joined: rings to either, the table, and its marks.
const JOINS: usize = 4;

const SUPERVISOR: u64 = 0;
const SWITCH: u64 = 1;
const CONTROL: u64 = 2;

/// The thread.
#[derive(Debug)]
pub struct Walker {
    supervisor: Channel<SwitchToSupervisor, SupervisorToSwitch>,
    epoll: Epoll,
    /// Of the next join, as far as they have come.
    given: Vec<OwnedFd>,
    between: Option<Between>,
}

impl Walker {
    /// Hears by this channel of what it is between.
    pub fn new(supervisor: Channel<SwitchToSupervisor, SupervisorToSwitch>) -> Result<Self, ChannelError> {
        let epoll = Epoll::new()?;
        epoll.add(&supervisor, SUPERVISOR, Trigger::Level)?;
        Ok(Self { supervisor, epoll, given: Vec::new(), between: None })
    }

    /// Serves until the supervisor is gone; then the data plane ends, too.
    pub fn serve(mut self) -> Result<(), ChannelError> {
        let (beat, mut ready) = (Beat::new(), Vec::new());
        loop {
            let rests = self.turn();
            beat.sleep();
            self.epoll.wait(&mut ready, if rests { None } else { Some(std::time::Duration::ZERO) })?;
            beat.work();
            for token in &ready {
                match *token {
                    SUPERVISOR if !self.hear_supervisor()? => return Ok(()),
                    SUPERVISOR => {}
                    end => {
                        let woken = self.between.as_mut().map(|Between { relay, .. }| match end {
                            SWITCH => relay.switch_woken(),
                            _ => relay.control_woken(),
                        });
                        self.judge(woken.unwrap_or(Ok(())));
                    }
                }
            }
        }
    }

    /// Passes on what there is; whether that is all.
    fn turn(&mut self) -> bool {
        let turn = self.between.as_mut().map_or(Ok(true), Between::turn);
        let rests = *turn.as_ref().unwrap_or(&true);
        self.judge(turn.map(drop));
        rests
    }

    /// One end is of no more use, and so is the other. Of one that has closed the supervisor knows; it is to replace a control that has
    /// written what cannot be, and joins the two anew then.
    fn judge(&mut self, result: Result<(), ChannelError>) {
        let Err(error) = result else { return };
        if let Some(between) = self.between.take() {
            let _ = self.epoll.delete(&between.relay.switch);
            let _ = self.epoll.delete(&between.relay.control);
        }
        if !matches!(error, ChannelError::Closed) {
            let _ = self.supervisor.send(&SwitchToSupervisor::ControlBroke(error.to_string()), None);
        }
    }

    /// False: it is gone.
    fn hear_supervisor(&mut self) -> Result<bool, ChannelError> {
        loop {
            match self.supervisor.recv() {
                Ok((SupervisorToSwitch::ControlChannel, Some(fd))) => self.given.push(fd),
                Ok(_) => {}
                Err(ChannelError::WouldBlock) => return Ok(true),
                Err(ChannelError::Closed) => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.given.len() == JOINS {
                let given = std::mem::take(&mut self.given);
                // Those before are closed first: the ends of their rings are not to be taken for those of these.
                self.judge(Err(ChannelError::Closed));
                let joined = self.join(given);
                self.judge(joined);
            }
        }
    }

    fn join(&mut self, given: Vec<OwnedFd>) -> Result<(), ChannelError> {
        let Ok([switch, control, table, marks]) = <[OwnedFd; JOINS]>::try_from(given) else { return Ok(()) };
        let table = Table::map(table).and_then(|table| Ok((table, Marks::map(marks)?)));
        let table = table.map_err(|e| self.say(format!("the larger table is not walked: {e}"))).ok();
        let between = Between::new(switch, control, table)?;
        self.epoll.add(&between.relay.switch, SWITCH, Trigger::Level)?;
        self.epoll.add(&between.relay.control, CONTROL, Trigger::Level)?;
        self.between = Some(between);
        Ok(())
    }

    fn say(&mut self, text: String) {
        let line = LogLine { port: PortId(0), level: Level::Error, text, left_out: 0 };
        let _ = self.supervisor.send(&SwitchToSupervisor::Log(line), None);
    }
}

/// What is between the data plane and control.
#[derive(Debug)]
struct Between {
    relay: Relay,
    walk: Walk,
}

impl Between {
    fn new(switch: OwnedFd, control: OwnedFd, table: Option<(Table, Marks)>) -> Result<Self, ChannelError> {
        Ok(Self { relay: Relay::new(switch, control)?, walk: Walk { table, put: HashSet::new() } })
    }

    /// Passes on some of what either side has said; whether there is nothing more, or no room for it.
    fn turn(&mut self) -> Result<bool, ChannelError> {
        self.walk.put.clear();
        self.relay.turn(&mut self.walk)
    }
}

/// Who looks into the larger table.
#[derive(Debug)]
struct Walk {
    table: Option<(Table, Marks)>,
    /// Flows that were put in this turn.
    put: HashSet<u32>,
}

impl Station for Walk {
    type Broken = ChannelError;

    fn goes_down(&mut self, _: &FromControl) -> Result<(), ChannelError> {
        Ok(())
    }

    /// Answers a miss if the table has its flow; else it goes to control, and so does all else.
    fn comes_up(
        &mut self,
        message: ToControl,
        down: &mut VecDeque<FromControl>,
    ) -> Result<Option<ToControl>, ChannelError> {
        if let ToControl::Upcall(UpcallPacket { id, copy: None, key, .. }) = &message
            && let Some((table, marks)) = &self.table
        {
            let started = Instant::now();
            let Found { flow, bytes } = table.walk(key);
            let ns = started.elapsed().as_nanos() as u64;
            let found = flow.as_ref().map(|(number, _)| *number);
            // Those that wait for a flow leave when it is put: once is enough for all that missed it at the same time.
            let is_new = found.is_some_and(|number| self.put.insert(number));
            let walk = Walks { walks: 1, hits: found.is_some().into(), ns, bytes, installed: is_new.into() };
            marks.count(&walk, found);
            if let Some((_, flow)) = flow {
                let actions = flow.actions.clone();
                down.extend(is_new.then_some(FromControl::PutFlow(flow)));
                down.push_back(FromControl::Resume { id: *id, actions });
                return Ok(None);
            }
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests;
