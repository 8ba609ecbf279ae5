//! A data plane and a control at the two ends, played.

use super::*;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_ipc::{ControlEnd, DatapathRequest, SwitchEnd, ring_pair};
use lasthop_larger_table::{MARKS_BYTES, TABLE_BYTES, Writer};
use lasthop_sys::{SharedWords, receive_with_fds, sealed_memfd};
use rustix::net::{RecvFlags, SendFlags, send};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

struct Rig {
    switch: SwitchEnd,
    control: ControlEnd,
    between: Between,
    writer: Writer,
    marks: Marks,
}

impl Rig {
    fn new() -> Self {
        let ((a, b), (c, d)) = (ring_pair().unwrap(), ring_pair().unwrap());
        let (table, marks) = (sealed_memfd("table", TABLE_BYTES).unwrap(), sealed_memfd("marks", MARKS_BYTES).unwrap());
        let writer = Writer::new(&table).unwrap();
        let walked = (Table::map(&table).unwrap(), Marks::map(&marks).unwrap());
        let between = Between::new(b, c, Some(walked)).unwrap();
        let (switch, control) = (SwitchEnd::new(a).unwrap(), ControlEnd::new(d).unwrap());
        Self { switch, control, between, writer, marks: Marks::map(&marks).unwrap() }
    }

    fn pass(&mut self) {
        self.switch.flush().unwrap();
        self.control.flush().unwrap();
        while !self.between.turn().unwrap() {}
    }

    fn at_switch(&mut self) -> Vec<FromControl> {
        std::iter::from_fn(|| self.switch.recv().ok()).collect()
    }

    fn at_control(&mut self) -> Vec<ToControl> {
        std::iter::from_fn(|| self.control.recv().ok()).collect()
    }
}

fn mask() -> FlowMask {
    FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() })
}

fn flow(port: u32) -> FlowSpec {
    let key = FlowKey { in_port: port, ..FlowKey::default() };
    FlowSpec { key, mask: mask(), actions: vec![Action::Output(PortId(port + 1))], epoch: 3 }
}

fn miss(id: u64, port: u32) -> ToControl {
    let key = FlowKey { in_port: port, ip_ttl: id as u8, ..FlowKey::default() };
    ToControl::Upcall(UpcallPacket { id, copy: None, key, header: vec![7; 60], frame_len: 60 })
}

fn put(port: u32) -> FromControl {
    FromControl::PutFlow(flow(port))
}

fn resume(id: u64, port: u32) -> FromControl {
    FromControl::Resume { id, actions: flow(port).actions }
}

#[test]
fn a_miss_is_answered_from_the_table_and_control_hears_of_the_others() {
    let mut rig = Rig::new();
    assert!(rig.writer.put(9, &flow(1)));
    for message in [ToControl::Hello, miss(10, 1), miss(11, 2), miss(12, 1)] {
        rig.switch.send(&message).unwrap();
    }
    rig.pass();
    assert_eq!(rig.at_switch(), [put(1), resume(10, 1), resume(12, 1)], "put once for both");
    assert_eq!(rig.at_control(), [ToControl::Hello, miss(11, 2)]);
    let walks = rig.marks.walks();
    assert_eq!((walks.walks, walks.hits, walks.installed, rig.marks.of(9)), (3, 2, 1, 2));
    // It has left the small table again.
    rig.switch.send(&miss(13, 1)).unwrap();
    rig.pass();
    assert_eq!(rig.at_switch(), [put(1), resume(13, 1)]);
    // A copy for control is no miss.
    let ToControl::Upcall(copy) = miss(14, 1) else { unreachable!() };
    let copy = ToControl::Upcall(UpcallPacket { copy: Some(1), ..copy });
    rig.switch.send(&copy).unwrap();
    rig.pass();
    assert_eq!((rig.at_switch(), rig.at_control()), (vec![], vec![copy]));
}

/// A flow that control takes out of its table is put by nobody behind the word that it is to go.
#[test]
fn nothing_is_put_behind_the_word_that_it_is_to_go() {
    let mut rig = Rig::new();
    for n in 0..2000u64 {
        rig.writer.put(0, &flow(1));
        rig.switch.send(&miss(n, 1)).unwrap();
        rig.switch.flush().unwrap();
        if n % 2 == 0 {
            rig.between.turn().unwrap();
        }
        rig.writer.remove(0);
        let gone = FromControl::DelFlow { key: flow(1).key, mask: mask(), tell: false };
        rig.control.send(&gone).unwrap();
        rig.control.send(&FromControl::Ask { request: n, question: DatapathRequest::Barrier }).unwrap();
        rig.pass();
        let heard = rig.at_switch();
        let last_put = heard.iter().rposition(|m| matches!(m, FromControl::PutFlow(_)));
        let del = heard.iter().position(|m| *m == gone).unwrap();
        assert!(last_put.is_none_or(|at| at < del), "{heard:?}");
        assert_eq!(rig.at_control().len() as u64, n % 2, "the other half was too late, and is control's");
    }
}

