//! The rings between switch and control. Between two ends that keep the rules they are two queues, whatever the ends do in which order.
//! Against an end that writes any words anywhere, the switch's end sends, receives or gives up; it writes to no word that is not its own.
//!
//! Input: a byte that chooses, then steps.

use crate::Input;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{
    ChannelError, ControlEnd, DatapathRequest, FromControl, SwitchEnd, ToControl, UpcallPacket, ring_pair,
};
use lasthop_sys::{SharedWords, receive_with_fds};
use lasthop_types::PortId;
use rustix::net::{RecvFlags, SendFlags, send};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

/// What docs/control-rings.md says, in words.
const WORDS: usize = 33_280;
const TO_CONTROL: usize = 16;
const TO_SWITCH: usize = 48;
const LINES_TO_SWITCH: usize = 16_896;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = ring_pair().expect("memory and sockets");
    let switch = SwitchEnd::new(ours).expect("the memory lies ready");
    if input.u8().is_multiple_of(2) {
        queues(&mut input, switch, ControlEnd::new(theirs).expect("the memory lies ready"));
    } else {
        against_anything(&mut input, switch, theirs);
    }
}

fn key(input: &mut Input<'_>) -> FlowKey {
    let mut key = FlowKey { in_port: input.u8().into(), eth_src: [input.u8(); 6], ..FlowKey::default() };
    match input.u8() % 4 {
        0 => key.tunnel_dst[15] = input.u8(),
        1 => key.l4_dst = input.u8().into(),
        2 => key = FlowKey::default(),
        _ => {}
    }
    key
}

fn to_control(input: &mut Input<'_>) -> ToControl {
    match input.u8() % 4 {
        0 => ToControl::PortGone(PortId(input.u8().into())),
        1 => ToControl::Hello,
        _ => ToControl::Upcall(UpcallPacket {
            id: u64::from(input.u8()) << 32,
            copy: Some(u32::from(input.u8()) << 24).filter(|user| *user != 0),
            key: key(input),
            header: vec![input.u8(); usize::from(input.u8() % 193)],
            frame_len: u32::from(input.u8()) << 8,
        }),
    }
}

fn from_control(input: &mut Input<'_>) -> FromControl {
    let actions = |input: &mut Input<'_>| {
        let many = input.u8();
        // Now and then as many as a ring holds, and more.
        let many = if many > 250 { usize::from(many) * 70 } else { usize::from(many % 8) };
        vec![Action::Output(PortId(u32::MAX)); many]
    };
    match input.u8() % 5 {
        0 => FromControl::Resume { id: input.u8().into(), actions: actions(input) },
        1 => FromControl::DelFlow { key: key(input), mask: FlowMask(key(input)), tell: input.u8().is_multiple_of(2) },
        2 => FromControl::ClearFlows,
        3 => FromControl::Ask { request: input.u8().into(), question: DatapathRequest::Lookup(key(input)) },
        _ => FromControl::PutFlow(FlowSpec {
            key: key(input),
            mask: FlowMask(key(input)),
            actions: actions(input),
            epoch: input.u8().into(),
        }),
    }
}

/// What was sent and not received, and how much of it may have been.
struct Queue<M>(VecDeque<M>);

impl<M: PartialEq + std::fmt::Debug> Queue<M> {
    fn sent(&mut self, message: M, result: Result<(), ChannelError>) {
        match result {
            Ok(()) => self.0.push_back(message),
            Err(ChannelError::WouldBlock | ChannelError::TooLong) => {}
            Err(e) => panic!("{e}"),
        }
    }

    /// Whether there was one.
    fn received(&mut self, result: Result<M, ChannelError>) -> bool {
        match result {
            Ok(message) => assert_eq!(Some(message), self.0.pop_front()),
            Err(ChannelError::WouldBlock) => return false,
            Err(e) => panic!("{e}"),
        }
        true
    }
}

fn queues(input: &mut Input<'_>, mut switch: SwitchEnd, mut control: ControlEnd) {
    let (mut up, mut down) = (Queue(VecDeque::new()), Queue(VecDeque::new()));
    while !input.is_empty() {
        match input.u8() % 8 {
            0 | 1 => {
                let message = to_control(input);
                let result = switch.send(&message);
                up.sent(message, result);
            }
            2 | 3 => {
                let message = from_control(input);
                let result = control.send(&message);
                down.sent(message, result);
            }
            4 => (0..input.u8() % 8).for_each(|_| _ = up.received(control.recv())),
            5 => (0..input.u8() % 8).for_each(|_| _ = down.received(switch.recv())),
            6 => switch.flush().expect("control is there"),
            _ => control.flush().expect("the switch is there"),
        }
    }
    // All that was sent arrives, and nobody sleeps on it.
    switch.flush().expect("control is there");
    control.flush().expect("the switch is there");
    assert!(
        (0..up.0.len()).all(|_| up.received(control.recv())) && (0..down.0.len()).all(|_| down.received(switch.recv()))
    );
    assert!(matches!((switch.rest(), control.rest()), (Ok(true), Ok(true))));
    assert!(matches!((switch.recv(), control.recv()), (Err(ChannelError::WouldBlock), Err(ChannelError::WouldBlock))));
}

/// Words that only control writes.
fn controls(word: usize) -> bool {
    let heads = [TO_SWITCH, TO_SWITCH + 1, TO_CONTROL + 16, TO_CONTROL + 17];
    word == 0 || word >= LINES_TO_SWITCH || heads.contains(&word)
}

fn against_anything(input: &mut Input<'_>, mut switch: SwitchEnd, socket: OwnedFd) {
    let mut came = Vec::new();
    receive_with_fds(&socket, &mut [0], &mut came, RecvFlags::empty()).expect("the memory");
    let memory = SharedWords::map(came.pop().expect("the memory"), WORDS).expect("the memory");
    let mut written = vec![(0, memory[0].load(Relaxed))];
    let mut broken = false;
    while !input.is_empty() && !broken {
        let result = match input.u8() % 8 {
            0..=2 => {
                let word = match input.u8() % 4 {
                    0 => TO_SWITCH + usize::from(input.u8() % 32),
                    1 => TO_CONTROL + usize::from(input.u8() % 32),
                    2 => LINES_TO_SWITCH + usize::from(input.u8()),
                    _ => LINES_TO_SWITCH + 8 * usize::from(input.u8()),
                };
                let value = match input.u8() % 4 {
                    0 => u64::from(input.u8()),
                    // The beginning of a message.
                    1 => u64::from(input.u8()) << 35 | u64::from(input.u8() % 24) << 8 | u64::from(input.u8() % 6),
                    2 => u64::MAX - u64::from(input.u8()),
                    _ => u64::from(input.u8()) << (input.u8() % 64),
                };
                memory[word].store(value, Relaxed);
                if controls(word) {
                    written.retain(|(other, _)| *other != word);
                    written.push((word, value));
                }
                Ok(())
            }
            3 => switch.recv().map(drop),
            4 => switch.send(&to_control(input)),
            5 => switch.flush(),
            6 => switch.rest().map(drop),
            _ => {
                let _ = send(&socket, &vec![1; usize::from(input.u8()) + 1], SendFlags::DONTWAIT);
                switch.woken()
            }
        };
        broken = match result {
            Ok(()) | Err(ChannelError::WouldBlock) => false,
            Err(ChannelError::Nonsense(_)) => true,
            Err(e) => panic!("{e}"),
        };
    }
    for (word, value) in written {
        assert_eq!(memory[word].load(Relaxed), value, "word {word} is control's");
    }
}
