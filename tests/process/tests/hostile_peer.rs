//! A hostile vhost-user peer: what the connection, rather than the guest, can do wrong.

use lasthop_guestmem::RegionSpec;
use lasthop_tests_process::{Arena, Guest, Options, PATIENCE, connect, mac, numbered, proc, wait_for};
use lasthop_text::MacAddr;
use lasthop_vhostuser::message::{InflightDesc, flag};
use lasthop_vhostuser::{Features, Frontend, FrontendError, ProtocolFeatures, Request};
use lasthop_virtqueue::driver::NetDriver;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A connection with REPLY_ACK negotiated: refusals are answers.
fn negotiated(arena: &Arena) -> Frontend {
    let mut front = arena.connection();
    front.set_owner().unwrap();
    front.features().unwrap();
    let protocol = front.protocol_features().unwrap();
    front.set_protocol_features(protocol).unwrap();
    front.set_features(Features::VERSION_1 | Features::PROTOCOL_FEATURES | Features::MRG_RXBUF).unwrap();
    front
}

/// Waits for the switch to end the connection.
fn closed(front: &Frontend, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    loop {
        let mut fds = [PollFd::new(front, PollFlags::IN)];
        let left = end.saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&timeout));
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        // Replies nobody asked for.
        let _ = rustix::net::recv(front, &mut [0u8; 4096], rustix::net::RecvFlags::DONTWAIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Refused with an answer, the connection going on; or the connection ended. Never accepted.
fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, FrontendError>) {
    match result {
        Err(FrontendError::Refused(_) | FrontendError::Closed | FrontendError::Io(_)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn memfd(size: u64) -> std::os::fd::OwnedFd {
    lasthop_sys::memfd("hostile", size).unwrap()
}

fn body(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// F1: ring indices beyond the queues, in every message that has one.
#[test]
fn f1_ring_indices() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F1");
    for index in [32, 0x100, 0x1_0001, u32::MAX] {
        let mut front = negotiated(&arena);
        refused("size", front.set_size(index, 256));
        refused("base", front.set_base(index, 0));
        refused("address", front.set_addr(index, 0, 0, 0));
        refused("enable", front.enable(index, true));
        // Answered by a value, so a refusal ends the connection.
        refused("stop", front.stop(index));
        assert!(closed(&front, PATIENCE));
        front = negotiated(&arena);
        let event = lasthop_sys::EventFd::new().unwrap();
        for result in [
            front.set_kick(index, Some(event.as_fd())),
            front.set_call(index, Some(event.as_fd())),
            front.set_err(index, Some(event.as_fd())),
        ] {
            // In these only the low eight bits are the index, and the others must be 0.
            if index & 0xff < 32 && index <= 0xff {
                result.unwrap();
            } else {
                refused("events", result);
            }
        }
    }
    arena.end(&attack, &["port=x", "SET_VRING_NUM", "65537"]);
}

/// F2: dirty logs that are longer than their file, wrap, are too short for the memory, or are no memory.
#[test]
fn f2_dirty_log() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F2");
    for (size, offset) in
        [(8192, 0), (u64::MAX, 4096), (4096, u64::MAX - 4095), (0, 0), (4096, 4), (12, 0), (2 << 30, 0)]
    {
        let front = negotiated(&arena);
        front.set_features(front.features().unwrap()).unwrap();
        let fd = memfd(4096);
        front.send(Request::SetLogBase as u32, 1, &body(&[size, offset]), &[fd.as_fd()]).unwrap();
        assert!(closed(&front, PATIENCE), "log of {size} at {offset}");
    }
    let front = negotiated(&arena);
    front.set_features(front.features().unwrap()).unwrap();
    let (pipe, _) = std::io::pipe().unwrap();
    front.send(Request::SetLogBase as u32, 1, &body(&[4096, 0]), &[pipe.as_fd()]).unwrap();
    assert!(closed(&front, PATIENCE), "a log that is a pipe");
    arena.end(&attack, &["port=x", "SET_LOG_BASE"]);
}

/// F3: in-flight areas that are out of range.
#[test]
fn f3_inflight() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F3");
    let area = |size: u64, offset: u64, queues: u16, entries: u16| InflightDesc {
        mmap_size: size,
        mmap_offset: offset,
        num_queues: queues,
        queue_size: entries,
        padding: 0,
    };
    let cases = [
        area(4096, 0, 33, 256),
        area(4096, 0, u16::MAX, u16::MAX),
        area(16, 0, 2, 256),
        area(1 << 20, u64::MAX - 4096, 2, 256),
        area(1 << 20, 1 << 40, 2, 256),
    ];
    for (i, desc) in cases.into_iter().enumerate() {
        let front = negotiated(&arena);
        refused(&format!("case {i}"), front.set_inflight(desc, memfd(1 << 20).as_fd()));
    }
    let front = negotiated(&arena);
    refused("too many queues", front.inflight(33, 256));
    arena.end(&attack, &["port=x", "INFLIGHT"]);
}

/// F4: the same request thousands of times: answered, and nothing grows.
#[test]
fn f4_repetition() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F4");
    let front = negotiated(&arena);
    let switch = arena.lasthop.switch();
    let event = lasthop_sys::EventFd::new().unwrap();
    let mut before = (0, 0);
    for round in 0..3000u32 {
        if round == 100 {
            before = (proc::descriptors(switch), proc::private_kib(switch));
        }
        drop(front.inflight(2, 256).unwrap());
        front.set_size(0, 256).unwrap();
        front.set_base(0, 0).unwrap();
        front.set_call(1, Some(event.as_fd())).unwrap();
        front.set_kick(1, Some(event.as_fd())).unwrap();
        front.set_err(1, Some(event.as_fd())).unwrap();
        front.features().unwrap();
    }
    let after = || (proc::descriptors(switch), proc::private_kib(switch));
    wait_for(&format!("no more than {before:?}; now {:?}", after()), PATIENCE, || {
        after().0 <= before.0 && after().1 <= before.1 + 1024
    });
    drop(front);
    arena.end(&attack, &[]);
}

