//! The session against the front-end of the `vhost` crate (rust-vmm), which is what Cloud Hypervisor uses.

use lasthop_connection::Event;
use lasthop_sys::EventFd;
use lasthop_vhostuser::{Features, Local, RingState, Session, SessionError};
use lasthop_virtqueue::Queue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures as Protocol};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd as ForeignEventFd};

const USER: u64 = 0x5555_0000_0000;
const SIZE: u64 = 1 << 20;

/// Serves `front` until it hangs up and returns what happened.
fn serve(
    front: impl FnOnce(Frontend, &OwnedFd) + Send,
    check: impl Fn(&Session<Local>, &[Arc<Queue>]),
) -> (Vec<Event>, SessionError) {
    let (a, b) = UnixStream::pair().unwrap();
    let ram = memfd_create("foreign", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&ram, 4 * SIZE).unwrap();
    let queues: Arc<[_]> = (0..32).map(|i| Arc::new(Queue::new(i))).collect();
    let mut session = Session::local(OwnedFd::from(b), queues.clone(), Instant::now());
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| front(Frontend::from_stream(a, 32), &ram));
        loop {
            let mut fds = [PollFd::new(&session, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
            // The last thing a front-end does here is to ask whether it may go: check before it does.
            check(&session, &queues);
            if let Err(e) = session.serve(Instant::now(), &mut events) {
                talk.join().unwrap();
                return (events, e);
            }
        }
    })
}

fn region(ram: &OwnedFd, slot: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: slot << 32,
        memory_size: SIZE,
        userspace_addr: USER + (slot << 32),
        mmap_offset: slot * SIZE,
        mmap_handle: ram.as_raw_fd(),
    }
}

fn ring_at(offset: u64) -> VringConfigData {
    VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags: 0,
        desc_table_addr: USER + offset,
        used_ring_addr: USER + offset + 0x2000,
        avail_ring_addr: USER + offset + 0x1000,
        log_addr: None,
    }
}

fn event() -> ForeignEventFd {
    ForeignEventFd::new(EFD_NONBLOCK).unwrap()
}

fn negotiate(front: &mut Frontend, features: Features) -> Protocol {
    front.set_owner().unwrap();
    let offered = front.get_features().unwrap();
    assert_eq!(offered, Features::OFFERED.bits());
    front.set_features(features.bits()).unwrap();
    let protocol = front.get_protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    protocol
}

