//! What a front-end must not say, and what it costs when it does.

use super::*;

/// F4: no growth however often a front-end asks.
#[test]
fn a_hundred_thousand_questions_leave_nothing_behind() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    let open = || std::fs::read_to_string("/proc/self/maps").map_or(0, |m| m.matches("lasthop-inflight").count());
    let before = open();
    let body = {
        let (desc, _fd) = rig.drive(|front, _| front.inflight(32, 1024).unwrap());
        *desc.as_bytes().first_chunk::<20>().unwrap()
    };
    for _ in 0..1_000 {
        for _ in 0..25 {
            rig.front.send(Request::GetInflightFd as u32, flag::VERSION, &body, &[]).unwrap();
            rig.front.send(Request::GetFeatures as u32, flag::VERSION, &[], &[]).unwrap();
            rig.front.send(Request::SetVringNum as u32, flag::VERSION, state(5, 512).as_bytes(), &[]).unwrap();
            rig.front.send(Request::GetVringBase as u32, flag::VERSION, state(5, 0).as_bytes(), &[]).unwrap();
        }
        for _ in 0..4 {
            rig.ready().unwrap();
        }
        for _ in 0..25 {
            let (_, fds) = rig.front.receive::<[u8; 20]>(Request::GetInflightFd).unwrap();
            assert_eq!(fds.len(), 1);
            rig.front.receive::<u64>(Request::GetFeatures).unwrap();
            rig.front.receive::<VringState>(Request::GetVringBase).unwrap();
        }
        assert!(rig.events.len() < 16);
        rig.events.clear();
    }
    assert_eq!(open(), before);
}

/// F1 to F3, F5, F6: the form first, whatever the state.
#[test]
fn malformed_messages_end_the_connection() {
    use Request as R;
    let v = flag::VERSION;
    let huge = vec![0; 513];
    let cases: &[(u32, u32, &[u8], usize)] = &[
        (R::GetFeatures as u32, 0, &[], 0),               // version 0
        (R::GetFeatures as u32, 2, &[], 0),               // version 2
        (R::GetFeatures as u32, v | flag::REPLY, &[], 0), // a reply
        (R::GetFeatures as u32, v | 1 << 4, &[], 0),      // a flag nobody knows
        (R::GetFeatures as u32, v, &[0], 0),              // too long
        (R::GetFeatures as u32, v, &[], 1),               // a descriptor too many
        (R::SetFeatures as u32, v, &[0; 7], 0),           // too short
        (R::SetFeatures as u32, v, &[0; 9], 0),
        (R::SetFeatures as u32, v, &[0; 8], 8),
        (R::SetMemTable as u32, v, &[0; 7], 0),
        (R::SetMemTable as u32, v, &[1, 0, 0, 0, 0, 0, 0, 0], 1), // one region announced, none there
        (R::SetMemTable as u32, v, &[0; 264], 0),                 // none announced, eight there
        (R::SetMemTable as u32, v, &[0xff; 264], 8),
        (R::SetVringNum as u32, v, &[0; 12], 0),
        (R::SetVringAddr as u32, v, &[0; 8], 0),
        (R::SetVringAddr as u32, v, &[0xff; 40], 0), // unknown flags
        (R::SetVringKick as u32, v, &[0; 8], 0),     // descriptor missing
        (R::SetVringKick as u32, v, &[0; 8], 2),
        (R::SetVringCall as u32, v, &[0, 1, 0, 0, 0, 0, 0, 0], 1), // announced as missing, yet there
        (R::SetVringErr as u32, v, &[1, 0, 1, 0, 0, 0, 0, 0], 1),  // 0x10001
        (R::SetVringEnable as u32, v, &[0, 0, 0, 0, 2, 0, 0, 0], 0),
        (R::SetBackendReqFd as u32, v, &[], 0),
        (R::GetInflightFd as u32, v, &[0; 19], 0),
        (R::GetInflightFd as u32, v, &[0; 22], 0),
        (R::SetInflightFd as u32, v, &[0; 24], 0),
        (R::SetInflightFd as u32, v, &[0; 24], 2),
        (R::AddMemReg as u32, v, &[0; 40], 0),
        (R::AddMemReg as u32, v, &[0; 32], 1),
        (R::RemMemReg as u32, v, &[0; 40], 2),
        (77, v, &huge, 0),
        (R::GetFeatures as u32, v, &[], 20), // more than the kernel hands us
    ];
    for (request, flags, body, fds) in cases {
        for acks in [false, true] {
            let mut rig = if acks { Rig::negotiated(Features::PROTOCOL_FEATURES) } else { Rig::new() };
            let flags = flags | if acks { flag::NEED_REPLY } else { 0 };
            let error = rig.error(*request, flags, body, *fds);
            assert!(matches!(error, SessionError::Syntax(_)), "{request} {flags:#x} {body:?} {fds}: {error:?}");
        }
    }
    let mut rig = Rig::new();
    let error = rig.error(R::GetFeatures as u32, v, &[], 20);
    assert_eq!(error, SessionError::Syntax(SyntaxError::Truncated));
}

