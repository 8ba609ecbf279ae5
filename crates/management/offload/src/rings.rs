//! A data plane of our own as such a table: the host's switch, or a device's (docs/device.md). Behind the rings it is a process, and it can express everything.
//! So what control says to a device is the same seam: whoever has a card behind rings has a table.

use crate::{Capabilities, Carried, Lost, NotPut, Table};
use lasthop_flow::FlowSpec;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{ChannelError, ControlEnd, DatapathReply, DatapathRequest, FlowInfo, FromControl, ToControl};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;

/// How long the data plane may take to answer.
const ANSWER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The table.
#[derive(Debug)]
pub struct Rings {
    end: ControlEnd,
    places: usize,
    request: u64,
}

fn lost(e: ChannelError) -> Lost {
    Lost(format!("the data plane does not answer: {e}"))
}

fn carried(info: &FlowInfo) -> Carried {
    Carried { packets: info.packets, bytes: info.bytes, idle_ms: info.idle_ms, in_hardware: false }
}

impl Rings {
    /// Control's end of rings to a data plane that has so many places. What it says of misses and ports is not heard here.
    pub fn new(end: OwnedFd, places: usize) -> Result<Self, Lost> {
        Ok(Self { end: ControlEnd::new(end).map_err(lost)?, places, request: 0 })
    }

    fn say(&mut self, message: &FromControl) -> Result<(), Lost> {
        while let Err(e) = self.end.send(message) {
            match e {
                ChannelError::WouldBlock => self.wait()?,
                e => return Err(lost(e)),
            }
        }
        self.end.flush().map_err(lost)
    }

    /// Until the data plane has said something, or taken something.
    fn wait(&mut self) -> Result<(), Lost> {
        if !self.end.rest().map_err(lost)? {
            return Ok(());
        }
        let mut polled = [PollFd::new(&self.end, PollFlags::IN)];
        match poll(&mut polled, Some(&ANSWER)) {
            Ok(0) => return Err(Lost("the data plane does not answer".into())),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Lost(format!("poll: {e}"))),
        }
        match self.end.woken() {
            Ok(()) | Err(ChannelError::WouldBlock) => Ok(()),
            Err(e) => Err(lost(e)),
        }
    }

    /// Asks, and hears all up to the end of the answer.
    fn ask(&mut self, question: DatapathRequest, mut each: impl FnMut(ToControl)) -> Result<(), Lost> {
        self.request += 1;
        let asked = self.request;
        self.say(&FromControl::Ask { request: asked, question })?;
        loop {
            match self.end.recv() {
                Ok(message) => {
                    let is_end = matches!(&message, ToControl::Reply { request, last: true, .. } if *request == asked);
                    each(message);
                    if is_end {
                        return self.end.flush().map_err(lost);
                    }
                }
                Err(ChannelError::WouldBlock) => self.wait()?,
                Err(e) => return Err(lost(e)),
            }
        }
    }
}

impl Table for Rings {
    fn capabilities(&self) -> Capabilities {
        let mask = FlowMask(zerocopy::transmute!([u64::MAX; size_of::<FlowKey>() / 8]));
        Capabilities {
            mask,
            places: self.places,
            acts: usize::MAX,
            several_outputs: true,
            vlan_edits: true,
            other_edits: true,
            other_actions: true,
        }
    }

    fn put(&mut self, flow: &FlowSpec) -> Result<(), NotPut> {
        self.say(&FromControl::PutFlow(flow.clone()))?;
        Ok(self.ask(DatapathRequest::Barrier, |_| {})?)
    }

    fn delete(&mut self, key: &FlowKey, mask: &FlowMask) -> Result<Carried, Lost> {
        self.say(&FromControl::DelFlow { key: *key, mask: *mask, tell: true })?;
        let mut ended = Carried::default();
        self.ask(DatapathRequest::Barrier, |message| match message {
            ToControl::Ended(info) if (info.flow.key, info.flow.mask) == (*key, *mask) => ended = carried(&info),
            _ => {}
        })?;
        Ok(ended)
    }