/// F5: descriptors too many, too few, of the wrong kind, on every message. The connection may end; nothing leaks.
#[test]
fn f5_descriptors() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F5");
    let (a, b) = (memfd(4096), memfd(4096));
    let event = lasthop_sys::EventFd::new().unwrap();
    let fds = [a.as_fd(), b.as_fd(), event.as_fd(), a.as_fd(), b.as_fd(), a.as_fd(), b.as_fd(), a.as_fd(), b.as_fd()];
    for request in (1..45).filter_map(Request::from_code) {
        for count in [0, 1, 2, 8, 9] {
            let front = negotiated(&arena);
            let size = match request {
                Request::SetMemTable => 8 + 32,
                Request::SetVringAddr | Request::AddMemReg | Request::RemMemReg => 40,
                Request::GetInflightFd | Request::SetInflightFd => 24,
                _ => 8,
            };
            let mut body = vec![0; size];
            body[0] = 1;
            let _ = front.send(request as u32, flag::VERSION | flag::NEED_REPLY, &body, &fds[..count]);
            // Half of them say no more, the others something sensible.
            if count % 2 == 0 {
                let _ = front.set_owner();
            }
        }
    }
    arena.end(&attack, &["port=x", "descriptors came with it"]);
}

/// F6: any message in any order, cut anywhere, unknown, of wrong size and version.
#[test]
fn f6_messages_at_random() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F6");
    let mut seed = 0x0dd_ba11_5eed_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % below
    };
    let fd = memfd(1 << 16);
    for round in 0..250 {
        // Half of the connections are well begun.
        let front = if round % 2 == 0 { negotiated(&arena) } else { arena.connection() };
        for _ in 0..=random(12) {
            let request = random(50) as u32;
            let flags = if random(8) == 0 { random(64) as u32 } else { [1, 9][random(2) as usize] };
            let len = [0, 4, 8, 16, 20, 24, 40, 72, 264, 513][random(10) as usize];
            let mut bytes: Vec<u8> = (0..len).map(|_| if random(3) == 0 { random(256) as u8 } else { 0 }).collect();
            if len >= 8 && random(2) == 0 {
                bytes[0] = random(4) as u8;
            }
            let mut message = [request.to_le_bytes(), flags.to_le_bytes(), (len as u32).to_le_bytes()].concat();
            if random(10) == 0 {
                message[8..12].copy_from_slice(&(random(1 << 32) as u32).to_le_bytes());
            }
            message.extend(bytes);
            message.truncate(if random(10) == 0 { random(message.len() as u64 + 1) as usize } else { message.len() });
            let fds: Vec<BorrowedFd<'_>> = (0..random(3)).map(|_| fd.as_fd()).collect();
            if front.send_raw(&message, if message.is_empty() { &[] } else { &fds }).is_err() {
                break;
            }
        }
        // Whatever it answered is of no interest; reading lets it go on.
        let _ = rustix::net::recv(&front, &mut [0u8; 4096], rustix::net::RecvFlags::DONTWAIT);
    }
    arena.end(&attack, &["port=x"]);
}

