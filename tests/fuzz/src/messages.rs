//! Messages between our own processes: whatever bytes come, a message is decoded or refused; one that is decoded survives
//! being sent back, its descriptor with it.
//!
//! Input: a byte that chooses type and descriptor, then the message's bytes.

use crate::Input;
use lasthop_ipc::{
    Channel, ChannelError, ControlToSupervisor, DatapathReply, FromControl, SupervisorToControl, SupervisorToSwitch,
    SwitchToSupervisor, ToControl, WireFlow, WireKey,
};
use lasthop_sys::EventFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let event = EventFd::new().expect("an eventfd");
    let fds = [event.as_fd(); 3];
    // None, one, or more than a message may carry.
    let fds = &fds[..usize::from(choice >> 4) % 4];
    let bytes = input.rest();
    match choice & 7 {
        0 => there_and_back::<SupervisorToSwitch>(bytes, fds, |_| {}),
        1 => there_and_back::<SwitchToSupervisor>(bytes, fds, |_| {}),
        2 => there_and_back::<SupervisorToControl>(bytes, fds, |_| {}),
        3 => there_and_back::<ControlToSupervisor>(bytes, fds, |_| {}),
        4 | 5 => there_and_back::<ToControl>(bytes, fds, |m| match m {
            ToControl::Miss(missed) => key(&missed.key),
            ToControl::Reply { reply: DatapathReply::Flows(flows), .. } => flows.iter().for_each(|f| flow(&f.flow)),
            ToControl::Reply { reply: DatapathReply::Lookup { key: k, .. }, .. } => key(k),
            _ => {}
        }),
        _ => there_and_back::<FromControl>(bytes, fds, |m| match m {
            FromControl::PutFlow(f) => flow(f),
            FromControl::DelFlow { key: k, mask } => {
                key(k);
                key(mask);
            }
            _ => {}
        }),
    }
}

fn key(wire: &WireKey) {
    if let Some(key) = wire.key() {
        assert_eq!(WireKey::new(&key), *wire);
    }
}

fn flow(wire: &WireFlow) {
    if let Some(spec) = wire.spec() {
        assert_eq!(spec.key, spec.key.masked(&spec.mask));
        let again = WireFlow::new(&spec);
        assert_eq!(again.spec(), Some(spec));
        assert_eq!((&again.mask, &again.actions, again.epoch), (&wire.mask, &wire.actions, wire.epoch));
    }
}

fn there_and_back<M>(bytes: &[u8], fds: &[BorrowedFd<'_>], judge: impl Fn(&M))
where
    M: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let (a, b) = Channel::<M, M>::pair().expect("a socket pair");
    let mut there = Channel::<M, M>::new(b);
    if bytes.is_empty() || bytes.len() > lasthop_ipc::MAX_MESSAGE {
        return;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(&a, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("room in the socket");
    let (message, fd) = match there.recv() {
        Ok(received) => received,
        Err(ChannelError::Malformed(_)) => {
            assert!(postcard::from_bytes::<M>(bytes).is_err());
            assert!(matches!(there.recv(), Err(ChannelError::WouldBlock)), "one packet, one error");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(postcard::from_bytes::<M>(bytes).as_ref(), Ok(&message));
    assert_eq!(fd.is_some(), fds.len() == 1 || fd.is_some() && !fds.is_empty());
    judge(&message);
    let mut back = Channel::<M, M>::new(a);
    match there.send(&message, fd.as_ref().map(|fd| fd.as_fd())) {
        Ok(()) => {
            let (again, with) = back.recv().expect("what was sent");
            assert_eq!((again, with.is_some()), (message, fd.is_some()));
        }
        // Numbers may have been written with fewer bytes than they have, but not by us.
        Err(ChannelError::TooLong) => assert!(bytes.len() > lasthop_ipc::MAX_MESSAGE / 2),
        Err(e) => panic!("{e}"),
    }
}