    fn clear(&mut self) -> Result<(), Lost> {
        self.say(&FromControl::ClearFlows)?;
        self.ask(DatapathRequest::Barrier, |_| {})
    }

    fn statistics(&mut self, each: &mut dyn FnMut(&FlowKey, &FlowMask, Carried)) -> Result<(), Lost> {
        let mut after = Some((0, 0, 0));
        while let Some(from) = after {
            after = None;
            self.ask(DatapathRequest::Flows { after: from }, |message| {
                if let ToControl::Reply { reply: DatapathReply::Flows { flows, next }, .. } = message {
                    flows.iter().for_each(|info| each(&info.flow.key, &info.flow.mask, carried(info)));
                    after = next;
                }
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_flow::Action;
    use lasthop_ipc::{SwitchEnd, ring_pair};
    use lasthop_types::PortId;

    /// A data plane that does as it is told, until nobody tells it any more; each flow has carried seven packets.
    fn play(end: OwnedFd) {
        let (mut end, mut flows) = (SwitchEnd::new(end).unwrap(), Vec::<FlowSpec>::new());
        let info = |flow: &FlowSpec| FlowInfo { flow: flow.clone(), packets: 7, bytes: 700, idle_ms: 3 };
        loop {
            let reply = |request, reply| ToControl::Reply { request, last: true, reply };
            match end.recv() {
                Ok(FromControl::PutFlow(flow)) => flows.push(flow),
                Ok(FromControl::DelFlow { key, mask, .. }) => {
                    for gone in flows.extract_if(.., |flow| (flow.key, flow.mask) == (key, mask)) {
                        end.send(&ToControl::Ended(Box::new(info(&gone)))).unwrap();
                    }
                }
                Ok(FromControl::ClearFlows) => flows.clear(),
                Ok(FromControl::Ask { request, question: DatapathRequest::Flows { .. } }) => {
                    let flows = flows.iter().map(info).collect();
                    end.send(&reply(request, DatapathReply::Flows { flows, next: None })).unwrap();
                }
                Ok(FromControl::Ask { request, .. }) => end.send(&reply(request, DatapathReply::Barrier)).unwrap(),
                Ok(_) => {}
                Err(ChannelError::WouldBlock) => {
                    end.flush().unwrap();
                    if end.rest().unwrap() {
                        poll(&mut [PollFd::new(&end, PollFlags::IN)], None).unwrap();
                        if end.woken().is_err_and(|e| matches!(e, ChannelError::Closed)) {
                            return;
                        }
                    }
                }
                Err(_) => return,
            }
        }
    }

    #[test]
    fn a_data_plane_behind_rings_is_a_table() {
        let (ours, theirs) = ring_pair().unwrap();
        let plane = std::thread::spawn(|| play(theirs));
        let mut table = Rings::new(ours, 10).unwrap();
        let flow = |port| {
            let key = FlowKey { in_port: port, ..FlowKey::default() };
            let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
            FlowSpec { key, mask, actions: vec![Action::LimitFlood, Action::Output(PortId(9))], epoch: 0 }
        };
        assert_eq!(table.capabilities().can(&flow(1)), Ok(()), "it can do whatever a flow may say");
        table.clear().unwrap();
        (1..4).for_each(|port| table.put(&flow(port)).unwrap());
        assert_eq!(table.delete(&flow(2).key, &flow(2).mask).unwrap().packets, 7);
        assert_eq!(table.delete(&flow(2).key, &flow(2).mask).unwrap(), Carried::default(), "it is gone");
        let mut there = Vec::new();
        table.statistics(&mut |key, _, carried| there.push((key.in_port, carried.bytes))).unwrap();
        assert_eq!(there, [(1, 700), (3, 700)]);
        table.clear().unwrap();
        table.statistics(&mut |_, _, _| panic!("nothing is left")).unwrap();
        drop(table);
        plane.join().unwrap();
    }
}
