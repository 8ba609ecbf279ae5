//! Messages between our own processes: whatever bytes come, a message is decoded or refused; one that is decoded survives
//! being sent back, its descriptor with it.
//!
//! Input: a byte that chooses type and descriptor, then the message's bytes.

use crate::Input;
use lasthop_ipc::{Channel, ChannelError, FromControl, SupervisorToSwitch, SwitchToSupervisor, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_sys::EventFd;
use lasthop_uplink_ipc::{COUNTERS_PAGE, COUNTERS_ROW, SupervisorToUplink, UplinkCounters, UplinkToSupervisor};
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
    match choice & 15 {
        0 => there_and_back::<SupervisorToSwitch>(bytes, fds),
        1 => there_and_back::<SwitchToSupervisor>(bytes, fds),
        2 => there_and_back::<SupervisorToControl>(bytes, fds),
        3 => there_and_back::<ControlToSupervisor>(bytes, fds),
        4 | 5 => there_and_back::<ToControl>(bytes, fds),
        6 | 7 => there_and_back::<FromControl>(bytes, fds),
        8..=10 => there_and_back::<UplinkToSupervisor>(bytes, fds),
        11..=13 => there_and_back::<SupervisorToUplink>(bytes, fds),
        _ => page(bytes),
    }
}

/// What an uplink has written to the page that it counts in.
fn page(bytes: &[u8]) {
    let mut counters = UplinkCounters::default();
    counters.read_page(bytes);
    let number = |row: usize| {
        let row = bytes.get(row * COUNTERS_ROW..)?.get(..COUNTERS_ROW)?;
        Some(u64::from_le_bytes(row[COUNTERS_ROW - 8..].try_into().ok()?))
    };
    assert_eq!(counters.to_network_packets, number(0).unwrap_or(0));
    assert_eq!(counters.merged, number(4).unwrap_or(0));
    assert!(counters.drops.len() <= COUNTERS_PAGE / COUNTERS_ROW);
    for drop in counters.drops {
        let printable = drop.reason.bytes().all(|b| b.is_ascii_graphic());
        assert!(printable && !drop.reason.is_empty() && drop.packets > 0, "{drop:?}");
    }
}

fn there_and_back<M>(bytes: &[u8], fds: &[BorrowedFd<'_>])
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
