//! Limits of what clients may ask for at a time: tests.

use super::calls::MAX_QUESTIONS;
use super::{Answer, Asker, Call, Command, Core, Event};
use crate::server::MAX_LONG_LISTS;
use lasthop_api::{ApiError, Flow, TraceReport};
use lasthop_ipc::{DatapathReply, FromControl, ToControl};
use lasthop_management_ipc::{ControlToSupervisor, PortConfig, SupervisorToControl};
use lasthop_types::PortId;
use tokio::sync::oneshot::Receiver;

type Arrives<T> = Receiver<Result<T, ApiError>>;

/// A control with a switch that answers nothing, and a port.
fn core() -> Core {
    let mut core = Core::new(0);
    let vm = PortConfig {
        id: PortId(1),
        name: "vm".into(),
        path: "/vm".into(),
        client: false,
        tx_batch: (125, 64),
        rx_batch: (125, 64),
        owner: None,
    };
    core.handle(Event::SwitchAttached, 0);
    core.handle(Event::Supervisor(SupervisorToControl::Ports(vec![vm])), 0);
    core.commands();
    core
}

fn trace(core: &mut Core, asker: Asker) -> Arrives<TraceReport> {
    let (answer, arrives) = Answer::new(asker);
    core.handle(Event::Call(Call::Trace { port: "vm".into(), frame: vec![0; 60], answer }), 0);
    arrives
}

fn flows(core: &mut Core, asker: Asker) -> Arrives<Vec<Flow>> {
    let (answer, arrives) = Answer::new(asker);
    core.handle(Event::Call(Call::FlowList { answer }), 0);
    arrives
}

fn is_refused<T>(arrives: &mut Arrives<T>) -> bool {
    matches!(arrives.try_recv(), Ok(Err(ApiError::Busy { .. })))
}

/// Who may only look had all the room for questions.
#[test]
fn readers_take_no_room_from_those_who_may_change_things() {
    let mut core = core();
    let mut readers: Vec<_> = (0..MAX_QUESTIONS).map(|_| trace(&mut core, Asker::Reader)).collect();
    assert!(!readers.iter_mut().any(is_refused));
    assert!(is_refused(&mut trace(&mut core, Asker::Reader)), "one more");
    assert!(!is_refused(&mut trace(&mut core, Asker::Owner)));
    let uplinks = |core: &mut Core, asker| {
        let (answer, arrives) = Answer::new(asker);
        core.handle(Event::Call(Call::Uplink { call: super::UplinkCall::Del { name: "net".into() }, answer }), 0);
        arrives
    };
    assert!(!is_refused(&mut uplinks(&mut core, Asker::Owner)));
    for _ in 0..MAX_QUESTIONS {
        let (answer, arrives) = Answer::new(Asker::Reader);
        core.handle(Event::Call(Call::Stats { answer }), 0);
        std::mem::forget(arrives);
    }
    core.commands();
    let (answer, mut arrives) = Answer::new(Asker::Owner);
    core.handle(Event::Call(Call::Stats { answer }), 0);
    assert!(!is_refused(&mut arrives));
    let asked = |c| matches!(c, Command::Supervisor(ControlToSupervisor::CpuTimes { .. }));
    assert!(core.commands().into_iter().any(asked));
    // Those who have gone make room.
    readers.clear();
    assert!(!is_refused(&mut trace(&mut core, Asker::Reader)));
}

