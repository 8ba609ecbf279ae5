//! The dirty log: when the switch logs, and which logs are refused.

use super::*;
use crate::message::{LogDesc, VRING_LOG, VringAddr};

const ALL: Features = Features::VERSION_1.union(Features::PROTOCOL_FEATURES);
const LOGGING: Features = ALL.union(Features::LOG_ALL);
/// As many bytes as the memory of the tests needs: it ends at 2 MiB.
const NEEDED: u64 = 64;

impl Rig {
    /// With a ring that runs.
    fn running() -> Self {
        let mut rig = Self::negotiated(ALL);
        rig.describe(1);
        rig.drive(|front, _| {
            front.set_kick(1, None).unwrap();
            front.enable(1, true).unwrap();
        });
        rig
    }

    /// Whether what is written by the running ring is logged.
    fn logs(&self) -> bool {
        let mut queue = self.queues[1].lock();
        queue.started().expect("the ring runs").memory.is_logged()
    }

    /// SET_LOG_BASE; whether it was taken.
    fn log(&mut self, size: u64, offset: u64, file: u64) -> bool {
        let fd = memfd(file);
        self.drive(move |front, _| {
            let body = LogDesc { size, offset };
            let flags = flag::VERSION | flag::NEED_REPLY;
            front.send(Request::SetLogBase as u32, flags, body.as_bytes(), &[fd.as_fd()]).unwrap();
            front.receive::<u64>(Request::SetLogBase).unwrap().0 == 0
        })
    }

    fn features(&mut self, features: Features) {
        self.drive(|front, _| front.set_features(features).unwrap());
    }

    fn said(&self) -> String {
        match self.events.last() {
            Some(Event::Wrong { line, .. }) => line.clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// QEMU names the log first when migration begins, and LOG_ALL first when a device comes up while it goes on.
#[test]
fn the_switch_logs_while_there_is_a_log_that_is_wanted() {
    let mut rig = Rig::running();
    assert!(rig.log(NEEDED, 0, 4096) && !rig.logs(), "not wanted yet");
    rig.features(LOGGING);
    assert!(rig.logs());
    assert!(rig.log(4096, 4096, 8192) && rig.logs(), "another one takes its place");
    rig.features(ALL);
    assert!(!rig.logs());
    rig.features(LOGGING);
    assert!(rig.logs(), "with the log that it has");
    assert_eq!(rig.state(1), RingState::Running, "through all of it");
    rig.drive(|front, _| {
        front.set_u64(Request::SetFeatures, (ALL | Features::MRG_RXBUF | Features::LOG_ALL).bits()).unwrap_err();
    });
    assert!(rig.said().contains("features change while rings run: MRG_RXBUF"), "nothing else may change");

    let mut rig = Rig::running();
    rig.features(LOGGING);
    assert!(!rig.logs(), "there is none yet");
    assert!(rig.log(NEEDED, 0, 4096) && rig.logs());
    rig.drive(|front, _| front.request_bare(Request::ResetDevice).unwrap());
    rig.describe(1);
    rig.features(ALL);
    rig.drive(|front, _| {
        front.set_kick(1, None).unwrap();
        front.enable(1, true).unwrap();
    });
    assert!(!rig.logs(), "a device that was reset has no features");
}

/// It is the one reply that is not asked for.
#[test]
fn a_log_is_answered_without_being_asked() {
    let mut rig = Rig::running();
    let fd = memfd(4096);
    rig.drive(|front, _| {
        let body = LogDesc { size: NEEDED, offset: 0 };
        front.send(Request::SetLogBase as u32, flag::VERSION, body.as_bytes(), &[fd.as_fd()]).unwrap();
        assert_eq!(front.receive::<u64>(Request::SetLogBase).unwrap().0, 0);
        front.send(Request::SetLogFd as u32, flag::VERSION | flag::NEED_REPLY, &[], &[fd.as_fd()]).unwrap();
        assert_eq!(front.receive::<u64>(Request::SetLogFd).unwrap().0, 0);
    });
}

#[test]
fn a_log_that_covers_too_little_is_refused() {
    let mut rig = Rig::running();
    rig.features(LOGGING);
    assert!(!rig.log(NEEDED - 8, 0, 4096));
    assert_eq!(
        rig.said(),
        "refused: SET_LOG_BASE: a log of 56 bytes covers too little of the guest's memory; 64 bytes are needed, one for each 32 KiB up to the last address"
    );
    assert!(!rig.logs());
    assert!(rig.log(NEEDED, 0, 4096));
    for (size, offset, file, why) in [
        (NEEDED + 4, 0, 4096, "multiples of 8"),
        (NEEDED, 4, 4096, "multiples of 8"),
        ((2 << 30) + 8, 0, 4096, "no log is longer than 2 GiB"),
        (8192, 0, 4096, "needs 8192 bytes of its file, which has 4096"),
        (NEEDED, u64::MAX - 7, 4096, "wraps"),
    ] {
        assert!(!rig.log(size, offset, file));
        assert!(rig.said().contains(why), "{}", rig.said());
        assert!(rig.logs(), "with the one before");
    }
    // Memory that it does not reach.
    let ram = memfd(0x1000);
    let far = RegionSpec { guest_addr: GUEST + SIZE, user_addr: USER + SIZE, size: 0x1000, mmap_offset: 0 };
    assert!(rig.drive(|front, _| front.add_region(far, ram.as_fd()).is_err()));
    assert!(rig.said().contains("ADD_MEM_REG: a log of 64 bytes covers too little"), "{}", rig.said());
    assert!(rig.log(NEEDED + 8, 0, 4096));
    assert!(rig.drive(|front, _| front.add_region(far, ram.as_fd()).is_ok()) && rig.logs());
    // LOG_ALL with one that was too small for the memory that came meanwhile.
    rig.features(ALL);
    assert!(rig.log(8, 0, 4096));
    rig.drive(|front, _| front.set_features(LOGGING).unwrap_err());
    assert!(!rig.logs() && rig.said().contains("SET_FEATURES: a log of 8 bytes"), "{}", rig.said());
    assert_eq!(rig.session.features(), ALL);
}

/// QEMU says all addresses again, with the flag, while the rings run.
#[test]
fn a_ring_whose_log_begins_goes_on() {
    let mut rig = Rig::running();
    let (desc, driver, device) = PARTS;
    let addr = |flags, log| VringAddr {
        index: 1,
        flags,
        descriptor: USER + desc,
        used: USER + device,
        available: USER + driver,
        log,
    };
    for addr in [addr(VRING_LOG, GUEST + device), addr(VRING_LOG, u64::MAX), addr(0, 0)] {
        rig.drive(|front, _| {
            front.send(Request::SetVringAddr as u32, flag::VERSION | flag::NEED_REPLY, addr.as_bytes(), &[]).unwrap();
            assert_eq!(front.receive::<u64>(Request::SetVringAddr).unwrap().0, 0);
        });
        assert_eq!(rig.state(1), RingState::Running);
    }
}