/// Neither ring has room: nothing is lost, nothing is turned round, and what waits in between does not grow.
#[test]
fn full_rings_lose_nothing() {
    let mut rig = Rig::new();
    rig.writer.put(0, &flow(1));
    let (mut sent, mut said, mut heard, mut told) = (0u64, 0u64, Vec::new(), Vec::new());
    for turn in 0..40_000u64 {
        let message = if sent % 3 == 0 { miss(sent, 1) } else { miss(sent, 2) };
        sent += u64::from(rig.switch.send(&message).is_ok());
        let message = FromControl::Ask { request: said, question: DatapathRequest::Ports };
        said += u64::from(rig.control.send(&message).is_ok());
        let (_, _) = (rig.switch.flush(), rig.control.flush());
        rig.between.turn().unwrap();
        assert!(rig.between.relay.waiting() <= 66, "what the relay bounds, and an answer's two");
        if turn % 2000 == 1999 {
            heard.extend(rig.at_switch());
            told.extend(rig.at_control());
        }
    }
    for _ in 0..100 {
        rig.pass();
        heard.extend(rig.at_switch());
        told.extend(rig.at_control());
    }
    let asked =
        heard.iter().filter_map(|m| if let FromControl::Ask { request, .. } = m { Some(*request) } else { None });
    assert!(asked.eq(0..said), "what control said, in order");
    let answered = heard.iter().filter_map(|m| if let FromControl::Resume { id, .. } = m { Some(*id) } else { None });
    assert!(answered.eq((0..sent).filter(|n| n % 3 == 0)));
    let punted = told.iter().filter_map(|m| if let ToControl::Upcall(p) = m { Some(p.id) } else { None });
    assert!(punted.eq((0..sent).filter(|n| n % 3 != 0)));
    assert!(sent > 5000 && said > 5000, "{sent} {said}");
}

#[test]
fn who_closes_one_end_closes_the_other() {
    let Rig { switch, control, mut between, .. } = Rig::new();
    drop(control);
    assert!(matches!(between.relay.control_woken(), Err(ChannelError::Closed)));
    drop(between);
    let mut switch = switch;
    assert!(matches!(switch.woken(), Err(ChannelError::Closed)));
}

/// A control that writes what cannot be is told on, and both ends close; the next join serves.
#[test]
fn a_control_that_writes_nonsense_is_to_be_replaced() {
    let (ours, theirs) = Channel::<SupervisorToSwitch, SwitchToSupervisor>::pair().unwrap();
    let mut supervisor: Channel<SupervisorToSwitch, SwitchToSupervisor> = Channel::new(ours);
    let serving = std::thread::spawn(|| Walker::new(Channel::new(theirs)).unwrap().serve().unwrap());
    let mut join = || {
        let ((a, b), (c, d)) = (ring_pair().unwrap(), ring_pair().unwrap());
        let (table, marks) = (sealed_memfd("table", TABLE_BYTES).unwrap(), sealed_memfd("marks", MARKS_BYTES).unwrap());
        let writer = Writer::new(&table).unwrap();
        for fd in [b, c, table, marks] {
            supervisor.send(&SupervisorToSwitch::ControlChannel, Some(fd.as_fd())).unwrap();
        }
        (a, d, writer)
    };
    let (a, d, _writer) = join();
    let mut memory = Vec::new();
    receive_with_fds(&d, &mut [0], &mut memory, RecvFlags::empty()).unwrap();
    let memory = SharedWords::map(memory.pop().unwrap(), 33_280).unwrap();
    // Published in the ring to the data plane, beyond what there can be (docs/control-rings.md).
    memory[48].store(1 << 40, Relaxed);
    send(&d, &[0], SendFlags::empty()).unwrap();
    let mut switch = SwitchEnd::new(a).unwrap();
    while !matches!(switch.woken(), Err(ChannelError::Closed)) {
        std::thread::yield_now();
    }
    let (a, d, mut writer) = join();
    let (mut switch, _control) = (SwitchEnd::new(a).unwrap(), ControlEnd::new(d).unwrap());
    writer.put(1, &flow(1));
    switch.send(&miss(1, 1)).unwrap();
    switch.flush().unwrap();
    let answer = loop {
        match switch.recv() {
            Ok(message) => break message,
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(answer, put(1));
    let told = supervisor.recv().unwrap().0;
    assert!(matches!(&told, SwitchToSupervisor::ControlBroke(_)), "{told:?}");
    drop(supervisor);
    serving.join().unwrap();
}