/// F7: memory tables that overlap, wrap, or exceed their file.
#[test]
fn f7_memory_tables() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F7 tables");
    let fd = memfd(1 << 20);
    let region = |guest_addr: u64, user_addr: u64, size: u64, mmap_offset: u64| RegionSpec {
        guest_addr,
        user_addr,
        size,
        mmap_offset,
    };
    let bad = [
        vec![region(0, 0, 0, 0)],
        vec![region(0, 0, 2 << 20, 0)],
        vec![region(0, 0, 1 << 20, 4096)],
        vec![region(0, 0, 4096, u64::MAX - 4095)],
        vec![region(u64::MAX - 100, 0, 4096, 0)],
        vec![region(0, u64::MAX - 100, 4096, 0)],
        vec![region(0, 0, u64::MAX, 0)],
        vec![region(0, 0, 8192, 0), region(4096, 1 << 30, 8192, 0)],
        vec![region(0, 0, 8192, 0), region(1 << 30, 4096, 8192, 0)],
    ];
    for (i, table) in bad.iter().enumerate() {
        let front = negotiated(&arena);
        let table: Vec<_> = table.iter().map(|r| (*r, fd.as_fd())).collect();
        refused(&format!("table {i}"), front.set_mem_table(&table));
        if table.len() == 1 {
            refused(&format!("region {i}"), front.add_region(table[0].0, fd.as_fd()));
        }
    }
    // Not memory at all.
    let event = lasthop_sys::EventFd::new().unwrap();
    let front = negotiated(&arena);
    refused("an eventfd", front.set_mem_table(&[(region(0, 0, 4096, 0), event.as_fd())]));
    drop(front);
    // More regions than there may be: refused at the limit, none kept when the connection ends.
    let front = negotiated(&arena);
    let mut added = 0;
    while front.add_region(region(added << 20, added << 20, 4096, 0), fd.as_fd()).is_ok() {
        added += 1;
        assert!(added < 10_000, "no limit");
    }
    assert!(added >= 32, "only {added} regions");
    drop(front);
    arena.end(&attack, &["port=x", "SET_MEM_TABLE"]);
}

/// F7: the file under the guest's memory is truncated while the switch uses it. That port breaks, and only it.
#[test]
fn f7_file_truncated_after_mapping() {
    let mut arena = Arena::new(false);
    for (packed, sends) in [(false, true), (true, true), (false, false), (true, false)] {
        let attack = arena.begin("F7 truncated");
        let options = Options::net(|n| n.packed = packed);
        let mut guest = arena.guest(options);
        arena.works(&mut guest);
        let frame = numbered(mac(0x66), MacAddr::BROADCAST, 5, 1500);
        guest.net.send(0, &[0; 12], &frame).unwrap().unwrap();
        if sends {
            guest.net.flush(0);
        }
        let fd = guest.net.region().1.try_clone_to_owned().unwrap();
        // From here on our own memory is gone as well: touch it no more.
        rustix::fs::ftruncate(&fd, 0).unwrap();
        guest.net.queues()[1].kick.signal();
        wait_for("the port to be broken", PATIENCE, || {
            arena.witness.try_send(Default::default(), &numbered(mac(0x77), MacAddr::BROADCAST, 6, 100));
            arena.port()["state"] == "broken"
        });
        drop(guest);
        arena.witness.drain();
        arena.end(&attack, &["port=x", "ring stopped"]);
    }
}

