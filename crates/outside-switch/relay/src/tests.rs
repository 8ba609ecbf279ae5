//! A data plane and a control at the two ends, played.

use super::*;
use lasthop_ipc::{DatapathRequest, UpcallPacket, ring_pair};

/// Answers every third miss itself, and counts what it hears.
#[derive(Default)]
struct Third {
    heard: u64,
}

impl Station for Third {
    type Broken = ChannelError;

    fn goes_down(&mut self, _: &FromControl) -> Result<(), ChannelError> {
        self.heard += 1;
        Ok(())
    }

    fn comes_up(
        &mut self,
        message: ToControl,
        down: &mut VecDeque<FromControl>,
    ) -> Result<Option<ToControl>, ChannelError> {
        match &message {
            ToControl::Upcall(packet) if packet.id.is_multiple_of(3) => {
                down.push_back(FromControl::Resume { id: packet.id, actions: Vec::new() });
                Ok(None)
            }
            _ => Ok(Some(message)),
        }
    }
}

struct Rig {
    switch: SwitchEnd,
    control: ControlEnd,
    relay: Relay,
    station: Third,
}

impl Rig {
    fn new() -> Self {
        let ((a, b), (c, d)) = (ring_pair().unwrap(), ring_pair().unwrap());
        let relay = Relay::new(b, c).unwrap();
        let (switch, control) = (SwitchEnd::new(a).unwrap(), ControlEnd::new(d).unwrap());
        Self { switch, control, relay, station: Third::default() }
    }
}

fn miss(id: u64) -> ToControl {
    ToControl::Upcall(UpcallPacket { id, copy: None, key: Default::default(), header: vec![7; 60], frame_len: 60 })
}

/// Neither ring has room: nothing is lost, nothing is turned round, and what waits in between does not grow.
#[test]
fn full_rings_lose_nothing() {
    let mut rig = Rig::new();
    let (mut sent, mut said, mut heard, mut told) = (0u64, 0u64, Vec::new(), Vec::new());
    for turn in 0..40_000u64 {
        sent += u64::from(rig.switch.send(&miss(sent)).is_ok());
        let message = FromControl::Ask { request: said, question: DatapathRequest::Ports };
        said += u64::from(rig.control.send(&message).is_ok());
        let (_, _) = (rig.switch.flush(), rig.control.flush());
        rig.relay.turn(&mut rig.station).unwrap();
        assert!(rig.relay.waiting() <= WAITING + 1);
        if turn % 2000 == 1999 || turn > 39_000 {
            heard.extend(std::iter::from_fn(|| rig.switch.recv().ok()));
            told.extend(std::iter::from_fn(|| rig.control.recv().ok()));
        }
    }
    loop {
        let (_, _) = (rig.switch.flush(), rig.control.flush());
        let rests = rig.relay.turn(&mut rig.station).unwrap();
        let before = heard.len() + told.len();
        heard.extend(std::iter::from_fn(|| rig.switch.recv().ok()));
        told.extend(std::iter::from_fn(|| rig.control.recv().ok()));
        if rests && heard.len() + told.len() == before {
            break;
        }
    }
    let asked =
        heard.iter().filter_map(|m| if let FromControl::Ask { request, .. } = m { Some(*request) } else { None });
    assert!(asked.eq(0..said), "what control said, in order");
    let answered = heard.iter().filter_map(|m| if let FromControl::Resume { id, .. } = m { Some(*id) } else { None });
    assert!(answered.eq((0..sent).filter(|n| n % 3 == 0)), "what the station said, in order");
    let punted = told.iter().filter_map(|m| if let ToControl::Upcall(p) = m { Some(p.id) } else { None });
    assert!(punted.eq((0..sent).filter(|n| n % 3 != 0)), "what the data plane said, in order");
    assert_eq!(rig.station.heard, said);
    assert!(sent > 5000 && said > 5000, "{sent} {said}");
}

/// A data plane that waits for room towards control before it reads on gets that room, though it has not read what waits for it.
#[test]
fn who_reads_nothing_is_still_heard() {
    let mut rig = Rig::new();
    let ask = |request| FromControl::Ask { request, question: DatapathRequest::Ports };
    let mut said = 0;
    for _ in 0..1000 {
        while rig.control.send(&ask(said)).is_ok() {
            said += 1;
        }
        let _ = rig.control.flush();
        rig.relay.turn(&mut rig.station).unwrap();
    }
    assert!(rig.relay.waiting() > 0, "the ring towards the data plane is full");
    rig.switch.send(&miss(1)).unwrap();
    rig.switch.flush().unwrap();
    rig.relay.turn(&mut rig.station).unwrap();
    assert_eq!(rig.control.recv().unwrap(), miss(1));
}

#[test]
fn who_closes_one_end_closes_the_other() {
    let Rig { switch, control, mut relay, .. } = Rig::new();
    drop(control);
    assert!(matches!(relay.control_woken(), Err(ChannelError::Closed)));
    drop(relay);
    let mut switch = switch;
    assert!(matches!(switch.woken(), Err(ChannelError::Closed)));
}
