//! What a front-end has sent is let go of aside, whatever became of it: to unmap a file that nobody else has any more is to free
//! its pages, which takes the kernel most of a second for some GiB.

use lasthop_guestmem::RegionSpec;
use lasthop_sys::{Aside, Foreign, memfd};
use lasthop_vhostuser::{Frontend, Local, Session};
use lasthop_virtqueue::Queue;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Keeps the thread that lets go of things busy.
struct Slow(Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

fn mapped(name: &str) -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(name)).count()
}

/// A front-end says something, and the session answers here.
fn drive<T: Send>(session: &mut Session<Local>, front: &Frontend, talk: impl FnOnce(&Frontend) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| talk(front));
        while !talk.is_finished() {
            session.serve(Instant::now(), &mut Vec::new()).unwrap();
            std::thread::yield_now();
        }
        talk.join().unwrap()
    })
}

#[test]
fn memory_that_is_refused_or_replaced_is_unmapped_aside() {
    const SIZE: u64 = 1 << 20;
    let aside = Aside::new("test");
    let (end, ended) = channel();
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let queues: Arc<[_]> = (0..2).map(|i| Arc::new(Queue::new(i))).collect();
    let mut session = Session::local(Foreign::new(b, &aside), queues, Instant::now());
    let mut front = Frontend::over(a);
    let region = |n: u64| RegionSpec { guest_addr: n * SIZE, user_addr: n * SIZE, size: SIZE, mmap_offset: 0 };
    // The protocol features are remembered by the front-end.
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| front.set_protocol_features(front.protocol_features().unwrap()).unwrap());
        while !talk.is_finished() {
            session.serve(Instant::now(), &mut Vec::new()).unwrap();
        }
    });
    aside.drop_aside(Slow(ended));

    let (first, second) = (memfd("first", SIZE).unwrap(), memfd("second", SIZE / 2).unwrap());
    let table = [(region(0), first.as_fd()), (region(1), second.as_fd())];
    drive(&mut session, &front, |front| front.set_mem_table(&table).unwrap_err());
    assert_eq!(mapped("memfd:first"), 1, "not unmapped here");
    assert_eq!(session.memory().regions().count(), 0);

    let third = memfd("third", SIZE).unwrap();
    drive(&mut session, &front, |front| {
        front.set_mem_table(&[(region(0), first.as_fd())]).unwrap();
        front.add_region(region(0), third.as_fd()).unwrap();
        let half = RegionSpec { guest_addr: SIZE / 2, ..region(7) };
        front.add_region(half, third.as_fd()).unwrap_err();
    });
    assert_eq!(mapped("memfd:third"), 0, "what overlaps is refused before it is mapped");

    for n in 0..2 {
        drive(&mut session, &front, |front| {
            let (desc, fd) = front.inflight(2, 256).unwrap();
            front.set_inflight(desc, fd.as_fd()).unwrap();
        });
        assert_eq!(mapped("lasthop-inflight"), n + 1, "the one before is not unmapped here");
    }
    drop(end);
    while mapped("memfd:first") + mapped("lasthop-inflight") > 2 {
        std::thread::yield_now();
    }
}
