//! What the supervisor has to be told and the channel had no room for: bounded by the ports there are, however often their
//! front-ends come and go. What is not told here would be lost for good: a port whose connection ended would never be connected
//! again.

use lasthop_ipc::{Channel, ChannelError, SupervisorToSwitch, SwitchToSupervisor};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// For each port the newest of each kind: its thread, and why its connection ended.
#[derive(Debug, Default)]
pub struct Unsent(BTreeMap<(PortId, bool), SwitchToSupervisor>);

impl Unsent {
    /// The port has this thread now.
    pub fn thread(&mut self, port: PortId, thread: i32) {
        self.0.insert((port, false), SwitchToSupervisor::Thread(port, thread));
    }

    /// The port's connection ended.
    pub fn closed(&mut self, port: PortId, reason: String) {
        self.0.insert((port, true), SwitchToSupervisor::ConnectionClosed { port, reason });
    }

    /// Control has written what cannot be, and is not listened to any more.
    pub fn control_broke(&mut self, what: String) {
        // No port has that number.
        self.0.insert((PortId(0), true), SwitchToSupervisor::ControlBroke(what));
    }

    /// The port was removed, as the supervisor has said itself.
    pub fn forget(&mut self, port: PortId) {
        self.0.retain(|(of, _), _| *of != port);
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends as much as the channel has room for.
    pub fn send(&mut self, channel: &mut Channel<SwitchToSupervisor, SupervisorToSwitch>) -> Result<(), ChannelError> {
        while let Some(first) = self.0.first_entry() {
            match channel.send(first.get(), None) {
                Ok(()) => drop(first.remove()),
                Err(ChannelError::WouldBlock) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The supervisor does not read, and one port's front-end comes and goes all the time.
    #[test]
    fn an_end_is_told_when_there_is_room_again() {
        let (ours, theirs) = Channel::<SwitchToSupervisor, SupervisorToSwitch>::pair().unwrap();
        let mut channel = Channel::new(ours);
        let mut supervisor = Channel::<SupervisorToSwitch, SwitchToSupervisor>::new(theirs);
        let mut unsent = Unsent::default();
        for n in 0..10_000 {
            unsent.closed(PortId(1), format!("end {n}"));
            unsent.send(&mut channel).unwrap();
        }
        unsent.closed(PortId(2), "the only end of port 2".into());
        unsent.thread(PortId(2), 77);
        unsent.send(&mut channel).unwrap();
        assert!(!unsent.is_empty() && unsent.0.len() == 3, "two of port 2, one of port 1: {unsent:?}");
        let mut heard = Vec::new();
        loop {
            while let Ok((message, _)) = supervisor.recv() {
                heard.push(message);
            }
            if unsent.is_empty() {
                break;
            }
            unsent.send(&mut channel).unwrap();
        }
        let closed =
            |port, reason: &str| SwitchToSupervisor::ConnectionClosed { port: PortId(port), reason: reason.into() };
        assert!(heard.contains(&closed(1, "end 9999")), "the newest");
        assert!(heard.contains(&closed(2, "the only end of port 2")));
        assert!(heard.contains(&SwitchToSupervisor::Thread(PortId(2), 77)));
        // A port that was removed is nobody's business any more.
        unsent.closed(PortId(3), "gone".into());
        unsent.forget(PortId(3));
        unsent.thread(PortId(3), 78);
        unsent.forget(PortId(3));
        assert!(unsent.is_empty());
    }
}