#[test]
fn meaningless_messages_end_the_connection_or_are_answered() {
    use Request as R;
    let u64s = |v: u64| v.to_le_bytes().to_vec();
    let ring = |i: u32, n: u32| state(i, n).as_bytes().to_vec();
    let cases: Vec<(Request, Vec<u8>)> = vec![
        (R::SetFeatures, u64s(1 << 58)),
        (R::SetProtocolFeatures, u64s(1 << 9)),
        (R::SetVringNum, ring(32, 256)),
        (R::SetVringNum, ring(0x1_0001, 256)),
        (R::SetVringNum, ring(u32::MAX, 256)),
        (R::SetVringNum, ring(0, 0)),
        (R::SetVringNum, ring(0, 32769)),
        (R::SetVringNum, ring(0, 65536 + 256)),
        (R::SetVringBase, ring(40, 0)),
        (R::SetVringKick, u64s(NO_FD | 32)),
        (R::SetVringCall, u64s(NO_FD | 255)),
        (R::SetVringErr, u64s(NO_FD | 200)),
        (R::SetVringEnable, ring(32, 1)),
        (R::NetSetMtu, u64s(0)),
        (R::IotlbMsg, vec![0; 32]),
        (R::SetVringEndian, ring(0, 1)),
        (R::SetConfig, vec![0; 16]),
        (R::PostcopyListen, vec![]),
        (R::VringKick, ring(0, 0)),
        (R::RemMemReg, vec![0; 40]),
    ];
    for (request, body) in &cases {
        let mut rig = Rig::new();
        rig.refusal(*request, body);
        let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
        rig.front.send(*request as u32, flag::VERSION | flag::NEED_REPLY, body, &[]).unwrap();
        rig.ready().unwrap_or_else(|e| panic!("{request}: {e}"));
        assert_eq!(rig.front.receive::<u64>(*request).unwrap().0, 1, "{request}");
        assert!(matches!(rig.events[..], [.., Event::Wrong { .. }]), "{request}");
    }
    // Questions whose answer cannot say no.
    for (request, body) in [(R::GetVringBase, ring(32, 0)), (R::GetConfig, vec![0; 16])] {
        let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
        let error = rig.error(request as u32, flag::VERSION | flag::NEED_REPLY, &body, 0);
        assert!(matches!(error, SessionError::Refused { .. }));
    }
}

