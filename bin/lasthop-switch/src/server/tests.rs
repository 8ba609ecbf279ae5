use super::*;
use lasthop_ipc::{ControlEnd, ring_pair};

fn server() -> (Server, OwnedFd) {
    let (ours, theirs) = Channel::<SwitchToSupervisor, SupervisorToSwitch>::pair().unwrap();
    let given = Arguments { supervisor: Channel::new(theirs), journal: None, view: None, prompter: None };
    let told = SwitchSettings {
        helpers: Vec::new(),
        poll: Vec::new(),
        hysteresis_us: (5, 50),
        rx_batch: (0, 0),
        not_idle: false,
        cgroup_accounting: false,
        patience_ms: (2, 10),
        max_guest_memory: 1 << 30,
    };
    (Server::new(given, told).unwrap(), ours)
}

fn attach(server: &mut Server) -> ControlEnd {
    let (ours, theirs) = ring_pair().unwrap();
    server.attach_control(ours);
    ControlEnd::new(theirs).unwrap()
}

/// What the server does before it sleeps.
fn talk(server: &mut Server) {
    server.talk();
    server.timeout();
}

/// They were all carried out before anybody else had a turn: up to 4096 packets of 64 KiB, to everybody.
#[test]
fn what_a_lost_control_decided_is_carried_out_some_at_a_time() {
    let (mut server, _supervisor) = server();
    let mut first = attach(&mut server);
    talk(&mut server);
    assert!(matches!(first.recv(), Ok(ToControl::Hello)));
    for _ in 0..4000 {
        server.orders.push(PortId(1), Order::removal(FlowKey::default(), FlowMask::default()));
    }
    server.obey(FromControl::ClearFlows);
    server.lose_control();
    assert!(server.control.is_none() && server.orders.len() == 4000, "{}", server.orders.len());
    // The next begins when all that is done, and what waited for it.
    let mut next = attach(&mut server);
    let mut rounds = 0;
    while !server.orders.is_empty() {
        assert!(server.control.is_none() && server.timeout() == Some(Duration::ZERO));
        assert!(matches!(next.recv(), Err(ChannelError::WouldBlock)));
        server.carry_out();
        rounds += 1;
    }
    assert!(rounds >= 5, "{rounds}");
    assert!(server.deferred.is_none() && server.control.is_some());
    talk(&mut server);
    assert!(matches!(next.recv(), Ok(ToControl::Hello)));
}
