//! The way to another switch: what each of the two has after every step, there and back.

use super::*;
use crate::Unprepared;
use crate::message::LogDesc;
use lasthop_sys::Aside;
use rustix::fs::{SealFlags, fcntl_add_seals};

const ALL: Features = Features::VERSION_1.union(Features::PROTOCOL_FEATURES).union(Features::LOG_ALL);

/// A session with two rings that run, both logged, and another switch.
fn rig() -> (Rig, [EventFd; 2], Arc<[Arc<Queue>]>) {
    let mut rig = Rig::negotiated(ALL);
    let call = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    let log = memfd(4096);
    rig.drive(|front, _| {
        let body = LogDesc { size: 64, offset: 0 };
        front.send(Request::SetLogBase as u32, flag::VERSION, body.as_bytes(), &[log.as_fd()]).unwrap();
        front.receive::<u64>(Request::SetLogBase).unwrap();
        for ring in 0..2 {
            let at = USER + 0x4000 * u64::from(ring);
            front.set_size(ring, 256).unwrap();
            front.set_base(ring, 0).unwrap();
            front.set_addr(ring, at, at + 0x1000, at + 0x2000).unwrap();
            front.set_call(ring, Some(call[ring as usize].as_fd())).unwrap();
            front.set_kick(ring, None).unwrap();
            front.enable(ring, true).unwrap();
        }
    });
    let other: Arc<[_]> = (0..32).map(|i| Arc::new(Queue::new(i))).collect();
    assert_eq!(runs(&rig.queues), [true, true]);
    (rig, call, other)
}

/// Which of the first two rings packets may pass.
fn runs(queues: &[Arc<Queue>]) -> [bool; 2] {
    [0, 1].map(|i: usize| queues[i].is_ready())
}

impl Rig {
    fn prepare(&mut self, other: &Arc<[Arc<Queue>]>) {
        self.session.prepare(Local::new(other.clone(), &Aside::new("test"))).unwrap();
        assert!(self.session.is_going_over());
    }
}

#[test]
fn rings_go_over_a_direction_at_a_time() {
    let (mut rig, call, other) = rig();
    rig.prepare(&other);
    assert_eq!((runs(&rig.queues), runs(&other)), ([true, true], [false, false]));
    rig.session.hold().unwrap();
    assert_eq!((runs(&rig.queues), runs(&other)), ([true, false], [false, false]));
    rig.session.cross().unwrap();
    assert_eq!((runs(&rig.queues), runs(&other)), ([false, false], [true, false]));
    assert!(rig.session.go_on().unwrap().is_some());
    assert_eq!((runs(&rig.queues), runs(&other)), ([false, false], [true, true]));
    rig.session.leave().unwrap();
    assert!(!rig.session.is_going_over());
    for i in [0, 1] {
        assert!(other[i].lock().started().unwrap().memory.is_logged(), "ring {i}: what is written is not logged");
        call[i].drain();
        other[i].lock().call();
        assert!(call[i].drain(), "ring {i}: its guest is not interrupted");
    }
    // The front-end speaks with the new one.
    assert_eq!(rig.drive(|front, _| front.stop(1).unwrap()), 0);
    assert_eq!(runs(&other), [true, false]);
}

#[test]
fn whatever_has_been_done_can_be_undone() {
    for steps in 0..=3 {
        let (mut rig, _call, other) = rig();
        rig.prepare(&other);
        let step: [fn(&mut Session<Local>); 3] =
            [|s| s.hold().unwrap(), |s| s.cross().unwrap(), |s| assert!(s.go_on().unwrap().is_some())];
        step.iter().take(steps).for_each(|step| step(&mut rig.session));
        rig.session.stay().unwrap();
        assert_eq!((runs(&rig.queues), runs(&other)), ([true, true], [false, false]), "after {steps} steps");
        assert!(!rig.session.is_going_over());
        // Once more, and this time for good.
        rig.prepare(&other);
        step.iter().for_each(|step| step(&mut rig.session));
        rig.session.leave().unwrap();
        assert_eq!((runs(&rig.queues), runs(&other)), ([false, false], [true, true]));
    }
}

