use crate::{ChannelError, ControlEnd, DatapathRequest, FromControl, SwitchEnd, ToControl, UpcallPacket, ring_pair};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_sys::{SharedWords, receive_with_fds, sealed_memfd, send_with_fds};
use lasthop_types::PortId;
use proptest::prelude::*;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::FromBytes;

fn ends() -> (SwitchEnd, ControlEnd) {
    let (a, b) = ring_pair().unwrap();
    (SwitchEnd::new(a).unwrap(), ControlEnd::new(b).unwrap())
}

fn upcall(id: u64) -> ToControl {
    let key = FlowKey { in_port: 7, eth_src: [2; 6], ..FlowKey::default() };
    ToControl::Upcall(UpcallPacket { id, copy: None, key, header: vec![9; 60], frame_len: 1514 })
}

#[test]
fn messages_arrive_in_order_and_one_doorbell_wakes() {
    let (mut switch, mut control) = ends();
    let sent = [ToControl::PortGone(PortId(3)), upcall(1), ToControl::Hello, upcall(2)];
    sent.iter().for_each(|message| switch.send(message).unwrap());
    assert!(matches!(control.recv(), Err(ChannelError::WouldBlock)), "not published");
    assert!(matches!(control.woken(), Err(ChannelError::WouldBlock)));
    switch.flush().unwrap();
    switch.send(&upcall(3)).unwrap();
    switch.flush().unwrap();
    control.woken().unwrap();
    assert!(matches!(control.woken(), Err(ChannelError::WouldBlock)), "one doorbell");
    for message in sent.into_iter().chain([upcall(3)]) {
        assert_eq!(control.recv().unwrap(), message);
    }
    assert!(control.rest().unwrap());
    drop(switch);
    assert!(matches!(control.woken(), Err(ChannelError::Closed)));
}

/// Misses take up a quarter of the ring, so that news of ports and answers always have room, and no miss waits behind very many.
#[test]
fn misses_do_not_fill_the_ring() {
    let (mut switch, mut control) = ends();
    let misses = (0..).take_while(|id| switch.send(&upcall(*id)).is_ok()).count();
    assert!((100..=512).contains(&misses), "{misses}");
    switch.send(&ToControl::Hello).unwrap();
    switch.flush().unwrap();
    control.woken().unwrap();
    (0..misses / 2 + 2).for_each(|_| drop(control.recv().unwrap()));
    assert!(matches!(switch.woken(), Err(ChannelError::WouldBlock)));
    control.flush().unwrap();
    switch.woken().unwrap();
    switch.send(&upcall(0)).unwrap();
}

#[test]
fn a_message_may_be_half_a_ring_and_no_longer() {
    let (mut switch, mut control) = ends();
    let resume = |actions| FromControl::Resume { id: 1, actions: vec![Action::Output(PortId(u32::MAX)); actions] };
    assert!(matches!(control.send(&resume(12_000)), Err(ChannelError::TooLong)));
    for _ in 0..9 {
        while control.send(&resume(10_000)).is_ok() {}
        control.flush().unwrap();
        assert_eq!(switch.recv().unwrap(), resume(10_000));
        switch.flush().unwrap();
    }
}

#[test]
fn what_is_no_connection_is_refused() {
    let other = |bytes: u64, version: u64| {
        let (a, b) = crate::Channel::<ToControl, FromControl>::pair().unwrap();
        let memory = sealed_memfd("test", bytes).unwrap();
        rustix::io::pwrite(&memory, &version.to_ne_bytes(), 0).unwrap();
        send_with_fds(&a, &[0], &[memory.as_fd()], SendFlags::empty()).unwrap();
        SwitchEnd::new(b)
    };
    assert!(other(266_240, 0x6c68_7269_6e67_0003).is_ok());
    assert!(matches!(other(266_240, 0x6c68_7269_6e67_0002), Err(ChannelError::Nonsense(_))));
    assert!(matches!(other(4096, 0x6c68_7269_6e67_0003), Err(ChannelError::Io(_))));
    let (_a, b) = crate::Channel::<ToControl, FromControl>::pair().unwrap();
    assert!(SwitchEnd::new(b).is_err(), "nothing lies ready");
}

/// As docs/control-rings.md says: whoever builds another end goes by it.
#[test]
fn the_bytes_of_a_flow_are_as_documented() {
    let (a, b) = ring_pair().unwrap();
    let mut came = Vec::new();
    receive_with_fds(&a, &mut [0], &mut came, RecvFlags::empty()).unwrap();
    let memory = SharedWords::map(came.pop().unwrap(), 33_280).unwrap();
    let mut control = ControlEnd::new(b).unwrap();
    let key = FlowKey { in_port: 3, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    control
        .send(&FromControl::PutFlow(FlowSpec { key, mask, actions: vec![Action::Output(PortId(5))], epoch: 9 }))
        .unwrap();
    control.flush().unwrap();
    let word = |at: usize| memory[at].load(Relaxed);
    assert_eq!(word(48), 1, "published");
    // PutFlow; 8 bytes of the key; 8 of the mask; one action, Output, 5; the epoch.
    let bytes = [&[0, 8, 3][..], &[0; 7], &[8], &[0xff; 4], &[0; 4], &[1, 0, 5, 9], &[0; 1]].concat();
    let mut expected = vec![31 << 32];
    expected.extend(bytes.chunks_exact(8).map(|word| u64::read_from_bytes(word).unwrap()));
    assert_eq!((0..4).map(|n| word(16_896 + n)).collect::<Vec<_>>(), expected);
}

fn keys() -> impl Strategy<Value = FlowKey> {
    let words = proptest::collection::vec(prop_oneof![3 => Just(0u64), 1 => any::<u64>()], 20);
    words.prop_map(|words| {
        FlowKey::read_from_bytes(&words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>()).unwrap()
    })
}

fn from_control() -> impl Strategy<Value = FromControl> {
    let actions = || proptest::collection::vec(any::<u32>().prop_map(|port| Action::Output(PortId(port))), 0..40);
    prop_oneof![
        (keys(), keys(), actions(), any::<u64>()).prop_map(|(key, mask, actions, epoch)| {
            FromControl::PutFlow(FlowSpec { key, mask: FlowMask(mask), actions, epoch })
        }),
        (keys(), keys()).prop_map(|(key, mask)| FromControl::DelFlow {
            key,
            mask: FlowMask(mask),
            tell: key.in_port.is_multiple_of(2)
        }),
        (any::<u64>(), actions()).prop_map(|(id, actions)| FromControl::Resume { id, actions }),
        (any::<u64>(), keys())
            .prop_map(|(request, key)| { FromControl::Ask { request, question: DatapathRequest::Lookup(key) } }),
        Just(FromControl::ClearFlows),
    ]
}

proptest! {
    #[test]
    fn what_control_says_is_what_the_switch_hears(messages in proptest::collection::vec(from_control(), 1..30)) {
        let (mut switch, mut control) = ends();
        for message in &messages {
            control.send(message).unwrap();
        }
        control.flush().unwrap();
        for message in messages {
            prop_assert_eq!(switch.recv().unwrap(), message);
        }
    }

    #[test]
    fn what_the_switch_says_is_what_control_hears(key in keys(), id: u64, header in proptest::collection::vec(any::<u8>(), 0..193), frame_len: u32) {
        let (mut switch, mut control) = ends();
        let message = ToControl::Upcall(UpcallPacket { id, copy: None, key, header, frame_len });
        switch.send(&message).unwrap();
        switch.flush().unwrap();
        prop_assert_eq!(control.recv().unwrap(), message);
    }
}
