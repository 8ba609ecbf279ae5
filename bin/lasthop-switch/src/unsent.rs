//! What the supervisor has to be told and the channel had no room for: bounded by the ports there are, however often their
//! front-ends come and go. What is not told here would be lost for good: a port whose connection ended would never be connected
//! again.

use lasthop_forward::Datapath;
use lasthop_ipc::{Channel, ChannelError, SupervisorToSwitch, SwitchToSupervisor};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// The channel.
pub type ToSupervisor = Channel<SwitchToSupervisor, SupervisorToSwitch>;

/// What waits, and whose line of the log was sent last.
#[derive(Debug, Default)]
pub struct Unsent {
    /// For each port why its connection ended last; for none what control has done.
    news: BTreeMap<PortId, SwitchToSupervisor>,
    /// The message that there was no room for. Lines of the log, and news of threads, wait in the [`Datapath`] meanwhile.
    next: Option<SwitchToSupervisor>,
    last_line: PortId,
}

impl Unsent {
    /// The port's connection ended.
    pub fn closed(&mut self, port: PortId, reason: String) {
        self.news.insert(port, SwitchToSupervisor::ConnectionClosed { port, reason });
    }

    /// Control has written what cannot be, and is not listened to any more.
    pub fn control_broke(&mut self, what: String) {
        // No port has that number.
        self.news.insert(PortId(0), SwitchToSupervisor::ControlBroke(what));
    }

    /// The port was removed, as the supervisor has said itself.
    pub fn forget(&mut self, port: PortId) {
        self.news.remove(&port);
    }

    /// Something waits for room.
    pub fn is_full(&self) -> bool {
        self.next.is_some()
    }

    /// Sends as much as the channel has room for: news first, then that of threads, then lines of the log.
    pub fn send(&mut self, channel: &mut ToSupervisor, datapath: &Datapath) -> Result<(), ChannelError> {
        while let Some(message) = self.next.take().or_else(|| self.pop(datapath)) {
            match channel.send(&message, None) {
                Ok(()) => {}
                Err(ChannelError::WouldBlock) => {
                    self.next = Some(message);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn pop(&mut self, datapath: &Datapath) -> Option<SwitchToSupervisor> {
        let closed = self.news.pop_first().map(|(_, news)| news);
        let thread = || datapath.threads.lock().pop_front().map(|(port, news)| SwitchToSupervisor::Thread(port, news));
        closed.or_else(thread).or_else(|| {
            let line = datapath.take_line(self.last_line)?;
            self.last_line = line.port;
            Some(SwitchToSupervisor::Log(line))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_types::{Level, ThreadNews};

    /// The supervisor does not read, and one port's front-end comes and goes all the time.
    #[test]
    fn an_end_is_told_when_there_is_room_again() {
        let (ours, theirs) = Channel::<SwitchToSupervisor, SupervisorToSwitch>::pair().unwrap();
        let mut channel = Channel::new(ours);
        let mut supervisor = Channel::<SupervisorToSwitch, SwitchToSupervisor>::new(theirs);
        let mut unsent = Unsent::default();
        let datapath = Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap();
        for n in 0..10_000 {
            unsent.closed(PortId(1), format!("end {n}"));
            unsent.send(&mut channel, &datapath).unwrap();
        }
        unsent.closed(PortId(2), "the only end of port 2".into());
        let news = |thread| ThreadNews { thread, used_ns: 5, refused: None };
        datapath.threads.lock().extend([(PortId(2), news(77)), (PortId(1), news(78))]);
        unsent.send(&mut channel, &datapath).unwrap();
        assert!(unsent.is_full() && unsent.news.len() <= 2, "one of port 2, one of port 1 besides that: {unsent:?}");
        let mut heard = Vec::new();
        loop {
            while let Ok((message, _)) = supervisor.recv() {
                heard.push(message);
            }
            if !unsent.is_full() {
                break;
            }
            unsent.send(&mut channel, &datapath).unwrap();
        }
        let closed =
            |port, reason: &str| SwitchToSupervisor::ConnectionClosed { port: PortId(port), reason: reason.into() };
        assert!(heard.contains(&closed(1, "end 9999")), "the newest");
        assert!(heard.contains(&closed(2, "the only end of port 2")));
        assert!(heard.contains(&SwitchToSupervisor::Thread(PortId(2), news(77))));
        // A port that was removed is nobody's business any more.
        unsent.closed(PortId(3), "gone".into());
        unsent.forget(PortId(3));
        assert!(unsent.pop(&datapath).is_none());
    }

    /// The supervisor does not read, and one port's front-end causes lines of the log all the time.
    #[test]
    fn lines_that_there_is_no_room_for_are_counted_and_each_port_has_its_turn() {
        const LINES: u64 = 100_000;
        let (ours, theirs) = ToSupervisor::pair().unwrap();
        let mut channel = Channel::new(ours);
        let mut supervisor = Channel::<SupervisorToSwitch, SwitchToSupervisor>::new(theirs);
        let (mut unsent, datapath) = (Unsent::default(), Datapath::new(1, lasthop_forward::PATIENCE_MS).unwrap());
        let said = |port, n| datapath.say(PortId(port), Level::Warn, format!("line {n}"));
        for n in 0..LINES {
            said(2, n);
            unsent.send(&mut channel, &datapath).unwrap();
        }
        [0, 1, 3].into_iter().for_each(|port| said(port, 0));
        let (mut lines, mut others, mut last) = (0, Vec::new(), None);
        loop {
            while let Ok((SwitchToSupervisor::Log(line), _)) = supervisor.recv() {
                let n: u64 = line.text.strip_prefix("line ").unwrap().parse().unwrap();
                if line.port == PortId(2) {
                    assert!(last.is_none_or(|last| last < n), "in order");
                    (lines, last) = (lines + 1 + line.left_out, Some(n));
                } else {
                    others.push((line.port.0, lines));
                }
            }
            if !unsent.is_full() {
                break;
            }
            unsent.send(&mut channel, &datapath).unwrap();
        }
        assert_eq!(lines, LINES, "sent, or counted as left out");
        assert_eq!(others.len(), 3);
        assert!(others.iter().all(|(_, before)| *before < LINES), "they waited for those of port 2: {others:?}");
    }
}