/// F8: connections that race for a port, and a thousand reconnections.
#[test]
fn f8_racing_and_reconnecting() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F8");
    let path = arena.path();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for i in 0..100 {
                    let Ok(mut front) = Frontend::connect(&path) else { continue };
                    if i % 3 != 0 {
                        continue;
                    }
                    // Perhaps ours is the port, perhaps we are refused; either way there is an answer or an end.
                    let short = Some(Duration::from_secs(10));
                    rustix::net::sockopt::set_socket_timeout(&front, rustix::net::sockopt::Timeout::Recv, short)
                        .unwrap();
                    match front.features() {
                        Ok(_) => drop(front.set_protocol_features(ProtocolFeatures::REPLY_ACK)),
                        Err(FrontendError::Closed | FrontendError::Io(rustix::io::Errno::PIPE)) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    arena.end(&attack, &[]);
    let attack = arena.begin("F8 reconnections");
    for i in 0..1000 {
        let front = connect(&path);
        if i % 10 == 0 {
            // The one before may still hold the port: then we are refused, and come again.
            wait_for("an answer", PATIENCE, || front.features().is_ok() || connect(&path).features().is_ok());
        }
    }
    arena.end(&attack, &[]);
}

/// F9: says nothing; says half a message and waits; does not read its replies.
#[test]
fn f9_silence() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F9");
    let half = arena.connection();
    half.send_raw(&[1, 0, 0, 0, 1, 0], &[]).unwrap();
    assert!(closed(&half, PATIENCE), "half a message");
    drop(half);
    let half = arena.connection();
    half.send_raw(&[5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 1, 0], &[memfd(4096).as_fd()]).unwrap();
    assert!(closed(&half, PATIENCE), "half a body");
    drop(half);
    let silent = arena.connection();
    assert!(closed(&silent, PATIENCE), "silence");
    drop(silent);
    let deaf = arena.connection();
    for _ in 0..100_000 {
        if deaf.send(Request::GetFeatures as u32, 1, &[], &[]).is_err() {
            break;
        }
    }
    // It is dropped when its replies no longer fit; if they all did, that is as well.
    drop(deaf);
    arena.end(&attack, &["port=x", "half a message"]);
}

/// Makes an eventfd one that blocks and that has no room: the peer's half of a descriptor that lasthop has, too.
fn fill_and_block(event: impl AsFd) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(&event).unwrap();
    fcntl_setfl(&event, flags | OFlags::NONBLOCK).unwrap();
    // It may be full already, or not empty, of signals that came before.
    let _ = rustix::io::read(&event, &mut [0; 8]);
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&event, flags - OFlags::NONBLOCK).unwrap();
}

/// F10: whoever interrupts this guest would wait for ever, if it could be made to wait.
#[test]
fn f10_call_descriptors_that_are_full_and_block() {
    let mut arena = Arena::new(false);
    for packed in [false, true] {
        let attack = arena.begin("F10 call");
        let mut guest = arena.guest(Options::net(|n| n.packed = packed));
        arena.works(&mut guest);
        guest.net.queues().iter().for_each(|queue| fill_and_block(&queue.call));
        for n in 0..200 {
            // To it, by several threads: its interrupts and those for its own packets.
            arena.witness.try_send(Default::default(), &numbered(mac(0x77), mac(0x66), n, 100));
            guest.try_send(Default::default(), &numbered(mac(0x66), mac(0x77), n, 100));
            if n % 50 == 0 {
                arena.bystanders.still_exchange();
                // The main thread signals too: a new call descriptor is told at once what it may have missed.
                guest.front.set_call(0, Some(guest.net.queues()[0].call.as_fd())).unwrap();
                assert_eq!(arena.port()["state"], "up");
            }
        }
        drop(guest);
        arena.witness.drain();
        arena.end(&attack, &[]);
    }
}