/// Questions for flows that were given up, and still had to be counted, kept others from asking.
#[test]
fn questions_for_flows_are_few_and_by_socket() {
    let mut core = core();
    let mut readers: Vec<_> = (0..MAX_LONG_LISTS).map(|_| flows(&mut core, Asker::Reader)).collect();
    assert!(!readers.iter_mut().any(is_refused) && is_refused(&mut flows(&mut core, Asker::Reader)));
    let mut owners: Vec<_> = (0..MAX_LONG_LISTS).map(|_| flows(&mut core, Asker::Owner)).collect();
    assert!(!owners.iter_mut().any(is_refused) && is_refused(&mut flows(&mut core, Asker::Owner)));
    drop((readers, owners));
    // Of each that is given up the flows have been told and are not judged yet.
    for _ in 0..3 * MAX_LONG_LISTS {
        core.commands();
        let (answer, arrives) = Answer::new(Asker::Reader);
        core.handle(Event::Call(Call::AclShow { ports: Vec::new(), packets: true, answer }), 0);
        let asks = core.commands().into_iter().filter_map(|command| match command {
            Command::Switch(message) => match *message {
                FromControl::Ask { request, .. } => Some(request),
                _ => None,
            },
            Command::Supervisor(_) => None,
        });
        for request in asks.collect::<Vec<_>>() {
            let reply = DatapathReply::Flows { flows: Vec::new(), next: None };
            core.hear_switch([ToControl::Reply { request, last: true, reply }].into_iter(), 0);
        }
        drop(arrives);
    }
    assert_eq!(core.counting.len(), 3 * MAX_LONG_LISTS);
    assert!(!is_refused(&mut flows(&mut core, Asker::Owner)));
}

/// What is put right where messages wait for the switch is put off, and not for ever.
#[test]
fn flows_are_put_right_now_and_then_under_congestion() {
    use super::CONGESTED_MS;
    let mut core = core();
    core.handle(Event::Timer, 0);
    core.set_unsent(1_000_000);
    core.policy.reconcile(1, vec![flow_use(); 100_000], 0);
    let (mut now_ms, mut rounds) = (1000, 0);
    while core.put_right_ms().is_some() {
        let at = core.put_right_ms().unwrap_or_default();
        assert!(at <= now_ms + CONGESTED_MS, "put off to {at} at {now_ms}");
        now_ms = now_ms.max(at);
        core.handle(Event::Timer, now_ms);
        let next = core.put_right_ms();
        assert!(next.is_none_or(|next| next >= now_ms + CONGESTED_MS), "{next:?} at {now_ms}");
        core.commands();
        rounds += 1;
        assert!(rounds < 100_000);
    }
    assert!(rounds > 10 && core.reconciled, "{rounds}");
    // Without congestion it goes on at once.
    core.set_unsent(0);
    core.policy.reconcile(1, vec![flow_use(); 10_000], now_ms);
    core.handle(Event::Timer, now_ms);
    assert!(core.put_right_ms().is_some_and(|at| at < now_ms + CONGESTED_MS));
}

fn flow_use() -> lasthop_policy::FlowUse {
    use lasthop_frame::{FlowKey, FlowMask};
    let key = FlowKey { in_port: 1, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let spec = lasthop_flow::FlowSpec { key, mask, actions: Vec::new(), epoch: 0 };
    lasthop_policy::FlowUse { spec, idle_ms: 0, packets: 0 }
}

/// All were written out in one go, tens of milliseconds during which nobody's first packet was answered.
#[test]
fn addresses_are_listed_some_at_a_time() {
    let (mut core, mut out) = (core(), lasthop_policy::Effects::default());
    let ports = 1..=4u32;
    ports.clone().for_each(|port| core.policy.port(PortId(port), true, 0, &mut out));
    for (n, port) in (0..4096u32).flat_map(|n| ports.clone().map(move |port| (n, port))) {
        let eth_src = [2, port as u8, 0, 0, (n >> 8) as u8, n as u8];
        let key = lasthop_frame::FlowKey { in_port: port, eth_src, eth_dst: [255; 6], ..Default::default() };
        core.policy.miss(n.into(), &key, 0, &mut out);
    }
    let there = core.policy.mac_count();
    let (answer, mut arrives) = Answer::new(Asker::Reader);
    core.handle(Event::Call(Call::MacList { answer }), 0);
    let mut rounds = 1;
    let told = loop {
        match arrives.try_recv() {
            Ok(told) => break told.map(|macs| macs.len()),
            Err(_) => assert_eq!(core.deadline_ms(), Some(0), "the rest is due"),
        }
        core.handle(Event::Timer, 0);
        rounds += 1;
    };
    assert_eq!((told.ok(), there), (Some(there), 16_384));
    assert_eq!(rounds, 8, "2048 at a time");
    assert_ne!(core.deadline_ms(), Some(0));
}
