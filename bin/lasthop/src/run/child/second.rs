//! A second channel to a child, of a thread of its own there.

use super::super::closing::Came;
use super::{Child, OTHER_FD, Running};
use lasthop_ipc::{Channel, ChannelError};
use lasthop_sys::Epoll;
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

impl<S: Serialize, R: DeserializeOwned> Child<S, R> {
    /// With a second channel, which it is handed by this option. What is said on it counts as said on the first; see [`Child::send_second`].
    pub fn with_second(mut self, option: Option<&'static str>) -> Self {
        self.second = option;
        self
    }

    /// Whether it runs and has a second channel.
    pub fn has_second(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.second.is_some())
    }

    /// Sends messages on the second channel, each with a descriptor. False: there is none, or not all of them went.
    pub fn send_second(&mut self, messages: impl IntoIterator<Item = (S, OwnedFd)>) -> bool {
        let Some(channel) = self.running.as_mut().and_then(|running| running.second.as_mut()) else { return false };
        messages.into_iter().all(|(message, fd)| channel.send(&message, Some(fd.as_fd())).is_ok())
    }

    /// Makes it for a child that is about to be started with `others` as descriptors.
    pub(super) fn second_channel(
        &self,
        command: &mut Command,
        others: &mut Vec<OwnedFd>,
    ) -> io::Result<Option<Channel<S, R>>> {
        let Some(option) = self.second else { return Ok(None) };
        let (ours, theirs) = Channel::<S, R>::pair().map_err(io::Error::other)?;
        command.args([option.to_owned(), (OTHER_FD + others.len() as i32).to_string()]);
        others.push(theirs);
        Ok(Some(Channel::new(ours)))
    }
}

impl<S: Serialize, R: DeserializeOwned> Running<S, R> {
    /// What has been said on the second channel: a message at a time.
    pub(super) fn heard_second(&mut self, epoll: &Epoll) -> Option<(R, Came)> {
        let second = self.second.as_mut()?;
        let mut came = Vec::new();
        let message = second.recv_with(&mut came);
        let came = Came::new(came);
        match message {
            Ok(message) => Some((message, came)),
            Err(ChannelError::WouldBlock) => None,
            // The other channel, or the child's end, will say why.
            Err(_) => {
                let _ = epoll.delete(second);
                None
            }
        }
    }
}
