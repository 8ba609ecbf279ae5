use super::*;
use lasthop_flow::{Action, FlowSpec};
use lasthop_ipc::{Channel, ControlEnd, ring_pair};
use lasthop_types::DropReason;

fn server() -> (Server, OwnedFd) {
    let (ours, theirs) = Channel::<SwitchToSupervisor, SupervisorToSwitch>::pair().unwrap();
    let supervisor = Channel::new(theirs);
    let given = Arguments { supervisor, journal: None, view: None, prompter: None, handed: Default::default() };
    let told = SwitchSettings {
        helpers: Vec::new(),
        poll: Vec::new(),
        hysteresis_us: (5, 50),
        not_idle: false,
        cgroup_accounting: false,
        drawn_timer: false,
        idle_us: 10_000_000,
        patience_ms: (2, 10),
        max_guest_memory: 1 << 30,
        max_flows: 1000,
    };
    (Server::new(given, told, Vec::new(), Watches::new(64)).unwrap(), ours)
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

/// As many as fit into a message were carried out for each packet, whoever waited for the locks: 20 000 deliveries of 64 KiB.
#[test]
fn a_flow_delivers_no_packet_more_often_than_there_are_ports_and_a_few() {
    let (mut server, _supervisor) = server();
    let spec = |in_port: u32, actions: Vec<Action>| FlowSpec {
        key: FlowKey { in_port, ..FlowKey::default() },
        mask: FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }),
        actions,
        epoch: 0,
    };
    let outputs = |n: usize| vec![Action::Output(PortId(1)); n];
    let copies = |n: usize| [vec![Action::Copy(PortId(1)); n], outputs(1)].concat();
    let bad = vec![Action::Drop(DropReason::BadAction)];
    let cases = [
        (outputs(SPARE), outputs(SPARE)),
        (outputs(SPARE + 1), bad.clone()),
        (vec![Action::Truncated(PortId(1), 64); 20_000], bad.clone()),
        (copies(FOR_EACH * SPARE - 1), copies(FOR_EACH * SPARE - 1)),
        (copies(FOR_EACH * SPARE), bad),
    ];
    for (n, (actions, becomes)) in (1..).zip(cases) {
        server.obey(FromControl::PutFlow(spec(n, actions)));
        let key = FlowKey { in_port: n, ..FlowKey::default() };
        let lasthop_flow::Lookup::Flow(flow) = server.datapath.flows().lookup(&key, lasthop_frame::Depth::Full) else {
            panic!("case {n}: no flow");
        };
        assert_eq!(*flow.actions, *becomes, "case {n}");
    }
}

/// They were all carried out before anybody else had a turn: up to 4096 packets of 64 KiB, to everybody.
#[test]
fn what_a_lost_control_decided_is_carried_out_some_at_a_time() {
    let (mut server, _supervisor) = server();
    let mut first = attach(&mut server);
    talk(&mut server);
    assert!(matches!(first.recv(), Ok(ToControl::Hello)));
    for _ in 0..4000 {
        server.orders.push(PortId(1), Order::removal(FlowKey::default(), FlowMask::default(), false));
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