/// A port's packets wait for as long as all ports' session processes wait for their switch.
#[test]
fn the_switch_is_waited_for_once_a_step() {
    let (mut rig, _call, other) = rig();
    rig.prepare(&other);
    let before = rig.session.switch().waits;
    rig.session.hold().unwrap();
    assert_eq!(rig.session.switch().waits, before + 1, "for rings to stop");
    rig.session.cross().unwrap();
    let before = rig.session.switch().waits;
    rig.session.go_on().unwrap();
    assert_eq!(rig.session.switch().waits, before + 1, "for rings to start, and to be looked at");
}

/// The switch so far ends the connection meanwhile, as it does where a descriptor of the front-end's does not close: the port stays behind, and others go.
#[test]
fn a_connection_that_its_switch_ends_keeps_no_other_port() {
    let (mut rig, _call, other) = rig();
    rig.session.switch_mut().ends_after = Some(0);
    let why = rig.session.prepare(Local::new(other.clone(), &Aside::new("test"))).unwrap_err();
    assert!(matches!(why, Unprepared::Never(SessionError::SwitchGone)), "{why:?}");
    assert!(!rig.session.is_going_over());
}

/// What was answered before the connection ended has happened, and is noted: of the rings that the other switch has started, only the guest knows where they stand.
#[test]
fn answers_before_an_end_count() {
    for (answers, running) in [(0, false), (1, true)] {
        let (mut rig, _call, other) = rig();
        rig.prepare(&other);
        rig.session.hold().unwrap();
        rig.session.cross().unwrap();
        rig.session.switch_mut().ends_after = Some(answers);
        assert!(rig.session.go_on().is_err());
        let ring = rig.session.rings().nth(1).unwrap();
        assert_eq!(ring.state == RingState::Running, running, "after {answers} answers");
    }
}

/// A ring that its guest broke stays so, and is not started anew where it once began; whenever it broke.
#[test]
fn a_broken_ring_is_not_mended_by_it() {
    for breaks_late in [false, true] {
        let (mut rig, _call, other) = rig();
        let breaks = |rig: &Rig| rig.queues[1].lock().fail(QueueError::MemoryFault);
        if !breaks_late {
            breaks(&rig);
        }
        rig.prepare(&other);
        if breaks_late {
            breaks(&rig);
        }
        rig.session.hold().unwrap();
        rig.session.cross().unwrap();
        rig.session.go_on().unwrap();
        rig.session.leave().unwrap();
        assert_eq!(runs(&other), [true, false], "{breaks_late}");
    }
}

/// Memory that nobody can map any more as it was mapped: that is its front-end's doing, and others are to go without it. The port stays where it is.
#[test]
fn a_switch_that_refuses_memory_gets_no_port() {
    let cut = |rig: &Rig| ftruncate(&rig.ram, 4096).unwrap();
    let seal = |rig: &Rig| fcntl_add_seals(&rig.ram, SealFlags::FUTURE_WRITE).unwrap();
    for (spoil, says) in [(cut as fn(&Rig), "4096"), (seal, "ermitted")] {
        let (mut rig, _call, other) = rig();
        spoil(&rig);
        let why = rig.session.prepare(Local::new(other.clone(), &Aside::new("test"))).unwrap_err();
        let own = matches!(&why, Unprepared::Never(SessionError::Refused { of_memory: true, .. }));
        let why = why.to_string();
        assert!(own && why.starts_with("to go over to another switch: ") && why.contains(says), "{why}");
        assert!(!rig.session.is_going_over());
        assert_eq!((runs(&rig.queues), runs(&other)), ([true, true], [false, false]));
    }
}
