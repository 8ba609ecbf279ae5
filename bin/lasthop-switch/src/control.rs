//! The channel to control: messages that wait for room in it, and answers to its questions.

use lasthop_flow::{Flow, Lookup};
use lasthop_forward::{Datapath, Forwarder};
use lasthop_frame::{Depth, FlowKey};
use lasthop_ipc::{Channel, ChannelError, DatapathReply, DatapathRequest, FlowInfo, FromControl, PortInfo, ToControl};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Flows in one message, so that it stays below the channel's limit.
const FLOWS_PER_MESSAGE: usize = 64;

/// Our end of the channel.
#[derive(Debug)]
pub struct Control {
    channel: Channel<ToControl, FromControl>,
    /// Messages the channel had no room for, in order.
    backlog: VecDeque<ToControl>,
}

impl Control {
    /// Takes the socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { channel: Channel::new(socket), backlog: VecDeque::new() }
    }

    /// Sends, now or as soon as there is room. An error means that control is gone.
    pub fn send(&mut self, message: ToControl) -> Result<(), ChannelError> {
        self.backlog.push_back(message);
        self.flush()
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Result<(), ChannelError> {
        while let Some(message) = self.backlog.front() {
            match self.channel.send(message, None) {
                Ok(()) => drop(self.backlog.pop_front()),
                Err(ChannelError::WouldBlock) => return Ok(()),
                Err(error @ ChannelError::TooLong) => {
                    tracing::error!("message to control not sent: {error}");
                    self.backlog.pop_front();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Something waits for room in the channel.
    pub fn is_backlogged(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The next message; `None` if there is none now.
    pub fn receive(&mut self) -> Result<Option<FromControl>, ChannelError> {
        match self.channel.recv() {
            Ok((message, _)) => Ok(Some(message)),
            Err(ChannelError::WouldBlock) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Answers a question. `ports` is how the ports are.
    pub fn answer(
        &mut self,
        request: u64,
        question: DatapathRequest,
        datapath: &Datapath,
        ports: impl Iterator<Item = PortInfo>,
    ) -> Result<(), ChannelError> {
        let now_ms = datapath.now_ms();
        let parts: Vec<DatapathReply> = match question {
            DatapathRequest::Flows => {
                // Control asks now and then while there is traffic: a good moment to put busy masks first.
                datapath.flows().rank();
                let flows: Vec<_> = datapath.flows().flows().iter().map(|f| flow_info(f, now_ms)).collect();
                flows.chunks(FLOWS_PER_MESSAGE).map(|c| DatapathReply::Flows(c.to_vec())).collect()
            }
            DatapathRequest::Ports => ports.map(|p| DatapathReply::Ports(vec![p])).collect(),
            DatapathRequest::Lookup(key) => vec![lookup(datapath, &key, now_ms)],
            DatapathRequest::Classify { port, frame, frame_len } => {
                let key = Forwarder::key_of(port, &frame, frame_len as usize);
                vec![lookup(datapath, &key, now_ms)]
            }
            DatapathRequest::Barrier => vec![DatapathReply::Barrier],
        };
        let mut parts = parts.into_iter().peekable();
        if parts.peek().is_none() {
            return self.send(ToControl::Reply { request, last: true, reply: DatapathReply::Flows(Vec::new()) });
        }
        while let Some(reply) = parts.next() {
            self.send(ToControl::Reply { request, last: parts.peek().is_none(), reply })?;
        }
        Ok(())
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn lookup(datapath: &Datapath, key: &FlowKey, now_ms: u64) -> DatapathReply {
    let flow = match datapath.flows().lookup(key, Depth::Full) {
        Lookup::Flow(flow) => Some(Box::new(flow_info(&flow, now_ms))),
        _ => None,
    };
    DatapathReply::Lookup { key: *key, flow }
}

fn flow_info(flow: &Flow, now_ms: u64) -> FlowInfo {
    FlowInfo {
        flow: flow.spec(),
        packets: flow.stats.packets(),
        bytes: flow.stats.bytes(),
        idle_ms: now_ms.saturating_sub(flow.stats.last_used_ms()),
    }
}