#[test]
fn extensions_must_be_negotiated() {
    use Request as R;
    let mut rig = Rig::new();
    assert_eq!(rig.refusal(R::GetMaxMemSlots, &[]), Refusal::NotNegotiated(1 << 15));
    let mut rig = Rig::new();
    let error = rig.error(R::GetStatus as u32, flag::VERSION, &[], 0);
    assert_eq!(error.to_string(), "GET_STATUS: protocol feature STATUS was not negotiated");
    let mut rig = Rig::new();
    let error = rig.error(99, flag::VERSION, &[1, 2, 3], 3);
    assert_eq!(error.to_string(), "request 99: no request has this number");
    let mut rig = Rig::new();
    let error = rig.error(R::SetFeatures as u32, flag::VERSION, &(1u64 << 58 | 1 << 17).to_le_bytes(), 0);
    assert_eq!(error.to_string(), "SET_FEATURES: features not offered: CTRL_VQ, bit 58");
}

#[test]
fn nobody_fills_the_log_with_refusals() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    let mut ended = 0;
    while ended < 100 {
        rig.front.send(99, flag::VERSION | flag::NEED_REPLY, &[], &[]).unwrap();
        if rig.ready().is_err() {
            break;
        }
        ended += 1;
    }
    assert_eq!(ended, 32);
}

/// F10.
#[test]
fn only_eventfds_are_event_descriptors() {
    let mut rig = Rig::negotiated(Features::VERSION_1 | Features::PROTOCOL_FEATURES);
    let (read, write) = rustix::pipe::pipe().unwrap();
    rig.drive(|front, ram| {
        for fd in [ram.as_fd(), read.as_fd(), write.as_fd(), front.as_fd()] {
            assert!(front.set_kick(1, Some(fd)).is_err());
            assert!(front.set_call(1, Some(fd)).is_err());
            assert!(front.set_err(1, Some(fd)).is_err());
        }
    });
    for request in ["SET_VRING_KICK", "SET_VRING_CALL", "SET_VRING_ERR"] {
        let line = |line: &String| {
            line.starts_with(&format!("refused: {request} of ring 1: ")) && line.contains("not an eventfd")
        };
        let refused = |e: &&Event| matches!(e, Event::Wrong { line: said, .. } if line(said));
        assert_eq!(rig.events.iter().filter(refused).count(), 4, "{request}");
    }
}

/// F9.
#[test]
fn silence_and_half_messages_end_after_a_time() {
    let mut rig = Rig::new();
    let start = rig.start;
    assert_eq!(rig.session.deadline(), Some(start + SILENCE));
    assert_eq!(rig.session.expire(start + SILENCE - Duration::from_millis(1)), Ok(()));
    assert_eq!(rig.session.expire(start + SILENCE), Err(SessionError::Silent));

    let message = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    rig.front.send_raw(&message[..5], &[]).unwrap();
    rig.ready().unwrap();
    assert_eq!(rig.session.expire(start + HALF_MESSAGE), Err(SessionError::HalfMessage));
    rig.front.send_raw(&message[5..], &[]).unwrap();
    rig.ready().unwrap();
    assert_eq!(rig.front.receive::<u64>(Request::GetFeatures).unwrap().0, Features::OFFERED.bits());
    assert_eq!(rig.session.deadline(), None, "a front-end that has spoken may be silent for ever");

    rig.front.send(Request::SetVringNum as u32, flag::VERSION, &[0; 8], &[]).unwrap();
    assert!(matches!(rig.ready(), Err(SessionError::Refused { .. })));

    let mut rig = Rig::new();
    rig.front.send_raw(&message[..11], &[]).unwrap();
    let Rig { front, session, start, events, .. } = &mut rig;
    session.serve(*start, events).unwrap();
    *front = Rig::new().front;
    assert_eq!(session.serve(*start, events), Err(SessionError::ClosedMidMessage));
}

#[test]
fn replies_must_be_read() {
    let mut rig = Rig::new();
    let mut sent = 0;
    let error = loop {
        rig.front.send(Request::GetFeatures as u32, flag::VERSION, &[], &[]).unwrap();
        sent += 1;
        if let Err(e) = rig.ready() {
            break e;
        }
        assert!(sent < 1_000_000);
    };
    assert_eq!(error, SessionError::RepliesUnread);
}