/// F10: the same of the descriptor by which a front-end is told that its ring broke.
#[test]
fn f10_error_descriptors_that_are_full_and_block() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F10 error");
    let front = negotiated(&arena);
    let region = RegionSpec { guest_addr: 0, user_addr: 0, size: 4096, mmap_offset: 0 };
    let ram = memfd(4096);
    front.set_mem_table(&[(region, ram.as_fd())]).unwrap();
    let (err, kick) = (lasthop_sys::EventFd::new().unwrap(), lasthop_sys::EventFd::new().unwrap());
    for ring in 0..2 {
        front.set_err(ring, Some(err.as_fd())).unwrap();
        fill_and_block(&err);
        front.set_size(ring, 256).unwrap();
        front.set_addr(ring, 1 << 40, 1 << 40, 1 << 40).unwrap();
        front.set_kick(ring, Some(kick.as_fd())).unwrap();
    }
    arena.is_broken("is in no memory region");
    arena.bystanders.still_exchange();
    drop(front);
    arena.end(&attack, &["port=x", "is in no memory region"]);
}

/// F10: a kick descriptor that blocks whoever reads it works like any other, for nobody reads it.
#[test]
fn f10_kick_descriptors_that_block() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F10 kick");
    let mut guest = arena.guest(Options::default());
    for queue in guest.net.queues() {
        let flags = rustix::fs::fcntl_getfl(&queue.kick).unwrap();
        rustix::fs::fcntl_setfl(&queue.kick, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    }
    arena.works(&mut guest);
    arena.bystanders.still_exchange();
    drop(guest);
    arena.end(&attack, &[]);
}

/// F10: what is no eventfd is refused, and nothing is asked of it.
#[test]
fn f10_pipes_and_files_are_refused() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("F10 kinds");
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for fd in [read.as_fd(), write.as_fd(), socket.as_fd(), file.as_fd(), memfd(1).as_fd()] {
        let front = negotiated(&arena);
        refused("call", front.set_call(0, Some(fd)));
        refused("error", front.set_err(0, Some(fd)));
        refused("kick", front.set_kick(0, Some(fd)));
    }
    arena.end(&attack, &["port=x", "SET_VRING_KICK", "not an eventfd"]);
}

/// The same over a connection that lasthop makes: whatever ends it, lasthop connects again.
#[test]
fn whatever_ends_it_lasthop_connects_again() {
    let mut arena = Arena::new(true);
    let attack = arena.begin("client");
    let ends: [&dyn Fn(&Frontend); 4] = [
        &|_| {},
        &|f| drop(f.send_raw(&[0xff; 100], &[])),
        &|f| drop(f.send(Request::SetVringNum as u32, 1, &[0; 8], &[])),
        &|f| drop(f.send(2000, 1, &[], &[])),
    ];
    for round in 0..20 {
        let front = arena.connection();
        ends[round % ends.len()](&front);
        let _ = front.features();
    }
    arena.end(&attack, &[]);
}

/// Every message a well-behaved front-end sends when its driver comes up, but ends there: nothing is left of it.
#[test]
fn ends_after_any_message() {
    let mut arena = Arena::new(false);
    let attack = arena.begin("partial");
    for steps in 0..9 {
        let front = negotiated(&arena);
        let net = NetDriver::new(Options::default().net).unwrap();
        let (region, fd) = net.region();
        let queue = &net.queues()[1];
        let layout = queue.layout;
        let [desc, driver, device] = [layout.desc, layout.driver, layout.device].map(|a| net.user_addr(a));
        let all: [&dyn Fn() -> Result<(), FrontendError>; 8] = [
            &|| front.set_mem_table(&[(region, fd)]),
            &|| front.set_size(1, layout.size.into()),
            &|| front.set_base(1, 0),
            &|| front.set_addr(1, desc, driver, device),
            &|| front.set_call(1, Some(queue.call.as_fd())),
            &|| front.set_kick(1, Some(queue.kick.as_fd())),
            &|| front.enable(1, true),
            &|| front.stop(1).map(drop),
        ];
        for step in all.iter().take(steps) {
            step().unwrap();
        }
    }
    let mut guest: Guest = arena.guest(Options::default());
    arena.works(&mut guest);
    drop(guest);
    arena.end(&attack, &[]);
}