#[test]
fn every_message_of_a_negotiation() {
    for layout in [Features::empty(), Features::RING_PACKED | Features::IN_ORDER] {
        let features = Features::VERSION_1 | Features::PROTOCOL_FEATURES | Features::MQ | layout;
        let (events, end) = serve(
            move |mut front, ram| {
                // Every message asks for an acknowledgement, beginning with the one that negotiates them.
                front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
                let protocol = negotiate(&mut front, features);
                assert!(protocol.contains(Protocol::MQ | Protocol::REPLY_ACK | Protocol::CONFIGURE_MEM_SLOTS));
                assert_eq!(front.get_queue_num().unwrap(), 16);
                assert_eq!(front.get_max_mem_slots().unwrap(), 509);
                front.set_mem_table(&[region(ram, 0), region(ram, 1)]).unwrap();
                front.add_mem_region(&region(ram, 2)).unwrap();
                // QEMU adds a region once for each queue pair.
                front.add_mem_region(&region(ram, 2)).unwrap();
                let mut shifted = region(ram, 2);
                shifted.guest_phys_addr += 4096;
                assert!(front.add_mem_region(&shifted).is_err(), "overlaps the one before");
                front.remove_mem_region(&region(ram, 2)).unwrap();

                let (inflight, file) = front.get_inflight_fd(&VhostUserInflight::new(0, 0, 4, 256)).unwrap();
                front.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();

                let (kick, call, err) = (event(), event(), event());
                for i in 0..4 {
                    front.set_vring_num(i, 256).unwrap();
                    front.set_vring_addr(i, &ring_at(0x8000 * i as u64)).unwrap();
                    front.set_vring_base(i, if layout.is_empty() { 0 } else { 0x8000 }).unwrap();
                    front.set_vring_call(i, &call).unwrap();
                    front.set_vring_err(i, &err).unwrap();
                    front.set_vring_kick(i, &kick).unwrap();
                    front.set_vring_enable(i, i < 2).unwrap();
                }
                assert_eq!(call.read().unwrap(), 4, "each start says once that there may be something");
                assert!(front.set_vring_num(0, 128).is_err(), "a running ring keeps its size");
                assert!(err.read().is_err(), "no ring broke");
                // Under running rings: the same memory again, and more of it.
                front.set_mem_table(&[region(ram, 0), region(ram, 1)]).unwrap();
                front.add_mem_region(&region(ram, 3)).unwrap();
                assert!(err.read().is_err(), "no ring broke");
                for i in 0..2 {
                    let base = front.get_vring_base(i).unwrap();
                    assert_eq!(base, if layout.is_empty() { 0 } else { 0x8000_8000 });
                }
                front.remove_mem_region(&region(ram, 0)).unwrap();
                assert_eq!(err.read().unwrap(), 2, "the two rings still running lost their memory");
                front.reset_device().unwrap();
            },
            |_, _| {},
        );
        assert_eq!(end, SessionError::Closed);
        let count = |f: fn(&Event) -> bool| events.iter().filter(|e| f(e)).count();
        assert_eq!(count(|e| matches!(e, Event::Kick { fd: Some(_), .. })), 4);
        assert_eq!(count(|e| matches!(e, Event::Failed { queue: 2 | 3, .. })), 2);
        assert_eq!(count(|e| matches!(e, Event::Wrong { .. })), 2);
        assert_eq!(count(|e| matches!(e, Event::Stopped { .. })), 4);
    }
}

/// Without acknowledgements the front-end runs ahead; the state it ends in is the same.
#[test]
fn a_negotiation_without_acknowledgements() {
    let (done, wait) = (Arc::new(EventFd::new().unwrap()), Arc::new(EventFd::new().unwrap()));
    let (tell, told) = (done.clone(), wait.clone());
    let (events, end) = serve(
        move |mut front, ram| {
            negotiate(&mut front, Features::VERSION_1 | Features::PROTOCOL_FEATURES);
            front.set_mem_table(&[region(ram, 0)]).unwrap();
            let (kick, call) = (event(), event());
            for i in 0..2 {
                front.set_vring_num(i, 256).unwrap();
                front.set_vring_addr(i, &ring_at(0x8000 * i as u64)).unwrap();
                front.set_vring_base(i, 0).unwrap();
                front.set_vring_call(i, &call).unwrap();
                front.set_vring_kick(i, &kick).unwrap();
                front.set_vring_enable(i, true).unwrap();
            }
            // An answer means that all before was handled.
            front.get_features().unwrap();
            tell.signal();
            // Whoever answers looks before he does, but several questions may be answered after one look.
            let seen = (0..100).any(|_| {
                front.get_features().unwrap();
                let mut fds = [PollFd::new(&told, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
                told.drain()
            });
            assert!(seen, "the rings were not seen running");
        },
        move |session, queues| {
            if done.drain() {
                assert!(session.rings().take(2).all(|r| r.state == RingState::Running && r.enabled));
                assert!(queues[0].is_ready() && queues[1].is_ready() && !queues[2].is_ready());
                assert_eq!(session.memory().total_bytes(), SIZE);
                wait.signal();
            }
        },
    );
    assert_eq!(end, SessionError::Closed);
    assert!(events.iter().any(|e| matches!(e, Event::Changed)));
    assert_eq!(events.iter().filter(|e| matches!(e, Event::Kick { .. })).count(), 2);
}
